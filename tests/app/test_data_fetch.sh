#!/bin/bash
# mnist_ddp data fetch from a mirror of this machine, which has every fault that mirrors have. No
# connection leaves it: whatever else is asked for goes to a proxy that is not there. Without MNIST
# itself (MNIST_DDP_DATA) no fetch can succeed: then only those that fail are looked at.
set -eu
# shellcheck source=/dev/null
. "$SOURCE_DIR/tests/support/facts.sh"
if [ ! -e "$BUILD_DIR/mnist_ddp_curl.so" ]; then
    echo "SKIP: built without libcurl"
    exit 77
fi
for tool in python3 openssl; do
    command -v $tool >/dev/null || { echo "SKIP: no $tool"; exit 77; }
done

work=$(mktemp -d /tmp/mnist_ddp-fetch-XXXXXX)
server=""
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
cd "$work"
mnist=${MNIST_DDP_DATA:-}
unset MNIST_DDP_DATA RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT all_proxy ALL_PROXY CURL_CA_BUNDLE
export HOME=$work XDG_CACHE_HOME=$work/cache SSL_CERT_FILE=$work/certificate
export https_proxy=http://127.0.0.1:9 no_proxy=127.0.0.1

fail() {
    echo "FAIL: $*" >&2
    cat out err >&2
    exit 1
}

program() {
    timeout 60 "$BUILD_DIR/mnist_ddp" data fetch --connect-timeout=10 --stall-timeout=10 "$@"
}

# forget: what was asked for so far.
forgotten=0
forget() {
    forgotten=$(wc -l <log)
}

# fetch CODE FAULT ARG...: from the mirror with this fault, into the folder "to".
fetch() {
    local want=$1 fault=$2 code=0
    shift 2
    forget
    program --data-dir=to --mirror="https://127.0.0.1:$port/$fault" "$@" >out 2>err || code=$?
    [ $code = "$want" ] || fail "$fault $*: exit $code, want $want"
}

says() {
    facts_in_a_line "$(cat out err)" "$@" || fail "not said: $*"
}

asked() { # N TEXT: of N GETs
    [ "$(tail -n +$((forgotten + 1)) log | grep -c -- "$2")" = "$1" ] ||
        fail "not $1 times $2: $(tail -n +$((forgotten + 1)) log)"
}

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test \
    -addext subjectAltName=IP:127.0.0.1 -keyout key -out certificate 2>/dev/null
cat key certificate >both
mkdir files
touch log
names="train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte"
for name in $names; do
    if [ -n "$mnist" ] && [ -e "$mnist/$name.gz" ]; then
        cp "$mnist/$name.gz" files/
    else
        mnist=""
        head -c 20000 /dev/zero | gzip >"files/$name.gz"
    fi
done
python3 -B "$SOURCE_DIR/tests/app/support/mirror.py" files both log >ports &
server=$!
for _ in $(seq 100); do [ -s ports ] || sleep 0.05; done
read -r port plain_port <ports || fail "no mirror"

images=train-images-idx3-ubyte.gz labels=t10k-labels-idx1-ubyte.gz
raw=to/MNIST/raw

# What fails says why, of each mirror; nothing gets the name of a file.
fetch 65 403
says "HTTP 403" "https://127.0.0.1:$port/403/$images" "127.0.0.1 port 9" \
    https://ossci-datasets.s3.amazonaws.com/mnist/ https://storage.googleapis.com/cvdf-datasets/mnist/
fetch 65 loop
says "https://127.0.0.1:$port/loop/$images" redirects
fetch 65 plain
says "https://127.0.0.1:$port/plain/$images" http disabled
asked 0 /ok/
fetch 65 login
says "not a gzip file" text/html "<!DOCTYPE html>" '\x1b[31mplease' "https://127.0.0.1:$port/login/$images"
fetch 65 ok --offline
says --offline train-images-idx3-ubyte "https://127.0.0.1:$port/ok/" $raw
asked 0 /ok/
[ -z "$(find . -name '*ubyte*' ! -path './files/*')" ] || fail "left: $(find to)"
SSL_CERT_FILE=/etc/ssl/certs/nothing fetch 65 ok
says certificate SSL_CERT_FILE what names
fetch 64 ok --mirror=ftp://127.0.0.1/
says --mirror https
mkdir closed
if [ "$(id -u)" != 0 ]; then
    chmod a-w closed
    fetch 74 ok --data-dir=closed
    says closed "Permission denied"
