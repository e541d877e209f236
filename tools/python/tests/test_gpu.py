"""Batches on a device, against those of a loader without one; the protocol by which they are handed over; what fails.

The device is the driver of tests/fake_cuda: its memory is the host's, copies come late and streams do not wait for each
other. It counts each wrong use. DLFS_GPU_CASES=10000 tries more, DLFS_GPU_SEED another seed.
"""

import gc
import mmap
import multiprocessing
import os
import pickle
import random
import threading
import time
import types

import numpy as np
import pytest

import dlfs
import dlfs.tokens
from conftest import SEED, command
from dlfs._device import named
from fake_gpu import IS_COPIED, READ_ONLY, Taken, driver

CASES = int(os.environ.get("DLFS_GPU_CASES", "60"))
FIRST = int(os.environ.get("DLFS_GPU_SEED", SEED))


@pytest.fixture
def fake():
    found = driver()
    found.begin()
    yield found
    gc.collect()
    found.finish()
    assert found.violations() == 0


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Samples of 40,000 bytes, which the device reads from where they are, and their labels."""
    root = tmp_path_factory.mktemp("wide")
    draw = random.Random(SEED)
    with dlfs.Writer(root / "wide.dlfs") as writer:
        for at in range(96):
            writer.write(draw.randbytes(40_000), label=at % 7)
    return str(root / "wide.dlfs")


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """Samples of three fields and two columns: sample 5 has no mask, and points are of different numbers."""
    root = tmp_path_factory.mktemp("typed")
    types = {"image": "u8[3,5]", "mask": "bf16[4]", "points": "f32[*,2]", "raw": None}
    with dlfs.Writer(root / "typed.dlfs", fields=types, columns={"score": "float", "age": "int"}) as writer:
        for at in range(20):
            sample = {
                "image": np.full((3, 5), at, np.uint8),
                "mask": (np.arange(4, dtype="<f4") + at).view("<u2")[1::2].copy(),  # the bits of bf16
                "points": np.full((at % 3, 2), at, np.float32),
                "raw": b"x" * at,
                "score": at / 2,
                "age": at,
            }
            if at == 5:
                del sample["mask"]
            writer.write(sample)
    return str(root / "typed.dlfs")


def taken(fake, array, stream=0):
    """The elements of a device's array, once the stream has them."""
    one = Taken(array.__dlpack__(stream=stream or None, max_version=(1, 0)))
    fake.finish(stream)
    assert one.device == (2, 0) and one.version == (1, 0) and one.flags == 0 and one.lanes == 1
    assert one.shape == getattr(array, "data", array).shape and array.__dlpack_device__() == (2, 0)
    found = one.read()
    one.drop()
    return found


@pytest.mark.parametrize("options", [{}, {"contiguous": True}, {"order": "global"}, {"order": "sequential"}], ids=str)
def test_batches_arrive_with_all_their_arrays(fake, image, wide, options):
    for path in (image, wide):
        with dlfs.open(path) as ds:
            plain = dlfs.Loader(ds, 7, seed=3, epochs=2, **options)
            loader = dlfs.Loader(ds, 7, seed=3, epochs=2, device="cuda:0", **options)
            for _ in range(2):
                for want, batch in zip(plain, loader, strict=True):
                    on = batch.on_device
                    assert batch.ids.tolist() == want.ids.tolist() and batch.epoch == want.epoch
                    assert taken(fake, on.data).tobytes() == want.data.tobytes()
                    assert taken(fake, on).tobytes() == batch.data.tobytes()
                    assert np.array_equal(taken(fake, on.ids), want.ids)
                    assert np.array_equal(taken(fake, on.labels), want.labels)
                    assert np.array_equal(taken(fake, on.offsets), want.offsets)
                    assert on.sources is None and on.columns == {} and on.fields == {}
                    equal = len(set(want.lengths.tolist())) == 1
                    assert on.data.shape == (want.array.shape if equal else want.data.shape)
            stats = loader.stats()
            assert stats["registered_bytes"] == stats["window_bytes"] > 0
            if path == wide:
                # Nothing but ids, labels and offsets was copied on the host, and what was gathered.
                gathered = stats["sample_bytes"] if "contiguous" in options else 0
                assert stats["copied_bytes"] - gathered < 100 * stats["samples"]
            loader.close()
            del loader, batch, on
    gc.collect()
    # A thread that gathers ends behind its loader, and has a batch until then.
    until = time.monotonic() + 60
    while fake.counts()["registered_bytes"] and time.monotonic() < until:
        time.sleep(0.01)
    assert fake.counts()["pageable_bytes"] == 0 and fake.counts()["allocations"] == 0
    assert fake.counts()["registered"] == fake.counts()["unregistered"] > 0


