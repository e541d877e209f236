"""Rows of tokens in many processes: forks, ranks, a target that is killed, and peers."""

import contextlib
import itertools
import multiprocessing
import os
import pickle
import threading
import time

import numpy
import pytest

import dlfs
import dlfs.tokens
from conftest import SEED, free_port, target
from test_processes import in_child, reap

OPTIONS = {"order": "global", "seed": 3, "pack": "best_fit", "pack_window": 200, "separator": 0}
LENGTH, RANKS, LIMIT_S = 64, 4, 240


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """2 MB of documents."""
    print("seed", SEED)
    draw = numpy.random.default_rng(SEED)
    path = tmp_path_factory.mktemp("runs") / "corpus.dlfs"
    with dlfs.Writer(str(path), {"tok": "u16[*]"}, chunk_size=64 << 10) as out:
        for count in draw.integers(0, 1000, 2000):
            out.write({"tok": draw.integers(1, 60_000, count).astype("uint16")})
    return str(path)


def rows_of(image, batch_size=8, **options):
    """The batches of an epoch."""
    with dlfs.open(image) as ds, dlfs.tokens.Loader(ds, LENGTH, batch_size, **{**OPTIONS, **options}) as loader:
        return [rows.tokens.tolist() for rows in loader]


def tokens(batches):
    return [rows.tokens.tolist() for rows in batches]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_and_its_parent_both_go_on(image):
    expected = rows_of(image)
    with dlfs.open(image, window="1M") as ds, dlfs.tokens.Loader(ds, LENGTH, 8, **OPTIONS) as loader:
        batches = iter(loader)
        seen = tokens(itertools.islice(batches, 5))
        children = [in_child(lambda: tokens(batches) == expected[len(seen) :]) for _ in range(3)]
        seen += tokens(itertools.islice(batches, 50))
        children.append(in_child(lambda: tokens(batches) == expected[len(seen) :]))
        seen += tokens(batches)
        assert [reap(child) for child in children] == [0] * 4 and seen == expected


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_that_are_forked_while_a_thread_takes_rows_read_on(image):
    first = rows_of(image)[0]
    stop, seen = threading.Event(), []
    with dlfs.open(image, window="1M") as ds, dlfs.tokens.Loader(ds, LENGTH, 8, **OPTIONS) as loader:

        def take():
            while not stop.is_set():
                loader.set_epoch(0)
                seen.append(tokens(itertools.islice(loader, 20))[0])

        thread = threading.Thread(target=take)
        thread.start()

        def begins():
            loader.set_epoch(0)
            return tokens(itertools.islice(loader, 1)) == [first]

        try:
            assert [reap(in_child(begins), 60) for _ in range(40)] == [0] * 40
        finally:
            stop.set()
            thread.join(60)
    assert seen and all(batch == first for batch in seen)


@contextlib.contextmanager
def killed_once(image, child, port, pause):
    """Kills the target, and starts another one on its port after a pause, for as long as the context is open."""
    child.kill()
    child.wait()
    with contextlib.ExitStack() as stack:

        def start():
            time.sleep(pause)
            stack.enter_context(target(image, port))

        starting = threading.Thread(target=start)
        starting.start()
        yield
        starting.join()


def test_a_target_that_is_killed_and_started_again_changes_no_row(image):
    expected = rows_of(image)
    port = free_port()
    with target(image, port) as (child, address):
        with dlfs.open(address, ctrl_loss_tmo=120) as ds:
            loader = dlfs.tokens.Loader(ds, LENGTH, 8, **OPTIONS, window="256K")
            batches = iter(loader)
            seen = tokens(itertools.islice(batches, 9))
            with killed_once(image, child, port, 1):
                seen += tokens(batches)
    assert seen == expected


def test_a_target_that_stays_dead_is_disconnected(image):
    with target(image) as (child, address), dlfs.open(address, ctrl_loss_tmo=0.5) as ds:
        batches = iter(dlfs.tokens.Loader(ds, LENGTH, 8, **OPTIONS, window="256K"))
        next(batches)
        child.kill()
        child.wait()
        with pytest.raises(dlfs.Disconnected):
            list(batches)


def rank(address, number, options, queue):
    with dlfs.open(address) as ds:
        loader = dlfs.tokens.Loader(ds, LENGTH, 2, rank=number, world_size=RANKS, **OPTIONS, **options)
        seen = tokens(itertools.islice(loader, 20))
        state = loader.state_dict()
        loader.load_state_dict(state)
        queue.put((number, seen + tokens(loader), state))


@pytest.mark.parametrize("node_loader", [False, True])
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_four_ranks_in_processes_share_out_the_rows(image, node_loader, start):
    context = multiprocessing.get_context(start)
    queue = context.Queue()
    job = f"{os.getpid()}-{os.urandom(4).hex()}"
    options = {"node_loader": True, "job": job} if node_loader else {}
    with target(image) as (_, address):
        ranks = [context.Process(target=rank, args=(address, number, options, queue)) for number in range(RANKS)]
        [process.start() for process in ranks]
        found = sorted(queue.get(timeout=LIMIT_S) for _ in ranks)
        [process.join(LIMIT_S) for process in ranks]
    assert [process.exitcode for process in ranks] == [0] * RANKS
    assert all(state == found[0][2] for _, _, state in found) and found[0][2]["consumed"] == 20 * 2 * RANKS
    together = [sum(batches, []) for batches in zip(*(seen for _, seen, _ in found), strict=True)]
    assert together == rows_of(image, 2 * RANKS)


def join(image, folder, number, rows, found):
    try:
        with dlfs.open(image, tiers=["ram:8M"], node=f"tokens {number}") as ds:
            given = {"peers": str(folder), "round": "rows", "peer_address": "127.0.0.1"}
            loader = dlfs.tokens.Loader(ds, rank=number, world_size=2, **{**given, **OPTIONS, **rows})
            found[number] = tokens(loader)
            again = pickle.loads(pickle.dumps(loader))
            assert len(again) == len(loader)
            again.close()
    except dlfs.Error as error:
        found[number] = error


def joined(image, folder, *rows):
    """What two ranks with these rows have read, or raised."""
    folder.mkdir()
    found = [None, None]
    ranks = [threading.Thread(target=join, args=(image, folder, at, rows[at], found)) for at in range(2)]
    [one.start() for one in ranks]
    [one.join(LIMIT_S) for one in ranks]
    return found


def test_peers_with_other_rows_are_told_so(image, tmp_path):
    ours = {"seq_len": LENGTH, "batch_size": 4}
    found = joined(image, tmp_path / "same", ours, ours)
    assert [one + other for one, other in zip(*found, strict=True)] == rows_of(image, 8)
    for other in ({"seq_len": 32}, {"batch_size": 5}, {"pack": "concat"}, {"pack_window": 100}, {"separator": None}):
        for error in joined(image, tmp_path / "".join(other), ours, {**ours, **other}):
            assert isinstance(error, dlfs.InvalidArgument) and "has order" in str(error), (other, error)
