"""States of dlfs.torch.DataLoader for torchdata's StatefulDataLoader, in the middle of an epoch."""

import itertools

import pytest

import dlfs

torch = pytest.importorskip("torch", reason="torch is not installed")
stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

import dlfs.torch  # noqa: E402
from test_resume import ids_in, ids_of, make, through_json  # noqa: E402


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


def test_workers_of_another_number_go_on_between_rounds(ds):
    everything = list(range(len(ds)))
    for before, after in ((0, 2), (2, 3), (3, 0), (3, 1)):
        ours = make(ds, before)
        front = list(itertools.islice(ours, 6))
        again = theirs(ds, after)
        again.load_state_dict(ours.stateful_state_dict(after))
        assert sorted(ids_in(front + list(again))) == everything, (before, after)


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
