#!/usr/bin/env python3
"""What the Python layer of dlfs costs, and how a job that goes on from epoch to epoch reads.

    overhead.py IMAGE [BATCH]

IMAGE is any image or address, e.g. the one that bench_peers.py --keep leaves under ROOT/small/dlfs.
The harness begins each epoch anew; here three follow each other, as in a job, handed over the same way.
"""
import resource
import sys
import time

import dlfs


def epochs(ds, batch_size, **options):
    loader = dlfs.Loader(ds, batch_size, **options)
    stage = memoryview(bytearray(16 << 20))
    print(f"{options}: {len(loader)} batches an epoch")
    for epoch in range(3):
        before, began, first, count = resource.getrusage(0), time.perf_counter(), None, 0
        for batch in loader:
            first = first or time.perf_counter() - began
            at = 0
            for view in batch.tolist():
                stage[at:at + len(view)] = view
                at += len(view)
            count += len(batch)
        took, after = time.perf_counter() - began, resource.getrusage(0)
        print(f"  epoch {epoch}: {count / took:9,.0f} samples/s, first batch {1e3 * first:6.1f} ms, CPU "
              f"{after.ru_utime - before.ru_utime:.2f} s user {after.ru_stime - before.ru_stime:.2f} s system, "
              f"resident {after.ru_maxrss >> 10} MiB at most")
    loader.close()


def cost_us(work):
    """The least of five means of 300 calls."""
    def mean():
        began = time.perf_counter()
        for _ in range(300):
            work()
        return (time.perf_counter() - began) / 300 * 1e6
    return min(mean() for _ in range(5))


def main():
    batch_size = int(sys.argv[2]) if len(sys.argv) > 2 else 256
    ds = dlfs.open(sys.argv[1], direct="off")
    for order in ("grouped", "global"):
        epochs(ds, batch_size, order=order)
    batch = ds.read_batch(ds.ids[:batch_size])
    print(f"for a batch of {len(batch)}, us: tolist {cost_us(batch.tolist):.1f}, "
          f"ids {cost_us(lambda: batch.ids):.1f}, labels {cost_us(lambda: batch.labels):.1f}, "
          f"offsets {cost_us(lambda: batch.offsets):.1f}; one sample {cost_us(lambda: batch[0]):.2f}")


if __name__ == "__main__":
    main()
