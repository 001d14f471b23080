#!/bin/sh
# Installs what a build needs, by Debian package name, and nothing that is there already.
# Asks for no network where nothing is missing. Arguments: more packages to have.
set -eu

needed="gcc g++ make cmake ninja-build zlib1g-dev libyaml-dev libjansson-dev libpng-dev libmd-dev check"
optional="libgloo-dev libopenmpi-dev openmpi-bin libcurl4-openssl-dev libmicrohttpd-dev" # left out if not to be had

is_there() {
    dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "install_packages: this is no Debian; these must be there: $needed" >&2
    echo "install_packages: and for the gloo and mpi backends, data fetch and etcd, and serve: gloo, Open MPI, libcurl, libmicrohttpd ($optional)" >&2
    exit 0
fi

missing=""
for package in $needed "$@"; do
    is_there "$package" || missing="$missing $package"
done
wanted=""
for package in $optional; do
    is_there "$package" || wanted="$wanted $package"
done
[ -n "$missing$wanted" ] || exit 0

sudo=""
if [ "$(id -u)" -ne 0 ]; then
    sudo="sudo"
    if ! command -v sudo >/dev/null 2>&1; then
        echo "install_packages: please have these installed (no root, no sudo here):" >&2
        echo "    apt-get install$missing$wanted" >&2
        [ -z "$missing" ] || exit 1
        exit 0
    fi
fi

echo "installing:$missing$wanted"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq || echo "install_packages: no package lists could be had; trying without" >&2
# shellcheck disable=SC2086
if [ -n "$missing" ] && ! $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null; then
    echo "install_packages: could not install, please do it by hand:" >&2
    echo "    apt-get install$missing$wanted" >&2
    exit 1
fi
for package in $wanted; do
    $sudo apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
        echo "install_packages: $package is not to be had; it goes on without it" >&2
done
