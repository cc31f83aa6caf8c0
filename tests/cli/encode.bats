# SPDX-License-Identifier: MIT
# nalagen encode: sources, broken pictures, shards as documented.
load helper

# train/ and val/ with two class folders of PNG, a broken file; CIFAR-10 and IDX files. Written with numpy.
pictures() {
    numpy "
import os, struct, zlib
def png(path, rgb):
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    rows = b''.join(b'\0' + row.tobytes() for row in rgb)
    open(path, 'wb').write(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', rgb.shape[1], rgb.shape[0], 8, 2, 0, 0, 0))
                           + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))
rng = np.random.default_rng(0)
for split, count in ('train', 5), ('val', 2):
    for name in 'n01', 'n02':
        os.makedirs(f'set/{split}/{name}')
        for i in range(count):
            png(f'set/{split}/{name}/{i}.png', rng.integers(0, 256, size=(40, 48, 3), dtype=np.uint8))
open('set/train/n02/broken.jpg', 'wb').write(b'\xff\xd8\xff\xe0 cut off')
os.makedirs('cifar')
open('cifar/data_batch_1.bin', 'wb').write(rng.integers(0, 10, size=(4, 3073), dtype=np.uint8).tobytes())
os.makedirs('mnist')
open('mnist/train-images-idx3-ubyte', 'wb').write(struct.pack('>4I', 0x803, 3, 28, 28) + bytes(3 * 784))
open('mnist/train-labels-idx1-ubyte', 'wb').write(struct.pack('>2I', 0x801, 3) + bytes([0, 4, 2]))
"
}

encode() {
    "$NALAGEN" encode --device cpu --vae none "$@"
}

@test "encode names the parts of a data set instead of taking them for classes" {
    pictures
    run -2 encode set -o data --size 32
    [[ $output == *"--split train"* ]]
    [ ! -e data ]
    run -0 encode set -o data --size 32 --split val
    json_lines "x['count'] == 4 and x['classes'] == [['n01', 'n01'], ['n02', 'n02']]" \
        < <(tr -d '\n' <data/dataset.json)
}

@test "encode leaves broken pictures out and says so; --strict does not" {
    pictures
    run -3 encode set -o data --size 32 --split train --strict
    [[ $output == *"broken.jpg"* ]]
    [ ! -e data/dataset.json ]
    run -0 encode set -o data --size 32 --split train
    [[ $output == *"left out"*"broken.jpg"* ]]
    json_lines "x['count'] == 10 and len(x['skipped']) == 1" < <(tr -d '\n' <data/dataset.json)
    run -3 encode set -o data --size 32 --split train --strict
}

