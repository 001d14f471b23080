"""MNIST for the runs that are measured."""
import gzip
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(os.environ.get("MNIST_DDP_DATA") or ROOT / "data/MNIST/raw").resolve()
TEST_IMAGES = 2000
FILES = {"images-idx3-ubyte": (16, 784), "labels-idx1-ubyte": (8, 1)}  # bytes: header, item


def read(name):
    plain, packed = FOLDER / name, FOLDER / f"{name}.gz"
    if not plain.exists() and not packed.exists():
        sys.exit(f"bench: no {name} in {FOLDER}: set MNIST_DDP_DATA to the folder of MNIST's four "
                 "files")
    return plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())


def shorten(folder):
    """Makes `folder` with all training images and the first test images: where speed is measured,
    PyTorch would spend a third of the time in the test of all 10,000."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, (header, item) in FILES.items():
        train, test = read(f"train-{kind}"), read(f"t10k-{kind}")
        test = test[:4] + TEST_IMAGES.to_bytes(4, "big") + test[8:header + TEST_IMAGES * item]
        (folder / f"train-{kind}").write_bytes(train)
        (folder / f"t10k-{kind}").write_bytes(test)
    return folder
