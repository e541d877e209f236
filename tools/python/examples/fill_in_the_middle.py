"""Fill in the middle: documents of rows of tokens are cut at two places, and their middle is put last.

    loader = dlfs.tokens.Loader(ds, 4096, 8, segment_ids=True, sample_ids=True, loss_mask=True, separator=0, seed=7)
    for rows in loader:
        rows = fill_in_the_middle(rows, seed=7, prefix=1, middle=2, suffix=3, separator=0)

PSM is <prefix> p <suffix> s <middle> m; SPM is <prefix> <suffix> s <middle> p m. A document keeps its columns, so its
last three tokens make room for the sentinels. Each draws from its own numbers, which depend on seed, epoch and sample:
they are the same on any number of ranks, in any worker and after the run resumes.
"""

import dataclasses

import numpy

import dlfs


def fill_in_the_middle(rows, seed, *, prefix, middle, suffix, rate=0.5, spm_rate=0.5, separator=None):
    """The rows with this share of documents changed, of which the share `spm_rate` is SPM. The arrays are new ones."""
    tokens, labels, mask = rows.tokens.copy(), rows.labels.copy(), rows.loss_mask.copy()
    for r, columns, sample in segments(rows):
        draw = dlfs.random_of(seed, rows.epoch, sample)
        document = tokens[r, columns]
        end = len(document) - int(document[-1] == separator)  # the separator stays behind the document
        is_chosen, is_spm = draw.random(2) < (rate, spm_rate)
        if not is_chosen or end < 4:
            continue
        first, last = sorted(draw.integers(0, end - 3, 2, endpoint=True))
        p, m, s = numpy.split(document[: end - 3], [first, last])
        parts = ([prefix], [suffix], s, [middle], p, m) if is_spm else ([prefix], p, [suffix], s, [middle], m)
        document[:end] = numpy.concatenate(parts)
        labels[r, columns.start : columns.stop - 1] = document[1:]
        if columns.start > 0:
            labels[r, columns.start - 1] = document[0]
        if columns.stop == tokens.shape[1]:
            mask[r, -1] = False  # the label behind the row followed the document as it was
    return dataclasses.replace(rows, tokens=tokens, labels=labels, loss_mask=mask)


def segments(rows):
    """(row, columns, sample) of each document, or part of one, among the inputs."""
    for r, ids in enumerate(rows.segment_ids):
        bounds = numpy.flatnonzero(numpy.diff(ids, prepend=-1, append=-1))
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
            if ids[start]:
                yield r, slice(start, stop), int(rows.sample_ids[r, start])
