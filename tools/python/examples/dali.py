#!/usr/bin/env python3
"""Reads an epoch of pictures that NVIDIA DALI decodes, on the GPU if there is one.

    dali.py ADDRESS [BATCH]

pip install nvidia-dali-cuda120 nvidia-nvimgcodec-cu12: they decode on the CPU too.

The external source hands DALI arrays over the memory that was read.
"""

import sys

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.backend import GetCUDADeviceCount

import dlfs.dali

GPU = GetCUDADeviceCount() > 0
DEPTH = 2


@pipeline_def(num_threads=4, device_id=0 if GPU else None, prefetch_queue_depth=DEPTH)
def pictures(loader):
    source = dlfs.dali.source(loader, DEPTH)
    encoded, labels = fn.external_source(source=source, num_outputs=2, batch=True, no_copy=True, cycle="raise")
    decoded = fn.decoders.image(encoded, device="mixed" if GPU else "cpu", output_type=types.RGB)
    return fn.resize(decoded, size=(64, 64)), labels


def main():
    batch_size = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    with dlfs.open(sys.argv[1]) as ds:
        loader = dlfs.Loader(ds, batch_size, seed=1)
        pipeline = pictures(loader, batch_size=batch_size)
        count, total = 0, 0.0
        try:
            while True:
                decoded, labels = pipeline.run()
                array = decoded.as_cpu().as_array()
                count += len(array)
                total += array.mean(axis=(1, 2, 3)).sum()
        except StopIteration:
            print(f"{count} pictures of {len(ds.classes)} classes, brightness {total / count:.1f}")


if __name__ == "__main__":
    main()
