"""Samples and batches as tensors of torch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, cast, overload

import numpy
import torch
from torch.utils.dlpack import from_dlpack

from . import Batch, FieldType, InvalidArgument, NameNotFound, NoArray, OnDevice
from ._random import random_of


def tensor(view: Any, share: bool = False, dtype: str | None = None) -> torch.Tensor:
    """A sample's bytes as a tensor uint8[L]: a copy, or, with `share`, over the same memory.

    An array or a number, as fields with types have, becomes a tensor of its dtype and shape; an array that is not
    aligned is copied also with `share`. `dtype` is the name of its dtype: "bfloat16" for arrays that hold bfloat16 as
    uint16, which is so without the package ml_dtypes.

    torch has no read-only tensors: writing to a tensor that shares memory changes the sample in its batch.
    """
    if isinstance(view, (numpy.ndarray, numpy.generic)):
        return _of_array(numpy.asarray(view), share, dtype)
    view = memoryview(view)  # raises TypeError for a dlfs.Sample
    if len(view) == 0:
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():
        # Otherwise torch warns that the memory is read-only.
        warnings.simplefilter("ignore", UserWarning)
        shared = torch.frombuffer(view, dtype=torch.uint8)
    return shared if share else shared.clone()


def generator_of(seed: int, epoch: int, id: int) -> torch.Generator:
    """As dlfs.random_of, a generator of torch, on the CPU: seeded with the first 64 bits that random_of's draws."""
    return torch.Generator().manual_seed(random_of(seed, epoch, id).bit_generator.random_raw())


