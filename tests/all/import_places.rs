//! Imports from object stores: what they make is what the same files make locally.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::import_support::{contents, is_long, options, tree};
use crate::support::archives::{member, record};
use crate::support::object_store::{self, Fault, ObjectStore, mix};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::sources::SourceKind;
use dlfs::import::{
    ImportOptions, ImportReport, OnError, Onto, PlacementOrder, RowOptions, import_onto,
};
use dlfs::places::{Place, PlaceOptions};
use dlfs::qpair::Device;
use dlfs::qpair::mem::MemNamespace;
use dlfs::{ErrorKind, Result};

type Samples = BTreeMap<Vec<u8>, Vec<u8>>;

fn memory() -> Vec<Arc<dyn Device>> {
    vec![Arc::new(MemNamespace::new(16 << 20, 4096).unwrap())]
}

fn of_store(store: &ObjectStore) -> ImportOptions {
    ImportOptions { places: store.options(), ..options(Onto::Empty) }
}

fn import(
    sources: &[&str],
    devices: &[Arc<dyn Device>],
    options: &ImportOptions,
) -> Result<ImportReport> {
    let sources: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
    import_onto(&sources, devices, options, &mut ())
}

fn imported(sources: &[&str], options: &ImportOptions) -> (ImportReport, Samples) {
    let devices = memory();
    let report = import(sources, &devices, options).unwrap();
    (report, contents(&devices).unwrap())
}

/// Puts the files of a folder into the bucket, below `prefix`.
fn put_all(store: &ObjectStore, prefix: &str, files: &Samples) {
    for (name, bytes) in files {
        store.put(&format!("{prefix}{}", String::from_utf8_lossy(name)), bytes.clone());
    }
}

fn bytes_of(devices: &[Arc<dyn Device>]) -> Vec<u8> {
    let namespace = devices[0].namespace();
    let mut io = dlfs::qpair::blocking::Blocking::new(devices[0].queue_pair().unwrap()).unwrap();
    io.read(0, namespace.len_bytes() as usize).unwrap().to_vec()
}

#[test]
fn a_folder_of_objects_makes_the_chunks_of_a_local_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = tree(folder.path(), 300, 3000, 11);
    for name in ["class1/deep/x", "class1-b/y", "alone"] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
        files.insert(name.into(), name.into());
    }
    let store = ObjectStore::good();
    put_all(&store, "set/", &files);
    store.put("set/class1/", "");
    store.put("settled/x", "no");
    let local = memory();
    let remote = memory();
    let options = of_store(&store);
    import(&[folder.path().to_str().unwrap()], &local, &options).unwrap();
    let report = import(&["s3://bucket/set"], &remote, &options).unwrap();
    assert_eq!((report.kind, report.samples), (SourceKind::Folder, 303));
    assert_eq!(contents(&remote).unwrap(), files);
    // All from the first chunk to the last one; what follows says where the objects were.
    let ends = [&local, &remote].map(|devices| {
        let image = Image::from_devices(devices.clone(), &OpenOptions::default()).unwrap();
        let directory = image.directory();
        let ends = (0..directory.num_chunks()).map(|chunk| directory.chunk(chunk));
        ends.map(|chunk| chunk.offset_bytes + chunk.len_bytes).max().unwrap() as usize
    });
    assert_eq!(ends[0], ends[1]);
    let local = bytes_of(&local);
    let remote = bytes_of(&remote);
    assert!(local[9 * 4096..ends[0]] == remote[9 * 4096..ends[0]], "the chunks differ");
}

#[test]
fn a_hostile_store_changes_no_byte_of_what_is_imported() {
    let folder = tempfile::tempdir().unwrap();
    let files = tree(folder.path(), 200, 3000, 12);
    let store = ObjectStore::with_faults(|request| {
        let mut state = request.number;
        match mix(&mut state) % 20 {
            0 => Fault::Status(503, None),
            1 => Fault::Reset,
            2 => Fault::Cut,
            3 if !request.key.is_empty() => Fault::ErrorWith200,
            _ => Fault::None,
        }
    });
    put_all(&store, "", &files);
    let (report, samples) = imported(&["s3://bucket"], &of_store(&store));
    assert_eq!((report.samples, samples), (200, files));
}

