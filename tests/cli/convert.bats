# SPDX-License-Identifier: MIT
# nalagen convert: every kind of input and output against what Python reads.
load helper

files=$NL_SOURCE_DIR/tests/golden/torch

# Reads safetensors by hand; defines load(path) -> {name: float32 array}, metadata(path).
reader='
import json, struct, sys

def header(path):
    data = open(path, "rb").read()
    size, = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + size]), data[8 + size:]

def metadata(path):
    return header(path)[0].get("__metadata__", {})

def load(path):
    tensors, data = header(path)
    out = {}
    for name, t in tensors.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1", "I64": "<i8"}[t["dtype"]]
        x = np.frombuffer(data[begin:end], kind)
        if t["dtype"] == "BF16":
            x = (x.astype("<u4") << 16).view("<f4")
        out[name] = x.astype("<f4").reshape(t["shape"])
    return out
'

python_check() {
    numpy "$reader$1"
}

@test "a torch file becomes safetensors that numpy reads back equal" {
    "$NALAGEN" convert -q "$files/dit.pt" out.safetensors
    python_check "
a, b = load('out.safetensors'), load('$files/dit.safetensors')
assert set(a) == set(b) - {'pos_embed'}, set(a) ^ set(b)
assert all(np.array_equal(a[k], b[k]) for k in a)
config = json.loads(metadata('out.safetensors')['nalagen'])
assert config['architecture'] == 'DiT' and config['depth'] == 2, config"
}

@test "every kind of input gives the same tensors" {
    for name in dit_legacy.pt sit_wrapped.pt 0050000.pt diffusers diffusers/; do
        "$NALAGEN" convert -q -f --dtype f32 "$files/$name" out.safetensors
        python_check "
a, b = load('out.safetensors'), load('$files/dit.safetensors')
assert all(np.array_equal(a[k], b[k]) for k in a) and len(a) == len(b) - 1"
    done
}

@test "--key takes the other dict of a training checkpoint" {
    "$NALAGEN" convert -q --key model --dtype f32 "$files/0050000.pt" out.safetensors
    python_check "
a, b = load('out.safetensors'), load('$files/dit.safetensors')
assert all(np.array_equal(a[k], -b[k]) for k in a if k != 'pos_embed')
assert np.abs(a['pos_embed'] + b['pos_embed']).max() < 4e-3 # its own table, in bf16"
    run -2 "$NALAGEN" convert --key emma "$files/0050000.pt" other.safetensors
    [[ $output == *"has no 'emma': it holds model, ema, opt, args, steps"* ]]
    [ ! -e other.safetensors ]
}

@test "bf16, f16 and int8 with row scales" {
    for dtype in f32 bf16 f16; do
        "$NALAGEN" convert -q -f --dtype $dtype "$files/dit.pt" out.safetensors
        python_check "
a, b = load('out.safetensors'), load('$files/dit.safetensors')
assert all(np.array_equal(a[k], b[k]) for k in a)"
    done
    "$NALAGEN" convert -q -f --dtype int8 "$files/dit.pt" out.safetensors
    python_check "
a, b = load('out.safetensors'), load('$files/dit.safetensors')
name = 'blocks.1.mlp.fc1.weight'
x = a[name] * a[name + '.scale'][:, None]
assert np.abs(x - b[name]).max() <= a[name + '.scale'].max()
assert header('out.safetensors')[0][name]['dtype'] == 'I8'"
    # what the program wrote it reads
    "$NALAGEN" info --json out.safetensors | json_lines "x['complete'] and x['parameters'] == 15616"
}

@test "public names hold all that load_state_dict of the public code expects" {
    "$NALAGEN" convert -q "$files/diffusers" nalagen.safetensors
    "$NALAGEN" convert -q nalagen.safetensors out.safetensors --format dit --dtype f32
    python_check "
a, b = load('out.safetensors'), load('$files/dit.safetensors')
assert set(a) == set(b)
assert all(np.abs(a[k] - b[k]).max() < 1e-6 and a[k].shape == b[k].shape for k in a)"
}

@test "a folder for diffusers" {
    "$NALAGEN" convert -q "$files/dit.pt" folder/ --format diffusers
    python_check "
a = load('folder/diffusion_pytorch_model.safetensors')
b = load('$files/diffusers/diffusion_pytorch_model-00001-of-00002.safetensors')
b.update(load('$files/diffusers/diffusion_pytorch_model-00002-of-00002.safetensors'))
assert set(a) == set(b) and all(np.array_equal(a[k], b[k]) for k in a)
config = json.load(open('folder/config.json'))
assert config['_class_name'] == 'DiTTransformer2DModel' and config['num_layers'] == 2"
    run -7 "$NALAGEN" convert "$files/dit.pt" folder --format diffusers
    run -2 "$NALAGEN" convert "$files/dit.pt" folder
    "$NALAGEN" info --json folder | json_lines "x['model'] == 'DiT-2x16x1/2' and x['complete']"
}

