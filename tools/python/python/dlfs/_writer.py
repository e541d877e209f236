"""Writes images from Python, sample by sample: Writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ._dlfs import Writer as _Writer

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from . import Addresses

Type = str | type


class Written(NamedTuple):
    """The result of a commit: the samples that were added, and the image as it is now."""

    samples: int
    sample_bytes: int
    live_samples: int
    chunks: int
    image_bytes: int
    generation: int
    image: str


class Writer(_Writer):
    """Writes samples as a new image, or adds them to one.

        with dlfs.Writer("train.dlfs", fields=("jpg", "txt"), columns={"width": int}) as out:
            for name, jpg, caption in photos:
                out.write({"jpg": jpg, "txt": caption, "width": 512}, name=name, label="cat")

    address         where: a path, or the addresses of namespaces, as for dlfs.open; several make a striped image
    fields          names of the fields of a sample, or names and types: "bytes" or None, or an element type and a shape
                    such as "i64", "f32[768]", "u8[3,224,224]", or "u16[*]" with a length of its own for each sample.
                    A field with an element type takes arrays, and numbers that become one. None: a sample is bytes,
                    without a name for them; or, with append, the fields of the image
    columns         typed label columns, which Dataset.select compares: names and types (int, float, bool, str or
                    "f32"). Their values come with the fields, in one mapping
    shuffle         True: samples that are written together are shuffled among each other, shuffle_bytes at a time.
                    False: they lie on media as they are written
    count           the number of samples that will be written: all are shuffled together, as by dlfs import, and the
                    program must write them in the order in which `next_id` names them. Only with shuffle=True
    append          add to the image that is there, as its next generation
    overwrite       discard at once whatever is there: it does not come back if the block raises
    seed            of the shuffle
    chunk_size      bytes of a chunk, a power of two from 64 KiB to 256 MiB
    pack            "aligned" or "tight": see dlfs import --help
    shuffle_bytes   bytes of samples that are shuffled together. Twice as many are in memory
    catalog         also give the image this name in a catalogue: "dlfs://CATALOGUE/NAME"
    options         how to connect, as for dlfs.open

    Nothing is visible before the end of the block, which commits all samples as one generation. If the block raises,
    the process dies or the disk is full, the image is as it was before, except with `overwrite`. Several threads may
    write; without `count`, ids ascend in the order of the writes. A writer belongs to the process that made it.
    """

    written: Written | None = None  # None before the commit

    def __new__(
        cls,
        address: Addresses,
        fields: Mapping[str, str | None] | Iterable[str] | None = None,
        *,
        columns: Mapping[str, Type] | None = None,
        shuffle: bool = True,
        count: int | None = None,
        append: bool = False,
        overwrite: bool = False,
        seed: int = 0,
        chunk_size: int = 4 << 20,
        pack: Literal["aligned", "tight"] = "aligned",
        shuffle_bytes: int = 64 << 20,
        catalog: str | None = None,
        accept_older_generation: bool = False,
        **options: Any,
    ) -> Self:
        if isinstance(fields, (str, bytes)):
            raise TypeError("fields is a sequence of names, not one name")
        how = {
            "fields": _named(fields),
            "columns": [(name, _type_name(kind)) for name, kind in (columns or {}).items()],
            "append": append,
            "overwrite": overwrite,
            "shuffle": shuffle,
            "count": count,
            "seed": seed,
            "chunk_size": chunk_size,
            "pack": pack,
            "shuffle_bytes": shuffle_bytes,
            "catalog": catalog,
            "accept_older_generation": accept_older_generation,
        }
        return super().__new__(cls, address, how, options)

    def finish(self) -> Written:
        """Commits what was written as one generation, as a `with` block does at its end."""
        self.written = Written(**self._finish())
        return self.written

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.discard()
        elif not self._is_over:
            self.finish()


def _named(fields: Mapping[str, str | None] | Iterable[str] | None) -> list[tuple[str, str | None]]:
    if isinstance(fields, Mapping):
        return list(fields.items())
    return [(name, None) for name in fields or ()]


def _type_name(kind: Type) -> str:
    return kind.__name__ if isinstance(kind, type) else kind
