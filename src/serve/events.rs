//! Asynchronous events of a controller, and the state of the log pages that they name.
//!
//! There are two kinds of events: namespaces were added or removed, and the ANA state changed. An event of one kind is
//! sent once. The next event of this kind is sent only after the host has read the log page that the event names.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::identify::{IDENTIFY_LEN_BYTES, encode_namespace_list};
use dlfs_nvme::nvme::sqe::log_page;

/// The events of one controller.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Asynchronous Event Configuration, as set by the host.
    config: AtomicU32,
    state: Mutex<EventState>,
}

/// The events of a controller that pollers note, and that its admin queue reports.
#[derive(Debug, Default)]
struct EventState {
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
        *self.state.lock() = EventState::default();
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

    /// Takes the next event to report, if one is pending and enabled by the host; returns dword 0 of its completion.
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

    /// Notes that the host has read the ANA log page. `retain`: the next event still waits for the page to be read.
    /// `is_draining`: the page said that the namespaces are inaccessible here for good.
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

/// Maximum entries of a Changed Namespace List.
const LISTED: usize = IDENTIFY_LEN_BYTES / 4;

/// The only entry of a Changed Namespace List if more namespaces have changed than it has room for.
const ANY: Nsid = Nsid(u32::MAX);

/// Event type of all events here: notice.
const NOTICE: u32 = 2;

/// Bit of Namespace Attribute Changed, in OAES and in Asynchronous Event Configuration.
pub(super) const NAMESPACES: u32 = 1 << 8;

/// Bit of Asymmetric Namespace Access Change, likewise.
pub(super) const ANA: u32 = 1 << 11;

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
}
