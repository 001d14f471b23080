# shellcheck shell=bash disable=SC2153,SC2154 # gpu_check.sh sets stage, NAME
# The stages of gpu_check.sh, sourced by it. A stage prints what it does, notes its figures with row
# and returns 0, 77 where it does not apply, else a failure; a line for the reader goes to note.
# "stage" is its name.

program=$GPU_BUILD/mnist_ddp

row() { # KEY=VALUE...
    (
        IFS=$'\t'
        echo "$*"
    ) >>"$WORK/$stage.rows"
    echo "   $*"
    scripts/gpu_report.sh json "$WORK" "$NAME" "$RESULTS"
}

note() { [ -z "$*" ] || echo "$*" >"$WORK/$stage.note"; }

# Calculates with awk.
number() { awk "BEGIN { printf \"$1\", $2 }"; }
holds() { awk "BEGIN { exit !($1) }"; }

median() { printf '%s\n' "$@" | sort -g | sed -n "$((($# + 1) / 2))p"; }

# The value of a key in a line of JSON; of an array, its numbers.
json() { # KEY LINE
    sed -n "s/.*\"$1\": *\(\"\([^\"]*\)\"\|\[\([^]]*\)\]\|\([^,}]*\)\).*/\2\3\4/p" <<<"$2"
}

# --- build ---

find_nvcc() { command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null; }

cached() { sed -n "s/^$1:[A-Z]*=//p" "$GPU_BUILD/CMakeCache.txt"; }

defined() { sed -n "s/^#define *$1 *//p" "$2" | head -n 1 | tr -d '"'; }

tool_rows() {
    local cudnn nccl
    cudnn=$(cached cuDNN_INCLUDE)/cudnn_version.h nccl=$(cached NCCL_INCLUDE)/nccl.h
    row table=tools "what=nvcc" "version=$("$1" --version | sed -n 's/.*, V//p')" "file=$1"
    row table=tools "what=compiler" "version=$(cc --version | head -n 1)"
    row table=tools "what=cmake" "version=$(cmake --version | sed -n '1s/.* //p')"
    row table=tools "what=cuBLASLt" "file=$(cached cuBLASLt_LIBRARY)"
    row table=tools "what=cuDNN" "version=$(defined CUDNN_MAJOR "$cudnn").$(defined CUDNN_MINOR \
        "$cudnn").$(defined CUDNN_PATCHLEVEL "$cudnn")" "file=$(cached cuDNN_LIBRARY)"
    row table=tools "what=NCCL" "version=$(defined NCCL_MAJOR "$nccl").$(defined NCCL_MINOR \
        "$nccl").$(defined NCCL_PATCH "$nccl")" "file=$(cached NCCL_LIBRARY)"
}

stage_build() {
    local nvcc log=$WORK/build.log real="${COMPUTE_CAPABILITY//./}" flags=() keep_going
    nvcc=$(find_nvcc) || { note "no nvcc: install the CUDA toolkit, or set CUDA_HOME" && return 1; }
    flags=(-DWITH_ONEDNN=OFF -DWITH_GLOO=OFF -DWARNINGS_AS_ERRORS=OFF -DNVCC="$nvcc")
    # A GPU that this nvcc does not know gets the default, whose PTX its driver compiles.
    if "$nvcc" --list-gpu-code | grep -qx "sm_$real"; then
        flags+=(-DCUDA_ARCHITECTURES="$real-real")
    fi
    [ -z "${NVIDIA_PACKAGES:-}" ] || flags+=(-DNVIDIA_PACKAGES="$NVIDIA_PACKAGES")
    [ ! -d gpu-bundle/deps ] || flags+=(-DCMAKE_PREFIX_PATH="$PWD/gpu-bundle/deps")
    if [ ! -f "$GPU_BUILD/CMakeCache.txt" ] && command -v ninja >/dev/null; then
        flags+=(-G Ninja)
    fi
    if ! cmake -S . -B "$GPU_BUILD" "${flags[@]}" >"$log" 2>&1; then
        note "$( (grep -E 'Could NOT find|is missing' "$log" || grep 'CMake Error' "$log") |
            head -n 1 | sed 's/^ *//');" \
            "scripts/gpu_bundle.sh, run elsewhere, brings libraries; see $log"
        return 1
    fi
    if grep 'CUDA: left out' "$log"; then
        note "$(grep -m 1 -o 'CUDA: left out.*' "$log"); NVIDIA_PACKAGES=.../site-packages/nvidia" \
            "names where cuDNN and NCCL are"
        return 1
    fi
    note "$(grep -m 1 -o 'Check: not found.*' "$log" | head -n 1)"
    if ! cmake --build "$GPU_BUILD" -j "$(nproc)" --target mnist_ddp modules gpu_peak \
        gpu_convolutions >>"$log" 2>&1; then
        grep -m 5 -E 'error|Error' "$log"
        note "does not build; see $log"
        return 1
    fi
    # The tests, as far as they build.
    [ -f "$GPU_BUILD/build.ninja" ] && keep_going=-k0 || keep_going=-k
    cmake --build "$GPU_BUILD" -j "$(nproc)" -- "$keep_going" >>"$log" 2>&1 ||
        note "some tests do not build; see $log"
    tool_rows "$nvcc"
}

