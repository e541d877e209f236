#!/usr/bin/env python3
"""How soon spawned workers have their first batch, beyond importing torch.

    python benches/spawned_workers.py IMAGE [--workers 8] [--order global]

Each worker is a process of its own that has imported torch. All begin at once: they load the data set that
the parent has sent, as PyTorch's DataLoader does with "spawn", and read their first batch. What is printed
is seconds of each worker, the slowest last: until the data set is open, until the first batch, and of
processor time. Needs the wheel and torch.
"""

import argparse
import multiprocessing
import pickle
import time


def work(index, workers, barrier, payload, results):
    import torch.utils.data._utils.worker as worker

    barrier.wait()
    begun, processor = time.perf_counter(), time.process_time()
    dataset = pickle.loads(payload)
    opened = time.perf_counter() - begun
    worker._worker_info = worker.WorkerInfo(id=index, num_workers=workers, seed=0, dataset=dataset)
    next(iter(dataset))
    results.put((time.perf_counter() - begun, opened, time.process_time() - processor))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("image")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--order", default="global")
    args = parser.parse_args()

    import dlfs
    from dlfs.torch import IterableDataset

    options = {"batch_size": 32, "order": args.order, "seed": 7, "window": 16 << 20}
    payload = pickle.dumps(IterableDataset(dlfs.open(args.image), **options))
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(args.workers), context.Queue()
    workers = [
        context.Process(target=work, args=(index, args.workers, barrier, payload, results))
        for index in range(args.workers)
    ]
    for process in workers:
        process.start()
    found = sorted(results.get(timeout=600) for _ in workers)
    for process in workers:
        process.join()
    for title, column in (("opened", 1), ("first batch", 0), ("processor time", 2)):
        print(f"{title}: " + " ".join(f"{times[column]:.2f}" for times in found))


if __name__ == "__main__":
    main()
