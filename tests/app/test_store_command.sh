#!/bin/bash
# mnist_ddp store: the example of PyTorch's TCPStore from two terminals, each of its calls, and what is
# told of mistakes.
set -eu
# shellcheck source=../support/scratch.sh
. "$SOURCE_DIR/tests/support/scratch.sh"

# serve FLAG...: a server; sets server (its process) and address.
serve() {
    rm -f announced
    mkfifo announced
    # A shell's background job ignores SIGINT, and so would what it starts.
    env --default-signal=INT "$program" store serve --timeout=50 "$@" >announced &
    server=$!
    pids+=("$server")
    read -r address <announced
}

# ask CODE WORD...: asks the server; the answer is in the file out.
ask() {
    local want=$1 code=0
    shift
    timeout 20 "$program" store --host "$address" "$@" >out 2>err || code=$?
    [ $code = "$want" ] || fail "store $*: exit $code, want $want"
}

# answers TEXT: stdout holds this alone, and no end of a line.
answers() {
    printf '%s' "$1" | cmp -s - out || fail "the answer is not '$1'"
}

serve --port=0
first=$address
facts_in_a_line "$address" 127.0.0.1 || fail "it listens at $address"

# The two terminals.
ask 0 set first_key first_value
answers ''
ask 0 get first_key
answers first_value

# Values are bytes, of any length; their end is the value's.
printf 'a\0b\n\xff\n' >value
head -c 3000000 /dev/urandom >>value
ask 0 set bytes - <value
ask 0 get bytes
cmp out value || fail "the value is another one"
ask 0 set empty ''
ask 0 get empty
answers ''
ask 0 set dashes -- --no-flag
ask 0 get dashes
answers --no-flag
ask 0 set number -17
ask 0 get number
answers -17

ask 0 add n 5
answers $'5\n'
ask 0 add n -7
answers $'-2\n'
ask 0 add n
answers $'-1\n'
ask 72 add first_key # the server hangs up
says "$address" 'no number'
ask 64 get first_key --port=1
says "$address" --port=1

ask 0 check first_key n
answers ''
ask 1 check first_key never
ask 0 delete empty
ask 1 delete empty
ask 0 num_keys # one is init/, in which clients count themselves
answers $'6\n'
ask 0 compare_set first_key first_value second
answers second
ask 1 compare_set first_key first_value third
answers second
ask 0 compare_set first_key second second
answers second
ask 1 compare_set missing a a --json # what the server answers is no value of the key
answers $'{"key":"missing","set":false,"value":"a"}\n'
ask 1 check missing
ask 0 compare_set made '' ''
ask 0 delete made

# A key that comes while others wait for it.
ask 110 get never --timeout=1
says error never "$address" "1 s"
answers ''
timeout 20 "$program" store get late --host "$address" >got &
getter=$!
timeout 20 "$program" store wait first_key late later --host "$address" &
waiter=$!
pids+=("$getter" "$waiter")
ask 110 wait late --timeout=1
ask 0 set late now
wait "$getter" || fail "get has not waited"
[ "$(cat got)" = now ] || fail "get: $(cat got)"
kill -0 "$waiter" || fail "wait has ended before the last key"
ask 0 set later ''
wait "$waiter" || fail "wait for several keys"

ask 0 get first_key --json
answers $'{"key":"first_key","value":"second"}\n'
ask 0 add n --json
answers $'{"key":"n","value":0}\n'
ask 1 check never --json
answers $'{"key":"never","there":false}\n'
ask 64 get bytes --json
says error bytes UTF-8

# A job's own store is the one that is asked.
MASTER_ADDR=127.0.0.1 MASTER_PORT=${address##*:} "$program" store get first_key >out 2>err ||
    fail "MASTER_ADDR"
answers second

# What makes no sense.
ask 64 gte k
says error "'gte'" "'get'"
ask 64 get
says error KEY
ask 64 get a b
says error KEY "2 words"
ask 64 add n 1x
says error "'1x'" whole number
ask 64 num_keys k
ask 64
says error serve compare_set
code=0
"$program" store get k --port=0 >out 2>err || code=$?
[ $code = 64 ] || fail "port 0: exit $code"
says error --port=0
code=0
"$program" store add k 1x --port=1 >out 2>err || code=$? # where no store is
[ $code = 64 ] || fail "no number: exit $code"
says error "'1x'"
MASTER_PORT=x ask 0 check first_key # --host has a port
MASTER_PORT=x "$program" store check first_key --host=127.0.0.1 --port="${address##*:}" >out 2>err ||
    fail "--port beside a bad MASTER_PORT"
code=0
MASTER_PORT=x "$program" store check first_key --host=127.0.0.1 >out 2>err || code=$?
[ $code = 64 ] || fail "MASTER_PORT=x: exit $code"
says error MASTER_PORT=x

# What fails outside the command line.
ask 74 set k - <"$work"
says error stdin directory
code=0
"$program" store serve --port="${address##*:}" >out 2>err || code=$?
[ $code = 69 ] || fail "a port that is taken: exit $code"
says error "${address##*:}"
code=0
timeout 20 "$program" store serve --port=0 >/dev/full 2>err || code=$?
[ $code = 74 ] || fail "stdout is full: exit $code"
says error stdout

# A server ends by a signal, without a word; its port is free then, and a client says where none is.
for signal in INT TERM; do
    kill -s $signal "$server"
    code=0
    wait "$server" || code=$?
    [ $code = 0 ] || fail "SIG$signal: exit $code"
    plain=$address
    [ $signal = TERM ] || serve --port="${address##*:}" --json
done
[ "$plain" = "{\"address\":\"$first\",\"port\":${first##*:}}" ] || fail "--json: $plain"
address=$first
ask 69 get k --timeout=1
says error "$address" refused "mnist_ddp store serve"
