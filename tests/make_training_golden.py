#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/training.safetensors: what 20 steps of torch.optim.AdamW, clip_grad_norm_ and a moving average
make of the backbones of backbone_*.safetensors, in float64.

    python3 make_training_golden.py REFERENCE GOLDEN OUT     (needs torch and safetensors)

REFERENCE is the folder with nala_torch.py, GOLDEN that of the backbones. At step k the batch is x cos(k / 10) with the
target times sin(1 + k / 5). Kept are the loss and gradient norm of every step, and every 37th element of each
parameter and of its average.
"""
import math
import sys

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, sys.argv[1])
import nala_torch  # noqa: E402

STEPS, STRIDE, RATE, EPS, DECAY, CLIP, EMA = 20, 37, 1e-3, 1e-6, 0.01, 0.6, 0.9
MODELS = {  # size, attention, learn_sigma, lepe
    "softmax_d64": (64, "softmax", True, False),
    "nala_d64": (64, "nala", False, False),
    "nala_d72": (72, "nala", True, False),
    "nala_lepe_d64": (64, "nala", False, True),
}


def train(name, size, attention, learn_sigma, lepe):
    data = load_file(f"{sys.argv[2]}/backbone_{name}.safetensors")
    model = nala_torch.Backbone((2, size, 1), 2, attention, input_size=8, classes=5, learn_sigma=learn_sigma, lepe=lepe)
    weights = {k[2:]: v for k, v in data.items() if k.startswith("w.")}
    model.load_state_dict({**weights, "pos_embed": model.pos_embed})
    model = model.double()
    parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
    average = {k: p.detach().clone() for k, p in parameters.items()}
    groups = [{"params": [p for p in parameters.values() if p.ndim > 1], "weight_decay": DECAY},
              {"params": [p for p in parameters.values() if p.ndim == 1], "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=RATE, eps=EPS)
    x, t, y, target = data["x"].double(), data["t"].double(), data["y"].long(), data["target"].double()
    losses, norms = [], []
    for k in range(STEPS):
        loss = ((model(x * math.cos(k / 10), t, y) - target * math.sin(1 + k / 5)) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP).item())
        losses.append(loss.item())
        optimiser.step()
        for key, p in parameters.items():
            average[key].mul_(EMA).add_(p.detach(), alpha=1 - EMA)
    print(name, [f"{v:.3f}" for v in losses], [f"{v:.3f}" for v in norms])
    out = {"loss": torch.tensor(losses), "norm": torch.tensor(norms)}
    for key, p in parameters.items():
        out["p." + key] = p.detach().flatten()[::STRIDE]
        out["ema." + key] = average[key].flatten()[::STRIDE]
    return {f"{name}.{key}": v.float().contiguous() for key, v in out.items()}


if __name__ == "__main__":
    tensors = {}
    for name, options in MODELS.items():
        tensors.update(train(name, *options))
    save_file(tensors, sys.argv[3])
