"""Stops a process, for tests and for the programs that they run."""

import glob
import os
import signal
import time


def freeze(pid, limit_s=120):
    """Stops all threads of a process, and waits until they have stopped: until then, one of them may still answer."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + limit_s
    while not all(map(_is_stopped, glob.glob(f"/proc/{pid}/task/*/stat"))):
        assert time.monotonic() < end, f"process {pid} did not stop within {limit_s} s"
        time.sleep(0.001)


def _is_stopped(path):
    try:
        with open(path) as file:
            return file.read().rpartition(") ")[2][:1] in ("T", "t", "Z")
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended
        return True
