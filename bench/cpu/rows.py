"""The rows that `make bench` measures: what each runs, what runs beside it, and what its ratio is.

A row's `ours(i)` and `peer(i)` run once and return the run's own JSON with the row's figure as
"value". They are called in turn, so that a slow minute of the machine hits both.
"""
import fnmatch
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import mnist
import program
from machine import CORES
from training import LAYERS, MODEL_FLAGS, operations, reason_not_to_count

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BUILD", ROOT / "build")).resolve()
PROGRAM = BUILD / "mnist_ddp"
SHORT_MNIST = BUILD / "bench-mnist"  # with fewer test images
TORCHRUN = pathlib.Path(sys.executable).parent / "torchrun"
LIMIT_S = 300  # of a run
PAIRS = 7
EPOCHS = 2  # short ones, of which the faster one counts
STEPS = {"cnn": 32, "mlp": 100}  # of an epoch
IMAGES = 60000
WHOLE_EPOCH = ["--epochs", 1, "--limit", IMAGES]  # instead of short ones; the test is not timed
BLOCKS = {"conv_block": ["conv1", "conv2"]}  # spans of several layers
TRACED_STEPS, FIRST_STEPS = 60, 5  # the first ones warm up
ZEROS_AT = (1, 20, 50, 100, 300, 900)  # steps, whose first is 1
MESSAGES = {"8B": (8, 20000), "20kB": (20000, 5000), "2.7MB": (2678824, 500)}  # bytes, calls


class Skip(Exception):
    """This row cannot be measured here."""


def run(command, folder=None):
    """What a command has said, and its seconds. Ends everything if it failed."""
    with tempfile.NamedTemporaryFile() as log:
        ended = program.run(command, LIMIT_S, log.name, cwd=folder)
    if ended.word:
        sys.exit(f"{' '.join(map(str, command))}\n{ended.word}\n{ended.output[-2000:]}")
    return ended


def last_json(output):
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


