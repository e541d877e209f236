"""dlfs for torch.utils.data.

    loader = DataLoader(dlfs.torch.IterableDataset(ds, 256, transform=decode), batch_size=None)

reads through dlfs.Loader, whose native threads need no worker processes; workers, if there are any,
share the epoch and serve to decode. Where something else chooses the samples:

    data = dlfs.torch.Dataset(ds, transform=decode)
    loader = DataLoader(data, batch_sampler=dlfs.torch.BatchSampler(ds, 256), num_workers=2)

Rank and world size are those of torch.distributed where that is initialised when an epoch begins, unless
they are given. What shares data out by itself, as Accelerate's prepare() does, wants rank=0, world_size=1.
All of it works with fork, spawn and forkserver, and keeps its place in a StatefulDataLoader.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed
import torch.utils.data

from . import Batch, IndexOutOfRange, InvalidArgument, Loader, Order
from . import Dataset as _Dataset
from ._dlfs import Sampler as _Ids

__all__ = ["BatchSampler", "Dataset", "IterableDataset", "Sampler", "TensorBatch", "tensor"]


def tensor(view: memoryview) -> torch.Tensor:
    """A sample's bytes as a tensor uint8[L] over the same memory. Do not write to it."""
    if len(view) == 0:
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():
        # torch has no read-only tensors, and says so each time.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(view, dtype=torch.uint8)


