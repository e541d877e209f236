//! Sparse members of tar archives: GNU tar writes them, an import gives them whole, and maps that lie are refused.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::archives::{archive, fix_checksum, member};
use dlfs::import::sources::sample_stream::SampleStream as _;
use dlfs::import::sources::stream::StreamSource;
use dlfs::import::sources::{BadEntry, Source, SourceKind, SourceOptions};

/// The samples of an archive, and what is wrong with it.
type Read = (Vec<(String, Vec<Vec<u8>>)>, Vec<BadEntry>);

/// Reads by an index, a piece at a time too.
fn indexed(path: &Path, kind: SourceKind) -> Read {
    let options = SourceOptions { kind, ..SourceOptions::default() };
    let source = Source::open(&[path.to_path_buf()], &options).unwrap();
    let index = source.index();
    let mut reader = source.reader();
    let samples = (0..index.len()).map(|row| {
        let payloads = index.payloads(row).map(|payload| {
            let mut bytes = vec![7; payload.len_bytes as usize];
            reader.read(row, &payload, &mut bytes).unwrap();
            let mut pieces = Pieces { of: 1000, bytes: Vec::new(), space: Vec::new() };
            reader.read_in_pieces(row, &payload, &mut pieces).unwrap();
            assert!(pieces.bytes == bytes, "in pieces");
            bytes
        });
        (index.name(row).escape_ascii().to_string(), payloads.collect())
    });
    (samples.collect(), index.bad.clone())
}

struct Pieces {
    of: usize,
    bytes: Vec<u8>,
    space: Vec<u8>,
}

impl dlfs::import::sources::PieceSink for Pieces {
    fn space(&mut self) -> dlfs::Result<&mut [u8]> {
        self.space = vec![9; self.of];
        Ok(&mut self.space)
    }

    fn filled(&mut self, len: usize) -> dlfs::Result<()> {
        self.bytes.extend_from_slice(&self.space[..len]);
        Ok(())
    }
}

/// Reads as from a pipe.
fn streamed(path: &Path, kind: SourceKind) -> Read {
    let mut source = StreamSource::new(vec![path.to_path_buf()], kind, None).unwrap();
    let mut samples = Vec::new();
    while let Some(sample) = source.next_sample().unwrap() {
        let name = sample.name.escape_ascii().to_string();
        let fields = sample.fields.iter().flatten().map(|field| field.to_vec());
        samples.push((name, fields.collect()));
    }
    (samples, source.bad().to_vec())
}

/// Both ways, which must agree.
fn read(path: &Path, kind: SourceKind) -> Read {
    let index = indexed(path, kind);
    let stream = streamed(path, kind);
    assert!(index.0 == stream.0, "the ways to read {path:?} differ");
    assert_eq!(index.1, stream.1);
    index
}

/// A file of `len` bytes with data only in these places.
fn sparse(path: &Path, len: u64, places: &[(u64, &[u8])]) {
    let file = File::create(path).unwrap();
    file.set_len(len).unwrap();
    places.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
}

const FORMATS: [&[&str]; 4] = [
    &["--format=gnu"],
    &["--format=posix", "--sparse-version=0.0"],
    &["--format=posix", "--sparse-version=0.1"],
    &["--format=posix", "--sparse-version=1.0"],
];

/// Packs files of `dir` with GNU tar; returns the archive.
fn pack(dir: &Path, format: &[&str], names: &[&str]) -> PathBuf {
    let path = dir.join("packed.tar");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(dir).args(["--sparse", "--hole-detection=raw"]).args(format);
    let made = tar.arg("-cf").arg(&path).args(names).status();
    assert!(made.expect("the tests need tar").success());
    path
}

#[test]
fn sparse_files_that_gnu_tar_packs_are_read_with_their_holes_in_each_of_its_forms() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // So many pieces that the old form needs blocks of its map behind the header, and 1.0 several blocks.
    let many: Vec<(u64, &[u8])> = (0..120).map(|piece| (piece * 65536, &b"data"[..])).collect();
    sparse(&at("many"), 120 * 65536, &many);
    sparse(&at("front"), 100_000, &[(99_000, &[1; 1000])]);
    sparse(&at("end"), 100_001, &[(0, &[2; 5000])]);
    sparse(&at("nothing"), 65536, &[]);
    // A name that is too long for a header.
    let long = format!("{}/deep", "d".repeat(120));
    fs::create_dir(at(&"d".repeat(120))).unwrap();
    sparse(&at(&long), 300_000, &[(150_000, &[3; 513])]);
    fs::write(at("before"), "before").unwrap();
    fs::write(at("behind"), "behind").unwrap();
    let names = ["before", "many", "front", "end", "nothing", &long, "behind"];
    for format in FORMATS {
        let path = pack(dir.path(), format, &names);
        let whole: u64 = names.iter().map(|name| fs::metadata(at(name)).unwrap().len()).sum();
        assert!(fs::metadata(&path).unwrap().len() < whole / 10, "tar found the holes");
        let (samples, bad) = read(&path, SourceKind::Tar);
        assert_eq!(bad, [], "{format:?}");
        assert_eq!(samples.len(), names.len());
        for (name, (found, fields)) in names.iter().zip(&samples) {
            assert_eq!(name, found, "{format:?}");
            assert!(fields[0] == fs::read(at(name)).unwrap(), "{format:?}: {name}");
        }
    }
}

