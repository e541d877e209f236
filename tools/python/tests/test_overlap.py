"""Transforms that overlap the program: order, states, errors and ends are those of a loader without them."""

import contextlib
import gc
import itertools
import json
import os
import pathlib
import pickle
import random
import threading
import time

import numpy as np
import pytest

import dlfs
import transforms
from conftest import damaged, target, wait_until
from test_processes import in_child, reap

SEED = int(os.environ.get("DLFS_OVERLAP_SEED", "20261129"))
CASES = int(os.environ.get("DLFS_OVERLAP_CASES", "12"))
POOLS = {"one": {}, "threads": {"threads": 3, "ahead": 5}, "processes": {"processes": 2}}
OPTIONS = {"seed": 5, "window": 1 << 20}


def pooled(ds, batch_size=32, transform=transforms.ids, **options):
    return dlfs.Loader(ds, batch_size, transform=transform, **{**OPTIONS, **options})


def plain(ds, batch_size=32, **options):
    return dlfs.Loader(ds, batch_size, **{**OPTIONS, **options})


def ids_of(loader):
    return [batch.ids.tolist() for batch in loader]


def pool_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("dlfs-transform")]


def no_thread_is_left():
    wait_until(lambda: not pool_threads(), "the end of the pool's threads")


@pytest.fixture(autouse=True)
def threads_end(request):
    """After each test that has passed: the traceback of another keeps its loaders."""
    failed = request.session.testsfailed
    yield
    gc.collect()
    if request.session.testsfailed == failed:
        no_thread_is_left()


@pytest.mark.parametrize("pool", POOLS)
def test_results_have_the_order_of_batches_over_epochs(address, pool):
    with dlfs.open(address) as ds, plain(ds) as alone, pooled(ds, **POOLS[pool]) as loader:
        assert [list(loader) for _ in range(3)] == [ids_of(alone) for _ in range(3)]
        assert len(loader) == len(alone) and loader.state_dict() == alone.state_dict()


def test_order_does_not_depend_on_how_long_a_transform_takes(ds):
    draw = random.Random(SEED)

    def slow(batch):
        time.sleep(draw.random() * 0.01)
        return batch.ids.tolist()

    for threads, ahead in [(1, 1), (2, 1), (4, 3), (8, 32)]:
        with pooled(ds, 8, slow, threads=threads, ahead=ahead) as loader:
            assert list(loader) == ids_of(plain(ds, 8)), (threads, ahead)


@pytest.mark.parametrize("threads, ahead", [(1, 1), (2, 2), (3, 7)])
def test_no_more_than_ahead_results_exist_and_so_many_are_made_meanwhile(ds, threads, ahead):
    made = []
    with pooled(ds, 8, made.append, threads=threads, ahead=ahead) as loader:
        for handed, _ in enumerate(loader, 1):
            expected = min(handed + ahead, len(loader))
            wait_until(lambda: len(made) == expected, f"result {expected} after {handed}")
            if handed % 10 == 0:
                time.sleep(0.02)
                assert len(made) == expected
    defaults = [pooled(ds, **options).options["ahead"] for options in ({}, {"threads": 4}, {"processes": 3})]
    assert defaults == [2, 8, 6]


def test_the_state_after_any_number_of_results_is_that_of_as_many_batches(ds):
    whole = ids_of(plain(ds, 16))
    for order in ("grouped", "global"):
        with plain(ds, 16, order=order) as alone, pooled(ds, 16, order=order, threads=3, ahead=9) as loader:
            for batch, found in zip(alone, loader, strict=True):
                assert batch.ids.tolist() == found
                assert loader.state_dict() == alone.state_dict()
                assert (loader.epoch, loader.batches_left) == (alone.epoch, alone.batches_left)
                assert str(alone.state_dict()["consumed"]) in repr(loader)
    with pooled(ds, 16, threads=2) as loader:
        front = list(itertools.islice(loader, 7))
        state = json.loads(json.dumps(loader.state_dict()))
        again = pickle.loads(pickle.dumps(loader))
    for other in (plain(ds, 16), pooled(ds, 16, threads=4)):
        other.load_state_dict(state)
        other.set_epoch(0)  # as a training loop does
        rest = [one if isinstance(one, list) else one.ids.tolist() for one in other]
        assert front + rest == whole
        other.close()
    assert again.options["threads"] == 2 and front + list(again) == whole
    again.close()


