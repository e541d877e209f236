//! Documents of tokens: Megatron's, and those of raw and `.npy` files. Every sample has the tokens of its document, and
//! a damaged file is an error that says where.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::import_support::disk::Disks;
use crate::import_support::{Random, contents, options};
use crate::support::disk::SmallDisk;
use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::folders::{FolderOptions, Links};
use dlfs::format::field_type::Element;
use dlfs::import::sources::SourceKind;
use dlfs::import::{ImportOptions, ImportReport, Onto, RowOptions, import_onto};
use dlfs::qpair::{self, ConnectOptions, Device};

/// Samples by name.
type Samples = BTreeMap<String, Vec<u8>>;

/// The tables of an index of Megatron.
#[derive(Clone)]
struct Index {
    code: u8,
    lens: Vec<i32>,
    offsets: Vec<i64>,
    ends: Vec<i64>,
}

impl Index {
    /// Documents of sequences of so many tokens, each of `each` bytes.
    fn of(code: u8, each: i64, documents: &[&[i32]]) -> Index {
        let lens = documents.concat();
        let mut at = 0;
        let offset = |len: &i32| {
            at += each * i64::from(*len);
            at - each * i64::from(*len)
        };
        let offsets = lens.iter().map(offset).collect();
        let mut ends = vec![0];
        documents.iter().for_each(|one| ends.push(ends[ends.len() - 1] + one.len() as i64));
        Index { code, lens, offsets, ends }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"MMIDIDX\0\0".to_vec();
        bytes.extend(1u64.to_le_bytes());
        bytes.push(self.code);
        bytes.extend((self.lens.len() as u64).to_le_bytes());
        bytes.extend((self.ends.len() as u64).to_le_bytes());
        bytes.extend(self.lens.iter().flat_map(|len| len.to_le_bytes()));
        bytes.extend(self.offsets.iter().flat_map(|offset| offset.to_le_bytes()));
        bytes.extend(self.ends.iter().flat_map(|end| end.to_le_bytes()));
        bytes
    }
}

/// Four documents of u16: one of two sequences, one of none, and one whose only sequence is empty.
const DOCUMENTS: &[&[i32]] = &[&[3], &[2, 4], &[], &[0], &[5]];

fn u16s(tokens: impl IntoIterator<Item = u16>) -> Vec<u8> {
    tokens.into_iter().flat_map(u16::to_le_bytes).collect()
}

fn put(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// Writes [`DOCUMENTS`] as `PREFIX.idx` and `PREFIX.bin`; returns the prefix and the samples.
fn corpus(dir: &Path, prefix: &str) -> (PathBuf, Samples) {
    put(dir, &format!("{prefix}.idx"), &Index::of(8, 2, DOCUMENTS).bytes());
    put(dir, &format!("{prefix}.bin"), &u16s(100..114));
    let samples = [100..103, 103..109, 109..109, 109..109, 109..114].into_iter().enumerate();
    let samples = samples.map(|(at, tokens)| (format!("{prefix}/{at}"), u16s(tokens)));
    (dir.join(prefix), samples.collect())
}

fn import(sources: &[PathBuf], options: &ImportOptions) -> Result<(ImportReport, Samples), String> {
    let disks = Disks::new(1, 32 << 20);
    let report =
        import_onto(sources, &disks.devices(), options, &mut ()).map_err(|error| error.report())?;
    let name = |name| String::from_utf8(name).unwrap();
    let samples = contents(&disks.devices()).unwrap();
    Ok((report, samples.into_iter().map(|(own, bytes)| (name(own), bytes)).collect()))
}

fn types(report: &ImportReport) -> Vec<String> {
    let shown = |(name, kind): &(Vec<u8>, _)| format!("{} {kind}", name.escape_ascii());
    report.field_types.iter().map(shown).collect()
}

fn with_type(kind: &str) -> ImportOptions {
    ImportOptions { field_types: vec![kind.parse().unwrap()], ..options(Onto::Empty) }
}

fn ending(tokens: Option<Element>, end: u32) -> ImportOptions {
    let rows = RowOptions { tokens, end_of_document: Some(end), ..RowOptions::default() };
    ImportOptions { rows, ..options(Onto::Empty) }
}

/// Checks that an import fails with all these words.
fn refused(source: &Path, options: &ImportOptions, words: &[&str]) {
    let told = import(&[source.to_path_buf()], options).unwrap_err();
    for word in words {
        assert!(told.contains(word), "{word:?} is not in {told}");
    }
}

#[test]
fn documents_of_megatron_come_by_index_tokens_prefix_or_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (prefix, expected) = corpus(dir.path(), "c4.text_document");
    let index = dir.path().join("c4.text_document.idx");
    let tokens = dir.path().join("c4.text_document.bin");
    let folder = dir.path().to_path_buf();
    let from_megatron = ImportOptions { from: SourceKind::Megatron, ..options(Onto::Empty) };
    for sources in
        [vec![index.clone()], vec![tokens.clone()], vec![prefix], vec![folder], vec![tokens, index]]
    {
        for options in [&options(Onto::Empty), &from_megatron] {
            let (report, samples) = import(&sources, options).unwrap();
            assert_eq!(report.kind, SourceKind::Megatron, "{sources:?}");
            assert_eq!(samples, expected, "{sources:?}");
            assert_eq!(types(&report), ["tok u16[*]"]);
        }
    }
}

