# SPDX-License-Identifier: MIT
# Training by two processes through MPI: the same model as one, signals, deaths, refusals.
load helper

data() {
    need_mpi
    one_colour
}

options=(train --model NaLaSiT-2x64x2/4 --data data --batch 8 --device cpu --threads 1 --lr 1e-3 --log-every 1)

train() {
    "$NALAGEN" "${options[@]}" "$@"
}

ranks() {
    local count=$1
    shift
    mpi "$count" "$NALAGEN" "${options[@]}" "$@"
}

teardown() {
    end_mpi
}

@test "two processes train the model that one trains" {
    data
    train --steps 6 --out one -q
    ranks 2 --steps 6 --out two -q
    same_curves 1e-5
}

@test "two processes distil as one does, with distribution matching" {
    data
    train --steps 2 --out teacher -q
    options=(distill --teacher teacher/model.safetensors --data data --batch 8 --device cpu --threads 1 --lr 1e-3 --log-every 1 --match 1 --match-from 0.3)
    train --steps 6 --out one -q
    ranks 2 --steps 6 --out two -q
    same_curves 1e-4
    paste -d'\n' one/log.jsonl two/log.jsonl | tail -n 6 | json_lines 'x["match_loss"] > 0 and x["fake_loss"] > 0'
}

@test "so they do with a discriminator, and of one step alone" {
    data
    train --steps 2 --config '{"middle_head": 1}' --out teacher -q
    for way in "--match-from 0" --one-step; do
        # shellcheck disable=SC2206
        options=(distill --teacher teacher/model.safetensors --teacher-cfg 1 --teacher-internal 2 --data data --batch 8 --device cpu --threads 1
            --lr 1e-3 --log-every 1 --match 1 --adversarial 0.5 $way)
        rm -rf one two
        train --steps 6 --out one -q
        ranks 2 --steps 6 --out two -q
        first=1
        [[ $way != --one-step ]] || first=2 # in its first step the fake learns, and the student does not
        same_curves 1e-4 $first
        paste -d' ' one/log.jsonl two/log.jsonl | sed 's/\(.*\) {\(.*\)/[\1, {\2]/' |
            json_lines 'abs(x[0]["discriminator_loss"] - x[1]["discriminator_loss"]) < 1e-4'
    done
}

@test "a batch that the processes cannot share is refused" {
    data
    run -2 ranks 3 --steps 1 --out run -q
    [[ $output == *"--batch 8 is not a multiple of 3 processes"* ]]
}

@test "a process that dies ends the others; the run resumes from its checkpoint" {
    data
    ranks 2 --steps 100000 --save-every 2 --keep 2 --out run &
    local mpi=$!
    has_checkpoint run
    kill_one run "$(tail -n 1 ranks)" "$mpi"
    run -0 ranks 2 --steps $((newest + 2)) --save-every 2 --out run
    [[ $output != *"step 1/"* ]]
    [ -e run/done ]
}

@test "two processes save at a signal, and resume exactly" {
    data
    ranks 2 --steps 1000000 --out run -q &
    local mpi=$! status=0 last
    has_lines run/log.jsonl 20
    kill -USR1 "$(cat launcher)"
    wait "$mpi" || status=$?
    [ "$status" -eq 130 ]
    last=$(newest_step run)
    ranks 2 --steps $((last + 4)) --out run -q
    ranks 2 --steps $((last + 4)) --out whole -q
    cmp whole/model.safetensors run/model.safetensors
}

@test "a run of one process resumes with two, and is the same to rounding" {
    data
    train --steps 6 --out one -q
    train --steps 3 --out two -q
    run -0 ranks 2 --steps 6 --out two
    [[ $output == *"resuming at step 3"* ]]
    same_curves 1e-5
}

@test "pictures, which one process of two makes, and a validation change nothing" {
    data
    ranks 2 --steps 12 --out plain -q
    ranks 2 --steps 12 --out busy -q --sample-every 4 --samples 4 --sample-steps 3 --val data --val-every 3 --vae none
    is_png busy/samples/step-0000012.png
    cmp plain/model.safetensors busy/model.safetensors
}

@test "two processes whose steps are not finite end with the state written" {
    data
    run -6 ranks 2 --steps 1000 --lr 10 --max-skipped 3 --out run -q
    [[ $output == *"3 steps in a row were not finite; first bad: "* ]]
    "$NALAGEN" info run/not-finite.safetensors
}

@test "two processes: a folder in use, a dry run, processes of processes" {
    data
    ranks 2 --steps 1000000 --out run -q &
    local mpi=$!
    has_lines run/log.jsonl 2
    local launcher
    launcher=$(cat launcher)
    run -7 ranks 2 --steps 1 --out run
    [[ $output == *"another process is writing there"* ]]
    kill -USR1 "$launcher"
    wait "$mpi" || true
    run -0 ranks 2 --dry-run --out dry
    [[ $output == *"images/s"* ]]
    [ ! -e dry ]
    run -2 ranks 2 --steps 1 --out run --gpus 2
    [[ $output == *"leave --gpus out"* ]]
}

@test "processes that see different checkpoints do not resume" {
    data
    train --steps 2 --out a -q
    run -3 mpi 2 sh -c '[ "$OMPI_COMM_WORLD_RANK" = 0 ] && out=a || out=b; exec "$@" --out $out' sh \
        "$NALAGEN" "${options[@]}" --steps 4
    [[ $output == *"all processes must see the same folder"* ]]
    [ ! -e b ]
    [ -e a/done ]
}
