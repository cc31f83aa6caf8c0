# SPDX-License-Identifier: MIT
# What `nalagen encode` takes beside folders: tars, zips, CIFAR's Python version, an .npz, latents of other programs. Each gives
# what the folder of the same pictures gives, and says what is wrong with it.
load helper

# Python with numpy and what makes pictures and sets: png(rgb), sets of three classes, data(folder) for what encode wrote.
make() {
    numpy ", io, json, os, pickle, struct, tarfile, zipfile, zlib
def png(rgb):
    chunk = lambda kind, body: struct.pack('>I', len(body)) + kind + body + struct.pack('>I', zlib.crc32(kind + body))
    rows = b''.join(b'\0' + row.tobytes() for row in rgb)
    head = struct.pack('>IIBBBBB', rgb.shape[1], rgb.shape[0], 8, 2, 0, 0, 0)
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', head) + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b'')
rng = np.random.default_rng(0)
rgb = rng.integers(0, 256, (9, 8, 8, 3), dtype=np.uint8)
labels = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2])
names = ['ant', 'bee', 'cat']
files = [f'{names[l]}/{i}.png' for i, l in enumerate(labels)]
def tar(path, members, **more):
    with tarfile.open(path, 'w', **more) as file:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
def folder(path, members):
    for name, data in members:
        os.makedirs(os.path.dirname(f'{path}/{name}'), exist_ok=True)
        open(f'{path}/{name}', 'wb').write(data)
pictures = [(name, png(x)) for name, x in zip(files, rgb)]
def shard(path):
    n = int(np.fromfile(path, '<u8', 1)[0])
    table = json.loads(open(path, 'rb').read(8 + n)[8:])
    kinds = {'F16': '<f2', 'U8': 'u1', 'I32': '<i4', 'I64': '<i8'}
    return {k: np.memmap(path, kinds[t['dtype']], 'r', 8 + n + t['data_offsets'][0], tuple(t['shape']))
            for k, t in table.items() if k != '__metadata__'}
def same(data, ids, order=slice(None)):
    facts, x = json.load(open(f'{data}/dataset.json')), shard(f'{data}/shard-00000.safetensors')
    assert [c[0] for c in facts['classes']] == ids, facts['classes']
    assert (x['images'] == rgb[order]).all(), data
    assert (x['labels'] == (labels[order] if ids else 0)).all(), (data, x['labels'])
$1"
}

pixels() {
    "$NALAGEN" encode --vae none --size 8 -q "$@"
}

@test "class folders in a tar, a zip, a tar of everything below one folder, a tar of tars" {
    make "
folder('set', pictures)
tar('set.tar', pictures[::-1])
tar('pax.tar', [('./root/' + 'x' * 200 + '/' + n, d) for n, d in pictures], format=tarfile.PAX_FORMAT)
tar('gnu.tar', [('root/' + 'y' * 200 + '/' + n, d) for n, d in pictures], format=tarfile.GNU_FORMAT)
tar('old.tar', [('ant/0.png', b'earlier'), ('.hidden/a.png', b''), ('__MACOSX/b.png', b'')] + pictures, format=tarfile.USTAR_FORMAT)
def packed(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode='w') as file:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    return out.getvalue()
tar('imagenet.tar', [(c + '.tar', packed([(n.split('/')[1], d) for n, d in pictures if n.startswith(c)])) for c in names])
with zipfile.ZipFile('set.zip', 'w') as file:
    for i, (n, d) in enumerate(pictures):
        file.writestr('all/' + n, d, zipfile.ZIP_DEFLATED if i % 2 else zipfile.ZIP_STORED)"
    for source in set set.tar pax.tar gnu.tar old.tar imagenet.tar set.zip; do
        pixels $source -o data-$source 2>said
        make "same('data-$source', names)"
    done
    "$NALAGEN" encode old.tar -o again --vae none --size 8 2>said
    grep -q "1 file is there more than once: the last counts" said
    grep -q "9 pictures, class folders in an archive, 3 classes" said
    pixels set.tar -o alone --unconditional
    make "same('alone', [])"
}

