#!/usr/bin/env bash
# bench/gpu/check.py ('make gpu-check') without a GPU: programs that only pretend stand in for the
# driver, the build, the trainer, the tests, the measurements and torch, and hang, crash or talk
# nonsense when told to. What is made of their figures, and what stays of a check that is cut.
set -euo pipefail
command -v python3 >/dev/null || { echo "SKIP: no python3 here" && exit 77; }
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
cd "$SOURCE_DIR"
# shellcheck source=/dev/null
. tests/support/facts.sh
mkdir -p "$box/bin" "$box/made" "$box/include" "$box/data" "$box/does"
touch "$box/data/train-images-idx3-ubyte" "$box/made/modules"
printf '#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 19\n' >"$box/include/cudnn_version.h"
printf '#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n' >"$box/include/nccl.h"

# does NAME WHAT [MORE]: what the stand-in NAME does instead of its work (where MORE is among its
# arguments), until it works again.
does() { echo "$2 ${3:-}" >"$box/does/$1"; }
works() { rm -f "$box/does/$1"; }
cat >"$box/misdeed" <<'EOF'
act() { # NAME ARGUMENTS...
    { read -r misdeed where <"$BOX/does/$1"; } 2>/dev/null || return 0
    shift
    [[ -z $where || " $* " == *" $where "* ]] || misdeed=
    case $misdeed in
    hang) echo $$ >"$BOX/hanging" && echo "last words" >&2 && exec sleep 60 ;;
    stubborn) trap '' TERM && echo $$ >"$BOX/hanging" && while :; do sleep 0.1; done ;;
    crash) echo "about to crash" >&2 && kill -SEGV $$ ;;
    fail) echo "out of luck" && exit 70 ;;
    skip) echo "SKIP: no GPU here: out of luck" && exit 77 ;;
    esac
}
EOF

pretend() { # FILE, the script on stdin
    # shellcheck disable=SC2016 # expanded in the script
    { echo '#!/bin/bash' && echo '. "$BOX/misdeed"' && cat; } >"$1"
    chmod +x "$1"
}
pretend "$box/bin/nvidia-smi" <<'EOF'
[ "$1" = -L ] && { seq "$(cat "$BOX/gpus")" && exit; }
echo "NVIDIA Pretender 1, 1000, 580.1, 9.0"
EOF
pretend "$box/bin/nvcc" <<'EOF'
case $1 in --list-gpu-code) echo sm_90 ;; *) echo "release 13.0, V13.0.1" ;; esac
EOF
# Configures, and builds what it is asked for out of the stand-ins in $BOX/made.
pretend "$box/bin/cmake" <<'EOF'
[ "$1" != --version ] || { echo "cmake version 3.28" && exit; }
act cmake "$@"
if [ "$1" = -S ]; then
    echo "$*" >>"$BOX/flags"
    for name in cuBLASLt cuDNN NCCL; do
        echo "${name}_LIBRARY:FILEPATH=/lib/$name.so" && echo "${name}_INCLUDE:PATH=$BOX/include"
    done >"$4/CMakeCache.txt"
    echo "NVCC:FILEPATH=$BOX/bin/nvcc" >>"$4/CMakeCache.txt"
    [ "$misdeed" != lack ] || echo "-- CUDA: left out (no cuDNN); --device=cuda is not there"
    exit 0
fi
for target in "${@:6}"; do
    case $target in
    test_*) cp "$BOX/made/a_test" "$2/$target" ;;
    -*) ;;
    *) cp "$BOX/made/$target" "$2/" ;;
    esac
done
EOF
# 300, 100, 200 images/s and so on: the median is 200.
pretend "$box/made/mnist_ddp" <<'EOF'
act trainer "$@"
timing='{"time_us": 9.5, "busbw": 12.1, "wrong": 0}'
[ "$1" != bench ] || { echo '{"rows": [{"bytes": 65536, "in_place": '$timing'}]}' && exit; }
echo "autotune ${MNIST_DDP_CUDA_AUTOTUNE:-unset}" >>"$BOX/tuned"
read -r speed 2>/dev/null <"$BOX/speed" || speed=0
echo $((speed = (speed + 1) % 3)) >"$BOX/speed"
while [ "$1" != --run-dir ]; do shift; done
mkdir -p "$2"
[ "$misdeed" != mute ] || exit 0
[ "$misdeed" != garble ] || { echo '{"train_s": [' >"$2/result.json" && exit; }
case "$*" in
*kill:rank=1*) echo "rank 1 was killed" && exit 137 ;;
*stop:rank=1*) echo "rank 1 is stopped" && exit 110 ;;
esac
algorithm=RING
[ "$misdeed" != waver ] || algorithm=NVLS
[ "${NCCL_DEBUG:-}" != INFO ] ||
    echo "NCCL INFO AllReduce: 4718592 Bytes -> Algo $algorithm proto LL128 channel{Lo..Hi}={0..15}"
