"""Processes of one node on one tier: ranks, workers by fork and by spawn, pickled data sets."""

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import time

import pytest

import dlfs

RANKS = 8
EPOCHS = 5
LIMIT_S = 240


@pytest.fixture(params=["ram", "file"])
def tiers(request, tmp_path):
    """A tier that has room for everything."""
    return ["ram:64M"] if request.param == "ram" else [f"file:{tmp_path}:64M"]


def owner_of_tiers(image, tiers):
    """A process that has the tiers before anybody else, and what it says."""
    command = [sys.executable, "-m", "dlfs", "cached", image, "--json"]
    child = subprocess.Popen(
        [*command, *(word for tier in tiers for word in ("--tier", tier))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    return child, json.loads(child.stdout.readline())


def pages(source):
    """Bytes of the pages of all samples, with one more for each that begins within a page."""
    return sum((len(content) + 8191) // 4096 * 4096 for content in source.contents)


def rank(argument):
    """Reads the epochs of a rank; returns ids, bytes from the origin, and whether all bytes are right."""
    image, tiers, number, contents, barrier, queue = argument
    with dlfs.open(image, tiers=tiers) as dataset:
        loader = dlfs.Loader(dataset, 10, "global", seed=9, rank=number, world_size=RANKS)
        epochs, last, right = [], 0, True
        for epoch in range(EPOCHS):
            before = dataset.stats()["origin_bytes"]
            ids = []
            for batch in loader:
                right &= batch.tobytes() == [contents[id] for id in batch.ids]
                ids += batch.ids.tolist()
            epochs.append(ids)
            last = dataset.stats()["origin_bytes"] - before
            barrier.wait(LIMIT_S)
            if epoch == EPOCHS - 2:
                settle(dataset, range(number, len(dataset), RANKS))
                barrier.wait(LIMIT_S)
        loader.close()
        queue.put((epochs, last, right, dataset.stats()["tiers"][0]))
        barrier.wait(LIMIT_S)


def settle(dataset, ids):
    """Reads these samples until each comes from the tier: the copier works in the background."""
    until = time.monotonic() + LIMIT_S
    while True:
        before = dataset.stats()["origin_bytes"]
        for id in ids:
            dataset[id]
        if dataset.stats()["origin_bytes"] == before:
            return
        assert time.monotonic() < until, dataset.stats()
        time.sleep(0.05)


def test_eight_ranks_read_each_sample_once_and_keep_one_copy(image, source, tiers):
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(RANKS), context.Queue()
    arguments = [(image, tiers, number, source.contents, barrier, queue) for number in range(RANKS)]
    processes = [context.Process(target=rank, args=(argument,)) for argument in arguments]
    [process.start() for process in processes]
    found = [queue.get(timeout=LIMIT_S) for _ in processes]
    [process.join(LIMIT_S) for process in processes]
    assert [process.exitcode for process in processes] == [0] * RANKS
    assert all(right for _, _, right, _ in found), "wrong bytes"
    for epoch in range(EPOCHS):
        ids = [id for epochs, *_ in found for id in epochs[epoch]]
        assert sorted(ids) == list(range(len(source))), f"epoch {epoch}"
    assert sum(last for _, last, *_ in found) == 0, "the last epoch came from the tier"
    used = {tier["used_bytes"] for *_, tier in found}
    assert 0 < max(used) <= pages(source), "one copy of each page, seen by all"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pickled_data_set_reads_the_copies_of_its_parent(image, source, tiers, method):
    with dlfs.open(image, tiers=tiers) as dataset:
        settle(dataset, range(len(source)))
        copy = pickle.loads(pickle.dumps(dataset))
        assert [bytes(copy[id]) for id in (0, 7)] == [source.contents[id] for id in (0, 7)]
        copy.close()
        with multiprocessing.get_context(method).Pool(2) as pool:
            parts = [range(part, len(source), 4) for part in range(4)]
            found = pool.starmap(read_all, [(dataset, part) for part in parts])
        for part, (contents, origin_bytes) in zip(parts, found):
            assert contents == [source.contents[id] for id in part]
            assert origin_bytes == 0, "the tier has them"


def read_all(dataset, ids):
    before = dataset.stats()["origin_bytes"]
    return [bytes(dataset[id]) for id in ids], dataset.stats()["origin_bytes"] - before


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_share_the_tier(image, source, tiers, method):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import dlfs.torch

    with dlfs.open(image, tiers=tiers) as dataset:
        batches = dlfs.torch.IterableDataset(dataset, 16, "global", seed=4)
        loader = torch.utils.data.DataLoader(
            batches, batch_size=None, num_workers=2, multiprocessing_context=method,
        )
        for epoch in range(3 if method == "fork" else 1):  # each time, those that are spawned import torch
            batches.set_epoch(epoch)
            ids = []
            for batch in loader:
                for at, id in enumerate(batch.ids.tolist()):
                    assert batch[at].numpy().tobytes() == source.contents[id]
                    ids.append(id)
            assert sorted(ids) == list(range(len(source))), f"epoch {epoch}"
        settle(dataset, range(len(source)))
        assert dataset.stats()["tiers"][0]["used_bytes"] <= pages(source)


def test_what_dlfs_cached_keeps_outlives_a_data_set(image, source, tiers):
    child, said = owner_of_tiers(image, tiers)
    try:
        assert said["pid"] == child.pid
        for _ in range(2):
            with dlfs.open(image, tiers=tiers) as dataset:
                settle(dataset, range(len(source)))
        with dlfs.open(image, tiers=tiers) as dataset:
            assert [bytes(dataset[id]) for id in range(len(source))] == source.contents
            stats = dataset.stats()
            assert stats["origin_bytes"] == 0 and stats["tiers"][0]["hits"] > 0, stats
    finally:
        child.terminate()
        assert child.wait(60) == 0, child.stderr.read()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_worker_goes_on_when_the_owner_is_killed(image, source, tiers):
    """The parent owns the tiers; a worker that it forked reads on, right, and in time."""
    child, _ = owner_of_tiers(image, tiers)
    with dlfs.open(image, tiers=tiers) as dataset:
        settle(dataset, range(len(source)))
        here, there = multiprocessing.get_context("fork").Pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                reads = 0
                while reads < 2 * len(source) or not there.poll(0):
                    assert bytes(dataset[reads % len(source)]) == source.contents[reads % len(source)]
                    reads += 1
                    if reads == len(source):
                        there.send("reading")
                code = 0
            finally:
                os._exit(code)
        assert here.poll(LIMIT_S) and here.recv() == "reading"
        child.kill()
        child.wait()
        time.sleep(1)
        settle(dataset, range(len(source)))
        here.send("end")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
