"""Errors of callers, targets and media: each raises an exception that says what is wrong."""

import contextlib
import errno
import inspect
import os
import pathlib
import pickle
import re
import signal
import socket
import threading

import numpy as np
import pytest

import dlfs
from conftest import command, damaged, free_port, target, wait_until
from frozen import freeze


@pytest.mark.parametrize(
    "address, kind, text",
    [
        ("/absent/image.dlfs", dlfs.FileNotFound, "/absent/image.dlfs"),
        ("ftp://bucket/train.dlfs", dlfs.InvalidArgument, "ftp://bucket.*scheme that is not supported"),
        ("", dlfs.InvalidArgument, "empty"),
        ("nvme-tcp://host", dlfs.InvalidArgument, "nvme-tcp"),
        ("nvme-tcp://127.0.0.1:1/nqn.2026-11.io.dlfs:x", dlfs.Refused, "127.0.0.1:1"),
        ([], dlfs.InvalidArgument, "at least one"),
        (7, TypeError, "int"),
        (None, TypeError, "NoneType"),
    ],
)
def test_a_wrong_address(address, kind, text):
    with pytest.raises(kind, match=text):
        dlfs.open(address)


def test_a_misspelt_option_is_refused_by_its_name(image):
    with pytest.raises(TypeError, match="unexpected keyword argument 'tier'"):
        dlfs.open(image, tier=["ram:1M"])


@pytest.mark.parametrize(
    "says, kind", [(None, dlfs.TimedOut), (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, dlfs.Corrupt)]
)
def test_another_service_at_the_address(says, kind):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer():  # each attempt, until the listener is closed
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as peer, contextlib.suppress(OSError):
                        peer.recv(1 << 16)
                        peer.sendall(says)

        if says:
            threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(kind, match=str(port)):
            dlfs.open(f"nvme-tcp://127.0.0.1:{port}/nqn.2026-11.io.dlfs:x", connect_timeout=60 if says else 0.5)


def test_a_file_that_is_absent_is_what_python_calls_that(image, tmp_path):
    for ask in (
        lambda: dlfs.open(tmp_path / "absent"), lambda: dlfs.open(image, snapshot=tmp_path / "absent"),
        lambda: dlfs.open(image, tiers=tmp_path / "absent"), lambda: dlfs.open(f"{image},{tmp_path}/absent"),
    ):
        with pytest.raises(FileNotFoundError, match="absent") as error:
            ask()
        assert isinstance(error.value, (dlfs.NotFound, OSError)) and error.value.errno == errno.ENOENT
        assert str(error.value.filename) == str(tmp_path / "absent")
        again = pickle.loads(pickle.dumps(error.value))
        assert type(again) is dlfs.FileNotFound and str(again) == str(error.value)
    with dlfs.open(image) as ds, pytest.raises(dlfs.NotFound) as error:
        ds["absent"]
    assert not isinstance(error.value, OSError), "a sample is no file"


def test_a_file_that_is_no_image(tmp_path):
    (tmp_path / "x").write_bytes(b"not an image" * 1000)
    with pytest.raises(dlfs.NotFound, match="x.*\n.*dlfs import SOURCE IMAGE"):
        dlfs.open(tmp_path / "x")


def test_an_unknown_subsystem_and_namespace_of_a_target(served):
    with pytest.raises(dlfs.Error, match="nobody"):
        dlfs.open(served.rsplit(":", 1)[0] + ":nobody")
    with pytest.raises(dlfs.Error):
        dlfs.open(served + "?ns=9")


@pytest.mark.parametrize(
    "options",
    [
        {"deadline": -1}, {"deadline": float("nan")}, {"io_timeout": float("inf")},
        {"queue_pairs": 0}, {"queue_pairs": 10**6}, {"nr_io_queues": 0}, {"direct": "maybe"}, {"hostnqn": "x" * 300},
        {"dhchap_secret": "DHHC-1:00:AAAA:"},
        {"paths": [""]}, {"window": -1},
        {"queue_size": 1 << 16}, {"queue_size": 1}, {"nr_io_queues": 1 << 20},
        {"copy_bandwidth": -1},
    ],
)
def test_a_wrong_option_of_open(image, options):
    (name,) = options
    with pytest.raises(dlfs.InvalidArgument, match=None if name == "paths" else name):
        dlfs.open(image, **options)


