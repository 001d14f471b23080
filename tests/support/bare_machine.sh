#!/usr/bin/env bash
# Runs a command on what looks like a machine with a compiler and no -dev package but that one's: in
# this mount namespace an overlay over /usr lacks their headers and libraries. It lies in $work.
#
#     unshare -m tests/support/bare_machine.sh COMMAND...
set -euo pipefail
mkdir -p "${work:?}/usr" && mount -t tmpfs none "$work/usr" && mkdir "$work"/usr/{upper,work} &&
    mount -t overlay none /usr -o "lowerdir=/usr,upperdir=$work/usr/upper,workdir=$work/usr/work" ||
    exit 77
dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' '*-dev' check |
    sed -nE '/ (lib(c6|crypt|gcc|stdc)|linux)/d; s/^ii *//p' | xargs dpkg -L |
    sed -nE '/^\/usr\/(include|lib)\/.*\.(h|hpp|a|so|pc|cmake)$/p' | xargs -d '\n' rm -f
exec "$@"