@test "encode again finds its work done; another encoding is not mixed in" {
    pictures
    encode set -o data --size 32 --split train
    sha256sum data/* >sums
    run -0 encode set -o data --size 32 --split train
    [[ $output == *"there already"* ]]
    sha256sum -c --quiet sums
    run -7 encode set -o data --size 16 --split train
    [[ $output == *"image_size"*"--force"* ]]
    encode set -o data --size 16 --split train --force -q
    json_lines "x['image_size'] == [16, 16]" < <(tr -d '\n' <data/dataset.json)
}

@test "encode of CIFAR-10 and IDX keeps the pictures' own size" {
    pictures
    encode cifar -o a -q
    encode mnist -o b -q
    json_lines "x['shape'] == [3, 32, 32] and x['count'] == 4" < <(tr -d '\n' <a/dataset.json)
    json_lines "x['shape'] == [3, 28, 28] and len(x['classes']) == 5" < <(tr -d '\n' <b/dataset.json)
}

@test "encode writes shards that numpy reads as documented" {
    pictures
    encode set -o data --size 40 --split val -q
    numpy "
import json
def shard(path):
    n = int(np.fromfile(path, '<u8', 1)[0])
    header = json.loads(open(path, 'rb').read(8 + n)[8:])
    types = {'F16': '<f2', 'U8': 'u1', 'I32': '<i4', 'I64': '<i8'}
    return {k: np.memmap(path, types[t['dtype']], 'r', 8 + n + t['data_offsets'][0], tuple(t['shape']))
            for k, t in header.items() if k != '__metadata__'}
x = shard('data/shard-00000.safetensors')
assert x['images'].shape == (4, 40, 40, 3) and list(x['labels']) == [0, 0, 1, 1] and list(x['pictures']) == [0, 1, 2, 3]
rng = np.random.default_rng(0)
train = [rng.integers(0, 256, size=(40, 48, 3), dtype=np.uint8) for _ in range(10)]
first = rng.integers(0, 256, size=(40, 48, 3), dtype=np.uint8)
assert (x['images'][0] == first[:, 4:44]).all()
"
}

@test "encode with the tiny autoencoder gives latents of pictures and their mirror images" {
    [ -f "$vae" ] || skip "no autoencoder in this checkout"
    pictures
    "$NALAGEN" encode --device cpu --vae "$vae" set -o data --size 32 --split val -q
    json_lines "x['kind'] == 'latents' and x['shape'] == [4, 4, 4] and x['flips'] and len(x['autoencoder_sha256']) == 64" \
        < <(tr -d '\n' <data/dataset.json)
    run -2 "$NALAGEN" encode --device cpu --vae "$vae" set -o other --size 33 --split val
    [[ $output == *"multiples of 8"* ]]
}

@test "encode asks for what it needs" {
    run -2 encode
    run -2 encode nothing
    [[ $output == *"-o DATA"* ]]
    run -3 encode nothing -o data
    [[ $output == *"nothing: there is no such file or folder"* ]]
    run -2 encode '' -o data
    [[ $output == *"encode: argument 1 is empty"* ]]
    mkdir -p set/a
    head -c 3073 /dev/zero >set/a/a.png
    for data in set set/data set/a/data ./set/../set/b/c/; do
        run -2 encode set -o "$data"
        [[ $output == *"lies in set"* ]]
    done
    (cd set && run -2 encode . -o data)
    [ "$(find set | wc -l)" -eq 3 ]
    run -0 encode --help
}

@test "a file of class names may begin with a byte-order mark, and what does not fit is named" {
    mkdir -p set/n01440764 set/n02012849 set/n03028079
    for class in set/*; do
        cp "$NL_SOURCE_DIR/samples/church.png" $class/
    done
    printf '\xef\xbb\xbfn01440764 tench, Tinca tinca\r\nn02012849,crane\r\nn99999999 no such folder\r\n' >names.txt
    run -0 "$NALAGEN" encode set -o data --vae none --size 16 --device cpu --class-names names.txt
    [[ $output == *"no name for the folders: n03028079"* ]]
    [[ $output == *"lines without a folder: n99999999"* ]]
    grep -q '"n01440764", *"tench, Tinca tinca"' data/dataset.json
    grep -q '"n02012849", *"crane"' data/dataset.json
    echo '{"n01440764": "tench"}' >names.json
    run -3 "$NALAGEN" encode set -o other --vae none --size 16 --device cpu --class-names names.json
    [[ $output == *JSON* ]]
}

@test "metadata.jsonl beside pictures gives their classes, by name or by number" {
    mkdir set
    for i in 0 1 2 3; do cp "$NL_SOURCE_DIR/samples/church.png" set/$i.png; done
    printf '{"file_name": "%s.png", "label": "%s", "more": [1]}\n' 2 dog 0 cat 3 dog 1 Ångström >set/metadata.jsonl
    encode set -o data --size 16 -q
    json_lines 'x["classes"] == [[n, n] for n in ("cat", "dog", "Ångström")]' < <(tr -d '\n' <data/dataset.json)
    numpy "
import json, struct
file = open('data/shard-00000.safetensors', 'rb').read()
size = struct.unpack('<Q', file[:8])[0]
header = json.loads(file[8:8 + size])
at, end = header['labels']['data_offsets']
assert list(np.frombuffer(file[8 + size + at:8 + size + end], np.int32)) == [0, 2, 1, 1], header"
    printf '{"file_name": "%d.png", "label": %d}\n' 0 4 1 0 2 1 3 1 >set/metadata.jsonl
    encode set -o numbers --size 16 -q
    json_lines '[c[0] for c in x["classes"]] == ["0", "1", "2", "3", "4"]' < <(tr -d '\n' <numbers/dataset.json)
    refused() {
        echo "$1" >>set/metadata.jsonl
        run -3 encode set -o other --size 16
        [[ $output == *"metadata.jsonl"*"$2"* ]]
        sed -i '$d' set/metadata.jsonl
    }
    refused '{"file_name": "9.png", "label": 1}' "9.png is not there"
    refused '{"file_name": "1.png", "label": "cat"}' "names alone"
    refused '{"file_name": "1.png", "text": "a cat"}' '"label"'
    sed -i '$d' set/metadata.jsonl
    refused '{' "not JSON"
    run -3 encode set -o other --size 16
    [[ $output == *"no label for 3.png"* ]]
    encode set -o plain --size 16 --unconditional -q
    run -2 encode set -o without --size 16 --unconditional --empty-classes
    [[ $output == *"without classes there is no --empty-classes"* ]]
}

@test "on a terminal encode has a bar from the first moment" {
    need_model
    command -v script >/dev/null || skip "no script"
    pictures
    TERM=xterm script -qec "\"$NALAGEN\" encode cifar -o data --device cpu" typescript >/dev/null
    tr '\r' '\n' <typescript >lines
    grep -q '^\[----------\]   0 % encoding, 0/4 images' lines
    grep -q '100 % encoding, 4/4 images' lines
}
