"""Images that are written from Python: dlfs.Writer."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy
import pytest

import dlfs
from conftest import free_port, target


def content(number: int) -> bytes:
    return random.Random(number).randbytes(number * 37 % 5000)


@pytest.mark.parametrize("shuffle", [True, False])
def test_samples_come_back_by_id_and_by_name(tmp_path: Path, shuffle: bool) -> None:
    path = tmp_path / "image"
    with dlfs.Writer(path, shuffle=shuffle, shuffle_bytes=100_000, chunk_size=1 << 16) as out:
        for number in range(300):
            assert out.next_id == number
            assert out.write(content(number), name=f"n{number}", label=number % 7) == number
        assert len(out) == 300
        assert not dlfs_is_there(path)
    dataset = dlfs.open(path)
    assert [dataset[number] for number in range(300)] == [content(number) for number in range(300)]
    assert dataset["n77"] == content(77)
    assert list(dataset.labels) == [number % 7 for number in range(300)]
    read = sorted(id for batch in dlfs.Loader(dataset, 32, seed=1) for id in batch.ids)
    assert read == list(range(300))


def dlfs_is_there(path: Path) -> bool:
    try:
        dlfs.open(path)
    except dlfs.Error:
        return False
    return True


def test_fields_columns_and_classes_are_written_and_appended(tmp_path: Path) -> None:
    path = tmp_path / "image"
    columns = {"width": int, "lang": str, "score": float, "good": bool}
    with dlfs.Writer(path, ("jpg", "txt"), columns=columns) as out:
        assert out.fields == {"jpg": "bytes", "txt": "bytes"}
        assert out.columns == {"width": "int", "lang": "str", "score": "float", "good": "bool"}
        out.write({"jpg": b"0", "txt": "zwölf", "width": 3, "lang": "de", "good": True}, label="cat")
        out.write({"jpg": numpy.arange(4, dtype="<u2"), "score": 1.5}, label="dog", name="second")
    with dlfs.Writer(path, columns={"more": "f32"}, append=True) as out:
        assert out.write({"txt": memoryview(b"abc"), "more": 2, "width": numpy.int32(9)}, label="cat") == 2
    dataset = dlfs.open(path)
    assert dataset.classes == ("cat", "dog")
    assert list(dataset.labels) == [0, 1, 0]
    assert bytes(dataset[0]["txt"]).decode() == "zwölf"
    assert bytes(dataset["second"]["jpg"]) == bytes([0, 0, 1, 0, 2, 0, 3, 0])
    assert dataset[2].get("jpg") is None
    assert [dataset.values(id)["width"] for id in range(3)] == [3, None, 9]
    assert len(dataset.select("lang = 'de' and good = true")) == 1
    assert list(dataset.column("more"))[2] == 2.0


def test_arrays_are_written_as_their_types_say(tmp_path: Path) -> None:
    path = tmp_path / "image"
    fields = {"jpg": "bytes", "emb": "f32[2,2]", "tokens": "u16[*]", "cls": "i64", "half": "bf16[2]"}
    emb = numpy.array([[1, 2], [3, 4.5]], "float32")
    with dlfs.Writer(path, fields) as out:
        assert out.fields == fields
        out.write({"jpg": b"x", "emb": emb.T, "tokens": [1, 2, 65535], "cls": 7})
        out.write({"emb": emb.astype(">f4"), "tokens": (), "half": numpy.array([0, 0x3F80], "uint16")})
        wrong = [
            (TypeError, "emb: an array of float32 is expected, not of float64", {"emb": emb.astype("float64")}),
            (ValueError, r"emb: the type is f32\[2,2\], and the shape \[4\]", {"emb": emb.reshape(4)}),
            (ValueError, r"sample 2: tokens: .*65536.* is not of type uint16", {"tokens": [65536]}),
            (ValueError, "sample 2: cls: 'seven' is not of type int64", {"cls": "seven"}),
            (dlfs.InvalidArgument, r"field emb is f32\[2,2\], which has 16 bytes", {"emb": b"12345"}),
        ]
        for error, text, sample in wrong:
            with pytest.raises(error, match=text):
                out.write(sample)
    dataset = dlfs.open(path)
    as_bytes = [{name: dataset[id][name] for name in dataset[id]} for id in range(2)]
    values = [
        {name: value if value is None else memoryview(value).tobytes() for name, value in each.items()} for each in as_bytes
    ]
    assert values[0]["emb"] == numpy.ascontiguousarray(emb.T).tobytes()
    assert values[0]["tokens"] == bytes([1, 0, 2, 0, 255, 255])
    assert values[0]["cls"] == (7).to_bytes(8, "little")
    assert values[1]["emb"] == emb.tobytes()
    assert values[1]["half"] == bytes([0, 0, 0x80, 0x3F])
    assert values[1]["tokens"] == b""
    with pytest.raises(dlfs.InvalidArgument, match=r"'emb': \"f31\" is no element type|no element type"):
        dlfs.Writer(tmp_path / "other", {"emb": "f31"})


def test_an_exception_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "image"
    with pytest.raises(RuntimeError, match="mine"), dlfs.Writer(path) as out:
        out.write(b"x")
        raise RuntimeError("mine")
    assert not path.exists()
    with dlfs.Writer(path) as out:
        out.write(b"first")
    with pytest.raises(ValueError, match="mine"), dlfs.Writer(path, append=True, shuffle_bytes=1) as out:
        for _ in range(100):
            out.write(bytes(100_000))
        raise ValueError("mine")
    dataset = dlfs.open(path)
    assert (len(dataset), dataset[0]) == (1, b"first")
    with pytest.raises(ValueError, match="finished"):
        out.write(b"late")


def test_threads_share_a_writer(tmp_path: Path) -> None:
    out = dlfs.Writer(tmp_path / "image", shuffle_bytes=50_000)
    ids: dict[int, int] = {}

    def write(first: int) -> None:
        for number in range(first, first + 200):
            ids[number] = out.write(content(number), name=str(number))

    threads = [threading.Thread(target=write, args=(first,)) for first in range(0, 1000, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = out.finish()
    assert (written.samples, written.live_samples, written.generation) == (1000, 1000, 1)
    assert written.sample_bytes == sum(len(content(number)) for number in range(1000))
    assert sorted(ids.values()) == list(range(1000))
    dataset = dlfs.open(tmp_path / "image")
    for number, id in ids.items():
        assert dataset[id] == content(number) == dataset[str(number)]


def test_all_samples_are_shuffled_together_when_their_number_is_known(tmp_path: Path) -> None:
    with dlfs.Writer(tmp_path / "image", count=500, seed=4, chunk_size=1 << 16) as out:
        order = []
        while (id := out.next_id) is not None:
            out.write(content(id))
            order.append(id)
        with pytest.raises(dlfs.InvalidArgument, match="500 samples were announced, and more"):
            out.write(b"x")
    assert sorted(order) == list(range(500)) != order
    dataset = dlfs.open(tmp_path / "image")
    assert all(dataset[id] == content(id) for id in range(500))


def test_what_cannot_be_written_is_refused_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "image"
    with dlfs.Writer(path, ("jpg", "txt"), columns={"width": int}) as out:
        out.write({"jpg": b"1"}, name="taken")
        wrong = [
            (dlfs.InvalidArgument, '"wdith" is neither a field nor a column', {"wdith": 3}, {}),
            (TypeError, "a sample is a mapping", b"bytes", {}),
            (TypeError, "jpg: bytes, str or a buffer is expected, not int", {"jpg": 3}, {}),
            (TypeError, "width: ", {"width": "wide"}, {}),
            (OverflowError, "width: ", {"width": 2**63}, {}),
            (dlfs.InvalidArgument, "another sample has its name", {"jpg": b""}, {"name": "taken"}),
            (dlfs.InvalidArgument, "its name is empty", {"jpg": b""}, {"name": ""}),
            (dlfs.InvalidArgument, "is not a label", {"jpg": b""}, {"label": -(2**63)}),
        ]
        for error, text, sample, more in wrong:
            with pytest.raises(error, match=text):
                out.write(sample, **more)
        out.write({"txt": b"2"})
    assert len(dlfs.open(path)) == 2
    with pytest.raises(dlfs.Refused, match="append=True adds"):
        dlfs.Writer(path)
    with pytest.raises(dlfs.InvalidArgument, match=r"have the fields \[png\], those of the image \[jpg, txt\]"):
        dlfs.Writer(path, ["png"], append=True)
    with pytest.raises(dlfs.InvalidArgument, match="type int, the writer's of str"):
        dlfs.Writer(path, columns={"width": str}, append=True)
    with pytest.raises(TypeError, match="not one name"):
        dlfs.Writer(tmp_path / "other", "jpg")
    with pytest.raises(TypeError, match="unexpected keyword argument 'shufle'"):
        dlfs.Writer(tmp_path / "other", shufle=True)
    with pytest.raises(dlfs.InvalidArgument, match="append and overwrite"):
        dlfs.Writer(path, append=True, overwrite=True)
    with pytest.raises(dlfs.InvalidArgument, match="no sample was written"), dlfs.Writer(tmp_path / "other"):
        pass
    assert not (tmp_path / "other").exists()
    with dlfs.Writer(path, overwrite=True) as out:
        out.write(b"anew")
    assert dlfs.open(path)[0] == b"anew"


def test_names_and_classes_are_written_as_a_data_set_gives_them(tmp_path: Path) -> None:
    """Those that are not UTF-8 have surrogate escapes, like the names of files."""
    name, label = os.fsdecode(b"caf\xe9.jpg"), os.fsdecode(b"\xff")
    plan = dlfs.WritePlan(tmp_path / "parts", classes=[label, "zwölf"])
    for image, writer in (("whole", dlfs.Writer(tmp_path / "whole", shuffle=False)), ("parts", plan.part(0))):
        with writer as out:
            out.write(b"1", name=name, label=label)
            out.write(b"2", name="zwölf", label="zwölf")
        if image == "parts":
            plan.commit(1)
        with dlfs.open(tmp_path / image) as ds, dlfs.Writer(tmp_path / f"copy of {image}") as out:
            assert ds.classes == (label, "zwölf") and {*ds.names} == {name, "zwölf"}
            for id in ds.ids:
                out.write(ds[ds.name(id)], name=ds.name(id), label=ds.classes[ds.label(id)])
            weighted = dlfs.Loader(ds, 2, "weighted", weights={label: 1, "zwölf": 1})
            assert [len(batch) for batch in weighted] == [2]
        with dlfs.open(tmp_path / f"copy of {image}") as copy:
            assert bytes(copy[name]) == b"1" and copy.classes[copy.label(copy.id_of(name))] == label


class Lost(Exception):
    """An error that cannot be made from a text alone."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} was lost in {where}")