# --- test ---

seconds_left() { echo $((STAGE_LIMIT_S - 20 - SECONDS)); }

# One sanitizer on one test program. Some tests make calls that must fail, which memcheck alone
# would count.
sanitize() { # TOOL-PROGRAM CHECK TEST-PROGRAM
    local log word='' result code limit flags=()
    [ "$2" != memcheck ] || flags=(--report-api-errors no)
    log=$WORK/$2-$(basename "$3").log limit=$(seconds_left)
    [ "$limit" -lt 75 ] || limit=75
    if [ "$limit" -lt 10 ]; then
        row table=sanitizers "check=$2" "program=$(basename "$3")" result=skipped \
            "word=no time left"
        return 0
    fi
    timeout --kill-after=5 "$limit" "$1" --tool "$2" "${flags[@]}" --error-exitcode 9 "$3" \
        >"$log" 2>&1
    code=$?
    case $code in
    0) result=passed ;;
    77) result=skipped word="the program skips" ;;
    124 | 137) result=skipped word="cut after $limit s" ;;
    *)
        result=failed word="exit $code, see $log"
        if grep -qiE 'device not supported|not supported on|unable to find injection' "$log"; then
            result=skipped word="the tool refuses this device"
        fi
        ;;
    esac
    row table=sanitizers "check=$2" "program=$(basename "$3")" "result=$result" "word=$word"
    [ "$result" != failed ]
}

stage_test() {
    local log=$WORK/test.log failed=0 line tool check test_program
    # One process per program: CUDA does not survive a fork, and a context per test takes a second.
    export MNIST_DDP_TEST_DEVICE=real CK_FORK=no SOURCE_DIR=$PWD
    BUILD_DIR=$(cd "$GPU_BUILD" && pwd)
    export BUILD_DIR
    (cd "$GPU_BUILD" && ctest -R 'cuda|nccl' -E 'cuda_check|emulator' --timeout 120 -j 2 \
        --output-on-failure) >"$log" 2>&1 || failed=1
    # " 3/12 Test  #7: dist.nccl .........   Passed    0.50 sec", "***Skipped", "***Failed"
    line='^ *[0-9]*/[0-9]* Test *#[0-9]*: \([^ ]*\) [ .]*\(\**[A-Za-z]*\)[^0-9]*\([0-9.]*\) sec.*'
    sed -n "s|$line|\1 \2 \3|p" "$log" | tr -d '*' | while read -r name result seconds; do
        row table=tests "test=$name" "result=$(tr '[:upper:]' '[:lower:]' <<<"$result")" \
            "seconds=$seconds"
    done
    [ "$failed" -eq 0 ] || note "tests failed; see $log"
    if ! grep -q 'result=passed' "$WORK/test.rows"; then
        note "no test ran on the GPU; see $log"
        return 1
    fi
    tool=$(command -v compute-sanitizer || ls "$(dirname "$(cached NVCC)")/compute-sanitizer" \
        2>/dev/null) || { note "no compute-sanitizer here" && return "$failed"; }
    for check in memcheck racecheck; do
        for test_program in "$GPU_BUILD"/test_kernels_*cuda*; do
            [ ! -x "$test_program" ] || sanitize "$tool" "$check" "$test_program" || failed=1
        done
    done
    return "$failed"
}

