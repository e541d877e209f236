//! The lease: the right to write an image, which one importer has at a time.
//!
//! The engine locks a file that it opens. Some file systems have no locks, and remote namespaces have none that
//! all targets support, so the importer keeps a *lease* in cell 0 of namespace 0: a block with a random owner
//! number and a counter that the importer increments while it runs.
//!
//! Two rules keep the writes of two importers apart, whatever is suspended or delayed in between:
//!
//! - A write is sent only within half a lease after the last renewal: every write asks a [`Fence`],
//!   wherever it was queued. An importer that was suspended for longer reads the block first: if the block
//!   is still its own it continues, else it ends.
//! - Whoever finds another importer's block waits until it has not changed for half a lease, plus the time
//!   that its holder's writes may be delayed: a write that was sent in time and delayed by the network ends
//!   with its holder's controller. The block states that time.
//!
//! If several importers claim the lease at once, the last block written wins: each reads the block again
//! after the time that all have to send theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::import::media::{Channel, Media};
use crate::import::retry::{Backoff, RetryBudget, is_transient};
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::format::checksum::crc32c;
use dlfs_io::qpair::Fence;

/// The right to write an image; dropping it releases the lease.
pub(super) struct Lease {
    lost: Arc<AtomicBool>,
    keeper: Option<(Sender<()>, JoinHandle<Holder>)>,
    media: Media,
}

impl Lease {
    /// Takes the lease of an image: its media may be written from now on.
    ///
    /// # Errors
    /// `Busy`: another importer is running.
    pub(super) fn take(media: &Media, limit: Duration) -> Result<Lease> {
        let lost = Arc::new(AtomicBool::new(false));
        let media = media.clone();
        if media.devices().iter().all(|device| device.capabilities().is_exclusive) {
            media.fence().open_for_good();
            return Ok(Lease { lost, keeper: None, media });
        }
        let first = &media.devices()[0];
        if first.capabilities().can_grow {
            first.grow(LEASE_OFFSET + BLOCK_BYTES as u64)?; // a new file
        }
        let mut holder = Holder::new(&media, limit)?;
        let dead = holder.wait_for_dead_holder()?;
        if !holder.claim_with_retry(dead)? {
            return Err(busy(&media));
        }
        let (stop, stopped) = bounded(0);
        let keeper = {
            let lost = lost.clone();
            std::thread::Builder::new()
                .name("dlfs-lease".into())
                .spawn(move || holder.keep(&stopped, &lost))
                .map_err(Error::from)?
        };
        Ok(Lease { lost, keeper: Some((stop, keeper)), media })
    }

    /// An error if another importer has taken the image: nothing may be written any more.
    ///
    /// # Errors
    /// `Busy`.
    pub(super) fn check(&self) -> Result<()> {
        if self.lost.load(Ordering::Acquire) {
            let message = "this import was held up for so long that another has taken its place";
            Err(Error::new(ErrorKind::Busy, message)
                .target(self.media.devices()[0].namespace().address))
        } else {
            Ok(())
        }
    }

    /// Replaces the error of a write that failed because the lease was lost.
    pub(super) fn explain<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            // The renewing thread may be about to find out why writes fail.
            let until = Instant::now() + LOST_LEASE_TIMEOUT;
            let is_fenced = self.keeper.is_some() && !self.media.fence().is_open();
            while is_fenced && self.check().is_ok() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            match self.check() {
                Err(lost) if error.kind() != ErrorKind::Busy => lost.source(error),
                _ => error,
            }
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((stop, keeper)) = self.keeper.take() {
            drop(stop);
            // The thread reports panics as errors; if it did panic, the lease would expire by itself.
            if let Ok(mut holder) = keeper.join()
                && !self.lost.load(Ordering::Acquire)
            {
                // A lease that is not released expires by itself.
                let _ = holder.give_back();
            }
        }
        self.media.fence().close();
    }
}

/// Renews the block.
struct Holder {
    media: Media,
    channel: Channel,
    /// The fence for writes of the block itself.
    fence: Arc<Fence>,
    limit: Duration,
    owner: u64,
    count: u64,
    /// Until when writes may be sent.
    until: Duration,
}

