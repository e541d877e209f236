"""Batches: views, arrays, DLPack, and the lifetime of memory."""

import gc
import json
import pickle
import random

import numpy as np
import pytest

import dlfs
from conftest import SEED, command


def test_it_is_a_sequence_of_read_only_memoryviews(ds, source):
    batch = ds.read_batch([4, 5, 6])
    assert len(batch) == 3 and bytes(batch[-1]) == source.contents[6]
    assert isinstance(batch[0], memoryview) and batch[0].readonly
    assert [bytes(view) for view in batch] == [bytes(view) for view in batch.tolist()]
    assert [bytes(view) for view in batch[::-2]] == [source.contents[6], source.contents[4]]
    assert batch.tobytes() == source.contents[4:7]
    with pytest.raises(TypeError):
        batch[0][0] = 1
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            batch[wrong]
    with pytest.raises(KeyError):
        batch["0"]


def test_data_offsets_and_lengths_describe_the_same_bytes(ds, source):
    batch = ds.read_batch([8, 3, 200])
    data, offsets = batch.data, batch.offsets
    assert data.dtype == np.uint8 and not data.flags.writeable and offsets.dtype == np.int64
    for at in range(3):
        assert data[offsets[at] : offsets[at + 1]].tobytes() == bytes(batch[at])
    assert batch.lengths.tolist() == np.diff(offsets).tolist()
    assert batch.nbytes == len(data) == len(memoryview(batch)) == np.asarray(data).size
    assert batch.labels.tolist() == [source.labels[i] for i in (8, 3, 200)]


def test_equal_lengths_make_an_array_and_others_say_why_not(equal, ds):
    source, path = equal
    with dlfs.open(path) as same:
        batch = same.read_batch(range(20, 30))
        assert batch.array.shape == (10, 1024)
        assert batch.array[3].tobytes() == source.contents[23]
        for batch in dlfs.Loader(same, 32, contiguous=True):
            assert batch.array.tobytes() == b"".join(source.contents[i] for i in batch.ids)
    ragged = ds.read_batch([1, 2])
    with pytest.raises(dlfs.InvalidArgument, match="offsets"):
        ragged.array
    assert hasattr(batch, "array")
    assert not hasattr(ragged, "array") and getattr(ragged, "array", None) is None
    assert hasattr(ragged, "data") and hasattr(ragged, "offsets")


