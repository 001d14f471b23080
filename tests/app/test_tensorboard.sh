#!/bin/bash
# TensorBoard reads what a run leaves: all its scalars, once for each step, also after a run that was
# killed and resumed. $TORCH_PYTHON, or python3, with the package tensorboard; SKIP without.
set -eu
python=${TORCH_PYTHON:-python3}
if ! "$python" -c 'import tensorboard' 2>/dev/null; then
    echo "SKIP: $python has no package tensorboard (TORCH_PYTHON names one that has)"
    exit 77
fi
work=$(mktemp -d /tmp/mnist_ddp-tensorboard-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset MNIST_DDP_DATA RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
export HOME=$work XDG_CACHE_HOME=$work/cache # our own digits, made once

train() {
    timeout 60 "$BUILD_DIR/mnist_ddp" train --model mlp --limit 192 --batch-size 16 --threads 1 \
        --epochs 3 --log-interval 1 --save-every 4steps --run-dir run --quiet "$@" >out 2>err
}

code=0
train --inject kill:rank=0,step=19 || code=$?
[ $code = 137 ] || { cat err >&2; exit 1; }
train --resume || { cat err >&2; exit 1; }
timeout 60 "$python" - <<'EOF'
import json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("run")
events.Reload()
lines = [json.loads(line) for line in open("run/metrics.jsonl", encoding="utf-8")]
columns = {"train/loss": ("step", "loss"), "train/lr": ("step", "lr"),
           "train/images_per_s": ("step", "images_per_s"), "test/loss": ("epoch", "test_loss"),
           "test/accuracy": ("epoch", "test_acc")}
assert sorted(events.Tags()["scalars"]) == sorted(columns), events.Tags()
for tag, (event, key) in columns.items():
    want = [(line["step"], line[key]) for line in lines if line["event"] == event]
    got = [(e.step, e.value) for e in events.Scalars(tag)]
    assert [step for step, _ in got] == [step for step, _ in want], (tag, got, want)
    assert all(abs(g - w) <= 1e-5 * abs(w) for (_, g), (_, w) in zip(got, want)), (tag, got, want)
    assert all(e.wall_time > 1.7e9 for e in events.Scalars(tag)), tag
assert [e.step for e in events.Scalars("test/loss")] == [12, 24, 36]
print("TensorBoard reads", sum(len(events.Scalars(tag)) for tag in columns), "scalars: ok")
EOF
