//! Reads the members of a tar archive: ustar, PAX, GNU long names, base-256 sizes, old v7. Read `tar_header.rs` for
//! their encoding.
//!
//! An archive that GNU tar and Python's tarfile would list differently is rejected: a member that only one
//! tool sees is an attack or an accident, never a sample. The exception is concatenated archives in one
//! file: they are read to the end of the file, as by GNU tar's `--ignore-zeros`, and counted
//! ([`Members::appended`]). No stated length determines an allocation, except for extended headers, which
//! have a limit.
//!
//! The records of a TFRecord shard are members, too: files named by their numbers, each with a checksum
//! after its payload.

use std::io;
use std::ops::{Deref, Range};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::bad::{BadEntry, BadReason};
use super::beneath::push;
use super::index::{MAX_NAME_BYTES, TOO_LONG_A_NAME};
use super::shard::{Input, read_some};
use super::tar_header::{BLOCK_BYTES, Header, check_sum, decimal, is_zero, pax_record, until_nul};
use super::tfrecord::{CRC_BYTES, ENDS_INSIDE, HEADER_BYTES, check_crc, next_len};
use dlfs_base::checksum::crc32c_append;

/// Reads members one after the other.
#[derive(Debug)]
pub(crate) struct Members<I> {
    input: I,
    /// Offset of the next byte to read.
    pub(super) position: u64,
    /// Offset of the current or last header.
    header_at: u64,
    /// Offset of the first header of the current or last member, which may be an extended one.
    pub(super) member_at: u64,
    /// The archives after the first one that were read so far.
    pub(super) appended: Option<Appended>,
    /// Bytes of the current member that are not yet consumed, its padding or a record's checksum included.
    left: u64,
    /// Payload bytes of the current member that are not yet read.
    payload_left: u64,
    /// Set if the members are records.
    records: Option<Records>,
}

/// The records of a TFRecord shard.
#[derive(Debug)]
struct Records {
    /// Number of the next record.
    next: u64,
    /// Checksum of the bytes of the current payload that were read.
    crc: u32,
}

/// One member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// The name, as spelled in the archive.
    pub name: Vec<u8>,
    /// The type.
    pub kind: MemberKind,
    /// Length of the payload in bytes.
    pub len_bytes: u64,
    /// Byte offset of the payload in the file or stream.
    pub offset: u64,
}

impl Member {
    /// Prefixes its name, and the target of a hard link, with a folder.
    pub(super) fn put_in_front(&mut self, folder: &[u8]) {
        if folder.is_empty() {
            return;
        }
        let front = |name: &[u8]| [folder, b"/", name].concat();
        self.name = front(&self.name);
        if let MemberKind::HardLink(target) = &mut self.kind {
            *target = front(target);
        }
    }
}

/// The type of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemberKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A hard link; its target, an earlier member, relative to the archive's root.
    HardLink(Vec<u8>),
    /// A symbolic link; its target, relative to the link's folder.
    SymLink(Vec<u8>),
    /// A type that cannot be imported.
    Special(&'static str),
    /// The payload is not the content of a file, for this reason.
    Refused(&'static str),
}

/// Archives after the first one of a file, as `cat a.tar b.tar` produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Appended {
    /// Number of these archives.
    pub archives: u64,
    /// Offset of the first of these archives.
    pub from: u64,
}

/// Data of extended headers for the next member.
#[derive(Default)]
struct Extended {
    /// Set if there was a PAX header.
    pax: bool,
    /// The name, link target and payload length that replace those of the member's header.
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    len_bytes: Option<u64>,
    /// Set by any record of a sparse file.
    sparse: bool,
    /// The name of a sparse file, which replaces `name`.
    sparse_name: Option<Vec<u8>>,
}

impl<I: Input> Members<I> {
    /// The members of `input`, which is at the archive's first byte.
    pub(crate) fn new(input: I) -> Members<I> {
        Members {
            input,
            position: 0,
            header_at: 0,
            member_at: 0,
            appended: None,
            left: 0,
            payload_left: 0,
            records: None,
        }
    }

