#!/usr/bin/env python3
"""The store beside PyTorch's TCPStore, with the same clients (bench/cpu/store_clients.c): calls per
second, set and get, and the milliseconds of a pair; the server's own microseconds of processor
time per call, which other load on the machine changes less; ours and torch's in turn, medians.

    store.py [PAIRS]         default: 5; run by a Python that has torch

torch looks the name of each client up in DNS, in the server's one thread: where DNS answers late,
its clients wait until it has. `unshare -n` in front keeps that out of the figures.
"""
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
CASES = [(64, 0), (1000, 0), (100, 0), (100, 300), (1, 0), (1, 300)]  # clients, idle connections
SECONDS, LIMIT_S = 1, 120
TORCH = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(f"127.0.0.1:{store.port}", flush=True)
sys.stdin.read()
"""


def raise_loopback():
    """`unshare -n` leaves it down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if probe.connect_ex(("127.0.0.1", 1)) == 0:
            return
    try:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"store.py: the loopback interface is down, and raising it failed ({error}): "
                 "`ip link set lo up` needs root and iproute2")


def start(command):
    """A server, and the port that it has printed."""
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return server, server.stdout.readline().strip().rpartition(":")[2]


def cpu_s(server):
    """Processor time that it has taken so far: utime and stime of proc(5)."""
    fields = pathlib.Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(server, port, clients, idle):
    before_s = cpu_s(server)
    said = subprocess.run([BUILD / "store_clients", "127.0.0.1", port, str(clients), str(idle),
                           str(SECONDS)], check=True, capture_output=True, text=True,
                          timeout=LIMIT_S).stdout
    found = json.loads(said)
    found["cpu_us"] = (cpu_s(server) - before_s) / (found["calls_per_s"] * SECONDS) * 1e6
    return found


def main():
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    raise_loopback()
    ours, our_port = start([BUILD / "mnist_ddp", "store", "serve", "--port=0"])
    torch, torch_port = start([sys.executable, "-c", TORCH])
    print("clients  idle | ours: calls/s  median ms  CPU us | torch: calls/s  median ms  CPU us | "
          "ratio")
    for clients, idle in CASES:
        found = [(measure(ours, our_port, clients, idle),
                  measure(torch, torch_port, clients, idle)) for _ in range(pairs)]
        rates, waits, cpus = ([[statistics.median(pair[side][key] for pair in found)
                                for side in (0, 1)]
                               for key in ("calls_per_s", "median_ms", "cpu_us")])
        ratio = statistics.median(a["calls_per_s"] / b["calls_per_s"] for a, b in found)
        print(f"{clients:7} {idle:5} | {rates[0]:13,.0f} {waits[0]:10.3f} {cpus[0]:7.2f} | "
              f"{rates[1]:14,.0f} {waits[1]:10.3f} {cpus[1]:7.2f} | {ratio:.2f}", flush=True)
    ours.terminate()
    torch.terminate()
    return ours.wait(LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
