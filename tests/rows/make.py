#!/usr/bin/env python3
"""Writes the files of rows that tests/all/import_rows.rs imports, with the writers that people have.

Needs `pip install pyarrow datasets mosaicml-streaming litdata`; of the last two, the writers alone: what they open at
import and do not use here may be missing. All files hold the rows of `row`, so that one test knows them all.

    tests/rows/make.py        writes them anew beside itself
"""

import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools" / "python" / "tests"))

from mosaicml_counts import Empty  # noqa: E402

ROWS = 40


class Missing(Empty):
    PACKAGES = (*Empty.PACKAGES, "lightning_sdk", "tifffile")


def row(at):
    """Row `at`: what tests/all/import_rows.rs computes too."""
    return {
        "image": bytes((at * 7 + byte) % 256 for byte in range(20 + 3 * at)),
        "text": f"row {at} \u00e9",
        "number": at * at - 5,
        "vector": [at / 4, -1.0, 0.5],
        "tokens": [at + step for step in range(at % 5)],
        "label": at % 3,
    }


def arrow():
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row(at) for at in range(ROWS)]
    table = pa.table({
        "image": pa.array([one["image"] for one in rows], pa.binary()),
        "text": pa.array([one["text"] for one in rows], pa.string()),
        "number": pa.array([one["number"] for one in rows], pa.int64()),
        "vector": pa.array([one["vector"] for one in rows], pa.list_(pa.float32(), 3)),
        "tokens": pa.array([one["tokens"] for one in rows], pa.list_(pa.uint16())),
        "label": pa.array([one["label"] for one in rows], pa.int8()),
    })  # fmt: skip
    for codec in ("none", "snappy", "zstd", "gzip", "lz4"):
        pq.write_table(table, HERE / f"{codec}.parquet", row_group_size=16, compression=codec)
    pq.write_table(table.slice(0, 25), HERE / "pair-0.parquet")
    pq.write_table(table.slice(25), HERE / "pair-1.parquet")
    other = table.set_column(1, "text", table["text"].dictionary_encode())
    for at, kind in ((0, pa.large_binary()), (3, pa.large_list(pa.float32()))):
        other = other.set_column(at, table.column_names[at], table.column(at).cast(kind))
    pq.write_table(other, HERE / "dictionary.parquet")
    views = table.set_column(0, "image", table["image"].cast(pa.binary_view()))
    views = views.set_column(1, "text", table["text"].cast(pa.string_view()))
    with pa.OSFile(str(HERE / "file.arrow"), "wb") as out, pa.ipc.new_file(out, views.schema) as writer:
        writer.write_table(views, max_chunksize=11)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(HERE / "stream.arrow"), "wb") as out:
        with pa.ipc.new_stream(out, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=11)


