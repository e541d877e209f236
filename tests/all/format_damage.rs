//! Damaged, truncated and forged bytes: each gives an error or the same meaning, never a panic, and never
//! more memory than the input justifies.

use crate::images::{Image, folder, sample};
use crate::import_support::is_long;
use dlfs::ErrorKind;
use dlfs::directory::{Directory, DirectoryBuilder};
use dlfs::format::names::crc32c;
use dlfs::format::snapshot::{SectionKind, SnapshotHead};
use dlfs::format::superblock::COPY_OFFSETS;
use dlfs::format::superblock_set::{SuperblockCopies, select_generation};
use dlfs::format::{
    ChunkHead, ChunkHeader, FieldTypes, FormatError, GenerationRecord, Pack, Superblock, Uuid,
};
use dlfs::units::{Generation, SampleId};
use proptest::prelude::*;

fn small() -> Image {
    let mut image = Image::new(2, Pack::Aligned);
    let kinds = [Some("f32[3]=npy"), None];
    let kinds = kinds.map(|kind| kind.map(|kind| kind.parse().unwrap()));
    image.field_types = FieldTypes::new(kinds.to_vec());
    image.add(&folder(2, 20), 3, 40, &["a", "b"]);
    image.delete(&[3, 4, 39]);
    image
}

/// Boundary values at which decoders fail.
const EXTREMES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xffff,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 40,
    (1 << 40) + 1,
    1 << 63,
    (1 << 63) - 1,
    u64::MAX,
];

/// Calls every query of a directory, whatever it was decoded from.
fn use_all_of(directory: &Directory) {
    let ids = (0..directory.num_samples().min(200)).chain([u64::MAX, 1 << 40]);
    for id in ids.map(SampleId) {
        let _ = (directory.extent(id), directory.label(id), directory.len_bytes(id));
        let _ = (directory.name(id), directory.chunk_of(id), directory.rank_of(id));
        assert_eq!(directory.extent(id).is_some(), directory.is_live(id));
        if let Some(extent) = directory.extent(id) {
            let chunk = directory.chunk(directory.chunk_of(id).unwrap());
            let end = extent.offset_bytes + u64::from(extent.len_bytes);
            assert!(extent.offset_bytes >= chunk.offset_bytes + chunk.header_bytes);
            assert!(end <= chunk.offset_bytes + chunk.len_bytes && end < 1 << 63);
        }
    }
    for c in 0..directory.num_chunks().min(200) {
        let live = directory.live_in_chunk(c);
        let ids: Vec<SampleId> = directory.samples_in_chunk(c).map(|(id, _)| id).collect();
        assert_eq!(ids.len() as u32, live);
        for nth in 0..live {
            assert_eq!(directory.id_in_chunk(c, nth), ids[nth as usize]);
        }
    }
    for rank in 0..directory.num_live().min(200) {
        let _ = directory.id_of_live(rank);
    }
    let _ = (directory.lookup(b"class00/sample0001.bin"), directory.lookup(b""));
    let _ = (directory.list(b""), directory.list(b"class00"), directory.memory_bytes());
    let _ = (directory.deleted_ranges(), directory.record().encode(0, 1), directory.to_snapshot());
    let _ = directory.cell_ranges().count();
    if directory.num_samples() > 0 {
        let _ = directory.with_deleted(&[SampleId(0)], Generation(9), 0).unwrap();
    }
}

