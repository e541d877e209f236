"""Views: ds.select, ds.split, dlfs.save_views and dlfs.open(view=)."""

import json
import pickle
import random
import shutil

import numpy as np
import pytest

import dlfs
from conftest import CLASSES, PER_CLASS, SEED, command

MASK = (1 << 64) - 1


def mix(z):
    """SplitMix64's output function."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def with_word(key, word):
    return mix(((key ^ mix(word)) + 0x9E3779B97F4A7C15) & MASK)


def part_of(id, seed, shares, splits=0):
    """The part of a sample, as src/format/view/mod.rs describes it."""
    key = mix((seed + 0x9E3779B97F4A7C15) & MASK)
    for word in (int.from_bytes(b"split", "big"), splits):
        key = with_word(key, word)
    position, end = with_word(key, id), 0.0
    for name, share in list(shares.items())[:-1]:
        end += share
        if position < int(end * 2.0**64):
            return name
    return list(shares)[-1]


def test_an_expression_selects_what_a_comprehension_selects(ds, source):
    for text, fits in (
        ("label in (1, 3) and len < 4096", lambda i: source.labels[i] in (1, 3) and len(source.contents[i]) < 4096),
        ("label == 'bee' or id < 5", lambda i: source.labels[i] == 1 or i < 5),
        ("not name glob '*[02468].bin'", lambda i: int(source.names[i][-5]) % 2 == 1),
    ):
        expected = [i for i in range(len(source)) if fits(i)]
        view = ds.select(text)
        assert len(view) == len(expected) and view.ids.tolist() == expected
        assert [bytes(sample) for sample in view[:20]] == [source.contents[i] for i in expected[:20]]
        assert list(view.names[:9]) == [source.names[i] for i in expected[:9]]
        assert len(view.view) == 32 and view.generation == ds.generation
    assert ds.view is None


def test_ids_select_samples_in_any_order_and_of_both_those_in_both(ds):
    ids = np.array([30, 2, 2, 105])
    assert ds.select(ids=ids).ids.tolist() == [2, 30, 105]
    assert ds.select("label == 0", ids=(n for n in ids)).ids.tolist() == [2, 30]
    view = ds.select(ids=[5, 7])
    assert view.select("id > 5").ids.tolist() == [7]
    with pytest.raises(dlfs.NotFound, match="no sample 6: it is deleted, or not in the view"):
        view.select(ids=[6])
    with pytest.raises(dlfs.NotFound, match="the sample was deleted, or is not in the view"):
        view.read_ranges([(6, 0, 1)])
    for wrong in ([1.5], ["a"], 3):
        with pytest.raises(TypeError):
            ds.select(ids=wrong)
    with pytest.raises(TypeError):
        ds.select()


def test_wrong_expressions_say_where(ds):
    for text, match in (
        ("label inn (3)", "at character 7 of the expression `label inn"),
        ("labl == 1", "no column `labl`"),
        ("label == 'cow'", "no class `cow` among 4: ant, bee, cat, dog"),
        ("len < 0", "none of 400 samples is selected"),
    ):
        with pytest.raises(dlfs.InvalidArgument, match=match):
            ds.select(text)


@pytest.mark.parametrize("order", ["grouped", "global", "sequential"])
def test_a_loader_reads_a_view_and_resumes_with_other_ranks(ds, source, order):
    print("seed", SEED)
    view = ds.select("label != 2")
    expected = [i for i in range(len(source)) if source.labels[i] != 2]
    draw = random.Random(SEED)
    for _ in range(4):
        loader = dlfs.Loader(view, draw.randrange(1, 20), order, seed=3)
        seen, stop = [], draw.randrange(1, len(loader))
        for batch in loader:
            for sample, id in zip(batch, batch.ids.tolist()):
                assert bytes(sample) == source.contents[id]
            seen += batch.ids.tolist()
            stop -= 1
            if stop == 0:
                break
        state = json.loads(json.dumps(loader.state_dict()))
        assert state["view"] == view.view and state["version"] == 2
        world_size = draw.randrange(1, 4)
        for rank in range(world_size):
            share = dlfs.Loader(view, 7, order, seed=3, rank=rank, world_size=world_size)
            share.load_state_dict(state)
            seen += [id for batch in share for id in batch.ids.tolist()]
        assert sorted(seen) == expected
        for other in (ds, ds.select("label == 2")):
            with pytest.raises(dlfs.InvalidArgument, match="counts samples of view"):
                dlfs.Loader(other, 7, order, seed=3).load_state_dict(state)


def test_a_split_is_the_one_that_its_definition_gives(ds):
    shares = {"train": 0.7, "val": 0.2, "test": 0.1}
    parts = ds.split(shares, seed=9)
    assert list(parts) == list(shares)
    for name, part in parts.items():
        assert part.ids.tolist() == [i for i in range(len(ds)) if part_of(i, 9, shares) == name]
    again = parts["train"].split({"a": 0.5, "b": 0.5}, seed=9)
    halves = {"a": 0.5, "b": 0.5}
    of_train = parts["train"].ids.tolist()
    assert again["a"].ids.tolist() == [i for i in of_train if part_of(i, 9, halves, 1) == "a"]
    assert set(ds.split({"few": 0.1})) == {"few", "rest"}
    by_folder = ds.split({"a": 0.5, "b": 0.5}, by="folder", seed=2)
    assert all(len(part) % PER_CLASS == 0 for part in by_folder.values())
    assert sum(map(len, by_folder.values())) == PER_CLASS * len(CLASSES)
    for shares, match in (
        ({"a": 0.9, "b": 0.05}, "sum to 1, and these to 0.95"),
        ({}, "sum to 1"),
        ({"a": -1.0, "b": 2.0}, "above 0"),
        ({"a": 0.9999999, "b": 0.0000001}, "part b"),
    ):
        with pytest.raises(dlfs.InvalidArgument, match=match):
            ds.split(shares)
    with pytest.raises(dlfs.InvalidArgument, match="by is"):
        ds.split({"a": 0.5, "b": 0.5}, by="nothing")


def test_parts_stay_when_samples_are_deleted_and_a_file_of_views_is_refused_then(image, tmp_path):
    copy = shutil.copy(image, tmp_path / "train.dlfs")
    with dlfs.open(copy) as ds:
        parts = ds.split({"train": 0.8, "val": 0.2}, by="name")
        before = {name: set(part.ids.tolist()) for name, part in parts.items()}
        dlfs.save_views(tmp_path / "parts", parts)
    with dlfs.open(copy, view=f"{tmp_path}/parts:val") as val:
        assert set(val.ids.tolist()) == before["val"] and val.view == parts["val"].view
    with pytest.raises(dlfs.InvalidArgument, match="behind a colon: train, val"):
        dlfs.open(copy, view=tmp_path / "parts")
    dlfs.delete(copy, [0, 1])
    with dlfs.open(copy) as ds:
        for name, part in ds.split({"train": 0.8, "val": 0.2}, by="name").items():
            assert set(part.ids.tolist()) == before[name] - {0, 1}
        with pytest.raises(dlfs.InvalidArgument, match="\"a:b\" is none"):
            dlfs.save_views(tmp_path / "other", {"a:b": ds})
        with pytest.raises(TypeError):
            dlfs.save_views(tmp_path / "other", {"a": 3})
    with pytest.raises(dlfs.Stale, match="the view is of generation 1, and the image is at generation 2"):
        dlfs.open(copy, view=f"{tmp_path}/parts:train")


def test_a_pickled_view_is_the_view(ds):
    view = ds.select("label == 1").split({"a": 0.5, "b": 0.5})["a"]
    again = pickle.loads(pickle.dumps(view))
    assert again.view == view.view and again.ids.tolist() == view.ids.tolist()
    loader = dlfs.Loader(view, 8, seed=4)
    next(iter(loader))
    other = pickle.loads(pickle.dumps(loader))
    assert other.state_dict() == loader.state_dict()
    ids = [id for batch in other for id in batch.ids.tolist()]
    assert len(ids) == len(view) - 8 and set(ids) < set(view.ids.tolist())


def test_closing_the_data_set_leaves_its_views_open(image, source):
    with dlfs.open(image) as ds:
        view = ds.select("id < 3")
    assert bytes(view[2]) == source.contents[2]
    view.close()
    with pytest.raises(dlfs.InvalidArgument):
        view.select("id < 3")


def test_files_of_a_view_are_those_of_its_samples(image, source, tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    with dlfs.open(image) as ds:
        dlfs.save_views(tmp_path / "bees", {"bees": ds.select("label == 'bee'")})
    fs = fsspec.filesystem("dlfs", address=image, view=str(tmp_path / "bees"), skip_instance_cache=True)
    assert fs.ls("", detail=False) == ["bee"]
    assert fs.cat("bee/0003.bin") == source.contents[PER_CLASS + 3]


@pytest.mark.parametrize("workers, method", [(0, None), (2, "fork"), (2, "spawn")])
def test_torch_reads_a_view_with_and_without_workers(ds, workers, method):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import dlfs.torch

    view = ds.select("label in (0, 3)")
    data = dlfs.torch.IterableDataset(view, 16, seed=2)
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=workers, multiprocessing_context=method
    )
    ids = [id for batch in loader for id in batch.ids.tolist()]
    assert sorted(ids) == view.ids.tolist()


@pytest.fixture(scope="module")
def table(source, tmp_path_factory):
    """The rows of a table, and the image that has them."""
    folder = tmp_path_factory.mktemp("columns")
    rows = [
        (name, number * 3 - 200, number / 8, number / 8, ("de", "en", "")[number % 3], number % 2 == 0)
        for number, name in enumerate(source.names)
    ]
    lines = ["file,n,score,small:f32,lang,good"] + [",".join(map(str, row)) for row in rows if row[1] % 5]
    (folder / "table.csv").write_text("\n".join(lines))
    path = folder / "columns.dlfs"
    command("import", source.root, path, "--columns", folder / "table.csv", "--quiet")
    return rows, str(path)


def test_typed_columns_come_as_arrays_from_memory(table):
    rows, path = table
    with dlfs.open(path) as ds:
        assert ds.columns == {"n": "int", "score": "float", "small": "f32", "lang": "str", "good": "bool"}
        n, score, small = ds.column("n"), ds.column("score"), ds.column("small")
        assert (n.dtype, score.dtype, small.dtype) == (np.int16, np.float64, np.float32)
        assert ds.column("good").dtype == ds.column("lang").dtype == np.int8
        none = np.iinfo(np.int16).min
        assert n.tolist() == [row[1] if row[1] % 5 else none for row in rows]
        assert np.array_equal(score, [row[2] if row[1] % 5 else np.nan for row in rows], equal_nan=True)
        assert not n.flags.writeable and not n.flags.owndata
        assert ds.texts("lang") == ("de", "en") and ds.texts("n") == ()
        langs = [ds.texts("lang")[code] if code >= 0 else "" for code in ds.column("lang")]
        assert langs == [row[4] if row[1] % 5 else "" for row in rows]
        assert ds.values(1) == {"n": -197, "score": 0.125, "small": 0.125, "lang": "en", "good": False}
        assert ds.values(0) == dict.fromkeys(ds.columns)
        with pytest.raises(dlfs.NotFound, match="no typed column \"m\": there are n, score"):
            ds.column("m")
        view = ds.select("n > 100 and lang == 'de' and score < 44.5")
        expected = [i for i, row in enumerate(rows) if row[1] > 100 and row[1] % 5 and row[4] == "de" and row[2] < 44.5]
        assert view.ids.tolist() == expected and len(expected) > 10
        for batch in dlfs.Loader(view, batch_size=7, order="global", seed=3):
            for copy in (batch, pickle.loads(pickle.dumps(batch))):
                ids = copy.ids
                assert copy.columns == tuple(ds.columns)
                assert copy.column("n").tolist() == n[ids].tolist() and copy.column("n").dtype == np.int64
                assert copy.column("score").tolist() == score[ids].tolist()
                assert copy.column("small").dtype == np.float32
                assert copy.column("small").tolist() == small[ids].tolist()
        blank = ds.read_batch([0, 1])
        assert blank.column("n").tolist() == [dlfs.NO_LABEL, -197] and np.isnan(blank.column("score")[0])
        with pytest.raises(dlfs.NotFound, match="no typed column"):
            blank.column("label")
    n_after = n.sum()  # the array keeps its memory
    assert n_after == n.sum()


def test_typed_columns_come_as_tensors(table):
    torch = pytest.importorskip("torch")
    import dlfs.torch

    rows, path = table
    with dlfs.open(path) as ds:
        batches = dlfs.torch.IterableDataset(ds, 50, transform=dlfs.torch.TensorBatch.of)
        for batch in torch.utils.data.DataLoader(batches, batch_size=None, num_workers=1):
            assert batch.columns["n"].dtype == torch.int64 and batch.columns["small"].dtype == torch.float32
            assert batch.columns["n"].tolist() == [
                rows[i][1] if rows[i][1] % 5 else dlfs.NO_LABEL for i in batch.ids.tolist()
            ]
            moved = batch.to("cpu")
            assert moved.columns["n"].tolist() == batch.columns["n"].tolist()
