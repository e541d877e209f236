//! The directory's answers, for images of every shape.

use crate::images::{Image, Sample, folder, sample};
use dlfs::buf::IoBuf;
use dlfs::directory::{Directory, DirectoryBuilder, EntryKind};
use dlfs::format::builder::ChunkLocation;
use dlfs::format::{ChunkBuilder, ChunkSpec, FormatError, Pack, Part, Placement, SampleMeta};
use dlfs::units::{Generation, SampleId, Slot};
use proptest::prelude::*;

/// Checks everything that is known of a sample by its id, and all ways to find it, against the source.
fn check(image: &Image, directory: &Directory, source: &[Sample], deleted: &[u64]) {
    assert_eq!(directory.num_samples(), source.len() as u64);
    assert_eq!(directory.num_live(), (source.len() - deleted.len()) as u64);
    let mut rank = 0;
    for (id, sample) in (0..).zip(source) {
        let sample_id = SampleId(id);
        assert_eq!(directory.name(sample_id).unwrap().as_deref(), Some(&sample.name[..]));
        if deleted.contains(&id) {
            assert!(!directory.is_live(sample_id) && directory.extent(sample_id).is_none());
            assert!(directory.label(sample_id).is_none());
            assert!(directory.len_bytes(sample_id).is_none());
            assert_eq!(directory.lookup(&sample.name).unwrap(), None);
            continue;
        }
        assert_eq!(image.sample(directory, id), sample.record, "bytes of {id}");
        assert_eq!(directory.label(sample_id), sample.label);
        assert_eq!(directory.len_bytes(sample_id), Some(sample.record.len() as u32));
        assert_eq!(directory.lookup(&sample.name).unwrap(), Some(sample_id));
        assert_eq!(directory.id_of_live(rank), sample_id);
        assert_eq!(directory.rank_of(sample_id), rank);
        let chunk = directory.chunk(directory.chunk_of(sample_id).unwrap());
        let slot = directory.slot_of(sample_id).unwrap();
        assert!(
            (chunk.first_slot.0..chunk.first_slot.0 + u64::from(chunk.num_slots)).contains(&slot.0)
        );
        rank += 1;
    }
    let mut seen = vec![false; source.len()];
    let mut next = 0;
    for c in 0..directory.num_chunks() {
        let info = directory.chunk(c);
        assert_eq!(info.first_slot, Slot(next), "chunks are in the order of slots");
        next += u64::from(info.num_slots);
        let mut nth = 0;
        for (id, extent) in directory.samples_in_chunk(c) {
            assert_eq!(directory.extent(id), Some(extent));
            assert_eq!(directory.id_in_chunk(c, nth), id);
            assert_eq!(directory.chunk_of(id), Some(c));
            let end = extent.offset_bytes + u64::from(extent.len_bytes);
            assert!(extent.offset_bytes >= info.offset_bytes + info.header_bytes);
            assert!(end <= info.offset_bytes + info.len_bytes);
            assert!(!std::mem::replace(&mut seen[id.0 as usize], true), "{id} twice");
            nth += 1;
        }
        assert_eq!(directory.live_in_chunk(c), nth);
    }
    let live = seen.iter().filter(|seen| **seen).count();
    assert_eq!(live as u64, directory.num_live());
    let beyond = SampleId(source.len() as u64);
    assert!(!directory.is_live(beyond) && directory.extent(beyond).is_none());
    assert!(directory.extent(SampleId(u64::MAX)).is_none());
    assert_eq!(directory.name(beyond).unwrap(), None);
    assert_eq!(directory.lookup(b"no such name").unwrap(), None);
}

#[test]
fn every_sample_is_found_by_id_and_by_name_in_every_kind_of_image() {
    let source = folder(5, 60);
    for pack in [Pack::Aligned, Pack::Tight] {
        for namespaces in [1, 3] {
            for window in [0, 300, 64] {
                let mut image = Image::new(namespaces, pack);
                let written = image.add(&source, 9, window, &[]);
                let (read, _) = image.open();
                check(&image, &written, &source, &[]);
                check(&image, &read, &source, &[]);
                assert_eq!(read.to_snapshot().unwrap(), written.to_snapshot().unwrap());
            }
        }
    }
}

