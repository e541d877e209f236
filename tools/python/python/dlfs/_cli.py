"""The command `dlfs`, which the wheel installs."""

import signal
import sys

from . import _dlfs


def main() -> int:
    # Python's handler would only note Ctrl-C: the default action ends the command, unless the command handles SIGINT
    # itself. If SIGINT is ignored, as in background jobs of scripts, it stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _dlfs.main(["dlfs", *sys.argv[1:]])
