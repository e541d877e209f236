"""Samples of several fields: by name, as mappings, as arrays, in torch, Grain and fsspec."""

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
