"""The cost of loading and transforming to a training step, and pictures a second in threads and in processes.

    python benches/overlap.py [--seconds 6] [--rounds 3] [--pictures 256]

Needs Pillow; with torch, also its own workers. The step is a sleep, as a kernel is for the program that waits for it.
Pictures are JPEGs of some 110 KB, decoded by Pillow to 224 x 224.
"""

import argparse
import io
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

import dlfs
from results import record

STEP_S = 0.02


def decode(batch):
    """uint8[B, 224, 224, 3]; Pillow lets go of the interpreter while it decodes and resizes."""
    pictures = np.empty((len(batch), 224, 224, 3), np.uint8)
    for at, view in enumerate(batch):
        picture = Image.open(io.BytesIO(view))
        picture.draft("RGB", (224, 224))
        pictures[at] = picture.resize((224, 224), Image.BILINEAR)
    return pictures


def decode_whole(batch):
    """As decode, of all pixels, as most programs do."""
    return np.stack([np.asarray(Image.open(io.BytesIO(view)).resize((224, 224), Image.BILINEAR)) for view in batch])


def holds(batch):
    """Arithmetic in Python, which holds the interpreter: some 8 ms for a batch of 4."""
    total = 0
    for view in batch:
        for byte in view[:60000:2]:
            total = (total * 31 + byte) & 0xFFFFFFFF
    return np.full(1 << 16, total & 0xFF, np.uint8)


def none(batch):
    return len(batch)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        image = made(Path(folder), options.pictures)
        with dlfs.open(image) as ds:
            lines = [*steps(ds, options), "", *pictures(ds, options)]
    print("\n".join(lines))
    record("overlap", " ".join(["python benches/overlap.py", *sys.argv[1:]]), "\n".join(lines))


def made(folder, count):
    draw, image = random.Random(7), folder / "pictures.dlfs"
    with dlfs.Writer(image) as out:
        for number in range(count):
            rough = np.frombuffer(draw.randbytes(47 * 63 * 3), np.uint8).reshape(47, 63, 3)
            picture = Image.fromarray(rough).resize((500, 375), Image.BICUBIC)
            noise = np.frombuffer(draw.randbytes(375 * 500 * 3), np.uint8).reshape(375, 500, 3) // 6
            data = io.BytesIO()
            Image.fromarray((np.asarray(picture) // 6 * 5 + noise).astype(np.uint8)).save(data, "JPEG", quality=86)
            out.write(data.getvalue(), name=f"{number}.jpg", label=number % 10)
    print(f"{count} pictures of {len(data.getvalue())} bytes")
    return image


def steps(ds, options):
    """The median over rounds of the mean step, beside that of steps alone in the same round."""
    kinds = {
        "batches alone": {},
        "decoded in the loop": {"in_loop": decode},
        "decoded in 1 thread": {"transform": decode},
        "decoded in 1 process": {"transform": decode, "processes": 1},
        "Python in the loop": {"in_loop": holds},
        "Python in 1 thread": {"transform": holds},
        "Python in 1 process": {"transform": holds, "processes": 1},
    }
    ratios = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind, given in kinds.items():
            given = dict(given)
            in_loop = given.pop("in_loop", None)
            with dlfs.Loader(ds, 4, seed=1, **given) as loader:
                with_loading = mean_step(forever(loader), in_loop, options.seconds)
            ratios[kind].append(with_loading / mean_step(iter(int, 1), None, options.seconds / 2))
            print(f"{kind}: {ratios[kind][-1]:.3f}", flush=True)
    lines = ["| step of 20 ms, batches of 4 | step / step without loading |", "|---|---|"]
    return lines + [f"| {kind} | {statistics.median(found):.3f} |" for kind, found in ratios.items()]


def forever(loader):
    while True:
        yield from loader


def mean_step(batches, work, seconds):
    for _ in range(5):
        next(batches)  # the first ones wait for processes and for memory
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        batch = next(batches)
        if work is not None:
            work(batch)
        time.sleep(STEP_S)
        count += 1
    return (time.perf_counter() - began) / count


def pictures(ds, options):
    count = len(os.sched_getaffinity(0))
    rows = {}
    for transform in (decode, decode_whole):
        for pool in ("threads", "processes"):
            name = f"{transform.__name__}, {count} {pool}"
            rows[name] = lambda t=transform, p=pool: rate_of(ds, options, transform=t, **{p: count})
        torchs = f"{transform.__name__}, torch's DataLoader, {count} workers"
        rows[torchs] = lambda t=transform: of_torch(ds, options, t, count)
    found = {name: [] for name in rows}
    for _ in range(options.rounds):
        for name, row in rows.items():
            found[name].append(row())
            print(f"{name}: {found[name][-1]}", flush=True)
    lines = ["| batches of 32 | pictures/s |", "|---|---|"]
    return lines + [f"| {name} | {statistics.median(each):,.0f} |" for name, each in found.items() if None not in each]


def rate_of(ds, options, **given):
    with dlfs.Loader(ds, 32, seed=1, **given) as loader:
        return rate(forever(loader), options.seconds)


def of_torch(ds, options, transform, workers):
    try:
        import dlfs.torch
    except ImportError:
        return None
    data = dlfs.torch.IterableDataset(ds, 32, seed=1, transform=transform)
    loader = dlfs.torch.DataLoader(data, num_workers=workers, persistent_workers=True, multiprocessing_context="fork")
    return rate(forever(loader), options.seconds)


def rate(batches, seconds):
    for _ in range(4):
        next(batches)
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        count += len(next(batches))
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
