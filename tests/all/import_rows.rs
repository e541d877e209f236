//! Files of rows, as their own writers made them (tests/rows/make.py): every sample has the values of its row.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::import_support::disk::Disks;
use crate::import_support::options;
use dlfs::dataset::{Dataset, Image, OnError as ReadOnError, OpenOptions, Query};
use dlfs::import::sources::{Role, SourceKind};
use dlfs::import::{
    ImportOptions, ImportReport, OnError, Onto, PlacementOrder, RowOptions, import_onto,
};
use dlfs::reader::ReaderOptions;

/// The value of a field of a sample: its type, its shape and its bytes.
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

    // Errors in single lines are reported with their numbers, and nothing is imported.
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
    #[cfg(feature = "formats")]
    for folder in ["litdata-arrow", "litdata-arrow-zstd"] {
        let (disks, report) = import_as(&[folder], labelled()).unwrap();
        assert_eq!(report.kind, SourceKind::LitData, "{folder}");
        let expected = |at: usize| {
            let mut row = row(at);
            row.retain(|field, _| ["text", "number"].contains(&&**field));
            let tokens: Vec<i64> = tokens(at).into_iter().map(i64::from).collect();
            let bytes = tokens.iter().map(|token| token.to_le_bytes());
            row.insert("tokens".into(), numbers("i64", &[tokens.len() as u64], bytes));
            (row, label(at))
        };
        compare(&samples(&disks), |at| (format!("chunk-0-{}.bin", at / 16), at % 16), expected);
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
fn shards_of_indexes_in_subfolders_are_counted_as_shards() {
    let disks = Disks::new(1, 8 << 20);
    let from_mds =
        ImportOptions { from: SourceKind::Mds, rows: labelled(), ..options(Onto::Empty) };
    let report = import_onto(&[data("")], &disks.devices(), &from_mds, &mut ()).unwrap();
    assert_eq!(report.samples, 2 * ROWS as u64);
    let shards = report.file_counts.iter().find(|count| count.what == "shard of an index");
    assert_eq!(shards.map(|count| count.role), Some(Role::Shard), "{:?}", report.file_counts);
    let indexes =
        report.file_counts.iter().find(|count| count.role == Role::Shard && count.files == 2);
    assert_eq!(indexes.map(|count| count.noun()).as_deref(), Some("MDS index files"));
}

#[test]
pub fn damaged_shards_are_refused_with_their_names() {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(data("mds")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    // Without the hashes, which tell damage before it is met.
    let index = dir.path().join("index.json");
    let unknown = fs::read_to_string(&index).unwrap().replace("\"sha1\": ", "\"none\": ");
    fs::write(&index, unknown).unwrap();
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
    let index = fs::read_to_string(dir.path().join("index.json")).unwrap();
    let packed = index.replace("\"compression\": null", "\"compression\": \"br:11\"").replace(
        "\"zip_data\": null",
        "\"zip_data\": {\"basename\": \"shard.00001.mds.br\", \"bytes\": 1, \"hashes\": {}}",
    );
    assert_ne!(packed, index);
    fs::write(dir.path().join("index.json"), packed).unwrap();
    fs::write(dir.path().join("shard.00001.mds.br"), "?").unwrap();
    refused("a compression that is not read", &["br:11", "zstd"]);
    fs::write(dir.path().join("index.json"), index).unwrap();
    fs::remove_file(dir.path().join("shard.00001.mds.br")).unwrap();
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
        ..RowOptions::default()
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
fn classes_are_numbered_by_name_whichever_rows_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let [lines, more] = ["a.jsonl", "b.jsonl"].map(|name| dir.path().join(name));
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
        ..RowOptions::default()
    };
    let disks = Disks::new(1, 8 << 20);
    let skip = ImportOptions { rows, on_error: OnError::Skip, ..options(Onto::Empty) };
    let report = import_onto(&[lines], &disks.devices(), &skip, &mut ()).unwrap();
    assert_eq!((report.samples, report.bad.len()), (3, 3), "{:?}", report.bad);
    let found = samples(&disks);
    let labels: Vec<_> = found.iter().map(|(name, (_, label))| (&**name, *label)).collect();
    assert_eq!(labels, [("a", Some(0)), ("b", Some(2)), ("c", Some(0))]);
    let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
    let mut expected = vec![&b"cat"[..], b"dog", b"empty", b"nameless", b"twice"];
    assert_eq!(image.directory().classes(), expected);
    // Those of more rows come behind them.
    let rows = "{\"id\": \"a\", \"kind\": \"ape\", \"x\": \"1\"}\n\
                {\"id\": \"d\", \"kind\": \"eel\", \"x\": \"4\"}\n";
    fs::write(&more, rows).unwrap();
    let append = ImportOptions { onto: Onto::Append, ..skip };
    let report = import_onto(&[more], &disks.devices(), &append, &mut ()).unwrap();
    assert_eq!((report.samples, report.bad.len()), (1, 1), "{:?}", report.bad);
    let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
    expected.extend([&b"ape"[..], b"eel"]);
    assert_eq!(image.directory().classes(), expected);
    assert_eq!(samples(&disks)["d"].1, Some(6));
}

#[test]
fn classes_have_one_number_in_either_placement() {
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
    let mut expected = std::collections::BTreeSet::from([b"first".to_vec()]);
    for at in 0..60 {
        expected.insert(match at % 6 {
            0 => format!("type-{at}").into_bytes(),
            1 => format!("column-{at}").into_bytes(),
            _ => format!("class-{}", at / 6).into_bytes(),
        });
    }
    let expected: Vec<Vec<u8>> = expected.into_iter().collect();
    let first = expected.iter().position(|class| class == b"first").unwrap() as i64;
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
        let report =
            import_onto(std::slice::from_ref(&lines), &disks.devices(), &skip, &mut ()).unwrap();
        assert_eq!((report.samples, report.bad.len()), (41, 20), "{:?}", report.bad);
        assert!(report.bad.iter().all(|bad| bad.within.as_deref() == Some(&*lines)));
        let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
        assert_eq!(image.directory().classes(), expected, "{placement:?}");
        let found = samples(&disks);
        for (name, (fields, label)) in found {
            let at: i64 = name.parse().unwrap();
            let class = if at == 0 { first } else { at / 6 };
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

/// Imports lines of JSON from a file of this name.
fn import_lines(
    name: &str,
    lines: &[u8],
    options: &ImportOptions,
) -> dlfs::Result<(Disks, ImportReport)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    let disks = Disks::new(1, 8 << 20);
    fs::write(&path, lines).unwrap();
    let report = import_onto(&[path], &disks.devices(), options, &mut ())?;
    Ok((disks, report))
}

#[test]
fn jsonl_may_be_compressed_have_long_lines_or_begin_with_a_mark() {
    let long = "w".repeat(10_000);
    let lines = format!("{{\"t\": \"{long}\", \"n\": 1}}\r\n").repeat(3);
    let gzip = {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(lines.as_bytes()).unwrap();
        gzip.finish().unwrap()
    };
    let zstd = zstd::encode_all(lines.as_bytes(), 1).unwrap();
    let marked = [b"\xef\xbb\xbf\r\n", lines.as_bytes()].concat();
    for (name, content) in [
        ("a.jsonl", lines.as_bytes()),
        ("a.json", lines.as_bytes()),
        ("a.json.gz", &gzip),
        ("a.jsonl.gz", &gzip),
        ("a.jsonl.zst", &zstd),
        ("a.jsonl", &marked),
        ("a.json", &marked),
    ] {
        let (disks, report) = import_lines(name, content, &options(Onto::Empty)).unwrap();
        assert_eq!((report.kind, report.samples), (SourceKind::JsonLines, 3), "{name}");
        let (fields, _) = &samples(&disks)[&format!("{name}/2")];
        assert_eq!(fields["t"], bytes(long.as_str()), "{name}");
        assert_eq!(fields["n"], numbers("i64", &[], [1_i64.to_le_bytes()]), "{name}");
        // Nor is a folder of such files one of samples.
        let dir = tempfile::tempdir().unwrap();
        for number in 0..2 {
            fs::write(dir.path().join(format!("{number}-{name}")), content).unwrap();
        }
        let disks = Disks::new(1, 8 << 20);
        let sources = [dir.path().to_path_buf()];
        let report = import_onto(&sources, &disks.devices(), &options(Onto::Empty), &mut ());
        assert_eq!(report.unwrap().samples, 6, "a folder of {name}");
    }
}

#[test]
fn lines_may_have_any_number_of_keys() {
    let line = |of: i64| {
        let keys = (0..100_000).map(|key| format!("\"k{key}\": {}", key + of));
        format!("{{{}}}\n", keys.collect::<Vec<_>>().join(", "))
    };
    let rows = RowOptions { fields: vec!["k7".to_owned()], ..RowOptions::default() };
    let how = ImportOptions { rows, ..options(Onto::Empty) };
    let lines = [line(0), line(1), "{}\n".repeat(1000)].concat();
    let how = ImportOptions { on_error: OnError::Skip, ..how };
    let (disks, report) = import_lines("a.jsonl", lines.as_bytes(), &how).unwrap();
    assert_eq!((report.samples, report.bad.len()), (2, 1000), "a number has a length");
    let found = samples(&disks);
    for (name, number) in [("a.jsonl/0", 7_i64), ("a.jsonl/1", 8)] {
        assert_eq!(found[name].0["k7"], numbers("i64", &[], [number.to_le_bytes()]));
    }
}

#[test]
fn numbers_of_json_are_never_rounded() {
    let read = |lines: &str| {
        let skip = ImportOptions { on_error: OnError::Skip, ..options(Onto::Empty) };
        let (disks, report) = import_lines("a.jsonl", lines.as_bytes(), &skip).unwrap();
        let found =
            samples(&disks).into_values().map(|(mut fields, _)| fields.remove("n").unwrap());
        (found.collect::<Vec<_>>(), report.bad.len())
    };
    let large = "{\"n\": 18446744073709551615}\n{\"n\": 7}\n";
    let exact = [u64::MAX, 7].map(|number| numbers("u64", &[], [number.to_le_bytes()]));
    assert_eq!(read(large), (exact.to_vec(), 0));
    let mixed = "{\"n\": 0.5}\n{\"n\": 9007199254740993}\n{\"n\": 9007199254740992}\n";
    let exact = ["0.5", "9007199254740993", "9007199254740992"].map(bytes);
    assert_eq!(read(mixed), (exact.to_vec(), 0));
}

#[test]
fn lines_cannot_name_a_file_outside_of_their_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(dir.path().join("secret"), "secret").unwrap();
    fs::write(folder.join("a.png"), "inside").unwrap();
    // The last one is too long for the kernel, and is resolved step by step.
    let long = format!("{}../secret", "./".repeat(2043));
    assert_eq!(long.len(), 4096 - 1);
    let long = format!("{long}/");
    let absolute = dir.path().join("secret");
    let outside = [
        "../secret",
        "./.././secret",
        absolute.to_str().unwrap(),
        long.trim_end_matches('/'),
        &long,
    ];
    let mut lines = String::from("{\"file_name\": \".//a.png\"}\n");
    for name in outside {
        lines += &format!("{{\"file_name\": {name:?}}}\n");
    }
    let path = folder.join("metadata.jsonl");
    fs::write(&path, lines).unwrap();
    let disks = Disks::new(1, 8 << 20);
    let skip = ImportOptions { on_error: OnError::Skip, ..options(Onto::Empty) };
    let report = import_onto(&[path], &disks.devices(), &skip, &mut ()).unwrap();
    let found = samples(&disks);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["a.png"]);
    assert_eq!(found["a.png"].0["file"], bytes("inside"));
    assert_eq!(report.bad.len(), outside.len());
    for bad in &report.bad {
        assert!(bad.to_string().ends_with("leads out of the source"), "{bad}");
    }
}

