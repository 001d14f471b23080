#!/bin/bash
# A PyTorch script runs under `mnist_ddp run` as it is: DistributedDataParallel over gloo through our
# store, on one node and on two, also after a restart; and what @record notes is in the report. SKIP
# without $TORCH_PYTHON, a Python that has torch.
set -eu
if ! [ -x "${TORCH_PYTHON:-/nowhere/python}" ]; then
    echo "SKIP: TORCH_PYTHON='${TORCH_PYTHON:-}' names no Python with torch"
    exit 77
fi
# shellcheck source=/dev/null
. "$SOURCE_DIR/tests/support/facts.sh"
program=$BUILD_DIR/mnist_ddp
work=$(mktemp -d /tmp/mnist_ddp-torch-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS
export PYTHON_EXEC=$TORCH_PYTHON TORCH_CPP_LOG_LEVEL=ERROR TMPDIR=$work PYTHONWARNINGS=ignore

fail() {
    echo "FAIL: $*" >&2
    tail -n 40 ./*.out ./*.err >&2
    exit 1
}

free_port() {
    "$TORCH_PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}

# Trains a little and prints a sum of the weights, which all ranks have alike. Before the end of its
# first attempt rank 1 dies, or raises, as the argument says.
cat >ddp.py <<'END'
import os, signal, sys
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

@record
def main():
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(rank)  # DDP makes the weights rank 0's
    model = DDP(torch.nn.Linear(10, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        if step == 2 and rank == 1 and attempt == 0 and "die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 2 and rank == 1 and "raise" in sys.argv:
            raise ValueError("no more data")
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 10))
        loss.backward()
        optimizer.step()
    total = sum(p.double().sum().item() for p in model.parameters())
    # One write: print would hand the pipe, which both ranks share, the line in pieces.
    sys.stdout.write(f"attempt {attempt} world {dist.get_world_size()} sum {total}\n")
    dist.destroy_process_group()

main()
END

timeout 120 "$program" run --nproc_per_node=2 --max-restarts=2 ddp.py die >die.out 2>die.err ||
    fail "a script that dies once: exit $?"
facts_in_a_line "$(cat die.err)" "rank 1" SIGKILL "1 of 2" || fail "no restart"
[ "$(grep -c 'attempt 1 world 2 sum' die.out)" = 2 ] || fail "not two ranks in attempt 1"
# Now and then torch aborts as it exits, which makes one more attempt: it has the same weights.
[ "$(awk '{ print $NF }' die.out | sort -u | wc -l)" = 1 ] || fail "the ranks have other weights"
echo "DDP over gloo, and again after a restart: ok"

code=0
timeout 120 "$program" run --nproc_per_node=2 --standalone ddp.py raise >raise.out 2>raise.err ||
    code=$?
[ $code = 1 ] || fail "a script that raises: exit $code"
facts_in_a_line "$(cat raise.err)" error "rank 1" "exit code 1" || fail "not rank 1 is blamed"
sed -n '/exit code 1/,$p' raise.err | grep -qF "ValueError: no more data" || fail "not why"
echo "a script that raises: ok"

port=$(free_port)
for node in 0 1; do
    timeout 120 "$program" run --nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d \
        --rdzv_endpoint="localhost:$port" ddp.py >node.$node.out 2>node.$node.err &
    pids[node]=$!
done
for node in 0 1; do wait "${pids[node]}" || fail "node $node of two: exit $?"; done
[ "$(cat node.?.out | grep -c 'attempt 0 world 2 sum')" = 2 ] || fail "not two ranks"
[ "$(sort -u node.?.out | wc -l)" = 1 ] || fail "the nodes have other weights"
echo "DDP over gloo on two nodes, c10d: ok"
