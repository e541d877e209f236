"""Worker processes that run a transform, and the shared memory for batches and results.

A worker gets a batch in a file in memory (memfd): one system call, without the interpreter, writes the records there,
and the worker's Batch is a view of them. The arrays and tensors of a result come back in another such file, an area,
which this process maps: an array of the result is a view of the area, and the area is used again once the program has
dropped all arrays over it. The files have no names, so nothing stays behind if a process is killed. Everything else in
a result is pickled.

Messages on the socket are small: ranges in these files, and the descriptors of new files. A worker ends when this
process closes its end of the socket. Read `Worker` first, then `_worker_process.py`, which runs in the process.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import pickle
import queue
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from . import _dlfs
from ._dlfs import Batch
from ._errors import Error, WorkerDied
from ._worker_process import MESSAGE_LEN, serve


class Workers:
    """Processes that run a transform, each one batch at a time. A process starts with its first batch, and again after
    a death; `start` starts all of them."""

    def __init__(self, transform: Callable[..., Any], count: int, ahead: int, seed: int, pin: Any) -> None:
        self._all = [Worker((transform, seed), ahead // count + _SPARE, pin) for _ in range(count)]
        self._begin()

    def _begin(self) -> None:
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._all:
            self._idle.put(worker)

    def start(self) -> None:
        for worker in self._all:
            if worker.lock.acquire(blocking=False):  # else it runs
                try:
                    worker.start()
                finally:
                    worker.lock.release()

    def __call__(self, batch: Batch) -> Any:
        worker = self._idle.get()
        try:
            with worker.lock:
                return worker.run(batch)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Ends the processes; one that runs a transform has a moment to end it."""
        for worker in self._all:
            worker.hang_up()
        until = time.monotonic() + _PATIENCE_S
        for worker in self._all:
            worker.end(until)

    def forget(self) -> None:
        """In a forked child: the processes are the parent's."""
        for worker in self._all:
            worker.forget()
        self._begin()

    def __del__(self) -> None:
        self.close()


class Worker:
    """One process, and the memory that it shares with this process. `lock` is held while it has a batch."""

    def __init__(self, work: tuple[Callable[..., Any], int], most_lent: int, pin: Any) -> None:
        self._work, self._most_lent, self._pin = work, most_lent, pin
        self._is_closed = False
        self.lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._process: Any = None
        self._link: socket.socket | None = None
        # The file for batches and its size in bytes; None: there is none yet, or a result keeps views of it.
        self._records: tuple[int, int] | None = None
        # The areas for results that are free.
        self._free = _Free()

    def start(self) -> None:
        """Starts the process, unless it runs."""
        if self._process is not None or self._is_closed:
            return
        wanted = multiprocessing.get_start_method(allow_none=True)
        context: Any = multiprocessing.get_context("forkserver" if wanted == "forkserver" else "spawn")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = context.Process(target=serve, args=(theirs, *self._work), name="dlfs-transform", daemon=True)
        try:
            process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            ours.close()
            raise TypeError(
                f"the transform cannot be sent to a worker process ({error}): take a function of a module, or threads"
            ) from error
        finally:
            theirs.close()
        self._process, self._link = process, ours

    def run(self, batch: Batch) -> Any:
        """The transform of `batch`."""
        self.start()
        if self._link is None:
            raise Error("the loader was closed")
        offered = None
        try:
            offered = self._send(self._link, batch)
            multiprocessing.connection.wait([self._link, self._process.sentinel])
            flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC  # the process may have ended without an answer
            answer, files, _, _ = socket.recv_fds(self._link, MESSAGE_LEN, 1, flags)
        except (BlockingIOError, ConnectionError):
            answer = b""
        if not answer:
            if offered is not None:
                offered.give_back()  # it ends with those that are free
            raise self._died(batch)
        return self._result(pickle.loads(answer), files, offered)

    def _send(self, link: socket.socket, batch: Batch) -> _Area | None:
        """Sends a batch; returns the area that may take the result, if one is free."""
        records, beside = batch._apart()
        lengths = sum(map(len, records)), len(beside)
        files = []
        if self._records is None or self._records[1] < sum(lengths):
            self._forget_records()
            size = sum(lengths) + sum(lengths) // 4  # batches differ
            file = os.memfd_create("dlfs-batch", os.MFD_CLOEXEC)
            self._records, files = (file, size), [file]
            os.ftruncate(file, size)
        file, size = self._records
        offered = None
        try:
            _write(file, [*records, beside])
            offered = self._free.take()
            message = lengths, size, None if offered is None else offered.id
            socket.send_fds(link, [pickle.dumps(message)], files)
        except BaseException:
            if offered is not None:
                offered.give_back()
            if files:
                self._forget_records()  # the worker has not got the file, and would read the one before
            raise
        return offered

    def _forget_records(self) -> None:
        if self._records is not None:
            os.close(self._records[0])
        self._records = None

    def _result(self, answer: tuple[Any, ...], files: Sequence[int], offered: _Area | None) -> Any:
        """The result that the worker sent, or its error."""
        is_kept, place, payload = answer
        if is_kept:
            self._forget_records()  # the transform has kept views of the batch, which must not change
        if place is None:
            if offered is not None:
                offered.give_back()
            return _unpickled(payload, numpy.empty(0, numpy.uint8), False)
        id, size, start, end = place
        if offered is None or offered.id != id:
            if offered is not None:
                offered.end()  # the result did not fit
            if not files:
                raise Error("a result of a worker process cannot be mapped: there are no free descriptors (ulimit -n)")
            offered = _Area(id, files[0], size, self._free, self._pin)
        held = offered.lend()
        return _unpickled(held[start:end], held, len(self._free.lent) > self._most_lent)

    def _died(self, batch: Batch) -> Error:
        """The error of a process that ended with `batch`; the next batch starts another one."""
        if self._is_closed:
            return Error("the loader was closed")
        process, pid = self._process, self._process.pid
        process.join(_PATIENCE_S)
        process.kill()
        process.join()
        code = process.exitcode or 0
        self._drop()
        if code < 0:
            names = {int(number): number.name for number in signal.Signals}
            how = f"was killed by {names.get(-code, f'signal {-code}')}"
            how += " (so does the kernel when memory is short)" if code == -signal.SIGKILL else ""
        else:
            how = (
                f"ended with exit code {code}: see its output. A program whose loader has processes needs "
                'if __name__ == "__main__": around what it does'
            )
        return WorkerDied(f"worker process {pid} {how}; it was to transform a batch of {len(batch)} samples")

    def hang_up(self) -> None:
        """Tells the process to end when its transform returns."""
        self._is_closed = True
        with contextlib.suppress(AttributeError, OSError):  # another thread has noticed its end
            self._link.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]

    def end(self, until: float) -> None:
        """Ends the process after `hang_up`, at this time at the latest."""
        if (process := self._process) is not None:
            process.join(max(until - time.monotonic(), 0))
            process.kill()
            process.join()
        with self.lock:  # its holder has seen the end
            self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
        self._forget_records()
        self._free.close()
        self._begin()

    def forget(self) -> None:
        """In a forked child. multiprocessing would end the process when this one exits."""
        multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined]
        self.lock = threading.Lock()
        if self._link is not None:
            self._link.close()
        self._forget_records()
        self._begin()  # its memory stays registered: that is the parent's, too


