//! Adds the checksums of the pieces of large samples to the chunks of an image that lack them.
//!
//! They become the last column of the chunk's table, where the header's padding has room for it: nothing else
//! of the image changes, and its generation stays. A power loss leaves a valid header at every moment. The
//! column is written first, behind the end of the table that the old head names, and made durable. Then the new
//! head is: it differs from the old one only within the first 512 bytes, which a medium writes atomically.

use std::sync::Arc;

use crate::import::device::{Meaning, open_image};
use crate::import::edit::{Edit, writable};
use crate::import::media::Channel;
use crate::import::options::{EditOptions, Progress, Stage};
use crate::import::retry::with_retry;
use crate::import::write_behind::PIECE_BYTES;
use dlfs_base::buf::IoBuf;
use dlfs_base::units::{ALIGN_BYTES, Generation};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::{ChunkInfo, Directory};
use dlfs_format::format::chunk::HEAD_BYTES;
use dlfs_format::format::pieces::num_pieces;
use dlfs_format::format::{ChunkHeader, RecordSums, Uuid};
use dlfs_io::address::Address;
use dlfs_io::qpair::{ConnectOptions, Device};

/// The report of [`add_pieces`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PiecesReport {
    /// The image.
    pub uuid: Uuid,
    /// Its generation, which stays.
    pub generation: Generation,
    /// Large samples whose chunks got the checksums of their pieces now.
    pub added: u64,
    /// Those whose chunks had them already.
    pub had: u64,
    /// Those whose chunks have no room for them in their headers.
    pub no_room: u64,
    /// Those that are damaged, or whose chunk's header is. `dlfs verify` lists the damage.
    pub damaged: u64,
}

