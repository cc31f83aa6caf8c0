#!/bin/sh
# SPDX-License-Identifier: MIT
# Where the time of one picture goes, from the command to the file, and of another one by the same process.
#
#   bench/picture.sh [OPTION]...        further options of nalagen sample (--dtype bf16, --device cuda, --model FILE)
#
# Milliseconds, medians of RUNS (7) runs behind one that is not counted: start (of the process, until the device is ready), load
# (model and autoencoder), network, decoder, file (PNG), the whole by the clock; next: another picture of --requests.
# From the environment: NALAGEN (the program), RUNS, BEFORE (what stands before the command, such as "chrt -f 10").
set -eu
nalagen=${NALAGEN:-nalagen} runs=${RUNS:-7}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

run=0
while [ $run -le "$runs" ]; do
    began=$(date +%s%N)
    # shellcheck disable=SC2086 # a command, options
    ${BEFORE:-} "$nalagen" sample --class 0 --force -v -o "$folder/picture.png" "$@" 2>"$folder/log" >/dev/null || {
        cat "$folder/log" >&2
        exit 1
    }
    ended=$(date +%s%N)
    [ $run -eq 0 ] || awk -v whole=$(((ended - began) / 1000)) '
        function part(name) { printf "%s %.1f\n", name, 1000 * (1 * $2 - last); last = 1 * $2 }
        / is ready$/ { part("start") }
        /the model is loaded$/ { part("load") }
        / latents$/ { part("network") }
        / pictures$/ { part("decoder") }
        / evaluations? of the network/ { part("file") }
        END { printf "whole %.1f\n", whole / 1000 }' "$folder/log" >>"$folder/parts"
    run=$((run + 1))
done
yes '{"class": 0, "out": "'"$folder"'/picture.png", "force": true}' | head -n $((runs + 1)) >"$folder/requests"
# shellcheck disable=SC2086
${BEFORE:-} "$nalagen" sample --requests "$folder/requests" --json "$@" 2>/dev/null |
    sed -n '2,$s/.*"seconds": *\([0-9.]*\).*/next \1/p' | awk '{ printf "next %.1f\n", 1000 * $2 }' >>"$folder/parts"
for name in start load network decoder file whole next; do
    awk -v name=$name '$1 == name { print $2 }' "$folder/parts" | sort -n |
        awk -v name=$name '{ v[NR] = $1 } END { printf "%-8s %6.1f ms  (%.1f to %.1f)\n", name, v[int((NR + 1) / 2)], v[1], v[NR] }'
done
