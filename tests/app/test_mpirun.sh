#!/bin/bash
# Open MPI's mpirun starts our program as its ranks: over shm and gloo, with the bits of our own
# launcher's run of as many ranks on the same backend. SKIP without mpirun.
set -eu
# shellcheck source=../support/scratch.sh
. "$SOURCE_DIR/tests/support/scratch.sh"
command -v mpirun >/dev/null || skip "no mpirun (package openmpi-bin)"
export HOME=$work XDG_CACHE_HOME=$work/cache # our own digits, made once
# As root, and with more ranks than cores, it wants to be asked.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl=self,vader,tcp

train() { # the command before, then flags
    local command=$1
    shift
    # shellcheck disable=SC2086  # words
    timeout 60 $command "$program" train --model mlp --limit 192 --epochs 1 --batch-size 16 \
        --threads 1 "$@" >out 2>err
}

backends=shm
[ ! -e "$BUILD_DIR/mnist_ddp_gloo.so" ] || backends="shm gloo"
for ranks in 2 4; do
    for backend in $backends; do
        run=$backend$ranks
        train "" --nproc-per-node=$ranks --backend "$backend" --run-dir "ours-$run" ||
            fail "our own launcher, $backend: exit $?"
        train "mpirun -n $ranks" --backend "$backend" --json --run-dir "$run" ||
            fail "mpirun -n $ranks, $backend: exit $?"
        [ "$(wc -l <out)" = 1 ] || fail "$run: stdout is not one line"
        grep -q "\"world\":$ranks,.*\"backend\":\"$backend\"" out || fail "$run: other ranks, or backend"
        says launcher "Open MPI" "rank 0 of $ranks" OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_SIZE \
            127.0.0.1 PMIX_NAMESPACE
        [ "$(grep -c 'launcher: ' err)" = 1 ] || fail "$run: not one rank says who started it"
        cmp "ours-$run/model.safetensors" "$run/model.safetensors" ||
            fail "$run: other weights than our own launcher's"
        echo "mpirun -n $ranks, $backend: the weights of our own launcher"
    done
done

# MPI itself, as the backend of the same ranks.
if [ -e "$BUILD_DIR/mnist_ddp_mpi.so" ]; then
    train "mpirun -n 2" --backend mpi --json --run-dir mpi || fail "mpirun, mpi: exit $?"
    grep -q '"world":2,.*"backend":"mpi"' out || fail "mpirun: not two ranks over mpi"
    says launcher "rank 0 of 2"
    echo "mpirun -n 2, mpi: ok"
fi

# A demo's ranks are those of mpirun: one demo, of as many ranks, told once.
timeout 60 mpirun -n 3 "$program" demo ring --json >out 2>err || fail "mpirun, demo: exit $?"
[ "$(grep -o '"world_size":[0-9]*' out)" = '"world_size":3' ] || fail "mpirun, demo: not one of 3 ranks"
code=0
timeout 60 mpirun -n 2 "$program" demo dp >out 2>err || code=$?
if [ $code != 64 ] || [ "$(grep -c 'error: demo dp' err)" != 1 ]; then
    fail "mpirun, demo of one process: exit $code, or not one line"
fi
if [ -e "$BUILD_DIR/mnist_ddp_mpi.so" ]; then
    timeout 60 "$program" demo ring --backend=mpi --json >out 2>err || fail "demo over mpi: exit $?"
    grep -q '"backend":"mpi"' out || fail "demo: another backend than mpi"
fi
echo "demo: ok"

# Two jobs at once do not meet. Neither says who has started it if it is to be quiet.
train "mpirun -n 2" --quiet --run-dir quiet &
first=$!
(mkdir -p beside && cd beside && train "mpirun -n 2" --run-dir ../other) || fail "the other job: exit $?"
wait $first || fail "mpirun, --quiet: exit $?"
[ ! -s err ] || fail "--quiet says something"
cmp ours-shm2/model.safetensors quiet/model.safetensors || fail "--quiet: other weights"
cmp ours-shm2/model.safetensors other/model.safetensors || fail "two jobs at once: other weights"
echo "two jobs at once: ok"

# mpirun gives its ranks a terminal; what stands behind it is a file, or asks for colours.
escape=$(printf '\033')
TERM=xterm train "mpirun -n 2" --run-dir plain || fail "with a terminal: exit $?"
! grep -q "$escape" out err || fail "escapes in a job's log: $(cat -v out)"
TERM=xterm CLICOLOR_FORCE=1 train "mpirun -n 2" --run-dir plain --resume --epochs 2 || fail "with colours: exit $?"
grep -q "$escape\[3.m" out || fail "no colours, though they were asked for"
! grep -q "$escape\[K" out err || fail "a bar in a job's log"
echo "no escapes: ok"

# A run is resumed by as many ranks as mpirun starts.
train "mpirun -n 2" --run-dir shm2 --resume --epochs 2 --batch-size 16 || fail "--resume: exit $?"
train "" --nproc-per-node=2 --run-dir ours-shm2 --resume --epochs 2 || fail "our own --resume: exit $?"
cmp ours-shm2/model.safetensors shm2/model.safetensors || fail "--resume: other weights"
echo "mpirun, --resume: ok"

# They meet where they are told to.
train "mpirun -n 2" --init-method "file://$work/meet" --run-dir file || fail "file://: exit $?"
cmp quiet/model.safetensors file/model.safetensors || fail "file://: other weights"
echo "mpirun, --init-method=file://: ok"

# A benchmark that runs as ranks.
timeout 60 mpirun -n 2 "$program" bench all-reduce -b 1K -e 1K --iters 2 --json >out 2>err ||
    fail "bench all-reduce: exit $?"
says launcher "rank 0 of 2"
echo "mpirun, bench all-reduce: ok"

# A rank that dies ends the job.
if train "mpirun -n 2" --run-dir killed --inject kill:rank=1,step=3; then
    fail "mpirun says 0 for a rank that is killed"
fi
says "rank 1"
# What each process would start again is not started.
if train "mpirun -n 2" --nproc-per-node=3 --run-dir refused; then
    fail "ranks that start ranks are not refused"
fi
says error --nproc-per-node OMPI_COMM_WORLD_LOCAL_SIZE --launcher=none
[ ! -e refused ] || fail "a run folder of a refused run"
echo "mpirun, mistakes: ok"
