#!/bin/sh
# SPDX-License-Identifier: MIT
# `nalagen eval` from the archive to the report, beside the network alone: pictures a second, and what takes the time.
#   bench/eval_end_to_end.sh [N] [BUILD_FOLDER]      N pictures of 256 px (50000: 9.8 GB), default build-cuda
# The weights are seeded (make_inception), the numbers those of no model.
#   DEVICE=cuda  PRECISION="fp16 tf32"  METRICS=fid,sfid,is  SIZE=256
#   WORK: folder of the archives, removed afterwards (a new one in TMPDIR)
#   PYTHON=python3 with numpy; with PyTorch on a GPU the peer's network is timed as well (PEER=0: it is not)
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
count=${1:-50000}
build=${2:-$root/build-cuda}
device=${DEVICE:-cuda} precisions=${PRECISION:-fp16 tf32} metrics=${METRICS:-fid,sfid,is} size=${SIZE:-256}
python=${PYTHON:-python3}
"$python" -c 'import numpy' 2>/dev/null || python=/usr/bin/python3
work=${WORK:-$(mktemp -d)}
mkdir -p "$work"
clean() {
    exec 3>&-
    rm -f "$work/weights.safetensors" "$work/samples.npz" "$work/pictures.npz" "$work/ref.npz" "$work/report.json" \
        "$work/peer" "$work/peer.txt" "$work/peer.json"
}
trap 'clean; rmdir "$work" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

# The peer compiles meanwhile, and measures when it is told to.
peer=
exec 3>/dev/null
if [ "$device" = cuda ] && [ "${PEER:-1}" = 1 ] &&
    "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    mkfifo "$work/peer"
    "$python" "$root/bench/peer_torch.py" inception --wait --json "$work/peer.json" <"$work/peer" >"$work/peer.txt" &
    peer=$!
    exec 3>"$work/peer"
fi
"$build/tests/make_inception" "$work/weights.safetensors"
# Pictures from a pool of smoothed noise, each shifted and brightened in its own way: all different, written at the speed
# of the disk.
"$python" - "$work" "$count" "$size" <<'END'
import sys, zipfile
import numpy as np

def write(path, count, size, seed):
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 200, (64, size // 8, size // 8, 3), dtype=np.uint8)
    pool = coarse.repeat(8, 1).repeat(8, 2) + rng.integers(0, 28, (64, size, size, 3), dtype=np.uint8)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("arr_0.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "|u1", "fortran_order": False, "shape": (count, size, size, 3)})
            for i in range(count):
                picture = np.roll(pool[i % 64].reshape(-1), 3 * (i // 64) * 37)
                file.write((picture + np.uint8(i % 29)).data)

work, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
write(work + "/samples.npz", count, size, 0)
write(work + "/pictures.npz", min(count, 10000), size, 1)
END
small=
[ "$count" -gt 2048 ] || small=--allow-small
[ "$device" != cpu ] || precisions=fp32 batch="--batch 8"
"$build/nalagen" stats -q $small --device "$device" --precision "${precisions%% *}" -w "$work/weights.safetensors" --images 0 \
    "$work/pictures.npz" -o "$work/ref.npz"
cat "$work/samples.npz" >/dev/null # into the page cache, as far as it goes
while [ "$peer" ] && kill -0 "$peer" 2>/dev/null && ! grep -q ready "$work/peer.txt"; do
    sleep 1
done

for precision in $precisions; do
    begin=$(date +%s%N)
    "$build/nalagen" eval -q --json $small --device "$device" --precision "$precision" --metrics "$metrics" \
        -w "$work/weights.safetensors" "$work/samples.npz" --ref "$work/ref.npz" >"$work/report.json"
    total=$((($(date +%s%N) - begin) / 1000000))
    # shellcheck disable=SC2086
    alone=$("$build/bench/nl_bench_images" --device "$device" --size "$size" ${batch:-} --precision "$precision" --json inception)
    "$python" - "$work/report.json" "$total" "$alone" <<'END'
import json, sys

report, total, alone = json.load(open(sys.argv[1])), int(sys.argv[2]) / 1e3, json.loads(sys.argv[3])
n, samples, metrics = report["n"], report["seconds_samples"], report["seconds_metrics"]
first, batch = report["seconds_first_batch"], alone["batch"]
network = n / alone["per_second"]
parts = {"the network": network, "first batch: kernels and plans": first,
         "reading, uploading and statistics beyond that": samples - first - network,
         "metrics": metrics, "start: device, weights, files, hashes": total - report["seconds"]}
print(f"{report['device']}, {report['precision']}, {n} pictures of {alone['size']} px, {', '.join(report['metrics'])}")
print(f"end to end        {total:9.2f} s  {n / total:10.1f} pictures/s")
print(f"passing pictures  {samples:9.2f} s  {n / samples:10.1f} pictures/s, "
      f"{(n - batch) / (samples - first):.1f} after the first batch")
print(f"network alone     {network:9.2f} s  {alone['per_second']:10.1f} pictures/s (batch {alone['batch']})")
for name, value in parts.items():
    print(f"  {max(value, 0):8.2f} s  {name}")
print("bottleneck:", max(parts, key=parts.get), flush=True)
END
done

if [ "$peer" ]; then
    echo go >&3
    wait "$peer"
    grep inception "$work/peer.txt"
fi
