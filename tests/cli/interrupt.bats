# SPDX-License-Identifier: MIT
# Ctrl-C while sampling, between requests and while encoding.
load helper

# Starts a long run in the background and waits for its first picture.
start() {
    # Shells start background jobs with SIGINT ignored.
    env --default-signal=INT "$NALAGEN" sample --vae "$vae" --size 64 --sampler euler --steps 4 -c 4 -n 100000 -b 1 -o out/ "$@" >list 2>err &
    pid=$!
    for _ in $(seq 300); do [ -s list ] && return; sleep 0.1; done
    false
}

@test "Ctrl-C: code 130, what is done stays whole" {
    need_model
    start
    kill -INT $pid
    code=0; wait $pid || code=$?
    [ "$code" -eq 130 ]
    grep -q interrupted err
    [ "$(ls out | wc -l)" -eq "$(wc -l <list)" ]
    while read -r picture; do "$NALAGEN" info "$picture" >/dev/null; done <list
    [ -z "$(find . -name '*.tmp')" ]
}

@test "Ctrl-C: latents so far are written" {
    need_model
    start --latents l.npy
    kill -INT $pid
    code=0; wait $pid || code=$?
    [ "$code" -eq 130 ]
    "$NALAGEN" info --json l.npy | json_lines "x['shape'][0] == $(grep -c png list)"
}

@test "two signals one right behind the other, as timeout sends them, are one" {
    need_model
    start --latents l.npy
    kill -TERM $pid
    kill -INT $pid
    code=0; wait $pid || code=$?
    [ "$code" -eq 130 ]
    "$NALAGEN" info --json l.npy | json_lines "x['shape'][0] == $(grep -c png list)"
}

@test "Ctrl-C while waiting for requests" {
    need_model
    mkfifo in
    env --default-signal=INT "$NALAGEN" sample --vae "$vae" --size 64 --steps 1 --requests - <in >out 2>err &
    pid=$!
    exec 5>in
    echo '{"class": 4, "out": "a.png"}' >&5
    for _ in $(seq 300); do [ -s out ] && break; sleep 0.1; done
    kill -INT $pid
    code=0; wait $pid || code=$?
    exec 5>&-
    [ "$code" -eq 130 ]
}

@test "Ctrl-C in the midst of a batch of encode: nothing is half written, and the same command goes on" {
    need_model
    mkdir set
    for i in $(seq 24); do cp "$NL_SOURCE_DIR/samples/church.png" set/$i.png; done
    # One thread takes 20 s for the first 21: a signal heard at their end would find them written.
    encode=("$NALAGEN" encode set -o data --vae "$vae" --size 512 --device cpu --threads 1)
    env --default-signal=INT "${encode[@]}" 2>err &
    pid=$!
    for _ in $(seq 300); do grep -q 'latents of' err && break; sleep 0.1; done
    sleep 2 # it has read them
    kill -INT $pid
    start_of_end=$SECONDS
    code=0; wait $pid || code=$?
    [ "$code" -eq 130 ]
    [ $((SECONDS - start_of_end)) -le 10 ]
    grep -q "^nalagen: stopping" err
    grep -q "same command to resume" err
    [ -z "$(find data -type f ! -size 0)" ]
    rm set/[2-9].png set/??.png
    "${encode[@]}" -q
    json_lines "x['count'] == 1" < <(tr -d '\n' <data/dataset.json)
}
