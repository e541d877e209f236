"""A source for NVIDIA DALI's fn.external_source, which takes the bytes of samples without a copy.

    source = dlfs.dali.source(dlfs.Loader(ds, 256, seed=1), prefetch_queue_depth=2)
    encoded, labels = fn.external_source(source=source, num_outputs=2, batch=True, no_copy=True, cycle="raise")
    pictures = fn.decoders.image_random_crop(encoded, device="mixed")

Needs no DALI to be imported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
from numpy.typing import NDArray

from . import NO_LABEL, Batch, InvalidArgument, Loader

__all__ = ["source"]

Item = tuple[list[NDArray[numpy.uint8]], NDArray[numpy.int64]]


def source(loader: Loader, prefetch_queue_depth: int | Mapping[str, int] = 2) -> Source:
    """An iterable for fn.external_source(source=..., num_outputs=2, batch=True, no_copy=True, cycle="raise").

    An item is a list of uint8 arrays over the bytes of the samples, and their labels as int64[B, 1]; dlfs.NO_LABEL for
    a sample without one. Each iteration is an epoch of the loader; with cycle="raise", Pipeline.reset() begins another.

    prefetch_queue_depth   that of the pipeline. DALI reads the arrays of a batch until it has handed out the batch, so
                           prefetch_queue_depth + 1 batches are kept in the loader's window
    """
    depth = prefetch_queue_depth
    if isinstance(depth, Mapping):
        depth = depth["cpu_size"] * depth["gpu_size"]
    if depth < 1:
        raise InvalidArgument(f"prefetch_queue_depth={prefetch_queue_depth}: it is at least 1")
    return Source(loader, depth)


class Source:
    """The batches of a loader, as DALI takes them."""

    def __init__(self, loader: Loader, depth: int) -> None:
        self._loader = loader
        # The newest items, also across epochs: the last items of an epoch are still in the pipeline when the next
        # begins.
        self._kept: deque[Item] = deque(maxlen=depth + 1)

    def __iter__(self) -> Iterator[Item]:
        for batch in self._loader:
            if batch.fields:
                raise InvalidArgument(
                    f"samples have several fields: {', '.join(batch.fields)}. Choose the one for DALI with fields= of "
                    "the loader"
                )
            views = batch.tolist()
            if any(view is None for view in views):
                raise InvalidArgument('DALI takes no gaps: give the loader on_error="skip" or "raise", not "none"')
            self._kept.append(([numpy.frombuffer(view, numpy.uint8) for view in views], _labels(batch)))
            del batch, views
            yield self._kept[-1]

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return len(self._loader)


def _labels(batch: Batch) -> NDArray[numpy.int64]:
    labels = batch.labels
    if labels is None:
        return numpy.full((len(batch), 1), NO_LABEL, numpy.int64)
    return labels[:, None]
