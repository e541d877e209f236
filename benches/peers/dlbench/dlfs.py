"""dlfs: a local image and NVMe/TCP on loopback, each in global and grouped order.

Every byte is verified, as always.  The batch is what `dlfs.Loader` yields, its samples views of the memory
that was read.  `workers` means nothing here: one native thread reads, whatever it says.
"""
import json
import os
import subprocess
import sys

from .base import Peer, with_ids

# Outlives nobody: ends when the pipe from the loader's process does, and the target with it.
KEEPER = """
import os, subprocess, sys
if os.fork(): os._exit(0)
os.setsid()
target = subprocess.Popen([sys.executable, "-m", "dlfs", "serve", sys.argv[1], "--json",
                           "--listen", "127.0.0.1:0", "--direct", sys.argv[2]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
line = target.stdout.readline().decode().strip()
print(target.pid, line, flush=True)
os.close(1)
sys.stdin.read()
target.kill()
"""
TICK = os.sysconf("SC_CLK_TCK")


class _Dlfs(Peer):
    fmt = "dlfs"
    workers = (0,)
    worker_kind = "threads"
    order = "grouped"
    far = False

    @classmethod
    def prepare(cls, src_dir, out_dir):
        subprocess.run([sys.executable, "-m", "dlfs", "import", src_dir,
                        os.path.join(out_dir, "image.dlfs"), "--quiet"], check=True)

    def setup(self, batch_size, workers):
        import dlfs
        image = os.path.join(self.out, "image.dlfs")
        self.target, self.next_epoch = None, 0
        address = self.serve(image) if self.far else image
        # Warm is about the page cache, cold about the disk: as "auto" chooses for data larger than half of
        # the memory, which is not here.
        self.ds = dlfs.open(address, direct=self.direct())
        # The run's last epoch is the one that is measured, as other loaders too read no further than an epoch.
        epochs = 2 * (2 if self.mode == "warm" else 1) + 1
        self.loader = dlfs.Loader(self.ds, batch_size, self.order, seed=1, epochs=epochs)
        self.loader.prepare()

    def direct(self):
        return "on" if self.mode == "cold" else "off"

    def serve(self, image):
        """Starts a target that is no descendant of this process: its CPU time is shown apart."""
        self.keeper = subprocess.Popen([sys.executable, "-c", KEEPER, image, self.direct()], text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pid, line = self.keeper.stdout.readline().split(" ", 1)
        self.target = int(pid)
        return json.loads(line)["address"]

    def outside_cpu(self):
        if self.target is None:
            return 0.0
        with open(f"/proc/{self.target}/stat") as f:
            v = f.read().rsplit(")", 1)[1].split()
        return (int(v[11]) + int(v[12])) / TICK

    def epoch(self, seed, batch_size, workers):
        # Every other epoch: what was read ahead of this one while the harness checked the last is dropped,
        # so that no work is done outside the clock.
        self.next_epoch += 2
        self.loader.set_epoch(self.next_epoch)
        for batch in self.loader:
            yield with_ids(batch.tolist())

    def close(self):
        self.loader.close()
        if self.target is not None:
            self.keeper.stdin.close()


class LocalGrouped(_Dlfs):
    """Whole chunks, several mixed."""


class LocalGlobal(_Dlfs):
    """A full shuffle: one read a sample, neighbours merged."""
    order = "global"


class TcpGrouped(_Dlfs):
    """As LocalGrouped, from a target on this machine."""
    far = True


class TcpGlobal(_Dlfs):
    """As LocalGlobal, from a target on this machine."""
    far = True
    order = "global"
