#!/usr/bin/env python3
"""Images per second of mnist_ddp beside PyTorch DDP: interleaved pairs, medians, ratios.

Each pair runs ours and the peer (peers/torch_ddp_mnist.py under torchrun, --loader tensor) one after
the other with the same model, optimizer, batch, ranks and threads, so that a slow minute of the machine
hits both. A run of either side whose loss is not finite or whose accuracy is under 85 % does not count.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

import program
from trained import MODEL_FLAGS, reason_not_to_count

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 900  # of a run
TORCHRUN = pathlib.Path(sys.executable).parent / "torchrun"

# what is compared: model, backends of ours with the goal of each
CASES = {"mlp": {"shm": 4.0, "gloo": 2.2}, "cnn": {"shm": 2.2}}


def last_json(command):
    with tempfile.NamedTemporaryFile() as log:
        ended = program.run(command, LIMIT_S, log.name)
    if ended.word:
        sys.exit(f"{' '.join(map(str, command))}\n{ended.word}\n{ended.output[-2000:]}")
    result = json.loads([line for line in ended.output.splitlines() if line.startswith("{")][-1])
    wrong = reason_not_to_count(result)
    if wrong:
        sys.exit(f"does not count: {wrong}")
    return result


def ours(flags, backend, a):
    with tempfile.TemporaryDirectory() as folder:
        return last_json([a.program, "train", *flags, "--backend", backend, "--epochs", a.epochs,
                          "--limit", a.limit, "--nproc-per-node", a.ranks, "--threads", "1",
                          "--data-dir", a.data, "--run-dir", f"{folder}/run", "--json", "--quiet"])


def peer(flags, a):
    return last_json([TORCHRUN, "--standalone", f"--nproc_per_node={a.ranks}",
                      HERE / "peers/torch_ddp_mnist.py", "--data", a.data, *flags, "--epochs",
                      a.epochs, "--limit", a.limit])


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--program", required=True)
    p.add_argument("--data", default=os.environ.get("MNIST_DDP_DATA", "data/MNIST/raw"))
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("--epochs", default="2")
    p.add_argument("--limit", default="60000", help="images per epoch, both sides")
    p.add_argument("--ranks", default="2")
    p.add_argument("--only", help="one case: mlp or cnn")
    a = p.parse_args()
    rows = []
    for name, goals in CASES.items():
        flags = MODEL_FLAGS[name]
        if a.only and a.only != name:
            continue
        found = {backend: [] for backend in goals}
        peers, setups = [], []
        for _ in range(a.pairs):
            theirs = peer(flags, a)
            peers.append(theirs)
            for backend in goals:
                mine = ours(flags, backend, a)
                found[backend].append((mine, mine["images_per_s"] / theirs["images_per_s"]))
                setups.append(mine["setup_s"])
        for backend, goal in goals.items():
            ratios = [ratio for _, ratio in found[backend]]
            row = dict(case=name, backend=backend,
                       ours=statistics.median(m["images_per_s"] for m, _ in found[backend]),
                       torch=statistics.median(t["images_per_s"] for t in peers),
                       ratio=round(statistics.median(ratios), 2),
                       ratios=[round(r, 2) for r in ratios], goal=goal,
                       setup_s=round(statistics.median(setups), 3),
                       torch_setup_s=statistics.median(t["setup_s"] for t in peers),
                       private_mib=max(m["private_mib"] for m, _ in found[backend]),
                       torch_rss_mib=max(t["rss_mib"] for t in peers))
            rows.append(row)
            print(f"{name:4} {backend:5} ours {row['ours']:8.0f} images/s  torch "
                  f"{row['torch']:7.0f}  ratio {row['ratio']:5.2f} {row['ratios']} (goal {goal})  "
                  f"setup {row['setup_s']} s, torch {row['torch_setup_s']} s  "
                  f"private {row['private_mib']} MiB, torch rss {row['torch_rss_mib']} MiB",
                  flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