impl Holder {
    fn new(media: &Media, limit: Duration) -> Result<Holder> {
        let fence = Fence::closed();
        Ok(Holder {
            media: media.clone(),
            channel: media.fenced_channel(&fence),
            fence,
            limit,
            owner: random::number()?,
            count: 0,
            until: Duration::ZERO,
        })
    }

    /// Waits while the block may belong to a running importer; returns the block of a dead one.
    fn wait_for_dead_holder(&mut self) -> Result<Option<Block>> {
        let Some(first) = read(&mut self.channel)? else { return Ok(None) };
        let wait = first.wait.unwrap_or_else(|| self.wait());
        let until = Fence::now().saturating_add(wait);
        tracing::warn!(
            "another import has the lease of this image: taking its place if it shows no sign of life for {} s",
            wait.as_secs()
        );
        loop {
            let left = until.saturating_sub(Fence::now());
            std::thread::sleep(left.min(self.limit / 8));
            match read(&mut self.channel)? {
                None => return Ok(None),
                Some(now) if now != first => return Err(busy(&self.media)),
                Some(_) if left.is_zero() => return Ok(Some(first)),
                Some(_) => {}
            }
        }
    }

    /// Claims again if sending the block took too long, or a connection broke.
    fn claim_with_retry(&mut self, before: Option<Block>) -> Result<bool> {
        let mut pause = Backoff::default();
        let never = AtomicBool::new(false);
        let retry_budget = RetryBudget::default();
        loop {
            match self.claim(before) {
                Err(error) if is_transient(&error) && retry_budget.wait(&mut pause, &never) => {}
                result => return result,
            }
        }
    }

    /// Replaces `before` by our own block; returns whether it stayed, which makes the media ours.
    fn claim(&mut self, before: Option<Block>) -> Result<bool> {
        let begun = Fence::now();
        let found = read(&mut self.channel)?;
        let is_anothers = |block: Block| Some(block) != before && block.owner != self.owner;
        if found.is_some_and(is_anothers) {
            return Ok(false);
        }
        self.fence.open_until(begun + self.settle_time());
        self.put(self.wait())?;
        let took = Fence::now() - begun;
        // By then, anyone else who saw the same block has sent theirs. If we were late ourselves, we may
        // have overwritten the block of an importer that already trusted it: that importer must notice, and
        // its delayed writes must have ended.
        let settle = if took < self.settle_time() { self.settle_time() } else { self.wait() };
        std::thread::sleep(settle);
        self.until = Fence::now() + self.limit / 2;
        self.raise()
    }

    /// Increments the counter, which allows writes for a while; returns whether the block was still ours.
    fn raise(&mut self) -> Result<bool> {
        let begun = Fence::now();
        self.fence.open_until(self.until);
        if read(&mut self.channel)?.is_none_or(|block| block.owner != self.owner) {
            return Ok(false);
        }
        self.put(self.wait())?;
        self.until = begun + self.limit / 2;
        self.media.fence().open_until(self.until);
        Ok(true)
    }

    /// Renews the lease until told to stop, or until the block belongs to someone else.
    fn keep(mut self, stop: &Receiver<()>, lost: &AtomicBool) -> Holder {
        loop {
            match stop.recv_timeout(self.limit / 8) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return self,
            }
            let kept = if Fence::now() < self.until { self.raise() } else { self.claim_again() };
            // A failed renewal may succeed next time; meanwhile the fence allows no writes.
            if let Ok(false) = kept {
                self.media.fence().close();
                lost.store(true, Ordering::Release);
                return self;
            }
        }
    }

    /// The time for writes has expired: another importer may have taken the image, or may be about to.
    fn claim_again(&mut self) -> Result<bool> {
        match read(&mut self.channel)? {
            Some(block) if block.owner == self.owner => self.claim(Some(block)),
            _ => Ok(false),
        }
    }

    /// Releases the lease: at once, unless our own writes may still be in transit.
    fn give_back(&mut self) -> Result<()> {
        self.fence.open_until(self.until);
        if read(&mut self.channel)?.is_none_or(|block| block.owner != self.owner) {
            return Ok(());
        }
        match self.media.lost_writes_for() {
            Duration::ZERO => self.channel.zero(0, LEASE_OFFSET, BLOCK_BYTES as u64),
            left => self.put(left),
        }
    }

    fn put(&mut self, wait: Duration) -> Result<()> {
        self.count += 1;
        let block = Block { owner: self.owner, count: self.count, wait: Some(wait) };
        self.channel.write_bytes(0, LEASE_OFFSET, &block.encode())
    }

    /// How long a block must stay unchanged before another may replace it.
    fn wait(&self) -> Duration {
        (self.limit / 2).saturating_add(self.media.late_writes()).max(self.limit)
    }

    /// The maximum time for sending a block that replaces another.
    fn settle_time(&self) -> Duration {
        (self.limit / 32).max(MIN_SETTLE_TIME)
    }
}

