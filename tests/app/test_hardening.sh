#!/bin/bash
# The program and its modules as they are built: stack canaries, checked libc calls, addresses of
# functions that are bound at start and read-only then, no executable stack, any load address. SKIP
# in sanitized builds.
set -eu
cd "$BUILD_DIR"
if ! command -v readelf >/dev/null; then
    echo "SKIP: no readelf"
    exit 77
fi
cached() { sed -n "s/^$1:[A-Z]*=//p" CMakeCache.txt; }
if [ -n "$(cached SANITIZE)" ]; then
    echo "SKIP: sanitized"
    exit 77
fi

failed=0
# has FILE WHAT PATTERN READELF_FLAG...
has() {
    local file=$1 what=$2 pattern=$3
    shift 3
    readelf -W "$@" "$file" | grep -Eq -- "$pattern" && return
    echo "FAIL: $file: no $what"
    failed=1
}

files=(mnist_ddp)
for module in mnist_ddp_gloo.so mnist_ddp_curl.so mnist_ddp_microhttpd.so mnist_ddp_cuda.so; do
    if [ -e $module ]; then files+=("$module"); fi
done
for file in "${files[@]}"; do
    has "$file" "binding at start" '\(FLAGS.*(BIND_NOW|NOW)' -d
    has "$file" "read-only relocations" GNU_RELRO -l
    has "$file" "stack that is not executable" 'GNU_STACK .* RW +0x' -l
    has "$file" "position independence" 'Type: +DYN' -h
    has "$file" "stack canaries" __stack_chk_fail --dyn-syms
done
has mnist_ddp "position independence of a program" 'FLAGS_1.*PIE' -d
if [ "$(cached CMAKE_BUILD_TYPE)" != Debug ]; then
    has mnist_ddp "checked formatting" '__(v?f|vs?n)printf_chk' --dyn-syms
    has mnist_ddp "checked copying" '__(mem|str)[a-z]*_chk' --dyn-syms
fi
[ $failed = 0 ] && echo "${files[*]}: ok"
exit $failed
