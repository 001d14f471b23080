#!/usr/bin/env bash
# What a training step costs in instructions, as valgrind's callgrind counts them: each model's count,
# and that with --dense, is held to 5 % of the one in step_instructions.txt beside this script. One
# rank, one thread, batch 16; the start does not count: half of what a run of three steps takes more
# than a run of one.
#
#     BUILD_DIR=build SOURCE_DIR=. tests/app/test_step_instructions.sh record
#
# counts anew and accepts that. Compilers differ by more than 5 %: the file says whose counts it has.
set -euo pipefail
kept=$SOURCE_DIR/tests/app/step_instructions.txt
program=$BUILD_DIR/mnist_ddp
skip() { echo "SKIP: $1" && exit 77; }
command -v valgrind >/dev/null || skip "no valgrind here (scripts/install_packages.sh valgrind)"
grep -q avx2 /proc/cpuinfo || skip "the counts are those of AVX2, which this processor has not"
! grep -q '^SANITIZE:STRING=.' "$BUILD_DIR/CMakeCache.txt" || skip "a sanitized build"
compiler=$(readelf -p .comment "$program" | sed -n 's/^ *\[ *0\] *//p')
if [ "${1:-}" != record ] && ! grep -qxF "# $compiler" "$kept"; then
    skip "the counts are those of $(sed -n 's/^# //p' "$kept"), and this is $compiler"
fi

box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
export XDG_CACHE_HOME=$box/cache
# MNIST's four files, small; bytes that look random and are always the same. Of five pixels four are
# background, as MNIST's.
idx() { # FILE HEADER BYTES LARGEST
    # shellcheck disable=SC2059 # the header is all escapes
    { printf "$2" && LC_ALL=C awk -v bytes="$3" -v most="$4" 'BEGIN {
        for (x = 1; bytes-- > 0;) { x = x * 16807 % 2147483647; printf "%c", 1 + x % most } }' |
        if [ "$4" -gt 9 ]; then tr '\031-\177' '\0'; else cat; fi; } >"$box/$1"
}
for split in train t10k; do
    idx $split-images-idx3-ubyte '\0\0\10\3\0\0\0\60\0\0\0\34\0\0\0\34' $((48 * 784)) 127
    idx $split-labels-idx1-ubyte '\0\0\10\1\0\0\0\60' 48 9
done

instructions() { # MODEL STEPS [FLAG]
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" train --model "$1" \
        --batch-size 16 --limit $((16 * $2)) --device cpu --isa avx2 --threads 1 --epochs 1 \
        --eval-every 0 --data-dir "$box" --no-save-model --run-dir "$box/run" --quiet ${3:+"$3"} \
        2>"$box/said" >"$box/printed" ||
        { cat "$box/said" && exit 1; } >&2
    sed -n 's/.*Collected : //p' "$box/said"
}

models=$("$program" help train | sed -n 's/^ *--model \([a-z|]*\).*/\1/p' | tr '|' ' ')
{ echo "# $compiler" && for model in $models; do
    for flag in "" --dense; do
        few=$(instructions "$model" 1 $flag)
        many=$(instructions "$model" 3 $flag)
        echo "$model$flag $(((many - few) / 2))"
    done
done; } >"$box/counted"
cat "$box/counted"
if [ "${1:-}" = record ]; then
    cp "$box/counted" "$kept"
    exit
fi
awk 'NR == FNR { if (!/^#/) kept[$1] = $2; next }
     !/^#/ && $1 in kept { change = 100 * ($2 / kept[$1] - 1); printf "%s: %+.2f %%\n", $1, change
         if (change > 5 || change < -5) bad = 1 }
     !/^#/ && !($1 in kept) { print $1 ": no count is kept"; bad = 1 }
     { delete kept[$1] }
     END { for (model in kept) { print model ": not counted"; bad = 1 }
         if (bad) print "more than 5 %: if that is meant, record anew (see the head of this test)"
           exit bad }' "$kept" "$box/counted"
