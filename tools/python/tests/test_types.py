"""The package's types, checked strictly, and that the stubs say what there is."""

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
    "mypy.stubtest", "dlfs._dlfs", "--mypy-config-file", "pyproject.toml",
    "--ignore-missing-stub", "--ignore-disjoint-bases", "--allowlist", "tests/stubtest.txt",
]


@pytest.mark.parametrize("tool", [MYPY, STUBTEST], ids=["mypy", "stubtest"])
def test_types_are_strict_and_stubs_are_true(tool):
    pytest.importorskip("mypy", reason="mypy is not installed")
    run = subprocess.run(
        [sys.executable, "-m", *tool], capture_output=True, text=True, timeout=300, cwd=HERE
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
