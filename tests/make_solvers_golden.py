#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/solvers.safetensors: trajectories of diffusers' own schedulers, for test_sampler_multistep.

    python3 make_solvers_golden.py OUT     (needs diffusers 0.31, torch, numpy, safetensors)

The network is a fixed function of a number and its timestep, as in the test; what a scheduler returns after each step is a row.
"""
import sys

import numpy as np
import torch
from diffusers import (DPMSolverMultistepScheduler, EDMEulerScheduler, FlowMatchEulerDiscreteScheduler,
                       UniPCMultistepScheduler)
from safetensors.torch import save_file

SHAPE = (2, 4, 2, 2)


def network(x, t):
    return torch.tanh(0.8 * x + 0.1 * torch.cos(torch.tensor(0.01 * float(t))))


def velocity(x, t):
    return torch.tanh(0.8 * x) * (1 + 0.5 * np.cos(6 * float(t))) - 0.3 * x


def run(scheduler, steps, x, noise=None):
    scheduler.set_timesteps(steps)
    rows = []
    for k, t in enumerate(scheduler.timesteps):
        extra = {} if noise is None else {"variance_noise": noise[k]}
        x = scheduler.step(network(x, t), t, x, **extra).prev_sample
        rows.append(x)
    return torch.stack(rows), scheduler.timesteps


if __name__ == "__main__":
    torch.manual_seed(1)
    x, noise = torch.randn(SHAPE), torch.randn(20, *SHAPE)
    file = {"x": x, "noise": noise}
    kinds = {
        "dpmpp-2m": (DPMSolverMultistepScheduler, {}),
        "dpmpp-2m-sde": (DPMSolverMultistepScheduler, {"algorithm_type": "sde-dpmsolver++"}),
        "unipc": (UniPCMultistepScheduler, {}),
    }
    settings = {
        "linspace": {},
        "leading": {"timestep_spacing": "leading", "steps_offset": 1},
        "trailing": {"timestep_spacing": "trailing"},
        "karras": {"use_karras_sigmas": True},
        "v": {"prediction_type": "v_prediction"},
        "x_start": {"prediction_type": "sample"},
        "scaled": {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012},
        "cosine": {"beta_schedule": "squaredcos_cap_v2"},
    }
    for kind, (scheduler, own) in kinds.items():
        for setting, options in settings.items():
            for steps in (1, 2, 5, 20) if setting in ("linspace", "karras") else (7,):
                rows, times = run(scheduler(**own, **options), steps, x, noise if "sde" in kind else None)
                name = "%s_%s_%d" % (kind, setting, steps)
                file[name], file[name + "_t"] = rows.float(), times.int()
    # Time runs the other way there: sigma = 1 - t, and the network's output is -velocity.
    flow = FlowMatchEulerDiscreteScheduler(shift=3.0)
    flow.set_timesteps(sigmas=np.linspace(1, 1 / 10, 10))
    state, rows = x, []
    for t in flow.timesteps:
        state = flow.step(-velocity(state, 1 - t / 1000), t, state).prev_sample
        rows.append(state)
    file["flow_shift_3"], file["flow_shift_3_sigmas"] = torch.stack(rows), flow.sigmas
    edm = EDMEulerScheduler()  # 0.002 to 80, rho 7
    edm.set_timesteps(10)
    file["edm_sigmas"] = edm.sigmas
    save_file({k: v.contiguous() for k, v in file.items()}, sys.argv[1])
