//! Golden images: a small image for each feature of the format on media, as the first release wrote it.
//!
//! `golden/image-*.hex` are media, namespace after namespace. The `.txt` beside each says what a reader finds there.
//! Every later release reads them, also one that writes another format. Golden files never change: a new feature gets a
//! new file, and a line of `golden/SHA256SUMS`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::images::{Image, Sample, sample};
use crate::rebuild;
use dlfs::address::Address;
use dlfs::dataset::{Dataset, Options, Query, VerifyOptions};
use dlfs::directory::commit::reserve_current;
use dlfs::directory::rebuild::select_chunks;
use dlfs::format::chunk::ChunkKind;
use dlfs::format::columns::{ColumnSpec, ColumnTable, ColumnType, Value};
use dlfs::format::fields::{put_table, record_len};
use dlfs::format::superblock::{COPY_OFFSETS, OTHER_COPY_VOID, Superblock};
use dlfs::format::{FieldTypes, Origin, OriginsBuilder, Pack, Space};
use dlfs::reader::OnError;
use dlfs::units::SampleId;

type Write = fn() -> Image;

/// The images that today's code writes byte for byte, by their files' names.
const WRITTEN: [(&str, Write); 10] = [
    ("image-2", lived_in),
    ("image-2-columns", columns),
    ("image-2-origins", origins),
    ("image-2-pieces", pieces),
    ("image-2-purged", purged),
    ("image-2-rebuilt", rebuilt),
    ("image-2-striped", striped),
    ("image-2-tight", tight),
    ("image-2-tokens", tokens),
    ("image-2-types", types),
];

#[test]
fn todays_code_writes_the_golden_images_byte_for_byte() {
    for (name, write) in WRITTEN {
        let written: String = write().namespaces.iter().map(|media| hex(media)).collect();
        settle(&format!("{name}.hex"), &written);
    }
}

/// The checksums of samples are computed by another implementation.
#[test]
fn every_golden_image_opens_verifies_and_has_the_samples_that_it_had() {
    let images = media();
    assert!(images.len() >= WRITTEN.len(), "{} images", images.len());
    for (name, namespaces) in images {
        let folder = tempfile::tempdir().unwrap();
        let put = |(number, bytes): (usize, &Vec<u8>)| {
            let path = folder.path().join(format!("{number}.dlfs"));
            fs::write(&path, bytes).unwrap();
            Address::from_path(path)
        };
        let addresses: Vec<Address> = namespaces.iter().enumerate().map(put).collect();
        let dataset = Dataset::open(&addresses, &Options::default(), &mut ()).unwrap();
        let report = dataset.image().verify(&VerifyOptions::default(), &mut |_| {}).unwrap();
        assert!(report.damages.is_empty(), "{name}: {:?}", report.damages);
        assert_eq!(report.samples, dataset.len(), "{name}");
        settle(&format!("{name}.txt"), &described(&dataset));
    }
}

#[test]
fn every_feature_of_the_format_has_a_golden_image() {
    let mut found = BTreeSet::new();
    for namespaces in media().into_values() {
        let mut image = Image::new(namespaces.len() as u16, Pack::Aligned);
        image.namespaces = namespaces;
        image.layout = image.opened().superblock().layout;
        found.extend(features(&image));
    }
    let known = known_features();
    assert!(known.len() > 25, "{known:?}");
    let without: Vec<_> = known.difference(&found).collect();
    assert!(
        without.is_empty(),
        "no golden image has {without:?}: add one to `WRITTEN`, and run this module with DLFS_BLESS=1"
    );
}

