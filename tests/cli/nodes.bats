# SPDX-License-Identifier: MIT
# Training and evaluation on two machines as far as one machine can show it: two network namespaces with a cable between them, host names of
# their own, Open MPI over TCP. What only a cluster can show: NCCL between hosts, file systems of many machines, Slurm.
load helper

# Namespaces left and right, 10.213.77.1 and .2; `on HOST COMMAND...` runs there.
lay_cable() {
    [ "$(id -u)" = 0 ] || skip "not root"
    command -v ip >/dev/null && command -v nsenter >/dev/null || skip "no ip or nsenter"
    left=nl$$a right=nl$$b
    ip netns add "$left" 2>/dev/null && ip netns add "$right" 2>/dev/null || skip "no network namespaces here"
    ip link add "v$$a" type veth peer name "v$$b" 2>/dev/null || skip "no virtual cables here"
    local side=1 name
    for name in "$left" "$right"; do
        local end=v${name#nl}
        ip link set "$end" netns "$name"
        ip -n "$name" addr add "10.213.77.$side/24" dev "$end"
        ip -n "$name" link set "$end" up
        ip -n "$name" link set lo up
        side=2
    done
    cat >on <<'END'
#!/bin/bash
host=$1; shift
exec nsenter --net="/run/netns/$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$*"' "$host" "$@"
END
    printf '#!/bin/sh\nhostname >>hosts\nexec "$@"\n' >place
    chmod +x on place
}

# nalagen with these arguments, two processes on each of the two; standard error to the file err.
on_both() {
    export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0 # MPI's own
    ./on "$left" timeout 300 mpirun --allow-run-as-root --oversubscribe -mca plm_rsh_agent "$PWD/on" -mca btl tcp,self \
        -mca btl_tcp_if_include 10.213.77.0/24 -mca oob_tcp_if_include 10.213.77.0/24 -host "$left:2,$right:2" -x OMP_NUM_THREADS -x ASAN_OPTIONS \
        "$PWD/place" "$NALAGEN" "$@" 2>err || { cat err; false; }
}

teardown() {
    [ -z "${left:-}" ] || ip netns del "$left" 2>/dev/null || true
    [ -z "${right:-}" ] || ip netns del "$right" 2>/dev/null || true
}

@test "two machines train the model that one process trains, and the gradients cross the cable" {
    need_mpi
    lay_cable
    one_colour
    options=(-m SiT-1x32x2/2 -d data --steps 6 -b 8 --log-every 1 --sample-every 0 --device cpu -q)
    "$NALAGEN" train "${options[@]}" -o one
    on_both train "${options[@]}" -o two
    [ "$(sort -u hosts)" = "$(printf '%s\n' "$left" "$right" | sort)" ]
    [ "$(wc -l <hosts)" -eq 4 ]
    same_curves 1e-5
    # Half of the gradient, or all of it, of 6 steps: in bytes that came over the cable.
    parameters=$("$NALAGEN" info two/model.safetensors --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["parameters"])')
    received=$(ip netns exec "$right" cat "/sys/class/net/v${right#nl}/statistics/rx_bytes" 2>/dev/null ||
        ip -n "$right" -s -j link show "v${right#nl}" | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["stats64"]["rx"]["bytes"])')
    [ "$received" -ge $((6 * parameters * 4 / 2)) ]
}

@test "two machines find the FID that one process finds" {
    need_mpi
    need_inception
    lay_cable
    "$MAKE_MODEL" tiny.safetensors
    options=(eval -w "$inception" --features pool_64 --metrics fid,kid -m tiny.safetensors -n 66 --sampler euler --steps 2 --cfg-scale 1 --device cpu --json -q)
    "$NALAGEN" sample -q -m tiny.safetensors -n 66 --seed 1 --sampler euler --steps 2 --cfg-scale 1 --device cpu -o ref.npz
    "$NALAGEN" "${options[@]}" --ref ref.npz >one
    on_both "${options[@]}" --ref ref.npz >two
    [ "$(sort -u hosts | wc -l)" -eq 2 ]
    [ "$(wc -l <hosts)" -eq 4 ]
    python3 -c '
import json
one, two = (json.load(open(name))["metrics"] for name in ("one", "two"))
assert one["kid_64"] == two["kid_64"] and abs(one["fid_64"] - two["fid_64"]) <= 1e-9 * one["fid_64"], (one, two)'
}
