"""dlfs.import_: files, arrays, tables, data sets of other libraries, and iterables become images."""

import importlib
import importlib.util
import os
import random
import signal
import struct
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy
import pytest

import dlfs

datasets, pyarrow, torch = (
    importlib.import_module(name) if importlib.util.find_spec(name) else None for name in ("datasets", "pyarrow", "torch")
)
if pyarrow is not None:
    importlib.import_module("pyarrow.parquet")


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skips a test where one of these modules is not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


def bytes_of(value: Any) -> bytes | None:
    return None if value is None else memoryview(value).tobytes()  # bytes of a number are zeroes


def content(number: int) -> bytes:
    return random.Random(number).randbytes(number * 37 % 3000)


def test_files_are_imported_as_by_the_command(tmp_path: Path) -> None:
    for number in range(40):
        path = tmp_path / "files" / ("cat", "dog")[number % 2] / f"{number:02}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number))
    table = tmp_path / "table.csv"
    table.write_text("name,width\n" + "".join(f"{('cat', 'dog')[n % 2]}/{n:02},{n}\n" for n in range(40)))
    written = dlfs.import_(tmp_path / "files", tmp_path / "image", columns=table, seed=3)
    assert (written.samples, written.generation) == (40, 1)
    dataset = dlfs.open(tmp_path / "image")
    assert dataset.classes == ("cat", "dog")
    assert dataset["dog/07"] == content(7)
    assert dataset.values(dataset.id_of("dog/07")) == {"width": 7}

    with tarfile.open(tmp_path / "more.tar", "w") as tar:
        tar.add(tmp_path / "files" / "cat" / "00", "new")
    assert dlfs.import_([tmp_path / "more.tar"], tmp_path / "image", append=True).live_samples == 41
    for outer, inside, name in (("dog.tar", "files/dog/07", "7"), ("outer.tar", "dog.tar", "dog.tar")):
        with tarfile.open(tmp_path / outer, "w") as tar:
            tar.add(tmp_path / inside, name)
    dlfs.import_(tmp_path / "outer.tar", tmp_path / "nested", nested=True)
    assert dlfs.open(tmp_path / "nested")["dog/7"] == content(7)
    with pytest.raises(dlfs.Refused):
        dlfs.import_(tmp_path / "files", tmp_path / "image")
    with pytest.raises(dlfs.NotFound, match="no such source"):
        dlfs.import_(tmp_path / "nowhere", tmp_path / "other")
    with pytest.raises(dlfs.InvalidArgument, match="columns are chosen of rows"):
        dlfs.import_(tmp_path / "files", tmp_path / "other", label="x")
    for split in ("train", ["train", "test"]):
        with pytest.raises(dlfs.InvalidArgument, match="splits are taken of data sets on the hub"):
            dlfs.import_(tmp_path / "files", tmp_path / "other", split=split)


def test_links_hidden_files_and_names_of_two_folders_are_taken_as_is_said(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split / "cat").mkdir(parents=True)
        (tmp_path / split / "cat" / "1.jpg").write_text(split)
    (tmp_path / "train" / "cat" / "._1.jpg").write_text("left behind")
    (tmp_path / "train" / "dog").symlink_to(tmp_path / "val" / "cat")
    image = tmp_path / "image"
    for source in (tmp_path / "train", image):
        if source == image:
            dlfs.import_(tmp_path / "train", image)
        assert sorted(dlfs.open(source).names) == ["cat/1.jpg", "dog/1.jpg"]
    hidden = dlfs.import_(tmp_path / "train", image, overwrite=True, hidden=True)
    assert hidden.samples == len(dlfs.open(tmp_path / "train", hidden=True)) == 3
    with pytest.raises(dlfs.Error, match="leads out of the"):
        dlfs.import_(tmp_path / "train", image, overwrite=True, links="inside")
    with pytest.raises(dlfs.Refused, match="leads out of the folder"):
        dlfs.open(tmp_path / "train", links="inside")
    both = [tmp_path / "train", tmp_path / "val"]
    with pytest.raises(dlfs.Error, match="prefix=True"):
        dlfs.import_(both, image, overwrite=True)
    assert dlfs.import_(both, image, overwrite=True, prefix=True).samples == 3
    assert dlfs.open(image)["val/cat/1.jpg"] == b"val"


