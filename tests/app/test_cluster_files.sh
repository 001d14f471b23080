#!/bin/bash
# The files of configs/cluster/ for Kubernetes and Docker: what they name is there, and a job of two
# pods trains. Each pod is a namespace with a host name and an /etc/hosts as Kubernetes makes them.
# tests/app/test_slurm.sh runs the batch files. SKIP without python3 and its yaml.
set -eu
python3 -c 'import yaml' 2>/dev/null || {
    echo "SKIP: no python3 with yaml (package python3-yaml)"
    exit 77
}
# shellcheck source=/dev/null
. "$SOURCE_DIR/tests/support/facts.sh"
program=$BUILD_DIR/mnist_ddp
work=$(mktemp -d /tmp/mnist_ddp-cluster-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$SOURCE_DIR/configs/cluster"
python3 -B "$SOURCE_DIR/tests/app/support/cluster_files.py" >"$work/args"
mapfile -t args <"$work/args"
make -n -C "$SOURCE_DIR" deb >/dev/null
echo "job.yaml and Dockerfile: ok"

cd "$work"
unset MNIST_DDP_DATA RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
export HOME=$work XDG_CACHE_HOME=$work/cache # our own digits, made once

fail() {
    echo "FAIL: $*" >&2
    tail -n 30 -v ./*.err >&2
    exit 1
}

port=$((26000 + $$ % 1000))
small=(--model mlp --limit 192 --epochs 1 --batch-size 16 --threads 1)
"$program" train --nproc-per-node=4 "${small[@]}" --run-dir ours >ours.out 2>ours.err ||
    fail "our own launcher: exit $?"
unshare --uts --mount true 2>/dev/null || {
    echo "SKIP of the pods: the kernel makes no namespaces here, or not for this user"
    exit 0
}
printf '127.0.0.1 localhost\n' >hosts
for i in 0 1; do
    printf '127.0.0.1 mnist-ddp-%d.mnist-ddp.default.svc.cluster.local mnist-ddp-%d\n' $i $i >>hosts
done
pod() { # number $1, with further flags; in the background
    local index=$1
    shift
    # shellcheck disable=SC2016  # the shell inside expands it
    KUBERNETES_SERVICE_HOST=10.96.0.1 JOB_COMPLETION_INDEX=$index timeout 60 \
        unshare --uts --mount bash -c 'hostname "mnist-ddp-$JOB_COMPLETION_INDEX" &&
            mount --bind hosts /etc/hosts && exec "$@"' pod "$program" "${args[@]}" "$@" \
        >"pod$index.out" 2>"pod$index.err"
}
flags=("${small[@]}" --run-dir pods "--master-port=$port")
# The pods have one network here, so not the same port for the probe.
pod 1 "${flags[@]}" "--health-check-port=$((port + 1))" &
other=$!
pod 0 "${flags[@]}" "--health-check-port=$((port + 2))" || fail "pod 0: exit $?"
wait $other || fail "pod 1: exit $?"
facts_in_a_line "$(cat pod0.err)" launcher "Indexed Job" "node 0 of 2" JOB_COMPLETION_INDEX \
    "mnist-ddp-0.mnist-ddp.default.svc.cluster.local:$port" || fail "pod 0 does not say who started it"
cmp ours/model.safetensors pods/model.safetensors || fail "two pods leave other weights than one host"
echo "two pods: the weights of our own launcher"
