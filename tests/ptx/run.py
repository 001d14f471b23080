#!/usr/bin/env python3
"""Executes the kernels' PTX, as nvcc makes it, under the project's own tests of the cuda device.

  run.py [--write] [--quick] [sm_90 ...]

For each architecture: nvcc compiles the kernels and what launches them; translate.py makes C++ of
the PTX; with the stand-ins of tests/emulator for CUDA's libraries that is a module, and the tests
run on it. It fails if a test fails, as one does with the simulator's first report; if a kernel
takes more registers, shared memory, stack or spills than kernels.txt says; or if more of its basic
blocks are never reached. --write writes kernels.txt anew. Why blocks are not reached stands in
unreached.txt. --quick leaves out the longest test, which reaches nothing of its own.
"""
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import translate

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("BUILD_DIR", SOURCE / "build")).resolve()
TABLE, REASONS = HERE / "kernels.txt", HERE / "unreached.txt"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
COLUMNS = ("registers", "shared", "stack", "spilled", "unreached")
TESTS = ("test_model golden --device=cuda", "test_model network --device=cuda",
         "test_kernels cuda_conv", "test_kernels cuda_shapes", "test_dist nccl_graph",
         "test_kernels cuda_step")
LIMIT_S = 800
CORES = len(os.sched_getaffinity(0))


class Failure(Exception):
    """Ends the run; its text says why."""


def settings():
    """nvcc, its options for headers, the host's compiler, objects to link."""
    lines = (BUILD / "tests/ptx/settings.txt").read_text().split("\n")
    return lines[0], lines[1].split(";"), lines[2], lines[3].split(";")


def sources(architecture):
    """{each .cu: the folder of what is made of it}."""
    files = [*SOURCE.glob("kernels/cuda/*.cu"), *SOURCE.glob("dist/backends/nccl/*.cu")]
    return {file: BUILD / "tests/ptx" / architecture / file.stem for file in sorted(files)}


def command(*words):
    """What it printed."""
    words = [str(word) for word in words]
    done = subprocess.run(words, timeout=LIMIT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def is_made(source, folder):
    """Whether it is younger than all that the kernels of a .cu depend on."""
    files = [f for part in ("kernels", "dist/backends/nccl", "base", "tests/emulator/include")
             for f in (SOURCE / part).rglob("*.*h")]
    files += [HERE / "run.py", HERE / "translate.py", HERE / "simulator.h", source]
    last = folder / "ptx.o"
    return last.exists() and max(f.stat().st_mtime for f in files) < last.stat().st_mtime


def compile_kernels(source, architecture, folder):
    """Of one .cu: host.o; ptx.o with the translated PTX; its list of blocks; what ptxas says."""
    nvcc, includes, compiler, _ = settings()
    if is_made(source, folder):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    said = command(nvcc, "-c", "-O3", "-lineinfo", "-std=c++17", "-D_GNU_SOURCE", f"-I{SOURCE}",
                   *includes, f"-arch={architecture}", "-cudart=none", "-Xptxas=-v",
                   "-Xcompiler=-fPIC,-fvisibility=hidden", "-keep", "-keep-dir", folder, source,
                   "-o", folder / "host.o")
    (folder / "ptxas.txt").write_text(said)
    translate.Module(folder / f"{source.stem}.ptx").write(folder / "ptx.cc")
    command(compiler, "-std=c++17", "-march=native", "-O1", "-fwrapv", "-fno-strict-aliasing",
            "-fno-math-errno", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-w",
            f"-I{SOURCE / 'tests/emulator/include'}", f"-I{SOURCE}", "-c", folder / "ptx.cc",
            "-o", folder / "ptx.o")


def build(architecture, parts, folder):
    """Makes <folder>/mnist_ddp_cuda_emulated.so of `parts`, as sources() returns them."""
    _, _, compiler, objects = settings()
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(lambda source: compile_kernels(source, architecture, parts[source]), parts))
    command(compiler, "-shared", "-o", folder / "mnist_ddp_cuda_emulated.so", *objects,
            *(part / name for part in parts.values() for name in ("host.o", "ptx.o")),
            "-lrt", "-lpthread", "-lm")


