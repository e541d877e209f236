//! The inputs of a plan and their digest: ranks with other inputs have another plan and are
//! refused.

use serde::{Deserialize, Serialize};

use super::error::{MAX_BLOCKS, MAX_RANK_INPUT_BYTES, MAX_RANKS, MAX_TIERS, check_block_len};
use super::{Model, PlanError, Rate, Tier};
use crate::order::{ImageId, OrderSpec, Tail};
use dlfs_base::units::Generation;

/// All inputs of a plan. Ranks with equal inputs compute the same plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// The image, which determines the ids and lengths of all samples.
    pub image: ImageId,
    /// Its generation.
    pub generation: Generation,
    /// The order.
    pub order: OrderSpec,
    /// The first epoch of the run.
    pub first_epoch: u64,
    /// Number of epochs.
    pub num_epochs: u64,
    /// Positions of the first epoch that were consumed before the run.
    pub consumed: u64,
    /// Treatment of the samples at the end of an epoch that the ranks cannot share evenly.
    pub tail: Tail,
    /// Block length of all tiers.
    pub block_len_bytes: u32,
    /// The inputs of each rank, in the order of ranks.
    pub ranks: Vec<RankInputs>,
}

/// The inputs that one rank sends to all others, once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankInputs {
    /// Its tiers, fastest first.
    pub tiers: Vec<TierInputs>,
}

/// A tier, as seen by the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierInputs {
    /// Quota in blocks.
    pub num_blocks: u64,
    /// Read rate of one fetching thread.
    pub read: Rate,
}

impl Inputs {
    /// The name of the plan: a hash of all inputs, used as the NGUID of its cache namespaces. Never
    /// all zero, which would be an unset NGUID.
    pub fn digest(&self) -> [u8; 16] {
        let json = serde_json::to_vec(&(VERSION, self))
            .expect("numbers, strings and finite shares always become JSON");
        xxhash_rust::xxh3::xxh3_128(&json).max(1).to_be_bytes()
    }

    /// The tiers of `rank`, for placement.
    pub fn tiers(&self, rank: u32) -> Vec<Tier> {
        let tiers = self.ranks[rank as usize].tiers.iter();
        tiers.map(|tier| Tier { num_blocks: tier.num_blocks }).collect()
    }

    /// Checks all numbers.
    ///
    /// # Errors
    /// The first number that is out of range.
    pub fn check(&self) -> Result<(), PlanError> {
        self.order.check()?;
        if !(1..=MAX_RANKS).contains(&self.ranks.len()) {
            return Err(PlanError::Ranks { ranks: self.ranks.len() });
        }
        self.ranks.iter().try_for_each(RankInputs::check)
    }
}

impl RankInputs {
    /// The inputs of a rank with tiers of `capacities_bytes`, with rates from `model`.
    ///
    /// # Errors
    /// An address cannot encode the tiers, or the block length is invalid.
    pub fn new(
        model: &Model,
        capacities_bytes: &[u64],
        block_len_bytes: u32,
    ) -> Result<RankInputs, PlanError> {
        check_block_len(block_len_bytes)?;
        let tiers = model.tiers.iter().zip(capacities_bytes).map(|(tier, &bytes)| TierInputs {
            num_blocks: bytes / u64::from(block_len_bytes),
            read: tier.read_of_thread(),
        });
        let inputs = RankInputs { tiers: tiers.collect() };
        inputs.check()?;
        Ok(inputs)
    }

    /// The bytes that a rank contributes to the rendezvous: at most 1 KiB of JSON.
    ///
    /// # Errors
    /// They would be longer.
    pub fn to_bytes(&self) -> Result<Vec<u8>, PlanError> {
        let bytes = serde_json::to_vec(self).expect("numbers always become JSON");
        if bytes.len() <= MAX_RANK_INPUT_BYTES {
            Ok(bytes)
        } else {
            Err(PlanError::InputsTooLong { len_bytes: bytes.len() })
        }
    }

    /// Decodes another rank's contribution.
    ///
    /// # Errors
    /// It is too long, malformed, or out of range.
    pub fn from_bytes(bytes: &[u8]) -> Result<RankInputs, PlanError> {
        if bytes.len() > MAX_RANK_INPUT_BYTES {
            return Err(PlanError::InputsTooLong { len_bytes: bytes.len() });
        }
        let inputs: RankInputs = serde_json::from_slice(bytes)
            .map_err(|error| PlanError::BadInputs { why: error.to_string() })?;
        inputs.check()?;
        Ok(inputs)
    }