#[test]
fn lines_need_no_files_where_the_fields_leave_them_out() {
    let lines = b"{\"file_name\": \"none.png\", \"n\": 1}\n";
    let told =
        import_lines("a.jsonl", lines, &options(Onto::Empty)).map(drop).unwrap_err().report();
    assert!(told.contains("field file_name names none.png: unreadable"), "{told}");
    let rows = RowOptions { fields: vec!["n".into()], ..RowOptions::default() };
    let options = ImportOptions { rows, ..options(Onto::Empty) };
    let (disks, _) = import_lines("a.jsonl", lines, &options).unwrap();
    assert_eq!(samples(&disks).into_keys().collect::<Vec<_>>(), ["a.jsonl/0"]);
}

#[test]
fn a_name_that_an_image_cannot_have_is_wrong_with_its_row_alone() {
    let long = "n".repeat(4097);
    let lines = format!(
        "{{\"id\": \"a\", \"x\": 1}}\n{{\"id\": \"{long}\", \"x\": 1}}\n{{\"id\": \"b\\u0000\", \"x\": 1}}\n\
         {{\"x\": 2}}\n"
    );
    let rows = RowOptions { name: Some("id".to_owned()), ..RowOptions::default() };
    let skip = ImportOptions { rows, on_error: OnError::Skip, ..options(Onto::Empty) };
    let (disks, report) = import_lines("a.jsonl", lines.as_bytes(), &skip).unwrap();
    assert_eq!(samples(&disks).into_keys().collect::<Vec<_>>(), ["a"]);
    let told: Vec<String> = report.bad.iter().map(ToString::to_string).collect();
    assert!(
        told[0].contains("longer than 4,096 bytes") && told[1].contains("holds a NUL"),
        "{told:?}"
    );
    assert!(told[2].ends_with("a.jsonl/3: name: the row has none"), "{told:?}");
}

