//! Chunks under construction: which samples fit into a chunk, its bytes, and its length without its bytes.
//!
//! [`Fill`] decides from names and lengths which samples fit, before any byte of a sample is read. [`ChunkBuilder`]
//! packs the bytes. [`ChunkDraft`] computes the length that the packed chunk would have. All three follow the same
//! rules, so one thread can plan a chunk and another can build it.

use crate::format::chunk::{ChunkHead, ChunkId, ChunkKind, HEAD_BYTES, padded};
use crate::format::columns::{ColumnSpec, check_columns};
use crate::format::error::{at_most, equal};
use crate::format::field_type::FieldTypes;
use crate::format::geometry::{CELL_BYTES, ImageLayout, MAX_CHUNK_SAMPLES, Part};
use crate::format::pieces::{RecordSums, num_pieces};
use crate::format::table::{Bound, Table, check_name, kind};
use crate::format::{ChunkHeader, FormatError, Pack, SampleMeta};
use dlfs_base::buf::IoBuf;
use dlfs_base::checksum::crc32c;
use dlfs_base::units::{Generation, SampleId, Slot};

/// The parameters that all chunks of one part share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkSpec {
    /// Layout of the image.
    pub layout: ImageLayout,
    /// The generation being written.
    pub generation: Generation,
    /// The part. Its count is 0 while a stream is imported; its window is then 0 or 1.
    pub part: Part,
    /// Names of the fields, in their order in a record; empty if samples have one field without a name.
    pub fields: Vec<Vec<u8>>,
    /// The types of the fields.
    pub field_types: FieldTypes,
    /// The typed columns of the image, in their order.
    pub columns: Vec<ColumnSpec>,
}

/// A chunk whose bytes are complete.
#[derive(Debug)]
pub struct FinishedChunk {
    /// Header of the chunk, for [`crate::directory::DirectoryBuilder::add_chunk`].
    pub header: ChunkHeader,
    /// The builder's buffer, to be reused with [`ChunkBuilder::new`], or split.
    pub buf: IoBuf,
    /// The range of `buf` that holds the chunk. Start and end are multiples of 4,096.
    pub range: std::ops::Range<usize>,
}

impl ChunkSpec {
    /// The fill level of an empty chunk.
    ///
    /// # Errors
    /// The errors of [`ChunkBuilder::new`].
    pub fn empty(&self) -> Result<Fill, FormatError> {
        Ok(self.fill(&self.begin()?.0))
    }

    /// The encoded names of the fields, and the table of a chunk without samples.
    ///
    /// # Errors
    /// The errors of [`ChunkBuilder::new`].
    fn begin(&self) -> Result<(Vec<u8>, Table), FormatError> {
        let fields = encode_fields(self)?;
        check_columns(&self.columns)?;
        Ok((fields, Table::new(&self.columns, &self.field_types)))
    }

    /// The fill level of an empty chunk; `fields` are the encoded names of the fields.
    fn fill(&self, fields: &[u8]) -> Fill {
        Fill::new(self.layout, self.fields_len(fields), &self.columns)
    }

    /// Bytes of the fields in a table: the encoded `names`, and the types.
    fn fields_len(&self, names: &[u8]) -> usize {
        names.len() + self.field_types.column_len(kind::FIELD_TYPES)
    }

    /// Appends the encoded `table` of a chunk to `out`, which has the names of the fields.
    fn encode(&self, table: &Table, out: &mut Vec<u8>) {
        let max_len = self.layout.max_header_bytes() as usize - HEAD_BYTES;
        table.encode(&self.part, max_len, out);
    }

    /// The header of a chunk of `num_samples` samples with `data_len` bytes of data; `table` is its encoded table.
    fn header(
        &self,
        first_slot: Slot,
        num_samples: u16,
        location: ChunkLocation,
        data_len: u64,
        table: Vec<u8>,
    ) -> ChunkHeader {
        let head = ChunkHead {
            layout: self.layout,
            kind: ChunkKind::Samples,
            id: ChunkId { generation: self.generation, sequence: location.sequence },
            time_ns: location.time_ns,
            namespace: location.namespace,
            cell: location.cell,
            first_slot,
            num_samples,
            num_fields: self.fields.len() as u16,
            header_len: (HEAD_BYTES + table.len()) as u32,
            data_len,
            part: self.part.uncounted(),
            table_crc: crc32c(&table),
        };
        ChunkHeader::from_parts(head, table).expect("a table as the builder makes it is valid")
    }
}