class _Free(deque["_Area"]):
    """The areas of a worker that may take a result. Arrays give them back in any thread."""

    def __init__(self) -> None:
        super().__init__()
        # The numbers of the areas that arrays of the program keep.
        self.lent: set[int] = set()
        self.is_closed = False

    def take(self) -> _Area | None:
        with contextlib.suppress(IndexError):
            return self.pop()
        return None

    def close(self) -> None:
        self.is_closed = True
        while (area := self.take()) is not None:
            area.end()


class _Area:
    """A file in memory for results, which the worker writes."""

    def __init__(self, id: int, file: int, size: int, free: _Free, pin: Any) -> None:
        self.id, self._free = id, free
        self._map = mmap.mmap(file, size)
        os.close(file)
        self._address = numpy.frombuffer(self._map, numpy.uint8).ctypes.data
        # Page-locked as the window is, where the library can do that.
        register = None if pin is None else getattr(_dlfs, "register", None)
        self._is_registered = register is not None and register(self._address, size) is not False

    def lend(self) -> _Held:
        """An array over the whole area. When no array over it is left, the area is free again."""
        held = numpy.frombuffer(self._map, numpy.uint8).view(_Held)
        held.area = self
        self._free.lent.add(self.id)
        return held

    def give_back(self) -> None:
        self._free.lent.discard(self.id)
        self._free.append(self)
        if self._free.is_closed:
            self._free.close()

    def end(self) -> None:
        """Undoes the registration of the memory, which is unmapped when this object is dropped."""
        if self._is_registered:
            self._is_registered = False
            getattr(_dlfs, "unregister")(self._address)


class _Held(numpy.ndarray[Any, Any]):
    """The bytes of an area. Arrays over them keep this one alive."""

    area: _Area | None = None

    def __del__(self) -> None:
        if self.area is not None:
            self.area.give_back()


def _unpickled(payload: Any, held: NDArray[Any], copies: bool) -> Any:
    """The result, whose arrays are parts of `held`, or copies; raises it if it is an error."""
    is_result, spans, stream = pickle.loads(payload)
    parts = (held[start:end] for start, end in spans)
    found = pickle.loads(stream, buffers=[numpy.array(part) for part in parts] if copies else parts)
    if is_result:
        return found
    error, trace = found
    error.__cause__ = _InWorker(trace)
    raise error


class _InWorker(Exception):
    """The cause of an error that a worker process sent: the traceback there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _write(file: int, parts: list[Any]) -> None:
    """Writes buffers to the start of a file, one behind the other."""
    at = first = 0
    while first < len(parts):
        written = os.pwritev(file, parts[first : first + _MOST_PARTS], at)
        at += written
        while first < len(parts) and written >= len(parts[first]):
            written -= len(parts[first])
            first += 1
        if first < len(parts):
            parts[first] = memoryview(parts[first])[written:]


# The most buffers of one system call.
_MOST_PARTS = os.sysconf("SC_IOV_MAX")

# Areas of a worker that the program may keep beyond those of results ahead; of further results it gets copies.
_SPARE = 4

# Seconds after which a process that should end is killed.
_PATIENCE_S = 1.0
