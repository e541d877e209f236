//! The node's identity: the same for all ranks that can share tiers, and in later rounds.

use std::fs;

use xxhash_rust::xxh3::xxh3_64;

use dlfs_io::qpair::machine_uuid;

/// A node's id and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeIdentity {
    pub(super) id: u64,
    pub(super) host: String,
}

impl NodeIdentity {
    /// The identity of the node called `name`, or of this machine. Each network namespace of a machine is a
    /// separate node: processes in different ones cannot share tiers.
    pub(super) fn new(name: Option<&str>) -> NodeIdentity {
        if let Some(name) = name {
            return NodeIdentity { id: xxh3_64(name.as_bytes()), host: name.to_owned() };
        }
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let network = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
        // Unreadable if process 1 belongs to another user: then machine and host name identify the node.
        let own_network =
            network("self").filter(|own| network("1").is_some_and(|first| first != *own));
        let text = format!("{:?} {} {own_network:?}", machine_uuid(), host.trim());
        NodeIdentity { id: xxh3_64(text.as_bytes()), host: host.trim().to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_the_same_node_each_time_and_names_tell_nodes_apart() {
        assert_eq!(NodeIdentity::new(None), NodeIdentity::new(None));
        assert_ne!(NodeIdentity::new(Some("a")).id, NodeIdentity::new(Some("b")).id);
        assert_eq!(NodeIdentity::new(Some("a")).host, "a");
    }
}
