//! Namespaces of controllers whose queues lie in memory, by this library's own driver (`dlfs-pcie`): drives of this
//! machine through VFIO, and over vfio-user, controllers that another process of this machine plays.
//!
//! A read costs no system call: commands and completions are words of shared memory, and so are doorbells where the
//! device lets them be mapped. Pools that are created once such a namespace was opened take their pages from files,
//! which are mapped for the device once, so data go to their place; data of other buffers are copied through memory of
//! the driver. There is no interrupt: queues are polled, and a poller that sleeps does so for a moment only.
//!
//! A command without an answer for `io_timeout` is aborted; when that has no answer either for as long, the controller
//! is reset, and its commands are issued again. A controller that is gone, does not come back, or is wanted back by the
//! kernel is given up: there is one path, and no later attempt. A reset happens in the `poll` that finds it necessary,
//! and takes as long as the controller says, so that call blocks.
//!
//! All namespaces of a controller share it, within a process: a device takes one process at a time. A forked child
//! cannot use it.
//!
//! Read `PciePair` first, then `Drive`.

use std::collections::VecDeque;
use std::io::ErrorKind::OutOfMemory;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{
    Capabilities, Completion, ConnectOptions, Device, Fence, Io, IoError, IoOp, Namespace, Notice,
    PairScope, QueuePair,
};
use crate::address::{Address, PcieAddress, VfioUserAddress};
use dlfs_base::buf::{self, HugePages, IoBuf, PageSource as _, Pool, PoolOptions};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::process::{Forked, process_id};
use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::{RetryClass, Sgl, Sqe, Status};
use dlfs_pcie::memory::window_memory;
use dlfs_pcie::registers::{Bus, Clock};
use dlfs_pcie::vfio::Vfio;
use dlfs_pcie::vfio_user::VfioUser;
use dlfs_pcie::{Controller, DmaRegion, Fault, Queue, Settings, Span};

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
    /// device refuses. `Unsupported`: the controller, or the namespace, is of a kind that this driver does not know.
    /// `TimedOut`, `Disconnected`: the controller does not answer. `InvalidArgument`: further paths were given, or the
    /// subsystem is another one.
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

/// Connects to the controller at `address`, unless this process has done so.
fn open(address: &Address, options: &ConnectOptions) -> Result<Arc<Drive>> {
    let invalid = |text| Error::new(ErrorKind::InvalidArgument, text).target(address.to_string());
    if !options.paths.is_empty() {
        return Err(invalid("a controller with queues in memory has no further path"));
    }
    let place = Place::of(address).ok_or_else(|| invalid("it names no drive and no socket"))?;
    let drive = Drive::open(place, options).map_err(|error| error.target(address.to_string()))?;
    if let Address::VfioUser(VfioUserAddress { subnqn: Some(subnqn), .. }) = address
        && drive.controller.lock().identity.subnqn().as_ref() != Ok(subnqn)
    {
        return Err(invalid("the controller there belongs to another subsystem"));
    }
    Ok(drive)
}

/// Reads the Identify data of the controller and of its active namespaces, 4,096 bytes each, by NSID. The controller's
/// data come first, with NSID 0.
///
/// Connects unless this process has done so. The strings in the data come from the device: check them.
///
/// # Errors
/// As for opening a namespace there. `InvalidArgument`: the address is neither a drive's nor a socket's.
pub fn identify(address: &Address, options: &ConnectOptions) -> Result<Vec<(Nsid, Vec<u8>)>> {
    let drive = open(address, options)?;
    let pages = drive.controller.lock().pages();
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

/// A controller, shared by the namespaces and queue pairs of this process.
struct Drive {
    place: Place,
    bus: Arc<dyn Bus>,
    controller: Mutex<Controller>,
    /// Memory for the data of buffers that the device does not reach.
    bounce: Pool,
    num_queues: usize,
    /// The time after which a command is aborted, and then given up.
    limit: Duration,
    /// Regions of pools that the device reaches, and those that it refused.
    mapped: Mutex<Vec<(Arc<DmaRegion>, bool)>>,
    /// Counts the resets: a queue of an earlier epoch does not exist any more.
    epoch: AtomicU64,
    /// The resets since a command succeeded.
    vain_resets: AtomicU32,
    /// The reason why the controller was given up.
    lost: OnceLock<String>,
    /// The process that opened it.
    pid: u32,
    /// The memory of all queues.
    _queues: Arc<DmaRegion>,
}

/// Addresses of this process's memory that a device reaches.
#[derive(Debug, Clone, Copy)]
struct Reach {
    start: usize,
    len: usize,
    address: u64,
}

impl Reach {
    /// The address by which the device knows `bytes`.
    fn address_of(&self, bytes: &[u8]) -> Option<u64> {
        let offset = bytes.as_ptr().addr().checked_sub(self.start)?;
        (offset + bytes.len() <= self.len).then(|| self.address + offset as u64)
    }
}

/// The place of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// Its PCI address.
    Pci(String),
    /// The socket of the process that plays it.
    Socket(PathBuf),
}