#[test]
fn sparse_members_are_fields_of_grouped_samples_and_targets_of_links() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for key in ["a", "b"] {
        sparse(&at(&format!("{key}.bin")), 200_000, &[(70_000, key.as_bytes())]);
        fs::write(at(&format!("{key}.txt")), key).unwrap();
    }
    fs::hard_link(at("a.bin"), at("hard")).unwrap();
    for format in FORMATS {
        let path = pack(dir.path(), format, &["a.bin", "a.txt", "b.bin", "b.txt"]);
        let (samples, bad) = read(&path, SourceKind::WebDataset);
        assert_eq!(bad, []);
        for (name, fields) in samples {
            let whole = fs::read(at(&format!("{name}.bin"))).unwrap();
            assert!(fields == [whole, name.clone().into_bytes()], "{format:?}: {name}");
        }
        let path = pack(dir.path(), format, &["a.bin", "hard"]);
        let (samples, bad) = indexed(&path, SourceKind::Tar);
        assert_eq!((samples.len(), bad.len()), (2, 0));
        assert!(samples[1].1 == samples[0].1 && samples[0].1[0].len() == 200_000);
    }
}

/// A member in GNU's old form, of a file with `len` bytes; what does not fit the header goes to blocks behind it.
fn old(name: &str, len: u64, pieces: &[(u64, u64)], stored: &[u8]) -> Vec<u8> {
    let mut bytes = member(name, b'S', "", stored);
    bytes[257..265].copy_from_slice(b"ustar  \0");
    let mut place = |at: usize, number: u64| {
        bytes[at..at + 12].copy_from_slice(format!("{number:011o}\0").as_bytes());
    };
    place(483, len);
    for (at, (offset, len)) in (386..).step_by(24).zip(pieces.iter().take(4)) {
        place(at, *offset);
        place(at + 12, *len);
    }
    let mut more = Vec::new();
    let rest = &pieces[pieces.len().min(4)..];
    for (block, pieces) in rest.chunks(21).enumerate() {
        let mut map = vec![0; 512];
        for (at, (offset, len)) in (0..).step_by(24).zip(pieces) {
            map[at..at + 24].copy_from_slice(format!("{offset:011o}\0{len:011o}\0").as_bytes());
        }
        map[504] = u8::from((block + 1) * 21 < rest.len());
        more.extend(map);
    }
    bytes[482] = u8::from(!more.is_empty());
    fix_checksum(&mut bytes[..512]);
    bytes.splice(512..512, more);
    bytes
}

/// A member behind an extended header with these records.
fn pax(name: &str, records: &[(&str, &str)], stored: &[u8]) -> Vec<u8> {
    let mut text = String::new();
    for (key, value) in records {
        let len = key.len() + value.len() + 3;
        let digits = (len + 2).to_string().len();
        text += &format!("{} {key}={value}\n", len + digits);
    }
    [member("pax", b'x', "", text.as_bytes()), member(name, b'0', "", stored)].concat()
}

