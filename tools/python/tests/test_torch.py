"""dlfs.torch under DataLoader: 0 and N workers, every start method, states, ranks."""

import io
import itertools
import multiprocessing
import os
import pickle
import random
import tarfile
import warnings

import numpy as np
import pytest

import dlfs
import dlfs.grain
from conftest import SEED, command, free_port

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.data import DataLoader  # noqa: E402

import dlfs.torch  # noqa: E402
from dlfs.fsspec import DlfsFileSystem  # noqa: E402

WORKERS = [0, 1, 3]
METHODS = [("file", "fork"), ("tcp", "spawn"), ("tcp", "forkserver")]


def digest(view, label):
    """An item with everything about a sample, which DataLoader can collate."""
    return len(view), sum(view[:8]), -1 if label is None else label


def wanted(source, id):
    data = source.contents[id]
    return len(data), sum(data[:8]), source.labels[id]


def as_is(items):
    return items


@pytest.mark.parametrize("workers", WORKERS)
def test_a_map_style_data_set_under_its_own_sampler(address, source, workers):
    with dlfs.open(address) as ds:
        data = dlfs.torch.Dataset(ds, transform=digest)
        assert len(data) == len(source) and data[7] == wanted(source, 7)
        sampler = dlfs.torch.BatchSampler(ds, 32, seed=1)
        order = [index for batch in sampler for index in batch]
        sampler.set_epoch(0)
        loader = DataLoader(
            data, batch_sampler=sampler, num_workers=workers, collate_fn=as_is,
            multiprocessing_context="fork" if workers else None,
        )
        assert len(loader) == len(sampler) == 13
        assert [item for batch in loader for item in batch] == [wanted(source, i) for i in order]
        assert sorted(order) == list(range(len(source)))


def test_without_a_transform_an_item_is_a_tensor_and_a_label(equal):
    source, path = equal
    with dlfs.open(path) as ds:
        loader = DataLoader(dlfs.torch.Dataset(ds), batch_size=50, shuffle=False)
        data, labels = next(iter(loader))
        assert data.shape == (50, 1024) and data.dtype == torch.uint8
        assert data.numpy().tobytes() == b"".join(source.contents[:50])
        assert labels.tolist() == source.labels[:50]


@pytest.mark.parametrize("address, method", METHODS, indirect=["address"])
def test_every_start_method_of_workers(address, source, method):
    with dlfs.open(address) as ds:
        next(iter(dlfs.Loader(ds, 8)))  # the parent has threads and connections
        loader = DataLoader(
            dlfs.torch.Dataset(ds, transform=digest), batch_size=64, num_workers=2,
            multiprocessing_context=method, collate_fn=as_is,
        )
        found = [item for batch in loader for item in batch]
        assert found == [wanted(source, id) for id in range(len(source))]
        batches = DataLoader(
            dlfs.torch.IterableDataset(ds, 32, seed=2), batch_size=None, num_workers=2,
            multiprocessing_context=method,
        )
        check_epoch(batches, source)
        assert bytes(ds[5]) == source.contents[5]


def check_epoch(batches, source):
    seen = []
    for batch in batches:
        for at, id in enumerate(batch.ids.tolist()):
            assert bytes(batch[at]) == source.contents[id] if isinstance(batch, dlfs.Batch) \
                else batch[at].numpy().tobytes() == source.contents[id]
            seen.append(id)
    assert sorted(seen) == list(range(len(source)))
    return seen


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("order", ["grouped", "global"])
def test_an_iterable_data_set_gives_every_sample_once(ds, source, workers, order):
    data = dlfs.torch.IterableDataset(ds, 32, order, seed=3)
    loader = DataLoader(
        data, batch_size=None, num_workers=workers, persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
    )
    epochs = [check_epoch(loader, source) for _ in range(2)]
    assert data.num_batches(workers) == sum(1 for _ in loader)
    assert epochs[0] != epochs[1], "another epoch, another order"


PREPARED = """
import os, sys, dlfs, dlfs.torch
from torch.utils.data import DataLoader

def mapped():
    return int(open("/proc/self/statm").read().split()[0]) * 4096

MEMORY = 1 << 30  # more than anything else that happens here
ds = dlfs.open(sys.argv[1])
before = mapped()
data = dlfs.torch.IterableDataset(ds, 8, transform=len, window=MEMORY)
loader = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="fork")
assert sum(loader) == len(ds)
print("workers", mapped() - before > MEMORY)
batches = iter(DataLoader(data, batch_size=None))
iter(data)
print("iterated", mapped() - before > MEMORY, data.state_dict()["consumed"])
assert sum(batches) == len(ds)
other = dlfs.torch.IterableDataset(ds, 8, transform=len, window=MEMORY)
before = mapped()
other.prepare()
print("prepared", mapped() - before > MEMORY)
assert sum(other) == len(ds)
"""


