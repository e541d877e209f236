"""The interface of HDMLP (NoPFS): a training script under torchrun, alone, and what it refuses."""

import io
import itertools
import random

import pytest

import dlfs
import dlfs.hdmlp as hdmlp
from conftest import command
from test_peers import torchrun

CLASSES, PER_CLASS, EPOCHS = ("ant", "bee", "cat", "dog"), 24, 3

CONFIGURATION = """
b_c = 10000;
b_fs = 2000;
distributed_threads = 2;
storage_classes: (
  { capacity: 16; threads: 2; bandwidth: ({ threads = 1; bw = 16550; }, { threads = 2; bw = 21164; }); },
  { capacity: 64; threads: 2; backend: "memory"; bandwidth: ({ threads = 1; bw = 16550; }, { threads = 2; bw = 21164; }); }
);
pfs_bandwidth: ( { processes: 1; bw: 66; }, { processes: 2; bw: 86; } );
"""

# As a script for HDMLP is written; only the import differs. The first four bytes of a sample are its number.
SCRIPT = """
import json, os, sys
import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

import dlfs.hdmlp as hdmlp

def decode(content):
    return torch.tensor([float(int.from_bytes(content[:4], "little")), *(byte / 255 for byte in content[4:20])])

torch.distributed.init_process_group("gloo")
job = hdmlp.Job(sys.argv[1], 16, 3, "uniform", False, None, None, sys.argv[2])
dataset = hdmlp.lib.torch.HDMLPDatasetFolder(sys.argv[1], job, decode)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
loader = hdmlp.lib.torch.HDMLPThreadedDataLoader(dataset)
seen = []
for epoch in range(3):
    seen.append([])
    for samples, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(samples[:, 1:]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen[-1] += [[int(number), int(label)] for number, label in zip(samples[:, 0], labels)]
places = {place["place"]: place["bytes"] for place in job.stats()["places"]["places"]}
line = {"seen": seen, "steps": len(loader), "node": job.get_node_id(), "places": places}
os.write(1, (json.dumps(line) + "\\n").encode())
torch.distributed.barrier()
job.destroy()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("hdmlp")
    draw = random.Random(23)
    for label, name in enumerate(CLASSES):
        (root / "source" / name).mkdir(parents=True)
        for nth in range(PER_CLASS):
            content = (label * PER_CLASS + nth).to_bytes(4, "little") + draw.randbytes(3000)
            (root / "source" / name / f"{nth:03}").write_bytes(content)
    (root / "hdmlp.cfg").write_text(CONFIGURATION)
    return root


def numbers(pairs):
    return sorted(number for number, _ in pairs)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_script_for_hdmlp_trains_under_torchrun_by_changing_its_import(folder, tmp_path, ranks):
    pytest.importorskip("torch")
    program = tmp_path / "train.py"
    program.write_text(SCRIPT)
    lines = torchrun(program, ranks, str(folder / "source"), str(folder / "hdmlp.cfg"))
    assert sorted(line["node"] for line in lines) == list(range(ranks))
    for epoch in range(EPOCHS):
        pairs = [pair for line in lines for pair in line["seen"][epoch]]
        assert numbers(pairs) == list(range(PER_CLASS * len(CLASSES))), f"epoch {epoch}: each sample once"
        assert all(number // PER_CLASS == label for number, label in pairs), "classes are sorted folders"
    assert lines[0]["steps"] == PER_CLASS * len(CLASSES) // 16
    assert lines[0]["seen"][0] != lines[0]["seen"][1], "each epoch is shuffled anew"
    origin = sum(line["places"].get("origin", 0) for line in lines)
    assert origin < 3004 * PER_CLASS * len(CLASSES) * EPOCHS, "tiers gave what was read again"


def test_samples_come_one_by_one_in_slices_and_to_the_end_of_the_last_epoch(folder):
    job = hdmlp.Job(folder / "source", 10, 2, "uniform", True, seed=5)
    label, content = job.get()
    assert CLASSES.index(label) == int.from_bytes(content[:4], "little") // PER_CLASS
    labels, contents = job.get(4)
    assert len(labels) == len(contents) == 4 and job.length() == len(CLASSES) * PER_CLASS
    dataset = hdmlp.HDMLPDatasetFolder(folder / "source", job, lambda content: content[:4], lambda index: -index)
    loader = hdmlp.HDMLPDataLoader(dataset, collate_fn=list)
    first, *rest = list(loader)
    assert len(first) == 5 and [len(batch) for batch in rest] == [10] * 8, "the batch goes on, a short one is dropped"
    samples, targets = dataset[0:7]
    assert [-(int.from_bytes(sample, "little") // PER_CLASS) for sample in samples] == targets
    assert len(list(loader)) == 9 and list(loader) == [] and len(loader) == 9
    with pytest.raises(IndexError, match="all 2 epochs"):
        job.get()
    job.destroy()


def test_a_loop_that_leaves_with_the_last_batch_has_had_the_epoch(folder):
    job = hdmlp.Job(folder / "source", 10, 3, "uniform", True, seed=5)
    dataset = hdmlp.HDMLPDatasetFolder(folder / "source", job, lambda content: int.from_bytes(content[:4], "little"))
    loader = hdmlp.HDMLPDataLoader(dataset, collate_fn=lambda pairs: [number for number, _ in pairs])
    epochs = [[number for batch in itertools.islice(loader, len(loader)) for number in batch] for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [90, 90] and epochs[0] != epochs[1]
    for _ in range(8):
        job.get(10)
    job.get(4)
    assert [len(batch) for batch in loader] == [6], "the rest of the last epoch"
    assert list(loader) == []
    job.destroy()


def test_a_sample_without_a_label_has_the_class_index_minus_one(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.bin").write_bytes(bytes([i]))
    (tmp_path / "list.txt").write_text("0.bin\t5\n1.bin\n2.bin\t7\n")
    command("import", "--from", "list", tmp_path / "list.txt", tmp_path / "i.dlfs", "--quiet")
    job = hdmlp.Job(tmp_path / "i.dlfs", 3, 2, "uniform", False, seed=1)
    labels, contents = job.get(3)
    assert sorted(zip(contents, labels)) == [(b"\0", "5"), (b"\1", ""), (b"\2", "7")]
    samples, targets = hdmlp.HDMLPDatasetFolder(tmp_path, job)[0:3]
    assert sorted(zip(samples, targets)) == [(b"\0", 5), (b"\1", -1), (b"\2", 7)]
    job.destroy()


def test_transforms_of_the_job_decode_and_arrange_images(tmp_path):
    pil = pytest.importorskip("PIL.Image")
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    for name, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
        (tmp_path / name).mkdir()
        content = io.BytesIO()
        pil.new("RGB", (40, 20), colour).save(content, "PNG")
        (tmp_path / name / "0.png").write_bytes(content.getvalue())
    of = hdmlp.lib.transforms
    steps = [of.ImgDecode(), of.Resize(8, 6), of.CenterCrop(4, 2), of.ToTensor(), of.Normalize([0.5] * 3, [0.5] * 3)]
    for transforms, shape in ((steps, (2, 3, 2, 4)), (None, (2, 3, 20, 40))):
        job = hdmlp.Job(tmp_path, 2, 1, "uniform", False, transforms, seed=1)
        dataset = hdmlp.HDMLPImageFolder(tmp_path, job, None if transforms else of.ToTensor())
        (images, labels), = hdmlp.HDMLPDataLoader(dataset)
        assert images.shape == shape and sorted(labels.tolist()) == [0, 1]
        channel = [2, 0]
        for image, label in zip(images, labels):
            assert torch.all(image[channel[label]] == 1), "blue is class 0, red is class 1"
        job.destroy()


def test_what_cannot_be_is_refused(folder, monkeypatch):
    with pytest.raises(dlfs.InvalidArgument, match="uniform, not whole"):
        hdmlp.Job(folder / "source", 8, 1, "whole", True)
    with pytest.raises(dlfs.InvalidArgument, match="import the data from hdf5"):
        hdmlp.Job(folder / "source", 8, 1, "uniform", True, filesystem_backend="hdf5")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(dlfs.InvalidArgument, match="3 ranks cannot share batches of 8"):
        hdmlp.Job(folder / "source", 8, 1, "uniform", True)
