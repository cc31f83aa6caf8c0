# SPDX-License-Identifier: MIT
# Completion as somebody at a terminal has it: bash and zsh are typed into (tests/shell_keys.py), fish is asked. Names with
# blanks, lists, the classes of a model, devices, files only where a file is meant.
load helper

prepare() {
    mkdir -p bin place
    ln -sf "$NALAGEN" bin/nalagen
    PATH=$PWD/bin:$PATH
    nalagen completion bash >nalagen.bash
    nalagen completion zsh >_nalagen
    nalagen completion fish >nalagen.fish
    cd place
    touch "my latents.npy" picture.png church
}

need() {
    command -v "$1" >/dev/null || skip "no $1"
    prepare
}

# keys SHELL LINE words|list
keys() {
    local script=../nalagen.bash
    [ "$1" = zsh ] && script=../_nalagen
    python3 "$NL_SOURCE_DIR/tests/shell_keys.py" "$1" "$script" "$2" "${3:-words}"
}

# The last word of the line after Tab is this.
becomes() {
    local got
    got=$(keys "$1" "$2" | tail -1)
    [ "$got" = "$3" ] || { echo "$1: $2 became [$got], expected [$3]"; false; }
}

in_shell() {
    becomes $1 "nalagen recon" reconstruct
    becomes $1 "nalagen sample --cfg-sc" --cfg-scale$2
    becomes $1 "nalagen sample --sampler dpmpp-2m-" dpmpp-2m-sde
    becomes $1 "nalagen decode my" "my latents.npy"
    becomes $1 "nalagen decode my\\ la" "my latents.npy"
    becomes $1 "nalagen sample --noise my" "my latents.npy"
    becomes $1 "nalagen sample -c pic" pic # no file fits
    becomes $1 "nalagen sample pic" pic
    becomes $1 "nalagen sample --steps pic" pic
    becomes $1 "nalagen sample --device cp" cpu
}

with_classes() {
    becomes $1 "nalagen sample -c ga" ga # garbage truck, gas pump
    becomes $1 "nalagen sample -c gas" "gas pump"
    becomes $1 "nalagen sample -c gas\\ p" "gas pump"
    becomes $1 "nalagen sample --class church,golf" "church,golf ball"
    [[ $(keys $1 "nalagen sample --class ga" list) == *"garbage"*"gas"* ]]
}

@test "bash" {
    need bash
    in_shell bash ""
    becomes bash "nalagen sample --sampler=dpmpp-2m-" --sampler=dpmpp-2m-sde
    becomes bash "nalagen sample --out=pict" --out=picture.png
    becomes bash "nalagen sample --device=cp" --device=cpu
}

@test "bash: classes of the model" {
    need_model
    need bash
    with_classes bash
    becomes bash "nalagen sample --class=gas" "--class=gas pump"
}

@test "zsh" {
    need zsh
    in_shell zsh ""
}

@test "zsh: classes of the model" {
    need_model
    need zsh
    with_classes zsh
}

@test "fish" {
    need fish
    ask() {
        fish --no-config -c "source ../nalagen.fish; complete -C '$1'" | cut -f1
    }
    [ "$(ask 'nalagen recon')" = reconstruct ]
    [ "$(ask 'nalagen sample --cfg-sc')" = --cfg-scale ]
    [ "$(ask 'nalagen sample --sampler dpmpp-2m-')" = dpmpp-2m-sde ]
    [ "$(ask 'nalagen decode my')" = "my\\ latents.npy" ] || [ "$(ask 'nalagen decode my')" = "my latents.npy" ]
    [ -z "$(ask 'nalagen sample pic')" ]
    [ -z "$(ask 'nalagen sample --steps pic')" ]
    [ "$(ask 'nalagen sample --out pic')" = picture.png ]
    [ "$(ask 'nalagen sample --device cp')" = cpu ]
}

@test "fish: classes of the model" {
    need_model
    need fish
    ask() {
        fish --no-config -c "source ../nalagen.fish; complete -C '$1'" | cut -f1
    }
    [ "$(ask 'nalagen sample -c gas')" = "gas pump" ]
    [ "$(ask 'nalagen sample --class church,golf')" = "church,golf ball" ]
    [ -z "$(ask 'nalagen sample -c pic')" ]
}

@test "classes of another model, of none, and of a file that is no model" {
    "$MAKE_MODEL" tiny.safetensors >/dev/null
    run "$NALAGEN" completion classes tiny.safetensors
    [ "$status" -eq 0 ]
    [ "$output" = "random
balanced
null" ]
    run "$NALAGEN" completion classes missing.safetensors
    [ "$status" -eq 0 ]
    [ "$output" = "random
balanced
null" ]
    run "$NALAGEN" completion devices
    [[ $output == auto*cpu* ]]
    run -2 "$NALAGEN" completion words
}
