"""Codecs on the CPU: several decode plain JPEGs, and Pillow decodes everything else.

`decode(data, head, cut, scale)` of a codec returns the pixels within `cut` (left, top, right, bottom) of the picture at
1 / scale, as uint8[height, width, 3]. The array may be valid only until the next call. Each thread makes its own codec.
All codecs release the interpreter while they decode.
"""

from __future__ import annotations

import ctypes
import functools
import io
import os
import sys
import warnings
from typing import Any, Protocol

import numpy
from numpy.typing import NDArray

from ._jpeg import Header

Pixels = NDArray[numpy.uint8]
Cut = tuple[int, int, int, int]


class Codec(Protocol):
    name: str
    scales: tuple[int, ...]

    def decode(self, data: memoryview, head: Header, cut: Cut, scale: int) -> Pixels: ...


class TurboJpeg:
    """libturbojpeg, as distributions and Conda package it. From version 3 on it computes only the pixels of the part
    that is needed, though it reads the codes of all rows.
    """

    name: str = "turbojpeg"
    scales: tuple[int, ...] = (1, 2, 4, 8)

    def __init__(self) -> None:
        self._handle = None
        library, parts = _turbojpeg()
        self._destroy = library.tjDestroy
        self._handle = ctypes.c_void_p(library.tjInitDecompress())
        self._library: Any = library
        self._parts: Any = parts
        self._scratch = numpy.empty(0, numpy.uint8)

    def __del__(self) -> None:
        if self._handle:
            self._destroy(self._handle)

    def decode(self, data: memoryview, head: Header, cut: Cut, scale: int) -> Pixels:
        source = numpy.frombuffer(data, numpy.uint8)
        left, top, right, bottom = cut
        width, height = -(-head.width // scale), -(-head.height // scale)
        if self._parts is not None:
            # Chroma is interpolated from pixels outside of the part, too.
            unit = max(head.unit // scale, 1)
            first, width, height = max(left - 2, 0) // unit * unit, min(right + 2, width), bottom - top
            pixels = self._space(height, width - first)
            self._decode_part(source, scale, (first, top, width - first, height), pixels)
            return pixels[:, left - first : right - first]
        pixels = self._space(height, width)
        size = (ctypes.c_int(width), 0, ctypes.c_int(height))
        failed = self._library.tjDecompress2(
            self._handle, _address(source), ctypes.c_ulong(len(source)), _address(pixels), *size, _RGB, 0
        )
        self._check(failed)
        return pixels[top:bottom, left:right]

    def _decode_part(self, source: Pixels, scale: int, part: Cut, pixels: Pixels) -> None:
        library, parts, handle, length = self._library, self._parts, self._handle, ctypes.c_size_t(len(source))
        failed = (
            # These calls take a microsecond, and keep the interpreter.
            parts.tj3DecompressHeader(handle, _address(source), length)
            or parts.tj3SetScalingFactor(handle, _Factor(1, scale))
            or parts.tj3SetCroppingRegion(handle, _Region(*part))
            or library.tj3Decompress8(handle, _address(source), length, _address(pixels), 0, _RGB)
        )
        self._check(failed)

    def _check(self, failed: int) -> None:
        """Raises unless the picture is complete."""
        if failed:
            text = self._library.tjGetErrorStr2(self._handle)
            raise ValueError(text.decode(errors="replace"))

    def _space(self, height: int, width: int) -> Pixels:
        length = height * width * 3
        if len(self._scratch) < length:
            self._scratch = numpy.empty(length, numpy.uint8)
        return self._scratch[:length].reshape(height, width, 3)


class Torchvision:
    """torchvision.io on the CPU, which always decodes all of a picture."""

    name: str = "torchvision"
    scales: tuple[int, ...] = (1,)

    def __init__(self) -> None:
        import torch
        from torchvision.io import ImageReadMode  # this import registers the operators

        # The operators, since torchvision's functions warn at each call, from 0.29 on, that they will move.
        self._read, self._mode = torch.ops.image.decode_jpeg, ImageReadMode.RGB.value
        accept_views()  # on the thread that makes the decoder

    def decode(self, data: memoryview, head: Header, cut: Cut, scale: int) -> Pixels:
        left, top, right, bottom = cut
        pixels: Pixels = self._read(as_tensor(data), self._mode, False).permute(1, 2, 0).numpy()
        return pixels[top:bottom, left:right]


def as_tensor(data: memoryview) -> Any:
    """A tensor over the bytes, which nobody may write to."""
    import torch

    return torch.frombuffer(data, dtype=torch.uint8)


@functools.cache
def accept_views() -> None:
    """Suppresses torch's warning about tensors over read-only memory: torch gives it once, and here it is ignored."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)


class Pillow:
    """Pillow, which reads every format."""

    name: str = "pillow"
    scales: tuple[int, ...] = (1, 2, 4, 8)

    def __init__(self) -> None:
        import PIL.Image

        self._image = PIL.Image

    def open(self, data: memoryview | bytes) -> Any:
        """The picture, of which only the header was read."""
        return self._image.open(io.BytesIO(data))

    def decode(self, data: memoryview, head: Header, cut: Cut, scale: int) -> Pixels:
        return self.pixels(self.open(data), cut, scale)

    def pixels(self, image: Any, cut: Cut, scale: int) -> Pixels:
        if scale > 1:
            image.draft(None, (image.width // scale, image.height // scale))
        return numpy.array(self._rgb(image.crop(cut)))

    def _rgb(self, image: Any) -> Any:
        """Transparency is left out, as by convert("RGB"); of 16 bits the upper 8 remain."""
        if image.mode.startswith("I"):
            image = self._image.fromarray((numpy.asarray(image) >> 8).clip(0, 255).astype(numpy.uint8))
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        return image if image.mode == "RGB" else image.convert("RGB")


def choose() -> type[Codec]:
    """The first codec that this machine has. Raises ImportError without Pillow."""
    Pillow()
    for codec in CODECS:
        try:
            codec()
        except (ImportError, OSError, AttributeError, RuntimeError):
            continue
        return codec
    return Pillow


CODECS: tuple[type[Codec], ...] = (TurboJpeg, Torchvision, Pillow)


class _Factor(ctypes.Structure):
    _fields_ = [("numerator", ctypes.c_int), ("denominator", ctypes.c_int)]


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "width", "height")]


def _turbojpeg() -> tuple[ctypes.CDLL, ctypes.PyDLL | None]:
    """The library; and the same library of version 3 for calls that keep the interpreter, None for an older version."""
    file = "libturbojpeg.so.0"
    # Conda's, that of the packages of libjpeg-turbo itself, and that of the system.
    places = [f"{sys.prefix}/lib/{file}", f"/opt/libjpeg-turbo/lib64/{file}"]
    name = next(filter(os.path.exists, places), file)
    library, parts = ctypes.CDLL(name), ctypes.PyDLL(name)
    library.tjInitDecompress.restype = ctypes.c_void_p
    library.tjGetErrorStr2.restype = ctypes.c_char_p
    return library, parts if hasattr(parts, "tj3SetCroppingRegion") else None


def _address(array: Pixels) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.__array_interface__["data"][0])


_RGB = 0  # TJPF_RGB
