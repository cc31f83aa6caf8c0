# SPDX-License-Identifier: MIT
# Archives and folders of many pictures: resuming after a stop, several processes, full disks.
load helper

# Many pictures of a small random model.
batch=(--sampler euler --cfg-scale 1 -t 1 -b 2)
few() { "$NALAGEN" sample -m "$tiny" --steps 2 "${batch[@]}" -c balanced "$@"; }
# About a second for 200 of them, also where sanitizers make a step ten times as long. In the background, as process $pid.
steps=60
! grep -q __asan_init "$NALAGEN" || steps=6
many=(--steps $steps -c balanced -n 200)
start() {
    env --default-signal=INT "$NALAGEN" sample -m "$tiny" "${batch[@]}" "${many[@]}" "$@" >out 2>err &
    pid=$!
}
many() { "$NALAGEN" sample -m "$tiny" "${batch[@]}" "${many[@]}" "$@"; }

need_tiny() {
    tiny=$BATS_FILE_TMPDIR/tiny.safetensors
    [ -f "$tiny" ] || "$MAKE_MODEL" "$tiny"
}

# What they are, made in one go.
need_whole() {
    need_tiny
    whole=$BATS_FILE_TMPDIR/whole.npz
    [ -f "$whole" ] || many -o "$whole"
}

# Waits until so many pictures are noted in the journal of the archive.
wait_for() {
    for _ in $(seq 2000); do
        [ -f "$1.journal" ] && [ "$(grep -ao done "$1.journal" | wc -l)" -ge "$2" ] && return
        sleep 0.01
    done
    false
}

kill_it() {
    kill -9 "$pid"
    wait "$pid" || true
}

