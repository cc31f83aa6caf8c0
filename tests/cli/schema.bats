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

@test "every command that has --json has a schema" {
    local command found=
    for command in $("$NALAGEN" --help | sed -n 's/^  \([a-z]\+\) .*/\1/p'); do
        "$NALAGEN" "$command" --help all | grep -q -- '--json' && found+="$command "
    done
    [[ $found == *eval*info* ]]
    python3 - $found <<'END'
import json, os, sys
definitions = json.load(open(os.environ['NL_SOURCE_DIR'] + '/docs/json.schema.json'))['$defs']
without = [command for command in sys.argv[1:] if command not in definitions and command != 'sample']
assert not without, without
END
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

# Each of the files fits one kind, which is $1.
describes() {
    local kind=$1 file
    shift
    for file in "$@"; do
        "$NALAGEN" info "$file" --json >described
        fits json "$kind" <described
        fits json info <described
    done
}

@test "info" {
    need_inception
    "$MAKE_MODEL" tiny.safetensors >/dev/null
    "$MAKE_MODEL" tiny.pt dit >/dev/null
    one_colour
    "$NALAGEN" train -m SiT-1x32x2/2 -d data -o run --steps 2 -b 4 --val data --val-every 1 --sample-every 0 --device cpu -q
    "$NALAGEN" sample -m tiny.safetensors --device cpu -n 2 --steps 2 --cfg-scale 1 -o a/ --latents l.npy -q >/dev/null
    "$NALAGEN" sample -m tiny.safetensors --device cpu -n 2 --steps 2 --cfg-scale 1 -o b.npz -q
    "$NALAGEN" stats b.npz -o ref.npz -w "$inception" --allow-small -q
    describes info_checkpoint tiny.safetensors tiny.pt run/model.safetensors run/checkpoints/*.safetensors "$inception"
    [ ! -f "$vae" ] || describes info_checkpoint "$vae"
    "$NALAGEN" info run/model.safetensors --verify --json | fits json info_checkpoint
    describes info_shard data/*.safetensors
    describes info_dataset data
    describes info_run run
    describes info_archive b.npz ref.npz
    describes info_latents l.npy
    describes info_picture a/*.png
    describes info_source a
    "$NALAGEN" info --device cpu --json | fits json info_device
    # one kind is no other
    run fits json info_run <described
    [ "$status" -ne 0 ]
    run fits json info <<<'{"file": "a", "kind": "checkpoint"}'
    [ "$status" -ne 0 ]
}

@test "analyze" {
    "$MAKE_MODEL" tiny.safetensors >/dev/null
    "$MAKE_MODEL" tiny.pt dit >/dev/null
    "$NALAGEN" analyze tiny.safetensors -c 0 --steps 4 --device cpu --json -q -o a | fits json analyze
    "$NALAGEN" analyze tiny.pt -c 0 --steps 4 --device cpu --json -q -o b | fits json analyze
    fits json analyze <<<"$(tr -d '\n' <a/analysis.json)"
}
