//! A device: an open namespace that creates queue pairs.
//!
//! Connections shared by the queue pairs of one poller: one I/O queue for each controller.
//!
//! The namespaces of one subsystem are attached to one controller, and each command names its namespace. So a
//! poller that reads all of them needs one connection, not one for each namespace. It opens their queue pairs
//! in one [`PairScope`], where an engine finds the connection that it opened before.
//!
//! A poller with several scopes has as many I/O queues for each controller. A scope keeps nothing alive: a
//! shared connection lives as long as the queue pairs that share it.
//!
//! Fences, which limit the time in which a writer may send writes.
//!
//! A writer with a lease may write only until the lease expires, since another writer may take over then. Such
//! a writer gives its queue pairs a [`Fence`]. Queue pairs that can hold writes back, those of remote
//! namespaces, check it when an I/O is submitted, when it leaves a backlog, and each time bytes may be sent to
//! the target. Bytes that were already sent cannot be recalled: see [`super::Capabilities::late_writes`].
//!
//! Opens queue pairs of many devices in parallel.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use super::{Namespace, QueuePair};
use crate::address::Address;
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::metrics::PlaceCounters;
use dlfs_base::process::Forked;
use dlfs_base::threads::map_at_once;

/// An open namespace that creates queue pairs: an image file, a RAM region, a remote namespace.
///
/// All threads share a device; each thread creates its own queue pair and polls it alone. Queue pairs may
/// outlive the device's handle.
pub trait Device: Send + Sync {
    /// The current properties of the namespace: a growing file or a reconnect may change them.
    fn namespace(&self) -> Namespace;

    /// Creates a queue pair on the namespace. It may share an I/O queue with other queue pairs of `scope`: one
    /// thread polls all of these. A device that wraps another one passes the scope on.
    ///
    /// # Errors
    /// `Refused`: the device grants no more queue pairs. `Disconnected`, `TimedOut`: it cannot be reached.
    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>>;

    /// Creates a queue pair that shares nothing: [`Device::queue_pair_in`] a scope of its own. No device
    /// overrides this (`tests/tidy.rs` checks).
    ///
    /// # Errors
    /// As [`Device::queue_pair_in`].
    fn queue_pair(&self) -> Result<Box<dyn QueuePair>> {
        self.queue_pair_in(&PairScope::new())
    }

    /// The only device that this one wraps, which answers the calls that are not implemented.
    fn below(&self) -> Option<&dyn Device> {
        None
    }

    /// The current capabilities.
    fn capabilities(&self) -> Capabilities {
        self.below().map_or_else(Capabilities::default, |below| below.capabilities())
    }

    /// Grows the namespace to at least `len_bytes` if it can grow, as a file can. Queue pairs see the new size
    /// with their next submission.
    ///
    /// # Errors
    /// `NoSpace`: the namespace has a fixed size, or the file system is full. `InvalidArgument`: it was opened
    /// for reading.
    fn grow(&self, len_bytes: u64) -> Result<()> {
        if let Some(below) = self.below() {
            return below.grow(len_bytes);
        }
        let namespace = self.namespace();
        if len_bytes <= namespace.len_bytes() {
            return Ok(());
        }
        let message = format!("{len_bytes} bytes are needed, the namespace has a fixed size");
        Err(Error::new(ErrorKind::NoSpace, message).target(namespace.address))
    }

    /// Frees space that is no longer read: the ranges `unused`, and all bytes from `len_bytes` on. A file is
    /// truncated, and gets holes if its file system supports them. Other devices keep their bytes.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn trim(&self, unused: &[Range<u64>], len_bytes: u64) -> Result<()> {
        self.below().map_or(Ok(()), |below| below.trim(unused, len_bytes))
    }

    /// Returns whether [`Device::trim`] with the same arguments would free space; false if the device cannot
    /// tell.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn can_trim(&self, unused: &[Range<u64>], len_bytes: u64) -> Result<bool> {
        self.below().map_or(Ok(false), |below| below.can_trim(unused, len_bytes))
    }
}

/// Properties in which devices differ. A device that wraps another one answers each field itself, or forwards
/// the other device's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The most queue pairs that may exist at a time.
    pub max_queue_pairs: usize,
    /// True if [`Device::grow`] works.
    pub can_grow: bool,
    /// True if opening it for writing excludes all other writers, as a file's lock does.
    pub is_exclusive: bool,
    /// The time after sending in which a write may still reach the medium, even if its queue pair is gone.
    pub late_writes: Duration,
    /// True if a successful write is known to have written the submitted bytes to the right blocks: no network
    /// lies between, or header and data digests covered every session so far.
    pub checks_writes: bool,
    /// True if the kernel caches reads in memory: a file without O_DIRECT.
    pub is_page_cached: bool,
    /// The local file, block device or folder that holds the bytes, if there is one.
    pub local_path: Option<PathBuf>,
    /// Bytes that are allocated now, if the medium is thinly provisioned; `None`: all of them.
    pub allocated_bytes: Option<u64>,
}

