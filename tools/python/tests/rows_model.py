"""Rows of tokens by their definition, cell by cell: the independent model of dlfs.tokens.

A document is (id, tokens, loss bytes). A cell is (index of the document, number of the token, number of its segment in
the row, number within the segment). A row is a list of cells, as many as its capacity or fewer.
"""

import numpy

from permutation import derive, permutation  # tests/golden

ROWS = 0x726F7773


def end_to_end(lengths, capacity):
    line = [(index, at) for index, length in enumerate(lengths) for at in range(length)]
    starts = range(0, len(line) - capacity + 1, capacity - 1)
    return [line[start : start + capacity] for start in starts]


def pieces(lengths, capacity, positions):
    """The documents at these positions as lists of at most `capacity` tokens."""
    for index in positions:
        for start in range(0, lengths[index], capacity):
            yield [(index, at) for at in range(start, min(start + capacity, lengths[index]))]


def best_fit(items, capacity):
    """Rows in the order in which they are opened. `touched` is when a row last got its room."""
    rows, touched = [], []
    for time, item in enumerate(sorted(items, key=len, reverse=True)):
        rooms = [(capacity - sum(map(len, row)), -touched[at], at) for at, row in enumerate(rows)]
        fitting = [room for room in rooms if room[0] >= len(item)]
        at = min(fitting)[2] if fitting else len(rows)
        if at == len(rows):
            rows.append([])
            touched.append(0)
        rows[at].append(item)
        touched[at] = time
    return rows


def epoch_of(lengths, options, seed, epoch):
    """The rows of an epoch, as lists of segments, which are lists of (document, token)."""
    capacity, pack = options["seq_len"] + 1, options["pack"]
    if pack == "concat":
        rows = end_to_end(lengths, capacity)
        return [[[cell for cell in row if cell[0] == index] for index in sorted({i for i, _ in row})] for row in rows]
    if pack == "none":
        return [[item] for item in pieces(lengths, capacity, range(len(lengths)))]
    result, window = [], options["pack_window"]
    for number, start in enumerate(range(0, len(lengths), window)):
        positions = range(start, min(start + window, len(lengths)))
        rows = best_fit(pieces(lengths, capacity, positions), capacity)
        if rows:
            forward = permutation(len(rows), derive(seed, [ROWS, epoch, number]))
            result += [rows[forward(at)] for at in range(len(rows))]
    return result


def rows_of(documents, options, seed, epoch):
    """The rows of an epoch, as lists of segments. Empty documents are left out, but keep their positions."""
    separated = options.get("separator") is not None
    lengths = [len(tokens) + separated if len(tokens) else 0 for _, tokens, _ in documents]
    return epoch_of(lengths, options, seed, epoch)


def arrays_of(rows, documents, options):
    """The arrays of a batch of rows, as a dict of [B, L]."""
    shape = (len(rows), options["seq_len"] + 1)
    tokens = numpy.full(shape, options.get("pad", 0), dtype=numpy.int64)
    segments, places = numpy.zeros(shape, numpy.int32), numpy.zeros(shape, numpy.int32)
    mask, ids = numpy.zeros(shape, bool), numpy.full(shape, -1)
    starts = []
    for r, row in enumerate(rows):
        column = 0
        for number, segment in enumerate(row, 1):
            starts.append(r * options["seq_len"] + column if column < options["seq_len"] else None)
            for place, (index, at) in enumerate(segment):
                id, content, loss = documents[index]
                is_separator = at == len(content)
                tokens[r, column] = options["separator"] if is_separator else content[at]
                segments[r, column], places[r, column], ids[r, column] = number, place, id
                first = place == 0 and options["pack"] != "concat"
                mask[r, column] = not first and (is_separator or loss is None or loss[at] != 0)
                column += 1
        if column < options["seq_len"]:
            starts.append(r * options["seq_len"] + column)
    starts = [start for start in starts if start is not None] + [len(rows) * options["seq_len"]]
    return {
        "tokens": tokens[:, :-1], "labels": tokens[:, 1:], "loss_mask": mask[:, 1:], "cu_seqlens": starts,
        "segment_ids": segments[:, :-1], "position_ids": places[:, :-1], "sample_ids": ids[:, :-1],
    }
