"""One loader for the ranks of a node: processes and workers get the batches of loaders of their own."""

import multiprocessing
import os
import pickle

import pytest

import dlfs

RANKS = 3
LIMIT_S = 240


def job():
    """A name that no other test has at the same time."""
    return f"{os.getpid()}-{os.urandom(4).hex()}"


def read(loader, contents, epochs=2):
    """The ids of the batches of some epochs, whose bytes are right."""
    seen = []
    for _ in range(epochs):
        for batch in loader:
            assert batch.tobytes() == [contents[id] for id in batch.ids]
            seen.append(batch.ids.tolist())
    return seen


def rank(image, contents, number, options, queue):
    with dlfs.open(image) as dataset:
        loader = dlfs.NodeLoader(dataset, 10, seed=9, rank=number, world_size=RANKS, **options)
        queue.put((number, read(loader, contents)))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_ranks_in_processes_get_the_batches_of_their_own_loaders(image, source, ds, start):
    context = multiprocessing.get_context(start)
    queue, options = context.Queue(), {"job": job(), "order": "grouped"}
    ranks = [
        context.Process(target=rank, args=(image, source.contents, number, options, queue)) for number in range(RANKS)
    ]
    for process in ranks:
        process.start()
    found = dict(queue.get(timeout=LIMIT_S) for _ in ranks)
    for process in ranks:
        process.join(LIMIT_S)
        assert process.exitcode == 0
    for number in range(RANKS):
        alone = dlfs.Loader(ds, 10, seed=9, rank=number, world_size=RANKS)
        assert found[number] == read(alone, source.contents), number


def test_a_node_loader_is_a_loader_with_one_option(image, source, ds, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    loader = dlfs.NodeLoader(ds, 10, "global", seed=3, job=job())
    assert isinstance(loader, dlfs.Loader) and loader.options["node_loader"] is True
    batches = iter(loader)
    first = [next(batches).ids.tolist() for _ in range(3)]
    state = loader.state_dict()
    rest = [batch.ids.tolist() for batch in batches]
    alone = dlfs.Loader(ds, 10, "global", seed=3)
    assert first + rest == read(alone, source.contents, 1)
    again = pickle.loads(pickle.dumps(loader))
    loader.close()
    again.load_state_dict(state)
    assert [batch.ids.tolist() for batch in again] == rest
    with pytest.raises(dlfs.Busy, match="local rank 0"):
        next(iter(pickle.loads(pickle.dumps(again))))
    again.close()


def test_what_does_not_fit_is_refused_by_name(ds):
    with pytest.raises(dlfs.InvalidArgument, match="with node_loader only"):
        dlfs.Loader(ds, 10, local_rank=0, local_world_size=1)
    with pytest.raises(dlfs.InvalidArgument, match="local_world_size"):
        dlfs.NodeLoader(ds, 10, rank=1, world_size=4, local_rank=0, local_world_size=2)
    with pytest.raises(dlfs.InvalidArgument, match="aligned shares"):
        dlfs.NodeLoader(ds, 10, shard="aligned")


def test_a_place_that_the_launcher_does_not_know_is_refused_with_what_to_give(ds, monkeypatch):
    for name, value in {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    options = {"rank": 0, "world_size": 1, "job": job()}
    with pytest.raises(dlfs.InvalidArgument, match="give rank, world_size, local_rank and local_world_size"):
        dlfs.NodeLoader(ds, 10, **options)
    loader = dlfs.NodeLoader(ds, 10, **options, local_rank=0, local_world_size=1)
    assert sum(len(batch) for batch in loader) == len(ds)


@pytest.mark.parametrize(("order", "start"), [("grouped", "fork"), ("grouped", "spawn"), ("global", "fork")])
def test_workers_of_torch_are_ranks_of_the_node(image, source, ds, start, order):
    pytest.importorskip("torch", reason="torch is not installed")
    import dlfs.torch

    def loaders(workers, **options):
        for number in range(2):
            data = dlfs.torch.IterableDataset(ds, 10, order, seed=9, rank=number, world_size=2, pad=True, **options)
            context = start if "node_loader" in options else "fork"  # a process that is spawned imports torch
            yield dlfs.torch.DataLoader(data, num_workers=workers, multiprocessing_context=context)

    def ids(loaders):
        both = [iter(loader) for loader in loaders]
        return [[batch.ids.tolist() for batch in pair] for pair in zip(*both, strict=True)]

    plain = ids(loaders(2, shard="strided"))
    assert ids(loaders(2, node_loader=True, job=job())) == plain
    # The state within an epoch goes on in single loaders.
    first, second = loaders(2, node_loader=True, job=job())
    both = [iter(first), iter(second)]
    begun = [[next(one).ids.tolist() for one in both] for _ in range(4)]
    states = [first.state_dict(), second.state_dict()]
    del both
    assert begun == plain[:4]
    resumed = list(loaders(2, shard="strided"))
    for loader, state in zip(resumed, states):
        loader.load_state_dict(state)
    assert ids(resumed) == plain[4:]


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_of_several_nodes_read_each_sample_once(image, source, ds, nodes):
    local = 2
    world = nodes * local
    name = job()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def run(number):
        with dlfs.open(image) as dataset:
            place = {"local_rank": number % local, "local_world_size": local}
            loader = dlfs.NodeLoader(dataset, 10, seed=1, rank=number, world_size=world, job=name, **place)
            queue.put((number, read(loader, source.contents, 1)))

    ranks = [context.Process(target=run, args=(number,)) for number in range(world)]
    for process in ranks:
        process.start()
    found = dict(queue.get(timeout=LIMIT_S) for _ in ranks)
    for process in ranks:
        process.join(LIMIT_S)
    for number in range(world):
        by_turns = number // local + number % local * nodes
        alone = dlfs.Loader(ds, 10, seed=1, rank=by_turns, world_size=world)
        assert found[number] == read(alone, source.contents, 1), number
    assert sorted(sum(sum(found.values(), []), [])) == list(range(len(source)))


def test_local_places_that_contradict_the_rank_are_refused(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    from dlfs._ranks import local_place_of

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert local_place_of({}, (2, 4)) == (2, 4), "without a launcher all ranks are here"
    assert local_place_of({"local_rank": 1, "local_world_size": 2}, (3, 4)) == (1, 2)
    for given in ({"local_world_size": 2}, {"local_rank": 1}, {"local_rank": 0, "local_world_size": 2}):
        with pytest.raises(dlfs.InvalidArgument, match="local_world_size"):
            local_place_of(given, (1, 4))
    for value, name in zip((5, 8, 1, 4), names):
        monkeypatch.setenv(name, str(value))
    assert local_place_of({}, (5, 8)) == (1, 4)
    for place in ((2, 4), (0, 1), (4, 8)):  # data ranks, no group yet, another rank
        with pytest.raises(dlfs.InvalidArgument, match="initialise torch.distributed first"):
            local_place_of({}, place)
    monkeypatch.setenv("LOCAL_RANK", "2")  # nodes by turns, as by Slurm's cyclic distribution
    with pytest.raises(dlfs.InvalidArgument, match="consecutive ranks"):
        local_place_of({}, (5, 8))
