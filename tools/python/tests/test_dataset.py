"""Opening a data set and reading samples by index, id and name."""

import gc
import io
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tarfile
import threading
import time

import numpy as np
import pytest

import dlfs
from conftest import command


def test_every_sample_is_what_the_source_had(address, source):
    with dlfs.open(address) as ds:
        assert len(ds) == len(source)
        assert [bytes(view) for view in ds] == source.contents


def test_names_labels_and_classes_are_those_of_the_folders(ds, source):
    assert list(ds.names) == source.names
    assert ds.classes == ("ant", "bee", "cat", "dog")
    assert ds.labels.tolist() == source.labels
    assert not ds.labels.flags.writeable
    assert ds.labels.base is not None, "a view, not a copy"
    assert ds.ids.tolist() == list(range(len(source)))


def test_a_sample_is_found_by_str_bytes_and_negative_index(ds, source):
    assert bytes(ds["bee/0003.bin"]) == source.contents[103]
    assert bytes(ds[b"bee/0003.bin"]) == source.contents[103]
    assert bytes(ds[-1]) == source.contents[-1]
    assert bytes(ds[np.int64(5)]) == source.contents[5]
    assert ds.id_of("bee/0003.bin") == 103 and ds.name(103) == "bee/0003.bin"
    assert "bee/0003.bin" in ds and "bee" not in ds and 3 not in ds
    assert ds.length(103) == len(source.contents[103])


def test_labels_are_a_view_and_nothing_is_kept_for_each_sample(image, source):
    gc.collect()
    before = sys.getallocatedblocks()
    ds = dlfs.open(image)
    labels, names, ids, loader = ds.labels, ds.names, ds.ids, dlfs.Loader(ds, 8)
    assert [name for name in names] == source.names and sum(len(batch) for batch in loader) == len(ds)
    gc.collect()
    assert sys.getallocatedblocks() - before < len(ds) / 2, "objects of Python"
    commands = ds.stats()["commands"]
    assert not labels.flags.owndata and not labels.flags.writeable and labels.itemsize == 1
    assert np.shares_memory(labels, ds.labels) and len(ids) == len(ds)
    assert ds.stats()["commands"] == commands == 0, "no sample was read by id"


def test_names_that_are_no_utf_8_are_str_as_file_names_are(tmp_path):
    (tmp_path / "src").mkdir()
    name = b"caf\xe9 \xff"
    with open(os.fsencode(tmp_path / "src") + b"/" + name, "wb") as file:
        file.write(b"content")
    command("import", tmp_path / "src", tmp_path / "i.dlfs", "--quiet")
    with dlfs.open(tmp_path / "i.dlfs") as ds:
        assert ds.names[0] == os.fsdecode(name)
        assert bytes(ds[os.fsdecode(name)]) == bytes(ds[name]) == b"content"


def test_a_batch_is_read_by_ids_arrays_and_names_in_the_order_asked_for(ds, source):
    ids = [7, 300, 7, 0]
    wanted = [source.contents[i] for i in ids]
    for given in (ids, tuple(ids), np.array(ids), np.array(ids, dtype=np.uint16), iter(ids)):
        assert ds.read_batch(given).tobytes() == wanted
    names = (source.names[i] for i in ids)
    assert ds.read_batch(names).tobytes() == wanted
    assert ds.read_batch(iter(())).tobytes() == []
    batch = ds.read_batch([source.names[i] for i in ids])
    assert batch.tobytes() == wanted and batch.ids.tolist() == ids
    assert len(ds.read_batch([])) == 0


@pytest.mark.parametrize(
    "piece", [slice(3, 9), slice(None, None, -100), slice(-2, None), slice(5, 5), slice(390, 10**30)]
)
def test_a_slice_is_read_at_once(ds, source, piece):
    batch = ds[piece]
    assert batch.tobytes() == source.contents[piece]
    assert batch.ids.tolist() == list(range(len(ds)))[piece]
    assert ds.names[piece] == source.names[piece]


def test_out_takes_the_bytes_and_the_offsets_come_back(ds, source):
    ids = [9, 2, 300]
    wanted = b"".join(source.contents[i] for i in ids)
    for out in (bytearray(len(wanted) + 3), np.zeros(len(wanted) + 3, dtype=np.uint8)):
        offsets = ds.read_batch(ids, out=out)
        assert bytes(out[: len(wanted)]) == wanted and bytes(out[len(wanted) :]) == b"\0\0\0"
        assert offsets.tolist() == np.cumsum([0, *(len(source.contents[i]) for i in ids)]).tolist()


