#!/usr/bin/env python3
"""Prints tests/golden/budgets.txt, from the page of src/order/order/budget/mod.rs alone.

The second, independent implementation of batches by a budget: it adds up each batch anew.
"""

from permutation import derive, mix, permutation, GOLDEN_RATIO, M

BUDG = 0x62756467


def with_word(key, word):
    return mix((key ^ mix(word)) + GOLDEN_RATIO & M)


def cost(tokens, padded):
    return max(tokens) * len(tokens) if padded else sum(tokens)


def window_of(tokens, budget, most, padded, seed, epoch, number):
    """The batches of a window whose samples have these tokens: lists of their indices."""
    key = derive(seed, [BUDG, epoch, number])
    tokens = [max(count, 1) for count in tokens]
    ties = with_word(key, 0)
    in_order = sorted(range(len(tokens)), key=lambda i: (tokens[i], with_word(ties, i) >> 32, i))
    batches = []
    for sample in in_order:
        joined = (batches[-1] if batches else []) + [sample]
        fits = len(joined) <= (most or len(joined)) and cost([tokens[i] for i in joined], padded) <= budget
        if batches and fits:
            batches[-1] = joined
        else:
            batches.append([sample])
    if len(batches) < 2:
        return batches
    forward = permutation(len(batches), with_word(key, 1))
    return [batches[forward(i)] for i in range(len(batches))]


def batches_of(tokens, budget, window, most, padded, seed, epoch):
    """The batches of an epoch whose positions have these tokens: lists of positions."""
    result = []
    for number, start in enumerate(range(0, len(tokens), window)):
        batches = window_of(tokens[start : start + window], budget, most, padded, seed, epoch, number)
        result += [[start + i for i in batch] for batch in batches]
    return result


def lengths(count, longest, seed):
    """Some numbers of tokens, of which a few are much longer than others."""
    words = [mix(seed + i) for i in range(count)]
    return [word % longest // (1 + word // longest % 7) for word in words]


# tokens of a batch, positions of a window, samples of a batch, padded, seed, epoch, tokens of each position
CASES = [
    (10, 8, None, True, 0, 0, [3] * 8),
    (10, 8, None, True, 0, 0, [0]),
    (10, 4, None, True, 7, 1, []),
    (40, 16, None, True, 7, 0, lengths(50, 30, 1)),
    (40, 16, None, False, 7, 0, lengths(50, 30, 1)),
    (40, 16, 3, True, 7, 2, lengths(50, 30, 1)),
    (100, 64, None, True, M, 3, lengths(150, 90, 2)),
    (20, 30, None, False, 1, (1 << 24) - 1, lengths(40, 35, 3)),
    (500, 128, 40, True, 5, 0, lengths(200, 25, 4)),
]


def main():
    head = "budget | window | most samples, 0: any | cost | seed | epoch | tokens of each position"
    print(f"# {head} | positions of each batch")
    for budget, window, most, padded, seed, epoch, tokens in CASES:
        batches = batches_of(tokens, budget, window, most, padded, seed, epoch)
        given = " ".join(map(str, tokens))
        cut = " / ".join(" ".join(map(str, batch)) for batch in batches)
        how = "padded" if padded else "sum"
        print(f"{budget} | {window} | {most or 0} | {how} | {seed} | {epoch} | {given} | {cut}")


if __name__ == "__main__":
    main()
