#!/bin/sh
# The structure that docs/style.md asks for: how many files a folder has and how large they are, who
# needs a header, how include guards are named, where an #include may point. Run by ctest.
set -eu
export LC_ALL=C.UTF-8 # a letter is one column

sources() { # those of the tree, by the ends of their names
    for end; do
        find base kernels data model dist app bench tests -name "*.$end"
    done
}
if sources c h cc cu inc | xargs wc -l | awk '$1 > 1200 && $2 != "total"' | grep .; then
    echo "^ a file has at most 1200 lines" >&2
    exit 1
fi

# tests/files.txt: "<folder> <files at most>" of each folder, and the headers with a single user.
if ! sources c h cc cu inc | grep -v '^tests/' | sed 's|/[^/]*$||' | sort | uniq -c | awk '
    FNR == NR { if (NF == 2) most[$1] = $2; next }
    $1 > most[$2] { print $2 ": " $1 " files, of " most[$2] + 0; bad = 1 }
    END { exit bad }' tests/files.txt -; then
    echo "^ a folder has a budget of files: is the new one a concept, or a part of one?" >&2
    exit 1
fi
if ! grep -rE '^ *# *include "' base kernels data model dist app bench tests |
    sed -nE 's/^([^:]*):[^"]*"((base|kernels|data|model|dist|app)[^"]*\.h)".*/\2 \1/p' | sort -u | awk '
    FNR == NR { if (NF == 1) listed[$1] = 1; next }
    { header = own = $1; sub(/h$/, "", own); users[header] += index($2, own) != 1 }
    END {
        for (header in users)
            if (users[header] < 2 && !(header in listed)) { print header; bad = 1 }
        for (header in listed)
            if (!(header in users) || users[header] > 1) { print header ", but it is listed"; bad = 1 }
        exit bad
    }' tests/files.txt -; then
    echo "^ a header is merged if only its own .c and one more file include it (tests/files.txt)" >&2
    exit 1
fi
# A table of rows may be wider, between clang-format off and on.
for file in $(sources c h cc cu inc | xargs grep -lE '^.{101}'); do
    if sed '/clang-format off/,/clang-format on/s/.*//' "$file" | grep -nE '^.{101}'; then
        echo "^ $file: a line has at most 100 columns" >&2
        exit 1
    fi
done
# shellcheck disable=SC2016 # awk's $2
if ! sources h | grep -v '^tests/emulator/include/' | xargs awk '/^#ifndef/ && !seen[FILENAME]++ {
        want = "MNIST_DDP_" toupper(FILENAME)
        gsub("[/.]", "_", want)
        if ($2 != want) { print FILENAME ": its include guard is to be " want; bad = 1 }
    } END { exit bad }'; then
    exit 1
fi

# An #include "..." may point into its own folder or to a lower layer.
check() { # folder, then the lower layers that it may include
    folder=$1
    shift
    allowed=$(printf '%s|' "$folder" "$@")
    allowed=${allowed%|}
    if grep -rnE '^ *# *include "' "$folder" | grep -vE "include \"($allowed)/"; then
        echo "^ $folder/ may include only: $folder $*" >&2
        exit 1
    fi
}
check base
check kernels base
check data kernels base
check model kernels base
check dist kernels base
check app model data dist kernels base
check app/options model base
check app/data app/common app/options data base
check app/common app/options model dist kernels base
check app/report app/common base # it serves every command
check app/predict app/common app/options model data kernels base
check app/serve app/predict app/common app/options model data dist kernels base
check app/store app/common app/options dist base
check app/trace app/common dist kernels base
check app/train app/common app/options app/report app/trace model data dist kernels base

# Inside dist/ each folder may include itself and those named before it.
below='dist/net dist/store dist/membership dist/elastic dist/collective dist/health dist/backends dist/process_group'
lower='kernels base'
for folder in $below; do
    # shellcheck disable=SC2086 # a list of words
    check "$folder" $lower
    lower="$lower $folder"
done

# CUDA's headers stay in kernels/cuda and the nccl backend.
if grep -rnE '^ *# *include <(cuda|cublas|cudnn|nccl)' base kernels data model dist app |
    grep -vE '^(kernels/cuda/|dist/backends/nccl/)'; then
    echo "^ CUDA's headers belong to kernels/cuda/ and dist/backends/nccl/" >&2
    exit 1
fi

# The same for libmicrohttpd's: in all else the program stands alone.
if grep -rnE '^ *# *include <microhttpd' base kernels data model dist app | grep -v '^app/serve/microhttpd/'; then
    echo "^ libmicrohttpd's headers belong to app/serve/microhttpd/" >&2
    exit 1
fi

# And for libcurl's.
if grep -rnE '^ *# *include <curl/' base kernels data model dist app | grep -v '^base/curl/'; then
    echo "^ libcurl's headers belong to base/curl/" >&2
    exit 1
fi

# A wait ends by the monotonic clock: the one on the wall may be set back meanwhile.
if grep -rnE 'CLOCK_REALTIME|pthread_timedjoin_np|pthread_mutex_timedlock|sem_timedwait' base kernels \
    model data dist app; then
    echo "^ waits go by CLOCK_MONOTONIC" >&2
    exit 1
fi
