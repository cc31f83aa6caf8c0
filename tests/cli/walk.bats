# SPDX-License-Identifier: MIT
# sample --walk: pictures from one picture to another; --animate: all of them in one file.
load helper

setup_file() {
    export tiny=$BATS_FILE_TMPDIR/tiny.safetensors OMP_NUM_THREADS=1
    "$MAKE_MODEL" "$tiny"
}

# A batch of 1: products may round otherwise in another one.
small() {
    "$NALAGEN" sample -m "$tiny" --device cpu --steps 3 -b 1 "$@"
}

# The pixels of two PNG alone: parameters in them differ.
same_pixels() {
    cmp -s <(pixels "$1") <(pixels "$2")
}

pixels() {
    python3 -c '
import struct, sys, zlib
data, at, raw = open(sys.argv[1], "rb").read(), 8, b""
while at < len(data):
    length, kind = struct.unpack(">I4s", data[at:at + 8])
    raw += data[at + 8:at + 8 + length] if kind == b"IDAT" else b""
    at += 12 + length
sys.stdout.buffer.write(zlib.decompress(raw))' "$1"
}

@test "a walk begins and ends at the pictures of its two ends, to the bit" {
    local sampler
    for sampler in heun sde-euler; do
        small --sampler $sampler -c 1 --seed 7 -o a.png -q -f
        small --sampler $sampler -c 3 --seed 9 -o b.png -q -f
        small --sampler $sampler -c 1 --seed 7 --walk 5 --to-class 3 --to-seed 9 -o $sampler/ -q
        same_pixels a.png $sampler/class1-seed7-000000.png
        same_pixels b.png $sampler/class1-seed7-000004.png
        run ! same_pixels a.png $sampler/class1-seed7-000001.png
        run ! same_pixels $sampler/class1-seed7-000002.png $sampler/class1-seed7-000003.png
    done
}

@test "a walk between classes alone, and between seeds alone" {
    small -c 1 --seed 7 -o a.png -q
    small -c 3 --seed 7 -o b.png -q
    small -c 1 --seed 9 -o c.png -q
    small -c 1 --seed 7 --walk 3 --to-class 3 -o classes/ -q
    small -c 1 --seed 7 --walk 3 --to-seed 9 -o seeds/ -q
    same_pixels a.png classes/class1-seed7-000000.png
    same_pixels b.png classes/class1-seed7-000002.png
    same_pixels c.png seeds/class1-seed7-000002.png
    # without a class both ends draw theirs
    small --seed 7 -o r.png -q
    small --seed 7 --walk 2 --to-class null -o random/%d.png -q
    same_pixels r.png random/0.png
}

@test "a walk may be split, resumed, and each of its pictures made again" {
    small -c 1 --walk 5 --to-class 3 --to-seed 9 -o all/ -q
    small -c 1 --walk 5 --to-class 3 --to-seed 9 -n 2 --first-index 3 -o part/ -q
    cmp all/class1-seed0-000003.png part/class1-seed0-000003.png
    cmp all/class1-seed0-000004.png part/class1-seed0-000004.png
    small --from all/class1-seed0-000002.png -m "$tiny" -o again.png -q
    cmp all/class1-seed0-000002.png again.png
    "$NALAGEN" info --json again.png | json_lines 'x["parameters"]["walk"] == 5 and x["parameters"]["index"] == 2 and x["parameters"]["to_seed"] == "9"'
    rm all/class1-seed0-000001.png
    small -c 1 --walk 5 --to-class 3 --to-seed 9 -o all/ --resume
    small -c 1 --walk 5 --to-class 3 --to-seed 9 -o once/ -q
    cmp {once,all}/class1-seed0-000001.png
    run small -c 1 --walk 5 --to-class 2 --to-seed 9 -o all/ --resume
    [ "$status" -eq 7 ]
    [[ $output == *"to_class"* ]]
    printf '%s\n' '{"class": 1, "walk": 5, "to_class": 3, "to_seed": 9, "out": "r/"}' | small --requests - | json_lines 'x["status"] == "ok" and len(x["pictures"]) == 5'
    same_pixels all/class1-seed0-000003.png r/class1-seed0-000003.png
}

@test "a walk as a grid and as an animated PNG" {
    small -c 1 --walk 4 --to-class 3 -o all/ -q
    small -c 1 --walk 4 --to-class 3 --grid 1x4 -o grid.png -q
    "$NALAGEN" info --json grid.png | json_lines 'x["width"] == 4 * 16 + 3 * 2 and x["height"] == 16'
    run small -c 1 --walk 4 --to-class 3 --animate 120
    [ "$output" = animation-seed0.png ]
    same_pixels animation-seed0.png all/class1-seed0-000000.png
    small --from animation-seed0.png -m "$tiny" -o again.png -q
    cmp animation-seed0.png again.png
    "$NALAGEN" info --json again.png | json_lines 'x["parameters"]["animate"] == 120 and x["parameters"]["class"] == "1"'
    for python in python3 /usr/bin/python3 "${NL_CLIENTS_PYTHON:-}"; do
        ! "$python" -c 'import PIL' 2>/dev/null || break
    done
    [ -n "$python" ] || skip "no PIL to read it back"
    "$python" - <<'PY'
from PIL import Image
animation = Image.open("animation-seed0.png")
assert animation.n_frames == 4 and animation.info["duration"] == 120 and animation.info["loop"] == 0
for i in range(4):
    animation.seek(i)
    assert animation.convert("RGB").tobytes() == Image.open("all/class1-seed0-%06d.png" % i).convert("RGB").tobytes(), i
PY
}

@test "walks that cannot be are refused before the first step" {
    refused() {
        local words=$1
        shift
        run small -o x.png "$@"
        [ "$status" -eq 2 ]
        [[ $output == *"$words"* ]] || { echo "$output"; return 1; }
        [ ! -e x.png ]
    }
    refused "where to?" -c 1 --walk 5
    refused "where a --walk ends" -c 1 --to-class 3
    refused "where a --walk ends" -c 1 --to-seed 3
    refused "begins at one class" -c 1,2 --walk 5 --to-seed 3
    refused "ends at one class" -c 1 --walk 5 --to-class 2,3
    refused "classes 0 to 4" -c 1 --walk 5 --to-class 9
    refused "--to-seed x" -c 1 --walk 5 --to-seed x
    refused "pictures 0 to 4" -c 1 --walk 5 --to-seed 3 -n 6
    refused "pictures 0 to 4" -c 1 --walk 5 --to-seed 3 --first-index 5
    refused "--walk 1" -c 1 --walk 1 --to-seed 3
    refused "two ways" -c 1 --walk 4 --to-seed 3 --grid 1x4 --animate 100
    small -c 1 --vae none --latents l.npy -q
    numpy '; np.save("noise.npy", np.zeros((2, 3, 16, 16), "f"))'
    refused "--noise" -c 1 --walk 2 --to-seed 3 --noise noise.npy
}
