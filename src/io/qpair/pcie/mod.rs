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
//! Read `Drive` first, the controller that all share; then `pair.rs`, a queue pair.

mod pair;

use std::io::ErrorKind::OutOfMemory;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Capabilities, ConnectOptions, Device, Namespace, PairScope, QueuePair};
use crate::address::{Address, PcieAddress, VfioUserAddress};
use dlfs_base::buf::{self, HugePages, PageSource as _, Pool, PoolOptions};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::process::{Forked, process_id};
use dlfs_base::units::Nsid;
use dlfs_pcie::memory::window_memory;
use dlfs_pcie::registers::{Bus, Clock};
use dlfs_pcie::vfio::Vfio;
use dlfs_pcie::vfio_user::VfioUser;
use dlfs_pcie::{Controller, DmaRegion, Fault, Settings};
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
        let (nsid, identity) =
            found.map_err(|fault| failed(drive.error_after(&mut controller, fault)))?;
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
    let mut controller = drive.controller.lock();
    let pages = controller
        .identify_all()
        .map_err(|fault| drive.error_after(&mut controller, fault).target(address.to_string()))?;
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

/// A controller, shared by the namespaces and queue pairs of this process.
struct Drive {
    place: ControllerPlace,
    bus: Arc<dyn Bus>,
    controller: Mutex<Controller>,
    /// Memory for the data of buffers that the device does not reach, or that are not aligned for it.
    bounce: Pool,
    /// The number of I/O queues that the controller grants.
    num_queues: usize,
    /// The time after which a command without an answer is aborted; after as long again, the controller is reset.
    limit: Duration,
    /// The memory of pools that the device was offered.
    offered: Mutex<Vec<OfferedRegion>>,
    /// The number of resets. A queue that was created before the last one does not exist any more.
    num_resets: AtomicU64,
    /// The number of calls of [`Drive::recover`] since a command was answered.
    vain_resets: AtomicU32,
    /// The reason why the controller was given up, once it was.
    lost: OnceLock<String>,
    /// The process that opened the controller.
    pid: u32,
    /// The memory of all queues.
    _queues: Arc<DmaRegion>,
}

/// Memory of a pool, and whether the device has taken it.
struct OfferedRegion {
    region: Arc<DmaRegion>,
    is_taken: bool,
}

/// A range of this process's memory that a device reaches.
#[derive(Debug, Clone, Copy)]
struct Reach {
    /// The address of the first byte in this process.
    start: usize,
    /// The length in bytes.
    len: usize,
    /// The address by which the device knows the start.
    address: u64,
}

impl Reach {
    /// The address by which the device knows `bytes`; `None`: they do not lie in this range.
    fn address_of(&self, bytes: &[u8]) -> Option<u64> {
        let offset = bytes.as_ptr().addr().checked_sub(self.start)?;
        (offset + bytes.len() <= self.len).then(|| self.address + offset as u64)
    }
}

/// The place of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ControllerPlace {
    /// Its PCI address.
    Pci(String),
    /// The socket of the process that emulates it.
    Socket(PathBuf),
}

impl ControllerPlace {
    /// The place that the address names, if it names one.
    fn of(address: &Address) -> Option<ControllerPlace> {
        match address {
            Address::Pcie(PcieAddress { traddr, .. }) => Some(ControllerPlace::Pci(traddr.clone())),
            Address::VfioUser(VfioUserAddress { traddr, .. }) => {
                Some(ControllerPlace::Socket(traddr.into()))
            }
            _ => None,
        }
    }

