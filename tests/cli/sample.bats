# SPDX-License-Identifier: MIT
# nalagen sample: classes, samplers, guidance, sizes, --from, previews, bad model files.
load helper

@test "a picture of a class by name, wnid and index is the same picture" {
    need_model
    quick --class church
    [ -f church-seed0.png ]
    is_png church-seed0.png
    quick -c n03028079 -o b.png
    quick -c 14 -o c.png
    cmp church-seed0.png b.png
    cmp church-seed0.png c.png
    quick -c 14 -s 1 -o d.png
    ! cmp -s c.png d.png || false
}

@test "results on stdout, nothing else; nothing at all on stderr with --quiet" {
    need_model
    run --separate-stderr quick -c 4 -o a.png --quiet
    [ "$status" -eq 0 ]
    [ "$output" = a.png ]
    [ -z "$stderr" ]
}

@test "lists, ranges, random and balanced" {
    need_model
    quick -c 1,4 --json | json_lines 'x["class"] == [1, 4][i]'
    quick -c 7-9,church -n 6 -o l/ --json | json_lines 'x["class"] == [7, 8, 9, 14][i % 4] and x["index"] == i'
    [ "$(ls l | wc -l)" -eq 6 ]
    quick -c balanced --first-index 18 -n 3 -o b/ --json | json_lines 'x["class"] == (18 + i) % 20'
    run quick -c null
    [ "$status" -eq 2 ]
    [[ $output == *"trained without one"* ]]
    quick -c random -n 5 -o r/ --json >a.jsonl
    quick -c random -n 3 --first-index 2 -o s/ --json >b.jsonl
    classes() { python3 -c 'import json, sys; print([json.loads(l)["class"] for l in sys.stdin])'; }
    [ "$(tail -n 3 a.jsonl | classes)" = "$(classes <b.jsonl)" ]
    [ "$(tail -n 3 a.jsonl | classes | tr -d '[]' | tr ',' '\n' | sort -u | wc -l)" -gt 1 ]
    for class in 21 curch 9-3 5-20 n0302807 1,,2; do
        run quick -c "$class" -o x.png
        [ "$status" -eq 2 ] || { echo "$class: $status $output"; false; }
    done
}

@test "a run may be split by --first-index" {
    need_model
    quick -c 0-3 -o a/%d.png
    quick -c 0-3 -n 2 --first-index 2 -o b/%d.png
    cmp a/2.png b/2.png
    cmp a/3.png b/3.png
}

@test "every sampler makes a picture" {
    need_model
    for sampler in euler midpoint heun heun2 rk4 sde-euler sde-heun; do
        quick -c 4 --sampler $sampler --steps 3 -o $sampler.png --json |
            json_lines "x['sampler'] == '$sampler' and x['steps'] == 3 and x['evaluations'] >= 3"
    done
    "$NALAGEN" sample --vae "$vae" --size 64 --sampler dopri5 --cfg-scale 1 --rtol 0.1 --atol 0.1 -c 4 -o d.png \
        --json | json_lines 'x["evaluations"] > 6 and "steps" not in x'
    for sampler in ddpm ddim dpmpp-2m dpmpp-2m-sde unipc; do
        run quick -c 4 --sampler $sampler
        [ "$status" -eq 2 ]
        [[ $output == *SiT* ]]
    done
}

@test "guidance, its scale and its interval change the picture" {
    one_colour
    "$NALAGEN" train -m SiT-2x64x2/8 -d data -o run --steps 12 --lr 5e-3 --ema 0.5 --batch 8 --sample-every 0 --device cpu -q
    drawn() {
        "$NALAGEN" sample -m run/model.safetensors -c name:1 --sampler euler --steps 4 --no-metadata "$@"
    }
    drawn --cfg-scale 1 -o 1.png
    drawn --cfg-scale 3 -o 2.png
    drawn --cfg-scale 2 -o 3.png
    drawn --cfg-scale 3 --cfg-interval 0.4,1 -o 4.png
    drawn -c null --cfg-scale 1 -o 5.png --json | json_lines 'x["class"] == 10 and x["class_name"] == "null"'
    [ "$(cat ?.png | wc -c)" -gt 0 ]
    [ "$(sha256sum ?.png | cut -c 1-64 | sort -u | wc -l)" -eq 5 ]
    need_model # guidance is inside its weights
    run quick -c 4 --cfg-scale 3
    [ "$status" -eq 2 ]
    [[ $output == *inside* ]]
}

