//! An import of shards from a store that was interrupted goes on where it was: what is on the media is not asked for
//! again, and the image is that of an import in one go.

use std::io::Write;
use std::path::PathBuf;

use crate::import_support::{contents, is_long, options};
use crate::support::archives::{member, record};
use crate::support::interrupted::{After, Case, all, memory};
use crate::support::object_store::bytes_of;
use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::import::sources::SourceKind;
use dlfs::import::{
    ColumnsFrom, ImportOptions, OnError, Onto, PlacementOrder, import, import_onto,
};
use dlfs::qpair::ConnectOptions;
use dlfs::qpair::blocking::Blocking;

fn end(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Four archives with 48 MiB in all, in samples of 40 KB.
fn tars(grouped: bool) -> Vec<(&'static str, Vec<u8>)> {
    let shard = |shard: u64| {
        let members = (0..300).flat_map(|number| {
            let bytes = bytes_of(shard * 1000 + number, 40_000 + number as usize);
            let name = format!("d/{shard}-{number}");
            if grouped {
                [
                    member(&format!("{name}.jpg"), b'0', "", &bytes),
                    member(&format!("{name}.cls"), b'0', "", (number % 7).to_string().as_bytes()),
                ]
                .concat()
            } else {
                member(&name, b'0', "", &bytes)
            }
        });
        end(members.collect())
    };
    vec![("0.tar", shard(0)), ("1.tar", shard(1)), ("2.tar", shard(2)), ("3.tar", shard(3))]
}

#[test]
fn shards_go_on_in_the_object_and_at_the_byte_where_the_import_was() {
    for (kind, grouped, stops) in
        [(SourceKind::Tar, false, &[1150, 600][..]), (SourceKind::WebDataset, true, &[800])]
    {
        let case = Case::new(kind, PlacementOrder::Source, &tars(grouped));
        let (expected, image) = case.whole();
        for &after in stops {
            let devices = case.interrupted(after);
            let report = case.import(&devices, Onto::Resume, u64::MAX).unwrap();
            assert!(all(&devices) == image, "{kind}, after {after}: another image");
            assert_eq!(
                (report.samples, report.sample_bytes, report.chunks),
                (expected.samples, expected.sample_bytes, expected.chunks)
            );
            // A point is noted every 16 MiB, and some chunks are not written when it stops.
            let asked: u64 = case.watched.asked().values().sum();
            let left = (1200 - after) * 41_000 + (24 << 20);
            assert!(asked < left, "{kind}, after {after}: {asked} bytes were asked for again");
            assert!(report.chunks_found > 0);
        }
    }
}

/// An array of so many 32-bit numbers, as numpy writes it.
fn npy(len: usize, seed: u64) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({len},), }}");
    let padded = format!("{header:<117}\n");
    [&b"\x93NUMPY\x01\x00\x76\x00"[..], padded.as_bytes(), &bytes_of(seed, 4 * len)].concat()
}

