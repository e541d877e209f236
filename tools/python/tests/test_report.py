"""Reports of loaders: the page, its data, and what they say of a run."""

import json
import subprocess
from html.parser import HTMLParser

import pytest

import dlfs
from traces import events_of


def test_a_report_says_what_was_read_and_its_parts_add_up(image, source, tmp_path):
    page = tmp_path / "report.html"
    with dlfs.open(image, tiers="ram:64M") as ds, dlfs.Loader(ds, 7, seed=3, epochs=2) as loader:
        for _ in range(2):
            assert sum(len(batch) for batch in loader) == len(source)
        report, stats = loader.report(page), loader.stats()
        data = report.data
        assert data["total"]["samples"] == 2 * len(source)
        assert data["total"]["bytes"] == 2 * sum(map(len, source.contents))
        assert [epoch["samples"] for epoch in data["epochs"]] == [len(source)] * 2
        assert sum(bucket["batches"] for bucket in data["buckets"]) == data["total"]["batches"]
        assert data["total"]["stalls_s"] == pytest.approx(stats["stalls_s"])
        assert sum(stats["stalls_s"].values()) == pytest.approx(stats["stall_s"])
        assert set(stats["stalls_s"]) == {"start", "order", "window", "network", "checksum", "copy"}
        total = data["total"]
        parts = total["consumer_s"] + total["handing_s"] + sum(total["stalls_s"].values())
        assert parts == pytest.approx(data["seconds"])
        assert data["settings"]["seed"] == "3" and image in data["name"]
        assert sum(total["read_bytes"].values()) == stats["bytes"], "each byte read came from one place"
        assert stats["bytes_by_place"] == total["read_bytes"]
        assert report.advice == data["advice"] and 1 <= len(report.advice) <= 3
    text = page.read_text()
    assert text == str(report) and text.startswith("<!doctype html>")
    assert json.loads(text.split('id="dlfs-report">')[1].split("</script>")[0]) == data
    again = loader.report().data
    assert again["total"]["samples"] == 2 * len(source), "also once it is closed"


def test_a_notebook_shows_a_frame_and_nothing_of_it_leaves_the_frame(ds):
    with dlfs.Loader(ds, 32) as loader:
        report = loader.report()
        elements = []
        parser = HTMLParser()
        parser.handle_starttag = lambda tag, attributes: elements.append((tag, dict(attributes)))
        parser.feed(report._repr_html_())
        [(tag, attributes)] = elements
        assert tag == "iframe" and "sandbox" in attributes and attributes["srcdoc"].startswith("<!doctype html>")
        assert report.data["total"]["batches"] == 0 and "no batch" in report.advice[0].lower()


def test_a_path_that_cannot_be_written_is_an_error(ds, tmp_path):
    with dlfs.Loader(ds, 32) as loader, pytest.raises(dlfs.FileNotFound, match="absent"):
        loader.report(tmp_path / "absent" / "report.html")


def test_a_trace_has_every_batch_of_the_newest_iterator(image, source, tmp_path):
    path = tmp_path / "events.json"
    with dlfs.open(image) as ds, dlfs.Loader(ds, 7, seed=3, trace=True) as loader:
        batches = sum(1 for _ in loader)
        loader.save_trace(path)
        slices = events_of(path.read_text())["X"]
        assert sum(event["name"] == "next batch" for event in slices) == batches
        assert sum(event["args"].get("samples", 0) for event in slices) == len(source)
        assert any(event["name"] == "burst" for event in slices)
        # Iterators that exist at the same time have events of their own.
        older, newer = iter(loader), iter(loader)
        for _ in range(3):
            next(older), next(newer)
        next(newer)
        slices = events_of(loader.trace_json())["X"]
        assert sum(event["name"] == "next batch" for event in slices) == 4
        del older, newer
    with dlfs.open(image) as ds, dlfs.Loader(ds, 7) as loader:
        with pytest.raises(dlfs.InvalidArgument, match="trace=True"):
            loader.trace_json()
        with pytest.raises(dlfs.InvalidArgument, match="trace=True"):
            loader.save_trace(path)
    assert events_of(path.read_text())["X"], "the file stays"


def test_a_report_that_finds_no_room_leaves_the_old_page(ds, small_disk):
    page = small_disk / "report.html"
    with dlfs.Loader(ds, 32, trace=True) as loader:
        loader.report(page)
        before = page.read_bytes()
        for _ in loader:
            pass
        with open(small_disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"0" * 4096)
        for write in (loader.report, loader.save_trace):
            with pytest.raises(dlfs.Error, match="report.html") as raised:
                write(page)
            assert "No space left" in str(raised.value)
        assert page.read_bytes() == before
        assert {path.name for path in small_disk.iterdir()} == {"report.html", "filler"}


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for little more than a page."""
    path = tmp_path / "small"
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "dlfs-test", path], capture_output=True)
    if made.returncode != 0:
        pytest.skip("only root mounts a file system")
    yield path
    subprocess.run(["umount", path], check=True)
