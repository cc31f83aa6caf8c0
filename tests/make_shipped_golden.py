#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/shipped_model_forward.safetensors and shipped_model_sample.safetensors: what the weights that ship
give, int8 read back, computed in float64. Needs torch, safetensors and numpy.

    python3 tests/make_shipped_golden.py ../shared/reference weights/shipped/nalasit-s2-256.safetensors tests/golden

The first argument is the folder with nala_torch.py. To be made again whenever the model changes.

forward: x [2, 4, 32, 32], t [2, 2] (t above s), y, out = u(x, t, s).
sample: noise [2, 4, 32, 32], y, and the latents flow4 after 4 equal jumps from t = 0 to 1 and heun10 after 10 steps of Heun's
method with s = t, whose last step is Euler's.
"""
import json
import struct
import sys

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, sys.argv[1])
import nala_torch  # noqa: E402
from make_flow_map_golden import flow_map  # noqa: E402


def configuration(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return json.loads(header["__metadata__"]["nalagen"])


def load(path):
    """The network; what flow_map wants to know of it: blocks that see t, blocks before the middle head, its scale."""
    config = configuration(path)
    model = nala_torch.Backbone("S", 2, "nala", classes=config["num_classes"], learn_sigma=False, lepe=config["lepe"])
    middle = config.get("middle_head", 0)
    if middle:
        model.middle_layer = nala_torch.FinalLayer(model.pos_embed.shape[2], 2, 4)
    file = load_file(path)
    weights = {name: w.double() * file[name + ".scale"].double()[:, None] if w.dtype == torch.int8 else w.double()
               for name, w in file.items() if not name.endswith(".scale")}
    model.load_state_dict({"pos_embed": model.pos_embed, **weights})
    return model.double().eval(), (config["flow_map"], middle, config.get("internal_guidance", 1))


def main():
    path, out = sys.argv[2:]
    nala_torch.timestep_features = (lambda original: lambda t: original(t).double())(nala_torch.timestep_features)
    model, heads = load(path)
    torch.Tensor.float = lambda self: self  # NaLaAttention takes q, k, v in float32: here all is double

    def u(x, t, s, y):
        t, s = (torch.as_tensor(v, dtype=torch.float64).expand(len(x)) for v in (t, s))
        return flow_map(model, x, t, s, y, *heads)

    draw = torch.Generator().manual_seed(7)
    x, noise = (torch.randn(2, 4, 32, 32, generator=draw).double() for _ in range(2))  # exact in fp32
    t, y = torch.tensor([[0.1, 0.77], [0.6, 0.77]]).double(), torch.tensor([3, 19])
    files = {"forward": dict(x=x, t=t, y=y, out=u(x, t[0], t[1], y))}
    y = torch.tensor([14, 8])
    few = many = noise
    for i in range(4):
        few = few + u(few, i / 4, (i + 1) / 4, y) / 4
    for i in range(10):
        v = u(many, i / 10, i / 10, y)
        if i < 9:
            v = (v + u(many + v / 10, (i + 1) / 10, (i + 1) / 10, y)) / 2
        many = many + v / 10
    files["sample"] = dict(noise=noise, y=y, flow4=few, heun10=many)
    for name, tensors in files.items():
        save_file({k: v.to(torch.float32 if v.is_floating_point() else torch.int32).contiguous() for k, v in tensors.items()},
                  f"{out}/shipped_model_{name}.safetensors")


with torch.no_grad():
    main()
