//! Keyed permutations of 0..N, which determine the slot of each sample and the order of reading.
//!
//! Every rank, every resumed run and every later release must compute the same shuffle. The next version of
//! a library may shuffle differently, and a table of N entries grows with the data set. So the shuffle is
//! arithmetic: a [`Permutation`] maps any single position, in either direction, from a few words of state.
//!
//! **Frozen.** Image placement and every order are derived from the functions below, so their results for a
//! key are part of the format. `tests/golden/permutation.txt` pins them, and a Python program beside it
//! computes the same results from this description alone.
//!
//! # The permutation, in full
//!
//! All words are 64 bits, arithmetic is modulo 2^64. `mix` is SplitMix64's output function.
//!
//! 1. *Domain.* For N > 1 let b be the number of bits of N - 1, k = b / 2 and a = ceil(N / 2^k). A number x
//!    is written as (high, low) = (x / 2^k, x mod 2^k), so that high < a and low < 2^k. This is the smallest
//!    rectangle with 2^k low values that holds 0..N. It is at most 2^k - 1 larger than N.
//! 2. *Rounds.* Eight rounds, or 24 if N is below 64 (a small rectangle needs more rounds until all orders
//!    are equally likely). Even and odd rounds alternate, beginning with round 0:
//!    even: high = (high + ((F(low, key\[round\]) * a) >> 64)) mod a (the product has 128 bits);
//!    odd: low = low XOR ((F(high, key\[round\]) >> 32) mod 2^k).
//! 3. *Cycle walking.* If the result is not below N, the rounds are applied to it again.
//!
//! `F(x, key)`: h = (x XOR key) * 0xff51afd7ed558ccd; h = h XOR (h >> 32); h * 0xc4ceb9fe1a85ec53.
//!
//! `key[i]` = mix(key + (i + 1) * 0x9e3779b97f4a7c15), and a [`Key`] of a seed and words is
//! key = mix(seed + 0x9e3779b97f4a7c15), then for each word key = mix((key XOR mix(word)) + 0x9e3779b97f4a7c15).
//!
//! A permutation is not a cipher: do not use it to hide anything. It is balanced; the statistical tests below
//! check this. One evaluation takes tens of nanoseconds.

/// The key of a permutation, derived from a seed and words that name its purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64);

impl Key {
    /// The key of `seed` without words.
    pub const fn new(seed: u64) -> Key {
        Key(mix(seed.wrapping_add(GOLDEN_RATIO)))
    }

    /// The key of `seed` for the purpose named by `words`; their order matters.
    pub const fn derive(seed: u64, words: &[u64]) -> Key {
        let mut key = Key::new(seed);
        let mut i = 0;
        while i < words.len() {
            key = key.with(words[i]);
            i += 1;
        }
        key
    }

    /// The key for this key's words and one more word.
    pub const fn with(self, word: u64) -> Key {
        Key(mix((self.0 ^ mix(word)).wrapping_add(GOLDEN_RATIO)))
    }

    /// The key as a number: a hash of the seed and the words.
    pub const fn word(self) -> u64 {
        self.0
    }

    const fn round_key(self, round: usize) -> u64 {
        mix(self.0.wrapping_add((round as u64 + 1).wrapping_mul(GOLDEN_RATIO)))
    }
}

/// A permutation of 0..`len`, determined by a key; no table, about 200 bytes. The default one is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Permutation {
    len: u64,
    /// Number of values of the high part.
    high_values: u64,
    /// Number of bits of the low part, at most 32.
    low_bits: u32,
    rounds: u32,
    /// Keys of the rounds; entries after the first `rounds` are zero.
    round_keys: [u64; SMALL_ROUNDS],
}

impl Permutation {
    /// The permutation of 0..`len` for `key`, for any length; the identity for 0 and 1.
    pub const fn new(len: u64, key: Key) -> Permutation {
        let low_bits = (u64::BITS - len.saturating_sub(1).leading_zeros()) / 2;
        let rounds = if len < SMALL_LEN { SMALL_ROUNDS } else { ROUNDS };
        let mut round_keys = [0; SMALL_ROUNDS];
        let mut round = 0;
        while round < rounds {
            round_keys[round] = key.round_key(round);
            round += 1;
        }
        let high_values = len.div_ceil(1 << low_bits);
        Permutation { len, high_values, low_bits, rounds: rounds as u32, round_keys }
    }