#[test]
fn typed_fields_and_columns_go_on_as_well() {
    let shard = |shard: u64| {
        let members = (0..300).flat_map(|number| {
            let name = format!("d/{shard}-{number}");
            let array = npy(10_000, shard * 1000 + number);
            let class = (number % 7).to_string();
            [
                member(&format!("{name}.npy"), b'0', "", &array),
                member(&format!("{name}.cls"), b'0', "", class.as_bytes()),
            ]
            .concat()
        });
        end(members.collect())
    };
    let shards = [("0.tar", shard(0)), ("1.tar", shard(1)), ("2.tar", shard(2))];
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table.csv");
    let rows = (0..3).flat_map(|shard| (0..200).map(move |number| (shard, number)));
    let rows =
        rows.map(|(shard, number)| format!("d/{shard}-{number},{number}.5,c{}\n", number % 5));
    std::fs::write(&table, format!("name,weight,city\n{}", rows.collect::<String>())).unwrap();
    let mut case = Case::new(SourceKind::WebDataset, PlacementOrder::Source, &shards);
    case.more = Box::new(move |options| {
        // The first array says what all are.
        options.field_types = vec!["npy:npy".parse().unwrap(), "cls:i64".parse().unwrap()];
        options.field_columns = vec!["class=cls".parse().unwrap()];
        options.columns = Some(ColumnsFrom { path: table.clone(), key: None, only: Vec::new() });
    });
    let (expected, image) = case.whole();
    assert_eq!(expected.columns.map(|counts| counts.samples), Some(600));
    let devices = case.interrupted(880);
    let report = case.import(&devices, Onto::Resume, u64::MAX).unwrap();
    assert!(all(&devices) == image, "another image");
    assert_eq!(
        (report.samples, report.columns, &report.field_types),
        (900, expected.columns, &expected.field_types)
    );
    let asked = case.watched.asked();
    assert!(!asked.contains_key("x/0.tar") && !asked.contains_key("x/1.tar"), "{asked:?}");
    // An import with other columns does not get the existing ones.
    let devices = case.interrupted(880);
    case.more = Box::new(|options| {
        options.field_types = vec!["npy:npy".parse().unwrap(), "cls:i64".parse().unwrap()];
    });
    let report = case.import(&devices, Onto::Resume, u64::MAX).unwrap();
    assert_eq!((report.samples, report.columns), (900, None));
    assert_eq!(contents(&devices).unwrap().len(), 900);
    assert!(case.watched.asked().contains_key("x/0.tar"));
}

#[test]
fn an_image_file_is_as_long_as_what_it_holds_also_after_an_interruption() {
    let case = Case::new(SourceKind::Tar, PlacementOrder::Source, &tars(false));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image.dlfs");
    let import_to_file = |onto, after| {
        let options = ImportOptions {
            places: case.watched.store.options(),
            placement: PlacementOrder::Source,
            chunk_size_bytes: 1 << 20,
            ..options(onto)
        };
        let sources = [PathBuf::from("s3://bucket/x")];
        let image = [Address::from_path(&path)];
        import(&sources, &image, &options, &ConnectOptions::default(), &mut After(after))
    };
    import_to_file(Onto::Empty, 800).unwrap_err();
    for onto in [Onto::Resume, Onto::Force] {
        let report = import_to_file(onto, u64::MAX).unwrap();
        let len_bytes = std::fs::metadata(&path).unwrap().len();
        let expected = report.image_bytes..report.image_bytes + (1 << 20);
        assert!(expected.contains(&len_bytes), "{onto:?}: {len_bytes} of {expected:?}");
    }
}

#[test]
fn windows_that_were_shuffled_are_not_shuffled_again() {
    // The window is full with so many samples, however small they are.
    let records = |shard: u64| -> Vec<u8> {
        (0..100_000u64).flat_map(|number| record(&(shard << 32 | number).to_le_bytes())).collect()
    };
    let shards =
        [("0.tfrecord", records(0)), ("1.tfrecord", records(1)), ("2.tfrecord", records(2))];
    let case = Case::new(SourceKind::TfRecord, PlacementOrder::Shuffled, &shards);
    let (expected, image) = case.whole();
    assert_eq!(expected.samples, 300_000);
    let devices = case.interrupted(290_000);
    case.import(&devices, Onto::Resume, u64::MAX).unwrap();
    assert!(all(&devices) == image, "another image");
    let asked = case.watched.asked();
    // A window is 262,144 records: all of the first two objects, and some of the third.
    assert!(
        !asked.contains_key("x/0.tfrecord") && !asked.contains_key("x/1.tfrecord"),
        "{asked:?}"
    );
    assert!(asked["x/2.tfrecord"] < shards[2].1.len() as u64, "{asked:?}");
}

