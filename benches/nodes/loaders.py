#!/usr/bin/env python3
"""Other loaders as nodes of the bench `nodes`, which starts this program; see loaders.rs.

  loaders.py prepare LOADER SOURCE OUT       writes the files below SOURCE as LOADER wants them
  loaders.py read LOADER ENDPOINT CACHE ...  one node: opens the data at ENDPOINT with a cache of so many bytes in
                                             CACHE, prints "joined", and for each line FROM TO PACE of its input
                                             reads those epochs and prints what it found

Each loader is used as its manual shows for several nodes: every node reads its share, with local copies of the
shards that it has fetched.
"""
import glob
import os
import sys
import time

SHARD_BYTES = 4 << 20
WORKERS = 2
# What LitData's cache needs beyond a node's share: chunks that two nodes share, and those that its workers have open.
# Without it, a worker waits for room for ever.
SPARE_BYTES = 4 * SHARD_BYTES
MOSAIC, LITDATA, WEBDATASET = "mosaicml-streaming", "litdata", "webdataset"


def main():
    what, loader = sys.argv[1:3]
    if what == "prepare":
        prepare(loader, *sys.argv[3:5])
    else:
        endpoint, cache, quota, rank, world, batch, samples = sys.argv[3:10]
        read(loader, endpoint, cache, int(quota), int(rank), int(world), int(batch), int(samples))


def prepare(loader, source, out):
    paths = sorted(glob.glob(os.path.join(source, "*", "*.bin")))
    os.makedirs(out)

    def records():
        for path in paths:
            with open(path, "rb") as file:
                yield os.path.basename(path)[:-4], file.read()

    if loader == MOSAIC:
        from streaming import MDSWriter

        with MDSWriter(out=out, columns={"x": "bytes"}, size_limit=SHARD_BYTES, progress_bar=False) as writer:
            for _, record in records():
                writer.write({"x": record})
    elif loader == LITDATA:
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(out, chunk_bytes=SHARD_BYTES)
        for number, (_, record) in enumerate(records()):
            writer[number] = record
        writer.done()
        writer.merge()
    else:
        import webdataset

        pattern = os.path.join(out, "%06d.tar")
        with webdataset.ShardWriter(pattern, maxsize=SHARD_BYTES, verbose=0, encoder=False) as writer:
            for name, record in records():
                writer.write({"__key__": name, "bin": record})


def bytes_of(samples):
    return [bytes(sample) for sample in samples]


def x_of(samples):
    return [sample["x"] for sample in samples]


def open_mosaic(endpoint, cache, quota, batch):
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    os.environ["S3_ENDPOINT_URL"] = endpoint
    data = StreamingDataset(
        remote=f"s3://data/{MOSAIC}", local=cache, shuffle=True, batch_size=batch, cache_limit=quota
    )
    return DataLoader(data, batch_size=batch, collate_fn=x_of, num_workers=WORKERS, persistent_workers=True)


def open_litdata(endpoint, cache, quota, batch):
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # as S3 over TLS is its default
    data = StreamingDataset(
        f"s3://data/{LITDATA}",
        cache_dir=cache,
        shuffle=True,
        drop_last=False,
        max_cache_size=quota + SPARE_BYTES,
        storage_options={"endpoint_url": endpoint, "aws_access_key_id": "a", "aws_secret_access_key": "b"},
    )
    return StreamingDataLoader(
        data, batch_size=batch, collate_fn=bytes_of, num_workers=WORKERS, persistent_workers=True
    )


def open_webdataset(endpoint, cache, quota, batch):
    import webdataset

    os.makedirs(cache, exist_ok=True)
    count = int(os.environ["SHARDS"])
    urls = [f"{endpoint}/data/{WEBDATASET}/{number:06d}.tar" for number in range(count)]
    data = webdataset.WebDataset(
        urls,
        shardshuffle=count,
        nodesplitter=webdataset.split_by_node,
        cache_dir=cache,
        cache_size=quota,
        empty_check=False,
    )
    data = data.shuffle(256).map(bin_of).batched(batch, collation_fn=list)
    return webdataset.WebLoader(data, batch_size=None, num_workers=WORKERS, persistent_workers=True)


def bin_of(sample):
    return sample["bin"]


def read(loader, endpoint, cache, quota, rank, world, batch, samples):
    os.environ.update(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_DEFAULT_REGION="us-east-1")
    opened = {MOSAIC: open_mosaic, LITDATA: open_litdata, WEBDATASET: open_webdataset}[loader]
    batches = opened(endpoint, cache, quota, batch)
    say("joined")
    # A shard may hold the samples of several nodes, so a node may get a few more or fewer than its share.
    most = samples // world * 2
    for line in sys.stdin:
        first, end, pace = (int(word) for word in line.split())
        start_cpu, start, step_ends = cpu_s(), time.monotonic(), None
        first_s = longest_s = count = size = 0
        for _ in range(first, end):
            asked = time.monotonic()
            for some in batches:
                now = time.monotonic()
                longest_s = max(longest_s, now - asked)
                if step_ends is None:
                    first_s, step_ends = now - asked, now
                length = sum(len(sample) for sample in some)
                count, size = count + len(some), size + length
                if pace:
                    # A step begins when its batch is there and the step before has ended, as in sides.rs.
                    begins = max(step_ends, now)
                    time.sleep(max(0, begins - time.monotonic()))
                    step_ends = begins + length / (pace * 1e6)
                asked = time.monotonic()
        time.sleep(max(0, step_ends - time.monotonic()))
        assert 0 < count <= most * (end - first), f"{count} samples"
        wall_s = time.monotonic() - start - first_s
        say(" ".join(str(value) for value in (wall_s, cpu_s() - start_cpu, first_s, longest_s, size, count, 0, 0, 0)))


def say(line):
    print(line, flush=True)


def cpu_s():
    """Processor time of this process and of its workers, which live as long as it does."""
    ticks = 0
    for pid in [str(os.getpid()), *children(os.getpid())]:
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def children(pid):
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            for child in file.read().split():
                yield child
                yield from children(child)


if __name__ == "__main__":
    main()
