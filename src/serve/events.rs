//! Asynchronous events of a controller, and the state of the log pages that they name.
//!
//! An event of one kind is sent once. The next event of this kind is sent only after the host has read the
//! log page that the event names.
//!
//! Asymmetric Namespace Access (ANA): how well the namespaces of a subsystem can be reached through this target.
//!
//! All namespaces are in one ANA group, since an image's namespaces are read together. Several targets of one
//! subsystem each report a state of their own; hosts prefer those that are optimized.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::Status;
use dlfs_nvme::nvme::identify::{IDENTIFY_LEN_BYTES, encode_namespace_list};
use dlfs_nvme::nvme::sqe::log_page;

/// The events of one controller.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Asynchronous Event Configuration, as set by the host.
    config: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Namespaces that changed since the host last read the Changed Namespace List.
    changed: BTreeSet<Nsid>,
    /// Kinds of events to report, as bits.
    pending: u32,
    /// Kinds that were reported and whose log page the host has not read since, as bits.
    reported: u32,
    /// True once the host has read that its namespaces are inaccessible here.
    knows_inaccessible: bool,
}

impl Events {
    /// Asynchronous Event Configuration.
    pub(super) fn config(&self) -> u32 {
        self.config.load(Ordering::Relaxed)
    }

    /// Sets Asynchronous Event Configuration.
    pub(super) fn configure(&self, config: u32) {
        self.config.store(config, Ordering::Relaxed);
    }

    /// Returns whether the host asked for notices of changed ANA states.
    pub(super) fn knows_ana(&self) -> bool {
        self.config() & ANA != 0
    }

    /// Forgets everything, for a controller reset.
    pub(super) fn reset(&self) {
        self.configure(0);
        *self.state.lock() = State::default();
    }

    /// Notes that a namespace was added or removed.
    pub(super) fn namespace_changed(&self, nsid: Nsid) {
        let mut state = self.state.lock();
        state.changed.insert(nsid);
        state.pending |= NAMESPACES;
    }

    /// Notes that the ANA state of the namespaces has changed.
    pub(super) fn ana_changed(&self) {
        self.state.lock().pending |= ANA;
    }

    /// Dword 0 of the next event to report, if one is pending and enabled by the host.
    pub(super) fn next(&self) -> Option<u32> {
        let mut state = self.state.lock();
        let ready = state.pending & self.config() & !state.reported;
        let (kind, info, page) = match ready {
            _ if ready & NAMESPACES != 0 => (NAMESPACES, 0, log_page::CHANGED_NAMESPACES),
            _ if ready & ANA != 0 => (ANA, 3, log_page::ANA),
            _ => return None,
        };
        state.pending &= !kind;
        state.reported |= kind;
        Some(u32::from(page) << 16 | info << 8 | NOTICE)
    }

    /// The Changed Namespace List. Unless the host retains the event, reading clears the list and permits
    /// the next event.
    pub(super) fn changed_namespaces(&self, retain: bool) -> [u8; IDENTIFY_LEN_BYTES] {
        let mut state = self.state.lock();
        let list = match state.changed.len() {
            0..=LISTED => encode_namespace_list(state.changed.iter().copied()),
            _ => encode_namespace_list(std::iter::once(ANY)),
        };
        if !retain {
            state.changed.clear();
            // The list also covers changes that came after the event.
            state.pending &= !NAMESPACES;
            state.reported &= !NAMESPACES;
        }
        list
    }

    /// Notes that the host has read the ANA log page; `is_draining`: it said that its namespaces are inaccessible,
    /// for good.
    pub(super) fn ana_was_read(&self, retain: bool, is_draining: bool) {
        let mut state = self.state.lock();
        state.knows_inaccessible |= is_draining;
        if !retain {
            state.reported &= !ANA;
        }
    }

    /// Returns whether the host has read that its namespaces are inaccessible.
    pub(super) fn knows_inaccessible(&self) -> bool {
        self.state.lock().knows_inaccessible
    }
}

/// The ANA state of the namespaces, with its value in the ANA log page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum AnaState {
    /// Hosts use this target.
    Optimized = 1,
    /// Hosts use this target if none is optimized.
    NonOptimized = 2,
    /// Commands fail; hosts use other targets, and come back once the state is another one.
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

    /// The status with which commands fail in this state.
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

    /// Sets the state; returns whether it is another one.
    pub(super) fn set(&self, state: AnaState) -> bool {
        let is_other = self.state.swap(state as u8, Ordering::Relaxed) != state as u8;
        self.changes.fetch_add(is_other.into(), Ordering::Relaxed);
        is_other
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// The status with which commands fail now.
    pub(super) fn refusal(&self) -> Option<Status> {
        // Compared first, since every command asks.
        match self.state.load(Ordering::Relaxed) {
            OPTIMIZED | NON_OPTIMIZED => None,
            _ => self.state().refusal(),
        }
    }
}

/// Maximum entries of a Changed Namespace List.
const LISTED: usize = IDENTIFY_LEN_BYTES / 4;

/// The list's only entry if more namespaces have changed than fit.
const ANY: Nsid = Nsid(u32::MAX);

/// Event type of all events here: notice.
const NOTICE: u32 = 2;

/// Bit of Namespace Attribute Changed, in OAES and in Asynchronous Event Configuration.
pub(super) const NAMESPACES: u32 = 1 << 8;

/// Bit of Asymmetric Namespace Access Change.
pub(super) const ANA: u32 = 1 << 11;
const OPTIMIZED: u8 = AnaState::Optimized as u8;
const NON_OPTIMIZED: u8 = AnaState::NonOptimized as u8;

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_nvme::nvme::identify::decode_namespace_list;

    #[test]
    fn an_event_comes_once_until_its_log_page_is_read() {
        let events = Events::default();
        events.namespace_changed(Nsid(7));
        assert_eq!(events.next(), None, "the host has not asked for it");
        events.configure(NAMESPACES | ANA);
        assert_eq!(events.next(), Some(0x04_00_02));
        events.namespace_changed(Nsid(3));
        assert_eq!(events.next(), None, "the list was not read");
        let list = |retain| decode_namespace_list(&events.changed_namespaces(retain)).unwrap();
        assert_eq!(list(true), [Nsid(3), Nsid(7)]);
        assert_eq!((events.next(), list(false)), (None, vec![Nsid(3), Nsid(7)]));
        assert_eq!((events.next(), list(false)), (None, vec![]), "nothing changed since");
        events.namespace_changed(Nsid(3));
        events.ana_changed();
        assert_eq!([events.next(), events.next()], [Some(0x04_00_02), Some(0x0C_03_02)]);
    }

    #[test]
    fn more_changes_than_the_list_holds_are_told_as_any() {
        let events = Events::default();
        (1..=1024).map(Nsid).for_each(|nsid| events.namespace_changed(nsid));
        let list =
            |events: &Events| decode_namespace_list(&events.changed_namespaces(true)).unwrap();
        assert_eq!(list(&events).len(), 1024);
        events.namespace_changed(Nsid(5000));
        assert_eq!(list(&events), [ANY]);
    }

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
