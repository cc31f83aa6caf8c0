# SPDX-License-Identifier: MIT
"""A context of the library and the thread that it works in.

A context belongs to one thread at a time. Each has a thread of its own here, so that the caller's waits where Python
sees Ctrl-C, callbacks run in the caller's thread, and calls from several threads wait for each other.
"""

import ctypes
import logging
import os
import queue
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from . import _library
from ._errors import BY_STATUS, Cancelled, InternalError

log = logging.getLogger("nalagen")
LEVELS = (logging.DEBUG, logging.WARNING, logging.INFO, logging.DEBUG)  # an error is an exception, too


class Progress(NamedTuple):
    """How far a call is."""

    stage: str  # "sampling", "decoding", "samples", ...
    step: int  # steps done in this batch
    steps: int  # of so many; 0: not known beforehand
    image: int  # pictures finished
    images: int  # of so many
    batch: int  # pictures at work
    preview: Optional[np.ndarray]  # a latent [C, H, W], every preview_every steps


ProgressCallback = Callable[[Progress], Any]


def array(pointer, shape):
    """A copy of what the library shows."""
    return np.ctypeslib.as_array(pointer, tuple(shape)).copy()


def raise_for(status, message):
    """Raises the exception of a status."""
    kind = BY_STATUS.get(status, InternalError)
    error = kind(message.decode("utf-8", "replace") or kind.__doc__)
    error.status = status
    raise error


def release(library, handle, destroy, executor, pid):
    """Gives back a context after what was made from it. executor: its own, or None."""
    if os.getpid() != pid:  # a fork has neither the thread nor the device
        return
    if executor:
        executor.shutdown(wait=False)
    for destroy_one, value in destroy + [(library.nl_context_destroy, handle)]:
        destroy_one(value)
    destroy.clear()


class Context:
    """options: those of nl_context_options by name. beside: a context whose thread this one shares."""

    def __init__(self, beside=None, **options):
        self.library = _library.library()
        self._events = None  # of the running call
        self._stale = False  # cancelled, but the call had ended before it saw that
        self._pid = os.getpid()
        self._executor = beside._executor if beside else ThreadPoolExecutor(1, thread_name_prefix="nalagen")
        self._log, self._progress = self._callbacks(weakref.ref(self))
        message = ctypes.create_string_buffer(1024)
        given = _library.fill(_library.cleared(_library.ContextOptions), options)
        given.log, given.progress = self._log, self._progress
        given.message = ctypes.cast(message, ctypes.POINTER(ctypes.c_char))
        given.message_size = len(message)
        self.handle = ctypes.c_void_p()
        status = self._executor.submit(self.library.nl_context_create, given, self.handle).result()
        if status != _library.OK:
            raise_for(status, message.value)
        self.destroy = []  # (function, handle) of what was made from this context, in that order
        self.finalize = weakref.finalize(self, release, self.library, self.handle, self.destroy,
                                         None if beside else self._executor, self._pid)

    @staticmethod
    def _callbacks(context):
        """Those of the library's thread: what they see becomes an event."""

        def on_log(_user, level, message):
            log.log(LEVELS[level], "%s", message.decode("utf-8", "replace"))

        def on_progress(_user, pointer):
            self, p = context(), pointer.contents
            if self and self._events:
                preview = array(p.preview, p.preview_shape) if p.preview else None
                self.put(Progress(p.stage.decode(), p.step, p.steps, p.image, p.images, p.batch, preview))
            return True

        return _library.LOG(on_log), _library.PROGRESS(on_progress)

    def put(self, event):
        """An event for the caller of `work`, from the library's thread."""
        self._events.put(event)

    def close(self):
        """Gives the context back, after the running call."""
        if self.finalize.alive:
            self._executor.submit(self.finalize).result()

    def _submit(self, function, *arguments):
        if os.getpid() != self._pid:
            raise RuntimeError("a model does not outlive a fork: load it in each process")
        if not self.finalize.alive:
            raise ValueError("the model is closed")
        return self._executor.submit(function, *arguments)

    def run(self, function):
        """What function() gives, called in the context's thread."""
        return self._submit(function).result()

    def _perform(self, function, events, left):
        """In the context's thread: (status, message) of function(). left: set when the caller no longer waits."""
        self._events = events
        try:
            status = function()
            if status == _library.CANCELLED and self._stale and not left.is_set():
                self._stale = False  # meant for an earlier call
                status = function()
            return status, self.library.nl_last_error(self.handle)
        finally:
            self._events = None
            events.put(None)

    def work(self, function):
        """Calls function(), which returns a status, in the context's thread, and yields what it reports. When the
        caller leaves early, by an exception, Ctrl-C or by closing the generator, the call is cancelled first."""
        events, left = queue.SimpleQueue(), threading.Event()
        future = self._submit(self._perform, function, events, left)
        try:
            while (event := events.get()) is not None:
                yield event
        except BaseException:
            if not future.cancel():  # it runs, or has ended
                left.set()
                self.library.nl_cancel(self.handle)
                wait([future])
                self._stale = future.exception() is not None or future.result()[0] != _library.CANCELLED
            raise
        status, message = future.result()
        if status != _library.OK:
            raise_for(status, message)

    def call(self, function):
        """Work whose reports nobody wants."""
        with closing(self.work(function)) as events:
            for _ in events:
                pass


class Watch:
    """What the caller's `progress` argument means: None, a callable, or True for a bar of tqdm."""

    def __init__(self, progress: Union[None, bool, ProgressCallback]):
        self._bar = None
        self._callback = progress
        if progress is True:
            from tqdm.auto import tqdm
            self._bar = tqdm(unit="img")
            self._callback = self._draw
        elif not progress:
            self._callback = None

    def _draw(self, p):
        if self._bar.total != p.images:
            self._bar.reset(total=p.images)
        self._bar.n = p.image
        self._bar.set_postfix_str(p.stage + (f" {p.step}/{p.steps}" if p.steps else ""))

    def __call__(self, p):
        if self._callback and self._callback(p) is False:
            raise Cancelled("cancelled by the progress callback")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self._bar is not None:
            if kind is None and self._bar.total:
                self._bar.n = self._bar.total
                self._bar.set_postfix_str("")
            self._bar.close()
