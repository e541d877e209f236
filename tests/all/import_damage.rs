//! Truncated images, and images with a flipped bit: losses are reported, and everything else is readable.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use crate::import_support::disk::Disks;
use crate::import_support::{Random, contents, options, paths, tree};
use dlfs::dataset::{Image, OpenOptions, VerifyReport};
use dlfs::format::chunk::ChunkKind;
use dlfs::format::superblock::SUPERBLOCK_BYTES;
use dlfs::format::{ChunkHead, ChunkHeader, Part};
use dlfs::import::journal::{JOURNAL_BYTES, JOURNAL_OFFSET, Journal};
use dlfs::import::{self, Onto, delete_on, import_onto};
use dlfs::qpair::Device;
use dlfs::qpair::file::{FileNamespace, FileOptions};
use dlfs::units::Generation;
use dlfs::{ErrorKind, Result};

fn small() -> (BTreeMap<Vec<u8>, Vec<u8>>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 40, 9000, 1);
    let disks = Disks::new(1, 1 << 20);
    import_onto(&paths(dir.path()), &disks.devices(), &options(Onto::Empty), &mut ()).unwrap();
    let bytes = disks.contents().remove(0);
    (files, bytes)
}

fn open(bytes: &[u8]) -> Result<Image> {
    Image::from_devices(Disks::holding(&[bytes.to_vec()]).devices(), &OpenOptions::default())
}

fn verify(image: &Image) -> VerifyReport {
    image.verify(&Default::default(), &mut |_| ()).unwrap()
}

#[test]
fn an_image_cut_off_at_any_block_is_refused_until_it_is_whole() {
    let (files, bytes) = small();
    let image = open(&bytes).unwrap();
    let used = image.superblocks()[0].used_len_bytes as usize;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut");
    let device = || -> Result<Vec<Arc<dyn Device>>> {
        Ok(vec![Arc::new(FileNamespace::open(&path, FileOptions::default())?)])
    };
    for len in (0..=used).step_by(4096) {
        fs::write(&path, &bytes[..len]).unwrap();
        match device().and_then(|device| contents(&device)) {
            Ok(found) => assert_eq!((len, found), (used, files.clone())),
            Err(error) => {
                let kinds = [ErrorKind::Corrupt, ErrorKind::NotFound, ErrorKind::InvalidArgument];
                assert!(kinds.contains(&error.kind()), "{len} bytes: {error:?}");
                assert!(len < used, "{len} bytes: {error:?}");
            }
        }
    }
}

#[test]
fn a_rebuild_of_an_image_cut_off_at_any_block_brings_back_what_is_there() {
    let (files, bytes) = small();
    let image = open(&bytes).unwrap();
    let chunks: Vec<_> = (0..image.directory().num_chunks())
        .map(|c| (image.directory().chunk(c), image.directory().samples_in_chunk(c).count()))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut");
    for len in (65536..bytes.len()).step_by(5 * 4096) {
        fs::write(&path, &bytes[..len]).unwrap();
        let options = FileOptions { writable: true, ..FileOptions::default() };
        let device: Vec<Arc<dyn Device>> =
            vec![Arc::new(FileNamespace::open(&path, options).unwrap())];
        // A chunk is found by its header; its samples after the cut are damaged, and reported.
        let headers = chunks
            .iter()
            .filter(|(chunk, _)| chunk.offset_bytes + chunk.header_bytes <= len as u64);
        let found: usize = headers.clone().map(|(_, samples)| samples).sum();
        match import::rebuild_on(&device, None, &mut ()) {
            Ok(report) => {
                assert_eq!(report.live_samples as usize, found, "{len} bytes");
                let image = Image::from_devices(device, &OpenOptions::default()).unwrap();
                let damages = verify(&image).damages;
                let whole = chunks
                    .iter()
                    .filter(|(chunk, _)| chunk.offset_bytes + chunk.len_bytes <= len as u64);
                let whole: usize = whole.map(|(_, samples)| samples).sum();
                let lost = damages.iter().filter(|damage| damage.sample.is_some()).count();
                assert!(found - lost >= whole, "{len} bytes: {lost} of {found} are damaged");
            }
            Err(error) => {
                assert_eq!(found, 0, "{len} bytes: {error:?}");
                assert_eq!(error.kind(), ErrorKind::NotFound, "{len} bytes: {error:?}");
            }
        }
    }
    assert_eq!(files.len(), 40);
}