/// A corpus of documents of up to 2,000 tokens, some 2 MB, and its samples.
fn large_corpus(dir: &Path) -> (PathBuf, Samples) {
    let mut random = Random::new(11);
    println!("seed 11");
    let lens: Vec<i32> = (0..1000).map(|_| random.below(2000) as i32).collect();
    let documents: Vec<[i32; 1]> = lens.iter().map(|len| [*len]).collect();
    let documents: Vec<&[i32]> = documents.iter().map(|one| &one[..]).collect();
    put(dir, "c.idx", &Index::of(8, 2, &documents).bytes());
    let tokens = (0..2 * lens.iter().sum::<i32>()).map(|_| random.below(256) as u8);
    let tokens: Vec<u8> = tokens.collect();
    put(dir, "c.bin", &tokens);
    let mut at = 0;
    let samples = lens.iter().enumerate().map(|(id, len)| {
        let bytes = tokens[at..at + 2 * *len as usize].to_vec();
        at += bytes.len();
        (format!("c/{id}"), bytes)
    });
    let samples = samples.collect();
    (dir.join("c"), samples)
}

fn named(devices: &[Arc<dyn Device>]) -> Samples {
    let samples = contents(devices).unwrap().into_iter();
    samples.map(|(name, bytes)| (String::from_utf8(name).unwrap(), bytes)).collect()
}

#[test]
fn a_device_that_is_too_small_for_documents_says_so_and_a_larger_one_takes_them() {
    let dir = tempfile::tempdir().unwrap();
    let (prefix, expected) = large_corpus(dir.path());
    let small = Disks::new(1, 1 << 20);
    let sources = [prefix];
    let error = import_onto(&sources, &small.devices(), &options(Onto::Empty), &mut ());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NoSpace);
    let large = Disks::new(1, 8 << 20);
    import_onto(&sources, &large.devices(), &options(Onto::Empty), &mut ()).unwrap();
    assert_eq!(named(&large.devices()), expected);
}

#[test]
fn a_disk_that_fills_up_under_documents_loses_nothing_and_room_lets_the_import_go_on() {
    let Some(disk) = SmallDisk::new(8 << 20) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (prefix, mut expected) = large_corpus(dir.path());
    let (first, first_samples) = corpus(dir.path(), "a");
    let image = [Address::from_path(disk.path().join("image"))];
    let connect = ConnectOptions::default();
    let import = |source: &PathBuf, onto| {
        dlfs::import::import(
            std::slice::from_ref(source),
            &image,
            &options(onto),
            &connect,
            &mut (),
        )
        .map(drop)
    };
    let samples = || named(&[qpair::open(&image[0], &connect).unwrap()]);
    // A first import, and one that appends, each on a disk that has 500 KiB left.
    for (source, onto, before) in
        [(&prefix, Onto::Empty, None), (&prefix, Onto::Append, Some(&first_samples))]
    {
        if before.is_some() {
            import(&first, Onto::Empty).unwrap();
        }
        let ballast = disk.path().join("ballast");
        let left = rustix::fs::statvfs(disk.path()).unwrap();
        let len = (left.f_bavail * left.f_frsize).saturating_sub(500 << 10);
        fs::write(&ballast, vec![1; len as usize]).unwrap();
        let error = import(source, onto).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{}", error.report());
        before.into_iter().for_each(|before| assert_eq!(samples(), *before));
        fs::remove_file(&ballast).unwrap();
        import(source, Onto::Resume).unwrap();
        expected.extend(before.into_iter().flatten().map(|(name, it)| (name.clone(), it.clone())));
        assert_eq!(samples(), expected);
        fs::remove_file(disk.path().join("image")).unwrap();
    }
}

