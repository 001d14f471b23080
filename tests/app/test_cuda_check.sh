#!/usr/bin/env bash
# scripts/gpu_check.sh without a GPU: programs that only pretend stand in for the driver, the
# trainer, the tests, the measurements and torch. What it makes of their figures, and what stays of
# a run that is cut.
set -euo pipefail
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
cd "$SOURCE_DIR"
mkdir -p "$box/bin" "$box/build" "$box/data" "$box/results"
touch "$box/data/train-images-idx3-ubyte"

pretend() { # FILE, the script on stdin
    { echo '#!/bin/sh' && cat; } >"$1"
    chmod +x "$1"
}

pretend "$box/bin/nvidia-smi" <<'EOF'
case "$*" in
*=name*) echo "NVIDIA Pretender 1" ;;
*=compute_cap*) echo 9.0 ;;
*) echo 100 ;;
esac
EOF
# 300, 100, 200 images/s and so on: the median is 200.
pretend "$box/build/mnist_ddp" <<'EOF'
echo "autotune ${MNIST_DDP_CUDA_AUTOTUNE:-unset}" >>"$BOX/calls"
[ ! -e "$BOX/sleeps" ] || { echo $$ >"$BOX/sleeping" && exec sleep 60; }
speed=$((1 + $(wc -l <"$BOX/calls") % 3))00
printf '{"device":"cuda","graph":true,"emulated":%s,"train_s":[0.1,0.025],"images_per_s":%s,' \
    "$(cat "$BOX/emulated")" "$speed"
printf '"test_acc":0.9912,"last_loss":0.01}\n'
EOF
pretend "$box/build/gpu_peak" <<'EOF'
for what in copy fma_f32 f32 tf32 bf16; do
    printf 'table=peak\twhat=%s\tvalue=50.5\tunit=TFLOP/s\n' $what
done
EOF
pretend "$box/build/gpu_convolutions" <<'EOF'
printf 'table=convolutions\tprecision=%s\tpeak=%s\tcopy=%s\n' "$@"
EOF
echo 'echo "1/1 Test #7: kernels.cuda_pretended ......   Passed    0.50 sec"' |
    pretend "$box/bin/ctest"
echo 'exit 0' | pretend "$box/build/test_kernels_cuda_pretended"
# Counts a failed call where it is not told otherwise; only memcheck knows how.
pretend "$box/bin/compute-sanitizer" <<'EOF'
case "$*" in
*"--tool memcheck --report-api-errors no --error-exitcode"*) exit 0 ;;
*memcheck* | *api-errors*) exit 9 ;;
esac
EOF
pretend "$box/bin/fake_python" <<'EOF'
echo "$*" >>"$BOX/peers"
[ ! -e "$BOX/no_torch" ] || { echo '{"ready": false, "reason": "python3 has no torch"}' && exit; }
echo '{"ready": true, "torch": "0.0", "cuda": "0.0", "cudnn": 1}'
while read -r model batch precision rest; do
    loss=0.1
    [ "$model $batch $precision" != "$(cat "$BOX/nan")" ] || loss='"nan"'
    [ "$model $batch $precision" != "$(cat "$BOX/stuck")" ] || exec sleep 60
    echo '{"images_per_s": 50, "train_s": [1.0], "test_acc": 0.95, "last_loss": '$loss'}'
done
EOF

json=$box/results/gpu-pretender-1.json table=$box/results/gpu-pretender-1.md
become_check() { # STAGES, further settings as NAME=VALUE
    STAGES=$1
    shift
    exec env "$@" BOX="$box" PATH="$box/bin:$PATH" STAGES="$STAGES" RESULTS="$box/results" \
        GPU_BUILD="$box/build" PYTHON=fake_python MNIST_DDP_DATA="$box/data" NAME= \
        bash scripts/gpu_check.sh >"$box/log" 2>&1
}
check() { (become_check "$@"); }
expect() { # TEXT FILE
    grep -qF -- "$1" "$2" || { echo "no \"$1\" in $2:" && cat "$2" "$box/log" && exit 1; }
}
comes_true() { # within 20 s
    for ((i = 0; i < 200; i++)); do
        ! "$@" || return 0
        sleep 0.1
    done
    echo "never came true: $*" && exit 1
}
is_gone() { ! kill -0 "$1" 2>/dev/null; }
fails() { ! "$@" || { echo "passes: $*" && exit 1; }; }