#[test]
fn every_flipped_bit_of_a_superblock_is_seen_and_the_other_copy_is_used() {
    let image = small();
    let [older, newer] = [Generation(1), Generation(2)];
    assert_eq!(image.opened().superblock().generation, newer);
    let block = image.read(0, COPY_OFFSETS[0], 4096).to_vec();
    for bit in 0..4096 * 8 {
        let mut damaged = block.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::parse(&damaged).is_err(), "bit {bit}");
        if bit % 97 == 0 {
            let mut copies = image.copies();
            copies[0] = SuperblockCopies::parse(&damaged, image.read(0, COPY_OFFSETS[1], 4096));
            let opened = select_generation(&copies).unwrap();
            assert_eq!((opened.superblock().generation, opened.unfinished), (older, true));
        }
    }
    for len in 0..4096 {
        assert!(Superblock::parse(&block[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn every_flipped_bit_and_every_cut_of_a_chunk_header_is_seen() {
    let image = small();
    let head = image.heads()[0];
    let bytes = image.first_header();
    let whole = ChunkHeader::parse(&bytes).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        match ChunkHeader::parse(&damaged) {
            // Padding is ignored.
            Ok(header) => assert!(header == whole && bit / 8 >= head.header_len as usize, "{bit}"),
            Err(_) => assert!(bit / 8 < head.header_len as usize, "bit {bit}"),
        }
    }
    for len in 0..head.header_len as usize {
        let cut = ChunkHeader::parse(&bytes[..len]).unwrap_err();
        let known = len >= 128;
        let expected = if known { u64::from(head.header_len) } else { 128 };
        assert!(
            matches!(cut, FormatError::Truncated { expected: e, .. } if e == expected),
            "{len}: {cut}"
        );
    }
}

#[test]
fn every_flipped_bit_of_a_snapshot_is_seen_or_means_nothing() {
    let image = small();
    let (directory, superblock) = image.open();
    let bytes = directory.to_snapshot().unwrap();
    let head = SnapshotHead::parse(&bytes).unwrap();
    let used = |at: usize| {
        let within = |s: &dlfs::format::snapshot::Section| s.offset..s.offset + s.len;
        at < 4096 || head.sections.iter().any(|s| within(s).contains(&(at as u64)))
    };
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        match Directory::from_snapshot(damaged) {
            Ok(same) => {
                assert!(!used(at), "byte {at}");
                same.check_current(&superblock).unwrap();
                assert_eq!(same.to_snapshot().unwrap(), bytes);
            }
            Err(_) => assert!(used(at), "byte {at}"),
        }
    }
    for len in 0..bytes.len() {
        match Directory::from_snapshot(bytes[..len].to_vec()) {
            Ok(core) => assert!(len as u64 >= head.core_len() && !core.has_names(), "{len} bytes"),
            Err(_) => assert!((len as u64) < head.core_len(), "{len} bytes"),
        }
    }
}

#[test]
fn an_image_cut_anywhere_opens_whole_or_is_refused() {
    let image = small();
    let (whole, _) = image.open();
    for namespace in 0..2 {
        for len in (0..image.namespaces[namespace].len()).step_by(4096) {
            let mut cut = image.clone();
            cut.namespaces[namespace].truncate(len);
            let Ok(opened) = select_generation(&cut.copies()) else { continue };
            let superblock = opened.superblock();
            let missing = opened
                .superblocks
                .iter()
                .any(|s| s.used_len_bytes > cut.namespaces[usize::from(s.namespace)].len() as u64);
            // Generation 2 is in copy A, generation 1 in copy B after it.
            assert!(missing, "namespace {namespace} cut to {len} is shorter than it should be");
            let place = superblock.snapshot;
            let bytes = cut.read(place.namespace, place.offset_bytes, place.len_bytes);
            if let Ok(directory) = Directory::from_snapshot(bytes.to_vec()) {
                assert_eq!(directory.num_samples(), whole.num_samples());
            }
        }
    }
}

#[test]
pub fn forged_superblocks_are_refused_or_harmless() {
    let block = small().open().1.encode();
    for at in (8..128).step_by(2) {
        for len in [1, 2, 4, 8] {
            for value in EXTREMES {
                let mut forged = block;
                forged[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
                let crc = crc32c(&forged[..4092]);
                forged[4092..].copy_from_slice(&crc.to_le_bytes());
                let Ok(superblock) = Superblock::parse(&forged) else { continue };
                assert_eq!(Superblock::parse(&superblock.encode()), Ok(superblock));
                let end = superblock.snapshot.offset_bytes + superblock.snapshot.len_bytes;
                assert!(end < 1 << 63 && superblock.used_len_bytes < 1 << 63);
                let _ = select_generation(&[
                    SuperblockCopies::parse(&forged, &[]),
                    SuperblockCopies::parse(&[], &forged),
                ]);
            }
        }
    }
}

#[test]
pub fn forged_chunk_headers_are_refused_or_harmless() {
    let image = small();
    let head = image.heads()[0];
    let bytes = image.first_header();
    let header_len = head.header_len as usize;
    for at in 8..header_len.min(400) {
        for len in [1, 2, 4, 8] {
            for value in EXTREMES {
                let mut forged = bytes.clone();
                forged[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
                seal_chunk(&mut forged);
                let _ = ChunkHead::parse(&forged).map(|head| (head.cell_range(), head.len_bytes()));
                let Ok(header) = ChunkHeader::parse(&forged) else { continue };
                for sample in header.samples() {
                    let end = sample.offset_bytes + u64::from(sample.len_bytes);
                    assert!(end <= header.head().len_bytes(), "a sample past its chunk");
                    assert!(sample.name.len() <= 4096 && sample.id.0 < 1 << 40);
                }
                assert!(header.fields().count() == usize::from(header.head().num_fields));
                let mut builder = DirectoryBuilder::new(image.layout);
                if builder.add_chunk(&header).is_ok()
                    && let Ok(directory) = builder.finish(Generation(1), 0)
                {
                    use_all_of(&directory);
                }
            }
        }
    }
}

#[test]
pub fn forged_generation_records_are_refused_or_harmless() {
    let bytes = small().open().0.record().encode(0, 1);
    let used = u32::from_le_bytes(*bytes[12..].first_chunk().unwrap()) as usize;
    for at in 8..used {
        for len in [1, 2, 4, 8] {
            for value in EXTREMES {
                let mut forged = bytes.clone();
                forged[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
                seal_chunk(&mut forged);
                if let Ok((_, record)) = GenerationRecord::parse(&forged) {
                    let again = record.encode(0, 1);
                    assert_eq!(GenerationRecord::parse(&again).unwrap().1.deleted, record.deleted);
                }
            }
        }
    }
}

#[test]
fn a_record_that_claims_slots_past_all_samples_is_refused() {
    let mut forged = small().open().0.record().encode(0, 1);
    forged[56..64].fill(0xff); // first slot
    forged[112..114].copy_from_slice(&40_u16.to_le_bytes()); // samples
    seal_chunk(&mut forged);
    let refused = ChunkHead::parse(&forged).unwrap_err();
    assert!(refused.to_string().contains("first slot of a chunk"), "{refused}");
}

/// Recomputes both checksums of a chunk's header, as far as its length allows.
fn seal_chunk(bytes: &mut [u8]) {
    let header_len = u32::from_le_bytes(*bytes[12..].first_chunk().unwrap()) as usize;
    if (128..=bytes.len()).contains(&header_len) {
        let crc = crc32c(&bytes[128..header_len]);
        bytes[120..124].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32c(&bytes[..124]);
    bytes[124..128].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn forged_snapshots_are_refused_or_harmless() {
    let bytes = small().open().0.to_snapshot().unwrap();
    let head = SnapshotHead::parse(&bytes).unwrap();
    let mut places: Vec<usize> = (8..128 + 32 * head.sections.len()).collect();
    for section in &head.sections {
        places
            .extend((section.offset..section.offset + section.len.min(120)).map(|at| at as usize));
    }
    // Other places every time; all of them with `DLFS_LONG_TESTS`.
    let step = if is_long() { 1 } else { 5 };
    let seed: usize =
        std::env::var("DLFS_FUZZ_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    println!("seed {seed}");
    let mut accepted = 0;
    for at in places.into_iter().skip(seed % step).step_by(step) {
        for len in [1, 4, 8] {
            for value in EXTREMES {
                let mut forged = bytes.clone();
                forged[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
                seal_snapshot(&mut forged);
                if let Ok(directory) = Directory::from_snapshot(forged) {
                    accepted += 1;
                    use_all_of(&directory);
                }
            }
        }
    }
    assert!(accepted > 100 / step, "the forgeries get past the checksums: {accepted}");
}

/// Recomputes all checksums of a snapshot, as far as its sections lie within it.
fn seal_snapshot(bytes: &mut [u8]) {
    let sections = usize::from(u16::from_le_bytes([bytes[10], bytes[11]])).min(64);
    for section in (0..sections).map(|i| 128 + i * 32) {
        let number = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        let offset = number(section + 8);
        let len = number(section + 16);
        let range = offset as usize..offset.saturating_add(len) as usize;
        if let Some(content) = bytes.get(range) {
            let crc = crc32c(content);
            bytes[section + 4..section + 8].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let crc = crc32c(&bytes[..4092]);
    bytes[4092..4096].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn chunks_that_overlap_or_lie_outside_the_image_are_refused() {
    let bytes = small().open().0.to_snapshot().unwrap();
    let head = SnapshotHead::parse(&bytes).unwrap();
    let chunks = head.section(SectionKind::Chunks).unwrap().offset as usize;
    let refused = |at: usize, value: u64, len: usize| {
        let mut forged = bytes.clone();
        forged[chunks + at..chunks + at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        seal_snapshot(&mut forged);
        Directory::from_snapshot(forged).is_err()
    };
    assert!(refused(0, 1, 8), "the first slot is 0");
    assert!(refused(40, 0, 8), "the second chunk begins where the first does");
    assert!(refused(40, 1 << 40, 8), "a chunk begins behind the last slot");
    assert!(refused(8, 1 << 60, 8), "a cell past 2^63 bytes");
    assert!(refused(38, 2, 2), "a namespace that the image does not have");
    assert!(refused(32, 1, 4), "samples past the end of their chunk");
    assert!(refused(32, 17, 4), "a chunk of several samples longer than a cell");
    assert!(refused(36, 0xffff, 2), "data that begins behind the chunk");
}

/// It would be returned as verified, although its checksum is that of other bytes.
#[test]
fn a_sample_whose_length_alone_became_zero_is_refused() {
    let mut image = Image::new(1, Pack::Aligned);
    image.add(&[sample("a", None, 0), sample("b", None, 4096)], 0, 0, &[]);
    let bytes = image.open().0.to_snapshot().unwrap();
    let lengths =
        SnapshotHead::parse(&bytes).unwrap().section(SectionKind::Lengths).unwrap().offset;
    let mut forged = bytes.clone();
    forged[lengths as usize..lengths as usize + 8].fill(0);
    seal_snapshot(&mut forged);
    let error = Directory::from_snapshot(forged).unwrap_err();
    assert!(error.to_string().contains("checksum of an empty sample"), "{error}");
    assert!(Directory::from_snapshot(bytes).is_ok(), "one that is empty is not");

    let mut header = image.first_header();
    // Behind the lengths of both samples, the checksum of the first.
    let lengths = usize::from(header[128 + 1]);
    header[128 + 2 + lengths + 2] ^= 1;
    seal_chunk(&mut header);
    let error = ChunkHeader::parse(&header).unwrap_err();
    assert!(error.to_string().contains("checksum of an empty sample"), "{error}");
}

#[test]
fn mixed_images_namespaces_and_generations_are_told_apart() {
    let mut image = Image::new(2, Pack::Aligned);
    image.add(&folder(2, 20), 3, 40, &[]);
    let old = image.copies();
    image.delete(&[1]);
    image.delete(&[2]);
    let now = image.copies();
    assert_eq!(select_generation(&now).unwrap().given, [0, 1]);
    let swapped = select_generation(&[now[1].clone(), now[0].clone()]).unwrap();
    assert_eq!(swapped.given, [1, 0]);
    assert_eq!(swapped.superblock().namespace, 0);
    let refused = |given: &[SuperblockCopies]| select_generation(given).unwrap_err();
    let why = |given: &[SuperblockCopies]| refused(given).to_string();
    assert_eq!(why(&[]), "no namespace was given");
    assert_eq!(why(&now[..1]), "the image has 2 namespaces; namespace 1 was not given");
    assert_eq!(why(&now[1..]), "the image has 2 namespaces; namespace 0 was not given");
    assert_eq!(
        why(&[now[0].clone(), now[0].clone()]),
        "namespaces 0 and 1 of the list are both namespace 0 of the image"
    );
    let mixed = refused(&[now[0].clone(), old[1].clone()]);
    assert_eq!(mixed.kind(), ErrorKind::Corrupt);
    assert_eq!(mixed.to_string(), "namespace 1 of the image is at generation 1, the image at 3");
    let taken_back = "namespace 1 of the image is at generation 3, the image at 1";
    let back = [old[0].clone(), now[1].clone()];
    assert_eq!(why(&back), taken_back, "namespace 0 alone was taken back");
    let mut other = Image::new(2, Pack::Aligned);
    other.layout.uuid = Uuid([1; 16]);
    other.add(&folder(1, 4), 0, 0, &[]);
    let both = why(&[now[0].clone(), other.copies()[1].clone()]);
    assert!(both.contains("namespace 1 of the list belongs to image 01010101"), "{both}");
    let blank = refused(&[now[0].clone(), SuperblockCopies::parse(&[0; 4096], &[])]);
    assert_eq!(blank.kind(), ErrorKind::NotFound);
    assert_eq!(blank.to_string(), "namespace 1 of the list holds no dlfs image");
    let mut torn = image.read(1, 0, 4096).to_vec();
    torn[100..].fill(0); // within the sector that holds all differences
    let torn = refused(&[now[0].clone(), SuperblockCopies::parse(&torn, &torn)]);
    assert_eq!(torn.kind(), ErrorKind::Corrupt);
    assert_eq!(torn.to_string(), "namespace 1 of the list has no valid superblock");
}

#[test]
fn an_import_that_stops_anywhere_in_its_commit_leaves_the_old_generation_or_the_new_one() {
    let mut before = Image::new(3, Pack::Aligned);
    before.add(&folder(2, 20), 3, 40, &[]);
    let mut seen = Vec::new();
    for steps in 0..=9 {
        let mut image = before.clone();
        image.stop_commit_after = steps;
        image.add(&[sample("more", None, 5)], 1, 0, &[]);
        let opened = image.opened();
        let (directory, _) = image.open();
        let expected = if opened.superblock().generation.0 == 2 { 41 } else { 40 };
        assert_eq!(directory.num_samples(), expected);
        (0..expected).for_each(|id| drop(image.sample(&directory, id)));
        seen.push((opened.superblock().generation.0, opened.unfinished));
    }
    // Three flushes, two writes, two flushes: at all these points the old generation opens.
    assert_eq!(seen[..4], [(1, false); 4]);
    assert_eq!(seen[4..8], [(1, true); 4]);
    assert_eq!(seen[8..], [(2, false); 2]);
}

#[test]
fn what_generation_g_freed_is_whole_in_g_plus_1_and_used_again_in_g_plus_2() {
    let mut image = Image::new(1, Pack::Aligned);
    image.add(&folder(2, 20), 3, 40, &[]);
    let mut snapshots = Vec::new();
    for id in 0..6 {
        let (_, superblock) = image.open();
        snapshots.push(superblock.snapshot);
        let before = image.clone();
        image.delete(&[id]);
        // Everything that the previous generation read is unchanged.
        let (directory, superblock) = before.open();
        for run in directory.cell_ranges().chain([superblock.snapshot_range()]) {
            let offset = before.layout.offset_of(run.cell).unwrap();
            let len = run.cells * before.layout.cell_bytes();
            let then = before.read(run.namespace, offset, len);
            assert_eq!(image.read(run.namespace, offset, then.len() as u64), then);
        }
    }
    let offset = |generation: usize| snapshots[generation].offset_bytes;
    assert_ne!(offset(1), offset(0));
    assert_ne!(offset(2), offset(0), "freed in generation 2, not written in 3");
    assert_eq!(offset(3), offset(0), "but in 4");
    let distinct: std::collections::HashSet<u64> =
        snapshots.iter().map(|s| s.offset_bytes).collect();
    assert_eq!(distinct.len(), 3, "three places take turns, however many generations");
}

#[test]
fn a_saved_snapshot_is_refused_when_the_image_has_moved_on() {
    let mut image = small();
    let (saved, superblock) = image.open();
    saved.check_current(&superblock).unwrap();
    image.delete(&[7]);
    let (_, now) = image.open();
    let stale = saved.check_current(&now).unwrap_err();
    let expected = now.generation.0;
    let found = superblock.generation.0;
    assert_eq!(
        stale,
        FormatError::Mismatch { what: "generation of the snapshot", expected, found }
    );
    let mut other = superblock;
    other.layout.uuid = Uuid([1; 16]);
    assert!(matches!(saved.check_current(&other), Err(FormatError::OtherImage { .. })));
    let mut same_numbers = superblock;
    same_numbers.snapshot.head_crc32c ^= 1;
    assert!(saved.check_current(&same_numbers).is_err(), "another attempt at this generation");
}

proptest! {
    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..6000)) {
        prop_assert!(Superblock::parse(&bytes).is_err());
        prop_assert!(ChunkHeader::parse(&bytes).is_err());
        prop_assert!(GenerationRecord::parse(&bytes).is_err());
        prop_assert!(Directory::from_snapshot(bytes).is_err());
    }

    #[test]
    fn a_snapshot_with_several_forged_numbers_is_refused_or_harmless(
        forgeries in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 1usize..9), 1..6)
    ) {
        let mut bytes = small_snapshot().to_vec();
        for (at, value, len) in forgeries {
            let at = at.index(bytes.len() - 8);
            bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        }
        seal_snapshot(&mut bytes);
        if let Ok(directory) = Directory::from_snapshot(bytes) {
            use_all_of(&directory);
        }
    }
}

fn small_snapshot() -> &'static [u8] {
    static SNAPSHOT: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    SNAPSHOT.get_or_init(|| small().open().0.to_snapshot().unwrap())
}
