#!/usr/bin/env python3
"""Draws docs/concepts.svg: sample, chunk, image, namespace, target and loader, and how they lie in each other.

  docs/concepts.py            writes the picture
  docs/concepts.py --check    fails where the picture is not the one that this script draws
"""

import sys
from pathlib import Path

PICTURE = Path(__file__).resolve().parent / "concepts.svg"
WIDTH, HEIGHT = 720, 300
# The picture has a ground of its own, so that it reads on any page; a dark system gets the second value.
COLOURS = {
    "ground": ("#ffffff", "#161b22"),
    "box": ("#f5f6f8", "#1f2630"),
    "line": ("#7c8798", "#8b96a8"),
    "text": ("#1f2630", "#e6e9ee"),
    "note": ("#566072", "#a9b3c2"),
}
# Samples have the colour of their chunk; both grounds contrast with it.
CHUNKS = ["#d1495b", "#3a86c8", "#3f9d5c", "#c78a1b"]
# The widths of a chunk's samples, which differ in length.
SAMPLES = [[22, 34, 16, 28, 20], [30, 18, 26, 34], [16, 24, 20, 30, 28], [36, 22, 30, 26]]
# The samples of a batch: chunk and number within it.
BATCH = [(2, 3), (0, 1), (3, 0), (1, 2), (0, 4), (2, 0), (1, 1), (3, 3)]


def main():
    drawn = draw()
    if sys.argv[1:] == ["--check"]:
        if not PICTURE.exists() or PICTURE.read_text() != drawn:
            sys.exit("docs/concepts.svg is not what docs/concepts.py draws: run docs/concepts.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PICTURE.write_text(drawn)


def draw():
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12" role="img" '
        'aria-label="A target serves namespaces; they hold an image, whose chunks hold samples; a loader reads them">',
        *style(),
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        *box(14, 14, 440, 272, "target", "serves namespaces over NVMe/TCP"),
        *box(28, 48, 412, 224, "image", "one data set, across its namespaces", dashed=True),
        *box(42, 82, 188, 176, "namespace", "a file or a drive"),
        *box(238, 82, 188, 176, "namespace", ""),
    ]
    for number in range(4):
        x = 52 if number < 2 else 248
        y = 116 + 72 * (number % 2)
        out += box(x, y, 168, 60, "chunk", "at most 4 MiB" if number == 0 else "")
        at = x + 10
        for width in SAMPLES[number]:
            out.append(sample(at, y + 30, width, number))
            at += width + 4
    out += [
        *box(536, 14, 170, 272, "loader", "one on each rank"),
        *box(548, 48, 146, 64, "order", ""),
        *lines(558, 84, ["arithmetic on the seed:", "which sample is next"]),
        *box(548, 120, 146, 154, "window", "reads ahead"),
        *box(558, 153, 126, 78, "batch", ""),
    ]
    at, row = 568, 0
    for count, (chunk, index) in enumerate(BATCH):
        if count == 4:
            at, row = 568, 1
        width = SAMPLES[chunk][index] * 3 // 4
        out.append(sample(at, 181 + 24 * row, width, chunk))
        at += width + 4
    out += lines(558, 248, ["from many chunks,", "each one verified"])
    out += [
        '<path class="arrow" d="M454 184 H528" />',
        '<path class="head" d="M528 178 L537 184 L528 190 Z"/>',
        *middle(495, 160, ["few large", "reads"]),
        '<path class="arrow" d="M386 238 L470 258" />',
        *middle(494, 264, ["sample"]),
        "</svg>",
    ]
    return "\n".join(out) + "\n"


def style():
    names = {
        "ground": ".ground { fill: %s }",
        "box": ".box { fill: %s }",
        "line": ".box, .arrow { stroke: %s } .head { fill: %s }",
        "text": "text { fill: %s }",
        "note": ".note { fill: %s }",
    }
    light = [rule.replace("%s", COLOURS[name][0]) for name, rule in names.items()]
    dark = [rule.replace("%s", COLOURS[name][1]) for name, rule in names.items()]
    return [
        "<style>",
        *light,
        ".arrow { fill: none; stroke-width: 1.5 } .name { font-weight: bold }",
        f"@media (prefers-color-scheme: dark) {{ {' '.join(dark)} }}",
        "</style>",
    ]


def box(x, y, width, height, name, note, dashed=False):
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    return [
        f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"{dash}/>',
        *text(x + 10, y + 20, name, note),
    ]


def text(x, y, name, note):
    more = f' <tspan class="note" font-weight="normal" font-size="11"> {note}</tspan>' if note else ""
    return [f'<text class="name" x="{x}" y="{y}">{name}{more}</text>']


def lines(x, y, texts):
    return [f'<text class="note" font-size="11" x="{x}" y="{y + 15 * i}">{line}</text>' for i, line in enumerate(texts)]


def middle(x, y, texts):
    return [
        f'<text class="name" font-size="11" text-anchor="middle" x="{x}" y="{y + 14 * i}">{line}</text>'
        for i, line in enumerate(texts)
    ]


def sample(x, y, width, chunk):
    return f'<rect x="{x}" y="{y}" width="{width}" height="18" rx="2" fill="{CHUNKS[chunk]}"/>'


if __name__ == "__main__":
    main()
