"""Data sets for torch: what they are, and map-style ones."""

import itertools
import random

import pytest

import dlfs
from conftest import SEED

torch = pytest.importorskip("torch", reason="torch is not installed")

import dlfs.torch  # noqa: E402
from test_resume import through_json  # noqa: E402


def len_and_label(view, label):
    return len(view), label


def test_data_sets_say_what_they_are(ds):
    data = dlfs.torch.Dataset(ds, transform=len_and_label)
    assert repr(data) == f"<dlfs.torch.Dataset of {ds!r}, transform=len_and_label>"
    assert "400 samples" in repr(data) and "transform" not in repr(dlfs.torch.Dataset(ds))
    told = repr(dlfs.torch.IterableDataset(ds, 17, seed=5, rank=1, world_size=2))
    assert repr(ds) in told and "rank 1 of 2: seed=5, batch_size=17, order='grouped'" in told


class Numbers(torch.utils.data.Dataset):
    """A map-style data set of anybody's: its items are their indices."""

    def __init__(self, count):
        self.count = count

    def __getitem__(self, index):
        assert 0 <= index < self.count
        return index


def options(workers, **more):
    return {"num_workers": workers, "multiprocessing_context": "fork" if workers else None, "collate_fn": list, **more}


def make(ds, workers, batch_size=17, persistent=False, prefetch=None, **order):
    return dlfs.torch.DataLoader(
        Numbers(len(ds)),
        batch_sampler=dlfs.torch.BatchSampler(ds, batch_size, **{"seed": 5, **order}),
        **options(workers, persistent_workers=persistent, prefetch_factor=prefetch),
    )


def epoch_of(ds, epoch, batch_size=17, **order):
    sampler = dlfs.torch.BatchSampler(ds, batch_size, **{"seed": 5, **order})
    sampler.set_epoch(epoch)
    return list(sampler)


def test_samples_are_read_by_the_workers(ds, source):
    items = dlfs.torch.Dataset(ds, transform=len_and_label)
    for workers in (0, 2):
        sampler = dlfs.torch.BatchSampler(ds, 64, seed=5)
        loader = dlfs.torch.DataLoader(items, batch_sampler=sampler, **options(workers))
        had = [item for batch in loader for item in batch]
        order = [index for batch in epoch_of(ds, 0, 64) for index in batch]
        assert had == [(len(source.contents[index]), source.labels[index]) for index in order]


def test_a_state_says_what_the_loop_has_had_with_any_workers_and_readahead(ds):
    print("seed", SEED)
    draw = random.Random(SEED)
    for before, after in ((0, 2), (1, 3), (2, 0), (3, 1), (2, 2)):
        order, epoch = draw.choice(["grouped", "global"]), draw.randrange(3)
        loader = make(ds, before, prefetch=draw.choice([1, 5]) if before else None, order=order)
        whole = epoch_of(ds, epoch, order=order)
        for stop in (0, 1, draw.randrange(2, len(whole)), len(whole) - 1, len(whole)):
            loader.set_epoch(epoch)
            front = list(itertools.islice(loader, stop))
            assert front == whole[:stop]
            state = through_json(loader.state_dict())
            ahead = (epoch + 1, 0) if stop == len(whole) else (epoch, 17 * stop)
            assert (state["epoch"], state["consumed"]) == ahead
            size = draw.randrange(5, 40)
            again = make(ds, after, size, order=order)
            again.load_state_dict(state)
            assert again.state_dict() == state, "nothing was read since"
            again.set_epoch(ahead[0])  # as trainers do: it resumes all the same
            rest = [index for batch in again for index in batch]
            expected = epoch_of(ds, epoch + 1, order=order) if stop == len(whole) else whole[stop:]
            assert sorted(rest) == sorted(index for batch in expected for index in batch), (before, after, stop)
            assert again.state_dict()["epoch"] == ahead[0] + 1
        sampler = dlfs.torch.BatchSampler(ds, 17, order, seed=5)
        sampler.load_state_dict(state)
        assert list(sampler) == epoch_of(ds, epoch + 1, order=order), "the sampler alone goes on, too"


