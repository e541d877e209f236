"""Decoding on a device: its codec decodes plain JPEGs, and two matrix products resize all crops of a batch."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy
import PIL.Image
import torch
import torch.utils.dlpack

from ._codecs import accept_views, as_tensor
from ._crop import Crop
from ._jpeg import header
from ._output import Format

Cut = tuple[int, int, int, int]
Box = tuple[float, float, float, float]


class DeviceCodec(Protocol):
    """Decodes plain JPEGs: the pixels within each cut as uint8[3, height, width], None for those that it refuses."""

    name: str

    def decode(self, views: Sequence[memoryview], cuts: Sequence[Cut]) -> list[torch.Tensor | None]: ...


class NvImageCodec:
    """nvImageCodec, which decodes only the cut. Each thread has a decoder of its own."""

    name = "nvimagecodec"
    tensor = staticmethod(torch.utils.dlpack.from_dlpack)

    def __init__(self, device: torch.device, threads: int) -> None:
        from nvidia import nvimgcodec

        self._library, self._device, self._threads = nvimgcodec, device, threads
        self._own = threading.local()

    def decode(self, views: Sequence[memoryview], cuts: Sequence[Cut]) -> list[torch.Tensor | None]:
        library = self._library
        if not hasattr(self._own, "decoder"):
            # Chroma is interpolated as libjpeg does.
            self._own.decoder = library.Decoder(
                device_id=self._device.index, max_num_cpu_threads=self._threads, options=":fancy_upsampling=1"
            )
            self._own.params = library.DecodeParams(
                apply_exif_orientation=False, color_spec=library.ColorSpec.SRGB
            )
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        streams = [self._part(view, cut) for view, cut in zip(views, cuts)]
        decoded = iter(
            self._own.decoder.decode(
                [one for one in streams if one is not None], params=self._own.params, cuda_stream=stream
            )
        )
        images = [None if one is None else next(decoded) for one in streams]
        return [None if image is None else self.tensor(image).permute(2, 0, 1) for image in images]

    def _part(self, view: memoryview, cut: Cut) -> Any:
        left, top, right, bottom = cut
        try:
            whole = self._library.CodeStream(numpy.frombuffer(view, numpy.uint8))
            return whole.get_sub_code_stream(region=self._library.Region(top, left, bottom, right))
        except RuntimeError:
            return None


class Nvjpeg:
    """nvJPEG by torchvision, which decodes whole pictures."""

    name = "torchvision"

    def __init__(self, device: torch.device, threads: int) -> None:
        from torchvision.io import ImageReadMode  # this import registers the operator

        self._device, self._read, self._mode = device, torch.ops.image.decode_jpegs_cuda, ImageReadMode.RGB.value
        accept_views()

    def decode(self, views: Sequence[memoryview], cuts: Sequence[Cut]) -> list[torch.Tensor | None]:
        sources = [as_tensor(view) for view in views]
        try:
            pictures = self._read(sources, self._mode, self._device)
        except RuntimeError:  # of any picture
            if len(sources) == 1:
                return [None]
            return [self.decode([view], [cut])[0] for view, cut in zip(views, cuts)]
        return [
            picture[:, top:bottom, left:right] for picture, (left, top, right, bottom) in zip(pictures, cuts)
        ]


def choose(device: torch.device, threads: int) -> DeviceCodec | None:
    """The first codec of the device that decodes a picture."""
    sample = io.BytesIO()
    PIL.Image.new("RGB", (64, 64)).save(sample, "JPEG")
    for kind in CODECS:
        try:
            codec = kind(device, threads)
            if codec.decode([sample.getbuffer()], [(0, 0, 64, 64)])[0] is not None:
                return codec
        except (ImportError, OSError, AttributeError, RuntimeError):
            continue
    return None


CODECS: tuple[Callable[[torch.device, int], DeviceCodec], ...] = (NvImageCodec, Nvjpeg)


class Device:
    """Makes batches on a device. The host decodes those pictures that the codec of the device does not, as uint8."""

    def __init__(self, device: torch.device, format: Format, codec: DeviceCodec | None) -> None:
        self._device, self._format, self._codec = device, format, codec
        self.is_cuda, self.backend = device.type == "cuda", None if codec is None else codec.name
        self._own = threading.local()
        mean, std = (torch.tensor(values, device=device) * 255 for values in (format.mean, format.std))
        self._mean, self._std = mean.view(3, 1, 1), std.view(3, 1, 1)
        self._dtype = {"uint8": torch.uint8, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[
            format.dtype
        ]
        # Whole numbers up to 255 are exact in f16, and sums are made in f32.
        self._precise = not self.is_cuda or format.dtype == "f32"

    def decode(
        self,
        views: Sequence[memoryview | None],
        choose: Callable[[int, int, int], Crop],
        on_host: Callable[[Sequence[int]], tuple[torch.Tensor, list[int]]],
    ) -> torch.Tensor:
        """The batch of the pictures `views`.

        choose(place, width, height)   the crop of a picture
        on_host(places)                a batch uint8[len(places), 3, H, W] of these pictures, and the places of those
                                       that cannot be decoded
        """
        stream = self._stream()
        with torch.cuda.stream(stream):
            result, failed = self._assembled(views, choose, on_host)
            result = self._finished(result)
            if failed:
                result[failed] = 0
        if stream is not None:
            # The result is ready for any stream. Its memory is reused only after these streams have used it.
            stream.synchronize()
            for user in (torch.cuda.current_stream(self._device), torch.cuda.default_stream(self._device)):
                result.record_stream(user)
        return result

    def _stream(self) -> torch.cuda.Stream | None:
        """A stream of this thread: on that of the training step, decoding would wait for the step. None: no CUDA."""
        if not self.is_cuda:
            return None
        if not hasattr(self._own, "stream"):
            self._own.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream: torch.cuda.Stream = self._own.stream
        return stream

    def _assembled(
        self,
        views: Sequence[memoryview | None],
        choose: Callable[[int, int, int], Crop],
        on_host: Callable[[Sequence[int]], tuple[torch.Tensor, list[int]]],
    ) -> tuple[torch.Tensor, list[int]]:
        size, dtype = self._format.size, torch.float32 if self._precise else torch.float16
        pictures, boxes, flips = self._on_device(views, choose)
        rest = [place for place in range(len(views)) if place not in pictures]
        result = torch.empty((len(views), 3, size, size), dtype=dtype, device=self._device)
        if pictures:
            places = torch.tensor(list(pictures)).to(self._device)
            result[places] = resample(list(pictures.values()), boxes, flips, size, dtype)
        if not rest:
            return result, []
        host, failed = on_host(rest)
        result[torch.tensor(rest).to(self._device)] = host.to(self._device, non_blocking=True).to(dtype)
        return result, failed

    def _on_device(
        self, views: Sequence[memoryview | None], choose: Callable[[int, int, int], Crop]
    ) -> tuple[dict[int, torch.Tensor], list[Box], list[bool]]:
        """The pictures by their places, the box of each that becomes the result, and whether it is mirrored."""
        plain: list[tuple[int, memoryview, Crop, Cut]] = []
        for place, view in enumerate(views if self._codec is not None else ()):
            head = None if view is None else header(view)
            if view is not None and head is not None:
                crop = choose(place, head.width, head.height)
                plain.append((place, view, crop, crop.cut(head.width, head.height, 1)))
        if not plain:
            return {}, [], []
        assert self._codec is not None
        decoded = self._codec.decode([view for _, view, _, _ in plain], [cut for _, _, _, cut in plain])
        had = [(*one, picture) for one, picture in zip(plain, decoded) if picture is not None]
        pictures = {place: picture for place, _, _, _, picture in had}
        return pictures, [crop.within(cut, 1) for _, _, crop, cut, _ in had], [crop.flip for _, _, crop, _, _ in had]

    def _finished(self, result: torch.Tensor) -> torch.Tensor:
        if self._dtype is torch.uint8:
            result = result.round_().clamp_(0, 255)
        else:
            result = result.float().sub_(self._mean).div_(self._std)
        return result.to(self._dtype, memory_format=torch.channels_last)


def resample(
    pictures: Sequence[torch.Tensor], boxes: Sequence[Box], flips: Sequence[bool], size: int, dtype: torch.dtype
) -> torch.Tensor:
    """The box of each picture as [B, 3, size, size], by the filter of Pillow's and torch's antialiased bilinear
    resizing: two products with matrices of its weights. Large pictures are halved first, as scaled decoding does.
    """
    scaled, limits = [], []
    for picture, (left, top, right, bottom) in zip(pictures, boxes):
        scale = 1
        while min(right - left, bottom - top) >= 2 * scale * size:
            scale *= 2
        if scale > 1:
            picture = torch.nn.functional.avg_pool2d(picture[None].to(dtype), scale, ceil_mode=True)[0]
        scaled.append(picture)
        limits.append([left / scale, right / scale, picture.shape[2], top / scale, bottom / scale, picture.shape[1]])
    height, width = (max(picture.shape[axis] for picture in scaled) for axis in (1, 2))
    device = scaled[0].device
    padded = torch.zeros((len(scaled), 3, height, width), dtype=dtype, device=device)
    for picture, into in zip(scaled, padded):
        into[:, : picture.shape[1], : picture.shape[2]].copy_(picture)
    edges = torch.tensor(limits).to(device, non_blocking=True)
    mirrored = torch.tensor(flips).to(device, non_blocking=True)[:, None, None]
    across, down = _weights(edges[:, :3], size, width), _weights(edges[:, 3:], size, height)
    across = torch.where(mirrored, across.flip(1), across)
    rows = padded.flatten(1, 2) @ across.to(dtype).transpose(1, 2)
    return torch.matmul(down.to(dtype)[:, None], rows.view(-1, 3, height, size))


def _weights(edges: torch.Tensor, size: int, span: int) -> torch.Tensor:
    """[B, size, span]: the weight of each pixel of a row or column of `span` in each pixel of the result. `edges` are
    start and end of the box, and the number of pixels that the picture has."""
    start, end, limit = edges[:, :, None, None].unbind(1)
    scale = (end - start) / size
    middle = start + (torch.arange(size, device=edges.device)[:, None] + 0.5) * scale
    pixel = torch.arange(span, device=edges.device) + 0.5
    weights = (1 - (pixel - middle).abs() / scale.clamp(min=1)).clamp(min=0) * (pixel < limit)
    return weights / weights.sum(2, keepdim=True)