@test "initial and final latents" {
    need_model
    numpy '
np.save("n.npy", np.random.default_rng(0).standard_normal((3, 4, 8, 8)).astype("float32"))
np.save("d.npy", np.load("n.npy").astype("float64")[1:2])
np.save("bad.npy", np.zeros((3, 4, 8, 9), "float32"))
np.save("nan.npy", np.full((3, 4, 8, 8), np.nan, "float32"))'
    quick -c 4 --noise n.npy -o a/ --latents a.npy
    quick -c 4 --noise d.npy -o b.png --latents b.npy --no-metadata
    [ "$(ls a | wc -l)" -eq 3 ]
    numpy '
a, b = np.load("a.npy"), np.load("b.npy")
assert a.shape == (3, 4, 8, 8) and a.dtype == np.float32 and np.isfinite(a).all()
assert np.abs(a[1] - b[0]).max() < 1e-3, np.abs(a[1] - b[0]).max()
assert np.abs(a[1] - a[0]).max() > 0.1'
    run quick -c 4 --noise bad.npy
    [ "$status" -eq 3 ]
    run quick -c 4 --noise nan.npy
    [ "$status" -eq 3 ]
    [[ $output == *nan.npy* ]]
    run quick -c 4 -n 4 --noise n.npy
    [ "$status" -eq 2 ]
    run "$NALAGEN" info a.npy
    [[ $output == *"[3,4,8,8]"* ]]
}

@test "--vae none makes latents only" {
    need_model
    run "$NALAGEN" sample --vae none --size 64 --steps 2 -c 4
    [ "$status" -eq 2 ]
    [[ $output == *--latents* ]]
    run --separate-stderr "$NALAGEN" sample --vae none --size 64 --steps 2 -c 4 --latents l.npy
    [ "$status" -eq 0 ]
    [ "$output" = l.npy ]
    [ -z "$(find . -name '*.png')" ]
    run -2 "$NALAGEN" sample --vae none --size 64 --steps 2 -c 4 --latents other.npy -o a.png
    [[ $output == *"--out a.png: --vae none makes no pictures"* ]]
    [ ! -e other.npy ]
}

@test "sizes: multiples of 16 pixels, square or not" {
    need_model
    quick -c 4 --size 64x96 -o a.png
    run "$NALAGEN" info a.png
    [[ $output == *"height: 64"*"width: 96"* ]]
    run quick -c 4 --size 65
    [ "$status" -eq 2 ]
    [[ $output == *"multiples of 16"* ]]
}

@test "a grid is one picture" {
    need_model
    run --separate-stderr quick -c 0-9 --grid 2x3 -o g.png
    [ "$status" -eq 0 ]
    [ "$output" = g.png ]
    run "$NALAGEN" info g.png
    [[ $output == *"grid: 2x3"* ]]
    run quick --grid 2x2 -n 5
    [ "$status" -eq 2 ]
}