def test_on_error_says_what_becomes_of_absent_samples(ds, source):
    with pytest.raises(dlfs.NotFound) as error:
        ds.read_batch([3, 10**9])
    assert error.value.sample_id == 10**9
    skipped = ds.read_batch([3, 10**9, 4], on_error="skip")
    assert skipped.ids.tolist() == [3, 4] and skipped.failures == []
    gaps = ds.read_batch([3, 10**9, 4], on_error="none")
    assert gaps[1] is None and gaps.tolist()[1] is None and bytes(gaps[2]) == source.contents[4]
    ((position, why),) = gaps.failures
    assert position == 1 and isinstance(why, dlfs.NotFound) and str(10**9) in str(why)
    gaps = ds.read_batch(["ant/0000.bin", "absent"], on_error="none")
    assert gaps[1] is None and "absent" in str(gaps.failures[0][1])
    assert gaps.labels.tolist() == [0, dlfs.NO_LABEL]
    nothing = ds.read_batch([10**9], on_error="none")
    assert nothing.tolist() == [None] and nothing.labels.tolist() == [dlfs.NO_LABEL]
    assert ds.read_batch([10**9], on_error="skip").labels.tolist() == []
    room = bytearray(30_000)
    for policy, count in (("skip", 2), ("none", 3)):
        offsets = ds.read_batch([3, 10**9, 4], out=room, on_error=policy)
        assert len(offsets) == count + 1
        assert room[: offsets[-1]] == source.contents[3] + source.contents[4]


def test_folders_are_listed(ds):
    assert ds.listdir() == [("ant", None), ("bee", None), ("cat", None), ("dog", None)]
    assert ds.listdir("bee")[3] == ("0003.bin", 103)
    assert ds.listdir("nothing") == []


def test_a_path_may_be_a_path_and_an_image_may_lie_on_several(source, tmp_path):
    parts = [tmp_path / "a.dlfs", tmp_path / "b.dlfs"]
    command("import", source.root, f"{parts[0]},{parts[1]}", "--chunk-size", "64K", "--quiet")
    both = f"{parts[0]},{parts[1]}"
    for address in ([parts[1], parts[0]], both, tuple(map(str, parts)), os.fsencode(both)):
        with dlfs.open(address) as ds:
            assert bytes(ds[42]) == source.contents[42]
    with pytest.raises(dlfs.InvalidArgument):
        dlfs.open(pathlib.Path(parts[0]))


def test_a_path_object_is_one_path_whatever_its_name(source, tmp_path):
    for name in ["a,b.dlfs", "a%2Cb.dlfs", "100%.dlfs", "a b=c;d.dlfs"]:
        path = tmp_path / name
        dlfs.import_(source.root, path)
        assert path.exists()
        with dlfs.open(path) as ds:
            assert bytes(ds[42]) == source.contents[42]
        with dlfs.open([path]) as ds:
            assert len(ds) == len(source)
    with dlfs.open(str(tmp_path / "a,b.dlfs").replace(",", "%2C")) as ds:
        assert len(ds) == len(source), "text has its escapes"


def test_deleted_samples_leave_ids_and_indices_apart(source, tmp_path):
    path = tmp_path / "i.dlfs"
    command("import", source.root, path, "--quiet")
    command("delete", path, source.names[1], "--quiet")
    with dlfs.open(path) as ds:
        assert len(ds) == len(source) - 1
        assert bytes(ds[1]) == source.contents[2], "an index counts what is there"
        assert bytes(ds.read_batch([2])[0]) == source.contents[2], "an id stays what it was"
        assert ds.ids.tolist() == [0, *range(2, len(source))]
        assert len(list(ds)) == len(ds)
        with pytest.raises(dlfs.NotFound):
            ds.read_batch([1])


def test_a_sample_that_is_not_divided_is_its_field_0(ds, source):
    assert ds.fields == ()
    batch = ds.read_batch([3, 5])
    assert [bytes(view) for view in batch.field(0)] == [source.contents[3], source.contents[5]]
    with pytest.raises(dlfs.NotFound):
        batch.field(1)


@pytest.fixture
def divided(tmp_path):
    """An image of samples with two fields; one sample has no caption."""
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for i in range(8):
            for end, data in (("jpg", b"image%d" % i), ("txt", b"caption %d" % i)):
                if (i, end) != (6, "txt"):
                    (tmp_path / "f").write_bytes(data)
                    tar.add(tmp_path / "f", f"{i:03d}.{end}")
    command("import", "--from", "webdataset", tmp_path / "s.tar", tmp_path / "i.dlfs", "--quiet")
    return tmp_path / "i.dlfs"


