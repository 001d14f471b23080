#!/usr/bin/env python3
"""Writes MNIST's files with images of noise to the folder "data": 16 to test, and so many to train.

    noise_mnist.py IMAGES
"""
import random
import struct
import sys
from pathlib import Path

random.seed(5)
Path("data").mkdir()
for kind, n in (("train", int(sys.argv[1])), ("t10k", 16)):
    images = struct.pack(">4I", 0x803, n, 28, 28) + random.randbytes(n * 784)
    labels = struct.pack(">2I", 0x801, n) + bytes(random.randrange(10) for _ in range(n))
    Path(f"data/{kind}-images-idx3-ubyte").write_bytes(images)
    Path(f"data/{kind}-labels-idx1-ubyte").write_bytes(labels)
