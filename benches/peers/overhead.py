#!/usr/bin/env python3
"""What the Python layer of dlfs costs, and how a job that goes on from epoch to epoch reads.

    overhead.py IMAGE [BATCH]

IMAGE is any image or address, e.g. the one that bench_peers.py --keep leaves under ROOT/small/dlfs.
Prints, for grouped and for global order: epochs that follow each other, as in a job, handed over as the
harness does (which begins each epoch anew); batches taken by Python beside the same batches taken by the
command `dlfs read`, which is the library's loop in Rust; what Python's calls cost by themselves, for a
batch that is ready, too; and the memory of a job with 0, 2 and 4 worker processes of torch's DataLoader, where torch is installed.
"""
import json
import os
import resource
import subprocess
import sys
import time

import dlfs

ORDERS = ("grouped", "global")
EPOCHS = 4
ROUNDS = 3
WORKERS = (0, 2, 4)
MEMORY_EPOCHS = 4
READY_NS = 1_000_000


def epochs(address, batch_size, order):
    began = time.perf_counter()
    ds = dlfs.open(address, direct="off")
    loader = dlfs.Loader(ds, batch_size, order)
    stage = memoryview(bytearray(16 << 20))
    print(f"{order}: {len(loader)} batches an epoch")
    for epoch in range(3):
        before, again, first, count = resource.getrusage(0), time.perf_counter(), None, 0
        for batch in loader:
            first = first or time.perf_counter() - (again if epoch else began)
            at = 0
            for view in batch.tolist():
                stage[at:at + len(view)] = view
                at += len(view)
            count += len(batch)
        took, after = time.perf_counter() - again, resource.getrusage(0)
        since = "since the call of open" if epoch == 0 else ""
        print(f"  epoch {epoch}: {count / took:9,.0f} samples/s, first batch {1e3 * first:6.1f} ms {since}, CPU "
              f"{after.ru_utime - before.ru_utime:.2f} s user {after.ru_stime - before.ru_stime:.2f} s system, "
              f"resident {after.ru_maxrss >> 10} MiB at most")
    loader.close()
    ds.close()


def by_python(address, batch_size, order):
    """Microseconds a batch, from the first one asked for to the last, ids, labels and views taken."""
    with dlfs.open(address, direct="off") as ds:
        loader, count = dlfs.Loader(ds, batch_size, order, seed=1), 0
        began = time.perf_counter()
        for _ in range(EPOCHS):
            for batch in loader:
                batch.tolist(), batch.ids, batch.labels
                count += 1
        took = time.perf_counter() - began
        loader.close()
    return 1e6 * took / count


def by_rust(address, batch_size, order):
    """The same by the library's loop in the command, which sums up lengths and ids."""
    command = [sys.executable, "-m", "dlfs", "read", address, "--order", order, "--batch-size", str(batch_size),
               "--epochs", str(EPOCHS), "--seed", "1", "--direct", "off", "--json", "--quiet"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return 1e6 * report["seconds"] * batch_size / report["samples"]


def beside_rust(address, batch_size, order):
    rounds = [(by_rust(address, batch_size, order), by_python(address, batch_size, order)) for _ in range(ROUNDS)]
    rust, python = (sorted(times)[ROUNDS // 2] for times in zip(*rounds))
    each = ", ".join(f"{b - a:+.1f}" for a, b in rounds)
    print(f"{order}, {EPOCHS} epochs, batches of {batch_size}: Rust {rust:.1f} us a batch, Python {python:.1f}, "
          f"{python - rust:+.1f} (medians of {ROUNDS} rounds, differences {each})")


def cost_us(work):
    """The least of five means of 300 calls."""
    def mean():
        began = time.perf_counter()
        for _ in range(300):
            work()
        return (time.perf_counter() - began) / 300 * 1e6
    return min(mean() for _ in range(5))


def ready(address, batch_size, order):
    """What the layer adds to a batch that the library has ready: the whole call for it, the library's part of
    which is in it, and a view of each sample."""
    took = {"next": [], "tolist": [], "dropping both": []}
    with dlfs.open(address, direct="off") as ds:
        loader = dlfs.Loader(ds, batch_size, order, seed=1)
        batches = iter(loader)
        for _ in range(len(loader)):
            until = time.perf_counter_ns() + READY_NS
            while time.perf_counter_ns() < until:  # not asleep: a processor that slept is slow at first
                pass
            at = [time.perf_counter_ns()]
            batch = next(batches)
            at.append(time.perf_counter_ns())
            views = batch.tolist()
            at.append(time.perf_counter_ns())
            del batch, views
            at.append(time.perf_counter_ns())
            for call, (begin, end) in zip(took, zip(at, at[1:])):
                took[call].append(end - begin)
        loader.close()
    medians = {call: sorted(times)[len(times) // 2] / 1e3 for call, times in took.items()}
    print(f"{order}, a batch of {batch_size} that is ready, us: " +
          ", ".join(f"{call} {us:.1f}" for call, us in medians.items()) +
          f"; in all {sum(medians.values()):.1f} (medians of {len(took['next'])} batches)")


def calls(address, batch_size):
    with dlfs.open(address, direct="off") as ds:
        batch = ds.read_batch(ds.ids[:batch_size])
        print(f"for a batch of {len(batch)}, us: tolist {cost_us(batch.tolist):.1f}, "
              f"ids {cost_us(lambda: batch.ids):.1f}, labels {cost_us(lambda: batch.labels):.1f}, "
              f"offsets {cost_us(lambda: batch.offsets):.1f}; one sample {cost_us(lambda: batch[0]):.2f}")


def memory(address, batch_size, workers):
    """Anonymous and shared memory of the process and its workers after each epoch."""
    import torch.utils.data

    import bench_peers
    import dlfs.torch
    with dlfs.open(address, direct="off") as ds:
        data = dlfs.torch.IterableDataset(ds, batch_size, transform=len, window=192 << 20)
        loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers,
                                             persistent_workers=workers > 0)
        after = []
        for _ in range(MEMORY_EPOCHS):
            count = sum(loader)
            after.append(bench_peers.mem_of_tree(os.getpid())[1] >> 20)
    print(f"{workers} workers, {count} samples an epoch: MiB after each epoch {after}")


def main():
    address, batch_size = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 256
    if "--memory" in sys.argv:
        return memory(address, batch_size, int(sys.argv[-1]))
    for order in ORDERS:
        epochs(address, batch_size, order)
    for order in ORDERS:
        beside_rust(address, batch_size, order)
    for order in ORDERS:
        ready(address, batch_size, order)
    calls(address, batch_size)
    for workers in WORKERS:  # each in a process of its own
        subprocess.run([sys.executable, __file__, address, str(batch_size), "--memory", str(workers)])


if __name__ == "__main__":
    main()
