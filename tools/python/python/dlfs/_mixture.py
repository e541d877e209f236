"""Mixtures: several data sets as one sequence, in given proportions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Context, Decimal, InvalidOperation
from operator import index
from typing import Any, Literal, NamedTuple, TypeAlias

from ._dlfs import Batch, Dataset
from ._dlfs import Mixture as _Mixture
from ._errors import InvalidArgument


class Repeat(NamedTuple):
    """Part of a mixture: `times` times the samples of the data set."""

    times: float | str | Decimal


class Choose(NamedTuple):
    """Part of a mixture: this number of samples."""

    samples: int


Weight: TypeAlias = "float | str | Decimal"


def repeat(times: float | str | Decimal) -> Repeat:
    """Part of a mixture: each epoch has `times` times the samples of the data set, rounded down; 0.5 is half."""
    return Repeat(times)


def choose(samples: int) -> Choose:
    """Part of a mixture: each epoch has this number of samples of the data set, whatever its length."""
    return Choose(samples)


class Mixture(_Mixture):
    """Several data sets as one. dlfs.Loader and dlfs.torch.IterableDataset, and so dlfs.torch.DataLoader, take a
    mixture wherever they take a data set.

        mixture = dlfs.Mixture([(web, 0.7), (code, 0.2), (books, 0.1)], epoch_size=1_000_000)
        for batch in dlfs.Loader(mixture, batch_size=256):
            for view, source in zip(batch, batch.sources): ...   # the number of its data set: 0, 1 or 2

    parts        pairs of a data set and its part: a weight beside the others, as a number or the text of a decimal
                 number; or dlfs.repeat(times) or dlfs.choose(samples) for all of them. A part of 0 is for a data set
                 that a later phase has; each data set is there once
    epoch_size   samples of an epoch. None: what repeat and choose say, or as many as all data sets have
    batching     "stratified": each global batch has its share of each data set, one or two more or less; "random":
                 as chance has it; "per_source": each global batch is of one data set, and an epoch of weights without
                 epoch_size ends with its last whole batch. ("per_source", n) fixes the number of samples of a global
                 batch, of which epochs and phases must be multiples. This number is part of the sequence, so a run
                 that resumes with another global batch names the first run's
    phases       a curriculum: pairs of a position in the run, counted in samples of all ranks, and the weights of all
                 data sets from there on. A run that resumes may have other phases after the samples consumed so far
    count        what weights and the starts of phases count: "samples"; or "tokens" of documents, "tokens:FIELD" or
                 "tokens:FIELD:TYPE" if their field is to be named, "lengths:COLUMN" for those in a column of ints.
                 Lengths are read here, once, and separators do not count. Other numbers of samples stay

    The number of samples of each data set in an epoch is exact: counts(). A data set that is used up begins again,
    shuffled anew; a data set that is not goes on in the next epoch where it was. Ids, labels and fields of a batch are
    those of the data set that `sources` names; all data sets have the same fields. The state has one position, and
    resumes with any world size, batch size and number of workers; a state of another mixture is refused, and the
    message says which data set differs. len() is the samples of an epoch. The mixture does not keep its data sets open:
    the caller does.
    """

    def __new__(
        cls,
        parts: Iterable[tuple[Dataset, Weight | Repeat | Choose]],
        *,
        epoch_size: int | None = None,
        batching: Literal["stratified", "random", "per_source"]
        | tuple[Literal["per_source"], int] = "stratified",
        phases: Iterable[tuple[int, Sequence[Weight]]] = (),
        count: str = "samples",
    ) -> Mixture:
        pairs = [_pair(at, part) for at, part in enumerate(parts)]
        kind, batch = (batching, 0) if isinstance(batching, str) else batching
        if not isinstance(batching, str) and (kind != "per_source" or batch < 1):
            raise InvalidArgument(f'batching: ("per_source", samples of a global batch), not {batching!r}')
        later = [
            (int(start), [_decimal(weight, f"phase {at}") for weight in weights])
            for at, (start, weights) in enumerate(phases, 1)
        ]
        if kind not in ("stratified", "random", "per_source"):
            raise InvalidArgument(f'batching is "stratified", "random" or "per_source", not {kind!r}')
        made = super().__new__(
            cls,
            [dataset for dataset, _ in pairs],
            [text if kind == "weight" else f"{kind}:{text}" for _, (kind, text) in pairs],
            epoch_size,
            f"per-source:{index(batch)}" if batch else kind.replace("_", "-"),
            [f"{start}:{','.join(weights)}" for start, weights in later],
            count,
        )
        made._made_of = (pairs, epoch_size, (kind, batch), later, count)
        return made

    _made_of: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, self._made_of

    def __repr__(self) -> str:
        parts = ", ".join(f"{text} of {dataset!r}" for dataset, (_, text) in self._made_of[0])
        return f"<dlfs.Mixture: {parts}>"

    # The part of a data set's interface that dlfs.torch uses.

    def _pinned(self, global_batch: int) -> Mixture:
        """This mixture with a fixed global batch: "per_source" without a number gets `global_batch`, so that the
        sequence is the same with any number of workers."""
        pairs, epoch_size, (kind, batch), later, count = self._made_of
        if kind != "per_source" or batch:
            return self
        if epoch_size is None and all(kind == "weight" for _, (kind, _) in pairs):
            whole = len(self) // global_batch * global_batch
            epoch_size = whole or None
        return _remake(pairs, epoch_size, (kind, global_batch), later, count)

    @property
    def ids(self) -> _Keys:
        return _Keys()

    def read_batch(self, ids: Sequence[int], on_error: str = "raise", fields: Any = None) -> Batch:
        """Samples by the keys that a sampler of this mixture gives."""
        return self._read(list(ids), on_error, fields)


class _Keys:
    """In place of a list of ids: a sampler of a mixture gives keys of samples, which are not positions in a list."""

    def __getitem__(self, key: int) -> int:
        return key


def _remake(
    pairs: list[tuple[Dataset, tuple[str, str]]],
    epoch_size: int | None,
    batching: tuple[Any, int],
    phases: list[tuple[int, list[str]]],
    count: str,
) -> Mixture:
    def part(kind: str, text: str) -> str | Repeat | Choose:
        if kind == "repeat":
            return Repeat(text)
        return Choose(int(text)) if kind == "choose" else text

    parts = [(dataset, part(*given)) for dataset, given in pairs]
    kind: Any = batching if batching[1] else batching[0]
    return Mixture(parts, epoch_size=epoch_size, batching=kind, phases=phases, count=count)


def _pair(at: int, given: Any) -> tuple[Dataset, tuple[str, str]]:
    """Checks part number `at`; returns its data set, and kind and number of the part."""
    try:
        dataset, part = given
    except (TypeError, ValueError):
        raise TypeError(f"part {at} of a mixture is a pair of a data set and its part, not {given!r}") from None
    if not isinstance(dataset, Dataset):
        kind = type(dataset).__qualname__
        raise TypeError(f"part {at} of a mixture is of a {kind}, not of what dlfs.open returned")
    if isinstance(part, Repeat):
        return dataset, ("repeat", _decimal(part.times, f"part {at}"))
    if isinstance(part, Choose):
        if not isinstance(part.samples, int) or part.samples < 0:
            raise InvalidArgument(f"part {at}: choose takes a number of samples, not {part.samples!r}")
        return dataset, ("choose", str(part.samples))
    return dataset, ("weight", _decimal(part, f"part {at}"))


# The least weight above 0.
_LEAST = Decimal("1e-18")


def _decimal(weight: Any, where: str) -> str:
    """A weight as the text of a decimal number: 0.7 means seven tenths, not the nearest fraction of powers of two."""
    try:
        number = Decimal(weight if isinstance(weight, (str, Decimal)) else repr(float(weight)))
    except (InvalidOperation, TypeError, ValueError):
        raise InvalidArgument(f"{where}: a weight is a number of at most 18 digits, not {weight!r}") from None
    if not number.is_finite() or number < 0:
        raise InvalidArgument(f"{where}: a weight is 0 or more, not {weight!r}")
    if not isinstance(weight, (str, Decimal)) and number < 1:
        # A small float, such as 1 / 300, has its digits further behind the point than the library takes them.
        number = number.quantize(_LEAST, context=Context(prec=40, traps=[])) or number
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") or "0" if "." in text else text
