//! Reads superblocks: when an image is opened, and to tell damage from a newer generation. An import may have rewritten
//! data that looks corrupt.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fetch::{Fetch, Transfer};
use super::pump::Pump;
use crate::buf::IoBuf;
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use crate::format::superblock_set::SuperblockCopies;
use crate::qpair::calls::{Calls, Ticket};
use crate::qpair::{Device, PairScope, open_pairs, or_unreadable};

/// `Stale` if namespace 0's superblocks name a newer generation than that of `directory`, or another image. `None`
/// if they do not, are damaged, or could not be read before `until`: the caller then reports its own error.
///
/// Uses the queue pairs of `pump`, since the target may refuse another one.
pub(crate) fn stale_error(pump: &mut Pump, directory: &Directory, until: Instant) -> Option<Error> {
    let namespace = pump.namespace(0)?;
    let address = namespace.address.clone();
    let len = namespace.len_bytes();
    let mut fetch = Fetch::default();
    for offset_bytes in COPY_OFFSETS {
        if offset_bytes + SUPERBLOCK_BYTES as u64 <= len {
            let buf_offset = fetch.len_bytes;
            let len_bytes = SUPERBLOCK_BYTES;
            fetch.transfers.push(Transfer { namespace: 0, offset_bytes, buf_offset, len_bytes });
            fetch.len_bytes += len_bytes;
        }
    }
    let buf = IoBuf::zeroed(fetch.len_bytes);
    pump.start(CHECK_TOKEN, fetch, buf);
    let mut others = Vec::new();
    let fetched = loop {
        match pump.next_finished() {
            Some(fetched) if fetched.token == CHECK_TOKEN => break Some(fetched),
            Some(other) => {
                others.push(other);
                continue;
            }
            None => {}
        }
        let now = Instant::now();
        if now >= until {
            pump.abandon(CHECK_TOKEN);
            break None;
        }
        if !pump.poll(now) {
            pump.wait(until);
        }
    };
    pump.put_back(others);
    let fetched = fetched?;
    let copy = |index: usize| {
        let unread = fetched.unread.iter().any(|(transfer, _)| *transfer == index);
        let bytes = fetched.buf.get(index * SUPERBLOCK_BYTES..(index + 1) * SUPERBLOCK_BYTES);
        bytes.filter(|_| !unread).unwrap_or(&[0; SUPERBLOCK_BYTES])
    };
    let copies = SuperblockCopies::parse(copy(0), copy(1));
    let newest = copies.newest()?;
    let text = if newest.layout.uuid != directory.uuid() {
        format!("another image lies here now: {}", newest.layout.uuid)
    } else if newest.generation > directory.generation() {
        format!(
            "the image is at generation {} now, and generation {} was opened",
            newest.generation,
            directory.generation()
        )
    } else {
        return None; // the same generation: the data is damaged
    };
    Some(Error::new(ErrorKind::Stale, text).target(address).hint("open the image again"))
}

/// Reads both superblock copies of each namespace, all concurrently, and bad copies a second time: see
/// [`SuperblockCopies::gather`].
pub(crate) fn read_superblocks(devices: &[Arc<dyn Device>]) -> Result<Vec<SuperblockCopies>> {
    let mut calls = Calls::new(DEADLINE)?;
    let mut begun = Vec::with_capacity(devices.len());
    for mut pairs in open_pairs(devices, &[PairScope::new()])? {
        let pair = calls.add(pairs.pop().expect("each device gives one"));
        let mut tickets = Vec::with_capacity(COPY_OFFSETS.len());
        for offset in COPY_OFFSETS {
            if offset + SUPERBLOCK_BYTES as u64 <= calls.namespace(pair).len_bytes() {
                let buf = IoBuf::zeroed(SUPERBLOCK_BYTES);
                tickets.push((offset, calls.begin_read(pair, offset, buf)?));
            }
        }
        begun.push((pair, tickets));
    }
    let mut copies = Vec::with_capacity(devices.len());
    for (pair, tickets) in begun {
        let len = calls.namespace(pair).len_bytes();
        copies.push(SuperblockCopies::gather(len, |offset, again| {
            if again {
                calls.report_corrupt(pair, offset, SUPERBLOCK_BYTES);
                return or_unreadable(calls.read(pair, offset, SUPERBLOCK_BYTES));
            }
            match tickets.iter().find(|(of, _)| *of == offset) {
                Some(&(_, ticket)) => or_unreadable(end_of(&mut calls, ticket)),
                None => or_unreadable(calls.read(pair, offset, SUPERBLOCK_BYTES)), // the namespace has grown
            }
        })?);
    }
    Ok(copies)
}

fn end_of(calls: &mut Calls, ticket: Ticket) -> Result<IoBuf> {
    loop {
        if let Some(result) = calls.take(ticket) {
            return result;
        }
        if !calls.turn() {
            calls.wait();
        }
    }
}

/// The timeout for reading the superblocks.
const DEADLINE: Duration = Duration::from_secs(60);

/// A token that differs from those of all other fetches.
const CHECK_TOKEN: u64 = u64::MAX;
