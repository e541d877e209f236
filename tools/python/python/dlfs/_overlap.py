"""Transforms that run while the program computes: dlfs.Loader(..., transform=f, threads=n, ahead=k, processes=n).

A pool takes batches from the native loader and calls the transform; an iterator hands the results out in the order of
the batches. So the native loader is ahead of the program. `_Position` has the state after the results that were handed
out. The methods of OverlappingLoader answer from it, so that states, epochs, and loops that are left early are those of
a loader without a pool.

A task of the pool takes one batch and transforms it. Tasks and results together are never more than `ahead`. A run has
two locks. `turn` is held while a batch is taken, so that results have the order of batches. `ready` guards the rest,
and may be taken while `turn` is held. Neither is held while a transform runs.

Read `_Run` first. `_workers.py` has the worker processes.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ._dlfs import Batch
from ._dlfs import Loader as _Loader
from ._errors import Error, InvalidArgument
from ._random import Generators, takes_rng
from ._workers import Workers


class OverlappingLoader(_Loader):
    """A native loader whose iterators may hand out the results of a transform."""

    _overlap: Overlapped | None = None

    def __iter__(self) -> Iterator[Any]:
        """Begins an epoch, or resumes a loaded state."""
        return super().__iter__() if self._overlap is None else self._overlap.begin(self)

    @property
    def _position(self) -> _Position | None:
        return None if self._overlap is None else self._overlap.position

    @property
    def epoch(self) -> int:
        """The current epoch of the run: that of the next batch."""
        position = self._position
        return super().epoch if position is None else int(position.state["epoch"])

    @property
    def batches_left(self) -> int:
        """Batches left in the current epoch of the run."""
        if self._overlap is None:
            return super().batches_left
        with self._overlap.at_rest():
            position = self._position
            is_in_epoch = position is None or super().epoch == self.epoch
            ahead = 0 if position is None else position.taken - position.handed
            return ahead + (super().batches_left if is_in_epoch else 0)

    @property
    def options(self) -> dict[str, Any]:
        """The options that it was created with."""
        return super().options if self._overlap is None else {**super().options, **self._overlap.given()}

    def state_dict(self) -> dict[str, Any]:
        """The state of the run after the batches delivered so far (by the newest iterator), or the results of a
        transform: a dict that JSON can store. It has image, generation, order, seed, epoch, and the samples consumed
        by all ranks."""
        position = self._position
        return super().state_dict() if position is None else copy.deepcopy(position.state)

    def load_state_dict(self, state: Mapping[str, Any] | str) -> None:
        """Resumes from `state`.

        Raises InvalidArgument (a ValueError) if it belongs to another data set, order or seed, Stale if samples were
        added or deleted since; the run is then unchanged.
        """
        if self._overlap is None:
            return super().load_state_dict(state)
        with self._overlap.moving(self):
            super().load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of `epoch`; keeps what was read ahead if the run is there already. Right after
        load_state_dict, the epoch of the state resumes from the state."""
        if self._overlap is None:
            return super().set_epoch(epoch)
        with self._overlap.moving(self):
            super().set_epoch(epoch)

    def prepare(self) -> None:
        """Allocates the readahead memory (window) in the background; otherwise the first batch does. Call it before a
        model is built, in the process that will read. Reads nothing yet. Starts the worker processes of a transform.

        Raises OutOfMemory if the system does not provide it.
        """
        super().prepare()
        if self._overlap is not None and self._overlap.workers is not None:
            self._overlap.workers.start()

    def close(self) -> None:
        """Ends calls that wait in other threads, stops readahead and releases the data set, with its connections and
        tiers if nobody else uses it. Waits for transforms that run in threads, and ends worker processes. Batches stay
        valid. Leaving a `with` does the same."""
        if self._overlap is None:
            return super().close()
        self._overlap.stop()
        super().close()
        self._overlap.drain()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        reduced: Any = super().__reduce__()
        make, (kind, dataset, options, _), beside = reduced
        return make, (kind, dataset, options, self.state_dict()), beside

    def __repr__(self) -> str:
        return super().__repr__() if self._position is None else f"<dlfs.Loader at {self._position.state}>"


