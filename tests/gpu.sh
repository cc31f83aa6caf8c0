#!/bin/sh
# Everything about a GPU in one go: correctness, sanitizers, benchmarks. Results go to $OUT (default out/gpu).
#   tests/gpu.sh [BUILD_FOLDER]      a build with -DNL_CUDA=ON -DNL_TESTS=ON (default build-cuda)
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
build=${1:-$root/build-cuda}
out=${OUT:-$root/out/gpu}
mkdir -p "$out"
status=0
report() { printf '%s\n' "$*" | tee -a "$out/summary.txt"; }

report "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader) $(date -u +%F) commit ${COMMIT:-$(git -C "$root" rev-parse --short HEAD 2>/dev/null)}"
for dtype in f32 bf16; do
    if NL_TEST_DEVICE=cuda NL_TEST_DTYPE=$dtype "$build/tests/test_operations" >"$out/operations-$dtype.txt" 2>&1; then
        report "operations $dtype: pass"
    else
        report "operations $dtype: FAIL"
        grep -v -e ' OK ' -e ' RUN ' "$out/operations-$dtype.txt" | head -n 40
        status=1
    fi
done
if command -v compute-sanitizer >/dev/null 2>&1 && [ "${SANITIZE:-1}" = 1 ]; then
    for tool in memcheck racecheck initcheck; do
        # initcheck: the guard elements around test tensors are read by nobody.
        if NL_TEST_DEVICE=cuda NL_TEST_DTYPE=bf16 timeout "${SANITIZE_SECONDS:-150}" compute-sanitizer --tool $tool --error-exitcode 9 \
            "$build/tests/test_operations" >"$out/$tool.txt" 2>&1; then
            report "$tool: clean"
        else
            report "$tool: exit $?"
            grep -m 12 '=========' "$out/$tool.txt"
            status=1
        fi
    done
fi
exit $status