impl FinishedChunk {
    /// The bytes to write at the chunk's location.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.range.clone()]
    }
}

/// Packs samples into a chunk, in the order of slots.
///
/// For each sample, in the order of slots: call [`fit`](Self::fit). If it returns `Here`, read the sample
/// into [`space`](Self::space) and [`add`](Self::add) it, or [`push`](Self::push) bytes that are in memory
/// already. If it returns `NextChunk`, allocate [`cells`](Self::cells) from [`crate::format::Space`],
/// [`finish`](Self::finish), write the chunk, and continue with a new builder.
///
/// The buffer reserves space for the largest possible header before the data. The header's length is known only at
/// the end: the header is then written directly before the data, so the data need not move.
#[derive(Debug)]
pub struct ChunkBuilder {
    spec: ChunkSpec,
    first_slot: Slot,
    buf: IoBuf,
    /// The encoded names of the fields: the beginning of the table.
    fields: Vec<u8>,
    table: Table,
    /// The encoded table of the present samples, if [`ChunkBuilder::cells`] has already needed its length.
    encoded: Option<Vec<u8>>,
    fill: Fill,
}

impl ChunkBuilder {
    /// Length of a builder's buffer.
    pub fn buf_len_bytes(layout: &ImageLayout) -> usize {
        layout.chunk_size_bytes as usize + layout.max_header_bytes() as usize
    }

    /// An empty chunk whose first sample has `first_slot`. The contents of `buf` do not matter.
    ///
    /// # Errors
    /// `OutOfRange`: names or types of the fields are too long, a name contains NUL, there are too many typed columns,
    /// or their names together are too long. `Mismatch`: a typed column's name is invalid or used twice, or there are
    /// types, but not one for each field.
    ///
    /// # Panics
    /// If the length of `buf` is not [`buf_len_bytes`](Self::buf_len_bytes).
    pub fn new(spec: ChunkSpec, first_slot: Slot, buf: IoBuf) -> Result<ChunkBuilder, FormatError> {
        assert_eq!(buf.len(), Self::buf_len_bytes(&spec.layout), "a buffer of the right length");
        let (fields, table) = spec.begin()?;
        let fill = spec.fill(&fields);
        Ok(ChunkBuilder { spec, first_slot, buf, fields, table, encoded: None, fill })
    }

    /// Number of samples in the chunk.
    pub fn num_samples(&self) -> u32 {
        self.fill.num_samples()
    }

    /// The slot of the next sample.
    pub fn next_slot(&self) -> Slot {
        Slot(self.first_slot.0 + u64::from(self.num_samples()))
    }

    /// Decides whether a sample with a record of `len` bytes fits into this chunk.
    pub fn fit(&self, meta: &SampleMeta<'_>, len: u32) -> Fit {
        self.fill.fit(meta, len)
    }

    /// The space for the next sample's record of `len` bytes, if the sample [`fit`](Self::fit)s here.
    ///
    /// # Panics
    /// If the record would end behind the buffer.
    pub fn space(&mut self, len: u32) -> &mut [u8] {
        let at = self.data_at() + self.fill.next_start(len) as usize;
        &mut self.buf[at..at + len as usize]
    }

    /// Adds the `len` bytes in [`space`](Self::space) as a sample; returns their CRC32C.
    ///
    /// # Errors
    /// `OutOfRange`: name or texts are too long, the name contains NUL, or the label is invalid; nothing was added.
    ///
    /// # Panics
    /// If the sample does not [`fit`](Self::fit) here.
    pub fn add(&mut self, meta: &SampleMeta<'_>, len: u32) -> Result<u32, FormatError> {
        meta.check()?;
        assert_eq!(self.fit(meta, len), Fit::Here, "a sample that fits is added");
        let sums = RecordSums::of(self.space(len));
        let start = self.fill.next_start(len);
        let data_at = self.data_at();
        self.buf[data_at + self.fill.end() as usize..data_at + start as usize].fill(0);
        let crc = sums.crc32c();
        self.put_entry(meta, len, crc, false);
        self.table.push_pieces(sums.pieces());
        Ok(crc)
    }

