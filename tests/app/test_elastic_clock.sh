#!/bin/bash
# Two nodes of an elastic job, one of which has its clock a day ahead or behind: one round, for
# longer than a lease of 3 s, and the weights of a job whose clocks are right.
set -eu
# shellcheck source=../support/scratch.sh
. "$SOURCE_DIR/tests/support/scratch.sh"
skew=$BUILD_DIR/clock_skew.so
[ -e "$skew" ] || skip "no clock_skew.so in this build"
[ -e "$BUILD_DIR/mnist_ddp_gloo.so" ] || skip "gloo is not in this build"
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0 # the clock is loaded before it
export HOME=$work XDG_CACHE_HOME=$work/cache # our own digits, made once
port=$((27000 + $$ % 1000))

node() { # job, its nodes, the skew of this node's clock; in the background
    local job=$1 nnodes=$2 seconds=$3
    LD_PRELOAD=$skew TEST_CLOCK_SKEW_S=$seconds timeout 60 "$program" train --nnodes="$nnodes" \
        --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:$port --rdzv-id="$job" \
        --rdzv-conf=keep_alive_interval=0.5,keep_alive_max_attempt=6,last_call_timeout=1 \
        --event-log="$job.jsonl" --run-dir="$job" --model=mlp --limit=640 --batch-size=16 \
        --epochs=2 --eval-every=0 --threads=1 --backend=gloo --inject-delay-ms=25 \
        >"$job.${#pids[@]}.out" 2>"$job.${#pids[@]}.err" &
    pids+=($!)
}

say_clock() { # the hours that the clock of a preloaded program is wrong
    local seen
    seen=$(LD_PRELOAD=$skew TEST_CLOCK_SKEW_S=$1 date +%s)
    echo $(((seen - $(date +%s) + 1800) / 3600))
}
"$program" --model=mlp --limit=64 --epochs=1 --no-save-model --threads=1 >/dev/null 2>&1
[ "$(say_clock 86400)" = 24 ] || fail "the clock is not a day wrong: the test tests nothing"

for seconds in 0 86400 -86400; do
    job=skew$seconds
    pids=()
    port=$((port + 1))
    node "$job" 2 0
    node "$job" 2 "$seconds"
    for pid in "${pids[@]}"; do wait "$pid" || fail "$job: exit $?"; done
    [ "$(grep -c '"round":1,"event":"round_begins"' "$job.jsonl")" = 2 ] || fail "$job: no round 1"
    ! grep -q '"round":2' "$job.jsonl" || fail "$job: a second round"
    cmp skew0/model.safetensors "$job/model.safetensors" || fail "$job: other weights"
done
echo "clocks a day apart: one round, the same weights"
