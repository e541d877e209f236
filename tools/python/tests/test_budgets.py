"""Batches by tokens against a model: any ranks, any workers, any place to go on from.

The model is tests/golden/budgets.py, over the order that a sampler of all samples gives. DLFS_BUDGET_CASES=10000 tries
more cases, DLFS_BUDGET_SEED another seed.
"""

import itertools
import os
import pathlib
import random
import sys

import numpy
import pytest

import dlfs
from conftest import SEED, command

torch = pytest.importorskip("torch", reason="torch is not installed")

import dlfs.torch  # noqa: E402
from dlfs._dlfs import Sampler  # noqa: E402
from test_resume import ids_of, through_json  # noqa: E402
from test_worker_cases import InProcess, forked  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"))
from budgets import batches_of  # noqa: E402

CASES = int(os.environ.get("DLFS_BUDGET_CASES", "60"))
FIRST = int(os.environ.get("DLFS_BUDGET_SEED", SEED))


@pytest.fixture(scope="module")
def texts(source, tmp_path_factory):
    """The samples of `source` with their numbers of words as a column, and columns that hold none."""
    folder = tmp_path_factory.mktemp("budgets")
    rows = ["file,words,minus,gaps,score"]
    for id, (name, data) in enumerate(zip(source.names, source.contents)):
        rows.append(f"{name},{len(data) // 6},{-1 if id == 5 else 1},{'' if id == 6 else 1},0.5")
    (folder / "table.csv").write_text("\n".join(rows))
    path = folder / "texts.dlfs"
    command("import", source.root, path, "--chunk-size", "64K", "--columns", folder / "table.csv", "--quiet")
    with dlfs.open(str(path)) as ds:
        yield ds


