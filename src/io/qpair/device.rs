//! A device: an open namespace that creates queue pairs.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::session::Failure;
use super::{Namespace, PairScope, QueuePair};
use crate::address::Address;
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
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

    /// Creates a queue pair that shares nothing, by [`Device::queue_pair_in`] a new scope. No device overrides this
    /// (`tests/tidy.rs` checks).
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

    /// Returns whether a part of a chunk takes less to read than the whole chunk.
    fn reads_parts(&self) -> bool {
        self.below().is_none_or(|below| below.reads_parts())
    }

    /// The last failure to connect, while a device that connects again is not connected.
    fn last_failure(&self) -> Option<Failure> {
        self.below().and_then(|below| below.last_failure())
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

    /// Frees space that is no longer read: the byte ranges `unused`, and all bytes from `len_bytes` on. A file is
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
    /// True if opening the device for writing excludes all other writers, as a file's lock does.
    pub is_exclusive: bool,
    /// The time after sending in which a write may still reach the medium, even if its queue pair is gone.
    pub late_writes: Duration,
    /// True if a successful write is known to have written the submitted bytes to the right blocks: no network
    /// lies between, or header and data digests covered every session so far.
    pub checks_writes: bool,
    /// True for an image file or a block device that is read through the page cache, without O_DIRECT.
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

/// The error for an address that names a subsystem with several namespaces where one is needed. Its hint lists the
/// first of `found`, the addresses of the namespaces.
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

/// Opens a queue pair of each device in each of `scopes`, in parallel. Returns the queue pairs of each device, in the
/// order of the scopes: at least one, and fewer than scopes if the device's limit is lower or others hold the rest.
///
/// # Errors
/// As [`Device::queue_pair_in`]; `Refused` only if the device grants no queue pair at all.
pub fn open_pairs(
    devices: &[Arc<dyn Device>],
    scopes: &[PairScope],
) -> Result<Vec<Vec<Box<dyn QueuePair>>>> {
    let mut wanted = Vec::new();
    for (number, device) in devices.iter().enumerate() {
        let most = device.capabilities().max_queue_pairs.clamp(1, scopes.len().max(1));
        wanted.extend(scopes.iter().take(most).map(|scope| (number, scope)));
    }
    let opened = map_at_once(THREAD_NAME, &wanted, |&(number, scope)| {
        match devices[number].queue_pair_in(scope) {
            Ok(pair) => Ok((number, Ok(pair))),
            // Others hold the rest of the queue pairs that the target grants: one is enough.
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

/// The most namespaces that the error of [`ambiguous`] names.
const MAX_NAMED: usize = 16;

/// The name of the threads that open queue pairs.
const THREAD_NAME: &str = "dlfs-open";

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

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

        fn reads_parts(&self) -> bool {
            false
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
        assert!(!shared.reads_parts());
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