#[test]
fn tar_shards_are_read_once_front_to_back_also_compressed_and_by_braces() {
    let store = ObjectStore::good();
    let mut expected = Samples::new();
    for shard in 0..4 {
        let mut members = Vec::new();
        for number in 0..50 {
            let key = format!("{shard}-{number:03}");
            let bytes = object_store::bytes_of(shard * 50 + number, 700);
            members.push(member(&format!("{key}.jpg"), b'0', "", &bytes));
            members.push(member(&format!("{key}.cls"), b'0', "", b"7"));
            expected.insert(key.into_bytes(), bytes);
        }
        let mut tar = members.concat();
        tar.resize(tar.len() + 1024, 0);
        if shard == 3 {
            let mut packed = flate2_of(&tar);
            std::mem::swap(&mut tar, &mut packed);
        }
        store.put(&format!("w/s-{shard}.tar{}", if shard == 3 { ".gz" } else { "" }), tar);
    }
    store.put("w/README.md", "# shards");
    let narrow = PlaceOptions { range_bytes: 10_000, window_bytes: 30_000, ..store.options() };
    let options = ImportOptions { places: narrow, ..of_store(&store) };
    for sources in
        [&["s3://bucket/w/"][..], &["s3://bucket/w/s-{0..2}.tar", "s3://bucket/w/s-3.tar.gz"]]
    {
        for placement in [PlacementOrder::Source, PlacementOrder::Shuffled] {
            let options = ImportOptions { placement, ..options.clone() };
            let (report, samples) = imported(sources, &options);
            assert_eq!((report.kind, report.samples), (SourceKind::WebDataset, 200));
            let fields = samples
                .iter()
                .map(|(name, record)| (name, &record[record.len() - 701..record.len() - 1]));
            let fields: Samples =
                fields.map(|(name, bytes)| (name.clone(), bytes.to_vec())).collect();
            assert!(fields == expected, "{sources:?}");
        }
    }
}

#[test]
fn shards_make_the_same_image_however_their_samples_lie_in_ranges() {
    let store = ObjectStore::good();
    let lens = [0, 1, 511, 512, 20_000, 3000];
    let bytes = |number: u64| object_store::bytes_of(number, lens[number as usize % lens.len()]);
    let mut tar: Vec<u8> = (0..300)
        .flat_map(|number| member(&format!("{number:03}.x"), b'0', "", &bytes(number)))
        .collect();
    tar.resize(tar.len() + 1024, 0);
    store.put("a.tar", tar);
    store
        .put("a.tfrecord", (0..300).flat_map(|number| record(&bytes(number))).collect::<Vec<u8>>());
    let expected: Vec<Vec<u8>> = (0..300).map(bytes).collect();
    for source in ["s3://bucket/a.tar", "s3://bucket/a.tfrecord"] {
        for placement in [PlacementOrder::Source, PlacementOrder::Shuffled] {
            let images = [8 << 20, 100_000, 5000, 700].map(|range_bytes| {
                let range = range_bytes;
                let window_bytes = (100 * range_bytes).min(64 << 20);
                let places = PlaceOptions { range_bytes: range, window_bytes, ..store.options() };
                let devices = memory();
                let options = ImportOptions { placement, places, ..options(Onto::Empty) };
                import(&[source], &devices, &options).unwrap();
                devices
            });
            let mut found: Vec<Vec<u8>> = contents(&images[0]).unwrap().into_values().collect();
            if source.ends_with("tar") {
                assert!(found == expected, "{source}");
            } else {
                found.sort_unstable();
                let mut expected = expected.clone();
                expected.sort_unstable();
                assert!(found == expected, "{source}");
            }
            let images = images.map(|devices| bytes_of(&devices));
            assert!(images.iter().all(|image| *image == images[0]), "{source}, {placement:?}");
        }
    }
}

fn flate2_of(bytes: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    fs::write(&path, bytes).unwrap();
    let packed = std::process::Command::new("gzip").arg("-c").arg(&path).output().unwrap();
    assert!(packed.status.success());
    packed.stdout
}