#[test]
fn texts_of_columns_that_are_too_long_together_are_wrong_with_their_row_alone() {
    let row = |a: usize, b: usize| {
        format!("{{\"a\": \"{}\", \"b\": \"{}\"}}\n", "a".repeat(a), "b".repeat(b))
    };
    let lines = [row(1024, 1024), row(1024, 1025), row(1, 1)].concat();
    let columns = ["a:str", "b:str"].map(|column| column.parse().unwrap());
    let skip = ImportOptions {
        field_columns: columns.into(),
        on_error: OnError::Skip,
        ..options(Onto::Empty)
    };
    let (_, report) = import_lines("a.jsonl", lines.as_bytes(), &skip).unwrap();
    let told: Vec<String> = report.bad.iter().map(ToString::to_string).collect();
    assert_eq!((report.samples, told.len()), (2, 1), "{told:?}");
    assert!(told[0].contains("a.jsonl/1: field b and other columns have 2049 bytes"), "{told:?}");
}

#[test]
fn columns_that_an_image_cannot_have_are_refused_with_what_to_do() {
    let line = (0..2000).map(|at| format!("\"column {at}\": 1")).collect::<Vec<_>>().join(", ");
    let refused =
        import_lines("a.jsonl", format!("{{{line}}}\n").as_bytes(), &options(Onto::Empty));
    let told = refused.map(drop).unwrap_err().report();
    assert!(told.contains("2000 columns") && told.contains("--fields"), "{told}");
    let rows = RowOptions { fields: vec!["number".into(); 2], ..RowOptions::default() };
    let told = import_as(&["lines.jsonl"], rows).map(drop).unwrap_err().report();
    assert!(told.contains("column number is given twice"), "{told}");
}

