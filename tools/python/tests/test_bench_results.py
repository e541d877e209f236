"""benches/all, the tables that it reads back, and the bars that it judges."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

BENCHES = Path(__file__).resolve().parents[3] / "benches"
sys.path.insert(0, str(BENCHES))
import bars  # noqa: E402
import known  # noqa: E402
import needs  # noqa: E402
import results  # noqa: E402
import tables  # noqa: E402

sys.path.remove(str(BENCHES))  # other tests import nothing from there

PAGE = """# name

Newest first; a table in prose is | not | one.

## 2026-11-29, commit abcdef1

    cargo bench --profile dist --bench name

Machine: AMD EPYC, 2 processors, 24 GiB,
Linux 6.18; profile dist.

| row | ours | other's | ratio | 90 % interval | bar | |
|---|---|---|---|---|---|---|
| 4 KiB, `depth 32` / SPDK | 665 k/s | 588 k/s | 0.79 | 0.75 to 0.84 | >= 0.85 | **MISSED** |
| the same: CPU | 0.4 s/GB | | 0.5 | 0.4 to 0.6 | <= 1.00 | met |

```text
| no | table |
|---|---|
| 1 | 2 |
```

### small, warm (200,000 samples)

| loader | w | samples/s | spread (runs) |
| --- | --: | --: | --: |
| dlfs | 0 | 1,000 | 20% (2) |
| dlfs | 2 | 500 | 2% (2) |
| ffcv | 2 | 800 | 4% (2) |

## 2026-11-22, commit 1234567

Machine: AMD EPYC, 2 processors, 24 GiB, Linux 6.12.

| row | ours | other's | ratio | 90 % interval | bar | |
|---|---|---|---|---|---|---|
| 4 KiB, `depth 32` / SPDK | 900 k/s | 588 k/s | 0.90 | 0.88 to 0.92 | >= 0.85 | met |
| the same: CPU | 0.2 s/GB | | 0.45 | 0.4 to 0.5 | <= 1.00 | met |
| gone | 1 k/s | | 1 | 1 to 1 | >= 1 | met |

### small, warm

