#!/bin/sh
# Everything about a GPU in one go: correctness, sanitizers, benchmarks and the peer on the same card.
#   tests/gpu.sh [BUILD_FOLDER]      a build with -DNL_CUDA=ON -DNL_TESTS=ON -DNL_BENCH=ON (default build-cuda)
# Logs go to $OUT (default out/gpu), figures to bench/results/DATE-CARD.json ($RESULT names another file).
#   SANITIZE=0            without compute-sanitizer; SANITIZE_SECONDS: at most as long for each of its tools (150)
#   PYTHON=python3        with PyTorch, for the peer; PEER="attention forward": parts of it
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
build=${1:-$root/build-cuda}
out=${OUT:-$root/out/gpu}
mkdir -p "$out"
: >"$out/summary.txt"
: >"$out/images.txt"
status=0
report() { printf '%s\n' "$*" | tee -a "$out/summary.txt"; }

# check NAME COMMAND...: a line for the summary, and what failed
check() {
    name=$1
    shift
    "$@" >"$out/$name.txt" 2>&1
    code=$?
    case $code in
    0) report "$name: pass" ;;
    77) report "$name: skipped: $(sed -n 's/^SKIPPED: //p' "$out/$name.txt" | head -n 1)" ;;
    *)
        report "$name: FAIL ($code)"
        grep -e ERROR -e FAILED -e '=====' -e error: "$out/$name.txt" | head -n 30
        status=1
        ;;
    esac
}

card=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
commit=${COMMIT:-$(git -C "$root" rev-parse --short HEAD 2>/dev/null)}
report "$card, driver $driver, $(date -u +%F), commit $commit"

for dtype in f32 bf16; do
    check operations-$dtype env NL_TEST_DEVICE=cuda NL_TEST_DTYPE=$dtype "$build/tests/test_operations"
done
for name in operation_facts golden_attention device dit dit_train guidance sampler_ddpm sampler_transport vae inception pipeline; do
    [ ! -x "$build/tests/test_$name" ] || check $name env NL_TEST_DEVICE=cuda "$build/tests/test_$name"
done
if command -v bats >/dev/null 2>&1; then
    check two_gpus env NALAGEN="$build/nalagen" NL_SOURCE_DIR="$root" bats "$root/tests/cli/gpus.bats"
fi
if command -v compute-sanitizer >/dev/null 2>&1 && [ "${SANITIZE:-1}" = 1 ]; then
    for tool in memcheck racecheck initcheck; do
        check $tool env NL_TEST_DEVICE=cuda NL_TEST_DTYPE=bf16 timeout "${SANITIZE_SECONDS:-150}" \
            compute-sanitizer --tool $tool --error-exitcode 9 "$build/tests/test_operations"
    done
fi

# The picture that the issue of speed speaks of: from the start of the process to the file, and an empty program.
milliseconds() {
    begin=$(date +%s%N)
    "$@" >/dev/null 2>"$out/last.txt" || report "$*: exit $?"
    echo $((($(date +%s%N) - begin) / 1000000))
}
best() { # of three
    for _ in 1 2 3; do milliseconds "$@"; done | sort -n | head -n 1
}
empty=$(best "$build/bench/nl_bench_startup")
first=$(best "$build/nalagen" sample --class church --sampler heun --steps 25 --force --out "$out/first.png")
report "empty CUDA program $empty ms, first picture $first ms"
"$build/nalagen" info --device --json >"$out/device.json"
"$build/bench/nl_bench_forward" --device cuda --dtype bf16 NaLaSiT-S/2:256 SiT-S/2:256 NaLaDiT-XL/2:64 DiT-XL/2:64 \
    >"$out/forward.txt"
cat "$out/forward.txt" >>"$out/summary.txt"
batch=$(milliseconds "$build/nalagen" sample -n 2048 --class balanced --sampler heun --steps 25 --force --out "$out/batch.npz")
rm -f "$out/batch.npz"
report "2048 pictures of 25 Heun steps with guidance into an archive: $batch ms"

# Training on pictures of one colour: what is in them does not matter to the time.
data=$out/data
mkdir -p "$out/pictures"
head -c $((1024 * 3073)) /dev/zero | LC_ALL=C tr '\0' '\3' >"$out/pictures/data_batch_1.bin"
"$build/nalagen" encode "$out/pictures" -o "$data" --vae none --device cpu --force -q
: >"$out/train.txt"
for run in NaLaSiT-S/2:256 SiT-S/2:256 NaLaSiT-XL/2:64; do
    "$build/nalagen" train --model "${run%:*}" --batch "${run#*:}" --data "$data" --out "$out/run" --dry-run 2>&1 |
        sed -n "s|.*time: .* \([0-9.]*\) images/s.*|${run%:*} batch ${run#*:} \1|p" >>"$out/train.txt"
done
sed 's/^/train /; s/$/ images a second/' "$out/train.txt" >>"$out/summary.txt"
"$build/nalagen" train --model NaLaSiT-S/2 --data "$data" --out "$out/run" --profile >"$out/profile.txt" 2>&1
for what in vae inception; do
    "$build/bench/nl_bench_images" --device cuda --dtype bf16 $what >>"$out/images.txt"
done
cat "$out/images.txt" >>"$out/summary.txt"
peer=null
if "${PYTHON:-python3}" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    # shellcheck disable=SC2086
    "${PYTHON:-python3}" "$root/bench/peer_torch.py" ${PEER:-} --json "$out/peer.json" >"$out/peer.txt" && peer=$(cat "$out/peer.json")
else
    report "peer: skipped: no PyTorch with CUDA"
fi

result=${RESULT:-$root/bench/results/$(date -u +%F)-$(printf '%s' "$card" | tr 'A-Z ' 'a-z-').json}
{
    printf '{"card": "%s", "driver": "%s", "date": "%s", "commit": "%s",\n' "$card" "$driver" "$(date -u +%F)" "$commit"
    printf ' "empty_program_ms": %s, "first_picture_ms": %s, "archive_2048_ms": %s,\n' "$empty" "$first" "$batch"
    printf ' "device": %s,\n "forward_per_second": {' "$(cat "$out/device.json")"
    awk '$2 == "batch" { printf "%s\"%s batch %s\": %s", n++ ? ", " : "", $1, $3, $8 }' "$out/forward.txt"
    printf '},\n "train_per_second": {'
    awk '{ printf "%s\"%s batch %s\": %s", n++ ? ", " : "", $1, $3, $4 }' "$out/train.txt"
    printf '},\n "images": {'
    awk 'match($0, /[0-9.]+ \/s/) { printf "%s\"%s\": %s", n++ ? ", " : "", $1, substr($0, RSTART, RLENGTH - 3) }' \
        "$out/images.txt"
    printf '},\n "peer": %s}\n' "$peer"
} >"$result"
report "figures: $result"
exit $status
