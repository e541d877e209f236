#!/usr/bin/env python3
"""How fast JPEGs become batches of random crops: one process of dlfs beside torchvision in DataLoader's workers.

    python benches/images.py [--samples 2048] [--batch 128] [--workers 2] [--rounds 3] [--dir DIR]

The pictures are noise with the spectrum of photographs, 500 x 375 pixels and about 110 KB, 256 different ones.
torchvision reads them as files with ImageFolder, by torchvision.io and by Pillow, in as many persistent workers as dlfs
has threads; dlfs reads an image of the same files, verifies every byte, and decodes with dlfs.images.Decoder. Crops are
of 224 pixels and mirrored half of the time, as uint8, and as float32 with ImageNet's mean and deviation. Files are in
the page cache. A round is an epoch of each, after one that is not counted; figures are medians, ratios those of the
rounds. Needs torch, torchvision and Pillow. LD_LIBRARY_PATH may name a folder with another libturbojpeg.so.0.
"""

import argparse
import contextlib
import io
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torchvision.transforms.v2 as transforms
from PIL import Image
from results import record
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode

import dlfs
import dlfs.images
from dlfs.images import _codecs

PICTURES = 256
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture(seed, width=500, height=375):
    """Noise that is as rough as photographs: its amplitude falls with the frequency."""
    draw = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1
    noise = [np.fft.irfft2(np.fft.rfft2(draw.standard_normal((height, width))) / frequency) for _ in range(3)]
    noise = [plane[:, :width] / plane.std() for plane in noise]
    channels = [noise[0], 0.8 * noise[0] + 0.3 * noise[1], 0.8 * noise[0] + 0.3 * noise[2]]
    pixels = np.stack(channels, -1) * 50 + 120
    out = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def make(folder, samples):
    pictures = [picture(seed) for seed in range(min(PICTURES, samples))]
    for number in range(samples):
        path = folder / "files" / str(number % 4) / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pictures[number % len(pictures)])
    command = [sys.executable, "-m", "dlfs", "import", folder / "files", folder / "image", "--quiet"]
    subprocess.run(list(map(str, command)), check=True)
    return sum(map(len, pictures)) / len(pictures)


def with_torchvision(args, folder, dtype, by_pillow):
    steps = [transforms.RandomResizedCrop(224, antialias=True), transforms.RandomHorizontalFlip()]
    if by_pillow:
        steps.append(transforms.PILToTensor())
    if dtype == "f32":
        steps += [transforms.ToDtype(torch.float32, scale=True), transforms.Normalize(MEAN, STD)]
    given = {} if by_pillow else {"loader": read}
    return DataLoader(
        ImageFolder(folder / "files", transforms.Compose(steps), **given),
        batch_size=args.batch, shuffle=True, num_workers=args.workers, persistent_workers=True,
    )


def read(path):
    # The operators: the functions of torchvision warn at each call.
    return torch.ops.image.decode_jpeg(torch.ops.image.read_file(path), ImageReadMode.RGB.value, False)


def with_dlfs(args, folder, dtype):
    decoder = dlfs.images.Decoder(224, dtype=dtype, threads=args.workers)
    loader = dlfs.Loader(dlfs.open(folder / "image"), args.batch, seed=1)

    class Epochs:
        def __iter__(self):
            return ((decoder(batch), batch.labels) for batch in loader)

    return Epochs()


def epoch(loader):
    """Images a second, and milliseconds of processor time an image, of an epoch."""
    processor, begun, count = processor_time(loader), time.perf_counter(), 0
    for pictures, _ in loader:
        assert pictures.shape[1:] == (3, 224, 224)
        count += len(pictures)
    taken = time.perf_counter() - begun
    return count / taken, (processor_time(loader) - processor) / count * 1000


def processor_time(loader):
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = used.ru_utime + used.ru_stime
    workers = getattr(getattr(loader, "_iterator", None), "_workers", ())
    for worker in workers:
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def codecs():
    """The back ends of dlfs that are here, in their order, and what makes each the first."""
    found = []
    for at, codec in enumerate(_codecs.CODECS):
        with contextlib.suppress(ImportError, OSError):
            has_parts = getattr(codec(), "_parts", None) is not None
            found.append((codec.name + (" 3" if has_parts else ""), _codecs.CODECS[at:]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path)
    args = parser.parse_args()
    kinds = codecs()
    lines = [
        "| elements | loader | images/s | ms of processor time | the first dlfs / it | by processor time |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        folder = Path(folder)
        length = make(folder, args.samples)
        for dtype in ("uint8", "f32"):
            ways = {
                "ImageFolder, torchvision.io": with_torchvision(args, folder, dtype, by_pillow=False),
                "ImageFolder, Pillow": with_torchvision(args, folder, dtype, by_pillow=True),
            }
            for name, chosen in kinds:
                _codecs.CODECS = chosen
                ways[f"dlfs, {name}"] = with_dlfs(args, folder, dtype)
            had = {name: [] for name in ways}
            for number in range(args.rounds + 1):
                for name, loader in ways.items():
                    found = epoch(loader)
                    print(f"{dtype:<6} {name:<28} {found[0]:7,.0f} images/s {found[1]:6.2f} ms", flush=True)
                    if number:
                        had[name].append(found)
            first = had[next(name for name in had if name.startswith("dlfs"))]
            for name, each in had.items():
                rate, processor = (statistics.median(column) for column in zip(*each))
                faster = statistics.median(ours / its for (ours, _), (its, _) in zip(first, each))
                thriftier = statistics.median(its / ours for (_, ours), (_, its) in zip(first, each))
                lines.append(f"| {dtype} | {name} | {rate:,.0f} | {processor:.2f} | {faster:.2f} | {thriftier:.2f} |")
    lines.append("")
    lines.append(f"JPEGs of {length / 1000:.0f} KB, batches of {args.batch}, {args.workers} workers or threads.")
    print("\n".join(lines))
    record("images", " ".join(["python", "benches/images.py", *sys.argv[1:]]), "\n".join(lines))


if __name__ == "__main__":
    main()
