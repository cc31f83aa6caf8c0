# SPDX-License-Identifier: MIT
"""How good pictures are: FID and its relatives, nl_evaluate of the library."""

import ctypes
import os
import tempfile
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Union

import numpy as np

from . import _library
from ._context import Context, ProgressCallback, Watch
from ._errors import UsageError
from ._model import Classes, Model, PathLike, listed, pixels_of


@dataclass(frozen=True)
class Metric:
    """One number."""

    value: float
    deviation: float  # over the parts, of IS and KID; of the bootstrap, of FID
    parts: int  # splits of IS, subsets of KID; 1: there is no deviation
    part_size: int  # pictures of a subset of KID
    low: float  # of the bootstrap: a 95 % interval; both 0: none
    high: float


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` gives; evaluation["fid"] is the value of a metric."""

    metrics: Dict[str, Metric]
    missing: Dict[str, str]  # why others are not there
    samples: int  # pictures
    reference: int  # pictures; 0: statistics only
    small: bool  # too few pictures: the numbers are not comparable with other results
    repeated: int  # samples that are there before, byte for byte
    copied: int  # samples that are pictures of the reference, byte for byte
    features: str  # what the numbers depend on
    preset: str
    preprocessing: str
    precision: str
    weights: str
    weights_sha256: str
    reference_sha256: str
    evaluations: int  # of the network, for all samples of a model; 0: of files
    seconds: Dict[str, float]

    def __getitem__(self, name: str) -> float:
        if name in self.missing:
            raise KeyError(f"{name}: {self.missing[name]}")
        return self.metrics[name].value


def evaluate(reference: Union[PathLike, np.ndarray], samples: Union[PathLike, np.ndarray, None] = None, *,
             model: Optional[Model] = None, n: Optional[int] = None, classes: Classes = None, seed: int = 0,
             first_index: int = 0, sampling: Optional[Mapping[str, Any]] = None, rounding: str = "dit",
             metrics: Union[str, Sequence[str], None] = None, weights: Optional[PathLike] = None,
             device: str = "auto", threads: int = 0, max_memory: int = 0,
             progress: Union[None, bool, ProgressCallback] = None, **options: Any) -> Evaluation:
    """Measures pictures against others.

    reference: a folder of pictures, an .npz with pictures or statistics (docs/evaluation.md), or uint8 [n, H, W, 3].
    samples: the same without statistics; None: `model` makes `n` pictures (50000) of `classes` (None: drawn by the
    seed) with the options `sampling`, as {"steps": 20, "cfg_scale": 2}; they are not kept.
    metrics: of "fid", "sfid", "is", "precision", "recall", "kid", "fid_infinity", as a list or "fid,kid"; None: all but
    the last. weights: of the FID network; None: found in $NALAGEN_WEIGHTS.
    options: further members of nl_evaluation_options in nalagen.h: preset, precision, features, allow_small,
    half_distances, is_split, kid_subsets, kid_subset_size, bootstrap, batch, fid_infinity.

    What weights or reference cannot give is in `missing`, the rest computed. Ctrl-C stops it.
    """
    if (samples is None) == (model is None):
        raise UsageError("evaluate: give either samples or a model")
    taken = dict(seed=seed, first_index=first_index, count=n, weights=weights,
                 metrics=metrics if metrics is None or isinstance(metrics, str) else ",".join(metrics))
    given = _library.fill(_library.cleared(_library.EvaluationOptions), {**options, **taken})
    given.rounding = _library.rounding(rounding)
    given.sampling = _library.sampling(dict(sampling or {}))
    result = _library.Evaluation()
    labels = None
    if model is not None and classes is not None:
        labels = model.labels(classes, len(listed(classes)))
        given.labels = labels.ctypes.data_as(ctypes.POINTER(ctypes.c_int))
        given.label_count = len(labels)
    with ExitStack() as stack:
        given.reference = path_of(reference, "reference", stack)
        given.samples = None if samples is None else path_of(samples, "samples", stack)
        context = Context(model.context if model else None, device=device, dtype="f32", threads=threads,
                          max_memory=max_memory)
        stack.callback(context.close)

        def run():
            status = _library.OK
            if model is not None:
                status = model._at(model._own)
                given.model = model._handle
            return status or context.library.nl_evaluate(context.handle, given, result)

        watch = stack.enter_context(Watch(progress))
        for event in stack.enter_context(closing(context.work(run))):
            watch(event)
    del labels  # the options point to it
    return describe(context.library, result)


def path_of(pictures, name, stack):
    """A path as it is; an array as a file that goes with the stack."""
    if not isinstance(pictures, np.ndarray):
        return _library.text(pictures)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="nalagen-"))
    path = os.path.join(folder, name + ".npz")
    np.savez(path, arr_0=pixels_of(pictures, name))
    return _library.text(path)


def describe(library, e):
    """Evaluation of nl_evaluation."""
    values = {library.nl_metric_name(i).decode(): m for i, m in enumerate(e.metrics)}
    texts = {name: (getattr(e, name) or b"").decode("utf-8", "surrogateescape")
             for name in ("features", "preset", "preprocessing", "precision", "weights", "weights_sha256",
                          "reference_sha256")}
    return Evaluation(
        metrics={name: Metric(m.value, m.deviation, m.parts, m.part_size, m.low, m.high)
                 for name, m in values.items() if m.known},
        missing={name: m.missing.decode("utf-8", "replace") for name, m in values.items() if m.missing and not m.known},
        samples=e.samples, reference=e.reference, small=e.small, repeated=e.repeated, copied=e.copied,
        evaluations=e.evaluations,
        seconds={name: getattr(e.seconds, name) for name, _ in e.seconds._fields_}, **texts)
