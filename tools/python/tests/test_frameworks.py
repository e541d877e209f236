"""Frameworks: Lightning, Accelerate, DALI. Each is skipped if it is not installed."""

import multiprocessing
import os

import pytest

import dlfs
from conftest import free_port

torch = pytest.importorskip("torch", reason="torch is not installed")

import dlfs.torch  # noqa: E402


def lengths(batch):
    """A data set to train on, and the ids that were delivered."""
    inputs = torch.tensor([[float(view.nbytes)] for view in batch]) / 9000
    return inputs, torch.tensor(batch.ids)


@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_trains_every_sample_once_an_epoch(ds, workers):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    seen = []

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, index):
            inputs, ids = batch
            seen.extend(ids.tolist())
            return self.layer(inputs).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = dlfs.torch.IterableDataset(ds, 32, seed=1, transform=lengths)
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Model(), loader)
    half = len(seen) // 2
    assert sorted(seen[:half]) == sorted(seen[half:]) == list(range(len(ds)))


def test_accelerate_prepares_a_loader_and_gives_every_sample_once(ds):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    data = dlfs.torch.Dataset(ds, transform=lambda view, label: view.nbytes)
    sampler = dlfs.torch.BatchSampler(ds, 32, seed=1)
    order = [i for batch in sampler for i in batch]
    sampler.set_epoch(0)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    loader = accelerate.Accelerator(cpu=True).prepare(loader)
    found = [int(length) for batch in loader for length in batch]
    assert found == [ds.length(i) for i in order]


def accelerate_rank(rank, path, port, queue):
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in place.items()}, MASTER_ADDR="127.0.0.1")
    import accelerate

    accelerator, ds = accelerate.Accelerator(cpu=True), dlfs.open(path)
    whole = {"rank": 0, "world_size": 1}  # it shares out what it prepares
    found = []
    for options, prepare in (({}, lambda loader: loader), (whole, accelerator.prepare)):
        data = dlfs.torch.IterableDataset(ds, 20, seed=1, transform=lambda b: torch.tensor(b.ids), **options)
        sampler = dlfs.torch.BatchSampler(ds, 20, seed=1, **options)
        for loader in (
            torch.utils.data.DataLoader(data, batch_size=None),
            torch.utils.data.DataLoader(range(len(ds)), batch_sampler=sampler),
        ):
            found.append([i for batch in prepare(loader) for i in batch.tolist()])
    queue.put(found)
    accelerator.end_training()


def test_accelerate_shares_out_what_it_prepares_and_dlfs_what_it_does_not(image, ds):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    port = free_port()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [
        context.Process(target=accelerate_rank, args=(rank, image, port, queue)) for rank in range(2)
    ]
    [rank.start() for rank in ranks]
    found = [queue.get(timeout=120) for _ in ranks]
    [rank.join(120) for rank in ranks]
    for one, other in zip(*found, strict=True):
        assert len(one) == len(other) and sorted(one + other) == list(range(len(ds)))


def test_dali_takes_batches_as_an_external_source(ds):
    pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed")
    from nvidia.dali import fn, pipeline_def

    loader = dlfs.Loader(ds, 32, seed=1, drop_last=True)
    ids = []

    def source():
        for batch in loader:
            ids.extend(batch.ids.tolist())
            yield [numpy_of(view) for view in batch]

    @pipeline_def(batch_size=32, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def pipeline():
        return fn.external_source(source=source(), batch=True)

    built = pipeline()
    built.build()
    (out,) = built.run()
    assert [bytes(out.at(i)) for i in range(32)] == ds.read_batch(ids[:32]).tobytes()


def numpy_of(view):
    import numpy

    return numpy.frombuffer(view, dtype=numpy.uint8)
