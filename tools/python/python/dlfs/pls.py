"""Partial local shuffling with the interface of its papers, over dlfs.Loader.

A training script that was written for PLS runs with its import changed:

    import dlfs.pls as PLS

    dataset = PLS.ImageFolder(address, "classes.txt", transform)
    sampler = PLS.DistributedSampler(dataset)
    scheduler = PLS.Scheduler(dataset, batch_size=b, fraction=Q)
    for epoch in range(epochs):
        scheduler.scheduling(epoch)
        for images, labels in DataLoader(dataset, batch_size=b, sampler=sampler):
            ...
            send, recv = scheduler.communicate()
            scheduler.synchronize(send, recv)
        scheduler.clean_local_storage()

Rank and world size come from torch.distributed, or from the launcher's variables. Each rank keeps its share of the
samples in its own storage, and reads it in an order of its own, whatever the sampler, so torch's DistributedSampler
serves as well. scheduling, or set_epoch of the sampler here, begins an epoch. During an epoch, native threads exchange
fraction Q of the share, and delete samples that have left. So communicate and synchronize have nothing to send or to
wait for, and clean_local_storage has nothing to delete. Native threads also read samples ahead, so DataLoader needs
num_workers=0.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import InvalidArgument, Loader, Unsupported
from . import open as _open
from ._peers import _group

__all__ = ["DistributedSampler", "ImageFolder", "PartialScheduler", "Scheduler"]


class ImageFolder:
    """This rank's share of a folder of class folders, or of an image (a dlfs address).

    root        the address of an image, or a folder of class folders, which rank 0 imports as FOLDER.dlfs beside it
    class_file  the names of the classes, one a line: a label is the number of its line. None: the image's order
    transforms  a function that takes the image and returns the item. None: the item is the image
    loader      a function that takes the bytes of a sample and returns the image. None: PIL opens it
    store       the storage for this rank's share: "ram:SIZE", "file:FOLDER:SIZE". None: in memory
    peers       the meeting place of the ranks, as for dlfs.Loader
    options     passed to dlfs.open

    An item is (transforms(image), label) of the next sample in this rank's epoch, whatever the index. A Scheduler must
    have been made before, and a sampler must give each index at most once in an epoch.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        class_file: str | os.PathLike[str] | None = None,
        transforms: Callable[[Any], Any] | None = None,
        *,
        loader: Callable[[bytes], Any] | None = None,
        store: str | None = None,
        peers: Any = "auto",
        **options: Any,
    ) -> None:
        self.rank, self.world_size = _place()
        address = _imported(os.fspath(root), self.rank) if os.path.isdir(root) else root
        self.dataset = _open(address, **options)
        self.transforms, self.loader = transforms, loader or _pil
        self.classes = _names(class_file) or [os.fsdecode(name) for name in self.dataset.classes]
        self._label_of = self._labels()
        self._store, self._peers = store or "ram:1T", peers
        self._stream: _Stream | None = None

    def __len__(self) -> int:
        """Samples of all ranks, of which torch's DistributedSampler gives each rank its part."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, int | None]:
        if self._stream is None:
            raise InvalidArgument("make a Scheduler before reading: it says how much of a share is exchanged")
        content, label = self._stream.take(index)
        image = self.loader(content)
        return (image if self.transforms is None else self.transforms(image)), self._label_of.get(label, label)

    def __reduce__(self) -> Any:
        raise Unsupported("dlfs reads ahead in threads of its own: use DataLoader with num_workers=0")

    def _labels(self) -> dict[int | None, int | None]:
        """The line in the class file of each label of the image."""
        own = [os.fsdecode(name) for name in self.dataset.classes]
        missing = sorted(set(own) - set(self.classes))
        if missing:
            raise InvalidArgument(f"the class file lacks {', '.join(missing[:5])}")
        return {label: self.classes.index(name) for label, name in enumerate(own)}


class DistributedSampler:
    """Indices for this rank's samples in an epoch: as many as the shortest share has, so that all ranks take equally
    many steps."""

    def __init__(self, dataset: ImageFolder, num_replicas: int | None = None, rank: int | None = None) -> None:
        given = (dataset.rank if rank is None else rank, num_replicas or dataset.world_size)
        if given != (dataset.rank, dataset.world_size):
            raise InvalidArgument(f"the data set is of rank {dataset.rank} of {dataset.world_size}, not {given}")
        self.dataset, self.epoch = dataset, 0

    def set_epoch(self, epoch: int) -> None:
        """As for torch's DistributedSampler; Scheduler.scheduling does the same."""
        self.epoch = epoch
        if self.dataset._stream is not None:
            self.dataset._stream.begin(epoch)

    def __len__(self) -> int:
        return len(self.dataset) // self.dataset.world_size

    def __iter__(self) -> Iterator[int]:
        stream = self.dataset._stream
        if stream is not None:
            # An epoch that Scheduler.scheduling has begun goes before the sampler's own.
            stream.begin(self.epoch if stream.epoch < 0 else stream.epoch)
        return iter(range(len(self)))


