//! A run's plan for the tiers.

use crate::error::{Error, ErrorKind, Result};
use crate::tier::Units;

/// Which units a run keeps in which tier, and how often it reads each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierPlan {
    /// Units with their tiers, in the order in which to fetch them.
    pub copies: Vec<(u32, u8)>,
    /// For each unit, how often the run reads it; for units kept together, the first counts.
    pub reads: Vec<u16>,
    /// Fingerprint of its units: see [`Units::fingerprint`].
    pub fingerprint: u64,
}

impl TierPlan {
    /// Checks that it belongs to `units` and to this many tiers.
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
            true => refuse("the plan names a tier that does not exist"),
            false => Ok(()),
        }
    }
}
