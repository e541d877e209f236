"""Reads all files of a folder in pieces, an epoch for each line of input (its number), and says the seconds it took.

  records.py FOLDER PIECE_BYTES
"""

import os
import sys
import time

folder, piece = sys.argv[1], int(sys.argv[2])
paths = sorted(entry.path for entry in os.scandir(folder) if entry.is_file())
for line in sys.stdin:
    began = time.perf_counter()
    for at in range(len(paths)):
        fd = os.open(paths[(at * 7 + int(line)) % len(paths)], os.O_RDONLY)
        while os.read(fd, piece):
            pass
        os.close(fd)
    print(time.perf_counter() - began, flush=True)
