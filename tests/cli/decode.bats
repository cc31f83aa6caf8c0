# SPDX-License-Identifier: MIT
# `nalagen decode`: what numpy makes in float64 of stand-ins for the autoencoders of Stable Diffusion 1, SDXL, SD3 and Flux,
# and diffusers where it is installed; latents of `sample`; files of every kind; refusals; Ctrl-C.
load helper

# A stand-in of this kind, its latents and what they should become. More arguments: see the script.
twin() {
    numpy "
import runpy, sys
sys.argv = 'autoencoder_twin.py $*'.split()
runpy.run_path('$NL_SOURCE_DIR/tests/autoencoder_twin.py', run_name='__main__')"
}

# The bytes of $1.npz are those of $2-rgb.npy, but where fp32 may round the other way.
same_pictures() {
    numpy "
rgb, x = np.load('$1.npz')['arr_0'].astype(float), 127.5 * np.load('$2-rgb.npy') + 128
assert rgb.shape == x.shape and 40 < x.std() < 400, (rgb.shape, x.shape, x.std())
x = np.clip(x, 0.5, 255.5)
off = np.maximum(rgb - x, x - rgb - 1)  # above 0: another byte
assert off.max() < 2e-3, off.max()"
}

@test "the autoencoders of Stable Diffusion 1, SDXL, SD3, Flux and LightningDiT, by their configuration" {
    for kind in sd1 sdxl sd3 flux vavae; do
        twin $kind $kind
        "$NALAGEN" decode $kind-latents.npy -o $kind.npz --vae $kind --device cpu --json -q >facts
        same_pictures $kind $kind
        json_lines "x['n'] == 3 and x['height'] == 32 and x['width'] == 48 and len(x['vae_sha256']) == 64" <facts
    done
    json_lines "x['latent_scale'] == 1 and x['latent_shift'] == 0" <facts
    # and written for diffusers
    "$NALAGEN" convert vavae again/ --format diffusers -q
    grep -q AttnUpDecoderBlock2D again/config.json
    "$NALAGEN" decode vavae-latents.npy -o again.npz --vae again --device cpu -q
    same_pictures again vavae
    # under CompVis' names, which count levels from the picture
    numpy ", json, re, struct
data = open('vavae/diffusion_pytorch_model.safetensors', 'rb').read()
size = struct.unpack('<Q', data[:8])[0]
rules = [(r'down_blocks\.(\d)\.', r'down.\1.'), (r'up_blocks\.(\d)\.', lambda m: 'up.%d.' % (3 - int(m[1]))), (r'\.resnets\.', '.block.'),
         (r'\.attentions\.', '.attn.'), ('group_norm', 'norm'), ('to_out.0', 'proj_out'), (r'to_([qkv])', r'\1'), (r'downsamplers\.0', 'downsample'),
         (r'upsamplers\.0', 'upsample'), ('conv_shortcut', 'nin_shortcut')]
def compvis(name):
    for rule in rules if '_blocks.' in name else []:
        name = re.sub(*rule, name)
    return name
header = json.dumps({compvis(n): t for n, t in json.loads(data[8:8 + size]).items()}).encode()
import os
os.makedirs('compvis')
open('compvis/vae.safetensors', 'wb').write(struct.pack('<Q', len(header)) + header + data[8 + size:])"
    cp vavae/config.json compvis/
    "$NALAGEN" decode vavae-latents.npy -o compvis.npz --vae compvis/vae.safetensors --device cpu -q
    same_pictures compvis vavae
}

@test "diffusers agrees with the numbers that decode is held against" {
    for python in "${NL_DIFFUSERS_PYTHON:-}" python3; do
        [ -n "$python" ] && "$python" -c 'import diffusers, torch' 2>/dev/null && break
        python=
    done
    [ -n "$python" ] || skip "no diffusers"
    for kind in sd1 sdxl sd3 flux vavae; do
        twin $kind $kind
        mv $kind-rgb.npy twin.npy
        "$python" "$NL_SOURCE_DIR/tests/autoencoder_twin.py" $kind $kind diffusers
        numpy "
a, b = np.load('twin.npy'), np.load('$kind-rgb.npy')
assert np.abs(a - b).max() < 1e-9, np.abs(a - b).max()"
    done
}

