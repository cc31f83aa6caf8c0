#!/bin/sh
# SPDX-License-Identifier: MIT
# The paper's comparison in small: models trained alike on one data set, sampled without guidance, evaluated, one table.
#
#   bench/compare_models.sh DATA REFERENCE OUT [STEPS [SAMPLES]]
#
# DATA       of nalagen encode
# REFERENCE  of nalagen stats (features 768 wide for precision and recall), or pictures
# OUT        a folder for runs and archives; what is there already is not made again
#
# From the environment:
# ROWS       a file with a line for each run: NAME MODEL [OPTION OF nalagen train]...; "#" begins a comment
#            (default: DiT, NaLaDiT, SiT and NaLaSiT, S/2)
# SEED       of weights, order, noise, times (0)
# SIT, DIT   sampler and its options ("sde-euler --steps 250", "ddpm --steps 250")
# WEIGHTS    of the FID network
# TRAIN, SAMPLE, EVAL   further options of those commands
set -eu
[ $# -ge 3 ] || {
    sed -n '3,17s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
data=$1 reference=$2 out=$3 steps=${4:-5000} samples=${5:-10000}
nalagen=${NALAGEN:-nalagen}
mkdir -p "$out"
rows() {
    if [ "${ROWS:-}" ]; then
        sed 's/#.*//' "$ROWS"
    else
        for name in DiT NaLaDiT SiT NaLaSiT; do echo "$name $name-S/2"; done
    fi
}
# shellcheck disable=SC2086 # options
rows | while read -r name model options; do
    [ "$name" ] || continue
    case $model in
    *DiT-*) sampler=${DIT:-ddpm --steps 250} ;;
    *) sampler=${SIT:-sde-euler --steps 250} ;;
    esac
    run=$out/$name-seed${SEED:-0}
    [ -e "$run/done" ] || "$nalagen" train --model "$model" --data "$data" --out "$run" --steps "$steps" \
        --seed "${SEED:-0}" ${TRAIN:-} $options </dev/null
    [ -e "$run/samples.npz" ] || "$nalagen" sample --model "$run/model.safetensors" --class balanced -n "$samples" \
        --sampler $sampler --cfg-scale 1 --out "$run/samples.npz" ${SAMPLE:-} </dev/null
    [ -s "$run/eval.json" ] || "$nalagen" eval "$run/samples.npz" --ref "$reference" --allow-small --json \
        ${WEIGHTS:+--weights "$WEIGHTS"} ${EVAL:-} </dev/null >"$run/eval.tmp"
    [ -s "$run/eval.json" ] || mv "$run/eval.tmp" "$run/eval.json"
done
python3 - "$out" <<'END'
import glob, json, os, sys


def lines(path):
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


rows = []
for run in sorted(glob.glob(os.path.join(sys.argv[1], "*-seed*"))):
    if not os.path.exists(os.path.join(run, "eval.json")):
        continue
    metrics = json.load(open(os.path.join(run, "eval.json")))
    validation = [line["val_loss"] for line in lines(os.path.join(run, "metrics.jsonl")) if "val_loss" in line]
    rows.append((os.path.basename(run), lines(os.path.join(run, "log.jsonl"))[-1], validation, metrics["metrics"]))
names = [n for n, v in rows[0][3].items() if isinstance(v, (int, float))] if rows else []
print("| run | steps | loss | held out | minutes |", " | ".join(names), "|")
print("|---" * (5 + len(names)) + "|")
for run, last, validation, metrics in rows:
    numbers = " | ".join("%.4g" % metrics[n] if n in metrics else "" for n in names)
    held_out = "%.5f" % validation[-1] if validation else ""
    print(f"| {run} | {last['step']} | {last['loss']:.4f} | {held_out} | {last['seconds'] / 60:.1f} | {numbers} |")
END
