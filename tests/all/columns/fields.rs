//! Fields with types: what an import makes of files, and what becomes of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use dlfs::ErrorKind;
use dlfs::dataset::{Dataset, Files, Image, OnError as ReadOnError, OpenOptions, Query};
use dlfs::format::columns::Value;
use dlfs::format::field_type::{Element, FieldType};
use dlfs::format::npy;
use dlfs::import::{self, ImportOptions, OnError, Onto, PlacementOrder, import_onto};
use dlfs::posix::Node;
use dlfs::reader::ReaderOptions;

use super::{StopWriting, imported, opened};
use crate::import_support::disk::Disks;
use crate::import_support::{Random, options};

/// The files of a sample, by field.
type Fields = BTreeMap<&'static str, Vec<u8>>;

fn typed(onto: Onto, specs: &[&str]) -> ImportOptions {
    let field_types = specs.iter().map(|spec| spec.parse().unwrap()).collect();
    ImportOptions { field_types, ..options(onto) }
}

const SPECS: [&str; 5] = ["cls:i64", "emb:f32[4]", "vec.npy:npy", "tok:u16[*]", "pos.npy:f64[*,3]"];

/// Random samples, each without some field; `caption` has no type.
fn samples(random: &mut Random, prefix: &str, count: usize) -> BTreeMap<String, Fields> {
    let mut samples = BTreeMap::new();
    for i in 0..count {
        let points = random.below(4);
        let vector = [npy::header(Element::I32, &[2, 2]), random.bytes(16)].concat();
        let points =
            [npy::header(Element::F64, &[points as u64, 3]), random.bytes(points * 24)].concat();
        let tokens = random.below(20) * 2;
        let mut fields = Fields::from([
            ("caption", b"a caption".to_vec()),
            ("cls", format!("{}", random.below(5)).into_bytes()),
            ("emb", random.bytes(16)),
            ("vec.npy", vector),
            ("tok", random.bytes(tokens)),
            ("pos.npy", points),
        ]);
        if i > 0 {
            let absent = *fields.keys().nth(random.below(fields.len())).unwrap();
            fields.remove(absent);
        }
        samples.insert(format!("{prefix}/{i:04}"), fields);
    }
    samples
}

fn shard(path: &Path, samples: &BTreeMap<String, Fields>) -> PathBuf {
    let mut archive = tar::Builder::new(fs::File::create(path).unwrap());
    for (name, fields) in samples {
        for (field, bytes) in fields {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, format!("{name}.{field}"), &bytes[..]).unwrap();
        }
    }
    archive.finish().unwrap();
    path.to_path_buf()
}

fn dataset(disks: &Disks) -> Dataset {
    let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
    image.load_names().unwrap();
    Dataset::from_image(image, ReaderOptions::default())
}

/// The type, the shape and the bytes of a file's elements.
fn elements(field: &str, file: &[u8]) -> (Element, Vec<u64>, Vec<u8>) {
    let behind =
        |file: &[u8]| file[npy::NpyHeader::parse(file).unwrap().len_bytes as usize..].to_vec();
    match field {
        "cls" => {
            let number: i64 = std::str::from_utf8(file).unwrap().parse().unwrap();
            (Element::I64, vec![], number.to_le_bytes().to_vec())
        }
        "emb" => (Element::F32, vec![4], file.to_vec()),
        "vec.npy" => (Element::I32, vec![2, 2], behind(file)),
        "tok" => (Element::U16, vec![file.len() as u64 / 2], file.to_vec()),
        "pos.npy" => {
            let points = behind(file);
            (Element::F64, vec![points.len() as u64 / 24, 3], points)
        }
        _ => (Element::U8, vec![file.len() as u64], file.to_vec()),
    }
}

