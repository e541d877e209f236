//! The check that namespaces hold no user data, before an import overwrites them.

use crate::import::journal::{JOURNAL_BYTES, JOURNAL_OFFSET, Journal};
use crate::import::lease::LEASE_OFFSET;
use crate::import::media::{Media, pieces};
use dlfs_base::{Error, ErrorKind, Result};

/// Refuses to overwrite possible user data. Large namespaces are only sampled, in many places; both ends are
/// read completely, since other formats have their signatures there. `ignore_journal`: a journal does not count as
/// data.
///
/// # Errors
/// `Refused`: a namespace is not empty. Errors of reading.
pub(super) fn must_be_empty(media: &Media, ignore_journal: bool) -> Result<()> {
    let mut channel = media.channel();
    for namespace in 0..media.len() {
        let refused = |what: &str, hint: &'static str| {
            let message = format!("there is {what} here already");
            Err(Error::new(ErrorKind::Refused, message).target(media.address(namespace)).hint(hint))
        };
        if !channel.superblocks(namespace)?.is_blank() {
            return refused("an image", "add to it with --append, or overwrite it with --force");
        }
        let len = media.len_bytes(namespace);
        for (at, piece) in probes(len) {
            let mut bytes = channel.read(namespace, at, piece)?;
            if at == 0 {
                blank(&mut bytes, LEASE_OFFSET); // the lease is ours
                if !ignore_journal && has_journal(&bytes) {
                    let hint = "continue it with --resume, or overwrite it with --force";
                    return refused("an unfinished import", hint);
                }
                if ignore_journal {
                    blank(&mut bytes, JOURNAL_OFFSET);
                }
            }
            if bytes.iter().any(|&byte| byte != 0) {
                return refused("other data", "overwrite it with --force");
            }
        }
    }
    Ok(())
}

/// Zeroes the lease or the journal at offset `at` in `bytes`, the beginning of a namespace. Both have the same length.
fn blank(bytes: &mut [u8], at: u64) {
    if let Some(block) = bytes.get_mut(at as usize..at as usize + JOURNAL_BYTES) {
        block.fill(0);
    }
}

/// Returns whether the beginning of a namespace has a journal.
fn has_journal(bytes: &[u8]) -> bool {
    let found = bytes.get(JOURNAL_OFFSET as usize..).map(Journal::parse);
    found.is_some_and(|found| found != Ok(None)) // a journal of another release counts, too
}

/// Offsets and lengths to read of a namespace of `len` bytes: both ends completely, and single blocks between them. A
/// short namespace is read completely.
fn probes(len: u64) -> Vec<(u64, usize)> {
    if len <= 2 * END_BYTES {
        return pieces(len, END_BYTES).collect();
    }
    let ends = [0, len - END_BYTES].map(|at| (at, END_BYTES as usize));
    let step = ((len - 2 * END_BYTES) / PROBES).max(PROBE_BYTES).next_multiple_of(PROBE_BYTES);
    let between = (END_BYTES..=len - END_BYTES - PROBE_BYTES).step_by(step as usize);
    ends.into_iter().chain(between.map(|at| (at, PROBE_BYTES as usize))).collect()
}

/// Bytes that are read of each end.
const END_BYTES: u64 = 4 << 20;
/// Bytes that are read at each place between the ends.
const PROBE_BYTES: u64 = 4096;
/// Approximate maximum of the number of these places.
const PROBES: u64 = 1024;
