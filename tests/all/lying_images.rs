//! Images whose structures are each valid but contradict each other: refused before anything in
//! them is used, and nothing is written. Nothing in them makes a file longer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::images::{Image, folder, sample};
use crate::import_support::{options, paths, tree};
use dlfs::dataset::{Image as Opened, OpenOptions};
use dlfs::directory::commit::reserve_current;
use dlfs::format::names::crc32c;
use dlfs::format::snapshot::{SectionKind, SnapshotHead};
use dlfs::format::superblock::copy_offset;
use dlfs::format::{CellRange, ChunkHeader, Pack, Space, Superblock};
use dlfs::import::{Onto, delete_on, import_onto, purge_on, rebuild_on};
use dlfs::qpair::Device;
use dlfs::qpair::file::{FileNamespace, FileOptions};
use dlfs::units::{Generation, SampleId};
use dlfs::{ErrorKind, Result};

const CHUNK: u64 = 64 << 10;
const CELL: u64 = 4096;

/// Two generations; the second has deletions.
fn honest() -> Image {
    let mut image = Image::new(1, Pack::Aligned);
    image.add(&folder(2, 30), 7, 60, &[]);
    image.delete(&[3, 4]);
    image
}

/// A file that may grow, opened as `delete`, `purge` and `import` do.
fn device(path: &Path) -> Result<Vec<Arc<dyn Device>>> {
    let options = FileOptions { writable: true, ..FileOptions::default() };
    Ok(vec![Arc::new(FileNamespace::open(path, options)?)])
}

fn put(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

/// The image with its newest snapshot changed, and every checksum that covers the change corrected.
fn with_snapshot(image: &Image, change: impl FnOnce(&mut [u8], &SnapshotHead)) -> Vec<u8> {
    let (_, superblock) = image.open();
    let place = superblock.snapshot;
    let mut bytes = image.namespaces[0].clone();
    let snapshot = &mut bytes[place.offset_bytes as usize..][..place.len_bytes as usize];
    let head = SnapshotHead::parse(snapshot).unwrap();
    change(snapshot, &head);
    for (index, section) in head.sections.iter().enumerate() {
        let crc = crc32c(&snapshot[section.offset as usize..][..section.len as usize]);
        put(snapshot, 128 + 32 * index + 4, 4, crc.into());
    }
    let crc = crc32c(&snapshot[..4092]);
    put(snapshot, 4092, 4, crc.into());
    let mut superblock = superblock;
    superblock.snapshot.head_crc32c = crc;
    with_superblock(bytes, &superblock)
}

fn with_superblock(mut bytes: Vec<u8>, superblock: &Superblock) -> Vec<u8> {
    let at = copy_offset(superblock.generation) as usize;
    bytes[at..at + 4096].copy_from_slice(&superblock.encode());
    bytes
}

/// No reader opens it, and no writer changes a byte of it.
fn assert_refused(what: &str, path: &PathBuf, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    let source = tempfile::tempdir().unwrap();
    tree(source.path(), 2, 100, 1);
    let append = || -> Result<()> {
        import_onto(&paths(source.path()), &device(path)?, &options(Onto::Append), &mut ())?;
        Ok(())
    };
    let open = || Opened::from_devices(device(path)?, &OpenOptions::default()).map(drop);
    let delete = || delete_on(&device(path)?, &[b"class00/sample0005.bin".to_vec()]).map(drop);
    let purge = || purge_on(&device(path)?, &mut ()).map(drop);
    let results =
        [("open", open()), ("delete", delete()), ("purge", purge()), ("append", append())];
    for (who, result) in results {
        let error = result.expect_err(&format!("{what}: {who} believes it"));
        let kinds = [ErrorKind::Corrupt, ErrorKind::InvalidArgument];
        assert!(kinds.contains(&error.kind()), "{what}, {who}: {error:?}");
        assert!(std::fs::read(path).unwrap() == bytes, "{what}: {who} wrote");
    }
}

#[test]
pub fn what_a_snapshot_says_of_the_whole_image_must_be_what_the_superblock_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = honest();
    let whole = with_snapshot(&image, |_, _| {});
    assert_eq!(whole, image.namespaces[0], "without a lie nothing changes");
    // Offsets in the head: see `format::snapshot`.
    let lies = [
        ("number of namespaces", 12, 2, 2),
        ("packing", 14, 1, 1),
        ("uuid", 16, 8, 1),
        ("generation", 32, 8, 3),
        ("time", 40, 8, 77),
        ("length, one page more", 48, 8, image.open().1.snapshot.len_bytes + 4096),
        ("length, none", 48, 8, 0),
        ("samples, one more", 56, 8, 61),
        ("samples, one less", 56, 8, 59),
        ("cell of the record, behind the image", 64, 8, 1 << 30),
        (
            "cells of the record, up to behind the image",
            72,
            8,
            2 + image.open().1.used_len_bytes / CELL,
        ),
        ("cells of the record, far more", 72, 8, 1 << 20),
        ("cells of the record, behind 2^63 bytes", 72, 8, 1 << 50),
        ("chunk size", 80, 4, 2 * CHUNK),
        ("namespace of the record", 84, 2, 1),
    ];
    for (what, at, width, value) in lies {
        let bytes = with_snapshot(&image, |snapshot, _| put(snapshot, at, width, value));
        assert_refused(what, &path, &bytes);
    }
}

