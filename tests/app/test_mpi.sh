#!/bin/bash
# Training with --backend=mpi: ranks that mpirun starts, or our own command by way of mpirun. What
# it says if a rank is killed or stopped, and if MPI cannot be had. SKIP without Open MPI.
set -eu
# shellcheck source=../support/scratch.sh
. "$SOURCE_DIR/tests/support/scratch.sh"
command -v mpirun >/dev/null || skip "no mpirun (package openmpi-bin)"
[ -e "$BUILD_DIR/mnist_ddp_mpi.so" ] || skip "the mpi module is not built"
export HOME=$work XDG_CACHE_HOME=$work/cache # our own digits, made once
export OMPI_MCA_btl=self,vader,tcp
# Open MPI leaves memory behind, of parts that it has unloaded: no suppression knows them.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

train() {
    timeout 60 "$program" train --model mlp --limit 192 --epochs 1 --batch-size 16 --threads 1 \
        "$@" >out 2>err
}

exits() { # code, then what train gets
    local want=$1 code=0
    shift
    train "$@" || code=$?
    [ $code = "$want" ] || fail "$*: exit $code, want $want"
}

by_mpirun() {
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
        timeout 60 mpirun -n "$1" "$program" train --model mlp --limit 192 --epochs 1 \
        --batch-size 16 --threads 1 --backend mpi --run-dir "$2" >out 2>err
}

accuracy() {
    sed -n 's/.*"test_acc":\([0-9.]*\).*/\1/p' "$1/result.json" | head -1
}

# Two numbers have one sum: the bits of shm. Of more, MPI's order is its own, but always the same.
train --nproc-per-node=2 --backend shm --run-dir shm2 || fail "shm: exit $?"
exits 0 --nproc-per-node=2 --backend mpi --run-dir ours2 --json
[ "$(wc -l <out)" = 1 ] || fail "stdout is not one line"
grep -q '"world":2,.*"backend":"mpi"' out || fail "other ranks, or backend"
! grep -q "$(printf '\033')" out || fail "colours in a file"
cmp shm2/model.safetensors ours2/model.safetensors || fail "2 ranks: other weights than shm's"
exits 0 --nproc-per-node=3 --standalone --backend mpi --run-dir ours3
by_mpirun 3 theirs3 || fail "mpirun -n 3: exit $?"
cmp ours3/model.safetensors theirs3/model.safetensors || fail "3 ranks: other weights by mpirun"
train --nproc-per-node=3 --backend shm --run-dir shm3 || fail "shm: exit $?"
[ -n "$(accuracy ours3)" ] || fail "3 ranks: no accuracy"
[ "$(accuracy shm3)" = "$(accuracy ours3)" ] ||
    fail "3 ranks: accuracy $(accuracy ours3), with shm $(accuracy shm3)"
exits 0 --max-restarts=1 --tee=3 --backend mpi --run-dir alone # one rank needs no mpirun
echo "weights and accuracy: ok ($(accuracy ours3))"

# The first cause, and an exit code that says it. Nobody hangs.
exits 137 --nproc-per-node=3 --backend mpi --run-dir killed --inject kill:rank=1,step=3
says "rank 1 (pid " "is gone" mpi
exits 110 --nproc-per-node=2 --backend mpi --run-dir stopped --inject stop:rank=1,step=3 --timeout 6
says "[rank 0]" "rank 1 (pid " "is stopped"
echo "killed and stopped ranks: ok"

# Ranks that differ: the call without our variables, and how to find out more.
code=0
# shellcheck disable=SC2016 # each rank's own
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 mpirun --oversubscribe -n 2 \
    sh -c 'case $OMPI_COMM_WORLD_RANK in 0) what=all-reduce;; *) what=all-gather;; esac
        exec "$0" bench $what -b 64K -e 64K --backend mpi --device cpu --timeout 6' "$program" \
    >out 2>err || code=$?
[ $code != 0 ] || fail "ranks that differ: exit 0"
says error "MPI_Test: MPI_ERR_TRUNCATE" --debug=detail

exits 64 --nproc-per-node=2 --nnodes=2 --node-rank=0 --master-addr=127.0.0.1 --backend mpi
says error "mpirun -n 4" "-H HOST1:2,HOST2:2" --master-addr=HOST1
OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 exits 64 --nproc-per-node=2 --backend mpi
says error OMPI_COMM_WORLD_RANK=0 "mpirun -n 2"
MNIST_DDP_MPI_MODULE=/nowhere exits 64 --nproc-per-node=2 --backend mpi
says error "backend mpi" /nowhere
mkdir bin
for tool in timeout env; do ln -s "$(command -v $tool)" bin/; done
PATH=$work/bin exits 64 --nproc-per-node=2 --backend mpi
says error mpirun openmpi-bin
PATH=$work/bin timeout 60 "$program" doctor --nproc-per-node=2 --backend mpi >err && fail "doctor misses mpirun"
says failed backend mpirun openmpi-bin
for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((24000 + $$ % 1000)) \
        timeout 60 "$program" train --model mlp --limit 192 --backend mpi >out$rank 2>err$rank &
done
wait
cp out0 out && cp err0 err
says "rank 0" "MPI has not started this process" "mpirun -n" "--nproc-per-node"
echo "mistakes: ok"
