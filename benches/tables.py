"""Results read back: the tables of benches/results/NAME.md as values, and what became worse between two entries.

A file has sections, newest first, each with a date, a commit, a machine, and tables between prose. A row is named by
its labels: the first of the columns without measurements that tell it from the others. Cells are kept as they are
written; `Row.value` reads one as a number with unit and interval.
"""

import re
from dataclasses import dataclass, field
from statistics import mean, median

NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?"
UNIT = r"%|[A-Za-zµ]*/(?:s|M|GB)\b|[KMGT]?i?B\b|[nuµm]?s\b"
VALUE = re.compile(rf"(?:[^\d:]*: )?(?:[<>]=?|at most|at least)?\s*({NUMBER})(?![\d-])\s*({UNIT})?")
RANGE = re.compile(rf"({NUMBER})\s*(?:{UNIT})?(?: to |-)({NUMBER})")
LIST = re.compile(rf"{NUMBER}(?:, {NUMBER})+")
BAR = re.compile(r"(<=|>=|<|>|at most|at least)\s*(\d.*)")
VERDICT = re.compile(r"\b(met|missed)\b", re.I)
MEASURED = re.compile(r"/s\b|CPU|memory|\bMB|\bGB|\b[num]?s\b|ratio|interval|spread")
BARS = ("bar", "limit")
SPREAD = re.compile(r"^spread")
INTERVAL = re.compile(r"interval|^range$")
LOOSE = 0.10  # where a result has no interval


@dataclass(frozen=True)
class Value:
    text: str
    number: float
    unit: str
    low: float | None = None
    high: float | None = None


@dataclass
class Row:
    table: str  # the heading above the table, and the first cell of its head
    name: str
    columns: list
    cells: list

    def cell(self, column):
        """The text of a column; empty where there is none."""
        return plain(self.cells[self.columns.index(column)]) if column in self.columns else ""

    def value(self, column):
        """The value of a column, with the interval that stands in it, in the column behind it or as a spread."""
        found = value(self.cell(column))
        if found is None or found.low is not None:
            return found
        if beside := RANGE.match(self.interval(column)):
            return Value(found.text, found.number, found.unit, *map(number, beside.groups()))
        spreads = [value(cell) for name, cell in zip(self.columns, self.cells) if SPREAD.search(name)]
        if spreads and spreads[0]:
            half = abs(found.number) * spreads[0].number / 200
            return Value(found.text, found.number, found.unit, found.number - half, found.number + half)
        return found

    def interval(self, column):
        """The interval that has a column of its own behind that of its value."""
        at = self.columns.index(column) + 1
        return plain(self.cells[at]) if at < len(self.columns) and INTERVAL.search(self.columns[at]) else ""

    def bar(self, column):
        """The bar of a column, which stands behind it or else before it, and what is said of it in the row."""
        if column not in self.columns:
            return "", ""
        at = self.columns.index(column)
        said, bar = self.cells[at], ""
        for beside in [*range(at if column in BARS else at + 1, len(self.columns)), *range(1, at)]:
            if self.columns[beside] in ("", *BARS):
                unnamed = self.cells[beside + 1] if self.columns[beside + 1:beside + 2] == [""] else ""
                said = f"{said} {self.cells[beside]} {unnamed}"
                bar = plain(self.cells[beside]) if self.columns[beside] else ""
                break
        said = map(str.lower, VERDICT.findall(said))
        return bar, min(said, key=("missed", "met").index, default="")


@dataclass
class Section:
    title: str
    body: list = field(default_factory=list)

    @property
    def date(self):
        found = re.match(r"\d{4}-\d\d-\d\d", self.title)
        return found.group() if found else ""

    @property
    def commit(self):
        found = re.search(r"\bcommits? ([0-9a-f]{7,40})\b", self.title)
        return found.group(1) if found else ""

    @property
    def machine(self):
        found = re.search(r"^Machine: ((?:.|\n(?!\n))*)", "\n".join(self.body), re.M)
        return " ".join(found.group(1).split()) if found else ""

    @property
    def commands(self):
        return [line.strip() for line in self.body if line.startswith("    ")]

    @property
    def rows(self):
        return rows(self.body)


def sections(text):
    """What stands before the first section, which summaries do, and the sections, newest first."""
    found, fenced = [Section("")], False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            found.append(Section(line[3:].strip()))
        else:
            found[-1].body.append(line)
    return found[0], found[1:]


def rows(lines):
    """The rows of all tables; code between fences is none."""
    found, heading, fenced, at = [], "", False, 0
    while at < len(lines):
        line = lines[at]
        fenced ^= line.startswith("```")
        if line.startswith("### "):
            heading = re.sub(r"\s*\(.*", "", line[4:]).strip()
        is_head = at + 1 < len(lines) and line.startswith("|") and re.fullmatch(r"\|[-|: ]+\|", lines[at + 1].strip())
        at += 1
        if fenced or not is_head:
            continue
        head, cells = split(line), []
        while at + 1 < len(lines) and lines[at + 1].startswith("|"):
            cells.append((split(lines[at + 1]) + [""] * len(head))[:len(head)])
            at += 1
        at += 1
        table = f"{heading}: {head[0]}" if heading and head[0] else heading or head[0]
        found += [Row(table, name, head, row) for name, row in zip(names(head, cells), cells)]
    return found


