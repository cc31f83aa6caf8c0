#!/bin/bash
# SPDX-License-Identifier: MIT
# Builds the Containerfiles with buildah and makes a picture in each image, without a registry: the images that they begin
# with are made here, of debootstrap's minimal systems, under the names that FROM has. Needs root and a package mirror.
#   tests/containers.sh [cpu] [cuda]     which; default: cpu
# cuda takes the toolkit of this machine, $CUDA_HOME (/usr/local/cuda), with cuDNN in it, for NVIDIA's image, and builds for the
# architectures in $ARCHITECTURES (90-real); the picture is made on the CPU. Images lie in $ROOTS (/var/tmp/nalagen-roots) as
# containers and are deleted in the end, unless KEEP is set: each step of a file is a whole copy then, for cuda some 60 GB in
# place of 20. Minimal systems beside them, bookworm and noble, are used where they are, else made.
set -eu
top=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
roots=${ROOTS:-/var/tmp/nalagen-roots}
folder=$roots/containers
[ "$(id -u)" = 0 ] || { echo "tests/containers.sh: needs root, for debootstrap and chroot" >&2 && exit 2; }
for program in buildah debootstrap; do
    command -v $program >/dev/null || apt-get install -y --no-install-recommends $program >/dev/null ||
        { echo "SKIPPED: $program cannot be installed" && exit 0; }
done
mkdir -p "$folder"
images() { buildah --root "$folder/storage" --runroot "$folder/run" --storage-driver vfs "$@"; }

# base NAME SUITE [TOOLKIT]: an image NAME of the suite's minimal system, with a folder of this machine as its CUDA Toolkit.
base() {
    local name=$1 suite=$2 toolkit=${3:-} made place script='' check='' components=main
    images inspect --type image "$name" >/dev/null 2>&1 && return
    if [ "$suite" = noble ]; then
        components=main,universe script=gutsy # the script of every Ubuntu since
        [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || check=--no-check-gpg
    fi
    # shellcheck disable=SC2086 # empty where there is nothing to say
    [ -e "$roots/$suite/.made" ] || { debootstrap --variant=minbase --components=$components $check "$suite" "$roots/$suite" "" $script \
        >"$folder/$suite.log" && touch "$roots/$suite/.made"; }
    made=$(images from scratch)
    place=$(images mount "$made")
    tar -C "$roots/$suite" --exclude=./dev --exclude=./proc --exclude=./sys --exclude=./nalagen -cf - . | tar -xf - -C "$place"
    if [ -n "$toolkit" ]; then
        mkdir -p "$place/usr/local/cuda"
        cp -a "$toolkit/." "$place/usr/local/cuda"
        images config --env PATH=/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            --env LD_LIBRARY_PATH=/usr/local/cuda/lib64 "$made"
    fi
    images commit -q --rm "$made" "$name" >/dev/null
}

# build NAME FILE [OPTION]...: the image, and a picture that it makes.
build() {
    local name=$1 file=$2 made
    shift 2
    images bud ${KEEP:+--layers} --pull-never --isolation chroot -f "$top/containers/$file" -t "$name" "$@" "$top" >"$folder/$name.log" 2>&1 ||
        { tail -n 30 "$folder/$name.log" && exit 1; }
    made=$(images from --pull-never "$name")
    images inspect "$name" | grep -q '"nalagen"' # what it starts
    images run --isolation chroot "$made" -- nalagen version
    images run --isolation chroot "$made" -- nalagen sample --class church -o church.png
    cp "$(images mount "$made")/work/church.png" "$folder/$name.png"
    images rm "$made" >/dev/null
    echo "$name: built, and makes a picture: $folder/$name.png"
}

[ $# -gt 0 ] || set -- cpu
for which in "$@"; do
    case $which in
    cpu)
        base docker.io/library/debian:bookworm-slim bookworm
        build nalagen Containerfile
        ;;
    cuda)
        version=$(sed -n 's/^ARG CUDA=//p' "$top/containers/Containerfile.cuda")
        base "docker.io/nvidia/cuda:$version-cudnn-devel-ubuntu24.04" noble "${CUDA_HOME:-/usr/local/cuda}"
        build nalagen-cuda Containerfile.cuda --build-arg "ARCHITECTURES=${ARCHITECTURES:-90-real}"
        ;;
    *)
        sed -n 's/^# \{0,1\}//; 3,9p' "$0" >&2
        exit 2
        ;;
    esac
done
[ -n "${KEEP:-}" ] || { images rm -a >/dev/null && images rmi -af >/dev/null && rm -rf "${folder:?}/storage" "${folder:?}/run"; }
