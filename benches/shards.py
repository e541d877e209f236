"""Shards read from a store as they are, beside other loaders: all bars of it, in at most 25 minutes on 2 processors.

    python benches/shards.py [--rows SECTION,SECTION...] [--shards 5000] [--epoch 400] [--real 500] [--dir target]

A row's first batch is counted from the start of the process' work on, with all imports and with opening. The store is
benches/shards_store.py: answers after 50 ms, 125 MB/s in all. Every reader is a process of its own; a
loader that is not installed, or fails, is left out, and the end of its error is told. Each section says which bars are
met, and is recorded as it ends, so that --rows goes on with those that are left:

    tar      6 min  first batch of --shards synthetic tar shards of 8 MiB; a whole epoch of --epoch of them
    formats  5 min  the same of real shards, --real in all of tar, Parquet, MDS and LitData, beside their own loaders
    second   3 min  later epochs from a tier, and from the image that the first one filled, beside a local image
    nodes    2 min  four nodes that fill an image: bytes from the store in three epochs
    killed   2 min  a node that is killed in the middle and starts again: bytes that it fetches again
    quality 10 min  how random the first epoch is, beside the orders of other loaders

`dlfs index` makes the kept indexes, with the line off. Random stops and other world sizes: tests/all/first_epoch.rs.
"""

import argparse
import contextlib
import functools
import itertools
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import results
import tables

HERE = Path(__file__).resolve().parent
SHARD_BYTES = 8 << 20
LINE_MB_S = 125
DELAY_MS = 50
BATCH = 64
WINDOW_MIB = 256  # what dlfs takes unless large chunks are shuffled together
FIRST_SECONDS = 5  # how long a reader goes on whose first batch is measured
LIMIT_S = 300  # for a reader
SAMPLES, SAMPLE_BYTES = 78, 105_000  # of a real shard
SEEDS = range(1, 17)  # of orders whose randomness is measured


# Readers: iterators of the bytes of each batch and of its samples' tags, in a process of their own. A sample begins
# with its tag, NUMBER_SAMPLE. That of dlfs also says what it took to open, and the memory of the interpreter before.

opened = {"seconds": 0, "interpreter": 0, "window": 0}  # the window, as the interpreter, in MiB


def read_dlfs(options):
    import dlfs

    place = f"s3://bucket/{options.place}"
    opened["interpreter"], begun = peak_mib(), time.monotonic()
    with dlfs.ShardLoader(place, options.index, batch_size=BATCH, epochs=1, seed=options.seed) as loader:
        opened["seconds"] = time.monotonic() - begun
        for batch in loader:
            opened["window"] = opened["window"] or window_mib()
            yield batch.nbytes, [bytes(sample[:9]) for sample in samples(batch)] if options.quality else []


def window_mib():
    """The window of this process' loader; an epoch that makes the index has no metric of it."""
    import dlfs.metrics

    return dlfs.metrics.values().get("dlfs_loader_window_bytes", WINDOW_MIB << 20) >> 20


def samples(batch):
    """The pictures of a batch of dlfs, which may have classes beside them."""
    return batch.field("jpg") if "jpg" in batch.fields else batch


def read_webdataset(options):
    import webdataset

    urls = [f"pipe:curl -s -f {options.endpoint}/bucket/{options.place}{name}" for name in names(options)]
    shards = webdataset.WebDataset(urls, shardshuffle=len(urls), seed=options.seed)
    dataset = shards.shuffle(1000, initial=100).to_tuple("jpg")
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
        dataset = StreamingDataset(
            remote=remote, local=local, shuffle=True, shuffle_seed=options.seed, batch_size=BATCH)
        for stream in dataset.streams:  # else forked workers share a connection, and get each other's shards
            stream._downloader.clean_up()
        for batch in DataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=list):
            yield read_of([sample["x"] for sample in batch])


