"""The recipes of examples/ that draw random numbers for documents in rows: what they do, and that they do the same at
another world size, after a resume and in a worker."""

import importlib.util
import itertools
import multiprocessing
import pathlib

import numpy
import pytest

import dlfs
import dlfs.tokens
from conftest import SEED

torch = pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"
OPTIONS = {"separator": 0, "seed": 7, "lanes": 8, "segment_ids": True, "sample_ids": True, "loss_mask": True}
LENGTH, FIRST = 64, 100  # tokens below FIRST are special
# Not none: arrays are as wide as a batch needs, and recipes draw for each of their columns.
PACKS = pytest.mark.parametrize("pack", ["concat", "best_fit"])


def recipe(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    print("seed", SEED)
    draw = numpy.random.default_rng(SEED)
    path = tmp_path_factory.mktemp("recipes") / "corpus.dlfs"
    with dlfs.Writer(str(path), {"tok": "u16[*]"}) as out:
        for count in draw.integers(0, 150, 400):
            out.write({"tok": draw.integers(FIRST, 1000, count).astype("uint16")})
    with dlfs.open(str(path)) as dataset:
        yield dataset


@pytest.fixture(scope="module")
def workers():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        yield pool


def infilled(rows, **options):
    given = {"prefix": 1, "middle": 2, "suffix": 3, "separator": 0, **options}
    changed = recipe("fill_in_the_middle").fill_in_the_middle(rows, 7, **given)
    return [changed.tokens.tolist(), changed.labels.tolist(), changed.loss_mask.tolist()]


def hidden(rows):
    inputs, labels = recipe("masked_tokens").masked(rows, 7, mask=4, vocabulary=1000, special=(0,))
    return [inputs.tolist(), labels.tolist()]


def answered(rows):
    return [recipe("answers_only").answers_only(rows, marker=FIRST + 5).loss_mask.tolist()]


def filled(rows, changed):
    """The changed arrays of each row, without padding, which is as wide as a batch needs."""
    widths = (rows.segment_ids != 0).sum(axis=1)
    return [[part[:width] for part in row] for row, width in zip(zip(*changed), widths, strict=True)]


def by_row(batches, change):
    return [row for rows in batches for row in filled(rows, change(rows))]


@PACKS
@pytest.mark.parametrize("change", [infilled, hidden, answered])
def test_recipes_draw_the_same_wherever_a_row_is_read(corpus, workers, pack, change):
    def loader(batch_size, **options):
        return dlfs.tokens.Loader(corpus, LENGTH, batch_size, pack=pack, **OPTIONS, **options)

    expected = by_row(loader(1), change)
    ranks = [by_row(loader(2, rank=rank, world_size=3), change) for rank in range(3)]
    whole = len(expected) // 6 * 6
    together = [ranks[at // 2 % 3][at // 6 * 2 + at % 2] for at in range(whole)]
    assert together == expected[:whole]
    first = loader(4)
    front = by_row(itertools.islice(first, 5), change)
    rest = loader(1)
    rest.load_state_dict(first.state_dict())
    assert front + by_row(rest, change) == expected
    rest.set_epoch(1)
    assert by_row(rest, change) != expected
    batches = list(loader(8))
    parts = [row for pair in zip(batches, workers.map(change, batches)) for row in filled(*pair)]
    assert parts == expected[: len(expected) // 8 * 8]


@PACKS
@pytest.mark.parametrize("spm_rate", [0, 1])
def test_documents_are_filled_in_the_middle_and_keep_their_columns(corpus, pack, spm_rate):
    module = recipe("fill_in_the_middle")
    with dlfs.tokens.Loader(corpus, LENGTH, 8, pack=pack, **OPTIONS) as loader:
        changed_of = [0, 0]
        for rows in loader:
            changed = module.fill_in_the_middle(
                rows, 7, prefix=1, middle=2, suffix=3, rate=0.9, spm_rate=spm_rate, separator=0
            )
            is_old = (rows.tokens >= FIRST) | (rows.tokens == 0)
            assert is_old.all(), "the rows themselves are not changed"
            assert numpy.array_equal(changed.tokens[:, 1:], changed.labels[:, :-1])
            same = numpy.array(rows.tokens == changed.tokens)
            for r, columns, _ in module.segments(rows):
                old, new = rows.tokens[r, columns].tolist(), changed.tokens[r, columns].tolist()
                changed_of[int(old != new)] += 1
                if old == new:
                    continue
                end = len(old) - (old[-1] == 0)
                assert new[end:] == old[end:] and {1, 2, 3} <= set(new)
                at = [new.index(sentinel) for sentinel in (1, 2, 3)]
                if spm_rate:
                    assert at[:1] == [0] and at[2] == 1
                    suffix, middle = new[2 : at[1]], new[at[1] + 1 : end]
                    assert middle + suffix == old[: end - 3]
                else:
                    assert at[0] == 0 and at[2] < at[1]
                    prefix, suffix, middle = new[1 : at[2]], new[at[2] + 1 : at[1]], new[at[1] + 1 : end]
                    assert prefix + middle + suffix == old[: end - 3]
                if columns.stop == rows.tokens.shape[1]:
                    assert not changed.loss_mask[r, -1]
                same[r, columns] = True
            assert same.all(), "only documents change"
            inside = changed.loss_mask[:, :-1] == rows.loss_mask[:, :-1]
            assert inside.all()
    assert 0.75 < changed_of[1] / sum(changed_of) < 0.95, changed_of


def test_bert_hides_15_of_100_tokens_80_10_10(corpus):
    seen = dict.fromkeys(("tokens", "chosen", "masked", "kept", "random"), 0)
    for rows in dlfs.tokens.Loader(corpus, LENGTH, 8, pack="best_fit", **OPTIONS):
        tokens = torch.from_numpy(rows.tokens)
        inputs, labels = map(torch.tensor, hidden(rows))
        chosen = labels != -100
        assert not (chosen & ((tokens == 0) | (torch.from_numpy(rows.segment_ids) == 0))).any()
        assert torch.equal(labels[chosen], tokens[chosen]) and torch.equal(inputs[~chosen], tokens[~chosen])
        seen["tokens"] += int((tokens != 0).sum())
        seen["chosen"] += int(chosen.sum())
        seen["masked"] += int((inputs[chosen] == 4).sum())
        seen["kept"] += int((inputs[chosen] == tokens[chosen]).sum())
    seen["random"] = seen["chosen"] - seen["masked"] - seen["kept"]
    assert abs(seen["chosen"] / seen["tokens"] - 0.15) < 0.01, seen
    for what, share in (("masked", 0.8), ("kept", 0.1), ("random", 0.1)):
        assert abs(seen[what] / seen["chosen"] - share) < 0.03, seen


def test_of_multiple_choice_only_answers_are_learned(tmp_path):
    question, answer = [200, 201, 5, 202], [300, 301]
    with dlfs.Writer(str(tmp_path / "choices.dlfs"), {"tok": "u16[*]"}) as out:
        for _ in range(9):
            out.write({"tok": numpy.array([*question, 5, *answer], "uint16")})
        out.write({"tok": numpy.array(question[:2], "uint16")})
    module, learned = recipe("answers_only"), 0
    with dlfs.open(str(tmp_path / "choices.dlfs")) as ds:
        options = {**OPTIONS, "pack": "best_fit"}
        for rows in dlfs.tokens.Loader(ds, 20, 1, **options):
            masked = module.answers_only(rows, marker=5)
            assert set(masked.labels[masked.loss_mask].tolist()) <= {*answer, 0}
            learned += masked.loss_mask.sum()
            assert rows.loss_mask.sum() > masked.loss_mask.sum()
    assert learned == 9 * 3  # with the separator behind the answer
