//! An import of rows from a store that was interrupted goes on in the row group, batch or shard where it was, and the
//! image is that of an import in one go.

use std::ops::Range;

use crate::import_support::{Random, contents, is_long, options};
use crate::support::interrupted::{Case, all, memory};
use crate::support::object_store::bytes_of;
use dlfs::ErrorKind;
use dlfs::import::sources::SourceKind;
use dlfs::import::{ImportOptions, Onto, PlacementOrder, RowOptions, import_onto};
use dlfs::qpair::blocking::Blocking;

/// Objects, by their names.
type Shards = Vec<(String, Vec<u8>)>;

/// Three files with 400 rows of 40 KB each.
const FILES: u64 = 3;
const ROWS: u64 = 400;

fn rows_of(file: u64) -> Range<u64> {
    file * ROWS..(file + 1) * ROWS
}

/// The large field of a row.
fn bytes(row: u64) -> Vec<u8> {
    bytes_of(row, 40_000 + row as usize % 9)
}

/// The small field of a row.
fn vector(row: u64) -> [f32; 3] {
    [row as f32, 0.5, -1.0]
}

/// The class of a row: new ones come until the end.
fn class(row: u64) -> String {
    format!("class-{}", (row * 7919 % (row / 20 + 1)) * 31 % 101)
}

fn labelled(options: &mut ImportOptions) {
    options.rows = RowOptions { label: Some("label".to_owned()), ..RowOptions::default() };
}

fn json_lines() -> Shards {
    let line = |row: u64| {
        let text: String = bytes(row).iter().map(|byte| char::from(b'a' + byte % 26)).collect();
        let vector = vector(row);
        let class = class(row);
        format!("{{\"data\": \"{text}\", \"vector\": {vector:?}, \"label\": \"{class}\"}}\n")
    };
    (0..FILES)
        .map(|at| (format!("{at}.jsonl"), rows_of(at).map(line).collect::<String>().into()))
        .collect()
}

/// A shard of MDS or LitData: the table of offsets, and the items.
fn shard(items: impl Iterator<Item = Vec<u8>>, about: &[u8]) -> Vec<u8> {
    let items: Vec<Vec<u8>> = items.collect();
    let mut at = (4 + 4 * (items.len() + 1) + about.len()) as u32;
    let mut shard = (items.len() as u32).to_le_bytes().to_vec();
    shard.extend_from_slice(&at.to_le_bytes());
    for item in &items {
        at += item.len() as u32;
        shard.extend_from_slice(&at.to_le_bytes());
    }
    [&shard[..], about, &items.concat()].concat()
}

fn item(parts: &[&[u8]], stated: usize) -> Vec<u8> {
    let lens = parts[..stated].iter().flat_map(|part| (part.len() as u32).to_le_bytes());
    lens.chain(parts.iter().flat_map(|part| part.iter().copied())).collect()
}

fn mds(is_compressed: bool) -> Shards {
    let mut shards = Vec::new();
    let mut about = Vec::new();
    for at in 0..FILES {
        let items = rows_of(at).map(|row| {
            let number = row as i64;
            item(&[&bytes(row), class(row).as_bytes(), &number.to_le_bytes()], 2)
        });
        let raw = shard(items, b"{\"what\": \"is skipped\"}");
        let name = format!("shard.{at}.mds");
        let zip = format!("shard.{at}.mds.zstd");
        let zipped =
            if is_compressed { format!("{{\"basename\": \"{zip}\"}}") } else { "null".to_owned() };
        about.push(format!(
            "{{\"format\": \"mds\", \"column_names\": [\"data\", \"label\", \"number\"], \
             \"column_encodings\": [\"bytes\", \"str\", \"int\"], \"column_sizes\": [null, null, 8], \
             \"raw_data\": {{\"basename\": \"{name}\"}}, \"zip_data\": {zipped}}}"
        ));
        shards.push(if is_compressed {
            (zip, zstd::encode_all(&raw[..], 1).unwrap())
        } else {
            (name, raw)
        });
    }
    let index = format!("{{\"version\": 2, \"shards\": [{}]}}", about.join(", "));
    shards.push(("index.json".to_owned(), index.into()));
    shards
}

