//! What was done so far, in numbers.

use std::ffi::c_int;

use dlfs::prefetch::LoaderStats;

use crate::error::{DLFS_OK, guard};
use crate::mount::{Fs, mount_of};
use crate::sequence::{Seq, sequence_of};
use crate::structs::{Struct, check_out, give};

/// What was done so far, in this process. Set `size` to `sizeof(dlfs_stats_t)` before it is filled.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Stats {
    /// sizeof(dlfs_stats_t).
    pub size: usize,
    /// Read commands completed, repeated ones included.
    pub commands: u64,
    /// Bytes that those commands asked for.
    pub read_bytes: u64,
    /// Reads done a second time, after an error or a wrong checksum.
    pub repeated: u64,
    /// Samples whose checksum was computed and right.
    pub verified: u64,
    /// Batches handed out by a sequence.
    pub batches: u64,
    /// Samples of those batches.
    pub samples: u64,
    /// Bytes of those samples.
    pub sample_bytes: u64,
    /// Samples left out because they could not be read.
    pub skipped: u64,
    /// Bytes copied to bring batches into one piece.
    pub copied_bytes: u64,
    /// Reads that did not fit the window and were done outside it.
    pub over_window: u64,
    /// How long dlfs_bread had to wait, in ns.
    pub stall_ns: u64,
}
// SAFETY: numbers alone, the size first.
unsafe impl Struct for Stats {
    const NAME: &str = "dlfs_stats_t";
}

/// Says what reads by id and name on this mount have moved. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_stats(fs: *const Fs, stats: *mut Stats) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise, see the chapter of the library.
        unsafe { check_out(stats)? };
        let read = mount_of(fs)?.dataset.stats();
        // SAFETY: as above.
        unsafe { give(stats, value(LoaderStats { read, ..LoaderStats::default() }))? };
        Ok(DLFS_OK)
    })
}

/// Says what a sequence has done. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_sequence_stats(seq: *const Seq, stats: *mut Stats) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise, see the chapter of the library.
        unsafe { check_out(stats)? };
        let done = sequence_of(seq)?.loader.stats();
        // SAFETY: as above.
        unsafe { give(stats, value(done))? };
        Ok(DLFS_OK)
    })
}

fn value(stats: LoaderStats) -> Stats {
    Stats {
        size: 0,
        commands: stats.read.commands,
        read_bytes: stats.read.bytes,
        repeated: stats.read.repeated,
        verified: stats.read.verified,
        batches: stats.batches,
        samples: stats.samples,
        sample_bytes: stats.sample_bytes,
        skipped: stats.skipped,
        copied_bytes: stats.copied_bytes,
        over_window: stats.over_window,
        stall_ns: (stats.stall_s * 1e9) as u64,
    }
}
