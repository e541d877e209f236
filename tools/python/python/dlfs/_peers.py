"""Meeting places of the ranks of a job: the objects that the option `peers` takes, with one interface for the native
half.

Each class here has set(round, rank, record), get(round, world_size, seconds) -> a record or None for each rank, and
describe(). A record is at most 1 KiB of bytes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ._errors import TimedOut

# A text for the native half, or an object of this module; rank and world size if torch.distributed or MPI knows them.
_Resolved = tuple[str | None, Any, tuple[int, int] | None]


def resolve(peers: Any) -> _Resolved:
    """The meeting place that `peers` names. Raises TypeError if ranks cannot meet there."""
    if isinstance(peers, str) and peers == "auto":
        return _auto()
    if isinstance(peers, (str, os.PathLike)):
        return os.fsdecode(peers), None, None
    if isinstance(peers, (list, tuple)):
        return ",".join(map(str, peers)), None, None
    if hasattr(peers, "Iallgather") and hasattr(peers, "Get_rank"):
        return None, _Communicator(peers), (peers.Get_rank(), peers.Get_size())
    if hasattr(peers, "set") and (hasattr(peers, "multi_get") or hasattr(peers, "wait")):
        return None, _Store(peers), _group()
    if hasattr(peers, "set") and hasattr(peers, "get"):
        return None, _Object(peers), None
    raise TypeError(
        '"auto", a folder, a list of addresses, a store of torch.distributed, a communicator of mpi4py, or an '
        f"object with set(key, value) and get(keys), not {peers!r}"
    )


def _auto() -> _Resolved:
    """The store of an initialised torch.distributed, else MPI if it is initialised and has several ranks, else "auto":
    the native half then reads the launcher's variables."""
    if (place := _group()) is not None:
        from torch.distributed import distributed_c10d

        return None, _Store(distributed_c10d._get_default_store()), place
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.Get_size() > 1:
        world = mpi.COMM_WORLD
        return None, _Communicator(world), (world.Get_rank(), world.Get_size())
    return "auto", None, None


def _group() -> tuple[int, int] | None:
    """Rank and world size of torch.distributed, if the program has initialised it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _keys(round: str, ranks: Sequence[int]) -> list[str]:
    return [f"dlfs/{round}/{rank}" for rank in ranks]


class _Store:
    """A store of torch.distributed."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, round: str, rank: int, record: bytes) -> None:
        self._store.set(_keys(round, [rank])[0], record)

    def get(self, round: str, world_size: int, seconds: float) -> list[bytes | None]:
        keys = _keys(round, range(world_size))
        wait = min(max(seconds, 0.01), _SLICE)
        begun = time.monotonic()
        try:
            self._store.wait(keys, timedelta(seconds=wait))
        except RuntimeError:  # what torch raises when the time is over, and also when the store is gone
            if time.monotonic() - begun < wait / 2:
                raise
            if seconds > _SLICE:
                return [None] * world_size  # the next call goes on waiting
            return [self._store.get(key) if self._store.check([key]) else None for key in keys]
        return self._all(keys)

    def _all(self, keys: list[str]) -> list[bytes | None]:
        """The values of keys that are all there, with one message if the store can."""
        if hasattr(self._store, "multi_get"):
            try:
                return list(self._store.multi_get(keys))
            except (RuntimeError, NotImplementedError):
                pass  # the store has the method, but does not support it
        return [self._store.get(key) for key in keys]

    def describe(self) -> str:
        return f"the {type(self._store).__name__} of torch.distributed"


class _Communicator:
    """A communicator of mpi4py: one collective call that does not block, tested until it has ended."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self._own = b""
        self._request: Any = None
        self._gathered = bytearray()

    def set(self, round: str, rank: int, record: bytes) -> None:
        self._own, self._request = record.ljust(_RECORD, b"\0"), None

    def get(self, round: str, world_size: int, seconds: float) -> list[bytes | None]:
        if self._request is None:
            self._gathered = bytearray(_RECORD * world_size)
            self._request = self._communicator.Iallgather(self._own, self._gathered)
        end = time.monotonic() + min(seconds, _SLICE)
        while not self._request.Test():
            if time.monotonic() >= end:
                if seconds <= _SLICE:
                    raise TimedOut(
                        f"MPI's allgather of {world_size} ranks has not ended: some rank did not join its peers; "
                        "look at the other processes' output"
                    )
                return [None] * world_size
            time.sleep(0.001)
        each = [self._gathered[at : at + _RECORD] for at in range(0, len(self._gathered), _RECORD)]
        return [bytes(record.rstrip(b"\0")) for record in each]

    def describe(self) -> str:
        return "MPI"


class _Object:
    """Any object with set(key, value) and get(keys), which returns a value or None for each key."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def set(self, round: str, rank: int, record: bytes) -> None:
        self._given.set(_keys(round, [rank])[0], record)

    def get(self, round: str, world_size: int, seconds: float) -> list[bytes | None]:
        return list(self._given.get(_keys(round, range(world_size))))

    def describe(self) -> str:
        return f"the {type(self._given).__name__} that the program gave"


# The length of a record in an allgather of MPI, in bytes.
_RECORD = 1024
# Seconds of one wait. The native half checks for signals between two waits.
_SLICE = 0.5
