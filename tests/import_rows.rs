//! Files of rows, as their own writers made them (tests/rows/make.py): every sample has the values of its row.

mod import_support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use dlfs::dataset::{Dataset, Image, OnError as ReadOnError, OpenOptions, Query};
use dlfs::import::sources::SourceKind;
use dlfs::import::{
    ImportOptions, ImportReport, OnError, Onto, PlacementOrder, RowOptions, import_onto,
};
use dlfs::reader::ReaderOptions;
use import_support::disk::Disks;
use import_support::options;

/// What a sample has in a field: its type, its shape and its bytes.
type Value = (String, Vec<u64>, Vec<u8>);
/// The fields of a sample, by their names, and its label.
type Sample = (BTreeMap<String, Value>, Option<i64>);

const ROWS: usize = 40;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rows").join(name)
}

fn import_as(sources: &[&str], rows: RowOptions) -> dlfs::Result<(Disks, ImportReport)> {
    let disks = Disks::new(2, 8 << 20);
    let sources: Vec<PathBuf> = sources.iter().map(|source| data(source)).collect();
    let options = ImportOptions { rows, ..options(Onto::Empty) };
    let report = import_onto(&sources, &disks.devices(), &options, &mut ())?;
    Ok((disks, report))
}

fn labelled() -> RowOptions {
    RowOptions { label: Some("label".to_owned()), ..RowOptions::default() }
}

/// All samples, by their names.
fn samples(disks: &Disks) -> BTreeMap<String, Sample> {
    let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
    image.load_names().unwrap();
    let dataset = Dataset::from_image(image, ReaderOptions::default());
    let directory = dataset.directory().clone();
    let mut samples = BTreeMap::new();
    for rank in 0..directory.num_live() {
        let id = directory.id_of_live(rank);
        let name = String::from_utf8(directory.name(id).unwrap().unwrap()).unwrap();
        let batch = dataset.read(Query::Ids(&[id]), ReadOnError::Raise, &mut ()).unwrap().batch;
        let mut fields = BTreeMap::new();
        for (number, field) in directory.fields().iter().enumerate() {
            let field = String::from_utf8(field.clone()).unwrap();
            if let Some(array) = batch.array(0, number).unwrap() {
                let value = (array.element.name().to_owned(), array.shape, array.bytes.to_vec());
                fields.insert(field, value);
            }
        }
        let label = directory.label(id);
        samples.insert(name, (fields, label));
    }
    samples
}

fn bytes(bytes: impl Into<Vec<u8>>) -> Value {
    let bytes = bytes.into();
    ("u8".to_owned(), vec![bytes.len() as u64], bytes)
}

fn numbers<const N: usize>(
    element: &str,
    shape: &[u64],
    numbers: impl IntoIterator<Item = [u8; N]>,
) -> Value {
    (element.to_owned(), shape.to_vec(), numbers.into_iter().flatten().collect())
}

fn image(at: usize) -> Vec<u8> {
    (0..20 + 3 * at).map(|byte| (at * 7 + byte) as u8).collect()
}

fn text(at: usize) -> String {
    format!("row {at} \u{e9}")
}

fn number(at: usize) -> i64 {
    (at * at) as i64 - 5
}

fn vector(at: usize) -> [f32; 3] {
    [at as f32 / 4.0, -1.0, 0.5]
}

fn tokens(at: usize) -> Vec<u16> {
    (0..at % 5).map(|step| (at + step) as u16).collect()
}

