# SPDX-License-Identifier: MIT
# Evaluation by several processes through MPI: the numbers of one, refusals, interrupts, deaths.
load helper

# Pictures of two kinds, as archives and as a folder, and a complete network of seeded weights.
make_pictures() {
    need_mpi
    numpy "
rng = np.random.default_rng(0)
def pictures(n, low):
    return rng.integers(low, 256, size=(n, 6, 8, 3)).repeat(4, 1).repeat(4, 2).astype(np.uint8)
a, b = pictures(17, 0), pictures(12, 40)
a[16] = a[3]
np.savez('a.npz', a)
np.savez_compressed('b.npz', b)
"
    inception=$BATS_FILE_TMPDIR/whole.safetensors
    [ -f "$inception" ] || "$MAKE_INCEPTION" "$inception"
    tiny=$BATS_FILE_TMPDIR/tiny.safetensors
    [ -f "$tiny" ] || "$MAKE_MODEL" "$tiny"
    options=(eval -w "$inception" --features pool_64 --metrics fid,precision,recall,kid --allow-small --device cpu --threads 1 --json)
    sampling=(-m "$tiny" -n 16 --seed 3 --sampler euler --steps 3 --cfg-scale 1.5)
}

teardown() {
    end_mpi
}

evaluate() {
    "$NALAGEN" "${options[@]}" "$@"
}

ranks() {
    local count=$1
    shift
    mpi "$count" "$NALAGEN" "${options[@]}" "$@"
}

# Sums are added in another order, and a batch of other size may round features of the last layers differently.
same_numbers() {
    python3 -c '
import json, sys
one, *others = [json.load(open(name)) for name in sys.argv[1:]]
def same(key, a, b):
    if isinstance(a, list):
        return all(same(key, *pair) for pair in zip(a, b))
    part = 0 if key.startswith(("precision", "recall", "kid")) else 1e-4 if key.endswith("_std") else 1e-6
    return abs(a - b) <= part * abs(a)
for other in others:
    assert one["metrics"].keys() == other["metrics"].keys(), other["metrics"].keys()
    for key, value in one["metrics"].items():
        assert same(key, value, other["metrics"][key]), (key, value, other["metrics"][key])
    for key in "n", "reference_pictures", "repeated", "copied", "small", "evaluations":
        assert one.get(key) == other.get(key), (key, one.get(key), other.get(key))' "$@"
}

@test "two and three processes find what one finds in archives and folders" {
    make_pictures
    evaluate a.npz --ref b.npz -q >one
    ranks 2 a.npz --ref b.npz -q >two
    ranks 3 a.npz --ref b.npz -q >three
    same_numbers one two three
    python3 -c 'import json; x = json.load(open("one")); assert x["repeated"] == 1, x'
    "$NALAGEN" sample -q "${sampling[@]}" -o folder/
    evaluate folder --ref b.npz -q >one
    ranks 2 folder --ref b.npz -q >two
    same_numbers one two
}

@test "two processes make and evaluate the samples that one makes" {
    make_pictures
    evaluate "${sampling[@]}" --ref b.npz -q >one
    ranks 2 "${sampling[@]}" --ref b.npz -q >two
    same_numbers one two
    python3 -c 'import json; x = json.load(open("two")); assert x["evaluations"] == 3, x'
    # the Inception Score in splits of shuffled pictures, and parts of the samples drawn again
    evaluate "${sampling[@]}" --ref b.npz -q --preset torch-fidelity --metrics fid,is --bootstrap 3 >one
    ranks 2 "${sampling[@]}" --ref b.npz -q --preset torch-fidelity --metrics fid,is --bootstrap 3 >two
    same_numbers one two
}

@test "more processes than pictures" {
    make_pictures
    numpy "
np.savez('few.npz', np.load('a.npz')['arr_0'][:2])"
    options+=(--metrics fid)
    evaluate few.npz --ref b.npz -q >one
    ranks 3 few.npz --ref b.npz -q >three
    same_numbers one three
}

@test "what is wrong is said once, and ends all with its code" {
    make_pictures
    run -3 ranks 2 none.npz --ref b.npz -q
    [ "$(grep -c "none.npz" <<<"$output")" -eq 1 ]
    # one process alone cannot go on: the other, which has its pictures, waits for nothing
    run -3 mpi 2 sh -c '[ "$OMPI_COMM_WORLD_RANK" = 0 ] && ref=b.npz || ref=gone.npz; exec "$@" --ref $ref' sh \
        "$NALAGEN" "${options[@]}" a.npz -q
    [ "$(grep -c "nalagen: error: gone.npz" <<<"$output")" -eq 1 ]
    [ "$(grep -c "nalagen: error" <<<"$output")" -eq 1 ]
    run -2 ranks 2 a.npz --ref b.npz --gpus 2
    [[ $output == *"leave --gpus out"* ]]
}

@test "two processes end at a signal, and when one of them dies" {
    make_pictures
    local status=0 launcher
    ranks 2 "${sampling[@]}" -n 100000 --ref b.npz -q 2>err &
    local job=$!
    has_lines ranks 2
    sleep 1
    kill -USR1 "$(cat launcher)"
    wait "$job" || status=$?
    [ "$status" -eq 130 ]
    [ "$(grep -c "nalagen: interrupted" err)" -eq 1 ]
    ranks 2 "${sampling[@]}" -n 100000 --ref b.npz -q 2>err &
    job=$!
    has_lines ranks 2
    sleep 1
    kill -KILL "$(tail -n 1 ranks)"
    status=0
    wait "$job" || status=$?
    [ "$status" -ne 0 ]
}

@test "two processes watch a run as one does" {
    make_pictures
    mkdir -p run/checkpoints
    cp "$tiny" run/checkpoints/step-0000002.safetensors
    cp "$tiny" run/checkpoints/step-0000004.safetensors
    cp -r run both
    local watched=("${sampling[@]:2}" --ref b.npz --once -q)
    evaluate --watch run "${watched[@]}" >one
    ranks 2 --watch both "${watched[@]}" >two
    [ "$(wc -l <one)" -eq 2 ]
    [ "$(wc -l <both/metrics.jsonl)" -eq 2 ]
    for line in 1 2; do
        for side in one two; do
            sed -n "${line}p" $side | python3 -c 'import json; print(json.dumps(json.loads(input())["evaluation"]))' >$side.json
        done
        cmp <(cut -d, -f1,2 one) <(cut -d, -f1,2 two)
        same_numbers one.json two.json
    done
    ranks 2 --watch both "${watched[@]}" >nothing
    [ ! -s nothing ]
}
