//! A device: an open namespace that creates queue pairs.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::{Namespace, PairScope, QueuePair};
use crate::address::Address;
use dlfs_base::error::{Error, ErrorKind, Result};

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

    /// The current capabilities. A device that wraps another one forwards the other device's.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Grows the namespace to at least `len_bytes` if it can grow, as a file can. Queue pairs see the new size
    /// with their next submission.
    ///
    /// # Errors
    /// `NoSpace`: the namespace has a fixed size, or the file system is full. `InvalidArgument`: it was opened
    /// for reading.
    fn grow(&self, len_bytes: u64) -> Result<()> {
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
        let _ = (unused, len_bytes); // nothing can be freed
        Ok(())
    }

    /// Returns whether [`Device::trim`] with the same arguments would free space; false if the device cannot
    /// tell.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn can_trim(&self, unused: &[Range<u64>], len_bytes: u64) -> Result<bool> {
        let _ = (unused, len_bytes);
        Ok(false)
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
    let message = format!("the address does not say which of {count} namespaces is meant");
    let error = Error::new(ErrorKind::InvalidArgument, message).target(address.to_string());
    error.hint(format!("name them with ?ns=: {names}"))
}

/// The most namespaces that the error names.
const MAX_NAMED: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
}
