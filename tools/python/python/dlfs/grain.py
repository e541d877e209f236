"""dlfs for Grain, and so for JAX: a random access data source.

    source = dlfs.grain.DataSource(ds)
    data = grain.MapDataset.source(source).shuffle(seed=1).map(decode).batch(256)

An item is (bytes, label), or ({name: bytes}, label) of samples with several fields. Fields with types are numpy
arrays. If Grain requests many items at once, through __getitems__, they are one batch read.
The module needs no package but dlfs itself and numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from . import NO_LABEL, Dataset, IndexOutOfRange
from ._options import Fields

__all__ = ["DataSource"]


class DataSource:
    """A `grain.RandomAccessDataSource` of (bytes, label); the label of a sample without one is None.

    Of samples with several fields, an item is ({name: bytes}, label); a field that a sample lacks is None. A field
    with a type (Dataset.field_types) is a copy of its array, or a number, in place of bytes.
    fields="jpg" makes the items (bytes, label) of this field, and fields=("jpg", "cls") has these two in the
    dict.

    It may be pickled: a worker process opens the data set again.
    """

    def __init__(self, dataset: Dataset, fields: Fields | None = None) -> None:
        self.dataset, self._fields = dataset, fields
        dataset.read_batch([], fields=fields)  # raises here if there is no such field
        ids = dataset.ids
        self._ids = None if len(ids) == 0 or int(ids[-1]) == len(ids) - 1 else ids

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, int | None]:
        if not -len(self) <= index < len(self):
            raise IndexOutOfRange(f"there is no sample {index}: the data set has {len(self)}")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, int | None]]:
        """The items at `indices`, read as one batch."""
        if self._ids is not None:
            indices = self._ids[list(indices)].tolist()
        batch = self.dataset.read_batch([int(index) for index in indices], fields=self._fields)
        labels: Any = batch.labels
        given = [None] * len(batch) if labels is None else labels.tolist()
        given = [None if label == NO_LABEL else label for label in given]
        if not batch.fields:
            whole = batch.tobytes() if batch.field_type is None else map(_owned, batch)
            return list(zip(whole, given))
        items = ({name: _owned(field) for name, field in sample.items()} for sample in batch)
        return list(zip(items, given))

    def __repr__(self) -> str:
        # Grain's checkpoints compare this text, so equal data must have equal text.
        fields = "" if self._fields is None else f", fields={self._fields!r}"
        image, generation = self.dataset.uuid, self.dataset.generation
        return f"dlfs.grain.DataSource(image={image}, generation={generation}{fields})"


def _owned(field: Any) -> Any:
    """A copy, which does not keep the batch alive."""
    if isinstance(field, memoryview):
        return bytes(field)
    return field.copy() if isinstance(field, numpy.ndarray) else field
