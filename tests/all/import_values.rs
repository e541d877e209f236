//! Values of rows are those of their source, or refused: none is lost, rounded or taken from what was damaged.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::import_support::disk::Disks;
use crate::import_support::options;
use dlfs::dataset::{Dataset, Image, OnError as ReadOnError, OpenOptions, Query};
use dlfs::import::sources::SourceKind;
use dlfs::import::{ImportOptions, OnError, Onto, RowOptions, import_onto};
use dlfs::reader::ReaderOptions;

/// The fields of a sample by their names, as `TYPE[SHAPE]` and bytes.
type Fields = BTreeMap<String, (String, Vec<u8>)>;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rows").join(name)
}

/// The samples of an import, by their names; or what it says.
fn import(
    sources: &[PathBuf],
    options: &ImportOptions,
) -> Result<BTreeMap<String, Fields>, String> {
    let disks = Disks::new(1, 8 << 20);
    import_onto(sources, &disks.devices(), options, &mut ()).map_err(|error| error.report())?;
    Ok(samples(&disks))
}

fn samples(disks: &Disks) -> BTreeMap<String, Fields> {
    let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
    image.load_names().unwrap();
    let dataset = Dataset::from_image(image, ReaderOptions::default());
    let directory = dataset.directory().clone();
    let sample = |rank| {
        let id = directory.id_of_live(rank);
        let name = String::from_utf8(directory.name(id).unwrap().unwrap()).unwrap();
        let batch = dataset.read(Query::Ids(&[id]), ReadOnError::Raise, &mut ()).unwrap().batch;
        let arrays = directory.fields().iter().enumerate().filter_map(|(number, field)| {
            let array = batch.array(0, number).unwrap()?;
            let kind = format!("{}{:?}", array.element.name(), array.shape);
            Some((String::from_utf8(field.clone()).unwrap(), (kind, array.bytes.to_vec())))
        });
        (name, arrays.collect())
    };
    (0..directory.num_live()).map(sample).collect()
}

fn field(fields: &Fields, name: &str) -> (String, Vec<u8>) {
    fields.get(name).cloned().unwrap_or_else(|| ("nothing".to_owned(), Vec::new()))
}

fn of_i64(number: i64) -> (String, Vec<u8>) {
    ("i64[]".to_owned(), number.to_le_bytes().to_vec())
}

fn of_f64(number: f64) -> (String, Vec<u8>) {
    ("f64[]".to_owned(), number.to_le_bytes().to_vec())
}

fn text(text: &str) -> (String, Vec<u8>) {
    (format!("u8[{}]", text.len()), text.as_bytes().to_vec())
}

fn nothing() -> (String, Vec<u8>) {
    field(&Fields::new(), "")
}

fn with_types(types: &[&str]) -> ImportOptions {
    let field_types = types.iter().map(|text| text.parse().unwrap()).collect();
    ImportOptions { field_types, ..options(Onto::Empty) }
}

fn with_rows(rows: RowOptions) -> ImportOptions {
    ImportOptions { rows, ..options(Onto::Empty) }
}

fn taking(fields: &[&str]) -> RowOptions {
    let fields = fields.iter().map(|field| (*field).to_owned()).collect();
    RowOptions { fields, ..RowOptions::default() }
}

fn union() -> ImportOptions {
    with_rows(RowOptions { union: true, ..RowOptions::default() })
}

/// The values of field `name` in the lines of files, in their order.
fn lines(
    files: &[&str],
    name: &str,
    options: &ImportOptions,
) -> Result<Vec<(String, Vec<u8>)>, String> {
    let dir = tempfile::tempdir().unwrap();
    let write = |(number, lines): (usize, &&str)| {
        let path = dir.path().join(format!("{number}.jsonl"));
        fs::write(&path, lines).unwrap();
        path
    };
    let paths: Vec<PathBuf> = files.iter().enumerate().map(write).collect();
    let found = import(&paths, options)?;
    let of_file = |(number, lines): (usize, &&str)| {
        let rows = lines.lines().count();
        let row = |row| field(&found[&format!("{number}.jsonl/{row}")], name);
        (0..rows).map(row).collect::<Vec<_>>()
    };
    Ok(files.iter().enumerate().flat_map(of_file).collect())
}

