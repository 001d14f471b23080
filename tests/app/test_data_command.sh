#!/bin/bash
# mnist_ddp data info and verify, and --dataset: what is found, what is told of files that are not
# the original ones. With MNIST itself (MNIST_DDP_DATA) also that its digests are right.
set -eu
# shellcheck source=/dev/null
. "$SOURCE_DIR/tests/support/facts.sh"
work=$(mktemp -d /tmp/mnist_ddp-data-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
mnist=${MNIST_DDP_DATA:-}
unset MNIST_DDP_DATA RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
export HOME=$work XDG_CACHE_HOME=$work/cache

fail() {
    echo "FAIL: $*" >&2
    cat out err >&2
    exit 1
}

# run CODE ARG...
run() {
    local want=$1 code=0
    shift
    timeout 60 "$BUILD_DIR/mnist_ddp" "$@" >out 2>err || code=$?
    [ $code = "$want" ] || fail "mnist_ddp $*: exit $code, want $want"
}

# says FACT...: one line of stdout or stderr holds them all.
says() {
    facts_in_a_line "$(cat out err)" "$@" || fail "not said: $*"
}

# Four files in torchvision's layout that are no original ones: 20 images, 20 labels.
make_set() {
    mkdir -p "$1"
    for split in train t10k; do
        { printf '\0\0\10\3\0\0\0\24\0\0\0\34\0\0\0\34' && head -c 15680 /dev/zero; } \
            >"$1/$split-images-idx3-ubyte"
        { printf '\0\0\10\1\0\0\0\24' && head -c 20 /dev/zero; } >"$1/$split-labels-idx1-ubyte"
    done
}

run 0 data info
says MNIST "not in ./data/MNIST/raw" cache "digits of its own"
says KMNIST "not in ./data/KMNIST/raw"
run 65 data verify --dataset fashion
says Fashion-MNIST "not in ./data/FashionMNIST/raw"
run 64 data
says info verify
run 64 data info --dataset fahsion
says --dataset fashion

make_set data/FashionMNIST/raw
run 0 data info --dataset fashion
says Fashion-MNIST data/FashionMNIST/raw
says train-images-idx3-ubyte "20 images" "15696 bytes" unknown
[ "$(grep -c MNIST: out)" = 1 ] || fail "others are listed as well"
run 65 data verify --dataset fashion
says train-images-idx3-ubyte "cannot be verified" .gz
gzip -k data/FashionMNIST/raw/* # not the original ones: nothing follows from them
run 65 data verify --dataset fashion
says train-images-idx3-ubyte "cannot be verified"
rm data/FashionMNIST/raw/*-ubyte
run 65 data verify --dataset fashion --json
says train-images-idx3-ubyte.gz "not the file of Fashion-MNIST" SHA-256
says '"verdict":"wrong"' '"dataset":"fashion"' '"count":20'
make_set root/MNIST/raw
run 65 data verify --data-dir root
says root/MNIST/raw/train-images-idx3-ubyte "not the file of MNIST" SHA-256
truncate -s 100 root/MNIST/raw/t10k-images-idx3-ubyte
run 0 data info --data-dir root
says t10k-images-idx3-ubyte wrong
run 65 data verify --data-dir root

train() {
    run "$1" train --model mlp --threads 1 --epochs 1 --limit 16 --batch-size 8 "${@:2}"
}
train 0 --dataset fashion --run-dir run
says data/FashionMNIST/raw "16 train"
run 0 eval --dataset fashion --checkpoint run
says data/FashionMNIST/raw "/20"
run 0 eval --checkpoint run # the run's own
says data/FashionMNIST/raw "/20"
run 0 eval --checkpoint "$(echo run/checkpoints/0*)/" --json
grep -q '"images":20' out || fail "not the run's 20 images"
make_set data/KMNIST/raw
run 0 eval --checkpoint run/model.safetensors --dataset kmnist
says warning "--dataset fashion" "--dataset kmnist"
says data/KMNIST/raw
make_set elsewhere
train 0 --dataset kmnist --data-dir elsewhere --run-dir there
run 0 eval --checkpoint there
says elsewhere "/20"
rm -r elsewhere
run 0 eval --checkpoint there
says warning "--data-dir elsewhere"
says data/KMNIST/raw "/20"
train 64 --dataset kmnist --run-dir run --resume --epochs 2
says --dataset fashion kmnist
train 0 --run-dir run --resume --epochs 2 # the run's own
says data/FashionMNIST/raw "16 train"
rm -r data/KMNIST
train 65 --dataset kmnist
says KMNIST ./data/KMNIST/raw --data-dir
run 65 doctor --dataset kmnist
says KMNIST ./data/KMNIST/raw

if [ -z "$mnist" ]; then
    echo "SKIP of MNIST itself: MNIST_DDP_DATA names no folder"
    exit 0
fi
run 0 data verify --data-dir "$mnist"
[ "$(grep -c ': right$' out)" = 4 ] || fail "not four right files"
run 65 data verify --data-dir "$mnist" --dataset kmnist
says t10k-labels-idx1-ubyte "are MNIST" KMNIST
make_set beside # a plain file that nobody knows, with the .gz beside it that it would come from
cp "$mnist/t10k-labels-idx1-ubyte.gz" beside
train 65 --dataset kmnist --data-dir beside
says beside/t10k-labels-idx1-ubyte.gz "are MNIST" --dataset=mnist
train 0 --data-dir beside
echo "data: ok"