impl Place {
    /// The place at the address, if that names one.
    fn of(address: &Address) -> Option<Place> {
        match address {
            Address::Pcie(PcieAddress { traddr, .. }) => Some(Place::Pci(traddr.clone())),
            Address::VfioUser(VfioUserAddress { traddr, .. }) => Some(Place::Socket(traddr.into())),
            _ => None,
        }
    }

    /// The way to it, for display.
    fn bus_name(&self) -> &'static str {
        match self {
            Place::Pci(_) => "vfio",
            Place::Socket(_) => "vfio-user",
        }
    }

    fn connect(&self, limit: Duration) -> Result<Arc<dyn Bus>, Fault> {
        match self {
            Place::Pci(address) => Ok(Arc::new(Vfio::open(address)?)),
            Place::Socket(path) => Ok(Arc::new(VfioUser::connect(path, limit)?)),
        }
    }

    /// The library's error for a fault while the controller is opened.
    fn error_of(&self, fault: Fault) -> Error {
        let hint = match (self, &fault) {
            (Place::Pci(_), Fault::Io { source, .. }) if source.kind() == OutOfMemory => MEMLOCK,
            (Place::Pci(_), Fault::Io { .. } | Fault::Unready(_)) => {
                "dlfs doctor with this address says what is missing, and the commands that help"
            }
            (Place::Socket(_), Fault::Io { .. }) => {
                "is the target running, and is this its socket, or its folder?"
            }
            (Place::Socket(_), Fault::TimedOut { .. }) => {
                "a device takes one connection at a time: does another process use it?"
            }
            _ => return error_of(fault),
        };
        error_of(fault).hint(hint)
    }
}

/// Controllers of this process.
type Drives = Vec<Weak<Drive>>;

static DRIVES: Forked<Mutex<Drives>> = Forked::empty();

impl Drive {
    /// The controller at `place`; starts it unless this process has.
    fn open(place: Place, options: &ConnectOptions) -> Result<Arc<Drive>> {
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

    fn start(place: Place, options: &ConnectOptions) -> Result<Drive> {
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
            mapped: Mutex::default(),
            epoch: AtomicU64::new(0),
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
                Place::Pci(_) => error.hint(MEMLOCK),
                Place::Socket(_) => error,
            });
        }
        Ok(drive)
    }

    /// The memory of pools that the device reaches now. Maps what is new, and takes back what pools have freed.
    fn reaches(&self) -> Vec<Reach> {
        let mut mapped = self.mapped.lock();
        let regions = window_memory().regions();
        mapped.retain(|(known, taken)| {
            let stays = regions.iter().any(|region| Arc::ptr_eq(region, known));
            if !stays && *taken {
                // A device that refuses keeps memory that nobody else uses.
                self.bus.unmap(known).unwrap_or(());
            }
            stays
        });
        for region in regions {
            if !mapped.iter().any(|(known, _)| Arc::ptr_eq(&region, known)) {
                let taken = self.bus.map(&region);
                if let Err(fault) = &taken {
                    let len = region.len();
                    tracing::warn!("a device does without a pool of {len} bytes: {fault}");
                }
                mapped.push((region, taken.is_ok()));
            }
        }
        let taken = mapped.iter().filter(|(_, taken)| *taken);
        let reach = |region: &DmaRegion| Reach {
            start: region.start().addr().get(),
            len: region.len(),
            address: region.address(),
        };
        taken.map(|(region, _)| reach(region)).collect()
    }

    /// The number of resets.
    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Records that a command succeeded.
    fn works(&self) {
        if self.vain_resets.load(Ordering::Relaxed) > 0 {
            self.vain_resets.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether this process opened it.
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

    /// Resets the controller after a fault, or gives it up.
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
                self.epoch.fetch_add(1, Ordering::Release);
            }
            Err(fault) => self.give_up(&fault),
        }
    }

    /// Gives the controller up for good; the first reason is kept.
    fn give_up(&self, fault: &Fault) {
        let _ = self.lost.set(fault.to_string()); // an earlier reason stays
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if self.is_ours() && !self.is_lost() {
            // Its process resets it when the connection ends, in any case.
            self.controller.get_mut().shut_down().unwrap_or(());
        }
    }
}

