"""Weighted order: Loader(order="weighted", weights=), and in dlfs.torch."""

import json
import pickle
from collections import Counter

import numpy as np
import pytest

import dlfs
from conftest import CLASSES, PER_CLASS


def drawn(loader):
    return [int(id) for batch in loader for id in batch.ids]


def weighted(ds, weights, **options):
    return dlfs.Loader(ds, options.pop("batch_size", 64), "weighted", weights=weights, seed=5, epochs=1, **options)


@pytest.fixture
def ds(image):
    with dlfs.open(image) as ds:
        yield ds


def test_samples_are_drawn_in_proportion_with_their_bytes(ds, source):
    weights = np.arange(len(ds)) % 4
    counts = Counter()
    with weighted(ds, weights, epoch_size=40_000) as loader:
        assert len(loader) == 625
        for batch in loader:
            counts.update(int(id) for id in batch.ids)
            for id, view in zip(batch.ids[:2], batch[:2]):
                assert bytes(view) == source.contents[id]
    probabilities = weights / weights.sum()
    for id, p in enumerate(probabilities):
        assert abs(counts[id] - 40_000 * p) <= 5 * (40_000 * p) ** 0.5, id
    for same in (weights.tolist(), weights.astype("f4"), tuple(weights * 0.5)):
        with weighted(ds, same, epoch_size=500) as a, weighted(ds, weights, epoch_size=500) as b:
            assert drawn(a) == drawn(b)


def test_labels_are_balanced_or_weighed_by_number_or_name(ds, source):
    def shares(weights, **options):
        with weighted(ds.select("label != 'ant' or id < 10"), weights, epoch_size=6000, **options) as loader:
            counts = Counter(source.labels[id] for id in drawn(loader))
        return [counts[label] / 6000 for label in range(len(CLASSES))]

    assert np.abs(np.array(shares("balanced")) - 0.25).max() < 0.04
    named = {"ant": 10, "bee": 0, "cat": 1, "dog": 2}
    by_number = {CLASSES.index(name): weight for name, weight in named.items()}
    assert shares(named) == shares(by_number)
    assert np.abs(np.array(shares(named)) - np.array([100, 0, 100, 200]) / 400).max() < 0.04


def test_without_replacement_an_epoch_is_a_shuffle_of_those_with_a_weight(ds):
    weights = np.where(np.arange(len(ds)) % 3 == 0, 0, 1.0)
    with weighted(ds, weights, without_replacement=True) as loader:
        ids = drawn(loader)
    assert sorted(ids) == [id for id in range(len(ds)) if id % 3]
    assert ids != sorted(ids)
    heavy = np.where(np.arange(len(ds)) < 50, 1e6, 1.0)
    with weighted(ds, heavy, without_replacement=True) as loader:
        assert sum(id < 50 for id in drawn(loader)[:50]) > 45


def test_a_run_goes_on_with_other_ranks_and_refuses_other_weights(ds):
    options = {"epoch_size": 1000}
    weights = np.arange(1.0, len(ds) + 1)
    with weighted(ds, weights, **options) as loader:
        whole = drawn(loader)
    loaders = [weighted(ds, weights, rank=rank, world_size=2, batch_size=50, **options) for rank in range(2)]
    had = {}
    for rank, loader in enumerate(loaders):
        for step, batch in zip(range(4), loader):
            had[step, rank] = [int(id) for id in batch.ids]
    state = json.loads(json.dumps(loaders[0].state_dict()))
    assert state == loaders[1].state_dict() and state["consumed"] == 400
    assert state["order"]["kind"] == "weighted" and len(state["order"]["weights"]) == 32
    steps = [[had[step, 0], had[step, 1]] for step in range(4)]
    assert [id for step in steps for pair in zip(*step) for id in pair] == whole[:400]
    with weighted(ds, weights, batch_size=7, **options) as loader:
        loader.load_state_dict(state)
        again = pickle.loads(pickle.dumps(loader))
        assert drawn(loader) == whole[400:] == drawn(again)
        assert "numbers" in repr(loader.options["weights"])
    other = weights.copy()
    other[3] += 1e-9
    with weighted(ds, other, **options) as loader, pytest.raises(dlfs.InvalidArgument, match="draws by weights"):
        loader.load_state_dict(state)