/// Users' media have what an earlier release wrote. Simulations of networks are no promise, and may change.
#[test]
fn golden_files_never_change() {
    let sums = fs::read_to_string(golden("SHA256SUMS")).unwrap();
    let listed: BTreeSet<&str> = sums.lines().filter_map(|line| line.get(66..)).collect();
    let is_promise = |name: &String| {
        !name.ends_with(".py") && !["SHA256SUMS", "netsim.txt", "sessions.txt"].contains(&&**name)
    };
    for name in names().into_iter().filter(is_promise) {
        assert!(
            listed.contains(&*name),
            "{name} is not frozen: in tests/golden, run `sha256sum {name} >> SHA256SUMS`"
        );
    }
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--quiet", "SHA256SUMS"]).current_dir(golden(""));
    let output = check.output().unwrap();
    assert!(
        output.status.success(),
        "{}a golden file has changed. What it says was promised by a release: restore it, make what is new another \
         file beside it, and give that a version or a feature of its own (docs/promises.md)",
        String::from_utf8_lossy(&output.stdout)
    );
}

/// Compares a golden file. With `DLFS_BLESS`, one that is not there yet is written.
pub fn settle(name: &str, made: &str) {
    let path = golden(name);
    if std::env::var_os("DLFS_BLESS").is_some() && !path.exists() {
        fs::write(&path, made).unwrap();
    }
    if fs::read_to_string(&path).unwrap_or_default() != made {
        let found = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
        fs::write(&found, made).unwrap();
        panic!("tests/golden/{name} says otherwise: compare it with {found}");
    }
}

pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).join(name)
}

fn names() -> Vec<String> {
    let entries = fs::read_dir(golden("")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The namespaces of every golden image.
fn media() -> BTreeMap<String, Vec<Vec<u8>>> {
    let names = names();
    let images = names.iter().filter(|name| name.starts_with("image-"));
    let images = images.filter_map(|name| name.strip_suffix(".hex"));
    images.map(|name| (name.to_owned(), image(name).namespaces)).collect()
}

/// A golden image, in memory.
pub fn image(name: &str) -> Image {
    let text = fs::read_to_string(golden(&format!("{name}.hex"))).unwrap();
    let mut image = Image::new(1, Pack::Aligned);
    image.namespaces = namespaces(&text);
    image
}

/// Rows of 16 bytes that are not all zero, with their offsets, and the length.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (row, chunk) in bytes.chunks(16).enumerate() {
        if chunk.iter().any(|byte| *byte != 0) {
            let digits: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
            text += &format!("{:06x}: {}\n", row * 16, digits.join(" "));
        }
    }
    text + &format!("{:06x}: end\n", bytes.len())
}

fn namespaces(text: &str) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut bytes = Vec::new();
    for line in text.lines() {
        let (offset, row) = line.split_once(": ").unwrap();
        bytes.resize(usize::from_str_radix(offset, 16).unwrap(), 0);
        if row == "end" {
            all.push(std::mem::take(&mut bytes));
        } else {
            let row = row.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap());
            bytes.extend(row);
        }
    }
    all
}

/// Everything that the library tells of an image, and of each of its samples.
fn described(dataset: &Dataset) -> String {
    let directory = dataset.directory();
    let mut lines = Vec::new();
    for one in dataset.image().superblocks() {
        lines.push(format!(
            "namespace {} of {}: generation {}, {:?}, {} of {} samples, optional {:#x}, to write {:#x}",
            one.namespace,
            one.layout.num_namespaces,
            one.generation,
            one.layout.pack,
            one.num_live,
            one.num_samples,
            one.optional_features,
            one.features_to_write
        ));
    }
    for part in directory.parts() {
        lines.push(format!("part {} + {}, window {}", part.first, part.count, part.window));
    }
    for class in directory.classes() {
        lines.push(format!("class {}", class.escape_ascii()));
    }
    for (number, field) in directory.fields().iter().enumerate() {
        let kind = directory.field_types().of(number).map_or("-".to_owned(), ToString::to_string);
        lines.push(format!("field {} {kind}", field.escape_ascii()));
    }
    for column in directory.columns() {
        lines.push(format!("column {} {}", column.spec().name, column.spec().kind));
    }
    let visit = &mut |Origin { generation, address, len_bytes, etag }: Origin| {
        lines.push(format!("origin of {generation}: {address} {len_bytes} bytes {etag:?}"));
    };
    dataset.image().origins(visit).unwrap();
    let ids: Vec<SampleId> = (0..dataset.len()).map(|rank| directory.id_of_live(rank)).collect();
    let batch = dataset.read(Query::Ids(&ids), OnError::Raise, &mut ()).unwrap().batch;
    for sample in batch.iter() {
        let name = dataset.name(sample.id, &mut ()).unwrap();
        assert_eq!(dataset.lookup(&name, &mut ()).unwrap(), sample.id);
        let values: Vec<Value<'_>> =
            directory.columns().iter().map(|column| column.get(sample.id.0)).collect();
        lines.push(format!(
            "sample {} {} {:?} {} bytes {:08x} {values:?}",
            sample.id,
            name.escape_ascii(),
            sample.label,
            sample.bytes.len(),
            crc32c::crc32c(sample.bytes)
        ));
    }
    lines.join("\n") + "\n"
}

