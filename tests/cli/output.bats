# SPDX-License-Identifier: MIT
# Where pictures go: names, pipes, full disks, terminals, progress, JSON.
load helper

@test "files are not overwritten without --force" {
    need_model
    echo mine >a.png
    run quick -c 4 -o a.png
    [ "$status" -eq 7 ]
    [[ $output == *--force* ]]
    [ "$(cat a.png)" = mine ]
    run quick -c 4 -o a.png --force
    [ "$status" -eq 0 ]
    is_png a.png
    mkdir p && echo mine >p/2.png
    run quick -c 4 -n 3 -o p/%d.png
    [ "$status" -eq 7 ]
    [ "$(ls p)" = 2.png ]
    echo mine >l.npy
    run quick -c 4 -o z.png --latents l.npy
    [ "$status" -eq 7 ]
    [ "$(cat l.npy)" = mine ]
}

@test "folder, pattern, default names" {
    need_model
    quick -c 14 -n 2 -o made/deep/
    [ "$(ls made/deep)" = "$(printf 'church-seed0-000000.png\nchurch-seed0-000001.png')" ]
    quick -c "French horn" -s 3
    [ -f french-horn-seed3.png ]
    quick -c 4 -n 2 -o p/x-%03d.png
    [ "$(ls p)" = "$(printf 'x-000.png\nx-001.png')" ]
    mkdir there
    quick -c 14 -o there
    [ -f there/church-seed0.png ]
    for out in a.jpg a "%d%d.png" "%s.png" "%n.png" "%09999d.png" "%*d.png" "a%" "%d/a.png"; do
        run quick -c 4 -o "$out"
        [ "$status" -eq 2 ] || { echo "$out: $status"; false; }
    done
    run quick -c 4 -n 2 -o one.png
    [ "$status" -eq 2 ]
    [[ $output == *%06d* ]]
}

@test "a place that cannot be written is refused before the work" {
    need_model
    long=$(printf 'a%.0s' {1..300}).png
    echo mine >file
    for arguments in "-o $long" "-o file/a.png" "-o a.png --latents nowhere/l.npy" "-o $long --force" \
        "-n 2 -o %d-$long --resume"; do
        run timeout -k 5 20 "$NALAGEN" sample --vae "$vae" --size 64 -c 4 --sampler euler --steps 10000 $arguments
        [ "$status" -eq 7 ] || { echo "$arguments: $status $output"; false; }
        [[ $output == *"cannot be made"* ]] || { echo "$output"; false; }
    done
    [ "$(ls -I cache)" = file ]
}

@test "--out - writes one PNG and nothing else to stdout" {
    need_model
    quick -c 4 -o - >a.png 2>log
    quick -c 4 -o b.png
    cmp a.png b.png
    run quick -c 4 -n 2 -o -
    [ "$status" -eq 2 ]
    quick -c 4 -o - | head -c 8 >c
    is_png c
}

@test "a full disk is code 7 and leaves nothing" {
    need_model
    run quick -c 4 -o /dev/full
    [ "$status" -eq 7 ]
    [[ $output == *"No space left"* ]]
    run bash -c "\"$NALAGEN\" sample --vae '$vae' --size 64 --steps 1 -c 4 -o a.png >/dev/full"
    [ "$status" -eq 7 ]
    run bash -c "\"$NALAGEN\" sample --vae '$vae' --size 64 --steps 1 -c 4 -o - >/dev/full"
    [ "$status" -eq 7 ]
    run quick -c 4 --latents /dev/full -o b.png
    [ "$status" -eq 7 ]
    run quick -c 4 -o /proc/none/a.png
    [ "$status" -eq 7 ]
    [ -z "$(find . -name '*.tmp')" ]
}

@test "closed standard files do not get into the picture" {
    need_model
    quick -c 4 -o a.png
    run bash -c "\"$NALAGEN\" sample --vae '$vae' --size 64 --sampler euler --steps 2 --cfg-scale 1 -c 4 -o b.png \
        <&- >&- 2>&-"
    [ "$status" -eq 7 ]
    cmp a.png b.png
}

@test "one name for pictures and latents is refused" {
    need_model
    run quick -c 4 -o a.png --latents a.png --force
    [ "$status" -eq 2 ]
    run quick -c 4 -n 2 -o %d.png --latents 1.png
    [ "$status" -eq 2 ]
    run quick -c 4 -o - --latents -
    [ "$status" -eq 2 ]
    [ -z "$(find . -name '*.png')" ]
}

@test "a reader that goes away ends the run" {
    need_model
    run bash -c "\"$NALAGEN\" sample --vae '$vae' --size 64 --steps 1 -c 4 -n 200 -b 1 -o out/ --json | head -n 1;
        exit \${PIPESTATUS[0]}"
    [ "$status" -eq 7 ]
    [ "$(ls out | wc -l)" -lt 200 ]
}

