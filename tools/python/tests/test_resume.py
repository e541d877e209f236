"""dlfs.torch.DataLoader: what the training loop has had is what the state says, with any number of workers."""

import itertools
import json
import random
import warnings

import pytest

import dlfs
from conftest import SEED

torch = pytest.importorskip("torch", reason="torch is not installed")

import dlfs.torch  # noqa: E402

COUNTS = (0, 1, 2, 3)


def ids_of(batch):
    return batch.ids.tolist(), batch.epoch


def make(ds, workers, batch_size=17, method="fork", persistent=False, **options):
    data = dlfs.torch.IterableDataset(ds, batch_size, transform=ids_of, **{"seed": 5, **options})
    return dlfs.torch.DataLoader(
        data, num_workers=workers, persistent_workers=persistent,
        multiprocessing_context=method if workers else None,
    )


def ids_in(batches):
    return [id for ids, _ in batches for id in ids]


def through_json(state):
    return json.loads(json.dumps(state))


def stops(loader):
    """Within a round, between two, and after the last batch."""
    return (5, 6, len(loader))


@pytest.mark.parametrize("before, after", list(itertools.product(COUNTS, COUNTS)))
def test_workers_go_on_from_each_others_states(ds, before, after):
    everything, order = list(range(len(ds))), ("grouped", "global")[(before + after) % 2]
    first = make(ds, before, order=order)
    for stop in stops(first):
        first.set_epoch(3)
        front = list(itertools.islice(first, stop))
        state = through_json(first.state_dict())
        second = make(ds, after, order=order)
        second.load_state_dict(state)
        assert second.state_dict() == state, "nothing was read since"
        rest = list(second)
        if stop == len(first):
            assert sorted(ids_in(rest)) == everything and {epoch for _, epoch in rest} == {4}
            continue
        assert sorted(ids_in(front + rest)) == everything, stop
        assert {epoch for _, epoch in front + rest} == {3}
        following = list(second)
        assert sorted(ids_in(following)) == everything and {epoch for _, epoch in following} == {4}


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_a_resumed_run_has_the_batches_of_one_that_was_not_stopped(ds, workers):
    whole = list(make(ds, workers))
    for stop in (1, 4, 5, 11):
        stopped = make(ds, workers)
        front = list(itertools.islice(stopped, stop))
        again = make(ds, workers)
        again.load_state_dict(stopped.state_dict())
        assert front + list(again) == whole, stop


def test_a_state_goes_on_with_other_workers_batches_and_ranks_at_any_point(ds):
    """Each rank has the same number of batches when the state is taken, as in training."""
    print("seed", SEED)
    draw = random.Random(SEED)
    everything = list(range(len(ds)))
    for _ in range(12):
        order = draw.choice(["grouped", "global", "sequential"])
        state, had, cases = None, [], []
        for _ in range(3):  # two stops, and the rest
            ranks, workers, size = draw.randrange(1, 4), draw.randrange(4), draw.randrange(1, 40)
            cases.append((ranks, workers, size))
            each = [make(ds, workers, size, order=order, rank=r, world_size=ranks) for r in range(ranks)]
            if state is not None:
                [loader.load_state_dict(state) for loader in each]
            stop = None if len(cases) == 3 else draw.randrange(1, 8)
            got = [list(itertools.islice(loader, stop)) for loader in each]
            had += [id for batches in got for id in ids_in(batches)]
            states = [through_json(loader.state_dict()) for loader in each]
            if len({len(batches) for batches in got}) > 1 or states[0].get("epoch", 0) == 1:
                break  # the epoch has ended
            assert all(one == states[0] for one in states), "all ranks are at one place"
            state = states[0]
        assert sorted(had) == everything, (order, cases)


@pytest.mark.parametrize("tail", ["pad", "drop_last"])
def test_ranks_stay_equal_after_a_round_is_divided_anew(ds, tail):
    made = [make(ds, 3, 8, rank=r, world_size=2, **{tail: True}) for r in range(2)]
    [list(itertools.islice(loader, 4)) for loader in made]
    states = [loader.state_dict() for loader in made]
    assert states[0] == states[1] and "round" in states[0]
    counts = []
    for rank in range(3):
        loader = make(ds, 2, 8, rank=rank, world_size=3, **{tail: True})
        loader.load_state_dict(states[0])
        counts.append(len(list(loader)))
    assert len(set(counts)) == 1


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("after", COUNTS)
def test_a_state_of_stateful_data_loader_goes_on_here(ds, workers, after):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def stateful_loader(count):
        data = dlfs.torch.IterableDataset(ds, 17, seed=5, transform=ids_of)
        return stateful.StatefulDataLoader(
            data, batch_size=None, num_workers=count, multiprocessing_context="fork" if count else None
        )

    everything = list(range(len(ds)))
    for stop in (6, 7):
        for count in {workers, 0} if workers == 1 else {workers}:
            theirs = stateful_loader(count)
            batches = iter(theirs)
            front = [next(batches) for _ in range(stop)]
            state = theirs.state_dict()
            del batches
            ours = make(ds, after)
            ours.load_state_dict(state)
            # And back, from between two rounds.
            here = list(itertools.islice(ours, 4))
            while "round" in ours.state_dict():
                ours.load_state_dict(ours.state_dict())
                here += list(itertools.islice(ours, 1))
            again = stateful_loader(workers)
            again.dataset.load_state_dict(ours.state_dict())
            assert sorted(ids_in(front + here + list(again))) == everything, (stop, count)