def test_a_small_archive_becomes_no_larger_image_than_is_said(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(8 << 20))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "x", "x")
        for number in range(40):
            link = tarfile.TarInfo(f"link{number}")
            link.type, link.linkname = tarfile.LNKTYPE, "x"
            archive.addfile(link)
    with pytest.raises(dlfs.Error, match="more than 10 times") as error:
        dlfs.import_(tmp_path / "a.tar", tmp_path / "image", max_expansion=10)
    assert "max_expansion allows more" in str(error.value)
    with pytest.raises(TypeError, match="max_expansion"):
        dlfs.import_([b"x"], tmp_path / "image", max_expansion=10)


def test_an_interrupt_ends_the_wait_for_a_store_that_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            asked.append(self.path)
            if len(asked) == 3:
                os.kill(os.getpid(), signal.SIGINT)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit none
    try:
        with pytest.raises(KeyboardInterrupt):
            dlfs.import_("s3://bucket/folder/", tmp_path / "image")
    finally:
        signal.signal(signal.SIGINT, before)
        server.shutdown()


@needs("pyarrow", "datasets")
def test_files_of_rows_are_imported_with_their_types(tmp_path: Path) -> None:
    rows = range(200)
    table = pyarrow.table({
        "image": [content(row) for row in rows],
        "vector": pyarrow.array([[row, 1, 2] for row in rows], pyarrow.list_(pyarrow.float32(), 3)),
        "kind": [("cat", "dog")[row % 2] for row in rows],
        "key": [f"sample {row}" for row in rows],
    })  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=64)
    dlfs.import_(tmp_path / "a.parquet", tmp_path / "image", name="key", label="kind")
    dataset = dlfs.open(tmp_path / "image")
    assert set(dataset.classes) == {"cat", "dog"}
    for row in (0, 63, 64, 199):
        id = dataset.id_of(f"sample {row}")
        assert bytes_of(dataset[id]["image"]) == content(row)
        assert dataset[id]["vector"].tolist() == [row, 1, 2]
        assert dataset.classes[dataset.labels[id]] == ("cat", "dog")[row % 2]
    dlfs.import_(tmp_path / "a.parquet", tmp_path / "vectors", fields=["vector"])
    assert dlfs.open(tmp_path / "vectors").fields == ("vector",)
    table = pyarrow.table({"x": [1, 2], "gaps": [[1, None], [2]]})
    for name, writer in (("a.arrow", pyarrow.ipc.new_file), ("a.arrows", pyarrow.ipc.new_stream)):
        with writer(tmp_path / name, table.schema) as out:
            out.write(table)
        # What a column holds that nobody asked for is no fault of a row.
        dlfs.import_(tmp_path / name, tmp_path / "some", fields=["x"], overwrite=True, shuffle=False)
        assert [int(row) for row in dlfs.open(tmp_path / "some")] == [1, 2]
    with pytest.raises(dlfs.InvalidArgument, match="no column nme: they have image, vector, kind, key"):
        dlfs.import_(tmp_path / "a.parquet", tmp_path / "other", name="nme")

    features = datasets.Features({"x": datasets.Image(decode=False), "y": datasets.ClassLabel(names=["a", "b"])})
    files = {"x": [{"bytes": content(row), "path": None} for row in rows], "y": [row % 2 for row in rows]}
    datasets.Dataset.from_dict(files, features=features).save_to_disk(tmp_path / "saved")
    dlfs.import_(list((tmp_path / "saved").glob("*.arrow")), tmp_path / "hub", shuffle=False)
    hub = dlfs.open(tmp_path / "hub")
    assert (hub.classes, list(hub.labels)) == (("a", "b"), [row % 2 for row in rows])
    assert hub[7] == content(7)  # the only field


