"""Transforms of a loader: what must not be lost, or waited for without end, when a step fails or the loader is moved."""

import pytest

import dlfs
import transforms
from test_overlap import ids_of, plain, pooled


def test_a_batch_that_cannot_be_written_for_its_worker_is_not_read_in_place_of_the_next(ds, monkeypatch):
    write, failures = dlfs._workers._write, []

    def fails(file, parts):
        if not failures:
            failures.append(file)
            raise OSError(28, "no space")
        write(file, parts)

    whole = ids_of(plain(ds, 8))
    with pooled(ds, 8, transforms.ids, processes=1, ahead=1) as loader:
        monkeypatch.setattr(dlfs._workers, "_write", fails)
        with pytest.raises(OSError, match="no space"):
            list(loader)
        assert list(loader) == whole
