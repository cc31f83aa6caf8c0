#!/bin/bash
# SPDX-License-Identifier: MIT
# Builds the Debian packages and installs them in a Debian 12 that holds nothing else (debootstrap's minbase), where they make a
# picture, complete a word, build an example and sample from Python. Needs root and a package mirror.
#   tests/packages.sh [DEBS]      DEBS: a folder with packages that are made already
# The root lies in $ROOTS (/var/tmp/nalagen-roots) as bookworm-packages and is deleted in the end, unless KEEP is set.
set -eu
top=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
root=${ROOTS:-/var/tmp/nalagen-roots}/bookworm-packages
debs=${1:-$top/build-package}
[ "$(id -u)" = 0 ] || { echo "tests/packages.sh: needs root, for debootstrap and chroot" >&2 && exit 2; }
if [ $# -eq 0 ]; then
    (cd "$top" && cmake --preset package >/dev/null && cmake --build --preset package >/dev/null && cd build-package && cpack >/dev/null)
fi
[ -e "$root/.made" ] || { rm -rf "$root" && debootstrap --variant=minbase bookworm "$root" >/dev/null && touch "$root/.made"; }
rm -rf "$root/packages" && mkdir "$root/packages"
cp "$debs"/*.deb "$top/examples/generate.c" "$root/packages"

# enter COMMAND: in the root, in namespaces of its own.
enter() {
    unshare --mount --pid --fork --kill-child sh -c 'mount -t proc proc "$1/proc" && mount -t tmpfs none "$1/dev/shm" && exec chroot "$1" \
        env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb DEBIAN_FRONTEND=noninteractive bash -euc "$2"' sh "$root" "$1"
}

# install PACKAGE...: names in /packages, or of Debian.
install() {
    enter "cd /packages; apt-get install -y --no-install-recommends $* >/log 2>&1 || { tail -20 /log; exit 1; }"
}

enter 'apt-get update >/dev/null'
install './nalagen_*.deb ./nalagen-data_*.deb'
enter 'cd /tmp
    nalagen version
    nalagen sample --class church --size 64 --steps 2 --cfg-scale 1 -o church.png --device cpu --force
    nalagen info church.png >/dev/null
    test -s /usr/share/man/man1/nalagen.1
    test -s /usr/share/bash-completion/completions/nalagen
    test -s /usr/share/zsh/vendor-completions/_nalagen
    test -s /usr/share/fish/vendor_completions.d/nalagen.fish'
echo "program: installs and runs"
install './libnalagen0_*.deb ./libnalagen-dev_*.deb gcc libc6-dev pkg-config'
enter 'cd /tmp
    cc /packages/generate.c -o generate $(pkg-config --cflags --libs nalagen)
    rm -rf made
    mkdir made
    cd made
    ../generate church >/dev/null
    ls *.png >/dev/null'
echo "library and development: an example builds and runs"
install './python3-nalagen_*.deb'
enter 'cd /tmp
    python3 -c "
import nalagen
x = nalagen.load().sample([\"church\"], seed=1, size=64, steps=2)
assert x.shape == (1, 64, 64, 3), x.shape"'
echo "python: samples"
install bash-completion zsh fish
enter 'echo "source /usr/share/bash-completion/bash_completion; _completion_loader nalagen; complete -p nalagen" >/tmp/ask
    bash --norc /tmp/ask | grep -q _nalagen
    zsh -fc "autoload -U compinit; compinit -u -D; [[ \$_comps[nalagen] == _nalagen ]]"
    fish -c "complete -C \"nalagen recon\"" | grep -q reconstruct'
echo "completion: found by bash, zsh and fish"
enter 'apt-get remove -y nalagen nalagen-data libnalagen0 >/log 2>&1
    if command -v nalagen >/dev/null; then exit 1; fi'
echo "removed"
[ -n "${KEEP:-}" ] || rm -rf "$root"
