#!/bin/bash
# --health-check-port of a launcher: it answers while it lives, and not while it hangs. SKIP without
# libmicrohttpd.
set -eu
# shellcheck source=../support/scratch.sh
. "$SOURCE_DIR/tests/support/scratch.sh"
[ -e "$BUILD_DIR/mnist_ddp_microhttpd.so" ] || skip "libmicrohttpd is not in this build"
port=$((28000 + $$ % 1000))

answer() { # of the port, within a second, in $1; to the path $2
    local line
    : >"$1"
    exec 3<>/dev/tcp/127.0.0.1/$port || return 1
    printf 'GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n' "${2:-/}" >&3
    while read -r -t 1 line <&3; do printf '%s\n' "$line" >>"$1"; done
    exec 3>&-
}

TORCHELASTIC_HEALTH_CHECK_PORT=$port "$program" run --nproc-per-node=2 -- sleep 30 >out 2>err &
pids+=($!)
for ((i = 0; i < 600; i++)); do
    if answer answer.out 2>/dev/null && grep -q '"runs"' answer.out; then break; fi
    sleep .05
done
facts_in_a_line "$(head -n 1 answer.out)" 200 || fail "a living launcher does not answer 200"
facts_in_a_line "$(cat answer.out)" '"state":"runs"' '"world_size":2' || fail "it does not say how it is"
kill -STOP "${pids[0]}"
while grep -q '^State:.*\(sleeping\|running\)' "/proc/${pids[0]}/task/"*/status; do sleep .05; done
answer answer.out || true
! grep -q 200 answer.out || fail "a stopped launcher answers 200"
kill -CONT "${pids[0]}"
kill -TERM "${pids[0]}"
wait "${pids[0]}" || true

# Of a training, on its own too: what the rank says of itself.
TORCHELASTIC_HEALTH_CHECK_PORT=$port "$program" --model=mlp --epochs=1000000 --no-save-model >out 2>err &
pids+=($!)
for ((i = 0; i < 600; i++)); do
    if answer answer.out /metrics 2>/dev/null && grep -q "^mnist_ddp_images_per_second" answer.out; then break; fi
    sleep .05
done
for name in 'epoch{rank="0"}' 'steps_total{rank="0"}' loss images_per_second; do
    grep -q "^mnist_ddp_$name [0-9.]*[1-9]" answer.out || fail "no $name: $(cat answer.out)"
done
# ps, pidof and pkill know a rank by its name, and by its number.
read -r rank _ <"/proc/${pids[1]}/task/${pids[1]}/children" || true # it ends without a newline
[ "$(<"/proc/$rank/comm")" = mnist_ddp ] || fail "the rank's name is $(<"/proc/$rank/comm")"
title=$(tr '\0' ' ' <"/proc/$rank/cmdline")
[[ $title = "mnist_ddp: rank 0/1 --model"* ]] || fail "ps shows a rank as $title"
kill -TERM "${pids[1]}"
wait "${pids[1]}" || true

code=0
"$program" run --health-check-port=$port -- sh -c "'$program' run --health-check-port=$port true" \
    >out 2>err || code=$?
[ $code = 64 ] || fail "a port that is taken: exit $code"
says "$port" || fail "it does not say which port is taken"
TORCHELASTIC_HEALTH_CHECK_PORT=no "$program" run true >out 2>err || fail "exit $?"
says TORCHELASTIC_HEALTH_CHECK_PORT=no "no port"
echo "the health port: ok"
