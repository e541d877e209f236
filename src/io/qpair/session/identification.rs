//! The namespaces of a controller that an admin queue identifies, by several commands at a time, and their state on
//! this path: Asymmetric Namespace Access (ANA).

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Failure, IdentifiedNamespace};
use dlfs_base::error::ErrorKind;
use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::identify::{NamespaceDescriptors, decode_namespace_list};
use dlfs_nvme::nvme::{IdentifyError, IdentifyNamespace, Status};

/// The purpose of an admin queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Goal {
    /// I/O on these namespaces.
    Namespaces(Arc<[Nsid]>),
    /// I/O on the first active namespace.
    FirstNamespace,
    /// I/O on all active namespaces.
    AllNamespaces,
    /// The raw Identify data of the controller and of all active namespaces; no I/O.
    Pages,
    /// The records of a discovery service.
    Discovery,
}

/// The progress of listing and identifying namespaces.
#[derive(Debug, Default)]
pub(super) struct Identification {
    /// The active namespaces that were listed so far, ascending.
    listed: Vec<Nsid>,
    /// The namespaces to be identified, by their index in [`Identified::namespaces`](super::Identified).
    waiting: VecDeque<usize>,
    /// The number of namespaces that are being identified.
    under_way: usize,
}

/// The facts known so far about a namespace that is being identified.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// The index in [`Identified::namespaces`](super::Identified).
    pub(super) ns_index: usize,
    pub(super) identified: IdentifiedNamespace,
    /// The ANA group; 0 before the answer to Identify Namespace.
    pub(super) anagrpid: u32,
}

impl Identification {
    /// Takes the answer to Identify with a page of the active namespace list; returns whether the page is full, so that
    /// more may follow.
    ///
    /// # Errors
    /// The list is malformed, empty, or longer than an image can use; or the controller refuses a later page.
    pub(super) fn take_page(&mut self, page: &[u8], status: Status) -> Result<bool, Failure> {
        if !status.is_success() {
            if let Some(last) = self.listed.last() {
                let message = format!("the controller answered {status} behind namespace {last}");
                return Err(Failure::new(ErrorKind::Refused, message));
            }
            self.listed.push(Nsid(1)); // the controller does not support the list
            return Ok(false);
        }
        let page = decode_namespace_list(page).map_err(unsupported)?;
        for &nsid in &page {
            if self.listed.last().is_some_and(|last| *last >= nsid) {
                let message = format!("the list of active namespaces does not rise at {nsid}");
                return Err(Failure::new(ErrorKind::Corrupt, message));
            }
            self.listed.push(nsid);
        }
        if self.listed.is_empty() {
            return Err(Failure::new(ErrorKind::NotFound, "the subsystem has no namespace"));
        }
        if self.listed.len() > MAX_NAMESPACES {
            let message = format!("the subsystem has more than {MAX_NAMESPACES} namespaces");
            return Err(Failure::new(ErrorKind::Unsupported, message)
                .hint("name those of the image with ?ns="));
        }
        Ok(page.len() == PAGE_ENTRIES)
    }

    /// The last namespace listed so far, 0 before the first.
    pub(super) fn last_listed(&self) -> Nsid {
        self.listed.last().copied().unwrap_or(Nsid(0))
    }

    /// Selects the namespaces that `goal` asks for, and queues all of them for identification.
    pub(super) fn begin(&mut self, goal: &Goal) -> Vec<IdentifiedNamespace> {
        let nsids = match goal {
            Goal::Namespaces(nsids) => nsids.to_vec(),
            Goal::FirstNamespace => self.listed.iter().copied().take(1).collect(),
            Goal::AllNamespaces | Goal::Pages => std::mem::take(&mut self.listed),
            Goal::Discovery => Vec::new(),
        };
        self.waiting = (0..nsids.len()).collect();
        nsids
            .into_iter()
            .map(|nsid| IdentifiedNamespace { nsid, ..IdentifiedNamespace::default() })
            .collect()
    }

    /// Queues the namespaces in the Changed Namespace List for identification; all, if the list names none or
    /// cannot be used. Returns whether any are queued.
    pub(super) fn begin_again(
        &mut self,
        log: &[u8],
        status: Status,
        known: &[IdentifiedNamespace],
    ) -> bool {
        let changed = decode_namespace_list(log).ok().filter(|_| status.is_success());
        let changed = changed.filter(|list| !list.is_empty() && list[0] != TOO_MANY_CHANGED);
        match changed {
            None => self.waiting = (0..known.len()).collect(),
            Some(changed) => {
                let indexes = (0..known.len()).filter(|&at| changed.contains(&known[at].nsid));
                let new = indexes.filter(|ns_index| !self.waiting.contains(ns_index));
                let new: Vec<usize> = new.collect();
                self.waiting.extend(new);
            }
        }
        !self.waiting.is_empty()
    }

    /// The index of the next namespace to identify; `None`: none waits, or as many as allowed are under way.
    pub(super) fn next(&mut self) -> Option<usize> {
        if self.under_way >= MAX_UNDER_WAY {
            return None;
        }
        let ns_index = self.waiting.pop_front()?;
        self.under_way += 1;
        Some(ns_index)
    }

