# SPDX-License-Identifier: MIT
# --device on any machine: devices that are not there, the fall back to the CPU.
load helper

has_gpu() {
    nvidia-smi -L >/dev/null 2>&1
}

@test "a device that is not there: exit code 5 and what to do" {
    need_model
    has_gpu && skip "this machine has a GPU"
    for device in cuda cuda:0 cuda:7; do
        run --separate-stderr quick -c 4 -o a.png --device $device
        [ "$status" -eq 5 ]
        [[ "$stderr" == *cpu* ]]
        [ ! -e a.png ]
    done
}

@test "a GPU of a number that no machine has: exit code 5" {
    need_model
    run --separate-stderr quick -c 4 -o a.png --device cuda:999
    [ "$status" -eq 5 ]
    [ ! -e a.png ]
}

@test "auto falls back to the CPU, in a build with CUDA too" {
    need_model
    has_gpu && skip "this machine has a GPU"
    quick -c 4 -o a.png --device auto
    quick -c 4 -o b.png --device cpu
    cmp a.png b.png
}

@test "names that are no device: exit code 2" {
    need_model
    for device in gpu cuda: cuda:x cuda:-1 CPU2; do
        run quick -c 4 -o a.png --device "$device"
        [ "$status" -eq 2 ] || { echo "$device: $status $output"; false; }
    done
}

@test "info --device says what the CPU is and measures it; a device that is not there is named" {
    run "$NALAGEN" info --device=cpu
    [ "$status" -eq 0 ]
    [[ "$output" == *"instructions: "* && "$output" == *"copy_gb_per_second: "* && "$output" == *"f32_tflops: "* ]]
    run --separate-stderr "$NALAGEN" info --json --device cpu
    [ "$status" -eq 0 ]
    [[ "$output" == '{"device":"cpu",'*'"f32_tflops":'* ]]
    run "$NALAGEN" info --device cuda:999
    [ "$status" -eq 5 ]
    run "$NALAGEN" info --device=gpu
    [ "$status" -eq 2 ]
    [[ "$output" == *"expected auto, cpu"* ]]
}