@test "diffusers' format has its config.json beside a file too, and has no SiT" {
    mkdir out
    "$NALAGEN" convert -q "$files/dit.pt" out/model.safetensors --format diffusers
    "$NALAGEN" info --json out/model.safetensors | json_lines "x['model'] == 'DiT-2x16x1/2' and x['complete']"
    grep -q DiTTransformer2DModel out/config.json
    run -7 "$NALAGEN" convert "$files/dit.pt" out/other.safetensors --format diffusers
    [ ! -e out/other.safetensors ]
    run -2 "$NALAGEN" convert "$files/0050000.pt" sit.safetensors --format diffusers
    [[ $output == *"no SiT"* ]]
    [ ! -e sit.safetensors ]
}

@test "help says what --format diffusers and torch-names add" {
    run -0 "$NALAGEN" convert --help
    [[ $output == *"diffusers writes config.json"*"no SiT"*"pos_embed"* ]]
}

@test "a refused conversion for diffusers leaves no folder behind" {
    run -2 "$NALAGEN" convert "$files/0050000.pt" new/folder/ --format diffusers
    [[ $output == *"no SiT"* ]]
    run -2 "$NALAGEN" convert "$files/dit.pt" new/folder/ --format diffusers --dtype int8
    run -2 "$NALAGEN" convert "$files/vae_compvis.ckpt" new/folder/ --format diffusers --dtype int8
    [ ! -e new/folder ]
}

@test "an autoencoder for diffusers has its config.json, and comes back as it was" {
    for name in vae_compvis.ckpt vae_diffusers.bin; do
        "$NALAGEN" convert -q "$files/$name" "$name/" --format diffusers
        "$NALAGEN" convert -q "$name" "$name.safetensors"
        "$NALAGEN" convert -q "$files/$name" plain.safetensors
        cmp plain.safetensors "$name.safetensors"
        python_check "
config = json.load(open('$name/config.json'))
tensors = load('$name/diffusion_pytorch_model.safetensors')
channels = [tensors[f'encoder.down_blocks.{i}.resnets.0.conv1.weight'].shape[0] for i in range(len(config['block_out_channels']))]
assert config['_class_name'] == 'AutoencoderKL' and config['scaling_factor'] == 0.18215, config
assert channels == config['block_out_channels'] and len(config['up_block_types']) == len(channels)
assert tensors['encoder.conv_out.weight'].shape[0] == 2 * config['latent_channels']
assert f'encoder.down_blocks.0.resnets.{config[\"layers_per_block\"] - 1}.conv1.weight' in tensors"
    done
    run -7 "$NALAGEN" convert "$files/vae_compvis.ckpt" vae_compvis.ckpt --format diffusers
}

@test "the tiny autoencoder for diffusers: AutoencoderTiny's names and config.json" {
    need_model
    "$NALAGEN" convert -q "$vae" tiny/ --format diffusers
    "$NALAGEN" convert -q tiny again.safetensors
    "$NALAGEN" convert -q "$vae" plain.safetensors
    cmp plain.safetensors again.safetensors
    python_check "
config = json.load(open('tiny/config.json'))
names = set(load('tiny/diffusion_pytorch_model.safetensors'))
assert config['_class_name'] == 'AutoencoderTiny' and config['scaling_factor'] == 1, config
# the sequences of diffusers' EncoderTiny and DecoderTiny
def check(half, blocks, decoder):
    at, expected = 0, set()
    def conv(i, bias=True):
        expected.update(f'{half}.layers.{i}.{p}' for p in (['weight', 'bias'] if bias else ['weight']))
    if decoder:
        conv(0); at = 2
    for i, count in enumerate(blocks):
        if not decoder:
            conv(at, i == 0); at += 1
        for _ in range(count):
            for k in 0, 2, 4:
                expected.update(f'{half}.layers.{at}.conv.{k}.{p}' for p in ('weight', 'bias'))
            at += 1
        if decoder:
            last = i == len(blocks) - 1
            at += not last
            conv(at, last); at += 1
    if not decoder:
        conv(at)
    found = {n for n in names if n.startswith(half)}
    assert found == expected, (found - expected, expected - found)
check('encoder', config['num_encoder_blocks'], False)
check('decoder', config['num_decoder_blocks'], True)"
}

@test "torch-names has pos_embed, which strict loading wants" {
    "$NALAGEN" convert -q "$files/dit.pt" ours.safetensors
    "$NALAGEN" convert -q --format torch-names ours.safetensors out.safetensors
    python_check "
a, b = load('out.safetensors'), load('$files/dit.safetensors')
assert set(a) == set(b)
assert all(np.abs(a[k] - b[k]).max() < 1e-6 for k in a)"
}

@test "another network is refused by the name that its config.json gives it" {
    mkdir other
    "$NALAGEN" convert -q --format torch-names "$files/tensors.pt" other/diffusion_pytorch_model.safetensors
    echo '{"_class_name": "PixArtTransformer2DModel"}' >other/config.json
    run -3 "$NALAGEN" sample --vae none -m other
    [[ $output == *PixArtTransformer2DModel* ]]
}

