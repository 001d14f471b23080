#!/bin/bash
# Ranks that are started by hand and meet as --init-method says train what launched ones do, bit by
# bit; what contradicts itself ends before anything is written.
set -eu
# shellcheck source=../support/scratch.sh
. "$SOURCE_DIR/tests/support/scratch.sh"

train() {
    timeout 60 "$program" train --model=mlp --limit=128 --epochs=1 --threads=1 --eval-every=0 \
        --device=cpu --join-timeout=30 "$@"
}

# ranks NAME FLAG...: two ranks by hand; {} in a flag is the rank.
ranks() {
    local name=$1
    shift
    pids=()
    for rank in 1 0; do # rank 0 comes last
        train --run-dir="$name" "${@//\{\}/$rank}" >"$name.$rank.out" 2>"$name.$rank.err" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || fail "$name"; done
    pids=()
    cmp "$name/model.safetensors" launched/model.safetensors || fail "$name: another model"
}

train --nproc-per-node=2 --run-dir=launched >launched.out 2>launched.err || fail launched
port=$((25000 + $$ % 1000))

ranks tcp --init-method="tcp://127.0.0.1:$port" --rank={} --world-size=2
ranks query --init-method="tcp://127.0.0.1:$port?rank={}&world_size=2"
ranks file --init-method="file://$work/meet" --rank={} --world-size=2
[ ! -e meet ] || fail "the file is still there"
MASTER_ADDR=127.0.0.1 MASTER_PORT=$port ranks env --init-method=env:// --rank={} --world-size=2

# refused CODE FLAG... -- FACT...
refused() {
    local want=$1 code=0
    local -a flags=()
    shift
    while [ "$1" != -- ]; do flags+=("$1"); shift; done
    shift
    train --run-dir=refused "${flags[@]}" >refused.out 2>refused.err || code=$?
    [ $code = "$want" ] || fail "${flags[*]}: exit $code, want $want"
    facts_in_a_line "$(cat refused.err)" error "$@" || fail "${flags[*]}: not said: $*"
    [ ! -e refused ] || fail "${flags[*]}: a folder was made"
}
refused 64 --init-method=http://a:1 --rank=0 --world-size=2 -- http://a:1 tcp://HOST:PORT
refused 64 --init-method=tcp://127.0.0.1 --rank=0 --world-size=2 -- tcp://127.0.0.1 port
refused 64 --init-method=tcp://127.0.0.1:1 --rank=2 --world-size=2 -- RANK 2 0..1
refused 64 --init-method=tcp://127.0.0.1:1 --world-size=2 -- RANK --rank=R
refused 64 --init-method="tcp://127.0.0.1:1?rank=1" --rank=0 --world-size=2 -- --rank=0 rank=1
refused 64 --rank=0 --nproc-per-node=2 -- --rank=0 --nproc-per-node=2
echo 'my thesis' >thesis
refused 69 --init-method="file://$work/thesis" --rank=1 --world-size=2 -- "$work/thesis" new
[ "$(cat thesis)" = 'my thesis' ] || fail "another's file is written over"

# Rank 0 dies, and the store with it: rank 1 names it all the same.
for rank in 1 0; do
    train --limit=6400 --run-dir=killed --init-method="file://$work/meet" --rank=$rank --world-size=2 \
        --debug=detail --inject=kill:rank=0,step=9 >killed.$rank.out 2>killed.$rank.err &
    pids+=($!)
done
code=0
wait "${pids[0]}" || code=$?
wait "${pids[1]}" || true
pids=()
[ $code = 72 ] || fail "rank 0 is killed: exit $code"
grep 'error:' killed.1.err | grep -q 'rank 0 (pid' || fail "rank 0 is killed: $(cat killed.1.err)"