    /// Number of permuted values.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the length is zero.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value at `index`.
    ///
    /// # Panics
    /// If `index` is not below `len`. Positions come from the caller, never from media or wire.
    #[inline]
    pub fn forward(&self, index: u64) -> u64 {
        assert!(index < self.len, "index {index} of a permutation of {}", self.len);
        let mut value = self.encrypt(index);
        while value >= self.len {
            value = self.encrypt(value);
        }
        value
    }

    /// The index of `value`: `inverse(forward(i)) == i`.
    ///
    /// # Panics
    /// If `value` is not below `len`.
    #[inline]
    pub fn inverse(&self, value: u64) -> u64 {
        assert!(value < self.len, "value {value} of a permutation of {}", self.len);
        let mut index = self.decrypt(value);
        while index >= self.len {
            index = self.decrypt(index);
        }
        index
    }

    #[inline(always)]
    fn encrypt(&self, value: u64) -> u64 {
        let mut high = value >> self.low_bits;
        let mut low = value & self.low_mask();
        for keys in self.key_pairs() {
            high += self.high_shift(low, keys[0]);
            high -= if high >= self.high_values { self.high_values } else { 0 };
            low ^= self.low_flip(high, keys[1]);
        }
        high << self.low_bits | low
    }

    #[inline(always)]
    fn decrypt(&self, value: u64) -> u64 {
        let mut high = value >> self.low_bits;
        let mut low = value & self.low_mask();
        for keys in self.key_pairs().iter().rev() {
            low ^= self.low_flip(high, keys[1]);
            let shift = self.high_shift(low, keys[0]);
            high += if high < shift { self.high_values } else { 0 };
            high -= shift;
        }
        high << self.low_bits | low
    }

    #[inline(always)]
    fn key_pairs(&self) -> &[[u64; 2]] {
        self.round_keys[..self.rounds as usize].as_chunks().0
    }

    #[inline(always)]
    fn high_shift(&self, low: u64, key: u64) -> u64 {
        ((u128::from(round_function(low, key)) * u128::from(self.high_values)) >> 64) as u64
    }

    #[inline(always)]
    fn low_flip(&self, high: u64, key: u64) -> u64 {
        (round_function(high, key) >> 32) & self.low_mask()
    }

    #[inline(always)]
    fn low_mask(&self) -> u64 {
        (1 << self.low_bits) - 1
    }
}