    fn check(&self) -> Result<(), PlanError> {
        if self.tiers.len() > MAX_TIERS {
            return Err(PlanError::Tiers { tiers: self.tiers.len() });
        }
        for (index, tier) in self.tiers.iter().enumerate() {
            if tier.num_blocks > MAX_BLOCKS {
                return Err(PlanError::Capacity { blocks: tier.num_blocks });
            }
            if tier.read.0 == 0 {
                return Err(PlanError::ZeroRate { what: format!("tier {index}") });
            }
        }
        Ok(())
    }
}

/// Version of the planning algorithm: a release that plans differently has another.
const VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::OrderKind;
    use crate::plan::{Curve, Stage};

    fn inputs() -> Inputs {
        let tier = |num_blocks, mb| TierInputs { num_blocks, read: Rate::mb_per_s(mb) };
        let rank = RankInputs { tiers: vec![tier(1_000, 10_000), tier(5_000, 500)] };
        Inputs {
            image: ImageId([7; 16]),
            generation: Generation(3),
            order: OrderSpec { kind: OrderKind::Global, seed: 1 },
            first_epoch: 0,
            num_epochs: 90,
            consumed: 0,
            tail: Tail::Keep,
            block_len_bytes: 512,
            ranks: vec![rank; 4],
        }
    }

    #[test]
    fn an_impossible_block_length_is_refused() {
        let curve = Curve::flat(Rate(1));
        let stage = Stage { threads: 1, read: curve.clone(), write: curve.clone() };
        let model = Model {
            nodes: 1,
            compute: Rate(1),
            preprocess: Rate(1),
            network: Rate(1),
            origin_link: Rate(1),
            origin: curve,
            staging: stage.clone(),
            tiers: vec![stage],
        };
        for len_bytes in [0, 1, 4097] {
            let refused = RankInputs::new(&model, &[1 << 20], len_bytes).unwrap_err();
            assert_eq!(refused, PlanError::BlockLen { len_bytes });
        }
        let blocks = RankInputs::new(&model, &[1 << 20], 4096).unwrap().tiers[0].num_blocks;
        assert_eq!(blocks, 256);
    }

    #[test]
    fn each_input_changes_the_name_of_the_plan() {
        let changes: [fn(&mut Inputs); 11] = [
            |i| i.image.0[15] = 8,
            |i| i.generation.0 += 1,
            |i| i.order.seed += 1,
            |i| i.first_epoch += 1,
            |i| i.num_epochs += 1,
            |i| i.consumed += 1,
            |i| i.tail = Tail::Pad,
            |i| i.block_len_bytes = 4096,
            |i| i.ranks.truncate(3),
            |i| i.ranks[2].tiers[1].num_blocks -= 1,
            |i| i.ranks[2].tiers[1].read.0 -= 1,
        ];
        let mut names = vec![inputs().digest()];
        for change in changes {
            let mut changed = inputs();
            change(&mut changed);
            changed.check().unwrap();
            assert!(!names.contains(&changed.digest()), "{changed:?}");
            names.push(changed.digest());
        }
    }

    #[test]
    fn inputs_of_a_rank_read_back_and_fit_1_kib_with_the_most_tiers() {
        let tier = TierInputs { num_blocks: MAX_BLOCKS, read: Rate(u64::MAX) };
        let rank = RankInputs { tiers: vec![tier; MAX_TIERS] };
        let bytes = rank.to_bytes().unwrap();
        assert_eq!(RankInputs::from_bytes(&bytes).unwrap(), rank);
    }

    #[test]
    fn invalid_inputs_are_refused() {
        let refuse = |text: &str| RankInputs::from_bytes(text.as_bytes()).unwrap_err().to_string();
        assert!(refuse("").contains("cannot be read"));
        assert!(refuse(r#"{"tiers":[{"num_blocks":-1,"read":1}]}"#).contains("cannot be read"));
        assert!(refuse(r#"{"tiers":[{"num_blocks":1,"read":0}]}"#).contains("tier 0 is 0"));
        assert!(refuse(r#"{"tiers":[{"num_blocks":99999999999,"read":1}]}"#).contains("at most"));
        assert!(refuse(&" ".repeat(1_025)).contains("1025 bytes"));
        let many = vec![r#"{"num_blocks":1,"read":1}"#; 16].join(",");
        assert!(refuse(&format!(r#"{{"tiers":[{many}]}}"#)).contains("not 16"));
        let mut none = inputs();
        none.ranks.clear();
        assert_eq!(none.check(), Err(PlanError::Ranks { ranks: 0 }));
    }
}
