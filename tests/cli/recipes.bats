# SPDX-License-Identifier: MIT
# The commands of the documents. In front of a block stands what becomes of it:
#   <!-- run: FILES -->      it is run, in the order of the document; FILES that are not ours have stand-ins (stand_in)
#   <!-- slurm: NAME -->     it is run with an sbatch and an srun that only pretend
#   <!-- file: NAME -->      it is written into the file
# `nalagen` is then the program with few steps, few and small pictures (the shim below); all else is as it stands. Documents
# without such lines are named in UNRUN, with the reason.
load helper

# What a reader has and the repository has not: small pictures, random weights under the published names.
stand_in() {
    local i
    case $1 in
    pictures/ | held-out/)
        for class in cats dogs; do
            mkdir -p "$1$class"
            for i in 1 2 3; do
                "$NALAGEN" sample -c 1 --seed "$i${#1}${#class}" --size 64 --sampler euler --steps 1 --cfg-scale 1 -o "$1$class/$i.png" -q >/dev/null
            done
        done ;;
    *inception*) need_inception && cp "$inception" "$1" ;;
    sd-vae*) cp "$vae" "$1" ;;
    DiT-*) "$MAKE_MODEL" "$1" dit ;;
    SiT-*) "$MAKE_MODEL" "$1" ;;
    *.npz) numpy "; np.savez('$1', np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), dtype=np.uint8))" ;;
    installed)
        cmake --install "$(dirname "$NL_LIBRARY")" --prefix "$PWD/prefix" >/dev/null
        export PKG_CONFIG_PATH=$PWD/prefix/lib/pkgconfig:$PWD/prefix/lib/x86_64-linux-gnu/pkgconfig \
            CMAKE_PREFIX_PATH=$PWD/prefix LD_LIBRARY_PATH=$PWD/prefix/lib:$PWD/prefix/lib/x86_64-linux-gnu ;;
    *) echo "no stand-in for $1"; false ;;
    esac
}

# nalagen with less to do: what costs time becomes small, --gpus is left out, the rest is passed on.
make_shim() {
    mkdir -p bin
    cat >bin/nalagen <<'END'
#!/bin/bash
echo "$*" >>"$RECIPE/commands"
command=$1
shift
arguments=() more=()
while [ $# -gt 0 ]; do
    case $1 in
    --gpus) shift ;;
    -n) arguments+=(-n "$(($2 < 4 ? $2 : $command == sample && $2 == 16 ? 16 : 4))") && shift ;;
    --steps) arguments+=(--steps 2) && shift ;;
    --batch) arguments+=(--batch 4) && shift ;;
    --warmup | --patience) arguments+=("$1" 1) && shift ;;
    -m) case $command:$2 in train:*) arguments+=(-m SiT-1x32x2/2) ;; *) arguments+=(-m "$2") ;; esac; shift ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
case $command in
train) more=(--device cpu --sample-every 0)
    case " ${arguments[*]} " in *" --val "*) more+=(--val-every 1) ;; esac
    case " ${arguments[*]} " in *" --recipe "*) more+=(--steps 2 --batch 4) ;; esac ;;
sample) case " ${arguments[*]} " in *" --steps "* | *dopri5* | *respacing*) ;; *) more=(--steps 2) ;; esac ;;
encode) more=(--size 64) ;;
eval) more=(--allow-small) ;;
nearest) more=(--features pool_64) ;;
esac
exec "$NALAGEN" "$command" "${arguments[@]}" "${more[@]}"
END
    cat >bin/sbatch <<'END'
