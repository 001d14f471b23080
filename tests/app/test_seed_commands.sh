#!/bin/bash
# Every command line of the notes that this program began with, as it is typed here: `python -m
# torch.distributed.launch` and `torchrun` become `mnist_ddp run`, their own training script becomes
# `mnist_ddp`. And their mistakes: each gets an answer within two seconds.
set -eu
# shellcheck source=/dev/null
. "$SOURCE_DIR/tests/support/facts.sh"
program=$BUILD_DIR/mnist_ddp
work=$(mktemp -d /tmp/mnist_ddp-seeds-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset MNIST_DDP_DATA RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS
unset CUDA_VISIBLE_DEVICES
export HOME=$work XDG_CACHE_HOME=$work/cache TMPDIR=$work # our own digits, made once

# Python, as far as the launcher is concerned: a script's arguments and its place.
cat >python <<'END'
#!/bin/sh
echo "rank=$RANK local=$LOCAL_RANK world=$WORLD_SIZE node=$NODE_RANK" \
    "master=$MASTER_ADDR:$MASTER_PORT args=$*"
END
chmod +x python
export PYTHON_EXEC=$work/python
for script in example MNIST train ddp demo main; do
    echo "parser.add_argument('--local_rank', default=-1)" >$script.py
done

fail() {
    echo "FAIL: $*" >&2
    tail -n 30 ./*.out ./*.err >&2
    exit 1
}

# The command $@ ends well and prints $1 lines, of them one with $2.
gives() {
    local lines=$1 words=$2
    shift 2
    timeout 60 "$@" >seed.out 2>seed.err || fail "$*: exit $?"
    [ "$(wc -l <seed.out)" = "$lines" ] || fail "$*: not $lines lines"
    grep -qF -- "$words" seed.out || fail "$*: no '$words'"
}

# The command after "--" fails within two seconds; a line of its stderr holds the facts before it.
refuses() {
    local start code=0 facts=()
    while [ "$1" != -- ]; do
        facts+=("$1")
        shift
    done
    shift
    start=$(date +%s%N)
    timeout 60 "$@" >seed.out 2>seed.err || code=$?
    case $code in
    0 | 124) fail "$*: exit $code" ;;
    esac
    [ $(($(date +%s%N) - start)) -lt 2000000000 ] || fail "$*: more than two seconds"
    facts_in_a_line "$(cat seed.err)" "${facts[@]}" || fail "$*: does not say: ${facts[*]}"
}

free_port() {
    local port
    for ((;;)); do
        port=$((20000 + RANDOM % 4000))
        if ! (echo >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo $port
            return
        fi
    done
}


# --- one machine: python -m torch.distributed.launch ... SCRIPT -----------------------------------
gives 2 "rank=1 local=1 world=2 node=0" "$program" run --nproc_per_node=2 --nnode=1 --node_rank=0 \
    example.py --local_world_size=2
gives 2 "args=-u example.py --local_world_size=2" "$program" run --nnode=1 --node_rank=0 \
    --nproc_per_node=2 example.py --local_world_size=2
gives 2 "args=-u example.py --local_rank=1 --local_world_size=2" "$program" run --no-use-env \
    --nproc_per_node=2 --nnode=1 --node_rank=0 example.py --local_world_size=2
gives 1 "args=-u train.py --args" "$program" run train.py --args
gives 8 "rank=7 local=7 world=8" "$program" run --nproc_per_node 8 train.py
gives 8 "rank=7 local=7 world=8" "$program" run --nproc-per-node=8 --nnodes=1 --node-rank=0 \
    --master-addr=192.168.0.1 --master-port="$(free_port)" MNIST.py
gives 4 "args=-u ddp.py --local_rank=3" "$program" run --use-env=false --nproc_per_node 4 ddp.py
gives 2 "args=-u ddp.py" "$program" run --nproc_per_node 2 --use_env ddp.py
gives 2 "world=2" "$program" run --nnodes=1 --node_rank=0 --nproc_per_node 2 \
    --master_addr=127.0.0.1 --master_port="$(free_port)" ddp.py
gives 2 "args=-u main.py --arch resnet18 --epochs 20 --batch-size 32 /workspace/data" \
    "$program" run --standalone --nnodes=1 --nproc_per_node=2 main.py --arch resnet18 --epochs 20 \
    --batch-size 32 /workspace/data
gives 2 "args=-u main.py" "$program" run --nnodes=1 --nproc_per_node=2 --standalone main.py
echo "torch.distributed.launch and torchrun on one machine: ok"

# --- two machines, by the addresses of the notes: what each would start ---------------------------
address="--master_addr=192.168.0.1 --master_port=12355"
for node in 0 1; do
    # shellcheck disable=SC2086  # $address is words
    "$program" run --dry-run --nproc_per_node=8 --nnodes=2 --node_rank=$node $address MNIST.py \
        >dry.$node.out
    plan=$(cat dry.$node.out)
    facts_in_a_line "$plan" "node $node of 2" this $((node * 8)) $((node * 8 + 7)) 16 ||
        fail "dry run of node $node"
    ! facts_in_a_line "$plan" "node $((1 - node)) of 2" this || fail "dry run: not node $node"
    facts_in_a_line "$plan" RANK=15 LOCAL_RANK=7 WORLD_SIZE=16 MASTER_ADDR=192.168.0.1 \
        MASTER_PORT=12355 || fail "rank 15, dry run of node $node"
done
"$program" run --dry-run --nproc-per-node=4 --nnodes=2 --node-rank=0 --master-addr="192.168.1.1" \
    --master-port=1234 train.py --arg1 --arg2 --arg3 >dry.out
grep -qF "train.py --arg1 --arg2 --arg3" dry.out || fail "the dry run of node-rank 0"
"$program" run --dry-run --nnodes=2 --node_rank=1 --nproc_per_node 2 --master_addr=192.168.1.109 \
    --master_port=12346 ddp.py >dry.out
facts_in_a_line "$(cat dry.out)" MASTER_ADDR=192.168.1.109 MASTER_PORT=12346 || fail "the dry run of 12346"
echo "torch.distributed.launch on two machines, dry: ok"

# --- two "machines" on this one --------------------------------------------------------------------
port=$(free_port)
for node in 0 1; do
    timeout 60 "$program" run --nproc_per_node=8 --nnodes=2 --node_rank=$node \
        --master_addr=127.0.0.1 --master_port="$port" MNIST.py >launch.$node.out 2>launch.$node.err &
    pids[node]=$!
done
for node in 0 1; do wait "${pids[node]}" || fail "node $node of 2 x 8: exit $?"; done
[ "$(cat launch.?.out | wc -l)" = 16 ] || fail "2 x 8 are not 16 ranks"
grep -qF "rank=8 local=0 world=16 node=1 master=127.0.0.1:$port" launch.1.out || fail "rank 8"
echo "torch.distributed.launch, 2 x 8 ranks: ok"

train="--model mlp --limit 256 --batch-size 8 --epochs 1 --threads 1 --json"
# The nodes count themselves. The notes' address is another machine's; this one's own stands for it.
own=$(hostname -I 2>/dev/null | awk '{ print $1 }')
if [ -n "$own" ]; then
    port=$(free_port)
    for node in 0 1; do
        # shellcheck disable=SC2086  # $train is words
        timeout 120 "$program" --world_size=16 --node_rank=$node --master_addr="$own" \
            --master_port="$port" $train --run-dir world16 >world.$node.out 2>world.$node.err &
        pids[node]=$!
    done
    # Meanwhile 15 ranks do not divide by two nodes: said on both, once no other has come for 5 s.
    port=$(free_port)
    for node in 0 1; do
        # shellcheck disable=SC2086
        timeout 60 "$program" --world_size=15 --node_rank=$node --master_addr="$own" \
            --master_port="$port" --join-timeout 60 $train >odd.$node.out 2>odd.$node.err &
        odd[node]=$!
    done
    for node in 0 1; do
        code=0
        wait "${odd[node]}" || code=$?
        [ $code = 69 ] || fail "--world_size=15 on node $node of 2: exit $code"
        facts_in_a_line "$(cat odd.$node.err)" error --world-size=15 "2 nodes" "3 nodes" ||
            fail "--world_size=15: not said on node $node"
    done
    for node in 0 1; do wait "${pids[node]}" || fail "--world_size=16, node $node: exit $?"; done
    grep -q '"world":16,' world.0.out || fail "--world_size=16 is not 16 ranks"
    facts_in_a_line "$(cat world.0.err)" "node 0 of 2" "ranks 0 to 7 of 16" || fail "not 8 each"
    facts_in_a_line "$(cat world.0.err)" "nodes 0 to 1" --node-rank=2 || fail "who has come"
    # shellcheck disable=SC2086
    "$program" --nproc_per_node=16 $train --run-dir one16 >one.out 2>one.err || fail "16 ranks here"
    cmp world16/model.safetensors one16/model.safetensors || fail "2 x 8 ranks leave other weights"
    echo "demo.py --world_size=16, as typed on two machines: the weights of 16"
else
    echo "no address but loopback here: the lines with --world_size=16 are not tried"
fi
# shellcheck disable=SC2086
gives 1 '"world":2,' "$program" --world_size=2 --node_rank=0 $train --run-dir only
facts_in_a_line "$(cat seed.err)" --world-size=2 "only one" || fail "--world_size=2: not said"

# What node 0 prints for the other node is whole, and works when it is pasted.
: >paste.0.err # it is read before its writer may have begun
port=$(free_port)
# shellcheck disable=SC2086
PET_NNODES=2 timeout 60 "$program" --node_rank 0 --nproc-per-node=2 --master-addr=127.0.0.1 \
    --master-port="$port" $train --run-dir "a 'run'" >paste.0.out 2>paste.0.err &
first=$!
for ((n = 0; n < 1500; n++)); do
    line=$(sed -n 's/^on node 1: //p' paste.0.err)
    [ -z "$line" ] || break
    sleep .02
done
(unset PET_NNODES && timeout 60 sh -c "$line" >paste.1.out 2>paste.1.err) || fail "pasted: $line"
wait $first || fail "node 0 of the pasted line: exit $?"
grep -q '"world":4,' paste.0.out || fail "pasted: not 4 ranks: $line"
echo "the line for the other machine, pasted: ok"

# --- spawning, as mp.spawn(nprocs=3) does, and the notes' own training ----------------------------
# shellcheck disable=SC2086
gives 1 '"world":3,' "$program" --nproc_per_node=3 $train --run-dir spawn
# shellcheck disable=SC2086
gives 1 '"world":2,' "$program" --standalone --nnodes=1 --nproc_per_node=2 --use-env --local_rank=0 \
    --local_world_size=2 \
    $train --run-dir standalone
echo "spawned ranks: ok"

# --- mistakes ---------------------------------------------------------------------------------------
refuses --node-rank=5 --node-rank=2 --nnodes=6 -- "$program" run --nproc_per_node=8 \
    --nnodes=3 --node_rank=5 train.py
refuses --master_adderss --master-addr -- "$program" run --nnodes=2 \
    --node_rank=0 --nproc_per_node 8 --master_adderss 10.0.0.1 --master_port 29500 ddp.py
refuses --master_adderss --master-addr -- "$program" --nnodes=2 --node_rank=1 --nproc_per_node 8 \
    --master_adderss 10.0.0.1 --master_port 29500
refuses --master_address --master-addr -- "$program" run --master_address 10.0.0.1 ddp.py
refuses --nnodes=1:4 --nnodes=4 --rdzv-backend=c10d -- "$program" run --nnodes=1:4 \
    --nproc_per_node=2 main.py
refuses --world-size=16 --nnodes=N -- "$program" --world_size=16 --node_rank=1
refuses python command -- "$program" python demo.py --world_size=16
refuses torch.distributed.launch "mnist_ddp run" -- "$program" -m torch.distributed.launch demo.py
refuses --local-world-size=3 --nproc-per-node=2 -- "$program" --nproc_per_node=2 --local_world_size=3
refuses "mnist_ddp run MNIST.py" -- "$program" MNIST.py
refuses "backend nccl" -- "$program" --nproc_per_node=2 --backend nccl --device cpu
if ! "$program" doctor 2>/dev/null | grep -q 'GPU.*a run uses cuda'; then
    CUDA_VISIBLE_DEVICES=0,3 refuses CUDA -- "$program" --nproc_per_node=2 --device 0,3
    refuses --nproc-per-node=gpu GPU -- "$program" run --nproc_per_node=gpu train.py
fi

# The third machine of the notes says --nnodes=3, the other two 2.
port=$(free_port)
timeout 60 "$program" --nnodes=2 --node_rank=0 --nproc_per_node 2 --master_addr=127.0.0.1 \
    --master_port="$port" >nodes.0.out 2>nodes.0.err &
first=$!
for ((n = 0; n < 200; n++)); do
    ! (echo >"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    sleep .02
done
refuses --nnodes=3 --nnodes=2 "node 0" -- "$program" --nnodes=3 --node_rank=2 --nproc_per_node 2 \
    --master_addr=127.0.0.1 --master_port="$port"
code=0
wait $first || code=$?
[ $code = 69 ] || fail "node 0 of the job that cannot start: exit $code"
facts_in_a_line "$(cat nodes.0.err)" error --nnodes=3 --nnodes=2 || fail "node 0 is not told"
echo "mistakes: answered"
