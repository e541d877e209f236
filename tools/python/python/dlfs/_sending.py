"""Results that a DataLoader's worker process sends to the process that trains: views are sent as copies, and a result
that cannot be sent raises an error, where torch would wait for ever."""

from __future__ import annotations

import copyreg
import multiprocessing.queues
import os
import pickle
import sys
import traceback
from typing import Any

import numpy
import torch

from . import Batch, Sample
from ._tensors import TensorBatch


def set_up_worker() -> None:
    """Makes a worker process of DataLoader send views as copies, and exit if it cannot send a result:
    torch would wait for ever for a result that a thread of the worker failed to pickle."""
    if copyreg.dispatch_table.get(memoryview) is not _reduce_view:
        copyreg.pickle(memoryview, _reduce_view)
        if hasattr(multiprocessing.queues.Queue, "_on_queue_feeder_error"):
            multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_end_worker)


def _reduce_view(view: memoryview) -> tuple[Any, ...]:
    """Pickles a view as a copy of its bytes."""
    return _view, (view.tobytes(), view.format, view.shape)


def _view(data: bytes, format: str, shape: tuple[int, ...]) -> memoryview:
    """The view of a copy, with the format and shape of the original."""
    view = memoryview(data)
    plain = format == "B" and len(shape) == 1
    return view if plain else view.cast(format, shape)  # type: ignore[call-overload]


def _end_worker(error: Exception, _: object) -> None:
    """Prints why a result cannot be sent, and ends the worker; torch then reports a worker that has died."""
    print("dlfs: DataLoader cannot send the result of a worker process:", file=sys.stderr)
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(1)


class NotTheEnd:
    """A context for calls of a transform: its StopIteration becomes a RuntimeError, since it would end the loop as if
    the epoch had ended. (contextlib.contextmanager would undo that.)"""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, StopIteration):
            raise RuntimeError("the transform raised StopIteration") from error


def check_sendable(item: Any, where: str) -> None:
    """Checks that a worker process can send items of this type; each type is tried once.

    Raises TypeError, which DataLoader passes on.
    """
    if isinstance(item, dict):
        for key, value in item.items():
            check_sendable(value, f"{where}[{key!r}]")
    elif isinstance(item, (list, tuple)):
        for at, value in enumerate(item):
            check_sendable(value, f"{where}[{at}]")
    elif type(item) not in _SENDABLE:
        kind = f"{type(item).__module__}.{type(item).__qualname__}"
        try:
            pickle.dumps(item)
        except Exception as error:
            raise TypeError(
                f"{where} is a {kind}, which a worker process cannot send ({error}): return tensors, "
                "arrays, bytes or a dlfs.Batch, or read without workers (num_workers=0)"
            ) from None
        _SENDABLE.add(type(item))


# Types that can be sent; check_sendable adds those that it has tried.
_SENDABLE: set[type] = {
    *(Batch, Sample, TensorBatch, memoryview, numpy.ndarray, torch.Tensor),
    *(bool, bytes, float, int, str, type(None)),
}
