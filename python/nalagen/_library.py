# SPDX-License-Identifier: MIT
"""libnalagen.so: where it is found, and include/nalagen.h in ctypes.

Each structure stands here once, with the header's names; tests/python_header.py compares them with the header.
"""

import ctypes
import functools
import json
import operator
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int64,
                    c_size_t, c_uint8, c_uint64, c_void_p)
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ._errors import LibraryNotFoundError, UsageError

CFG_UNCONDITIONAL = 2.2250738585072014e-308
ROUNDINGS = {"dit": 0, "adm": 1}
METRICS = 7
OK, CANCELLED = 0, 130


class Progress(Structure):
    _fields_ = [("stage", c_char_p), ("step", c_int64), ("steps", c_int64), ("image", c_int64), ("images", c_int64),
                ("batch", c_int64), ("preview", POINTER(c_float)), ("preview_shape", c_int * 3),
                ("done", c_double)]


class Picture(Structure):
    _fields_ = [("index", c_int64), ("label", c_int), ("height", c_int), ("width", c_int), ("rgb", POINTER(c_uint8)),
                ("latents", POINTER(c_float)), ("latent_shape", c_int * 3), ("evaluations", c_int64)]


LOG = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
PROGRESS = CFUNCTYPE(c_bool, c_void_p, POINTER(Progress))
PICTURE = CFUNCTYPE(c_int, c_void_p, POINTER(Picture))


class ContextOptions(Structure):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("dtype", c_char_p), ("threads", c_int),
                ("max_memory", c_int64), ("log", LOG), ("progress", PROGRESS), ("user", c_void_p),
                ("message", POINTER(c_char)), ("message_size", c_size_t)]


class ModelOptions(Structure):
    _fields_ = [("size", c_size_t), ("path", c_char_p), ("config_path", c_char_p), ("architecture", c_char_p),
                ("transport_path", c_char_p), ("prediction", c_char_p), ("vae", c_char_p), ("height", c_int),
                ("width", c_int), ("key", c_char_p), ("guide", c_char_p), ("data", c_void_p), ("data_size", c_size_t)]


class Sampling(Structure):
    _fields_ = [("size", c_size_t), ("sampler", c_char_p), ("steps", c_int64), ("respacing", c_char_p),
                ("cfg_scale", c_double), ("cfg_channels", c_int), ("cfg_interval", c_double * 2), ("eta", c_double),
                ("atol", c_double), ("rtol", c_double), ("sde_form", c_char_p), ("sde_norm", c_double),
                ("last_step", c_char_p), ("last_step_size", c_double), ("clip_denoised", c_bool),
                ("crop", c_double * 3), ("internal_guidance", c_double), ("guide_scale", c_double),
                ("guide_interval", c_double * 2), ("time_shift", c_double), ("rho", c_double)]


class Mix(Structure):
    _fields_ = [("label", c_int), ("seed", c_uint64), ("index", c_int64), ("part", c_double)]


class Request(Structure):
    _fields_ = [("size", c_size_t), ("labels", POINTER(c_int)), ("count", c_int64), ("seed", c_uint64),
                ("first_index", c_int64), ("indices", POINTER(c_int64)), ("batch", c_int), ("preview_every", c_int),
                ("noise", POINTER(c_float)), ("rounding", c_int), ("seeds", POINTER(c_uint64)),
                ("mixes", POINTER(Mix)), ("reserved", c_int64 * 2), ("sampling", Sampling)]


class EvaluationOptions(Structure):
    _fields_ = [("size", c_size_t), ("reference", c_char_p), ("samples", c_char_p), ("model", c_void_p),
                ("count", c_int64), ("seed", c_uint64), ("first_index", c_int64), ("labels", POINTER(c_int)),
                ("label_count", c_int64), ("batch", c_int), ("rounding", c_int), ("weights", c_char_p),
                ("preset", c_char_p), ("precision", c_char_p), ("features", c_char_p), ("metrics", c_char_p),
                ("fid_infinity", c_bool), ("allow_small", c_bool), ("half_distances", c_bool), ("is_split", c_int64),
                ("kid_subsets", c_int64), ("kid_subset_size", c_int64), ("bootstrap", c_int64),
                ("reserved", c_int64 * 4), ("sampling", Sampling)]


class MetricValue(Structure):
    _fields_ = [("known", c_bool), ("value", c_double), ("deviation", c_double), ("parts", c_int64),
                ("part_size", c_int64), ("low", c_double), ("high", c_double), ("missing", c_char * 256)]


class Seconds(Structure):  # the member `seconds` of nl_evaluation
    _fields_ = [("samples", c_double), ("reference", c_double), ("metrics", c_double), ("first_batch", c_double)]


class Evaluation(Structure):
    _fields_ = [("metrics", MetricValue * METRICS), ("samples", c_int64), ("reference", c_int64), ("small", c_bool),
                ("repeated", c_int64), ("copied", c_int64), ("seconds", Seconds), ("features", c_char_p),
                ("preset", c_char_p), ("preprocessing", c_char_p), ("precision", c_char_p), ("weights", c_char * 1024),
                ("weights_sha256", c_char * 65), ("reference_sha256", c_char * 65), ("evaluations", c_int64)]


STRUCTURES = {"nl_progress": Progress, "nl_picture": Picture, "nl_context_options": ContextOptions,
              "nl_model_options": ModelOptions, "nl_sampling": Sampling, "nl_mix": Mix, "nl_request": Request,
              "nl_evaluation_options": EvaluationOptions, "nl_metric_value": MetricValue, "nl_evaluation": Evaluation}

