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
    json_lines 'x["evaluations"] == 2 and x["sampler"] == "flow-sde"' <<<"$output"
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
    # an unguided teacher draws too, and what it is asked for is its own scale
    for scale in 1 0; do
        "$NALAGEN" distill --teacher teacher/model.safetensors --teacher-samples 10 --teacher-cfg $scale -o scale$scale --steps 1 --batch 8 --device cpu -q
    done
    ! cmp -s scale0/latents/latents-00000.npy scale1/latents/latents-00000.npy || false
    # another process at work in the folder is seen before anything is drawn
    mkdir busy
    run flock busy "${draw[@]}" -o busy
    [ "$status" -eq 7 ]
    [[ $output == *"another process is writing there"* ]]
    [ ! -e busy/latents ]
    # a teacher that cannot be one is refused before it draws
    "$NALAGEN" train -m DiT-1x32x1/8 -d data -o dit --steps 1 --batch 8 --device cpu -q
    run "$NALAGEN" distill --teacher dit --steps 2 --device cpu -o no
    [ "$status" -eq 2 ]
    [[ $output == *"dit/model.safetensors: a flow map is made of a SiT"*"this is a DiT"* ]]
    [ ! -e no/latents ]
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

@test "one step alone is learnt from a flow map, and is no other way to a picture" {
    distilled
    "$NALAGEN" distill --teacher student/model.safetensors --teacher-cfg 1 -d data -o one --steps 3 --batch 8 --device cpu -q --match 1 --one-step --log-every 1
    json_lines 'x["fake_loss"] > 0 and x["loss"] == x["match_loss"] and (x["step"] == 1 or x["loss"] > 0)' <one/log.jsonl
    "$NALAGEN" plot one -o one.svg -q
    "$NALAGEN" info one/model.safetensors --json | json_lines 'x["config"]["flow_map"] == 2 and x["config"]["one_step"] == "alone" and x["config"]["guided"]'
    "$NALAGEN" sample -m one/model.safetensors -c 3 -o a.png --json | json_lines 'x["evaluations"] == 1 and x["steps"] == 1'
    "$NALAGEN" sample --from a.png -m one/model.safetensors -o b.png -q
    cmp a.png b.png
    for other in "--steps 2" "--sampler heun"; do
        # shellcheck disable=SC2086
        run "$NALAGEN" sample -m one/model.safetensors -c 3 $other -o c.png
        [ "$status" -eq 2 ]
        [[ $output == *"makes its pictures in one step"* ]]
    done
    # what it knows no more: velocities for others to learn from, steps between; what stays: weights to begin with
    run "$NALAGEN" distill --teacher one/model.safetensors --teacher-cfg 1 -d data -o no --steps 1 --batch 8 --device cpu -q --match 1 --one-step
    [ "$status" -eq 2 ]
    [[ $output == *"knows no velocities"* ]]
    "$NALAGEN" distill --teacher teacher/model.safetensors --init one/model.safetensors -d data -o again --steps 1 --batch 8 --device cpu -q
    "$NALAGEN" train --init one/model.safetensors -d data -o on --steps 1 --batch 8 --device cpu -q
    for run in again on; do
        "$NALAGEN" info $run/model.safetensors --json | json_lines '"one_step" not in x["config"]'
    done
}

