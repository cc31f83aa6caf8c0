#!/bin/sh
# SPDX-License-Identifier: MIT
# Whether a GPU lowers its clock while whole passes run: clock, power and what limits the clock, read every 100 ms during passes of
# XL/2 and during the operations of such a pass one by one.
#   bench/power.sh [BUILD_FOLDER]       a build with -DNL_CUDA=ON -DNL_BENCH=ON (default build-cuda)
#   PASSES=15 EACH=1                    seconds of the passes with either attention, and of an operation
# One line for each: median clock, mean power, the bits that nvidia-smi calls clocks_event_reasons.active (4: power, 20 and 40:
# temperature, 80: a brake from outside), and the time; then what that says.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
build=${1:-$root/build-cuda}
log=$(mktemp -d)
stamped() { while read -r line; do printf '%s\t%s\n' "$(date +%s%N)" "$line"; done; }

nvidia-smi --query-gpu=clocks.sm,power.draw,clocks_event_reasons.active --format=csv,noheader,nounits -lms 100 >"$log/pipe" &
reader=$!
trap 'kill $reader 2>/dev/null; rm -rf "$log"' EXIT
sleep 1
[ -s "$log/pipe" ] || { echo "nvidia-smi tells neither clocks nor power" >&2; exit 1; }
kill $reader
mkfifo "$log/samples"
nvidia-smi --query-gpu=clocks.sm,power.draw,clocks_event_reasons.active --format=csv,noheader,nounits -lms 100 >"$log/samples" &
reader=$!
stamped <"$log/samples" >"$log/samples.tsv" &
nvidia-smi --query-gpu=name,power.limit,clocks.max.sm --format=csv,noheader
{
    for model in NaLaDiT-XL/2:64 DiT-XL/2:64; do
        "$build/bench/nl_bench_forward" --device cuda --dtype bf16 --seconds "${PASSES:-15}" $model | grep --line-buffered time
        sleep 2
    done
    "$build/bench/nl_bench_operations" --device cuda --dtype fp8 --only XL --seconds "${EACH:-1}" fp8 |
        grep --line-buffered -v -e '^#' -e 'fp8 ' || true
    "$build/bench/nl_bench_operations" --device cuda --dtype bf16 --seconds "${EACH:-1}" attention 64x16x256x72 | grep --line-buffered 'forward.*ms'
} | stamped >"$log/lines.tsv"
kill $reader
awk -F '\t' -v passes="${PASSES:-15}" -v each="${EACH:-1}" '
    FILENAME == ARGV[1] { at[++n] = $1 / 1e9; split($2, value, /, */); clock[n] = value[1]; watts[n] = value[2]; why[n] = value[3]; next }
    {
        # The last 70 % of what it took, up to its line: before that it warms up.
        name = $2
        gsub(/ +$/, "", name)
        pass = name ~ /^forward/
        from = $1 / 1e9 - 0.7 * (pass ? passes : each)
        count = 0; power = 0; reasons = ""
        split("", sorted)
        for (i = 1; i <= n; i++)
            if (at[i] >= from && at[i] <= $1 / 1e9) {
                for (j = count++; j > 0 && sorted[j] > clock[i]; j--) sorted[j + 1] = sorted[j]
                sorted[j + 1] = clock[i]
                power += watts[i]
                short = why[i]; sub(/^0x0*/, "", short); if (short == "") short = "0"
                if (index(" " reasons " ", " " short " ") == 0) reasons = reasons (reasons == "" ? "" : " ") short
            }
        if (!count) next
        middle = sorted[int((count + 1) / 2)]
        printf "%-52s %5d MHz %6.0f W  reasons %-8s %s ms\n", name, middle, power / count, reasons, $3 + 0
        kind = pass ? "whole passes" : "operations"
        sum[kind] += middle; w[kind] += power / count; number[kind]++
    }
    END {
        if (!number["whole passes"] || !number["operations"]) { print "too few samples"; exit 1 }
        a = sum["whole passes"] / number["whole passes"]; b = sum["operations"] / number["operations"]
        printf "whole passes: %.0f MHz at %.0f W; operations one by one: %.0f MHz at %.0f W on the average. ", a, w["whole passes"] / number["whole passes"], b, w["operations"] / number["operations"]
        printf a < 0.98 * b ? "The clock falls during whole passes, by %.1f %%.\n" : "The clock does not fall during whole passes (%.1f %%).\n", 100 * (1 - a / b)
    }' "$log/samples.tsv" "$log/lines.tsv"
