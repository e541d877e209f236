"""Parts of large samples: only the pieces that they touch are read."""

import io
import os
import pickle
import random
import tarfile

import numpy
import pytest

import dlfs
from conftest import command

PIECE = 256 << 10
LENS = [(5 << 20) + 3, 700, (1 << 20) + 1, 0]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """An image of large and small samples, and their bytes."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "src").mkdir()
    contents = [os.urandom(length) for length in LENS]
    for number, content in enumerate(contents):
        (folder / "src" / f"{number}.bin").write_bytes(content)
    command("import", "--from", "folder", folder / "src", folder / "a.dlfs", "--quiet")
    return str(folder / "a.dlfs"), contents


def bytes_read(ds, work):
    before = ds.stats()["bytes"]
    result = work()
    return ds.stats()["bytes"] - before, result


def test_ranges_take_the_pieces_that_they_touch(large):
    image, contents = large
    with dlfs.open(image) as ds:
        ds.id_of("0.bin")
        took, found = bytes_read(ds, lambda: ds.read_ranges([(0, PIECE, 2 * PIECE)]))
        assert found == [contents[0][PIECE : 2 * PIECE]] and took <= PIECE + 2 * 4096
        seed = random.randrange(1 << 30)
        print("seed", seed)
        draw = random.Random(seed)
        wanted = []
        for _ in range(200):
            id = draw.randrange(len(LENS))
            start = draw.randrange(LENS[id] + 10)
            wanted.append((id, start, draw.choice([None, start, start + draw.randrange(2 * PIECE)])))
        assert ds.read_ranges(wanted) == [contents[id][start:end] for id, start, end in wanted]
        assert ds.read_ranges([("2.bin", 5, 9), (b"1.bin", 0, None)]) == [contents[2][5:9], contents[1]]
        assert ds.read_ranges([]) == []


def test_errors_are_raised_or_returned_in_their_places(large):
    with dlfs.open(large[0]) as ds:
        wanted = [(0, 0, 3), ("absent", 0, 3), (99, 0, 3), (1, 0, 3)]
        found = ds.read_ranges(wanted, on_error="return")
        assert found[0] == large[1][0][:3] and found[3] == large[1][1][:3]
        assert isinstance(found[1], dlfs.NameNotFound) and isinstance(found[2], dlfs.NotFound)
        with pytest.raises(dlfs.NotFound):
            ds.read_ranges(wanted)
        with pytest.raises(dlfs.InvalidArgument):
            ds.read_ranges([], on_error="ignore")
        for wrong in ([(0, -1, 3)], [(0, 0)], [0]):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                ds.read_ranges(wrong)


def test_an_open_sample_is_read_at_offsets(large):
    image, contents = large
    with dlfs.open(image) as ds:
        file = ds.open_sample("0.bin")
        assert (file.id, file.size, len(file)) == (0, LENS[0], LENS[0])
        assert file.read(3 << 20, 100) == contents[0][3 << 20 : (3 << 20) + 100]
        assert file.read(LENS[0] - 2, 100) == contents[0][-2:] and file.read(1 << 40, 5) == b""
        buffer = bytearray(1000)
        assert file.readinto(17, buffer) == 1000 and buffer == contents[0][17:1017]
        assert ds.open_sample(3).read(0, 10) == b""
        with pytest.raises(dlfs.NotFound):
            ds.open_sample("absent")
        with pytest.raises(TypeError):
            pickle.dumps(file)


def test_damage_costs_the_ranges_that_touch_it(large, tmp_path):
    image, contents = large
    with open(image, "rb") as file:
        content = bytearray(file.read())
    at = content.find(contents[0][2 * PIECE : 2 * PIECE + 64])
    content[at] ^= 1
    damaged = tmp_path / "damaged.dlfs"
    damaged.write_bytes(content)
    with dlfs.open(str(damaged)) as ds:
        wanted = [(0, 0, PIECE), (0, 2 * PIECE, 2 * PIECE + 5), (0, 3 * PIECE, 3 * PIECE + 9)]
        found = ds.read_ranges(wanted, on_error="return")
        assert found[0] == contents[0][:PIECE] and found[2] == contents[0][3 * PIECE : 3 * PIECE + 9]
        assert isinstance(found[1], dlfs.Corrupt) and "bytes 524288 to 786432" in str(found[1])


def test_fsspec_reads_parts_of_large_files(large):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    image, contents = large
    fs = fsspec.filesystem("dlfs", address=image, skip_instance_cache=True)
    data = contents[0]
    took, found = bytes_read(fs.dataset, lambda: fs.cat_file("0.bin", 10, 20))
    assert found == data[10:20] and took <= PIECE + 2 * 4096
    assert fs.cat_file("0.bin", -5) == data[-5:] and fs.cat_file("0.bin", 9, -9) == data[9:-9]
    assert fs.tail("0.bin", 7) == data[-7:] and fs.cat_file("0.bin", 50, 20) == b""
    ranges = fs.cat_ranges(["0.bin", "nothing", "2.bin"], [1, 0, 2], [4, 1, None])
    assert ranges[0] == data[1:4] and ranges[2] == contents[2][2:]
    assert isinstance(ranges[1], FileNotFoundError)
    with fs.open("0.bin") as file:
        assert file.size == len(data) and file.readable() and not file.writable()
        took, _ = bytes_read(fs.dataset, lambda: file.seek(-4, 2) and file.read())
        assert took <= 2 * PIECE and file.seek(1 << 20) == 1 << 20 and file.tell() == 1 << 20
        assert file.read(300_000) == data[1 << 20 : (1 << 20) + 300_000]
        assert file.seek(0) == 0 and file.read() == data
        with pytest.raises(OSError):
            file.write(b"no")
        with pytest.raises(ValueError):
            file.seek(-1)
    with fs.open("0.bin", "r", encoding="latin-1", newline="") as text:
        assert text.read() == data.decode("latin-1")
    fs.dataset.close()


def test_a_field_is_a_file_of_its_own(tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    image = os.urandom((2 << 20) + 9)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, content in [("s.jpg", image), ("s.txt", b"a cat"), ("t.jpg", b"small")]:
            (tmp_path / name).write_bytes(content)
            tar.add(tmp_path / name, name)
    command("import", tmp_path / "a.tar", tmp_path / "a.dlfs", "--quiet")
    with dlfs.open(str(tmp_path / "a.dlfs")) as ds:
        wanted = [("s", 5, 9), ("s", 1 << 20, (1 << 20) + 4), ("t", 0, None)]
        assert ds.read_ranges(wanted, fields="jpg") == [image[5:9], image[1 << 20 : (1 << 20) + 4], b"small"]
        assert ds.read_ranges([("s", 2, None)], fields="txt") == [b"cat"]
        assert ds.open_sample("s", fields="txt").read(0, 99) == b"a cat"
        with pytest.raises(dlfs.NotFound):
            ds.read_ranges([("t", 0, 1)], fields="txt")
        with pytest.raises(dlfs.Error):
            ds.read_ranges([("s", 0, 1)])
    fs = fsspec.filesystem("dlfs", address=str(tmp_path / "a.dlfs"), skip_instance_cache=True)
    assert fs.cat_file("s.jpg", 7, 99) == image[7:99] and fs.cat_file("s.jpg", -3) == image[-3:]
    assert fs.cat_ranges(["s.txt", "t.txt", "t.jpg"], 0, 3) == [b"a c", b"", b"sma"]
    assert fs.info("s.jpg")["size"] == len(image) and fs.info("t.txt")["size"] == 0
    with fs.open("s.jpg") as file:
        assert file.seek(1 << 20) and file.read(5) == image[1 << 20 : (1 << 20) + 5]
    fs.dataset.close()


def test_the_only_field_is_a_file_again_as_it_is_in_a_batch(tmp_path):
    with dlfs.Writer(tmp_path / "a.dlfs", {"vec": "f32[2]=npy"}, shuffle=False) as out:
        for number in range(3):
            out.write({"vec": numpy.full(2, number, "f4")})
    with dlfs.open(tmp_path / "a.dlfs") as ds:
        for number, whole in enumerate(ds.read_batch(range(3)).files()):
            file = ds.open_sample(number, as_file=True)
            assert file.read(0, 1 << 10) == bytes(whole) and file.size == len(whole)
            assert numpy.load(io.BytesIO(bytes(whole))).tolist() == [number, number]
            assert ds.open_sample(number).read(0, 9) == bytes(ds[number])
