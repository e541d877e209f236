#!/usr/bin/env python3
"""Runs job files in fio and in dlfs-bench, by turns, and prints one table.

  compare.py BENCH FILE [--rounds N] [--runtime S] [--size SIZE] [--direct 0|1] JOBFILE...

BENCH is the program dlfs-bench, FILE the plain file that both work on. Rounds are interleaved; each cell
is the median. Also runs the null engine at depth 32 in both, for the tools' own cost.
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
    """I/Os a second, mean and 99th percentile in us, CPU ns an I/O, of the direction that moved more."""
    direction = max(("read", "write"), key=lambda d: job[d]["io_bytes"])
    found = job[direction]
    ios = job["read"]["total_ios"] + job["write"]["total_ios"]
    seconds = job["job_runtime"] / 1000
    cpu_ns = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds / max(ios, 1) * 1e9
    p99 = found["clat_ns"].get("percentile", {}).get("99.000000", 0)
    return found["iops"], found["lat_ns"]["mean"] / 1e3, p99 / 1e3, cpu_ns


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("file")
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runtime", default="2")
    parser.add_argument("--size", default="256m")
    parser.add_argument("--direct", default="1")
    args = parser.parse_args()
    environment = {
        "BENCH_FILE": args.file, "BENCH_SIZE": args.size, "BENCH_RUNTIME": args.runtime,
        "BENCH_DIRECT": args.direct, "BENCH_LOGS": os.path.dirname(args.file) or ".",
    }
    null = ["--name=null", "--ioengine=null", "--size=64g", "--rw=randread", "--bs=4k", "--iodepth=32",
            "--time_based", f"--runtime={args.runtime}"]
    base = ["--bs=4k", f"--filename={args.file}", f"--size={args.size}", "--rw=randread", "--time_based",
            f"--runtime={args.runtime}"]
    runs = [("null, depth 32", null)]
    for engine, depth in (("psync", 1), ("io_uring", 32)):
        for direct, kind in ((args.direct, "disk"), ("0", "cached")):
            name = f"{engine}, depth {depth}, {kind}"
            more = [f"--ioengine={engine}", f"--iodepth={depth}", f"--direct={direct}"]
            more += ["--invalidate=0", "--pre_read=1"] if kind == "cached" else []
            runs.append((name, ["--name=x", *base, *more]))
    runs += [(os.path.basename(job), [job]) for job in args.jobs]
    print("| job | fio IOPS | dlfs-bench IOPS | ratio | fio mean us | ours | fio p99 us | ours | "
          "fio CPU ns an I/O | ours |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, arguments in runs:
        found = {}
        for _ in range(args.rounds):
            for program in ("fio", args.bench):
                for job in run(program, arguments, environment):
                    found.setdefault((program, job["jobname"]), []).append(figures(job))
        for program, job in [key for key in found if key[0] == "fio"]:
            a, b = ([statistics.median(column) for column in zip(*found[key, job])] for key in ("fio", args.bench))
            label = name if len({key[1] for key in found}) == 1 else f"{name}: {job}"
            print(f"| {label} | {a[0]:,.0f} | {b[0]:,.0f} | {b[0] / a[0]:.2f} | {a[1]:.2f} | {b[1]:.2f} "
                  f"| {a[2]:.2f} | {b[2]:.2f} | {a[3]:.0f} | {b[3]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