fi
MNIST_DDP_CURL_MODULE=/nonexistent.so fetch 64 ok
says module curl MNIST_DDP_CURL_MODULE $raw

if [ -z "$mnist" ]; then
    echo "SKIP of fetches that succeed: MNIST_DDP_DATA names no folder with MNIST's .gz files"
    exit 0
fi

# keep_all_but NAME...: all files are there but these.
keep_all_but() {
    rm -rf to
    mkdir -p $raw
    ln files/* $raw # the same files: their cache serves again
    for name in "$@"; do rm "$raw/$name"; done
}

# as_it_should: each file is there, whole, and nothing else.
as_it_should() {
    diff -r files $raw >diffs || fail "$(cat diffs)"
}

# aside FOLDER MIRRORS ARG...: fetches what takes its time beside the rest of this test, all but the
# labels being there.
aside() {
    mkdir -p "$1/raw"
    ln files/* "$1/raw"
    rm "$1/raw/$labels"
    program --data-dir="$1" --mirror="$2" "${@:3}" >"$1/out" 2>&1 &
}
at=https://127.0.0.1:$port
aside stalled "$at/stalled" --stall-timeout=1
stalled=$!
aside mixed "$at/wrong,$at/long,$at/login,$at/truncated,$at/busy"
mixed=$!

fetch 0 moved --json
says '"dataset":"mnist"' '"folder":"to/MNIST/raw"' '"fetched":true' '"why":null'
[ "$(grep -o '"verdict":"right"' out | wc -l)" = 4 ] || fail "not four right files"
as_it_should
asked 4 /ok/
asked 4 '/ok/.*gz $'
fetch 0 ok # all is there: nobody is asked, and no module is needed
says "nothing was missing"
asked 0 /ok/
[ "$(MNIST_DDP_CURL_MODULE=/nonexistent.so program --data-dir=to --quiet --offline)" = $raw ] || fail quiet

# A transfer that breaks off goes on where it was.
keep_all_but $images
fetch 0 cut
as_it_should
asked 3 "/cut/$images"
asked 1 "/cut/$images bytes=4956211-"
asked 1 "/cut/$images bytes=7434"

# A login page does not cost what has come.
keep_all_but $labels
head -c 1000 "files/$labels" >$raw/$labels.part
fetch 65 login
says "login/$labels" "not a gzip file"
cmp -n 1000 files/$labels $raw/$labels.part || fail "lost"
[ "$(stat -c %s $raw/$labels.part)" = 1000 ] || fail "changed"

# begin LABELS BYTES FROM: an earlier fetch has left so much of a file as that of the labels.
begin() {
    head -c "$2" "files/$3" >"$raw/$1.part"
}
train_labels=train-labels-idx1-ubyte.gz
keep_all_but $labels $train_labels
begin $labels 1000 $labels
begin $train_labels 4542 $labels # of another file
fetch 0 ok
as_it_should
asked 1 "/ok/$labels bytes=1000-"
asked 1 "/ok/$train_labels bytes=4542-"
asked 1 "/ok/$train_labels $"
keep_all_but $labels $train_labels
begin $labels 4542 $labels # all of it
begin $train_labels 40000 $images
fetch 0 ok
as_it_should
asked 0 "/ok/$labels"
asked 1 "/ok/$train_labels $"
for fault in norange badrange 416; do
    keep_all_but $labels
    begin $labels 1000 $labels
    fetch 0 $fault
    as_it_should
    asked 1 "/$fault/$labels bytes=1000-"
done
keep_all_but $labels
mkfifo $raw/$labels.part
fetch 74 ok
says $labels.part "not a regular file"

# What is there and is another file stays.
keep_all_but $labels
echo mine >$raw/$labels
fetch 65 ok
says $raw/$labels "not the file of MNIST" --data-dir
[ "$(cat $raw/$labels)" = mine ] || fail "it was overwritten"

# What is there and cannot be read is not said to be another file.
for name in $labels ${labels%.gz}; do
    rm -rf to
    mkdir -p $raw
    ln files/* $raw
    rm $raw/$labels
    ln -s /proc/self/mem "$raw/$name" # reading it is an I/O error
    fetch 65 ok
    says "$raw/$name" "Input/output error"
    grep -q "move it away" out err && fail "it may be the right one"
done

# However many ask, one fetches. The others find it.
rm -rf to
forget
for i in 1 2 3; do
    program --data-dir=to --mirror="https://127.0.0.1:$port/slow" >out$i 2>err$i &
    pids[i]=$!
done
for i in 1 2 3; do wait "${pids[i]}" || fail "process $i: $(cat "err$i")"; done
as_it_should
asked 4 /slow/
cat err[123] >err
says waiting $raw "pid"
[ "$(grep -l "nothing was missing" out[123] | wc -l)" = 2 ] || fail "who fetched?"

# Ctrl-C leaves what has come, and the next call goes on from there.
keep_all_but $images
forget
program --data-dir=to --mirror="https://127.0.0.1:$port/held" >out 2>err &
pid=$!
until [ "$(stat -c %s "$raw/$images.part" 2>/dev/null || echo 0)" -gt 500000 ]; do
    kill -0 $pid 2>/dev/null || fail "nothing came"
    sleep 0.02
done
code=0
program --data-dir=to --lock-timeout=0 >out2 2>err2 || code=$?
[ $code = 110 ] || fail "a second one: $code: $(cat err2)"
facts_in_a_line "$(cat err2)" --lock-timeout pid $raw || fail "not said who: $(cat err2)"
child=$(pgrep -P $pid)
kill -INT "$child"
code=0
wait $pid || code=$?
[ $code = 130 ] || fail "interrupted: exit $code"
says interrupted $images "9912422 bytes"
size=$(stat -c %s $raw/$images.part)
fetch 0 ok
as_it_should
says "fetched 1 file, $(awk "BEGIN { printf \"%.1f\", (9912422 - $size) / 1e6 }") MB"
asked 1 "/ok/$images bytes=$size-"

# By http, if that is asked for. The default place is the one where a run looks.
code=0
program --mirror="http://127.0.0.1:$plain_port/ok" >out 2>err || code=$?
[ $code = 0 ] || fail "http: $code"
diff -r files data/MNIST/raw || fail "not in ./data/MNIST/raw"
if [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
    mkdir small
    # shellcheck disable=SC2016
    unshare -m sh -c 'mount -t tmpfs -o size=2m none small && "$@"; code=$?; ls -R small; exit $code' sh \
        "$BUILD_DIR/mnist_ddp" data fetch --data-dir=small --mirror="https://127.0.0.1:$port/ok" \
        >out 2>err && fail "a full disk"
    says $images.part "No space left"
fi
code=0
wait $stalled || code=$?
cp stalled/out out
[ $code = 65 ] || fail "stalled: exit $code"
says "stalled/$labels" slow ossci-datasets
[ "$(stat -c %s stalled/raw/$labels.part)" = 2271 ] || fail "what had come is not kept"

# One mirror after the other, until one has it; a busy one is asked again.
code=0
wait $mixed || code=$?
cp mixed/out out
[ $code = 0 ] || fail "mixed: exit $code"
diff -r files mixed/raw || fail "mixed: not as it should be"
says warning "wrong/$labels" SHA-256 "long/$labels" "4542 bytes" "login/$labels" "truncated/$labels"
forgotten=0
asked 1 "/login/$labels $" # nothing was left
asked 1 "/truncated/$labels bytes=3406-"
asked 2 "/busy/$labels bytes=3974-"
echo "fetch: ok"
