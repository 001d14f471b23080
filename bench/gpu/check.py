#!/usr/bin/env python3
"""make gpu-check: builds for this machine's GPU, tests, trains and measures there. Needs a driver,
nvcc, cuBLASLt, cuDNN, NCCL, a C and a C++ compiler, cmake and the files of gpu-bundle/
(scripts/gpu_bundle.sh makes it); no network, no root.

  QUICK=1          what tells most, in nine minutes
  STAGES           build first test sanitize train bench gpus torch compiled, or some of them;
                   builds what is missing
  LIMIT_S          seconds for the whole command; default: the plan's
  RESULTS          the folder of everything that is left: results.json, tables.md, a log per stage;
                   default: bench/results/GPU, with QUICK bench/results/GPU-quick
  PLAN=1           say what would be run, and for how long at most; run nothing
  REHEARSAL=1      let an emulated device pose as the GPU (bench/gpu/rehearse.sh)
  FRESH=1          measure again what an earlier, incomplete run in RESULTS has
  PAIRS            runs of each measurement; default: 3, with QUICK 1
  GPU_BUILD        build-gpu
  NVIDIA_PACKAGES  .../site-packages/nvidia, where cuDNN and NCCL are not found
  COMMIT           what is measured; default: as git describes it, or else the sources' hash
  PYTHON           python3, which should have torch for the stages torch and compiled

Exit code: 0 all is well, 1 something failed, 3 nothing failed but something was not run (no time
left): the same command again goes on with that.
"""
import hashlib
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "bench"))
sys.dont_write_bytecode = True

import comparison  # noqa: E402
import held_context  # noqa: E402
import program  # noqa: E402
import record  # noqa: E402
import several  # noqa: E402
import stages  # noqa: E402

# Seconds that a stage is given: all of them, and of QUICK=1. What a stage leaves is the next one's.
PLANNED_S = {"build": 100, "first": 120, "test": 480, "sanitize": 480, "train": 480, "bench": 480,
             "gpus": 480, "torch": 480, "compiled": 480}
QUICK_S = {"build": 160, "first": 70, "test": 120, "bench": 100, "torch": 80}
STAGE_END_S = 4  # of a stage's time: for ending what is cut, and for the files


def die(text):
    sys.exit(f"gpu-check: {text}")


def ask_gpu(*arguments):
    try:
        return subprocess.run(["nvidia-smi", *arguments], timeout=30, check=True, text=True,
                              capture_output=True).stdout.strip().splitlines()
    except FileNotFoundError:
        die("no nvidia-smi: this machine has no NVIDIA driver")
    except (subprocess.SubprocessError, OSError) as error:
        die(f"nvidia-smi does not answer: {error}")


