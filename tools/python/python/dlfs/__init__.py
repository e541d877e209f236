"""dlfs: reads deep-learning data sets from NVMe namespaces, local or over NVMe/TCP.

    import dlfs

    ds = dlfs.open("nvme-tcp://10.0.0.2:4420/nqn.2026-11.io.dlfs:train")   # or "train.dlfs"
    for epoch in range(10):
        for batch in dlfs.Loader(ds, batch_size=256, seed=1):              # read ahead by native threads
            for view, label in zip(batch, batch.labels): ...               # verified bytes, not copied

Contents:
  open(address)       an open data set: len, ds[i], ds[name], read_batch, labels, classes, names
  Loader(ds, ...)     shuffled batches along an order that can be stopped and resumed exactly
  ShardLoader         batches of shards that were not imported; the first epoch makes their index
  NodeLoader          a Loader that all ranks of a node share: one window, and one process that reads
  Connect, Tiers ...  options of open and Loader, as dicts with types; their keys are keywords, too
  Mixture             several data sets as one sequence, in given proportions
  Batch               samples that were read together: views, numpy arrays, DLPack
  Writer              writes samples as a new image, or adds them to one
  WritePlan           one image by many processes: each writes parts of it, and one commits them
  import_             imports files, arrays, tables, other libraries' data sets and iterables
  delete, purge       delete samples of an image, and free their space
  save_views          saves parts of a data set (Dataset.select, Dataset.split), which open(view=) opens
  Sample              one sample of several fields: a mapping of names to views, or to arrays of fields with types
  dlfs.tokens         documents of tokens, packed into arrays for language models
  dlfs.images         decodes batches of pictures into tensors, with random crops
  random_of           random numbers for augmenting a sample that do not depend on ranks, workers or resuming
  dlfs.torch          datasets and samplers for torch.utils.data
  dlfs.grain          a data source for Grain, and so for JAX
  dlfs.ray            a sink and a source for Ray Data
  dlfs.pls, .hdmlp    the interfaces of partial local shuffling and of HDMLP (NoPFS)
  dlfs.dali           a source for NVIDIA DALI's external_source
  dlfs.fsspec         the read-only file system dlfs:// for pandas, pyarrow and others
  Error               the base of all errors; its subclasses also derive from similar built-in exceptions

All bytes are verified with checksums. The command `dlfs import` creates images, too.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias, Unpack

import numpy

from ._dlfs import (
    NO_LABEL,
    Batch,
    Dataset,
    DeviceArray,
    OnDevice,
    Report,
    Sample,
    SampleFile,
    ShardLoader,
    __commit__,
    __version__,
)
from ._dlfs import delete as _delete
from ._dlfs import purge as _purge
from ._dlfs import save_views as _save_views
from ._device import named as _named
from ._errors import (
    Busy,
    Corrupt,
    DeviceLost,
    Disconnected,
    Error,
    FileNotFound,
    IndexOutOfRange,
    Internal,
    InvalidArgument,
    NameNotFound,
    NoArray,
    NoSpace,
    NotFound,
    OutOfMemory,
    Refused,
    Stale,
    TimedOut,
    Unsupported,
    WorkerDied,
)
from ._fields import FieldType
from ._import import import_
from ._mixture import Mixture, choose, repeat
from ._options import (
    Address,
    Connect,
    Fields,
    Load,
    Loading,
    Opening,
    Order,
    Ordering,
    OrderName,
    Overlap,
    Overlapping,
    Peers,
    Read,
    Store,
    Tiers,
    Tokens,
)
from ._overlap import Overlapped, OverlappingLoader
from ._parts import PartWriter, WritePlan, WrittenPart
from ._random import random_of
from ._writer import Writer, Written

__all__ = [
    "NO_LABEL",
    "Batch",
    "Busy",
    "Connect",
    "Corrupt",
    "Dataset",
    "DeviceArray",
    "DeviceLost",
    "Disconnected",
    "Error",
    "FieldType",
    "FileNotFound",
    "IndexOutOfRange",
    "Internal",
    "InvalidArgument",
    "Load",
    "Loader",
    "Loading",
    "Mixture",
    "NameNotFound",
    "NoArray",
    "NoSpace",
    "NodeLoader",
    "NotFound",
    "OnDevice",
    "Opening",
    "Order",
    "Ordering",
    "OutOfMemory",
    "Overlap",
    "Overlapping",
    "PartWriter",
    "Peers",
    "Read",
    "Refused",
    "Report",
    "Sample",
    "SampleFile",
    "ShardLoader",
    "Stale",
    "Store",
    "Tiers",
    "TimedOut",
    "Tokens",
    "Unsupported",
    "WorkerDied",
    "WritePlan",
    "Writer",
    "Written",
    "WrittenPart",
    "__commit__",
    "__version__",
    "choose",
    "delete",
    "import_",
    "open",
    "purge",
    "random_of",
    "repeat",
    "save_views",
]

Addresses: TypeAlias = Address | bytes | Sequence[Address | bytes]

Mapping.register(Sample)


def delete(
    address: Addresses,
    samples: Iterable[SupportsIndex | str | bytes],
    *,
    accept_older_generation: bool = False,
    **options: Unpack[Connect],
) -> int:
    """Deletes samples of the image at `address` in one generation; returns the number of samples deleted.

    samples                  ids (integers or an integer array) or names (str or bytes), any number of them
    accept_older_generation  overwrite a bad superblock copy even if that may lose a newer generation
    options                  how to connect, as for dlfs.open

    A data set that is open stays at its generation; the bytes stay until dlfs.purge. A deleted sample may be deleted
    again by its id, but not by its name. Raises NotFound, which lists up to 20 ids that the image never had or names
    that it does not have, and then nothing is deleted; Busy if another process is changing the image.
    """
    return _delete(address, samples, accept_older_generation=accept_older_generation, **options)


def purge(
    address: Addresses, *, accept_older_generation: bool = False, **options: Unpack[Connect]
) -> int:
    """Frees the space of deleted samples; returns how many bytes can be reused two generations later.

    The arguments are those of dlfs.delete. A file becomes as small as an import of its samples would make it.
    Data sets that are open have to be opened again. Ctrl-C ends the purge, and the image stays whole. Raises Corrupt
    if a sample to be kept is damaged, NoSpace without room for one chunk, Busy as dlfs.delete.
    """
    return _purge(address, accept_older_generation=accept_older_generation, **options)


def save_views(path: Address, views: Mapping[str, Dataset]) -> None:
    """Saves data sets as named views in the file `path`: dlfs.open(address, view="PATH:NAME") opens one.

    views            names and data sets of one image and generation, such as those that Dataset.split returns

    The file is replaced as a whole: a crash leaves the old one or the new one. A view belongs to its image and
    generation. Raises InvalidArgument if the data sets differ in these, or if a name is empty or has a colon.
    """
    _save_views(path, dict(views))


def open(
    address: Addresses, *, connect: Connect | None = None, **options: Unpack[Opening]
) -> Dataset:
    """Opens the data set at `address`: an image file, a plain folder, a block device, or
    nvme-tcp://HOST[:4420]/NQN[?ns=N]; a list of these, or a string with commas, for a striped image.
    An address without ?ns= names all namespaces of the subsystem that belong to the data set.

    connect          how to connect: dlfs.Connect(...), whose options may also be keywords here
    options          dlfs.Opening: those of dlfs.Connect, dlfs.Tiers, dlfs.Peers and of reads. The most used:
                     tiers=["ram:4G", "file:/fast/cache:20G"], also one such text, or a file that describes them;
                     policy, fields, view, snapshot, peers. A pickled data set contains its options, so name keys by
                     their paths. With peers, open waits until all ranks have joined. A loader that is to take its rank
                     and world size from the launcher names `peers`, too

    Raises FileNotFound, NotFound, Refused, Disconnected, TimedOut, Corrupt, Unsupported; InvalidArgument for an
    invalid address or option.
    """
    given: dict[str, Any] = {**(connect or {}), **options}
    if given.get("paths") is not None and not isinstance(given["paths"], (str, bytes, os.PathLike)):
        given["paths"] = list(given["paths"])
    if given.get("tiers") is not None:
        given["tiers"], given["tiers_file"] = _tiers(given["tiers"])
    joins = [*Peers.__annotations__, "rank", "world_size"]
    joining = {name: given.pop(name) for name in joins if name in given}
    joining = {name: value for name, value in joining.items() if value is not None}
    peers = joining.pop("peers", None)
    if joining and peers is None:
        raise TypeError(f"open() got {', '.join(joining)} without peers")
    dataset = Dataset(address, **given)
    if peers is not None:
        try:
            dataset.join_peers(peers, **joining)
        except BaseException:
            dataset.close()
            raise
    return dataset


def _tiers(tiers: Sequence[str] | Address) -> tuple[list[str], Address | None]:
    """The option `tiers` as a list of tiers and the file that describes tiers: one of the two is empty."""
    if isinstance(tiers, str) and tiers.startswith(("ram:", "file:", "nvme-tcp:")):
        return [tiers], None
    if isinstance(tiers, (str, os.PathLike)):
        return [], tiers
    return list(tiers), None


class Loader(OverlappingLoader):
    """Shuffled batches, read ahead by native threads: `for batch in loader` reads one epoch.

    dataset          a data set that dlfs.open returned, or a dlfs.Mixture of several
    batch_size       samples per batch on this rank. None: with batch_tokens, a budget of tokens instead
    order            how to shuffle samples: "grouped": whole chunks at a time, several mixed, the fastest;
                     "global": a full shuffle; "sequential"; "local", "partial": a share for each rank;
                     "weighted": drawn in proportion to `weights`
    rank, world_size this process among those that share each epoch, from 0. None: 0 and 1, or with
                     `peers` the launcher's
    data_rank        with data_world_size, in place of rank and world_size, if several processes get the same batches,
                     as in tensor, pipeline and context parallelism: these have one data_rank. Peers are still joined
                     by rank and world_size. dlfs.torch.data_place takes data_rank and data_world_size from a device
                     mesh
    options          dlfs.Loading: seed, epochs, drop_last, pad, window, fields and the others of dlfs.Order, dlfs.Load,
                     dlfs.Read, dlfs.Tokens, dlfs.Peers and dlfs.Store, as keywords or **dlfs.Peers(...); pin and
                     device for a GPU
    transform, threads, ahead, processes
                     dlfs.Overlap: iterators hand out the results of a function of batches, in the order of the batches,
                     which threads or processes compute while the program works on earlier ones. States, epochs and
                     ends are those of the results that were handed out. The first error of the function comes in the
                     place of its result, and again at each later request of that iterator

    `peers` may also be a list of the ranks' addresses, a store of torch.distributed, a communicator of mpi4py, or any
    object with set(key, value) and get(keys); "auto" takes the store of torch.distributed or MPI if one is initialised.

    Each `for` reads one epoch from its start: the next epoch if the last one was completed, otherwise the
    same one again; right after load_state_dict, it resumes from the state. Threads that share an epoch share
    one iterator; several iterators read the epoch independently, each with its own memory.
    The request for the first batch starts readahead, which continues across epochs. prepare() allocates its
    memory earlier.
    A batch that the program keeps also keeps its memory; if the next ones then do not fit `window`, they are allocated
    outside it.
    close(), or leaving a `with`, ends readahead; batches stay valid.
    """

    def __new__(
        cls,
        dataset: Dataset | Mixture,
        batch_size: int | None = None,
        order: OrderName = "grouped",
        *,
        rank: int | None = None,
        world_size: int | None = None,
        data_rank: int | None = None,
        data_world_size: int | None = None,
        **options: Unpack[Overlapping],
    ) -> Loader:
        _check("Loader", options, Overlapping)  # before it joins peers
        given = _given(options)
        overlap = {name: given.pop(name) for name in Overlap.__annotations__ if name in given}
        if overlap and "transform" not in overlap:
            raise TypeError(f"Loader() got {', '.join(overlap)} without transform")
        overlapped = Overlapped(**overlap, seed=given.get("seed", 0), pin=given.get("pin")) if overlap else None
        if data_rank is not None or data_world_size is not None:
            place = _data_place(data_rank, data_world_size, given.get("store"))
            joining = {name: given.pop(name) for name in Peers.__annotations__ if name in given}
            if "peers" in joining:
                if rank is not None:
                    joining["rank"] = rank
                if world_size not in (None, 1):
                    joining["world_size"] = world_size
                _peerless(dataset).join_peers(joining.pop("peers"), **joining)
            rank, world_size = place
        if rank is None and world_size is None and given.get("node_loader"):
            rank, world_size = _launched()
        if rank is None and world_size in (None, 1) and "peers" not in given:
            _warn_of_launcher()
        world_size = 1 if world_size is None else world_size
        given |= {"batch_size": batch_size, "order": order}
        loader = super().__new__(cls, dataset, rank=rank or 0, world_size=world_size, **given)
        loader._overlap = overlapped
        return loader


class NodeLoader(Loader):
    """A Loader that the ranks of a node share: one of their processes reads, for all of them, into one window.

    Each rank makes one, with the arguments of Loader, and gets the batches of a Loader, without a copy. rank and
    world_size are the launcher's by default, and so are local_rank, local_world_size and job; without a launcher all
    ranks are on this node. On several nodes, ranks are numbered by turns: the batches of local rank l of node n of N
    are those of rank n + N * l of a Loader.

    Batches are read-only memory of another process: writing to one through an alias, such as torch.frombuffer, ends
    this process. All ranks take their batches in step; one that keeps its batches holds the others up.
    """

    def __new__(cls, *args: Any, **options: Any) -> NodeLoader:
        return super().__new__(cls, *args, **{"node_loader": True, **options})  # type: ignore[return-value]


def _launched() -> tuple[int | None, int | None]:
    """Rank and world size from the environment variables of torchrun; None for both if they are not set."""
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(world_size)) if rank.isdecimal() and world_size.isdecimal() else (None, None)


def _check(whose: str, options: Mapping[str, Any], known: Any) -> None:
    """Raises TypeError for an option that is none of the TypedDict `known`."""
    for name in options:
        if name not in known.__optional_keys__:
            raise TypeError(f"{whose}() got an unexpected keyword argument '{name}'")


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not None, with weights and device as the library takes them."""
    given = {name: value for name, value in options.items() if value is not None}
    if "device" in given:
        name = _named(given.pop("device"))
        given |= {} if name is None else {"device": name, "pin": given.get("pin", "auto")}
    if "weights" in given:
        given["weights"] = _numbers(given["weights"])
    return given


