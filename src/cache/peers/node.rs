//! Identity of a node: the same for all ranks that can share tiers, and in later rounds.

use std::fs;

use xxhash_rust::xxh3::xxh3_64;

use dlfs_io::qpair::machine_uuid;

/// The id and the name of the node called `name`, or of this machine. Each network namespace of a machine is
/// a separate node: processes in different network namespaces cannot share tiers.
pub(super) fn identity(name: Option<&str>) -> (u64, String) {
    if let Some(name) = name {
        return (xxh3_64(name.as_bytes()), name.to_owned());
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let network = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
    // Unreadable if process 1 belongs to another user: then the machine and the host name identify the node.
    let own_network = network("self").filter(|own| network("1").is_some_and(|first| first != *own));
    let text = format!("{:?} {} {own_network:?}", machine_uuid(), host.trim());
    (xxh3_64(text.as_bytes()), host.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_the_same_node_each_time_and_names_tell_nodes_apart() {
        assert_eq!(identity(None), identity(None));
        assert_ne!(identity(Some("a")).0, identity(Some("b")).0);
        assert_eq!(identity(Some("a")).1, "a");
    }
}