/// The library's error for a fault of a controller.
fn error_of(fault: Fault) -> Error {
    Error::new(fault.kind(), fault.to_string())
}

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn nap(&self) {
        std::thread::sleep(NAP);
    }
}

/// A queue pair with a queue of its own.
struct PciePair {
    drive: Arc<Drive>,
    nsid: Nsid,
    namespace: Namespace,
    queue: Queue<Job>,
    /// The number of resets when the queue was created.
    epoch: u64,
    /// Memory that the device reaches, as of this version of the pools.
    reaches: Vec<Reach>,
    version: u64,
    /// I/Os that are not on the queue, in order.
    waiting: VecDeque<Job>,
    /// I/Os that ended without the device.
    ended: VecDeque<Completion>,
    fence: Option<Arc<Fence>>,
    /// The time of the last completion, or of the first command after none was outstanding.
    progress: Instant,
    /// The time of the next look at commands that take long.
    look_at: Instant,
    /// The time of the last poll.
    now: Instant,
}

/// An I/O that needs a completion.
struct Job {
    io: Io,
    /// The memory that the device uses instead of the I/O's buffer.
    bounce: Option<IoBuf>,
    /// The times that it was issued in vain.
    tries: u8,
}

impl PciePair {
    /// Creates a queue pair and its queue.
    fn create(drive: Arc<Drive>, nsid: Nsid, namespace: Namespace) -> Result<PciePair> {
        if let Some(reason) = drive.why_over() {
            return Err(Error::new(ErrorKind::Disconnected, reason.to_owned()));
        }
        let mut controller = drive.controller.lock();
        let epoch = drive.epoch();
        let queue = controller.create_queue().map_err(error_of)?;
        drop(controller);
        let now = Instant::now();
        Ok(PciePair {
            drive,
            nsid,
            namespace,
            queue,
            epoch,
            reaches: Vec::new(),
            version: u64::MAX,
            waiting: VecDeque::new(),
            ended: VecDeque::new(),
            fence: None,
            progress: now,
            look_at: now,
            now,
        })
    }

    /// Moves I/Os forward; appends at most `max` completions of the device.
    fn turn(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) {
        if self.drive.why_over().is_some() {
            return self.give_up();
        }
        if self.epoch != self.drive.epoch() {
            return self.rejoin();
        }
        let PciePair { queue, drive, waiting, .. } = self;
        let before = (done.len(), queue.outstanding());
        let polled = queue.poll(&*drive.bus, max, |job, end| match judge(job, end.status) {
            Ok(completion) => done.push(completion),
            Err(job) => waiting.push_back(job),
        });
        if queue.outstanding() < before.1 {
            self.progress = now;
        }
        if done.len() > before.0 {
            self.drive.works();
        }
        match polled {
            Ok(_) if before.1 > 0 && now >= self.look_at => self.look(now),
            Ok(_) => {}
            Err(fault) => self.drive.give_up(&fault),
        }
        self.issue(now);
    }

