//! A device: what queue pairs are made from, and how an address becomes one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::file::{FileNamespace, FileOptions};
use super::folder::FolderNamespace;
use super::tcp::TcpNamespace;
use super::{ConnectOptions, Namespace, PairScope, QueuePair};
use crate::error::{Error, ErrorKind, Result};
use crate::nvme::Address;

/// An opened namespace that gives out queue pairs: an image file, a RAM region, a remote namespace.
///
/// One device is shared by all threads; each thread makes its own queue pair and polls it alone.
/// Queue pairs outlive the handle they came from.
pub trait Device: Send + Sync {
    /// What the namespace is now: a growing file or a reconnect may change it.
    fn namespace(&self) -> Namespace;

    /// A new queue pair on the namespace. It may share an I/O queue with others of `scope`, all of which one
    /// thread polls. A device around another one passes the scope on.
    ///
    /// # Errors
    /// `Refused`: the device gives no more queue pairs. `Disconnected`, `TimedOut`: it is not there.
    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>>;

    /// A new queue pair that shares nothing: [`Device::queue_pair_in`] a scope of its own. No device has
    /// another one (`tests/tidy.rs` looks).
    ///
    /// # Errors
    /// Those of [`Device::queue_pair_in`].
    fn queue_pair(&self) -> Result<Box<dyn QueuePair>> {
        self.queue_pair_in(&PairScope::new())
    }

    /// The most queue pairs that it gives out at a time now.
    fn max_queue_pairs(&self) -> usize {
        usize::MAX
    }

    /// Whether [`grow`](Device::grow) can make it longer.
    fn can_grow(&self) -> bool {
        false
    }

    /// Whether having it open for writing already keeps every other writer away, as a file's lock does.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// How long after it was sent a write may still come to the medium although its queue pair is gone.
    fn late_writes(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether a write that succeeded is known to have brought the bytes that were submitted to the
    /// blocks that were meant: no network lies between, or both digests cover it, in all sessions so far.
    fn checks_writes(&self) -> bool {
        true
    }

    /// Whether the kernel keeps in memory what was read: a file without O_DIRECT.
    fn is_page_cached(&self) -> bool {
        false
    }

    /// The file, block device or folder of this machine that the bytes lie in, if it is one.
    fn local_path(&self) -> Option<PathBuf> {
        None
    }

    /// Makes the namespace at least `len_bytes` long, if it can become longer at all: a file can.
    /// Queue pairs see the new size with their next submission.
    ///
    /// # Errors
    /// `NoSpace`: it has a fixed size, or the file system is full. `InvalidArgument`: read-only.
    fn grow(&self, len_bytes: u64) -> Result<()> {
        let namespace = self.namespace();
        if len_bytes <= namespace.len_bytes() {
            return Ok(());
        }
        let message = format!("{len_bytes} bytes are needed, the namespace has a fixed size");
        Err(Error::new(ErrorKind::NoSpace, message).target(namespace.address))
    }
}

/// Opens the namespace at `address`.
///
/// # Errors
/// As [`FileNamespace::open`] for a path and [`TcpNamespace::connect`] for a remote namespace.
/// `Unsupported`: an address that needs another build.
pub fn open(address: &Address, options: &ConnectOptions) -> Result<Arc<dyn Device>> {
    let device = open_as_it_is(address, options)?;
    #[cfg(debug_assertions)]
    let device = super::broken::as_told(device);
    Ok(device)
}

fn open_as_it_is(address: &Address, options: &ConnectOptions) -> Result<Arc<dyn Device>> {
    let ConnectOptions { direct, writable, .. } = *options;
    match address {
        Address::Path(path) if !writable && path.is_dir() => {
            Ok(Arc::new(FolderNamespace::open(path)?))
        }
        Address::Path(path) => {
            let options = FileOptions { direct, writable, ..FileOptions::default() };
            Ok(Arc::new(FileNamespace::open(path, options)?))
        }
        Address::Tcp(address) => Ok(Arc::new(TcpNamespace::connect(address, options)?)),
        #[cfg(feature = "spdk")]
        Address::Spdk(address) => {
            Ok(Arc::new(super::spdk::SpdkNamespace::connect(address, options)?))
        }
        #[cfg(not(feature = "spdk"))]
        Address::Spdk(_) => {
            let message = "this build cannot use SPDK";
            Err(Error::new(ErrorKind::Unsupported, message)
                .target(address.to_string())
                .hint("build with --features spdk, where SPDK is installed; nvme-tcp: addresses need neither"))
        }
    }
}