#[test]
fn a_prefix_of_megatron_need_not_be_utf_8() {
    let dir = tempfile::tempdir().unwrap();
    let (prefix, expected) = corpus(dir.path(), "a");
    let other = dir.path().join(OsStr::from_bytes(b"a\xff.text"));
    for extension in ["idx", "bin"] {
        let own = [other.as_os_str(), OsStr::new("."), OsStr::new(extension)].into_iter();
        fs::rename(prefix.with_extension(extension), own.collect::<OsString>()).unwrap();
    }
    let disks = Disks::new(1, 32 << 20);
    import_onto(&[other], &disks.devices(), &options(Onto::Empty), &mut ()).unwrap();
    let samples = contents(&disks.devices()).unwrap();
    let number = |name: &String| name.strip_prefix("a/").unwrap().to_owned();
    let expected = expected
        .iter()
        .map(|(name, bytes)| ([b"a\xff.text/", number(name).as_bytes()].concat(), bytes.clone()));
    assert_eq!(samples, expected.collect());
}

#[test]
fn modes_of_sequences_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let (prefix, expected) = corpus(dir.path(), "a");
    let mut index = Index::of(8, 2, DOCUMENTS).bytes();
    index.extend([0, 1, 0, 1, 0]);
    put(dir.path(), "a.idx", &index);
    assert_eq!(import(&[prefix], &options(Onto::Empty)).unwrap().1, expected);
}

#[test]
fn several_prefixes_get_a_type_that_holds_the_tokens_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let (a, mut expected) = corpus(dir.path(), "a");
    let i32s =
        |tokens: &[i32]| tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>();
    put(dir.path(), "b.idx", &Index::of(4, 4, &[&[2], &[1]]).bytes());
    put(dir.path(), "b.bin", &i32s(&[100_000, 2, 70_000]));
    let (report, samples) = import(&[a, dir.path().join("b")], &options(Onto::Empty)).unwrap();
    for bytes in expected.values_mut() {
        let tokens = bytes.chunks(2).map(|token| i32::from(token[0]) + 256 * i32::from(token[1]));
        *bytes = i32s(&tokens.collect::<Vec<_>>());
    }
    expected.insert("b/0".to_owned(), i32s(&[100_000, 2]));
    expected.insert("b/1".to_owned(), i32s(&[70_000]));
    assert_eq!(samples, expected);
    assert_eq!(types(&report), ["tok i32[*]"]);
}

#[test]
fn tokens_of_other_types_are_refused_or_converted_as_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let index = dir.path().join("a.idx");
    let write = |code: u8, tokens: &[u8], each: i64| {
        put(dir.path(), "a.idx", &Index::of(code, each, &[&[2]]).bytes());
        put(dir.path(), "a.bin", tokens);
    };
    write(1, &[7, 255], 1);
    let (report, samples) = import(std::slice::from_ref(&index), &options(Onto::Empty)).unwrap();
    assert_eq!((types(&report), &samples["a/0"]), (vec!["tok u8[*]".to_owned()], &vec![7, 255]));
    write(5, &[7i64, 80_000].map(i64::to_le_bytes).concat(), 8);
    refused(&index, &options(Onto::Empty), &["a.idx", "i64", "--field-type tok:u32[*]"]);
    let (_, samples) = import(std::slice::from_ref(&index), &with_type("tok:u32[*]")).unwrap();
    assert_eq!(samples["a/0"], [7u32, 80_000].map(u32::to_le_bytes).concat());
    refused(&index, &with_type("tok:u16[*]"), &["a/0", "u16", "80000"]);
    write(7, &[0; 8], 4);
    refused(&index, &with_type("tok:u32[*]"), &["a.idx", "f32"]);
    write(9, &[0; 8], 4);
    refused(&index, &options(Onto::Empty), &["byte 17", "number 9"]);
}

