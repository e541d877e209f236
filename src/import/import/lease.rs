//! The lease: the right to write an image. One importer has it at a time.
//!
//! The engine locks the files that it opens. But some file systems have no locks, and no kind of lock on remote
//! namespaces is supported by all targets. If a namespace is not locked, the importer keeps a *lease* in cell 6
//! of namespace 0, or of the namespace of its part: a block with a random owner number and a counter, which the
//! importer increments while it runs.
//!
//! Two rules keep the writes of two importers apart, even if a process is suspended or a write is delayed:
//!
//! - A write is sent only within half a lease after the last renewal: every write is checked by a [`Fence`],
//!   wherever it was queued. An importer that was suspended for longer first reads the block. It continues if
//!   the block is still its own, and otherwise ends.
//! - An importer that finds another importer's block waits until the block has not changed for half a lease
//!   plus the maximum delay of the holder's writes, and at least for a whole lease. A write that was sent in
//!   time but delayed by the network ends together with the holder's controller. The block states the time to
//!   wait; an importer waits 10 minutes at most.
//!
//! If several importers claim the lease at once, the last block written wins: each importer waits for the time
//! in which all of them must send their block, then reads the block again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::import::block::{BLOCK_BYTES, Block};
use crate::import::media::{Channel, Media};
use crate::import::retry::RetryBudget;
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_io::qpair::Fence;

/// The right to write an image. Dropping it releases the lease.
pub(super) struct Lease {
    /// Set when another importer has taken the image.
    lost: Arc<AtomicBool>,
    /// The thread that renews the lease, and the channel whose end stops it. `None`: the namespaces are locked, so no
    /// renewal is needed.
    renewer: Option<(Sender<()>, JoinHandle<Holder>)>,
    media: Media,
}

impl Lease {
    /// Takes the lease of an image, for `limit` after each renewal. The image may be written from now on.
    ///
    /// # Errors
    /// `Busy`: another importer is running. Errors of reading and writing the block.
    pub(super) fn take(media: &Media, limit: Duration) -> Result<Lease> {
        let lost = Arc::new(AtomicBool::new(false));
        let media = media.clone();
        if media.devices.iter().all(|device| device.capabilities().is_exclusive) {
            media.fence.open_for_good();
            return Ok(Lease { lost, renewer: None, media });
        }
        let first = &media.devices[0];
        if first.capabilities().can_grow {
            first.grow(LEASE_OFFSET + BLOCK_BYTES as u64)?; // a new file
        }
        let mut holder = Holder::new(&media, limit)?;
        let dead = holder.wait_for_dead_holder()?;
        // Retried if sending the block took too long, or a connection broke.
        if !RetryBudget::default().retry(|| holder.claim(dead))? {
            return Err(busy(&media));
        }
        let (stop, stopped) = bounded(0);
        let is_lost = lost.clone();
        let thread = std::thread::Builder::new().name("dlfs-lease".into());
        let renewer = thread.spawn(move || holder.keep(&stopped, &is_lost))?;
        Ok(Lease { lost, renewer: Some((stop, renewer)), media })
    }

    /// Takes the lease of the image, which is the lease of namespace 0, and the leases of all other namespaces, so
    /// that no part is written meanwhile. The lease of the image comes first.
    ///
    /// # Errors
    /// As [`take`](Lease::take).
    pub(super) fn take_all(media: &Media, limit: Duration) -> Result<Vec<Lease>> {
        let alone = media.devices[1..].iter().map(|device| Media::new(vec![device.clone()]));
        let alone = alone.collect::<Result<Vec<_>>>()?;
        // Taking a lease may take seconds, so all are taken in parallel.
        std::thread::scope(|scope| {
            let others: Vec<_> =
                alone.iter().map(|media| scope.spawn(move || Lease::take(media, limit))).collect();
            let mut leases = vec![Lease::take(media, limit)?];
            for other in others {
                let ended = || Error::new(ErrorKind::Internal, "a thread that took a lease ended");
                leases.push(other.join().map_err(|_| ended())??);
            }
            Ok(leases)
        })
    }

