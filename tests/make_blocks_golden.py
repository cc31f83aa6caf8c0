#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/blocks_*.safetensors: networks with the parts that a configuration can choose ("mlp", "norm",
"qk_norm", "rope", dropout, gated linear attention), their outputs and gradients by PyTorch in float64.

    python3 make_blocks_golden.py REFERENCE OUT [NAME]     (needs torch and numpy)

REFERENCE is the folder with nala_torch.py. What is new stands below, as LightningDiT (SwiGLUFFN, RMSNorm, the norms of
q and k, VisionRotaryEmbeddingFast), SegFormer (Mix-FFN) and DiG (GatedLinearAttention, the blocks' ends) have it. The loss is mean((out - target)^2).
"""
import json
import struct
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, sys.argv[1])
import nala_torch  # noqa: E402

if not hasattr(F, "scaled_dot_product_attention"):  # before PyTorch 2
    F.scaled_dot_product_attention = lambda q, k, v: (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v

SIZE, HEADS, DEPTH, SIDE, SEED, STREAM = 24, 2, 2, 4, 77, 11
MODELS = {  # attention, lepe, mlp, norm, norm of q and k, dropout, rope
    "softmax_swiglu": ("softmax", False, "swiglu", "rms", "rms", 0.0, False),
    "softmax_gelu": ("softmax", False, "gelu", "layer", None, 0.25, False),
    "softmax_rope": ("softmax", False, "swiglu", "rms", "layer", 0.0, True),
    "nala_mix": ("nala", True, "mix", "layer", "rms", 0.25, False),
    "nala_swiglu": ("nala", False, "swiglu", "rms", None, 0.1, False),
    "nala_exponents": ("exponents", False, "gelu", "layer", None, 0.0, False),
    "mediator": ("mediator", False, "gelu", "layer", None, 0.0, False),
    "gla_swiglu": ("gla", False, "swiglu", "layer", None, 0.0, False),
}


def philox(seed, samples, stream, elements):
    """Word of each element, as core/nl_random.h: [samples, elements]."""
    mask = np.uint64(0xFFFFFFFF)
    offset = ((np.uint64(stream) << np.uint64(34)) + elements.astype(np.uint64))[None] // np.uint64(4)
    image = samples.astype(np.uint64)[:, None] + np.zeros_like(offset)
    offset = offset + np.zeros_like(image)
    c = [offset & mask, offset >> np.uint64(32), image & mask, image >> np.uint64(32)]
    k0, k1 = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k0, p1 & mask, (p0 >> np.uint64(32)) ^ c[3] ^ k1, p0 & mask]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    lane = (elements % 4)[None]
    return np.where(lane == 0, c[0], np.where(lane == 1, c[1], np.where(lane == 2, c[2], c[3])))


class Dropout(nn.Module):
    def __init__(self, p, block, samples):
        super().__init__()
        self.p, self.block, self.samples = p, block, samples

    def forward(self, x):
        if self.p == 0:
            return x
        _, tokens, width = x.shape
        count = tokens * width
        elements = self.block * ((count + 3) // 4 * 4) + np.arange(count)
        words = philox(SEED, self.samples, STREAM, elements)
        keep = torch.from_numpy(words >= float(np.float32(self.p)) * 2.0**32).reshape(x.shape)
        return x * keep / (1 - float(np.float32(self.p)))


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Gelu(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.fc1, self.fc2, self.dropout = nn.Linear(size, 4 * size), nn.Linear(4 * size, size), dropout

    def forward(self, x):
        return self.fc2(self.dropout(F.gelu(self.fc1(x), approximate="tanh")))


class SwiGLU(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        width = int(2 / 3 * (4 * size))
        self.w12, self.w3, self.dropout = nn.Linear(size, 2 * width), nn.Linear(width, size), dropout

    def forward(self, x):
        x1, x2 = self.w12(x).chunk(2, dim=-1)
        return self.w3(self.dropout(F.silu(x1) * x2))


class Mix(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.fc1, self.fc2, self.dropout = nn.Linear(size, 4 * size), nn.Linear(4 * size, size), dropout
        self.dwconv = nn.Conv2d(4 * size, 4 * size, 3, padding=1, groups=4 * size)

    def forward(self, x):
        b, n, _ = x.shape
        grid = self.fc1(x).transpose(1, 2).reshape(b, -1, SIDE, SIDE)
        return self.fc2(self.dropout(F.gelu(self.dwconv(grid).flatten(2).transpose(1, 2), approximate="tanh")))


def turn(x):
    """x [B, N, HEADS, d]: pairs of a head turned by the token's row, in the first half, and column."""
    size = x.shape[-1]
    w = 1 / 10000 ** (torch.arange(0, size // 2, 2).double() / (size // 2))
    place = torch.arange(SIDE).double()
    rows = (place[:, None] * w)[:, None].expand(SIDE, SIDE, -1)
    columns = (place[:, None] * w)[None].expand(SIDE, SIDE, -1)
    angles = torch.cat([rows, columns], -1).reshape(SIDE * SIDE, 1, -1)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], size // 2, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).reshape(x.shape)


class WithNorms(nn.Module):
    """The product of an attention, with the heads of q and k normalised and turned."""

    def __init__(self, product, attention, rope):
        super().__init__()
        self.product, self.attention, self.rope = product, [attention], rope

    def forward(self, x):
        y = self.product(x)
        b, n, c = x.shape
        q, k = y[..., : 2 * c].reshape(b, n, 2, HEADS, c // HEADS).unbind(2)
        q, k = self.attention[0].q_norm(q), self.attention[0].k_norm(k)
        q, k = (turn(q), turn(k)) if self.rope else (q, k)
        return torch.cat([q.reshape(b, n, c), k.reshape(b, n, c), y[..., 2 * c:]], dim=-1)


class OwnExponents(nala_torch.NaLaAttention):
    """NaLa with a lambda and a tau of each head."""

    def start(self):
        self.log_lambda, self.log_tau = (nn.Parameter(torch.full((HEADS,), x).log()) for x in (3.0, 0.5))

    def forward(self, x):
        b, n, c = x.shape
        qkv, g = self.qkvg(x).split([3 * c, c], dim=-1)
        q, k, v = qkv.reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        lam, tau = (x.exp()[:, None, None] for x in (self.log_lambda, self.log_tau))
        fq, fk = nala_torch.nala_features_q(q, lam, tau), nala_torch.nala_features_k(k, lam)
        weights = fq @ fk.transpose(-2, -1) / n
        out = weights @ v / (weights.sum(-1, keepdim=True) + nala_torch.DENOM_EPS)
        return self.out_proj(self.ln(out.transpose(1, 2).reshape(b, n, c)) * F.silu(g))


class Mediators(nn.Module):
    """Attention through four mediators, without biases by position."""

    def __init__(self, size):
        super().__init__()
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.dwc = nn.Conv2d(size, size, 3, padding=1, groups=size)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)

        def heads(y):
            return y.reshape(b, -1, HEADS, c // HEADS).transpose(1, 2)

        def grid(y):
            return y.transpose(1, 2).reshape(b, c, SIDE, SIDE)
        a = heads(F.adaptive_avg_pool2d(grid(q), 2).flatten(2).transpose(1, 2))
        values = F.scaled_dot_product_attention(a, heads(k), heads(v))
        out = F.scaled_dot_product_attention(heads(q), a, values).transpose(1, 2).reshape(b, n, c)
        return self.proj(out + self.dwc(grid(v)).flatten(2).transpose(1, 2))


class GatedLinearAttention(nn.Module):
    """DiG's, token by token in the order of x."""

    def __init__(self, size):
        super().__init__()
        for name, width in ("q", size // 2), ("k", size // 2), ("v", size), ("g", size), ("o", size):
            setattr(self, name + "_proj", nn.Linear(size, width, bias=False))
        self.gk_proj = nn.Sequential(nn.Linear(size, 16, bias=False), nn.Linear(16, size // 2))
        self.norm = RMSNorm(size // HEADS)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v, g, gate = (y.reshape(b, n, HEADS, -1) for y in (
            self.q_proj(x), self.k_proj(x), self.v_proj(x), self.g_proj(x), self.gk_proj(x)))
        decay = (F.logsigmoid(gate) / 16).exp()
        state, out = torch.zeros(b, HEADS, q.shape[-1], v.shape[-1]).double(), []
        for i in range(n):
            state = decay[:, i, :, :, None] * state + k[:, i, :, :, None] * v[:, i, :, None]
            out.append((q[:, i, :, :, None] * state).sum(2) * q.shape[-1] ** -0.5)
        return self.o_proj((self.norm(torch.stack(out, 1)) * F.silu(g)).reshape(b, n, c))


class DigBlock(nala_torch.Block):
    """As DiG's: a convolution of the stream at the end, then its tokens backwards, and after every second block by columns."""

    def start(self, index):
        self.index, self.attn = index, GatedLinearAttention(SIZE)
        self.dw_conv = nn.Conv2d(SIZE, SIZE, 3, padding=1, groups=SIZE)

    def forward(self, x, c):
        x = super().forward(x, c)
        grid = self.dw_conv(x.transpose(1, 2).reshape(len(x), SIZE, SIDE, SIDE)).flatten(2).flip(2)
        grid = grid.reshape(len(x), SIZE, SIDE, SIDE)
        return (grid.transpose(2, 3) if self.index % 2 else grid).flatten(2).transpose(1, 2)


def ours(model, gradient):
    """The parameters of a model as nalagen has them: of a gated linear attention the first products as one, convolutions as
    the picture lies."""
    found = {key: (p.grad if gradient else p).detach() for key, p in model.named_parameters() if p.requires_grad}
    for i, block in enumerate(model.blocks):
        if not isinstance(block, DigBlock):
            continue
        at, conv = f"blocks.{i}.attn.", f"blocks.{i}.dw_conv.weight"
        names = ["q_proj", "k_proj", "v_proj", "g_proj", "gk_proj.0"]
        found[at + "in_proj.weight"] = torch.cat([found.pop(f"{at}{name}.weight") for name in names])
        found[at + "out_proj.weight"] = found.pop(at + "o_proj.weight")
        for name in "weight", "bias":
            found[f"{at}gk_proj.{name}"] = found.pop(f"{at}gk_proj.1.{name}")
        found[conv] = found[conv].flip(2, 3) if i % 2 else found[conv]
        found[conv] = found[conv].transpose(2, 3) if i // 2 % 2 else found[conv]
    return found


def build(attention, lepe, mlp, norm, qk_norm, dropout, rope, samples):
    gla, other = attention == "gla", attention in ("gla", "mediator")
    kind = "softmax" if other else "nala" if attention == "exponents" else attention
    model = nala_torch.Backbone((4 if gla else DEPTH, SIZE, HEADS), 2, kind,
                                input_size=2 * SIDE, classes=5, learn_sigma=False, lepe=lepe)
    for i, block in enumerate(model.blocks):
        if gla:
            block.__class__ = DigBlock
            block.start(i)
        elif attention == "mediator":
            block.attn = Mediators(SIZE)
        elif attention == "exponents":
            block.attn.__class__ = OwnExponents
            block.attn.start()
        block.mlp = {"gelu": Gelu, "swiglu": SwiGLU, "mix": Mix}[mlp](SIZE, Dropout(dropout, i, samples))
        if norm == "rms":
            block.norm1, block.norm2 = RMSNorm(SIZE), RMSNorm(SIZE)
        if qk_norm:
            kind = RMSNorm if qk_norm == "rms" else nn.LayerNorm  # timm's: with weights and biases, eps 1e-5
            block.attn.q_norm, block.attn.k_norm = kind(SIZE // HEADS), kind(SIZE // HEADS)
            name = "qkvg" if attention == "nala" else "qkv"
            setattr(block.attn, name, WithNorms(getattr(block.attn, name), block.attn, rope))
    if norm == "rms":
        model.final_layer.norm_final = RMSNorm(SIZE)
    return model


def save(path, tensors):
    header, data = {}, b""
    for name, x in tensors.items():
        x = x.detach().numpy()
        x = x.astype(np.int32 if x.dtype.kind == "i" else np.float32)
        header[name] = {"dtype": "I32" if x.dtype.kind == "i" else "F32", "shape": list(x.shape),
                        "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main(name, options):
    torch.manual_seed(5)
    samples = np.array([3, 2**33 + 1, 12345])
    model = build(*options, samples)
    for parameter in model.parameters():  # nothing zero; norms' weights around 1, exponents around theirs
        if parameter.requires_grad:
            around = float(parameter[0].detach()) if parameter.ndim == 1 and bool((parameter == parameter[0]).all()) else 0.0
            with torch.no_grad():
                parameter.normal_(around, 0.2)
    model = model.float().double()
    x = torch.randn(3, 4, 2 * SIDE, 2 * SIDE).float().double().requires_grad_()
    t, y = torch.tensor([0.25, 0.5, 0.75]).double(), torch.tensor([0, 4, 5])
    target = torch.randn(3, 4, 2 * SIDE, 2 * SIDE).float().double()
    # timestep_features answers in float32; the products go on in double
    out = model(x, t, y)
    ((out - target) ** 2).mean().backward()
    tensors = {"x": x, "t": t, "y": y, "target": target, "out": out, "grad_x": x.grad}
    gradients = ours(model, True)
    for key, value in ours(model, False).items():
        public = key.replace(".product", "")
        tensors["w." + public], tensors["g." + public] = value.contiguous(), gradients[key].contiguous()
    save(f"{sys.argv[2]}/blocks_{name}.safetensors", tensors)
    print(name, float(out.abs().mean()))


for model_name, model_options in MODELS.items():
    if len(sys.argv) < 4 or model_name == sys.argv[3]:
        main(model_name, model_options)
