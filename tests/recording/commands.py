"""The commands that record.py runs. Each case is a bash script in an empty folder; it sees $MNIST
(the program), $PORT and $PORT2 (free), $MNIST_DDP_DATA (192 small images) and the functions below.
The plain loops of --device reference are the default here: their sums are the same everywhere."""

PRELUDE = r"""
m() { # NAME FLAGS...: runs the program; NAME.out, NAME.err and NAME.code are its output
    local name=$1
    shift
    timeout -s KILL 60 "$MNIST" "$@" >"$name.out" 2>"$name.err"
    echo $? >"$name.code"
}
await() { # FILE WORDS: returns once they are there
    for ((i = 0; i < 1200; i++)); do
        grep -qs -e "$2" "$1" && return
        sleep 0.05
    done
    echo "no '$2' in $1"
    exit 1
}
same() { # NAME A B: whether two runs left the same weights
    cmp -s "$2/model.safetensors" "$3/model.safetensors"
    echo $? >"$1.same"
}
emulated() {
    [ -e "$BUILD_DIR/mnist_ddp_cuda_emulated.so" ] || exit 77
    export MNIST_DDP_CUDA_MODULE=$BUILD_DIR/mnist_ddp_cuda_emulated.so MNIST_DDP_EMULATED_DEVICES=4
    export MNIST_DDP_DEVICE=cuda
}
gloo() { [ -e "$BUILD_DIR/mnist_ddp_gloo.so" ] || exit 77; }
mlp="train --model mlp --limit 48 --batch-size 16 --epochs 1 --threads 1 --seed 3"
sgd="$mlp --optimizer sgd --lr 0.05 --momentum 0.9"
cnn="train --model cnn --limit 16 --batch-size 8 --epochs 1 --threads 1 --eval-every 0"
"""

CASES = {}

# --- commands that train nothing ------------------------------------------------------------------
CASES["help"] = r"""
for c in "" train eval sampler run store bench doctor env completion manual help version all; do
    m "help$c" help $c
    grep -oE -e '--[][a-z-]+' "help$c.out" | sort -u >"flags-$c.txt"
    rm "help$c.out"
done
for b in dp-vs-ddp scaling all-reduce; do
    m "help$b" help bench $b
    grep -oE -e '--[][a-z-]+' "help$b.out" | sort -u >"flags-$b.txt"
    m "dash$b" bench $b --help; cmp -s "dash$b.out" "help$b.out"; echo $? >"$b.same"
    rm "help$b.out" "dash$b.out"
done
for c in train run bench; do m "dash$c" $c --help; cmp -s "dash$c.out" <("$MNIST" help $c); echo $? >"$c.same"; rm "dash$c.out"; done
"""
CASES["version"] = "m word version; m flag --version"
CASES["env"] = r"""
OMP_NUM_THREADS=3 m env env
cut -c1-17 env.out | sed 's/ *$//' >names.txt
rm env.out
"""
CASES["doctor"] = r"""
m plain doctor
cut -c1-20 plain.out | sed -E 's/[0-9]+ failed.*/counts/; s/^(ok|warning|failed) +/any /' | sort -u >names.txt
rm plain.out
m json doctor --json
m ranks doctor --json --nproc-per-node 2 --backend gloo
m nobody doctor --json --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port $PORT
m nodata doctor --json --data-dir nowhere
"""
CASES["sampler"] = r"""
m rank1 sampler --samples 10 --world_size 3 --rank 1
m set7 sampler --samples 60000 --world_size 7 --rank 3 --seed 0 --epoch 2 --head 12
sha256sum <set7.out >set7.code
m plain sampler --samples 11 --world_size 2 --no-shuffle --drop-last
sha256sum <plain.out >>plain.code
m json sampler --samples 5 --json
m bad sampler --samples 5 --world_size 2 --rank 2
"""
CASES["unknown-commands"] = "m a tain; m b bench; m c bench nonsense; m d help nonsense; m e eval sampler"
CASES["typing-errors"] = r"""
m unknown --epoches 3
m missing --epochs
m number --epochs three
m negative --epochs -1
m empty --model=
m choice --model mpl
m float --lr 1e999
m short --e 3
m twice --epochs 1 --epochs x
m word train extra
m switch --no-epochs 3
m list bench dp-vs-ddp --world-sizes 1,x
m size bench all-reduce --minbytes 3Q
m inject --inject kil:rank=1,step=5
m injected --inject kill:rank=1
m every --save-every 3weeks
m config --config nowhere.yaml
m signal run --signals-to-handle SIGNONE -- true
m redirect run --redirects 7 -- true
"""
CASES["refusals"] = r"""
m amp $mlp --device cpu --amp fp16
m nesterov $mlp --optimizer adam --nesterov
m both $mlp --global-batch-size 7 --nproc-per-node 2
m resume $mlp --resume
m replicas $mlp --replicas 2
m dpranks $mlp --mode dp --nproc-per-node 2
m single $mlp --mode single --nproc-per-node 2
m injectrank $mlp --nproc-per-node 2 --inject kill:rank=2,step=1
m node $mlp --nnodes 2 --node-rank 2
m world $mlp --world-size 3 --nproc-per-node 2
m backend $mlp --backend nccl --device cpu --nproc-per-node 2
m devices $mlp --devices 0,x
m device $mlp --device tpu
m shmnodes $mlp --nnodes 2 --node-rank 0 --backend shm --master-port $PORT --join-timeout 1
m noprogram run
m nofile run nowhere.py
m nocommand run --no-python nowhere
m spec bench dp-vs-ddp --modes ddp --world-sizes 3 --scaling strong --batch-sizes 64
m evalpath eval
"""
CASES["config-file"] = r"""
printf 'model: mlp\nlimit: 48\nbatch-size: 16\nepochs: 2\noptimizer: sgd\nlr: 0.05\neval-every: 2\n' >c.yaml
MNIST_DDP_LR=0.02 m flagwins --config c.yaml --epochs 1 --json --run-dir run
printf 'modle: mlp\n' >bad.yaml; m key --config bad.yaml
printf 'epochs: many\n' >bad.yaml; m value --config bad.yaml
printf 'epochs\n' >bad.yaml; m line --config bad.yaml
"""
CASES["environment"] = r"""
MNIST_DDP_MODEL=mlp MNIST_DDP_LIMIT=32 MNIST_DDP_EPOCHS=1 MNIST_DDP_JSON=1 m train --run-dir run
MNIST_DDP_EPOCHS=x m bad; MNIST_DDP_EPOCS=1 m unknown $mlp --run-dir unknown --dry-run --no-save-model
PET_NPROC_PER_NODE=2 m pet $mlp --run-dir pet --json --no-save-model
RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT LOCAL_RANK=0 m worker $mlp --run-dir worker --json --no-save-model
RANK=1 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT m lie $mlp --run-dir lie
RANK=0 m half $mlp --run-dir half --no-save-model --json
"""