class _Numbers(bytes):
    """Numbers as the bytes of float64, an option that compares and pickles by value and prints briefly."""

    def __repr__(self) -> str:
        return f"<{len(self) // 8} numbers>"


def _numbers(given: Any) -> Any:
    """An array, sequence or tensor of numbers as bytes; names and dicts as they are."""
    if isinstance(given, (str, bytes)):
        return given
    if isinstance(given, Mapping):
        return dict(given)
    array = numpy.asarray(given, dtype="<f8")
    if array.ndim != 1:
        raise InvalidArgument(f"weights: one number for each sample, not an array of shape {array.shape}")
    return _Numbers(array.tobytes())


def _data_place(
    data_rank: int | None, data_world_size: int | None, store: str | None
) -> tuple[int, int]:
    """Checks data_rank and data_world_size, of which at least one was given; returns them."""
    if data_rank is None or data_world_size is None:
        raise TypeError("data_rank and data_world_size are given together, or neither")
    if not 0 <= data_rank < data_world_size:
        raise InvalidArgument(f"there is no data rank {data_rank} of {data_world_size}")
    if store is not None:
        raise InvalidArgument("a store keeps the share of a rank of its own: leave data_rank out")
    return data_rank, data_world_size


def _peerless(dataset: Dataset | Mixture) -> Dataset:
    """The data set, which can join peers. Raises InvalidArgument for a mixture, which cannot."""
    if isinstance(dataset, Dataset):
        return dataset
    raise InvalidArgument(
        "peers are of one data set, not of a mixture: dlfs.open or Dataset.join_peers of each joins them"
    )


