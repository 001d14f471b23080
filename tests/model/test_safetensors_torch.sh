#!/bin/bash
# PyTorch loads our model.safetensors with strict=True and finds its own initial weights in it; we load
# what safetensors.torch saves. Needs $TORCH_PYTHON, a Python with torch and safetensors.
set -eu
if [ -z "${TORCH_PYTHON:-}" ]; then
    echo "SKIP: \$TORCH_PYTHON is not set" >&2
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
program=$BUILD_DIR/test_model

for kind in mlp cnn speedrun; do
    "$program" checkpoint --write $kind 7 "$work/$kind"
done
"$TORCH_PYTHON" - "$work" "$SOURCE_DIR" <<'PYTHON'
import sys
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

work, source = sys.argv[1:]
sys.path.insert(0, f"{source}/tests/golden")
sys.dont_write_bytecode = True
from make_golden import MODELS

for kind, make in MODELS.items():
    path = f"{work}/{kind}/model.safetensors"
    model = make()
    model.load_state_dict(load_file(path), strict=True)
    torch.manual_seed(7)
    for name, parameter in make().named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), (kind, name)
    with safe_open(path, "pt") as file:
        assert file.metadata()["format"] == "pt" and file.metadata()["model"] == kind
    state = load_file(f"{work}/{kind}/checkpoints/00000001/optimizer.safetensors")
    assert set(state) == {
        f"{s}.{n}" for s in ("square_avg", "acc_delta") for n in model.state_dict()
    }
    torch.manual_seed(99)
    state = make().state_dict()
    save_file(state, f"{work}/{kind}.torch.safetensors")
    for dtype in (torch.float16, torch.bfloat16):  # as DistributedDataParallel names them
        narrow = {f"module.{name}": tensor.to(dtype) for name, tensor in state.items()}
        save_file(narrow, f"{work}/{kind}.{dtype}.safetensors")
print(f"torch {torch.__version__} loads our files")
PYTHON
for kind in mlp cnn speedrun; do
    "$program" checkpoint --copy $kind "$work/$kind.torch.safetensors" "$work/$kind.copy"
    for dtype in float16 bfloat16; do
        "$program" checkpoint --copy $kind "$work/$kind.torch.$dtype.safetensors" "$work/$kind.$dtype"
    done
done
"$TORCH_PYTHON" - "$work" <<'PYTHON'
import sys
import torch
from safetensors.torch import load_file

for kind in ("mlp", "cnn", "speedrun"):
    theirs = load_file(f"{sys.argv[1]}/{kind}.torch.safetensors")
    ours = load_file(f"{sys.argv[1]}/{kind}.copy/model.safetensors")
    assert set(theirs) == set(ours) and all(torch.equal(theirs[n], ours[n]) for n in theirs)
    for dtype in (torch.float16, torch.bfloat16):
        ours = load_file(f"{sys.argv[1]}/{kind}.{str(dtype)[6:]}/model.safetensors")
        assert all(torch.equal(theirs[n].to(dtype).float(), ours[n]) for n in theirs)
print("we load torch's")
PYTHON
