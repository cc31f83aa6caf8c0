# SPDX-License-Identifier: MIT
# Short of something: addresses (ulimit -v), memory of a control group, room on a disk. What cannot be done is said, with
# the exit code for it; nothing hangs, and no signal ends the program.
load helper

# Under ulimit -v $1.
limited() {
    (ulimit -v "$1" && shift && exec "$@")
}

# A picture of the model "$model", made under the command "$@"; or exit code 4 and why. Counts both.
picture_or_reason() {
    local code=0
    rm -f a.png
    "$@" timeout -s KILL 60 "$NALAGEN" sample -m "$model" --vae "$vae" -c 1 --size 64 --steps 2 --device cpu -q -o a.png >told 2>&1 || code=$?
    case $code in
    0) is_png a.png && made=$((made + 1)) ;;
    4) [ ! -e a.png ] && grep -q '^nalagen: error: .*memory' told && refused=$((refused + 1)) ;;
    *) false ;;
    esac || { echo "$*: code $code"; cat told; return 1; }
}

@test "ulimit -v, step by step: a picture, or exit code 4 and why" {
    local code limit starts=
    made=0 refused=0
    model=tiny.safetensors
    "$MAKE_MODEL" "$model"
    limited 4000000 timeout -s KILL 20 "$NALAGEN" version || skip "limits of addresses do not go with this build"
    for ((limit = 16000; made < 3 && limit < 4000000; limit += 3000 + limit / 200)); do
        code=0
        limited $limit timeout -s KILL 20 "$NALAGEN" version >told 2>&1 || code=$?
        # Its libraries find no room: the loader says so, or what oneDNN 3 does before main is ended by std::bad_alloc.
        [ "$starts" ] || { [ $code -ne 127 ] && [ $code -ne 134 ]; } || continue
        [ $code -eq 0 ] || { echo "$limit: code $code"; cat told; false; }
        starts=yes
        picture_or_reason limited $limit
    done
    [ $made -eq 3 ]
    [ $refused -gt 3 ]
}

# A control group with this limit of memory in MiB, where this machine lets one be made: in $group, "" where not.
make_group() {
    local root file
    group=
    for root in /sys/fs/cgroup/memory /sys/fs/cgroup; do
        mkdir "$root/nalagen-test-$$" 2>/dev/null || continue
        group=$root/nalagen-test-$$
        for file in memory.limit_in_bytes memory.max; do
            [ ! -e "$group/$file" ] || ! echo "$(($1 << 20))" 2>/dev/null >"$group/$file" || return 0
        done
        rmdir "$group"
        group=
    done
}

in_group() {
    sh -c "echo \$\$ >$group/cgroup.procs"' && exec "$0" "$@"' "$@"
}

@test "memory of a control group, step by step: a picture, or exit code 4 and why" {
    local limit
    need_model
    export OMP_NUM_THREADS=2
    made=0 refused=0
    for limit in 48 96 128 144 160 192 256; do
        make_group $limit
        [ "$group" ] || skip "no control group with a limit of memory can be made here"
        picture_or_reason in_group || { rmdir "$group"; false; }
        rmdir "$group"
    done
    [ $made -gt 0 ]
    [ $refused -gt 1 ]
}

@test "ulimit -v: statistics come, or exit code 4 and why" {
    local code limit made=0 refused=0
    need_model
    need_inception
    quick -c 1 -n 2 -o pictures/ --device cpu -q
    export OMP_NUM_THREADS=2
    limited 8000000 timeout -s KILL 20 "$NALAGEN" version || skip "limits of addresses do not go with this build"
    for limit in 250000 400000 550000 700000 800000 900000 2000000; do
        code=0
        rm -f ref.npz
        limited $limit timeout -s KILL 60 "$NALAGEN" stats pictures -o ref.npz --weights "$inception" --allow-small --device cpu -q >told 2>&1 || code=$?
        case $code in
        0) [ -s ref.npz ] && made=$((made + 1)) ;;
        4) [ ! -e ref.npz ] && refused=$((refused + 1)) ;;
        *) false ;;
        esac || { echo "$limit: code $code"; cat told; return 1; }
    done
    [ $made -gt 0 ]
    [ $refused -gt 0 ]
}

@test "a disk that has no room for the result is said before the work" {
    mkdir set
    truncate -s $((10000 * 3073)) set/data_batch_1.bin
    run -7 timeout -s KILL 20 "$NALAGEN" encode set -o data --vae none --crops 1000 --size 1024 --device cpu -q
    [[ "$output" == "nalagen: error: data: the disk is too full: need "*" MiB, have "*" MiB" ]]
    run ls data
    [ "$output" = "" ]
    "$MAKE_MODEL" tiny.safetensors
    run -7 timeout -s KILL 20 "$NALAGEN" sample -m tiny.safetensors --vae none --size 256 -c 1 -n 1000000000 \
        --latents latents.npy --device cpu -q
    [[ "$output" == "nalagen: error: latents.npy: the disk is too full: need "*" MiB, have "*" MiB" ]]
    [ ! -e latents.npy ]
}

@test "a disk that has no room for pictures is said before the work; one that may have none is warned of" {
    local left i
    "$MAKE_MODEL" tiny.safetensors
    make() {
        timeout -s KILL 60 "$NALAGEN" sample -m tiny.safetensors --vae "$vae" -c 1 --device cpu -o pictures/ "$@"
    }
    left=$(($(df --output=avail -k . | tail -n 1) * 1024))
    if [ $left -lt 400000000000 ]; then
        run -7 make --size 64 -n 1000000000 -q
        [[ "$output" == "nalagen: error: pictures/: the disk is too full: need "*", have "* ]]
        run ls pictures
        [ "$output" = "" ]
    fi
    mkdir -p pictures
    : >pictures/001.png
    run -7 make --size 2048 -n $((left / (3 * 2048 * 2048) * 2)) -o pictures/%03d.png --first-index 1
    [[ "$output" == *"warning: pictures/%03d.png: the disk may become too full: "*" files of up to "*" MiB together, have "*"is there already"* ]]
    run -7 make --size 2048 -n 2 -o pictures/%03d.png --first-index 1
    [[ "$output" != *"too full"* && "$output" == *"is there already"* ]]
    # reconstruct and decode begin their pictures by one function.
    mkdir in
    make -o in/0.png --size 64 -q
    for ((i = 1; i <= left / (3 * 16384 * 16384) + 1; i++)); do ln in/0.png in/$i.png; done
    run -4 timeout -s KILL 60 "$NALAGEN" reconstruct in -o again/ --size 16384 --vae "$vae" --device cpu --max-memory 100M
    [[ "$output" == *"warning: again/: the disk may become too full: "* ]]
}

@test "what a message advises is there: units of a small limit, options that a command has" {
    need_model
    run -4 quick -c 1 -o a.png --device cpu --max-memory 10
    [[ "$output" =~ "need "[0-9.]+" "(bytes|KiB)", have "[0-9]+" bytes of the memory limit left; allow more" ]]
    need_inception
    quick -c 1 -n 2 -o pictures/ --device cpu -q
    run -2 "$NALAGEN" stats pictures -o ref.npz --weights "$inception" --device cpu
    [[ "$output" == *"pictures are too few"*"Take 2048 or more (50000 for published numbers), or --allow-small"* ]]
    [[ "$output" != *--metrics* && "$output" != *--features* ]]
    run "$NALAGEN" stats --help
    [[ "$output" != *--metrics* && "$output" != *--features* && "$output" == *--allow-small* ]]
}
