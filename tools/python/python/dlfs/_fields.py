"""Types of fields, conversion of numbers to them, and the dtype of bf16."""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple

import numpy


class FieldType(NamedTuple):
    """The type of a field: its bytes are an array of this dtype and shape.

    dtype    the name of the elements' type, as in numpy; also "bfloat16"
    shape    the length of each dimension, None for a first dimension whose length differs from sample to sample.
             (): single numbers
    """

    dtype: str
    shape: tuple[int | None, ...]


def _bf16() -> numpy.dtype[Any]:
    try:
        bfloat16: Any = importlib.import_module("ml_dtypes").bfloat16
    except ImportError:
        bfloat16 = "uint16"  # the bits of the numbers
    dtype: numpy.dtype[Any] = numpy.dtype(bfloat16)
    return dtype


# numpy itself has no dtype for bf16.
BF16 = _bf16()


def exactly(given: Any, dtype: str) -> Any:
    """The numbers `given`, which are no array, as an array of `dtype`.

    A type of floats rounds floats to its precision, within its range. Raises ValueError if any other number would
    change.
    """
    array: Any = numpy.asarray(given)
    if array.dtype.kind not in "biufO":
        raise ValueError(f"{_shown(given)} is not of type {dtype}")
    fast = _converted(array, numpy.dtype(dtype))
    if fast is not None:
        return fast
    # Not from `array`: numpy made floats of its integers if they were given together with floats.
    numbers: Any = numpy.asarray(given, object)
    try:
        with numpy.errstate(all="ignore"):
            array = numbers.astype(dtype)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{_shown(given)} is not of type {dtype}") from None
    for number, stored in zip(numbers.flat, array.astype(object).flat, strict=True):
        if number != stored and not _is_rounded(number, stored):
            raise ValueError(f"{_shown(number)} is not of type {dtype}, which would make it {stored}")
    return array


def _converted(array: Any, dtype: numpy.dtype[Any]) -> Any:
    """The array as `dtype` if its own dtype and range show that the result is right. None: `exactly` must compare each
    number as it was given."""
    if array.dtype == dtype and dtype.kind != "f":
        return array
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        converted = array.astype(dtype)
        return converted if (converted == array).all() else None
    if array.dtype.kind == "f" and dtype.kind == "f":
        whole = 2 ** (numpy.finfo(dtype).nmant + 1)  # integers below it are exact
        return array.astype(dtype) if (abs(array) < whole).all() else None
    return None


def _is_rounded(number: Any, stored: Any) -> bool:
    """Returns whether `stored` is the float `number` in another precision, or both are NaN."""
    if not isinstance(number, (float, numpy.floating)) or not isinstance(stored, float):
        return False
    return not math.isinf(stored) and math.isnan(number) == math.isnan(stored)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
