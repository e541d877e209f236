#!/usr/bin/env python3
"""Creates the virtual environment for the tests of the Python package.

    environment.py FOLDER
    environment.py --few FOLDER    only numpy and pytest with xdist: tests that need more are skipped

PyPI's torch for x86-64 is the CUDA build, whose libraries are 2 GB more. On a machine without CUDA its
wheel is taken alone, with the three small wheels that it opens at import; the other libraries become
link stubs, since nothing calls them (benches/peers/mkstubs.py). FOLDER is made anew when what is in
requirements.txt changed, and left alone otherwise.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
STUBS = HERE.parent.parent.parent / "benches" / "peers" / "mkstubs.py"
FEW = ["numpy", "pytest", "pytest-xdist"]
TORCH = ["torch==2.15.0", "torchdata==0.11.0", "torchvision==0.29.2"]
CUDA = ["nvidia-cuda-runtime<13.3", "nvidia-cuda-cupti", "nvidia-cufile"]
# Installed without dependencies, which would include the libraries of torch; their own other dependencies are in
# requirements.txt. Together 3 MB.
TRAINERS = [
    "lightning==2.6.6", "pytorch-lightning==2.6.6", "lightning-utilities==0.15.3",
    "torchmetrics==1.9.0", "accelerate==1.15.0",
]


def main():
    *few, folder = sys.argv[1:]
    folder = Path(folder)
    wanted = (FEW,) if few else (TORCH, CUDA, TRAINERS, (HERE / "requirements.txt").read_text())
    state = hashlib.sha256(repr(wanted).encode())
    done = folder / "done"
    if done.exists() and done.read_text() == state.hexdigest():
        return
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    if few:
        pip(folder, *FEW)
    else:
        pip(folder, "-r", HERE / "requirements.txt")
        install_torch(folder)
    done.write_text(state.hexdigest())


def install_torch(folder):
    """Installs torch, or prints why not: the tests that need it are then skipped."""
    if not all(shutil.which(program) for program in ("gcc", "objdump")):
        print("torch is left out: link stubs need gcc and objdump", flush=True)
        return
    pip(folder, "--no-deps", *TORCH, *CUDA, *TRAINERS)
    python = folder / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout
    stubs = folder / "stubs"
    stubs.mkdir()
    library = Path(site.strip(), "torch", "lib")
    subprocess.run([python, STUBS, library], cwd=stubs, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([python, "-c", "import torch; print('torch', torch.__version__)"], check=True)


def pip(folder, *what):
    command = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    subprocess.run(list(map(str, command)), check=True, env={**os.environ, "PIP_NO_INPUT": "1"})


if __name__ == "__main__":
    main()
