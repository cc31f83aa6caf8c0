load helper

# CIFAR-10's format, 64 pictures.
data() {
    [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -ge 2 ] || skip "no two GPUs"
    mkdir set
    head -c $((64 * 3073)) /dev/zero | LC_ALL=C tr '\0' '\3' >set/data_batch_1.bin
    "$NALAGEN" encode set -o data --vae none --device cpu -q
}

train() {
    timeout 120 "$NALAGEN" train --model NaLaSiT-4x384x6/2 --data data --batch 32 --lr 1e-3 --log-every 1 -q "$@"
}

@test "two GPUs train the model that one trains" {
    data
    train --dtype f32 --steps 6 --out one --device cuda:0
    train --dtype f32 --steps 6 --out two --gpus 2
    python3 - <<'END'
import json
one, two = ([json.loads(line) for line in open(run + '/log.jsonl')] for run in ('one', 'two'))
assert [x['step'] for x in two] == [1, 2, 3, 4, 5, 6], two
for a, b in zip(one, two):
    for key in 'loss', 'grad_norm':
        assert abs(a[key] - b[key]) < 1e-4 * a[key], (a, b)
END
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
    for ((i = 0; i < 600; i++)); do
        compgen -G 'run/checkpoints/*.safetensors' >/dev/null && break
        sleep 0.1
    done
    pkill -KILL -n -f -- "--steps 1000000 .*--out run"
    local status=0
    wait "$launcher" || status=$?
    [ "$status" -ne 0 ] && [ "$status" -ne 124 ]
    local newest
    newest=$(ls run/checkpoints | sort | tail -1 | tr -dc 0-9)
    train --steps $((10#$newest + 2)) --save-every 2 --out run --gpus 2
    [ -e run/done ]
}

@test "two GPUs make the archive of one" {
    data
    train --steps 2 --out run --device cuda:0
    "$NALAGEN" sample --model run/model.safetensors --steps 4 -n 64 --batch 16 -q --out one.npz --device cuda:0
    "$NALAGEN" sample --model run/model.safetensors --steps 4 -n 64 --batch 16 -q --out two.npz --gpus 2
    cmp one.npz two.npz
}
