#!/bin/bash
# mnist_ddp data show: which images, each below its index and label, as letters or blocks, as JSON.
set -eu
# shellcheck source=/dev/null
. "$SOURCE_DIR/tests/support/facts.sh"
work=$(mktemp -d /tmp/mnist_ddp-show-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset MNIST_DDP_DATA RANK WORLD_SIZE COLUMNS CLICOLOR_FORCE LC_CTYPE
export HOME=$work XDG_CACHE_HOME=$work/cache LC_ALL=C

fail() {
    echo "FAIL: $*" >&2
    cat out err >&2
    exit 1
}

# show CODE ARG...
show() {
    local want=$1 code=0
    shift
    timeout 60 "$BUILD_DIR/mnist_ddp" data show --data-dir=set "$@" >out 2>err || code=$?
    [ $code = "$want" ] || fail "data show $*: exit $code, want $want"
}

says() {
    facts_in_a_line "$(cat out err)" "$@" || fail "not said: $*"
}

# line N TEXT: what a line of stdout is, without blanks at its end.
line() {
    [ "$(sed -n "$1s/ *\$//p" out)" = "$2" ] || fail "line $1 is not '$2'"
}

# Three images: ink in all pixels, in the uppermost row, in the first pixel. Labels 1, 2, 1. The
# training set has twelve without ink, of label 0.
ink() { head -c "$1" /dev/zero | tr '\0' '\377'; }
mkdir set
{ printf '\0\0\10\3\0\0\0\3\0\0\0\34\0\0\0\34' && ink 784 && ink 28 && head -c 756 /dev/zero && ink 1 &&
    head -c 783 /dev/zero; } >set/t10k-images-idx3-ubyte
printf '\0\0\10\1\0\0\0\3\1\2\1' >set/t10k-labels-idx1-ubyte
{ printf '\0\0\10\3\0\0\0\14\0\0\0\34\0\0\0\34' && head -c 9408 /dev/zero; } >set/train-images-idx3-ubyte
{ printf '\0\0\10\1\0\0\0\14' && head -c 12 /dev/zero; } >set/train-labels-idx1-ubyte
full=@@@@@@@@@@@@@@@@@@@@@@@@@@@@ half='============================'

show 0 --test 1
line 1 "#1: 2"
line 2 $half
line 3 ""
[ "$(wc -l <out)" = 15 ] || fail "not one picture"
show 0 --test 0-2
line 1 "#0: 1                         #1: 2" # two fit into 80 columns
line 2 "$full  $half"
line 3 $full
line 16 "#2: 1"
line 17 "="
COLUMNS=88 show 0 --test 0 2 1
line 1 "#0: 1                         #2: 1                         #1: 2"
show 0 --test --label 1 --columns 1 --dataset fashion
line 1 "#0: 1 Trouser"
line 16 "#2: 1 Trouser"
[ "$(wc -l <out)" = 30 ] || fail "others than of this label"
LC_ALL=C.UTF-8 show 0 1 --test
line 2 "${half//=/▀}"
LC_ALL=C.UTF-8 CLICOLOR_FORCE=1 show 0 0 --test
says "48;5;255m▀▀"
show 0
[ "$(grep -o '#[0-9]*' out | tr -d '\n')" = "#0#1#2#3#4#5#6#7#8#9" ] || fail "not the first ten"

show 0 1-2 --test --json
[ "$(wc -l <out)" = 1 ] || fail "not one line"
says '"split":"test"' '"dataset":"mnist"' '{"index":1,"label":2,"class":"2","pixels":[255,255'
says '{"index":2,"label":1,"class":"1","pixels":[255,0,0'
[ "$(tr ',' '\n' <out | grep -c '^[0-9]*[]}]*$')" -ge 1560 ] || fail "not all pixels"

for wrong in 12 1-12 2-1 x 1- -- 99999999999; do
    show 64 "$wrong"
    [ ! -s out ] || fail "$wrong is shown"
done
says 99999999999 0-11
show 64 5 --label 7
says label 7
show 64 1 --label 10
says --label 10
echo "show: ok"
