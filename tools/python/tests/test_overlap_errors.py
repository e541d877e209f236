"""Transforms of a loader: what must not be lost, or waited for without end, when a step fails or the loader is moved."""

import threading
import time

import pytest

import dlfs
import transforms
from conftest import wait_until
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


def test_an_iterator_that_waits_ends_when_its_loader_is_moved_while_the_last_transform_ends(ds, monkeypatch):
    goes_on, calls, found = threading.Event(), [], []

    def holds_the_second(batch):
        calls.append(batch)
        if len(calls) == 2:
            assert goes_on.wait(60)
        return len(batch)

    with pooled(ds, 200, holds_the_second, ahead=2) as loader:
        results = iter(loader)
        assert next(results) == 200
        waits = threading.Thread(target=lambda: found.extend(results))
        waits.start()
        run = loader._overlap._newest()
        wait_until(lambda: len(calls) == 2 and run.source_has_ended, "the transform of the last batch")
        place, epoch_of = run.places[0], dlfs._overlap._epoch

        def epoch_later(loader):
            goes_on.set()
            wait_until(lambda: place.is_done, "the end of the transform")
            time.sleep(0.2)  # the iterator looks, and waits again
            return epoch_of(loader)

        monkeypatch.setattr(dlfs._overlap, "_epoch", epoch_later)
        loader.set_epoch(3)
        monkeypatch.setattr(dlfs._overlap, "_epoch", epoch_of)
        waits.join(60)
        assert not waits.is_alive() and found == []
        assert sum(loader) == len(ds)