def test_memory_is_made_in_the_process_that_reads_as_soon_as_it_iterates(run_python, equal):
    found = run_python(PREPARED, equal[1]).splitlines()
    assert found == ["workers False", "iterated True 0", "prepared True"]


GROWTH = """
import os, sys, dlfs, dlfs.torch
from torch.utils.data import DataLoader

def anonymous():
    '''Bytes of this process and of its workers that are nobody else's.'''
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    lines = [line for pid in ["self", *children] for line in open(f"/proc/{pid}/smaps_rollup")]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) * 1024

workers = int(sys.argv[2])
data = dlfs.torch.IterableDataset(dlfs.open(sys.argv[1]), 8, transform=len, window=1 << 20)
loader = DataLoader(data, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
went = 0
for epoch in range(120):
    went += sum(loader) * 1024
    if epoch == 20:
        before, went = anonymous(), 0
print(went, anonymous() - before)
"""


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_memory_does_not_grow_over_epochs_and_workers(run_python, equal, workers):
    """The workers' memory stays far less than what they read."""
    went, grown = map(int, run_python(GROWTH, equal[1], workers).split())
    print(f"{went} bytes went through, {grown} more are held")
    assert grown < went / 4


@pytest.mark.parametrize(
    "method, persistent", [(None, False), ("fork", False), ("fork", True), ("spawn", True)]
)
def test_set_epoch_reaches_workers_that_stay_and_those_that_come(ds, method, persistent):
    data = dlfs.torch.IterableDataset(ds, 32, seed=3, transform=ids_and_epoch)
    loader = DataLoader(
        data, batch_size=None, num_workers=2 if method else 0, persistent_workers=persistent,
        multiprocessing_context=method,
    )

    def epoch(number):
        data.set_epoch(number)
        found = list(loader)
        assert {epoch for _, epoch in found} == {number}
        return sorted(found)

    seen = [epoch(number) for number in (0, 1, 5, 1)]
    assert seen[1] == seen[3] and seen[0] != seen[1] != seen[2]
    for found in seen:
        assert sorted(id for ids, _ in found for id in ids) == list(range(len(ds)))
    with pytest.raises(dlfs.InvalidArgument):
        data.set_epoch(-1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_reaches_workers_that_stay(ds, workers):
    whole = dlfs.Loader(ds, 32, seed=3)
    whole.set_epoch(4)
    front = [id for batch in itertools.islice(whole, 5) for id in batch.ids.tolist()]
    data = dlfs.torch.IterableDataset(ds, 16, seed=3, transform=ids_and_epoch)
    loader = DataLoader(
        data, batch_size=None, num_workers=workers, persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
    )
    assert len(list(loader)) == data.num_batches(workers), "the workers are there"
    data.load_state_dict(whole.state_dict())
    data.set_epoch(4)  # as a training loop does: it must not lose the place
    rest = [id for ids, _ in loader for id in ids]
    assert sorted(front + rest) == list(range(len(ds)))
    assert {epoch for _, epoch in loader} == {5}, "and on to the next"


def ids_and_epoch(batch):
    return batch.ids.tolist(), batch.epoch


def test_a_transform_makes_what_a_batch_becomes(ds, source):
    data = dlfs.torch.IterableDataset(
        ds, 32, transform=lambda batch: torch.tensor([view.nbytes for view in batch])
    )
    total = sum(int(lengths.sum()) for lengths in DataLoader(data, batch_size=None))
    assert total == sum(map(len, source.contents))


def test_a_tensor_batch_has_all_of_a_batch(equal, ds, source):
    same_source, path = equal
    with dlfs.open(path) as same:
        batch = dlfs.torch.TensorBatch.of(same.read_batch([3, 4]))
        assert batch.data.shape == (2, 1024)
        assert batch[-1].numpy().tobytes() == same_source.contents[4]
    batch = ds.read_batch([3, 4]).to("cpu", non_blocking=True)
    assert batch.data.dim() == 1 and batch.labels.tolist() == source.labels[3:5]
    assert batch[1].numpy().tobytes() == source.contents[4] and len(batch) == 2
    with pytest.raises(IndexError):
        batch[2]
    empty = dlfs.torch.TensorBatch.of(ds.read_batch([]))
    assert len(empty) == 0


def test_a_batch_is_pinned_where_there_is_something_to_pin_for(ds, source):
    batch = ds.read_batch([3, 4])
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError):
            batch.pin_memory()  # what torch says of its own tensors here
        data = dlfs.torch.IterableDataset(ds, 32)
        loader = DataLoader(data, batch_size=None, pin_memory=True)  # which then pins nothing
        assert sorted(id for batch in loader for id in batch.ids.tolist()) == list(range(len(ds)))
        pytest.skip("SKIPPED: page-locked memory needs a GPU")
    assert batch.pin_memory().data.is_pinned()