#[test]
fn tfrecord_shards_are_read_as_streams_and_a_broken_record_is_named() {
    let store = ObjectStore::good();
    let mut expected = Samples::new();
    for shard in 0..3 {
        let mut bytes = Vec::new();
        for number in 0..40 {
            let payload = object_store::bytes_of(shard * 40 + number, 900 + number as usize);
            bytes.extend(record(&payload));
            expected.insert(format!("t-{shard}.tfrecord/{number}").into_bytes(), payload);
        }
        store.put(&format!("r/t-{shard}.tfrecord"), bytes);
    }
    let options = ImportOptions { placement: PlacementOrder::Source, ..of_store(&store) };
    let (report, samples) = imported(&["s3://bucket/r"], &options);
    assert_eq!(report.kind, SourceKind::TfRecord);
    assert_eq!(samples, expected);
    let mut broken = record(b"first");
    broken.extend(record(b"second"));
    broken[14] ^= 1;
    broken.extend(&record(b"third")[..9]);
    store.put("broken.tfrecord", broken);
    let error = import(&["s3://bucket/broken.tfrecord"], &memory(), &options).unwrap_err();
    let report = error.report();
    assert!(
        report.contains("broken.tfrecord/0: payload CRC") && report.contains("broken.tfrecord/2"),
        "{report}"
    );
    let options = ImportOptions { on_error: OnError::Skip, ..options };
    let (report, samples) = imported(&["s3://bucket/broken.tfrecord"], &options);
    assert_eq!((report.samples, report.bad.len()), (1, 2));
    assert_eq!(samples[&b"broken.tfrecord/1"[..]], b"second");
}

#[test]
fn lists_name_objects_beside_them_or_anywhere() {
    let store = ObjectStore::good();
    store.put("l/a/1", "one");
    store.put("l/a/2", "two");
    store.put("elsewhere", "three");
    store.put("l/list.txt", "a/2\t5\ns3://bucket/elsewhere\t6\na/1\n");
    let (report, samples) = imported(&["s3://bucket/l/list.txt"], &of_store(&store));
    assert_eq!((report.kind, report.samples), (SourceKind::List, 3));
    let expect = |pairs: &[(&str, &str)]| -> Samples {
        pairs.iter().map(|(name, bytes)| ((*name).into(), (*bytes).into())).collect()
    };
    assert_eq!(samples, expect(&[("a/2", "two"), ("bucket/elsewhere", "three"), ("a/1", "one")]));
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list");
    let mut file = fs::File::create(&list).unwrap();
    writeln!(
        file,
        "s3://bucket/l/a/1\t1\ns3://bucket/none\ns3://bucket/elsewhere\tx\ns3://bucket/l/a/2"
    )
    .unwrap();
    let error = import(&[list.to_str().unwrap()], &memory(), &of_store(&store)).unwrap_err();
    let report = error.report();
    assert!(
        report.contains("s3://bucket/none: unreadable") && report.contains("not a number"),
        "{report}"
    );
    let options = ImportOptions { on_error: OnError::Skip, ..of_store(&store) };
    let (report, samples) = imported(&[list.to_str().unwrap()], &options);
    assert_eq!((report.samples, report.bad.len()), (2, 2));
    assert_eq!(samples, expect(&[("bucket/l/a/1", "one"), ("bucket/l/a/2", "two")]));
}

#[test]
fn a_list_of_a_store_names_what_is_in_that_store_unless_more_is_allowed() {
    let store = ObjectStore::good();
    let other = ObjectStore::good();
    store.put("own", "one");
    other.put("there", "two");
    let there = format!("{}/bucket/there", other.endpoint());
    store.put("list.txt", format!("s3://bucket/own\n{there}\ns3://private/key\n"));
    let options = of_store(&store);
    let list = ["s3://bucket/list.txt"];
    let error = import(&list, &memory(), &options).unwrap_err().report();
    for told in [&*there, "s3://private/key", "than that of the list", "--list-hosts ADDRESS"] {
        assert!(error.contains(told), "{error}");
    }
    assert_eq!(other.state().requests.load(std::sync::atomic::Ordering::Relaxed), 0);
    let list_hosts = vec![Place::parse(&other.endpoint()).unwrap()];
    let places = PlaceOptions { list_hosts, ..options.places.clone() };
    let options = ImportOptions { places, on_error: OnError::Skip, ..options };
    let (report, samples) = imported(&list, &options);
    assert_eq!((report.samples, report.bad.len()), (2, 1));
    assert!(samples.values().any(|bytes| bytes == b"two"));
}

