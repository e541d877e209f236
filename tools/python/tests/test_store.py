"""Ranks that keep their shares in stores: real processes, and the workers of their data loaders."""

import json
import pickle
import subprocess
import sys

import pytest

import dlfs
from conftest import PER_CLASS, CLASSES, target

pytest.importorskip("torch")

import dlfs.torch

NUM = PER_CLASS * len(CLASSES)
SHARE = NUM // 2
EPOCHS = 3

# One rank. It prints one line of JSON, and ends when the other one has read its epochs, too.
RANK = """
import json, sys, time
import dlfs, dlfs.torch

address, rank, folder, turn, workers = *sys.argv[1:5], int(sys.argv[5])
options = dict(order="partial", exchange=0.3, seed=7, epochs=3, rank=int(rank), world_size=2, peers=folder,
               round=f"{turn}-{workers}", peer_address="127.0.0.1", store=f"file:{folder}:64M")

def end(**found):
    print(json.dumps(found), flush=True)
    sys.stdin.read()
"""

WITH_WORKERS = RANK + """
ds = dlfs.open(address)
data = dlfs.torch.IterableDataset(ds, 10, **options)
loader = dlfs.torch.DataLoader(data, num_workers=workers, multiprocessing_context="fork" if workers else None)
epochs = [[int(id) for batch in loader for id in batch.ids] for _ in range(3)]
end(epochs=epochs)
"""

RESUMED = RANK + """
ds = dlfs.open(address)
loader = dlfs.Loader(ds, 10, **options)
read = []

def take(batches, most):
    for _ in range(most):
        batch = next(batches, None)
        if batch is None:
            return
        read.extend([batch.epoch, int(id)] for id in batch.ids)

state = f"{folder}/state-{rank}"
if turn == "first":
    for most in (1000, 7):
        take(iter(loader), most)
    with open(state, "w") as file:
        json.dump(loader.state_dict(), file)
    # Samples leave when this rank has all that it gets, and the other one, too.
    tries = 0
    while loader.store_stats()["deleted"] == 0:
        tries += 1
        assert tries < 6000, loader.store_stats()
        time.sleep(0.01)
else:
    with open(state) as file:
        loader.load_state_dict(json.load(file))
    loader.stage()
staged = loader.store_stats()
if turn == "second":
    for most in (1000, 1000):
        take(iter(loader), most)
end(read=read, stats=staged)
"""


def run_ranks(program, address, folder, turn, workers=0):
    """What both ranks print."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, address, str(rank), str(folder), turn, str(workers)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]
    try:
        lines = [rank.stdout.readline() for rank in ranks]
        said = [rank.communicate(timeout=120)[1] for rank in ranks]
        assert all(lines) and all(rank.returncode == 0 for rank in ranks), said
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_workers_of_two_ranks_read_each_sample_of_an_epoch_once(image, tmp_path, workers):
    with target(image) as (_, address):
        ranks = run_ranks(WITH_WORKERS, address, tmp_path, "all", workers)
    shares = []
    for epoch in range(EPOCHS):
        read = [rank["epochs"][epoch] for rank in ranks]
        assert sorted(read[0] + read[1]) == list(range(NUM))
        shares.append(set(read[0]))
    assert shares[0] != shares[1] != shares[2], "nothing was exchanged"


def test_a_run_that_resumes_within_an_epoch_stages_nothing_twice(image, tmp_path):
    with target(image) as (_, address):
        first = run_ranks(RESUMED, address, tmp_path, "first")
        second = run_ranks(RESUMED, address, tmp_path, "second")
    for before, after in zip(first, second):
        assert (before["stats"]["found"], before["stats"]["staged"]) == (0, SHARE)
        assert after["stats"]["found"] >= SHARE and after["stats"]["staged"] == 0, after["stats"]
        assert after["read"][0][0] == 1 and len(before["read"]) == SHARE + 70
    read = [tuple(sample) for rank in first + second for sample in rank["read"]]
    assert sorted(read) == [(epoch, id) for epoch in range(EPOCHS) for id in range(NUM)]


def test_a_loader_with_a_store_cannot_be_spawned(image, tmp_path):
    ds = dlfs.open(image)
    loader = dlfs.Loader(ds, 10, order="local", store=f"file:{tmp_path}:64M")
    with pytest.raises(dlfs.Unsupported, match="start workers by fork"):
        pickle.dumps(loader)
    assert sorted(id for batch in loader for id in batch.ids[:]) == list(range(NUM))
    data = dlfs.torch.IterableDataset(ds, 10, order="local", store="ram:64M")
    spawned = dlfs.torch.DataLoader(data, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(dlfs.Unsupported, match="start workers by fork"):
        next(iter(spawned))
