# SPDX-License-Identifier: MIT
# The Python package (python/): it describes the header, gives what the command line gives, and fails with exceptions.
load helper

plain_library() {
    ! ldd "$NL_LIBRARY" | grep -q libasan || skip "this Python is built without the library's sanitizers"
}

# Runs Python code with numpy, the package and the library under test.
package() {
    plain_library
    NALAGEN_LIBRARY=$NL_LIBRARY PYTHONPATH=$NL_SOURCE_DIR/python PYTHONDONTWRITEBYTECODE=1 numpy "
import nalagen
$1"
}

# A model of 8 x 8 pixels and four classes, trained for a step: run/model.safetensors; its data.
small_model() {
    one_colour
    "$NALAGEN" train --model SiT-1x32x1/4 --data data --batch 8 --steps 1 --sample-every 0 --device cpu -o run -q
}

@test "the structures are the header's" {
    command -v cc >/dev/null || skip "no C compiler"
    plain_library # here: `run` would take the skip for a success
    run package "
import runpy, sys
sys.argv = ['', '$NL_SOURCE_DIR/include/nalagen.h']
runpy.run_path('$NL_SOURCE_DIR/tests/python_header.py')"
    echo "$output"
    [[ $output != "no numpy"* ]] || skip "no numpy"
    [ "$status" -eq 0 ]
    # a header with another member is seen
    sed 's/^    double eta; /    double another; double eta; /' "$NL_SOURCE_DIR/include/nalagen.h" >nalagen.h
    ! cmp -s nalagen.h "$NL_SOURCE_DIR/include/nalagen.h" || false
    run package "
import runpy, sys
sys.argv = ['', 'nalagen.h']
runpy.run_path('$NL_SOURCE_DIR/tests/python_header.py')"
    [ "$status" -ne 0 ]
    [[ $output == *"nl_sampling: the header's members are"* ]]
}

@test "the tests that lie with the package: pytest python" {
    need_model
    package "
import runpy, sys
sys.argv = ['unittest', 'discover', '$NL_SOURCE_DIR/python/tests']
runpy.run_module('unittest', run_name='__main__')"
}

