"""The package's types, checked strictly, and the stubs compared with the package."""

import inspect
import pathlib
import subprocess
import sys

import pytest

import dlfs
import dlfs._dlfs

HERE = pathlib.Path(__file__).resolve().parent.parent


MYPY = ["mypy", "--strict", "--config-file", "pyproject.toml", "-p", "dlfs"]
STUBTEST = [
    "mypy.stubtest", "dlfs._dlfs", "--mypy-config-file", "tests/stubtest.ini",
    "--ignore-missing-stub", "--ignore-disjoint-bases", "--allowlist", "tests/stubtest.txt",
]


@pytest.mark.parametrize("tool", [MYPY, STUBTEST], ids=["mypy", "stubtest"])
def test_types_are_strict_and_stubs_match_the_module(tool):
    pytest.importorskip("mypy", reason="mypy is not installed")
    run = subprocess.run(
        [sys.executable, "-m", *tool], capture_output=True, text=True, timeout=300, cwd=HERE
    )
    assert run.returncode == 0, run.stdout + run.stderr


PROGRAM = """
import dlfs
import numpy as np

ds = dlfs.open("train.dlfs", fields="jpg")
out: np.ndarray[tuple[int], np.dtype[np.uint8]] = np.empty(100, dtype=np.uint8)
offsets = ds.read_batch([1], out=out)
ds.read_batch([1], out=bytearray(100))
batch = ds.read_batch([1], on_error="none")
if batch[0] is None:
    print("a gap")
else:
    print(len(batch[0]))
first: memoryview = ds[0]
print(ds[0].field("jpg"), batch.field("jpg")[0] is None, ds.label(0) is None)
for epoch in range(2):
    for view in next(iter(dlfs.Loader(ds, 4))):
        print(bytes(view))
"""


def test_a_correct_program_passes_the_type_checker(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    strict = ["--strict", "--warn-unreachable", "--enable-error-code", "redundant-expr"]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *strict, str(tmp_path / "program.py")],
        capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_everything_public_is_described():
    for name in dlfs.__all__:
        thing = getattr(dlfs, name)
        if not inspect.isclass(thing) and not callable(thing):
            continue
        assert (thing.__doc__ or "").strip(), f"dlfs.{name} has no description"
        if inspect.isclass(thing) and thing.__module__.startswith("dlfs") and name in (
            "Batch", "Dataset", "Loader"
        ):
            for method in dir(thing):
                if not method.startswith("_"):
                    described = (getattr(thing, method).__doc__ or "").strip()
                    assert described, f"dlfs.{name}.{method} has no description"
