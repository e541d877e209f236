"""One measured run: DLIO's ranks in a control group, on the client's processors.

AU is DLIO's own. Processor time, memory and bytes on the wire are read twice a second, and those between the begin of
the first epoch and the end of the last one count, as DLIO's clock says: imports and look-ups of files do not.
"""

import json
import math
import os
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import workloads
from doors import DOORS


@dataclass
class Measured:
    au: float
    gb: float
    seconds: float
    steps: int
    epochs: int
    # None without a control group, and on the wire for what does not use it.
    cpu_s: float | None
    memory_bytes: int | None
    wire_bytes: float | None


class Failed(Exception):
    """A run that DLIO did not finish, for lack of memory or data."""


class Group:
    """A control group, version 1 or 2, with a limit of memory; without one that can be written, nothing is bounded."""

    def __init__(self, memory_bytes, cpus):
        root, name = Path("/sys/fs/cgroup"), f"dlfs-dlio-{os.getpid()}"
        controllers = root / "cgroup.controllers"
        is_v2 = controllers.exists() and "memory" in controllers.read_text().split()
        self.cpus, self.memory, self.cpu = cpus, root / name, root / name
        if not is_v2:
            self.memory, self.cpu = root / "memory" / name, root / "cpuacct" / name
        self.stat = ("anon", "shmem") if is_v2 else ("total_rss", "total_shmem")
        try:
            for folder in {self.memory, self.cpu}:
                folder.mkdir()
            limit = self.memory / ("memory.max" if is_v2 else "memory.limit_in_bytes")
            limit.write_text(str(memory_bytes))
            self.is_there = True
        except OSError as error:
            self.is_there = False
            print(f"memory is not bounded, and neither it nor processor time is counted: {error}", flush=True)

    def start(self, command, **options):
        """Starts a process of the client."""

        def enter():
            os.sched_setaffinity(0, self.cpus)
            for folder in {self.memory, self.cpu} if self.is_there else ():
                (folder / "cgroup.procs").write_text("0")

        return subprocess.Popen(command, preexec_fn=enter, **options)

    def cpu_s(self):
        if not self.is_there:
            return None
        usage = self.cpu / "cpuacct.usage"
        if usage.exists():
            return int(usage.read_text()) / 1e9
        return numbers(self.cpu / "cpu.stat")["usage_usec"] / 1e6

    def memory_bytes(self):
        """Memory of processes, which page cache is not."""
        if not self.is_there:
            return None
        stat = numbers(self.memory / "memory.stat")
        return sum(stat[key] for key in self.stat)

    def remove(self):
        for folder in {self.memory, self.cpu} if self.is_there else ():
            for _ in range(100):  # its last process may not have been reaped
                try:
                    folder.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)


def numbers(path):
    return {key: int(value) for key, value in (line.split() for line in path.read_text().splitlines())}


class Watch(threading.Thread):
    """Notes time, processor time, memory and the bytes of loopback until it is stopped."""

    def __init__(self, group):
        super().__init__(daemon=True)
        self.group, self.notes, self.ended = group, [], threading.Event()

    def run(self):
        while not self.ended.wait(0.5):
            self.notes.append((time.time(), self.group.cpu_s(), self.group.memory_bytes(), loopback_bytes()))

    def between(self, begin, end, column):
        """Growth of a counter between two times."""
        value = [self.at(moment, column) for moment in (begin, end)]
        return None if None in value else value[1] - value[0]

    def at(self, moment, column):
        after = next((index for index, note in enumerate(self.notes) if note[0] >= moment), len(self.notes) - 1)
        late, early = self.notes[after], self.notes[max(after - 1, 0)]
        if late[column] is None or late is early:
            return late[column]
        share = min(1, (moment - early[0]) / (late[0] - early[0]))
        return early[column] + share * (late[column] - early[column])


def loopback_bytes():
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def run(data, door, accelerators, least, seed, tools, settings):
    """Runs `accelerators` for the `least` seconds and steps; a part of one is one with longer steps."""
    workload, ranks = data.workload, max(1, math.ceil(accelerators))
    step_s = workload.step_s * ranks / accelerators
    per_epoch = data.steps(ranks)
    if per_epoch < 3:
        raise Failed(f"{workload.name}: {ranks} ranks have {per_epoch} steps an epoch; give more --memory")
    seconds, steps = least
    steps = max(3, math.ceil(seconds / step_s), steps)
    epochs = math.ceil(steps / per_epoch)
    out = data.folder / "run"
    with opened(data, door, tools, settings) as (group, place):
        config = workloads.configuration(data, place.folder, out)
        config["train"] = {"epochs": epochs, "computation_time": step_s, "seed": seed}
        if epochs == 1:
            config["train"]["total_training_steps"] = steps
        env = dict(place.env)
        if place.address:
            config["framework"] = "pytorch"
            plug_in = {"data_loader": "custom", "data_loader_classname": "dlfs_dlio.Batches"}
            config["reader"] |= {**plug_in, "data_loader_sampler": "none"}
            batch_bytes = int(workload.batch * data.sample_bytes)
            given = {"address": place.address, "order": settings.order, "node_loader": settings.node_loader}
            # One batch in use and one ready, else a quarter of the memory for all ranks; a node loader's is that of all.
            window = max(5 * batch_bytes // 2, min(256 << 20, settings.memory_bytes // 4 // ranks))
            window *= ranks if settings.node_loader else 1
            env["DLFS_DLIO"] = json.dumps({**given, "window": window})
        command = tools.dlio(config, out, ranks, [f"{key}={value}" for key, value in env.items()])
        watch = Watch(group)
        with open(out / "console.log", "w") as log:
            options = {"cwd": out, "env": tools.environment, "stdout": log, "stderr": subprocess.STDOUT}
            process = group.start(command, **options)
        watch.start()
        code = process.wait()
        watch.ended.set()
        watch.join()
    if code != 0 or not (out / "summary.json").exists():
        said = (out / "console.log").read_text()[-2000:]
        raise Failed(f"{workload.name} through {door}: DLIO ended with {code}; --memory gives more\n{said}")
    steps = steps if epochs == 1 else epochs * per_epoch
    return read_results(out, data, steps * ranks * workload.batch, watch, place, (steps, epochs))


def read_results(out, data, samples, watch, place, extent):
    # Rank 0 writes it; version 3 puts the rank in front.
    epochs = json.loads(min(out.glob("*per_epoch_stats.json")).read_text())
    begin = moment(epochs["1"]["start"])
    end = moment(epochs[str(len(epochs))]["end"])
    au = json.loads((out / "summary.json").read_text())["metric"]["train_au_mean_percentage"] / 100
    memory = [note[2] for note in watch.notes if begin <= note[0] <= end and note[2] is not None]
    wire = watch.between(begin, end, 3) if place.over_tcp else None
    gb, cpu_s = samples * data.sample_bytes / 1e9, watch.between(begin, end, 1)
    return Measured(au, gb, end - begin, *extent, cpu_s, max(memory, default=None), wire)


def moment(text):
    return datetime.fromisoformat(text).timestamp()


@contextmanager
def opened(data, door, tools, settings):
    group = Group(settings.memory_bytes, settings.client_cpus)
    try:
        with DOORS[door][1](data, tools, group, settings.target_cpus) as place:
            yield group, place
    finally:
        group.remove()
