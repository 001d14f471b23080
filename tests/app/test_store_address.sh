#!/bin/bash
# Where the store of a job of several nodes listens, who keeps others from it, and what limits
# launchers give their workers. In a network and a mount namespace of its own: addresses and /etc/hosts are this test's.
set -eu
if [ "${1:-}" != inside ]; then
    [ "$(id -u)" = 0 ] || { echo "SKIP: namespaces need root"; exit 77; }
    unshare -n -m true 2>/dev/null || { echo "SKIP: the kernel makes no namespaces here"; exit 77; }
    exec unshare -n -m --propagation private bash "$0" inside
fi
# shellcheck source=/dev/null
. "$SOURCE_DIR/tests/support/facts.sh"
program=$BUILD_DIR/mnist_ddp
work=$(mktemp -d /tmp/mnist_ddp-address-XXXXXX)
declare -a pids=() idles=()

fail() {
    echo "FAIL: $*" >&2
    tail -n 20 "$work"/*.err >&2
    exit 1
}

cleanup() {
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap cleanup EXIT

command -v ip >/dev/null || { echo "SKIP: no ip (iproute2)"; exit 77; }
ip link set lo up
ip addr add 10.77.1.1/32 dev lo
ip addr add 10.77.1.2/32 dev lo
ip -6 addr add fd77::1/128 dev lo 2>/dev/null || true
cat >"$work/hosts" <<'HOSTS'
127.0.0.1 localhost
127.0.1.1 own-name
10.77.1.1 known
10.77.1.1 several
10.77.1.2 several
HOSTS
mount --bind "$work/hosts" /etc/hosts
unset RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS
cd "$work"

# A line of node 0's stderr holds all these facts.
says() {
    facts_in_a_line "$(cat "zero.$port.err")" "$@"
}

# The local addresses, as the kernel writes them, of what listens on a port.
listeners() {
    printf -v port '%04X' "$1"
    awk -v port=":$port" '$4 == "0A" && substr($2, length($2) - 4) == port {
        print substr($2, 1, length($2) - 5) }' /proc/net/tcp /proc/net/tcp6 | sort | tr '\n' ' '
}

port=23450
# Node 0 is given $1 (and further flags), node 1 looks at $2; the store listens at $3.
job() {
    local given=$1 seen=$2 want=$3 code=0
    shift 3
    port=$((port + 1))
    timeout 30 "$program" run --nnodes=2 --node-rank=0 --master-addr="$given" \
        --master-port=$port "$@" true 2>"zero.$port.err" &
    pids+=($!)
    for ((n = 0; n < 200; n++)); do
        [ -z "$(listeners $port)" ] || break
        sleep .05
    done
    [ "$(listeners $port)" = "$want " ] ||
        fail "--master-addr=$given $*: listens at '$(listeners $port)', want '$want'"
    timeout 30 "$program" run --nnodes=2 --node-rank=1 --master-addr="$seen" \
        --master-port=$port true 2>"one.$port.err" || fail "node 1 at $seen: exit $?"
    wait "${pids[-1]}" || code=$?
    [ $code = 0 ] || fail "node 0 at $given: exit $code"
    [ "$(grep -cw listens "zero.$port.err")" = 1 ] || fail "it says not once where"
}

first=01014D0A all=00000000000000000000000000000000
[ -e /proc/net/tcp6 ] || all=00000000
job 10.77.1.1 10.77.1.1 $first
job known 10.77.1.1 $first
says listens 10.77.1.1 || fail "it does not say where it listens"
! says listens "all addresses" || fail "it says that it listens on all addresses"
job own-name 10.77.1.1 $all # other hosts know it by another address
says listens 127.0.1.1 || fail "it does not say why it listens on all addresses"
job several 10.77.1.2 $all
job 10.77.9.9 10.77.1.2 $all
job 10.77.9.9 10.77.1.1 $first --local-addr=10.77.1.1
if ip -6 addr show dev lo 2>/dev/null | grep -q fd77::1; then
    job fd77::1 fd77::1 000077FD000000000000000001000000
fi
job 0.0.0.0 10.77.1.2 $all
says listens "all addresses" || fail "0.0.0.0 is called one address"
job :: 10.77.1.2 $all
echo "addresses: ok"

# Launchers of one machine that call it by different names: the second is there as soon as the
# first's store, or at the same time. Both ranks reach the store where they are told that it is.
# shellcheck disable=SC2016 # the rank's shell expands it
reach='exec 3<>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT"'
meet() {
    local second=0 first=0
    port=$((port + 1))
    timeout 30 "$program" run --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint="$1" \
        --rdzv-conf=join_timeout=8 --no-python bash -c "$reach" 2>"zero.$port.err" &
    pids+=($!)
    for ((n = 0; n < 200 && ${3:-1}; n++)); do
        [ -z "$(listeners $port)" ] || break
        sleep .05
    done
    timeout 30 "$program" run --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint="$2" \
        --rdzv-conf=join_timeout=8 --no-python bash -c "$reach" 2>"one.$port.err" || second=$?
    wait "${pids[-1]}" || first=$?
    [ "$first $second" = "0 0" ] || fail "c10d at $1 and $2: exit $first and $second"
}
meet_all() {
    meet "$1:$((port + 1))" "$2:$((port + 1))"
    meet "$2:$((port + 1))" "$1:$((port + 1))"
}
meet_all 10.77.1.1 127.0.0.1
meet_all 10.77.1.1 own-name
meet_all 10.77.1.2 localhost
meet_all 10.77.1.1 10.77.1.2
if [ -e /proc/net/tcp6 ]; then meet_all known "[::1]"; fi
for _ in 1 2 3; do meet "10.77.1.1:$((port + 1))" "127.0.0.1:$((port + 1))" 0; done
echo "names of one machine: ok"

# Strangers that greet and ask nothing, more than there are descriptors.
port=$((port + 1))
(
    ulimit -n 128
    exec timeout 30 "$program" run --nnodes=2 --node-rank=0 --master-addr=10.77.1.1 \
        --master-port=$port true 2>idle0.err
) &
pids+=($!)
for ((n = 0; n < 200; n++)); do
    [ -z "$(listeners $port)" ] || break
    sleep .05
done
for ((n = 0; n < 150; n++)); do
    exec {idle}<>/dev/tcp/10.77.1.1/$port
    idles[n]=$idle
    printf '\0\xce\xf7\x85\x3c' 1>&"$idle" || true # as a client greets
done
timeout 30 "$program" run --nnodes=2 --node-rank=1 --master-addr=10.77.1.1 --master-port=$port \
    true 2>idle1.err || fail "node 1 behind idle strangers: exit $?"
wait "${pids[-1]}" || fail "node 0 with idle strangers: exit $?"
for idle in "${idles[@]}"; do exec {idle}>&-; done
echo "idle strangers: ok"

# A rank 0 that no launcher serves does the same for itself.
port=$((port + 1))
(
    ulimit -Sn 200
    export RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=10.77.1.1 MASTER_PORT=$port
    exec "$program" train --model mlp --limit 64 --no-save-model --backend shm 2>rank0.err
) &
pids+=($!)
for ((n = 0; n < 200; n++)); do
    [ -z "$(listeners $port)" ] || break
    sleep .05
done
[ "$(listeners $port)" = "$first " ] || fail "rank 0 listens at '$(listeners $port)', want $first"
read -r soft hard < <(awk '/Max open files/ { print $4, $5 }' "/proc/${pids[-1]}/limits")
[ "$soft" = "$hard" ] || fail "rank 0 may open $soft files of $hard"
kill -9 "${pids[-1]}" # it would wait for rank 1, and then for a checkpoint
wait "${pids[-1]}" 2>/dev/null || true
echo "a rank without a launcher: ok"

# The launcher raises its limit on open files, and a worker has the user's.
ulimit -Sn 200
"$program" run --nproc-per-node=1 --max-restarts=1 -- sh -c \
    "ulimit -Sn; awk '/Max open files/ { print \$4, \$5 }' /proc/\$PPID/limits" >limits.out 2>limits.err
read -r worker <limits.out
read -r soft hard < <(tail -n 1 limits.out)
[ "$worker" = 200 ] || fail "a worker may open $worker files, want 200"
[ "$soft" = "$hard" ] || fail "the launcher may open $soft files of $hard"
echo "limits: ok"
