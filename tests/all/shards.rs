//! Shards read as they are: the samples that an import of them makes, without an import.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::import_support::{Random, options};
use crate::support::archives::{member, record};
use crate::support::object_store::bytes_of;
use dlfs::address::Address;
use dlfs::cache::TierOptions;
use dlfs::dataset::{
    Dataset, Image, OnError as ReadOnError, OpenOptions, Query, SampleRange, shard_set,
};
use dlfs::import::sources::SourceKind;
use dlfs::import::{ImportOptions, OnError, Onto, RowOptions, import_onto};
use dlfs::places::PlaceOptions;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device};
use dlfs::reader::ReaderOptions;
use dlfs::shards::{ShardOptions, ShardSet};
use dlfs::units::SampleId;
use dlfs::{ErrorKind, Result};

/// The record of a sample, its label, its checksum, and its values in typed columns.
pub type Sample = (Vec<u8>, Option<i64>, u32, Vec<String>);

/// Everything of an image that a reader sees.
#[derive(Debug, PartialEq)]
pub struct Seen {
    fields: Vec<Vec<u8>>,
    types: String,
    classes: Vec<Vec<u8>>,
    pub samples: BTreeMap<String, Sample>,
}

pub fn seen(image: Image) -> Seen {
    image.load_names().unwrap();
    let dataset = Dataset::from_image(image, ReaderOptions::default());
    let directory = dataset.directory().clone();
    let mut samples = BTreeMap::new();
    for rank in 0..directory.num_live() {
        let id = directory.id_of_live(rank);
        let name = String::from_utf8(directory.name(id).unwrap().unwrap()).unwrap();
        let batch = dataset.read(Query::Ids(&[id]), ReadOnError::Raise, &mut ()).unwrap().batch;
        let values = directory.columns().iter();
        let values = values.map(|column| format!("{}={}", column.name(), column.get(id.0)));
        let crc = directory.extent(id).unwrap().crc32c;
        let sample = (batch.bytes(0).to_vec(), directory.label(id), crc, values.collect());
        samples.insert(name, sample);
    }
    Seen {
        fields: directory.fields().to_vec(),
        types: format!("{:?}", directory.field_types()),
        classes: directory.classes().to_vec(),
        samples,
    }
}

pub fn imported(source: &str, given: &ImportOptions) -> Seen {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemNamespace::new(128 << 20, 4096).unwrap())];
    let fixed = options(Onto::Empty);
    let options = ImportOptions {
        seed: fixed.seed,
        uuid: fixed.uuid,
        time_ns: fixed.time_ns,
        ..given.clone()
    };
    import_onto(&[PathBuf::from(source)], &devices, &options, &mut ()).unwrap();
    seen(Image::from_devices(devices, &OpenOptions::default()).unwrap())
}

pub fn connect(given: &ImportOptions) -> ConnectOptions {
    ConnectOptions { places: given.places.clone(), ..ConnectOptions::default() }
}

fn shards(index: Option<&Path>, given: &ImportOptions) -> ShardOptions {
    let index = index.map(Path::to_path_buf);
    ShardOptions { index, import: given.clone(), ..ShardOptions::default() }
}

fn open(source: &str, index: Option<&Path>, given: &ImportOptions) -> Result<Image> {
    let options = OpenOptions {
        connect: connect(given),
        shards: Some(shards(index, given)),
        ..OpenOptions::default()
    };
    Image::open(&[source.parse::<Address>().unwrap()], &options)
}

/// Compares the shards with an import of them: as they are indexed at once, and with the indexes that this has kept.
fn compare(source: &str, given: &ImportOptions) {
    let expected = imported(source, given);
    assert!(!expected.samples.is_empty());
    let kept = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let found = seen(open(source, Some(kept.path()), given).unwrap());
        assert_eq!(found.fields, expected.fields, "{source}");
        assert_eq!(found.types, expected.types, "{source}");
        assert_eq!(found.classes, expected.classes, "{source}");
        let names = |seen: &Seen| seen.samples.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expected), "{source}");
        for (name, sample) in &expected.samples {
            assert!(found.samples[name] == *sample, "{source}: {name}");
        }
    }
}