def outcome(iterator):
    try:
        item = next(iterator)
    except StopIteration:
        return "end"
    return item if isinstance(item, list) else item.ids.tolist()


@pytest.mark.parametrize("case", range(CASES))
def test_any_use_gives_what_a_loader_without_a_transform_gives(ds, case):
    """Both are asked the same: batches, epochs, states, and iterators that are left or go on beside others."""
    print("seed", SEED, "case", case)
    draw = random.Random(SEED * 1000 + case)
    turns = itertools.count()

    def slow(batch):
        if next(turns) % 5 == 0:
            time.sleep(0.002)
        return batch.ids.tolist()

    size = draw.choice([40, 64, 150])
    options = {"epochs": draw.choice([None, 3]), "drop_last": draw.random() < 0.5}
    pool = {"threads": draw.randint(1, 4), "ahead": draw.randint(1, 12)}
    alone, loader = plain(ds, size, **options), pooled(ds, size, slow, **options, **pool)
    pairs, states = [], []
    for _ in range(150):
        what = draw.choice(["next"] * 8 + ["iter", "iter", "drop", "epoch", "save", "load", "look"])
        print(what, alone.state_dict()["epoch"], alone.state_dict()["consumed"], len(pairs))
        if what == "iter" and len(pairs) < 3:
            pairs.append((iter(alone), iter(loader)))
        elif what == "next" and pairs:
            first, second = pairs[at := draw.randrange(len(pairs))]
            print("of", at)
            assert outcome(second) == outcome(first)
        elif what == "drop" and pairs:
            del pairs[draw.randrange(len(pairs))]
            first = second = None
        elif what == "epoch":
            epoch = draw.randrange(3)
            print("to", epoch)
            alone.set_epoch(epoch)
            loader.set_epoch(epoch)
        elif what == "save":
            states.append(alone.state_dict())
        elif what == "load" and states:
            state = draw.choice(states)
            alone.load_state_dict(state)
            loader.load_state_dict(state)
        for name in ("epoch", "batches_left"):
            assert getattr(loader, name) == getattr(alone, name), name
        assert loader.state_dict() == alone.state_dict()
    loader.close()
    for _, second in pairs:
        with pytest.raises(dlfs.Error, match="closed"):
            next(second)
    alone.close()


@pytest.mark.parametrize("pool", POOLS)
def test_the_first_error_of_a_transform_comes_in_its_place_and_stays(ds, monkeypatch, pool):
    whole = ids_of(plain(ds))
    bad = sum(whole[3])
    monkeypatch.setattr(transforms, "FAILS_ON", bad)
    monkeypatch.setenv("DLFS_TEST_FAILS_ON", str(bad))
    with pooled(ds, transform=transforms.fails_on_the_fourth, **POOLS[pool]) as loader:
        with plain(ds) as alone:
            list(itertools.islice(alone, 3))
            after_three = alone.state_dict()
        for _ in range(2):
            results = iter(loader)
            assert [next(results) for _ in range(3)] == whole[:3]
            depths = []
            for _ in range(3):
                with pytest.raises(KeyError, match="of the transform") as error:
                    next(results)
                depths.append(len(error.traceback))
                assert loader.state_dict() == after_three
            assert depths[1] == depths[2]
            assert f"epoch 0 with the samples {whole[3]}" in error.value.__notes__[0]
            if pool == "processes":
                assert "fails_on_the_fourth" in str(error.value.__cause__), "the traceback there"
        loader.set_epoch(1)
        with plain(ds) as alone:
            alone.set_epoch(1)
            assert list(loader) == ids_of(alone)
    no_thread_is_left()


