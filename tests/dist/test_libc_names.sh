#!/bin/bash
# Neither the program nor a module defines a function of libc's: a definition in the program would
# be what every library in the process calls. SKIP in sanitized builds, which do just that.
set -eu
cd "$BUILD_DIR"
if ! command -v nm >/dev/null; then
    echo "SKIP: no nm"
    exit 77
fi
if [ -n "$(sed -n 's/^SANITIZE:[A-Z]*=//p' CMakeCache.txt)" ]; then
    echo "SKIP: sanitized"
    exit 77
fi

# The names of the functions that FILE defines for others.
functions() {
    nm -D --defined-only "$1" | awk '$2 ~ /^[TWi]$/ { sub(/@.*/, "", $3); print $3 }' | sort -u
}

libraries=$(ldd mnist_ddp | awk '/\/(libc|libm|libdl|libpthread|librt)\./ { print $3 }')
libc_names=$(for library in $libraries; do functions "$library"; done | sort -u)
for name in listen epoll_wait; do
    grep -qx $name <<<"$libc_names" || { echo "FAIL: libc's names are not found"; exit 1; }
done

failed=0
for file in mnist_ddp mnist_ddp_*.so; do
    [ -e "$file" ] || continue
    names=$(functions "$file" | comm -12 - <(echo "$libc_names") | tr '\n' ' ')
    if [ -n "$names" ]; then
        echo "FAIL: $file defines $names"
        failed=1
    else
        echo "$file: ok"
    fi
done
exit $failed
