"""States of dlfs.torch.DataLoader for torchdata's StatefulDataLoader, in the middle of an epoch."""

import itertools
import os

import pytest

import dlfs

torch = pytest.importorskip("torch", reason="torch is not installed")
stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

import dlfs.torch  # noqa: E402
from test_resume import ids_in, ids_of, make, through_json  # noqa: E402


# All of {0, 1, 2, 3} x {0, 1, 2, 3} where long tests are wanted.
MATRIX = [(0, 2), (2, 3), (3, 0), (3, 1), (2, 2)]
if "DLFS_WORKER_CASES" in os.environ:
    MATRIX = list(itertools.product(range(4), range(4)))


def theirs(ds, workers, batch_size=17, **options):
    data = dlfs.torch.IterableDataset(ds, batch_size, transform=ids_of, **{"seed": 5, **options})
    return stateful.StatefulDataLoader(
        data, batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None
    )


@pytest.mark.parametrize("workers, order", [(0, "grouped"), (1, "global"), (2, "global"), (3, "grouped")])
def test_a_stateful_data_loader_goes_on_at_any_batch(ds, workers, order):
    """And its own states, from there on, load here."""
    whole = list(make(ds, workers, order=order))
    assert len(whole) > 20
    for stop in (0, 5, len(whole) - 2):
        ours = make(ds, workers, order=order)
        front = list(itertools.islice(ours, stop))
        state = through_json(ours.stateful_state_dict())
        again = theirs(ds, workers, order=order)
        again.load_state_dict(state)
        batches = iter(again)
        middle = list(itertools.islice(batches, 3))
        assert front + middle == whole[: stop + 3], stop
        state = again.state_dict()
        del batches
        back = make(ds, workers, order=order)
        back.load_state_dict(state)
        rest = list(back) if len(front + middle) < len(whole) else []
        assert front + middle + rest == whole, stop


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_epoch_it_goes_on_with_the_next(ds, workers):
    ours = make(ds, workers)
    list(ours)
    again = theirs(ds, workers)
    again.load_state_dict(ours.stateful_state_dict())
    assert list(again) == list(ours) and ours.state_dict()["epoch"] == 2


def test_within_a_round_another_number_is_refused_and_says_how_far_to_go(ds):
    ours = make(ds, 3)
    batches = iter(ours)
    next(batches)
    for workers in (0, 2):
        with pytest.raises(dlfs.Unsupported, match="3 workers.* 2 batches later, or num_workers=3"):
            ours.stateful_state_dict(workers)
    ours.stateful_state_dict(3)
    next(batches), next(batches)
    ours.stateful_state_dict(2)
    with pytest.raises(dlfs.InvalidArgument, match="num_workers"):
        ours.stateful_state_dict(-1)
    other = make(ds, 3, batch_size=8)
    next(iter(other))
    state, resumed = other.state_dict(), make(ds, 3)
    resumed.load_state_dict(state)
    with pytest.raises(dlfs.Unsupported, match="batches of 8"):
        resumed.stateful_state_dict()


@pytest.mark.parametrize("before, after", MATRIX)
def test_any_number_of_their_workers_goes_on_from_any_other_through_here(ds, before, after):
    """From between two rounds, and after the last batch."""
    everything, order = list(range(len(ds))), ("global", "grouped")[(before + after) % 2]
    for stop in (6, None):
        first, front = theirs(ds, before, 30, order=order), []
        for batch in first:
            front.append(batch)
            if len(front) == stop:
                break
        between = make(ds, before, 30, order=order)
        between.load_state_dict(first.state_dict())
        second = theirs(ds, after, 30, order=order)
        second.load_state_dict(through_json(between.stateful_state_dict(after)))
        rest = list(second)
        if stop is None:
            assert {epoch for _, epoch in rest} == {1} and sorted(ids_in(rest)) == everything
        else:
            assert {epoch for _, epoch in front + rest} == {0} and sorted(ids_in(front + rest)) == everything


@pytest.mark.parametrize(
    "workers, order, batch_size", [(1, "global", 133), (2, "grouped", 199), (3, "global", 133), (3, "grouped", 80)]
)
def test_the_last_states_of_an_epoch_load_here_also_where_some_workers_have_nothing_left(
    ds, workers, order, batch_size
):
    """The last round of an epoch can be one sample long: its other workers are then at the next epoch already."""
    loader, had = theirs(ds, workers, batch_size, order=order), []
    walked = make(ds, workers, batch_size, order=order)
    for ids, other in zip(loader, walked, strict=True):
        had.append(ids)
        assert ids == other
        state = loader.state_dict()
        ours = make(ds, 0, batch_size, order=order)
        ours.load_state_dict(state)
        assert ours.state_dict() == walked.state_dict(), len(had)
        rest = list(ours) if len(ids_in(had)) < len(ds) else []
        assert sorted(ids_in(had + rest)) == list(range(len(ds))), len(had)
        assert ours.state_dict()["epoch"] == 1, len(had)


def test_a_state_whose_workers_are_not_in_one_round_is_refused(ds):
    loader = theirs(ds, 3)
    batches = iter(loader)
    [next(batches) for _ in range(4)]
    state = loader.state_dict()
    workers = state["_snapshot"]["_worker_snapshots"]
    workers["worker_1"], workers["worker_0"] = workers["worker_0"], workers["worker_1"]
    with pytest.raises(dlfs.InvalidArgument, match="not in one round"):
        make(ds, 3).load_state_dict(state)
    state["_snapshot"]["_worker_snapshots"] = {}
    with pytest.raises(dlfs.InvalidArgument, match="no workers"):
        make(ds, 3).load_state_dict(state)
