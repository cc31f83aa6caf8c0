# Shared by the suites. NALAGEN is the program under test; NALAGEN_TEST_VAE may name another autoencoder than the
# one that ships.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR" || return
    unset NALAGEN_WEIGHTS
    export XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache TERM=dumb
    model=$NL_SOURCE_DIR/weights/nalasit-s2-imagenette-256.safetensors
    vae=${NALAGEN_TEST_VAE:-$NL_SOURCE_DIR/weights/tae.safetensors}
}

need_model() {
    [ -f "$model" ] && [ -f "$vae" ] || skip "the shipped weights are not in this checkout"
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
