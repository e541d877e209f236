"""Shards read from a store as they are: first batch, rate, requests and processor time, beside other loaders.

    python benches/shards.py [--shards 500] [--real 100] [--seconds 20] [--dir target] [--only PART] [--quality]

PART: tar, formats. The store is benches/shards_store.py: answers after 50 ms, 125 MB/s in all. `tar`: synthetic shards
of 8 MiB, without an index, with one, and by WebDataset, which starts curl. `formats`: as many real shards of tar,
Parquet, MDS and LitData, written by webdataset, pyarrow, MosaicML Streaming and litdata, read by dlfs and by their own
loaders. A loader that is not installed is left out. Every reader is a process of its own, and reads an epoch, but not
longer than the seconds given after its first batch.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import results

HERE = Path(__file__).resolve().parent
SHARD_BYTES = 8 << 20
LINE_MB_S = 125
BATCH = 64


# Readers: iterators of the bytes of each batch and of its samples' tags, in a process of their own. A sample begins
# with its tag, NUMBER_SAMPLE.

def read_dlfs(options):
    import dlfs

    place = f"s3://bucket/{options.place}"
    with dlfs.ShardLoader(place, options.index, batch_size=BATCH, epochs=1, seed=7) as loader:
        for batch in loader:
            yield batch.nbytes, [bytes(sample[:9]) for sample in samples(batch)] if options.quality else []


def samples(batch):
    """The pictures of a batch of dlfs, which may have classes beside them."""
    return batch.field("jpg") if "jpg" in batch.fields else batch


def read_webdataset(options):
    import webdataset

    urls = [f"pipe:curl -s -f {options.endpoint}/bucket/{options.place}{name}" for name in names(options)]
    dataset = webdataset.WebDataset(urls, shardshuffle=len(urls)).shuffle(1000, initial=100).to_tuple("jpg")
    loader = iter(webdataset.WebLoader(dataset, batch_size=None, num_workers=2))
    while batch := [sample[0] for sample in itertools.islice(loader, BATCH)]:
        yield read_of(batch)


def read_of(batch):
    return sum(map(len, batch)), [bytes(sample[:9]) for sample in batch]


def names(options):
    import re

    token, found = "", []
    while True:
        more = f"&continuation-token={token}" if token else ""
        url = f"{options.endpoint}/bucket/?list-type=2&prefix={options.place}{more}"
        page = urllib.request.urlopen(url).read().decode()
        found += re.findall(f"<Key>{options.place}([^<]*)</Key>", page)
        token = "".join(re.findall("<NextContinuationToken>([^<]*)", page))
        if not token:
            return found


def read_mosaic(options):
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()
    with tempfile.TemporaryDirectory() as local:
        remote = f"s3://bucket/{options.place}"
        dataset = StreamingDataset(remote=remote, local=local, shuffle=True, batch_size=BATCH)
        for batch in DataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=list):
            yield read_of([sample["x"] for sample in batch])


def read_litdata(options):
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # else it refuses a store without TLS
    with tempfile.TemporaryDirectory() as cache:
        storage = {"endpoint_url": options.endpoint, "aws_access_key_id": "a", "aws_secret_access_key": "b"}
        place = f"s3://bucket/{options.place}"
        dataset = StreamingDataset(place, cache_dir=cache, shuffle=True, storage_options=storage)
        copied = lambda batch: list(map(bytes, batch))  # a worker cannot send the views that it has
        for batch in StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=copied):
            yield read_of(batch)


def read(options):
    """Prints what reading took, as JSON."""
    begun = time.monotonic()
    first, bytes_, tags = None, 0, []
    reader = globals()[f"read_{options.read}"](options)
    for length, own in reader:
        now = time.monotonic()
        first = first or now
        bytes_ += length
        tags += own
        if now - first > options.seconds:
            break
    ended = time.monotonic()
    reader.close()
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(of.ru_utime + of.ru_stime for of in usage)
    found = {"first": first - begun, "bytes": bytes_, "seconds": ended - begun, "cpu": cpu}
    found["peak"] = peak_mib() + (usage[1].ru_maxrss >> 10)
    print(json.dumps({**found, "quality": quality(tags) if options.quality else None}))


def peak_mib():
    """The peak of this process: ru_maxrss would be that of the process that has started it, if that was larger."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