@test "a pipe that nobody writes into or reads is no model, noise or output, and nobody waits for ever" {
    mkfifo pipe
    run -3 timeout 30 "$NALAGEN" info pipe
    [[ $output == *"nobody writes"* ]]
    run -3 timeout 30 "$NALAGEN" sample -m pipe --vae none
    [[ $output == *"nobody writes"* ]]
    "$MAKE_MODEL" tiny.safetensors
    run -3 timeout 30 "$NALAGEN" sample -m tiny.safetensors -c 1 --noise pipe -o a.png --device cpu
    [[ $output == *"nobody writes"* ]]
    run -7 timeout 30 "$NALAGEN" sample -m tiny.safetensors -c 1 -o pipe --force --device cpu
    [ -p pipe ]
    [ ! -e a.png ]
}

@test "autoencoders of every spelling give one file" {
    for name in vae_diffusers.bin vae_diffusers_old.bin vae_compvis.ckpt; do
        "$NALAGEN" convert -q --dtype f16 "$files/$name" "$name.safetensors"
        cmp vae_diffusers.bin.safetensors "$name.safetensors"
    done
    run -2 "$NALAGEN" convert --format dit "$files/vae_compvis.ckpt" out.safetensors
}

@test "any network under its own names" {
    "$NALAGEN" convert -q --format torch-names "$files/module.pt" out.safetensors && return 1
    "$NALAGEN" convert -q --format torch-names "$files/vae_compvis.ckpt" out.safetensors
    python_check "
a = load('out.safetensors')
assert 'first_stage_model.decoder.mid.attn_1.q.weight' in a and 'model_ema.decay' in a"
}

@test "no file is overwritten unasked, none is left half" {
    echo old > out.safetensors
    run -7 "$NALAGEN" convert "$files/dit.pt" out.safetensors
    [[ $output == *"use --force"* ]]
    [ "$(cat out.safetensors)" = old ]
    run -3 "$NALAGEN" convert --force "$files/nan.pt" out.safetensors
    [ "$(cat out.safetensors)" = old ]
    head -c 40000 "$files/dit.pt" > cut.pt
    run -3 "$NALAGEN" convert --force cut.pt out.safetensors
    [[ $output == *"cut off"* ]]
    [ "$(ls -A -I cache)" = "$(printf 'cut.pt\nout.safetensors')" ]
}

@test "a file that would run code in Python is refused by name and runs nothing" {
    for name in evil.pt evil_legacy.pt; do
        for command in "info" "convert -f" "sample --vae none --model"; do
            # shellcheck disable=SC2086
            run "$NALAGEN" $command "$files/$name" out.safetensors
            [ "$status" -ne 0 ]
        done
        run -3 "$NALAGEN" info "$files/$name"
        [[ $output == *"posix.system, which would run code"* ]]
    done
    [ ! -e torch_pwned ]
    [ ! -e out.safetensors ]
}

@test "pictures from a torch file, a folder and the file made of them are the same" {
    for source in dit.pt diffusers; do
        options=(--vae none --sampler ddim --steps 2 --seed 3 -c 4 -q -f)
        "$NALAGEN" convert -q -f "$files/$source" out.safetensors
        "$NALAGEN" sample "${options[@]}" --model "$files/$source" --latents a.npy
        "$NALAGEN" sample "${options[@]}" --model out.safetensors --latents b.npy
        cmp a.npy b.npy
    done
}

@test "info says what a training checkpoint holds" {
    "$NALAGEN" info --json "$files/0050000.pt" 2>err | json_lines \
        "x['taken'] == 'ema' and x['metadata']['steps'] == '50000' and x['config']['path'] == 'gvp'"
    grep -q "holds model, ema, opt, args, steps; taken is ema" err
    "$NALAGEN" info --json "$files/diffusers" |
        json_lines "x['names'] == 'diffusers' and x['files'] == 2 and len(x['sha256']) == 64"
    "$NALAGEN" info --json "$files/vae_compvis.ckpt" |
        json_lines "x['model'] == 'AutoencoderKL' and x['complete'] and x['parameters'] == 843847"
}

@test "the folder of a whole diffusers pipeline stands for its transformer" {
    mkdir -p pipeline/transformer
    echo '{}' > pipeline/model_index.json
    cp "$files"/diffusers/* pipeline/transformer
    "$NALAGEN" sample --vae none --sampler ddim --steps 2 -c 4 -q --model pipeline --latents a.npy
    "$NALAGEN" sample --vae none --sampler ddim --steps 2 -c 4 -q --model pipeline/transformer/ \
        --latents b.npy
    cmp a.npy b.npy
    rm -r pipeline/transformer
    run -3 "$NALAGEN" info pipeline
    [[ $output == *"a whole pipeline: give the one of its parts"* ]]
}
