"""A DataLoader for torch whose state counts the batches that the training loop has had, with any number of workers.

N worker processes read in rounds of N batches, one batch each, in the order of their numbers. So after k batches a loop
has had k // N whole rounds, and the batches of the first k % N workers of the next round. A state within a round has
the number of samples of the round that the loop has had. A run that resumes from it, with any workers, ranks or batch
size, first reads the rest of that round in the main process, and then reads whole rounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch.utils.data
import torch.utils.data._utils.pin_memory

from . import Batch, InvalidArgument, Unsupported
from ._dlfs import Sampler as _Ids
from ._drawn import MapStyle
from ._map_style import Dataset as _MapStyleDataset
from ._sampler import BatchSampler
from ._stateful import alone, of_workers

if TYPE_CHECKING:
    from .torch import IterableDataset


# torch does not annotate this function.
_pin: Callable[[Any], Any] = torch.utils.data._utils.pin_memory.pin_memory


class Round(NamedTuple):
    """The division of a round among workers and ranks. `had`: samples of the round that all ranks together have had."""

    workers: int
    world_size: int
    batch_size: int
    shard: str | None
    had: int


class Place(NamedTuple):
    """The position of a run: a state between two rounds, and, if the run is within the round after it, that round."""

    state: dict[str, Any]
    round: Round | None

    def to_dict(self) -> dict[str, Any]:
        if self.round is None:
            return dict(self.state)
        return {"version": 1, "before": dict(self.state), "round": self.round._asdict()}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Place:
        """The place that `state` describes. Raises InvalidArgument if it is not a state of a DataLoader."""
        if "round" not in state:
            return cls(dict(state), None)
        try:
            round = Round(**state["round"])
            before = dict(state["before"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(f"this is not a state of dlfs.torch.DataLoader: {error}") from None
        numbers = (round.workers, round.world_size, round.batch_size, round.had)
        is_sound = all(isinstance(n, int) and n > 0 for n in numbers)
        if not is_sound or round.had >= round.workers * round.world_size * round.batch_size:
            raise InvalidArgument(f"this is not a state of dlfs.torch.DataLoader: its round is {round}")
        return cls(before, round)


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader over a dlfs.torch.IterableDataset, with states that count the batches that the loop has had.

        loader = dlfs.torch.DataLoader(dlfs.torch.IterableDataset(ds, 256, transform=decode), num_workers=3)
        for batch in loader: ...
        saved = loader.state_dict()       # also with workers, whatever they have read ahead

    Each `for` reads one epoch from its start: the next one if the last one was completed, otherwise the same one
    again; right after load_state_dict, it resumes. That holds for workers that are started for each epoch, too. A
    state can be loaded with another number of workers, batch size or world size, and so can a state of torchdata's
    StatefulDataLoader over the same data set. If a state is from within a round of workers, the rest of that round is
    read in this process, with the transform, before workers go on.

    A map-style data set takes a dlfs.torch.BatchSampler:

        items = dlfs.torch.Dataset(ds, transform=decode)
        loader = dlfs.torch.DataLoader(items, batch_sampler=dlfs.torch.BatchSampler(ds, 256), num_workers=3)

    The loader's state is then that of the sampler after the batches that the loop has had, not after those drawn ahead.
    Any number of workers goes on from it, at any batch, and so does the sampler alone.

    len() is the number of batches of a whole epoch; with batches by tokens, where epochs differ, of the current or next
    epoch. Other options are torch's.
    """

    dataset: IterableDataset  # or a map-style data set, whose methods this class does not call

    def __init__(
        self,
        dataset: IterableDataset | torch.utils.data.Dataset[Any],
        *,
        batch_sampler: BatchSampler | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        **others: Any,
    ) -> None:
        from .torch import IterableDataset

        if others:
            raise TypeError(
                f"DataLoader() takes no {', '.join(others)}: batches are those of the IterableDataset, or of a "
                "batch_sampler: dlfs.torch.DataLoader(items, batch_sampler=dlfs.torch.BatchSampler(ds, 32, seed=7)). "
                "torch's own DataLoader reads a dlfs.torch.Dataset in torch's orders"
            )
        # Set for a map-style data set: the draws of its sampler.
        self._map: MapStyle | None = None
        kind = type(dataset).__qualname__
        if isinstance(dataset, IterableDataset):
            if batch_sampler is not None:
                raise TypeError(f"batch_sampler: a {kind} makes its batches itself; leave it out")
        elif isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise TypeError(f"dataset: a dlfs.torch.IterableDataset, or a map-style data set, not {kind}")
        elif not isinstance(batch_sampler, BatchSampler):
            raise TypeError(
                f"batch_sampler: a {kind} is a map-style data set, for which a dlfs.torch.BatchSampler says what is "
                f"read next: batch_sampler=dlfs.torch.BatchSampler(ds, batch_size), not {batch_sampler!r}"
            )
        elif isinstance(dataset, _MapStyleDataset) and not batch_sampler._is_of(dataset.dataset):
            raise InvalidArgument(
                "batch_sampler: it draws indices of another data set or part than the Dataset has: give both the same "
                "object, for example parts['train']"
            )
        else:
            self._map = MapStyle(batch_sampler)
        batches: dict[str, Any] = {"batch_size": None}
        if self._map is not None:
            batches = {"batch_sampler": self._map.draws}
        super().__init__(
            dataset,
            **batches,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
        )
        if self._map is not None:
            return
        dataset = self.dataset
        # The place at which the next iterator begins, unless the data set was moved since.
        self._next = Place(dataset._own_state(), None)
        self._moves = dataset._moves()
        self._loaded = False
        # The rank for which that place was taken; None once the run was moved or read.
        self._rank: tuple[int, int] | None = dataset._rank()
        # The progress of the newest iterator.
        self._run: _Progress | None = None
        # True while workers have begun an epoch, and the loop does not have its last batch.
        self._under_way = False

    def __len__(self) -> int:
        if self._map is not None:
            return len(self._map.draws)
        if self.dataset._by_tokens():
            # The epoch that is being read, or else the next one.
            return self.dataset._left({**self._begin().state, "consumed": 0}, max(self.num_workers, 1))
        return self.dataset.num_batches(self.num_workers)

    def __iter__(self) -> Any:
        if self._map is not None:
            return _Run(self, self._map.items(super().__iter__))
        if self.num_workers == 0:
            self.dataset.prepare()
        return _Run(self, self._items())

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of `epoch`; right after load_state_dict, the epoch of the state resumes."""
        if self._map is not None:
            return self._map.set_epoch(epoch)
        place = self._begin()
        if self._loaded and epoch == place.state["epoch"]:
            return
        if epoch < 0:
            raise InvalidArgument(f"there is no epoch {epoch}")
        self._go_to(Place({**place.state, "epoch": epoch, "consumed": 0}, None))

    def state_dict(self) -> dict[str, Any]:
        """The state after the batches that the newest iterator has given."""
        if self._map is not None:
            return self._map.state_dict()
        place = self._begin() if self._run is None else self._run.place()
        return place.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iterator resumes from `state`: a state of this class, of dlfs.Loader, of this loader's data set or
        sampler, or of a StatefulDataLoader over a data set like this one. Raises Loader.load_state_dict's errors."""
        if self._map is not None:
            return self._map.load_state_dict(state)
        if "_snapshot" in state or "_num_yielded" in state:
            place = self._of_stateful(state)
        else:
            place = Place.of(state)
        if place.round is not None:
            self.dataset._check_rounds()
            self.dataset._ids_of(place.state, place.round, 0, 0)  # raises if the state is of another order
        self._go_to(place)
        self._loaded = True

    def stateful_state_dict(self, num_workers: int | None = None) -> dict[str, Any]:
        """The place of state_dict, as a state of torchdata's StatefulDataLoader over a data set like this one, with as
        many workers as this loader, or with `num_workers`.

        From within a round, that loader must have the workers, batch size and ranks of the round, since its workers
        cannot divide the rest of the round. Otherwise raises Unsupported, which says how many batches are missing.
        """
        workers = self.num_workers if num_workers is None else num_workers
        if workers < 0:
            raise InvalidArgument(f"num_workers: there are no {workers} workers")
        if self._map is not None:
            return self._map.stateful_state_dict(workers)
        place, data = Place.of(self.state_dict()), self.dataset
        if workers == 0:
            if place.round is not None:
                self._refuse_round(place, workers)
            return alone(place.state)
        if data._by_tokens():
            # With batches by tokens, a round may begin at any batch. A worker with no batch left is at the next epoch.
            over = {**place.state, "epoch": place.state["epoch"] + 1, "consumed": 0}
            left = data._left_by_tokens(place.state, workers, data._rank()[0])
            return of_workers([(place.state, False) if one else (over, True) for one in left], 0)
        data._check_rounds()
        round, ahead = data._round(workers, 0), 0
        if place.round is not None:
            if place.round._replace(had=0) != round:
                self._refuse_round(place, workers)
            sizes = [len(piece) for piece in data._pieces(place.state, round)]
            ends = list(itertools.accumulate(sizes))
            if place.round.had not in ends:
                self._refuse_round(place, workers)
            ahead = ends.index(place.round.had) + 1
        after = data._after_round(place.state, round) if ahead else place.state
        each = []
        for worker in range(workers):
            state = after if worker < ahead else place.state
            ids = data._ids_of(state, round, worker, data._rank()[0])
            has_ended = state["epoch"] != place.state["epoch"] or ids.batches_left == 0
            if has_ended:
                state = {**state, "epoch": place.state["epoch"] + 1, "consumed": 0}
            each.append((state, has_ended))
        return of_workers(each, ahead)

    def _refuse_round(self, place: Place, workers: int) -> NoReturn:
        round = place.round
        assert round is not None
        whole = sum(len(piece) for piece in self.dataset._pieces(place.state, round))
        left, step = whole - round.had, self.dataset._rank()[1] * self.dataset._options["batch_size"]
        raise Unsupported(
            f"this state is within a round of {round.workers} workers, {round.world_size} ranks and batches of "
            f"{round.batch_size}; workers of a StatefulDataLoader with {workers} workers cannot divide the rest of it: "
            f"take the state {-(-left // step)} batches later, or num_workers={round.workers} with these ranks and "
            "batches"
        )

    def _items(self) -> Iterator[Any]:
        """The batches of the next iterator, from its place to the end of that epoch."""
        data, place = self.dataset, self._begin()
        if place.state["epoch"] >= data._epochs():
            return
        self._run = run = _Progress(data, self.num_workers, place)
        self._rank = None
        # A loaded place is for one iterator. If the loop leaves this one early, the next one begins its epoch again.
        self._next, self._loaded = Place({**place.state, "consumed": 0}, None), False
        if place.round is not None:
            yield from self._rest_of_round(run, place.state, place.round)
        if run.counted["epoch"] == place.state["epoch"]:
            if self._under_way:
                self._restart_workers()
            # Workers begin where this moves the data set. It is not a load by the user, for set_epoch to resume from.
            if self.num_workers or data._own_state() != run.counted:
                data.load_state_dict(run.counted)
            data._resumed, self._moves = None, data._moves()
            run.left = data._left(run.counted, max(self.num_workers, 1))
            self._under_way = run.left > 0
            for item in super().__iter__() if run.left else ():
                run.handed, run.known = run.handed + 1, None
                if run.handed == run.left:
                    self._end(run)
                yield item
        self._end(run)

    def _restart_workers(self) -> None:
        """Ends persistent workers after the loop has left their last iterator. A worker that had not begun that
        iterator yet would begin it at the place that is meant for the next one."""
        left: Any = self._iterator  # torch does not annotate its attributes
        self._iterator = None
        if left is not None:
            left._shutdown_workers()

    def _end(self, run: _Progress) -> None:
        """Moves to the next epoch, since the loop has the last batch of this one."""
        run.known = run.behind()
        if self._run is run:
            self._next, self._under_way = run.known, False

    def _rest_of_round(
        self, run: _Progress, before: dict[str, Any], round: Round
    ) -> Iterator[Any]:
        """Reads the rest of a round that workers have begun, in this process."""
        data, options = self.dataset, self.dataset._options
        whole = [id for piece in data._pieces(before, round) for id in piece]
        after = data._after_round(before, round)
        rank, world_size = data._rank()
        step = world_size * options["batch_size"]
        for start in range(round.had, len(whole), step):
            # Ids of the samples that all ranks read at this step; this rank takes every world_size-th of them.
            drawn = whole[start : start + step]
            had, is_last = start + len(drawn), start + step >= len(whole)
            if options.get("pad"):
                drawn += whole[: max(world_size - len(drawn), 0)]
            mine = drawn[rank::world_size]
            if not mine or (options.get("drop_last") and len(drawn) < world_size):
                continue
            ends = is_last and after["epoch"] != before["epoch"]
            batch = data._read(mine, before["epoch"], ends)
            item = self.collate_fn(data._item(batch, as_worker=self.num_workers > 0))
            run.known = Place(after, None) if is_last else Place(before, round._replace(had=had))
            yield _pin(item) if self.pin_memory and torch.cuda.is_available() else item
        run.counted, run.known = after, Place(after, None)

    def _go_to(self, place: Place) -> None:
        self.dataset.load_state_dict(place.state)
        self._next, self._moves, self._run = place, self.dataset._moves(), None
        self._loaded, self._rank = False, None

    def _begin(self) -> Place:
        """The place at which the next iterator begins."""
        is_other = self._rank is not None and self._rank != self.dataset._rank()
        # The user has moved the data set, or torch.distributed has begun: the order may depend on the world size.
        if is_other or self.dataset._moves() != self._moves:
            self._next, self._loaded = Place(self.dataset._own_state(), None), False
            self._moves, self._run = self.dataset._moves(), None
            self._rank = None if self._rank is None else self.dataset._rank()
        return self._next

    def _of_stateful(self, state: Mapping[str, Any]) -> Place:
        """The place that a state of StatefulDataLoader describes."""
        try:
            if "_num_yielded" in state:
                return Place(dict(state["dataset_state"]), None)
            snapshot = state["_snapshot"]
            each = snapshot["_worker_snapshots"]
            states = [dict(each[f"worker_{at}"]["dataset_state"]) for at in range(len(each))]
            reached = [(int(one["epoch"]), int(one["consumed"])) for one in states]
            behind = int(state["_steps_since_snapshot"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"this is not a state of a StatefulDataLoader over a dlfs.torch.IterableDataset: it lacks {error}"
            ) from None
        if behind:
            raise Unsupported(
                f"this state of a StatefulDataLoader is {behind} batches behind what was read: "
                "take states with snapshot_every_n_steps=1"
            )
        if not reached:
            raise InvalidArgument("this state of a StatefulDataLoader has no workers")
        first = min(reached)
        before = states[reached.index(first)]
        if reached == [first] * len(reached):
            return Place(before, None)
        data = self.dataset
        if data._by_tokens():
            return self._of_stateful_by_tokens(before, reached)
        data._check_rounds()
        round = data._round(len(states), 0)
        pieces = [len(piece) for piece in data._pieces(before, round)]
        after, next_epoch = data._after_round(before, round), (first[0] + 1, 0)
        end = (after["epoch"], after["consumed"])
        for ahead in range(len(reached) + 1):
            # The first `ahead` workers have given their batch of the round, and stand at its end, the others at its
            # start. A worker that has no more batches in this epoch may stand at the next one.
            expected = [end] * ahead + [first] * (len(reached) - ahead)
            if all(
                one == at or (one == next_epoch and data._ended(before, round, worker, worker < ahead))
                for worker, (one, at) in enumerate(zip(reached, expected))
            ):
                had = sum(pieces[:ahead])
                if had in (0, sum(pieces)):
                    return Place(after if had else before, None)
                return Place(before, round._replace(had=had))
        raise InvalidArgument("its workers are not in one round: it is not of this data set's workers")

    def _of_stateful_by_tokens(self, before: dict[str, Any], reached: list[tuple[int, int]]) -> Place:
        """The place if the first workers have given their batch of a round, and stand at its end, the others at its
        start."""
        data, ranks = self.dataset, self.dataset._rank()[1]
        start = (int(before["epoch"]), int(before["consumed"]))
        ahead, next_epoch = reached.index(start), (start[0] + 1, 0)
        # One batch of each worker of each rank is a round: one step of as many ranks.
        whole = data._of_rank(before, 0, len(reached) * ranks)
        whole.skip(1)
        after = whole.state_dict()
        end = (int(after["epoch"]), int(after["consumed"]))
        # A worker that has no more batches in the epoch stands at the next one.
        behind = all(at in (start, next_epoch) for at in reached[ahead:])
        if not behind or any(at not in (end, next_epoch) for at in reached[:ahead]):
            raise InvalidArgument("its workers are not in one round: it is not of this data set's workers")
        return Place(data._after(before, ahead), None)


class _Progress:
    """The progress of an iterator. Holds no reference to it, so that the end of the iterator ends its workers."""

    def __init__(self, data: IterableDataset, workers: int, begun: Place) -> None:
        self.data, self.workers, self.begun = data, workers, begun
        # The state at which whole rounds begin; from there on, batches handed out, and all batches of the epoch.
        self.counted = begun.state
        self.handed, self.left = 0, 0
        # Batches by tokens: the order of the rank, moved behind the first `follows` of the batches handed out.
        self.followed: _Ids | None = None
        self.follows = 0
        # The place where it is known without counting: until the first batch of whole rounds, and after the epoch's
        # last batch.
        self.known: Place | None = begun

    def behind(self) -> Place:
        """The start of the next epoch."""
        return Place({**self.begun.state, "epoch": self.begun.state["epoch"] + 1, "consumed": 0}, None)

    def place(self) -> Place:
        """The place after the batches that were handed out."""
        if self.known is not None:
            return self.known
        data = self.data
        if self.workers == 0:
            return Place(data._own_state(), None)
        if data._by_tokens():
            return Place(self._after_handed(), None)
        data._check_rounds()
        rounds, had = divmod(self.handed, self.workers)
        round = data._round(self.workers, 0)
        whole = round.workers * round.world_size * round.batch_size
        state = {**self.counted, "consumed": self.counted["consumed"] + rounds * whole}
        if had == 0:
            return Place(state, None)
        sizes = [len(piece) for piece in data._pieces(state, round)]
        return Place(state, round._replace(had=sum(sizes[:had])))

    def _after_handed(self) -> dict[str, Any]:
        """The state after the batches by tokens that were handed out: with any number of workers, these are the rank's
        next batches in order."""
        if self.followed is None:
            self.followed, self.follows = self.data._of_rank(self.counted, *self.data._rank()), 0
        if self.followed.epoch == self.counted["epoch"]:
            self.followed.skip(self.handed - self.follows)
            self.follows = self.handed
        return self.followed.state_dict()


class _Run(Iterator[Any]):
    """One iteration of a DataLoader."""

    def __init__(self, loader: DataLoader, items: Iterator[Any]) -> None:
        self._loader, self._items = loader, items

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        return next(self._items)
