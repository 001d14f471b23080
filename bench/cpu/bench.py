#!/usr/bin/env python3
"""make bench: this program beside PyTorch, Open MPI and itself on this machine's CPU, interleaved;
medians and ratios, as bench/results/cpu-<name>.json and as tables.

    bench.py          measures the rows and keeps them
    bench.py check    measures the rows that have a ratio, keeps nothing, and fails if one has lost
                      more than 10 % of the kept one (make bench-check)
    bench.py docs     writes the tables of what is kept into README.md, docs/performance.md and
                      docs/internals/performance.md; measures nothing

  ROWS            which: names with * for anything, separated by commas or spaces; default: the
                  usual ones. An unknown name lists all
  QUICK=1         one pair of each, and nothing is kept
  BENCH_NAME      the machine's; default: its processor and cores, as zen4-2core
  MNIST_DDP_DATA  MNIST's folder; default: data/MNIST/raw
  BUILD           the build folder; default: build
"""
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "bench"))
sys.dont_write_bytecode = True

import machine  # noqa: E402
import mnist  # noqa: E402
import results  # noqa: E402
import rows  # noqa: E402

QUICK_TIMES = {36: 2}  # of a row that counts seeds; of all others 1


def say(text):
    print(text, file=sys.stderr, flush=True)


def measure(row, peak, is_quick):
    """The row's figures; None, with a line, if it cannot be measured here."""
    peak.look()
    try:
        found = row.measure(QUICK_TIMES.get(row.times, 1) if is_quick else row.times, peak)
    except rows.Skip as reason:
        say(f"{row.name}: skipped: {reason}")
        return None
    beside = f", {found['peer_is']} {found['peer']:g}, ratio {found['ratio']:.2f}" \
        if "ratio" in found else ""
    say(f"{row.name}: {found['ours']:g} {found['unit']}{beside}")
    return found


def check(wanted, found, peak):
    """The exit code. A row that has lost is measured once more, as a neighbour may have been busy."""
    kept = results.load()
    if kept is None:
        say(f"bench-check: nothing is kept for {machine.name()} ({results.path().name}): measured "
            "only; make bench keeps")
        return 0
    for name, text in list(results.losses(found, kept)):
        say(f"{text}; once more")
        found[name] = measure(next(row for row in wanted if row.name == name), peak, False)
    lost = dict(results.losses(found, kept))
    for text in lost.values():
        say(f"bench-check: {text}")
    if lost:
        say(f"bench-check: to accept: make bench ROWS={','.join(lost)}, and commit "
            f"{results.path().relative_to(ROOT)}")
    return 1 if lost else 0


def main():
    command = sys.argv[1] if len(sys.argv) == 2 else "" if len(sys.argv) == 1 else "help"
    if command not in ("", "check", "docs"):
        print(__doc__)
        return 0 if command in ("-h", "--help") else 64
    if command == "docs":
        kept = results.load()
        if kept is None:
            sys.exit(f"bench: no {results.path().relative_to(ROOT)}: make bench makes it")
        for document in (ROOT / "README.md", ROOT / "docs/performance.md",
                         ROOT / "docs/internals/performance.md"):
            document.write_text(results.fill(document.read_text(), kept))
        return 0
    mnist.shorten(rows.SHORT_MNIST)
    is_quick = os.environ.get("QUICK", "0") not in ("", "0")
    wanted = rows.chosen(os.environ.get("ROWS", "").replace(",", " ").split())
    if command == "check":
        wanted = [row for row in wanted if row.peer_name]
    peak = machine.Peak(rows.BUILD / "cpu_peak")
    found = {}
    for row in wanted:
        figures = measure(row, peak, is_quick)
        if figures is None:
            continue
        found[row.name] = figures
        if not is_quick and command == "":
            results.save(row.name, figures, peak)
    print(f"{machine.name()}, peak GFLOP/s of 1, 2, ... cores: {peak.gflops}\n")
    print(results.tables(found), end="")
    return check(wanted, found, peak) if command == "check" else 0


if __name__ == "__main__":
    sys.exit(main())
