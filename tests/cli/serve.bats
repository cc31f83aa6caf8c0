# SPDX-License-Identifier: MIT
# nalagen serve: its three interfaces, its limits, its guards, and how it ends. The clients are in tests/serve.py.
load helper

tiny() {
    tiny=$BATS_FILE_TMPDIR/tiny.safetensors
    [ -f "$tiny" ] || "$MAKE_MODEL" "$tiny"
}

# A server with these options: $server its process, $url where it is.
start() {
    [ -n "$NL_SERVE" ] || skip "this build has no server: no libmicrohttpd"
    python3 -c 'import http.client, json, base64, zlib' 2>/dev/null || skip "python3 without http.client"
    tiny
    rm -f url
    "$NALAGEN" serve -m "$tiny" --port 0 --device cpu --threads 2 "$@" >url 2>log 3>&- &
    server=$!
    for _ in $(seq 300); do
        url=$(cat url 2>/dev/null || true)
        [ -z "$url" ] || return 0
        kill -0 "$server" || { cat log; return 1; }
        sleep 0.1
    done
    return 1
}

client() {
    SERVER=$server python3 "$NL_SOURCE_DIR/tests/serve.py" "$1" "$url"
}

teardown() {
    [ -z "${server:-}" ] || kill -9 "$server" 2>/dev/null || true
}

@test "serve: jobs, their pictures, what there is; a picture is the one of sample" {
    start
    client jobs
    "$NALAGEN" sample -m "$tiny" -c 1,3 -n 3 --seed 7 --steps 3 --device cpu -o all/ -q
    "$NALAGEN" info --json served-2.png | json_lines 'x["parameters"]["index"] == 2 and x["parameters"]["class"] == 1'
    "$NALAGEN" sample --from served-2.png -m "$tiny" --device cpu -o again.png -q
    cmp all/class1-seed7-000002.png again.png
}

@test "serve: the page, and a thumbnail of a class" {
    start
    client page
}

@test "serve: training runs, their numbers and grids alone" {
    tiny
    mkdir -p runs/{one,two}/samples other/one runs/empty
    printf '{"step": 2, "loss": 1.5, "out": "/secret"}\n{"step": 4, "loss": 1.25}\nnot JSON\n{"step": 6, "loss": 1}\n{"step": 8' >runs/one/log.jsonl
    printf '%s\n' '{"step": 4, "val_loss": 2.5}' '{"step": 4, "evaluation": {"n": 64, "metrics": {"fid": 20}}}' \
        '{"step": 6, "checkpoint": "/secret/x", "evaluation": {"n": 64, "preset": "openai", "reference": "/secret/ref.npz", "metrics": {"fid": 12.5, "note": "/secret"}}}' \
        >runs/one/metrics.jsonl
    echo '{"training": {"steps": 100, "out": "/secret"}, "model": {}}' >runs/one/config.json
    echo '{"n": 8, "metrics": {"fid": 9}}' >runs/one/report.json
    echo '{"n": 8}' >runs/one/other.json
    for ((i = 1; i <= 5000; i++)); do echo "{\"step\": $i, \"loss\": 1}"; done >runs/two/log.jsonl
    cp runs/one/log.jsonl other/one
    [ -n "$NL_SERVE" ] || skip "this build has no server: no libmicrohttpd"
    "$NALAGEN" sample -m "$tiny" --device cpu -q -o runs/one/samples/step-0000004.png
    ln -s /etc/passwd runs/one/samples/step-0000006.png.x
    cp /etc/passwd runs/one/samples/step-6.png
    start --runs runs --runs other
    client runs
}

@test "serve: the page in a browser: makes, redraws, stops, takes a picture back, watches a training" {
    local python
    [ -x /usr/bin/chromedriver ] || skip "no chromedriver (Debian: chromium chromium-driver python3-selenium)"
    for python in python3 /usr/bin/python3 ''; do
        ! "$python" -c 'import selenium' 2>/dev/null || break
    done
    [ -n "$python" ] || skip "no selenium for Python (Debian: python3-selenium)"
    mkdir run
    printf '{"step": %d, "loss": 1, "seconds": %d}\n' 1 1 2 2 3 3 >run/log.jsonl
    start --runs run
    "$NALAGEN" sample -m "$tiny" -c 4 --seed 1234567 --first-index 2 --steps 3 --size 32x16 --device cpu -o dropped.png -q
    "$python" "$NL_SOURCE_DIR/tests/serve_browser.py" "$url" "$PWD/run"
}

@test "serve: sizes other than the model's own" {
    start
    client sizes
}

@test "serve: jobs that agree share batches" {
    start
    client batches
}

@test "serve: what has just ended is kept" {
    start
    client kept
}

@test "serve: a walk, as pictures, a grid and an animated PNG, each made again by sample" {
    start
    client walk
    for name in frame grid animation; do
        "$NALAGEN" sample --from $name.png -m "$tiny" --device cpu -o again-$name.png -q
    done
    client remade
}

@test "serve: events" {
    start
    client events
}

@test "serve: a job is cancelled, also when its client goes away" {
    start
    client cancel
}

@test "serve: OpenAI's interface" {
    start
    client openai
}