| loader | w | samples/s | spread (runs) |
| --- | --: | --: | --: |
| dlfs | 0 | 1,050 | 2% (2) |
| ffcv | 2 | 8,000 | 4% (2) |
"""


def test_sections_have_commit_machine_commands_and_rows():
    _, (newest, older) = tables.sections(PAGE)
    assert (newest.date, newest.commit, older.commit) == ("2026-11-29", "abcdef1", "1234567")
    assert newest.machine == "AMD EPYC, 2 processors, 24 GiB, Linux 6.18; profile dist."
    assert newest.commands == ["cargo bench --profile dist --bench name"]
    names = [(row.table, row.name) for row in newest.rows]
    spdk = "4 KiB, depth 32 / SPDK"
    loaders = [("small, warm: loader", name) for name in ("dlfs, 0", "dlfs, 2", "ffcv, 2")]
    assert names == [("row", spdk), ("row", f"{spdk}: CPU"), *loaders]
    first = newest.rows[0]
    assert first.bar("ratio") == (">= 0.85", "missed") and first.cell("absent") == ""


@pytest.mark.parametrize(
    ("cell", "number", "unit", "low", "high"),
    [
        ("1,208 k/s", 1208, "k/s", None, None),
        ("0.92 (0.85 to 0.96)", 0.92, "", 0.85, 0.96),
        ("9.5, 10.5, 11.8 ns", 10.5, "ns", 9.5, 11.8),
        ("391,396", 391396, "", None, None),
        ("5.0 to 6.0 GB/s", 5.5, "GB/s", 5, 6),
        ("12 min 7 s (17 min user)", 727, "s", None, None),
        ("<= 50.00", 50, "", None, None),
        ("library: 262662", 262662, "", None, None),
        ("0.198 % of a core", 0.198, "%", None, None),
        ("-3.0 %", -3, "%", None, None),
        ("1.2e-05", 1.2e-05, "", None, None),
        ("1.00 in 1.01", 1, "", None, None),
    ],
)
def test_cells_are_read_with_unit_and_interval(cell, number, unit, low, high):
    found = tables.value(cell)
    assert (found.number, found.unit, found.low, found.high) == (number, unit, low, high)


def test_prose_is_no_value():
    for cell in ("", "met", "not for fio", "torchvision's ImageFolder", "2026-11-29", "100-readers"):
        assert tables.value(cell) is None, cell


def test_intervals_stand_in_the_next_column_or_in_a_spread():
    _, (newest, _) = tables.sections(PAGE)
    ratio, rate = newest.rows[0].value("ratio"), newest.rows[2].value("samples/s")
    assert (ratio.low, ratio.high, rate.low, rate.high) == (0.75, 0.84, 900, 1100)


@pytest.mark.parametrize(
    ("cell", "bar", "reached"),
    [
        ("1.05", "<= 1.05", True), ("1.06", "<= 1.05", False), ("0.9", ">= 0.9", True), ("1", "< 1", False),
        ("12 min 7 s", "<= 12 min", False), ("0.3 %", "<= 5 %", True), ("3 ms", "<= 2 s", None), ("1", "met", None),
    ],
)
def test_a_bar_is_reached_or_not_or_cannot_be_compared(cell, bar, reached):
    assert tables.reaches(tables.value(cell), bar) is reached


def test_worse_is_what_lost_more_than_its_interval_and_nothing_of_others():
    _, sections = tables.sections(PAGE)
    found = [(row.name, column, then.text, now.text) for row, column, then, now in tables.worse(sections)]
    spdk = "4 KiB, depth 32 / SPDK"
    assert found == [
        (spdk, "ours", "900 k/s", "665 k/s"),
        (spdk, "ratio", "0.90", "0.79"),
        (f"{spdk}: CPU", "ours", "0.2 s/GB", "0.4 s/GB"),
    ]


def test_another_machine_is_compared_by_bars_alone():
    _, sections = tables.sections(PAGE.replace("AMD EPYC, 2 processors, 24 GiB,\n", "Xeon, 2 processors, 24 GiB,\n"))
    assert {column for _, column, _, _ in tables.worse(sections)} == {"ours", "ratio"}
    sections[0].body = [line.replace("| bar | |", "| aim | |") for line in sections[0].body]
    assert not list(tables.worse(sections))


def entries(monkeypatch, folder, text):
    (folder / "name.md").write_text(PAGE)
    (folder / "bars.toml").write_text(text)
    monkeypatch.setattr(bars, "RESULTS", folder)
    return [line.strip("| ").split(" | ")[:4] for line in bars.page().splitlines() if line.startswith("| ")][1:]


def test_bars_come_from_the_newest_rows_or_say_why_they_have_none(monkeypatch, tmp_path):
    text = """
[[bar]]
results = "name"
rows = "SPDK$"
column = "ratio"
why = "a reason"
[[bar]]
results = "name"
rows = "."
column = "ratio"
[[bar]]
aim = "dlfs / FFCV"
results = "name"
table = "small"
rows = "^dlfs"
over = "^ffcv"
column = "samples/s"
bar = ">= 0.6"
[[bar]]
aim = "elsewhere"
results = "name"
rows = "absent"
column = "ratio"
bar = ">= 1"
unmeasured = "needs a GPU"
"""
    spdk = "4 KiB, depth 32 / SPDK"
    assert entries(monkeypatch, tmp_path, text) == [
        [spdk, ">= 0.85", "missed: a reason", "0.79 (0.75 to 0.84)"],
        [f"{spdk}: CPU", "<= 1.00", "met", "0.5 (0.4 to 0.6)"],
        ["gone", ">= 1", "met", "1 (1 to 1)"],
        ["dlfs / FFCV", ">= 0.6", "met", "0.62, the worst of 2"],
        ["elsewhere", ">= 1", "not measured here: needs a GPU"],
    ]
    with pytest.raises(SystemExit, match="no such row"):
        entries(monkeypatch, tmp_path, text.replace('unmeasured = "needs a GPU"', ""))


def test_every_bar_of_the_tree_is_judged_and_every_missed_one_is_explained():
    wrong = [line for line in bars.page().splitlines() if "not explained yet" in line or "not judged" in line]
    assert not wrong, "benches/results/bars.toml has no why"


def test_a_need_is_a_program_or_a_fact_and_some_are_optional():
    assert needs.lacks("processors=1 disk=0 sh") == ([], [])
    assert needs.lacks("processors=100000 no-such-program?") == (["100000 processors"], ["no-such-program"])


CARGO = """#!/usr/bin/env python3
import sys
sys.path.insert(0, "benches")
import results
bench = sys.argv[sys.argv.index("--bench") + 1]
if bench == "plan":
    sys.exit("error: no")
