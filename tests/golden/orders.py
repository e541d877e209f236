#!/usr/bin/env python3
"""Prints tests/golden/orders.txt: every kind of order, walked through step by step.

The second, independent implementation of the frozen orders. Where the library computes a position,
this follows the description in src/order as a person would: it deals cards, shuffles lists and
exchanges samples, epoch after epoch.
"""

from permutation import derive, mix, permutation, GOLDEN_RATIO, M


def with_word(key, word):
    return mix((key ^ mix(word)) + GOLDEN_RATIO & M)


def shuffled(items, key):
    if len(items) < 2:
        return list(items)
    forward = permutation(len(items), key)
    return [items[forward(i)] for i in range(len(items))]


class Population:
    """`sizes[c]` live samples in chunk c, `spans[c]` chunks long; ids follow the slots by i * 7 + 3."""

    def __init__(self, sizes, spans=None):
        self.sizes, self.spans = sizes, spans or [1] * len(sizes)
        n = sum(sizes)
        multiplier = next(m for m in range(7, 7 + n + 1) if gcd(m, n) == 1) if n else 1
        ids = [(i * multiplier + 3) % n for i in range(n)]
        self.chunks, start = [], 0
        for size in sizes:
            self.chunks.append(ids[start : start + size])
            start += size

    def slots(self):
        return [i for chunk in self.chunks for i in chunk]


def gcd(a, b):
    return a if b == 0 else gcd(b, a % b)


def sequential_id(population, seed, epoch):
    return sorted(population.slots())


def sequential_slot(population, seed, epoch):
    return population.slots()


def global_(population, seed, epoch):
    return shuffled(sorted(population.slots()), derive(seed, [1, epoch]))


def live_chunks(population, key):
    chunks = shuffled(range(len(population.sizes)), key)
    return [chunk for chunk in chunks if population.sizes[chunk]]


def grouped(population, seed, epoch, lanes, group):
    key, n = derive(seed, [4, epoch]), sum(population.sizes)
    laid = [(c, i) for c in live_chunks(population, with_word(key, 0)) for i in population.chunks[c]]
    dealt = []
    for lane in range(lanes):
        own = n // lanes + (lane < n % lanes)
        mine, laid = laid[:own], laid[own:]
        parts = []
        for chunk, i in mine:
            if not parts or parts[-1][0] != chunk:
                parts.append((chunk, []))
            parts[-1][1].append(i)
        dealt.append(parts)
    return turns(population, key, dealt, group)


def turns(population, key, dealt, group):
    """One sample of each lane in turn. A lane is a list of chunks and of the ids that it takes of them."""
    sequences = []
    for lane, parts in enumerate(dealt):
        groups, room = [], 0
        for chunk, ids in parts:
            if room < population.spans[chunk]:
                groups.append([])
                room = group
            room = max(room - population.spans[chunk], 0)
            groups[-1] += ids
        sequence = []
        for nth, ids in enumerate(groups):
            sequence += shuffled(ids, with_word(with_word(with_word(key, 1), lane), nth))
        sequences.append(sequence)
    order = []
    while any(sequences):
        order += [sequence.pop(0) for sequence in sequences if sequence]
    return order


def partial(population, seed, epoch, world_size, q):
    slots, n = population.slots(), len(population.slots())
    lengths = [n // world_size + (rank < n % world_size) for rank in range(world_size)]
    held, start = [], 0
    for length in lengths:
        held.append(slots[start : start + length])
        start += length
    shortest = n // world_size
    for past in range(epoch):
        key = with_word(derive(seed, [3, past]), 1)
        for step, place in enumerate(shuffled(range(shortest), key)[: int(shortest * q)]):
            targets = shuffled(range(world_size), with_word(key, step))
            sent = [held[rank][place] for rank in range(world_size)]
            for rank in range(world_size):
                held[targets[rank]][place] = sent[rank]
    key = with_word(derive(seed, [3, epoch]), 0)
    read = [shuffled(held[rank], with_word(key, rank)) for rank in range(world_size)]
    return [read[p % world_size][p // world_size] for p in range(n)]


POPULATIONS = [
    ("", []),
    ("1", [1]),
    ("5 0 3 7 4 4 1", [5, 0, 3, 7, 4, 4, 1]),
    ("20 20 20 20 20 20 20 20 9", [20] * 8 + [9]),
    ("6 6 1/3 6 6 6 1/2 6", [6, 6, 1, 6, 6, 6, 1, 6], [1, 1, 3, 1, 1, 1, 2, 1]),
]

SPECS = [
    ("sequential id", sequential_id, ()),
    ("sequential slot", sequential_slot, ()),
    ("global", global_, ()),
    *[
        (f"grouped2 {lanes} {group}", grouped, (lanes, group))
        for lanes, group in [(1, 1), (1, 3), (1, 100), (3, 2), (16, 1)]
    ],
    ("local 3", lambda p, s, e, w: partial(p, s, e, w, 0.0), (3,)),
    ("partial 1 0.5", lambda p, s, e, w, q: partial(p, s, e, w, q), (1, 0.5)),
    ("partial 4 0.3", lambda p, s, e, w, q: partial(p, s, e, w, q), (4, 0.3)),
    ("partial 5 1", lambda p, s, e, w, q: partial(p, s, e, w, q), (5, 1.0)),
]


def main():
    print("# live samples of each chunk (/ its span) | order | seed | epoch | ids in their order")
    for text, *sizes in POPULATIONS:
        population = Population(*sizes)
        for name, order, arguments in SPECS:
            for seed, epoch in [(0, 0), (7, 0), (7, 3)]:
                ids = " ".join(map(str, order(population, seed, epoch, *arguments)))
                print(f"{text} | {name} | {seed} | {epoch} | {ids}")


if __name__ == "__main__":
    main()