class Scheduler:
    """Exchanges `fraction` of each rank's share in each epoch. All ranks make one, of the same data set.

    `non_blocking=False` exchanges at the end of each epoch instead of during it.
    """

    def __init__(
        self,
        dataset: ImageFolder,
        batch_size: int = 1,
        fraction: float = 0.1,
        *,
        seed: int = 0,
        non_blocking: bool = True,
        epochs: int | None = None,
    ) -> None:
        self.loader = Loader(
            dataset.dataset,
            batch_size,
            "partial",
            exchange=fraction,
            seed=seed,
            rank=dataset.rank,
            world_size=dataset.world_size,
            epochs=epochs,
            store=dataset._store,
            peers=dataset._peers if dataset.world_size > 1 else None,
            blocking_exchange=not non_blocking,
        )
        dataset._stream = self._stream = _Stream(self.loader, len(dataset), dataset.world_size)

    def scheduling(self, epoch: int) -> None:
        """Begins `epoch`."""
        self._stream.begin(epoch)

    def communicate(self, step: int | None = None) -> tuple[list[Any], list[Any]]:
        """Requests of this step's exchange: none, since native threads exchange while samples are read."""
        return [], []

    def synchronize(self, send_req: Any = None, recv_req: Any = None) -> None:
        """Waits for the requests, of which communicate() returns none. Reading a sample waits until it has arrived."""
        for request in [*(send_req or ()), *(recv_req or ())]:
            request.wait()

    def clean_local_storage(self) -> None:
        """Ends the epoch. Native threads delete a sample that has left as soon as its new rank has it."""
        self._stream.finish()

    def stats(self) -> dict[str, int]:
        """The counters of Loader.store_stats."""
        return self.loader.store_stats() or {}

    def close(self) -> None:
        """Ends the exchange, and releases the store. Call it when all ranks have ended."""
        self.loader.close()


PartialScheduler = Scheduler


class _Stream:
    """The samples of an epoch in the order of the loader, taken one by one."""

    def __init__(self, loader: Loader, samples: int, world_size: int) -> None:
        self._loader = loader
        # Samples of the shortest and of the longest share. A sampler may ask each rank for as many as the longest has.
        self._least, self._most = samples // world_size, -(-samples // world_size)
        self.epoch = -1
        self._taken: set[int] = set()
        self._first: tuple[bytes, int | None] | None = None
        self._batches: Iterator[Any] = iter(())
        self._rest: list[tuple[bytes, int | None]] = []

    def begin(self, epoch: int) -> None:
        """Begins `epoch`, unless it has begun and no sample was taken."""
        if epoch == self.epoch and not self._taken:
            return
        self.finish()
        self._loader.set_epoch(epoch)
        self.epoch, self._taken, self._first = epoch, set(), None
        self._batches, self._rest = iter(self._loader), []

    def take(self, index: int) -> tuple[bytes, int | None]:
        """Bytes and label of the next sample. The index only shows whether the sampler begins again."""
        if index in self._taken or len(self._taken) == self._most:
            raise Unsupported(
                f"sample {index} is asked for when epoch {self.epoch} has had it, or has no more: begin each epoch "
                "with scheduling(epoch), and read with a sampler that gives each index once, with num_workers=0"
            )
        self._taken.add(index)
        sample = self._next()
        if sample is None:
            # A share that is one sample shorter repeats its first one, as torch's sampler fills up the last step.
            sample = self._first
        elif self._first is None:
            self._first = sample
        assert sample is not None, "a share has a sample"
        return sample

    def _next(self) -> tuple[bytes, int | None] | None:
        """The next sample of the loader; None at the end of the epoch."""
        if not self._rest:
            batch = next(self._batches, None)
            if batch is None:
                return None
            labels = batch.labels
            each = enumerate(batch)
            self._rest = [(bytes(view), None if labels is None else int(labels[at])) for at, view in each]
            self._rest.reverse()
        return self._rest.pop()

    def finish(self) -> None:
        """Reads the last sample of a longer share, which the sampler leaves out, so that the loader ends the epoch.
        Does nothing if the epoch was left earlier."""
        if self.epoch >= 0 and len(self._taken) >= self._least:
            for _ in self._batches:
                pass
            self._rest = []


def _place() -> tuple[int, int]:
    """Rank and world size: from torch.distributed, else from the launcher's variables."""
    group = _group()
    if group is not None:
        return group
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _imported(folder: str, rank: int) -> Path:
    """The image of a folder, beside it; rank 0 makes it, and the others wait if torch.distributed can."""
    image = str(Path(folder)).rstrip("/") + ".dlfs"
    if rank == 0 and not os.path.exists(image):
        part = image + ".part"
        Path(part).unlink(missing_ok=True)
        address = part.replace("%", "%25").replace(",", "%2C")
        command = [sys.executable, "-m", "dlfs", "import", "--quiet", folder, address]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise InvalidArgument(f"{folder} cannot be imported: {done.stderr.strip()}")
        os.rename(part, image)
    if _group() is not None:
        import torch.distributed

        torch.distributed.barrier()
    if not os.path.exists(image):
        raise InvalidArgument(f"{image} is not there: rank 0 makes it from {folder}, on a file system that all see")
    return Path(image)


def _names(class_file: str | os.PathLike[str] | None) -> list[str]:
    if class_file is None:
        return []
    lines = Path(class_file).read_text().splitlines()
    return [line.split()[0] for line in lines if line.strip()]


def _pil(content: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(content)).convert("RGB")
