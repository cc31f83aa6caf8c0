# SPDX-License-Identifier: MIT
"""The exceptions: one class for each status of the library."""


class Error(Exception):
    """A call of the library failed; the text is the library's message, `status` its number."""

    status = 1


class InternalError(Error):
    """A defect of nalagen."""


class UsageError(Error, ValueError):
    """An argument out of its range."""

    status = 2


class InputError(Error):
    """A file that cannot be read or is not what it should be."""

    status = 3


class OutOfMemoryError(Error, MemoryError):
    """Memory of the host or the device; the message says how much is needed and there."""

    status = 4


class DeviceError(Error):
    """No such device, or it failed."""

    status = 5


class NotFiniteError(Error, ArithmeticError):
    """NaN or infinity; the message says in which step and tensor."""

    status = 6


class WriteError(Error):
    """A file that cannot be written in full."""

    status = 7


class Cancelled(Error):
    """Stopped, because the progress callback returned False."""

    status = 130


class LibraryNotFoundError(ImportError):
    """libnalagen.so was not found, or is of another version."""


BY_STATUS = {e.status: e for e in (InternalError, UsageError, InputError, OutOfMemoryError, DeviceError,
                                   NotFiniteError, WriteError, Cancelled)}