def test_dlpack_makes_a_tensor_of_the_same_memory(equal):
    _, path = equal
    with dlfs.open(path) as ds:
        batch = ds.read_batch([3, 4])
        array = torch.from_dlpack(batch)
        assert array.shape == (2, 1024) and array.data_ptr() == batch.array.ctypes.data


def test_a_sampler_chooses_for_any_data_set_of_the_same_length(ds):
    sampler = dlfs.torch.Sampler(ds, seed=4)
    first = list(sampler)
    assert len(first) == len(sampler) == len(ds) and sorted(first) == list(range(len(ds)))
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first
    loader = DataLoader(range(len(ds)), sampler=dlfs.torch.Sampler(ds, seed=4), batch_size=16)
    assert torch.cat(list(loader)).tolist() == first


def test_samplers_of_ranks_share_an_epoch_and_follow_the_loader(ds):
    ranks = [dlfs.torch.BatchSampler(ds, 10, rank=r, world_size=3, seed=5) for r in range(3)]
    assert sorted(i for rank in ranks for batch in rank for i in batch) == list(range(len(ds)))
    sampler = dlfs.torch.BatchSampler(ds, 32, "grouped", seed=6)
    assert list(sampler) == [batch.ids.tolist() for batch in dlfs.Loader(ds, 32, seed=6)]


def test_a_sampler_stops_and_goes_on_exactly_once(ds):
    sampler = dlfs.torch.BatchSampler(ds, 32, seed=7)
    front = list(itertools.islice(sampler, 4))
    other = dlfs.torch.BatchSampler(ds, 16, seed=7)
    other.load_state_dict(sampler.state_dict())
    other.set_epoch(0)
    rest = [index for batch in other for index in batch]
    assert sorted(sum(front, []) + rest) == list(range(len(ds)))
    with pytest.raises(dlfs.InvalidArgument):
        dlfs.torch.BatchSampler(ds, 32, seed=8).load_state_dict(sampler.state_dict())


def test_indices_stay_right_where_samples_were_deleted(source, tmp_path):
    path = tmp_path / "i.dlfs"
    command("import", source.root, path, "--quiet")
    command("delete", path, source.names[1], source.names[9], "--quiet")
    left = [id for id in range(len(source)) if id not in (1, 9)]
    with dlfs.open(path) as ds:
        data = dlfs.torch.Dataset(ds, transform=digest)
        assert [data[i] for i in range(len(data))] == [wanted(source, id) for id in left]
        sampler = dlfs.torch.BatchSampler(ds, 32)
        assert sorted(i for batch in sampler for i in batch) == list(range(len(left)))


def distributed_rank(rank, path, port, queue):
    ds = dlfs.open(path)
    early = dlfs.torch.IterableDataset(ds, 32, transform=ids_list), dlfs.torch.BatchSampler(ds, 32)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    late = dlfs.torch.IterableDataset(ds, 32, transform=ids_list), dlfs.torch.BatchSampler(ds, 32)
    found = []
    for data, sampler in (early, late):
        assert len(sampler) == data.num_batches() == 7
        found.append([i for batch in sampler for i in batch])
        for method in (None, "fork", "spawn"):
            loader = DataLoader(
                data, batch_size=None, num_workers=2 if method else 0, multiprocessing_context=method
            )
            found.append([i for batch in loader for i in batch])
    queue.put(found)
    torch.distributed.destroy_process_group()


def test_rank_and_world_size_come_from_torch_distributed_whenever_that_begins(image, source):
    port = free_port()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [
        context.Process(target=distributed_rank, args=(rank, image, port, queue))
        for rank in range(2)
    ]
    [rank.start() for rank in ranks]
    found = [queue.get(timeout=240) for _ in ranks]
    [rank.join(120) for rank in ranks]
    for one, other in zip(*found, strict=True):
        assert sorted(one + other) == list(range(len(source)))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("style", ["map", "grouped", "global", "local", "partial"])