#[test]
fn a_damaged_index_is_refused_with_the_byte_where_it_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let (prefix, _) = corpus(dir.path(), "a");
    let good = Index::of(8, 2, DOCUMENTS);
    let try_bytes = |index: &[u8], words: &[&str]| {
        put(dir.path(), "a.idx", index);
        let from = ImportOptions { from: SourceKind::Megatron, ..options(Onto::Empty) };
        refused(&prefix.with_extension("idx"), &from, &[&["a.idx"], words].concat());
    };
    let bytes = good.bytes();
    try_bytes(&bytes[..33], &["33 bytes"]);
    try_bytes(&bytes[..bytes.len() - 1], &["5 sequences", "6 bounds"]);
    for (at, words) in [
        (0, "MMIDIDX"),
        (9, "byte 9"),
        (17, "byte 17"),
        (18, "bytes 18 and 26"),
        (26, "bytes 18 and 26"),
    ] {
        let mut bytes = bytes.clone();
        bytes[at..at + if at == 17 { 1 } else { 8 }].fill(0xff);
        try_bytes(&bytes, &[words]);
    }
    type Change = (fn(&mut Index), &'static [&'static str]);
    let changes: &[Change] = &[
        (
            |index| index.lens[1] = i32::MAX,
            &["byte 38: sequence 1 has 2147483647 tokens", "0 to 11"],
        ),
        (|index| index.lens[1] = -1, &["byte 38: sequence 1 has -1 tokens"]),
        (|index| index.lens[1] = 1, &["byte 70: sequence 2 begins at byte 10", "8 was expected"]),
        (
            |index| index.lens[4] = i32::MAX,
            &["end at byte 4294967312", "a.bin, which has 28 bytes"],
        ),
        (|index| index.offsets[1] = i64::MAX, &["byte 62: sequence 1", "6 was expected"]),
        (|index| index.offsets[1] = -1, &["byte 62: sequence 1", "6 was expected"]),
        (|index| index.offsets[1] = 4, &["byte 62: sequence 1 begins at byte 4", "6 was expected"]),
        (|index| index.offsets[4] = i64::MAX, &["which has 28 bytes"]),
        (|index| index.ends[0] = 1, &["byte 94: document 0 begins with sequence 1"]),
        (
            |index| index.ends[1] = i64::MAX,
            &["byte 102: the document ends before sequence 9223372036854775807"],
        ),
        (|index| index.ends[2] = 0, &["byte 110: the document ends before sequence 0", "1 to 5"]),
        (
            |index| index.ends[5] = i64::MAX,
            &["byte 134: the documents end before", "5 was expected"],
        ),
    ];
    for (change, words) in changes {
        let mut index = good.clone();
        change(&mut index);
        try_bytes(&index.bytes(), words);
    }
    try_bytes(&Index { ends: Vec::new(), ..good.clone() }.bytes(), &["5 was expected"]);
    put(dir.path(), "a.idx", b"MMIDI");
    refused(&prefix, &options(Onto::Empty), &["no such source", "PREFIX.idx"]);
    put(dir.path(), "a.idx", &good.bytes());
    put(dir.path(), "a.bin", &u16s(100..113));
    refused(&prefix, &options(Onto::Empty), &["end at byte 28", "a.bin, which has 26 bytes"]);
    fs::remove_file(dir.path().join("a.bin")).unwrap();
    refused(&prefix, &options(Onto::Empty), &["a.bin"]);
    fs::create_dir(dir.path().join("elsewhere")).unwrap();
    put(dir.path(), "elsewhere/a.bin", &u16s(100..114));
    symlink("elsewhere/a.bin", dir.path().join("a.bin")).unwrap();
    import(std::slice::from_ref(&prefix), &options(Onto::Empty)).unwrap();
    let folders = FolderOptions { links: Links::Refuse, ..FolderOptions::default() };
    let no_links = ImportOptions { folders, ..options(Onto::Empty) };
    refused(&prefix, &no_links, &["a.idx", "it names a.bin, which is a link"]);
}

