#!/bin/sh
# The paper's comparison in small: models trained alike on one data set, sampled without guidance, evaluated, one table.
#
#   bench/compare_models.sh DATA REFERENCE OUT [STEPS [SAMPLES [SIZE]]]
#
# DATA       of nalagen encode
# REFERENCE  of nalagen stats (features 768 wide for precision and recall), or pictures
# OUT        a folder for runs and archives; what is there already is not made again
# SIZE       "S/2" by default. MODELS, SEED, WEIGHTS (of the FID network), TRAIN and SAMPLE (further options of those
#            commands), POINTS (250: sampling steps) come from the environment.
set -eu
[ $# -ge 3 ] || {
    sed -n '3,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
data=$1 reference=$2 out=$3 steps=${4:-5000} samples=${5:-10000} size=${6:-S/2}
nalagen=${NALAGEN:-nalagen}
mkdir -p "$out"
for name in ${MODELS:-DiT NaLaDiT SiT NaLaSiT}; do
    case $name in
    *DiT) sampler="ddpm --steps ${POINTS:-250}" ;;
    *) sampler="sde-euler --steps ${POINTS:-250}" ;;
    esac
    run=$out/$name-seed${SEED:-0}
    # shellcheck disable=SC2086 # options
    [ -e "$run/done" ] || "$nalagen" train --model "$name-$size" --data "$data" --out "$run" --steps "$steps" \
        --seed "${SEED:-0}" ${TRAIN:-}
    # shellcheck disable=SC2086
    [ -e "$run/samples.npz" ] || "$nalagen" sample --model "$run/model.safetensors" --class balanced -n "$samples" \
        --sampler $sampler --cfg-scale 1 --out "$run/samples.npz" ${SAMPLE:-}
    # shellcheck disable=SC2086
    [ -s "$run/eval.json" ] || "$nalagen" eval "$run/samples.npz" --ref "$reference" --allow-small --json \
        ${WEIGHTS:+--weights "$WEIGHTS"} >"$run/eval.tmp"
    [ -s "$run/eval.json" ] || mv "$run/eval.tmp" "$run/eval.json"
done
python3 - "$out" <<'END'
import glob, json, os, sys

rows = []
for run in sorted(glob.glob(os.path.join(sys.argv[1], "*-seed*"))):
    log = [json.loads(line) for line in open(os.path.join(run, "log.jsonl"))]
    metrics = json.load(open(os.path.join(run, "eval.json")))
    rows.append((os.path.basename(run), log[-1], metrics.get("metrics", metrics)))
names = [n for n, v in rows[0][2].items() if isinstance(v, (int, float))]
print("| run | steps | loss | minutes |", " | ".join(names), "|")
print("|---" * (4 + len(names)) + "|")
for run, last, metrics in rows:
    numbers = " | ".join("%.4g" % metrics[n] for n in names)
    print(f"| {run} | {last['step']} | {last['loss']:.4f} | {last['seconds'] / 60:.1f} | {numbers} |")
END
