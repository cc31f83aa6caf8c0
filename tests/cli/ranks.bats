load helper

data() {
    command -v mpirun >/dev/null || skip "no mpirun"
    ldd "$NALAGEN" | grep -q libmpi || skip "built without MPI"
    one_colour
}

options=(train --model NaLaSiT-2x64x2/4 --data data --batch 8 --device cpu --threads 1 --lr 1e-3 --log-every 1)

train() {
    "$NALAGEN" "${options[@]}" "$@"
}

# Leaks of the library itself are not ours.
ranks() {
    local count=$1
    shift
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self,vader,tcp \
        ASAN_OPTIONS=detect_leaks=0 timeout 120 mpirun --oversubscribe --bind-to none -n "$count" \
        "$NALAGEN" "${options[@]}" "$@"
}

@test "two processes train the model that one trains" {
    data
    train --steps 6 --out one -q
    ranks 2 --steps 6 --out two -q
    same_curves 1e-5
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
    kill_one run "--steps 100000 .*--out run" "$mpi"
    run -0 ranks 2 --steps $((newest + 2)) --save-every 2 --out run
    [[ $output != *"step 1/"* ]]
    [ -e run/done ]
}