def test_limits_beyond_the_clock_count_as_none(image):
    times = ["deadline", "connect_timeout", "io_timeout", "keep_alive_tmo", "ctrl_loss_tmo"]
    with dlfs.open(image, window=1, **dict.fromkeys(times, 1e19)) as ds:
        assert bytes(ds[0]) == bytes(next(iter(dlfs.Loader(ds, 1, "sequential", deadline=1e19)))[0])


def test_options_of_another_type_or_name(image, ds):
    with pytest.raises(TypeError):
        dlfs.open(image, colour="red")
    with pytest.raises(TypeError, match="deadline"):
        dlfs.open(image, deadline="soon")
    with pytest.raises(TypeError, match="colour"):
        dlfs.Loader(ds, 4, colour="red")
    for name in ("batch_size", "seed", "window", "lanes", "drop_last", "deadline", "order"):
        with pytest.raises(TypeError, match=name):
            dlfs.Loader(ds, **{"batch_size": 4, name: ["red"]})
    with pytest.raises(TypeError):
        dlfs.Loader("a data set", 4)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"batch_size": 0}, "batch_size"), ({"batch_size": -1}, "batch_size"),
        ({"rank": 2, "world_size": 2}, "rank 2"), ({"world_size": 0}, "world_size"),
        ({"order": "random"}, "random"),
        ({"lanes": 0}, "lanes"),
        ({"group": 0}, "chunk"), ({"order": "global", "lanes": 2}, "lanes"),
        ({"order": "partial", "exchange": 1.5}, "1.5"), ({"drop_last": True, "pad": True}, "pad"),
        ({"on_error": "none"}, "none"), ({"window": 0}, "window"),
        ({"batch_size": 2**63}, "batch_size"), ({"seed": -1}, "seed"), ({"seed": 2**64}, "seed"),
        ({"rank": -1}, "rank"), ({"world_size": 2**40}, "world_size: .* out of range"),
        ({"epochs": 0}, "epochs"), ({"batching": "file"}, "file"),
        ({"order": "global", "batching": "chunk"}, "whole chunks"),
        ({"queue_pairs": 10**6}, "queue_pairs is at most"), ({"lanes": -1}, "lanes"),
        ({"deadline": float("nan")}, "deadline"),
    ],
)
def test_a_wrong_option_of_a_loader(ds, options, text):
    with pytest.raises(dlfs.InvalidArgument, match=text):
        dlfs.Loader(ds, **{"batch_size": 4, **options})


def test_errors_name_options_by_the_keywords_that_there_are(image, source):
    table = (pathlib.Path(__file__).parents[1] / "src" / "error.rs").read_text()
    named = re.findall(r'\("[a-z ]*--[^"]*", "(\w+)', table)
    known = {*inspect.signature(dlfs.import_).parameters, *inspect.signature(dlfs.Loader).parameters}
    known |= dlfs.Opening.__optional_keys__ | dlfs.Loading.__optional_keys__
    assert len(named) > 30 and not set(named) - known
    with pytest.raises(dlfs.Refused, match="add to it with append=True, or overwrite it with overwrite=True"):
        dlfs.import_(source.root, image)


@pytest.mark.parametrize("index", [400, -401, 10**12, 2**63, 2**70, -(2**63), -(2**70)])
def test_an_index_out_of_range(ds, index):
    batch = ds[:400]
    for sequence in (ds, ds.names, batch):
        with pytest.raises(IndexError, match=str(index)) as error:
            sequence[index]
        assert isinstance(error.value, dlfs.NotFound)
    for use in (ds.name, ds.length):
        with pytest.raises(dlfs.NotFound, match=str(index)):
            use(index)


def test_a_name_that_is_absent(ds):
    for name in ("absent", b"absent", "", "ant"):
        with pytest.raises(KeyError) as error:
            ds[name]
        assert isinstance(error.value, dlfs.NotFound) and "dlfs ls" in str(error.value)
    assert "nul\0inside" not in ds


