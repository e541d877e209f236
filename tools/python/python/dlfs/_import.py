"""Imports of existing data: files, arrays, tables, data sets of other libraries, and iterables."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy

from ._arrow import Rows, table_rows, text_of
from ._dlfs import import_files as _import_files
from ._fields import exactly
from ._writer import Type, Writer, Written

if TYPE_CHECKING:
    from . import Addresses
from ._options import Address

Sample = Mapping[str, Any]


def import_(
    source: Any,
    address: Addresses,
    *,
    fields: Mapping[str, str | None] | Iterable[str] | None = None,
    columns: Mapping[str, Type] | Address | None = None,
    name: str | Callable[[Any], str] | None = None,
    label: str | None = None,
    shuffle: bool = True,
    append: bool = False,
    overwrite: bool = False,
    seed: int = 0,
    chunk_size: int = 4 << 20,
    pack: Literal["aligned", "tight"] = "aligned",
    from_: str = "auto",
    on_error: Literal["stop", "skip"] = "stop",
    resume: bool = False,
    prefix: bool = False,
    nested: bool = False,
    max_expansion: int = 100,
    classes: Address | None = None,
    split: str | Iterable[str] | None = None,
    tokens: str | None = None,
    end_of_document: int | None = None,
    tokenizer: Address | None = None,
    text_field: str | None = None,
    catalog: str | None = None,
    accept_older_generation: bool = False,
    **options: Any,
) -> Written:
    """Imports `source` as a new image at `address`, or adds it to one; returns the result of the commit.

        dlfs.import_("pictures/", "train.dlfs")                                   # as the command dlfs import
        dlfs.import_(glob("train-*.parquet"), "train.dlfs", label="label")        # rows of files
        dlfs.import_({"x": images, "y": classes}, "train.dlfs", label="y")        # numpy arrays, torch tensors
        dlfs.import_(datasets.load_dataset("mnist")["train"], "train.dlfs", label="label")
        dlfs.import_((make(i) for i in range(10**6)), "train.dlfs")               # anything, one after the other

    source    a path, or a list of paths, as for the command dlfs import; a mapping of names to arrays of one length,
              or one array; a table, a record batch reader or a data set of pyarrow; a data set of Hugging Face; an
              object that gives its rows as an Arrow C stream, such as tables of Polars and DuckDB; a map-style data set
              of PyTorch; or any iterable of samples: mappings of fields, or bytes; or pairs of one of these and a label
    fields    the fields to take, or their names and types, as for dlfs.Writer. None: all of them, with the types that
              the source or its first sample has. Of files: types of fields, where they have any; of rows also the
              columns to take, if one is named without a type
    columns   typed label columns: names and types. Their values come with the fields. Of files: the path of a table, as
              for --columns; or "union": files of rows may have different columns
    name      the field that is the name of the sample, or a function of the sample. None: the id is the name
    label     the field that is the label: a number or the name of a class
    shuffle   True: all samples are shuffled together if the source has a length and gives rows in any order; samples of
              a stream are shuffled as by dlfs.Writer, shuffle_bytes at a time
    from_, on_error, resume, prefix, nested
              of files: as for the command dlfs import; name and label are columns of their rows, if they have any
    max_expansion
              of files: the most bytes to make of each byte that is read, by decompression, by links to a file that was
              taken already, or of rows that share values; each of these three may make 256 MiB in any case
    classes   of files: a text file with the name of a class on each line, or another image: classes get their numbers
              from it. None: those of the source, by name
    split     of hf://datasets/OWNER/NAME: the split to take, or several, as the paths of the files say; None: all files
    tokens, end_of_document
              of raw and .npy files of tokens: the type of the tokens, such as "u16", which .npy files say themselves,
              and the token behind each document, which is left out
    tokenizer, text_field
              of rows of files: a tokenizer.json, and the column of the texts [default: "text"], which become documents
              of its tokens, the field tok. Documents of tokens are only checked against its vocabulary. The image keeps
              its hash, and takes no tokens of another one
    append, overwrite, seed, chunk_size, pack, catalog, options
              as for dlfs.Writer; of files also links and hidden, as for dlfs.open

    If it raises, no sample was added, and the image is as it was before, except with `overwrite`.
    """
    how: dict[str, Any] = {
        "append": append,
        "overwrite": overwrite,
        "shuffle": shuffle,
        "seed": seed,
        "chunk_size": chunk_size,
        "pack": pack,
        "catalog": catalog,
        "accept_older_generation": accept_older_generation,
    }
    paths = _paths(source)
    if paths is not None:
        if name is not None and not isinstance(name, str):
            raise TypeError("of files, the name is a column of their rows, not a function")
        given = _mapping(fields)
        types = [f"{field}:{kind}" for field, kind in given.items() if kind]
        table = None if columns is None else os.fspath(columns)  # type: ignore[arg-type]
        more: dict[str, object] = {"field_types": types, "columns": table, "from": from_, "on_error": on_error}
        more |= {"resume": resume, "prefix": prefix, "nested": nested, "max_expansion": max_expansion}
        more["classes"] = None if classes is None else os.fspath(classes)
        more["split"] = [split] if isinstance(split, str) else list(split or ())
        more |= {"tokens": tokens, "end_of_document": end_of_document, "text": text_field}
        more["tokenizer"] = None if tokenizer is None else os.fspath(tokenizer)
        more |= {"name": name, "label": label, "fields": list(given) if None in given.values() else []}
        return Written(**_import_files(paths, address, {**how, **more}, options))
    of_files = resume or prefix or nested or max_expansion != 100 or classes or split
    of_tokens = any(each is not None for each in (tokens, end_of_document, tokenizer, text_field))
    if of_files or of_tokens or from_ != "auto" or on_error != "stop":
        raise TypeError(
            "from_, on_error, resume, prefix, nested, max_expansion, classes, split, tokens, end_of_document, "
            "tokenizer and text_field are for sources that are files"
        )
    if columns is not None and not isinstance(columns, Mapping):
        raise TypeError("columns is a mapping of names to types; a path is for sources that are files")
    found = _source_of(source)
    taken = _Taken(name, label, columns or {}, fields)
    kinds = taken.kinds(found)
    count = found.count if shuffle and found.count else None
    with Writer(address, kinds, columns=columns, count=count, **how, **options) as out:
        for sample in found.rows(_ids_of(out, found)):
            taken.write(out, sample)
        taken.check_all_seen()
    assert out.written is not None
    return out.written


class _Source(Protocol):
    """A source of samples. A source with a count gives them in any order."""

    count: int | None
    has_seen_all: bool  # True: `kinds` is of all samples; False: of the first one only

    def kinds(self) -> dict[str, str | None]:
        """Names and types of all fields; empty for samples that are bytes."""

    def rows(self, ids: Iterable[int]) -> Iterator[Any]:
        """The samples with these numbers; all samples if there is no count."""


class _Taken:
    """Writes samples of a source: takes name, label, columns and fields out of each."""

    def __init__(
        self,
        name: str | Callable[[Any], str] | None,
        label: str | None,
        columns: Mapping[str, Type],
        fields: Mapping[str, str | None] | Iterable[str] | None,
    ) -> None:
        self.name, self.label, self.columns = name, label, columns
        self.fields = None if fields is None else _mapping(fields)
        self.keys: list[str] = []
        # Keys to take that no sample has had yet; keys that samples may have, or None for any.
        self.unseen: set[str] = set()
        self.known: set[str] | None = None
        self.classes: list[str] | None = None

    def kinds(self, source: _Source) -> dict[str, str | None] | None:
        """Names and types of the fields to write; None: samples are bytes. Checks that the source has the keys to take,
        as far as it knows its keys."""
        own = source.kinds()
        self.has = ", ".join(own)
        classes: dict[str, list[str]] = getattr(source, "classes", dict)()
        self.classes = None if self.label is None else classes.get(self.label)
        name = self.name if isinstance(self.name, str) else None
        taken = {field for field in (self.label, name, *self.columns) if field is not None}
        chosen = self.fields
        if chosen is None:
            kinds = {field: kind for field, kind in own.items() if field not in taken}
        else:
            kinds = {field: kind or own.get(field) for field, kind in chosen.items()}
        missing = {field for field in (*kinds, *taken) if own and field not in own}
        if source.has_seen_all:
            self.unseen = missing
            self.check_all_seen()
        elif own:
            self.unseen, self.known = missing, {*own, *kinds, *taken} if chosen is None else None
        if any(kind is not None and kind.startswith("?") for kind in kinds.values()):
            wrong = {field: kind[1:] for field, kind in kinds.items() if kind and kind.startswith("?")}
            text = ", ".join(f"{field} is {kind}" for field, kind in wrong.items())
            raise TypeError(f"some fields are neither bytes nor numbers: {text}; choose others with fields=")
        self.keys = [*kinds, *self.columns]
        return kinds or None

    def check_all_seen(self) -> None:
        if self.unseen:
            raise TypeError(f"the samples have no {min(self.unseen)!r}: they have {self.has}")

    def check_keys(self, number: int, sample: Mapping[str, Any]) -> None:
        """Raises TypeError if the sample has a key that would be dropped, since the first sample did not have it; notes
        which missing keys it has."""
        late = next((key for key in sample if self.known is not None and key not in self.known), None)
        if late is not None:
            kind = (_kind_of(sample[late]) or "bytes").removeprefix("?")
            raise TypeError(
                f"sample {number}: {late!r} is a key that samples before it do not have: they have {self.has}. "
                f"Name all fields that samples have, and their types, in fields={{..., {late!r}: {kind!r}}}"
            )
        if self.unseen:
            self.unseen -= sample.keys()

    def write(self, out: Writer, sample: Any) -> None:
        name = self.name(sample) if callable(self.name) else None
        if isinstance(sample, tuple) and len(sample) == 2:
            sample, label = sample
            out.write(sample, name=name, label=None if label is None else _plain(label))
            return
        if not isinstance(sample, Mapping):
            out.write(sample, name=name)
            return
        self.check_keys(len(out), sample)
        label = None if self.label is None else sample[self.label]
        if label is not None:
            label = _plain(label) if self.classes is None else _class_of(int(label), self.classes)
        if isinstance(self.name, str):
            name = str(_plain(sample[self.name]))
        keys, columns = self.keys, self.columns
        taken = {key: text_of(sample[key]) if key in columns else sample[key] for key in keys if key in sample}
        out.write(taken, name=name, label=label)


def _ids_of(out: Writer, source: _Source) -> Iterator[int]:
    """The numbers of the samples in the order in which `out` takes them."""
    if source.count is None:
        return iter(())
    first, starts = out.first_id, range(0, source.count, ROWS_AT_ONCE)
    each = (out.ids(start, min(start + ROWS_AT_ONCE, source.count)) for start in starts)
    return (id - first for ids in each for id in ids)


class _Arrays:
    """Arrays of one length: sample i is element i of each of them."""

    has_seen_all = True

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        if not arrays:
            raise TypeError("there is no array to import")
        self.arrays = {name: _array(array) for name, array in arrays.items()}
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) != 1:
            raise TypeError(f"the arrays have different lengths: {lengths}")
        self.count: int | None = next(iter(lengths.values()))

    def kinds(self) -> dict[str, str | None]:
        return {name: _kind_of_array(array.dtype, array.shape[1:]) for name, array in self.arrays.items()}

    def rows(self, ids: Iterable[int]) -> Iterator[Sample]:
        for id in ids:
            yield {name: array[id] for name, array in self.arrays.items()}


class _Indexed:
    """A map-style data set, or a list of samples."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.count: int | None = len(dataset)
        self.has_seen_all = isinstance(dataset, (list, tuple))

    def kinds(self) -> dict[str, str | None]:
        return _kinds_of(self.dataset if self.has_seen_all else [self.dataset[0]] if self.count else [])

    def rows(self, ids: Iterable[int]) -> Iterator[Any]:
        return (self.dataset[id] for id in ids)


