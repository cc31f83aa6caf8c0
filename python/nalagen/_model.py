# SPDX-License-Identifier: MIT
"""A model: pictures of classes, and the way between pictures and latents."""

import copy
import ctypes
import json
import os
from contextlib import closing
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from . import _library
from ._context import Context, ProgressCallback, Watch, array
from ._errors import UsageError

PathLike = Union[str, bytes, "os.PathLike[str]"]
Class = Union[int, str, None]
Classes = Union[Class, Sequence[Class]]
Size = Union[int, Tuple[int, int]]


class Images(np.ndarray):
    """Pictures, uint8 [n, H, W, 3], a numpy array that knows where they come from. What is sliced or computed from it
    has None for all but the pixels."""

    latents: Optional[np.ndarray] = None  # final latents, float32 [n, C, h, w]
    labels: Optional[np.ndarray] = None  # classes, int64 [n]; the number of classes: the null class
    indices: Optional[np.ndarray] = None  # image indices, int64 [n]
    evaluations: Optional[np.ndarray] = None  # of the network, for each, int64 [n]

    def pil(self) -> List[Any]:
        """A list of PIL images."""
        from PIL import Image
        pixels = np.asarray(self)
        return [Image.fromarray(p) for p in (pixels if pixels.ndim == 4 else pixels[None])]


class Picture(NamedTuple):
    """One of a stream."""

    index: int  # image index
    label: int
    rgb: Optional[np.ndarray]  # uint8 [H, W, 3]; None without an autoencoder
    latents: np.ndarray  # float32 [C, h, w]
    evaluations: int  # of the network


def load(path: Optional[PathLike] = None, device: str = "auto", vae: Optional[PathLike] = None, *,
         size: Optional[Size] = None, dtype: Optional[str] = None, threads: int = 0, max_memory: int = 0,
         config: Optional[PathLike] = None, architecture: Optional[str] = None,
         transport_path: Optional[str] = None, prediction: Optional[str] = None, key: Optional[str] = None,
         guide: Optional[PathLike] = None) -> "Model":
    """Loads a model.

    path: checkpoint (safetensors, torch's .pt, a folder of diffusers); None: the model that ships.
    device: "auto", "cpu", "cuda", "cuda:1".
    vae: autoencoder's file, "none" (latents alone), or None: the model's own.
    size: of the pictures in pixels, N or (height, width); None: the model's own.
    dtype: arithmetic of matrix products, "f32", "bf16" or "fp8"; None: what suits the device.
    threads: of the CPU; 0: all that this process may use. max_memory: bytes; 0: no limit.
    config: JSON over the checkpoint's own; architecture, transport_path, prediction: for files that do not say;
    key: "ema" or "model" of a training checkpoint (nl_model_options in nalagen.h).
    guide: a smaller or less trained checkpoint that guides it (guide_scale of the sampling), or None.

    Raises a subclass of nalagen.Error, or LibraryNotFoundError.
    """
    context = Context(device=device, dtype=dtype, threads=threads, max_memory=max_memory)
    return Model(context, size, dict(path=path, vae=vae, config_path=config, architecture=architecture,
                                     transport_path=transport_path, prediction=prediction, key=key, guide=guide))


def extent(size: Optional[Size]) -> Tuple[int, int]:
    """(height, width) of N or (height, width); of None (0, 0), the model's own."""
    if size is None:
        return 0, 0
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    if height < 1 or width < 1:
        raise UsageError(f"size: expected pixels, N or (height, width), found {size!r}")
    return _library.convert(ctypes.c_int, height, "size"), _library.convert(ctypes.c_int, width, "size")


def latent_shape(config):
    """[C, h, w] by a configuration."""
    size = config["input_size"]
    height, width = size if isinstance(size, list) else (size, size)
    return config["in_channels"], height, width


def listed(classes):
    """A list of one class or several."""
    return [classes] if classes is None or isinstance(classes, str) or np.ndim(classes) == 0 else list(classes)


