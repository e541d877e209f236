"""Mixtures: what they read beside a model of it, states, workers, and what is refused."""

import collections
import pickle
import random

import numpy
import pytest

import dlfs
from conftest import command

SEED = 20261124
LENS = (120, 45, 7)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Samples of three data sets, by data set and id, and the images."""
    print("seed", SEED)
    draw, root = random.Random(SEED), tmp_path_factory.mktemp("mixture")
    contents, images = [], []
    for number, length in enumerate(LENS):
        folder = root / f"files{number}" / f"class{number}"
        folder.mkdir(parents=True)
        contents.append([draw.randbytes(draw.randrange(1, 3000)) for _ in range(length)])
        for i, data in enumerate(contents[-1]):
            (folder / f"{i:04}").write_bytes(data)
        images.append(root / f"set{number}.dlfs")
        command("import", folder.parent, images[-1], "--chunk-size", "64K", "--quiet")
    return contents, images


@pytest.fixture
def sets(files):
    opened = [dlfs.open(image) for image in files[1]]
    yield opened
    for dataset in opened:
        dataset.close()


def check(batch, contents):
    """The samples of a batch, as pairs of source and id; their bytes are right."""
    drawn = list(zip(batch.sources.tolist(), batch.ids.tolist()))
    assert [bytes(view) for view in batch] == [contents[source][id] for source, id in drawn]
    return drawn


@pytest.mark.parametrize("order", ["grouped", "global", "sequential"])
def test_an_epoch_has_exact_counts_and_each_batch_its_share(files, sets, order):
    mixture = dlfs.Mixture([(sets[0], 0.5), (sets[1], "0.3"), (sets[2], 0.2)], epoch_size=200)
    assert len(mixture) == 200 and mixture.counts() == [100, 60, 40]
    assert mixture.datasets == tuple(sets)
    with dlfs.Loader(mixture, 20, order, seed=3, epochs=2) as loader:
        assert len(loader) == 10 and loader.dataset is mixture
        for epoch in range(2):
            drawn = []
            for batch in loader:
                part = check(batch, files[0])
                drawn += part
                assert batch.epoch == epoch and (batch.labels == 0).all()
                for source, share in enumerate((10, 6, 4)):
                    assert abs(sum(one == source for one, _ in part) - share) <= 2
            counts = collections.Counter(source for source, _ in drawn)
            assert [counts[source] for source in range(3)] == [100, 60, 40]
            # 40 samples of 7: each five times, and five of them once more.
            times = collections.Counter(id for source, id in drawn if source == 2)
            assert sorted(times.values())[0] >= 5 and sum(times.values()) == 40


def test_repeat_and_choose_count_like_mosaicml(sets):
    mixture = dlfs.Mixture([(sets[0], dlfs.repeat(0.5)), (sets[1], dlfs.repeat(2)), (sets[2], dlfs.choose(30))])
    assert mixture.counts() == [60, 90, 30] and len(mixture) == 180


def test_a_small_float_is_a_weight_too(sets):
    """Of 0.0033333333333333335 the library takes 18 digits behind the point; it was refused."""
    parts = [(sets[0], 1 / 300), (sets[1], 299 / 300)]
    assert dlfs.Mixture(parts, epoch_size=3000).counts() == [10, 2990]
    phases = [(3000, [1 / 700, 699 / 700])]
    assert dlfs.Mixture(parts, epoch_size=3000, phases=phases).counts() == [10, 2990]
    with pytest.raises(dlfs.InvalidArgument, match="18 digits"):
        dlfs.Mixture([(sets[0], "0.0033333333333333335"), (sets[1], 1)], epoch_size=3000)


def test_a_loader_resumes_with_other_ranks_and_batches(files, sets):
    mixture = dlfs.Mixture([(sets[0], 1), (sets[1], 1), (sets[2], 1)], epoch_size=96)
    with dlfs.Loader(mixture, 12, seed=5, epochs=2) as loader:
        batches, whole, state = iter(loader), [], None
        for number, batch in enumerate(batches):
            whole += check(batch, files[0])
            if number == 2:
                state = loader.state_dict()
    assert state["consumed"] == 36 and len(state["mixture"]["sources"]) == 3
    parts = []
    for rank in range(3):
        with dlfs.Loader(mixture, 5, seed=5, epochs=2, rank=rank, world_size=3) as loader:
            loader.load_state_dict(state)
            parts.append([check(batch, files[0]) for batch in loader])
    for at, start in enumerate(range(36, 96, 15)):
        read = [drawn for part in parts for drawn in part[at]]
        assert sorted(read) == sorted(whole[start : start + 15])


def test_phases_change_the_weights(files, sets):
    phases = [(60, [0, 1, 0]), (90, ["0", 0.5, 0.5])]
    mixture = dlfs.Mixture([(sets[0], 1), (sets[1], 0), (sets[2], 0)], epoch_size=120, phases=phases)
    with dlfs.Loader(mixture, 30, seed=1, epochs=1) as loader:
        sources = [numpy.bincount(batch.sources, minlength=3).tolist() for batch in loader]
    assert sources == [[30, 0, 0], [30, 0, 0], [0, 30, 0], [0, 15, 15]]


def test_per_source_batches_are_of_one_data_set(sets):
    mixture = dlfs.Mixture([(sets[0], 2), (sets[1], 1), (sets[2], 1)], batching="per_source")
    with dlfs.Loader(mixture, 10, seed=1, epochs=1) as loader:
        counts = [set(batch.sources.tolist()) for batch in loader]
    assert len(counts) == sum(LENS) // 10 and all(len(one) == 1 for one in counts)
    dlfs.Mixture([(sets[0], 2), (sets[1], 1)], batching=("per_source", 32), epoch_size=64)


def test_a_mixture_and_its_loader_and_batches_are_pickled(files, sets):
    mixture = dlfs.Mixture([(sets[0], 0.25), (sets[2], 0.75)], epoch_size=40)
    loader = dlfs.Loader(mixture, 8, seed=2, epochs=1)
    batch = next(iter(loader))
    copy = pickle.loads(pickle.dumps(batch))
    assert copy.sources.tolist() == batch.sources.tolist() and copy.tobytes() == batch.tobytes()
    again = pickle.loads(pickle.dumps(loader))
    left = [(b.sources.tolist(), b.ids.tolist()) for b in again]
    rest = [(b.sources.tolist(), b.ids.tolist()) for b in loader]
    assert len(left) == 4 and left == rest[-4:], "it goes on after the batch that was taken"
    chosen = dlfs.Mixture([(sets[0], dlfs.repeat(1.5)), (sets[1], dlfs.choose(20))])
    assert len(pickle.loads(pickle.dumps(chosen))) == len(chosen) == 200
    assert sets[0].read_batch([0]).sources is None
    for opened in (again, loader):
        opened.close()


@pytest.mark.parametrize("order", ["grouped", "global"])
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_reads_each_sample_once_and_resumes(files, sets, order, workers):
    torch = pytest.importorskip("torch")
    import dlfs.torch

    mixture = dlfs.Mixture([(sets[0], 3), (sets[1], 2), (sets[2], 1)], epoch_size=120)

    def loader(workers):
        data = dlfs.torch.IterableDataset(mixture, 10, order, seed=4, epochs=2)
        return dlfs.torch.DataLoader(data, num_workers=workers, multiprocessing_context="fork" if workers else None)

    def drawn(batches):
        return [
            sorted(zip(torch.as_tensor(b.sources).tolist(), torch.as_tensor(b.ids).tolist())) for b in batches
        ]

    def flat(batches):
        return sorted(one for batch in batches for one in batch)

    alone = drawn(loader(0))
    first = loader(workers)
    batches, read = iter(first), []
    for _ in range(5):
        read.append(next(batches))
    state = first.state_dict()
    read = drawn(read)
    assert len(first) == 12 and flat(read) == flat(read + []) and len(alone) == 12
    for others in (0, 3):
        second = loader(others)
        second.load_state_dict(state)
        rest = drawn(second)
        assert flat(read + rest) == flat(alone), f"{workers} workers, then {others}"


def test_workers_keep_batches_of_one_data_set(sets):
    pytest.importorskip("torch")
    import dlfs.torch

    mixture = dlfs.Mixture([(sets[0], 2), (sets[1], 1)], batching="per_source", epoch_size=160)
    data = dlfs.torch.IterableDataset(mixture, 10, seed=4, epochs=1)
    for workers in (0, 2):
        loader = dlfs.torch.DataLoader(data, num_workers=workers, multiprocessing_context="fork" if workers else None)
        data.set_epoch(0)
        assert [len(set(batch.sources.tolist())) for batch in loader] == [1] * 16


def test_processes_of_one_data_rank_get_the_same_batches(files, sets):
    def read(**place):
        with dlfs.Loader(sets[0], 16, seed=6, epochs=1, **place) as loader:
            return [batch.ids.tolist() for batch in loader]

    whole = [read(data_rank=rank, data_world_size=2) for rank in range(2)]
    for rank in range(8):  # four processes for each data rank
        assert read(rank=rank, world_size=8, data_rank=rank // 4, data_world_size=2) == whole[rank // 4]
    assert whole == [read(rank=rank, world_size=2) for rank in range(2)]
    with pytest.raises(TypeError, match="together"):
        read(data_rank=1)
    with pytest.raises(dlfs.InvalidArgument, match="no data rank 2 of 2"):
        read(data_rank=2, data_world_size=2)


class Mesh:
    """As torch's DeviceMesh of shape 2 x 3 x 2, for one process; the real one needs a process group of 12."""

    mesh_dim_names = ("dp_replicate", "dp_shard", "tp")

    def __init__(self, place):
        self.place = place

    def get_coordinate(self):
        return self.place

    def size(self, dim):
        return (2, 3, 2)[dim]


