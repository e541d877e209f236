"""dlfs.grain: the data source, and Grain itself if it is installed."""

import pickle

import pytest

import dlfs
import dlfs.grain


def test_it_is_a_random_access_source(address, source):
    with dlfs.open(address) as ds:
        data = dlfs.grain.DataSource(ds)
        assert len(data) == len(source)
        assert data[7] == (source.contents[7], source.labels[7]) and data[-1] == data[399]
        assert data.__getitems__([3, 1]) == [(source.contents[i], source.labels[i]) for i in (3, 1)]
        for wrong in (400, -401):
            with pytest.raises(IndexError):
                data[wrong]
        again = pickle.loads(pickle.dumps(data))
        assert again[7] == data[7] and repr(again) == repr(data)


@pytest.mark.parametrize("workers", [0, 2])
def test_grain_reads_shuffles_and_batches_it(ds, source, workers):
    grain = pytest.importorskip("grain", reason="grain is not installed")
    data = (
        grain.MapDataset.source(dlfs.grain.DataSource(ds))
        .shuffle(seed=1)
        .map(lambda item: (len(item[0]), item[1]))
        .to_iter_dataset()
    )
    if workers:
        data = data.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    found = sorted(tuple(map(int, item)) for item in data)
    assert found == sorted((len(c), label) for c, label in zip(source.contents, source.labels))
