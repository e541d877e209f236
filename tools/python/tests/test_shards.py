"""Shards that were not imported: the first epoch makes their index, and its states resume."""

import io
import tarfile

import pytest

import dlfs

SHARDS, SAMPLES = 12, 25


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as archive:
            for sample in range(SAMPLES):
                for end, data in (("bin", bytes([sample]) * (4000 + shard)), ("cls", str(shard).encode())):
                    member = tarfile.TarInfo(f"{shard:03}-{sample:03}.{end}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return folder


def loader(shards, tmp_path, **more):
    return dlfs.ShardLoader(
        shards, tmp_path / "index", batch_size=8, order="global", seed=5, window=1536 << 10, **more
    )


def content(batch):
    return [(label, bytes(sample["bin"])) for sample, label in zip(batch, batch.labels)]


def expected():
    return sorted((shard, bytes([sample]) * (4000 + shard)) for shard in range(SHARDS) for sample in range(SAMPLES))


def test_all_epochs_have_every_sample_from_the_first_on(shards, tmp_path):
    with loader(shards, tmp_path, epochs=3) as batches:
        for epoch in range(3):
            assert batches.epoch == epoch
            found = [pair for batch in batches for pair in content(batch)]
            assert sorted(found) == expected()
        assert list(batches) == []
    with pytest.raises(dlfs.InvalidArgument, match="closed"):
        next(batches)


def test_states_of_all_ranks_resume_at_another_world_size(shards, tmp_path):
    found, states = [], []
    for rank in range(3):
        with loader(shards, tmp_path, rank=rank, world_size=3) as batches:
            found += [pair for _ in range(4) for pair in content(next(batches))]
            states.append(batches.state_dict())
    with loader(shards, tmp_path) as batches:
        with pytest.raises(dlfs.InvalidArgument, match="lacks lane"):
            batches.load_state_dict(states[0])
        batches.load_state_dict(states)
        found += [pair for batch in batches for pair in content(batch)]
    assert sorted(found) == expected()


def test_a_field_may_be_the_sample_and_what_is_not_for_shards_is_refused(shards, tmp_path):
    for given in ({"fields": "bin"}, {"open": {"fields": "bin"}}, {"open": {"fields": "cls"}, "fields": "bin"}):
        with loader(shards, tmp_path, epochs=1, **given) as batches:
            found = [(label, bytes(view)) for batch in batches for view, label in zip(batch, batch.labels)]
            assert sorted(found) == expected()
    with pytest.raises(dlfs.NotFound, match="samples have no field png"):
        loader(shards, tmp_path, fields="png")
    for keyword, value in (("device", "cuda:0"), ("peers", "auto"), ("store", "ram:1G")):
        with pytest.raises(dlfs.InvalidArgument, match=f"{keyword} is not for shards"):
            loader(shards, tmp_path, **{keyword: value})


FORK = """
import os, sys
import dlfs
loader = dlfs.ShardLoader(sys.argv[1], sys.argv[2], batch_size=8, epochs=2, window=1536 << 10)
first = next(loader)
state = loader.state_dict()
pid = os.fork()
if pid == 0:
    for use in (lambda: next(loader), lambda: loader.load_state_dict(state)):
        try:
            use()
            os._exit(1)
        except dlfs.Unsupported as error:
            assert "forked" in str(error)
    assert loader.state_dict() == state
    loader.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert len(first) + sum(len(batch) for batch in loader) == int(sys.argv[3])
"""


def test_a_forked_child_is_refused_in_the_first_epoch_and_may_close_what_it_inherited(shards, tmp_path, run_python):
    """It took batches that its parent delivers, too, and died of SIGSEGV when it closed."""
    run_python(FORK, shards, tmp_path / "index", SHARDS * SAMPLES)


def test_the_first_epoch_fills_an_image_that_later_epochs_and_runs_read(shards, tmp_path):
    image = tmp_path / "train.dlfs"
    with loader(shards, tmp_path, epochs=2, import_to=f"file:{image}") as batches:
        for _ in range(2):
            assert sorted(pair for batch in batches for pair in content(batch)) == expected()
    with dlfs.open(image) as dataset:
        assert len(dataset) == SHARDS * SAMPLES
        assert dataset["003-007"]["bin"] == bytes([7]) * 4003
    (shards / "000.tar").unlink()
    with pytest.raises(dlfs.Error, match="other shards"):
        loader(shards, tmp_path, import_to=image)