@pytest.mark.parametrize("workers, persistent", [(0, False), (2, False), (3, True)])
def test_epochs_advance_and_one_that_is_left_begins_again(ds, workers, persistent):
    loader = make(ds, workers, persistent=persistent)
    first, second, third, fourth = (epoch_of(ds, epoch) for epoch in range(4))
    assert len(loader) == len(first)
    assert list(loader) == first and list(loader) == second
    for _ in loader:
        break
    assert loader.state_dict()["consumed"] == 17, "whatever was drawn ahead"
    assert list(loader) == third, "it begins again"
    assert list(itertools.islice(loader, len(fourth))) == fourth  # without asking for one more
    assert loader.state_dict()["epoch"] == 4
    assert list(loader) == epoch_of(ds, 4)
    # Through the sampler, as trainers that know nothing of this class do.
    loader.batch_sampler.set_epoch(1)
    assert list(loader) == second
    loader.batch_sampler.sampler.set_epoch(1)
    assert list(loader) == second
    state = loader.state_dict()
    next(iter(loader))
    loader.load_state_dict({**state, "epoch": 0, "consumed": 34})
    assert list(loader) == first[2:] and list(loader) == second


def test_two_loops_at_once_read_an_epoch_each(ds):
    loader, first = make(ds, 0), epoch_of(ds, 0)
    one, other = iter(loader), iter(loader)
    assert (next(one), next(other), next(other)) == (first[0], first[0], first[1])
    assert loader.state_dict()["consumed"] == 34, "of the newest"
    assert next(one) == first[1] and loader.state_dict()["consumed"] == 34
    assert [*one] == first[2:] and loader.state_dict()["consumed"] == 34
    assert [*other] == first[2:] and loader.state_dict()["epoch"] == 1


def test_ranks_advance_together_also_one_without_a_share_of_the_rest(ds):
    made = [make(ds, 2, 57, rank=rank, world_size=7) for rank in range(7)]  # 399, and one sample of rank 0
    each = [list(loader) for loader in made]
    assert sorted(index for batches in each for batch in batches for index in batch) == list(range(len(ds)))
    assert [len(batches) for batches in each] == [2, 1, 1, 1, 1, 1, 1]
    assert {loader.state_dict()["epoch"] for loader in made} == {1}
    # Exactly as many as there are, without asking for one more.
    assert [len(list(itertools.islice(loader, 2 if rank == 0 else 1))) for rank, loader in enumerate(made)][0] == 2
    assert {loader.state_dict()["epoch"] for loader in made} == {2}


def test_a_run_of_so_many_epochs_ends(ds):
    for workers in (0, 2):
        loader = make(ds, workers, 50, epochs=2)
        assert [len(list(loader)) for _ in range(3)] == [8, 8, 0]


