//! Images in memory, made through the public API alone: what an import does, without any I/O.
#![allow(dead_code, unreachable_pub)] // each test file uses its own part of it

use std::sync::atomic::{AtomicU64, Ordering};

use dlfs::buf::IoBuf;
use dlfs::directory::commit::{Commit, freed_by_next, reserve_current};
use dlfs::directory::rebuild::newest_record;
use dlfs::directory::{Directory, DirectoryBuilder};
use dlfs::format::builder::ChunkLocation;
use dlfs::format::columns::{ColumnSpec, ColumnTable};
use dlfs::format::superblock::COPY_OFFSETS;
use dlfs::format::superblock_set::{
    CommitStep, SuperblockCopies, SuperblockSet, select_generation,
};
use dlfs::format::{
    CellRange, ChunkBuilder, ChunkHead, ChunkHeader, ChunkSpec, FieldTypes, Fit, ImageLayout,
    OriginsBuilder, Pack, Part, Placement, RecordSums, SampleMeta, Space, Superblock, Uuid,
};
use dlfs::units::{Generation, SampleId, Slot};

/// One sample of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    pub name: Vec<u8>,
    pub label: Option<i64>,
    pub record: Vec<u8>,
}

/// A sample of `len` bytes that depend on its name.
pub fn sample(name: &str, label: Option<i64>, len: usize) -> Sample {
    let seed = name.bytes().fold(1u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let record =
        (0..len as u32).map(|i| (seed.wrapping_add(i).wrapping_mul(0x9e37_79b9) >> 24) as u8);
    Sample { name: name.into(), label, record: record.collect() }
}

/// Samples of class folders, names in order, lengths all over the place.
pub fn folder(classes: usize, each: usize) -> Vec<Sample> {
    let lens = [0, 1, 100, 4095, 4096, 4097, 9000, 700];
    let of_class = |class| {
        (0..each).map(move |i| {
            let name = format!("class{class:02}/sample{i:04}.bin");
            sample(&name, Some(class as i64), lens[(class * 7 + i) % lens.len()])
        })
    };
    (0..classes).flat_map(of_class).collect()
}

/// A UUID that no other test of this machine has.
pub fn unique_uuid() -> Uuid {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) << 32 | u64::from(std::process::id());
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    bytes[8..].copy_from_slice(&now.to_le_bytes());
    Uuid::from_random_bytes(bytes)
}

/// An image and its bytes, namespace by namespace.
#[derive(Debug, Clone)]
pub struct Image {
    pub layout: ImageLayout,
    pub namespaces: Vec<Vec<u8>>,
    pub time_ns: u64,
    /// Flushes and superblock writes of the last commit, if it is to stop before its end.
    pub stop_commit_after: usize,
    /// Values of the samples of the next `add`, in their order.
    pub values: ColumnTable,
    /// Types of the fields of each `add`.
    pub field_types: FieldTypes,
    /// Names of the classes, unless there are some already.
    pub classes: Vec<Vec<u8>>,
    /// The objects that the samples of the next `add` come from.
    pub origins: OriginsBuilder,
}

impl Image {
    pub fn new(num_namespaces: u16, pack: Pack) -> Image {
        Image::with_uuid(Uuid::from_random_bytes([0x5a; 16]), num_namespaces, pack)
    }

    /// An image that no other test has: processes share tiers in memory by the UUID of their image.
    pub fn unique(num_namespaces: u16, pack: Pack) -> Image {
        Image::with_uuid(unique_uuid(), num_namespaces, pack)
    }

    fn with_uuid(uuid: Uuid, num_namespaces: u16, pack: Pack) -> Image {
        let layout = ImageLayout::new(uuid, 64 << 10, pack, num_namespaces).unwrap();
        let namespaces = vec![Vec::new(); num_namespaces.into()];
        Image {
            layout,
            namespaces,
            time_ns: 1_000_000,
            stop_commit_after: usize::MAX,
            values: ColumnTable::default(),
            field_types: FieldTypes::default(),
            classes: Vec::new(),
            origins: OriginsBuilder::default(),
        }
    }

