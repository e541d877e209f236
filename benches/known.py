"""The benches that benches/all knows: their commands, what --quick gives them, minutes, and what they need."""

import os
from dataclasses import dataclass
from pathlib import Path

import bars
import results
import tables

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
SCRATCH = TARGET / "benches"
IMAGE = SCRATCH / "image.dlfs"
SIDE = "cargo side_by_side --features unverified"
FEW = "--peers null,dlfs-grouped --profiles small --scale 0.02 --repeats 1 --workers 0 --cold-workers 0"
# Name, and behind a dot a part of it; command; its arguments; those of --quick; minutes; needs as benches/needs.py
# knows them, with "?" where a bench runs without.
BENCHES = [
    ("side_by_side", SIDE, "", "--quick", 30, "processors=2 reno spdk? fio?"),
    ("side_by_side.scaling", SIDE, "--scaling", "--scaling --quick", 5, "processors=2 reno"),
    ("side_by_side.accounting", SIDE, "--accounting", "--accounting --quick", 5, "processors=2 reno"),
    ("side_by_side.backing-off", SIDE, "--backing-off", "--backing-off --quick", 5, "processors=2 reno"),
    ("spdk_engine", "cargo spdk_engine --features spdk", "6 1", "1 1", 12, "processors=2 reno spdk"),
    ("peers", "python benches/peers/bench_peers.py --out {scratch}/peers.json",
     "--profiles small,imagenet,mixed", FEW, 300, "root disk=15 peers"),
    ("overhead", "python benches/peers/overhead.py {image}", "", "", 4, "python=numpy"),
    ("headline", "benches/headline", "", "--sizes 4096", 20, "qemu"),
    ("doors", "cargo doors", "", "--only small --rounds 1 --files 200", 30,
     "root fuse disk=10 python=torchvision? qemu? squashfuse_ll?"),
    ("nodes", "cargo nodes", "", "--rows reads --samples 240", 60, "root ip tc"),
    ("node", "cargo node", "", "--small 2000 --large 100 --rounds 1", 8, ""),
    ("node_loader", "cargo node_loader", "",
     "--small 2000 --large 100 --small-epochs 2 --large-epochs 2 --ranks 4 --rounds 1", 10, ""),
    ("store", "cargo store", "", "", 4, ""),
    ("large", "benches/large --dlfs {dlfs}", "--samples 1,3,10", "--samples 0.01", 20, "disk=12"),
    ("places", "cargo places --features cloud", "", "--bytes 64M --rounds 1", 10, "curl disk=6"),
    ("rows", "python benches/rows.py {scratch} --dlfs {dlfs}", "", "--bytes 134217728 --rounds 1", 6,
     "python=pyarrow disk=3"),
    ("mixtures", "cargo mixtures", "", "--lens 4096 --rounds 1 --epochs 1", 15, "processors=2"),
    ("auth", "cargo auth", "", "--verdicts 10000 --connects 5", 4, ""),
    ("dlio", "benches/dlio/run --dlfs {dlfs}", "--workloads unet3d,resnet50,cosmoflow,retinanet",
     "--workloads resnet50 --doors image --seconds 5 --minutes 1", 480, "processors=2 root network disk=80"),
    ("tokens", "cargo tokens", "", "--corpus 4000000 --documents 100000 --rounds 1 --plans 1", 30, "disk=12"),
    ("tokens_peers", "python benches/tokens_peers.py", "", "--rounds 1 --seconds 0.2 --corpus 4000000", 40,
     "python=torch,numpy disk=3"),
    ("scale", "cargo scale", "", "--data 64M --rounds 1 --slice-ms 100", 20, "processors=8"),
    ("trust", "benches/trust --program {dlfs}", "", "--quick", 12, "openssl?"),
    ("shards", "python benches/shards.py", "", "--rows tar,nodes --shards 20 --epoch 20 --real 40", 25,
     "python=numpy,webdataset,pyarrow curl disk=10"),
    ("tiers", "cargo tiers", "", "", 3, ""),
    ("many_namespaces", "cargo many_namespaces", "", "--lens 4096 --rounds 1 --epochs 1", 15, "processors=2"),
    ("import_remote", "cargo import_remote", "", "--bytes 16M --rounds 1", 8, "processors=2"),
    ("import_vs_tar", "cargo import_vs_tar", "", "1000 4096 1", 6, ""),
    ("directory", "cargo directory", "", "--samples 10000 --open 10000 --files 1000 --rounds 1", 10, ""),
    ("read_memory", "cargo read_memory", "", "--samples 1000", 3, ""),
    ("ranges", "cargo ranges", "", "--mib 4 --long-mib 16 --reads 20", 3, ""),
    ("order", "cargo order", "", "", 3, ""),
    ("plan", "cargo plan", "", "100000 3 4", 6, ""),
    ("counting", "cargo counting", "", "1000000", 1, ""),
    ("engines", "cargo engines", "", "--size 16M --rounds 1", 3, ""),
    ("open_read_close", "cargo open_read_close", "", "--files 1000 --rounds 1", 3, ""),
    ("measured", "cargo measured -p dlfs-sim", "", "bound", 6, ""),
    ("layer", "cargo layer -p dlfs-capi", "", "", 2, ""),
    ("images", "python benches/images.py", "", "--samples 256 --rounds 1", 6, "python=torchvision,PIL"),
    ("overlap", "python benches/overlap.py", "", "--seconds 1 --rounds 1", 6, "python=torch,PIL"),
    ("writers", "python benches/writers.py {scratch}", "", "--bytes 16777216 --rounds 1", 8, "python=numpy disk=3"),
    ("parts", "python benches/parts.py shaped {scratch}", "", "--seconds 1 --rounds 1", 3, "python=numpy"),
    ("worker_bytes", "python benches/worker_bytes.py", "", "--batches 64 --workers 3", 6, "python=torch"),
    ("spawned_workers", "python benches/spawned_workers.py {image}", "", "--workers 2", 2, "python=torch"),
    ("accuracy", "python benches/accuracy/train.py {dlfs} {scratch}", "", "", 15, "python=numpy,sklearn,matplotlib"),
    ("bench", "python3 tools/bench/compare.py {bench} {scratch}/file", "--runtime 1 --rounds 5",
     "--runtime 1 --rounds 1 --size 16m", 5, "fio disk=1"),
    ("gpu", "python benches/gpu", "", "--seconds 0.2 --samples 512", 8, "gpu python=torch,torchvision"),
]
# These print alone: their sections are added here.
PRINTED = ("overhead", "rows", "writers", "parts", "worker_bytes", "spawned_workers", "accuracy", "bench")
# What is built for words of a command.
PROGRAM = "-p dlfs-cli --bin dlfs --features full"
BUILDS = {
    "{dlfs}": PROGRAM, "{image}": PROGRAM, "measured": PROGRAM, "python": "-p dlfs-python", "nodes": "-p dlfs-sim",
    "{bench}": "-p dlfs-bench", "doors": "-p dlfs-cli -p dlfs-preload --features dlfs-cli/full",
}


