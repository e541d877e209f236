//! A small source does not become a large image, nor take much memory, unless the user says that it may.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::import_support::{contents, options};
use crate::support::alone::{leave_memory, ran_alone};
use crate::support::archives::{self, archive, fix_checksum, masked, member};
#[cfg(feature = "formats")]
use crate::support::random::Random;
use dlfs::address::Address;
use dlfs::dataset::{Dataset, Image, OnError as ReadOnError, OpenOptions, Query};
use dlfs::import::sources::expansion::Expansion;
use dlfs::import::sources::{BadReason, Source, SourceKind, SourceOptions};
use dlfs::import::{ImportOptions, ImportReport, OnError, Onto, PlacementOrder, import_onto};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::Device;
use dlfs::qpair::mem::MemNamespace;
use dlfs::reader::ReaderOptions;
use dlfs::units::SampleId;
use dlfs::{ErrorKind, Result};

/// Bytes by name.
type Samples = BTreeMap<Vec<u8>, Vec<u8>>;

const MIB: usize = 1 << 20;

fn memory(mib: usize) -> Vec<Arc<dyn Device>> {
    vec![Arc::new(MemNamespace::new((mib * MIB) as u64, 4096).unwrap())]
}

/// Imports pipes and compressed files as they come.
fn import(path: &Path, devices: &[Arc<dyn Device>], how: ImportOptions) -> Result<ImportReport> {
    let placement = match how.spool {
        Some(_) => PlacementOrder::Shuffled,
        None => PlacementOrder::Source,
    };
    let how = ImportOptions { chunk_size_bytes: 4 << 20, placement, ..how };
    import_onto(&[path.to_path_buf()], devices, &how, &mut ())
}

/// The source with at most so many bytes of each.
fn open(path: &Path, kind: SourceKind, most: u64) -> Source {
    let options =
        SourceOptions { kind, expansion: Expansion::new(most), ..SourceOptions::default() };
    Source::open(&[path.to_path_buf()], &options).unwrap()
}

/// The header of a member of `len` bytes.
fn header(name: &str, len: usize) -> Vec<u8> {
    let mut header = member(name, b'0', "", b"");
    header[124..136].copy_from_slice(format!("{len:011o}\0").as_bytes());
    fix_checksum(&mut header);
    header
}

/// A frame of zstd with `front`, and then so many MiB of one byte, which take 32 bytes each.
#[cfg(feature = "formats")]
fn bomb(front: &[u8], byte: u8, mib: usize) -> Vec<u8> {
    const RAW: u32 = 0;
    const RLE: u32 = 1;
    const LAST: u32 = 1;
    let block = |kind: u32, len: u32, last: u32| {
        [&((len << 3) | (kind << 1) | last).to_le_bytes()[..3]].concat()
    };
    let mut frame = b"\x28\xb5\x2f\xfd\x00\x58".to_vec();
    frame.extend([&block(RAW, front.len() as u32, 0)[..], front].concat());
    for _ in 0..8 * mib {
        frame.extend([&block(RLE, 128 << 10, 0)[..], &[byte]].concat());
    }
    frame.extend(block(RAW, 0, LAST));
    frame
}

#[cfg(feature = "formats")]
#[test]
fn what_is_compressed_is_not_expanded_without_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let len = 300 * MIB as u64;
    let record = [&len.to_le_bytes()[..], &masked(&len.to_le_bytes())].concat();
    for (name, bytes) in [
        ("a.tar.zst", bomb(&header("x.bin", 300 * MIB), 0, 300)),
        ("a.tfrecord.zst", bomb(&record, 0, 300)),
        ("a.jsonl.zst", bomb(b"{\"a\": \"", b'x', 300)),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, &bytes).unwrap();
        let spool = Some(dir.path().to_path_buf()).filter(|_| name == "a.tar.zst");
        for spool in [None].into_iter().chain(spool.map(Some)) {
            let how = ImportOptions { spool, ..options(Onto::Empty) };
            let error = import(&path, &memory(400), how).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadSource, "{name}");
            let text = error.report();
            assert!(text.contains(name) && text.contains("100 times"), "{name}: {text}");
            assert!(text.contains("--max-expansion"), "{name}: {text}");
        }
    }
}

