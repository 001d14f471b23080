"""The stages of check.py: each a list of steps, the most telling first, planned before any
runs."""
import glob
import itertools
import json
import os
import pathlib
import re
import shutil
import statistics

from training import MODEL_FLAGS, OPERATIONS, reason_not_to_count

IMAGES = 57344  # of an epoch that is timed: all batch sizes divide it
BATCHES = (64, 512, 4096)
EPOCHS = {64: 3, 512: 6, 4096: 12}  # enough to train and to have warmed up
PRECISIONS = {"bf16": ["--amp", "bf16"], "tf32": ["--tf32"], "f32": [], "fp16": ["--amp", "fp16"]}
# Nobody is faster than the libraries in f32: it comes last.
SPEED_PRECISIONS, QUICK_PRECISIONS = ("bf16", "tf32", "f32"), ("bf16", "f32")
PEAK_GOAL = 50  # percent, where the libraries' own kernels are all of the time


class Failed(Exception):
    """A step that failed: why, and the rows that it has all the same."""

    def __init__(self, why, rows=()):
        super().__init__(why)
        self.rows = list(rows)


class SkipStage(Exception):
    """Nothing of this stage can be had here."""


class StopCheck(Exception):
    """Nothing after this makes sense."""


class Step:
    """One program, or one figure: `work(limit_s)` returns the fields of its row, or rows."""

    def __init__(self, table, limit_s, work, **key):
        self.key = dict(table=table, **key)
        self.name = " ".join(map(str, self.key.values()))
        self.limit_s, self.work = limit_s, work


def by_library_alone(precision, batch):
    """Whether the time is the library's: no ratio to another user of it can be asked for."""
    return precision == "f32" and batch == 4096


# --- build ---


def find_nvcc():
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("nvcc", path=os.environ["PATH"] + os.pathsep + home + "/bin")


def cached(check, name):
    """A variable of the build folder's CMakeCache.txt."""
    text = (check.build / "CMakeCache.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{name}:[A-Z]*=(.*)$", text, re.MULTILINE)
    return found.group(1) if found else ""


def version_of(header, *names):
    text = pathlib.Path(header).read_text(encoding="utf-8")
    found = (re.search(rf"^#define\s+{name}\s+(\d+)", text, re.MULTILINE) for name in names)
    return ".".join(number.group(1) for number in found if number)


def configure(check, limit_s):
    nvcc = find_nvcc()
    if nvcc is None:
        raise StopCheck("no nvcc: install the CUDA toolkit, or set CUDA_HOME")
    real = check.machine["compute_capability"].replace(".", "")
    flags = ["-DWITH_GLOO=OFF", "-DWARNINGS_AS_ERRORS=OFF", f"-DNVCC={nvcc}"]
    # A GPU that this nvcc does not know gets the default, whose PTX its driver compiles.
    known = check.run([nvcc, "--list-gpu-code"], limit_s)
    if f"sm_{real}" in known.output.split():
        flags.append(f"-DCUDA_ARCHITECTURES={real}-real")
    if "NVIDIA_PACKAGES" in os.environ:
        flags.append("-DNVIDIA_PACKAGES=" + os.environ["NVIDIA_PACKAGES"])
    if os.path.isdir("gpu-bundle/deps"):
        flags.append(f"-DCMAKE_PREFIX_PATH={os.getcwd()}/gpu-bundle/deps")
    if not (check.build / "CMakeCache.txt").exists() and shutil.which("ninja"):
        flags += ["-G", "Ninja"]
    done = check.run(["cmake", "-S", ".", "-B", check.build, *flags], limit_s)
    for pattern, hint in (
            (r"Could NOT find.*|.*is missing.*", "scripts/gpu_bundle.sh, run elsewhere, brings it"),
            (r"CUDA: left out.*", "NVIDIA_PACKAGES=.../site-packages/nvidia names where they are")):
        found = re.search(pattern, done.output)
        if found and (done.word or "CUDA" in pattern):
            raise StopCheck(f"{found.group().strip()}; {hint}")
    check.need(done)
    if "Check: not found" in done.output:
        check.note = "no library Check: no tests; scripts/gpu_bundle.sh, run elsewhere, brings it"
    rows = [{"what": what, "file": cached(check, f"{what}_LIBRARY")}
            for what in ("cuBLASLt", "cuDNN", "NCCL")]
    rows[1]["version"] = version_of(cached(check, "cuDNN_INCLUDE") + "/cudnn_version.h",
                                    "CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL")
    rows[2]["version"] = version_of(cached(check, "NCCL_INCLUDE") + "/nccl.h", "NCCL_MAJOR",
                                    "NCCL_MINOR", "NCCL_PATCH")
    for tool in (nvcc, "cc", "cmake"):
        said = check.run([tool, "--version"], limit_s).output.strip().splitlines()
        lines = [line for line in said if "release" in line] or said
        rows.append({"what": os.path.basename(tool), "version": lines[0] if lines else "unknown"})
    return [dict(table="tools", **row, result="passed") for row in rows]