def read_litdata(options):
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # else it refuses a store without TLS
    with tempfile.TemporaryDirectory() as cache:
        storage = {"endpoint_url": options.endpoint, "aws_access_key_id": "a", "aws_secret_access_key": "b"}
        place = f"s3://bucket/{options.place}"
        dataset = StreamingDataset(place, cache_dir=cache, shuffle=True, seed=options.seed, storage_options=storage)
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
    found = {"first": first - begun, "bytes": bytes_, "seconds": ended - begun, "cpu": cpu, "opened": opened}
    found["peak"] = peak_mib() + (usage[1].ru_maxrss >> 10)
    print(json.dumps({**found, "quality": quality(tags) if options.quality else None}))


def read_epochs(options):
    """Prints the bytes a second of each epoch of dlfs, as JSON: of shards with an index, or else of an image."""
    import dlfs

    more = json.loads(options.more)
    given = {"batch_size": BATCH, "seed": 7, "order": "grouped", **more}
    if options.index:
        loader = dlfs.ShardLoader(f"s3://bucket/{options.place}", options.index, **given)
    else:
        loader = dlfs.Loader(dlfs.open(options.place), **given)
    rates = []
    with loader:
        for _ in range(more["epochs"]):
            begun = time.monotonic()
            bytes_ = sum(batch.nbytes for batch in loader)
            rates.append(bytes_ / (time.monotonic() - begun))
    print(json.dumps(rates))


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


def mean_quality(endpoint, loader, place, temporary):
    """The means over orders of several seeds: the displacement of 125 shards has a standard deviation of 6 %."""
    indices = [temporary() if loader == "dlfs" else "" for _ in SEEDS]  # a kept one would end the first epoch's order
    found = [run(endpoint, loader, place, index, quality=True, seed=seed) for seed, index in zip(SEEDS, indices)]
    if not all(found):
        return None
    found = [one["quality"] for one in found]
    mean = lambda of: [statistics.mean(one[of][at] for one in found) for at in (0, 1)]
    means = {of: mean(of) for of in ("displacement", "serial", "shards", "runs")}
    return {"samples": found[0]["samples"], "repeated": max(one["repeated"] for one in found), **means}


# The store, and processes that read it.

@contextlib.contextmanager
def store(*options):
    command = [sys.executable, HERE / "shards_store.py", "--mb-s", LINE_MB_S, "--delay-ms", DELAY_MS, *options]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def ask(endpoint, what):
    return json.loads(urllib.request.urlopen(f"{endpoint}/{what}").read())


@contextlib.contextmanager
def line_off(endpoint):
    ask(endpoint, "line?mb_s=inf&delay_ms=0")
    try:
        yield
    finally:
        ask(endpoint, f"line?mb_s={LINE_MB_S}&delay_ms={DELAY_MS}")