@test "--from makes a picture again, byte by byte" {
    need_model
    quick -c church -n 3 -s 5 --sampler flow --steps 3 -o a/
    for picture in a/*.png; do
        "$NALAGEN" sample --vae "$vae" --from $picture -o again.png --force
        cmp $picture again.png
    done
    quick -c random --grid 1x3 -s 9 -o g.png
    "$NALAGEN" sample --vae "$vae" --from g.png -o h.png
    cmp g.png h.png
    "$NALAGEN" sample --vae "$vae" --from a/church-seed5-000001.png --steps 2 -o other.png --json |
        json_lines 'x["steps"] == 2 and x["index"] == 1 and x["seed"] == 5'
    if [ -z "${NALAGEN_TEST_VAE:-}" ]; then # called as encode and decode call it
        quick -c church --vae tiny -o tiny.png
        "$NALAGEN" sample --from tiny.png -o again.png --force
        cmp tiny.png again.png
    fi
    quick -c 4 --no-metadata -o plain.png
    run "$NALAGEN" sample --from plain.png -o x.png
    [ "$status" -eq 3 ]
}

@test "--from warns when the model is another one" {
    need_model
    quick -c 4 -o a.png
    cp "$model" other.safetensors
    printf ' ' >>other.safetensors # no longer a whole file: refused
    run "$NALAGEN" sample --model other.safetensors --vae "$vae" --from a.png -o b.png
    [ "$status" -eq 3 ]
    python3 -c '
import re
data = open("a.png", "rb").read()
import struct, zlib
out, at = data[:8], 8
while at < len(data):
    n, = struct.unpack(">I", data[at:at + 4]); kind = data[at + 4:at + 8]; body = data[at + 8:at + 8 + n]
    body = re.sub(rb"\"sha256\":\"....", b"\"sha256\":\"0000", body)
    out += struct.pack(">I", n) + kind + body + struct.pack(">I", zlib.crc32(kind + body)); at += 12 + n
open("c.png", "wb").write(out)'
    run "$NALAGEN" sample --vae "$vae" --from c.png -o d.png
    [ "$status" -eq 0 ]
    [[ $output == *"warning:"*"another model"* ]]
}

@test "previews are written as the picture grows" {
    need_model
    quick -c 4 --steps 4 --preview-every 1 -o a.png
    [ "$(ls)" = "$(printf 'a-step0001.png\na-step0002.png\na-step0003.png\na.png\ncache')" ]
    is_png a-step0002.png
    quick -c 4 --steps 4 -o b.png
    cmp a.png b.png
    for out in a.npz -; do
        run -2 quick -c 4 --steps 4 --preview-every 1 -o $out
        [[ $output == *"--preview-every writes files beside those of pictures"* ]]
    done
    [ ! -e a.npz ]
}

@test "--show draws in the terminal" {
    need_model
    run --separate-stderr quick -c 4 --show=blocks -o a.png
    [ "$status" -eq 0 ]
    [ "$output" = a.png ]
    [[ $stderr == *▀* ]]
}

@test "model files that are not what they should be" {
    need_model
    head -c 100000 "$model" >cut.safetensors
    echo hello >text.safetensors
    : >empty.safetensors
    for file in cut.safetensors text.safetensors empty.safetensors missing.safetensors . "$vae"; do
        run "$NALAGEN" sample -m "$file" -c 4
        [ "$status" -eq 3 ] || { echo "$file: $status $output"; false; }
        [[ $output == *"$file"* ]]
    done
    run "$NALAGEN" sample -m missing.safetensors -c 4
    [[ $output == *"missing.safetensors was not found"*"in: "*"$XDG_DATA_HOME/nalagen"*"docs/downloads.md"* ]]
    run "$NALAGEN" sample --vae text.safetensors -c 4
    [ "$status" -eq 3 ]
    run "$NALAGEN" sample --vae "$model" -c 4
    [ "$status" -eq 3 ]
    run "$NALAGEN" sample --device cuda:99 -c 4
    [ "$status" -eq 5 ]
    run "$NALAGEN" sample --device toaster -c 4
    [ "$status" -eq 2 ]
    run quick -c 4 --max-memory 1M
    [ "$status" -eq 4 ]
    [[ $output == *need*have* ]]
}

@test "threads and batch do not change the picture beyond 1/255" {
    need_model
    quick -c 0-4 --steps 3 --batch 1 --threads 1 --latents a.npy -o a/ --no-metadata
    quick -c 0-4 --steps 3 --batch 4 --threads 2 --latents b.npy -o b/ --no-metadata
    numpy '
a, b = np.load("a.npy"), np.load("b.npy")
assert np.abs(a - b).max() < 1e-3, np.abs(a - b).max()'
}

@test "weights are found in the user's own folder, by their names" {
    need_model
    mkdir -p share/nalagen beside
    cp "$model" share/nalagen/mine.safetensors
    quick -m mine.safetensors -c 1 -o a.png
    [ "$("$NALAGEN" info mine.safetensors --json | json_lines "x['complete']" && echo yes)" = yes ]
    run -3 quick -m ./mine.safetensors -c 1 -o b.png # a path is meant as it is
    cp "$vae" share/nalagen/tae2.safetensors
    "$NALAGEN" sample --vae tae2.safetensors --size 64 --sampler euler --steps 2 --cfg-scale 1 -c 1 -o c.png
    cmp a.png c.png || [ -s c.png ]
    run -3 env -u XDG_DATA_HOME HOME=/nowhere "$NALAGEN" sample -m mine.safetensors -o d.png
    [[ $output == *"mine.safetensors was not found"*"looked for: mine.safetensors"*"in: /nowhere/.local/share/nalagen, "* ]]
    run env NALAGEN_WEIGHTS="$PWD/beside" "$NALAGEN" eval share --ref share
    [[ $output == *"Inception"*"pt_inception-2015-12-05-6726825d.pth, inception-2015-12-05.safetensors"*"$PWD/beside, $XDG_DATA_HOME/nalagen"* ]]
}

@test "an autoencoder in the current folder is found beside a model that lies there" {
    cp "$NL_SOURCE_DIR/tests/golden/torch/dit.pt" DiT.pt
    run -3 "$NALAGEN" sample -m DiT.pt -c 3 --steps 2 --cfg-scale 1 --device cpu -o a.png
    [[ $output == *"the autoencoder of DiT.pt was not found"*"in: ., "* ]]
    cp "$NL_SOURCE_DIR/tests/golden/torch/vae_compvis.ckpt" vae-ft-mse-840000-ema-pruned.ckpt
    "$NALAGEN" sample -m DiT.pt -c 3 --steps 2 --cfg-scale 1 --device cpu -o a.png -q
    is_png a.png
}