@needs("pyarrow")
def test_what_gives_an_arrow_stream_is_imported(tmp_path: Path) -> None:
    class Frame:
        """As tables of Polars and DuckDB, which have this method and views of text."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            table = pyarrow.table({"text": pyarrow.array(["a", "bc"], pyarrow.string_view()), "n": [1, 2]})
            return table.__arrow_c_stream__(requested_schema)

    dlfs.import_(Frame(), tmp_path / "image", shuffle=False)
    dataset = dlfs.open(tmp_path / "image")
    assert [(bytes_of(dataset[id]["text"]), int(dataset[id]["n"])) for id in range(2)] == [(b"a", 1), (b"bc", 2)]


@needs("torch")
def test_arrays_and_tensors_become_typed_fields(tmp_path: Path) -> None:
    images = numpy.random.default_rng(5).integers(0, 256, (300, 4, 3), "uint8")
    classes = torch.arange(300) % 10
    dlfs.import_({"x": images, "y": classes, "z": classes}, tmp_path / "image", label="y", chunk_size=1 << 16)
    dataset = dlfs.open(tmp_path / "image")
    assert list(dataset.labels) == classes.tolist()
    for id in (0, 17, 299):
        assert bytes_of(dataset[id]["x"]) == images[id].tobytes()
        assert bytes_of(dataset[id]["z"]) == (id % 10).to_bytes(8, "little")
    dlfs.import_(images, tmp_path / "one")
    assert bytes_of(dlfs.open(tmp_path / "one")[7]) == images[7].tobytes()
    with pytest.raises(TypeError, match="there is no array"):
        dlfs.import_({}, tmp_path / "other")
    with pytest.raises(TypeError, match="different lengths: {'x': 300, 'y': 2}"):
        dlfs.import_({"x": images, "y": [1, 2]}, tmp_path / "other")


def arrow_table() -> Any:
    rows = range(100)
    vectors = pyarrow.array([[n, n + 0.5] for n in rows], pyarrow.list_(pyarrow.float32(), 2))
    columns = {
        "key": [f"k{n}" for n in rows],
        "jpg": [content(n) if n % 7 else None for n in rows],
        "text": [f"text {n}" for n in rows],
        "emb": vectors,
        "tokens": pyarrow.array([list(range(n % 5)) for n in rows], pyarrow.list_(pyarrow.uint16())),
        "width": rows,
        "lang": pyarrow.array([("de", "en")[n % 2] for n in rows]).dictionary_encode(),
    }
    table = pyarrow.table(columns)
    return pyarrow.concat_tables([table.slice(0, 33), table.slice(33)])  # columns in two pieces


def check_table(path: Path) -> None:
    dataset = dlfs.open(path)
    assert len(dataset) == 100
    for n in (0, 1, 34, 99):
        sample = dataset[f"k{n}"]
        assert bytes_of(sample["jpg"]) == (content(n) if n % 7 else None)
        assert bytes_of(sample["text"]) == f"text {n}".encode()
        assert bytes_of(sample["emb"]) == numpy.array([n, n + 0.5], "float32").tobytes()
        assert bytes_of(sample["tokens"]) == numpy.arange(n % 5, dtype="uint16").tobytes()
        assert dataset.values(dataset.id_of(f"k{n}")) == {"width": n}
    assert dataset.classes == ("de", "en") or dataset.classes == ("en", "de")
    assert [dataset.classes[dataset.label(dataset.id_of(f"k{n}"))] for n in (4, 5)] == ["de", "en"]


@needs("pyarrow")
def test_arrow_tables_and_readers_are_imported(tmp_path: Path) -> None:
    table, how = arrow_table(), {"name": "key", "label": "lang", "columns": {"width": int}}
    dlfs.import_(table, tmp_path / "table", **how)
    check_table(tmp_path / "table")
    dlfs.import_(table.to_reader(max_chunksize=10), tmp_path / "reader", **how)
    check_table(tmp_path / "reader")
    dlfs.import_(table, tmp_path / "in_order", shuffle=False, fields=["text"])
    dataset = dlfs.open(tmp_path / "in_order")
    assert dataset.fields == ("text",)
    nested = pyarrow.table({"a": [b"x"], "b": [{"c": 1}]})
    with pytest.raises(TypeError, match="neither bytes nor numbers: b is struct<c: int64>"):
        dlfs.import_(nested, tmp_path / "other")
    dlfs.import_(nested, tmp_path / "other", fields=["a"])
    with pytest.raises(TypeError, match="the samples have no 'nme': they have key, jpg"):
        dlfs.import_(table, tmp_path / "third", name="nme")


@needs("datasets")
def test_a_data_set_of_hugging_face_is_imported(tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "image": datasets.Image(decode=False),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "vector": datasets.Sequence(datasets.Value("float32"), length=3),
        }
    )
    rows = [{"image": {"bytes": content(n), "path": None}, "label": n % 2, "vector": [n, 1, 2]} for n in range(60)]
    dataset = datasets.Dataset.from_list(rows, features=features)
    dlfs.import_(dataset.select(range(10, 60)), tmp_path / "image", label="label")
    read = dlfs.open(tmp_path / "image")
    assert [read.classes[label] for label in read.labels] == [("cat", "dog")[n % 2] for n in range(10, 60)]
    for id in (0, 30, 49):
        assert bytes_of(read[id]["image"]) == content(id + 10)
        assert bytes_of(read[id]["vector"]) == numpy.array([id + 10, 1, 2], "float32").tobytes()
    unlabelled = datasets.Dataset.from_list([{**rows[0], "label": -1}, rows[1]], features=features)
    dlfs.import_(unlabelled, tmp_path / "unlabelled", label="label")
    part = dlfs.open(tmp_path / "unlabelled")
    assert [part.label(0), part.classes[part.label(1)]] == [None, "dog"]
    dlfs.import_(dataset.to_iterable_dataset(), tmp_path / "stream", label="label", fields={"vector": "f32[3]"})
    assert len(dlfs.open(tmp_path / "stream")) == 60
    with pytest.raises(TypeError, match="choose one of the splits: train"):
        dlfs.import_(datasets.DatasetDict({"train": dataset}), tmp_path / "other")


@needs("datasets")
def test_pictures_of_which_a_data_set_has_only_the_paths_are_read_from_there(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.Value("int64")})
    for n in range(5):
        (tmp_path / f"{n}.png").write_bytes(content(n + 1))
    paths = [{"bytes": None, "path": str(tmp_path / f"{n}.png")} for n in range(5)]
    rows = [{"image": path, "label": n} for n, path in enumerate(paths)]
    rows += [{"image": {"bytes": b"here", "path": "elsewhere.png"}, "label": 5}]
    dataset = datasets.Dataset.from_list(rows, features=features)
    dlfs.import_(dataset, tmp_path / "image", label="label")
    with dlfs.open(tmp_path / "image") as read:
        found = {read.label(id): bytes_of(read[id]) for id in range(6)}
    assert found == {**{n: content(n + 1) for n in range(5)}, 5: b"here"}
    # Nobody has said of a plain table that its paths may be followed.
    table = pyarrow.table({"image": paths, "label": list(range(5))})
    with pytest.raises(ValueError, match="only the path .*0.png"):
        dlfs.import_(table, tmp_path / "other", label="label", shuffle=False)


def test_pairs_of_fields_and_a_label_are_imported_and_names_may_be_bytes_or_none(tmp_path: Path) -> None:
    pairs = [({"txt": f"{n}", "key": b"%d.txt" % n if n else None}, n % 2) for n in range(4)]
    dlfs.import_(pairs, tmp_path / "list", name="key")
    dlfs.import_(iter(pairs), tmp_path / "stream", name="key", shuffle=False)
    for image in ("list", "stream"):
        with dlfs.open(tmp_path / image) as dataset:
            assert len(dataset) == 4 and {"None", "b'1.txt'"}.isdisjoint(dataset.names)
            for n in range(1, 4):
                assert bytes_of(dataset[f"{n}.txt"]) == f"{n}".encode()
                assert dataset.label(dataset.id_of(f"{n}.txt")) == n % 2
    with pytest.raises(TypeError, match="sample 0 is a pair with a label, and its field 'txt' is one, too"):
        dlfs.import_(iter(pairs), tmp_path / "other", label="txt", name="key")


class MapStyle:
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return content(index), index % 3


def test_map_style_data_sets_and_iterables_are_imported(tmp_path: Path) -> None:
    dlfs.import_(MapStyle(), tmp_path / "map")
    dataset = dlfs.open(tmp_path / "map")
    assert [dataset[id] for id in range(50)] == [content(id) for id in range(50)]
    assert list(dataset.labels) == [id % 3 for id in range(50)]

    def samples() -> Iterator[dict[str, Any]]:
        for number in range(50):
            yield {"txt": f"{number}", "n": number, "path": f"p/{number}"}

    named = {"name": lambda sample: sample["path"].upper(), "fields": ["txt", "n"]}
    dlfs.import_(samples(), tmp_path / "stream", **named)
    dataset = dlfs.open(tmp_path / "stream")
    assert bytes_of(dataset["P/7"]["txt"]) == b"7"
    assert bytes_of(dataset["P/7"]["n"]) == (7).to_bytes(8, "little")

    def failing() -> Iterator[bytes]:
        yield b"x"
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        dlfs.import_(failing(), tmp_path / "failed")
    assert not (tmp_path / "failed").exists()
    with pytest.raises(TypeError, match="int is not a source"):
        dlfs.import_(7, tmp_path / "failed")
    with pytest.raises(dlfs.InvalidArgument, match="no sample was written"):
        dlfs.import_(iter(()), tmp_path / "failed")


@needs("pyarrow")
def test_texts_of_a_table_become_values_of_a_column(tmp_path: Path) -> None:
    table = pyarrow.table({"x": [b"a", b"b"], "lang": ["de", "fr"]})
    dlfs.import_(table, tmp_path / "image", columns={"lang": str})
    dataset = dlfs.open(tmp_path / "image")
    assert [dataset.values(id)["lang"] for id in range(2)] == ["de", "fr"]


def test_documents_of_tokens_are_samples_with_a_type(tmp_path: Path) -> None:
    documents = [numpy.arange(number * 7 % 40, dtype="uint16") + number for number in range(50)]
    lens = numpy.array([len(document) for document in documents], dtype="int32")
    offsets = numpy.concatenate([[0], numpy.cumsum(2 * lens.astype("int64"))])[:-1]
    ends = numpy.arange(len(documents) + 1, dtype="int64")
    (tmp_path / "corpus.bin").write_bytes(numpy.concatenate(documents).tobytes())
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lens), len(ends))
    (tmp_path / "corpus.idx").write_bytes(head + lens.tobytes() + offsets.tobytes() + ends.tobytes())
    assert dlfs.import_(tmp_path / "corpus", tmp_path / "image", shuffle=False).samples == 50
    dataset = dlfs.open(tmp_path / "image")
    for number, document in enumerate(documents):
        found = dataset[f"corpus/{number}"]
        assert found.dtype == "uint16" and numpy.array_equal(found, document)

    end = numpy.array([65535], dtype="uint16")
    tokens = numpy.concatenate([part for document in documents for part in (document, end)])
    numpy.save(tmp_path / "a.npy", tokens)
    tokens.tofile(tmp_path / "a.bin")
    full = [document for document in documents if len(document) > 0]
    for name, kind in (("a.npy", None), ("a.bin", "u16")):
        dlfs.import_(tmp_path / name, tmp_path / "image", tokens=kind, end_of_document=65535, overwrite=True)
        dataset = dlfs.open(tmp_path / "image")
        assert len(dataset) == len(full)
        for number, document in enumerate(full):
            assert numpy.array_equal(dataset[f"{name}/{number}"], document)
    with pytest.raises(dlfs.InvalidArgument, match="tokens: 'u17' is no type"):
        dlfs.import_(tmp_path / "a.bin", tmp_path / "other", tokens="u17", end_of_document=0)
    with pytest.raises(TypeError, match="end_of_document"):
        dlfs.import_([b"x"], tmp_path / "other", end_of_document=0)
