"""Transforms that worker processes import."""

import os
import signal
import sys
import time

import numpy as np


def ids(batch):
    return batch.ids.tolist()


def slow_ids(batch):
    time.sleep(0.3)
    return batch.ids.tolist()


def arrays(batch):
    """Arrays of many kinds, in what may hold them."""
    data = np.frombuffer(b"".join(batch.tobytes()), np.uint8).copy()
    return {
        "data": data,
        "ids": batch.ids,
        "parts": [np.arange(3, dtype="<f4"), (np.zeros((0, 4), "i2"), np.array(7))],
        "strided": np.arange(20).reshape(4, 5)[:, ::2],
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "plain": (None, 1.5, "text", b"bytes", {3}),
    }


def constant(batch):
    """As many bytes for each batch, which say whose they are."""
    return np.full(1 << 20, int(batch.ids[0]), np.int32)


def of_varying_size(batch):
    first = int(batch.ids[0])
    return np.full(1 + first * 1000, first, np.int32)


def draws(batch, rng):
    return [int(rng[i].integers(1 << 30)) for i in range(len(batch))]


def views(batch):
    return list(batch)


def whole(batch):
    return batch


KEPT = []


def sums_of_kept(batch):
    """Keeps every batch; returns the sums of the bytes of all so far."""
    KEPT.append((batch, [sum(view) for view in batch]))
    return all([sum(view) for view in kept] == sums for kept, sums in KEPT)


def tensors(batch):
    import torch

    import dlfs.torch

    flat = torch.arange(24, dtype=torch.float32)
    return {
        "batch": dlfs.torch.TensorBatch.of(batch),
        "half": flat.to(torch.bfloat16).reshape(2, 3, 4),
        "transposed": flat.reshape(4, 6).t(),
        "bool": flat > 3,
        "scalar": torch.tensor(5),
        "empty": torch.empty(0, 3),
        "unsigned": flat.to(torch.uint16),
        "grad": torch.nn.Parameter(torch.ones(2)),
    }


def fails_on_the_fourth(batch):
    if int(batch.ids.sum()) == FAILS_ON:
        raise KeyError("of the transform")
    return batch.ids.tolist()


FAILS_ON = int(os.environ.get("DLFS_TEST_FAILS_ON", "-1"))


def interrupted_or_ids(batch):
    """Ends its process on a batch that the environment names."""
    how, where = os.environ.get("DLFS_TEST_DIES", "exit:-1").split(":")
    if int(batch.ids[0]) == int(where):
        if how == "exit":
            os._exit(3)
        if how == "raise":
            sys.exit("of the transform")
        os.kill(os.getpid(), getattr(signal, how))
    return batch.ids.tolist()


def array_or_end(batch):
    interrupted_or_ids(batch)
    return constant(batch)


class Odd(Exception):
    """An error that its pickle cannot make again."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def odd(batch):
    raise Odd(1, 2)


def unpicklable(batch):
    return lambda: batch


def pid(batch):
    return os.getpid()
