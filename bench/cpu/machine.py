"""The machine that is measured: its name, what it is, and the most arithmetic that it does."""
import json
import os
import pathlib
import platform
import re
import subprocess

CORES = len(os.sched_getaffinity(0))

# AMD's, by family: the models up to a number. Intel's, by the model of family 6. Others are called
# by their own name.
ZEN = {23: [(0x2f, "zen1"), (0xff, "zen2")],
       25: [(0x0f, "zen3"), (0x1f, "zen4"), (0x5f, "zen3"), (0xff, "zen4")],
       26: [(0xff, "zen5")]}
XEON = {0x6a: "icelake", 0x8f: "sapphirerapids", 0xcf: "emeraldrapids", 0xad: "graniterapids"}


def _cpuinfo(key):
    found = re.search(rf"(?m)^{key}\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text())
    return found.group(1).strip() if found else ""


def _processor():
    if _cpuinfo("vendor_id") == "AuthenticAMD":
        for last, zen in ZEN.get(int(_cpuinfo("cpu family")), []):
            if int(_cpuinfo("model")) <= last:
                return zen
    if _cpuinfo("vendor_id") == "GenuineIntel" and int(_cpuinfo("model")) in XEON:
        return XEON[int(_cpuinfo("model"))]
    own = _cpuinfo("model name") or platform.machine()
    return re.sub("[^a-z0-9]+", "-", own.lower()).strip("-")


def name():
    """As in bench/results/cpu-<name>.json; $BENCH_NAME wins."""
    return os.environ.get("BENCH_NAME") or f"{_processor()}-{CORES}core"


def describe():
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"processor": _cpuinfo("model name"), "family": _cpuinfo("cpu family"),
            "model": _cpuinfo("model"), "cores": CORES, "memory_gib": round(pages / 2**30),
            "kernel": platform.release(), "l2": _cpuinfo("cache size")}


class Peak:
    """GFLOP/s by precision and number of cores: the most that any look at it has seen, so that a
    slow moment of the machine does not count."""

    def __init__(self, program):
        self.program, self.gflops = program, {}

    def look(self):
        said = subprocess.run([self.program, str(min(CORES, 16))], capture_output=True, text=True,
                              check=True, timeout=120).stdout
        for line in map(json.loads, said.splitlines()):
            seen = self.gflops.setdefault(line["precision"], [0] * len(line["gflops"]))
            self.gflops[line["precision"]] = [max(*pair) for pair in zip(seen, line["gflops"])]

    def of(self, precision, cores):
        """None if this processor has no arithmetic of its own in that precision."""
        seen = self.gflops.get(precision)
        return seen[min(cores, len(seen)) - 1] if seen else None
