"""Single samples of a data set for torch.utils.data, by index. Programs import `Dataset` from dlfs.torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.utils.data

from . import NO_LABEL, Batch, IndexOutOfRange, InvalidArgument, Sample
from . import Dataset as _Dataset
from ._options import Fields
from ._random import Generators, takes_rng
from ._sampler import Indices
from ._sending import NotTheEnd, set_up_worker
from ._tensors import tensor


class Dataset(torch.utils.data.Dataset[Any]):
    """A map-style data set over a dlfs.Dataset; a batch of indices is read at once.

    An item is transform(view, label): `view` is a read-only memoryview of the sample's bytes (a dlfs.Sample,
    a mapping of names to views, if it has several fields), `label` an int or None. Without a transform an item is
    (uint8[L], label), or ({name: uint8[L]}, label). A field with a type is an array of its dtype and shape instead of a
    view; without a transform, a tensor of these. `fields` is as in dlfs.open.

    If the transform has a further parameter `rng`, it gets dlfs.random_of(seed, epoch, id) there: augmentations that
    draw from it are repeated exactly by a run that is repeated or resumes, with any workers and ranks. Seed and epoch
    are those of the dlfs.torch.BatchSampler that chose the indices.
    """

    def __init__(
        self,
        dataset: _Dataset,
        transform: Callable[..., Any] | None = None,
        fields: Fields | None = None,
    ) -> None:
        self.transform: Callable[..., Any] = transform or _plain
        self.dataset, self._fields = dataset, fields
        dataset.read_batch([], fields=fields)  # raises here if there is no such field
        # Indices count existing samples; ids have gaps if samples were deleted.
        ids = dataset.ids
        has_no_gaps = len(ids) == 0 or int(ids[-1]) == len(ids) - 1
        self._ids = None if has_no_gaps else ids
        self._takes_rng = takes_rng(transform)

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        transform = "" if self.transform is _plain else f", transform={name_of(self.transform)}"
        fields = "" if self._fields is None else f", fields={self._fields!r}"
        return f"<dlfs.torch.Dataset of {self.dataset!r}{transform}{fields}>"

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexOutOfRange(f"there is no sample {index}: the data set has {len(self)}")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The items at `indices`, whose bytes are read as one batch."""
        drawn = indices
        if self._ids is not None:
            indices = self._ids[list(indices)].tolist()
        batch = self.dataset.read_batch(indices, fields=self._fields)
        if torch.utils.data.get_worker_info() is not None:
            set_up_worker()
        given = _labels(batch)
        kind = batch.field_type
        if kind is not None and self.transform is _plain:
            return [(tensor(view, dtype=kind.dtype), label) for view, label in zip(batch, given)]
        items = zip(batch.tolist(), given)
        if not self._takes_rng:
            with NotTheEnd():
                return [self.transform(view, label) for view, label in items]
        if not isinstance(drawn, Indices):
            raise InvalidArgument(
                "the transform takes rng, which depends on seed and epoch: let a dlfs.torch.BatchSampler choose the "
                "indices (batch_sampler=)"
            )
        rngs = Generators(drawn.seed, drawn.epoch, batch.ids.tolist())
        with NotTheEnd():
            return [self.transform(*item, rng=rngs[at]) for at, item in enumerate(items)]


def name_of(function: Any) -> str:
    """The name of a transform in a repr."""
    return getattr(function, "__qualname__", None) or repr(function)


def _labels(batch: Batch) -> list[int | None]:
    """The label of each sample of a batch; None for a sample without one."""
    labels = batch.labels
    if labels is None:
        return [None] * len(batch)
    return [None if label == NO_LABEL else label for label in labels.tolist()]


def _plain(view: Any, label: int | None) -> tuple[Any, int | None]:
    """The item without a transform: tensors."""
    if not isinstance(view, Sample):
        return tensor(view), label
    kinds = view.field_types

    def one(name: str, field: Any) -> torch.Tensor | None:
        kind = kinds.get(name)
        return None if field is None else tensor(field, dtype=None if kind is None else kind.dtype)

    return {name: one(name, field) for name, field in view.items()}, label