class Overlapped:
    """The transform of a loader, and the place of its newest iterator."""

    def __init__(
        self,
        transform: Callable[..., Any],
        threads: int | None = None,
        ahead: int | None = None,
        processes: int | None = None,
        seed: int = 0,
        pin: Any = None,
    ) -> None:
        if threads is not None and processes is not None:
            raise InvalidArgument("a transform runs in threads or in processes, not in both: give one of the two")
        given = {"threads": threads, "ahead": ahead, "processes": processes}
        for name, count in given.items():
            if count is not None and count < 1:
                raise InvalidArgument(f"{name}: at least 1, not {count}")
        if not callable(transform):
            raise TypeError(f"transform is called with each batch, and {transform!r} cannot be called")
        self.transform, self.seed, self.pin = transform, seed, pin
        self.threads, self.processes = threads, processes
        self.tasks = threads or processes or 1
        self.ahead = ahead or 2 * self.tasks
        self._takes_rng = takes_rng(transform)
        self.workers = Workers(transform, processes, self.ahead, seed, pin) if processes else None
        self.position: _Position | None = None
        self._lock = threading.RLock()
        self._runs: list[weakref.ref[_Run]] = []
        # The run of the newest iterator, to which `position` belongs; None once its last task has ended.
        self._newest: Callable[[], _Run | None] = lambda: None
        # Set before the runs are stopped, and read after a run was added: a run that begins meanwhile is stopped, too.
        self._is_closed = False
        _remember(_OVERLAPS, self)

    def given(self) -> dict[str, Any]:
        """The options of the loader from which this was made."""
        named = {"transform": self.transform, "threads": self.threads, "processes": self.processes}
        return {**{name: value for name, value in named.items() if value is not None}, "ahead": self.ahead}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.given(), "seed": self.seed, "pin": self.pin}

    def __setstate__(self, given: dict[str, Any]) -> None:
        self.__init__(**given)  # type: ignore[misc]

    def call(self, batch: Batch) -> Any:
        """The transform of `batch`, in this thread or in a worker process."""
        if self.workers is not None:
            return self.workers(batch)
        if self._takes_rng:
            return self.transform(batch, rng=Generators.of(self.seed, batch))
        return self.transform(batch)

    def begin(self, loader: _Loader) -> Results:
        """An iterator over the current epoch, as the native loader begins one."""
        before = self._newest()
        if before is not None and before.stopped:
            before.drain()  # so that its memory is free for this one
        with self._lock:
            before = self._newest()
            with contextlib.nullcontext() if before is None else before.turn:
                self._give_back(loader, before)
                position = self.position
                if position is not None and _epoch(loader) != position.state["epoch"]:
                    _Loader.set_epoch(loader, position.state["epoch"])  # the pool has taken the rest of the epoch
                run = _Run(self, loader, _Loader.__iter__(loader))
                self.position = None
                self._newest = weakref.ref(run)
            _remember(self._runs, run)
            if self._is_closed:
                run.stop()
            return Results(run)

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[_Run | None]:
        """A context in which no batch is taken for the newest iterator; gives its run, if that still exists."""
        with self._lock:
            run = self._newest()
            with contextlib.nullcontext() if run is None else run.turn:
                yield run

    @contextlib.contextmanager
    def moving(self, loader: _Loader) -> Iterator[None]:
        """A context in which the loader is moved: drops the results that were not handed out, unless the move fails."""
        with self.at_rest() as run:
            self._give_back(loader, run)
            yield
            self.position = None
            if run is not None:
                run.moved()

    def _give_back(self, loader: _Loader, run: _Run | None) -> None:
        """Moves the loader back if batches were taken and nothing was handed out: a loaded state is then still new."""
        position = self.position
        if position is not None and position.handed == 0 and position.taken:
            _Loader.load_state_dict(loader, position.begun)
            self.position = None
            if run is not None:
                run.moved()

    def is_newest(self, run: _Run) -> bool:
        return self._newest() is run

    def stop(self) -> None:
        """Ends what waits, and worker processes."""
        self._is_closed = True
        for run in _alive(self._runs):
            run.stop()
        if self.workers is not None:
            self.workers.close()

    def drain(self) -> None:
        """Waits for the tasks, after `stop`."""
        for run in _alive(self._runs):
            run.drain()

    def forked(self) -> None:
        """In a forked child: drops the pool and the worker processes, which are the parent's, and makes new locks,
        since a thread of the parent may have held the old ones."""
        if self.workers is not None:
            self.workers.forget()
        self._lock = threading.RLock()
        for run in _alive(self._runs):
            run.forked()

    def end(self) -> None:
        """Closes everything when the interpreter ends, which would otherwise wait for all tasks of the pool."""
        self.stop()
        for run in _alive(self._runs):
            _Loader.close(run.loader)


