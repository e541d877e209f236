#!/usr/bin/env python3
"""How fast rows of Parquet become an image, beside pyarrow that reads the same rows and writes them to one file.

    python benches/rows.py DIR [--dlfs target/release/dlfs] [--size 102400] [--bytes 1073741824] [--rounds 5]

The rows have random bytes of one size and a number, in files of 128 MiB with row groups of 16 MiB, without
compression and with Snappy, which is what pyarrow writes by default. Each round imports them with `dlfs import`, shuffled
and in their order, then reads them with pyarrow's `iter_batches` and writes the bytes; both end with an fsync. The files
are in the page cache. What is printed are seconds, MB/s and the ratios of the medians. Needs pyarrow. DIR gets twice as
many bytes as --bytes.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import time
from pathlib import Path


def make(folder, size, total, compression):
    """Parquet files of random rows."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    draw = random.Random(size)
    rows = (128 << 20) // size
    for number in range(max(1, total // (128 << 20))):
        images = [draw.randbytes(size) for _ in range(rows)]
        table = pyarrow.table({"image": pyarrow.array(images, pyarrow.binary()), "number": list(range(rows))})
        pyarrow.parquet.write_table(
            table, folder / f"{number:03}.parquet", row_group_size=(16 << 20) // size, compression=compression
        )
    return sorted(folder.iterdir())


def with_dlfs(dlfs, files, image, *options):
    subprocess.run([dlfs, "import", *files, image, *options], check=True, stdout=subprocess.DEVNULL)


def with_pyarrow(files, out_path):
    import pyarrow.parquet

    with open(out_path, "wb") as out:
        for file in files:
            for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=64):
                for value in batch.column("image"):
                    out.write(value.as_buffer())
        out.flush()
        os.fsync(out.fileno())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--dlfs", default="target/release/dlfs")
    parser.add_argument("--size", type=int, default=100 << 10)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    folder = args.dir / "rows"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for compression in ("none", "snappy"):
        files = make(folder / compression, args.size, args.bytes, compression)
        ways = {
            "dlfs import": lambda: with_dlfs(args.dlfs, files, folder / "out"),
            "dlfs import --placement source": lambda: with_dlfs(
                args.dlfs, files, folder / "out", "--placement", "source"
            ),
            "pyarrow": lambda: with_pyarrow(files, folder / "out"),
        }
        total = sum(file.stat().st_size for file in files)
        taken = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, way in ways.items():
                os.sync()
                begun = time.perf_counter()
                way()
                seconds = time.perf_counter() - begun
                (folder / "out").unlink()
                taken[name].append(seconds)
                print(f"{compression:<7} {name:<31} {seconds:7.2f} s {total / seconds / 1e6:8,.0f} MB/s", flush=True)
        other = statistics.median(taken["pyarrow"])
        for name in list(ways)[:2]:
            print(f"{compression:<7} {name} is {other / statistics.median(taken[name]):.2f} of pyarrow")
        shutil.rmtree(folder / compression)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
