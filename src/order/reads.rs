//! How often an epoch's chunks are read by all ranks together, worked out before anything is.

use super::aligned::gcd;
use super::{Aligner, EpochOrder, Shard, Sharding};

/// What a way to share an epoch reads, in terms of what there is. 1 and 0 are the least.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reads {
    /// How many ranks read a chunk's samples by reading the chunk, weighed by its samples.
    pub ranks_a_chunk: f64,
    /// The part of the samples that ranks which do not read their chunk read one by one.
    pub alone: f64,
}

impl Reads {
    /// Bytes that all ranks read over the bytes there are, where whole chunks are read and a sample alone
    /// costs `sample_cost` of its bytes.
    pub fn by_chunk(&self, sample_cost: f64) -> f64 {
        self.ranks_a_chunk + self.alone * sample_cost
    }
}

impl EpochOrder {
    /// How often the chunks of this epoch are read where ranks share it from its start as `sharding` says,
    /// each in batches of `batch_size`. `None` where the order does not go through chunks.
    ///
    /// Looks once at each chunk, or at the first global batch. Lanes are taken to be equally long: in
    /// version 1 of grouped order more is read towards the end of an epoch.
    pub fn reads(&mut self, sharding: Sharding, world_size: u32, batch_size: u64) -> Option<Reads> {
        let len = self.len;
        if !self.is_chunked() || len == 0 {
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
            let (mut aligner, mut picks) = (Aligner::default(), Vec::new());
            let batch = shard.global_batch(len, 0, batch_size);
            aligner.share(chunked, &shard, batch, len, &mut picks);
            let counted = aligner.counted();
            return Some(Reads {
                ranks_a_chunk: counted.home_samples as f64 / counted.chunk_samples.max(1) as f64,
                alone: counted.strays as f64 / counted.samples.max(1) as f64,
            });
        }
        // Each sample goes to one of the ranks that share the lane, as good as at random.
        let missed = 1.0 - 1.0 / ranks as f64;
        let of_chunk =
            |samples: u64| samples as f64 * ranks as f64 * (1.0 - missed.powf(samples as f64));
        let sum: f64 = chunked.part_lens().map(of_chunk).sum();
        Some(Reads { ranks_a_chunk: sum / len as f64, alone: 0.0 })
    }
}