#[test]
fn one_flipped_bit_in_each_structure_is_found_and_confined() {
    let (files, bytes) = small();
    let mut random = Random::new(4);
    let image = open(&bytes).unwrap();
    let superblock = image.superblocks()[0];
    let snapshot = superblock.snapshot;
    let flipped = |at: u64, bit: usize| {
        let mut bytes = bytes.clone();
        bytes[at as usize] ^= 1 << bit;
        bytes
    };
    for _ in 0..40 {
        let bit = random.below(8);
        // The superblock of generation 1 is copy B; copy A is empty.
        let at = 32768 + random.below(SUPERBLOCK_BYTES) as u64;
        let error = open(&flipped(at, bit)).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound),
            "superblock byte {at}: {error:?}"
        );
        let at = snapshot.offset_bytes + random.below(snapshot.len_bytes as usize) as u64;
        let found = open(&flipped(at, bit)).and_then(|image| image.load_names().map(|()| image));
        match found {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "snapshot byte {at}: {error:?}");
                let disks = Disks::holding(&[flipped(at, bit)]);
                import::rebuild_on(&disks.devices(), None, &mut ()).unwrap();
                assert_eq!(contents(&disks.devices()).unwrap(), files);
            }
            // Padding between its sections is ignored.
            Ok(image) => assert_eq!(verify(&image).damages.len(), 0, "snapshot byte {at}"),
        }
        let chunk =
            image.directory().chunk(random.below(image.directory().num_chunks() as usize) as u32);
        let at = chunk.offset_bytes + random.below(128) as u64;
        let damages = verify(&open(&flipped(at, bit)).unwrap()).damages;
        assert_eq!(damages.len(), 1, "header byte {at}: {damages:?}");
        let id = image.directory().id_of_live(random.below(files.len()) as u64);
        let extent = image.directory().extent(id).unwrap();
        if extent.len_bytes > 0 {
            let at = extent.offset_bytes + random.below(extent.len_bytes as usize) as u64;
            let damages = verify(&open(&flipped(at, bit)).unwrap()).damages;
            let samples: Vec<_> = damages.iter().map(|damage| damage.sample).collect();
            assert_eq!(samples, [Some(id)], "payload byte {at}");
        }
    }
}