    pub fn write(&mut self, namespace: u16, offset: u64, bytes: &[u8]) {
        let media = &mut self.namespaces[usize::from(namespace)];
        let end = offset as usize + bytes.len();
        media.resize(media.len().max(end), 0);
        media[offset as usize..end].copy_from_slice(bytes);
    }

    pub fn read(&self, namespace: u16, offset: u64, len: u64) -> &[u8] {
        let media = &self.namespaces[usize::from(namespace)];
        let end = (offset as usize).saturating_add(len as usize).min(media.len());
        &media[(offset as usize).min(end)..end]
    }

    pub fn copies(&self) -> Vec<SuperblockCopies> {
        (0..self.namespaces.len() as u16)
            .map(|ns| {
                let [a, b] = COPY_OFFSETS.map(|at| self.read(ns, at, 4096));
                SuperblockCopies::parse(a, b)
            })
            .collect()
    }

    pub fn opened(&self) -> SuperblockSet {
        select_generation(&self.copies()).unwrap()
    }

    pub fn open(&self) -> (Directory, Superblock) {
        let superblock = *self.opened().superblock();
        let place = superblock.snapshot;
        let bytes = self.read(place.namespace, place.offset_bytes, place.len_bytes);
        let directory = Directory::from_snapshot(bytes.to_vec()).unwrap();
        directory.check_current(&superblock).unwrap();
        (directory, superblock)
    }

    /// The newest generation; `None` before the first.
    pub fn current(&self) -> Option<(Directory, Superblock)> {
        (!self.copies()[0].is_blank()).then(|| self.open())
    }

    /// Imports or appends `samples`; `window` 0 keeps their order.
    pub fn add(
        &mut self,
        samples: &[Sample],
        seed: u64,
        window: u64,
        fields: &[&str],
    ) -> Directory {
        let current = self.current();
        let mut space = Space::new(&self.layout, &vec![u64::MAX; self.namespaces.len()]);
        let mut builder = DirectoryBuilder::new(self.layout);
        let mut generation = Generation(1);
        builder.set_classes(self.classes.clone());
        if let Some((directory, superblock)) = &current {
            reserve_current(&mut space, directory, superblock, &[]);
            generation = Generation(directory.generation().0 + 1);
            (0..directory.num_chunks()).for_each(|c| builder.copy_chunk(directory, c).unwrap());
            builder.delete(&directory.deleted_ranges());
            builder.set_classes(directory.classes().to_vec());
            builder.add_origins(directory.origins().unwrap());
        }
        let mut origins = Vec::new();
        self.origins.encode(generation, &mut origins);
        builder.add_origins(&origins);
        let first = builder.next_slot().0;
        let part = Part { first, count: samples.len() as u64, seed, window };
        let spec = ChunkSpec {
            layout: self.layout,
            generation,
            part,
            fields: fields.iter().map(|name| name.as_bytes().to_vec()).collect(),
            field_types: self.field_types.clone(),
            columns: self.columns(current.as_ref().map(|(directory, _)| directory)),
        };
        let placement = Placement::new(part);
        let source = (first..first + part.count).map(|slot| {
            let id = placement.id_at(Slot(slot));
            (id, Some(&samples[(id.0 - first) as usize]))
        });
        self.write_chunks(&spec, Slot(first), source, &mut space, &mut builder, 0);
        if let Some((directory, superblock)) = &current {
            let kept: Vec<_> = builder.cell_ranges().collect();
            builder.set_freed(freed_by_next(directory, superblock, kept));
        }
        let directory = builder.finish(generation, self.time_ns).unwrap();
        self.commit(directory, &mut space)
    }

