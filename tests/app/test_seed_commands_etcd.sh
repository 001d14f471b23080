#!/bin/bash
# The command lines of the notes that meet at etcd, character for character: etcd's own, and those of
# two and of four machines, which are network namespaces here. `python -m torchelastic...` and `docker
# run` are scripts that hand their arguments to `mnist_ddp run`. SKIP without etcd, or where the
# kernel makes no namespaces.
set -eu
# shellcheck source=../support/scratch.sh
. "$SOURCE_DIR/tests/support/scratch.sh"
# shellcheck source=../support/netns.sh
. "$SOURCE_DIR/tests/support/netns.sh"
trap 'netns_close; scratch_close' EXIT
command -v etcd >/dev/null || skip "no etcd (package etcd-server)"
[ -e "$BUILD_DIR/mnist_ddp_curl.so" ] || skip "built without libcurl"
unset OMP_NUM_THREADS CUDA_VISIBLE_DEVICES
export HOME=$work XDG_CACHE_HOME=$work/cache TMPDIR=$work
netns_open 192.168.1 5 # the last is etcd's
ip -n "${netns[4]}" addr add 192.168.1.95/24 dev eth0

mkdir bin
cat >bin/python <<'END_OF_SCRIPT'
#!/bin/sh
if [ "$1 $2" = "-m torchelastic.distributed.launch" ]; then
    shift 2
    exec mnist_ddp run "$@"
fi
echo "rank=$RANK local=$LOCAL_RANK world=$WORLD_SIZE run=$TORCHELASTIC_RUN_ID args=$*"
END_OF_SCRIPT
cat >bin/docker <<'END_OF_SCRIPT'
#!/bin/sh
while [ "$1" != torchelastic/examples:0.2.0 ]; do shift; done
shift
for word; do # the image's own file is in this folder
    shift
    [ "$word" != /workspace/examples/imagenet/main.py ] || word=.$word
    set -- "$@" "$word"
done
exec mnist_ddp run "$@"
END_OF_SCRIPT
ln -s "$program" bin/mnist_ddp
chmod +x bin/python bin/docker
export PATH=$work/bin:$PATH PYTHON_EXEC=$work/bin/python
mkdir -p workspace/examples/imagenet
touch main.py YOUR_TRAINING_SCRIPT.py workspace/examples/imagenet/main.py

