#!/usr/bin/env bash
# Both README commands on a bare Debian 12 with nothing but make and git: once with the network, for the
# packages, and once without. Not part of the test suite: needs root, debootstrap and some minutes.
#
#     tests/fresh_machine.sh [FOLDER]      the root that is made (default: a new one under /tmp)
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
root=${1:-$(mktemp -d /tmp/mnist_ddp-fresh-XXXXXX)}

# shellcheck source=/dev/null
. "$here/tests/support/debian_root.sh"
debian_root_make "$root" make,git
git clone -q "$here" "$root/root/mnist_ddp"
inside() {
    debian_root_run "cd /root/mnist_ddp && $1"
}
timed() {
    local started=$SECONDS
    echo "== $1"
    shift
    "$@"
    echo "== took $((SECONDS - started)) s"
}

timed "make run, with the network" inside "make run"
timed "make test, with the network" inside "make test"
timed "make run, packages there" inside "make run"
inside "make clean"
offline() { # a network namespace of its own, with loopback only
    unshare --net sh -c "ip link set lo up 2>/dev/null || ifconfig lo up; exec chroot '$root' \
        /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
        sh -c 'cd /root/mnist_ddp && $1'"
}
timed "make run, offline" offline "make run"
timed "make test, offline" offline "make test"
echo "fresh machine: all passed in $root"