    /// The typed columns that there are, and those of the next `add`.
    fn columns(&self, current: Option<&Directory>) -> Vec<ColumnSpec> {
        let columns = current.map_or(&[][..], Directory::columns);
        let mut specs: Vec<ColumnSpec> =
            columns.iter().map(|column| column.spec().clone()).collect();
        for spec in self.values.specs() {
            if !specs.contains(spec) {
                specs.push(spec.clone());
            }
        }
        specs
    }

    /// Writes samples as chunks; `None` keeps the place of a purged one.
    pub fn write_chunks<'a>(
        &mut self,
        spec: &ChunkSpec,
        first: Slot,
        source: impl Iterator<Item = (SampleId, Option<&'a Sample>)>,
        space: &mut Space,
        builder: &mut DirectoryBuilder,
        mut sequence: u64,
    ) -> u64 {
        let buf = || IoBuf::zeroed(ChunkBuilder::buf_len_bytes(&spec.layout));
        let mut chunk = ChunkBuilder::new(spec.clone(), first, buf()).unwrap();
        for (id, sample) in source {
            loop {
                let fit = match sample {
                    None => chunk.push_purged(id),
                    Some(Sample { name, label, record }) => {
                        let meta = SampleMeta {
                            id,
                            name,
                            label: *label,
                            values: self.values.row((id.0 - spec.part.first) as usize),
                        };
                        chunk.push(&meta, record).unwrap()
                    }
                };
                if fit == Fit::Here {
                    break;
                }
                let next = chunk.next_slot();
                if chunk.num_samples() > 0 {
                    self.finish_chunk(chunk, &mut sequence, space, builder);
                }
                chunk = ChunkBuilder::new(spec.clone(), next, buf()).unwrap();
                if fit == Fit::Oversize {
                    let sample = sample.expect("a purged sample fits everywhere");
                    self.write_oversize(spec, next, id, sample, &mut sequence, space, builder);
                    let next = Slot(next.0 + 1);
                    chunk = ChunkBuilder::new(spec.clone(), next, buf()).unwrap();
                    break;
                }
            }
        }
        if chunk.num_samples() > 0 {
            self.finish_chunk(chunk, &mut sequence, space, builder);
        }
        sequence
    }

    fn finish_chunk(
        &mut self,
        mut chunk: ChunkBuilder,
        sequence: &mut u64,
        space: &mut Space,
        builder: &mut DirectoryBuilder,
    ) {
        let run = space.allocate(*sequence, chunk.cells()).unwrap();
        self.time_ns += 10;
        let finished = chunk.finish(ChunkLocation {
            sequence: *sequence,
            time_ns: self.time_ns,
            namespace: run.namespace,
            cell: run.cell,
        });
        let offset = self.layout.offset_of(run.cell).unwrap();
        self.write(run.namespace, offset, finished.bytes());
        builder.add_chunk(&finished.header).unwrap();
        *sequence += 1;
    }

    #[allow(clippy::too_many_arguments)]
    fn write_oversize(
        &mut self,
        spec: &ChunkSpec,
        slot: Slot,
        id: SampleId,
        sample: &Sample,
        sequence: &mut u64,
        space: &mut Space,
        builder: &mut DirectoryBuilder,
    ) {
        let meta = SampleMeta {
            id,
            name: &sample.name,
            label: sample.label,
            values: self.values.row((id.0 - spec.part.first) as usize),
        };
        let sums = RecordSums::of(&sample.record);
        let len = sample.record.len() as u32;
        let mut place =
            ChunkLocation { sequence: *sequence, time_ns: self.time_ns, namespace: 0, cell: 0 };
        let draft = ChunkBuilder::oversize(spec, slot, &meta, len, &sums, place).unwrap();
        let run = space.allocate(*sequence, draft.head().cell_range().cells).unwrap();
        (place.namespace, place.cell) = (run.namespace, run.cell);
        let header = ChunkBuilder::oversize(spec, slot, &meta, len, &sums, place).unwrap();
        let mut bytes = vec![0; header.head().len_bytes() as usize];
        header.encode_into(&mut bytes);
        let at = header.head().data_start() as usize;
        bytes[at..at + sample.record.len()].copy_from_slice(&sample.record);
        self.write(run.namespace, self.layout.offset_of(run.cell).unwrap(), &bytes);
        builder.add_chunk(&header).unwrap();
        *sequence += 1;
    }

