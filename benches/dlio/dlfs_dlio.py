"""The plug-in of the open rows: DLIO's data loader, with samples from `dlfs.Loader`.

DLIO makes one `Batches` a rank and takes an epoch from each call of `next`. Its own loaders read a sample, drop it
and hand a constant tensor to the emulated step, which ignores it; this one hands over the sample itself, an array of
its verified bytes. A stored `x.npy` of an npz is viewed where it lies, since `np.load` copies it and computes a CRC
of zip's; JPEG and TFRecord stay as recorded, and the columns of Parquet are those of the batch.

Settings are in the environment, since DLIO passes none on: `DLFS_DLIO` is a JSON object of `address`, `order`,
`window` and `node_loader`.
"""

import io
import json
import os
import struct

import dlfs
import numpy as np
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.utils.config import ConfigArguments
from numpy.lib import format as npy


class Batches(BaseDataLoader):
    def __init__(self, format_type, dataset_type, epoch):
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.PYTORCH)
        self.arrays = arrays_of_npz if str(format_type) == "npz" else arrays
        self.epoch = 0

    def read(self):
        if self.dataset_type is not DatasetType.TRAIN:
            return
        given, args = json.loads(os.environ["DLFS_DLIO"]), ConfigArguments.get_instance()
        self.loader = dlfs.Loader(
            dlfs.open(given["address"]),
            self.batch_size,
            given["order"],
            seed=args.seed,
            rank=args.my_rank,
            world_size=args.comm_size,
            epochs=args.epochs,  # nothing is read beyond the last one
            window=given["window"],
            drop_last=True,
            node_loader=given["node_loader"],
        )
        self.loader.prepare()

    def next(self):
        # DLIO leaves the loop without asking whether a batch follows its last one.
        self.loader.set_epoch(self.epoch)
        self.epoch += 1
        for batch in self.loader:
            yield self.arrays(batch)

    def finalize(self):
        pass


def arrays(batch):
    if batch.fields:
        return [batch[field] for field in batch.fields]
    return [np.frombuffer(sample, np.uint8) for sample in batch]


def arrays_of_npz(batch):
    return [array_of_npz(sample) for sample in batch]


def array_of_npz(file):
    """The array `x` of an npz: a view of its bytes if `x.npy` is the first member and stored, else by np.load.

    | bytes  | field of zip's local header | meaning                           |
    |--------|-----------------------------|-----------------------------------|
    | 0..4   | signature                   | `PK` 3 4                          |
    | 6..8   | flags                       | bit 0: encrypted                  |
    | 8..10  | method                      | 0: stored                         |
    | 26..28 | name length                 | the name follows at byte 30       |
    | 28..30 | extra length                | then the data, here an npy file   |
    """
    signature, flags, method, name_len, extra_len = struct.unpack("<4s2xHH16xHH", file[:30])
    if (signature, flags & 1, method, bytes(file[30 : 30 + name_len])) != (b"PK\3\4", 0, 0, b"x.npy"):
        return np.load(io.BytesIO(file))["x"]
    begin = 30 + name_len + extra_len
    header = io.BytesIO(file[begin : begin + 4096])  # as long as numpy writes one for a dtype without names
    read = npy.read_array_header_1_0 if npy.read_magic(header) == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read(header)
    count = int(np.prod(shape, dtype=np.int64))
    array = np.frombuffer(file, dtype, count, begin + header.tell())
    return array.reshape(shape, order="F" if is_fortran else "C")