#[cfg(feature = "formats")]
#[test]
fn compressed_buffers_that_state_too_much_are_refused_before_they_get_memory() {
    use arrow_array::{ArrayRef, Int64Array, RecordBatch};
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};

    let dir = tempfile::tempdir().unwrap();
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![7; 1000]));
    let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
    let packed = IpcWriteOptions::default();
    let packed = packed.try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
    let mut stream =
        StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), packed.clone()).unwrap();
    let mut file = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), packed).unwrap();
    for _ in 0..2 {
        stream.write(&batch).unwrap();
        file.write(&batch).unwrap();
    }
    for bytes in [stream.into_inner().unwrap(), file.into_inner().unwrap()] {
        let path = dir.path().join("a.arrow");
        fs::write(&path, &bytes).unwrap();
        let report = import(&path, &memory(64), options(Onto::Empty));
        assert_eq!(report.unwrap().samples, 2_000);
        // The lengths of buffers, which stand before what is compressed.
        let stated = 8_000_u64.to_le_bytes();
        let is_stated = |at: &usize| bytes[*at..].starts_with(&stated);
        let places: Vec<usize> = (0..bytes.len()).filter(is_stated).collect();
        assert_eq!(places.len(), 2);
        for place in places {
            let mut lying = bytes.clone();
            lying[place..place + 8].copy_from_slice(&(1_u64 << 44).to_le_bytes());
            fs::write(&path, &lying).unwrap();
            let told = import(&path, &memory(64), options(Onto::Empty));
            let told = told.map(drop).unwrap_err().report();
            assert!(told.contains("a.arrow") && told.contains("--max-expansion"), "{told}");
        }
    }
}

/// A number in zigzag encoding, as in headers of Parquet pages.
#[cfg(feature = "formats")]
fn zigzag(number: i32) -> Vec<u8> {
    let mut rest = ((number << 1) ^ (number >> 31)) as u32;
    let mut bytes = Vec::new();
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

/// A Parquet file of 50 texts and numbers, with dictionaries.
#[cfg(feature = "formats")]
fn table(
    codec: parquet::basic::Compression,
    version: parquet::file::properties::WriterVersion,
) -> Vec<u8> {
    use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use parquet::file::properties::WriterProperties;

    let texts = StringArray::from_iter_values((0..50).map(|row| format!("text {}", row % 7)));
    let numbers = Int64Array::from_iter_values((0..50).map(|row| row % 5));
    let columns = [("t", Arc::new(texts) as ArrayRef), ("n", Arc::new(numbers) as ArrayRef)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let set = WriterProperties::builder().set_compression(codec).set_writer_version(version);
    let mut bytes = Vec::new();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), Some(set.build()))
            .unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

/// In a process that may take 2 GiB more: an allocation of what a header states there would end it.
#[cfg(feature = "formats")]
#[test]
fn pages_whose_headers_lie_are_errors_and_get_no_memory() {
    use parquet::basic::Compression;
    use parquet::file::properties::WriterVersion;
    use parquet::file::reader::{FileReader as _, SerializedFileReader};

    if ran_alone(pages_whose_headers_lie_are_errors_and_get_no_memory) {
        return;
    }
    let mut random = Random::new(31);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    leave_memory(2 << 30);
    let import = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let imported = import(&path, &memory(16), options(Onto::Empty));
        if let Err(error) = &imported {
            assert_eq!(error.kind(), ErrorKind::BadSource, "{}", error.report());
            assert!(error.report().contains("a.parquet"), "{}", error.report());
        }
        imported
    };
    // A dictionary's header: its type, decompressed and stored length, and a struct with the number of its values.
    let header = |before: &[u8], len: i32, values: i32, behind: &[u8]| {
        let [len, stored, values] = [len, 20, values].map(zigzag);
        let front = [&b"\x15\x04"[..], before, &len, b"\x15", &stored].concat();
        [&front[..], b"\x4c\x15", &values, b"\x15\0\0", behind, b"\0"].concat()
    };
    let second = [b"\x05\x04", &zigzag(i32::MAX)[..]].concat();
    let lies = [
        header(b"\x15", i32::MAX, 1, b""),
        header(b"\x05\x04", i32::MAX, 1, b""), // the field's number in place of the step
        header(b"\x15", 20, 1, &second),
        header(b"\x15", 20, i32::MAX, b""),
    ];
    for (codec, version) in [
        (Compression::SNAPPY, WriterVersion::PARQUET_1_0),
        (Compression::UNCOMPRESSED, WriterVersion::PARQUET_2_0),
    ] {
        let whole = table(codec, version);
        assert_eq!(import(&whole).unwrap().samples, 50);
        let file = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let columns = file.metadata().row_group(0).columns();
        let pages = columns.iter().flat_map(|column| {
            [column.dictionary_page_offset().unwrap(), column.data_page_offset()]
        });
        let pages: Vec<usize> = pages.map(|at| at as usize).collect();
        for lie in &lies {
            let mut lying = whole.clone();
            lying.splice(pages[0]..pages[0], lie.iter().copied());
            import(&lying).map(drop).unwrap_err();
        }
        for _ in 0..40 {
            let mut lying = whole.clone();
            for _ in 0..1 + random.below(3) {
                let at = pages[random.below(4) as usize] + random.below(24) as usize;
                let byte = random.below(256) as u8;
                match random.below(4) {
                    0 => lying.insert(at, byte),
                    _ => lying[at] = byte,
                }
            }
            let _ = import(&lying); // an error, or what a reader of Parquet cannot notice
        }
    }
}

