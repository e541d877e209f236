"""One image that several processes write: dlfs.WritePlan."""

import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

import dlfs


def content(part: int, number: int) -> bytes:
    return random.Random(part * 1000 + number).randbytes(number * 37 % 5000)


def write(plan: dlfs.WritePlan, part: int, count: int) -> dlfs.WrittenPart:
    with plan.part(part) as out:
        for number in range(count):
            assert out.write(content(part, number), name=f"{part}/{number}", label=part) == number
    assert out.written is not None
    return out.written


def lanes(folder: Path, count: int = 2) -> list[Path]:
    return [folder / f"lane{number}" for number in range(count)]


def test_processes_write_parts_and_one_commits_them(tmp_path: Path) -> None:
    plan = dlfs.WritePlan(lanes(tmp_path), shuffle_bytes=50_000, chunk_size=1 << 16)
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        parts = pool.starmap(write, [(plan, part, 50 + part) for part in range(5)], chunksize=1)
    assert [part.number for part in parts] == list(range(5))
    assert [part.samples for part in parts] == [50, 51, 52, 53, 54]
    again = dlfs.WritePlan.load(saved(plan, tmp_path))
    assert again.image == plan.image and [part.number for part in again.complete()] == list(range(5))
    with pytest.raises(dlfs.NotFound, match="part 5 is not complete"):
        again.commit(6)
    with pytest.raises(dlfs.Error):
        dlfs.open(plan.addresses)
    written = again.commit(5)
    assert (written.samples, written.generation, written.image) == (260, 1, plan.image)
    assert plan.commit(5) == written
    command = [sys.executable, "-m", "dlfs", "import-parts", "commit", tmp_path / "write.plan", "--json"]
    assert '"samples":260' in subprocess.run([*command, "--parts", "5"], check=True, capture_output=True, text=True).stdout
    assert "--parts" in subprocess.run(command, check=False, capture_output=True, text=True).stderr
    dataset = dlfs.open(lanes(tmp_path))
    in_order = [(part, number) for part in range(5) for number in range(50 + part)]
    assert [dataset[id] for id in range(260)] == [content(*each) for each in in_order]
    assert dataset["3/40"] == content(3, 40)
    assert list(dataset.labels) == [part for part, _ in in_order]
    with pytest.raises(dlfs.InvalidArgument, match="committed already"):
        plan.part(1)


def saved(plan: dlfs.WritePlan, folder: Path) -> Path:
    plan.save(folder / "write.plan")
    return folder / "write.plan"


def test_fields_and_classes_are_those_of_the_plan(tmp_path: Path) -> None:
    fields = {"x": "f32[2]", "text": "bytes"}
    plan = dlfs.WritePlan(lanes(tmp_path, 1), fields, columns={"n": int}, classes=["cat", "dog"])
    plan = pickle.loads(pickle.dumps(plan))
    with plan.part(1) as out:
        assert (out.fields, out.columns) == (fields, {"n": "int"})
        out.write({"x": numpy.ones(2, "float32"), "text": "a", "n": 7}, label="dog")
        with pytest.raises(dlfs.InvalidArgument, match="no class \"cow\""):
            out.write({"text": "b"}, label="cow")
    with pytest.raises(RuntimeError), plan.part(0) as out:
        out.write({"text": "never"}, label="cat")
        raise RuntimeError
    with plan.part(0) as out:
        out.write({"text": "c"}, label="cat")
        with pytest.raises(dlfs.Busy):
            plan.part(0)
    assert out.written is not None and pickle.loads(pickle.dumps(out.written)) == out.written
    plan.commit(plan.complete())
    dataset = dlfs.open(lanes(tmp_path, 1))
    assert (dataset.classes, list(dataset.labels)) == (("cat", "dog"), [0, 1])
    assert dataset.name(1) == "00001-000000000"
    assert dataset[1]["x"].tolist() == [1, 1] and dataset.values(1) == {"n": 7}


