"""dlfs: reads deep-learning data sets from NVMe namespaces, local or over NVMe/TCP.

    import dlfs

    ds = dlfs.open("nvme-tcp://10.0.0.2:4420/nqn.2026-11.io.dlfs:train")   # or "train.dlfs"
    for epoch in range(10):
        for batch in dlfs.Loader(ds, batch_size=256, seed=1):              # read ahead by native threads
            for view, label in zip(batch, batch.labels): ...               # verified bytes, not copied

Contents:
  open(address)       an open data set: len, ds[i], ds[name], read_batch, labels, classes, names
  Loader(ds, ...)     shuffled batches along an order that can be stopped and resumed exactly
  Mixture             several data sets as one sequence, in given proportions
  Batch               samples that were read together: views, numpy arrays, DLPack
  Writer              writes samples as a new image, or adds them to one
  WritePlan           one image by many processes: each writes parts of it, and one commits them
  import_             imports files, arrays, tables, other libraries' data sets and iterables
  delete, purge       samples leave an image, and their space is freed
  save_views          saves parts of a data set (Dataset.select, Dataset.split), which open(view=) opens
  Sample              one sample of several fields: a mapping of names to views, or to arrays of fields with types
  dlfs.torch          datasets and samplers for torch.utils.data
  dlfs.grain          a data source for Grain, and so for JAX
  dlfs.ray            a sink and a source for Ray Data
  dlfs.fsspec         the read-only file system dlfs:// for pandas, pyarrow and others
  Error               the base of all errors; its subclasses also derive from similar built-in exceptions

All bytes are verified with checksums. The command `dlfs import` creates images, too.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy

from ._dlfs import NO_LABEL, Batch, Dataset, Report, Sample, SampleFile, __commit__, __version__
from ._dlfs import Loader as _Loader
from ._dlfs import delete as _delete
from ._dlfs import purge as _purge
from ._dlfs import save_views as _save_views
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
    NoArray,
    NoSpace,
    NotFound,
    OutOfMemory,
    Refused,
    Stale,
    TimedOut,
    Unsupported,
)
from ._fields import FieldType
from ._import import import_
from ._mixture import Mixture, choose, repeat
from ._parts import PartWriter, WritePlan, WrittenPart
from ._writer import Writer, Written

__all__ = [
    "NO_LABEL",
    "Batch",
    "Busy",
    "Corrupt",
    "Dataset",
    "Disconnected",
    "Error",
    "FieldType",
    "FileNotFound",
    "IndexOutOfRange",
    "Internal",
    "InvalidArgument",
    "Loader",
    "Mixture",
    "NameNotFound",
    "NoArray",
    "NoSpace",
    "NotFound",
    "OutOfMemory",
    "PartWriter",
    "Refused",
    "Report",
    "Sample",
    "SampleFile",
    "Stale",
    "TimedOut",
    "Unsupported",
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
    "repeat",
    "save_views",
]

Address: TypeAlias = str | os.PathLike[str]
Addresses: TypeAlias = Address | bytes | Sequence[Address | bytes]
Order: TypeAlias = Literal["grouped", "global", "sequential", "local", "partial", "weighted"]
# Numbers, one a sample; or {label or class: weight}; or "balanced".
Weights: TypeAlias = Sequence[float] | Mapping[int, float] | Mapping[str, float] | Literal["balanced"] | Any
Shard: TypeAlias = Literal["strided", "aligned", "local"]
Fields: TypeAlias = str | bytes | Sequence[str | bytes]

Mapping.register(Sample)


def delete(
    address: Addresses,
    samples: Iterable[SupportsIndex | str | bytes],
    *,
    accept_older_generation: bool = False,
    **options: Any,
) -> int:
    """Deletes samples of the image at `address` in one generation; returns how many there were.

    samples                  ids (integers or an integer array) or names (str or bytes), as many as there are
    accept_older_generation  overwrite a bad superblock copy even if that may lose a newer generation
    options                  how to connect, as for dlfs.open

    A data set that is open stays at its generation; the bytes stay until dlfs.purge. A sample that is deleted
    already may be deleted again by its id. Raises NotFound, which lists up to 20 ids or names that the image
    never had, and then nothing is deleted; Busy if another process is changing the image.
    """
    return _delete(address, samples, accept_older_generation=accept_older_generation, **options)


def purge(address: Addresses, *, accept_older_generation: bool = False, **options: Any) -> int:
    """Frees the space of deleted samples; returns how many bytes can be reused two generations later.

    The arguments are those of dlfs.delete. A file becomes as small as an import of its samples would make it.
    Data sets that are open have to be opened again. Ctrl-C ends it, and the image stays whole. Raises Corrupt
    if a sample to be kept is damaged, NoSpace without room for one chunk, Busy.
    """
    return _purge(address, accept_older_generation=accept_older_generation, **options)


def save_views(path: Address, views: Mapping[str, Dataset]) -> None:
    """Saves data sets as named views in the file `path`: dlfs.open(address, view="PATH:NAME") opens one.

    views            names and data sets of one image and generation, such as what Dataset.split returns

    The file is replaced as a whole: a crash leaves the old one or the new one. A view belongs to its image and
    generation. Raises InvalidArgument if the data sets differ in these, or if a name is empty or has a colon.
    """
    _save_views(path, dict(views))


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
    concat: bool = False,
    tls_key: Address | None = None,
    tls_compat: bool = False,
    paths: Sequence[Address] = (),
    direct: Literal["auto", "on", "off"] = "auto",
    links: Literal["follow", "inside", "refuse"] = "follow",
    hidden: bool = False,
    snapshot: Address | None = None,
    view: Address | None = None,
    tiers: Sequence[str] | Address = (),
    policy: Literal["first-touch", "clairvoyant", "none"] | None = None,
    copy_bandwidth: int | None = None,
    stop_at_first_failure: bool = False,
    node: str | None = None,
    fields: Fields | None = None,
    peers: Any = None,
    rank: int | None = None,
    world_size: int | None = None,
    round: str | None = None,
    peer_mode: str | None = None,
    peer_address: str | None = None,
    rendezvous_port: int | None = None,
    peer_timeout: float | None = None,
    job_key: str | os.PathLike[str] | None = None,
    peer_tls: bool | None = None,
) -> Dataset:
    """Opens the data set at `address`: an image file, a plain folder, a block device, or
    nvme-tcp://HOST[:4420]/NQN[?ns=N]; a list of these, or a string with commas, for a striped image.
    Without ?ns= it names all namespaces of the subsystem that belong to the data set.

    window_bytes     memory for reads by id or name, in bytes, for each thread that reads
    queue_pairs      queue pairs per namespace; those of one subsystem share them
    deadline         the longest that one read may take, in seconds
    busy_poll        spin instead of sleeping while a call waits
    connect_timeout  how long connecting may take, in seconds
    io_timeout       how long a queue may make no progress, in seconds, before its reads are repeated on
                     another connection
    keep_alive_tmo   keep-alive timeout: seconds of silence after which a side closes the connection; 0: never
    ctrl_loss_tmo    how long to keep reconnecting, in seconds
    nr_io_queues     I/O queues to request
    queue_size       entries of an I/O queue
    hdr_digest       protect PDU headers with CRC32C
    data_digest      protect PDU data with CRC32C; samples are verified in any case
    hostnqn          the host NQN to present
    dhchap_secret    the host's key for DH-HMAC-CHAP: the path of a key file with mode 0600, or the key itself
                     (a pickled data set contains this argument, so prefer the path)
    dhchap_ctrl_secret   the subsystem's key, with which the target must authenticate itself, too; a file or the key
    concat           go on inside TLS with a key that the authentication generates (secure channel concatenation);
                     needs dhchap_secret and a build with TLS
    tls_key          the key with which each connection establishes TLS 1.3: the path of a key file with mode 0600, the
                     key itself, or `keyring` for the kernel's keyring .nvme; needs a build with TLS
    tls_compat       derive TLS keys as libnvme before July 2025 did
    paths            more addresses of the same namespaces, used while the first is down
    direct           bypass of the page cache for image files and block devices
    links            links to follow in a plain folder: "follow" all, as torchvision's ImageFolder does, but none
                     back to a folder around it; "inside": those that stay in the folder; "refuse": none. Others are
                     errors
    hidden           take hidden files of a plain folder, and what file systems and tools leave behind (._*, .DS_Store,
                     Thumbs.db, desktop.ini, @eaDir, __MACOSX)
    snapshot         a directory saved by `dlfs snapshot save`, used instead of the image's own
    view             a view saved by `dlfs select`: its samples are the data set. The path of a file, and behind a
                     colon the name of one of several views in it; also of dlfs.save_views
    tiers            tiers that keep copies of samples after the first read, fastest first: "ram:4G",
                     "file:/fast/cache:20G", which the processes of a node share; one such text, or several
                     in a list. Or a file that describes them, as written by `dlfs probe` or for NoPFS
    policy           the samples that tiers keep: those read first (the default), or those that the plan of
                     each loader's run selects
    copy_bandwidth   the most that the copier may read from the origin by itself, in bytes per second
    stop_at_first_failure   stop adding copies for good once a sample fits in no tier
    node             the name of this node, if several run on one machine: processes on nodes of other names
                     do not share tiers in memory
    fields           name of the field that represents the sample, if samples have several; or a tuple of names:
                     a sample is then a mapping of these. None: a mapping of all
    peers            meeting place of the ranks, which then share the tiers of all nodes of the job, with the
                     options of Dataset.join_peers: rank, world_size, round, peer_mode, peer_address,
                     rendezvous_port, peer_timeout, job_key and peer_tls. Waits until all ranks have joined. A loader that is to take
                     its rank and world size from them names `peers`, too

    Raises FileNotFound, NotFound, Refused, Disconnected, TimedOut, Corrupt, Unsupported; InvalidArgument for an
    invalid address or option.
    """
    specs, tiers_file = _tiers(tiers)
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
        "concat": concat,
        "tls_key": tls_key,
        "tls_compat": tls_compat,
        "paths": list(paths),
        "direct": direct,
        "links": links,
        "hidden": hidden,
        "snapshot": snapshot,
        "view": view,
        "tiers_file": tiers_file,
        "tiers": specs,
        "policy": policy,
        "copy_bandwidth": copy_bandwidth,
        "stop_at_first_failure": stop_at_first_failure,
        "node": node,
        "fields": fields,
    }
    joining: dict[str, Any] = {
        "rank": rank,
        "world_size": world_size,
        "round": round,
        "peer_mode": peer_mode,
        "peer_address": peer_address,
        "rendezvous_port": rendezvous_port,
        "peer_timeout": peer_timeout,
        "job_key": job_key,
        "peer_tls": peer_tls,
    }
    joining = {name: value for name, value in joining.items() if value is not None}
    if joining and peers is None:
        raise TypeError(f"open() got {', '.join(joining)} without peers")
    dataset = Dataset(address, **options)
    if peers is not None:
        try:
            dataset.join_peers(peers, **joining)
        except BaseException:
            dataset.close()
            raise
    return dataset


def _tiers(tiers: Sequence[str] | Address) -> tuple[list[str], Address | None]:
    """Tiers, or the file that describes them."""
    if isinstance(tiers, str) and tiers.startswith(("ram:", "file:")):
        return [tiers], None
    if isinstance(tiers, (str, os.PathLike)):
        return [], tiers
    return list(tiers), None


class Loader(_Loader):
    """Shuffled batches, read ahead by native threads: `for batch in loader` reads one epoch.

    dataset          what dlfs.open returned, or a dlfs.Mixture of several
    batch_size       samples per batch on this rank
    order            how to shuffle samples: "grouped": whole chunks at a time, several mixed, the fastest;
                     "global": a full shuffle; "sequential"; "local", "partial": a share for each rank;
                     "weighted": drawn in proportion to `weights`
    seed             the same seed gives the same epochs, whatever the world size
    epochs           the number of epochs; readahead stops after the last one. None: endless
    rank             the rank of this process, from 0 (0)
    world_size       the number of ranks that share each epoch
    data_rank        instead of rank, and data_world_size instead of world_size, where several processes share data, as
                     those of tensor, pipeline and context parallelism do: the processes of a data rank get the same
                     batches. Peers are still joined by rank and world_size; dlfs.torch.data_place takes both from a
                     device mesh
    shard            how the ranks share each global batch: "strided": every W-th sample to each; "aligned", in
                     grouped order: whole chunks to one rank, as far as equal shares allow, for a run that
                     resumes with another world size; "local", with peers: what the rank's node holds, as far
                     as equal shares allow. The samples of each global batch are the same
    drop_last        drop what does not fill a batch on every rank; pad: fill it up instead
    prefetch_bytes   the most memory for samples that are read ahead and not yet dropped, in bytes; each process
                     that reads, so each worker, has a window of this size. None: 256 MiB, or up to
                     1 GiB if a grouped order of large chunks has more open at a time
    lanes, group     grouped: number of lanes, which take turns (8 per rank, or as in the loaded state), and
                     chunks of a lane that are shuffled together (4). If lanes is a multiple of world_size, no
                     chunk is read by two ranks
    by               sequential: "id", or "slot", the order on media, which is faster
    batching         how samples are read: "chunk": whole chunks are read, and kept until their samples are
                     delivered; "sample": each sample separately, just before it is needed; "none": one read
                     at a time. None: chunks for grouped and by="slot", otherwise samples; also samples for
                     grouped if samples are large and in the page cache. Tiny samples of the global order are
                     then read together, far ahead
    exchange         partial: fraction of each share that moves to other ranks in an epoch (0.1)
    weights          weighted: how often samples are drawn: an array with a weight for each, weights[i] for ds[i];
                     {label: weight}, or the names of classes, the weight of each sample with that label; or
                     "balanced": equally many of each label. A state holds a hash of them
    replacement      weighted: whether an epoch may draw a sample several times (True), as
                     torch.utils.data.WeightedRandomSampler; otherwise an epoch is a weighted shuffle
    epoch_size       weighted: samples of an epoch. None: len(ds), or without replacement as many as have a weight
                     above 0
    batch_tokens     the most tokens of a batch, instead of a number of samples: samples of similar length share a
                     batch. See Training, "Batches by tokens"
    bucket_window    batches by tokens: positions of the epoch that are sorted by length together
    max_batch        batches by tokens: the most samples of one. None: as many as have room
    token_bytes      batches by tokens: bytes of a token; a part of one counts as one
    lengths          batches by tokens: the column of ints with the tokens of each sample, instead of its bytes
    batch_cost       batches by tokens: what a batch costs: "padded": its longest sample times their number;
                     "sum": the sum of their tokens
    too_long         batches by tokens: what to do with a sample that is longer than a batch: "raise", before the
                     first batch, or make it a batch of its own: "alone"
    fields           as in dlfs.open: the field that is the sample, or a tuple of those in its mapping. None: as
                     the data set was opened
    contiguous       gather each batch into one buffer in the background, so that Batch.data copies nothing
    on_error         handling of a sample that cannot be read: "raise", or "skip" it (stats counts them)
    deadline         the longest that the next batch may take, in seconds
    queue_pairs      queue pairs per namespace; those of one subsystem share them
    busy_poll        spin instead of sleeping in the thread that reads ahead
    trace            keep the newest events of the run, up to 65,536 of each thread, for trace_json and save_trace
    peers            meeting place of the ranks, which then share the tiers of all nodes of the job:
                     "auto": what the launcher has, which is the store of torch.distributed if it is
                     initialised, MPI, or a port of rank 0 beside MASTER_PORT; a folder that all nodes see; a
                     list of the ranks' addresses, ["HOST:PORT", ...], or a file with one a line; a store of
                     torch.distributed; a communicator of mpi4py; any object with set(key, value) and
                     get(keys). The data set needs a tier. Then rank and world_size default to the launcher's
    round            a name for this start of the job, not used before. None: the launcher's
    peer_mode        placement of data on the nodes, and a node's answer to a peer that asks for data which its
                     tiers lack.
                     "read-through": a hash names the holder, which reads them from the data set, keeps them
                     and answers; "copies": the same holder answers that they are not there, and fetches what
                     it holds by itself; "plan": a node holds what its ranks read most often, and answers as
                     with "copies" (NoPFS; the data set needs the policy "clairvoyant")
    peer_address     address at which peers reach this rank: "IP" or "IP:PORT". None: the address from which MASTER_ADDR
                     is reached, any port
    rendezvous_port  the port on which rank 0 gathers the addresses of all ranks. None: MASTER_PORT + 1
    peer_timeout     how long to wait for all ranks, in seconds
    job_key          the key by which the ranks of the job prove themselves to each other, the same for all: the path of
                     a key file with mode 0600, the key itself, or "rendezvous": rank 0 draws one, and the others get
                     it where they meet. None: whoever claims the name of a rank's host may read its tiers
    peer_tls         connect to peers inside TLS with the job's key; needs a build with TLS
    store            store for this rank's share of the samples, in order "partial" or "local": "ram:SIZE" or
                     "file:FOLDER:SIZE", a size that the ranks of a node share in equal parts. The share is read
                     from the data set once, by stage() or before the first
                     batch; then the ranks exchange samples with each other, through `peers`, and no epoch reads
                     the data set
    blocking_exchange  exchange samples at the end of each epoch instead of during it, for comparison
    restart_shares   resume between epochs with another world size: the ranks begin with new shares

    Each `for` reads one epoch from its start: the next epoch if the last one was completed, otherwise the
    same one again; right after load_state_dict, it resumes from the state. Threads that share an epoch share
    one iterator; several iterators read the epoch independently, each with its own memory.
    The request for the first batch starts readahead, which continues across epochs. prepare() allocates its
    memory earlier.
    A batch that you keep keeps its memory; what then does not fit prefetch_bytes is allocated outside it.
    close(), or leaving a `with`, ends readahead; batches stay valid.
    """

    def __new__(
        cls,
        dataset: Dataset | Mixture,
        batch_size: int | None = None,
        order: Order = "grouped",
        *,
        seed: int = 0,
        epochs: int | None = None,
        rank: int | None = None,
        world_size: int = 1,
        data_rank: int | None = None,
        data_world_size: int | None = None,
        shard: Shard = "strided",
        drop_last: bool = False,
        pad: bool = False,
        prefetch_bytes: int | None = None,
        lanes: int | None = None,
        group: int | None = None,
        by: Literal["id", "slot"] | None = None,
        exchange: float | None = None,
        weights: Weights | None = None,
        replacement: bool | None = None,
        epoch_size: int | None = None,
        batch_tokens: int | None = None,
        bucket_window: int = 8192,
        max_batch: int | None = None,
        token_bytes: int = 1,
        lengths: str | None = None,
        batch_cost: Literal["padded", "sum"] = "padded",
        too_long: Literal["raise", "alone"] = "raise",
        batching: Literal["chunk", "sample", "none"] | None = None,
        fields: Fields | None = None,
        contiguous: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
        deadline: float = 60.0,
        queue_pairs: int = 1,
        busy_poll: bool = False,
        trace: bool = False,
        peers: Any = None,
        round: str | None = None,
        peer_mode: str = "read-through",
        peer_address: str | None = None,
        rendezvous_port: int | None = None,
        peer_timeout: float = 60.0,
        job_key: str | os.PathLike[str] | None = None,
        peer_tls: bool = False,
        store: str | None = None,
        blocking_exchange: bool = False,
        restart_shares: bool = False,
    ) -> Loader:
        if data_rank is not None or data_world_size is not None:
            place = _data_place(data_rank, data_world_size, store)
            if peers is not None:
                joining = {
                    "rank": rank,
                    "world_size": None if world_size == 1 else world_size,
                    "round": round,
                    "peer_mode": peer_mode,
                    "peer_address": peer_address,
                    "rendezvous_port": rendezvous_port,
                    "peer_timeout": peer_timeout,
                    "job_key": job_key,
                    "peer_tls": peer_tls,
                }
                given = {name: value for name, value in joining.items() if value is not None}
                _peerless(dataset).join_peers(peers, **given)
                peers, round, peer_mode = None, None, "read-through"
                peer_address, rendezvous_port, peer_timeout = None, None, 60.0
                job_key, peer_tls = None, False
            rank, world_size = place
        if rank is None and world_size == 1 and peers is None:
            _warn_of_launcher()
        return super().__new__(
            cls,
            dataset,
            batch_size=batch_size,
            order=order,
            seed=seed,
            epochs=epochs,
            rank=0 if rank is None else rank,
            world_size=world_size,
            shard=shard,
            drop_last=drop_last,
            pad=pad,
            prefetch_bytes=prefetch_bytes,
            lanes=lanes,
            group=group,
            by=by,
            exchange=exchange,
            weights=_numbers(weights),
            replacement=replacement,
            epoch_size=epoch_size,
            batch_tokens=batch_tokens,
            bucket_window=bucket_window,
            max_batch=max_batch,
            token_bytes=token_bytes,
            lengths=lengths,
            batch_cost=batch_cost,
            too_long=too_long,
            batching=batching,
            fields=fields,
            contiguous=contiguous,
            on_error=on_error,
            deadline=deadline,
            queue_pairs=queue_pairs,
            busy_poll=busy_poll,
            trace=trace,
            peers=peers,
            round=round,
            peer_mode=peer_mode,
            peer_address=peer_address,
            rendezvous_port=rendezvous_port,
            peer_timeout=peer_timeout,
            job_key=job_key,
            peer_tls=peer_tls,
            store=store,
            blocking_exchange=blocking_exchange,
            restart_shares=restart_shares,
        )


class _Numbers(bytes):
    """Numbers as float64, which compare, pickle and print as options do."""

    def __repr__(self) -> str:
        return f"<{len(self) // 8} numbers>"


def _numbers(given: Any) -> Any:
    """An array, sequence or tensor of numbers as bytes; names, dicts and None as they are."""
    if given is None or isinstance(given, (str, bytes)):
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
    """Rank and world size of the data, as given."""
    if data_rank is None or data_world_size is None:
        raise TypeError("data_rank and data_world_size are given together, or neither")
    if not 0 <= data_rank < data_world_size:
        raise InvalidArgument(f"there is no data rank {data_rank} of {data_world_size}")
    if store is not None:
        raise InvalidArgument("a store keeps the share of a rank of its own: leave data_rank out")
    return data_rank, data_world_size


def _peerless(dataset: Dataset | Mixture) -> Dataset:
    """A data set that can join peers."""
    if isinstance(dataset, Dataset):
        return dataset
    raise InvalidArgument(
        "peers are of one data set, not of a mixture: dlfs.open or Dataset.join_peers of each joins them"
    )


def _warn_of_launcher() -> None:
    """Warns, once, if torchrun has started several processes and nobody says which rank this one is."""
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

    snapshot         where the pickling process shares the directory, if this process was spawned by it
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
    loader = _Loader.__new__(kind, dataset, **options)
    loader.load_state_dict(state)
    return loader
