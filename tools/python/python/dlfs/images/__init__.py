"""Batches of encoded pictures as tensors: random crops for training, centre crops for evaluation.

    decoder = dlfs.images.Decoder(224, seed=7)
    for batch in dlfs.Loader(ds, 256, seed=7):
        pictures, labels = decoder(batch), batch.labels       # uint8[256, 3, 224, 224]

The crop of a sample depends on seed, epoch and sample alone: it is the same on every back end, rank and worker, and
after a run resumes. Needs Pillow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .. import Batch, InvalidArgument
from .._random import Generators
from . import _codecs
from ._cpu import Counts, Cpu, Threads, Undecodable, processors
from ._crop import Crop, centre_crop, random_crop
from ._output import Format, NumpyOutput, Output, TorchOutput

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._device import Device

__all__ = ["Decoder"]


class Decoder:
    """Decodes batches of JPEG, PNG and whatever else Pillow reads: called with a batch, it returns [B, 3, H, W].

    size             height and width of the result
    mode             "train": a random part of 8 to 100 % of the area with an aspect ratio of 3/4 to 4/3, resized, and
                     mirrored half of the time, as by torchvision's RandomResizedCrop and RandomHorizontalFlip.
                     "eval": the shorter side resized to size * 256 / 224, and the centre of it, as by Resize and
                     CenterCrop
    device           where the result is: a torch.device, its name or number. None: on the CPU
    mean, std        of the three channels, for (x / 255 - mean) / std; those of ImageNet by default. Not for "uint8"
    dtype            "uint8", "f16", "bf16" or "f32"
    threads          threads that decode on the CPU. None: as many as processors; one in a worker process of torch
    seed             of random crops
    on_error         "raise", or "none": zeros in place of pictures that cannot be decoded or that the loader could not
                     read (on_error="none" there, too)

    The result is a tensor if torch is installed, otherwise an array. Its memory is that of [B, H, W, 3], which torch
    calls channels_last. Any number of threads may call a decoder. It can be pickled.

    `backend` names what decodes plain JPEGs, the first that is there: on a CUDA device "nvimagecodec", then
    "torchvision", with nvJPEG; otherwise "turbojpeg" (the library libturbojpeg.so.0), "torchvision" or "pillow".
    turbojpeg and pillow decode at 1/2, 1/4 or 1/8 if the crop is that much larger than the result. turbojpeg from
    version 3 on and nvImageCodec decode only the part that the crop shows.

    Pillow decodes all others: PNG and other formats, whatever their names, CMYK, and JPEGs that the back end refuses.
    A JPEG that ends too early is decoded as far as it goes, and grey behind; in other formats that is an error. Of 16
    bits a channel the upper 8 are taken, grey becomes RGB, and transparency and the orientation in EXIF are ignored,
    as torchvision.datasets.ImageFolder does. stats() has counters.
    """

    def __init__(
        self,
        size: int = 224,
        mode: Literal["train", "eval"] = "train",
        device: Any = None,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        dtype: Literal["uint8", "f16", "bf16", "f32"] = "uint8",
        threads: int | None = None,
        seed: int = 0,
        on_error: Literal["raise", "none"] = "raise",
    ) -> None:
        _check(size, mode, mean, std, dtype, threads, on_error)
        self._given = (size, mode, device, tuple(mean), tuple(std), dtype, threads, seed, on_error)
        self._size, self._mode, self._seed, self._on_error = size, mode, seed, on_error
        self._counts, self._threads = Counts(), Threads(threads)
        format, codec = Format(size, dtype, tuple(mean), tuple(std)), _codecs.choose()
        self._device = None if device is None else _device_of(device, format, threads)
        if self._device is None:
            output, self._backend = _output_of(format), codec.name
        else:
            output = TorchOutput(format._replace(dtype="uint8"), pin=self._device.is_cuda)
            self._backend = self._device.backend or codec.name
        self._cpu = Cpu(codec, size, output, self._counts)

    @property
    def backend(self) -> str:
        """The name of what decodes plain JPEGs."""
        return self._backend

    def stats(self) -> dict[str, Any]:
        """Counters since this decoder was made, in this process.

        images       pictures, with those that failed
        scaled       plain JPEGs decoded at 1/2, 1/4 or 1/8
        fallback     pictures that Pillow decoded since they were no plain JPEGs, or the back end refused them
        damaged      of these, JPEGs that ended too early
        failed       pictures that could not be decoded
        """
        names = ("images", "scaled", "fallback", "damaged", "failed")
        return {"backend": self._backend, **{name: self._counts[name] for name in names}}

    def __call__(
        self, batch: Batch | Sequence[Buffer | None], *, ids: Iterable[int] | None = None, epoch: int = 0
    ) -> Any:
        """Decodes a dlfs.Batch, or a list of objects like bytes.

        A list has no ids and no epoch, on which random crops depend: with mode="train" give `ids`, one for each
        picture, and the `epoch`.
        """
        views, rngs = self._opened(batch, ids, epoch)
        self._counts.add("images", len(views))

        def crop(place: int, width: int, height: int) -> Crop:
            if rngs is None or self._mode == "eval":
                return centre_crop(width, height, self._size)
            return random_crop(width, height, rngs[place])

        def on_host(places: Sequence[int]) -> tuple[Any, list[int]]:
            output, failed = self._cpu.output, list[int]()
            result = output.empty(len(places))

            def decode(at: int) -> None:
                place = places[at]
                try:
                    self._cpu.decode(views[place], result, at, functools.partial(crop, place))
                except Undecodable as why:
                    self._counts.add("failed")
                    if self._on_error == "raise":
                        raise _error(batch, views[place], place, why) from why.__cause__
                    output.zero(result, at)
                    failed.append(place)

            self._threads.each(decode, len(places))
            return result, failed

        if self._device is not None:
            return self._device.decode(views, crop, on_host)
        return on_host(range(len(views)))[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given

    def __repr__(self) -> str:
        size, mode, device, _, _, dtype, *_ = self._given
        where = "" if device is None else f" on {device}"
        return f"<dlfs.images.Decoder of {dtype}[3, {size}, {size}]{where}: {mode}, {self._backend}>"

    def _opened(
        self, batch: Batch | Sequence[Buffer | None], ids: Iterable[int] | None, epoch: int
    ) -> tuple[list[memoryview | None], Generators | None]:
        """The bytes of each picture, and their random numbers."""
        rngs = None if ids is None else Generators(self._seed, epoch, ids)
        if isinstance(batch, Batch):
            if batch.fields:
                names, first = ", ".join(batch.fields), batch.fields[0]
                raise InvalidArgument(
                    f"samples have several fields: {names}. Choose the one with the pictures: "
                    f'fields="{first}" of the loader, or decoder(batch.select("{first}"))'
                )
            rngs = rngs or Generators.of(self._seed, batch)
        if rngs is None and self._mode == "train":
            raise InvalidArgument(
                "random crops depend on the ids of samples, which a list does not have: give ids= and epoch="
            )
        if rngs is not None and len(rngs) != len(batch):
            raise InvalidArgument(f"there are {len(rngs)} ids for {len(batch)} pictures")
        return [None if one is None else memoryview(one).cast("B") for one in list(batch)], rngs


def _check(
    size: int, mode: str, mean: Sequence[float], std: Sequence[float], dtype: str, threads: int | None, on_error: str
) -> None:
    for name, value, known in (
        ("mode", mode, ("train", "eval")),
        ("dtype", dtype, ("uint8", "f16", "bf16", "f32")),
        ("on_error", on_error, ("raise", "none")),
    ):
        if value not in known:
            raise InvalidArgument(f"{name}={value!r}: give one of {', '.join(known)}")
    if size < 1 or (threads is not None and threads < 1):
        raise InvalidArgument(f"size={size}, threads={threads}: both are at least 1")
    if len(mean) != 3 or len(std) != 3 or not all(value > 0 for value in std):
        raise InvalidArgument(f"mean={mean}, std={std}: give three numbers each, those of std above 0")


def _output_of(format: Format) -> Output:
    try:
        return TorchOutput(format)
    except ImportError:
        return NumpyOutput(format)


def _device_of(device: Any, format: Format, threads: int | None) -> Device | None:
    """The device that is given; None for the CPU."""
    try:
        import torch

        from ._device import Device, choose
    except ImportError as error:
        raise InvalidArgument(f"device={device}: needs torch ({error})") from None
    try:
        # A jax.Device prints as torch names it.
        found = torch.device(device if isinstance(device, int) else str(device))
    except RuntimeError as error:
        raise InvalidArgument(f"device={device}: {error}") from None
    if found.type == "cpu":
        return None
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise InvalidArgument(f"device={device}: torch finds no GPU: leave it out to decode on the CPU")
        found = torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
    return Device(found, format, choose(found, threads or processors()))


def _error(batch: Any, view: memoryview | None, place: int, why: Undecodable) -> InvalidArgument:
    """The error of the picture at a place of a batch."""
    sample, id = f"picture {place} of the batch", None
    if isinstance(batch, Batch):
        id = int(batch.ids[place])
        source = "" if batch.sources is None else f" of data set {batch.sources[place]}"
        sample = f"sample {id}{source}, {sample} in epoch {batch.epoch},"
    begin = "" if view is None else f" ({len(view)} bytes, which begin with {bytes(view[:8]).hex()})"
    error = InvalidArgument(f'{sample} cannot be decoded{begin}: {why}: leave it out, or give on_error="none"')
    error.sample_id = id
    return error
