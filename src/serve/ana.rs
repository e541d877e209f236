//! Asymmetric Namespace Access (ANA): how well the namespaces of a subsystem can be reached through this target.
//!
//! All namespaces are in one ANA group, since an image's namespaces are read together. Several targets of one
//! subsystem each report a state of their own; hosts prefer those that are optimized.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use dlfs_nvme::nvme::Status;

/// The ANA state of the namespaces, with its value in the ANA log page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum AnaState {
    /// Hosts use this target.
    Optimized = 1,
    /// Hosts use this target if none is optimized.
    NonOptimized = 2,
    /// Commands fail; hosts use other targets until the state changes.
    Inaccessible = 3,
    /// Commands fail, for good.
    PersistentLoss = 4,
    /// The state is about to change: commands fail, and hosts wait.
    Change = 15,
}

impl AnaState {
    /// All states.
    pub const ALL: [AnaState; 5] = [
        AnaState::Optimized,
        AnaState::NonOptimized,
        AnaState::Inaccessible,
        AnaState::PersistentLoss,
        AnaState::Change,
    ];

    /// The name of the state, as Linux and nvme-cli spell it.
    pub const fn name(self) -> &'static str {
        match self {
            AnaState::Optimized => "optimized",
            AnaState::NonOptimized => "non-optimized",
            AnaState::Inaccessible => "inaccessible",
            AnaState::PersistentLoss => "persistent-loss",
            AnaState::Change => "change",
        }
    }

    /// The status with which commands fail in this state; `None`: they do not fail.
    fn refusal(self) -> Option<Status> {
        match self {
            AnaState::Optimized | AnaState::NonOptimized => None,
            AnaState::Inaccessible => Some(Status::ANA_INACCESSIBLE),
            AnaState::PersistentLoss => Some(Status::ANA_PERSISTENT_LOSS),
            AnaState::Change => Some(Status::ANA_TRANSITION),
        }
    }
}

impl fmt::Display for AnaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AnaState {
    type Err = String;

    fn from_str(text: &str) -> Result<AnaState, String> {
        let found = AnaState::ALL.into_iter().find(|state| state.name() == text);
        found.ok_or_else(|| {
            let names = AnaState::ALL.map(AnaState::name).join(", ");
            format!("{text:?} is no ANA state: there are {names}")
        })
    }
}

/// The state of a target, and the number of its changes.
#[derive(Debug)]
pub(super) struct Ana {
    state: AtomicU8,
    changes: AtomicU64,
}

impl Ana {
    pub(super) fn new(state: AnaState) -> Ana {
        Ana { state: AtomicU8::new(state as u8), changes: AtomicU64::new(0) }
    }

    pub(super) fn state(&self) -> AnaState {
        let value = self.state.load(Ordering::Relaxed);
        let known = AnaState::ALL.into_iter().find(|state| *state as u8 == value);
        known.expect("only states are stored")
    }

    /// Sets the state; returns whether it has changed.
    pub(super) fn set(&self, state: AnaState) -> bool {
        let is_other = self.state.swap(state as u8, Ordering::Relaxed) != state as u8;
        self.changes.fetch_add(is_other.into(), Ordering::Relaxed);
        is_other
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// The status with which commands fail now; `None`: they do not fail.
    pub(super) fn refusal(&self) -> Option<Status> {
        // Two comparisons in the usual states, since every command asks.
        match self.state.load(Ordering::Relaxed) {
            OPTIMIZED | NON_OPTIMIZED => None,
            _ => self.state().refusal(),
        }
    }
}

const OPTIMIZED: u8 = AnaState::Optimized as u8;
const NON_OPTIMIZED: u8 = AnaState::NonOptimized as u8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_written_and_read_by_its_name_and_fails_commands_with_its_status() {
        for state in AnaState::ALL {
            assert_eq!(state.name().parse(), Ok(state));
            let ana = Ana::new(state);
            assert_eq!((ana.state(), ana.refusal()), (state, state.refusal()));
        }
        let refused = AnaState::ALL.map(|state| state.refusal().map(|status| status.sc));
        assert_eq!(refused, [None, None, Some(2), Some(1), Some(3)]);
        assert!("optimised".parse::<AnaState>().unwrap_err().contains("non-optimized"));
    }

    #[test]
    fn only_another_state_is_a_change() {
        let ana = Ana::new(AnaState::Optimized);
        assert!(!ana.set(AnaState::Optimized));
        assert!(ana.set(AnaState::Inaccessible));
        assert!(ana.set(AnaState::Optimized));
        assert_eq!(ana.changes(), 2);
    }
}
