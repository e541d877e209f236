//! Records of TFRecord shards from pipes, compressed files and objects of stores, in the order in which they arrive.

use std::io::{self, Read};

use super::compression::is_stream;
use super::index::{BadEntry, BadReason, MAX_NAME_BYTES, MAX_SAMPLE_BYTES, TOO_LONG_A_NAME};
use super::inputs::Stream;
use super::sample_stream::{FieldBytes, SampleStream, StreamPlace, StreamSample};
use super::shard::read_some;
use super::tfrecord::{CRC_BYTES, ENDS_INSIDE, HEADER_BYTES, check_crc, next_len};
use super::{FoundFile, Inputs};
use dlfs_base::Result;
use dlfs_base::checksum::{crc32c, crc32c_append};

/// The records of streams, one after the other. A record is named after its stream and its number in the stream.
#[derive(Default)]
pub(crate) struct RecordStream {
    inputs: Inputs,
    /// Offset and number of the record at which reading of the first input begins.
    begin_at: (u64, u64),
    open: Option<Open>,
    piped_bytes: u64,
    bad: Vec<BadEntry>,
    spare: Option<Vec<u8>>,
    /// Length in bytes above which a record is read in pieces.
    most_at_once: u64,
}

struct Open {
    file: FoundFile,
    stream: Stream,
    /// Number of the next record.
    number: u64,
    offset: u64,
    /// The unread rest of a record that is read in pieces, and the checksum of the bytes read.
    unread: Option<(u64, u32)>,
}

impl RecordStream {
    /// The records of `inputs`. Records longer than `most_at_once` bytes are [read in pieces](SampleStream::read_on).
    /// `begin_at`: offset and number of the record at which reading of the first input begins.
    pub(crate) fn new(inputs: Inputs, most_at_once: u64, begin_at: (u64, u64)) -> RecordStream {
        RecordStream { inputs, most_at_once, begin_at, ..RecordStream::default() }
    }

    fn end(&mut self) {
        if let Some(open) = self.open.take().filter(|open| is_stream(&open.file.path)) {
            self.piped_bytes += open.offset;
        }
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
            let name = [&open.file.name[..], format!("/{}", open.number).as_bytes()].concat();
            let start = open.offset;
            let next = open.next(&mut self.spare, self.most_at_once);
            self.inputs.check()?;
            match next {
                Ok(Some(Ok((bytes, unread)))) if name.len() <= MAX_NAME_BYTES => {
                    return Ok(Some(StreamSample {
                        unread,
                        ..StreamSample::new(name, vec![Some(bytes)])
                    }));
                }
                Ok(Some(record)) => self.reject(&name, record.err().unwrap_or(TOO_LONG_A_NAME)),
                Ok(None) => self.end(),
                Err(reason) => {
                    let bad = BadEntry::new(&name, reason).within(&open.file.path);
                    let bad = bad.rest(start..start); // a stream's end is unknown
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
        let within = self.open.as_ref().map(|open| open.file.path.clone());
        self.bad.push(BadEntry { within, ..BadEntry::new(name, reason) });
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

    fn take_bad(&mut self) -> Vec<BadEntry> {
        std::mem::take(&mut self.bad)
    }

    fn piped_bytes(&self) -> u64 {
        self.piped_bytes
    }
}

/// The bytes of a record, and the number of bytes left to read in pieces; or the reason why this record is bad,
/// though the next one can be read.
type Record = Result<(FieldBytes, u64), BadReason>;

impl Open {
    /// The next record, copied into the memory of `spare` if a copy is necessary; `None` at the end.
    ///
    /// # Errors
    /// The rest of the stream cannot be read.
    fn next(
        &mut self,
        spare: &mut Option<Vec<u8>>,
        most_at_once: u64,
    ) -> Result<Option<Record>, BadReason> {
        if let Some((left, _)) = self.unread.take() {
            self.pass_over(left)?;
        }
        let Some(len) = next_len(&mut self.stream)? else { return Ok(None) };
        self.number += 1;
        self.offset =
            self.offset.saturating_add((HEADER_BYTES + CRC_BYTES) as u64).saturating_add(len);
        if len > MAX_SAMPLE_BYTES {
            self.pass_over(len)?;
            return Ok(Some(Err(BadReason::TooLarge(len))));
        }
        if len > most_at_once {
            self.unread = Some((len, 0));
            return Ok(Some(Ok((Vec::new().into(), len))));
        }
        let payload = self.payload(len, spare)?;
        ENDS_INSIDE.unless(payload.len() as u64 == len)?;
        let sound = check_crc(crc32c(&payload), self.checksum()?);
        Ok(Some(sound.map(|()| (payload, 0))))
    }

    /// Reads the next piece of a record, and checks the checksum at the record's end.
    fn read_on(&mut self, into: &mut [u8]) -> Result<usize, BadReason> {
        let Some((left, crc)) = self.unread.take() else { return Ok(0) };
        let most = left.min(into.len() as u64) as usize;
        self.fill(&mut into[..most])?;
        let left = left - most as u64;
        let crc = crc32c_append(crc, &into[..most]);
        if left > 0 {
            self.unread = Some((left, crc));
            return Ok(most);
        }
        check_crc(crc, self.checksum()?).map(|()| most)
    }

    /// Skips the rest of a record, and its checksum.
    fn pass_over(&mut self, len: u64) -> Result<(), BadReason> {
        let passed = io::copy(&mut (&mut self.stream).take(len), &mut io::sink())?;
        ENDS_INSIDE.unless(passed == len)?;
        self.checksum().map(drop)
    }

    /// Reads the stored checksum that follows a payload.
    fn checksum(&mut self) -> Result<[u8; CRC_BYTES], BadReason> {
        let mut stored = [0; CRC_BYTES];
        self.fill(&mut stored)?;
        Ok(stored)
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<(), BadReason> {
        ENDS_INSIDE.unless(read_some(&mut self.stream, into)? == into.len())
    }

    /// The next `len` bytes, or fewer if the stream ends.
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
