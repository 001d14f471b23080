#!/bin/bash
# scripts/torch_optimizer.py: a run's optimizer goes on in PyTorch with the same steps, and back. Needs
# $TORCH_PYTHON, a Python with torch and safetensors.
set -eu
if ! [ -x "${TORCH_PYTHON:-/nowhere/python}" ]; then
    echo "SKIP: TORCH_PYTHON='${TORCH_PYTHON:-}' names no Python with torch"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset MNIST_DDP_DATA
export OMP_NUM_THREADS=1
script=$SOURCE_DIR/scripts/torch_optimizer.py

"$TORCH_PYTHON" -B "$SOURCE_DIR/tests/app/support/noise_mnist.py" 96

# 12 steps an epoch of 8 images; a checkpoint after 6 of them.
train() { # RUN FLAGS...
    local run=$1
    shift
    "$BUILD_DIR/mnist_ddp" train --model mlp --data-dir data --batch-size 8 --no-shuffle --threads 1 \
        --schedule none --save-every 6steps --run-dir "$run" "$@" >"$run.log" 2>&1
}

for how in "sgd --lr 0.05 --momentum 0.9 --nesterov" "adam --lr 0.002 --adam-betas 0.8,0.95" \
    "adamw --lr 0.002" "adadelta"; do
    name=${how%% *}
    # shellcheck disable=SC2086
    train "$name" --optimizer $how --epochs 1
    cp -r "$name" "$name.half"
    rm -r "$name.half/checkpoints/00000012"
    "$TORCH_PYTHON" -B "$script" to-torch "$name.half" "$name.pt"
    # There and back is the same checkpoint: the run ends with the same bits.
    cp -r "$name.half" "$name.back"
    "$TORCH_PYTHON" -B "$script" from-torch "$name.pt" "$name.back"
    "$BUILD_DIR/mnist_ddp" train --run-dir "$name.back" --resume >"$name.back.log" 2>&1
    cmp "$name/model.safetensors" "$name.back/model.safetensors"
done

# Three steps in PyTorch on the images that our steps 7 to 9 have.
"$TORCH_PYTHON" -B - "$SOURCE_DIR" <<'PYTHON'
import sys
from pathlib import Path
import torch

sys.path.insert(0, f"{sys.argv[1]}/tests/golden")
sys.dont_write_bytecode = True
from make_golden import MODELS

torch.set_num_threads(1)
raw = bytearray(Path("data/train-images-idx3-ubyte").read_bytes()[16:])
labels = torch.tensor(list(Path("data/train-labels-idx1-ubyte").read_bytes()[8:]))
images = torch.frombuffer(raw, dtype=torch.uint8).reshape(96, 1, 28, 28)
images = (images / 255 - 0.1307) / 0.3081
classes = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
           "adadelta": torch.optim.Adadelta}
for name, make in classes.items():
    saved = torch.load(f"{name}.pt", weights_only=True)
    model = MODELS["mlp"]()
    model.load_state_dict(saved["model"])
    optimizer = make(model.parameters(), lr=123.0)
    optimizer.load_state_dict(saved["optimizer"])  # with it the learning rate and the rest
    for step in range(6, 9):
        batch = slice(8 * step, 8 * step + 8)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{name}.9.pt")
PYTHON

for name in sgd adam adamw adadelta; do
    cp -r "$name.half" "$name.torch"
    "$TORCH_PYTHON" -B "$script" from-torch "$name.9.pt" "$name.torch" 3
    # The same three steps of ours, and then three more in both runs.
    for run in half torch; do
        "$BUILD_DIR/mnist_ddp" train --run-dir "$name.$run" --resume --save-every 3steps \
            >"$name.$run.log" 2>&1
    done
done
grep -q "resuming after step 9 of epoch 1" adam.torch.log

"$TORCH_PYTHON" -B - <<'PYTHON'
from safetensors.torch import load_file

for name in ("sgd", "adam", "adamw", "adadelta"):
    for path in ("checkpoints/00000009/model", "checkpoints/00000009/optimizer",
                 "checkpoints/00000012/model", "checkpoints/00000012/optimizer"):
        ours = load_file(f"{name}.half/{path}.safetensors")
        theirs = load_file(f"{name}.torch/{path}.safetensors")
        assert set(ours) == set(theirs) and len(ours) > 0, (name, path)
        for key, value in ours.items():
            off = (value - theirs[key]).norm() / value.norm()
            assert off < 1e-4, (name, path, key, off)
print("three steps in PyTorch are three steps of ours, and both go on alike")
PYTHON
