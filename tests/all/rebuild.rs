//! Rebuilding the directory without its snapshot: from chunk headers, alone or on top of an older
//! directory.

use crate::images::{Image, Sample, folder, sample};
use crate::import_support::disk::Disks;
use crate::import_support::{contents, options, paths, tree};
use dlfs::ErrorKind;
use dlfs::dataset::OpenOptions;
use dlfs::directory::commit::{freed_by_next, reserve_current};
use dlfs::directory::rebuild::{ChunkSelection, Step, newest_record, select_chunks};
use dlfs::directory::{Directory, DirectoryBuilder, Rewrite};
use dlfs::format::chunk::ChunkKind;
use dlfs::format::columns::{ColumnSpec, ColumnTable, ColumnType, Value};
use dlfs::format::snapshot::{SectionKind, SnapshotHead};
use dlfs::format::{
    CellRange, ChunkHead, ChunkSpec, FieldTypes, GenerationRecord, Pack, Part, Space,
};
use dlfs::import::{self, ImportOptions, Onto, import_onto, rebuild_on};
use dlfs::units::{Generation, SampleId};

pub const MOST_SLOTS: u64 = 1 << 20;

pub fn record(image: &Image, heads: &[ChunkHead]) -> Option<(ChunkHead, GenerationRecord)> {
    let newest = newest_record(heads, None)?;
    let offset = image.layout.offset_of(newest.cell).unwrap();
    let bytes = image.read(newest.namespace, offset, newest.header_len.into());
    Some(GenerationRecord::parse(bytes).unwrap())
}

pub fn carry_out(
    image: &Image,
    selection: &ChunkSelection,
    heads: &[ChunkHead],
    base: Option<&Directory>,
) -> Directory {
    let mut builder = DirectoryBuilder::new(image.layout);
    for step in &selection.steps {
        match *step {
            Step::Base(c) => builder.copy_chunk(base.unwrap(), c).unwrap(),
            Step::Head(i) => builder.add_chunk(&image.header(&heads[i])).unwrap(),
            Step::Lost { part, count } => builder.add_lost(part, count).unwrap(),
        }
    }
    let Some((head, record)) = record(image, heads) else {
        return builder.finish(Generation(1), 0).unwrap();
    };
    builder.set_classes(record.classes);
    builder.delete(&record.deleted);
    builder.set_freed(record.freed);
    let mut directory = builder.finish(record.generation, record.time_ns).unwrap();
    directory.set_record_range(head.cell_range());
    directory
}

fn rebuild(image: &Image, base: Option<&Directory>) -> Directory {
    let mut heads = image.heads();
    if let Some(base) = base {
        heads.retain(|head| head.id.generation > base.generation());
    }
    let record = record(image, &heads).map(|(_, record)| record);
    let selection = select_chunks(base, &heads, record.as_ref(), MOST_SLOTS).unwrap();
    assert_eq!(selection.lost_samples, 0);
    carry_out(image, &selection, &heads, base)
}

/// An image of several generations: an import, a delete, an append, another delete.
fn lived_in() -> Image {
    let mut image = Image::new(2, Pack::Aligned);
    image.add(&folder(3, 50), 9, 150, &[]);
    image.delete(&[0, 7, 149]);
    let more: Vec<Sample> = (0..70).map(|i| sample(&format!("more/{i}"), None, i * 900)).collect();
    image.add(&more, 10, 16, &[]);
    image.delete(&[160, 8]);
    image
}

/// Rewrites all chunks of the first part without deleted samples.
pub fn purge(image: &mut Image, source: &[Sample]) -> Directory {
    purge_beside(image, source, &[])
}

/// As [`purge`], and writes nothing to these cells.
fn purge_beside(image: &mut Image, source: &[Sample], beside: &[CellRange]) -> Directory {
    let (directory, superblock) = image.open();
    let part = *directory.parts().next().unwrap();
    let mut space = Space::new(&image.layout, &vec![u64::MAX; image.namespaces.len()]);
    reserve_current(&mut space, &directory, &superblock, &[]);
    beside.iter().for_each(|range| space.reserve(*range));
    let generation = Generation(directory.generation().0 + 1);
    let spec = ChunkSpec {
        layout: image.layout,
        generation,
        part,
        fields: directory.fields().to_vec(),
        field_types: Default::default(),
        columns: Vec::new(),
    };
    let mut builder = DirectoryBuilder::new(image.layout);
    let samples = (part.first..part.first + part.count).map(|slot| {
        let id = directory.id_at(dlfs::units::Slot(slot)).unwrap();
        (id, directory.is_live(id).then(|| &source[id.0 as usize]))
    });
    image.time_ns += 10;
    image.write_chunks(&spec, builder.next_slot(), samples, &mut space, &mut builder, 0);
    for c in 0..directory.num_chunks() {
        if directory.chunk(c).first_slot.0 >= part.first + part.count {
            builder.copy_chunk(&directory, c).unwrap();
        }
    }
    builder.delete(&directory.deleted_ranges());
    let kept: Vec<_> = builder.cell_ranges().collect();
    builder.set_freed(freed_by_next(&directory, &superblock, kept));
    let purged = builder.finish(generation, image.time_ns).unwrap();
    image.commit(purged, &mut space)
}

