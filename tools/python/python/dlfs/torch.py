"""dlfs for torch.utils.data.

    loader = DataLoader(dlfs.torch.IterableDataset(ds, 256, transform=decode), batch_size=None)

reads through dlfs.Loader, whose native threads make worker processes unnecessary. Worker processes, if there are any,
divide the epoch and decode in parallel; dlfs.torch.DataLoader then counts the batches that the loop has had. If a
sampler chooses the samples:

    data = dlfs.torch.Dataset(ds, transform=decode)
    loader = DataLoader(data, batch_sampler=dlfs.torch.BatchSampler(ds, 256), num_workers=2)

By default, rank and world size come from torch.distributed if it is initialised when an epoch begins. With
a library that divides the data itself, such as Accelerate's prepare(), pass rank=0, world_size=1. All
classes work with fork, spawn and forkserver, and resume in a StatefulDataLoader.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack, cast

import torch
import torch.utils.data
import torch.utils.data._utils.collate

from . import Batch, InvalidArgument, Loader, Loading, Mixture, Order, Peers, Report, Tokens, Unsupported
from . import Dataset as _Dataset
from . import _check, _data_place, _given, _peerless, _warn_of_launcher
from ._dataloader import DataLoader, Round
from ._dlfs import Sampler as _Ids
from ._errors import Error as _Error
from ._map_style import Dataset, name_of
from ._options import Address, OrderName
from ._random import Generators, takes_rng
from ._ranks import as_launched, by_turns, data_place, in_group, local_place_of, place_of, warn_unequal, without_node
from ._sampler import BatchSampler, Sampler
from ._sending import NotTheEnd, check_sendable, set_up_worker
from ._tensors import TensorBatch, generator_of, tensor

__all__ = [
    "BatchSampler",
    "DataLoader",
    "Dataset",
    "IterableDataset",
    "Sampler",
    "TensorBatch",
    "data_place",
    "generator_of",
    "tensor",
]


# The words of the int64 tensor that the processes of an IterableDataset share. Workers read it at the start of each
# epoch. 0: how often the user has moved the run. 1: the epoch of the last move. 2: the number of samples of that epoch
# before the place of the last move.
# _BEGUN: the move after which workers have begun, plus one; zero once this process reads. _WARNED: 1 once
# warn_unequal has warned.
# _TAKEN, three words: the move from which workers have resumed within an epoch, their seed, and the number of the
# first one's process.
# _LANES: the lanes of the grouped order of a loaded state, or zero.
# _AGAIN, three words: move and epoch, each plus one, with which workers were last started; 1 once a second start was
# reported.
_BEGUN, _WARNED, _TAKEN, _LANES, _AGAIN, _WORDS = 3, 4, 5, 8, 9, 12


class _WorkerPlace(NamedTuple):
    """The place of a process that reads: a worker of a rank. Without workers, the only worker of its rank."""

    rank: int
    world_size: int
    worker: int = 0
    workers: int = 1


class IterableDataset(torch.utils.data.IterableDataset[Any]):
    """Shuffled batches of a dlfs.Loader, for DataLoader(..., batch_size=None).

    An item is transform(batch) of a dlfs.Batch; without a transform it is the Batch itself, or a TensorBatch if a
    worker process has to send it, or with the option `device`, on that device. If the transform has a further parameter
    `rng`, it gets a sequence there: rng[i] is dlfs.random_of(seed, epoch, id) of sample i of the batch, so
    augmentations that draw from it are repeated exactly by a run that is repeated or resumes, with any workers, ranks
    and batches. (The id of a mixture's sample is source << 40 | id.) The options are those of dlfs.Loader
    (dlfs.Loading). N workers divide N batches of this rank as ranks divide a global batch: in grouped order by whole
    chunks (shard="aligned") unless `shard` is given, so that they read little more than one process would. The order is
    the same with any number of workers. With `peers`, the process that makes this object joins them, and workers read
    through them; map-style data sets use dlfs.Dataset.join_peers.

    set_epoch, state_dict and load_state_dict work as in Loader; set_epoch and load_state_dict reach worker processes,
    also persistent ones, at their next epoch. Without set_epoch, persistent workers and a DataLoader without workers
    continue with the next epoch; workers that torch's DataLoader restarts for each epoch begin with the same one each
    time, and a warning says so at the second. Only workers know how far they have read, so after they have begun,
    state_dict here raises Unsupported: dlfs.torch.DataLoader counts what it hands out, and StatefulDataLoader asks the
    workers.

    Once workers have read, report, trace_json and save_trace raise Unsupported, too, since each worker has waits of its
    own. With `reports`, the path of a folder, each process that reads writes its report there at the end of each epoch,
    as rank-R.html or rank-R-worker-W.html, and with trace=True its events as .json beside it. Within a worker, for
    example in the transform, torch.utils.data.get_worker_info().dataset is this object, whose methods then answer for
    that worker.
    """

    def __init__(
        self,
        dataset: _Dataset | Mixture,
        batch_size: int | None = None,
        order: OrderName = "grouped",
        *,
        transform: Callable[..., Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        data_rank: int | None = None,
        data_world_size: int | None = None,
        reports: Address | None = None,
        **options: Unpack[Loading],
    ) -> None:
        self.dataset, self.transform = dataset, transform
        self._takes_rng = takes_rng(transform)
        self._reports = None if reports is None else os.fspath(reports)
        if self._reports is not None:
            os.makedirs(self._reports, exist_ok=True)  # raises errors here, not in a worker
        _check("IterableDataset", options, Loading)
        given = _given(options)
        # This process joins the peers, once; workers read through them.
        joining = {name: given.pop(name) for name in Peers.__annotations__ if name in given}
        peers, store = joining.get("peers"), given.get("store")
        self._options = {**given, "batch_size": batch_size, "order": order}
        self._given = (rank, world_size)
        data = None
        if data_rank is not None or data_world_size is not None:
            data = _data_place(data_rank, data_world_size, store)
        # The loader that has the store of this rank; forked workers divide its samples.
        self._stored: Loader | None = None
        if store is not None:
            self._given = self._keep_share(joining)
        elif peers is not None and data is not None:
            _peerless(self.dataset).join_peers(**joining, **_placed(rank, world_size))
        elif peers is not None:
            self._given = self._join(joining)
        elif any(value not in (False, "read-through", 60.0) for value in joining.values()):
            raise TypeError(f"IterableDataset() got {', '.join(joining)} without peers")
        self._given = data or self._given
        self._place = _WorkerPlace(*self._rank())
        if isinstance(dataset, Mixture) and batch_size is not None:
            self.dataset = dataset._pinned(batch_size * self._place.world_size)
        self._loader = self._make(self._place)  # raises errors here, not in a worker
        self._shared = _share(torch.zeros(_WORDS, dtype=torch.int64))
        self._followed = 0
        self._resumed: int | None = None
        # In a worker: the epoch of the next iteration, and whether there was one before.
        self._epoch, self._has_begun = 0, False
        # Set in a spawned process if its parent was part of a torch.distributed group.
        self._grouped = False

    def _join(self, peers: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Joins the peers; returns rank and world size: as given, or the launcher's if neither the caller nor
        torch.distributed says them."""
        rank, world_size = place_of(*self._given)
        if self._given == (0, 1):  # something else divides the data
            _peerless(self.dataset).join_peers(**peers)
            return self._given
        made = Loader(self.dataset, rank=rank, world_size=world_size, **self._options, **peers)
        is_said = self._given != (None, None) or in_group()
        return self._given if is_said else (made.options["rank"], made.options["world_size"])

    def _keep_share(self, peers: Mapping[str, Any]) -> tuple[int, int]:
        """Opens the store and joins the peers; returns rank and world size, as given or by the launcher."""
        rank, world_size = place_of(*self._given)
        made = Loader(self.dataset, rank=rank, world_size=world_size, **self._options, **peers)
        self._stored = made
        return made.options.get("rank", rank), made.options.get("world_size", world_size)

    def _make(self, place: _WorkerPlace) -> Loader:
        """The loader of a worker of a rank."""
        rank, world_size, worker, workers = place
        if self._stored is not None:
            return self._stored if workers == 1 else self._stored._worker(worker, workers)
        options = dict(self._options)
        shared = workers > 1 and options["order"] == "grouped"
        if shared and options.get("shard") is None and not self._by_tokens() and self._local is None:
            options["shard"] = "aligned"
        numbers = {"rank": worker * world_size + rank, "world_size": world_size * workers}
        if self._local is not None:
            # Each worker is a rank of the node.
            numbers = as_launched(numbers["rank"], numbers["world_size"], self._local[1] * workers)
        loader = Loader(self.dataset, **{**options, **numbers})
        if shared:
            # The lanes of the order without workers: the workers of a rank divide its lanes, or its batches by tokens.
            alone = Loader(self.dataset, rank=rank, world_size=world_size, **without_node(self._options))
            loader.load_state_dict(alone.state_dict())
        return loader

    def _current(self) -> Loader:
        """The loader of this process, moved to where the user moved the run; in a worker, of its share of the rank."""
        info = torch.utils.data.get_worker_info()
        share = (0, 1) if info is None else (info.id, info.num_workers)
        place = _WorkerPlace(*self._rank(), *share)
        if place != self._place:
            self._loader, self._place = self._make(place), place
            self._followed, self._epoch = 0, 0
        moves, epoch, consumed = self._shared[:_BEGUN].tolist()
        if moves != self._followed:
            if consumed and info is not None and not self._resumes(info):
                epoch, consumed = epoch + 1, 0
            state = self._loader.state_dict()
            if lanes := int(self._shared[_LANES]):
                state["order"] = {**state["order"], "kind": "grouped", "lanes": lanes}
            self._loader.load_state_dict({**state, "epoch": epoch, "consumed": consumed})
            self._epoch = epoch
        self._followed = moves
        return self._loader

    def _resumes(self, info: Any) -> bool:
        """Returns whether this worker resumes from the loaded state: the workers of the first iteration do, those
        started for a later one do not."""
        seed, first = info.seed - info.id, _number_of_process() - info.id
        move, taken_seed, taken_first = self._shared[_TAKEN:_LANES].tolist()
        if move == int(self._shared[0]):
            # The seed would suffice, unless the user seeds torch identically before each epoch. The workers
            # of one iteration are started in sequence, or nearly so if other threads start processes, too.
            apart = abs(first - int(taken_first))
            return bool(seed == taken_seed) and apart < max(info.num_workers, 1)
        self._shared[_TAKEN:_LANES] = torch.tensor([int(self._shared[0]), seed, first])
        return True

    def prepare(self) -> None:
        """Allocates the readahead memory in the background, like Loader.prepare: for a DataLoader without
        workers, before a model is built. Iterating does it, too, in the process that reads."""
        self._current().prepare()

    def __iter__(self) -> Iterator[Any]:
        if torch.utils.data.get_worker_info() is None:
            self._shared[_BEGUN] = 0  # from here on this process reads
        elif "device" in self._options:
            raise InvalidArgument(
                f"batches go to {self._options['device']} from the process that trains, where native threads read them "
                "ahead: set num_workers=0"
            )
        self.prepare()
        return _Batches(self)

    def _begin(self) -> Iterator[Batch]:
        """Begins an epoch, or resumes the loaded one."""
        loader, info = self._current(), torch.utils.data.get_worker_info()
        self._resumed = None
        if self._given == (None, None) and (info is None or info.id == 0) and not in_group():
            _warn_of_launcher()
        if info is not None:
            set_up_worker()
            # Advances by one at each iteration, even an incomplete one, so that all workers agree.
            last = self._options.get("epochs") or sys.maxsize
            loader.set_epoch(min(self._epoch, last))
            if info.id == 0 and not self._has_begun:
                self._warn_again(loader)
            self._has_begun = True
            self._epoch = min(self._epoch + 1, last)
            self._shared[_BEGUN] = int(self._shared[0]) + 1
        if (info is None or info.id == 0) and not int(self._shared[_WARNED]):
            self._shared[_WARNED] = int(
                warn_unequal(self._batches_left, self._place, self._options, self._grouped)
            )
        return iter(loader)

    def _warn_again(self, loader: Loader) -> None:
        """In a worker that was just started: warns if the workers before it began the same epoch."""
        now = [int(self._shared[0]) + 1, loader.epoch + 1]
        before, told = self._shared[_AGAIN : _AGAIN + 2].tolist(), int(self._shared[_AGAIN + 2])
        self._shared[_AGAIN : _AGAIN + 2] = torch.tensor(now)
        if now == before and not told:
            self._shared[_AGAIN + 2] = 1
            warnings.warn(
                f"these workers read epoch {loader.epoch} from its start, as the workers before them did: call "
                "set_epoch before each epoch, or take dlfs.torch.DataLoader, which goes on with the next epoch, or "
                "persistent_workers=True",
                stacklevel=2,
            )

    def _batches_left(self, rank: int) -> int:
        """The number of batches of a rank in the epoch that begins, over all its workers."""
        _, world_size, _, workers = self._place
        state, left = self._loader.state_dict(), 0
        if self._by_tokens():
            return self._left(state, workers, rank)
        if self._stored is not None:
            of_store = ("store", "blocking_exchange", "restart_shares")
            options = {name: value for name, value in self._options.items() if name not in of_store}
            alone = Loader(self.dataset, rank=rank, world_size=world_size, **options)
            alone.load_state_dict(state)
            return alone.batches_left
        for worker in range(workers):
            loader = self._make(_WorkerPlace(rank, world_size, worker, workers))
            loader.load_state_dict(state)
            left += loader.batches_left
        return left

    def _item(self, batch: Batch, as_worker: bool = False) -> Any:
        """The item that a loop gets for `batch`. as_worker: as if a worker process read it."""
        in_worker = as_worker or torch.utils.data.get_worker_info() is not None
        if self.transform is None:
            return TensorBatch.of(batch) if in_worker or batch.on_device is not None else batch
        given = {"rng": Generators.of(self._options.get("seed", 0), batch)} if self._takes_rng else {}
        with NotTheEnd():
            item = self.transform(batch, **given)
        if in_worker:
            check_sendable(item, "the transform's result")
        return item

    def __repr__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self._options.items()]
        given += [] if self.transform is None else [f"transform={name_of(self.transform)}"]
        rank, world_size = self._rank()
        of = f", rank {rank} of {world_size}" if world_size > 1 else ""
        return f"<dlfs.torch.IterableDataset of {self.dataset!r}{of}: {', '.join(given)}>"

    def stats(self) -> dict[str, Any]:
        """The counters of this process, as Loader.stats; worker processes count for themselves."""
        return self._loader.stats()

    def report(self, path: Address | None = None) -> Report:
        """The reasons for waits of this process, as Loader.report. Raises Unsupported if worker processes read
        instead."""
        return self._reading_loader("a report").report(path)

    def trace_json(self) -> str:
        """The newest events of this process, as Loader.trace_json. Raises Unsupported if worker processes read
        instead."""
        return self._reading_loader("a trace").trace_json()

    def save_trace(self, path: Address) -> None:
        """Writes what trace_json returns to `path`."""
        self._reading_loader("a trace").save_trace(path)

    def _reading_loader(self, what: str) -> Loader:
        """The loader of this process, unless worker processes have read."""
        if torch.utils.data.get_worker_info() is None and int(self._shared[_BEGUN]):
            raise Unsupported(
                f"worker processes read, and each has {what} of its own: give IterableDataset a folder for them "
                "(reports=), or ask in a worker, where torch.utils.data.get_worker_info().dataset has it; or read "
                "without workers (num_workers=0)"
            )
        return self._loader

    def _epoch_has_ended(self) -> None:
        """Writes the report of this process, if there is a folder for reports."""
        if self._reports is None:
            return
        info = torch.utils.data.get_worker_info()
        worker = "" if info is None else f"-worker-{info.id}"
        path = os.path.join(self._reports, f"rank-{place_of(*self._given)[0]}{worker}")
        try:
            self._loader.report(f"{path}.html")
            if self._options.get("trace"):
                self._loader.save_trace(f"{path}.json")
        except (OSError, _Error) as error:  # a full disk is no reason to end a training
            warnings.warn(f"no report of this epoch: {error}", stacklevel=2)

    def num_batches(self, workers: int = 0) -> int:
        """The number of batches of an epoch on this rank with this many worker processes. With batches by tokens: of
        the current epoch, since epochs differ; this looks at the lengths of all samples.

        There is no len: it could not know the number of workers, each of which may end with a short batch, and a
        trainer that relied on len would skip the last batches.
        """
        count, place = max(workers, 1), self._rank()
        if self._by_tokens():
            return self._left({**self._own_state(), "consumed": 0}, count, place[0])
        return sum(len(self._make(_WorkerPlace(*place, worker, count))) for worker in range(count))

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of `epoch` at the next iteration, in worker processes, too. Right after
        load_state_dict, the epoch of the state resumes from the state."""
        if epoch != self._resumed or self._workers_have_begun():
            self._move(epoch, 0)

    def _workers_have_begun(self) -> bool:
        """Returns whether workers have begun an epoch since the run was last moved."""
        return int(self._shared[_BEGUN]) == int(self._shared[0]) + 1

    def state_dict(self) -> dict[str, Any]:
        """The state of this process. Raises Unsupported if worker processes read instead."""
        if torch.utils.data.get_worker_info() is None and self._workers_have_begun():
            raise Unsupported(
                "only the worker processes know how far they have read, and some batches are in queues: "
                "take the state from dlfs.torch.DataLoader, which counts what it hands out, or from torchdata's "
                "StatefulDataLoader, which asks them; or right after set_epoch, before the epoch begins; or "
                "read without workers (num_workers=0)"
            )
        return self._current().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from `state` at the next iteration. Raises the errors of Loader.load_state_dict."""
        loader = self._current()
        loader.load_state_dict(state)
        place = loader.state_dict()
        if torch.utils.data.get_worker_info() is not None:
            self._epoch = place["epoch"]
            return  # a StatefulDataLoader gives each worker its own
        self._shared[_LANES] = place["order"].get("lanes", 0)
        self._move(place["epoch"], place["consumed"])
        self._resumed = place["epoch"]

    def _move(self, epoch: int, consumed: int) -> None:
        """Moves the run, in worker processes, too, to where this many samples of the epoch have been consumed."""
        if epoch < 0:
            raise InvalidArgument(f"there is no epoch {epoch}")
        self._shared[:_BEGUN] = torch.tensor([int(self._shared[0]) + 1, epoch, consumed])
        self._resumed = None

    # For dlfs.torch.DataLoader.

    def _moves(self) -> int:
        """The number of times that set_epoch or load_state_dict moved the run."""
        return int(self._shared[0])

    def _own_state(self) -> dict[str, Any]:
        """The state of this process's own loader, even if workers have read."""
        return self._current().state_dict()

    @property
    def _local(self) -> tuple[int, int] | None:
        """With a node loader: local rank, and local world size."""
        given = self._options
        return local_place_of(given, place_of(*self._given)) if given.get("node_loader") else None

    def _rank(self) -> tuple[int, int]:
        """Rank and world size. With a node loader, the nodes have ranks by turns."""
        place = place_of(*self._given)
        return place if self._local is None else (by_turns(*place, *self._local), place[1])

    def _epochs(self) -> int:
        """The number of epochs of the run; sys.maxsize if it has no end."""
        return self._options.get("epochs") or sys.maxsize

    def _check_rounds(self) -> None:
        """Raises Unsupported if the samples of a round depend on more than the state, InvalidArgument if batches are by
        tokens."""
        if self._by_tokens():
            raise InvalidArgument("the state is within a round of batches of equal size, and these are by tokens")
        order, shard = self._options["order"], self._options.get("shard")
        if order in ("local", "partial") or shard == "local":
            what = f"{order} order" if order in ("local", "partial") else "shard='local'"
            raise Unsupported(
                f"in {what} the shares depend on the workers: take the state from torchdata's StatefulDataLoader, at "
                "the end of an epoch, or without workers (num_workers=0)"
            )

    def _by_tokens(self) -> bool:
        """Returns whether batches have a budget of tokens. Such batches go to ranks and workers one after the other, so
        a rank has the same batches with any number of workers, and no batch is divided."""
        return self._options.get("batch_tokens") is not None

    def _of_rank(self, state: Mapping[str, Any], rank: int, world_size: int) -> _Ids:
        """The batches by tokens of a rank, over all its workers, from `state` on."""
        options = {name: self._options[name] for name in _ORDER if name in self._options}
        ids = _Ids(self.dataset, **options, batch_size=None, rank=rank, world_size=world_size)
        ids.load_state_dict(state)
        return ids

    def _after(self, state: Mapping[str, Any], batches: int) -> dict[str, Any]:
        """The state after `batches` batches by tokens of this rank; at the end of the epoch, the start of the next."""
        ids = self._of_rank(state, *self._rank())
        ids.skip(batches)
        return ids.state_dict()

    def _left_by_tokens(self, state: Mapping[str, Any], workers: int, rank: int) -> list[int]:
        """The number of batches by tokens of each worker of a rank, from `state` to the end of its epoch. This counts
        the batches of all ranks once, and divides."""
        options = {name: self._options[name] for name in _ORDER if name in self._options}
        ids = _Ids(self.dataset, **{**options, "drop_last": False, "pad": False}, batch_size=None)
        ids.load_state_dict(state)
        left, world_size = ids.batches_left, self._rank()[1]
        ranks = world_size * workers
        if self._options.get("drop_last"):
            return [left // ranks] * workers
        if self._options.get("pad"):
            return [-(-left // ranks)] * workers
        first = [worker * world_size + rank for worker in range(workers)]
        return [max(-(-(left - number) // ranks), 0) for number in first]

    def _round(self, workers: int, had: int) -> Round:
        """A round of this many workers with the options of this data set."""
        shard = self._options.get("shard")
        if shard is None and workers > 1 and self._options["order"] == "grouped" and self._local is None:
            shard = "aligned"
        return Round(workers, self._rank()[1], self._options["batch_size"], shard, had)

    def _ids_of(self, state: Mapping[str, Any], round: Round, worker: int, rank: int) -> _Ids:
        """The order of a worker of a rank, from `state` on."""
        options = {name: self._options[name] for name in _ORDER if name in self._options}
        ids = _Ids(
            self.dataset,
            **options,
            batch_size=round.batch_size,
            shard=round.shard,
            rank=worker * round.world_size + rank,
            world_size=round.workers * round.world_size,
        )
        ids.load_state_dict(state)
        return ids

    def _pieces(self, state: Mapping[str, Any], round: Round) -> list[list[int]]:
        """The ids of the samples of the round after `state`: for each worker a list, in which the ranks take turns."""
        ids, pieces = self.dataset.ids, []
        for worker in range(round.workers):
            each = [self._ids_of(state, round, worker, rank) for rank in range(round.world_size)]
            # A rank with nothing left in the last round would draw from the next epoch.
            drawn = [one.next() if one.has_batches_left else None for one in each]
            lists = [batch[0] if batch else [] for batch in drawn]
            turns = itertools.zip_longest(*lists)
            pieces.append([int(ids[at]) for turn in turns for at in turn if at is not None])
        return pieces

    def _after_round(self, state: Mapping[str, Any], round: Round) -> dict[str, Any]:
        """The state after the round that begins at `state`."""
        ids = self._ids_of(state, round, 0, 0)
        ids.next()
        return ids.state_dict()

    def _ended(self, state: Mapping[str, Any], round: Round, worker: int, has_had: bool) -> bool:
        """Returns whether this worker has no batch left in the epoch after `state`, or, with `has_had`, after its batch
        of the round that begins there."""
        ids = self._ids_of(state, round, worker, self._rank()[0])
        return ids.batches_left <= int(has_had)

    def _left(self, state: Mapping[str, Any], workers: int, rank: int | None = None) -> int:
        """Batches of this rank, or another, from `state` to the end of its epoch; in local and partial order, of a
        whole epoch."""
        rank = self._rank()[0] if rank is None else rank
        if self._by_tokens():
            return sum(self._left_by_tokens(state, workers, rank))
        round = self._round(workers, 0)
        if self._options["order"] in ("local", "partial"):
            return self.num_batches(workers)
        return sum(
            self._ids_of(state, round, worker, rank).batches_left for worker in range(workers)
        )

    def _read(self, ids: list[int], epoch: int, ends_epoch: bool) -> Batch:
        """Samples by their ids, as a batch of this epoch."""
        fields, on_error = self._options.get("fields"), self._options.get("on_error", "raise")
        batch = self.dataset.read_batch(ids, on_error=on_error, fields=fields)
        make, (records, beside) = cast(tuple[Callable[..., Batch], tuple[bytes, bytes]], batch.__reduce__())
        # A copy that has the epoch: read_batch knows none.
        placed = json.loads(beside) | {"epoch": epoch, "ends_epoch": ends_epoch}
        return make(records, json.dumps(placed).encode())

    def __getstate__(self) -> dict[str, Any]:
        # Rank and world size now: torch.distributed is not initialised in a spawned worker.
        return {**self.__dict__, "_given": place_of(*self._given), "_grouped": in_group()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _share(self._shared)  # no effect in a spawned worker; another copy shares it with workers of its own


class _Batches(Iterator[Any]):
    """One iteration of an IterableDataset. StatefulDataLoader saves its state: whether it has ended. The data set's
    own state is then the start of the next epoch."""

    def __init__(self, data: IterableDataset) -> None:
        self._data = data
        self._batches: Iterator[Batch] | None = None
        self._ended = False

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._batches is None:
            # Not before the first request: StatefulDataLoader loads states before that.
            self._batches = self._data._begin()
        batch = next(self._batches, None)
        if batch is None or batch.ends_epoch:
            self._ended, self._batches = True, None
            self._data._epoch_has_ended()
        if batch is None:
            raise StopIteration
        return self._data._item(batch)

    def state_dict(self) -> dict[str, Any]:
        return {"ended": self._ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._ended = bool(state["ended"])


def _placed(rank: int | None, world_size: int | None) -> dict[str, int]:
    """Rank and world size, as far as they are given."""
    given = {"rank": rank, "world_size": world_size}
    return {name: value for name, value in given.items() if value is not None}


# The options of Loader that define the order.
_ORDER = ("order", "epochs", "drop_last", "pad", "weights", "without_replacement", "epoch_size",
          *Order.__annotations__, *Tokens.__annotations__)

# torch does not annotate this function.
_share: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.share_memory_


def _is_a_batch(batch: Sequence[Any], **_: Any) -> Any:
    """Raises TypeError: torch's default_collate calls this for a list of batches."""
    raise TypeError("an item of dlfs.torch.IterableDataset is a batch already: DataLoader(..., batch_size=None)")


torch.utils.data._utils.collate.default_collate_fn_map.update({Batch: _is_a_batch, TensorBatch: _is_a_batch})


def _number_of_process() -> int:
    """The number of processes that the parent had started, including this one."""
    return (getattr(multiprocessing.current_process(), "_identity", None) or (0,))[-1]