class Training:
    """A training run of fixed length, ours or PyTorch's."""

    def __init__(self, model, precision="fp32", ranks=1, threads=1, batch=64):
        self.model, self.precision, self.ranks, self.threads = model, precision, ranks, threads
        images = min(STEPS[model] * 64 * ranks * max(1, batch // 64), IMAGES)
        self.flags = [*MODEL_FLAGS[model], "--epochs", EPOCHS, "--limit", images,
                      "--batch-size", batch, "--threads", threads, "--data", SHORT_MNIST]
        self.peer_flags = None  # the faster ones, when they are known

    def ours(self, extra=("--eval-every", EPOCHS)):
        amp = ["--amp", "bf16"] if self.precision == "bf16" else []
        with tempfile.TemporaryDirectory() as folder:
            result = last_json(run([
                PROGRAM, "train", *self.flags, *amp, *extra, "--device", "cpu", "--nproc-per-node",
                self.ranks, "--no-save-model", "--run-dir", f"{folder}/run", "--json",
                "--quiet"]).output)
        return dict(result, value=result["images_per_s"])

    def torch(self):
        amp = ["--bf16"] if self.precision == "bf16" else []
        sets = [amp, [*amp, "--channels-last"]] if self.model == "cnn" else [amp]
        return self.fastest([TORCHRUN, "--standalone", f"--nproc_per_node={self.ranks}",
                             ROOT / "bench/peers/torch_ddp_mnist.py", "--loader", "tensor"], sets)

    def jax(self):
        return self.fastest([sys.executable, "-B", ROOT / "bench/peers/jax_mnist.py"],
                            [[], ["--scan"]])

    def fastest(self, command, sets):
        """A peer's run; the first time with every set of flags that may be the fastest."""
        found = []
        for flags in [self.peer_flags] if self.peer_flags is not None else sets:
            result = last_json(run([*command, *self.flags, *flags]).output)
            found.append((result["images_per_s"], flags, result))
        value, self.peer_flags, result = max(found, key=lambda one: one[0])
        return dict(result, value=value)


class Row:
    """`peer_name` says what the figure is divided by; "lower" is better for times."""

    unit, lower, times = "images/s", False, PAIRS
    is_default = True
    peer_name = None

    def ours(self, i):
        raise NotImplementedError

    def peer(self, i):
        raise NotImplementedError

    def figures(self, ours, peers, peak):
        """What else the row tells, from all its runs."""
        return {}

    def measure(self, times, peak):
        ours, peers = [], []
        for i in range(times):
            ours.append(self.ours(i))
            if self.peer_name:
                peers.append(self.peer(i))
        found = {"unit": self.unit, "ours": median(ours, "value")}
        if peers:
            ratios = [theirs["value"] / mine["value"] if self.lower else
                      mine["value"] / theirs["value"] for mine, theirs in zip(ours, peers)]
            found |= {"peer": median(peers, "value"), "peer_is": self.peer_name,
                      "ratio": round(statistics.median(ratios), 3),
                      "ratios": [round(ratio, 3) for ratio in ratios]}
        return found | self.figures(ours, peers, peak)


def median(results, key):
    return round(statistics.median(result[key] for result in results), 3)


def phases_of(results):
    """Milliseconds of a step, the median of the runs."""
    names = [name for name in results[0]["phases"] if results[0]["phases"][name] > 0]
    return {name: round(statistics.median(1e3 * r["phases"].get(name, 0) / r["steps"]
                                          for r in results), 4) for name in names}


def need_counting(result):
    wrong = reason_not_to_count(result)
    if wrong:
        sys.exit(f"does not count: {wrong}\n{json.dumps(result)}")
    return result


class BesideTorch(Row):
    """cnn-fp32-2: model, precision and ranks of one thread. Ours is the first whole epoch, as zeros
    are left out and there are more of them from step to step; PyTorch's speed is that of any."""

    peer_name = "torch"

    def __init__(self, model, precision, ranks):
        self.name = f"{model}-{precision}-{ranks}"
        self.training = Training(model, precision, ranks)

    def ours(self, i):
        if self.training.precision == "bf16" and not takes_bf16():
            raise Skip("--amp bf16 is refused on the CPU")
        return need_counting(self.training.ours(WHOLE_EPOCH))

    def peer(self, i):
        return need_counting(self.training.torch())

    def figures(self, ours, peers, peak):
        t = self.training
        gflops = median(ours, "value") * operations(t.model) / 1e9
        ceiling = peak.of(t.precision, t.ranks) or peak.of("fp32", t.ranks)
        return {"gflops": round(gflops, 1), "share_of_peak": round(gflops / ceiling, 3),
                "phases_ms": phases_of(ours), "setup_s": median(ours, "setup_s"),
                "private_mib": max(one["private_mib"] for one in ours),
                "peer_setup_s": median(peers, "setup_s"),
                "peer_rss_mib": max(one["rss_mib"] for one in peers),
                "peer_flags": " ".join(t.peer_flags), "peer_system": peers[0]["system"]}


class BesideJax(BesideTorch):
    """mlp-fp32-1-jax."""

    peer_name = "jax"

    def __init__(self, model, precision, ranks):
        super().__init__(model, precision, ranks)
        self.name += "-jax"

    def ours(self, i):
        if importlib.util.find_spec("jax") is None:
            raise Skip(f"no jax: {sys.executable} -m pip install jax")
        return super().ours(i)

    def peer(self, i):
        return need_counting(self.training.jax())


class BesideOurs(Row):
    """cnn-ranks-8 beside cnn-ranks-2, mlp-batch-4096 beside mlp-batch-64: one setting changed."""

    times = 5

    def __init__(self, model, setting, value, usual, is_default=False):
        self.name, self.peer_name = f"{model}-{setting}-{value}", f"{setting} {usual}"
        self.is_default = is_default
        self.run, self.usual = (Training(model, **{setting: n}) for n in (value, usual))

    def ours(self, i):
        return self.run.ours(["--eval-every", "0"])

    def peer(self, i):
        return self.usual.ours(["--eval-every", "0"])

    def figures(self, ours, peers, peak):
        return {"phases_ms": phases_of(ours), "setup_s": median(ours, "setup_s"),
                "private_mib": max(one["private_mib"] for one in ours)}


class ToAccuracy(Row):
    """to-97: the whole command with the config of that name, once with each of 36 seeds that had no
    part in its choice, beside the recipe that it took the place of, with all zeros multiplied."""

    unit, lower, times = "s", True, 36
    peer_name = "former recipe, --dense"
    first_seed = 5001
    marks = {"to-97": 0.97, "speedrun": 0.99}
    former = {"to-97": ["--limit", 42000, "--label-smoothing", 0],
              "speedrun": ["--limit", 60000, "--label-smoothing", 0, "--optimizer", "adam",
                           "--weight-decay", 0, "--adam-betas", "0.7,0.9", "--lr", 0.007]}

    def __init__(self, name):
        self.name, self.config = name, ROOT / f"configs/{name}.yaml"

    def ours(self, i, flags=()):
        if not self.config.exists():
            raise Skip(f"no configs/{self.config.name}")
        with tempfile.TemporaryDirectory() as folder:
            ended = run([PROGRAM, "train", "--config", self.config, "--seed", self.first_seed + i,
                         "--data", mnist.FOLDER, "--run-dir", f"{folder}/run", "--json", "--quiet",
                         *flags])
        return dict(last_json(ended.output), value=ended.seconds)

    def peer(self, i):
        return self.ours(i, [*self.former[self.name], "--dense"])

    def figures(self, ours, peers, peak):
        seconds, accuracy = ([one[key] for one in ours] for key in ("value", "test_acc"))
        reached = sum(one >= self.marks[self.name] for one in accuracy)
        return {"mean_s": round(statistics.mean(seconds), 3), "most_s": round(max(seconds), 3),
                "accuracy_mean": round(statistics.mean(accuracy), 5),
                "accuracy_least": min(accuracy), "reached": f"{reached} of {len(accuracy)}"}


class AllReduce(Row):
    """all-reduce-20kB: shm between two ranks, in place, beside Open MPI if that is installed."""

    unit, lower = "us", True

    def __init__(self, size):
        self.name = f"all-reduce-{size}"
        self.size_bytes, self.calls = MESSAGES[size]
        self.peer_name = "Open MPI" if mpi_program() else None

    def ours(self, i):
        said = run([PROGRAM, "bench", "all-reduce", "--device", "cpu", "--nproc-per-node", 2, "-b",
                    self.size_bytes, "-e", self.size_bytes, "-n", self.calls, "-w", 100, "--json",
                    "--quiet"]).output
        found = last_json(said)["rows"][0]["in_place"]
        return dict(found, value=found["median_us"])

    def peer(self, i):
        said = run(["mpirun", "--allow-run-as-root", "-np", 2, mpi_program(), "all_reduce", "float",
                    "sum", 0, self.calls, 5, self.size_bytes]).output
        found = last_json(said)["rows"][0]["in_place"]
        return dict(found, value=found["median_us"])

    def figures(self, ours, peers, peak):
        return {"least_us": min(one["least_us"] for one in ours)}


class Step(Row):
    """cnn-step: where the microseconds of one rank's step go, from --trace, least and median."""

    unit, lower, times = "us", True, 3

    def __init__(self, model):
        self.name, self.model = f"{model}-step", model

    def ours(self, i):
        events = traced([*MODEL_FLAGS[self.model], "--limit", 64 * TRACED_STEPS, "--data",
                         SHORT_MNIST])
        spans = {}
        for event in events:
            spans.setdefault(event["name"], []).append(event["dur"])
        spans = {name: us[FIRST_STEPS:] for name, us in spans.items() if len(us) == TRACED_STEPS}
        return {"spans": spans, "value": statistics.median(spans["step"])}

    def figures(self, ours, peers, peak):
        found = {}
        for name in ours[0]["spans"]:
            us = [one for result in ours for one in result["spans"][name]]
            found[name] = {"least_us": min(us), "median_us": round(statistics.median(us), 1)}
            layer, _, way = name.partition(" ")
            layers = BLOCKS.get(layer, [layer])
            if layers[0] in LAYERS[self.model] and way in ("forward", "backward"):
                flop = 64 * operations(self.model, layers, [way])
                found[name]["gflops"] = round(flop / min(us) / 1e3, 1)
        return {"spans": found}


class Zeros(Row):
    """cnn-zeros: what is not zero, of what each layer and pass goes through, in percent; the figure
    is the mean of them all."""

    unit, times = "% not zero", 1

    def __init__(self, name, *flags):
        self.name, self.flags = f"{name}-zeros", flags

    def ours(self, i):
        step, layers = 0, {}
        for event in traced([*self.flags, "--data", mnist.FOLDER, "--trace-steps", ZEROS_AT[-1]]):
            step = event["args"].get("step", step)
            if "nonzero_percent" in event["args"]:
                layers.setdefault(event["name"], {})[step] = event["args"]["nonzero_percent"]
        layers = {name: steps for name, steps in layers.items()  # a linear layer's are alike
                  if name.endswith("forward") or name.replace("backward", "forward") not in layers}
        every = [percent for steps in layers.values() for percent in steps.values()]
        return {"layers": layers, "value": statistics.mean(every)}

    def figures(self, ours, peers, peak):
        return {"nonzero_percent": {name: {str(at): steps[at] for at in ZEROS_AT if at in steps}
                                    for name, steps in ours[0]["layers"].items()}}


def traced(flags):
    """What rank 0 did in one epoch with one thread, in its order."""
    with tempfile.TemporaryDirectory() as folder:
        run([PROGRAM, "train", "--device", "cpu", "--threads", 1, "--epochs", 1, "--eval-every", 0,
             "--trace", f"{folder}/trace.json", "--no-save-model", "--run-dir", f"{folder}/run",
             "--quiet", *flags])
        events = json.loads(pathlib.Path(f"{folder}/trace.json").read_text())["traceEvents"]
    return sorted((e for e in events if e["ph"] == "X" and e["pid"] == 0), key=lambda e: e["ts"])


def takes_bf16():
    """Whether the program trains in bf16 on the CPU."""
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as log:
        ended = program.run([PROGRAM, "train", "--device", "cpu", "--amp", "bf16", "--dry-run",
                             "--eval-every", 0, "--run-dir", f"{folder}/run"], LIMIT_S, log.name)
    if ended.code not in (0, 64):
        sys.exit(f"--amp bf16: {ended.word}\n{ended.output[-2000:]}")
    return ended.code == 0


def mpi_program():
    """Open MPI's side, compiled if it is not there; None without mpicc."""
    if not shutil.which("mpicc") or not shutil.which("mpirun"):
        return None
    source, made = ROOT / "bench/peers/mpi_collective.c", BUILD / "mpi_collective"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["mpicc", "-O2", "-o", made, source], check=True, timeout=LIMIT_S)
    return made


def all_rows():
    rows = [BesideTorch(model, precision, ranks) for precision in ("fp32", "bf16")
            for model in ("cnn", "mlp") for ranks in (1, 2)]
    rows.append(BesideJax("mlp", "fp32", 1))
    for model in ("cnn", "mlp"):
        rows += [BesideOurs(model, "threads", n, 1, (model, n) == ("cnn", 2)) for n in (2, 4, 8, 16)
                 if n <= CORES]
        rows += [BesideOurs(model, "ranks", n, 2, n == 8) for n in (1, 3, 4, 8, 16)]
        rows += [BesideOurs(model, "batch", n, 64) for n in (16, 32, 128, 256, 512, 1024, 4096)]
    rows += [ToAccuracy("to-97"), ToAccuracy("speedrun")]
    rows += [AllReduce(size) for size in MESSAGES]
    rows += [Zeros(model, *MODEL_FLAGS[model]) for model in ("mlp", "cnn", "speedrun")]
    rows.append(Zeros("speedrun-recipe", "--config", ROOT / "configs/speedrun.yaml"))
    return rows + [Step("cnn"), Step("mlp")]


def chosen(patterns):
    """The rows that $ROWS names, with * for anything; without it the usual ones."""
    rows = all_rows()
    if not patterns:
        return [row for row in rows if row.is_default]
    for pattern in patterns:
        if not fnmatch.filter([row.name for row in rows], pattern):
            sys.exit(f"ROWS: no row is called {pattern}; there are: "
                     + " ".join(row.name for row in rows))
    return [row for row in rows if any(fnmatch.fnmatch(row.name, one) for one in patterns)]
