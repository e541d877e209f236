//! The turns of ranks that share a namespace: each keeps chunks in memory until it has the namespace for a moment.

use std::time::{Duration, Instant};

use super::record::FilledChunk;
use super::writing::Writing;
use super::{Place, Taken};
use dlfs_base::Result;
use dlfs_base::buf::IoBuf;

/// A rank's chunks that wait for its next turn.
pub(super) struct Turns {
    /// Each with the bytes of its header.
    chunks: Vec<(FilledChunk, u64, IoBuf)>,
    /// Their memory.
    bytes: usize,
    /// The end of the last turn, and the time that it took, with the wait for it.
    ended: Instant,
    took: Duration,
}

impl Turns {
    pub(super) fn new() -> Turns {
        Turns { chunks: Vec::new(), bytes: 0, ended: Instant::now(), took: Duration::ZERO }
    }

    /// Takes a chunk, whose data lie in at least `least_bytes` of memory.
    pub(super) fn write(
        &mut self,
        place: &Place,
        (chunk, header_bytes, data): (FilledChunk, u64, IoBuf),
        least_bytes: usize,
    ) -> Result<()> {
        self.bytes += data.len().max(least_bytes);
        self.chunks.push((chunk, header_bytes, data));
        if self.bytes < MOST_BYTES { Ok(()) } else { self.mark(place) }
    }

    /// Makes the shard durable, unless a turn was just now: turns take at most a fifth of the time.
    pub(super) fn end_shard(&mut self, place: &Place) -> Result<()> {
        if self.ended.elapsed() < 4 * self.took { Ok(()) } else { self.mark(place) }
    }

    /// Waits for a turn, and makes all chunks so far durable. Without a turn, they stay for the next one.
    pub(super) fn mark(&mut self, place: &Place) -> Result<()> {
        if self.chunks.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let taken = place.take(TURN_LIMIT)?;
        let chunks = std::mem::take(&mut self.chunks);
        self.bytes = 0;
        // A complete image has other attempts of these shards.
        if let Some(Taken { mut writing, .. }) = taken {
            for (chunk, header_bytes, data) in chunks {
                writing.explained(|writing| writing.write(chunk, header_bytes, data))?;
            }
            writing.explained(Writing::mark)?;
        }
        self.ended = Instant::now();
        self.took = self.ended - begun;
        Ok(())
    }
}

/// The most bytes that wait.
const MOST_BYTES: usize = 32 << 20;
/// The longest wait for a turn: as long as many ranks take for theirs on a slow disk.
const TURN_LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Filling;
    use dlfs_base::buf::IoBuf;
    use dlfs_io::address::Address;
    use dlfs_io::qpair::ConnectOptions;

    #[test]
    fn chunks_that_get_no_turn_are_written_in_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shared.dlfs");
        let image: Vec<Address> = vec![path.to_str().unwrap().parse().unwrap()];
        let begin = || Filling::begin(&image, 7, 0, &ConnectOptions::default()).unwrap().unwrap();
        let filling = begin().in_turns();
        let chunk = super::FilledChunk { count: 1, ..filling.begin_shard(3) };
        filling.push(chunk, 4096, IoBuf::zeroed(4096)).unwrap();
        // The image is out of reach for a while.
        let away = folder.path().join("away");
        fs::rename(&path, &away).unwrap();
        fs::create_dir(&path).unwrap();
        filling.end().unwrap_err();
        fs::remove_dir(&path).unwrap();
        fs::rename(&away, &path).unwrap();
        assert!(!begin().filled().has(3));
        filling.end().unwrap();
        assert!(begin().filled().shard(3, 1).is_some());
    }
}