#[test]
fn a_rebuild_from_chunk_headers_alone_gives_the_snapshot_byte_for_byte() {
    for pack in [Pack::Aligned, Pack::Tight] {
        for window in [0, 16, 250] {
            let mut image = Image::new(3, pack);
            image.add(&folder(5, 50), 7, window, &["jpg", "cls"]);
            let (imported, _) = image.open();
            let rebuilt = rebuild(&image, None);
            assert_eq!(rebuilt.to_snapshot().unwrap(), imported.to_snapshot().unwrap());
        }
    }
}

/// Values of samples, many of them none; texts appear and are in no order.
fn values(count: usize, salt: usize) -> ColumnTable {
    let spec = |name: &str, kind| ColumnSpec { name: name.to_owned(), kind };
    let mut table = ColumnTable::new(&[
        spec("n", ColumnType::Int),
        spec(&format!("x{salt}"), ColumnType::Float32),
        spec("t", ColumnType::Text),
    ]);
    for at in 0..count {
        let text = format!("{}", at * 7919 % (10 + salt));
        table.push(|column| match column.kind {
            _ if at % 5 == salt => Value::None,
            ColumnType::Text => Value::Text(&text),
            ColumnType::Int => Value::Int((at * salt) as i64 - 100),
            _ => Value::Float(at as f64 / 3.0),
        });
    }
    table
}

#[test]
fn typed_columns_survive_a_rebuild_byte_for_byte() {
    let mut image = Image::new(2, Pack::Aligned);
    image.add(&folder(1, 10), 9, 10, &[]);
    image.values = values(150, 1);
    let first: Vec<Sample> = (0..150).map(|i| sample(&format!("a/{i}"), None, i * 30)).collect();
    image.add(&first, 9, 150, &[]);
    image.delete(&[20, 27, 149]);
    let base = image.open().0;
    image.values = values(70, 3);
    let more: Vec<Sample> = (0..70).map(|i| sample(&format!("m/{i}"), None, i * 900)).collect();
    image.add(&more, 10, 16, &[]);
    let (current, _) = image.open();
    assert_eq!(current.columns().len(), 4);
    assert_eq!(current.column("n").unwrap().get(12), Value::Int(2 - 100));
    assert_eq!(rebuild(&image, None).to_snapshot().unwrap(), current.to_snapshot().unwrap());
    assert_eq!(rebuild(&image, Some(&base)).to_snapshot().unwrap(), current.to_snapshot().unwrap());
    // An append that continues the columns gives what copying chunk by chunk does.
    let mut copied = DirectoryBuilder::new(image.layout);
    (0..base.num_chunks()).for_each(|c| copied.copy_chunk(&base, c).unwrap());
    copied.delete(&base.deleted_ranges());
    let copied = copied.finish(Generation(9), 9).unwrap();
    let continued = DirectoryBuilder::after(&base).unwrap().finish(Generation(9), 9).unwrap();
    assert_eq!(copied.to_snapshot().unwrap(), continued.to_snapshot().unwrap());
}

