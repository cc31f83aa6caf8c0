#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/scale.safetensors: a drawn picture and what PIL and the public code's centre crop make of it.
Needs numpy, Pillow and safetensors.

    python3 tests/make_scale_golden.py tests/golden/scale.safetensors

picture [101, 143, 3]; box_50x71, bicubic_64x90, bicubic_105x60 [height, width, 3]; fit_N [N, N, 3]; all uint8.
"""
import sys

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

HEIGHT, WIDTH = 101, 143


def draw():
    """Waves of several lengths, and in a quarter of it hard black and white noise that overshoots when scaled."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    waves = [np.sin(x / 9 + y / 31), np.cos(x * y / 400), np.sin(y / 2.5)]
    picture = np.stack([np.round(127.5 + 127.5 * w) for w in waves], -1).astype(np.uint8)
    picture[:50, :70] = 255 * rng.integers(0, 2, size=(50, 70, 3))
    return picture


def fit(image, size):
    """The public training code: halve while it can, bicubic to the short side, centre."""
    while min(image.size) >= 2 * size:
        image = image.resize(tuple(n // 2 for n in image.size), resample=Image.BOX)
    scale = size / min(image.size)
    image = image.resize(tuple(round(n * scale) for n in image.size), resample=Image.BICUBIC)
    pixels = np.array(image)
    top, left = (pixels.shape[0] - size) // 2, (pixels.shape[1] - size) // 2
    return pixels[top:top + size, left:left + size]


def main():
    picture = draw()
    image = Image.fromarray(picture)
    tensors = {
        "picture": picture,
        "box_50x71": np.array(image.resize((71, 50), Image.BOX)),
        "bicubic_64x90": np.array(image.resize((90, 64), Image.BICUBIC)),
        "bicubic_105x60": np.array(image.resize((60, 105), Image.BICUBIC)),
    }
    for size in (24, 48, 64, 120):
        tensors[f"fit_{size}"] = fit(image, size)
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, sys.argv[1])


main()
