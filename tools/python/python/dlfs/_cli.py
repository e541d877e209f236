"""The command `dlfs`, which the wheel installs."""

import signal
import sys

from . import _dlfs


def main() -> int:
    # The command ends by itself at Ctrl-C; where it is ignored, as by nohup, it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _dlfs.main(["dlfs", *sys.argv[1:]])
