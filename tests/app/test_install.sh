#!/bin/bash
# What `cmake --install` puts under a prefix, below DESTDIR, works from there: the program finds its
# modules relative to itself, and the man page and the completions are those that it prints.
set -eu
work=$(mktemp -d /tmp/mnist_ddp-install-XXXXXX)
trap 'rm -rf "$work"' EXIT
command -v cmake >/dev/null || { echo "SKIP: no cmake"; exit 77; }

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

DESTDIR=$work/root cmake --install "$BUILD_DIR" --prefix /opt/place >"$work/log" || fail "$(cat "$work/log")"
prefix=$work/root/opt/place
cd "$work"

"$prefix/bin/mnist_ddp" env >env.out
modules=0
for module in "$BUILD_DIR"/mnist_ddp_*.so; do
    name=$(basename "$module" .so)
    [ "$name" != mnist_ddp_cuda_emulated ] || continue
    [ -f "$prefix/lib/mnist_ddp/$name.so" ] || fail "$name.so is not installed"
    # CUDA's module may want a driver that is not here; it is found all the same.
    line=$(grep "^module ${name#mnist_ddp_} " env.out) || fail "env does not name $name"
    case $line in *"not installed"*) fail "$line" ;; esac
    modules=$((modules + 1))
done

"$BUILD_DIR/mnist_ddp" manual | cmp - "$prefix/share/man/man1/mnist_ddp.1"
"$BUILD_DIR/mnist_ddp" completion bash | cmp - "$prefix/share/bash-completion/completions/mnist_ddp"
"$BUILD_DIR/mnist_ddp" completion zsh | cmp - "$prefix/share/zsh/vendor-completions/_mnist_ddp"
"$BUILD_DIR/mnist_ddp" completion fish | cmp - "$prefix/share/fish/vendor_completions.d/mnist_ddp.fish"
# A Debian package has all parts, so what they need must be there when it is built.
grep -oE '[a-z0-9-]+-dev\b' "$SOURCE_DIR/scripts/install_packages.sh" | sort -u >packages
while read -r package; do
    grep -qx " $package," "$SOURCE_DIR/debian/control" || fail "debian/control: no $package"
done <packages

outside=$(find "$work/root" -type f ! -path "$prefix/*")
[ -z "$outside" ] || fail "installed outside of the prefix: $outside"
echo "install: the program, $modules modules, man page and completions: ok"
