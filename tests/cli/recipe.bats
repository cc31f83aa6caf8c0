# SPDX-License-Identifier: MIT
# nalagen train --recipe small: what it says and stores, what is given by hand, a run that goes on; --hold-out.
load helper

# CIFAR-10's format: `each` pictures of 32 x 32 of each of two classes.
data() {
    mkdir -p set
    python3 -c '
import sys
with open("set/data_batch_1.bin", "wb") as file:
    for i in range(2 * int(sys.argv[1])):
        label = i % 2
        file.write(bytes([label]) + bytes((x * (1 + label) + y + 9 * i + 80 * c) % 256 for c in range(3) for y in range(32) for x in range(32)))' "$1"
    "$NALAGEN" encode set -o data --vae none --device cpu -q
}

train() {
    "$NALAGEN" train --recipe small -m SiT-1x32x1/8 -d data -o run --device cpu --threads 2 --steps 4 --sample-every 0 "$@"
}

training() { # EXPRESSION of x, the options of the run
    python3 -c 'import json, sys; x = json.load(open("run/config.json"))["training"]; assert eval(sys.argv[1]), x' "$1"
}

@test "the recipe says what it chose, stores it, and leaves what is given" {
    data 20
    run train --lr 1e-4 --keep 3 # as the defaults are, and not as the recipe has it
    [ "$status" -eq 0 ] || { echo "$output"; false; }
    [[ $output == *"recipe small for 40 pictures of "*"--dropout 0.2"*"--hold-out 0.1"* ]]
    [[ $output == *"nalagen sample -m run"* && $output != *internal-guidance* ]] # one block has no middle
    [[ $output == *"4 pictures are held out"*"nalagen average run"* ]]
    [[ $output == *"validation loss"* ]]
    training "x['recipe'] == 'small' and x['dropout'] == 0.2 and x['batch'] == 16 and x['patience'] == 8 and x['steps'] == 4"
    training "'keep' not in x and 'lr' not in x and 'minutes' not in x and x['ema'] == 'power:0.1,power:0.05'"
    python3 -c 'import json; x = json.load(open("run/config.json"))["data"]; assert x["samples"] == 36, x'
    [ -s run/model.safetensors ]
    # It goes on with what it was begun with, whatever the recipe would choose now, and what is given.
    sed -i 's/"dropout":0.2/"dropout":0.3/' run/config.json
    train --steps 6 -q
    training "x['dropout'] == 0.3 and x['steps'] == 6 and x['batch'] == 16"
    "$NALAGEN" train -o run --steps 8 -q
    training "x['dropout'] == 0.3 and x['steps'] == 8 and x['recipe'] == 'small'"
}

@test "without enough pictures of a class nothing is held out, and that is said" {
    data 5
    run train
    [ "$status" -eq 0 ]
    [[ $output == *"nothing is held out"* ]]
    training "'patience' not in x and 'hold_out' not in x"
    run train --hold-out 0.1 -n
    [ "$status" -eq 2 ]
    [[ $output == *"one picture of 10 is to be held out, and no class has so many"* ]]
}

@test "what is no recipe is refused; the published one changes nothing" {
    data 5
    run "$NALAGEN" train --recipe smal -d data -o run
    [ "$status" -eq 2 ]
    [[ $output == *"did you mean small?"* ]]
    run "$NALAGEN" train --recipe published -d data -o run
    [ "$status" -eq 2 ]
    [[ $output == *"expected a model by name"* ]]
    run "$NALAGEN" train --recipe small -o run
    [ "$status" -eq 2 ]
    [[ $output == *"expected the data set"* ]]
    run train --val data --hold-out 0.2
    [ "$status" -eq 2 ]
    [[ $output == *"give one of them"* ]]
}

@test "a data set of the shipped model's latents starts from it, configured on the command line" {
    need_model
    "$NALAGEN" sample -c 0,1 -n 4 --steps 1 --size 64 -o pictures/ -q >/dev/null
    "$NALAGEN" encode pictures --unconditional -o data --size 64 --crops 2 --device cpu -q
    run "$NALAGEN" train --recipe small -d data -o run --device cpu -n
    [ "$status" -eq 0 ] || { echo "$output"; false; }
    [[ $output == *"--init nalasit-s2-256.safetensors"*"ends after 60 minutes"*"--internal-guidance 2"* ]]
    [[ $output == *'"crop_conditioning": true'* ]]
    run "$NALAGEN" train --init nalasit-s2-256.safetensors --config '{"middle_heads": 4}' -d data -o run --device cpu -n
    [ "$status" -ne 0 ]
    [[ $output == *"--config"*"middle_head"* ]]
}
