# SPDX-License-Identifier: MIT
# Names: bytes that are not UTF-8, letters of any script, what pictures and classes are called.
load helper

# A PNG of one colour, 16 x 16.
picture() {
    python3 - "$@" <<'END'
import os, struct, sys, zlib
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
for i, path in enumerate(sys.argv[1:]):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    rows = (b'\0' + bytes([7 * i % 256, 40, 9]) * 16) * 16
    open(path, 'wb').write(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 16, 16, 8, 2, 0, 0, 0))
                           + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))
END
}

encode() {
    "$NALAGEN" encode --device cpu --vae none --size 16 "$@"
}

# A data set of the folders of $1 and a model of it, in folders that are named by $2.
train_on() {
    encode "$1" -o "data-$2" -q
    "$NALAGEN" train -m SiT-1x32x1/4 -d "data-$2" -o "run-$2" --steps 2 --batch 4 --device cpu -q
}

@test "bytes that are not UTF-8: data, a model, pictures and an archive of them are read back" {
    local lion
    lion=$(printf 'l\363n')
    picture "set/$lion/0.png" "set/$lion/1.png" set/b/2.png set/b/3.png
    printf '\xff\xd8\xff cut' >"set/b/$lion.jpg"
    train_on set "$lion"
    run -0 encode set -o "data-$lion"
    [[ $output == *"there already"* ]]
    # Python's surrogateescape: json and os.fsencode give the bytes.
    python3 - "data-$lion/dataset.json" <<'END'
import json, os, sys
data = json.load(open(sys.argv[1]))
assert [[os.fsencode(x) for x in pair] for pair in data['classes']] == [[b'b', b'b'], [b'l\xf3n', b'l\xf3n']], data
assert os.fsencode(data['skipped'][0][0]) == b'b/l\xf3n.jpg', data
END
    python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "run-$lion/config.json"
    "$NALAGEN" sample -m "run-$lion/model.safetensors" -c "$lion" --steps 1 -o "$lion.png" --json |
        json_lines 'x["file"] == "l\udcf3n.png" and x["class_name"] == "l\udcf3n" and x["class"] == 1'
    "$NALAGEN" info --json "$lion.png" | json_lines 'x["parameters"]["class_name"] == "l\udcf3n"'
    cp "run-$lion/model.safetensors" "$lion.safetensors"
    "$NALAGEN" sample -m "$lion.safetensors" -c "$lion" --steps 1 -o named.png -q
    "$NALAGEN" sample --from named.png -o again.png -q
    cmp named.png again.png
    run -0 "$NALAGEN" sample -m "$lion.safetensors" -c "$lion" --steps 1 -o named.png --resume
    "$NALAGEN" sample -m "$lion.safetensors" -c "$lion" -n 4 --steps 1 -o "$lion.npz" -q
    python3 -c '
import json, os, sys, zipfile
facts = json.loads(zipfile.ZipFile(sys.argv[1]).comment)
assert os.fsencode(facts["model"]) == b"l\xf3n.safetensors", facts' "$lion.npz"
    "$NALAGEN" info --json "$lion.safetensors" | json_lines 'x["config"]["class_names"] == ["b", "l\udcf3n"]'
}

@test "bytes that are not UTF-8 in requests, options and their answers" {
    local lion
    lion=$(printf 'l\363n')
    picture "set/$lion/0.png" set/b/2.png
    train_on set "$lion"
    echo '{"class": "l\udcf3n", "steps": 1, "out": "\udcf3.png", "id": "\udcff"}' |
        "$NALAGEN" sample -m "run-$lion/model.safetensors" --requests - >answers
    json_lines 'x["id"] == "\udcff" and x["pictures"][0]["file"] == "\udcf3.png"' <answers
    [ -f "$(printf '\363.png')" ]
    echo '{"data": "data-l\udcf3n", "out": "run2-l\udcf3n"}' >options.json
    "$NALAGEN" train -m SiT-1x32x1/4 --options options.json --steps 1 --batch 2 --device cpu -q
    [ -f "run2-$lion/done" ]
}

@test "an evaluation of a run whose names are not UTF-8 is known the next time" {
    local lion
    lion=$(printf 'l\363n')
    need_inception
    picture "set/$lion/"{0..65}.png
    train_on set "$lion"
    for _ in 1 2; do
        "$NALAGEN" eval --watch "run-$lion" --once --ref "set/$lion" -w "$inception" --features pool_64 \
            --metrics fid -n 66 --steps 1 --device cpu -q
    done
    [ "$(wc -l <"run-$lion/metrics.jsonl")" -eq 1 ]
    json_lines 'x["evaluation"]["reference"] == "set/l\udcf3n"' <"run-$lion/metrics.jsonl"
}