@dataclass
class Bench:
    name: str
    run: str
    arguments: str
    quick: str
    minutes: int
    needs: str
    profile: str = "dist"

    @property
    def results(self):
        return bars.RESULTS / f"{self.name.partition('.')[0]}.md"

    def command(self):
        """The words of the command; places are relative, since results name no place of one machine."""
        built = TARGET / self.profile
        places = {"dlfs": built / "dlfs", "bench": built / "dlfs-bench", "scratch": SCRATCH, "image": IMAGE}
        program, *more = self.run.format(**places).split()
        arguments = self.arguments.split()
        if program != "cargo":
            return [program, *more, *arguments]
        cargo = ["cargo", "bench", "--locked", "--profile", self.profile, *more[1:], "--bench", more[0]]
        return [*cargo, "--", *arguments] if arguments else cargo

    def sections(self):
        return tables.sections(self.results.read_text() if self.results.exists() else "")[1]

    def is_kept(self):
        """Whether results have a section of this command, commit and machine."""
        here, words = results.machine().rsplit(", ", 2)[0], list(map(str, self.command()))
        return any(
            tables.hardware(section) == here and own(line.split()) == own(words)
            and (words[0] != "cargo" or f"--profile {self.profile} " in line)
            for section in self.sections() if is_ours(section) for line in section.commands
        )


def is_ours(section):
    """Whether a section is of the commit as it is checked out, without changes."""
    return section.title.endswith(f"commit {results.commit()}") and "changes" not in section.title


def own(words):
    """A command's words from the name of the bench on."""
    starts = [at for at, word in enumerate(words) if word == "--bench" or word.startswith(("benches/", "tools/bench/"))]
    return words[starts[0]:] if starts else None