def test_an_error_of_a_batch_does_not_end_the_loop_silently(ds):
    def ends(batch):
        raise StopIteration

    def exits(batch):
        raise SystemExit(3)

    for transform, error in ((ends, RuntimeError), (exits, SystemExit)):
        with pooled(ds, transform=transform) as loader, pytest.raises(error):
            list(loader)


def test_an_error_of_a_read_comes_in_its_place_as_without_a_transform(image, source, tmp_path):
    path = damaged(image, tmp_path, source, 17)

    def outcomes(loader):
        """The outcome of some requests of one iterator, and then of another."""
        found = []
        for _ in range(2):
            results = iter(loader)
            for _ in range(len(loader) + 2):
                try:
                    item = next(results)
                    found.append(item if isinstance(item, list) else item.ids.tolist())
                except dlfs.Corrupt as error:
                    found.append(("corrupt", error.sample_id))
                except StopIteration:
                    found.append("end")
                found.append(loader.state_dict())
        return found

    for options in ({}, {"on_error": "skip"}):
        with dlfs.open(path) as ds, plain(ds, 16, **options) as alone:
            expected = outcomes(alone)
            assert (("corrupt", 17) in expected) == (not options)
            for pool in ({}, {"threads": 3}):
                with pooled(ds, 16, **options, **pool) as loader:
                    assert outcomes(loader) == expected


def test_a_batch_that_is_late_is_no_end(image):
    """TimedOut, and the same batch later."""
    with target(image) as (child, address), dlfs.open(address, io_timeout=600) as ds:
        with pooled(ds, deadline=0.5, window=64 << 10, order="global") as loader, plain(ds, order="global") as alone:
            whole = ids_of(alone)
            results, found = iter(loader), []
            while not found:
                with contextlib.suppress(dlfs.TimedOut):
                    found.append(next(results))
            os.kill(child.pid, 19)
            with pytest.raises(dlfs.TimedOut):
                while True:
                    found.append(next(results))
            with pytest.raises(dlfs.TimedOut):
                next(results)
            os.kill(child.pid, 18)
            for _ in range(100):
                with contextlib.suppress(dlfs.TimedOut):
                    for result in results:
                        found.append(result)
                    break
            assert found == whole


def test_a_loop_that_is_left_leaves_no_thread(ds):
    loader = pooled(ds, threads=3, ahead=6)
    for result in loader:
        break
    no_thread_is_left()
    assert result == ids_of(plain(ds))[0] and list(loader) == ids_of(plain(ds)), "it begins again"
    with pytest.raises(ZeroDivisionError):
        for result in loader:
            1 / 0
    no_thread_is_left()
    for _ in itertools.islice(loader, 2):
        pass
    del loader
    no_thread_is_left()


def test_a_cycle_through_an_iterator_at_work_is_collected(ds):
    def make():
        loader = pooled(ds, threads=2)
        loader.iterator = iter(loader)
        next(loader.iterator)

    make()
    wait_until(lambda: gc.collect() and False or not pool_threads(), "the end of the threads")