@pytest.mark.parametrize("key", [1.5, None, (1,), [1]])
def test_a_key_of_another_type(ds, key):
    with pytest.raises(TypeError):
        ds[key]


@pytest.mark.parametrize(
    "ids",
    ["ant/0000.bin", b"ant", 5, [1.5], [None], [1, "a"], ["a", 1], [[1]], [True], np.array([1.0]),
     np.arange(4).reshape(2, 2), np.array([True, False])],
)
def test_ids_of_another_type(ds, ids):
    with pytest.raises((TypeError, dlfs.NotFound)):
        ds.read_batch(ids)


def test_impossible_ids(ds):
    huge = np.array([3, 2**64 - 1], dtype=np.uint64)
    for ids in ([-1], [400], [2**40], [2**62], [2**63], [2**70], [-(2**70)], np.array([3, 400]), huge):
        with pytest.raises(dlfs.NotFound):
            ds.read_batch(ids)
    with pytest.raises(dlfs.InvalidArgument, match="never"):
        ds.read_batch([1], on_error="never")


def test_out_that_is_too_small_or_of_another_type(ds, source):
    need = len(source.contents[1])
    small = bytearray(need - 1)
    with pytest.raises(dlfs.InvalidArgument, match=str(need)):
        ds.read_batch([1], out=small)
    assert small == bytes(need - 1), "nothing was written"
    for out, kind in [
        (b"x" * 9000, dlfs.InvalidArgument),
        (np.zeros(20000, dtype=np.uint8)[::2], dlfs.InvalidArgument),
        (np.zeros(9000, dtype=np.float32), TypeError),
        ([0] * 9000, TypeError),
        ("x" * 9000, TypeError),
    ]:
        with pytest.raises(kind, match="out"):
            ds.read_batch([1], out=out)


def test_damage_is_never_handed_out(image, source, tmp_path):
    id = next(i for i in range(len(source)) if len(source.contents[i]) > 4000)
    with dlfs.open(damaged(image, tmp_path, source, id)) as ds:
        with pytest.raises(dlfs.Corrupt) as error:
            ds[id]
        assert error.value.sample_id == id and "LBA" in str(error.value).upper()
        assert isinstance(error.value, OSError)
        rest = ds.read_batch(range(len(ds)), on_error="none")
        assert [at for at, _ in rest.failures] == [id]
        for order in ("grouped", "global"):
            loader = dlfs.Loader(ds, 32, order)
            with pytest.raises(dlfs.Corrupt):
                for batch in loader:
                    pass
            with pytest.raises(dlfs.Corrupt):  # an epoch that was left in the middle begins again
                for batch in loader:
                    pass
            loader = dlfs.Loader(ds, 32, order, on_error="skip")
            seen = [int(i) for batch in loader for i in batch.ids]
            assert sorted(seen) == [i for i in range(len(ds)) if i != id]
            assert loader.stats()["skipped"] == 1


def test_an_image_that_was_written_anew_is_stale_or_refused(source, tmp_path):
    path = tmp_path / "i.dlfs"
    command("import", source.root, path, "--quiet")
    with dlfs.open(path) as ds:
        state = dlfs.Loader(ds, 32).state_dict()
        command("delete", path, source.names[0], "--quiet")
    with dlfs.open(path) as ds, pytest.raises(dlfs.Stale):
        dlfs.Loader(ds, 32).load_state_dict(state)


def test_a_target_that_dies_in_the_middle_of_an_epoch(image):
    with target(image) as (child, address):
        ds = dlfs.open(address, ctrl_loss_tmo=1)
        loader = dlfs.Loader(ds, 4, "global", window=64 << 10)
        batches = iter(loader)
        first = next(batches)
        child.kill()
        child.wait()
        # The connection is given up long before the deadlines of calls.
        with pytest.raises((dlfs.Disconnected, dlfs.Refused)) as error:
            for _ in batches:
                pass
        assert address.split("/")[2] in str(error.value), "it says which target"
        assert len(bytes(first[0])) == len(first[0]), "what was read stays"
        with pytest.raises((dlfs.Disconnected, dlfs.Refused)):
            ds[0]
        ds.close()


