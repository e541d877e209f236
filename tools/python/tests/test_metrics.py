"""Metrics: the page is OpenMetrics to the official parser, and its values are those of the files and of stats()."""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

import dlfs
import dlfs.metrics
from conftest import command


def fetch(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        return answer.read().decode()


def parse(text):
    """The samples by name and labels, as the official parser reads them."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="prometheus_client is not installed")
    samples = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation and family.type != "unknown", family.name
        assert not family.unit or family.name.endswith(f"_{family.unit}"), family.name
        for sample in family.samples:
            samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return samples


def test_the_official_parser_reads_the_page_and_finds_what_was_read(image, source):
    with dlfs.metrics.serve("127.0.0.1:0") as server, dlfs.open(image, tiers="ram:64M") as ds:
        before = parse(fetch(server.url))
        with dlfs.Loader(ds, batch_size=7) as loader:
            assert sum(len(batch) for batch in loader) == len(source)
        # Closed: it reads no further epoch ahead, so that its counters stand still.
        after = parse(fetch(server.url))
        stats, metrics = loader.stats(), loader.metrics()
        assert bytes(ds[3]) == source.contents[3]

        def grown(name, **labels):
            key = (name, tuple(labels.items()))
            return after[key] - before.get(key, 0)

        assert grown("dlfs_loader_samples_total") == len(source) == metrics["dlfs_loader_samples_total"]
        assert grown("dlfs_loader_sample_bytes_total") == sum(map(len, source.contents))
        assert grown("dlfs_read_bytes_total", by="loader") == stats["bytes"]
        assert metrics['dlfs_read_bytes_total{by="loader"}'] == stats["bytes"]
        assert grown("dlfs_read_commands_total", by="loader") == stats["commands"]
        assert metrics["dlfs_loader_stall_seconds_total"] == stats["stall_s"]
        [tier] = ds.stats()["tiers"]
        series = f'dlfs_tier_capacity_bytes{{tier="{tier["name"]}"}}'
        assert ds.metrics()[series] == dlfs.metrics.values()[series] == tier["capacity_bytes"] > 0
        assert ds.metrics()['dlfs_read_commands_total{by="id"}'] == ds.stats()["commands"]
        assert ds.stats()["latency"]["count"] == ds.stats()["commands"]
        assert ds.metrics()['dlfs_read_command_seconds_count{by="id"}'] == ds.stats()["commands"]
    values = dlfs.metrics.values()
    assert values["dlfs_loader_samples_total"] >= len(source), "what has ended still counts"
    assert series not in values, "a gauge of what is closed"


def test_a_target_s_page_is_openmetrics_too(image):
    child = subprocess.Popen(
        [sys.executable, "-m", "dlfs", "serve", image, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )
    try:
        url = re.search(r"http://\S+/metrics", child.stderr.readline())[0]
        subsystem = ("subsystem", "nqn.2026-11.io.dlfs:train")
        reads = ("dlfs_target_commands_total", (("command", "read"), subsystem))
        limit = time.monotonic() + 60
        while reads not in (samples := parse(fetch(url))):  # the page may be there before the target is
            assert time.monotonic() < limit, samples
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    assert samples[reads] == 0
    [build] = [labels for name, labels in samples if name == "dlfs_build_info"]
    assert dict(build)["version"] == dlfs.__version__


def test_an_address_that_is_wrong_or_taken_is_an_error():
    with pytest.raises(dlfs.InvalidArgument, match="IP:PORT"):
        dlfs.metrics.serve("9410")
    with dlfs.metrics.serve("127.0.0.1:0") as server:
        with pytest.raises(dlfs.Busy, match="cannot serve metrics"):
            dlfs.metrics.serve(server.address)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{server.address}/", timeout=60)
    server.close()  # a second time does nothing
    assert dlfs.metrics.text().endswith("\n# EOF\n")


def keys_of(value):
    """The keys of nested dicts."""
    return {key: keys_of(of) for key, of in value.items()} if isinstance(value, dict) else None


def test_the_counters_of_a_loader_have_one_shape_in_python_and_on_the_command_line(image):
    with dlfs.open(image) as ds, dlfs.Loader(ds, batch_size=7, seed=3) as loader:
        samples = sum(len(batch) for batch in loader)
        stats = loader.stats()
    printed = json.loads(command("read", image, "--batch-size", 7, "--seed", 3, "--json"))["loader"]
    assert keys_of(stats) == keys_of(printed)
    assert printed["samples"] == stats["samples"] == samples
    latency = stats["latency"]
    assert latency["count"] == stats["commands"] and 0 <= latency["p50_us"] <= latency["p99_9_us"]
    assert stats["corrupt"] == 0 and stats["window_bytes"] >= stats["window_used_bytes"]