    /// The cells of the record of `generation`.
    pub fn record_range(&self, heads: &[ChunkHead], generation: Generation) -> CellRange {
        newest_record(heads, Some(generation)).expect("a record").cell_range()
    }

    /// Deletes ids as a new generation.
    pub fn delete(&mut self, ids: &[u64]) -> Directory {
        let (directory, superblock) = self.open();
        let mut space = Space::new(&self.layout, &vec![u64::MAX; self.namespaces.len()]);
        reserve_current(&mut space, &directory, &superblock, &[]);
        let ids: Vec<SampleId> = ids.iter().map(|id| SampleId(*id)).collect();
        self.time_ns += 10;
        let generation = Generation(directory.generation().0 + 1);
        let mut next = directory.with_deleted(&ids, generation, self.time_ns).unwrap();
        let kept: Vec<_> = next.cell_ranges().collect();
        next.set_freed(freed_by_next(&directory, &superblock, kept));
        self.commit(next, &mut space)
    }

    /// Writes record and snapshot, then the steps of the commit as far as they are let.
    pub fn commit(&mut self, directory: Directory, space: &mut Space) -> Directory {
        let commit = Commit::prepare(directory, space).unwrap();
        let at = self.layout.offset_of(commit.record_range.cell).unwrap();
        self.write(commit.record_range.namespace, at, &commit.record);
        let at = self.layout.offset_of(commit.snapshot_range.cell).unwrap();
        let mut window = vec![0; 12_288];
        for offset in (0..commit.snapshot.len_bytes()).step_by(window.len()) {
            let len = (commit.snapshot.len_bytes() - offset).min(window.len() as u64) as usize;
            commit.snapshot.read_at(offset, &mut window[..len]).unwrap();
            let bytes = window[..len].to_vec();
            self.write(commit.snapshot_range.namespace, at + offset, &bytes);
        }
        for step in commit.steps().into_iter().take(self.stop_commit_after) {
            if let CommitStep::Write { namespace, offset_bytes, block } = step {
                self.write(namespace, offset_bytes, &block[..]);
            }
        }
        commit.directory
    }

    /// The heads that lie in the cells of the image, as a scan finds them.
    pub fn heads(&self) -> Vec<ChunkHead> {
        let size = self.layout.cell_bytes();
        let mut heads = Vec::new();
        for namespace in 0..self.namespaces.len() as u16 {
            let cells = (self.namespaces[usize::from(namespace)].len() as u64).div_ceil(size);
            for cell in 1..cells {
                let found = ChunkHead::parse(self.read(namespace, cell * size, 128));
                let placed =
                    |head: &ChunkHead| head.check_location(&self.layout, namespace, cell).is_ok();
                heads.extend(found.ok().filter(placed));
            }
        }
        heads
    }

    /// The bytes of the first chunk's header.
    pub fn first_header(&self) -> Vec<u8> {
        let head = self.heads()[0];
        let offset = self.layout.offset_of(head.cell).unwrap();
        self.read(head.namespace, offset, head.data_start()).to_vec()
    }

    pub fn header(&self, head: &ChunkHead) -> ChunkHeader {
        let offset = self.layout.offset_of(head.cell).unwrap();
        ChunkHeader::parse(self.read(head.namespace, offset, head.header_len.into())).unwrap()
    }

    /// The bytes of a sample by its extent, their checksum compared.
    pub fn sample(&self, directory: &Directory, id: u64) -> Vec<u8> {
        let extent = directory.extent(SampleId(id)).unwrap();
        let bytes = self.read(extent.namespace, extent.offset_bytes, extent.len_bytes.into());
        assert_eq!(dlfs::format::names::crc32c(bytes), extent.crc32c, "sample {id}");
        bytes.to_vec()
    }
}