def test_torch_reads_weighted_with_workers_and_samplers(ds):
    torch = pytest.importorskip("torch")
    import dlfs.torch

    weights = torch.arange(len(ds), dtype=torch.float64) % 5
    options = {"order": "weighted", "weights": weights, "epoch_size": 900, "seed": 5, "epochs": 1}
    with dlfs.Loader(ds, 30, **options) as loader:
        whole = drawn(loader)
    for workers in (0, 2):
        data = dlfs.torch.IterableDataset(ds, 30, transform=lambda batch: batch.ids.tolist(), **options)
        assert "<400 numbers>" in repr(data)
        read = dlfs.torch.DataLoader(data, num_workers=workers)
        ids = [id for ids in read for id in ids]
        assert len(ids) == 900
        # Workers divide as many batches as they are, as ranks divide a global batch.
        step = 30 * max(workers, 1)
        for first in range(0, 900, step):
            assert sorted(ids[first : first + step]) == sorted(whole[first : first + step])
    sampler = dlfs.torch.BatchSampler(ds, 30, **options)
    assert len(sampler) == 30 and [id for ids in sampler for id in ids] == whole
    assert list(dlfs.torch.Sampler(ds, **options)) == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give weights"),
        ({"weights": [1.0] * 399}, "399 weights for 400 samples"),
        ({"weights": [1.0] * 399 + [float("nan")]}, "index 399 is NaN"),
        ({"weights": [-1.0] + [1.0] * 399}, "index 0 is -1"),
        ({"weights": np.zeros(400)}, "no sample has a weight above 0"),
        ({"weights": np.ones((20, 20))}, r"shape \(20, 20\)"),
        ({"weights": "even"}, '"balanced"'),
        ({"weights": {"cow": 1.0}}, 'no class "cow"'),
        ({"weights": {0: 1.0, 1: 1.0, 2: 1.0}}, "label 3, which the sample at index 300 has, is given no weight"),
        ({"weights": {0: 1, "ant": 1}}, "two weights"),
        ({"weights": dict.fromkeys(range(5), 1.0)}, "no sample has label 4"),
        ({"weights": "balanced", "epoch_size": 0}, "epoch of 0 samples"),
        ({"weights": "balanced", "epoch_size": -1}, "epoch_size: -1"),
        ({"weights": "balanced", "epoch_size": 401, "without_replacement": True}, "from 1 to 400"),
        ({"weights": "balanced", "group": 3}, 'group goes with the order grouped only'),
        ({"weights": "balanced", "order": "global"}, 'weights goes with order="weighted" only'),
        ({"without_replacement": True, "order": "grouped"}, 'without_replacement goes with order="weighted" only'),
    ],
)
def test_what_cannot_be_drawn_by_is_refused_at_once(ds, options, message):
    assert len(ds) == len(CLASSES) * PER_CLASS == 400
    with pytest.raises(dlfs.InvalidArgument, match=message):
        dlfs.Loader(ds, 8, **{"order": "weighted", **options})


def test_a_view_is_weighed_by_its_own_samples(ds):
    view = ds.select("id >= 100")
    with pytest.raises(dlfs.InvalidArgument, match="400 weights for 300 samples"):
        weighted(view, np.ones(400))
    weights = np.zeros(300)
    weights[[0, 299]] = 1
    with weighted(view, weights) as loader:
        assert set(drawn(loader)) == {100, 399}


def test_a_mixture_weighs_data_sets_not_samples(ds, equal):
    mixture = dlfs.Mixture([(ds, 1), (dlfs.open(equal[1]), 1)])
    with pytest.raises(dlfs.InvalidArgument, match="not of a mixture"):
        dlfs.Loader(mixture, 8, "weighted", weights="balanced")
