# SPDX-License-Identifier: MIT
# Shared by the suites. NALAGEN is the program under test; NALAGEN_TEST_VAE may name another autoencoder than the
# one that ships.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR" || return
    unset NALAGEN_WEIGHTS
    export XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache XDG_DATA_HOME=$BATS_TEST_TMPDIR/share TERM=dumb
    model=$NL_SOURCE_DIR/weights/shipped/nalasit-s2-256.safetensors
    vae=${NALAGEN_TEST_VAE:-$NL_SOURCE_DIR/weights/shipped/tae.safetensors}
}

need_model() {
    [ -f "$model" ] && [ -f "$vae" ] || skip "the shipped weights are not in this checkout"
}

# An FID network of seeded weights, without its last features, made once for a suite.
need_inception() {
    inception=$BATS_FILE_TMPDIR/inception.safetensors
    [ -f "$inception" ] || "$MAKE_INCEPTION" "$inception" partial
}

# The shipped model at 64 pixels, two steps, no guidance: a fraction of a second.
quick() {
    "$NALAGEN" sample --vae "$vae" --size 64 --sampler euler --steps 2 --cfg-scale 1 "$@"
}

# Runs Python with numpy, or skips the test.
numpy() {
    local python
    for python in python3 /usr/bin/python3; do
        if "$python" -c 'import numpy' 2>/dev/null; then
            "$python" -c "import numpy as np$1"
            return
        fi
    done
    skip "no numpy"
}

# Every line of standard input is a JSON object for which the Python expression holds.
json_lines() {
    python3 -c '
import json, sys
lines = [json.loads(line) for line in sys.stdin]
assert lines, "no lines"
for i, x in enumerate(lines):
    assert eval("(" + sys.argv[1] + ")"), (sys.argv[1], x)' "$1"
}

is_png() {
    [ "$(head -c 8 "$1" | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ]
}

# Training data `data`: 64 pictures of one colour, in CIFAR-10's format.
one_colour() {
    mkdir set
    head -c $((64 * 3073)) /dev/zero | LC_ALL=C tr '\0' '\3' >set/data_batch_1.bin
    "$NALAGEN" encode set -o data --vae none --device cpu -q
}

# The runs `one` and `two` have logged steps 1 to 6 alike, up to this part of each number; compared from step $2 (1) on.
same_curves() {
    python3 - "$1" "${2:-1}" <<'END'
import json, sys
one, two = ([json.loads(line) for line in open(run + '/log.jsonl')] for run in ('one', 'two'))
assert [x['step'] for x in two] == [1, 2, 3, 4, 5, 6], two
for a, b in list(zip(one, two))[int(sys.argv[2]) - 1:]:
    for key in 'loss', 'grad_norm':
        assert abs(a[key] - b[key]) < float(sys.argv[1]) * a[key], (a, b)
END
}

# The children of process $1, oldest first.
children() {
    grep -ls "^PPid:[[:blank:]]*$1\$" /proc/[0-9]*/status | tr -dc '0-9\n' | sort -n
}

# The processes of the program in this folder.
running_here() {
    local process
    for process in /proc/[0-9]*; do
        [ "$process/exe" -ef "$NALAGEN" ] && [ "$process/cwd" -ef . ] && echo "${process#/proc/}"
    done
    return 0
}

# Waits until the run $1 has a checkpoint.
has_checkpoint() {
    for ((i = 0; i < 600; i++)); do
        compgen -G "$1/checkpoints/*.safetensors" >/dev/null && return
        sleep 0.1
    done
    return 1
}

# Kills process $2, one of those that make the run $1, and sees that $3, the one that waits for them, fails soon.
# $newest: step of the last checkpoint.
kill_one() {
    local status=0
    kill -KILL "$2"
    wait "$3" || status=$?
    [ "$status" -ne 0 ]
    [ "$status" -ne 124 ]
    newest=$(newest_step "$1")
}

# Of the run's checkpoints.
newest_step() {
    echo $((10#$(ls "$1/checkpoints" | sort | tail -1 | tr -dc 0-9)))
}

# Waits for that many lines in a file.
has_lines() {
    for ((i = 0; i < 600; i++)); do
        [ -s "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ] && return
        sleep 0.1
    done
    return 1
}

need_mpi() {
    command -v mpirun >/dev/null || skip "no mpirun"
    grep -q libmpi "$NALAGEN" || skip "built without MPI"
}

# mpi PROCESSES COMMAND...: writes the id of mpirun to the file launcher, those of the processes to the file ranks.
# Leaks of the library itself are not ours.
mpi() {
    local count=$1 status=0
    shift
    : >ranks
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self,vader,tcp \
        ASAN_OPTIONS=detect_leaks=0 timeout 120 sh -c 'echo $$ >launcher && exec mpirun "$@"' sh --oversubscribe \
        --bind-to none -n "$count" sh -c 'echo $$ >>ranks && exec "$@"' sh "$@" || status=$?
    rm -f launcher
    return $status
}

# Ends what a failed test has left.
end_mpi() {
    [ ! -e launcher ] || kill "$(cat launcher)" 2>/dev/null || true
}