#[test]
fn links_of_archives_folders_and_lists_count() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = vec![member("x", b'0', "", &vec![1; 8 * MIB])];
    for link in 0..40 {
        let (kind, name) = if link % 2 == 0 { (b'1', "h") } else { (b'2', "s") };
        members.push(member(&format!("{name}{link}"), kind, "x", b""));
    }
    let path = archive(dir.path(), "a.tar", &members);
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    File::create(folder.join("x")).unwrap().set_len(8 * MIB as u64).unwrap();
    for link in 0..20 {
        fs::hard_link(folder.join("x"), folder.join(format!("h{link}"))).unwrap();
        std::os::unix::fs::symlink("x", folder.join(format!("s{link}"))).unwrap();
    }
    let list = dir.path().join("list");
    let links = (0..20).map(|link| format!("folder/h{link}\nfolder/s{link}\n"));
    fs::write(&list, format!("folder/x\n{}", links.collect::<String>())).unwrap();
    for (path, kind) in
        [(&path, SourceKind::Tar), (&folder, SourceKind::Folder), (&list, SourceKind::List)]
    {
        // 256 MiB in any case, of 8 MiB each.
        let few = open(path, kind, 10);
        assert_eq!((few.index().len(), few.index().bad.len()), (1 + 32, 8), "{kind}");
        assert!(few.index().bad.iter().all(|bad| bad.reason == BadReason::Expands(10)));
        let all = open(path, kind, 100);
        assert_eq!((all.index().len(), all.index().bad.len()), (41, 0), "{kind}");
    }
}

#[test]
fn lines_that_name_one_file_again_count() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("x.bin"), vec![1; 8 * MIB]).unwrap();
    for at in (0..40).step_by(2) {
        std::os::unix::fs::symlink("x.bin", dir.path().join(format!("{at}.bin"))).unwrap();
    }
    let line = |at: u32| {
        let name = if at.is_multiple_of(2) { at.to_string() } else { "x".to_owned() };
        format!("{{\"file_name\": \"{name}.bin\", \"id\": \"{at}\"}}\n")
    };
    let path = dir.path().join("a.jsonl");
    fs::write(&path, (0..40).map(line).collect::<String>()).unwrap();
    let mut how = ImportOptions { max_expansion: 10, ..options(Onto::Empty) };
    how.rows.name = Some("id".to_owned());
    how.on_error = OnError::Skip;
    let report = import(&path, &memory(400), how).unwrap();
    assert_eq!((report.samples, report.bad.len()), (32, 8));
}

