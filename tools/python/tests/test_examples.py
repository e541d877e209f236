"""Runs the programs in examples/ unchanged on pictures of known brightness."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from conftest import command, target

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """The address of 150 pictures: of brightness 50 in one class, and 150 in the other."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    root = tmp_path_factory.mktemp("pictures")
    for name, level in (("dark", 50), ("light", 150)):
        (root / "src" / name).mkdir(parents=True)
        for i in range(75):
            pixels = np.full((8 + i % 5, 8, 3), level, dtype=np.uint8)
            image.fromarray(pixels).save(root / "src" / name / f"{i:03}.png")
    command("import", root / "src", root / "i.dlfs", "--quiet")
    with target(root / "i.dlfs") as (_, address):
        yield address


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pictures_are_decoded_in_threads(pictures):
    pytest.importorskip("torch", reason="torch is not installed")
    out = run("decode_in_threads.py", pictures, "32", "3")
    assert out == "150 pictures of 2 classes, brightness 100.0\n"


def test_dali_decodes_pictures(pictures):
    pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed (its wheel has 0.4 GB)")
    assert run("dali.py", pictures, "50") == "150 pictures of 2 classes, brightness 100.0\n"