    /// Places waiting I/Os on the queue.
    fn issue(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            return;
        }
        if self.drive.why_over().is_some() || self.epoch != self.drive.epoch() {
            return; // the next poll sees to it
        }
        if self.version != window_memory().version() {
            // Before the list is read: what comes meanwhile is seen the next time.
            self.version = window_memory().version();
            self.reaches = self.drive.reaches();
        }
        if self.queue.outstanding() == 0 {
            self.progress = now;
        }
        while self.queue.has_room() {
            let Some(job) = self.waiting.pop_front() else { break };
            let is_write = job.io.op == IoOp::Write;
            if is_write && self.fence.as_ref().is_some_and(|fence| !fence.is_open()) {
                self.ended.push_back(job.io.end(Err(IoError::Fenced)));
                continue;
            }
            match self.place(job) {
                Ok((job, span)) => {
                    let sqe = self.command(&job.io);
                    self.queue.push(now, sqe, span, job);
                }
                Err(job) => {
                    self.waiting.push_front(job);
                    break;
                }
            }
        }
        if let Err(fault) = self.queue.ring(&*self.drive.bus) {
            self.drive.give_up(&fault);
        }
    }

    /// Finds the place of the I/O's data for the device; copies them if it does not reach the buffer. Returns the job
    /// as it is if all memory for copies is in use.
    fn place(&self, mut job: Job) -> Result<(Job, Option<Span>), Job> {
        if job.io.buf.is_empty() {
            return Ok((job, None));
        }
        let len = job.io.buf.len() as u32;
        let reach = |bytes: &[u8]| self.reaches.iter().find_map(|reach| reach.address_of(bytes));
        let direct = reach(&job.io.buf).filter(|address| address.is_multiple_of(DMA_ALIGN));
        if let Some(address) = direct {
            return Ok((job, Some(Span { address, len })));
        }
        if job.bounce.is_none() {
            let Some(mut bounce) = self.drive.bounce.take(job.io.buf.len()) else {
                return Err(job);
            };
            if job.io.op == IoOp::Write {
                bounce.copy_from_slice(&job.io.buf);
            }
            job.bounce = Some(bounce);
        }
        let address = reach(job.bounce.as_deref().expect("taken above"));
        // Looked up when the drive was opened, and never freed before it.
        let address = address.expect("the device reaches the memory for copies");
        Ok((job, Some(Span { address, len })))
    }

    fn command(&self, io: &Io) -> Sqe {
        let num_blocks = io.buf.len() as u32 / self.namespace.block_len_bytes;
        match io.op {
            IoOp::Read => Sqe::read(0, self.nsid, io.slba, num_blocks, 0),
            IoOp::Write => Sqe::write(0, self.nsid, io.slba, num_blocks, Sgl::transport(0)),
            IoOp::Flush => Sqe::flush(0, self.nsid),
        }
    }

    /// Looks for commands that take too long, and whether the controller is still there.
    fn look(&mut self, now: Instant) {
        self.look_at = now + LOOK_INTERVAL;
        // Another thread is at the controller: later.
        let Some(mut controller) = self.drive.controller.try_lock() else { return };
        let limit = self.drive.limit;
        let quiet = now.saturating_duration_since(self.progress);
        let checked = if self.drive.bus.is_wanted_back() {
            Err(Fault::WantedBack)
        } else if quiet >= QUIET {
            controller.check()
        } else {
            Ok(())
        };
        let looked = checked.and_then(|()| match self.queue.overdue(now, limit) {
            None => Ok(()),
            Some(late) if late.aborting => {
                Err(Fault::TimedOut { step: "a command, and its abort", limit })
            }
            Some(late) => {
                self.queue.mark_aborting(now, late.cid);
                controller.abort(self.queue.qid(), late.cid)
            }
        });
        if let Err(fault) = looked {
            self.drive.recover(&mut controller, &fault);
        }
    }

    /// Creates the queue anew after a reset, which has ended all commands without an answer.
    fn rejoin(&mut self) {
        let Some(mut controller) = self.drive.controller.try_lock() else { return };
        let epoch = self.drive.epoch();
        for mut job in self.queue.drain().into_iter().rev() {
            job.tries += 1;
            if job.tries < MOST_TRIES {
                self.waiting.push_front(job);
            } else {
                let text = "the controller did not answer, also after resets";
                self.ended.push_back(job.io.end(Err(IoError::Disconnected(text.to_owned()))));
            }
        }
        match controller.attach(&mut self.queue) {
            Ok(()) => self.epoch = epoch,
            Err(fault) => self.drive.recover(&mut controller, &fault),
        }
    }

    /// Fails all I/Os. A device that was given up may still write to the memory of its commands.
    fn give_up(&mut self) {
        let reason = self.drive.why_over().unwrap_or_default();
        let lost = |job: Job| job.io.end(Err(IoError::Disconnected(reason.to_owned())));
        self.ended.extend(self.queue.drain().into_iter().map(quarantine).map(lost));
        self.ended.extend(self.waiting.drain(..).map(lost));
    }
}