bits=1
[ "$misdeed" != waver ] || bits=$RANDOM$RANDOM
echo $bits >"$2/model.safetensors"
emulated=false
[ "$misdeed" != emulate ] || emulated=true
libraries='{"cudnn":[{"pass":"data","batch":64,"engine":12}],"cublaslt":[{"pass":"drelu"}]}'
echo '{"graph":true,"backend":"none","emulated":'$emulated',"train_s":[0.1,0.025],"batch":64,' \
    '"images_per_s":'$((speed + 1))00',"setup_s":0.5,"test_acc":0.9912,"last_loss":0.01,' \
    '"libraries":'"$libraries"'}' >"$2/result.json"
EOF
pretend "$box/made/gpu_peak" <<'EOF'
for what in copy fma_f32 f32 tf32 bf16; do
    printf 'table=peak\twhat=%s\tvalue=0.001\tunit=TFLOP/s\n' $what
done
act peak
EOF
pretend "$box/made/gpu_convolutions" <<'EOF'
printf 'table=convolutions\tprecision=%s\tpeak=%s\tcopy=%s\n' "$@"
EOF
pretend "$box/made/a_test" <<'EOF'
echo "fork $CK_FORK ${MNIST_DDP_TEST_DEVICE:-emulated}" >>"$BOX/tests"
until [ -s "$BOX/holder" ]; do sleep 0.02; done # a process of its own
kill -0 "$(cat "$BOX/holder")" || exit 1
each=${CK_TAP_LOG_FILE_NAME:-/dev/null}
[ ! -e "$BOX/does/no_tests" ] || exit 0
echo 'ok 1 - t.c:core:fine: Passed' >>"$each"
act test "$(basename "$0")" "$@"
[ "$misdeed $CK_FORK" != "crash_unforked no" ] || kill -SEGV $$
[ "$misdeed" != err ] || { echo 'not ok 2 - t.c:core:sums: off by 3' >>"$each" && exit 1; }
exit 0
EOF
# Counts a failed call where it is not told otherwise; only memcheck knows how.
pretend "$box/bin/compute-sanitizer" <<'EOF'
act sanitizer "$@"
case "$*" in
"--tool memcheck --report-api-errors no --target-processes all --error-exitcode 9 "*) ;;
"--tool initcheck --target-processes all --error-exitcode 9 "*) ;;
"--tool racecheck --target-processes all --error-exitcode 9 "*) ;;
*) exit 9 ;;
esac
"${@: -2}"
EOF
pretend "$box/bin/fake_python" <<'EOF'
echo "$*" >>"$BOX/peers"
act torch start
[ "$misdeed" != lack ] || { echo '{"ready": false, "reason": "python3 has no torch"}' && exit; }
echo '{"ready": true, "torch": "0.0", "cuda": "0.0", "cudnn": 1}'
while read -r request; do
    act torch "${request// /_}"
    loss=0.1
    [ "$misdeed" != nan ] || loss='"nan"'
    [ "$misdeed" != garble ] || { echo "no JSON" && continue; }
    echo '{"images_per_s": 50, "train_s": [1.0], "test_acc": 0.95, "last_loss": '$loss'}'
done
EOF