fn busy(media: &Media) -> Error {
    Error::new(ErrorKind::Busy, "another import of this image is at work")
        .target(media.devices()[0].namespace().address)
}

/// The lease on media.
///
/// | bytes  | field      | meaning                                                   |
/// |--------|------------|-----------------------------------------------------------|
/// | 0..8   | `magic`    | "DLFSLEAS"                                                |
/// | 8..16  | `owner`    | a random number                                           |
/// | 16..24 | `count`    | raised while it is kept                                   |
/// | 24..28 | `crc`      | CRC32C of bytes 0..24                                     |
/// | 28..32 | `wait_ms`  | how long it must not have changed for its holder to be dead |
/// | 32..36 | `wait_crc` | CRC32C of bytes 0..32; of another value before `wait_ms` was there |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    owner: u64,
    count: u64,
    wait: Option<Duration>,
}

impl Block {
    fn encode(self) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.owner.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.count.to_le_bytes());
        let crc = crc32c(&bytes[..24]);
        bytes[24..28].copy_from_slice(&crc.to_le_bytes());
        if let Some(wait) = self.wait {
            let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            bytes[28..32].copy_from_slice(&wait_ms.to_le_bytes());
            let crc = crc32c(&bytes[..32]);
            bytes[32..36].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    }

    /// The block, if there is a valid one.
    fn parse(bytes: &[u8]) -> Option<Block> {
        let eight = |at: usize| bytes[at..at + 8].try_into().expect("eight bytes were cut out");
        let number = |at: usize| u64::from_le_bytes(eight(at));
        let is_crc = |at: usize| bytes[at..at + 4] == crc32c(&bytes[..at]).to_le_bytes();
        let valid = &bytes[..8] == MAGIC && is_crc(24);
        let wait_ms = number(24) >> 32;
        let wait = is_crc(32).then(|| Duration::from_millis(wait_ms).min(MAX_WAIT));
        valid.then(|| Block { owner: number(8), count: number(16), wait })
    }
}

fn read(channel: &mut Channel) -> Result<Option<Block>> {
    Ok(Block::parse(&channel.read(0, LEASE_OFFSET, BLOCK_BYTES)?))
}

/// Offset of the lease on namespace 0: in cell 0, after the journal.
pub(super) const LEASE_OFFSET: u64 = 24 << 10;

const BLOCK_BYTES: usize = 4096;
const MAGIC: &[u8; 8] = b"DLFSLEAS";

/// The minimum time to send a block, for short leases.
const MIN_SETTLE_TIME: Duration = Duration::from_millis(100);

/// How long a failed import waits for the renewing thread to report a lost lease.
const LOST_LEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum wait for a dead importer, whatever its block says.
const MAX_WAIT: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_reads_back_and_an_older_form_has_no_waiting_time() {
        let block = Block { owner: 7 << 40, count: 3, wait: Some(Duration::from_millis(41_500)) };
        assert_eq!(Block::parse(&block.encode()), Some(block));
        let before = Block { wait: None, ..block };
        assert_eq!(Block::parse(&before.encode()), Some(before));
        assert_eq!(Block::parse(&[0; BLOCK_BYTES]), None);
        let mut damaged = block.encode();
        damaged[17] ^= 1;
        assert_eq!(Block::parse(&damaged), None);
    }
}
