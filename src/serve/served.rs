//! The namespaces that a target serves.
//!
//! They can be added and removed while the target serves. Identify reads the table [`Namespaces`]. I/O commands do not,
//! so they take no lock: each poller has queue pairs of its own for them, which `poller/changes.rs` adds and removes.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use dlfs_base::error::{Result, invalid};
use dlfs_base::units::Nsid;
use dlfs_io::qpair::{Device, QueuePair};

/// A namespace as a [`super::Target`] serves it.
#[derive(Clone)]
pub struct ServedNamespace {
    /// The namespace's identifier, from 1 to [`MAX_NSID`](super::MAX_NSID).
    pub nsid: Nsid,
    /// The device with the namespace's blocks.
    pub device: Arc<dyn Device>,
    /// True if no host may write to the namespace, even if the target's options permit writing.
    pub read_only: bool,
}

impl ServedNamespace {
    /// Numbers `devices` as namespaces 1, 2, ...
    pub fn numbered(devices: Vec<Arc<dyn Device>>) -> Vec<ServedNamespace> {
        let served = |(nsid, device)| ServedNamespace { nsid, device, read_only: false };
        (1..).map(Nsid).zip(devices).map(served).collect()
    }
}

impl std::fmt::Debug for ServedNamespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address = self.device.namespace().address;
        write!(f, "ServedNamespace({} at {address})", self.nsid.0)
    }
}

/// A namespace that was checked and has queue pairs, so that [`Target::add_prepared`](super::Target::add_prepared)
/// cannot fail because of the namespace.
pub struct PreparedNamespace {
    pub(super) served: ServedNamespace,
    /// One queue pair for each poller.
    pub(super) queue_pairs: Vec<Box<dyn QueuePair>>,
}

impl std::fmt::Debug for PreparedNamespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PreparedNamespace({:?})", self.served)
    }
}

/// The namespaces, by NSID.
pub(super) type Namespaces = RwLock<BTreeMap<Nsid, ServedNamespace>>;

/// Refuses namespaces that cannot be served together.
pub(super) fn check(served: &[ServedNamespace]) -> Result<()> {
    let mut nsids: Vec<u32> = served.iter().map(|served| served.nsid.0).collect();
    nsids.sort_unstable();
    if let Some(pair) = nsids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(invalid(format!("two namespaces have the NSID {}", pair[0])));
    }
    served.iter().try_for_each(check_one)
}

/// Refuses a namespace that cannot be served.
pub(super) fn check_one(served: &ServedNamespace) -> Result<()> {
    if !(1..=MAX_NSID).contains(&served.nsid.0) {
        return Err(invalid(format!("NSID {} is not 1 to {MAX_NSID}", served.nsid.0)));
    }
    let namespace = served.device.namespace();
    let block_len = namespace.block_len_bytes;
    if !(512..=4096).contains(&block_len) || !block_len.is_power_of_two() {
        let message = format!("blocks of {block_len} bytes cannot be served");
        return Err(invalid(message).target(namespace.address));
    }
    Ok(())
}

/// The highest NSID of a subsystem, and its maximum number of namespaces: each poller's table may have this many
/// entries.
pub const MAX_NSID: u32 = 1 << 16;