# The driver tells who holds a context open.
cc -shared -fPIC -o "$box/libcuda.so.1" tests/support/preload/libcuda.c
export BOX=$box HOLDER=$box/holder LD_LIBRARY_PATH=$box${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
results=$box/results
become_check() { # SETTING=VALUE...
    rm -f "$box/holder"
    exec env PATH="$box/bin:$PATH" RESULTS="$results" GPU_BUILD="$box/build" COMMIT=abc123 \
        PYTHON=fake_python MNIST_DDP_DATA="$box/data" "$@" python3 bench/gpu/check.py \
        >"$box/log" 2>&1
}
exits() { # CODE SETTING=VALUE...
    local code=0
    (become_check "${@:2}") || code=$?
    [ "$code" = "$1" ] || { echo "exit $code, not $1: ${*:2}" && cat "$box/log" && exit 1; }
}
expect() { # TEXT [FILE]
    local file=${2:-$results/results.json}
    grep -qF -- "$1" "$file" || { echo "no \"$1\" in $file:" && cat "$file" "$box/log" && exit 1; }
}
expect_facts() { # FILE FACT...: a line of the file has them all
    facts_in_a_line "$(cat "$1")" "${@:2}" ||
        { echo "no line with ${*:2} in $1:" && cat "$1" "$box/log" && exit 1; }
}
counts() { # N TEXT [FILE]
    local found
    found=$(grep -cF -- "$2" "${3:-$results/results.json}" || true)
    [ "$found" = "$1" ] || { echo "$found times, not $1: $2" && cat "$box/log" && exit 1; }
}
comes_true() { # within 20 s
    for ((i = 0; i < 200; i++)); do
        ! "$@" || return 0
        sleep 0.1
    done
    echo "never came true: $*" && exit 1
}
is_gone() { ! kill -0 "$1" 2>/dev/null; }
echo 1 >"$box/gpus"

# The limits that the plan of QUICK=1 names stay below nine minutes, and are what it is held to.
exits 0 QUICK=1 PLAN=1
awk -F'\t' '$1 != "all" { sum += $2 } $1 == "all" { all = $2 }
    END { exit !(sum > 300 && sum <= 540 && all + 0 == sum) }' "$box/log" ||
    { cat "$box/log" && exit 1; }

# QUICK from beginning to end, with nothing built before.
exits 0 QUICK=1
for stage in build first test bench torch; do
    expect "\"$stage\": {\"status\": \"passed\""
done
expect "-DCUDA_ARCHITECTURES=90-real" "$box/flags"
expect '"what": "cuDNN", "file": "/lib/cuDNN.so", "version": "9.19"'
counts 6 '"table": "first_runs"'
expect '"test": "test_model golden --device=cuda", "passed": 1, "failed": 0'
counts 6 "fork no real" "$box/tests" # dist's ranks are processes in any case
counts 1 "fork yes real" "$box/tests"
expect '"context": "held open"'
comes_true is_gone "$(cat "$box/holder")"
expect '"table": "convolutions", "precision": "bf16", "peak": 0.001, "copy": 0.001'
expect '"model": "cnn", "precision": "bf16", "batch": 4096, "ours_images_per_s": '
counts 0 "## Missing" "$results/tables.md"
[ "$(find "$results" -type f | wc -l)" = 7 ] || { ls "$results" && exit 1; } # docs/gpu.md: 8 at most
head -1 "$box/peers" | grep -q -- '--limit 57344$'
rm -rf "$results"

# What is missing for the tests is built first, though the program is there.
rm "$box/build/test_kernels"
exits 0 QUICK=1 STAGES=test
expect '"build": {"status": "passed"'
exits 0 QUICK=1 STAGES=test FRESH=1
counts 0 "== build" "$box/log"
rm -rf "$results" "$box/tests"

# The figures: medians of three, and what f32 at 4096 is held to, which is no ratio.
exits 0 STAGES="bench train sanitize"
expect '"gpu": "NVIDIA Pretender 1"'
expect '"commit": "abc123"'
expect '"batch": 64, "images_per_s": 200, "runs": "'
expect '"cudnn_engines": "data 12", "cublaslt_refused": "drelu", "goal_of_peak_%": 50, "result": "m'
expect '"of_peak_%": 64.2,' # 200 images/s of 3.2 MFLOP, of 1 GFLOP/s
expect '"accuracy_%": 99.12, "train_s": 0.125'
counts 12 '"table": "sanitizers"'
tools=$(sed -n 's/.*"sanitizers", "tool": "\([a-z]*\).*/\1/p' "$results/results.json" | uniq | xargs)
[[ $tools == "memcheck initcheck memcheck "*" initcheck racecheck" ]] || { echo "order: $tools" && exit 1; }
counts 9 '"table": "modes"'
[ "$(grep -cE '"mode": "(elastic|dp)".*"of_ddp_%": [1-9]' "$results/results.json")" = 6 ]
counts 12 "fork no real" "$box/tests"
expect '| mlp | fp16 | 1 |' "$results/tables.md"

# Both sides take cuDNN's first choice, in 18 settings, the first of which does not count; then
# both time its engines, for the cnn. bf16 comes first.
: >"$box/tuned"
: >"$box/peers"
does torch nan mlp_64_bf16_eager_3
exits 1 STAGES=torch PAIRS=1
works torch
expect_facts "$results/results.json" '"precision": "bf16", "batch": 64' '"result": "failed:' torch
grep -m 1 '"table": "eager"' "$results/results.json" | grep -q '"precision": "bf16"'
expect '"ours_images_per_s": 200, "torch_images_per_s": 50, "ratio": 4.0'
expect '"goal": "50 % of peak", "cudnn_engines": "data 12"'
expect '"torch": {"status": "failed"'
expect '"train": {"status": "passed"'
[ "$(uniq -c <"$box/tuned" | xargs)" = "18 autotune 1 9 autotune 8" ] ||
    { uniq -c "$box/tuned" && exit 1; }
[ "$(grep -o -e --tune -e '--limit [0-9]*$' "$box/peers" | xargs)" = "--limit 57344 --tune" ]

# One that crashes, one that says nothing, one that talks nonsense: a row each; the rest goes on.
rm -rf "$results"
does test crash "test_kernels cuda_shapes"
does trainer mute fp16
does torch crash cnn_64_bf16_eager_3
exits 1 QUICK=1 STAGES="first test torch"
expect '"test": "test_kernels cuda_shapes", "passed": 1, "failed": 0, '
expect_facts "$results/results.json" 'first_failed": ""' '"result": "failed:' "signal 11" \
    "about to crash"
expect_facts "$results/results.json" '--amp fp16"' '"result": "failed:' result.json
expect_facts "$results/results.json" '"batch": 64' '"result": "failed:' torch
counts 11 '"goal"'
counts 6 '"result": "passed"' <(grep -F '"table": "tests"' "$results/results.json")
expect 'about to crash' "$results/test.log"
expect 'about to crash' "$results/torch.log"
does test err "test_kernels cuda_conv"
does trainer garble --no-cuda-graph
does torch garble mlp_512_bf16_eager_6
exits 1 QUICK=1 STAGES="first test torch" PAIRS=1
does test skip # on a machine with a GPU that is no reason
exits 1 QUICK=1 STAGES=test RESULTS="$box/no_gpu"
does test crash_unforked "test_kernels cuda_step"
exits 1 QUICK=1 STAGES=test RESULTS="$box/unforked"
works test
counts 1 "one process" "$box/unforked/results.json"
expect_facts "$box/unforked/results.json" '"passed": 1' '"result": "failed: signal 11' "one process"
touch "$box/does/no_tests"
exits 1 QUICK=1 STAGES=test RESULTS="$box/no_tests"
works no_tests
counts 7 '"result": "failed: ran no test' "$box/no_tests/results.json"
expect_facts "$results/results.json" 'first_failed": "t.c:core:sums: off by 3"' \
    '"result": "failed:' "exit code 1"
expect_facts "$results/results.json" '--no-cuda-graph"' '"result": "failed:' result.json
expect_facts "$results/results.json" '"batch": 512' '"result": "failed:' torch
works trainer
works torch

# Nobody waits for one that hangs longer than its time, if it ends at SIGTERM or not; the next
# command goes on where this one had no time left.
rm -rf "$results"
does trainer stubborn --tf32
exits 3 STAGES=first LIMIT_S=6
works trainer
comes_true is_gone "$(cat "$box/hanging")"
expect '"first": {"status": "cut"'
counts 5 '"result": "passed"'
expect_facts "$results/results.json" '--tf32"' '"result": "not run:'
expect_facts "$results/tables.md" first "1 of 6"
: >"$box/tuned"
exits 0 STAGES=first
counts 1 autotune "$box/tuned"
expect '"first": {"status": "passed"'
does torch hang start
exits 3 STAGES=compiled LIMIT_S=4
expect '"compiled": {"status": "cut"'
counts 18 '"result": "not run:'
works torch

# Ended from outside, also by SIGKILL, the check leaves what was done, and nobody behind.
for signal in TERM KILL; do
    rm -rf "$results" "$box/hanging"
    does test hang "test_kernels cuda_conv"
    (become_check QUICK=1 STAGES="first test bench") &
    running=$!
    comes_true test -s "$box/hanging"
    kill -"$signal" "$running"
    ! wait "$running" 2>/dev/null || exit 1
    comes_true is_gone "$(cat "$box/hanging")"
    comes_true is_gone "$(cat "$box/holder")"
    expect '"first": {"status": "passed"'
    expect '"test": {"status": "cut"'
    expect '"bench": {"status": "not run"'
    expect '"test": "test_kernels cuda_shapes", "passed": 1, "failed": 0'
    expect '| test_kernels cuda_conv |  |  |  | not run |' "$results/tables.md"
    expect_facts "$results/tables.md" test "4 of 7"
    expect_facts "$results/tables.md" bench "21 of 21"
done
expect "last words" "$results/running.log"
works test
: >"$box/tests"
: >"$box/tuned"
exits 0 QUICK=1 STAGES="first test bench"
counts 18 autotune "$box/tuned" # of bench: what had passed, and three of the tests, was not run again
counts 4 fork "$box/tests"
: >"$box/tests"
exits 0 QUICK=1 STAGES=test COMMIT=def456 # another commit: nothing of that counts
counts 6 "fork no real" "$box/tests"

# No GPU work is begun without a build, and no figure comes from an emulated device.
rm -rf "$results"
does cmake lack
exits 1 STAGES="build first"
expect_facts "$results/results.json" "failed:" CUDA cuDNN
works cmake
does trainer emulate
exits 1 STAGES=bench
expect_facts "$results/results.json" "failed:" emulation
exits 0 STAGES=first REHEARSAL=1 RESULTS="$box/rehearsed"
expect '"kind": "full rehearsal"' "$box/rehearsed/results.json"
works trainer
does torch lack
exits 0 STAGES=compiled
works torch
expect '"compiled": {"status": "skipped"'
expect 'python3 has no torch' "$results/tables.md" # the stand-in's reason

# What a program says without end does not fill the disk; results of another kind are not mixed in.
PYTHONPATH=bench PYTHONDONTWRITEBYTECODE=1 python3 - <<'EOF'
import os, program
program.MAX_LOG_BYTES = 1000
talk = "for i in {1..30}; do printf %0500d 7; sleep 0.02; done; echo; echo last words"
ended = program.run(["bash", "-c", talk], 20, os.environ["BOX"] + "/endless.log")
assert ended.code == 0 and ended.last_line() == "last words" and len(ended.output) < 10000
EOF
exits 1 STAGES=first RESULTS="$box/no_gpu"
expect_facts "$box/log" "$box/no_gpu"
exits 1 STAGES="first hurry"
expect_facts "$box/log" '"hurry"'

# Two GPUs: ranks over NCCL and replicas are among the rows.
echo 2 >"$box/gpus"
exits 0 STAGES="first train" RESULTS="$box/two"
expect '"flags": "--model cnn --mode dp --devices 0,1"' "$box/two/results.json"
expect '"ranks": 2, "flags": "--backend nccl --nproc-per-node 2"' "$box/two/results.json"

# The stage gpus: what NCCL chose, the same bits again, who is named, and what is measured.
exits 0 STAGES=gpus RESULTS="$box/two"
expect '"bytes": 4718592, "algorithm": "RING", "protocol": "LL128"' "$box/two/results.json"
counts 5 '"as_before": true' "$box/two/results.json"
counts 2 '"names_rank_1": true' "$box/two/results.json"
expect '"bytes": 65536, "time_us": 9.5' "$box/two/results.json"
grep -q '"ranks": 2, "images_per_s.*"of_linear_%": [0-9]' "$box/two/results.json"
does trainer waver
exits 1 STAGES=gpus RESULTS="$box/two"
works trainer
counts 3 '"as_before": false, "result": "failed' "$box/two/results.json"
expect '"algorithm": "NVLS", "protocol": "LL128", "result": "failed' "$box/two/results.json"
echo 1 >"$box/gpus"
exits 0 STAGES=gpus RESULTS="$box/one"
expect '"gpus": {"status": "skipped"' "$box/one/results.json"

python3 -m json.tool "$results/results.json" >/dev/null
echo "ok"
