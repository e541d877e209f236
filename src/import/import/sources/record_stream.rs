//! Reads TFRecords from pipes, compressed files and objects of stores, in the order in which they arrive.

use std::io::{self, Read};

use super::index::{BadEntry, BadReason, MAX_NAME_BYTES, MAX_SAMPLE_BYTES, TOO_LONG_A_NAME};
use super::inputs::Stream;
use super::sample_stream::{FieldBytes, SampleStream, StreamPlace, StreamSample};
use super::spool::is_stream;
use super::{FoundFile, Inputs, tfrecord};
use dlfs_base::Result;
use dlfs_base::checksum::{crc32c, crc32c_append};

/// The records of streams, one after the other; each is named after its stream and its number there.
pub(in crate::import) struct RecordStream {
    inputs: Inputs,
    /// Byte and number of the record that the first input is read from.
    begin_at: (u64, u64),
    open: Option<Open>,
    piped_bytes: u64,
    bad: Vec<BadEntry>,
    spare: Option<Vec<u8>>,
    /// Records that are longer are left to be read in pieces.
    most_at_once: u64,
}

struct Open {
    file: FoundFile,
    stream: Stream,
    /// Number of the next record.
    number: u64,
    offset: u64,
    unread: Option<Unread>,
}

/// The unread rest of a record that is read in pieces, and the checksum of the bytes read.
struct Unread {
    left: u64,
    crc: u32,
}

impl RecordStream {
    /// The records of `inputs`.
    pub(in crate::import) fn new(inputs: Inputs) -> RecordStream {
        let begin_at = (0, 0);
        let bad = Vec::new();
        let most_at_once = u64::MAX;
        RecordStream {
            inputs,
            begin_at,
            open: None,
            piped_bytes: 0,
            bad,
            spare: None,
            most_at_once,
        }
    }

    /// The same, leaving records of more bytes to be [read in pieces](SampleStream::read_on).
    pub(in crate::import) fn at_once(self, most: u64) -> RecordStream {
        RecordStream { most_at_once: most, ..self }
    }

    /// Goes on at byte `offset` of the first input, with record `number` there.
    pub(in crate::import) fn after(self, offset: u64, number: u64) -> RecordStream {
        RecordStream { begin_at: (offset, number), ..self }
    }

    fn end(&mut self) {
        if let Some(open) = self.open.take().filter(|open| is_stream(&open.file.path)) {
            self.piped_bytes += open.offset;
        }
    }

    fn take(&mut self, name: Vec<u8>, record: Record) -> Option<StreamSample> {
        let reason = match record {
            Record::Sound(bytes) if name.len() <= MAX_NAME_BYTES => {
                return Some(StreamSample::new(name, vec![Some(bytes)]));
            }
            Record::Unread(len) if name.len() <= MAX_NAME_BYTES => {
                return Some(StreamSample::unread(name, len));
            }
            Record::Sound(_) | Record::Unread(_) => TOO_LONG_A_NAME,
            Record::Bad(reason) => reason,
        };
        self.reject(&name, reason);
        None
    }
}

impl SampleStream for RecordStream {
    fn next_sample(&mut self) -> Result<Option<StreamSample>> {
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                closed => {
                    let Some((file, stream)) = self.inputs.next()? else { return Ok(None) };
                    let (offset, number) = std::mem::take(&mut self.begin_at);
                    closed.insert(Open { file, stream, number, offset, unread: None })
                }
            };
            let mut name = open.file.name.clone();
            name.extend_from_slice(format!("/{}", open.number).as_bytes());
            let start = open.offset;
            let next = open.next(&mut self.spare, self.most_at_once);
            self.inputs.check()?;
            match next {
                Ok(Some(record)) => {
                    if let Some(sample) = self.take(name, record) {
                        return Ok(Some(sample));
                    }
                }
                Ok(None) => self.end(),
                Err(reason) => {
                    let bad = BadEntry::new(&name, reason).within(&open.file.path);
                    let bad = bad.rest(start..start);
                    self.bad.push(bad);
                    self.end();
                }
            }
        }
    }

    fn read_on(&mut self, into: &mut [u8]) -> Result<usize, BadReason> {
        self.open.as_mut().map_or(Ok(0), |open| open.read_on(into))
    }

    fn reject(&mut self, name: &[u8], reason: BadReason) {
        let bad = BadEntry::new(name, reason);
        self.bad.push(match &self.open {
            Some(open) => bad.within(&open.file.path),
            None => bad,
        });
    }

    fn place(&self) -> Option<StreamPlace> {
        let begun = self.inputs.begun_objects().filter(|_| self.bad.is_empty())?;
        let (input, offset, record) = match &self.open {
            None => (begun, 0, 0),
            Some(open) => (begun - 1, open.offset, open.number),
        };
        Some(StreamPlace { input, offset, left_out: 0, record, named: 0, windows: 0 })
    }

    fn give_back(&mut self, sample: StreamSample) {
        let own = sample.fields.into_iter().flatten().find_map(FieldBytes::into_own);
        self.spare = own.or(self.spare.take());
    }

    fn bad(&self) -> &[BadEntry] {
        &self.bad
    }

    fn piped_bytes(&self) -> u64 {
        self.piped_bytes
    }
}

