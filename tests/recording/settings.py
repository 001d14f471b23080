#!/usr/bin/env python3
"""Records what each flag of train means to a run that others share.

One row for each flag, in expected/settings, with the value that is given in place of the default:

    ranks    rank 1 of two is given it, rank 0 is not: the exit codes of both
    resume   the second part of a run is given it, the first was not
    state    the same, but the run has no config.json: its checkpoint alone says what it was
    elastic  the second node of a job that nodes come to is given it, the first is not: its code

Beside the codes stand the settings that errors name. "waits": the other side was still waiting for
this one; "hash": a setting that has no field in a checkpoint; "any": not the same each time.

    BUILD_DIR=build tests/recording/settings.py              exit 1 if a row differs
    BUILD_DIR=build tests/recording/settings.py --write      record what the program does now
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import record

EXPECTED = os.path.join(record.HERE, "expected", "settings")
COLUMNS = ("ranks", "resume", "state", "elastic")
PATIENCE_S, LONG_PATIENCE_S = 6, 30  # for the other side, when one has failed
LIMIT_S = 90

# The value of each flag: not its default, and not what BASE says. {work} has data, another data set
# of the same size, and a configuration file.
VALUES = """
model=cnn optimizer=adam lr=0.1 scale-lr momentum=0.5 weight-decay=0.1 adam-betas=0.8,0.9 nesterov
clip-grad-norm=0.5 label-smoothing=0.1 augment=shift=1 gamma=0.5 schedule=onecycle pct-start=0.4
warmup-steps=2 warmup-factor=0.5 epochs=3 batch-size=4 global-batch-size=4 elastic-batch=local
test-batch-size=7 eval-every=1 accum=2 seed=2 limit=24 val-split=8 target-acc=0.01 drop-last
no-shuffle dry-run device=cpu devices=0 amp=bf16 tf32 no-cuda-graph no-accel isa=avx2 dense
threads=2 bind-to=none dataset=fashion data-dir={work}/other run-dir=elsewhere resume=auto
init={work}/first save-every=1steps keep=1 save-model log-interval=3 log-format=pytorch json
no-progress trace=trace.json trace-steps=3 explain quiet mode=ps async staleness=2 stages=2
mesh=dp=1,pp=2 micro-batches=2 pipeline-schedule=gpipe replicas=2 backend=gloo
bucket-cap-mb=0.5 comm-hook=bf16 powersgd-rank=2 powersgd-start-iter=3 sync-every=2
outer-lr=0.5 outer-momentum=0.5 no-overlap timeout=50
join-timeout=50 init-method=file:///nowhere/store rank=1 nccl-nvls inject=forget-set-epoch
inject-delay-ms=1 debug=detail launcher=none nproc-per-node=2 nnodes=3 node-rank=2 world-size=3
local-world-size=3 master-addr=127.0.0.2 master-port={port} standalone local-rank=0
local-addr=127.0.0.1 rdzv-backend=static rdzv-endpoint=127.0.0.1:{port} rdzv-id=other
rdzv-conf=read_timeout=50 max-restarts=1 monitor-interval=0.2 shutdown-timeout=20
signals-to-handle=SIGTERM exit-code=torchrun log-dir=logs redirects=3 tee=3 local-ranks-filter=0
duplicate-stdout-filters=a duplicate-stderr-filters=a logs-specs=other event-log=events.jsonl
event-log-steps event-log-handler=other health-check-port={port} numa-binding=node
log-line-prefix-template=x no-use-env config={work}/config.yaml help version
""".split()
BASE = ("train --model=mlp --optimizer=sgd --lr=0.05 --limit=32 --batch-size=8 --eval-every=0 "
        "--join-timeout=20").split()


def settings_named(text):
    """What the errors name: flags, and what one rank or node was started with and another not."""
    found = set()
    for line in text.splitlines():
        if "error: " not in line:
            continue
        if "which is not known" in line:
            return ["hash"]
        found.update(re.findall(r"--(?:no-)?([a-z][a-z0-9-]+)", line))
        for words in re.findall(r"started with (.*?), rank \d+ with", line):
            found.update(word.split()[0] for word in words.split(", ") if word[:2] not in ("--", "no"))
        found.update(re.findall(r"disagree: (\w+) ", line))
    return sorted(found)


class Case:
    """One cell: a folder, an environment, and the processes started there."""

    def __init__(self, bench, patience_s):
        self.bench, self.patience_s = bench, patience_s
        self.folder = tempfile.mkdtemp(prefix="cell-", dir=bench.work)
        os.mkdir(f"{self.folder}/tmp")
        self.environment = bench.environment(self.folder)
        self.port, self.processes = self.environment["PORT"], []

    def start(self, *flags, **variables):
        name = f"{self.folder}/{len(self.processes)}.err"
        with open(name, "w", encoding="utf-8") as err:
            self.processes.append((subprocess.Popen(
                [self.environment["MNIST"], *flags], cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=err,
                env=self.environment | variables), name))

    def wait_for_port(self):
        wanted = f":{int(self.port):04X}"
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for table in ("/proc/net/tcp", "/proc/net/tcp6"):
                with open(table, encoding="ascii") as file:
                    if any(f"{wanted} " in line and " 0A " in line for line in file):
                        return
            time.sleep(0.01)

    def finish(self):
        """[(exit code or "waits", what its errors name)]: once one has failed, the others are
        waited for as long as the patience allows."""
        deadline = time.monotonic() + LIMIT_S
        while any(process.poll() is None for process, _ in self.processes):
            if any(process.poll() for process, _ in self.processes):
                deadline = min(deadline, time.monotonic() + self.patience_s)
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        ends = []
        for process, name in self.processes:
            code = process.poll()
            if code is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
            with open(name, encoding="utf-8", errors="replace") as file:
                named = settings_named(file.read()) if code is not None else []
            ends.append(("waits" if code is None else str(code), named))
        record.end_processes(self.folder)
        return ends

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def cell(ends):
    names = sorted({name for _, named in ends for name in named})
    return " ".join([code for code, _ in ends] + names)


def run_ranks(case, flag):
    for rank in (0, 1):
        case.start(*BASE, "--no-save-model", "--run-dir=run", *[flag] * rank, RANK=str(rank),
                   WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=case.port,
                   LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    return case.finish()


def run_resume(case, flag):
    shutil.copytree(f"{case.bench.work}/first", f"{case.folder}/run")
    case.start("train", "--run-dir=run", "--resume", "--epochs=2", flag)
    return case.finish()


def run_state(case, flag):
    shutil.copytree(f"{case.bench.work}/first", f"{case.folder}/run")
    os.remove(f"{case.folder}/run/config.json")
    case.start(*BASE, "--run-dir=run", "--resume", "--epochs=2", flag)
    return case.finish()


def run_elastic(case, flag):
    node = [*BASE, "--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{case.port}",
            "--rdzv-conf=last_call_timeout=30", "--no-save-model", "--run-dir=run"]
    case.start(*node)
    case.wait_for_port()
    case.start(*node, flag)
    deadline = time.monotonic() + LIMIT_S
    first, second = (process for process, _ in case.processes)
    while second.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    if second.returncode != 0 and first.poll() is None:
        first.terminate()  # it would wait for another node
    return case.finish()[1:]


RUNS = dict(zip(COLUMNS, (run_ranks, run_resume, run_state, run_elastic)))


def run_row(bench, value, columns=COLUMNS, patience_s=PATIENCE_S):
    row = {}
    for column in columns:
        case = Case(bench, patience_s)
        try:
            flag = "--" + value.format(work=bench.work, port=bench.ports.take())
            row[column] = cell(RUNS[column](case, flag))
        finally:
            case.close()
    return row


def check_names(bench):
    """Every flag of train has a row here, and only those."""
    script = subprocess.run([f"{bench.build}/mnist_ddp", "help", "train"], stdout=subprocess.PIPE,
                            text=True, check=True).stdout
    flags = {name for name in re.findall(r"^ {2}--(?:\[no-\])?([a-z][a-z0-9-]+)", script, re.M)}
    rows = {value.split("=", 1)[0] for value in VALUES}
    rows = {name[3:] if name.startswith("no-") and name != "no-accel" else name for name in rows}
    if flags != rows:
        sys.exit(f"settings: no row: {sorted(flags - rows)}; no flag: {sorted(rows - flags)}")


def prepare(bench):
    """The run that is resumed, a data set of other images, a configuration file."""
    shutil.copytree(f"{bench.work}/data", f"{bench.work}/other")
    with open(f"{bench.work}/other/train-images-idx3-ubyte", "r+b") as file:
        file.seek(1000)
        file.write(b"\1\2\3\4")
    with open(f"{bench.work}/config.yaml", "w", encoding="utf-8") as file:
        file.write("seed: 5\n")
    case = Case(bench, PATIENCE_S)
    case.start(*BASE, "--epochs=1", "--quiet", f"--run-dir={bench.work}/first")
    if case.finish() != [("0", [])]:
        sys.exit("settings: the run that is to be resumed has failed")
    case.close()


def read_expected():
    rows = {}
    with open(EXPECTED, encoding="utf-8") as file:
        for line in file.read().splitlines()[1:]:
            value, *cells = line.split("\t")
            rows[value] = dict(zip(COLUMNS, cells))
    return rows


def write_expected(rows):
    with open(EXPECTED, "w", encoding="utf-8") as file:
        file.write("\t".join(("flag",) + COLUMNS) + "\n")
        for value in VALUES:
            file.write("\t".join([value] + [rows[value][c] for c in COLUMNS]) + "\n")


def differing(row, expected):
    return [c for c in row if expected.get(c, "") not in ("any", row[c])]


def compare(bench, value, expected):
    """A cell that differs is run once more, with more patience: a busy machine is no difference."""
    row = run_row(bench, value)
    again = differing(row, expected)
    row |= run_row(bench, value, again, LONG_PATIENCE_S)
    return [f"{value}\t{c}: was {expected.get(c)}, is {row[c]}" for c in differing(row, expected)]


def record_row(bench, value, runs):
    rows = [run_row(bench, value, patience_s=LONG_PATIENCE_S if i == 0 else PATIENCE_S)
            for i in range(runs)]
    return {c: rows[0][c] if all(row[c] == rows[0][c] for row in rows) else "any" for c in COLUMNS}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", help="record what the program does now")
    parser.add_argument("--runs", type=int, default=2, help="runs of each row for --write [2]")
    parser.add_argument("-k", metavar="NAME", default="", help="only flags with NAME in their name")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="rows at a time [2]")
    args = parser.parse_args()
    build = os.environ.get("BUILD_DIR", "build")
    if not os.access(f"{build}/mnist_ddp", os.X_OK):
        sys.exit(f"settings: no program in {build}: set BUILD_DIR")
    if not os.access(f"{build}/mnist_ddp_gloo.so", os.R_OK):
        sys.exit(77)
    values = [value for value in VALUES if args.k in value]
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mnist_ddp-set-", dir=memory) as work:
        bench = record.Bench(build, work)
        check_names(bench)
        prepare(bench)
        with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
            if args.write:
                rows = read_expected() if os.path.exists(EXPECTED) else {}
                rows |= zip(values, pool.map(lambda v: record_row(bench, v, args.runs), values))
                write_expected(rows)
                return
            expected = read_expected()
            lines = sum(pool.map(lambda v: compare(bench, v, expected.get(v, {})), values), [])
    print("\n".join(lines + [f"{len(values)} flags, {len(lines)} cells differ"]))
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
