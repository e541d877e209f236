//! A data set as a file system in user space (FUSE), read-only: [`mount`].
//!
//! # What it is
//! A thin layer over [`dlfs::dataset::Files`]: the kernel's requests become its lookups, listings and reads.
//! The kernel may cache entries, attributes, listings and pages for ever, because a generation never changes.
//! Without passthrough, files need no open either: a small file whose entry is cached costs one request.
//!
//! Reads that wait at the same time become one batch (`reads.rs`), which the reader merges and sorts like any other
//! batch.
//!
//! # What it is not
//! A mount shows one generation of the image: a newer generation needs another mount. There is no table of inodes.
//! Open files are tracked only with passthrough (`passthrough.rs`): the kernel then reads long files itself, and each
//! open costs a request.
//!
//! Read this file first, then `mount_point.rs`, `filesystem.rs`, `reads.rs` and `passthrough.rs`.

mod filesystem;
mod mount_point;
mod passthrough;
mod reads;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dlfs::dataset::{Files, OrderFile};
use dlfs::{Error, ErrorKind, Result};
use fuser::{Config, Session, SessionACL};

use crate::filesystem::Filesystem;
use crate::mount_point::MountPoint;
use crate::passthrough::Passthrough;
use crate::reads::Reads;

/// Options of a mount.
#[derive(Debug, Clone)]
pub struct Options {
    /// Threads that take the kernel's requests, at least 2. At most all but one of them read batches.
    pub threads: usize,
    /// Lets other users use the mount. Without root this needs `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Lets the kernel read files above 1 MiB itself: from the tier's own file, from the file of a plain
    /// folder without tiers, or from memory that the file is read into at its open. The value limits that
    /// memory. Needs root, Linux 6.9, and samples without fields; otherwise it has no effect.
    pub passthrough_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options { threads: 4, allow_other: false, passthrough_bytes: None }
    }
}

/// A mounted data set. Dropping it unmounts.
pub struct Mounted {
    /// The thread that waits for the threads of the session; `None` after it was joined.
    session: Option<JoinHandle<io::Result<()>>>,
    mount_point: MountPoint,
    reads: Arc<Reads>,
    /// Opens so far of files that the kernel reads itself.
    passed_through: Arc<AtomicU64>,
}

/// Mounts `files` on the folder `place`. `mount` shows `source` as the device.
///
/// # Errors
/// `NotFound`: the folder, `/dev/fuse` or `fusermount3` does not exist. `InvalidArgument`: `place` is not a
/// folder. `Refused`, `Io`: the kernel or `fusermount3` refuses.
pub fn mount(files: Arc<Files>, source: &str, place: &Path, options: &Options) -> Result<Mounted> {
    let wrong = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => {
                "it takes the folder, /dev/fuse, and without root fusermount3"
            }
            _ => "without root it takes fusermount3 (Debian: fuse3), and access to /dev/fuse",
        };
        Error::from(error).path(PathBuf::from(place)).hint(hint)
    };
    if !std::fs::metadata(place).map_err(wrong)?.is_dir() {
        let error = Error::new(ErrorKind::InvalidArgument, "a data set is mounted on a folder");
        return Err(error.path(PathBuf::from(place)));
    }
    let mut config = Config::default();
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    let threads = options.threads.max(2);
    config.n_threads = Some(threads);
    config.clone_fd = true;
    let leaders = threads - 1; // one thread stays free to take requests
    let reads = Arc::new(Reads::new(Arc::clone(&files), leaders));
    let passed = Arc::new(AtomicU64::new(0));
    let passthrough = options.passthrough_bytes.filter(|_| rustix::process::geteuid().is_root());
    // At most half of the threads read whole files, which takes long; the others stay free for other requests.
    let passthrough = passthrough.map(|bytes| {
        Passthrough::new(Arc::clone(&files), bytes, leaders.div_ceil(2), Arc::clone(&passed))
    });
    let filesystem = Filesystem::new(files, Arc::clone(&reads), passthrough);
    let (connection, mount_point) =
        MountPoint::mount(place, source, options.allow_other).map_err(wrong)?;
    let spawned =
        Session::from_fd(filesystem, connection, config.acl, config).and_then(|session| {
            std::thread::Builder::new().name("fuser-bg".into()).spawn(|| session.run())
        });
    let session = match spawned {
        Ok(session) => Some(session),
        Err(error) => {
            let _ = mount_point.unmount(); // the error says more
            return Err(wrong(error));
        }
    };
    raise_readahead(&mount_point.path);
    Ok(Mounted { session, mount_point, reads, passed_through: passed })
}

impl Mounted {
    /// Reads ahead along an order from now on, instead of any other order. The extended attribute
    /// `user.dlfs.order` of the top folder shows how many files were ready when they were asked for. In the
    /// counters of epochs, the next file that a program reads begins an epoch.
    ///
    /// # Errors
    /// `InvalidArgument`, `Stale`: the order belongs to another image. Errors of starting a thread. The previous
    /// order then stays.
    pub fn follow(&self, order: &OrderFile) -> Result<()> {
        self.reads.follow(order)
    }

    /// Opens so far of files that the kernel reads itself.
    pub fn passed_through(&self) -> u64 {
        self.passed_through.load(Ordering::Relaxed)
    }

    /// Returns whether the session's threads have ended: after an unmount, also by somebody else, once no file is
    /// open, or because the connection to the kernel failed.
    pub fn has_ended(&self) -> bool {
        self.session.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Unmounts, even while files are open: programs keep their open files until they close them or this
    /// process ends. Waits at most 5 s for the session's threads. Never unmounts another file system at the same path.
    ///
    /// # Errors
    /// `Busy`: another file system is mounted on top of it. `Refused`, `Io`: the kernel or `fusermount3` refuses.
    /// Errors of [`Mounted::wait`].
    pub fn unmount(self) -> Result<()> {
        if !self.has_ended() {
            self.mount_point.unmount()?;
        }
        let until = Instant::now() + MAX_END_WAIT;
        while !self.has_ended() {
            if Instant::now() >= until {
                return Ok(()); // open files keep the session until they close, or this process ends
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        self.wait()
    }

    /// Waits until the session has ended: see [`Mounted::has_ended`].
    ///
    /// # Errors
    /// The reason why the connection to the kernel ended, if not by an unmount.
    pub fn wait(mut self) -> Result<()> {
        let ended = self.session.take().map(JoinHandle::join);
        match ended {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(_)) => Err(io::Error::other("the mount's thread panicked").into()),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.mount_point.unmount(); // `unmount` reports errors; a drop cannot
        }
    }
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mounted").field("place", &self.mount_point.path).finish_non_exhaustive()
    }
}

/// Raises the kernel's readahead from its default of 128 KiB to [`READ_AHEAD_KIB`], so that long files are read
/// in larger steps. Needs root.
fn raise_readahead(place: &Path) {
    let set = std::fs::metadata(place).and_then(|found| {
        let device = found.dev();
        let major = rustix::fs::major(device);
        let minor = rustix::fs::minor(device);
        std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB)
    });
    let _ = set; // a failure only leaves reads slower
}

/// The kernel's readahead in KiB. A larger value is not faster, as `cargo bench --bench doors -- --only long`
/// measures.
const READ_AHEAD_KIB: &str = "4096";
/// The longest time that an unmount waits for the session's threads.
const MAX_END_WAIT: Duration = Duration::from_secs(5);
/// Interval between checks of whether the session has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