#[test]
fn json_lines_have_the_types_of_all_lines_and_no_value_is_rounded() {
    let plain = options(Onto::Empty);
    let nan = "{\"n\": 0.5}\n{\"n\": NaN}\n{\"n\": -Infinity, \"t\": \"NaN\"}\n";
    let nans = [0.5, f64::NAN, f64::NEG_INFINITY].map(of_f64);
    assert_eq!(lines(&[nan], "n", &plain).unwrap(), nans);
    assert_eq!(lines(&[nan], "t", &plain).unwrap()[2], text("NaN"));
    let late = format!("{}{{\"n\": 0.5, \"late\": \"x\"}}\n", "{\"n\": 1}\n".repeat(1100));
    assert_eq!(lines(&[&late], "n", &plain).unwrap()[1099..], [1.0, 0.5].map(of_f64));
    assert_eq!(lines(&[&late], "late", &plain).unwrap()[1099..], [nothing(), text("x")]);
    let large = "{\"n\": 18446744073709551615}\n{\"n\": 7}\n";
    let expected = [u64::MAX, 7].map(|n| ("u64[]".to_owned(), n.to_le_bytes().to_vec()));
    assert_eq!(lines(&[large], "n", &plain).unwrap(), expected);
    let larger = "{\"n\": 1180591620717411303425}\n{\"n\": [18446744073709551616, NaN]}\n";
    let expected = [text("1180591620717411303425"), text("[18446744073709551616,NaN]")];
    assert_eq!(lines(&[larger], "n", &plain).unwrap(), expected);
    let files = "{\"file_name\": \"0.jsonl\", \"file_name\": \"1.jsonl\"}\n";
    for (line, key) in [("{\"a\": 1, \"a\": 2}\n", "a"), (files, "file_name")] {
        let twice = lines(&[line], key, &plain).unwrap_err();
        assert!(twice.contains(&format!("{key} is there twice in this line")), "{twice}");
    }
}

#[test]
fn given_types_hold_what_lines_say_or_refuse_it() {
    let lists = "{\"n\": [[1, 2], [3, 4]]}\n{\"n\": []}\n";
    let found = lines(&[lists], "n", &with_types(&["n:f32[*,2]"])).unwrap();
    let numbers = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|n| n.to_le_bytes()).collect();
    assert_eq!(found, [("f32[2, 2]".to_owned(), numbers), ("f32[0, 2]".to_owned(), vec![])]);
    let found = lines(&["{\"n\": 1}\n{\"n\": 255}\n"], "n", &with_types(&["n:u8"])).unwrap();
    assert_eq!(found, [1, 255].map(|n| ("u8[]".to_owned(), vec![n])));
    for (line, kind, what) in [
        ("{\"n\": 256}", "u8", "n is u8, which does not hold 256"),
        ("{\"n\": 0.5}", "i64", "does not hold 0.5"),
        ("{\"n\": 1e40}", "f32", "does not hold 1e"),
        ("{\"n\": 16777217}", "f32", "does not hold 16777217"),
        ("{\"n\": \"x\"}", "i64", "does not hold text"),
    ] {
        let refused = lines(&[line], "n", &with_types(&[&format!("n:{kind}")])).unwrap_err();
        assert!(refused.contains(what) && refused.contains("--field-type n:TYPE"), "{refused}");
    }
    // Fields that nobody asked for are not looked at.
    let odd = "{\"a\": 1, \"b\": 1}\n{\"a\": 2, \"b\": \"x\", \"b\": {}}\n";
    let found = lines(&[odd], "a", &with_rows(taking(&["a"]))).unwrap();
    assert_eq!(found, [1, 2].map(of_i64));
}

#[test]
fn rows_of_nothing_are_samples_of_nothing() {
    let nulls = "{\"a\": null, \"b\": null}\n{\"a\": 1, \"b\": \"x\"}\n{}\n";
    let found = lines(&[nulls], "a", &options(Onto::Empty)).unwrap();
    assert_eq!(found, [nothing(), of_i64(1), nothing()]);
    let found = lines(&["{\"a\": null}\n{\"a\": \"x\"}\n"], "a", &options(Onto::Empty));
    assert_eq!(found.unwrap(), [text(""), text("x")]);
    // A sample of one field cannot say that the field is missing; the hint names a way that works.
    let only = "{\"a\": null}\n{\"a\": 1}\n";
    let both = "{\"a\": null, \"b\": 2}\n{\"a\": 1, \"b\": 2}\n";
    let refused = lines(&[only], "a", &options(Onto::Empty)).unwrap_err();
    assert!(
        refused.contains("the only column") && refused.contains("--on-error skip"),
        "{refused}"
    );
    let refused = lines(&[both], "a", &with_rows(taking(&["a"]))).unwrap_err();
    assert!(refused.contains("take another column as well"), "{refused}");
    assert_eq!(lines(&[both], "a", &options(Onto::Empty)).unwrap(), [nothing(), of_i64(1)]);
}

