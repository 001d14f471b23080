#!/usr/bin/env bash
# The package that `make deb` has made: installed in a bare Debian 12, used, and removed without
# remains. Needs root, debootstrap and the network; run by hand and by make soak.
#
#     tests/debian_package.sh [BUILD [FOLDER]]     the build folder (build), the root that is made
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:-$here/build}" && pwd)
root=${2:-$(mktemp -d /tmp/mnist_ddp-package-XXXXXX)}
# shellcheck source=/dev/null
. "$here/tests/support/debian_root.sh"
package=$(ls "$build"/deb/mnist-ddp_*.deb) || { echo "make deb first" >&2; exit 77; }
debian_root_make "$root" man-db,bash-completion

step() { echo "== $*"; }
files() { # all but what dpkg, apt, caches and users' accounts write down about any package
    (cd "$root" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./tmp -o -path ./root \
        -o -path ./run -o -path './etc/*-' \
        -o -path ./var/log -o -path ./var/cache -o -path './var/lib/dpkg' -o -path ./var/lib/apt \) \
        -prune -o -print | sort)
}

debian_root_run "apt-get update -qq"
files >"$root/tmp/before"
step "install $(basename "$package")"
cp "$package" "$root/tmp/package.deb"
debian_root_run "apt-get install -y -qq /tmp/package.deb" >/dev/null 2>&1
debian_root_run "mnist_ddp --version"

step "every module opens"
debian_root_run "mnist_ddp env" | tee "$root/tmp/env" | grep '^module'
for module in "$root"/usr/lib/mnist_ddp/mnist_ddp_*.so; do
    name=$(basename "$module" .so)
    grep -qE "^module ${name#mnist_ddp_} +opens" "$root/tmp/env"
done

step "train, 2 ranks, over shm and gloo, with the drawn digits"
quick="--model mlp --limit 6400 --epochs 1 --nproc-per-node=2"
debian_root_run "cd /tmp && mnist_ddp $quick --backend shm --run-dir shm" | tail -n 4
debian_root_run "cd /tmp && mnist_ddp $quick --backend gloo --run-dir gloo" | grep "backend gloo"
[ -s "$root/tmp/gloo/report.html" ]
debian_root_run "cd /tmp && mnist_ddp eval --checkpoint shm --isa generic" | grep accuracy

step "run, 2 ranks of another program"
debian_root_run "mnist_ddp run --no-python --nproc-per-node=2 sh -c 'echo rank \$RANK of \$WORLD_SIZE'" |
    sort | tr '\n' ';' | grep -qx 'rank 0 of 2;rank 1 of 2;'

step "what README links to is there"
doc=$root/usr/share/doc/mnist-ddp
zcat "$doc/README.md.gz" | grep -oE '\]\([^)#:]+\)' | sed 's/^](//; s/)$//' | sort -u | while read -r link; do
    [ -e "$doc/$link" ] || [ -e "$doc/$link.gz" ] || { echo "README links to $link" >&2; exit 1; }
done

step "man page, completion"
debian_root_run "man mnist_ddp >/tmp/page; head -n 6 /tmp/page"
debian_root_run "bash -c '. /usr/share/bash-completion/bash_completion
    _completion_loader mnist_ddp || [ \$? -eq 124 ] # 124: loaded
    complete -p mnist_ddp'"

step "removed without remains"
debian_root_run "apt-get purge -y -qq --autoremove mnist-ddp" >/dev/null 2>&1
files >"$root/tmp/after"
diff "$root/tmp/before" "$root/tmp/after"
if [ $# -lt 2 ]; then
    debian_root_unmount
    rm -rf --one-file-system "$root"
fi
echo "debian package: all passed"