/// Compares arrays and files of all live samples with what was imported.
fn check(disks: &Disks, samples: &BTreeMap<String, Fields>) {
    let dataset = dataset(disks);
    let files = Files::new(dataset.clone(), &mut ()).unwrap();
    let directory = dataset.directory().clone();
    assert_eq!(directory.num_live(), samples.len() as u64);
    for rank in 0..directory.num_live() {
        let id = directory.id_of_live(rank);
        let name = String::from_utf8(directory.name(id).unwrap().unwrap()).unwrap();
        let batch = dataset.read(Query::Ids(&[id]), ReadOnError::Raise, &mut ()).unwrap().batch;
        for (number, field) in directory.fields().iter().enumerate() {
            let field = std::str::from_utf8(field).unwrap();
            let found = batch.array(0, number).unwrap();
            let found = found.map(|array| (array.element, array.shape, array.bytes.to_vec()));
            let file = samples[&name].get(field);
            assert_eq!(found, file.map(|file| elements(field, file)), "{field} of {name}");
            let path = format!("{name}.{field}");
            let node = files.tree().resolve(path.as_bytes()).unwrap();
            let Node::File(at) = node else { panic!("{path} is a folder") };
            let empty = Vec::new();
            let expected = file.unwrap_or(&empty);
            assert_eq!(
                files.attributes(node, &mut ()).unwrap().len_bytes,
                expected.len() as u64,
                "{path}"
            );
            assert_eq!(&*files.read(at, &mut ()).unwrap(), &expected[..], "{path}");
            assert_eq!(&*files.bytes(&batch, 0, at).unwrap(), &expected[..], "{path}");
            if file.is_some() {
                let opened = dataset.open_file(id, Some(number), &mut ()).unwrap();
                let mut bytes = vec![0; opened.len_bytes() as usize + 1];
                let (front, rest) = bytes.split_at_mut(expected.len().min(3));
                let a = opened.read_at(0, front, &mut ());
                let b = opened.read_at(front.len() as u64, rest, &mut ());
                assert_eq!((a.unwrap(), b.unwrap()), (front.len(), expected.len() - front.len()));
                assert_eq!(bytes[..expected.len()], expected[..], "{path}");
            }
        }
    }
}

fn shown(disks: &Disks) -> Vec<String> {
    let directory = opened(disks);
    let shown = |(field, kind): (usize, &FieldType)| {
        format!("{}:{kind}", directory.fields()[field].escape_ascii())
    };
    let mut all: Vec<String> = directory.field_types().iter().map(shown).collect();
    all.sort_unstable();
    all
}

const SHOWN: [&str; 5] =
    ["cls:i64=text", "emb:f32[4]", "pos.npy:f64[*,3]=npy", "tok:u16[*]", "vec.npy:i32[2,2]=npy"];

#[test]
fn elements_and_files_survive_appends_deletes_purges_and_rebuilds() {
    let mut random = Random::new(11);
    let dir = tempfile::tempdir().unwrap();
    let mut all = samples(&mut random, "first", 200);
    let source = shard(&dir.path().join("first.tar"), &all);
    let disks = Disks::new(2, 8 << 20);
    let report = imported(&source, &disks, &typed(Onto::Empty, &SPECS)).unwrap();
    assert_eq!((report.field_types.len(), shown(&disks)), (5, SHOWN.map(String::from).to_vec()));
    check(&disks, &all);

    // Its types are those of what is appended, whether they are given again or not.
    for (name, specs) in [("second", &[][..]), ("third", &["vec.npy:npy", "cls:i64", "emb:f32[4]"])]
    {
        let more = samples(&mut random, name, 40);
        let source = shard(&dir.path().join(format!("{name}.tar")), &more);
        imported(&source, &disks, &typed(Onto::Append, specs)).unwrap();
        all.extend(more);
        check(&disks, &all);
    }
    let gone: Vec<String> = all.keys().step_by(3).cloned().collect();
    let gone_bytes: Vec<Vec<u8>> = gone.iter().map(|name| name.clone().into_bytes()).collect();
    import::delete_on(&disks.devices(), &gone_bytes).unwrap();
    gone.iter().for_each(|name| drop(all.remove(name)));
    check(&disks, &all);
    import::purge_on(&disks.devices(), &mut ()).unwrap();
    check(&disks, &all);
    import::rebuild_on(&disks.devices(), None, &mut ()).unwrap();
    assert_eq!(shown(&disks), SHOWN);
    check(&disks, &all);
}

