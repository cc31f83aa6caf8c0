# SPDX-License-Identifier: MIT
# `nalagen reconstruct`: the same kind of thing out as in, the ratio that a few lines of Python find, refusals, Ctrl-C.
load helper

need_vae() {
    [ -f "$vae" ] || skip "the shipped weights are not in this checkout"
}

# Python with pixels(path): the bytes of an RGB PNG without interlacing, and psnr(a, b).
png() {
    python3 - "$@" <<END
import json, math, os, struct, sys, zlib
def pixels(path):
    data, at, packed = open(path, 'rb').read(), 8, b''
    while at < len(data):
        size, kind = struct.unpack('>I4s', data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b'IHDR':
            width, height, depth, colours = struct.unpack('>IIBB', body[:10])
            assert (depth, colours) == (8, 2)
        packed += body if kind == b'IDAT' else b''
        at += 12 + size
    lines, stride, before, out = zlib.decompress(packed), 3 * width, bytearray(3 * width), []
    for y in range(height):
        kind, line = lines[y * (stride + 1)], bytearray(lines[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for x in range(stride):
            a = line[x - 3] if x > 2 else 0
            b, c = before[x], before[x - 3] if x > 2 else 0
            p = a + b - c
            nearest = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            line[x] = line[x] + (0, a, b, (a + b) // 2, nearest)[kind] & 255
        out.append(bytes(line))
        before = line
    return b''.join(out)
def psnr(a, b):
    assert len(a) == len(b)
    return 10 * math.log10(255 ** 2 * len(a) / sum((x - y) ** 2 for x, y in zip(a, b)))
$code
END
}

# Pictures of 64 x 64 in `in`, one of them in a folder below.
pictures() {
    mkdir -p in/below
    "$NALAGEN" reconstruct "$NL_SOURCE_DIR/samples/church.png" --size 64 -o in/b.png -q --vae "$vae" >/dev/null
    "$NALAGEN" reconstruct "$NL_SOURCE_DIR/samples/tench.png" --size 64 -o in/a.png -q --vae "$vae" >/dev/null
    "$NALAGEN" reconstruct "$NL_SOURCE_DIR/samples/golf-ball.png" --size 64 -o in/below/c.png -q --vae "$vae" >/dev/null
}

@test "a folder: names, the ratio by Python, any batch" {
    need_vae
    pictures
    "$NALAGEN" reconstruct in -o out --json -q --vae "$vae" >facts
    [ "$(cd out && find . -type f | sort | tr '\n' ' ')" = "./a.png ./b.png ./below/c.png " ]
    code='
facts = json.load(open("facts"))
names = ["a.png", "b.png", "below/c.png"]
ratios = [psnr(pixels("in/" + name), pixels("out/" + name)) for name in names]
assert facts["n"] == 3 and facts["exact"] == 0 and len(facts["vae_sha256"]) == 64
assert abs(facts["psnr_mean"] - sum(ratios) / 3) < 1e-6, (facts, ratios)
assert abs(facts["psnr_worst"] - min(ratios)) < 1e-6 and min(ratios) > 15
assert facts["worst"] == names[ratios.index(min(ratios))] and names[facts["worst_index"]] == facts["worst"]' png
    "$NALAGEN" reconstruct in -o again/ -b 1 --threads 1 -q --vae "$vae" >text
    diff -r out again
    grep -q "3 pictures: PSNR [0-9.]* dB on average, [0-9.]* dB at worst (" text
    "$NALAGEN" reconstruct in/b.png -o one.png -q --vae "$vae" >/dev/null
    cmp one.png out/b.png
    "$NALAGEN" reconstruct in/b.png -o into/ -q --vae "$vae" >/dev/null
    cmp into/b.png out/b.png
}

@test "an archive, and fitted" {
    need_vae
    numpy "
np.savez('in.npz', arr_0=np.random.default_rng(0).integers(0, 255, (5, 40, 48, 3), dtype=np.uint8))"
    "$NALAGEN" reconstruct in.npz -o out.npz --json -q --vae "$vae" >facts
    numpy ", json
a, b = (np.load(x)['arr_0'].astype(float) for x in ('in.npz', 'out.npz'))
ratios = 10 * np.log10(255 ** 2 / ((a - b) ** 2).mean((1, 2, 3)))
facts = json.load(open('facts'))
assert facts['n'] == 5 and abs(facts['psnr_mean'] - ratios.mean()) < 1e-6 and abs(facts['psnr_worst'] - ratios.min()) < 1e-6
assert facts['worst_index'] == ratios.argmin() and 'worst' not in facts"
    "$NALAGEN" reconstruct in.npz -o fitted.npz --size 16x24 -b 2 -q --vae "$vae" >/dev/null
    numpy "
assert np.load('fitted.npz')['arr_0'].shape == (5, 16, 24, 3)"
    run -7 "$NALAGEN" reconstruct in.npz -o out.npz --vae "$vae"
    [[ $output == *"--force"* ]]
    "$NALAGEN" reconstruct in.npz -o out.npz --force -q --vae "$vae"
}

@test "what reconstruct refuses" {
    need_vae
    pictures
    run -7 "$NALAGEN" reconstruct in/a.png -o in/b.png --vae "$vae"
    [[ $output == *"in/b.png is there already"*"--force"* ]]
    run -2 "$NALAGEN" reconstruct in -o in/out --vae "$vae"
    [[ $output == *"would be taken for a part of it"* ]]
    run -2 "$NALAGEN" reconstruct in -o out.npz --vae "$vae"
    [[ $output == *"pictures of an archive alone"* ]]
    run -2 "$NALAGEN" reconstruct in/a.png -o out.jpg --vae "$vae"
    [[ $output == *".png"* ]]
    run -2 "$NALAGEN" reconstruct in -o out --vae none
    [[ $output == *"pixels stay what they are"* ]]
    run -2 "$NALAGEN" reconstruct in --vae "$vae"
    [[ $output == *"-o OUT"* ]]
    run -2 "$NALAGEN" reconstruct in -o out --size 60 --vae "$vae"
    [[ $output == *"multiples of 8"* ]]
    run -3 "$NALAGEN" reconstruct "$NL_SOURCE_DIR/README.md" -o out --vae "$vae"
    echo torn >in/d.png
    run -3 "$NALAGEN" reconstruct in -o torn --vae "$vae"
    [[ $output == *"in/d.png"* ]]
    rm in/d.png
    run -4 "$NALAGEN" reconstruct in -o small --max-memory 2M --vae "$vae"
    [ -z "$(find . -name '*.part' -o -name '.*tmp*')" ]
}

@test "Ctrl-C keeps the pictures that are finished, each whole" {
    need_vae
    pictures
    mkdir many
    for i in $(seq 400); do cp in/a.png many/$i.png; done
    "$NALAGEN" reconstruct many -o out -b 2 --size 256 --threads 1 -q --vae "$vae" 2>err &
    pid=$!
    for _ in $(seq 1500); do compgen -G 'out/*.png' >/dev/null && break; sleep 0.02; done
    kill -TERM $pid
    code=0; wait $pid || code=$?
    [ "$code" -eq 130 ]
    count=$(find out -name '*.png' | wc -l)
    [ "$count" -gt 0 ]
    [ "$count" -lt 400 ]
    [ "$(find out -type f | wc -l)" -eq "$count" ]
    for file in out/*.png; do is_png "$file"; done
}