#[test]
fn a_compressed_shard_is_read_from_its_beginning_and_those_before_it_are_not_read() {
    let shards: Vec<(&str, Vec<u8>)> = tars(false)
        .into_iter()
        .map(|(name, bytes)| (name, zstd::encode_all(&bytes[..], 1).unwrap()))
        .collect();
    let case = Case::new(SourceKind::Tar, PlacementOrder::Source, &shards);
    let (_, image) = case.whole();
    let devices = case.interrupted(1150);
    case.import(&devices, Onto::Resume, u64::MAX).unwrap();
    assert!(all(&devices) == image, "another image");
    let asked = case.watched.asked();
    assert!(!asked.contains_key("x/0.tar") && !asked.contains_key("x/1.tar"), "{asked:?}");
}

/// The third archive in each compression but Zstd.
fn compressed(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    #[cfg_attr(not(feature = "formats"), allow(unused_mut))]
    let mut all = vec![("2.tar.gz", gzip.finish().unwrap())];
    #[cfg(feature = "formats")]
    {
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 0);
        xz.write_all(bytes).unwrap();
        all.push(("2.tar.xz", xz.finish().unwrap()));
        let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        bzip2.write_all(bytes).unwrap();
        all.push(("2.tar.bz2", bzip2.finish().unwrap()));
    }
    all
}

#[test]
fn a_shard_in_any_compression_goes_on_behind_what_came_of_it() {
    let plain = tars(true);
    // All of them with `DLFS_LONG_TESTS`.
    for third in compressed(&plain[2].1).into_iter().take(if is_long() { usize::MAX } else { 1 }) {
        let shards = [plain[0].clone(), plain[1].clone(), third.clone(), plain[3].clone()];
        let case = Case::new(SourceKind::WebDataset, PlacementOrder::Source, &shards);
        let (_, image) = case.whole();
        // The last point lies in the third shard.
        let devices = case.interrupted(1190);
        case.import(&devices, Onto::Resume, u64::MAX).unwrap();
        assert!(all(&devices) == image, "{}: another image", third.0);
        let asked = case.watched.asked();
        assert!(!asked.contains_key("x/0.tar") && !asked.contains_key("x/1.tar"), "{asked:?}");
    }
}

#[test]
fn an_object_that_was_read_and_has_changed_is_named_and_one_that_was_not_does_not_matter() {
    let shards = tars(false);
    let case = Case::new(SourceKind::Tar, PlacementOrder::Source, &shards);
    let devices = case.interrupted(800);
    let before = all(&devices);
    let other = end(member("other", b'0', "", b"other"));
    for changed in ["0.tar", "1.tar"] {
        case.watched.store.put(&format!("x/{changed}"), other.clone());
        let error = case.import(&devices, Onto::Resume, u64::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadSource, "{error:?}");
        let told = error.report();
        assert!(
            told.contains(&format!("s3://bucket/x/{changed}")) && told.contains("--force"),
            "{told}"
        );
        let (_, bytes) = shards.iter().find(|(name, _)| *name == changed).unwrap();
        case.watched.store.put(&format!("x/{changed}"), bytes.clone());
    }
    assert!(all(&devices)[36 << 10..] == before[36 << 10..], "a refusal writes no chunk");
    case.watched.store.put("x/3.tar", other);
    let report = case.import(&devices, Onto::Resume, u64::MAX).unwrap();
    assert_eq!((report.samples, contents(&devices).unwrap().len()), (901, 901));
}

#[test]
fn what_is_damaged_on_the_media_is_read_again() {
    let case = Case::new(SourceKind::Tar, PlacementOrder::Source, &tars(false));
    let (_, image) = case.whole();
    // In the first chunk, in the second, and in the block that says where the import was.
    for damaged in [9 * 4096 + 70_000, (32 << 20) + 9 * 4096 + 70_000, (4 << 10) + 100] {
        let devices = case.interrupted(1000);
        let device = &devices[damaged >> 25];
        let at = damaged as u64 % (32 << 20);
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        let mut block = io.read(at / 4096 * 4096, 4096).unwrap().to_vec();
        block[at as usize % 4096] ^= 1;
        io.write_at(at / 4096 * 4096, &block).unwrap();
        case.import(&devices, Onto::Resume, u64::MAX).unwrap();
        assert!(all(&devices) == image, "{damaged}: another image");
        assert!(case.watched.asked().contains_key("x/0.tar"), "{damaged}");
    }
}