def test_closing_waits_for_the_transforms_and_ends_iterators(ds):
    begun, running = threading.Event(), set()

    def slow(batch):
        running.add(threading.get_ident())
        begun.set()
        time.sleep(0.2)
        running.discard(threading.get_ident())
        return 1

    loader, raised = pooled(ds, 8, slow, threads=2), []

    def consume():
        try:
            list(loader)
        except dlfs.Error as error:
            raised.append(str(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    begun.wait(60)
    kept = iter(loader)
    loader.close()
    assert not running and not pool_threads()
    consumer.join(60)
    assert raised == ["the loader was closed"]
    with pytest.raises(dlfs.Error, match="closed"):
        next(kept)
    loader.close()


def test_closing_ends_a_wait_for_a_batch(image):
    with target(image) as (child, address), dlfs.open(address, io_timeout=600) as ds:
        loader = pooled(ds)
        os.kill(child.pid, 19)
        raised = []

        def consume():
            try:
                next(iter(loader))
            except dlfs.Error as error:
                raised.append(str(error))

        consumer = threading.Thread(target=consume)
        consumer.start()
        wait_until(pool_threads, "a thread of the pool")
        loader.close()
        consumer.join(60)
        assert len(raised) == 1 and "closed" in raised[0]


def test_a_transform_may_close_its_loader(ds):
    def closes(batch):
        loader.close()

    loader = pooled(ds, transform=closes)
    with pytest.raises(dlfs.Error, match="closed"):
        list(loader)


def test_an_iterator_goes_on_where_the_loader_is_moved_by_another_thread(ds):
    """One waits for a result that will never be, since the run is moved; it gets one from the new place."""
    held, free = threading.Event(), threading.Event()

    def holds(batch):
        if batch.epoch == 0 and not held.is_set():
            held.set()
            free.wait(60)
        return batch.ids.tolist()

    with pooled(ds, transform=holds, threads=2) as loader, plain(ds) as alone:
        whole = ids_of(alone)
        found = []
        consumer = threading.Thread(target=lambda: found.extend(loader))
        consumer.start()
        held.wait(60)
        loader.set_epoch(0)
        wait_until(lambda: len(found) == len(whole), "an epoch from its start")
        free.set()
        consumer.join(60)
        assert found == whole


def test_a_loaded_state_stays_new_until_a_result_is_handed_out(ds):
    """Whatever the pool has taken meanwhile: then neither set_epoch of its epoch nor an iterator loses the place."""
    whole, held, free = ids_of(plain(ds, 16)), threading.Semaphore(0), threading.Event()

    def holds(batch):
        held.release()
        free.wait(60)
        return batch.ids.tolist()

    with plain(ds, 16) as alone:
        list(itertools.islice(alone, 20))
        state = alone.state_dict()
    for again in ("iter", "set_epoch"):
        with pooled(ds, 16, holds, threads=3, ahead=9) as loader:
            loader.load_state_dict(state)
            results, found = iter(loader), []
            consumer = threading.Thread(target=lambda: found.extend(results))
            consumer.start()
            [held.acquire() for _ in range(3)]
            assert loader.state_dict() == state and loader.batches_left == len(whole) - 20
            if again == "iter":
                other = iter(loader)
                free.set()
                assert list(other) == whole[20:]
            else:
                loader.set_epoch(0)
                free.set()
            consumer.join(60)
            assert found == whole[20:], again
        held, free = threading.Semaphore(0), threading.Event()


def test_an_iterator_begins_when_the_transforms_of_the_one_that_was_left_have_ended(ds):
    """So it uses that one's memory, and no transform runs beside its own."""
    running = set()

    def slow(batch):
        running.add(threading.get_ident())
        time.sleep(0.05)
        running.discard(threading.get_ident())

    with pooled(ds, 8, slow, threads=3) as loader:
        for _ in range(5):
            next(iter(loader))
            iter(loader)
            assert not running


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("pool", POOLS)
def test_a_forked_child_goes_on_from_what_was_handed_out(ds, pool):
    whole = ids_of(plain(ds, 16))
    with pooled(ds, 16, **POOLS[pool]) as loader:
        results = iter(loader)
        for handed in range(1, len(whole), 5 if pool == "processes" else 1):
            while loader.state_dict()["consumed"] < 16 * handed:
                next(results)
            rest = whole[handed:]
            state = loader.state_dict()
            assert reap(in_child(lambda: list(results) == rest and threading.active_count() > 1)) == 0
            assert reap(in_child(lambda: loader.state_dict() == state and list(loader) == whole)) == 0
            assert loader.state_dict() == state
        assert whole[handed:] == list(results), "the parent was not disturbed"


INTERRUPT = """
import os, signal, sys, threading, dlfs
signal.signal(signal.SIGINT, signal.default_int_handler)
ds = dlfs.open(sys.argv[1])
interrupted = threading.Event()
def slow(batch):
    assert interrupted.wait(60)
    return batch.ids.tolist()
whole = [batch.ids.tolist() for batch in dlfs.Loader(ds, 16)]
loader = dlfs.Loader(ds, 16, transform=slow, threads=2)
results = iter(loader)
try:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    next(results)
except KeyboardInterrupt:
    print("interrupted", loader.state_dict()["consumed"])
interrupted.set()
print("nothing is lost", list(results) == whole)
interrupted.clear()
try:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    list(loader)
except KeyboardInterrupt:
    print("again", end="")
threading.Timer(0.5, interrupted.set).start()  # the program has come to its end
"""


def test_ctrl_c_ends_a_wait_and_loses_nothing(image, run_python):
    """After the second one, the program ends by itself."""
    assert run_python(INTERRUPT, image) == "interrupted 0\nnothing is lost True\nagain"


@pytest.mark.parametrize("end", ["return", "sys.exit(0)", "os._exit(0)", "raise SystemExit"])
@pytest.mark.parametrize("pool", POOLS)
def test_an_interpreter_ends_with_transforms_at_work(image, run_python, end, pool):
    run_python(
        f"""
import os, sys
sys.path.insert(0, {os.path.dirname(transforms.__file__)!r})
import dlfs, transforms
def main():
    global results
    ds = dlfs.open({image!r})
    results = iter(dlfs.Loader(ds, 8, transform=transforms.slow_ids, **{POOLS[pool]!r}))
    next(results)
    {end}
if __name__ == "__main__":
    main()
"""
    )


def test_an_interpreter_ends_while_a_pool_waits_for_a_frozen_target(image, run_python):
    with target(image) as (child, address):
        run_python(
            f"""
import sys, threading, time, dlfs
sys.path.insert(0, {os.path.dirname(transforms.__file__)!r})
from frozen import freeze
loader = dlfs.Loader(dlfs.open({address!r}), 4, transform=len)
freeze({child.pid})
threading.Thread(target=lambda: next(iter(loader)), daemon=True).start()
time.sleep(0.3)
""",
            timeout=50,  # the batch's own deadline is later
        )


@pytest.mark.parametrize("pool", POOLS)
def test_a_transform_gets_the_random_numbers_of_each_sample(ds, pool):
    expected = [
        [int(dlfs.random_of(5, 0, id).integers(1 << 30)) for id in batch] for batch in ids_of(plain(ds))
    ]
    with pooled(ds, transform=transforms.draws, **POOLS[pool]) as loader:
        assert list(loader) == expected


def test_options_that_do_not_fit_are_refused_by_name(ds):
    for options, error in [
        ({"threads": 2}, TypeError), ({"transform": 3}, TypeError), ({"transform": len, "threads": 0}, ValueError),
        ({"transform": len, "ahead": -1}, ValueError), ({"transform": len, "processes": 0}, ValueError),
        ({"transform": len, "threads": 1, "processes": 1}, ValueError),
    ]:
        with pytest.raises(error, match=r"transform|threads|ahead|processes"):
            dlfs.Loader(ds, 4, **options)
    with pooled(ds, 4, len, threads=2) as loader:
        assert loader.options["transform"] is len and loader.options["threads"] == 2


# Worker processes.


def same(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and (one == other).all()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_arrays_and_all_else_come_back_from_processes_as_they_were(ds):
    with plain(ds) as alone, pooled(ds, transform=transforms.arrays, processes=2) as loader:
        for batch, found in zip(alone, loader, strict=True):
            assert same(transforms.arrays(batch), found)
            found["data"][:] = 1  # writable
            assert found["data"].base is not None, "not a copy"
    with plain(ds) as alone, pooled(ds, transform=transforms.views, processes=1) as loader:
        for batch, found in zip(alone, loader, strict=True):
            assert found == batch.tolist() and all(type(view) is memoryview for view in found)
    with plain(ds) as alone, pooled(ds, transform=transforms.whole, processes=1) as loader:
        for batch, found in zip(alone, loader, strict=True):
            assert found.tobytes() == batch.tobytes() and found.labels.tolist() == batch.labels.tolist()
            assert (found.epoch, found.ends_epoch) == (batch.epoch, batch.ends_epoch)


def test_tensors_come_back_from_processes_as_they_were(ds):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with plain(ds, 100) as alone, pooled(ds, 100, transforms.tensors, processes=1) as loader:
        for batch, found in zip(alone, loader, strict=True):
            expected = transforms.tensors(batch)
            for name in ("data", "offsets", "ids", "labels"):
                one, other = (getattr(whole["batch"], name) for whole in (expected, found))
                assert one.dtype == other.dtype and torch.equal(one, other), name
            for name in expected.keys() - {"batch"}:
                assert expected[name].dtype == found[name].dtype, name
                assert torch.equal(expected[name], found[name]), name
            assert found["grad"].requires_grad


@pytest.mark.parametrize("transform", ["constant", "of_varying_size"])
def test_results_that_are_kept_do_not_change_and_their_memory_is_used_again(ds, transform):
    def held():
        return len(os.listdir("/proc/self/fd"))

    def first_of(found):
        assert (found == found[0]).all()
        return int(found[0])

    firsts = [ids[0] for ids in ids_of(plain(ds, 8))]
    with pooled(ds, 8, getattr(transforms, transform), processes=2) as loader:
        kept = list(loader)
        assert [first_of(found) for found in kept] == firsts
        del kept
        loader.set_epoch(0)
        most = []
        for found, first in zip(loader, firsts, strict=True):
            assert first_of(found) == first
            most.append(held())
        # Each worker has its link, its sentinel, the batch, and some results.
        assert max(most) - min(most) < 16 and held() < 120, most
    before = held()
    gc.collect()
    assert held() <= before


def test_a_batch_that_a_transform_keeps_is_not_changed(ds):
    with pooled(ds, 16, transforms.sums_of_kept, processes=1) as loader:
        assert all(loader)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "exit"])
def test_the_death_of_a_worker_is_an_error_in_its_place(ds, monkeypatch, how):
    whole = ids_of(plain(ds))
    monkeypatch.setenv("DLFS_TEST_DIES", f"{how}:{whole[4][0]}")
    shared = segments()
    with pooled(ds, transform=transforms.interrupted_or_ids, processes=2) as loader:
        results = iter(loader)
        assert [next(results) for _ in range(4)] == whole[:4]
        said = "exit code 3" if how == "exit" else how
        for _ in range(2):
            with pytest.raises(dlfs.WorkerDied, match=f"worker process .*{said}") as error:
                next(results)
            assert str(whole[4]) in error.value.__notes__[0]
        monkeypatch.delenv("DLFS_TEST_DIES")  # for the one that is started in its place
        loader.set_epoch(1)
        assert len(list(loader)) == len(whole)
    assert segments() <= shared


def segments():
    """Segments of shared memory that Python has made. Other programs use the folder at the same time."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "wnsm_"))}


def test_a_worker_that_dies_while_it_has_nothing_to_do_is_an_error_once(ds):
    with pooled(ds, transform=transforms.pid, processes=1, ahead=1) as loader:
        results = iter(loader)
        first = next(results)
        next(results)
        places = loader._overlap._newest().places
        wait_until(lambda: len(places) and places[0].is_done, "a result that waits")
        os.kill(first, 9)
        next(results)  # it was there
        with pytest.raises(dlfs.WorkerDied, match="SIGKILL"):
            list(results)
        assert first not in list(loader)


def test_what_cannot_be_sent_is_an_error_that_says_so(ds):
    with pooled(ds, transform=lambda batch: batch, processes=1) as loader:
        with pytest.raises(TypeError, match="cannot be sent to a worker process"):
            list(loader)
    for transform, error in ((transforms.unpicklable, Exception), (transforms.odd, RuntimeError)):
        with pooled(ds, transform=transform, processes=1) as loader:
            with pytest.raises(error, match="pickle|Odd: 1 and 2"):
                list(loader)


def children():
    """Child processes that multiprocessing has spawned."""
    spawned = []
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        for pid in file.read().split():
            with contextlib.suppress(OSError):  # one that has just ended
                if "spawn_main" in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
                    spawned.append(pid)
    return spawned


def test_processes_end_with_their_loader(ds):
    gc.collect()
    before = children()
    loader = pooled(ds, transform=transforms.pid, processes=2)
    loader.prepare()
    wait_until(lambda: len(children()) == len(before) + 2, "the start of the processes")
    assert len(set(loader)) <= 2 and len(children()) == len(before) + 2, "they stay for the next epoch"
    loader.close()
    assert children() == before
    busy = pooled(ds, transform=transforms.slow_ids, processes=2)
    next(iter(busy))
    busy.close()
    assert children() == before
    left = pooled(ds, transform=transforms.pid, processes=1)
    next(iter(left))
    del left
    wait_until(lambda: gc.collect() and False or children() == before, "the end of the process")


def test_processes_end_with_a_program_that_is_killed(image, tmp_path):
    import subprocess
    import sys

    (tmp_path / "program.py").write_text(
        f"""
import sys
sys.path.insert(0, {os.path.dirname(transforms.__file__)!r})
import dlfs, os, signal, transforms
if __name__ == "__main__":
    loader = dlfs.Loader(dlfs.open({image!r}), 8, transform=transforms.pid, processes=2)
    results = iter(loader)
    print(*{{next(results) for _ in range(20)}}, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    run = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=120)
    pids = run.stdout.split()
    assert run.returncode == -9 and pids, run.stderr
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "the end of the workers")


