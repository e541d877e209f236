"""What benches need of a machine, and what this one lacks of it."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path.home() / ".cache"
# Environments of Python that benches take: that of benches/peers/install.sh, else that of tools/check --all.
PEERS, CHECKS = CACHE / "dlfs-peers/venv/bin", CACHE / "dlfs-check/python/bin"
PYTHON = next((path for path in (PEERS, CHECKS) if (path / "python").exists()), None)
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
NAMES = {
    "processors": "{} processors", "disk": "{} GiB of disk", "spdk": "SPDK (SPDK_DIR)", "gpu": "a GPU",
    "peers": "the other loaders (benches/peers/install.sh)", "qemu": "QEMU (tools/check --setup)",
    "network": "a registry of Python packages", "reno": "root, to leave BBR",
}


def lacks(needs):
    """What is needed and missing, and what is missing where a `?` says that a bench runs without it."""
    missing, without = [], []
    for need in needs.split():
        if why := lack(*need.rstrip("?").partition("=")[::2]):
            (without if need.endswith("?") else missing).append(why)
    return missing, without


def lack(what, value):
    """Why the machine has not what is needed; empty if it has. What is no name below is a program."""
    if what == "python":
        return modules(value.split(","))
    has = {
        "processors": lambda: len(os.sched_getaffinity(0)) >= int(value),
        "disk": lambda: shutil.disk_usage(ROOT).free >= int(value) << 30,
        "root": lambda: os.geteuid() == 0,
        "reno": lambda: not is_paced() or os.geteuid() == 0,
        "spdk": lambda: Path(os.environ.get("SPDK_DIR", "/nowhere")).is_dir(),
        "gpu": lambda: Path("/dev/nvidia0").exists(),
        "fuse": lambda: Path("/dev/fuse").exists(),
        "peers": lambda: PYTHON == PEERS,
        "network": has_network,
        "qemu": lambda: find("qemu-system-x86_64") and find("mke2fs"),
    }
    return "" if has.get(what, lambda: find(what))() else NAMES.get(what, what).format(value)


def is_paced():
    """Whether the system's congestion control halves the throughput of loopback, as BBR does."""
    return "bbr" in CONGESTION.read_text()


def modules(names):
    """The modules that Python's environment lacks."""
    if PYTHON is None:
        return "an environment of Python (benches/peers/install.sh)"
    ask = "import importlib.util as u, sys; print(*(name for name in sys.argv[1:] if not u.find_spec(name)))"
    asked = subprocess.run([PYTHON / "python", "-c", ask, *names], capture_output=True, text=True)
    missing = asked.stdout.strip() if asked.returncode == 0 else " ".join(names)
    return f"modules of Python: {missing}" if missing else ""


def find(program):
    """A program, also where only root's path leads."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def has_network():
    """Whether packages can be installed, or DLIO's are."""
    if (CACHE / "dlfs-dlio/venv/done").exists():
        return True
    with tempfile.TemporaryDirectory() as folder:
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "wheel"]
        try:
            return subprocess.run(fetch, capture_output=True, timeout=60).returncode == 0
        except subprocess.TimeoutExpired:
            return False
