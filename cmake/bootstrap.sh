# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2034,SC2154
# Shared by ./nalagen and ./test: packages, configuration, build. Sourced with $root set.
# Everything it says goes to stderr: stdout belongs to the program that runs afterwards.

build_packages="gcc libc6-dev cmake ninja-build pkg-config libdnnl-dev libcjson-dev libcairo2-dev fonts-dejavu-core zlib1g-dev libjpeg-dev libpng-dev libwebp-dev libstb-dev libopenblas-dev libmicrohttpd-dev"
test_packages="libcmocka-dev bats python3-minimal python3-numpy python3-scipy"
optional_packages="libopenmpi-dev openmpi-bin libzip-dev" # training by several processes, archives read by another library: without them these tests are skipped

say() { printf 'nalagen: %s\n' "$*" >&2; }

# watch LOG COMMAND...: runs it with what it says in the file LOG, and returns its status. A terminal sees over one line what
# is fetched, set up and compiled.
watch() {
    log_file=$1
    shift
    columns=0
    if [ -t 2 ] && [ "${TERM:-dumb}" != dumb ]; then
        columns=$(stty size <&2 2>/dev/null) || columns=
        columns=${columns#* }
        [ "${columns:-0}" -gt 0 ] || columns=80
    fi
    {
        command_status=0
        "$@" 2>&1 </dev/null || command_status=$?
        echo "status $command_status"
    } | (
        while IFS= read -r line; do
            case $line in
            "status "*) last=${line#status } && continue ;;
            "Get:"* | "Unpacking "* | "Setting up "*) shown=$line ;;
            *"] Re-checking "*) shown= ;;
            "["[0-9]*/[0-9]*"] "*)
                shown=${line#?} # 12/342] Building ...
                shown="building: file ${shown%%/*} of $(count=${shown%%]*} && echo "${count#*/}")"
                ;;
            *) shown= ;;
            esac
            printf '%s\n' "$line"
            [ -z "$shown" ] || [ "$columns" -lt 20 ] || printf '\r\033[K%.*s' "$((columns - 1))" "nalagen: $shown" >&2
        done >"$log_file"
        [ "$columns" -lt 20 ] || printf '\r\033[K' >&2
        exit "$last"
    )
}

missing_packages() {
    for package in "$@"; do
        # A compiler or tool from elsewhere serves as well as the package.
        case $package in
        gcc) command -v cc >/dev/null 2>&1 && continue ;;
        cmake | bats) command -v "$package" >/dev/null 2>&1 && continue ;;
        ninja-build) command -v ninja >/dev/null 2>&1 && continue ;;
        pkg-config) command -v pkg-config >/dev/null 2>&1 && continue ;;
        libjpeg-dev) [ -e /usr/include/jpeglib.h ] && continue ;; # Ubuntu names the real package otherwise
        esac
        dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$package"
    done
}

fetch_packages() {
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

install_packages() {
    if ! command -v dpkg-query >/dev/null 2>&1; then
        if [ ! -d "$root/build" ]; then
            say "this is not a Debian system. Needed: a C11 compiler, CMake >= 3.22, Ninja, pkg-config, and the"
            say "development files of oneDNN, cJSON, Cairo, zlib, libjpeg-turbo, libpng, libwebp, stb (stb_image_write.h), OpenBLAS; for nalagen serve libmicrohttpd."
            say "For the tests also cmocka, bats, python3 with numpy and scipy."
        fi
        return 0
    fi
    # shellcheck disable=SC2086 # a list of words
    missing=$(missing_packages $1)
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ]; then
        say "installing ${missing% }"
        log=$(mktemp)
        # shellcheck disable=SC2086
        if ! watch "$log" fetch_packages $missing; then
            tail -n 20 "$log" >&2
            say "the packages could not be installed; the full log is $log"
            exit 1
        fi
        rm -f "$log"
    else
        say "packages are missing: ${missing% }"
        # shellcheck disable=SC2046,SC2086
        print_command $(missing_packages $build_packages $test_packages $optional_packages)
        exit 1
    fi
}

