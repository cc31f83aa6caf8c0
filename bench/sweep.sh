#!/bin/sh
# SPDX-License-Identifier: MIT
# Which sampler, how many steps, how much guidance: FID against evaluations of the network, and against seconds a picture.
#
#   bench/sweep.sh MODEL REFERENCE OUT [PICTURES]
#
# MODEL      a SiT or a DiT
# REFERENCE  of nalagen stats, with pictures for precision and recall
# OUT        a folder for results; a row that is there already is not made again
# PICTURES   of each row (5000)
#
# First the guidance, with 20 steps of Heun (a DiT: of UniPC); then samplers, steps and where they lie with the guidance of the
# least FID. OUT gets sweep.json with a line for each row, evaluations.svg and .png (FID over evaluations a picture; a guided
# one runs the network on two inputs), quality.svg and .png (over seconds), guidance.svg and .png. Seconds are those of making,
# decoding and looking at the samples, the start of the program aside, divided by their number.
#
# From the environment:
# CARDS      GPUs that take rows at the same time (all); 0: one row at a time, on whatever nalagen chooses
# GUIDED     lines "SAMPLER STEPS GUIDANCE [OPTION]..." in place of those below; ROWS the same of the second part, with
#            "best" for the guidance
# LIMIT      no row begins after so many seconds (none)
# WEIGHTS    of the FID network
# EVAL       further options of nalagen eval
set -eu
[ $# -ge 3 ] || {
    sed -n '2,22s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
model=$1 reference=$2 out=$3 pictures=${4:-5000}
nalagen=${NALAGEN:-nalagen}
began=$(date +%s)
mkdir -p "$out/rows"
case $("$nalagen" info --json "$model") in
*'"architecture":"DiT"'*)
    : "${GUIDED:=unipc 20 1
unipc 20 1.25
unipc 20 1.5
unipc 20 2
unipc 20 3
unipc 20 4}"
    : "${ROWS:=ddpm 250 best
ddim 50 best
dpmpp-2m-sde 40 best
ddim 20 best
dpmpp-2m 20 best
dpmpp-2m-sde 20 best
dpmpp-2m 20 best --rho 7
unipc 20 best --rho 7
ddim 10 best
dpmpp-2m 10 best
dpmpp-2m-sde 10 best
unipc 10 best
dpmpp-2m 10 best --rho 7
unipc 10 best --rho 7
dpmpp-2m 7 best
unipc 7 best
ddim 5 best
dpmpp-2m 5 best
unipc 5 best}"
    ;;
esac
: "${GUIDED:=heun 20 1
heun 20 1.25
heun 20 1.5
heun 20 1.75
heun 20 2
heun 20 2.5
heun 20 3
heun 20 4}"
: "${ROWS:=sde-euler 250 best
dopri5 - best
sde-euler 100 best
euler 80 best
heun 40 best
sde-euler 50 best
heun 20 2 --cfg-interval 0.1,0.9
heun 20 3 --cfg-interval 0.1,0.9
heun 20 3 --cfg-interval 0.2,0.8
ab2 32 best
euler 40 best
midpoint 20 best
rk4 10 best
euler 20 best
heun 10 best
midpoint 10 best
ab2 16 best
ab2 16 3 --cfg-interval 0.1,0.9
ab2 16 3 --cfg-interval 0.1,0.9 --time-shift 0.5
ab2 16 3 --cfg-interval 0.1,0.9 --time-shift 2
heun 10 3 --cfg-interval 0.1,0.9
heun 10 3 --cfg-interval 0.1,0.9 --time-shift 0.5
heun 10 3 --cfg-interval 0.1,0.9 --time-shift 2
heun 10 3 --cfg-interval 0.1,0.9 --rho 7
rk4 5 best
euler 10 best
ab2 8 best
ab2 8 3 --cfg-interval 0.1,0.9
ab2 8 3 --cfg-interval 0.1,0.9 --time-shift 2
heun 5 best
heun 5 3 --cfg-interval 0.1,0.9
midpoint 5 best
rk4 3 best
ab2 4 best}" # the long ones first, so that the cards end together
cards=${CARDS:-$(nvidia-smi -L 2>/dev/null | grep -c .)} || cards=0

