load helper

inception=$NL_SOURCE_DIR/../shared/weights/inception-2015-12-05-partial.safetensors

# Writes pictures with numpy: 80 of 32 x 24 and 40 of another kind, as .npz of every sort, and as PNG.
need_inception() {
    [ -f "$inception" ] || skip "no weights of Inception in this checkout"
    numpy "
rng = np.random.default_rng(0)
def pictures(n, low):
    x = rng.integers(low, 256, size=(n, 6, 8, 3)).repeat(4, 1).repeat(4, 2)
    return x.astype(np.uint8)
a, b = pictures(70, 0), pictures(66, 40)
np.savez('a.npz', a)
np.savez('b.npz', b)
np.savez_compressed('packed.npz', arr_0=a)
np.savez('fortran.npz', arr_0=np.asfortranarray(a))
np.savez('planes.npz', arr_0=a.transpose(0, 3, 1, 2).copy())
np.savez('floats.npz', arr_0=a / 255)
np.savez('grey.npz', arr_0=a[..., :1].copy())
np.savez('other.npz', images=a)
data = open('a.npz', 'rb').read()
open('cut.npz', 'wb').write(data[:len(data) // 2])
i = len(data) // 2
open('flipped.npz', 'wb').write(data[:i] + bytes([data[i] ^ 1]) + data[i + 1:])
"
}

# The smallest features, so that few pictures are enough.
evaluate() {
    "$NALAGEN" eval -w "$inception" --features pool_64 --metrics fid,precision,recall,kid --json -q "$@"
}

@test "eval of stored and deflated archives is the same and agrees with stats" {
    need_inception
    evaluate a.npz --ref b.npz >one
    evaluate packed.npz --ref b.npz >two
    "$NALAGEN" stats -w "$inception" --allow-small -q b.npz -o ref.npz --images 66
    evaluate a.npz --ref ref.npz >three
    cat one two three | json_lines "x['n'] == 70 and not x['small'] and x['metrics']['fid_64'] > 0"
    python3 -c '
import json
one, two, three = (json.load(open(name))["metrics"] for name in ("one", "two", "three"))
assert one == two == three, (one, two, three)'
}

@test "what stats writes numpy reads, and the other way round" {
    need_inception
    "$NALAGEN" stats -w "$inception" --allow-small -q b.npz -o ref.npz --images 10
    numpy "
r, b = np.load('ref.npz'), np.load('b.npz')['arr_0']
assert r['arr_0'].shape == (10, 24, 32, 3) and r['arr_0'].dtype == np.uint8
assert all((b == x).all((1, 2, 3)).any() for x in r['arr_0'])
for s, n in (('_s', 2023), ('_768', 768), ('_192', 192), ('_64', 64)):
    m, c = r['mu' + s], r['sigma' + s]
    assert m.shape == (n,) and c.shape == (n, n) and c.dtype == np.float64
    assert np.array_equal(c, c.T) and np.isfinite(c).all() and np.trace(c) > 0
assert 'mu' not in r # these weights do not have the last layers
np.savez_compressed('again.npz', mu=r['mu_64'], sigma=r['sigma_64'])
np.savez('single.npz', mu=r['mu_64'].astype('f4'), sigma=r['sigma_64'].astype('f4'))
np.savez('wrong.npz', mu_64=r['mu_64'], sigma_64=r['sigma_64'][:5])
"
    "$NALAGEN" eval -w "$inception" --features pool_64 -q --json a.npz --ref again.npz --metrics fid >one
    "$NALAGEN" eval -w "$inception" --features pool_64 -q --json a.npz --ref single.npz --metrics fid >two
    "$NALAGEN" eval -w "$inception" --features pool_64 -q --json a.npz --ref b.npz --metrics fid >three
    python3 -c '
import json
one, two, three = (json.load(open(name))["metrics"]["fid_64"] for name in ("one", "two", "three"))
assert abs(one - three) < 1e-9 * three and abs(two - three) < 1e-5 * three, (one, two, three)'
    run -3 "$NALAGEN" eval -w "$inception" --features pool_64 -q a.npz --ref wrong.npz --metrics fid
    [[ $output == *"sigma_64 is F64 [5, 64], expected F64 or F32 [64, 64]"* ]]
}

@test "a folder of pictures gives what the archive of them gives" {
    need_inception
    numpy "
import zlib, struct, os
def png(path, x):
    raw = b''.join(b'\\0' + row.tobytes() for row in x)
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    head = struct.pack('>IIBBBBB', x.shape[1], x.shape[0], 8, 2, 0, 0, 0)
    open(path, 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', head) +
                           chunk(b'IDAT', zlib.compress(raw)) + chunk(b'IEND', b''))
a = np.load('a.npz')['arr_0']
os.makedirs('folder/x')
for i, x in enumerate(a):
    png(f'folder/{\"x/\" if i >= 30 else \"\"}{i:03d}.png', x)
open('folder/notes.txt', 'w').write('no picture')
os.makedirs('mixed')
png('mixed/a.png', a[0])
png('mixed/b.png', a[1][:8])
"
    evaluate folder --ref b.npz >one
    evaluate a.npz --ref b.npz >two
    python3 -c '
import json
one, two = (json.load(open(name)) for name in ("one", "two"))
assert one["metrics"] == two["metrics"] and one["n"] == 70, (one, two)'
    run --separate-stderr "$NALAGEN" eval -w "$inception" --features pool_64 --metrics kid --allow-small \
        mixed --ref b.npz
    [ "$status" -eq 0 ]
    [[ $stderr == *"different sizes"* ]]
    mkdir empty
    run -3 evaluate empty --ref b.npz
    [[ $output == *"no PNG or JPEG"* ]]
    cp a.npz folder/x/broken.png
    run -3 evaluate folder --ref b.npz
    [[ $output == *broken.png* ]]
}

@test "files that are not what they should be are refused by name" {
    need_inception
    declare -A expected=(
        [fortran.npz]="Fortran order" [planes.npz]="not channels first" [floats.npz]="arr_0 is F64"
        [grey.npz]="expected U8 [N, height, width, 3]" [other.npz]="it holds images"
        [cut.npz]="cut.npz" [flipped.npz]="checksum does not fit" [none.npz]="none.npz"
    )
    for name in "${!expected[@]}"; do
        run -3 evaluate "$name" --ref b.npz
        [[ $output == *"${expected[$name]}"* ]] || { echo "$name: $output"; false; }
        run -3 evaluate b.npz --ref "$name"
    done
    run -3 "$NALAGEN" eval -w "$NL_SOURCE_DIR/tests/golden/torch/dit.pt" a.npz --ref b.npz
    [[ $output == *"not the weights of the FID network"* ]]
}

@test "what is missing is named and the rest computed" {
    need_inception
    "$NALAGEN" eval -w "$inception" --json --allow-small a.npz --ref b.npz 2>err | json_lines \
        "x['features'] == 'mixed_7' and x['small'] and 'is' in x['missing'] and \
         set(x['metrics']) == {'fid_768', 'sfid', 'precision_768', 'recall_768', 'kid_768', 'kid_768_std'}"
    grep -q "mixed_9/tower_1/conv_1.weight" err
    run -3 "$NALAGEN" eval -w "$inception" --features pool_3 a.npz --ref b.npz
    [[ $output == *"softmax.weight"* ]]
    numpy "
np.savez('stats.npz', mu=np.zeros(64), sigma=np.eye(64))"
    "$NALAGEN" eval -q -w "$inception" --features pool_64 --json a.npz --ref stats.npz | json_lines \
        "'fid_64' in x['metrics'] and 'no pictures' in x['missing']['precision_64'] and \
         'mu_s' in x['missing']['sfid']"
}

@test "guards: too few pictures, copies, options" {
    need_inception
    run -2 "$NALAGEN" eval -w "$inception" --features mixed_7 --metrics fid a.npz --ref b.npz
    [[ $output == *"70 pictures are too few"*--allow-small* ]]
    run --separate-stderr "$NALAGEN" eval -w "$inception" --features pool_64 --metrics fid a.npz --ref a.npz
    [ "$status" -eq 0 ]
    [[ $stderr == *"70 of 70 samples are pictures of the reference"* ]]
    [[ $output == *"FID (64)            0.00000"* ]]
    run -2 "$NALAGEN" eval -w "$inception" a.npz
    [[ $output == *--ref* ]]
    run -2 "$NALAGEN" eval a.npz --ref b.npz --metrics fdi
    run -2 "$NALAGEN" eval -w "$inception" a.npz --ref b.npz --metrics fdi
    [[ $output == *"did you mean fid"* ]]
    run -2 "$NALAGEN" eval
    run -2 "$NALAGEN" eval --preset tensorflow a.npz
    echo old >ref.npz
    run -7 "$NALAGEN" stats -w "$inception" --allow-small b.npz -o ref.npz
    [ "$(cat ref.npz)" = old ]
    run -2 "$NALAGEN" stats -w "$inception" b.npz -o new.npz
    [ ! -e new.npz ]
    run -7 "$NALAGEN" stats -q -w "$inception" --allow-small b.npz -o /dev/full/x
}

@test "presets differ, batches and threads do not" {
    need_inception
    for preset in openai pytorch-fid clean-fid torch-fidelity; do
        evaluate --preset $preset a.npz --ref b.npz >$preset
    done
    evaluate -t 1 a.npz --ref b.npz >single
    evaluate --max-memory 400M a.npz --ref b.npz >small
    python3 -c '
import json
fid = {name: json.load(open(name))["metrics"]["fid_64"] for name in
       ("openai", "pytorch-fid", "clean-fid", "torch-fidelity", "single", "small")}
assert len({fid["openai"], fid["pytorch-fid"], fid["clean-fid"]}) == 3, fid
assert fid["openai"] == fid["torch-fidelity"]
for name in ("single", "small"):
    assert abs(fid[name] - fid["openai"]) < 1e-3 * fid["openai"], fid'
}
