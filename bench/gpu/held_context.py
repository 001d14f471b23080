"""A process that holds a context on each GPU open while the check lasts: where no persistence daemon
runs, the driver would start the GPU anew for each program, which takes seconds. This is what it
runs; HeldContext is its side in check.py."""
import ctypes
import pathlib
import signal
import subprocess
import sys
import tempfile

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))

import program  # noqa: E402

COMPUTE_MODE, DEFAULT_MODE = 20, 0  # of cuDeviceGetAttribute; the other modes let no second process in


class HeldContext:
    """Ends with the check, however that ends."""

    def __init__(self, limit_s):
        self.said = tempfile.TemporaryFile("w+")
        self.child = program.start([sys.executable, "-B", __file__], limit_s,
                                   stdin=subprocess.DEVNULL, stdout=self.said,
                                   stderr=subprocess.STDOUT)

    def state(self):
        """In words, for the table of the machine."""
        if self.child.poll() is None:
            return "held open"
        self.said.seek(0)
        return "not held: " + (self.said.read().strip().splitlines() or ["it ended"])[-1]


def call(cuda, name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        sys.exit(f"{name}: {code}")


def hold():
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    count, device, mode = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call(cuda, "cuInit", 0)
    call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    for index in range(count.value):
        call(cuda, "cuDeviceGet", ctypes.byref(device), index)
        call(cuda, "cuDeviceGetAttribute", ctypes.byref(mode), COMPUTE_MODE, device)
        if mode.value != DEFAULT_MODE:
            sys.exit("the GPU lets one process in at a time")
        call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    while True:
        signal.pause()


if __name__ == "__main__":
    hold()
