#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/inception_seeded.safetensors: features of a complete FID network by PyTorch.

The weights have the names and shapes of pytorch-fid's file and come from a generator that test_inception.c
has as well, so that only two feature vectors need to be committed. PyTorch is needed to run this script and
nothing else. With an argument the weights themselves are written there as torch wrote them before 1.6,
which is how pytorch-fid's file is stored.
"""
import json
import pathlib
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

OUT = pathlib.Path(__file__).resolve().parent / "golden" / "inception_seeded.safetensors"
STATE = {}


def uniform(name, count):
    """splitmix64 of FNV-1a(name) + i, its upper 24 bits as a number in [0, 1)."""
    seed = 0xcbf29ce484222325
    for c in name.encode():
        seed = (seed ^ c) * 0x100000001b3 % 2**64
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64)) * np.uint64(0x9e3779b97f4a7c15) + np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / 2**24


def tensor(name, shape, low, high):
    x = low + (high - low) * uniform(name, int(np.prod(shape)))
    STATE[name] = torch.from_numpy(x.astype(np.float32).reshape(shape))
    return STATE[name].double()


def conv(x, name, out, kernel, stride=1, pad=(0, 0)):
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
    reach = np.sqrt(6.0 / (x.shape[1] * kernel[0] * kernel[1]))
    w = tensor(name + ".conv.weight", (out, x.shape[1], *kernel), -reach, reach)
    g = tensor(name + ".bn.weight", (out,), 0.5, 1.5)
    b = tensor(name + ".bn.bias", (out,), -0.25, 0.25)
    m = tensor(name + ".bn.running_mean", (out,), -0.125, 0.125)
    v = tensor(name + ".bn.running_var", (out,), 0.5, 1.5)
    return F.relu(F.batch_norm(F.conv2d(x, w, stride=stride, padding=pad), m, v, g, b, eps=1e-3))


def mean_pool(x):
    return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


def block_a(x, m, pooled):
    a = conv(x, m + ".branch1x1", 64, 1)
    b = conv(conv(x, m + ".branch5x5_1", 48, 1), m + ".branch5x5_2", 64, 5, pad=(2, 2))
    d = conv(conv(x, m + ".branch3x3dbl_1", 64, 1), m + ".branch3x3dbl_2", 96, 3, pad=(1, 1))
    d = conv(d, m + ".branch3x3dbl_3", 96, 3, pad=(1, 1))
    return torch.cat([a, b, d, conv(mean_pool(x), m + ".branch_pool", pooled, 1)], 1)


def block_b(x, m):
    a = conv(x, m + ".branch3x3", 384, 3, 2)
    d = conv(conv(x, m + ".branch3x3dbl_1", 64, 1), m + ".branch3x3dbl_2", 96, 3, pad=(1, 1))
    return torch.cat([a, conv(d, m + ".branch3x3dbl_3", 96, 3, 2), F.max_pool2d(x, 3, 2)], 1)


ROW, COLUMN = dict(kernel=(1, 7), pad=(0, 3)), dict(kernel=(7, 1), pad=(3, 0))


def block_c(x, m, inner):
    a = conv(x, m + ".branch1x1", 192, 1)
    b = conv(conv(x, m + ".branch7x7_1", inner, 1), m + ".branch7x7_2", inner, **ROW)
    b = conv(b, m + ".branch7x7_3", 192, **COLUMN)
    d = conv(x, m + ".branch7x7dbl_1", inner, 1)
    d = conv(conv(d, m + ".branch7x7dbl_2", inner, **COLUMN), m + ".branch7x7dbl_3", inner, **ROW)
    d = conv(conv(d, m + ".branch7x7dbl_4", inner, **COLUMN), m + ".branch7x7dbl_5", 192, **ROW)
    return torch.cat([a, b, d, conv(mean_pool(x), m + ".branch_pool", 192, 1)], 1)


def block_d(x, m):
    a = conv(conv(x, m + ".branch3x3_1", 192, 1), m + ".branch3x3_2", 320, 3, 2)
    b = conv(conv(x, m + ".branch7x7x3_1", 192, 1), m + ".branch7x7x3_2", 192, **ROW)
    b = conv(conv(b, m + ".branch7x7x3_3", 192, **COLUMN), m + ".branch7x7x3_4", 192, 3, 2)
    return torch.cat([a, b, F.max_pool2d(x, 3, 2)], 1)


def fork(x, name):
    return [conv(x, name + "a", 384, (1, 3), pad=(0, 1)), conv(x, name + "b", 384, (3, 1), pad=(1, 0))]


def block_e(x, m, pool):
    a = conv(x, m + ".branch1x1", 320, 1)
    b = fork(conv(x, m + ".branch3x3_1", 384, 1), m + ".branch3x3_2")
    d = conv(conv(x, m + ".branch3x3dbl_1", 448, 1), m + ".branch3x3dbl_2", 384, 3, pad=(1, 1))
    d = fork(d, m + ".branch3x3dbl_3")
    return torch.cat([a, *b, *d, conv(pool(x), m + ".branch_pool", 192, 1)], 1)


def pool_3_of(x):
    """[N, 3, 299, 299] to [N, 2048]."""
    x = conv(conv(x, "Conv2d_1a_3x3", 32, 3, 2), "Conv2d_2a_3x3", 32, 3)
    x = F.max_pool2d(conv(x, "Conv2d_2b_3x3", 64, 3, pad=(1, 1)), 3, 2)
    x = F.max_pool2d(conv(conv(x, "Conv2d_3b_1x1", 80, 1), "Conv2d_4a_3x3", 192, 3), 3, 2)
    for name, pooled in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        x = block_a(x, name, pooled)
    x = block_b(x, "Mixed_6a")
    for name, inner in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        x = block_c(x, name, inner)
    x = block_d(x, "Mixed_7a")
    x = block_e(x, "Mixed_7b", mean_pool)
    x = block_e(x, "Mixed_7c", lambda x: F.max_pool2d(x, 3, 1, 1))
    return x.mean((2, 3))


def main():
    rgb = np.floor(uniform("pictures", 2 * 60 * 84 * 3) * 256).reshape(2, 60, 84, 3)
    x = torch.from_numpy(rgb).permute(0, 3, 1, 2) / 255
    x = 2 * F.interpolate(x, size=(299, 299), mode="bilinear", align_corners=False) - 1
    pool_3 = pool_3_of(x)
    logits = pool_3 @ tensor("fc.weight", (1008, 2048), -0.0625, 0.0625).T
    tensor("fc.bias", (1008,), -1, 1)
    header, data = {}, b""
    for name, value in (("pool_3", pool_3), ("logits", logits)):
        raw = value.float().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(value.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    OUT.write_bytes(struct.pack("<Q", len(text)) + text + data)
    if len(sys.argv) > 1:
        torch.save(STATE, sys.argv[1], _use_new_zipfile_serialization=False)
    print(pool_3.abs().mean(), pool_3.std(0).mean(), logits.abs().mean())


if __name__ == "__main__":
    main()
