"""Engines that break: an exception in time, never a loop that ends as if the epoch were complete.

The wheel under test is built with debug assertions, and has the engine of `src/io/qpair/broken.rs`.
"""

import shutil
import threading

import pytest

import dlfs

PANIC = "an engine that was told to panic"


@pytest.fixture
def breaks(monkeypatch):
    """Data sets opened from now on break: FAULT:N:THREAD."""
    return lambda how: monkeypatch.setenv("DLFS_TEST_ENGINE", how)


# Waiting for a hanging or blocking engine does not depend on the order.
@pytest.mark.parametrize(
    "order, fault, kind, says",
    [
        ("grouped", "panics", dlfs.Internal, f"the thread dlfs-poller panicked: {PANIC}"),
        ("global", "panics", dlfs.Internal, f"the thread dlfs-poller panicked: {PANIC}"),
        ("grouped", "fails", dlfs.Error, "failed"),
        ("global", "fails", dlfs.Error, "failed"),
        ("grouped", "hangs", dlfs.TimedOut, "no batch was ready"),
        ("grouped", "blocks", dlfs.TimedOut, "no batch was ready"),
    ],
)
def test_a_loop_over_a_broken_engine_raises_and_goes_on_raising(breaks, image, order, fault, kind, says):
    breaks(f"{fault}:5:dlfs-poller")
    with dlfs.open(image) as ds:
        deadline = 1.0 if kind is dlfs.TimedOut else 60.0
        loader = dlfs.Loader(ds, batch_size=16, epochs=1000, order=order, deadline=deadline)
        for _ in range(3):
            with pytest.raises(kind) as error:
                for _ in range(1000):
                    for batch in loader:
                        del batch
            assert says in str(error.value)


@pytest.mark.parametrize(
    "fault, kind, says",
    [
        ("panics", dlfs.Internal, f"reading by id panicked: {PANIC}"),
        ("fails", dlfs.Error, "failed"),
        ("hangs", dlfs.TimedOut, "within 1s"),
    ],
)
def test_reading_by_id_with_a_broken_engine_raises(breaks, image, fault, kind, says):
    breaks(f"{fault}:60:")
    deadline = 1.0 if kind is dlfs.TimedOut else 60.0
    with dlfs.open(image, deadline=deadline) as ds, pytest.raises(kind) as error:
        for _ in range(100):
            for id in range(0, len(ds), 7):
                ds[id]
    assert says in str(error.value)


@pytest.mark.parametrize("fault, kind", [("panics", dlfs.Internal), ("fails", dlfs.Error)])
def test_opening_with_a_broken_engine_raises(breaks, image, fault, kind):
    breaks(f"{fault}:0:dlfs-open")
    with pytest.raises(kind):
        dlfs.open(image)


def test_an_internal_error_is_a_runtime_error_and_ends_every_thread_that_waits(breaks, image):
    assert issubclass(dlfs.Internal, RuntimeError)
    breaks("panics:5:dlfs-poller")
    with dlfs.open(image) as ds:
        loader = dlfs.Loader(ds, batch_size=16, epochs=1000, deadline=30.0)
        ends = []

        def read():
            try:
                for _ in range(1000):
                    for batch in loader:
                        del batch
                ends.append("complete")
            except dlfs.Internal:
                ends.append("raised")

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert ends == ["raised"] * 4


@pytest.mark.parametrize("call", [lambda image: dlfs.delete(image, [0]), dlfs.purge])
def test_a_call_that_panics_raises_an_ordinary_exception_that_says_what_and_where(breaks, image, tmp_path, call):
    copy = tmp_path / "copy.dlfs"
    shutil.copy(image, copy)
    breaks("panics:0:")  # in the thread that calls
    with pytest.raises(Exception) as error:
        call(copy)
    assert type(error.value) is dlfs.Internal
    assert PANIC in str(error.value) and "broken.rs:" in str(error.value)
    assert "report it" in str(error.value)