class _Position:
    """The position of an iterator: the state in which it began, the state after the results that it has handed out, and
    the numbers of batches taken and of results handed out."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.begun = self.state = state
        self.taken = self.handed = 0


class _Place:
    """A batch that was taken, or is being taken, and its result.

    error       the exception in place of the result
    is_of_read  True: the error came from the native loader, not from the transform
    is_done     True: there is a result or an error
    state       the state of the run after the batch
    """

    __slots__ = ("error", "is_done", "is_of_read", "result", "state")

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = self.is_of_read = False
        self.state: dict[str, Any] | None = None


class _Run:
    """One iteration, which the iterator and the tasks of the pool share. The tasks end when the iterator is dropped."""

    def __init__(self, overlap: Overlapped, loader: _Loader, source: Iterator[Batch]) -> None:
        self.overlap, self.loader = overlap, loader
        self.epoch = int(_epoch(loader))
        # The native iterator; None in a forked child, until the first request, and if the run was moved elsewhere.
        self.source: Iterator[Batch] | None = source
        self.position: _Position | None = None
        self.is_forked = False
        # True once the native iterator has ended.
        self.source_has_ended = False
        # True once no more batches are to be taken: the epoch, or the run, has ended, or there was an error.
        self.is_over = False
        # True once this iterator has ended.
        self.has_ended = False
        # True once the loader is closed.
        self.is_closed = False
        # Set, without a lock, when nobody wants results any more.
        self.stopped = False
        # The first error of the transform, and the traceback that it came with.
        self.error: tuple[BaseException, Any] | None = None
        self._begin_in_this_process()

    def _begin_in_this_process(self) -> None:
        self.turn, self.ready = threading.Lock(), threading.Condition()
        self.places: deque[_Place] = deque()
        # Tasks that have not taken their batch yet.
        self.asked: set[object] = set()
        self.pool: ThreadPoolExecutor | None = None

    def next(self) -> Any:
        """The next result, in the order of the batches."""
        if self.pool is None and self.overlap.workers is not None:
            self.overlap.workers.start()
        while True:
            if self.source is None:
                self._restart()
            with self.ready:
                if self._awaits_first():
                    return self._hand_out()

    def _awaits_first(self) -> bool:
        """Waits for the first result; False: the run was moved meanwhile. Call it with `ready` held."""
        while True:
            if self.is_closed:
                raise Error("the loader was closed")
            if self.error is not None:
                raise self.error[0].with_traceback(self.error[1])
            if self.has_ended:
                raise StopIteration
            if self.source is None:
                return False
            self._ask()
            if self.places and self.places[0].is_done:
                return True
            if self.is_over and not self.places:
                self.has_ended = True
            else:
                self.ready.wait()

    def _hand_out(self) -> Any:
        """Returns the result of the first place, or raises its error. Call it with `ready` held."""
        place = self.places[0]
        if place.error is not None and place.is_of_read:
            # What follows the error is asked of the native loader: the same error, or the batch that was late.
            self.places.popleft()
            self.is_over = False
            raise place.error
        if place.error is not None:
            self.error = place.error, place.error.__traceback__
            self.places.clear()
            raise place.error
        self.places.popleft()
        if self.position is not None and place.state is not None:
            self.position.state = place.state
            self.position.handed += 1
        self.has_ended = self.is_over and not self.places
        self._ask()
        return place.result

    def _ask(self) -> None:
        """Gives the pool tasks, as many as `ahead` permits. Call it with `ready` held."""
        if self.pool is None:
            self.pool = ThreadPoolExecutor(self.overlap.tasks, thread_name_prefix="dlfs-transform")
        while not self.is_over and len(self.asked) + len(self.places) < self.overlap.ahead:
            one = object()
            self.pool.submit(self._task, one)
            self.asked.add(one)  # after it: if a signal comes between, a task is not counted, but none is missing

    def _task(self, one: object) -> None:
        taken = self._take(one)
        if taken is None:
            return
        place, batch = taken
        try:
            place.result = self.overlap.call(batch)
        except StopIteration as error:  # it would end the loop
            place.error = RuntimeError("the transform raised StopIteration")
            place.error.__cause__ = error
        except BaseException as error:
            place.error = error
        if place.error is not None:
            place.error.add_note(_where(batch))
        self._done(place)

    def _take(self, one: object) -> tuple[_Place, Batch] | None:
        """The next batch, and its place among the results."""
        with self.turn:
            with self.ready:
                self.asked.discard(one)
                if self.is_over or self.stopped or self.source is None:
                    return None
                place = _Place()
                self.places.append(place)
            try:
                if self.position is None:
                    self._begin_position()
                batch = next(self.source)
                place.state = _Loader.state_dict(self.loader)
            except StopIteration:
                with self.ready:
                    self.source_has_ended = self.is_over = True
                    self.places.remove(place)
                    self.ready.notify_all()
                return None
            except BaseException as error:
                place.error, place.is_of_read = error, True
                self._done(place)
                return None
            assert self.position is not None
            self.position.taken += 1
            if batch.ends_epoch:
                with self.ready:
                    self.source_has_ended = self.is_over = True
            return place, batch

    def _begin_position(self) -> None:
        """Begins the position of this iterator; if it is the newest, also of the loader. Call it with `turn` held."""
        self.position = _Position(_Loader.state_dict(self.loader))
        if self.overlap.is_newest(self):
            self.overlap.position = self.position

    def _done(self, place: _Place) -> None:
        with self.ready:
            place.is_done = True
            if place.error is not None and place in self.places:
                self.is_over = True
            self.ready.notify_all()

    def _restart(self) -> None:
        """In a forked child, continues after the results that were handed out; otherwise ends the iterator."""
        with self.overlap.at_rest():
            if self.source is not None or self.has_ended or self.is_closed:
                return
            if not self.is_forked or self.source_has_ended:
                self.has_ended = True
                return
            if not self.overlap.is_newest(self):
                raise InvalidArgument("only the newest iterator of a loader goes on in a forked child")
            if self.position is not None:
                _Loader.load_state_dict(self.loader, self.position.state)
                self.position = self.overlap.position = None
            self._begin_source()

    def moved(self) -> None:
        """Continues where the loader was moved to. Call it on the newest run, with `turn` held."""
        with self.ready:
            self.places.clear()
            self.position = self.error = None
            self.is_over = False
            self.ready.notify_all()
        if self.source_has_ended and not self.has_ended and not self.stopped:
            self._begin_source()

    def _begin_source(self) -> None:
        """Begins a native iterator again, if the loader is still in the epoch of this iterator."""
        is_here = _epoch(self.loader) == self.epoch
        self.source = _Loader.__iter__(self.loader) if is_here else None
        self.source_has_ended = not is_here
        with self.ready:  # a task that finds no native iterator tells nobody
            self.ready.notify_all()

    def stop(self) -> None:
        """Ends the iterator, since the loader is being closed."""
        self.stopped = True
        with self.ready:
            self.is_closed = True
            self.places.clear()
            self.ready.notify_all()

    def drain(self) -> None:
        """Waits for the tasks of a run that was stopped, and returns its memory."""
        if self.pool is not None:
            with contextlib.suppress(RuntimeError):  # a transform closes its own loader
                self.pool.shutdown(wait=True, cancel_futures=True)
        self.source = None

    def forked(self) -> None:
        """In a forked child: drops the native iterator, which is ahead of the program, and whose lock a thread of the
        parent may have held."""
        self._begin_in_this_process()
        self.source = None
        self.is_forked = True
        self.source_has_ended = self.is_over = False


class Results(Iterator[Any]):
    """The results of a loader's transform over one epoch, in the order of the batches. Threads may share it."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    def __next__(self) -> Any:
        return self._run.next()

    def __length_hint__(self) -> int:
        run = self._run
        left = 0 if run.source is None or run.is_over else operator.length_hint(run.source)
        return len(run.places) + left

    def __del__(self) -> None:
        # No lock and no wait: this may run anywhere. Tasks end with the batch that they have.
        self._run.stopped = True


