# shellcheck shell=bash
# For tests in shell, to be sourced: what a message must hold, not how it words it.

# facts_in_a_line TEXT FACT...: true if one line of TEXT holds every FACT, in any order, each as words
# of its own ("rank 1" is not in "rank 12").
facts_in_a_line() {
    facts_lines=$1
    shift
    for fact in "$@"; do
        # shellcheck disable=SC2001,SC2016
        quoted=$(printf '%s' "$fact" | sed 's/[][\.*^$(){}?+|/]/\\&/g')
        case $fact in [A-Za-z0-9_]*) quoted="(^|[^A-Za-z0-9_])$quoted" ;; esac
        case $fact in *[A-Za-z0-9_]) quoted="$quoted([^A-Za-z0-9_]|\$)" ;; esac
        facts_lines=$(printf '%s\n' "$facts_lines" | grep -E -e "$quoted") || return 1
    done
}
