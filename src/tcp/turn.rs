//! How much one turn of a pump moves, on both sides of a connection.
//!
//! The pumps that have sockets ([`crate::qpair`], [`crate::target`]) and the simulated link of
//! `tests/netsim` go by the same figures, so that a change of one of them shows there.

/// Bytes that a host receives in one turn before others have theirs, and before what came is looked
/// at: little enough that checksums are taken while the second-level cache holds the bytes.
pub const HOST_RECEIVE_BYTES: usize = 256 << 10;

/// Slices in one receive of a host: a payload and the header before it are two.
pub const HOST_RECEIVE_SLICES: usize = 128;

/// Slices in one send of a host. Capsules without data are one slice together.
pub const HOST_SEND_SLICES: usize = 64;

/// Bytes of one receive of a target, beside payload that goes to its place.
pub const TARGET_RECEIVE_BYTES: usize = 256 << 10;

/// Slices in one send of a target: 128 answers with data.
pub const TARGET_SEND_SLICES: usize = 256;

/// The most completions that a target takes from a queue pair before it sends them.
pub const TARGET_MAX_COMPLETIONS: usize = 64;

/// How many completions of `len` bytes a target takes before they are sent: so few that the copies
/// are still warm and the host gets the first bytes while the device works on the next, so many that
/// it is not woken for every one of them.
pub fn target_completions(len: usize) -> usize {
    (TARGET_TURN_BYTES / len.max(1)).clamp(2, TARGET_MAX_COMPLETIONS)
}

/// Bytes that a target takes from a queue pair before they are sent.
const TARGET_TURN_BYTES: usize = 1 << 20;