@test "images are those that the command line writes" {
    need_model
    package ""
    quick -c church,14,"golf ball" -n 4 --seed 3 --first-index 2 -o made/ -q --latents latents.npy
    quick -c church --walk 3 --to-class "golf ball" --seed 3 --to-seed 4 -b 1 -o walk/%d.png -q
    package "
import glob, zlib, struct
def png(path):
    data, at, packed = open(path, 'rb').read(), 8, b''
    while at < len(data):
        n, kind = struct.unpack('>I4s', data[at:at + 8])
        body = data[at + 8:at + 8 + n]
        if kind == b'IHDR':
            w, h = struct.unpack('>II', body[:8])
        if kind == b'IDAT':
            packed += body
        at += 12 + n
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(h, 1 + 3 * w)
    out = np.zeros((h, w, 3), int)
    for y in range(h):
        kind, line = rows[y, 0], rows[y, 1:].reshape(w, 3).astype(int)
        up = out[y - 1] if y else np.zeros((w, 3), int)
        for x in range(w):
            a, b = (out[y, x - 1] if x else 0 * line[0]), up[x]
            c = up[x - 1] if x else 0 * line[0]
            p = a + b - c
            pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
            paeth = np.where((pa <= pb) & (pa <= pc), a, np.where(pb <= pc, b, c))
            out[y, x] = (line[x] + [0, a, b, (a + b) // 2, paeth][kind]) % 256
    return out.astype(np.uint8)
names = sorted(glob.glob('made/*.png'), key=lambda n: n[-10:])
assert len(names) == 4, names
model = nalagen.load(vae='$vae', size=64)
options = dict(seed=3, first_index=2, sampler='euler', steps=2, cfg_scale=1)
images = model.sample(['church', 14, 'golf ball'], 4, **options)
assert images.shape == (4, 64, 64, 3) and images.dtype == np.uint8
assert list(images.labels) == [18, 14, 14, 18] and list(images.indices) == [2, 3, 4, 5], images.labels
for name, image in zip(names, images):
    assert np.array_equal(png(name), image), name
assert np.array_equal(images.latents, np.load('latents.npy'))
# from one picture to another
walk = model.walk('church', 'golf ball', 3, seed=3, end_seed=4, sampler='euler', steps=2, cfg_scale=1, batch=1)
assert list(walk.indices) == [0, 1, 2] and np.array_equal(walk[1], png('walk/1.png'))
for end, image in zip((('church', 3), ('golf ball', 4)), walk[::2]):
    assert np.array_equal(image, model.sample(end[0], 1, seed=end[1], sampler='euler', steps=2, cfg_scale=1)[0])
# another size in between
assert model.sample(0, size=(64, 32), steps=1, sampler='euler', cfg_scale=1).shape == (1, 64, 32, 3)
assert model.class_index('church') == model.class_index('n03028079') == 14 and model.classes[14] == 'church'
assert len(model.sha256) == 64
"
}

@test "noise goes in and latents come out, as --noise and --latents" {
    small_model
    numpy "
np.save('noise.npy', np.random.default_rng(0).standard_normal((3, 3, 32, 32)).astype('f4'))"
    "$NALAGEN" sample -m run/model.safetensors --vae none -c 3 -n 3 --noise noise.npy --latents latents.npy --steps 4 -q
    package "
noise = np.load('noise.npy')
model = nalagen.load('run/model.safetensors', vae='none')
assert model.classes == [str(i) for i in range(10)] and '10 classes' in repr(model), model
assert model.latent_shape == noise.shape[1:], model.latent_shape
seen = []
x = model.sample_latents(3, 3, noise=noise, steps=4, progress=seen.append, preview_every=2)
assert np.array_equal(x, np.load('latents.npy'))
assert {p.stage for p in seen} and seen[0].images == 3 and any(p.preview is not None for p in seen), seen
assert next(p.preview for p in seen if p.preview is not None).shape == noise.shape[1:]
assert not np.array_equal(x, model.sample_latents(3, 3, steps=4))
assert np.array_equal(model.sample_latents(None, steps=4, seed=2, cfg_scale=1),
                      model.sample_latents(3, steps=4, seed=2, cfg_scale=0))
guided = nalagen.load('run/model.safetensors', vae='none', guide='run/model.safetensors') # itself: nothing
assert np.array_equal(guided.sample_latents(3, steps=4, guide_scale=3),
                      model.sample_latents(3, steps=4, cfg_scale=1))
"
}

@test "a library that is not there is named" {
    plain_library
    cp -r "$NL_SOURCE_DIR/python/nalagen" .
    run env NALAGEN_LIBRARY=nowhere.so PYTHONPATH=. python3 -c 'import sys; sys.modules["numpy.x"] = 0
try:
    import nalagen
except ImportError:
    print("NALAGEN_LIBRARY nowhere.so") # no numpy
else:
    nalagen.load()'
    [[ $output == *NALAGEN_LIBRARY*nowhere.so* ]]
}

@test "evaluate: the numbers of nalagen eval, of files, arrays and a model" {
    need_inception
    package "
rng = np.random.default_rng(0)
np.savez('a.npz', rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8))
np.savez('b.npz', rng.integers(40, 256, (10, 8, 8, 3), dtype=np.uint8))"
    "$NALAGEN" eval a.npz --ref b.npz -w "$inception" --features pool_64 --metrics fid,kid,precision --allow-small --json -q >json
    package "
import json
a, b = (np.load(n)['arr_0'] for n in ('a.npz', 'b.npz'))
report = json.load(open('json'))['metrics']
options = dict(weights='$inception', features='pool_64', metrics=['fid', 'kid', 'precision'],
               allow_small=True)
seen = []
one, two = nalagen.evaluate('b.npz', 'a.npz', progress=seen.append, **options), nalagen.evaluate(b, a, **options)
assert one.metrics == two.metrics and set(one.metrics) == {'fid', 'kid', 'precision'}, one
assert {p.stage for p in seen} >= {'samples', 'reference'}, seen
for name, value in one.metrics.items():
    theirs = next(v for k, v in report.items() if k.startswith(name) and not k.endswith('_std'))
    assert abs(value.value - theirs) <= 1e-5 * abs(theirs), (name, value, theirs)
assert one['fid'] == one.metrics['fid'].value and one.samples == 12 and one.reference == 10 and one.small
none = nalagen.evaluate(b, a, **dict(options, metrics='is,fid'))
assert 'is' in none.missing, none
for arguments, kind in (((b,), ValueError), (('nowhere.npz', a), nalagen.InputError)):
    try:
        nalagen.evaluate(*arguments, **options)
        raise AssertionError(arguments)
    except kind:
        pass
"
    small_model
    "$NALAGEN" eval -m run/model.safetensors -n 8 -c 3 --seed 5 --steps 2 --ref b.npz -w "$inception" --allow-small \
        --metrics sfid --json -q >json
    package "
import json
model = nalagen.load('run/model.safetensors')
e = nalagen.evaluate('b.npz', model=model, n=8, classes=3, seed=5, sampling={'steps': 2}, weights='$inception',
                     allow_small=True, metrics='sfid')
value = json.load(open('json'))['metrics']['sfid']
assert abs(e['sfid'] - value) <= 1e-5 * value and e.small, (e, value)
def stop(p):
    return False
try:
    nalagen.evaluate('b.npz', model=model, n=8, weights='$inception', allow_small=True, progress=stop)
    raise AssertionError('not stopped')
except nalagen.Cancelled:
    pass
assert model.sample(0, steps=1).shape[0] == 1
"
}

@test "data sets of encode" {
    mkdir set
    numpy "
rng = np.random.default_rng(0)
rows = rng.integers(0, 256, (20, 3073), dtype=np.uint8)
rows[:, 0] %= 10
rows.tofile('set/data_batch_1.bin')
np.save('rows.npy', rows)"
    "$NALAGEN" encode set -o pixels --vae none --device cpu -q
    package "
import pickle
rows, d = np.load('rows.npy'), nalagen.Dataset('pixels')
assert len(d) == 20 and d.kind == 'pixels' and d.shape == (3, 32, 32) and len(d.classes) == 10, vars(d)
for i in range(-20, 20):
    x, label = d[i]
    assert label == rows[i, 0] and x.dtype == np.float32
    assert np.array_equal(x, rows[i, 1:].reshape(3, 32, 32).astype('f4') / np.float32(127.5) - 1)
    assert np.array_equal(d.read(i, flipped=True), x[:, :, ::-1])
assert np.array_equal(d.labels, rows[:, 0]) and len(list(d)) == 20
assert np.array_equal(pickle.loads(pickle.dumps(d))[3][0], d[3][0])
for bad in 'nowhere', 'set':
    try:
        nalagen.Dataset(bad)
        raise AssertionError(bad)
    except nalagen.InputError as error:
        assert str(error) == bad + \": not a data set of 'nalagen encode': there is no dataset.json in it\", error
assert repr(d) == '<nalagen.Dataset pixels: 20 samples, pixels [3, 32, 32], 10 classes>', d
data = open('pixels/shard-00000.safetensors', 'rb').read()
open('pixels/shard-00000.safetensors', 'wb').write(data[:len(data) // 2])
try:
    nalagen.Dataset('pixels')[19]
    raise AssertionError('a half shard')
except nalagen.InputError as error:
    assert 'shard-00000' in str(error)
"
    [ -f "$vae" ] || return 0
    "$NALAGEN" encode set -o latents --vae "$vae" --device cpu -q
    package "
d = nalagen.Dataset('latents')
x, label = d[5]
assert d.kind == 'latents' and x.shape == d.shape == (4, 4, 4) and d.flips
assert np.array_equal(x, (d.read(5) - np.float32(d.shift)) * np.float32(d.scale))
assert not np.array_equal(d.read(5), d.read(5, flipped=True))
try:
    import torch
except ImportError:
    pass
else:
    x, label = next(iter(torch.utils.data.DataLoader(d.torch(flip=False), batch_size=3)))
    assert x.shape == (3, 4, 4, 4) and np.array_equal(x[2].numpy(), d[2][0]) and list(label) == list(d.labels[:3])
"
}

@test "the example" {
    need_model
    package "
import runpy, sys
sys.argv = ['python_sample.py', 'golf ball', '2', '--size', '64', '--steps', '2']
runpy.run_path('$NL_SOURCE_DIR/examples/python_sample.py', run_name='__main__')" >out
    grep -qx picture-0.png out
    is_png picture-0.png
    is_png picture-1.png
}