#[test]
fn a_list_of_bad_rows_is_cut_and_who_has_no_others_is_not_told_to_leave_them_out() {
    let bad = "no object\n".repeat(1500);
    let skip = || ImportOptions { on_error: OnError::Skip, ..options(Onto::Empty) };
    let told = lines(&[&format!("{{\"a\": 1}}\n{bad}")], "a", &options(Onto::Empty)).unwrap_err();
    assert!(told.contains("1500 entries") && told.contains("and 1480 more"), "{}", told.len());
    assert!(told.contains("--on-error skip") && !told.contains("0.jsonl/1200"), "{}", told.len());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tfrecord");
    fs::write(&path, [7; 64]).unwrap();
    let told =
        import(&[path], &ImportOptions { from: SourceKind::TfRecord, ..skip() }).unwrap_err();
    assert!(told.contains("there is no sample") && !told.contains("--on-error skip"), "{told}");
}

#[test]
fn columns_of_files_are_unified_or_told_apart() {
    let plain = options(Onto::Empty);
    let numbers = ["1", "null", "0.5"].map(|n| format!("{{\"n\": {n}, \"t\": \"x\"}}\n"));
    let found = lines(&numbers.each_ref().map(String::as_str), "n", &plain).unwrap();
    assert_eq!(found, [of_f64(1.0), nothing(), of_f64(0.5)]);
    let late = ["{\"a\": 1}\n", "{\"b\": \"x\", \"a\": 2}\n"];
    let refused = lines(&late, "a", &plain).unwrap_err();
    let words = ["column b is in", "1.jsonl, and not in", "0.jsonl", "--columns union", "--fields"];
    assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    assert_eq!(lines(&late, "b", &union()).unwrap(), [nothing(), text("x")]);
    assert_eq!(lines(&late, "a", &with_rows(taking(&["a"]))).unwrap(), [1, 2].map(of_i64));
    let mixed = ["{\"a\": 1, \"b\": 1}\n", "{\"a\": 2, \"b\": \"x\"}\n"];
    let refused = lines(&mixed, "a", &plain).unwrap_err();
    let words = ["column b holds i64 in", "0.jsonl, and bytes in", "1.jsonl", "--fields"];
    assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    assert_eq!(lines(&mixed, "a", &with_rows(taking(&["a"]))).unwrap(), [1, 2].map(of_i64));
    let signs = ["{\"a\": -1}\n", "{\"a\": 18446744073709551615}\n"];
    let refused = lines(&signs, "a", &plain).unwrap_err();
    assert!(refused.contains("--field-type a:TYPE gives it a type that holds both"), "{refused}");
    let given = ["{\"a\": -1}\n", "{\"a\": 9223372036854775808}\n"];
    let found = lines(&given, "a", &with_types(&["a:f64"])).unwrap();
    assert_eq!(found, [-1.0, 9223372036854775808.0].map(of_f64));
}

