# SPDX-License-Identifier: MIT
"""Training data that `nalagen encode` made (docs/data.md), read with numpy alone; the library is not needed."""

import json
import os
from typing import Any, List, Optional, Tuple

import numpy as np

from ._errors import InputError
from ._model import PathLike

TYPES = {"F16": "<f2", "F32": "<f4", "U8": "u1", "I32": "<i4", "I64": "<i8"}


def tensors(path: str):
    """The tensors of a safetensors file by name, mapped into memory."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > os.fstat(file.fileno()).st_size - 8:
                raise ValueError("a header longer than the file")
            header = json.loads(file.read(length))
        return {name: np.memmap(path, TYPES[t["dtype"]], "r", 8 + length + t["data_offsets"][0], tuple(t["shape"]))
                for name, t in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a shard of a data set: {error}") from None


class Dataset:
    """A folder of `nalagen encode`. dataset[i] is (x, label): x as a model sees it, float32 [C, H, W], of the posterior
    of AutoencoderKL the mean. A data set for torch's DataLoader as it is; `torch()` mirrors and draws too."""

    kind: str  # "pixels" (in [-1, 1]), "latents", "moments"
    shape: Tuple[int, int, int]  # [C, H, W]
    image_size: Tuple[int, int]  # of the pictures, in pixels
    flips: bool  # every sample can be had mirrored
    classes: List[Tuple[str, str]]  # (folder, name) in the order of labels; empty: unconditional
    scale: float  # a model's x = scale (sample - shift)
    shift: float

    def __init__(self, path: PathLike):
        """Opens the folder; shards are mapped when they are first read. Raises InputError."""
        self.path = os.fsdecode(path)
        name = os.path.join(self.path, "dataset.json")
        try:
            with open(name, encoding="utf-8", errors="surrogateescape") as file:
                d = json.load(file)
            if (d["format"], d["version"]) != ("nalagen dataset", 1):
                raise ValueError(f"format {d['format']!r}, version {d['version']}: expected 'nalagen dataset', 1")
            self.kind, self.shape, self.image_size = d["kind"], tuple(d["shape"]), tuple(d["image_size"])
            self.flips, self.classes = bool(d["flips"]), [tuple(c) for c in d["classes"]]
            self.scale, self.shift = d.get("latent_scale", 1.0), d.get("latent_shift", 0.0)
            self._files = [(str(file), int(n)) for file, n in d["shards"]]
        except FileNotFoundError:
            raise InputError(
                f"{self.path}: not a data set of 'nalagen encode': there is no dataset.json in it") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{name}: not a data set of 'nalagen encode': {error}") from None
        self._first = np.cumsum([0] + [n for _, n in self._files])
        self._shards: List[Optional[dict]] = [None] * len(self._files)

    def __reduce__(self):
        return type(self), (self.path,)  # a worker maps the files for itself

    def __repr__(self) -> str:
        return (f"<nalagen.Dataset {self.path}: {len(self)} samples, {self.kind} {list(self.shape)}, "
                f"{len(self.classes)} classes>")

    def __len__(self) -> int:
        return int(self._first[-1])

    def _shard(self, s):
        if self._shards[s] is None:
            name, n = self._files[s]
            path = os.path.join(self.path, name)
            found = tensors(path)
            c, h, w = self.shape
            expected = ((n, h, w, 3) if self.kind == "pixels" else
                        (n, 1 + self.flips, 2 * c if self.kind == "moments" else c, h, w))
            for tensor, shape in (("images", expected), ("labels", (n,))):
                if tensor not in found or found[tensor].shape != shape:
                    raise InputError(f"{path}: expected {tensor} {list(shape)}")
            self._shards[s] = found
        return self._shards[s]

    def _find(self, index):
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"sample {index} of {count}")
        index %= count
        s = int(np.searchsorted(self._first, index, "right")) - 1
        return self._shard(s), index - int(self._first[s])

    def label(self, index: int) -> int:
        """Class of a sample."""
        shard, i = self._find(index)
        return int(shard["labels"][i])

    @property
    def labels(self) -> np.ndarray:
        """Classes of all samples, int32 [len]."""
        return np.concatenate([self._shard(s)["labels"] for s in range(len(self._files))])

    def read(self, index: int, flipped: bool = False) -> np.ndarray:
        """A sample as it was encoded, float32: [C, H, W], of moments [2 C, H, W], mean and log variance; neither scaled
        nor drawn. flipped: of the mirrored picture."""
        if flipped and not self.flips:
            raise ValueError("the data was encoded without mirrored pictures")
        shard, i = self._find(index)
        if self.kind != "pixels":
            return shard["images"][i, int(flipped)].astype(np.float32)
        rgb = shard["images"][i, :, ::-1] if flipped else shard["images"][i]
        return np.ascontiguousarray(rgb.transpose(2, 0, 1)).astype(np.float32) / np.float32(127.5) - np.float32(1)

    def __getitem__(self, index: int) -> Tuple[np.ndarray, int]:
        x = self.read(index)
        if self.kind == "moments":
            x = x[:self.shape[0]]
        return (x - np.float32(self.shift)) * np.float32(self.scale), self.label(index)

    def torch(self, flip: Optional[bool] = None) -> Any:
        """A torch.utils.data.Dataset of (tensor, label): drawn from the posterior where there is one, and every other
        time mirrored unless flip is False (None: where the data has mirrored samples), by torch's generator."""
        from ._torch import TorchDataset
        return TorchDataset(self, self.flips if flip is None else flip)