class _Stream:
    """An iterable, which is read once."""

    count: int | None = None
    has_seen_all = False

    def __init__(self, samples: Iterable[Any]) -> None:
        self.samples = iter(samples)

    def kinds(self) -> dict[str, str | None]:
        first = list(itertools.islice(self.samples, 1))
        self.samples = itertools.chain(first, self.samples)
        return _kinds_of(first)

    def rows(self, ids: Iterable[int]) -> Iterator[Any]:
        return self.samples


def _source_of(source: Any) -> _Source:
    """The source of samples that an object is. Raises TypeError if it is none."""
    rows = table_rows(source)
    if rows is not None:
        return _Table(rows)
    if isinstance(source, Mapping):
        return _Arrays(source)
    if hasattr(source, "dtype") and hasattr(source, "shape"):
        return _Arrays({"data": source})
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return _Indexed(source)
    if isinstance(source, Iterable):
        return _Stream(source)
    raise TypeError(f"{type(source).__name__} is not a source: neither files, arrays, a data set nor an iterable")


class _Table:
    """Rows of tables of Arrow."""

    has_seen_all = True

    def __init__(self, rows: Rows) -> None:
        self.found, self.count = rows, rows.length

    def kinds(self) -> dict[str, str | None]:
        return self.found.kinds

    def classes(self) -> dict[str, list[str]]:
        return self.found.classes

    def rows(self, ids: Iterable[int]) -> Iterator[Sample]:
        if self.count is None:
            for table in self.found.tables():
                yield from self.found.rows_of(table)
            return
        ids = iter(ids)
        while some := list(itertools.islice(ids, ROWS_AT_ONCE)):
            yield from self.found.rows_of(self.found.take(some))


