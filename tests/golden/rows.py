#!/usr/bin/env python3
"""Prints tests/golden/rows.txt, from the page of src/tokens/deal.rs alone.

The second, independent implementation of rows of tokens: it lays out each token, and compares all rows for each piece.
"""

from budgets import lengths
from permutation import derive, permutation, M

ROWS = 0x726F7773


def pieces_of(documents, capacity):
    """Documents cut into pieces of at most a row: (position, first token, number of tokens)."""
    return [
        (position, start, min(capacity, tokens - start))
        for position, tokens in documents
        for start in range(0, tokens, capacity)
    ]


def concat(documents, capacity):
    tokens = [(position, token) for position, count in documents for token in range(count)]
    starts = range(0, len(tokens) - capacity + 1, capacity - 1)
    rows = []
    for start in starts:
        row = []
        for position, token in tokens[start : start + capacity]:
            if row and row[-1][0] == position:
                row[-1][2] += 1
            else:
                row.append([position, token, 1])
        rows.append(row)
    return rows


def best_fit(documents, capacity, key):
    """The rows of one window."""
    rows = []  # [room, time at which the row got it, pieces]
    pieces = sorted(pieces_of(documents, capacity), key=lambda piece: (-piece[2], piece[0], piece[1]))
    for time, piece in enumerate(pieces):
        fitting = [row for row in rows if row[0] >= piece[2]]
        if fitting:
            row = min(fitting, key=lambda row: (row[0], -row[1]))
        else:
            row = [capacity, time, []]
            rows.append(row)
        row[:] = [row[0] - piece[2], time, row[2] + [piece]]
    if len(rows) < 2:
        return [row[2] for row in rows]
    forward = permutation(len(rows), key)
    return [rows[forward(i)][2] for i in range(len(rows))]


def rows_of(tokens, pack, separated, capacity, window, seed, epoch):
    """The rows of an epoch whose positions have these tokens: lists of (position, first token, number of tokens)."""
    documents = [(position, count + separated) for position, count in enumerate(tokens) if count > 0]
    if pack == "concat":
        return concat(documents, capacity)
    if pack == "none":
        return [[piece] for piece in pieces_of(documents, capacity)]
    rows = []
    for number in range(-(-len(tokens) // window)):
        here = [document for document in documents if document[0] // window == number]
        rows += best_fit(here, capacity, derive(seed, [ROWS, epoch, number]))
    return rows


# pack, separated, capacity, positions of a window, seed, epoch, tokens of each position
CASES = [
    (pack, *case)
    for pack in ("concat", "best_fit", "none")
    for case in [
        (False, 2, 8, 0, 0, [3, 0, 1, 2]),
        (True, 4, 4, 7, 1, []),
        (True, 9, 4, 7, 1, [0, 7]),
        (True, 9, 4, 7, 1, [5] * 9),
        (False, 10, 16, 7, 0, lengths(50, 30, 1)),
        (True, 17, 64, M, 3, lengths(150, 40, 2)),
        (True, 33, 100, 1, (1 << 24) - 1, lengths(300, 32, 3)),
    ]
]


def main():
    head = "pack | separated | capacity | window | seed | epoch | tokens of each position"
    print(f"# {head} | rows: position:first token+tokens")
    for pack, separated, capacity, window, seed, epoch, tokens in CASES:
        rows = rows_of(tokens, pack, separated, capacity, window, seed, epoch)
        given = " ".join(map(str, tokens))
        text = " / ".join(" ".join(f"{at}:{start}+{count}" for at, start, count in row) for row in rows)
        how = "separated" if separated else "bare"
        print(f"{pack} | {how} | {capacity} | {window} | {seed} | {epoch} | {given} | {text}")


if __name__ == "__main__":
    main()
