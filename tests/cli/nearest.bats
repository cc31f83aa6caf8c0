# SPDX-License-Identifier: MIT
# nalagen nearest: copies that are known, numbers against numpy.
load helper

# 40 pictures of training, 200 others, and 12 samples: the first is a picture of training, the second nearly one.
make_pictures() {
    need_inception
    numpy "
rng = np.random.default_rng(0)
def pictures(n):
    return rng.integers(0, 256, size=(n, 6, 8, 3)).repeat(4, 1).repeat(4, 2).astype(np.uint8)
train, other, samples = pictures(40), pictures(200), pictures(12)
samples[0] = train[7]
samples[1] = np.clip(train[31].astype(int) + 3, 0, 255)
np.savez('train.npz', train)
np.savez('other.npz', other)
np.savez('samples.npz', samples)
"
}

nearest() {
    "$NALAGEN" nearest -w "$inception" -q --features pool_64 samples.npz --ref train.npz "$@"
}

@test "nearest finds copies, and colours' distances are numpy's" {
    make_pictures
    nearest --held-out other.npz --json -o sheet.png >out
    is_png sheet.png
    numpy "
import json
out = json.load(open('out'))
assert (out['n'], out['reference_pictures'], out['held_out_pictures']) == (12, 40, 200)
def cells(x):
    h, w = x.shape[1:3]
    rows = [slice(i * h // 16, max((i + 1) * h // 16, i * h // 16 + 1)) for i in range(16)]
    columns = [slice(i * w // 16, max((i + 1) * w // 16, i * w // 16 + 1)) for i in range(16)]
    return np.stack([x[:, r, c].mean((1, 2)) for r in rows for c in columns], 1).reshape(len(x), -1)
train, other, samples = (cells(np.load(n + '.npz')['arr_0'].astype(float)) for n in ('train', 'other', 'samples'))
def distances(x):
    return np.sqrt(((x[:, None] - train[None]) ** 2).mean(2))
s, h = distances(samples), distances(other).min(1)
p = out['pixels']
assert len(p['nearest']) == 6
for i, row in enumerate(p['nearest']):
    assert row['sample'] == np.argsort(s.min(1))[i]
    assert row['pictures'] == list(np.argsort(s[row['sample']])[:5])
    assert np.allclose(row['distances'], np.sort(s[row['sample']])[:5], rtol=1e-5, atol=1e-4)
assert np.isclose(p['median'], np.sort(s.min(1))[6]) and np.isclose(p['held_out_median'], np.sort(h)[100])
assert np.isclose(p['held_out_least'], h.min())
assert np.isclose(p['nearer'], (s.min(1)[:, None] < h[None]).mean())
assert np.isclose(p['very_near'], (s.min(1) < np.sort(h)[2]).mean()) and p['very_near'] >= 2 / 12
for space in ('pool_64', 'pixels'):
    first, second = out[space]['nearest'][:2]
    assert first['sample'] == 0 and first['pictures'][0] == 7 and first['distances'][0] == 0
    assert second['sample'] == 1 and second['pictures'][0] == 31
    assert out[space]['least'] == 0 and out[space]['held_out_least'] > 0
"
}

@test "nearest without held-out pictures, with few samples, and what it refuses" {
    make_pictures
    nearest >out
    grep -q "12 samples, 0 held out" out
    run ! grep -q "equally near" out
    nearest --held-out other.npz >out
    [ "$(grep -c "held-out picture.*if both are" out)" = 4 ]
    nearest --rows 200 --edge 8 -o small.png
    nearest --json --rows 3 | json_lines "len(x['pool_64']['nearest']) == 2 and len(x['pixels']['nearest']) == 1 and 'nearer' not in x['pixels']"
    run -7 nearest -o small.png
    [[ $output == *"small.png is there already"* ]]
    nearest -f -o small.png
    numpy "
np.savez('four.npz', np.load('train.npz')['arr_0'][:4])"
    run -3 "$NALAGEN" nearest -w "$inception" -q --features pool_64 samples.npz --ref four.npz
    [[ $output == *"5 nearest pictures of 4"* ]]
    run -3 nearest --held-out nowhere
    [[ $output == *"error: nowhere"* && $output != *"samples 0/"* ]]
    run -7 nearest -o nowhere/a.png
    [[ $output != *"samples 0/"* ]]
    run -2 "$NALAGEN" nearest samples.npz
    [[ $output == *"--ref is needed"* ]]
}