#[test]
fn an_image_of_a_future_version_is_named_as_such_and_not_written_to() {
    let (_, mut bytes) = small();
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 5, 100, 9);
    // Version 3 of the superblock, with a correct checksum.
    bytes[32768 + 8] = 3;
    let crc = crc32c::crc32c(&bytes[32768..32768 + SUPERBLOCK_BYTES - 4]);
    bytes[32768 + SUPERBLOCK_BYTES - 4..32768 + SUPERBLOCK_BYTES]
        .copy_from_slice(&crc.to_le_bytes());
    assert_eq!(open(&bytes).unwrap_err().kind(), ErrorKind::Unsupported);
    let disks = Disks::holding(&[bytes.clone()]);
    for (onto, kind) in [(Onto::Empty, ErrorKind::Refused), (Onto::Append, ErrorKind::Unsupported)]
    {
        let error = import_onto(&paths(dir.path()), &disks.devices(), &options(onto), &mut ());
        assert_eq!(error.unwrap_err().kind(), kind, "{onto:?}");
    }
    let error = import::delete_on(&disks.devices(), &[b"x".to_vec()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(disks.contents()[0] == bytes);
}

/// A delete writes only the record and the snapshot of its generation.
#[test]
fn a_rebuild_without_the_newest_record_never_goes_back_behind_what_is_committed() {
    let (mut files, bytes) = small();
    let all = files.clone();
    let disks = Disks::holding(&[bytes]);
    let (name, _) = files.pop_first().unwrap();
    delete_on(&disks.devices(), &[name]).unwrap();
    let mut bytes = disks.contents().remove(0);
    let superblock = open(&bytes).unwrap().superblocks()[0];
    let cell_bytes = superblock.layout.cell_bytes() as usize;
    let is_record = |cell: &mut &mut [u8]| {
        ChunkHead::parse(cell)
            .is_ok_and(|head| head.kind == ChunkKind::Record && head.id.generation == Generation(2))
    };
    bytes
        .chunks_mut(cell_bytes)
        .find_map(|mut cell| is_record(&mut cell).then(|| cell.fill(0)))
        .unwrap();
    let disks = Disks::holding(std::slice::from_ref(&bytes));
    let report = import::rebuild_on(&disks.devices(), None, &mut ()).unwrap();
    assert!(report.deletions_known, "the snapshot says it");
    assert_eq!((report.generation, report.live_samples), (Generation(2), files.len() as u64));
    assert_eq!(contents(&disks.devices()).unwrap(), files, "the snapshot says what the record did");

    let snapshot = superblock.snapshot;
    bytes[snapshot.offset_bytes as usize..][..snapshot.len_bytes as usize].fill(0);
    let disks = Disks::holding(std::slice::from_ref(&bytes));
    let error = import::rebuild_on(&disks.devices(), Some(Generation(1)), &mut ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert_eq!(disks.contents(), [bytes], "it wrote nothing");
    let report = import::rebuild_on(&disks.devices(), None, &mut ()).unwrap();
    assert!(!report.deletions_known);
    assert_eq!((report.generation, report.live_samples), (Generation(2), all.len() as u64));
    assert_eq!(contents(&disks.devices()).unwrap(), all, "what was deleted is known to nobody");
}

/// Writes the checksum of the bytes before them into the last four bytes of `at..at + len`.
fn reseal(bytes: &mut [u8], at: usize, len: usize) {
    let crc = crc32c::crc32c(&bytes[at..at + len - 4]);
    bytes[at + len - 4..at + len].copy_from_slice(&crc.to_le_bytes());
}

#[test]
pub fn a_journal_that_names_ids_which_the_image_does_not_have_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 10, 900, 1);
    let disks = Disks::new(1, 1 << 20);
    let resume =
        || import_onto(&paths(dir.path()), &disks.devices(), &options(Onto::Resume), &mut ());
    import_onto(&paths(dir.path()), &disks.devices(), &options(Onto::Empty), &mut ()).unwrap();
    assert_eq!(resume().unwrap().samples, 10, "it is done, and says so");
    let whole = disks.contents().remove(0);
    for (superblocks, first) in [(true, 11_u64), (true, 1 << 40), (false, 11), (false, 1 << 40)] {
        let mut bytes = whole.clone();
        let at = JOURNAL_OFFSET as usize..JOURNAL_OFFSET as usize + JOURNAL_BYTES;
        let journal = Journal::parse(&bytes[at.clone()]).unwrap().unwrap();
        let part = Part { first, ..journal.part };
        bytes[at].copy_from_slice(&Journal { part, ..journal }.encode());
        if !superblocks {
            bytes[..SUPERBLOCK_BYTES].fill(0);
            bytes[32 << 10..(32 << 10) + SUPERBLOCK_BYTES].fill(0);
        }
        let disks = Disks::holding(&[bytes]);
        let onto = options(Onto::Resume);
        let error = import_onto(&paths(dir.path()), &disks.devices(), &onto, &mut ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{superblocks} {first}: {error:?}");
    }
}

/// The chunk says that its samples are shuffled in another way: its ids follow from that.
#[test]
fn a_purge_refuses_a_chunk_whose_samples_are_not_those_of_its_slots() {
    let one = tempfile::tempdir().unwrap();
    let two = tempfile::tempdir().unwrap();
    let disks = Disks::new(1, 1 << 20);
    for (dir, onto) in [(&one, Onto::Empty), (&two, Onto::Append)] {
        let name = if onto == Onto::Empty { "a" } else { "b" };
        (0..4).for_each(|i| fs::write(dir.path().join(format!("{name}{i}")), [5; 100]).unwrap());
        import_onto(&paths(dir.path()), &disks.devices(), &options(onto), &mut ()).unwrap();
    }
    import::delete_on(&disks.devices(), &[b"b3".to_vec()]).unwrap();
    let mut bytes = disks.contents().remove(0);
    let image = open(&bytes).unwrap();
    let chunk = image.directory().chunk(1);
    let at = chunk.offset_bytes as usize;
    let ids = |bytes: &[u8]| -> Vec<u64> {
        ChunkHeader::parse(&bytes[at..]).unwrap().samples().map(|sample| sample.id.0).collect()
    };
    let right = ids(&bytes);
    while ids(&bytes) == right {
        bytes[at + 88] += 1; // the seed of its part
        reseal(&mut bytes, at, 128);
    }
    let disks = Disks::holding(&[bytes]);
    let error = import::purge_on(&disks.devices(), &mut ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert!(error.report().contains("id of the sample at a slot"), "{}", error.report());
    let after = open(&disks.contents()[0]).unwrap();
    assert_eq!(after.directory().generation(), image.directory().generation());
}
