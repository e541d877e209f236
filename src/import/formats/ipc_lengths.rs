//! Lengths in Arrow messages for which their decoder would reserve memory, whatever they are.
//!
//! Before each compressed buffer stands its length when it is decompressed. The decoder of LZ4 reserves that much
//! before it looks at the buffer, and the process ends where there is not so much memory.

use std::io::{self, Read, Seek, SeekFrom};

use arrow_ipc::{CompressionType, Message, RecordBatch};

/// Reads messages of Arrow, each to its end, and fails where buffers are to become larger than the memory that there
/// is.
pub(super) struct Checked<R> {
    from: R,
    /// What is kept of this message.
    message: Vec<u8>,
    /// The length that it has to reach.
    wanted: usize,
    part: Part,
}

/// What is read of a message.
#[derive(Clone, Copy)]
enum Part {
    /// The length of its metadata.
    Length,
    /// Its metadata, which begin here.
    Metadata(usize),
    /// Its body, which begins here, and which is compressed.
    Body(usize, usize),
    /// So much of a body that is not.
    Other(u64),
    /// No message, up to the next seek.
    None,
}

impl<R> Checked<R> {
    /// Checks what `from` gives.
    pub(super) fn new(from: R) -> Checked<R> {
        Checked { from, message: Vec::new(), wanted: PREFIX_BYTES, part: Part::Length }
    }

    /// What it reads from.
    pub(super) fn get_mut(&mut self) -> &mut R {
        &mut self.from
    }

    /// What it reads from.
    pub(super) fn get_ref(&self) -> &R {
        &self.from
    }

    /// Goes on behind a message.
    fn begin(&mut self) {
        self.message.clear();
        (self.wanted, self.part) = (PREFIX_BYTES, Part::Length);
    }

    fn look(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let len = match self.part {
                Part::None => return Ok(()),
                Part::Other(left) => {
                    let len = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    self.part = Part::Other(left - len as u64);
                    len
                }
                _ => {
                    let len = bytes.len().min(self.wanted - self.message.len());
                    self.message.try_reserve(len)?;
                    self.message.extend_from_slice(&bytes[..len]);
                    len
                }
            };
            bytes = &bytes[len..];
            let is_whole = match self.part {
                Part::Other(left) => left == 0,
                _ => self.message.len() == self.wanted,
            };
            if is_whole {
                self.go_on()?;
            }
        }
        Ok(())
    }

    /// Goes on behind a part that is whole.
    fn go_on(&mut self) -> io::Result<()> {
        match self.part {
            Part::Length => {
                let start = if self.message.starts_with(&[0xff; 4]) { 8 } else { 4 };
                let len = i32::from_le_bytes(self.message[start - 4..start].try_into().expect("4"));
                let end = usize::try_from(len).ok().map(|len| start + len);
                self.part = end.filter(|end| *end > PREFIX_BYTES).map_or(Part::None, |end| {
                    self.wanted = end;
                    Part::Metadata(start)
                });
            }
            Part::Metadata(start) => {
                let Ok(message) = arrow_ipc::root_as_message(&self.message[start..]) else {
                    self.part = Part::None;
                    return Ok(());
                };
                let body = message.bodyLength().max(0) as u64;
                match batch(&message).and_then(|batch| batch.compression()) {
                    Some(found) if body > 0 && found.codec() == CompressionType::LZ4_FRAME => {
                        self.part = Part::Body(start, self.wanted);
                        self.wanted = self.wanted.saturating_add(body as usize);
                    }
                    _ => self.part = Part::Other(body),
                }
            }
            Part::Body(start, body) => {
                check(&self.message[start..body], &self.message[body..])?;
                self.begin();
            }
            Part::Other(_) | Part::None => {}
        }
        if let Part::Other(0) = self.part {
            self.begin();
        }
        Ok(())
    }
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.look(&into[..read])?;
        Ok(read)
    }
}

impl<R: Seek> Seek for Checked<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.begin();
        self.from.seek(to)
    }
}

/// Whether a file has room for its footer, for which the decoder makes room first.
pub(super) fn check_footer(from: &mut (impl Read + Seek)) -> io::Result<()> {
    let room = from.seek(SeekFrom::End(-10))?; // its length, and the magic bytes
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    match u64::try_from(i32::from_le_bytes(len)).is_ok_and(|len| len <= room) {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "its footer is longer than it")),
    }
}

/// The batch of a message, or that of the values of a dictionary.
fn batch<'a>(message: &Message<'a>) -> Option<RecordBatch<'a>> {
    let values = || message.header_as_dictionary_batch()?.data();
    message.header_as_record_batch().or_else(values)
}

/// Whether there is memory for the buffers in `body`.
fn check(metadata: &[u8], body: &[u8]) -> io::Result<()> {
    let message = arrow_ipc::root_as_message(metadata).ok();
    let buffers = message.and_then(|message| batch(&message)?.buffers());
    let len = |at: i64| {
        let bytes = body.get(usize::try_from(at).ok()?..)?.first_chunk()?;
        usize::try_from(i64::from_le_bytes(*bytes)).ok() // -1: as it is
    };
    let lens = buffers.iter().flatten().filter_map(|buffer| len(buffer.offset()));
    let all = lens.fold(0, usize::saturating_add);
    Vec::<u8>::new().try_reserve_exact(all).map_err(|_| {
        let text = format!("its buffers are to have {all} bytes, and there is no such memory");
        io::Error::new(io::ErrorKind::OutOfMemory, text)
    })
}

/// What a message begins with: its length, or a marker and its length.
const PREFIX_BYTES: usize = 8;
