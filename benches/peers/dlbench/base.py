"""The contract every loader obeys, and the record format that checks it.

A *record* is one sample: a 24-byte header, then incompressible payload.

    offset 0  4s  magic b"DLB1"
           4  u32 total length of the record, header included
           8  u64 sample id (0 .. N-1, each exactly once per epoch)
          16  u32 crc32 of the payload, seeded with the low 32 bits of the id
          20  u32 class number

The header lets the harness check any loader's output without a side file:
which sample is this, is it whole, is it the right one.
"""
import os
import struct
import zlib

HEADER = struct.Struct("<4sIQII")
MAGIC = b"DLB1"
_ID = struct.Struct("<Q")


def make_record(sample_id, size, klass, payload):
    """Header + payload.  `payload` must be size - HEADER.size bytes."""
    crc = zlib.crc32(payload, sample_id & 0xFFFFFFFF)
    return HEADER.pack(MAGIC, size, sample_id, crc, klass) + payload


def check_record(buf):
    """Raise ValueError unless `buf` is one whole, undamaged record; return its id."""
    magic, size, sample_id, crc, _ = HEADER.unpack_from(buf)
    if magic != MAGIC:
        raise ValueError(f"bad magic {magic!r}")
    if size != len(buf):
        raise ValueError(f"id {sample_id}: length {len(buf)}, header says {size}")
    if zlib.crc32(memoryview(buf)[HEADER.size:], sample_id & 0xFFFFFFFF) != crc:
        raise ValueError(f"id {sample_id}: crc mismatch")
    return sample_id


def with_ids(bufs, _get=_ID.unpack_from):
    """[(id, buf)] from buffers.  Every loader uses this one helper in the
    consuming process, so that finding the id costs each of them the same."""
    return [(_get(b, 8)[0], b) for b in bufs]


def list_source(src_dir):
    """(path, class number) of every sample of an ImageFolder-style tree, in
    sorted order; what torchvision's ImageFolder does, without the decoder."""
    out = []
    for k, d in enumerate(sorted(e.name for e in os.scandir(src_dir) if e.is_dir())):
        with os.scandir(os.path.join(src_dir, d)) as it:
            names = sorted(e.name for e in it)
        out += [(os.path.join(src_dir, d, n), k) for n in names]
    return out


def iter_source(src_dir):
    """Yield (key, class, bytes) of every sample, in order: for converters."""
    for path, k in list_source(src_dir):
        with open(path, "rb") as f:
            yield os.path.splitext(os.path.basename(path))[0], k, f.read()


SHARD_BYTES = 64 << 20      # every sharded format uses shards of about this size


def iter_shards(src_dir, limit=SHARD_BYTES):
    """Yield (shard number, list of (key, class, bytes)) of about `limit` bytes."""
    part, size, n = [], 0, 0
    for rec in iter_source(src_dir):
        if part and size + len(rec[2]) > limit:
            yield n, part
            part, size, n = [], 0, n + 1
        part.append(rec)
        size += len(rec[2])
    if part:
        yield n, part


class Peer:
    """One loader.  Subclass it, fill in the class attributes, write `prepare`
    and `epoch`, and name it in dlbench/registry.py.  That is all.

    The harness makes one object in a fresh process, calls `setup` once, then
    `epoch` one or more times, then `close`.
    """
    name = ""               # row name in the tables
    fmt = ""                # folder for the converted data; peers that name the
                            # same one share it; "" = reads the source tree itself
    workers = (0, 1, 2)     # the values of `workers` that mean something here
    worker_kind = "procs"   # what `workers` counts: procs | threads
    shuffle = "full"        # full | what the documented pipeline gives instead
    ceiling = False         # True: not a loader, a bound on what one could do
    env = {}                # extra environment for this loader's process
    profiles = None         # names of the datasets it can do; None = all

    def __init__(self, meta, src_dir, out_dir):
        self.meta = meta    # manifest.json: n, bytes, max_size, mean_size, ...
        self.src = src_dir
        self.out = out_dir

    @classmethod
    def prepare(cls, src_dir, out_dir):
        """Convert the source tree into out_dir (empty, exists).  Not timed."""

    def setup(self, batch_size, workers):
        """Open, scan, index: what a job pays once.  Timed apart (setup_s)."""

    def epoch(self, seed, batch_size, workers):
        """Iterator over lists of (id, buffer): every sample exactly once, in an
        order that depends on `seed`.  `buffer` is anything with a contiguous
        'B' (uint8) buffer: bytes, memoryview, uint8 array.  It need stay valid
        only until the next batch is asked for."""
        raise NotImplementedError

    def outside_cpu(self):
        """CPU seconds so far of processes that serve this one from outside its tree."""
        return 0.0

    def close(self):
        pass

    # -- helpers ---------------------------------------------------------
    def shuffle_buffer(self, want=1000, budget=256 << 20):
        """Size of a shuffle buffer: the 1000 samples of the usual examples,
        less where that would hold more than `budget` bytes."""
        return max(2, min(want, int(budget / self.meta["mean_size"])))