/// The fields of row `at` in the tables of pyarrow.
fn row(at: usize) -> BTreeMap<String, Value> {
    let tokens = tokens(at);
    let fields = [
        ("image", bytes(image(at))),
        ("text", bytes(text(at))),
        ("number", numbers("i64", &[], [number(at).to_le_bytes()])),
        ("vector", numbers("f32", &[3], vector(at).map(f32::to_le_bytes))),
        ("tokens", numbers("u16", &[tokens.len() as u64], tokens.iter().map(|t| t.to_le_bytes()))),
    ];
    fields.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Compares all samples with rows: `file` says in which file a row is, and as which of its rows.
fn compare(
    found: &BTreeMap<String, Sample>,
    file: impl Fn(usize) -> (String, usize),
    expected: impl Fn(usize) -> (BTreeMap<String, Value>, Option<i64>),
) {
    assert_eq!(found.len(), ROWS);
    for at in 0..ROWS {
        let (file, row) = file(at);
        let name = format!("{file}/{row}");
        let sample = found.get(&name).unwrap_or_else(|| panic!("no {name} in {:?}", found.keys()));
        assert_eq!(*sample, expected(at), "{name}");
    }
}

fn label(at: usize) -> Option<i64> {
    Some(at as i64 % 3)
}

#[test]
fn jsonl_has_types_by_its_first_lines_and_may_name_files() {
    let (disks, report) = import_as(&["lines.jsonl"], labelled()).unwrap();
    assert_eq!(report.kind, SourceKind::JsonLines);
    let row = |at: usize| {
        let mut row = row(at);
        row.insert(
            "image".into(),
            bytes(image(at).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))),
        );
        row.insert(
            "vector".into(),
            numbers("f64", &[3], vector(at).map(|x| f64::from(x).to_le_bytes())),
        );
        let tokens: Vec<i64> = tokens(at).into_iter().map(i64::from).collect();
        row.insert(
            "tokens".into(),
            numbers("i64", &[tokens.len() as u64], tokens.iter().map(|t| t.to_le_bytes())),
        );
        row.insert("nested".into(), bytes(format!("{{\"at\":{at}}}")));
        (row, label(at))
    };
    compare(&samples(&disks), |at| ("lines.jsonl".to_owned(), at), row);

    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("deep")).unwrap();
    for name in ["a.png", "deep/b.png"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    let lines = dir.path().join("metadata.jsonl");
    fs::write(
        &lines,
        "{\"file_name\": \"a.png\", \"n\": 1}\n\n{\"n\": 2, \"file_name\": \"deep/b.png\"}\n",
    )
    .unwrap();
    let disks = Disks::new(1, 8 << 20);
    import_onto(std::slice::from_ref(&lines), &disks.devices(), &options(Onto::Empty), &mut ())
        .unwrap();
    let found = samples(&disks);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["a.png", "deep/b.png"]);
    assert_eq!(found["deep/b.png"].0["file"], bytes("deep/b.png"));
    assert_eq!(found["deep/b.png"].0["n"], numbers("i64", &[], [2_i64.to_le_bytes()]));

    // What is wrong with single lines is told with their numbers, and nothing is imported.
    fs::write(
        &lines,
        "{\"file_name\": \"a.png\", \"n\": 1}\n{\"file_name\": \"../a.png\"}\n{\"file_name\": \"none\"}\n[1]\n\
         {\"n\": 2}\n{\"file_name\": \"a.png\", \"n\": 2}\n{\"file_name\": \"deep/b.png\", \"n\": \"x\"}\n",
    )
    .unwrap();
    let disks = Disks::new(1, 8 << 20);
    let stopped =
        import_onto(std::slice::from_ref(&lines), &disks.devices(), &options(Onto::Empty), &mut ());
    let told = (stopped.unwrap_err()).report();
    for words in
        ["metadata.jsonl/1", "metadata.jsonl/2", "metadata.jsonl/3", "no JSON object", "a.png"]
    {
        assert!(told.contains(words), "{words}: {told}");
    }
    let skip = ImportOptions { on_error: OnError::Skip, ..options(Onto::Force) };
    let report = import_onto(&[lines], &disks.devices(), &skip, &mut ()).unwrap();
    assert_eq!((report.samples, report.bad.len()), (2, 5), "{:?}", report.bad);
}