#[test]
fn types_of_fields_survive_a_rebuild_also_where_the_first_chunk_is_lost() {
    let mut image = Image::new(2, Pack::Aligned);
    let types = vec![None, Some("f32[3]=npy".parse().unwrap()), Some("u16[*]".parse().unwrap())];
    image.field_types = FieldTypes::new(types);
    image.add(&folder(3, 50), 9, 150, &["txt", "npy", "tok"]);
    image.delete(&[20, 27, 149]);
    let base = image.open().0;
    image.add(&[sample("more", None, 7000)], 0, 0, &["txt", "npy", "tok"]);
    let (current, superblock) = image.open();
    assert_eq!(superblock.features_to_write, 2);
    assert_eq!(
        (current.field_types(), base.field_types()),
        (&image.field_types, &image.field_types)
    );
    for base in [None, Some(&base)] {
        let rebuilt = rebuild(&image, base);
        assert_eq!(rebuilt.to_snapshot().unwrap(), current.to_snapshot().unwrap());
    }
    let mut heads = image.heads();
    heads.retain(|head| head.kind == ChunkKind::Record || head.first_slot.0 > 0);
    let record = record(&image, &heads).map(|(_, record)| record);
    let selection = select_chunks(None, &heads, record.as_ref(), MOST_SLOTS).unwrap();
    assert!(selection.lost_samples > 0);
    let rebuilt = carry_out(&image, &selection, &heads, None);
    assert_eq!((rebuilt.fields(), rebuilt.field_types()), (current.fields(), &image.field_types));
}

#[test]
fn deletions_appends_and_what_was_freed_survive_a_rebuild() {
    let image = lived_in();
    let (current, _) = image.open();
    assert_eq!(current.num_live(), 220 - 5);
    assert!(!current.freed().is_empty());
    assert_eq!(rebuild(&image, None).to_snapshot().unwrap(), current.to_snapshot().unwrap());
}

#[test]
fn a_rebuild_since_a_generation_reads_later_headers_only_and_gives_the_same() {
    let mut image = Image::new(2, Pack::Aligned);
    image.add(&folder(3, 50), 9, 150, &[]);
    let (base, _) = image.open();
    image.delete(&[3]);
    image.add(&folder(2, 40), 4, 80, &[]);
    let (current, _) = image.open();
    let later = image.heads().into_iter().filter(|head| head.id.generation > base.generation());
    let chunks = later.filter(|head| head.kind == ChunkKind::Samples).count() as u32;
    assert!(chunks > 0 && chunks < current.num_chunks());
    let rebuilt = rebuild(&image, Some(&base));
    assert_eq!(rebuilt.to_snapshot().unwrap(), current.to_snapshot().unwrap());
}

#[test]
fn a_purge_keeps_ids_and_a_rebuild_takes_its_chunks_and_not_those_that_it_replaced() {
    let mut image = Image::new(1, Pack::Aligned);
    let mut source = folder(3, 50);
    image.add(&source, 9, 150, &[]);
    let doomed: Vec<u64> = (0..150).filter(|id| id % 3 != 0).collect();
    image.delete(&doomed);
    let more = folder(1, 30);
    image.add(&more, 1, 0, &[]);
    source.extend(more);
    let before = image.open().0;
    purge(&mut image, &source);
    let (purged, _) = image.open();
    assert!(purged.num_chunks() < before.num_chunks());
    assert_eq!(purged.num_samples(), before.num_samples());
    for id in 0..180 {
        assert_eq!(purged.is_live(SampleId(id)), before.is_live(SampleId(id)));
        if before.is_live(SampleId(id)) {
            assert_eq!(image.sample(&purged, id), source[id as usize].record);
            assert_eq!(purged.name(SampleId(id)), before.name(SampleId(id)));
        } else {
            assert_eq!(purged.name(SampleId(id)).unwrap(), None, "the name went with the purge");
        }
    }
    assert_eq!(rebuild(&image, None).to_snapshot().unwrap(), purged.to_snapshot().unwrap());
}

#[test]
fn chunks_that_replace_others_give_the_directory_of_adding_every_chunk_again() {
    for (window, every, name) in [(0, 3, "a"), (150, 2, "z"), (16, 1, "class00/0")] {
        let mut image = Image::new(2, Pack::Aligned);
        let mut source = folder(3, 50);
        source[0] = sample("", Some(7), 100); // the format allows an empty name
        image.add(&source, 9, window, &[]);
        let doomed: Vec<u64> = (0..150).filter(|id| id % every == 0).collect();
        image.delete(&doomed);
        // Names that fall between the others or not, and labels of another width.
        let more: Vec<Sample> =
            (0..40).map(|i| sample(&format!("{name}{i}"), Some(1 << i), i * 100)).collect();
        image.add(&more, 1, 0, &[]);
        source.extend(more);
        let before = image.open().0;
        let purged = purge(&mut image, &source);
        let generation = purged.generation();
        let mut heads = image.heads();
        let record_range = image.record_range(&heads, generation);
        heads.retain(|head| head.id.generation == generation && head.kind == ChunkKind::Samples);
        heads.sort_by_key(|head| head.first_slot);
        let rewrite =
            |chunks| Rewrite { chunks, generation, time_ns: purged.time_ns(), since: generation };
        let mut rewritten = before.rewritten(&rewrite(&heads)).unwrap();
        rewritten.set_freed(purged.freed().to_vec());
        rewritten.set_record_range(record_range);
        // The helper stamps each chunk with a time of its own.
        let times = |directory: &Directory| directory.record().started_ns;
        assert_eq!(times(&rewritten)[1], times(&purged)[1]);
        let same = |a: &Directory, b: &Directory| {
            let sections = |directory: &Directory| {
                let bytes = directory.to_snapshot().unwrap();
                let head = SnapshotHead::parse(&bytes).unwrap();
                let facts = head.section(SectionKind::Facts).unwrap();
                let behind = (facts.offset + facts.len).next_multiple_of(128) as usize;
                bytes[behind..].to_vec()
            };
            sections(a) == sections(b)
        };
        assert!(same(&rewritten, &purged), "window {window}");
        // Chunks that end within others replace nothing.
        assert!(before.rewritten(&rewrite(&heads[..1])).is_err() || heads.len() == 1);
    }
}

