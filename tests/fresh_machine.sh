#!/usr/bin/env bash
# Both README commands on a bare Debian 12 with nothing but make and git: once with the network, for the
# packages, and once without. Not part of the test suite: needs root, debootstrap and some minutes.
#
#     tests/fresh_machine.sh [FOLDER]      the root that is made (default: a new one under /tmp)
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
root=${1:-$(mktemp -d /tmp/mnist_ddp-fresh-XXXXXX)}

[ "$(id -u)" -eq 0 ] || { echo "fresh_machine: needs root for debootstrap and chroot" >&2; exit 77; }
command -v debootstrap >/dev/null || { echo "fresh_machine: install debootstrap" >&2; exit 77; }

# The mirror that this machine itself uses.
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)
debootstrap --variant=minbase --include=ca-certificates,make,git bookworm "$root" "$mirror" >/dev/null
cp /etc/resolv.conf "$root/etc/resolv.conf"
rm -f "$root/etc/apt/sources.list"
cp -r /etc/apt/sources.list* /etc/apt/apt.conf.d "$root/etc/apt/" 2>/dev/null || true
cp -r /usr/share/keyrings/. "$root/usr/share/keyrings/"
trap 'umount "$root/proc" "$root/dev" "$root/sys" 2>/dev/null || true' EXIT
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"
mount -t sysfs sys "$root/sys"

git clone -q "$here" "$root/root/mnist_ddp"
inside() {
    chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
        sh -c "cd /root/mnist_ddp && $1"
}
timed() {
    local started=$SECONDS
    echo "== $1"
    shift
    "$@"
    echo "== took $((SECONDS - started)) s"
}

timed "make run, with the network" inside "make run"
timed "make test, with the network" inside "make test"
timed "make run, packages there" inside "make run"
inside "make clean"
offline() { # a network namespace of its own, with loopback only
    unshare --net sh -c "ip link set lo up 2>/dev/null || ifconfig lo up; exec chroot '$root' \
        /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
        sh -c 'cd /root/mnist_ddp && $1'"
}
timed "make run, offline" offline "make run"
timed "make test, offline" offline "make test"
echo "fresh machine: all passed in $root"
