//! Copies shards into an image while they are read, so that later epochs and runs read the image instead.
//!
//! A [`CopyingReader`] reads each shard: from its source, and then a [`FillingShard`] writes the copy; or, if an
//! earlier run has written it, from the incomplete image ([`FilledShard`]). The layout of an incomplete image is in
//! `dlfs_import::import::many::filling`.

use std::sync::Arc;
use std::vec;

use dlfs_base::buf::IoBuf;
use dlfs_base::checksum::crc32c;
use dlfs_base::error::invalid;
use dlfs_base::units::{Generation, SampleId};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::builder::Fill;
use dlfs_format::format::columns::{ColumnSpec, ColumnTable, OwnedValue, Value};
use dlfs_format::format::geometry::{CELL_BYTES, MAX_NAME_BYTES};
use dlfs_format::format::pieces::num_pieces;
use dlfs_format::format::{ChunkSpec, Fit, Part, RecordSums, SampleMeta};
use dlfs_import::import::many::filling::{FilledChunk, Filling, commit};
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;

use crate::assemble::assemble;
use crate::index::{ShardIndex, ShardSample};
use crate::reader::ShardReader;
use crate::set::ShardSet;

/// The right of a rank to write shards into an image. Threads share it.
pub struct ShardFilling {
    set: Arc<ShardSet>,
    image: Vec<Address>,
    connect: ConnectOptions,
    /// Writes the rank's namespace.
    filling: Filling,
    world_size: u32,
}

/// Reads a shard from the image, if an earlier run wrote it there, or from its source, and then copies it to the image.
pub enum CopyingReader<'a> {
    /// From the source; with the copy, if an image is being filled.
    Shard(Box<ShardReader<'a>>, Option<FillingShard<'a>>),
    /// From the image that an earlier run began to fill.
    Image(FilledShard<'a>),
}

/// A shard that is being written to the image. Dropping it before it is finished leaves it out of the image.
pub struct FillingShard<'a> {
    image: &'a ShardFilling,
    spec: ChunkSpec,
    /// A table of one row: the typed values of the sample that is being added.
    row: ColumnTable,
    /// Computes the length of the header of the open chunk.
    fill: Fill,
    open: OpenChunk,
}

/// The chunk that takes samples; it is empty until the first sample of a shard or chunk is added.
struct OpenChunk {
    chunk: FilledChunk,
    /// Length of the header, for which room is left in front of the records.
    header_bytes: u64,
    /// Buffer for the records: the first `len` bytes are used.
    data: IoBuf,
    len: usize,
}

/// A shard that an earlier run has written, read from the image.
pub struct FilledShard<'a> {
    image: &'a ShardFilling,
    index: ShardIndex,
    /// The typed columns of the index.
    columns: Vec<ColumnSpec>,
    /// The chunks after the current one.
    chunks: vec::IntoIter<FilledChunk>,
    /// The records of the current chunk.
    data: IoBuf,
    /// Offset in `data` of the next record.
    at: usize,
    /// Number of samples left in the current chunk.
    left: u32,
    /// Number of the next sample in the shard.
    next: usize,
}

/// Parses the addresses of an image to fill, separated by commas, each with or without `file:` in front.
///
/// # Errors
/// `InvalidArgument`: one is no address.
pub fn image_to_fill(text: &str) -> Result<Vec<Address>> {
    let each = text.split(',').map(|one| one.strip_prefix("file:").unwrap_or(one));
    Ok(Address::parse_list(&each.collect::<Vec<_>>().join(","))?)
}

