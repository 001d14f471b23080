#!/bin/bash
# torchrun starts our program as it would any: its three ways to meet, and a run that fails. SKIP
# without $TORCH_PYTHON, a Python that has torch and torchrun beside it.
set -eu
torchrun=$(dirname "${TORCH_PYTHON:-/nowhere/python}")/torchrun
if [ ! -x "$torchrun" ]; then
    echo "SKIP: no torchrun beside TORCH_PYTHON='${TORCH_PYTHON:-}'"
    exit 77
fi
# shellcheck source=/dev/null
. "$SOURCE_DIR/tests/support/facts.sh"
work=$(mktemp -d /tmp/mnist_ddp-torchrun-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset MNIST_DDP_DATA RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
export HOME=$work XDG_CACHE_HOME=$work/cache # our own digits, made once
export TORCH_CPP_LOG_LEVEL=ERROR

fail() {
    echo "FAIL: $*" >&2
    cat out err >&2
    exit 1
}

free_port() {
    "$TORCH_PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}

# Two ranks train a little, from torchrun's options and then ours in $train.
launch() {
    # shellcheck disable=SC2086  # $train is words
    timeout 120 "$torchrun" --nproc_per_node=2 "$@" --no-python "$BUILD_DIR/mnist_ddp" train \
        --model mlp --limit 192 --epochs 2 --threads 1 --json $train >out 2>err
}

number=0
for backend in shm gloo; do
    if [ $backend = gloo ] && [ ! -e "$BUILD_DIR/mnist_ddp_gloo.so" ]; then
        continue
    fi
    for way in "--standalone" "--master_addr=127.0.0.1 --master-port=$(free_port)" \
        "--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:$(free_port)"; do
        number=$((number + 1))
        train="--backend $backend --run-dir run$number"
        # shellcheck disable=SC2086  # $way is words
        launch $way || fail "torchrun $way: exit $?"
        [ "$(wc -l <out)" = 1 ] || fail "torchrun $way: stdout is not one line"
        grep -q '"world":2,' out || fail "torchrun $way: not two ranks"
        grep -q "\"backend\":\"$backend\"" out || fail "torchrun $way: not $backend"
        grep -q 'epoch 2/2: ' err || fail "torchrun $way: no second epoch"
        cmp run1/model.safetensors "run$number/model.safetensors" ||
            fail "torchrun $way, $backend: other weights than the first run"
        echo "torchrun $way, $backend: ok"
    done
done

# torchrun's own restart: our ranks go on from the checkpoint, and meet under the new number.
train="--run-dir killed --inject kill:rank=1,step=3"
launch --standalone --max-restarts=2 || fail "torchrun with a rank that is killed once: exit $?"
facts_in_a_line "$(cat err)" resuming "epoch 1" || fail "the second attempt does not resume"
cmp run1/model.safetensors killed/model.safetensors || fail "a restart by torchrun changed the weights"
echo "torchrun --max-restarts: ok"

train="--data-dir nowhere --run-dir failing"
if launch --standalone; then
    fail "torchrun says 0 for ranks that fail"
fi
facts_in_a_line "$(cat err)" error "--data-dir nowhere" "No such file or directory" || fail "our message is missing"
grep -q 'exitcode *: 65' err || fail "torchrun does not know our exit code"
echo "torchrun with ranks that fail: ok"
