//! Fields of the structures on media, where their tables say, on the golden images; versions and features that this
//! release does not know.

use crate::golden_images::{columns, image, lived_in, pieces, source, types};
use crate::images::Image;
use dlfs::directory::Directory;
use dlfs::format::columns::Value;
use dlfs::format::superblock::{COPY_OFFSETS, Superblock};
use dlfs::format::superblock_set::CommitStep;
use dlfs::format::{ChunkHead, ChunkHeader, FormatError, Pack};
use dlfs::units::SampleId;

#[test]
fn typed_columns_are_those_of_the_golden_image() {
    let (directory, superblock) = columns().open();
    assert_eq!(superblock.features_to_write, 1);
    let narrow = f64::from(0.1f32);
    for (name, expected) in [
        ("int", [Value::Int(-300), Value::Int(7)]),
        ("float", [Value::Float(0.1), Value::Float(-1e300)]),
        ("f32", [Value::Float(narrow), Value::Float(f64::NEG_INFINITY)]),
        ("bool", [Value::Bool(true), Value::Bool(false)]),
        ("str", [Value::Text("zwei"), Value::Text("eins")]),
    ] {
        let column = directory.column(name).unwrap();
        let found: Vec<Value<'_>> = (0..4).map(|id| column.get(id)).collect();
        assert_eq!(found, [expected[0], expected[1], Value::None, Value::None], "{name}");
    }
}

#[test]
fn types_of_fields_are_those_of_the_golden_image() {
    let (directory, superblock) = types().open();
    assert_eq!((superblock.features_to_write, directory.columns().len()), (2, 0));
    let types: Vec<String> = (0..4)
        .map(|field| {
            directory.field_types().of(field).map_or_else(String::new, |kind| kind.to_string())
        })
        .collect();
    assert_eq!(types, ["u16[*,3]", "f32[2]=npy", "i64=text", ""]);
}

#[test]
fn a_large_sample_has_the_checksums_of_its_pieces_as_in_the_golden_image() {
    let image = pieces();
    let record = image.sample(&image.open().0, 0);
    let expected: Vec<u32> = record.chunks(256 << 10).map(dlfs::format::names::crc32c).collect();
    let (directory, _) = image.open();
    let chunk = directory.chunk(0);
    let header = ChunkHeader::parse(image.read(0, chunk.offset_bytes, chunk.len_bytes)).unwrap();
    assert_eq!(header.samples().next().unwrap().pieces, expected);
    assert_eq!((expected.len(), expected[4]), (5, 0x4572_7635));
}

#[test]
fn the_golden_image_reads_back_as_its_source() {
    let image = image("image-2");
    let (directory, superblock) = image.open();
    assert_eq!((superblock.generation.0, superblock.num_samples, superblock.num_live), (3, 6, 5));
    assert_eq!(superblock.used_len_bytes, image.namespaces[0].len() as u64);
    for (id, sample) in (0..).zip(source()) {
        let id = SampleId(id);
        assert_eq!(directory.name(id).unwrap(), Some(sample.name.clone()));
        if id.0 == 1 {
            assert!(!directory.is_live(id));
            continue;
        }
        assert_eq!(directory.label(id), sample.label);
        assert_eq!(image.sample(&directory, id.0), sample.record);
        assert_eq!(directory.lookup(&sample.name).unwrap(), Some(id));
    }
    assert_eq!(directory.label(SampleId(5)), Some(300));
    let slots: Vec<u64> = (0..6).map(|id| directory.slot_of(SampleId(id)).unwrap().0).collect();
    assert_eq!(slots[4..], [4, 5]);
    assert_ne!(slots[..4], [0, 1, 2, 3], "the first part is shuffled");
}

#[test]
fn the_fields_of_every_structure_lie_where_its_table_says() {
    let media = image("image-2").namespaces.remove(0);
    let number = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&media[at..at + len]);
        u64::from_le_bytes(bytes)
    };
    let b = COPY_OFFSETS[1] as usize;
    let superblock = Superblock::parse(&media[b..]).unwrap();
    assert_eq!(&media[b..b + 8], b"DLFSIMG\0");
    assert_eq!((number(b + 8, 2), number(b + 12, 2), number(b + 32, 8)), (2, 1, 3));
    assert_eq!(&media[b + 16..b + 32], &superblock.layout.uuid.0);
    assert_eq!((number(b + 80, 4), number(b + 112, 8), number(b + 120, 8)), (65_536, 6, 5));
    assert_eq!(number(b + 88, 8), superblock.snapshot.offset_bytes);
    let snapshot = superblock.snapshot.offset_bytes as usize;
    assert_eq!(number(b + 104, 4), number(snapshot + 4092, 4), "it names the snapshot's checksum");
    assert_eq!(Superblock::parse(&media).unwrap().generation.0, 2, "copy A has the even ones");

    let first_cell = 9;
    let chunk = first_cell * 4096;
    let head = ChunkHead::parse(&media[chunk..]).unwrap();
    assert_eq!(&media[chunk..chunk + 8], b"DLFSCHNK");
    assert_eq!((number(chunk + 8, 2), media[chunk + 10]), (2, 1));
    assert_eq!(number(chunk + 64, 8), first_cell as u64);
    assert_eq!((number(chunk + 32, 8), number(chunk + 112, 2)), (1, 4));
    assert_eq!((number(chunk + 88, 8), number(chunk + 96, 8)), (42, 4));
    let header = ChunkHeader::parse(&media[chunk..]).unwrap();
    let first = header.samples().next().unwrap();
    let table = chunk + 128;
    assert_eq!(media[table..table + 3], [1, 1, 4], "the part's samples");
    assert_eq!(media[table + 3], 2, "lengths");
    let checksums = table + 5 + usize::from(media[table + 4]);
    assert_eq!(media[checksums..checksums + 2], [3, 16]);
    assert_eq!(number(checksums + 2, 4), u64::from(first.crc32c));
    let labels = checksums + 2 + 16;
    assert_eq!(media[labels..labels + 2], [4, 4]);
    let names = labels + 2 + 4;
    assert_eq!(media[names], 7, "no other order than that of ids");
    assert_eq!(media[names + 2..names + 4], [0, 9]);
    assert_eq!(&media[names + 4..][..9], b"cat/1.jpg");
    assert_eq!(media[names + 13..][..7], *b"\x04\x052.jpg");
    assert_eq!(head.data_start(), 4096);

    assert_eq!(&media[snapshot..snapshot + 8], b"DLFSSNAP");
    assert_eq!((number(snapshot + 32, 8), number(snapshot + 56, 8)), (3, 6));
}

