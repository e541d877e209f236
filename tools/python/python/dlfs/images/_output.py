"""Output of decoded pictures: a batch [B, 3, H, W] with the memory layout of [B, H, W, 3], into which each picture is
written as the last step, resized if need be, mirrored, and normalised.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import threading
from typing import Any, NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from .. import InvalidArgument

Pixels = NDArray[numpy.uint8]


class Format(NamedTuple):
    """Pictures of size x size elements of dtype: (x / 255 - mean) / std, or x itself as uint8."""

    size: int
    dtype: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def row(self, values: tuple[float, ...]) -> NDArray[numpy.float32]:
        """255 times the values of each channel, for each element of a row of pixels."""
        return numpy.tile(numpy.array(values, numpy.float32) * 255, self.size)


class Output(Protocol):
    """Makes batches, and writes pictures into them from any thread."""

    resizes: bool

    def empty(self, count: int) -> Any: ...

    def zero(self, batch: Any, place: int) -> None: ...

    def store(self, batch: Any, place: int, pixels: Pixels, flip: bool) -> None:
        """Writes a picture; of another size only if it `resizes`."""


class Memory:
    """Memory of batches, which is reused once nobody holds it, since the kernel clears new pages first."""

    def __init__(self) -> None:
        self._spare: list[Pixels] = []

    def take(self, length: int) -> Pixels:
        """An array of `length` bytes, which returns when it and all views of it are gone."""
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = numpy.empty(0, numpy.uint8)
        if len(memory) < length:
            memory = numpy.empty(length, numpy.uint8)
        return numpy.asarray(_Lent(memory, self._spare))[:length]


class _Lent:
    """The owner of an array, as numpy sees it."""

    def __init__(self, memory: Pixels, spare: list[Pixels]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory, self._spare = memory, spare

    def __del__(self) -> None:
        if len(self._spare) < _MOST_SPARE:
            self._spare.append(self._memory)


_MOST_SPARE = 4


class NumpyOutput:
    """Arrays of NumPy, where torch is not installed."""

    resizes = False

    def __init__(self, format: Format) -> None:
        if format.dtype == "bf16":
            raise InvalidArgument('dtype "bf16" needs torch, which is not installed')
        self._format, self._dtype = format, {"uint8": "u1", "f16": "f2", "f32": "f4"}[format.dtype]
        self._mean, self._std = format.row(format.mean), format.row(format.std)
        self._memory = Memory()

    def empty(self, count: int) -> NDArray[Any]:
        size, width = self._format.size, numpy.dtype(self._dtype).itemsize
        memory = self._memory.take(count * size * size * 3 * width)
        return memory.view(self._dtype).reshape(count, size, size, 3).transpose(0, 3, 1, 2)

    def zero(self, batch: NDArray[Any], place: int) -> None:
        batch[place] = 0

    def store(self, batch: NDArray[Any], place: int, pixels: Pixels, flip: bool) -> None:
        picture = batch[place].transpose(1, 2, 0)
        pixels = pixels[:, ::-1] if flip else pixels
        if self._format.dtype == "uint8":
            picture[...] = pixels
            return
        rows = pixels.reshape(len(pixels), -1) - self._mean
        picture.reshape(rows.shape)[...] = numpy.divide(rows, self._std, out=rows)


class TorchOutput:
    """Tensors of torch on the CPU, whose resizing of uint8 is three times as fast as Pillow's."""

    def __init__(self, format: Format, pin: bool = False) -> None:
        import torch

        self._torch, self._format, self._pin = torch, format, pin
        self._dtype = {"uint8": torch.uint8, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[
            format.dtype
        ]
        self._mean, self._std = torch.from_numpy(format.row(format.mean)), torch.from_numpy(format.row(format.std))
        # torch.nn.functional.interpolate of uint8 with antialias=True, into memory that is there already.
        self._resize = torch.ops.aten._upsample_bilinear2d_aa.out
        self._memory, self._own = Memory(), threading.local()
        try:
            one = torch.zeros((1, 3, 1, 1), dtype=torch.uint8)
            self._resize(one, [1, 1], False, out=one.clone())
            self.resizes = True
        except (AttributeError, RuntimeError):  # a torch that does not resize uint8
            self.resizes = False

    def empty(self, count: int) -> Any:
        shape = (count, self._format.size, self._format.size, 3)
        if self._pin:
            batch = self._torch.empty(shape, dtype=self._dtype, pin_memory=True)
        else:
            memory = self._memory.take(math.prod(shape) * self._dtype.itemsize)
            batch = self._torch.from_numpy(memory).view(self._dtype).view(shape)
        return batch.permute(0, 3, 1, 2)

    def zero(self, batch: Any, place: int) -> None:
        batch[place].zero_()

    def store(self, batch: Any, place: int, pixels: Pixels, flip: bool) -> None:
        picture = batch[place : place + 1]
        size, is_bytes = self._format.size, self._format.dtype == "uint8"
        given = self._torch.from_numpy(pixels).permute(2, 0, 1)[None]
        if given.shape[2:] != (size, size):
            into = picture if is_bytes and not flip else self._scratch("bytes", self._torch.uint8)
            self._resize(given, [size, size], False, out=into)
            given = into
        if flip:
            given = given.flip(-1)
        if is_bytes:
            if given is not picture:
                picture.copy_(given)
            return
        into = picture if self._dtype is self._torch.float32 else self._scratch("numbers", self._torch.float32)
        into.copy_(given)
        into.permute(0, 2, 3, 1).view(size, -1).sub_(self._mean).div_(self._std)
        if into is not picture:
            picture.copy_(into)

    def _scratch(self, name: str, dtype: Any) -> Any:
        """A buffer for one picture, which only this thread uses."""
        if not hasattr(self._own, name):
            size = self._format.size
            picture = self._torch.empty((1, size, size, 3), dtype=dtype)
            setattr(self._own, name, picture.permute(0, 3, 1, 2))
        return getattr(self._own, name)


def alone() -> None:
    """Makes torch use no further threads for calls of this thread: OpenMP would give each thread of a pool as many as
    there are processors, which then spin beside each other. The number of other threads stays as it is."""
    if "torch" not in sys.modules:
        return
    sys.modules["torch"].get_num_threads()  # initialises this thread, which would undo the next line
    with contextlib.suppress(AttributeError):  # a torch without OpenMP
        ctypes.CDLL(None).omp_set_num_threads(1)
