"""Samples of several fields, with and without types: by name, as mappings, as arrays, in torch, Grain and fsspec."""

import importlib.util
import io
import pickle
import tarfile
from collections.abc import Mapping

import numpy as np
import pytest

import dlfs
import dlfs.grain
from conftest import command

COUNT = 8
FIELDS = ("cls", "jpg", "txt")


def content(i):
    return {"cls": b"%d" % (i % 3), "jpg": b"image%d" % i, "txt": b"caption %d" % i if i != 6 else None}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """An image of samples with three fields; sample 6 has no caption. Samples lie in a folder."""
    root = tmp_path_factory.mktemp("three")
    with tarfile.open(root / "s.tar", "w") as tar:
        for i in range(COUNT):
            for end, data in content(i).items():
                if data is not None:
                    member = tarfile.TarInfo(f"part/{i:03d}.{end}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    command("import", "--from", "webdataset", root / "s.tar", root / "i.dlfs", "--quiet")
    return root / "i.dlfs"


def plain(sample):
    return {name: None if view is None else bytes(view) for name, view in sample.items()}


def test_a_sample_is_a_mapping_of_its_fields(three):
    with dlfs.open(three) as ds:
        assert bytes(ds[0]["jpg"]) == b"image0" and bytes(ds["part/003"]["cls"]) == b"0"
        for id in range(COUNT):
            for sample in (ds[id], pickle.loads(pickle.dumps(ds[id]))):
                assert isinstance(sample, Mapping) and sorted(sample) == list(FIELDS) == sorted(sample.keys())
                assert plain(sample) == content(id) and len(sample) == len(sample.values()) == 3
                assert "jpg" in sample and b"jpg" in sample and "png" not in sample and 3 not in sample
                assert sample.get("png") is None and sample.get("png", 7) == 7
                assert bytes(sample.get("jpg")) == bytes(sample[b"jpg"]) == b"image%d" % id
        assert {**ds[6]}["txt"] is None
        with pytest.raises(KeyError, match="png.*cls, jpg, txt"):
            ds[0]["png"]


def test_a_batch_gives_a_field_by_its_name_and_arrays_of_it(three):
    with dlfs.open(three) as ds:
        batch = ds.read_batch([3, 5, 6])
        assert [bytes(view) for view in batch["jpg"]] == [b"image3", b"image5", b"image6"]
        assert batch["txt"][2] is None and sorted(batch.fields) == list(FIELDS)
        for part in (batch.select("jpg"), pickle.loads(pickle.dumps(batch.select("jpg")))):
            assert part.fields == () and part.array.shape == (3, 6)
            assert part.tobytes() == [b"image3", b"image5", b"image6"]
            assert part.ids.tolist() == [3, 5, 6] and part.nbytes == 18
        pair = batch.select(("txt", "cls"))
        for part in (pair, pickle.loads(pickle.dumps(pair))):
            assert part.fields == ("txt", "cls") and plain(part[0]) == {"txt": b"caption 3", "cls": b"0"}
            assert list(part[0]) == ["txt", "cls"] and part.lengths.tolist() == [10, 10, 1]
            with pytest.raises(KeyError, match="jpg was not chosen.*txt, cls"):
                part[0]["jpg"]
            with pytest.raises(dlfs.InvalidArgument, match="txt, cls"):
                memoryview(part[0])
        view = batch.select("cls").data
        del batch, pair, part
        assert view.tobytes() == b"020", "it lives as long as its view"


WRONG = [
    ("png", dlfs.NotFound, "png.*cls, jpg, txt"),
    (("jpg", "png"), dlfs.NotFound, "png.*cls, jpg, txt"),
    ((), dlfs.InvalidArgument, "no field.*cls, jpg, txt"),
    (("jpg", "jpg"), dlfs.InvalidArgument, "jpg twice"),
    (3, TypeError, "fields.*3"),
    (("jpg", 3), TypeError, "fields.*3"),
]


@pytest.mark.parametrize("fields, kind, says", WRONG)
def test_a_wrong_field_is_named_with_those_there_are_before_the_first_batch(three, fields, kind, says):
    asked = [lambda: dlfs.open(three, fields=fields)]
    with dlfs.open(three) as ds:
        asked += [
            lambda: dlfs.Loader(ds, 4, fields=fields), lambda: ds.read_batch([1], fields=fields),
            lambda: ds.read_batch([1]).select(fields), lambda: dlfs.grain.DataSource(ds, fields=fields),
        ]
        if importlib.util.find_spec("torch") is None:
            print("SKIPPED: torch is not installed")
        else:
            of_torch = importlib.import_module("dlfs.torch")
            asked += [
                lambda: of_torch.Dataset(ds, fields=fields),
                lambda: of_torch.IterableDataset(ds, 4, fields=fields),
            ]
        for ask in asked:
            with pytest.raises(kind, match=says):
                ask()


def test_fields_of_what_has_none_are_refused(image):
    with dlfs.open(image) as ds:
        for fields in ("jpg", ("jpg",)):
            with pytest.raises(dlfs.NotFound, match="not divided"):
                dlfs.Loader(ds, 4, fields=fields)
        with pytest.raises(KeyError, match="not divided"):
            ds.read_batch([0])["jpg"]
        assert ds.read_batch([0]).fields == () and ds.chosen_fields is None


def test_a_loader_chooses_fields_of_its_own(three):
    with dlfs.open(three, fields="txt") as ds:
        for loader in (dlfs.Loader(ds, 3, fields=("jpg", "cls"), contiguous=True),
                       pickle.loads(pickle.dumps(dlfs.Loader(ds, 3, fields=("jpg", "cls"))))):
            seen = {}
            for batch in loader:
                seen.update((int(id), plain(sample)) for id, sample in zip(batch.ids, batch))
            assert seen == {id: {k: content(id)[k] for k in ("jpg", "cls")} for id in range(COUNT)}
        for batch in dlfs.Loader(ds, 3, fields="jpg"):
            assert batch.tobytes() == [b"image%d" % id for id in batch.ids]
        for batch in dlfs.Loader(ds, 3):
            assert batch.tobytes() == [content(id)["txt"] or b"" for id in batch.ids]
        out = bytearray(12)
        assert ds.read_batch([1, 2], out=out, fields="jpg").tolist() == [0, 6, 12] and out == b"image1image2"
        with pytest.raises(dlfs.InvalidArgument, match="jpg, cls"):
            ds.read_batch([1], out=out, fields=("jpg", "cls"))


def test_torch_takes_fields(three):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import dlfs.torch

    with dlfs.open(three) as ds:
        data, label = dlfs.torch.Dataset(ds)[6]
        assert data["jpg"].numpy().tobytes() == b"image6" and data["txt"] is None and label == 0
        assert set(dlfs.torch.Dataset(ds, fields=("jpg", "cls"))[6][0]) == {"jpg", "cls"}
        assert dlfs.torch.Dataset(ds, fields="jpg")[6][0].numpy().tobytes() == b"image6"
        tensors = dlfs.torch.TensorBatch.of(ds.read_batch([3, 6]))
        for moved in (tensors, tensors.to("cpu"), pickle.loads(pickle.dumps(tensors))):
            assert moved["jpg"].data.shape == (2, 6) and moved["jpg"][1].numpy().tobytes() == b"image6"
            assert moved["txt"].offsets.tolist() == [0, 9, 9] and len(moved) == 2
            assert moved.ids.tolist() == moved["cls"].ids.tolist() == [3, 6]
        for ask in (lambda: tensors.data, lambda: tensors.offsets, lambda: tensors[0]):
            with pytest.raises(dlfs.InvalidArgument, match="cls, jpg, txt"):
                ask()
        with pytest.raises(KeyError, match="png"):
            tensors["png"]
        for workers in (0, 2):
            data = dlfs.torch.IterableDataset(ds, 3, fields=("jpg", "txt"), transform=None if workers else plain_of)
            loader = torch.utils.data.DataLoader(
                data, batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None
            )
            found = sorted(
                data for batch in loader
                for data in (batch if not workers else [batch["jpg"][i].numpy().tobytes() for i in range(len(batch))])
            )
            assert found == [b"image%d" % i for i in range(COUNT)]


def plain_of(batch):
    assert batch.fields == ("jpg", "txt")
    return [bytes(view) for view in batch["jpg"]]


def test_grain_takes_fields(three):
    DataSource = dlfs.grain.DataSource
    with dlfs.open(three) as ds:
        assert DataSource(ds)[6] == (content(6), 0)
        both = DataSource(ds, fields=("jpg", "cls"))
        assert both[3] == ({"jpg": b"image3", "cls": b"0"}, 0) and "cls" in repr(both)
        assert DataSource(ds, fields="jpg")[3] == (b"image3", 0)
        assert pickle.loads(pickle.dumps(both))[3] == both[3]


def test_fsspec_shows_each_field_as_a_file(three):
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    from dlfs.fsspec import DlfsFileSystem

    with dlfs.open(three) as ds:
        fs = DlfsFileSystem(dataset=ds, skip_instance_cache=True)
        wanted = {f"part/{i:03d}.{end}": data or b"" for i in range(COUNT) for end, data in content(i).items()}
        assert sorted(fs.ls("part", detail=False)) == sorted(wanted) == sorted(fs.find(""))
        assert fs.cat(sorted(wanted)) == wanted
        for path, data in wanted.items():
            assert fs.cat(path) == data == fs.open(path).read() and fs.info(path)["size"] == len(data)
        assert fs.glob("part/*.jpg") == [f"part/{i:03d}.jpg" for i in range(COUNT)]
        assert fs.isdir("part") and fs.isfile("part/001.cls") and not fs.exists("part/001")
        for absent in ("part/001", "part/001.png", "part/009.jpg", "jpg"):
            with pytest.raises(FileNotFoundError):
                fs.cat_file(absent)
        found = fs.cat(["part/001.jpg", "part/002.png"], on_error="return")
        assert found["part/001.jpg"] == b"image1" and isinstance(found["part/002.png"], FileNotFoundError)
    with dlfs.open(three, fields=("jpg",)) as ds:
        fs = DlfsFileSystem(dataset=ds, skip_instance_cache=True)
        assert fs.ls("part", detail=False) == [f"part/{i:03d}.jpg" for i in range(COUNT)]
    with dlfs.open(three, fields="jpg") as ds:
        fs = DlfsFileSystem(dataset=ds, skip_instance_cache=True)
        assert fs.cat("part/003") == b"image3" and np.frombuffer(ds[3], dtype=np.uint8).size == 6


TYPES = ("cls:i64", "emb:f32[3]", "tok:u16[*]", "vec.npy:npy", "half:bf16[2]", "flag:bool=text", "pts.npy:f64[*,2]")


def arrays(i):
    """The fields of sample `i` with types; sample 4 lacks `emb` and `tok`."""
    return {
        "cls": np.int64(i % 3),
        "emb": None if i == 4 else np.array([i, 0.5, -1], dtype="<f4"),
        "tok": None if i == 4 else np.arange(i % 4, dtype="<u2"),
        "vec.npy": np.array([[i, 1], [2, 3]], dtype="<i4"),
        "half": np.array([0x3F80, 0x4000 + i], dtype="<u2"),  # bits of bf16
        "flag": np.bool_(i % 2 == 0),
        "pts.npy": np.full((i % 3, 2), i, dtype="<f8"),
    }


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def files(i):
    made = arrays(i)
    as_file = {"cls": lambda a: b"%d" % int(a), "flag": lambda a: b"%d" % int(a), "vec.npy": npy, "pts.npy": npy}
    each = {name: None if a is None else as_file.get(name, lambda a: a.tobytes())(a) for name, a in made.items()}
    return {**each, "txt": b"caption %d" % i}


def shard(path, samples):
    with tarfile.open(path, "w") as tar:
        for name, fields in samples.items():
            for end, data in fields.items():
                if data is not None:
                    member = tarfile.TarInfo(f"{name}.{end}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """An image of samples whose fields have types, but for `txt`."""
    root = tmp_path_factory.mktemp("typed")
    source = shard(root / "s.tar", {f"{i:03d}": files(i) for i in range(COUNT)})
    given = [word for kind in TYPES for word in ("--field-type", kind)]
    command("import", source, root / "i.dlfs", "--quiet", *given)
    return root / "i.dlfs"


def same(found, wanted):
    """Whether dtype, shape and elements are equal, and an array cannot be written to."""
    if wanted is None or isinstance(wanted, bytes):
        return (None if found is None else bytes(found)) == wanted
    if found.dtype.name == "bfloat16":
        found = found.view("<u2")
    read_only = not isinstance(found, np.ndarray) or found.size == 0 or not found.flags.writeable
    return found.dtype == wanted.dtype and found.shape == wanted.shape and (found == wanted).all() and read_only


def test_fields_with_types_come_as_arrays_and_numbers(typed):
    with dlfs.open(typed) as ds:
        assert ds.field_types["emb"] == dlfs.FieldType("float32", (3,)) and "txt" not in ds.field_types
        assert ds.field_types["cls"] == ("int64", ()) and ds.field_types["pts.npy"].shape == (None, 2)
        for id in range(COUNT):
            wanted = {**arrays(id), "txt": b"caption %d" % id}
            for sample in (ds[id], pickle.loads(pickle.dumps(ds[id]))):
                assert all(same(sample[name], value) for name, value in wanted.items())
                assert sample.field_types == ds.field_types and same(sample.field("emb"), wanted["emb"])
        assert isinstance(ds[1]["cls"], np.int64) and ds[1]["flag"] == np.bool_(False)
        view = ds[2]["vec.npy"]
    assert view.tolist() == [[2, 1], [2, 3]], "it lives longer than the data set"


def test_a_batch_stacks_fields_of_one_shape_and_lists_others(typed):
    with dlfs.open(typed) as ds:
        whole, some = ds.read_batch(range(COUNT)), ds.read_batch([3, 1, 2])
        for batch in (some, pickle.loads(pickle.dumps(some))):
            assert same(batch["emb"], np.stack([arrays(i)["emb"] for i in (3, 1, 2)]))
            assert same(batch["cls"], np.array([0, 1, 2])) and batch["vec.npy"].shape == (3, 2, 2)
            assert batch.field_types == ds.field_types and batch.field_type is None
            for name in ("tok", "pts.npy"):
                assert all(same(a, arrays(i)[name]) for a, i in zip(batch[name], (3, 1, 2)))
            assert [bytes(view) for view in batch["txt"]] == [b"caption 3", b"caption 1", b"caption 2"]
        assert whole.field("emb")[4] is None and same(whole.field("emb")[5], arrays(5)["emb"])
        assert whole["tok"][4] is None
        with pytest.raises(dlfs.NoArray, match=r"sample 4, number 4 of the batch, has no field emb.*batch.field"):
            whole["emb"]
        one = some.select("emb")
        assert one.field_type == ("float32", (3,)) and same(one[0], arrays(3)["emb"]) and one.data.dtype == np.uint8
        assert same(one.array, some["emb"]) and same(np.from_dlpack(one), some["emb"])
        with pytest.raises(dlfs.NoArray, match=r"shapes \[3\] and \[1\]"):
            some.select("tok").array
        assert same(ds.read_batch([1, 5]).select("tok").array, np.array([[0], [0]], dtype="<u2"))
        assert ds.read_batch([])["emb"].shape == (0, 3) and ds.read_batch([])["tok"] == []
        for batch in dlfs.Loader(ds, 3, fields="vec.npy"):
            assert same(batch.array, np.stack([arrays(i)["vec.npy"] for i in batch.ids.tolist()]))
    with dlfs.open(typed, fields="cls") as ds:
        assert ds[5] == 2 and isinstance(ds[5], np.int64) and set(ds.field_types) > {"cls", "emb"}


def test_a_single_field_with_a_type_is_an_array_without_a_copy(tmp_path):
    files = {f"{i:04d}": {"npy": npy(np.arange(i, i + 1024, dtype="<f4"))} for i in range(6)}
    source = shard(tmp_path / "s.tar", files)
    image = tmp_path / "i.dlfs"
    options = ("--from", "webdataset", "--field-type", "npy:npy", "--placement", "source", "--quiet")
    command("import", source, image, *options)
    with dlfs.open(image) as ds:
        assert ds.fields == ("npy",) and ds.field_types == {"npy": ("float32", (1024,))}
        batch = ds.read_batch(range(6))
        assert same(ds[3], np.arange(3, 1027, dtype="<f4")) and batch.array.shape == (6, 1024)
        first = batch[0]
        assert first.ctypes.data == batch.array.ctypes.data == batch["npy"].ctypes.data, "all of one memory"


def test_torch_gets_tensors_of_the_types(typed):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import dlfs.torch

    with dlfs.open(typed) as ds:
        item, label = dlfs.torch.Dataset(ds)[3]
        assert label == 0 and item["cls"].dtype == torch.int64 and item["cls"].shape == () and int(item["cls"]) == 0
        assert item["emb"].dtype == torch.float32 and item["emb"].tolist() == [3, 0.5, -1]
        assert item["half"].dtype == torch.bfloat16 and item["half"].tolist() == [1, 2 + 3 / 64]
        assert item["tok"].dtype == torch.uint16 and item["flag"].dtype == torch.bool and not item["flag"]
        assert item["txt"].dtype == torch.uint8 and dlfs.torch.Dataset(ds)[4][0]["emb"] is None
        assert dlfs.torch.Dataset(ds, fields="half")[3][0].dtype == torch.bfloat16
        tensors = dlfs.torch.TensorBatch.of(ds.read_batch([3, 1, 2]))
        for moved in (tensors, tensors.to("cpu"), pickle.loads(pickle.dumps(tensors))):
            assert moved["emb"].data.dtype == torch.float32 and moved["emb"].data.shape == (3, 3)
            assert moved["emb"][2].tolist() == [2, 0.5, -1] and moved["emb"].shape == (3,)
            assert moved["cls"].data.tolist() == [0, 1, 2] and moved["cls"][2] == 2
            assert moved["half"].data.dtype == torch.bfloat16 and moved["vec.npy"].data.shape == (3, 2, 2)
            assert moved["tok"].offsets.tolist() == [0, 3, 4, 6] and moved["tok"][2].tolist() == [0, 1]
            assert moved["pts.npy"].data.shape == (3, 2) and moved["pts.npy"][2].tolist() == [[2, 2], [2, 2]]
            assert moved["txt"].shape is None
        some = dlfs.torch.TensorBatch.of(ds.read_batch([3, 4, 5]))["emb"]
        assert some.data.shape == (2, 3) and some.offsets.tolist() == [0, 1, 1, 2] and some[2].tolist() == [5, 0.5, -1]
        with pytest.raises(dlfs.InvalidArgument, match="sample 1 of the batch does not have the field"):
            some[1]
        data = dlfs.torch.IterableDataset(ds, 4, fields=("cls", "vec.npy"))
        loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="fork")
        seen = {int(i): v for batch in loader for i, v in zip(batch.ids, batch["vec.npy"].data.tolist())}
        assert seen == {i: arrays(i)["vec.npy"].tolist() for i in range(COUNT)}


def test_grain_gets_arrays(typed):
    with dlfs.open(typed) as ds:
        item, label = dlfs.grain.DataSource(ds)[5]
        assert label == 2 and item.pop("txt") == b"caption 5" and set(item) == set(arrays(5))
        for name, value in arrays(5).items():
            found = item[name].view("<u2") if name == "half" else item[name]
            assert found.dtype == value.dtype and np.array_equal(found, value)
        assert item["emb"].base is None and item["emb"].tolist() == [5, 0.5, -1], "a copy"
        assert dlfs.grain.DataSource(ds, fields="cls")[5] == (2, 2)


def test_files_of_fields_with_types_are_those_that_were_imported(typed, tmp_path):
    wanted = {f"{i:03d}.{end}": data for i in range(COUNT) for end, data in files(i).items() if data is not None}
    command("export", typed, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == wanted
    assert np.load(tmp_path / "out" / "003.vec.npy").tolist() == [[3, 1], [2, 3]]
    with dlfs.open(typed) as ds:
        batch = ds.read_batch([3])
        assert batch.files("vec.npy") == [files(3)["vec.npy"]] == batch.select("vec.npy").files()
        assert ds.open_sample(3, fields="vec.npy").size == 16
        file = ds.open_sample(3, fields="vec.npy", as_file=True)
        assert file.read(0, 999) == files(3)["vec.npy"] and file.read(100, 40) == files(3)["vec.npy"][100:140]
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    from dlfs.fsspec import DlfsFileSystem

    with dlfs.open(typed) as ds:
        fs = DlfsFileSystem(dataset=ds, skip_instance_cache=True)
        absent = {f"004.{end}": b"" for end in ("emb", "tok")}
        assert fs.cat(sorted(fs.ls("", detail=False))) == {**wanted, **absent}
        for path, data in wanted.items():
            assert fs.info(path)["size"] == len(data) and fs.open(path).read() == data == fs.cat_file(path)
            assert fs.cat_file(path, 1, 90) == data[1:90] and fs.cat_file(path, -3, None) == data[-3:]
        assert np.load(fs.open("005.vec.npy")).tolist() == [[5, 1], [2, 3]]
    with dlfs.open(typed, fields="vec.npy") as ds:
        fs = DlfsFileSystem(dataset=ds, skip_instance_cache=True)
        assert fs.cat("005") == files(5)["vec.npy"] and fs.info("005")["size"] == len(files(5)["vec.npy"])


def test_data_sets_with_other_types_make_no_mixture(typed, tmp_path):
    source = shard(tmp_path / "s.tar", {f"{i:03d}": files(i) for i in range(3)})
    command("import", source, tmp_path / "i.dlfs", "--quiet", "--field-type", "cls:i32")
    with dlfs.open(typed) as a, dlfs.open(tmp_path / "i.dlfs") as b:
        with pytest.raises(dlfs.InvalidArgument, match="data sets 0 and 1 have other types of fields"):
            next(iter(dlfs.Loader(dlfs.Mixture([(a, 1.0), (b, 1.0)], epoch_size=8), 4)))
