//! One fetch while it is read: its parts as they come in, and the checksums of what is in them.
//!
//! The pump reads; this says what of it may be shown, and what is to be read again.

use crate::buf::{IoBuf, SharedBuf};
use crate::checksum::{crc32c, crc32c_append};
use crate::directory::Learned;
use crate::error::{Error, ErrorKind};
use crate::qpair::{IoError, Namespace};
use crate::units::Lba;

use super::plan::{Fetch, Part, Placed};

/// A fetch under way.
pub(super) struct InFlight {
    pub(super) token: u64,
    pub(super) fetch: Fetch,
    pub(super) windows: Vec<Window>,
    pub(super) waiting: usize,
    pub(super) failures: Vec<(usize, Error)>,
    pub(super) unread: Vec<(usize, Error)>,
    /// How many of `windows` have failed.
    pub(super) num_failed: usize,
    /// Some samples cross a part's end and are verified when all parts are in.
    pub(super) crossing: bool,
    /// The sample that goes on in the part behind the last one that came.
    pub(super) carried: Option<Carried>,
    /// The first sample behind the part that came last: the first of the next part, if that one
    /// comes next.
    pub(super) next_sample: usize,
    pub(super) abandoned: bool,
}

/// A sample that crosses a part's end, as far as its checksum is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Carried {
    /// Index into `fetch.samples`.
    sample: usize,
    /// Where in the run the checksum ends.
    run_offset: usize,
    crc32c: u32,
}

/// One part's memory while it is here, and how often it was asked for.
#[derive(Default)]
pub(super) struct Window {
    pub(super) buf: Option<IoBuf>,
    pub(super) repeats: u8,
    /// Why it was not read, also when asked for again.
    pub(super) failed: Option<IoError>,
    /// It is a piece of a part that was not read.
    pub(super) is_piece: bool,
    /// It is what was left of such a part when its ends were tried.
    pub(super) was_probed: bool,
    /// The sample that ends here and began in a part before, when its checksum was right.
    pub(super) verified_across: Option<usize>,
}