def _warn_of_launcher() -> None:
    """Warns, once, if torchrun has started several processes. The caller has checked that no rank was given."""
    global _warned_of_launcher
    ranks = os.environ.get("WORLD_SIZE", "1")
    if _warned_of_launcher or "RANK" not in os.environ or not ranks.isdecimal() or int(ranks) < 2:
        return
    _warned_of_launcher = True
    warnings.warn(
        f"each of the {ranks} processes of this job reads the whole epoch: pass rank and world_size, or call "
        "torch.distributed.init_process_group before the first epoch of dlfs.torch; rank=0, world_size=1 if "
        "something else divides the data",
        stacklevel=3,
    )


_warned_of_launcher = False


def _reopen(
    address: Addresses,
    options: Mapping[str, Any],
    peers: str | None = None,
    snapshot: tuple[int, int, int, int] | None = None,
) -> Dataset:
    """Unpickles a data set, which reads through the peers that the pickled one had joined.

    snapshot         place of the directory that the pickling process shares, if that process spawned this one
    """
    if snapshot is not None:
        options = {**options, "shared_snapshot": snapshot}
    dataset = Dataset(address, **options)
    if peers is not None:
        dataset._attach_to_peers(peers)
    return dataset


def _remake(
    kind: type[Loader], dataset: Dataset | Mixture, options: Mapping[str, Any], state: Mapping[str, Any]
) -> Loader:
    """Unpickles a loader, which resumes from the pickled state."""
    # Not through the subclass's own constructor, which may take other arguments.
    loader = OverlappingLoader.__new__(kind, dataset, **options)
    loader.load_state_dict(state)
    return loader
