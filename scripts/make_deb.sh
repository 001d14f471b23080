#!/bin/sh
# Makes the Debian packages of this tree: mnist-ddp, and mnist-ddp-cuda if the build has the CUDA
# module. They are left, with what dpkg says of them, in the build folder's deb/.
#
#     scripts/make_deb.sh [BUILD]      the configured build folder (default: build)
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
./scripts/install_packages.sh dpkg-dev debhelper lintian

version=$(sed -n 's/^#define MNIST_DDP_VERSION "\(.*\)"$/\1/p' app/common/version.h)
# The date of the last commit is the package's, so that the same tree gives the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
profiles=
[ ! -e "$build/mnist_ddp_cuda.so" ] || profiles=pkg.mnist-ddp.cuda

rm -rf "$build/deb"
tree=$build/deb/mnist-ddp-$version
mkdir -p "$tree"
{ git ls-files -z --cached --others --exclude-standard 2>/dev/null ||
    find . -path ./.git -prune -o -path './build*' -prune -o -path ./runs -prune -o -type f -print0; } |
    tar -c --null --files-from=- | tar -x -C "$tree"

cat >"$tree/debian/changelog" <<END
mnist-ddp ($version) unstable; urgency=medium

  * This version of mnist_ddp.

 -- $(sed -n 's/^Maintainer: //p' debian/control)  $(date -uR -d "@$SOURCE_DATE_EPOCH")
END
(cd "$tree" && dpkg-buildpackage --build=binary --no-sign --build-profiles="$profiles") \
    >"$build/deb/build.log" 2>&1 || { tail -n 20 "$build/deb/build.log" | cut -c 1-200 >&2; exit 1; }
rm -rf "$tree"
lintian --fail-on error,warning "$build"/deb/*.changes
[ -n "$profiles" ] || echo "mnist-ddp-cuda: left out, as the build has no CUDA module"
ls -1 "$build"/deb/*.deb
