#!/bin/bash
# SPDX-License-Identifier: MIT
# Builds and tests this tree in systems that hold nothing else: minimal roots made by debootstrap, where ./test installs
# what it needs. Needs root and a package mirror.
#   tests/roots.sh [--quick] [--werror] [--keep] [ROOT...]
# ROOT      bookworm, trixie (Debian 12, 13), noble (Ubuntu 24.04), or arm64: built by Debian 13's cross compiler and
#           tested under qemu-user, the test programs alone. Default: all.
# --quick   without the suites that take long (label slow)
# --werror  warnings are errors
# --keep    leaves the roots for the next time, which begins with them; otherwise they are made anew and deleted
# Roots, and a log of each, lie in $ROOTS (/var/tmp/nalagen-roots). All ends after $ROOTS_SECONDS: no root is begun when less than
# six minutes of them are left, and the last is ended. SKIPPED is what cannot be had here: no time left, no mirror that answers,
# no namespaces. A line says what became of each root; exit code 1: something failed.
set -u
top=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
folder=${ROOTS:-/var/tmp/nalagen-roots}
limit=${ROOTS_SECONDS:-100000}
quick='' werror='' keep='' roots=()
for word in "$@"; do
    case $word in
    --quick) quick='-LE slow' ;;
    --werror) werror=--werror ;;
    --keep) keep=1 ;;
    bookworm | trixie | noble | arm64) roots+=("$word") ;;
    *)
        sed -n 's/^# \{0,1\}//; 3,13p' "$0" >&2
        exit 2
        ;;
    esac
done
[ ${#roots[@]} -gt 0 ] || roots=(bookworm trixie noble arm64)
[ "$(id -u)" = 0 ] || { echo "tests/roots.sh: needs root, for debootstrap and chroot" >&2 && exit 2; }
skip_all() { echo "SKIPPED: $*" && exit 0; }
command -v debootstrap >/dev/null || apt-get install -y --no-install-recommends debootstrap >/dev/null ||
    skip_all 'debootstrap cannot be installed'
unshare --mount --pid --fork true || skip_all 'no namespaces of our own here'

# make ROOT: the root's system, if it is not there.
make() {
    local root=$folder/$1 suite=$1 components=main script='' check=''
    [ -e "$root/.made" ] && return
    rm -rf "$root"
    case $1 in
    arm64) suite=trixie ;;
    noble)
        components=main,universe script=gutsy # the script of every Ubuntu since
        [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || check=--no-check-gpg
        ;;
    esac
    # shellcheck disable=SC2086 # empty where there is nothing to say
    debootstrap --variant=minbase --components=$components $check $suite "$root" "" $script && touch "$root/.made"
}

# enter ROOT COMMAND: in namespaces of its own, which take mounts and processes with them.
enter() {
    local root=$folder/$1
    # shellcheck disable=SC2016 # $1 and $2 are the inner shell's
    timeout --kill-after=20 $((limit > SECONDS ? limit - SECONDS : 1)) unshare --mount --pid --fork --kill-child sh -c '
        mount -t proc proc "$1/proc" && mount -t tmpfs none "$1/dev/shm" &&
            mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$1/dev/pts" &&
            mount --bind "$1/dev/pts/ptmx" "$1/dev/ptmx" || exit 1
        exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive ${OPENBLAS_CORETYPE:+OPENBLAS_CORETYPE="$OPENBLAS_CORETYPE"} \
            sh -c "cd /nalagen && $2"' sh "$root" "$2" </dev/null
}

# The files that git tracks, as they are now: no build, no ../shared.
copy_tree() {
    rm -rf "$folder/$1/nalagen"
    mkdir -p "$folder/$1/nalagen"
    (cd "$top" && git ls-files -z | tar --null --files-from=- -cf -) | tar -xf - -C "$folder/$1/nalagen"
}

run() {
    make "$1" || return 77
    copy_tree "$1"
    case $1 in
    arm64) enter arm64 tests/cross.sh ;;
    *) enter "$1" "./test $werror $quick" ;;
    esac
}

mkdir -p "$folder" || exit 1
status=0
for root in "${roots[@]}"; do
    if [ $((SECONDS + 360)) -gt "$limit" ]; then
        echo "$root: SKIPPED: no time left"
        continue
    fi
    started=$SECONDS
    run "$root" >"$folder/$root.log" 2>&1
    case $? in
    0) word=passed ;;
    77) word='SKIPPED: no root could be made' ;;
    *)
        if [ "$SECONDS" -ge "$limit" ] && ! grep -aq '\*\*\*Failed' "$folder/$root.log"; then
            word="SKIPPED: no time left after $(grep -ac ' Passed ' "$folder/$root.log") suites, none of which failed"
        elif grep -aqE '^(E|W): .*(Could not (resolve|connect)|Failed to fetch|Temporary failure)' "$folder/$root.log"; then
            word='SKIPPED: packages cannot be fetched'
        else
            word=FAILED status=1
        fi
        ;;
    esac
    [ -n "$keep" ] || rm -rf "${folder:?}/$root"
    printf '%s: %s, %d s; %s; log: %s\n' "$root" "$word" $((SECONDS - started)) \
        "$(grep -a 'tests passed' "$folder/$root.log" || tail -n 1 "$folder/$root.log")" "$folder/$root.log"
done
exit $status
