# shellcheck shell=bash
# A bare Debian 12 to try things in. For scripts that are run by hand; needs root and debootstrap.

# Makes one in the folder $1, with the packages $2 beside the essential ones, and the mirrors of this
# machine. Its /proc, /dev and /sys are unmounted when the script ends.
debian_root_make() {
    debian_root=$1
    [ "$(id -u)" -eq 0 ] || { echo "needs root for debootstrap and chroot" >&2; exit 77; }
    command -v debootstrap >/dev/null || { echo "install debootstrap" >&2; exit 77; }
    local mirror
    # shellcheck disable=SC2016
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)
    debootstrap --variant=minbase --include="ca-certificates,$2" bookworm "$1" "$mirror" >/dev/null
    cp /etc/resolv.conf "$1/etc/resolv.conf"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$1/etc/hosts"
    rm -f "$1/etc/apt/sources.list"
    cp -r /etc/apt/sources.list* /etc/apt/apt.conf.d "$1/etc/apt/" 2>/dev/null || true
    cp -r /usr/share/keyrings/. "$1/usr/share/keyrings/"
    trap debian_root_unmount EXIT
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    mount --make-rslave "$1/dev"
    mount -t sysfs sys "$1/sys"
}

debian_root_unmount() {
    for place in proc dev sys; do
        umount -R "$debian_root/$place" 2>/dev/null || true
    done
}

# Runs the commands $1 in there, with an environment of their own.
debian_root_run() {
    chroot "$debian_root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
        DEBIAN_FRONTEND=noninteractive sh -c "$1"
}
