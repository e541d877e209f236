"""The driver without a device of tests/fake_cuda, from Python: its counters and streams, and arrays in its memory.

It counts wrong uses, and ends the process if there were some. Its devices' memory is the host's, written late.
"""

import ctypes
import os
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).resolve().parents[3]
LIBRARY = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "libdlfs_fake_cuda.so"
os.environ.setdefault("DLFS_CUDA_LIBRARY", str(LIBRARY))
os.environ.setdefault("DLFS_HIP_LIBRARY", os.environ["DLFS_CUDA_LIBRARY"])
COUNTS = (
    "registered", "unregistered", "registered_bytes", "copies", "copied_bytes", "pageable_bytes", "allocations",
    "handles", "devices",
)
VERSIONED, UNVERSIONED = b"dltensor_versioned", b"dltensor"
READ_ONLY, IS_COPIED = 1, 2

api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetName.restype = ctypes.c_char_p
api.PyCapsule_GetName.argtypes = [ctypes.py_object]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


def driver():
    """The driver; skips the test if nobody has built it."""
    path = os.environ["DLFS_CUDA_LIBRARY"]
    if not os.path.exists(path):
        pytest.skip(f"{path} is not built: cargo build -p dlfs-fake-cuda")
    return Driver(path)


class Driver:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.fake_violations.restype = ctypes.c_uint64
        self.lib.fake_expect.argtypes = [ctypes.c_size_t, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64]
        for name in ("fake_lose_after", "fake_refuse_registration", "fake_fail_allocation"):
            getattr(self.lib, name).argtypes = [ctypes.c_uint64]

    def violations(self):
        return self.lib.fake_violations()

    def counts(self):
        found = (ctypes.c_uint64 * len(COUNTS))()
        self.lib.fake_counts(found)
        return dict(zip(COUNTS, found))

    def begin(self):
        """Uses device 0, as a framework does; its context becomes the thread's."""
        context = ctypes.c_size_t()
        assert self.lib.cuInit(0) == 0 and self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self.lib.cuCtxSetCurrent(context) == 0

    def stream(self):
        made = ctypes.c_size_t()
        assert self.lib.cuStreamCreate(ctypes.byref(made), 1) == 0
        return made.value

    def finish(self, stream=0):
        """Waits until the stream has done its work."""
        event = ctypes.c_size_t()
        assert self.lib.cuEventCreate(ctypes.byref(event), 2) == 0
        assert self.lib.cuEventRecord(event, ctypes.c_size_t(stream)) == 0
        assert self.lib.cuEventSynchronize(event) == 0 and self.lib.cuEventDestroy_v2(event) == 0

    def reads(self, stream, taken, expected):
        """The stream reads the array when it comes there, and a byte that is not expected is a wrong use."""
        assert taken.nbytes == len(expected)
        if expected:
            assert self.lib.fake_expect(stream, taken.address, len(expected), digest(expected)) == 0


def digest(data):
    """That of tests/fake_cuda/memory.rs."""
    total = 0xCBF29CE484222325 ^ len(data)
    for byte in [*data[::509], *data[-1:]]:
        total = (total ^ byte) * 0x100000001B3 % 2**64
    return total


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


class _Unversioned(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    ]


class Taken:
    """An array that a consumer has taken out of its capsule, until `drop`."""

    def __init__(self, capsule):
        name = api.PyCapsule_GetName(capsule)
        pointer = api.PyCapsule_GetPointer(capsule, name)
        self.is_versioned = name == VERSIONED
        kind = _Versioned if self.is_versioned else _Unversioned
        made = kind.from_address(pointer)
        assert self.is_versioned or name == UNVERSIONED
        self.version = tuple(made.version) if self.is_versioned else None
        self.flags = made.flags if self.is_versioned else None
        tensor = made.tensor
        self.address, self.device = (tensor.data or 0) + tensor.byte_offset, tuple(tensor.device)
        self.dtype, self.lanes = (tensor.code, tensor.bits), tensor.lanes
        self.shape, self.strides = (tuple(dims[: tensor.ndim]) for dims in (tensor.shape, tensor.strides))
        self._drop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(made.deleter), pointer
        # The name has to live as long as the capsule.
        api.PyCapsule_SetName(capsule, _USED[name])

    @property
    def nbytes(self):
        return self.dtype[1] // 8 * int(numpy.prod(self.shape, dtype=int))

    def read(self):
        """Its elements now. bfloat16 as uint16."""
        kind = {0: "i", 1: "u", 2: "f", 4: "u", 6: "b"}[self.dtype[0]] + str(self.dtype[1] // 8)
        dtype = numpy.dtype("?" if kind == "b1" else kind)
        if self.nbytes == 0:
            return numpy.empty(self.shape, dtype)
        span = 1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides))
        memory = (ctypes.c_uint8 * (span * dtype.itemsize)).from_address(self.address)
        flat = numpy.frombuffer(memory, dtype)
        steps = [step * dtype.itemsize for step in self.strides]
        return numpy.lib.stride_tricks.as_strided(flat, self.shape, steps).copy()

    def drop(self):
        deleter, pointer = self._drop
        deleter(pointer)


_USED = {VERSIONED: b"used_dltensor_versioned", UNVERSIONED: b"used_dltensor"}
