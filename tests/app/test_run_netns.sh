#!/bin/bash
# Two and four "hosts" on this machine: network namespaces, joined by a bridge in one more. A job
# across them, mistakes of addressing, a link that is cut and a host that dies. SKIP where the
# kernel does not let us.
set -eu
# shellcheck source=../support/scratch.sh
. "$SOURCE_DIR/tests/support/scratch.sh"
# shellcheck source=../support/netns.sh
. "$SOURCE_DIR/tests/support/netns.sh"
trap 'netns_close; scratch_close' EXIT
netns_open 10.77.0 4

unset OMP_NUM_THREADS
export HOME=$work XDG_CACHE_HOME=$work/cache # without $MNIST_DDP_DATA our own digits, made once
"$program" --model mlp --limit 64 --epochs 1 --no-save-model --threads 1 >/dev/null 2>&1

backend=gloo
[ -e "$BUILD_DIR/mnist_ddp_gloo.so" ] || backend=

# Starts a command on host $1; its output goes to $2.out and $2.err.
on() {
    local host=$1 name=$2
    shift 2
    timeout 120 ip netns exec "${netns[host]}" "$@" >"$name.out" 2>"$name.err" &
    started[host]=$!
}

code_of() { # of host $1's command, in $code
    code=0
    wait "${started[$1]}" || code=$?
}

holds() { # a line of file $1 holds all the other facts
    local file=$1
    shift
    facts_in_a_line "$(cat "$file" 2>/dev/null)" "$@"
}

