#!/usr/bin/env python3
"""Reads an epoch of pictures, and decodes them in threads while the next batches are read.

    decode_in_threads.py ADDRESS [BATCH [THREADS]]

Uses torchvision where it is installed, else Pillow: both let go of the interpreter while they decode. The
bytes are views of the memory that was read, and are not copied before the decoder sees them.
"""

import io
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch

import dlfs
import dlfs.torch

try:
    from torchvision.io import ImageReadMode, decode_image
except ImportError:
    import numpy as np
    from PIL import Image

    def decode(view):
        """uint8[3, height, width]"""
        picture = Image.open(io.BytesIO(view)).convert("RGB")
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1)
else:
    def decode(view):
        """uint8[3, height, width]"""
        return decode_image(dlfs.torch.tensor(view), ImageReadMode.RGB)


def batches(loader, threads, ahead=2):
    """(pictures, labels) of each batch, while `ahead` more are being decoded."""
    with ThreadPoolExecutor(threads) as pool:
        under_way = deque()
        for batch in loader:
            under_way.append(([pool.submit(decode, view) for view in batch], batch.labels))
            if len(under_way) > ahead:
                pictures, labels = under_way.popleft()
                yield [picture.result() for picture in pictures], labels
        for pictures, labels in under_way:
            yield [picture.result() for picture in pictures], labels


def main():
    batch_size = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    threads = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    with dlfs.open(sys.argv[1]) as ds:
        count, total = 0, 0.0
        for pictures, labels in batches(dlfs.Loader(ds, batch_size, seed=1), threads):
            count += len(pictures)
            total += sum(float(picture.float().mean()) for picture in pictures)
        print(f"{count} pictures of {len(ds.classes)} classes, brightness {total / count:.1f}")


if __name__ == "__main__":
    main()