pub fn end(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Three plain archives with folders of classes; the last two have a name in common.
pub fn tars() -> Vec<(String, Vec<u8>)> {
    let shard = |shard: u64| {
        let file = |number: u64| {
            let name = match number {
                0 if shard > 0 => "top/b/same".to_owned(),
                _ => format!("top/{}/{shard}-{number}", ["a", "b"][number as usize % 2]),
            };
            member(&name, b'0', "", &bytes_of(shard * 100 + number, 3000 * number as usize))
        };
        end((0..20).flat_map(file).collect())
    };
    (0..3).map(|number| (format!("{number}.tar"), shard(number))).collect()
}

/// WebDataset shards: some samples lack a field.
pub fn groups(samples: u64, len: usize) -> Vec<(String, Vec<u8>)> {
    let shard = |shard: u64| {
        let sample = |number: u64| {
            let name = format!("{shard}/{number:04}");
            let image = bytes_of(shard * 10_000 + number, len + number as usize);
            let mut members = member(&format!("{name}.jpg"), b'0', "", &image);
            if number % 5 != 4 {
                members.extend(member(
                    &format!("{name}.cls"),
                    b'0',
                    "",
                    (number % 7).to_string().as_bytes(),
                ));
            }
            members
        };
        end((0..samples).flat_map(sample).collect())
    };
    (0..3).map(|number| (format!("{number}.tar"), shard(number))).collect()
}

pub fn records() -> Vec<(String, Vec<u8>)> {
    let shard = |shard: u64| {
        (0..30)
            .flat_map(move |number| record(&bytes_of(shard * 100 + number, 500 * number as usize)))
    };
    (0..3).map(|number| (format!("{number}.tfrecord"), shard(number).collect())).collect()
}

pub fn write(folder: &Path, files: &[(String, Vec<u8>)]) {
    files.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());
}

pub fn rows(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rows").join(name).display().to_string()
}

pub fn labelled() -> ImportOptions {
    let rows = RowOptions { label: Some("label".to_owned()), ..RowOptions::default() };
    ImportOptions { rows, ..ImportOptions::default() }
}

#[test]
fn archives_and_records_are_read_as_an_import_of_them() {
    for files in [tars(), groups(40, 2000), records()] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &files);
        compare(folder.path().to_str().unwrap(), &ImportOptions::default());
        compare(folder.path().join(&files[0].0).to_str().unwrap(), &ImportOptions::default());
    }
}

#[test]
fn types_columns_and_prefixes_are_those_of_the_import() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &groups(40, 2000));
    let given = ImportOptions {
        field_types: vec!["cls:i64".parse().unwrap()],
        field_columns: vec!["class=cls".parse().unwrap()],
        prefix: true,
        ..ImportOptions::default()
    };
    compare(folder.path().to_str().unwrap(), &given);
}

#[test]
fn lines_are_read_as_an_import_of_them() {
    compare(&rows("lines.jsonl"), &labelled());
    let folder = tempfile::tempdir().unwrap();
    // The second file makes the numbers of the first one fractions, and has a class that comes first.
    fs::write(folder.path().join("0.jsonl"), "{\"x\": 1, \"label\": \"b\"}\n".repeat(9)).unwrap();
    fs::write(folder.path().join("1.jsonl"), "{\"x\": 0.5, \"label\": \"a\"}\n".repeat(9)).unwrap();
    compare(folder.path().to_str().unwrap(), &labelled());
}

#[cfg(feature = "formats")]
#[test]
fn tables_and_shards_with_an_index_are_read_as_an_import_of_them() {
    for name in [
        "none.parquet",
        "zstd.parquet",
        "dictionary.parquet",
        "file.arrow",
        "stream.arrow",
        "mds",
        "mds-zstd",
        "litdata",
        "litdata-zstd",
        "litdata-arrow",
    ] {
        compare(&rows(name), &labelled());
    }
}

/// Reads samples in a random order, so that runs are decoded from their places.
fn compare_at_random(image: Image, expected: &Seen) {
    image.load_names().unwrap();
    let dataset = Dataset::from_image(image, ReaderOptions::default());
    let directory = dataset.directory().clone();
    let mut random = Random::new(52);
    for _ in 0..40 {
        let ids: Vec<SampleId> = (0..3)
            .map(|_| SampleId(random.below(directory.num_samples() as usize) as u64))
            .collect();
        let batch = dataset.read(Query::Ids(&ids), ReadOnError::Raise, &mut ()).unwrap().batch;
        for (at, id) in ids.iter().enumerate() {
            let name = String::from_utf8(directory.name(*id).unwrap().unwrap()).unwrap();
            assert!(batch.bytes(at) == expected.samples[&name].0, "{name}");
        }
    }
}

#[test]
fn runs_are_decoded_from_their_places_and_compressed_shards_from_their_beginning() {
    let given = ImportOptions { spool: Some(std::env::temp_dir()), ..ImportOptions::default() };
    let files = groups(600, 40_000);
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &files);
    let source = folder.path().to_str().unwrap();
    let expected = imported(source, &given);
    let set =
        shard_set(&[source.parse().unwrap()], &shards(None, &given), &connect(&given), &mut ());
    let index = set.unwrap().reader(0).unwrap().finish().unwrap();
    assert!(index.runs().len() > 2 && index.runs().iter().all(|run| run.place.is_some()));
    compare_at_random(open(source, None, &given).unwrap(), &expected);
    let packed = tempfile::tempdir().unwrap();
    for (name, bytes) in &files {
        let file = fs::File::create(packed.path().join(format!("{name}.gz"))).unwrap();
        let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap();
    }
    compare_at_random(open(packed.path().to_str().unwrap(), None, &given).unwrap(), &expected);
}

