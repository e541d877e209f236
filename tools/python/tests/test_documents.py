"""Runs the Python and shell blocks of the documents unchanged: in order, in one interpreter and one folder."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

from conftest import free_port, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[3]
# tests/tidy/documents.rs has the same list, without the package's page.
DOCUMENTS = ["tools/python/README.md", "README.md", "docs/tutorial.md", "docs/training.md"]
NEEDS = ("torch", "PIL", "fsspec")


def blocks(document):
    """(language, code) of each block, except those after a comment that says why they are not run."""
    text = (ROOT / document).read_text()
    found = re.findall(r"^(<!-- not run: [^\n]* -->\n)?```(python|sh)\n(.*?)^```$", text, re.M | re.S)
    return [(language, code) for excused, language, code in found if not excused]


def accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def make_pictures(folder):
    for name in ("dark", "light"):
        (folder / "pictures" / name).mkdir(parents=True)
        for index in range(150):
            (folder / "pictures" / name / f"{index:03}.png").write_bytes(bytes([index]) * (500 + 37 * index))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_document_runs_as_it_stands(document, tmp_path, monkeypatch):
    for package in NEEDS:
        pytest.importorskip(package, reason=f"{package} is not installed")
    assert len(blocks(document)) >= 2
    monkeypatch.chdir(tmp_path)
    if not document.startswith("tools"):  # the package's page makes its own
        make_pictures(tmp_path)
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    environment = {**os.environ, "PATH": path}
    port, names = str(free_port()), {"__name__": "__main__"}
    background = []
    try:
        for language, code in blocks(document):
            code = code.replace("4420", port)
            if language == "python":
                exec(compile(code, document, "exec"), names)
                continue
            lines = []
            for line in code.splitlines():
                if not line.endswith("&"):
                    lines.append(line)
                    continue
                shell(lines, environment)
                lines = []
                background.append(subprocess.Popen(["bash", "-c", f"exec {line[:-1]}"], env=environment))
                # A reader takes longer than a target takes to listen; a test does not.
                wait_until(lambda: accepts(int(port)), "the target's start")
            shell(lines, environment)
    finally:
        for process in background:
            process.kill()
            process.wait()


def shell(lines, environment):
    subprocess.run(["bash", "-ec", "\n".join(lines)], check=True, timeout=120, env=environment)