    /// Checks that no other importer has taken the image. After an error nothing may be written any more.
    ///
    /// # Errors
    /// `Busy`: another importer has taken the image.
    pub(super) fn check(&self) -> Result<()> {
        if self.lost.load(Ordering::Acquire) {
            let message = "this import was held up for so long that another has taken its place";
            Err(Error::new(ErrorKind::Busy, message).target(self.media.address(0)))
        } else {
            Ok(())
        }
    }

    /// Replaces the error of a write that failed because the lease was lost.
    pub(super) fn explain<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            // The renewing thread may be about to detect the lost lease.
            let until = Instant::now() + LOST_LEASE_TIMEOUT;
            let is_fenced = self.renewer.is_some() && !self.media.fence.is_open();
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
        if let Some((stop, renewer)) = self.renewer.take() {
            drop(stop);
            // The thread returns panics as errors. If it panicked, the lease would expire by itself.
            if let Ok(mut holder) = renewer.join()
                && !self.lost.load(Ordering::Acquire)
            {
                // A lease that is not released expires by itself.
                let _ = holder.give_back();
            }
        }
        self.media.fence.close();
    }
}

/// Renews the block that holds the lease.
struct Holder {
    channel: Channel,
    /// The fence for writes of the block itself.
    fence: Arc<Fence>,
    /// Duration of the lease.
    limit: Duration,
    /// The random number in our block.
    owner: u64,
    /// The counter in our block.
    count: u64,
    /// Writes may be sent until this time, on the clock of [`Fence::now`].
    until: Duration,
}

impl Holder {
    /// A holder with a new owner number, which has not written the block yet.
    fn new(media: &Media, limit: Duration) -> Result<Holder> {
        let fence = Fence::closed();
        Ok(Holder {
            channel: media.fenced_channel(&fence),
            fence,
            limit,
            owner: random::number()?,
            count: 0,
            until: Duration::ZERO,
        })
    }

    /// Waits while the block may belong to a running importer. Returns the block of a dead importer.
    fn wait_for_dead_holder(&mut self) -> Result<Option<Holding>> {
        let Some(first) = self.read()? else { return Ok(None) };
        let wait = Duration::from_millis(first.wait_ms).min(MAX_WAIT);
        // Only the time of these pauses counts: what suspends this process may suspend the holder, too.
        let pause = (wait.min(self.limit) / 8).max(SHORTEST_PAUSE);
        let mut waited = Duration::ZERO;
        tracing::warn!(
            "another import has the lease of this image: taking its place if it shows no sign of life for {} s",
            wait.as_secs()
        );
        loop {
            std::thread::sleep(pause);
            waited += pause;
            match self.read()? {
                None => return Ok(None),
                Some(now) if now != first => return Err(busy(&self.channel.media)),
                Some(_) if waited >= wait => return Ok(Some(first)),
                Some(_) => {}
            }
        }
    }

    /// Replaces `before` by our own block. Returns whether our block stayed, so that the media are ours.
    fn claim(&mut self, before: Option<Holding>) -> Result<bool> {
        let begun = Fence::now();
        let found = self.read()?;
        let is_anothers = |block: Holding| Some(block) != before && block.owner != self.owner;
        if found.is_some_and(is_anothers) {
            return Ok(false);
        }
        self.fence.open_until(begun + self.settle_time());
        self.put(self.wait())?;
        let took = Fence::now() - begun;
        // After this time, any importer that saw the same block has sent its own. If we were late, we may have
        // overwritten the block of an importer that already relied on it. Then wait longer: that importer must
        // notice, and its delayed writes must have ended.
        let settle = if took < self.settle_time() { self.settle_time() } else { self.wait() };
        std::thread::sleep(settle);
        self.until = Fence::now() + self.limit / 2;
        self.renew()
    }

    /// Renews the lease: increments the counter, which allows writes for half a lease. Returns whether the block was
    /// still ours.
    fn renew(&mut self) -> Result<bool> {
        let begun = Fence::now();
        self.fence.open_until(self.until);
        if self.read()?.is_none_or(|block| block.owner != self.owner) {
            return Ok(false);
        }
        self.put(self.wait())?;
        self.until = begun + self.limit / 2;
        self.channel.media.fence.open_until(self.until);
        Ok(true)
    }