@test "no terminal, no input: plain lines, no escape codes" {
    need_model
    quick -c 4 -o a.png </dev/null >out 2>err
    ! grep -q $'\033' out err || false
    ! grep -q $'\r' out err || false
}

@test "a progress bar on a terminal" {
    need_model
    command -v script >/dev/null || skip "no script"
    TERM=xterm script -qec "\"$NALAGEN\" sample --vae '$vae' -c 4 -b 1 -n 2 --steps 24 --sampler euler --size 128 -o a/" typescript \
        >/dev/null
    tr '\r' '\n' <typescript >lines
    grep -q '^\[----------\]   0 % sampling step 0/24, 0/2 images' lines # from the first moment
    grep -q 'step 24/24, 0/2 images' lines                             # nothing is claimed before it is done
    ! grep -q '2/2 images' lines || false
    grep -Eq ' s left, [0-9.]+ (m?s/image|images/s)' lines
    [ "$(grep -o '^\[[#-]*\]' lines | awk '{print length}' | sort -u)" = 12 ] # it keeps its width
    grep -q $'\r\033\[Ka/.*-seed0-000001.png' typescript # the name has a line of its own
    [ "$(ls a | wc -l)" -eq 2 ]
}

@test "--json is one object for each picture" {
    need_model
    quick -c 0-2 --json -o j/ | json_lines 'x["file"].startswith("j/") and x["evaluations"] == 2 and
        len(x["sha256"]) == 64 and x["seed"] == 0 and x["version"] and x["class"] == i'
    quick -c 4 -s 18446744073709551615 --json -o s.png | json_lines 'x["seed"] == "18446744073709551615"'
    "$NALAGEN" info --json s.png | json_lines 'x["parameters"]["config"]["architecture"] == "SiT"'
    "$NALAGEN" sample --vae "$vae" --from s.png -o t.png
    cmp s.png t.png
    "$NALAGEN" info --json "$model" | json_lines 'x["model"] == "NaLaSiT-S/2" and x["config"]["num_classes"] == 20 and
        x["parameters"] > 3e7 and len(x["sha256"]) == 64'
    quick -c 4 --no-metadata -o n.png
    "$NALAGEN" info --json n.png | json_lines '"parameters" not in x'
    run "$NALAGEN" sample --from n.png
    [ "$status" -eq 3 ]
}

@test "what a foreign picture says does not reach the terminal as it is" {
    python3 - <<'END'
import struct, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
text = b'nalagen\0\0\0\0\0{"model": "\\u001b[31m\\u009b"}'
open("e.png", "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)) +
    chunk(b"iTXt", text) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b""))
END
    run "$NALAGEN" info e.png
    [ "$status" -eq 0 ]
    [[ $output == *'model: \x1b[31m\u{9b}'* ]]
    run "$NALAGEN" sample --from e.png
    [ "$status" -eq 3 ]
    [[ $output == *'\x1b[31m\u{9b}'* ]]
}

@test "info on what is none of it" {
    echo hello >text
    : >empty
    for file in text empty missing . /dev/zero; do
        run "$NALAGEN" info "$file"
        [ "$status" -eq 3 ] || { echo "$file: $status $output"; false; }
    done
    run "$NALAGEN" info
    [ "$status" -eq 2 ]
    run "$NALAGEN" info text empty
    [ "$status" -eq 2 ]
}

without_checksums() { # IN OUT: a copy of a model
    python3 -c '
import json, struct, sys
data = open(sys.argv[1], "rb").read()
size = struct.unpack("<q", data[:8])[0]
table = json.loads(data[8:8 + size])
del table["__metadata__"]["nalagen.crc32"]
text = json.dumps(table).encode()
open(sys.argv[2], "wb").write(struct.pack("<q", len(text)) + text + data[8 + size:])' "$1" "$2"
}

@test "a bit that has changed in a model is found: by info --verify, and by whoever reads the tensor" {
    "$MAKE_MODEL" tiny.safetensors
    run "$NALAGEN" info --verify tiny.safetensors
    [ "$status" -eq 0 ]
    [[ "$output" =~ "checksums: "[1-9][0-9]+ ]]
    python3 -c '
import json, struct
data = bytearray(open("tiny.safetensors", "rb").read())
size = struct.unpack("<q", data[:8])[0]
table = json.loads(data[8:8 + size])
data[8 + size + table["blocks.1.mlp.fc1.weight"]["data_offsets"][0] + 1000] ^= 4
open("flipped.safetensors", "wb").write(data)'
    run -3 "$NALAGEN" info --verify flipped.safetensors
    [[ "$output" == *"flipped.safetensors: damaged: 1 of "*" checksums does not fit:"*"tensor blocks.1.mlp.fc1.weight" ]]
    run -3 quick -m flipped.safetensors -c 1 -o a.png --device cpu
    [[ "$output" == *"flipped.safetensors: tensor blocks.1.mlp.fc1.weight: its checksum does not fit: the file is damaged" ]]
    run -3 "$NALAGEN" convert flipped.safetensors again.safetensors
    [ ! -e again.safetensors ]
    # A file of before has none, and loads.
    without_checksums flipped.safetensors old.safetensors
    quick -m old.safetensors -c 1 -o a.png --device cpu -q
    run "$NALAGEN" info --verify old.safetensors
    [ "$status" -eq 0 ]
    [[ "$output" == *"carries no checksums"*"checksums: 0"* ]]
    quick -m tiny.safetensors -c 1 -o b.png --device cpu -q
    run -2 "$NALAGEN" info --verify b.png
}