    /// Copies `record` into the chunk as a sample, if it fits. Returns the result of [`fit`](Self::fit).
    ///
    /// # Errors
    /// Those of [`add`](Self::add). `OutOfRange`: the record is 4 GiB or more.
    pub fn push(&mut self, meta: &SampleMeta<'_>, record: &[u8]) -> Result<Fit, FormatError> {
        meta.check()?;
        at_most("length of a sample", record.len() as u64, u64::from(u32::MAX))?;
        let len = record.len() as u32;
        let fit = self.fit(meta, len);
        if fit == Fit::Here {
            self.space(len).copy_from_slice(record);
            self.add(meta, len)?;
        }
        Ok(fit)
    }

    /// Adds the empty entry of a purged sample, which occupies its slot but has no bytes.
    ///
    /// A purge uses it for deleted samples, so that all other samples keep their ids and slots.
    pub fn push_purged(&mut self, id: SampleId) -> Fit {
        let meta = SampleMeta { id, name: b"", label: None, values: Default::default() };
        let fit = self.fit(&meta, 0);
        if fit == Fit::Here {
            self.put_entry(&meta, 0, crc32c(b""), true);
        }
        fit
    }

    /// The number of cells that the chunk takes with its present samples.
    pub fn cells(&mut self) -> u64 {
        let header_len = (HEAD_BYTES + self.encode_table().len()) as u64;
        self.spec.layout.cells_of(padded(header_len) + padded(self.fill.end()))
    }

    /// The encoded table of the present samples. Encodes it again only after samples were added.
    fn encode_table(&mut self) -> &[u8] {
        let ChunkBuilder { spec, fields, table, encoded, .. } = self;
        encoded.get_or_insert_with(|| {
            let mut encoded = fields.clone();
            spec.encode(table, &mut encoded);
            encoded
        })
    }

    /// Completes the chunk. `location` names the [`cells`](Self::cells) that the caller allocated for it.
    ///
    /// # Panics
    /// If the chunk has no sample.
    pub fn finish(mut self, location: ChunkLocation) -> FinishedChunk {
        assert!(self.num_samples() > 0, "a chunk has samples");
        self.encode_table();
        let table = self.encoded.take().expect("encoded just above");
        let count = self.num_samples() as u16;
        let data_len = self.fill.end();
        let header = self.spec.header(self.first_slot, count, location, data_len, table);
        let data_at = self.data_at();
        let start = data_at - header.head().data_start() as usize;
        let range = start..data_at + padded(data_len) as usize;
        self.buf[data_at + data_len as usize..range.end].fill(0);
        header.encode_into(&mut self.buf[range.clone()]);
        FinishedChunk { header, buf: self.buf, range }
    }

    /// The header of a chunk that holds one oversize sample: one that does not fit into the chunk size.
    ///
    /// The chunk takes [`ChunkHead::cell_range`]`().cells` cells. The record begins at
    /// [`ChunkHead::data_start`], and is padded with zeroes to a multiple of 4,096. The header
    /// ([`ChunkHeader::encode_into`]) may be written last, when `sums` are known: its length does not
    /// depend on their values ([`RecordSums::unknown`]).
    ///
    /// # Errors
    /// Those of [`new`](Self::new) and [`add`](Self::add).
    pub fn oversize(
        spec: &ChunkSpec,
        slot: Slot,
        meta: &SampleMeta<'_>,
        len: u32,
        sums: &RecordSums,
        location: ChunkLocation,
    ) -> Result<ChunkHeader, FormatError> {
        meta.check()?;
        let (mut encoded, mut table) = spec.begin()?;
        table.push(meta, len, sums.crc32c(), false);
        table.push_pieces(sums.pieces());
        spec.encode(&table, &mut encoded);
        Ok(spec.header(slot, 1, location, len.into(), encoded))
    }