class Broken(Mapping[str, bytes]):
    def __getitem__(self, key: str) -> bytes:
        raise Lost(key, "transit")

    def __iter__(self) -> Iterator[str]:
        return iter(("jpg",))

    def __len__(self) -> int:
        return 1


def test_an_error_of_the_programs_own_mapping_comes_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(Lost, match="jpg was lost in transit"), dlfs.Writer(tmp_path / "image", ("jpg",)) as out:
        out.write(Broken())


def test_a_forked_child_cannot_write_and_ends(tmp_path: Path) -> None:
    out = dlfs.Writer(tmp_path / "image", shuffle_bytes=1)
    out.write(b"x" * 100)
    child = os.fork()
    if child == 0:
        try:
            out.write(b"y" * 100)
        except dlfs.InvalidArgument as error:
            os._exit(7 if "forked child" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    out.write(b"z" * 100)
    assert out.finish().samples == 2


def test_a_killed_writer_leaves_the_previous_generation(tmp_path: Path) -> None:
    path = tmp_path / "image"
    with dlfs.Writer(path) as out:
        out.write(b"first")
    program = f"""
import dlfs
out = dlfs.Writer({str(path)!r}, append=True, shuffle_bytes=1 << 20)
for number in range(10**9):
    out.write(bytes(10_000))
    if number == 1000:
        print("going", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(dlfs.Busy):
            dlfs.Writer(path, append=True)
        child.send_signal(signal.SIGKILL)
    assert dlfs.open(path)[0] == b"first"
    with dlfs.Writer(path, append=True) as out:
        out.write(b"second")
    dataset = dlfs.open(path)
    assert [dataset[0], dataset[1]] == [b"first", b"second"]


def test_a_target_that_is_killed_ends_a_writer_and_the_generation_before_stands(tmp_path: Path) -> None:
    path = tmp_path / "namespace"
    with path.open("wb") as file:
        file.truncate(32 << 20)
    port = free_port()
    with target(path, port, "--writable") as (process, address):
        with dlfs.Writer(address, chunk_size=1 << 16) as out:
            for number in range(200):
                out.write(content(number))
        with pytest.raises(dlfs.Disconnected):
            with dlfs.Writer(address, append=True, shuffle_bytes=100_000, ctrl_loss_tmo=1) as out:
                for number in range(2000):
                    if number == 1000:  # the first windows are written
                        process.kill()
                        process.wait()
                    out.write(bytes(1000))
    with target(path, port, "--writable") as (_, address):
        dataset = dlfs.open(address)
        assert dataset.generation == 1
        assert [dataset[number] for number in range(len(dataset))] == [content(number) for number in range(200)]


def test_a_new_image_gets_its_name_in_a_catalogue(tmp_path: Path) -> None:
    name = f"dlfs://{tmp_path / 'catalogue'}/pets"
    with dlfs.Writer(tmp_path / "image", catalog=name) as out:
        out.write(b"x")
    assert dlfs.open(name)[0] == b"x"
    with dlfs.Writer(name, append=True) as out:
        out.write(b"y")
    assert len(dlfs.open(name)) == 2
