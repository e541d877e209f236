#!/usr/bin/env python3
"""Prints tests/golden/permutation.txt, from the description in src/base/permutation.rs alone.

It is the second, independent implementation of the frozen permutation: where it and the library
disagree, one of them has left the format.
"""

M = (1 << 64) - 1
GOLDEN_RATIO = 0x9E3779B97F4A7C15


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M
    return x ^ (x >> 31)


def derive(seed, words):
    key = mix(seed + GOLDEN_RATIO & M)
    for word in words:
        key = mix((key ^ mix(word)) + GOLDEN_RATIO & M)
    return key


def f(x, key):
    h = (x ^ key) * 0xFF51AFD7ED558CCD & M
    return (h ^ (h >> 32)) * 0xC4CEB9FE1A85EC53 & M


def permutation(n, key):
    """The function from index to value of the permutation of 0..n that `key` draws."""
    k = (n - 1).bit_length() // 2
    a = -(-n // (1 << k))
    keys = [mix(key + (i + 1) * GOLDEN_RATIO & M) for i in range(8 if n >= 64 else 24)]

    def forward(x):
        while True:
            high, low = x >> k, x % (1 << k)
            for i, round_key in enumerate(keys):
                if i % 2 == 0:
                    high = (high + (f(low, round_key) * a >> 64)) % a
                else:
                    low ^= (f(high, round_key) >> 32) % (1 << k)
            x = high << k | low
            if x < n:
                return x

    return forward


LENGTHS = [1, 2, 3, 10, 63, 64, 100, 4096, 65537, 1281167, 1 << 32, (1 << 40) + 1, M]
WORDS = [[], [0], [1, 2, 3]]


def main():
    print("# seed | words | length | values of indices 0, 1, 2, length/2, length-1 (those that exist)")
    for seed in [0, 7, M]:
        for words in WORDS:
            for n in LENGTHS:
                forward = permutation(n, derive(seed, words))
                indices = sorted({i for i in (0, 1, 2, n // 2, n - 1) if i < n})
                values = " ".join(str(forward(i)) for i in indices)
                print(f"{seed} | {' '.join(map(str, words))} | {n} | {values}")


if __name__ == "__main__":
    main()