#[test]
fn no_damage_of_one_byte_makes_more_than_the_files_hold() {
    let dir = tempfile::tempdir().unwrap();
    let (prefix, expected) = corpus(dir.path(), "a");
    let good = Index::of(8, 2, DOCUMENTS).bytes();
    let total: usize = expected.values().map(Vec::len).sum();
    let mut random = Random::new(29);
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << random.below(8);
        let index = put(dir.path(), "a.idx", &bytes);
        let from = ImportOptions { from: SourceKind::Megatron, ..options(Onto::Empty) };
        if let Ok((_, samples)) = import(&[index], &from) {
            // Bounds of documents may have moved, and no token was lost or repeated.
            let len: usize = samples.values().map(Vec::len).sum();
            let each = if at == 17 { 2 } else { 1 };
            assert!(len <= total * each, "byte {at} of {}: {len} bytes", prefix.display());
        }
    }
}

#[test]
fn an_end_of_document_cuts_raw_and_npy_files() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = u16s([1, 2, 0, 0, 3, 0, 4, 5]);
    let raw = put(dir.path(), "a.bin", &tokens);
    let header = b"{'descr': '<u2', 'fortran_order': False, 'shape': (8,), }\n";
    let npy =
        [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header, &tokens].concat();
    let npy = put(dir.path(), "b.npy", &npy);
    let documents = [u16s([1, 2]), u16s([3]), u16s([4, 5])];
    let all = [("a.bin", &raw, Some(Element::U16)), ("b.npy", &npy, None)];
    for (name, path, element) in all {
        let (report, samples) = import(std::slice::from_ref(path), &ending(element, 0)).unwrap();
        let expected =
            documents.iter().enumerate().map(|(at, one)| (format!("{name}/{at}"), one.clone()));
        assert_eq!(samples, expected.collect());
        assert_eq!(
            (report.kind, types(&report)),
            (SourceKind::Tokens, vec!["tok u16[*]".to_owned()])
        );
    }
    let (_, samples) = import(&[dir.path().to_path_buf()], &ending(Some(Element::U16), 0)).unwrap();
    assert_eq!(samples.len(), 6);
    // Another type, another end: a document is the whole file.
    let (_, samples) = import(std::slice::from_ref(&raw), &ending(Some(Element::U8), 9)).unwrap();
    assert_eq!(samples, [("a.bin/0".to_owned(), tokens)].into());
    refused(&raw, &ending(None, 0), &["a.bin", "--tokens TYPE"]);
    refused(&raw, &ending(Some(Element::U8), 256), &["256", "u8"]);
    refused(&raw, &ending(Some(Element::F32), 0), &["a.bin", "f32"]);
    refused(&npy, &ending(Some(Element::I32), 0), &["b.npy", "u16", "--tokens"]);
    let from = ImportOptions { from: SourceKind::Tokens, ..options(Onto::Empty) };
    refused(&raw, &from, &["--end-of-document"]);
    let from = ImportOptions { from: SourceKind::Megatron, ..ending(None, 0) };
    let (prefix, _) = corpus(dir.path(), "m");
    refused(&prefix, &from, &["megatron", "leave out --tokens and --end-of-document"]);
}

#[test]
fn damaged_files_of_tokens_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let odd = put(dir.path(), "odd.bin", &[1, 2, 3]);
    refused(&odd, &ending(Some(Element::U16), 0), &["odd.bin", "3 bytes", "u16 takes 2"]);
    let npy = |header: &str, tokens: &[u8]| {
        let header = format!("{{'fortran_order': False, {header}}}\n");
        let len = (header.len() as u16).to_le_bytes();
        let bytes = [b"\x93NUMPY\x01\0", &len[..], header.as_bytes(), tokens].concat();
        put(dir.path(), "a.npy", &bytes)
    };
    let end = ending(None, 0);
    refused(&npy("'descr': '<u2', 'shape': (3,)", &[0; 4]), &end, &["a.npy", "(3,)"]);
    refused(
        &npy("'descr': '<u2', 'shape': (9223372036854775807,)", &[0; 4]),
        &end,
        &["a.npy", "bytes"],
    );
    refused(&npy("'descr': '<u2', 'shape': (2, 1)", &[0; 4]), &end, &["one dimension"]);
    refused(&npy("'descr': '>u2', 'shape': (2,)", &[0; 4]), &end, &["big-endian"]);
    refused(&npy("'descr': '<f4', 'shape': (1,)", &[0; 4]), &end, &["f32"]);
    let path = npy("'descr': '<u2', 'shape': (2,)", &[0; 4]);
    let bytes = fs::read(&path).unwrap();
    refused(&put(dir.path(), "a.npy", &bytes[..20]), &end, &["a.npy", "header"]);
    refused(&put(dir.path(), "empty.bin", b""), &ending(Some(Element::U16), 0), &["no sample"]);
}