#[inline(always)]
fn round_function(value: u64, key: u64) -> u64 {
    let hash = (value ^ key).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (hash ^ (hash >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
}

/// SplitMix64's output function: a bijection whose every output bit depends on every input bit.
const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Number of rounds.
const ROUNDS: usize = 8;

/// Lengths below this use [`SMALL_ROUNDS`]. With 8 rounds, the pairs of values are not equally likely for
/// lengths below 64; with 24 rounds, all orders of 7 values are.
const SMALL_LEN: u64 = 64;

const SMALL_ROUNDS: usize = 24;

const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_once_and_the_inverse_finds_it_for_all_small_lengths() {
        for len in (0..300).chain([1023, 1024, 1025, 65_535, 65_536, 65_537, 99_991]) {
            let permutation = Permutation::new(len, Key::derive(7, &[len]));
            let mut seen = vec![false; len as usize];
            for index in 0..len {
                let value = permutation.forward(index);
                assert!(
                    !std::mem::replace(&mut seen[value as usize], true),
                    "{value} twice of {len}"
                );
                assert_eq!(permutation.inverse(value), index);
            }
        }
    }

    #[test]
    fn the_inverse_finds_values_of_lengths_up_to_the_largest() {
        for len in [1 << 32, (1 << 40) - 1, 1 << 40, (1 << 40) + 1, (1 << 63) + 5, u64::MAX] {
            let permutation = Permutation::new(len, Key::new(len));
            for index in (0..1000).map(|i| len / 1000 * i).chain([len - 1]) {
                assert_eq!(permutation.inverse(permutation.forward(index)), index, "of {len}");
            }
        }
    }

    #[test]
    fn all_orders_of_few_values_are_drawn_equally_often() {
        for len in 2..=6_u64 {
            let orders = (1..=len).product::<u64>();
            let draws = orders * 500;
            let mut counts = std::collections::BTreeMap::<Vec<u64>, u64>::new();
            for seed in 0..draws {
                let permutation = Permutation::new(len, Key::new(seed));
                *counts.entry((0..len).map(|i| permutation.forward(i)).collect()).or_default() += 1;
            }
            assert_eq!(counts.len() as u64, orders);
            assert_within_chance(
                &counts.into_values().collect::<Vec<_>>(),
                &format!("{len} values"),
            );
        }
    }

    #[test]
    fn each_index_goes_everywhere_equally_often() {
        for len in [7, 64, 100, 257] {
            let mut counts = vec![0; (len * len) as usize];
            for seed in 0..len * 200 {
                let permutation = Permutation::new(len, Key::derive(seed, &[1, 2]));
                (0..len).for_each(|i| counts[(i * len + permutation.forward(i)) as usize] += 1);
            }
            assert_within_chance(&counts, &format!("cells of {len} values"));
        }
    }

    #[test]
    fn each_pair_of_indices_goes_to_each_pair_of_values_equally_often() {
        for len in [8_u64, 16, 31, 63, 64, 100] {
            for (i, j) in [(0, 1), (1, len - 1), (2, len / 2)] {
                let mut counts = vec![0; (len * len) as usize];
                for seed in 0..len * len * 40 {
                    let permutation = Permutation::new(len, Key::new(seed));
                    counts[(permutation.forward(i) * len + permutation.forward(j)) as usize] += 1;
                }
                assert!((0..len).all(|v| std::mem::take(&mut counts[(v * len + v) as usize]) == 0));
                counts.retain(|&count| count > 0);
                assert_eq!(counts.len() as u64, len * (len - 1));
                assert_within_chance(&counts, &format!("({i}, {j}) of {len} values"));
            }
        }
    }

    #[test]
    fn neighbours_land_apart_as_chance_has_it() {
        // The step from one value to the next, in 64 equal bins modulo N: uniform for a fair shuffle.
        for len in [10_000, 65_536, 1_281_167, 1 << 40] {
            let permutation = Permutation::new(len, Key::new(3));
            let mut counts = vec![0; 64];
            for index in 0..(len - 1).min(200_000) {
                let a = permutation.forward(index);
                let b = permutation.forward(index + 1);
                let step = u128::from((b + len - a) % len);
                counts[(step * 64 / u128::from(len)) as usize] += 1;
            }
            assert_within_chance(&counts, &format!("steps of {len} values"));
        }
    }

    #[test]
    fn a_key_differs_by_seed_by_every_word_and_by_their_order() {
        let keys = [
            Key::new(1),
            Key::new(2),
            Key::derive(1, &[0]),
            Key::derive(1, &[0, 0]),
            Key::derive(1, &[0, 1]),
            Key::derive(1, &[1, 0]),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "key {i} is there twice");
        }
        assert_eq!(Key::derive(9, &[4, 5]), Key::new(9).with(4).with(5));
    }

    #[test]
    fn consecutive_seeds_give_unrelated_orders() {
        let len = 1000;
        for seed in 0..50 {
            let a = Permutation::new(len, Key::new(seed));
            let b = Permutation::new(len, Key::new(seed + 1));
            let same = (0..len).filter(|&i| a.forward(i) == b.forward(i)).count();
            assert!(
                same < 10,
                "seeds {seed} and {} agree at {same} of {len} places, not at about 1",
                seed + 1
            );
        }
    }

    /// Checks that the chi-square of `counts` against equal shares is within six standard deviations of its
    /// mean.
    fn assert_within_chance(counts: &[u64], what: &str) {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        let chi2: f64 = counts.iter().map(|&c| (c as f64 - expected).powi(2) / expected).sum();
        let freedom = counts.len() as f64 - 1.0;
        let deviations = (chi2 - freedom) / (2.0 * freedom).sqrt();
        assert!(deviations.abs() < 6.0, "{what}: {deviations:.1} deviations from chance");
    }
}
