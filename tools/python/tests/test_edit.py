"""Deleting samples, and freeing their space."""

import os
import random
import shutil

import numpy as np
import pytest

import dlfs
from conftest import SEED


@pytest.fixture
def copy(image, tmp_path):
    """An image of the same samples that a test may change."""
    return shutil.copy(image, tmp_path / "train.dlfs")


def test_ids_and_names_are_deleted_in_one_generation_each(copy, source):
    print("seed", SEED)
    before = dlfs.open(copy)
    gone = np.array(random.Random(SEED).sample(range(len(source)), 150))
    assert dlfs.delete(copy, gone) == 150
    assert dlfs.delete(copy, gone[:9].tolist()) == 0, "they are deleted already"
    left = sorted(set(range(len(source))) - set(gone.tolist()))
    named = [source.names[i] for i in left[:40]]
    assert dlfs.delete(copy, (name for name in named)) == 40
    assert dlfs.delete(copy, [os.fsencode(source.names[left[40]])]) == 1
    with dlfs.open(copy) as ds:
        assert ds.generation == before.generation + 4
        assert ds.ids.tolist() == left[41:] and named[0] not in ds
        assert [bytes(view) for view in ds] == [source.contents[i] for i in left[41:]]
    assert len(before) == len(source) and named[0] in before, "it stays at its generation"


def test_what_is_not_there_is_named_and_nothing_is_deleted(copy, source):
    with pytest.raises(dlfs.NotFound, match=f"no samples with id {len(source)}, 4000"):
        dlfs.delete(copy, [0, len(source), 4000])
    with pytest.raises(dlfs.NotFound, match="no samples called nobody, nowhere"):
        dlfs.delete(copy, [source.names[0], "nobody", "nowhere"])
    with pytest.raises(dlfs.IndexOutOfRange):
        dlfs.delete(copy, [0, -1])
    for wrong in (source.names[0], b"0", [1.5], [0, source.names[1]], np.ones(3, bool)):
        with pytest.raises(TypeError):
            dlfs.delete(copy, wrong)
    with pytest.raises(TypeError):
        dlfs.delete(copy, [0], no_such_option=1)
    with pytest.raises(FileNotFoundError):
        dlfs.delete(f"{copy}-", [0])
    with dlfs.open(copy) as ds:
        assert len(ds) == len(source) and ds.generation == 1


def test_purge_frees_the_space_of_what_was_deleted(copy, source):
    size = os.stat(copy).st_blocks
    dlfs.delete(copy, range(0, 300))
    assert dlfs.purge(copy) > 0
    assert os.stat(copy).st_blocks < size * 0.6
    with dlfs.open(copy) as ds:
        assert [bytes(view) for view in ds] == source.contents[300:]