def compile_targets(check, limit_s, targets):
    """The tests, as far as they build; the program, or nothing makes sense."""
    is_program = "mnist_ddp" in targets
    keep_going = "-k0" if (check.build / "build.ninja").exists() else "-k"
    done = check.run(["cmake", "--build", check.build, "-j", check.machine["cores"], "--target", *targets,
                      *([] if is_program else ["--", keep_going])], limit_s)
    if done.word and is_program and not done.hung:
        wrong = re.search(r".*(error:|undefined reference|Error ).*", done.output)
        raise StopCheck(f"does not build: {wrong.group().strip() if wrong else done.word}")
    check.need(done)
    return {"seconds": round(done.seconds, 1)}


def build(check, tests):
    yield Step("build", 300, lambda limit: configure(check, limit), what="configure")
    programs = ["mnist_ddp", "modules", "gpu_peak", "gpu_convolutions"]
    yield Step("build", 900, lambda limit: compile_targets(check, limit, programs), what="program")
    targets = sorted({test.split()[0] for test, _ in tests})
    yield Step("build", 900, lambda limit: compile_targets(check, limit, targets), what="tests")


# --- the program's own runs ---


def run_trainer(check, limit_s, flags, env=None, fresh=True):
    folder = check.build / "gpu-check-run"
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    return folder, check.run([check.build / "mnist_ddp", "train", "--device", "cuda", "--quiet",
                              "--run-dir", folder, *flags], limit_s, env=env)


def train(check, limit_s, flags, env=None, fresh=True):
    """One training by the program, as its result.json tells of it, with command_s, the whole time,
    folder, and what it said."""
    folder, done = run_trainer(check, limit_s, flags, env, fresh)
    check.need(done)
    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Failed(f"no result.json that can be read: {error}") from error
    if result.get("emulated") and not check.rehearsal:
        raise StopCheck("this device is an emulation: nothing is measured on it")
    result.update(command_s=done.seconds, folder=folder, said=done.output)
    return result


def accuracy_of(result):
    tested = result.get("test_acc")
    return None if tested is None else round(100 * tested, 2)


def trained_fields(result):
    return {"graph": result.get("graph"), "backend": result["backend"],
            "accuracy_%": accuracy_of(result), "train_s": round(sum(result["train_s"]), 4),
            "setup_s": round(result["setup_s"], 3), "command_s": round(result["command_s"], 2)}


def first_run(check, limit_s, flags):
    result = train(check, limit_s, [*flags.split(), "--epochs", "1", "--no-save-model"])
    wrong = reason_not_to_count(result)
    if wrong:
        raise Failed(wrong, [trained_fields(result)])
    return trained_fields(result)


def first(check):
    """Whether it trains at all: cuBLASLt, graphs, cuDNN, each precision, and more GPUs than one."""
    runs = ["--model mlp", "--model mlp --no-cuda-graph", "--model cnn", "--model cnn --amp bf16",
            "--model cnn --amp fp16", "--model cnn --tf32"]
    if check.gpus > 1:
        runs += ["--model cnn --nproc-per-node 2", "--model cnn --mode dp --devices 0,1"]
    for flags in runs:
        limit_s = 90 if flags == runs[0] else 45  # the first one reads the libraries from the disk
        yield Step("first_runs", limit_s, lambda limit, f=flags: first_run(check, limit, f),
                   flags=flags)


def accuracy(check, limit_s, model, precision, flags, goal):
    result = train(check, limit_s, [*MODEL_FLAGS[model], *PRECISIONS[precision], "--epochs", "3",
                                    *flags.split()])
    wrong = reason_not_to_count(result)
    if wrong or accuracy_of(result) < goal:
        raise Failed(wrong or "accuracy below the goal", [trained_fields(result)])
    return trained_fields(result)


