//! Predicts the number of times that all ranks together read the chunks of an epoch.

use super::aligned::gcd;
use super::{Aligner, EpochOrder, Shard, Sharding};

/// The reads of a [`Sharding`], relative to the data set. The minima are 1 and 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reads {
    /// The mean number of ranks that read a sample as part of its chunk.
    pub ranks_a_chunk: f64,
    /// The fraction of samples that are read singly, because other ranks read them with their chunk.
    pub alone: f64,
}

impl Reads {
    /// Bytes that all ranks read, divided by the bytes of the data set, if ranks read whole chunks and a single
    /// sample costs `sample_cost` times its bytes.
    pub fn by_chunk(&self, sample_cost: f64) -> f64 {
        self.ranks_a_chunk + self.alone * sample_cost
    }
}

impl EpochOrder {
    /// Predicts the reads of an epoch that `world_size` ranks share by `sharding`, each in batches of `batch_size`.
    /// `None` if the order does not visit chunks or has no samples, or if shares depend on the chunks' holders.
    ///
    /// Visits each chunk once or, for aligned shares, the samples of the first global batch.
    pub fn reads(&mut self, sharding: Sharding, world_size: u32, batch_size: u64) -> Option<Reads> {
        let len = self.len;
        if !self.is_chunked() || len == 0 || sharding == Sharding::Local {
            return None;
        }
        let chunked = self.chunked_mut();
        let ranks = u64::from(world_size.max(1));
        let ranks = ranks / gcd(ranks, u64::from(chunked.num_lanes()));
        if ranks == 1 {
            return Some(Reads { ranks_a_chunk: 1.0, alone: 0.0 });
        }
        if sharding == Sharding::Aligned {
            let shard = Shard::new(0, world_size, super::Tail::Keep).ok()?;
            let mut aligner = Aligner::default();
            let mut picks = Vec::new();
            let batch = shard.global_batch(len, 0, batch_size);
            aligner.share(chunked, |_, _| 1, &shard, batch, len, &mut picks);
            let counted = aligner.counted();
            let alone = counted.strays as f64 / counted.samples.max(1) as f64;
            return Some(Reads { ranks_a_chunk: 1.0, alone });
        }
        // Each sample goes to one of the ranks that share the lane, practically at random.
        let missed = 1.0 - 1.0 / ranks as f64;
        let of_chunk =
            |samples: u64| samples as f64 * ranks as f64 * (1.0 - missed.powf(samples as f64));
        let sum: f64 = chunked.lane_sample_counts().map(of_chunk).sum();
        Some(Reads { ranks_a_chunk: sum / len as f64, alone: 0.0 })
    }
}
