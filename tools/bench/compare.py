#!/usr/bin/env python3
"""Runs job files in fio and in dlfs-bench, by turns, and prints one table.

  compare.py BENCH FILE [--image IMAGE] [--only TEXT] [--rounds N] [--runtime S] [--size SIZE] [--direct 0|1] JOBFILE...

BENCH is the program dlfs-bench, FILE the plain file that both work on, IMAGE the data set of job files
that are not for fio. Rounds are interleaved, and the program that begins changes with each round. Each cell is
the median over the rounds; the ratio also has its range. Without job files, two comparisons are made: the null
engine at depth 32, for the tools' own cost, and io_uring on the disk, which in dlfs-bench is dlfs's own engine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys


def run(program, arguments, environment):
    command = [program, *arguments, "--output-format=json"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.decode()}")
    return json.loads(done.stdout)["jobs"]


def figures(job):
    """I/Os a second, mean and 99th percentile latency in us, of the direction that moved more; CPU ns an I/O."""
    direction = max(("read", "write"), key=lambda d: job[d]["io_bytes"])
    found = job[direction]
    ios = job["read"]["total_ios"] + job["write"]["total_ios"]
    seconds = job["job_runtime"] / 1000
    cpu_ns = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds / max(ios, 1) * 1e9
    p99 = found["clat_ns"].get("percentile", {}).get("99.000000", 0)
    return found["iops"], found["lat_ns"]["mean"] / 1e3, p99 / 1e3, cpu_ns


def engines(args):
    """Name and arguments of each run that compares the tools' own engines."""
    base = ["--name=x", "--bs=4k", "--rw=randread", "--time_based", f"--runtime={args.runtime}"]
    base += ["--randrepeat=0"]  # otherwise a cache behind the disk has the blocks of the earlier rounds
    runs = [("null, depth 32", [*base, "--ioengine=null", "--size=64g", "--iodepth=32"])]
    base += [f"--filename={args.file}", f"--size={args.size}"]
    for depth in (1, 32):
        more = ["--ioengine=io_uring", f"--iodepth={depth}", f"--direct={args.direct}"]
        runs.append((f"io_uring, depth {depth}, disk", [*base, *more]))
    return [run for run in runs if args.only in run[0]]


def line(label, fio, ours):
    """Prints one row; `fio` is empty where fio cannot run the job."""
    medians = [[statistics.median(column) for column in zip(*rounds)] if rounds else None for rounds in (fio, ours)]
    ratio = "not for fio"
    if fio:
        ratios = sorted(b[0] / a[0] for a, b in zip(fio, ours))
        ratio = f"{medians[1][0] / medians[0][0]:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    forms = ("{:,.0f}", "{:,.2f}", "{:,.2f}", "{:,.0f}")
    cells = [[form.format(found[at]) if found else "" for found in medians] for at, form in enumerate(forms)]
    flat = [*cells[0], ratio, *cells[1], *cells[2], *cells[3]]
    print(f"| {label} | {' | '.join(flat)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("file")
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--image", default="")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this in their names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runtime", default="2")
    parser.add_argument("--size", default="256m")
    parser.add_argument("--direct", default="1")
    args = parser.parse_intermixed_args()
    environment = {
        "BENCH_FILE": args.file, "BENCH_SIZE": args.size, "BENCH_RUNTIME": args.runtime, "BENCH_IMAGE": args.image,
        "BENCH_DIRECT": args.direct,
    }
    runs = [(os.path.basename(job), [job]) for job in args.jobs] or engines(args)
    print("| job | fio IOPS | dlfs-bench IOPS | ratio | fio mean us | ours | fio p99 us | ours | "
          "fio CPU ns an I/O | ours |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, arguments in runs:
        programs = ["fio", args.bench]
        if args.jobs and "Not for fio" in open(arguments[0], encoding="utf-8").read():
            programs = [args.bench]
        found = {}
        for number in range(args.rounds):
            for program in programs[:: 1 if number % 2 == 0 else -1]:
                for job in run(program, arguments, environment):
                    found.setdefault(job["jobname"], {}).setdefault(program, []).append(figures(job))
        for job, rounds in found.items():
            label = name if len(found) == 1 else f"{name}: {job}"
            line(label, rounds.get("fio", []), rounds[args.bench])


if __name__ == "__main__":
    main()
