"""How parts of one image, written by several processes, add up; and what a commit of many samples costs.

    python benches/parts.py shaped DIR      # 1 and 4 parts, each from a source of 50 MB/s
    python benches/parts.py many DIR        # --samples 10000000 small ones, and their commit

`shaped`: a process of its own feeds each part through a pipe, at the rate that is given, with samples of 110 KiB. Time is
from the first byte to the end of the commit. `many`: samples of 16 bytes, in 50 parts by two processes; the commit is a process
of its own, whose peak memory is its maximum resident set. Run it with the wheel installed; DIR needs the space.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import dlfs

SAMPLE = 110 << 10
TICK = 0.01


def feed(rate: float, total: int) -> None:
    """Writes `total` bytes to standard output, `rate` a second."""
    piece, sent, began = os.urandom(1 << 20), 0, time.monotonic()
    while sent < total:
        due = min(total, int((time.monotonic() - began) * rate)) - sent
        while due > 0:
            done = os.write(1, piece[: min(due, len(piece))])
            sent, due = sent + done, due - done
        time.sleep(TICK)


def write_shaped(plan: dlfs.WritePlan, number: int, rate: float, samples: int) -> None:
    command = [sys.executable, __file__, "feed", str(rate), str(samples * SAMPLE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as source, plan.part(number) as out:
        assert source.stdout is not None
        for _ in range(samples):
            out.write(source.stdout.read(SAMPLE))


def shaped(folder: Path, parts: int, rate: float, samples: int) -> float:
    lanes = [folder / f"lane{number}" for number in range(parts)]
    plan = dlfs.WritePlan(lanes, overwrite=True)
    began = time.monotonic()
    workers = [
        multiprocessing.Process(target=write_shaped, args=(plan, number, rate, samples)) for number in range(parts)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert plan.commit(parts).samples == parts * samples
    took = time.monotonic() - began
    for lane in lanes:
        lane.unlink()
    return took


def run_shaped(args: argparse.Namespace) -> None:
    samples = int(args.rate * args.seconds) // SAMPLE
    ratios = []
    for number in range(args.rounds):
        one, four = (shaped(args.folder, parts, args.rate, samples) for parts in (1, 4))
        ratios.append(4 * one / four)
        mb = samples * SAMPLE / 1e6
        print(f"round {number}: 1 part {mb / one:.1f} MB/s, 4 parts {4 * mb / four:.1f} MB/s, {ratios[-1]:.2f} times")
    print(f"median {statistics.median(ratios):.2f} times (bar 3.6)")


def write_many(plan: dlfs.WritePlan, number: int, samples: int) -> dlfs.WrittenPart:
    content = bytes(range(16))
    with plan.part(number) as out:
        for _ in range(samples):
            out.write(content)
    assert out.written is not None
    return out.written


def run_many(args: argparse.Namespace) -> None:
    lanes = [args.folder / f"lane{number}" for number in range(2)]
    plan = dlfs.WritePlan(lanes, pack="tight", overwrite=True)
    plan.save(args.folder / "write.plan")
    began, each = time.monotonic(), args.samples // args.parts
    # Parts 0, 2, 4 ... and 1, 3, 5 ... lie on one namespace each: a process for each of these.
    jobs = [[(plan, number, each) for number in range(first, args.parts, 2)] for first in range(2)]
    workers = [multiprocessing.Process(target=write_run, args=(run,)) for run in jobs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    print(f"{args.samples:,} samples written in {time.monotonic() - began:.1f} s")
    subprocess.run([sys.executable, __file__, "commit", str(args.folder), str(args.parts)], check=True)


def write_run(run: list[tuple[dlfs.WritePlan, int, int]]) -> None:
    for each in run:
        write_many(*each)


def commit(folder: Path, parts: int) -> None:
    plan = dlfs.WritePlan.load(folder / "write.plan")
    began = time.monotonic()
    written = plan.commit(parts)
    took, peak = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{written.samples:,} samples committed in {took:.1f} s, peak memory {peak / 1e9:.2f} GB (bar 600 s, 2 GB for 1e8)")
    print(f"image {written.image_bytes / 1e9:.2f} GB, {written.chunks:,} chunks")


def main() -> None:
    if sys.argv[1:2] == ["feed"]:
        feed(float(sys.argv[2]), int(sys.argv[3]))
        return
    if sys.argv[1:2] == ["commit"]:
        commit(Path(sys.argv[2]), int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["shaped", "many"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rate", type=float, default=50e6, help="bytes a second of each source")
    parser.add_argument("--seconds", type=float, default=8, help="how long a source lasts at that rate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--parts", type=int, default=50)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.what == "shaped":
        run_shaped(args)
    else:
        run_many(args)


if __name__ == "__main__":
    main()
