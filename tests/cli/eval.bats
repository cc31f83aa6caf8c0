# SPDX-License-Identifier: MIT
# nalagen eval and stats: formats, refusals, guards, the same numbers in every way of getting there.
load helper

# make_pictures [COUNT COUNT]: pictures of two kinds by numpy, 32 x 24, as .npz of every sort. Where the number matters,
# 70 and 66: more than 64 features.
make_pictures() {
    need_inception
    numpy "
rng = np.random.default_rng(0)
def pictures(n, low):
    x = rng.integers(low, 256, size=(n, 6, 8, 3)).repeat(4, 1).repeat(4, 2)
    return x.astype(np.uint8)
a, b = pictures(${1:-70}, 0), pictures(${2:-66}, 40)
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

# The smallest features, of few pictures.
evaluate() {
    "$NALAGEN" eval -w "$inception" --features pool_64 --metrics fid,precision,recall,kid --allow-small --json -q "$@"
}

@test "eval of stored and deflated archives is the same and agrees with stats" {
    make_pictures 12 10
    evaluate a.npz --ref b.npz >one
    evaluate packed.npz --ref b.npz >two
    "$NALAGEN" stats -w "$inception" --allow-small -q b.npz -o ref.npz --images 10
    evaluate a.npz --ref ref.npz >three
    cat one two three | json_lines "x['n'] == 12 and x['metrics']['fid_64'] > 0"
    python3 -c '
import json
one, two, three = (json.load(open(name))["metrics"] for name in ("one", "two", "three"))
assert one == two == three, (one, two, three)'
}

@test "what stats writes numpy reads, and the other way round" {
    make_pictures 12 10
    "$NALAGEN" stats -w "$inception" --allow-small -q b.npz -o ref.npz --images 6
    numpy "
r, b = np.load('ref.npz'), np.load('b.npz')['arr_0']
assert r['arr_0'].shape == (6, 24, 32, 3) and r['arr_0'].dtype == np.uint8
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
    "$NALAGEN" eval -w "$inception" --features pool_64 -q --json a.npz --ref again.npz --metrics fid --allow-small >one
    "$NALAGEN" eval -w "$inception" --features pool_64 -q --json a.npz --ref single.npz --metrics fid --allow-small >two
    "$NALAGEN" eval -w "$inception" --features pool_64 -q --json a.npz --ref b.npz --metrics fid --allow-small >three
    python3 -c '
import json
one, two, three = (json.load(open(name))["metrics"]["fid_64"] for name in ("one", "two", "three"))
assert abs(one - three) < 1e-9 * three and abs(two - three) < 1e-5 * three, (one, two, three)'
    # the distance from the numbers in the files, by the eigenvalues of the product
    "$NALAGEN" stats -w "$inception" --allow-small -q a.npz -o a-ref.npz --images 0
    numpy "
import json
a, b = np.load('a-ref.npz'), np.load('ref.npz')
assert 'arr_0' not in a
d, s, t = a['mu_64'] - b['mu_64'], a['sigma_64'], b['sigma_64']
fid = d @ d + np.trace(s + t) - 2 * np.sqrt(np.maximum(np.linalg.eigvals(s @ t).real, 0)).sum()
ours = json.load(open('three'))['metrics']['fid_64']
assert abs(ours - fid) < 1e-6 * fid, (ours, fid)
"
    run -3 "$NALAGEN" eval -w "$inception" --features pool_64 -q a.npz --ref wrong.npz --metrics fid
    [[ $output == *"sigma_64 is F64 [5, 64], expected F64 or F32 [64, 64]"* ]]
    numpy "
np.savez('of_2048.npz', mu=np.zeros(2048), sigma=np.eye(2048))"
    run -3 "$NALAGEN" eval -w "$inception" --features pool_64 -q a.npz --ref of_2048.npz
    [[ $output == *"no statistics of pool_64 (64 numbers) and no pictures; it holds mu, sigma"* ]]
    run -2 "$NALAGEN" eval -w "$inception" --features pool_64 -q a.npz --ref a.npz --metrics fid
    [[ $output == *"Take 65 or more"* && $output != *"fewer numbers"* ]]
    numpy "
np.savez('three.npz', np.load('a.npz')['arr_0'][:3])"
    run -2 "$NALAGEN" eval -w "$inception" --features pool_64 -q a.npz --ref three.npz --metrics precision
    [[ $output == *"three.npz: precision and recall look at the 3 nearest others of each picture, and there are 3 in all"* ]]
}

@test "a folder of pictures gives what the archive of them gives" {
    make_pictures 12 10
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
    png(f'folder/{\"x/\" if i >= 5 else \"\"}{i:03d}.png', x)
open('folder/notes.txt', 'w').write('no picture')
os.makedirs('mixed')
png('mixed/a.png', a[0])
png('mixed/b.png', a[1][:8])
open('mixed/c.txt', 'w').write('no picture')
"
    evaluate folder --ref b.npz >one
    evaluate a.npz --ref b.npz >two
    python3 -c '
import json
one, two = (json.load(open(name)) for name in ("one", "two"))
assert one["metrics"] == two["metrics"] and one["n"] == 12, (one, two)'
    run --separate-stderr "$NALAGEN" eval -w "$inception" --features pool_64 --metrics kid --allow-small \
        mixed --ref b.npz
    [ "$status" -eq 0 ]
    [[ $stderr == *"different sizes"* && $stderr == *"left out: 1 file that is not PNG, JPEG or WebP (the first: c.txt)"* ]]
    # stats and nearest say it too, of whatever they are given
    left='folder: left out: 1 file that is not PNG, JPEG or WebP (the first: notes.txt)'
    run --separate-stderr "$NALAGEN" stats -w "$inception" --allow-small folder -o folder.npz
    [ "$status" -eq 0 ]
    [[ $stderr == *"$left"* ]]
    run --separate-stderr "$NALAGEN" nearest -w "$inception" --features pool_64 a.npz --ref folder
    [ "$status" -eq 0 ]
    [[ $stderr == *"$left"* ]]
    run --separate-stderr "$NALAGEN" nearest -w "$inception" --features pool_64 folder --ref a.npz --held-out b.npz
    [ "$status" -eq 0 ]
    [[ $stderr == *"$left"* ]]
    mkdir empty
    run -3 evaluate empty --ref b.npz
    [[ $output == *"no PNG, JPEG or WebP"* ]]
    cp a.npz folder/x/broken.png
    run -3 evaluate folder --ref b.npz
    [[ $output == *broken.png* ]]
}

@test "files that are not what they should be are refused by name" {
    make_pictures 12 10
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

@test "statistics that are no covariance are refused" {
    make_pictures 12 10
    numpy "
mu, one = np.zeros(64), np.eye(64)
bent, hole = one.copy(), one.copy()
bent[3, 5] = 0.5
hole[7, 7] = np.nan
np.savez('negative.npz', mu=mu, sigma=-one)
np.savez('bent.npz', mu=mu, sigma=bent)
np.savez('hole.npz', mu=mu, sigma=hole)
np.savez('mean.npz', mu=mu + np.inf, sigma=one)
np.savez('huge.npz', mu=mu, sigma=one * 1e300)
np.savez('far.npz', mu=mu - 1e39, sigma=one)
np.savez('big.npz', mu=mu.astype('>f8'), sigma=one)
np.save('plain.npy', mu)
np.savez('single.npz', np.load('a.npz')['arr_0'][:1])
"
    touch nothing.npz
    declare -A expected=(
        [negative.npz]="sigma is no covariance: the variance 0 is -1" [bent.npz]="not symmetric, 0 at (5, 3)"
        [hole.npz]="sigma is not finite at (7, 7)" [mean.npz]="mu is not finite at 0" [huge.npz]="sigma is 1e+300 at (0, 0)"
        [far.npz]="mu is -1e+39 at 0" [big.npz]="big endian"
        [plain.npy]="begins like no zip archive" [nothing.npz]="the file is empty"
    )
    for name in "${!expected[@]}"; do
        run -3 evaluate b.npz --metrics fid --ref "$name"
        [[ $output == *"$name: "*"${expected[$name]}"* ]] || { echo "$name: $output"; false; }
    done
    run -2 evaluate b.npz --metrics fid --allow-small --ref single.npz
    [[ $output == *"single.npz: one picture has no covariance"* ]]
    run -2 "$NALAGEN" eval -w "$inception" --features pool_64 -q b.npz --metrics sfid --ref a.npz
    [[ $output == *"--metrics without sfid"* ]]
}

@test "a deviation is there, and said of how many, where there are several parts" {
    make_pictures
    evaluate a.npz --ref b.npz | json_lines "x['n'] == 70 and not x['small'] and x['metrics']['kid_64_std'] > 0 and x['kid_subsets'] == 100 and \
        x['kid_subset_size'] == 66 and 'is_splits' not in x"
    numpy "
np.savez('same.npz', np.load('b.npz')['arr_0'][::-1])"
    evaluate same.npz --ref b.npz | json_lines "'kid_64' in x['metrics'] and 'kid_64_std' not in x['metrics'] and \
        x['kid_subsets'] == 1 and x['kid_subset_size'] == 66"
    run --separate-stderr "$NALAGEN" eval -w "$inception" --features pool_64 --metrics kid -q same.npz --ref b.npz
    [[ $output == *"KID (64) "*"(all pictures)"* ]]
    run --separate-stderr "$NALAGEN" eval -w "$inception" --features pool_64 --metrics kid -q a.npz --ref b.npz
    [[ $output == *"KID (64) "*" +- "*"(100 subsets of 66)"* ]]
    run -2 "$NALAGEN" eval -w "$inception" --device cpu --precision tf32 a.npz --ref b.npz
    [[ $output == *"precision tf32 is for GPUs"* ]]
}

@test "what is missing is named and the rest computed" {
    make_pictures 12 10
    "$NALAGEN" eval -w "$inception" --json --allow-small a.npz --ref b.npz 2>err | json_lines \
        "x['features'] == 'mixed_7' and x['small'] and 'is' in x['missing'] and \
         set(x['metrics']) == {'fid_768', 'sfid', 'precision_768', 'recall_768', 'kid_768', 'kid_768_std'}"
    grep -q "mixed_9/tower_1/conv_1.weight" err
    run -3 "$NALAGEN" eval -w "$inception" --features pool_3 a.npz --ref b.npz
    [[ $output == *"softmax.weight"* ]]
    numpy "
np.savez('stats.npz', mu=np.zeros(64), sigma=np.eye(64))"
    "$NALAGEN" eval -q -w "$inception" --features pool_64 --allow-small --json a.npz --ref stats.npz | json_lines \
        "'fid_64' in x['metrics'] and 'no pictures' in x['missing']['precision_64'] and \
         'mu_s' in x['missing']['sfid']"
}

@test "what the options lack is said before weights are looked for" {
    run -2 "$NALAGEN" eval -w none.pth a.npz
    [[ $output == *"nalagen: error: --ref is needed"*"docs/downloads.md"* ]]
    run -2 "$NALAGEN" eval -w none.pth --ref b.npz
    [[ $output == *"nalagen: error: what is to be evaluated?"* ]]
    run -2 "$NALAGEN" eval a.npz --ref b.npz --metrics fdi
    [[ $output == *"did you mean fid?" ]]
    run -2 "$NALAGEN" stats -w none.pth a.npz
    [[ $output == *"-o ref.npz" ]]
    run -3 "$NALAGEN" eval -w none.pth a.npz --ref b.npz
    [[ $output == *"none.pth: cannot be read"* ]]
}

@test "guards: too few pictures, copies, options" {
    make_pictures
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
    make_pictures 12 10
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

# A small model and how it is sampled here.
need_tiny() {
    tiny=$BATS_FILE_TMPDIR/tiny.safetensors
    [ -f "$tiny" ] || "$MAKE_MODEL" "$tiny"
    sampling=(-n 12 --seed 3 --sampler euler --steps 3 --cfg-scale 1.5)
}

same_metrics() {
    python3 -c '
import json, sys
metrics = [json.load(open(name))["metrics"] for name in sys.argv[1:]]
assert metrics[0] and all(m == metrics[0] for m in metrics), metrics' "$@"
}

@test "samples made on the fly are those of an archive, which says how it was made" {
    make_pictures 12 10
    need_tiny
    "$NALAGEN" sample -q -m "$tiny" "${sampling[@]}" -o samples.npz
    evaluate samples.npz --ref b.npz >stored
    evaluate -m "$tiny" "${sampling[@]}" -b 9 --ref b.npz >made
    evaluate -m "$tiny" "${sampling[@]}" --rounding adm --ref b.npz >adm
    evaluate a.npz --ref b.npz >foreign
    same_metrics stored made
    python3 -c '
import json
stored, made, adm, foreign = (json.load(open(n)) for n in ("stored", "made", "adm", "foreign"))
for x in stored, made:
    s = x["sampling"]
    assert (s["sampler"], s["steps"], s["cfg_scale"], s["seed"], s["number"]) == ("euler", 3, 1.5, 3, 12), s
assert made["sampling"]["sha256"] == stored["sampling"]["sha256"] and "config" not in made["sampling"]
assert made["evaluations"] == 3 and "evaluations" not in stored
assert made["metrics"] != adm["metrics"] and "sampling" not in foreign'
    [ "$(ls ./*.png ./*.part ./*.journal 2>/dev/null | wc -l)" -eq 0 ]
    "$NALAGEN" eval -q -w "$inception" --features pool_64 --metrics fid --allow-small -m "$tiny" "${sampling[@]}" --ref b.npz >table
    grep -q "^made by .*sha256.*euler, 3 steps, guidance 1.5.*seed 3" table
}

@test "what is evaluated is said once" {
    make_pictures 12 10
    need_tiny
    run -2 evaluate --ref b.npz
    [[ $output == *--model* ]]
    run -2 evaluate a.npz -m "$tiny" --ref b.npz
    run -2 evaluate a.npz --once --ref b.npz
    run -2 evaluate --watch . -m "$tiny" --ref b.npz
    run -3 evaluate -m none.safetensors --ref b.npz
    [[ $output == *none.safetensors* ]]
    run -2 "$NALAGEN" eval -q -w "$inception" --features mixed_7 -m "$tiny" -n 70 --ref b.npz
    [[ $output == *"70 pictures are too few"* ]]
}

# Model and FID network have a context each.
@test "a failure is told once, and in its own words" {
    make_pictures 12 10
    need_tiny
    for classes in 0 0,1; do
        run -2 evaluate -m "$tiny" -n 3 --steps 1 -c $classes --metrics fid,precision --ref b.npz
        [[ $output == *"the model's samples: precision and recall look at the 3 nearest others"* ]]
    done
    run -2 evaluate -m "$tiny" -n 9 --steps 1 -c 0,9 --ref b.npz
    [[ $output == *'class "9": the model has classes 0 to 4'* ]]
    run evaluate -m "$tiny" -n 9 --steps 1 --dtype fp8 --ref b.npz
    [ "$status" -eq 0 ] || [[ $status -eq 5 && $(wc -l <<<"$output") -eq 1 && $output == *"dtype fp8 is for a GPU"* ]]
}

# checkpoint FILE EMA: a training checkpoint whose averages are the tensors of EMA and whose model is nothing.
checkpoint() {
    numpy "
import json, struct
data = open('$2', 'rb').read()
size = struct.unpack('<Q', data[:8])[0]
header, body = json.loads(data[8:8 + size]), data[8 + size:]
meta = header.pop('__metadata__')
both = {'ema.' + n: t for n, t in header.items()}
shift = len(body)
for prefix in '', 'ema2.', 'adam.m.':
    for n, t in header.items():
        both[prefix + n] = dict(t, data_offsets=[x + shift for x in t['data_offsets']])
    shift += len(body)
meta['step'] = '1000'
text = json.dumps(dict(both, __metadata__=meta)).encode()
text += b' ' * (-len(text) % 8)
open('$1', 'wb').write(struct.pack('<Q', len(text)) + text + body + bytes(3 * len(body)))
"
}

@test "--watch evaluates the averages of each checkpoint once" {
    make_pictures 12 10
    need_tiny
    mkdir -p run/checkpoints
    run -3 evaluate --watch none --ref b.npz
    mkdir other
    run -3 evaluate --watch other --once --ref b.npz
    [[ $output == *"--watch other: expected the folder of a training run"* ]]
    watch() { evaluate --watch run "${sampling[@]}" --ref b.npz "$@"; }
    watch --once >nothing
    [ ! -s nothing ]
    [ ! -e run/metrics.jsonl ]
    echo '{"step": 500, "loss": 1.5}' >run/metrics.jsonl
    checkpoint run/checkpoints/step-0001000.safetensors "$tiny"
    cp run/checkpoints/step-0001000.safetensors run/checkpoints/step-0000500.safetensors
    touch run/checkpoints/step-0002000.safetensors.tmp
    watch --once >lines
    json_lines "x['evaluation']['n'] == 12 and x['fid_64'] == x['evaluation']['metrics']['fid_64']" <lines
    [ "$(wc -l <lines)" -eq 2 ]
    [ "$(wc -l <run/metrics.jsonl)" -eq 3 ]
    head -1 lines | json_lines "x['step'] == 500 and x['checkpoint'] == 'step-0000500.safetensors'"
    evaluate -m "$tiny" "${sampling[@]}" --ref b.npz >plain
    head -1 lines | python3 -c "import json; print(json.dumps(json.loads(input())['evaluation']))" >watched
    same_metrics plain watched
    evaluate -m run/checkpoints/step-0001000.safetensors --key model "${sampling[@]}" --ref b.npz >zeros
    run ! same_metrics plain zeros
    # what is there is not done again; a run that is over ends the watch
    cp run/checkpoints/step-0001000.safetensors run/checkpoints/step-0001500.safetensors
    touch run/done
    watch >more
    [ "$(wc -l <more)" -eq 1 ]
    json_lines "x['step'] == 1500" <more
    watch >more
    [ ! -s more ]
    [ "$(wc -l <run/metrics.jsonl)" -eq 4 ]
    echo '{"step": 100, "loss": 1.5}' >run/log.jsonl
    "$NALAGEN" plot run --value fid_64 -o fid.svg
    grep -q fid_64 fid.svg
    # another reference is another evaluation
    evaluate --watch run "${sampling[@]}" --ref a.npz --once | json_lines "x['evaluation']['reference'] == 'a.npz'"
    # and so are other samples
    watch -n 13 >more
    [ "$(wc -l <more)" -eq 3 ]
    json_lines "x['evaluation']['n'] == 13 and x['options']['number'] == 13" <more
    watch -n 13 >more
    [ ! -s more ]
    # a place for the results is looked for first
    if [ "$(id -u)" -ne 0 ]; then
        chmod 444 run/metrics.jsonl
        run -7 watch -n 14
        [[ $output == *"metrics.jsonl: cannot be written: Permission denied"* ]]
    fi
}

@test "references by class, put together, are the reference of all" {
    make_pictures 12 10
    numpy "
import zlib, struct, os
def png(path, x):
    raw = b''.join(b'\\0' + row.tobytes() for row in x)
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    head = struct.pack('>IIBBBBB', x.shape[1], x.shape[0], 8, 2, 0, 0, 0)
    open(path, 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', head) +
                           chunk(b'IDAT', zlib.compress(raw)) + chunk(b'IEND', b''))
b = np.load('b.npz')['arr_0']
for i, x in enumerate(b):
    name = 'classes/' + ('n1' if i < 3 else 'n2' if i < 7 else 'n3')
    os.makedirs(name, exist_ok=True)
    png(f'{name}/{i:03d}.png', x)
open('classes/notes.txt', 'w').write('no class')
"
    stats() { "$NALAGEN" stats -w "$inception" --allow-small -q "$@"; }
    stats classes -o all.npz
    stats --per-class classes -o by/
    [ "$(ls by)" = "n1.npz
n2.npz
n3.npz" ]
    stats --merge by/n1.npz by/n2.npz by/n3.npz -o merged.npz
    stats --merge by/n1.npz by/n2.npz --images 5 -o part.npz
    numpy "
a, m, p = np.load('all.npz'), np.load('merged.npz'), np.load('part.npz')
assert sorted(a.files) == sorted(m.files) == sorted(p.files), (a.files, m.files)
assert a['count'] == m['count'] == 10 and p['count'] == 7 and a['count'].shape == ()
assert np.array_equal(a['arr_0'], m['arr_0']) and p['arr_0'].shape == (5, 24, 32, 3)
for name in a.files:
    if name.startswith(('mu', 'sigma')):
        assert np.abs(a[name] - m[name]).max() < 1e-9 * max(1, np.abs(a[name]).max()), name
        assert np.abs(a[name] - p[name]).max() > 1e-3 * np.abs(a[name]).max(), name
np.savez('uncounted.npz', mu_64=a['mu_64'], sigma_64=a['sigma_64'])
np.savez('fewer.npz', mu_64=a['mu_64'], sigma_64=a['sigma_64'], count=np.int64(9))
"
    run -3 stats --merge all.npz uncounted.npz -o bad.npz
    [[ $output == *"uncounted.npz: it does not say of how many pictures"* ]]
    run -3 stats --merge all.npz fewer.npz -o bad.npz
    [[ $output == *"fewer.npz: its statistics are not of the same features"* ]]
    run -7 stats --merge all.npz -o merged.npz
    run -7 stats --per-class classes -o by
    run -3 stats --per-class b.npz -o bad
    run -3 stats --per-class classes/n1 -o bad
    run -2 stats a.npz b.npz -o bad.npz
    [[ $output == *--merge* ]]
}

@test "intervals, extrapolation, fp16, all of them deterministic" {
    make_pictures
    evaluate a.npz --ref b.npz --allow-small --bootstrap 30 --fid-infinity >one
    evaluate packed.npz --ref b.npz --allow-small --bootstrap 30 --fid-infinity >two
    same_metrics one two
    json_lines "(lambda m: m['fid_64_95'][0] < m['fid_64'] < m['fid_64_95'][1] and m['fid_64_std'] > 0 and \
        m['fid_infinity_64'] < m['fid_64'])(x['metrics'])" <one
    evaluate a.npz --ref b.npz --distances f16 | json_lines "x['distances'] == 'f16'"
    "$NALAGEN" eval -q -w "$inception" --features pool_64 --metrics fid,fid_infinity --bootstrap 10 a.npz --ref b.npz >table
    grep -q "^FID (64) .*95 %: " table
    grep -q "^FID-infinity (64)" table
    run -2 evaluate a.npz --ref b.npz --bootstrap 1
}

@test "options that would change nothing are refused" {
    local row
    while IFS='|' read -r row expected; do
        run -2 "$NALAGEN" eval samples.npz --ref ref.npz $row
        [[ $output == *"$expected"* ]] || { echo "$row: $output"; return 1; }
    done <<'END'
--metrics fid --kid-subsets 5|--kid-subsets does nothing without kid
--metrics fid --is-split 200|--is-split does nothing without is
--metrics is --bootstrap 3|--bootstrap does nothing without fid
--metrics fid --distances f16|--distances does nothing without precision or recall
--metrics fid --cfg-scale 3|samples.npz: pictures: --cfg-scale is for a --model
--class 0|--class is for a --model
--vae tiny|--vae is for a --model
END
    run -2 "$NALAGEN" nearest samples.npz --ref ref.npz --edge 64 --device cpu
    [[ $output == *"--edge is of the file that --out names"* ]]
}
