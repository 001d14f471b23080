#!/bin/bash
# mnist_ddp store and PyTorch's TCPStore, in the example of two processes: each once as the server,
# once as the client. $TORCH_PYTHON is a Python that has torch; SKIP without.
set -eu
python=${TORCH_PYTHON:-}
if [ -z "$python" ] || ! "$python" -c 'import torch.distributed' 2>/dev/null; then
    echo "SKIP: TORCH_PYTHON is no Python with torch"
    exit 77
fi
export TORCH_CPP_LOG_LEVEL=ERROR
program=$BUILD_DIR/mnist_ddp
work=$(mktemp -d /tmp/mnist_ddp-store-torch-XXXXXX)
declare -a pids=()
cleanup() {
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap cleanup EXIT
cd "$work"

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

cat >store.py <<'PYTHON'
import sys
from datetime import timedelta

import torch.distributed as dist

who, port = sys.argv[1], int(sys.argv[2])
if who == "client":
    store = dist.TCPStore("127.0.0.1", port, 2, False)
    assert store.get("first_key") == b"first_value"
    assert store.get("bytes") == b"a\0b\xff"
    assert store.add("n", 2) == 5
    store.set("from_python", "second_value")
else:
    store = dist.TCPStore("127.0.0.1", port, 2, True, timedelta(seconds=30))
    store.set("first_key", "first_value")
    assert store.get("from_here") == b"second_value"
PYTHON

mkfifo announced
"$program" store serve --port=0 --timeout=60 >announced &
pids+=($!)
read -r address <announced
ask() {
    timeout 40 "$program" store "$@" --host "$address"
}
ask set first_key first_value
printf 'a\0b\xff' | ask set bytes -
[ "$(ask add n 3)" = 3 ] || fail "add"
timeout 60 "$python" store.py client "${address##*:}" || fail "torch's client, our server"
[ "$(ask get from_python)" = second_value ] || fail "what torch has set"
echo "torch's client, our server: ok"

# torch's server goes on when as many workers as its world size have counted themselves.
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
timeout 60 "$python" store.py server "$port" &
server=$!
pids+=("$server")
address=127.0.0.1:$port
[ "$(ask get first_key)" = first_value ] || fail "our client, torch's server"
ask set from_here second_value
wait "$server" || fail "torch's server"
echo "our client, torch's server: ok"