fn litdata() -> Shards {
    let mut shards: Shards = (0..FILES)
        .map(|at| {
            let items = rows_of(at).map(|row| {
                let array: Vec<u8> = vector(row).iter().flat_map(|one| one.to_le_bytes()).collect();
                // A numpy array behind its header: the number of its type, of its dimensions, and each of these.
                let header = [9u32, 1, 3].map(u32::to_le_bytes).concat();
                let array = [header, array].concat();
                item(&[&bytes(row), class(row).as_bytes(), &array], 3)
            });
            (format!("chunk-0-{at}.bin"), shard(items, b""))
        })
        .collect();
    let leaf = |_: &str| "{\"type\": null, \"context\": null, \"children_spec\": []}".to_owned();
    let leaves = ["data", "label", "vector"].map(leaf).join(", ");
    let spec = format!(
        "[1, {{\"type\": \"builtins.dict\", \"context\": \"[\\\"data\\\", \\\"label\\\", \\\"vector\\\"]\", \
         \"children_spec\": [{leaves}]}}]"
    );
    let spec = spec.replace('\\', "\\\\").replace('"', "\\\"");
    let chunks: Vec<String> =
        shards.iter().map(|(name, _)| format!("{{\"filename\": \"{name}\"}}")).collect();
    let index = format!(
        "{{\"chunks\": [{}], \"config\": {{\"data_format\": [\"bytes\", \"str\", \"numpy\"], \
         \"data_spec\": \"{spec}\"}}}}",
        chunks.join(", ")
    );
    shards.push(("index.json".to_owned(), index.into()));
    shards
}

/// Interrupts an import of `shards` here and there and resumes it. A place is found again with `about` bytes of a file
/// that are not rows behind it, at most.
fn resumed(kind: SourceKind, shards: &Shards, about: u64) {
    let mut case = Case::new(kind, PlacementOrder::Source, shards);
    case.more = Box::new(labelled);
    let (expected, image) = case.whole();
    assert_eq!(expected.samples, FILES * ROWS, "{kind}: {:?}", expected.bad);
    let mut random = Random::new(11);
    for after in [0, 1, 2].map(|third| 480 + third * 230 + random.below(230) as u64) {
        let devices = case.interrupted(after);
        let report = case.import(&devices, Onto::Resume, u64::MAX).unwrap();
        assert!(all(&devices) == image, "{kind}, after {after}: another image");
        assert_eq!(
            (report.samples, report.sample_bytes, report.chunks, &report.field_types),
            (expected.samples, expected.sample_bytes, expected.chunks, &expected.field_types)
        );
        assert!(report.chunks_found > 0, "{kind}, after {after}");
        // A point is noted every 16 MiB, and some chunks are not written when it stops.
        let asked = case.watched.asked();
        let point = after - 440;
        let of_rows = asked.iter().filter(|(name, _)| !name.ends_with("index.json"));
        let total: u64 = of_rows.map(|(_, bytes)| bytes).sum();
        let left = (FILES * ROWS - point) * 41_000;
        // The first file is read as far as it determines the columns.
        assert!(total < left + 4 * about, "{kind}, after {after}: {asked:?} of {left}");
        for (name, bytes) in shards.iter().take((point / ROWS) as usize).skip(1) {
            let of_file = asked.get(&format!("x/{name}")).copied().unwrap_or_default();
            assert!(
                of_file <= about,
                "{kind}, after {after}: {of_file} of {} of {name}",
                bytes.len()
            );
        }
        if point >= ROWS {
            let of_first = asked.get(&format!("x/{}", shards[0].0)).copied().unwrap_or_default();
            let look = about.max(2 << 20); // what tells the columns
            assert!(of_first <= look, "{kind}, after {after}: {of_first} of the first file");
        }
    }
}

#[test]
fn json_lines_go_on_at_the_line_where_the_import_was() {
    // The first lines tell the columns.
    resumed(SourceKind::JsonLines, &json_lines(), 17 << 20);
}

