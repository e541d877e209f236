"""One image by many processes: each writes parts of it, and one commits them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ._dlfs import WritePlan as _WritePlan
from ._dlfs import Writer as _Writer
from ._writer import Type, Written, _named, _type_name

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from . import Addresses
from ._options import Address


class WrittenPart(NamedTuple):
    """A part that is complete; it may be pickled, and sent to whoever commits."""

    number: int
    namespace: int
    samples: int
    sample_bytes: int
    data: bytes


class WritePlan(_WritePlan):
    """A plan that the writers of one image share. It may be pickled, or saved to a file; writing does not change it.

        plan = dlfs.WritePlan(["a.dlfs", "b.dlfs"], {"jpg": "bytes", "cls": "i64"})   # once
        with plan.part(rank) as out:                                                  # in each process
            for jpg, number in photos:
                out.write({"jpg": jpg, "cls": number})
        plan.commit(world_size)                                                       # once, after all of them

    A part has any number of samples, which no other process needs to know. The image has the samples of part 0 first,
    then those of part 1, and so on; nothing is visible before the commit. If an attempt at a part fails, or its process
    is killed, write the part again; the space of the failed attempt is written over.

    address   the addresses of the namespaces, which do not exist or are empty, except with `overwrite`. A namespace
              takes one part at a time, so as many processes write at once as there are namespaces
    classes   the names of classes, where labels are names: the number of a class is its place in this list
    fields, columns, shuffle, overwrite, seed, chunk_size, pack, shuffle_bytes, options
              as for dlfs.Writer
    """

    _options: dict[str, Any]

    def __new__(
        cls,
        address: Addresses,
        fields: Mapping[str, str | None] | Iterable[str] | None = None,
        *,
        columns: Mapping[str, Type] | None = None,
        classes: Iterable[str] = (),
        shuffle: bool = True,
        overwrite: bool = False,
        seed: int = 0,
        chunk_size: int = 4 << 20,
        pack: Literal["aligned", "tight"] = "aligned",
        shuffle_bytes: int = 64 << 20,
        **options: Any,
    ) -> Self:
        if isinstance(fields, (str, bytes)):
            raise TypeError("fields is a sequence of names, not one name")
        how = {
            "fields": _named(fields),
            "columns": [(name, _type_name(kind)) for name, kind in (columns or {}).items()],
            "append": False,
            "overwrite": overwrite,
            "shuffle": shuffle,
            "count": None,
            "seed": seed,
            "chunk_size": chunk_size,
            "pack": pack,
            "shuffle_bytes": shuffle_bytes,
            "catalog": None,
            "accept_older_generation": False,
        }
        return cls._of(_WritePlan._create(address, how, list(classes), options), options)

    @classmethod
    def _of(cls, data: bytes, options: dict[str, Any]) -> Self:
        plan = super().__new__(cls, data, options)
        plan._options = options
        return plan

    @classmethod
    def load(cls, path: Address, **options: Any) -> Self:
        """The plan in a file that `save` wrote; `options` say how to connect, as for dlfs.open."""
        with open(os.fspath(path), "rb") as file:
            return cls._of(file.read(), options)

    def part(self, number: int, *, anywhere: bool = False) -> PartWriter:
        """A writer of part `number`, from 0: `with plan.part(number) as out: out.write(...)`.

        It writes onto namespace `number` modulo the number of namespaces; with `anywhere`, onto the next one that is
        free. Raises Busy if another part, or another attempt at this one, is being written there.
        """
        return PartWriter(self, number, anywhere)

    def complete(self) -> list[WrittenPart]:
        """The parts that are complete, and need not be written again; of each part, the last complete attempt."""
        return [WrittenPart(**part) for part in self._complete()]

    def commit(self, parts: int | Iterable[WrittenPart], *, catalog: str | None = None) -> Written:
        """Commits all parts as one generation, without other attempts at them; may be repeated.

        parts     the number of parts: of each, the last complete attempt counts. Or the parts themselves, such as the
                  attempts that an engine accepts, in their order in the image
        catalog   also give the image this name in a catalogue: "dlfs://CATALOGUE/NAME"

        Raises NotFound, which lists parts that are not complete, and InvalidArgument if two samples have one name.
        """
        if isinstance(parts, int):
            return Written(**self._commit(parts, [], catalog))
        return Written(**self._commit(None, [part.data for part in parts], catalog))

    def __reduce__(self) -> tuple[Any, ...]:
        return _plan_of, (type(self), self._to_bytes(), self._options)

    def __repr__(self) -> str:
        return f"dlfs.WritePlan(image={self.image}, {len(self.addresses)} namespaces)"


def _plan_of(cls: type[WritePlan], data: bytes, options: dict[str, Any]) -> WritePlan:
    return cls._of(data, options)


class PartWriter(_Writer):
    """Writes one part of an image: see WritePlan.part.

    Samples are written as by dlfs.Writer; write() returns the number of earlier samples of this part. A sample without
    a name gets one of the part's number and the sample's place in the part, 00003-000000017. The end of the block makes
    the part durable; if the block raises, there is no part.
    """

    written: WrittenPart | None = None  # None until the part is complete

    def __new__(cls, plan: WritePlan, number: int, anywhere: bool = False) -> Self:
        return super().__new__(cls, plan, {"number": number, "anywhere": anywhere}, {})

    def finish(self) -> WrittenPart:
        """Makes the part durable, as a `with` block does at its end."""
        self.written = WrittenPart(**self._finish_part())
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