#[test]
fn a_range_of_a_long_sample_is_read_and_tiers_keep_samples() {
    let folder = tempfile::tempdir().unwrap();
    let long = bytes_of(1, 11 << 20);
    let members = [member("a", b'0', "", b"short"), member("long", b'0', "", &long)].concat();
    fs::write(folder.path().join("0.tar"), end(members)).unwrap();
    let options = OpenOptions {
        shards: Some(ShardOptions::default()),
        tiers: TierOptions { tiers: vec!["ram:32M".parse().unwrap()], ..TierOptions::default() },
        ..OpenOptions::default()
    };
    let address: Address = folder.path().to_str().unwrap().parse().unwrap();
    let image = Image::open(&[address], &options).unwrap();
    let report = image.verify(&Default::default(), &mut |_| ()).unwrap();
    assert!(report.damages.is_empty() && report.samples == 2, "{report:?}");
    let dataset = Dataset::from_image(image, ReaderOptions::default());
    for _ in 0..2 {
        let start = 9 << 20;
        let end = start + 777;
        let range = SampleRange { id: SampleId(1), start, end };
        let (read, failures) = dataset.read_ranges(&[range], &mut ()).unwrap();
        assert!(failures.is_empty());
        assert!(read.bytes(0) == &long[start as usize..end as usize]);
    }
}

#[test]
fn a_shard_that_changes_under_its_index_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &groups(40, 2000));
    let source = folder.path().to_str().unwrap();
    let kept = tempfile::tempdir().unwrap();
    let given = ImportOptions::default();
    let image = open(source, Some(kept.path()), &given).unwrap();
    let last = SampleId(image.directory().num_samples() - 1);
    let dataset = Dataset::from_image(image, ReaderOptions::default());
    let path = folder.path().join("2.tar");
    let mut bytes = fs::read(&path).unwrap();
    bytes[600] ^= 1;
    fs::write(&path, bytes).unwrap();
    let read = dataset.read(Query::Ids(&[SampleId(0)]), ReadOnError::Raise, &mut ());
    assert!(read.is_ok(), "other shards are as they were");
    let error = dataset.read(Query::Ids(&[last]), ReadOnError::Raise, &mut ()).err().unwrap();
    assert!(error.report().contains("2.tar"), "{}", error.report());
    // A new listing sees the new shard, and indexes it alone.
    let set = shard_set(
        &[source.parse().unwrap()],
        &shards(Some(kept.path()), &given),
        &connect(&given),
        &mut (),
    );
    assert_eq!(set.unwrap().index(&mut ()).unwrap().made, 1);
}

#[test]
fn entries_that_cannot_be_read_are_refused_or_left_out_as_by_an_import() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = records();
    let broken = files[1].1.len() - 100;
    files[1].1[broken] ^= 1; // the last record's checksum differs
    files[2].1.truncate(40_000); // the shard ends early
    write(folder.path(), &files);
    let source = folder.path().to_str().unwrap();
    let error = open(source, None, &ImportOptions::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::BadSource, "{error:?}");
    let report = error.report();
    assert!(report.contains("1.tfrecord/29") && report.contains("2.tfrecord"), "{report}");
    compare(source, &ImportOptions { on_error: OnError::Skip, ..ImportOptions::default() });
    let twice = [member("a", b'0', "", b"old"), member("a", b'0', "", b"new")].concat();
    let path = folder.path().join("twice.tar");
    fs::write(&path, end(twice)).unwrap();
    let skip = ImportOptions {
        from: SourceKind::Tar,
        on_error: OnError::Skip,
        ..ImportOptions::default()
    };
    let error = open(path.to_str().unwrap(), None, &skip).err().unwrap();
    assert!(error.report().contains("comes again"), "{}", error.report());
}

#[test]
fn a_damaged_index_is_made_again_and_a_folder_of_samples_is_no_shards() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &tars());
    let source = folder.path().to_str().unwrap();
    let kept = tempfile::tempdir().unwrap();
    let given = ImportOptions::default();
    open(source, Some(kept.path()), &given).unwrap();
    let index = fs::read_dir(kept.path()).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&index).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&index, &bytes).unwrap();
    compare(source, &given);
    open(source, Some(kept.path()), &given).unwrap();
    assert_ne!(fs::read(&index).unwrap(), bytes, "it was made again");
    let samples = tempfile::tempdir().unwrap();
    fs::write(samples.path().join("one.jpg"), "picture").unwrap();
    let error = open(samples.path().to_str().unwrap(), None, &given).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::BadSource, "{error:?}");
}

