#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds for aarch64 with Debian's cross compiler and packages of that architecture, and runs the test programs under
# qemu-user. In a root of its own (tests/roots.sh arm64): it installs packages and adds an architecture.
# Left out: the suites of the command line, which start the program themselves, and those that an emulated processor does not
# finish in ten minutes: ctest's label slow, whole backbones, autoencoders in encode, trainings in distill, the FID network.
set -eu
root=$(dirname -- "$(readlink -f -- "$0")")/..
. "$root/cmake/bootstrap.sh"
[ "$(id -u)" = 0 ] || { echo 'tests/cross.sh: needs root' >&2 && exit 2; }
dpkg --add-architecture arm64
apt-get update
packages='gcc-aarch64-linux-gnu libc6-dev-arm64-cross cmake ninja-build pkgconf pkgconf-bin qemu-user libgomp1:arm64 libc6:arm64'
for package in $build_packages libcmocka-dev; do
    case $package in
    lib*) packages="$packages $package:arm64" ;;
    esac
done
# shellcheck disable=SC2086 # a list of words
apt-get install -y --no-install-recommends $packages
export PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig
cmake -S "$root" --preset release -B "$root/build-arm64" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu \
    -DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64 -DNL_CUDA=OFF -DNL_MPI=OFF -DNL_TESTS=ON
cmake --build "$root/build-arm64"
qemu-aarch64 "$root/build-arm64/nalagen" sample --class church --size 64 --steps 2 --quiet --out /tmp/church.png
cd "$root/build-arm64"
ctest --output-on-failure --timeout 600 -j "$(nproc)" -LE slow -E '^(cli_.*|inception|dit|dit_train|distill|encode)$'
