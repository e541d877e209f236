"""dlfs: reads deep-learning data sets from NVMe namespaces, local or over NVMe/TCP.

    import dlfs

    ds = dlfs.open("nvme-tcp://10.0.0.2:4420/nqn.2026-11.io.dlfs:train")   # or "train.dlfs"
    for epoch in range(10):
        for batch in dlfs.Loader(ds, batch_size=256, seed=1):              # read ahead by native threads
            for view, label in zip(batch, batch.labels): ...               # verified bytes, not copied

What there is:
  open(address)       an open data set: len, ds[i], ds[name], read_batch, labels, classes, names
  Loader(ds, ...)     shuffled batches along an order that can be stopped and gone on with exactly
  Batch               samples that were read together: views, numpy arrays, DLPack
  Sample              one sample of several fields
  dlfs.torch          datasets and samplers for torch.utils.data
  dlfs.grain          a data source for Grain, and so for JAX
  dlfs.fsspec         the read-only file system dlfs:// for pandas, pyarrow and others
  Error               what can go wrong; its subclasses are also the built-in exceptions they resemble

Every byte handed out has had its checksum compared. Images are made by the command `dlfs import`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from ._dlfs import NO_LABEL, Batch, Dataset, Sample, __commit__, __version__
from ._dlfs import Loader as _Loader
from ._errors import (
    Busy,
    Corrupt,
    Disconnected,
    Error,
    FileNotFound,
    IndexOutOfRange,
    Internal,
    InvalidArgument,
    NameNotFound,
    NoSpace,
    NotFound,
    OutOfMemory,
    Refused,
    Stale,
    TimedOut,
    Unsupported,
)

__all__ = [
    "NO_LABEL",
    "Batch",
    "Busy",
    "Corrupt",
    "Dataset",
    "Disconnected",
    "Error",
    "FileNotFound",
    "IndexOutOfRange",
    "Internal",
    "InvalidArgument",
    "Loader",
    "NameNotFound",
    "NoSpace",
    "NotFound",
    "OutOfMemory",
    "Refused",
    "Sample",
    "Stale",
    "TimedOut",
    "Unsupported",
    "__commit__",
    "__version__",
    "open",
]

Address: TypeAlias = str | os.PathLike[str]
Addresses: TypeAlias = Address | bytes | Sequence[Address | bytes]
Order: TypeAlias = Literal["grouped", "global", "sequential", "local", "partial"]
Shard: TypeAlias = Literal["strided", "aligned"]


def open(
    address: Addresses,
    *,
    window_bytes: int = 64 << 20,
    queue_pairs: int = 1,
    deadline: float = 60.0,
    busy_poll: bool = False,
    connect_timeout: float = 10.0,
    io_timeout: float = 5.0,
    keep_alive_tmo: float = 15.0,
    ctrl_loss_tmo: float = 600.0,
    nr_io_queues: int = 16,
    queue_size: int = 128,
    hdr_digest: bool = False,
    data_digest: bool = False,
    hostnqn: str | None = None,
    dhchap_secret: Address | None = None,
    dhchap_ctrl_secret: Address | None = None,
    paths: Sequence[Address] = (),
    direct: Literal["auto", "on", "off"] = "auto",
    snapshot: Address | None = None,
    tiers: Sequence[str] | Address = (),
    policy: Literal["first-touch", "clairvoyant", "none"] | None = None,
    copy_bandwidth: int | None = None,
    stop_at_first_failure: bool = False,
    fields: str | bytes | None = None,
) -> Dataset:
    """Opens the data set that lies at `address`: an image file, a plain folder, a block device, or
    nvme-tcp://HOST[:4420]/NQN[?ns=N]; several, in a list or with commas, where it lies on several.
    Without ?ns= it means all namespaces of the subsystem that hold the data set.

    window_bytes     memory for reads by id or name, in bytes, for each thread that reads
    queue_pairs      queue pairs a namespace; those of one subsystem share them
    deadline         the longest that one read may take, in seconds
    busy_poll        spin instead of sleeping while a call waits
    connect_timeout  how long connecting may take in all, in seconds
    io_timeout       how long a queue may go without progress, in seconds, before its reads go out again on
                     another connection
    keep_alive_tmo   keep-alive timeout: seconds of silence after which a side gives the other up; 0: never
    ctrl_loss_tmo    how long reconnecting goes on, in seconds
    nr_io_queues     I/O queues to ask for
    queue_size       entries of an I/O queue
    hdr_digest       protect PDU headers with CRC32C
    data_digest      protect PDU data with CRC32C; samples are verified in any case
    hostnqn          the host NQN to present
    dhchap_secret    the host's key for DH-HMAC-CHAP: the path of a key file with mode 0600, or the key itself
                     (a pickled data set holds what is given here: better the path)
    dhchap_ctrl_secret   the subsystem's key, by which the target must prove itself, too; a file or the key
    paths            further addresses of the same namespaces, used while the first is down
    direct           whether image files and block devices are read past the page cache
    snapshot         a directory saved by `dlfs snapshot save`, used instead of the image's own
    tiers            where samples are kept after the first read, fastest first: "ram:4G",
                     "file:/fast/cache:20G", which processes of a node share. Or the file that names
                     them, as `dlfs probe` writes it
    policy           what tiers keep: what is read first (the default), or what the plan of each
                     loader's run names
    copy_bandwidth   the most that copying into tiers takes from the data set for itself, in bytes a second
    stop_at_first_failure   stop keeping for good when a sample first fits nowhere
    fields           name of the field that stands for the sample, where samples have several

    Raises FileNotFound, NotFound, Refused, Disconnected, TimedOut, Corrupt, Unsupported; InvalidArgument for an
    address or option that cannot be.
    """
    options = {
        "window_bytes": window_bytes,
        "queue_pairs": queue_pairs,
        "deadline": deadline,
        "busy_poll": busy_poll,
        "connect_timeout": connect_timeout,
        "io_timeout": io_timeout,
        "keep_alive_tmo": keep_alive_tmo,
        "ctrl_loss_tmo": ctrl_loss_tmo,
        "nr_io_queues": nr_io_queues,
        "queue_size": queue_size,
        "hdr_digest": hdr_digest,
        "data_digest": data_digest,
        "hostnqn": hostnqn,
        "dhchap_secret": dhchap_secret,
        "dhchap_ctrl_secret": dhchap_ctrl_secret,
        "paths": list(paths),
        "direct": direct,
        "snapshot": snapshot,
        "tiers_file": tiers if isinstance(tiers, (str, os.PathLike)) else None,
        "tiers": [] if isinstance(tiers, (str, os.PathLike)) else list(tiers),
        "policy": policy,
        "copy_bandwidth": copy_bandwidth,
        "stop_at_first_failure": stop_at_first_failure,
        "fields": fields,
    }
    return Dataset(address, **options)


class Loader(_Loader):
    """Shuffled batches, read ahead by native threads: `for batch in loader` goes through one epoch.

    dataset          what dlfs.open returned
    batch_size       samples a batch on this rank
    order            how samples are mixed: "grouped": whole chunks at a time, several mixed, the fastest;
                     "global": a full shuffle; "sequential"; "local", "partial": a share for each rank
    seed             the same seed gives the same epochs, whatever the world size
    epochs           how many epochs there are; nothing is read ahead beyond the last. None: without end
    rank             which of the ranks this is, from 0
    world_size       how many ranks share each epoch
    shard            how the ranks share each global batch: "strided": each every W-th sample; "aligned", in
                     grouped order: whole chunks to one rank, as far as equal shares allow, for a run that
                     goes on with another world size. The samples of each global batch are the same
    drop_last        leave out what does not fill a batch on every rank; pad: fill it up instead
    prefetch_bytes   the most memory for what is read ahead and not yet dropped, in bytes. None: 256 MiB, and
                     up to 1 GiB where a grouped order of large chunks has more open at a time
    lanes, group     grouped: lanes that take turns (8 for each rank, or those of the state that is loaded),
                     chunks of a lane shuffled together (4). With lanes in a multiple of world_size no chunk
                     is read by two ranks
    by               sequential: "id", or "slot", as samples lie on media, which is faster
    batching         how samples are fetched: "chunk": whole chunks are read, and held until their samples
                     are out; "sample": each sample by itself, just before it is wanted; "none": one read
                     after the other. None chooses: chunks for grouped and by="slot", samples for the rest, and for
                     grouped, too, where samples are large and the page cache holds their chunks
    exchange         partial: part of each share that moves to other ranks in an epoch (0.1)
    contiguous       gather each batch in one piece as it is made, so that Batch.data copies nothing
    on_error         what becomes of a sample that cannot be read: "raise", or "skip" it (stats counts them)
    deadline         the longest that the next batch may take, in seconds
    queue_pairs      queue pairs a namespace; those of one subsystem share them
    busy_poll        spin instead of sleeping in the thread that reads ahead

    Each `for` goes through one epoch from its begin: the next one after one that came to its end, the same
    again after one that was left; right after load_state_dict, it goes on where the state says. Threads
    that share an epoch share one iterator; several iterators read it side by side, in memory of their own.
    The first batch that is asked for starts the reading, which goes on across the ends of epochs.
    prepare() makes the memory for it before.
    A batch that is kept keeps its memory; what does not fit prefetch_bytes then is read outside it. close(),
    or leaving a `with`, ends the reading; batches stay as they are.
    """

    def __new__(
        cls,
        dataset: Dataset,
        batch_size: int,
        order: Order = "grouped",
        *,
        seed: int = 0,
        epochs: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        shard: Shard = "strided",
        drop_last: bool = False,
        pad: bool = False,
        prefetch_bytes: int | None = None,
        lanes: int | None = None,
        group: int | None = None,
        by: Literal["id", "slot"] | None = None,
        exchange: float | None = None,
        batching: Literal["chunk", "sample", "none"] | None = None,
        contiguous: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
        deadline: float = 60.0,
        queue_pairs: int = 1,
        busy_poll: bool = False,
    ) -> Loader:
        return super().__new__(
            cls,
            dataset,
            batch_size=batch_size,
            order=order,
            seed=seed,
            epochs=epochs,
            rank=rank,
            world_size=world_size,
            shard=shard,
            drop_last=drop_last,
            pad=pad,
            prefetch_bytes=prefetch_bytes,
            lanes=lanes,
            group=group,
            by=by,
            exchange=exchange,
            batching=batching,
            contiguous=contiguous,
            on_error=on_error,
            deadline=deadline,
            queue_pairs=queue_pairs,
            busy_poll=busy_poll,
        )


def _reopen(address: Addresses, options: Mapping[str, Any]) -> Dataset:
    """What a pickled data set becomes."""
    return Dataset(address, **options)


def _remake(
    kind: type[Loader], dataset: Dataset, options: Mapping[str, Any], state: Mapping[str, Any]
) -> Loader:
    """What a pickled loader becomes: it goes on where that one stood."""
    # Not by the class's own constructor, which may want other things.
    loader = _Loader.__new__(kind, dataset, **options)
    loader.load_state_dict(state)
    return loader
