# SPDX-License-Identifier: MIT
# nalagen analyze: its files, that they repeat, what it refuses.
load helper

tiny() {
    "$MAKE_MODEL" tiny.safetensors
    "$NALAGEN" analyze tiny.safetensors --sampler euler --steps 4 --cfg-scale 1 "$@"
}

@test "analyze: numbers, plots and maps of a small model" {
    run --separate-stderr tiny -c 1,3 --at 0,1 --layers 1 --queries 0,27-28 --seed 7 -o out
    [ "$status" -eq 0 ] || { echo "$stderr"; false; }
    [[ $output == *"nala (its own)"* ]]
    for name in entropy-softmax entropy-nala; do
        is_png out/$name.png
        grep -q '<svg' out/$name.svg
        python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' out/$name.svg
    done
    for name in attention-0-at0 attention-0-at1 attention-1-at0 attention-1-at1; do is_png out/$name.png; done
    [ "$(ls out | wc -l)" -eq 10 ]
    python3 - <<'PY'
import json, math
a = json.load(open("out/analysis.json"))
assert a["attention"] == "nala" and a["sampling"]["seed"] == 7 and a["sampling"]["class"] == "1,3"
assert (a["pictures"], a["tokens"], a["heads"], a["steps"]) == (2, 64, 2, 4)
assert [(t["at"], t["step"], t["t"]) for t in a["times"]] == [(0, 1, 0), (1, 4, 0.75)]
assert [l["layer"] for l in a["layers"]] == [1] and len(a["layers"][0]["heads"]) == 2
for rule in "softmax", "nala":
    r = a["all"][rule]
    assert r == a["layers"][0][rule] and r["points"] == 2 * 2 * 1 * 2 * 64
    assert sum(h[rule]["points"] for h in a["layers"][0]["heads"]) == r["points"]
    assert -1 <= r["pearson"] <= 1 and -1 <= r["spearman"] <= 1
    assert abs(r["entropy_mean"] / math.log(64) - r["entropy_mean_normalized"]) < 1e-9
n = a["all"]["nala"]
assert 1.5 <= n["exponent_min"] <= n["exponent_mean"] <= n["exponent_max"] <= 4.5
PY
}

@test "analyze: points.npy is what the JSON counts" {
    tiny -c 1 --at 0.5 -o out >/dev/null
    numpy '; import json
p = np.load("out/points.npy").astype(float)
a = json.load(open("out/analysis.json"))
assert p.shape == (1, 2, 2, 64, 3), p.shape
for layer in a["layers"]:
    x = p[:, layer["layer"]].reshape(-1, 3)
    for rule, column in ("softmax", 1), ("nala", 2):
        r = np.corrcoef(x[:, 0], x[:, column])[0, 1]
        assert abs(r - layer[rule]["pearson"]) < 1e-4, (r, layer[rule])'
}

@test "analyze: the same command gives the same bytes; other pictures give others" {
    tiny -c 1 -o a >/dev/null
    tiny -c 1 -o b >/dev/null
    tiny -c 1 --seed 1 -o c >/dev/null
    diff -r a b
    ! cmp -s a/points.npy c/points.npy || false
}

@test "analyze: JSON on standard output, nothing else" {
    tiny -c 1 --json -o out >out.json
    python3 -c 'import json; assert json.load(open("out.json")) == json.load(open("out/analysis.json"))'
}

@test "analyze: files are not overwritten without --force" {
    tiny -c 1 -o out >/dev/null
    run tiny -c 1 -o out
    [ "$status" -eq 7 ]
    [[ $output == *"out/analysis.json"*--force* ]]
    tiny -c 1 -o out --force >/dev/null
    rm out/*
    touch out/attention-0-at0.9.png
    run tiny -c 1 -o out
    [ "$status" -eq 7 ]
    [[ $output == *"attention-0-at0.9.png"* ]]
    [ ! -e out/analysis.json ]
}

@test "analyze: latents without pictures have no maps" {
    need_model
    "$NALAGEN" analyze --vae none --size 64 -c church --sampler euler --steps 2 --layers 0 -o out >/dev/null
    [ -z "$(ls out/attention-* 2>/dev/null)" ]
    [ -s out/analysis.json ]
}

@test "analyze: what is wrong is said before the work" {
    for arguments in "--at 1.5" "--at x" "--at 0.1," "--layers 2" "--layers 1-0" "--layers a" "--queries 64" \
        "--queries -1" "--class 5" "--sampler dopri5" "other.safetensors" "--steps 0" "-n 100001"; do
        run tiny $arguments -o out
        [ "$status" -eq 2 ] || { echo "$arguments: $status $output"; false; }
        [[ $output == *"error: "* ]]
        [ ! -e out/analysis.json ]
    done
    run "$NALAGEN" analyze missing.safetensors
    [ "$status" -eq 3 ]
    run "$NALAGEN" analyze --help
    [ "$status" -eq 0 ]
    for line in "${lines[@]}"; do [ "${#line}" -le 80 ]; done
}