#[test]
fn readers_that_index_at_once_make_each_index_once() {
    let folder = tempfile::tempdir().unwrap();
    let shard = |number: u64| {
        let member = |at: u64| member(&format!("{number}/{at}"), b'0', "", &bytes_of(at, 9000));
        (format!("{number:03}.tar"), end((0..30).flat_map(member).collect()))
    };
    let files: Vec<_> = (0..64).map(shard).collect();
    write(folder.path(), &files);
    let kept = tempfile::tempdir().unwrap();
    let given = ImportOptions::default();
    let address: Address = folder.path().to_str().unwrap().parse().unwrap();
    let set = || -> ShardSet {
        let options = shards(Some(kept.path()), &given);
        shard_set(std::slice::from_ref(&address), &options, &connect(&given), &mut ()).unwrap()
    };
    let sets: Vec<ShardSet> = (0..4).map(|_| set()).collect();
    let made: Vec<u64> = std::thread::scope(|scope| {
        let index = |set| scope.spawn(move || ShardSet::index(set, &mut ()).unwrap().made);
        let threads: Vec<_> = sets.iter().map(index).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(made.iter().sum::<u64>(), 64, "{made:?}");
    assert_eq!(set().index(&mut ()).unwrap().made, 0);
    let others = fs::read_dir(kept.path()).unwrap().map(|entry| entry.unwrap().path());
    assert!(others.into_iter().all(|path| path.extension().unwrap() == "index"));
}

#[cfg(feature = "cloud")]
mod store {
    use super::*;
    use crate::support::object_store::{Fault, ObjectStore};
    use dlfs::dataset::{Options, Watch};
    use dlfs::order::{OrderKind, OrderSpec};
    use dlfs::prefetch::LoaderOptions;
    use dlfs::reader::Batch;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    fn put(store: &ObjectStore, files: &[(String, Vec<u8>)]) {
        files.iter().for_each(|(name, bytes)| store.put(&format!("x/{name}"), bytes.clone()));
    }

    fn of_store(store: &ObjectStore, given: ImportOptions) -> ImportOptions {
        ImportOptions { places: PlaceOptions { ..store.options() }, ..given }
    }

    #[test]
    fn shards_of_a_store_are_read_as_an_import_of_them() {
        for files in [tars(), groups(40, 2000), records()] {
            let store = ObjectStore::good();
            put(&store, &files);
            compare("s3://bucket/x/", &of_store(&store, ImportOptions::default()));
        }
        let store = ObjectStore::good();
        for name in fs::read_dir(rows("mds")).unwrap() {
            let path = name.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            store.put(&format!("mds/{name}"), fs::read(path).unwrap());
        }
        store.put("lines/0.jsonl", fs::read(rows("lines.jsonl")).unwrap());
        store.put("parquet/0.parquet", fs::read(rows("zstd.parquet")).unwrap());
        compare("s3://bucket/lines/", &of_store(&store, labelled()));
        for folder in ["mds", "parquet"] {
            if cfg!(feature = "formats") {
                compare(&format!("s3://bucket/{folder}/"), &of_store(&store, labelled()));
            }
        }
    }

    #[test]
    fn compressed_shards_of_a_store_and_lines_in_runs_are_read_as_an_import_of_them() {
        let store = ObjectStore::good();
        for (name, bytes) in groups(40, 2000) {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&bytes).unwrap();
            store.put(&format!("packed/{name}.gz"), encoder.finish().unwrap());
        }
        compare("s3://bucket/packed/", &of_store(&store, ImportOptions::default()));
        let line =
            |number: usize| format!("{{\"n\": {number}, \"text\": \"{}\"}}\n", "x".repeat(30_000));
        let lines: String = (0..900).map(line).collect();
        store.put("long/0.jsonl", lines);
        compare("s3://bucket/long/", &of_store(&store, ImportOptions::default()));
    }

    #[test]
    fn a_sample_read_alone_asks_for_little_more_than_its_own_bytes() {
        for files in [groups(400, 20_000), records()] {
            let asked = Arc::new(AtomicU64::new(0));
            let sum = Arc::clone(&asked);
            let store = ObjectStore::with_faults(move |request| {
                let len = request.range.map_or(0, |(first, last)| last + 1 - first);
                sum.fetch_add(len, Ordering::Relaxed);
                Fault::None
            });
            put(&store, &files);
            let given = of_store(&store, ImportOptions::default());
            let expected = imported("s3://bucket/x/", &given);
            let image = open("s3://bucket/x/", None, &given).unwrap();
            image.load_names().unwrap();
            let dataset = Dataset::from_image(image, ReaderOptions::default());
            // One of each shard, and no shard twice in turn: that would read all of it.
            let each = expected.samples.len() as u64 / 3;
            let mut random = Random::new(5);
            for shard in 0..3 {
                let id = SampleId(shard * each + random.below(each as usize) as u64);
                let name = dataset.directory().name(id).unwrap().unwrap();
                let name = String::from_utf8(name).unwrap();
                asked.store(0, Ordering::Relaxed);
                let read = dataset.read(Query::Ids(&[id]), ReadOnError::Raise, &mut ());
                let batch = read.unwrap().batch;
                let own = batch.bytes(0);
                assert!(own == expected.samples[&name].0, "sample {name}");
                let asked = asked.load(Ordering::Relaxed);
                // A read is of whole blocks, so it may have an end of each neighbour.
                assert!(asked < own.len() as u64 + 64_000, "{asked} bytes of sample {name}");
            }
        }
    }

    #[test]
    fn beginnings_of_archives_are_looked_at_together() {
        let asked = Arc::new(AtomicU64::new(0));
        let alone = Arc::new(AtomicU64::new(0));
        let counts = [&asked, &alone].map(Arc::clone);
        let store = ObjectStore::with_faults(move |request| {
            if request.key.ends_with(".tar") && !request.key.ends_with("/00.tar") {
                let [asked, alone] = &counts;
                asked.fetch_add(1, Ordering::Relaxed);
                let until = Instant::now() + Duration::from_secs(20);
                while asked.load(Ordering::Relaxed) < 3 && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let is_alone = asked.load(Ordering::Relaxed) < 3;
                alone.fetch_add(is_alone.into(), Ordering::Relaxed);
            }
            Fault::None
        });
        let shard = |number: u64| {
            let name = format!("{number:02}");
            (format!("{name}.tar"), end(member(&name, b'0', "", &bytes_of(number, 9000))))
        };
        put(&store, &(0..20).map(shard).collect::<Vec<_>>());
        let given = of_store(&store, ImportOptions::default());
        let source = ["s3://bucket/x/".parse().unwrap()];
        let set = shard_set(&source, &shards(None, &given), &connect(&given), &mut ()).unwrap();
        assert_eq!(set.shards().len(), 20);
        assert_eq!(asked.load(Ordering::Relaxed), 3, "those behind the first, up to 4");
        assert_eq!(alone.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_pair_behind_the_beginning_of_the_first_archive_is_found() {
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let store = ObjectStore::with_faults(move |request| {
            count.fetch_add(request.key.ends_with(".tar").into(), Ordering::Relaxed);
            Fault::None
        });
        let shard = |number: u64| {
            let first = member(&format!("{number}.bin"), b'0', "", &bytes_of(number, 600_000));
            let second = member(&format!("{number}.cls"), b'0', "", b"7");
            (format!("{number}.tar"), end([first, second].concat()))
        };
        put(&store, &(0..9).map(shard).collect::<Vec<_>>());
        let given = of_store(&store, ImportOptions::default());
        let source = ["s3://bucket/x/".parse().unwrap()];
        let set = shard_set(&source, &shards(None, &given), &connect(&given), &mut ()).unwrap();
        assert_eq!(set.fields().unwrap(), [b"bin", b"cls"]);
        // Its kind, its beginning, its first members beside the beginnings of 3 others, and its first sample.
        let asked = asked.load(Ordering::Relaxed);
        assert!((6..=7).contains(&asked), "{asked} requests");
    }

    /// An MDS shard of `items` items of `len` bytes, and its index.
    #[cfg(feature = "formats")]
    fn mds(items: u32, len: u32) -> [(String, Vec<u8>); 2] {
        let first = 4 + 4 * (items + 1);
        let mut shard = items.to_le_bytes().to_vec();
        (0..=items).for_each(|item| shard.extend((first + item * (4 + len)).to_le_bytes()));
        for item in 0..items {
            shard.extend(len.to_le_bytes());
            shard.extend(item.to_le_bytes().iter().cycle().take(len as usize));
        }
        let index = format!(
            r#"{{"version": 2, "shards": [{{"column_encodings": ["bytes"], "column_names": ["x"],
            "column_sizes": [null], "compression": null, "format": "mds", "hashes": [], "raw_data":
            {{"basename": "shard.00000.mds", "bytes": {}, "hashes": {{}}}}, "samples": {items},
            "size_limit": null, "version": 2, "zip_data": null}}]}}"#,
            shard.len()
        );
        [("shard.00000.mds".to_owned(), shard), ("index.json".to_owned(), index.into_bytes())]
    }

    /// Twenty MDS shards of three items, and their index.
    #[cfg(feature = "formats")]
    fn many_mds() -> Vec<(String, Vec<u8>)> {
        let [(name, shard), (index_name, index)] = mds(3, 100);
        let mut index: serde_json::Value = serde_json::from_slice(&index).unwrap();
        let of_one = index["shards"][0].clone();
        let named = |number: u32| name.replace("00000", &format!("{number:05}"));
        let of = |number| {
            let mut shard = of_one.clone();
            shard["raw_data"]["basename"] = named(number).into();
            shard
        };
        index["shards"] = (0..20).map(of).collect();
        let mut files: Vec<_> = (0..20).map(|number| (named(number), shard.clone())).collect();
        files.push((index_name, index.to_string().into_bytes()));
        files
    }

    #[cfg(feature = "formats")]
    #[test]
    fn shards_of_an_index_are_listed_once_and_looked_up_where_a_listing_does_not_have_them() {
        for (may_list, others, listed) in [(true, 0, true), (true, 500, false), (false, 0, false)] {
            let heads = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&heads);
            let store = ObjectStore::with_faults(move |request| {
                counted.fetch_add((request.method == "HEAD").into(), Ordering::Relaxed);
                let is_refused = request.key.is_empty() && !may_list;
                if is_refused { Fault::Status(403, None) } else { Fault::None }
            });
            put(&store, &many_mds());
            // They come before the shards.
            (0..others).for_each(|number| store.put(&format!("x/other/{number:04}"), "?"));
            let given = of_store(&store, ImportOptions::default());
            let image = open("s3://bucket/x/index.json", None, &given).unwrap();
            assert_eq!(image.directory().num_samples(), 60);
            let heads = heads.load(Ordering::Relaxed);
            assert_eq!(heads < 20, listed, "{heads} look-ups, {others} other objects");
        }
    }

    #[cfg(feature = "formats")]
    #[test]
    fn a_run_of_a_shard_with_a_table_asks_for_little_more_than_its_own_bytes() {
        let asked = Arc::new(AtomicU64::new(0));
        let sum = Arc::clone(&asked);
        let store = ObjectStore::with_faults(move |request| {
            let len = request.range.map_or(16_000_000, |(first, last)| last + 1 - first);
            sum.fetch_add(len, Ordering::Relaxed);
            Fault::None
        });
        put(&store, &mds(150, 100_000));
        let given = of_store(&store, ImportOptions::default());
        compare("s3://bucket/x/", &given);
        let image = open("s3://bucket/x/", None, &given).unwrap();
        let dataset = Dataset::from_image(image, ReaderOptions::default());
        // Runs of 41 samples, the last first. The table is read once, and one sample alone in each run.
        for (first, table) in [(123, 64 << 10), (82, 0), (41, 0), (0, 0)] {
            let ids: Vec<SampleId> = (first..first + 25).map(SampleId).collect();
            asked.store(0, Ordering::Relaxed);
            dataset.read(Query::Ids(&ids), ReadOnError::Raise, &mut ()).unwrap();
            let asked = asked.load(Ordering::Relaxed);
            let most = 41 * 100_004 + 250_000 + table;
            assert!(asked <= most, "{asked} bytes for samples from {first} on, at most {most}");
        }
    }

    /// A Parquet file of row groups of so many rows of 100,000 bytes, and a number each.
    #[cfg(feature = "formats")]
    fn parquet(groups: &[u64], has_offset_index: bool) -> Vec<u8> {
        use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
        use parquet::basic::Compression;
        use parquet::file::properties::{EnabledStatistics, WriterProperties};

        let batch = |rows: std::ops::Range<u64>| {
            let numbers = Int64Array::from_iter_values(rows.clone().map(|row| row as i64));
            let bytes = rows.map(|row| bytes_of(row, 100_000));
            let bytes = BinaryArray::from_iter_values(bytes);
            let columns =
                [("n", Arc::new(numbers) as ArrayRef), ("x", Arc::new(bytes) as ArrayRef)];
            RecordBatch::try_from_iter(columns).unwrap()
        };
        let set = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_compression(Compression::UNCOMPRESSED)
            .set_write_batch_size(5) // after so many rows, a page may end
            .set_statistics_enabled(EnabledStatistics::Chunk) // those of pages need an offset index
            .set_offset_index_disabled(!has_offset_index)
            .build();
        let mut bytes = Vec::new();
        let schema = batch(0..1).schema();
        let mut writer =
            parquet::arrow::ArrowWriter::try_new(&mut bytes, schema, Some(set)).unwrap();
        let mut first = 0;
        for rows in groups {
            writer.write(&batch(first..first + rows)).unwrap();
            writer.flush().unwrap();
            first += rows;
        }
        writer.close().unwrap();
        bytes
    }

    #[cfg(feature = "formats")]
    #[test]
    fn row_groups_are_runs_that_are_read_by_one_request_each() {
        let asked = Arc::new(AtomicU64::new(0));
        let sum = Arc::clone(&asked);
        let requests = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&requests);
        let store = ObjectStore::with_faults(move |request| {
            if let Some((first, last)) = request.range {
                sum.fetch_add(last + 1 - first, Ordering::Relaxed);
                count.fetch_add(1, Ordering::Relaxed);
            }
            Fault::None
        });
        let take = || {
            let requests = requests.swap(0, Ordering::Relaxed);
            (requests, asked.swap(0, Ordering::Relaxed))
        };
        for has_offset_index in [true, false] {
            // A small group joins its neighbour; one of more than 16 MiB is taken apart.
            let file = parquet(&[60, 20, 40, 200, 70], has_offset_index);
            let len = file.len() as u64;
            store.put("x/0.parquet", file);
            let given = of_store(&store, ImportOptions::default());
            let source = "s3://bucket/x/";
            let expected = imported(source, &given);
            let kept = tempfile::tempdir().unwrap();
            let options = shards(Some(kept.path()), &given);
            let set = shard_set(&[source.parse().unwrap()], &options, &connect(&given), &mut ());
            let set = set.unwrap();
            take();
            let index = set.reader(0).unwrap().finish().unwrap();
            let (first_requests, bytes) = take();
            println!("the file: {first_requests} requests for {bytes} of {len} bytes");
            assert!(first_requests <= len.div_ceil(8 << 20) + 1 && bytes <= len + (64 << 10));
            let runs: Vec<u32> = index.runs().iter().map(|run| run.samples).collect();
            assert_eq!(runs, [60, 60, 167, 33, 70]);
            set.keep(0, &index).unwrap();
            let image = open(source, Some(kept.path()), &given).unwrap();
            let dataset = Dataset::from_image(image, ReaderOptions::default());
            // A sample alone takes the page of each column that has it.
            take();
            dataset.read(Query::Ids(&[SampleId(35)]), ReadOnError::Raise, &mut ()).unwrap();
            let (requests, bytes) = take();
            assert!(requests <= 2 && bytes < 2_000_000, "{requests} requests for {bytes} bytes");
            // The rest of the group that was taken apart is read by its pages, which the kept index tells.
            let all = [(320, 70, 1), (290, 33, 2), (130, 167, 4), (60, 60, 1), (0, 60, 1)];
            for (first, samples, most_requests) in all {
                let ids: Vec<SampleId> = (first..first + 25).map(SampleId).collect();
                take();
                dataset.read(Query::Ids(&ids), ReadOnError::Raise, &mut ()).unwrap();
                let (requests, bytes) = take();
                println!("a run: {requests} requests for {bytes} bytes");
                let pages = if most_requests == 1 { 100_000 } else { 3_000_000 };
                assert!(requests <= most_requests && bytes < samples * 100_000 + pages);
            }
            compare_at_random(open(source, Some(kept.path()), &given).unwrap(), &expected);
        }
    }

    #[test]
    fn a_loader_reads_each_run_by_one_request_and_several_at_a_time() {
        let counts = Arc::new([const { AtomicU64::new(0) }; 3]);
        let own = Arc::clone(&counts);
        let store = ObjectStore::with_faults(move |request| {
            let [long, now, most] = &*own;
            // Samples of the first batch are read alone, too.
            if request.range.is_some_and(|(first, last)| last - first > 2 << 20) {
                long.fetch_add(1, Ordering::Relaxed);
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(100));
                now.fetch_sub(1, Ordering::Relaxed);
            }
            Fault::None
        });
        put(&store, &groups(480, 40_000));
        let given = of_store(&store, ImportOptions::default());
        let dataset = open("s3://bucket/x/", None, &given).unwrap();
        let dataset = Dataset::from_image(dataset, ReaderOptions::default());
        let [long, _, most] = &*counts;
        long.store(0, Ordering::Relaxed);
        most.store(0, Ordering::Relaxed);
        let order = OrderSpec { kind: OrderKind::Grouped { lanes: 4, group: 2 }, seed: 7 };
        let loader = dataset.loader(LoaderOptions::new(order, 32, 1)).unwrap();
        let mut batch = Batch::new();
        let mut samples = 0;
        while loader.next_into(&mut batch, &mut ()).unwrap() {
            samples += batch.len();
        }
        assert_eq!(samples, 1440);
        let [long, most] = [long, most].map(|count| count.load(Ordering::Relaxed));
        // A run of which the first batch has many samples may be read for them, and again for the window.
        let runs = u64::from(dataset.directory().num_chunks());
        assert!((runs..=runs + 2).contains(&long), "{long} requests for {runs} runs");
        assert!((3..=8).contains(&most), "{most} of {long} requests at a time");
    }

    /// A watch that ends a call once the store has been asked often enough.
    struct UntilAsked<'a>(&'a ObjectStore, u64);

    impl Watch for UntilAsked<'_> {
        fn goes_on(&mut self) -> bool {
            self.0.state().requests.load(Ordering::Relaxed) < self.1
        }
    }

    #[test]
    fn an_opening_that_is_interrupted_reads_no_more_shards() {
        let store = ObjectStore::with_faults(|_| Fault::Late(100));
        let (_, shard) = groups(5, 1000).remove(0);
        (0..2000).for_each(|number| store.put(&format!("x/{number:04}.tar"), shard.clone()));
        let given = of_store(&store, ImportOptions::default());
        let options = Options {
            open: OpenOptions {
                connect: connect(&given),
                shards: Some(shards(None, &given)),
                ..OpenOptions::default()
            },
            ..Options::default()
        };
        let watch = &mut UntilAsked(&store, 50);
        let opened = Dataset::open(&["s3://bucket/x/".parse().unwrap()], &options, watch);
        assert_eq!(opened.err().unwrap().kind(), ErrorKind::Interrupted);
        // Without an end, eight shards at a time would be read for 25 seconds.
        let asked = || store.state().requests.load(Ordering::Relaxed);
        let rests = (0..30).any(|_| {
            let before = asked();
            std::thread::sleep(Duration::from_millis(500));
            asked() == before
        });
        assert!(rests && asked() < 1000, "{} requests", asked());
    }

    #[test]
    fn indexes_in_a_store_are_created_once_and_taken_by_the_next() {
        let store = ObjectStore::good();
        put(&store, &groups(40, 2000));
        let given = of_store(&store, ImportOptions::default());
        let kept = Path::new("s3://bucket/kept/of");
        let set = || {
            let source = ["s3://bucket/x/".parse().unwrap()];
            shard_set(&source, &shards(Some(kept), &given), &connect(&given), &mut ()).unwrap()
        };
        let late = set();
        assert_eq!(set().index(&mut ()).unwrap().made, 3);
        assert_eq!(late.index(&mut ()).unwrap().made, 0, "they came after it was opened");
        assert_eq!(set().index(&mut ()).unwrap().made, 0);
        late.keep(0, &late.reader(1).unwrap().finish().unwrap()).unwrap();
        let names: Vec<_> = set().kept_index(0).unwrap().into_iter().map(|it| it.name(0)).collect();
        assert_eq!(names, [b"0/0000"], "nothing is replaced");
    }

    #[test]
    fn indexes_in_a_store_are_packed_and_later_openings_read_them_by_one_request() {
        let keys = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&keys);
        let store = ObjectStore::with_faults(move |request| {
            if request.method == "GET" && request.key.starts_with("kept/") {
                noted.lock().unwrap().push(request.key.clone());
            }
            Fault::None
        });
        let shard = |number: u64| {
            let member = |at| member(&format!("{number}-{at}"), b'0', "", &bytes_of(at, 900));
            end((0..9).flat_map(member).collect())
        };
        (0..12).for_each(|number| store.put(&format!("x/{number:02}.tar"), shard(number)));
        let given = of_store(&store, ImportOptions::default());
        let made = || {
            keys.lock().unwrap().clear();
            let source = ["s3://bucket/x/".parse().unwrap()];
            let options = shards(Some(Path::new("s3://bucket/kept/of")), &given);
            let set = shard_set(&source, &options, &connect(&given), &mut ()).unwrap();
            let indexed = set.index(&mut ()).unwrap();
            let samples = indexed.indexes.iter().map(|index| index.len()).sum::<usize>();
            (indexed.made, samples, keys.lock().unwrap().clone())
        };
        assert_eq!(made(), (12, 108, Vec::new()));
        let (again, samples, asked) = made();
        assert_eq!((again, samples, asked.len()), (0, 108, 1), "{asked:?}");
        assert!(asked[0].starts_with("kept/of/packs/"), "{asked:?}");
        // With one more shard, the pack has the others.
        store.put("x/12.tar", shard(12));
        assert_eq!(made(), (1, 117, asked.clone()));
        let (again, samples, own) = made();
        assert_eq!((again, samples, own.len()), (0, 117, 1), "{own:?}");
        assert_ne!(own, asked);
        // A damaged pack costs requests.
        store.put(&own[0], "DLFSSHPK and what is none of it");
        let (again, samples, all) = made();
        assert_eq!((again, samples, all.len()), (0, 117, 14), "{all:?}");
        // One that is too long is not read, and the other pack serves.
        store.put(&own[0], vec![0; (64 << 20) + 1]);
        let (again, samples, few) = made();
        assert_eq!((again, samples, few.len()), (0, 117, 2), "{few:?}");
        assert_eq!(few[0], asked[0]);
    }

    #[test]
    fn with_kept_indexes_opening_lists_alone_and_a_run_is_one_request() {
        let store = ObjectStore::good();
        put(&store, &groups(600, 40_000));
        let given = of_store(&store, ImportOptions::default());
        let kept = tempfile::tempdir().unwrap();
        open("s3://bucket/x/", Some(kept.path()), &given).unwrap();
        let requests = || store.state().requests.load(Ordering::Relaxed);
        let before = requests();
        let image = open("s3://bucket/x/", Some(kept.path()), &given).unwrap();
        // One page of the listing, and what tells the kind: the beginning of a shard or two.
        let opening = requests() - before;
        assert!(opening <= 4, "{opening} requests");
        let dataset = Dataset::from_image(image, ReaderOptions::default());
        let samples = dataset.directory().num_samples();
        let before = requests();
        let ids: Vec<SampleId> = (300..310).map(SampleId).collect();
        dataset.read(Query::Ids(&ids), ReadOnError::Raise, &mut ()).unwrap();
        let asked = requests() - before;
        assert!(asked <= 2, "{asked} requests for neighbours of {samples} samples");
        store.put("x/0.tar", groups(601, 40_000)[0].1.clone());
        let error = dataset.read(Query::Ids(&[SampleId(0)]), ReadOnError::Raise, &mut ());
        let report = error.err().unwrap().report();
        assert!(report.contains("x/0.tar"), "{report}");
    }
}