#[test]
fn a_rebuild_takes_nothing_of_an_abandoned_import() {
    let mut image = Image::new(1, Pack::Aligned);
    image.add(&folder(2, 30), 1, 60, &[]);
    // Generation 2 is written but not committed; then another, shorter generation 2 is written.
    image.stop_commit_after = 0;
    image.add(&folder(6, 60), 5, 0, &[]);
    image.stop_commit_after = usize::MAX;
    image.time_ns += 1000;
    image.add(&[sample("only", None, 10)], 5, 0, &[]);
    let (current, _) = image.open();
    assert_eq!(current.num_samples(), 61);
    let heads = image.heads();
    assert!(heads.iter().any(|head| head.end_slot().0 > 61), "the first attempt lies there still");
    assert_eq!(rebuild(&image, None).to_snapshot().unwrap(), current.to_snapshot().unwrap());
    // If its own chunk is lost, too, no chunk of the other attempt replaces it.
    let (_, record) = record(&image, &heads).unwrap();
    let is_own = |head: &ChunkHead| head.id.generation.0 == 2 && head.num_samples == 1;
    let mut fewer = heads.clone();
    fewer.retain(|head| !is_own(head));
    assert_eq!(fewer.len(), heads.len() - 1);
    let selection = select_chunks(None, &fewer, Some(&record), MOST_SLOTS).unwrap();
    assert_eq!(selection.lost_samples, 1);
}

#[test]
fn a_lost_chunk_costs_its_own_samples_and_no_others() {
    let image = lived_in();
    let (current, _) = image.open();
    let heads = image.heads();
    let (_, record) = record(&image, &heads).unwrap();
    for lost in heads.iter().filter(|head| head.kind == ChunkKind::Samples) {
        let mut fewer = heads.clone();
        fewer.retain(|head| head.id != lost.id);
        let selection = select_chunks(None, &fewer, Some(&record), MOST_SLOTS).unwrap();
        assert_eq!(selection.lost_samples, u64::from(lost.num_samples));
        let rebuilt = carry_out(&image, &selection, &fewer, None);
        assert_eq!(rebuilt.num_samples(), current.num_samples());
        for id in (0..current.num_samples()).map(SampleId) {
            let slot = current.slot_of(id).unwrap();
            if (lost.first_slot..lost.end_slot()).contains(&slot) {
                assert!(!rebuilt.is_live(id));
            } else {
                assert_eq!(rebuilt.extent(id), current.extent(id));
                assert_eq!(rebuilt.label(id), current.label(id));
                assert_eq!(rebuilt.name(id), current.name(id));
            }
        }
        // Such a directory can be committed and opened again.
        let again = Directory::from_snapshot(rebuilt.to_snapshot().unwrap()).unwrap();
        assert_eq!(again.num_live(), rebuilt.num_live());
        assert!(
            (0..again.num_chunks())
                .all(|c| again.samples_in_chunk(c).count() as u32 == again.live_in_chunk(c))
        );
    }
}

#[test]
fn without_a_record_the_parts_come_from_the_chunks_and_deletions_are_unknown() {
    let image = lived_in();
    let (current, _) = image.open();
    let mut heads = image.heads();
    heads.retain(|head| head.kind == ChunkKind::Samples);
    let selection = select_chunks(None, &heads, None, MOST_SLOTS).unwrap();
    let rebuilt = carry_out(&image, &selection, &heads, None);
    assert!(rebuilt.parts().eq(current.parts()));
    assert_eq!((selection.lost_samples, rebuilt.num_live()), (0, 220));
}

