"""Passes over a folder by torchvision's ImageFolder with a loader that returns bytes, in shuffled order.

  image_folder.py FOLDER MODE

Says what reads, then for each line of input (a seed) makes a pass and says its files a second. MODE: `read`;
`drop` takes each file's pages out of the kernel's cache before the pass; `loop` makes, of bytes in memory, a memfd for
each, writes, seals, reads and closes it.
"""

import fcntl
import os
import random
import sys
import time

folder, mode = sys.argv[1:]


def read(path):
    with open(path, "rb") as file:
        return file.read()


try:
    from torchvision.datasets import ImageFolder

    files = ImageFolder(folder, loader=read, is_valid_file=lambda path: True)
    kind = "torchvision's ImageFolder"
except ImportError:

    class Files:
        """What ImageFolder does: the files of each class folder in order, with the class."""

        def __init__(self, root):
            classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
            self.samples = []
            for target, name in enumerate(classes):
                for top, _, names in sorted(os.walk(os.path.join(root, name), followlinks=True)):
                    self.samples += [(os.path.join(top, name), target) for name in sorted(names)]

        def __getitem__(self, index):
            path, target = self.samples[index]
            return read(path), target

        def __len__(self):
            return len(self.samples)

    files = Files(folder)
    kind = "a class that does what torchvision's ImageFolder does, which is not installed"


def through_memory(data):
    fd = os.memfd_create("loop", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.pwrite(fd, data, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    with open(fd, "rb") as file:
        return file.read()


if mode == "loop":
    held = [files[index] for index in range(len(files))]
    take = lambda index: (through_memory(held[index][0]), held[index][1])
else:
    take = files.__getitem__
print(kind, flush=True)
for line in sys.stdin:
    order = list(range(len(files)))
    random.Random(int(line)).shuffle(order)
    if mode == "drop":
        for path, _ in files.samples:
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
    began = time.perf_counter()
    total = 0
    for index in order:
        total += len(take(index)[0])
    seconds = time.perf_counter() - began
    assert total > 0
    print(len(order) / seconds, flush=True)