#[test]
fn objects_that_lines_name_are_not_read_again_and_may_not_have_changed() {
    let mut shards: Shards = (0..1200).map(|row| (format!("f/{row}.bin"), bytes(row))).collect();
    for file in 0..FILES {
        let line =
            |row| format!("{{\"file_name\": \"f/{row}.bin\", \"label\": \"{}\"}}\n", class(row));
        let lines: String = rows_of(file).map(line).collect();
        shards.push((format!("{file}.jsonl"), lines.into()));
    }
    let mut case = Case::new(SourceKind::JsonLines, PlacementOrder::Source, &shards);
    case.sources = (0..FILES).map(|at| format!("s3://bucket/x/{at}.jsonl").into()).collect();
    case.more = Box::new(labelled);
    let (expected, image) = case.whole();
    assert_eq!(expected.samples, FILES * ROWS, "{:?}", expected.bad);
    for after in [500, 1190] {
        let devices = case.interrupted(after);
        case.import(&devices, Onto::Resume, u64::MAX).unwrap();
        assert!(all(&devices) == image, "after {after}: another image");
        let mut asked = case.watched.asked();
        asked.retain(|name, _| name.ends_with(".bin"));
        let left = FILES * ROWS - after + 440;
        assert!((asked.len() as u64) < left, "{} of {left}", asked.len());
    }
    let devices = case.interrupted(1190);
    case.watched.store.put("x/f/7.bin", "another one");
    let error = case.import(&devices, Onto::Resume, u64::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSource, "{error:?}");
    assert!(error.report().contains("has changed since the import began"), "{}", error.report());
    case.watched.store.put("x/f/7.bin", bytes(7));
    case.import(&devices, Onto::Resume, u64::MAX).unwrap();
    assert!(all(&devices) == image, "another image");
}

#[test]
fn shards_of_mds_and_litdata_go_on_at_the_item_where_the_import_was() {
    resumed(SourceKind::Mds, &mds(false), 1 << 20);
    resumed(SourceKind::LitData, &litdata(), 1 << 20);
}

#[test]
fn a_compressed_shard_is_read_from_its_beginning_and_those_before_it_are_not_read() {
    let shards = mds(true);
    let mut case = Case::new(SourceKind::Mds, PlacementOrder::Source, &shards);
    case.more = Box::new(labelled);
    let (_, image) = case.whole();
    let devices = case.interrupted(1150);
    case.import(&devices, Onto::Resume, u64::MAX).unwrap();
    assert!(all(&devices) == image, "another image");
    let asked = case.watched.asked();
    for before in ["x/shard.0.mds.zstd", "x/shard.1.mds.zstd"] {
        assert!(!asked.contains_key(before), "{asked:?}");
    }
    // A slow request may be sent twice.
    assert!(asked["x/shard.2.mds.zstd"] < shards[2].1.len() as u64 + (4 << 20), "{asked:?}");
}

mod formats {
    use std::io::Cursor;
    use std::sync::Arc;

    use arrow_array::types::Float32Type;
    use arrow_array::{
        ArrayRef, BinaryArray, DictionaryArray, FixedSizeListArray, Int64Array, RecordBatch,
        StringArray,
    };
    use arrow_ipc::writer::{FileWriter, StreamWriter};
    use parquet::arrow::ArrowWriter;
    use parquet::basic::Compression;
    use parquet::file::properties::WriterProperties;

    use super::*;

    /// Rows as a batch; `keys`: the labels are keys of a dictionary.
    fn batch(rows: Range<u64>, keys: bool) -> RecordBatch {
        let data: ArrayRef = Arc::new(BinaryArray::from_iter_values(rows.clone().map(bytes)));
        let vectors = rows.clone().map(|row| Some(vector(row).map(Some)));
        let vectors = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vectors, 3);
        let classes: Vec<String> = rows.map(class).collect();
        let labels: ArrayRef = if keys {
            let classes = classes.iter().map(String::as_str);
            let labels: DictionaryArray<arrow_array::types::Int32Type> = classes.collect();
            Arc::new(labels)
        } else {
            Arc::new(StringArray::from(classes))
        };
        let columns =
            [("data", data), ("vector", Arc::new(vectors) as ArrayRef), ("label", labels)];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    /// The batches of a file, each with some rows.
    fn batches(file: u64, keys: bool) -> impl Iterator<Item = RecordBatch> {
        let all = rows_of(file);
        let part = move |start: u64| batch(start..(start + 70).min(rows_of(file).end), keys);
        all.step_by(70).map(part)
    }