#[test]
fn chunks_go_round_the_namespaces() {
    let mut image = Image::new(3, Pack::Aligned);
    let directory = image.add(&folder(5, 60), 9, 300, &[]);
    let namespaces: Vec<u16> = (0..6).map(|c| directory.chunk(c).namespace).collect();
    assert_eq!(namespaces, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn oversize_empty_and_long_named_samples_have_their_places() {
    let long = "x".repeat(4096);
    let source = vec![
        sample("a/big", None, 200_000),
        sample("a/empty", Some(-5), 0),
        sample("a/exactly one chunk less its header", None, (64 << 10) - 4096),
        sample("a/one byte more", None, (64 << 10) - 4095),
        sample(&long, Some(i64::MAX), 10),
        sample("z", None, 1),
    ];
    for window in [0, 6] {
        let mut image = Image::new(2, Pack::Aligned);
        image.add(&source, 1, window, &[]);
        check(&image, &image.open().0, &source, &[]);
    }
}

#[test]
fn appending_and_deleting_make_generations_and_keep_ids() {
    let mut image = Image::new(2, Pack::Aligned);
    let mut source = folder(3, 50);
    image.add(&source, 9, 150, &[]);
    image.delete(&[0, 7, 149]);
    check(&image, &image.open().0, &source, &[0, 7, 149]);
    let more: Vec<Sample> = (0..70).map(|i| sample(&format!("more/{i}"), None, i * 100)).collect();
    image.add(&more, 10, 16, &[]);
    source.extend(more);
    image.delete(&[160, 7]);
    let (directory, superblock) = image.open();
    assert_eq!(directory.generation().0, 4);
    assert_eq!(superblock.num_live, 220 - 4);
    check(&image, &directory, &source, &[0, 7, 149, 160]);
}

#[test]
fn the_newest_sample_of_a_name_is_found_and_the_older_one_after_it_is_deleted() {
    let mut image = Image::new(1, Pack::Aligned);
    image.add(&[sample("same", None, 1), sample("other", None, 2)], 0, 0, &[]);
    image.add(&[sample("same", None, 3)], 0, 0, &[]);
    assert_eq!(image.open().0.lookup(b"same").unwrap(), Some(SampleId(2)));
    image.delete(&[2]);
    assert_eq!(image.open().0.lookup(b"same").unwrap(), Some(SampleId(0)));
}

#[test]
fn a_folder_lists_its_subfolders_and_samples_in_order() {
    let names = ["b/x", "a", "b/y/z", "b", "b-/q", "a/1", "b/y/w", "c//d", "/abs"];
    let source: Vec<Sample> = names.iter().map(|name| sample(name, None, 3)).collect();
    let mut image = Image::new(1, Pack::Aligned);
    image.add(&source, 3, 9, &[]);
    let list = |directory: &Directory, folder: &str| -> Vec<(String, Option<u64>)> {
        let entries = directory.list(folder.as_bytes()).unwrap();
        let entry = |entry: dlfs::directory::Entry| {
            let id = match entry.kind {
                EntryKind::Folder => None,
                EntryKind::Sample(id) => Some(id.0),
            };
            (String::from_utf8(entry.name).unwrap(), id)
        };
        entries.into_iter().map(entry).collect()
    };
    let entry = |name: &str, id: Option<u64>| (name.to_string(), id);
    let (directory, _) = image.open();
    let root = [
        ("", None),
        ("a", Some(1)),
        ("a", None),
        ("b", Some(3)),
        ("b", None),
        ("b-", None),
        ("c", None),
    ];
    assert_eq!(list(&directory, ""), root.map(|(name, id)| entry(name, id)));
    assert_eq!(list(&directory, "b"), [entry("x", Some(0)), entry("y", None)]);
    assert_eq!(list(&directory, "b/"), list(&directory, "b"));
    assert_eq!(list(&directory, "b/y"), [entry("w", Some(6)), entry("z", Some(2))]);
    assert_eq!(list(&directory, "c"), [entry("", None)]);
    assert_eq!(list(&directory, "c//"), [entry("d", Some(7))]);
    assert_eq!(list(&directory, "/"), [entry("abs", Some(8))]);
    assert_eq!(list(&directory, "nowhere"), []);
    // Deleted samples are not listed, nor are folders in which everything is deleted.
    image.delete(&[4, 0]);
    let (directory, _) = image.open();
    assert_eq!(list(&directory, "b"), [entry("y", None)]);
    assert_eq!(list(&directory, "b-"), []);
    assert!(!list(&directory, "").contains(&entry("b-", None)));
    let mut below = Vec::new();
    directory
        .for_each_below(b"b", &mut |id, _| {
            below.push(id.0);
            true
        })
        .unwrap();
    assert_eq!(below, [6, 2]);
}

#[test]
fn names_may_stay_on_media_until_they_are_asked_for() {
    let mut image = Image::new(1, Pack::Aligned);
    let source = folder(2, 40);
    let whole = image.add(&source, 2, 80, &[]).to_snapshot().unwrap();
    let head = dlfs::format::snapshot::SnapshotHead::parse(&whole).unwrap();
    let (core, names) = whole.split_at(head.core_len() as usize);
    assert!(!names.is_empty());
    let directory = Directory::from_snapshot(core.to_vec()).unwrap();
    assert!(!directory.has_names());
    let missing = FormatError::NotLoaded { what: "names" };
    assert_eq!(directory.lookup(&source[3].name), Err(missing.clone()));
    assert_eq!(directory.name(SampleId(3)), Err(missing.clone()));
    assert_eq!(directory.list(b""), Err(missing.clone()));
    assert_eq!(directory.to_snapshot(), Err(missing));
    assert_eq!(image.sample(&directory, 3), source[3].record);
    let mut damaged = names.to_vec();
    damaged[0] ^= 1;
    assert!(directory.attach_names(damaged).is_err());
    directory.attach_names(names.to_vec()).unwrap();
    check(&image, &directory, &source, &[]);
}

#[test]
fn fields_and_classes_are_kept() {
    let mut image = Image::new(1, Pack::Aligned);
    let written = image.add(&folder(2, 3), 2, 6, &["jpg", "txt"]);
    assert_eq!(written.fields(), [b"jpg".to_vec(), b"txt".to_vec()]);
    assert_eq!(image.open().0.fields(), written.fields());
}

#[test]
fn a_directory_costs_at_most_20_bytes_a_sample_beside_names_and_labels() {
    for pack in [Pack::Aligned, Pack::Tight] {
        // 64 KiB chunks of 600-byte samples: about 80 per chunk, near the smallest number for which the
        // limit holds.
        let source: Vec<Sample> =
            (0..20_000).map(|i| sample(&format!("class/{i:06}"), Some(i % 10), 600)).collect();
        let mut image = Image::new(1, pack);
        let imported = image.add(&source, 3, 20_000, &[]);
        let (opened, _) = image.open();
        for directory in [imported, opened, image.delete(&[0, 7, 19_999])] {
            let samples_a_chunk = 20_000 / u64::from(directory.num_chunks());
            assert!((64..128).contains(&samples_a_chunk), "{samples_a_chunk} samples a chunk");
            let memory = directory.memory_bytes();
            assert!(memory.core() <= 20 * 20_000, "{memory:?}");
            assert!(memory.labels <= 20_000 + 64 && memory.core() < memory.total(), "{memory:?}");
        }
    }
}

#[test]
fn a_million_samples_of_64_a_chunk_cost_at_most_20_bytes_each_and_are_found_in_4_steps() {
    let samples = 1_000_000;
    let layout = Image::new(1, Pack::Aligned).layout;
    let part = Part { first: 0, count: samples, seed: 1, window: samples };
    let placement = Placement::new(part);
    let spec = ChunkSpec {
        layout,
        generation: Generation(1),
        part,
        fields: Vec::new(),
        field_types: Default::default(),
        columns: Vec::new(),
    };
    let name_of = |id: SampleId| format!("class{:03}/{:07}", id.0 / 1000, id.0).into_bytes();
    let mut builder = DirectoryBuilder::new(layout);
    let mut buf = IoBuf::zeroed(ChunkBuilder::buf_len_bytes(&layout));
    for first in (0..samples).step_by(64) {
        let mut chunk = ChunkBuilder::new(spec.clone(), Slot(first), buf).unwrap();
        for slot in first..(first + 64).min(samples) {
            let id = placement.id_at(Slot(slot));
            chunk
                .add(
                    &SampleMeta { id, name: &name_of(id), label: None, values: Default::default() },
                    id.0 as u32 % 60,
                )
                .unwrap();
        }
        let sequence = first / 64;
        let cell = sequence + 1;
        let location = ChunkLocation { sequence, time_ns: 1, namespace: 0, cell };
        let finished = chunk.finish(location);
        builder.add_chunk(&finished.header).unwrap();
        buf = finished.buf;
    }
    let directory = builder.finish(Generation(1), 1).unwrap();
    let deleted: Vec<SampleId> = (0..samples).step_by(3).map(SampleId).collect();
    let fewer = directory.with_deleted(&deleted, Generation(2), 2).unwrap();
    for directory in [&directory, &fewer] {
        let memory = directory.memory_bytes();
        assert!(memory.core() <= 18 * samples, "{memory:?}");
        assert_eq!((memory.labels, memory.name_order), (0, 0), "names are in the order of ids");
        assert_eq!(directory.tree_height(), 4);
    }
    for id in (1..samples).step_by(9_999).map(SampleId) {
        assert_eq!(directory.lookup(&name_of(id)).unwrap(), Some(id));
        assert_eq!(directory.len_bytes(id), Some(id.0 as u32 % 60));
        assert_eq!(fewer.is_live(id), id.0 % 3 != 0);
        assert_eq!(fewer.extent(id), directory.extent(id).filter(|_| id.0 % 3 != 0));
    }
    assert_eq!(fewer.id_of_live(1000), SampleId(1501));
}

proptest! {
    #[test]
    fn any_samples_come_back_from_any_image(
        lens in prop::collection::vec(sample_lens(), 1..120),
        labels in any::<u64>(),
        window in prop_oneof![Just(0u64), 1u64..50, Just(1 << 40)],
        seed in any::<u64>(),
        namespaces in 1u16..4,
        tight in any::<bool>(),
        cut in any::<prop::sample::Index>(),
        deleted in prop::collection::btree_set(0u64..120, 0..20),
    ) {
        let source: Vec<Sample> = (0u64..).zip(&lens).map(|(i, len)| {
            let label = (labels >> (i % 64) & 1 == 1).then(|| (i as i64 - 60) << (labels % 40));
            sample(&format!("{}/{i}", i % 7), label, *len)
        }).collect();
        let pack = if tight { Pack::Tight } else { Pack::Aligned };
        let mut image = Image::new(namespaces, pack);
        // Imported in two generations, split anywhere.
        let cut = 1 + cut.index(source.len());
        image.add(&source[..cut], seed, window, &[]);
        if cut < source.len() {
            image.add(&source[cut..], seed ^ 1, window, &[]);
        }
        let deleted: Vec<u64> = deleted.into_iter().filter(|id| *id < lens.len() as u64).collect();
        image.delete(&deleted);
        check(&image, &image.open().0, &source, &deleted);
    }

    #[test]
    fn appending_in_steps_gives_what_copying_every_chunk_gives(
        names in prop::collection::btree_set("[a-c]{1,3}(/[0-9]{1,3})?", 1..150),
        shuffle in any::<u64>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        window in prop_oneof![Just(0u64), 1u64..50, Just(1 << 40)],
        labelled in any::<u64>(),
        deleted in prop::collection::btree_set(0u64..150, 0..20),
    ) {
        let mut names: Vec<String> = names.into_iter().collect();
        // Runs in order, as sources have them, or no order at all.
        match shuffle % 3 {
            0 => names.sort_by_key(|name| name.len()),
            1 => names.sort_by_key(|name| {
                name.bytes().fold(shuffle, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
            }),
            _ => {}
        }
        let source: Vec<Sample> = (0u64..).zip(&names).map(|(i, name)| {
            let label = (labelled >> (i % 64) & 1 == 1).then(|| (i as i64 - 60) << (labelled % 40));
            sample(name, label, (i * 977 % 9000) as usize)
        }).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| 1 + cut.index(source.len())).collect();
        cuts.extend([0, source.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut image = Image::new(2, Pack::Aligned);
        for (step, cut) in cuts.windows(2).enumerate() {
            let before = image.current().map(|(directory, _)| directory);
            let copied = image.add(&source[cut[0]..cut[1]], shuffle ^ step as u64, window, &[]);
            let Some(before) = before else { continue };
            // The same chunks, added to the directory before.
            let mut builder = DirectoryBuilder::after(&before).unwrap();
            let heads = image.heads();
            for c in before.num_chunks()..copied.num_chunks() {
                let head = heads.iter().find(|head| head.id == copied.chunk_id(c)).unwrap();
                builder.add_chunk(&image.header(head)).unwrap();
            }
            builder.set_freed(copied.freed().to_vec());
            let mut merged = builder.finish(copied.generation(), copied.time_ns()).unwrap();
            merged.set_record_range(image.record_range(&heads, copied.generation()));
            prop_assert!(
                merged.to_snapshot().unwrap() == copied.to_snapshot().unwrap(), "step {}", step
            );
            if step == 1 {
                let there: Vec<u64> =
                    deleted.iter().copied().filter(|id| *id < cut[1] as u64).collect();
                image.delete(&there);
            }
        }
    }
}

fn sample_lens() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..50, 4000usize..4200, 0usize..20_000, 60_000usize..140_000]
}
