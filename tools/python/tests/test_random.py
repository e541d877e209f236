"""Random numbers for augmentation: the same whatever ranks, workers and batches, and after resuming."""

import itertools

import numpy
import pytest

import dlfs

torch = pytest.importorskip("torch", reason="torch is not installed")

import dlfs.torch  # noqa: E402


def number(generator):
    return int(generator.integers(1 << 60))


def test_a_generator_depends_on_seed_epoch_and_id_alone():
    key = numpy.array([7, 5], dtype=numpy.uint64)
    philox = numpy.random.Generator(numpy.random.Philox(key=key, counter=[0, 0, 0, 3]))
    first = number(philox)
    for kind in (int, numpy.int64, numpy.uint32):
        assert number(dlfs.random_of(kind(7), kind(3), kind(5))) == first, kind
    places = list(itertools.product((0, 1, 2**64 - 1), (0, 1, 2**24), (0, 1, 2**63)))
    assert len({number(dlfs.random_of(*place)) for place in places}) == len(places)
    drawn = {float(torch.rand(1, generator=dlfs.torch.generator_of(*place))) for place in places}
    assert len(drawn) == len(places)
    again = dlfs.torch.generator_of(7, 3, 5), dlfs.torch.generator_of(7, 3, 5)
    assert torch.rand(9, generator=again[0]).tolist() == torch.rand(9, generator=again[1]).tolist()


def augment_batch(batch, rng):
    assert len(rng) == len(batch)
    return [(id, number(rng[at])) for at, id in enumerate(batch.ids.tolist())]


def augment_sample(view, label, rng):
    return len(view), number(rng)


def drawn(batches):
    return {int(id): int(value) for batch in batches for id, value in batch}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_of_batches_gets_the_generator_of_each_sample(ds, workers):
    expected = {id: number(dlfs.random_of(9, 1, id)) for id in range(len(ds))}

    def loader(size):
        data = dlfs.torch.IterableDataset(ds, size, seed=9, transform=augment_batch)
        return dlfs.torch.DataLoader(data, num_workers=workers, multiprocessing_context="fork" if workers else None)

    first = loader(30)
    first.set_epoch(1)
    front = drawn(itertools.islice(first, 3))
    second = loader(17)
    second.load_state_dict(first.state_dict())
    rest = drawn(second)
    assert front | rest == expected and not front.keys() & rest.keys()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_of_samples_gets_its_generator(ds, workers):
    items = dlfs.torch.Dataset(ds, transform=augment_sample)
    sampler = dlfs.torch.BatchSampler(ds, 16, seed=4)
    loader = dlfs.torch.DataLoader(
        items, batch_sampler=sampler, num_workers=workers, collate_fn=list,
        multiprocessing_context="fork" if workers else None,
    )
    order = dlfs.torch.BatchSampler(ds, 16, seed=4)
    for epoch in range(2):
        ids = [id for batch in order for id in batch]
        expected = [(ds.length(id), number(dlfs.random_of(4, epoch, id))) for id in ids]
        assert [item for batch in loader for item in batch] == expected


def test_other_samplers_are_refused_and_other_transforms_get_nothing(ds):
    with pytest.raises(dlfs.InvalidArgument, match="BatchSampler"):
        dlfs.torch.Dataset(ds, transform=augment_sample)[0]
    assert dlfs.torch.Dataset(ds, transform=lambda view, label: len(view))[0] == ds.length(0)
    assert next(iter(dlfs.torch.IterableDataset(ds, 16, transform=len))) == 16


def test_samples_of_a_mixture_have_the_generators_of_their_sources(ds, tmp_path):
    with dlfs.Writer(str(tmp_path / "other.dlfs")) as out:
        for length in range(30):
            out.write(bytes(length))
    mixture = dlfs.Mixture([(ds, 1), (dlfs.open(str(tmp_path / "other.dlfs")), 1)], epoch_size=60)

    def augment(batch, rng):
        places = zip(batch.sources.tolist(), batch.ids.tolist())
        return [(place, number(rng[at])) for at, place in enumerate(places)]

    drawn = {}
    for pairs in dlfs.torch.IterableDataset(mixture, 16, seed=4, transform=augment):
        drawn |= dict(pairs)
    assert {source for source, _ in drawn} == {0, 1} and len(set(drawn.values())) == len(drawn)
    assert all(value == number(dlfs.random_of(4, 0, source << 40 | id)) for (source, id), value in drawn.items())
