# SPDX-License-Identifier: MIT
# nalagen train: from pictures to an evaluation, stopped and killed, full disks, damaged data.
load helper

# CIFAR-10's format: 64 pictures, smooth, each class of its own colour.
data() {
    mkdir set
    python3 -c '
import math
with open("set/data_batch_1.bin", "wb") as file:
    for i in range(64):
        label = i % 10
        file.write(bytes([label]))
        for c in range(3):
            for y in range(32):
                for x in range(32):
                    level = 128 + 90 * math.sin(label * (c + 1) + (x + i) * 0.1) + y
                    file.write(bytes([max(0, min(255, int(level)))]))'
    "$NALAGEN" encode set -o data --vae none --device cpu -q
}

# 64 tokens, two threads at most.
train() {
    "$NALAGEN" train --model SiT-2x64x2/4 --data data --batch 8 --device cpu --threads 2 --lr 1e-3 \
        --ema 0.9 --sample-every 0 "$@"
}

# The same beside us; $pid is the program's own.
start() {
    "$NALAGEN" train --model SiT-2x64x2/4 --data data --batch 8 --device cpu --threads 2 --lr 1e-3 \
        --ema 0.9 --sample-every 0 -q "$@" 2>err &
    pid=$!
}

# Prints loss and norm of every line.
curve() {
    python3 -c '
import json, sys
for line in open(sys.argv[1] + "/log.jsonl"):
    x = json.loads(line)
    print(x["step"], x["loss"], x["grad_norm"])' "$1"
}