    /// The name of the bus, for display.
    fn bus_name(&self) -> &'static str {
        match self {
            ControllerPlace::Pci(_) => "vfio",
            ControllerPlace::Socket(_) => "vfio-user",
        }
    }

    /// Opens the bus at this place. A process that emulates a controller has `limit` for each of its replies.
    fn connect(&self, limit: Duration) -> Result<Arc<dyn Bus>, Fault> {
        match self {
            ControllerPlace::Pci(address) => Ok(Arc::new(Vfio::open(address)?)),
            ControllerPlace::Socket(path) => Ok(Arc::new(VfioUser::connect(path, limit)?)),
        }
    }

    /// The library's error for a fault while the controller is opened.
    fn error_of(&self, fault: Fault) -> Error {
        let hint = match (self, &fault) {
            (ControllerPlace::Pci(_), Fault::Io { source, .. }) if source.kind() == OutOfMemory => {
                MEMLOCK
            }
            (ControllerPlace::Pci(_), Fault::Io { .. } | Fault::Unready(_)) => {
                "dlfs doctor with this address says what is missing, and the commands that help"
            }
            (ControllerPlace::Socket(_), Fault::Io { .. }) => {
                "is the target running, and is this its socket, or its folder?"
            }
            (ControllerPlace::Socket(_), Fault::TimedOut { .. }) => {
                "a device takes one connection at a time: does another process use it?"
            }
            _ => return error_of(fault),
        };
        error_of(fault).hint(hint)
    }
}

/// The controllers of this process.
static DRIVES: Forked<Mutex<Vec<Weak<Drive>>>> = Forked::empty();

impl Drive {
    /// The controller at `place`: the one that this process uses already, with the options with which it was started,
    /// or else a controller that is started now.
    fn open(place: ControllerPlace, options: &ConnectOptions) -> Result<Arc<Drive>> {
        // Held while connecting, since a device takes one connection at a time.
        let mut drives = DRIVES.get_or_init(Mutex::default).lock();
        drives.retain(|drive| drive.strong_count() > 0);
        let mut live = drives.iter().filter_map(Weak::upgrade);
        if let Some(drive) = live.find(|drive| drive.place == place && !drive.is_lost()) {
            return Ok(drive);
        }
        let drive = Arc::new(Drive::start(place, options)?);
        drives.push(Arc::downgrade(&drive));
        Ok(drive)
    }

