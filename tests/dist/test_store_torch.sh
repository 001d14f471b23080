#!/bin/bash
# The store and the rendezvous against torch's own: its client on our server, our client on its
# servers, our ranks under torchrun. $TORCH_PYTHON is a Python that has torch; SKIP without.
set -eu
python=${TORCH_PYTHON:-}
if [ -z "$python" ] || ! "$python" -c 'import torch.distributed' 2>/dev/null; then
    echo "SKIP: TORCH_PYTHON is no Python with torch"
    exit 77
fi
export TORCH_CPP_LOG_LEVEL=ERROR
here=$SOURCE_DIR/tests/dist
program=$BUILD_DIR/test_dist

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

# Our server: it ends with its input, and this script holds the other end.
coproc server { exec "$program" store --server; }
exec {server_in}>&"${server[1]}"
read -r port <&"${server[0]}"
timeout 60 "$python" "$here/store_torch.py" client "$port" || fail "torch's client on our server"
exec {server_in}>&-
echo "torch's client, our server: ok"

timeout 60 "$python" "$here/store_torch.py" server "$program" store || fail "our client on torch's server"
echo "our client, torch's servers: ok"

# Launches two ranks; both must have joined, through the agent's store.
launch() { # torchrun's options
    local said
    said=$(timeout 120 "$python" -m torch.distributed.run --no-python --nproc_per_node=2 "$@" \
        "$program" rendezvous --join) || fail "torchrun $*"
    for rank in 0 1; do
        grep -q "^rank $rank of 2 joined at .* (agent)" <<<"$said" ||
            fail "torchrun $*: rank $rank said: $said"
    done
    echo "torchrun $*: ok"
}
launch --standalone
free_port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
launch --master_addr=127.0.0.1 --master_port="$free_port"
