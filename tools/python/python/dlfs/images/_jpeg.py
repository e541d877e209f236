"""The header of a JPEG: its size, and whether all codecs decode such a file alike."""

from __future__ import annotations

from typing import NamedTuple

import PIL.Image


class Header(NamedTuple):
    """Width and height in pixels, and the width of the units (MCU) that its columns are coded in."""

    width: int
    height: int
    unit: int


def header(data: memoryview) -> Header | None:
    """The header of a plain JPEG: baseline or progressive, 8 bits, grey or YCbCr, and not so large that Pillow refuses
    it. None for all other files, which codecs refuse or convert each in its own way.
    """
    if bytes(data[:2]) != b"\xff\xd8":
        return None
    at, end = 2, len(data)
    frame, transform = b"", _YCBCR
    while at + 4 <= end and data[at] == 0xFF:
        marker, length = data[at + 1], data[at + 2] << 8 | data[at + 3]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == _START_OF_SCAN:
            return _plain(frame, transform)
        body = data[at + 4 : at + 2 + length]
        if marker in _FRAMES:
            frame = bytes(body)
        elif marker == _ADOBE and bytes(body[:5]) == b"Adobe" and len(body) >= 12:
            transform = body[11]
        elif marker in _OTHER_FRAMES:
            return None
        at += 2 + length
    return None


def _plain(frame: bytes, transform: int) -> Header | None:
    if len(frame) < 6 or frame[0] != 8 or len(frame) < 6 + 3 * frame[5]:
        return None
    height, width, components = frame[1] << 8 | frame[2], frame[3] << 8 | frame[4], frame[5]
    limit = PIL.Image.MAX_IMAGE_PIXELS
    if not width or not height or (limit is not None and width * height > 2 * limit):
        return None
    if components == 1:
        return Header(width, height, 8)
    if components != 3 or transform != _YCBCR or frame[6:15:3] == b"RGB":
        return None
    return Header(width, height, 8 * max(factors >> 4 for factors in frame[7:15:3]))


_START_OF_SCAN, _ADOBE, _YCBCR = 0xDA, 0xEE, 1
# Baseline, extended and progressive, with Huffman codes; the others are lossless, hierarchical or arithmetic.
_FRAMES = (0xC0, 0xC1, 0xC2)
_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
