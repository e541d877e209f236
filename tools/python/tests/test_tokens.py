"""Rows of tokens against a model: any ranks, any place to go on from, all arrays.

The model is rows_model.py, over the order that a sampler of all samples gives. DLFS_ROW_CASES=10000 tries more cases,
DLFS_ROW_SEED another seed.
"""

import functools
import io
import itertools
import json
import os
import pathlib
import pickle
import random
import sys
import tarfile
import threading

import numpy
import pytest

import dlfs
import dlfs.tokens
from conftest import SEED, command
from dlfs._dlfs import Sampler

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"))
from rows_model import arrays_of, rows_of  # noqa: E402

CASES = int(os.environ.get("DLFS_ROW_CASES", "60"))
FIRST = int(os.environ.get("DLFS_ROW_SEED", SEED))
LONGEST = 60
ARRAYS = ("segment_ids", "position_ids", "sample_ids")


def texts(count, seed, most=50_000):
    """(tokens, loss bytes) of some documents, of which a few are empty."""
    draw = random.Random(seed)
    lengths = [draw.choice([0, 1, draw.randrange(8), draw.randrange(LONGEST)]) for _ in range(count)]
    return [([draw.randrange(most) for _ in range(n)], [draw.randrange(2) for _ in range(n)]) for n in lengths]


def fields_of(tokens, loss, dtype, with_loss, with_count):
    yield "tok", numpy.array(tokens, dtype).tobytes()
    if with_loss:
        yield "loss", bytes(loss)
    if with_count:
        yield "count", b"%d" % len(tokens)


