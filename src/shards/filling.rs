//! An image that is filled with shards while they are read: see `dlfs_import::import::many::filling`.

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

use crate::index::{ShardIndex, ShardSample};
use crate::namespace::assemble;
use crate::set::{ShardReader, ShardSet};

/// The right of a rank to write shards into an image. Threads share it.
pub struct ShardFilling {
    set: Arc<ShardSet>,
    image: Vec<Address>,
    connect: ConnectOptions,
    filling: Filling,
    world_size: u32,
}

/// A shard that is read: from the image, if that has it, or from its source, and copied to the image.
pub enum CopyingReader<'a> {
    /// From its source.
    Shard(Box<ShardReader<'a>>, Option<FillingShard<'a>>),
    /// From the image that an earlier run has begun to fill.
    Image(FilledShard<'a>),
}

/// A shard that is being written. Dropping it unfinished leaves it out.
pub struct FillingShard<'a> {
    of: &'a ShardFilling,
    spec: ChunkSpec,
    /// A table of one row, for the typed values of a sample.
    row: ColumnTable,
    fill: Fill,
    open: OpenChunk,
}

/// A chunk that takes samples, and the records of those so far.
struct OpenChunk {
    chunk: FilledChunk,
    header_bytes: u64,
    data: IoBuf,
    len: usize,
}

/// A shard that an earlier run has written, read from the image.
pub struct FilledShard<'a> {
    of: &'a ShardFilling,
    index: ShardIndex,
    columns: Vec<ColumnSpec>,
    chunks: vec::IntoIter<FilledChunk>,
    data: IoBuf,
    /// The end of the sample before, in `data`, and the samples of the chunk that are left.
    at: usize,
    left: u32,
    next: usize,
}

/// Parses an image to fill: addresses separated by commas, each with or without `file:` in front.
///
/// # Errors
/// `InvalidArgument`: one is no address.
pub fn image_to_fill(text: &str) -> Result<Vec<Address>> {
    let each = text.split(',').map(|one| one.strip_prefix("file:").unwrap_or(one));
    Ok(Address::parse_list(&each.collect::<Vec<_>>().join(","))?)
}

impl ShardFilling {
    /// Begins to fill `image` as `rank` of `world_size`, or goes on. `None`: the image is complete.
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
        // Only files are given from rank to rank within moments.
        let can_share = image.iter().all(|address| matches!(address, Address::Path(_)));
        if is_shared && !can_share && !Filling::is_complete(image, source_of(set), connect)? {
            let text = format!("{world_size} ranks cannot write an image of {count} namespaces");
            let hint = "name a namespace for each rank, or a file, which ranks of a node may share";
            return Err(invalid(text).hint(hint));
        }
        let begun = Filling::begin(image, source_of(set), rank, connect)?;
        let begun = begun.map(|own| if is_shared { own.in_turns() } else { own });
        Ok(begun.map(|filling| ShardFilling {
            set: Arc::clone(set),
            image: image.to_vec(),
            connect: connect.clone(),
            filling,
            world_size,
        }))
    }

    /// Begins to write a shard.
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
        Ok(FillingShard { of: self, spec, row: ColumnTable::default(), fill, open })
    }

    /// A shard that was in the image when this began; `None`: it is to be read from its source.
    ///
    /// # Errors
    /// Errors of reading its index.
    pub fn filled(&self, shard: usize) -> Result<Option<FilledShard<'_>>> {
        let filled = self.filling.filled();
        if !filled.has(shard as u64) {
            return Ok(None);
        }
        let Some(index) = self.set.kept_index(shard)? else { return Ok(None) };
        let chunks = filled.shard(shard as u64, index.len() as u64);
        Ok(chunks.map(|chunks| FilledShard {
            of: self,
            columns: index.columns(),
            index,
            chunks: chunks.into_iter(),
            data: IoBuf::empty(),
            at: 0,
            left: 0,
            next: 0,
        }))
    }

    /// Ends writing, and commits the image, once all shards have an index and are in the image.
    ///
    /// # Errors
    /// Errors of writing; as [`commit`]. `NotFound`: a shard has no index. `Busy` instead, if ranks share a file.
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
        // A rank that shares a file does not hold it while it reads.
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

/// The identity of the shards that the image keeps.
fn source_of(set: &ShardSet) -> u64 {
    set.identity() as u64 // its lower half is as good a hash
}

impl<'a> CopyingReader<'a> {
    /// Reads a shard of `set`, and copies it to the image of `filling`.
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

    /// As [`ShardReader::next`].
    ///
    /// # Errors
    /// As there; errors of the image.
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

    /// Ends the shard behind its last sample; returns its index, and whether that is new.
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
    /// Adds the next sample. `columns`: the typed columns, asked for with the first sample.
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
            // A label that is given only at the end is the number of a class.
            label: sample.label.or(Some(MOST_CLASSES)),
            values: if self.row.is_empty() { Default::default() } else { self.row.row(0) },
        };
        let len_bytes = sample.len_bytes;
        if self.open.chunk.count > 0 && self.fill.fit(&meta, len_bytes) != Fit::Here {
            self.open.hand_over(&self.of.filling)?;
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
        self.open.hand_over(&self.of.filling)?;
        self.of.filling.end_shard()
    }

    /// A name as long as the sample's may become, which shares no bytes with its neighbours': another shard may have
    /// the sample's own name.
    fn longest_name(&self, own: &[u8]) -> Vec<u8> {
        let FilledChunk { shard, count, .. } = self.open.chunk;
        if self.of.set.shards.is_numbered() {
            return own.to_vec();
        }
        let len = self.of.set.shards()[shard as usize].name.len() + 1 + own.len();
        vec![b'a' + (count % 2) as u8; len.min(MAX_NAME_BYTES)]
    }
}

impl OpenChunk {
    fn add(&mut self, record: &[u8]) {
        let end = self.len + record.len();
        self.data[self.len..end].copy_from_slice(record); // the image packs tightly
        self.len = end;
        self.chunk.count += 1;
        if num_pieces(record.len() as u32) > 0 {
            self.chunk.pieces.extend(RecordSums::of(record).pieces());
        }
    }

    /// Hands the chunk over, if it has samples, and begins the next one.
    fn hand_over(&mut self, filling: &Filling) -> Result<()> {
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
            self.data = self.of.filling.filled().chunk(&chunk)?;
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

fn owned(value: Value<'_>) -> OwnedValue {
    match value {
        Value::None => OwnedValue::None,
        Value::Int(number) => OwnedValue::Int(number),
        Value::Float(number) => OwnedValue::Float(number),
        Value::Bool(is_true) => OwnedValue::Bool(is_true),
        Value::Text(text) => OwnedValue::Text(text.to_owned()),
    }
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(CELL_BYTES as usize)
}

/// More classes than there are samples in a shard, whose number takes 5 bytes.
const MOST_CLASSES: i64 = 1 << 32;
