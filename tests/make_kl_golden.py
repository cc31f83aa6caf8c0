#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/autoencoder_kl.safetensors: a small AutoencoderKL with random weights, a picture, its
moments, and the decoding of a latent. Needs torch and safetensors; the numbers are computed in float64.

    python3 tests/make_kl_golden.py tests/golden/autoencoder_kl.safetensors tests/golden/autoencoder_kl_plain.safetensors

The network is the one of the Stable Diffusion VAE with fewer channels (32, 64, 32) and one resnet a level,
under diffusers' names. `w.<name>`: weights, rounded to bfloat16 before anything is computed. rgb [2, 3, 40, 24]
in [-1, 1]; mean, logvar [2, 4, 10, 6]; z [2, 4, 10, 6]; decoded [2, 3, 40, 24]. Scale 1, shift 0.
The second file: `decoded` of the same z by the same weights with norms of 16 groups and no attention in the middle
(config.json of diffusers: norm_num_groups, mid_block_add_attention).
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

CHANNELS, RESNETS, LATENT = (32, 64, 32), 1, 4


def norm(channels):
    return nn.GroupNorm(32, channels, eps=1e-6)


class Resnet(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.norm1, self.conv1 = norm(fan_in), nn.Conv2d(fan_in, fan_out, 3, padding=1)
        self.norm2, self.conv2 = norm(fan_out), nn.Conv2d(fan_out, fan_out, 3, padding=1)
        if fan_in != fan_out:
            self.conv_shortcut = nn.Conv2d(fan_in, fan_out, 1)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (self.conv_shortcut(x) if hasattr(self, "conv_shortcut") else x)


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.group_norm = norm(channels)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x):
        rows = self.group_norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.to_q(rows), self.to_k(rows), self.to_v(rows)
        weights = torch.softmax(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5, dim=-1)
        return x + self.to_out[0](weights @ v).transpose(1, 2).reshape(x.shape)


class Mid(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.resnets = nn.ModuleList([Resnet(channels, channels) for _ in range(2)])
        self.attentions = nn.ModuleList([Attention(channels)])

    def forward(self, x):
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class Down(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x):
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Up(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2, mode="nearest"))


class Level(nn.Module):
    def __init__(self, fan_in, fan_out, resnets, change=None, name=None):
        super().__init__()
        self.resnets = nn.ModuleList([Resnet(fan_in if i == 0 else fan_out, fan_out) for i in range(resnets)])
        self.change = name
        if name:
            setattr(self, name, nn.ModuleList([change(fan_out)]))

    def forward(self, x):
        for resnet in self.resnets:
            x = resnet(x)
        return getattr(self, self.change)[0](x) if self.change else x


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        last = len(CHANNELS) - 1
        self.conv_in = nn.Conv2d(3, CHANNELS[0], 3, padding=1)
        self.down_blocks = nn.ModuleList(
            [Level(CHANNELS[max(i - 1, 0)], c, RESNETS, Down, "downsamplers" if i < last else None)
             for i, c in enumerate(CHANNELS)])
        self.mid_block = Mid(CHANNELS[-1])
        self.conv_norm_out, self.conv_out = norm(CHANNELS[-1]), nn.Conv2d(CHANNELS[-1], 2 * LATENT, 3, padding=1)

    def forward(self, x):
        x = self.conv_in(x)
        for level in self.down_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(self.mid_block(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        up, last = CHANNELS[::-1], len(CHANNELS) - 1
        self.conv_in = nn.Conv2d(LATENT, up[0], 3, padding=1)
        self.mid_block = Mid(up[0])
        self.up_blocks = nn.ModuleList(
            [Level(up[max(i - 1, 0)], c, RESNETS + 1, Up, "upsamplers" if i < last else None)
             for i, c in enumerate(up)])
        self.conv_norm_out, self.conv_out = norm(up[-1]), nn.Conv2d(up[-1], 3, 3, padding=1)

    def forward(self, z):
        x = self.mid_block(self.conv_in(z))
        for level in self.up_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()
        self.quant_conv = nn.Conv2d(2 * LATENT, 2 * LATENT, 1)
        self.post_quant_conv = nn.Conv2d(LATENT, LATENT, 1)


def main():
    torch.manual_seed(2)
    network = Autoencoder()
    with torch.no_grad():
        for name, p in network.named_parameters():
            if "norm" in name:  # otherwise 1 and 0, which hide mistakes
                p.add_(0.2 * torch.randn_like(p))
            p.copy_(p.bfloat16())
    weights = {f"w.{k}": v.detach().bfloat16().contiguous() for k, v in network.state_dict().items()}
    network.double()
    y, x = torch.meshgrid(torch.linspace(-1, 1, 40), torch.linspace(-1, 1, 24), indexing="ij")
    picture = torch.stack([x, y, torch.sin(7 * x * y)])
    rgb = torch.stack([picture, 0.8 * picture.flip(0) + 0.2 * torch.rand(3, 40, 24)]).float()
    z = torch.randn(2, LATENT, 10, 6)
    with torch.no_grad():
        mean, logvar = network.quant_conv(network.encoder(rgb.double())).chunk(2, dim=1)
        decoded = network.decoder(network.post_quant_conv(z.double()))
    tensors = {"rgb": rgb, "z": z, "mean": mean, "logvar": logvar, "decoded": decoded}
    for name, t in tensors.items():
        print(f"{name} {list(t.shape)} rms {t.double().pow(2).mean().sqrt():.3f}")
    save_file({**weights, **{k: v.float().contiguous() for k, v in tensors.items()}}, sys.argv[1])
    for module in network.modules():
        if isinstance(module, nn.GroupNorm):
            module.num_groups = 16
        elif isinstance(module, Mid):
            module.attentions[0] = nn.Identity()
    with torch.no_grad():
        save_file({"decoded": network.decoder(network.post_quant_conv(z.double())).float().contiguous()}, sys.argv[2])


if __name__ == "__main__":
    main()