#[test]
fn a_stream_and_a_resumed_import_have_the_elements_that_another_import_has() {
    let mut random = Random::new(12);
    let dir = tempfile::tempdir().unwrap();
    let all = samples(&mut random, "s", 120);
    let source = shard(&dir.path().join("s.tar"), &all);
    let packed = dir.path().join("s.tar.zst");
    fs::write(&packed, zstd::encode_all(&fs::read(&source).unwrap()[..], 1).unwrap()).unwrap();
    let disks = Disks::new(1, 8 << 20);
    let in_order =
        ImportOptions { placement: PlacementOrder::Source, ..typed(Onto::Empty, &SPECS) };
    imported(&packed, &disks, &in_order).unwrap();
    assert_eq!(shown(&disks), SHOWN);
    check(&disks, &all);

    let whole = Disks::new(1, 8 << 20);
    let parts = Disks::new(1, 8 << 20);
    imported(&source, &whole, &typed(Onto::Empty, &SPECS)).unwrap();
    let options = typed(Onto::Empty, &SPECS);
    let stopped = import_onto(
        std::slice::from_ref(&source),
        &parts.devices(),
        &options,
        &mut StopWriting(false),
    );
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
    let other = imported(&source, &parts, &typed(Onto::Resume, &SPECS[..4])).unwrap_err();
    assert!(other.to_string().contains("the source has changed"), "{other}");
    imported(&source, &parts, &typed(Onto::Resume, &SPECS)).unwrap();
    assert!(whole.contents() == parts.contents(), "other bytes after a resume");
}

#[test]
fn a_sample_above_a_mebibyte_has_its_elements_and_its_file() {
    let mut random = Random::new(13);
    let dir = tempfile::tempdir().unwrap();
    let points = 60_000;
    let file =
        [npy::header(Element::F64, &[points, 3]), random.bytes(points as usize * 24)].concat();
    let fields = Fields::from([("pos.npy", file), ("cls", b"12".to_vec())]);
    let all = BTreeMap::from([("one".to_owned(), fields)]);
    let source = shard(&dir.path().join("s.tar"), &all);
    let disks = Disks::new(1, 8 << 20);
    imported(&source, &disks, &typed(Onto::Empty, &["pos.npy:f64[*,3]", "cls:i64"])).unwrap();
    check(&disks, &all);
    let files = Files::new(dataset(&disks), &mut ()).unwrap();
    for (path, len) in [("one.pos.npy", 128 + points * 24), ("one.cls", 2)] {
        let Node::File(at) = files.tree().resolve(path.as_bytes()).unwrap() else {
            panic!("{path}")
        };
        assert_eq!(files.open_in_pieces(at, &mut ()).unwrap().unwrap().len_bytes(), len);
    }
}

/// The file of a field, its type, and why it is refused.
fn wrong_files() -> Vec<(&'static str, Vec<u8>, &'static str, String)> {
    let npy = |element, shape: &[u64], len| [npy::header(element, shape), vec![0; len]].concat();
    let with = |from: &str, to: &str| {
        let mut file = npy(Element::F32, &[2, 2], 16);
        let at = file.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        file[at..at + to.len()].copy_from_slice(to.as_bytes());
        file
    };
    let case = |field, file, spec, says: &str| (field, file, spec, says.to_owned());
    vec![
        case(
            "emb",
            vec![0; 15],
            "emb:f32[4]",
            "field emb is f32[4], which has 16 bytes, and this has 15",
        ),
        case(
            "tok",
            vec![0; 5],
            "tok:u16[*,2]",
            "field tok is u16[*,2], which has a multiple of 4 bytes, and this has 5",
        ),
        case("cls", b"dog".to_vec(), "cls:i64", "field cls is i64, and this is `dog`"),
        case(
            "cls",
            vec![b'1'; 99],
            "cls:i64",
            "field cls is i64=text, and this is a text of 99 bytes",
        ),
        case(
            "cls",
            b"1".to_vec(),
            "cls:i64=raw",
            "field cls is i64, which has 8 bytes, and this has 1",
        ),
        case("npy", b"no".to_vec(), "npy:npy", "field npy is no .npy file"),
        case("npy", vec![], "npy:npy", "field npy ends within its .npy header"),
        case(
            "npy",
            npy(Element::F32, &[2], 8)[..100].to_vec(),
            "npy:npy",
            "field npy ends within its .npy header",
        ),
        case(
            "npy",
            npy(Element::F32, &[2], 7),
            "npy:npy",
            "field npy is <f4(2,), and has 7 bytes behind its header",
        ),
        case(
            "npy",
            npy(Element::F32, &[2, 3], 24),
            "npy:f32[2]",
            "field npy is f32[2]=npy, and this is <f4(2, 3)",
        ),
        case(
            "npy",
            npy(Element::F64, &[2], 16),
            "npy:f32[2]",
            "field npy is f32[2]=npy, and this is <f8(2,)",
        ),
        case(
            "npy",
            npy(Element::F64, &[0, 3], 0),
            "npy:npy",
            "field npy is <f8(0, 3): a dimension is at least 1",
        ),
        case("npy", with("'<f4'", "'>f4'"), "npy:npy", "field npy is big-endian (>f4)"),
        case("npy", with("'<f4'", "'|O' "), "npy:f32[2,2]", "field npy holds Python objects"),
        case("npy", with("False", "True "), "npy:npy", "field npy is in Fortran order"),
    ]
}

