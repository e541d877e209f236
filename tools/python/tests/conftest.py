"""Small data sets for the tests, created by the command that the wheel installs."""

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

import dlfs

SEED = 20261121
CLASSES = ("ant", "bee", "cat", "dog")
PER_CLASS = 100


def command(*arguments, **options):
    """Runs the command; returns its output."""
    run = subprocess.run(
        [sys.executable, "-m", "dlfs", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, **options,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


class Source:
    """A folder of class folders, and its files by id."""

    def __init__(self, root, length):
        print("seed", SEED)
        draw = random.Random(SEED)
        self.root, self.contents, self.names, self.labels = root, [], [], []
        for label, name in enumerate(CLASSES):
            os.makedirs(root / name)
            for i in range(PER_CLASS):
                file = f"{name}/{i:04d}.bin"
                data = draw.randbytes(length(draw))
                (root / file).write_bytes(data)
                self.contents.append(data)
                self.names.append(file)
                self.labels.append(label)

    def __len__(self):
        return len(self.contents)


# Programs that run beside this one begin elsewhere.
_ports = itertools.count(os.getpid() * 97)


def free_port(count=1):
    """The first of `count` free ports in sequence that nobody else gets: neither listeners on port 0 nor outgoing
    connections, whose ports the kernel takes from a range of its own."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        beyond = int(file.read().split()[0]) - count
    for start in itertools.islice(_ports, 0, 20_000 * count, count):
        first = 10_000 + start % max(beyond - 10_000, 1)
        with contextlib.suppress(OSError):
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
            return first
    raise AssertionError(f"no {count} free ports in sequence")


@contextlib.contextmanager
def target(image, port=0, *options):
    """Serves `image` over NVMe/TCP on loopback, with more `options`; yields the process and its address."""
    listen = f"127.0.0.1:{port}"
    child = subprocess.Popen(
        [sys.executable, "-m", "dlfs", "serve", str(image), "--json", "--listen", listen, *options],
        stdout=subprocess.PIPE, text=True,
    )
    try:
        yield child, json.loads(child.stdout.readline())["address"]
    finally:
        child.send_signal(signal.SIGCONT)
        child.kill()
        child.wait()


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """Samples of 0 to 9,000 bytes."""
    return Source(tmp_path_factory.mktemp("source") / "train", lambda draw: draw.randrange(9000))


@pytest.fixture(scope="session")
def image(source):
    """The image of `source`, with small chunks so that there are several."""
    path = source.root.parent / "train.dlfs"
    command("import", source.root, path, "--chunk-size", "64K", "--quiet")
    return str(path)


@pytest.fixture(scope="session")
def equal(tmp_path_factory):
    """Samples of 1,024 bytes, and their image."""
    source = Source(tmp_path_factory.mktemp("equal") / "train", lambda draw: 1024)
    path = source.root.parent / "equal.dlfs"
    command("import", source.root, path, "--chunk-size", "64K", "--quiet")
    return source, str(path)


@pytest.fixture(scope="session")
def served(image):
    """The address of `image` on a target of this machine."""
    with target(image) as (_, address):
        yield address


@pytest.fixture(params=["file", "tcp"])
def address(request, image):
    """The image, as a file and over NVMe/TCP."""
    return image if request.param == "file" else request.getfixturevalue("served")


def damaged(image, tmp_path, source, id):
    """A copy of the image with one damaged sample."""
    data = bytearray(open(image, "rb").read())
    at = data.find(source.contents[id])
    assert at > 0
    data[at] ^= 1
    (tmp_path / "damaged.dlfs").write_bytes(data)
    return tmp_path / "damaged.dlfs"


@pytest.fixture
def ds(image):
    with dlfs.open(image) as dataset:
        yield dataset


@pytest.fixture
def run_python(tmp_path):
    """Runs a separate program, which must end by itself; returns its output."""

    def run(text, *arguments, timeout=120, code=0):
        program = tmp_path / "program.py"
        program.write_text(text)
        child = subprocess.run(
            [sys.executable, str(program), *map(str, arguments)],
            capture_output=True, text=True, timeout=timeout,
        )
        assert child.returncode == code, f"exit {child.returncode}\n{child.stdout}\n{child.stderr}"
        return child.stdout

    return run


def wait_until(true, what, limit_s=120):
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"{what} did not happen within {limit_s} s"
        time.sleep(0.01)