#[test]
fn compressed_files_and_pipes_of_tokens_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let end = ending(Some(Element::U16), 0);
    let packed = put(dir.path(), "a.bin.gz", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3]);
    refused(&packed, &end, &["a.bin.gz", "compressed with gzip", "decompress it"]);
    // The first two bytes of gzip alone are tokens.
    let tokens = u16s([0x8b1f, 7]);
    let path = put(dir.path(), "b.bin", &tokens);
    let (_, samples) = import(&[path], &end).unwrap();
    assert_eq!(samples, [("b.bin/0".to_owned(), tokens)].into());
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    refused(&pipe, &end, &["pipe", "write them to a file first"]);
}

#[test]
fn the_header_of_llm_c_is_no_document() {
    let dir = tempfile::tempdir().unwrap();
    let file = |stated: u32, tokens: &[u8]| {
        let mut bytes = [20_240_520, 1, stated].map(u32::to_le_bytes).concat();
        bytes.resize(1024, 0);
        bytes.extend(tokens);
        put(dir.path(), "a.bin", &bytes)
    };
    let import = |path| import(&[path], &ending(Some(Element::U16), 9)).unwrap().1;
    let samples = import(file(4, &u16s([1, 9, 2, 3])));
    let expected = [("a.bin/0".to_owned(), u16s([1])), ("a.bin/1".to_owned(), u16s([2, 3]))];
    assert_eq!(samples, expected.into());
    // Another number of tokens: it is no header.
    let samples = import(file(5, &u16s([1, 9, 2, 3])));
    assert_eq!(samples["a.bin/0"].len(), 1024 + 2);
}

#[test]
fn types_that_only_i64_holds_are_refused_unless_a_type_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let npy = |name: &str, descr: &str| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,), }}\n");
        let len = (header.len() as u16).to_le_bytes();
        let tokens = [1u32, 2].map(u32::to_le_bytes).concat();
        let bytes = [b"\x93NUMPY\x01\0", &len[..], header.as_bytes(), &tokens].concat();
        put(dir.path(), name, &bytes)
    };
    let sources = [npy("a.npy", "<u4"), npy("b.npy", "<i4")];
    let told = import(&sources, &ending(None, 0)).unwrap_err();
    assert!(told.contains("these are i64") && told.contains("--field-type"), "{told}");
    let typed = ImportOptions { rows: ending(None, 0).rows, ..with_type("tok:u32[*]") };
    assert_eq!(import(&sources, &typed).unwrap().1.len(), 2);
}

#[test]
fn documents_longer_than_a_block_are_whole_wherever_they_end() {
    let dir = tempfile::tempdir().unwrap();
    const BLOCK: usize = 1 << 19; // tokens of 2 bytes that are read at once
    let lens = [BLOCK - 1, 1, BLOCK, 2 * BLOCK + 3, 5];
    let mut random = Random::new(31);
    let mut document = |len: &usize| u16s((0..*len).map(|_| 1 + random.below(60_000) as u16));
    let documents: Vec<Vec<u8>> = lens.iter().map(&mut document).collect();
    let path = put(dir.path(), "a.bin", &documents.join(&[0, 0][..]));
    let (_, samples) = import(&[path], &ending(Some(Element::U16), 0)).unwrap();
    for (at, document) in documents.iter().enumerate() {
        assert!(samples[&format!("a.bin/{at}")] == *document, "document {at}");
    }
    assert_eq!(samples.len(), documents.len());
}

