"""python -m dlfs: the command."""

import sys

from ._cli import main

sys.exit(main())
