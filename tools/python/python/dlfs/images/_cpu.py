"""Decoding on threads of the CPU."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy
import PIL.Image

from ._codecs import Codec, Pillow, Pixels
from ._crop import Crop
from ._jpeg import header
from ._output import Output, alone

# The crop of a picture, by its width and height.
Choice = Callable[[int, int], Crop]


class Undecodable(Exception):
    """The bytes are no picture that a codec reads; the text says why."""


class Part(NamedTuple):
    """Pixels of a part of a picture, and the box of them that becomes the result."""

    pixels: Pixels
    box: tuple[float, float, float, float]
    flip: bool


class Threads:
    """A pool of threads, made when it is first used in a process."""

    def __init__(self, count: int | None) -> None:
        self._count, self._process = count, 0
        self._pool: ThreadPoolExecutor | None = None
        self._threads, self._lock = 0, threading.Lock()

    def each(self, work: Callable[[int], None], count: int) -> None:
        """Calls work(place) for each place below `count`, in any order. Raises the error of the first place that has
        one; those behind it may be left out."""
        todo, lock, errors = iter(range(count)), threading.Lock(), dict[int, BaseException]()

        def take() -> None:
            while not errors:
                with lock:
                    place = next(todo, None)
                if place is None:
                    return
                try:
                    work(place)
                except BaseException as error:
                    errors[place] = error

        try:
            pool, threads = self._of_process()
            for task in [pool.submit(take) for _ in range(min(threads, count))]:
                task.result()
        except BaseException as error:  # an interrupt: the threads stop at their next picture
            errors[-1] = error
            raise
        if errors:
            raise errors[min(errors)]

    def _of_process(self) -> tuple[ThreadPoolExecutor, int]:
        with self._lock:
            if self._pool is None or self._process != os.getpid():  # a forked process has none of the threads
                self._threads = self._count or processors()
                self._pool = ThreadPoolExecutor(self._threads, "dlfs-images", initializer=alone)
                self._process = os.getpid()
            return self._pool, self._threads


def processors() -> int:
    """Processors that this process may use; 1 in a worker process of torch, which shares them with the others."""
    torch = sys.modules.get("torch.utils.data")
    if torch is not None and torch.get_worker_info() is not None:
        return 1
    return len(os.sched_getaffinity(0))


class Counts:
    """Counters that threads share."""

    def __init__(self) -> None:
        self._lock, self._counts = threading.Lock(), Counter[str]()

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        return self._counts[name]


class Cpu:
    """Decodes plain JPEGs with one kind of codec; with Pillow, other files, and JPEGs that the codec refuses."""

    def __init__(self, codec: type[Codec], size: int, output: Output, counts: Counts) -> None:
        self.output = output
        self._kind, self._size, self._counts = codec, size, counts
        self._own, self._pillow = threading.local(), Pillow()

    def decode(self, data: memoryview | None, batch: Any, place: int, choose: Choice) -> None:
        """Decodes a picture into its place of the batch. Raises Undecodable."""
        if data is None:
            raise Undecodable("the loader could not read it")
        part = self._plain(data, choose) or self._odd(data, choose)
        box, pixels = part.box, part.pixels
        height, width, _ = pixels.shape
        whole = box == (0, 0, width, height)
        if not (whole and (self.output.resizes or width == height == self._size)):
            picture = PIL.Image.fromarray(pixels)
            size = (self._size, self._size)
            pixels = numpy.array(picture.resize(size, PIL.Image.Resampling.BILINEAR, box))
        self.output.store(batch, place, pixels, part.flip)

    def _plain(self, data: memoryview, choose: Choice) -> Part | None:
        """Decodes a plain JPEG; None: it is none, or the codec refuses it."""
        head = header(data)
        if head is None:
            return None
        try:
            codec = self._own.codec
        except AttributeError:
            codec = self._own.codec = self._kind()
        crop = choose(head.width, head.height)
        scale = crop.scale(self._size, codec.scales)
        cut = crop.cut(head.width, head.height, scale)
        try:
            pixels = codec.decode(data, head, cut, scale)
        except (ValueError, RuntimeError, OSError):
            return None
        if scale > 1:
            self._counts.add("scaled")
        return Part(pixels, crop.within(cut, scale), crop.flip)

    def _odd(self, data: memoryview, choose: Choice) -> Part:
        """Decodes any file that Pillow reads. Raises Undecodable."""
        self._counts.add("fallback")
        try:
            image = self._pillow.open(data)
            is_jpeg = image.format in ("JPEG", "MPO")
            width, height = image.size
            crop = choose(width, height)
            scale = crop.scale(self._size, self._pillow.scales) if is_jpeg else 1
            cut = crop.cut(width, height, scale)
            try:
                pixels = self._pillow.pixels(image, cut, scale)
            except OSError:
                if not is_jpeg:
                    raise
                # With an end, a JPEG that lacks one is decoded as far as it goes.
                pixels = self._pillow.pixels(self._pillow.open(bytes(data) + _END_OF_JPEG), cut, scale)
                self._counts.add("damaged")
        except MemoryError:
            raise
        except Exception as error:  # each format of Pillow raises errors of its own
            raise Undecodable(str(error) or type(error).__name__) from error
        return Part(pixels, crop.within(cut, scale), crop.flip)


_END_OF_JPEG = b"\xff\xd9"