def to_99_percent(check, limit_s, flags, seed):
    """The goal of the whole command leaves out its set-up, which is the driver's and the libraries'
    loading: a second for training, evaluation and the files."""
    result = train(check, limit_s, ["--model", "cnn", "--target-acc", "99", "--epochs", "14",
                                    "--seed", str(seed), *flags.split()])
    fields = trained_fields(result)
    met = (fields["accuracy_%"] >= 99 and fields["train_s"] <= 0.5
           and fields["command_s"] <= fields["setup_s"] + 1)
    return {"epochs": len(result["train_s"]), **fields, "goal_train_s": 0.5,
            "goal_command_s": round(fields["setup_s"] + 1, 2), "result": "met" if met else "missed"}


def training(check):
    spreads = [(1, ""), (1, "--no-cuda-graph"), (2, "--backend shm --nproc-per-node 2")]
    spreads += [(n, f"--backend nccl --nproc-per-node {n}") for n in sorted({2, check.gpus})
                if 1 < n <= check.gpus]
    for model, goal in (("mlp", 97.5), ("cnn", 98.5)):
        for ranks, flags in spreads:
            for precision in ("f32", "bf16") if ranks > 1 else ("f32", "tf32", "bf16", "fp16"):
                yield Step("accuracy", 90, lambda limit, m=model, p=precision, f=flags, g=goal:
                           accuracy(check, limit, m, p, f, g), model=model, precision=precision,
                           ranks=ranks, flags=flags, **{"goal_%": goal})
    adam = "--batch-size 512 --optimizer adam --lr 0.003 --gamma 0.8"
    for flags in ("--amp bf16 " + adam, "--amp bf16 --batch-size 256 --optimizer adam --lr 0.002",
                  "--tf32 " + adam, ""):
        for seed in (1, 2, 3):
            yield Step("to_99_percent", 60, lambda limit, f=flags, s=seed:
                       to_99_percent(check, limit, f, s), flags=flags or "defaults", seed=seed)


# --- tests and sanitizers ---

# What tells most comes first; what is not named here follows.
TESTS = ["test_model golden --device=cuda", "test_kernels cuda_step", "test_kernels cuda_shapes",
         "test_kernels cuda_conv", "test_kernels cuda_device", "test_model network --device=cuda",
         "test_dist nccl_graph"]
LIMITS = {"test_app cuda": 330, "test_dist nccl": 120, "test_dist nccl_deaths": 120}
OWN_PROGRAM = "test_kernels cuda_descriptors"  # it is linked with cuDNN itself
EMULATED_ONLY = ("test_app cuda_faults", "test_kernels cuda_conv_faults")
# Some 300 tests, of which each would start CUDA: all of a program in one process, for so long at most.
ONE_PROCESS, ONE_PROCESS_S = ("test_kernels ", "test_model "), 40
LAUNCH_KERNELS = ("step", "shapes", "conv", "device")  # others launch nothing of ours


def limit_of(test):
    """What starts the program many times takes longer."""
    one_process_s = ONE_PROCESS_S if test.startswith(ONE_PROCESS) else 0
    return LIMITS.get(test, 180 if test.startswith("test_app") else 60 + one_process_s)


def test_programs(quick):
    """(program with its arguments, limit in seconds)"""
    found = sorted(glob.glob("tests/*/test_*cuda*.c") + glob.glob("tests/dist/test_nccl*.c"))
    others = [re.sub(r"tests/(.*)/test_(.*)\.c", r"test_\1 \2", path) for path in found]
    others = [n.replace(OWN_PROGRAM, OWN_PROGRAM.replace(" ", "_")) for n in others]
    others.sort(key=limit_of)
    names = TESTS if quick else TESTS + [n for n in others if n not in (*TESTS, *EMULATED_ONLY)]
    return [(name, limit_of(name)) for name in names]


def test_environment(check, **more):
    return dict(os.environ, MNIST_DDP_TEST_DEVICE="real", BUILD_DIR=str(check.build.resolve()),
                SOURCE_DIR=os.getcwd(), **more)


def missing_programs(folder, names, quick):
    """Programs that the stages `names` run and that are not built."""
    wanted = ["mnist_ddp"]
    if "test" in names:
        wanted += [test.split()[0] for test, _ in test_programs(quick)]
    if "sanitize" in names:
        wanted.append("test_kernels")
    return [name for name in dict.fromkeys(wanted) if not (folder / name).exists()]


