//! Damage, or merely a newer generation? What looks wrong may have been written anew.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buf::IoBuf;
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use crate::format::superblock_set::SuperblockCopies;
use crate::qpair::calls::{Calls, Ticket};
use crate::qpair::{Device, PairScope, open_pairs, or_unreadable};

use super::plan::{Fetch, Part};
use super::pump::Pump;

/// `Stale` where namespace 0's superblocks say that the image of `directory` has moved on, or is another
/// one now. `None` where it is still the same, and where that cannot be seen before `until`: whoever asks
/// has an error already, which then stands.
///
/// By the queue pairs that met that error, since there may be no further one to be had.
pub(crate) fn moved_on(pump: &mut Pump, directory: &Directory, until: Instant) -> Option<Error> {
    let namespace = pump.namespace(0)?;
    let (address, len) = (namespace.address.clone(), namespace.len_bytes());
    let mut fetch = Fetch::default();
    for offset_bytes in COPY_OFFSETS {
        if offset_bytes + SUPERBLOCK_BYTES as u64 <= len {
            let (run_offset, len_bytes) = (fetch.len_bytes, SUPERBLOCK_BYTES);
            fetch.parts.push(Part { namespace: 0, offset_bytes, run_offset, len_bytes });
            fetch.len_bytes += len_bytes;
        }
    }
    let run = IoBuf::zeroed(fetch.len_bytes);
    pump.start(CHECK_TOKEN, fetch, run);
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
        if !pump.turn(now) {
            pump.wait(until);
        }
    };
    pump.put_back(others);
    let fetched = fetched?;
    let copy = |index: usize| {
        let unread = fetched.unread.iter().any(|(part, _)| *part == index);
        let bytes = fetched.run.get(index * SUPERBLOCK_BYTES..(index + 1) * SUPERBLOCK_BYTES);
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
        return None; // what was read is damaged, and so may be what says that it is current
    };
    Some(Error::new(ErrorKind::Stale, text).target(address).hint("open the image again"))
}

/// Reads both superblock copies of each namespace, all at the same time, a bad one twice: see
/// [`SuperblockCopies::gather`].
pub(crate) fn read_copies(devices: &[Arc<dyn Device>]) -> Result<Vec<SuperblockCopies>> {
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
                None => or_unreadable(calls.read(pair, offset, SUPERBLOCK_BYTES)), // it has grown
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

/// How long reading a superblock may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// No other fetch has this number.
const CHECK_TOKEN: u64 = u64::MAX;
