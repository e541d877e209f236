"""Batches in an order: every sample once, also when stopped and resumed, and over ranks."""

import gc
import itertools
import json
import os
import pickle
import threading

import pytest

import dlfs
from conftest import command, wait_until

ORDERS = {
    "grouped": {"lanes": 3, "group": 2},
    "global": {},
    "sequential": {},
    "local": {},
    "partial": {"exchange": 0.5},
}


def ids_of(batches):
    return [int(id) for batch in batches for id in batch.ids]


@pytest.mark.parametrize("order", ORDERS)
def test_an_epoch_is_every_sample_once_and_every_byte_right(address, source, order):
    with dlfs.open(address) as ds:
        loader = dlfs.Loader(ds, 32, order, seed=5, **ORDERS[order])
        assert len(loader) == -(-len(source) // 32)
        for _ in range(2):
            seen = []
            for batch in loader:
                assert batch.tobytes() == [source.contents[i] for i in batch.ids]
                assert batch.labels.tolist() == [source.labels[i] for i in batch.ids]
                seen += batch.ids.tolist()
            assert sorted(seen) == list(range(len(source)))


def test_how_batches_are_brought_in_changes_commands_alone(ds):
    taken, commands = [], []
    for batching in ("chunk", "sample", None):
        loader = dlfs.Loader(ds, 8, seed=5, batching=batching)
        taken.append([batch.ids.tolist() for batch in loader])
        commands.append(loader.stats()["commands"])
        loader.close()
    assert taken[1:] == taken[:1] * 2
    chunk, sample, default = commands  # more or less of the next epoch is read ahead
    assert max(chunk, default) < sample, commands


def test_epochs_differ_and_a_seed_gives_the_same_ones_again(ds):
    first, second = dlfs.Loader(ds, 32, seed=1), dlfs.Loader(ds, 32, seed=1)
    epochs = [ids_of(first) for _ in range(3)]
    assert epochs == [ids_of(second) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert ids_of(dlfs.Loader(ds, 32, seed=2)) != epochs[0]
    assert ids_of(dlfs.Loader(ds, 32, "sequential")) == list(range(len(ds)))


@pytest.mark.parametrize("order", ["grouped", "global"])
def test_a_run_of_so_many_epochs_ends_and_reads_no_further(ds, order):
    loader = dlfs.Loader(ds, 16, order, epochs=2)
    taken = [[batch.ids.tolist() for batch in loader] for _ in range(4)]
    endless = dlfs.Loader(ds, 16, order)
    assert taken == [[batch.ids.tolist() for batch in endless] for _ in range(2)] + [[], []]
    assert (loader.epoch, loader.batches_left) == (2, 0)
    assert loader.stats()["samples"] == 2 * len(ds) >= loader.stats()["verified"]
    loader.set_epoch(1)
    assert [batch.ids.tolist() for batch in loader] == taken[1]
    with pytest.raises(dlfs.InvalidArgument, match="epoch 3"):
        loader.set_epoch(3)


def test_set_epoch_goes_there_and_back(ds):
    loader = dlfs.Loader(ds, 32, seed=1)
    epochs = [ids_of(loader) for _ in range(3)]
    for epoch in (2, 0, 1):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch and ids_of(loader) == epochs[epoch]
    batch = next(iter(loader))
    assert batch.epoch == 2 and not batch.ends_epoch
    loader.set_epoch(2)
    assert ids_of(loader) == epochs[2], "an epoch that was begun begins again"


def test_an_epoch_that_was_left_begins_again_and_goes_on_from_a_state_alone(ds):
    whole = ids_of(dlfs.Loader(ds, 32, seed=1))
    loader = dlfs.Loader(ds, 32, seed=1)
    front = ids_of(itertools.islice(loader, 5))
    assert loader.batches_left == len(loader) - 5
    state = loader.state_dict()
    assert ids_of(loader) == whole and loader.epoch == 1
    loader.load_state_dict(state)
    iter(loader)  # which nobody asked for a batch
    assert front + ids_of(loader) == whole
    ids_of(itertools.islice(loader, 3))
    assert loader.epoch == 1 and sorted(ids_of(loader)) == sorted(whole), "once, not for ever"


def test_iterators_at_the_same_time_go_through_the_epoch_each(ds):
    whole = [batch.ids.tolist() for batch in dlfs.Loader(ds, 32, seed=1)]
    loader = dlfs.Loader(ds, 32, seed=1)
    pairs = [(a.ids.tolist(), b.ids.tolist()) for a, b in zip(loader, loader)]
    assert pairs == [(ids, ids) for ids in whole]
    left = iter(loader)
    first = next(left)
    assert first.epoch == 1 and len(ids_of(loader)) == len(ds), "the one that was left is still there"
    assert loader.epoch == 2 and len(ids_of(left)) == len(ds) - 32
    assert loader.stats()["samples"] == 4 * len(ds), "what each of them read is counted"
    kept = [iter(loader) for _ in range(3)]
    [next(iterator) for iterator in kept]
    loader.close()
    for iterator in kept:
        with pytest.raises(dlfs.Error, match="closed"):
            next(iterator)


class Named(dlfs.Loader):
    """A subclass with other constructor arguments."""

    def __new__(cls, ds):
        return super().__new__(cls, ds, 32, seed=4)

    def __init__(self, ds):
        self.name = "of mine"


def test_threads_that_share_an_iterator_share_its_epoch_and_no_other(ds):
    loader, ended = dlfs.Loader(ds, 8), threading.Barrier(8)
    for epoch in range(20):
        iterator, found = iter(loader), [[] for _ in range(8)]

        def take(own):
            ended.wait()
            own += (id for batch in iterator for id in batch.ids.tolist())

        threads = [threading.Thread(target=take, args=(own,)) for own in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(sum(found, [])) == list(range(len(ds))), epoch
        assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (epoch + 1, 0)


def test_a_subclass_stays_one_when_it_is_pickled(ds):
    loader = Named(ds)
    front = ids_of(itertools.islice(loader, 3))
    again = pickle.loads(pickle.dumps(loader))
    assert type(again) is Named and again.name == "of mine"
    assert sorted(front + ids_of(again)) == list(range(len(ds)))


def test_a_cycle_through_a_live_iterator_is_collected(ds):
    def held():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def make():
        loader = dlfs.Loader(ds, 32, window=1 << 20)
        loader.iterator = iter(loader)
        next(loader.iterator)

    gc.collect()
    before = held()
    for _ in range(5):
        make()
    assert held() > before
    gc.collect()
    # What earlier tests have left may end meanwhile.
    assert all(now <= then for now, then in zip(held(), before))


def test_there_is_no_epoch_before_the_first(ds):
    for thing in (dlfs.Loader(ds, 4), dlfs._dlfs.Sampler(ds, batch_size=4)):
        for epoch in (-1, 2**64):
            with pytest.raises(dlfs.InvalidArgument, match="epoch"):
                thing.set_epoch(epoch)
        with pytest.raises(TypeError):
            thing.set_epoch("1")


@pytest.mark.parametrize("order", ["grouped", "global", "sequential"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_an_epoch(ds, order, world_size):
    loaders = [dlfs.Loader(ds, 10, order, rank=r, world_size=world_size) for r in range(world_size)]
    assert sorted(i for loader in loaders for i in ids_of(loader)) == list(range(len(ds)))


def test_drop_last_and_pad_make_ranks_equal(ds):
    def lens(**options):
        return [
            [len(batch) for batch in dlfs.Loader(ds, 32, rank=r, world_size=3, **options)]
            for r in range(3)
        ]

    assert {sum(found) for found in lens()} == {133, 134}
    assert lens(drop_last=True) == [[32] * 4] * 3
    assert {sum(found) for found in lens(pad=True)} == {134}


def expected_rest(ds, order, consumed):
    """What an uninterrupted run reads of epoch 1 from position `consumed`."""
    loader = dlfs.Loader(ds, 32, order, seed=9)
    loader.set_epoch(1)
    return ids_of(loader)[consumed:]


@pytest.mark.parametrize("order", ["grouped", "global", "sequential"])
@pytest.mark.parametrize("then", [(32, 1), (7, 1), (16, 2), (5, 3)])
def test_a_state_goes_on_exactly_once_with_another_batch_and_world_size(ds, order, then):
    batch_size, world_size = then
    loader = dlfs.Loader(ds, 32, order, seed=9)
    ids_of(loader)
    front = ids_of(itertools.islice(loader, 4))
    state = json.loads(json.dumps(loader.state_dict()))
    rest = []
    for rank in range(world_size):
        other = dlfs.Loader(ds, batch_size, order, seed=9, rank=rank, world_size=world_size)
        other.load_state_dict(state)
        other.set_epoch(1)  # as a training loop does: it must not lose the place
        rest.append(ids_of(other))
    assert sorted(front + sum(rest, [])) == list(range(len(ds)))
    wanted = expected_rest(ds, order, len(front))
    assert rest == [wanted[rank::world_size] for rank in range(world_size)]


def test_a_state_of_something_else_is_refused_with_the_reason(ds, equal):
    _, path = equal
    with dlfs.open(path) as other:
        state = dlfs.Loader(other, 32).state_dict()
    loader = dlfs.Loader(ds, 32, seed=1)
    before = loader.state_dict()
    wrong = {
        "image": state,
        "seed": dlfs.Loader(ds, 32, seed=2).state_dict(),
        "order": dlfs.Loader(ds, 32, "global", seed=1).state_dict(),
        "generation": {**before, "generation": 7},
        "consumed": {**before, "consumed": 10**6},
        "version": {**before, "version": 99},
        "not a reading state": {"epoch": 1},
    }
    for reason, state in wrong.items():
        with pytest.raises(dlfs.Error, match=reason) as error:
            loader.load_state_dict(state)
        kind = dlfs.Stale if reason == "generation" else dlfs.InvalidArgument
        assert isinstance(error.value, kind)
        assert "file" not in str(error.value) and "{" not in str(error.value), "no command, no Debug"
    with pytest.raises(dlfs.InvalidArgument, match=r"is global, and grouped \(group \d+\) was") as error:
        loader.load_state_dict(wrong["order"])
    assert "order of the state" in str(error.value)
    assert loader.state_dict() == before
    with pytest.raises(TypeError):
        loader.load_state_dict(object())


def test_it_is_pickled_with_its_place(address):
    with dlfs.open(address) as ds:
        loader = dlfs.Loader(ds, 32, seed=4)
        front = ids_of(itertools.islice(loader, 3))
        other = pickle.loads(pickle.dumps(loader))
        rest = ids_of(other)
        assert sorted(front + rest) == list(range(len(ds)))
        assert loader.state_dict()["consumed"] == 96, "the one that was pickled stays where it is"


def test_stats_count_what_was_done(ds, source):
    loader = dlfs.Loader(ds, 32)
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["samples"] == len(source) and stats["batches"] == len(loader)
    assert stats["sample_bytes"] == sum(map(len, source.contents))
    assert stats["verified"] >= len(source) - source.contents.count(b"")
    assert stats["copied_bytes"] == 0
    assert stats["pages"] in ("huge", "transparent", "base") and stats["resident"] >= 0
    assert dlfs.Loader(ds, batch_size=7).stats()["pages"] is None, "nothing was read"


def test_a_sample_is_resident_exactly_while_its_chunk_is(equal):
    with dlfs.open(equal[1]) as ds:
        loader = dlfs.Loader(ds, 8, lanes=2, group=1, window=256 << 10)
        ids, most = range(len(ds)), 0
        for _ in loader:
            found = -1

            def is_settled():  # the thread that reads may be changing it
                nonlocal found
                found = sum(map(loader.is_resident, ids))
                return found == loader.stats()["resident"]

            wait_until(is_settled, "a count of the bits that the counter has, too,")
            most = max(most, found)
        assert 0 < most < len(ds), "some came and went"
        assert not loader.is_resident(len(ds))
        for wrong, error in (("1", TypeError), (True, TypeError), (-1, dlfs.IndexOutOfRange)):
            with pytest.raises(error):
                loader.is_resident(wrong)
        single = dlfs.Loader(ds, 8, "global")
        assert next(iter(single)) and not any(map(single.is_resident, ids)), "no whole chunks"


def test_an_epoch_that_does_not_exist_leaves_a_loaded_state_as_it_is(ds):
    loader = dlfs.Loader(ds, 32, seed=3, epochs=2)
    whole = ids_of(loader)
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "consumed": 96})
    with pytest.raises(dlfs.InvalidArgument, match="there is no epoch 3"):
        loader.set_epoch(3)
    assert ids_of(loader) == whole[96:]


def test_a_batch_of_which_all_samples_were_skipped_has_the_columns_of_the_others(tmp_path):
    path, contents = tmp_path / "i.dlfs", [bytes([n + 1]) * 500 for n in range(3)]
    with dlfs.Writer(path, ("bin",), columns={"width": int, "score": float}, shuffle=False) as out:
        for n, content in enumerate(contents):
            out.write({"bin": content, "width": n, "score": n / 2}, label=n)
    data = bytearray(path.read_bytes())
    data[data.find(contents[1])] ^= 1
    path.write_bytes(data)
    with dlfs.open(path) as ds:
        batches = list(dlfs.Loader(ds, 1, "sequential", on_error="skip"))
    assert [batch.ids.tolist() for batch in batches] == [[0], [], [2]]
    for copies in (batches, pickle.loads(pickle.dumps(batches))):
        assert [batch.columns for batch in copies] == [("width", "score")] * 3
        assert [batch.column("width").tolist() for batch in copies] == [[0], [], [2]]
        assert copies[1].column("score").dtype == copies[0].column("score").dtype
        assert copies[1].labels.tolist() == []


def test_a_rank_without_a_share_has_empty_epochs(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "only").write_bytes(b"x")
    command("import", tmp_path / "src", tmp_path / "i.dlfs", "--quiet")
    with dlfs.open(tmp_path / "i.dlfs") as ds:
        loader = dlfs.Loader(ds, 1, rank=1, world_size=2)
        assert len(loader) == 0 and ids_of(loader) == [] and ids_of(loader) == []
        assert ids_of(dlfs.Loader(ds, 4, drop_last=True)) == []


def test_a_loader_that_was_prepared_reads_the_same(ds, source):
    plain = dlfs.Loader(ds, 32, seed=3)
    loader = dlfs.Loader(ds, 32, seed=3)
    loader.prepare()
    loader.prepare()
    assert loader.stats()["commands"] == 0, "nothing is read yet"
    assert [batch.tobytes() for batch in loader] == [batch.tobytes() for batch in plain]
    loader.prepare()
    loader.set_epoch(5)
    plain.set_epoch(5)
    assert ids_of(loader) == ids_of(plain)
    moved = dlfs.Loader(ds, 32, seed=3)
    moved.prepare()
    moved.set_epoch(5)
    plain.set_epoch(5)
    assert ids_of(moved) == ids_of(plain)
    closed = dlfs.Loader(ds, 32)
    closed.prepare()
    closed.close()
    with pytest.raises(dlfs.Error, match="closed"):
        closed.prepare()


def test_nothing_of_what_was_handed_out_is_kept(run_python, equal):
    """Resident memory stays far less than what was read over the epochs."""
    _, path = equal
    out = run_python(
        """
import sys, dlfs
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
ds = dlfs.open(sys.argv[1])
loader = dlfs.Loader(ds, 8, window=1 << 20)
went, before = 0, None
for epoch in range(300):
    for batch in loader:
        batch.data; batch.ids; batch.tolist()
        went += batch.nbytes
    if epoch == 20:
        before, went = resident(), 0
print(went, resident() - before)
""",
        path,
    )
    went, grown = map(int, out.split())
    print(f"{went} bytes went through, {grown} more are resident")
    assert grown < went / 4