def quality(tags):
    """Statistics of an order as src/order/order/report computes them: found, and by chance."""
    ranks = {tag: rank for rank, tag in enumerate(sorted(set(tags)))}
    order, shards, count = [ranks[tag] for tag in tags], [tag[:5] for tag in tags], len(tags)
    sizes = [shards.count(shard) for shard in set(shards)]
    moved = sum(abs(rank - at) for at, rank in enumerate(order)) / count**2
    mean = (count - 1) / 2
    products = sum((a - mean) * (b - mean) for a, b in itertools.pairwise(order))
    batches = [len(set(shards[at:at + BATCH])) for at in range(0, count - BATCH + 1, BATCH)]
    none = [math.comb(count - size, BATCH) / math.comb(count, BATCH) for size in sizes]
    runs = 1 + sum(a != b for a, b in itertools.pairwise(shards))
    return {"samples": count, "repeated": count - len(ranks), "displacement": [moved, (count**2 - 1) / 3 / count**2],
            "serial": [12 * products / (count * (count**2 - 1)), -1 / count],
            "shards": [sum(batches) / max(1, len(batches)), len(sizes) - sum(none)],
            "runs": [runs, count + 1 - sum(size**2 for size in sizes) / count]}


# The store, and what is measured.

@contextlib.contextmanager
def store(*options):
    command = [sys.executable, HERE / "shards_store.py", "--mb-s", LINE_MB_S, *options]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def ask(endpoint, what):
    return json.loads(urllib.request.urlopen(f"{endpoint}/{what}").read())


