#!/bin/sh
# SPDX-License-Identifier: MIT
# How long many tokens take from the command to the files: start, loading, network, decoder and PNGs; NaLa with lepe, NaLa, softmax.
#
#   bench/large_sampling.sh [OPTION]...     further options of nalagen sample (-t 14, --dtype fp32)
#
# A line of JSON for each: seconds, bytes of the files, and what nvidia-smi said of the card's memory at most (MiB; 0 without it).
# The models have one training step behind them. What they draw is noise: the network's time is that of any model, the PNGs are larger than those of pictures.
# From the environment: NALAGEN (the program), DEVICE (cuda), TURNS (2), SIZE (S: of the network, or 2x64x2),
# CASES: PX:PATCH:PICTURES:BATCH ..., with the autoencoder's 8 px a latent (PX / 8 / PATCH)^2 tokens
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
nalagen=${NALAGEN:-nalagen} device=${DEVICE:-cuda} size=${SIZE:-S}
cases=${CASES:-1024:1:1:1 1024:1:64:16 2048:2:1:1 2048:2:16:4 2048:1:1:1 2048:1:4:2}
work=$(mktemp -d)
watcher=
trap '[ -z "$watcher" ] || kill $watcher; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$work/pictures/a" "$work/pictures/b"
cp "$root/samples/church.png" "$work/pictures/a"
cp "$root/samples/church.png" "$work/pictures/b"

model() { # NAME PX PATCH: its file, made where it is not there
    file=$work/$1-$2-$3.safetensors
    [ ! -e "$file" ] || return 0
    [ -e "$work/data-$2" ] || "$nalagen" encode "$work/pictures" -o "$work/data-$2" --size "$2" --device "$device" -q
    case $1 in
    lepe) set -- "$@" NaLaSiT '{"lepe": true}' ;;
    nala) set -- "$@" NaLaSiT '{}' ;;
    softmax) set -- "$@" SiT '{}' ;;
    esac
    "$nalagen" train -m "$4-$size/$3" --config "$5" -d "$work/data-$2" -o "$work/run" --steps 1 -b 2 --sample-every 0 --device "$device" -q
    mv "$work/run/model.safetensors" "$file"
    rm -r "$work/run"
}
for turn in $(seq "${TURNS:-2}"); do
    for one in $cases; do
        px=${one%%:*} rest=${one#*:}
        patch=${rest%%:*} rest=${rest#*:}
        for name in lepe nala softmax; do
            model $name "$px" "$patch"
            rm -rf "$work/out"
            : >"$work/memory"
            while :; do
                nvidia-smi -i "${CUDA_VISIBLE_DEVICES:-0}" --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null || true
                sleep 0.05
            done >"$work/memory" &
            watcher=$!
            began=$(date +%s%N)
            "$nalagen" sample -m "$file" -c balanced -n "${rest%:*}" --batch "${rest#*:}" -s 1 --sampler ab2 --steps 20 --cfg-scale 1 \
                -o "$work/out/" --device "$device" -q "$@" >"$work/names"
            ended=$(date +%s%N)
            kill $watcher
            watcher=
            awk -v name=$name -v px="$px" -v patch="$patch" -v n="${rest%:*}" -v batch="${rest#*:}" -v turn="$turn" \
                -v ms=$(((ended - began) / 1000000)) -v bytes="$(cat "$work"/out/*.png | wc -c)" '
                $1 > most { most = $1 }
                END {
                    printf "{\"model\": \"%s\", \"picture\": %d, \"tokens\": %d, \"pictures\": %d, \"batch\": %d, \"turn\": %d, ", name, px, (px / 8 / patch) ^ 2, n, batch, turn
                    printf "\"seconds\": %.3f, \"card_mib\": %d, \"bytes\": %d}\n", ms / 1000, most, bytes
                }' "$work/memory"
        done
    done
done
