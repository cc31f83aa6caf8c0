#!/bin/sh
# SPDX-License-Identifier: MIT
# `nalagen serve` under many clients, in batches as they come and then one picture at a time: pictures a second, latencies,
# memory, what was lost. A line of JSON for each of the two goes to standard output; exit code 1: something was lost.
#   bench/serve_load.sh [SECONDS] [BUILD_FOLDER]     default 300 seconds, build-cuda where there is one, else build
#   DEVICE=auto  CLIENTS=64  STEPS=4  SIDES=1,1,1,0.5 (of the model's size)  MODEL=FILE (the one that ships)  BATCHES="0 1" (0: as fits)
#   CALM=1: no client goes away or sends nonsense; compares speeds
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
seconds=${1:-300}
build=${2:-$root/build-cuda}
[ -x "$build/nalagen" ] || build=$root/build
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
code=0
for batch in ${BATCHES:-0 1}; do
    set -- --quiet --port 0 --device "${DEVICE:-auto}"
    [ "$batch" -eq 0 ] || set -- "$@" --batch "$batch"
    [ -z "${MODEL:-}" ] || set -- "$@" --model "$MODEL"
    rm -f "$work/url"
    "$build/nalagen" serve "$@" >"$work/url" 2>"$work/log" &
    server=$!
    until [ -s "$work/url" ]; do
        kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
        sleep 0.1
    done
    python3 "$root/bench/serve_load.py" "$(cat "$work/url")" --pid "$server" --seconds "$seconds" --clients "${CLIENTS:-64}" \
        --steps "${STEPS:-4}" --sides "${SIDES:-1,1,1,0.5}" --batch "$batch" ${CALM:+--calm} || code=1
    kill "$server"
    wait "$server" || { echo "the server ended with $?" >&2; code=1; }
    server=
    [ ! -s "$work/log" ] || cat "$work/log" >&2
done
exit $code
