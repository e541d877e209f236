"""Names of the loaders and where their classes live.

Modules are imported only when asked for, so that a loader's process holds its
own libraries and no other's.
"""
import importlib

PEERS = {
    # name               module                class
    # --- bounds and hand-written baselines (numpy only)
    "null":              ("baselines",        "Null"),
    "seq-read":          ("baselines",        "SeqRead"),
    "raw-tcp":           ("baselines",        "RawTcp"),
    "pread":             ("baselines",        "Pread"),
    "preadv-reuse":      ("baselines",        "PreadvReuse"),
    "mmap":              ("baselines",        "Mmap"),
    "mmap-random":       ("baselines",        "MmapRandom"),
    # --- PyTorch DataLoader over ...
    "torch-files":       ("torch_map",        "TorchFiles"),
    "torch-files-shm":   ("torch_map",        "TorchFilesShm"),
    "torch-pread":       ("torch_map",        "TorchPread"),
    "torch-pread-shm":   ("torch_map",        "TorchPreadShm"),
    "lmdb":              ("torch_map",        "Lmdb"),
    "h5py":              ("torch_map",        "H5"),
    "hf-datasets":       ("torch_map",        "HfDatasets"),
    "torchdata-nodes":   ("torch_map",        "TorchdataNodes"),
    # --- libraries with their own format and iterator
    "webdataset":        ("streams",          "WebDataset"),
    "mosaic-streaming":  ("streams",          "Mosaic"),
    "litdata":           ("streams",          "LitData"),
    "tfrecord-py":       ("streams",          "TfrecordPy"),
    "grain":             ("native",           "Grain"),
    "pyarrow-take":      ("native",           "ArrowTake"),
    "tf.data":           ("native",           "TfData"),
    "ffcv":              ("native",           "Ffcv"),
    "dali-files":        ("native",           "DaliFiles"),
    "dali-wds":          ("native",           "DaliWds"),
    # --- dlfs
    "dlfs-grouped":      ("dlfs",             "LocalGrouped"),
    "dlfs-global":       ("dlfs",             "LocalGlobal"),
    "dlfs-tcp-grouped":  ("dlfs",             "TcpGrouped"),
    "dlfs-tcp-global":   ("dlfs",             "TcpGlobal"),
}


def load(name):
    module, cls = PEERS[name]
    peer = getattr(importlib.import_module("." + module, __package__), cls)
    peer.name = name
    return peer
