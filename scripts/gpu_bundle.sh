#!/bin/sh
# Makes gpu-bundle/, what 'make gpu-check' needs on a machine with a GPU but no network: MNIST's
# four files, and headers and static libraries of zlib, jansson, libyaml, libpng, libmd and Check
# from this Debian's packages, of which none is installed. Copy the repository there with this folder
# in it.
#
#     scripts/gpu_bundle.sh [MNIST]    the folder of the four files (default: $MNIST_DDP_DATA or
#                                      data/MNIST/raw)
set -eu
cd "$(dirname "$0")/.."
mnist=${1:-${MNIST_DDP_DATA:-data/MNIST/raw}}
out=gpu-bundle
say() { echo "gpu_bundle: $*" >&2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bundle/mnist" "$work/bundle/deps/include" "$work/bundle/deps/lib"

for name in train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte \
    t10k-labels-idx1-ubyte; do
    if [ -f "$mnist/$name.gz" ]; then
        cp "$mnist/$name.gz" "$work/bundle/mnist/"
    elif [ -f "$mnist/$name" ]; then
        gzip -9 -c "$mnist/$name" >"$work/bundle/mnist/$name.gz"
    else
        say "$mnist holds no $name(.gz): name MNIST's folder, or set MNIST_DDP_DATA"
        exit 1
    fi
done

# Fetched as a user of its own, apt writes only where that user may.
chmod 755 "$work"
mkdir "$work/packages"
[ "$(id -u)" -ne 0 ] || chown _apt "$work/packages" 2>/dev/null || true
packages="zlib1g-dev libjansson-dev libyaml-dev libpng-dev libmd-dev check libsubunit-dev"
# shellcheck disable=SC2086
if ! (cd "$work/packages" && apt-get -qq download $packages); then
    say "apt-get could not download: $packages (try apt-get update first)"
    exit 1
fi
for package in "$work"/packages/*.deb; do
    dpkg -x "$package" "$work/root"
done

deps=$work/bundle/deps
architecture=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || gcc -print-multiarch)
for header in zlib zconf jansson jansson_config yaml png pngconf pnglibconf sha2 check check_stdint; do
    find "$work/root/usr/include" -maxdepth 2 -name "$header.h" -exec cp {} "$deps/include/" \;
done
for library in libz.a libjansson.a libyaml.a libpng16.a libmd.a libcheck_pic.a libsubunit.a; do
    if ! cp "$work/root/usr/lib/$architecture/$library" "$deps/lib/"; then
        say "the packages hold no $library"
        exit 1
    fi
done

rm -rf "$out"
cp -r "$work/bundle" "$out"
say "made $out ($(du -sm "$out" | cut -f 1) MB)"
