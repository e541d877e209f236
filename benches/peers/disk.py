#!/usr/bin/env python3
"""dlfs beside fio on the same image and disk, past the page cache, by turns.

    disk.py IMAGE [BATCH [ROUNDS]]

Grouped order (two epochs in a row) beside reads of 256 KiB at random at depth 32; global order (one epoch)
beside reads at depth 128 of the sizes that samples of 4 KiB +-20 % take: 4, 8 and 12 KiB. Bytes and commands are
those that were read, not those of the samples. Needs fio.
"""
import subprocess
import sys
import time

import dlfs

FIO = "fio --name=disk --readonly --rw=randread --ioengine=io_uring --direct=1 --norandommap --time_based --runtime=1.5"
BESIDE = {
    "grouped": "--bs=256k --iodepth=32",
    "global": "--bssplit=4k/10:8k/85:12k/5 --blockalign=4k --iodepth=128",
}
EPOCHS = {"grouped": 2, "global": 1}


def by_fio(image, order):
    """MB/s and reads a second."""
    command = [*FIO.split(), *BESIDE[order].split(), f"--filename={image}", "--minimal"]
    fields = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split(";")
    return int(fields[6]) * 1024 / 1e6, int(fields[7])


def by_dlfs(image, order, batch_size, seed):
    with dlfs.open(image, direct="on") as ds:
        loader = dlfs.Loader(ds, batch_size, order, seed=seed, epochs=EPOCHS[order])
        loader.prepare()
        time.sleep(0.4)
        stage = memoryview(bytearray(64 << 20))
        began = time.perf_counter()
        for _ in range(EPOCHS[order]):
            for batch in loader:
                at = 0
                for view in batch.tolist():
                    stage[at:at + len(view)] = view
                    at += len(view)
        took, stats = time.perf_counter() - began, loader.stats()
        loader.close()
    return stats["bytes"] / took / 1e6, round(stats["commands"] / took)


def main():
    image = sys.argv[1]
    batch_size, rounds = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((2, 256), (3, 5)))
    for order in BESIDE:
        pairs = [(by_fio(image, order), by_dlfs(image, order, batch_size, seed)) for seed in range(rounds)]
        for (fio_mb, fio_reads), (mb, reads) in pairs:
            print(f"{order}: dlfs {mb:.0f} MB/s, {reads:,} reads/s; fio {fio_mb:.0f} MB/s, {fio_reads:,} reads/s")
        fio, ours = (sorted(side[0] for side in sides)[rounds // 2] for sides in zip(*pairs))
        print(f"{order}, medians of {rounds}: {ours:.0f} / {fio:.0f} MB/s = {ours / fio:.2f}")


if __name__ == "__main__":
    main()
