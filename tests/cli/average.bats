# SPDX-License-Identifier: MIT
# Averages chosen afterwards: snapshots of a run, `nalagen average`, and what its model says of itself.
load helper

@test "any average comes out of a run's snapshots, and is a model" {
    one_colour
    "$NALAGEN" train -m SiT-1x64x1/8 -d data -o run --steps 24 --snapshot-every 2 --batch 4 --sample-every 0 --device cpu -q
    [ "$(ls run/snapshots/sigma-0.05 | wc -l)" -eq 12 ]
    [ "$(ls run/snapshots/sigma-0.1 | wc -l)" -eq 12 ]
    "$NALAGEN" info --json run/snapshots/sigma-0.1/step-0000012.safetensors |
        json_lines "x['complete'] and x['config']['ema_sigma_rel'] == 0.1 and x['config']['images_seen'] == 48"
    "$NALAGEN" average run --sigma 0.15 -o a.safetensors --json |
        json_lines "x['sigma_rel'] == 0.15 and x['step'] == 24 and x['images'] == 96 and x['snapshots'] == 24 and x['error'] < 0.03"
    "$NALAGEN" info --json a.safetensors |
        json_lines "x['complete'] and x['config']['ema_sigma_rel'] == 0.15 and 'ema_decay' not in x['config'] and 'BF16' in x['tensors']"
    "$NALAGEN" info a.safetensors | grep -q "ema_sigma_rel"
    "$NALAGEN" sample -m a.safetensors --steps 2 --device cpu -o a.png -q
    is_png a.png
    run -7 "$NALAGEN" average run -o a.safetensors
    [[ $output == *"--force"* ]]
    run -0 "$NALAGEN" average run --step 12 --sigma 0.07 --dtype f32 -f -o a.safetensors
    [[ $output == *"width 0.07 of step 12 (48 images), from 24 snapshots"* ]]
    "$NALAGEN" info --json a.safetensors | json_lines "set(x['tensors']) == {'F32'}"
}

@test "what average refuses" {
    mkdir empty
    run -3 "$NALAGEN" average empty -o a.safetensors
    [[ $output == *"no snapshots of averages"*"--snapshot-every"* ]]
    run -3 "$NALAGEN" average none -o a.safetensors
    [[ $output == *"none: expected the folder of a training run"* ]]
    run -2 "$NALAGEN" average empty
    [[ $output == *"--out"* ]]
    run -2 "$NALAGEN" average -o a.safetensors
    [[ $output == *"the folder of a run"* ]]
    run -2 "$NALAGEN" average empty --sigma 0.3 -o a.safetensors
    [[ $output == *"0.288"* ]]
    [ ! -e a.safetensors ]
}

@test "--patience ends a run by its held-out loss, and its model is the best average" {
    one_colour
    run -2 "$NALAGEN" train -m SiT-1x64x1/8 -d data -o run --steps 9 --patience 2 --device cpu
    [[ $output == *"give --val"* ]]
    [ ! -e run ]
    "$NALAGEN" train -m SiT-1x64x1/8 -d data -o run --steps 400 --lr 0.3 --ema 0.5 --batch 4 --val data --val-every 1 --val-count 8 \
        --patience 3 --sample-every 0 --device cpu 2>err
    grep -q "the best validation loss, .*: the run is over" err
    [ -f run/done ]
    read -r best last < <(python3 -c '
import json
lines = [json.loads(line) for line in open("run/metrics.jsonl")]
print(min(lines, key=lambda x: x["val_loss"])["step"], lines[-1]["step"])')
    [ "$last" -eq $((best + 3)) ]
    "$NALAGEN" info --json run/model.safetensors | json_lines "x['config']['images_seen'] == 4 * $best"
    "$NALAGEN" info --json --key best run/checkpoints/step-*"$last".safetensors | json_lines "x['complete']"
}