/// A record that was read.
enum Record {
    Sound(FieldBytes),
    /// So many bytes are to be read.
    Unread(u64),
    /// The next one can be read nevertheless.
    Bad(BadReason),
}

impl Open {
    /// The next record, in the memory of `spare` if it has to be copied; `None` at the end.
    ///
    /// # Errors
    /// The rest of the stream cannot be read.
    fn next(
        &mut self,
        spare: &mut Option<Vec<u8>>,
        most_at_once: u64,
    ) -> Result<Option<Record>, BadReason> {
        self.pass_over()?;
        let mut header = [0; tfrecord::HEADER_BYTES];
        match fill(&mut self.stream, &mut header).map_err(|error| BadReason::from(&error))? {
            0 => return Ok(None),
            tfrecord::HEADER_BYTES => {}
            _ => return Err(BadReason::Truncated("the shard ends inside a record's header")),
        }
        let len = tfrecord::length(&header)?;
        self.number += 1;
        self.offset = self
            .offset
            .saturating_add((header.len() + tfrecord::CRC_BYTES) as u64)
            .saturating_add(len);
        let is_too_large = len > MAX_SAMPLE_BYTES;
        if len > most_at_once && !is_too_large {
            self.unread = Some(Unread { left: len, crc: 0 });
            return Ok(Some(Record::Unread(len)));
        }
        let record = if is_too_large {
            io::copy(&mut (&mut self.stream).take(len), &mut io::sink())
                .map(|passed| (passed, FieldBytes::from(Vec::new())))
        } else {
            self.payload(len, spare).map(|payload| (payload.len() as u64, payload))
        };
        let (read, payload) = record.map_err(|error| BadReason::from(&error))?;
        let mut crc = [0; tfrecord::CRC_BYTES];
        let is_whole = read == len
            && fill(&mut self.stream, &mut crc).map_err(|error| BadReason::from(&error))?
                == crc.len();
        if !is_whole {
            return Err(ENDS_INSIDE);
        }
        Ok(Some(match tfrecord::check_crc(crc32c(&payload), crc) {
            _ if is_too_large => Record::Bad(BadReason::TooLarge(len)),
            Ok(()) => Record::Sound(payload),
            Err(reason) => Record::Bad(reason),
        }))
    }

    /// Reads on in a record, and compares its checksum at its end.
    fn read_on(&mut self, into: &mut [u8]) -> Result<usize, BadReason> {
        let Some(Unread { left, crc }) = self.unread.take() else { return Ok(0) };
        let most = left.min(into.len() as u64) as usize;
        let read = fill(&mut self.stream, &mut into[..most]);
        let read = read.map_err(|error| BadReason::from(&error))?;
        if read < most {
            return Err(ENDS_INSIDE);
        }
        let left = left - read as u64;
        let crc = crc32c_append(crc, &into[..read]);
        if left > 0 {
            self.unread = Some(Unread { left, crc });
            return Ok(read);
        }
        let mut stored = [0; tfrecord::CRC_BYTES];
        match fill(&mut self.stream, &mut stored).map_err(|error| BadReason::from(&error))? {
            tfrecord::CRC_BYTES => tfrecord::check_crc(crc, stored).map(|()| read),
            _ => Err(ENDS_INSIDE),
        }
    }

    /// Passes over a record of which something is unread.
    fn pass_over(&mut self) -> Result<(), BadReason> {
        let Some(Unread { left, .. }) = self.unread.take() else { return Ok(()) };
        let rest = left + tfrecord::CRC_BYTES as u64;
        let passed = io::copy(&mut (&mut self.stream).take(rest), &mut io::sink());
        if passed.map_err(|error| BadReason::from(&error))? == rest {
            Ok(())
        } else {
            Err(ENDS_INSIDE)
        }
    }

    /// The next `len` bytes, or as many as there are.
    fn payload(&mut self, len: u64, spare: &mut Option<Vec<u8>>) -> io::Result<FieldBytes> {
        if let Some(lent) = usize::try_from(len).ok().and_then(|len| self.stream.lend(len)) {
            return Ok(lent);
        }
        let mut payload = spare.take().unwrap_or_default();
        payload.clear();
        // Memory grows with the bytes that arrive, not with the stated length.
        (&mut self.stream).take(len).read_to_end(&mut payload)?;
        Ok(payload.into())
    }
}

const ENDS_INSIDE: BadReason = BadReason::Truncated("the shard ends inside the record");

/// Reads until `into` is full or the stream ends; returns the number of bytes.
fn fill(from: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
    super::compression::read_some(from, into)
}
