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


def length(phases, counted):
    """The length of a row before which rows have counted so many tokens."""
    return [seq_len for start, seq_len in phases if start <= counted][-1]


def concat(documents, phases):
    tokens = [(position, token) for position, count in documents for token in range(count)]
    rows, counted = [], 0
    while counted + length(phases, counted) < len(tokens):
        row = []
        for position, token in tokens[counted : counted + length(phases, counted) + 1]:
            if row and row[-1][0] == position:
                row[-1][2] += 1
            else:
                row.append([position, token, 1])
        rows.append(row)
        counted += length(phases, counted)
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
    return shuffled([row[2] for row in rows], key)


def shuffled(things, key):
    if len(things) < 2:
        return things
    forward = permutation(len(things), key)
    return [things[forward(i)] for i in range(len(things))]


def bound(count, capacity):
    """The upper bound of the bucket of a row with so many tokens."""
    bounds = [2**power for power in range(25)] + [3 * 2**power for power in range(25)]
    return min(capacity - 1, min(bound for bound in bounds if bound >= max(1, count - 1)))


def buckets(documents, capacity, key):
    """The rows of one window, each of one piece."""
    pieces = pieces_of(documents, capacity)
    order = shuffled(sorted({bound(piece[2], capacity) for piece in pieces}), key)
    return [[piece] for bucket in order for piece in pieces if bound(piece[2], capacity) == bucket]


def rows_of(tokens, pack, separated, phases, window, seed, epoch):
    """The rows of an epoch whose positions have these tokens: lists of (position, first token, number of tokens)."""
    documents = [(position, count + separated) for position, count in enumerate(tokens) if count > 0]
    if pack == "concat":
        return concat(documents, phases)
    rows, counted = [], 0
    for number in range(-(-len(tokens) // window)):
        here = [document for document in documents if document[0] // window == number]
        pack_window = best_fit if pack == "best_fit" else buckets
        seq_len = length(phases, counted)
        packed = pack_window(here, seq_len + 1, derive(seed, [ROWS, epoch, number]))
        rows += packed
        counted += seq_len * len(packed)
    return rows


# pack, separated, capacity, positions of a window, seed, epoch, tokens of each position, later phases
CASES = [
    (pack, *case)
    for pack in ("concat", "best_fit", "none")
    for case in [
        (False, 2, 8, 0, 0, [3, 0, 1, 2], []),
        (True, 4, 4, 7, 1, [], []),
        (True, 9, 4, 7, 1, [0, 7], []),
        (True, 9, 4, 7, 1, [5] * 9, []),
        (False, 10, 16, 7, 0, lengths(50, 30, 1), []),
        (True, 17, 64, M, 3, lengths(150, 40, 2), []),
        (True, 33, 100, 1, (1 << 24) - 1, lengths(300, 32, 3), []),
        (True, 17, 8, 5, 2, lengths(100, 40, 4), [(50, 9), (51, 30), (300, 5), (10**12, 8)]),
    ]
]


def main():
    head = "pack | separated | capacity | window | seed | epoch | phases: tokens:length | tokens of each position"
    print(f"# {head} | rows: position:first token+tokens")
    for pack, separated, capacity, window, seed, epoch, tokens, later in CASES:
        rows = rows_of(tokens, pack, separated, [(0, capacity - 1), *later], window, seed, epoch)
        given = " ".join(map(str, tokens))
        phases = " ".join(f"{start}:{seq_len}" for start, seq_len in later)
        text = " / ".join(" ".join(f"{at}:{start}+{count}" for at, start, count in row) for row in rows)
        how = "separated" if separated else "bare"
        print(f"{pack} | {how} | {capacity} | {window} | {seed} | {epoch} | {phases} | {given} | {text}")


if __name__ == "__main__":
    main()
