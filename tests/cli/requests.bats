# SPDX-License-Identifier: MIT
# sample --requests: a line of answer for each line of request.
load helper

@test "each line is answered by a line, bad ones too" {
    need_model
    cat >in.jsonl <<'J'
{"class": "church", "out": "a.png", "id": "first"}
{"class": [1, 2], "seed": 7, "out": "b/", "id": 2}

{"class": 99}
this is not JSON
{"class": 4, "sede": 1}
{"class": 4, "steps": 0}
{"class": 4, "steps": 3, "out": "c.png", "force": true, "sampler": "flow"}
{"class": 4, "out": "-"}
[1]
{"class": 4, "out": "a.png"}
{"class": 4, "n": 2, "grid": "1x2", "out": "g.png"}
J
    run --separate-stderr quick --requests in.jsonl
    [ "$status" -eq 2 ]
    json_lines 'x["line"] == [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12][i]' <<<"$output"
    json_lines 'x["status"] == "ok" if x["line"] in (1, 2, 8, 12) else x["error"] and x["code"] in (2, 3, 7)' <<<"$output"
    sed -n 1p <<<"$output" | json_lines 'x["id"] == "first" and x["pictures"][0]["file"] == "a.png"'
    sed -n 2p <<<"$output" | json_lines '[p["class"] for p in x["pictures"]] == [1, 2] and x["pictures"][0]["seed"] == 7'
    sed -n 5p <<<"$output" | json_lines '"seed" in x["error"]'
    sed -n 10p <<<"$output" | json_lines 'x["code"] == 7'
    [ -f a.png ]
    [ -f c.png ]
    [ -f g.png ]
    quick -c church -o same.png
    cmp a.png same.png
}

@test "from standard input, answered as they come" {
    need_model
    mkfifo in
    quick --requests - <in >out 2>err &
    exec 5>in
    echo '{"class": 4, "out": "a.png"}' >&5
    for _ in $(seq 300); do [ -s out ] && break; sleep 0.1; done
    json_lines 'x["status"] == "ok"' <out
    echo '{"class": 5, "out": "b.png"}' >&5
    exec 5>&-
    wait $!
    [ "$(wc -l <out)" -eq 2 ]
}

@test "idle threads do not spin for long, unless the environment says so" {
    need_model
    mkfifo in
    for given in _= GOMP_SPINCOUNT=7 OMP_WAIT_POLICY=active; do
        env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY $given "$NALAGEN" sample --vae "$vae" --requests - <in >out &
        exec 5>in
        echo '{' >&5
        for _ in $(seq 300); do [ -s out ] && break; sleep 0.1; done
        tr '\0' '\n' </proc/$!/environ | grep -E 'GOMP|OMP_WAIT' >waits || true
        exec 5>&-
        wait $! || true
        [ "$(<waits)" = "${given/_=/GOMP_SPINCOUNT=5000}" ]
    done
}

@test "no requests, no answers" {
    need_model
    run --separate-stderr quick --requests /dev/null
    [ "$status" -eq 0 ]
    [ -z "$output" ]
    run --separate-stderr quick --requests <(printf '\n  \n\0\n')
    [ "$status" -eq 3 ] # a zero byte is no empty line
    [[ $output == '{"line":3,'*0x00* ]]
    run quick --requests missing
    [ "$status" -eq 3 ]
}

@test "answers that nobody takes end it" {
    need_model
    run bash -c "yes '{\"class\": 4, \"force\": true, \"out\": \"a.png\"}' |
        \"$NALAGEN\" sample --vae '$vae' --size 64 --sampler euler --steps 1 --requests - >/dev/full"
    [ "$status" -eq 7 ]
}

# answers TEXT...: what the small model answers to these lines; $options: more options.
answers() {
    [ -f tiny.safetensors ] || "$MAKE_MODEL" tiny.safetensors
    printf '%s\n' "$@" >in.jsonl
    "$NALAGEN" sample -m tiny.safetensors --steps 1 --cfg-scale 1 "${options[@]}" --requests in.jsonl
}

