"""States that the first release wrote, of each kind of loader, and what such a loader reads next, over golden images.

golden/states.json has them. What is there never changes; with DLFS_BLESS=1, kinds that are new are added.
"""

import itertools
import json
import os
import pathlib

import pytest

import dlfs
import dlfs.tokens

GOLDEN = pathlib.Path(__file__).parent / "golden" / "states.json"
IMAGES = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"


def opened(folder, name):
    """A golden image of one namespace."""
    media = bytearray()
    for line in (IMAGES / f"{name}.hex").read_text().splitlines():
        offset, row = line.split(": ")
        media += bytes(int(offset, 16) - len(media))
        media += b"" if row == "end" else bytes.fromhex(row)
    (folder / name).write_bytes(media)
    return dlfs.open(folder / name)


def ids_of(batch):
    return batch.ids.tolist()


def forever(loader):
    """Batches through the epochs."""
    return itertools.chain.from_iterable(itertools.repeat(loader))


def samples(folder):
    loader = dlfs.Loader(opened(folder, "image-2-tight"), 5, "global", seed=11)
    return loader, (ids_of(batch) for batch in forever(loader))


def rows(folder):
    loader = dlfs.tokens.Loader(opened(folder, "image-2-tokens"), 8, 2, "global", seed=11)
    return loader, (batch.tokens.tolist() for batch in forever(loader))


def of_torch(workers):
    def begin(folder):
        pytest.importorskip("torch", reason="torch is not installed")
        import dlfs.torch

        ds = opened(folder, "image-2-tight")
        data = dlfs.torch.IterableDataset(ds, 3, order="global", seed=11, transform=ids_of)
        context = "fork" if workers else None
        loader = dlfs.torch.DataLoader(data, num_workers=workers, multiprocessing_context=context)
        return loader, forever(loader)

    return begin


def sampler(folder):
    pytest.importorskip("torch", reason="torch is not installed")
    import dlfs.torch

    sampler = dlfs.torch.BatchSampler(opened(folder, "image-2-tight"), 5, order="global", seed=11)
    return sampler, forever(sampler)


RUNS = {
    "Loader": samples,
    "tokens.Loader": rows,
    "torch.DataLoader without workers": of_torch(0),
    "torch.DataLoader with two workers": of_torch(2),
    "torch.BatchSampler": sampler,
}


@pytest.mark.parametrize("name", RUNS)
def test_a_state_of_the_first_release_goes_on_where_it_was(name, tmp_path):
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    (tmp_path / "first").mkdir()
    loader, batches = RUNS[name](tmp_path / "first")
    list(itertools.islice(batches, 3))
    made = json.loads(json.dumps({"state": loader.state_dict(), "next": None}))
    made["next"] = list(itertools.islice(batches, 2))
    if "DLFS_BLESS" in os.environ and name not in golden:
        golden[name] = made
        lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert made == golden[name], "today's state differs from that of the first release"
    (tmp_path / "again").mkdir()
    loader, batches = RUNS[name](tmp_path / "again")
    loader.load_state_dict(golden[name]["state"])
    assert list(itertools.islice(batches, 2)) == golden[name]["next"]
