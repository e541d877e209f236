"""A small real training: pictures in class folders, over NVMe/TCP, stopped and resumed."""

import io
import json
import random

import numpy as np
import pytest

import dlfs
from conftest import SEED, command, target

torch = pytest.importorskip("torch", reason="torch is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

import dlfs.torch  # noqa: E402

SIDE = 16
BATCH = 16
PER_CLASS = 80


def picture(draw, label):
    """A bright bar on noise: vertical, horizontal, or on one of the two diagonals."""
    at = draw.randrange(3, SIDE - 3)
    pixels = np.frombuffer(draw.randbytes(SIDE * SIDE), dtype=np.uint8).reshape(SIDE, SIDE) // 3
    pixels = pixels.copy()
    for i in range(SIDE):
        row, column = [(i, at), (at, i), (i, i), (i, SIDE - 1 - i)][label]
        pixels[row, column] = 255
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def decode(batch):
    """Typical user code: Pillow decodes each view, numpy stacks them."""
    pictures = np.stack([np.asarray(Image.open(io.BytesIO(view))) for view in batch])
    tensor = torch.from_numpy(pictures).float().div(255).unsqueeze(1)
    return tensor, torch.tensor(batch.labels), batch.ids.tolist()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    print("seed", SEED)
    draw = random.Random(SEED)
    root = tmp_path_factory.mktemp("pictures")
    for label, name in enumerate(("upright", "lying", "falling", "rising")):
        (root / "src" / name).mkdir(parents=True)
        for i in range(PER_CLASS):
            (root / "src" / name / f"{i:03d}.png").write_bytes(picture(draw, label))
    command("import", root / "src", root / "i.dlfs", "--chunk-size", "64K", "--quiet")
    with target(root / "i.dlfs") as (_, address):
        yield address


def network():
    torch.manual_seed(SEED)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveMaxPool2d(4),
        torch.nn.Flatten(), torch.nn.Linear(256, 4),
    )


def train(model, optimiser, batches, seen, losses, limit=None):
    """One epoch, or `limit` batches of it."""
    for count, (inputs, labels, ids) in enumerate(batches):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        seen += ids
        if count + 1 == limit:
            return


def make(pictures):
    ds = dlfs.open(pictures)
    data = dlfs.torch.IterableDataset(ds, BATCH, seed=SEED, transform=decode)
    return ds, data, torch.utils.data.DataLoader(data, batch_size=None)


def test_a_network_learns_stops_in_the_middle_and_goes_on_exactly_once(pictures, tmp_path):
    model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    ds, data, loader = make(pictures)
    total = len(ds)
    losses, first, second = [], [], []
    train(model, optimiser, loader, first, losses)
    assert sorted(first) == list(range(total))
    train(model, optimiser, loader, second, losses, limit=6)
    checkpoint = {
        "model": model.state_dict(), "optimiser": optimiser.state_dict(),
        "data": json.dumps(data.state_dict()),
    }
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    ds.close()
    del model, optimiser, ds, data, loader

    checkpoint = torch.load(tmp_path / "checkpoint.pt")
    model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    model.load_state_dict(checkpoint["model"])
    optimiser.load_state_dict(checkpoint["optimiser"])
    ds, data, loader = make(pictures)
    data.load_state_dict(json.loads(checkpoint["data"]))
    assert len(second) == 6 * BATCH
    train(model, optimiser, loader, second, losses)
    assert sorted(second) == list(range(total)), "each sample of the epoch once, over both runs"
    assert second != first
    per_epoch = -(-total // BATCH)
    assert len(losses) == 2 * per_epoch
    begin, end = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    assert end < 0.5 * begin, f"the loss went from {begin:.3f} to {end:.3f}"
    ds.close()
