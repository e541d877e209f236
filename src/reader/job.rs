//! One fetch while it is read: its parts as they come in, and the checksums of what is in them.
//!
//! The pump reads; this says what of it may be shown, and what is to be read again.

use crate::buf::{IoBuf, SharedBuf};
use crate::checksum::{crc32c, crc32c_append};
use crate::directory::Learned;
use crate::error::{Error, ErrorKind};
use crate::qpair::{IoError, Namespace};
use crate::units::Lba;

use super::plan::{Fetch, Placed};
use super::pump::io_error;

/// A fetch under way.
pub(super) struct Job {
    pub(super) token: u64,
    pub(super) fetch: Fetch,
    pub(super) windows: Vec<Window>,
    pub(super) waiting: usize,
    pub(super) failures: Vec<(usize, Error)>,
    pub(super) unread: Vec<(usize, Error)>,
    /// Some samples cross a part's end and are verified when all parts are in.
    pub(super) crossing: bool,
    pub(super) abandoned: bool,
}

/// One part's memory while it is here, and how often it was asked for.
#[derive(Default)]
pub(super) struct Window {
    pub(super) buf: Option<IoBuf>,
    pub(super) repeats: u8,
    pub(super) failed: bool,
}

impl Job {
    /// Verifies the samples that end in `part`; `false` when the part should be read again.
    pub(super) fn verify_part(&mut self, part: usize, learned: Option<&Learned>) -> bool {
        #[cfg(feature = "unverified")]
        if super::unverified::is_set() {
            return true;
        }
        let at = self.fetch.parts[part];
        let end = at.run_offset + at.len_bytes;
        let bytes = self.windows[part].buf.as_deref().expect("the part has just come in");
        let first = self.fetch.samples.partition_point(|s| s.run_offset < at.run_offset);
        let inside = self.fetch.samples[first..].iter().take_while(|s| s.run_offset < end);
        // A sample that begins before this part and reaches into it makes the job `crossing` too:
        // the part that it begins in says so.
        for (index, sample) in (first..).zip(inside) {
            let start = sample.run_offset - at.run_offset;
            let Some(bytes) = bytes.get(start..start + sample.len_bytes as usize) else {
                self.crossing = true;
                continue;
            };
            let found = crc32c(bytes);
            if is_right(sample, found, learned) || sample.len_bytes == 0 {
                continue;
            }
            if self.windows[part].repeats == 0 {
                return false;
            }
            self.failures.push((index, corrupt(sample, found, learned)));
        }
        true
    }

    /// Verifies the samples that lie in several parts; returns the parts to read again.
    pub(super) fn verify_crossing(&mut self, learned: Option<&Learned>) -> Vec<usize> {
        let mut wrong = Vec::new();
        let mut repeat = Vec::new();
        for (index, sample) in self.fetch.samples.iter().enumerate() {
            let parts = self.fetch.parts_of(sample);
            if parts.len() < 2 || parts.clone().any(|part| self.windows[part].failed) {
                continue;
            }
            let found = self.checksum(sample);
            if !is_right(sample, found, learned) {
                wrong.push((index, corrupt(sample, found, learned)));
                repeat.extend(parts.filter(|&part| self.windows[part].repeats == 0));
            }
        }
        // Only when nothing is left to try again is a wrong checksum final.
        if repeat.is_empty() {
            self.failures.append(&mut wrong);
        }
        repeat.sort_unstable();
        repeat.dedup();
        repeat
    }

    fn checksum(&self, sample: &Placed) -> u32 {
        let end = sample.run_offset + sample.len_bytes as usize;
        self.fetch.parts_of(sample).fold(0, |crc, part| {
            let at = self.fetch.parts[part];
            let bytes = self.windows[part].buf.as_deref().expect("all parts are in");
            let from = sample.run_offset.saturating_sub(at.run_offset);
            let to = (end - at.run_offset).min(at.len_bytes);
            crc32c_append(crc, &bytes[from..to])
        })
    }

    /// Every sample with bytes in `part` is lost.
    pub(super) fn fail_part(&mut self, part: usize, error: &IoError, namespace: &Namespace) {
        self.windows[part].failed = true;
        let lba = Lba(self.fetch.parts[part].offset_bytes / u64::from(namespace.block_len_bytes));
        self.unread.push((part, io_error(error, namespace).lba(lba)));
        for (index, sample) in self.fetch.samples.iter().enumerate() {
            let lost = sample.len_bytes > 0 && self.fetch.parts_of(sample).contains(&part);
            if lost && !self.failures.iter().any(|(known, _)| *known == index) {
                self.failures.push((index, io_error(error, namespace)));
            }
        }
    }

    /// The windows, one run again.
    pub(super) fn join(&mut self) -> SharedBuf {
        let mut windows = self.windows.iter_mut().filter_map(|window| window.buf.take());
        let mut run = windows.next().unwrap_or_else(IoBuf::empty);
        for window in windows {
            run.rejoin(window);
        }
        run.freeze()
    }
}

/// Whether `found` is the sample's checksum. Where the directory has none, it learns it.
#[inline]
fn is_right(sample: &Placed, found: u32, learned: Option<&Learned>) -> bool {
    match learned {
        None => found == sample.crc32c,
        Some(learned) => learned.accepts(sample.id, found),
    }
}

fn corrupt(sample: &Placed, found: u32, learned: Option<&Learned>) -> Error {
    let learned = learned.and_then(|learned| learned.get(sample.id));
    let expected = learned.unwrap_or(sample.crc32c);
    Error::new(
        ErrorKind::Corrupt,
        format!("the sample's checksum is {found:08x}, the directory expects {expected:08x}"),
    )
    .hint("run `dlfs verify` on the image to list everything that is damaged")
}