/// Adds the checksums of the pieces of samples of more than 1 MiB to the chunks of `image` that lack them, in
/// place. Reads these samples whole.
///
/// # Errors
/// `Interrupted`: `progress` asked to stop; what was added stays. `Busy`: an import is running. Those of reading and
/// writing.
pub fn add_pieces(
    image: &[Address],
    options: &EditOptions,
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<PiecesReport> {
    let devices = open_image(image, &writable(connect), Meaning::AllOfImage)?;
    add_pieces_with(&devices, options, progress)
}

/// As [`add_pieces`] with the default options, on namespaces that are open.
///
/// # Errors
/// As [`add_pieces`].
pub fn add_pieces_on(
    devices: &[Arc<dyn Device>],
    progress: &mut dyn Progress,
) -> Result<PiecesReport> {
    add_pieces_with(devices, &EditOptions::default(), progress)
}

fn add_pieces_with(
    devices: &[Arc<dyn Device>],
    options: &EditOptions,
    progress: &mut dyn Progress,
) -> Result<PiecesReport> {
    let edit = Edit::begin(devices, options)?;
    let directory = &edit.current.directory;
    let mut report = PiecesReport {
        uuid: directory.uuid(),
        generation: directory.generation(),
        added: 0,
        had: 0,
        no_room: 0,
        damaged: 0,
    };
    let mut todo = Vec::new();
    let mut samples = 0u64;
    let mut bytes = 0u64;
    for chunk in 0..directory.num_chunks() {
        let lens = directory.samples_in_chunk(chunk).map(|(_, extent)| extent.len_bytes);
        let mut large = 0u64;
        let mut large_bytes = 0u64;
        for len in lens.filter(is_large) {
            large += 1;
            large_bytes += u64::from(len);
        }
        if large > 0 {
            samples += large;
            bytes += large_bytes;
            todo.push((chunk, large, large_bytes));
        }
    }
    progress.stage(Stage::Writing, samples, bytes);
    let budget = edit.media.retry_budget();
    for batch in todo.chunks(CHUNKS_AT_ONCE) {
        let mut updates = Vec::new();
        for &(chunk, large, large_bytes) in batch {
            if progress.stop() {
                let text = "adding checksums was stopped; what was added stays";
                return Err(Error::new(ErrorKind::Interrupted, text));
            }
            let info = directory.chunk(chunk);
            let found = with_retry(budget, || plan(&mut edit.media.channel(), directory, &info))?;
            match found {
                Plan::Has => report.had += large,
                Plan::NoRoom => report.no_room += large,
                Plan::Damaged(error) => {
                    tracing::warn!("chunk {chunk} stays without checksums of pieces: {error}");
                    report.damaged += large;
                }
                Plan::Update(update) => {
                    updates.push(*update);
                    report.added += large;
                }
            }
            progress.advance(large, large_bytes);
        }
        let written = with_retry(budget, || write(&edit, &updates));
        edit.lease.explain(written)?;
    }
    Ok(report)
}

fn is_large(len: &u32) -> bool {
    num_pieces(*len) > 0
}

/// The action that a chunk needs.
enum Plan {
    Has,
    NoRoom,
    Damaged(Error),
    Update(Box<Update>),
}

/// A header to replace.
struct Update {
    namespace: u16,
    offset: u64,
    /// With the old head and the new table behind it.
    table_first: Vec<u8>,
    /// The first block, with the new head.
    head: Vec<u8>,
}

/// Reads a chunk's header and its large samples.
fn plan(channel: &mut Channel, directory: &Directory, info: &ChunkInfo) -> Result<Plan> {
    let old = channel.read(info.namespace, info.offset_bytes, info.header_bytes as usize)?;
    let cell = info.offset_bytes / directory.layout().cell_bytes();
    let header = ChunkHeader::parse(&old).and_then(|header| {
        header.head().check_location(directory.layout(), info.namespace, cell)?;
        Ok(header)
    });
    let header = match header {
        Ok(header) => header,
        Err(error) => return Ok(Plan::Damaged(error.into())),
    };
    let mut sums = Vec::new();
    for sample in header.samples().filter(|sample| is_large(&sample.len_bytes)) {
        if !sample.pieces.is_empty() {
            return Ok(Plan::Has);
        }
        let mut found = RecordSums::default();
        let mut at = 0;
        let end = u64::from(sample.len_bytes);
        while at < end {
            let len = (end - at).min(PIECE_BYTES as u64);
            let from = info.offset_bytes + sample.offset_bytes + at;
            // The record may begin within a block.
            let skip = from % ALIGN_BYTES as u64;
            let bytes = channel.read(info.namespace, from - skip, (skip + len) as usize)?;
            found.push(&bytes[skip as usize..(skip + len) as usize]);
            at += len;
        }
        let expected = directory.extent(sample.id).map_or(sample.crc32c, |extent| extent.crc32c);
        if found.crc32c() != expected {
            let text = "the checksum of a sample is wrong";
            return Ok(Plan::Damaged(Error::new(ErrorKind::Corrupt, text).sample(sample.id)));
        }
        sums.extend(found.pieces());
    }
    let Some(new) = header.with_pieces(sums) else { return Ok(Plan::NoRoom) };
    let mut table_first = vec![0; old.len()];
    new.encode_into(&mut table_first);
    let head = table_first[..ALIGN_BYTES].to_vec();
    table_first[..HEAD_BYTES].copy_from_slice(&old[..HEAD_BYTES]);
    let namespace = info.namespace;
    let offset = info.offset_bytes;
    Ok(Plan::Update(Box::new(Update { namespace, offset, table_first, head })))
}

/// Writes the tables, makes them durable, and then does the same with the heads.
fn write(edit: &Edit, updates: &[Update]) -> Result<()> {
    let mut channel = edit.media.channel();
    let mut namespaces: Vec<u16> = updates.iter().map(|update| update.namespace).collect();
    namespaces.sort_unstable();
    namespaces.dedup();
    for part in [Update::table, Update::front] {
        for update in updates {
            edit.lease.check()?;
            let bytes = part(update);
            let mut buf = IoBuf::zeroed(bytes.len());
            buf.copy_from_slice(bytes);
            channel.write(update.namespace, update.offset, buf)?;
        }
        for &namespace in &namespaces {
            channel.flush(namespace)?;
        }
    }
    Ok(())
}

impl Update {
    fn table(&self) -> &[u8] {
        &self.table_first
    }

    fn front(&self) -> &[u8] {
        &self.head
    }
}

/// Chunks whose headers are written together, between two flushes.
const CHUNKS_AT_ONCE: usize = 64;
