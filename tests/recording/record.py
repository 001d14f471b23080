#!/usr/bin/env python3
"""Records what the program does, and compares a later build with it.

Each case of commands.py is a shell script that runs in an empty folder. Afterwards every file in
that folder becomes a list of facts: the exit code of a command, the shape of a line on stdout, a
key of a JSON document, a variable that a worker saw, the hash of a model. `--write` runs each case
several times and keeps in expected/CASE which facts were the same each time, which only kept their
kind, and which were there only sometimes (recorded.py). Without it each case is run once and
compared.

    BUILD_DIR=build tests/recording/record.py               all cases, exit 1 if one differs
    BUILD_DIR=build tests/recording/record.py -k run -j 2   those with "run" in their name
    BUILD_DIR=build tests/recording/record.py --write -k X  accept what X does now; read the diff
    tests/recording/record.py --shapes                      store what files of a name share anew

stderr is for people: its wording is not recorded, only whether there is any, and the ranks, exit
codes, signals and flags that it names. Numbers that depend on the processor (sums) are
compared only on the kind of processor that they were recorded on: see `portable`.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import recorded
from commands import CASES, PRELUDE, QUICK

HERE = os.path.dirname(os.path.abspath(__file__))
CASE_TIMEOUT_S = 120
MAX_LINES = 12  # of a case that differs
PEAK_MIB_OFF = 0.15
MAX_ELEMENTS = 8  # of an array whose elements are told apart
N_TRAIN, N_TEST = 192, 96

# Values that belong to the machine and the moment: only their kind is kept.
VOLATILE_NUMBER = re.compile(
    r".*(_s|_ms|_us|_ns|_gbps|busbw|algbw)|pid|port|ts|dur|timestamp|time|rss_mib|private_mib|fd"
    r"|comm|comm_exposed|comm_total|data|forward|backward|optimizer|accelerator|waiting|reduce"
    r"|gather|scatter|broadcast|bound_ranks")
VOLATILE_TEXT = re.compile(r"job|hash|text|host|timestamp|date|pid|location|bind_note|pixels")
VOLATILE_VARIABLE = re.compile(
    r"MNIST_DDP_LAUNCHED|OMP_NUM_THREADS|PATH|PWD|OLDPWD|MASTER_PORT|_|SHLVL|PORT2?")
VOLATILE_PATH = re.compile(r"bench\.out|scaling\.json|dp-vs-ddp\.json")
# 72: a rank whose peer went away; which of them see that is chance.
ERR_FACTS = re.compile(r"\brank \d+\b|\bexit code (?!72\b)\d+\b|\bSIG[A-Z0-9]+\b|--[a-z][a-z-]+")
# Of every run folder; tests/app/test_run_config.c, test_metrics.c, test_eval.c, test_run_log.c and
# test_report.c hold what is in them. So does the page beside a config.json; that of a benchmark is
# recorded.
NOT_RECORDED = re.compile(
    r"config\.json|eval\.json|metrics\.jsonl|train\.log|events\.out\.tfevents\..*")


# --- the place where a case runs ------------------------------------------------------------------
def write_data(folder):
    """MNIST's four files, small: a bar for every class, and noise."""
    draw = random.Random(7)
    os.makedirs(folder)
    for prefix, count in (("train", N_TRAIN), ("t10k", N_TEST)):
        labels = bytes(draw.randrange(10) for _ in range(count))
        images = bytearray()
        for label in labels:
            image = bytearray(784)
            for row in (2 * label + 4, 2 * label + 5):
                for column in range(6, 22):
                    image[28 * row + column] = draw.randrange(128, 256)
            for _ in range(40):
                image[draw.randrange(784)] = draw.randrange(256)
            images += image
        with open(f"{folder}/{prefix}-images-idx3-ubyte", "wb") as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28) + images)
        with open(f"{folder}/{prefix}-labels-idx1-ubyte", "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + labels)


class Ports:
    """Ports that are free now, each given once; below those that the kernel gives."""

    def __init__(self):
        self.next = 12000 + os.getpid() % 9000
        self.lock = threading.Lock()

    def take(self):
        with self.lock:
            while True:
                self.next += 1
                with socket.socket() as probe:
                    try:
                        probe.bind(("127.0.0.1", self.next))
                        return self.next
                    except OSError:
                        continue


def machine(build):
    """What sums depend on: the kind of processor, and the kernels."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = file.read().split("\n\n")[0].splitlines()
    known = dict((part.strip() for part in line.split(":", 1)) for line in lines if ":" in line)
    version = subprocess.run([f"{build}/mnist_ddp", "version"], stdout=subprocess.PIPE, text=True,
                             check=True)
    words = [known.get(key, "") for key in ("vendor_id", "cpu family", "model")]
    return " ".join(words + re.findall(r"\(.*\)", version.stdout))


def processes_of(folder):
    """The processes that were started with `folder` as their HOME."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"HOME={folder}\0".encode() in file.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


def end_processes(folder):
    """Waits for a case's processes to go, kills what stays; how many that were."""
    deadline = time.monotonic() + 5
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return len(left)


class Bench:
    """What all cases share: the program, the data, the ports."""

    def __init__(self, build, work):
        self.build, self.work, self.ports = os.path.abspath(build), work, Ports()
        self.machine = machine(self.build)
        write_data(f"{work}/data")

    def environment(self, folder):
        return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "LC_ALL": "C", "HOME": folder, "TMPDIR": f"{folder}/tmp",
                "XDG_CACHE_HOME": f"{folder}/cache",
                "MNIST_DDP_DATA": f"{self.work}/data", "MNIST_DDP_DEVICE": "reference",
                "MNIST_DDP_THREADS": "1",
                "MNIST": f"{self.build}/mnist_ddp", "BUILD_DIR": self.build, "FIXTURES": HERE,
                "PORT": str(self.ports.take()), "PORT2": str(self.ports.take())}

    def run(self, name):
        """The facts of one run of a case; None if it cannot run on this machine."""
        folder = tempfile.mkdtemp(prefix=f"{name}-", dir=self.work)
        os.mkdir(f"{folder}/tmp")
        shell = subprocess.Popen(["bash", "-c", PRELUDE + CASES[name]], cwd=folder,
                                 env=self.environment(folder), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 start_new_session=True)
        try:
            said = shell.communicate(timeout=CASE_TIMEOUT_S)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            said = f"stopped after {CASE_TIMEOUT_S} s"
            shell.wait()
        left = end_processes(folder)
        facts = None
        if shell.returncode != 77:
            facts = {"the script": f"exit {shell.returncode}", "processes left": f"number {left}"}
            if shell.returncode != 0:
                facts["the script says"] = f"text {json.dumps(said[-400:])}"
            facts.update(facts_of_folder(folder, self.masks(folder)))
        shutil.rmtree(folder, ignore_errors=True)
        return facts

    def masks(self, folder):
        return [(re.escape(folder), "DIR"), (re.escape(self.work), "WORK"),
                (re.escape(self.build), "BUILD"), (re.escape(HERE), "HERE"),
                (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID"),
                (r"(UUID|mnist_ddp|none|job7)_\w{6}\b", r"\1_RANDOM"),
                (r"\d{8}-\d{6}(-mlp|-cnn)?(-\d+\b)?", r"TIME\1"),
                (r".*: on the CPU they will wait for each other\n", ""),  # as many cores as here
                (rf"\b{re.escape(socket.gethostname())}\b", "HOST")]


# --- from files to facts --------------------------------------------------------------------------
# A fact is a name and a value; the first word of the value is its kind.
def masked(text, masks):
    for pattern, name in masks:
        text = re.sub(pattern, name, text)
    return text


def facts_of_folder(folder, masks):
    facts = {}
    for place, folders, names in os.walk(folder):
        if place.endswith("/digests"):  # of the cache: by inodes and times
            continue
        files = [name for name in names if not NOT_RECORDED.fullmatch(name)
                 and not (name == "report.html" and "config.json" in names)]
        if not folders and not files and place != f"{folder}/tmp":
            facts[masked(os.path.relpath(place, folder), masks) + "/"] = "folder"
        for file in files:
            path = os.path.join(place, file)
            facts.update(facts_of_file(path, masked(os.path.relpath(path, folder), masks), masks))
    return facts


def facts_of_file(path, name, masks):
    if not os.path.isfile(path) or os.path.islink(path):
        return {name: "special"}
    with open(path, "rb") as file:
        content = file.read()
    if name.endswith(".safetensors"):
        return {name: f"sha256 {hashlib.sha256(content).hexdigest()[:32]}"}
    if name.endswith((".code", ".same")):
        return {name: "value " + " ".join(content.decode().split())}
    if (not name.endswith((".out", ".err", ".log", ".json", ".jsonl", ".env", ".txt"))
            or name.endswith("trace_steps.json")):  # t.json has its keys
        return {name: "file"}
    if not content:
        return {name: "empty"}
    text = masked(content.decode(errors="replace"), masks)
    if not text:
        return {name: "empty"}
    if name.endswith((".err", "stderr.log")):
        return {name: "text"} | {f"{name} names {m}": "word" for m in set(ERR_FACTS.findall(text))}
    if name.endswith(".env"):
        return facts_of_environment(name, text)
    documents = documents_in(text)
    if documents is None:
        return {name: "text"} | {f"{name} | {shape(line)}": "line" for line in text.splitlines()}
    facts = {name: "json" if len(documents) == 1 else "jsonl"}
    for document in documents:
        facts_of_json(name + ":", "", document, len(documents) > 1, facts)
    return facts


def facts_of_environment(name, text):
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {f"{name} {key}": "set" if VOLATILE_VARIABLE.fullmatch(key) else f"set {value}"
            for key, value in pairs}


def documents_in(text):
    """The JSON document, or one of each line; None if it is something else."""
    if text[0] not in "{[":
        return None
    try:
        return [json.loads(text)]
    except ValueError:
        try:
            return [json.loads(line) for line in text.splitlines()]
        except ValueError:
            return None


def shape(line):
    line = re.sub(r"\d+(\.\d+)?([eE][-+]?\d+)?", "#", line)
    line = line.replace(", # images/s, #:# passed, #:# left", "")  # of a line after two seconds
    return re.sub(r"\s+", " ", line).rstrip()


def facts_of_json(name, key, value, merged, facts):
    """`merged`: below an array whose elements are not told apart; then strings are facts each."""
    if isinstance(value, dict):
        facts[name + (key or ".")] = "object"
        for k, v in value.items():
            facts_of_json(name, f"{key}.{k}", v, merged, facts)
    elif isinstance(value, list) and key == ".command":
        facts[name + key] = "array"  # the script has it
    elif isinstance(value, list):
        facts[name + (key or ".")] = "array"
        apart = len(value) <= MAX_ELEMENTS and not merged and not VOLATILE_PATH.search(name)
        for i, v in enumerate(value):
            facts_of_json(name, f"{key}[{i}]" if apart else f"{key}[]", v, not apart, facts)
    else:
        kind = {bool: "bool", str: "str", type(None): "null"}.get(type(value), "number")
        volatile = {"number": VOLATILE_NUMBER, "str": VOLATILE_TEXT}.get(kind)
        last = re.sub(r"\[\d*\]", "", key).rsplit(".", 1)[-1]
        if last == "peak_mib" and kind == "number":
            value = round(value, 1)  # gloo's own threads move it a little
        if volatile and volatile.fullmatch(last) or VOLATILE_PATH.search(name):
            facts[name + key] = kind
        elif not merged:
            facts[name + key] = f"{kind} {json.dumps(value)}"
        elif kind == "str":
            facts[f"{name}{key}={shape(value)}"] = kind
        else:
            facts[name + key] = kind


# --- what was recorded ----------------------------------------------------------------------------
def kind_of(value):
    return value.split(" ", 1)[0]


def merge(runs):
    """The facts of all runs: the same in all; "any KIND" that they kept; or there "sometimes"."""
    facts = {}
    for fact in set().union(*runs):
        values = {run.get(fact) for run in runs}
        kinds = {kind_of(v) for v in values if v is not None}
        if None in values or len(kinds) > 1:
            facts[fact] = "sometimes"
        else:
            facts[fact] = values.pop() if len(values) == 1 else f"any {kinds.pop()}"
    return facts


def portable(name):
    """Whether a case's sums are the same on every processor."""
    return not re.search(r"--device[= ](cpu|auto)", CASES[name])


def near(fact, got, want):
    """Whether both are the same peak of memory but for a few pages that malloc gave or kept."""
    numbers = [re.fullmatch(r"number ([\d.]+)", value) for value in (got, want)]
    return ".peak_mib[" in fact and all(numbers) and abs(
        float(numbers[0][1]) - float(numbers[1][1])) < PEAK_MIB_OFF


def differences(expected, facts, exact):
    """One line for each fact that is not as recorded; not `exact`: computed ones by their kind."""
    lines = []
    for fact, want in sorted(expected.items()):
        if want == "sometimes":
            continue
        got = facts.get(fact)
        kind = kind_of(want.removeprefix("any "))
        loose = want.startswith("any ") or (not exact and kind in ("number", "sha256", "str"))
        if got is None:
            lines.append(f"gone: {fact} ({want})")
        elif kind_of(got) != kind if loose else got != want and not near(fact, got, want):
            lines.append(f"{fact}: was {want}, is {got}")
    for fact in sorted(set(facts) - set(expected)):
        if facts[fact] != "word":
            lines.append(f"new: {fact} ({facts[fact]})")
    return lines


def write(bench, name, runs):
    seen = [bench.run(name) for _ in range(runs)]
    if None in seen:
        return "SKIP", []
    recorded.write(name, bench.machine, merge(seen))
    bad = [f"the script: {run['the script']}: {run.get('the script says')}" for run in seen
           if run["the script"] != "exit 0"]
    return "wrote", bad


def compare(bench, name):
    """A case that differs is run once more: what a loaded machine did once is no difference."""
    machine_then, expected = recorded.read(name)
    exact = portable(name) or machine_then == bench.machine
    lines = []
    for attempt in range(2):
        facts = bench.run(name)
        if facts is None:
            return "SKIP", []
        now = differences(expected, facts, exact)
        lines = now if attempt == 0 else [line for line in now if line in lines] or now[:1]
        if not now:
            return "ok", []
    return "DIFFERS", lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", help="record what the program does now")
    parser.add_argument("--shapes", action="store_true", help="find what files of a name share")
    parser.add_argument("--runs", type=int, default=3, help="runs of each case for --write [3]")
    parser.add_argument("-k", metavar="NAME", default="", help="only cases with NAME in their name")
    parser.add_argument("--quick", action="store_true", help="only the most telling cases")
    parser.add_argument("-j", type=int, default=1, metavar="N", help="cases at a time [1]")
    parser.add_argument("-q", action="store_true", help="print differences only")
    parser.add_argument("-v", action="store_true", help="print what each case takes")
    args = parser.parse_args()
    if args.shapes:
        recorded.find_shapes()
        return
    build = os.environ.get("BUILD_DIR", "build")
    if not os.access(f"{build}/mnist_ddp", os.X_OK):
        sys.exit(f"record: no program in {build}: set BUILD_DIR")
    names = [name for name in CASES if args.k in name and (not args.quick or name in QUICK)]
    if not names:
        sys.exit(f"record: no case has '{args.k}' in its name")

    def one(name):
        start = time.monotonic()
        result = write(bench, name, args.runs) if args.write else compare(bench, name)
        return name, *result, time.monotonic() - start

    failed, start = [], time.monotonic()
    # In memory, where a checkpoint's sync costs nothing.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mnist_ddp-rec-", dir=memory) as work:
        bench = Bench(build, work)
        with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
            for name, word, lines, took_s in pool.map(one, names):
                if lines:
                    failed.append(name)
                if lines or word == "SKIP" or not args.q:
                    print(f"{word} {name}" + (f" {took_s:.1f} s" if args.v else ""), flush=True)
                for line in lines[:MAX_LINES] if not args.v else lines:
                    print(f"    {line}")
                if len(lines) > MAX_LINES and not args.v:
                    print(f"    and {len(lines) - MAX_LINES} more: -v -k {name}")
    if not args.q:
        print(f"{len(names)} cases, {len(failed)} failed, {time.monotonic() - start:.0f} s")
    elif failed:
        print(f"{len(failed)} of {len(names)} cases differ; if that is meant: --write -k NAME")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
