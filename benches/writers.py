#!/usr/bin/env python3
"""How fast samples that a program makes are written: dlfs.Writer beside other libraries, and dd.

    python benches/writers.py DIR [--sizes 4096 112640] [--bytes 1073741824] [--rounds 3]

Each round writes the same random samples, in this order: with dlfs.Writer, shuffled and not; with MosaicML's
MDSWriter without compression or hashes, its default; with LitData's optimize, in this process; and with dd and
fsync as one file. All end with the data on disk: the others are followed by an fsync of each of their files.
What is printed are samples a second and, at the end, the ratios of the medians. Needs the wheel; libraries that are
not installed are left out. DIR gets as many bytes as --bytes at a time.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import time
from functools import partial
from pathlib import Path

BLOCKS = 256


def with_dlfs(folder, blocks, count, shuffle):
    import dlfs

    with dlfs.Writer(folder / "image", ("data",), shuffle=shuffle) as out:
        for number in range(count):
            out.write({"data": blocks[number % BLOCKS]})


def with_mosaicml(folder, blocks, count):
    from streaming import MDSWriter

    with MDSWriter(out=str(folder / "mds"), columns={"data": "bytes"}) as out:
        for number in range(count):
            out.write({"data": blocks[number % BLOCKS]})
    sync_files(folder)


def sample_of(blocks, number):
    return {"data": blocks[number % BLOCKS]}


def with_litdata(folder, blocks, count):
    import litdata

    litdata.optimize(
        partial(sample_of, blocks),
        inputs=list(range(count)),
        output_dir=str(folder / "lit"),
        chunk_bytes="64MB",
        num_workers=1,
        verbose=False,
    )
    sync_files(folder)


def with_dd(folder, blocks, count):
    """As the writers do: the blocks one behind the other, through a pipe of none; then fsync."""
    source = folder / "source"
    source.write_bytes(b"".join(blocks))
    size = len(blocks[0])
    begun = time.perf_counter()
    with open(folder / "copy", "wb") as out:
        written = 0
        while written < count:
            some = min(BLOCKS, count - written)
            command = ["dd", f"if={source}", f"bs={size}", f"count={some}", "status=none"]
            subprocess.run(command, stdout=out, check=True)
            written += some
        os.fsync(out.fileno())
    return time.perf_counter() - begun


def sync_files(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


WRITERS = {
    "dlfs.Writer": partial(with_dlfs, shuffle=True),
    "dlfs.Writer, shuffle=False": partial(with_dlfs, shuffle=False),
    "MDSWriter": with_mosaicml,
    "litdata.optimize": with_litdata,
    "dd and fsync": with_dd,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 112640])
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(versions())
    for size in args.sizes:
        draw = random.Random(size)
        blocks, count = [draw.randbytes(size) for _ in range(BLOCKS)], args.bytes // size
        rates = {name: [] for name in WRITERS}
        for _ in range(args.rounds):
            for name, write in WRITERS.items():
                seconds = timed(args.dir / "writers", write, blocks, count)
                if seconds is not None:
                    rates[name].append(count / seconds)
                    rate, megabytes = count / seconds, size * count / seconds / 1e6
                    print(f"{size:>7} B  {name:<28} {rate:>10,.0f}/s {megabytes:>8,.0f} MB/s", flush=True)
        ours = statistics.median(rates["dlfs.Writer"])
        for name, found in rates.items():
            if found:
                print(f"{size:>7} B  dlfs.Writer is {ours / statistics.median(found):6.2f} of {name}")


def timed(folder, write, blocks, count):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()
    begun = time.perf_counter()
    try:
        own = write(folder, blocks, count)
    except ImportError:
        return None
    finally:
        taken = time.perf_counter() - begun
        shutil.rmtree(folder)
    return own or taken


def versions():
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in ("dlfs-loader", "mosaicml-streaming", "litdata"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"without {name}")
    return ", ".join(found)


if __name__ == "__main__":
    main()
