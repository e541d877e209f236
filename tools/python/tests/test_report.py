"""Reports of loaders: the page, its data, and what they say of a run."""

import json
from html.parser import HTMLParser

import pytest

import dlfs


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
        assert report.advice == data["advice"] and len(report.advice) == 3
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