# Result, then arguments. What returns c_int is a status.
FUNCTIONS = {
    "nl_version": (c_char_p,),
    "nl_context_create": (c_int, POINTER(ContextOptions), POINTER(c_void_p)),
    "nl_context_destroy": (None, c_void_p),
    "nl_last_error": (c_char_p, c_void_p),
    "nl_cancel": (None, c_void_p),
    "nl_model_load": (c_int, c_void_p, POINTER(ModelOptions), POINTER(c_void_p)),
    "nl_model_destroy": (None, c_void_p),
    "nl_model_config": (c_char_p, c_void_p),
    "nl_model_sha256": (c_int, c_void_p, POINTER(c_char_p)),
    "nl_model_class": (c_int, c_void_p, c_char_p, POINTER(c_int)),
    "nl_generate": (c_int, c_void_p, POINTER(Request), PICTURE, c_void_p),
    "nl_decode": (c_int, c_void_p, POINTER(c_float), c_int, c_int, c_int, POINTER(c_uint8)),
    "nl_encode": (c_int, c_void_p, POINTER(c_uint8), c_int, c_int, c_int, POINTER(c_float)),
    "nl_metric_name": (c_char_p, c_int),
    "nl_evaluate": (c_int, c_void_p, POINTER(EvaluationOptions), POINTER(Evaluation)),
}


# ---- The library

NAME = "libnalagen.so.0"


def checkouts():
    """Source trees that this package may belong to: the one around it, and the one that pip installed it from."""
    yield Path(__file__).resolve().parents[2]
    try:
        origin = json.loads(metadata.distribution("nalagen").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return
    url = urlsplit(origin.get("url", ""))
    if url.scheme == "file":
        yield Path(unquote(url.path)).parent


def candidates():
    """Paths to try, in order; the last one is a name alone, which the system's linker looks for."""
    given = os.environ.get("NALAGEN_LIBRARY")
    if given:
        return [Path(given)]
    found = [Path(__file__).resolve().parent / NAME]
    for tree in checkouts():
        if (tree / "include" / "nalagen.h").is_file():
            found += [tree / "build" / NAME, tree / "build-cuda" / NAME]
    return found + [Path(NAME)]


@functools.lru_cache(maxsize=None)
def library():
    """libnalagen.so, loaded once."""
    # Idle threads of OpenMP that spin slow down everything else; read by the run time when it is loaded (nalagen.h).
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    tried = []
    for path in candidates():
        if path.name != str(path) and not path.exists():
            tried.append(f"{path}: not there")
            continue
        try:
            loaded = ctypes.CDLL(str(path))
            break
        except OSError as error:
            tried.append(str(error))
    else:
        raise LibraryNotFoundError("libnalagen.so was not found. Build it (./nalagen in the source tree, or cmake "
                                   "--preset release && cmake --build --preset release), or name it in "
                                   "NALAGEN_LIBRARY. Tried:\n  " + "\n  ".join(tried))
    try:
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise LibraryNotFoundError(f"{path}: not the library that this package belongs to ({error})") from None
    from . import __version__
    if loaded.nl_version().decode() != __version__:
        raise LibraryNotFoundError(f"{path}: version {loaded.nl_version().decode()}, and this package is for "
                                   f"{__version__}: install both from one source tree")
    return loaded


# ---- Values

def text(value):
    """A text or path as the library takes it."""
    data = os.fsencode(value)
    if b"\0" in data:
        raise UsageError(f"{value!r}: a zero byte in a text")
    return data


def convert(kind, value, name):
    """A Python value as one of the C type `kind`; what does not fit is an error, not cut off."""
    if kind is c_char_p:
        return text(value)
    if kind is c_bool:
        return bool(value)
    if kind is c_double:
        return float(value)
    if kind in (c_int, c_int64, c_uint64, c_size_t):
        number = operator.index(value)
        if kind(number).value != number:
            raise UsageError(f"{name}: {number} is out of range")
        return number
    if issubclass(kind, ctypes.Array) and kind._type_ is not c_char:
        values = [convert(kind._type_, x, name) for x in value]
        if len(values) != kind._length_:
            raise UsageError(f"{name}: expected {kind._length_} numbers, found {len(values)}")
        return kind(*values)
    raise TypeError(f"{name} is not an option")


def fill(structure, options):
    """Sets members by name; None leaves the default. Unknown names are a TypeError, as of a function's arguments."""
    kinds = dict(structure._fields_)
    for name, value in options.items():
        if name not in kinds or name in ("size", "reserved"):
            raise TypeError(f"unknown option {name!r}; there are " +
                            ", ".join(k for k in kinds if k not in ("size", "reserved")))
        if value is not None:
            setattr(structure, name, convert(kinds[name], value, name))
    return structure


def cleared(kind):
    """A structure with all defaults that says its size, as NL_INIT."""
    structure = kind()
    structure.size = ctypes.sizeof(kind)
    if hasattr(structure, "sampling"):
        structure.sampling.size = ctypes.sizeof(Sampling)
    return structure


def sampling(options):
    """nl_sampling of the keyword arguments."""
    structure = cleared(Sampling)
    scale = options.get("cfg_scale")
    if scale is not None and not scale >= 0:
        raise UsageError(f"cfg_scale: expected 0 or more, found {scale}")
    fill(structure, options)
    if scale == 0:
        structure.cfg_scale = CFG_UNCONDITIONAL
    return structure


def rounding(name):
    """nl_rounding of "dit" or "adm"."""
    if name not in ROUNDINGS:
        raise UsageError(f"rounding: expected dit or adm, found {name!r}")
    return ROUNDINGS[name]


