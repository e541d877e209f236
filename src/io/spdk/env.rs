//! SPDK's environment (DPDK's EAL): memory and PCI, started once per process. Its heap has the pages of pools whose
//! buffers devices access by DMA ([`DriverMemory`]).

use std::ffi::CString;
use std::fs;
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use spdk_sys as sys;

use super::log;
use dlfs_base::buf::PageSource;
use dlfs_base::error::{Error, ErrorKind, Result};

/// The running environment, which stays until the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Environment {
    /// True if its memory is in reserved huge pages.
    pub huge_pages: bool,
    /// The process that started it. This complements `FORKED`, because a bare `clone` calls no handler of
    /// `pthread_atfork`.
    pid: u32,
}

/// The outcome of starting the environment; `None` before DPDK was started. Locked while it starts.
static STARTED: Mutex<Option<Result<Environment, String>>> = Mutex::new(None);

/// Set in a child process, where SPDK must not be used.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Locked while a background thread is in SPDK, to connect, detach or send keep-alives: the process must not exit
/// meanwhile.
static AT_WORK: ReentrantMutex<()> = ReentrantMutex::new(());

/// Delays process exit while a background thread works with controllers. Once exit has begun, this function
/// never returns, because SPDK's memory would be freed under the thread.
pub fn at_work() -> ReentrantMutexGuard<'static, ()> {
    AT_WORK.lock()
}

/// Waits at exit until background threads have left SPDK, for at most `EXIT_LIMIT`, and keeps them out.
extern "C" fn hold_at_exit() {
    if !has_forked() {
        std::mem::forget(AT_WORK.try_lock_for(EXIT_LIMIT));
    }
}

/// Returns the environment of this process. The first call with usable arguments starts it with `memory_bytes`; later
/// calls ignore their arguments.
///
/// `huge_pages`: `Some(true)` requires them, `Some(false)` avoids them, `None` uses them if enough
/// are free. The caller's processor affinity is restored before this returns.
///
/// # Errors
/// `InvalidArgument`: `memory_bytes` is too little. `OutOfMemory`: too few huge pages. `Unsupported`: the process
/// is a child of the process that started SPDK. `Io`: DPDK did not start, for example for lack of memory; that
/// cannot be retried in this process.
pub fn start(memory_bytes: usize, huge_pages: Option<bool>) -> Result<Environment> {
    if has_forked() {
        return Err(forked());
    }
    let mut started = STARTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let outcome = match &*started {
        Some(outcome) => outcome.clone(),
        None => {
            let huge_pages = choose(memory_bytes, huge_pages)?;
            let outcome = init(memory_bytes, huge_pages);
            *started = Some(outcome.clone());
            outcome
        }
    };
    drop(started);
    let environment = outcome.map_err(|reason| {
        Error::new(ErrorKind::Io, format!("SPDK's environment did not start{reason}"))
            .hint("run dlfs doctor; it cannot be retried in this process")
    })?;
    if environment.pid != std::process::id() { Err(forked()) } else { Ok(environment) }
}

/// Returns whether this process is a child of the one that started the environment.
pub(super) fn has_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// The error in a child process.
fn forked() -> Error {
    Error::new(ErrorKind::Unsupported, "SPDK cannot be used in a child of the process that started it")
        .hint("open spdk: addresses after the fork only, or start workers with spawn; nvme-tcp: addresses work in both")
}

/// Decides whether to use huge pages, before DPDK starts, since its start cannot be retried.
fn choose(memory_bytes: usize, huge_pages: Option<bool>) -> Result<bool> {
    let free = free_huge_bytes();
    let short = |wanted: usize| {
        let message =
            format!("SPDK needs {} MiB of huge pages, {} MiB are free", wanted >> 20, free >> 20);
        let pages = wanted.div_ceil(HUGE_LEN);
        let hint = format!(
            "sysctl vm.nr_hugepages={pages} (as root), or do without: --spdk-huge-pages off"
        );
        Err(Error::new(ErrorKind::OutOfMemory, message).hint(hint))
    };
    if memory_bytes < MIN_MEMORY {
        let message =
            format!("{memory_bytes} bytes are too little for SPDK: at least {MIN_MEMORY}");
        return Err(
            Error::new(ErrorKind::InvalidArgument, message).hint("give more with --spdk-memory")
        );
    }
    match huge_pages {
        Some(true) if free < memory_bytes => short(memory_bytes),
        Some(wanted) => Ok(wanted),
        None if free >= memory_bytes => Ok(true),
        None => {
            tracing::info!(
                "SPDK runs without huge pages ({} MiB free): fine for TCP and vfio-user, not for drives",
                free >> 20
            );
            Ok(false)
        }
    }
}