def test_stateful_data_loader_goes_on_exactly_once(ds, source, workers, style):
    stateful = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="torchdata is not installed"
    )

    def make():
        context = {"num_workers": workers}
        if workers:
            context["multiprocessing_context"] = "fork"
        if style == "map":
            data = dlfs.torch.Dataset(ds, transform=index_of)
            sampler = dlfs.torch.BatchSampler(ds, 16, seed=8)
            return stateful.StatefulDataLoader(
                data, batch_sampler=sampler, collate_fn=as_is, **context
            )
        data = dlfs.torch.IterableDataset(ds, 16, style, seed=8, transform=ids_list)
        return stateful.StatefulDataLoader(data, batch_size=None, **context)

    global LOOKUP
    LOOKUP = {content: id for id, content in enumerate(source.contents)}
    loader = make()
    front, batches = [], iter(loader)
    for _ in range(7):
        front += next(batches)
    state = loader.state_dict()
    del batches
    again = make()
    again.load_state_dict(state)
    rest = [id for batch in again for id in batch]
    unique = len(set(source.contents))
    if unique == len(source):
        assert sorted(front + rest) == list(range(len(source)))
    else:
        assert len(front + rest) == len(source) and len(set(front + rest)) == unique


def index_of(view, label):
    return LOOKUP[bytes(view)]


def ids_list(batch):
    return batch.ids.tolist()


