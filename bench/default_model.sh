#!/bin/sh
# Trains and judges the model that ships: NaLaSiT-S/2, Imagenette, 256 px, latents of the tiny autoencoder.
#
#   bench/default_model.sh IMAGENETTE OUT MINUTES
#
# IMAGENETTE  a folder with train/ and val/, ten class folders in each. val is held out: the loss on it is measured, and
#             pictures are compared with it, but it is never trained on
# OUT         a folder for data, references, the run, samples and model; what is there already is not made again, and
#             a run that was stopped goes on
# MINUTES     of training; the learning rate follows them
#
# NaLa with lepe, for its lower loss (docs/results.md).
#
# From the environment: WEIGHTS (of the FID network), MODEL (NaLaSiT-S/2), TRAIN, SAMPLE, EVAL (further options), ENCODE
# (arithmetic of the autoencoder, bf16), OTHER (a model to judge in the same way, such as the one that shipped before).
set -eu
[ $# -eq 3 ] || {
    sed -n '4,17s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
pictures=$1 out=$2 minutes=$3
nalagen=${NALAGEN:-nalagen}
mkdir -p "$out"
weights=${WEIGHTS:+--weights $WEIGHTS}
# shellcheck disable=SC2086 # options
for part in train val; do
    [ -e "$out/$part/dataset.json" ] || "$nalagen" encode "$pictures/$part" -o "$out/$part" --dtype "${ENCODE:-bf16}" -q
    [ -e "$out/$part.npz" ] || "$nalagen" stats "$pictures/$part" -o "$out/$part.npz" --allow-small $weights ${EVAL:-} -q
done
# shellcheck disable=SC2086
[ -e "$out/run/done" ] || "$nalagen" train --model "${MODEL:-NaLaSiT-S/2}" --data "$out/train" --val "$out/val" \
    --config "$(dirname -- "$0")/ablation/lepe.json" --out "$out/run" --minutes "$minutes" \
    --lr 5e-4 --beta2 0.95 --warmup 1000 --clip 1 --schedule cooldown --cooldown 0.45 --times logit-normal \
    --ema 0.9995 --ema-warmup --val-every 2000 --sample-every 0 --save-every 5000 --keep 2 ${TRAIN:-}
[ -e "$out/model.safetensors" ] || "$nalagen" convert "$out/run/model.safetensors" "$out/model.safetensors" --dtype int8
judge() { # NAME MODEL
    # shellcheck disable=SC2086
    [ -e "$out/$1.npz" ] || "$nalagen" sample --model "$2" --class balanced -n 5000 --out "$out/$1.npz" -q ${SAMPLE:-}
    for part in train val; do
        # shellcheck disable=SC2086
        [ -s "$out/$1-$part.json" ] || "$nalagen" eval "$out/$1.npz" --ref "$out/$part.npz" --allow-small --json \
            $weights -q ${EVAL:-} >"$out/eval.tmp"
        [ -s "$out/$1-$part.json" ] || mv "$out/eval.tmp" "$out/$1-$part.json"
        printf '%s, %s: ' "$1" "$part"
        sed 's/.*\("metrics":{[^}]*}\).*/\1/' "$out/$1-$part.json"
    done
}
judge new "$out/model.safetensors"
[ -z "${OTHER:-}" ] || judge other "$OTHER"
