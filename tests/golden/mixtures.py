#!/usr/bin/env python3
"""Prints tests/golden/mixtures.txt, from the pages of src/order/order/mixture alone.

The second, independent implementation of the frozen mixtures: it counts samples one by one where the library
computes them.
"""

from fractions import Fraction
from itertools import accumulate

from permutation import derive, mix, permutation, GOLDEN_RATIO, M

WINDOW = 1 << 14


def with_word(key, word):
    return mix((key ^ mix(word)) + GOLDEN_RATIO & M)


def apportion(weights, total):
    exact = [Fraction(weight) * total / sum(map(Fraction, weights)) for weight in weights]
    counts = [int(part) for part in exact]
    gains = sorted(range(len(weights)), key=lambda i: (counts[i] - exact[i], i))
    for i in gains[: total - sum(counts)]:
        counts[i] += 1
    return counts


def word(counts, key):
    """The sources in their sequence: each inner node of Huffman's tree deals its positions as a line's steps."""
    leaves = sorted((count, i, i) for i, count in enumerate(counts) if count)
    joined, nodes = [], 0

    def smallest():
        # Of equal parts a source comes before a joined part.
        if leaves and (not joined or leaves[0][0] <= joined[0][0]):
            return leaves.pop(0)
        return joined.pop(0)

    while len(leaves) + len(joined) > 1:
        (left, _, first), (right, _, second) = smallest(), smallest()
        joined.append((left + right, nodes, (nodes, left, left + right, first, second)))
        nodes += 1

    def walk(tree, number):
        if not isinstance(tree, tuple):
            return [tree] * number
        node, left, total, first, second = tree
        phase = with_word(key, node) * total >> 64
        sides = [walk(first, left), walk(second, total - left)]
        taken, sequence = 0, []
        for position in range(total):
            upto = ((position + 1) * left + phase) // total
            sequence.append(sides[upto == taken].pop(0))
            taken = upto
        return sequence

    return walk((leaves or joined)[0][2], sum(counts))


def sequence(sources, epoch_size, batching, phases, seed, epochs):
    """(source, its epoch, position in it) of each position of the run."""
    samples, weights = [n for n, _ in sources], [weight for _, weight in sources]
    borders = {0, *(epoch_size * e for e in range(epochs + 1)), *(start for start, _ in phases)}
    borders = sorted(border for border in borders if border <= epoch_size * epochs)
    drawn, result = [0] * len(samples), []
    for first, end in zip(borders, borders[1:]):
        for start, later in phases:
            weights = later if start <= first else weights
        unit = int(batching.split(":")[1]) if ":" in batching else 1
        counts = apportion(weights, (end - first) // unit)
        dealt = word(counts, derive(seed, [5, first]))
        before = [list(accumulate(dealt, lambda n, s: n + (s == i), initial=0)) for i in range(len(samples))]
        had = [0] * len(samples)
        for position in range(first, end):
            at = position - first
            if batching == "random":
                start = at - at % WINDOW
                size = min(WINDOW, end - first - start)
                at = start + permutation(size, derive(seed, [6, first + start]))(at - start) if size > 1 else at
            source = dealt[at // unit]
            draw = drawn[source] + before[source][at // unit] * unit + at % unit
            if batching == "random":
                draw = drawn[source] + had[source]
            had[source] += 1
            result.append((source, draw // samples[source], draw % samples[source]))
        drawn = [n + count * unit for n, count in zip(drawn, counts)]
    return result


CASES = [
    ([(10, "1")], 7, "stratified", [], 0),
    ([(3, "1"), (50, "1")], 20, "stratified", [], 7),
    ([(9, "0.7"), (5, "0.2"), (2, "0.1")], 30, "stratified", [], M),
    ([(9, "0.7"), (5, "0.2"), (2, "0.1")], 30, "random", [], 7),
    ([(4, "3"), (6, "1"), (5, "2")], 24, "per_source:4", [], 3),
    ([(9, "1"), (5, "1"), (2, "0")], 16, "stratified", [(10, ["0", "1", "1"]), (40, ["2", "1", "1.5"])], 7),
    ([(4 + i, str(i + 1)) for i in range(6)], 41, "stratified", [], 1),
    ([(1, "1")] * 5, 12, "random", [(13, ["5", "1", "0", "1", "1"])], 1),
]


def main():
    print("# samples of each source * weight | epoch size | batching | phases | seed | source:epoch:position, 3 epochs")
    for sources, size, batching, phases, seed in CASES:
        given = " ".join(f"{n}*{weight}" for n, weight in sources)
        later = " ".join(f"{start}={','.join(weights)}" for start, weights in phases)
        draws = " ".join(":".join(map(str, draw)) for draw in sequence(sources, size, batching, phases, seed, 3))
        print(f"{given} | {size} | {batching} | {later} | {seed} | {draws}")


if __name__ == "__main__":
    main()
