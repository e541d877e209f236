"""Masked language modelling, as BERT's: a model that sees both sides learns the tokens that were hidden.

    loader = dlfs.tokens.Loader(ds, 512, 32, pack="best_fit", segment_ids=True, sample_ids=True, separator=102, seed=7)
    for rows in loader:
        inputs, labels = masked(rows, seed=7, mask=103, vocabulary=30_522, special=(101, 102))

Each document draws from its own generator of torch, which depends on seed, epoch and sample: it is the same on any
number of ranks, in any worker and after the run resumes.
"""

import numpy
import torch

import dlfs.torch

IGNORED = -100
"""The label that torch's cross_entropy does not count."""


def masked(rows, seed, *, mask, vocabulary, rate=0.15, special=()):
    """Inputs and labels, int64[B, L]. The share `rate` of tokens has labels, their own tokens: 80 % of these become
    `mask`, 10 % any token of the vocabulary, and 10 % stay. Padding and `special` tokens have none."""
    tokens = torch.from_numpy(rows.tokens.astype("int64"))
    labels = torch.full_like(tokens, IGNORED)
    inputs = tokens.clone()
    for r, columns, sample in segments(rows):
        generator = dlfs.torch.generator_of(seed, rows.epoch, sample)
        document = tokens[r, columns]
        drawn, how = torch.rand(2, len(document), generator=generator)
        other = torch.randint(vocabulary, document.shape, generator=generator)
        chosen = (drawn < rate) & ~torch.isin(document, torch.tensor(special, dtype=torch.int64))
        labels[r, columns] = torch.where(chosen, document, IGNORED)
        shown = torch.where(how < 0.8, mask, torch.where(how < 0.9, other, document))
        inputs[r, columns] = torch.where(chosen, shown, document)
    return inputs, labels


def segments(rows):
    """(row, columns, sample) of each document, or part of one, among the inputs."""
    for r, ids in enumerate(rows.segment_ids):
        bounds = numpy.flatnonzero(numpy.diff(ids, prepend=-1, append=-1))
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
            if ids[start]:
                yield r, slice(start, stop), int(rows.sample_ids[r, start])