def run_tests_of(check, limit_s, command, **env):
    """How a test program ended, the fields of its row, and the first test that failed. What its tests
    said one by one is in a file, as a program that is cut tells nothing else."""
    each = check.build.resolve() / "running.tap"
    done = check.run(command, limit_s, cwd=check.build,
                     env=test_environment(check, CK_TAP_LOG_FILE_NAME=str(each), **env))
    lines = each.read_text(errors="replace").splitlines() if each.exists() else []
    each.unlink(missing_ok=True)
    bad = [re.sub(r"^not ok \d+ - ", "", line)[:200] for line in lines if line.startswith("not ok")]
    good = sum(line.startswith("ok") for line in lines)
    if done.word is None and not good:
        done.word = "ran no test"
    fields = {"passed": good, "failed": len(bad), "seconds": round(done.seconds, 1)}
    return done, fields, bad[0] if bad else ""


def run_test(check, limit_s, test):
    """A test program: if ONE_PROCESS names it, without forks first. Only if that fails, and for all
    others, each test is a process: one that crashes or hangs has a name then. Where it would hang for
    a minute, a quarter of that is enough here."""
    program, *arguments = test.split()
    if not (check.build / program).exists():
        raise Failed(f"{program} is not built")
    command, end = [check.build.resolve() / program, *arguments], check.now() + limit_s
    together, forks = "", {"CK_FORK": "yes"}
    if test.startswith(ONE_PROCESS):
        forks["CK_TIMEOUT_MULTIPLIER"] = "0.25"
        done, fields, failed = run_tests_of(check, min(limit_s, ONE_PROCESS_S), command, CK_FORK="no")
        together = done.word if done.code != 77 else ""
    if not test.startswith(ONE_PROCESS) or (together and end - check.now() > 1):
        done, fields, failed = run_tests_of(check, end - check.now(), command, **forks)
    if done.code == 77 and "no GPU here" not in done.output:
        return dict(fields, result="skipped: " + done.last_line())
    check.need(done, [dict(fields, first_failed=failed)])
    if together:
        raise Failed(f"{together} with all tests in one process; passed with a process each", [fields])
    return fields


def tests(check, programs):
    for test, limit_s in programs:
        yield Step("tests", limit_s, lambda limit, t=test: run_test(check, limit, t), test=test)


def sanitize(check, limit_s, tool, test):
    """In one process (CK_FORK=no): a sanitizer sees each context start. Some tests make calls that
    must fail, which memcheck alone would count."""
    program, name = test.split()
    beside = os.path.dirname(cached(check, "NVCC"))
    sanitizer = shutil.which("compute-sanitizer", path=os.environ["PATH"] + os.pathsep + beside)
    if sanitizer is None:
        raise SkipStage("no compute-sanitizer here")
    flags = ["--report-api-errors", "no"] if tool == "memcheck" else []
    done, fields, failed = run_tests_of(
        check, limit_s, [sanitizer, "--tool", tool, *flags, "--target-processes", "all",
                         "--error-exitcode", "9", check.build.resolve() / program, name], CK_FORK="no")
    if re.search("device not supported|not supported on|unable to find injection", done.output,
                 re.IGNORECASE):
        raise SkipStage("compute-sanitizer refuses this device")
    if done.code == 77:
        return dict(fields, result="skipped: " + done.last_line())
    check.need(done, [dict(fields, first_failed=failed)])
    return fields


def sanitizers(check):
    for tools in (("memcheck", "initcheck"), ("racecheck",)):
        for name, tool in itertools.product(LAUNCH_KERNELS, tools):
            test = f"test_kernels cuda_{name}"
            yield Step("sanitizers", 120, lambda limit, tool=tool, test=test:
                       sanitize(check, limit, tool, test), tool=tool, test=test)


# --- bench ---


def printed_rows(done):
    """A program's lines "table=...<TAB>key=value...", the last one only if it is whole."""
    lines = done.output[:done.output.rfind("\n") + 1].splitlines()
    for line in lines:
        if line.startswith("table="):
            row = dict(field.split("=", 1) for field in line.split("\t") if "=" in field)
            numbers = {key: float(value) for key, value in row.items()
                       if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value)}
            yield dict(row, **numbers, result="measured")


def measured_rows(check, command, limit_s):
    done = check.run(command, limit_s)
    rows = list(printed_rows(done))
    check.need(done, rows)
    if not rows:
        raise Failed("printed no figure")
    return rows


def peak_of(check, what):
    for row in check.record.rows("bench"):
        if row["table"] == "peak" and row.get("what") == what:
            return row["value"]
    return None


