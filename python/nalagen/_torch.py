# SPDX-License-Identifier: MIT
"""Data sets for torch; imported when Dataset.torch is called."""

import torch
from torch.utils.data import Dataset as TorchBase


class TorchDataset(TorchBase):
    """(x, label) of a nalagen.Dataset as a model is trained with it: mirrored, drawn, scaled."""

    def __init__(self, dataset, flip):
        self.dataset, self.flip = dataset, flip

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        d = self.dataset
        flipped = self.flip and bool(torch.rand(()) < 0.5)
        x = torch.from_numpy(d.read(index, flipped))
        if d.kind == "moments":
            mean, logvar = x.chunk(2)
            x = mean + torch.exp(0.5 * logvar) * torch.randn(mean.shape)
        return (x - d.shift) * d.scale, d.label(index)