    /// Reads the input as the records of a TFRecord shard instead, of which the next one has this number.
    pub(crate) fn records(self, number: u64) -> Members<I> {
        Members { records: Some(Records { next: number, crc: 0 }), ..self }
    }

    /// Number of the next record; 0 in an archive.
    pub(crate) fn next_record(&self) -> u64 {
        self.records.as_ref().map_or(0, |records| records.next)
    }

    /// The members from byte `position` of a file or stream on, where a member begins. `input` is at this byte.
    pub(crate) fn from(input: I, position: u64) -> Members<I> {
        Members { position, ..Members::new(input) }
    }

    /// Offset of the next member.
    pub(crate) fn next_at(&self) -> u64 {
        self.position + self.left
    }

    /// The byte range that was not read; empty if its end is unknown.
    fn rest(&self) -> Range<u64> {
        self.header_at..self.input.end().unwrap_or(0).max(self.header_at)
    }

    /// After an error: the bad entry for the rest of the shard `path`, which is not read. `stem`: prefix of the names
    /// of records.
    pub(crate) fn lost(&self, stem: &[u8], path: &Path, reason: BadReason) -> BadEntry {
        let bad = match &self.records {
            None => BadEntry::new(path.as_os_str().as_bytes(), reason),
            Some(Records { next, .. }) => {
                let number = next - u64::from(self.left > 0); // the current record is broken
                let name = [stem, format!("/{number}").as_bytes()].concat();
                BadEntry::new(&name, reason).within(path)
            }
        };
        BadEntry { rest: Some(self.rest()), ..bad }
    }

    /// Counts the rest of the current member as consumed, without moving the input.
    pub(super) fn leave_member(&mut self) {
        (self.left, self.payload_left) = (0, 0);
    }

    /// The next member; `None` at the end of the input. An end mark ends an archive, and another archive
    /// may follow: `tar -A` and `cat` leave end marks in the middle.
    ///
    /// # Errors
    /// The archive ends early or a header is broken: the rest cannot be read.
    pub(crate) fn next_member(&mut self) -> Result<Option<Member>, BadReason> {
        let mut extended = Extended::default();
        self.pass_over_member()?;
        self.member_at = self.position;
        if self.records.is_some() {
            return self.record();
        }
        loop {
            self.pass_over_member()?;
            self.header_at = self.position;
            let mut block = [0; BLOCK_BYTES];
            match self.read_block(&mut block)? {
                0 => return Err(BadReason::Truncated("the archive has no end mark")),
                BLOCK_BYTES => {}
                _ => return Err(BadReason::Truncated("inside a header")),
            }
            if is_zero(&block) {
                BadReason::Syntax("an extended header without a member")
                    .unless(extended.is_empty())?;
                if !self.begin_next_archive(&mut block)? {
                    return Ok(None);
                }
            }
            let header = Header::parse(&block)?;
            match header.kind {
                b'x' | b'X' => {
                    BadReason::Syntax("two extended headers for one member")
                        .unless(!extended.pax)?;
                    extended.pax = true;
                    let records = self.read_extended(header.len_bytes)?;
                    extended.read_pax(&records)?;
                }
                b'g' => {
                    let records = self.read_extended(header.len_bytes)?;
                    let mut global = Extended::default();
                    global.read_pax(&records)?;
                    BadReason::Syntax("a global header that names or sizes members")
                        .unless(global.is_empty())?;
                }
                b'L' => once(&mut extended.name, self.read_long(header.len_bytes)?, TWO_NAMES)?,
                b'K' => once(&mut extended.link, self.read_long(header.len_bytes)?, TWO_LINKS)?,
                _ => return self.member(header, extended).map(Some),
            }
        }
    }

