#!/bin/sh
# SPDX-License-Identifier: MIT
# Everything about a GPU in one go: correctness, the peer and our benchmarks on the same card, sanitizers.
#   tests/gpu.sh [BUILD_FOLDER]      a build with -DNL_CUDA=ON -DNL_TESTS=ON -DNL_BENCH=ON (default build-cuda)
# Logs go to $OUT (default out/gpu), figures to bench/results/DATE-CARD.json ($RESULT names another file).
#   PARTS="correctness peer speed training sanitizers"; forward: of speed the networks alone, in bf16 and fp8
#   PYTHON=python3                with PyTorch, for the peer
#   PEER="attention forward train decode inception limits"   its rows; PEER_SECONDS=300: what is not compiled by then is left out
#   PEER_ONLY="XL,fp8" PEER_MODES="default"          of these the rows with such a name; of torch.compile these modes
#   SANITIZER_SECONDS=200         at most as long for each tool
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
build=$(CDPATH='' cd -- "${1:-$root/build-cuda}" && pwd) || exit 2
out=${OUT:-$root/out/gpu}
python=${PYTHON:-python3}
parts=" ${PARTS:-correctness peer speed training sanitizers} "
processes=16 # that share the operation tests
status=0
begun=
mkdir -p "$out"
rm -f "$out"/*.txt "$out"/*.tsv
: >"$out/summary.txt"
report() { printf '%s\n' "$*" | tee -a "$out/summary.txt"; }
wanted() { case $parts in *" $1 "*) ;; *) false ;; esac }
figure() { printf '%s\t%s\t%s\n' "$@" >>"$out/ours.tsv"; }
now() { echo $(($(date +%s%N) / 1000000)); }

# begin NAME COMMAND...: beside others
begin() {
    name=$1
    shift
    {
        since=$(now)
        timeout 300 "$@" >"$out/$name.txt" 2>&1
        echo "$? $((($(now) - since) / 1000))" >"$out/$name.code"
    } &
    begun="$begun $name:$!"
}
# Awaits what was begun; a line of the summary for each, and what failed.
end() {
    for each in $begun; do
        name=${each%:*}
        wait "${each#*:}"
        read -r code took <"$out/$name.code"
        rm -f "$out/$name.code"
        case $code in
        0) report "$name: pass (${took} s)" ;;
        77) report "$name: skipped: $(sed -n 's/^SKIPPED: //p' "$out/$name".txt | head -n 1)" ;;
        *)
            report "$name: FAIL, code $code (${took} s)"
            grep -e ERROR -e FAILED -e error: -e '^not ok' -e '^# ' "$out/$name.txt" | head -n 30
            status=1
            ;;
        esac
    done
    begun=
}
# The operation tests in several processes, under COMMAND; its status is the worst of theirs.
operations() {
    pids='' worst=0
    for part in $(seq $processes); do
        NL_TEST_PART=$part/$processes "$@" "$build/tests/test_operations" >"$out/part-$part.txt" 2>&1 &
        pids="$pids $!"
    done
    for pid in $pids; do
        wait "$pid"
        code=$?
        [ $code -le $worst ] || worst=$code
    done
    for part in $(seq $processes); do
        cat "$out/part-$part.txt"
        rm -f "$out/part-$part.txt"
    done
    return $worst
}
# sanitize TOOL: the operation tests in bf16. What cuBLASLt and cuDNN do in their own kernels is their business, but
# memcheck's, which sees what they were given. (To exclude them by name makes racecheck crash and initcheck blind.)
# initcheck does not see all that a library writes into scratch memory: there that is poisoned, and wrong values tell instead.
sanitize() {
    since=$(now)
    poison=
    [ "$1" != initcheck ] || poison='env NL_CUDA_POISON=1'
    # shellcheck disable=SC2086
    NL_TEST_DTYPE=bf16 operations $poison timeout "${SANITIZER_SECONDS:-200}" compute-sanitizer --tool "$1" --show-backtrace no \
        >"$out/$1.txt"
    code=$?
    all=0
    [ "$1" != memcheck ] || all=1
    awk -v all=$all '
        /^=+ .*(Race reported|Uninitialized|Invalid|Program hit|Internal)/ {
            what = $0
            if (!/ at /) { getline; what = what " " $0 }
            if (!all && what ~ /nvjet|cutlass|cublas|cudnn|gemm|gemv|splitK|xmma/) { theirs++; next }
            sub(/\+0x[0-9a-f]+/, "", what)
            gsub(/=========/, "", what)
            if (!ours[what]++) order[++kinds] = what
        }
        END {
            for (i = 1; i <= kinds; i++) print ours[order[i]] " x" order[i]
            print theirs + 0 " in kernels of libraries" >"/dev/stderr"
            exit kinds > 0
        }' "$out/$1.txt" >"$out/$1-found.txt" 2>"$out/$1-theirs.txt" || code=9
    took=$((($(now) - since) / 1000))
    if [ $code = 0 ]; then
        report "$1: pass ($took s); $(cat "$out/$1-theirs.txt")"
    else
        report "$1: FAIL, code $code ($took s); $(cat "$out/$1-theirs.txt")"
        head -n 20 "$out/$1-found.txt"
        status=1
    fi
}

card=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
commit=${COMMIT:-$(git -C "$root" rev-parse --short HEAD 2>/dev/null)}
export NL_TEST_DEVICE=cuda GOMP_SPINCOUNT=3000
report "$card, driver $driver, $(date -u +%F), commit $commit"

# The peer compiles while tests run, and measures when they have ended; then it is our turn.
peer=
if wanted peer && ! "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    report "peer: skipped: no PyTorch with CUDA"
elif wanted peer; then
    peer=$out/peer.go
    rm -f "$peer"
    mkfifo "$peer"
    # shellcheck disable=SC2086
    "$python" "$root/bench/peer_torch.py" ${PEER:-attention forward train decode inception limits} --seconds "${PEER_SECONDS:-300}" --wait \
        ${PEER_ONLY:+--only "$PEER_ONLY"} ${PEER_MODES:+--modes "$PEER_MODES"} <"$peer" >"$out/peer.tsv" 2>"$out/peer.txt" &
    peer_process=$!
    exec 3>"$peer"
    for _ in $(seq 60); do # it measures attention alone before it compiles
        ! grep -q '^# compiling' "$out/peer.tsv" && kill -0 "$peer_process" 2>/dev/null || break
        sleep 1
    done
fi

if wanted correctness; then
    for name in inception statistics operation_facts golden_attention device dit dit_train fp8 guidance sampler_ddpm sampler_transport vae \
        pipeline; do
        [ ! -x "$build/tests/test_$name" ] || begin $name "$build/tests/test_$name"
    done
    for dtype in f32 bf16; do
        begin operations-$dtype env NL_TEST_DTYPE=$dtype "$build/tests/test_operations"
        begin operations-poisoned-$dtype env NL_TEST_DTYPE=$dtype NL_CUDA_POISON=1 "$build/tests/test_operations"
    done
    begin operations-99k env NL_TEST_DTYPE=bf16 NL_CUDA_SHARED_MEMORY=99 "$build/tests/test_operations"
    suite() {
        ! command -v bats >/dev/null 2>&1 ||
            begin "cli-$1" env NALAGEN="$build/nalagen" NL_SOURCE_DIR="$root" MAKE_MODEL="$build/tests/make_model" \
                MAKE_INCEPTION="$build/tests/make_inception" FORK_FAILS_LIBRARY="$build/tests/libfork_fails.so" \
                bats "$root/tests/cli/$1.bats"
    }
    for name in gpu gpus device batch; do
        suite $name
    done
    end
    suite interrupt # how soon a processor at work is heard wants that processor
    end
fi

if [ "$peer" ]; then
    since=$(now)
    (echo go >&3) 2>/dev/null # no reader: the peer has ended by itself
    exec 3>&-
    wait "$peer_process" || status=1
    rm -f "$peer"
    report "peer: $(($(now) - since)) ms; $(grep -c 'gave up' "$out/peer.txt") rows left out"
    grep 'gave up' "$out/peer.txt"
fi

"$build/nalagen" info --device cuda --json >"$out/device.json" || status=1
report "$(cat "$out/device.json")"

if wanted speed || wanted forward; then # XL/2, B/2 and S/2 with either attention
    "$build/bench/nl_bench_forward" --device cuda --dtype bf16 >>"$out/ours.tsv" || status=1
    "$build/bench/nl_bench_forward" --device cuda --dtype fp8 >>"$out/ours.tsv" 2>"$out/forward-fp8.txt" ||
        report "no figures in fp8: $(tail -n 1 "$out/forward-fp8.txt")"
fi

if wanted speed; then
    started=$(now)
    # The first picture: from the start of the process to the file, less what an empty program takes; in turns.
    for _ in 1 2 3 4 5; do
        begin=$(now)
        "$build/bench/nl_bench_startup" >"$out/empty.txt" || status=1
        middle=$(now)
        "$build/nalagen" sample --class 1 --sampler heun --steps 25 --force -q --device cuda --out "$out/first.png" \
            >"$out/last.txt" 2>&1 || {
            report "first picture: exit $?: $(tail -n 1 "$out/last.txt")" >&2
            status=1
        }
        echo "$((middle - begin)) $(($(now) - middle))"
    done >"$out/start.txt"
    median() { awk -v column="$1" '{ print $column }' "$out/start.txt" | sort -n | sed -n 3p; }
    empty=$(median 1) first=$(median 2)
    figure "empty CUDA program" "$empty" ms
    figure "first picture" "$first" ms
    figure "first picture beyond an empty program" $((first - empty)) ms
    "$build/bench/nl_bench_operations" --device cuda --dtype bf16 attention >>"$out/ours.tsv" || status=1
    # 65,536 tokens in all.
    "$build/bench/nl_bench_forward" --device cuda --dtype bf16 NaLaSiT-S/2:64:64 SiT-S/2:64:64 NaLaSiT-S/2:16:128 SiT-S/2:16:128 \
        NaLaSiT-S/2:4:256 SiT-S/2:4:256 NaLaSiT-S/2:1:512 SiT-S/2:1:512 >>"$out/ours.tsv" || status=1
    for what in vae "--batch 1 vae" "--batch 1 --size 2048 vae" "--precision fp16 inception" "--precision tf32 inception" inception; do
        # shellcheck disable=SC2086
        "$build/bench/nl_bench_images" --device cuda --dtype bf16 --json $what
    done >"$out/images.txt" || status=1
    sed -n -e 's/.*"vae".*"batch": \([0-9]*\), "size": \([0-9]*\),.*"per_second": \([0-9.]*\),.*/decode AutoencoderKL \2 px batch \1\t\3\timages\/s/p' \
        -e 's/.*"inception".*"dtype": "\([a-zA-Z0-9]*\)".*"per_second": \([0-9.]*\),.*/inception 299 px batch 128 \1\t\2\timages\/s/p' \
        "$out/images.txt" >>"$out/ours.tsv"
    begin=$(now)
    if "$build/nalagen" sample -n 2048 --class balanced --sampler heun --steps 25 --force -q --device cuda \
        --out "$out/batch.npz" >"$out/last.txt" 2>&1; then
        figure "archive of 2048, 25 Heun steps with guidance" $(($(now) - begin)) ms
    else
        report "archive: $(tail -n 1 "$out/last.txt")"
        status=1
    fi
    rm -f "$out/batch.npz"
    report "speed: $((($(now) - started) / 1000)) s"