#[test]
fn an_import_may_be_interrupted_again_and_again_and_onto_an_image_that_has_samples() {
    let case = Case::new(SourceKind::Tar, PlacementOrder::Source, &tars(false));
    let folder = tempfile::tempdir().unwrap();
    std::fs::File::create(folder.path().join("first")).unwrap().write_all(b"first").unwrap();
    let begin = || {
        let devices = memory();
        let sources = [folder.path().to_path_buf()];
        let small = ImportOptions { chunk_size_bytes: 1 << 20, ..options(Onto::Empty) };
        import_onto(&sources, &devices, &small, &mut ()).unwrap();
        devices
    };
    let once = begin();
    case.import(&once, Onto::Append, u64::MAX).unwrap();
    let often = begin();
    case.import(&often, Onto::Append, 500).unwrap_err();
    for after in [700, 900, 1100] {
        let error = case.import(&often, Onto::Resume, after).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error:?}");
    }
    case.watched.asked();
    case.import(&often, Onto::Resume, u64::MAX).unwrap();
    assert!(all(&often) == all(&once), "another image");
    assert!(!case.watched.asked().contains_key("x/0.tar"));
    assert_eq!(contents(&often).unwrap().len(), 1201);
}

#[test]
fn what_could_not_be_imported_before_the_interruption_is_told_after_it() {
    let mut shards = tars(false);
    // The second shard has members that are no files.
    let odd = [member("fifo", b'6', "", b""), member("device", b'3', "", b"")].concat();
    shards[1].1.splice(0..0, odd);
    let mut case = Case::new(SourceKind::Tar, PlacementOrder::Source, &shards);
    case.on_error = OnError::Skip;
    let (expected, image) = case.whole();
    assert_eq!(expected.bad.len(), 2);
    let devices = case.interrupted(1100);
    let report = case.import(&devices, Onto::Resume, u64::MAX).unwrap();
    assert_eq!((report.samples, &report.bad), (1200, &expected.bad));
    assert!(all(&devices) == image, "another image");
}

#[test]
fn a_name_that_comes_again_behind_the_point_of_resuming_is_refused_as_without_an_interruption() {
    let numbers = || (0..1000).chain([0]);
    let tar = numbers().flat_map(|at| member(&at.to_string(), b'0', "", &bytes_of(at, 40_000)));
    let line = |at: u64| format!("{{\"name\": \"{at}\", \"text\": \"{at:040000}\"}}\n");
    for (kind, name, bytes) in [
        (SourceKind::Tar, "0.tar", end(tar.collect())),
        (SourceKind::JsonLines, "0.jsonl", numbers().map(line).collect::<String>().into()),
    ] {
        let len = bytes.len() as u64;
        let mut case = Case::new(kind, PlacementOrder::Source, &[(name, bytes)]);
        case.more = Box::new(move |options| {
            let named = (kind == SourceKind::JsonLines).then(|| "name".to_owned());
            options.rows.name = named;
        });
        let expected = case.import(&memory(), Onto::Empty, u64::MAX).unwrap_err();
        assert_eq!(expected.kind(), ErrorKind::BadSource, "{kind}");
        let devices = case.interrupted(900);
        let error = case.import(&devices, Onto::Resume, u64::MAX).unwrap_err();
        assert_eq!(error.report(), expected.report(), "{kind}");
        let asked: u64 = case.watched.asked().values().sum();
        println!("{kind}: {asked} of {len} bytes were asked for again");
        assert!(kind == SourceKind::JsonLines || asked < len, "{kind}: it began anew");
    }
}