# --- the program's own runs ---

flags_of() { # MODEL PRECISION
    case $1 in
    mlp) echo "--model mlp --optimizer sgd --lr 0.1 --momentum 0.9" ;;
    *) echo "--model $1" ;;
    esac
    case $2 in
    tf32) echo "--tf32" ;;
    bf16 | fp16) echo "--amp $2" ;;
    esac
}

# Sets line (the result as JSON), train_s (of all epochs), accuracy (percent) and command_s.
ours() { # FLAGS...
    local begun=$EPOCHREALTIME
    rm -rf "$WORK/run"
    # In the foreground, so that what ends the stage ends the run as well.
    if ! line=$(timeout --foreground 180 "$program" train --device cuda --json --quiet \
        --run-dir "$WORK/run" "$@" 2>"$WORK/program.log" | tail -n 1) || [ -z "$line" ]; then
        echo "   mnist_ddp train $*" && tail -n 3 "$WORK/program.log"
        return 1
    fi
    command_s=$(number %.3f "$EPOCHREALTIME - $begun")
    if [ "$(json emulated "$line")" = true ]; then
        note "this device is an emulation: nothing is measured on it"
        exit 1
    fi
    train_s=$(json train_s "$line" | tr ',' '\n' | awk '{ sum += $1 } END { printf "%.3f", sum }')
    accuracy=$(number %.2f "100 * $(json test_acc "$line")")
}

# Whether a run counts as training at all.
counts() { # LINE
    local reached
    reached=$(json test_acc "$1")
    [ -n "$reached" ] && holds "$reached >= 0.85" &&
        [[ $(json last_loss "$1") =~ ^-?[0-9.]+$ ]]
}

# --- train ---

accuracy_row() { # MODEL PRECISION RANKS GOAL FLAGS...
    local model=$1 precision=$2 ranks=$3 goal=$4 result=failed
    shift 4
    # shellcheck disable=SC2046
    if ! ours $(flags_of "$model" "$precision") --epochs 3 "$@"; then
        row table=accuracy "model=$model" "precision=$precision" "ranks=$ranks" result=failed
        return 1
    fi
    ! holds "$accuracy >= $goal" || result=passed
    row table=accuracy "model=$model" "precision=$precision" "ranks=$ranks" \
        "graph=$(json graph "$line")" "accuracy_%=$accuracy" "goal_%=$goal" "train_s=$train_s" \
        "command_s=$command_s" "result=$result"
    [ "$result" = passed ]
}

# Training to 99 % test accuracy, three seeds; the whole command is timed as well.
target_rows() { # FLAGS...
    local seed result
    for seed in 1 2 3; do
        ours --model cnn --target-acc 99 --epochs 14 --seed "$seed" "$@" || return 1
        result=missed
        if holds "$accuracy >= 99 && $train_s <= 0.5 && $command_s <= 2"; then
            result=met
        fi
        row table=to_99_percent "flags=${*:-defaults}" "seed=$seed" \
            "epochs=$(json train_s "$line" | tr ',' '\n' | wc -l)" "accuracy_%=$accuracy" \
            "train_s=$train_s" "goal_train_s=0.5" "command_s=$command_s" "goal_command_s=2" \
            "goal=$result"
    done
}

stage_train() {
    local failed=0 model precision goal
    for model in mlp cnn; do
        [ "$model" = mlp ] && goal=97.5 || goal=98.5
        for precision in f32 tf32 bf16 fp16; do
            accuracy_row "$model" "$precision" 1 "$goal" || failed=1
            accuracy_row "$model" "$precision" 1 "$goal" --no-cuda-graph || failed=1
        done
        for precision in f32 bf16; do
            accuracy_row "$model" "$precision" 2 "$goal" --backend shm --nproc-per-node 2 ||
                failed=1
        done
    done
    target_rows --amp bf16 --batch-size 512 --optimizer adam --lr 0.003 --gamma 0.8 || failed=1
    target_rows --amp bf16 --batch-size 256 --optimizer adam --lr 0.002 || failed=1
    target_rows --tf32 --batch-size 512 --optimizer adam --lr 0.003 --gamma 0.8 || failed=1
    target_rows || failed=1
    [ "$failed" -eq 0 ] || note "a run failed or missed its accuracy"
    return "$failed"
}

