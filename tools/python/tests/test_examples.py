"""Runs the examples unchanged: those of the package on pictures of known brightness, and those at the root.

tools/capi/tests/all/c.rs runs examples/read.c.
"""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from conftest import command, target

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "examples"
ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


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


def run(program, *arguments):
    """Runs a program beside the command of this environment; returns its output."""
    interpreter = [sys.executable] if program.suffix == ".py" else []
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    done = subprocess.run(
        [*interpreter, program, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_pictures_are_decoded_in_threads(pictures):
    pytest.importorskip("torch", reason="torch is not installed")
    out = run(PACKAGE / "decode_in_threads.py", pictures, "32", "3")
    assert out == "150 pictures of 2 classes, brightness 100.0\n"


def test_dali_decodes_pictures(pictures):
    pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed (its wheel has 0.4 GB)")
    assert run(PACKAGE / "dali.py", pictures, "50") == "150 pictures of 2 classes, brightness 100.0\n"


def test_no_example_is_longer_than_the_readme_says():
    for path in EXAMPLES.rglob("*.*"):
        assert len(path.read_text().splitlines()) <= 80, path


def test_the_first_program_is_what_the_tutorial_shows_and_prints_it():
    for package in ("torch", "PIL"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    program = lines_of((EXAMPLES / "train_images.py").read_text())
    excerpts = re.findall(r"<!-- not run: lines of examples/train_images.py -->\n```python\n(.*?)```", tutorial, re.S)
    assert len(excerpts) >= 3
    for excerpt in excerpts:
        assert lines_of(excerpt) in program
    shown = re.search(r"^```sh\npython examples/train_images.py\n```\n\n```text\n(.*?)```", tutorial, re.M | re.S)
    said = run(EXAMPLES / "train_images.py")
    # Shares that are right differ a little between versions of torch.
    assert re.sub(r"\d+ %", "N %", said) == re.sub(r"\d+ %", "N %", shown[1])
    shares = [int(share) for share in re.findall(r"(\d+) %", said)]
    assert max(shares) > 90 and shares[-1] > 80, said


def lines_of(text):
    """The lines of code, however they are indented."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def test_a_language_model_is_trained_and_then_fine_tuned(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"{number} and {number} and no more. " * 8)
    given = (EXAMPLES / "finetune_tokens.py", "--model", tmp_path / "model.pt")

    def losses(*options):
        return [float(loss) for loss in re.findall(r"(?:loss|first,) ([\d.]+) at", run(*given, *options))]

    began, *_, trained = losses("--epochs", 1)
    again, *_ = losses("--epochs", 1)
    assert trained < began / 2 and again < began / 2, "the second run goes on from the model of the first"
    before, *_, after = losses("--texts", texts, "--epochs", 4)
    assert after < before


def test_jax_fits_what_it_reads():
    pytest.importorskip("jax", reason="jax is not installed")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", run(EXAMPLES / "read_jax.py"))]
    assert len(losses) == 3 and losses[-1] < 0.4


def test_four_nodes_read_from_each_other():
    out = run(EXAMPLES / "four_nodes.sh")
    nodes = re.findall(r"^node (\d): (\d+) samples; \d+ MB from memory, (\d+) MB from peer, ", out, re.M)
    assert [node for node, *_ in nodes] == ["0", "1", "2", "3"], out
    assert sum(int(samples) for _, samples, _ in nodes) == 1000, "each sample once an epoch"
    assert all(int(from_peers) > 0 for *_, from_peers in nodes), out
    assert int(re.search(r"sent (\d+) MB in 2 epochs", out)[1]) < 100, "the data set has 66 MB"


def test_a_target_serves_those_that_have_a_key():
    out = run(EXAMPLES / "target_service" / "steps.sh")
    assert "every sample verified\n2\n" in out, "two hosts were refused"
    assert "no damage: 5 samples" in out


def test_the_program_in_rust_goes_on_from_its_state(image, source, tmp_path):
    program = TARGET / "debug" / "examples" / "read"
    if not program.exists():
        pytest.skip("examples/read is not built: cargo build --example read")
    state, every = tmp_path / "state.json", f"{len(source)} samples, {sum(map(len, source.contents))} bytes"
    assert run(program, image, 64, 2, state) == f"epoch 0: {every}\nepoch 1: {every}\n"
    assert run(program, image, 64, 3, state) == f"epoch 2: {every}\n"
