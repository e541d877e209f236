"""The process of a worker: it transforms batches, and puts the results where the process of the loader maps them.

`_workers.py` describes the shared memory and has the other side.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import mmap
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

from ._dlfs import batch_of
from ._random import Generators, takes_rng

MESSAGE_LEN = 1 << 16  # the most bytes of a message
_TEXT_LEN = 4000  # the most characters of the text of an error in it
_ALIGN = 64  # arrays begin at cache lines


def serve(link: socket.socket, transform: Callable[..., Any], seed: int) -> None:
    """The worker process: transforms batches until the other end of the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, whose end is this one's, too
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # as torch's own workers do
    served = _Served(transform, seed)
    with contextlib.suppress(ConnectionError):
        while True:
            message, files, _, _ = socket.recv_fds(link, MESSAGE_LEN, 1, socket.MSG_CMSG_CLOEXEC)
            if not message:
                return
            answer, file = served.answer(pickle.loads(message), files)
            socket.send_fds(link, [pickle.dumps(answer)], [] if file is None else [file])
            if file is not None:
                os.close(file)


# The range of a result (number and size of its area, start, end) or None; the result itself if it is small; and the
# descriptor of a new area.
_Placed: TypeAlias = tuple[tuple[int, int, int, int] | None, bytes, int | None]


class _Served:
    """The state of a worker process: its transform, the map of the batches' file, and those of the areas."""

    def __init__(self, transform: Callable[..., Any], seed: int) -> None:
        self._transform, self._seed, self._takes_rng = transform, seed, takes_rng(transform)
        self._records: mmap.mmap | None = None
        self._areas: dict[int, mmap.mmap] = {}
        self._ids = itertools.count()

    def answer(self, message: tuple[Any, ...], files: Sequence[int]) -> tuple[tuple[Any, ...], int | None]:
        """The answer to a batch, and the file with the result if that is new."""
        (length, beside), size, offered = message
        if files:
            self._records = mmap.mmap(files[0], size, prot=mmap.PROT_READ)
            os.close(files[0])
        assert self._records is not None, "the first message has the file"
        whole = memoryview(self._records)
        records = whole[:length]
        place, payload, file = self._transformed(records, whole[length : length + beside], offered)
        try:
            records.release()
        except BufferError:
            return (True, place, payload), file
        return (False, place, payload), file

    def _transformed(self, records: memoryview, beside: memoryview, offered: int | None) -> _Placed:
        """The result of the transform, or its error, placed. `records` and `beside` are the batch, as Batch._apart
        takes it apart; `offered` is the number of the free area; None: there is none."""
        try:
            batch = batch_of(records, bytes(beside))
            if self._takes_rng:
                result = self._transform(batch, rng=Generators.of(self._seed, batch))
            else:
                result = self._transform(batch)
            del batch
            buffers: list[pickle.PickleBuffer] = []
            stream = io.BytesIO()
            _Pickler(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append).dump(result)
            return self._placed(stream.getvalue(), [buffer.raw() for buffer in buffers], offered)
        except BaseException as error:  # SystemExit, too, has its place among the results
            return None, pickle.dumps((False, [], _sendable(error))), None

    def _placed(self, stream: bytes, buffers: list[memoryview], offered: int | None) -> _Placed:
        """Puts a result where the other process finds it: small ones into the answer."""
        ends = list(itertools.accumulate((-(-len(buffer) // _ALIGN) * _ALIGN for buffer in buffers), initial=0))
        spans = [(start, start + len(buffer)) for start, buffer in zip(ends, buffers)]
        payload = pickle.dumps((True, spans, stream), pickle.HIGHEST_PROTOCOL)
        if not buffers and len(payload) <= MESSAGE_LEN // 2:
            return None, payload, None
        start, end, file = ends[-1], ends[-1] + len(payload), None
        area = None if offered is None else self._areas[offered]
        if area is None or len(area) < end:
            size = end if area is None else end + end // 4  # results differ
            file = os.memfd_create("dlfs-result", os.MFD_CLOEXEC)
            try:
                os.posix_fallocate(file, 0, size)  # an error here, rather than a signal later
                area = mmap.mmap(file, size)
            except BaseException:
                os.close(file)
                raise
            if offered is not None:
                del self._areas[offered]
            self._areas[offered := next(self._ids)] = area
        assert offered is not None, "there is an area"
        memory = numpy.frombuffer(area, numpy.uint8)
        for (first, last), buffer in zip(spans, buffers):
            memory[first:last] = buffer
        area[start:end] = payload
        return (offered, len(area), start, end), b"", file


class _Pickler(pickle.Pickler):
    """Leaves the bytes of arrays, tensors and memoryviews to the caller."""

    def reducer_override(self, one: Any) -> Any:
        if isinstance(one, memoryview):
            return memoryview, (pickle.PickleBuffer(one) if one.c_contiguous else one.tobytes(),)
        torch: Any = sys.modules.get("torch")
        if torch is None or type(one) is not torch.Tensor or one.device.type != "cpu" or one.requires_grad:
            return NotImplemented
        if one.layout is not torch.strided or one.is_quantized or one.is_conj() or one.is_neg():
            return NotImplemented
        return _tensor, (one.contiguous().reshape(-1).view(torch.uint8).numpy(), one.dtype, tuple(one.shape))


def _tensor(data: NDArray[Any], dtype: Any, shape: tuple[int, ...]) -> Any:
    """The tensor over the bytes of its elements."""
    import torch

    return torch.from_numpy(data).view(dtype).reshape(shape)


def _sendable(error: BaseException) -> bytes:
    """An error and its traceback, pickled; as a RuntimeError if the other process could not make it again."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps((error, trace))
        pickle.loads(pickled)
        if len(pickled) <= MESSAGE_LEN // 2:
            return pickled
    except Exception:
        pass
    text = f"{type(error).__name__}: {error}"
    return pickle.dumps((RuntimeError(text[:_TEXT_LEN]), trace[-_TEXT_LEN:]))