@test "webdataset: shards of a folder, labels by key in .cls or .json, a part by its name" {
    make "
os.makedirs('wds')
for s in range(3):
    members = []
    for i in range(3 * s, 3 * s + 3):
        members += [(f'd/{i:05}.cls', str(labels[i]).encode()), (f'd/{i:05}.jpg', png(rgb[i])),
                    (f'd/{i:05}.json', b'{\"caption\": \"x\"}'), (f'd/{i:05}.mask.png', b'not looked at')]
    tar(f'wds/set-train-{s:06}.tar', members)
tar('wds/set-val-000000.tar', [('0.cls', b'5'), ('0.png', png(rgb[0]))])
open('wds/index.json', 'w').write('{}')
tar('json.tar', [m for i in range(9) for m in ((f'{i}.json', json.dumps({'label': int(labels[i])}).encode()), (f'{i}.png', png(rgb[i])))])"
    "$NALAGEN" encode wds --split train -o data --vae none --size 8 2>said
    make "same('data', ['0', '1', '2'])"
    grep -q "left out: 9 files.*mask.png" said
    pixels json.tar -o json
    make "same('json', ['0', '1', '2'])"
    printf '0 ant\n1 bee\n2 cat\n' >names
    pixels json.tar -o named --class-names names
    [[ $(cat named/dataset.json) == *'"cat"'* ]]
    pixels wds -o whole
    make "
facts = json.load(open('whole/dataset.json'))
assert facts['count'] == 10 and len(facts['classes']) == 6, facts"
}

@test "EDM's zip: dataset.json inside counts" {
    make "
with zipfile.ZipFile('edm.zip', 'w') as file:
    for i in range(9):
        file.writestr(f'0000{i % 2}/img{i:08}.png', png(rgb[i]))
    file.writestr('dataset.json', json.dumps({'labels': [[f'0000{i % 2}/img{i:08}.png', int(labels[i])] for i in range(9)]}), zipfile.ZIP_DEFLATED)"
    pixels edm.zip -o data
    make "same('data', ['0', '1', '2'], sorted(range(9), key=lambda i: (i % 2, i)))"
}

@test "CIFAR's Python version, as Python 2 wrote it and as Python 3 does" {
    make "
def string(text):
    text = text.encode() if isinstance(text, str) else text
    return (b'U' + bytes([len(text)]) if len(text) < 256 else b'T' + struct.pack('<I', len(text))) + text
def ints(values):
    return b']q\x05(' + b''.join(b'K' + bytes([v]) for v in values) + b'e'
def cifar(key, values, planes):
    array = (b'cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\0\x85q\x09' + string('b') + b'q\x0a\x87q\x0bRq\x0c(K\x01'
             + b'M' + struct.pack('<H', len(planes)) + b'M\0\x0c\x86q\x0dcnumpy\ndtype\nq\x0e' + string('u1') + b'q\x0fK\0K\x01\x87q\x10Rq\x11(K\x03'
             + string('|') + b'q\x12NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tq\x13b\x89' + string(planes.tobytes()) + b'tq\x14b')
    return (b'\x80\x02}q\x01(' + string('batch_label') + b'q\x02' + string('training batch 1 of 5') + string(key) + b'q\x04'
            + ints(values) + string('data') + b'q\x06' + array + string('filenames') + b']' + string('a.png') + b'au.')
big = rng.integers(0, 256, (9, 32, 32, 3), dtype=np.uint8)
planes = np.ascontiguousarray(big.transpose(0, 3, 1, 2).reshape(9, 3072))
os.makedirs('ten'), os.makedirs('hundred')
open('ten/data_batch_1', 'wb').write(cifar('labels', labels[:5], planes[:5]))
open('ten/data_batch_2', 'wb').write(pickle.dumps({b'labels': labels[5:].tolist(), b'data': planes[5:]}, protocol=4))
open('ten/test_batch', 'wb').write(cifar('labels', [9], planes[:1]))
open('ten/batches.meta', 'wb').write(pickle.dumps({'label_names': [f'class {i}' for i in range(10)]}, protocol=2))
open('hundred/train', 'wb').write(cifar('fine_labels', labels + 97, planes))
open('hundred/test', 'wb').write(cifar('fine_labels', [99], planes[:1]))
np.save('big.npy', big)"
    run -2 pixels ten -o x
    [[ $output == *"--split train"* ]]
    "$NALAGEN" encode ten --split train -o data --vae none -q
    "$NALAGEN" encode ten --split test -o test --vae none -q
    "$NALAGEN" encode hundred --split train -o fine --vae none 2>said
    grep -q "CIFAR-100, 100 classes" said
    make "
big = np.load('big.npy')
for data, shift, ids in (('data', 0, [f'class {i}' for i in range(10)]), ('fine', 97, [str(i) for i in range(100)])):
    x, facts = shard(f'{data}/shard-00000.safetensors'), json.load(open(f'{data}/dataset.json'))
    assert (x['images'] == big).all() and (x['labels'] == labels + shift).all() and [c[0] for c in facts['classes']] == ids, data
assert shard('test/shard-00000.safetensors')['labels'][0] == 9
broken = open('ten/data_batch_1', 'rb').read()
open('ten/data_batch_1', 'wb').write(broken.replace(b'M\x05\0M\0\x0c', b'M\x06\0M\0\x0c'))"
    run -3 pixels ten --split train -o x
    [[ $output == *"data_batch_1"*"numpy array of bytes [N, 3072]"* ]]
}