def test_contiguous_batches_of_equal_samples_are_not_copied_again(equal):
    _, path = equal
    with dlfs.open(path) as ds:
        for batch in dlfs.Loader(ds, 32, contiguous=True):
            one = np.frombuffer(batch[len(batch) // 2], dtype=np.uint8)
            assert np.shares_memory(batch.data, one)


def test_dlpack_gives_the_bytes_to_others(equal, ds, source):
    _, path = equal
    with dlfs.open(path) as same:
        batch = same.read_batch([1, 2])
        array = np.from_dlpack(batch)
        assert array.shape == (2, 1024) and np.array_equal(array, batch.array)
        assert not array.flags.writeable and batch.__dlpack_device__() == (1, 0)
        old = np.from_dlpack(Once(batch.__dlpack__()))
        assert np.array_equal(old, batch.array) and not np.shares_memory(old, batch.array)
    batch = ds.read_batch([1, 2])
    assert np.from_dlpack(batch).tobytes() == b"".join(source.contents[1:3])
    assert np.from_dlpack(batch, copy=True).flags.writeable
    for wrong in ({"colour": "red"}, {"max_version": "new"}):
        with pytest.raises(TypeError):
            batch.__dlpack__(**wrong)


class Once:
    """An export before DLPack 1.0, as JAX requests it."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


def test_empty_samples_and_empty_batches_are_no_special_case(tmp_path):
    (tmp_path / "src").mkdir()
    for i in range(3):
        (tmp_path / "src" / f"{i}").write_bytes(b"")
    command("import", tmp_path / "src", tmp_path / "i.dlfs", "--quiet")
    with dlfs.open(tmp_path / "i.dlfs") as ds:
        assert bytes(ds[0]) == b"" and ds.labels is None
        batch = ds.read_batch([0, 1])
        assert batch.data.shape == (0,) and batch.array.shape == (2, 0) and batch.labels is None
        assert len(memoryview(batch)) == 0 and batch.offsets.tolist() == [0, 0, 0]
        assert ds.read_batch([]).data.shape == (0,) and ds.read_batch([]).array.shape == (0, 0)
        assert sum(len(batch) for batch in dlfs.Loader(ds, 2)) == 3


def test_memory_lives_while_any_view_does_and_is_never_used_again_meanwhile(ds, source):
    """Views are kept at random while many more batches go through a small window."""
    print("seed", SEED)
    draw = random.Random(SEED)
    loader = dlfs.Loader(ds, 16, seed=3, window=256 << 10)
    kept = []
    for _ in range(20):
        for batch in loader:
            at = draw.randrange(len(batch))
            data = batch.data if draw.random() < 0.1 else None
            kept.append((int(batch.ids[at]), batch[at], data))
            if len(kept) > 40:
                for i in range(20):
                    kept.pop(draw.randrange(len(kept)))
            for id, view, _ in kept[-3:]:
                assert bytes(view) == source.contents[id]
    gc.collect()
    for id, view, _ in kept:
        assert bytes(view) == source.contents[id]


def test_all_batches_of_an_epoch_may_be_kept(ds, source):
    batches = list(dlfs.Loader(ds, 16, window=64 << 10, deadline=20))
    found = {int(id): bytes(view) for batch in batches for id, view in zip(batch.ids, batch)}
    assert [found[id] for id in range(len(source))] == source.contents


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_it_is_pickled_as_a_copy(ds, source, protocol):
    batch = next(iter(dlfs.Loader(ds, 400)))
    again = pickle.loads(pickle.dumps(batch, protocol))
    assert type(again) is dlfs.Batch and again.ids.tolist() == batch.ids.tolist()
    assert again.tobytes() == [source.contents[id] for id in batch.ids]
    assert again.labels.tolist() == batch.labels.tolist() and again.data.tobytes() == batch.data.tobytes()
    assert (again.epoch, again.ends_epoch) == (0, True)
    assert bytes(again[-1]) == bytes(batch[-1]) and [bytes(v) for v in again.field(0)] == batch.tobytes()
    gaps = pickle.loads(pickle.dumps(ds.read_batch([3, 10**9], on_error="none"), protocol))
    assert bytes(gaps[0]) == source.contents[3] and gaps[1] is None
    assert gaps.labels.tolist() == [source.labels[3], dlfs.NO_LABEL]
    ((position, why),) = gaps.failures
    assert position == 1 and isinstance(why, dlfs.NotFound) and str(10**9) in str(why)
    assert pickle.loads(pickle.dumps(ds.read_batch([]), protocol)).tolist() == []


def test_a_forged_pickle_is_refused_and_a_batch_cannot_be_constructed(ds):
    make, (records, beside) = ds.read_batch([0, 1]).__reduce__()
    assert make(records, beside).tobytes() == ds.read_batch([0, 1]).tobytes()
    parts = json.loads(beside)
    for name, wrong in [("ends", [0, 10**9]), ("ends", [5, 3]), ("ends", []), ("ids", [1]), ("labels", [1])]:
        with pytest.raises(dlfs.InvalidArgument):
            make(records, json.dumps({**parts, name: wrong}).encode())
    with pytest.raises(dlfs.NotFound, match="no field b"):
        forged = {**parts, "names": [[97]], "types": [None], "choice": {"One": [98]}}
        make(records, json.dumps(forged).encode())
    with pytest.raises(dlfs.InvalidArgument):
        make(records, b"")
    with pytest.raises(TypeError):
        make()
    with pytest.raises(TypeError):
        dlfs.Batch()
