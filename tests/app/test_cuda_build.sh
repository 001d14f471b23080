#!/usr/bin/env bash
# 'make gpu-bundle', and the build of 'make gpu-check' out of it, with an nvcc that is older than the
# newest GPUs, and a cuDNN that Debian laid out: where the kernel lets us, on a machine that has no
# -dev package. Objects that $BUILD_DIR has of the same sources are taken from there. Those
# that include one of the bundle's headers, and are not told where it is, are compiled; so are some more.
set -euo pipefail
# shellcheck source=/dev/null
. "$SOURCE_DIR/tests/support/scratch.sh"
cached() { sed -n "s/^$1:[A-Z]*=//p" "$BUILD_DIR/CMakeCache.txt"; }
NVCC=$(cached NVCC)
export NVCC
command -v python3 >/dev/null || skip "no python3"
[ -n "$(cached NCCL_LIBRARY)" ] || skip "no CUDA, cuDNN or NCCL to build with"
[ -z "$(cached SANITIZE)" ] || skip "objects with a sanitizer's calls are no program's"

# The checkout, with a bundle whose MNIST is short.
mkdir tree mnist bin toolkit
for entry in "$SOURCE_DIR"/*; do
    case ${entry##*/} in
    build* | gpu-bundle | bench) ;;
    *) ln -s "$entry" tree/ ;;
    esac
done
mkdir tree/bench
cp -r "$SOURCE_DIR"/bench/{gpu,cpu,*.py} tree/bench/
for name in train-images-idx3 train-labels-idx1 t10k-images-idx3 t10k-labels-idx1; do
    echo >mnist/$name-ubyte
done
tree/scripts/gpu_bundle.sh "$work/mnist" 2>bundle.err || skip "$(tail -n 1 bundle.err)"

become() { # FILE, the script on stdin
    mkdir -p "${1%/*}"
    { echo '#!/bin/bash' && cat; } >"$1"
    chmod +x "$1"
}
become bin/nvidia-smi <<'END'
[ "$1" != -L ] || { echo "GPU 0" && exit; }
echo "NVIDIA Pretender 1, 1000, 580.1, 10.0"
END
# By ninja's record of what was included.
ninja -C "$BUILD_DIR" -t deps 2>/dev/null | awk '/^[^ ]/ { sub(":$", "", $1); object = $1 }
    /\/(png|zlib|yaml|jansson|sha2|check)\.h$/ { print object }' | sort -u >include_bundled || true
become bin/compiler <<'END'
for ((i = 1; i < $#; i++)); do
    next=$((i + 1))
    case ${!i} in
    -o) object=${!next} ;;
    -c) source=${!next} ;;
    esac
done
if [ -f "$BUILD_DIR/$object" ] &&
    { [[ $* == *gpu-bundle/deps/include* ]] || ! grep -qxF "$object" "$work/include_bundled"; } &&
    ! grep -qE '<(zlib|yaml|png|sha2|check)\.h>' "$source" && [[ $source != */model/safetensors* ]]; then
    exec cp "$BUILD_DIR/$object" "$object"
fi
echo "$source" >>"$work/compiled"
exec "$@"
END
become toolkit/bin/nvcc <<'END'
case $* in
--list-gpu-code) "$NVCC" "$@" | grep -v 'sm_1..' ;;
*compute_1[0-9][0-9]*) echo "nvcc fatal   : Unsupported gpu architecture 'compute_100'" >&2 && exit 1 ;;
*) exec "$NVCC" "$@" ;;
esac
END
become broken/bin/nvcc <<'END'
case $* in
--list-gpu-code | --version) exec "$NVCC" "$@" ;;
*) echo "host_config.h(164): error: #error -- unsupported GNU version!" >&2 && exit 1 ;;
esac
END
architecture=$(cc -print-multiarch)
if [ -n "$architecture" ]; then
    mkdir -p toolkit/{include,lib}/"$architecture"
    ln -s "$(cached cuDNN_INCLUDE)"/cudnn*.h "toolkit/include/$architecture/"
    ln -s "$(cached cuDNN_LIBRARY)" "toolkit/lib/$architecture/"
fi
NVIDIA_PACKAGES=$(cached NVIDIA_PACKAGES)
[ -n "$NVIDIA_PACKAGES" ] || NVIDIA_PACKAGES=$(dirname "$(readlink -f "$(cached NCCL_INCLUDE)")")
CMAKE_C_COMPILER_LAUNCHER=$work/bin/compiler
export CMAKE_C_COMPILER_LAUNCHER NVIDIA_PACKAGES work
export CMAKE_CXX_COMPILER_LAUNCHER=$CMAKE_C_COMPILER_LAUNCHER
export CMAKE_CUDA_COMPILER_LAUNCHER=$CMAKE_C_COMPILER_LAUNCHER

hidden=(unshare -rm "$SOURCE_DIR/tests/support/bare_machine.sh")
if ! "${hidden[@]}" true 2>/dev/null; then
    hidden=()
    echo "the kernel mounts nothing here: the packages are there, too"
fi
rm -rf usr

code=0
(cd tree && PATH=$work/toolkit/bin:$work/bin:$PATH QUICK=1 STAGES=build RESULTS=$work/results \
    GPU_BUILD=$work/build COMMIT=abc123 LIMIT_S=480 timeout 500 "${hidden[@]}" python3 bench/gpu/check.py) \
    >check.out 2>&1 || code=$?
[ "$code" = 0 ] || fail "the check's build: $code, $(tail -n 30 results/build.log)"
for what in program tests; do
    grep -q "\"what\": \"$what\", .*\"result\": \"passed\"" results/results.json || fail "no row for $what"
done
readelf -d build/mnist_ddp >needs.out
! grep -E 'NEEDED.*lib(z|png16|yaml|jansson|md)\.' needs.out || fail "not the bundle's libraries"
build/mnist_ddp env >env.out || fail "does not start"
grep -q 'arch=compute_90,code=\[compute_90,sm_90\]' build/build.ninja || fail "no PTX of the newest"
grep -q 'arch=compute_75,code=\[sm_75\]' build/build.ninja || fail "not for 75"
! grep -q compute_100 build/build.ninja || fail "for GPUs that nvcc does not know"
[ -z "$architecture" ] ||
    grep -q "cuDNN_LIBRARY:FILEPATH=$work/toolkit/lib/$architecture/" build/CMakeCache.txt ||
    fail "another cuDNN was found"

# An nvcc that cannot be used costs CUDA, not the program.
configure() { # NVCC, the reason
    cmake -S tree -B other -DWITH_TESTS=OFF -DNVCC="$1" "-DNVIDIA_PACKAGES=$NVIDIA_PACKAGES" \
        -DCUDA_ARCHITECTURES="100;120-real" >configure.out 2>&1 || fail "cmake fails"
    grep -F "CUDA: left out (no $2" configure.out || fail "does not say: $2"
}
configure "$work/toolkit/bin/nvcc" "nvcc that knows one of 100, 120-real)"
configure "$work/broken/bin/nvcc" "nvcc that works: host_config.h(164): error: #error -- unsupported GNU"
echo "ok: compiled $(wc -l <compiled)"
