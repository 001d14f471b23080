#!/bin/sh
# Whether an NVIDIA driver answers on this machine: by its exit code.
if command -v nvidia-smi >/dev/null 2>&1; then
    nvidia-smi -L >/dev/null 2>&1
    exit
fi
PATH=$PATH:/sbin:/usr/sbin
IFS=:
for folder in ${LD_LIBRARY_PATH:-}; do
    [ ! -e "$folder/libcuda.so.1" ] || exit 0
done
ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'