impl InFlight {
    /// Verifies the samples that end in `part`; `false` when the part should be read again.
    pub(super) fn verify_part(&mut self, part: usize, learned: Option<&Learned>) -> bool {
        #[cfg(feature = "unverified")]
        if super::unverified::is_set() {
            return true;
        }
        let at = self.fetch.parts[part];
        let end = at.run_offset + at.len_bytes;
        let bytes = self.windows[part].buf.as_deref().expect("the part has just come in");
        let first = self.first_sample_from(at.run_offset);
        let inside = self.fetch.samples[first..].iter().take_while(|s| s.run_offset < end);
        let mut next_sample = first;
        // A sample that begins before this part and reaches into it makes the fetch `crossing` too:
        // the part that it begins in says so.
        let mut crossing = None;
        for (index, sample) in (first..).zip(inside) {
            next_sample = index + 1;
            let start = sample.run_offset - at.run_offset;
            let Some(bytes) = bytes.get(start..start + sample.len_bytes as usize) else {
                crossing = Some(index);
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
        self.next_sample = next_sample;
        self.crossing |= crossing.is_some();
        self.carry(part, crossing, learned);
        true
    }

    /// The first sample that begins at `run_offset` or behind it.
    fn first_sample_from(&self, run_offset: usize) -> usize {
        let (samples, next) = (&self.fetch.samples, self.next_sample);
        let begins_before = |sample: &Placed| sample.run_offset < run_offset;
        let is_first = next.checked_sub(1).is_none_or(|before| begins_before(&samples[before]))
            && samples.get(next).is_none_or(|sample| !begins_before(sample));
        if is_first { next } else { samples.partition_point(begins_before) }
    }

    /// Goes on with the checksum of the sample that reaches into `part`, and begins that of the one
    /// which reaches out of it, while a cache holds the bytes. Parts that come in another order leave
    /// it to [`InFlight::verify_crossing`].
    fn carry(&mut self, part: usize, crossing: Option<usize>, learned: Option<&Learned>) {
        let at = self.fetch.parts[part];
        let end = at.run_offset + at.len_bytes;
        let bytes = self.windows[part].buf.as_deref().expect("the part has just come in");
        let begun = crossing.map(|sample| {
            let start = self.fetch.samples[sample].run_offset - at.run_offset;
            Carried { sample, run_offset: end, crc32c: crc32c(&bytes[start..]) }
        });
        if let Some(carried) = self.carried.take_if(|carried| carried.run_offset == at.run_offset) {
            let sample = &self.fetch.samples[carried.sample];
            let sample_end = sample.run_offset + sample.len_bytes as usize;
            let reach = sample_end.min(end) - at.run_offset;
            let crc32c = crc32c_append(carried.crc32c, &bytes[..reach]);
            if sample_end > end {
                self.carried = Some(Carried { run_offset: end, crc32c, ..carried });
            } else if is_right(sample, crc32c, learned) {
                self.windows[part].verified_across = Some(carried.sample);
            }
        }
        self.carried = begun.or(self.carried);
    }

    /// Verifies the samples that lie in several parts; returns the parts to read again.
    pub(super) fn verify_crossing(&mut self, learned: Option<&Learned>) -> Vec<usize> {
        let mut wrong = Vec::new();
        let mut repeat = Vec::new();
        for (index, sample) in self.fetch.samples.iter().enumerate() {
            let parts = self.fetch.parts_of(sample);
            if parts.len() < 2 || parts.clone().any(|part| self.windows[part].failed.is_some()) {
                continue;
            }
            if self.windows[parts.end - 1].verified_across == Some(index) {
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
        } else {
            // What is read again may hold parts of samples that were right.
            self.carried = None;
            self.windows.iter_mut().for_each(|window| window.verified_across = None);
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

    /// Cuts the first part that was not read and can be cut into pieces, which take its place; returns
    /// those that are to be asked for. One at a time, so that few are asked for in vain. `block_len` is
    /// that of a part's namespace, and whether nothing of it can be read just now: then the first and the
    /// last piece of a part are tried, and the rest when one was read.
    ///
    /// To be called while nothing is under way: parts are named by their index.
    pub(super) fn cut_failed(&mut self, block_len: impl Fn(&Part) -> (u32, bool)) -> Vec<usize> {
        for (part, window) in self.windows.iter().enumerate() {
            let (block_len, is_barren) = block_len(&self.fetch.parts[part]);
            let may_cut = window.failed.as_ref().is_some_and(is_local)
                && !window.is_piece
                && !(is_barren && window.was_probed);
            if !may_cut {
                continue;
            }
            let pieces = self.fetch.pieces_of(&self.fetch.parts[part], block_len as usize);
            if pieces.len() > 1 {
                return self.cut(part, pieces, is_barren);
            }
        }
        Vec::new()
    }

    fn cut(&mut self, part: usize, mut pieces: Vec<Part>, only_ends: bool) -> Vec<usize> {
        let Window { buf, failed, .. } = std::mem::take(&mut self.windows[part]);
        let mut rest = buf.expect("its read has ended");
        let inner = if only_ends { merge_inner(&mut pieces) } else { None };
        let (mut asked, mut windows) = (Vec::new(), Vec::with_capacity(pieces.len()));
        for (number, piece) in pieces.iter().enumerate() {
            let behind = rest.split_off(piece.len_bytes);
            let buf = Some(std::mem::replace(&mut rest, behind));
            windows.push(if inner == Some(number) {
                Window { buf, failed: failed.clone(), was_probed: true, ..Window::default() }
            } else {
                asked.push(part + number);
                Window { buf, is_piece: true, ..Window::default() }
            });
        }
        self.num_failed -= usize::from(inner.is_none());
        self.windows.splice(part..=part, windows);
        self.fetch.parts.splice(part..=part, pieces);
        self.carried = None;
        asked
    }

    /// Samples with bytes in parts that were not read are lost.
    pub(super) fn fail_unread<'a>(&mut self, namespace: impl Fn(&Part) -> &'a Namespace) {
        let failed = |part: usize| self.windows[part].failed.as_ref();
        for (part, at) in self.fetch.parts.iter().enumerate() {
            if let Some(error) = failed(part) {
                let namespace = namespace(at);
                let lba = Lba(at.offset_bytes / u64::from(namespace.block_len_bytes));
                self.unread.push((part, error.clone().on(namespace).lba(lba)));
            }
        }
        for (index, sample) in self.fetch.samples.iter().enumerate() {
            if sample.len_bytes > 0
                && let Some((part, error)) =
                    self.fetch.parts_of(sample).find_map(|part| failed(part).map(|e| (part, e)))
            {
                let namespace = namespace(&self.fetch.parts[part]);
                self.failures.push((index, error.clone().on(namespace)));
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

/// Whether it says something of the bytes that were asked for: others may be read.
fn is_local(error: &IoError) -> bool {
    !matches!(error, IoError::Disconnected(_))
}

/// Makes one of all pieces between the first and the last; returns which that is.
fn merge_inner(pieces: &mut Vec<Part>) -> Option<usize> {
    let inner = pieces.get(1..pieces.len() - 1)?;
    let merged =
        Part { len_bytes: inner.iter().map(|piece| piece.len_bytes).sum(), ..*inner.first()? };
    pieces.splice(1..pieces.len() - 1, [merged]);
    Some(1)
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

#[cfg(test)]
mod tests {
    use super::super::plan::Part;
    use super::*;
    use crate::units::SampleId;

    const PART_LEN: usize = 100;

    /// A fetch of parts of 100 bytes, all of them here, and samples of these lengths side by side.
    fn fetch(num_parts: usize, lens: &[u32]) -> InFlight {
        let bytes: Vec<u8> = (0..num_parts * PART_LEN).map(|i| (i * 31 % 251) as u8).collect();
        let parts = (0..num_parts).map(|part| Part {
            namespace: 0,
            offset_bytes: 0,
            run_offset: part * PART_LEN,
            len_bytes: PART_LEN,
        });
        let mut run_offset = 0;
        let samples = lens.iter().zip(0..).map(|(&len_bytes, index)| {
            let crc32c = crc32c(&bytes[run_offset..run_offset + len_bytes as usize]);
            run_offset += len_bytes as usize;
            let start = run_offset - len_bytes as usize;
            Placed { id: SampleId(7), index, run_offset: start, len_bytes, crc32c }
        });
        let samples = samples.collect();
        let windows = bytes
            .chunks(PART_LEN)
            .map(|part| Window { buf: Some(copy(part)), ..Window::default() });
        InFlight {
            token: 0,
            fetch: Fetch { parts: parts.collect(), samples, len_bytes: bytes.len() },
            windows: windows.collect(),
            waiting: 0,
            failures: Vec::new(),
            unread: Vec::new(),
            num_failed: 0,
            crossing: false,
            carried: None,
            next_sample: 0,
            abandoned: false,
        }
    }

    fn copy(bytes: &[u8]) -> IoBuf {
        let mut buf = IoBuf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    fn flip(under_way: &mut InFlight, part: usize, byte: usize) {
        under_way.windows[part].buf.as_mut().expect("all are here")[byte] ^= 1;
    }

    /// Samples 0 (parts 0 to 2), 1 (inside part 2), 2 (parts 2 and 3).
    const LENS: [u32; 3] = [230, 20, 90];

    #[test]
    fn crossing_samples_are_verified_as_their_parts_come_in_and_not_again() {
        let mut under_way = fetch(4, &LENS);
        assert!((0..4).all(|part| under_way.verify_part(part, None)) && under_way.crossing);
        let across: Vec<_> =
            under_way.windows.iter().map(|window| window.verified_across).collect();
        assert_eq!(across, [None, None, Some(0), Some(2)]);
        flip(&mut under_way, 1, 5); // after it was looked at: seen only by looking again
        assert!(under_way.verify_crossing(None).is_empty() && under_way.failures.is_empty());
    }

    #[test]
    fn parts_in_any_order_are_verified_all_the_same() {
        for order in [[3, 2, 1, 0], [0, 2, 1, 3], [2, 3, 0, 1], [1, 0, 3, 2]] {
            for wrong in [None, Some(0), Some(1), Some(2), Some(3)] {
                let mut under_way = fetch(4, &LENS);
                wrong.into_iter().for_each(|part| flip(&mut under_way, part, 28));
                assert!(
                    order.iter().all(|&part| under_way.verify_part(part, None)),
                    "no byte 28 is inside"
                );
                let repeat = under_way.verify_crossing(None);
                let expected: &[usize] = match wrong {
                    None => &[],
                    Some(3) => &[2, 3],
                    Some(_) => &[0, 1, 2],
                };
                assert_eq!(repeat, expected, "{order:?}, {wrong:?}");
            }
        }
    }

    #[test]
    fn what_was_right_is_verified_again_when_a_part_of_it_is_read_again() {
        let mut under_way = fetch(4, &LENS);
        flip(&mut under_way, 3, 0); // of sample 2, which shares part 2 with sample 0
        assert!((0..4).all(|part| under_way.verify_part(part, None)));
        assert_eq!(under_way.verify_crossing(None), [2, 3]);
        flip(&mut under_way, 3, 0);
        flip(&mut under_way, 2, 0); // the second read of part 2 damages sample 0
        for part in [2, 3] {
            under_way.windows[part].repeats = 1;
            assert!(under_way.verify_part(part, None));
        }
        assert_eq!(
            under_way.verify_crossing(None),
            [0, 1],
            "the parts of sample 0 that were read once"
        );
    }
}