impl ShardFilling {
    /// Begins or continues to fill `image` as `rank` of `world_size`. `None`: the image is complete.
    ///
    /// # Errors
    /// `InvalidArgument`: there are fewer namespaces than ranks, and they are no files. Errors of [`Filling::begin`].
    pub fn begin(
        set: &Arc<ShardSet>,
        image: &[Address],
        (rank, world_size): (u32, u32),
        connect: &ConnectOptions,
    ) -> Result<Option<ShardFilling>> {
        let count = image.len();
        let is_shared = count < world_size as usize;
        // Ranks that share a namespace write it in turns, which need file locks.
        let can_share = image.iter().all(|address| matches!(address, Address::Path(_)));
        if is_shared && !can_share && !Filling::is_complete(image, source_of(set), connect)? {
            let text = format!("{world_size} ranks cannot write an image of {count} namespaces");
            let hint = "name a namespace for each rank, or a file, which ranks of a node may share";
            return Err(invalid(text).hint(hint));
        }
        let begun = Filling::begin(image, source_of(set), rank, connect)?;
        let begun = begun.map(|filling| if is_shared { filling.in_turns() } else { filling });
        Ok(begun.map(|filling| ShardFilling {
            set: Arc::clone(set),
            image: image.to_vec(),
            connect: connect.clone(),
            filling,
            world_size,
        }))
    }

    /// Begins to write the shard with this number.
    fn shard(&self, shard: usize) -> Result<FillingShard<'_>> {
        let spec = ChunkSpec {
            layout: self.filling.layout(),
            generation: Generation(1),
            part: Part { first: 0, count: 0, seed: 0, window: 0 },
            fields: self.set.fields()?.to_vec(),
            field_types: self.set.field_types()?.clone(),
            columns: Vec::new(),
        };
        let chunk = self.filling.begin_shard(shard as u64);
        let open = OpenChunk { chunk, header_bytes: 0, data: IoBuf::empty(), len: 0 };
        let fill = spec.empty()?;
        Ok(FillingShard { image: self, spec, row: ColumnTable::default(), fill, open })
    }

    /// A shard that was in the image before this filling began; `None`: it must be read from its source.
    ///
    /// # Errors
    /// Errors of reading the shard's index.
    pub fn filled(&self, shard: usize) -> Result<Option<FilledShard<'_>>> {
        let filled = self.filling.filled();
        if !filled.has(shard as u64) {
            return Ok(None);
        }
        let Some(index) = self.set.kept_index(shard)? else { return Ok(None) };
        let chunks = filled.shard(shard as u64, index.len() as u64);
        Ok(chunks.map(|chunks| FilledShard {
            image: self,
            columns: index.columns(),
            index,
            chunks: chunks.into_iter(),
            data: IoBuf::empty(),
            at: 0,
            left: 0,
            next: 0,
        }))
    }

    /// Makes all written shards durable; then commits the image, if all shards have an index and are in the image.
    ///
    /// # Errors
    /// Errors of writing; as [`commit`]. `NotFound`: a shard has no index, or is not in the image; if ranks share a
    /// file, this is `Busy`.
    pub fn commit(&self) -> Result<()> {
        self.filling.end()?;
        let set = &self.set;
        let there = |(shard, index): (usize, Option<ShardIndex>)| {
            let none = || Error::new(ErrorKind::NotFound, "the shard has no index yet");
            index.ok_or_else(|| none().path(&set.shards()[shard].path))
        };
        let ranks = self.world_size;
        let done = commit(&self.image, source_of(set), ranks, &self.connect, || {
            let indexes = set.kept_indexes()?.into_iter().enumerate().map(there);
            let indexes = indexes.collect::<Result<Vec<_>>>()?;
            let counts = indexes.iter().map(|index| index.len() as u64).collect();
            Ok((assemble(set, indexes)?.directory, counts))
        });
        // Between writes, a rank does not lock a shared file: an absent shard means that another rank still reads it.
        let is_shared = self.image.len() < ranks as usize;
        done.map_err(|error| {
            if is_shared && error.kind() == ErrorKind::NotFound {
                Error::new(ErrorKind::Busy, "other ranks still read").source(error)
            } else {
                error
            }
        })
    }
}

/// The identity of the shards in the image's journal: the lower half of a hash, which is a hash, too.
fn source_of(set: &ShardSet) -> u64 {
    set.identity() as u64
}

