#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains, distils and judges the model that ships: NaLaSiT-S/2 with lepe, Imagenette and Imagewoof, 256 px, latents of the
# tiny autoencoder; pictures in four evaluations.
#
#   bench/default_model.sh PICTURES OUT MINUTES
#
# PICTURES    a folder with train/ and val/, twenty class folders in each (bench/classes.txt), copies left out by
#             bench/duplicates.py. val is held out: the loss on it is measured, and pictures are compared with it
# OUT         a folder for data, references, runs, samples and models; what is there already is not made again, and
#             a run that was stopped goes on
# MINUTES     of training; the learning rate follows them. Distillation takes DISTILL minutes more, and ROUND for each of ROUNDS
#
# OUT gets teacher.safetensors (many steps, guided) and model.safetensors (what ships: four steps, guidance inside), both int8,
# NAME-PART.json (what nalagen eval says of "few", the model's four steps, "many", its ten of Heun, "teacher" and "other"),
# nearest.json, nearest.png. Classes that are judged: Imagenette's ten.
#
# The recipe, for two cards (20 minutes of training on H200s; on one eleven of distillation, then nine for each round):
# - lepe, for its lower loss (docs/results.md).
# - 18,486 pictures are few for 34 million parameters: ten samples of each (the whole, nine parts of it) whose places the
#   network is told, all mirrored at random, dropout 0.1, decay 0.05.
# - A middle head behind four blocks: internal guidance betters FID more than class guidance, and costs no evaluation.
# - Batch 512: 256 a card keeps it busy, and more would make fewer steps of the same pictures. Learning rate 1e-3: in the
#   ablation, with half the batch, better than 5e-4. Warm-up 500 steps, gradients clipped at 1.
# - The rate falls to 0 over the last 40 %: worth more than averaging. The average (0.9995) looks back over 2,000 steps;
#   with --ema-warmup, or it would hold the first weights (docs/pitfalls.md).
# - Times logit-normal: the middle of the path is where classes and shapes are decided, and errors are largest.
# - Internal guidance alone, of 2, is the best for the teacher and costs no second pass. The student keeps the middle head and
#   has it from the first step. It learns from whole pictures; from 30 % of the run on distribution matching and a
#   discriminator sharpen one to four steps (bench/results/few-steps.md).
# - Then rounds at a third of the rate, which the discriminator can follow, each from the student before and with a fresh
#   discriminator: one that has seen every photograph a hundred times knows them by heart, and does harm.
# - The one that ships grew with this recipe over several days, a run at a time: its card says how.
#
# From the environment: CARDS (GPUs, all; 0: none), MODEL (NaLaSiT-S/2), CROPS (10), BATCH (512), DISTILL (11), ROUNDS (4), ROUND (9), TRAIN,
# STUDENT, EVAL (further options), ENCODE (arithmetic of the autoencoder, bf16), WEIGHTS (of the FID network), OTHER (a model to judge in
# the same way, with its default sampler), PICTURES (judged by so many, 10000), UNTIL (data, train: ends there).
set -eu
[ $# -eq 3 ] || {
    sed -n '6,16s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
pictures=$1 out=$2 minutes=$3
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
nalagen=${NALAGEN:-nalagen}
cards=${CARDS:-$(nvidia-smi -L 2>/dev/null | grep -c .)} || cards=0
mkdir -p "$out"
weights=${WEIGHTS:+--weights $WEIGHTS}
failed=$out/failed
rm -f "$failed"

on() { # NUMBER COMMAND...: beside the script, on one of the cards
    number=$1
    shift
    (
        [ "$cards" -lt 2 ] || export CUDA_VISIBLE_DEVICES=$((number % cards))
        "$@" || echo "$*" >>"$failed"
    ) &
}
join() { # waits for all of them
    wait
    [ ! -e "$failed" ] || exit 1
}

# ---- Data: latents and references
# shellcheck disable=SC2086 # options
encode() { # PART [OPTION]...
    part=$1
    shift
    from=$part
    [ "$part" != whole ] || from=train
    [ -e "$out/$part/dataset.json" ] || "$nalagen" encode "$pictures/$from" -o "$out/$part" --dtype "${ENCODE:-bf16}" \
        --class-names "$here/classes.txt" -q "$@"
}
ten="n01440764 n02102040 n02979186 n03000684 n03028079 n03394916 n03417042 n03425413 n03445777 n03888257"
# shellcheck disable=SC2086
reference() { # PART: of the ten classes that are judged
    mkdir -p "$out/judged/$1"
    for class in $ten; do
        [ -e "$out/judged/$1/$class" ] || ln -s "$(realpath "$pictures/$1/$class")" "$out/judged/$1/$class"
    done
    [ -e "$out/$1.npz" ] || "$nalagen" stats "$out/judged/$1" -o "$out/$1.npz" --allow-small $weights ${EVAL:-} -q
}
on 0 encode train --crops "${CROPS:-10}"
on 1 encode val
on 1 encode whole
on 2 reference train
on 3 reference val
join
[ "${UNTIL:-}" != data ] || exit 0

# ---- Training, distillation
[ "$cards" -gt 1 ] && gpus="--gpus $cards" || gpus=
# shellcheck disable=SC2086
[ -e "$out/run/done" ] || "$nalagen" train --model "${MODEL:-NaLaSiT-S/2}" --data "$out/train" --val "$out/val" \
    --config "$here/default_model.json" --out "$out/run" --minutes "$minutes" --batch "${BATCH:-512}" $gpus \
    --lr 1e-3 --beta2 0.99 --decay 0.05 --warmup 500 --clip 1 --schedule cooldown --cooldown 0.4 --times logit-normal --dropout 0.1 \
    --ema 0.9995 --ema-warmup --val-every 1000 --save-every 4000 --sample-every 0 --log-every 200 ${TRAIN:-}
[ -e "$out/teacher.safetensors" ] || "$nalagen" convert "$out/run/model.safetensors" "$out/teacher.safetensors" --dtype int8 -q
[ "${UNTIL:-}" != train ] || exit 0
# shellcheck disable=SC2086
student() { # RUN MINUTES [OPTION]...
    run=$out/$1 length=$2
    shift 2
    [ -e "$run/done" ] || "$nalagen" distill --teacher "$out/teacher.safetensors" --vae none --out "$run" \
        --data "$out/whole" --minutes "$length" --batch 256 --teacher-cfg 1 --teacher-internal 2 \
        --match 1 --adversarial 0.5 --fake-updates 2 --beta2 0.95 --clip 1 --warmup 100 --schedule cooldown --cooldown 0.4 \
        --ema 0.999 --ema-warmup --save-every 1000 --sample-every 0 "$@" ${STUDENT:-}
}
student few-0 "${DISTILL:-11}" --match-from 0.3 --lr 3e-4 --fake-lr 3e-4
rounds=${ROUNDS:-4} round=1
while [ "$round" -le "$rounds" ]; do
    student few-$round "${ROUND:-9}" --init "$out/few-$((round - 1))/model.safetensors" --match-from 0 --lr 1e-4 --fake-lr 1e-4
    round=$((round + 1))
done
[ -e "$out/model.safetensors" ] || "$nalagen" convert "$out/few-$rounds/model.safetensors" "$out/model.safetensors" --dtype int8 -q

# ---- Judgement, the same for all
# shellcheck disable=SC2086
judge() { # NAME MODEL [OPTION]...: 10,000 pictures against both parts
    name=$1 model=$2
    shift 2
    [ -e "$out/$name.npz" ] || "$nalagen" sample --model "$model" --class "$(echo $ten | tr ' ' ,)" -n "${PICTURES:-10000}" \
        --out "$out/$name.npz" -q "$@"
    for part in train val; do
        [ -s "$out/$name-$part.json" ] || {
            "$nalagen" eval "$out/$name.npz" --ref "$out/$part.npz" --allow-small --metrics fid,sfid,precision,recall --json \
                $weights -q ${EVAL:-} >"$out/$name-$part.tmp"
            mv "$out/$name-$part.tmp" "$out/$name-$part.json"
        }
    done
}
# shellcheck disable=SC2086
nearest() { # NAME
    [ -s "$out/nearest.json" ] || {
        "$nalagen" nearest "$out/$1.npz" --ref "$out/train.npz" --held-out "$out/val.npz" --json -f -o "$out/nearest.png" \
            $weights -q ${EVAL:-} >"$out/nearest.tmp"
        mv "$out/nearest.tmp" "$out/nearest.json"
    }
}
on 0 judge few "$out/model.safetensors" --sampler flow-sde --steps 4
on 1 judge teacher "$out/teacher.safetensors" --sampler heun --steps 10 --cfg-scale 1 --internal-guidance 2
on 2 judge many "$out/model.safetensors" --sampler heun --steps 10
[ -z "${OTHER:-}" ] || on 3 judge other "$OTHER"
join
on 0 nearest few
join
for file in "$out"/few-*.json "$out"/many-*.json "$out"/teacher-*.json "$out"/other-*.json; do
    [ ! -s "$file" ] || echo "$(basename "$file" .json): $(sed 's/.*\("metrics":{[^}]*}\).*/\1/' "$file")"
done
