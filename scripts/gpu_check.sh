#!/usr/bin/env bash
# make gpu-check: builds for this machine's GPU, tests, trains and measures there. Needs a driver,
# nvcc, cuBLASLt, cuDNN, NCCL, a C and a C++ compiler, cmake and the files of gpu-bundle/
# (gpu_bundle.sh); no network, no root. Writes bench/results/gpu-NAME.json after every figure and
# .md after every stage, so that a run that is cut keeps what it has; stages of an earlier run that
# are not repeated stay in there.
#
#   STAGES           build test train bench torch compiled, or some of them; builds where nothing is
#   STAGE_LIMIT_S    480: what takes longer is cut; torch and compiled, whose tables say what is then
#                    missing, are no failure if they measured anything
#   NAME             of the results; default: the GPU's
#   RESULTS          bench/results
#   GPU_BUILD        build-gpu
#   PAIRS            3: runs of each measurement
#   NVIDIA_PACKAGES  .../site-packages/nvidia, where cuDNN and NCCL are not found
#   COMMIT           what is measured; default: as git describes it
#   PYTHON           python3, of the stages torch and compiled
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
unset MNIST_DDP_CUDA_MODULE # no stand-in for the hardware

all_stages="build test train bench torch compiled"
export STAGE_LIMIT_S=${STAGE_LIMIT_S:-480} RESULTS=${RESULTS:-bench/results} PAIRS=${PAIRS:-3}
export GPU_BUILD=${GPU_BUILD:-build-gpu} PYTHON=${PYTHON:-python3}
export WORK=$GPU_BUILD/gpu-check
export CUT_WITH_RESULTS=76 # exit status of a stage

die() {
    echo "gpu-check: $*" >&2
    exit 1
}

# The figures so far, as files.
report() {
    scripts/gpu_report.sh write "$WORK" "$NAME" "$RESULTS"
}

if [ "${1:-}" = --stage ]; then
    # shellcheck source=scripts/gpu_stages.sh
    . scripts/gpu_stages.sh
    stage=$2
    "stage_$stage"
    exit $?
fi

find_data() {
    local folder
    for folder in "${MNIST_DDP_DATA:-}" gpu-bundle/mnist data/MNIST/raw; do
        if compgen -G "$folder/train-images-idx3-ubyte*" >/dev/null; then
            MNIST_DDP_DATA=$(cd "$folder" && pwd)
            export MNIST_DDP_DATA
            return 0
        fi
    done
    die "no MNIST: set MNIST_DDP_DATA, or bring gpu-bundle/ (scripts/gpu_bundle.sh makes it)"
}

# Fields of the GPU that CUDA calls the first.
gpu() {
    local which=${CUDA_VISIBLE_DEVICES:-0}
    nvidia-smi -i "${which%%,*}" --query-gpu="$1" --format=csv,noheader,nounits | head -n 1
}

describe_machine() {
    local name
    name=$(gpu name) || die "nvidia-smi does not answer: $name"
    [ -n "$name" ] || die "nvidia-smi finds no GPU"
    COMPUTE_CAPABILITY=$(gpu compute_cap)
    export COMPUTE_CAPABILITY
    NAME=${NAME:-$(echo "${name#NVIDIA }" | tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9\n' '-')}
    export NAME
    printf '%s\n' "gpu=$name" "memory_mib=$(gpu memory.total)" "driver=$(gpu driver_version)" \
        "compute_capability=$COMPUTE_CAPABILITY" \
        "cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "cores=$(nproc)" \
        "system=$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release), Linux $(uname -r)" |
        paste -s - >"$WORK/machine.row"
}

head_row() { # STAGE STATUS SECONDS
    local note=
    [ ! -f "$WORK/$1.note" ] || note=$(tr '\t\n' '  ' <"$WORK/$1.note")
    printf '%s\n' "status=$2" "seconds=$3" "date=$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
        "commit=$commit" "note=$note" | paste -s - >"$WORK/$1.head"
}

# 0: the stage passed, was skipped, or was cut but has results to show.
run_stage() {
    local stage=$1 begun=$SECONDS code status
    echo "== $stage"
    : >"$WORK/$stage.rows"
    rm -f "$WORK/$stage.note"
    head_row "$stage" cut 0 # what stands there if this run is killed
    timeout --preserve-status --kill-after=15 "$STAGE_LIMIT_S" \
        bash scripts/gpu_check.sh --stage "$stage" &
    running=$!
    wait "$running"
    code=$?
    case $code in
    0) status=passed ;;
    77) status=skipped ;;
    "$CUT_WITH_RESULTS" | 137 | 143) status='cut' ;;
    *) status=failed ;;
    esac
    head_row "$stage" "$status" $((SECONDS - begun))
    report
    echo "== $stage: $status, $((SECONDS - begun)) s"
    [ ! -f "$WORK/$stage.note" ] || cat "$WORK/$stage.note"
    [ "$status" = passed ] || [ "$status" = skipped ] || [ "$code" -eq "$CUT_WITH_RESULTS" ]
}

command -v nvidia-smi >/dev/null || die "no nvidia-smi: this machine has no NVIDIA driver"
for stage in ${STAGES:=$all_stages}; do
    [[ " $all_stages " == *" $stage "* ]] || die "no stage \"$stage\"; there are: $all_stages"
done
[ -x "$GPU_BUILD/mnist_ddp" ] || [[ " $STAGES " == *" build "* ]] || STAGES="build $STAGES"
mkdir -p "$WORK" || exit 1
find_data
describe_machine
commit=${COMMIT:-$(git describe --always --dirty 2>/dev/null || echo unknown)}
[ ! -f "$RESULTS/gpu-$NAME.json" ] || scripts/gpu_report.sh take "$RESULTS/gpu-$NAME.json" "$WORK"

running=
trap '[ -z "$running" ] || { kill "$running" && wait "$running"; }; report; exit 143' TERM INT HUP
worst=0
for stage in $STAGES; do
    if ! run_stage "$stage"; then
        worst=1
        [ "$stage" != build ] || break
    fi
done
echo "gpu-check: $RESULTS/gpu-$NAME.md"
exit $worst