    /// Records that one namespace is identified; returns whether all are.
    pub(super) fn finish_one(&mut self) -> bool {
        self.under_way -= 1;
        self.under_way == 0 && self.waiting.is_empty()
    }
}

impl Known {
    /// Decodes the answer to Identify Namespace.
    pub(super) fn take_namespace(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let nsid = self.identified.nsid;
        let id = IdentifyNamespace::decode(bytes).map_err(|error| match error {
            IdentifyError::Inactive => {
                Failure::new(ErrorKind::NotFound, format!("there is no namespace {nsid}"))
            }
            error => unsupported(error),
        })?;
        self.anagrpid = id.anagrpid.get();
        self.identified = IdentifiedNamespace {
            nsid,
            block_len_bytes: id.block_len_bytes(),
            num_blocks: id.num_blocks(),
            write_protected: id.is_write_protected(),
            nguid: id.nguid,
        };
        Ok(())
    }

    /// Decodes the namespace's descriptors if Identify Namespace had no identifier.
    pub(super) fn take_descriptors(&mut self, bytes: &[u8]) {
        if self.identified.nguid == [0; 16] {
            self.identified.nguid = best_identifier(bytes);
        }
    }
}

/// The worst ANA state of the namespaces on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ana {
    Optimized,
    NonOptimized,
    /// The ANA group of this namespace is not accessible.
    Lost {
        nsid: Nsid,
        group: u32,
        state: &'static str,
    },
}

impl Ana {
    /// Decodes an ANA log for `namespaces`, each with its ANA group. The log has a header of 16 bytes, with the number
    /// of groups at byte 8, then 32 bytes for each group, with the identifier at byte 0 and the state at byte 16.
    pub(super) fn decode(log: &[u8], namespaces: &[(Nsid, u32)]) -> Ana {
        let mut worst = Ana::Optimized;
        let num_groups = usize::from(u16::from_le_bytes([log[8], log[9]]));
        for entry in log[16..].chunks_exact(32).take(num_groups) {
            let group = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
            let Some((nsid, _)) = namespaces.iter().find(|(_, id)| *id == group) else { continue };
            let lost = |state| Ana::Lost { nsid: *nsid, group, state };
            match entry[16] & 0xF {
                2 => worst = Ana::NonOptimized,
                3 => return lost("inaccessible"),
                4 => return lost("persistent-loss"),
                0xF => return lost("change"),
                _ => {} // 1 is optimized; other states do not block access
            }
        }
        worst
    }

    /// The name of the state, as nvme-cli spells it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Ana::Optimized => "optimized",
            Ana::NonOptimized => "non-optimized",
            Ana::Lost { state, .. } => state,
        }
    }

    /// Refuses a path on which a namespace is not accessible.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let Ana::Lost { nsid, group, state } = self else { return Ok(()) };
        let message = format!("the namespace's ANA group {group} is {state} on this path");
        Err(Failure::new(ErrorKind::Disconnected, message).of(*nsid))
    }
}

/// The failure for Identify data that this host does not support.
pub(super) fn unsupported(error: IdentifyError) -> Failure {
    Failure::new(ErrorKind::Unsupported, error.to_string())
}

/// The NGUID, UUID or EUI-64 of the descriptors, in this order of preference; zero when there is none.
fn best_identifier(bytes: &[u8]) -> [u8; 16] {
    let ids = NamespaceDescriptors::decode(bytes);
    let widen = |eui64: [u8; 8]| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&eui64);
        id
    };
    ids.nguid.filter(|id| *id != [0; 16]).or(ids.uuid).or(ids.eui64.map(widen)).unwrap_or_default()
}

/// The most namespaces identified at a time: with the other commands of an admin queue they fit into its 32
/// entries.
const MAX_UNDER_WAY: usize = 16;

/// The most namespaces of an image.
const MAX_NAMESPACES: usize = u16::MAX as usize;

/// Entries of a page of the active namespace list.
const PAGE_ENTRIES: usize = 1024;

