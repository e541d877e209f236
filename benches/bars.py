"""The table of all bars: the last section of docs/performance.md, made of benches/results by results/bars.toml.

An entry of bars.toml names the file `results`, `rows` and perhaps `table` as regular expressions, and the `column`. The
newest value of each row counts. With an `aim` the rows are one line, which shows the worst; without one, or with a
`{row}` in it, each row is a line, unless an entry above has it. `over` divides by the best of other rows. The `bar` and
the verdict are the table's own unless they are given. `why` says why a bar is missed; `unmeasured` why no results have
it, as long as they have none; `tested` names the test that holds it.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import tables

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benches" / "results"
PAGE = ROOT / "docs" / "performance.md"
HEADING = "## All bars"


@dataclass
class Found:
    name: str
    text: str
    number: float
    bar: str
    verdict: str
    section: tables.Section


def write():
    PAGE.write_text(f"{PAGE.read_text().partition(HEADING)[0].rstrip()}\n\n{page()}")


def is_written():
    return PAGE.read_text().partition(HEADING)[1:] == (HEADING, page().removeprefix(HEADING))


def page():
    """The section, with its heading."""
    seen, lines = set(), []
    for entry in tomllib.loads((RESULTS / "bars.toml").read_text())["bar"]:
        lines += lines_of(entry, seen)
    count = [sum(line[2].startswith(verdict) for line in lines) for verdict in ("met", "missed", "tested", "not ")]
    told = (
        f"Of the project's aims {count[0]} are met by the newest results that have them, {count[1]} are missed,\n"
        f"{count[2]} are held by tests, and {count[3]} were not measured."
    )
    head = ["| aim | bar | | measured | results |", "|---|---|---|---|---|"]
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in (aim, bar, verdict, value, where)) + " |"
            for aim, bar, verdict, value, where in lines]
    return "\n".join([HEADING, "", told, "", "<!-- made by benches/all --bars -->", *head, *rows]) + "\n"


def lines_of(entry, seen):
    """The lines of an entry: aim, bar, verdict, value, results."""
    found, aim = measured(entry), entry.get("aim", "{row}")
    if "{row}" in aim:
        found = [one for one in found if (entry["results"], one.name) not in seen]
    seen.update((entry.get("results"), one.name) for one in found)
    if not found and "tested" in entry:
        if not (ROOT / entry["tested"]).exists():
            raise SystemExit(f"bars.toml: {aim}: there is no {entry['tested']}")
        return [(aim, entry["bar"], "tested", "", f"`{entry['tested']}`")]
    if not found and "unmeasured" in entry:
        return [(aim, entry["bar"], f"not measured here: {entry['unmeasured']}", "", "")]
    if not found:
        raise SystemExit(f"bars.toml: {aim}, '{entry['rows']}': {entry['results']}.md has no such row with a bar")
    if "{row}" in aim:
        return [line(entry, one, aim.format(row=one.name), one.text) for one in found]
    chosen, count = worst(found), f", the worst of {len(found)}" if len(found) > 1 else ""
    return [line(entry, chosen, aim, chosen.text + count)]


def line(entry, found, aim, text):
    missed = found.verdict == "missed"
    verdict = f"missed: {entry.get('why', 'not explained yet')}" if missed else found.verdict or "not judged"
    link = f"[{entry['results']}](../benches/results/{entry['results']}.md)"
    return aim, entry.get("bar", found.bar), verdict, text, ", ".join(filter(None, (link, found.section.date)))


def measured(entry):
    """The newest of each row that the entry names."""
    path = RESULTS / f"{entry.get('results')}.md"
    before, sections = tables.sections(path.read_text() if path.exists() else "")
    found = {}
    for section in [before, *sections]:
        rows = [row for row in section.rows if re.search(entry.get("table", ""), row.table)]
        for row in rows:
            if re.search(entry["rows"], row.name) and row.cell(entry["column"]):
                found.setdefault((row.table, row.name), judged(entry, section, row, rows))
        if found and "{row}" not in entry.get("aim", "{row}"):
            break  # older sections may have named their rows otherwise
    return [one for one in found.values() if one]


def judged(entry, section, row, rows):
    """A row with its value, bar and verdict; None where it has neither a bar nor something to divide by."""
    bar, verdict = row.bar(entry["column"])
    bar = entry.get("bar", bar)
    value, text = row.value(entry["column"]), row.cell(entry["column"])
    if "over" in entry:
        others = [one for one in rows if one.table == row.table and re.search(entry["over"], one.name)]
        numbers = [found.number for one in others if (found := one.value(entry["column"])) and found.number]
        if value is None or not numbers:
            return None
        ratio = value.number / (min if bar.startswith("<") else max)(numbers)
        value, text, verdict = tables.Value(f"{ratio:.2f}", ratio, ""), f"{ratio:.2f}", ""
    elif beside := row.interval(entry["column"]):
        text += f" ({beside})"
    if not verdict and not bar:
        return None
    if not verdict:
        verdict = {True: "met", False: "missed", None: ""}[tables.reaches(value, bar)]
    bar = re.sub(r",? *\b(met|missed)\b.*", "", bar, flags=re.I).rstrip(": ") if "bar" not in entry else bar
    text = re.sub(r"^met: |: (met|missed)$", "", text)
    return Found(row.name, text, value.number if value else 0, bar, verdict, section)


def worst(found):
    """A row that misses comes before others; then the one that is furthest on the bar's wrong side."""
    sign = -1 if found[0].bar.startswith(("<", "at most")) else 1
    return min(found, key=lambda one: (one.verdict != "missed", sign * one.number))
