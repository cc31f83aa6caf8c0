# SPDX-License-Identifier: MIT
# Samplers of few evaluations: on a small DiT and a small SiT of random weights, so that nothing but them is needed.
load helper

setup_file() {
    "$MAKE_MODEL" "$BATS_FILE_TMPDIR/dit.safetensors" dit
    "$MAKE_MODEL" "$BATS_FILE_TMPDIR/sit.safetensors"
}

tiny() { # dit|sit OPTION...
    "$NALAGEN" sample -m "$BATS_FILE_TMPDIR/$1.safetensors" --threads 1 -c 1 "${@:2}"
}

@test "DPM-Solver++ and UniPC make pictures of a DiT, with an evaluation for each step" {
    for sampler in dpmpp-2m dpmpp-2m-sde unipc; do
        tiny dit --sampler $sampler --steps 6 -o $sampler.png --json |
            json_lines "x['sampler'] == '$sampler' and x['steps'] == 6 and x['evaluations'] == 6"
        "$NALAGEN" sample -m "$BATS_FILE_TMPDIR/dit.safetensors" --threads 1 --from $sampler.png -o again.png --force
        cmp $sampler.png again.png
    done
    [ "$(sha256sum *.png | cut -c 1-64 | sort -u | wc -l)" -eq 3 ]
    tiny dit --sampler unipc -o default.png --json | json_lines 'x["evaluations"] == 20'
    tiny dit --sampler dpmpp-2m-sde -o noisy.png --json | json_lines 'x["evaluations"] == 40'
    tiny dit --sampler unipc --respacing 4,4 -o kept.png --json | json_lines 'x["evaluations"] == 8'
}

@test "they are named in a request, and a SiT refuses them" {
    echo '{"class": 1, "sampler": "dpmpp-2m", "steps": 5, "out": "r.png"}' |
        "$NALAGEN" sample -m "$BATS_FILE_TMPDIR/dit.safetensors" --threads 1 --requests - |
        json_lines 'x["pictures"][0]["evaluations"] == 5'
    tiny dit --sampler dpmpp-2m --steps 5 -o s.png
    cmp r.png s.png
    run -2 tiny sit --sampler unipc -o no.png
    [[ $output == *"sampler unipc does not fit a SiT: use euler"* ]]
    run -2 tiny dit --sampler heun -o no.png
    [[ $output == *"use ddpm, ddim, dpmpp-2m, dpmpp-2m-sde or unipc"* ]]
    run -2 tiny dit --sampler dpmpp-2 -o no.png
    [[ $output == *dpmpp-2m* ]]
}

@test "ab2 takes an evaluation a step, and two at both ends and where guidance was switched" {
    tiny sit --sampler ab2 --cfg-scale 1 -o plain.png --json | json_lines 'x["evaluations"] == 18'
    tiny sit --sampler ab2 --steps 10 -o default.png --json | # guided from 0.1 to 0.9
        json_lines 'x["evaluations"] == 13'
    tiny sit --sampler ab2 --steps 10 --cfg-scale 3 --cfg-interval 0.2,0.6 -o twice.png --json |
        json_lines 'x["evaluations"] == 14'
    tiny sit --sampler ab2 --steps 10 --cfg-scale 3 -o everywhere.png --json |
        json_lines 'x["evaluations"] == 12'
    "$NALAGEN" sample -m "$BATS_FILE_TMPDIR/sit.safetensors" --threads 1 --from twice.png -o again.png
    cmp twice.png again.png
    run -2 tiny dit --sampler ab2 -o no.png
    [[ $output == *"ab2 does not fit a DiT"* ]]
}

@test "--time-shift and --rho place the steps, are recorded, and are refused where there is nothing to place" {
    for options in "--time-shift 3" "--rho 7"; do
        # shellcheck disable=SC2086 # words
        tiny sit --sampler heun --steps 4 $options -o placed.png --force --json |
            json_lines "x['evaluations'] == 7 and 3 == x.get('time_shift', 3) and 7 == x.get('rho', 7) and
                ('time_shift' in x) + ('rho' in x) == 1"
        "$NALAGEN" sample -m "$BATS_FILE_TMPDIR/sit.safetensors" --threads 1 --from placed.png -o again.png --force
        cmp placed.png again.png
        cp placed.png "placed${options// /}.png"
    done
    tiny sit --sampler heun --steps 4 -o even.png
    [ "$(for i in placed-*.png even.png; do "$NALAGEN" info --json "$i" | sha256sum; done | sort -u | wc -l)" -eq 3 ]
    echo '{"class": 1, "sampler": "heun", "steps": 4, "rho": 7, "out": "r.png"}' |
        "$NALAGEN" sample -m "$BATS_FILE_TMPDIR/sit.safetensors" --threads 1 --requests - >/dev/null
    cmp r.png placed--rho7.png
    tiny dit --sampler unipc --steps 4 --rho 7 -o karras.png
    run -2 tiny dit --sampler ddim --steps 4 --rho 7 -o no.png
    [[ $output == *"does not fit ddim"* ]]
    run -2 tiny dit --sampler unipc --time-shift 3 -o no.png
    [[ $output == *"time_shift 3 is for the fixed steps of a SiT"* ]]
    run -2 tiny sit --sampler dopri5 --rho 7 -o no.png
    run -2 tiny sit --sampler heun --time-shift 3 --rho 7 -o no.png
    [[ $output == *"choose one"* ]]
}

@test "the noise of the SDE is a function of seed and picture" {
    for n in 1 3; do
        tiny dit --sampler dpmpp-2m-sde --steps 4 -n 4 --batch $n -s 5 -o $n/
    done
    for i in 1/*; do
        cmp "$i" "3/${i#1/}"
    done
    tiny dit --sampler dpmpp-2m-sde --steps 4 -n 1 -s 6 -o other.png --no-metadata
    tiny dit --sampler dpmpp-2m-sde --steps 4 -n 1 -s 5 -o one.png --no-metadata
    ! cmp -s one.png other.png || false
}
