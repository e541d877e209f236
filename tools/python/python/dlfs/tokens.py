"""dlfs.tokens: documents of tokens, packed into arrays of equal length for a language model.

    loader = dlfs.tokens.Loader(ds, seq_len=4096, batch_size=8, separator=50256, seed=7)
    for rows in loader:
        rows = rows.torch()
        loss = cross_entropy(model(rows.tokens), rows.labels)

A sample is a document: its bytes, or one of its fields, are tokens of type u8, u16, u32 or i32. Native threads read
documents ahead and write their tokens into numpy arrays, without the interpreter.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar, Unpack

import numpy
from numpy.typing import NDArray

from . import (
    Dataset,
    DeviceArray,
    InvalidArgument,
    Mixture,
    _check,
    _data_place,
    _given,
    _launched,
    _peerless,
    _warn_of_launcher,
)
from ._dlfs import TokenLoader as _TokenLoader
from ._options import Address, OrderName, TokenLoading

__all__ = ["Loader", "Rows"]

Array = TypeVar("Array")


@dataclasses.dataclass(frozen=True, eq=False)
class Rows(Generic[Array]):
    """A batch of B rows of L tokens. Arrays are [B, L], but for cu_seqlens; those not asked for are None.

    With pack="none" L is the length that the longest row of all ranks' batches needs, rounded up to a power of two or
    halfway to one, and at most seq_len. In a phase, B and L are those of the phase.

    tokens           the inputs, of the loader's dtype
    labels           for each input the token after it. Both are views of one array [B, L + 1]
    segment_ids      int32: the number of the input's document within its row, from 1; 0 for padding
    position_ids     int32: the number of the input within its segment, from 0; 0 for padding
    loss_mask        bool: True for labels to learn from. False for padding, where the loss field has 0, and, unless
                     documents lie end to end, for the first token of a document, which nothing before it predicts
    sample_ids       int64: the sample of the input; -1 for padding
    cu_seqlens       int32: the starts of segments and paddings in the flattened inputs, and their end, for
                     variable-length attention
    max_seqlen       the longest of these, if there are cu_seqlens
    epoch            the epoch of the rows

    Any consumer of DLPack takes the arrays. They are used again once nothing references them, a view or a tensor
    included: arrays that the program keeps do not change.

    With the loader's option `device`, the arrays are dlfs.DeviceArray on that device, which torch() makes tensors of.
    With cp_zigzag these are [B, 2, L / 2] until then.
    """

    tokens: Array
    labels: Array
    segment_ids: Array | None
    position_ids: Array | None
    loss_mask: Array | None
    sample_ids: Array | None
    cu_seqlens: Array | None
    max_seqlen: int | None
    epoch: int

    def torch(self) -> Rows[Any]:
        """The same with tensors of torch over the same memory."""
        return self._each(tensor)

    def to(self, device: Any, **options: Any) -> Rows[Any]:
        """The same with tensors on a device of torch; the options are torch.Tensor.to's. Lightning and Accelerate call
        it."""
        import torch

        return self.torch()._each(lambda value: value.to(device, **options) if torch.is_tensor(value) else value)

    def _each(self, of: Callable[[Any], Any]) -> Rows[Any]:
        return Rows(**{field.name: of(getattr(self, field.name)) for field in dataclasses.fields(self)})


def tensor(value: Any) -> Any:
    """A tensor over the memory of an array, of the host or of a device; any other value as it is.

    Chunks of cp_zigzag on a device are joined, which copies them.
    """
    import torch
    import torch.utils.dlpack

    if isinstance(value, numpy.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, DeviceArray):
        on_device = torch.utils.dlpack.from_dlpack(value)
        return on_device.flatten(1) if on_device.ndim > 2 else on_device
    return value


class Loader(_TokenLoader):
    """Rows of tokens along an order: `for rows in loader` reads one epoch.

    source           a data set that dlfs.open returned, or a dlfs.Mixture of several
    seq_len          L, the tokens of a row. A row takes L + 1 tokens of documents, since labels are one ahead
    batch_size       B, the rows of a batch on this rank
    order            the order of documents, as of dlfs.Loader
    pack             how documents fill rows. "concat": end to end, cut wherever a row ends, without padding; rows
                     share a token at their ends, so each token is a label once. "best_fit": whole, each into the row
                     with the least room for it; "none": one document a row, and those of similar lengths side by
                     side, in arrays that are only as wide as they need
    pack_window      best_fit and none: the documents that are packed together [default: 16384]
    separator        a token that is put behind each document. None: none
    too_long         what to do with a document of more than L + 1 tokens, unless pack is concat: "cut" it into pieces,
                     or "raise" an error before the first batch
    field            the field of tokens, if samples have several. If it has no type: "NAME:u16", or "u16" alone if
                     samples have one field without a name
    lengths          a column of ints with the number of tokens of each document. None: the bytes say it
    loss_mask        True: give Rows.loss_mask; the name of a field: that field has a byte for each token, 0 for those
                     that are not learned from
    dtype            the type of the arrays of tokens: "i64", "i32", "u32" or "u16"
    pad              the token of padding
    vocabulary       the number of tokens: a larger one in the data is an error. None: any
    tokenizer        the file of the tokenizer that made the tokens, with the hash that dlfs.import_(tokenizer=...) has
                     kept: others are refused. None: any, but one of all sources
    phases           phases of each epoch, ascending: pairs of a number of tokens and what rows have from there on, such
                     as (10**12, {"seq_len": 32768, "batch_size": 4}); batch_size may be left out. Each row counts its
                     seq_len as tokens. Unless pack is concat, a phase begins with the next pack_window. A run that
                     resumes may have other phases after those that it has reached
    segment_ids, position_ids, cu_seqlens, sample_ids
                     True: give these arrays
    cp_rank, cp_size this rank of context parallelism, and their number: arrays have its L / cp_size columns of each
                     row, and all these ranks have one data_rank
    cp_zigzag        give a rank parts cp_rank and 2 * cp_size - 1 - cp_rank of 2 * cp_size, which balances causal
                     attention
    rank, world_size, data_rank, data_world_size
                     as of dlfs.Loader: this process among those that share each epoch
    options          dlfs._options.TokenLoading: seed, epochs, window, peers, node_loader and others, as of dlfs.Loader

    Each global batch is the next rows of the epoch, rank r the r-th batch_size of them; rows that fill no global batch
    at the end of an epoch are dropped. Rows depend on order, seed, epoch and lengths alone, so a state resumes with any
    world size and batch size, but with the same seq_len, pack and separator. It has the place in the order from which
    the run goes on at once; without its "place", the run first looks at all lengths before.

    Each `for` reads one epoch from its start: the next epoch if the last one was completed, otherwise the same one
    again; right after load_state_dict, it resumes from the state. Threads may share one iterator; once another one has
    begun, it raises InvalidArgument. Documents that cannot be read raise an error, and so do those whose tokens the
    vocabulary or the dtype does not have. Worker processes of torch's DataLoader are refused, since each would read
    all rows: native threads read ahead, and dlfs.tokens_for.megatron_dataset has rows by index.
    """

    def __new__(
        cls,
        source: Dataset | Mixture,
        seq_len: int,
        batch_size: int,
        order: OrderName = "grouped",
        *,
        pack: Literal["concat", "best_fit", "none"] = "concat",
        pack_window: int | None = None,
        separator: int | None = None,
        too_long: Literal["cut", "raise"] = "cut",
        field: str | None = None,
        lengths: str | None = None,
        loss_mask: bool | str = False,
        dtype: Literal["i64", "i32", "u32", "u16"] = "i64",
        pad: int = 0,
        vocabulary: int | None = None,
        tokenizer: Address | None = None,
        phases: Iterable[tuple[int, Mapping[str, int]]] = (),
        segment_ids: bool = False,
        position_ids: bool = False,
        cu_seqlens: bool = False,
        sample_ids: bool = False,
        cp_rank: int = 0,
        cp_size: int = 1,
        cp_zigzag: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        data_rank: int | None = None,
        data_world_size: int | None = None,
        **options: Unpack[TokenLoading],
    ) -> Self:
        _check("Loader", options, TokenLoading)
        given = _given(options)
        is_data_place = data_rank is not None or data_world_size is not None
        if rank is None and world_size is None and given.get("node_loader"):
            rank, world_size = _launched()
        if rank is None and world_size in (None, 1) and not is_data_place and "peers" not in given:
            _warn_of_launcher()
        rows = {
            "seq_len": seq_len,
            "pack": pack,
            "pack_window": pack_window,
            "separator": separator,
            "too_long": too_long,
            "field": field,
            "lengths": lengths,
            "loss_field": loss_mask if isinstance(loss_mask, str) else None,
            "pad": pad,
            "vocabulary": vocabulary,
            "tokenizer": None if tokenizer is None else os.fspath(tokenizer),
            "phases": [_phase(start, given) for start, given in phases],
        }
        arrays = {
            "dtype": dtype,
            "segment_ids": segment_ids,
            "position_ids": position_ids,
            "loss_mask": bool(loss_mask),
            "cu_seqlens": cu_seqlens,
            "sample_ids": sample_ids,
            "cp_rank": cp_rank,
            "cp_size": cp_size,
            "cp_zigzag": cp_zigzag,
        }
        given |= {"order": order, "batch_size": batch_size}
        given |= {"rank": rank or 0, "world_size": 1 if world_size is None else world_size}
        if "peers" in given:
            cls._join(_peerless(source), rows, given)
        if is_data_place:
            given |= zip(("rank", "world_size"), _data_place(data_rank, data_world_size, None))
        return cls._make(source, rows, arrays, given)

    @classmethod
    def _make(cls, *made_of: Any) -> Self:
        source, rows, arrays, options = made_of
        made = super().__new__(cls, source, rows, arrays, **options)
        made._made_of, made._process = made_of, os.getpid()
        return made

    _made_of: tuple[Any, ...]
    # The process that made it, unless it was unpickled.
    _process: int | None

    def __iter__(self) -> Iterator[Rows[NDArray[Any]]]:
        data = sys.modules.get("torch.utils.data")
        if self._process != os.getpid() and data is not None and data.get_worker_info() is not None:
            raise InvalidArgument(_IN_WORKERS)
        return _Epoch(self)

    # DataLoader takes everything that is no IterableDataset for a data set by index, and calls this.
    def __getitem__(self, index: Any) -> NoReturn:
        raise InvalidArgument(f"rows have no index here, and need no DataLoader: `for rows in loader`. {_BY_INDEX}")

    # Makes a batch of the arrays that the library has filled; the loaders of dlfs.tokens_for make other batches.
    def _batch(self, arrays: list[Any], starts: tuple[Any, int] | None, epoch: int) -> Any:
        return _rows(arrays, starts, epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickling makes the loader anew and resumes from its state."""
        return _remake, (type(self), self._made_of, self.state_dict())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