def test_memory_of_results_is_registered_once_and_given_back(ds, monkeypatch):
    registered, all_of_them = {}, []

    def register(address, length):
        assert address not in registered
        registered[address] = length
        all_of_them.append(address)

    monkeypatch.setattr(dlfs._dlfs, "register", register, raising=False)
    monkeypatch.setattr(dlfs._dlfs, "unregister", registered.pop, raising=False)
    from dlfs._workers import Workers

    workers = Workers(transforms.constant, 1, 2, 0, "auto")
    for batch in plain(ds, 8):
        found = workers(batch)
        at = found.ctypes.data
        assert any(start <= at < start + length for start, length in registered.items())
    assert len(all_of_them) <= 2
    workers.close()
    assert len(registered) == 1, "the array is still there"
    del found
    assert not registered


def test_the_memory_for_the_result_of_a_worker_that_dies_is_no_longer_registered(ds, monkeypatch):
    registered = {}
    monkeypatch.setattr(dlfs._dlfs, "register", registered.__setitem__, raising=False)
    monkeypatch.setattr(dlfs._dlfs, "unregister", registered.pop, raising=False)
    from dlfs._workers import Workers

    first, second, *_ = plain(ds, 8)
    monkeypatch.setenv("DLFS_TEST_DIES", f"exit:{second.ids[0]}")
    workers = Workers(transforms.array_or_end, 1, 2, 0, "auto")
    workers(first)
    assert len(registered) == 1, "it is free, and offered for the next result"
    with pytest.raises(dlfs.WorkerDied):
        workers(second)
    assert not registered
    workers.close()


