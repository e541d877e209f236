"""README.md's tutorial, run as it stands, in one interpreter and an empty folder."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

from conftest import wait_until

README = pathlib.Path(__file__).resolve().parent.parent / "README.md"
NEEDS = ("torch", "PIL", "fsspec")


def blocks():
    text = README.read_text()
    return re.findall(r"^```(python|sh)\n(.*?)^```$", text, re.M | re.S)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_tutorial_runs_as_it_stands(tmp_path, monkeypatch):
    for package in NEEDS:
        pytest.importorskip(package, reason=f"{package} is not installed")
    assert len(blocks()) > 10
    monkeypatch.chdir(tmp_path)
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    port, names = str(free_port()), {"__name__": "__main__"}
    background = []
    try:
        for language, code in blocks():
            code = code.replace("4420", port)
            if language == "python":
                exec(compile(code, "README.md", "exec"), names)
            elif code.rstrip().endswith("&"):
                command = ["bash", "-c", "exec " + code.rstrip()[:-1]]
                background.append(subprocess.Popen(command, env={**os.environ, "PATH": path}))
                # A reader takes longer to the next block than a target to its port; a test does not.
                wait_until(lambda: accepts(int(port)), "the target's start")
            else:
                subprocess.run(
                    ["bash", "-ec", code], check=True, timeout=60, env={**os.environ, "PATH": path}
                )
    finally:
        for process in background:
            process.kill()
            process.wait()
