//! Typed columns: what an import takes from a table, and what becomes of it in all that an image goes through.
//! Beside them, fields with types, and columns from fields.

mod fields;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::import_support::disk::Disks;
use crate::import_support::{Random, options, paths, tree};
use dlfs::ErrorKind;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::directory::Directory;
use dlfs::format::columns::{ColumnType, Value};
use dlfs::import::{
    self, ColumnCounts, ColumnsFrom, ImportOptions, ImportReport, Onto, PlacementOrder, Progress,
    Stage, import_onto,
};
use dlfs::units::SampleId;
use dlfs::view::{Filter, View};

/// A row of the table, as text; empty for none.
type Row = BTreeMap<&'static str, String>;

/// Stops an import once its journal is written.
struct StopWriting(bool);

impl Progress for StopWriting {
    fn stage(&mut self, stage: Stage, _: u64, _: u64) {
        self.0 = stage == Stage::Writing;
    }
    fn advance(&mut self, _: u64, _: u64) {}
    fn stop(&mut self) -> bool {
        self.0
    }
}

fn with(onto: Onto, table: &Path) -> ImportOptions {
    let columns = ColumnsFrom { path: table.to_path_buf(), key: None, only: Vec::new() };
    ImportOptions { columns: Some(columns), ..options(onto) }
}

fn imported(source: &Path, disks: &Disks, options: &ImportOptions) -> dlfs::Result<ImportReport> {
    import_onto(&paths(source), &disks.devices(), options, &mut ())
}

fn opened(disks: &Disks) -> Arc<Directory> {
    let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
    image.load_names().unwrap();
    Arc::clone(image.directory())
}

/// A table of random values: some are missing, and texts are few.
fn rows(random: &mut Random, names: &[String]) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for name in names {
        let mut row = Row::new();
        let mut put = |column, value: String, random: &mut Random| {
            row.insert(column, if random.below(5) == 0 { String::new() } else { value });
        };
        let wide = [3, 300, 70_000, 1 << 40][random.below(4)];
        put("width", (random.below(2 * wide) as i64 - wide as i64).to_string(), random);
        put("score", ((random.below(2000) as f64 - 1000.0) / 64.0).to_string(), random);
        put("good", (random.below(2) == 0).to_string(), random);
        put("lang", ["de", "en", "fr, or so", "\"x\""][random.below(4)].to_owned(), random);
        rows.insert(name.clone(), row);
    }
    rows
}