#[test]
pub fn a_map_that_lies_names_its_member_and_what_follows_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let size = |size| ("GNU.sparse.size", size);
    let map = |map| ("GNU.sparse.map", map);
    let offset = |at| ("GNU.sparse.offset", at);
    let bytes = |len| ("GNU.sparse.numbytes", len);
    let one =
        [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "9999")];
    let endless: Vec<(u64, u64)> = (0..1_048_600).map(|at| (at, 1)).collect();
    let text = |text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        [bytes, vec![1; 4]].concat()
    };
    let with = |more: (&'static str, &'static str)| [one[0], one[1], one[2], more];
    for (what, bad) in [
        ("overlap", old("m", 100, &[(0, 4), (3, 4)], &[1; 8])),
        ("ascend", old("m", 100, &[(50, 4), (3, 4)], &[1; 8])),
        ("beyond", old("m", 100, &[(98, 4)], &[1; 4])),
        ("the archive holds", old("m", 100, &[(50, 4)], &[1; 5])),
        ("1,048,576", old("m", 2_000_000, &endless, &[1; 4])),
        ("overlap", pax("m", &[size("100"), map("0,4,3,4")], &[1; 8])),
        ("beyond", pax("m", &[size("100"), map("98,4")], &[1; 4])),
        ("broken", pax("m", &[size("100"), map("98,")], &[1; 4])),
        ("broken", pax("m", &[size("100"), map("98,-1")], &[1; 4])),
        ("broken", pax("m", &[map("0,4")], &[1; 4])),
        ("broken", pax("m", &[size("9"), size("8"), map("0,4")], &[1; 4])),
        ("broken", pax("m", &[size("9"), bytes("4")], &[1; 4])),
        ("broken", pax("m", &[size("9"), offset("0"), offset("4"), bytes("4")], &[1; 4])),
        ("broken", pax("m", &[size("9"), offset("0")], &[])),
        ("broken", pax("m", &[size("9"), ("GNU.sparse.numblocks", "2"), map("0,4")], &[1; 4])),
        (
            "overlap",
            pax("m", &[size("9"), offset("4"), bytes("4"), offset("0"), bytes("4")], &[1; 8]),
        ),
        ("not known", pax("m", &[("GNU.sparse.major", "2"), size("9"), map("0,4")], &[1; 4])),
        ("broken", pax("m", &with(map("0,4")), &text("1\n0\n4\n"))),
        ("beyond", pax("m", &one, &text("1\n9998\n4\n"))),
        ("broken", pax("m", &one, &text("1\n0\nx\n"))),
        ("broken", pax("m", &one, &text("500\n0\n4\n"))),
        ("does not end", pax("m", &one, b"1")),
        ("1,048,576", pax("m", &one, &text("1048577\n0\n4\n"))),
        ("the archive holds", pax("m", &one, &text("1\n0\n5\n"))),
    ] {
        let behind = member("behind", b'0', "", b"behind");
        let path = archive(dir.path(), "a.tar", &[bad, behind]);
        let (samples, bad) = read(&path, SourceKind::Tar);
        assert_eq!(samples, [("behind".to_owned(), vec![b"behind".to_vec()])], "{what}");
        let [bad] = &bad[..] else { panic!("{what}: {bad:?}") };
        assert_eq!((&bad.name[..], bad.within.as_deref()), (&b"m"[..], Some(&*path)));
        assert!(bad.to_string().contains(what), "{what}: {bad}");
    }
}

#[test]
fn an_archive_that_ends_in_a_map_names_the_member() {
    let dir = tempfile::tempdir().unwrap();
    let pieces: Vec<(u64, u64)> = (0..300).map(|at| (at * 10, 1)).collect();
    let bytes = old("m", 5000, &pieces, &[1; 300]);
    let path = dir.path().join("a.tar");
    // In the last block of the map, at the end of one, and within the pieces.
    for end in [512 + 512 * 13 + 100, 512 * 5, bytes.len() - 512] {
        fs::write(&path, [member("before", b'0', "", b"x"), bytes[..end].to_vec()].concat())
            .unwrap();
        let in_map = end < 512 * 15;
        // Only from a pipe is a member read before it is known that the archive ends in it.
        for (is_named, (samples, bad)) in
            [(in_map, indexed(&path, SourceKind::Tar)), (true, streamed(&path, SourceKind::Tar))]
        {
            assert_eq!(samples.len(), 1, "{end}");
            assert!(bad.iter().any(|bad| bad.to_string().contains("ends early")), "{bad:?}");
            assert_eq!(bad.iter().any(|bad| bad.name == b"m"), is_named, "{end}: {bad:?}");
        }
    }
}

#[test]
fn a_small_archive_does_not_become_a_large_image() {
    let dir = tempfile::tempdir().unwrap();
    let gib = 1 << 30;
    let members = [
        old("small", 1 << 20, &[(0, 4)], b"data"),
        old("bomb", gib, &[(0, 4)], b"data"),
        old("large", 5 * gib, &[(0, 4)], b"data"),
        old("last", 1 << 20, &[((1 << 20) - 4, 4)], b"data"),
    ];
    let path = archive(dir.path(), "a.tar", &members);
    let (samples, bad) = read(&path, SourceKind::Tar);
    let lens = samples.iter().map(|(name, fields)| (&**name, fields[0].len()));
    assert_eq!(lens.collect::<Vec<_>>(), [("small", 1 << 20), ("last", 1 << 20)]);
    let why: Vec<String> = bad.iter().map(BadEntry::to_string).collect();
    assert!(why[0].contains("bomb") && why[0].contains("--max-expansion"), "{why:?}");
    assert!(why[1].contains("large") && why[1].contains("4 GiB"), "{why:?}");
    assert_eq!(bad.len(), 2);
    // Many of those together, too.
    let many: Vec<Vec<u8>> =
        (0..40).map(|number| old(&format!("m{number}"), 16 << 20, &[], b"")).collect();
    let (samples, bad) = indexed(&archive(dir.path(), "b.tar", &many), SourceKind::Tar);
    assert_eq!((samples.len(), bad.len()), (16, 24));
}
