#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/flow_map_d32.safetensors: output and gradients of a flow map u(x, t, s) in float64.

    python3 make_flow_map_golden.py REFERENCE OUT     (needs torch and safetensors)

REFERENCE is the folder with nala_torch.py. Three blocks, of which the first two see t, the third and the head s. The keys
are those of backbone_*.safetensors: weights w., gradients g. of mean((out - target)^2); t is [2, B], t above s.
"""
import sys

import torch
from safetensors.torch import save_file

sys.path.insert(0, sys.argv[1])
import nala_torch  # noqa: E402

SEEING_T = 2


def flow_map(model, x, t, s, y, seeing_t, middle=0, scale=1):
    """u(x, t, s); with a middle head, which stands behind `middle` blocks and sees s: middle + scale (head - middle)."""
    label = model.y_embedder(y)
    conditions = [model.t_embedder(time) + label for time in (t, s)]
    batch, _, height, width = x.shape
    patch, channels = model.patch, model.out_channels
    h = model.x_embedder(x) + model.pos_embed
    for i, block in enumerate(model.blocks):
        if middle and i == middle:
            below = model.middle_layer(h, conditions[1])
        h = block(h, conditions[i >= seeing_t])
    h = model.final_layer(h, conditions[1])
    if middle:
        h = below + scale * (h - below)
    h = h.reshape(batch, height // patch, width // patch, patch, patch, channels)
    return h.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, height, width)


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.set_num_threads(1)
    nala_torch.timestep_features = (lambda original: lambda t: original(t).double())(nala_torch.timestep_features)
    model = nala_torch.Backbone((3, 32, 1), 2, "nala", input_size=8, classes=5, learn_sigma=False, lepe=True)
    model.initialize(zero=False)
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model = model.float().double()  # the numbers that the file holds
    # NaLaAttention takes q, k, v in float32: here all is double.
    nala_torch.torch.Tensor.float = lambda self: self
    x, target = torch.randn(3, 4, 8, 8).float().double(), torch.randn(3, 4, 8, 8).float().double()
    t, y = torch.tensor([[0.0, 0.25, 0.7], [1.0, 0.5, 0.7]], dtype=torch.float64), torch.tensor([0, 5, 3])
    x.requires_grad_(True)
    t = torch.tensor(t.tolist(), dtype=torch.float32).double()
    out = flow_map(model, x, t[0], t[1], y, SEEING_T)
    ((out - target) ** 2).mean().backward()
    file = {"x": x, "t": t, "y": y.int(), "out": out, "target": target, "grad_x": x.grad}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            file["w." + name], file["g." + name] = parameter, parameter.grad
    del nala_torch.torch.Tensor.float
    save_file({k: (v if v.dtype == torch.int32 else v.detach().to(torch.float32)).contiguous() for k, v in file.items()},
              sys.argv[2])