expect() { # host $1's command ends with code $2; a line of $3.err holds all the other facts
    local name=$3
    code_of "$1"
    [ "$code" = "$2" ] || fail "$name: exit $code, want $2"
    shift 3
    [ $# = 0 ] || holds "$name.err" "$@" || fail "$name does not say: $*"
}

await() { # a line of file $1 with all the other facts
    for ((n = 0; n < 1200; n++)); do
        ! holds "$@" || return 0
        sleep .05
    done
    fail "does not come, file and facts: $*"
}

seconds_since() {
    awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { print b - a }'
}

within() { # $1 seconds at most, since $2
    awk -v l="$1" -v t="$(seconds_since "$2")" 'BEGIN { exit t > l }' ||
        fail "$3 took $(seconds_since "$2") s, want $1 s at most"
}

# --- any program, nodes that are numbered as they come -------------------------------------------
for i in 0 1 2 3; do
    on $i "c10d$i" "$program" run --nnodes=4 --nproc_per_node=2 --rdzv_backend=c10d \
        --rdzv_endpoint=10.77.0.1:29400 --rdzv_id=123 \
        -- sh -c "echo \$RANK \$WORLD_SIZE \$MASTER_ADDR"
done
for i in 0 1 2 3; do expect $i 0 "c10d$i"; done
first=$(awk '$1 == 0 { print $3 }' c10d?.out) # node 0 is who came first
[ "$(sort -n c10d?.out)" = "$(for r in 0 1 2 3 4 5 6 7; do echo "$r 8 $first"; done)" ] ||
    fail "the ranks of four hosts are not 0 to 7"
grep -q '^0 ' "c10d$((${first##*.} - 1)).out" || fail "MASTER_ADDR is not node 0's host"
echo "run on four hosts, c10d: ok"

# --- what gloo of other programs would tell the other host ---------------------------------------
# shellcheck disable=SC2016 # these words are another shell's to expand
named() { # the job's name, host 0's and host 1's own names, then flags: their ranks' interfaces
    local job=$1 names=("$2" "$3") i
    shift 3
    for i in 0 1; do
        on $i "$job$i" unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' - "${names[i]}" \
            "$program" run --nnodes=2 "$@" --node_rank=$i -- \
            sh -c 'echo ${GLOO_SOCKET_IFNAME-none} ${TP_SOCKET_IFNAME-none}'
    done
    for i in 0 1; do expect $i 0 "$job$i"; done
}
if unshare --uts true 2>/dev/null; then
    export TP_SOCKET_IFNAME=own
    named loops localhost 10.77.0.2 --master_addr=10.77.0.1
    unset TP_SOCKET_IFNAME
    named pair localhost localhost --rdzv_backend=c10d --rdzv_endpoint=10.77.0.2 --nproc_per_node=2
    [ "$(cat loops0.out loops1.out pair?.out)" = "eth0 own
none own
eth0 eth0
eth0 eth0
eth0 eth0
eth0 eth0" ] || fail "the interfaces of a script's ranks: $(cat loops?.out pair?.out)"
    holds loops0.err GLOO_SOCKET_IFNAME=eth0 loopback || fail "it is not said that they are set"
    echo "a host's name is a loopback address: ok"
fi

# --- mistakes of addressing -----------------------------------------------------------------------
start=$(date +%s.%N)
on 1 own "$program" --nnodes=2 --node_rank=1 --nproc_per_node=2 --master_addr=10.77.0.2 \
    --master_port=12346 --join-timeout=9
await own.err 10.77.0.2:12346 "node 1" "node 0" address
within 6 "$start" "the answer to a node's own address as master_addr"
expect 1 69 own error 10.77.0.2:12346
on 0 other "$program" --nnodes=2 --node_rank=0 --nproc_per_node=2 --master_addr=10.77.0.9 \
    --master_port=12346 --join-timeout=2
expect 0 69 other 10.77.0.9 10.77.0.1 eth0
on 1 nowhere "$program" --nnodes=2 --node_rank=1 --nproc_per_node=2 --master_addr=10.77.0.99 \
    --master_port=12346 --join-timeout=3
expect 1 69 nowhere 10.77.0.99:12346 firewall
echo "addresses that are wrong: ok"

# What host 0 answers is lost, as behind a firewall.
ip -n "${netns[0]}" route add blackhole 10.77.0.2/32
on 0 filtered0 "$program" run --nnodes=2 --node_rank=0 --master_addr=10.77.0.1 --join-timeout=5 \
    true
on 1 filtered1 "$program" run --nnodes=2 --node_rank=1 --master_addr=10.77.0.1 --join-timeout=3 \
    true
expect 1 69 filtered1 10.77.0.1 firewall
expect 0 69 filtered0 error "node 1" "rank 1"
ip -n "${netns[0]}" route del blackhole 10.77.0.2/32
echo "a firewall: ok"

[ -n "$backend" ] || skip "training across hosts needs gloo, which is not in this build"

# --- 16 ranks on two hosts and on four, and on one ------------------------------------------------
train() { # host, node, nodes, ranks, name, further flags
    local host=$1 node=$2 nodes=$3 ranks=$4 name=$5
    shift 5
    on "$host" "$name" "$program" train --nnodes="$nodes" --node_rank="$node" \
        --nproc_per_node="$ranks" --master_addr=10.77.0.1 --master_port=22335 --model mlp \
        --limit 1024 --batch-size 16 --epochs 1 --threads 1 --json "$@"
}
for nodes in 2 4; do
    for ((i = 0; i < nodes; i++)); do
        train $i $i $nodes $((16 / nodes)) "sixteen$nodes.$i" --backend gloo \
            --run-dir "sixteen$nodes"
    done
    for ((i = 0; i < nodes; i++)); do expect $i 0 "sixteen$nodes.$i"; done
done
on 0 one "$program" train --nproc_per_node=16 --backend gloo --model mlp --limit 1024 \
    --batch-size 16 --epochs 1 --threads 1 --json --run-dir one
expect 0 0 one
for nodes in 2 4; do
    cmp "sixteen$nodes/model.safetensors" one/model.safetensors ||
        fail "16 ranks on $nodes hosts leave other weights than on one"
done
echo "16 ranks on two and on four hosts, gloo: the weights of one host"

# --- a rank dies on another host: all start again -------------------------------------------------
for i in 0 1; do
    train $i $i 2 2 "again$i" --run-dir again --max-restarts 1 --epochs 3 \
        --inject kill:rank=3,step=40
done
for i in 0 1; do expect $i 0 "again$i" "rank 3" SIGKILL "1 of 1"; done
for i in 0 1; do train $i $i 2 2 "never$i" --run-dir never --epochs 3; done
for i in 0 1; do expect $i 0 "never$i"; done
cmp again/model.safetensors never/model.safetensors || fail "a restart changed the weights"
echo "a restart across two hosts: the weights of a run without"

# --- a link that is cut in the middle of an epoch -------------------------------------------------
alive="--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3"
long=(--epochs 100000 --no-save-model --timeout 5 "$alive")
for i in 0 1; do train $i $i 2 2 "cut$i" "${long[@]}"; done
await cut0.err "epoch 2/"
netns_cut 1
start=$(date +%s.%N)
for i in 0 1; do
    code_of $i
    case $code in
    0 | 124) fail "cut$i: exit $code" ;;
    esac
done
within 20 "$start" "the report of a cut link"
netns_mend 1
grep -qE "error: .*(node 1|rank [0-3])([^0-9]|\$)" cut0.err || fail "node 0 says nothing of the cut"
holds cut1.err error "node 0" 10.77.0.1:22335 || fail "node 1 says nothing of the cut"
echo "a link that is cut: reported"

# --- a host that dies -----------------------------------------------------------------------------
for i in 0 1; do train $i $i 2 2 "dead$i" "${long[@]}"; done
await dead0.err "epoch 2/"
start=$(date +%s.%N)
netns_cut 1 # it sends no more, not even that it ends
netns_kill 1
expect 0 72 dead0
within 20 "$start" "the report of a dead host"
grep -qE "error: .*(node 1|rank [23])([^0-9]|\$)" dead0.err || fail "node 0 does not say who died"
[ -z "$(ip netns pids "${netns[0]}")" ] || fail "processes are left on host 0"
echo "a host that dies: reported"
