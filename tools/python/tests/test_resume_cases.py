"""Resuming mixtures and views against models: any point, any ranks, any batch, thousands of times.

The models take samples one by one, from the frozen descriptions in tests/golden; what they are compared with are the
ids of loaders, without their bytes. DLFS_RESUME_CASES=10000 tries more of each, DLFS_RESUME_SEED another seed.
"""

import json
import os
import pathlib
import random
import sys

import pytest

import dlfs
from conftest import SEED, command
from dlfs._dlfs import Sampler

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"))
from mixtures import sequence  # noqa: E402
from permutation import derive, permutation  # noqa: E402

CASES = int(os.environ.get("DLFS_RESUME_CASES", "150"))
FIRST = int(os.environ.get("DLFS_RESUME_SEED", SEED))
LENS = (60, 17, 5)
# Words of keys: of the global order, and of a mixture's sources. Bits of a key below the source.
GLOBAL, SOURCE, SOURCE_BITS = 1, 7, 40


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    root, opened = tmp_path_factory.mktemp("resume"), []
    for number, length in enumerate(LENS):
        folder = root / f"files{number}" / "class"
        folder.mkdir(parents=True)
        for i in range(length):
            (folder / f"{i:03}").write_bytes(bytes([i]) * (1 + i))
        command("import", folder.parent, root / f"set{number}.dlfs", "--quiet")
        opened.append(dlfs.open(root / f"set{number}.dlfs"))
    yield opened
    for dataset in opened:
        dataset.close()


def shuffled(order, length, seed, epoch):
    """What is at each position of an epoch over so many samples."""
    if order == "sequential" or length < 2:
        return range(length)
    forward = permutation(length, derive(seed, [GLOBAL, epoch]))
    return [forward(position) for position in range(length)]