# --- bench ---

# Images that all batch sizes divide, and epochs enough to train and to have warmed up.
images=57344
batches="64 512 4096"
epochs_of() { case $1 in 64) echo 3 ;; 512) echo 6 ;; *) echo 12 ;; esac; }

ours_speed() { # MODEL BATCH PRECISION
    # shellcheck disable=SC2046
    ours $(flags_of "$1" "$3") --batch-size "$2" --epochs "$(epochs_of "$2")" --limit $images \
        --gamma 1 --no-save-model
}

speed_row() { # MODEL BATCH PRECISION
    local speeds=() i
    for ((i = 0; i < PAIRS; i++)); do
        ours_speed "$@" || return 1
        counts "$line" || return 1
        speeds+=("$(json images_per_s "$line")")
    done
    row table=throughput "model=$1" "precision=$3" "batch=$2" \
        "images_per_s=$(median "${speeds[@]}")" "runs=${speeds[*]}" "accuracy_%=$accuracy"
}

peak_of() { sed -n "s/.*what=$1[[:space:]]value=\([0-9.]*\).*/\1/p" "$WORK/bench.rows"; }

stage_bench() {
    local failed=0 peak precision model batch
    if ! ours_speed mlp 512 f32; then
        note "the program does not run; see $WORK/program.log"
        return 1
    fi
    "$GPU_BUILD/gpu_peak" >>"$WORK/bench.rows" || { note "gpu_peak failed" && return 1; }
    cat "$WORK/bench.rows"
    report
    for precision in f32 tf32 bf16; do
        peak=$(peak_of "$precision")
        if [ "$precision" = f32 ] && holds "$(peak_of fma_f32) > $peak"; then
            peak=$(peak_of fma_f32)
        fi
        "$GPU_BUILD/gpu_convolutions" "$precision" "$peak" "$(peak_of copy)" \
            >>"$WORK/bench.rows" || failed=1
        report
    done
    for precision in f32 tf32 bf16; do
        for model in mlp cnn; do
            for batch in $batches; do
                speed_row "$model" "$batch" "$precision" || failed=1
            done
        done
    done
    [ "$failed" -eq 0 ] || note "a measurement failed or does not count"
    return "$failed"
}

# --- torch and compiled ---

# A comparison's settings, "TABLE MODEL BATCH PRECISION", the most telling first. Tables: eager and
# compiled with cuDNN's first choice on both sides; tuned is eager where both time cuDNN's engines,
# which matters to convolutions only.
settings() { # TABLE MODELS
    local precision model batch
    for precision in f32 bf16 tf32; do
        for model in $2; do
            for batch in $batches; do
                echo "$1 $model $batch $precision"
            done
        done
    done
}

goal_of() { # TABLE BATCH
    case $1-$2 in
    compiled-*) echo 1 ;;
    *-64) echo 3 ;;
    *-512) echo 2 ;;
    *) echo 1.3 ;;
    esac
}

# A peer per table: PyTorch keeps the engine that it chose first for a convolution.
start_peer() { # TABLE
    local ready flags=()
    [ "$1" != tuned ] || flags=(--tune)
    command -v "$PYTHON" >/dev/null || { note "no $PYTHON here" && return 77; }
    coproc PEER { exec "$PYTHON" bench/gpu/torch_peer.py --data "$MNIST_DDP_DATA" --limit $images \
        "${flags[@]}" 2>>"$WORK/$stage.log"; }
    to_peer=${PEER[1]} from_peer=${PEER[0]} peer=$PEER_PID
    if ! read -r -t 120 ready <&"$from_peer"; then
        note "the peer does not start; see $WORK/$stage.log"
        return 1
    fi
    if [ "$(json ready "$ready")" != true ]; then
        note "$(json reason "$ready")"
        return 77
    fi
    row table=peer "torch=$(json torch "$ready")" "cuda=$(json cuda "$ready")" \
        "cudnn=$(json cudnn "$ready")" "cudnn_benchmark=$(json benchmark "$ready")"
}

