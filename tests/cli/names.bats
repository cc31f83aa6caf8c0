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

@test "default names of pictures keep letters of any script and never begin with a dash" {
    picture "set/金鱼/0.png" "set/老虎/0.png" "set/Éléphant d'Asie/0.png" 'set/!!/0.png' "set/-- x/0.png" "set/狮 、子/0.png"
    train_on set any
    mkdir out
    cd out
    for class in "金鱼" "老虎" "Éléphant d'Asie" "!!" "-- x" "狮 、子"; do
        "$NALAGEN" sample -m ../run-any/model.safetensors -c "name:$class" --steps 1 -q
    done
    [ -f "金鱼-seed0.png" ]
    [ -f "老虎-seed0.png" ]
    [ -f "Éléphant-d-asie-seed0.png" ]
    [ -f "class0-seed0.png" ]
    [ -f "x-seed0.png" ]
    [ -f "狮-子-seed0.png" ]
    [ "$(ls | wc -l)" -eq 6 ]
}

@test "two names that differ in a byte that is not UTF-8 give two pictures; a long one is cut between characters" {
    local long
    long=$(printf '金%.0s' {1..80})
    picture "set/$(printf 'l\351')/0.png" "set/$(printf 'l\352')/0.png" "set/$long/0.png"
    train_on set any
    mkdir out
    cd out
    "$NALAGEN" sample -m ../run-any/model.safetensors -c 0 --steps 1 -q
    "$NALAGEN" sample -m ../run-any/model.safetensors -c 1 --steps 1 -q
    "$NALAGEN" sample -m ../run-any/model.safetensors -c 2 --steps 1 -q --json |
        json_lines 'x["class_name"] == "金" * 80 and x["file"] == "金" * 53 + "-seed0.png"'
    [ "$(ls | wc -l)" -eq 3 ]
}

@test "class names as CSV; what does not fit is named, all of it" {
    picture set/n01/0.png set/n02/0.png "set/two words/0.png" set/n04/0.png set/n05/0.png set/n06/0.png
    cat >names.csv <<'END'
folder,name
n01,"tench, ""Tinca"" tinca"
"two words",church
"n02","crane"
n04,
n98 gone
"n99","gone too, long ago"
n05;semicolon
n01,twice
END
    run -0 encode set -o data --class-names names.csv
    [[ $output == *"names.csv: lines without a folder: folder, n98, n99, n05;semicolon"* ]]
    [[ $output == *"names.csv: no name for the folders: n04, n05, n06"* ]]
    [[ $output == *"names.csv: folders with a second line, of which the first counts: n01"* ]]
    json_lines 'x["classes"] == [["n01", "tench, \"Tinca\" tinca"], ["n02", "crane"], ["n04", "n04"],
        ["n05", "n05"], ["n06", "n06"], ["two words", "church"]]' < <(tr -d '\n' <data/dataset.json)
    printf '\xff\xfen\0000\0001\0' >utf16.txt
    printf '\n  [["n01", "tench"]]' >list.json
    for file in utf16.txt list.json; do
        run -3 encode set -o other --class-names $file
        [[ $output == *"$file"*"expected text"* ]]
    done
}

@test "a list of names for many folders, and many lines, takes no longer than reading them" {
    mkdir set
    (cd set && seq -f 'c%06g' 0 19999 | xargs mkdir)
    picture set/c000000/0.png
    awk 'BEGIN { for (i = 0; i < 200000; i++) printf "c%06d name of %d\n", i, i }' >names.txt
    SECONDS=0
    encode set -o data --class-names names.txt --empty-classes 2>warnings
    [ "$SECONDS" -lt 20 ]
    grep -q 'lines without a folder: and [0-9]* more' warnings
    [ "$(grep -c 'lines without' warnings)" -lt 20 ]
    grep -q '"c019999", *"name of 19999"' data/dataset.json
}

@test "folders named by numbers whose order as text is another are warned of" {
    for i in {0..11}; do picture "set/$i/0.png" "padded/$(printf %02d "$i")/0.png"; done
    run -0 encode set -o data
    [[ $output == *"warning"*"class 2 is the folder 10"* ]]
    run -0 encode padded -o other
    [[ $output != *warning* ]]
    picture set/x/0.png
    run -0 encode set -o mixed
    [[ $output != *warning* ]]
}

@test "a number in JSON is the class of that number, also where another one is called so, or none is there" {
    for i in {0..10}; do picture "set/$i/0.png"; done
    for kind in '' --unconditional; do
        encode set -o "data$kind" $kind
        "$NALAGEN" train -m SiT-1x32x1/4 -d "data$kind" --steps 1 --batch 4 --sample-every 0 --device cpu -o "run$kind" -q
    done
    few=(--sampler euler --steps 2 --device cpu -q)
    "$NALAGEN" sample -m run -c 10,null -n 2 "${few[@]}" -o %d.png # class 2, and the null class
    "$NALAGEN" sample -m run--unconditional "${few[@]}" -o 2.png
    "$NALAGEN" sample -m run -c 10 --walk 3 --to-class 2 "${few[@]}" --animate 10 -o 3.png
    for i in 0 1 2 3; do
        "$NALAGEN" sample --from $i.png -q -o again.png --force
        cmp $i.png again.png
    done
    run --separate-stderr "$NALAGEN" sample --requests - -m run "${few[@]}" <<<'{"class": 2, "walk": 2, "to_class": 4, "out": "a/"}
{"class": [2, "2", 11], "out": "b%d.png"}
{"class": 12, "out": "c.png"}'
    [ "$status" -eq 2 ]
    json_lines 'x["line"] != 1 or x["pictures"][0]["class"] == 2 and x["pictures"][0]["to_class"] == 4' <<<"$output"
    json_lines 'x["line"] != 2 or [p["class"] for p in x["pictures"]] == [2, 3, 11]' <<<"$output"
    json_lines 'x["line"] != 3 or "class number 12: expected a number from 0 to 11" in x["error"]' <<<"$output"
    run "$NALAGEN" sample -m run -c 0,1 "${few[@]}" -o d/
    [[ $output != *warning* ]] # they have these numbers, too
}

@test "a hundred thousand entries of classes are read in a second or two" {
    "$MAKE_MODEL" tiny.safetensors
    python3 -c "
import json
n = 100000
for entry in [i % 2 for i in range(n)], ['0'] * n:
    print(json.dumps({'class': entry, 'n': 1, 'steps': 1, 'cfg_scale': 1, 'out': 'a.png', 'force': True}))" >in.jsonl
    SECONDS=0
    "$NALAGEN" sample -m tiny.safetensors --requests in.jsonl >answers
    [ "$SECONDS" -lt 15 ]
    json_lines 'x["status"] == "ok"' <answers
}
