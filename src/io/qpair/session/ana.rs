//! Asymmetric Namespace Access (ANA): the state of a path to the namespaces of a controller.

use super::Failure;
use dlfs_base::error::ErrorKind;
use dlfs_base::units::Nsid;

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

#[cfg(test)]
mod tests {
    use super::*;

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