stop_peer() {
    exec {to_peer}>&-
    kill "$peer" 2>/dev/null # it may be stuck
    wait "$peer" 2>/dev/null
}

# Sets fields: of a row about pairs of a run of ours and one of torch's, one after the other, so
# that a slow moment hits both.
measure_pairs() { # TABLE MODEL BATCH PRECISION
    local table=$1 model=$2 batch=$3 precision=$4 i answer='' result=missed goal
    local mine=() theirs=() ratios=()
    goal=$(goal_of "$table" "$batch")
    fields=("table=$table" "model=$model" "precision=$precision" "batch=$batch")
    for ((i = 0; i < PAIRS; i++)); do
        ours_speed "$model" "$batch" "$precision" || break
        counts "$line" || break
        echo "$model $batch $precision ${table/tuned/eager} $(epochs_of "$batch")" >&"$to_peer" ||
            break
        read -r -t 240 answer <&"$from_peer" || break
        counts "$answer" || break
        mine+=("$(json images_per_s "$line")") theirs+=("$(json images_per_s "$answer")")
        ratios+=("$(number %.2f "${mine[i]} / ${theirs[i]}")")
    done
    if [ "$i" -lt "$PAIRS" ]; then
        fields+=(ours_images_per_s= torch_images_per_s= ratio= ratios= "goal=$goal"
            "result=does not count: ours $line, torch ${answer:-has no answer}")
        return 1
    fi
    ! holds "$(median "${ratios[@]}") >= $goal" || result=met
    fields+=("ours_images_per_s=$(median "${mine[@]}")"
        "torch_images_per_s=$(median "${theirs[@]}")" "ratio=$(median "${ratios[@]}")"
        "ratios=${ratios[*]}" "goal=$goal" "result=$result"
        "torch_layout=$(json layout "$answer")" "torch_optimizer=$(json optimizer "$answer")")
}

# What was not measured when the stage is cut stands in the table as well.
cut_short() {
    trap '' TERM
    local setting table model batch precision
    for setting in "${left[@]}"; do
        read -r table model batch precision <<<"$setting"
        row "table=$table" "model=$model" "precision=$precision" "batch=$batch" \
            ours_images_per_s= torch_images_per_s= ratio= ratios= \
            "goal=$(goal_of "$table" "$batch")" "result=not measured: no time left"
    done
    note "no time left for ${#left[@]} of $all settings"
    [ "$failed" -ne 0 ] || [ "${#left[@]}" -eq "$all" ] || exit "$CUT_WITH_RESULTS"
    exit 143
}

compare() { # SETTING...
    local left=("$@") all=$# failed=0 fields table='' next
    : >"$WORK/$stage.log"
    trap cut_short TERM
    while [ "${#left[@]}" -gt 0 ]; do
        next=${left[0]%% *}
        if [ "$next" != "$table" ]; then
            [ -z "$table" ] || stop_peer
            start_peer "$next" || return $?
            table=$next
            export MNIST_DDP_CUDA_AUTOTUNE=1
            [ "$table" != tuned ] || MNIST_DDP_CUDA_AUTOTUNE=8
        fi
        # shellcheck disable=SC2086
        measure_pairs ${left[0]} || failed=1
        left=("${left[@]:1}")
        row "${fields[@]}"
    done
    stop_peer
    [ "$failed" -eq 0 ] || note "a measurement failed or does not count; see $WORK/$stage.log"
    return "$failed"
}

stage_torch() {
    local all_settings
    mapfile -t all_settings < <(settings eager "mlp cnn" && settings tuned cnn)
    compare "${all_settings[@]}"
}

stage_compiled() {
    local all_settings
    mapfile -t all_settings < <(settings compiled "mlp cnn")
    compare "${all_settings[@]}"
}