/// Bytes of free huge pages of 2 MiB.
fn free_huge_bytes() -> usize {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let pages: usize =
        fs::read_to_string(path).ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0);
    pages.saturating_mul(HUGE_LEN)
}

/// Starts DPDK; the error is the end of a sentence.
fn init(memory_bytes: usize, huge_pages: bool) -> Result<Environment, String> {
    let affinity = sched_getaffinity(None).ok();
    let mask = core_mask(affinity.as_ref());
    log::install();
    // SAFETY: a struct of integers and pointers, for which zero means "not set".
    let mut options: sys::spdk_env_opts = unsafe { std::mem::zeroed() };
    options.opts_size = size_of::<sys::spdk_env_opts>();
    // SAFETY: `opts_size` is set, as the function requires.
    unsafe { sys::spdk_env_opts_init(&mut options) };
    options.opts_size = size_of::<sys::spdk_env_opts>();
    options.name = c"dlfs".as_ptr();
    options.core_mask = mask.as_ptr();
    options.shm_id = -1;
    options.mem_size = (memory_bytes >> 20) as i32;
    options.no_huge = !huge_pages;
    // Without huge pages, memory has no physical addresses, and a drive could not be used.
    options.no_pci = !huge_pages;
    // One memory file, which vfio-user passes to the target. `--in-memory` needs no mount and leaves no file.
    options.hugepage_single_segments = huge_pages;
    let context =
        if huge_pages { c"--in-memory --log-level=lib.eal:3" } else { c"--log-level=lib.eal:3" };
    options.env_context = context.as_ptr().cast_mut().cast();
    log::forget();
    // SAFETY: the options and their strings live until the call returns, which copies them; it is called
    // once, under the lock of `STARTED`.
    let code = unsafe { sys::spdk_env_init(&options) };
    if let Some(affinity) = &affinity {
        let _ = sched_setaffinity(None, affinity); // cannot fail: the mask was this thread's before
    }
    if code != 0 {
        let error = std::io::Error::from_raw_os_error(code.abs());
        return Err(format!(" with {} MiB ({error}){}", memory_bytes >> 20, log::reason()));
    }
    // SAFETY: the function is `extern "C"`, only stores a value, and lives as long as the program.
    unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
    // SAFETY: the function is `extern "C"` and lives as long as the program; it runs before the destructors
    // of SPDK and DPDK, which were registered earlier.
    unsafe { libc::atexit(hold_at_exit) };
    Ok(Environment { huge_pages, pid: std::process::id() })
}

/// Runs in a child process after a fork.
unsafe extern "C" fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

/// One processor that the caller may use, in SPDK's list syntax.
fn core_mask(affinity: Option<&CpuSet>) -> CString {
    let allowed = affinity.and_then(|set| (0..CpuSet::MAX_CPU).find(|&cpu| set.is_set(cpu)));
    CString::new(format!("[{}]", allowed.unwrap_or(0))).expect("digits have no NUL")
}

/// SPDK's heap as a source of pages.
#[derive(Debug)]
pub struct DriverMemory {
    /// Gives the static a distinct address, by which buffers know their driver.
    _place: u8,
}

static DRIVER_MEMORY: DriverMemory = DriverMemory { _place: 0 };

/// The heap of the environment. Allocate from it only once the environment was started.
pub fn driver_memory() -> &'static DriverMemory {
    &DRIVER_MEMORY
}

// SAFETY: `allocate` returns zeroed memory of at least that length and the requested alignment, which nobody
// else has until `free`. Any thread may call both: DPDK's heap has a lock.
unsafe impl PageSource for DriverMemory {
    fn allocate(&self, len: usize) -> Option<NonNull<u8>> {
        if has_forked() {
            return None;
        }
        // Whole huge pages are registered with devices as one region, so their length is the alignment.
        // SAFETY: the environment runs: `driver_memory` is passed on only after it was started.
        let start = unsafe { sys::spdk_dma_zmalloc(len, HUGE_LEN, null_mut()) };
        NonNull::new(start.cast())
    }

    unsafe fn free(&self, start: NonNull<u8>) {
        if !has_forked() {
            // SAFETY: by the contract of `PageSource` it came from `allocate` and is freed once.
            unsafe { sys::spdk_dma_free(start.as_ptr().cast()) };
        }
    }

    fn is_foreign(&self) -> bool {
        // The memory is shared with the parent process, which still uses it.
        has_forked()
    }
}

/// The longest delay of process exit: longer than detaching one controller can take.
const EXIT_LIMIT: Duration = Duration::from_secs(15);

/// The length of a huge page, in bytes.
const HUGE_LEN: usize = 2 << 20;

/// The least memory for one controller with a few queues.
const MIN_MEMORY: usize = 16 << 20;