@test "one file holds the flow map and its one step, each for what it knows" {
    distilled
    "$NALAGEN" distill --teacher student/model.safetensors --teacher-cfg 1 -d data -o one --steps 3 --batch 8 --lr 0.01 --device cpu -q --match 1 --one-step
    "$NALAGEN" convert student/model.safetensors both.safetensors --one-step one -q
    "$NALAGEN" info both.safetensors --json | json_lines 'x["complete"] and x["config"]["one_step"] == "beside"'
    draw() { # MODEL OUT OPTION...
        "$NALAGEN" sample -m "$1" --latents "$2.npy" -c 3 --seed 1 --vae none -q "${@:3}"
    }
    draw both.safetensors whole --steps 1
    draw one whole-alone
    cmp whole.npy whole-alone.npy
    draw both.safetensors walk --steps 1 --walk 3 --to-class 4
    draw one walk-alone --walk 3 --to-class 4
    cmp walk.npy walk-alone.npy
    for how in "--sampler flow --steps 4" "--sampler heun --steps 2" "--steps 3"; do
        steps=${how##* }
        # shellcheck disable=SC2086
        draw both.safetensors "many$steps" $how
        # shellcheck disable=SC2086
        draw student "alone$steps" $how
        cmp "many$steps.npy" "alone$steps.npy"
    done
    # int8 and back: what is kept is kept, in both sets
    "$NALAGEN" convert both.safetensors kept.safetensors -q
    cmp both.safetensors kept.safetensors
    "$NALAGEN" convert both.safetensors int8.safetensors --dtype int8 -q
    "$NALAGEN" convert one/model.safetensors one8.safetensors --dtype int8 -q
    draw int8.safetensors whole8 --steps 1
    draw one8.safetensors whole8-alone
    cmp whole8.npy whole8-alone.npy
    # without it
    echo '{"one_step": "none"}' >none.json
    "$NALAGEN" convert both.safetensors flow.safetensors --config none.json -q
    "$NALAGEN" convert student/model.safetensors student.safetensors -q
    cmp flow.safetensors student.safetensors
    # another one step in place of the first
    "$NALAGEN" convert both.safetensors other.safetensors --one-step one8.safetensors -q
    draw other.safetensors other --steps 1
    cmp other.npy whole8.npy
    # it teaches as the flow map does, and what begins from it is one set of weights
    "$NALAGEN" distill --teacher both.safetensors --teacher-cfg 1 -d data -o twice --steps 3 --batch 8 --lr 0.01 --device cpu -q --match 1 --one-step
    cmp twice/model.safetensors one/model.safetensors
    "$NALAGEN" train --init both.safetensors -d data -o on --steps 1 --batch 8 --device cpu -q
    "$NALAGEN" info on/model.safetensors --json | json_lines '"one_step" not in x["config"]'
}

@test "what is no one step of a flow map's is not held beside it" {
    distilled
    "$NALAGEN" distill --teacher student/model.safetensors --teacher-cfg 1 -d data -o one --steps 1 --batch 8 --device cpu -q --match 1 --one-step
    refused() { # STATUS MESSAGE ARGUMENT...
        run "$NALAGEN" convert "${@:3}" no.safetensors
        [ "$status" -eq "$1" ]
        [[ $output == *"$2"* ]]
        [ ! -e no.safetensors ]
    }
    refused 2 'was not made by distill --one-step ("one_step" is none)' student/model.safetensors --one-step student
    refused 2 'differs from teacher/model.safetensors in "flow_map"' teacher/model.safetensors --one-step one
    refused 2 "only --format nalagen holds" student/model.safetensors --one-step one --format dit
    refused 3 "nowhere" student/model.safetensors --one-step nowhere
    # files that do not hold what they say
    "$NALAGEN" convert student/model.safetensors both.safetensors --one-step one -q
    change() { # IN OUT PYTHON: the header h, its configuration c
        python3 - "$@" <<'PY'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
size, = struct.unpack("<Q", data[:8])
h = json.loads(data[8:8 + size])
c = json.loads(h["__metadata__"]["nalagen"])
exec(sys.argv[3])
h["__metadata__"] = {"nalagen": json.dumps(c)}
text = json.dumps(h).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data[8 + size:])
PY
    }
    while IFS='|' read -r file how message; do
        change "$file" broken.safetensors "$how"
        run "$NALAGEN" sample -m broken.safetensors -c 3 -o no.png
        [ "$status" -eq 3 ]
        [[ $output == *"$message"* ]] || { echo "$output"; false; }
    done <<'EOF'
both.safetensors|c["one_step"] = "none"|holds tensors "one_step", and its configuration does not say so
student/model.safetensors|c["one_step"] = "beside"|the tensors "one_step" are missing
both.safetensors|h["one_step.x_embedder.proj.bias"]["shape"] = [8, 4]|one_step: 1 tensor does not fit NaLaSiT-2x32x1/4
both.safetensors|h["one_step.more"] = h["one_step.x_embedder.proj.bias"]; del h["one_step.x_embedder.proj.bias"]|one_step: 2 tensors do not fit
both.safetensors|c["stored_position"] = True|one_step beside has no pos_embed
EOF
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

@test "internal guidance stays in the student's own middle head, and is not had twice" {
    distilled
    echo '{"middle_head": 1}' >two.json
    "$NALAGEN" train -m NaLaSiT-2x32x1/4 --config two.json -d data -o heads --steps 2 --batch 8 --device cpu -q
    "$NALAGEN" distill --teacher heads/model.safetensors --teacher-cfg 1 --teacher-internal 1.5 --teacher-samples 8 --vae none -o inside --steps 2 --batch 8 --device cpu -q
    "$NALAGEN" info inside/model.safetensors --json | json_lines 'x["config"]["internal_guidance"] == 1.5 and x["config"]["middle_head"] == 1 and x["config"]["guided"]'
    "$NALAGEN" sample -m inside/model.safetensors -c 3 --steps 2 -o b.png -q
    run "$NALAGEN" sample -m inside/model.safetensors -c 3 --internal-guidance 2 -o c.png
    [ "$status" -eq 2 ]
    [[ $output == *"cannot be had twice"* ]]
    "$NALAGEN" train --init inside/model.safetensors -d data -o after --steps 1 --batch 8 --device cpu -q
    "$NALAGEN" info after/model.safetensors --json | json_lines '"internal_guidance" not in x["config"] and "middle_head" not in x["config"]'
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
    # what a configuration cannot give a student, and what training cannot give any model
    while IFS='|' read -r json key; do
        run -2 "$NALAGEN" distill --teacher teacher/model.safetensors --student-config "$json" -d data -o other --steps 1 --device cpu
        [[ $output == *"\"$key\" of the configuration: "*"leave it out"* ]]
    done <<'END'
{"middle_head": 1}|middle_head
{"crop_conditioning": true}|crop_conditioning
{"guided": true}|guided
END
    while IFS='|' read -r json key; do
        run -2 "$NALAGEN" train -m NaLaSiT-2x32x1/4 --config "$json" -d data -o other --steps 1 --device cpu
        [[ $output == *"\"$key\" of the configuration: "*"leave it out"* ]]
    done <<'END'
{"flow_map": 1}|flow_map
{"guided": true}|guided
{"stored_position": true}|stored_position
END
    run "$NALAGEN" distill --teacher teacher/model.safetensors -d data -o other --steps 6 --batch 8 --device cpu --cfg-scale 2 --sample-every 6
    [ "$status" -eq 2 ]
    [[ $output == *"the grids of the run: "*"inside this model's weights"* && $output != *"step 1/6"* ]]
    run "$NALAGEN" distill --teacher teacher/model.safetensors -d data -o other --steps 1 --device cpu --flow-map 3
    [ "$status" -eq 2 ]
    [[ $output == *"--flow-map 3: the network has 2 blocks"* ]]
    run "$NALAGEN" distill --teacher teacher/model.safetensors -d data -o other --steps 1 --device cpu --teacher-cfg 1 --teacher-interval 0.2,0.5
    [ "$status" -eq 2 ]
    run "$NALAGEN" distill --teacher teacher/model.safetensors --init student/model.safetensors --student-config '{"attention": "softmax"}' -d data -o other --steps 1 --device cpu
    [ "$status" -eq 3 ]
    [[ $output == *"student/model.safetensors: blocks.0.attn.qkv.weight"* ]]
    run "$NALAGEN" distill -d data -o other --steps 1 --device cpu
    [ "$status" -eq 2 ]
    [[ $output == *"--teacher"* ]]
}

@test "a student of another network inherits what fits, learns the teacher's predictions, and resumes exactly" {
    one_colour
    "$NALAGEN" train -m SiT-2x32x1/4 -d data -o teacher --steps 20 --batch 8 --lr 1e-2 --device cpu -q
    convert=("$NALAGEN" distill --teacher teacher/model.safetensors --student-config '{"attention": "nala", "lepe": true}' -d data --batch 8 --lr 3e-3 --log-every 1 --device cpu)
    run --separate-stderr "${convert[@]}" -o student --steps 40 --save-every 20 --keep 0
    [ "$status" -eq 0 ]
    [[ $stderr == *"parameters are the teacher's"* ]]
    [[ $stderr == *"blocks.0.attn.qkvg.weight in part"* ]]
    [[ $stderr != *"mlp.fc1"* ]]
    "$NALAGEN" info student/model.safetensors --json | json_lines 'x["model"].startswith("NaLaSiT") and x["config"]["lepe"] and "flow_map" not in x["config"] and "guided" not in x["config"]'
    python3 - <<'PYTHON'
import json
losses = [json.loads(line)["loss"] for line in open("student/log.jsonl") if '"loss"' in line]
assert len(losses) == 40 and sum(losses[-8:]) < 0.6 * sum(losses[:4]) * 2, losses
PYTHON
    "$NALAGEN" sample -m student/model.safetensors -c 3 --steps 3 -o a.png -q
    cp student/model.safetensors whole.safetensors
    rm student/checkpoints/step-0000040.safetensors student/model.safetensors student/done
    "${convert[@]}" -o student --steps 40 --save-every 20 --keep 0 -q
    cmp whole.safetensors student/model.safetensors
    # nor does it go on without its teacher, though the network is the same
    run -2 "$NALAGEN" train -m NaLaSiT-2x32x1/4 --config '{"lepe": true}' -d data --batch 8 --lr 3e-3 -o student --steps 60 --device cpu
    [[ $output == *"teacher"* ]]
}

@test "a student of the teacher's own network has nothing to learn from it" {
    one_colour
    "$NALAGEN" train -m SiT-2x32x1/4 -d data -o teacher --steps 4 --batch 8 --lr 1e-2 --device cpu -q
    "$NALAGEN" distill --teacher teacher/model.safetensors --student-config '{}' -d data -o same --steps 2 --batch 8 --log-every 1 --device cpu -q
    json_lines 'x.get("loss", 0) == 0' <same/log.jsonl
    "$NALAGEN" train -m DiT-2x32x1/4 -d data -o dit --steps 2 --batch 8 --device cpu -q
    "$NALAGEN" distill --teacher dit/model.safetensors --student-config '{"attention": "gla"}' -d data -o gla --steps 2 --batch 8 --device cpu -q
    "$NALAGEN" distill --teacher teacher/model.safetensors --student-config '{"attention": "nala"}' --flow-map 1 -d data -o map --steps 2 --batch 8 --device cpu -q
    "$NALAGEN" info map/model.safetensors --json | json_lines 'x["config"]["flow_map"] == 1 and x["config"]["attention"] == "nala"'
    for wrong in '--teacher-cfg 2' '--match 1' '-m SiT-S/2'; do
        run "$NALAGEN" distill --teacher teacher/model.safetensors --student-config '{}' -d data -o no --steps 1 --device cpu $wrong
        [ "$status" -eq 2 ]
    done
    run "$NALAGEN" distill --teacher teacher/model.safetensors --student-config '{}' -o no --steps 1 --device cpu
    [ "$status" -eq 2 ]
    [[ $output == *"give --data"* ]]
    run "$NALAGEN" distill --teacher teacher/model.safetensors --student-config '{"path": "vp"}' -d data -o no --steps 1 --device cpu
    [ "$status" -eq 2 ]
    [[ $output == *'differ in "path"'* ]]
}

@test "a discriminator's loss is in the log; what it needs is said where it is missing" {
    one_colour
    "$NALAGEN" train -m NaLaSiT-2x32x1/4 --config '{"middle_head": 1}' -d data -o teacher --steps 2 --batch 8 --device cpu -q
    adversarial() {
        "$NALAGEN" distill --teacher teacher/model.safetensors -d data --steps 4 --batch 8 --device cpu -q --teacher-cfg 1 --adversarial 0.5 --log-every 1 "$@"
    }
    adversarial -o student --match 1 --match-from 0 --teacher-internal 2
    json_lines 'x["discriminator_loss"] > 0.1 and x["discriminator_loss"] < 4' <student/log.jsonl
    python3 -c 'import json; assert json.load(open("student/config.json"))["training"]["adversarial"] == 0.5'
    "$NALAGEN" sample -m student/model.safetensors -c 3 --steps 1 -o a.png -q
    run adversarial -o no --teacher-internal 2
    [ "$status" -eq 2 ]
    [[ $output == *"--match"* ]]
    run adversarial -o no --match 1
    [ "$status" -eq 2 ]
    [[ $output == *"--teacher-internal"* ]]
    "$NALAGEN" encode set -o parts --vae none --crops 2 --device cpu -q
    run adversarial -o no --match 1 --teacher-internal 2 -d parts
    [ "$status" -eq 2 ]
    [[ $output == *"encoded without --crops"* ]]
    [ ! -e no/checkpoints ]
}
