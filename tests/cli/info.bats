# SPDX-License-Identifier: MIT
# nalagen info of what nalagen itself makes, and the commands that take a run's folder for a model.
load helper

# A run of six steps on the pictures of `one_colour`, with checkpoints after 2, 4 and 6.
short_run() {
    one_colour
    "$NALAGEN" train -m SiT-1x32x2/4 -d data -o run --steps 6 -b 4 --save-every 2 --log-every 3 --sample-every 0 --device cpu -q
}

@test "info of training data, its shards and a run" {
    short_run
    run -0 "$NALAGEN" info data
    [[ $output == *"kind: training data"*"samples: 64"*"picture_size: [32,32]"*"3 64,"* ]]
    "$NALAGEN" info data --json | json_lines "x['samples_of_classes']['3'] == 64 and x['shards'] == 1 and
        x['model_input'] == [3, 32, 32] and x['broken_pictures_left_out'] == 0 and x['encoding']['flips']"
    "$NALAGEN" info data/shard-00000.safetensors --json | json_lines "x['kind'].startswith('shard') and
        x['arrays']['images'] == 'U8 [64, 32, 32, 3]' and x['encoding']['pictures'] == 64"
    "$NALAGEN" info run --json | json_lines "x['state'] == 'finished' and x['step'] == 6 and
        x['training']['steps'] == 6 and x['last_log']['step'] == 6 and x['model']['depth'] == 1 and
        x['model_file'] == 'run/model.safetensors'"
    printf '{"step": 9, "lo' >>run/log.jsonl # torn: the line before counts
    "$NALAGEN" info run --json | json_lines "x['last_log']['step'] == 6"
    echo nonsense >data/dataset.json
    run -3 "$NALAGEN" info data
}

@test "training data that is not finished is said to be that" {
    mkdir data
    : >data/shard-00000.part
    run -3 "$NALAGEN" info data
    [[ $output == *"data: training data that is not finished: the same 'nalagen encode' resumes it"* ]]
    rm data/*
    run -3 "$NALAGEN" info data
    [[ $output == *"a folder without"* ]]
}

@test "info of archives of pictures and of statistics" {
    need_model
    quick -c 0-2 -o s.npz
    "$NALAGEN" info s.npz --json | json_lines "x['kind'] == 'pictures' and x['arrays']['arr_0'] == 'U8 [3, 64, 64, 3]' and
        x['parameters']['class'] == '0-2'"
    numpy "; np.savez('ref.npz', mu=np.zeros(4), sigma=np.eye(4))"
    "$NALAGEN" info ref.npz --json | json_lines "x['kind'] == 'statistics of pictures' and x['arrays']['sigma'] == 'F64 [4, 4]'"
    printf 'no zip' >bad.npz
    run -3 "$NALAGEN" info bad.npz
}

@test "info of pictures: one, a folder, an archive, a set with parts" {
    need_model
    quick -c 0-2 -o p/one/ -q
    quick -c 3 -o p/two/ -q --no-metadata
    run -0 "$NALAGEN" info p
    [[ $output == *"kind: pictures for nalagen encode"*"format: class folders"*"pictures: 4"*"pictures_of_classes: one 3, two 1"* ]]
    tar cf p.tar p
    "$NALAGEN" info p.tar --json | json_lines "x['pictures'] == 4 and x['pictures_of_classes'] == {'one': 3, 'two': 1}"
    "$NALAGEN" info p/two/*.png --json | json_lines "x['kind'] == 'picture' and x['width'] == 64 and 'parameters' not in x"
    "$NALAGEN" info p/one/*0.png --json | json_lines "x['parameters']['version']"
    "$NALAGEN" info "$NL_SOURCE_DIR"/tests/fuzz/corpus/image/rgb.jpg --json | json_lines "x['kind'] == 'picture' and x['width'] > 0"
    mkdir empty
    run -3 "$NALAGEN" info empty
    [[ $output == *"a folder without"*"nor is there training data, a run or pictures"* ]]
    echo words >words
    run -3 "$NALAGEN" info words
    [[ $output == *"not a checkpoint"* ]]
    mkdir -p parts/train/a parts/test/a
    cp p/two/*.png parts/train/a && cp p/two/*.png parts/test/a
    run -2 "$NALAGEN" info parts
    [[ $output == *"--split"* ]]
}

@test "a run's folder is its model, or its newest checkpoint while there is none" {
    short_run
    sample() { "$NALAGEN" sample -c null --steps 2 --seed 3 --device cpu --no-metadata "$@"; }
    sample -m run -o a.png 2>err
    grep -q 'run/model.safetensors' err
    rm run/done
    sample -m run -o b.png 2>err
    grep -q 'run/checkpoints/step-0000006.safetensors' err
    sample -m run/checkpoints/step-0000006.safetensors -o c.png
    cmp b.png c.png
    "$NALAGEN" convert run converted.safetensors -q
    rm -r run/checkpoints
    run -3 sample -m run -o d.png
    [[ $output == *"neither a model nor a checkpoint"* ]]
}

@test "train -o RUN alone resumes by the run's own options" {
    short_run
    mv run once
    "$NALAGEN" train -m SiT-1x32x2/4 -d data -o run --steps 12 -b 4 --save-every 2 --log-every 3 --sample-every 0 --device cpu -q
    run -0 "$NALAGEN" train -o once --steps 12
    [[ $output == *"with the options of its run"*"resuming at step 6"* ]]
    cmp once/model.safetensors run/model.safetensors
    "$NALAGEN" info once --json | json_lines "x['training']['save_every'] == 2 and x['training']['out'] == 'once'"
    run -2 "$NALAGEN" distill -o once
    [[ $output == *"run of nalagen train"* ]]
    run -2 "$NALAGEN" train -o nothing
    [[ $output == *"nothing: there is no run to resume"*"nalagen train --help"* ]]
    [ ! -e nothing ]
}