#[test]
fn mds_and_litdata_are_read_by_their_index_raw_and_compressed() {
    for (folder, shard_of) in [("mds", ""), ("mds-zstd", ".zstd")] {
        let (disks, report) = import_as(&[folder], labelled()).unwrap();
        assert_eq!(report.kind, SourceKind::Mds, "{folder}");
        let found = samples(&disks);
        let names: Vec<&String> = found.keys().collect();
        assert!(
            names[0].starts_with("shard.00000.mds") && names[0].contains(shard_of),
            "{names:?}"
        );
        // Shards are cut by bytes: rows are found by their number, which each has once.
        assert_eq!(found.len(), ROWS);
        for at in 0..ROWS {
            let is_row = |(_, (fields, _)): &(&String, &Sample)| {
                fields["number"].2 == number(at).to_le_bytes()
            };
            let (_, sample) = found.iter().find(is_row).unwrap();
            let mut row = row(at);
            let tokens: Vec<u16> = std::iter::once(at as u16).chain(tokens(at)).collect();
            row.insert(
                "tokens".into(),
                numbers("u16", &[tokens.len() as u64], tokens.iter().map(|t| t.to_le_bytes())),
            );
            let any = 1 + at as u64 % 2;
            row.insert(
                "any".into(),
                numbers("i64", &[any, 2], (0..2 * any).map(|_| (at as i64).to_le_bytes())),
            );
            assert_eq!(*sample, (row, label(at)), "{folder}");
        }
    }
    for (folder, end) in [("litdata", ".bin"), ("litdata-zstd", ".zstd.bin")] {
        let (disks, report) = import_as(&[folder], labelled()).unwrap();
        assert_eq!(report.kind, SourceKind::LitData, "{folder}");
        let file = |at: usize| (format!("chunk-0-{}{end}", at / 16), at % 16);
        let expected = |at: usize| {
            let mut row = row(at);
            row.remove("tokens");
            row.remove("vector");
            row.insert("pair.0".into(), numbers("f32", &[3], vector(at).map(f32::to_le_bytes)));
            let rows = 1 + at as u64 % 2;
            row.insert(
                "pair.1".into(),
                numbers("i64", &[rows, 2], (0..2 * rows).map(|_| (at as i64).to_le_bytes())),
            );
            (row, label(at))
        };
        compare(&samples(&disks), file, expected);
    }
    let (disks, _) = import_as(&["litdata-tokens"], RowOptions::default()).unwrap();
    let expected = |at: usize| {
        let tokens: Vec<i32> =
            std::iter::once(at as i32).chain(tokens(at).into_iter().map(i32::from)).collect();
        let data = numbers("i32", &[tokens.len() as u64], tokens.iter().map(|t| t.to_le_bytes()));
        ([("data".to_owned(), data)].into(), None)
    };
    compare(&samples(&disks), |at| ("chunk-0-0.bin".to_owned(), at), expected);
}

