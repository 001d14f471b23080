#!/bin/bash
# --augment against PyTorch: the numbers that the cpu device drew go through affine_grid and grid_sample
# as torchvision's RandomAffine does it for a tensor. Needs $TORCH_PYTHON, a Python with torch.
set -eu
if [ -z "${TORCH_PYTHON:-}" ]; then
    echo "SKIP: \$TORCH_PYTHON is not set" >&2
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$BUILD_DIR/test_kernels" augmentation --write "$work/records"
"$TORCH_PYTHON" -B - "$work/records" <<'PYTHON'
import math
import sys
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
RECORD = 784 + 4 * 8 + 784 * 4
records = torch.frombuffer(bytearray(open(sys.argv[1], "rb").read()), dtype=torch.uint8)
records = records.reshape(-1, RECORD)
images = records[:, :784].reshape(-1, 1, 28, 28) / 255  # ToTensor
drawn = records[:, 784:816].clone().view(torch.float64)
ours = records[:, 816:].clone().view(torch.float32)
assert len(records) > 100

thetas = []
for degrees, size, dx, dy in drawn.tolist():
    angle = math.radians(degrees)  # in pixels, y downwards: torchvision's T * R * S
    turned = [[size * math.cos(angle), -size * math.sin(angle), dx],
              [size * math.sin(angle), size * math.cos(angle), dy], [0, 0, 1]]
    theta = torch.linalg.inv(torch.tensor(turned, dtype=torch.float64))[:2]
    theta[:, 2] /= 14  # half an image is 1
    thetas.append(theta)
grid = F.affine_grid(torch.stack(thetas).float(), images.shape, align_corners=False)
theirs = F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
theirs = ((theirs - 0.1307) / 0.3081).reshape(-1, 784)  # Normalize
off = (ours - theirs).abs().max().item()
assert off < 1e-4, off
print(f"torch {torch.__version__}: {len(records)} images, off by {off:.2g} at most")
PYTHON