def test_a_plan_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with dlfs.Writer(tmp_path / "image") as out:
        out.write(b"there")
    before = (tmp_path / "image").read_bytes()
    with pytest.raises(dlfs.Refused):
        dlfs.WritePlan(tmp_path / "image")
    with pytest.raises(TypeError, match="not one name"):
        dlfs.WritePlan(tmp_path / "other", "jpg")
    with pytest.raises(dlfs.InvalidArgument, match="field a is there twice"):
        dlfs.WritePlan(tmp_path / "image", ["a", "a"], overwrite=True)
    assert (tmp_path / "image").read_bytes() == before
    with pytest.raises(dlfs.InvalidArgument, match="not the plan"):
        dlfs.WritePlan.load(tmp_path / "image")


CHILD = """
import sys, dlfs
plan = dlfs.WritePlan.load(sys.argv[1])
with plan.part(0) as out:
    for number in range(10**9):
        out.write(bytes(50_000), name=str(number))
        print(number, flush=True)
"""


def test_a_part_whose_process_is_killed_is_written_again(tmp_path: Path) -> None:
    plan = dlfs.WritePlan(lanes(tmp_path), shuffle_bytes=200_000)
    write(plan, 1, 30)
    child = subprocess.Popen([sys.executable, "-c", CHILD, saved(plan, tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) == 20:
            break
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert [part.number for part in plan.complete()] == [1]
    write(plan, 0, 20)
    assert plan.commit(2).samples == 50
    dataset = dlfs.open(lanes(tmp_path))
    assert dataset["0/19"] == content(0, 19) and dataset["1/29"] == content(1, 29)


class Ids:
    """A data set of torch whose workers write what they are asked for."""

    def __init__(self, plan: dlfs.WritePlan) -> None:
        self.plan = plan

    def __iter__(self) -> Any:
        import torch.utils.data

        worker = torch.utils.data.get_worker_info()
        with dlfs.Writer(f"{self.plan.addresses[0]}.{worker.id}") as out:
            out.write(f"of worker {worker.id}")
        yield write(self.plan, worker.id, 40).data


def test_workers_of_a_data_loader_write_parts_and_images_of_their_own(tmp_path: Path) -> None:
    torch_data = pytest.importorskip("torch.utils.data")

    class Dataset(Ids, torch_data.IterableDataset):  # type: ignore[misc]
        pass

    plan = dlfs.WritePlan(lanes(tmp_path))
    loader = torch_data.DataLoader(Dataset(plan), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert len(list(loader)) == 2
    assert plan.commit(2).samples == 80
    assert dlfs.open(lanes(tmp_path))["1/39"] == content(1, 39)
    for worker in range(2):
        assert dlfs.open(tmp_path / f"lane0.{worker}")[0] == f"of worker {worker}".encode()


def test_a_second_process_waits_for_a_namespace_that_is_free(tmp_path: Path) -> None:
    plan = dlfs.WritePlan(lanes(tmp_path))
    with plan.part(0) as first:
        with plan.part(2, anywhere=True) as second:
            with pytest.raises(dlfs.Busy):
                plan.part(4, anywhere=True)
            second.write(b"second")
        first.write(b"first")
    assert second.written is not None and first.written is not None
    assert (first.written.namespace, second.written.namespace) == (0, 1)
    plan.commit([second.written, first.written])
    dataset = dlfs.open(lanes(tmp_path))
    assert [dataset[0], dataset[1]] == [b"second", b"first"]


def test_ranks_that_find_their_part_complete_need_not_write_it(tmp_path: Path) -> None:
    plan = dlfs.WritePlan(lanes(tmp_path))
    for _ in range(2):
        done = {part.number for part in plan.complete()}
        for rank in {0, 1, 2} - done:
            write(plan, rank, 10)
    assert [part.samples for part in plan.complete()] == [10, 10, 10]
    assert plan.commit(3).samples == 30
