#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Stand-ins for the autoencoders of Stable Diffusion 1, SDXL, SD3, Flux and LightningDiT (VA-VAE), and what they decode, in float64 by numpy alone.

    python3 tests/autoencoder_twin.py KIND FOLDER              # sd1, sdxl, sd3, flux, vavae: writes FOLDER and KIND-*
    python3 tests/autoencoder_twin.py KIND FOLDER diffusers    # the same numbers by diffusers' AutoencoderKL

FOLDER has config.json and diffusion_pytorch_model.safetensors of random weights in diffusers' names: the published shapes
with fewer channels. KIND-latents.npy [3, C, 4, 6] holds what a sampler ends with, KIND-rgb.npy [3, 32, 48, 3] in float64 what
decoding them should give, before it is rounded to bytes.
"""
import json
import os
import struct
import sys

import numpy as np

CHANNELS, LAYERS, GROUPS = (32, 32, 64, 64), 2, 32
KINDS = {  # latent channels, config.json beside the shape; quant: the two 1 x 1 convolutions around the latent
    "sd1": (4, {"scaling_factor": 0.18215}, True),
    "sdxl": (4, {"scaling_factor": 0.13025, "force_upcast": True}, True),
    "sd3": (16, {"scaling_factor": 1.5305, "shift_factor": 0.0609}, False),
    "flux": (16, {"scaling_factor": 0.3611, "shift_factor": 0.1159}, False),
    # a mean and a deviation for each channel, and attention in the smallest level
    "vavae": (32, {"scaling_factor": 1.0, "latents_mean": [i / 16 - 1 for i in range(32)],
                   "latents_std": [0.5 + i / 8 for i in range(32)],
                   "down_block_types": ["DownEncoderBlock2D"] * 3 + ["AttnDownEncoderBlock2D"],
                   "up_block_types": ["AttnUpDecoderBlock2D"] + ["UpDecoderBlock2D"] * 3}, True),
}
rng = np.random.default_rng(0)
weights = {}


def layer(name, fan_out, fan_in, size=1, linear=False):
    shape = (fan_out, fan_in) if linear else (fan_out, fan_in, size, size)
    weights[name + ".weight"] = rng.standard_normal(shape) / np.sqrt(fan_in * size * size)
    weights[name + ".bias"] = 0.1 * rng.standard_normal(fan_out)


def norm(name, channels):
    weights[name + ".weight"] = 1 + 0.2 * rng.standard_normal(channels)
    weights[name + ".bias"] = 0.2 * rng.standard_normal(channels)


def resnet(name, fan_in, fan_out):
    norm(name + ".norm1", fan_in)
    layer(name + ".conv1", fan_out, fan_in, 3)
    norm(name + ".norm2", fan_out)
    layer(name + ".conv2", fan_out, fan_out, 3)
    if fan_in != fan_out:
        layer(name + ".conv_shortcut", fan_out, fan_in)


def attention(name, channels):
    norm(name + ".group_norm", channels)
    for part in "to_q", "to_k", "to_v", "to_out.0":
        layer(f"{name}.{part}", channels, channels, linear=True)


def mid(name, channels):
    resnet(name + ".resnets.0", channels, channels)
    attention(name + ".attentions.0", channels)
    resnet(name + ".resnets.1", channels, channels)


def half(side, first, last, channels, layers, change, kinds):
    layer(f"{side}.conv_in", channels[0], first, 3)
    for i, c in enumerate(channels):
        block = f"{side}.{'down' if side == 'encoder' else 'up'}_blocks.{i}"
        for j in range(layers):
            resnet(f"{block}.resnets.{j}", c if j else channels[max(i - 1, 0)], c)
            if kinds[i].startswith("Attn"):
                attention(f"{block}.attentions.{j}", c)
        if i + 1 < len(channels):
            layer(f"{block}.{change}.0.conv", c, c, 3)
    mid(f"{side}.mid_block", channels[-1] if side == "encoder" else channels[0])
    norm(f"{side}.conv_norm_out", channels[-1])
    layer(f"{side}.conv_out", last, channels[-1], 3)


def make(latent, quant, config):
    half("encoder", 3, 2 * latent, CHANNELS, LAYERS, "downsamplers", config["down_block_types"])
    half("decoder", latent, 3, CHANNELS[::-1], LAYERS + 1, "upsamplers", config["up_block_types"])
    if quant:
        layer("quant_conv", 2 * latent, 2 * latent)
        layer("post_quant_conv", latent, latent)
    for name in weights:
        weights[name] = weights[name].astype("<f4")


def conv(name, x):
    """x [N, C, H, W], padded so that the size stays."""
    w, b = (weights[f"{name}.{part}"].astype("f8") for part in ("weight", "bias"))
    k = w.shape[-1]
    x = np.pad(x, ((0, 0), (0, 0), (k // 2, k // 2), (k // 2, k // 2)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w, optimize=True) + b[:, None, None]


def group_norm(name, x):
    n, c, h, w = x.shape
    g = x.reshape(n, GROUPS, -1)
    g = (g - g.mean(-1, keepdims=True)) / np.sqrt(g.var(-1, keepdims=True) + 1e-6)
    scale, bias = (weights[f"{name}.{part}"].astype("f8")[:, None, None] for part in ("weight", "bias"))
    return g.reshape(x.shape) * scale + bias


def silu(x):
    return x / (1 + np.exp(-x))


def run_resnet(name, x):
    h = conv(name + ".conv1", silu(group_norm(name + ".norm1", x)))
    h = conv(name + ".conv2", silu(group_norm(name + ".norm2", h)))
    return h + (conv(name + ".conv_shortcut", x) if name + ".conv_shortcut.weight" in weights else x)


def run_attention(name, x):
    rows = group_norm(name + ".group_norm", x).reshape(*x.shape[:2], -1).swapaxes(1, 2)
    linear = lambda part, r: (r @ weights[f"{name}.{part}.weight"].astype("f8").T
                              + weights[f"{name}.{part}.bias"].astype("f8"))
    q, k, v = (linear(part, rows) for part in ("to_q", "to_k", "to_v"))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    out = linear("to_out.0", scores / scores.sum(-1, keepdims=True) @ v)
    return x + out.swapaxes(1, 2).reshape(x.shape)


def decode(z):
    x = conv("post_quant_conv", z) if "post_quant_conv.weight" in weights else z
    x = run_resnet("decoder.mid_block.resnets.0", conv("decoder.conv_in", x))
    x = run_resnet("decoder.mid_block.resnets.1", run_attention("decoder.mid_block.attentions.0", x))
    for i in range(len(CHANNELS)):
        for j in range(LAYERS + 1):
            x = run_resnet(f"decoder.up_blocks.{i}.resnets.{j}", x)
            if f"decoder.up_blocks.{i}.attentions.{j}.to_q.weight" in weights:
                x = run_attention(f"decoder.up_blocks.{i}.attentions.{j}", x)
        if i + 1 < len(CHANNELS):
            x = conv(f"decoder.up_blocks.{i}.upsamplers.0.conv", x.repeat(2, 2).repeat(2, 3))
    return conv("decoder.conv_out", silu(group_norm("decoder.conv_norm_out", x)))


def write(folder, latent, config, quant):
    os.makedirs(folder, exist_ok=True)
    config = {"_class_name": "AutoencoderKL", "in_channels": 3, "out_channels": 3, "latent_channels": latent,
              "block_out_channels": CHANNELS, "layers_per_block": LAYERS, "norm_num_groups": GROUPS, "act_fn": "silu",
              "use_quant_conv": quant, "use_post_quant_conv": quant, **config}
    json.dump(config, open(f"{folder}/config.json", "w"))
    table, data = {}, b""
    for name, x in weights.items():
        table[name] = {"dtype": "F32", "shape": x.shape, "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    header = json.dumps(table).encode()
    with open(f"{folder}/diffusion_pytorch_model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + data)


def by_diffusers(folder, z):
    import torch
    from diffusers import AutoencoderKL
    with torch.no_grad():
        return AutoencoderKL.from_pretrained(folder).double().decode(torch.from_numpy(z)).sample.numpy()


def main():
    kind, folder = sys.argv[1:3]
    latent, config, quant = KINDS[kind]
    config = {"down_block_types": ["DownEncoderBlock2D"] * len(CHANNELS),
              "up_block_types": ["UpDecoderBlock2D"] * len(CHANNELS), **config}
    make(latent, quant, config)
    write(folder, latent, config, quant)
    z = rng.standard_normal((3, latent, 4, 6))
    mean = np.array(config.get("latents_mean", config.get("shift_factor", 0)))[..., None, None]
    scale = config["scaling_factor"] / np.array(config.get("latents_std", 1))[..., None, None]
    latents = (scale * (z - mean)).astype("<f4")
    z = latents.astype("f8") / scale + mean
    np.save(f"{kind}-latents.npy", latents)
    rgb = by_diffusers(folder, z) if len(sys.argv) > 3 else decode(z)
    np.save(f"{kind}-rgb.npy", rgb.transpose(0, 2, 3, 1))


main()