# What installs these packages, as somebody may run it who is not root.
print_command() {
    install="apt-get install --no-install-recommends $*"
    if command -v sudo >/dev/null 2>&1; then
        say "this command installs them, and what ./test needs; then try again:"
        say "    sudo apt-get update && sudo $install"
    else
        say "there is no sudo here. This command, run as root, installs them, and what ./test needs; then try again:"
        say "    apt-get update && $install"
    fi
}

# What tests do without: taken where that works.
install_optional_packages() {
    if [ "$(id -u)" = 0 ] && command -v dpkg-query >/dev/null 2>&1; then
        (install_packages "$optional_packages") || say "going on without ${optional_packages}"
    fi
}

# The CUDA back end is built where it can run, or when NALAGEN_CUDA=on asks for it; nvcc takes minutes.
want_cuda() {
    case ${NALAGEN_CUDA:-auto} in
    on) printf ON ;;
    off) printf OFF ;;
    *) if command -v nvcc >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then printf ON; else printf OFF; fi ;;
    esac
}

# An option of CMake: code for the cards of this machine alone ("90-real;86-real"), which takes a fraction of the time of all
# kinds; nothing where they are not known.
want_cards() {
    [ "$(want_cuda)" = ON ] || return 0
    cards=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u |
        sed -n 's/^ *\([0-9][0-9]*\)\.\([0-9]\) *$/\1\2-real/p' | paste -sd ';' -)
    [ -z "$cards" ] || printf '%s' "-DCMAKE_CUDA_ARCHITECTURES=$cards"
}

# Whether $folder holds a build of these options ($options) that is newer than every source.
is_built() {
    [ -f "$folder/.built" ] && [ "$(cat "$folder/.built")" = "$options" ] || return 1
    newer=$(find "$root/CMakeLists.txt" "$root/CMakePresets.json" "$root/cmake" "$root/include" "$root/core" "$root/kernels" \
        "$root/weights" "$root/vae" "$root/src" "$root/eval" "$root/serve" "$root/cli" "$root/tests" "$root/bench" "$root/examples" \
        -newer "$folder/.built" \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' -o -name '*.cmake' \
        -o -name '*.json' -o -name '*.html' -o -name '*.css' -o -name '*.js' -o -name CMakeLists.txt -o -type d \) 2>/dev/null | head -n 1)
    [ -z "$newer" ]
}

configure_and_build() {
    cards=$(want_cards)
    cmake -S "$root" --preset "$preset" -B "$folder" -DNL_CUDA="$(want_cuda)" ${cards:+"$cards"} "$@" && cmake --build "$folder"
}

# build_tree FOLDER PRESET OPTIONS...: configures once, builds when a source is newer than the last build. What is built
# already is used as it is, also by somebody who may not write there.
build_tree() {
    folder=$1
    preset=$2
    shift 2
    options="$preset $* $(want_cuda)$(want_cards)"
    is_built && return
    if ! mkdir -p "$folder" 2>/dev/null || [ ! -w "$folder" ]; then
        say "$folder: this user may not write there, and it holds no build of the sources as they are."
        say "Build as the user who did before, or copy the tree: git clone $root"
        exit 1
    fi
    (
        command -v flock >/dev/null 2>&1 && flock 9
        is_built && exit 0
        say "building (log: $folder/build.log)"
        started=$(date +%s)
        touch "$folder/.building"
        if ! watch "$folder/build.log" configure_and_build "$@"; then
            tail -n 40 "$folder/build.log" >&2
            say "the build failed; the full log is $folder/build.log"
            exit 1
        fi
        printf '%s' "$options" >"$folder/.built"
        touch -r "$folder/.building" "$folder/.built" # what changed during the build is newer
        say "built in $(($(date +%s) - started)) s"
    ) 9>"$folder/.lock" || exit 1
}