def make(folder, name, documents, dtype, with_loss=True, with_count=False):
    """Imports the documents; opens the image."""
    with tarfile.open(folder / f"{name}.tar", "w") as tar:
        for at, (tokens, loss) in enumerate(documents):
            for end, data in fields_of(tokens, loss, dtype, with_loss, with_count):
                member = tarfile.TarInfo(f"{at:04}.{end}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    kind = {"uint8": "u8", "uint16": "u16", "uint32": "u32", "int32": "i32"}[dtype]
    types = ["--field-type", f"tok:{kind}[*]"] + (["--field-type", "loss:u8[*]"] if with_loss else [])
    types += ["--field-column", "count=count:int"] if with_count else []
    image = folder / f"{name}.dlfs"
    command("import", "--from", "webdataset", folder / f"{name}.tar", image, *types, "--chunk-size", "64K", "--quiet")
    return dlfs.open(str(image))


class Corpus:
    """An open data set, its documents by id, and the options that every loader over it needs."""

    def __init__(self, dataset, documents, given):
        self.dataset, self.given = dataset, given
        self.documents = [(id, tokens, loss) for id, (tokens, loss) in enumerate(documents)]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    made = []
    for name, count, dtype, options, given in [
        ("pairs", 90, "uint16", {}, {"field": "tok"}),
        ("alone", 1200, "int32", {"with_loss": False}, {}),
        ("bytes", 40, "uint8", {"with_loss": False}, {}),
        ("counted", 70, "uint32", {"with_count": True}, {"field": "tok", "lengths": "count"}),
    ]:
        documents = texts(count, name, 200 if dtype == "uint8" else 50_000)
        made.append(Corpus(make(folder, name, documents, dtype, **options), documents, given))
    (folder / "raw").mkdir()
    documents = texts(60, "raw")
    for at, (tokens, _) in enumerate(documents):
        (folder / "raw" / f"{at:04}").write_bytes(numpy.array(tokens, "uint16").tobytes())
    command("import", folder / "raw", folder / "raw.dlfs", "--quiet")
    made.append(Corpus(dlfs.open(str(folder / "raw.dlfs")), documents, {"field": "u16"}))
    yield made
    for corpus in made:
        corpus.dataset.close()


def any_options(draw, corpus):
    options = {
        "seq_len": draw.choice([1, 8, 16, 24, 40, 96]),
        "pack": draw.choice(["concat", "best_fit", "none"]),
        "pack_window": draw.choice([1, 7, 32, 1000]),
        "order": draw.choice(["grouped", "global", "sequential"]),
        "seed": draw.randrange(99),
        "dtype": draw.choice(["i64", "i32", "u32", "u16"]),
        **corpus.given,
    }
    if options["order"] == "grouped":
        options["lanes"] = 8  # otherwise the first ranks would decide it
    if draw.random() < 0.6:
        options["separator"] = draw.randrange(50_000)
    if draw.random() < 0.5:
        options["pad"] = draw.randrange(50_000)
    has_loss = corpus.given.get("field") == "tok"
    options["loss_mask"] = "loss" if has_loss and draw.random() < 0.5 else True
    for name in ARRAYS:
        options[name] = draw.random() < 0.7
    options["phases"], start = [], 0
    for _ in range(draw.choice([0, 0, 1, 3])):
        start += draw.randrange(1, 20 * LONGEST)
        options["phases"].append((start, {"seq_len": draw.choice([1, 8, 16, 24, 40, 96])}))
    options["cp_size"] = draw.choice([1, 1, 2, 4])
    options["cp_zigzag"] = draw.random() < 0.5
    if any(length % (options["cp_size"] * 2) for length in lengths_of(options)):
        options["cp_size"] = 1
    options["cu_seqlens"] = options["cp_size"] == 1
    return options


def lengths_of(options):
    return [options["seq_len"], *(given["seq_len"] for _, given in options.get("phases", ()))]


def in_order(dataset, options, read, epoch):
    """The documents of an epoch, in the order of its samples."""
    plain = {name: options[name] for name in ("order", "seed", "lanes") if name in options}
    ids = Sampler(dataset, batch_size=len(dataset), **plain)
    ids.set_epoch(epoch)
    return [read(key) for key in ids.next()[0]]


def columns_of(options, inputs):
    """The columns that this rank of context parallelism has of rows that need so many inputs, and the inputs of all."""
    rank, size = options.get("cp_rank", 0), options.get("cp_size", 1)
    parts = [rank] if not options.get("cp_zigzag") or size == 1 else [rank, 2 * size - 1 - rank]
    each = -(-inputs // (size * len(parts)))
    return each * size * len(parts), numpy.concatenate([numpy.arange(part * each, (part + 1) * each) for part in parts])


def check(batch, rows, documents, options, epoch, inputs):
    inputs, columns = columns_of(options, inputs)
    expected = arrays_of(rows, documents, options, inputs)
    kind = {"i64": "int64", "i32": "int32", "u32": "uint32", "u16": "uint16"}[options.get("dtype", "i64")]
    assert batch.tokens.dtype == batch.labels.dtype == kind and batch.epoch == epoch
    assert batch.loss_mask is None or batch.loss_mask.dtype == bool
    for name in ("tokens", "labels", "loss_mask", *ARRAYS):
        got = getattr(batch, name)
        assert (got is not None) == bool(options.get(name, name in ("tokens", "labels"))), name
        if got is not None:
            assert got.tolist() == expected[name][:, columns].tolist(), name
    if options.get("cu_seqlens"):
        assert batch.cu_seqlens.tolist() == expected["cu_seqlens"]
        assert batch.max_seqlen == max(numpy.diff(expected["cu_seqlens"]))
    else:
        assert batch.cu_seqlens is batch.max_seqlen is None


def run(source, in_epoch, options, epoch, draw):
    """From place to place with other ranks and batches; `in_epoch` gives the documents of an epoch."""

    def model(epoch):
        documents = in_epoch(epoch)
        if options["loss_mask"] is True:
            documents = [(id, tokens, None) for id, tokens, _ in documents]
        return documents, rows_of(documents, options, options["seed"], epoch)

    documents, wanted = model(epoch)
    first = model(0)[1]
    at, state = 0, None
    while first.rows:
        ranks, steps = draw.randrange(1, 4), draw.randrange(1, 6)
        sizes = [draw.randrange(1, 6) for _ in lengths_of(options)]
        if not any(True for _ in first.batches(0, ranks, sizes)):
            continue  # a loader wants a batch in its first epoch
        whole = list(wanted.batches(at, ranks, sizes))
        for rank in range(ranks):
            cp = {"cp_rank": draw.randrange(options.get("cp_size", 1))}
            given = {**options, **cp, "batch_size": sizes[0], "rank": rank, "world_size": ranks}
            given["phases"] = [
                (start, {**phase, "batch_size": size})
                for (start, phase), size in zip(options.get("phases", ()), sizes[1:], strict=True)
            ]
            with dlfs.tokens.Loader(source, **given) as loader:
                loader.set_epoch(epoch) if state is None else loader.load_state_dict(state)
                assert loader.batches_left == len(whole)
                got = list(itertools.islice(loader, steps))
                assert len(got) == min(len(whole), steps)
                for (start, size), batch in zip(whole, got):
                    own, inputs = start + rank * size, max(wanted.inputs[start : start + ranks * size])
                    check(batch, wanted.rows[own : own + size], documents, {**options, **cp}, epoch, inputs)
                after = json.loads(json.dumps(loader.state_dict()))
        if len(got) == len(whole):
            assert (after["epoch"], after["consumed"]) == (epoch + 1, 0)
            return
        at, state = whole[len(got)][0], after
        assert (after["epoch"], after["consumed"]) == (epoch, at)
        if draw.random() < 0.3:
            del state["place"]


def test_rows_are_those_of_the_model_on_any_ranks_from_any_place(corpora):
    for case in range(CASES):
        draw = random.Random(FIRST + case)
        corpus = draw.choice(corpora)
        options, epoch = any_options(draw, corpus), draw.randrange(3)
        try:
            in_epoch = functools.partial(in_order, corpus.dataset, options, corpus.documents.__getitem__)
            run(corpus.dataset, in_epoch, options, epoch, draw)
        except Exception as error:
            raise AssertionError(f"DLFS_ROW_SEED={FIRST + case} {options}") from error


def test_so_are_those_of_views_and_mixtures(corpora, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    documents = [texts(30, "first"), texts(50, "second")]
    sets = [make(folder, f"set{at}", one, "uint16", with_loss=False) for at, one in enumerate(documents)]
    mixture = dlfs.Mixture([(sets[0], 0.6), (sets[1], 0.4)], epoch_size=100)
    for case, pack in enumerate(("concat", "best_fit", "none")):
        draw = random.Random(FIRST + case)
        options = {"seq_len": 24, "pack": pack, "pack_window": 40, "order": "global", "seed": 5, "separator": 9}
        options |= {"sample_ids": True, "loss_mask": True}

        def read(key):
            return key & ((1 << 40) - 1), documents[key >> 40][key & ((1 << 40) - 1)][0], None

        run(mixture, functools.partial(in_order, mixture, options, read), options, 1, draw)
        view = corpora[1].dataset.select("len > 40")
        ids = view.ids.tolist()
        chosen = functools.partial(in_order, view, options, lambda at: corpora[1].documents[ids[at]])
        run(view, chosen, options, 1, draw)


def test_weights_and_phases_of_a_mixture_count_tokens(tmp_path):
    documents = [[([7] * length, None)] * 40 for length in (10, 30)]
    sets = [make(tmp_path, f"set{at}", one, "uint16", with_loss=False) for at, one in enumerate(documents)]
    parts, phases = [(sets[0], 0.5), (sets[1], "0.5")], [(3e3, [1, 0]), (4000, [0, 1]), (12000, [1, 1])]
    mixture = dlfs.Mixture(parts, epoch_size=400, phases=phases, count="tokens")
    assert mixture.counts() == [150 + 100, 50 + 100], "3 : 1 for 200 documents, and 100 documents of 10 tokens"
    assert dlfs.Mixture(parts, epoch_size=400, count="tokens:tok:u16").counts() == [300, 100]
    assert dlfs.Mixture(parts, epoch_size=400).counts() == [200, 200]
    assert pickle.loads(pickle.dumps(mixture)).counts() == mixture.counts()
    with dlfs.tokens.Loader(mixture, seq_len=20, batch_size=2, epochs=1) as loader:
        sources = loader.plan()["sources"]
        assert [source["tokens"] for source in sources] == [2500, 4500]
        fresh = dlfs.Mixture(parts, epoch_size=400, phases=phases[:2] + [(9000, [2, 1])], count="tokens")
        next(iter(loader))
        with dlfs.tokens.Loader(fresh, seq_len=20, batch_size=2, epochs=1) as resumed:
            resumed.load_state_dict(loader.state_dict())
    for count, match in [("words", "samples, tokens"), ("lengths:words", "words"), ("tokens:ids", "no field ids")]:
        with pytest.raises((dlfs.InvalidArgument, dlfs.NotFound), match=match):
            dlfs.Mixture(parts, count=count)
    with pytest.raises(dlfs.InvalidArgument, match="phase 2 begins at 3000"):
        dlfs.Mixture(parts, phases=[(3000, [1, 0]), (3000, [0, 1])], count="tokens")
    for dataset in sets:
        dataset.close()


def test_epochs_follow_each_other_and_plans_count_them(corpora):
    corpus = corpora[0]
    options = {"seq_len": 16, "pack": "best_fit", "separator": 7, "order": "global", "seed": 3, "field": "tok"}
    with dlfs.tokens.Loader(corpus.dataset, batch_size=3, epochs=3, **options) as loader:
        sequences = []
        for epoch in range(3):
            documents = in_order(corpus.dataset, options, corpus.documents.__getitem__, epoch)
            rows = rows_of(documents, {**options, "pack_window": 16384}, 3, epoch).rows
            plan = loader.plan()
            assert (plan["rows"], len(loader)) == (len(rows), len(rows) // 3) and loader.epoch == epoch
            full = [len(tokens) for _, tokens, _ in documents if tokens]
            assert plan["documents"] == len(full) and plan["tokens"] == sum(full) + len(full)
            assert plan["padding"] == len(rows) * 17 - plan["tokens"] and plan["cuts"] == sum(n > 16 for n in full)
            part = next(iter(loader))  # a loop that is left early begins its epoch again
            batches = list(loader)
            assert batches[0].tokens.tolist() == part.tokens.tolist() and len(batches) == len(loader)
            sequences.append([batch.tokens.tolist() for batch in batches])
        assert list(loader) == [] and sequences[0] != sequences[1]
        loader.set_epoch(1)
        assert [batch.tokens.tolist() for batch in loader] == sequences[1]
        assert loader.stats()["samples"] > 0


def test_arrays_that_are_kept_do_not_change_and_others_are_used_again(corpora):
    torch = pytest.importorskip("torch")
    options = {"seq_len": 16, "batch_size": 2, "loss_mask": True, "field": "tok"}
    with dlfs.tokens.Loader(corpora[0].dataset, **options) as loader:
        expected = [batch.tokens.tolist() for batch in loader]
        loader.set_epoch(0)
        keep = [
            lambda batch: batch,
            lambda batch: batch.tokens[1:],
            lambda batch: batch.torch().tokens,
            lambda batch: torch.from_dlpack(batch.tokens),
            lambda batch: memoryview(batch.tokens[1]),
        ]
        kept = [(how, how(batch)) for how, batch in zip(itertools.cycle(keep), loader)]
        again = [how(batch) for (how, _), batch in zip(kept, _fresh(corpora[0].dataset, options))]
        for (_, one), other in zip(kept, again, strict=True):
            values = [getattr(each, "tokens", each).tolist() for each in (one, other)]
            assert values[0] == values[1]
        del kept, again, one, other
        loader.set_epoch(0)
        places = set()
        for batch, rows in zip(loader, expected, strict=True):
            assert batch.tokens.tolist() == rows and batch.labels.base is batch.tokens.base
            places.add(batch.tokens.ctypes.data)
        assert len(places) <= 4 < len(expected)


def _fresh(dataset, options):
    """The same batches, each of a loader of its own, so that no array is used twice."""
    for at in itertools.count():
        with dlfs.tokens.Loader(dataset, **options) as loader:
            for batch in itertools.islice(loader, at, at + 1):
                yield batch
                break
            else:
                return


def test_rows_become_tensors_over_the_same_memory_and_pickle(corpora):
    torch = pytest.importorskip("torch")
    given = dict.fromkeys((*ARRAYS, "cu_seqlens", "loss_mask"), True)
    with dlfs.tokens.Loader(corpora[1].dataset, 16, 2, dtype="i32", **given) as loader:
        rows = next(iter(loader))
        tensors = rows.torch()
        assert tensors.tokens.dtype == torch.int32 and tensors.loss_mask.dtype == torch.bool
        assert tensors.tokens.data_ptr() == rows.tokens.ctypes.data and tensors.max_seqlen == rows.max_seqlen
        assert (tensors.labels[:, :-1] == tensors.tokens[:, 1:]).all()
        assert pickle.loads(pickle.dumps(rows)).labels.tolist() == rows.labels.tolist()
        again = pickle.loads(pickle.dumps(loader))
        rest = [batch.tokens.tolist() for batch in again]
        assert rest == [batch.tokens.tolist() for batch in _after(loader)]
        again.close()


def _after(loader):
    """The batches after those that were taken."""
    loader.load_state_dict(loader.state_dict())
    return loader


def test_data_ranks_share_rows_and_threads_share_an_iterator(corpora):
    options = {"seq_len": 16, "batch_size": 2, "field": "tok", "seed": 1, "epochs": 1}
    dataset = corpora[0].dataset

    def read(**place):
        with dlfs.tokens.Loader(dataset, **options, **place) as loader:
            return [batch.tokens.tolist() for batch in loader]

    assert read(data_rank=1, data_world_size=2, rank=3, world_size=8) == read(rank=1, world_size=2)
    with pytest.raises(TypeError, match="together"):
        read(data_rank=1)
    with dlfs.tokens.Loader(dataset, **options) as loader:
        batches, seen = iter(loader), []
        threads = [
            threading.Thread(target=lambda: seen.extend(batch.tokens.tolist() for batch in batches)) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == sorted(read())
        older, newer = iter(loader), iter(loader)
        with pytest.raises(dlfs.InvalidArgument, match="another iteration"):
            next(older)
        assert list(newer) == []


def test_what_cannot_be_packed_is_refused_with_the_reason(corpora, ds):
    pairs, untyped = corpora[0].dataset, ds

    def refused(text, dataset=pairs, kind=dlfs.InvalidArgument, **given):
        given = {"seq_len": 16, "batch_size": 2, "order": "sequential", **given}
        given = {"field": "tok", **given} if dataset is pairs else given
        with pytest.raises(kind, match=text):
            with dlfs.tokens.Loader(dataset, **given) as loader:
                next(iter(loader))

    for text, given in REFUSED:
        refused(text, **given)
    refused("unexpected keyword argument 'on_error'", kind=TypeError, on_error="skip")
    refused("unexpected keyword argument 'drop_last'", kind=TypeError, drop_last=True)
    refused("no field nothing: samples have tok, loss", field="nothing", kind=dlfs.NotFound)
    refused("no field nothing: samples have tok, loss", loss_mask="nothing", kind=dlfs.NotFound)
    refused(r"token \d+ of the document is \d+, and the vocabulary has 10", kind=dlfs.Corrupt, vocabulary=10)
    refused("no field of the samples has tokens by its type", untyped)
    refused(r"document \d+ has \d*[13579] bytes, which are no whole number of tokens of 2", untyped, field="u16")
    with dlfs.tokens.Loader(pairs, 16, 2, field="tok", pack="best_fit") as loader:
        state = loader.state_dict()
        assert state["version"] == 4
        for other, text in [
            ({"seq_len": 17}, "the state's rows have a length of 16, and 17 was asked for"),
            ({"pack": "none"}, "packed by `best_fit`, and `none` was"),
            ({"separator": 3}, "no separator, and one separator was"),
            ({"pack_window": 5}, "windows have 16384 positions by length, and 5 were"),
        ]:
            given = {"seq_len": 16, "batch_size": 2, "field": "tok", "pack": "best_fit", **other}
            with pytest.raises(dlfs.InvalidArgument, match=text):
                dlfs.tokens.Loader(pairs, **given).load_state_dict(state)
        with pytest.raises(dlfs.InvalidArgument, match="a number of samples, and a budget was"):
            loader.load_state_dict(dlfs.Loader(pairs, 4).state_dict())
        with pytest.raises(dlfs.InvalidArgument, match="a budget of tokens, and none was"):
            dlfs.Loader(pairs, 4).load_state_dict(state)


REFUSED = [
    ("dtype is one of i64", {"dtype": "f32"}),
    ("no context-parallel rank 2", {"cp_rank": 2, "cp_size": 2}),
    ("cannot be cut into 3", {"cp_size": 3}),
    ("cu_seqlens are of whole rows", {"cp_size": 2, "cu_seqlens": True}),
    ("a row has a length of 1 to 16777215 tokens, not 0", {"seq_len": 0}),
    ("batch_size is at least 1", {"batch_size": 0}),
    ("pack_window is at least 1", {"pack_window": 0}),
    ('"5:seq_len=8,window=3" is no phase of rows', {"phases": [(5, {"seq_len": 8, "window": 3})]}),
    ("begins at 5 tokens, not after the one before", {"phases": [(9, {"seq_len": 8}), (5, {"seq_len": 4})]}),
    ("rows of 9 tokens cannot be cut into 2", {"phases": [(9, {"seq_len": 9})], "cp_size": 2}),
    ('"first_fit" is not "concat", "best_fit" or "none"', {"pack": "first_fit"}),
    ("the separator is token 70000, and the vocabulary has 60000", {"separator": 70_000, "vocabulary": 60_000}),
    ("the separator is token 70000, which an array of u16 does not hold", {"separator": 70_000, "dtype": "u16"}),
    ("the padding is token 70000, which an array of u16 does not hold", {"pad": 70_000, "dtype": "u16"}),
    ("several fields of the samples could have tokens: tok, loss", {"field": None}),
    ("field tok is of u16.*, and u32 was expected", {"field": "tok:u32"}),
    ("no byte for each token", {"loss_mask": "tok"}),
    ("no column", {"lengths": "nothing"}),
    ("this order gives each rank samples of its own", {"order": "local"}),
    (r"document \d+ has \d+ tokens, more than the 9 of a row", {"seq_len": 8, "pack": "best_fit", "too_long": "raise"}),
    ("no row can be filled", {"seq_len": 1_000_000}),
    ("no batch can be filled", {"batch_size": 10_000}),
]