@test "one .npz of pictures, stored or deflated" {
    make "
np.savez('stored.npz', rgb, labels)
np.savez_compressed('deflated.npz', images=rgb, labels=labels.astype('i4'))
np.savez('bare.npz', rgb)
np.savez('planes.npz', rgb.transpose(0, 3, 1, 2), labels)
np.savez('short.npz', rgb, labels[1:])
np.savez('negative.npz', rgb, labels - 1)
np.savez('other.npz', x=rgb)"
    for source in stored deflated; do
        "$NALAGEN" encode $source.npz -o data-$source --vae none -q
        make "same('data-$source', ['0', '1', '2'])"
    done
    "$NALAGEN" encode bare.npz --unconditional -o bare --vae none -q
    make "same('bare', [])"
    run -3 pixels bare.npz -o x
    [[ $output == *"no labels in it (arr_1)"*"--unconditional"* ]]
    run -3 pixels planes.npz -o x
    [[ $output == *"not channels first"* ]]
    run -3 pixels short.npz -o x
    [[ $output == *"expected 9 labels"* ]]
    run -3 pixels negative.npz -o x
    [[ $output == *"the label of picture 0 is -1"* ]]
    run -3 pixels other.npz -o x
    [[ $output == *"expected pictures as arr_0"* ]]
}

@test "latents of fast-DiT and of REPA become moments" {
    make "
x = rng.standard_normal((3, 4, 4, 4)).astype('f4')
std = np.exp(rng.standard_normal((3, 4, 4, 4))).astype('f4')
std[0, 0, 0, 0] = 0
os.makedirs('fast/imagenet256_features'), os.makedirs('fast/imagenet256_labels'), os.makedirs('repa/00000')
for i in range(3):
    np.save(f'fast/imagenet256_features/{i}.npy', x[i:i + 1]), np.save(f'fast/imagenet256_labels/{i}.npy', np.array([2 - i]))
    np.save(f'repa/00000/img-mean-std-{i:08}.npy', np.concatenate([x[i], std[i]]))
json.dump({'labels': [[f'00000/img-mean-std-{i:08}.npy', 2 - i] for i in range(3)]}, open('repa/dataset.json', 'w'))
np.save('x.npy', x), np.save('std.npy', std)"
    "$NALAGEN" encode fast -o fast-data 2>said
    grep -q "3 latents of \[4, 4, 4\], one draw of each picture (fast-DiT)" said
    "$NALAGEN" encode repa -o repa-data -q
    make "
x, std = np.load('x.npy').astype('f8'), np.load('std.npy').astype('f8')
for data, mean in (('fast', x / 0.18215), ('repa', x)):
    s, facts = shard(f'{data}-data/shard-00000.safetensors'), json.load(open(f'{data}-data/dataset.json'))
    assert s['images'].shape == (3, 1, 8, 4, 4) and s['labels'].tolist() == [2, 1, 0]
    assert facts['kind'] == 'moments' and facts['latent_scale'] == 0.18215 and facts['image_size'] == [32, 32] and not facts['flips']
    assert len(facts['classes']) == 3
    assert np.abs(s['images'][:, 0, :4] - mean).max() < 1e-3 * np.abs(mean).max()
    logvar = s['images'][:, 0, 4:]
    with np.errstate(divide='ignore'):
        expected = np.full(x.shape, -30.) if data == 'fast' else np.maximum(2 * np.log(std), -30)
    assert np.abs(logvar - expected).max() < 0.02, data"
    "$NALAGEN" encode fast -o fast-data 2>said
    grep -q "all of them there already" said
    cp repa/dataset.json theirs
    run -2 "$NALAGEN" encode repa -o repa --force
    [[ $output == *"--out repa lies in repa, where the latents are"* ]]
    cmp theirs repa/dataset.json
    run -2 "$NALAGEN" encode repa -o fast-data
    [[ $output == *"made otherwise"* ]]
    run -2 "$NALAGEN" encode fast -o x --crops 2
    [[ $output == *"--crops is for pictures"* ]]
    make "np.save('fast/imagenet256_features/1.npy', np.zeros((1, 4, 2, 2), 'f4'))"
    run -3 "$NALAGEN" encode fast -o x -q
    [[ $output == *"features/1.npy: expected a latent"*"of the size of the first"* ]]
    make "
np.save('fast/imagenet256_features/1.npy', np.full((1, 4, 4, 4), np.nan, 'f4'))
np.save('repa/00000/img-mean-std-00000001.npy', -np.ones((8, 4, 4), 'f4'))"
    run -3 "$NALAGEN" encode fast -o x -q
    [[ $output == *"holds NaN"* ]]
    run -3 "$NALAGEN" encode repa -o y -q
    [[ $output == *"a deviation is negative"* ]]
}

