#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/shipped_model_forward.safetensors and shipped_model_sample.safetensors: what the model that ships
gives before its weights become int8. Needs torch, safetensors and numpy; computed in float64.

    python3 tests/make_shipped_golden.py ../shared/reference MODEL tests/golden

The first argument is the folder with nala_torch.py, MODEL the weights (bf16) that weights/shipped/*.safetensors was converted
from. To be made again whenever the model changes.

forward: x [2, 4, 32, 32], t, y (10: null), out.
sample: noise [2, 4, 32, 32], y, and the latents euler10 and heun10 after 10 steps from t = 0 to 1 with guidance 3 on all
channels; Heun's last step is Euler's.
"""
import json
import struct
import sys

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, sys.argv[1])
import nala_torch  # noqa: E402

STEPS, GUIDANCE = 10, 3.0


def configuration(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return json.loads(header["__metadata__"]["nalagen"])


def load(path):
    config = configuration(path)
    model = nala_torch.Backbone("S", 2, "nala", classes=config["num_classes"], learn_sigma=False,
                                lepe=config.get("lepe", False))
    weights = {name: w.double() for name, w in load_file(path).items() if not name.startswith(("ema", "adam"))}
    model.load_state_dict({"pos_embed": model.pos_embed, **weights})
    return model.double().eval(), config["num_classes"]


def sample(model, noise, y, null, heun):
    def velocity(x, t):
        times = torch.full((2 * len(x),), t, dtype=x.dtype)
        labelled, plain = model(torch.cat([x, x]), times, torch.cat([y, torch.full_like(y, null)])).chunk(2)
        return plain + GUIDANCE * (labelled - plain)

    x = noise
    for i in range(STEPS):
        v = velocity(x, i / STEPS)
        if heun and i + 1 < STEPS:
            v = (v + velocity(x + v / STEPS, (i + 1) / STEPS)) / 2
        x = x + v / STEPS
    return x


def write(path, tensors):
    save_file({k: v.float().contiguous() if v.is_floating_point() else v.int() for k, v in tensors.items()}, path)


def main():
    path, out = sys.argv[2:]
    model, null = load(path)
    draw = torch.Generator().manual_seed(7)
    x, noise = (torch.randn(2, 4, 32, 32, generator=draw).double() for _ in range(2))  # exact in fp32
    t, y = torch.tensor([0.1, 0.77]).double(), torch.tensor([3, null])
    with torch.no_grad():
        write(f"{out}/shipped_model_forward.safetensors", dict(x=x, t=t, y=y, out=model(x, t, y)))
        y = torch.tensor([4, 1])
        write(f"{out}/shipped_model_sample.safetensors",
              dict(noise=noise, y=y, euler10=sample(model, noise, y, null, False), heun10=sample(model, noise, y, null, True)))


main()