def test_fields_columns_and_types_arrive(fake, typed):
    with dlfs.open(typed) as ds:
        for batch in dlfs.Loader(ds, 6, order="sequential", epochs=1, device="cuda:0"):
            on = batch.on_device
            assert sorted(on.columns) == ["age", "score"] and sorted(on.fields) == ["image", "mask", "points", "raw"]
            assert np.array_equal(taken(fake, on.columns["age"]), batch.column("age"))
            assert np.array_equal(taken(fake, on.columns["score"]), batch.column("score"))
            for name, field in on.fields.items():
                part = batch.select(name)
                assert taken(fake, field.data).tobytes() == part.data.tobytes()
                assert np.array_equal(taken(fake, part.on_device.ids), batch.ids)
                kind = part.field_type
                if kind is not None:
                    assert field.data.dtype == kind.dtype
                    rows = np.diff(taken(fake, field.offsets))
                    each = part.lengths // np.dtype(kind.dtype if kind.dtype != "bfloat16" else "u2").itemsize
                    fixed = int(np.prod([dim for dim in kind.shape if dim is not None]))
                    assert (rows * fixed).tolist() == each.tolist()
            assert on.fields["image"].data.shape == (len(batch), 3, 5)
            assert on.fields["points"].data.shape[1:] == (2,)
            for wrong in (lambda: on.data, lambda: on.offsets, lambda: on.__dlpack__()):
                with pytest.raises(dlfs.NoArray, match="image"):
                    wrong()
        only = next(iter(dlfs.Loader(ds, 6, fields="image", device="cuda:0")))
        assert only.on_device.data.shape == (6, 3, 5)
        with pytest.raises(dlfs.NoArray, match="fields"):
            only.select("raw").on_device.data


def test_sources_of_a_mixture_arrive(fake, image, wide):
    with dlfs.open(image) as one, dlfs.open(wide) as other:
        mixture = dlfs.Mixture([(one, 0.5), (other, 0.5)])
        for batch, _ in zip(dlfs.Loader(mixture, 8, device="cuda:0"), range(5)):
            assert np.array_equal(taken(fake, batch.on_device.sources), batch.sources)
            assert taken(fake, batch.on_device.data).tobytes() == batch.data.tobytes()


ROWS = [{}, {"cp_size": 2, "cp_rank": 1}, {"cp_size": 2, "cp_zigzag": True}, {"dtype": "u16"}]


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    path, draw = tmp_path_factory.mktemp("documents") / "documents.dlfs", random.Random(SEED)
    with dlfs.Writer(path, fields={"tok": "u16[*]"}) as writer:
        for _ in range(200):
            writer.write({"tok": np.array([draw.randrange(9000) for _ in range(draw.randrange(1, 300))], np.uint16)})
    return path


@pytest.mark.parametrize("options", ROWS, ids=str)
def test_rows_of_tokens_arrive(fake, documents, options):
    wanted = {"segment_ids": True, "position_ids": True, "loss_mask": True, "sample_ids": True}
    wanted |= {"separator": 7, "seed": 2, "epochs": 2, "cu_seqlens": "cp_size" not in options, **options}
    names = ("tokens", "labels", "segment_ids", "position_ids", "loss_mask", "sample_ids", "cu_seqlens")
    with dlfs.open(documents) as ds:
        plain = dlfs.tokens.Loader(ds, 64, 3, **wanted)
        loader = dlfs.tokens.Loader(ds, 64, 3, device="cuda:0", **wanted)
        for _ in range(2):
            for want, rows in zip(plain, loader, strict=True):
                for name in names:
                    array, expected = getattr(rows, name), getattr(want, name)
                    assert (array is None) == (expected is None)
                    if array is not None:
                        found = taken(fake, array).reshape(expected.shape)
                        assert found.dtype == expected.dtype and np.array_equal(found, expected), name
                assert rows.max_seqlen == want.max_seqlen and rows.epoch == want.epoch
                assert plain.state_dict() == loader.state_dict()
        del array, rows
        loader.close()
    assert fake.counts()["pageable_bytes"] == 0


