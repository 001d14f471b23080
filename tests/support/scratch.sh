# shellcheck shell=bash
# For tests in bash, to be sourced: a folder of the test's own, in which it stands from then on, as a
# user who is in no job and has no data set. When the test ends, so does what it has started.
#
#   $program, $work     the built program; the folder
#   ${pids[@]}          processes that are to be killed at the end
#   skip WHY            ends the test as skipped
#   fail WHAT           ends it as failed, with the ends of all files whose names end with out and err
#   says FACT...        a line of the file err holds all these facts (facts.sh), or the test fails
#
# A test with a trap of its own calls scratch_close in it.

# shellcheck source=/dev/null
. "$SOURCE_DIR/tests/support/facts.sh"
# shellcheck disable=SC2034 # for the test
program=$BUILD_DIR/mnist_ddp
work=$(mktemp -d /tmp/mnist_ddp-scratch-XXXXXX)
declare -a pids=()

scratch_close() {
    local pid
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap scratch_close EXIT
cd "$work" || exit
unset MNIST_DDP_DATA RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT

skip() {
    echo "SKIP: $*"
    exit 77
}

fail() {
    echo "FAIL: $*" >&2
    tail -n 40 -v ./*out ./*err >&2 2>/dev/null || true
    exit 1
}

says() {
    facts_in_a_line "$(cat err)" "$@" || fail "no line says: $*"
}
