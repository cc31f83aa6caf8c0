load helper

# CIFAR-10's format, 64 pictures.
data() {
    command -v mpirun >/dev/null || skip "no mpirun"
    ldd "$NALAGEN" | grep -q libmpi || skip "built without MPI"
    mkdir set
    head -c $((64 * 3073)) /dev/zero | LC_ALL=C tr '\0' '\3' >set/data_batch_1.bin
    "$NALAGEN" encode set -o data --vae none --device cpu -q
}

train() {
    "$NALAGEN" train --model NaLaSiT-2x64x2/4 --data data --batch 8 --device cpu --threads 1 --lr 1e-3 --log-every 1 "$@"
}

# Leaks of the library itself are not ours.
ranks() {
    local count=$1
    shift
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self,vader,tcp \
        ASAN_OPTIONS=detect_leaks=0 timeout 120 mpirun --oversubscribe --bind-to none -n "$count" \
        "$NALAGEN" train --model NaLaSiT-2x64x2/4 --data data --batch 8 --device cpu --threads 1 --lr 1e-3 --log-every 1 "$@"
}

@test "two processes train the model that one trains" {
    data
    train --steps 6 --out one -q
    ranks 2 --steps 6 --out two -q
    python3 - <<'END'
import json
one, two = ([json.loads(line) for line in open(run + '/log.jsonl')] for run in ('one', 'two'))
assert [x['step'] for x in two] == [1, 2, 3, 4, 5, 6], two
for a, b in zip(one, two):
    for key in 'loss', 'grad_norm':
        assert abs(a[key] - b[key]) < 1e-5 * a[key], (a, b)
END
}

@test "a batch that the processes cannot share is refused" {
    data
    run -2 ranks 3 --steps 1 --out run -q
    [[ $output == *"--batch 8 is not a multiple of 3 processes"* ]]
}

@test "a process that dies ends the others; the run goes on from its checkpoint" {
    data
    ranks 2 --steps 100000 --save-every 2 --keep 2 --out run &
    local mpi=$!
    for ((i = 0; i < 600; i++)); do
        compgen -G 'run/checkpoints/*.safetensors' >/dev/null && break
        sleep 0.1
    done
    # Both ranks are called alike; either may die.
    pkill -KILL -n -f -- "--steps 100000 .*--out run"
    local status=0
    wait "$mpi" || status=$?
    [ "$status" -ne 0 ] && [ "$status" -ne 124 ]
    local newest
    newest=$(ls run/checkpoints | sort | tail -1 | tr -dc 0-9)
    run -0 ranks 2 --steps $((10#$newest + 2)) --save-every 2 --out run
    [[ $output != *"step 1/"* ]]
    [ -e run/done ]
}