    /// The header of a chunk whose records are on the media already: they lie by the packing rule from the cell of
    /// `location` on. The header takes the cells directly before.
    ///
    /// `samples` has the metadata, the length in bytes and the CRC32C of each record; `pieces` has the checksums of
    /// the pieces of all large records.
    ///
    /// # Errors
    /// Those of [`new`](Self::new) and [`add`](Self::add). `OutOfRange`: the header needs more cells than precede
    /// `location`.
    pub fn described<'m>(
        spec: &ChunkSpec,
        first_slot: Slot,
        samples: impl Iterator<Item = (SampleMeta<'m>, u32, u32)>,
        pieces: Vec<u32>,
        location: ChunkLocation,
    ) -> Result<ChunkHeader, FormatError> {
        let (mut encoded, mut table) = spec.begin()?;
        let mut end = 0;
        for (meta, len, crc32c) in samples {
            meta.check()?;
            table.push(&meta, len, crc32c, false);
            end = spec.layout.pack.next_start(end, len) + u64::from(len);
        }
        let count = table.rows.len() as u64;
        at_most("samples of a chunk", count, MAX_CHUNK_SAMPLES.into())?;
        table.pieces = pieces;
        spec.encode(&table, &mut encoded);
        let cells = padded((HEAD_BYTES + encoded.len()) as u64) / CELL_BYTES;
        at_most("cells of a header", cells, location.cell)?;
        let location = ChunkLocation { cell: location.cell - cells, ..location };
        Ok(spec.header(first_slot, count as u16, location, end, encoded))
    }

    /// Adds the entry of a sample to table and fill level.
    fn put_entry(&mut self, meta: &SampleMeta<'_>, len: u32, crc: u32, purged: bool) {
        self.table.push(meta, len, crc, purged);
        self.encoded = None;
        self.fill.take(meta, len);
    }

    /// Offset of the data in the buffer.
    fn data_at(&self) -> usize {
        self.spec.layout.max_header_bytes() as usize
    }
}

/// Location, sequence number and time of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkLocation {
    /// Sequence number of the chunk within the generation.
    pub sequence: u64,
    /// The current time, in ns since 1970; never less than the time of the previous chunk.
    pub time_ns: u64,
    /// Index of the namespace.
    pub namespace: u16,
    /// First cell.
    pub cell: u64,
}

/// Returns whether the names and types of these fields fit into a chunk's header.
#[doc(hidden)]
pub fn has_room_for_fields<'n>(names: impl Iterator<Item = &'n [u8]>, types: &FieldTypes) -> bool {
    let names: usize = names.map(|name| 2 + name.len()).sum();
    names + types.column_len(kind::FIELD_TYPES) <= MAX_FIELD_NAMES_BYTES
}

/// Encodes the names of the fields: the beginning of a table.
///
/// # Errors
/// `OutOfRange`: a name is invalid, or names and types together are too long. `Mismatch`: there are types, but not one
/// for each field.
#[doc(hidden)]
pub fn encode_fields(spec: &ChunkSpec) -> Result<Vec<u8>, FormatError> {
    let mut table = Vec::new();
    for name in &spec.fields {
        check_name(name)?;
        table.extend_from_slice(&(name.len() as u16).to_le_bytes());
        table.extend_from_slice(name);
    }
    let len = spec.fields_len(&table) as u64;
    let limit = MAX_FIELD_NAMES_BYTES as u64;
    at_most("length of all field names and types", len, limit)?;
    let types = spec.field_types.num_fields();
    let expected = if types == 0 { 0 } else { spec.fields.len() };
    equal("number of types of the fields", expected as u64, types as u64)?;
    Ok(table)
}

/// Computes the length of each chunk in advance, from the metadata of its samples.
///
/// Follows the same rules as [`ChunkBuilder`], so the built chunk has the planned length.
#[derive(Debug)]
pub struct ChunkDraft<'a> {
    spec: &'a ChunkSpec,
    /// The encoded names of the fields.
    fields: Vec<u8>,
    fill: Fill,
    table: Table,
    /// End of the data if packed with [`Pack::Aligned`].
    aligned_end: u64,
    /// End of the data if packed with [`Pack::Tight`].
    tight_end: u64,
    /// Scratch memory for the encoded table.
    encoded: Vec<u8>,
}