#[test]
fn an_image_of_another_version_is_refused_as_such_and_unknown_features_as_they_are_marked() {
    let image = lived_in();
    let (directory, superblock) = image.open();
    // Magic, version and checksum have the same offsets in every version.
    let with = |change: &dyn Fn(&mut [u8; 4096])| {
        let mut block = superblock.encode();
        change(&mut block);
        let crc = dlfs::format::names::crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&crc.to_le_bytes());
        Superblock::parse(&block)
    };
    let earliest = with(&|block| block[8] = 1);
    assert_eq!(earliest, Err(FormatError::Version { what: "superblock", found: 1, known: 2 }));
    let future = with(&|block| block[8] = 3);
    assert_eq!(future, Err(FormatError::Version { what: "superblock", found: 3, known: 2 }));
    let earlier = with(&|block| block[504..508].fill(0));
    assert_eq!(earlier, Ok(superblock), "its checksum is not 0, as before there was a balance");
    let text = future.unwrap_err().to_string();
    assert!(text.contains("version 3") && text.contains("newer dlfs"), "{text}");
    let required = with(&|block| block[50] = 1);
    assert_eq!(required, Err(FormatError::RequiredFeatures { unknown: 1 << 16 }));
    let optional = with(&|block| block[60] = 1).unwrap();
    assert_eq!(optional.optional_features, 1 << 32);
    assert_eq!(Superblock { optional_features: 0, ..optional }, superblock);
    let read_only = with(&|block| block[128] = 8).unwrap();
    let refused = Err(FormatError::FeaturesToWrite { unknown: 8 });
    assert_eq!((read_only.check_writable(), superblock.check_writable()), (refused, Ok(())));

    let mut snapshot = directory.to_snapshot().unwrap();
    snapshot[8] = 3;
    reseal(&mut snapshot, 4092, 4092);
    let future = Directory::from_snapshot(snapshot).unwrap_err();
    assert_eq!(future, FormatError::Version { what: "snapshot", found: 3, known: 2 });

    let mut chunk = image.first_header();
    chunk[8] = 9;
    reseal(&mut chunk, 124, 124);
    let future = ChunkHead::parse(&chunk).unwrap_err();
    assert_eq!(future, FormatError::Version { what: "chunk", found: 9, known: 2 });
}

#[test]
fn sections_of_unknown_kinds_are_skipped_unless_they_are_required() {
    let snapshot = lived_in().open().0.to_snapshot().unwrap();
    let sections = usize::from(u16::from_le_bytes([snapshot[10], snapshot[11]]));
    for (flags, accepted) in [(0, true), (1, false)] {
        let mut snapshot = snapshot.clone();
        let last = 128 + sections * 32;
        let end = snapshot.len() as u64;
        snapshot[10] += 1;
        snapshot[last..last + 2].copy_from_slice(&500u16.to_le_bytes());
        snapshot[last + 2] = flags;
        snapshot[last + 8..last + 16].copy_from_slice(&end.to_le_bytes());
        reseal(&mut snapshot, 4092, 4092);
        assert_eq!(Directory::from_snapshot(snapshot).is_ok(), accepted, "flags {flags}");
    }
}

#[test]
fn a_commit_flushes_then_writes_the_others_then_namespace_0() {
    let mut image = Image::new(3, Pack::Aligned);
    image.add(&source(), 1, 4, &[]);
    let superblocks = image.opened().superblocks;
    let steps: Vec<(char, u16)> = dlfs::format::superblock_set::commit_steps(&superblocks)
        .iter()
        .map(|step| match step {
            CommitStep::Flush { namespace } => ('f', *namespace),
            CommitStep::Write { namespace, offset_bytes, .. } => {
                assert_eq!(*offset_bytes, COPY_OFFSETS[1], "generation 1 goes to copy B");
                ('w', *namespace)
            }
        })
        .collect();
    let expected = [
        ('f', 0),
        ('f', 1),
        ('f', 2), // what the superblocks refer to becomes durable first
        ('w', 1),
        ('w', 2),
        ('f', 1),
        ('f', 2),
        ('w', 0),
        ('f', 0), // this write commits
    ];
    assert_eq!(steps, expected);
}

/// Sets the CRC32C at `at` to that of the bytes before `end`.
fn reseal(bytes: &mut [u8], end: usize, at: usize) {
    let crc = dlfs::format::names::crc32c(&bytes[..end]);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}
