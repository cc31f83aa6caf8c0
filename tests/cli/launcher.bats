# SPDX-License-Identifier: MIT
# ./nalagen: what it builds and when, for whom, and what it says about missing packages; with a cmake that only pretends.
load helper

# In a place that others may enter: a tree with the launcher alone, a cmake that counts its builds, and the packages that the file `installed` names.
make_tree() {
    place=$(mktemp -d)
    chmod 755 "$place"
    cd "$place"
    mkdir -p tree/cmake tree/core tree/kernels bin
    cp "$NL_SOURCE_DIR/nalagen" tree
    cp "$NL_SOURCE_DIR/cmake/bootstrap.sh" tree/cmake
    touch tree/CMakeLists.txt tree/CMakePresets.json tree/core/a.c tree/kernels/b.inc tree/cmake/c.cmake
    touch -d '1 minute ago' tree/core/* tree/kernels/* tree/cmake/* tree/* tree
    cat >bin/cmake <<'END'
#!/bin/sh
[ "$1" = --build ] || { echo "$*" >configured; exit 0; }
echo built >>"$2/builds"
printf '#!/bin/sh\necho "made this: $*"\n' >"$2/nalagen"
chmod +x "$2/nalagen"
END
    printf '#!/bin/sh\nfor name; do :; done\n[ -e all ] && echo "install ok installed"\n' >bin/dpkg-query
    chmod +x bin/*
    touch all
    PATH=$PWD/bin:$PATH
    unset NALAGEN_CUDA
}

teardown() { [ -z "$place" ] || rm -rf "$place"; }

builds() { wc -l <tree/build/builds; }

# Nobody is anybody else than root.
as_nobody() {
    if [ "$(id -u)" = 0 ]; then
        command -v setpriv >/dev/null || skip "no setpriv"
        setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
    else
        "$@"
    fi
}

@test "it builds once, and again when anything changed that goes into the build" {
    make_tree
    run --separate-stderr tree/nalagen sample -c church
    [ "$output" = "made this: sample -c church" ] || { echo "$output $stderr"; false; }
    tree/nalagen 2>err
    [ ! -s err ]
    [ "$(builds)" -eq 1 ]
    count=1
    for file in core/a.c core/new.h kernels/b.inc cmake/c.cmake CMakeLists.txt CMakePresets.json; do
        touch -d 'now + 1 second' "tree/$file"
        tree/nalagen
        count=$((count + 1))
        [ "$(builds)" -eq "$count" ] || { echo "$file"; false; }
        touch -d '1 minute ago' "tree/$file" tree/core tree
    done
}

@test "CUDA is built for the cards of this machine; others, and it is built anew" {
    make_tree
    printf '#!/bin/sh\n' >bin/nvcc
    printf '#!/bin/sh\n[ "$1" = -L ] || cat cards\n' >bin/nvidia-smi
    chmod +x bin/*
    printf '9.0\n8.6\n9.0\n' >cards
    tree/nalagen
    grep -q -- '-DNL_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=86-real;90-real' configured
    [ "$(builds)" -eq 1 ]
    echo 12.0 >cards
    tree/nalagen
    grep -q -- '-DCMAKE_CUDA_ARCHITECTURES=120-real' configured
    [ "$(builds)" -eq 2 ]
    echo 'Field "compute_cap" is not a valid field to query.' >cards # an old driver: for all
    tree/nalagen
    grep -q -- '-DNL_CUDA=ON' configured
    ! grep -q ARCHITECTURES configured || false
}

@test "it works through symbolic links" {
    make_tree
    mkdir elsewhere
    ln -s "$PWD/tree/nalagen" elsewhere/first
    ln -s first elsewhere/second
    [ "$(elsewhere/second info)" = "made this: info" ]
    [ -e tree/build/nalagen ]
    [ ! -e elsewhere/build ]
}

@test "somebody else runs what is built and writes nothing; what is not built is said" {
    make_tree
    tree/nalagen
    chmod 555 tree/build
    rm tree/build/.lock
    as_nobody "$PWD/tree/nalagen" info 2>err | grep "made this: info"
    [ ! -s err ]
    [ ! -e tree/build/.lock ]
    touch -d 'now + 1 second' tree/core/a.c
    run as_nobody "$PWD/tree/nalagen"
    [ "$status" -eq 1 ]
    [[ $output == *"may not write there"* ]]
}

@test "missing packages: one command, as it can be run here" {
    make_tree
    rm all
    [ "$(id -u)" != 0 ] || command -v setpriv >/dev/null || skip "no setpriv"
    printf '#!/bin/sh\n' >bin/sudo
    chmod +x bin/sudo
    run as_nobody "$PWD/tree/nalagen"
    [ "$status" -eq 1 ]
    [[ $output == *"    sudo apt-get update && sudo apt-get install --no-install-recommends "*libdnnl-dev*libcmocka-dev*openmpi-bin* ]]
    rm bin/sudo
    if ! command -v sudo >/dev/null; then
        run as_nobody "$PWD/tree/nalagen"
        [[ $output == *"no sudo here"*"    apt-get update && apt-get install "*openmpi-bin* ]]
    fi
}

@test "the program has no OpenBLAS and no MPI in its process before they are needed" {
    command -v ldd >/dev/null || skip "no ldd"
    run ldd "$NALAGEN"
    [ "$status" -eq 0 ]
    [[ "$output" == *dnnl* && "$output" != *openblas* && "$output" != *libblas* && "$output" != *lapack* && "$output" != *libmpi* ]]
}

@test "a terminal sees which file is built; a pipe sees two lines; a failure shows the end of the log" {
    command -v script >/dev/null || skip "no script"
    make_tree
    cat >>bin/cmake <<'END'
for i in 1 2 3; do echo "[$i/3] Building C object core/file$i.c.o"; done
[ ! -e broken ] || { echo "file3.c: this is wrong"; exit 1; }
END
    TERM=xterm script -qec "tree/nalagen info" typescript >/dev/null
    grep -q 'building: file 2 of 3' typescript
    grep -q 'made this: info' typescript
    grep -q '^\[3/3\] Building C object core/file3.c.o' tree/build/build.log
    ! grep -q '^status' tree/build/build.log || false
    touch -d 'now + 1 second' tree/core/a.c
    tree/nalagen 2>err
    ! grep -q 'file 2 of 3' err || false
    [ "$(wc -l <err)" -eq 2 ]
    touch broken
    touch -d 'now + 2 seconds' tree/core/a.c
    run -1 tree/nalagen
    [[ $output == *"this is wrong"*"the build failed; the full log is"* ]]
}

@test "packages that are installed are named one by one on a terminal" {
    command -v script >/dev/null || skip "no script"
    [ "$(id -u)" = 0 ] || skip "not root"
    make_tree
    rm all
    printf '#!/bin/sh\necho "Get:1 http://deb libdnnl-dev"\necho "Setting up libdnnl-dev (2.6) ..."\n[ ! -e broken ] || { echo "E: no such package"; exit 100; }\n' >bin/apt-get
    chmod +x bin/apt-get
    TERM=xterm script -qec "tree/nalagen info" typescript >/dev/null
    grep -q 'nalagen: Setting up libdnnl-dev' typescript
    touch broken
    run -1 tree/nalagen info
    [[ $output == *"E: no such package"*"could not be installed"* ]]
}