@test "an archive for numpy: pictures, labels, parameters" {
    need_tiny
    run --separate-stderr few -n 23 -o a.npz
    [ "$status" -eq 0 ]
    [ "$output" = a.npz ]
    [ "$(ls -d *.npz*)" = a.npz ]
    few -n 23 -o p/%d.png >/dev/null
    numpy '
import json, struct, zlib
z = np.load("a.npz")
assert z.files == ["arr_0", "arr_1"], z.files
x, y = z["arr_0"], z["arr_1"]
assert x.shape == (23, 16, 16, 3) and x.dtype == np.uint8 and y.dtype == np.int64
assert (y == np.arange(23) % 5).all() and z.zip.testzip() is None
facts = json.loads(z.zip.comment)
assert facts["class"] == "balanced" and facts["number"] == 23 and facts["rounding"] == "dit"
assert len(facts["sha256"]) == 64 and facts["sampler"] == "euler" and facts["steps"] == 2

def png(name):
    b, at, d = open(name, "rb").read(), 8, b""
    while at < len(b):
        n, = struct.unpack(">I", b[at:at+4])
        d += b[at+8:at+8+n] if b[at+4:at+8] == b"IDAT" else b""
        at += 12 + n
    rows = np.frombuffer(zlib.decompress(d), np.uint8).reshape(16, 49).astype(int)
    x = np.zeros((17, 17, 3), int)
    for r in range(16):
        for c in range(16):
            a, u, v = x[r+1, c], x[r, c+1], x[r, c]
            pa, pb, pc = abs(u - v), abs(a - v), abs(a + u - 2 * v)
            paeth = np.where((pa <= pb) & (pa <= pc), a, np.where(pb <= pc, u, v))
            x[r+1, c+1] = (rows[r, 1:].reshape(16, 3)[c] + [0 * a, a, u, (a + u) // 2, paeth][rows[r, 0]]) % 256
    return x[1:, 1:]
for i in 0, 7, 22:
    assert (png(f"p/{i}.png") == x[i]).all(), i'
    few -c random -n 9 -s 3 -o r.npz --json | json_lines 'x["file"] == "r.npz" and x["pictures"] == 9 and x["made"] == 9'
    few -c random -n 9 -s 3 -o r/ --json >r.jsonl
    numpy '
import json
assert np.load("r.npz")["arr_1"].tolist() == [json.loads(l)["class"] for l in open("r.jsonl")]'
}

@test "killed at any moment, an archive resumes to the same bytes" {
    need_whole
    for pictures in 0 1 3 20 50 90 120 150; do
        start -o a.npz
        wait_for a.npz $pictures
        kill_it
    done
    [ ! -e a.npz ]
    run many -o a.npz
    [ "$status" -eq 0 ]
    [[ $output == *"resuming: 1"*" of 200"* ]]
    cmp "$whole" a.npz
    [ "$(ls -d *.npz*)" = a.npz ]
    run many -o a.npz
    [ "$status" -eq 0 ]
    [[ $output == *"nothing to do"* ]]
}

@test "Ctrl-C keeps what is done and says how to resume" {
    need_whole
    start -o a.npz
    wait_for a.npz 20
    kill -INT $pid
    code=0; wait $pid || code=$?
    [ "$code" -eq 130 ]
    grep -q "run the same command to resume" err
    [ ! -e a.npz ]
    many -o a.npz
    cmp "$whole" a.npz
}

@test "other parameters are refused by name" {
    need_tiny
    start -o a.npz
    wait_for a.npz 1
    kill -STOP "$pid" # a GPU has made all of them before another process has begun
    run many -o a.npz
    [ "$status" -eq 7 ]
    [[ $output == *"another process"* ]]
    kill_it
    for other in "--steps 3" "--cfg-scale 2" "-s 1" "-n 201" "-c random" "--rounding adm" "--size 24" "--first-index 1"; do
        run many -o a.npz $other
        [ "$status" -eq 7 ] || { echo "$other: $status $output"; false; }
        [[ $output == *"begun with"*"--force"* ]] || { echo "$other: $output"; false; }
    done
    run many -o a.npz --steps 3
    [[ $output == *"steps $steps, found steps 3"* ]]
    few -n 3 -o a.npz --force
    numpy '
assert len(np.load("a.npz")["arr_0"]) == 3'
    run few -n 4 -o a.npz
    [ "$status" -eq 7 ]
    few -n 4 -o a.npz -f
    numpy '
assert len(np.load("a.npz")["arr_0"]) == 4'
}

@test "what does not go with an archive" {
    need_tiny
    for arguments in "--grid 2x2" "--latents l.npy" "--no-metadata"; do
        run few -n 4 -o a.npz $arguments
        [ "$status" -eq 2 ] || { echo "$arguments: $status $output"; false; }
    done
    [ -z "$(ls -d *.npz* *.npy 2>/dev/null)" ]
}

@test "a full disk is told at the start" {
    need_tiny
    if ! { mkdir small && mount -t tmpfs -o size=64k none small; } 2>/dev/null; then skip "no right to mount"; fi
    run few -n 100 -o small/a.npz
    left=$(ls small)
    few -n 20 -o small/b.npz || true
    made=$(ls small)
    umount small
    [ "$status" -eq 7 ]
    [[ $output == *"too full: need 0.1 MiB, have 0.1 MiB"* ]]
    [ -z "$left" ]
    [ "$made" = b.npz ]
}

@test "rounding" {
    need_tiny
    few -n 8 -o d.npz
    few -n 8 -o a.npz --rounding adm
    few -n 1 --rounding adm -o a.png
    "$NALAGEN" info --json a.png | json_lines 'x["parameters"]["rounding"] == "adm"'
    numpy '
d, a = (np.load(f)["arr_0"].astype(int) for f in ("d.npz", "a.npz"))
inside = (d > 0) & (d < 255)
assert inside.sum() > 500 and set((d - a).ravel()) == {0, 1} and 0.4 < (d - a)[inside].mean() < 0.6'
}

@test "a model of pixels says that it uses no autoencoder" {
    need_tiny
    run --separate-stderr few -n 1 -o a.png --no-metadata --vae "$vae"
    [[ $stderr == *"the autoencoder $vae is not used"* ]]
    run --separate-stderr few -n 1 -o b.png --no-metadata --vae none
    [ -z "$stderr" ]
    cmp a.png b.png
}

@test "several processes make the pictures of one" {
    need_tiny
    few -n 21 -o one.npz
    run --separate-stderr few -n 21 -o two.npz --processes 2
    [[ $stderr != *"two.npz.part holds"* ]] # the others are at work
    [ "$status" -eq 0 ]
    [ "$output" = two.npz ]
    cmp one.npz two.npz
    for rank in 2 0 1; do few -n 21 -o ranks.npz --rank $rank/3; done
    cmp one.npz ranks.npz
    few -n 21 -o forced.npz -s 9
    few -n 21 -o forced.npz --processes 3 --force
    cmp one.npz forced.npz
    # More processes than batches.
    few -n 2 -o few.npz
    few -n 2 -o some.npz --processes 3
    cmp few.npz some.npz
    for rank in 1 0; do
        [ ! -e mpi.npz ]
        OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=2 few -n 21 -o mpi.npz
    done
    cmp one.npz mpi.npz
    few -n 9 -o p/ --processes 2 >list
    few -n 9 -o q/ >/dev/null
    diff -r p q
    [ "$(wc -l <list)" -eq 9 ]
    [ -z "$(ls -d *.npz.* 2>/dev/null)" ]
}

@test "a process that dies costs its unfinished pictures" {
    need_whole
    start -o a.npz --processes 2
    wait_for a.npz 10
    kill -9 "$(children $pid | tail -n 1)"
    code=0; wait $pid || code=$?
    [ "$code" -ne 0 ]
    grep -q "ended by signal 9" err
    [ ! -e a.npz ]
    [ "$(grep -ao done a.npz.journal | wc -l)" -ge 100 ]
    many -o a.npz --processes 3
    cmp "$whole" a.npz
}

@test "a process that is asked to stop leaves the others at work" {
    need_whole
    start -o a.npz --processes 2
    wait_for a.npz 10
    kill -INT "$(children $pid | tail -n 1)"
    code=0; wait $pid || code=$?
    [ "$code" -eq 130 ]
    grep -q "process 1 of 2 ended with code 130 (cancelled)" err
    [ ! -e a.npz ]
    [ "$(grep -ao done a.npz.journal | wc -l)" -ge 100 ]
    many -o a.npz
    cmp "$whole" a.npz
}

@test "where not all processes can be started, the others end" {
    need_tiny
    [ -e "$FORK_FAILS_LIBRARY" ]
    many+=(-n 100000)
    code=0
    LD_PRELOAD=$FORK_FAILS_LIBRARY FORK_FAILS=3 ASAN_OPTIONS=verify_asan_link_order=0 \
        timeout -k 5 20 "$NALAGEN" sample -m "$tiny" "${batch[@]}" "${many[@]}" -o a.npz --processes 3 2>err || code=$?
    [ "$code" -eq 4 ]
    grep -q "process 2 of 3 cannot be started: Resource temporarily unavailable" err
    [ "$(grep -c "nalagen: error" err)" -eq 1 ] # on a busy machine the first says that it stops
    [ -z "$(running_here)" ]
}

@test "Ctrl-C reaches every process once; a parent that dies takes them along" {
    need_tiny
    many+=(-n 2000)
    start -o a.npz --processes 2
    wait_for a.npz 4
    kill -INT $pid
    code=0; wait $pid || code=$?
    [ "$code" -eq 130 ]
    [ "$(grep -c interrupted err)" -eq 1 ]
    start -o a.npz --processes 2
    wait_for a.npz 100
    children=$(children $pid)
    [ "$(wc -l <<<"$children")" -eq 2 ]
    kill_it
    for _ in $(seq 100); do
        alive=
        for child in $children; do ! grep -q "^State:.[^Z]" "/proc/$child/status" 2>/dev/null || alive=$child; done
        [ -z "$alive" ] && break
        sleep 0.1
    done
    [ -z "$alive" ]
}

@test "a folder is resumed with --resume, and only with its own pictures" {
    need_tiny
    few -n 8 -o whole/ >/dev/null
    few -n 4 -o a/ >/dev/null
    run few -n 8 -o a/
    [ "$status" -eq 7 ]
    [[ $output == *--resume* ]]
    before=$(stat -c %Y.%i a/*-000001.png)
    touch a/.nalagen-1-000000001-0.tmp # of a process that was killed
    run few -n 8 -o a/ --resume
    [ "$status" -eq 0 ]
    [[ $output == *"resuming: 4 of 8"* ]]
    [ "$(stat -c %Y.%i a/*-000001.png)" = "$before" ]
    [ ! -e a/.nalagen-1-000000001-0.tmp ]
    diff -r whole a
    rm a/*-000002.png # in the middle of a batch of 4: a process was killed there
    run few -n 8 -b 4 -o a/ --resume
    [ "$status" -eq 0 ] || { echo "$output"; false; }
    diff -r whole a
    run few -n 8 -o a/ --resume --steps 3
    [ "$status" -eq 7 ]
    [[ $output == *"steps 2, found steps 3"* ]]
    echo hello >"a/$(ls a | head -n 1)"
    run few -n 8 -o a/ --resume
    [ "$status" -ne 0 ]
    [[ $output == *"not a picture of this run"* ]]
    for arguments in "--resume --force" "--resume --no-metadata" "--resume --grid 2x4"; do
        run few -n 8 -o b/ $arguments
        [ "$status" -eq 2 ] || { echo "$arguments: $status $output"; false; }
    done
}

@test "wrong numbers of processes" {
    need_tiny
    for arguments in "--rank 2/2" "--rank 1" "--rank a/b" "--rank -1/2" "--processes 0" "--gpus x" "--gpus 0" \
        "--gpus 1 --processes 2" "--gpus all --device cpu" "--processes 2 --requests -" "--rank 0/2 --requests -" \
        "--rank 0/2 --latents l.npy" "--rank 0/2 --force"; do
        run few -n 4 -o a.npz $arguments </dev/null
        [ "$status" -eq 2 ] || { echo "$arguments: $status $output"; false; }
    done
    NALAGEN_CHILD=x run few -o a.npz
    [ "$status" -eq 2 ]
}