def test_fields_of_a_sample_are_read_at_once(divided):
    with dlfs.open(divided) as ds:
        assert sorted(ds.fields) == ["jpg", "txt"]
        batch = ds.read_batch([3, 5, 6])
        assert [bytes(view) for view in batch.field("jpg")] == [b"image3", b"image5", b"image6"]
        assert [bytes(view) for view in batch.field(ds.fields.index("txt"))[:2]] == [b"caption 3", b"caption 5"]
        assert batch.field(b"txt")[2] is None, "it does not have the field"
        for absent in (2, "png", -1, 2**70):
            with pytest.raises((dlfs.NotFound, OverflowError)):
                batch.field(absent)
        for sample in (ds[3], batch[0], next(iter(ds.read_batch([3]))), pickle.loads(pickle.dumps(ds[3]))):
            assert isinstance(sample, dlfs.Sample) and (sample.id, sample.label) == (3, None)
            assert bytes(sample.field("jpg")) == b"image3" and sample.fields == ds.fields
            assert {k: bytes(v) for k, v in sample.asdict().items()} == {"jpg": b"image3", "txt": b"caption 3"}
            assert sample.nbytes == 15 == ds.length(3)
            with pytest.raises(dlfs.NotFound, match="png.*jpg, txt"):
                sample.field("png")
        assert ds[6].asdict()["txt"] is None and "jpg" in repr(ds[6])
        again = pickle.loads(pickle.dumps(batch))
        assert [bytes(view) for view in again.field("jpg")] == [b"image3", b"image5", b"image6"]


def test_a_record_is_never_handed_out_as_the_sample(divided):
    """A table of lengths precedes the fields, so using a sample as one buffer requires choosing a field."""
    with dlfs.open(divided) as ds:
        batch = next(iter(dlfs.Loader(ds, 4)))
        assert batch.nbytes == sum(batch.lengths) == sum(ds.length(id) for id in batch.ids)
        asked = (
            lambda: bytes(ds[3]), lambda: memoryview(ds[3]), lambda: io.BytesIO(batch[0]),
            lambda: np.frombuffer(ds[3], dtype=np.uint8), lambda: memoryview(batch), batch.tobytes,
            lambda: batch.data, lambda: batch.array, lambda: batch.offsets, batch.__dlpack__,
            lambda: ds.read_batch([0], out=bytearray(99)),
        )
        for ask in asked:
            with pytest.raises(dlfs.InvalidArgument, match='jpg, txt\n.*fields="jpg"'):
                ask()
        assert not any(hasattr(batch, name) for name in ("array", "data", "offsets"))
        assert hasattr(batch.select("jpg"), "array")


def test_a_field_that_is_named_stands_for_the_sample(divided):
    with dlfs.open(divided, fields="txt") as ds:
        for again in (ds, pickle.loads(pickle.dumps(ds))):
            assert bytes(again[3]) == b"caption 3" and again[6] is None
        batch = ds.read_batch([3, 5, 6])
        assert batch.tobytes() == [b"caption 3", b"caption 5", b""] and batch[2] is None
        assert batch.data.tobytes() == b"caption 3caption 5" and batch.lengths.tolist() == [9, 9, 0]
        assert bytes(batch.field("jpg")[0]) == b"image3"
        assert pickle.loads(pickle.dumps(batch)).tobytes() == batch.tobytes()
        out = bytearray(20)
        assert ds.read_batch([3, 5], out=out).tolist() == [0, 9, 18] and out[:18] == b"caption 3caption 5"
        for batch in dlfs.Loader(ds, 4, contiguous=True):
            assert batch.tobytes() == [b"" if id == 6 else b"caption %d" % id for id in batch.ids]
        with pytest.raises(dlfs.Unsupported):
            ds.length(3)


def test_a_field_of_what_is_not_divided_is_refused(image):
    with pytest.raises(dlfs.NotFound, match="not divided"):
        dlfs.open(image, fields="jpg")