def _paths(source: Any) -> list[str] | None:
    """The paths, if the source is one or more paths."""
    if isinstance(source, (str, os.PathLike)):
        return [os.fspath(source)]
    is_list = isinstance(source, (list, tuple)) and len(source) > 0
    if is_list and all(isinstance(each, (str, os.PathLike)) for each in source):
        return [os.fspath(each) for each in source]
    return None


def _mapping(fields: Mapping[str, str | None] | Iterable[str] | None) -> dict[str, str | None]:
    if isinstance(fields, (str, bytes)):
        raise TypeError("fields is a sequence of names, not one name")
    return dict(fields) if isinstance(fields, Mapping) else dict.fromkeys(fields or ())


def _kinds_of(samples: Iterable[Any]) -> dict[str, str | None]:
    """Names and types of the fields that samples have. A value of None tells no type."""
    kinds: dict[str, str | None] = {}
    for sample in samples:
        for field, value in sample.items() if isinstance(sample, Mapping) else ():
            known = kinds.setdefault(field, NOTHING)
            if value is not None:
                kinds[field] = _wider(known, _kind_of(value))
    return {field: kind or None for field, kind in kinds.items()}


def _wider(known: str | None, kind: str | None) -> str | None:
    """The type that holds values of both types; `known` if no type does, so that the writer refuses the other value."""
    if known == NOTHING:
        return kind
    return "f64" if {known, kind} == {"i64", "f64"} else known