fn csv(columns: &[&'static str], rows: &BTreeMap<String, Row>) -> String {
    let quoted = |text: &str| {
        if text.contains([',', '"']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text.to_owned()
        }
    };
    let mut text = format!("file,{}\n", columns.join(","));
    for (name, row) in rows {
        let cells = columns.iter().map(|column| quoted(&row[column]));
        text += &format!("{name},{}\n", cells.collect::<Vec<_>>().join(","));
    }
    text
}

fn names_of(files: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<String> {
    files.keys().map(|name| String::from_utf8(name.clone()).unwrap()).collect()
}

/// Compares the columns of all live samples with the table.
fn check(directory: &Directory, rows: &BTreeMap<String, Row>) {
    let kinds = [
        ("width", ColumnType::Int),
        ("score", ColumnType::Float),
        ("good", ColumnType::Bool),
        ("lang", ColumnType::Text),
    ];
    for (column, kind) in kinds {
        let found = directory.column(column).unwrap_or_else(|| panic!("no column {column}"));
        assert_eq!((found.name(), found.kind()), (column, kind));
        assert!(found.texts().is_sorted());
        for rank in 0..directory.num_live() {
            let id = directory.id_of_live(rank);
            let name = String::from_utf8(directory.name(id).unwrap().unwrap()).unwrap();
            let expected = rows.get(&name).map_or("", |row| &row[column]);
            assert_eq!(found.get(id.0).to_string(), expected, "{column} of {name}");
        }
    }
}

#[test]
fn values_survive_appends_deletes_purges_and_rebuilds() {
    let mut random = Random::new(3);
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("first");
    let second = dir.path().join("second");
    let files = tree(&first, 300, 3000, 1);
    let mut all = rows(&mut random, &names_of(&files)[20..]);
    let table = dir.path().join("first.csv");
    let columns = ["width", "score", "good", "lang"];
    let mut text = csv(&columns, &all);
    text += "no/such/file,1,2,true,zz\n";
    fs::write(&table, text).unwrap();
    let disks = Disks::new(2, 8 << 20);
    let report = imported(&first, &disks, &with(Onto::Empty, &table)).unwrap();
    let counts = ColumnCounts { samples: 280, samples_without: 20, rows_without: 1 };
    assert_eq!(report.columns, Some(counts));
    check(&opened(&disks), &all);
    assert!(!opened(&disks).column("lang").unwrap().texts().contains(&"zz".to_owned()));

    // Another table, whose column score has whole numbers alone, and with a column more.
    let more = tree(&second, 200, 3000, 2);
    let mut added = rows(&mut random, &names_of(&more));
    for (at, row) in added.values_mut().enumerate() {
        row.insert("score", (at as i64 - 40).to_string());
        row.insert("lang", ["aa", "en", "zz"][at % 3].to_owned());
        row.insert("extra", (at * 2).to_string());
    }
    let table = dir.path().join("second.csv");
    fs::write(&table, csv(&["score", "extra", "lang", "width", "good"], &added)).unwrap();
    imported(&second, &disks, &with(Onto::Append, &table)).unwrap();
    all.extend(added.clone());
    let directory = opened(&disks);
    check(&directory, &all);
    let order: Vec<&str> = directory.columns().iter().map(|column| column.name()).collect();
    assert_eq!(order, ["width", "score", "good", "lang", "extra"]);
    assert_eq!(directory.column("lang").unwrap().texts()[0], "\"x\"");
    assert_eq!(directory.column("extra").unwrap().get(0), Value::None);

    // Samples without a table have no values.
    let third = dir.path().join("third");
    tree(&third, 50, 100, 3);
    imported(&third, &disks, &options(Onto::Append)).unwrap();
    check(&opened(&disks), &all);

    // The only samples with a text go, and the text with them.
    let gone: Vec<Vec<u8>> = added
        .iter()
        .filter(|(_, row)| row["lang"] == "zz")
        .chain(all.iter().take(30))
        .map(|(name, _)| name.clone().into_bytes())
        .collect();
    import::delete_on(&disks.devices(), &gone).unwrap();
    check(&opened(&disks), &all);
    import::purge_on(&disks.devices(), &mut ()).unwrap();
    let purged = opened(&disks);
    check(&purged, &all);
    assert!(!purged.column("lang").unwrap().texts().contains(&"zz".to_owned()));
    let dead = (0..purged.num_samples()).filter(|id| !purged.is_live(SampleId(*id)));
    dead.for_each(|id| assert_eq!(purged.column("width").unwrap().get(id), Value::None));

    import::rebuild_on(&disks.devices(), None, &mut ()).unwrap();
    let rebuilt = opened(&disks);
    check(&rebuilt, &all);
    for (a, b) in purged.columns().iter().zip(rebuilt.columns()) {
        assert_eq!((a.name(), a.as_bytes(), a.texts()), (b.name(), b.as_bytes(), b.texts()));
    }
}

/// A predicate over rows.
type Test = Box<dyn Fn(&Row) -> bool>;

#[test]
fn expressions_over_columns_select_what_they_say() {
    let mut random = Random::new(5);
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let files = tree(&source, 400, 50, 1);
    let all = rows(&mut random, &names_of(&files));
    let table = dir.path().join("t.csv");
    fs::write(&table, csv(&["width", "score", "good", "lang"], &all)).unwrap();
    let disks = Disks::new(1, 8 << 20);
    imported(&source, &disks, &with(Onto::Empty, &table)).unwrap();
    let directory = opened(&disks);
    let values: Vec<&Row> = (0..400)
        .map(|id| &all[&String::from_utf8(directory.name(SampleId(id)).unwrap().unwrap()).unwrap()])
        .collect();
    let int = |row: &Row| row["width"].parse::<i64>().ok();
    let float = |row: &Row| row["score"].parse::<f64>().ok();
    let lang = |row: &Row| Some(row["lang"].clone()).filter(|text| !text.is_empty());
    for _ in 0..300 {
        let number = random.below(1000) as i64 - 500;
        let bound = (random.below(40) as f64 - 20.0) / 2.0;
        let text = ["de", "en", "fr, or so", "nn"][random.below(4)];
        let cases: [(String, Test); 12] = [
            (format!("width > {number}"), Box::new(move |r| int(r).is_some_and(|w| w > number))),
            (format!("width != {number}"), Box::new(move |r| int(r) != Some(number))),
            ("width == none".into(), Box::new(move |r| int(r).is_none())),
            (format!("score < {bound}"), Box::new(move |r| float(r).is_some_and(|s| s < bound))),
            (
                format!("score >= {bound:?}"),
                Box::new(move |r| float(r).is_some_and(|s| s >= bound)),
            ),
            (format!("score == {bound:?}"), Box::new(move |r| float(r) == Some(bound))),
            ("good == true".into(), Box::new(|r| r["good"] == "true")),
            ("good != 1".into(), Box::new(|r| r["good"] != "true")),
            (
                format!("lang in ('{text}', none)"),
                Box::new(move |r| lang(r).is_none_or(|l| l == text)),
            ),
            (format!("lang < '{text}'"), Box::new(move |r| lang(r).is_some_and(|l| &*l < text))),
            (format!("lang >= '{text}'"), Box::new(move |r| lang(r).is_some_and(|l| &*l >= text))),
            (
                "`lang` glob '*r*'".into(),
                Box::new(move |r| lang(r).is_some_and(|l| l.contains('r'))),
            ),
        ];
        let a = random.below(12);
        let b = random.below(12);
        let text = format!("({}) or not ({})", cases[a].0, cases[b].0);
        let expected: Vec<u64> = (0..400)
            .filter(|id| {
                let row = values[*id as usize];
                cases[a].1(row) || !cases[b].1(row)
            })
            .collect();
        match View::select(&directory, &Filter::parse(&text, &directory).unwrap()) {
            Ok(view) => assert_eq!(view.ids().iter().collect::<Vec<_>>(), expected, "{text}"),
            Err(_) => assert!(expected.is_empty(), "{text}"),
        }
    }
    for (text, what) in [
        (
            "wdth > 3",
            "there is no column `wdth`: there are id, label, len, name, width, score, good and lang",
        ),
        ("width > 1.5", "`width` is int: compare it with a whole number"),
        ("score == 'x'", "`score` is float: compare it with a number"),
        ("good < true", "`good` is bool: compare it with `true` or `false`"),
        ("lang == 3", "`lang` is str: compare it with a string in quotes"),
        ("width glob '*'", "`glob` compares texts, and `width` is int"),
        ("width < none", "only `==`, `!=` and `in` take `none`"),
        ("len < 1.5", "`len` is a whole number"),
    ] {
        let problem = Filter::parse(text, &directory).unwrap_err().to_string();
        assert!(problem.contains(what), "{text}: {problem}");
    }
}

#[test]
fn a_stream_has_the_values_that_an_indexed_import_has() {
    let mut random = Random::new(7);
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let files = tree(&source, 150, 2000, 1);
    let all = rows(&mut random, &names_of(&files));
    let table = dir.path().join("t.csv");
    fs::write(&table, csv(&["width", "score", "good", "lang"], &all)).unwrap();
    let packed = dir.path().join("a.tar.gz");
    let gzip =
        flate2::write::GzEncoder::new(fs::File::create(&packed).unwrap(), Default::default());
    let mut archive = tar::Builder::new(gzip);
    archive.append_dir_all("", &source).unwrap();
    archive.into_inner().unwrap().finish().unwrap();
    let disks = Disks::new(1, 8 << 20);
    let in_order = ImportOptions { placement: PlacementOrder::Source, ..with(Onto::Empty, &table) };
    let report = imported(&packed, &disks, &in_order).unwrap();
    let counts = ColumnCounts { samples: 150, samples_without: 0, rows_without: 0 };
    assert_eq!(report.columns, Some(counts));
    check(&opened(&disks), &all);
    fs::write(&table, "file,a\nnone of them,1\n").unwrap();
    let error = imported(&packed, &Disks::new(1, 8 << 20), &in_order).unwrap_err();
    assert!(error.to_string().contains("none of 1 rows names a sample"), "{error}");
}

#[test]
fn a_table_that_changed_or_does_not_fit_the_image_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let files = tree(&source, 60, 2000, 1);
    let names = names_of(&files);
    let table = dir.path().join("t.csv");
    let of = |column: &str, value: &str| {
        let rows = names.iter().map(|name| format!("{name},{value}\n"));
        format!("file,{column}\n{}", rows.collect::<String>())
    };
    fs::write(&table, of("a", "1")).unwrap();
    let disks = Disks::new(1, 8 << 20);
    let onto = with(Onto::Empty, &table);
    let stopped = import_onto(&paths(&source), &disks.devices(), &onto, &mut StopWriting(false));
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
    fs::write(&table, of("a", "2")).unwrap();
    let changed = imported(&source, &disks, &with(Onto::Resume, &table)).unwrap_err();
    assert!(changed.to_string().contains("the source has changed"), "{changed}");
    fs::write(&table, of("a", "1")).unwrap();
    imported(&source, &disks, &with(Onto::Resume, &table)).unwrap();
    fs::write(&table, "file,a\nnothing,1\n").unwrap();
    let kept = imported(&source, &disks, &with(Onto::Force, &table)).unwrap_err();
    assert!(kept.to_string().contains("none of 1 rows names a sample"), "{kept}");
    assert_eq!(opened(&disks).column("a").unwrap().get(59), Value::Int(1));

    let more = dir.path().join("more");
    let names = names_of(&tree(&more, 5, 10, 2));
    let of = |column: &str, value: &str| format!("file,{column}\n{},{value}\n", names[0]);
    for (text, what) in [
        (of("a:str", "x"), "column `a` is str, and in the image it is int"),
        (of("a", "x"), "column `a` is int, and this is `x`"),
        (of("label", "1"), "every data set has a column of this name"),
        ("file,a\nnothing,1\n".to_owned(), "none of 1 rows names a sample"),
    ] {
        fs::write(&table, text).unwrap();
        let error = imported(&more, &disks, &with(Onto::Append, &table)).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(error.kind(), ErrorKind::BadSource, "{error}");
    }
    let missing = with(Onto::Append, &dir.path().join("missing.csv"));
    assert_eq!(imported(&more, &disks, &missing).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Earlier releases ignore chunk columns from 64 on and sections without the flag, so they can read such an image;
/// but they must not write to it.
#[test]
fn earlier_releases_may_read_such_an_image_and_not_write_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let names = names_of(&tree(&source, 30, 200, 1));
    let table = dir.path().join("t.csv");
    fs::write(&table, format!("file,a\n{},1\n", names[0])).unwrap();
    let import = |options: &ImportOptions| {
        let disks = Disks::new(1, 8 << 20);
        imported(&source, &disks, options).unwrap();
        disks.contents().remove(0)
    };
    let plain = import(&options(Onto::Empty));
    let typed = import(&with(Onto::Empty, &table));
    let copy_b = 32 << 10;
    let to_write = |image: &[u8]| image[copy_b + 128..copy_b + 136].to_vec();
    assert_eq!((to_write(&plain), to_write(&typed)), (vec![0; 8], vec![1, 0, 0, 0, 0, 0, 0, 0]));
    let required = |image: &[u8]| image[copy_b + 48..copy_b + 56].to_vec();
    assert_eq!(required(&typed), [0; 8]);
    let snapshot = |image: &[u8]| {
        let at = image[copy_b + 88..copy_b + 96].try_into().unwrap();
        u64::from_le_bytes(at) as usize
    };
    let first_section = |image: &[u8]| image[snapshot(image) + 128..snapshot(image) + 132].to_vec();
    assert_eq!((first_section(&plain), first_section(&typed)), (vec![1, 0, 1, 0], vec![0; 4]));
}

#[test]
fn few_values_cost_few_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir_all(&source).unwrap();
    let list: PathBuf = dir.path().join("t.tsv");
    let mut table = String::from("name\tlang\n");
    for i in 0..2000 {
        fs::write(source.join(format!("{i:05}")), b"x").unwrap();
        table += &format!("{i:05}\t{}\n", ["a text of some length", "another one"][i % 2]);
    }
    fs::write(&list, table).unwrap();
    let disks = Disks::new(1, 8 << 20);
    let report = imported(&source, &disks, &with(Onto::Empty, &list)).unwrap();
    let without = imported(&source, &Disks::new(1, 8 << 20), &options(Onto::Empty)).unwrap();
    let more = report.media.header_bytes - without.media.header_bytes;
    assert!((2000..2500).contains(&more), "{more} bytes for 2,000 values");
    assert_eq!(opened(&disks).memory_bytes().columns, 2000 + 21 + 11);
}
