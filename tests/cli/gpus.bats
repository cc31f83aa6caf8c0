load helper

data() {
    [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -ge 2 ] || skip "no two GPUs"
    one_colour
}

train() {
    timeout 120 "$NALAGEN" train --model NaLaSiT-4x384x6/2 --data data --batch 32 --lr 1e-3 --log-every 1 -q "$@"
}

@test "two GPUs train the model that one trains" {
    data
    train --dtype f32 --steps 6 --out one --device cuda:0
    train --dtype f32 --steps 6 --out two --gpus 2
    same_curves 1e-4
}

@test "a run of two GPUs goes on exactly" {
    data
    train --steps 6 --save-every 3 --out whole --gpus 2
    train --steps 3 --save-every 3 --out parts --gpus 2
    train --steps 6 --save-every 3 --out parts --gpus 2
    cmp whole/model.safetensors parts/model.safetensors
}

@test "a process of two that is killed ends the run, which goes on from its checkpoint" {
    data
    train --steps 1000000 --save-every 2 --keep 2 --out run --gpus 2 &
    local launcher=$!
    kill_one run "--steps 1000000 .*--out run" "$launcher"
    train --steps $((newest + 2)) --save-every 2 --out run --gpus 2
    [ -e run/done ]
}

@test "two GPUs make the archive of one" {
    data
    train --steps 2 --out run --device cuda:0
    "$NALAGEN" sample --model run/model.safetensors --steps 4 -n 64 --batch 16 -q --out one.npz --device cuda:0
    "$NALAGEN" sample --model run/model.safetensors --steps 4 -n 64 --batch 16 -q --out two.npz --gpus 2
    cmp one.npz two.npz
}