/// The capabilities of an ordinary local device.
impl Default for Capabilities {
    fn default() -> Capabilities {
        Capabilities {
            max_queue_pairs: usize::MAX,
            can_grow: false,
            is_exclusive: false,
            late_writes: Duration::ZERO,
            checks_writes: true,
            is_page_cached: false,
            local_path: None,
            allocated_bytes: None,
        }
    }
}

/// The error for an address that does not say which of several namespaces is meant; it lists their addresses.
pub fn ambiguous(address: &Address, found: impl ExactSizeIterator<Item = String>) -> Error {
    let count = found.len();
    let mut names = found.take(MAX_NAMED).collect::<Vec<_>>().join(",");
    if count > MAX_NAMED {
        names.push_str(",...");
    }
    let error = invalid(format!("the address does not say which of {count} namespaces is meant"))
        .target(address.to_string());
    error.hint(format!("name them with ?ns=: {names}"))
}

/// Lets the queue pairs of one polling thread share connections. See the module page.
///
/// Several threads may use it while they open queue pairs; one thread polls these. A child process shares
/// nothing with its parent: the scope is empty there.
#[derive(Default)]
pub struct PairScope {
    slots: Forked<Mutex<HashMap<Key, Arc<Slot>>>>,
    places: Arc<PlaceCounters>,
}

/// The type of the shared value, and the address of its owner.
type Key = (TypeId, usize);

#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    /// The number of failed openings; it changes only under the lock.
    failures: AtomicU64,
}

struct State {
    shared: Weak<dyn Any + Send + Sync>,
    /// The last error.
    failed: Option<Error>,
}

impl Default for State {
    fn default() -> State {
        State { shared: Weak::<()>::new(), failed: None }
    }
}

impl PairScope {
    /// Creates an empty scope.
    pub fn new() -> PairScope {
        PairScope::default()
    }

    /// Bytes that the queue pairs of this scope have read from places other than the origin. A queue pair with
    /// such places counts the bytes of a read once, when it completes.
    pub fn places(&self) -> &Arc<PlaceCounters> {
        &self.places
    }

    /// Returns the `T` of `owner` in this scope; `open` creates it if there is none. `T` must keep `owner`
    /// alive, so that no other owner can have its address.
    ///
    /// Different owners open in parallel. If a caller asks while another caller is opening the same `T`, it
    /// waits, and gets the same error if opening fails.
    ///
    /// # Errors
    /// Errors of `open`.
    pub fn get_or_open<K, T: Send + Sync + 'static>(
        &self,
        owner: &Arc<K>,
        open: impl FnOnce() -> Result<Arc<T>>,
    ) -> Result<Arc<T>> {
        let key = (TypeId::of::<T>(), Arc::as_ptr(owner).addr());
        let slot = {
            let mut slots = self.slots.get_or_init(Mutex::default).lock();
            Arc::clone(slots.entry(key).or_default())
        };
        let failures = slot.failures.load(Ordering::Acquire);
        let mut state = slot.state.lock();
        if let Some(shared) = state.shared.upgrade() {
            return Ok(shared.downcast().expect("the key names its type"));
        }
        let has_failed_meanwhile = failures != slot.failures.load(Ordering::Acquire);
        if has_failed_meanwhile && let Some(error) = &state.failed {
            return Err(error.to_others());
        }
        match open() {
            Ok(shared) => {
                state.failed = None;
                let weak: Weak<T> = Arc::downgrade(&shared);
                state.shared = weak;
                Ok(shared)
            }
            Err(error) => {
                state.failed = Some(error.to_others());
                slot.failures.fetch_add(1, Ordering::Release);
                Err(error)
            }
        }
    }
}

/// A fence that is open until a time, which may be changed. Times are on the clock of [`Fence::now`].
#[derive(Debug)]
pub struct Fence {
    /// In ns since boot.
    until_ns: AtomicU64,
}

impl Fence {
    /// Creates a closed fence.
    pub fn closed() -> Arc<Fence> {
        Arc::new(Fence { until_ns: AtomicU64::new(0) })
    }

    /// The time since boot. It also advances while this machine is suspended, as other machines' clocks do.
    pub fn now() -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        // Since boot, so neither is negative.
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    /// Opens the fence until `until`.
    pub fn open_until(&self, until: Duration) {
        let until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.until_ns.store(until_ns, Ordering::Release);
    }