def test_wrong_use_is_refused_at_construction(ds):
    with pytest.raises(dlfs.InvalidArgument):
        dlfs.torch.IterableDataset(ds, 0)
    with pytest.raises(dlfs.InvalidArgument):
        dlfs.torch.BatchSampler(ds, 4, rank=2, world_size=2)
    data = dlfs.torch.Dataset(ds)
    for index in (400, 10**9, -401):
        with pytest.raises(IndexError):
            data[index]
    with pytest.raises(dlfs.InvalidArgument):
        other = dlfs.torch.IterableDataset(ds, 4, seed=2).state_dict()
        dlfs.torch.IterableDataset(ds, 4, seed=1).load_state_dict(other)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_worker_keeps_its_kind(ds, workers):
    loader = DataLoader(
        dlfs.torch.Dataset(ds), batch_sampler=[[0, 10**6]], num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    with pytest.raises(dlfs.NotFound, match=str(10**6)):
        next(iter(loader))


def test_views_become_tensors_that_copy_or_share(ds, source):
    view = ds[3]
    for share in (False, True):
        tensor = dlfs.torch.tensor(view, share=share)
        assert tensor.numpy().tobytes() == source.contents[3]
        shares = tensor.data_ptr() == np.frombuffer(view, dtype=np.uint8).ctypes.data
        assert shares == share
    dlfs.torch.tensor(view).zero_()
    assert bytes(view) == source.contents[3]
    assert dlfs.torch.tensor(memoryview(b"")).shape == (0,)


def _through_frombuffer(view):
    tensor = torch.frombuffer(view, dtype=torch.uint8)
    tensor.add_(1)


def _through_share(view):
    dlfs.torch.tensor(view, share=True).zero_()


def _through_dlpack(view):
    # numpy exports read-only memory only to consumers that support it: torch's older interface takes it anyway.
    array = np.frombuffer(view, dtype=np.uint8)
    torch.from_dlpack(_writable(array)).fill_(7)


def _through_numpy(view):
    _writable(np.frombuffer(view, dtype=np.uint8)).fill(255)


def _writable(array):
    """A writable array over the same memory, which numpy itself refuses to create."""
    class Forced:
        __array_interface__ = dict(array.__array_interface__, data=(array.ctypes.data, False))
        base = array

    return np.asarray(Forced())


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("order", ["grouped", "global"])
@pytest.mark.parametrize("batch_size", [7, 400])
@pytest.mark.parametrize("write", [_through_frombuffer, _through_share, _through_dlpack, _through_numpy])
def test_writing_through_an_alias_changes_no_later_epoch(
    image, source, write, order, batch_size, caplog
):
    with dlfs.open(image) as ds, dlfs.Loader(ds, batch_size, order=order, seed=1, epochs=4) as loader:
        for epoch in range(4):
            seen, keep = [], []
            for batch in loader:
                for id, view in zip(batch.ids.tolist(), batch):
                    assert bytes(view) == source.contents[id], f"sample {id} in epoch {epoch}"
                    seen.append(id)
                    if len(view):
                        write(view)
                keep = keep[-3:] + [batch]  # batches live on for a while
            assert sorted(seen) == list(range(len(source)))
        rewritten = loader.stats()["rewritten"]
    told = [record.getMessage() for record in caplog.records if "wrote to the memory" in record.getMessage()]
    if order == "grouped":
        assert rewritten > 0 and len(told) == 1 and "torch.frombuffer" in told[0]
    else:
        assert rewritten == 0 and not told


def test_two_labels_of_three_are_two_labels_and_none(ds, tmp_path):
    (tmp_path / "list.jsonl").write_text("")
    for i in range(3):
        (tmp_path / f"{i}.bin").write_bytes(b"x" * 8)
    (tmp_path / "list.txt").write_text("0.bin 5\n1.bin\n2.bin 7\n".replace(" ", "\t"))
    command("import", "--from", "list", tmp_path / "list.txt", tmp_path / "i.dlfs", "--quiet")
    with dlfs.open(tmp_path / "i.dlfs") as some:
        labels = [5, None, 7]
        assert [some.label(id) for id in range(3)] == labels
        assert [label for _, label in map(dlfs.torch.Dataset(some).__getitem__, range(3))] == labels
        assert [label for _, label in map(dlfs.grain.DataSource(some).__getitem__, range(3))] == labels
        fs = DlfsFileSystem(dataset=some)
        assert [fs.info(f"{i}.bin")["label"] for i in range(3)] == labels
        assert some.read_batch([0, 1]).labels.tolist() == [5, dlfs.NO_LABEL]
    with pytest.raises(dlfs.NotFound):
        ds.label(10**6)


# What DataLoader does with iterators, and how an epoch may end.


def map_style(kind, ds, workers, sampler, prefetch=None):
    return kind(
        dlfs.torch.Dataset(ds, transform=index_of), collate_fn=as_is, num_workers=workers,
        prefetch_factor=prefetch, multiprocessing_context="fork" if workers else None, **sampler,
    )


@pytest.fixture
def numbered(equal):
    """Samples that contain their id."""
    source, path = equal
    global LOOKUP
    LOOKUP = {content: id for id, content in enumerate(source.contents)}
    with dlfs.open(path) as dataset:
        yield dataset


@pytest.mark.parametrize("workers, prefetch", [(0, None), (1, 2), (4, 2), (2, 8)])
@pytest.mark.parametrize("sampler", ["BatchSampler", "Sampler"])
def test_no_iterator_takes_samples_of_the_next(numbered, workers, prefetch, sampler):
    def make(kind=DataLoader):
        if sampler == "Sampler":
            given = {"sampler": dlfs.torch.Sampler(numbered, seed=1), "batch_size": 16}
        else:
            given = {"batch_sampler": dlfs.torch.BatchSampler(numbered, 16, seed=1)}
        return map_style(kind, numbered, workers, given, prefetch)

    everything = list(range(len(numbered)))
    plain = make()
    next(iter(plain))
    first = [i for batch in plain for i in batch]
    second = [i for batch in plain for i in batch]
    assert sorted(first) == sorted(second) == everything and first != second
    for _ in plain:
        break
    assert sorted(i for batch in plain for i in batch) == everything
    pairs = list(zip(plain, plain))
    assert [sorted(i for b in side for i in b) for side in zip(*pairs)] == [everything] * 2
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    loader = make(stateful.StatefulDataLoader)
    assert sorted(i for batch in loader for i in batch) == everything
    again = make(stateful.StatefulDataLoader)
    again.load_state_dict(loader.state_dict())
    assert [i for batch in again for i in batch] == second, "the epoch behind the one that ended"
    assert sorted(i for batch in again for i in batch) == everything


def test_a_sampler_goes_on_once_from_a_state_and_says_where_the_newest_iterator_stands(ds):
    sampler = dlfs.torch.BatchSampler(ds, 32, seed=7)
    epochs = [list(sampler) for _ in range(2)]
    sampler.set_epoch(0)
    older, newer = iter(sampler), iter(sampler)
    assert [next(older) for _ in range(4)] == epochs[0][:4]
    assert next(newer) == epochs[0][0] and sampler.state_dict()["consumed"] == 32
    assert list(older) == epochs[0][4:] and list(newer) == epochs[0][1:]
    assert list(sampler) == epochs[1], "two that ended were one epoch"
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 1, "consumed": 64})
    again = pickle.loads(pickle.dumps(sampler))
    for one in (sampler, again):
        assert list(itertools.islice(one, 3)) == epochs[1][2:5]
        assert list(one) == epochs[1], "the loaded place is for one iterator"
    with pytest.raises(dlfs.InvalidArgument):
        sampler.set_epoch(-1)


def test_a_rank_without_a_share_of_the_rest_loses_no_batch_of_the_next_epoch(ds):
    ranks = [dlfs.torch.BatchSampler(ds, 32, rank=r, world_size=2, seed=1) for r in range(2)]
    for rank in ranks:
        rank.load_state_dict({**rank.state_dict(), "consumed": len(ds) - 1})
    assert [len(list(rank)) for rank in ranks] == [1, 0]
    assert sorted(i for rank in ranks for batch in rank for i in batch) == list(range(len(ds)))