def _of_array(array: numpy.ndarray[Any, Any], share: bool, dtype: str | None) -> torch.Tensor:
    dtype = dtype or array.dtype.name
    bits = array.view(numpy.uint16) if dtype == "bfloat16" else array
    if not share or not bits.flags.aligned:
        return _as(torch.from_numpy(bits.copy()), dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # as above
        return _as(torch.from_numpy(bits), dtype)


def _as(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """The same bytes as elements of this type."""
    return tensor.view(cast(torch.dtype, getattr(torch, dtype)))


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class TensorBatch:
    """A batch copied into tensors, which can be moved, pinned, and sent between processes.

    data     uint8[B, L] if lengths are equal, else uint8[sum of lengths]
    offsets  int64[B + 1], the start of each sample in the flat data
    ids      int64[B]
    labels   int64[B], dlfs.NO_LABEL for samples without a label, or None if no sample has one
    sources  int64[B], the data set of each sample of a mixture; None otherwise
    columns  {name: int64[B], float32[B] or float64[B]} of the typed columns, as dlfs.Batch.column gives them
    fields   {name: TensorBatch} of samples with several fields, also batch[name]; a field that a sample lacks
             has length 0. data and offsets of the batch itself then raise NoArray, since the field is ambiguous
    shape    the shape of the arrays of a field with a type, with None for a first dimension that differs from sample
             to sample; None without a type. Of a field with a type, data has its dtype, and is [B, ...] if all samples
             have the field in one shape. Otherwise the arrays are joined along the first dimension if the type leaves
             it free, or else the arrays of the samples that have the field are stacked. offsets count these rows

    Of a batch of a loader with a `device`, the tensors are on that device, over memory that the loader uses again once
    they are dropped: keep a clone() of one, not many batches. A stream other than the one that is current here has to
    wait for it.
    """

    def __init__(
        self,
        data: torch.Tensor | None,
        offsets: torch.Tensor | None,
        ids: torch.Tensor,
        labels: torch.Tensor | None,
        epoch: int = 0,
        fields: Mapping[str, TensorBatch] | None = None,
        sources: torch.Tensor | None = None,
        columns: Mapping[str, torch.Tensor] | None = None,
        shape: tuple[int | None, ...] | None = None,
    ) -> None:
        self._data, self._offsets, self.ids, self.labels = data, offsets, ids, labels
        self.shape = shape
        self.sources = sources
        self.epoch, self.fields, self.columns = epoch, dict(fields or {}), dict(columns or {})

    @property
    def data(self) -> torch.Tensor:
        return self._whole(self._data)

    @property
    def offsets(self) -> torch.Tensor:
        return self._whole(self._offsets)

    def _whole(self, tensor: torch.Tensor | None) -> torch.Tensor:
        if tensor is None:
            names = ", ".join(self.fields)
            raise NoArray(
                f'samples have several fields: {names}. Take batch["{next(iter(self.fields))}"].data'
            )
        return tensor

    @classmethod
    def of(cls, batch: Batch) -> TensorBatch:
        """Copies `batch` into tensors; those of a batch on a device are over its memory there."""
        if batch.on_device is not None:
            return cls._on_device(batch, batch.on_device)
        columns = {name: torch.from_numpy(batch.column(name).copy()) for name in batch.columns}
        return cls._of(batch, columns)

    @classmethod
    def _of(cls, batch: Batch, columns: Mapping[str, torch.Tensor] | None = None) -> TensorBatch:
        if batch.fields:
            each = {name: cls._of(batch.select(name)) for name in batch.fields}
            first = next(iter(each.values()))
            ids, epoch, of = first.ids, first.epoch, first.sources
            return cls(None, None, ids, first.labels, epoch, each, of, columns)
        offsets = torch.from_numpy(batch.offsets.copy())
        lengths = offsets.diff()
        data = torch.empty(int(offsets[-1]), dtype=torch.uint8)
        data.numpy()[:] = batch.data
        kind = batch.field_type
        equal = bool(len(lengths)) and bool((lengths == lengths[0]).all())
        if kind is not None:
            data, offsets = _typed(data, offsets, kind, equal)
        elif equal:
            data = data.reshape(len(lengths), int(lengths[0]))
        labels, sources = batch.labels, batch.sources
        return cls(
            data,
            offsets,
            torch.from_numpy(batch.ids.copy()),
            None if labels is None else torch.from_numpy(labels.copy()),
            batch.epoch,
            sources=None if sources is None else torch.from_numpy(sources.copy()),
            columns=columns,
            shape=None if kind is None else kind.shape,
        )

    @classmethod
    def _on_device(cls, batch: Batch, on: OnDevice) -> TensorBatch:
        take = from_dlpack
        labels = None if on.labels is None else take(on.labels)
        sources = None if on.sources is None else take(on.sources)
        columns = {name: take(column) for name, column in on.columns.items()}
        whole = cls(None, None, take(on.ids), labels, batch.epoch, None, sources, columns)
        for name, field in on.fields.items():
            kind = batch.field_types.get(name)
            whole.fields[name] = cls(None, None, whole.ids, labels, batch.epoch, None, sources)
            whole.fields[name]._take(field, kind)
        if not on.fields:
            whole._take(on, batch.field_type)
        return whole

    def _take(self, on: OnDevice, kind: FieldType | None) -> None:
        self._data, self._offsets = from_dlpack(on.data), from_dlpack(on.offsets)
        self.shape = None if kind is None else kind.shape

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: str) -> TensorBatch: ...
    def __getitem__(self, index: int | str) -> torch.Tensor | TensorBatch:
        """batch[i]: the bytes of one sample, uint8[L], or its array; batch[name]: one field of all samples."""
        if isinstance(index, str):
            if index not in self.fields:
                known = ", ".join(self.fields) or "none"
                raise NameNotFound(f"samples have no field {index}: there are {known}")
            return self.fields[index]
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a batch of {len(self)}")
        index %= len(self)
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        if self.shape is None:
            return self.data.reshape(-1)[start:end]
        if None in self.shape:
            return self.data.reshape(-1, *cast(tuple[int, ...], self.shape[1:]))[start:end]
        if start == end:
            raise InvalidArgument(f"sample {index} of the batch does not have the field")
        return self.data[start]

    def pin_memory(self, device: Any = None) -> TensorBatch:
        """The same in page-locked memory; tensors on a device stay there."""
        return self._each(lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor)

    def to(self, device: Any, non_blocking: bool = False) -> TensorBatch:
        """The same on `device`."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._data is not None and self._data.dtype in _SIGNED:
            # Outside its own queues, torch cannot pickle tensors of these types.
            state["_data"] = self._data.view(_SIGNED[self._data.dtype])
            state["_dtype"] = str(self._data.dtype).removeprefix("torch.")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        dtype = state.pop("_dtype", None)
        self.__dict__.update(state)
        if self._data is not None and dtype is not None:
            self._data = _as(self._data, dtype)

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> TensorBatch:
        def moved(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else change(tensor)

        fields = {name: field._each(change) for name, field in self.fields.items()}
        data, offsets, labels = moved(self._data), moved(self._offsets), moved(self.labels)
        sources = moved(self.sources)
        columns = {name: change(column) for name, column in self.columns.items()}
        ids = change(self.ids)
        return TensorBatch(
            data, offsets, ids, labels, self.epoch, fields, sources, columns, self.shape
        )


def _typed(
    data: torch.Tensor, offsets: torch.Tensor, kind: FieldType, equal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes of a field with a type as a tensor of its elements, and the offsets of bytes as offsets of rows."""
    elements = _as(data, kind.dtype) if len(data) else torch.empty(0, dtype=getattr(torch, kind.dtype))
    free = None in kind.shape
    row = [length for length in kind.shape if length is not None]
    each = math.prod(row) * elements.element_size()
    offsets = offsets // each
    count = len(offsets) - 1
    if free and equal:
        return elements.reshape(count, int(offsets[1]), *row), offsets
    return elements.reshape(int(offsets[-1]), *row), offsets
