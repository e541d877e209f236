"""Sources of samples for dlfs.import_ that are Python objects: arrays, tables, data sets and iterables. Fields have the
types of dlfs.Writer; None stands for bytes, "?" and the name of a type for values that no field can hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy

from ._arrow import Rows, table_rows
from ._fields import exactly

ROWS_AT_ONCE = 1024  # rows that a table is asked for at once
_NOTHING = ""  # the type of a field without a value so far


class Source(Protocol):
    """A source of samples. A source with a count gives them in any order."""

    count: int | None
    has_seen_all: bool  # True: `kinds` is of all samples; False: of the first one only

    def kinds(self) -> dict[str, str | None]:
        """Names and types of all fields; empty for samples that are bytes."""

    def rows(self, ids: Iterable[int]) -> Iterator[Any]:
        """The samples with these numbers; all samples if there is no count."""


def source_of(source: Any) -> Source:
    """The source of samples that an object is. Raises TypeError if it is none."""
    rows = table_rows(source)
    if rows is not None:
        return _Table(rows)
    if isinstance(source, Mapping):
        return _Arrays(source)
    if hasattr(source, "dtype") and hasattr(source, "shape"):
        return _Arrays({"data": source})
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return _Indexed(source)
    if isinstance(source, Iterable):
        return _Stream(source)
    raise TypeError(f"{type(source).__name__} is not a source: neither files, arrays, a data set nor an iterable")


class _Arrays:
    """Arrays of one length: sample i is element i of each of them."""

    has_seen_all = True

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        if not arrays:
            raise TypeError("there is no array to import")
        self.arrays = {name: _array(array) for name, array in arrays.items()}
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) != 1:
            raise TypeError(f"the arrays have different lengths: {lengths}")
        self.count: int | None = next(iter(lengths.values()))

    def kinds(self) -> dict[str, str | None]:
        return {name: _kind_of_array(array.dtype, array.shape[1:]) for name, array in self.arrays.items()}

    def rows(self, ids: Iterable[int]) -> Iterator[Mapping[str, Any]]:
        for id in ids:
            yield {name: array[id] for name, array in self.arrays.items()}


class _Indexed:
    """A map-style data set, or a list of samples."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.count: int | None = len(dataset)
        self.has_seen_all = isinstance(dataset, (list, tuple))

    def kinds(self) -> dict[str, str | None]:
        return _kinds_of(self.dataset if self.has_seen_all else [self.dataset[0]] if self.count else [])

    def rows(self, ids: Iterable[int]) -> Iterator[Any]:
        return (self.dataset[id] for id in ids)


class _Stream:
    """An iterable, which is read once."""

    count: int | None = None
    has_seen_all = False

    def __init__(self, samples: Iterable[Any]) -> None:
        self.samples = iter(samples)

    def kinds(self) -> dict[str, str | None]:
        first = list(itertools.islice(self.samples, 1))
        self.samples = itertools.chain(first, self.samples)
        return _kinds_of(first)

    def rows(self, ids: Iterable[int]) -> Iterator[Any]:
        return self.samples


class _Table:
    """Rows of tables of Arrow."""

    has_seen_all = True

    def __init__(self, rows: Rows) -> None:
        self.found, self.count = rows, rows.length

    def kinds(self) -> dict[str, str | None]:
        return self.found.kinds

    def classes(self) -> dict[str, list[str]]:
        return self.found.classes

    def rows(self, ids: Iterable[int]) -> Iterator[Mapping[str, Any]]:
        if self.count is None:
            for table in self.found.tables():
                yield from self.found.rows_of(table)
            return
        ids = iter(ids)
        while some := list(itertools.islice(ids, ROWS_AT_ONCE)):
            yield from self.found.rows_of(self.found.take(some))


def _kinds_of(samples: Iterable[Any]) -> dict[str, str | None]:
    """Names and types of the fields that samples have. A value of None tells no type."""
    kinds: dict[str, str | None] = {}
    for sample in samples:
        sample, _ = parted(sample)
        for field, value in sample.items() if isinstance(sample, Mapping) else ():
            known = kinds.setdefault(field, _NOTHING)
            if value is not None:
                kinds[field] = _wider(known, kind_of(value))
    return {field: kind or None for field, kind in kinds.items()}


def parted(sample: Any) -> tuple[Any, Any]:
    """The content of a sample and its label, if it is a pair of these; else the sample and None."""
    return sample if isinstance(sample, tuple) and len(sample) == 2 else (sample, None)


def _wider(known: str | None, kind: str | None) -> str | None:
    """The type that holds values of both types; `known` if no type does, so that the writer refuses the other value."""
    if known == _NOTHING:
        return kind
    return "f64" if {known, kind} == {"i64", "f64"} else known


def kind_of(value: Any) -> str | None:
    """The type of a field with this value; None: bytes; "?" and the name of the value's type: no field can hold it."""
    if value is None or isinstance(value, (bytes, bytearray, memoryview, str)):
        return None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "i64" if isinstance(value, int) else "f64"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        value = _array(value)
        return _kind_of_array(value.dtype, value.shape)
    return f"?{type(value).__name__}"


def _kind_of_array(dtype: numpy.dtype[Any], shape: Sequence[int]) -> str | None:
    if dtype.kind not in "biuf" and dtype.name != "bfloat16":
        return None if dtype.kind in "SUO" and not shape else f"?an array of {dtype}"
    dims = ",".join(str(dim) for dim in shape)
    return f"{dtype.name}[{dims}]" if dims else dtype.name


def _array(value: Any) -> Any:
    """A numpy array of an array or tensor."""
    if type(value).__module__.split(".")[0] == "torch":
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            raise TypeError("numpy has no bfloat16: give tensor.view(torch.uint16) and the type bf16[...] in fields=")
        return value.numpy()
    array = numpy.asarray(value)
    if hasattr(value, "dtype") or array.dtype.kind not in "fSU":
        return array
    # Beside texts, numpy makes texts of numbers. It cuts NULs off the ends of texts, and rounds integers beside floats.
    return numpy.asarray(value, object) if array.dtype.kind in "SU" else exactly(value, array.dtype.name)
