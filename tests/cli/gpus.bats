# SPDX-License-Identifier: MIT
# The program on two GPUs: training, sampling and evaluation, by several processes.
load helper

data() {
    "$NALAGEN" info --json --device cuda 2>/dev/null | json_lines 'x["gpus"] >= 2' 2>/dev/null || skip "no two GPUs"
    one_colour
}

options=(--model NaLaSiT-4x384x6/2 --data data --batch 32 --lr 1e-3 --log-every 1 --vae none -q)

train() {
    timeout 120 "$NALAGEN" train "${options[@]}" "$@"
}

@test "two GPUs train the model that one trains" {
    data
    train --dtype f32 --steps 6 --out one --device cuda:0
    train --dtype f32 --steps 6 --out two --gpus 2
    same_curves 1e-4
}

@test "a run of two GPUs resumes exactly" {
    data
    train --steps 6 --save-every 3 --out whole --gpus 2
    train --steps 3 --save-every 3 --out parts --gpus 2
    train --steps 6 --save-every 3 --out parts --gpus 2
    cmp whole/model.safetensors parts/model.safetensors
}

@test "a run of two GPUs saves at SIGTERM, and resumes exactly" {
    data
    "$NALAGEN" train "${options[@]}" --steps 1000000 --out run --gpus 2 &
    local launcher=$! status=0 last
    has_lines run/log.jsonl 20
    kill -TERM "$launcher"
    wait "$launcher" || status=$?
    [ "$status" -eq 130 ]
    last=$(newest_step run)
    train --steps $((last + 4)) --out run --gpus 2
    train --steps $((last + 4)) --out whole --gpus 2
    cmp whole/model.safetensors run/model.safetensors
}

@test "pictures, which one GPU of two makes, and a validation change nothing" {
    data
    train --steps 12 --out plain --gpus 2
    train --steps 12 --out busy --gpus 2 --sample-every 4 --samples 4 --sample-steps 3 --val data --val-every 3
    is_png busy/samples/step-0000012.png
    cmp plain/model.safetensors busy/model.safetensors
}

@test "a run of two GPUs that is not finite ends with its state written" {
    data
    local status=0 begin=$SECONDS
    train --steps 1000 --lr 10 --max-skipped 3 --out run --gpus 2 2>message || status=$?
    [ "$status" -eq 6 ]
    grep -q "3 steps in a row were not finite; first bad: " message
    "$NALAGEN" info run/not-finite.safetensors >/dev/null
    [ $((SECONDS - begin)) -lt 20 ]
}

@test "two processes that srun started on two GPUs" {
    data
    local status=0 pids=()
    for rank in 0 1; do
        SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0 \
            timeout 60 "$NALAGEN" train "${options[@]}" --steps 6 --out two &
        pids+=($!)
    done
    wait "${pids[0]}" || status=$?
    wait "${pids[1]}" || status=$?
    [ "$status" -eq 0 ]
    train --steps 6 --out one --gpus 2
    cmp one/model.safetensors two/model.safetensors
}

@test "a process of two that is killed ends the run, which resumes from its checkpoint" {
    data
    "$NALAGEN" train "${options[@]}" --steps 1000000 --save-every 2 --keep 2 --out run --gpus 2 &
    local launcher=$!
    has_checkpoint run
    kill_one run "$(children "$launcher" | tail -n 1)" "$launcher"
    train --steps $((newest + 2)) --save-every 2 --out run --gpus 2
    [ -e run/done ]
}

@test "two GPUs make the archive of one" {
    data
    train --steps 2 --out run --device cuda:0
    "$NALAGEN" sample --model run/model.safetensors --steps 4 -n 64 --batch 16 -q --out one.npz --device cuda:0
    "$NALAGEN" sample --model run/model.safetensors --steps 4 -n 64 --batch 16 -q --out two.npz --gpus 2
    cmp one.npz two.npz
}

@test "two GPUs find the numbers of one" {
    data
    local inception=$BATS_TEST_TMPDIR/inception.safetensors precision
    "$MAKE_INCEPTION" "$inception"
    train --steps 2 --out run --device cuda:0
    "$NALAGEN" sample --model run/model.safetensors --steps 4 -n 128 --seed 1 -q --out ref.npz --device cuda:0
    "$NALAGEN" sample --model run/model.safetensors --steps 4 -n 130 -q --out a.npz --device cuda:0
    evaluate() {
        timeout 120 "$NALAGEN" eval -w "$inception" --ref ref.npz --features pool_64 --metrics fid,is,precision,recall,kid --is-split 100 \
            --precision "$precision" --json -q "$@"
    }
    for precision in fp32 tf32; do
        for samples in "a.npz" "-m run/model.safetensors --steps 4 -n 130"; do
            evaluate $samples --device cuda:0 >one
            evaluate $samples --gpus 2 >two
            python3 -c '
import json, sys
one, two = (json.load(open(name))["metrics"] for name in ("one", "two"))
for key, a in one.items():
    part = 1e-2 if key.endswith("_std") else 1e-3 if sys.argv[1] == "tf32" else 1e-5
    most = 2 / 128 if key.startswith(("precision", "recall")) else part * max(abs(a), 1e-3)
    assert abs(a - two[key]) <= most, (key, a, two[key])' $precision
        done
    done
}

@test "an evaluation by two GPUs ends at SIGTERM" {
    data
    local status=0
    "$MAKE_INCEPTION" inception.safetensors
    train --steps 2 --out run --device cuda:0
    "$NALAGEN" sample --model run/model.safetensors --steps 4 -n 128 --seed 1 -q --out ref.npz --device cuda:0
    "$NALAGEN" eval -w inception.safetensors --ref ref.npz --features pool_64 --metrics fid -m run/model.safetensors -n 10000000 --gpus 2 -q &
    local launcher=$! begin=$SECONDS
    sleep 15
    kill -TERM "$launcher"
    wait "$launcher" || status=$?
    [ "$status" -eq 130 ]
    [ $((SECONDS - begin)) -lt 30 ]
}
