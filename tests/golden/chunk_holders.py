#!/usr/bin/env python3
"""Prints tests/golden/chunk_holders.txt, from the description in src/order/plan/chunk_holders.rs alone.

Standard library only. It shares no code with the crate.
"""

from math import log2

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
ONE = 1 << 40
NONE = 65535


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def with_word(key, word):
    return mix(((key ^ mix(word)) + GOLDEN) & WORD)


def log2_table(i):
    """log2(1 + i / 2048) in 2^-40, rounded down, in exact arithmetic."""
    # The largest n with 2^(n / 2^40) <= 1 + i / 2048: near floating point's answer, one bit at a time.
    if i == 2048:
        return ONE
    mantissa, result = (2048 + i) << 52, 0
    for _ in range(40):
        mantissa = mantissa * mantissa >> 63
        result <<= 1
        if mantissa >> 64:
            result |= 1
            mantissa >>= 1
    assert abs(result / ONE - log2(1 + i / 2048)) < 1e-9
    return result


TABLE = [log2_table(i) for i in range(2049)]


def cost(word):
    word = max(word, 1)
    whole = word.bit_length() - 1
    fraction = (word << (64 - whole)) & WORD
    index, below = fraction >> 53, fraction >> 21 & 0xFFFFFFFF
    low, high = TABLE[index], TABLE[index + 1]
    return 64 * ONE - whole * ONE - (low + ((high - low) * below >> 32))


def place(image, members, chunks):
    key = mix((0x686F6C6465727331 + GOLDEN) & WORD)
    for half in (image[:8], image[8:]):
        key = with_word(key, int.from_bytes(half, "big"))
    held, holders = [0] * len(members), [NONE] * len(chunks)
    for chunk in sorted(range(len(chunks)), key=lambda c: (with_word(key, c), c)):
        draws = with_word(key, chunk)
        for limit in (lambda m: min(m[1], m[2]), lambda m: m[1]):
            fits = [n for n, m in enumerate(members) if held[n] + chunks[chunk] <= limit(m)]
            if not fits:
                continue

            class Cost:
                def __init__(self, n):
                    self.id, room, _ = members[n]
                    self.cost, self.weight = cost(with_word(draws, self.id)), max(room >> 26, 1)

                def __lt__(self, other):
                    a, b = self.cost * other.weight, other.cost * self.weight
                    return (a, self.id) < (b, other.id)

            first = min(fits, key=Cost)
            holders[chunk] = first
            held[first] += chunks[chunk]
            break
    return holders


def main():
    print("# first byte of the image's UUID (the next are one more each) | id,room,share of each member"
          " | bytes of chunk c are BASE + c * STEP mod MOD | holders (65535: none)")
    cases = [
        (0, [(1, 1 << 40, WORD)], (4 << 20, 0, 1), 4),
        (0, [(n, 1 << 40, WORD) for n in range(4)], (4 << 20, 0, 1), 40),
        (16, [(mix(n), (n + 1) << 30, WORD) for n in range(8)], (4096, 4096 * 7919, 2 << 20), 60),
        (32, [(mix(n), 20 << 20, WORD) for n in range(3)], (1 << 20, 4096 * 7919, 3 << 20), 40),
        (48, [(mix(n), 100 << 30, (20 + n) << 20) for n in range(5)], (2 << 20, 0, 1), 70),
        (64, [(mix(n), 64 << 30, WORD) for n in range(300)], (4 << 20, 0, 1), 50),
    ]
    for first, members, (base, step, mod), num in cases:
        chunks = [base + c * step % mod for c in range(num)]
        image = bytes(first + i for i in range(16))
        print(first, " ".join(",".join(map(str, m)) for m in members), f"{base} {step} {mod}",
              " ".join(map(str, place(image, members, chunks))), sep=" | ")


main()
