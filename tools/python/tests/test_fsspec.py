"""dlfs:// as a file system: listings, batch reads, and libraries that read through it."""

import numpy as np
import pytest

import dlfs
from conftest import command

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

from dlfs.fsspec import DlfsFileSystem  # noqa: E402


@pytest.fixture
def fs(address):
    found = fsspec.filesystem("dlfs", address=address, skip_instance_cache=True)
    yield found
    found.dataset.close()


def test_the_entry_point_leads_to_it(fs):
    assert isinstance(fs, DlfsFileSystem) and fs.protocol == "dlfs"


def test_folders_and_samples_are_listed(fs, source):
    assert fs.ls("", detail=False) == ["ant", "bee", "cat", "dog"]
    assert fs.ls("dlfs://bee", detail=False) == source.names[100:200]
    (entry,) = fs.ls("bee/0003.bin")
    assert entry == {
        "name": "bee/0003.bin", "size": len(source.contents[103]), "type": "file",
        "id": 103, "label": 1,
    }
    assert fs.info("bee")["type"] == "directory" and fs.isdir("") and not fs.exists("nothing")
    assert fs.find("") == source.names and len(fs.glob("*/000*.bin")) == 40
    assert fs.du("") == sum(map(len, source.contents))
    with pytest.raises(FileNotFoundError):
        fs.info("nothing")
    with pytest.raises(FileNotFoundError):
        fs.ls("nothing")


def test_a_slash_in_a_field_is_escaped_as_by_an_export(tmp_path):
    dlfs.import_([{"image/encoded": b"one", "text": b"two"}], tmp_path / "i.dlfs")
    command("export", tmp_path / "i.dlfs", tmp_path / "out", "--quiet")
    fs = fsspec.filesystem("dlfs", address=str(tmp_path / "i.dlfs"), skip_instance_cache=True)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == sorted(fs.ls("", detail=False)) and len(names) == 2
    assert any(name.endswith(".image%2Fencoded") for name in names)
    for name in names:
        assert fs.cat(name) == (tmp_path / "out" / name).read_bytes()
    fs.dataset.close()


def test_files_are_read_whole_and_in_parts(fs, source):
    data = source.contents[103]
    assert fs.cat("bee/0003.bin") == fs.cat_file("dlfs://bee/0003.bin") == data
    assert fs.cat_file("bee/0003.bin", 2, -3) == data[2:-3]
    assert fs.head("bee/0003.bin", 5) == data[:5] and fs.tail("bee/0003.bin", 5) == data[-5:]
    assert fs.read_block("bee/0003.bin", 1, 5) == data[1:6]
    with fs.open("bee/0003.bin", "r", encoding="latin-1", newline="") as text:
        assert text.read() == data.decode("latin-1")
    with fs.open("bee/0003.bin") as file:
        assert file.size == len(data) and not file.writable()
        assert file.read(4) == data[:4] and file.seek(-4, 2) and file.read() == data[-4:]
    with pytest.raises(FileNotFoundError):
        fs.open("nothing")
    with pytest.raises(FileNotFoundError):
        fs.cat("nothing")


def test_there_is_one_root_however_it_is_written(fs, source):
    data = source.contents[103]
    for path in ("/bee/0003.bin", "dlfs:///bee/0003.bin", "//bee/0003.bin"):
        assert fs.cat(path) == data and fs.info(path)["name"] == "bee/0003.bin" and fs.exists(path)
        assert fs.open(path).read() == data and fs.cat_ranges([path], 1, 5) == [data[1:5]]
    assert fs.ls("/", detail=False) == fs.ls("", detail=False) and fs.isdir("/bee")
    assert fs.glob("/bee/000*.bin") == source.names[100:110]


@pytest.mark.parametrize("protocol", ["blockcache", "filecache", "simplecache"])
def test_the_caches_of_fsspec_read_through_it(image, source, tmp_path, protocol):
    cached = fsspec.filesystem(
        protocol, target_protocol="dlfs", target_options={"address": image}, cache_storage=str(tmp_path)
    )
    for _ in range(2):
        with cached.open("bee/0003.bin") as file:
            assert file.read(7) == source.contents[103][:7]
            assert file.read() == source.contents[103][7:]
    with fsspec.open(f"{protocol}::dlfs://cat/0001.bin", dlfs={"address": image}) as file:
        assert file.read() == source.contents[201]


def test_many_files_are_one_batch_read(fs, source):
    before = fs.dataset.stats()
    found = fs.cat(source.names[:200])
    assert found == dict(zip(source.names, source.contents[:200]))
    after = fs.dataset.stats()
    assert after["commands"] - before["commands"] < 100, "neighbours were merged"
    assert fs.cat("cat", recursive=True) == dict(zip(source.names[200:300], source.contents[200:300]))


