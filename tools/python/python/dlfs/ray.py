"""dlfs for Ray Data: a sink that writes an image by many tasks, and a source that reads one.

    ray.data.read_parquet("s3://...").write_datasink(dlfs.ray.Datasink(["a.dlfs", "b.dlfs"]), concurrency=2)
    ray.data.read_datasource(dlfs.ray.Datasource("train.dlfs")).map_batches(...)

The module needs ray[data]. Its interfaces are Ray's developer API, which changes in minor versions: 2.60 is tested.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy
import pyarrow
import ray.data
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.datasource import ReadTask

from . import NO_LABEL, Busy, Dataset, Stale, WritePlan, WrittenPart
from . import open as _open
from ._arrow import column_kind, table_rows, text_of
from ._dlfs import Sampler as _Sampler
from ._writer import Type

__all__ = ["Datasink", "Datasource"]


class Datasink(ray.data.Datasink[WrittenPart]):  # type: ignore[misc]
    """Writes the rows of a Ray data set as a new image: `ds.write_datasink(dlfs.ray.Datasink(address), concurrency=2)`.

    Each write task writes one part (dlfs.WritePlan) onto a namespace that is free, and the driver commits the parts of
    those tasks that Ray counts, in the order of the tasks. Ray repeats a task that fails or is killed; of several
    attempts one counts, and the others become free space. Nothing is visible before the commit.

    address     the addresses of the namespaces, which all nodes reach. As many tasks write at once as there are
                namespaces: give write_datasink(concurrency=) that number. Other tasks wait for `wait` seconds
    fields      the columns to take as fields, or their names and types, as for dlfs.Writer. None: all except name,
                label and columns, with the types that the first block has
    columns     typed label columns: names and types
    name        the column that is the name of the sample. None: a name of part and row, which differ from run to run
    label       the column that is the label: a number, or the name of one of `classes`
    classes     the names of classes, where labels are names
    min_rows    the least rows of a task: Ray puts blocks together until they have that many. A part costs a few
                milliseconds, and up to a chunk of space
    wait        how long a task waits for a namespace that nobody else writes to, in seconds
    catalog     also give the image this name in a catalogue: "dlfs://CATALOGUE/NAME"
    options     shuffle, overwrite, seed, chunk_size, pack, shuffle_bytes, and how to connect: as for dlfs.WritePlan

    `written` is the result of the commit. Rows are shuffled only within windows of shuffle_bytes:
    Dataset.random_shuffle before the write mixes all of them.
    """

    def __init__(
        self,
        address: Any,
        fields: Mapping[str, str | None] | Iterable[str] | None = None,
        *,
        columns: Mapping[str, Type] | None = None,
        name: str | None = None,
        label: str | None = None,
        classes: Sequence[str] = (),
        min_rows: int | None = None,
        wait: float = 600,
        catalog: str | None = None,
        **options: Any,
    ) -> None:
        self.address, self.catalog, self.wait = address, catalog, wait
        given = fields if isinstance(fields, Mapping) else dict.fromkeys(fields or ())
        self.fields: dict[str, str | None] | None = None if fields is None else dict(given)
        self.columns, self.name, self.label, self.classes = dict(columns or {}), name, label, list(classes)
        self.options, self._min_rows = options, min_rows
        self.plan: WritePlan | None = None
        self.written: Any = None

    def on_write_start(self, schema: Any = None) -> None:
        """Plans the image, and prepares its namespaces, on the driver."""
        self.plan = WritePlan(
            self.address, self._kinds(schema), columns=self.columns, classes=self.classes, **self.options
        )

    def _kinds(self, schema: Any) -> dict[str, str | None]:
        """Names and types of the fields to write: as given, or from the schema of the first block."""
        schema = getattr(schema, "base_schema", schema)
        found: dict[str, str | None] = {}
        if isinstance(schema, pyarrow.Schema):
            found = {field.name: _kind_of(field.type) for field in schema}
        if self.fields is not None:
            kinds = {field: kind or found.get(field) for field, kind in self.fields.items()}
        elif not found:
            raise TypeError("the rows have no Arrow schema: say which fields they have with fields=")
        else:
            taken = {self.name, self.label, *self.columns}
            kinds = {field: kind for field, kind in found.items() if field not in taken}
        wrong = [f"{field} is {kind[1:]}" for field, kind in kinds.items() if kind is not None and kind[0] == "?"]
        if wrong:
            text = ", ".join(wrong)
            raise TypeError(f"some fields are neither bytes nor numbers: {text}; choose others with fields=")
        self.fields = kinds
        return kinds

    def write(self, blocks: Iterable[Any], ctx: Any) -> WrittenPart:
        """Writes one part, in a task."""
        out = self._begin(ctx.task_idx)
        with out:
            for block in blocks:
                for row in _rows_of(BlockAccessor.for_block(block).to_arrow()):
                    self._write_row(out, row)
        part: WrittenPart | None = out.written
        assert part is not None
        return part

    def _begin(self, number: int) -> Any:
        """A writer of a part, once a namespace is free."""
        assert self.plan is not None, "on_write_start was called on the driver"
        until, pause = time.monotonic() + self.wait, 0.05
        while True:
            try:
                return self.plan.part(number, anywhere=True)
            except Busy:
                if time.monotonic() > until:
                    raise
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, 2.0)

    def _write_row(self, out: Any, row: Mapping[str, Any]) -> None:
        name = None if self.name is None else _plain(row[self.name])
        label = None if self.label is None else _plain(row[self.label])
        sample = {key: row[key] for key in self.fields or () if key in row}
        sample |= {key: text_of(row[key]) for key in self.columns if key in row}
        out.write(sample, name=name if name is None or isinstance(name, bytes) else str(name), label=label)

    def on_write_complete(self, write_result: Any) -> None:
        """Commits, on the driver."""
        assert self.plan is not None, "on_write_start was called before"
        parts = sorted(write_result.write_returns, key=lambda part: part.number)
        self.written = self.plan.commit(parts, catalog=self.catalog)

    def on_write_failed(self, error: Exception) -> None:
        """Does nothing: no sample is visible, and the next write with overwrite=True begins again."""

    @property
    def min_rows_per_write(self) -> int | None:
        """`min_rows`, under Ray's name."""
        return self._min_rows

    def get_name(self) -> str:
        """The name of the write tasks in Ray."""
        return "dlfs"


