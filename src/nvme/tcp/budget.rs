//! I/O budgets: the amount that one iteration of a poll loop moves, on both sides of a connection.
//!
//! The poll loops with sockets (`dlfs-io`, `dlfs-target`) and the simulated link of `tests/all/netsim`
//! share these constants, so the simulation follows every change.

/// About the number of bytes that a host receives on one connection per iteration, before it serves other
/// connections and processes the data: few enough that the second-level cache still holds them when checksums
/// are computed. The last receive may exceed it.
pub const HOST_RECEIVE_BYTES: usize = 256 << 10;

/// Slices in one receive of a host; a payload with its header takes two.
pub const HOST_RECEIVE_SLICES: usize = 128;

/// Slices in one send of a host. Adjacent capsules without data share one slice.
pub const HOST_SEND_SLICES: usize = 64;

/// Bytes of one receive of a target, not counting payload that is received straight into its
/// buffer.
pub const TARGET_RECEIVE_BYTES: usize = 256 << 10;

/// Slices in one send of a target: 128 responses with data.
pub const TARGET_SEND_SLICES: usize = 256;

/// Maximum completions that a target takes from a queue pair before it sends their responses.
pub const TARGET_MAX_COMPLETIONS: usize = 64;

/// Number of completions of `len` bytes that a target takes before it sends them. Few, so that their data
/// are still in the CPU cache, and the host gets the first bytes while the device works on the next. But
/// enough that the host is not woken for each one.
pub fn target_completions(len: usize) -> usize {
    (TARGET_ITERATION_BYTES / len.max(1)).clamp(2, TARGET_MAX_COMPLETIONS)
}

/// About the number of bytes that a target takes from a queue pair before it sends them, within the limits of
/// [`target_completions`].
const TARGET_ITERATION_BYTES: usize = 1 << 20;