#[test]
fn chunks_sort_by_their_id_in_the_order_of_writing() {
    let image = lived_in();
    let mut heads = image.heads();
    heads.retain(|head| head.kind == ChunkKind::Samples);
    heads.sort_by_key(|head| head.id);
    assert!(heads.is_sorted_by_key(|head| head.time_ns));
    assert!(heads.iter().any(|head| head.id.generation.0 == 3));
}

#[test]
fn a_head_that_names_a_slot_far_away_does_not_make_a_directory_larger_than_the_image() {
    let image = lived_in();
    let mut heads = image.heads();
    heads.retain(|head| head.kind == ChunkKind::Samples);
    heads[0].first_slot.0 = 1 << 39;
    heads[0].part.first = 1 << 38;
    assert!(select_chunks(None, &heads, None, MOST_SLOTS).is_err());
    let mut builder = DirectoryBuilder::new(image.layout);
    let far = Part { first: 0, count: 0, seed: 0, window: 0 };
    assert!(builder.add_lost(far, u64::MAX).is_err());
    assert!(builder.add_lost(far, 1 << 41).is_err());
}

#[test]
fn headers_that_contradict_each_other_are_refused() {
    let image = lived_in();
    let (current, _) = image.open();
    let first = current.chunk_id(0);
    let heads = image.heads();
    let head = heads.iter().find(|head| head.id == first).unwrap();
    let mut twice = DirectoryBuilder::new(image.layout);
    twice.add_chunk(&image.header(head)).unwrap();
    assert!(twice.add_chunk(&image.header(head)).is_err(), "the same slots twice");
    // The ids in a truncated part differ from those in its headers.
    assert!(twice.finish(Generation(1), 0).is_err());
    let mut other = image.layout;
    other.uuid = dlfs::format::Uuid([1; 16]);
    assert!(DirectoryBuilder::new(other).add_chunk(&image.header(head)).is_err());
}

/// An image of 8 MiB in chunks of 1 MiB, at the start of a disk of 32 MiB, of as many generations.
fn imported(generations: u64) -> (tempfile::TempDir, Disks) {
    let dir = tempfile::tempdir().unwrap();
    let disks = Disks::new(1, 32 << 20);
    for generation in 1..=generations {
        let part = dir.path().join(generation.to_string());
        tree(&part, 20, (16 << 20) / 20 / generations as usize, generation);
        let onto = if generation == 1 { Onto::Empty } else { Onto::Append };
        let options = ImportOptions { chunk_size_bytes: 1 << 20, ..options(onto) };
        import_onto(&paths(&part), &disks.devices(), &options, &mut ()).unwrap();
    }
    (dir, disks)
}

fn superblock(disks: &Disks) -> dlfs::format::Superblock {
    let image = dlfs::dataset::Image::from_devices(disks.devices(), &OpenOptions::default());
    image.unwrap().superblocks()[0]
}

/// The same disks with the current snapshot zeroed, cut off at `len` bytes.
fn without_snapshot(disks: &Disks, len: usize) -> Disks {
    let mut bytes = disks.contents().remove(0);
    let snapshot = superblock(disks).snapshot;
    bytes[snapshot.offset_bytes as usize..][..snapshot.len_bytes as usize].fill(0);
    bytes.truncate(len);
    Disks::holding(&[bytes])
}

