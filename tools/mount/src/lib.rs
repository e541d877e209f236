//! A data set as a file system in user space (FUSE), read-only: [`mount`].
//!
//! # What it is
//! Thin over [`dlfs::dataset::Files`]: requests of the kernel become lookups, listings and reads there. The
//! kernel may keep all that it learns for ever, because a generation never changes: entries, attributes,
//! listings, and pages. It is told so, and that files need no opening; so a small file whose entry is known
//! costs one request.
//!
//! Reads that wait at the same time become one batch ([`reads`](self)), which the reader merges and
//! sorts as every other.
//!
//! # What it is not
//! It shows no newer generation: that is another mount. It has no state that a request leaves behind, but for
//! the samples that were read in part.
//!
//! Long files may be read by the kernel itself (`passthrough.rs`, `memory.rs`); then files are opened, which costs a
//! request.
//!
//! Read this file first, then `place.rs`, `filesystem.rs`, `reads.rs` and `unanswered.rs`.

mod counters;
mod filesystem;
mod memory;
mod passthrough;
mod place;
mod reads;
mod unanswered;

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

use counters::Counters;
use filesystem::Filesystem;
use passthrough::Passthrough;
use place::Place;
use reads::Reads;

/// How to mount.
#[derive(Debug, Clone)]
pub struct Options {
    /// Threads that take the kernel's requests, at least 2. All but one may wait for samples.
    pub threads: usize,
    /// Lets other users use the mount. Without root this takes `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Lets the kernel read files above 1 MiB by itself: from the tier's own file, from that of a plain folder without
    /// tiers, or from memory that the file is read into when it is opened, at most so much of it. Takes root and Linux
    /// 6.9; else nothing changes.
    pub passthrough_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options { threads: 4, allow_other: false, passthrough_bytes: None }
    }
}

/// A mounted data set. Dropping it unmounts.
pub struct Mounted {
    /// `None` once it was waited for.
    session: Option<JoinHandle<io::Result<()>>>,
    place: Place,
    reads: Arc<Reads>,
    passed: Arc<AtomicU64>,
}

/// Mounts `files` on the folder `place`. `source` is what `mount` shows as the device.
///
/// # Errors
/// `NotFound`: there is no folder, or no `/dev/fuse`. `Refused`: the kernel or `fusermount3` refuses.
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
    config.n_threads = Some(options.threads.max(2));
    config.clone_fd = true;
    let leaders = config.n_threads.unwrap_or(2) - 1;
    let counters = Arc::new(Counters::new(Arc::clone(&files)));
    let counts = Arc::clone(&counters);
    let reads = Arc::new(Reads::new(Arc::clone(&files), leaders, counts));
    let passed = Arc::new(AtomicU64::new(0));
    // Half of the threads at most read whole files, which takes long.
    let passthrough = options.passthrough_bytes.filter(|_| rustix::process::geteuid().is_root());
    let passthrough = passthrough.map(|bytes| {
        Passthrough::new(Arc::clone(&files), bytes, leaders.div_ceil(2), Arc::clone(&passed))
    });
    let filesystem = Filesystem::new(files, Arc::clone(&reads), counters, passthrough);
    let (device, at) = Place::mount(place, source, options.allow_other).map_err(wrong)?;
    let spawned = Session::from_fd(filesystem, device, config.acl, config).and_then(|session| {
        std::thread::Builder::new().name("fuser-bg".into()).spawn(|| session.run())
    });
    let session = match spawned {
        Ok(session) => Some(session),
        Err(error) => {
            let _ = at.unmount(); // the error says more
            return Err(wrong(error));
        }
    };
    read_far_ahead(at.path());
    Ok(Mounted { session, place: at, reads, passed })
}

/// Lets the kernel read further ahead of a program that reads on than its default of 128 KiB, as far as a long sample
/// is read at once. Only root may.
fn read_far_ahead(place: &Path) {
    let set = std::fs::metadata(place).and_then(|found| {
        let device = found.dev();
        let major = rustix::fs::major(device);
        let minor = rustix::fs::minor(device);
        std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB)
    });
    let _ = set; // then it is as slow as without
}

impl Mounted {
    /// Reads samples ahead along an order, from now on, instead of any other order. The extended attribute
    /// `user.dlfs.order` of the top folder says how many were there when they were asked for. Begins an epoch.
    ///
    /// # Errors
    /// `InvalidArgument`, `Stale`: the order is another image's. The order before it is then still followed.
    pub fn follow(&self, order: &OrderFile) -> Result<()> {
        self.reads.follow(order)
    }

    /// Opens, so far, of files that the kernel reads by itself.
    pub fn passed_through(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Returns whether it was unmounted by somebody else, or its threads have ended.
    pub fn has_ended(&self) -> bool {
        self.session.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Unmounts, also while files are open: their programs keep them until they close them, as long as this
    /// process lives. Waits at most 5 s for the session's threads. Touches no other file system at the place.
    ///
    /// # Errors
    /// `Busy`: another file system is mounted on top of it. `Refused`: the kernel or `fusermount3` refuses.
    pub fn unmount(self) -> Result<()> {
        if !self.has_ended() {
            self.place.unmount()?;
        }
        let until = Instant::now() + ENDS_WITHIN;
        while !self.has_ended() {
            if Instant::now() >= until {
                return Ok(()); // open files keep the session; it ends with the last, or this process
            }
            std::thread::sleep(LOOK);
        }
        self.wait()
    }

    /// Waits until somebody unmounts it.
    ///
    /// # Errors
    /// What ended the connection to the kernel, if it was not that.
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
            let _ = self.place.unmount(); // `unmount` tells
        }
    }
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mounted").field("place", &self.place.path()).finish_non_exhaustive()
    }
}

/// Measured by `cargo bench --bench doors -- --only long`: more is not faster.
const READ_AHEAD_KIB: &str = "4096";
/// How long an unmounting waits for requests that are under way.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(5);
