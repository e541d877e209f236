"""What an epoch of a mixture has of each data set, beside MosaicML's streaming package.

golden/mosaicml_counts.json is what mosaicml_counts.py printed, which reads with that package; where it is installed, it
runs here, too.
"""

import collections
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dlfs
from conftest import command

HERE = Path(__file__).parent
THEIRS = json.loads((HERE / "golden" / "mosaicml_counts.json").read_text())


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """Data sets of as many samples as MosaicML's streams had."""
    root, opened = tmp_path_factory.mktemp("streams"), []
    for at, samples in enumerate(THEIRS["samples"]):
        (root / str(at)).mkdir()
        for name in range(samples):
            (root / str(at) / f"{name:03d}").write_bytes(b"sample of %d" % at)
        command("import", root / str(at), root / f"{at}.dlfs", "--quiet")
        opened.append(dlfs.open(str(root / f"{at}.dlfs")))
    yield opened
    for dataset in opened:
        dataset.close()


def mixture_of(streams, case):
    make = {"proportion": lambda value: value, "repeat": dlfs.repeat, "choose": dlfs.choose}[case["part"]]
    parts = [(dataset, make(value)) for dataset, value in zip(streams, case["values"], strict=True)]
    return dlfs.Mixture(parts, epoch_size=case["epoch_size"])


@pytest.mark.parametrize("case", THEIRS["cases"], ids=lambda case: f"{case['part']} {case['values']}")
def test_an_epoch_has_of_each_data_set_what_mosaicml_gives(streams, case):
    mixture = mixture_of(streams, case)
    with dlfs.Loader(mixture, batch_size=16, seed=3, epochs=1) as loader:
        read = collections.Counter(source for batch in loader for source in batch.sources.tolist())
    counts = [read[source] for source in range(len(streams))]
    assert counts == mixture.counts() and sum(counts) == sum(case["counts"]) == len(mixture)
    total, size = sum(case["values"]), len(mixture)
    shares = [size * value / total for value in case["values"]]
    if case["part"] == "proportion" and any(abs(share - round(share)) > 1e-9 for share in shares):
        # Who gets what is left after rounding down is drawn by chance there, and follows the largest remainders here.
        for ours, theirs, share in zip(counts, case["counts"], shares, strict=True):
            assert abs(ours - theirs) <= 1 and abs(ours - share) < 1 and abs(theirs - share) <= 1
    else:
        assert counts == case["counts"]


def test_the_golden_counts_are_those_of_the_package():
    try:
        version = importlib.metadata.version("mosaicml-streaming")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("mosaicml-streaming is not installed; its counts are compared from golden/mosaicml_counts.json")
    run = subprocess.run(
        [sys.executable, str(HERE / "mosaicml_counts.py")], capture_output=True, text=True, timeout=300, env=os.environ
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["mosaicml-streaming"] == version
    assert (found["samples"], found["cases"]) == (THEIRS["samples"], THEIRS["cases"])
