#!/usr/bin/env bash
# 'make gpu-check' rehearsed without a GPU, on what looks like a lent machine: no network, no -dev
# package, nvcc in /usr/local/cuda alone, cuBLASLt, cuDNN and NCCL among python3's packages, gpu-bundle/
# in the tree, and a driver that only pretends. nvcc builds and links for real. Then the emulated device
# takes the module's place, so that every stage runs; MNIST is small and easy, as that device is slow.
#
#     bench/gpu/rehearse.sh [STAGE...]   default: QUICK=1, interrupted in every way, then each stage
#
#   BUILD        build, with mnist_ddp_cuda_emulated.so
#   REHEARSAL    the folder of everything that is left, and used again; default: build-rehearsal
#   VENV         a python3 with NVIDIA's packages; default: made there (1 GB; with TORCH=torch 5 GB)
#   CAPABILITY   of the GPU that is played: 9.0, or 10.0 for a B200
#   LIMIT_S      of a stage; default: 3000, as the emulated device is slow
#
# Needs root, a network before it begins, and long.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
skip() { echo "SKIP: $*" && exit 77; }
say() { echo "== rehearsal, $((SECONDS - ${begun:-0})) s: $*"; }

prepare() {
    { [ "$(id -u)" = 0 ] && unshare --mount --net --pid --fork true; } ||
        skip "needs root and namespaces"
    build=$(realpath "${BUILD:-build}")
    [ -f "$build/mnist_ddp_cuda_emulated.so" ] || skip "$build has no mnist_ddp_cuda_emulated.so"
    work=$(realpath -m "${REHEARSAL:-build-rehearsal}")
    rm -rf "${work:?}"/{bin,mnist,usr}
    mkdir -p "$work"/{tree,bin,mnist}
    find "$work/tree" -mindepth 1 -maxdepth 1 ! -name build-gpu -exec rm -rf {} +
    VENV=$(realpath -m "${VENV:-$work/venv}")
    wheels=(cmake ninja numpy nvidia-cublas nvidia-cudnn-cu13 nvidia-nccl-cu13)
    [ -x "$VENV/bin/cmake" ] || { python3 -m venv "$VENV" &&
        "$VENV/bin/pip" install -q "${wheels[@]}" ${TORCH:+"$TORCH"}; } || skip "no wheels: no network?"
    git ls-files -z --cached --others --exclude-standard | xargs -0 cp -p --parents -t "$work/tree"
    python3 - "$work/mnist" <<'PYTHON'
import struct, sys
for kind, n in (("train", 128), ("t10k", 20)):
    labels = bytes(i % 10 for i in range(n))  # each digit is a block of its own
    images = b"".join(bytes(255 * (i // 392 + 2 * (i % 28 // 6) == d) for i in range(784))
                      for d in labels)
    for name, text in (("images-idx3", struct.pack(">4I", 0x803, n, 28, 28) + images),
                       ("labels-idx1", struct.pack(">2I", 0x801, n) + labels)):
        open(f"{sys.argv[1]}/{kind}-{name}-ubyte", "wb").write(text)
PYTHON
    "$work/tree/scripts/gpu_bundle.sh" "$work/mnist" || skip "no bundle: no network?"
    cc -shared -fPIC -o "$work/bin/libcuda.so.1" tests/support/preload/libcuda.c
    become nvidia-smi <<'END'
[ "$1" != -L ] || { for ((i = 0; i < GPUS; i++)); do echo "GPU $i"; done && exit; }
echo "NVIDIA rehearsal without a GPU, 1000, 580.1, $CAPABILITY"
END
    # What nvcc has linked is looked at, and kept; then the emulated module takes its place.
    become cmake <<'END'
"$VENV/bin/cmake" "$@" || exit
real=$2/mnist_ddp_cuda.so
[[ $* == *" modules "* ]] && ! cmp -s "$real" "$build/mnist_ddp_cuda_emulated.so" || exit 0
{
    ldd "$real" | grep -E 'libcu|nccl|not found'
    "$2/mnist_ddp" train --device cuda --limit 64 --run-dir "$work/none"
    echo "exit code $?"
} >"$work/linked" 2>&1
cp "$real" "$real.real" && cp "$build/mnist_ddp_cuda_emulated.so" "$real"
END
    become compute-sanitizer <<'END'
exec "${@: -2}"
END
    become peer <<'END'
[[ $1 != *torch_peer.py ]] || set -- "$@" --device cpu --limit 128
exec python3 "$@"
END
    export build work VENV GPUS=1 CAPABILITY="${CAPABILITY:-9.0}" HOLDER="$work/holder"
    exec unshare --mount --net --pid --fork --kill-child --mount-proc tests/support/bare_machine.sh \
        "$0" inside "$@"
}

become() { # NAME, the script on stdin
    { echo '#!/bin/bash' && cat; } >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}

check() { # SETTING=VALUE...
    say "make gpu-check $*"
    make -s gpu-check REHEARSAL=1 "RESULTS=$work/results/$folder" "$@" 2>&1 | tee "$work/said" || true
    left=$(find "$work/results/$folder" -type f | wc -l)
    [ "$left" -le 8 ] || { echo "$left files are left" && exit 1; }
}

count() {
    grep -cE '"result": "(passed|measured|met|missed)' "$work/results/$folder/results.json" || true
}

# interrupt SIGNAL TEXT: QUICK=1, ended as soon as it says so.
interrupt() {
    rm -f "$work/said"
    setsid make -s gpu-check REHEARSAL=1 "RESULTS=$work/results/$folder" QUICK=1 LIMIT_S=1800 \
        >"$work/said" 2>&1 &
    local group=$!
    for ((i = 0; i < 6000; i++)); do
        ! grep -qE "$2" "$work/said" || break
        kill -0 $group 2>/dev/null || break
        sleep 0.1
    done
    sleep 5
    kill -"$1" -- -$group
    wait $group || true
    cat "$work/said"
    for ((i = 0; i < 100; i++)); do
        left=$(pgrep -af 'check\.py|ninja|nvcc|cc1|build-gpu/|held_context' || true)
        [ -n "$left" ] || break
        sleep 0.1
    done
    [ -z "$left" ] || { echo "still there after SIG$1: $left" && exit 1; }
    say "SIG$1 at \"$2\": $(count) rows are measured, nobody is left behind"
}

inside() {
    rm -rf /usr/local/{cuda/lib64,cuda/include,lib,include}/*{cublas,cudnn,nccl}*
    cp "$work/bin/libcuda.so.1" /usr/lib/
    ldconfig
    ip link set lo up
    unset MNIST_DDP_DATA NVIDIA_PACKAGES CUDA_HOME LD_LIBRARY_PATH LIBRARY_PATH CPATH
    export PATH="$work/bin:$VENV/bin:/usr/sbin:/usr/bin:/sbin:/bin" PYTHON="$work/bin/peer"
    export MNIST_DDP_EMULATED_DEVICES=1
    ! command -v nvcc || exit 1
    trap "exit 130" INT TERM # the first process of a namespace has no default
    begun=$SECONDS
    cd "$work/tree"
    if [ $# = 0 ]; then
        folder=quick
        rm -rf "$work/results/quick"
        interrupt INT "what=cmake"
        interrupt TERM "== first"
        interrupt KILL "== test"
        measured=$(count)
        check QUICK=1 LIMIT_S=40
        grep -q "not complete" "$work/said" && [ "$(count)" -ge "$measured" ] || exit 1
        check QUICK=1 "LIMIT_S=${LIMIT_S:-3000}"
        ! grep "not complete" "$work/said" || exit 1
        say "what nvcc linked, and what it says without a GPU" && cat "$work/linked"
        ! grep "not found" "$work/linked" && grep -q InsufficientDriver "$work/linked" || exit 1
        set -- test sanitize train bench torch compiled gpus
    fi
    for stage; do
        folder=$stage
        [ "$stage" != gpus ] || export GPUS=2 MNIST_DDP_EMULATED_DEVICES=2
        check STAGES="$stage" PAIRS=1 "LIMIT_S=${LIMIT_S:-3000}"
    done
    say "the rows"
    python3 - "$work"/results/*/results.json <<'PYTHON'
import collections, json, re, sys
KINDS = {"no GPU": r"failed: .*(no figures from a device that is|peaks were not measured"
                   r"|cudaSetDevice|is_real\(\) ==)",
         "cut at its limit": "failed: cut after", "few images": "failed: accuracy"}
bad = 0
for path in sys.argv[1:]:
    for name, stage in json.load(open(path))["stages"].items():
        results = collections.Counter()
        for row in stage["rows"]:
            said, first = row["result"], row.get("first_failed", "")
            kind = next((kind for kind, text in KINDS.items() if re.match(text, said + first)), "")
            results[kind or said.split(":")[0]] += 1
            if not kind and said.startswith(("failed", "not run")):
                bad += 1
                print("  ", row["step"], said, first)
        print(path.split("/")[-2], name, stage["seconds"], "s:", dict(results))
sys.exit(bad > 0)
PYTHON
}

if [ "${1:-}" = inside ]; then
    shift
    inside "$@"
else
    prepare "$@"
fi