/// A build without the encoder of texts says how to get it.
#[cfg(not(feature = "tokens"))]
#[test]
fn texts_are_refused_with_the_feature_that_encodes_them() {
    let dir = tempfile::tempdir().unwrap();
    let lines = put(dir.path(), "a.jsonl", b"{\"text\": \"a\"}");
    let tokenizer = put(dir.path(), "t.json", b"{\"model\": {\"vocab\": {\"a\": 0}}}");
    let rows = RowOptions { tokenizer: Some(tokenizer), ..RowOptions::default() };
    refused(&lines, &ImportOptions { rows, ..options(Onto::Empty) }, &["--features tokens"]);
}

#[cfg(feature = "cloud")]
mod in_a_store {
    use super::*;
    use crate::support::interrupted::{Case, all};
    use dlfs::import::PlacementOrder;

    const FILES: u64 = 3;
    const DOCUMENTS: u64 = 400;

    /// The tokens of a document, none of which is 0.
    fn document(file: u64, at: u64) -> Vec<u8> {
        u16s((0..20_000 + at % 9).map(|token| 1 + (token * 7 + at * 31 + file) as u16 % 50_000))
    }

    fn documents(file: u64) -> Vec<Vec<u8>> {
        (0..DOCUMENTS).map(|at| document(file, at)).collect()
    }

    /// Interrupts an import and resumes it: the image is that of an import in one go, and less is asked for.
    fn resumed(case: &Case, total: u64) {
        let (expected, image) = case.whole();
        assert_eq!(expected.samples, FILES * DOCUMENTS, "{:?}", expected.bad);
        for after in [530, 1150] {
            let devices = case.interrupted(after);
            let report = case.import(&devices, Onto::Resume, u64::MAX).unwrap();
            assert!(all(&devices) == image, "{}, after {after}: another image", case.kind);
            assert_eq!(
                (report.samples, &report.field_types),
                (expected.samples, &expected.field_types)
            );
            assert!(report.chunks_found > 0, "{}, after {after}", case.kind);
            // A point is noted every 16 MiB, and some chunks are not written when the import stops.
            let mut asked = case.watched.asked();
            asked.retain(|name, _| name.ends_with(".bin")); // a small index is fetched whole
            let asked: u64 = asked.values().sum();
            let left = total - total / (FILES * DOCUMENTS) * (after - 440);
            assert!(asked < left + (12 << 20), "{}, after {after}: {asked} of {left}", case.kind);
        }
    }

    #[test]
    fn an_import_of_megatrons_documents_goes_on_where_it_was() {
        let mut files = Vec::new();
        for file in 0..FILES {
            let documents = documents(file);
            let lens: Vec<[i32; 1]> = documents.iter().map(|one| [one.len() as i32 / 2]).collect();
            let lens: Vec<&[i32]> = lens.iter().map(|len| &len[..]).collect();
            files.push((format!("{file}.idx"), Index::of(8, 2, &lens).bytes()));
            files.push((format!("{file}.bin"), documents.concat()));
        }
        for from in [SourceKind::Auto, SourceKind::Megatron] {
            let case = Case::new(from, PlacementOrder::Source, &files);
            resumed(&case, files.iter().map(|(_, bytes)| bytes.len() as u64).sum());
        }
    }

    #[test]
    fn other_objects_beside_raw_tokens_are_set_aside() {
        let files = [("a.bin", u16s([1, 2, 0, 3])), ("tokenizer.model", vec![7; 4])];
        let mut case = Case::new(SourceKind::Tokens, PlacementOrder::Source, &files);
        case.more = Box::new(|options| options.rows = ending(Some(Element::U16), 0).rows);
        let (report, _) = case.whole();
        assert_eq!(report.samples, 2, "{:?}", report.file_counts);
    }

    #[test]
    fn an_import_of_raw_tokens_goes_on_where_it_was() {
        let file = |file| (format!("{file}.bin"), documents(file).join(&[0, 0][..]));
        let files: Vec<_> = (0..FILES).map(file).collect();
        let mut case = Case::new(SourceKind::Tokens, PlacementOrder::Source, &files);
        case.more = Box::new(|options| options.rows = ending(Some(Element::U16), 0).rows);
        resumed(&case, files.iter().map(|(_, bytes)| bytes.len() as u64).sum());
    }
}