/// The lengths of a complete chunk and its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DraftLen {
    /// Bytes of head and table.
    pub header_bytes: u64,
    /// Bytes of the samples, padding between them included.
    pub data_bytes: u64,
    /// Bytes of the samples without padding.
    pub record_bytes: u64,
    /// Bytes that [`Pack::Aligned`] takes more than [`Pack::Tight`].
    pub alignment_bytes: u64,
}

impl DraftLen {
    /// The lengths of a built chunk.
    pub fn of(header: &ChunkHeader) -> DraftLen {
        let mut aligned = 0;
        let mut record_bytes = 0;
        for sample in header.samples() {
            let len = sample.len_bytes;
            aligned = Pack::Aligned.next_start(aligned, len) + u64::from(len);
            record_bytes += u64::from(len);
        }
        DraftLen {
            header_bytes: header.head().header_len.into(),
            data_bytes: header.head().data_len,
            record_bytes,
            alignment_bytes: aligned - record_bytes,
        }
    }

    /// Bytes of the whole chunk, a multiple of 4,096.
    pub fn len_bytes(&self) -> u64 {
        padded(self.header_bytes) + padded(self.data_bytes)
    }
}

impl<'a> ChunkDraft<'a> {
    /// A chunk without samples.
    ///
    /// # Errors
    /// The errors of [`ChunkBuilder::new`].
    pub fn new(spec: &'a ChunkSpec) -> Result<ChunkDraft<'a>, FormatError> {
        let (fields, table) = spec.begin()?;
        let fill = spec.fill(&fields);
        let encoded = Vec::new();
        Ok(ChunkDraft { spec, fields, fill, table, aligned_end: 0, tight_end: 0, encoded })
    }

    /// Number of samples in the chunk.
    pub fn num_samples(&self) -> u32 {
        self.fill.num_samples()
    }

    /// Adds a sample with a record of `len` bytes, if it fits or if it is oversize and the chunk is empty. Returns
    /// the result of [`Fill::fit`].
    pub fn push(&mut self, meta: &SampleMeta<'_>, len: u32) -> Fit {
        let fit = self.fill.fit(meta, len);
        if fit == Fit::Here || fit == Fit::Oversize && self.num_samples() == 0 {
            self.fill.take(meta, len);
            // Checksums are not known yet; the length of the table does not depend on them.
            self.table.push(meta, len, 0, false);
            self.table.push_pieces(std::iter::repeat_n(0, num_pieces(len)));
            self.aligned_end = Pack::Aligned.next_start(self.aligned_end, len) + u64::from(len);
            self.tight_end += u64::from(len);
        }
        fit
    }

    /// Completes the chunk and begins the next one.
    pub fn finish(&mut self) -> DraftLen {
        self.encoded.clone_from(&self.fields);
        self.spec.encode(&self.table, &mut self.encoded);
        let len = DraftLen {
            header_bytes: (HEAD_BYTES + self.encoded.len()) as u64,
            data_bytes: self.fill.end(),
            record_bytes: self.tight_end,
            alignment_bytes: self.aligned_end - self.tight_end,
        };
        self.fill = self.spec.fill(&self.fields);
        self.table.clear();
        (self.aligned_end, self.tight_end) = (0, 0);
        len
    }
}

/// The chunk that a sample belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// This chunk.
    Here,
    /// The next chunk: [`finish`](ChunkBuilder::finish) this one first.
    NextChunk,
    /// A separate chunk, larger than the chunk size: finish this one if it has samples, then see
    /// [`ChunkBuilder::oversize`].
    Oversize,
}

/// The space that a chunk's samples occupy so far.
///
/// The header counts with an upper bound of its length, since front coding depends on all names. So a chunk may end a
/// little below the chunk size.
#[derive(Debug, Clone)]
pub struct Fill {
    layout: ImageLayout,
    /// Bytes of the head and of the names and types of the fields.
    fixed: usize,
    /// The number of samples so far.
    num_samples: u32,
    /// The bound of the table of the samples so far.
    table: Bound,
    /// The bound for a chunk without samples.
    empty: Bound,
    /// End of the last sample, relative to the start of the data.
    end: u64,
}