    /// Opens the fence for good.
    pub fn open_for_good(&self) {
        self.until_ns.store(u64::MAX, Ordering::Release);
    }

    /// Closes the fence until it is opened again.
    pub fn close(&self) {
        self.until_ns.store(0, Ordering::Release);
    }

    /// Returns whether writes may be sent.
    pub fn is_open(&self) -> bool {
        let until_ns = self.until_ns.load(Ordering::Acquire);
        // No need to read the clock if the fence is closed or open for good.
        match until_ns {
            0 => false,
            u64::MAX => true,
            _ => Fence::now().as_nanos() < u128::from(until_ns),
        }
    }
}

/// Opens a queue pair of each device in each of `scopes`, in parallel. Returns the queue pairs of each device,
/// in the order of the scopes. A device returns fewer if its limit is lower, or if others hold the rest.
///
/// # Errors
/// As [`Device::queue_pair_in`], also if a device grants no queue pair.
pub fn open_pairs(
    devices: &[Arc<dyn Device>],
    scopes: &[PairScope],
) -> Result<Vec<Vec<Box<dyn QueuePair>>>> {
    let mut wanted = Vec::new();
    for (number, device) in devices.iter().enumerate() {
        let most = device.capabilities().max_queue_pairs.clamp(1, scopes.len().max(1));
        wanted.extend(scopes.iter().take(most).map(|scope| (number, scope)));
    }
    let opened = map_at_once(OPENING, &wanted, |&(number, scope)| {
        match devices[number].queue_pair_in(scope) {
            Ok(pair) => Ok((number, Ok(pair))),
            // Others hold the queue pairs that the target grants; this is fine if the device has at least
            // one.
            Err(error) if error.kind() == ErrorKind::Refused => Ok((number, Err(error))),
            Err(error) => Err(error),
        }
    })?;
    let mut pairs: Vec<Vec<Box<dyn QueuePair>>> = devices.iter().map(|_| Vec::new()).collect();
    let mut refused = Vec::new();
    for (number, opened) in opened {
        match opened {
            Ok(pair) => pairs[number].push(pair),
            Err(error) => refused.push((number, error)),
        }
    }
    match refused.into_iter().find(|(number, _)| pairs[*number].is_empty()) {
        Some((_, error)) => Err(error),
        None => Ok(pairs),
    }
}

/// The most namespaces that the error names.
const MAX_NAMED: usize = 16;

