#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains and judges the model that ships: NaLaSiT-S/2 with lepe, Imagenette, 256 px, latents of the tiny autoencoder.
#
#   bench/default_model.sh IMAGENETTE OUT MINUTES
#
# IMAGENETTE  a folder with train/ and val/, ten class folders in each. val is held out: the loss on it is measured, and
#             pictures are compared with it, but it is never trained on
# OUT         a folder for data, references, the run, samples and models; what is there already is not made again, and
#             a run that was stopped goes on
# MINUTES     of training; the learning rate follows them
#
# OUT gets model.safetensors (int8, what ships), best.safetensors (the same in bf16, for tests/make_shipped_golden.py),
# NAME-gGUIDANCE-PART.json (what nalagen eval says of the new model, "new", and of the "other"), nearest.json, nearest.png.
#
# The recipe, for two cards (twelve minutes on H200s):
# - lepe, for its lower loss (docs/results.md); the initial weights' query norms as they are.
# - 9,469 pictures are few: a network of 34 million parameters learns them by heart if it sees them often enough. So six
#   samples of each (the whole, five parts of it), all mirrored at random, decay 0.05, and of the averages that were
#   saved the one whose loss on val is least is taken.
# - Batch 512: 256 a card keeps it busy, and more would make fewer steps of the same pictures. Learning rate 1e-3: in the
#   ablation, with half the batch, better than 5e-4. Warm-up 500 steps, gradients clipped at 1.
# - The rate falls to 0 over the last 40 %: worth more than averaging. The average (0.9995) looks back over 2,000 steps;
#   with --ema-warmup, or it would hold the first weights (docs/pitfalls.md).
# - Times logit-normal: the middle of the path is where classes and shapes are decided, and errors are largest.
#
# The figures on the card (weights/shipped/MODEL_CARD.md): GUIDANCE="2.5 3" SAMPLE="--steps 20"; steps and guidance of the program by
# default were measured beside.
#
# From the environment: CARDS (GPUs, all; 0: none), MODEL (NaLaSiT-S/2), CROPS (6), BATCH (512), TRAIN, SAMPLE, EVAL
# (further options), ENCODE (arithmetic of the autoencoder, bf16), WEIGHTS (of the FID network), OTHER (a model to judge in
# the same way, such as the one that shipped before), PICTURES (judged by so many, 10000), GUIDANCE (a list, "1.5 3"),
# UNTIL (data, train: ends there).
set -eu
[ $# -eq 3 ] || {
    sed -n '4,12s/^# \{0,1\}//p' "$0" >&2
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
    [ -e "$out/$part/dataset.json" ] || "$nalagen" encode "$pictures/$part" -o "$out/$part" --dtype "${ENCODE:-bf16}" \
        --class-names "$here/imagenette-classes.txt" -q "$@"
}
# shellcheck disable=SC2086
reference() { # PART
    [ -e "$out/$1.npz" ] || "$nalagen" stats "$pictures/$1" -o "$out/$1.npz" --allow-small $weights ${EVAL:-} -q
}
on 0 encode train --crops "${CROPS:-6}"
on 1 encode val
on 2 reference train
on 3 reference val
join
[ "${UNTIL:-}" != data ] || exit 0

# ---- Training
[ "$cards" -gt 1 ] && gpus="--gpus $cards" || gpus=
# shellcheck disable=SC2086
[ -e "$out/run/done" ] || "$nalagen" train --model "${MODEL:-NaLaSiT-S/2}" --data "$out/train" --val "$out/val" \
    --config "$here/default_model.json" --out "$out/run" --minutes "$minutes" --batch "${BATCH:-512}" $gpus \
    --lr 1e-3 --beta2 0.99 --decay 0.05 --warmup 500 --clip 1 --schedule cooldown --cooldown 0.4 --times logit-normal \
    --ema 0.9995 --ema-warmup --val-every 1000 --save-every 1000 --keep 12 --sample-every 0 --log-every 100 ${TRAIN:-}
[ -e "$out/best.safetensors" ] || {
    best=$(python3 - "$out/run" <<'END'
import glob, json, os, sys

loss = {}
for line in open(os.path.join(sys.argv[1], "metrics.jsonl")):
    line = json.loads(line)
    if "val_loss" in line:
        loss[line["step"]] = line["val_loss"]
saved = {int(os.path.basename(p)[5:-12]): p for p in glob.glob(os.path.join(sys.argv[1], "checkpoints", "step-*.safetensors"))}
step = min((s for s in saved if s in loss), key=loss.get, default=max(saved))
print("step %d of %d: held-out loss %s" % (step, max(saved), loss.get(step)), file=sys.stderr)
print(saved[step])
END
    )
    "$nalagen" convert "$best" "$out/best.safetensors" --dtype bf16 -q
}
[ -e "$out/model.safetensors" ] || "$nalagen" convert "$out/best.safetensors" "$out/model.safetensors" --dtype int8 -q
[ "${UNTIL:-}" != train ] || exit 0

# ---- Judgement, the same for both models
# shellcheck disable=SC2086
judge() { # NAME PART
    [ -s "$out/$1-$2.json" ] || {
        "$nalagen" eval "$out/$1.npz" --ref "$out/$2.npz" --allow-small --metrics fid,sfid,precision,recall --json \
            $weights -q ${EVAL:-} >"$out/$1-$2.tmp"
        mv "$out/$1-$2.tmp" "$out/$1-$2.json"
    }
}
# shellcheck disable=SC2086
nearest() { # NAME
    [ -s "$out/nearest.json" ] || {
        "$nalagen" nearest "$out/$1.npz" --ref "$out/train.npz" --held-out "$out/val.npz" --json -f -o "$out/nearest.png" \
            $weights -q ${EVAL:-} >"$out/nearest.tmp"
        mv "$out/nearest.tmp" "$out/nearest.json"
    }
}
for guidance in ${GUIDANCE:-1.5 3}; do
    card=0
    for name in new ${OTHER:+other}; do
        [ "$name" = new ] && model=$out/model.safetensors || model=$OTHER
        archive=$name-g$guidance
        # shellcheck disable=SC2086
        [ -e "$out/$archive.npz" ] || "$nalagen" sample --model "$model" --class balanced -n "${PICTURES:-10000}" \
            --cfg-scale "$guidance" --out "$out/$archive.npz" -q $gpus ${SAMPLE:-}
        for part in train val; do
            on $card judge "$archive" $part
            card=$((card + 1))
        done
    done
    join
    on 0 nearest "new-g$guidance" # the first guidance's
    join
done
for file in "$out"/new-g*-*.json "$out"/other-g*-*.json; do
    [ ! -s "$file" ] || echo "$(basename "$file" .json): $(sed 's/.*\("metrics":{[^}]*}\).*/\1/' "$file")"
done
