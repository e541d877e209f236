"""Rows of tokens by their definition, cell by cell: the independent model of dlfs.tokens.

A document is (id, tokens, loss bytes). A cell is (index of the document, number of the token, number of its segment in
the row, number within the segment). A row is a list of cells, as many as its capacity or fewer.
"""

import numpy

from permutation import derive, permutation  # tests/golden

ROWS = 0x726F7773


class Epoch:
    """The rows of an epoch, as lists of segments, which are lists of (document, token); the inputs that each needs; and
    the first row of each phase that has begun."""

    def __init__(self, options):
        self.rows, self.inputs, self.starts, self.counted = [], [], [], 0
        later = options.get("phases", ())
        self.lengths = [(0, options["seq_len"])] + [(start, given["seq_len"]) for start, given in later]

    def length(self):
        """The length of the next row, with which phases may begin."""
        while len(self.starts) < len(self.lengths) and self.lengths[len(self.starts)][0] <= self.counted:
            self.starts.append(len(self.rows))
        return self.lengths[len(self.starts) - 1][1]

    def add(self, rows, inputs, length):
        self.rows += rows
        self.inputs += [inputs] * len(rows)
        self.counted += length * len(rows)

    def batches(self, at, ranks, sizes):
        """The whole global batches from a row on: the first row of each, and the rows of a rank."""
        while at < len(self.rows):
            size = sizes[sum(start <= at for start in self.starts) - 1]
            end = at + ranks * size
            later = [start for start in self.starts if at < start < end]
            if later:
                at = later[0]
                continue
            if end > len(self.rows):
                return
            yield at, size
            at = end


def end_to_end(lengths, epoch):
    line = [(index, at) for index, length in enumerate(lengths) for at in range(length)]
    while True:
        length = epoch.length()
        row = line[epoch.counted : epoch.counted + length + 1]
        if len(row) <= length:
            return
        documents = sorted({index for index, _ in row})
        epoch.add([[[cell for cell in row if cell[0] == index] for index in documents]], length, length)


def bucket(tokens, length):
    """The inputs that a row of one document has room for."""
    bounds = sorted(bound for power in range(25) for bound in (2**power, 3 * 2**power))
    return min(length, next(bound for bound in bounds if bound >= tokens - 1))


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


def shuffled(things, key):
    forward = permutation(len(things), key) if things else None
    return [things[forward(at)] for at in range(len(things))]


def rows_of(documents, options, seed, number):
    """The rows of an epoch. Empty documents are left out, but keep their positions."""
    separated = options.get("separator") is not None
    lengths = [len(tokens) + separated if len(tokens) else 0 for _, tokens, _ in documents]
    epoch, window = Epoch(options), options["pack_window"]
    if options["pack"] == "concat":
        end_to_end(lengths, epoch)
        return epoch
    for at, start in enumerate(range(0, len(lengths), window)):
        length = epoch.length()
        items = list(pieces(lengths, length + 1, range(start, min(start + window, len(lengths)))))
        key = derive(seed, [ROWS, number, at])
        if options["pack"] == "best_fit":
            epoch.add(shuffled(best_fit(items, length + 1), key), length, length)
            continue
        for bound in shuffled(sorted({bucket(len(item), length) for item in items}), key):
            epoch.add([[item] for item in items if bucket(len(item), length) == bound], bound, length)
    return epoch


def arrays_of(rows, documents, options, inputs):
    """The arrays of a batch of rows, as a dict of [B, inputs]."""
    shape = (len(rows), inputs + 1)
    tokens = numpy.full(shape, options.get("pad", 0), dtype=numpy.int64)
    segments, places = numpy.zeros(shape, numpy.int32), numpy.zeros(shape, numpy.int32)
    mask, ids = numpy.zeros(shape, bool), numpy.full(shape, -1)
    starts = []
    for r, row in enumerate(rows):
        column = 0
        for number, segment in enumerate(row, 1):
            starts.append(r * inputs + column if column < inputs else None)
            for place, (index, at) in enumerate(segment):
                id, content, loss = documents[index]
                is_separator = at == len(content)
                tokens[r, column] = options["separator"] if is_separator else content[at]
                segments[r, column], places[r, column], ids[r, column] = number, place, id
                first = place == 0 and options["pack"] != "concat"
                mask[r, column] = not first and (is_separator or loss is None or loss[at] != 0)
                column += 1
        if column < inputs:
            starts.append(r * inputs + column)
    starts = [start for start in starts if start is not None] + [len(rows) * inputs]
    return {
        "tokens": tokens[:, :-1], "labels": tokens[:, 1:], "loss_mask": mask[:, 1:], "cu_seqlens": starts,
        "segment_ids": segments[:, :-1], "position_ids": places[:, :-1], "sample_ids": ids[:, :-1],
    }
