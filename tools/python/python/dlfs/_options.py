"""Options by keyword: of dlfs.open, of loaders and of samplers.

Each class is a dict with types: dlfs.Connect(hdr_digest=True) makes one, and functions take its keys as keywords, too.
The library has the defaults, and None is the default. Times are in seconds; sizes in bytes, or a text such as "256M".
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

Address: TypeAlias = str | os.PathLike[str]
Fields: TypeAlias = str | bytes | Sequence[str | bytes]
OrderName: TypeAlias = Literal["grouped", "global", "sequential", "local", "partial", "weighted"]
Shard: TypeAlias = Literal["strided", "aligned", "local"]
Pin: TypeAlias = Literal["auto", "cuda", "hip"]
# Numbers, one a sample; or {label or class: weight}; or "balanced".
Weights: TypeAlias = Sequence[float] | Mapping[int, float] | Mapping[str, float] | Literal["balanced"] | Any


class Connect(TypedDict, total=False):
    """How to connect to namespaces, and how to read files and folders.

    Defaults: nr_io_queues=16, queue_size=128, keep_alive_tmo=15, ctrl_loss_tmo=600, io_timeout=5, connect_timeout=10,
    direct="auto", links="follow", spdk_memory="512M", spdk_huge_pages="auto"; flags are off.
    """

    hdr_digest: bool
    """Protect PDU headers with CRC32C."""
    data_digest: bool
    """Protect PDU data with CRC32C; samples are verified in any case."""
    hostnqn: str | None
    """The host NQN to present [default: that of /etc/nvme/hostnqn, else one of this machine's own]."""
    hostid: str | None
    """The host identifier to present, a UUID [default: that of /etc/nvme/hostid]."""
    dhchap_secret: Address | None
    """The host's key for DH-HMAC-CHAP: the path of a key file with mode 0600, which `dlfs key gen` makes, or the key
    itself, which others may see; through SPDK a file only."""
    dhchap_ctrl_secret: Address | None
    """The subsystem's key, with which the target must authenticate itself, too; a file or the key."""
    concat: bool
    """Go on inside TLS with a key that the authentication generates (secure channel concatenation); needs
    dhchap_secret and OpenSSL 3."""
    tls: bool
    """Connect inside TLS 1.3; without a tls_key, with the key that nvme-cli has put into the kernel's keyring .nvme."""
    tls_key: Address | None
    """The key with which each connection establishes TLS 1.3: the path of a key file with mode 0600, the key itself,
    or `keyring` for the kernel's keyring .nvme; through SPDK a file only. Needs OpenSSL 3."""
    tls_compat: bool
    """Derive TLS keys as libnvme before July 2025 did, for targets whose keys it installed."""
    nr_io_queues: int
    """I/O queues to request, each a connection of its own."""
    queue_size: int
    """Entries of an I/O queue; one fewer may be outstanding."""
    keep_alive_tmo: float
    """Keep-alive timeout: the silence after which a side closes the connection; 0 switches it off."""
    ctrl_loss_tmo: float
    """How long to keep reconnecting after a connection is lost."""
    io_timeout: float
    """How long a queue may make no progress before its reads are repeated on another connection."""
    connect_timeout: float
    """How long connecting may take."""
    paths: Sequence[Address]
    """More addresses of the same namespaces, used while the first is down."""
    direct: Literal["auto", "on", "off"]
    """Bypass of the page cache for image files and block devices; auto: block devices, and files larger than half of
    the memory."""
    links: Literal["follow", "inside", "refuse"]
    """Links to follow in a plain folder: all, as torchvision's ImageFolder does, but none back to a folder around it;
    those that stay inside; or none. Others are errors."""
    hidden: bool
    """Take hidden files of a plain folder, an archive or a store, and what file systems and tools leave behind (._*,
    .DS_Store, Thumbs.db, desktop.ini, @eaDir, __MACOSX)."""
    spdk_memory: int | str
    """Memory for SPDK and its devices; the first namespace that a process opens decides."""
    spdk_huge_pages: Literal["auto", "on", "off"]
    """Huge pages for SPDK's memory; auto: if enough are free."""


class Open(TypedDict, total=False):
    """The part of an image that is opened, and where its directory comes from."""

    snapshot: Address | None
    """A directory saved by `dlfs snapshot save`, used instead of the image's own; one of another generation is
    refused."""
    view: Address | None
    """A view saved by `dlfs select`: its samples are the data set. The path of a file, and behind a colon the name of
    one of several views in it."""
    shards: bool
    """Read the samples in tar archives, tables and other shards as they are, without an import."""
    index: Address | None
    """The place that keeps the indexes of shards, a folder or a prefix of a store; `dlfs index` or the first opening
    makes them."""


class Tiers(TypedDict, total=False):
    """Tiers: where copies of samples are kept, and of which samples."""

    tiers: Sequence[str] | Address
    """Tiers that keep copies of samples after the first read, fastest first: ram:SIZE, or file:PATH:SIZE for a folder,
    file or block device that is empty or an earlier tier, with :overwrite behind it for any other; or
    nvme-tcp://HOST/NQN?ns=N:SIZE for a remote namespace that this node has to itself."""
    policy: Literal["first-touch", "clairvoyant", "none"] | None
    """The samples that tiers keep: those read first, or those that the plan of the whole run names [default: that of
    the file, else first-touch]."""
    copy_bandwidth: int | str | None
    """The most bytes a second that the copier may read from the origin by itself [default: no limit]."""
    stop_at_first_failure: bool
    """Stop adding copies for good once a sample fits in no tier, as Monarch does."""


class Read(TypedDict, total=False):
    """The memory, queues and time of reads. Defaults: queue_pairs=1, deadline=60, busy_poll=False."""

    window: int | str | None
    """The most memory for samples that are read ahead and not yet dropped [default: 256M, and up to 1G where a grouped
    order of large chunks has more open at a time; of reads by id or name, 64M for each thread]."""
    queue_pairs: int
    """Queue pairs per namespace; those of one subsystem share them."""
    deadline: float
    """The longest that one read, or the next batch, may take."""
    busy_poll: bool
    """Spin instead of sleeping while a call, or the thread that reads ahead, waits: the lowest latency, for a core."""


class Order(TypedDict, total=False):
    """The order of samples."""

    seed: int
    """The same seed gives the same epochs, on any number of ranks."""
    lanes: int | None
    """Grouped: number of lanes, which take turns; with a multiple of the world size no chunk is read twice [default: 8
    per rank, or as in the state that the run resumes from]."""
    group: int | None
    """Grouped: chunks of one lane that are shuffled together [default: 4]."""
    exchange: float | None
    """Partial: fraction of each share that moves to other ranks in an epoch, 0 to 1 [default: 0.1]."""


class Tokens(TypedDict, total=False):
    """Batches by a budget of tokens, instead of a number of samples.

    Defaults: bucket_window=8192, token_bytes=1, batch_cost="padded", too_long="raise".
    """

    batch_tokens: int | None
    """The most tokens of a batch, instead of a number of samples: samples of similar length share a batch, and batches
    go to the ranks in turn."""
    bucket_window: int
    """Batches by tokens: positions of the epoch that are sorted by length together."""
    max_batch: int | None
    """Batches by tokens: the most samples of one [default: as many as have room]."""
    token_bytes: int
    """Batches by tokens: bytes of a token; a part of one counts as one."""
    lengths: str | None
    """Batches by tokens: the column of ints with the tokens of each sample, instead of its bytes; label for the
    label."""
    batch_cost: Literal["padded", "sum"]
    """Batches by tokens: what a batch costs: its longest sample times their number, as a padded tensor has it, or the
    sum of their tokens."""
    too_long: Literal["raise", "alone"]
    """Batches by tokens: what to do with a sample that is longer than a batch: raise an error before the first batch,
    or leave it alone in a batch of its own."""


class Load(TypedDict, total=False):
    """A run: its batches, its epochs, and this rank's share of them.

    Defaults: shard="strided", copy_threads=1, on_error="raise"; flags are off.
    """

    epochs: int | None
    """The number of epochs to read [default: endless]."""
    shard: Shard | None
    """How the ranks share each global batch; its samples and how many each rank gets are the same. strided: every W-th
    sample; aligned, of grouped order: whole chunks to one rank, as far as equal shares allow, for a run that
    resumes with another world size; local, with peers: what the rank's node holds, as far as equal shares allow."""
    drop_last: bool
    """Drop what does not fill a batch on every rank at the end of an epoch."""
    pad: bool
    """Repeat the first samples of an epoch so that each rank has the same number."""
    batching: Literal["chunk", "sample"] | None
    """How samples are read: chunk: whole chunks, which are kept until their samples are delivered; sample: each sample
    just before it is needed, many at a time [default: chunk for grouped, except for large samples in the page
    cache; else sample]."""
    contiguous: bool
    """Gather each batch into one buffer, its samples contiguous, at the cost of a copy."""
    pin: Pin | None
    """Register the window with a driver, whose devices then copy batches by DMA: auto: with the driver that the process
    uses when it takes the first batch; cuda, hip: start it [default: none]. Forked children then cannot read batches of
    their parent."""
    copy_threads: int
    """Threads that gather contiguous batches, at most 256; 0: the one that polls."""
    on_error: Literal["raise", "skip"]
    """Handling of a sample that cannot be read: raise its error, or skip it; stats counts them."""
    epoch_size: int | None
    """Weighted: samples of an epoch [default: as many as the data set has, or without replacement as many as have a
    weight above 0]."""
    without_replacement: bool
    """Weighted: draw no sample twice in an epoch: a weighted shuffle."""
    trace: bool
    """Keep the newest events of the run, up to 65,536 of each thread."""
    node_loader: bool
    """Read with one process for all ranks of this node, which take their batches from its window without a copy."""
    local_rank: int | None
    """Node loader: the rank among those of this node [default: the launcher's, else the rank]."""
    local_world_size: int | None
    """Node loader: the number of ranks on each node [default: the launcher's, else that of all ranks]."""
    job: str | None
    """Node loader: a name of the job, which no other job on the machine has at the same time [default: the
    launcher's]."""


class Peers(TypedDict, total=False):
    """The job's other nodes, whose tiers are read, too. Defaults: peer_mode="read-through", peer_timeout=60."""

    peers: Any
    """Meeting place of the ranks, which then share the tiers of all nodes of the job: auto: at rank 0, as the
    launcher's MASTER_ADDR and MASTER_PORT name it; a folder that all nodes see; HOST:PORT,HOST:PORT,... of each
    rank, or a file with one a line."""
    round: str | None
    """A name for this start of the job, the same on all ranks and not used before [default: the launcher's]."""
    peer_mode: Literal["read-through", "copies", "plan"]
    """Placement of data on the nodes, and a node's answer to a peer that asks for data which its tiers lack.
    read-through: a hash names the holder, which reads them from the data set, keeps them and answers; copies: the
    same holder answers that they are not there, and fetches what it holds by itself; plan: a node holds what its
    ranks read most often, and answers as with copies (NoPFS; with the policy clairvoyant)."""
    peer_address: str | None
    """Address at which peers reach this rank: IP, or IP:PORT [default: the address from which MASTER_ADDR is reached,
    any port]."""
    rendezvous_port: int | None
    """The port on which rank 0 gathers the addresses of all ranks [default: MASTER_PORT + 1, or the list's first port
    + 1]."""
    job_key: Address | None
    """The key by which the ranks of the job prove themselves to each other, the same for all: the path of a key file
    with mode 0600, the key itself, or rendezvous: rank 0 draws one, and the others get it where they meet. Without
    one, whoever claims the name of a rank's host may read its tiers."""
    peer_tls: bool
    """Connect to peers inside TLS with the job's key, which needs OpenSSL 3; otherwise ranks with a key
    authenticate, and data are sent in clear."""
    peer_timeout: float
    """How long to wait for all ranks, at the start and at the end."""


class Store(TypedDict, total=False):
    """The storage that holds this rank's share of the samples."""

    store: str | None
    """Store for this rank's share of the samples, in order partial or local: ram:SIZE or file:FOLDER:SIZE, a size that
    the ranks of a node share in equal parts. The share is read from the data set once; then the ranks exchange
    samples with each other, through their peers."""
    blocking_exchange: bool
    """Exchange samples at the end of each epoch instead of during it, for comparison."""
    restart_shares: bool
    """Resume between epochs with another world size: the ranks begin with new shares; what lies in the stores is used
    again."""


class Overlap(TypedDict, total=False):
    """A transform that runs while the program computes. Defaults: threads=1, ahead=2 for each thread or process."""

    transform: Callable[..., Any] | None
    """Called with each batch; iterators hand out its results, in the order of the batches. With a further parameter
    `rng`, it gets a sequence there: rng[i] is dlfs.random_of(seed, epoch, id) of sample i of the batch."""
    threads: int | None
    """Threads that run the transform."""
    ahead: int | None
    """The most batches that are being transformed or whose results wait to be handed out."""
    processes: int | None
    """Worker processes that run the transform, for one that holds the interpreter; in place of threads."""


class Weighting(TypedDict, total=False):
    """The weights of a weighted order, and the fields of a sample."""

    weights: Weights | None
    """Weighted: how often samples are drawn: an array with a weight for each, weights[i] for ds[i]; {label: weight}, or
    the names of classes, the weight of each sample with that label; or "balanced": equally many of each label."""
    fields: Fields | None
    """The field that is the sample, or a tuple of those in its mapping. None: as the data set was opened."""


class Device(TypedDict, total=False):
    """The accelerator that trains."""

    device: Any
    """The accelerator to which each batch is copied before it is asked for: "cuda:N", "hip:N", a number, a torch.device
    or a jax.Device; the CPU is none. Batch.on_device has the arrays, and dlfs.torch.TensorBatch is made of them; pin is
    then auto by default. Only this process reads: its native threads do what workers would."""


class Opening(Connect, Open, Tiers, Read, Peers, total=False):
    """The options of dlfs.open."""

    fields: Fields | None
    """Name of the field that represents the sample, if samples have several; or a tuple of names: a sample is then a
    mapping of these. None: a mapping of all."""
    rank: int | None
    """The rank that joins `peers`."""
    world_size: int | None
    """The number of ranks that join `peers`."""
    node: str | None
    """The name of this node, if several run on one machine: processes on nodes of other names do not share tiers in
    memory [default: the machine's identity]."""


class Ordering(Order, Tokens, Load, Weighting, total=False):
    """The options of a sampler."""


class Loading(Ordering, Read, Peers, Store, Device, total=False):
    """The options of a loader."""


class Overlapping(Loading, Overlap, total=False):
    """The options of a dlfs.Loader."""


class TokenLoading(Order, Read, Peers, Device, total=False):
    """The options of a dlfs.tokens.Loader beside its parameters, as dlfs.Loader has them."""

    epochs: int | None
    """The number of epochs to read [default: endless]."""
    batching: Literal["chunk", "sample"] | None
    """How documents are read: whole chunks, or each by itself [default: as dlfs.Loader's]."""
    weights: Weights | None
    """Weighted: how often documents are drawn."""
    epoch_size: int | None
    """Weighted: documents of an epoch."""
    without_replacement: bool
    """Weighted: draw no document twice in an epoch."""
    trace: bool
    """Keep the newest events of the run."""
    node_loader: bool
    """Read with one process for all ranks of this node; local_rank, local_world_size and job as of dlfs.Loader."""
    local_rank: int | None
    local_world_size: int | None
    job: str | None
    pin: Pin | None
    """Register the window with the driver of accelerators."""


def _document() -> None:
    """Adds the texts of keys, and the classes that keys are taken from, to the classes' own, for help() to show."""
    try:
        classes = [made for made in ast.parse(inspect.getsource(sys.modules[__name__])).body
                   if isinstance(made, ast.ClassDef)]
    except OSError:
        return  # the source is not there
    for made in classes:
        lines = []
        for key, text in zip(made.body, made.body[1:]):
            if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                lines += ["", f"{ast.unparse(key.target)}: {ast.unparse(key.annotation)}"]
                lines += textwrap.wrap(" ".join(str(text.value.value).split()), 100, initial_indent="    ",
                                       subsequent_indent="    ")
        bases = [base.id for base in made.bases if isinstance(base, ast.Name) and base.id != "TypedDict"]
        if bases:
            lines += ["", f"Has the keys of {', '.join(bases)}, too."]
        documented = globals()[made.name]
        documented.__doc__ = "\n".join([documented.__doc__ or "", *lines])


_document()
