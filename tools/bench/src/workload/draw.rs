//! Draws a block out of `n` by one of fio's distributions.

use dlfs::permutation::{Key, Permutation};

use super::random::Random;
use crate::options::job::Distribution;

/// A distribution over the blocks `0..n`.
#[derive(Debug, Clone)]
pub(crate) struct Draw {
    n: u64,
    shape: Shape,
    /// Scatters the hot blocks over the range.
    scatter: Option<Permutation>,
    /// Where the hottest block lies when it is not scattered.
    shift: u64,
}

#[derive(Debug, Clone)]
enum Shape {
    Uniform,
    Zipf(Zipf),
    Pareto {
        power: f64,
    },
    Normal {
        mean: f64,
        deviation: f64,
    },
    /// Upper end of the accesses in percent; begin and length in blocks.
    Zones(Vec<(u32, u64, u64)>),
}

impl Draw {
    pub(crate) fn new(distribution: &Distribution, n: u64, block_bytes: u64, seed: u64) -> Draw {
        let scattered = |center: Option<f64>| match center {
            None => (Some(Permutation::new(n, Key::derive(seed, &[n]))), 0),
            Some(center) => (None, (center * (n - 1) as f64) as u64),
        };
        let (shape, (scatter, shift)) = match distribution {
            Distribution::Uniform => (Shape::Uniform, (None, 0)),
            Distribution::Zipf(theta, center) => {
                (Shape::Zipf(Zipf::new(n, *theta)), scattered(*center))
            }
            Distribution::Pareto(h, center) => {
                (Shape::Pareto { power: h.ln() / (1.0 - h).ln() }, scattered(*center))
            }
            Distribution::Normal(percent, center) => {
                let mean = center.unwrap_or(0.5) * n as f64;
                (Shape::Normal { mean, deviation: n as f64 * percent / 100.0 }, (None, 0))
            }
            Distribution::Zoned(zones) => {
                let sized = zones.iter().map(|&(access, part)| (access, n * u64::from(part) / 100));
                (Shape::Zones(zones_of(sized, n)), (None, 0))
            }
            Distribution::ZonedAbs(zones) => {
                let sized = zones.iter().map(|&(access, bytes)| (access, bytes / block_bytes));
                (Shape::Zones(zones_of(sized, n)), (None, 0))
            }
        };
        Draw { n, shape, scatter, shift }
    }

    /// A block below `n`.
    #[inline]
    pub(crate) fn next(&self, random: &mut Random) -> u64 {
        let n = self.n;
        let drawn = match &self.shape {
            Shape::Uniform => return random.below(n),
            Shape::Zipf(zipf) => zipf.next(random) - 1,
            Shape::Pareto { power } => ((n - 1) as f64 * random.unit().powf(*power)) as u64,
            Shape::Normal { mean, deviation } => return normal(random, *mean, *deviation, n),
            Shape::Zones(zones) => return zone(random, zones, n),
        };
        let drawn = drawn.min(n - 1);
        match &self.scatter {
            Some(permutation) => permutation.forward(drawn),
            None => (drawn + self.shift) % n,
        }
    }
}

/// A normal number by Box and Muller's method; what falls outside is drawn again, a few times.
fn normal(random: &mut Random, mean: f64, deviation: f64, n: u64) -> u64 {
    for _ in 0..16 {
        let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
        let value = mean + deviation * radius * (std::f64::consts::TAU * random.unit()).cos();
        if value >= 0.0 && value < n as f64 {
            return value as u64;
        }
    }
    (mean as u64).min(n - 1)
}

fn zone(random: &mut Random, zones: &[(u32, u64, u64)], n: u64) -> u64 {
    let access = random.below(100) as u32;
    let found = zones.iter().find(|zone| access < zone.0);
    let (_, begin, len) = found.copied().unwrap_or((100, 0, n));
    (begin + random.below(len.max(1))).min(n - 1)
}

fn zones_of(sized: impl Iterator<Item = (u32, u64)>, n: u64) -> Vec<(u32, u64, u64)> {
    let (mut access_end, mut begin) = (0, 0_u64);
    sized
        .map(|(access, len)| {
            access_end += access;
            let zone = (access_end, begin.min(n - 1), len.min(n - begin.min(n - 1)));
            begin += len;
            zone
        })
        .collect()
}