def test_torch_grain_and_fsspec_take_the_field_that_is_named(divided):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    import dlfs.torch
    from dlfs.fsspec import DlfsFileSystem
    from dlfs.grain import DataSource

    with dlfs.open(divided) as ds:
        assert dlfs.torch.Dataset(ds, lambda sample, _: bytes(sample.field("jpg")))[3] == b"image3"
        both = dlfs.torch.IterableDataset(ds, 4, transform=lambda batch: [bytes(v) for v in batch.field("jpg")])
        assert sorted(sum(both, [])) == [b"image%d" % i for i in range(8)]
        for ask in (
            lambda: dlfs.torch.TensorBatch.of(ds[:2]).data, lambda: dlfs.torch.tensor(ds[3]),
            lambda: DlfsFileSystem(dataset=ds).cat_file(ds.names[3]),
            lambda: DlfsFileSystem(dataset=ds).cat(list(ds.names[:2])),
            lambda: DlfsFileSystem(dataset=ds).open(ds.names[3]),
        ):
            with pytest.raises((dlfs.InvalidArgument, TypeError, FileNotFoundError)):
                ask()
    with dlfs.open(divided, fields="jpg") as ds:
        data, label = dlfs.torch.Dataset(ds)[3]
        assert data.numpy().tobytes() == b"image3" and label is None
        assert DataSource(ds)[3] == (b"image3", None)
        assert dlfs.torch.TensorBatch.of(ds[:2]).data.shape == (2, 6)
        fs, name = DlfsFileSystem(dataset=ds), ds.names[3]
        assert fs.cat(name) == b"image3" and fs.info(name)["size"] == 6 and fs.size(name) == 6
        assert fs.open(name).read() == b"image3" and fs.cat([name]) == {name: b"image3"}
        assert [entry["size"] for entry in fs.ls("")] == [None] * 8, "nothing is read for a listing"


def test_it_is_pickled_by_what_it_was_opened_by(address, source):
    with dlfs.open(address, window=1 << 20, deadline=30) as ds:
        again = pickle.loads(pickle.dumps(ds))
        assert again is not ds and bytes(again[17]) == source.contents[17]
        again.close()


def test_a_view_is_valid_after_everything_else_is_gone(image, source):
    ds = dlfs.open(image)
    batch = ds.read_batch([5, 6])
    view, array, labels = batch[0], np.frombuffer(batch[1], dtype=np.uint8), ds.labels
    ds.close()
    assert ds.closed and len(batch) == 2
    del batch, ds
    assert labels.tolist() == source.labels
    assert bytes(view) == source.contents[5] and array.tobytes() == source.contents[6]


def test_a_closed_data_set_says_so(image):
    ds = dlfs.open(image)
    names = ds.names
    ds.close()
    ds.close()
    for use in (lambda: ds[0], lambda: len(ds), lambda: ds.labels, lambda: ds.read_batch([0]),
                lambda: dlfs.Loader(ds, 4), lambda: ds.names):
        with pytest.raises(dlfs.InvalidArgument, match="closed"):
            use()
    assert "closed" in repr(ds) and len(names) > 0


def test_threads_read_side_by_side(address, source):
    wrong = []

    def read(first):
        for i in range(first, len(source), 4):
            if bytes(ds[i]) != source.contents[i]:
                wrong.append(i)

    with dlfs.open(address) as ds:
        threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        empty = source.contents.count(b"")
        assert not wrong and ds.stats()["verified"] >= len(source) - empty


