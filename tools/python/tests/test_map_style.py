"""Data sets for torch: what they are, and map-style ones."""

import pytest

import dlfs

torch = pytest.importorskip("torch", reason="torch is not installed")

import dlfs.torch  # noqa: E402


def len_and_label(view, label):
    return len(view), label


def test_data_sets_say_what_they_are(ds):
    data = dlfs.torch.Dataset(ds, transform=len_and_label)
    assert repr(data) == f"<dlfs.torch.Dataset of {ds!r}, transform=len_and_label>"
    assert "400 samples" in repr(data) and "transform" not in repr(dlfs.torch.Dataset(ds))
    told = repr(dlfs.torch.IterableDataset(ds, 17, seed=5, rank=1, world_size=2))
    assert repr(ds) in told and "rank 1 of 2: seed=5, batch_size=17, order='grouped'" in told
