"""dlfs for Grain, and so for JAX: a random access data source.

    source = dlfs.grain.DataSource(ds)
    data = grain.MapDataset.source(source).shuffle(seed=1).map(decode).batch(256)

An item is (bytes, label). If Grain requests many at once, through __getitems__, they are one batch read.
The module needs no package but dlfs itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import NO_LABEL, Dataset, IndexOutOfRange

__all__ = ["DataSource"]


class DataSource:
    """A `grain.RandomAccessDataSource` of (bytes, label); the label of a sample without one is None.

    For samples of several fields, select one with dlfs.open(..., fields=...).

    It may be pickled: a worker process opens the data set again.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        ids = dataset.ids
        self._ids = None if len(ids) == 0 or int(ids[-1]) == len(ids) - 1 else ids

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[bytes, int | None]:
        if not -len(self) <= index < len(self):
            raise IndexOutOfRange(f"there is no sample {index}: the data set has {len(self)}")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[bytes, int | None]]:
        """The items at `indices`, read as one batch."""
        if self._ids is not None:
            indices = self._ids[list(indices)].tolist()
        batch = self.dataset.read_batch([int(index) for index in indices])
        labels: Any = batch.labels
        given = [None] * len(batch) if labels is None else labels.tolist()
        given = [None if label == NO_LABEL else label for label in given]
        return list(zip(batch.tobytes(), given))

    def __repr__(self) -> str:
        # Grain's checkpoints compare it, so equal data must have equal text.
        return f"dlfs.grain.DataSource(image={self.dataset.uuid}, generation={self.dataset.generation})"
