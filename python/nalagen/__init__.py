# SPDX-License-Identifier: MIT
"""Class-conditional image generation with DiT, SiT, NaLaDiT and NaLaSiT.

    import nalagen

    model = nalagen.load()                              # the model that ships
    images = model.sample(["church", 4], n=8, seed=1)   # uint8 [8, 256, 256, 3]
    images.pil()[0].save("church.png")

Everything is done by libnalagen.so (docs/python.md says where it is looked for).
"""

from ._errors import (Cancelled, DeviceError, Error, InputError, InternalError, LibraryNotFoundError,
                      NotFiniteError, OutOfMemoryError, UsageError, WriteError)
from ._context import Progress
from ._model import Images, Model, Picture, load
from ._evaluation import Evaluation, Metric, evaluate
from ._dataset import Dataset

__version__ = "0.1.0"

__all__ = ["Cancelled", "Dataset", "DeviceError", "Error", "Evaluation", "Images", "InputError", "InternalError",
           "LibraryNotFoundError", "Metric", "Model", "NotFiniteError", "OutOfMemoryError", "Picture", "Progress",
           "UsageError", "WriteError", "evaluate", "load"]