class Datasource(ray.data.Datasource):  # type: ignore[misc]
    """Reads an image as a Ray data set: `ray.data.read_datasource(dlfs.ray.Datasource("train.dlfs"))`.

    A row has a column for each field ("data" if samples have one field without a name), and `id`; `label`, `name` and
    the typed columns if asked for. Fields with types are numbers, tensors, or lists for arrays of one dimension whose
    length is free; others are bytes. If samples of a batch lack a field, its arrays are flat lists. bfloat16 becomes
    float32. Every read task has consecutive samples in the order of `by`, and verifies them.

    address     as for dlfs.open
    fields      the fields to read. None: all of them
    view        a view of the data set, as for dlfs.open
    by          the order of the rows: "slot", as the samples lie on media, which is faster, or "id"
    batch_size  samples that are read together, and make a block at most
    label, name, columns
                True: rows have these
    options     how to connect, as for dlfs.open

    The generation is that of the data set at construction: a task that finds another one raises Stale.
    """

    def __init__(
        self,
        address: Any,
        *,
        fields: Any = None,
        by: Literal["slot", "id"] = "slot",
        batch_size: int = 1024,
        label: bool = True,
        name: bool = False,
        columns: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self._read = _Read(address, options, fields, batch_size, label, name, columns)
        with self._read.opened() as dataset:
            self._read.image, self._read.generation = dataset.uuid, dataset.generation
            self._ids = _ids_by(dataset, by)
            some = self._ids[:: max(1, len(self._ids) // 1000)]
            lengths = sum(dataset.length(int(id)) for id in some)
            self._bytes = lengths * len(self._ids) // max(1, len(some))

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of all samples, by the lengths of about a thousand of them."""
        return self._bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One task for each of `parallelism` runs of samples."""
        tasks, count = [], len(self._ids)
        for part in numpy.array_split(self._ids, max(1, min(parallelism, count))):
            size = self._bytes * len(part) // max(1, count)
            about = BlockMetadata(num_rows=len(part), size_bytes=size, input_files=None, exec_stats=None)
            limit: dict[str, Any] = {} if per_task_row_limit is None else {"per_task_row_limit": per_task_row_limit}
            tasks.append(ReadTask(self._read.of(part), about, **limit))
        return tasks

    def get_name(self) -> str:
        """The name of the read tasks in Ray."""
        return "dlfs"


class _Read:
    """What read tasks do: they open the data set and read their samples, block by block."""

    image = ""
    generation = 0

    def __init__(
        self, address: Any, options: dict[str, Any], fields: Any, batch: int, label: bool, name: bool, columns: bool
    ) -> None:
        self.address, self.options, self.fields, self.batch = address, options, fields, batch
        self.label, self.name, self.columns = label, name, columns

    def opened(self) -> Dataset:
        return _open(self.address, **self.options)

    def of(self, ids: Any) -> Callable[[], Iterator[pyarrow.Table]]:
        return lambda: self.blocks(ids)

    def blocks(self, ids: Any) -> Iterator[pyarrow.Table]:
        with self.opened() as dataset:
            if (dataset.uuid, dataset.generation) != (self.image, self.generation):
                raise Stale(
                    f"the data set was image {self.image}, generation {self.generation}, and now it is image "
                    f"{dataset.uuid}, generation {dataset.generation}"
                )
            for start in range(0, len(ids), self.batch):
                yield self.block(dataset, ids[start : start + self.batch])

    def block(self, dataset: Dataset, ids: Any) -> pyarrow.Table:
        batch = dataset.read_batch(ids, fields=self.fields)
        columns = {"id": pyarrow.array(numpy.asarray(batch.ids))}
        if self.name:
            columns["name"] = pyarrow.array([dataset.name(int(id)) for id in ids], pyarrow.string())
        if self.label:
            columns["label"] = _labels(batch.labels, len(ids))
        for name in batch.columns if self.columns else ():
            columns[name] = _values(dataset, name, ids)
        if not batch.fields:
            columns["data"] = _field(list(batch), batch.field_type)
        for name in batch.fields:
            columns[name] = _field(batch.field(name), batch.field_types.get(name))
        return pyarrow.table(columns)


def _ids_by(dataset: Dataset, by: str) -> Any:
    """The ids of all samples, in the order in which they are read."""
    if by == "id" or len(dataset) == 0:
        return dataset.ids
    sampler = _Sampler(dataset, batch_size=65536, order="sequential", epochs=1, _by_slot=True)
    runs = []
    while (found := sampler.next()) is not None:
        runs.append(numpy.asarray(found[0], "int64"))
    return dataset.ids[numpy.concatenate(runs)]  # a sampler gives indices


def _labels(labels: Any, count: int) -> pyarrow.Array:
    if labels is None:
        return pyarrow.nulls(count, pyarrow.int64())
    return pyarrow.array(labels, pyarrow.int64(), mask=labels == NO_LABEL)


def _values(dataset: Dataset, name: str, ids: Any) -> pyarrow.Array:
    kinds = {"int": pyarrow.int64(), "float": pyarrow.float64(), "f32": pyarrow.float32(), "bool": pyarrow.bool_()}
    kind = kinds.get(dataset.columns[name], pyarrow.string())
    return pyarrow.array([dataset.values(int(id))[name] for id in ids], kind)


def _field(values: list[Any], kind: Any) -> Any:
    """A column of one field: numbers, tensors or lists if it has a type, else bytes."""
    if kind is None:
        return pyarrow.array([None if value is None else bytes(value) for value in values], pyarrow.large_binary())
    arrays = [None if value is None else _known(numpy.asarray(value), kind.dtype) for value in values]
    element = pyarrow.from_numpy_dtype("float32" if kind.dtype == "bfloat16" else kind.dtype)
    if kind.shape == ():
        return pyarrow.array([None if array is None else array.item() for array in arrays], element)
    if any(array is None for array in arrays) or kind.shape == (None,) or not arrays:
        flat = [None if array is None else array.ravel() for array in arrays]
        return pyarrow.array(flat, pyarrow.list_(element))
    return _tensors(arrays, is_even=None not in kind.shape)


def _known(array: Any, dtype: str) -> Any:
    """The array in a type that Arrow has: bfloat16 becomes float32, which holds the same numbers.

    The bits of a bfloat16 are the upper half of those of the float32. Without ml_dtypes, the array has them as uint16.
    """
    if dtype != "bfloat16":
        return array
    return numpy.left_shift(array.view("uint16"), 16, dtype="uint32").view("float32")


def _tensors(arrays: list[Any], is_even: bool) -> Any:
    from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

    if is_even:
        return ArrowTensorArray.from_numpy(numpy.stack(arrays))
    each = numpy.empty(len(arrays), dtype=object)
    each[:] = arrays
    return ArrowVariableShapedTensorArray.from_numpy(each)


def _kind_of(kind: Any) -> str | None:
    """The type of a field with the values of a column, tensors of Ray included."""
    shape = getattr(kind, "shape", None)
    if shape is not None and hasattr(kind, "storage_type") and all(isinstance(size, int) for size in shape):
        element = column_kind(kind.storage_type.value_type)
        return f"{element}[{','.join(map(str, shape))}]"
    return column_kind(kind)


def _rows_of(table: Any) -> Iterator[dict[str, Any]]:
    rows = table_rows(table)
    assert rows is not None, "a table of pyarrow"
    return rows.rows_of(table)


def _plain(value: Any) -> Any:
    """A number or text of Python."""
    value = text_of(value)
    return value.item() if hasattr(value, "item") else value
