"""Rank and world size of a process, and what torch.distributed says of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed


def changed(**options: tuple[Any, Any]) -> dict[str, Any]:
    """The options whose value is not the default that stands behind it; the library knows the others."""
    return {name: value for name, (value, default) in options.items() if value != default}


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, else from torch.distributed, else 0 and 1."""
    if rank is None:
        rank = torch.distributed.get_rank() if in_group() else 0
    if world_size is None:
        world_size = torch.distributed.get_world_size() if in_group() else 1
    return rank, world_size


def warn_unequal(
    batches_left: Callable[[int], int],
    place: tuple[int, ...],
    options: Mapping[str, Any],
    grouped: bool = False,
) -> bool:
    """Warns if ranks that synchronise at each batch have different numbers of batches; returns whether it
    did."""
    world_size = place[1]
    equalised = options.get("pad") or options.get("drop_last")
    if world_size < 2 or equalised or not (grouped or in_group()):
        return False
    # The first rank has the most batches of an epoch, the last one the fewest.
    most, least = batches_left(0), batches_left(world_size - 1)
    if most == least:
        return False
    warnings.warn(
        f"rank 0 has {most} batches in this epoch and rank {world_size - 1} has {least}: collective operations "
        "for each batch, such as an all-reduce of gradients, mismatch at the end, or wait for ever. "
        "Pass pad=True, which repeats a few samples, or drop_last=True, which drops a few",
        stacklevel=3,
    )
    return True


def in_group() -> bool:
    """Whether this process is part of a torch.distributed group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
