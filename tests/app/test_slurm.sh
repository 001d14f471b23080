#!/bin/bash
# Slurm in a box: a controller and two nodes, all of them this machine, in namespaces of their own
# that end with the test. srun starts our program as ranks and as the launcher of each node, and
# sbatch runs the files of configs/cluster/: all leave the bits of our own launcher's run. SKIP
# without Slurm, or where it does not start.
set -eu

skip() {
    echo "SKIP: $*"
    exit 77
}

if [ -z "${MNIST_DDP_TEST_INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] || skip "Slurm's daemons need root"
    for word in slurmctld slurmd srun sbatch salloc sinfo; do
        PATH=$PATH:/usr/sbin command -v $word >/dev/null ||
            skip "no $word (packages slurmctld, slurmd and slurm-client)"
    done
    command -v ip >/dev/null || skip "no ip (iproute2)"
    inside=(unshare --mount --net --pid --fork --kill-child --mount-proc)
    "${inside[@]}" ip link set lo up 2>/dev/null || skip "the kernel makes no namespaces here"
    MNIST_DDP_TEST_INSIDE=$(mktemp -d /tmp/mnist_ddp-slurm-XXXXXX)
    export MNIST_DDP_TEST_INSIDE
    trap 'rm -rf "$MNIST_DDP_TEST_INSIDE"' EXIT
    code=0
    timeout -s KILL 200 "${inside[@]}" bash "$0" || code=$? # and all that is inside
    exit $code
fi
# shellcheck source=/dev/null
. "$SOURCE_DIR/tests/support/facts.sh"
work=$MNIST_DDP_TEST_INSIDE
cd "$work"
unset MNIST_DDP_TEST_INSIDE MNIST_DDP_DATA RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
export HOME=$work XDG_CACHE_HOME=$work/cache # our own digits, made once
export SLURM_CONF=$work/slurm.conf PATH=$BUILD_DIR:$PATH:/usr/sbin

fail() {
    echo "FAIL: $*" >&2
    tail -n 30 -v out err ./*.log >&2
    exit 1
}

says() {
    facts_in_a_line "$(cat err)" "$@" || fail "no line says: $*"
}

ip link set lo up
# Without an interface beside loopback, neither Slurm nor mpirun opens a port.
ip link add eth0 type veth peer name eth1 2>/dev/null || skip "the kernel has no veth"
ip addr add 10.77.0.1/24 dev eth0
ip link set eth0 up
ip link set eth1 up
printf '127.0.0.1 localhost\n127.0.0.1 n1\n127.0.0.1 n2\n' >hosts
mount --bind hosts /etc/hosts
cat >slurm.conf <<END
ClusterName=box
SlurmctldHost=localhost
SlurmctldPort=26817
SlurmctldPidFile=$work/slurmctld.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdPidFile=$work/%n.pid
SlurmdLogFile=$work/%n.log
SlurmdSpoolDir=$work/%n
StateSaveLocation=$work/state
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SwitchType=switch/none
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port=26818 CPUs=4
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=26819 CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
END
mkdir state n1 n2
{ timeout 10 slurmctld && timeout 10 slurmd -N n1 && timeout 10 slurmd -N n2; } >out 2>err ||
    skip "Slurm does not start: $(cat err)"
idle() {
    timeout 5 sinfo -h -N -o '%T' 2>/dev/null | grep -c idle || true
}
start=$SECONDS
until [ "$(idle)" = 2 ]; do
    [ $((SECONDS - start)) -lt 20 ] || skip "Slurm's nodes are not idle: $(tail -n 1 ./*.log)"
    sleep .1
done

small="--model mlp --limit 192 --epochs 1 --batch-size 16 --threads 1"
run() { # a command of Slurm's, then flags of ours
    local command=$1
    shift
    # shellcheck disable=SC2086  # words
    timeout 60 $command mnist_ddp train $small "$@" >out 2>err
}

same() { # the weights of run $2 are those of run $1
    cmp "$1/model.safetensors" "$2/model.safetensors" || fail "$2: other weights than $1"
}

for ranks in 2 4; do
    run "" --nproc-per-node=$ranks --run-dir ours$ranks || fail "our own launcher: exit $?"
    run "srun -N1 -n$ranks" --run-dir srun$ranks --json || fail "srun -n$ranks: exit $?"
    [ "$(wc -l <out)" = 1 ] || fail "srun -n$ranks: stdout is not one line"
    says launcher srun "rank 0 of $ranks" SLURM_PROCID SLURM_STEP_TASKS_PER_NODE 127.0.0.1
    [ "$(grep -c 'launcher: ' err)" = 1 ] || fail "srun -n$ranks: not one rank says who started it"
    same ours$ranks srun$ranks
    echo "srun -n$ranks on one node: the weights of our own launcher"
done

run "srun -N2 --ntasks-per-node=2" --run-dir nodes || fail "srun -N2: exit $?"
says launcher srun "rank 0 of 4" n1
same ours4 nodes
run "srun -N2 --ntasks-per-node=1" --nproc-per-node=2 --run-dir agents || fail "agents: exit $?"
says launcher srun "node 0 of 2" n1
same ours4 agents
echo "srun on two nodes, as ranks and as launchers: the weights of our own launcher"

if [ -e "$BUILD_DIR/mnist_ddp_gloo.so" ]; then
    run "" --nproc-per-node=4 --backend gloo --run-dir oursgloo || fail "gloo: exit $?"
    run "srun -N2 -n4" --backend gloo --run-dir srungloo || fail "srun, gloo: exit $?"
    same oursgloo srungloo
    echo "srun -N2 -n4 over gloo: the weights of our own launcher"
fi
for plugin in pmi2 pmix; do
    srun --mpi=list 2>&1 | grep -qw $plugin || continue
    run "srun -N1 -n2 --mpi=$plugin" --run-dir $plugin || fail "srun --mpi=$plugin: exit $?"
    says launcher srun "rank 0 of 2"
    same ours2 $plugin
    echo "srun --mpi=$plugin: ok"
    if [ $plugin != pmix ] || [ ! -e "$BUILD_DIR/mnist_ddp_mpi.so" ]; then continue; fi
    run "srun -N1 -n2 --mpi=pmix" --backend mpi --run-dir srunmpi || fail "srun, mpi: exit $?"
    same ours2 srunmpi
    if run "srun -N1 -n2" --backend mpi --run-dir nompi; then fail "MPI without --mpi=pmix"; fi
    says error "MPI" "srun --mpi=pmix" "mpirun"
    echo "srun --mpi=pmix over MPI: the weights of our own launcher"
done

# What an allocation holds is no step of it.
run "salloc -N1 -n4" --nproc-per-node=2 --run-dir salloc || fail "salloc: exit $?"
! grep -q 'launcher: ' err || fail "salloc alone is taken for srun"
same ours2 salloc
if command -v mpirun >/dev/null; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    run "salloc -N1 -n4 mpirun -n 2" --run-dir mpirun || fail "mpirun inside salloc: exit $?"
    says launcher "Open MPI" "rank 0 of 2"
    same ours2 mpirun
    if [ -e "$BUILD_DIR/mnist_ddp_mpi.so" ]; then
        run "salloc -N2 -n4" --nproc-per-node=2 --backend mpi --run-dir mpi ||
            fail "--backend=mpi inside salloc: exit $?"
        same ours2 mpi
    fi
    unset OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
fi
echo "salloc, and mpirun inside it: ok"

batch() { # folder of the run, then sbatch's flags and the file
    local folder=$1
    shift
    # shellcheck disable=SC2086  # words
    RUN_DIR=$folder timeout 60 sbatch --wait --output="$folder.log" "$@" $small >out 2>err ||
        fail "sbatch $*: exit $?"
}
batch byagents --cpus-per-task=2 "$SOURCE_DIR/configs/cluster/agents.sbatch"
same ours4 byagents
batch byranks --ntasks-per-node=2 "$SOURCE_DIR/configs/cluster/ranks.sbatch"
same ours4 byranks
echo "the two batch files: the weights of our own launcher"

if run "srun -N1 -n2" --nproc-per-node=3 --run-dir refused; then
    fail "ranks that start ranks are not refused"
fi
says error --nproc-per-node SLURM_STEP_TASKS_PER_NODE --launcher=none
start=$SECONDS
if run "srun -N1 -n2 --kill-on-bad-exit=1" --run-dir killed --inject kill:rank=1,step=3; then
    fail "srun says 0 for a rank that is killed"
fi
[ $((SECONDS - start)) -lt 20 ] || fail "a killed rank is not seen in time"
echo "mistakes, and a rank that is killed: ok"
