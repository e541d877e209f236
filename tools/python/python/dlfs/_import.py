"""Imports of existing data. The engine reads files itself; samples of other sources go through a Writer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ._arrow import text_of
from ._dlfs import import_files as _import_files
from ._options import Address
from ._sources import ROWS_AT_ONCE, Source, kind_of, parted, source_of
from ._writer import Type, Writer, Written

if TYPE_CHECKING:
    from . import Addresses


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
    found = source_of(source)
    taken = _Taken(name, label, columns or {}, fields)
    kinds = taken.kinds(found)
    count = found.count if shuffle and found.count else None
    with Writer(address, kinds, columns=columns, count=count, **how, **options) as out:
        for sample in found.rows(_ids_of(out, found)):
            taken.write(out, sample)
        taken.check_all_seen()
    assert out.written is not None
    return out.written


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
        # Keys to take that no sample has had yet.
        self.unseen: set[str] = set()
        # Keys that samples may have; None: any.
        self.known: set[str] | None = None
        # Names of the classes, if labels are indexes into them; None: labels are numbers or names.
        self.classes: list[str] | None = None

    def kinds(self, source: Source) -> dict[str, str | None] | None:
        """Names and types of the fields to write; None: samples are bytes. Checks that the source has the keys to take,
        as far as it knows its keys."""
        given = source.kinds()
        self.has = ", ".join(given)
        classes: dict[str, list[str]] = getattr(source, "classes", dict)()
        self.classes = None if self.label is None else classes.get(self.label)
        name = self.name if isinstance(self.name, str) else None
        taken = {field for field in (self.label, name, *self.columns) if field is not None}
        chosen = self.fields
        if chosen is None:
            kinds = {field: kind for field, kind in given.items() if field not in taken}
        else:
            kinds = {field: kind or given.get(field) for field, kind in chosen.items()}
        missing = {field for field in (*kinds, *taken) if given and field not in given}
        if source.has_seen_all:
            self.unseen = missing
            self.check_all_seen()
        elif given:
            self.unseen, self.known = missing, {*given, *kinds, *taken} if chosen is None else None
        if any(kind is not None and kind.startswith("?") for kind in kinds.values()):
            wrong = {field: kind[1:] for field, kind in kinds.items() if kind and kind.startswith("?")}
            text = ", ".join(f"{field} is {kind}" for field, kind in wrong.items())
            raise TypeError(f"some fields are neither bytes nor numbers: {text}; choose others with fields=")
        self.keys = [*kinds, *self.columns]
        return kinds or None

    def check_all_seen(self) -> None:
        """Raises TypeError if no sample had one of the keys to take."""
        if self.unseen:
            raise TypeError(f"the samples have no {min(self.unseen)!r}: they have {self.has}")

    def check_keys(self, number: int, sample: Mapping[str, Any]) -> None:
        """Raises TypeError if the sample has a key that would be dropped, since the first sample did not have it; notes
        which missing keys it has."""
        late = next((key for key in sample if self.known is not None and key not in self.known), None)
        if late is not None:
            kind = (kind_of(sample[late]) or "bytes").removeprefix("?")
            raise TypeError(
                f"sample {number}: {late!r} is a key that samples before it do not have: they have {self.has}. "
                f"Name all fields that samples have, and their types, in fields={{..., {late!r}: {kind!r}}}"
            )
        if self.unseen:
            self.unseen -= sample.keys()

    def write(self, out: Writer, sample: Any) -> None:
        """Writes one sample: a mapping, bytes, or a pair of one of these and a label."""
        name: Any = self.name(sample) if callable(self.name) else None
        sample, label = parted(sample)
        if not isinstance(sample, Mapping):
            out.write(sample, name=name, label=None if label is None else _plain(label))
            return
        self.check_keys(len(out), sample)
        if self.label is not None:
            if label is not None:
                raise TypeError(f"sample {len(out)} is a pair with a label, and its field {self.label!r} is one, too")
            label = sample[self.label]
        if label is not None:
            label = _plain(label) if self.classes is None else _class_of(int(label), self.classes)
        if isinstance(self.name, str):
            name = _name_of(sample[self.name])
        keys, columns = self.keys, self.columns
        taken = {key: text_of(sample[key]) if key in columns else sample[key] for key in keys if key in sample}
        out.write(taken, name=name, label=label)


def _ids_of(out: Writer, source: Source) -> Iterator[int]:
    """The numbers of the samples in the order in which `out` takes them."""
    if source.count is None:
        return iter(())
    first, starts = out.first_id, range(0, source.count, ROWS_AT_ONCE)
    each = (out.ids(start, min(start + ROWS_AT_ONCE, source.count)) for start in starts)
    return (id - first for ids in each for id in ids)


def _paths(source: Any) -> list[str] | None:
    """The paths, if the source is one or more paths."""
    if isinstance(source, (str, os.PathLike)):
        return [os.fspath(source)]
    is_list = isinstance(source, (list, tuple)) and len(source) > 0
    if is_list and all(isinstance(each, (str, os.PathLike)) for each in source):
        return [os.fspath(each) for each in source]
    return None


def _mapping(fields: Mapping[str, str | None] | Iterable[str] | None) -> dict[str, str | None]:
    """Names and types of fields; the type is None where only a name is given."""
    if isinstance(fields, (str, bytes)):
        raise TypeError("fields is a sequence of names, not one name")
    return dict(fields) if isinstance(fields, Mapping) else dict.fromkeys(fields or ())


def _name_of(value: Any) -> str | bytes | None:
    """The name of a sample from a field: bytes and texts as they are, None for no name, else the value's text."""
    if isinstance(value, memoryview):
        return bytes(value)
    value = _plain(value)
    return value if value is None or isinstance(value, (str, bytes)) else str(value)


def _class_of(number: int, classes: list[str]) -> str | None:
    """The class of a label of Hugging Face, where -1 means none."""
    return classes[number] if number >= 0 else None


def _plain(value: Any) -> Any:
    """A number of numpy or torch as a number of Python, and a text of Arrow as a str."""
    if isinstance(value, memoryview):
        return bytes(value).decode()
    return value.item() if hasattr(value, "item") else value
