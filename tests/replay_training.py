#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains in PyTorch on what `nalagen train --dump N --log-every 1` trained on, and compares the loss curves.

    python3 replay_training.py REFERENCE RUN     (needs torch and safetensors)

REFERENCE is the folder with nala_torch.py. For a SiT on the linear path that predicts the velocity, with the recipe's
AdamW. Fails when a loss differs by more than 1e-4 of its size.
"""
import json
import struct
import sys

import torch
from safetensors.torch import load_file

sys.path.insert(0, sys.argv[1])
import nala_torch  # noqa: E402


def metadata(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(size))["__metadata__"]


def main():
    run = sys.argv[2]
    dump = load_file(f"{run}/dump.safetensors")
    config = json.loads(metadata(f"{run}/dump.safetensors")["config"])
    options = json.load(open(f"{run}/config.json"))["training"]
    log = [json.loads(line) for line in open(f"{run}/log.jsonl")]
    assert config["architecture"] == "SiT" and config["path"] == "linear" and config["prediction"] == "velocity"
    size = (config["depth"], config["hidden_size"], config["num_heads"])
    model = nala_torch.Backbone(size, config["patch_size"], config["attention"], input_size=config["input_size"],
                                channels=config["in_channels"], classes=config["num_classes"],
                                learn_sigma=config["learn_sigma"])
    weights = {k[8:]: v for k, v in dump.items() if k.startswith("weights.")}
    model.load_state_dict({**weights, "pos_embed": model.pos_embed})
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=options.get("lr", 1e-4),
                                  weight_decay=0)
    worst = 0
    for k in range(options["dump"]):
        latents, noise, t = (dump[f"{k}.{name}"] for name in ("latents", "noise", "t"))
        time = t[:, None, None, None]
        prediction = model(time * latents + (1 - time) * noise, t, dump[f"{k}.labels"].long())
        loss = ((prediction - (latents - noise)) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        difference = abs(loss.item() - log[k]["loss"]) / loss.item()
        worst = max(worst, difference)
        print(f"step {k + 1}  PyTorch {loss.item():.7f}  nalagen {log[k]['loss']:.7f}  relative {difference:.1e}")
    print(f"largest relative difference {worst:.1e}")
    return worst > 1e-4


if __name__ == "__main__":
    sys.exit(main())