def _where(batch: Batch) -> str:
    """The batch in which a transform failed."""
    ids = batch.ids.tolist()
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"dlfs: in the transform of a batch of epoch {batch.epoch} with the samples {ids[:_NAMED]}{more}"


# The most samples that an error names.
_NAMED = 64

T = TypeVar("T")


def _remember(refs: list[weakref.ref[T]], one: T) -> None:
    """Adds an object to a list that does not keep it alive. Threads need no lock for that."""
    refs.append(weakref.ref(one, refs.remove))


def _alive(refs: list[weakref.ref[T]]) -> list[T]:
    return [one for ref in refs.copy() if (one := ref()) is not None]


def _epoch(loader: _Loader) -> int:
    """The epoch of the native loader."""
    return int(super(OverlappingLoader, loader).epoch)  # type: ignore[misc]


_OVERLAPS: list[weakref.ref[Overlapped]] = []


def _each(work: Callable[[Overlapped], None]) -> Callable[[], None]:
    def all_of_them() -> None:
        for overlap in _alive(_OVERLAPS):
            work(overlap)

    return all_of_them


os.register_at_fork(after_in_child=_each(Overlapped.forked))
if hasattr(threading, "_register_atexit"):
    # Runs before the interpreter waits for the threads of pools; atexit would be too late.
    threading._register_atexit(_each(Overlapped.end))
