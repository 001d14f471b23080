#!/bin/sh
# make bench: our trainer beside PyTorch's on this machine. Needs the real MNIST in $MNIST_DDP_DATA or
# ./data/MNIST/raw, and Python 3; makes bench/venv with torch (several GB, once).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
program=$1
shift
venv=$here/venv
"$here/../scripts/torch_venv.sh" "$venv"
exec "$venv/bin/python" "$here/compare.py" --program "$program" "$@"
