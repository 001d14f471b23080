#!/usr/bin/env python3
"""Whether the simulator and the tests notice: breaks the kernels, in one place at a time.

  mutants.py [NUMBER ...]

Each mutant is compiled for sm_90, and the test that drives its kernels must fail as the mutant
says: by a report of the simulator, or because the result is another one (WRONG)."""
import re
import shutil
import sys

import run

BARRIER = "    __syncthreads();\n"
SHARED, RACE, BOUNDS = r"race: |nobody wrote", "race: reads", "out of bounds"
ALIGNMENT, WRONG = "misaligned", r":F:"
TESTS = {"conv_first": ("cuda_conv",), "conv_sums": ("cuda_conv",),
         "pool": ("cuda_shapes", "cuda_conv")}  # of a file's kernels; else cuda_shapes alone
FENCED = "    __threadfence();\n" + BARRIER + "    if"
SUMS, CLEARING = "    float sums[OUTPUTS] = {};", "    for (unsigned c = threadIdx.x"
FETCH = "        fetch_image(l, x, image + l.step, &pixels);\n        const float *from"
PUT, LANE = "put_image(pixels, tile);\n", "    float sum = 0.0f;\n    for (unsigned b = lane"
RUN = "if (aligned && at + RUN <= all.count) {"
MUTANTS = [  # the file, what is replaced, by what, how it must end
    ("loss", BARRIER + "    loss_partial sum", "    loss_partial sum", SHARED),
    ("loss", "        __threadfence();\n        last[0]", "        last[0]", RACE),
    ("loss", "gridDim.x - 1;\n        __threadfence();", "gridDim.x - 1;", RACE),
    ("loss", "i < (size_t)job.in.n; i", "i <= (size_t)job.in.n; i", BOUNDS),
    ("loss", "row[c] > largest", "row[c] >= largest", WRONG),
    ("skinny_linear", FENCED, BARRIER + "    if", RACE),
    ("skinny_linear", FENCED, "    __threadfence();\n    if", RACE),
    ("skinny_linear", BARRIER + SUMS, SUMS, SHARED),
    ("skinny_linear", "if (i >= s.n)", "if (i > s.n)", BOUNDS),
    ("pool", BARRIER + CLEARING, CLEARING, SHARED),
    ("pool", "if (at.i >= s.n)", "if (at.i > s.n)", BOUNDS),
    ("pool", "CODE_BITS * i) & 3u;", "CODE_BITS * i) & 1u;", WRONG),
    ("pool", "item / s.blocks", "item / (s.blocks / 999999)", "divides by zero"),
    ("conv_first", PUT + "    " + BARRIER + FETCH, PUT + FETCH, SHARED),
    ("conv_first", "tile = tile == tiles ? tiles + MAX_PIXELS : tiles;", "", SHARED),
    ("conv_first", "here ? 0 : to_next", "0", WRONG + "|" + BOUNDS),
    ("step", "if (job.aligned) {", "if (true) {", ALIGNMENT + "|" + WRONG),
    ("step", BARRIER, "", SHARED),
    ("clip", BARRIER, "", SHARED),
    ("conv_sums", LANE, "    if (lane > 30) return;\n" + LANE, "divergence"),
    ("linear_epilogue", BARRIER, "", SHARED),
    ("linear_epilogue", ">> first % DROPOUT_BLOCK;", ";", WRONG),
    ("optimizer", RUN, "if (aligned && at < all.count) {", BOUNDS),
    ("optimizer", RUN, "if (at + RUN <= all.count) {", ALIGNMENT),
]


def source_of(number):
    """The file, as it is and as the mutant has it."""
    name, old, new, _ = MUTANTS[number]
    source = next(s for s in run.sources("sm_90") if s.stem == name)
    text = source.read_text()
    if old not in text:
        sys.exit(f"mutants.py: mutant {number}: {name}.cu has no longer: {old}")
    return source, text.replace(old, new)


def try_one(number):
    """What noticed it; None if nothing did."""
    source, text = source_of(number)
    name, expected = source.stem, MUTANTS[number][3]
    parts = run.sources("sm_90")
    folder = run.BUILD / "tests/ptx/mutant"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    changed = folder / source.name
    changed.write_text(text)
    del parts[source]
    run.build("sm_90", parts | {changed: folder / name}, folder)
    for test in TESTS.get(name, ("cuda_shapes",)):
        code, output = run.run_test(f"test_kernels {test}", folder)
        found = re.search(rf".*({expected}).*", output)
        if found and code != 0:
            return found.group()
    return None


def main():
    chosen = [int(word) for word in sys.argv[1:]] or range(len(MUTANTS))
    missed = []
    if not run.settings()[0]:
        sys.exit("mutants.py: no nvcc, or this build is for a sanitizer")
    for number in chosen:
        source_of(number)
    for number in chosen:
        noticed = try_one(number)
        missed += [number] if noticed is None else []
        print(f"{number} {MUTANTS[number][0]}: {noticed or 'MISSED'}", flush=True)
    print(f"{len(missed)} of {len(chosen)} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