#[test]
fn a_rebuild_reads_headers_alone_since_any_generation() {
    let (_dir, disks) = imported(3);
    let files = contents(&disks.devices()).unwrap();
    let used = superblock(&disks).used_len_bytes;
    assert!(used > 7 << 20, "{used} bytes");
    // The older generations, and whose directory is at hand then: the newest one's is damaged.
    let mut all = 0;
    for (since, base) in [(None, None), (Some(1), None), (Some(2), Some(2)), (Some(3), Some(2))] {
        let disks = without_snapshot(&disks, 32 << 20);
        disks.read_bytes();
        let report = rebuild_on(&disks.devices(), since.map(Generation), &mut ()).unwrap();
        let read = disks.read_bytes();
        println!("since {since:?}: {read} of {used} bytes read");
        assert_eq!((report.generation, report.lost_samples), (Generation(3), 0));
        assert_eq!((report.live_samples, report.base), (60, base.map(Generation)));
        assert_eq!(contents(&disks.devices()).unwrap(), files, "since {since:?}");
        assert!(read < used / 20, "since {since:?}: {read} of {used} bytes");
        all = all.max(read);
        assert!(base.is_none() || read < all, "since {since:?}: {read} bytes, {all} without");
    }
    let error = rebuild_on(&disks.devices(), Some(Generation(4)), &mut ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
}

/// Without superblocks nothing says which generation there is; after a purge, chunks may have been overwritten.
#[test]
fn a_rebuild_reads_all_where_a_chunk_may_hide_in_another() {
    let (_dir, disks) = imported(1);
    let used = superblock(&disks).used_len_bytes;
    let mut files = contents(&disks.devices()).unwrap();
    let mut bytes = disks.contents().remove(0);
    bytes[..64 << 10].chunks_mut(32 << 10).for_each(|copy| copy[..4096].fill(0));
    let bare = Disks::holding(&[bytes]);
    rebuild_on(&bare.devices(), None, &mut ()).unwrap();
    assert!(bare.read_bytes() > used, "no superblock says what is current");
    assert_eq!(contents(&bare.devices()).unwrap(), files);
    let (doomed, _) = files.pop_last().unwrap();
    import::delete_on(&disks.devices(), &[doomed]).unwrap();
    disks.read_bytes();
    rebuild_on(&disks.devices(), None, &mut ()).unwrap();
    let read = disks.read_bytes();
    assert!((1 << 19..4 << 20).contains(&read), "one chunk has deleted samples: {read} bytes");
    assert_eq!(contents(&disks.devices()).unwrap(), files);
}

/// A purge wrote within a chunk that an earlier one had given up, and left its head as it was.
#[test]
fn a_rebuild_finds_a_chunk_that_was_written_within_another() {
    let mut image = Image::new(1, Pack::Aligned);
    let source = folder(3, 50);
    image.add(&source, 9, 150, &[]);
    let heads: Vec<ChunkHead> = image.heads();
    let first: Vec<CellRange> =
        heads.iter().map(|head| CellRange { cells: 1, ..head.cell_range() }).collect();
    image.delete(&(0..150).filter(|id| id % 3 != 0).collect::<Vec<_>>());
    purge(&mut image, &source);
    let between = image.heads();
    image.delete(&(0..150).filter(|id| id % 3 == 0 && id % 30 != 0).collect::<Vec<_>>());
    purge_beside(&mut image, &source, &first);
    let (purged, superblock) = image.open();
    let hidden = purged.chunk(0).offset_bytes / image.layout.cell_bytes();
    let hides = |head: &ChunkHead| {
        let cells = head.cell_range();
        (cells.cell + 1..cells.cell + cells.cells).contains(&hidden)
    };
    assert_eq!(purged.num_chunks(), 1);
    assert!(heads.iter().any(hides), "cell {hidden} is within none of {heads:?}");
    // Nothing of the purge in between is left.
    for head in between.iter().filter(|head| head.id.generation == Generation(3)) {
        let at = image.layout.offset_of(head.cell).unwrap();
        image.write(0, at, &[0; 128]);
    }
    for snapshot_is_there in [true, false] {
        if !snapshot_is_there {
            let place = superblock.snapshot;
            image.write(0, place.offset_bytes, &vec![0; place.len_bytes as usize]);
        }
        let mut bytes = image.namespaces[0].clone();
        bytes.resize(bytes.len() + (64 << 10), 0);
        let disks = Disks::holding(&[bytes]);
        let report = rebuild_on(&disks.devices(), None, &mut ()).unwrap();
        assert_eq!((report.live_samples, report.lost_samples), (5, 0));
        let found = dlfs::dataset::Image::from_devices(disks.devices(), &OpenOptions::default());
        let found = found.unwrap();
        found.load_names().unwrap();
        let found = found.directory().to_snapshot().unwrap();
        assert!(found == purged.to_snapshot().unwrap(), "snapshot: {snapshot_is_there}");
    }
}

#[test]
fn a_rebuild_of_a_full_namespace_writes_its_directory_where_it_was() {
    for generations in [1, 2] {
        let (_dir, disks) = imported(generations);
        let files = contents(&disks.devices()).unwrap();
        let used = superblock(&disks).used_len_bytes as usize;
        let full = without_snapshot(&disks, used);
        for what in ["the snapshot is damaged", "all is whole"] {
            let report = rebuild_on(&full.devices(), None, &mut ()).unwrap();
            assert_eq!(report.generation, Generation(generations), "{what}");
            assert_eq!(contents(&full.devices()).unwrap(), files, "{what}");
        }
    }
}
