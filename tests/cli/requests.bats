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
{"class": 4, "steps": 3, "out": "c.png", "force": true, "cfg_scale": 2.5}
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
