"""Progress of a loop over a map-style data set, while torch draws batches from the sampler ahead of the loop.

Each draw appends a note: the sampler's state after the draw. torch hands out batches in the order in which they were
drawn, so the oldest note belongs to the batch that the loop takes next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.utils.data

from . import InvalidArgument, Unsupported
from ._sampler import BatchSampler, Drawn
from ._stateful import of_sampler


class Draws(torch.utils.data.Sampler[list[int]]):
    """A BatchSampler that notes its draws for a run; all other calls go to the sampler."""

    def __init__(self, sampler: BatchSampler) -> None:
        self.sampler = sampler
        # The run that gets the notes of the next iterator; None: draws are not noted.
        self.run: Run | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[int]]:
        drawn = self.sampler.drawn()
        return drawn if self.run is None else _noted(drawn, self.run)

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sampler.load_state_dict(state)


def _noted(drawn: Drawn, run: Run) -> Iterator[list[int]]:
    for indices in drawn:
        run.notes.append(drawn.place())
        yield indices


class Run:
    """Progress of an iterator: notes of batches drawn and not yet handed out, and the state after those handed out."""

    def __init__(self, begun: dict[str, Any]) -> None:
        self.begun, self.had = begun, begun
        self.notes: deque[tuple[dict[str, Any], bool]] = deque()
        self.has_ended = False

    def hand_out(self) -> None:
        """Notes that the loop takes the oldest batch that was drawn."""
        self.had, is_last = self.notes.popleft()
        if is_last:
            self.end()

    def end(self) -> None:
        """Notes that the loop has had the whole epoch."""
        self.had, self.has_ended = {**self.begun, "epoch": self.begun["epoch"] + 1, "consumed": 0}, True


class MapStyle:
    """The part of a dlfs.torch.DataLoader that is for a map-style data set."""

    def __init__(self, sampler: BatchSampler) -> None:
        self.draws = Draws(sampler)
        self._sampler = sampler
        # The state in which the next iterator begins, unless the sampler was moved since.
        self._next, self._moves = sampler.state_dict(), sampler.moves
        self._run: Run | None = None

    def items(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The batches of the next iterator; `begin` makes torch's own iterator."""
        place = self._begin()
        if place["epoch"] >= self._sampler.epochs:
            return
        self._go_to(place)
        run = self._run = self.draws.run = Run(place)
        # A loaded place is for one iterator. If the loop leaves this one early, the next one begins its epoch again.
        self._next = {**place, "consumed": 0}
        batches = begin()
        self.draws.run = None
        for item in batches:
            run.hand_out()
            self._follow(run)
            yield item
        run.end()  # no note ends the epoch if this rank has nothing of its last batch
        self._follow(run)

    def _follow(self, run: Run) -> None:
        if self._run is run and run.has_ended:
            self._next = run.had

    def _begin(self) -> dict[str, Any]:
        """The state in which the next iterator begins."""
        if self._run is None:
            self._sampler._follow_rank()
        if self._sampler.moves != self._moves:  # the user has moved the sampler, or its rank is another one
            self._next, self._moves, self._run = self._sampler.next_place(), self._sampler.moves, None
        return self._next

    def _go_to(self, place: Mapping[str, Any]) -> None:
        self._sampler._move_to(place)
        self._next, self._moves, self._run = self._sampler.next_place(), self._sampler.moves, None

    def set_epoch(self, epoch: int) -> None:
        place = self._begin()
        if epoch < 0:
            raise InvalidArgument(f"there is no epoch {epoch}")
        if self._run is not None or epoch != place["epoch"]:
            self._go_to({**place, "epoch": epoch, "consumed": 0})

    def state_dict(self) -> dict[str, Any]:
        place = self._begin()
        return dict(place if self._run is None else self._run.had)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "_snapshot" in state or "_num_yielded" in state:
            state = _of_stateful(state)
        self._sampler.load_state_dict(state)

    def stateful_state_dict(self, workers: int) -> dict[str, Any]:
        return of_sampler(self.state_dict(), workers)


def _of_stateful(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sampler's state within a state of StatefulDataLoader."""
    try:
        behind = int(state.get("_steps_since_snapshot", 0))
        main = state["_snapshot"]["_main_snapshot"] if "_snapshot" in state else state
        sampler = main["_index_sampler_state"]
        sampler["epoch"], sampler["consumed"]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            "this is not a state of a StatefulDataLoader over a map-style data set with a dlfs.torch.BatchSampler: "
            f"it lacks {error}"
        ) from None
    if behind:
        raise Unsupported(
            f"this state of a StatefulDataLoader is {behind} batches behind what was read: "
            "take states with snapshot_every_n_steps=1"
        )
    return dict(sampler)
