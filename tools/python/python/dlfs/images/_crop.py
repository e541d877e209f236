"""Crops of pictures, chosen as torchvision's RandomResizedCrop, Resize and CenterCrop choose them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy


class Crop(NamedTuple):
    """A rectangle of a picture, in pixels of the picture, which is resized to a square.

    flip       True: mirror it from left to right
    margin     pixels around it that the filter reads, as if the picture was resized before it was cropped
    """

    x: float
    y: float
    width: float
    height: float
    flip: bool = False
    margin: float = 0

    def scale(self, size: int, scales: tuple[int, ...]) -> int:
        """The largest of `scales` that leaves the rectangle `size` pixels in both directions; otherwise 1."""
        fits = [scale for scale in scales if min(self.width, self.height) >= size * scale]
        return max(fits, default=1)

    def cut(self, width: int, height: int, scale: int) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the pixels that are needed of a picture decoded at 1 / scale."""
        return (
            max(math.floor((self.x - self.margin) / scale), 0),
            max(math.floor((self.y - self.margin) / scale), 0),
            min(math.ceil((self.x + self.width + self.margin) / scale), -(-width // scale)),
            min(math.ceil((self.y + self.height + self.margin) / scale), -(-height // scale)),
        )

    def within(self, cut: tuple[int, int, int, int], scale: int) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the rectangle in the pixels of such a cut."""
        left, top, right, bottom = cut
        box = (
            max(self.x / scale - left, 0),
            max(self.y / scale - top, 0),
            min((self.x + self.width) / scale, right) - left,
            min((self.y + self.height) / scale, bottom) - top,
        )
        return box


def random_crop(width: int, height: int, rng: numpy.random.Generator) -> Crop:
    """A random part of 8 to 100 % of the area, with an aspect ratio of 3/4 to 4/3, mirrored or not."""
    flip = bool(rng.random() < 0.5)
    for _ in range(10):
        area = width * height * rng.uniform(*_AREA)
        ratio = math.exp(rng.uniform(*_LOG_RATIO))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            y = int(rng.integers(0, height - h + 1))
            x = int(rng.integers(0, width - w + 1))
            return Crop(x, y, w, h, flip)
    w = min(width, round(height * _RATIO[1]))
    h = min(height, round(width / _RATIO[0]))
    return Crop((width - w) // 2, (height - h) // 2, w, h, flip)


def centre_crop(width: int, height: int, size: int) -> Crop:
    """The part that is the centre, of `size` pixels, once the shorter side is size * 256 / 224 pixels."""
    short = size * 256 // 224
    if width <= height:
        w, h = short, int(short * height / width)
    else:
        w, h = int(short * width / height), short
    left, top = round((w - size) / 2), round((h - size) / 2)
    across, down = width / w, height / h
    margin = math.ceil(max(across, down, 1))
    return Crop(left * across, top * down, size * across, size * down, margin=margin)


_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_LOG_RATIO = (math.log(_RATIO[0]), math.log(_RATIO[1]))