/// The only entry of the Changed Namespace List if more namespaces have changed than fit.
const TOO_MANY_CHANGED: Nsid = Nsid(u32::MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_nvme::nvme::identify::{IDENTIFY_LEN_BYTES, encode_namespace_list};

    #[test]
    fn a_namespace_is_identified_by_nguid_else_uuid_else_eui64() {
        let nguid = Some([1; 16]);
        let uuid = Some([2; 16]);
        let eui64 = Some([3; 8]);
        let id = |nguid, uuid, eui64| {
            best_identifier(&NamespaceDescriptors { nguid, uuid, eui64, csi: None }.encode())
        };
        assert_eq!(id(nguid, uuid, eui64), [1; 16]);
        assert_eq!(id(Some([0; 16]), uuid, eui64), [2; 16]);
        assert_eq!(id(None, None, eui64)[..8], [3; 8]);
        assert_eq!(id(None, None, None), [0; 16]);
        assert_eq!(best_identifier(&[0xFF; 4096]), [0; 16]);
    }

    fn wanted(list: &mut Identification, goal: &Goal) -> Vec<u32> {
        list.begin(goal).iter().map(|namespace| namespace.nsid.0).collect()
    }

    #[test]
    fn the_first_active_namespace_is_taken_and_none_is_an_error() {
        let empty = vec![0; IDENTIFY_LEN_BYTES];
        let mut list = Identification::default();
        let none = list.take_page(&empty, Status::SUCCESS).unwrap_err();
        assert_eq!(none.kind, ErrorKind::NotFound);
        assert_eq!(list.take_page(&empty, Status::INVALID_FIELD), Ok(false));
        assert_eq!(wanted(&mut list, &Goal::FirstNamespace), [1]);
        let mut list = Identification::default();
        let page = encode_namespace_list([5, 9].map(Nsid).into_iter());
        assert_eq!(list.take_page(&page, Status::SUCCESS), Ok(false));
        assert_eq!(wanted(&mut list, &Goal::FirstNamespace), [5]);
    }

    #[test]
    fn a_list_is_read_to_its_end_and_must_rise() {
        let page = |nsids: std::ops::Range<u32>| encode_namespace_list(nsids.map(Nsid));
        let mut list = Identification::default();
        assert_eq!(list.take_page(&page(1..1025), Status::SUCCESS), Ok(true));
        assert_eq!(list.last_listed(), Nsid(1024));
        let same = list.take_page(&page(1..1025), Status::SUCCESS).unwrap_err();
        assert_eq!(same.kind, ErrorKind::Corrupt, "a target that says the same for ever");
        assert_eq!(list.take_page(&page(1025..1025), Status::SUCCESS), Ok(false));
        assert_eq!(wanted(&mut list, &Goal::AllNamespaces), Vec::from_iter(1..1025));
        let mut list = Identification::default();
        let pages = (0..).map(|n| page(n * 1024 + 1..(n + 1) * 1024 + 1));
        let mut pages = pages.map(|page| list.take_page(&page, Status::SUCCESS));
        let end = pages.find_map(Result::err).unwrap();
        assert_eq!(end.kind, ErrorKind::Unsupported, "one that says more and more");
    }

    #[test]
    fn only_changed_namespaces_are_identified_again() {
        let mut list = Identification::default();
        let known = list.begin(&Goal::Namespaces([3, 5, 7].map(Nsid).into()));
        let mut ask = |log: &[u8], status| {
            assert_eq!(list.begin_again(log, status, &known), !list.waiting.is_empty());
            let indexes: Vec<usize> = std::iter::from_fn(|| list.next()).collect();
            for left in (0..indexes.len()).rev() {
                assert_eq!(list.finish_one(), left == 0);
            }
            indexes
        };
        let log = |nsids: &[u32]| encode_namespace_list(nsids.iter().copied().map(Nsid));
        assert_eq!(ask(&log(&[1]), Status::INVALID_FIELD), [0, 1, 2], "opening is not over");
        assert_eq!(ask(&log(&[5, 6]), Status::SUCCESS), [1]);
        assert!(ask(&log(&[4]), Status::SUCCESS).is_empty());
        assert_eq!(ask(&log(&[u32::MAX]), Status::SUCCESS), [0, 1, 2]);
        assert_eq!(ask(&log(&[]), Status::SUCCESS), [0, 1, 2]);
    }

    /// An ANA log of these groups and states.
    fn ana_log(groups: &[(u32, u8)]) -> Vec<u8> {
        let mut log = vec![0; 4096];
        log[8] = groups.len() as u8;
        for (at, (id, state)) in groups.iter().enumerate() {
            let group = &mut log[16 + at * 32..][..32];
            group[..4].copy_from_slice(&id.to_le_bytes());
            group[16] = *state;
        }
        log
    }

    #[test]
    fn a_path_is_refused_only_if_an_ana_group_is_not_reachable() {
        let ours = [(Nsid(4), 2), (Nsid(5), 7)];
        for state in 0..=15 {
            let log = ana_log(&[(1, 1), (7, state), (9, 3)]);
            let ana = Ana::decode(&log, &ours);
            assert_eq!(ana.check().is_err(), [3, 4, 15].contains(&state), "{state}");
            assert_eq!(ana == Ana::NonOptimized, state == 2, "{state}");
        }
        let others = Ana::decode(&ana_log(&[(1, 3), (9, 2)]), &ours);
        assert_eq!(others, Ana::Optimized, "groups of other namespaces");
        let failure = Ana::decode(&ana_log(&[(2, 2), (7, 3)]), &ours).check().unwrap_err();
        assert!(failure.message.contains("group 7 is inaccessible"), "{failure}");
        assert_eq!(failure.nsid, Some(Nsid(5)));
    }

    #[test]
    fn an_ana_log_that_claims_more_groups_than_it_holds_is_read_to_its_end() {
        let mut log = ana_log(&[(1, 1)]);
        (log[8], log[9]) = (0xFF, 0xFF);
        assert_eq!(Ana::decode(&log, &[(Nsid(1), 7)]), Ana::Optimized);
    }
}
