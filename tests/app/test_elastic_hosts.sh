#!/bin/bash
# An elastic job on four "hosts", network namespaces: random schedules of killed, added, cut off and
# stopped hosts and of an etcd that is killed and started anew (tests/app/support/elastic_hosts.py).
# Two rounds never live at once, the run finishes or says why not, each epoch has each sample once.
# $ELASTIC_SCHEDULES: how many; $ELASTIC_SEED: of the first (0: another each time). SKIP if the kernel does not let us.
set -eu
# shellcheck source=../support/scratch.sh
. "$SOURCE_DIR/tests/support/scratch.sh"
# shellcheck source=../support/netns.sh
. "$SOURCE_DIR/tests/support/netns.sh"
trap 'netns_close; scratch_close' EXIT
[ -e "$BUILD_DIR/mnist_ddp_gloo.so" ] || skip "gloo is not in this build"
command -v python3 >/dev/null || skip "no python3"
netns_open 10.77.0 4
export HOME=$work XDG_CACHE_HOME=$work/cache # our own digits, made once
export HUB=$netns_hub HOSTS="${netns[*]}" NETWORK=10.77.0
python3 -B "$SOURCE_DIR/tests/app/support/elastic_hosts.py" "${ELASTIC_SCHEDULES:-5}" \
    "${ELASTIC_SEED:-2}"