def taken(whole, at, rank, ranks, batch, tail):
    """The batches of a rank from `at` to the end of an epoch, sample by sample."""
    mine, left = [], len(whole) - at
    for position in range(rank, left, ranks):
        mine.append(whole[at + position])
    if tail == "drop_last":
        mine = mine[: left // ranks]
    elif tail == "pad" and len(mine) < -(-left // ranks):
        mine.append(whole[(at + rank + len(mine) * ranks) % len(whole)])
    batches = [mine[start : start + batch] for start in range(0, len(mine), batch)]
    if tail == "drop_last" and batches and len(batches[-1]) < batch:
        batches.pop()
    return batches


def follow(draw, make, epochs, told):
    """Reads from place to place, each time with other ranks and batches, and compares with the epochs of the model."""
    epoch, at, state = draw.randrange(len(epochs)), 0, None
    for _ in range(draw.randrange(2, 5)):
        whole = epochs[epoch]
        ranks, batch = draw.randrange(1, 5), draw.choice([1, 3, 8, draw.randrange(1, 30)])
        steps, tail = draw.randrange(1, 5), draw.choice([None, None, "drop_last", "pad"])
        told.append((epoch, at, ranks, batch, steps, tail))
        each = [taken(whole, at, rank, ranks, batch, tail) for rank in range(ranks)]
        for rank in draw.sample(range(ranks), min(ranks, 2)):
            run = make(batch_size=batch, rank=rank, world_size=ranks, **({tail: True} if tail else {}))
            run.load_state_dict(state) if state else run.set_epoch(epoch)
            assert run.batches_left == len(each[rank])
            assert [run.next()[0] for _ in each[rank][:steps]] == each[rank][:steps]
        at_end = [steps >= len(batches) for batches in each]
        if any(steps > len(batches) for batches in each) or any(at_end) != all(at_end):
            return  # a job saves its state where all ranks have had equally many batches
        epoch, at = (epoch + 1, 0) if all(at_end) else (epoch, at + steps * batch * ranks)
        state = json.loads(json.dumps(run.state_dict()))
        assert (state["epoch"], state["consumed"]) == (epoch, at)
        if epoch == len(epochs):
            return


def a_mixture(draw, sets):
    """A mixture, its options, and its epochs as keys of samples."""
    some = draw.sample(range(len(sets)), draw.randrange(1, len(sets) + 1))
    size, seed = draw.randrange(4, 60), draw.randrange(1 << 40)
    batching, unit = draw.choice(["stratified", "random", "per_source"]), 1
    if batching == "per_source":
        unit = draw.randrange(1, 5)
        size = size // unit * unit
    weights = [str(draw.choice([1, 2, 5, 0.3, 0.25])) for _ in some]
    phases = []
    if draw.random() < 0.3:
        later = [str(draw.choice([0, 1, 3, 0.5])) for _ in some]
        if set(later) != {"0"}:
            phases = [(draw.randrange(1, 5) * unit * 3, later)]
    order = draw.choice(["global", "sequential"])
    how = batching if unit == 1 and batching != "per_source" else f"per_source:{unit}"
    pairs = [(LENS[source], weight) for source, weight in zip(some, weights)]
    drawn = sequence(pairs, size, how, phases, seed, 2)
    made = dlfs.Mixture(
        [(sets[source], weight) for source, weight in zip(some, weights)],
        epoch_size=size, phases=phases,
        batching=batching if batching != "per_source" else ("per_source", unit),
    )
    orders = {}

    def key(source, of_source, position):
        if (source, of_source) not in orders:
            own = derive(seed, [SOURCE, source])
            orders[source, of_source] = shuffled(order, LENS[some[source]], own, of_source)
        return source << SOURCE_BITS | orders[source, of_source][position]

    keys = [key(*one) for one in drawn]
    return made, {"order": order, "seed": seed}, [keys[:size], keys[size:]], unit


def test_a_mixture_goes_on_at_any_point_as_the_model_does(sets):
    for case in range(CASES):
        draw, told = random.Random(FIRST + case), []
        mixture, options, epochs, unit = a_mixture(draw, sets)
        told.append((options, mixture._made_of[1:], unit))
        try:
            if unit > 1:
                # Batches of one source go to ranks as wholes: compared one by one, in batches of a unit.
                follow_units(draw, mixture, options, epochs, unit)
            else:
                follow(draw, lambda **given: Sampler(mixture, **options, **given), epochs, told)
        except Exception as error:
            raise AssertionError(f"DLFS_RESUME_SEED={FIRST + case}: {told}") from error


def follow_units(draw, mixture, options, epochs, unit):
    whole, times = epochs[0], draw.randrange(1, 4)
    run = Sampler(mixture, **options, batch_size=unit)
    stop = draw.randrange(len(whole) // unit)
    front = [run.next()[0] for _ in range(stop)]
    again = Sampler(mixture, **options, batch_size=unit * times)
    again.load_state_dict(json.loads(json.dumps(run.state_dict())))
    rest = [again.next()[0] for _ in range(again.batches_left)]
    assert sum(front, []) + sum(rest, []) == whole
    assert all(len(batch) == unit * times for batch in rest[:-1])


def test_a_view_goes_on_at_any_point_as_the_model_does(sets):
    for case in range(CASES):
        draw, told = random.Random(FIRST + case), []
        chosen = sorted(draw.sample(range(LENS[0]), draw.randrange(1, LENS[0] + 1)))
        order, seed = draw.choice(["global", "sequential"]), draw.randrange(1 << 40)
        told.append((order, seed, chosen))
        view = sets[0].select(ids=chosen)
        assert view.ids.tolist() == chosen
        # A sampler gives indices, which count the samples of the view.
        epochs = [list(shuffled(order, len(chosen), seed, epoch)) for epoch in range(2)]
        try:
            follow(draw, lambda **given: Sampler(view, order=order, seed=seed, **given), epochs, told)
        except Exception as error:
            raise AssertionError(f"DLFS_RESUME_SEED={FIRST + case}: {told}") from error
        finally:
            view.close()
