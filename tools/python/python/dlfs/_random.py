"""Random numbers of one sample in one epoch: the same on any rank, in any worker, and after a run resumes."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy

from ._dlfs import Batch


def random_of(seed: int, epoch: int, id: int) -> numpy.random.Generator:
    """A generator of random numbers for sample `id` in `epoch` of a run with `seed`.

    It is numpy.random.Philox with the key (seed, id) and a counter that begins at epoch * 2**192, so streams never
    overlap. It depends on the three numbers alone, not on ranks, workers, batches or earlier draws: an augmentation
    that takes its numbers here is repeated exactly when the run is repeated or resumes.
    """
    key = numpy.array([seed, id], dtype=numpy.uint64)
    counter = operator.index(epoch) << 192  # an integer of numpy would be 0 after this shift
    return numpy.random.Generator(numpy.random.Philox(key=key, counter=counter))


class Generators:
    """The generators of the samples of a batch: rng[i] is that of sample i, made anew each time."""

    def __init__(self, seed: int, epoch: int, ids: Iterable[int]) -> None:
        self._seed, self._epoch, self._ids = seed, epoch, list(ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> numpy.random.Generator:
        return random_of(self._seed, self._epoch, self._ids[index])

    @classmethod
    def of(cls, seed: int, batch: Batch) -> Generators:
        """The generators of `batch`. In a mixture, ids have the number of their source in the upper bits."""
        ids = batch.ids if batch.sources is None else batch.sources << 40 | batch.ids
        return cls(seed, batch.epoch, ids.tolist())


def takes_rng(transform: Callable[..., Any] | None) -> bool:
    """Returns whether a transform has a parameter called rng."""
    try:
        return transform is not None and "rng" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # some functions in C have no signature
        return False