echo false >"$box/emulated"
touch "$box/nan" "$box/stuck"
check "bench train" || { cat "$box/log" && exit 1; }
expect '"gpu": "NVIDIA Pretender 1"' "$json"
expect '"bench": {"status": "passed"' "$json"
expect '{"table": "convolutions", "precision": "tf32", "peak": 50.5, "copy": 50.5}' "$json"
expect '"model": "cnn", "precision": "bf16", "batch": 4096, "images_per_s": 200' "$json"
expect '"ranks": 2, "graph": true, "accuracy_%": 99.12, "goal_%": 98.5, "train_s": 0.125' "$json"
expect '| mlp | fp16 | 1 | true | 99.12 | 97.5 | 0.125 |' "$table"
expect '## train: passed' "$table"

check test || { cat "$box/log" && exit 1; }
expect '"check": "memcheck", "program": "test_kernels_cuda_pretended", "result": "passed"' "$json"
expect '"check": "racecheck", "program": "test_kernels_cuda_pretended", "result": "passed"' "$json"

# The stage torch is behind by one measurement that does not count; the stages before it stay.
rm -f "$box"/build/gpu-check/*
echo "mlp 64 f32" >"$box/nan"
: >"$box/calls"
fails check torch
expect '"result": "does not count' "$json"
expect '"ours_images_per_s": 200, "torch_images_per_s": 50, "ratio": 4.00' "$json"
expect '"torch": {"status": "failed"' "$json"
expect '"train": {"status": "passed"' "$json"
expect '| mlp | f32 | 512 | 200 | 50 | 4.00 |' "$table"

# There both sides take cuDNN's first choice, in 18 settings of 3 runs, one given up after the first;
# then both time its engines, for the cnn.
expect '{"table": "tuned", "model": "cnn", "precision": "tf32", "batch": 4096' "$json"
[ "$(uniq -c <"$box/calls" | xargs)" = "52 autotune 1 27 autotune 8" ] || fails uniq -c "$box/calls"
[ "$(grep -o -e --tune -e '--limit [0-9]*$' "$box/peers" | xargs)" = "--limit 57344 --tune" ] ||
    fails cat "$box/peers"

# A comparison that is cut names what is missing; it is a failure where nothing counts.
echo "mlp 512 f32" >"$box/stuck"
fails check compiled STAGE_LIMIT_S=2
expect '"compiled": {"status": "cut"' "$json"
: >"$box/nan"
check compiled STAGE_LIMIT_S=8 || { cat "$box/log" && exit 1; }
expect '"compiled": {"status": "cut"' "$json"
expect 'no time left for 17 of 18 settings' "$table"
expect '| mlp | f32 | 64 | 200 | 50 | 4.00 |' "$table"
[ "$(grep -c '"result": "not measured: no time left"' "$json")" = 17 ] || fails cat "$json"
echo "mlp 64 f32" >"$box/stuck"
fails check compiled STAGE_LIMIT_S=2
: >"$box/stuck"

touch "$box/no_torch"
check compiled
expect '"compiled": {"status": "skipped"' "$json"
expect 'python3 has no torch' "$table"

# No figure comes from an emulated device.
echo true >"$box/emulated"
fails check bench
expect 'this device is an emulation' "$table"
expect '"bench": {"status": "failed"' "$json"
echo false >"$box/emulated"

# A stage that takes too long is cut and says so, also where the whole run is ended from outside;
# then nothing of it goes on.
touch "$box/sleeps"
fails check train STAGE_LIMIT_S=1
expect '"train": {"status": "cut"' "$json"
rm -f "$box/build/gpu-check/train.head" "$json" "$box/sleeping"
become_check train &
comes_true test -s "$box/sleeping"
kill "$!"
fails wait "$!"
expect '"train": {"status": "cut"' "$json"
comes_true is_gone "$(cat "$box/sleeping")"
rm -f "$box/sleeps"
fails check "train hurry"
expect 'no stage "hurry"' "$box/log"

if command -v python3 >/dev/null; then
    python3 -m json.tool "$json" >/dev/null
fi
echo "ok"