impl Fill {
    /// An empty chunk. `fields_len` is the encoded length of the names and types of the fields.
    pub fn new(layout: ImageLayout, fields_len: usize, typed: &[ColumnSpec]) -> Fill {
        let fixed = HEAD_BYTES + fields_len;
        let table = Bound::new(typed);
        Fill { layout, fixed, num_samples: 0, empty: table.clone(), table, end: 0 }
    }

    /// Number of samples in the chunk.
    pub fn num_samples(&self) -> u32 {
        self.num_samples
    }

    /// The most bytes of the padded header with one more sample.
    pub fn header_with(&self, meta: &SampleMeta<'_>, len: u32) -> u64 {
        padded((self.fixed + self.table.with(meta, len)) as u64)
    }

    /// End of the last sample, relative to the start of the data.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The start of the next record if it has `len` bytes, relative to the start of the data.
    pub(crate) fn next_start(&self, len: u32) -> u64 {
        self.layout.pack.next_start(self.end, len)
    }

    /// Decides which chunk a sample with a record of `len` bytes belongs to.
    pub fn fit(&self, meta: &SampleMeta<'_>, len: u32) -> Fit {
        let size = u64::from(self.layout.chunk_size_bytes);
        let alone = self.fixed + self.empty.with(meta, len);
        if padded(alone as u64) + u64::from(len) > size {
            return Fit::Oversize;
        }
        let header = self.fixed + self.table.with(meta, len);
        let end = self.next_start(len) + u64::from(len);
        let names = (self.table.names_len() + meta.name.len()) as u64;
        let fits = self.num_samples < MAX_CHUNK_SAMPLES
            && header <= self.layout.max_header_bytes() as usize
            && names <= self.layout.max_names_bytes()
            && padded(header as u64) + end <= size;
        if fits { Fit::Here } else { Fit::NextChunk }
    }

    /// Adds a sample that [`fit`](Self::fit)s here.
    pub fn take(&mut self, meta: &SampleMeta<'_>, len: u32) {
        self.end = self.next_start(len) + u64::from(len);
        self.num_samples += 1;
        self.table.take(meta, len);
    }
}

