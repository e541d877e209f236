"""How much torch's workers read of a data set in grouped order, beside a loader without workers.

    python benches/worker_bytes.py [--batches 16,64,256] [--workers 3,5,6,7] [--blocks 4096|512] [--lanes-a-worker N]

20,000 samples of about 8 KB, and as many of about 2 KB, in some 600 chunks each. The bytes are counted, not timed. An
image file whose length is no multiple of 4 KiB has blocks of 512 bytes: --blocks 512 makes it so.
"""

import argparse
import io
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import torch.utils.data

import dlfs
import dlfs.torch

SAMPLES = 20_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="16,64,256")
    parser.add_argument("--workers", default="3,5,6,7")
    parser.add_argument("--blocks", type=int, choices=(4096, 512), default=4096)
    parser.add_argument("--lanes-a-worker", type=int, default=0, help="0: the lanes that a rank has by itself")
    options = parser.parse_args()
    for lengths, chunk in (((6_000, 10_000), "256K"), ((1_300, 2_700), "64K")):
        with tempfile.TemporaryDirectory() as folder:
            image = made(Path(folder), lengths, chunk)
            if options.blocks == 512:
                os.truncate(image, image.stat().st_size + 512)
            with dlfs.open(image) as ds:
                for batch in map(int, options.batches.split(",")):
                    for workers in map(int, options.workers.split(",")):
                        lanes = options.lanes_a_worker * workers or None
                        ratio = of_workers(ds, batch, workers, lanes) / of_one(ds, batch, lanes)
                        print(f"{lengths[0]} to {lengths[1]} bytes, batch {batch}, {workers} workers: {ratio:.3f}")


def made(folder, lengths, chunk):
    draw = random.Random(7)
    with tarfile.open(folder / "many.tar", "w") as archive:
        for number in range(SAMPLES):
            info = tarfile.TarInfo(f"{number:06}.bin")
            info.size = draw.randrange(*lengths)
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    image = folder / "many.dlfs"
    command = [sys.executable, "-m", "dlfs", "import", folder / "many.tar", image, "--chunk-size", chunk, "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return image


def of_one(ds, batch, lanes):
    with dlfs.Loader(ds, batch, seed=3, epochs=1, lanes=lanes) as loader:
        assert sum(len(some) for some in loader) == len(ds)
        return loader.stats()["bytes"]


def of_workers(ds, batch, workers, lanes):
    data = dlfs.torch.IterableDataset(ds, batch, transform=bytes_read, seed=3, epochs=1, lanes=lanes)
    read = [0] * workers
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=workers, multiprocessing_context="fork"
    )
    for worker, total in loader:
        read[worker] = max(read[worker], total)
    return sum(read)


def bytes_read(_batch):
    info = torch.utils.data.get_worker_info()
    return info.id, info.dataset.stats()["bytes"]


if __name__ == "__main__":
    main()
