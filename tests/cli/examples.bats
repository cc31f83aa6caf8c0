# SPDX-License-Identifier: MIT
# The programs of examples/, which know nalagen.h alone: they do what the command line does.
load helper

@test "train: as nalagen train, stopped and resumed" {
    one_colour
    "$EXAMPLES/train" data run 12 >out
    grep -qx "run/model.safetensors" out
    grep -q "^step 12 of 12, loss [0-9]*\.[0-9]*$" out
    "$NALAGEN" train --model NaLaSiT-2x64x2/4 --data data --batch 8 --lr 1e-3 --sample-every 0 --steps 12 --log-every 10 -o one -q
    cmp run/model.safetensors one/model.safetensors
    "$EXAMPLES/train" data long 100000 >out 2>err &
    has_lines long/log.jsonl 2
    kill -TERM $!
    code=0; wait $! || code=$?
    [ "$code" -eq 130 ]
    [[ "$(cat out)" == "step "*" of 100000, loss "* ]]
    ! grep -q safetensors out || false
    grep -q "stopped at step" err
    [ "$(newest_step long)" -ge 20 ]
    code=0; "$EXAMPLES/train" nowhere run2 >out 2>err || code=$?
    [ "$code" -eq 3 ]
    grep -q nowhere err
    [ ! -e run2 ]
}

@test "evaluate: as nalagen eval, of files and of a model" {
    need_inception
    numpy "
rng = np.random.default_rng(0)
np.savez('a.npz', rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8))
np.savez('b.npz', rng.integers(40, 256, (16, 8, 8, 3), dtype=np.uint8))"
    "$EXAMPLES/evaluate" a.npz b.npz "$inception" >out
    "$NALAGEN" eval a.npz --ref b.npz -w "$inception" --allow-small --json -q >json
    python3 -c '
import json
lines = dict(line.rstrip("\n").split(" ", 1) for line in open("out"))
report = json.load(open("json"))
known = {key.split("_")[0]: value for key, value in report["metrics"].items() if not key.endswith("_std")}
missing = {key.split("_")[0]: value for key, value in report["missing"].items()}
assert known and missing and lines.keys() == known.keys() | missing.keys(), (lines, known, missing)
for key, value in known.items():
    assert abs(float(lines[key]) - value) <= 1e-5 * abs(value), (key, lines[key], value)
for key, value in missing.items():
    assert lines[key] == "- " + value, (key, lines[key], value)'
    one_colour
    "$NALAGEN" train --model SiT-1x32x1/4 --data data --batch 8 --steps 1 --sample-every 0 -o run -q
    "$EXAMPLES/evaluate" run/model.safetensors b.npz "$inception" >out
    "$NALAGEN" eval -m run/model.safetensors -n 64 --ref b.npz -w "$inception" --allow-small --metrics sfid --json -q >json
    python3 -c '
import json
lines = dict(line.rstrip("\n").split(" ", 1) for line in open("out"))
value = json.load(open("json"))["metrics"]["sfid"]
assert abs(float(lines["sfid"]) - value) <= 1e-5 * value, (lines, value)'
    code=0; "$EXAMPLES/evaluate" a.npz nowhere.npz "$inception" >out 2>err || code=$?
    [ "$code" -eq 3 ]
    grep -q nowhere.npz err
}
