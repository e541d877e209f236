"""Clairvoyant prefetching with the interface of HDMLP, later NoPFS, over dlfs.Loader.

A training script that was written for HDMLP runs with its import changed:

    import dlfs.hdmlp as hdmlp

    job = hdmlp.Job(folder, batch_size, epochs, "uniform", drop_last_batch, seed=1, config_path="hdmlp.cfg")
    dataset = hdmlp.lib.torch.HDMLPImageFolder(folder, job, transform)
    for epoch in range(epochs):
        for images, labels in hdmlp.lib.torch.HDMLPDataLoader(dataset):
            ...

The configuration is HDMLP's own: its storage classes are tiers, filled by the access frequencies of the whole run. Rank
and world size come from torch.distributed, or from the launcher's variables. The ranks share their tiers. A folder of
class folders is read as it is; the address of an image serves as well, and has checksums.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from . import NO_LABEL, InvalidArgument, Loader, Peers, Unsupported
from . import open as _open
from .pls import _pil, _place

__all__ = ["HDMLPDataLoader", "HDMLPDatasetFolder", "HDMLPImageFolder", "Job", "lib"]


class Job:
    """A run over a data set: `epochs` epochs in a full shuffle, of which this rank gets its part of each global batch.

    dataset_path     a folder of class folders, or a dlfs address
    batch_size       samples of a global batch, a multiple of the world size
    distr_scheme     "uniform": all ranks get equally many samples of a batch
    drop_last_batch  drop samples that do not fill a global batch at the end of an epoch
    transforms       functions for the bytes of a sample, of hdmlp.lib.transforms or any others. None: none
    seed             the same on all ranks. None or 0: drawn by rank 0, which sends it through torch.distributed
    config_path      HDMLP's configuration, or dlfs's description of tiers. None: 2 GiB of memory
    libhdmlp_path    not used

    Raises InvalidArgument for a scheme or back end that dlfs does not have, and for a batch size that the ranks cannot
    share equally.
    """

    def __init__(
        self,
        dataset_path: str | os.PathLike[str],
        batch_size: int,
        epochs: int,
        distr_scheme: str,
        drop_last_batch: bool,
        transforms: Sequence[Callable[[Any], Any]] | None = None,
        seed: int | None = None,
        config_path: str | os.PathLike[str] | None = None,
        libhdmlp_path: str | os.PathLike[str] | None = None,
        filesystem_backend: str = "filesystem",
    ) -> None:
        if distr_scheme != "uniform":
            raise InvalidArgument(f"the distribution scheme is uniform, not {distr_scheme}")
        if filesystem_backend != "filesystem":
            raise InvalidArgument(f"import the data from {filesystem_backend}, and give the address of the image")
        self.rank, self.world_size = _place()
        if batch_size % self.world_size:
            raise InvalidArgument(f"{self.world_size} ranks cannot share batches of {batch_size} samples equally")
        self.dataset_path, self.batch_size, self.epochs = dataset_path, batch_size, epochs
        self.drop_last_batch, self.transforms = drop_last_batch, list(transforms or ())
        self._seed, self._config = seed, config_path
        self._loader: Loader | None = None
        # The batches left of the current epoch; None: no epoch has begun, or it has ended.
        self._batches: Iterator[Any] | None = None
        # The samples of batches that were read and not taken yet.
        self._rest: list[tuple[str, bytes]] = []
        self._epochs_left = epochs

    def setup(self) -> None:
        """Opens the data set, joins the other ranks, and begins to read ahead."""
        if self._loader is not None:
            return
        tiers = ["ram:2G"] if self._config is None else self._config
        self._dataset = _open(self.dataset_path, tiers=tiers, policy="clairvoyant")
        self._classes = [os.fsdecode(name) for name in self._dataset.classes]
        self._loader = Loader(
            self._dataset,
            self.batch_size // self.world_size,
            "global",
            rank=self.rank,
            world_size=self.world_size,
            seed=self._shared_seed(),
            epochs=self.epochs,
            drop_last=self.drop_last_batch,
            **(Peers(peers="auto", peer_mode="plan") if self.world_size > 1 else Peers()),
        )

    def get(self, num_items: int = 1) -> tuple[Any, Any]:
        """Label and bytes of this rank's next sample, in whatever epoch it is; of several, a list of each.

        A label is the name of a class, or its number where it has no name; "" stands for no label.

        Raises IndexError when all epochs have been read.
        """
        while len(self._rest) < num_items:
            if not self._begin():
                raise IndexError(f"all {self.epochs} epochs have been read")
            self._read()
        taken, self._rest = self._rest[:num_items], self._rest[num_items:]
        labels, contents = zip(*taken)
        return taken[0] if num_items == 1 else (list(labels), list(contents))

    def _begin(self) -> bool:
        """Begins the next epoch, unless one is being read; returns whether there was one."""
        self.setup()
        if self._batches is None and self._epochs_left:
            assert self._loader is not None
            self._batches, self._epochs_left = iter(self._loader), self._epochs_left - 1
        return self._batches is not None

    def _read(self) -> int:
        """Reads the epoch's next batch; returns its samples, or 0 at the epoch's end."""
        batch = None if self._batches is None else next(self._batches, None)
        if batch is None:
            self._batches = None
            return 0
        if batch.ends_epoch:
            self._batches = None  # a loop may leave its epoch with the last batch
        labels = [""] * len(batch) if batch.labels is None else map(self._name, batch.labels)
        self._rest += zip(labels, map(bytes, batch))
        return len(batch)

    def _name(self, label: int) -> str:
        if label == NO_LABEL:
            return ""
        return self._classes[label] if 0 <= label < len(self._classes) else str(label)

    def _shared_seed(self) -> int:
        """The seed of all ranks: as given, or drawn by rank 0."""
        if self._seed or self.world_size == 1:
            return self._seed or random.getrandbits(63)
        from torch import distributed

        if not distributed.is_initialized():
            raise InvalidArgument("the ranks need one seed: give it, or initialise torch.distributed before the job")
        drawn = [random.getrandbits(63)]
        distributed.broadcast_object_list(drawn)
        return drawn[0]

    def destroy(self) -> None:
        """Ends reading ahead. Call it when all ranks have ended."""
        if self._loader is not None:
            self._loader.close()
            self._dataset.close()

    def stats(self) -> dict[str, Any]:
        """The counters of Dataset.stats: bytes by place, times of reads, waits."""
        self.setup()
        return self._dataset.stats()

    def length(self) -> int:
        """Samples of the data set, of which each rank reads its part."""
        self.setup()
        return len(self._dataset)

    def get_node_id(self) -> int:
        return self.rank

    def get_no_nodes(self) -> int:
        return self.world_size

    def get_batch_size(self) -> int:
        return self.batch_size

    def get_num_epochs(self) -> int:
        return self.epochs

    def get_drop_last_batch(self) -> bool:
        return self.drop_last_batch

    def get_transforms(self) -> list[Callable[[Any], Any]]:
        return self.transforms


class HDMLPDatasetFolder:
    """The samples of a job as (sample, class index), the next one whatever the index; of a slice, lists of both.

    The class index of a sample without a label is -1. The job's transforms and then `transform` are applied to the
    bytes of a sample, `target_transform` to its class index.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        hdmlp_job: Job,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        filelist: str | os.PathLike[str] | None = None,
    ) -> None:
        self.root, self.job, self.transform, self.target_transform = root, hdmlp_job, transform, target_transform
        hdmlp_job.setup()
        self.classes = list(hdmlp_job._classes)
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        self._decode = [*hdmlp_job.get_transforms()]

    def __getitem__(self, index: int | slice) -> tuple[Any, Any]:
        if isinstance(index, slice):
            pairs = [self[0] for _ in range(index.start or 0, index.stop)]
            return [sample for sample, _ in pairs], [target for _, target in pairs]
        label, sample = self.job.get()
        target = self.class_to_idx[label] if label in self.class_to_idx else int(label or -1)
        for step in [*self._decode, *([self.transform] if self.transform else [])]:
            sample = step(sample)
        return sample, target if self.target_transform is None else self.target_transform(target)

    def __len__(self) -> int:
        return self.job.length()

    def __reduce__(self) -> Any:
        raise Unsupported("dlfs reads ahead in threads of its own: use HDMLPDataLoader, or num_workers=0")

    def get_job(self) -> Job:
        return self.job