#[test]
fn signed_urls_of_one_server_share_its_connections_however_many_there_are() {
    let store = ObjectStore::good();
    let host = store.endpoint();
    let mut list = String::new();
    for number in 0..300 {
        store.put(&format!("pictures/{number}.jpg"), format!("picture {number}"));
        list += &format!("{host}/bucket/pictures/{number}.jpg?signature={number}\t{number}\n");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("list.txt");
    std::fs::write(&path, list).unwrap();
    let (report, samples) = imported(&[path.to_str().unwrap()], &of_store(&store));
    assert_eq!(report.samples, 300);
    let name = format!("{}/bucket/pictures/7.jpg", host.trim_start_matches("http://"));
    assert_eq!(samples[name.as_bytes()], b"picture 7");
    let connections = store.state().connections.load(Ordering::Relaxed);
    assert!(connections < 150, "{connections} connections for 600 requests");
}

#[test]
fn a_store_that_goes_away_ends_the_import_which_is_resumed_and_skips_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let files = tree(folder.path(), 200, 3000, 13);
    let is_away = Arc::new(AtomicBool::new(false));
    let away = Arc::clone(&is_away);
    let store = ObjectStore::with_faults(move |request| {
        let is_late = request.number > 120 && away.load(Ordering::Relaxed);
        if is_late { Fault::Reset } else { Fault::None }
    });
    put_all(&store, "x/", &files);
    let shard: Vec<u8> = files
        .iter()
        .flat_map(|(name, bytes)| member(std::str::from_utf8(name).unwrap(), b'0', "", bytes))
        .chain([0; 1024])
        .collect();
    store.put("shard.tar", shard);
    for (source, range_bytes) in [("s3://bucket/x", 8 << 20), ("s3://bucket/shard.tar", 1000)] {
        is_away.store(true, Ordering::Relaxed);
        let places = PlaceOptions {
            patience: Duration::from_millis(300),
            range_bytes,
            window_bytes: 10 * range_bytes,
            ..store.options()
        };
        let places = PlaceOptions { window_bytes: places.window_bytes.min(64 << 20), ..places };
        let options = ImportOptions { places, on_error: OnError::Skip, ..of_store(&store) };
        let devices = memory();
        let error = import(&[source], &devices, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{}", error.report());
        is_away.store(false, Ordering::Relaxed);
        let options = ImportOptions { onto: Onto::Resume, ..options };
        let report = import(&[source], &devices, &options).unwrap();
        assert_eq!((report.samples, report.bad.len()), (200, 0));
        assert_eq!(contents(&devices).unwrap(), files);
    }
}

#[test]
fn what_is_not_there_or_is_several_kinds_is_refused_with_what_to_do() {
    let store = ObjectStore::good();
    store.put("mixed/a.tar", [0; 1024]);
    store.put("mixed/b.jpg", "x");
    store.put("t.parquet", "PAR1");
    let refusal = |sources: &[&str]| import(sources, &memory(), &of_store(&store)).unwrap_err();
    assert_eq!(refusal(&["s3://bucket/none"]).kind(), ErrorKind::NotFound);
    assert_eq!(refusal(&["s3://bucket/none/"]).kind(), ErrorKind::NotFound);
    assert_eq!(refusal(&["s3://bucket/mixed", "."]).kind(), ErrorKind::InvalidArgument);
    let mixed = refusal(&["s3://bucket/mixed"]);
    assert!(mixed.report().contains("s3://bucket/mixed/b.jpg"), "{}", mixed.report());
    let damaged = refusal(&["s3://bucket/t.parquet"]);
    assert!(damaged.report().contains("s3://bucket/t.parquet"), "{}", damaged.report());
}

/// The files of rows that tests/all/import_rows.rs imports locally.
const ROWS: [&str; 7] =
    ["lines.jsonl", "mds", "mds-zstd", "litdata", "litdata-zstd", "snappy.parquet", "file.arrow"];

fn put_rows(store: &ObjectStore, name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/rows").join(name);
    if path.is_dir() {
        fs::read_dir(&path).unwrap().for_each(|entry| {
            let entry = entry.unwrap();
            let file = entry.file_name().into_string().unwrap();
            store.put(&format!("rows/{name}/{file}"), fs::read(entry.path()).unwrap());
        })
    } else {
        store.put(&format!("rows/{name}"), fs::read(&path).unwrap())
    }
    path
}

#[test]
fn rows_of_stores_are_those_of_local_files_whatever_the_store_does() {
    for name in ROWS {
        if !cfg!(feature = "formats") && (name.ends_with("parquet") || name.ends_with("arrow")) {
            continue;
        }
        let store = ObjectStore::with_faults(|request| {
            let mut state = request.number;
            match mix(&mut state) % 6 {
                0 => Fault::Status(503, None),
                1 => Fault::Cut,
                _ => Fault::None,
            }
        });
        let path = put_rows(&store, name);
        let (local, expected) = imported(&[path.to_str().unwrap()], &options(Onto::Empty));
        let address = format!("s3://bucket/rows/{name}");
        let (report, samples) = imported(&[&address], &of_store(&store));
        assert_eq!((report.kind, report.samples), (local.kind, 40), "{name}");
        assert!(samples == expected, "{name}: other samples than those of the local file");
        // In pieces so small that all of what holds pieces together is tried, and held in few of them; in the smallest
        // with `DLFS_LONG_TESTS`.
        let range_bytes = if is_long() { 100 } else { 400 };
        let window_bytes = 20 * range_bytes;
        let places = PlaceOptions { range_bytes, window_bytes, ..store.options() };
        let (_, samples) = imported(&[&address], &ImportOptions { places, ..of_store(&store) });
        assert!(samples == expected, "{name}: other samples in small pieces");
    }
}

#[test]
fn shards_of_rows_are_found_among_what_describes_them_and_refused_among_other_objects() {
    let store = ObjectStore::good();
    put_rows(&store, "mds");
    store.put("rows/mds/README.md", "about");
    let (report, _) = imported(&["s3://bucket/rows/mds"], &of_store(&store));
    assert_eq!((report.kind, report.samples), (SourceKind::Mds, 40));
    store.put("rows/mds/cat.jpg", "a picture");
    let refusal = |prefix: &str| import(&[prefix], &memory(), &of_store(&store)).unwrap_err();
    let told = refusal("s3://bucket/rows/mds").report();
    assert!(told.contains("s3://bucket/rows/mds/cat.jpg"), "{told}");
    // A shard that the index names and that is not there is missed by its name.
    store.put("cut/index.json", store.bytes("rows/mds/index.json"));
    let told = refusal("s3://bucket/cut").report();
    assert!(told.contains("s3://bucket/cut/shard.00000.mds"), "{told}");
    for lines in ["two/a.jsonl", "two/b.jsonl"] {
        store.put(lines, "{\"x\": 1}\n{\"x\": 2}\n");
    }
    let (report, _) = imported(&["s3://bucket/two"], &of_store(&store));
    assert_eq!((report.kind, report.samples), (SourceKind::JsonLines, 4));
    // Not every index.json is one of shards.
    let mut tar = member("a.jpg", b'0', "", b"x");
    tar.resize(tar.len() + 1024, 0);
    store.put("tars/index.json", "{\"shards\": 1}");
    store.put("tars/one.tar", tar);
    let (report, samples) = imported(&["s3://bucket/tars"], &of_store(&store));
    assert_eq!((report.kind, samples.len()), (SourceKind::Tar, 1));
    // As img2dataset lays them out: what lies beside the shards has names of shards of another kind.
    let tar = store.bytes("tars/one.tar");
    for (name, bytes) in [("0.tar", &tar[..]), ("0.parquet", b"PAR1"), ("0_stats.json", b"{}")] {
        store.put(&format!("i2d/{name}"), bytes);
    }
    store.put("i2d/more.jsonl.gz", flate2_of(b"{}\n"));
    let told = refusal("s3://bucket/i2d").report();
    assert!(told.contains("s3://bucket/i2d/0.tar") && told.contains("--from"), "{told}");
    let tars = ImportOptions { from: SourceKind::Tar, ..of_store(&store) };
    assert_eq!(imported(&["s3://bucket/i2d"], &tars).0.samples, 1);
    let lines = flate2_of("{\"x\": 1}\n".repeat(5).as_bytes());
    store.put("packed/a.json.gz", lines.clone());
    store.put("packed/b.json.gz", lines);
    let (report, _) = imported(&["s3://bucket/packed"], &of_store(&store));
    assert_eq!((report.kind, report.samples), (SourceKind::JsonLines, 10));
    store.put("pictures/a.jpg", "x");
    store.put("pictures/z.parquet", "PAR1");
    let told = refusal("s3://bucket/pictures").report();
    assert!(told.contains("s3://bucket/pictures/a.jpg"), "{told}");
}

#[test]
fn columns_of_all_objects_are_unified_as_those_of_local_files_are() {
    let dir = tempfile::tempdir().unwrap();
    let store = ObjectStore::good();
    let put = |name: &str, line: &str| {
        store.put(&format!("{name}.jsonl"), line);
        fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
        fs::write(dir.path().join(format!("{name}.jsonl")), line).unwrap();
    };
    put("numbers/0", "{\"x\": 1}\n");
    put("numbers/1", "{\"x\": 0.5}\n");
    put("numbers/2", "{\"x\": null}\n{\"x\": 3}\n");
    let local = dir.path().join("numbers");
    // A sample that is one field cannot be without a value.
    let none = import(&["s3://bucket/numbers"], &memory(), &of_store(&store)).unwrap_err().report();
    assert!(none.contains("the only column") && none.contains("--on-error skip"), "{none}");
    let skip = |options| ImportOptions { on_error: OnError::Skip, ..options };
    let (_, expected) = imported(&[local.to_str().unwrap()], &skip(options(Onto::Empty)));
    let (_, samples) = imported(&["s3://bucket/numbers"], &skip(of_store(&store)));
    assert_eq!((samples.len(), &samples), (3, &expected));
    assert!(samples.values().any(|bytes| bytes == &1f64.to_le_bytes()), "{samples:?}");
    // Another kind, and a column that only a later file has, before anything is imported.
    put("kinds/0", "{\"x\": 1}\n");
    put("kinds/1", "{\"x\": \"a\"}\n");
    put("late/0", "{\"x\": 1}\n");
    put("late/1", "{\"x\": 2, \"y\": 3}\n");
    for (prefix, words) in [("kinds", "--fields"), ("late", "--columns union")] {
        let refused = import(&[&format!("s3://bucket/{prefix}")], &memory(), &of_store(&store));
        let told = refused.unwrap_err().report();
        assert!(told.contains(words) && told.contains(&format!("{prefix}/1.jsonl")), "{told}");
    }
    let rows = RowOptions { union: true, ..RowOptions::default() };
    let (report, _) = imported(&["s3://bucket/late"], &ImportOptions { rows, ..of_store(&store) });
    assert_eq!((report.samples, report.bad.len()), (2, 0));
    let rows = RowOptions { fields: vec!["x".to_owned()], ..RowOptions::default() };
    let (_, samples) = imported(&["s3://bucket/late"], &ImportOptions { rows, ..of_store(&store) });
    assert_eq!(samples.len(), 2);
}

#[test]
fn lines_in_a_store_name_objects_beside_them_whatever_the_store_does() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("deep")).unwrap();
    let store = ObjectStore::with_faults(|request| {
        let mut state = request.number;
        match mix(&mut state) % 16 {
            0 => Fault::Status(503, None),
            1 => Fault::Cut,
            _ => Fault::None,
        }
    });
    let mut lines = String::new();
    for number in 0..150 {
        let name = format!("deep/{number}.jpg");
        let bytes = object_store::bytes_of(number, (number as usize * 97) % 5000);
        fs::write(folder.path().join(&name), &bytes).unwrap();
        store.put(&format!("named/{name}"), bytes);
        lines += &format!("{{\"file_name\": \"{name}\", \"text\": \"number {number}\"}}\n");
    }
    // Lines that are bad locally are bad in a store too, and are reported in the same order.
    lines += "{\"file_name\": \"absent.jpg\", \"text\": \"\"}\n{\"file_name\": 7, \"text\": \"\"}\nno line\n";
    lines += "{\"file_name\": \"../deep/1.jpg\", \"text\": \"\"}\n{\"file_name\": \"deep/0.jpg\", \"text\": \"\"}\n";
    fs::write(folder.path().join("metadata.jsonl"), &lines).unwrap();
    store.put("named/metadata.jsonl", lines);
    let local = folder.path().join("metadata.jsonl");
    let skip = ImportOptions { on_error: OnError::Skip, ..options(Onto::Empty) };
    let (expected, samples) = imported(&[local.to_str().unwrap()], &skip);
    assert_eq!((expected.samples, expected.bad.len()), (150, 5));
    // Also where there is room for few objects at once.
    for window_bytes in [256 << 20, 10_000] {
        let places = PlaceOptions { window_bytes, ..store.options() };
        let skip = ImportOptions { places, ..skip.clone() };
        let (report, found) = imported(&["s3://bucket/named/metadata.jsonl"], &skip);
        assert!(found == samples, "other samples than those of the local files");
        let bad = |report: &ImportReport| {
            report.bad.iter().map(|bad| bad.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(bad(&report), bad(&expected));
    }
}

#[test]
fn a_store_that_goes_away_while_lines_name_objects_ends_the_import() {
    let mut ended = 0;
    for answered in (0..60).step_by(6) {
        let store = ObjectStore::with_faults(move |request| {
            if request.number < answered { Fault::None } else { Fault::Status(503, None) }
        });
        let mut lines = String::new();
        for number in 0..10 {
            store.put(&format!("x/{number}"), "bytes");
            lines += &format!("{{\"file_name\": \"{number}\"}}\n");
        }
        store.put("x/lines.jsonl", lines);
        let places = PlaceOptions { patience: Duration::from_millis(30), ..store.options() };
        let skip = ImportOptions { places, on_error: OnError::Skip, ..options(Onto::Empty) };
        match import(&["s3://bucket/x/lines.jsonl"], &memory(), &skip) {
            Ok(report) => assert_eq!((report.samples, report.bad.len()), (10, 0), "{answered}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{answered}: {error:?}");
                ended += 1;
            }
        }
    }
    assert!((3..10).contains(&ended), "{ended}");
}

#[test]
fn a_store_that_is_away_ends_an_import_of_rows_and_makes_none_of_them_bad() {
    for name in ROWS {
        if !cfg!(feature = "formats") && (name.ends_with("parquet") || name.ends_with("arrow")) {
            continue;
        }
        // Each number of requests that are answered before the store goes away for good; every third one without
        // `DLFS_LONG_TESTS`.
        for answered in (0..40).step_by(if is_long() { 1 } else { 3 }) {
            let store = ObjectStore::with_faults(move |request| {
                if request.number < answered { Fault::None } else { Fault::Status(503, None) }
            });
            put_rows(&store, name);
            let places = PlaceOptions { patience: Duration::from_millis(30), ..store.options() };
            let skip = ImportOptions { places, on_error: OnError::Skip, ..options(Onto::Empty) };
            let devices = memory();
            match import(&[&format!("s3://bucket/rows/{name}")], &devices, &skip) {
                Ok(report) => {
                    assert_eq!((report.samples, report.bad.len()), (40, 0), "{name}: {answered}");
                    break;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Busy, "{name}, {answered}: {error:?}");
                    assert!(answered < 39, "{name}: it needs no 40 requests");
                }
            }
        }
    }
}