#[test]
fn files_that_do_not_hold_what_the_type_says_are_named_and_can_be_left_out() {
    for (field, file, spec, says) in wrong_files() {
        let dir = tempfile::tempdir().unwrap();
        let good = Fields::from([("caption", b"good".to_vec())]);
        let bad = Fields::from([("caption", b"bad".to_vec()), (field, file)]);
        let all = BTreeMap::from([("a/good".to_owned(), good), ("a/wrong".to_owned(), bad)]);
        let source = shard(&dir.path().join("s.tar"), &all);
        let refused =
            imported(&source, &Disks::new(1, 8 << 20), &typed(Onto::Empty, &[spec])).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadSource);
        let report = refused.report();
        assert!(report.contains(&format!("a/wrong: {says}")), "{spec}: {report}");
        // As does a stream.
        let packed = dir.path().join("s.tar.zst");
        fs::write(&packed, zstd::encode_all(&fs::read(&source).unwrap()[..], 1).unwrap()).unwrap();
        let in_order =
            ImportOptions { placement: PlacementOrder::Source, ..typed(Onto::Empty, &[spec]) };
        if !spec.ends_with(":npy") {
            // The first sample of a stream has all fields.
            let first = Fields::from([
                ("caption", b"good".to_vec()),
                (field, all["a/wrong"][field].clone()),
            ]);
            let all = BTreeMap::from([("a/wrong".to_owned(), first)]);
            let source = shard(&dir.path().join("one.tar"), &all);
            fs::write(&packed, zstd::encode_all(&fs::read(&source).unwrap()[..], 1).unwrap())
                .unwrap();
            let report =
                imported(&packed, &Disks::new(1, 8 << 20), &in_order).unwrap_err().report();
            assert!(report.contains(&format!("a/wrong: {says}")), "{spec}: {report}");
        }
        let disks = Disks::new(1, 8 << 20);
        let skip = ImportOptions { on_error: OnError::Skip, ..typed(Onto::Empty, &[spec]) };
        let report = imported(&source, &disks, &skip).unwrap();
        assert_eq!(
            (report.samples, report.bad.len(), opened(&disks).num_live()),
            (1, 1, 1),
            "{spec}"
        );
    }
}

