"""The option `device`: the library's name of an accelerator, made from the names and objects of frameworks."""

from __future__ import annotations

import operator
import sys
from typing import Any

from ._errors import InvalidArgument


def named(device: Any) -> str | None:
    """The device as "cuda:N" or "hip:N". None: the device is the CPU.

    device           "cuda:N" or "hip:N"; "cuda" for the current device; a number, a torch.device or a jax.Device.
                     Devices of ROCm may be called cuda, as torch calls them
    """
    if hasattr(device, "platform"):  # a jax.Device
        kind = "hip" if "rocm" in getattr(device.client, "platform_version", "") else device.platform
        device = f"{'cuda' if kind == 'gpu' else kind}:{device.local_hardware_id or 0}"
    elif not isinstance(device, str) and hasattr(device, "__index__"):
        device = f"cuda:{operator.index(device)}"
    kind, colon, number = str(device).partition(":")
    if kind == "cpu":
        return None
    if kind not in ("cuda", "hip", "rocm") or (colon and not number.isdecimal()):
        raise InvalidArgument(f'device is "cuda:N", "hip:N", a number, a torch.device or a jax.Device, not {device!r}')
    torch = sys.modules.get("torch")
    if not colon:
        is_used = torch is not None and torch.cuda.is_initialized()
        number = str(torch.cuda.current_device()) if torch is not None and is_used else "0"
    is_rocm = torch is not None and getattr(torch.version, "hip", None) is not None
    return f"{'hip' if kind != 'cuda' or is_rocm else 'cuda'}:{int(number)}"