def peak_tflops(check, precision):
    peaks = [peak_of(check, precision)] + [peak_of(check, "fma_f32")] * (precision == "f32")
    return max((peak for peak in peaks if peak), default=None)


def peak_share(check, model, precision, speed):
    """Percent of the measured peak at which the arithmetic of `speed` images/s runs."""
    peak = peak_tflops(check, precision)
    return round(100 * speed * OPERATIONS[model] / peak / 1e12, 1) if peak else None


def convolutions(check, limit_s, precision):
    peak, copy = peak_tflops(check, precision), peak_of(check, "copy")
    if not peak or not copy:
        raise Failed("the peaks were not measured")
    return measured_rows(check, [check.build / "gpu_convolutions", precision, peak, copy], limit_s)


def speed_of(check, limit_s, model, precision, batch, env=None, flags=()):
    result = train(check, limit_s, [
        *MODEL_FLAGS[model], *PRECISIONS[precision], "--batch-size", str(batch), "--epochs",
        str(EPOCHS[batch]), "--limit", str(IMAGES), "--gamma", "1", "--no-save-model", *flags], env)
    wrong = reason_not_to_count(result)
    if wrong:
        raise Failed(f"does not count: {wrong}")
    return result


def chosen_by(result):
    """What the libraries chose for the batches that are timed, and what they would not do."""
    libraries = result.get("libraries") or {}
    engines = [f"{one['pass']} {one['engine']}" for one in libraries.get("cudnn", [])
               if one["batch"] == result["batch"]]
    refused = sorted({one["pass"] for one in libraries.get("cublaslt", [])})
    return {"cudnn_engines": ", ".join(engines), "cublaslt_refused": ", ".join(refused)}


def throughput(check, limit_s, model, precision, batch):
    end = check.now() + limit_s
    results = [speed_of(check, end - check.now(), model, precision, batch)
               for _ in range(check.pairs)]
    speeds = [result["images_per_s"] for result in results]
    fields = {"images_per_s": statistics.median(speeds), "runs": " ".join(map(str, speeds)),
              "accuracy_%": accuracy_of(results[-1]),
              "of_peak_%": peak_share(check, model, precision, statistics.median(speeds)),
              **chosen_by(results[-1]), "result": "measured"}
    if by_library_alone(precision, batch):
        fields.update({"goal_of_peak_%": PEAK_GOAL, **judged(fields["of_peak_%"], PEAK_GOAL)})
    return fields


def beside_ddp(check, limit_s, model, mode):
    """What a mode costs: the same model and whole batch, on all GPUs."""
    n = check.gpus
    devices = ",".join(map(str, range(n)))
    ranks = ["--nproc-per-node", str(n)]
    flags = {"ddp": ranks, "elastic": [*ranks, "--nnodes", "1:1", "--standalone"],
             "dp": ["--mode", "dp", "--devices", devices, "--batch-size", str(64 * n)]}[mode]
    result = speed_of(check, limit_s, model, "bf16", 64, flags=flags)
    speed, ddp = result["images_per_s"], None
    for row in check.record.rows("bench"):
        if row["step"] == f"modes {model} ddp":
            ddp = row.get("images_per_s")
    return {"ranks": n, "images_per_s": speed, "graph": result.get("graph"), "result": "measured",
            "of_ddp_%": round(100 * speed / ddp) if ddp else None}


def judged(figure, goal):
    if figure is None:
        return {"result": "measured, but no peak to hold it to: STAGES=bench"}
    return {"result": "met" if figure >= goal else "missed"}


def bench(check, quick):
    precisions = QUICK_PRECISIONS if quick else SPEED_PRECISIONS
    yield Step("peak", 60, lambda limit: measured_rows(check, [check.build / "gpu_peak"], limit))
    for precision in precisions:
        yield Step("convolutions", 60, lambda limit, p=precision: convolutions(check, limit, p),
                   precision=precision)
    for precision in precisions:
        for model in MODEL_FLAGS:
            for batch in BATCHES:
                yield Step("throughput", 60, lambda limit, m=model, p=precision, b=batch:
                           throughput(check, limit, m, p, b), model=model, precision=precision,
                           batch=batch)
    for model in MODEL_FLAGS if not quick else ():
        for mode in ("ddp", "elastic", "dp"):
            yield Step("modes", 60, lambda limit, m=model, k=mode: beside_ddp(check, limit, m, k),
                       model=model, mode=mode)