class HDMLPImageFolder(HDMLPDatasetFolder):
    """The same for images: PIL decodes them first, unless the job's transforms include ImgDecode."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if _pil not in self._decode:
            self._decode = [_pil, *self._decode]


class HDMLPDataLoader:
    """The batches of a job, an epoch for each `for`: tensors of samples and labels, or the results of `collate_fn` for
    lists of pairs."""

    def __init__(
        self, dataset: HDMLPDatasetFolder, collate_fn: Callable[[list[Any]], Any] | None = None, label_type: Any = None
    ) -> None:
        self.dataset, self.collate_fn, self.label_type = dataset, collate_fn, label_type

    def __iter__(self) -> Iterator[Any]:
        job = self.dataset.get_job()
        # If the last loop left its epoch early, this one reads the rest.
        if not job._rest and not job._begin():
            return
        while samples := len(job._rest) or job._read():
            pairs = [self.dataset[0] for _ in range(samples)]
            yield self._collate(pairs) if self.collate_fn is None else self.collate_fn(pairs)

    def _collate(self, pairs: list[Any]) -> tuple[Any, Any]:
        import torch

        labels = torch.as_tensor([label for _, label in pairs], dtype=self.label_type)
        return torch.stack([torch.as_tensor(sample) for sample, _ in pairs]), labels

    def __len__(self) -> int:
        samples, batch = len(self.dataset), self.dataset.get_job().get_batch_size()
        return samples // batch if self.dataset.get_job().get_drop_last_batch() else -(-samples // batch)


def _transforms() -> dict[str, Callable[..., Any]]:
    """HDMLP's transforms of images, by torchvision's; widths come before heights, as there."""

    def vision(name: str, arrange: Callable[..., tuple[Any, ...]] = lambda *given: given) -> Callable[..., Any]:
        def make(*given: Any, **options: Any) -> Any:
            return getattr(import_module("torchvision.transforms"), name)(*arrange(*given), **options)

        return make

    kept = ("RandomHorizontalFlip", "RandomVerticalFlip", "RandomResizedCrop", "ToTensor", "Normalize")
    return {
        **{name: vision(name) for name in kept},
        **{name: vision(name, lambda width, height: ((height, width),)) for name in ("Resize", "CenterCrop")},
        "ImgDecode": lambda: _pil,
        "HWCtoCHW": vision("PILToTensor"),
    }


lib = SimpleNamespace(
    torch=SimpleNamespace(
        HDMLPDataLoader=HDMLPDataLoader,
        HDMLPDatasetFolder=HDMLPDatasetFolder,
        HDMLPImageFolder=HDMLPImageFolder,
        HDMLPThreadedDataLoader=HDMLPDataLoader,
    ),
    transforms=SimpleNamespace(**_transforms()),
)