@test "serve: A1111's interface" {
    start
    client webui
}

# $python: one that has the module $1, from PyPI; NL_CLIENTS_PYTHON may name it.
with_module() {
    for python in "${NL_CLIENTS_PYTHON:-python3}" /usr/bin/python3; do
        ! "$python" -c "import $1" 2>/dev/null || return 0
    done
    skip "no $1 for Python (PyPI; NL_CLIENTS_PYTHON may name a virtual environment's)"
}

@test "serve: the client openai" {
    with_module openai
    start
    "$python" "$NL_SOURCE_DIR/tests/serve_clients.py" openai "$url"
}

@test "serve: the client webuiapi" {
    with_module webuiapi
    start
    "$python" "$NL_SOURCE_DIR/tests/serve_clients.py" webuiapi "$url"
}

@test "serve: what openapi.json says holds (schemathesis)" {
    with_module schemathesis
    start --max-seconds 2
    "$python" -m schemathesis.cli run "$url/api/openapi.json" --max-examples 20 --phases fuzzing --seed 1 --no-color \
        --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,negative_data_rejection
    python3 "$NL_SOURCE_DIR/tests/serve.py" alive "$url"
}

@test "serve: what is wrong is refused, and the server goes on" {
    start
    client wrong
}

@test "serve: limits of connections, of waiting, of slow content" {
    start
    client patience
}

# What it writes is the cache of hashes, of large files, when it starts.
@test "serve: killed at any moment it leaves no broken file, and starts again at the same port" {
    local port pause cache=$XDG_CACHE_HOME/nalagen/sha256 file
    need_model
    start -m "$model"
    port=${url##*:}
    kill -9 "$server"
    cp -r "$cache" whole
    [ "$(ls whole | wc -l)" -eq 1 ]
    for pause in 0.02 0.05 0.1 0.2; do
        rm -rf "$cache"
        "$NALAGEN" serve -m "$tiny" -m "$model" --port "$port" --device cpu >url 2>log 3>&- &
        server=$!
        sleep $pause
        kill -9 "$server"
        wait "$server" || true
        for file in "$cache"/*; do [ ! -e "$file" ] || cmp "$file" "whole/${file##*/}"; done
    done
    start -m "$model" --port "$port"
    client flood &
    sleep 0.7
    kill -9 "$server"
    wait
    start -m "$model" --port "$port"
    [ "${url##*:}" = "$port" ]
    diff -r whole "$cache"
    post='{"class": 1, "steps": 2}'
    python3 -c 'import sys, urllib.request as r; print(r.urlopen(r.Request(sys.argv[1] + "/api/jobs", sys.argv[2].encode(), {"Content-Type": "application/json"})).status)' \
        "$url" "$post" | grep 202
    [ ! -s log ] || { cat log; false; }
}

@test "serve: Host, Origin and where a request comes from; security headers" {
    start --name known.example
    client guards
}

@test "serve: the token" {
    start --token secret-secret
    TOKEN=secret-secret client token
    kill "$server"
    wait "$server"
    echo from-a-file >token
    start --token @token
    TOKEN=from-a-file client token
}

@test "serve: limits of queue, pictures and time" {
    start --max-queue 2 --max-pictures 4 --max-seconds 2
    client queue
}

@test "serve: SIGTERM ends it when what it has taken is made" {
    start
    client stop
    wait "$server"
}

@test "serve: a second signal ends it at once" {
    start
    python3 - "$url" <<'PY'
import http.client, sys, urllib.parse
url = urllib.parse.urlsplit(sys.argv[1])
c = http.client.HTTPConnection(url.hostname, url.port)
c.request("POST", "/api/jobs", '{"steps": 10000, "sampler": "euler", "n": 64}', {"Content-Type": "application/json"})
assert c.getresponse().status == 202
PY
    kill "$server"
    kill -INT "$server" # right behind: the same one
    sleep 1
    kill -0 "$server"
    kill "$server"
    wait "$server"
}

@test "serve: refused before there is a device" {
    [ -n "$NL_SERVE" ] || skip "this build has no server: no libmicrohttpd"
    run "$NALAGEN" serve --host 0.0.0.0
    [ "$status" -eq 2 ]
    [[ "$output" == *"give a --token"* ]]
    run "$NALAGEN" serve --token short
    [ "$status" -eq 2 ]
    run "$NALAGEN" serve --token @nowhere
    [ "$status" -eq 3 ]
    run "$NALAGEN" serve --host nowhere.invalid
    [ "$status" -eq 2 ]
    run "$NALAGEN" serve -m nowhere.safetensors --port 0
    [ "$status" -eq 3 ]
}

@test "serve: a port that is taken" {
    start
    run "$NALAGEN" serve -m "$tiny" --port "${url##*:}" --device cpu
    [ "$status" -eq 5 ]
    [[ "$output" == *"cannot be listened at"* ]]
}

@test "serve: a build without it says what to install" {
    [ -z "$NL_SERVE" ] || skip "this build has a server"
    run "$NALAGEN" serve
    [ "$status" -eq 5 ]
    [[ "$output" == *libmicrohttpd-dev* ]]
}