@test "scale and shift as told: unscaled latents, and those of a file without configuration" {
    twin flux flux
    numpy "
np.save('plain.npy', (np.load('flux-latents.npy').astype('f8') / 0.3611 + 0.1159))"
    "$NALAGEN" decode plain.npy -o plain.npz --vae flux --latent-scale 1 --latent-shift 0 --device cpu -q
    same_pictures plain flux
    rm flux/config.json
    run -3 "$NALAGEN" decode flux-latents.npy -o no.npz --vae flux --device cpu
    [[ $output == *"16 channels are scaled"*"--latent-scale"* ]]
    "$NALAGEN" decode flux-latents.npy -o told.npz --vae flux --latent-scale 0.3611 --latent-shift 0.1159 --device cpu -q
    same_pictures told flux
}

@test "npy, npz, safetensors, halves and doubles; one picture, a folder, an archive" {
    twin sd1 vae
    numpy ", json, struct
x = np.load('sd1-latents.npy')
half = x.astype('<f2')
np.save('half.npy', half)
np.savez('named.npz', latents=half.astype('f8'), labels=np.arange(3))
np.savez_compressed('only.npz', x=half)
table = json.dumps({'z': {'dtype': 'F16', 'shape': x.shape, 'data_offsets': [0, half.nbytes]}}).encode()
open('z.safetensors', 'wb').write(struct.pack('<Q', len(table)) + table + half.tobytes())
np.save('one.npy', half[1])"
    "$NALAGEN" decode half.npy -o half.npz --vae vae --device cpu -q
    for file in named.npz only.npz z.safetensors; do
        "$NALAGEN" decode $file -o out.npz --force --vae vae --device cpu -q -b 2
        numpy "
assert (np.load('half.npz')['arr_0'] == np.load('out.npz')['arr_0']).all()"
    done
    "$NALAGEN" decode half.npy -o out --vae vae --device cpu -q 2>err && false
    grep -q "ends in .png or .npz, or a folder" err
    "$NALAGEN" decode half.npy -o out/ --vae vae --device cpu -q >names
    [ "$(tr '\n' ' ' <names)" = "out/000000.png out/000001.png out/000002.png " ]
    "$NALAGEN" decode one.npy -o one.png --vae vae --device cpu -q
    cmp one.png out/000001.png
    run -7 "$NALAGEN" decode half.npy -o out/ --vae vae --device cpu
    [[ $output == *"out/00000"*"--force"* ]]
    "$NALAGEN" decode half.npy -o out/ --vae vae --device cpu -q --force
    "$NALAGEN" decode half.npy -o adm.npz --vae vae --device cpu -q --rounding adm
    numpy "
x, y = np.load('half.npz')['arr_0'].astype(int), np.load('adm.npz')['arr_0'].astype(int)
assert 0.2 < (x - y == 1)[(x > 0) & (x < 255)].mean() < 0.8 and ((x == y) | (x == y + 1)).all()"
}

@test "latents of sample become the pictures that sample makes" {
    need_model
    quick -c church -n 2 -o made/ --latents latents.npy --no-metadata -q
    "$NALAGEN" decode latents.npy -o out/ --vae "$vae" -q
    for i in 0 1; do cmp made/church-seed0-00000$i.png out/00000$i.png; done
}

@test "what decode refuses" {
    twin sd1 vae
    numpy "
x = np.load('sd1-latents.npy')
np.save('flat.npy', x[0, 0]), np.save('whole.npy', x.astype('i8')), np.save('none.npy', x[:0])
np.save('wide.npy', np.concatenate([x, x], 1))
x[1, 2, 3, 4] = np.nan
np.save('nan.npy', x), np.savez('two.npz', a=x, b=x)"
    run -2 "$NALAGEN" decode sd1-latents.npy --vae vae
    [[ $output == *"-o OUT"* ]]
    run -2 "$NALAGEN" decode sd1-latents.npy -o a.png --vae none
    [[ $output == *"nothing to decode"* ]]
    run -2 "$NALAGEN" decode sd1-latents.npy -o a.png --vae vae --device cpu
    [[ $output == *"one file and there are 3 pictures"* ]]
    for file in flat whole none; do
        run -3 "$NALAGEN" decode $file.npy -o out/ --vae vae --device cpu
        [[ $output == *"$file.npy: expected latents [n, C, h, w] of floats"* ]]
    done
    run -3 "$NALAGEN" decode wide.npy -o out/ --vae vae --device cpu
    [[ $output == *"8 channels"*"has 4"* ]]
    run -3 "$NALAGEN" decode nan.npy -o out/ --vae vae --device cpu -b 1
    [[ $output == *"picture 1 holds NaN"* ]]
    run -3 "$NALAGEN" decode two.npz -o two/ --vae vae --device cpu
    [[ $output == *"--key: a, b"* ]]
    run -3 "$NALAGEN" decode two.npz -o two/ --vae vae --device cpu --key c
    [[ $output == *'no array "c"'* ]]
    run -3 "$NALAGEN" decode missing.npy -o out/ --vae vae --device cpu
    run -3 "$NALAGEN" decode vae -o out/ --vae vae --device cpu
    [[ $output == *"a folder"* || $output == *"is a directory"* ]]
    run -4 "$NALAGEN" decode sd1-latents.npy -o small.npz --vae vae --device cpu --max-memory 1M
}

