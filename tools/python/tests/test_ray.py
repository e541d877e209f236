"""dlfs.ray, with a local cluster of Ray's processes. It is skipped where ray is not installed: pip install 'ray[data]'."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import dlfs

ray = pytest.importorskip("ray", reason="NOT RUN: ray is not installed, so nothing of dlfs.ray is tested")
pytest.importorskip("ray.data")
import pyarrow  # noqa: E402

import dlfs.ray  # noqa: E402

ROWS = 600


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    # Workers import dlfs from where the tests do, and this module.
    paths = [str(Path(__file__).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {"PYTHONPATH": os.pathsep.join(paths)}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def lanes(folder: Path, count: int = 2) -> list[str]:
    return [str(folder / f"lane{number}") for number in range(count)]


def row(number: int) -> dict[str, Any]:
    return {
        "key": f"sample/{number:05}",
        "jpg": random.Random(number).randbytes(number * 37 % 5000),
        "emb": numpy.full(4, number, "float32"),
        "cls": number % 7,
        "lang": ["de", "fr"][number % 2],
    }


def rows(blocks: int = 10) -> Any:
    return ray.data.range(ROWS, override_num_blocks=blocks).map(lambda given: row(given["id"]))


def check(folder: Path) -> dlfs.Dataset:
    dataset = dlfs.open(lanes(folder))
    assert len(dataset) == ROWS
    for number in range(ROWS):
        expected, sample = row(number), dataset[expected_key(number)]
        assert bytes(sample["jpg"]) == expected["jpg"]
        assert numpy.array_equal(sample["emb"], expected["emb"])
        id = dataset.id_of(expected_key(number))
        assert dataset.label(id) == expected["cls"]
        assert dataset.values(id) == {"lang": expected["lang"]}
    return dataset


def expected_key(number: int) -> str:
    return f"sample/{number:05}"


def test_a_data_set_of_ray_becomes_an_image_and_comes_back(tmp_path: Path) -> None:
    sink = dlfs.ray.Datasink(
        lanes(tmp_path), name="key", label="cls", columns={"lang": str}, shuffle_bytes=100_000, chunk_size=1 << 16
    )
    rows().write_datasink(sink, concurrency=2)
    assert sink.written.samples == ROWS and sink.fields == {"jpg": None, "emb": "f32[4]"}
    dataset = check(tmp_path)
    assert sink.written.image.replace("-", "") == dataset.uuid

    source = dlfs.ray.Datasource(lanes(tmp_path), name=True, batch_size=64)
    found = ray.data.read_datasource(source, override_num_blocks=5)
    assert found.count() == ROWS
    taken = {each["name"]: each for each in found.take_all()}
    assert len(taken) == ROWS
    for number in range(ROWS):
        each, expected = taken[expected_key(number)], row(number)
        assert each["jpg"] == expected["jpg"] and numpy.array_equal(each["emb"], expected["emb"])
        assert (each["label"], each["lang"]) == (expected["cls"], expected["lang"])
        assert dataset.name(each["id"]) == expected_key(number)
    batch = next(iter(found.iter_batches(batch_size=32)))
    assert batch["emb"].shape == (32, 4) and batch["emb"].dtype == numpy.float32
    in_order = ray.data.read_datasource(dlfs.ray.Datasource(lanes(tmp_path), by="id", fields="emb", label=False))
    ids = [each["id"] for each in in_order.take_all()]
    assert sorted(ids) == list(range(ROWS))

    # The generation is that of the construction.
    dlfs.delete(lanes(tmp_path), [0])
    with pytest.raises(Exception, match="generation 1, and now"):
        ray.data.read_datasource(source).take_all()


def test_a_worker_that_is_killed_in_the_middle_costs_an_attempt(tmp_path: Path) -> None:
    marker, sink = tmp_path / "killed", dlfs.ray.Datasink(
        lanes(tmp_path), name="key", label="cls", columns={"lang": str}, shuffle_bytes=10_000, chunk_size=1 << 16
    )
    write_row = dlfs.ray.Datasink._write_row

    class Killing(dlfs.ray.Datasink):
        """Kills the process of the first task that has written 30 rows."""

        count = 0

        def _write_row(self, out: Any, row: Any) -> None:
            write_row(self, out, row)
            self.count += 1
            if self.count == 30:
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return
                os.kill(os.getpid(), signal.SIGKILL)

    sink.__class__ = Killing
    rows().write_datasink(sink, concurrency=2, ray_remote_args={"max_retries": 5})
    assert marker.exists(), "no worker was killed"
    assert sink.written.samples == ROWS
    check(tmp_path)


def test_an_exception_in_a_task_leaves_nothing_that_is_visible(tmp_path: Path) -> None:
    sink = dlfs.ray.Datasink(lanes(tmp_path), {"x": "i64"}, name="id")

    def fail(given: dict[str, Any]) -> dict[str, Any]:
        if given["id"] == ROWS - 1:
            raise RuntimeError("this row is wrong")
        return {"id": str(given["id"]), "x": given["id"]}

    data = ray.data.range(ROWS, override_num_blocks=4)
    with pytest.raises(Exception, match="this row is wrong"):
        data.map(fail).write_datasink(sink, concurrency=2)
    with pytest.raises(dlfs.Error):
        dlfs.open(lanes(tmp_path))
    again = dlfs.ray.Datasink(lanes(tmp_path), {"x": "i64"}, name="id", overwrite=True, min_rows=ROWS)
    data.map(lambda given: {"id": str(given["id"]), "x": given["id"]}).write_datasink(again)
    assert again.written.samples == ROWS
    assert int(dlfs.open(lanes(tmp_path))["17"]) == 17


def test_samples_of_one_field_lists_and_missing_values_come_as_columns(tmp_path: Path) -> None:
    with dlfs.Writer(tmp_path / "one") as out:
        out.write(b"abc")
        out.write(b"", label=3)
    taken = ray.data.read_datasource(dlfs.ray.Datasource(str(tmp_path / "one"), by="id")).take_all()
    assert [(each["data"], each["label"]) for each in taken] == [(b"abc", None), (b"", 3)]
    fields = {"n": "i64", "tokens": "u16[*]", "half": "bf16[2]", "x": "bytes"}
    with dlfs.Writer(tmp_path / "many", fields) as out:
        out.write({"n": 5, "tokens": [1, 2, 3], "half": numpy.array([0x3F80, 0], "uint16"), "x": b"x"})
        out.write({"tokens": []})
    first, second = ray.data.read_datasource(dlfs.ray.Datasource(str(tmp_path / "many"), by="id")).take_all()
    assert (first["n"], list(first["tokens"]), first["x"]) == (5, [1, 2, 3], b"x")
    assert (second["n"], list(second["tokens"]), second["x"], second["half"]) == (None, [], None, None)


def test_views_and_images_with_deleted_samples_give_the_samples_that_are_left(tmp_path: Path) -> None:
    image = str(tmp_path / "some")
    with dlfs.Writer(image) as out:
        for number in range(50):
            out.write(b"%d" % number)
    dlfs.delete(image, [0, 7, 8])
    with dlfs.open(image) as dataset:
        dlfs.save_views(tmp_path / "views", {"odd": dataset.select(ids=range(11, 50, 2))})
    for view, expected in [(None, {*range(50)} - {0, 7, 8}), (f"{tmp_path}/views:odd", {*range(11, 50, 2)})]:
        taken = ray.data.read_datasource(dlfs.ray.Datasource(image, view=view)).take_all()
        assert sorted((each["id"], each["data"]) for each in taken) == [(id, b"%d" % id) for id in sorted(expected)]


def test_bits_of_bfloat16_become_the_same_numbers_without_a_dtype_for_them() -> None:
    kind = dlfs.FieldType("bfloat16", (2,))
    column = dlfs.ray._field([None, numpy.array([0x3F80, 0xC003], "uint16")], kind)
    assert column.to_pylist() == [None, [1, -2.046875]]
    number = dlfs.ray._field([numpy.uint16(0x4000)], dlfs.FieldType("bfloat16", ()))
    assert number.to_pylist() == [2]


def test_columns_that_are_neither_bytes_nor_numbers_are_refused_before_the_write(tmp_path: Path) -> None:
    sink = dlfs.ray.Datasink(lanes(tmp_path))
    with pytest.raises(TypeError, match="neither bytes nor numbers: x is"):
        sink.on_write_start(pyarrow.schema({"x": pyarrow.struct({"a": pyarrow.int64()})}))
    with pytest.raises(TypeError, match="say which fields"):
        sink.on_write_start(None)
    assert not list(tmp_path.iterdir())
