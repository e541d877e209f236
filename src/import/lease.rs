//! Who may write an image: one importer at a time.
//!
//! A file is locked by the engine that opened it. A remote namespace has no lock that all targets
//! know, so the importer keeps a *lease* in cell 0 of namespace 0: a block with a number of its own
//! and a counter that it raises while it lives. Whoever finds the counter of somebody else watches it
//! for the time of a lease: if it moves, the image is busy; if not, its importer is dead. An importer
//! that cannot raise its counter in time stops writing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::format::checksum::crc32c;
use crate::import::media::{Channel, Media};
use crate::{Error, ErrorKind, Result};

/// The right to write an image, until it is dropped.
pub(super) struct Lease {
    lost: Arc<AtomicBool>,
    keeper: Option<(Sender<()>, JoinHandle<()>)>,
    media: Media,
    kept: bool,
}

impl Lease {
    /// Takes the lease of an image.
    ///
    /// # Errors
    /// `Busy`: another importer is at work.
    pub(super) fn take(media: &Media, limit: Duration) -> Result<Lease> {
        let lost = Arc::new(AtomicBool::new(false));
        let media = media.clone();
        if media.devices().iter().all(|device| device.is_exclusive()) {
            return Ok(Lease { lost, keeper: None, media, kept: false });
        }
        let mut channel = media.channel();
        wait_for_the_dead(&mut channel, limit)?;
        let owner = draw_owner()?;
        write(&mut channel, Block { owner, count: 0 })?;
        // Of two that took it at once, the one that wrote last has it; if the other has looked by then
        // already, its keeper finds out.
        std::thread::sleep(limit / 32);
        if read(&mut channel)?.is_none_or(|block| block.owner != owner) {
            return Err(busy(&media));
        }
        let (stop, stopped) = bounded(0);
        let keeper = {
            let lost = lost.clone();
            std::thread::Builder::new()
                .name("dlfs-lease".into())
                .spawn(move || keep(channel, owner, limit, &stopped, &lost))
                .map_err(Error::from)?
        };
        Ok(Lease { lost, keeper: Some((stop, keeper)), media, kept: true })
    }

    /// An error when the lease could not be kept: nothing may be written any more.
    ///
    /// # Errors
    /// `Disconnected`.
    pub(super) fn check(&self) -> Result<()> {
        match self.lost.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Disconnected, "the lease on the image was lost")
                .target(self.media.devices()[0].namespace().address)
                .hint("go on with dlfs import --resume")),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((stop, keeper)) = self.keeper.take() {
            drop(stop);
            // It panics never, and if it did, the lease would run out by itself.
            let _ = keeper.join();
        }
        if self.kept && !self.lost.load(Ordering::Acquire) {
            // A lease that is not given back runs out by itself.
            let _ = self.media.channel().zero(0, LEASE_OFFSET, BLOCK_BYTES as u64);
        }
    }
}

/// Raises the counter until it is told to stop, or cannot.
fn keep(mut channel: Channel, owner: u64, limit: Duration, stop: &Receiver<()>, lost: &AtomicBool) {
    let mut raised = Instant::now();
    for count in 1.. {
        match stop.recv_timeout(limit / 8) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
        let still_ours = |block: Option<Block>| block.is_some_and(|block| block.owner == owner);
        let result = read(&mut channel).map(still_ours).and_then(|ours| {
            if ours {
                write(&mut channel, Block { owner, count }).map(|()| true)
            } else {
                Ok(false)
            }
        });
        match result {
            Ok(true) => raised = Instant::now(),
            Err(_) if raised.elapsed() < limit / 2 => {} // the next turn may have more luck
            Ok(false) | Err(_) => return lost.store(true, Ordering::Release),
        }
    }
}

fn wait_for_the_dead(channel: &mut Channel, limit: Duration) -> Result<()> {
    let Some(first) = read(channel)? else { return Ok(()) };
    let until = Instant::now() + limit;
    while Instant::now() < until {
        std::thread::sleep(limit / 8);
        if read(channel)?.is_some_and(|now| now != first) {
            return Err(busy(channel.media()));
        }
    }
    Ok(())
}

fn busy(media: &Media) -> Error {
    Error::new(ErrorKind::Busy, "another import of this image is at work")
        .target(media.devices()[0].namespace().address)
}

/// The lease as it lies on media.
///
/// | bytes  | field   | meaning                   |
/// |--------|---------|---------------------------|
/// | 0..8   | `magic` | "DLFSLEAS"                |
/// | 8..16  | `owner` | a random number           |
/// | 16..24 | `count` | raised while it is kept   |
/// | 24..28 | `crc`   | CRC32C of bytes 0..24     |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    owner: u64,
    count: u64,
}

fn write(channel: &mut Channel, block: Block) -> Result<()> {
    let mut bytes = [0; BLOCK_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&block.owner.to_le_bytes());
    bytes[16..24].copy_from_slice(&block.count.to_le_bytes());
    let crc = crc32c(&bytes[..24]);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    channel.write_bytes(0, LEASE_OFFSET, &bytes)
}

fn read(channel: &mut Channel) -> Result<Option<Block>> {
    let bytes = channel.read(0, LEASE_OFFSET, BLOCK_BYTES)?;
    let number = |at: usize| {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes were cut out"))
    };
    let valid = &bytes[..8] == MAGIC && bytes[24..28] == crc32c(&bytes[..24]).to_le_bytes();
    Ok(valid.then(|| Block { owner: number(8), count: number(16) }))
}

fn draw_owner() -> Result<u64> {
    let mut bytes = [0; 8];
    super::draw(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Where the lease lies on namespace 0: in cell 0, behind the journal.
pub(super) const LEASE_OFFSET: u64 = 24 << 10;

const BLOCK_BYTES: usize = 4096;
const MAGIC: &[u8; 8] = b"DLFSLEAS";