class Model:
    """What `nalagen.load` gives. Methods may be called from any thread and wait for each other; Ctrl-C stops them. The
    device's memory is given back by close(), at the end of a `with` block, or when nothing refers to the model."""

    def __init__(self, context: Context, size: Optional[Size], options: Dict[str, Any]):
        self.context = context
        self._library = context.library
        self._options = options
        self._handle = ctypes.c_void_p()
        self._own = extent(size)
        self._size = None  # of what is loaded
        context.call(lambda: self._at(self._own))
        self._config = self._read_config()

    # What touches the handle runs in the context's thread.

    def _at(self, size):
        """Loads the model for pictures of this size where it is not; a status."""
        if self._handle and size == self._size:
            return _library.OK
        given = _library.fill(_library.cleared(_library.ModelOptions), self._options)
        given.height, given.width = size
        loaded = ctypes.c_void_p()
        status = self._library.nl_model_load(self.context.handle, given, loaded)
        if status == _library.OK:
            self._library.nl_model_destroy(self._handle)
            self._handle, self._size = loaded, size
            self.context.destroy[:] = [(self._library.nl_model_destroy, loaded.value)]
        return status

    def _read_config(self):
        text = self._library.nl_model_config(self._handle)
        return json.loads(text.decode("utf-8", "surrogateescape"))

    def close(self) -> None:
        """Gives the memory back, after the running call; the model cannot be used afterwards."""
        self.context.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        c, (channels, height, width) = self._config, self.latent_shape
        path = os.fsdecode(self._options["path"] or "that ships")
        return (f"<nalagen.Model {path}: {c['architecture']} with {c['attention']} attention, {c['num_classes']} classes, "
                f"{channels} x {height} x {width}>")

    # ---- What it is

    @property
    def config(self) -> Dict[str, Any]:
        """The configuration (docs/formats.md)."""
        return copy.deepcopy(self._config)

    @property
    def classes(self) -> List[str]:
        """Names of the classes in the order of their indices; the number where there is no name."""
        names = [str(i) for i in range(self._config["num_classes"])]
        for i, entry in enumerate(self._config.get("class_names") or []):
            wnid, name = (entry, None) if isinstance(entry, str) else entry
            names[i] = name or wnid or names[i]
        return names

    @property
    def latent_shape(self) -> Tuple[int, int, int]:
        """[C, h, w] of a latent at the model's own size; of a model of pixels, of a picture."""
        return latent_shape(self._config)

    @property
    def sha256(self) -> str:
        """Of the checkpoint, in hexadecimal."""
        text = ctypes.c_char_p()
        self.context.call(lambda: self._library.nl_model_sha256(self._handle, text))
        return text.value.decode()

    def class_index(self, name: Class) -> int:
        """Index of a class: a name, a wnid or digits as text; a number stays itself, None is the null class."""
        if name is None:
            return int(self._config["num_classes"])
        if not isinstance(name, str):
            return _library.convert(ctypes.c_int, name, "class")
        index, given = ctypes.c_int(), _library.text(name)
        self.context.call(lambda: self._library.nl_model_class(self._handle, given, index))
        return index.value

    def labels(self, classes: Classes, count: int, first_index: int = 0) -> np.ndarray:
        """int32 [count]: the classes taken in turn, image i (from first_index) with class i mod their number."""
        indices = [self.class_index(c) for c in listed(classes)]
        if not indices:
            raise UsageError("classes: none given")
        count = _library.convert(ctypes.c_int64, count, "n")
        return np.array(indices, np.intc)[(first_index % len(indices) + np.arange(count)) % len(indices)]

    # ---- Pictures

    def sample(self, classes: Classes = None, n: Optional[int] = None, *, seed: int = 0,
               steps: Optional[int] = None, cfg_scale: Optional[float] = None, sampler: Optional[str] = None,
               size: Optional[Size] = None, noise: Optional[Any] = None, first_index: int = 0, batch: int = 0,
               progress: Union[None, bool, ProgressCallback] = None, pil: bool = False, preview_every: int = 0,
               rounding: str = "dit", **sampling: Any) -> Any:
        """Makes pictures: Images, uint8 [n, H, W, 3], the bytes that `nalagen sample` writes for the same seed.

        classes: a class or several: names, wnids, indices, None for the null class; taken in turn.
        n: how many pictures; None: as many as classes.
        seed, first_index: noise is a function of seed and image index, first_index and following ones.
        steps, cfg_scale, sampler: None: the model's defaults; cfg_scale 0: the unconditional prediction alone.
        size: N or (height, width) in pixels; another one than before loads the model again.
        noise: initial latents, [n, C, h, w]; None: drawn.
        batch: pictures at once; 0: as large as pays and the memory allows.
        progress: called with a Progress, returns False to cancel; True: a bar of tqdm.
        pil: a list of PIL images in place of the array.
        sampling: further members of nl_sampling in nalagen.h: eta, respacing, cfg_interval, atol, rtol, ...

        The result's `latents` are the final ones. A model without an autoencoder (vae="none") gives no pictures:
        see sample_latents. Raises Cancelled, or another subclass of nalagen.Error.
        """
        made = list(self.stream(classes, n, seed=seed, steps=steps, cfg_scale=cfg_scale, sampler=sampler, size=size,
                                noise=noise, first_index=first_index, batch=batch, progress=progress,
                                preview_every=preview_every, rounding=rounding, **sampling))
        if made and made[0].rgb is None:
            raise UsageError("the model has no autoencoder (vae=\"none\"): use sample_latents")
        images = stack(made, [p.rgb for p in made])
        return images.pil() if pil else images

    def sample_latents(self, classes: Classes = None, n: Optional[int] = None,
                       **options: Any) -> np.ndarray:
        """As `sample`, and gives the final latents, float32 [n, C, h, w]."""
        return np.stack([p.latents for p in self.stream(classes, n, **options)])

    def stream(self, classes: Classes = None, n: Optional[int] = None, *, seed: int = 0,
               size: Optional[Size] = None, noise: Optional[Any] = None, first_index: int = 0, batch: int = 0,
               progress: Union[None, bool, ProgressCallback] = None, preview_every: int = 0, rounding: str = "dit",
               **sampling: Any) -> Iterator[Picture]:
        """As `sample`, and yields each Picture as soon as it is finished. Leaving the loop stops the work."""
        count = n if n is not None else len(listed(classes))
        if count < 1 or first_index < 0:
            raise UsageError(f"n is {count} and first_index {first_index}: expected at least 1 and 0")
        labels = self.labels(classes, count, first_index)
        request = _library.fill(_library.cleared(_library.Request),
                                dict(count=count, seed=seed, first_index=first_index, batch=batch,
                                     preview_every=preview_every))
        noise = None if noise is None else latents_of(noise, "noise", (count, None, None, None))
        return self._stream(request, size, labels, noise, progress, rounding, sampling)

    def walk(self, start: Class, end: Class, n: int, *, seed: int = 0, end_seed: Optional[int] = None,
             size: Optional[Size] = None, batch: int = 0, progress: Union[None, bool, ProgressCallback] = None,
             pil: bool = False, rounding: str = "dit", **sampling: Any) -> Any:
        """n pictures, at least 2, from the first one that `sample` makes of start and seed to the one of end and end_seed
        (None: the same seed): the noise turns from the one to the other, the class is a mean of both. As `sample`
        otherwise; the bytes that `nalagen sample --walk n` writes."""
        if n < 2:
            raise UsageError(f"n is {n}: a walk has at least 2 pictures")
        labels, indices = self.labels(start, n), np.zeros(n, np.int64)
        mixes = (_library.Mix * n)()
        to_label = self.class_index(end)
        to_seed = _library.convert(ctypes.c_uint64, seed if end_seed is None else end_seed, "end_seed")
        for i, mix in enumerate(mixes):
            mix.label, mix.seed, mix.part = to_label, to_seed, i / (n - 1)
        request = _library.fill(_library.cleared(_library.Request), dict(count=n, seed=seed, batch=batch))
        request.mixes = mixes
        request.indices = indices.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
        made = [p._replace(index=i) for i, p in
                enumerate(self._stream(request, size, (labels, indices, mixes), None, progress, rounding, sampling))]
        if made[0].rgb is None:
            raise UsageError("the model has no autoencoder (vae=\"none\")")
        images = stack(made, [p.rgb for p in made])
        return images.pil() if pil else images

    def _stream(self, request, size, held, noise, progress, rounding, sampling):
        """Pictures of the request; held: the labels, alone or first of what it points to."""
        labels = held[0] if isinstance(held, tuple) else held
        size = extent(size) if size is not None else self._own
        request.rounding = _library.rounding(rounding)
        request.sampling = _library.sampling(sampling)
        request.labels = labels.ctypes.data_as(ctypes.POINTER(ctypes.c_int))
        return self._made(request, size, held, noise, progress)

    def _made(self, request, size, held, noise, progress):
        failure = []

        def take(_user, pointer):
            try:
                p = pointer.contents
                self.context.put(Picture(p.index, p.label, array(p.rgb, (p.height, p.width, 3)) if p.rgb else None,
                                         array(p.latents, p.latent_shape), p.evaluations))
                return _library.OK
            except BaseException as error:  # memory, say: raised in the caller's thread
                failure.append(error)
                return _library.CANCELLED

        def generate():
            status = self._at(size)
            if status == _library.OK and noise is not None:
                latents_of(noise, "noise", (request.count,) + latent_shape(self._read_config()))
                request.noise = float_pointer(noise)
            status = status or self._library.nl_generate(self._handle, request, callback, None)
            if failure:
                raise failure[0]
            return status

        callback = _library.PICTURE(take)
        with Watch(progress) as watch, closing(self.context.work(generate)) as events:
            for event in events:
                if isinstance(event, Picture):
                    yield event
                else:
                    watch(event)
        del held  # the request points to it

    # ---- Pictures and latents

    def decode(self, latents: Any) -> Images:
        """Pictures of latents [n, C, h, w]: uint8 [n, H, W, 3]. Needs an autoencoder."""
        x = latents_of(latents, "latents", (None, self.latent_shape[0], None, None))
        rgb = np.empty((x.shape[0], x.shape[2] * self._factor, x.shape[3] * self._factor, 3), np.uint8)
        self.context.call(lambda: self._library.nl_decode(self._handle, float_pointer(x), x.shape[0], x.shape[2],
                                                          x.shape[3], byte_pointer(rgb)))
        return rgb.view(Images)

    def encode(self, images: Any) -> np.ndarray:
        """Latents of pictures, uint8 [n, H, W, 3] (of the Stable Diffusion autoencoder the mean): float32 [n, C, h, w].
        Sides are multiples of the autoencoder's factor, 8."""
        rgb = pixels_of(images, "images")
        n, height, width = rgb.shape[:3]
        x = np.empty((n, self.latent_shape[0], height // self._factor, width // self._factor), np.float32)
        self.context.call(lambda: self._library.nl_encode(self._handle, byte_pointer(rgb), n, height, width,
                                                          float_pointer(x)))
        return x

    @property
    def _factor(self):
        """Pixels of a latent's side."""
        return self._config.get("latent_factor") or (1 if self._config["autoencoder"] == "none" else 8)


def float_pointer(x):
    """float * of a contiguous float32 array."""
    return x.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def byte_pointer(x):
    """uint8_t * of a contiguous uint8 array."""
    return x.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def latents_of(value, name, shape):
    """A contiguous float32 array of this shape (None: any length)."""
    x = np.ascontiguousarray(value, np.float32)
    if x.ndim != len(shape) or any(want not in (None, have) for want, have in zip(shape, x.shape)):
        raise UsageError(f"{name}: expected [{', '.join('n' if s is None else str(s) for s in shape)}], "
                         f"found {list(x.shape)}")
    return x


def pixels_of(value, name):
    """A contiguous uint8 array [n, H, W, 3]."""
    rgb = np.asarray(value)
    if rgb.dtype != np.uint8 or rgb.ndim != 4 or rgb.shape[3] != 3:
        raise UsageError(f"{name}: expected uint8 [n, H, W, 3], found {rgb.dtype} {list(rgb.shape)}")
    return np.ascontiguousarray(rgb)


def stack(made, pixels):
    """Images of a list of Picture."""
    images = np.stack(pixels).view(Images)
    images.latents = np.stack([p.latents for p in made])
    images.labels = np.array([p.label for p in made])
    images.indices = np.array([p.index for p in made])
    images.evaluations = np.array([p.evaluations for p in made])
    return images