@pytest.mark.parametrize("workers", [0, 2])
def test_states_go_to_and_come_from_stateful_data_loader(ds, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def theirs():
        sampler = dlfs.torch.BatchSampler(ds, 17, seed=5)
        return stateful.StatefulDataLoader(Numbers(len(ds)), batch_sampler=sampler, **options(workers))

    whole = epoch_of(ds, 0)
    for stop in (3, len(whole)):
        loader = make(ds, 3)
        front = list(itertools.islice(loader, stop))
        again = theirs()
        again.load_state_dict(through_json(loader.stateful_state_dict(workers)))
        if stop == len(whole):
            assert list(again) == epoch_of(ds, 1)
            continue
        batches = iter(again)
        middle = [next(batches), next(batches)]
        state = again.state_dict()
        del batches
        back = make(ds, 3)
        back.load_state_dict(state)
        assert front + middle + list(back) == whole
    finished = theirs()
    assert list(finished) == whole
    back = make(ds, 0)
    back.load_state_dict(finished.state_dict())
    assert list(back) == epoch_of(ds, 1)


def test_wrong_use_is_refused(ds):
    numbers, sampler = Numbers(len(ds)), dlfs.torch.BatchSampler(ds, 17)
    for batches in (None, [[0, 1]], torch.utils.data.BatchSampler(range(9), 3, False)):
        with pytest.raises(TypeError, match="BatchSampler.*not"):
            dlfs.torch.DataLoader(numbers, batch_sampler=batches)
    with pytest.raises(TypeError, match="makes its batches itself"):
        dlfs.torch.DataLoader(dlfs.torch.IterableDataset(ds, 17), batch_sampler=sampler)
    loader = dlfs.torch.DataLoader(numbers, batch_sampler=sampler)
    for wrong in ({}, {"_num_yielded": 3}, {"_snapshot": {}}, make(ds, 0, seed=6).state_dict()):
        with pytest.raises(dlfs.InvalidArgument):
            loader.load_state_dict(wrong)
    with pytest.raises(dlfs.Unsupported, match="snapshot_every_n_steps"):
        behind = {"_num_yielded": 3, "_steps_since_snapshot": 2, "_index_sampler_state": loader.state_dict()}
        loader.load_state_dict(behind)
    with pytest.raises(dlfs.InvalidArgument):
        loader.set_epoch(-1)


def fails(view, label):
    raise ValueError("this sample is bad")


def test_an_error_of_a_worker_is_not_counted_as_had(ds):
    items = dlfs.torch.Dataset(ds, transform=fails)
    loader = dlfs.torch.DataLoader(items, batch_sampler=dlfs.torch.BatchSampler(ds, 17), **options(2))
    with pytest.raises(ValueError, match="this sample is bad"):
        list(loader)
    assert loader.state_dict()["consumed"] == 0


def test_a_sampler_of_another_part_is_refused_and_one_of_the_items_is_not(ds):
    parts = ds.split({"train": 0.8, "held": 0.2}, seed=1)
    items = dlfs.torch.Dataset(ds, transform=len_and_label)
    for other in parts.values():
        sampler = dlfs.torch.BatchSampler(other, 8)
        with pytest.raises(dlfs.InvalidArgument, match="another data set or part"):
            dlfs.torch.DataLoader(items, batch_sampler=sampler)
    of_items = dlfs.torch.BatchSampler(items, 8, seed=3)
    same = dlfs.torch.BatchSampler(ds, 8, seed=3)
    assert list(of_items) == list(same)
    with dlfs.open(ds.address) as again:
        loader = dlfs.torch.DataLoader(dlfs.torch.Dataset(again, transform=len_and_label), batch_sampler=of_items)
        assert len(loader) == len(same)


def test_options_of_torchs_data_loader_for_batches_are_refused_with_what_to_write(ds):
    items = dlfs.torch.Dataset(ds, transform=len_and_label)
    with pytest.raises(TypeError, match=r"no batch_size, shuffle: .*batch_sampler=dlfs.torch.BatchSampler"):
        dlfs.torch.DataLoader(items, batch_size=32, shuffle=True)


def ids_list(batch):
    return batch.ids.tolist()


def ids_of_rank(ds, order):
    """Loops whose rank is that of torch.distributed: a sampler, and DataLoaders of both kinds."""
    sampler, mapped = (dlfs.torch.BatchSampler(ds, 32, order, seed=4) for _ in range(2))
    data = dlfs.torch.IterableDataset(ds, 32, order, seed=4, transform=ids_list)
    items = list(range(len(ds)))
    return sampler, dlfs.torch.DataLoader(items, batch_sampler=mapped, collate_fn=list), dlfs.torch.DataLoader(data)


@pytest.mark.parametrize("order", ["grouped", "global", "local", "partial"])
def test_what_was_made_before_torch_distributed_begins_reads_the_order_of_all_ranks(ds, monkeypatch, order):
    early, found = [ids_of_rank(ds, order) for _ in range(2)], []
    for loops in early:
        loops[1].state_dict(), loops[2].state_dict()
    for rank in range(2):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        late = ids_of_rank(ds, order)
        for one, other in zip(early[rank], late, strict=True):
            assert len(one) == len(other) == 7
            epochs = [list(one) for _ in range(2)]
            assert epochs == [list(other) for _ in range(2)]
            assert one.state_dict() == other.state_dict()
            found.append([i for batch in epochs[0] for i in batch])
    for one, other in zip(found[:3], found[3:], strict=True):
        assert sorted(one + other) == list(range(len(ds)))
    # The group may end before the program asks how far it came.
    state = late[1].state_dict()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    len(late[1])
    assert late[1].state_dict() == state and state["epoch"] == 2


def nothing_left(*_):
    return next(iter(()))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("style", ["map", "iterable"])
def test_a_transform_that_raises_stop_iteration_does_not_end_the_epoch(ds, workers, style):
    options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    if style == "map":
        items = dlfs.torch.Dataset(ds, transform=nothing_left)
        loader = torch.utils.data.DataLoader(items, batch_sampler=dlfs.torch.BatchSampler(ds, 32), **options)
    else:
        loader = dlfs.torch.DataLoader(dlfs.torch.IterableDataset(ds, 32, transform=nothing_left), **options)
    with pytest.raises(RuntimeError, match="the transform raised StopIteration"):
        list(loader)