/// A kind of thing that an image may have, and its number.
type Feature = (&'static str, u64);

/// The features of an image, from its bytes.
fn features(image: &Image) -> BTreeSet<Feature> {
    let superblock = *image.opened().superblock();
    let mut found = BTreeSet::from([
        ("pack", u64::from(superblock.layout.pack == Pack::Tight)),
        ("several namespaces", u64::from(superblock.layout.num_namespaces > 1)),
    ]);
    let bits = |name, bits: u64| {
        (0..64_u64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| (name, bit))
    };
    found.extend(bits("optional feature", superblock.optional_features));
    found.extend(bits("feature to write", superblock.features_to_write));
    let place = superblock.snapshot;
    let head = image.read(place.namespace, place.offset_bytes, 4096);
    let sections = number(&head[10..12]) as usize;
    found.extend((0..sections).map(|at| ("section", number(&head[128 + 32 * at..][..2]))));
    for head in image.heads().iter().filter(|head| head.kind == ChunkKind::Samples) {
        let offset = image.layout.offset_of(head.cell).unwrap();
        let mut table = &image.read(head.namespace, offset, head.header_len.into())[128..];
        for _ in 0..head.num_fields {
            table = &table[2 + number(&table[..2]) as usize..];
        }
        while !table.is_empty() {
            found.insert(("column of a chunk", leb128(&mut table)));
            let len = leb128(&mut table) as usize;
            table = &table[len..];
        }
    }
    found
}

/// The features that today's code knows: bits that it accepts, and kinds that its sources number.
fn known_features() -> BTreeSet<Feature> {
    let plain = *lived_in().opened().superblock();
    let mut known = BTreeSet::from([("pack", 0), ("pack", 1)]);
    known.extend([("several namespaces", 0), ("several namespaces", 1)]);
    known.insert(("optional feature", u64::from(OTHER_COPY_VOID.trailing_zeros())));
    let accepted = |bit: &u64| {
        let superblock = Superblock { features_to_write: 1_u64 << bit, ..plain };
        superblock.check_writable().is_ok()
    };
    known.extend((0..64).filter(accepted).map(|bit| ("feature to write", bit)));
    for (feature, file, begin, end) in [
        ("column of a chunk", "table.rs", "    pub(crate) const ", ";"),
        ("section", "snapshot.rs", "    ", ","),
    ] {
        let path = format!("{}/src/format/format/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix(begin)?.strip_suffix(end));
        let numbers = lines.filter_map(|line| line.split_once(" = ")?.1.parse().ok());
        known.extend(numbers.map(|number| (feature, number)));
    }
    known
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn leb128(from: &mut &[u8]) -> u64 {
    let len = from.iter().position(|byte| *byte < 0x80).unwrap() + 1;
    let (bytes, rest) = from.split_at(len);
    *from = rest;
    bytes.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
}

pub fn source() -> Vec<Sample> {
    vec![
        sample("cat/1.jpg", Some(0), 20),
        sample("cat/2.jpg", Some(0), 0),
        mostly_zero("dog/1.jpg", Some(1), 5000),
        sample("dog/with\nnewline", None, 3),
    ]
}

/// A long sample, mostly zeroes, so that it takes few rows of hexadecimal digits.
fn mostly_zero(name: &str, label: Option<i64>, len: usize) -> Sample {
    let mut long = sample(name, label, 16);
    long.record.resize(len, 0);
    long
}

/// A sample of several fields, each mostly zeroes.
fn of_fields(name: &str, lens: &[Option<u64>]) -> Sample {
    let mut several = sample(name, None, 1);
    several.record = vec![0; record_len(lens).unwrap() as usize];
    for (number, range) in (1..).zip(put_table(lens, &mut several.record)) {
        several.record[range].iter_mut().take(4).for_each(|byte| *byte = number);
    }
    several
}

/// Imported in shuffled order, with one sample deleted and two appended.
pub fn lived_in() -> Image {
    let mut image = Image::new(1, Pack::Aligned);
    image.add(&source(), 42, 4, &[]);
    image.delete(&[1]);
    let more = [mostly_zero("ant", Some(-7), 4096), sample("bee", Some(300), 1)];
    image.add(&more, 0, 0, &[]);
    image
}

/// One value of each type, and none of each; appended to without values.
pub fn columns() -> Image {
    let kinds = [
        ("int", ColumnType::Int),
        ("float", ColumnType::Float),
        ("f32", ColumnType::Float32),
        ("bool", ColumnType::Bool),
        ("str", ColumnType::Text),
    ];
    let specs = kinds.map(|(name, kind)| ColumnSpec { name: name.to_owned(), kind });
    let mut values = ColumnTable::new(&specs);
    for (int, float, bit, text) in [(-300, 0.1, true, "zwei"), (7, -1e300, false, "eins")] {
        values.push(|column| match column.kind {
            ColumnType::Int => Value::Int(int),
            ColumnType::Float | ColumnType::Float32 => Value::Float(float),
            ColumnType::Bool => Value::Bool(bit),
            ColumnType::Text => Value::Text(text),
        });
    }
    values.push(|_| Value::None);
    let mut image = Image::new(1, Pack::Aligned);
    image.values = values;
    image.add(&source()[..3], 42, 3, &[]);
    image.values = ColumnTable::default();
    image.add(&[sample("bee", None, 1)], 0, 0, &[]);
    image
}

/// Imported from objects of a store, and appended to from others.
fn origins() -> Image {
    let mut image = Image::new(1, Pack::Aligned);
    let md5 = "\"0123456789abcdef0123456789abcdef\"";
    image.origins.push("s3://bucket/train/000.tar", 10_240, Some(md5));
    image.origins.push("s3://bucket/train/001.tar", 300, Some("\"an etag-2\""));
    image.add(&source()[..2], 1, 2, &[]);
    image.origins = OriginsBuilder::default();
    image.origins.push("https://example.org/more.tar", 1 << 33, None);
    image.add(&source()[2..], 2, 2, &[]);
    image
}

/// The chunk of this sample has checksums of its pieces.
pub fn pieces() -> Image {
    let mut image = Image::new(1, Pack::Aligned);
    image.add(&[mostly_zero("large", None, (1 << 20) + 5)], 0, 0, &[]);
    image
}

/// A purge left only the places of two samples.
fn purged() -> Image {
    let mut image = Image::new(1, Pack::Aligned);
    let source: Vec<Sample> =
        (0..8).map(|number| sample(&format!("{number}"), Some(number), 9)).collect();
    image.add(&source, 6, 8, &[]);
    image.delete(&[2, 5]);
    rebuild::purge(&mut image, &source);
    image
}

/// The header of a chunk was lost, and a rebuild committed the same generation again, without its other copy.
fn rebuilt() -> Image {
    let mut image = Image::new(1, Pack::Aligned);
    let source: Vec<Sample> =
        (0..6).map(|number| mostly_zero(&format!("{number}"), Some(number), 30_000)).collect();
    image.add(&source, 3, 6, &[]);
    image.delete(&[4]);
    let (directory, superblock) = image.open();
    let lost = image.heads()[1];
    assert_eq!(lost.kind, ChunkKind::Samples);
    image.write(0, image.layout.offset_of(lost.cell).unwrap(), &[0; 4096]);
    let mut space = Space::new(&image.layout, &[u64::MAX]);
    reserve_current(&mut space, &directory, &superblock, &[]);
    let heads = image.heads();
    let (_, record) = rebuild::record(&image, &heads).unwrap();
    let chunks = select_chunks(None, &heads, Some(&record), rebuild::MOST_SLOTS).unwrap();
    assert!(chunks.lost_samples > 0);
    let directory = rebuild::carry_out(&image, &chunks, &heads, None);
    image.commit(directory, &mut space);
    let superblock = *image.opened().superblock();
    let superblock = Superblock { optional_features: OTHER_COPY_VOID, ..superblock };
    image.write(0, COPY_OFFSETS[0], &superblock.encode());
    image.write(0, COPY_OFFSETS[1], &[0; 4096]);
    image
}

/// Three namespaces, and several fields without types, one of which a sample lacks.
fn striped() -> Image {
    let mut image = Image::new(3, Pack::Aligned);
    let source: Vec<Sample> = (0..9)
        .map(|number| {
            let text = (number % 4 > 0).then_some(number);
            of_fields(&format!("{number}"), &[Some(20_000), text, Some(1)])
        })
        .collect();
    image.add(&source, 9, 9, &["jpg", "txt", "cls"]);
    image
}

/// Packed tightly in several chunks, with classes, and with names that are shorter in another order than that of ids.
pub fn tight() -> Image {
    let mut image = Image::new(1, Pack::Tight);
    image.classes = vec![b"cat".to_vec(), b"dog".to_vec()];
    let source: Vec<Sample> = (0..24)
        .map(|number| {
            let folder = ["left", "middle", "right"][number % 3];
            let name = format!("{folder}/of/a/long/way/{number:02}");
            mostly_zero(&name, Some(number as i64 % 2), 9000 + number)
        })
        .collect();
    image.add(&source, 5, 24, &[]);
    image
}

/// Documents of tokens, by a tokenizer that the type of their field names.
fn tokens() -> Image {
    let mut image = Image::new(1, Pack::Aligned);
    let kind = format!("u16[*];vocabulary=50257;tokenizer={}", "0123456789abcdef".repeat(4));
    image.field_types = FieldTypes::new(vec![Some(kind.parse().unwrap())]);
    let source: Vec<Sample> = (0..12_u16)
        .map(|number| {
            let mut document = sample(&format!("{number:02}"), None, 0);
            let tokens = (0..number * 5 % 13).flat_map(|at| (number * 100 + at).to_le_bytes());
            document.record = tokens.collect();
            document
        })
        .collect();
    image.add(&source, 8, 12, &["tokens"]);
    image
}

/// The fields have types, but for the last one.
pub fn types() -> Image {
    let mut image = Image::new(1, Pack::Aligned);
    let types = ["u16[*,3]", "f32[2]=npy", "i64=text"].map(|kind| Some(kind.parse().unwrap()));
    image.field_types = FieldTypes::new([&types[..], &[None]].concat());
    let mut typed = sample("ant", None, 1);
    let lens = [Some(12), None, Some(8), Some(3)];
    typed.record = vec![0x5a; record_len(&lens).unwrap() as usize];
    put_table(&lens, &mut typed.record);
    image.add(&[typed], 0, 0, &["points", "npy", "cls", "txt"]);
    image
}