print("measured", bench)
results.record(bench, "cargo bench --profile dist --bench " + bench, "| what | result | bar | |\\n|---|---|---|---|\\n"
               "| mixture of 16 sources, random | 66 ns | <= 60 ns | MISSED |")
"""


def test_every_bench_of_cargo_can_be_run():
    commands = [row[1].split()[:2] for row in known.BENCHES]
    manifest = tomllib.loads((BENCHES.parent / "Cargo.toml").read_text())
    absent = [bench["name"] for bench in manifest["bench"] if ["cargo", bench["name"]] not in commands]
    assert not absent, "not in benches/all"


@pytest.fixture
def tree(tmp_path):
    """A repository with the benches' scripts, and a cargo that measures nothing."""
    shutil.copytree(BENCHES, tmp_path / "benches", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(BENCHES.parent / "docs", tmp_path / "docs")
    for tested in ("tests", "src"):
        (tmp_path / tested).symlink_to(BENCHES.parent / tested)
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "cargo").write_text(CARGO)
    (tmp_path / "programs" / "cargo").chmod(0o755)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", tmp_path]
    for command in (["init", "-q"], ["add", "benches", "docs"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], check=True)
    return tmp_path


def run_all(tree, *arguments):
    path = f"{tree / 'programs'}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "CARGO_TARGET_DIR": str(tree / "target")}
    env.pop("DLFS_RESULTS", None)
    command = [sys.executable, tree / "benches" / "all", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


def test_a_run_keeps_sections_goes_on_after_an_interruption_and_tells_what_is_worse(tree):
    first = run_all(tree, "--only", "order,plan,counting")
    assert first.returncode == 1, first.stderr
    assert "run      order" in first.stdout and "FAILED   plan" in first.stdout and "run      counting" in first.stdout
    worse = "order: what: mixture of 16 sources, random: result: 43.6 ns a position before, 66 ns now"
    assert worse in first.stdout
    _, sections = tables.sections((tree / "benches/results/order.md").read_text())
    assert "changes" not in sections[0].title and tables.hardware(sections[0]) == results.machine().rsplit(", ", 2)[0]
    again = run_all(tree, "--only", "order,plan,counting")
    assert "kept     order" in again.stdout and "FAILED   plan" in again.stdout and "measured order" not in again.stdout
    assert worse in again.stdout
    assert "66 ns" in (tree / "docs/performance.md").read_text()


def test_a_quick_run_writes_nothing_into_the_tree_and_says_what_it_skips(tree):
    run = run_all(tree, "--only", "order,spdk_engine", "--quick")
    assert "run      order" in run.stdout and "SKIPPED  spdk_engine: lacks SPDK" in run.stdout, run.stderr
    assert run.returncode == 0
    changed = subprocess.run(["git", "-C", tree, "status", "--porcelain", "-uno"], capture_output=True, text=True)
    assert changed.stdout == ""
    assert run_all(tree, "--only", "no-such-bench").returncode == 2


def test_the_page_of_bars_is_checked(tree):
    assert run_all(tree, "--bars", "--check").returncode == 0
    page = tree / "docs/performance.md"
    page.write_text(page.read_text().replace("| met |", "| missed |", 1))
    assert "run benches/all --bars" in run_all(tree, "--bars", "--check").stderr
    assert run_all(tree, "--bars").returncode == 0
    assert run_all(tree, "--bars", "--check").returncode == 0