# --- training -------------------------------------------------------------------------------------
CASES["train-mlp"] = "m plain $mlp --epochs 2 --run-dir run; m json $mlp --epochs 2 --run-dir again --json; same weights run again"
CASES["train-default-folder"] = "m plain $mlp"
CASES["train-optimizers"] = r"""
m sgd $sgd --weight-decay 0.01 --nesterov --json --quiet --run-dir sgd
m adam $mlp --optimizer adam --lr 0.01 --gamma 0.5 --epochs 2 --json --quiet --run-dir adam
"""
CASES["train-schedule"] = r"""
m onecycle $sgd --schedule onecycle --epochs 2 --eval-every 2steps --json --run-dir onecycle
m cosine $mlp --optimizer adamw --adam-betas 0.7,0.9 --schedule cosine --warmup-steps 2 --json --quiet --run-dir cosine
m target $sgd --eval-every 2steps --target-acc 0 --run-dir target
m epochs $sgd --schedule onecycle --epochs 3 --run-dir onecycle --resume
"""
CASES["train-cnn"] = "m cnn $cnn --json --run-dir run"
CASES["train-ddp"] = r"""
m two $mlp --nproc-per-node 2 --json --run-dir two
m three $sgd --nproc-per-node 3 --limit 47 --bucket-cap-mb 0.5 --epochs 2 --run-dir three
m noverlap $sgd --nproc-per-node 3 --limit 47 --no-overlap --epochs 2 --run-dir noverlap --quiet
same overlap three noverlap
"""
CASES["train-ddp-gloo"] = "gloo; m gloo $sgd --nproc-per-node 3 --backend gloo --json --run-dir run"
CASES["train-dp"] = "m dp $sgd --mode dp --replicas 3 --json --run-dir run --limit 45"
CASES["train-ps"] = "m ps $sgd --mode ps --nproc-per-node 2 --json --run-dir run"
CASES["train-single"] = "m single $sgd --mode single --json --run-dir run; m text $sgd --mode single --run-dir text"
CASES["train-accum"] = "m accum $sgd --accum 2 --nproc-per-node 2 --batch-size 8 --json --run-dir a; m global train --model mlp --limit 45 --epochs 1 --optimizer sgd --global-batch-size 32 --nproc-per-node 2 --drop-last --no-shuffle --json --run-dir b"
CASES["train-eval-every"] = "m never $sgd --run-dir never --eval-every 0 --json --no-save-model; m target $sgd --run-dir target --epochs 9 --target-acc 12 --json --no-save-model --test-batch-size 7"
CASES["train-logs"] = r"""
m torch $sgd --run-dir torch --log-format pytorch --log-interval 2 --no-save-model
m quiet $sgd --run-dir quiet --quiet --no-save-model
m dry $sgd --run-dir dry --dry-run --no-save-model
m often $sgd --run-dir often --log-interval 1 --no-save-model --nproc-per-node 2
"""
CASES["train-save-every"] = "m steps $sgd --save-every 2steps --run-dir run --json; ls run/checkpoints >kept.txt"
CASES["train-trace"] = r"""
m ranks $sgd --nproc-per-node 2 --trace t.json --json --run-dir run
m dp $sgd --run-dir dp --mode dp --trace dp.json --trace-steps 2 --no-save-model --quiet
m bad $sgd --run-dir bad --trace nowhere/t.json --no-save-model
"""
CASES["train-cpu"] = r"""
m mlp $sgd --device cpu --nproc-per-node 2 --json --run-dir mlp
m cnn $cnn --device cpu --json --run-dir cnn
m auto $sgd --device auto --no-accel --mode dp --json --quiet --run-dir dp
m amp $sgd --run-dir amp --tf32 --device cpu --no-save-model
"""
CASES["no-data"] = r"""
unset MNIST_DDP_DATA
m missing $mlp --data-dir nowhere
mkdir part; cp "$FIXTURES/record.py" part/train-images-idx3-ubyte
m wrong $mlp --data-dir part
m limit $mlp --limit 0
"""
CASES["truncated-data"] = r"""
cp -r "$MNIST_DDP_DATA" data; truncate -s 9000 data/train-images-idx3-ubyte
m cut $mlp --data-dir data
rm -r data; cp -r "$MNIST_DDP_DATA" data; gzip data/*; m zipped $mlp --data-dir data --json --no-save-model
rm -r data cache
"""

