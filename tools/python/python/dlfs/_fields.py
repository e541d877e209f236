"""Types of fields, and the dtype of bf16."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy


class FieldType(NamedTuple):
    """What the bytes of a field are: arrays of a dtype and a shape.

    dtype    the name of the elements' type, as in numpy; also "bfloat16"
    shape    the length of each dimension; None for that of the first one if it differs from sample to sample.
             (): single numbers
    """

    dtype: str
    shape: tuple[int | None, ...]


def _bf16() -> numpy.dtype[Any]:
    try:
        bfloat16: Any = importlib.import_module("ml_dtypes").bfloat16
    except ImportError:
        bfloat16 = "uint16"  # their bits
    dtype: numpy.dtype[Any] = numpy.dtype(bfloat16)
    return dtype


# numpy has no dtype for bf16.
BF16 = _bf16()
