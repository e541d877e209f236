//! What a plan of a run says to the tiers.

use crate::error::{Error, ErrorKind, Result};
use crate::tier::Units;

/// Which units a run keeps where, and how often it reads each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierPlan {
    /// Units with their tiers, in the order in which they are to be fetched.
    pub copies: Vec<(u32, u8)>,
    /// For each unit, how often the run reads it; of those kept together the first counts.
    pub reads: Vec<u16>,
    /// Of the units that it was made for: see [`Units::fingerprint`].
    pub fingerprint: u64,
}

impl TierPlan {
    /// Whether it is one of `units` and as many tiers.
    pub(super) fn check(&self, units: &Units, num_tiers: usize) -> Result<()> {
        let refuse = |text: &'static str| {
            Err(Error::new(ErrorKind::InvalidArgument, text)
                .hint("a plan is made from the data set and the tiers that it is used with"))
        };
        let num_units = units.len();
        if self.fingerprint != units.fingerprint() || self.reads.len() != num_units as usize {
            return refuse("the plan is of another data set or generation");
        }
        if self.copies.iter().any(|&(unit, _)| unit >= num_units) {
            return refuse("the plan names a unit that the data set does not have");
        }
        match self.copies.iter().any(|&(_, tier)| usize::from(tier) >= num_tiers) {
            true => refuse("the plan names a tier that there is not"),
            false => Ok(()),
        }
    }
}