def test_a_program_that_holds_all_rows_of_an_epoch_is_told_of_its_end(fake, documents):
    with dlfs.open(documents) as ds:
        rows = dlfs.tokens.Loader(ds, 64, 1).plan(0)["rows"]
        # As many batches as there are buffers: the end takes none.
        loader = dlfs.tokens.Loader(ds, 64, rows // 16, epochs=1, device="cuda:0", deadline=2)
        kept = list(loader)
        assert len(kept) == 16
        del kept
        loader.close()


@pytest.mark.parametrize("options", ROWS[:3], ids=str)
def test_rows_become_tensors_and_what_trainers_take(fake, documents, options, monkeypatch):
    torch = pytest.importorskip("torch")
    import torch.utils.dlpack

    import dlfs.tokens_for

    monkeypatch.setattr(torch.utils.dlpack, "from_dlpack", into_torch(fake))
    wanted = {"position_ids": True, "loss_mask": True, "seed": 2, "epochs": 1, **options}
    with dlfs.open(documents) as ds:
        loaders = [dlfs.tokens.Loader(ds, 64, 3, **wanted, **on) for on in ({}, {"device": 0})]
        for want, rows in zip(*loaders, strict=True):
            want, rows = want.torch(), rows.to("cpu")
            for name in ("tokens", "labels", "position_ids", "loss_mask"):
                assert torch.equal(getattr(want, name), getattr(rows, name)) and rows.sample_ids is None
        loaders = [dlfs.tokens_for.transformers(ds, 65, epochs=1, **on) for on in ({}, {"device": "cuda:0"})]
        for want, row in zip(*loaders, strict=True):
            assert want.keys() == row.keys() and all(torch.equal(want[name], row[name]) for name in want)


class Model:
    """A loader that is compared with one without a device: any steps, the same ids and states."""

    def __init__(self, ds, draw, **options):
        self.draw, self.saved = draw, []
        self.pair = [dlfs.Loader(ds, 5, **options), dlfs.Loader(ds, 5, device="cuda:0", **options)]
        self.iterators = [iter(loader) for loader in self.pair]

    def step(self):
        what = self.draw.choice(["next"] * 12 + ["again", "save", "load", "epoch", "same"])
        if what == "next":
            found = [next(iterator, None) for iterator in self.iterators]
            assert (found[0] is None) == (found[1] is None)
            if found[0] is None:
                self.iterators = [iter(loader) for loader in self.pair]
            else:
                assert found[0].ids.tolist() == found[1].ids.tolist()
                assert found[0].ends_epoch == found[1].ends_epoch
        elif what == "again":
            self.iterators = []
            self.iterators = [iter(loader) for loader in self.pair]
        elif what == "save":
            self.saved.append(self.pair[0].state_dict())
        elif what == "load" and self.saved:
            self.move(lambda loader, state=self.draw.choice(self.saved): loader.load_state_dict(state))
        elif what == "same":
            self.move(lambda loader, state=self.pair[1].state_dict(): loader.load_state_dict(state))
        elif what == "epoch":
            self.move(lambda loader, epoch=self.draw.randrange(4): loader.set_epoch(epoch))
        one, other = self.pair
        assert one.state_dict() == other.state_dict() and one.epoch == other.epoch
        assert one.batches_left == other.batches_left

    def move(self, how):
        for loader in self.pair:
            how(loader)
        if self.draw.random() < 0.7:
            self.iterators = []
            self.iterators = [iter(loader) for loader in self.pair]


def test_the_state_is_that_of_a_loader_without_a_device_after_any_steps(fake, image):
    for case in range(CASES):
        seed = FIRST + case
        print("seed", seed)
        draw = random.Random(seed)
        order = draw.choice(["grouped", "global"])
        with dlfs.open(image) as ds:
            model = Model(ds, draw, order=order, seed=seed % 9, epochs=4, rank=draw.randrange(3), world_size=3)
            for _ in range(60):
                model.step()


def any_request(draw):
    version = draw.choice([None, (0, 8), (1, 0), (1, 3), (7, 0), (-1, 0), (1,), "new", 1])
    return {
        name: value
        for name, value in {
            "stream": draw.choice([None, -1, 0, 1, 2, 3, "own", 2**70, -2, "x", 1.5]),
            "max_version": version,
            "dl_device": draw.choice([None, None, (1, 0), (2, 0), (2, 1), (10, 0), 5]),
            "copy": draw.choice([None, None, True, False, "yes"]),
        }.items()
        if draw.random() < 0.6
    }


def test_any_arguments_of_the_protocol_give_a_capsule_or_the_right_error(fake, wide):
    draw, stream = random.Random(FIRST), fake.stream()
    print("seed", FIRST)
    given = 0
    with dlfs.open(wide) as ds:
        loader = dlfs.Loader(ds, 4, device="cuda:0")
        batch = next(iter(loader))
        for _ in range(40 * CASES):
            array = draw.choice([batch, batch.on_device, batch.on_device.labels])
            request = any_request(draw)
            if request.get("stream") == "own":
                request["stream"] = stream
            is_host = array is batch
            wanted = {name: value for name, value in request.items() if value is not None}
            device = (1, 0) if is_host else (2, 0)
            version = wanted.get("max_version", (0, 0))
            is_new = isinstance(version, tuple) and version >= (1, 0)
            try:
                capsule = array.__dlpack__(**request)
            except dlfs.InvalidArgument as error:
                assert "stream" in str(error) or "INVALID_HANDLE" in str(error)
                assert wanted["stream"] not in (-1,) if is_host else wanted["stream"] in (0, -2, 3)
                continue
            except (TypeError, ValueError):
                assert version in ((1,), "new", 1) or any(value in ("x", 1.5, "yes", 5) for value in wanted.values())
                continue
            except OverflowError:
                assert wanted["stream"] == 2**70
                continue
            except BufferError as error:
                if wanted.get("dl_device", device) == device:
                    assert "copy" in str(error)
                    assert wanted["copy"] is (not is_host) and (not is_host or not is_new)
                continue
            given += 1
            assert wanted.get("dl_device", device) == device
            if draw.random() < 0.3:
                continue  # nobody takes the capsule
            one = Taken(capsule)
            del capsule
            assert one.device == device and one.is_versioned == is_new
            if is_host:
                copied = wanted.get("copy", False) or not is_new
                assert one.flags in (None, IS_COPIED if copied else READ_ONLY)
                assert one.read().tobytes() == batch.data.tobytes()
            else:
                assert wanted.get("copy") is not True and wanted.get("stream") not in (0, -2)
            if draw.random() < 0.5:
                threading.Thread(target=one.drop).start()
            else:
                one.drop()
        assert given > 5 * CASES
        del array, batch
        # All that was given is back: the loader has its buffers again.
        assert sum(len(batch.ids) for batch in loader) == len(ds)


def test_a_stream_reads_the_bytes_though_they_come_late_and_the_next_copy_waits_for_it(fake, wide):
    streams = [None, 1, 2, fake.stream(), fake.stream()]
    draw = random.Random(FIRST)
    with dlfs.open(wide) as ds:
        loader = dlfs.Loader(ds, 8, epochs=max(CASES // 4, 5), device="cuda:0")
        for _ in range(loader.options["epochs"]):
            for batch in loader:
                for array, want in ((batch.on_device.data, batch.data), (batch.on_device.ids, batch.ids)):
                    for stream in draw.sample(streams, draw.randrange(1, 3)):
                        one = Taken(array.__dlpack__(stream=stream, max_version=(1, 0)))
                        fake.reads(stream or 0, one, want.tobytes())
                        one.drop()  # before the stream has read it
    for stream in streams[2:]:
        fake.finish(stream)


def test_the_next_batch_is_on_its_way_before_it_is_asked_for(fake, wide):
    with dlfs.open(wide) as ds:
        loader = dlfs.Loader(ds, 4, contiguous=True, device="cuda:0")
        buffers = fake.counts()["allocations"]
        before, had, batches = fake.counts()["copies"], 0, iter(loader)
        for batch in batches:
            had += 1
            # Two copies each: the bytes, and the small arrays together.
            if fake.counts()["copies"] - before == 2 * (had + 1):
                break
            time.sleep(0.1)  # until the loader has read ahead
            assert not batch.ends_epoch
        ids = next(batches).ids
        assert fake.counts()["copies"] - before >= 2 * (had + 1) and len(ids) == 4
        for batch in batches:
            pass
        # Few on an idle device; where copies are slower than the loop, all of the ring's.
        assert fake.counts()["allocations"] - buffers <= 16, "a loop has the buffers of its ring"


def test_a_program_that_holds_all_buffers_is_told_and_loses_no_batch(fake, image):
    with dlfs.open(image) as ds:
        want = [batch.ids.tolist() for batch in dlfs.Loader(ds, 16, epochs=1)]
        loader = dlfs.Loader(ds, 16, epochs=1, device="cuda:0", deadline=8)
        iterator, kept = iter(loader), []
        with pytest.raises(dlfs.TimedOut, match="(?s)cuda:0.*try: drop batches"):
            while True:
                kept.append(next(iterator))
        assert len(kept) == 16
        state = loader.state_dict()
        with pytest.raises(dlfs.TimedOut):
            next(iterator)
        assert loader.state_dict() == state, "the run is before the batch that was not delivered"
        found = [batch.ids.tolist() for batch in kept]
        kept.clear()
        found += [batch.ids.tolist() for batch in iterator]
        assert found == want


def test_a_device_without_memory_loses_no_batch(fake, wide):
    with dlfs.open(wide) as ds:
        loader = dlfs.Loader(ds, 8, epochs=1, device="cuda:1")
        iterator = iter(loader)
        fake.lib.fake_fail_allocation(0)
        try:
            with pytest.raises(dlfs.OutOfMemory, match="cuda:1"):
                next(iterator)
        finally:
            fake.lib.fake_fail_allocation(2**64 - 1)
        assert sorted(int(id) for batch in iterator for id in batch.ids) == list(range(len(ds)))


def test_a_refused_registration_is_a_warning_and_batches_arrive_all_the_same(run_python, wide, monkeypatch):
    driver()
    monkeypatch.setenv("FAKE_CUDA_REFUSE_REGISTRATION", "0")
    run_python(
        """
import logging, sys
sys.path.insert(0, sys.argv[2])
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
import dlfs
from fake_gpu import Taken, driver
fake = driver()
fake.begin()
with dlfs.open(sys.argv[1]) as ds:
    loader = dlfs.Loader(ds, 8, epochs=1, device="cuda:0")
    for batch in loader:
        one = Taken(batch.on_device.data.__dlpack__(max_version=(1, 0)))
        fake.finish()
        assert one.read().tobytes() == batch.data.tobytes()
        one.drop()
    assert loader.stats()["registered_bytes"] == 0 and fake.counts()["pageable_bytes"] > 0
""",
        wide, os.path.dirname(__file__),
    )


LOST = """
import sys
sys.path.insert(0, sys.argv[2])
import dlfs, dlfs.tokens
from fake_gpu import Taken, driver
fake = driver()
fake.begin()
with dlfs.open(sys.argv[1]) as ds:
    if sys.argv[3] == "rows":
        loader = dlfs.tokens.Loader(ds, 4000, 1, dtype="u16", field="u16", device="cuda:0")
    else:
        loader = dlfs.Loader(ds, 8, device="cuda:0", contiguous=True)
    iterator, had = iter(loader), 0
    fake.lib.fake_lose_after(10)
    states = [loader.state_dict()]
    try:
        for batch in iterator:
            had += 1
            states.append(loader.state_dict())
            assert had < 100
    except dlfs.DeviceLost as error:
        assert isinstance(error, RuntimeError) and "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error), error
        assert "cuda:0" in str(error)
    else:
        raise SystemExit("the device was not lost")
    assert 0 < had and loader.state_dict() == states[-1]
    try:
        next(iterator)
    except dlfs.DeviceLost:
        print("lost twice")
    loader.close()
    print(len(ds.read_batch([0, 1])), "samples without the device")
"""


@pytest.mark.parametrize("what", ["samples", "rows"])
def test_a_lost_device_is_an_error_at_its_batch(run_python, wide, what):
    driver()
    out = run_python(LOST, wide, os.path.dirname(__file__), what)
    assert "lost twice" in out and "2 samples" in out


FORK = """
import os, sys
sys.path.insert(0, sys.argv[2])
import dlfs
from fake_gpu import driver
driver().begin()
with dlfs.open(sys.argv[1]) as ds:
    used, unused = (dlfs.Loader(ds, 8, epochs=1, device="cuda:0") for _ in range(2))
    iterator = iter(used)
    had = len(next(iterator).ids)
    pid = os.fork()
    if pid == 0:
        for loader in (used, unused):
            try:
                next(iter(loader))
                os._exit(1)
            except dlfs.Unsupported as error:
                assert "forked" in str(error)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert had + sum(len(batch.ids) for batch in iterator) == len(ds)
"""


def test_a_forked_child_is_refused_and_its_parent_goes_on(run_python, wide):
    driver()
    run_python(FORK, wide, os.path.dirname(__file__))


def first_ids(loader):
    batch = next(iter(loader))
    return batch.ids.tolist(), batch.on_device is not None


def test_a_pickled_loader_has_its_device_in_a_spawned_process(fake, wide):
    with dlfs.open(wide) as ds:
        loader = dlfs.Loader(ds, 8, seed=5, device="cuda:0")
        assert loader.options["pin"] == "auto" and pickle.loads(pickle.dumps(loader)).options["device"] == "cuda:0"
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(first_ids, [loader]) == first_ids(loader)
        batch = next(iter(loader))
        again = pickle.loads(pickle.dumps(batch))
        assert again.on_device is None and again.data.tobytes() == batch.data.tobytes()


def jax_device(platform, number, version=""):
    client = types.SimpleNamespace(platform_version=version)
    return types.SimpleNamespace(platform=platform, local_hardware_id=number, client=client)


def test_devices_are_named_as_frameworks_name_them(monkeypatch):
    assert named("cuda:3") == named(3) == named(np.int64(3)) == "cuda:3"
    assert named("hip:1") == named("rocm:1") == "hip:1"
    assert named(jax_device("gpu", 2, "cuda 13")) == "cuda:2" and named(jax_device("gpu", 2, "rocm 7")) == "hip:2"
    assert named("cpu") is named("cpu:0") is named(jax_device("cpu", 0)) is None
    for wrong in ("cuda:", "cuda:x", "mps:0", "tpu", "", jax_device("tpu", 0), object(), 1.5, "cuda:-1"):
        with pytest.raises(dlfs.InvalidArgument, match="device is"):
            named(wrong)
    torch = pytest.importorskip("torch")
    assert named(torch.device("cuda:1")) == "cuda:1" and named(torch.device("cpu")) is None
    assert named("cuda") == "cuda:0"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert named(torch.device("cuda:1")) == "hip:1"


def test_a_device_that_is_not_there_is_an_error_that_names_it(fake, wide, run_python, monkeypatch):
    with dlfs.open(wide) as ds:
        assert next(iter(dlfs.Loader(ds, 8, device="cpu"))).on_device is None
        assert "device" not in dlfs.Loader(ds, 8, device="cpu").options
        with pytest.raises(dlfs.Error, match="cuda:9"):
            next(iter(dlfs.Loader(ds, 8, device=9)))
        with pytest.raises(dlfs.InvalidArgument, match="pin"):
            dlfs.Loader(ds, 8, pin="rdma")
    monkeypatch.setenv("DLFS_CUDA_LIBRARY", "/nowhere/libcuda.so.1")
    program = """
import sys, dlfs
ds = dlfs.open(sys.argv[1])
try:
    dlfs.Loader(ds, 8, device="cuda:0")
except dlfs.NotFound as error:
    print(error)
print(next(iter(dlfs.Loader(ds, 8, pin="auto"))).on_device, "without a device")
"""
    out = run_python(program, wide)
    assert "/nowhere/libcuda.so.1" in out and "None without a device" in out


def test_other_memory_is_registered_and_given_back(fake, run_python):
    memory = mmap.mmap(-1, 10_000)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    before = fake.counts()
    assert dlfs._dlfs.register(address, len(memory)) and not dlfs._dlfs.register(address, len(memory))
    assert fake.counts()["registered_bytes"] == before["registered_bytes"] + 12_288
    for _ in range(2):
        dlfs._dlfs.unregister(address)
    assert fake.counts()["registered_bytes"] == before["registered_bytes"]
    assert fake.counts()["unregistered"] == before["unregistered"] + 1
    run_python("import dlfs; assert not dlfs._dlfs.register(4096, 4096) and not dlfs._dlfs.register(0, 4096)")


def test_an_import_opens_no_driver_and_says_nothing(run_python):
    out = run_python(
        """
import sys, time
began = time.perf_counter()
import numpy
numpy_s = time.perf_counter() - began
import dlfs
took_s = time.perf_counter() - began - numpy_s
maps = open("/proc/self/maps").read()
assert not any(name in maps for name in ("libcuda", "libamdhip", "fake_cuda")), "a driver is loaded"
assert "torch" not in sys.modules
print(f"import of dlfs behind numpy: {took_s * 1000:.0f} ms")
"""
    )
    print(out)
    assert out.count("\n") == 1


def test_bytes_of_the_host_go_to_consumers_without_a_copy(equal, typed):
    with dlfs.open(equal[1]) as ds:
        for batch in dlfs.Loader(ds, 32, contiguous=True, epochs=1):
            assert np.shares_memory(np.from_dlpack(batch), batch.data)
    with dlfs.open(typed, fields="mask") as ds:
        batch = ds.read_batch([1, 2, 3])
        one = Taken(batch.__dlpack__(max_version=(1, 0)))
        assert one.dtype == (4, 16) and one.shape == (3, 4) and one.read().tobytes() == batch.data.tobytes()
        one.drop()
        torch = pytest.importorskip("torch")
        assert torch.from_dlpack(batch).dtype == torch.bfloat16
        assert torch.from_dlpack(batch).tolist() == [[at + i for i in range(4)] for at in (1, 2, 3)]


def test_jax_takes_the_bytes_of_the_host(equal, typed):
    jax = pytest.importorskip("jax")
    with dlfs.open(equal[1]) as ds, dlfs.open(typed, fields="mask") as floats:
        batch = ds.read_batch(range(5))
        assert np.array_equal(np.asarray(jax.dlpack.from_dlpack(batch)), batch.array)
        found = np.asarray(jax.dlpack.from_dlpack(floats.read_batch([1, 2, 3])), np.float32)
        assert found.tolist() == [[at + i for i in range(4)] for at in (1, 2, 3)]


def into_torch(fake):
    """torch.from_dlpack, as a torch with CUDA would take it: but these are copies on the CPU."""
    import torch

    def from_dlpack(array):
        one = Taken(array.__dlpack__(stream=1, max_version=(1, 0)))
        fake.finish()
        found = torch.from_numpy(one.read())
        one.drop()
        return found.view(torch.bfloat16) if one.dtype == (4, 16) else found

    return from_dlpack


def test_tensor_batches_are_made_of_what_arrived(fake, image, typed, monkeypatch):
    torch = pytest.importorskip("torch")
    import dlfs.torch

    monkeypatch.setattr(dlfs._tensors, "from_dlpack", into_torch(fake))
    for path in (image, typed):
        with dlfs.open(path) as ds:
            plain = dlfs.Loader(ds, 6, seed=1, epochs=1)
            batches = dlfs.torch.IterableDataset(ds, 6, seed=1, epochs=1, device=torch.device("cuda:0"))
            for host, found in zip(plain, batches, strict=True):
                same(dlfs.torch.TensorBatch.of(host), found, torch)
            same(found.pin_memory() if torch.cuda.is_available() else found, found, torch)
            loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=1)
            with pytest.raises(dlfs.InvalidArgument, match="num_workers=0"):
                next(iter(loader))


def same(one, other, torch):
    assert (one.epoch, one.shape, list(one.fields)) == (other.epoch, other.shape, list(other.fields))
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("ids", "labels", "sources")]
    if not one.fields:
        pairs += [(one.data, other.data), (one.offsets, other.offsets)]
    pairs += [(column, other.columns[name]) for name, column in one.columns.items()]
    for a, b in pairs:
        assert (a is None) == (b is None)
        assert a is None or a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    for name in one.fields:
        same(one[name], other[name], torch)


def test_several_iterators_and_threads_have_buffers_of_their_own(fake, image):
    with dlfs.open(image) as ds:
        loader = dlfs.Loader(ds, 8, epochs=1, device="cuda:0")
        first, second = iter(loader), iter(loader)
        for a, b in zip(first, second, strict=True):
            assert a.ids.tolist() == b.ids.tolist()
            assert taken(fake, a.on_device.data).tobytes() == taken(fake, b.on_device.data).tobytes()
        shared, found = iter(dlfs.Loader(ds, 8, epochs=1, device="cuda:0")), []

        def read():
            for batch in shared:
                found.extend(batch.ids.tolist())

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(len(ds)))