@pytest.mark.parametrize("workers, persistent", [(0, False), (2, False), (2, True), (3, True)])
def test_the_rest_of_an_abandoned_iterator_is_not_an_epoch(ds, workers, persistent):
    data = dlfs.torch.IterableDataset(ds, 16, seed=3, transform=ids_and_epoch)
    loader = DataLoader(
        data, batch_size=None, num_workers=workers, persistent_workers=persistent,
        multiprocessing_context="fork" if workers else None,
    )
    for left in (0, 1, 9):
        iterator = iter(loader)
        [next(iterator) for _ in range(left)]
        if left == 1:
            del iterator
        found = list(loader)
        assert sorted(i for ids, _ in found for i in ids) == list(range(len(ds)))
        assert len({epoch for _, epoch in found}) == 1, "all workers read the same epoch"


def test_two_loops_at_once_read_an_epoch_each(ds):
    loader = DataLoader(dlfs.torch.IterableDataset(ds, 16, seed=3, transform=ids_list), batch_size=None)
    pairs = list(zip(loader, loader))
    assert all(one == other for one, other in pairs)
    assert sorted(i for ids, _ in pairs for i in ids) == list(range(len(ds)))


@pytest.mark.parametrize("reseed", [False, True])
def test_fresh_workers_go_on_from_a_state_once(ds, reseed):
    whole = dlfs.Loader(ds, 32, seed=3)
    front = [id for batch in itertools.islice(whole, 5) for id in batch.ids.tolist()]
    data = dlfs.torch.IterableDataset(ds, 16, seed=3, transform=ids_and_epoch)
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork")
    data.load_state_dict(whole.state_dict())
    assert data.state_dict() == whole.state_dict(), "no worker has read yet"
    found = []
    for _ in range(3):
        if reseed:
            torch.manual_seed(1)
        found.append(list(loader))
    assert sorted(front + [i for ids, _ in found[0] for i in ids]) == list(range(len(ds)))
    for epoch in found[1:]:
        assert sorted(i for ids, _ in epoch for i in ids) == list(range(len(ds)))
    assert [{number for _, number in epoch} for epoch in found] == [{0}, {1}, {1}]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_state_that_only_workers_know_is_refused(ds, method):
    data = dlfs.torch.IterableDataset(ds, 16, seed=3, transform=ids_list)
    assert data.state_dict()["consumed"] == 0
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context=method)
    next(iter(loader))
    with pytest.raises(dlfs.Unsupported, match="StatefulDataLoader"):
        data.state_dict()
    data.set_epoch(1)
    assert data.state_dict()["epoch"] == 1 and data.state_dict()["consumed"] == 0
    list(loader)
    data.set_epoch(1)  # again, from its begin
    assert sorted(i for ids in loader for i in ids) == list(range(len(ds)))


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_a_stateful_loader_goes_on_from_any_batch_with_workers_that_have_ended(ds, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def make():
        data = dlfs.torch.IterableDataset(ds, 30, "global", seed=8, transform=ids_list)
        context = "fork" if workers else None
        return stateful.StatefulDataLoader(
            data, batch_size=None, num_workers=workers, multiprocessing_context=context
        )

    loader, front, states = make(), [], []
    for ids in loader:
        front.append(ids)
        states.append(loader.state_dict())
    states[-1] = loader.state_dict()
    everything = list(range(len(ds)))
    for count in {1, len(front) // 2, len(front) - 2, len(front) - 1}:
        again = make()
        again.load_state_dict(states[count - 1])
        rest = [i for ids in again for i in ids]
        assert sorted(sum(front[:count], []) + rest) == everything, count
        assert sorted(i for ids in again for i in ids) == everything
    again = make()
    again.load_state_dict(states[-1])
    assert sorted(i for ids in again for i in ids) == everything, "the next epoch, whole"


def a_view(batch):
    return {"views": batch.tolist(), "all": memoryview(batch), "batch": batch}


def a_generator(batch):
    return [0, (view for view in batch)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_and_views_are_sent_as_copies_and_the_rest_is_refused_by_name(ds, source, method):
    def loader(transform):
        data = dlfs.torch.IterableDataset(ds, 100, seed=1, transform=transform)
        return DataLoader(
            data, batch_size=None, num_workers=1, multiprocessing_context=method, collate_fn=as_is
        )

    seen = []
    for found in loader(a_view):
        batch = found["batch"]
        assert isinstance(batch, dlfs.Batch) and batch.epoch == 0
        wanted = [source.contents[id] for id in batch.ids]
        assert batch.tobytes() == wanted == [bytes(view) for view in found["views"]]
        assert bytes(found["all"]) == b"".join(wanted)
        seen += batch.ids.tolist()
    assert sorted(seen) == list(range(len(ds)))
    with pytest.raises(TypeError, match=r"\[1\] is a builtins.generator.*num_workers=0"):
        list(loader(a_generator))


def a_pair(view, label):
    return view, label


def an_open_file(view, label):
    return open("/dev/null")


def test_map_style_views_are_sent_as_copies_and_nothing_hangs(ds, source):
    def loader(transform):
        return DataLoader(
            dlfs.torch.Dataset(ds, transform=transform), batch_size=100, num_workers=1,
            multiprocessing_context="fork", collate_fn=as_is,
        )

    found = [item for items in loader(a_pair) for item in items]
    assert [bytes(view) for view, _ in found] == source.contents
    assert all(isinstance(view, memoryview) and view.readonly for view, _ in found)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader(an_open_file))


def unequal_rank(rank, path, port, queue):
    import warnings

    ds = dlfs.open(path)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    found = []
    for options in ({}, {"pad": True}, {"drop_last": True}):
        for what in ("iterable", "sampler"):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                if what == "iterable":
                    data = dlfs.torch.IterableDataset(ds, 1, "global", **options, transform=len)
                    counts = [sum(1 for _ in DataLoader(data, batch_size=None)) for _ in range(2)]
                else:
                    sampler = dlfs.torch.BatchSampler(ds, 1, **options)
                    counts = [sum(1 for _ in sampler) for _ in range(2)]
            texts = [str(one.message) for one in told if "rank 0 has" in str(one.message)]
            found.append((counts[0], len(texts), all("pad" in t and "drop_last" in t for t in texts)))
    queue.put((rank, found))
    torch.distributed.destroy_process_group()


def test_ranks_with_unequal_batches_are_warned_of_once(tmp_path):
    (tmp_path / "src").mkdir()
    for i in range(7):
        (tmp_path / "src" / f"{i}").write_bytes(b"x")
    command("import", tmp_path / "src", tmp_path / "i.dlfs", "--quiet")
    port = free_port()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    path = str(tmp_path / "i.dlfs")
    ranks = [context.Process(target=unequal_rank, args=(r, path, port, queue)) for r in range(2)]
    [rank.start() for rank in ranks]
    found = dict(queue.get(timeout=240) for _ in ranks)
    [rank.join(120) for rank in ranks]
    for rank, plain in ((0, 4), (1, 3)):
        once, never = (1, True), (0, True)
        assert found[rank] == [
            (plain, *once), (plain, *once), (4, *never), (4, *never), (3, *never), (3, *never)
        ]


def ids_and_bytes_read(batch):
    info = torch.utils.data.get_worker_info()
    read = 0 if info is None else info.dataset._loader.stats()["bytes"]
    return batch.ids.tolist(), 0 if info is None else info.id, read


@pytest.fixture(scope="module")
def many_chunks(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("chunks") / "many.dlfs"
    command("import", source.root, path, "--chunk-size", "64K", "--quiet")
    return path


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_workers_go_through_the_order_of_none_and_read_each_chunk_about_once(many_chunks, source, workers):
    with dlfs.open(many_chunks) as ds:
        options = {"seed": 4, "batching": "chunk"}
        with dlfs.Loader(ds, 10, **options, epochs=1) as alone:
            batches = [batch.ids.tolist() for batch in alone]
            once = alone.stats()["bytes"]
        data = dlfs.torch.IterableDataset(ds, 10, transform=ids_and_bytes_read, **options, epochs=1)
        loader = DataLoader(data, batch_size=None, num_workers=workers, multiprocessing_context="fork")
        given = list(loader)
    assert sorted(id for ids, _, _ in given for id in ids) == list(range(len(source)))
    rounds = len(batches) // workers
    for nth in range(rounds):
        begin, end = nth * workers, (nth + 1) * workers
        assert sorted(sum(batches[begin:end], [])) == sorted(sum((ids for ids, _, _ in given[begin:end]), []))
    read = {}
    for _, worker, total in given:
        read[worker] = max(read.get(worker, 0), total)
    print(f"{workers} workers read {sum(read.values())} bytes, one process {once}")
    assert sum(read.values()) <= (1.1 if workers == 2 else 1.3) * once


@pytest.mark.parametrize("before, after", [(0, 2), (2, 0), (3, 2), (0, 3)])
def test_an_epoch_goes_on_with_other_workers_in_the_lanes_that_it_began_with(
    many_chunks, source, before, after
):
    def loop(data, workers):
        return DataLoader(
            data, batch_size=None, num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )

    with dlfs.open(many_chunks) as ds:
        began = dlfs.Loader(ds, 10, seed=4, lanes=6, epochs=1)
        batches = iter(began)
        front = [id for _ in range(6) for id in next(batches).ids.tolist()]
        data = dlfs.torch.IterableDataset(ds, 10, seed=4, transform=ids_and_bytes_read, epochs=1)
        if before:
            list(loop(data, before))  # its workers have lanes of their own choice
        data.load_state_dict(began.state_dict())
        rest = [id for ids, _, _ in loop(data, after) for id in ids]
    assert sorted(front + rest) == list(range(len(source)))


def test_a_sampler_of_single_samples_has_strided_shares_only(ds):
    with pytest.raises(dlfs.InvalidArgument, match="BatchSampler"):
        dlfs.torch.Sampler(ds, "grouped", shard="aligned")
    with pytest.raises(dlfs.InvalidArgument, match="BatchSampler"):
        dlfs.torch.Sampler(ds, "global", shard="local")
    sampler = dlfs.torch.BatchSampler(ds, 16, "grouped", lanes=2, shard="aligned", rank=1, world_size=3)
    other = dlfs.torch.BatchSampler(ds, 16, "grouped", lanes=2, rank=1, world_size=3)
    assert [len(batch) for batch in sampler] == [len(batch) for batch in other]
    with pytest.raises(dlfs.InvalidArgument, match="grouped"):
        dlfs.Loader(ds, 8, "global", shard="aligned")
    with pytest.raises(dlfs.InvalidArgument, match="strided"):
        dlfs.Loader(ds, 8, shard="whole")
    with pytest.raises(dlfs.InvalidArgument, match="without peers"):
        dlfs.Loader(ds, 8, shard="local")


@pytest.mark.parametrize(
    "lengths, chunk",
    [
        ((6_000, 10_000), "256K"),
        # A sample that a worker reads by itself costs a block of 4 KiB, twice its length here.
        ((1_300, 2_700), "64K"),
    ],
    ids=["8 KB", "2 KB"],
)
def test_workers_read_little_more_than_one_process(tmp_path, lengths, chunk):
    """Bytes that all workers' loaders really read, over those of a loader without workers: some 600 chunks."""
    with tarfile.open(tmp_path / "many.tar", "w") as archive:
        draw = random.Random(SEED)
        for number in range(20_000):
            info = tarfile.TarInfo(f"{number:06}.bin")
            info.size = draw.randrange(*lengths)
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    command("import", tmp_path / "many.tar", tmp_path / "many.dlfs", "--chunk-size", chunk, "--quiet")
    ratios = {}
    with dlfs.open(tmp_path / "many.dlfs") as ds:
        with dlfs.Loader(ds, 16, seed=3, epochs=1) as alone:
            assert sum(len(batch) for batch in alone) == len(ds)
            once = alone.stats()["bytes"]
        numbers = range(1, 9) if "DLFS_WORKER_CASES" in os.environ else (3, 7, 8)
        for workers in numbers:
            data = dlfs.torch.IterableDataset(ds, 16, transform=ids_and_bytes_read, seed=3, epochs=1)
            read = [0] * workers
            for _, worker, total in DataLoader(
                data, batch_size=None, num_workers=workers, multiprocessing_context="fork"
            ):
                read[worker] = max(read[worker], total)
            ratios[workers] = sum(read) / once
    print("bytes read over those without workers:", ratios)
    assert all(0.9 < ratio <= 1.1 for ratio in ratios.values()), ratios


def test_a_rank_of_torchrun_that_nobody_names_is_warned_of(image, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with dlfs.open(image) as ds:
        data = dlfs.torch.IterableDataset(ds, 8)  # torch.distributed may begin later
        for begin in (lambda: dlfs.Loader(ds, 8), lambda: next(iter(data))):
            monkeypatch.setattr(dlfs, "_warned_of_launcher", False)
            with pytest.warns(UserWarning, match="each of the 2 processes"):
                begin()
        monkeypatch.setattr(dlfs, "_warned_of_launcher", False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dlfs.Loader(ds, 8, rank=0, world_size=1)


def test_batches_of_batches_are_refused_with_what_to_write(image):
    with dlfs.open(image) as ds:
        data = dlfs.torch.IterableDataset(ds, 8)
        with pytest.raises(TypeError, match="batch_size=None"):
            next(iter(DataLoader(data, batch_size=4)))


def test_a_data_set_of_torch_says_what_it_has_read_and_waited_for(image, source):
    with dlfs.open(image) as ds:
        data = dlfs.torch.IterableDataset(ds, 8)
        assert sum(len(batch) for batch in DataLoader(data, batch_size=None)) == len(source)
        assert data.stats()["bytes"] >= sum(map(len, source.contents))
        assert data.report().data["total"]["samples"] == len(source)