/// Ranks 1..=n with probability proportional to rank^-theta, by rejection-inversion (Hörmann and
/// Derflinger 1996): no table, whatever n is.
#[derive(Debug, Clone)]
struct Zipf {
    n: f64,
    theta: f64,
    h_x1: f64,
    h_n: f64,
    s: f64,
}

impl Zipf {
    fn new(n: u64, theta: f64) -> Zipf {
        let mut zipf = Zipf { n: n as f64, theta, h_x1: 0.0, h_n: 0.0, s: 0.0 };
        zipf.h_x1 = zipf.integral(1.5) - 1.0;
        zipf.h_n = zipf.integral(zipf.n + 0.5);
        zipf.s = 2.0 - zipf.inverse(zipf.integral(2.5) - 2.0_f64.powf(-theta));
        zipf
    }

    fn next(&self, random: &mut Random) -> u64 {
        loop {
            let u = self.h_n + random.unit() * (self.h_x1 - self.h_n);
            let x = self.inverse(u);
            let k = (x + 0.5).floor().clamp(1.0, self.n);
            if k - x <= self.s || u >= self.integral(k + 0.5) - k.powf(-self.theta) {
                return k as u64;
            }
        }
    }

    /// The integral of x^-theta, from 1.
    fn integral(&self, x: f64) -> f64 {
        let (log, one_less) = (x.ln(), 1.0 - self.theta);
        if (one_less * log).abs() > 1e-8 { (one_less * log).exp_m1() / one_less } else { log }
    }

    fn inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.theta)).max(-1.0);
        if t.abs() > 1e-8 { (t.ln_1p() / t * y).exp() } else { y.exp() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 42;

    fn counts(distribution: &Distribution, n: u64, draws: usize) -> Vec<usize> {
        let draw = Draw::new(distribution, n, 4096, SEED);
        let mut random = Random::new(SEED);
        let mut counts = vec![0; n as usize];
        for _ in 0..draws {
            counts[draw.next(&mut random) as usize] += 1;
        }
        counts
    }

    #[test]
    fn zipf_gives_each_rank_its_share() {
        println!("seed {SEED}");
        for theta in [0.8, 1.0, 1.2] {
            let found = counts(&Distribution::Zipf(theta, Some(0.0)), 100, 200_000);
            let total: f64 = (1..=100).map(|k| f64::from(k).powf(-theta)).sum();
            for rank in [1, 2, 10, 50] {
                let expected = 200_000.0 * f64::from(rank).powf(-theta) / total;
                let deviation = (found[rank as usize - 1] as f64 - expected).abs();
                assert!(deviation < 6.0 * expected.sqrt(), "theta {theta} rank {rank}");
            }
        }
    }

    #[test]
    fn hot_blocks_are_scattered_unless_a_center_is_given() {
        let scattered = counts(&Distribution::Zipf(1.2, None), 1000, 50_000);
        let hottest = (0..1000).max_by_key(|&i| scattered[i]).unwrap();
        assert_ne!(hottest, 0);
        let centered = counts(&Distribution::Zipf(1.2, Some(0.5)), 1001, 50_000);
        assert_eq!((0..1001).max_by_key(|&i| centered[i]), Some(500));
    }

    #[test]
    fn pareto_s_hot_part_gets_the_rest_of_the_accesses() {
        // h = 0.2: a fifth of the blocks gets four fifths of the accesses.
        let found = counts(&Distribution::Pareto(0.2, Some(0.0)), 1000, 100_000);
        let hot: usize = found[..200].iter().sum();
        assert!((75_000..85_000).contains(&hot), "{hot}");
    }

    #[test]
    fn normal_lies_around_the_middle_and_zones_get_their_accesses() {
        let normal = counts(&Distribution::Normal(10.0, None), 1000, 100_000);
        let near: usize = normal[400..600].iter().sum();
        assert!((66_000..71_000).contains(&near), "{near}");
        let zones = counts(&Distribution::Zoned(vec![(60, 10), (40, 90)]), 1000, 100_000);
        let first: usize = zones[..100].iter().sum();
        assert!((59_000..61_000).contains(&first), "{first}");
        let absolute = Distribution::ZonedAbs(vec![(90, 4096 * 100), (10, 4096 * 100)]);
        let absolute = counts(&absolute, 1000, 10_000);
        assert_eq!(absolute[200..].iter().sum::<usize>(), 0);
    }
}
