#!/bin/bash
# What bash completes is asked of bash, with the script loaded; zsh and fish read theirs, if they are
# here; groff reads the man page without a warning.
set -eu
program=$BUILD_DIR/mnist_ddp
work=$(mktemp -d /tmp/mnist_ddp-completion-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

"$program" completion bash >mnist_ddp.bash
# shellcheck source=/dev/null
source ./mnist_ddp.bash

# expect WANT WORD...: what is offered for the last word, in its order.
expect() {
    local want=$1
    shift
    COMP_WORDS=(mnist_ddp "$@")
    COMP_CWORD=$#
    COMPREPLY=()
    _mnist_ddp || true # nothing to offer
    [ "${COMPREPLY[*]}" = "$want" ] || fail "mnist_ddp $*: '${COMPREPLY[*]}', want '$want'"
}

mkdir folder
touch file.yaml
expect 'eval env' e
expect '--model --momentum --mode --monitor-interval' --mo
expect '--momentum --modes --models' bench dp-vs-ddp --mo
expect 'mlp cnn speedrun' --model ''
expect 'mlp' train --model = m      # bash takes --model=m apart
expect 'mlp cnn speedrun' --model = # with the cursor after it
expect 'must auto' --resume =
expect '' train --resume '' # the value of a switch does not follow as a word
expect '' --epochs ''
expect 'folder' --data-dir f
expect 'file.yaml' --config 'fi'
expect '--checkpoint' eval --ch
expect '' eval --epo
expect 'dp-vs-ddp modes scaling all-reduce broadcast reduce all-gather reduce-scatter gather scatter all-to-all send-recv barrier' bench ''
expect '--minbytes' bench all-reduce --mi
expect '' bench scaling --mi
expect 'fetch info verify show' data ''
expect 'serve set get wait add delete check num_keys compare_set' store ''
for action in "${COMPREPLY[@]}"; do
    "$program" help store | grep -qw "$action" || fail "help store lacks $action"
done
expect '--host' store get --ho
expect 'train run' doctor ''
expect '--role' doctor run --ro
expect 'bash zsh fish' completion ''
expect 'bench' help b

# A flag is told in the words of the command: in its help, in zsh, fish and the man page.
told() { # FLAG WORDS NOT-WORDS COMMAND...
    local flag=$1 words=$2 not=$3 text
    shift 3
    text=$("$program" help "$@" | sed -n "/^  --$flag /,/^  --\|^\$/p" | tr -s ' \n' ' ')
    [[ $text == *"$words"* ]] || fail "help $*: --$flag lacks '$words': $text"
    [[ $text != *"$not"* ]] || fail "help $*: --$flag says '$not': $text"
}
told timeout 'deadline of one collective' store bench all-reduce
told timeout 'a key has come' collective store
told peer 'Open MPI' dp-vs-ddp bench all-reduce
told peer 'MNIST' 'Open MPI' bench dp-vs-ddp
told backend 'hierarchical' --mode bench all-reduce
told backend '--mode=dp' none-such train
told out 'report.html' eval bench all-reduce
told out 'eval.json' bench eval
told rank 'which rank this is' sampler bench all-reduce
told threads 'threads that compute' 'per rank' serve
told dry-run 'every node would start' 'nothing is saved' run
told dry-run 'nothing is saved' 'every node' train
[ "$("$program" bench all-reduce --help | wc -l)" -lt 90 ] || fail "bench all-reduce --help is long"
"$program" completion fish | grep -q -- "-l timeout .*; store: .*a key has come" || fail fish
"$program" completion zsh | grep -q -- "--timeout=\[.*a key has come" || fail zsh
"$program" manual | grep -q '; store: .*a key has come' || fail 'man page'

# Every flag of the help is offered, and no other.
for command in train eval sampler run store doctor env; do
    COMP_WORDS=(mnist_ddp "$command" --)
    COMP_CWORD=2
    _mnist_ddp || true # nothing to offer
    printf '%s\n' "${COMPREPLY[@]}" | grep -v '^--no-' | sort >offered
    "$program" help "$command" | grep -oE '^  --[][a-z0-9-]+' | sed 's/\[no-\]//; s/^  //' |
        sort >listed
    missing=$(comm -13 offered listed | grep -v '^--no-' || true)
    [ -z "$missing" ] || fail "$command: not offered: $missing"
done

for shell in zsh fish; do
    "$program" completion $shell >script.$shell
    if command -v $shell >/dev/null; then
        $shell -n script.$shell || fail "$shell does not read its script"
    fi
done
if command -v fish >/dev/null; then
    PATH=$BUILD_DIR:$PATH HOME=$work fish -c "source script.fish; complete -C 'mnist_ddp --model '" |
        cut -f1 | sort | tr '\n' ' ' >offered
    [ "$(cat offered)" = 'cnn mlp speedrun ' ] || fail "fish offers $(cat offered)"
fi

if "$program" completion csh 2>err || ! grep -q "'csh'.*fish" err; then
    fail "completion csh: $(cat err)"
fi
if "$program" completion 2>err || ! grep -q bash err; then
    fail "completion: $(cat err)"
fi

"$program" manual >mnist_ddp.1
for section in NAME SYNOPSIS COMMANDS OPTIONS ENVIRONMENT EXAMPLES 'EXIT STATUS'; do
    grep -q "^\.SH $section\$" mnist_ddp.1 || fail "no section $section"
done
"$program" help all | grep -oE '^  --[][a-z0-9-]+' | sed 's/\[no-\]/[no-]/; s/^  //' | while read -r flag; do
    grep -qF -e "\\fB${flag//-/\\-}\\fR" mnist_ddp.1 || fail "not in the man page: $flag"
done
if command -v groff >/dev/null; then
    groff -ww -man -Tutf8 mnist_ddp.1 >page 2>warnings || fail "groff: $(cat warnings)"
    [ ! -s warnings ] || fail "groff: $(cat warnings)"
    [ "$(wc -l <page)" -gt 300 ] || fail "the page has $(wc -l <page) lines"
else
    echo "groff is not here: the man page was not formatted"
fi
