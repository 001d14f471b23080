#!/bin/bash
# A step of each mode on two ranks is PyTorch's: the same loss, and with SGD at a learning rate of 1 the
# same gradients, to 1e-6. Theirs is bench/peers/torch_ddp_mnist.py. A mode that it knows joins as a word
# of MODES. The networks are those without dropout, whose masks differ. Needs $TORCH_PYTHON, a Python with
# torch and safetensors.
set -eu
MODES="ddp zero1 fsdp pipeline tp"
if ! [ -x "${TORCH_PYTHON:-/nowhere/python}" ]; then
    echo "SKIP: TORCH_PYTHON='${TORCH_PYTHON:-}' names no Python with torch"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
peer=$(realpath "$SOURCE_DIR/bench/peers/torch_ddp_mnist.py")
ours=$(realpath "$BUILD_DIR/mnist_ddp")
cd "$work"
unset MNIST_DDP_DATA
export OMP_NUM_THREADS=1 TORCH_CPP_LOG_LEVEL=ERROR

"$TORCH_PYTHON" -B "$SOURCE_DIR/tests/app/support/noise_mnist.py" 32

for model in mlp speedrun; do
    for mode in $MODES; do
        rank_batch=16
        case $mode in pipeline | tp) rank_batch=32 ;; esac
        step="--mode=$mode --model=$model --epochs=1 --limit=32 --optimizer=sgd --lr=1 --seed=3"
        # shellcheck disable=SC2086
        "$ours" train $step --global-batch-size=32 --nproc-per-node=2 --threads=1 --schedule=none \
            --data-dir=data --run-dir="$mode-$model" --quiet
        # shellcheck disable=SC2086
        "$TORCH_PYTHON" -B -m torch.distributed.run --standalone --nproc_per_node=2 "$peer" $step \
            --batch-size=$rank_batch --data=data --weights="$mode-$model.safetensors" \
            >"$mode-$model.json" 2>"$mode-$model.log" || { cat "$mode-$model.log"; exit 1; }
    done
done

# shellcheck disable=SC2086
"$TORCH_PYTHON" -B - "$(dirname "$peer")" $MODES <<'PYTHON'
import json
import sys
import torch
from safetensors.torch import load_file

sys.path.insert(0, sys.argv[1])
from torch_ddp_mnist import MODELS

for model in ("mlp", "speedrun"):
    torch.manual_seed(3)
    before = dict(MODELS[model]().named_parameters())
    for mode in sys.argv[2:]:
        ours, theirs = (load_file(f"{mode}-{model}{end}") for end in ("/model.safetensors", ".safetensors"))
        assert set(ours) == set(theirs) == set(before), (mode, model, set(ours), set(theirs))
        off = max((value - theirs[key]).abs().max().item() for key, value in ours.items())
        least = min((value - before[key]).abs().max().item() for key, value in ours.items())
        events = [json.loads(line) for line in open(f"{mode}-{model}/metrics.jsonl")]
        loss = [event["train_loss"] for event in events if "train_loss" in event][-1]
        loss_off = abs(loss - json.loads(open(f"{mode}-{model}.json").readlines()[-1])["train_loss"])
        print(f"{mode}, {model}: loss {loss}, off by {loss_off:.1e}; gradients, of which each tensor has "
              f"one of {least:.1e} or more, by {off:.1e}")
        assert loss_off < 1e-6 and off < 1e-6 and least > 1e-3, (mode, model)
PYTHON
