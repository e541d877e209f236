"""Rank and world size of a process: as given, from torch.distributed, from a device mesh, or within a node."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed

from ._errors import InvalidArgument


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, else from torch.distributed, else 0 and 1."""
    if rank is None:
        rank = torch.distributed.get_rank() if in_group() else 0
    if world_size is None:
        world_size = torch.distributed.get_world_size() if in_group() else 1
    return rank, world_size


def local_place_of(options: Mapping[str, Any], place: tuple[int, int]) -> tuple[int, int]:
    """Local rank and local world size of a node loader: as given; else from torchrun's variables, if these have the
    same rank and world size; else those of all ranks, if torchrun's variables are not set.

    Raises InvalidArgument if they contradict rank and world size: ranks would read the samples of others.
    """
    local_rank, local_size = options.get("local_rank"), options.get("local_world_size")
    rank, size = place
    if local_rank is None and local_size is None:
        names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
        said = [int(value) if value.isdecimal() else None for value in (os.environ.get(name, "") for name in names)]
        if said == [None] * len(names):
            local_rank, local_size = place
        elif said[:2] == [rank, size]:
            local_rank, local_size = said[2:]
    if local_rank is not None and local_size is not None and 0 <= local_rank < local_size:
        first = rank - local_rank  # of the node
        if size % local_size == 0 and first >= 0 and first % local_size == 0:
            return local_rank, local_size
    raise InvalidArgument(
        f"node_loader: rank {rank} of {size} is not known to be, or cannot be, local rank {local_rank} of {local_size}:"
        " initialise torch.distributed first, or give local_rank and local_world_size; nodes have consecutive ranks"
    )


def by_turns(rank: int, world_size: int, local_rank: int, local_world_size: int) -> int:
    """The rank that a node loader gives to one of the launcher's: of N nodes, node n has the ranks n, n + N, ..."""
    return rank // local_world_size + local_rank * (world_size // local_world_size)


def as_launched(rank: int, world_size: int, local_world_size: int) -> dict[str, int]:
    """The options of a node loader for the rank that by_turns gives."""
    nodes = world_size // local_world_size
    seat = rank // nodes
    numbers = {"rank": rank % nodes * local_world_size + seat, "world_size": world_size}
    return {**numbers, "local_rank": seat, "local_world_size": local_world_size}


def without_node(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those of a node loader."""
    own = ("node_loader", "local_rank", "local_world_size", "job")
    return {name: value for name, value in options.items() if name not in own}


def data_place(mesh: Any, dims: str | Sequence[str] | None = None) -> tuple[int, int]:
    """Data rank and data world size of this process in a torch DeviceMesh: its place in `dims`, the dimensions that
    divide the data. Processes that differ in other dimensions only, as those of tensor, pipeline and context
    parallelism, get the same batches.

        rank, world_size = dlfs.torch.data_place(mesh, ("dp_replicate", "dp_shard"))
        data = dlfs.torch.IterableDataset(ds, 256, data_rank=rank, data_world_size=world_size)

    dims     names of dimensions, the first one the slowest. None: those whose names begin with "dp", or "data"
    """
    names = mesh.mesh_dim_names
    if names is None:
        raise ValueError("the mesh has no names of dimensions: init_device_mesh(..., mesh_dim_names=...)")
    if dims is None:
        dims = [name for name in names if name.startswith(("dp", "data"))]
    wanted = [dims] if isinstance(dims, str) else list(dims)
    missing = [name for name in wanted if name not in names]
    if missing or not wanted:
        what = f"no dimension {missing[0]}" if missing else "no dimension for data"
        raise ValueError(f"the mesh has {what}: it has {', '.join(names)}")
    place = mesh.get_coordinate()
    if place is None:
        raise ValueError("this process is not in the mesh")
    rank, world_size = 0, 1
    for name in wanted:
        size = mesh.size(names.index(name))
        rank, world_size = rank * size + place[names.index(name)], world_size * size
    return rank, world_size


def warn_unequal(
    batches_left: Callable[[int], int],
    place: tuple[int, ...],
    options: Mapping[str, Any],
    grouped: bool = False,
) -> bool:
    """Warns if ranks that synchronise at each batch have different numbers of batches; returns whether it warned."""
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
    """Returns whether this process is part of a torch.distributed group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