#[test]
fn unknown_fields_and_other_types_than_the_image_has_are_refused_with_words() {
    let mut random = Random::new(14);
    let dir = tempfile::tempdir().unwrap();
    let source = shard(&dir.path().join("s.tar"), &samples(&mut random, "a", 3));
    let more = shard(&dir.path().join("more.tar"), &samples(&mut random, "b", 3));
    let refuse = |source: &Path, disks: &Disks, onto, specs: &[&str], says: &str| {
        let refused = imported(source, disks, &typed(onto, specs)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(refused.to_string().contains(says), "{refused}");
    };
    let disks = Disks::new(1, 8 << 20);
    let known = "samples of the source have no field png: they have caption, cls, emb, pos.npy, tok, vec.npy";
    refuse(&source, &disks, Onto::Empty, &["png:u8[3]"], known);
    refuse(
        &source,
        &disks,
        Onto::Empty,
        &["emb:f32[4]", "emb:u8[16]"],
        "field emb is given two types",
    );
    let plain = dir.path().join("plain");
    fs::create_dir(&plain).unwrap();
    fs::write(plain.join("x"), b"x").unwrap();
    refuse(&plain, &disks, Onto::Empty, &["emb:f32[4]"], "they are not divided into fields");
    imported(&source, &disks, &typed(Onto::Empty, &SPECS)).unwrap();
    let says = "field emb is f64[2], and in the image it is f32[4]";
    refuse(&more, &disks, Onto::Append, &["emb:f64[2]"], says);
    let says = "field caption is u8[9], and in the image it is bytes, without a type";
    refuse(&more, &disks, Onto::Append, &["caption:u8[9]"], says);
    refuse(
        &more,
        &disks,
        Onto::Append,
        &["emb:npy"],
        "field emb is npy, and in the image it is f32[4]",
    );
    // A file of another type is bad there too, and the image stays.
    let other = Fields::from([("emb", vec![0; 12])]);
    let other = shard(&dir.path().join("other.tar"), &BTreeMap::from([("c/x".to_owned(), other)]));
    let webdataset = ImportOptions {
        from: dlfs::import::sources::SourceKind::WebDataset,
        ..typed(Onto::Append, &[])
    };
    let report = imported(&other, &disks, &webdataset).unwrap_err().report();
    assert!(
        report.contains("c/x: field emb is f32[4], which has 16 bytes, and this has 12"),
        "{report}"
    );
    assert_eq!(opened(&disks).num_live(), 3);
    // The existing samples stay when those that would replace them are bad.
    let forced = ImportOptions {
        onto: Onto::Force,
        field_types: vec!["emb:f32[4]".parse().unwrap()],
        ..webdataset
    };
    assert_eq!(imported(&other, &disks, &forced).unwrap_err().kind(), ErrorKind::BadSource);
    assert_eq!(opened(&disks).num_live(), 3);
}

/// Earlier releases ignore chunk columns from 64 on and sections without the flag, so they can read such an image;
/// but they must not write to it. Without types, no byte differs.
#[test]
fn earlier_releases_may_read_an_image_with_types_and_not_write_to_it() {
    let mut random = Random::new(15);
    let dir = tempfile::tempdir().unwrap();
    let all: BTreeMap<String, Fields> = (0..20)
        .map(|i| {
            (format!("{i}"), Fields::from([("emb", random.bytes(16)), ("txt", random.bytes(9))]))
        })
        .collect();
    let source = shard(&dir.path().join("s.tar"), &all);
    let import = |specs: &[&str]| {
        let disks = Disks::new(1, 8 << 20);
        imported(&source, &disks, &typed(Onto::Empty, specs)).unwrap();
        disks.contents().remove(0)
    };
    let plain = import(&[]);
    let with = import(&["emb:f32[4]"]);
    let copy_b = 32 << 10;
    let number = |image: &[u8], at: usize| {
        u64::from_le_bytes(image[copy_b + at..copy_b + at + 8].try_into().unwrap())
    };
    assert_eq!((number(&plain, 128), number(&with, 128)), (0, 2), "features to write");
    assert_eq!(number(&with, 48), 0, "required features");
    let first_section = |image: &[u8]| {
        let at = number(image, 88) as usize + 128;
        image[at..at + 4].to_vec()
    };
    assert_eq!((first_section(&plain), first_section(&with)), (vec![1, 0, 1, 0], vec![0; 4]));
}

fn columned(onto: Onto, types: &[&str], columns: &[&str]) -> ImportOptions {
    let field_columns = columns.iter().map(|column| column.parse().unwrap()).collect();
    ImportOptions { field_columns, ..typed(onto, types) }
}

/// Samples with a number in `cls` (typed), one in `score` and a text in `lang` (both as text), some of which lack them.
fn rated(random: &mut Random, prefix: &str, count: usize) -> BTreeMap<String, Fields> {
    let sample = |i: usize, random: &mut Random| {
        let mut fields = Fields::from([
            ("cls", format!("{}", random.below(5)).into_bytes()),
            ("score", format!(" {}\n", random.below(64) as f64 / 8.0).into_bytes()),
            ("lang", ["de", "fr", "nl"][random.below(3)].as_bytes().to_vec()),
            ("txt", b"text".to_vec()),
        ]);
        if i > 0 {
            let absent = ["cls", "score", "lang", "other"][random.below(4)];
            fields.remove(absent);
        }
        (format!("{prefix}/{i:03}"), fields)
    };
    (0..count).map(|i| sample(i, random)).collect()
}

/// Compares the columns of all live samples with their fields.
fn check_columns(disks: &Disks, samples: &BTreeMap<String, Fields>, extra: Option<i64>) {
    let directory = opened(disks);
    for rank in 0..directory.num_live() {
        let id = directory.id_of_live(rank);
        let name = String::from_utf8(directory.name(id).unwrap().unwrap()).unwrap();
        let text = |field| {
            samples[&name].get(field).map(|bytes| std::str::from_utf8(bytes).unwrap().trim())
        };
        let found = |column: &str| directory.column(column).unwrap().get(id.0);
        let class = text("cls").map_or(Value::None, |text| Value::Int(text.parse().unwrap()));
        assert_eq!(found("class"), class, "{name}");
        assert_eq!(
            found("score"),
            text("score").map_or(Value::None, |text| Value::Float(text.parse().unwrap()))
        );
        assert_eq!(found("lang"), text("lang").map_or(Value::None, Value::Text), "{name}");
        if let Some(extra) = extra {
            assert_eq!(found("extra"), Value::Int(extra), "{name}");
        }
    }
}

const COLUMNS: [&str; 3] = ["class=cls", "score:f32", "lang:str"];

#[test]
fn columns_have_the_values_of_fields_also_beside_a_table_in_streams_and_after_appends() {
    let mut random = Random::new(21);
    let dir = tempfile::tempdir().unwrap();
    let mut all = rated(&mut random, "a", 100);
    let source = shard(&dir.path().join("a.tar"), &all);
    let disks = Disks::new(1, 8 << 20);
    imported(&source, &disks, &columned(Onto::Empty, &["cls:i64"], &COLUMNS)).unwrap();
    check_columns(&disks, &all, None);
    let kinds: Vec<String> =
        opened(&disks).columns().iter().map(|c| format!("{} {}", c.name(), c.kind())).collect();
    assert_eq!(kinds, ["class int", "score f32", "lang str"]);

    let more = rated(&mut random, "b", 30);
    let source = shard(&dir.path().join("b.tar"), &more);
    let columns = ["class=cls", "score", "lang"]; // with the types that they have
    imported(&source, &disks, &columned(Onto::Append, &[], &columns)).unwrap();
    all.extend(more);
    check_columns(&disks, &all, None);

    // Beside a table, a stream, and one whose import was stopped.
    let all = rated(&mut random, "c", 80);
    let source = shard(&dir.path().join("c.tar"), &all);
    let packed = dir.path().join("c.tar.zst");
    fs::write(&packed, zstd::encode_all(&fs::read(&source).unwrap()[..], 1).unwrap()).unwrap();
    let table = dir.path().join("t.csv");
    let lines: String = all.keys().map(|name| format!("{name},7\n")).collect();
    fs::write(&table, format!("name,extra\n{lines}")).unwrap();
    let both = |onto| {
        let columns =
            Some(import::ColumnsFrom { path: table.clone(), key: None, only: Vec::new() });
        ImportOptions { columns, ..columned(onto, &["cls:i64"], &COLUMNS) }
    };
    let whole = Disks::new(1, 8 << 20);
    let parts = Disks::new(1, 8 << 20);
    let stream = Disks::new(1, 8 << 20);
    let report = imported(&source, &whole, &both(Onto::Empty)).unwrap();
    assert_eq!(report.columns.unwrap().samples, 80);
    check_columns(&whole, &all, Some(7));
    let stopped = import_onto(
        std::slice::from_ref(&source),
        &parts.devices(),
        &both(Onto::Empty),
        &mut StopWriting(false),
    );
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
    imported(&source, &parts, &both(Onto::Resume)).unwrap();
    assert!(whole.contents() == parts.contents(), "other bytes after a resume");
    let in_order = ImportOptions { placement: PlacementOrder::Source, ..both(Onto::Empty) };
    imported(&packed, &stream, &in_order).unwrap();
    check_columns(&stream, &all, Some(7));
}

#[test]
fn a_field_that_is_no_value_of_its_column_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let wide = u64::MAX.to_string().into_bytes();
    let fields = |cls: &[u8]| {
        Fields::from([
            ("cls", cls.to_vec()),
            ("big", wide.clone()),
            ("long", vec![b'x'; 3000]),
            ("emb", vec![0; 8]),
        ])
    };
    let all =
        BTreeMap::from([("a/1".to_owned(), fields(b"1")), ("a/2".to_owned(), fields(b"\xff"))]);
    let source = shard(&dir.path().join("s.tar"), &all);
    let cases: [(&[&str], &str, ErrorKind, &str); 11] = [
        (
            &[],
            "cls:int",
            ErrorKind::BadSource,
            "a/2: field cls is no text, which column `cls` takes",
        ),
        (
            &[],
            "long:str",
            ErrorKind::BadSource,
            "a/1: field long has 3000 bytes, and a column takes 2048 at most",
        ),
        (
            &[],
            "big:int",
            ErrorKind::BadSource,
            "field big is `18446744073709551615`, and column `big` is int",
        ),
        (
            &["big:u64=text"],
            "big",
            ErrorKind::BadSource,
            "big is 18446744073709551615, which a column",
        ),
        (
            &[],
            "cls",
            ErrorKind::InvalidArgument,
            "column `cls`: give its type as cls:TYPE, since the field has none",
        ),
        (&[], "png:int", ErrorKind::InvalidArgument, "no field png: they have"),
        (
            &["emb:f32[2]"],
            "emb",
            ErrorKind::InvalidArgument,
            "has a number of each sample, and field emb is f32[2]",
        ),
        (
            &["emb:f64"],
            "emb:int",
            ErrorKind::InvalidArgument,
            "column `emb` is int, and field emb is f64",
        ),
        (
            &["emb:f64"],
            "emb:str",
            ErrorKind::InvalidArgument,
            "column `emb` is str, and field emb is f64",
        ),
        (
            &["emb:i64"],
            "emb:bool",
            ErrorKind::InvalidArgument,
            "column `emb` is bool, and field emb is i64",
        ),
        (&["emb:f64"], "cls=emb", ErrorKind::InvalidArgument, "column `cls` is given twice"),
    ];
    for (types, column, kind, says) in cases {
        let columns: &[&str] =
            if says.ends_with("twice") { &["cls:int", column] } else { &[column] };
        let refused =
            imported(&source, &Disks::new(1, 8 << 20), &columned(Onto::Empty, types, columns))
                .unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
        assert!(refused.report().contains(says), "{column}: {}", refused.report());
    }
    let disks = Disks::new(1, 8 << 20);
    let skip = ImportOptions {
        on_error: OnError::Skip,
        ..columned(Onto::Empty, &["emb:f64"], &["cls:int", "emb"])
    };
    let report = imported(&source, &disks, &skip).unwrap();
    assert_eq!((report.samples, report.bad.len()), (1, 1));
    let directory = opened(&disks);
    let value = |name: &str| directory.column(name).unwrap().get(0);
    assert_eq!((value("cls"), value("emb")), (Value::Int(1), Value::Float(0.0)));
    let more =
        shard(&dir.path().join("m.tar"), &BTreeMap::from([("b/1".to_owned(), fields(b"2"))]));
    let refused = imported(&more, &disks, &columned(Onto::Append, &[], &["cls:str"])).unwrap_err();
    assert!(
        refused.to_string().contains("column `cls` is str, and in the image it is int"),
        "{refused}"
    );
}
