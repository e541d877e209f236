"""Multiple choice: of a question, its choices and the answer, only the answer's tokens are learned.

    options = {"pack": "best_fit", "segment_ids": True, "loss_mask": True, "separator": 0, "seed": 7}
    for rows in dlfs.tokens.Loader(ds, 2048, 8, **options):
        rows = answers_only(rows, marker=9)      # 9 stands between the choices and the answer

The answer of a document is what follows its last marker; a document without one is not learned from. Documents are
packed whole: best_fit or none. Nothing is drawn, so ranks, workers and resumed runs agree. If the mask is known when
the data are imported, a field of bytes does the same: Loader(loss_mask="NAME").
"""

import dataclasses

import numpy


def answers_only(rows, marker):
    """The rows with a loss mask that is True for labels behind the last marker of their document."""
    mask = numpy.zeros_like(rows.loss_mask)
    for r, ids in enumerate(rows.segment_ids):
        for at in numpy.flatnonzero(rows.tokens[r] == marker):
            document = ids == ids[at]
            mask[r, document] = False
            mask[r, at:] = document[at:]
    # The label behind a document, the first token of the next one, is masked already.
    return dataclasses.replace(rows, loss_mask=mask & rows.loss_mask)
