"""Prints what an epoch of MosaicML's StreamingDataset has of each stream, as JSON: golden/mosaicml_counts.json.

    mosaicml_counts.py > golden/mosaicml_counts.json

Needs `pip install mosaicml-streaming`. Of its many dependencies, those that it opens at import and nothing here uses
(clouds, transformers, torchvision) may be missing: they are then replaced by empty modules. Each case writes its streams
in MDS, reads an epoch, and counts the samples that it was given of each stream.
"""

import importlib.abc
import importlib.machinery
import json
import sys
import tempfile
import types
from pathlib import Path

SAMPLES = [90, 40, 7]
# Which part each stream has, and the size of an epoch, or None.
CASES = [
    ("proportion", [1, 1, 1], 300), ("proportion", [0.7, 0.2, 0.1], 1000), ("proportion", [0.5, 0.25, 0.25], 64),
    ("proportion", [2, 1, 1], None), ("proportion", [0.7, 0.2, 0.1], 137), ("proportion", [3, 5, 7], 100),
    ("proportion", [0.9, 0.05, 0.05], 20), ("proportion", [1, 1, 1], 100),
    ("repeat", [1, 1, 1], None), ("repeat", [1, 2, 10], None), ("repeat", [0.5, 0.25, 1], None),
    ("repeat", [0.3, 1.5, 2.5], None), ("repeat", [0.1, 0.9, 3], None), ("repeat", [2, 0.75, 0.5], None),
    ("choose", [90, 40, 7], None), ("choose", [10, 10, 10], None), ("choose", [1, 100, 50], None),
    ("choose", [200, 3, 1], None),
]  # fmt: skip


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds, after everything else, any module of these packages: a name in it is an empty class."""

    PACKAGES = (
        "transformers", "torchvision", "boto3", "botocore", "google", "azure", "oci", "paramiko", "matplotlib",
        "databricks", "alipcs_py",
    )  # fmt: skip

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return EmptyModule(spec.name)

    def exec_module(self, module):
        pass


class EmptyModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def counts_of(streaming, root, part, values, size):
    """How many samples of each stream the first epoch gives."""
    streams = [
        streaming.Stream(local=str(root / str(at)), **{part: value}) for at, value in enumerate(values)
    ]
    data = streaming.StreamingDataset(
        streams=streams, epoch_size=size, batch_size=1, shuffle=False, num_canonical_nodes=1, batching_method="random"
    )
    counts = [0] * len(values)
    for sample in data:
        counts[int(sample["source"])] += 1
    return counts


def counted(root):
    import streaming

    for at, samples in enumerate(SAMPLES):
        with streaming.MDSWriter(out=str(root / str(at)), columns={"source": "int"}) as out:
            for _ in range(samples):
                out.write({"source": at})
    found = []
    for part, values, size in CASES:
        streaming.base.util.clean_stale_shared_memory()
        counts = counts_of(streaming, root, part, values, size)
        found.append({"part": part, "values": values, "epoch_size": size, "counts": counts})
    return {"mosaicml-streaming": streaming.__version__, "samples": SAMPLES, "cases": found}


if __name__ == "__main__":
    sys.meta_path.append(Empty())
    with tempfile.TemporaryDirectory() as root:
        text = json.dumps(counted(Path(root)))
    for before in ('"samples"', '"cases"', '{"part"'):
        text = text.replace(", " + before, ",\n" + before)
    print(text)
