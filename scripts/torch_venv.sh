#!/bin/sh
# Makes the virtual environment $1 with PyTorch (several GB), unless it is there.
set -eu
[ ! -x "$1/bin/torchrun" ] || exit 0
echo "making $1 with torch, numpy, safetensors, tensorboard (several GB)"
python3 -m venv "$1"
"$1/bin/pip" install -q torch numpy safetensors tensorboard
