"""States of torchdata's StatefulDataLoader, as its version 0.11 writes and reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def alone(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a loader without workers, whose data set is at `state`."""
    return {
        **_main(),
        "_num_yielded": 0,
        **_parts(state, False),
        "_iterator_finished": False,
    }


def of_workers(each: Sequence[tuple[Mapping[str, Any], bool]], ahead: int) -> dict[str, Any]:
    """The state of a loader with workers at these states, each with True if that worker has ended its epoch. The first
    `ahead` workers have given their batch of a round."""
    workers = {
        f"worker_{at}": {"worker_id": at, **_parts(state, has_ended)}
        for at, (state, has_ended) in enumerate(each)
    }
    return {
        "_snapshot": {
            "_snapshot_step": 0,
            # The next batch comes from the worker after this one.
            "_last_yielded_worker_id": (ahead - 1) % len(each),
            # Workers are seeded with the base seed; shuffling does not use it.
            "_main_snapshot": {**_main(), "_num_workers": len(each), "_base_seed": 0},
            "_worker_snapshots": workers,
        },
        "_steps_since_snapshot": 0,
        "_iterator_finished": False,
    }


def of_sampler(state: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """The state of a loader over a map-style data set, with its batch sampler at `state`."""
    main = {**_main(), "_index_sampler_state": dict(state), "_sampler_iter_state": {"ended": False}}
    if workers == 0:
        idle = {"dataset_state": None, "fetcher_state": None}
        return {**main, "_num_yielded": 0, **idle, "_iterator_finished": False}
    each = {
        f"worker_{at}": {"worker_id": at, "dataset_state": None, "fetcher_state": None}
        for at in range(workers)
    }
    return {
        "_snapshot": {
            "_snapshot_step": 0,
            "_last_yielded_worker_id": workers - 1,
            "_main_snapshot": {**main, "_num_workers": workers, "_base_seed": 0},
            "_worker_snapshots": each,
        },
        "_steps_since_snapshot": 0,
        "_iterator_finished": False,
    }


def _main() -> dict[str, Any]:
    """The state of the main process, for a loader without a sampler's state."""
    return {
        "_index_sampler_state": None,
        "_sampler_iter_state": None,
        "_sampler_iter_yielded": 0,
        "_IterableDataset_len_called": None,
        "_shared_seed": None,
    }


def _parts(state: Mapping[str, Any], has_ended: bool) -> dict[str, Any]:
    """The states of a data set and of its iterator."""
    fetcher = {"dataset_iter_state": {"ended": has_ended}, "fetcher_ended": False}
    return {"dataset_state": dict(state), "fetcher_state": fetcher}