def test_an_iterator_that_begins_while_its_loader_is_closed_ends_as_the_others_do(ds, monkeypatch):
    loader, begun = pooled(ds, threads=1), []
    stop = loader._overlap.stop

    def stop_and_begin():
        stop()
        begun.append(iter(loader))  # as another thread may, before the native loader is closed

    monkeypatch.setattr(loader._overlap, "stop", stop_and_begin)
    loader.close()
    for _ in range(2):
        with pytest.raises(dlfs.Error, match="closed"):
            next(begun[0])


# Free-threaded Python: what threads may share.

SHARED = """
import sys, threading
import dlfs
sys.setswitchinterval(1e-6)

def at_once(work, count=8):
    raised, ready = [], threading.Barrier(count)
    def run(number):
        ready.wait()
        try:
            work(number)
        except BaseException as error:
            raised.append(error)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not raised, raised

ds = dlfs.open(sys.argv[1])
contents = ds.read_batch(range(400)).tobytes()
for options in ({}, {"transform": lambda batch: batch, "threads": 3}):
    loader = dlfs.Loader(ds, 4, window=1 << 20, **options)
    for epoch in range(5):
        iterator, found = iter(loader), [[] for _ in range(8)]
        def take(number):
            for batch in iterator:
                assert batch.tobytes() == [contents[id] for id in batch.ids]
                assert batch.data.nbytes == batch.nbytes
                found[number] += batch.ids.tolist()
                loader.state_dict(), loader.stats(), loader.epoch, loader.batches_left, len(loader), repr(loader)
        at_once(take)
        assert sorted(sum(found, [])) == list(range(400)), "each batch once"
        assert loader.state_dict()["epoch"] == epoch + 1
    def moves(number):
        for turn in range(20):
            if number % 4 == 0: loader.set_epoch(turn % 3)
            elif number % 4 == 1: loader.load_state_dict(loader.state_dict())
            elif number % 4 == 2: next(iter(loader), None)
            else: loader.stats(), loader.report()
    at_once(moves)
    loader.close()

def reads(number):
    buffer = bytearray(9000)
    for turn in range(40):
        ids = list(range((number + turn) % 400, 400, 37))
        batch = ds.read_batch(ids)
        assert batch.tobytes() == [contents[id] for id in ids]
        ds.read_batch(ids[:1], out=shared)
        assert bytes(ds[ids[0]]) == contents[ids[0]] and ds.id_of(ds.names[ids[0]]) == ids[0]
        assert [bytes(view) for view in whole] == contents
shared = bytearray(9000)
whole = ds.read_batch(range(400))
at_once(reads)
sampler = dlfs._dlfs.Sampler(ds, batch_size=4)
drawn = [[] for _ in range(8)]
def draws(number):
    for _ in range(13):
        batch = sampler.next()
        drawn[number] += batch[0]
at_once(draws)
assert len(sum(drawn, [])) == 8 * 13 * 4

writer = dlfs.Writer(sys.argv[2])
ids = [[] for _ in range(8)]
def writes(number):
    for turn in range(50):
        ids[number].append((writer.write(b"%d/%d" % (number, turn), name=f"{number}/{turn}"), number, turn))
        len(writer)
at_once(writes)
writer.finish()
with dlfs.open(sys.argv[2]) as made:
    assert len(made) == 400
    for id, number, turn in sum(ids, []):
        assert bytes(made[f"{number}/{turn}"]) == b"%d/%d" % (number, turn)

opened = []
def opens(number):
    with dlfs.open(sys.argv[1]) as other:
        assert bytes(other[number]) == contents[number]
    opened.append(other)
at_once(opens)
def closes(number):
    try:
        while True:
            next(iter(loader))
            if number == 0: loader.close()
    except dlfs.Error as error:
        assert "closed" in str(error), error
for options in ({}, {"transform": lambda batch: batch, "threads": 3}):
    loader = dlfs.Loader(ds, 4, window=1 << 20, **options)
    at_once(closes)
print("done")
"""


def test_eight_threads_share_a_loader_a_data_set_and_a_writer(image, tmp_path, run_python):
    assert run_python(SHARED, image, tmp_path / "made.dlfs", timeout=300) == "done\n"


def test_so_they_do_without_the_interpreters_lock(image, tmp_path):
    import shutil
    import subprocess

    python = os.environ.get("DLFS_TEST_PYTHON_T") or shutil.which("python3.14t")
    if python is None:
        pytest.skip("there is no free-threaded Python: python3.14t, or what DLFS_TEST_PYTHON_T names")
    probe = "import sys, dlfs; assert not sys._is_gil_enabled()"
    found = subprocess.run([python, "-c", probe], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip(f"{python} has no dlfs, or dlfs switches its lock on: {found.stderr}")
    (tmp_path / "program.py").write_text(SHARED)
    run = subprocess.run(
        [python, tmp_path / "program.py", image, tmp_path / "made.dlfs"], capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0 and run.stdout == "done\n", run.stderr