    /// Reads the next bytes of the current member's payload; 0 at its end.
    ///
    /// # Errors
    /// The archive ends within the member, or the operating system reported an error.
    pub(crate) fn read_payload(&mut self, into: &mut [u8]) -> Result<usize, BadReason> {
        let most = self.payload_left.min(into.len() as u64) as usize;
        if most == 0 {
            return Ok(0);
        }
        let read = loop {
            match self.input.read(&mut into[..most]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        let is_record = self.records.is_some();
        let ends = if is_record { ENDS_INSIDE } else { BadReason::Truncated("inside a member") };
        ends.unless(read != 0)?;
        self.pass(&into[..read])?;
        Ok(read)
    }

    /// Counts payload bytes that were read, and checks the checksum at the end of a record's payload.
    fn pass(&mut self, bytes: &[u8]) -> Result<(), BadReason> {
        let len = bytes.len() as u64;
        self.position += len;
        self.left -= len;
        self.payload_left -= len;
        let Some(records) = &mut self.records else { return Ok(()) };
        records.crc = crc32c_append(records.crc, bytes);
        let crc = records.crc;
        if self.payload_left > 0 { Ok(()) } else { check_crc(crc, self.checksum()?) }
    }

    /// Reads the stored checksum behind a record's payload.
    fn checksum(&mut self) -> Result<[u8; CRC_BYTES], BadReason> {
        let mut stored = [0; CRC_BYTES];
        ENDS_INSIDE.unless(read_some(&mut self.input, &mut stored)? == CRC_BYTES)?;
        self.position += self.left;
        self.left = 0;
        Ok(stored)
    }

    /// Fills `into` with the next bytes of the current member's payload, which has as many.
    ///
    /// # Errors
    /// As [`read_payload`](Self::read_payload).
    pub(super) fn fill(&mut self, mut into: &mut [u8]) -> Result<(), BadReason> {
        if self.payload_left == 0 && self.left > 0 {
            self.pass(&[])?; // verify the checksum of an empty record
        }
        while !into.is_empty() {
            let read = self.read_payload(into)?;
            into = &mut into[read..];
        }
        Ok(())
    }

    /// The whole payload of the current member without a copy, if `lend` lends its bytes; `None`: the payload must be
    /// read instead. Nothing of the payload may have been read before.
    pub(crate) fn lend_payload<T: Deref<Target = [u8]>>(
        &mut self,
        lend: impl FnOnce(&mut I, usize) -> Option<T>,
    ) -> Option<Result<T, BadReason>> {
        let len = usize::try_from(self.payload_left).ok()?;
        let payload = lend(&mut self.input, len)?;
        Some(self.pass(&payload).map(|()| payload))
    }

    /// The next record of a TFRecord shard, as a member.
    fn record(&mut self) -> Result<Option<Member>, BadReason> {
        self.header_at = self.position;
        let Some(len_bytes) = next_len(&mut self.input)? else { return Ok(None) };
        let offset = self.position + HEADER_BYTES as u64;
        let left = len_bytes.checked_add(CRC_BYTES as u64);
        let end = left.and_then(|left| offset.checked_add(left)).ok_or(ENDS_INSIDE)?;
        ENDS_INSIDE.unless(self.input.end().is_none_or(|all| end <= all))?;
        self.position = offset;
        (self.left, self.payload_left) = (end - offset, len_bytes);
        let number = self.next_record();
        self.records = Some(Records { next: number + 1, crc: 0 });
        let name = number.to_string().into_bytes();
        Ok(Some(Member { name, kind: MemberKind::File, len_bytes, offset }))
    }

    /// After an end mark: reads the header of the next archive into `block`; `false`: there is no other archive.
    fn begin_next_archive(&mut self, block: &mut [u8; BLOCK_BYTES]) -> Result<bool, BadReason> {
        loop {
            self.header_at = self.position;
            *block = [0; BLOCK_BYTES];
            let len = self.read_block(block)?;
            if !is_zero(block) {
                break;
            }
            if len < BLOCK_BYTES {
                return Ok(false);
            }
        }
        // Requires the magic: leftover buffer contents after the mark may resemble a v7 header.
        BadReason::Syntax("what follows the end mark is not an archive")
            .unless(block[257..262] == *b"ustar" && check_sum(block).is_ok())?;
        let from = self.header_at;
        self.appended.get_or_insert(Appended { archives: 0, from }).archives += 1;
        Ok(true)
    }

    /// Makes the member with this header the current one.
    fn member(&mut self, header: Header, extended: Extended) -> Result<Member, BadReason> {
        let len_bytes = extended.len_bytes.unwrap_or(header.len_bytes);
        let name = extended.sparse_name.or(extended.name).unwrap_or(header.name);
        let link = extended.link.unwrap_or(header.link);
        let is_folder = name.ends_with(b"/");
        let (kind, has_payload) = match header.kind {
            b'S' => (MemberKind::Refused(SPARSE), true),
            0 | b'0' | b'7' if extended.sparse => (MemberKind::Refused(SPARSE), true),
            // All tools agree on the location of the next header, so only this member is refused.
            b'M' => (MemberKind::Refused("began in another volume"), true),
            b'D' => (MemberKind::Refused(DUMP), true),
            b'V' => (MemberKind::Refused(LABEL), true),
            b'1' => (MemberKind::HardLink(link), false),
            b'2' => (MemberKind::SymLink(link), false),
            b'3' => (MemberKind::Special("character device"), false),
            b'4' => (MemberKind::Special("block device"), false),
            b'5' => (MemberKind::Folder, false),
            b'6' => (MemberKind::Special("FIFO"), false),
            0 if is_folder => (MemberKind::Folder, false),
            b'0' if is_folder => {
                return Err(BadReason::Syntax("a file whose name ends like a folder's"));
            }
            _ => (MemberKind::File, true),
        };
        // Some tools skip the stated bytes and some do not; for hard links all agree.
        BadReason::Syntax("a length where there can be no payload")
            .unless(has_payload || len_bytes == 0 || header.kind == b'1')?;
        // If the archive ends within the map of a sparse member, return the member, so that its name is known; the next
        // read reports the end.
        let is_there = has_payload && self.pass_over_map(header.goes_on)?;
        let len_bytes = if is_there { len_bytes } else { 0 };
        let offset = self.position;
        self.enter(len_bytes)?;
        let fits = |len| offset.saturating_add(len_bytes) <= len;
        BadReason::Truncated("inside a member").unless(self.input.end().is_none_or(fits))?;
        Ok(Member { name, kind, len_bytes, offset })
    }

    /// Makes the next `len_bytes` bytes the current member.
    fn enter(&mut self, len_bytes: u64) -> Result<(), BadReason> {
        let padded = len_bytes.checked_next_multiple_of(BLOCK_BYTES as u64);
        let padded = padded.filter(|padded| self.position.checked_add(*padded).is_some());
        self.left = padded.ok_or(BadReason::Syntax("a length past all limits"))?;
        self.payload_left = len_bytes;
        Ok(())
    }

    /// Skips the rest of the current member.
    fn pass_over_member(&mut self) -> Result<(), BadReason> {
        if self.left > 0 && self.records.is_some() {
            self.input.skip(self.payload_left)?;
            self.checksum()?; // read it, to find out if the shard ends within the record
        } else if self.left > 0 {
            self.input.skip(self.left)?;
            self.position += self.left;
        }
        self.leave_member();
        Ok(())
    }

    /// Skips the map of a sparse file in GNU's old form, whose blocks the member's length does not include. `false`:
    /// the archive ends within the map.
    fn pass_over_map(&mut self, mut goes_on: bool) -> Result<bool, BadReason> {
        while goes_on {
            let mut block = [0; BLOCK_BYTES];
            if self.read_block(&mut block)? < BLOCK_BYTES {
                return Ok(false);
            }
            goes_on = block[504] != 0;
        }
        Ok(true)
    }

    /// Reads one block, or the rest of the input; returns the number of bytes.
    fn read_block(&mut self, block: &mut [u8; BLOCK_BYTES]) -> Result<usize, BadReason> {
        let filled = read_some(&mut self.input, block)?;
        self.position += filled as u64;
        Ok(filled)
    }

    /// Reads the payload of an extended header.
    fn read_extended(&mut self, len_bytes: u64) -> Result<Vec<u8>, BadReason> {
        BadReason::Syntax("an extended header of more than 1 MiB")
            .unless(len_bytes <= MAX_EXTENDED_BYTES)?;
        self.enter(len_bytes)?;
        self.payload_left = self.left;
        let mut bytes = vec![0; self.left as usize]; // at most 1 MiB and a block
        self.fill(&mut bytes)?;
        // Some tools stop at the stated length, others at the first NUL in the padding.
        BadReason::Syntax("an extended header that goes on behind its end")
            .unless(is_zero(&bytes[len_bytes as usize..]))?;
        bytes.truncate(len_bytes as usize);
        Ok(bytes)
    }

    /// Reads the name or link target in a GNU extended header.
    fn read_long(&mut self, len_bytes: u64) -> Result<Vec<u8>, BadReason> {
        Ok(until_nul(&self.read_extended(len_bytes)?).to_vec())
    }
}

impl Extended {
    fn is_empty(&self) -> bool {
        self.name.is_none() && self.link.is_none() && self.len_bytes.is_none() && !self.sparse
    }

    /// Reads the records of a PAX header.
    fn read_pax(&mut self, mut records: &[u8]) -> Result<(), BadReason> {
        // NUL padding also ends the records: some writers use it.
        while records.first().is_some_and(|&byte| byte != 0) {
            let (key, value, rest) = pax_record(records).ok_or(BROKEN_PAX)?;
            records = rest;
            match key {
                b"path" => once(&mut self.name, value.to_vec(), TWO_NAMES)?,
                b"linkpath" => once(&mut self.link, value.to_vec(), TWO_LINKS)?,
                b"size" => {
                    let len = decimal(value).ok_or(BROKEN_PAX)?;
                    once(&mut self.len_bytes, len, "two lengths for one member")?;
                }
                b"GNU.sparse.name" => {
                    self.sparse = true;
                    self.sparse_name = Some(value.to_vec());
                }
                key => self.sparse |= key.starts_with(b"GNU.sparse."),
            }
        }
        Ok(())
    }
}

/// Sets a property that a member may have only once.
fn once<T>(slot: &mut Option<T>, value: T, twice: &'static str) -> Result<(), BadReason> {
    slot.replace(value).map_or(Ok(()), |_| Err(BadReason::Syntax(twice)))
}

/// Normalises a member's or list's name as a sample name: relative, without `.` and repeated slashes.
///
/// # Errors
/// `Name`: it is empty, too long, or contains NUL or `..`.
pub(crate) fn clean_name(name: &[u8]) -> Result<Vec<u8>, BadReason> {
    BadReason::Name("holds a NUL").unless(!name.contains(&0))?;
    let mut clean = Vec::with_capacity(name.len());
    for part in name.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(BadReason::Name("holds `..`")),
            part => push(&mut clean, part),
        }
    }
    match clean.len() {
        0 => Err(BadReason::Name("is empty")),
        1..=MAX_NAME_BYTES => Ok(clean),
        _ => Err(TOO_LONG_A_NAME),
    }
}

/// Maximum length of an extended header: it is read into memory.
const MAX_EXTENDED_BYTES: u64 = 1 << 20;
/// Reasons for refusing a member, or the rest of an archive.
const SPARSE: &str = "is a sparse file, which is not expanded: pack it again without --sparse";
const DUMP: &str = "is a folder's dump, which some tools take for a file";
const LABEL: &str = "is a volume's label, which some tools take for a file";
const TWO_NAMES: &str = "two long names for one member";
const TWO_LINKS: &str = "two long link names for one member";
const BROKEN_PAX: BadReason = BadReason::Syntax("an extended header's records are broken");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_relative_and_may_not_climb() {
        assert_eq!(clean_name(b"./a//b/./c").unwrap(), b"a/b/c");
        assert_eq!(clean_name(b"/etc/passwd").unwrap(), b"etc/passwd");
        for bad in [&b"a/../b"[..], b"..", b"", b"./", b"a\0b", &[b'x'; 4097]] {
            assert!(matches!(clean_name(bad), Err(BadReason::Name(_))), "{bad:?}");
        }
    }
}