#!/bin/bash
exec bash -e "$1"
END
    printf '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n' >bin/srun
    chmod +x bin/*
    export RECIPE=$PWD PATH=$PWD/bin:$PATH OMP_NUM_THREADS=2
}

# DOCUMENT: its marked blocks into block-01.kind, block-01.what and block-01.text, ...
take_blocks() {
    awk '
        /^<!-- (run|slurm|file): / {kind = $2; sub(":", "", kind); what = $0; sub(/^<!-- [a-z]+: ?/, "", what); sub(/ ?-->$/, "", what); next}
        kind && /^```/ && !inside {inside = 1; name = sprintf("block-%02d", ++n); print kind >(name ".kind"); print what >(name ".what"); next}
        inside && /^```/ {inside = 0; kind = ""; close(name ".text"); next}
        inside {print >(name ".text")}
    ' "$1"
}

run_document() {
    need_model
    make_shim
    : >commands
    take_blocks "$NL_SOURCE_DIR/$1"
    local block file
    for block in block-*.text; do # files first: a command may stand before what it compiles
        [ "$(cat "${block%.text}.kind")" != file ] || cp "$block" "$(cat "${block%.text}.what")"
    done
    for block in block-*.text; do
        block=${block%.text}
        [ "$(cat $block.kind)" = run ] || continue
        for file in $(cat $block.what); do [ -e "$file" ] || stand_in "$file"; done
        bash -e $block.text >out 2>&1 </dev/null || { cat $block.text out; false; }
    done
}

@test "docs/your-own-pictures.md, from the folder to the samples" {
    run_document docs/your-own-pictures.md
    [ "$(wc -l <commands)" -ge 8 ]
    is_png cats.png
    is_png dogs.png
    is_png nearest.png
    is_png run/plot.png
    "$NALAGEN" info run --json | json_lines "x['state'] == 'finished' and x['model']['crop_conditioning'] and
        x['training']['init'] == 'nalasit-s2-256.safetensors'"
}

@test "docs/published-numbers.md: both evaluations, and the batch files" {
    run_document docs/published-numbers.md
    [ "$(grep -c ^eval commands)" -eq 3 ]
    one_colour
    for block in block-*.kind; do
        block=${block%.kind}
        [ "$(cat $block.kind)" = slurm ] || continue
        bash -n $block.text
        head -n 1 $block.text | grep -qx '#!/bin/bash'
        rm -rf run samples.npz
        sbatch $block.text >out 2>&1 || { cat out; false; }
        [ -e run/done ]
    done
}

@test "docs/embedding.md: compiled with pkg-config and with CMake, and run" {
    command -v pkg-config >/dev/null && command -v cmake >/dev/null && command -v cc >/dev/null || skip "no compiler"
    ! ldd "$NL_LIBRARY" | grep -q libasan || skip "these programs are built without the library's sanitizers"
    run_document docs/embedding.md
    is_png watched.png
    cc -Wall -Wextra -Werror -fsyntax-only -I "$NL_SOURCE_DIR/include" watch.c
}

# Documents whose blocks are not run as they stand, and why.
UNRUN="README.md|the same commands as docs/usage.md; the first is run by launcher.bats and CI
CONTRIBUTING.md|./test and .ci/run: what runs this test
docs/analysis.md|analyze.bats
docs/batch.md|batch.bats
docs/data.md|encode.bats; ImageNet and other sets are not ours
docs/downloads.md|published weights; docs/published-numbers.md runs the same commands with stand-ins
docs/evaluation.md|eval.bats; published references
docs/performance.md|a GPU: tests/gpu.sh
docs/python.md|python.bats
docs/questions.md|docs/published-numbers.md and docs/your-own-pictures.md run the same commands
docs/results.md|hours on a GPU: bench/compare_models.sh; bench/large_sampling.sh is run below, small
docs/samplers.md|sample.bats
docs/serve.md|serve.bats
docs/testing.md|the tests themselves
docs/training.md|train.bats, average.bats, distill.bats, ranks.bats
docs/usage.md|options are looked up by documents.bats; encode, train, eval, ... have suites
bench/results/few-steps.md|a GPU
bench/results/pictures.md|a GPU
bench/results/training.md|a GPU"

@test "every document with commands is run here or says where" {
    cd "$NL_SOURCE_DIR"
    local file unknown=
    for file in README.md CONTRIBUTING.md docs/*.md bench/results/*.md; do
        grep -qE '^```sh|^    nalagen ' "$file" || continue
        if grep -q '^<!-- run: ' "$file"; then
            # No block of it is forgotten.
            awk '/^<!-- (run|slurm|file): /{marked = NR} /^```sh/ && NR - marked > 2 {print FILENAME ":" NR; bad = 1} END {exit bad}' "$file"
        else
            grep -q "^$file|" <<<"$UNRUN" || unknown+="$file "
        fi
    done
    [ -z "$unknown" ] || { echo "$unknown"; false; }
}

@test "bench/large_sampling.sh: a line for each kind of attention, tokens counted, all files there" {
    need_model
    NALAGEN=$NALAGEN DEVICE=cpu SIZE=1x32x2 TURNS=1 CASES="64:1:2:1 128:2:1:1" "$NL_SOURCE_DIR/bench/large_sampling.sh" -t 2 >lines
    json_lines "x['tokens'] == 64 and x['seconds'] > 0 and x['bytes'] > 8000 * x['pictures'] and
        (x['model'], x['picture'], x['pictures'], x['batch']) == (('lepe', 'nala', 'softmax')[i % 3], *((64, 2, 1), (128, 1, 1))[i // 3])" <lines
    [ "$(wc -l <lines)" -eq 6 ]
    run env DEVICE=cpu SIZE=1x32x2 TURNS=1 CASES=64:1:1:1 NALAGEN=$NALAGEN "$NL_SOURCE_DIR/bench/large_sampling.sh" --misspelt
    [ "$status" -eq 2 ]
    [[ $output == *--misspelt* && $output != *seconds* ]]
}