#[cfg(feature = "formats")]
mod tables {
    use super::*;

    use std::sync::Arc;

    use arrow_array::Array as _;
    use arrow_array::types::Float32Type;
    use arrow_array::{
        ArrayRef, BooleanArray, FixedSizeListArray, Int64Array, ListArray, RecordBatch,
    };
    use arrow_buffer::{NullBuffer, OffsetBuffer};
    use arrow_schema::{DataType, Field, Schema};

    /// Writes a stream of these columns; `classes`: what Hugging Face says of the column `label`.
    fn write_arrow(path: &Path, columns: Vec<(&str, ArrayRef)>, classes: &[&str]) {
        let fields =
            columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true));
        let names = classes.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        let features = format!(
            "{{\"info\": {{\"features\": {{\"label\": {{\"_type\": \"ClassLabel\", \"names\": [{names}]}}}}}}}}"
        );
        let schema = Schema::new(fields.collect::<Vec<_>>())
            .with_metadata([("huggingface".to_owned(), features)]);
        let arrays = columns.into_iter().map(|(_, array)| array).collect();
        let batch = RecordBatch::try_new(Arc::new(schema), arrays).unwrap();
        let file = fs::File::create(path).unwrap();
        let mut writer = arrow_ipc::writer::StreamWriter::try_new(file, &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
    }

    #[test]
    fn a_list_with_a_null_is_no_array() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.arrow");
        let item = |kind: DataType| Arc::new(Field::new_list_field(kind, true));
        let bools = ListArray::new(
            item(DataType::Boolean),
            OffsetBuffer::from_lengths([2, 2, 1]),
            Arc::new(BooleanArray::from(vec![
                Some(true),
                None,
                Some(false),
                Some(true),
                Some(true),
            ])),
            None,
        );
        // A null in a list of one list, over numbers that are there.
        let pairs = FixedSizeListArray::new(
            item(DataType::Float32),
            2,
            Arc::new(arrow_array::PrimitiveArray::<Float32Type>::from(vec![1.0; 6])),
            Some(NullBuffer::from(vec![true, true, false])),
        );
        let lists = ListArray::new(
            item(pairs.data_type().clone()),
            OffsetBuffer::from_lengths([1, 1, 1]),
            Arc::new(pairs),
            None,
        );
        let columns: Vec<(&str, ArrayRef)> =
            vec![("bools", Arc::new(bools)), ("lists", Arc::new(lists))];
        write_arrow(&path, columns, &[]);
        let disks = Disks::new(1, 8 << 20);
        let skip = ImportOptions { on_error: OnError::Skip, ..options(Onto::Empty) };
        let report = import_onto(&[path], &disks.devices(), &skip, &mut ()).unwrap();
        let told: Vec<String> = report.bad.iter().map(ToString::to_string).collect();
        assert!(told[0].ends_with("a.arrow/0: a list of numbers has one that is null"), "{told:?}");
        assert!(told[1].ends_with("a.arrow/2: a list of lists has one that is null"), "{told:?}");
        let found = samples(&disks);
        let (fields, _) = &found["a.arrow/1"];
        assert_eq!(found.len(), 1);
        assert_eq!(fields["bools"], numbers("bool", &[2], [[0], [1]]));
        assert_eq!(fields["lists"], numbers("f32", &[1, 2], [1f32.to_le_bytes(); 2]));
    }

    #[test]
    fn files_may_number_the_same_classes_each_in_its_own_way() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, labels: Vec<i64>, classes: &[&str]| {
            let path = dir.path().join(name);
            let x: ArrayRef = Arc::new(Int64Array::from(labels.clone()));
            write_arrow(
                &path,
                vec![("x", x), ("label", Arc::new(Int64Array::from(labels)))],
                classes,
            );
            path
        };
        let sources = [
            file("a.arrow", vec![0, 1], &["cat", "dog"]),
            file("b.arrow", vec![0, 1, 2], &["dog", "eel", "cat"]),
            file("c.arrow", vec![1, 0], &["cat", "dog"]),
        ];
        let disks = Disks::new(1, 8 << 20);
        import_onto(&sources, &disks.devices(), &options(Onto::Empty), &mut ()).unwrap();
        let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
        assert_eq!(image.directory().classes(), [&b"cat"[..], b"dog", b"eel"]);
        let labels: Vec<Option<i64>> =
            samples(&disks).into_values().map(|(_, label)| label).collect();
        assert_eq!(labels, [0, 1, 1, 2, 0, 1, 0].map(Some));
    }

    #[test]
    fn columns_of_the_same_name_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.arrow");
        let column = |number: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![number])) };
        write_arrow(&path, vec![("x", column(1)), ("x", column(2)), ("y", column(3))], &[]);
        let import = |fields: &[&str]| {
            let fields = fields.iter().map(|name| (*name).to_owned()).collect();
            let rows = RowOptions { fields, ..RowOptions::default() };
            let disks = Disks::new(1, 8 << 20);
            let options = ImportOptions { rows, ..options(Onto::Empty) };
            import_onto(std::slice::from_ref(&path), &disks.devices(), &options, &mut ())
        };
        for fields in [&[][..], &["x"]] {
            let told = import(fields).unwrap_err().report();
            assert!(told.contains("more than one column x"), "{told}");
        }
        assert_eq!(import(&["y"]).unwrap().samples, 1);
    }

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
            let disks = Disks::new(1, 8 << 20);
            let paths = std::slice::from_ref(&path);
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
        // The missing marker alone shows the cut when all rows are there.
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
