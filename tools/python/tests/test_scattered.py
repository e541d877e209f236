"""Many scattered samples in one call: right, in order, within bounded memory, and interruptible."""

import os
import random
import struct

import pytest

import dlfs
import frozen
from conftest import command, target

SAMPLES = 700_000


def masked_crc(data, table=[]):
    if not table:
        for byte in range(256):
            crc = byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
            table.append(crc)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def content(id):
    """251 payloads take turns: their checksums are computed once."""
    return bytes([id % 251]) * (200 + id % 251)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """An image of tiny samples."""
    folder = tmp_path_factory.mktemp("tiny")
    records = []
    for id in range(251):
        data = content(id)
        head = struct.pack("<Q", len(data))
        records.append(head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data)))
    shard = folder / "a.tfrecord"
    turn = b"".join(records)
    with open(shard, "wb") as file:
        for _ in range(SAMPLES // 251):
            file.write(turn)
        file.write(b"".join(records[: SAMPLES % 251]))
    image = str(folder / "a.dlfs")
    command("import", str(shard), image)
    shard.unlink()
    return image


def test_scattered_ids_and_slices_are_right_and_one_array(tiny):
    print("seed 4")
    with dlfs.open(tiny) as ds:
        ids = random.Random(4).sample(range(SAMPLES), 60_000)
        batch = ds.read_batch(ids)
        assert batch.ids.tolist() == ids
        assert batch.data.tobytes() == b"".join(content(id) for id in ids)
        assert batch.lengths.tolist() == [len(content(id)) for id in ids]
        part = ds[1_000:300_000]
        assert part.data.tobytes() == b"".join(content(id) for id in range(1_000, 300_000))
        assert ds[5] == content(5)


def test_the_memory_of_scattered_reads_is_bounded(tiny, run_python):
    out = run_python(
        """
import sys
import dlfs, numpy
def memory(line):
    with open("/proc/self/status") as status:
        return next(int(text.split()[1]) * 1024 for text in status if text.startswith(line))
ds = dlfs.open(sys.argv[1])
ids = numpy.random.default_rng(6).permutation(numpy.arange(0, len(ds), 13))
ds.read_batch(ids[:8])
for read in (lambda: ds.read_batch(ids), lambda: ds[0:len(ds):13], lambda: ds[100_000:600_000]):
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before = memory("VmRSS")
    batch = read()
    beside = memory("VmHWM") - before - batch.nbytes
    print(len(batch), batch.nbytes, beside)
    assert beside <= 64 << 20, beside
    del batch
""",
        tiny,
    )
    print(out)
    assert len(out.splitlines()) == 3


def test_ctrl_c_ends_a_gather(tiny, run_python):
    """The target does not answer: only a look for signals ends the call before its deadline of 60 s."""
    with target(tiny) as (child, address):
        out = run_python(
            """
import os, signal, sys, threading, dlfs
sys.path.insert(0, sys.argv[3])
from frozen import freeze
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit none
ds = dlfs.open(sys.argv[1])
ds.read_batch(range(0, len(ds), 700))
freeze(int(sys.argv[2]))
for read in (lambda: ds.read_batch(range(0, len(ds), 7)), lambda: ds[0:400_000]):
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        read()
        print("came to an end")
    except KeyboardInterrupt:
        print("interrupted")
os.kill(int(sys.argv[2]), signal.SIGCONT)
print(len(ds.read_batch(range(0, len(ds), 7))))
""",
            address, child.pid, os.path.dirname(frozen.__file__),
        )
    assert out.split() == ["interrupted", "interrupted", str(len(range(0, SAMPLES, 7)))]
