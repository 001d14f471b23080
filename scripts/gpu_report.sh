#!/bin/sh
# Keeps the results of 'make gpu-check': JSON with one row per line, and the same as tables.
#
#     scripts/gpu_report.sh json WORK NAME RESULTS    makes RESULTS/gpu-NAME.json
#     scripts/gpu_report.sh write WORK NAME RESULTS   that, and gpu-NAME.md
#     scripts/gpu_report.sh take JSON WORK            brings the stages of an earlier run, that WORK
#                                                     does not have, back into WORK
#
# WORK holds rows of KEY=VALUE fields with tabs between them: machine.row, <stage>.head (status,
# seconds, date, commit, note) and <stage>.rows, whose field "table" names the table it belongs to.
set -eu
stages="build test train bench torch compiled"

# Rows to JSON objects: numbers bare, strings without quotes and backslashes in them.
to_json() {
    awk -F'\t' '
        function value(v) {
            if (v ~ /^-?(0|[1-9][0-9]*)(\.[0-9]+)?$/ || v == "true" || v == "false" || v == "null")
                return v
            gsub(/"/, "\047", v)
            gsub(/\\/, "/", v)
            gsub(/[[:cntrl:]]/, " ", v)
            return "\"" v "\""
        }
        {
            text = ""
            for (i = 1; i <= NF; i++) {
                at = index($i, "=")
                if (at > 1)
                    text = text (text == "" ? "" : ", ") \
                        value(substr($i, 1, at - 1)) ": " value(substr($i, at + 1))
            }
            print "{" text "}"
        }' "$@"
}

# The way back, of lines that to_json made.
from_json() {
    awk '{
        text = ""
        while (match($0, /"[^"]*": ("[^"]*"|[^",}]*)/)) {
            field = substr($0, RSTART, RLENGTH)
            $0 = substr($0, RSTART + RLENGTH)
            at = index(field, "\": ")
            v = substr(field, at + 3)
            gsub(/"/, "", v)
            text = text (text == "" ? "" : "\t") substr(field, 2, at - 2) "=" v
        }
        print text
    }'
}

write_json() { # WORK NAME
    printf '{\n"name": "%s",\n"machine": %s,\n"stages": {' "$2" "$(to_json "$1/machine.row")"
    comma=
    for stage in $stages; do
        [ -f "$1/$stage.head" ] || continue
        head=$(to_json "$1/$stage.head")
        printf '%s\n"%s": %s, "rows": [\n' "$comma" "$stage" "${head%\}}"
        to_json "$1/$stage.rows" | sed '$!s/$/,/'
        printf ']}'
        comma=,
    done
    printf '\n}\n}\n'
}

# One table per value of the field "table", a column per key.
write_tables() {
    awk -F'\t' '
        {
            table = ""
            for (i = 1; i <= NF; i++)
                if (index($i, "table=") == 1)
                    table = substr($i, 7)
            if (!(table in n_rows)) {
                tables[++n_tables] = table
                n_rows[table] = n_columns[table] = 0
            }
            row = ++n_rows[table]
            for (i = 1; i <= NF; i++) {
                at = index($i, "=")
                key = substr($i, 1, at - 1)
                if (at < 2 || key == "table")
                    continue
                if (!((table, key) in known)) {
                    known[table, key] = 1
                    columns[table, ++n_columns[table]] = key
                }
                cell[table, row, key] = substr($i, at + 1)
            }
        }
        function line(table, row,   c, text, key) {
            text = "|"
            for (c = 1; c <= n_columns[table]; c++) {
                key = columns[table, c]
                text = text " " (row == 0 ? key : row < 0 ? "---" : cell[table, row, key]) " |"
            }
            print text
        }
        END {
            for (t = 1; t <= n_tables; t++) {
                if (t > 1)
                    print ""
                if (tables[t] != "")
                    print "### " tables[t] "\n"
                for (r = 0; r <= n_rows[tables[t]]; r++) {
                    line(tables[t], r)
                    if (r == 0)
                        line(tables[t], -1)
                }
            }
        }' "$1"
}

field() { # KEY FILE
    tr '\t' '\n' <"$2" | sed -n "s/^$1=//p" | head -n 1
}

write_markdown() { # WORK NAME
    printf '# The GPU path on %s\n\n' "$2"
    # shellcheck disable=SC2016 # a code span
    printf 'Written by `make gpu-check`; the same figures are in gpu-%s.json.\n\n' "$2"
    write_tables "$1/machine.row"
    for stage in $stages; do
        head=$1/$stage.head
        [ -f "$head" ] || continue
        printf '\n## %s: %s\n\n' "$stage" "$(field status "$head")"
        printf '%s s, %s, commit %s' "$(field seconds "$head")" "$(field date "$head")" \
            "$(field commit "$head")"
        note=$(field note "$head")
        printf '%s\n' "${note:+. $note}"
        [ ! -s "$1/$stage.rows" ] || { echo && write_tables "$1/$stage.rows"; }
    done
}

# FILE FUNCTION ARGUMENTS...: what the function prints, there at once and whole.
replace() {
    file=$1
    shift
    "$@" >"$file.tmp"
    mv "$file.tmp" "$file"
}

case ${1:-} in
json | write)
    mkdir -p "$4"
    replace "$4/gpu-$3.json" write_json "$2" "$3"
    [ "$1" = json ] || replace "$4/gpu-$3.md" write_markdown "$2" "$3"
    ;;
take)
    for stage in $stages; do
        [ ! -f "$3/$stage.head" ] || continue
        # From the stage's own line to the one that closes its rows.
        sed -n "/^\"$stage\": {/,/^\]}/p" "$2" >"$3/taken"
        if [ -s "$3/taken" ]; then
            head -n 1 "$3/taken" | sed 's/^"[a-z]*": //; s/, "rows": \[$//' | from_json \
                >"$3/$stage.head"
            sed -n '/^{/p' "$3/taken" | from_json >"$3/$stage.rows"
        fi
        rm -f "$3/taken"
    done
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 64
    ;;
esac
