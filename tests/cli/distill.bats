# SPDX-License-Identifier: MIT
# Flow maps: distilled from a model that was trained before, sampled in a few evaluations, refused where they do not fit.

load helper

distilled() {
    one_colour
    "$NALAGEN" train -m NaLaSiT-2x32x1/4 -d data -o teacher --steps 2 --batch 8 --device cpu -q
    "$NALAGEN" distill --teacher teacher/model.safetensors -d data -o student --steps 4 --batch 8 --device cpu -q "$@"
}

@test "distill makes a flow map that is sampled in two evaluations, and says so" {
    distilled
    "$NALAGEN" info student/model.safetensors --json | json_lines 'x["config"]["flow_map"] == 2 and x["config"]["guided"]'
    run --separate-stderr "$NALAGEN" sample -m student/model.safetensors -c 3 --steps 2 -o a.png --json
    [ "$status" -eq 0 ]
    json_lines 'x["evaluations"] == 2 and x["sampler"] == "flow"' <<<"$output"
    "$NALAGEN" sample --from a.png -m student/model.safetensors -o b.png -q
    cmp a.png b.png
    "$NALAGEN" sample -m student/model.safetensors -c 3 --sampler heun --steps 3 -o many.png -q
}

@test "a distillation resumes exactly" {
    distilled --save-every 2 --keep 0
    cp student/model.safetensors whole.safetensors
    rm student/checkpoints/step-0000004.safetensors student/model.safetensors student/done
    "$NALAGEN" distill --teacher teacher/model.safetensors -d data -o student --steps 4 --batch 8 --device cpu -q
    cmp whole.safetensors student/model.safetensors
}

@test "without data the student learns from what the teacher draws, once" {
    one_colour
    "$NALAGEN" train -m NaLaSiT-2x32x1/4 -d data -o teacher --steps 2 --batch 8 --device cpu -q
    draw=("$NALAGEN" distill --teacher teacher/model.safetensors --teacher-samples 20 -o student --steps 2 --batch 8 --device cpu)
    "${draw[@]}"
    python3 -c 'import json; d = json.load(open("student/latents/dataset.json")); assert d["count"] == 20 and len(d["classes"]) == 10, d'
    rm -r student/checkpoints student/model.safetensors student/done student/log.jsonl
    before=$(stat -c %y student/latents/dataset.json)
    "${draw[@]}" -q
    [ "$before" = "$(stat -c %y student/latents/dataset.json)" ]
    rm -r student/checkpoints student/model.safetensors student/done student/log.jsonl
    run "${draw[@]}" --seed 2
    [ "$status" -eq 2 ]
    [[ $output == *"were made otherwise"* ]]
}

@test "with distribution matching the log has both losses, a dry run its time, and the folder its options" {
    distilled --match 0.5 --match-from 0 --fake-updates 2 --log-every 1
    json_lines 'x["fake_loss"] > 0 and (x["step"] == 1 or x["match_loss"] > 0)' <student/log.jsonl
    python3 -c 'import json; o = json.load(open("student/config.json"))["training"]; assert o["match"] == 0.5 and o["fake_updates"] == 2, o'
    "$NALAGEN" sample -m student/model.safetensors -c 3 --steps 1 -o a.png -q
    "$NALAGEN" sample -m student/checkpoints/step-0000004.safetensors -c 3 --steps 1 -o b.png -q
    run "$NALAGEN" distill --teacher teacher/model.safetensors -d data -o dry --steps 4 --batch 8 --device cpu --match 1 --dry-run
    [ "$status" -eq 0 ]
    [[ $output == *"with distribution matching: "*"s a step, "* ]]
    # one flow map goes on as another, which matches from its first step
    "$NALAGEN" distill --teacher teacher/model.safetensors --init student/model.safetensors -d data -o on --steps 2 --batch 8 --device cpu -q --match 1 --match-from 0
    run "$NALAGEN" distill --teacher teacher/model.safetensors -d data -o student --steps 6 --batch 8 --device cpu -q
    [ "$status" -eq 2 ]
    [[ $output == *"with distribution matching (--match)"* ]]
    run "$NALAGEN" train -m NaLaSiT-2x32x1/4 -d data -o other --match 1
    [ "$status" -eq 2 ]
}

@test "training that begins from a flow map makes an ordinary model, to be guided from without" {
    distilled
    "$NALAGEN" train --init student/model.safetensors -d data -o on --steps 2 --batch 8 --device cpu -q
    "$NALAGEN" info on/model.safetensors --json |
        json_lines 'x["config"].get("flow_map", 0) == 0 and not x["config"].get("guided") and x["config"]["class_dropout_prob"] == 0.1'
    "$NALAGEN" sample -m on/model.safetensors -c 3 --cfg-scale 2 --sampler euler --steps 2 -o a.png -q
    "$NALAGEN" train --init student/model.safetensors -d data -o on --steps 3 --batch 8 --device cpu -q # resumes
    "$NALAGEN" distill --teacher on/model.safetensors -d data -o again --steps 1 --batch 8 --device cpu -q
}

@test "guidance that is inside, other programs' formats and ordinary models are refused by name" {
    distilled
    run "$NALAGEN" sample -m student/model.safetensors -c 3 --cfg-scale 2 -o a.png
    [ "$status" -eq 2 ]
    [[ $output == *"inside this model's weights"* ]]
    run "$NALAGEN" convert student/model.safetensors b.safetensors --format diffusers
    [ "$status" -eq 2 ]
    run "$NALAGEN" sample -m teacher/model.safetensors -c 3 --sampler flow -o a.png
    [ "$status" -eq 2 ]
    [[ $output == *"nalagen distill makes one"* ]]
    run "$NALAGEN" distill --teacher student/model.safetensors -d data -o other --steps 1 --batch 8 --device cpu
    [ "$status" -eq 2 ]
    [[ $output == *"is a flow map itself"* ]]
    run "$NALAGEN" distill -d data -o other --steps 1 --device cpu
    [ "$status" -eq 2 ]
    [[ $output == *"--teacher"* ]]
}