def _remake(kind: type[Loader], made_of: tuple[Any, ...], state: Mapping[str, Any]) -> Loader:
    loader = kind._make(*made_of)
    loader._process = None
    loader.load_state_dict(state)
    return loader


def _phase(start: int, given: Mapping[str, int]) -> str:
    return f"{int(start)}:{','.join(f'{name}={value}' for name, value in given.items())}"


_BY_INDEX = "dlfs.tokens_for.megatron_dataset has rows by index, for workers"
_IN_WORKERS = (
    f"each worker would read all rows: set num_workers=0, since native threads read ahead. {_BY_INDEX}; or make a "
    "loader in each worker, with a rank of its own"
)


class _Epoch(Iterator[Any]):
    """An iterator over one epoch, which threads may share."""

    def __init__(self, loader: Loader) -> None:
        self._loader, self._iteration = loader, loader._begin()

    def __next__(self) -> Any:
        taken = self._loader._take(self._iteration)
        if taken is None:
            raise StopIteration
        return self._loader._batch(*taken)


def _rows(arrays: list[Any], starts: tuple[Any, int] | None, epoch: int) -> Rows[Any]:
    tokens, segment_ids, position_ids, loss_mask, sample_ids = arrays
    cu_seqlens, max_seqlen = starts or (None, None)
    if isinstance(loss_mask, numpy.ndarray):
        loss_mask = loss_mask.view(bool)
    return Rows(
        _cut(tokens, _INPUTS),
        _cut(tokens, _LABELS),
        _cut(segment_ids, _INPUTS),
        _cut(position_ids, _INPUTS),
        _cut(loss_mask, _LABELS),
        _cut(sample_ids, _INPUTS),
        numpy.frombuffer(cu_seqlens, "i4") if isinstance(cu_seqlens, bytearray) else cu_seqlens,
        max_seqlen,
        epoch,
    )


# An array of the library is [B, chunks, columns], with one column more in each chunk than there are inputs.
_INPUTS, _LABELS = slice(None, -1), slice(1, None)


def _cut(array: Any, columns: slice) -> Any:
    """These columns of each chunk as [B, columns]: a view if there is one chunk, else a copy."""
    if isinstance(array, DeviceArray):
        return array._columns(columns.start or 0)
    return None if array is None else array[:, :, columns].reshape(len(array), -1)