@test "archives that are wrong are refused with what is wrong" {
    make "
folder('set', pictures)
tar('set.tar', pictures)
whole = open('set.tar', 'rb').read()
open('cut.tar', 'wb').write(whole[:1000])
open('sum.tar', 'wb').write(whole[:10] + b'x' + whole[11:])
tar('empty.tar', [('notes.md', b'x')])
tar('split.tar', [('train/' + n, d) for n, d in pictures] + [('val/' + n, d) for n, d in pictures])
tar('mixed.tar', pictures + [('loose.png', png(rgb[0]))])
tar('keys.tar', [('0.png', png(rgb[0])), ('0.cls', b'1'), ('1.png', png(rgb[1]))])
tar('word.tar', [('0.png', png(rgb[0])), ('0.cls', b'cat')])
tar('up.tar', [('../0.png', png(rgb[0]))])
tar('broken.tar', pictures + [('cat/broken.png', b'no picture')])
import gzip
tar('nested.tar', [('a.tar', whole[:1000])])
open('set.tar.gz', 'wb').write(gzip.compress(whole))
with zipfile.ZipFile('bad.zip', 'w') as file:
    file.writestr('a/0.png', png(rgb[0]))
data = bytearray(open('bad.zip', 'rb').read())
data[-10] ^= 0xff
open('bad.zip', 'wb').write(data)"
    said() {
        run -3 pixels $1 -o x
        [[ $output == *"$1"* && $output == *"$2"* ]] || { echo "$output"; false; }
    }
    said cut.tar "cut off"
    said nested.tar "a.tar: damaged tar archive"
    said sum.tar "checksum does not fit, at byte 0"
    said empty.tar "no PNG, JPEG or WebP there, but such files as notes.md"
    said mixed.tar "holds pictures and folders"
    said keys.tar "no label for 1.png"
    said word.tar "0.cls: expected a class as a whole number"
    said up.tar "a name with .."
    said set.tar.gz "gunzip"
    said bad.zip "damaged zip"
    run -2 pixels split.tar -o x
    [[ $output == *"--split train"* ]]
    pixels split.tar -o part --split val
    make "same('part', names)"
    run -3 pixels split.tar -o x --split test
    [[ $output == *"no folder test"* ]]
    pixels broken.tar -o rest 2>said
    make "same('rest', names)"
    [[ $(cat rest/dataset.json) == *"cat/broken.png"* ]]
    run -3 pixels broken.tar -o x --strict
    [[ $output == *"broken.tar: cat/broken.png"* ]]
    pixels set.tar -o data
    sleep 0.01
    touch set.tar
    run -7 pixels set.tar -o data
    [[ $output == *"times of change"* || $output == *"all of them"* ]]
}

@test "parquet goes through python/parquet_to_tar.py" {
    for python in "${NL_PARQUET_PYTHON:-}" python3; do
        [ -n "$python" ] && "$python" -c 'import pyarrow.parquet' 2>/dev/null && break
        python=
    done
    [ -n "$python" ] || skip "no pyarrow"
    make "folder('set', pictures)"
    "$python" - <<'END'
import json, pyarrow as pa, pyarrow.parquet as pq
files = [f"{c}/{i}.png" for i, c in enumerate(["ant"] * 2 + ["bee"] * 3 + ["cat"] * 4)]
rows = [{"image": {"bytes": open(f"set/{f}", "rb").read(), "path": f}, "label": "abc".index(f[0])} for f in files]
features = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["ant", "bee", "cat"], "_type": "ClassLabel"}}}}
for i, part in enumerate((rows[:4], rows[4:])):
    table = pa.Table.from_pylist(part).replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, f"train-{i}.parquet", compression="snappy")
pq.write_table(pa.table({"image": [b"none"], "label": [0]}), "broken.parquet")
pq.write_table(pa.table({"text": ["x"]}), "text.parquet")
END
    "$python" "$NL_SOURCE_DIR/python/parquet_to_tar.py" train-*.parquet -o train.tar
    "$NALAGEN" encode train.tar -o data --vae none --size 8 -q --class-names train.names
    make "
same('data', ['0', '1', '2'])
assert [c[1] for c in json.load(open('data/dataset.json'))['classes']] == names"
    run -1 "$python" "$NL_SOURCE_DIR/python/parquet_to_tar.py" broken.parquet -o x.tar
    [[ $output == *"picture 0 is no JPEG"* ]]
    run -1 "$python" "$NL_SOURCE_DIR/python/parquet_to_tar.py" text.parquet -o x.tar
    [[ $output == *"no column of pictures"* ]]
    mkdir parquet
    mv train-0.parquet parquet
    run -3 "$NALAGEN" encode parquet -o y --vae none
    [[ $output == *"parquet_to_tar.py"* ]]
}
