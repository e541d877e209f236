"""The interface of partial local shuffling: a training script under torchrun, and what it refuses."""

import random

import pytest

import dlfs
from conftest import command
from test_peers import torchrun

torch = pytest.importorskip("torch")

CLASSES, PER_CLASS, EPOCHS = ("ant", "bee", "cat", "dog"), 30, 4

# As a script for PLS is written; only the import differs. The first four bytes of a sample are its number.
SCRIPT = """
import json, os, sys
import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import dlfs.pls as PLS

def decode(content):
    number = int.from_bytes(content[:4], "little")
    return number, torch.tensor(list(content[4:20]), dtype=torch.float32) / 255

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(1)
dataset = PLS.ImageFolder(sys.argv[1], sys.argv[2], None, loader=decode)
sampler = {"own": PLS.DistributedSampler, "torch": DistributedSampler}[sys.argv[3]](dataset)
scheduler = PLS.Scheduler(dataset, batch_size=5, fraction=0.4, seed=3)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
seen, losses = [], []
for epoch in range(4):
    if sys.argv[4] == "told":
        sampler.set_epoch(epoch)
    scheduler.scheduling(epoch)
    seen.append([])
    for (numbers, pixels), labels in DataLoader(dataset, batch_size=5, sampler=sampler):
        loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        send, recv = scheduler.communicate()
        scheduler.synchronize(send, recv)
        seen[-1] += numbers.tolist()
        losses.append(loss.item())
    scheduler.clean_local_storage()
line = {"seen": seen, "first": losses[0], "last": sum(losses[-4:]) / 4, **scheduler.stats()}
os.write(1, (json.dumps(line) + "\\n").encode())
torch.distributed.barrier()
scheduler.close()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Class folders whose classes differ, and the classes in another order than the folders."""
    root = tmp_path_factory.mktemp("pls")
    draw = random.Random(19)
    for label, name in enumerate(CLASSES):
        (root / "source" / name).mkdir(parents=True)
        for nth in range(PER_CLASS):
            number = label * PER_CLASS + nth
            pixels = bytes((200 if at % 4 == label else 40) + draw.randrange(50) for at in range(16))
            content = number.to_bytes(4, "little") + pixels + draw.randbytes(3000)
            (root / "source" / name / f"{nth:03}").write_bytes(content)
    (root / "classes.txt").write_text("dog\ncat\nbee\nant\n")
    return root


@pytest.mark.parametrize(
    ("ranks", "sampler", "told"), [(2, "own", "told"), (4, "own", "untold"), (2, "torch", "untold"), (2, "torch", "told")]
)
def test_a_script_for_pls_trains_under_torchrun_by_changing_its_import(folder, tmp_path, ranks, sampler, told):
    program = tmp_path / "train.py"
    program.write_text(SCRIPT)
    # The first run imports the folder; the others find the image.
    lines = torchrun(program, ranks, str(folder / "source"), str(folder / "classes.txt"), sampler, told)
    assert len(lines) == ranks
    for epoch in range(EPOCHS):
        numbers = sorted(number for line in lines for number in line["seen"][epoch])
        assert numbers == list(range(PER_CLASS * len(CLASSES))), f"epoch {epoch}: each sample once"
    for line in lines:
        assert line["staged"] == PER_CLASS * len(CLASSES) // ranks and line["received"] > 0
        assert line["mismatched"] == 0
        assert line["last"] < line["first"] / 2, "it learns"
        assert set(line["seen"][0]) != set(line["seen"][3]), "shares change"


def test_labels_are_lines_of_the_class_file_and_other_reading_is_refused(folder):
    image = folder / "one.dlfs"
    command("import", folder / "source", image, "--quiet")
    import dlfs.pls

    data = dlfs.pls.ImageFolder(image, folder / "classes.txt", loader=lambda content: content[:4])
    with pytest.raises(dlfs.InvalidArgument, match="Scheduler"):
        data[0]
    scheduler = dlfs.pls.Scheduler(data, batch_size=7, fraction=0.5)
    sampler = dlfs.pls.DistributedSampler(data)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        scheduler.scheduling(epoch)
        for index in sampler:
            number, label = data[index]
            assert label == 3 - int.from_bytes(number, "little") // PER_CLASS
        scheduler.clean_local_storage()
    scheduler.scheduling(2)
    data[5]
    with pytest.raises(dlfs.Unsupported, match="num_workers=0"):
        data[5]
    with pytest.raises(dlfs.InvalidArgument, match="lacks ant"):
        (folder / "few.txt").write_text("dog\ncat\nbee\n")
        dlfs.pls.ImageFolder(image, folder / "few.txt")
    with pytest.raises(dlfs.InvalidArgument, match="rank 0 of 1"):
        dlfs.pls.DistributedSampler(data, num_replicas=2, rank=1)
    scheduler.close()


def test_shares_that_differ_by_one_are_read_whole_whichever_sampler_gives_the_indices(folder, tmp_path):
    (tmp_path / "odd" / "ant").mkdir(parents=True)
    for number in range(7):
        (tmp_path / "odd" / "ant" / f"{number}").write_bytes(bytes([number, *bytes(19)]))
    program = tmp_path / "odd.py"
    program.write_text(SCRIPT)
    classes = str(folder / "classes.txt")
    for sampler, at_least in [("own", 6), ("torch", 7)]:
        lines = torchrun(program, 2, str(tmp_path / "odd"), classes, sampler, "untold")
        for epoch in range(EPOCHS):
            seen = [number for line in lines for number in line["seen"][epoch]]
            assert len(set(seen)) >= at_least, f"{sampler}, epoch {epoch}: {seen}"
            assert len({len(line["seen"][epoch]) for line in lines}) == 1, "all ranks take as many steps"
