//! A weighted shuffle: the sequence of weighted draws without replacement.

use dlfs_base::permutation::Key;

/// The first `count` samples of a sequence of draws without replacement: each draw is in proportion to the
/// remaining samples' `weights`. At least `count` weights are above 0.
pub(super) fn weighted(weights: &[f64], count: u64, key: Key) -> Vec<u32> {
    let mut drawn: Vec<(u64, u32)> = Vec::with_capacity(weights.len());
    drawn.extend(weights.iter().zip(0_u32..).filter(|(weight, _)| **weight > 0.0).map(
        |(weight, index)| {
            // The bits of non-negative numbers are in the order of the numbers.
            (((0.0 - ln(unit(key.with(index.into()).word()))) / weight).to_bits(), index)
        },
    ));
    let count = count as usize;
    if count < drawn.len() {
        drawn.select_nth_unstable(count);
        drawn.truncate(count);
    }
    drawn.sort_unstable();
    drawn.into_iter().map(|(_, index)| index).collect()
}

/// A number from 2^-53 to 1.
fn unit(word: u64) -> f64 {
    ((word >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// The natural logarithm of a normal number above 0, within 2e-15. Its arithmetic is the same on all machines. The
/// last bit of the C library's logarithm differs between versions, which could change the order of two samples.
fn ln(x: f64) -> f64 {
    let mut exponent = (x.to_bits() >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits(x.to_bits() & MANTISSA | ONE);
    if mantissa > std::f64::consts::SQRT_2 {
        (exponent, mantissa) = (exponent + 1, mantissa / 2.0);
    }
    // ln m = 2 artanh((m - 1) / (m + 1)); its series up to the 19th power is exact enough.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for odd in [19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * square + 1.0 / odd;
    }
    2.0 * s * sum + exponent as f64 * std::f64::consts::LN_2
}

const MANTISSA: u64 = (1 << 52) - 1;
/// The bits of 1.0.
const ONE: u64 = 1023 << 52;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_that_of_the_library() {
        for i in 0..100_000 {
            let x = unit(Key::new(7).with(i).word() >> (i % 53));
            let own = ln(x);
            let other = x.ln();
            assert!((own - other).abs() <= 2e-15 * other.abs().max(1.0), "ln {x}: {own}, {other}");
        }
        assert_eq!(ln(1.0), 0.0);
    }
}