# Whether the tensors of two safetensors files are the same bytes.
same_tensors() {
    python3 -c '
import json, struct, sys
def tensors(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__")
    return {k: data[8 + size + v["data_offsets"][0]:8 + size + v["data_offsets"][1]] for k, v in header.items()}
a, b = tensors(sys.argv[1]), tensors(sys.argv[2])
assert a.keys() == b.keys() and len(a) > 20
sys.exit(any(a[k] != b[k] for k in a))' "$1" "$2"
}

@test "encode, train, sample, eval" {
    data
    train --out run --steps 60 --log-every 10 --val data --val-every 30 --sample-every 60 --samples 4 --sample-steps 4 -q
    json_lines "x['step'] == 10 * (i + 1) and 0 < x['loss'] < 3 and x['images_per_second'] > 0" <run/log.jsonl
    json_lines "x['step'] == 30 * (i + 1) and 0 < x['val_loss'] < 3" <run/metrics.jsonl
    python3 -c '
import json
loss = [json.loads(line)["loss"] for line in open("run/log.jsonl")]
assert loss[-1] < 0.8 * loss[0], loss
config = json.load(open("run/config.json"))
assert config["model"]["hidden_size"] == 64 and config["training"]["lr"] == 1e-3 and config["data"]["samples"] == 64'
    is_png run/samples/step-0000060.png
    [ -f run/done ]
    "$NALAGEN" plot run
    is_png run/plot.png
    grep -q '</svg>' run/plot.svg
    "$NALAGEN" info --json run/model.safetensors | json_lines "x['model'] == 'SiT-2x64x2/4' and x['complete'] and x['config']['images_seen'] == 480"
    # A checkpoint is a model, too: its average, with what is said of it.
    "$NALAGEN" convert run/checkpoints/step-0000060.safetensors of-60.safetensors --dtype bf16 -q
    "$NALAGEN" info --json of-60.safetensors | json_lines "x['config']['images_seen'] == 480 and x['config']['ema_decay'] == 0.9"
    "$NALAGEN" sample --model run/checkpoints/step-0000060.safetensors --steps 4 -c 3 --device cpu -o a.png -q
    is_png a.png
    "$NALAGEN" sample --model run/model.safetensors --steps 2 -n 66 --device cpu -o samples.npz -q
    # longer, and validated at its end, which is no multiple of the interval
    rm run/done
    train --out run --steps 70 --log-every 10 --val data --val-every 30 --sample-every 60 --samples 4 --sample-steps 4 -q
    tail -1 run/metrics.jsonl | json_lines "x['step'] == 70"
    [ "$(wc -l <run/metrics.jsonl)" -eq 3 ]
    [ -f "$inception" ] || return 0
    "$NALAGEN" eval -w "$inception" --features pool_64 --metrics fid --json -q samples.npz --ref samples.npz |
        json_lines "abs(x['metrics']['fid_64']) < 1e-3"
}

@test "SIGTERM saves; the same command resumes as if nothing had been" {
    data
    train --out whole --steps 60 --log-every 4 -q
    for signal in TERM USR1 HUP XCPU; do
        lines=$(($(cat run/log.jsonl 2>/dev/null | wc -l) + 2)) # of this process, which then takes signals
        start --out run --steps 60 --log-every 4
        for _ in $(seq 500); do [ -f run/done ] || { [ -s run/log.jsonl ] && [ "$(wc -l <run/log.jsonl)" -ge $lines ]; } && break; sleep 0.02; done
        kill -$signal $pid 2>/dev/null || true
        code=0; wait $pid || code=$?
        [ "$code" -eq 130 ] || [ -f run/done ]
    done
    train --out run --steps 60 --log-every 4 -q
    same_tensors whole/checkpoints/step-0000060.safetensors run/checkpoints/step-0000060.safetensors
    cmp whole/model.safetensors run/model.safetensors
    [ "$(curve whole)" = "$(curve run)" ]
}

@test "killed again and again, a run loses at most what came after its last checkpoint" {
    data
    train --out whole --steps 60 --log-every 2 --save-every 5 --keep 2 -q
    for delay in 0.3 0.5 0.4 0.6 0.35; do
        start --out run --steps 60 --log-every 2 --save-every 5 --keep 2
        sleep $delay
        kill -KILL $pid 2>/dev/null || true
        wait $pid || true
    done
    train --out run --steps 60 --log-every 2 --save-every 5 --keep 2 -q
    same_tensors whole/checkpoints/step-0000060.safetensors run/checkpoints/step-0000060.safetensors
    [ "$(curve whole)" = "$(curve run)" ]
    # Nothing of the killed processes is left.
    [ "$(ls -A run/checkpoints | wc -l)" -eq 2 ]
}

@test "options from a file; the command line has the last word" {
    data
    echo '{"model": "NaLaDiT-1x32x1/4", "data": "data", "batch": 4, "steps": 3, "lr": 0.01, "no_flip": true, "ema": [0.9, 0.5]}' >options.json
    "$NALAGEN" train --options options.json --out run --steps 2 --log-every 1 --device cpu --sample-every 0 -q
    json_lines "x['lr'] == 0.01 and x['step'] == i + 1" <run/log.jsonl
    [ "$(wc -l <run/log.jsonl)" -eq 2 ]
    "$NALAGEN" info --json run/model.safetensors | json_lines "x['model'] == 'NaLaDiT-1x32x1/4'"
    echo '{"modle": "SiT-S/2"}' >bad.json
    run -2 "$NALAGEN" train --options bad.json
    [[ $output == *'did you mean "model"?'* ]]
    run -2 "$NALAGEN" train --data data --out x
    [[ $output == *"--model NaLaSiT-S/2"* ]]
    run -3 "$NALAGEN" train -m SiT-S/2 -d nowhere -o x
    [ ! -e x ]
}

@test "dry run and profile write nothing" {
    data
    run -0 train --out run --steps 1000 --dry-run
    [[ $output == *"MiB for activations"* ]]
    [[ $output == *"1000 steps"* ]]
    run -0 train --out run --steps 1000 --dry-run --vae tiny # by the name that sample knows
    mkdir far
    echo >far/near.safetensors
    NALAGEN_WEIGHTS=$PWD/far run -0 train --out run --steps 1000 --dry-run --vae near.safetensors
    run -3 train --out run --steps 1000 --dry-run --vae near.safetensors
    [[ $output == *"near.safetensors: the autoencoder for pictures (--vae) is not there"* ]]
    run -0 train --out run --profile
    [[ $output == *"linear_backward_weight"* ]]
    [ ! -e run ]
}

@test "a full disk is loud, and training continues" {
    [ -c /dev/full ] || skip "no /dev/full"
    data
    mkdir -p run
    ln -s /dev/full run/log.jsonl
    train --out run --steps 4 --log-every 1 2>err
    grep -q "error: .*log.jsonl.*training continues" err
    [ -f run/done ]
}

@test "more memory than there is: refused at once, with the ways out" {
    data
    for how in "" --dry-run; do
        run -4 timeout 30 "$NALAGEN" train --model SiT-XL/2 --data data --batch 4096 --device cpu --out run $how
        [[ $output == *"training takes "*"MiB for activations (batch 4096 in 1 part)"*"cpu has "*"--accumulate"*"--batch"*"--checkpointing"* ]]
        [ ! -e run ]
    done
    [[ $output == *"nalagen: memory: "* ]] # said before anything is taken
    run -4 train --out run --max-memory 8M
    [[ $output == *"training takes "*"cpu has "[78]" MiB left"* ]]
}

@test "a signal is heard in the midst of a step, which then has changed nothing" {
    data
    run=("$NALAGEN" train --model SiT-12x384x6/2 --data data --batch 256 --accumulate 64 --device cpu --threads 2 --sample-every 0 --out run)
    "${run[@]}" --steps 1000 --dry-run 2>err &
    until grep -q parameters err; do sleep 0.1; done
    sleep 0.5
    kill -TERM $!
    start_of_end=$SECONDS
    code=0; wait $! || code=$?
    [ "$code" -eq 130 ]
    [ $((SECONDS - start_of_end)) -le 4 ]
    grep -q "^nalagen: stopping" err
    "${run[@]}" --steps 1000 2>err &
    until [ -e run/log.jsonl ]; do sleep 0.1; done
    sleep 0.5
    kill -TERM $!
    start_of_end=$SECONDS
    code=0; wait $! || code=$?
    [ "$code" -eq 130 ]
    [ $((SECONDS - start_of_end)) -le 6 ]
    grep -q "stopped at step 0" err
}

@test "no thread that computes is interrupted by the limit of processor time" {
    data
    "$NALAGEN" train --model SiT-2x64x2/4 --data data --batch 8 --device cpu --threads 2 --sample-every 0 --steps 1000000 --out run 2>err &
    local trained=$! mask
    until grep -q "step 10/" err; do sleep 0.1; done
    # The kernel may give SIGXCPU (24) to any thread that does not hold it back; its frame would spoil oneDNN's products. The
    # thread that waits for it holds back all others, SIGTERM (15) too.
    grep -h SigBlk /proc/$trained/task/*/status >masks
    kill -XCPU $trained
    wait $trained || [ $? -eq 130 ]
    [ "$(wc -l <masks)" -ge 2 ]
    while read -r _ mask; do
        [ $((0x${mask: -8} >> 23 & 1)) -eq 1 ] || [ $((0x${mask: -8} >> 14 & 1)) -eq 1 ] || { cat masks; false; }
    done <masks
}

@test "SIGXCPU of a limit of processor time saves, also when it comes again" {
    data
    run -130 bash -c "ulimit -S -t 2; '$NALAGEN' train --model SiT-2x64x2/4 --data data --batch 8 --device cpu --threads 2 \
        --sample-every 0 --steps 1000000 --out run"
    [[ $output == *"stopped at step "* ]]
    [ "$(newest_step run)" -gt 0 ]
}

@test "no room for a checkpoint: refused before the first step; later it is loud, and training continues" {
    data
    run -7 bash -c "ulimit -f 100; '$NALAGEN' train --model SiT-2x64x2/4 --data data --batch 8 --device cpu --threads 2 \
        --sample-every 0 --save-every 2 --steps 4 --log-every 1 --out small"
    [[ $output == *"no room for a checkpoint"*"File too large"* ]]
    [[ $output != *"step 1"* ]]
    [ ! -e small/log.jsonl ]
    "$NALAGEN" train --model SiT-2x64x2/4 --data data --batch 8 --device cpu --threads 2 \
        --sample-every 0 --save-every 20 --steps 2000 --log-every 1 --out run 2>err &
    has_lines run/log.jsonl 1
    prlimit --pid $! --fsize=100000
    for _ in $(seq 300); do grep -q "was not written" err && break; sleep 0.1; done
    kill -TERM $! || true
    code=0; wait $! || code=$?
    [ "$code" -eq 130 ] || [ "$code" -eq 7 ]
    grep -q "the checkpoint was not written, training continues.*File too large" err
    [ ! -e run/done ]
}

@test "data that is cut off under a run ends it with a message" {
    data
    start --out run --steps 1000000
    until [ -s run/config.json ]; do sleep 0.1; done
    truncate -s 3000 data/shard-00000.safetensors
    code=0
    wait $pid || code=$?
    [ "$code" -eq 3 ]
    grep -q "error: a file that was being read became shorter" err
}

@test "a model that is told of crops draws whole pictures, and parts for whoever asks" {
    data
    "$NALAGEN" encode set -o cropped --crops 3 --vae none --device cpu -q
    echo '{"crop_conditioning": true}' >crops.json
    train --data cropped --config crops.json --val data --val-every 20 --out run --steps 40 -q
    "$NALAGEN" info --json run/model.safetensors | json_lines "x['config']['crop_conditioning'] and x['complete']"
    draw=("$NALAGEN" sample -m run/model.safetensors -c 3 --steps 2 --device cpu -q)
    "${draw[@]}" -o whole.png --no-metadata
    "${draw[@]}" -o same.png --no-metadata --crop 1,0,0
    cmp whole.png same.png
    "${draw[@]}" -o part.png --crop 0.5,-0.25,0.25 --latents part.npy
    "${draw[@]}" -o other.png --crop 0.5,-0.25,-0.25 --latents other.npy
    ! cmp -s part.npy other.npy || false
    "$NALAGEN" sample --from part.png -m run/model.safetensors --device cpu -o again.png -q
    cmp part.png again.png
    echo '{"class": 3, "steps": 2, "crop": [0.5, -0.25, 0.25], "out": "line.png"}' | "$NALAGEN" sample -m run/model.safetensors --requests - --device cpu -q
    cmp part.png line.png
    for wrong in 0.5 0.5,0,0,0 0.5,x,0 2,0,0 0,0,0 0.5,0.4,0; do
        run "${draw[@]}" -o no.png --crop $wrong
        [ "$status" -eq 2 ]
        [[ $output == *"side"* ]]
    done
    run "$NALAGEN" sample -c church --crop 0.5,0,0 -o no.png
    [ "$status" -eq 2 ]
    [[ $output == *'without "crop_conditioning"'* ]]
    run "$NALAGEN" convert run/model.safetensors no.safetensors --format dit
    [ "$status" -eq 2 ]
    [[ $output == *'"crop_conditioning"'* ]]
    "$NALAGEN" likelihood -m run/model.safetensors -d cropped -n 4 --steps 2 --device cpu -q
    # what it teaches is the whole picture
    "$NALAGEN" distill --teacher run/model.safetensors -d cropped -o student --steps 2 --batch 8 --device cpu -q
    "$NALAGEN" info --json student/model.safetensors | json_lines "'crop_conditioning' not in x['config'] and x['complete']"
}

@test "a model with a middle head is led away from it, without another evaluation" {
    data
    echo '{"middle_head": 1}' >middle.json
    train --config middle.json --out run --steps 40 -q
    "$NALAGEN" info --json run/model.safetensors | json_lines "x['config']['middle_head'] == 1 and x['complete']"
    draw=("$NALAGEN" sample -m run/model.safetensors -c 3 --steps 2 --device cpu -q)
    "${draw[@]}" -o plain.png --no-metadata --latents plain.npy
    "${draw[@]}" -o same.png --no-metadata --internal-guidance 1
    cmp plain.png same.png
    "${draw[@]}" -o led.png --internal-guidance 1.4 --latents led.npy --json | json_lines "x['evaluations'] == 3"
    ! cmp -s plain.npy led.npy || false
    "$NALAGEN" sample --from led.png -m run/model.safetensors --device cpu -o again.png -q
    cmp led.png again.png
    echo '{"class": 3, "steps": 2, "internal_guidance": 1.4, "out": "line.png"}' | "$NALAGEN" sample -m run/model.safetensors --requests - --device cpu -q
    cmp led.png line.png
    run "$NALAGEN" convert run/model.safetensors no.safetensors --format dit
    [ "$status" -eq 2 ]
    [[ $output == *'"middle_head"'* ]]
    "$NALAGEN" distill --teacher run/model.safetensors -d data -o student --steps 2 --batch 8 --device cpu -q
    "$NALAGEN" info --json student/model.safetensors | json_lines "'middle_head' not in x['config'] and x['complete']"
    run -2 "$NALAGEN" sample -m student/model.safetensors -c 3 --internal-guidance 1.4 --device cpu -o no.png
    [[ $output == *'has no middle head'* ]]
    if [ -f "$model" ]; then # its own is inside
        run -2 "$NALAGEN" sample -c church --internal-guidance 1.4 -o no.png
        [[ $output == *'cannot be had twice'* ]]
    fi
}

@test "classes are compared by name: --init keeps the rows of those that both have, likelihood refuses others" {
    for class in one/a one/b two/b two/c; do
        mkdir -p $class
        cp "$NL_SOURCE_DIR/samples/church.png" $class/
    done
    for set in one two; do
        "$NALAGEN" encode $set -o data-$set --vae none --size 16 --device cpu -q
    done
    "$NALAGEN" train -m SiT-1x64x1/8 -d data-one -o run-one --steps 1 --batch 2 --device cpu -q
    run -0 "$NALAGEN" train --init run-one/model.safetensors -d data-two -o run-two --steps 1 --batch 2 --device cpu
    [[ $output == *"it knows 1 of the data's 2 classes by name; the others start anew"* ]]
    run -0 "$NALAGEN" train --init run-one/model.safetensors -d data-one -o run-three --steps 1 --batch 2 --device cpu
    [[ $output != *"taken by name"* ]]
    run -2 "$NALAGEN" likelihood -m run-one/model.safetensors -d data-two --device cpu
    [[ $output == *"class 0 is 'a' there, 'b' here"* ]]
}

@test "a run of one line in its log has a point in its curve" {
    one_colour
    "$NALAGEN" train -m SiT-1x32x2/4 -d data -o run --steps 10 --log-every 10 -b 4 --device cpu -q
    [ "$(wc -l <run/log.jsonl)" -eq 1 ]
    "$NALAGEN" plot run -o run.svg -q
    grep -Eq 'fill[:=]"?rgb\(0%, ?44' run.svg
}

@test "a run whose length is a time saves by the clock" {
    one_colour
    # a quarter of 3 seconds, and the end; a run by steps saves every hundred of them
    "$NALAGEN" train -m SiT-1x32x2/4 -d data -o run --minutes 0.05 --keep 9 -b 4 --device cpu -q
    [ "$(ls run/checkpoints | wc -l)" -ge 3 ]
    "$NALAGEN" train -m SiT-1x32x2/4 -d data -o other --minutes 0.05 --save-every 1000000 --keep 9 -b 4 --device cpu -q
    [ "$(ls other/checkpoints | wc -l)" -eq 1 ]
}

@test "first numbers come after the first step, a bar stands on a terminal, a short run ends with pictures" {
    one_colour
    run -0 "$NALAGEN" train -m SiT-1x32x2/4 -d data -o run --steps 120 -b 4 --device cpu
    [[ $output == *"step 1/120  loss "*"images/s"*"step 10/120  loss "* ]]
    [[ $output != *warning* && $output != *$'\r'* ]]
    [ "$(jq -c .step run/log.jsonl 2>/dev/null | head -1 || echo 10)" = 10 ]
    [ "$(ls run/samples)" = $'step-0000100.png\nstep-0000120.png' ]
    run -0 "$NALAGEN" train -m SiT-1x32x2/4 -d data -o slow --steps 120 -b 4 --device cpu --ema 0.9999 --sample-every 0
    [[ $output == *"warning: --ema 0.9999: after 120 steps 99 % of this average are still the first weights"* ]]
    [ ! -e slow/samples ]
    command -v script >/dev/null || skip "no script"
    TERM=xterm script -qec "\"$NALAGEN\" train -m SiT-1x32x2/4 -d data -o seen --minutes 0.01 -b 4 --device cpu" typescript >/dev/null
    tr '\r' '\n' <typescript >lines
    grep -q '^training' lines # nothing is known yet of a run by the clock
    grep -Eq '^\[#+-*\] +[0-9]+ % training step [0-9]+, [0-9]+ s left, ' lines
}