def test_importing_dlfs_needs_numpy_only(run_python):
    loaded = run_python(
        "import sys; import dlfs; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    ).split()
    for absent in ("torch", "fsspec", "grain", "PIL", "pyarrow", "pandas"):
        assert absent not in loaded, f"import dlfs brings {absent}"


def test_the_command_comes_with_the_wheel(image):
    script = os.path.join(os.path.dirname(sys.executable), "dlfs")
    listing = subprocess.run([script, "ls", image], capture_output=True, text=True, timeout=60)
    assert listing.stdout.split() == ["ant/", "bee/", "cat/", "dog/"]
    wrong = subprocess.run([script, "ls", "/absent"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 1 and "/absent" in wrong.stderr
    child = subprocess.Popen(
        [script, "serve", image, "--listen", "127.0.0.1:0", "--json"], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[1] == "" and child.returncode == 0


def files_of_forty(folder):
    folder.mkdir()
    expected = [bytes([index]) * 5000 for index in range(40)]
    for index, content in enumerate(expected):
        (folder / f"{index:02}").write_bytes(content)
    return expected


def settled(dataset, wanted):
    """Waits until the copies satisfy `wanted`."""
    until = time.monotonic() + 60
    while not wanted(dataset.stats()):
        assert time.monotonic() < until, dataset.stats()
        time.sleep(0.005)
    return dataset.stats()


def test_tiers_change_where_samples_come_from_and_nothing_else(tmp_path):
    folder = tmp_path / "files"
    expected = files_of_forty(folder)
    cache = tmp_path / "cache"
    cache.mkdir()
    tiers = ["ram:64K", f"file:{cache}:4M"]
    orders = []
    for policy in ["none", "first-touch", "clairvoyant"]:
        with dlfs.open(folder, tiers=tiers, policy=policy) as dataset:
            for _ in range(2):
                assert [bytes(dataset[index]) for index in range(40)] == expected
            assert ("tier_hits" in dataset.stats()) == (policy != "none")
            loader, order = dlfs.Loader(dataset, 8, "global", seed=3), []
            for _ in range(2):
                for batch in loader:
                    assert batch.tobytes() == [expected[index] for index in batch.ids]
                    order += batch.ids.tolist()
            loader.close()  # it has the tiers too, and the next policy wants them
            orders.append(order)
    assert orders[0] == orders[1] == orders[2]
    for wrong in [
        {"tiers": ["ram:4X"]},
        {"policy": "psychic"},
        {"tiers": ["ram:1M"], "copy_bandwidth": 0},
    ]:
        with pytest.raises(dlfs.InvalidArgument):
            dlfs.open(folder, **wrong)


def test_copies_of_a_run_before_are_used_again_and_all_share_them(tmp_path):
    folder = tmp_path / "files"
    expected = files_of_forty(folder)
    cache = tmp_path / "cache"
    cache.mkdir()
    options = {"tiers": [f"file:{cache}:4M"], "stop_at_first_failure": True, "copy_bandwidth": 1 << 30}
    with dlfs.open(folder, **options) as dataset:
        assert [bytes(dataset[index]) for index in range(40)] == expected
        first = settled(dataset, lambda stats: stats["tiers"][0]["fills"] == 40)
        assert first["origin_bytes"] >= 40 * 5000 and first["tiers"][0]["fill_s"] > 0
        with dlfs.open(folder, **options) as second:
            assert [bytes(second[index]) for index in range(40)] == expected
            assert second.stats()["origin_bytes"] == 0, "the first one's copies serve it"
    with dlfs.open(folder, **options) as dataset:
        settled(dataset, lambda stats: stats["tiers"][0]["restored"] == 40)
        assert [bytes(dataset[index]) for index in range(40)] == expected
        stats = dataset.stats()
        assert stats["origin_bytes"] == 0 and stats["tiers"][0]["hits"] > 0, stats


def test_a_loader_that_is_closed_leaves_its_tiers_to_others(tmp_path):
    expected = files_of_forty(tmp_path / "files")
    (tmp_path / "cache").mkdir()
    options = {"tiers": [f"file:{tmp_path / 'cache'}:4M"]}
    with dlfs.Loader(dlfs.open(tmp_path / "files", **options), 8, seed=3) as loader:
        assert len(loader.dataset) == 40
        batch = next(iter(loader))
        with dlfs.open(tmp_path / "files", **options) as second:
            assert bytes(second[7]) == expected[7]
    with dlfs.open(tmp_path / "files", **options) as again:
        assert bytes(again[7]) == expected[7]
    assert batch.tobytes() == [expected[id] for id in batch.ids]
    assert loader.state_dict()["consumed"] == 8 and len(loader) == 5
    for use in (lambda: next(iter(loader)), lambda: loader.dataset, lambda: pickle.dumps(loader)):
        with pytest.raises(dlfs.Error, match="closed"):
            use()


def test_tiers_are_named_by_a_file_too(tmp_path):
    folder = tmp_path / "files"
    expected = files_of_forty(folder)
    toml = tmp_path / "tiers.toml"
    tier = '[[tier]]\nbackend = "memory"\ncapacity = "1M"\nread = [{ threads = 1, mb_per_s = 900.0 }]\n'
    toml.write_text('policy = "clairvoyant"\n' + tier)
    for policy in [None, "first-touch"]:
        for file in [toml, str(toml)]:
            with dlfs.open(folder, tiers=file, policy=policy) as dataset:
                assert [bytes(dataset[index]) for index in range(40)] == expected
                assert dataset.stats()["tiers"][0]["capacity_bytes"] > 0
    toml.write_text(tier.replace("900.0", "-900.0"))
    with pytest.raises(dlfs.InvalidArgument, match="tiers.toml"):
        dlfs.open(folder, tiers=toml)
    with pytest.raises(dlfs.NotFound):
        dlfs.open(folder, tiers=tmp_path / "absent.toml")


def test_one_tier_needs_no_list(image):
    with dlfs.open(image, tiers="ram:4M") as ds:
        assert [tier["name"] for tier in ds.stats()["tiers"]] == ["ram:4194304"]


def test_help_says_what_each_option_is():
    assert "window: int | str | None\n    The most memory for samples" in dlfs.Read.__doc__
    assert "Has the keys of Ordering, Read" in dlfs.Loading.__doc__
