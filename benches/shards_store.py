"""An S3 store on loopback, for benches/shards.py: tar shards by arithmetic, or the files of a folder, over a line.

    python benches/shards_store.py [--arithmetic N] [--files DIR] [--delay-ms 50] [--mb-s 125]

Prints its address. Every answer waits for the delay, and all bodies together have the rate of the line.
GET /stats gives the requests and bytes so far as JSON; GET /reset also sets them to zero, and
GET /line?mb_s=N&delay_ms=N changes the line.
"""

import argparse
import asyncio
import functools
import hashlib
import json
import os
import struct
import time
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

SHARD_BYTES = 8 << 20
SAMPLES = 78  # of 105,000 bytes, with a class each: 8 MiB with headers and the end mark
PICTURE_BYTES = 105_000
PIECE_BYTES = 128 << 10


def header(name, size):
    fields = struct.pack("100s8s8s8s12s12s8sc100s6s2s", name.encode(), b"0000644\0", b"0000000\0", b"0000000\0",
                         b"%011o\0" % size, b"00000000000\0", b" " * 8, b"0", b"", b"ustar\0", b"00").ljust(512, b"\0")
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


@functools.lru_cache(maxsize=64)
def shard(number):
    """A tar of pairs NUMBER_SAMPLE.{cls,jpg}. Pictures begin with their name, so each has other bytes."""
    pad = lambda data: data + b"\0" * (-len(data) % 512)
    parts = []
    for sample in range(SAMPLES):
        name = f"{number:05d}_{sample:03d}"
        cls = str((number + sample) % 1000).encode()
        parts += [header(name + ".cls", len(cls)), pad(cls), header(name + ".jpg", PICTURE_BYTES), name.encode(), rest()]
    return b"".join(parts).ljust(SHARD_BYTES, b"\0")


@functools.cache
def rest():
    bytes_ = hashlib.shake_128(b"picture").digest(PICTURE_BYTES - 9)
    return bytes_ + b"\0" * (-PICTURE_BYTES % 512)


class Store:
    def __init__(self, options):
        self.set_line(options.mb_s, options.delay_ms)
        self.free_at = 0.0
        self.reset()
        self.objects = {}  # key: (length, a function that reads a range)
        for number in range(options.arithmetic):
            read = lambda start, end, number=number: shard(number)[start:end]
            self.objects[f"shards/{number:05d}.tar"] = (SHARD_BYTES, read)
        for path in sorted(Path(options.files).rglob("*")) if options.files else []:
            if path.is_file():
                read = functools.partial(self.read_file, path)
                self.objects[str(path.relative_to(options.files))] = (path.stat().st_size, read)
        self.keys = sorted(self.objects)

    def set_line(self, mb_s, delay_ms):
        self.rate, self.delay = float(mb_s) * 1e6, float(delay_ms) / 1e3

    def reset(self):
        self.stats = {"lists": 0, "heads": 0, "gets": 0, "bytes": 0}

    @staticmethod
    def read_file(path, start, end):
        with open(path, "rb") as file:
            return os.pread(file.fileno(), end - start, start)

    async def serve(self, reader, writer):
        try:
            while line := await reader.readline():
                method, target, _ = line.decode().split()
                headers = {}
                while (line := await reader.readline()).strip():
                    name, _, value = line.decode().partition(":")
                    headers[name.strip().lower()] = value.strip()
                await self.answer(method, target, headers, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            writer.close()

    async def answer(self, method, target, headers, writer):
        url = urlsplit(target)
        path = unquote(url.path).lstrip("/")
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        if path in ("stats", "reset", "line"):
            body = json.dumps(self.stats).encode()
            if path == "reset":
                self.reset()
            if path == "line":
                self.set_line(**query)
            return await self.send(writer, "200 OK", "application/json", body)
        _, _, key = path.partition("/")
        await asyncio.sleep(self.delay)
        if not key:
            self.stats["lists"] += 1
            return await self.send(writer, "200 OK", "application/xml", self.page(query))
        if key not in self.objects:
            body = b"<Error><Code>NoSuchKey</Code></Error>"
            return await self.send(writer, "404 Not Found", "application/xml", b"" if method == "HEAD" else body)
        length, read = self.objects[key]
        start, end, status = 0, length, "200 OK"
        more = ""
        if bounds := headers.get("range", "").removeprefix("bytes="):
            first, _, last = bounds.partition("-")
            start = int(first) if first else length - int(last)
            end = min(int(last) + 1 if first and last else length, length)
            status, more = "206 Partial Content", f"Content-Range: bytes {start}-{end - 1}/{length}\r\n"
        self.stats["heads" if method == "HEAD" else "gets"] += 1
        head = (f"HTTP/1.1 {status}\r\nContent-Length: {end - start}\r\nAccept-Ranges: bytes\r\n{more}"
                f"ETag: \"{hashlib.md5(key.encode()).hexdigest()}\"\r\nLast-Modified: Sun, 01 Nov 2026 00:00:00 GMT\r\n\r\n")
        writer.write(head.encode())
        if method != "HEAD":
            for at in range(start, end, PIECE_BYTES):
                until = min(at + PIECE_BYTES, end)
                await self.wait_for_line(until - at)
                writer.write(read(at, until))
                self.stats["bytes"] += until - at
                await writer.drain()
        else:
            await writer.drain()

    async def wait_for_line(self, num_bytes):
        now = time.monotonic()
        self.free_at = max(self.free_at, now - 0.01) + num_bytes / self.rate
        if self.free_at > now:
            await asyncio.sleep(self.free_at - now)

    def page(self, query):
        prefix, most = query.get("prefix", ""), int(query.get("max-keys", 1000))
        after = query.get("continuation-token") or query.get("start-after", "")
        keys = [key for key in self.keys if key.startswith(prefix) and key > after]
        names, folders = [], []
        for key in keys:
            slash = key.find(query["delimiter"], len(prefix)) if query.get("delimiter") else -1
            if slash < 0:
                names.append(key)
            elif not folders or folders[-1] != key[:slash + 1]:
                folders.append(key[:slash + 1])
            if len(names) + len(folders) == most:
                break
        is_cut = len(names) + len(folders) == most and bool(names) and keys[-1] != names[-1]
        entry = lambda key: (f"<Contents><Key>{key}</Key><LastModified>2026-11-01T00:00:00.000Z</LastModified><ETag>"
                             f"&quot;{hashlib.md5(key.encode()).hexdigest()}&quot;</ETag><Size>{self.objects[key][0]}"
                             "</Size><StorageClass>STANDARD</StorageClass></Contents>")
        token = f"<NextContinuationToken>{names[-1]}</NextContinuationToken>" if is_cut else ""
        found = "".join(map(entry, names))
        found += "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders)
        return (f"<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>bucket"
                f"</Name><Prefix>{prefix}</Prefix><KeyCount>{len(names)}</KeyCount><MaxKeys>{most}</MaxKeys><IsTruncated>"
                f"{str(is_cut).lower()}</IsTruncated>{token}{found}</ListBucketResult>").encode()

    @staticmethod
    async def send(writer, status, kind, body):
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arithmetic", type=int, default=0)
    parser.add_argument("--files", default="")
    parser.add_argument("--delay-ms", type=float, default=50)
    parser.add_argument("--mb-s", type=float, default=125)
    store = Store(parser.parse_args())
    server = await asyncio.start_server(store.serve, "127.0.0.1", 0, limit=1 << 20)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