# --- the emulated CUDA device ---------------------------------------------------------------------
CASES["cuda-mlp"] = "emulated; m graph $sgd --json --run-dir a; m eager $sgd --no-cuda-graph --run-dir b; same graph a b"
CASES["cuda-nccl"] = "emulated; m nccl $sgd --nproc-per-node 2 --json --quiet --run-dir run"
CASES["cuda-modes"] = r"""
emulated
m dp $sgd --mode dp --devices 0,1 --json --run-dir dp
m ps $sgd --mode ps --nproc-per-node 2 --eval-every 0 --json --run-dir ps
"""
CASES["cuda-amp"] = r"""
emulated
m bf16 $sgd --amp bf16 --json --quiet --run-dir bf16
m fp16 $sgd --amp fp16 --json --quiet --eval-every 0 --run-dir fp16
"""
CASES["cuda-cnn"] = "emulated; m cnn $cnn --limit 8 --batch-size 4 --json --quiet --run-dir run --trace t.json"
CASES["cuda-none"] = "m none $sgd --run-dir none --device cuda; export MNIST_DDP_CUDA_MODULE=nowhere.so; m module $sgd --run-dir module --device cuda"

# --- checkpoints ----------------------------------------------------------------------------------
CASES["resume"] = r"""
m whole $sgd --epochs 3 --run-dir whole --quiet
m first $sgd --epochs 1 --run-dir run --json
m rest $sgd --epochs 3 --run-dir run --json --resume
m more $sgd --epochs 3 --run-dir run --json --resume
m auto $sgd --epochs 1 --run-dir fresh --json --resume=auto --quiet
m again $sgd --epochs 1 --run-dir run
same resumed whole run
"""
CASES["resume-refused"] = r"""
m none $sgd --run-dir nowhere --resume
m first $sgd --run-dir run --quiet
m other $sgd --epochs 2 --run-dir run --resume --optimizer adam
m cnn $cnn --epochs 2 --run-dir run --resume
"""
CASES["resume-damaged"] = r"""
m first $sgd --epochs 2 --run-dir run --quiet
printf x | dd of=run/checkpoints/00000006/model.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null
m before $sgd --epochs 2 --run-dir run --resume --json
m whole $sgd --epochs 2 --run-dir whole --quiet
same resumed whole run
rm run/checkpoints/*/state.json
m nothing $sgd --epochs 3 --run-dir run --resume
"""
CASES["resume-modes"] = r"""
for mode in "dp --replicas 2" "ps --nproc-per-node 2" "ddp --nproc-per-node 2"; do
    n=${mode%% *}
    m $n-whole $sgd --limit 32 --mode $mode --epochs 2 --run-dir $n-whole --quiet
    m $n-first $sgd --limit 32 --mode $mode --run-dir $n --quiet
    m $n-rest $sgd --limit 32 --mode $mode --epochs 2 --run-dir $n --quiet --resume
    same $n $n-whole $n
done
"""
CASES["resume-fixture"] = r"""
for f in sgd adadelta; do
    tar -xf "$FIXTURES/checkpoints/$f.tar.xz"
    how=$(cat $f/flags)
    m $f train $how --epochs 3 --run-dir $f/run --resume --json
    m $f-eval eval --checkpoint $f/run --json
done
"""
CASES["eval"] = r"""
m first $sgd --run-dir run --quiet
m folder eval --checkpoint run
m file eval --checkpoint run/model.safetensors --json --test-batch-size 9
m step eval --checkpoint run/checkpoints/00000003 --json
m none eval --checkpoint nowhere
m damaged eval --checkpoint "$FIXTURES/record.py"
truncate -s 100000 run/model.safetensors; m cut eval --checkpoint run/model.safetensors
"""
CASES["stdout-full"] = r"""
"$MNIST" $sgd --json --run-dir run >/dev/full 2>train.err; echo $? >train.code
"$MNIST" eval --checkpoint run >/dev/full 2>eval.err; echo $? >eval.code
"$MNIST" sampler --samples 5 >/dev/full 2>sampler.err; echo $? >sampler.code
"$MNIST" $sgd --no-save-model >/dev/full 2>log.err; echo $? >log.code
"$MNIST" help >/dev/full 2>help.err; echo $? >help.code
"""
CASES["disk-full"] = r"""
unshare --user --map-root-user --mount true 2>/dev/null || exit 77
cat >inside <<'END'
mkdir disk; mount -t tmpfs -o size=24m tmpfs disk || exit 77
m first $sgd --run-dir disk/run --quiet
head -c $(($(stat -f -c '%a * %S' disk) - 1000000)) /dev/zero >disk/filler
m full $sgd --epochs 2 --run-dir disk/run --resume --json
ls disk/run/checkpoints >left.txt
umount disk
END
export -f m; export sgd
unshare --user --map-root-user --mount bash inside
rm inside
"""
CASES["unwritable"] = "touch file; m run $sgd --run-dir file/run; m log run --log-dir file/logs -- true; m bench bench all-reduce --out file/x --maxbytes 8"

