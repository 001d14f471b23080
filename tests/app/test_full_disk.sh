#!/bin/bash
# A disk that is full while two ranks train: the training goes on, says so, and exits with 74; the
# checkpoint that was there stays whole. A demo leaves the page that was there. SKIP where no small
# disk can be mounted without root.
set -eu
# shellcheck source=/dev/null
. "$SOURCE_DIR/tests/support/facts.sh"
alone=(unshare --user --map-root-user --mount)
if [ $# = 0 ]; then
    if ! "${alone[@]}" mount -t tmpfs tmpfs /tmp 2>/dev/null; then
        echo "SKIP: a user namespace with a tmpfs is not permitted here"
        exit 77
    fi
    exec "${alone[@]}" bash "$0" mounted
fi
work=$(mktemp -d /tmp/mnist_ddp-full-XXXXXX)
trap 'cd / && umount "$work/disk"; rm -rf "$work"' EXIT
cd "$work"
mkdir disk
mount -t tmpfs -o size=64m tmpfs disk
unset MNIST_DDP_DATA RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
export HOME=$work XDG_CACHE_HOME=$work/cache # our own digits, made once

fail() {
    echo "FAIL: $*" >&2
    cat err >&2
    exit 1
}

train() {
    timeout 60 "$BUILD_DIR/mnist_ddp" train --model mlp --limit 192 --threads 1 --nproc-per-node 2 \
        --json --eval-every 0 --run-dir disk/run "$@" >out 2>err
}

train --epochs 1 || fail "the first epoch: exit $?"
cp -r disk/run/checkpoints before
room=$(($(stat -f -c '%a * %S' disk) - 1000000)) # of 8 MB that a checkpoint takes
head -c "$room" /dev/zero >disk/filler || fail "filling the disk"
code=0
train --epochs 3 --resume || code=$?
[ $code = 74 ] || fail "exit $code, want 74"
facts_in_a_line "$(cat err)" error checkpoint "No space left on device" ||
    fail "no word of the full disk"
facts_in_a_line "$(cat err)" "epoch 3/3:" || fail "the training did not go on"
diff -r before disk/run/checkpoints || fail "the checkpoint that was there has changed"
timeout 150 "$BUILD_DIR/mnist_ddp" eval --checkpoint disk/run >out 2>err || fail "eval: exit $?"
code=0
timeout 60 "$BUILD_DIR/mnist_ddp" run --redirects 3 --log-dir disk/logs \
    sh -c 'head -c 99000000 /dev/zero; exit 5' >out 2>err || code=$?
[ $code = 5 ] || fail "exit $code, want 5"
facts_in_a_line "$(cat err)" warning disk/logs full || fail "no word of what is cut"
rm -r disk/logs
echo earlier >disk/page.html
head -c 99000000 /dev/zero >>disk/filler 2>err && fail "the disk has room"
code=0
timeout 60 "$BUILD_DIR/mnist_ddp" demo ring --fast --html disk/page.html >out 2>err || code=$?
[ $code = 74 ] || fail "demo: exit $code, want 74"
facts_in_a_line "$(cat err)" error disk/page.html "No space left on device" ||
    fail "no word of the full disk"
facts_in_a_line "$(cat err)" "rank 1" && fail "the other ranks complain too"
[ "$(cat disk/page.html; echo disk/page*)" = "earlier
disk/page.html" ] || fail "half a page"
rm disk/page.html disk/filler
train --epochs 2 --resume || fail "with room again: exit $?"
facts_in_a_line "$(cat err)" resuming "epoch 1" || fail "not from the checkpoint that stayed"
[ "$(find disk/run/checkpoints -mindepth 1 -maxdepth 1 | wc -l)" = 2 ] || fail "not two checkpoints"
echo "a full disk: ok"
