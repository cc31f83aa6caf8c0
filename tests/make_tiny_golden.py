#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/tiny_autoencoder.safetensors: two drawn pictures, their latents and the decoding of these
by the tiny autoencoder that ships. Needs torch and safetensors; computed in float64.

    python3 tests/make_tiny_golden.py weights/shipped/tae.safetensors tests/golden/tiny_autoencoder.safetensors

rgb [2, 3, 64, 96] uint8; latents [2, 4, 8, 12]; decoded [2, 3, 64, 96], nominally in [0, 1], not clamped.
To be made again whenever the weights change.
"""
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

HEIGHT, WIDTH = 64, 96
# c: convolution, n: convolution without bias, b: block, u: doubling, r: relu, t: soft clamp
ENCODER, DECODER = "cbnbbbnbbbnbbbc", "tcrbbbunbbbunbbbunbc"


def run(sequence, weights, x, strided):
    """One half; weights by "<position>.<name>" as in TAESD's sequence."""
    def conv(name, x, stride=1):
        return F.conv2d(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"), stride=stride, padding=1)

    for i, kind in enumerate(sequence):
        if kind == "c" or kind == "n":
            x = conv(i, x, 2 if kind == "n" and strided else 1)
        elif kind == "b":
            h = F.relu(conv(f"{i}.conv.2", F.relu(conv(f"{i}.conv.0", x))))
            x = F.relu(conv(f"{i}.conv.4", h) + x)
        elif kind == "u":
            x = F.interpolate(x, scale_factor=2, mode="nearest")
        elif kind == "r":
            x = F.relu(x)
        else:
            x = 3 * torch.tanh(x / 3)
    return x


def drawn():
    """A sky with a sun over hills, and a chequered ball on stripes: uint8 [2, 3, HEIGHT, WIDTH]."""
    y, x = torch.meshgrid(torch.arange(HEIGHT) / HEIGHT, torch.arange(WIDTH) / HEIGHT, indexing="ij")
    sky = torch.stack([0.3 + 0.4 * y, 0.5 + 0.3 * y, 0.9 - 0.1 * y])
    sun = ((x - 1.1) ** 2 + (y - 0.25) ** 2 < 0.02).float()
    hills = (y > 0.7 + 0.1 * torch.sin(6 * x)).float()
    landscape = sky * (1 - sun) + torch.tensor([1.0, 0.9, 0.4])[:, None, None] * sun
    green = torch.stack([0.2 + 0.2 * torch.sin(40 * x) ** 2, 0.5 - 0.2 * y, 0.2 + 0 * x])
    landscape = landscape * (1 - hills) + green * hills
    stripes = torch.stack([0.5 + 0.5 * torch.sin(30 * (x + y)), 0.4 + 0 * x, 0.5 + 0.5 * torch.cos(12 * y)])
    ball = ((x - 0.7) ** 2 + (y - 0.5) ** 2 < 0.12).float()
    chequers = (((8 * x).floor() + (8 * y).floor()) % 2).expand(3, -1, -1) * (1.2 - y)
    still = stripes * (1 - ball) + chequers * ball
    return (torch.stack([landscape, still]).clamp(0, 1) * 255).round().to(torch.uint8)


def main():
    weights = load_file(sys.argv[1])
    for name in [k for k in weights if k.endswith(".scale")]:  # int8 rows
        scale, rows = weights.pop(name).double(), weights[name[:-len(".scale")]].double()
        weights[name[:-len(".scale")]] = rows * scale.reshape(-1, *[1] * (rows.ndim - 1))
    halves = {half: {k[len(half) + 1:]: v.double() for k, v in weights.items() if k.startswith(half + ".")}
              for half in ("encoder", "decoder")}
    rgb = drawn()
    latents = run(ENCODER, halves["encoder"], rgb.double() / 255, True).float()
    decoded = run(DECODER, halves["decoder"], latents.double(), False).float()
    error = (decoded.clamp(0, 1) - rgb / 255).pow(2).mean()
    print(f"latents rms {latents.pow(2).mean().sqrt():.3f}; round trip {-10 * error.log10():.2f} dB")
    save_file({"rgb": rgb, "latents": latents.contiguous(), "decoded": decoded.contiguous()}, sys.argv[2])


if __name__ == "__main__":
    main()
