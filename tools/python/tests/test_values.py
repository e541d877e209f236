"""What programs give is stored as it is, or refused: never as another value."""

from pathlib import Path
from typing import Any

import numpy
import pytest

import dlfs

ROWS = Path(__file__).resolve().parents[3] / "tests" / "rows"


def bytes_of(value: Any) -> bytes | None:
    return None if value is None else memoryview(value).tobytes()


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("i64", 2.0, 2),
        ("i64", True, 1),
        ("i64", -(2**63), -(2**63)),
        ("u64", 2**64 - 1, 2**64 - 1),
        ("u8[3]", [0, 1.0, 255], [0, 1, 255]),
        ("f32", 0.1, float(numpy.float32(0.1))),
        ("f32", 2**24, 2**24),
        ("f64", [2**53, 0.5], None),
        ("f64[2]", [2**53, 0.5], [2**53, 0.5]),
        ("f16[2]", [float("inf"), 65504], [float("inf"), 65504]),
        ("bool", 1, True),
        ("i64", 2.5, None),
        ("i64", float("nan"), None),
        ("i64", float("inf"), None),
        ("i64", 1e30, None),
        ("i64", 2**63, None),
        ("i64", "5", None),
        ("i64", b"5", None),
        ("u8", 300, None),
        ("u8", -1, None),
        ("u64", -1, None),
        ("f32", 1e40, None),
        ("f32", 2**24 + 1, None),
        ("f64", 2**53 + 1, None),
        ("f64[2]", [2**53 + 1, 0.5], None),
        ("f64", 10**400, None),
        ("f16", 70000.0, None),
        ("bool", 2, None),
        ("bool", 0.5, None),
        ("bool", "x", None),
        ("i64[3]", [1, 2.5, 3], None),
        ("f32[2]", ["1", "2"], None),
        ("f32[2]", [1.0, None], None),
        ("u8[2]", numpy.array([300, -1]), None),
        ("i64[2]", numpy.array([1, 2], "u8"), None),
    ],
)
def test_a_field_holds_the_number_that_was_given_or_refuses_it(
    tmp_path: Path, kind: str, value: object, stored: object
) -> None:
    with dlfs.Writer(tmp_path / "image", {"x": kind, "t": "bytes"}) as out:
        out.write({"x": None, "t": b"t"})
        if stored is None:
            with pytest.raises((ValueError, TypeError), match="sample 1: x: |the sample .* field x "):
                out.write({"x": value, "t": b"t"})
        else:
            out.write({"x": value, "t": b"t"})
    dataset = dlfs.open(tmp_path / "image")
    assert stored is None or numpy.asarray(dataset[1]["x"]).tolist() == stored


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (float, 2**53, 2.0**53),
        (bool, numpy.True_, True),
        (bool, 0, False),
        ("f32", 0.1, float(numpy.float32(0.1))),
        (int, 2.5, None),
        (int, "5", None),
        (int, -(2**63), None),
        (float, 2**53 + 1, None),
        (float, "5", None),
        ("f32", 1e40, None),
        (bool, "x", None),
        (bool, 2, None),
        (str, 5, None),
    ],
)
def test_a_column_holds_the_value_that_was_given_or_refuses_it(
    tmp_path: Path, kind: type | str, value: object, stored: object
) -> None:
    with dlfs.Writer(tmp_path / "image", columns={"x": kind}, fields=["t"]) as out:
        out.write({"t": b"t"})
        if stored is None:
            with pytest.raises((ValueError, TypeError), match="sample 1: x: |column x is "):
                out.write({"x": value, "t": b"t"})
        else:
            out.write({"x": value, "t": b"t"})
    assert stored is None or dlfs.open(tmp_path / "image").values(1)["x"] == stored