    fn parquet() -> Shards {
        let file = |at| {
            let set = WriterProperties::builder()
                .set_max_row_group_row_count(Some(110))
                .set_dictionary_enabled(false)
                .set_compression(Compression::UNCOMPRESSED)
                .build();
            let mut bytes = Vec::new();
            let schema = batch(0..1, false).schema();
            let mut writer = ArrowWriter::try_new(&mut bytes, schema, Some(set)).unwrap();
            batches(at, false).for_each(|batch| writer.write(&batch).unwrap());
            writer.close().unwrap();
            (format!("{at}.parquet"), bytes)
        };
        (0..FILES).map(file).collect()
    }

    fn arrow(has_index: bool, keys: bool) -> Shards {
        let file = |at| {
            let mut bytes = Cursor::new(Vec::new());
            let schema = batch(0..1, keys).schema();
            if has_index {
                let mut writer = FileWriter::try_new(&mut bytes, &schema).unwrap();
                batches(at, keys).for_each(|batch| writer.write(&batch).unwrap());
                writer.finish().unwrap();
            } else {
                let mut writer = StreamWriter::try_new(&mut bytes, &schema).unwrap();
                batches(at, keys).for_each(|batch| writer.write(&batch).unwrap());
                writer.finish().unwrap();
            }
            (format!("{at}.arrow"), bytes.into_inner())
        };
        (0..FILES).map(file).collect()
    }

    #[test]
    fn parquet_goes_on_at_the_row_group_where_the_import_was() {
        // Four row groups a file; at its end it has a description of them.
        resumed(SourceKind::Parquet, &parquet(), 6 << 20);
    }

    #[test]
    fn arrow_goes_on_at_the_batch_where_the_import_was() {
        resumed(SourceKind::Arrow, &arrow(true, false), 5 << 20);
        resumed(SourceKind::Arrow, &arrow(false, false), 5 << 20);
    }

    #[test]
    fn an_arrow_stream_with_dictionaries_is_read_from_its_beginning() {
        let shards = arrow(false, true);
        let mut case = Case::new(SourceKind::Arrow, PlacementOrder::Source, &shards);
        case.more = Box::new(labelled);
        let (_, image) = case.whole();
        let devices = case.interrupted(1150);
        case.import(&devices, Onto::Resume, u64::MAX).unwrap();
        assert!(all(&devices) == image, "another image");
        let asked = case.watched.asked();
        assert!(asked["x/0.arrow"] <= 4 << 20, "{asked:?}");
    }

    /// Long: set `DLFS_LONG_TESTS`. For shards of samples, `import_restart` does the same in any case.
    #[test]
    fn windows_of_rows_that_were_shuffled_are_not_shuffled_again() {
        if !is_long() {
            println!("SKIPPED: set DLFS_LONG_TESTS; it takes ten seconds");
            return;
        }
        // The window is full with so many samples, however small they are.
        let file = |file: i64| {
            let numbers = Int64Array::from_iter_values((0..100_000).map(|row| file << 32 | row));
            let columns = [("number", Arc::new(numbers) as ArrayRef)];
            let batch = RecordBatch::try_from_iter(columns).unwrap();
            let set = WriterProperties::builder().set_max_row_group_row_count(Some(10_000));
            let mut bytes = Vec::new();
            let mut writer =
                ArrowWriter::try_new(&mut bytes, batch.schema(), Some(set.build())).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
            (format!("{file}.parquet"), bytes)
        };
        let shards: Shards = (0..3).map(file).collect();
        let case = Case::new(SourceKind::Parquet, PlacementOrder::Shuffled, &shards);
        let (expected, image) = case.whole();
        assert_eq!(expected.samples, 300_000);
        let devices = case.interrupted(290_000);
        let report = case.import(&devices, Onto::Resume, u64::MAX).unwrap();
        assert!(report.chunks_found > 0);
        assert!(all(&devices) == image, "another image");
        // A window is 262,144 rows: all of the first two objects, and some of the third.
        assert!(!case.watched.asked().contains_key("x/1.parquet"));
    }

