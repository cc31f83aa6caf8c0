# SPDX-License-Identifier: MIT
# The program on a GPU.
load helper

need_gpu() {
    need_model
    nvidia-smi -L >/dev/null 2>&1 || skip "no GPU"
}

@test "info --device=cuda says what the card is and measures it" {
    need_gpu
    run "$NALAGEN" info --device=cuda
    [ "$status" -eq 0 ]
    for fact in card compute_capability memory driver cublaslt cudnn nccl copy_gb_per_second bf16_tflops f32_tflops; do
        [[ "$output" == *"$fact: "* ]]
    done
    "$NALAGEN" info --json --device cuda | json_lines 'x["copy_gb_per_second"] > 100 and x["bf16_tflops"] > x["f32_tflops"]'
}

@test "the largest guidance scale: a picture, or code 6 and the step" {
    need_gpu
    "$MAKE_MODEL" tiny.safetensors # the one that ships has guidance in its weights
    for precision in bf16 f32; do
        run --separate-stderr timeout 60 "$NALAGEN" sample -m tiny.safetensors --device cuda --dtype $precision -c 4 \
            --sampler heun --steps 25 --cfg-scale 1000 --out $precision.png
        case $status in
        0) is_png $precision.png ;;
        6) [[ "$stderr" == *step* && ! -e $precision.png ]] ;;
        *) echo "$status: $stderr" && false ;;
        esac
    done
}

@test "a batch job ended by SIGTERM resumes to the same archive" {
    need_gpu
    local job=(sample --device cuda -n 512 -b 32 -c balanced --sampler heun --steps 10 -q) status=0
    "$NALAGEN" "${job[@]}" --out whole.npz
    "$NALAGEN" "${job[@]}" --out parts.npz &
    local pid=$!
    for ((i = 0; i < 2000; i++)); do
        [ -f parts.npz.journal ] && [ "$(grep -ao done parts.npz.journal | wc -l)" -ge 64 ] && break
        sleep 0.01
    done
    kill -TERM $pid
    wait $pid || status=$?
    [ "$status" -eq 130 ]
    [ ! -e parts.npz ]
    "$NALAGEN" "${job[@]}" --out parts.npz
    cmp whole.npz parts.npz
}