def test_numbers_of_samples_are_widened_or_refused_and_keys_never_dropped(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [{"score": 1, "t": "x", "late": None}, {"score": 0.5, "t": "y", "late": 7, "more": "z"}]

    def check(name: str) -> None:
        dataset = dlfs.open(tmp_path / name)
        assert [numpy.asarray(dataset[id]["score"]).item() for id in range(2)] == [1, 0.5]
        assert dataset[0].get("late") is None
        assert numpy.asarray(dataset[1]["late"]).item() == 7
        assert bytes_of(dataset[1]["more"]) == b"z"

    dlfs.import_(samples, tmp_path / "list")  # all of which is looked at
    check("list")
    early = [{key: sample[key] for key in ("score", "t", "late")} for sample in samples]
    with pytest.raises(ValueError, match="sample 1: score: 0.5 is not of type int64, which would make it 0"):
        dlfs.import_(iter(early), tmp_path / "stream")
    late = "sample 1: 'more' is a key that samples before it do not have"
    with pytest.raises(TypeError, match=f"{late}.* in fields={{..., 'more': 'bytes'}}"):
        dlfs.import_(({**sample, "score": 1} for sample in samples), tmp_path / "stream")
    fields = {"score": "f64", "t": "bytes", "late": "i64", "more": "bytes"}
    dlfs.import_(iter(samples), tmp_path / "stream", fields=fields)
    check("stream")
    with pytest.raises(TypeError, match="the samples have no 'mroe': they have score, t, late"):
        dlfs.import_(iter(samples), tmp_path / "none", fields={**fields, "mroe": None})
    assert not (tmp_path / "none").exists()


def test_lists_become_arrays_with_the_values_that_they_have(tmp_path: Path) -> None:
    dlfs.import_({"x": [b"a\0", b"b"], "y": [2**53, 0.5]}, tmp_path / "image")
    dataset = dlfs.open(tmp_path / "image")
    assert [bytes_of(dataset[id]["x"]) for id in range(2)] == [b"a\0", b"b"]
    assert [numpy.asarray(dataset[id]["y"]).item() for id in range(2)] == [2**53, 0.5]
    with pytest.raises(TypeError, match="sample [01]: x: bytes, str or a buffer is expected, not int"):
        dlfs.import_({"x": [1, "a"]}, tmp_path / "mixed")
    with pytest.raises(ValueError, match=f"{2**53 + 1} is not of type float64"):
        dlfs.import_({"x": [2**53 + 1, 0.5]}, tmp_path / "mixed")


def test_what_is_said_of_a_stream_in_another_byte_order_helps(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    with pytest.raises(dlfs.Error, match=r"(?s)byte order.*pyarrow.parquet.write_table\(pyarrow.ipc.open_stream\(OLD"):
        dlfs.import_(ROWS / "big-endian.arrow", tmp_path / "image")
    with (ROWS / "big-endian.arrow").open("rb") as old:
        parquet.write_table(pyarrow.ipc.open_stream(old).read_all(), tmp_path / "new.parquet")
    dlfs.import_(tmp_path / "new.parquet", tmp_path / "image", shuffle=False)
    dataset = dlfs.open(tmp_path / "image")
    assert [numpy.asarray(dataset[f"new.parquet/{row}"]).item() for row in range(10)] == list(range(1, 11))


def test_files_with_other_columns_are_refused_or_united(tmp_path: Path) -> None:
    files = [ROWS / "differing-0.parquet", ROWS / "differing-1.parquet"]
    with pytest.raises(dlfs.Error, match="column more is in .*differing-1.parquet, and not in .*differing-0.parquet"):
        dlfs.import_(files, tmp_path / "image")
    dlfs.import_(files, tmp_path / "image", columns="union")
    dataset = dlfs.open(tmp_path / "image")
    assert numpy.asarray(dataset["differing-1.parquet/0"]["n"]).item() == 2**40
    assert dataset["differing-0.parquet/0"].get("more") is None
    dlfs.import_(files, tmp_path / "some", fields=["t", "n"])
    assert len(dlfs.open(tmp_path / "some")) == 3
