//! Takes over the chunks that an interrupted import of a stream has written, up to a point of its checkpoint.
//!
//! The chunks must be where an import from the beginning would have put them, with the same heads, and every
//! sample must match its checksum. `points.rs` has checked that the objects are unchanged. So the chunks are
//! the same as an import would write again.

use std::collections::HashSet;

use xxhash_rust::xxh3::xxh3_128;

use crate::import::chunk_stream::{ChunkStream, NewRecord};
use crate::import::chunks::{is_head_of, ordinary_is_sound, oversize_is_sound};
use crate::import::options::{Progress, stopped};
use dlfs_base::Result;
use dlfs_base::buf::IoBuf;
use dlfs_format::format::builder::ChunkLocation;
use dlfs_format::format::chunk::SampleEntry;
use dlfs_format::format::{ChunkHead, ChunkHeader, ChunkSpec, FieldTypes, SampleMeta};

/// The state taken over from the chunks on the media, up to the point.
#[derive(Debug, Default)]
pub(super) struct Restored {
    /// Fingerprints of the names of the samples.
    pub(super) names: HashSet<u128>,
    /// Names of the fields.
    pub(super) fields: Vec<Vec<u8>>,
    /// Types of the fields.
    pub(super) field_types: FieldTypes,
    /// Names of the classes that the samples use. They come from the point.
    pub(super) classes: Vec<Vec<u8>>,
    /// Bytes of the samples.
    pub(super) sample_bytes: u64,
}

impl ChunkStream<'_> {
    /// Takes over the first `samples` samples of the part, before anything else is written. Passes their names
    /// to `seen`, in order. `None`: some samples are missing or differ; then this stream is useless.
    ///
    /// # Errors
    /// Errors of reading and writing.
    pub(super) fn restore(
        &mut self,
        samples: u64,
        seen: &mut dyn FnMut(&[u8]),
        progress: &mut dyn Progress,
    ) -> Result<Option<Restored>> {
        let end = self.next_slot().0.saturating_add(samples);
        let mut restored = Restored::default();
        let mut first: Option<ChunkSpec> = None;
        while self.next_slot().0 < end {
            if progress.stop() {
                return Err(stopped());
            }
            let Some((header, bytes)) = self.read_next_chunk()? else { return Ok(None) };
            let own = ChunkSpec {
                fields: header.fields().map(<[u8]>::to_vec).collect(),
                field_types: header.field_types().clone(),
                columns: header.columns().cloned().collect(),
                ..self.spec.clone()
            };
            // All chunks of an import have the same fields and columns.
            if first.get_or_insert_with(|| own.clone()) != &own {
                return Ok(None);
            }
            self.set_fields(&own.fields, own.field_types);
            self.set_columns(own.columns);
            for sample in header.samples().take_while(|sample| sample.slot.0 < end) {
                restored.names.insert(xxh3_128(sample.name));
                seen(sample.name);
                restored.sample_bytes += u64::from(sample.len_bytes);
            }
            if header.head().end_slot().0 <= end {
                if !self.take_over(&header)? {
                    return Ok(None);
                }
                continue;
            }
            // The point is inside this chunk. The chunk is built again, from its samples before the point and
            // new ones.
            for sample in header.samples().take_while(|sample| sample.slot.0 < end) {
                let start = sample.offset_bytes as usize;
                let Some(record) = bytes.get(start..start + sample.len_bytes as usize) else {
                    return Ok(None);
                };
                let SampleEntry { id, name, label, values, .. } = sample;
                let meta = SampleMeta { id, name, label, values };
                let record = NewRecord { len: sample.len_bytes, give: &mut |take| take(record) };
                self.push(&meta, record)?;
            }
        }
        if let Some(first) = first {
            (restored.fields, restored.field_types) = (first.fields, first.field_types);
        }
        Ok(Some(restored))
    }

    /// Reads the chunk at the location of the next chunk to write, and checks that it is the expected one. Also
    /// returns its bytes; for an oversize chunk, only its header.
    fn read_next_chunk(&mut self) -> Result<Option<(ChunkHeader, IoBuf)>> {
        let layout = self.state.journal.layout;
        let slot = self.next_slot();
        let Some(place) = self.space.clone().allocate(self.sequence, 1) else { return Ok(None) };
        let namespace = place.namespace;
        let start = layout.offset_of(place.cell)?;
        let len = self.state.media.namespace(namespace).len_bytes();
        let is_within = |bytes: u64| start.saturating_add(bytes) <= len;
        if !is_within(HEAD_BLOCK_BYTES) {
            return Ok(None);
        }
        let channel = self.writes.channel();
        let block = channel.read(namespace, start, HEAD_BLOCK_BYTES as usize)?;
        let Ok(head) = ChunkHead::parse(&block) else { return Ok(None) };
        let location = ChunkLocation {
            sequence: self.sequence,
            time_ns: self.state.journal.time_ns,
            namespace,
            cell: place.cell,
        };
        if !is_head_of(&head, &self.spec, &location, slot) || !is_within(head.len_bytes()) {
            return Ok(None);
        }
        let is_oversize = head.len_bytes() > u64::from(layout.chunk_size_bytes);
        let read = if is_oversize { head.data_start() } else { head.len_bytes() };
        let bytes = channel.read(namespace, start, read as usize)?;
        let Ok(header) = ChunkHeader::parse(&bytes) else { return Ok(None) };
        let is_sound = if is_oversize {
            oversize_is_sound(channel, &header, namespace, start)?
        } else {
            ordinary_is_sound(&header, &bytes)
        };
        let is_whole =
            header.samples().all(|sample| !sample.purged && sample.id.0 == sample.slot.0);
        Ok((is_sound && is_whole).then_some((header, bytes)))
    }

    /// Counts a chunk that is on the media. Returns false if the chunk would be written elsewhere.
    fn take_over(&mut self, header: &ChunkHeader) -> Result<bool> {
        let range = header.head().cell_range();
        let location = self.next_location(range.cells)?;
        if (location.namespace, location.cell) != (range.namespace, range.cell) {
            return Ok(false);
        }
        self.collect(header)?;
        self.found += 1;
        Ok(true)
    }
}

/// Enough for the head of a chunk.
const HEAD_BLOCK_BYTES: u64 = 4096;