# --- run: other programs as ranks -----------------------------------------------------------------
CASES["run-ok"] = r"""
m echo run --nproc-per-node 2 -- sh -c 'echo "rank $RANK of $WORLD_SIZE"; echo word >&2'
m one run -- sh -c 'echo one'
m nothing run --nproc-per-node 3 --no-python true
"""
CASES["run-environment"] = r"""
w='env >$RANK.env; exit 0'
m plain run --nproc-per-node 2 -- sh -c "$w"
rename() { for f in *.env; do case $f in [0-9]*) mv "$f" "$1-$f" ;; esac; done; }
rename plain
OMP_NUM_THREADS=5 m more run --standalone --nproc-per-node 2 --max-restarts 2 --role worker --log-dir logs --redirects 3 --rdzv-id job7 -- sh -c "$w"
rename more
m named run --master-port $PORT --virtual-local-rank --signals-to-handle SIGTERM --local-addr 127.0.0.1 -- sh -c "$w" arg
rename named
sed -i -E 's/(LOG_DIR|FILE)=.*/\1=x/' *.env
"""
CASES["run-script"] = r"""
printf 'import os, sys\nprint(sys.argv[1:], os.environ["RANK"])\n' >s.py
m script run --nproc-per-node 2 s.py --flag value
m local run --no-use-env s.py
printf '#!/bin/sh\nexit 4\n' >p; chmod +x p
m program run --no-python ./p
PYTHON_EXEC=nowhere m nopython run s.py
m module run --module json.tool --help
"""
CASES["run-fails"] = r"""
m code run --nproc-per-node 3 --log-dir logs --redirects 3 -- sh -c '[ $RANK != 1 ] && exec sleep 30; echo last words >&2; exit 9'
m torch run --exit-code torchrun --nproc-per-node 2 -- sh -c '[ $RANK = 0 ] && exec sleep 30; exit 9'
m signal run --nproc-per-node 2 --log-dir signal -- sh -c '[ $RANK = 0 ] && exec sleep 30; kill -SEGV $$'
m all run --nproc-per-node 2 --tee 3 -- sh -c 'echo out; [ $RANK = 0 ] && exec sleep 30; exit 75'
m stubborn run --nproc-per-node 2 --shutdown-timeout 1 -- sh -c 'trap "" TERM; [ $RANK = 0 ] && exit 3; for i in 1 2 3 4 5 6 7 8 9; do sleep 1; done'
"""
CASES["run-output"] = r"""
w='echo "out $RANK"; echo "err $RANK" >&2'
m redirect run --nproc-per-node 2 --log-dir r --redirects 0:1,1:2 -- sh -c "$w"
m tee run --nproc-per-node 2 --log-dir t --tee 3 -- sh -c "$w"
m filter run --nproc-per-node 2 --local-ranks-filter 1 -- sh -c "$w"
m prefix run --nproc-per-node 2 --tee 3 --log-line-prefix-template '<${rank}/${local_rank}>' --role r -- sh -c "$w"
"""
CASES["run-restarts"] = r"""
m heals run --nproc-per-node 2 --max-restarts 2 --log-dir a --redirects 3 -- sh -c 'env >$RANK-$TORCHELASTIC_RESTART_COUNT.txt; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || { [ $RANK = 0 ] && exec sleep 30; exit 5; }'
for f in *-*.txt; do grep -E 'RESTART|GENERATION' $f | sort >x; mv x "${f%.txt}.env"; rm $f; done
m never run --nproc-per-node 2 --max-restarts 1 --log-dir b --redirects 3 -- sh -c '[ $RANK = 0 ] && exec sleep 30; exit 6'
"""
CASES["run-dry"] = r"""
export GLOO_SOCKET_IFNAME=eth7 TP_SOCKET_IFNAME=eth7 # else set or not, by what this host's name stands for
m node run --dry-run --nproc_per_node=2 --nnodes=2 --node_rank=1 --master_addr=192.168.0.1 --master_port=12355 -- sh -c 'exit 1' --arg
m one run --dry-run --nproc-per-node 2 --max-restarts 3 -- true
m train train --dry-run --model mlp --limit 32 --no-save-model
"""
CASES["run-signals"] = r"""
for s in TERM HUP; do
    "$MNIST" run --nproc-per-node 2 --log-dir $s -- sh -c 'trap "echo got; exit 0" TERM HUP; echo ready >ready.$RANK; while :; do sleep 0.05; done' >$s.out 2>$s.err &
    await ready.0 ready; await ready.1 ready
    kill -$s $!; wait $!; echo $? >$s.code; rm -f ready.*
done
"""
CASES["run-ourselves"] = "m run run --nproc-per-node 2 --no-python \"$MNIST\" $sgd --json --run-dir run"
CASES["nodes-static"] = r"""
node() { m node$1 run --nnodes 2 --node-rank $1 --nproc-per-node 2 --master-addr 127.0.0.1 --master-port $PORT --log-dir logs$1 --redirects 3 -- sh -c 'env >$RANK.env; echo $RANK'; }
node 0 & node 1; wait
sed -i -E 's/(LOG_DIR|FILE)=.*/\1=x/' *.env
"""
CASES["nodes-c10d"] = r"""
node() { m node$1 run --nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:$PORT --rdzv-id j --nproc-per-node 2 -- sh -c 'env >$RANK.env'; }
node 0 & node 1; wait
sed -i -E 's/(LOG_DIR|FILE)=.*/\1=x/' *.env
"""
CASES["nodes-train"] = r"""
node() { m node$1 $sgd --nnodes 2 --node-rank $1 --nproc-per-node 1 --master-addr 127.0.0.1 --master-port $PORT --json --run-dir run; }
node 0 & node 1; wait
m two $sgd --nproc-per-node 2 --run-dir two --backend gloo --quiet
rm two.err # on a busy machine it says whom it waits for
same nodes run two
"""
CASES["nodes-fail"] = r"""
node() { m node$1 run --nnodes 2 --node-rank $1 --nproc-per-node 2 --master-addr 127.0.0.1 --master-port $PORT --log-dir logs$1 -- sh -c '[ $RANK = 3 ] || exec sleep 30; exit 9'; }
node 0 & node 1; wait
"""
CASES["nodes-restart"] = r"""
node() { m node$1 run --nnodes 2 --node-rank $1 --max-restarts 1 --master-addr 127.0.0.1 --master-port $PORT -- sh -c '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && echo up && exit 0; [ $RANK = 1 ] || exec sleep 30; exit 9'; }
node 0 & node 1; wait
"""
CASES["nodes-missing"] = r"""
m zero run --nnodes 2 --node-rank 0 --join-timeout 1 --master-addr 127.0.0.1 --master-port $PORT -- true &
m one run --nnodes 2 --node-rank 1 --join-timeout 1 --master-addr 127.0.0.1 --master-port $PORT2 -- true
wait
"""
CASES["nodes-differ"] = r"""
node() { m node$1 run --nnodes 2 --node-rank $1 --master-addr 127.0.0.1 --master-port $PORT --join-timeout 5 $2 -- true; }
node 0 "--max-restarts 1" & node 1 "--max-restarts 2"; wait
"""

