#!/usr/bin/env python3
"""Installs the package around a module that cargo has built, as its wheel would, without building anything.

    install.py target/debug/lib_dlfs.so VENV/bin/python
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def main():
    module, python = map(Path, sys.argv[1:])
    where = "import sysconfig; print(sysconfig.get_path('platlib'))"
    site = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout
    site = Path(site.strip())
    for old in [site / "dlfs", *site.glob("dlfs_loader-*")]:
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(PACKAGE / "python" / "dlfs", site / "dlfs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(module, site / "dlfs" / "_dlfs.abi3.so")
    describe(site)
    program = python.parent / "dlfs"
    program.write_text(f"#!{python}\nimport sys\nfrom dlfs._cli import main\nsys.exit(main())\n")
    os.chmod(program, 0o755)


def describe(site):
    """What `importlib.metadata` knows of an installed package."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    cargo = tomllib.loads((PACKAGE / "../../Cargo.toml").read_text())
    name, version = project["name"], cargo["workspace"]["package"]["version"]
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = project["entry-points"].items()
    lines = [line for group, entries in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (info / "RECORD").write_text("")


if __name__ == "__main__":
    main()