def split(line):
    return [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def names(head, cells):
    """A name for each row: its first cell, and as many more labels as tell the rows apart."""
    labels = [at for at, name in enumerate(head) if at == 0 or is_label(name, [row[at] for row in cells])]
    found = []
    for count in range(1, len(labels) + 1):
        found = [", ".join(filter(None, (label(row[at]) for at in labels[:count]))) for row in cells]
        if len(set(found)) == len(found):
            break
    for at in range(1, len(found)):  # "the same" is the row above
        if found[at].startswith("the same"):
            above = re.split("[:;] ", found[at - 1])[0]
            found[at] = above + re.sub("^the same(?!:)", "; the same", found[at]).removeprefix("the same")
    return [f"{name} ({found[:at].count(name) + 1})" if name in found[:at] else name for at, name in enumerate(found)]


def is_label(name, column):
    """Whether a column tells rows apart: text, or whole numbers without a unit."""
    if name in ("", *BARS) or MEASURED.search(name):
        return False
    measured = [found for found in map(value, column) if found and (found.unit or "." in found.text)]
    return 2 * sum(not re.match(r"[A-Za-z`]", found.text) for found in measured) < max(1, len(column))


def label(cell):
    """A label without the figure that may stand behind it, as in "ext4: 260"."""
    return re.sub(rf":\s*{NUMBER}$", "", plain(cell))


def plain(cell):
    return cell.replace("**", "").replace("`", "").strip()


def number(text):
    return float(text.replace(",", ""))


def value(text):
    """A cell as a number with unit and interval, or None: `0.92 (0.85 to 0.96)`, `9.5, 10.5 ns`, `12 min 7 s`."""
    text = plain(text)
    minutes = re.match(r"(\d+) min(?: (\d+) s)?", text)
    if minutes:
        return Value(text, int(minutes.group(1)) * 60 + int(minutes.group(2) or 0), "s")
    found = VALUE.match(text)
    if not found:
        return None
    first, unit, rest = number(found.group(1)), found.group(2) or "", text[found.start(1):]
    between, many = RANGE.match(rest), LIST.match(rest)
    if between:
        low, high = map(number, between.groups())
        return Value(text, mean((low, high)), unit or unit_after(rest, between), low, high)
    if many:
        all_of = [number(part) for part in many.group().split(", ")]
        return Value(text, median(all_of), unit or unit_after(rest, many), min(all_of), max(all_of))
    around = RANGE.match(text[found.end():].lstrip(" ("))
    return Value(text, first, unit, *map(number, around.groups())) if around else Value(text, first, unit)


def unit_after(text, found):
    unit = re.match(rf"\s*({UNIT})", text[found.end():])
    return unit.group(1) if unit else ""


def reaches(found, bar):
    """Whether a value reaches a bar such as `<= 1.05`; None where that cannot be told."""
    wanted = BAR.search(bar)
    limit = value(wanted.group(2)) if wanted else None
    if limit is None or found is None or (limit.unit and found.unit and limit.unit != found.unit):
        return None
    sign = wanted.group(1)
    if sign in ("<", ">"):
        return found.number < limit.number if sign == "<" else found.number > limit.number
    return found.number <= limit.number if sign in ("<=", "at most") else found.number >= limit.number


def direction(row, column, found):
    """1 where more is better, -1 where less is, 0 where nobody can tell."""
    bar = BAR.search(row.bar(column)[0])
    if bar:
        return -1 if bar.group(1) in ("<=", "<", "at most") else 1
    words = f"{found.unit} {column}"
    if re.search(r"/s\b|a CPU second", words):
        return 1
    return -1 if re.search(r"CPU|(?<!')\b(?:s/GB|s/M|[nuµm]?s)\b|memory|RSS|bytes read", words) else 0


def worse(sections):
    """(row, column, before, now) of what lost more than its interval, or a tenth where there is none.

    Sections are newest first. Those of the newest commit are compared, each row with the newest before that has it.
    Another machine has other absolute figures, so that only what has a bar is compared with it."""
    first = sections[0]
    newest = [one for one in sections if one.title == first.title or one.commit == first.commit != ""]
    known = {}
    for section in reversed([one for one in sections if one not in newest]):
        known.update(((row.table, row.name), (row, hardware(section))) for row in section.rows)
    for section in newest:
        for row in section.rows:
            before, machine = known.get((row.table, row.name), (None, ""))
            is_other = re.match(r"loader|writer", row.columns[0]) and "dlfs" not in row.name
            for column in [] if before is None or is_other else compared(row):
                now, then = row.value(column), before.value(column)
                has_same = machine == hardware(section) or row.bar(column)[0]
                if now and then and now.unit == then.unit and has_same and lost(now, then, direction(row, column, now)):
                    yield row, column, then, now


def compared(row):
    """Columns of a row that are figures of ours."""
    return [
        column for column in dict.fromkeys(row.columns)
        if column not in ("", *BARS, "beside", "other's") and not INTERVAL.search(column) and not SPREAD.search(column)
    ]


def lost(now, then, sign):
    """Whether a value is on the wrong side of the one before, by more than the wider of their intervals."""
    ends = [abs(at.number - end) for at in (now, then) for end in (at.low, at.high) if end is not None]
    return sign * (then.number - now.number) > (max(ends) if ends else LOOSE * abs(then.number))


def hardware(section):
    """Processor and number of processors, as sections name them first."""
    return ", ".join(section.machine.split(", ")[:2])
