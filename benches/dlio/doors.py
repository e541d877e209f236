"""The ways to the data: each sets up what a run reads through, and takes it down.

A door is a context manager that yields an `Opened`. The client's own processes start in the run's control group, so
that their processor time and memory count; the target is another machine's, and counts apart.
"""

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Opened:
    # DLIO lists the files of this folder in every way, and reads them in the stock way.
    folder: Path
    # Variables of the ranks.
    env: dict = field(default_factory=dict)
    # Image of the open way; None: the stock way.
    address: str | None = None
    over_tcp: bool = False


@contextlib.contextmanager
def ext4(data, tools, group, target_cpus):
    drop_caches(data)
    yield Opened(data.folder / "data")


@contextlib.contextmanager
def mount(data, tools, group, target_cpus):
    drop_caches(data)
    place = data.folder / "tree" / "train"
    command = [tools.dlfs, "mount", "--foreground", data.as_files, place]
    with ends(group.start(command, stdout=subprocess.PIPE, text=True)) as daemon:
        first_line(daemon)
        yield Opened(data.folder / "tree")


@contextlib.contextmanager
def preload(data, tools, group, target_cpus):
    drop_caches(data)
    folder = data.folder / "tree"
    shown = f"{folder / 'train'}={data.as_files}"
    yield Opened(folder, {"LD_PRELOAD": str(tools.preload), "DLFS_MOUNTS": shown})


@contextlib.contextmanager
def image(data, tools, group, target_cpus):
    drop_caches(data)
    yield Opened(data.folder / "data", address=str(data.records))


@contextlib.contextmanager
def nvme_tcp(data, tools, group, target_cpus):
    # The target's page cache stays as it is, as that of a machine of its own would.
    command = [tools.dlfs, "serve", data.records, "--listen", "127.0.0.1:0", "--json"]
    pin = lambda: os.sched_setaffinity(0, target_cpus)  # noqa: E731
    with ends(subprocess.Popen(command, preexec_fn=pin, stdout=subprocess.PIPE, text=True)) as target:
        address = json.loads(first_line(target))["address"]
        yield Opened(data.folder / "data", address=address, over_tcp=True)


DOORS = {
    "ext4": ("stock", ext4),
    "mount": ("stock", mount),
    "preload": ("stock", preload),
    "image": ("open", image),
    "nvme-tcp": ("open", nvme_tcp),
}


def drop_caches(data):
    """Drops the files and images from the page cache, where they would be outside the run's limit of memory."""
    for path in [*data.folder.glob("*.dlfs"), *(data.folder / "data" / "train").iterdir()]:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


@contextlib.contextmanager
def ends(process):
    """Ends a process that serves, whatever comes of the run."""
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def first_line(process):
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{' '.join(map(str, process.args))} ended with {process.wait()} before it served")
    return line