class TensorBatch:
    """A batch as tensors of its own: it may be moved, pinned, and sent between processes.

    data     uint8[B, L] where lengths are equal, else uint8[sum of lengths]
    offsets  int64[B + 1], where each sample begins in the flat data
    ids      int64[B]
    labels   int64[B] or None
    """

    def __init__(
        self,
        data: torch.Tensor,
        offsets: torch.Tensor,
        ids: torch.Tensor,
        labels: torch.Tensor | None,
        epoch: int = 0,
    ) -> None:
        self.data, self.offsets, self.ids, self.labels = data, offsets, ids, labels
        self.epoch = epoch

    @classmethod
    def of(cls, batch: Batch) -> TensorBatch:
        """Copies `batch` into tensors, once."""
        offsets = torch.from_numpy(batch.offsets.copy())
        lengths = offsets.diff()
        data = torch.empty(int(offsets[-1]), dtype=torch.uint8)
        data.numpy()[:] = batch.data
        if len(lengths) and bool((lengths == lengths[0]).all()):
            data = data.reshape(len(lengths), int(lengths[0]))
        labels = batch.labels
        return cls(
            data,
            offsets,
            torch.from_numpy(batch.ids.copy()),
            None if labels is None else torch.from_numpy(labels.copy()),
            batch.epoch,
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> torch.Tensor:
        """The bytes of one sample: uint8[L]."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a batch of {len(self)}")
        index %= len(self)
        return self.data.reshape(-1)[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def pin_memory(self, device: Any = None) -> TensorBatch:
        """The same in page-locked memory."""
        return self._each(lambda tensor: tensor.pin_memory())

    def to(self, device: Any, non_blocking: bool = False) -> TensorBatch:
        """The same on `device`."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> TensorBatch:
        labels = None if self.labels is None else change(self.labels)
        return TensorBatch(
            change(self.data), change(self.offsets), change(self.ids), labels, self.epoch
        )


class Dataset(torch.utils.data.Dataset[Any]):
    """A map-style data set over what dlfs.open returned; a batch of indices is read at once.

    An item is transform(view, label): `view` a read-only memoryview of the sample's bytes, `label` an
    int or None. Without a transform it is (uint8[L], label).
    """

    def __init__(
        self,
        dataset: _Dataset,
        transform: Callable[[memoryview, int | None], Any] | None = None,
    ) -> None:
        self.dataset, self.transform = dataset, transform or _plain
        # Indices count the samples there are; ids have gaps where samples were deleted.
        labels, ids = dataset.labels, dataset.ids
        whole = len(ids) == 0 or int(ids[-1]) == len(ids) - 1
        self._ids = None if whole else ids
        self._has_labels = labels is not None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexOutOfRange(f"there is no sample {index}: the data set has {len(self)}")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The items at `indices`, whose bytes are read as one batch."""
        if self._ids is not None:
            indices = self._ids[list(indices)].tolist()
        batch = self.dataset.read_batch(indices)
        labels = batch.labels
        given = [None] * len(batch) if labels is None else labels.tolist()
        return [self.transform(view, label) for view, label in zip(batch.tolist(), given)]


def _plain(view: memoryview, label: int | None) -> tuple[torch.Tensor, int | None]:
    # A tensor of its own: what DataLoader collates and sends must outlive the batch's memory.
    return tensor(view).clone(), label


class IterableDataset(torch.utils.data.IterableDataset[Any]):
    """Shuffled batches of a dlfs.Loader, for DataLoader(..., batch_size=None).

    An item is transform(batch), `batch` a dlfs.Batch; without a transform it is the Batch itself, or a
    TensorBatch where a worker process has to send it. `options` are those of dlfs.Loader. With N
    workers each takes every N-th sample of this rank's share.

    set_epoch, state_dict and load_state_dict are those of the Loader, and reach worker processes at
    their next epoch, also persistent ones. Without set_epoch persistent workers, and a DataLoader
    without workers, go from one epoch to the next; workers that are started anew for each epoch begin
    with the same one each time. What workers have read is theirs to tell: StatefulDataLoader asks them.
    """

    def __init__(
        self,
        dataset: _Dataset,
        batch_size: int,
        order: Order = "grouped",
        *,
        transform: Callable[[Batch], Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        self.dataset, self.transform = dataset, transform
        self._options = {**options, "batch_size": batch_size, "order": order}
        self._given = (rank, world_size)
        # Rank, world size, worker and workers that the loader is for.
        self._place = (*_place(*self._given), 0, 1)
        self._loader = self._make(self._place)  # refuses what cannot be now, not in a worker
        # How often the run was moved from outside, to which epoch, and behind how many samples of it:
        # in shared memory, where workers look at the begin of each epoch.
        self._moves = _share(torch.zeros(3, dtype=torch.int64))
        self._followed = 0
        self._resumed: int | None = None

    def _make(self, place: tuple[int, int, int, int]) -> Loader:
        rank, world_size, worker, workers = place
        return Loader(
            self.dataset,
            rank=worker * world_size + rank,
            world_size=world_size * workers,
            **self._options,
        )

    def _current(self) -> Loader:
        """The loader of this process, which takes its worker's share of the rank's."""
        info = torch.utils.data.get_worker_info()
        share = (0, 1) if info is None else (info.id, info.num_workers)
        place = (*_place(*self._given), *share)
        if place != self._place:
            self._loader, self._place, self._followed = self._make(place), place, 0
        moves, epoch, consumed = self._moves.tolist()
        if moves != self._followed:
            moved = {"epoch": epoch, "consumed": consumed}
            self._loader.load_state_dict({**self._loader.state_dict(), **moved})
        self._followed = moves
        return self._loader

    def prepare(self) -> None:
        """Has the memory for what is read ahead made in the background, as Loader.prepare: for a DataLoader
        without workers, before a model is built. Who iterates does it too, in the process that reads."""
        self._current().prepare()

    def __iter__(self) -> Iterator[Any]:
        self.prepare()
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        # The place is looked up with the first batch: StatefulDataLoader loads states in between.
        loader = self._current()
        self._resumed = None
        for batch in loader:
            if self.transform is not None:
                yield self.transform(batch)
            elif torch.utils.data.get_worker_info() is not None:
                yield TensorBatch.of(batch)
            else:
                yield batch

    def num_batches(self, workers: int = 0) -> int:
        """Batches of an epoch on this rank with so many worker processes.

        There is no len: it could not know the workers, each of which may end with a short batch, and a
        trainer that believed it would leave out the last ones.
        """
        count, place = max(workers, 1), _place(*self._given)
        return sum(len(self._make((*place, worker, count))) for worker in range(count))

    def set_epoch(self, epoch: int) -> None:
        """Goes to the begin of `epoch` at the next iteration, in worker processes too. Right after
        load_state_dict, the epoch of the state goes on where the state says."""
        if epoch != self._resumed:
            self._move(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where this process stands."""
        return self._current().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` says, at the next iteration. Raises what Loader.load_state_dict does."""
        loader = self._current()
        loader.load_state_dict(state)
        if torch.utils.data.get_worker_info() is not None:
            return  # a StatefulDataLoader gives each worker its own
        place = loader.state_dict()
        self._move(place["epoch"], place["consumed"])
        self._resumed = place["epoch"]

    def _move(self, epoch: int, consumed: int) -> None:
        if epoch < 0:
            raise InvalidArgument(f"there is no epoch {epoch}")
        self._moves.copy_(torch.tensor([int(self._moves[0]) + 1, epoch, consumed]))
        self._resumed = None

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is spawned knows nothing of torch.distributed.
        return {**self.__dict__, "_given": _place(*self._given)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _share(self._moves)  # a plain copy, as of pickle alone, has workers of its own


class BatchSampler(torch.utils.data.Sampler[list[int]]):
    """Lists of indices along an order of dlfs, for DataLoader(batch_sampler=...).

    `options` are order, seed, lanes, group, drop_last and pad of dlfs.Loader. Iterating goes through one
    epoch, or what is left of it, and on to the next. The state counts what was drawn; a DataLoader with
    workers draws ahead, so take the state from StatefulDataLoader there.
    """

    def __init__(
        self,
        dataset: _Dataset,
        batch_size: int,
        order: Order = "global",
        *,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        self._made = (dataset, {**options, "batch_size": batch_size, "order": order})
        self._given = (rank, world_size)
        self._place = _place(rank, world_size)
        self._ids = self._make()
        self._resumed = False

    def _make(self) -> _Ids:
        dataset, options = self._made
        rank, world_size = self._place
        return _Ids(dataset, rank=rank, world_size=world_size, **options)

    def _current(self) -> _Ids:
        """The order, for the place that torch.distributed may have given this process since."""
        place = _place(*self._given)
        if place != self._place:
            self._place, before = place, self._ids.state_dict()
            self._ids = self._make()
            if before["epoch"] or before["consumed"]:
                self._ids.load_state_dict(before)
        return self._ids

    def __len__(self) -> int:
        return self._current().batches_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        self._resumed = False
        epoch = self._current().epoch
        while self._ids.epoch == epoch:
            drawn = self._ids.next()
            if drawn is None:
                break
            yield drawn[0]
            if drawn[1]:
                break

    def set_epoch(self, epoch: int) -> None:
        """Goes to the begin of `epoch`; right after load_state_dict, that epoch goes on."""
        if not (self._resumed and epoch == self._ids.epoch):
            self._ids.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the order stands, behind the batches drawn."""
        return self._ids.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` says. Raises what Loader.load_state_dict does."""
        self._ids.load_state_dict(state)
        self._resumed = True

    def __getstate__(self) -> dict[str, Any]:
        state = self._current().state_dict()
        return {"made": self._made, "place": self._place, "state": state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._made, self._place = state["made"], state["place"]
        self._given = self._place
        self._ids = self._make()
        self.load_state_dict(state["state"])


class Sampler(torch.utils.data.Sampler[int]):
    """Indices along an order of dlfs, for DataLoader(sampler=...); otherwise as BatchSampler."""

    def __init__(
        self,
        dataset: _Dataset,
        order: Order = "global",
        *,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        self._batches = BatchSampler(
            dataset, 1, order, rank=rank, world_size=world_size, **options
        )

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[int]:
        for (index,) in self._batches:
            yield index

    def set_epoch(self, epoch: int) -> None:
        """As BatchSampler.set_epoch."""
        self._batches.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """As BatchSampler.state_dict."""
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As BatchSampler.load_state_dict."""
        self._batches.load_state_dict(state)


# torch has no types for it.
_share: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.share_memory_


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, else torch.distributed's, else alone."""
    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if rank is None:
        rank = torch.distributed.get_rank() if group else 0
    if world_size is None:
        world_size = torch.distributed.get_world_size() if group else 1
    return rank, world_size
