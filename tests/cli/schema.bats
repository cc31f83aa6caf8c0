# SPDX-License-Identifier: MIT
# docs/sample.schema.json and docs/json.schema.json: what requests take and what --json prints, as the program has it.
load helper

fits() {
    python3 "$NL_SOURCE_DIR/tests/json_schema.py" "$NL_SOURCE_DIR/docs/$1.schema.json" "$2"
}

@test "docs/sample.schema.json is what the table of options says (nalagen generate-schema >docs/sample.schema.json)" {
    "$NALAGEN" generate-schema >now.json
    python3 "$NL_SOURCE_DIR/tests/json_schema.py" --same now.json "$NL_SOURCE_DIR/docs/sample.schema.json"
    run -7 bash -c '"$NALAGEN" generate-schema >/dev/full'
    # a key more, a key less, another type: seen
    for change in 'd["request"]["properties"]["more"] = {}' 'del d["picture"]["properties"]["seed"]' \
        'd["answer"]["properties"]["line"]["type"] = "string"'; do
        python3 -c "
import json
s = json.load(open('now.json'))
d = s['\$defs']
$change
json.dump(s, open('other.json', 'w'))"
        run python3 "$NL_SOURCE_DIR/tests/json_schema.py" --same now.json other.json
        [ "$status" -ne 0 ]
    done
}

@test "requests, answers and pictures" {
    "$MAKE_MODEL" tiny.safetensors >/dev/null
    printf '%s\n' '{"id": [1, {"a": 2}], "class": [0, "1"], "n": 2, "seed": "18446744073709551615", "out": "a/", "steps": 1, "cfg_scale": 1}' \
        '{"class": 0, "out": "b.npz", "n": 2, "steps": 1, "cfg_scale": 1}' >good
    fits sample request <good
    "$NALAGEN" sample -m tiny.safetensors --device cpu --requests good -q >answers
    fits sample answer <answers
    "$NALAGEN" sample -m tiny.safetensors --device cpu --requests - -q <<<'{"clas": 1}' >answers || true
    fits sample answer <answers
    json_lines "x['code'] == 2 and 'clas' in x['error']" <answers
    run fits sample request <<<'{"clas": 1}'
    [ "$status" -ne 0 ]
    "$NALAGEN" sample -m tiny.safetensors --device cpu -n 2 --steps 2 --cfg-scale 1 -o c/ --json -q | fits sample picture
    "$NALAGEN" sample -m tiny.safetensors --device cpu -n 2 --steps 2 --cfg-scale 1 -o d.npz --json -q | fits sample picture
    "$NALAGEN" sample -m tiny.safetensors --device cpu -n 2 --steps 2 --cfg-scale 1 --grid 1x2 -o e.png --json -q | fits sample picture
}

@test "reconstruct and decode" {
    [ -f "$vae" ] || skip "the shipped weights are not in this checkout"
    numpy "
rng = np.random.default_rng(0)
np.savez('in.npz', rng.integers(0, 255, (2, 16, 16, 3), dtype=np.uint8))
np.save('z.npy', rng.standard_normal((2, 4, 2, 2)))"
    "$NALAGEN" reconstruct in.npz -o out.npz --vae "$vae" --json -q | fits json reconstruct
    "$NALAGEN" decode z.npy -o z.npz --vae "$vae" --json -q | fits json decode
}

@test "eval and nearest" {
    need_inception
    numpy "
rng = np.random.default_rng(0)
for name, n in ('a', 70), ('b', 66):
    np.savez(name + '.npz', rng.integers(0, 256, (n, 6, 8, 3)).repeat(4, 1).repeat(4, 2).astype(np.uint8))"
    "$NALAGEN" eval -w "$inception" --features pool_64 --metrics fid,precision,recall,kid --json -q a.npz --ref b.npz | fits json eval
    "$NALAGEN" nearest -w "$inception" --features pool_64 --json -q a.npz --ref b.npz | fits json nearest
}

@test "likelihood and average" {
    one_colour
    "$NALAGEN" train -m SiT-1x64x1/8 -d data -o run --steps 24 --snapshot-every 2 --batch 4 --sample-every 0 --device cpu -q
    "$NALAGEN" likelihood -m run/model.safetensors -d data -n 2 --steps 2 --device cpu --json -q | fits json likelihood
    "$NALAGEN" average run --sigma 0.15 -o a.safetensors --json -q | fits json average
}