#[test]
pub fn what_the_directory_reads_must_lie_within_what_the_superblock_says_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = honest();
    let (_, superblock) = image.open();
    let used = superblock.used_len_bytes;
    let bytes = image.namespaces[0].clone();
    // Offsets in the chunk table: see `directory::columns`.
    let behind = used.div_ceil(CELL);
    let last_page = |bytes: u64| bytes / 4096;
    let lies = [
        ("a chunk's cell, behind the image", 8, 8, behind),
        ("a chunk's cell, behind 2^63 bytes", 8, 8, 1 << 50),
        ("a chunk's cell, lost, with live samples", 8, 8, u64::MAX),
        ("a chunk's pages, none", 32, 4, 0),
        ("a chunk's pages, a page more than the chunk size", 32, 4, last_page(CHUNK) + 1),
        ("a chunk's data, behind the chunk", 36, 2, 0xffff),
        ("a chunk's namespace", 38, 2, 1),
    ];
    for (what, at, width, value) in lies {
        let lying = with_snapshot(&image, |snapshot, head| {
            let table = head.section(SectionKind::Chunks).unwrap().offset as usize;
            put(snapshot, table + at, width, value);
        });
        assert_refused(what, &path, &lying);
    }
    let with_used = |used_len_bytes| Superblock { used_len_bytes, ..superblock };
    for (what, used) in [
        ("a page less than is used", used - 4096),
        ("nothing", 0),
        ("a page more than there is", bytes.len().max(used as usize) as u64 + 4096),
        ("all that there can be", 1 << 62),
    ] {
        assert_refused(what, &path, &with_superblock(bytes.clone(), &with_used(used)));
    }
    let mut far = superblock;
    far.snapshot.offset_bytes = behind * CELL;
    assert_refused("a snapshot behind the image", &path, &with_superblock(bytes.clone(), &far));
    let mut long = superblock;
    long.snapshot.len_bytes = 1 << 40;
    assert_refused("a snapshot longer than the image", &path, &with_superblock(bytes, &long));
}

#[test]
fn a_directory_whose_deletions_differ_by_id_and_slot_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = honest();
    for kind in [SectionKind::DeletedIds, SectionKind::DeletedSlots] {
        let lying = with_snapshot(&image, |snapshot, head| {
            let section = head.section(kind).unwrap();
            let bits = &mut snapshot[section.offset as usize..][..section.len as usize];
            bits.fill(0);
            bits[0] = 0b11; // the same number, but others
        });
        assert_refused("other samples", &path, &lying);
        let lying = with_snapshot(&image, |snapshot, head| {
            let section = head.section(kind).unwrap();
            snapshot[section.offset as usize..][..section.len as usize - 1].fill(0xff);
        });
        assert_refused("nearly all", &path, &lying);
    }
}

/// Freed cells may be anywhere in the range of a namespace: the file does not grow that long.
#[test]
fn no_cells_that_an_image_names_make_a_file_longer_than_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let far = |cell, cells| CellRange { namespace: 0, cell, cells };
    let freed = [far(1 << 30, 1 << 20), far(1, 1 << 46), far((1 << 47) - 3, 1)];
    for (which, range) in freed.into_iter().enumerate() {
        let mut image = honest();
        let (old, superblock) = image.open();
        let mut space = Space::new(&image.layout, &[u64::MAX]);
        reserve_current(&mut space, &old, &superblock, &[]);
        let mut next = old.with_deleted(&[SampleId(9)], Generation(3), image.time_ns + 1).unwrap();
        next.set_freed(vec![range]);
        image.commit(next, &mut space);
        let name = image.open().0.name(SampleId(20)).unwrap().unwrap();
        let bytes = image.namespaces[0].clone();
        std::fs::write(&path, &bytes).unwrap();
        let most = (bytes.len() as u64).next_multiple_of(CHUNK) + 12 * CHUNK;
        let len = || std::fs::metadata(&path).unwrap().len();
        let deleted = delete_on(&device(&path).unwrap(), &[name]);
        assert!(len() <= most, "freed {which}: delete made it {} of {most} bytes", len());
        let purged = purge_on(&device(&path).unwrap(), &mut ());
        assert!(len() <= most, "freed {which}: purge made it {} of {most} bytes", len());
        println!("freed {which}: {:?} {:?}", deleted.is_ok(), purged.is_ok());
    }
}

#[test]
fn a_chunk_whose_header_names_another_sample_at_a_slot_is_found_by_verify() {
    let mut image = Image::new(1, Pack::Aligned);
    image.add(&[sample("a", None, 100), sample("b", None, 100)], 0, 2, &[]);
    let at = image.layout.offset_of(image.heads()[0].cell).unwrap() as usize;
    let mut bytes = image.namespaces[0].clone();
    let first_id =
        |bytes: &[u8]| ChunkHeader::parse(&bytes[at..]).unwrap().samples().next().unwrap().id;
    let named = first_id(&bytes);
    // Ids follow from the slots by the seed of the part.
    let mut seed = 0;
    while first_id(&bytes) == named {
        seed += 1;
        put(&mut bytes, at + 88, 8, seed);
        let crc = crc32c(&bytes[at..at + 124]);
        put(&mut bytes, at + 124, 4, crc.into());
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, &bytes).unwrap();
    let opened = Opened::from_devices(device(&path).unwrap(), &OpenOptions::default()).unwrap();
    let report = opened.verify(&Default::default(), &mut |_| {}).unwrap();
    assert_eq!(report.damages.len(), 1, "{report:?}");
    assert!(report.damages[0].what.contains("contradicts the directory"), "{report:?}");
}

#[test]
fn an_image_of_no_namespaces_is_refused() {
    assert!(Opened::from_devices(Vec::new(), &OpenOptions::default()).is_err());
    assert!(delete_on(&[], &[b"a".to_vec()]).is_err());
    assert!(purge_on(&[], &mut ()).is_err());
    assert!(rebuild_on(&[], None, &mut ()).is_err());
    let source = tempfile::tempdir().unwrap();
    tree(source.path(), 2, 100, 1);
    assert!(import_onto(&paths(source.path()), &[], &options(Onto::Empty), &mut ()).is_err());
}
