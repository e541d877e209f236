"""The command `dlfs`, which the wheel installs."""

import sys

from . import _dlfs


def main() -> int:
    return _dlfs.main(["dlfs", *sys.argv[1:]])
