//! Namespaces of controllers whose queues lie in memory, by this library's own driver (`dlfs-pcie`): drives of this
//! machine through VFIO, and over vfio-user, controllers that another process of this machine emulates.
//!
//! A read costs no system call if the device lets its doorbells be mapped: commands and completions are words of shared
//! memory. Once such a namespace was opened, new pools of 1 MiB or more allocate from memory that is mapped for the
//! device once, so the device writes into their buffers. Data of other buffers are copied through memory of the driver.
//! Queues have no interrupts and are polled; while I/Os are outstanding, a poller sleeps for at most 50 µs at a time.
//!
//! A command without an answer for `io_timeout` is aborted; if the abort has no answer either for as long, the
//! controller is reset, and its commands are issued again. A controller that is gone, does not come back, or is wanted
//! back by the kernel is given up: there is no other path, and only a later opening connects again. A reset happens in
//! the `poll` that finds it necessary, and takes as long as the controller says, so that call blocks.
//!
//! All namespaces of a controller share the controller, within a process: a device takes one process at a time. A
//! forked child cannot use it.
//!
//! Read `pair.rs` first, then `drive.rs`.

mod drive;
mod pair;

use std::sync::Arc;

use super::{Capabilities, ConnectOptions, Device, Namespace, PairScope, QueuePair};
use crate::address::{Address, PcieAddress, VfioUserAddress};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::Nsid;
use drive::{ControllerPlace, Drive, error_of};
use pair::PciePair;

/// A namespace of a controller with queues in memory.
pub(super) struct PcieNamespace {
    drive: Arc<Drive>,
    nsid: Nsid,
    namespace: Namespace,
}

impl PcieNamespace {
    /// Opens the namespace at `address`, and connects to its controller unless this process has done so.
    ///
    /// # Errors
    /// `NotFound`: no device, socket or namespace is there. `Refused`: the device is not VFIO's, nobody listens, or the
    /// device refuses. `Unsupported`: this driver does not know the kind of controller or namespace, the device
    /// violates the protocol, or this process was forked from one that uses devices. `TimedOut`, `Disconnected`: the
    /// controller does not answer. `InvalidArgument`: further paths were given, or the subsystem is another one.
    pub(super) fn connect(address: &Address, options: &ConnectOptions) -> Result<PcieNamespace> {
        let failed = |error: Error| error.target(address.to_string());
        let drive = open(address, options)?;
        let mut controller = drive.controller.lock();
        let nsid = match address {
            Address::Pcie(PcieAddress { nsid, .. }) => *nsid,
            Address::VfioUser(VfioUserAddress { nsid, .. }) => *nsid,
            _ => None,
        };
        let found = controller.namespace(nsid);
        let (nsid, identity) = found.map_err(|fault| failed(error_of(fault)))?;
        let namespace = Namespace {
            address: address.to_string(),
            block_len_bytes: identity.block_len_bytes(),
            num_blocks: identity.num_blocks(),
            max_transfer_bytes: controller.max_transfer_bytes(),
            queue_depth: controller.entries() - 1,
            nguid: identity.nguid,
            read_only: !options.writable || identity.is_write_protected(),
            engine: format!("pcie ({})", drive.place.bus_name()),
        };
        drop(controller);
        Ok(PcieNamespace { drive, nsid, namespace })
    }
}

/// Returns the controller at `address`; connects unless this process has done so.
fn open(address: &Address, options: &ConnectOptions) -> Result<Arc<Drive>> {
    let invalid = |text| Error::new(ErrorKind::InvalidArgument, text).target(address.to_string());
    if !options.paths.is_empty() {
        return Err(invalid("a controller with queues in memory has no further path"));
    }
    let place =
        ControllerPlace::of(address).ok_or_else(|| invalid("it names no drive and no socket"))?;
    let drive = Drive::open(place, options).map_err(|error| error.target(address.to_string()))?;
    if let Address::VfioUser(VfioUserAddress { subnqn: Some(subnqn), .. }) = address
        && drive.controller.lock().identity.subnqn().as_ref() != Ok(subnqn)
    {
        return Err(invalid("the controller there belongs to another subsystem"));
    }
    Ok(drive)
}

/// Reads the Identify data of the controller and of its first 1,024 active namespaces, 4,096 bytes each, by NSID. The
/// controller's data come first, with NSID 0.
///
/// Connects unless this process has done so. The strings in the data come from the device: check them.
///
/// # Errors
/// As for opening a namespace there. `InvalidArgument`: the address is neither a drive's nor a socket's.
pub fn identify(address: &Address, options: &ConnectOptions) -> Result<Vec<(Nsid, Vec<u8>)>> {
    let drive = open(address, options)?;
    let pages = drive.controller.lock().identify_all();
    let pages = pages.map_err(|fault| error_of(fault).target(address.to_string()))?;
    Ok(pages.into_iter().map(|(nsid, page)| (nsid, page.to_vec())).collect())
}

impl Device for PcieNamespace {
    fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }

    /// Waits until the controller has created the queue.
    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let pair = PciePair::create(Arc::clone(&self.drive), self.nsid, self.namespace.clone());
        let pair = pair.map_err(|error| error.target(self.namespace.address.clone()))?;
        Ok(Box::new(pair))
    }

    fn capabilities(&self) -> Capabilities {
        let max_queue_pairs = self.drive.num_queues;
        // A command that was not aborted in this time dies with a reset.
        let late_writes = 2 * self.drive.limit;
        Capabilities { max_queue_pairs, late_writes, ..Capabilities::default() }
    }
}