@test "nothing goes between the answers, whatever it is called" {
    ln -s /dev/stdout link.png
    ln -s /proc/self/fd/1 seed3.png
    local names=(- /dev/stdout /dev/fd/1 /proc/self/fd/1 link.png)
    for name in "${names[@]}"; do
        run -2 --separate-stderr answers "{\"out\": \"$name\", \"force\": true}" "{\"latents\": \"$name\", \"force\": true}"
        json_lines 'x["code"] == 2 and "standard output" in x["error"]' <<<"$output"
    done
    # a pattern that makes the name of a link; answers in a regular file
    answers '{"out": "seed%d.png", "first_index": 3, "force": true}' >out.jsonl || true
    json_lines 'x["code"] == 2 and "standard output" in x["error"]' <out.jsonl
    answers '{"out": "a.png"}' '{"latents": "out.jsonl", "out": "b.png", "force": true}' >out.jsonl || true
    json_lines 'x["status"] == ("ok", "usage error")[i]' <out.jsonl
    run -2 "$NALAGEN" sample -m tiny.safetensors --json -o /dev/stdout
    "$NALAGEN" sample -m tiny.safetensors --steps 1 -q -o /dev/stdout | cat >piped.png
    "$NALAGEN" sample -m tiny.safetensors --steps 1 -q -o - >plain.png
    cmp piped.png plain.png
}

@test "ids, seeds and other integers keep their digits" {
    run -0 --separate-stderr answers '{"id": 9007199254740993, "seed": 18446744073709551615, "out": "a.png"}' \
        '{"id": {"a": [9007199254740991, -9223372036854775808]}, "seed": 9007199254740993, "out": "b.png"}' \
        '{"id": 123456789012345678901234567890, "seed": "9007199254740993", "out": "c.png"}'
    json_lines '(x["id"], x["pictures"][0]["seed"]) == [(9007199254740993, "18446744073709551615"),
        ({"a": [9007199254740991, -9223372036854775808]}, "9007199254740993"),
        (123456789012345678901234567890, "9007199254740993")][i]' <<<"$output"
    run -2 --separate-stderr answers '{"seed": 18446744073709551616}' '{"n": 9007199254740993}'
    json_lines 'x["code"] == 2' <<<"$output"
    one_colour
    echo '{"seed": 9007199254740993, "batch": 2}' >options.json
    "$NALAGEN" train -m SiT-1x32x1/4 -d data -o run --options options.json --steps 1 --device cpu -q
    grep -q 9007199254740993 run/config.json
}