def test_a_target_that_comes_back_is_read_on(image, source):
    port = free_port()
    with target(image, port) as (child, address):
        ds = dlfs.open(address)
        seen = []
        for count, batch in enumerate(dlfs.Loader(ds, 4, "global", window=64 << 10)):
            assert batch.tobytes() == [source.contents[i] for i in batch.ids]
            seen += batch.ids.tolist()
            if count == 10:
                child.kill()
                child.wait()
                again = target(image, port)
                again.__enter__()
        assert sorted(seen) == list(range(len(source)))
        ds.close()
        again.__exit__(None, None, None)


def test_a_frozen_target_ends_a_read_at_its_deadline(image):
    with target(image) as (child, address):
        ds = dlfs.open(address, deadline=1.0)
        loader = dlfs.Loader(ds, 4, deadline=1.0)
        freeze(child.pid)
        for wait in (lambda: ds[0], lambda: next(iter(loader))):
            with pytest.raises(dlfs.TimedOut):
                wait()
        child.send_signal(signal.SIGCONT)
        for _ in range(60):  # a busy machine may be late again
            with contextlib.suppress(dlfs.TimedOut):
                batch = next(iter(loader))
                break
        assert len(batch) == 4, "after it was late, a loader goes on"
        ds.close()


# Limits of a data set that are far beyond those of the tests.
PATIENT = dict.fromkeys(["deadline", "connect_timeout", "io_timeout"], 600)


def test_a_loader_may_be_closed_while_it_connects(image):
    with target(image) as (child, address):
        loader = dlfs.Loader(dlfs.open(address, **PATIENT), 4, deadline=600)
        freeze(child.pid)
        raised = []

        def wait():
            try:
                next(iter(loader))
            except dlfs.Error as error:
                raised.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        loader.close()
        thread.join(120)  # less than a call may take
        assert not thread.is_alive() and "closed" in raised[0]
        child.send_signal(signal.SIGCONT)


def test_a_loader_that_is_closed_ends_the_wait_of_another_thread(image):
    with target(image) as (child, address):
        ds = dlfs.open(address, **PATIENT)
        loader = dlfs.Loader(ds, 4, "global", deadline=600, window=64 << 10)
        next(iter(loader))
        freeze(child.pid)
        raised = []

        def wait():
            try:
                for _ in loader:
                    pass
            except dlfs.Error as error:
                raised.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(thread.is_alive, "the thread's start")
        loader.close()
        thread.join(120)
        assert not thread.is_alive() and "closed" in raised[0]
        child.send_signal(signal.SIGCONT)


def test_options_are_refused_before_anything_is_joined_and_taken_as_python_gives_them(image, tmp_path):
    ds = dlfs.open(image)
    with pytest.raises(TypeError, match="unexpected keyword argument 'sede'"):
        dlfs.Loader(ds, 7, peers="auto", sede=7)
    with pytest.raises(TypeError, match="unexpected keyword argument 'node'"):
        dlfs.Loader(ds, 7, node="x")
    with pytest.raises(dlfs.InvalidArgument, match="copy_threads goes with contiguous"):
        dlfs.Loader(ds, 7, copy_threads=8)
    loader = dlfs.Loader(ds, 7, drop_last=np.True_, without_replacement=False)
    assert all(len(batch) == 7 for batch in loader)
    with pytest.raises(dlfs.FileNotFound):
        dlfs.open(image, snapshot=tmp_path / os.fsdecode(b"\xff.snap"))


def test_torch_doors_refuse_unknown_options_before_anything_is_joined(image):
    pytest.importorskip("torch")
    import dlfs.torch

    ds = dlfs.open(image)
    with pytest.raises(TypeError, match="unexpected keyword argument 'sede'"):
        dlfs.torch.IterableDataset(ds, 7, peers="auto", sede=7)
    with pytest.raises(TypeError, match="unexpected keyword argument 'peers'"):
        dlfs.torch.BatchSampler(ds, 7, peers="auto")