@pytest.mark.parametrize("workers, persistent", [(0, False), (2, False), (2, True), (3, True)])
def test_epochs_advance_and_one_that_is_left_begins_again(ds, workers, persistent):
    loader, everything = make(ds, workers, persistent=persistent), list(range(len(ds)))
    epochs = [list(loader) for _ in range(3)]
    assert [{epoch for _, epoch in batches} for batches in epochs] == [{0}, {1}, {2}]
    assert all(sorted(ids_in(batches)) == everything for batches in epochs)
    assert len(epochs[0]) == len(loader)
    for _ in loader:
        break
    state = loader.state_dict()
    assert state.get("before", state)["epoch"] == 3
    left = list(loader)
    assert sorted(ids_in(left)) == everything and {epoch for _, epoch in left} == {3}
    exact = list(itertools.islice(loader, len(loader)))  # without asking for one more
    assert {epoch for _, epoch in exact} == {4} and loader.state_dict()["epoch"] == 5
    assert {epoch for _, epoch in loader} == {5}
    loader.dataset.set_epoch(1)
    assert sorted(loader) == sorted(epochs[1])
    loader.set_epoch(1)
    assert sorted(loader) == sorted(epochs[1])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_context(ds, method):
    loader = make(ds, 2, method=method)
    front = list(itertools.islice(loader, 3))
    again = make(ds, 2, method=method)
    again.load_state_dict(loader.state_dict())
    assert sorted(ids_in(front + list(again))) == list(range(len(ds)))


def test_a_run_of_so_many_epochs_ends(ds):
    for workers in (0, 2):
        loader = make(ds, workers, epochs=2)
        assert [len(list(loader)) for _ in range(3)] == [len(loader), len(loader), 0]


def test_wrong_states_and_data_sets_are_refused(ds):
    loader = make(ds, 2)
    next(iter(loader))
    state = loader.state_dict()
    assert state["round"]["had"] == 17
    other = make(ds, 2, seed=6)
    before = other.state_dict()
    for wrong in (
        {}, {**state, "round": {}}, {**state, "round": {**state["round"], "workers": 0}},
        {**state, "round": {**state["round"], "had": 10**9}}, {"round": state["round"]}, {"_snapshot": {}}, state,
        {**state, "round": {**state["round"], "had": "3"}}, {**state, "round": {**state["round"], "workers": "2"}},
        {**state, "before": "epoch"},
    ):
        with pytest.raises(dlfs.InvalidArgument):
            other.load_state_dict(wrong)
    assert other.state_dict() == before
    for taker in (dlfs.Loader(ds, 17, seed=5), loader.dataset):
        with pytest.raises(dlfs.InvalidArgument):
            taker.load_state_dict(state)
    with pytest.raises(dlfs.InvalidArgument):
        loader.set_epoch(-1)
    with pytest.raises(TypeError, match="IterableDataset"):
        dlfs.torch.DataLoader(iter(ds))
    partial = make(ds, 2, order="partial")
    next(iter(partial))
    with pytest.raises(dlfs.Unsupported, match="partial"):
        partial.state_dict()


AGAIN = """
import os, sys
os.dup2(1, 2)
import torch, dlfs, dlfs.torch

ds = dlfs.open(sys.argv[1])
data = dlfs.torch.IterableDataset(ds, 32, seed=3, transform=len)
ours = sys.argv[2] == "ours"
kind = dlfs.torch.DataLoader if ours else torch.utils.data.DataLoader
loader = kind(data, num_workers=2, multiprocessing_context="fork", **({} if ours else {"batch_size": None}))
for _ in range(3):
    print(sum(loader), "samples", flush=True)
"""


def test_workers_that_read_an_epoch_a_second_time_warn_once(run_python, image):
    lines = run_python(AGAIN, image, "plain").splitlines()
    told = [at for at, line in enumerate(lines) if "read epoch 0 from its start" in line]
    assert len(told) == 1 and lines[0] == "400 samples", lines
    assert "from its start" not in run_python(AGAIN, image, "ours")


def test_plain_workers_name_both_ways_to_a_state(ds):
    data = dlfs.torch.IterableDataset(ds, 32, seed=3, transform=ids_of)
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    list(loader)
    with pytest.raises(dlfs.Unsupported, match="dlfs.torch.DataLoader.*StatefulDataLoader"):
        data.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_checks_trains_and_validates_each_sample_once(ds, workers):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    trained, validated = [], []

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, index):
            trained.extend(batch[1].tolist())
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch, index):
            validated.append((self.trainer.sanity_checking, batch[1].tolist()))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def loader():
        data = dlfs.torch.IterableDataset(ds, 32, seed=1, transform=lengths)
        return dlfs.torch.DataLoader(
            data, num_workers=workers, multiprocessing_context="fork" if workers else None
        )

    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, num_sanity_val_steps=2,
        enable_progress_bar=False, enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Model(), loader(), loader())
    everything = sorted(list(range(len(ds))) * 2)
    assert sorted(trained) == everything
    assert sum(sanity for sanity, _ in validated) == 2
    assert sorted(id for sanity, ids in validated if not sanity for id in ids) == everything


def lengths(batch):
    return torch.tensor([[float(view.nbytes)] for view in batch]) / 9000, torch.tensor(batch.ids)


@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_takes_it(ds, workers):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    data = dlfs.torch.IterableDataset(ds, 32, seed=1, transform=lengths, rank=0, world_size=1)
    loader = accelerate.Accelerator(cpu=True).prepare(
        dlfs.torch.DataLoader(data, num_workers=workers, multiprocessing_context="fork" if workers else None)
    )
    for _ in range(2):
        assert sorted(int(id) for _, ids in loader for id in ids) == list(range(len(ds)))