@test "a line that is too long for --max-memory is answered and passed over" {
    "$MAKE_MODEL" tiny.safetensors
    python3 - "$NALAGEN" <<'END'
import json, resource, subprocess, sys
child = subprocess.Popen([sys.argv[1], 'sample', '-m', 'tiny.safetensors', '--steps', '1', '--max-memory', '24M',
                          '--requests', '-'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdin.write(b'{"id": 1, "out": "a.png"}\n{"id": "')
for _ in range(400):
    child.stdin.write(b'x' * 1000000)
text, _ = child.communicate(b'"}\n{"id": 3, "out": "b.png"}')
assert child.returncode == 4, child.returncode
lines = [json.loads(line) for line in text.splitlines()]
assert [(x['line'], x['status']) for x in lines] == [(1, 'ok'), (2, 'out of memory'), (3, 'ok')], lines
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
assert peak < 300, peak
END
}

@test "pipes that do not wait, at both ends" {
    "$MAKE_MODEL" tiny.safetensors
    python3 - "$NALAGEN" <<'END'
import fcntl, json, os, subprocess, sys, threading, time
def pipe():
    ends = os.pipe()
    for fd in ends:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
    return ends
ask_out, ask_in = pipe()
answer_out, answer_in = pipe()
child = subprocess.Popen([sys.argv[1], 'sample', '-m', 'tiny.safetensors', '--steps', '1', '--requests', '-'],
                         stdin=ask_out, stdout=answer_in)
os.close(ask_out), os.close(answer_in)
def say(data):
    while data:
        try:
            data = data[os.write(ask_in, data):]
        except BlockingIOError:
            time.sleep(0.01)
text = b''
def listen():
    global text
    time.sleep(3) # nobody takes the answers, which are larger than the pipe
    while True:
        try:
            piece = os.read(answer_out, 1 << 16)
        except BlockingIOError:
            time.sleep(0.01)
            continue
        if not piece:
            break
        text += piece
listener = threading.Thread(target=listen)
listener.start()
time.sleep(1) # it finds nothing to read
for i in range(3):
    line = json.dumps({'id': 'x' * 300000, 'out': f'{i}.png'}).encode() + b'\n'
    say(line[:70000])
    time.sleep(0.2)
    say(line[70000:])
os.close(ask_in)
listener.join()
assert child.wait() == 0
lines = [json.loads(line) for line in text.splitlines()]
assert [(len(x['id']), x['status']) for x in lines] == 3 * [(300000, 'ok')], [(x['status'], x.get('error')) for x in lines]
END
    # what is longer than the pipe takes at once
    python3 - "$NALAGEN" <<'END'
import fcntl, os, subprocess, sys, time
out, into = os.pipe()
fcntl.fcntl(into, 1031, 4096) # F_SETPIPE_SZ
fcntl.fcntl(into, fcntl.F_SETFL, os.O_NONBLOCK)
child = subprocess.Popen([sys.argv[1], 'completion', 'bash'], stdout=into)
os.close(into)
time.sleep(0.5)
text = os.fdopen(out, 'rb').read()
assert child.wait() == 0 and text == subprocess.check_output([sys.argv[1], 'completion', 'bash']) and len(text) > 4096
END
}

@test "--root keeps requests in a folder" {
    mkdir -p root/in outside
    ln -s ../outside root/way-out
    ln -s "$PWD/outside/new.png" root/nowhere.png
    ln -s in root/way-in
    "$MAKE_MODEL" tiny.safetensors
    "$NALAGEN" sample -m tiny.safetensors --steps 1 -q -o root/first.png --latents root/noise.npy
    cp root/noise.npy outside/noise.npy
    ln -s ../outside/noise.npy root/other.npy
    options=(--root root)
    run --separate-stderr answers '{"out": "a.png"}' '{"out": "root/../a.png"}' '{"out": "root/new/../../a.png"}' \
        "{\"out\": \"$PWD/outside/a.png\"}" '{"out": "root/way-out/a.png"}' '{"out": "root/way-out/new/%d.png"}' \
        '{"out": "root/nowhere.png"}' '{"latents": "outside/a.npy", "out": "root/b.png"}' '{"out": "outside/a.npz"}' \
        '{"noise": "outside/noise.npy", "out": "root/c.png"}' '{"noise": "root/other.npy", "out": "root/c.png"}' \
        '{}' '{"class": 0, "n": 2}' '{"out": "/dev/null"}' '{"out": "root/nowhere.png", "force": true}'
    [ "$status" -eq 2 ]
    json_lines 'x["code"] == 2 and "--root root" in x["error"]' <<<"$output"
    [ "$(wc -l <<<"$output")" -eq 15 ]
    [ "$(ls outside)" = noise.npy ]
    [ ! -e a.png ]
    [ ! -e root/new ]
    run -0 --separate-stderr answers '{"out": "root/a.png"}' "{\"out\": \"$PWD/root/new/b.png\"}" '{"out": "root/way-in/c.png"}' \
        '{"out": "root/", "n": 2}' '{"noise": "root/noise.npy", "out": "root/d.npz"}' '{"latents": "root/e.npy", "out": "root/e.png"}'
    [ -f root/new/b.png ]
    [ -f root/in/c.png ]
    [ -f root/d.npz ]
    # links that a pattern leads to
    ln -s ../outside/x.png root/p1.png
    touch outside/x.png
    run --separate-stderr answers '{"out": "root/p%d.png", "n": 2, "force": true}'
    json_lines '"--root root" in x["error"]' <<<"$output"
    [ ! -s outside/x.png ]
    run -2 "$NALAGEN" sample -m tiny.safetensors --root root
    run -2 "$NALAGEN" sample -m tiny.safetensors --root nowhere --requests in.jsonl
}
