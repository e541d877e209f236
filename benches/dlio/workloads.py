"""The workloads of MLPerf Storage as DLIO runs them, and their data, which DLIO generates.

Batch, sample, step and required accelerator utilisation (AU) are those of MLCommons' configurations, v1.0 for H100
and v3.0 for B200. Left out: unet3d's checkpoints, since reading is measured. Retinanet's and flux's readers, and
the row groups of flux, are this bench's choice.
"""

import json
import math
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Workload:
    name: str
    accelerator: str
    au: float
    step_s: float
    batch: int
    sample_bytes: int
    dataset: dict
    reader: dict
    samples_per_file: int = 1
    framework: str = "pytorch"
    # Kind of source of `dlfs import` for the open way; None: a file is a sample.
    records: str | None = None
    # Only MLCommons' DLIO, as a checkout, has the format.
    needs_checkout: bool = False
    # Pixels of noise that PyPI's DLIO makes a JPEG of `sample_bytes` of; MLCommons' writes noise as it is.
    pixels: int | None = None


TORCH = {"data_loader": "pytorch", "file_shuffle": "seed", "sample_shuffle": "seed"}
WORKLOADS = [
    Workload(
        "unet3d", "H100", 0.90, 0.323, 7, 146_600_628,
        {"format": "npz", "record_length_stdev": 68_341_808, "record_length_resize": 2_097_152},
        {**TORCH, "read_threads": 4},
    ),
    Workload(
        "resnet50", "H100", 0.90, 0.224, 400, 114_660,
        {"format": "tfrecord", "record_length_resize": 150_528},
        {"data_loader": "tensorflow", "read_threads": 8, "computation_threads": 8},
        samples_per_file=1251, framework="tensorflow", records="tfrecord",
    ),
    Workload(
        "cosmoflow", "H100", 0.70, 0.0035, 1, 2_828_486,
        {"format": "tfrecord", "record_length_stdev": 71_311},
        {**TORCH, "data_loader": "tensorflow", "read_threads": 4, "shuffle_size": 2},
        framework="tensorflow", records="tfrecord",
    ),
    Workload(
        "retinanet", "B200", 0.85, 0.04755, 24, 322_957,
        {"format": "jpeg"},
        {**TORCH, "read_threads": 4},
        pixels=579_121,
    ),
    Workload(
        "flux", "B200", 0.90, 1.35, 48, 2_160_000,
        {"format": "parquet", "parquet": {"row_group_size": 48}},
        {**TORCH, "read_threads": 4},
        samples_per_file=480, records="parquet", needs_checkout=True,
    ),
]  # fmt: skip


@dataclass
class Data:
    """A workload's files, and the images made of them, in one folder.

    | path          | holds                                                                       |
    |---------------|-----------------------------------------------------------------------------|
    | `data/train/` | the files; `data/valid/` is empty, but DLIO lists it                        |
    | `files.dlfs`  | an image with a sample for each file, for programs that know only files     |
    | `records.dlfs`| an image with a sample for each record, if files have several               |
    | `tree/`       | `train/`, where the image of files is shown as files, and an empty `valid/` |
    """

    folder: Path
    workload: Workload
    record_length: int
    files: int
    bytes: int = 0

    @property
    def samples(self):
        return self.files * self.workload.samples_per_file

    @property
    def sample_bytes(self):
        return self.bytes / self.samples

    @property
    def as_files(self):
        return self.folder / "files.dlfs"

    @property
    def records(self):
        return self.folder / "records.dlfs" if self.workload.records else self.as_files

    def steps(self, ranks):
        """Steps of an epoch."""
        return self.samples // (self.workload.batch * ranks)


def make(folder, workload, wanted_bytes, doors, tools):
    """Generates the files and imports them as `doors` need them, unless they are there already."""
    per_file = workload.sample_bytes * workload.samples_per_file
    record_length = workload.pixels if workload.pixels and not tools.has_checkout else workload.sample_bytes
    data = Data(folder, workload, record_length, math.ceil(wanted_bytes / per_file))
    kinds = {}
    if {"mount", "preload"} & {*doors}:
        kinds[data.as_files] = "folder"
    if {"image", "nvme-tcp"} & {*doors}:
        kinds[data.records] = workload.records or "folder"
    done = folder / "done.json"
    if not done.exists() or json.loads(done.read_text())["files"] != data.files:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        needs(folder, data.files * per_file * (1 + len(kinds)))
        print(f"{workload.name}: {data.files} files of {per_file / 1e6:.1f} MB", flush=True)
        generate(data, tools)
        for sub in ("train", "valid"):
            (folder / "tree" / sub).mkdir(parents=True)
        length = sum(entry.stat().st_size for entry in os.scandir(folder / "data" / "train"))
        done.write_text(json.dumps({"files": data.files, "bytes": length}))
    data.bytes = json.loads(done.read_text())["bytes"]
    for image, kind in kinds.items():
        if not image.exists():
            needs(folder, data.bytes)
            partial = image.with_suffix(".partial")
            command = [tools.dlfs, "import", "--quiet", "--force", "--from", kind, folder / "data" / "train", partial]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            partial.rename(image)
    os.sync()  # else the cache cannot be dropped
    return data


def needs(folder, length):
    free = shutil.disk_usage(folder).free
    if free < length:
        raise SystemExit(f"{folder}: this needs {length >> 30} GiB, {free >> 30} are free; see --root")


def generate(data, tools):
    config = configuration(data, data.folder / "data", data.folder / "generated")
    config["workflow"] = {"generate_data": True, "train": False}
    done = subprocess.run(
        tools.dlio(config, data.folder / "generated"), env=tools.environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"DLIO generated no data of {data.workload.name}:\n{(done.stdout + done.stderr)[-4000:]}")


def configuration(data, folder, out):
    """DLIO's configuration for a workload. Version 3 renamed the keys of lengths: both are there."""
    workload = data.workload
    dataset = {
        **workload.dataset,
        "data_folder": str(folder),
        "num_files_train": data.files,
        "num_samples_per_file": workload.samples_per_file,
        "record_length": data.record_length,
    }
    for key in [key for key in dataset if key.startswith("record_length")]:
        dataset[key.replace("record_length", "record_length_bytes")] = dataset[key]
    return {
        "framework": workload.framework,
        "workflow": {"generate_data": False, "train": True, "checkpoint": False},
        "dataset": dataset,
        "reader": {**workload.reader, "batch_size": workload.batch},
        "metric": {"au": workload.au},
        "output": {"folder": str(out)},
    }
