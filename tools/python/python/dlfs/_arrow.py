"""Rows of Arrow tables, as samples to be written.

The module imports pyarrow or datasets only when it gets an object of one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple


class Rows(NamedTuple):
    """A source of rows. With a `length`, `take` gives rows by their numbers; without one, `tables` gives all rows.

    kinds    the type of each column as a field: see column_kind
    classes  the names of the classes of columns of labels
    opens    True: a picture or sound of which a row has only the path is read from there
    """

    length: int | None
    kinds: dict[str, str | None]
    classes: dict[str, list[str]]
    take: Callable[[Sequence[int]], Any]
    tables: Callable[[], Iterator[Any]]
    opens: bool = False

    def rows_of(self, table: Any) -> Iterator[dict[str, Any]]:
        """The rows of a table or record batch. Values of binary and string columns without nulls are not copied."""
        names = table.schema.names
        columns = [_values(_combined(table.column(at)), self.opens) for at in range(len(names))]
        for row in range(table.num_rows):
            yield {name: value(row) for name, value in zip(names, columns, strict=True)}


def table_rows(source: Any) -> Rows | None:
    """The rows of a table of pyarrow, of a data set of Hugging Face, or of an object that gives an Arrow C stream; else
    None."""
    package = type(source).__module__.split(".")[0]
    if package == "datasets":
        return _hugging_face(source)
    if package != "pyarrow":
        return _stream(source) if hasattr(source, "__arrow_c_stream__") else None
    kinds = {field.name: column_kind(field.type) for field in source.schema}
    if hasattr(source, "take") and hasattr(source, "num_rows"):
        return Rows(source.num_rows, kinds, {}, source.take, lambda: iter((source,)))
    if hasattr(source, "to_batches"):
        return Rows(None, kinds, {}, _no_take, lambda: iter(source.to_batches()))
    return Rows(None, kinds, {}, _no_take, lambda: iter(source))


def _stream(source: Any) -> Rows:
    """The rows of an object that gives an Arrow C stream: tables of Polars, DuckDB and others."""
    import pyarrow

    reader = pyarrow.RecordBatchReader.from_stream(source)
    kinds = {field.name: column_kind(field.type) for field in reader.schema}
    return Rows(None, kinds, {}, _no_take, lambda: iter(reader))


def _hugging_face(source: Any) -> Rows | None:
    if hasattr(source, "keys") and not hasattr(source, "features"):
        raise TypeError(f"choose one of the splits: {', '.join(source.keys())}")
    if not hasattr(source, "with_format") or not hasattr(source, "__len__"):
        return None  # an iterable of samples
    features = source.features
    kinds = {name: column_kind(feature_type(feature)) for name, feature in features.items()}
    classes = {name: list(feature.names) for name, feature in features.items() if hasattr(feature, "names")}
    table = source.with_format("arrow")
    return Rows(len(source), kinds, classes, lambda ids: table[list(ids)], lambda: iter((table[:],)), opens=True)


def feature_type(feature: Any) -> Any:
    """The Arrow type of a feature of Hugging Face."""
    import pyarrow

    if hasattr(feature, "pa_type") and feature.pa_type is not None:
        return feature.pa_type
    if hasattr(feature, "dtype") and hasattr(feature, "shape"):  # Array2D and the like
        return pyarrow.string() if feature.dtype == "string" else _Shaped(feature.dtype, tuple(feature.shape))
    if hasattr(feature, "feature"):
        inner, length = feature_type(feature.feature), getattr(feature, "length", -1)
        return pyarrow.list_(inner) if length < 0 else pyarrow.list_(inner, length)
    if callable(feature):
        return feature()
    return None


class _Shaped(NamedTuple):
    dtype: str
    shape: tuple[int, ...]


def column_kind(kind: Any) -> str | None:
    """The type of a field with values of an Arrow type; None: bytes; "?" and the Arrow type: no field can hold it."""
    import pyarrow.types as types

    if isinstance(kind, _Shaped):
        return f"{kind.dtype}[{','.join(map(str, kind.shape))}]" if None not in kind.shape else f"?{kind}"
    if kind is None:
        return "?nested"
    if _is_bytes(kind) or _is_file(kind) or types.is_null(kind):
        return None
    if types.is_dictionary(kind):
        return column_kind(kind.value_type)
    if _is_number(kind):
        return _number(kind)
    if types.is_fixed_size_list(kind) and _is_number(kind.value_type):
        return f"{_number(kind.value_type)}[{kind.list_size}]"
    if (types.is_list(kind) or types.is_large_list(kind)) and _is_number(kind.value_type):
        return f"{_number(kind.value_type)}[*]"
    return f"?{kind}"


def _is_bytes(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
    )


def _is_file(kind: Any) -> bool:
    """Returns whether Hugging Face stores images and audio as this type: a struct of bytes and a path."""
    import pyarrow.types as types

    return bool(types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"})


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _number(kind: Any) -> str:
    return {"halffloat": "f16", "float": "f32", "double": "f64"}.get(str(kind), str(kind))


def _combined(column: Any) -> Any:
    """One array with all values of a column that may be in pieces."""
    if not hasattr(column, "combine_chunks"):
        return column
    column = column.combine_chunks()
    return column.chunk(0) if hasattr(column, "chunks") else column


def _values(column: Any, opens: bool = False) -> Callable[[int], Any]:
    """A function that gives the value of a row. `opens` is that of Rows."""
    import pyarrow.types as types

    kind = column.type
    if hasattr(column, "storage"):  # an extension, such as Array2D
        to_numpy = column.to_numpy(zero_copy_only=False)
        return lambda row: to_numpy[row]
    if types.is_dictionary(kind):
        return _values(column.dictionary_decode(), opens)
    if _is_file(kind):
        return _files(column, opens)
    if column.null_count == 0 and (types.is_binary(kind) or types.is_string(kind)):
        return _slices(column)
    if column.null_count == 0 and _is_number(kind):
        numbers = column.to_numpy(zero_copy_only=False)
        return lambda row: numbers[row]
    if column.null_count == 0 and types.is_fixed_size_list(kind) and _is_number(kind.value_type):
        flat = column.flatten()
        if flat.null_count == 0:
            rows = flat.to_numpy(zero_copy_only=False).reshape(len(column), kind.list_size)
            return lambda row: rows[row]
    return lambda row: _plain(column[row], kind)


def _files(column: Any, opens: bool) -> Callable[[int], Any]:
    """A function that gives the bytes of a row's file, which may be in a file beside the table."""
    contents = _values(column.field("bytes"))

    def content(row: int) -> Any:
        found = contents(row)
        path = (column[row].as_py() or {}).get("path") if found is None else None
        if not path:
            return found
        if not opens:
            raise ValueError(f"a row has only the path {path!r} of a file, without its bytes")
        with open(path, "rb") as file:
            return file.read()

    return content


def _slices(column: Any) -> Callable[[int], memoryview]:
    """A function that gives a view of a row's bytes in a binary or string column without nulls."""
    import numpy

    _, offsets, data = column.buffers()
    ends = numpy.frombuffer(offsets, "int32")[column.offset : column.offset + len(column) + 1].tolist()
    bytes_ = memoryview(data) if data is not None else memoryview(b"")
    return lambda row: bytes_[ends[row] : ends[row + 1]]


def _plain(value: Any, kind: Any) -> Any:
    """A scalar of Arrow as an object of Python, a list of numbers as an array."""
    import numpy

    found = value.as_py()
    if found is None or _is_bytes(kind) or not isinstance(found, list):
        return found
    if None in found:
        raise ValueError("a list of numbers has one that is null")
    dtype = kind.value_type.to_pandas_dtype() if hasattr(kind, "value_type") else None
    return numpy.asarray(found, dtype)


def text_of(value: Any) -> Any:
    """The text that the memoryview `value` encodes, as in string columns here; any other value as it is."""
    return bytes(value).decode() if isinstance(value, memoryview) else value


def _no_take(ids: Sequence[int]) -> Any:
    raise NotImplementedError("a stream has no rows in any order")
