"""Resuming with workers against a model: any stopping point, 0 to 3 workers to 0 to 3, any batch sizes.

The workers of most cases run in this process, one step of one worker after another, and read ahead as torch's do; and
most of these have the ids of batches alone, from a loader without bytes and threads. The last cases have real
processes. DLFS_WORKER_CASES=10000 tries more, DLFS_WORKER_SEED another seed.
"""

import itertools
import os
import pickle
import random

import numpy
import pytest

import dlfs
from conftest import SEED, command

torch = pytest.importorskip("torch", reason="torch is not installed")

import dlfs.torch  # noqa: E402
from dlfs._dlfs import Sampler  # noqa: E402
from test_resume import ids_of, through_json  # noqa: E402
from torch.utils.data._utils import worker as of_worker  # noqa: E402

CASES = int(os.environ.get("DLFS_WORKER_CASES", "300"))
FIRST = int(os.environ.get("DLFS_WORKER_SEED", SEED))
# Cases that read bytes, and cases with processes.
READ, REAL = (30, 20) if "DLFS_WORKER_CASES" in os.environ else (10, 2)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A data set of a few chunks: most cases are of the ends of rounds and epochs."""
    root, draw = tmp_path_factory.mktemp("few"), random.Random(SEED)
    (root / "files" / "class").mkdir(parents=True)
    for number in range(70):
        (root / "files" / "class" / f"{number:02}").write_bytes(draw.randbytes(draw.randrange(9000)))
    command("import", root / "files", root / "few.dlfs", "--chunk-size", "64K", "--quiet")
    with dlfs.open(root / "few.dlfs") as dataset:
        yield dataset


class Ids:
    """A batch without bytes."""

    def __init__(self, ids, epoch, ends_epoch):
        self.ids, self.epoch, self.ends_epoch = numpy.array(ids, dtype=numpy.int64), epoch, ends_epoch


class IdLoader:
    """What a dlfs.Loader does, with the ids of its batches alone."""

    def __init__(self, dataset, **options):
        self._made = (dataset, options)
        self._ids, self._resumed = Sampler(dataset, **options), False
        self._last = options.get("epochs") or 1 << 23

    def again(self):
        """A copy, as pickle makes it."""
        dataset, options = self._made
        copy = IdLoader(dataset, **options)
        copy.load_state_dict(self.state_dict())
        return copy

    def __len__(self):
        return self._ids.batches_per_epoch

    @property
    def epoch(self):
        return self._ids.epoch

    @property
    def batches_left(self):
        return self._ids.batches_left

    def prepare(self):
        pass

    def state_dict(self):
        return self._ids.state_dict()

    def load_state_dict(self, state):
        self._ids.load_state_dict(state)
        self._resumed = True

    def set_epoch(self, epoch):
        if not (self._resumed and epoch == self.epoch):
            self._resumed = False
            self._ids.set_epoch(epoch)

    def __iter__(self):
        if self.state_dict()["consumed"] and not self._resumed:
            self._ids.set_epoch(self.epoch)
        return self._batches(self.epoch)

    def _batches(self, epoch):
        while self.epoch == epoch:
            if not self._ids.has_batches_left:
                if epoch < self._last:
                    self._ids.set_epoch(epoch + 1)
                return
            drawn = self._ids.next()
            if drawn is None:
                return
            self._resumed = False
            yield Ids(drawn[0], epoch, drawn[1])


class InProcess(dlfs.torch.DataLoader):
    """Its workers are copies of the data set that take turns in this process."""

    starts = itertools.count(1)

    def __init__(self, data, workers):
        super().__init__(data, num_workers=workers)

    def _get_iterator(self):
        if self.num_workers == 0:
            return super()._get_iterator()
        return self.in_turns(1000 * next(self.starts))

    def in_turns(self, seed):
        workers = []
        for id in range(self.num_workers):
            data = copied(self.dataset)
            data._shared = self.dataset._shared  # as torch's own pickles keep it
            info = of_worker.WorkerInfo(
                id=id, num_workers=self.num_workers, seed=seed + id, dataset=data
            )
            workers.append((info, iter(data)))
        turns, ahead = itertools.cycle(workers), []
        left = len(workers)
        ended = set()
        while left or ahead:
            while left and len(ahead) < 2 * len(workers):
                info, batches = next(turns)
                if info.id in ended:
                    continue
                of_worker._worker_info = info
                try:
                    ahead.append(next(batches))
                except StopIteration:
                    ended.add(info.id)
                    left -= 1
                finally:
                    of_worker._worker_info = None
            if ahead:
                yield ahead.pop(0)


def copied(data):
    """What a worker gets of a data set."""
    if not isinstance(data._loader, IdLoader):
        return pickle.loads(pickle.dumps(data))
    copy, state = object.__new__(type(data)), data.__getstate__()
    copy.__setstate__({**state, "_loader": data._loader.again(), "_shared": data._shared.clone()})
    return copy


class Model:
    """What a run has left, in lists."""

    def __init__(self, sequence_of, epoch, divides_evenly):
        self.sequence_of, self.epoch, self.at = sequence_of, epoch, 0
        # Whether worker w of N has every N-th sample of a round, from the w-th on: not so in grouped order.
        self.divides_evenly = divides_evenly
        # What is left of the round that was begun, and whether its order is known.
        self.rest, self.is_known = [], True

    def start(self, workers, batch_size):
        self.workers, self.batch_size = max(workers, 1), batch_size
        self.sizes = []  # of the batches of a round that these workers read

    def take(self, ids):
        """The run has given these samples. Returns whether its epoch has ended."""
        sequence = self.sequence_of(self.epoch)
        if not self.rest:
            whole = sequence[self.at : self.at + self.workers * self.batch_size]
            pieces = [whole[worker :: self.workers] for worker in range(self.workers)]
            self.is_known = self.divides_evenly or self.workers == 1
            self.rest, self.at = [id for piece in pieces for id in piece], self.at + len(whole)
            self.sizes = [len(piece) for piece in pieces if piece]
        if self.is_known:
            count = self.sizes.pop(0) if self.sizes else self.batch_size
            assert ids == self.rest[:count]
        else:
            assert 0 < len(ids) <= self.batch_size and len(ids) == len(set(ids))
            assert set(ids) <= set(self.rest)
        had = set(ids)
        self.rest = [id for id in self.rest if id not in had]
        if self.rest or self.at < len(sequence):
            return False
        self.epoch, self.at = self.epoch + 1, 0
        return True


def run(ds, draw, kind):
    order, seed, epoch = draw.choice(["grouped", "global", "sequential"]), draw.randrange(99), draw.randrange(3)
    sequences = {}

    def sequence_of(epoch):
        if epoch not in sequences:
            sampler = dlfs.torch.BatchSampler(ds, len(ds), order, seed=seed)
            sampler.set_epoch(epoch)
            [sequences[epoch]] = sampler
        return sequences[epoch]

    model, state, told = Model(sequence_of, epoch, order != "grouped"), None, [(order, seed, epoch)]
    for segment in range(draw.randrange(2, 5)):
        sizes = [1, 7, 17, 32, 63, draw.randrange(8, 150)] if len(ds) > 100 else [1, 3, 7, 12, draw.randrange(2, 40)]
        workers, batch_size = draw.randrange(4), draw.choice(sizes)
        stop = draw.randrange(1 + 2 * len(ds) // batch_size)
        told.append((workers, batch_size, stop))
        data = dlfs.torch.IterableDataset(ds, batch_size, order, seed=seed, transform=ids_of)
        loader = kind(data, workers)
        if state is None:
            loader.set_epoch(epoch)
        else:
            loader.load_state_dict(state)
        model.start(workers, batch_size)
        try:
            in_epoch, has_ended = model.epoch, False
            for ids, of in itertools.islice(loader, stop):
                assert not has_ended, "more batches than the epoch has"
                assert of == in_epoch
                has_ended = model.take(ids)
            state = through_json(loader.state_dict())
            assert state.get("before", state)["epoch"] == model.epoch
            assert ("round" in state) == bool(model.rest)
        except AssertionError as error:
            raise AssertionError(f"order, seed, epoch; then workers, batch size, stop: {told}") from error
    # The rest of the epoch.
    in_epoch = model.epoch
    loader = kind(dlfs.torch.IterableDataset(ds, 32, order, seed=seed, transform=ids_of), 2)
    loader.load_state_dict(state)
    model.start(2, 32)
    ends = [model.take(ids) for ids, _ in loader]
    assert ends == [False] * (len(ends) - 1) + [True], (told, ends)
    assert loader.state_dict()["epoch"] == in_epoch + 1, told


def forked(data, workers):
    return dlfs.torch.DataLoader(
        data, num_workers=workers, multiprocessing_context="fork" if workers else None
    )


def in_process(ds, cases, monkeypatch):
    monkeypatch.setattr(dlfs.torch, "set_up_worker", lambda: None)  # it is for the process of a worker
    for case in range(cases):
        print("DLFS_WORKER_SEED", FIRST + case)
        run(ds, random.Random(FIRST + case), InProcess)


def test_any_stop_with_any_workers_goes_on_as_a_model_does(few, monkeypatch):
    monkeypatch.setattr(dlfs.torch, "Loader", IdLoader)
    # Nothing is sent to processes or shared with them.
    monkeypatch.setattr(dlfs.torch, "check_sendable", lambda *_: None)
    monkeypatch.setattr(dlfs.torch, "_share", lambda tensor: tensor)
    monkeypatch.setattr(dlfs.torch.IterableDataset, "_read", lambda self, *drawn: Ids(*drawn))
    in_process(few, CASES, monkeypatch)


@pytest.mark.parametrize("order", ["grouped", "global", "sequential"])
@pytest.mark.parametrize("left", [2, 3, 4])
def test_a_last_round_with_fewer_samples_than_workers_goes_on_after_one_of_them(few, order, left):
    alone = dlfs.torch.DataLoader(dlfs.torch.IterableDataset(few, 1, order, seed=3, transform=ids_of))
    had = [ids for ids, _ in itertools.islice(alone, len(few) - left)]
    of_five = dlfs.torch.DataLoader(
        dlfs.torch.IterableDataset(few, 12, order, seed=3, transform=ids_of), num_workers=5
    )
    of_five.load_state_dict(alone.state_dict())
    had += [next(iter(of_five))[0]]
    last = dlfs.torch.DataLoader(dlfs.torch.IterableDataset(few, 3, order, seed=3, transform=ids_of))
    last.load_state_dict(through_json(of_five.state_dict()))
    had += [ids for ids, _ in last]
    assert sorted(itertools.chain(*had)) == sorted(int(id) for id in few.ids)


def test_so_do_those_that_read(ds, monkeypatch):
    in_process(ds, READ, monkeypatch)


def test_so_do_real_workers(ds):
    for case in range(REAL):
        print("seed", FIRST + case)
        run(ds, random.Random(FIRST + case), forked)