    /// Starts the controller at `place`, and checks that it reaches the memory for copies.
    fn start(place: ControllerPlace, options: &ConnectOptions) -> Result<Drive> {
        let memory = window_memory();
        if memory.is_foreign() {
            let message = "a child process cannot use devices after its parent has";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let limit = options.io_timeout.min(options.connect_timeout);
        let failed = |fault| place.error_of(fault);
        let bus = place.connect(limit).map_err(failed)?;
        let settings = Settings {
            queues: options.nr_io_queues.clamp(1, MOST_QUEUES),
            entries: options.queue_size.clamp(2, dlfs_pcie::queue::MAX_ENTRIES),
            limit: options.io_timeout,
        };
        let (area, queues) = DmaRegion::for_queues(Controller::area_bytes(&settings))?;
        bus.map(&queues).map_err(failed)?;
        let registers = Arc::clone(&bus);
        let clock = Arc::new(SystemClock);
        let controller = Controller::start(registers, clock, &area, settings).map_err(failed)?;
        buf::use_pages_of(memory);
        let slots =
            PoolOptions { bytes: BOUNCE_BYTES, slot_len_bytes: 4096, huge_pages: HugePages::Off };
        let bounce = Pool::of_source(slots, memory)?;
        let drive = Drive {
            place,
            bus,
            num_queues: controller.num_queues(),
            controller: Mutex::new(controller),
            bounce,
            limit: options.io_timeout,
            offered: Mutex::default(),
            num_resets: AtomicU64::new(0),
            vain_resets: AtomicU32::new(0),
            lost: OnceLock::new(),
            pid: process_id(),
            _queues: queues,
        };
        let probe = drive.bounce.take(1).expect("a new pool has room");
        if !drive.reaches().iter().any(|reach| reach.address_of(&probe).is_some()) {
            let message = "the device does not take the memory for data";
            let error = Error::new(ErrorKind::Refused, message);
            return Err(match drive.place {
                ControllerPlace::Pci(_) => error.hint(MEMLOCK),
                ControllerPlace::Socket(_) => error,
            });
        }
        Ok(drive)
    }

    /// The memory of pools that the device reaches now. Maps the memory of new pools for the device, and unmaps the
    /// memory that pools have freed.
    fn reaches(&self) -> Vec<Reach> {
        let mut offered = self.offered.lock();
        let regions = window_memory().regions();
        offered.retain(|known| {
            let stays = regions.iter().any(|region| Arc::ptr_eq(region, &known.region));
            if !stays && known.is_taken {
                // If this fails, the device may still write to the region's device address, which is never given again.
                self.bus.unmap(&known.region).unwrap_or(());
            }
            stays
        });
        for region in regions {
            if !offered.iter().any(|known| Arc::ptr_eq(&region, &known.region)) {
                let mapped = self.bus.map(&region);
                if let Err(fault) = &mapped {
                    let len = region.len();
                    tracing::warn!("a device does without a pool of {len} bytes: {fault}");
                }
                offered.push(OfferedRegion { region, is_taken: mapped.is_ok() });
            }
        }
        let taken = offered.iter().filter(|offered| offered.is_taken);
        let reach = |OfferedRegion { region, .. }: &OfferedRegion| Reach {
            start: region.start().addr().get(),
            len: region.len(),
            address: region.address(),
        };
        taken.map(reach).collect()
    }

    /// The number of resets.
    fn num_resets(&self) -> u64 {
        self.num_resets.load(Ordering::Acquire)
    }

    /// Records that a command was answered.
    fn mark_alive(&self) {
        if self.vain_resets.load(Ordering::Relaxed) > 0 {
            self.vain_resets.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether this process opened the controller.
    fn is_ours(&self) -> bool {
        self.pid == process_id()
    }

    fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// The reason why no further command can be sent, if there is one.
    fn why_over(&self) -> Option<&str> {
        if !self.is_ours() {
            return Some("the controller belongs to the parent process");
        }
        self.lost.get().map(String::as_str)
    }

    /// Resets the controller after a fault. Gives the controller up if a reset cannot help or fails, or if the last
    /// `MOST_VAIN_RESETS` resets have not led to an answer.
    fn recover(&self, controller: &mut Controller, fault: &Fault) {
        let in_vain = self.vain_resets.fetch_add(1, Ordering::Relaxed);
        if !fault.is_of_the_controller() || in_vain >= MOST_VAIN_RESETS {
            return self.give_up(fault);
        }
        tracing::warn!("a controller is reset: {fault}");
        let restarted = controller.restart().or_else(|fault| {
            if !fault.is_of_the_controller() || self.bus.reset().is_err() {
                return Err(fault);
            }
            controller.restart()
        });
        match restarted {
            Ok(()) => {
                self.num_resets.fetch_add(1, Ordering::Release);
            }
            Err(fault) => self.give_up(&fault),
        }
    }

    /// The error for the fault of an admin command. A controller that has not answered one is reset: until then it is
    /// given no other.
    fn error_after(&self, controller: &mut Controller, fault: Fault) -> Error {
        if let Fault::TimedOut { .. } = fault {
            self.recover(controller, &fault);
        }
        error_of(fault)
    }

    /// Gives the controller up for good; the first reason is kept.
    fn give_up(&self, fault: &Fault) {
        let _ = self.lost.set(fault.to_string()); // an earlier reason stays
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if self.is_ours() && !self.is_lost() {
            // If this fails, the kernel or the emulating process resets the controller when the bus is closed.
            self.controller.get_mut().shut_down().unwrap_or(());
        }
    }
}

/// The library's error for a fault of a controller.
fn error_of(fault: Fault) -> Error {
    Error::new(fault.kind(), fault.to_string())
}

/// The clock of the machine.
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn nap(&self) {
        std::thread::sleep(NAP);
    }
}

/// The hint when the kernel pins too little memory.
const MEMLOCK: &str =
    "raise the limit of locked memory (ulimit -l): queues, buffers and pools are pinned";

/// The time between looks at a controller that is busy with a reset or an admin command.
const NAP: Duration = Duration::from_micros(50);

/// The most I/O queues that a controller is asked for.
const MOST_QUEUES: u16 = 32;

/// Resets without a success between them after which a controller is given up.
const MOST_VAIN_RESETS: u32 = 3;

/// The size of [`Drive::bounce`], in bytes.
const BOUNCE_BYTES: usize = 8 << 20;