def test_data_ranks_follow_a_device_mesh():
    pytest.importorskip("torch")
    import dlfs.torch

    assert dlfs.torch.data_place(Mesh([1, 2, 0])) == dlfs.torch.data_place(Mesh([1, 2, 1])) == (5, 6)
    assert dlfs.torch.data_place(Mesh([1, 2, 1]), "dp_shard") == (2, 3)
    with pytest.raises(ValueError, match="no dimension cp"):
        dlfs.torch.data_place(Mesh([0, 0, 0]), ("dp_shard", "cp"))


def test_a_mesh_of_this_process_is_data_rank_0_of_1(tmp_path):
    torch = pytest.importorskip("torch")
    import dlfs.torch
    from torch.distributed.device_mesh import init_device_mesh

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
        assert dlfs.torch.data_place(mesh) == (0, 1)
    finally:
        torch.distributed.destroy_process_group()


def test_what_makes_no_mixture_is_refused(files, sets):
    def refused(match, parts, kind=dlfs.InvalidArgument, **options):
        with pytest.raises(kind, match=match):
            dlfs.Mixture(parts, **options)

    refused("same data set", [(sets[0], 1), (sets[0], 1)])
    refused("set1.dlfs has a part of 0", [(sets[0], 1), (sets[1], 0)])
    refused("at least one source", [])
    refused("repeat or choose to all", [(sets[0], 1), (sets[1], dlfs.repeat(2))])
    refused("part 0: a weight is 0 or more", [(sets[0], -1), (sets[1], 1)])
    refused("part 1: a weight is a number", [(sets[0], 1), (sets[1], "much")])
    refused("part 1: a weight is 0 or more", [(sets[0], 1), (sets[1], float("nan"))])
    refused("choose takes a number", [(sets[0], dlfs.choose(-1))])
    refused("batching is", [(sets[0], 1)], batching="odd")
    refused("2 weights for 1 source", [(sets[0], 1)], phases=[(5, [1, 1])])
    refused("pair", [sets[0]], kind=TypeError)
    refused("not of what dlfs.open returned", [("a.dlfs", 1)], kind=TypeError)
    mixture = dlfs.Mixture([(sets[0], 1), (sets[1], 1)])
    with pytest.raises(dlfs.InvalidArgument, match="peers is of one data set"):
        dlfs.Loader(mixture, 4, peers="auto")
    with pytest.raises(dlfs.InvalidArgument, match="no order of shares"):
        dlfs.Loader(mixture, 4, "partial")
    with dlfs.Loader(mixture, 4) as loader, dlfs.Loader(sets[0], 4) as single:
        state = loader.state_dict()
        with pytest.raises(dlfs.InvalidArgument, match="belongs to a mixture"):
            single.load_state_dict(state)
        with pytest.raises(dlfs.InvalidArgument, match="this is a mixture"):
            loader.load_state_dict(single.state_dict())
        other = dlfs.Mixture([(sets[0], 1), (sets[2], 1)])
        with dlfs.Loader(other, 4) as loader, pytest.raises(dlfs.InvalidArgument, match="set2.dlfs is"):
            loader.load_state_dict(state)
