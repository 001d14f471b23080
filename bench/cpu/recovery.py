#!/usr/bin/env python3
"""From a killed node to the next step: ours, torchrun's elastic c10d, torchft. Four nodes of two ranks
on this machine train the MLP; a node is killed (SIGKILL to its agent and its ranks at once) at a
random moment, and started anew when the others go on.

    recovery.py SIDE [KILLS] [SEED]      SIDE: ours, torchrun, torchft; default: 20 kills

  notice    until a survivor knows: its agent writes node_lost (ours), its operation fails (others)
  re-form   until the survivors are together: round_begins (ours), the process group is there
            (torchrun); torchft forms it inside the step
  step      until the first step of the survivors is done
  lost      steps that were done before the kill and are done once more

$BUILD: the build folder; $MNIST_DDP_DATA: MNIST's; $TORCHFT: a folder with torchft in it, beside the
torch of the Python that runs this. Every time is from the machine's monotonic clock.
"""
import json
import math
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BUILD", ROOT / "build"))
DATA = os.environ.get("MNIST_DDP_DATA", str(ROOT / "data/MNIST/raw"))
PEER = ROOT / "bench/peers/torch_elastic_mnist.py"
NODES, PER_NODE = 4, 2
RUNS_S, LIMIT_S = (1.0, 2.0), 240  # steps between two kills; the longest wait for anything
PAUSE_MS = 20  # in each step: 8 ranks share few cores


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def await_listener(port):
    for _ in range(1200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nobody listens on port {port}")


class Side:
    """Nodes that can be started and killed, and what their event files say."""

    def __init__(self, folder):
        self.folder, self.nodes, self.read, self.port = folder, {}, {}, None
        self.events, self.started = [], 0
        (folder / "events").mkdir()
        self.prepare()

    def prepare(self):
        pass

    def commands(self, node):
        """Those of a node: (words, variables)."""
        raise NotImplementedError

    def start(self, node):
        self.nodes[node] = []
        for words, variables in self.commands(node):
            self.started += 1
            log = open(self.folder / f"node{node}.{self.started}.log", "w")
            self.nodes[node].append(subprocess.Popen(
                [str(word) for word in words], env=os.environ | variables, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, cwd=self.folder, start_new_session=True))

    def kill(self, node):
        """All processes of its sessions and below, none of which may run on; the time of the kill."""
        pids = descendants([process.pid for process in self.nodes[node]])
        now = time.monotonic_ns()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.nodes.pop(node):
            process.wait()
        return now

    def look(self):
        """Reads what has come; a line that is not whole waits."""
        for path in (self.folder / "events").iterdir():
            with open(path, "rb") as file:
                file.seek(self.read.get(path, 0))
                text = file.read()
            whole = text[:text.rfind(b"\n") + 1]
            self.read[path] = self.read.get(path, 0) + len(whole)
            self.events += map(json.loads, filter(None, whole.splitlines()))

    def since(self, ns, names):
        found = [e for e in self.events if e["monotonic_ns"] > ns and e["event"] in names]
        return min(found, key=lambda e: e["monotonic_ns"]) if found else None

    def await_event(self, ns, names, world_size):
        """The first such event of as many ranks; the time limit ends the measurement."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            self.look()
            found = [e for e in self.events if e["monotonic_ns"] > ns and e["event"] in names and
                     e.get("world_size") in (world_size, None)]
            if found:
                return min(found, key=lambda e: e["monotonic_ns"])
            dead = [node for node, group in self.nodes.items() if group[0].poll() is not None]
            if len(dead) == len(self.nodes):
                raise TimeoutError(f"all agents have ended: exit codes "
                                   f"{[group[0].returncode for group in self.nodes.values()]}")
            time.sleep(0.02)
        raise TimeoutError(f"no {names} of {world_size} ranks within {LIMIT_S} s")


def descendants(pids):
    children = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = list(pids)
    for pid in found:
        found += children.get(pid, [])
    return found


class Ours(Side):
    STEP, NOTICE, READY = ("first_step",), ("node_lost", "leaves"), ("round_begins",)
    KILLABLE = (1, 2, 3)  # node 0 serves the store

    def prepare(self):
        self.port = free_port()

    def commands(self, node):
        yield [BUILD / "mnist_ddp", "train", "--nnodes=1:4", f"--nproc-per-node={PER_NODE}",
               "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=recovery",
               "--rdzv-conf=last_call_timeout=2", "--max-restarts=0", "--model=mlp", "--optimizer=sgd",
               "--lr=0.1", "--momentum=0.9", "--epochs=100000", "--threads=1", "--backend=gloo",
               "--no-save-model", f"--inject-delay-ms={PAUSE_MS}", f"--data-dir={DATA}",
               f"--run-dir={self.folder}/run", "--event-log-steps",
               f"--event-log={self.folder}/events/log.jsonl"], {}


class Torchrun(Side):
    STEP, NOTICE, READY = ("step",), ("failed",), ("ready",)
    KILLABLE = (1, 2, 3)

    def prepare(self):
        self.port = free_port()

    def commands(self, node):
        yield [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:4",
               f"--nproc-per-node={PER_NODE}", "--rdzv-backend=c10d", "--max-restarts=100",
               f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=recovery", PEER,
               "--with=torchrun", f"--data={DATA}", f"--events={self.folder}/events",
               f"--snapshot={self.folder}/snapshot.pt", f"--pause-ms={PAUSE_MS}"], {}


class Torchft(Side):
    """Every rank is a replica group of its own; a node is the two that are killed together."""
    STEP, NOTICE, READY = ("step",), ("failed",), ("step",)
    KILLABLE = (0, 1, 2, 3)
    HEARTBEAT_MS = os.environ.get("TORCHFT_HEARTBEAT_MS", "5000")  # the lighthouse's default

    def prepare(self):
        port = free_port()
        self.variables = {"PYTHONPATH": os.environ["TORCHFT"],
                          "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
        serve = ("import time; from torchft._torchft import LighthouseServer; server = LighthouseServer("
                 f"bind='127.0.0.1:{port}', min_replicas=1, join_timeout_ms=1000, "
                 f"heartbeat_timeout_ms={self.HEARTBEAT_MS}); time.sleep(1e6)")
        self.lighthouse = subprocess.Popen([sys.executable, "-c", serve], env=os.environ | self.variables,
                                           stdout=open(self.folder / "lighthouse.log", "w"),
                                           stderr=subprocess.STDOUT)

    def commands(self, node):
        for i in range(PER_NODE):
            yield [sys.executable, PEER, "--with=torchft", f"--data={DATA}",
                   f"--events={self.folder}/events", f"--pause-ms={PAUSE_MS}"], \
                self.variables | {"RANK": str(node * PER_NODE + i)}


def steps_lost(side, killed_ns, first):
    """Steps that were done when the node was killed, and that follow once more."""
    done = [e["step"] for e in side.events if e["monotonic_ns"] <= killed_ns and "step" in e]
    # Ours says "step" when one begins: the one before it is done.
    begun = 1 if isinstance(side, Ours) else 0
    return max(0, max(done) - begun - (first["step"] - 1))


def measure(side, kills, seed):
    chosen = random.Random(seed)
    for node in range(NODES):
        side.start(node)
        if node == 0 and side.port:
            await_listener(side.port)  # it serves the store
    after = 0
    for kill in range(kills):
        side.await_event(after, side.STEP if not isinstance(side, Ours) else ("step",),
                         NODES * PER_NODE)
        time.sleep(chosen.uniform(*RUNS_S))
        node = chosen.choice(side.KILLABLE)
        killed = side.kill(node)
        left = (NODES - 1) * PER_NODE
        ready = side.await_event(killed, side.READY, left)
        first = side.await_event(ready["monotonic_ns"] - 1, side.STEP, left)
        notice = side.since(killed, side.NOTICE) or ready
        after = time.monotonic_ns()
        side.start(node)
        found = {"kill": kill, "node": node, "lost": steps_lost(side, killed, first)} | {
            name: (event["monotonic_ns"] - killed) / 1e9
            for name, event in (("notice", notice), ("re-form", ready), ("step", first))}
        print(json.dumps(found), flush=True)
        yield found


def main():
    name, kills, seed = (sys.argv[1:] + [None] * 3)[:3]
    kills, seed = int(kills or 20), int(seed or time.time())
    print(f"{name}: {kills} kills, seed {seed}", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("recovery.py: stopped"))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="recovery-"))
    side = {"ours": Ours, "torchrun": Torchrun, "torchft": Torchft}[name](folder)
    found = []
    try:
        for one in measure(side, kills, seed):
            found.append(one)
    except TimeoutError as error:
        print(f"after {len(found)} kills: {error}; logs: {folder}", file=sys.stderr)
    finally:
        for node in list(side.nodes):
            side.kill(node)
        if hasattr(side, "lighthouse"):
            side.lighthouse.kill()
            side.lighthouse.wait()
    print("         | p50 s | p95 s | max s")
    for key in ("notice", "re-form", "step", "lost"):
        values = sorted(one[key] for one in found)
        if values:
            p95 = values[math.ceil(0.95 * len(values)) - 1]
            print(f"{key:8} | {statistics.median(values):5.2f} | {p95:5.2f} | {values[-1]:5.2f}")
    if len(found) == kills and "KEEP" not in os.environ:
        shutil.rmtree(folder)
    return len(found) < kills


if __name__ == "__main__":
    sys.exit(main())