# --- faults ---------------------------------------------------------------------------------------
faulty = "$mlp --limit 192 --batch-size 4 --nproc-per-node 3 --timeout 2 --no-save-model --json --log-dir logs"
CASES["inject-kill"] = f"m kill {faulty} --run-dir kill --inject kill:rank=1,step=3"
CASES["inject-stop"] = f"m stop {faulty} --run-dir stop --inject stop:rank=1,step=4; m slow {faulty} --run-dir slow --inject delay:rank=0,step=3,ms=300 --timeout 20"
CASES["inject-hang"] = f"m hang {faulty} --run-dir hang --inject delay:rank=2,step=3,ms=20000"
CASES["inject-uneven"] = f"m uneven {faulty} --run-dir uneven --inject uneven:rank=2; m epoch {faulty} --run-dir epoch --inject forget-set-epoch --epochs 2"
CASES["inject-gloo"] = f"gloo; m drop {faulty} --run-dir drop --backend gloo --inject drop-conn:rank=1,step=4; m busy {faulty} --run-dir busy --inject port-busy --master-port $PORT; sed -i s/--[a-z-]*//g busy.err"  # a cut command line
CASES["inject-restart"] = r"""
m whole $sgd --nproc-per-node 2 --epochs 2 --run-dir whole --quiet
m healed $sgd --nproc-per-node 2 --epochs 2 --run-dir run --json --max-restarts 2 --save-every 1steps --inject kill:rank=1,step=2
same bits whole run
"""
CASES["preempted"] = r"""
flags="$sgd --batch-size 4 --nproc-per-node 2 --log-interval 1 --save-every 1000epochs --eval-every 1000epochs"
"$MNIST" $flags --epochs 100000 --json --run-dir run >stop.out 2>stop.err &
await stop.err "epoch 2/"
kill -TERM $!; wait $!; echo $? >stop.code
epochs=$(($(sed -n 's/.*"epoch": \([0-9]*\).*/\1/p' run/checkpoints/0*/state.json) + 2))
m rest $flags --epochs $epochs --run-dir run --json --resume=auto
m whole $flags --epochs $epochs --run-dir whole --quiet
same preempted whole run
rm -r run whole rest.out
sed -i 's/"train_s":\[[^]]*\]/"train_s":[]/' stop.out
"""

# --- benchmarks -----------------------------------------------------------------------------------
CASES["bench-all-reduce"] = "m text bench all-reduce --nproc-per-node 2 --maxbytes 1K --iters 2 --warmup-iters 1; m json bench all-reduce --json --nproc-per-node 3 --minbytes 4 --maxbytes 64 --stepfactor 4 --iters 2"
CASES["bench-modes"] = r"""
m bench bench dp-vs-ddp --models mlp --modes ddp,dp --world-sizes 1,2 --batch-sizes 8 --scaling strong --steps 2 --repeats 1 --warmup 0 --out out
rm bench.out
"""
CASES["bench-scaling"] = r"""
m bench bench scaling --models mlp --modes ddp --world-sizes 1,2 --batch-sizes 8 --steps 2 --repeats 1 --warmup 0 --out out --json
"""

QUICK = """help typing-errors refusals config-file environment sampler train-ddp train-dp train-ps train-cpu
train-trace cuda-nccl resume resume-fixture eval stdout-full run-environment run-fails run-output
run-restarts nodes-static inject-kill inject-stop bench-all-reduce doctor""".split()
