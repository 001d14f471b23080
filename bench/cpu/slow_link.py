#!/usr/bin/env python3
"""Seconds until the MLP has 97 % of MNIST's test images right, with two ranks at the two ends of a slow
link: ddp, its comm hooks, local SGD and DiLoCo (--sync-every). Needs root.

    slow_link.py [OUT.json]      prints a table; $RATE (10mbit), $DELAY_MS (50, each way), $ROWS (a
                                 part of the names of the rows to do), $BUILD, $MNIST_DDP_DATA

The link is two network namespaces, each with a tun device that tbf holds to the rate; this process
carries packets from one to the other, later by the delay. What sends in every step would take an hour:
of these, the first STEPS steps are timed on the link, and the epochs are those of the same training
without it, whose bits are the same ("reckoned"). All others are whole runs on the link.
"""
import collections
import ctypes
import fcntl
import json
import os
import pathlib
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = str(pathlib.Path(os.environ.get("BUILD", ROOT / "build")) / "mnist_ddp")
RATE, DELAY_S = os.environ.get("RATE", "10mbit"), float(os.environ.get("DELAY_MS", "50")) / 1e3
STEPS, EPOCH_STEPS, WHOLE_STEPS = 20, 469, 50  # WHOLE_STEPS: --powersgd-start-iter's default
TRAINING = ("train --model=mlp --optimizer=sgd --lr=0.5 --batch-size=64 --threads=1 --backend=gloo --json --quiet "
            "--no-save-model").split()
WHOLE = "--epochs=10 --target-acc=97".split()
DILOCO = "--outer-lr=0.7 --outer-momentum=0.9".split()
ROWS = [  # name, flags, sends in every step
    ("ddp", [], True), ("ddp, bf16", ["--comm-hook=bf16"], True),
    ("ddp, powersgd", ["--comm-hook=powersgd"], True)]
ROWS += [(f"local SGD, H = {h}", [f"--sync-every={h}"], False) for h in (8, 32, 128, EPOCH_STEPS)]
ROWS += [(f"DiLoCo, H = {h}", [f"--sync-every={h}", *DILOCO], False) for h in (32, 128)]
SPACES = [f"slow{os.getpid()}.{i}" for i in range(2)]
ADDRESSES = ["10.88.0.1", "10.88.0.2"]


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def open_end(i):
    """The namespace, and its device's packets as a file."""
    ip("netns", "add", SPACES[i])
    ip("-n", SPACES[i], "link", "set", "lo", "up")
    ip("-n", SPACES[i], "tuntap", "add", "link0", "mode", "tun")
    ip("-n", SPACES[i], "addr", "add", ADDRESSES[i] + "/30", "dev", "link0")
    ip("-n", SPACES[i], "link", "set", "link0", "up")
    subprocess.run(["ip", "netns", "exec", SPACES[i], "tc", "qdisc", "add", "dev", "link0", "root", "tbf",
                    "rate", RATE, "burst", "16kb", "latency", "400ms"], check=True)
    libc, here = ctypes.CDLL(None, use_errno=True), os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{SPACES[i]}", os.O_RDONLY)
    if libc.setns(there, 0x40000000) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, 0x400454CA, struct.pack("16sH14x", b"link0", 0x1001))  # TUNSETIFF: tun, no header
    libc.setns(here, 0x40000000)
    os.close(here), os.close(there)
    return file


def carry(ends):
    """From each end to the other, DELAY_S later."""
    waiting = [collections.deque(), collections.deque()]
    while True:
        now = time.monotonic()
        for i, queue in enumerate(waiting):
            while queue and queue[0][0] <= now:
                os.write(ends[1 - i], queue.popleft()[1])
        due = min((queue[0][0] for queue in waiting if queue), default=now + 1)
        for end in select.select(ends, [], [], max(0, due - now))[0]:
            waiting[ends.index(end)].append((time.monotonic() + DELAY_S, os.read(end, 4096)))


def train(flags, slow):
    """The result of a run: a node in each namespace, or both ranks on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        words = [PROGRAM, *TRAINING, *flags, f"--run-dir={folder}/run"]
        if not slow:
            return json.loads(subprocess.run([*words, "--nproc-per-node=2"], check=True, capture_output=True).stdout)
        words += ["--nnodes=2", "--nproc-per-node=1", f"--master-addr={ADDRESSES[0]}", "--master-port=29511"]
        nodes = [subprocess.Popen(["ip", "netns", "exec", SPACES[i], *words, f"--node-rank={i}",
                                   f"--local-addr={ADDRESSES[i]}"], stdout=subprocess.PIPE) for i in range(2)]
        try:
            out = nodes[0].communicate()[0]
            if nodes[0].returncode != 0:
                raise RuntimeError(f"{' '.join(words)}: exit code {nodes[0].returncode}")
            return json.loads(out)
        finally:
            for node in nodes:
                node.terminate()
                node.wait()


def measure(name, flags, every_step, ddp):
    whole = train([*flags, *WHOLE], slow=not every_step)
    epochs = len(whole["train_s"])
    row = {"row": name, "bytes_per_step": whole["bytes"]["sent"], "epochs": epochs,
           "test_acc": whole["test_acc"], "reckoned": every_step}
    if every_step:
        low = ["--powersgd-start-iter=0"] if "powersgd" in name else []
        part = train([*flags, *low, f"--limit={STEPS * 128}", "--epochs=1", "--eval-every=0"], slow=True)
        row["step_s"], steps = part["train_s"][0] / STEPS, epochs * EPOCH_STEPS
        extra = WHOLE_STEPS * (ddp["step_s"] - row["step_s"]) if low else 0
        row["seconds"] = steps * row["step_s"] + extra
    else:
        row["step_s"] = sum(whole["train_s"]) / whole["steps"]
        row["seconds"] = sum(whole["train_s"]) + epochs * whole["eval_s"]
    return row


def main():
    rows = []
    try:
        threading.Thread(target=carry, args=([open_end(0), open_end(1)],), daemon=True).start()
        print("| | bytes a step | s a step | epochs | test images right | s to 97 % |\n| --- | --- | --- | --- | --- | --- |")
        for name, flags, every_step in ROWS:
            if os.environ.get("ROWS", "") not in name:
                continue
            row = measure(name, flags, every_step, rows[0] if rows else None)
            rows.append(row)
            print(f"| {name} | {row['bytes_per_step']:,} | {row['step_s']:.3f} | {row['epochs']} | "
                  f"{100 * row['test_acc']:.2f} % | {row['seconds']:,.0f}{' (reckoned)' * row['reckoned']} |", flush=True)
        if len(sys.argv) > 1:
            about = {"rate": RATE, "delay_s": DELAY_S, "training": TRAINING, "rows": rows}
            pathlib.Path(sys.argv[1]).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], check=False)


if __name__ == "__main__":
    main()