impl<'a> CopyingReader<'a> {
    /// A reader of a shard of `set`. With `filling`, the shard is read from its image, or copied to the image.
    ///
    /// # Errors
    /// As [`ShardSet::reader`]; errors of reading the image.
    pub fn open(
        set: &'a ShardSet,
        filling: Option<&'a ShardFilling>,
        shard: usize,
    ) -> Result<CopyingReader<'a>> {
        if let Some(filled) = filling.map_or(Ok(None), |filling| filling.filled(shard))? {
            return Ok(CopyingReader::Image(filled));
        }
        let copy = filling.map(|filling| filling.shard(shard)).transpose()?;
        Ok(CopyingReader::Shard(Box::new(set.reader(shard)?), copy))
    }

    /// As [`open`](Self::open); then begins to decode, if shards of this kind are decoded ahead.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`next`](Self::next).
    pub fn open_ahead(
        set: &'a ShardSet,
        filling: Option<&'a ShardFilling>,
        shard: usize,
    ) -> Result<CopyingReader<'a>> {
        let mut reader = CopyingReader::open(set, filling, shard)?;
        if let CopyingReader::Shard(reader, _) = &mut reader {
            reader.begin_ahead()?;
        }
        Ok(reader)
    }

    /// Returns whether the whole shard was decoded ahead: its reader requests nothing more.
    pub fn is_decoded(&self) -> bool {
        matches!(self, CopyingReader::Shard(reader, _) if reader.is_decoded())
    }

    /// The next sample; appends its record to `record`. `None` after the last.
    ///
    /// # Errors
    /// As [`ShardReader::next`]; errors of the image.
    pub fn next(&mut self, record: &mut Vec<u8>) -> Result<Option<ShardSample>> {
        let (reader, copy) = match self {
            CopyingReader::Image(filled) => return filled.next(record),
            CopyingReader::Shard(reader, copy) => (reader, copy),
        };
        let start = record.len();
        let read = reader.next(record)?;
        if let (Some(sample), Some(copy)) = (&read, copy) {
            copy.push(sample, &record[start..], || reader.columns())?;
        }
        Ok(read)
    }

    /// The typed columns, known with the first sample.
    pub fn columns(&self) -> Vec<ColumnSpec> {
        match self {
            CopyingReader::Shard(reader, _) => reader.columns(),
            CopyingReader::Image(filled) => filled.columns.clone(),
        }
    }

    /// Ends the shard after its last sample; returns the shard's index, and whether this reader made the index.
    ///
    /// # Errors
    /// As [`ShardReader::finish`]; errors of the image.
    pub fn finish(self) -> Result<(ShardIndex, bool)> {
        let (reader, copy) = match self {
            CopyingReader::Image(filled) => return Ok((filled.index, false)),
            CopyingReader::Shard(reader, copy) => (reader, copy),
        };
        let index = reader.finish()?;
        copy.map_or(Ok(()), FillingShard::finish)?;
        Ok((index, true))
    }
}

impl FillingShard<'_> {
    /// Adds the next sample. `columns` returns the typed columns; only the first sample calls it.
    fn push(
        &mut self,
        sample: &ShardSample,
        record: &[u8],
        columns: impl FnOnce() -> Vec<ColumnSpec>,
    ) -> Result<()> {
        if self.open.chunk.first == 0 && self.open.chunk.count == 0 {
            self.spec.columns = columns();
            self.row = ColumnTable::new(&self.spec.columns);
        }
        self.row.clear();
        let mut values = sample.values.iter();
        self.row.push(|_| values.next().map_or(Value::None, OwnedValue::as_value));
        let name = self.longest_name(&sample.name);
        let meta = SampleMeta {
            id: SampleId(0),
            name: &name,
            // Without a label, the sample may get the number of a class when the image is committed.
            label: sample.label.or(Some(LONGEST_LABEL)),
            values: if self.row.is_empty() { Default::default() } else { self.row.row(0) },
        };
        let len_bytes = sample.len_bytes;
        if self.open.chunk.count > 0 && self.fill.fit(&meta, len_bytes) != Fit::Here {
            self.open.write(&self.image.filling)?;
        }
        if self.open.chunk.count == 0 {
            let most = padded(record.len()).max(self.spec.layout.chunk_size_bytes as usize);
            self.open.data = IoBuf::try_zeroed(most)?;
            self.fill = self.spec.empty()?;
        }
        self.open.header_bytes = self.fill.header_with(&meta, len_bytes);
        self.fill.take(&meta, len_bytes);
        self.open.add(record);
        Ok(())
    }

    /// Ends the shard after its last sample.
    fn finish(mut self) -> Result<()> {
        self.open.write(&self.image.filling)?;
        self.image.filling.end_shard()
    }

    /// A stand-in for the name that the sample gets at the commit. That name gets the shard in front if an earlier
    /// shard has `name`. The encoding of the stand-in is at least as long in any case. Names are front-coded, so the
    /// stand-in shares no prefix with its neighbours.
    fn longest_name(&self, name: &[u8]) -> Vec<u8> {
        let FilledChunk { shard, count, .. } = self.open.chunk;
        let set = &self.image.set;
        if set.shards.is_numbered() {
            return name.to_vec();
        }
        let len = set.shards()[shard as usize].name.len() + 1 + name.len();
        vec![b'a' + (count % 2) as u8; len.min(MAX_NAME_BYTES)]
    }
}