def differing():
    """Files of one data set whose columns differ, and one whose pages have checksums."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = pa.table({"n": pa.array([1, None], pa.int32()), "t": ["a", "b"], "none": pa.nulls(2)})
    second = pa.table({"t": ["c"], "n": pa.array([2**40], pa.int64()), "none": [7], "more": pa.array([0.5], pa.float32())})
    pq.write_table(first, HERE / "differing-0.parquet", compression="none")
    pq.write_table(second, HERE / "differing-1.parquet", compression="none")
    for at, table in enumerate((first, second)):
        with pa.OSFile(str(HERE / f"differing-{at}.arrow"), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    sums = {"compression": "none", "write_page_checksum": True, "use_dictionary": False}
    pq.write_table(pa.table({"t": ["checksum"]}), HERE / "checksums.parquet", **sums)


def big_endian():
    """A stream as a machine of the other byte order writes it: one column of int32, 1 to 10; pyarrow writes none."""
    import struct

    import flatbuffers
    import numpy
    import pyarrow as pa

    b = flatbuffers.Builder(256)
    name = b.CreateString("n")
    b.StartObject(2)
    b.PrependInt32Slot(0, 32, 0)
    b.PrependBoolSlot(1, True, False)
    kind = b.EndObject()
    b.StartVector(4, 0, 4)
    children = b.EndVector()
    b.StartObject(7)
    b.PrependUOffsetTRelativeSlot(0, name, 0)
    b.PrependUint8Slot(2, 2, 0)
    b.PrependUOffsetTRelativeSlot(3, kind, 0)
    b.PrependUOffsetTRelativeSlot(5, children, 0)
    field = b.EndObject()
    b.StartVector(4, 1, 4)
    b.PrependUOffsetTRelative(field)
    fields = b.EndVector()
    b.StartObject(4)
    b.PrependInt16Slot(0, 1, 0)
    b.PrependUOffsetTRelativeSlot(1, fields, 0)
    schema = b.EndObject()
    b.StartObject(5)
    b.PrependInt16Slot(0, 4, 0)
    b.PrependUint8Slot(1, 1, 0)
    b.PrependUOffsetTRelativeSlot(2, schema, 0)
    b.Finish(b.EndObject())
    head = bytes(b.Output())
    head += bytes(-(len(head) + 8) % 8)
    values = numpy.arange(1, 11, dtype="<i4")
    own = pa.schema([pa.field("n", pa.int32(), nullable=False)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, own) as writer:
        writer.write_batch(pa.record_batch([pa.array(values)], schema=own))
    raw = sink.getvalue().to_pybytes()
    (first,) = struct.unpack_from("<I", raw, 4)
    rest = raw[8 + first :].replace(values.tobytes(), values.astype(">i4").tobytes())
    (HERE / "big-endian.arrow").write_bytes(struct.pack("<II", 0xFFFFFFFF, len(head)) + head + rest)


def hugging_face():
    import datasets

    rows = [row(at) for at in range(ROWS)]
    features = datasets.Features({
        "image": datasets.Image(decode=False),
        "grid": datasets.Array2D((2, 3), "int32"),
        "label": datasets.ClassLabel(names=["cat", "dog", "eel"]),
    })  # fmt: skip
    data = datasets.Dataset.from_dict(
        {
            "image": [{"bytes": one["image"], "path": f"{at}.jpg"} for at, one in enumerate(rows)],
            "grid": [[[at, 1, 2], [3, 4, 5]] for at in range(ROWS)],
            "label": [one["label"] if at != 7 else -1 for at, one in enumerate(rows)],
        },
        features=features,
    )
    data.to_parquet(HERE / "hub.parquet")


def mds():
    import numpy
    from streaming import MDSWriter

    columns = {
        "image": "bytes", "text": "str", "number": "int", "vector": "ndarray:float32:3", "tokens": "ndarray:uint16",
        "any": "ndarray", "label": "int8",
    }  # fmt: skip
    for name, compression in (("mds", None), ("mds-zstd", "zstd")):
        with MDSWriter(
            out=str(HERE / name), columns=columns, compression=compression, size_limit=2000, hashes=["sha1"]
        ) as out:
            for at in range(ROWS):
                one = row(at)
                one["vector"] = numpy.array(one["vector"], "float32")
                one["tokens"] = numpy.array([at, *one["tokens"]], "uint16")  # it takes no empty ones
                one["any"] = numpy.full((1 + at % 2, 2), at, "int64")
                out.write(one)


def litdata():
    import numpy
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    for name, compression in (("litdata", None), ("litdata-zstd", "zstd")):
        folder = HERE / name
        how = {} if compression is None else {"compression": compression, "compression_level": "chunk"}
        writer = BinaryWriter(str(folder), chunk_size=16, **how)
        for at in range(ROWS):
            one = row(at)
            writer[at] = {
                "image": one["image"],
                "text": one["text"],
                "number": one["number"],
                "pair": [numpy.array(one["vector"], "float32"), torch.full((2, 1 + at % 2), at).T],
                "label": one["label"],
            }
        writer.done()
        writer.merge(1)
    # Rows without arrays and pictures become Arrow files within the chunks.
    for name, compression in (("litdata-arrow", None), ("litdata-arrow-zstd", "zstd")):
        writer = BinaryWriter(str(HERE / name), chunk_size=16, compression=compression)
        for at in range(ROWS):
            one = row(at)
            writer[at] = {key: one[key] for key in ("text", "number", "tokens", "label")}
        writer.done()
        writer.merge(1)
    folder = HERE / "litdata-tokens"
    writer = BinaryWriter(str(folder), chunk_size=1000, item_loader=TokensLoader())
    for at in range(ROWS):
        writer[at] = torch.tensor([at, *row(at)["tokens"]], dtype=torch.int32)
    writer.done()
    writer.merge(1)


def json_lines():
    with (HERE / "lines.jsonl").open("w") as out:
        for at in range(ROWS):
            one = row(at)
            one["image"] = one["image"].hex()
            one["nested"] = {"at": at}
            out.write(json.dumps(one) + "\n")


if __name__ == "__main__":
    sys.meta_path.append(Missing())
    for old in HERE.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
        elif old.name != Path(__file__).name:
            old.unlink()
    for write in (arrow, differing, big_endian, hugging_face, mds, litdata, json_lines):
        write()