@test "Ctrl-C: an archive is resumed" {
    twin sd1 vae
    numpy "
np.save('many.npy', np.random.default_rng(1).standard_normal((600, 4, 8, 8)).astype('f4'))"
    "$NALAGEN" decode many.npy -o whole.npz --vae vae --device cpu -q -b 5
    "$NALAGEN" decode many.npy -o out.npz --vae vae --device cpu -q -b 5 --threads 1 &
    pid=$!
    for _ in $(seq 1500); do [ -s out.npz.journal ] && break; sleep 0.02; done
    sleep 0.3
    kill -TERM $pid
    code=0; wait $pid || code=$?
    [ "$code" -eq 130 ]
    [ ! -e out.npz ]
    "$NALAGEN" decode many.npy -o out.npz --vae vae --device cpu -q -b 5
    numpy "
assert (np.load('out.npz')['arr_0'] == np.load('whole.npz')['arr_0']).all()"
}

@test "a mean and a deviation for each channel, from latents_stats.pt beside the autoencoder" {
    mkdir plain normal
    cp "$NL_SOURCE_DIR/tests/golden/torch/vae_compvis.ckpt" plain/vae.ckpt
    cp plain/vae.ckpt normal/
    numpy "
import pickle, zipfile
mean, std = np.array([.5, -1, .25, 2], 'f4'), np.array([2, .5, 3, 1.25], 'f4')
z = np.random.default_rng(0).standard_normal((2, 4, 2, 2)).astype('f4')
np.save('x.npy', z)
np.save('z.npy', z * std[:, None, None] + mean[:, None, None])
def text(s):
    return b'X' + len(s).to_bytes(4, 'little') + s.encode()
def tensor(key): # as torch.save writes a float tensor [1, 4, 1, 1]
    return (b'ctorch._utils\n_rebuild_tensor_v2\n((' + text('storage') + b'ctorch\nFloatStorage\n' + text(key) + text('cpu')
            + b'K\4tQK\0(K\1K\4K\1K\1t(K\4K\1K\1K\1t\x89ccollections\nOrderedDict\n)RtR')
with zipfile.ZipFile('normal/latents_stats.pt', 'w') as archive:
    archive.writestr('s/data.pkl', b'\x80\2}(' + text('mean') + tensor('0') + text('std') + tensor('1') + b'u.')
    archive.writestr('s/data/0', mean.tobytes())
    archive.writestr('s/data/1', std.tobytes())
    archive.writestr('s/version', '3\n')
"
    "$NALAGEN" decode z.npy -o z.npz --vae plain/vae.ckpt --latent-scale 1 --latent-shift 0 --device cpu -q
    run -0 "$NALAGEN" decode x.npy -o x.npz --vae normal/vae.ckpt --device cpu
    [[ $output == *"normalised by a mean and a deviation for each channel"* ]]
    # converted, one file has it all; and diffusers' folder
    "$NALAGEN" convert normal/vae.ckpt one.safetensors -q
    "$NALAGEN" decode x.npy -o one.npz --vae one.safetensors --device cpu -q
    "$NALAGEN" convert normal/vae.ckpt two/ --format diffusers -q
    "$NALAGEN" decode x.npy -o two.npz --vae two --device cpu -q
    numpy "
z, x, one, two = (np.load(n + '.npz')['arr_0'].astype(int) for n in ('z', 'x', 'one', 'two'))
assert abs(z - x).max() <= 1 and (x == one).all() and (x == two).all() and x.std() > 1, abs(z - x).max()"
}
