"""Samplers for torch.utils.data in the orders of dlfs. Programs import them from dlfs.torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import torch.utils.data

from . import Dataset as _Dataset
from . import InvalidArgument, Ordering, _check, _given
from ._dlfs import Sampler as _Ids
from ._options import OrderName
from ._ranks import place_of, warn_unequal
if TYPE_CHECKING:
    from ._map_style import Dataset as _MapStyleDataset


class BatchSampler(torch.utils.data.Sampler[list[int]]):
    """Lists of indices in an order of dlfs, for DataLoader(batch_sampler=...).

    `dataset` is the data set or part whose indices are drawn, or a dlfs.torch.Dataset of it.

    The options are dlfs.Ordering: those options of dlfs.Loader that define the order. Each iterator covers the
    epoch independently, from its start or, right after load_state_dict, from the state; once an iterator has
    ended, the next one covers the next epoch. The state is that of the newest iterator and counts the
    indices drawn. torch's DataLoader with workers draws ahead: take the state from dlfs.torch.DataLoader, or from
    StatefulDataLoader.
    """

    def __init__(
        self,
        dataset: _Dataset | _MapStyleDataset,
        batch_size: int | None = None,
        order: OrderName = "global",
        *,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Unpack[Ordering],
    ) -> None:
        from ._map_style import Dataset as MapStyle  # which imports this module

        _check("BatchSampler", options, Ordering)
        of = dataset.dataset if isinstance(dataset, MapStyle) else dataset
        self._made = (of, {**_given(options), "batch_size": batch_size, "order": order})
        self._given = (rank, world_size)
        self._warned = False
        self._place = place_of(rank, world_size)
        self._ids = self._make(self._place)
        # True once a state was loaded: the order is then that of the state.
        self._has_loaded = False
        # Calls of set_epoch and load_state_dict, by which dlfs.torch.DataLoader sees that the sampler was moved.
        self.moves = 0
        self._begin_at(self._ids.state_dict())

    def _begin_at(self, state: dict[str, Any]) -> None:
        """Sets the state in which the next iterator begins."""
        self._start, self._resumed = state, False
        self._newest: _Ids | None = None

    def _make(self, place: tuple[int, int]) -> _Ids:
        dataset, options = self._made
        rank, world_size = place
        return _Ids(dataset, rank=rank, world_size=world_size, **options)

    def _follow_rank(self) -> None:
        """Draws for the rank and world size that torch.distributed has assigned since. The order may depend on the
        world size; that of a loaded state stays."""
        place = place_of(*self._given)
        if place == self._place or self._has_loaded:
            return
        ids = self._make(place)
        ids.set_epoch(self._start["epoch"])  # nothing else was consumed without a loaded state
        self._ids, self._place, self._start = ids, place, ids.state_dict()
        self.moves += 1

    def __len__(self) -> int:
        # torch.distributed may have assigned a rank to this process since construction.
        ids = self._make(place_of(*self._given))
        if self._made[1].get("batch_tokens") is not None:  # each epoch has a number of its own
            if self._has_loaded:
                ids.load_state_dict({**self._start, "consumed": 0})
            else:
                ids.set_epoch(self._start["epoch"])
        return ids.batches_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        return self.drawn()

    # For dlfs.torch.DataLoader.

    def drawn(self) -> Drawn:
        """An iterator whose `place` has its state."""
        return Drawn(self)

    def _is_of(self, dataset: _Dataset) -> bool:
        """Whether the indices are those of `dataset`."""
        return bool(_samples_of(self._made[0]) == _samples_of(dataset))

    def next_place(self) -> dict[str, Any]:
        """The state in which the next iterator begins."""
        return dict(self._start)

    @property
    def seed(self) -> int:
        return int(self._made[1].get("seed", 0))

    @property
    def epochs(self) -> int:
        return self._made[1].get("epochs") or sys.maxsize

    def _begin(self) -> _Ids:
        """Begins the next iterator: its order, from the state in which it begins."""
        self._follow_rank()
        place = place_of(*self._given)
        self._newest = ids = self._make(place)
        ids.load_state_dict(self._start)
        if not self._warned:
            self._warned = warn_unequal(self._batches_left, place, self._made[1])
        # A loaded state applies to one iterator.
        self._start, self._resumed = {**self._start, "consumed": 0}, False
        return ids

    def _batches_left(self, rank: int) -> int:
        ids = self._make((rank, place_of(*self._given)[1]))
        ids.load_state_dict(self._start)
        return ids.batches_left

    def _end(self, epoch: int) -> None:
        """An iterator has drawn the last batch of `epoch`."""
        if self._start["epoch"] == epoch:
            self._start = {**self._start, "epoch": epoch + 1, "consumed": 0}

    def set_epoch(self, epoch: int) -> None:
        """The next iterator begins with `epoch`; right after load_state_dict, it resumes that epoch."""
        self._follow_rank()
        if not (self._resumed and epoch == self._start["epoch"]):
            self._ids.set_epoch(epoch)
            self._begin_at(self._ids.state_dict())
        self.moves += 1

    def state_dict(self) -> dict[str, Any]:
        """The state of the newest iterator, after the batches drawn."""
        if self._newest is not None:
            return self._newest.state_dict()
        self._follow_rank()
        return dict(self._start)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iterator resumes from `state`. Raises the errors of Loader.load_state_dict."""
        self._move_to(state)
        self._has_loaded = True

    def _move_to(self, state: Mapping[str, Any]) -> None:
        """Loads a state, which may be this sampler's own."""
        place = place_of(*self._given)
        ids = self._ids if place == self._place else self._make(place)
        ids.load_state_dict(state)
        self._ids, self._place = ids, place
        self._begin_at(ids.state_dict())
        self._resumed = True
        self.moves += 1

    def __getstate__(self) -> dict[str, Any]:
        place = place_of(*self._given)
        return {"made": self._made, "place": place, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        (dataset, options), (rank, world_size) = state["made"], state["place"]
        self.__init__(dataset, rank=rank, world_size=world_size, **options)  # type: ignore[misc]
        self.load_state_dict(state["state"])


class Indices(list[int]):
    """The indices of a batch, with the seed and the epoch, which a dlfs.torch.Dataset needs also in workers."""

    seed: int
    epoch: int


class Drawn(Iterator[list[int]]):
    """One iteration of a BatchSampler, with its own position in the order."""

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler
        self._ids: _Ids | None = None
        self._ended = False

    def __next__(self) -> list[int]:
        if self._ended:
            raise StopIteration
        if self._ids is None:
            self._ids = self._sampler._begin()
        epoch = self._ids.epoch
        drawn = self._ids.next() if self._ids.has_batches_left else ([], True)
        if drawn is None:  # after the last epoch
            self._ended = True
            raise StopIteration
        indices, ends_epoch = drawn
        if ends_epoch:
            self._ended = True
            self._sampler._end(epoch)
        if not indices:  # this rank has no more samples in the epoch
            raise StopIteration
        batch = Indices(indices)
        batch.seed, batch.epoch = self._sampler.seed, epoch
        return batch

    def place(self) -> tuple[dict[str, Any], bool]:
        """The state of this iterator, and whether this rank has drawn all batches of the epoch."""
        assert self._ids is not None, "it has drawn"
        return self._ids.state_dict(), self._ended or not self._ids.has_batches_left

    def state_dict(self) -> dict[str, Any]:
        """For StatefulDataLoader, which loads the sampler's state, too."""
        return {"ended": self._ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._ended = bool(state["ended"])


class Sampler(torch.utils.data.Sampler[int]):
    """Indices in an order of dlfs, for DataLoader(sampler=...); otherwise like BatchSampler.

    A Sampler does not know the batches, so its shares are strided; with another shard it raises InvalidArgument.
    """

    def __init__(
        self,
        dataset: _Dataset,
        order: OrderName = "global",
        *,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Unpack[Ordering],
    ) -> None:
        shard = options.get("shard")
        if shard in ("aligned", "local"):
            raise InvalidArgument(
                f"{shard} shares are parts of global batches, which a Sampler does not know: take "
                f'BatchSampler(..., shard="{shard}"), or shard="strided"'
            )
        self._batches = BatchSampler(
            dataset, 1, order, rank=rank, world_size=world_size, **options
        )

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[int]:
        return _DrawnSingly(Drawn(self._batches))

    def set_epoch(self, epoch: int) -> None:
        """As BatchSampler's."""
        self._batches.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """As BatchSampler's."""
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As BatchSampler's."""
        self._batches.load_state_dict(state)


class _DrawnSingly(Iterator[int]):
    """One iteration of a Sampler: batches of one index, without the lists."""

    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn
        self.state_dict, self.load_state_dict = drawn.state_dict, drawn.load_state_dict

    def __next__(self) -> int:
        return next(self._drawn)[0]


def _samples_of(dataset: Any) -> Any:
    """Equal for two objects of the same samples."""
    if not isinstance(dataset, _Dataset):
        return id(dataset)
    return dataset.uuid, dataset.generation, dataset.view