/// Maximum bytes of the names and types of all fields of an image. With this limit, the entry of a sample with a name
/// of 4,096 bytes still fits into the header of the smallest chunk.
pub const MAX_FIELD_NAMES_BYTES: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Pack, Uuid};

    fn layout(chunk_size: u32) -> ImageLayout {
        ImageLayout::new(Uuid([3; 16]), chunk_size, Pack::Aligned, 1).unwrap()
    }

    fn builder(fields: Vec<Vec<u8>>) -> Result<ChunkBuilder, FormatError> {
        let layout = layout(64 << 10);
        let spec = ChunkSpec {
            layout,
            generation: Generation(1),
            part: Part::default(),
            fields,
            field_types: FieldTypes::default(),
            columns: Vec::new(),
        };
        // Fill the buffer: its old contents must not reach the media.
        let mut buf = IoBuf::zeroed(ChunkBuilder::buf_len_bytes(&layout));
        buf.fill(0xee);
        ChunkBuilder::new(spec, Slot(0), buf)
    }

    fn meta(id: u64, name: &[u8]) -> SampleMeta<'_> {
        SampleMeta { id: SampleId(id), name, label: None, values: Default::default() }
    }

    #[test]
    fn a_chunk_takes_samples_until_its_header_takes_a_quarter_of_it() {
        let mut chunk = builder(Vec::new()).unwrap();
        let name = |id: u64| [b'a' + id as u8; 4096];
        for id in 0..3 {
            assert_eq!(chunk.push(&meta(id, &name(id)), b"x").unwrap(), Fit::Here);
        }
        assert_eq!(chunk.push(&meta(3, &name(3)), b"x").unwrap(), Fit::NextChunk);
        assert_eq!(chunk.push(&meta(3, b"short"), b"x").unwrap(), Fit::Here);
        let finished = chunk.finish(ChunkLocation { cell: 1, ..Default::default() });
        let head = finished.header.head();
        assert!(head.header_len <= 16 << 10);
        assert_eq!((head.num_samples, head.data_start()), (4, 16 << 10));
    }

    #[test]
    fn a_chunk_of_empty_samples_ends_with_its_header_or_at_65_535_of_them() {
        let mut chunk = builder(Vec::new()).unwrap();
        let mut room = 0;
        while chunk.push(&meta(room, b""), b"").unwrap() == Fit::Here {
            room += 1;
        }
        assert_eq!(chunk.fit(&meta(room, b""), 0), Fit::NextChunk);
        assert_eq!(chunk.push_purged(SampleId(room)), Fit::NextChunk);
        let finished = chunk.finish(ChunkLocation { cell: 1, ..Default::default() });
        let data_start = finished.header.head().data_start();
        assert!(data_start <= 16 << 10);
        assert_eq!(finished.bytes().len() as u64, data_start, "no data, no block for it");

        let mut fill = Fill::new(layout(64 << 20), 0, &[]);
        for id in 0..65_535 {
            assert_eq!(fill.fit(&meta(id, b""), 0), Fit::Here);
            fill.take(&meta(id, b""), 0);
        }
        assert_eq!(fill.fit(&meta(65_535, b""), 0), Fit::NextChunk);
    }

    #[test]
    fn a_chunk_whose_header_is_full_takes_only_the_cells_that_it_fills() {
        let mut chunk = builder(Vec::new()).unwrap();
        let mut count = 0;
        while chunk.push(&meta(count, format!("{count:07}").as_bytes()), b"x").unwrap() == Fit::Here
        {
            count += 1;
        }
        let cells = chunk.cells();
        let finished = chunk.finish(ChunkLocation { cell: 9, ..Default::default() });
        assert_eq!(finished.bytes().len() as u64, cells * 4096);
        assert!(cells < 6 && count > 700, "{cells} cells of {count} samples");
        assert!(finished.header.head().header_len <= 16 << 10);
        assert_eq!(ChunkHeader::parse(finished.bytes()), Ok(finished.header));
    }

    #[test]
    fn old_bytes_of_the_buffer_do_not_reach_the_media() {
        let mut chunk = builder(Vec::new()).unwrap();
        for (id, len) in [(0, 4000), (1, 900), (2, 5000), (3, 0), (4, 7)] {
            assert_eq!(chunk.push(&meta(id, b"name"), &vec![1; len]).unwrap(), Fit::Here);
        }
        let finished = chunk.finish(ChunkLocation { cell: 1, ..Default::default() });
        assert_eq!(finished.range.start % 4096, 0);
        let behind = &finished.bytes()[finished.header.head().header_len as usize..];
        assert!(behind.iter().all(|byte| *byte != 0xee), "padding is zero");
        let parsed = ChunkHeader::parse(finished.bytes()).unwrap();
        assert_eq!(parsed, finished.header);
        for sample in parsed.samples() {
            let start = sample.offset_bytes as usize;
            let record = &finished.bytes()[start..start + sample.len_bytes as usize];
            assert!(record.iter().all(|byte| *byte == 1));
            assert_eq!(crc32c(record), sample.crc32c);
        }
    }

    #[test]
    fn impossible_names_and_labels_are_refused_and_leave_the_chunk_unchanged() {
        let mut chunk = builder(Vec::new()).unwrap();
        assert!(chunk.push(&meta(0, b"nul\0"), b"x").is_err());
        assert!(chunk.push(&meta(0, &[b'n'; 4097]), b"x").is_err());
        let label = SampleMeta { label: Some(i64::MIN), ..meta(0, b"name") };
        assert!(chunk.push(&label, b"x").is_err());
        assert_eq!(chunk.num_samples(), 0);
        assert!(builder(vec![vec![b'f'; 4097]]).is_err());
        assert!(builder(vec![vec![b'f'; 4096]; 3]).is_err(), "field names take 8 KiB at most");
        assert!(builder(vec![b"a\0".to_vec()]).is_err());
    }
}