fi

if wanted training; then # on noise, as the peer
    data=$out/data
    mkdir -p "$out/pictures"
    for _ in $(seq 64); do
        printf '\3'
        head -c 3072 /dev/urandom
    done >"$out/noise.bin"
    for _ in $(seq 16); do cat "$out/noise.bin"; done >"$out/pictures/data_batch_1.bin"
    for side in 32 64 128 256; do
        "$build/nalagen" encode "$out/pictures" -o "$data-$side" --vae none --size $side --device cpu --force -q
    done
    # model, batch, pixels of a side: a quarter of their number are tokens
    while read -r model batch side; do
        name="train $model batch $batch"
        [ "$side" = 32 ] || name="$name x $((side * side / 4)) tokens"
        "$build/nalagen" train --model "$model" --batch "$batch" --data "$data-$side" --out "$out/run" --dry-run 2>&1 |
            sed -n -e "s|.*time: .* \([0-9.]*\) images/s.*|$name\t\1\timages/s|p" \
                -e "s|.*memory: \([0-9]*\) MiB.*|$name memory\t\1\tMiB|p" >>"$out/ours.tsv"
    done <<END
NaLaSiT-S/2 256 32
SiT-S/2 256 32
NaLaSiT-XL/2 64 32
NaLaSiT-S/2 64 64
SiT-S/2 64 64
NaLaSiT-S/2 16 128
SiT-S/2 16 128
NaLaSiT-S/2 4 256
SiT-S/2 4 256
END
    "$build/nalagen" train --model NaLaSiT-S/2 --data "$data-32" --out "$out/run" --profile >"$out/profile.txt" 2>&1
    rm -rf "$data"-* "$out/pictures" "$out/run"
fi

touch "$out/ours.tsv" "$out/peer.tsv"
awk -f "$root/bench/figures.awk" "$out/ours.tsv" "$out/peer.tsv" | tee -a "$out/summary.txt"
result=${RESULT:-$root/bench/results/$(date -u +%F)-$(printf '%s' "$card" | tr 'A-Z ' 'a-z-').json}
{
    printf '{"card": "%s", "driver": "%s", "date": "%s", "commit": "%s",\n "peer": "%s",\n "device": %s,\n "figures": ' \
        "$card" "$driver" "$(date -u +%F)" "$commit" "$(sed -n 's/^# .*, \(PyTorch .*\)/\1/p' "$out/peer.tsv")" \
        "$(grep . "$out/device.json" || echo null)"
    awk -v json=1 -f "$root/bench/figures.awk" "$out/ours.tsv" "$out/peer.tsv"
    printf '}\n'
} >"$result"
report "figures: $result"

if wanted sanitizers && command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck racecheck initcheck; do
        sanitize $tool
    done
fi
exit $status
