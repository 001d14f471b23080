#!/bin/sh
# Every file of ours that a document or a comment names is there; and where a document names a
# function in it, as `dist/ddp.c: ddp_wait`, that is defined in that file. The pages for users stay
# within their number of words. Run by ctest.
set -eu
documents='README.md CONTRIBUTING.md docs/*.md docs/internals/*.md docs/tutorial/*.md'
rooms='app|base|bench|cmake|configs|data|dist|docs|kernels|model|scripts|tests'
# Made by a user or by a run; and a text that a test expects.
made='^(bench/results|data/MNIST/raw|base/test_status\.c)'

# Documents name files and folders in backticks, where * and <name> stand for anything.
in_documents() {
    # shellcheck disable=SC2086
    cat $documents | tr '`' '\n' | grep -xE "($rooms)/[^ ]*"
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

# A heading that is named beside its document: `docs/design.md` ("One batch").
# shellcheck disable=SC2016 # backticks of the document
# shellcheck disable=SC2086
headings=$(cat $documents | grep -oE '`[A-Za-z/-]+\.md` \("[^"]+"\)' | sort -u)
[ -n "$headings" ] || exit 1
# shellcheck disable=SC2016
echo "$headings" | sed -E 's/`([^`]+)` \("([^"]+)"\)/\1 \2/' | while read -r file heading; do
    grep -qE "^#+ $heading\$" "$file" || {
        echo "$file has no heading \"$heading\"" >&2
        exit 1
    }
done

# A definition begins in the first column; a semicolon ends a declaration before its body begins.
defines() {
    awk -v begin="^[A-Za-z_](.*[ *])?$2\\(" '
        $0 ~ begin { seen = 1 }
        seen && /^{/ { found = 1; exit }
        /;$/ { seen = 0 }
        END { exit !found }' "$1"
}
functions=$(cat docs/*.md docs/*/*.md | tr '`' '\n' | grep -xE "($rooms)/[^ ]*: [a-z0-9_]+" | sort -u)
[ -n "$functions" ] || exit 1
echo "$functions" | {
    missing=0
    while IFS=': ' read -r file name; do
        defines "$file" "$name" && continue
        echo "$file: no function $name is defined there, but a document names it" >&2
        missing=1
    done
    exit $missing
}

# Pages for users are short: all of them, without the tutorial and those for developers (docs/style.md).
# shellcheck disable=SC2010
words=$(ls README.md docs/*.md | grep -vE '/(design|style)\.md$' | xargs cat | wc -w)
[ "$words" -le 15000 ] || {
    echo "the pages for users have $words words, and 15000 are allowed" >&2
    exit 1
}

for document in $documents; do
    for link in $(grep -oE '\]\([^)]+\)' "$document" | tr -d '])(' | sed 's/#.*//'); do
        case $link in
        http*) ;;
        *) ls -d "$(dirname "$document")/$link" >/dev/null || {
            echo "^ linked in $document, but not there" >&2
            exit 1
        } ;;
        esac
    done
done