#[cfg(feature = "formats")]
#[test]
fn tables_are_unified_as_lines_are() {
    for kind in ["parquet", "arrow"] {
        let files = |order: [usize; 2]| order.map(|at| data(&format!("differing-{at}.{kind}")));
        for order in [[0, 1], [1, 0]] {
            let refused = import(&files(order), &options(Onto::Empty)).unwrap_err();
            let what =
                format!("column more is in {}", data(&format!("differing-1.{kind}")).display());
            assert!(refused.contains(&what), "{refused}");
            let found = import(&files(order), &union()).unwrap();
            let row = |file: usize, row: usize, name: &str| {
                field(&found[&format!("differing-{file}.{kind}/{row}")], name)
            };
            let rows = [(0, 0), (0, 1), (1, 0)];
            let all = |name: &str| rows.map(|(file, at)| row(file, at, name));
            assert_eq!(all("n"), [of_i64(1), nothing(), of_i64(1 << 40)]);
            assert_eq!(all("t"), ["a", "b", "c"].map(text));
            assert_eq!(all("none"), [nothing(), nothing(), of_i64(7)]);
            let half = ("f32[]".to_owned(), 0.5f32.to_le_bytes().to_vec());
            assert_eq!(all("more"), [nothing(), nothing(), half]);
        }
        let small = with_types(&["n:i16", "none:u8"]);
        let few = ImportOptions { rows: taking(&["n", "none"]), ..small };
        let refused = import(&files([0, 1]), &few).unwrap_err();
        assert!(refused.contains("n is i16, which does not hold 1099511627776"), "{refused}");
        let wide = ImportOptions {
            rows: taking(&["n", "none"]),
            on_error: OnError::Stop,
            ..with_types(&["n:f64"])
        };
        let found = import(&files([0, 1]), &wide).unwrap();
        assert_eq!(
            field(&found[&format!("differing-1.{kind}/0")], "n"),
            of_f64((1_u64 << 40) as f64)
        );
    }
}

#[cfg(feature = "formats")]
#[test]
fn a_stream_in_another_byte_order_is_refused() {
    let refused = import(&[data("big-endian.arrow")], &options(Onto::Empty)).unwrap_err();
    assert!(refused.contains("byte order") && refused.contains("pyarrow"), "{refused}");
}

#[cfg(feature = "formats")]
#[test]
fn what_a_source_says_of_its_bytes_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |what: &str, path: &Path, words: &[&str]| {
        let told = import(&[path.to_path_buf()], &options(Onto::Empty)).expect_err(what);
        assert!(words.iter().all(|word| told.contains(word)), "{what}: {told}");
    };
    // A page of Parquet.
    let whole = fs::read(data("checksums.parquet")).unwrap();
    assert_eq!(import(&[data("checksums.parquet")], &options(Onto::Empty)).unwrap().len(), 1);
    let at = whole.windows(12).position(|part| part == b"\x08\0\0\0checksum").unwrap();
    let mut damaged = whole.clone();
    damaged[at + 4] ^= 1;
    let path = dir.path().join("damaged.parquet");
    fs::write(&path, &damaged).unwrap();
    refused("a page of Parquet", &path, &["damaged.parquet", "CRC"]);
    // A shard of MDS, whose index has its hash; raw, and compressed.
    for folder in ["mds", "mds-zstd"] {
        let to = dir.path().join(folder);
        fs::create_dir(&to).unwrap();
        for entry in fs::read_dir(data(folder)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
        let shards = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().path());
        let shard = shards.filter(|path| !path.ends_with("index.json")).min().unwrap();
        let mut bytes = fs::read(&shard).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&shard, &bytes).unwrap();
        let name = shard.file_name().unwrap().to_str().unwrap().to_owned();
        if folder == "mds-zstd" {
            refused(folder, &to, &[&name, "corruption"]); // zstd finds it first
            continue;
        }
        refused(folder, &to, &[&name, "sha1 is", "the index states", "copy the shard"]);
        bytes.pop();
        fs::write(&shard, &bytes).unwrap();
        refused(folder, &to, &[&name, "length is"]);
    }
    // The items of a shard, which both indexes state; rows of Arrow are items too.
    let counted = [("mds", "\"samples\": 13"), ("litdata", "\"chunk_size\": 16")];
    let arrow = cfg!(feature = "formats").then_some(("litdata-arrow", "\"chunk_size\": 16"));
    for (folder, states) in counted.into_iter().chain(arrow) {
        let to = dir.path().join(format!("{folder}-counted"));
        fs::create_dir(&to).unwrap();
        for entry in fs::read_dir(data(folder)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
        let index = fs::read_to_string(to.join("index.json")).unwrap();
        assert!(index.contains(states), "{folder}");
        fs::write(to.join("index.json"), index.replacen(states, &format!("{states}1"), 1)).unwrap();
        refused(folder, &to, &["table has 1", "the index states 1", "copy the shard"]);
    }
    // A compressed source has its checksum at the end.
    let lines = b"{\"t\": \"x\"}\n";
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    gzip.write_all(lines).unwrap();
    let mut gzip = gzip.finish().unwrap();
    let at = gzip.windows(3).position(|part| part == b"\"x\"").unwrap() + 1;
    gzip[at] = b'y';
    let path = dir.path().join("damaged.jsonl.gz");
    fs::write(&path, &gzip).unwrap();
    let lines = ImportOptions { from: SourceKind::JsonLines, ..options(Onto::Empty) };
    let told = import(&[path], &lines).expect_err("lines in gzip");
    assert!(told.contains("damaged.jsonl.gz") && told.contains("corrupt"), "{told}");
}