    #[test]
    fn rows_may_be_interrupted_again_and_again_and_onto_an_image_that_has_classes() {
        let mut case = Case::new(SourceKind::Parquet, PlacementOrder::Source, &parquet());
        case.more = Box::new(labelled);
        let folder = tempfile::tempdir().unwrap();
        let first = folder.path().join("first.parquet");
        let mut bytes = Vec::new();
        let batch = batch(5000..5010, false);
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        std::fs::write(&first, bytes).unwrap();
        let begin = || {
            let devices = memory();
            let mut small = ImportOptions { chunk_size_bytes: 1 << 20, ..options(Onto::Empty) };
            labelled(&mut small);
            import_onto(std::slice::from_ref(&first), &devices, &small, &mut ()).unwrap();
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
        // Data read before is not read again, except for what determines the columns.
        let asked = case.watched.asked();
        let len = parquet()[1].1.len() as u64;
        assert!(
            asked.get("x/1.parquet").is_none_or(|asked| *asked < len / 8),
            "{asked:?} of {len}"
        );
        assert_eq!(contents(&often).unwrap().len() as u64, FILES * ROWS + 10);
    }
}

#[test]
fn a_shard_or_an_index_that_has_changed_is_named_and_what_was_not_read_does_not_matter() {
    let shards = mds(false);
    let mut case = Case::new(SourceKind::Mds, PlacementOrder::Source, &shards);
    case.more = Box::new(labelled);
    // The last point lies in the second shard.
    let devices = case.interrupted(700);
    for (changed, bytes) in [&shards[0], &shards[1], &shards[3]] {
        let other = match &changed[..] {
            "index.json" => [&bytes[..], b" "].concat(),
            _ => bytes[..bytes.len() - 1].to_vec(),
        };
        case.watched.store.put(&format!("x/{changed}"), other);
        let error = case.import(&devices, Onto::Resume, u64::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadSource, "{error:?}");
        let told = error.report();
        assert!(
            told.contains(&format!("s3://bucket/x/{changed}")) && told.contains("--force"),
            "{told}"
        );
        case.watched.store.put(&format!("x/{changed}"), bytes.clone());
    }
    // Its last row has another number.
    let (last, mut bytes) = shards[2].clone();
    *bytes.last_mut().unwrap() = 1;
    case.watched.store.put(&format!("x/{last}"), bytes);
    let report = case.import(&devices, Onto::Resume, u64::MAX).unwrap();
    assert_eq!((report.samples, contents(&devices).unwrap().len() as u64), (1200, 1200));
}

#[test]
fn names_of_classes_that_are_damaged_or_have_no_room_are_read_again() {
    let mut case = Case::new(SourceKind::Mds, PlacementOrder::Source, &mds(false));
    case.more = Box::new(labelled);
    let (_, image) = case.whole();
    let devices = case.interrupted(1100);
    let mut io = Blocking::new(devices[0].queue_pair().unwrap()).unwrap();
    let mut block = io.read(4096, 4096).unwrap().to_vec();
    block[100] ^= 1;
    io.write_at(4096, &block).unwrap();
    drop(io);
    case.import(&devices, Onto::Resume, u64::MAX).unwrap();
    assert!(all(&devices) == image, "another image");
    assert!(case.watched.asked()["x/shard.0.mds"] >= 16_000_000);

    let long = |row: u64| -> String {
        bytes_of(row, 100).iter().map(|byte| char::from(b'a' + byte % 26)).collect()
    };
    let lines = (0..1200).map(|row| {
        let data = "x".repeat(30_000);
        format!("{{\"data\": \"{row}{data}\", \"label\": \"{}\"}}\n", long(row))
    });
    let shards = vec![("0.jsonl".to_owned(), lines.collect::<String>().into_bytes())];
    let mut case = Case::new(SourceKind::JsonLines, PlacementOrder::Source, &shards);
    case.more = Box::new(labelled);
    let (expected, image) = case.whole();
    let devices = case.interrupted(1100);
    let report = case.import(&devices, Onto::Resume, u64::MAX).unwrap();
    assert!(all(&devices) == image, "another image");
    assert_eq!((report.samples, expected.samples), (1200, 1200));
    assert!(case.watched.asked()["x/0.jsonl"] >= 36_000_000);
}