def environment(endpoint, loader=""):
    keys = {"AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SKIP_SIGNATURE": "true",
            "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    overlay = os.path.expanduser("~/.cache/dlfs-peers/overlay-mosaic")
    if loader == "mosaic" and os.path.isdir(overlay):
        keys["PYTHONPATH"] = overlay
    return {**os.environ, **keys}


def start(endpoint, loader, place, index="", seconds=1e9, quality=False, seed=7, **more):
    command = [sys.executable, __file__, "--read", loader, "--endpoint", endpoint, "--place", place, "--index", index,
               "--seconds", seconds, "--seed", seed, "--more", json.dumps(more), *["--quality"] * quality]
    return subprocess.Popen(list(map(str, command)), env=environment(endpoint, loader), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def told(process, name):
    """What a reader prints, or None where it fails."""
    try:
        out, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
        errors += f"\nError: not ready after {LIMIT_S} s"
    if process.returncode:
        lines = errors.strip().splitlines() or ["no word"]
        errors = [line for line in lines if "Error" in line] or lines
        print(f"{name} is left out: {errors[-1]}", file=sys.stderr)
        return None
    return json.loads(out.splitlines()[-1])


def run(endpoint, loader, place, index="", **more):
    """What a loader took, and what it asked the store for; None where it fails or is not installed."""
    print(f"{time.strftime('%T')} {loader} {place} {more}", file=sys.stderr)
    ask(endpoint, "reset")
    found = told(start(endpoint, loader, place, index, **more), loader)
    return found and {**found, "store": ask(endpoint, "stats"), "index": folder_mib(index) if index else 0}


def folder_mib(folder):
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / (1 << 20)


def command(endpoint, *words):
    """Runs the command dlfs, with the line off."""
    print(f"{time.strftime('%T')} dlfs {' '.join(map(str, words[:2]))}", file=sys.stderr)
    words = [sys.executable, "-m", "dlfs", *map(str, words)]
    with line_off(endpoint):
        subprocess.run(words, env=environment(endpoint), stdout=subprocess.DEVNULL, check=True)


# Tables.

HEAD = ("| {} | opened, s | first batch, s | MB/s | bytes read a byte | requests a range of 8 MiB | lists | CPU s/GB | "
        "peak memory, MiB |\n|---|---|---|---|---|---|---|---|---|")

QUALITY_HEAD = """| {} | samples | repeated | displacement | serial correlation | shards a batch | runs of a shard |
|---|---|---|---|---|---|---|"""

BARS_HEAD = """| bars: {} | measured | bar | |
|---|---|---|---|"""


def row(name, found):
    gb = found["bytes"] / 1e9
    opened = f"{found['opened']['seconds']:.2f}" if found["opened"]["seconds"] else ""
    return (f"| {name} | {opened} | {found['first']:.2f} | {rate(found) / 1e6:.1f} | "
            f"{found['store']['bytes'] / max(found['bytes'], 1):.3f} | {requests(found):.2f} | "
            f"{found['store']['lists']} | {found['cpu'] / gb:.2f} | {found['peak']} |")


def rate(found):
    return found["bytes"] / found["seconds"]


def requests(found):
    asked = found["store"]
    return (asked["gets"] + asked["heads"]) / max(1, asked["bytes"] / SHARD_BYTES)


def quality_row(name, found):
    pairs = [f"{found[of][0]:.{digits}f} ({found[of][1]:.{digits}f})"
             for of, digits in (("displacement", 4), ("serial", 4), ("shards", 1), ("runs", 0))]
    return f"| {name} | {found['samples']} | {found['repeated']} | {' | '.join(pairs)} |"


def table(title, found, head=HEAD, row=row):
    return "\n".join([head.format(title), *[row(name, one) for name, one in found.items() if one]])


def bars_table(title, bars):
    """The table of triples of an aim, what was measured (None: nothing) and the bar."""
    lines = [BARS_HEAD.format(title)]
    for aim, number, bar in bars:
        text = "nothing" if number is None else f"{number:.3f}"
        verdict = {True: "met", False: "missed", None: ""}[tables.reaches(tables.value(text), bar)]
        lines.append(f"| {aim} | {text} | {bar} | {verdict} |")
    return "\n".join(lines)


def over(own, others, of, choose):
    """A value of dlfs over the best of others; None where one of them is missing."""
    values = [of(one) for one in others if one]
    return of(own) / choose(values) if own and values else None


def beside(name, own, others):
    """The bars that others set."""
    cpu = lambda one: one["cpu"] / one["bytes"]
    yield f"{name}: first batch / the best other's", over(own, others, lambda one: one["first"], min), "<= 0.333"
    yield f"{name}: CPU s/GB / the best other's", over(own, others, cpu, min), "<= 0.5"
    yield f"{name}: MB/s / the best other's", over(own, others, rate, max), ">= 0.95"


def alone(name, none, kept):
    """The bars of whole epochs without an index and with one."""
    value = lambda found, of: of(found) if found else None
    yield f"{name}: MB/s of epoch 0 / the line", value(none, lambda one: rate(one) / 1e6 / LINE_MB_S), ">= 0.9"
    yield f"{name}: requests a range of 8 MiB", value(none, requests), "<= 1.05"
    for which, found in (("no index", none), ("a kept index", kept)):
        excess = lambda one: one["peak"] - one["index"] - one["opened"]["window"] - one["opened"]["interpreter"]
        spare = value(found, excess)
        yield f"{name}, {which}: MiB beside window, index and interpreter", spare, "<= 64"


def first_batches(name, none, kept):
    after = lambda found: found and found["first"] - found["opened"]["seconds"]
    yield f"{name}, no index: first batch after opening, s", after(none), "<= 3"
    yield f"{name}, a kept index: first batch after opening, s", after(kept), "<= 1"


# Sections.

class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder

    def temporary(self):
        return tempfile.mkdtemp(dir=self.folder)

    @functools.cached_property
    def kinds(self):
        """The loaders of each kind of real shards, which lie in `real`."""
        (self.folder / "real").mkdir()
        print(f"{time.strftime('%T')} writing", file=sys.stderr)
        return write_formats(self.folder / "real", max(1, self.options.real // 4))

    def three(self, endpoint, place, loaders, seconds=1e9):
        """Runs of dlfs without an index and with one, and of other loaders."""
        index = self.temporary()
        found = {"dlfs, no index": run(endpoint, "dlfs", place, self.temporary(), seconds=seconds)}
        command(endpoint, "index", f"s3://bucket/{place}", "--index", index)
        found["dlfs, a kept index"] = run(endpoint, "dlfs", place, index, seconds=seconds)
        return found | {loader: run(endpoint, loader, place, seconds=seconds) for loader in loaders}

    def tar(self):
        of_first, of_epoch = self.options.shards, self.options.epoch
        with store("--arithmetic", of_first) as endpoint:
            firsts = self.three(endpoint, "shards/", ["webdataset"], FIRST_SECONDS)
        with store("--arithmetic", of_epoch) as endpoint:
            whole = self.three(endpoint, "shards/", ["webdataset"])
        yield table(f"{FIRST_SECONDS} s of {of_first} synthetic tar shards", firsts)
        yield table(f"an epoch of {of_epoch} synthetic tar shards", whole)
        none, kept, other = firsts.values()
        bars = [*first_batches("tar", none, kept)]
        bars += list(beside("tar", none, [other]))[:1]
        none, kept, other = whole.values()
        yield bars_table("synthetic tar", [*bars, *alone("tar", none, kept), *list(beside("tar", none, [other]))[1:]])

    def formats(self):
        bars, kinds = [], self.kinds
        with store("--files", self.folder / "real") as endpoint:
            for kind, loaders in kinds.items():
                found = self.three(endpoint, f"{kind}/", loaders)
                yield table(f"real shards of {kind}", found)
                none, kept, *others = found.values()
                bars += [*first_batches(kind, none, kept), *alone(kind, none, kept)]
                bars += beside(kind, none, others) if loaders else []
        yield bars_table("real shards", bars)

    def second(self):
        image, local = self.folder / "filled.dlfs", self.folder / "local.dlfs"
        (self.folder / "tier").mkdir()
        tier = f"file:{self.folder}/tier:{self.shards * SHARD_BYTES * 2}"
        with store("--arithmetic", self.shards) as endpoint:
            def epochs(place, index, **more):
                return told(start(endpoint, "epochs", place, index, epochs=24, **more), "dlfs")

            filled = epochs("shards/", self.temporary(), import_to=str(image))
            tiered = epochs("shards/", self.temporary(), open={"tiers": [tier]})
            command(endpoint, "import", "s3://bucket/shards/", local)
            whole = epochs(str(local), "")
        # The first epoch does not read through tiers, so the second one still fetches.
        later = {"the image that epoch 0 filled": filled and filled[1:], "a tier": tiered and tiered[2:],
                 "a local image": whole and whole[1:]}
        rates = {name: rates and statistics.median(rates) for name, rates in later.items()}
        lines = [f"| {name} | {found / 1e6:.0f} |" for name, found in rates.items() if found]
        yield "\n".join([f"| later epochs of {self.shards} tar shards | MB/s |", "|---|---|", *lines])
        *own, best = rates.values()
        ratios = [(f"later epochs from {name} / a local image", found and best and found / best, ">= 0.95")
                  for name, found in zip(rates, own)]
        yield bars_table("later epochs", ratios)

    @property
    def shards(self):
        return max(1, self.options.real // 4)

    def nodes(self):
        image = ",".join(f"{self.folder}/node{rank}.dlfs" for rank in range(4))
        index, count = self.temporary(), 2 * self.options.epoch  # each node reads the first shard, too
        with store("--arithmetic", count) as endpoint:
            more = {"epochs": 3, "import_to": image, "world_size": 4}
            ranks = [start(endpoint, "epochs", "shards/", index, rank=rank, **more) for rank in range(4)]
            done = all([told(rank, "a node") for rank in ranks])
            fetched = ask(endpoint, "stats")["bytes"] / (count * SHARD_BYTES)
        aim = f"four nodes, three epochs of {count} tar shards: bytes from the store / the data"
        yield bars_table("four nodes", [(aim, fetched if done else None, "<= 1.01")])

    def killed(self):
        more = {"epochs": 1, "import_to": str(self.folder / "killed.dlfs")}
        index, count = self.temporary(), 2 * self.options.epoch  # a kill loses what the lanes had begun, however many
        data = count * SHARD_BYTES
        with store("--arithmetic", count) as endpoint:
            fetched = lambda: ask(endpoint, "stats")["bytes"]
            reader = start(endpoint, "epochs", "shards/", index, **more)
            while fetched() < data / 2 and reader.poll() is None:
                time.sleep(0.1)
            is_killed = reader.poll() is None
            reader.kill()
            reader.communicate()
            done = told(start(endpoint, "epochs", "shards/", index, **more), "a node")
            again = fetched() / data - 1
        aim = f"killed in the middle of {count} tar shards: bytes fetched again / the data"
        yield bars_table("a killed node", [(aim, again if is_killed and done else None, "<= 0.05")])

    def quality(self):
        bars, kinds = [], self.kinds
        with store("--files", self.folder / "real") as endpoint, line_off(endpoint):
            for kind, loaders in kinds.items():
                each = ["dlfs", *loaders]
                found = {loader: mean_quality(endpoint, loader, f"{kind}/", self.temporary) for loader in each}
                found = {name: one for name, one in found.items() if one}
                yield table(f"order of real shards of {kind}", found, QUALITY_HEAD, quality_row)
                for of, loader in itertools.product(("displacement", "shards", "runs"), loaders):
                    share = {name: min(1, one[of][0] / one[of][1]) for name, one in found.items()}
                    ratio = share["dlfs"] / share[loader] if {"dlfs", loader} <= share.keys() else None
                    bars.append((f"{kind}: {of}, of that by chance / {loader}'s", ratio, ">= 0.98"))
        yield bars_table("how random the first epoch is", bars)


SECTIONS = ("tar", "formats", "second", "nodes", "killed", "quality")


def write_formats(folder, count):
    """`count` shards of each kind, of the same samples; the kinds that could be written."""
    import numpy

    generator = numpy.random.default_rng(7)
    rests = [generator.bytes(SAMPLE_BYTES - 9) for _ in range(SAMPLES)]

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
    parser.add_argument("--rows", default=",".join(SECTIONS))
    parser.add_argument("--shards", type=int, default=5000)
    parser.add_argument("--epoch", type=int, default=400)
    parser.add_argument("--real", type=int, default=500)
    parser.add_argument("--dir", default="target")
    for role in ("read", "endpoint", "place", "index", "more"):  # of a process of the bench
        parser.add_argument(f"--{role}", default="", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=7, help=argparse.SUPPRESS)
    parser.add_argument("--quality", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        return read_epochs(options) if options.read == "epochs" else read(options)
    sections = options.rows.split(",")
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"there is no section {', '.join(sorted(unknown))}")
    os.makedirs(options.dir, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=options.dir))
    try:
        bench = Bench(options, folder)
        for section in sections:
            begun, found = time.monotonic(), []
            for one in getattr(bench, section)():
                print(one, flush=True)
                found.append(one)
            print(f"{section}: {time.monotonic() - begun:.0f} s", flush=True)
            given = f" --shards {options.shards} --epoch {options.epoch} --real {options.real}"
            results.record("shards", f"python benches/shards.py --rows {section}{given}", "\n\n".join(found))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