def test_ranges_are_one_batch_read_and_errors_are_told_apart(fs, source):
    paths = [source.names[5], "nothing", source.names[5], source.names[6]]
    found = fs.cat_ranges(paths, [0, 0, 10, None], [4, 4, 20, None])
    assert found[0] == source.contents[5][:4] and found[2] == source.contents[5][10:20]
    assert found[3] == source.contents[6] and isinstance(found[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(paths, 0, 4, on_error="raise")
    with pytest.raises(ValueError):
        fs.cat_ranges(paths, [0], [1])
    assert fs.cat_ranges([], [], []) == []
    both = np.array([[0, 2], [4, 9]])
    assert fs.cat_ranges(paths[2:], *both) == [source.contents[5][:4], source.contents[6][2:9]]


def test_nothing_can_be_written_and_an_address_is_needed(fs):
    name = "bee/0003.bin"
    for write in (
        lambda: fs.open("new", "wb"), lambda: fs.open(name, "ab"), lambda: fs.pipe("new", b"x"),
        lambda: fs.rm(name), lambda: fs.mv(name, "new"), lambda: fs.cp(name, "new"),
        lambda: fs.mkdir("new"), lambda: fs.makedirs("new"), lambda: fs.touch("new"),
        lambda: fs.put(__file__, "new"), lambda: fs.open(name).write(b"x"),
        lambda: fs.open(name).truncate(0), lambda: fs.open(name).writelines([b"x"]),
    ):
        with pytest.raises(OSError, match="read-only"):
            write()
    with pytest.raises(dlfs.Error, match="new"):
        fs.open("new", "wb")
    with pytest.raises(ValueError, match="address"):
        fsspec.filesystem("dlfs")


def test_urls_open_with_storage_options(image, source):
    with fsspec.open("dlfs://dog/0099.bin", address=image) as file:
        assert file.read() == source.contents[399]


def test_pandas_and_pyarrow_read_through_it(tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    dataset = pytest.importorskip("pyarrow.dataset", reason="pyarrow is not installed")
    from conftest import command

    (tmp_path / "src" / "part").mkdir(parents=True)
    table = pandas.DataFrame({"x": range(100), "y": [str(i) for i in range(100)]})
    for part in range(3):
        table.to_parquet(tmp_path / "src" / "part" / f"{part}.parquet")
    command("import", "--from", "folder", tmp_path / "src", tmp_path / "t.dlfs", "--quiet")
    options = {"address": str(tmp_path / "t.dlfs")}
    found = pandas.read_parquet("dlfs://part/1.parquet", storage_options=options)
    assert found.equals(table)
    fs = fsspec.filesystem("dlfs", **options)
    assert dataset.dataset("part", filesystem=fs, format="parquet").count_rows() == 300


def test_hf_datasets_reads_through_it(tmp_path):
    datasets = pytest.importorskip("datasets", reason="HF datasets is not installed")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    from conftest import command

    (tmp_path / "src" / "part").mkdir(parents=True)
    for part in range(3):
        table = pandas.DataFrame({"x": range(100 * part, 100 * part + 100)})
        table.to_parquet(tmp_path / "src" / "part" / f"{part}.parquet")
    command("import", "--from", "folder", tmp_path / "src", tmp_path / "t.dlfs", "--quiet")
    given = {
        "data_files": "dlfs://part/*.parquet", "split": "train",
        "storage_options": {"address": str(tmp_path / "t.dlfs")},
    }
    stream = datasets.load_dataset("parquet", streaming=True, **given)
    assert [row["x"] for row in stream] == list(range(300))
    loaded = datasets.load_dataset("parquet", cache_dir=str(tmp_path / "cache"), **given)
    assert loaded["x"][:] == list(range(300))


def test_webdataset_reads_shards_through_it(tmp_path):
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    import io
    import tarfile

    from conftest import command

    (tmp_path / "src").mkdir()
    for shard in range(2):
        with tarfile.open(tmp_path / "src" / f"train-{shard:03}.tar", "w") as tar:
            for i in range(8):
                data = f"caption {shard} {i}".encode()
                member = tarfile.TarInfo(f"{i:03}.txt")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    command("import", "--from", "folder", tmp_path / "src", tmp_path / "t.dlfs", "--quiet")
    fs = fsspec.filesystem("dlfs", address=str(tmp_path / "t.dlfs"))
    wds.gopen_schemes["dlfs"] = lambda url, mode="rb", bufsize=8192, **_: fs.open(url, mode)
    urls = ["dlfs://train-000.tar", "dlfs://train-001.tar"]
    found = [sample["txt"].decode() for sample in wds.WebDataset(urls, shardshuffle=False)]
    assert found == [f"caption {shard} {i}" for shard in range(2) for i in range(8)]