#[test]
fn damaged_shards_are_refused_with_their_names() {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(data("mds")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let shard = dir.path().join("shard.00001.mds");
    let whole = fs::read(&shard).unwrap();
    let refused = |what: &str, words: &[&str]| {
        let disks = Disks::new(1, 8 << 20);
        let sources = [dir.path().to_path_buf()];
        let error = import_onto(&sources, &disks.devices(), &options(Onto::Empty), &mut ());
        let told = (error.expect_err(what)).report();
        assert!(words.iter().all(|words| told.contains(words)), "{what}: {told}");
    };
    fs::write(&shard, &whole[..whole.len() - 1]).unwrap();
    refused("an item that is cut off", &["shard.00001.mds", "ends within an item"]);
    fs::write(&shard, &whole[..10]).unwrap();
    refused("a table that is cut off", &["shard.00001.mds", "table"]);
    let mut broken = whole.clone();
    broken[4..8].copy_from_slice(&[0xff; 4]);
    fs::write(&shard, &broken).unwrap();
    refused("offsets that fall", &["shard.00001.mds", "table of offsets"]);
    fs::remove_file(&shard).unwrap();
    refused("a shard that is not there", &["shard.00001.mds"]);
    let index = fs::read_to_string(dir.path().join("index.json")).unwrap();
    let elsewhere = index.replace("shard.00001.mds", "../shard.00001.mds");
    fs::write(dir.path().join("index.json"), elsewhere).unwrap();
    refused("an index that leads out of its folder", &["outside of its folder"]);
}

#[test]
fn columns_that_are_not_there_are_refused_and_others_can_be_chosen() {
    let refused = |rows: RowOptions, words: &[&str]| {
        let told = (import_as(&["lines.jsonl"], rows).map(drop).unwrap_err()).report();
        assert!(words.iter().all(|words| told.contains(words)), "{told}");
    };
    let named = |name: &str| Some(name.to_owned());
    refused(
        RowOptions { label: named("nix"), ..RowOptions::default() },
        &["nix", "they have image"],
    );
    refused(
        RowOptions { label: named("vector"), ..RowOptions::default() },
        &["vector", "not labels"],
    );
    refused(
        RowOptions { name: named("number"), ..RowOptions::default() },
        &["number", "not names"],
    );
    refused(RowOptions { fields: vec!["x".into()], ..RowOptions::default() }, &["no column x"]);
    refused(RowOptions { files: named("y"), ..RowOptions::default() }, &["no key y"]);
    let rows = RowOptions {
        name: named("text"),
        label: named("image"),
        fields: vec!["number".into()],
        files: None,
    };
    let (disks, report) = import_as(&["lines.jsonl"], rows).unwrap();
    let found = samples(&disks);
    assert_eq!((report.samples, found[&text(7)].0.len()), (ROWS as u64, 1));
    // A label that is text is a class; here each row has its own.
    let labels: std::collections::BTreeSet<Option<i64>> =
        found.values().map(|(_, label)| *label).collect();
    assert_eq!(labels.len(), ROWS);
}

#[test]
fn the_class_of_a_row_that_is_left_out_gets_no_number() {
    let dir = tempfile::tempdir().unwrap();
    let (lines, more) = (dir.path().join("a.jsonl"), dir.path().join("b.jsonl"));
    let rows = "{\"id\": \"a\", \"kind\": \"cat\", \"x\": \"1\"}\n\
                {\"id\": \"a\", \"kind\": \"twice\", \"x\": \"1\"}\n\
                {\"id\": \"b\", \"kind\": \"empty\"}\n\
                {\"id\": \"\", \"kind\": \"nameless\", \"x\": \"1\"}\n\
                {\"id\": \"b\", \"kind\": \"dog\", \"x\": \"2\"}\n\
                {\"id\": \"c\", \"kind\": \"cat\", \"x\": \"3\"}\n";
    fs::write(&lines, rows).unwrap();
    let named = |name: &str| Some(name.to_owned());
    let rows = RowOptions {
        name: named("id"),
        label: named("kind"),
        fields: vec!["x".into()],
        files: None,
    };
    let disks = Disks::new(1, 8 << 20);
    let skip = ImportOptions { rows, on_error: OnError::Skip, ..options(Onto::Empty) };
    let report = import_onto(&[lines], &disks.devices(), &skip, &mut ()).unwrap();
    assert_eq!((report.samples, report.bad.len()), (3, 3), "{:?}", report.bad);
    let found = samples(&disks);
    let labels: Vec<_> = found.iter().map(|(name, (_, label))| (&**name, *label)).collect();
    assert_eq!(labels, [("a", Some(0)), ("b", Some(1)), ("c", Some(0))]);
    let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
    assert_eq!(image.directory().classes(), [&b"cat"[..], b"dog"]);
    // Nor does that of a row whose name the image has.
    let rows = "{\"id\": \"a\", \"kind\": \"taken\", \"x\": \"1\"}\n\
                {\"id\": \"d\", \"kind\": \"eel\", \"x\": \"4\"}\n";
    fs::write(&more, rows).unwrap();
    let append = ImportOptions { onto: Onto::Append, ..skip };
    let report = import_onto(&[more], &disks.devices(), &append, &mut ()).unwrap();
    assert_eq!((report.samples, report.bad.len()), (1, 1), "{:?}", report.bad);
    let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
    assert_eq!(image.directory().classes(), [&b"cat"[..], b"dog", b"eel"]);
    assert_eq!(samples(&disks)["d"].1, Some(2));
}

#[test]
fn the_class_of_a_row_that_is_rejected_gets_no_number_in_either_placement() {
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("a.jsonl");
    let mut rows = String::new();
    for at in 0..60 {
        let (class, x, y) = match at % 6 {
            0 => (format!("type-{at}"), "many", "1"),
            1 => (format!("column-{at}"), "1", "none"),
            _ => (format!("class-{}", at / 6), "2", "3"),
        };
        rows += &format!(
            "{{\"id\": \"{at}\", \"kind\": \"{class}\", \"x\": \"{x}\", \"y\": \"{y}\"}}\n"
        );
        // The name of a rejected row is free.
        if at == 0 {
            rows += "{\"id\": \"0\", \"kind\": \"first\", \"x\": \"2\", \"y\": \"3\"}\n";
        }
    }
    fs::write(&lines, rows).unwrap();
    let mut expected = vec![b"first".to_vec()];
    expected.extend((0..10).map(|class| format!("class-{class}").into_bytes()));
    for placement in [PlacementOrder::Source, PlacementOrder::Shuffled] {
        let disks = Disks::new(1, 8 << 20);
        let rows = RowOptions {
            name: Some("id".to_owned()),
            label: Some("kind".to_owned()),
            ..RowOptions::default()
        };
        let skip = ImportOptions {
            rows,
            placement,
            field_types: vec!["x:i64=text".parse().unwrap()],
            field_columns: vec!["y:int".parse().unwrap()],
            on_error: OnError::Skip,
            ..options(Onto::Empty)
        };
        let report = import_onto(&[lines.clone()], &disks.devices(), &skip, &mut ()).unwrap();
        assert_eq!((report.samples, report.bad.len()), (41, 20), "{:?}", report.bad);
        assert!(report.bad.iter().all(|bad| bad.within.as_deref() == Some(&*lines)));
        let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
        assert_eq!(image.directory().classes(), expected, "{placement:?}");
        let found = samples(&disks);
        for (name, (fields, label)) in found {
            let at: i64 = name.parse().unwrap();
            let class = if at == 0 { 0 } else { 1 + at / 6 };
            assert_eq!(
                (label, fields["x"].clone()),
                (Some(class), numbers("i64", &[], [2i64.to_le_bytes()]))
            );
        }
    }
}

#[test]
fn rows_are_shuffled_within_windows_or_keep_their_order_and_can_be_appended() {
    let ids = |placement: PlacementOrder, seed: u64| {
        let disks = Disks::new(2, 8 << 20);
        let options = ImportOptions { placement, seed, rows: labelled(), ..options(Onto::Empty) };
        import_onto(&[data("lines.jsonl")], &disks.devices(), &options, &mut ()).unwrap();
        let more = ImportOptions { onto: Onto::Append, ..options };
        let again = import_onto(&[data("lines.jsonl")], &disks.devices(), &more, &mut ());
        assert!((again.unwrap_err()).report().contains("has a sample of this name"));
        let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
        image.load_names().unwrap();
        let name =
            |rank| image.directory().name(image.directory().id_of_live(rank)).unwrap().unwrap();
        (0..ROWS as u64).map(name).collect::<Vec<_>>()
    };
    let in_order: Vec<Vec<u8>> =
        (0..ROWS).map(|row| format!("lines.jsonl/{row}").into_bytes()).collect();
    assert_eq!(ids(PlacementOrder::Source, 1), in_order);
    let shuffled = ids(PlacementOrder::Shuffled, 1);
    assert_eq!(shuffled, ids(PlacementOrder::Shuffled, 1));
    assert_ne!(shuffled, in_order);
    assert_ne!(shuffled, ids(PlacementOrder::Shuffled, 2));
}

#[cfg(feature = "formats")]
mod tables {
    use super::*;

    #[test]
    fn parquet_and_arrow_are_read_in_every_codec_and_layout() {
        let codecs = ["none", "snappy", "zstd", "gzip", "lz4", "dictionary"];
        let parquet = codecs.map(|codec| (format!("{codec}.parquet"), SourceKind::Parquet));
        let arrow = ["file.arrow", "stream.arrow"].map(|name| (name.to_owned(), SourceKind::Arrow));
        for (name, kind) in parquet.into_iter().chain(arrow) {
            let (disks, report) = import_as(&[&name], labelled()).unwrap();
            assert_eq!(report.kind, kind, "{name}");
            let expected = |at: usize| {
                let mut row = row(at);
                if name == "dictionary.parquet" {
                    let vector = numbers("f32", &[3], vector(at).map(f32::to_le_bytes));
                    row.insert("vector".into(), vector);
                }
                (row, label(at))
            };
            compare(&samples(&disks), |at| (name.clone(), at), expected);
        }
        let (disks, _) = import_as(&["pair-0.parquet", "pair-1.parquet"], labelled()).unwrap();
        let file = |at| {
            if at < 25 { ("pair-0.parquet".into(), at) } else { ("pair-1.parquet".into(), at - 25) }
        };
        compare(&samples(&disks), file, |at| (row(at), label(at)));
    }

    #[test]
    fn a_data_set_of_the_hub_has_files_classes_and_arrays() {
        let (disks, _) = import_as(&["hub.parquet"], RowOptions::default()).unwrap();
        let expected = |at: usize| {
            let grid = [at as i32, 1, 2, 3, 4, 5].map(i32::to_le_bytes);
            let fields = [("image", bytes(image(at))), ("grid", numbers("i32", &[2, 3], grid))];
            let fields = fields.map(|(name, value)| (name.to_owned(), value)).into();
            (fields, if at == 7 { None } else { label(at) })
        };
        compare(&samples(&disks), |at| ("hub.parquet".to_owned(), at), expected);
        let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
        assert_eq!(image.directory().classes(), [&b"cat"[..], b"dog", b"eel"]);
    }

    #[test]
    fn a_stream_that_is_cut_anywhere_is_an_error_and_never_a_shorter_source() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.arrow");
        let whole = fs::read(data("stream.arrow")).unwrap();
        let import = |len: usize, on_error: OnError| {
            fs::write(&path, &whole[..len]).unwrap();
            let (disks, paths) = (Disks::new(1, 8 << 20), std::slice::from_ref(&path));
            let options =
                ImportOptions { on_error, from: SourceKind::Arrow, ..options(Onto::Empty) };
            import_onto(paths, &disks.devices(), &options, &mut ())
        };
        // Between any two messages, which begin with a mark at a multiple of eight bytes, and within them.
        let begins = |at: &usize| whole[*at..].starts_with(&[0xff; 4]);
        let between: Vec<usize> = (8..whole.len()).step_by(8).filter(begins).collect();
        assert!(between.len() >= 3, "schema, batches, end: {between:?}");
        let within = (1..whole.len()).step_by(97).chain([whole.len() - 1, whole.len() - 5]);
        for len in within.chain(between) {
            let told = import(len, OnError::Stop).map(drop).expect_err("a cut stream").report();
            assert!(told.contains("a.arrow"), "{len} of {} bytes: {told}", whole.len());
        }
        // Where all rows are there, only the marker tells.
        let told = import(whole.len() - 8, OnError::Stop).map(drop).unwrap_err().report();
        assert!(told.contains("end-of-stream marker") && told.contains("skip"), "{told}");
        let report = import(whole.len() - 8, OnError::Skip).unwrap();
        assert_eq!((report.samples, report.bad.len()), (ROWS as u64, 1), "{:?}", report.bad);
        assert_eq!(import(whole.len(), OnError::Stop).unwrap().samples, ROWS as u64);
    }

    #[test]
    fn a_damaged_table_is_an_error_and_never_a_shorter_source() {
        let dir = tempfile::tempdir().unwrap();
        let whole = fs::read(data("snappy.parquet")).unwrap();
        let path = dir.path().join("a.parquet");
        let mut outcomes = [0, 0];
        for at in (4..whole.len()).step_by(61) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x5a;
            fs::write(&path, bytes).unwrap();
            let disks = Disks::new(1, 8 << 20);
            let imported = import_onto(
                std::slice::from_ref(&path),
                &disks.devices(),
                &options(Onto::Empty),
                &mut (),
            );
            outcomes[usize::from(imported.is_ok())] += 1;
            if let Ok(report) = imported {
                // Parquet has no checksum of its values unless a writer adds them.
                assert_eq!(report.samples, ROWS as u64, "byte {at}");
            }
        }
        assert!(outcomes[0] > 0, "{outcomes:?}");
        fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        let disks = Disks::new(1, 8 << 20);
        let cut = import_onto(&[path], &disks.devices(), &options(Onto::Empty), &mut ());
        assert!((cut.unwrap_err()).report().contains("a.parquet"));
    }
}

#[cfg(not(feature = "formats"))]
#[test]
fn a_build_without_the_feature_names_it() {
    let told = import_as(&["none.parquet"], RowOptions::default()).map(drop).unwrap_err().report();
    assert!(told.contains("none.parquet") && told.contains("feature `formats`"), "{told}");
}