/// The name of the threads that open queue pairs.
const OPENING: &str = "dlfs-open";

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::qpair::mem::MemNamespace;
    use crate::qpair::shared::SharedDevice;

    /// A device whose capabilities differ from the defaults.
    struct Telling(MemNamespace);

    impl Device for Telling {
        fn namespace(&self) -> Namespace {
            self.0.namespace()
        }

        fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
            self.0.queue_pair_in(scope)
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities {
                max_queue_pairs: 3,
                can_grow: true,
                is_exclusive: true,
                late_writes: Duration::from_secs(7),
                checks_writes: false,
                is_page_cached: true,
                local_path: Some("/there".into()),
                allocated_bytes: Some(4096),
            }
        }

        fn grow(&self, len_bytes: u64) -> Result<()> {
            Err(Error::new(ErrorKind::Busy, len_bytes.to_string()))
        }

        fn trim(&self, unused: &[Range<u64>], len_bytes: u64) -> Result<()> {
            Err(Error::new(ErrorKind::Busy, format!("{unused:?} {len_bytes}")))
        }

        fn can_trim(&self, unused: &[Range<u64>], len_bytes: u64) -> Result<bool> {
            Err(Error::new(ErrorKind::Busy, format!("{unused:?} or {len_bytes}")))
        }
    }

    #[test]
    fn a_device_that_wraps_another_forwards_its_answers() {
        let device: Arc<dyn Device> = Arc::new(Telling(MemNamespace::new(512, 512).unwrap()));
        let told = device.capabilities();
        let shared = SharedDevice::new(Arc::clone(&device), Arc::default());
        let handles = Capabilities { max_queue_pairs: usize::MAX, ..told.clone() };
        assert_eq!(shared.capabilities(), handles, "any number of handles, and the rest as below");
        assert_eq!(shared.grow(9).unwrap_err().to_string(), "9");
        assert_eq!(shared.trim(&[1..2, 4..5], 3).unwrap_err().to_string(), "[1..2, 4..5] 3");
        assert_eq!(shared.can_trim(&[1..2, 4..5], 3).unwrap_err().to_string(), "[1..2, 4..5] or 3");
        #[cfg(debug_assertions)]
        {
            let broken = crate::qpair::broken::broken(device, "fails:9:");
            assert_eq!(broken.capabilities(), told);
            assert_eq!(broken.grow(9).unwrap_err().to_string(), "9");
        }
    }

    /// A shared value that keeps its owner alive.
    struct Connection {
        _owner: Arc<u32>,
        number: usize,
    }

    fn open(opened: &AtomicUsize, owner: &Arc<u32>) -> Result<Arc<Connection>> {
        let number = opened.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Connection { _owner: Arc::clone(owner), number }))
    }

    #[test]
    fn one_connection_is_opened_for_each_owner_and_scope_while_it_is_held() {
        let scopes = [PairScope::new(), PairScope::new()];
        let opened = AtomicUsize::new(0);
        let owners = [Arc::new(5), Arc::new(5)];
        let mut held = Vec::new();
        for _ in 0..3 {
            for scope in &scopes {
                for owner in &owners {
                    held.push(scope.get_or_open(owner, || open(&opened, owner)).unwrap());
                }
            }
        }
        let numbers: Vec<usize> = held.iter().map(|connection| connection.number).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
        drop(held);
        let again = scopes[0].get_or_open(&owners[0], || open(&opened, &owners[0])).unwrap();
        assert_eq!(again.number, 4, "nobody held it any more");
    }

    #[test]
    fn waiting_callers_get_the_error_of_a_failed_open_and_the_next_call_tries_again() {
        const THREADS: usize = 8;
        let scope = PairScope::new();
        let owner = Arc::new(0);
        let opened = AtomicUsize::new(0);
        let waiting = AtomicUsize::new(0);
        let texts = std::thread::scope(|threads| {
            let ask = || {
                waiting.fetch_add(1, Ordering::SeqCst);
                let asked = scope.get_or_open(&owner, || {
                    opened.fetch_add(1, Ordering::SeqCst);
                    while waiting.load(Ordering::SeqCst) < THREADS {
                        std::thread::yield_now();
                    }
                    // They have announced themselves and now call.
                    std::thread::sleep(Duration::from_millis(50));
                    Err::<Arc<Connection>, _>(Error::new(ErrorKind::TimedOut, "no answer"))
                });
                asked.map(drop).unwrap_err().to_string()
            };
            let asked: Vec<_> = (0..THREADS).map(|_| threads.spawn(ask)).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(texts.iter().all(|text| text == "no answer"), "{texts:?}");
        let tries = opened.load(Ordering::SeqCst);
        assert!(tries < THREADS, "{tries} tries: each waited for its own");
        assert!(scope.get_or_open(&owner, || open(&opened, &owner)).is_ok());
    }

    #[test]
    fn a_fence_is_open_until_its_time_and_its_time_can_be_changed() {
        let fence = Fence::closed();
        assert!(!fence.is_open());
        fence.open_until(Fence::now() + Duration::from_secs(3600));
        assert!(fence.is_open());
        fence.open_until(Fence::now());
        assert!(!fence.is_open());
        fence.open_for_good();
        assert!(fence.is_open());
        fence.close();
        assert!(!fence.is_open());
    }

    /// A device that grants `left` queue pairs.
    struct Few {
        device: MemNamespace,
        left: AtomicUsize,
        stated: usize,
    }

    impl Device for Few {
        fn namespace(&self) -> Namespace {
            self.device.namespace()
        }

        fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
            let granted = |left: usize| left.checked_sub(1);
            match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, granted) {
                Ok(_) => self.device.queue_pair_in(scope),
                Err(_) => Err(Error::new(ErrorKind::Refused, "no more queues")),
            }
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities { max_queue_pairs: self.stated, ..self.device.capabilities() }
        }
    }

    #[test]
    fn each_device_grants_up_to_its_limit_and_at_least_one() {
        let few = |left, stated| -> Arc<dyn Device> {
            let device = MemNamespace::new(512, 512).unwrap();
            Arc::new(Few { device, left: AtomicUsize::new(left), stated })
        };
        let scopes: Vec<PairScope> = (0..3).map(|_| PairScope::new()).collect();
        let devices = [few(9, 9), few(2, 9), few(9, 2), few(1, 0)];
        let opened = open_pairs(&devices, &scopes).unwrap();
        assert_eq!(opened.iter().map(Vec::len).collect::<Vec<_>>(), [3, 2, 2, 1]);
        let refused = open_pairs(&[few(9, 9), few(0, 9)], &scopes).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused);
        assert!(open_pairs(&[], &scopes).unwrap().is_empty());
    }
}