def run(options, endpoint, loader, place, index=""):
    """A row of the table, or None where the loader is not installed."""
    ask(endpoint, "reset")
    keys = {"AWS_ENDPOINT_URL": endpoint, "AWS_SKIP_SIGNATURE": "true", "S3_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    overlay = os.path.expanduser("~/.cache/dlfs-peers/overlay-mosaic")
    if loader == "mosaic" and os.path.isdir(overlay):
        keys["PYTHONPATH"] = overlay
    command = [sys.executable, __file__, "--read", loader, "--endpoint", endpoint, "--place", place, "--index", index,
               "--seconds", 1e9 if options.quality else options.seconds, *["--quality"] * options.quality]
    done = subprocess.run(list(map(str, command)), env={**os.environ, **keys}, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        told = [line for line in lines if "Error" in line] or lines
        print(f"{loader} is left out: {told[-1]}", file=sys.stderr)
        return None
    return {**json.loads(done.stdout.splitlines()[-1]), "store": ask(endpoint, "stats")}


def row(name, found):
    if found["quality"]:
        return quality_row(name, found["quality"])
    gb = found["bytes"] / 1e9
    asked = found["store"]
    ranges = max(1, asked["bytes"] / SHARD_BYTES)
    return (f"| {name} | {found['first']:.2f} | {found['bytes'] / found['seconds'] / 1e6:.1f} | "
            f"{asked['bytes'] / max(found['bytes'], 1):.3f} | {(asked['gets'] + asked['heads']) / ranges:.2f} | "
            f"{asked['lists']} | {found['cpu'] / gb:.2f} | {found['peak']} |")


def quality_row(name, found):
    pairs = [f"{found[of][0]:.{digits}f} ({found[of][1]:.{digits}f})"
             for of, digits in (("displacement", 4), ("serial", 4), ("shards", 1), ("runs", 0))]
    return f"| {name} | {found['samples']} | {found['repeated']} | {' | '.join(pairs)} |"


def measure(options, endpoint, place, loaders, folder):
    """The rows of dlfs, without an index and with the one that it has made, and of `loaders`."""
    index = tempfile.mkdtemp(dir=folder)
    yield "dlfs, no index", run(options, endpoint, "dlfs", place, index)
    whole = argparse.Namespace(**{**vars(options), "seconds": 1e9})
    run(whole, endpoint, "dlfs", place, index)  # completes the index
    yield "dlfs, a kept index", run(options, endpoint, "dlfs", place, index)
    for loader in loaders:
        yield loader, run(options, endpoint, loader, place)


HEAD = """| {} | first batch, s | MB/s | bytes read a byte | requests a range of 8 MiB | lists | CPU s/GB | peak memory, MiB |
|---|---|---|---|---|---|---|---|"""


QUALITY_HEAD = """| {} | samples | repeated | displacement | serial correlation | shards a batch | runs of a shard |
|---|---|---|---|---|---|---|"""


def table(title, rows, options):
    lines = [(QUALITY_HEAD if options.quality else HEAD).format(title)]
    lines += [row(name, found) for name, found in rows if found]
    print("\n".join(lines), flush=True)
    return "\n".join(lines)


def write_formats(folder, count):
    """`count` shards of each kind, of the same samples; the kinds that could be written."""
    import numpy

    generator = numpy.random.default_rng(7)
    rests = [generator.bytes(105_000 - 9) for _ in range(78)]

    class Each:
        def __iter__(self):
            tagged = lambda number: [b"%05d_%03d" % (number, at) + rest for at, rest in enumerate(rests)]
            return ((number, tagged(number)) for number in range(count))

    each = Each()
    kinds = {}
    for kind, write in (("tar", write_tar), ("parquet", write_parquet), ("mds", write_mds), ("litdata", write_litdata)):
        (folder / kind).mkdir()
        try:
            write(folder / kind, each)
            kinds[kind] = {"tar": ["webdataset"], "mds": ["mosaic"], "litdata": ["litdata"]}.get(kind, [])
        except ImportError as error:
            print(f"{kind} is left out: {error}", file=sys.stderr)
    return kinds


def write_tar(folder, shards):
    import webdataset

    for number, samples in shards:
        with webdataset.TarWriter(str(folder / f"{number:05d}.tar"), encoder=False) as writer:
            for at, sample in enumerate(samples):
                writer.write({"__key__": f"{number:05d}_{at:03d}", "jpg": sample})


def write_parquet(folder, shards):
    import pyarrow
    import pyarrow.parquet

    for number, samples in shards:
        rows = pyarrow.table({"x": pyarrow.array(samples, pyarrow.binary())})
        pyarrow.parquet.write_table(rows, folder / f"{number:05d}.parquet", compression="none", use_dictionary=False)


def write_mds(folder, shards):
    sys.path.insert(0, os.path.expanduser("~/.cache/dlfs-peers/overlay-mosaic"))
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"x": "bytes"}, size_limit=SHARD_BYTES, progress_bar=False) as writer:
        for _, samples in shards:
            for sample in samples:
                writer.write({"x": sample})


def write_litdata(folder, shards):
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes=SHARD_BYTES)
    number = 0
    for _, samples in shards:
        for sample in samples:
            writer[number] = sample
            number += 1
    writer.done()
    writer.merge()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=500)
    parser.add_argument("--real", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--dir", default="target")
    parser.add_argument("--only", default="")
    parser.add_argument("--quality", action="store_true")
    for role in ("read", "endpoint", "place", "index"):  # of a process of the bench
        parser.add_argument(f"--{role}", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        return read(options)
    tables = []
    os.makedirs(options.dir, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=options.dir))
    try:
        if options.only in ("", "tar"):
            with store("--arithmetic", options.shards) as endpoint:
                found = measure(options, endpoint, "shards/", ["webdataset"], folder)
                tables.append(table(f"{options.shards} synthetic tar shards", found, options))
        if options.only in ("", "formats"):
            kinds = write_formats(folder, options.real)
            with store("--files", folder) as endpoint:
                for kind, loaders in kinds.items():
                    found = measure(options, endpoint, f"{kind}/", loaders, folder)
                    tables.append(table(f"{options.real} shards of {kind}", found, options))
    finally:
        shutil.rmtree(folder)
    results.record("shards", "python benches/shards.py " + " ".join(sys.argv[1:]), "\n\n".join(tables))


if __name__ == "__main__":
    main()
