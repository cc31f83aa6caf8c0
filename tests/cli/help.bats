# SPDX-License-Identifier: MIT
# Help, exit codes, range checks, the man page and completions.
load helper

@test "help, version and each command's --help go to stdout with code 0" {
    for arguments in --help help "help sample" "sample --help" "info -h" --version version; do
        run --separate-stderr "$NALAGEN" $arguments
        [ "$status" -eq 0 ]
        [ -n "$output" ]
        [ -z "$stderr" ]
    done
}

# The commands that have options.
commands() { "$NALAGEN" help | sed -nE 's/^  ([a-z]+) +[A-Z].*/\1/p'; }

within_80_columns() { awk -v c="$1" 'length > 80 {print c ": " $0; bad = 1} END {exit bad}'; }

@test "every --help fits a screen of 24 lines and 80 columns; --help all names each option once" {
    [ "$(commands | wc -l)" -ge 15 ]
    for command in '' $(commands); do
        run -0 "$NALAGEN" $command --help
        [ "$(wc -l <<<"$output")" -le 23 ] || { echo "$command: $(wc -l <<<"$output") lines"; false; }
        [[ $output == *-"-help"* ]]
        within_80_columns "$command" <<<"$output"
        short=$(grep -Eo '^ +(-., )?--[a-z0-9-]+' <<<"$output" | grep -Eo -- '--[a-z0-9-]+' | sort) || true
        [ -n "$command" ] || continue
        run -0 "$NALAGEN" $command --help all
        within_80_columns "$command" <<<"$output"
        all=$(grep -Eo '^ +(-., )?--[a-z0-9-]+' <<<"$output" | grep -Eo -- '--[a-z0-9-]+' | sort)
        [ -z "$(uniq -d <<<"$all")" ]
        [ -z "$(comm -23 <(echo "$short") <(echo "$all"))" ]
        [ "$output" = "$("$NALAGEN" help "$command" all)" ]
    done
    [ "$("$NALAGEN" sample --help all | grep -c '^ .*--')" -ge 50 ]
    "$NALAGEN" sample --help | grep -q 'Every option: nalagen sample --help all'
    ! "$NALAGEN" info --help | grep -q 'Every option' || false # all of it fits
    run -0 "$NALAGEN" --help all
    for command in $(commands); do [[ $output == *"$("$NALAGEN" help "$command" all)"* ]]; done
}

@test "exit codes are documented" {
    run "$NALAGEN" help
    for code in 0 2 3 4 5 6 7 130; do grep -Eq "(^| )$code [a-z]" <<<"$output"; done
}

@test "no command: usage on stderr, code 2" {
    run --separate-stderr "$NALAGEN"
    [ "$status" -eq 2 ]
    [ -z "$output" ]
    [[ $stderr == *Usage* ]]
}

@test "unknown commands and options suggest the nearest" {
    run "$NALAGEN" smaple
    [ "$status" -eq 2 ]
    [[ $output == *"did you mean sample"* ]]
    run "$NALAGEN" sample --sed 3
    [ "$status" -eq 2 ]
    [[ $output == *"did you mean --seed"* ]]
    run "$NALAGEN" sample --samplr heun
    [[ $output == *"did you mean --sampler"* ]]
    run "$NALAGEN" sample --sampler hen
    [[ $output == *"did you mean heun"* ]]
    run "$NALAGEN" sample -Z
    [ "$status" -eq 2 ]
}

@test "every number is range-checked" {
    wrong=(--steps=0 --steps=10001 --steps=1.5 --steps= --seed=-1 --seed=18446744073709551616 --seed=x -n=3
        --number=0 --first-index=-1 --eta=1.1 --eta=nan --atol=0 --rtol=inf --sde-norm=0 --last-step-size=0.6
        --cfg-scale=-1 --cfg-channels=2 --cfg-interval=0.8,0.2 --cfg-interval=1 --size=0 --size=4x --size=axb
        --grid=0x2 --preview-every=0 --threads=0 --batch=0 --max-memory=0 --max-memory=4X --max-memory=-1G
        --dtype=f16 --show=paper --arch=UNet --path=cubic --prediction=x --sde-form=s --last-step=first)
    for option in "${wrong[@]}"; do
        run "$NALAGEN" sample "$option"
        [ "$status" -eq 2 ] || { echo "$option: $status"; false; }
        [[ $output == *"error: -"*expected* || $output == *"error: -"*nothing* ]] || { echo "$output"; false; }
    done
    run "$NALAGEN" sample --steps 0
    [[ $output == *"--steps 0: expected 1 to 10000"* ]]
}

@test "options that do not go together" {
    for arguments in "--out - --json" "--requests - --out -" "--requests - --from a.png" "--steps 3 --respacing 3" \
        "--json=3" "--cfg 3" "extra"; do
        run "$NALAGEN" sample $arguments </dev/null
        [ "$status" -eq 2 ] || { echo "$arguments: $status $output"; false; }
    done
}

@test "the man page and the completions come out whole" {
    run "$NALAGEN" generate-man
    [ "$status" -eq 0 ]
    [[ $output == .TH* ]]
    [[ $output == *"cfg\\-scale"* ]]
    sections=$(sed -n 's/^\.SH //p' <<<"$output")
    for section in NAME SYNOPSIS DESCRIPTION FILES ENVIRONMENT "EXIT STATUS" EXAMPLES "SEE ALSO"; do
        grep -qx "$section" <<<"$sections"
    done
    [[ $output == *"nalagen sample \\-\\-class church"* ]]
    if command -v man >/dev/null && command -v groff >/dev/null; then
        "$NALAGEN" generate-man >nalagen.1
        [ -z "$(LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -l nalagen.1 2>&1 >/dev/null)" ]
    fi
    "$NALAGEN" completion bash >complete.bash
    bash -n complete.bash
    source complete.bash
    COMP_WORDS=(nalagen sample --sampler sde) COMP_CWORD=3
    _nalagen
    [ "${COMPREPLY[*]}" = "sde-euler sde-heun" ]
    COMP_WORDS=(nalagen in) COMP_CWORD=1
    _nalagen
    [ "${COMPREPLY[*]}" = info ]
    "$NALAGEN" completion zsh | grep -q '^#compdef nalagen'
    "$NALAGEN" completion fish | grep -q -- '-l cfg-scale'
    run "$NALAGEN" completion tcsh
    [ "$status" -eq 2 ]
}

@test "output that nobody takes is a write error" {
    run bash -c '"$NALAGEN" sample --help >/dev/full'
    [ "$status" -eq 7 ]
    run bash -c '"$NALAGEN" generate-man >/dev/full'
    [ "$status" -eq 7 ]
    [[ $output == *"standard output: cannot be written: No space left"* ]]
    run bash -c '"$NALAGEN" version >&-'
    [ "$status" -eq 7 ]
}
