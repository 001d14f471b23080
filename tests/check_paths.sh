#!/bin/sh
# Every file of ours that a document or a comment names is there. Run by ctest.
set -eu
rooms='app|base|bench|cmake|configs|data|dist|docs|kernels|model|scripts|tests'
# Made by a user or by a run; and a text that a test expects.
made='^(bench/results|data/MNIST/raw|base/test_status\.c)'

# Documents name files and folders in backticks, where * and <name> stand for anything.
in_documents() {
    cat README.md CONTRIBUTING.md docs/*.md docs/tutorial/*.md | tr '`' '\n' | grep -xE "($rooms)/[^ ]*"
}
in_sources() {
    echo "$rooms" | tr '|' '\n' | xargs -I{} grep -rIohE \
        "(^|[ (\"\`])($rooms)/[A-Za-z0-9_/-]+\.(c|cc|cu|cuh|h|inc|md|py|sh|yaml)\b" {} |
        sed -E 's/^[^a-z]//'
}

named=$({ in_documents && in_sources; } | sort -u | grep -vE "$made" | sed -E 's/<[^>]*>/*/g')
[ -n "$named" ] || exit 1
# shellcheck disable=SC2086
ls -d $named >/dev/null || {
    echo "^ named in a document or a comment, but not there" >&2
    exit 1
}