/// A pipe through which `parts` come, one after the other.
fn pipe(dir: &Path, name: &str, parts: Vec<Vec<u8>>) -> PathBuf {
    let path = dir.join(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
    let to = path.clone();
    std::thread::spawn(move || {
        let mut pipe = File::options().write(true).open(to).unwrap();
        // The import may end before the bytes do.
        let _ = parts.iter().try_for_each(|part| pipe.write_all(part));
    });
    path
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Ten samples as a shard of this kind, one of them long; what they are, in the shard called `name`.
fn with_a_long_one(kind: &str, name: &str) -> (Vec<Vec<u8>>, Samples) {
    let long = noise(65 * MIB + 5);
    let small: Vec<Vec<u8>> = (0..9).map(|at| noise(1000 + at)).collect();
    let mut parts = Vec::new();
    let mut expected = BTreeMap::new();
    for (at, bytes) in small.iter().take(5).chain([&long]).chain(&small[5..]).enumerate() {
        let (name, part) = match kind {
            "tar" => (at.to_string(), member(&at.to_string(), b'0', "", bytes)),
            _ => (format!("{name}/{at}"), archives::record(bytes)),
        };
        parts.push(part);
        expected.insert(name.into_bytes(), bytes.clone());
    }
    if kind == "tar" {
        parts.push(vec![0; 1024]);
    }
    (parts, expected)
}

#[test]
fn samples_too_long_to_be_held_are_read_in_pieces_and_leave_the_others_alone() {
    let dir = tempfile::tempdir().unwrap();
    for (kind, from) in [("tar", SourceKind::Tar), ("tfrecord", SourceKind::TfRecord)] {
        let name = format!("a.{kind}");
        let how = ImportOptions { from, ..options(Onto::Empty) };
        let (parts, expected) = with_a_long_one(kind, &name);
        let devices = memory(150);
        let path = pipe(dir.path(), &name, parts);
        assert_eq!(import(&path, &devices, how).unwrap().samples, 10, "{kind}");
        assert!(contents(&devices).unwrap() == expected, "{kind}");
    }
}

#[cfg(feature = "cloud")]
#[test]
fn samples_too_long_to_be_held_stay_out_of_the_shuffle() {
    let store = crate::support::object_store::ObjectStore::good();
    let (parts, expected) = with_a_long_one("tar", "a.tar");
    store.put("a.tar", parts.concat());
    let how = ImportOptions { places: store.options(), ..options(Onto::Empty) };
    let devices = memory(150);
    let report = import_onto(&["s3://bucket/a.tar".into()], &devices, &how, &mut ()).unwrap();
    assert_eq!(report.samples, 10);
    assert!(contents(&devices).unwrap() == expected);
}

#[test]
fn a_long_sample_that_turns_out_to_be_bad_is_left_out_and_what_follows_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut bad = archives::record(&noise(65 * MIB));
    bad[40 * MIB] ^= 1;
    let parts = vec![archives::record(b"before"), bad, archives::record(b"behind")];
    let path = pipe(dir.path(), "a.tfrecord", parts);
    let devices = memory(150);
    let skip = OnError::Skip;
    let how = ImportOptions { on_error: skip, from: SourceKind::TfRecord, ..options(Onto::Empty) };
    let report = import(&path, &devices, how).unwrap();
    let [bad] = &report.bad[..] else { panic!("{:?}", report.bad) };
    assert!(matches!(bad.reason, BadReason::BadCrc { .. }), "{bad}");
    let names = [&b"a.tfrecord/0"[..], b"a.tfrecord/2"].map(<[u8]>::to_vec);
    let found = contents(&devices).unwrap();
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        names.into_iter().zip([b"before".to_vec(), b"behind".to_vec()]).collect::<Vec<_>>()
    );

    let cut = vec![member("before", b'0', "", b"x"), header("cut", 80 * MIB), noise(70 * MIB)];
    let path = pipe(dir.path(), "b.tar", cut);
    let how = ImportOptions { on_error: skip, from: SourceKind::Tar, ..options(Onto::Empty) };
    let devices = memory(150);
    let report = import(&path, &devices, how.clone()).unwrap();
    assert_eq!(report.samples, 1);
    assert!(report.bad.iter().any(|bad| bad.name == b"cut"), "{:?}", report.bad);
    assert_eq!(contents(&devices).unwrap().len(), 1);
    // Nor is it imported without saying so.
    let parts = vec![header("cut", 80 * MIB), noise(70 * MIB)];
    let how = ImportOptions { on_error: OnError::Stop, ..how };
    let error = import(&pipe(dir.path(), "c.tar", parts), &memory(150), how).unwrap_err();
    assert!(error.report().contains("cut: ends early"), "{}", error.report());
}

#[test]
fn a_file_that_claims_more_memory_than_there_is_is_an_error_that_names_it() {
    if ran_alone(a_file_that_claims_more_memory_than_there_is_is_an_error_that_names_it) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let huge = File::create(dir.path().join("huge.bin")).unwrap();
    huge.set_len(3 << 30).unwrap();
    let path = Address::from_path(dir.path());
    let image = Image::open(&[path], &OpenOptions::default()).unwrap();
    image.load_names().unwrap();
    leave_memory(2 << 30);
    let says = |error: dlfs::Error| {
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        let text = error.report();
        assert!(text.contains("huge.bin") && text.contains("3221225472"), "{text}");
    };
    let dataset = Dataset::from_image(image, ReaderOptions::default());
    for kind in [OrderKind::Grouped { lanes: 1, group: 1 }, OrderKind::Global] {
        let order = OrderSpec { kind, seed: 3 };
        let loader = LoaderOptions { window_bytes: 1 << 20, ..LoaderOptions::new(order, 1, 1) };
        says(dataset.image().prefetcher(loader).unwrap().next().unwrap().map(drop).unwrap_err());
    }
    let query = Query::Ids(&[SampleId(0)]);
    says(dataset.read(query, ReadOnError::Raise, &mut ()).map(drop).unwrap_err());
}