def run_test(words, folder):
    """Its exit code and what it printed."""
    program, *rest = words.split()
    coverage = folder / "covered"
    coverage.mkdir(exist_ok=True)
    variables = dict(os.environ, BUILD_DIR=str(folder), SOURCE_DIR=str(SOURCE),
                     PTX_COVERAGE=str(coverage))
    done = subprocess.run([BUILD / program, *rest], cwd=folder, env=variables, timeout=LIMIT_S,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def complaints(output):
    """The simulator's reports, each once; else what failed."""
    lines = list(dict.fromkeys(re.findall(r"emulated device: .*", output)))
    return lines or re.findall(r".*:[FE]:.*", output)[:10] or [output[-500:]]


def resources(part):
    """{symbol: [registers, shared, stack, spilled]}, as ptxas says."""
    found = {}
    for text in (part / "ptxas.txt").read_text().split("Compiling entry function '")[1:]:
        numbers = [re.search(rf"(\d+) {unit}", text) for unit in
                   ("registers", "bytes smem", "bytes stack frame", "bytes spill stores")]
        found[text.split("'")[0]] = [int(n.group(1)) if n else 0 for n in numbers]
    return found


class Kernel:
    """A kernel or a function that kernels call: what it takes, and what of it ran."""

    def __init__(self, taken):
        self.taken, self.launches, self.blocks, self.unreached = taken, None, 0, []

    def numbers(self):
        return [*(self.taken or [0] * 4), len(self.unreached)]


def read_kernels(part, covered):
    """{title: Kernel} of a .cu."""
    taken, kernels = resources(part), {}
    rows = [line.split("\t") for line in (part / "ptx.blocks").read_text().splitlines()]
    for symbol, title, _ in rows:
        kernels.setdefault(title, Kernel(taken.get(symbol)))
    launched = [kernel for kernel in kernels.values() if kernel.taken]
    file = covered / part.name
    data = file.read_bytes() if file.exists() else bytes(10**6)
    for k, kernel in enumerate(launched):
        kernel.launches = int.from_bytes(data[4 * k:4 * k + 4], sys.byteorder)
    for (_, title, where), ran in zip(rows, data[4 * len(launched):]):
        kernels[title].blocks += 1
        kernels[title].unreached += [] if ran else [where]
    return kernels


def read_table():
    """The nvcc that it is of; {title: {architecture: numbers}}."""
    version, *lines = TABLE.read_text().splitlines()
    rows = {}
    for line in lines:
        if not line.startswith("#"):
            title, *cells = re.split(r"  +", line)
            rows[title] = {a: list(map(int, cell.split("/")))
                           for a, cell in zip(ARCHITECTURES, cells) if cell != "-"}
    return version.removeprefix("# "), rows


def write_table(version, rows):
    lines = [f"# {version}", f"# What run.py --write found: {'/'.join(COLUMNS)} (bytes, blocks).",
             f"# {'kernel':42}" + "".join(f"  {a:16}" for a in ARCHITECTURES).rstrip()]
    for title, cells in sorted(rows.items()):
        words = ["/".join(map(str, cells[a])) if a in cells else "-" for a in ARCHITECTURES]
        lines.append((f"{title:44}" + "".join(f"  {word:16}" for word in words)).rstrip())
    TABLE.write_text("\n".join(lines) + "\n")


def excesses(title, kernel, allowed):
    """What of the kernel is more than the table allows; the blocks that nobody has explained."""
    if allowed is None:
        return [f"{title}: not in {TABLE.name}: run.py --write"]
    found = [f"{title}: {number} {column}, of {most} at most"
             for column, number, most in zip(COLUMNS, kernel.numbers(), allowed) if number > most]
    explained = any(fnmatch.fnmatch(title, line.split("  ")[0])
                    for line in REASONS.read_text().splitlines())
    if kernel.unreached and not (explained and len(kernel.unreached) <= allowed[-1]):
        counts = {where: kernel.unreached.count(where) for where in kernel.unreached}
        found.append(f"{title}: not reached, or not explained in {REASONS.name}: " + ", ".join(
            f"{where} ({n})" for where, n in counts.items()))
    return found


def run(architecture, tests, write):
    """Whether all is as it should be."""
    folder, parts = BUILD / "tests/ptx" / architecture, sources(architecture)
    build(architecture, parts, folder)
    shutil.rmtree(folder / "covered", ignore_errors=True)
    with ThreadPoolExecutor(CORES) as pool:
        ended = list(pool.map(lambda test: run_test(test, folder), tests))
    wrong = []
    for test, (code, output) in zip(tests, ended):
        print(f"{architecture}: {test}: {'passed' if code == 0 else 'FAILED'}", flush=True)
        if code != 0:
            wrong += [f"{test}: {line}" for line in complaints(output)]
    kernels = {}
    for part in parts.values():
        kernels |= read_kernels(part, folder / "covered")
    for title, k in sorted(kernels.items()):
        print(f"{title:46}{'' if k.launches is None else k.launches:>6} launches, "
              f"{k.blocks - len(k.unreached)} of {k.blocks} blocks")
    wrong += hold(architecture, kernels, write)
    print(*wrong, sep="\n")
    print(f"{architecture}: {sum(k.launches or 0 for k in kernels.values())} launches, "
          f"{sum(k.blocks - len(k.unreached) for k in kernels.values())} of "
          f"{sum(k.blocks for k in kernels.values())} blocks, {len(wrong)} wrong", flush=True)
    return not wrong


def hold(architecture, kernels, write):
    """What is wrong with the kernels, by the table."""
    of, rows = read_table()
    here = re.search(r"release.*", command(settings()[0], "--version")).group()
    if write:
        rows = {title: cells for title, cells in rows.items() if title in kernels and of == here}
        for title, kernel in kernels.items():
            rows.setdefault(title, {})[architecture] = kernel.numbers()
        write_table(here, rows)
    elif of != here:
        print(f"SKIP of {TABLE.name}: it is of nvcc {of}, and here is {here}")
        return []
    return [line for title, kernel in sorted(kernels.items())
            for line in excesses(title, kernel, rows.get(title, {}).get(architecture))]


def main():
    flags = {word for word in sys.argv[1:] if word.startswith("-")}
    words = [word for word in sys.argv[1:] if word not in flags]
    if not set(words) <= set(ARCHITECTURES) or not flags <= {"--write", "--quick"}:
        sys.exit(__doc__)
    if not settings()[0]:
        print("SKIP: no nvcc, or this build is for a sanitizer")
        return 77
    tests = TESTS[1:] if "--quick" in flags else TESTS
    good = [run(one, tests, "--write" in flags) for one in words or ARCHITECTURES]
    return 0 if all(good) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, translate.Unknown, subprocess.TimeoutExpired) as why:
        sys.exit(f"run.py: {why}")