    /// Renews the lease until it is told to stop, or until the block belongs to another importer.
    fn keep(mut self, stop: &Receiver<()>, lost: &AtomicBool) -> Holder {
        loop {
            match stop.recv_timeout(self.limit / 8) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return self,
            }
            let kept = if Fence::now() < self.until { self.renew() } else { self.claim_again() };
            // A failed renewal may succeed next time. Once the lease has expired, the fence refuses writes.
            if let Ok(false) = kept {
                self.channel.media.fence.close();
                lost.store(true, Ordering::Release);
                return self;
            }
        }
    }

    /// Tries to renew an expired lease: another importer may have taken the image, or may be about to.
    fn claim_again(&mut self) -> Result<bool> {
        match self.read()? {
            Some(block) if block.owner == self.owner => self.claim(Some(block)),
            _ => Ok(false),
        }
    }

    /// Releases the lease. If our own writes may still be in transit, the block stays and states the time until
    /// they have ended.
    fn give_back(&mut self) -> Result<()> {
        self.fence.open_until(self.until);
        if self.read()?.is_none_or(|block| block.owner != self.owner) {
            return Ok(());
        }
        match self.channel.media.lost_writes_for() {
            Duration::ZERO => self.channel.zero(0, LEASE_OFFSET, BLOCK_BYTES as u64),
            left => self.put(left),
        }
    }

    /// Reads the lease on the media, if there is one. A block that was torn, or that another release wrote, may
    /// still have a holder. Such a holder counts as dead when the block has not changed for the time that our
    /// own block states.
    fn read(&mut self) -> Result<Option<Holding>> {
        let Some(block) = LEASE.bytes(&mut self.channel, 0)? else { return Ok(None) };
        if let Ok(Some((holding, _))) = LEASE.open(&block) {
            return Ok(Some(holding));
        }
        let is_lease = block.starts_with(&LEASE.magic);
        let wait_ms = self.wait().as_millis() as u64; // as options limit it
        Ok(is_lease.then(|| Holding { owner: xxh3_64(&block), count: 0, wait_ms }))
    }

    /// Writes our block, with the next counter. `wait`: the time that it states.
    fn put(&mut self, wait: Duration) -> Result<()> {
        self.count += 1;
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let holding = Holding { owner: self.owner, count: self.count, wait_ms };
        let block = LEASE.seal(&holding, &[]).expect("a few numbers fit into a block");
        self.channel.write_bytes(0, LEASE_OFFSET, &block)
    }

    /// The time that a block must stay unchanged before another importer may replace it.
    fn wait(&self) -> Duration {
        (self.limit / 2).saturating_add(self.channel.media.late_writes()).max(self.limit)
    }

    /// The maximum time for sending a block that replaces another.
    fn settle_time(&self) -> Duration {
        (self.limit / 32).max(MIN_SETTLE_TIME)
    }
}

/// The error for a lease that another importer holds.
fn busy(media: &Media) -> Error {
    Error::new(ErrorKind::Busy, "another import of this image is at work").target(media.address(0))
}

/// The lease as the media hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Holding {
    /// A random number.
    owner: u64,
    /// Incremented while the lease is kept.
    count: u64,
    /// The holder counts as dead when the block has not changed for this time.
    wait_ms: u64,
}

/// Offset of the lease on namespace 0: cell 6, after the checkpoint.
pub(super) const LEASE_OFFSET: u64 = 24 << 10;

const LEASE: Block =
    Block { what: "lease of an import", magic: *b"DLFSLEAS", at: LEASE_OFFSET, len: BLOCK_BYTES };

/// The minimum settle time, for short leases.
const MIN_SETTLE_TIME: Duration = Duration::from_millis(100);

/// The minimum pause between two looks at a lease that another importer may have.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// Maximum time that a failed import waits for the renewing thread to report a lost lease.
const LOST_LEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum wait for a dead importer, whatever its block states.
const MAX_WAIT: Duration = Duration::from_secs(600);
