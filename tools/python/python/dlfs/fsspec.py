"""dlfs for fsspec: the read-only file system dlfs:// for pandas, pyarrow and others.

    fs = fsspec.filesystem("dlfs", address="nvme-tcp://10.0.0.2/nqn.2026-11.io.dlfs:train")
    fs.ls("n01440764")
    fs.cat(["n01440764/1.jpg", "n01440764/2.jpg"])              # one batch read
    pandas.read_parquet("dlfs://table.parquet", storage_options={"address": "table.dlfs"})
    datasets.load_dataset("parquet", data_files="dlfs://part/*.parquet", storage_options=...)
    webdataset.gopen_schemes["dlfs"] = lambda url, mode="rb", bufsize=0, **_: fs.open(url, mode)

Paths are names of samples; `address` and the other options are those of dlfs.open. If samples have fields, each
field is a file NAME.FIELD, as in `dlfs export` and `dlfs mount` (a slash in FIELD is %2F). fields=("jpg", "cls") has
only these two; fields="jpg" has one file NAME for each sample, with this field. A field that a sample lacks is an empty
file. A field whose type was read from .npy files or from text is a file of that format.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any, NoReturn

from fsspec import AbstractFileSystem

from . import Dataset, Error, NameNotFound, NotFound, Refused, SampleFile, open

__all__ = ["DlfsFileSystem"]


def _suffix(field: str) -> str:
    """The end of the name of a field's file, after the sample's name. A slash would make a folder."""
    return "." + field.replace("/", "%2F")


class DlfsFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The samples of a data set as read-only files.

    A sample up to 1 MiB is one read. Of a larger sample, cat_file and cat_ranges with start or end, and reads of an
    open file, take only the pieces of 256 KiB that they touch.
    """

    protocol = "dlfs"
    root_marker = ""

    def __init__(self, address: Any = None, dataset: Dataset | None = None, **options: Any) -> None:
        super().__init__(address=address, **options)
        if dataset is None:
            if address is None:
                raise ValueError(
                    "dlfs:// needs an address: fsspec.filesystem('dlfs', address=...), or "
                    "storage_options={'address': ...}"
                )
            own = {"asynchronous", "loop", "skip_instance_cache", "use_listings_cache"}
            dataset = open(address, **{k: v for k, v in options.items() if k not in own})
        self.dataset = dataset
        self._has_labels = dataset.labels is not None
        chosen = dataset.chosen_fields
        one = isinstance(chosen, str)
        self._typed = bool(dataset.field_types)
        # The fields that are files of their own; then the same, the longest names first.
        self._fields = () if one else tuple(chosen or dataset.fields)
        self._by_length = sorted(self._fields, key=len, reverse=True)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        # dlfs:///name and /name mean name: there is one root.
        stripped = super()._strip_protocol(path)
        return stripped.lstrip("/") if isinstance(stripped, str) else stripped

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """name, size in bytes (0 for folders), type; for samples also `id` and `label`, which may be None."""
        name = self._strip_protocol(path)
        try:
            entry = self._entry(name, self._find(name)[0])
            if entry["size"] is None:
                entry["size"] = self._length(path)
            return entry
        except NameNotFound:
            if name == "" or self.dataset.listdir(name):
                return {"name": name, "size": 0, "type": "directory"}
            raise FileNotFoundError(path) from None

    def _find(self, path: str) -> tuple[int, str | None]:
        """The id of the sample at `path`, and the field that is the file; None: the file is the sample, or its only
        chosen field. Raises NameNotFound."""
        if not self._fields:
            return self.dataset.id_of(path), None
        for field in self._by_length:
            name = path.removesuffix(_suffix(field))
            if name != path:
                try:
                    return self.dataset.id_of(name), field
                except NameNotFound:
                    pass  # the name itself may have a dot
        raise NameNotFound(f"no sample has the file {path}: files are NAME{', NAME'.join(map(_suffix, self._fields))}")

    def _entry(self, name: str, id: int) -> dict[str, Any]:
        entry = {"name": name, "size": self._size(id), "type": "file", "id": id}
        if self._has_labels:
            entry["label"] = self.dataset.label(id)
        return entry

    def _size(self, id: int) -> int | None:
        # The size of one field of several is unknown until the sample is read.
        return None if len(self.dataset.fields) > 1 or self._typed else self.dataset.length(id)

    def _files(self, name: str, id: int) -> list[dict[str, Any]]:
        """The files of a sample."""
        names = [name + _suffix(field) for field in self._fields] or [name]
        return [self._entry(name, id) for name in names]

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The direct entries of a folder, or the sample itself."""
        folder = self._strip_protocol(path)
        found = self.dataset.listdir(folder)
        if not found and folder:
            entries = [self.info(folder)]
        else:
            within = f"{folder}/" if folder else ""
            entries = []
            for name, id in found:
                if id is None:
                    entries.append({"name": within + name, "size": 0, "type": "directory"})
                else:
                    entries += self._files(within + name, id)
        return entries if detail else [entry["name"] for entry in entries]

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """The bytes of a sample, or start:end of them."""
        if start is None and end is None:
            return bytes(self._view(path))
        return bytes(self.cat_ranges([path], start, end, on_error="raise")[0])

    def _length(self, path: str) -> int:
        """The length of a file, also of one field of several."""
        file = self._opened(path)
        return 0 if file is None else file.size

    def _opened(self, path: str) -> SampleFile | None:
        """The file at `path`, to read parts of it; None: the sample lacks the field."""
        try:
            id, field = self._find(self._strip_protocol(path))
        except NameNotFound:
            raise FileNotFoundError(path) from None
        try:
            return self.dataset.open_sample(id, fields=field, as_file=True)
        except NotFound:
            return None

    def _view(self, path: str) -> memoryview:
        """The bytes of the file at `path`."""
        name: str = self._strip_protocol(path)
        try:
            id, field = self._find(name)
        except NameNotFound:
            raise FileNotFoundError(path) from None
        batch = self.dataset.read_batch([id])
        return _buffer(batch.files(field)[0])

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **_: Any) -> Any:
        """The bytes of one sample, or {path: bytes} of many, read as one batch."""
        paths = self.expand_path(path, recursive=recursive)
        if isinstance(path, str) and paths == [self._strip_protocol(path)] and not recursive:
            return self.cat_file(path)
        paths = [path for path in paths if not self.isdir(path)]
        found = self.cat_ranges(paths, None, None, on_error="return")
        if on_error == "raise":
            for item in found:
                if isinstance(item, BaseException):
                    raise item
        return {
            path: item
            for path, item in zip(paths, found)
            if on_error != "omit" or not isinstance(item, BaseException)
        }

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """start:end of each path, in one call. Pieces that several ranges of one field touch are read once, except in
        data sets with field types."""
        count = len(paths)
        starts = list(starts) if isinstance(starts, Iterable) else [starts] * count
        ends = list(ends) if isinstance(ends, Iterable) else [ends] * count
        if len(starts) != count or len(ends) != count:
            raise ValueError(f"{count} paths, {len(starts)} starts and {len(ends)} ends")
        names = [self._strip_protocol(path) for path in paths]
        if any(start is not None or end is not None for start, end in zip(starts, ends)):
            return self._parts(paths, names, starts, ends, on_error)
        unique = list(dict.fromkeys(names))
        if not unique:
            return []
        views, why = self._views(unique) if self._fields else self._whole(unique)
        found: list[Any] = []
        for path, name, start, end in zip(paths, names, starts, ends):
            if name not in why:
                found.append(bytes(_buffer(views[name])[start:end]))
                continue
            error: Exception = why[name]
            if isinstance(error, LookupError):
                error = FileNotFoundError(path)
            if on_error == "raise":
                raise error
            found.append(error)
        return found

    def _parts(
        self, paths: list[str], names: list[str], starts: list[Any], ends: list[Any], on_error: str
    ) -> list[Any]:
        """start:end of each name; negative ones count from the end, as in a slice."""
        found: list[Any] = [None] * len(names)
        wanted: dict[str | None, list[tuple[int, tuple[int, int, int | None]]]] = {}
        for at, (name, start, end) in enumerate(zip(names, starts, ends)):
            try:
                id, field = self._find(name)
                if (start or 0) < 0 or (end or 0) < 0:
                    start, end, _ = slice(start, end).indices(self._length(name))
                wanted.setdefault(field, []).append((at, (id, start or 0, end)))
            except (NameNotFound, FileNotFoundError):
                found[at] = FileNotFoundError(paths[at])
        for field, parts in wanted.items():
            read: list[Any] = (
                [self._part(field, *part) for _, part in parts]
                if self._typed
                else self.dataset.read_ranges([part for _, part in parts], "return", fields=field)
            )
            for (at, _), item in zip(parts, read):
                # _find has found the sample, so NotFound means that it lacks the field.
                found[at] = b"" if self.dataset.fields and isinstance(item, NotFound) else item
        if on_error == "raise":
            for item in found:
                if isinstance(item, BaseException):
                    raise item
        return found

    def _part(self, field: str | None, id: int, start: int, end: int | None) -> bytes | Exception:
        """start:end of a file whose bytes may differ from those of its field, by its format."""
        try:
            file = self.dataset.open_sample(id, fields=field, as_file=True)
            return file.read(start, max((file.size if end is None else end) - start, 0))
        except Error as error:
            return error

    def _whole(self, names: list[str]) -> tuple[dict[str, Any], dict[str, Exception]]:
        """The samples with these names; for names that cannot be read, the errors."""
        batch = self.dataset.read_batch(names, on_error="none")
        why = {names[at]: error for at, error in batch.failures}
        return dict(zip(names, batch.files())), why

    def _views(self, paths: list[str]) -> tuple[dict[str, Any], dict[str, Exception]]:
        """The files at these paths, each a field of a sample, and the errors of those that cannot be read. Each sample
        is read once."""
        places: dict[str, tuple[int, str]] = {}
        why: dict[str, Exception] = {}
        for path in paths:
            try:
                id, field = self._find(path)
                places[path] = id, str(field)
            except NameNotFound as error:
                why[path] = error
        ids = list(dict.fromkeys(id for id, _ in places.values()))
        if not ids:
            return {}, why
        batch = self.dataset.read_batch(ids, on_error="none")
        at, failed = {id: at for at, id in enumerate(ids)}, dict(batch.failures)
        fields = {field: batch.files(field) for field in {field for _, field in places.values()}}
        for path, (id, _) in places.items():
            if at[id] in failed:
                why[path] = failed[at[id]]
        return {path: fields[field][at[id]] for path, (id, field) in places.items()}, why

    def _open(self, path: str, mode: str = "rb", **_: Any) -> _File | _LargeFile:
        if mode != "rb":
            raise Refused(f"dlfs:// is read-only: {path} cannot be opened with mode {mode!r}")
        name = self._strip_protocol(path)
        try:
            id = self._find(name)[0]
        except NameNotFound:
            raise FileNotFoundError(path) from None
        size = self._size(id)
        if size is None or size > _READ_WHOLE:
            file = self._opened(path)
            if file is not None and file.size > _READ_WHOLE:
                return _LargeFile(path, file)
        return _File(path, self._view(path))

    def _refuse(self, *what: Any, **_: Any) -> NoReturn:
        raise Refused(f"dlfs:// is read-only: nothing can be written ({what[0] if what else '?'})")

    mkdir = makedirs = rmdir = rm = rm_file = mv = copy = cp_file = put = put_file = _refuse
    touch = pipe = pipe_file = _refuse

    def created(self, path: str) -> Any:
        """Not available: images have no times of samples."""
        raise NotImplementedError("images have no times of samples")

    modified = created

    def ukey(self, path: str) -> str:
        """A key that changes when the data set does."""
        return f"{self.dataset.uuid}-{self.dataset.generation}-{self._strip_protocol(path)}"


def _buffer(sample: Any) -> memoryview:
    """The bytes of a file, a sample or a field. None, for a sample without the field, is an empty file."""
    return memoryview(b"" if sample is None else sample)


# The most bytes of a file that is read whole when it is opened.
_READ_WHOLE = 1 << 20


class _Raw(io.RawIOBase):
    """A large sample as an unbuffered file: it reads from the data set at a position."""

    mode = "rb"

    def __init__(self, path: str, file: SampleFile) -> None:
        self.name, self._file, self._at = path, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        got = self._file.readinto(self._at, buffer)
        self._at += got
        return got

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}.get(whence)
        if base is None:
            raise ValueError(f"whence is 0, 1 or 2, not {whence!r}")
        if base + offset < 0:
            raise ValueError(f"the position {base + offset} is before the beginning of {self.name}")
        self._at = base + offset
        return self._at


class _LargeFile(io.BufferedReader):
    """A large sample, opened for reading: only the pieces that are read come from the data set."""

    # For fsspec's block caches.
    blocksize = 1 << 20

    def __init__(self, path: str, file: SampleFile) -> None:
        super().__init__(_Raw(path, file), 128 << 10)
        self.path, self.size, self._sample = path, file.size, file

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._sample.read(start, max(end - start, 0))

    def write(self, *_: Any) -> NoReturn:
        raise io.UnsupportedOperation(f"dlfs:// is read-only: {self.path} was opened for reading")

    writelines = truncate = write


class _File(io.BytesIO):
    """The bytes of a sample, opened for reading."""

    mode = "rb"
    # For fsspec's block caches.
    blocksize = 1 << 20
    closed = False

    def __init__(self, path: str, view: memoryview) -> None:
        super().__init__(view)
        self.path, self.size = path, len(view)

    def close(self) -> None:
        self.closed = True
        super().close()

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.getbuffer()[start:end])

    def writable(self) -> bool:
        return False

    def write(self, *_: Any) -> NoReturn:
        raise io.UnsupportedOperation(f"dlfs:// is read-only: {self.path} was opened for reading")

    writelines = truncate = write
