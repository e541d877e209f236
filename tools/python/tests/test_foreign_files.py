"""Parquet and Arrow files of other writers: each is imported as pyarrow reads it, or refused with a reason.

`foreign` has a few of the smallest files. The rest is tried where PARQUET_TEST_DATA and ARROW_TEST_DATA lead to them,
as for the tests of Arrow itself: the folders `data` of apache/parquet-testing and of apache/arrow-testing.
"""

import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest

import dlfs

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow.ipc  # noqa: E402
import pyarrow.parquet  # noqa: E402
import pyarrow.types as types  # noqa: E402

# What pyarrow reads and the reader of Parquet or Arrow here does not, with what it says.
REFUSED = {
    "dict-page-offset-zero.parquet": "Expected list element type of I64 but got I16",
    "nation.dict-malformed.parquet": "Invalid page header",
    "ARROW-17100.parquet": "eof decoding byte array",
    "repeated_no_annotation.parquet": "it states 0 rows, and its row groups 6",
    "1.0.0-bigendian": "endianness of the source system|the byte order of another machine|Big Endian",
}

FOREIGN = Path(__file__).parent / "foreign"


def files() -> Iterable[Path]:
    yield from sorted(FOREIGN.glob("*.parquet"))
    for variable, below in (("PARQUET_TEST_DATA", "."), ("PARQUET_TEST_DATA", "../bad_data"), ("ARROW_TEST_DATA", ".")):
        if variable in os.environ:
            root = Path(os.environ[variable]) / below
            for ending in ("*.parquet", "*.arrow_file", "*.stream"):
                yield from sorted(root.rglob(ending))


def table_of(path: Path) -> pyarrow.Table | None:
    """What pyarrow reads; None: it refuses the file."""
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.ParquetFile(path, page_checksum_verification=True).read()
        if path.suffix == ".stream":
            return pyarrow.ipc.open_stream(path).read_all()
        return pyarrow.ipc.open_file(path).read_all()
    except (pyarrow.ArrowException, OSError, ValueError):
        return None


def is_number(kind: pyarrow.DataType) -> bool:
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def is_bytes(kind: pyarrow.DataType) -> bool:
    text = (types.is_string, types.is_large_string, types.is_string_view)
    binary = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(is_such(kind) for is_such in (*text, *binary))


def is_taken(kind: pyarrow.DataType) -> bool:
    if types.is_null(kind):
        return True
    if isinstance(kind, pyarrow.BaseExtensionType):
        return is_taken(kind.storage_type)
    if types.is_dictionary(kind):
        return is_bytes(kind.value_type) or is_number(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return is_number(kind.value_type)
    return is_bytes(kind) or is_number(kind)


def bytes_of(value: Any, kind: pyarrow.DataType) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, uuid.UUID):
        return value.bytes
    element = kind if is_number(kind) else kind.value_type
    return numpy.array(value, element.to_pandas_dtype()).tobytes()


def is_sample(row: dict[str, Any]) -> bool:
    """Whether fields can hold it: not if a list has an element that is none."""
    return not any(isinstance(value, list) and None in value for value in row.values())


def kind_of(path: Path) -> str:
    return "arrow" if path.suffix == ".stream" else "auto"  # they begin as many files do


def compare(path: Path, table: pyarrow.Table, image: Path) -> None:
    """Imports the columns that fields can hold, and compares all values."""
    taken = [field.name for field in table.schema if is_taken(field.type)]
    assert taken, f"{path.name} has no column to compare"
    rows = [row for row in table.select(taken).to_pylist() if is_sample(row)]
    is_whole = len(taken) > 1 or is_bytes(table.schema.field(taken[0]).type)
    rows = [row for row in rows if is_whole or None not in row.values()]
    if not rows:
        return
    dlfs.import_(path, image, fields=taken, shuffle=False, overwrite=True, on_error="skip", from_=kind_of(path))
    data = dlfs.open(image)
    assert len(data) == len(rows)
    for id, row in enumerate(rows):
        sample = data[id] if len(taken) > 1 else {taken[0]: data[id]}
        for name in taken:
            value, kind = row[name], table.schema.field(name).type
            found = sample[name]
            told = None if found is None else memoryview(found).tobytes()
            expected = None if value is None else bytes_of(value, kind)
            # A sample whose only field is bytes has no place to say that it has none.
            assert told == expected or (len(taken), told, expected) == (1, b"", None), (path.name, id, name)


@pytest.mark.parametrize("path", files(), ids=lambda path: "/".join(path.parts[-2:]))
def test_files_of_other_writers_are_read_as_by_pyarrow_or_refused(path: Path, tmp_path: Path) -> None:
    table, image = table_of(path), tmp_path / "image"
    refused = REFUSED.get(path.name) or REFUSED.get(path.parent.name)
    if table is None or refused:
        with pytest.raises(dlfs.Error, match=refused):
            dlfs.import_(path, image, from_=kind_of(path))
        return
    if len(set(table.schema.names)) < len(table.schema):
        with pytest.raises(dlfs.Error, match="more than one column"):
            dlfs.import_(path, image, from_=kind_of(path))
        return
    others = [field.name for field in table.schema if not is_taken(field.type)]
    if others or table.num_rows == 0:
        with pytest.raises(dlfs.Error) as raised:
            dlfs.import_(path, image, from_=kind_of(path))
        told = str(raised.value)
        assert "there is no sample" in told or all(name in told for name in others), told
    if len(others) < len(table.schema) and table.num_rows > 0:
        compare(path, table, image)


@pytest.mark.parametrize("variable", ["PARQUET_TEST_DATA", "ARROW_TEST_DATA"])
def test_the_public_files_are_there(variable: str) -> None:
    if variable not in os.environ:
        pytest.skip(f"{variable} does not lead to the public files")
    assert sum(1 for path in files() if FOREIGN not in path.parents) > 50