def tokens_of(ds, options):
    if options.get("lengths"):
        return ds.column("words")[ds.ids].tolist()
    each = options.get("token_bytes", 1)
    return [-(-ds.length(int(id)) // each) for id in ds.ids]


def any_options(draw):
    options = {
        "order": draw.choice(["grouped", "global", "sequential"]),
        "seed": draw.randrange(99),
        "bucket_window": draw.choice([1, 50, 100, 400, 8192, draw.randrange(1, 500)]),
    }
    if options["order"] == "grouped":
        options["lanes"] = 8  # otherwise the first ranks would decide it
    if draw.random() < 0.5:
        options["batch_tokens"] = draw.randrange(9000, 90_000)
    elif draw.random() < 0.5:
        options.update(batch_tokens=draw.randrange(1500, 20_000), lengths="words")
    else:
        options.update(batch_tokens=draw.randrange(2250, 30_000), token_bytes=4)
    if draw.random() < 0.3:
        options["max_batch"] = draw.randrange(1, 30)
    if draw.random() < 0.3:
        options["batch_cost"] = "sum"
    return options


def model(ds, options, epoch):
    """The batches of an epoch, of all ranks."""
    plain = {name: options[name] for name in ("order", "seed", "lanes") if name in options}
    ids = Sampler(ds, batch_size=len(ds), **plain)
    ids.set_epoch(epoch)
    sequence, _ = ids.next()
    tokens = tokens_of(ds, options)
    cut = batches_of(
        [tokens[at] for at in sequence], options["batch_tokens"], options["bucket_window"],
        options.get("max_batch"), options.get("batch_cost") != "sum", options["seed"], epoch,
    )
    return [[sequence[at] for at in batch] for batch in cut]


def taken_by(rank, ranks, batches, all, tail):
    """What a rank has of the batches that are left of all those of the epoch."""
    rounds = [batches[at : at + ranks] for at in range(0, len(batches), ranks)]
    if rounds and len(rounds[-1]) < ranks:
        if tail == "drop_last":
            rounds.pop()
        elif tail == "pad":
            again = itertools.cycle(all)
            rounds[-1] = rounds[-1] + [next(again) for _ in range(ranks - len(rounds[-1]))]
    return [one[rank] for one in rounds if rank < len(one)]


def run(ds, draw):
    """From place to place with other ranks, by samplers and by loaders."""
    options, epoch = any_options(draw), draw.randrange(3)
    all = model(ds, options, epoch)
    at, state = 0, None
    while at < len(all):
        ranks, steps = draw.randrange(1, 5), draw.randrange(1, 6)
        tail = draw.choice([None, "drop_last", "pad"])
        given = {**options, **({tail: True} if tail else {})}
        for rank in range(ranks):
            expected = taken_by(rank, ranks, all[at:], all, tail)
            kind = dlfs.Loader if draw.random() < 0.1 else Sampler
            run = kind(ds, batch_size=None, rank=rank, world_size=ranks, **given)
            if state is None:
                run.set_epoch(epoch)
            else:
                run.load_state_dict(state)
            assert run.batches_left == len(expected)
            if kind is dlfs.Loader:
                got = [batch.ids.tolist() for batch in itertools.islice(run, steps)]
            else:
                got = [run.next()[0] for _ in expected[:steps]]
            assert got == expected[:steps]
            if rank == 0:
                after = through_json(run.state_dict())
        if not taken_by(0, ranks, all[at:], all, tail):
            break
        at = min(at + steps * ranks, len(all))
        if tail == "drop_last" and len(all) - at < ranks:
            assert (after["epoch"], after["consumed"]) == (epoch + 1, 0)
            break
        consumed = sum(map(len, all[:at]))
        place = (epoch, consumed) if at < len(all) else (epoch + 1, 0)
        assert (after["epoch"], after["consumed"]) == place
        state = after


def test_batches_are_those_of_the_model_with_any_ranks_and_workers_from_any_place(texts, monkeypatch):
    monkeypatch.setattr(dlfs.torch, "set_up_worker", lambda: None)  # it is for the process of a worker
    for case in range(CASES):
        draw = random.Random(FIRST + case)
        try:
            run(texts, draw)
            if case % 10 == 0:
                run_workers(texts, draw, InProcess)
        except Exception as error:
            raise AssertionError(f"DLFS_BUDGET_SEED={FIRST + case}") from error


def pairs(items):
    """Items as `ids_of` makes them: torch gives lists for tuples."""
    return [(ids, of) for ids, of in items]


def run_workers(ds, draw, kind):
    options, epoch = any_options(draw), draw.randrange(2)
    all = model(ds, options, epoch)
    at, state = 0, None
    while at < len(all):
        workers, stop = draw.randrange(4), draw.randrange(1 + len(all))
        data = dlfs.torch.IterableDataset(ds, transform=ids_of, **options)
        loader = kind(data, workers)
        loader.set_epoch(epoch) if state is None else loader.load_state_dict(state)
        if state is None:
            assert len(loader) == len(all)
        got = pairs(itertools.islice(loader, stop))
        assert got == [(batch, epoch) for batch in all[at : at + stop]]
        at += len(got)
        state = through_json(loader.state_dict())
        consumed = sum(map(len, all[:at]))
        place = (epoch, consumed) if at < len(all) else (epoch + 1, 0)
        assert (state["epoch"], state["consumed"]) == place


def test_so_are_those_of_real_workers(texts):
    for case in range(2):
        print("DLFS_BUDGET_SEED", FIRST + case)
        run_workers(texts, random.Random(FIRST + case), forked)


def test_each_sample_comes_once_and_epochs_advance_with_exact_lengths(texts):
    options = {"batch_tokens": 30_000, "bucket_window": 20, "seed": 3}
    loader = forked(dlfs.torch.IterableDataset(texts, transform=ids_of, **options), 2)
    lengths = set()
    for epoch in range(5):
        length, batches = len(loader), list(loader)
        assert length == len(batches) and {of for _, of in batches} == {epoch}
        assert sorted(id for ids, _ in batches for id in ids) == list(range(len(texts)))
        lengths.add(length)
    assert len(lengths) > 1, "epochs differ, and the lengths follow them"


def test_a_sampler_of_batches_draws_the_same_for_any_data_set(texts):
    options = {"batch_tokens": 30_000, "bucket_window": 100, "seed": 3, "order": "global"}
    items = dlfs.torch.Dataset(texts, transform=lambda view, label: len(view))
    sampler = dlfs.torch.BatchSampler(texts, **options)
    loader = dlfs.torch.DataLoader(items, batch_sampler=sampler, num_workers=2, collate_fn=list)
    all = model(texts, options, 0)
    assert len(loader) == len(all)
    lengths = tokens_of(texts, options)
    front = list(itertools.islice(loader, 5))
    assert front == [[lengths[at] for at in batch] for batch in all[:5]]
    assert loader.state_dict()["consumed"] == sum(map(len, all[:5]))


def test_the_length_of_a_sampler_is_that_of_the_epoch_it_draws_next(texts):
    options = {"batch_tokens": 30_000, "bucket_window": 20, "seed": 3, "order": "grouped"}
    sampler = dlfs.torch.BatchSampler(texts, **options)
    lengths = []
    for _ in range(5):
        lengths.append(len(sampler))
        assert len(list(sampler)) == lengths[-1]
    assert len(set(lengths)) > 1, "epochs differ"
    sampler.set_epoch(1)
    front = list(itertools.islice(sampler, 2))
    sampler.load_state_dict(through_json(sampler.state_dict()))
    assert len(sampler) == lengths[1] == len(front) + len(list(sampler))


@pytest.mark.parametrize("workers, after", [(2, 3), (3, 0), (0, 2), (2, 2)])
def test_states_go_to_a_stateful_data_loader_and_back(texts, workers, after):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    options = {"batch_tokens": 30_000, "bucket_window": 100, "seed": 3}
    all = [(batch, 0) for batch in model(texts, {**options, "order": "grouped"}, 0)]

    def theirs(workers):
        data = dlfs.torch.IterableDataset(texts, transform=ids_of, **options)
        method = "fork" if workers else None
        return stateful.StatefulDataLoader(
            data, batch_size=None, num_workers=workers, multiprocessing_context=method
        )

    for stop in (1, 6, len(all) - 3):
        ours = forked(dlfs.torch.IterableDataset(texts, transform=ids_of, **options), workers)
        assert pairs(itertools.islice(ours, stop)) == all[:stop]
        again = theirs(after)
        again.load_state_dict(through_json(ours.stateful_state_dict(after)))
        batches = iter(again)
        assert pairs(itertools.islice(batches, 2)) == all[stop : stop + 2]
        state = again.state_dict()
        del batches
        back = forked(dlfs.torch.IterableDataset(texts, transform=ids_of, **options), workers)
        back.load_state_dict(state)
        assert pairs(back) == all[stop + 2 :]


@pytest.mark.parametrize("given, text", [
    ({"batch_tokens": 0}, "batch_tokens is at least 1, not 0"),
    ({"batch_tokens": -5}, "batch_tokens: -5 is out of range"),
    ({"batch_tokens": 10, "token_bytes": 0}, "token_bytes is at least 1"),
    ({"batch_tokens": 10, "bucket_window": 0}, "bucket_window is at least 1"),
    ({"batch_tokens": 10, "bucket_window": 1 << 30}, "windows of 1 to"),
    ({"batch_tokens": 10, "max_batch": 0}, "max_batch is at least 1"),
    ({"batch_tokens": 10, "batch_size": 4}, "not both"),
    ({"batch_tokens": 100}, r"sample \d+ has \d+ tokens, more than the 100"),
    ({"batch_tokens": 10, "lengths": "word"}, "no column \"word\" with lengths: those of ints are words, minus, gaps"),
    ({"batch_tokens": 10, "lengths": "score"}, "holds no ints"),
    ({"batch_tokens": 10, "lengths": "minus"}, "the length of sample 5 is -1"),
    ({"batch_tokens": 10, "lengths": "gaps"}, "sample 6 has no value in \"gaps\""),
    ({"batch_tokens": 10, "lengths": "words", "token_bytes": 2}, "give one of both"),
    ({"batch_tokens": 10, "batch_cost": "max"}, "\"padded\" or \"sum\""),
    ({"batch_tokens": 10, "too_long": "drop"}, "\"raise\" or \"alone\""),
    ({"batch_tokens": 10_000, "order": "local"}, "samples of its own"),
    ({"batch_tokens": 10_000, "shard": "aligned"}, "leave the shares out"),
    ({"batch_size": 8, "bucket_window": 5}, "bucket_window is of batches by tokens"),
    ({"batch_size": 8, "lengths": "words"}, "lengths is of batches by tokens"),
    ({}, "give batch_size or batch_tokens"),
])
def test_what_cannot_be_kept_is_refused_before_the_first_batch(texts, given, text):
    for make in (dlfs.Loader, dlfs.torch.IterableDataset, dlfs.torch.BatchSampler):
        with pytest.raises(dlfs.InvalidArgument, match=text):
            make(texts, **given)


def test_a_sample_that_is_too_long_can_be_a_batch_of_its_own(texts):
    lengths = tokens_of(texts, {})
    limit = sorted(set(lengths))[-3]
    with dlfs.Loader(texts, batch_tokens=limit, too_long="alone", epochs=1) as loader:
        batches = [batch.ids.tolist() for batch in loader]
    alone = [batch for batch in batches if max(lengths[at] for at in batch) > limit]
    assert len(alone) == sum(length > limit for length in lengths) and all(len(batch) == 1 for batch in alone)
    assert sorted(itertools.chain(*batches)) == list(range(len(texts)))


def test_states_of_other_batches_are_refused_with_the_difference(texts):
    with dlfs.Loader(texts, batch_tokens=20_000, bucket_window=90) as loader:
        first = next(iter(loader))
        state = loader.state_dict()
        assert state["version"] == 3 and state["consumed"] == len(first)
        assert state["budget"]["tokens"] == 20_000 and state["budget"]["window"] == 90
        options = {"order": "grouped", "seed": 0, "batch_tokens": 20_000, "bucket_window": 90}
        ends = list(itertools.accumulate(map(len, model(texts, options, 0))))
        assert ends[0] == len(first)
        within = next(at for at in range(1, len(texts)) if at not in ends)
        with pytest.raises(dlfs.InvalidArgument, match="within a batch"):
            loader.load_state_dict({**state, "consumed": within})
        for other, text in (
            ({"batch_tokens": 20_001, "bucket_window": 90}, "20000 tokens, and 20001"),
            ({"batch_tokens": 20_000, "bucket_window": 91}, "90 positions by length"),
            ({"batch_tokens": 20_000, "bucket_window": 90, "max_batch": 9}, "any number of samples, and at most 9"),
            ({"batch_tokens": 20_000, "bucket_window": 90, "batch_cost": "sum"}, "padded cost"),
            ({"batch_tokens": 20_000, "bucket_window": 90, "lengths": "words"}, "lengths are others"),
            ({"batch_size": 9}, "none was asked for"),
        ):
            with pytest.raises(dlfs.InvalidArgument, match=text):
                dlfs.Loader(texts, **other).load_state_dict(state)
        plain = dlfs.Loader(texts, 9).state_dict()
        with pytest.raises(dlfs.InvalidArgument, match="a number of samples"):
            loader.load_state_dict(plain)


def sources_and_ids(batch):
    return numpy.stack((batch.sources, batch.ids), axis=1).tolist()


def test_views_weights_and_mixtures_have_batches_by_tokens(texts):
    view = texts.select("label in (1, 2) and len < 5000")
    options = {"batch_tokens": 5000, "bucket_window": 60, "seed": 2}
    with dlfs.Loader(view, **options) as loader:
        batches = [batch.ids.tolist() for batch in loader]
    expected = model(view, {**options, "order": "grouped"}, 0)
    ids = view.ids.tolist()
    assert batches == [[ids[at] for at in batch] for batch in expected]
    weights = numpy.ones(len(texts))
    with dlfs.Loader(texts, batch_tokens=9000, order="weighted", weights=weights, epoch_size=50) as loader:
        epoch = list(loader)
    assert sum(len(batch) for batch in epoch) == 50
    assert all(int(numpy.diff(batch.offsets).max()) * len(batch) <= 9000 for batch in epoch)
    mixture = dlfs.Mixture([(texts, 0.7), (view, 0.3)], epoch_size=200)
    options = {"order": "global", "seed": 2}
    with dlfs.Loader(mixture, 200, epochs=1, **options) as loader:
        [sequence] = [sources_and_ids(batch) for batch in loader]
    tokens = [texts.length(id) for _, id in sequence]  # a view keeps the ids
    expected = [[sequence[at] for at in batch] for batch in batches_of(tokens, 30_000, 60, None, True, 2, 0)]
    for workers in (0, 2):
        data = dlfs.torch.IterableDataset(
            mixture, batch_tokens=30_000, bucket_window=60, epochs=1, transform=sources_and_ids, **options
        )
        assert list(dlfs.torch.DataLoader(data, num_workers=workers)) == expected
    with pytest.raises(dlfs.InvalidArgument, match="more than the 9 of a batch"):
        dlfs.Loader(mixture, batch_tokens=9)