/// A shard of MDS with these items, each an array with a header, and its index.
fn arrays(to: &Path, items: &[Vec<u8>]) {
    let table = 4 + 4 * (items.len() + 1);
    let mut shard = (items.len() as u32).to_le_bytes().to_vec();
    let mut at = table;
    shard.extend((at as u32).to_le_bytes());
    for item in items {
        at += 4 + item.len();
        shard.extend((at as u32).to_le_bytes());
    }
    for item in items {
        shard.extend((item.len() as u32).to_le_bytes());
        shard.extend(item);
    }
    fs::write(to.join("shard.mds"), &shard).unwrap();
    let index = format!(
        r#"{{"version": 2, "shards": [{{"format": "mds", "version": 2, "column_names": ["a"], "samples": {},
            "column_encodings": ["ndarray"], "column_sizes": [null], "compression": null, "zip_data": null,
            "raw_data": {{"basename": "shard.mds", "bytes": {}, "hashes": {{}}}}}}]}}"#,
        items.len(),
        shard.len()
    );
    fs::write(to.join("index.json"), index).unwrap();
}

#[cfg(feature = "formats")]
#[test]
fn arrays_that_differ_keep_a_header_each() {
    let from_mds = ImportOptions { from: SourceKind::Mds, ..options(Onto::Empty) };
    let array = |kind: u8, dims: &[u8], bytes: &[u8]| {
        [&[kind, (dims.len() as u8) << 2][..], dims, bytes].concat()
    };
    let u8s = 8;
    let i16s = 17;
    let alike = [array(u8s, &[2, 1], &[1, 2]), array(u8s, &[3, 1], &[3, 4, 5])];
    let rank = [array(u8s, &[2], &[1, 2]), array(u8s, &[2, 1], &[3, 4])];
    let shape = [array(u8s, &[1, 2], &[1, 2]), array(u8s, &[1, 3], &[3, 4, 5])];
    let kind = [array(u8s, &[2], &[1, 2]), array(i16s, &[1], &[3, 0])];
    for (items, are_alike) in [(alike, true), (rank, false), (shape, false), (kind, false)] {
        let dir = tempfile::tempdir().unwrap();
        arrays(dir.path(), &items);
        let found = import(&[dir.path().to_path_buf()], &from_mds).unwrap();
        assert_eq!(found.len(), 2);
        for (row, item) in items.iter().enumerate() {
            let dims = usize::from(item[1] >> 2);
            let shape = &item[2..2 + dims];
            let bytes = &item[2 + dims..];
            let (kind, stored) = field(&found[&format!("shard.mds/{row}")], "a");
            if are_alike {
                assert_eq!((kind, &stored[..]), (format!("u8{shape:?}"), bytes));
                continue;
            }
            let shown = shape.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
            let shown = if dims == 1 { format!("({shown},)") } else { format!("({shown})") };
            let descr = if item[0] == u8s { "'|u1'" } else { "'<i2'" };
            let head = String::from_utf8_lossy(&stored);
            assert!(stored.starts_with(b"\x93NUMPY") && head.contains(&shown), "{head}");
            assert!(head.contains(descr) && stored.ends_with(bytes), "{head}");
        }
    }
}

#[test]
fn a_field_that_is_named_by_the_key_of_the_files_keeps_this_name() {
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("metadata.jsonl");
    fs::write(&lines, "{\"file_name\": \"a.png\", \"picture\": \"b.png\"}\n").unwrap();
    ["a.png", "b.png"].into_iter().for_each(|name| fs::write(dir.path().join(name), name).unwrap());
    for (key, files) in [("file_name", None), ("picture", Some("picture".to_owned()))] {
        let rows = RowOptions { files, ..taking(&[key]) };
        let samples = import(std::slice::from_ref(&lines), &with_rows(rows)).unwrap();
        let (name, fields) = samples.first_key_value().unwrap();
        assert_eq!((fields.len(), field(fields, key)), (1, text(name)), "{key}");
    }
}