@test "a model replaced by one of the same size and time has its own hash in pictures" {
    need_model
    without_checksums "$model" m.safetensors # they would tell of the change
    cp m.safetensors other.safetensors
    printf '\001\002' | dd of=other.safetensors bs=1 seek=$(($(stat -c %s m.safetensors) - 9)) conv=notrunc status=none
    ! cmp -s m.safetensors other.safetensors || false
    touch -d '2026-01-01' m.safetensors other.safetensors
    hash_in() { "$NALAGEN" info --json "$1" | python3 -c 'import json; print(json.loads(input())["parameters"]["sha256"])'; }
    quick -m m.safetensors -c 1 -o before.png --device cpu -q
    [ "$(hash_in before.png)" = "$(sha256sum <m.safetensors | cut -c1-64)" ]
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/nalagen/sha256
    touch "$cache/.nalagen-1-000000001-0.tmp" # of a process that was killed
    cp -p other.safetensors m.safetensors
    quick -m m.safetensors -c 1 -o after.png --device cpu -q
    [ ! -e "$cache/.nalagen-1-000000001-0.tmp" ]
    [ "$(hash_in after.png)" = "$(sha256sum <m.safetensors | cut -c1-64)" ]
}

@test "what a terminal would act on is spelt out, in errors and in what info prints" {
    plain() { # no control character but line breaks, no C1, no mark of direction
        ! LC_ALL=C grep -qP '[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]' "$1" || false
    }
    run "$NALAGEN" $'a\e[2Jb\u202ec'
    [ "$status" -eq 2 ]
    [[ $output == *"'a\\x1b[2Jb\\u{202e}c'"* ]]
    run "$NALAGEN" info $'no\nnalagen: error: forged\u0085\e]0;\a'
    [ "$status" -ne 0 ]
    [ "${#lines[@]}" -eq 1 ]
    [[ $output == *'no\nnalagen: error: forged\u{85}\x1b]0;\x07: '* ]]
    run "$NALAGEN" sample --steps $'1\nnalagen: error: forged' -o x.png
    [ "${#lines[@]}" -eq 1 ]
    python3 - <<'PY'
import json, struct
header = json.dumps({"__metadata__": {"note": "a\nkind: forged\u202e\u0085\x1b[1m", "e\nf": "\n  g: h"},
                     "w\n  forged: yes": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
open("w.safetensors", "wb").write(struct.pack("<Q", len(header)) + header + b"\0" * 4)
PY
    "$NALAGEN" info w.safetensors >out 2>&1
    plain out
    grep -qF 'note: a\nkind: forged\u{202e}\u{85}\x1b[1m' out
    grep -qF 'e\nf: \n  g: h' out
    [ "$(grep -c '^ *forged: yes' out)" -eq 0 ]
    "$NALAGEN" info --json w.safetensors | python3 -c 'import json, sys; assert json.load(sys.stdin)["metadata"]["e\nf"] == "\n  g: h"'
}

@test "a link that leads nowhere is refused as an output before the work" {
    ln -s nowhere a.png
    ln -s nowhere a.npy
    need_model
    for extra in "-o a.png" "-o a.png -f" "--latents a.npy -o b.png" "--latents a.npy -f -o b.png"; do
        run timeout 60 "$NALAGEN" sample --steps 1000 $extra
        [ "$status" -eq 7 ]
        [[ $output == *"a.np"*"link that leads nowhere"* || $output == *"a.png"*"link that leads nowhere"* ]]
        [ ! -e nowhere ]
        [ ! -e b.png ]
    done
    ln -s b.png c.png # one that leads to a file stays one
    echo old >b.png
    "$NALAGEN" sample --steps 1 --sampler euler -f -q -o c.png
    [ -L c.png ]
    is_png b.png
}

@test "the same command again, without a name: the next free one" {
    need_model
    quick -c church >out
    quick -c church >>out 2>err
    grep -q "there already: making church-seed0-2.png" err
    [ "$(cat out)" = $'church-seed0.png\nchurch-seed0-2.png' ]
    cmp church-seed0.png church-seed0-2.png
    quick -c 0-1 >/dev/null
    quick -c 0-1 >out
    [ "$(wc -l <out)" -eq 2 ]
    [ "$(grep -c -- '-seed0-2-00000[01]\.png$' out)" -eq 2 ]
    quick -c church --force >out
    [ "$(cat out)" = church-seed0.png ]
    run -7 quick -c church -o church-seed0.png # a name that was given is meant
}