impl OpenChunk {
    /// Appends a record, for which there must be room.
    fn add(&mut self, record: &[u8]) {
        let end = self.len + record.len();
        self.data[self.len..end].copy_from_slice(record); // the image packs tightly
        self.len = end;
        self.chunk.count += 1;
        if num_pieces(record.len() as u32) > 0 {
            self.chunk.pieces.extend(RecordSums::of(record).pieces());
        }
    }

    /// Writes the chunk, if it has samples, and begins the next one.
    fn write(&mut self, filling: &Filling) -> Result<()> {
        if self.chunk.count == 0 {
            return Ok(());
        }
        let mut data = std::mem::take(&mut self.data);
        data.truncate(padded(self.len));
        filling.push(self.chunk.clone(), self.header_bytes, data)?;
        self.chunk.first += u64::from(self.chunk.count);
        self.chunk.count = 0;
        self.chunk.pieces.clear();
        self.len = 0;
        Ok(())
    }
}

impl FilledShard<'_> {
    /// The next sample; appends its record to `record`. `None` after the last.
    fn next(&mut self, record: &mut Vec<u8>) -> Result<Option<ShardSample>> {
        while self.left == 0 {
            let Some(chunk) = self.chunks.next() else { return Ok(None) };
            self.data = self.image.filling.filled().chunk(&chunk)?;
            (self.at, self.left) = (0, chunk.count);
        }
        let index = &self.index;
        let sample = self.next;
        let len_bytes = index.len_bytes(sample);
        let bytes = self.data.get(self.at..self.at + len_bytes as usize);
        let crc = index.crc32c(sample);
        let Some(bytes) = bytes.filter(|bytes| crc32c(bytes) == crc) else {
            let text = "a sample of the incomplete image is damaged";
            let error = Error::new(ErrorKind::Corrupt, text).sample(SampleId(sample as u64));
            return Err(error.hint("remove the image and begin anew"));
        };
        record.extend_from_slice(bytes);
        self.at += bytes.len();
        self.left -= 1;
        self.next += 1;
        let values = self.columns.iter().map(|column| owned(index.values(sample).get(column)));
        let name = index.name(sample);
        let label = index.label(sample);
        let values = values.collect();
        Ok(Some(ShardSample { name, label, len_bytes, crc32c: crc, values }))
    }
}

/// Copies a value of a typed column.
fn owned(value: Value<'_>) -> OwnedValue {
    match value {
        Value::None => OwnedValue::None,
        Value::Int(number) => OwnedValue::Int(number),
        Value::Float(number) => OwnedValue::Float(number),
        Value::Bool(is_true) => OwnedValue::Bool(is_true),
        Value::Text(text) => OwnedValue::Text(text.to_owned()),
    }
}

/// The bytes that a chunk's records of `len` bytes take in an image: whole cells.
fn padded(len: usize) -> usize {
    len.next_multiple_of(CELL_BYTES as usize)
}

/// A label whose encoding is at least as long as that of the number of any class.
const LONGEST_LABEL: i64 = 1 << 32;