def _kind_of(value: Any) -> str | None:
    """The type of a field with this value; None: bytes; "?" and the name of the value's type: no field can hold it."""
    if value is None or isinstance(value, (bytes, bytearray, memoryview, str)):
        return None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "i64" if isinstance(value, int) else "f64"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        value = _array(value)
        return _kind_of_array(value.dtype, value.shape)
    return f"?{type(value).__name__}"


def _kind_of_array(dtype: numpy.dtype[Any], shape: Sequence[int]) -> str | None:
    if dtype.kind not in "biuf" and dtype.name != "bfloat16":
        return None if dtype.kind in "SUO" and not shape else f"?an array of {dtype}"
    dims = ",".join(str(dim) for dim in shape)
    return f"{dtype.name}[{dims}]" if dims else dtype.name


def _array(value: Any) -> Any:
    """A numpy array of an array or tensor."""
    if type(value).__module__.split(".")[0] == "torch":
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            raise TypeError("numpy has no bfloat16: give tensor.view(torch.uint16) and the type bf16[...] in fields=")
        return value.numpy()
    array = numpy.asarray(value)
    if hasattr(value, "dtype") or array.dtype.kind not in "fSU":
        return array
    # Beside texts, numpy makes texts of numbers. It cuts NULs off the ends of texts, and rounds integers beside floats.
    return numpy.asarray(value, object) if array.dtype.kind in "SU" else exactly(value, array.dtype.name)


def _class_of(number: int, classes: list[str]) -> str | None:
    """The class of a label of Hugging Face, where -1 means none."""
    return classes[number] if number >= 0 else None


def _plain(value: Any) -> Any:
    """A number of numpy or torch as a number of Python, and a text of Arrow as a str."""
    if isinstance(value, memoryview):
        return bytes(value).decode()
    return value.item() if hasattr(value, "item") else value


NOTHING = ""  # the type of a field without a value so far
ROWS_AT_ONCE = 1024