# everywhere LINES WORDS MACHINES: the command line in the file `typed`, on so many machines, ends
# well and prints so many lines in all, of them one with the words.
everywhere() {
    local host code=0 codes=()
    for ((host = 0; host < $3; host++)); do
        timeout 60 ip netns exec "${netns[host]}" sh ./typed >"$host.out" 2>"$host.err" &
        codes[host]=$!
    done
    for ((host = 0; host < $3; host++)); do
        wait "${codes[host]}" || code=$?
        [ $code = 0 ] || fail "$(cat typed): exit $code on machine $host"
    done
    cat [0-9].out >all.out
    [ "$(wc -l <all.out)" = "$1" ] || fail "$(cat typed): not $1 lines"
    grep -qF -- "$2" all.out || fail "$(cat typed): no '$2'"
    rm ./*.out
}

cat >etcd.command <<'END_OF_COMMAND'
etcd --enable-v2 --listen-client-urls http://0.0.0.0:2379,http://127.0.0.1:4001 --advertise-client-urls http://192.168.1.95:2379
END_OF_COMMAND
ip netns exec "${netns[4]}" sh -c "exec $(cat etcd.command)" >etcd.out 2>etcd.err &
pids+=($!)
for ((n = 0; n < 200; n++)); do
    ! ip netns exec "${netns[0]}" bash -c 'echo >/dev/tcp/192.168.1.95/2379' 2>/dev/null || break
    sleep .05
done
mkdir etcd && mv etcd.out etcd.err etcd # its own words are not of interest to what fails

cat >typed <<'END_OF_COMMAND'
python -m torchelastic.distributed.launch --nnodes=2 --nproc_per_node=2 --rdzv_id=123 --rdzv_backend=etcd --rdzv_endpoint=192.168.1.95:2379 main.py
END_OF_COMMAND
everywhere 4 "world=4 run=123 args=-u main.py" 2
echo "two machines at etcd: ok"

# In a container: another job.
cat >typed <<'END_OF_COMMAND'
docker run --shm-size=2g --gpus=all torchelastic/examples:0.2.0 --nnodes=2 --nproc_per_node=2 --rdzv_id=124 --rdzv_backend=etcd --rdzv_endpoint=192.168.1.95:2379 /workspace/examples/imagenet/main.py --arch resnet18 --epochs 20 --batch-size 32 /workspace/data/tiny-imagenet-200
END_OF_COMMAND
everywhere 4 "imagenet/main.py --arch resnet18 --epochs 20 --batch-size 32 /workspace/data/tiny-" 2
echo "two machines, in containers: ok"

# One to four machines. The notes leave out what continues a line.
cat >typed <<'END_OF_COMMAND'
python -m torchelastic.distributed.launch \
    --nnodes=1:4 \
    --nproc_per_node=$NUM_TRAINERS \
    --rdzv_id=$JOB_ID \
    --rdzv_backend=etcd \
    --rdzv_endpoint=$ETCD_HOST:$ETCD_PORT \
    YOUR_TRAINING_SCRIPT.py
END_OF_COMMAND
export NUM_TRAINERS=2 JOB_ID=elastic ETCD_HOST=192.168.1.95 ETCD_PORT=2379
everywhere 8 "rank=7 local=1 world=8 run=elastic args=-u YOUR_TRAINING_SCRIPT.py" 4
JOB_ID=away ETCD_HOST=10.99.0.1,192.168.1.95 everywhere 8 "world=8 run=away" 4 # no way to the first
echo "four machines at etcd: ok"

# Before it is tried: all the same, from a machine that would be in it. No gloo is needed for this.
sed 's/ run / doctor run /' bin/python >bin/doctor && chmod +x bin/doctor
sed -i 's/^python /doctor /' typed
ip netns exec "${netns[1]}" sh ./typed >out 2>err || true
facts_in_a_line "$(cat out)" ok etcd 192.168.1.95:2379 elastic || fail "doctor does not see etcd"
ETCD_HOST=192.168.1.5,192.168.1.95 ip netns exec "${netns[1]}" sh ./typed >out 2>err || true
facts_in_a_line "$(cat out)" ok etcd 192.168.1.5:2379 || fail "doctor does not see two endpoints"
ETCD_PORT=2378 ip netns exec "${netns[1]}" sh ./typed >out 2>err || true
facts_in_a_line "$(cat out)" failed etcd "no endpoint" || fail "doctor takes nobody for etcd"
sed -i 's/^doctor /python /' typed
echo "doctor: sees etcd"

# --- mistakes ---------------------------------------------------------------------------------------
# refuses FACT... : the command line fails within two seconds, with these facts in a line.
refuses() {
    local code=0 start
    start=$(date +%s%N)
    timeout 60 ip netns exec "${netns[0]}" sh ./typed >out 2>err || code=$?
    case $code in
    0 | 124) fail "$(cat typed): exit $code" ;;
    esac
    [ $(($(date +%s%N) - start)) -lt 2000000000 ] || fail "$(cat typed): more than two seconds"
    says "$@"
}

JOB_ID='' refuses --rdzv-id
NUM_TRAINERS='' refuses --nproc-per-node
ETCD_HOST='' ETCD_PORT='' refuses --rdzv-endpoint
ETCD_PORT=4002X refuses --rdzv-endpoint
echo "python -m torchelastic.distributed.launch" >typed # the first line of the notes' seven
refuses run program
echo "mistakes: answered"
