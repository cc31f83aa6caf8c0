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

threads_of_the_cpu() {
    env -u OMP_NUM_THREADS -u OMP_PLACES -u GOMP_CPU_AFFINITY "$@" "$NALAGEN" info --json --device cpu >cpu.json
    python3 -c 'import json; print(json.load(open("cpu.json"))["threads"])'
}

@test "OMP_PROC_BIND, OMP_PLACES: as many threads as without, though the first is bound to one processor" {
    [ "$(nproc)" -gt 1 ] || skip "one processor"
    free=$(threads_of_the_cpu OMP_PROC_BIND=false)
    for bound in OMP_PROC_BIND=true OMP_PROC_BIND=close OMP_PLACES=threads; do
        for restart in OMP_DYNAMIC=false GOMP_SPINCOUNT=5000; do # started anew, and not
            found=$(threads_of_the_cpu $bound $restart)
            [ "$found" -eq "$free" ] || { echo "$bound $restart: $found of $free"; false; }
        done
    done
    [ "$(threads_of_the_cpu OMP_PLACES='{0}')" -eq 1 ]
}

# A group of processes with a quota, where this machine lets one be made: in $group, "" where not.
make_quota() {
    local root
    group=
    for root in /sys/fs/cgroup/cpu /sys/fs/cgroup; do
        mkdir "$root/nalagen-test-$$" 2>/dev/null || continue
        group=$root/nalagen-test-$$
        if [ -e "$group/cpu.cfs_quota_us" ] && echo 100000 >"$group/cpu.cfs_quota_us" 2>/dev/null ||
            { [ -e "$group/cpu.max" ] && echo "100000 100000" >"$group/cpu.max" 2>/dev/null; }; then
            return
        fi
        rmdir "$group"
        group=
    done
}

@test "the quota of a control group is how many threads there are" {
    [ "$(nproc)" -gt 1 ] || skip "one processor"
    make_quota
    [ "$group" ] || skip "no group with a quota can be made here"
    found=$(threads_of_the_cpu sh -c "echo \$\$ >$group/cgroup.procs"' && exec "$0" "$@"') || :
    rmdir "$group"
    [ "$found" -eq 1 ]
}