impl QueuePair for PciePair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let room = usize::from(self.namespace.queue_depth).saturating_sub(self.outstanding());
        let count = room.min(pending.len());
        for io in pending.drain(..count) {
            match self.namespace.check(&io) {
                Ok(()) => self.waiting.push_back(Job { io, bounce: None, tries: 0 }),
                Err(error) => self.ended.push_back(io.end(Err(error))),
            }
        }
        self.issue(Instant::now());
        count
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        self.now = now;
        self.turn(now, max, done);
        let left = self.ended.len().min(max - (done.len() - before));
        done.extend(self.ended.drain(..left));
        done.len() - before
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.fence = Some(Arc::clone(fence));
    }

    fn outstanding(&self) -> usize {
        self.queue.outstanding() + self.waiting.len() + self.ended.len()
    }

    /// The device gives no descriptor, so sleeps are short.
    fn notice(&self) -> Notice {
        Notice::Look
    }

    fn next_timeout(&self) -> Option<Instant> {
        (self.outstanding() > 0).then(|| self.now + IDLE_NAP)
    }
}

impl Drop for PciePair {
    fn drop(&mut self) {
        if self.drive.why_over().is_none() {
            let mut controller = self.drive.controller.lock();
            let exists = self.epoch == self.drive.epoch();
            if controller.delete_queue(&self.queue, exists).is_ok() {
                return; // the device has no command any more
            }
        }
        self.queue.drain().into_iter().map(quarantine).for_each(drop);
    }
}

/// The completion of an answered job, or the job, to be issued again.
fn judge(mut job: Job, status: Status) -> Result<Completion, Job> {
    if status.is_success() {
        if let Some(bounce) = job.bounce.take()
            && job.io.op == IoOp::Read
        {
            job.io.buf.copy_from_slice(&bounce);
        }
        return Ok(job.io.end(Ok(())));
    }
    // The aborts are ours: the command took too long.
    let may_help = status.is(Status::ABORT_REQUESTED) || status.retry_class() == RetryClass::Retry;
    job.tries += 1;
    if may_help && job.tries < MOST_TRIES {
        return Err(job);
    }
    Ok(job.io.end(Err(IoError::Status(status))))
}

/// Leaks the memory of a command that the device may still write to, and gives the I/O other memory.
fn quarantine(mut job: Job) -> Job {
    let written = match job.bounce.take() {
        Some(bounce) => bounce,
        None => {
            let fresh = IoBuf::zeroed(job.io.buf.len());
            std::mem::replace(&mut job.io.buf, fresh)
        }
    };
    std::mem::forget(written);
    job
}

/// The remedy where the kernel pins too little memory.
const MEMLOCK: &str =
    "raise the limit of locked memory (ulimit -l): queues, buffers and pools are pinned";

/// The time between looks at a controller that is busy with a reset or an admin command.
const NAP: Duration = Duration::from_micros(50);

/// The most I/O queues of a controller.
const MOST_QUEUES: u16 = 32;

/// Resets without a success between them after which a controller is given up.
const MOST_VAIN_RESETS: u32 = 3;

/// The size of the memory for data of buffers that the device does not reach.
const BOUNCE_BYTES: usize = 8 << 20;

/// The most times that an I/O is issued.
const MOST_TRIES: u8 = 4;

/// The interval of looks at commands that take long.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The time without a completion after which the controller's status is read.
const QUIET: Duration = Duration::from_secs(1);

/// The longest sleep of a poller while I/Os are outstanding.
const IDLE_NAP: Duration = Duration::from_micros(50);

/// The alignment of data in memory.
const DMA_ALIGN: u64 = 4;