def describe_machine():
    """The GPU that CUDA calls the first, and what it sits in."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    keys = ["name", "memory.total", "driver_version", "compute_cap"]
    said = ask_gpu("-i", visible.split(",")[0] or "0", f"--query-gpu={','.join(keys)}",
                   "--format=csv,noheader,nounits")
    values = [part.strip() for part in said[0].split(",")] if said else []
    if len(values) != len(keys):
        die(f"nvidia-smi finds no GPU: {said}")
    gpus = len(visible.split(",")) if visible else len(ask_gpu("-L"))
    cpu = re.search(r"(?m)^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text())
    release = pathlib.Path("/etc/os-release")
    release = release.read_text() if release.exists() else ""
    system = re.search(r'(?m)^PRETTY_NAME="?([^"\n]*)', release)
    return {"gpu": values[0], "gpus": gpus, "memory_mib": values[1], "driver": values[2],
            "compute_capability": values[3], "cpu": cpu.group(1) if cpu else platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "system": f"{system.group(1) if system else '?'}, Linux {platform.release()}"}


def find_data():
    for folder in filter(None, (os.environ.get("MNIST_DDP_DATA"), "gpu-bundle/mnist",
                                "data/MNIST/raw")):
        if any(pathlib.Path(folder).glob("train-images-idx3-ubyte*")):
            return str(pathlib.Path(folder).resolve())
    die("no MNIST: set MNIST_DDP_DATA, or bring gpu-bundle/ (scripts/gpu_bundle.sh makes it)")


def describe_commit():
    try:
        said = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True,
                              text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        said = ""
    return os.environ.get("COMMIT") or said or f"sources-{hash_sources()}"


def hash_sources():
    """Tells them apart where there is no .git."""
    sum_of_all = hashlib.sha256()
    for room in "app base bench/gpu cmake data dist kernels model tests".split():
        for path in sorted((ROOT / room).rglob("*.*")):
            if path.suffix in (".c", ".cc", ".cmake", ".cu", ".cuh", ".h", ".py"):
                sum_of_all.update(path.read_bytes())
    return sum_of_all.hexdigest()[:12]


def is_on(name):
    return os.environ.get(name, "0") not in ("", "0")


class Check:
    """What the steps of all stages share."""

    def __init__(self, settings):
        self.begun, self.settings = self.now(), settings
        self.stage, self.note, self.deadline = "", "", 0  # of the stage that runs
        self.quick, self.fresh, self.rehearsal = map(is_on, ("QUICK", "FRESH", "REHEARSAL"))
        self.comparison = comparison.Comparison(self)
        self.planned_s = QUICK_S if self.quick else PLANNED_S
        self.chosen = (settings.get("STAGES") or " ".join(self.planned_s)).split()
        self.build = pathlib.Path(settings.get("GPU_BUILD", "build-gpu"))
        for name in self.chosen:
            if name not in PLANNED_S:
                die(f'no stage "{name}"; there are: {" ".join(PLANNED_S)}')
        missing = stages.missing_programs(self.build, self.chosen, self.quick)
        if missing and "build" not in self.chosen:
            self.chosen.insert(0, "build")
        try:
            self.limit_s = float(settings.get("LIMIT_S") or sum(self.share(n) for n in self.chosen))
            self.pairs = int(settings.get("PAIRS") or (1 if self.quick else 3))
        except ValueError as error:
            die(f"LIMIT_S and PAIRS are numbers: {error}")

    now = staticmethod(time.monotonic)

    def share(self, name):
        return self.planned_s.get(name, PLANNED_S[name])

    def begin(self):
        """Looks at the machine; makes the folders."""
        self.machine = describe_machine()
        self.gpus = self.machine["gpus"]
        os.environ["MNIST_DDP_DATA"] = find_data()
        os.environ["LC_ALL"] = "C"
        os.environ.pop("MNIST_DDP_CUDA_MODULE", None)  # no stand-in for the hardware
        name = self.machine["gpu"].replace("NVIDIA ", "") + ("-quick" if self.quick else "")
        name = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
        self.folder = pathlib.Path(self.settings.get("RESULTS") or f"bench/results/{name}")
        self.build.mkdir(parents=True, exist_ok=True)
        try:
            kind = ("quick" if self.quick else "full") + " rehearsal" * self.rehearsal
            self.record = record.Record(self.folder, self.machine, kind, describe_commit(),
                                        PLANNED_S)
        except (ValueError, KeyError) as error:
            die(f"{self.folder}/results.json: {error}")
        self.context = held_context.HeldContext(self.limit_s + 60)

    def steps_of(self, name):
        programs = stages.test_programs(self.quick)
        compared = self.comparison
        return list({
            "build": lambda: stages.build(self, programs),
            "first": lambda: stages.first(self),
            "test": lambda: stages.tests(self, programs),
            "sanitize": lambda: stages.sanitizers(self),
            "train": lambda: stages.training(self),
            "bench": lambda: stages.bench(self, self.quick),
            "gpus": lambda: several.several(self),
            "torch": lambda: comparison.steps(compared, self.quick, "eager",
                                              *([] if self.quick else ["tuned"])),
            "compiled": lambda: comparison.steps(compared, self.quick, "compiled"),
        }[name]())

    def seconds_left(self):
        return self.deadline - self.now()

    def run(self, command, limit_s, **options):
        """Runs a program; what it says goes to the stage's log."""
        command = list(map(str, command))
        ended = program.run(command, limit_s, self.folder / "running.log", **options)
        self.record.log(self.stage, " ".join(command), ended)
        (self.folder / "running.log").unlink()
        if ended.word and ended.code != 77:
            print(f"   {' '.join(command)}: {ended.word}", *ended.output.splitlines()[-3:],
                  sep="\n      ")
        return ended

    @staticmethod
    def need(ended, rows=()):
        """Fails where a program did not end with 0."""
        if ended.word:
            said = ended.last_line()
            raise stages.Failed(ended.word + (f": {said}" if said and not ended.hung else ""), rows)

    # --- one stage ---

    def perform(self, step):
        """The rows of a step that ran."""
        given_s = min(step.limit_s, self.seconds_left())
        begun = self.now()
        try:
            rows = step.work(given_s)
            rows = [dict(step.key, **rows)] if isinstance(rows, dict) else rows
            return [dict(row, result=row.pop("result", "passed")) for row in rows]
        except stages.Failed as wrong:
            failed = wrong
            # Cut by the stage's end, not by a limit of its own, it was not run.
            cut = given_s < step.limit_s and self.now() - begun >= given_s - 0.1
            why = "not run: no time left" if cut else f"failed: {wrong}"
        except stages.StopCheck as reason:
            self.record.replace(self.stage, step, [dict(step.key, result=f"failed: {reason}")])
            raise
        except stages.SkipStage:
            raise
        except Exception as error:  # an answer that nobody thought of costs its row alone
            why, failed = f"failed: {type(error).__name__}: {error}", stages.Failed("")
        whole = [row for row in failed.rows if "table" in row]
        fields = next((row for row in failed.rows if "table" not in row), {})
        return whole + [dict(step.key, **fields, result=why)]

    def run_steps(self, name, steps):
        done = record.done_rows(self.record.rows(name))
        for step in steps:
            if step.name in done:
                continue
            if self.seconds_left() < 1:
                rows = [dict(step.key, result="not run: no time left")]
            else:
                rows = self.perform(step)
            self.record.replace(name, step, rows)
            for row in rows:
                print("  ", *(f"{key}={value}" for key, value in row.items() if key != "table"),
                      flush=True)

    def skip(self, name, steps, why):
        for step in steps:
            if any(row["step"] == step.name and not record.is_done(row)
                   for row in self.record.rows(name)):
                self.record.replace(name, step, [dict(step.key, result=f"skipped: {why}")])

    def run_stage(self, name, steps):
        print(f"== {name}", flush=True)
        self.stage, self.note, begun = name, "", self.now()
        self.record.plan(name, steps, self.fresh or name == "build")
        self.record.data["stages"][name]["status"] = "cut"  # what stands there if this is killed
        self.record.save()
        try:
            self.run_steps(name, steps)
        except stages.SkipStage as reason:
            self.note = str(reason)
            self.skip(name, steps, reason)
        except stages.StopCheck as reason:
            self.note = str(reason)
            raise
        finally:
            self.comparison.close()
            self.machine["context"] = self.context.state()
            rows = self.record.rows(name)
            left, bad = sum(not record.is_done(r) for r in rows), sum(map(record.is_failed, rows))
            status = self.record.close(name, self.now() - begun, "; ".join(filter(None, (
                self.note, bad and f"{bad} of {len(rows)} rows failed, see {name}.log",
                left and f"{left} of {len(rows)} rows not run"))))
            print(f"== {name}: {status}, {self.now() - begun:.0f} s\n"
                  f"{self.record.data['stages'][name]['note']}".rstrip(), flush=True)

    def run_all(self):
        # A command that got through all of its stages begins again.
        self.fresh = self.fresh or not any(map(self.record.is_open, self.chosen))
        scale = self.limit_s / sum(self.share(name) for name in self.chosen)
        plans = {}
        for name in self.chosen:
            plans[name] = self.steps_of(name)
            if name not in self.record.data["stages"]:
                self.record.plan(name, plans[name], False)
        self.record.save()
        end = self.begun
        for name in self.chosen:
            end += scale * self.share(name)
            # Nothing works without a build: it may take all there is.
            limit = self.begun + self.limit_s if name == "build" else end
            self.deadline = limit - min(STAGE_END_S, 0.1 * self.limit_s)
            self.run_stage(name, plans[name])
            if name == "build" and not (self.build / "mnist_ddp").exists():
                raise stages.StopCheck("nothing was built")

    def summary(self):
        """The exit code; what is missing, and how to get it."""
        found = [self.record.data["stages"][name] for name in self.chosen]
        print(f"gpu-check: {self.folder}/tables.md")
        missing = [n for n, s in zip(self.chosen, found) if s["status"] in ("cut", "not run")]
        if missing:
            print("gpu-check: not complete; the same command goes on with what is missing: "
                  f"make gpu-check STAGES='{' '.join(missing)}' RESULTS={self.folder}"
                  + (" QUICK=1" if self.quick else ""))
        if any(record.is_failed(row) for stage in found for row in stage["rows"]):
            return 1
        return 3 if missing else 0


def print_plan(check):
    check.gpus, check.stage = 1, ""
    for name in check.chosen:
        steps = check.steps_of(name)
        print(f"{name}\t{check.share(name)} s\t{len(steps)} steps")
    print(f"all\t{check.limit_s:.0f} s")


def main():
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1] in ("-h", "--help") else 64
    os.chdir(ROOT)
    check = Check(os.environ)
    if is_on("PLAN"):
        print_plan(check)
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda which, frame: sys.exit(128 + which))
    try:
        check.begin()
        check.run_all()
    except stages.StopCheck as reason:
        print(f"gpu-check: {reason}", file=sys.stderr)
        check.summary()
        return 1
    except OSError as error:
        die(f"results could not be written or read: {error}")
    return check.summary()


if __name__ == "__main__":
    sys.exit(main())