row() { # SAMPLER STEPS GUIDANCE [OPTION]...
    name=$(echo "$*" | tr -s ' ,' '__')
    mkdir "$taken/$name" 2>/dev/null || return 0 # another lane has it
    [ ! -s "$out/rows/$name.json" ] || return 0
    [ -z "${LIMIT:-}" ] || [ $(($(date +%s) - began)) -lt "$LIMIT" ] || return 0
    sampler=$1 steps=$2 guidance=$3
    shift 3
    [ "$steps" = - ] || set -- --steps "$steps" "$@"
    # shellcheck disable=SC2086 # options
    "$nalagen" eval --model "$model" --class balanced -n "$pictures" --sampler "$sampler" --cfg-scale "$guidance" "$@" \
        --ref "$reference" --allow-small --metrics fid,sfid,precision,recall --json -q ${WEIGHTS:+--weights "$WEIGHTS"} \
        ${EVAL:-} </dev/null >"$taken/$name/eval.json" && mv "$taken/$name/eval.json" "$out/rows/$name.json"
}

rows() { # LINES: shared out to the cards
    taken=$(mktemp -d)
    for card in $(seq 0 $((cards ? cards - 1 : 0))); do
        (
            [ "$cards" -eq 0 ] || export CUDA_VISIBLE_DEVICES="$card"
            echo "$1" | while read -r line; do
                # shellcheck disable=SC2086 # words of a row
                [ -z "$line" ] || row $line
            done
        ) &
    done
    wait
    rm -r "$taken"
}

table() { # best: prints the guidance of the least FID; all: the table, and writes files for plots
    python3 - "$out" "$1" <<'END'
import glob, json, os, sys

out, what = sys.argv[1:]


def where(r):
    text = " in %g to %g" % tuple(map(float, r["cfg_interval"].split(","))) if "cfg_interval" in r else ""
    return text + "".join(", %s %g" % (k.replace("_", " "), r[k]) for k in ("time_shift", "rho") if k in r)


rows = []
for path in glob.glob(os.path.join(out, "rows", "*.json")):
    report = json.load(open(path))
    keys = "sampler", "steps", "cfg_scale", "cfg_interval", "time_shift", "rho"
    how = {k: report["sampling"][k] for k in keys if k in report["sampling"]}
    rows.append({**how, "evaluations": report["evaluations"], "seconds": report["seconds_samples"] / report["n"],
                 **report["metrics"], "pictures": report["n"], "device": report["device"]})
if not rows:
    sys.exit("no rows were made")
fid = next(k for k in rows[0] if k.startswith("fid"))
plain = [r for r in rows if not {"cfg_interval", "time_shift", "rho"} & r.keys()]
series = {}
for r in plain:
    series.setdefault((r["sampler"], r.get("steps")), []).append(r)
guided = sorted(max(series.values(), key=len), key=lambda r: r["cfg_scale"])  # the sampler seen with most scales
best = min(guided, key=lambda r: r[fid])["cfg_scale"]
if what == "best":
    print("%g" % best)
    sys.exit()
rows.sort(key=lambda r: (r["sampler"], r["cfg_scale"], r.get("steps", 0), where(r)))


def lines(path, some):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.writelines(json.dumps(r) + "\n" for r in some)


lines(os.path.join(out, "sweep.json"), rows)
lines(os.path.join(out, "guidance", "%s, %s steps" % (guided[0]["sampler"], guided[0].get("steps")), "metrics.jsonl"), guided)

curves = {}
for r in rows:
    if r["cfg_scale"] == best or where(r):
        curves.setdefault("%s, %g%s" % (r["sampler"], r["cfg_scale"], where(r)), []).append(r)
for name, some in curves.items():
    lines(os.path.join(out, "quality", name, "metrics.jsonl"), some)
print("| sampler | steps | guidance | evaluations | ms a picture | " + fid + " | sFID | precision | recall |\n" + "|---" * 9 + "|")
for r in rows:
    tail = [r.get(k) for k in r if k == fid or k.split("_")[0] in ("sfid", "precision", "recall")]
    print("| %s | %s | %g%s | %.4g | %.3g | %s |" % (r["sampler"], r.get("steps", "-"), r["cfg_scale"], where(r),
                                                     r["evaluations"], 1000 * r["seconds"], " | ".join("%.4g" % v for v in tail)))
open(os.path.join(out, "fid-key"), "w").write(fid)
END
}

rows "$GUIDED"
best=$(table best)
echo "$best" >"$out/best-guidance"
rows "$(echo "$ROWS" | sed "s/best/$best/")"
table all | tee "$out/table.md"
fid=$(cat "$out/fid-key")
for kind in svg png; do
    "$nalagen" plot "$out"/quality/* --over evaluations --log-over --value "$fid" -f -o "$out/evaluations.$kind" >/dev/null
    "$nalagen" plot "$out"/quality/* --over seconds --log-over --value "$fid" -f -o "$out/quality.$kind" >/dev/null
    "$nalagen" plot "$out"/guidance/* --over cfg_scale --value "$fid" -f -o "$out/guidance.$kind" >/dev/null
done
