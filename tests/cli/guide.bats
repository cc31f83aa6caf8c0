# SPDX-License-Identifier: MIT
# Autoguidance at the command line: another model guides; what is recorded, refused, made again.
load helper

# model.safetensors and guide.safetensors: two checkpoints of one small run of pixels, and others that do not fit.
models() {
    one_colour
    "$NALAGEN" train -m SiT-2x64x2/8 -d data -o run --steps 12 --lr 5e-3 --ema 0.5 --batch 8 --save-every 4 --keep 0 \
        --sample-every 0 --device cpu -q
    cp run/model.safetensors model.safetensors
    cp run/checkpoints/step-0000004.safetensors guide.safetensors
}

sample() {
    "$NALAGEN" sample -m model.safetensors --steps 4 -c 3 --device cpu --dtype f32 -q "$@"
}

@test "a guide changes pictures, says so in them, and makes them again" {
    models
    sample --cfg-scale 1 --latents plain.npy -o plain.png
    sample --guide guide.safetensors --latents guided.npy -o guided.png
    sample --guide guide.safetensors --guide-scale 2 --cfg-scale 1 --latents same.npy -o same.png
    sample --guide guide.safetensors --guide-scale 1 --cfg-scale 1 --latents off.npy -o off.png
    sample --guide guide.safetensors --guide-scale 3 --guide-interval 2,3 --cfg-scale 1 --latents outside.npy -o outside.png
    sample --guide model.safetensors --guide-scale 3 --latents itself.npy -o itself.png
    sample --guide guide.safetensors --cfg-scale 3 --latents both.npy -o both.png
    cmp guided.npy same.npy
    for name in off outside itself; do cmp plain.npy $name.npy; done
    for name in guided both; do ! cmp -s plain.npy $name.npy; done
    ! cmp -s guided.npy both.npy || false
    "$NALAGEN" info --json guided.png >facts
    python3 - <<'END'
import hashlib, json
text = open('facts').read()
facts = json.loads(text)
made = facts.get('parameters', facts)
assert '"guide": "guide.safetensors"' in text or '"guide":"guide.safetensors"' in text, text
assert hashlib.sha256(open('guide.safetensors', 'rb').read()).hexdigest() in text
END
    grep -q '"guide_scale": *2' facts
    "$NALAGEN" sample --from guided.png --latents again.npy -o again.png --device cpu --dtype f32 -q
    cmp guided.npy again.npy
    # another file under its name is noticed, none is refused
    cp run/checkpoints/step-0000008.safetensors guide.safetensors
    run -0 "$NALAGEN" sample --from guided.png -o other.png --device cpu
    [[ $output == *"another guide made it"* ]]
    rm guide.safetensors
    run -3 "$NALAGEN" sample --from guided.png -o none.png --device cpu
    [[ $output == *"guided.png was made with --guide guide.safetensors, which is neither here nor beside it"* ]]
    run -3 "$NALAGEN" sample --from guided.png --guide none.safetensors -o none.png --device cpu
    [[ $output == *"none.safetensors was not found"* ]]
}

@test "requests have the scale, eval and archives the guide" {
    models
    sample --guide guide.safetensors --guide-scale 1.5 -o one.png --no-metadata
    sample --cfg-scale 1 -o two.png --no-metadata
    printf '%s\n' '{"class": 3, "steps": 4, "guide_scale": 1.5, "out": "a.png", "no_metadata": true}' \
        '{"class": 3, "steps": 4, "guide_scale": 1, "cfg_scale": 1, "out": "b.png", "no_metadata": true}' \
        '{"class": 3, "guide_scale": -1, "out": "c.png"}' |
        "$NALAGEN" sample -m model.safetensors --guide guide.safetensors --requests - --device cpu --dtype f32 -q >answers || true
    cmp a.png one.png
    cmp b.png two.png
    [ ! -e c.png ]
    grep -q '"guide_sha256"' answers
    sample -n 70 -c balanced -o plain.npz
    sample -n 70 -c balanced --guide guide.safetensors -o guided.npz
    ! cmp -s plain.npz guided.npz || false
    need_inception
    "$NALAGEN" eval -w "$inception" --features pool_64 --metrics fid --json -q --device cpu -m model.safetensors --guide guide.safetensors \
        -n 70 -c balanced --steps 4 --ref guided.npz >report
    json_lines "abs(x['metrics']['fid_64']) < 1e-3" <report
    grep -q '"guide_sha256"' report
}

@test "what cannot guide is refused by name" {
    models
    run -2 sample --guide-scale 2 -o a.png
    [[ $output == *"--guide FILE"* ]]
    "$MAKE_MODEL" five.safetensors
    run -2 sample --guide five.safetensors -o a.png
    [[ $output == *"five.safetensors cannot guide model.safetensors"*"the guide is a smaller or an earlier model"* ]]
    "$NALAGEN" train -m DiT-1x64x1/8 -d data -o dit --steps 1 --batch 2 --sample-every 0 --device cpu -q
    run -2 sample --guide dit/model.safetensors -o a.png
    [[ $output == *"one is a DiT, the other a SiT"* ]]
    echo '{"path": "gvp"}' >gvp.json
    "$NALAGEN" train -m SiT-1x64x1/8 --config gvp.json -d data -o gvp --steps 1 --batch 2 --sample-every 0 --device cpu -q
    run -2 sample --guide gvp/model.safetensors -o a.png
    [[ $output == *'another "path"'* ]]
    run -3 sample --guide nothing.safetensors -o a.png
    [[ $output == *"nothing.safetensors"* ]]
    # another network of the same latents and classes
    "$NALAGEN" train -m NaLaSiT-1x32x1/4 -d data -o small --steps 1 --batch 2 --sample-every 0 --device cpu -q
    sample --guide small/model.safetensors -o small.png
    is_png small.png
}

@test "where nothing was learnt without classes nothing is guided, in pictures and in a run's grids" {
    one_colour
    one=("$NALAGEN" train -m SiT-1x32x1/4 -d data --steps 2 --batch 8 --device cpu)
    "${one[@]}" --label-dropout 0 -o run -q
    "$NALAGEN" sample -m run -c 3 --steps 2 --json -q -o a.png | json_lines 'x["cfg_scale"] == 1'
    run -2 "$NALAGEN" sample -m run -c 3 --cfg-scale 2 -o b.png
    [[ $output == *"has no null class"* ]]
    run -2 "${one[@]}" --label-dropout 0 --cfg-scale 2 -o other
    [[ $output == *"the grids of the run: "*"has no null class"* ]]
    [ ! -e other/log.jsonl ]
    "$NALAGEN" encode set -o plain --unconditional --vae none --device cpu -q
    "${one[@]}" -d plain -o unconditional -q
    run -2 "$NALAGEN" sample -m unconditional --cfg-scale 2 -o c.png
    [[ $output == *"the model has no classes"* ]]
}
