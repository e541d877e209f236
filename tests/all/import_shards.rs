//! Detection of a source's files as shards, as samples, or as neither.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::alone::ran_alone;
use crate::support::archives::{self, archive, member, record};
use dlfs::address::Address;
use dlfs::import::sources::sample_stream::SampleStream as _;
use dlfs::import::sources::stream::StreamSource;
use dlfs::import::sources::{BadReason, Role, Source, SourceKind, SourceOptions};
use dlfs::import::{ImportOptions, Progress, Stage, import};
use dlfs::qpair::ConnectOptions;
use dlfs::{ErrorKind, Result};

fn open(paths: &[&Path]) -> Result<Source> {
    open_as(SourceKind::Auto, paths)
}

fn open_as(kind: SourceKind, paths: &[&Path]) -> Result<Source> {
    let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
    Source::open(&paths, &SourceOptions { kind, ..SourceOptions::default() })
}

/// Why nothing was opened: message, cause and hint.
fn refusal(source: Result<Source>) -> String {
    let error = source.map(|source| source.kind()).expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::BadSource, "{error:?}");
    error.report()
}

fn names(source: &Source) -> Vec<String> {
    let name = |row| source.index().name(row).escape_ascii().to_string();
    (0..source.index().len()).map(name).collect()
}

fn payloads(source: &Source) -> Vec<Vec<u8>> {
    let mut reader = source.reader();
    (0..source.index().len())
        .map(|row| {
            let payload = source.index().payloads(row).next().unwrap();
            let mut bytes = vec![0; payload.len_bytes as usize];
            reader.read(row, &payload, &mut bytes).unwrap();
            bytes
        })
        .collect()
}

/// How files were treated: their number and size by kind.
fn taken(source: &Source) -> BTreeMap<(String, String), (u64, u64)> {
    let one = |it: &dlfs::import::sources::FileCount| {
        ((it.role.to_string(), it.what.clone()), (it.files, it.bytes))
    };
    source.file_counts().iter().map(one).collect()
}

fn key(role: Role, what: &str) -> (String, String) {
    (role.to_string(), what.to_owned())
}

fn file(name: &str) -> Vec<u8> {
    member(name, b'0', "", name.as_bytes())
}

/// A header without the magic, as early tars wrote it.
fn v7(name: &str) -> Vec<u8> {
    let mut bytes = file(name);
    bytes[257..265].fill(0);
    archives::fix_checksum(&mut bytes[..512]);
    bytes
}

fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    dir
}

fn tar(members: &[Vec<u8>]) -> Vec<u8> {
    [members.concat(), vec![0; 1024]].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

#[test]
fn shards_are_known_by_their_bytes_and_what_describes_them_is_set_aside() {
    let dir = folder(&[
        ("a.tar", tar(&[file("a")])),
        ("B.TAR", tar(&[file("b")])),
        ("part-00002", tar(&[v7("c")])),
        ("README.md", b"hello".to_vec()),
        ("dataset_info.json", b"{}".to_vec()),
        ("a.tar.idx", b"1 2 3".to_vec()),
        ("_SUCCESS", vec![]),
        (".git/HEAD", b"ref".to_vec()),
    ]);
    let source = open(&[dir.path()]).unwrap();
    assert_eq!(source.kind(), SourceKind::Tar);
    assert_eq!(names(&source), ["b", "a", "c"]);
    let expected = BTreeMap::from([
        (key(Role::Shard, "tar archive"), (3, 3 * 2048)),
        (key(Role::SetAside, "side file"), (4, 12)),
        (key(Role::SetAside, "hidden folder"), (1, 0)),
    ]);
    assert_eq!(taken(&source), expected);
    // The same files, as a shell pattern lists them.
    let paths = ["README.md", "a.tar", "part-00002"].map(|name| dir.path().join(name));
    let source = open(&paths.each_ref().map(PathBuf::as_path)).unwrap();
    assert_eq!(names(&source), ["a", "c"]);
    assert_eq!(taken(&source)[&key(Role::SetAside, "side file")], (1, 5));
}

#[test]
fn symbolic_links_in_shards_lead_to_the_files_of_their_own_shard() {
    let shard = |bytes: &str| {
        let own = member("1.jpg", b'0', "", bytes.as_bytes());
        tar(&[member("0.jpg", b'2', "1.jpg", b""), own, member("2.jpg", b'2', "1.jpg", b"")])
    };
    let dir = folder(&[("a.tar", shard("a")), ("b.tar", shard("b"))]);
    let source = open(&[dir.path()]).unwrap();
    assert_eq!(source.index().bad, []);
    let expected = ["0.jpg", "1.jpg", "2.jpg", "b.tar/0.jpg", "b.tar/1.jpg", "b.tar/2.jpg"];
    assert_eq!(names(&source), expected);
    assert_eq!(payloads(&source).concat(), b"aaabbb");
}

/// Counts what is told of indexing, and stops it after so many samples.
struct IndexedAtMost {
    is_indexing: bool,
    samples: u64,
    bytes: u64,
    most: u64,
}

impl Progress for IndexedAtMost {
    fn stage(&mut self, stage: Stage, _: u64, _: u64) {
        self.is_indexing = stage == Stage::Indexing;
    }

    fn advance(&mut self, samples: u64, bytes: u64) {
        if self.is_indexing {
            self.samples += samples;
            self.bytes += bytes;
        }
    }

    fn stop(&mut self) -> bool {
        self.samples >= self.most
    }
}

#[test]
fn indexing_says_how_far_it_is_and_can_be_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let shard = dir.path().join("a.tfrecord");
    fs::write(&shard, record(b"abc").repeat(20_000)).unwrap();
    let image = dir.path().join("image.dlfs");
    let import_it = |progress: &mut IndexedAtMost| {
        let onto = Address::from_path(image.clone());
        let options = ImportOptions { reader_threads: 1, ..ImportOptions::default() };
        import(
            std::slice::from_ref(&shard),
            &[onto],
            &options,
            &ConnectOptions::default(),
            progress,
        )
    };
    let indexed = |most| IndexedAtMost { is_indexing: false, samples: 0, bytes: 0, most };
    let mut some = indexed(5_000);
    let error = import_it(&mut some).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert!(some.samples < 10_000 && !image.exists(), "{} samples", some.samples);
    let mut all = indexed(u64::MAX);
    assert_eq!(import_it(&mut all).unwrap().samples, 20_000);
    assert!((15_000..=20_000).contains(&all.samples), "{} samples", all.samples);
    assert_eq!(all.bytes, 3 * all.samples);
}

#[test]
fn tfrecords_without_an_extension_are_shards_and_not_samples() {
    let shard = |text: &[u8]| [record(text), record(b"more")].concat();
    let dir = folder(&[
        ("train-00000-of-00002", shard(b"first")),
        ("train-00001-of-00002", shard(b"second")),
    ]);
    let source = open(&[dir.path()]).unwrap();
    assert_eq!(source.kind(), SourceKind::TfRecord);
    assert_eq!(payloads(&source), [&b"first"[..], b"more", b"second", b"more"]);
    // Neither their number nor their position in the folder matters.
    for number in 0..1000 {
        fs::write(dir.path().join(format!("{number}.jpg")), b"jpeg").unwrap();
    }
    let refused = refusal(open(&[dir.path()]));
    for said in ["2 TFRecord shards, 83 bytes", "1000 other files, 4000 bytes", "--from folder"] {
        assert!(refused.contains(said), "{said}: {refused}");
    }
}

#[test]
fn shards_beside_other_files_are_refused_until_a_kind_is_named() {
    let dir = folder(&[
        ("0.tar", tar(&[file("0/a"), file("0/b")])),
        ("1.tar", tar(&[file("1/a")])),
        ("notes.docx", b"notes".to_vec()),
        ("README.md", b"hello".to_vec()),
    ]);
    let refused = refusal(open(&[dir.path()]));
    for said in ["2 tar archives, 5120 bytes", "1 other file, 5 bytes (notes.docx)", "1 side file"]
    {
        assert!(refused.contains(said), "{said}: {refused}");
    }
    let paths = ["0.tar", "notes.docx"].map(|name| dir.path().join(name));
    let refused = refusal(open(&paths.each_ref().map(PathBuf::as_path)));
    assert!(refused.contains("1 other file, 5 bytes (notes.docx)"), "{refused}");

    let source = open_as(SourceKind::Tar, &[dir.path()]).unwrap();
    assert_eq!(names(&source), ["0/a", "0/b", "1/a"]);
    let expected = BTreeMap::from([
        (key(Role::Shard, "tar archive"), (2, 5120)),
        (key(Role::SetAside, "other file"), (1, 5)),
        (key(Role::SetAside, "side file"), (1, 5)),
    ]);
    assert_eq!(taken(&source), expected);
    let source = open_as(SourceKind::Folder, &[dir.path()]).unwrap();
    assert_eq!(names(&source), ["0.tar", "1.tar", "README.md", "notes.docx"]);
    assert_eq!(taken(&source)[&key(Role::Sample, "file .tar")], (2, 5120));
    // No file is of the kind that the caller named.
    let refused = refusal(open_as(SourceKind::TfRecord, &[dir.path()]));
    assert!(refused.contains("no tfrecord shards"), "{refused}");
    // An empty one is broken, not a sample.
    let empty = folder(&[("0.tar", vec![])]);
    let source = open(&[empty.path()]).unwrap();
    assert_eq!(
        (source.kind(), source.index().len(), source.index().bad.len()),
        (SourceKind::Tar, 0, 1)
    );
    // Likewise with two kinds.
    fs::remove_file(dir.path().join("notes.docx")).unwrap();
    fs::write(dir.path().join("x.tfrecord"), record(b"x")).unwrap();
    let refused = refusal(open(&[dir.path()]));
    assert!(refused.contains("several kinds"), "{refused}");
    let source = open_as(SourceKind::TfRecord, &[dir.path()]).unwrap();
    assert_eq!(taken(&source)[&key(Role::SetAside, "tar archive")], (2, 5120));
}

#[test]
fn shards_in_folders_of_their_own_are_taken_together_only_on_request() {
    let dir = folder(&[
        ("train/0.tfrecord", record(b"t")),
        ("val/0.tfrecord", record(b"v")),
        ("val/1.tfrecord", vec![]),
    ]);
    let refused = refusal(open(&[dir.path()]));
    assert!(refused.contains("folders of their own") && refused.contains("train"), "{refused}");
    let source = open(&[&dir.path().join("val")]).unwrap();
    assert_eq!(names(&source), ["0.tfrecord/0"]);
    let source = open_as(SourceKind::TfRecord, &[dir.path()]).unwrap();
    assert_eq!(names(&source), ["train/0.tfrecord/0", "val/0.tfrecord/0"]);
    assert_eq!(payloads(&source), [b"t", b"v"]);
}

#[test]
fn one_shard_among_the_samples_of_a_folder_is_found() {
    let mut files = Vec::new();
    for number in 0..300 {
        files.push((format!("c{}/{number:03}.jpg", number % 3), b"jpeg".to_vec()));
    }
    let files: Vec<(&str, Vec<u8>)> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let dir = folder(&files);
    assert_eq!(open(&[dir.path()]).unwrap().kind(), SourceKind::Folder);
    for name in ["c0/backup", "c2/x.tar", "c1/old.jpgs"] {
        fs::write(dir.path().join(name), tar(&[file("a")])).unwrap();
        let refused = refusal(open(&[dir.path()]));
        assert!(refused.contains(&format!("1 tar archive, 2048 bytes ({name})")), "{refused}");
        fs::remove_file(dir.path().join(name)).unwrap();
    }
}

#[test]
fn compressed_shards_are_read_and_grouped_as_plain_ones() {
    let grouped = tar(&[file("a.cls"), file("a.jpg"), file("b.cls"), file("b.jpg")]);
    let large = tar(&[member("big", b'0', "", &noise(300_000))]);
    let records = [record(b"one"), record(&noise(300_000))].concat();
    for (name, bytes, kind, samples) in [
        ("a.tar.zst", zstd(&grouped), SourceKind::WebDataset, 2),
        ("a.tgz", gzip(&grouped), SourceKind::WebDataset, 2),
        ("b.tar.zst", zstd(&large), SourceKind::Tar, 1),
        ("a-00000-of-00001", zstd(&records), SourceKind::TfRecord, 2),
        ("a.tfrecord.gz", gzip(&records), SourceKind::TfRecord, 2),
        // Concatenated frames, as parallel compressors write them.
        ("c.tar.zst", [zstd(&large[..1000]), zstd(&large[1000..])].concat(), SourceKind::Tar, 1),
    ] {
        let dir = folder(&[(name, bytes.clone()), ("README", b"r".to_vec())]);
        let refused = refusal(open(&[dir.path()]));
        assert!(refused.contains(name) && refused.contains("--spool"), "{name}: {refused}");
        let spool = tempfile::tempdir().unwrap();
        let spool = Some(spool.path().to_path_buf());
        let options = SourceOptions { spool, ..SourceOptions::default() };
        let source = Source::open(&[dir.path().to_path_buf()], &options).unwrap();
        assert_eq!((source.kind(), source.index().len()), (kind, samples), "{name}");
        assert_eq!(source.index().bad, [], "{name}");
        // Truncated, it is an error, never a shorter source.
        fs::write(dir.path().join(name), &bytes[..bytes.len() - 7]).unwrap();
        let refused = refusal(Source::open(&[dir.path().to_path_buf()], &options));
        assert!(refused.contains(name), "{name}: {refused}");
    }
    // Samples that are compressed one by one are samples.
    let dir = folder(&[("c/a.nii.gz", gzip(&noise(5000))), ("c/b.json.zst", zstd(b"{}"))]);
    assert_eq!(open(&[dir.path()]).unwrap().kind(), SourceKind::Folder);
    let dir = folder(&[("a.tar.lz4", b"\x04\x22\x4d\x18 and so on".to_vec())]);
    for refused in [open(&[dir.path()]), open_as(SourceKind::Tar, &[&dir.path().join("a.tar.lz4")])]
    {
        let refused = refusal(refused);
        assert!(refused.contains("a.tar.lz4") && refused.contains("lz4 -dc"), "{refused}");
    }
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

#[test]
fn text_that_names_no_files_is_not_a_list() {
    let lines = b"{\"text\": \"a\"}\n{\"text\": \"b\"}\n".to_vec();
    let dir = folder(&[
        ("train.jsonl", lines.clone()),
        ("part0", lines.clone()),
        ("table.csv", b"id,label\n1,dog\n".to_vec()),
        ("data.parquet", b"PAR1 and so on".to_vec()),
        ("good.txt", b"gone.jpg\t1\nsub/here.jpg\t2\n".to_vec()),
        ("sub/here.jpg", b"x".to_vec()),
        ("empty", vec![]),
    ]);
    for (name, said) in [
        ("train.jsonl", "a source of rows (jsonl)"),
        ("part0", "a source of rows (jsonl)"),
        ("table.csv", "id,label"),
        ("data.parquet", "a source of rows (parquet)"),
        ("empty", "empty"),
    ] {
        let refused = refusal(open(&[&dir.path().join(name)]));
        assert!(refused.contains(said) && refused.contains(name), "{name}: {refused}");
    }
    let source = open(&[&dir.path().join("good.txt")]).unwrap();
    assert_eq!((source.kind(), names(&source)), (SourceKind::List, vec!["sub/here.jpg".into()]));
    assert_eq!(source.index().bad.len(), 1);
    // A folder of only such files is one of rows, unless the caller says that they are samples.
    let dir = folder(&[("0.jsonl", lines.clone()), ("1.jsonl", lines), ("README", vec![b'r'])]);
    let refused = refusal(open(&[dir.path()]));
    assert!(refused.contains("a source of rows (jsonl)"), "{refused}");
    assert_eq!(open_as(SourceKind::Folder, &[dir.path()]).unwrap().index().len(), 3);
    let dir = folder(&[("cat/a.json", b"{\"a\": 1}\n".to_vec()), ("dog/b.json", b"{}".to_vec())]);
    assert_eq!(open(&[dir.path()]).unwrap().kind(), SourceKind::Folder);
}

#[test]
fn archives_one_behind_the_other_are_read_to_the_true_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tar");
    let whole = [tar(&[file("a")]), vec![0; 9 * 512], tar(&[file("b")]), tar(&[file("c")])];
    let stream = |path: &Path| {
        let mut source = StreamSource::new(vec![path.into()], SourceKind::Tar, None).unwrap();
        let mut names = Vec::new();
        while let Some(sample) = source.next_sample().unwrap() {
            names.push(String::from_utf8(sample.name).unwrap());
        }
        (names, source.appended(), source.bad().to_vec())
    };
    fs::write(&path, whole.concat()).unwrap();
    let source = open(&[&path]).unwrap();
    assert_eq!(
        (names(&source), source.index().bad.len()),
        (vec!["a".into(), "b".into(), "c".into()], 0)
    );
    assert_eq!(payloads(&source), [b"a", b"b", b"c"]);
    assert_eq!(taken(&source)[&key(Role::Appended, "archive behind another")], (2, 4096));
    let (names, appended, bad) = stream(&path);
    assert_eq!((names.join(""), appended[0].files, bad.len()), ("abc".to_owned(), 2, 0));
    // Anything else there is reported, with its length.
    for rest in [&b"short"[..], &[b'x'; 2000], &v7("d")] {
        fs::write(&path, [&whole.concat(), rest].concat()).unwrap();
        let source = open(&[&path]).unwrap();
        let [bad] = &source.index().bad[..] else { panic!("{:?}", source.index().bad) };
        assert!(matches!(bad.reason, BadReason::Syntax(_)), "{bad}");
        let len = whole.concat().len() as u64;
        assert_eq!(bad.rest, Some(len..len + rest.len() as u64));
        assert!(bad.to_string().contains(&format!("{} bytes not read", rest.len())), "{bad}");
        assert_eq!((source.index().len(), stream(&path).2.len()), (3, 1));
    }
}

#[cfg(feature = "formats")]
#[test]
fn archives_of_xz_and_bzip2_are_read_as_they_come_and_when_they_are_broken() {
    for (program, name) in [("xz", "a.tar.xz"), ("bzip2", "a.tar.bz2")] {
        let whole = tar(&[member("big", b'0', "", &noise(300_000)), file("a.jpg")]);
        // Two streams, one behind the other, as parallel compressors write them.
        let parts = [&whole[..100_000], &whole[100_000..]].map(|part| piped(program, part));
        let [Some(first), Some(second)] = parts else {
            println!("SKIPPED: {program} is not installed");
            continue;
        };
        let bytes = [first, second].concat();
        let dir = folder(&[(name, bytes.clone())]);
        let read = |dir: &Path| {
            let paths = vec![dir.join(name)];
            let mut source = StreamSource::new(paths, SourceKind::Tar, None).unwrap();
            let mut samples = Vec::new();
            while let Some(sample) = source.next_sample().unwrap() {
                let field = sample.fields[0].as_deref().unwrap_or_default().to_vec();
                samples.push((String::from_utf8(sample.name).unwrap(), field));
            }
            (samples, source.bad().len())
        };
        let (samples, bad) = read(dir.path());
        assert_eq!((samples.len(), bad), (2, 0), "{name}");
        assert_eq!(samples[0], ("big".to_owned(), noise(300_000)), "{name}");
        fs::write(dir.path().join(name), &bytes[..bytes.len() - 9]).unwrap();
        assert_eq!(read(dir.path()).1, 1, "{name}: truncated, it is an error");
        let mut damaged = bytes.clone();
        damaged[bytes.len() / 2] ^= 0x10;
        fs::write(dir.path().join(name), damaged).unwrap();
        assert_eq!(read(dir.path()).1, 1, "{name}: damaged, it is an error");
    }
}

/// The output of a program for the input `bytes`; `None`: it is not installed.
#[cfg(feature = "formats")]
fn piped(program: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    use std::process::{Command, Stdio};
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let output = Command::new(program).arg("-c").stdin(Stdio::from(file)).output().ok()?;
    output.status.success().then_some(output.stdout)
}

/// Classes and labels of an archive of these files.
fn classes(files: &[&str]) -> (Vec<String>, Vec<Option<i64>>) {
    let dir = folder(&[("a.tar", tar(&files.iter().map(|name| file(name)).collect::<Vec<_>>()))]);
    let source = open(&[&dir.path().join("a.tar")]).unwrap();
    let index = source.index();
    let names = index.classes.iter().map(|class| class.escape_ascii().to_string());
    (names.collect(), (0..index.len()).map(|row| index.label(row)).collect())
}

#[test]
fn a_folder_around_all_classes_of_an_archive_is_no_class() {
    let of = |names: &[&str], labels: &[Option<i64>]| {
        (names.iter().map(|name| name.to_string()).collect::<Vec<_>>(), labels.to_vec())
    };
    let cat = Some(0);
    let dog = Some(1);
    for (files, expected) in [
        (vec!["cat/1", "dog/1"], of(&["cat", "dog"], &[cat, dog])),
        (vec!["train/dog/1", "train/cat/1"], of(&["cat", "dog"], &[dog, cat])),
        (vec!["data/train/dog/1", "data/train/cat/x/1"], of(&["cat", "dog"], &[dog, cat])),
        (vec!["train/cat/1"], of(&["cat"], &[Some(0)])),
        (vec!["cat/1", "cat/2"], of(&["cat"], &[cat, cat])),
        (vec!["train/list", "train/cat/1"], of(&["train"], &[Some(0), Some(0)])),
        (vec!["train/cat/1", "val/cat/1"], of(&["train", "val"], &[Some(0), Some(1)])),
        (vec!["readme", "train/cat/1"], of(&["train"], &[None, Some(0)])),
        (vec!["train-b/1", "train/cat/1"], of(&["train", "train-b"], &[Some(1), Some(0)])),
    ] {
        assert_eq!(classes(&files), expected, "{files:?}");
    }
}

#[test]
fn special_tar_members_are_left_out_and_the_rest_is_imported() {
    let dir = tempfile::tempdir().unwrap();
    for kind in [b'V', b'M', b'D'] {
        let path = archive(dir.path(), "a.tar", &[member("odd", kind, "", b"x"), file("behind")]);
        let source = open(&[&path]).unwrap();
        assert_eq!(names(&source), ["behind"], "{}", char::from(kind));
        assert_eq!(source.index().bad[0].name, b"odd");
    }
}

#[test]
fn fields_whose_names_no_image_can_hold_are_bad_entries() {
    let dir = tempfile::tempdir().unwrap();
    let long = |number: usize| file(&format!("k.{number:02}{}", "f".repeat(88)));
    let members: Vec<Vec<u8>> = (0..200).map(long).collect();
    let path = archive(dir.path(), "a.tar", &members);
    let source = open(&[&path]).unwrap();
    assert_eq!(source.kind(), SourceKind::WebDataset);
    let fields = source.index().fields.len();
    let bad = source.index().bad.len();
    assert_eq!(fields + bad, 200);
    assert!(source.index().fields.iter().map(|name| 2 + name.len()).sum::<usize>() <= 8192);
    let mut stream = StreamSource::new(vec![path], SourceKind::WebDataset, None).unwrap();
    assert_eq!(stream.next_sample().unwrap().unwrap().fields.len(), fields);
    assert_eq!(stream.bad(), source.index().bad);
}

#[test]
fn what_is_broken_in_a_folder_of_shards_is_named_and_not_set_aside() {
    let dir = folder(&[
        ("blobs/1", tar(&[file("a")])),
        ("shards/empty.tar", vec![]),
        ("shards/junk.tar", b"junk".to_vec()),
        ("shards/cut.tar", tar(&[file("c")])[..700].to_vec()),
    ]);
    let shards = dir.path().join("shards");
    // Like a hub's cache: links out of the folder.
    symlink("../blobs/1", shards.join("a.tar")).unwrap();
    symlink("../blobs/2", shards.join("b.tar")).unwrap();
    let source = open(&[&shards]).unwrap();
    // All its bytes are there, but not its end mark.
    assert_eq!(names(&source), ["a", "c"]);
    let name = |bad: &dlfs::import::sources::BadEntry| {
        String::from_utf8_lossy(bad.name.rsplit(|&b| b == b'/').next().unwrap()).into_owned()
    };
    let mut bad: Vec<String> = source.index().bad.iter().map(name).collect();
    bad.sort();
    assert_eq!(bad, ["b.tar", "cut.tar", "empty.tar", "junk.tar"]);
    assert_eq!(taken(&source)[&key(Role::Shard, "tar archive")].0, 4);
}

#[test]
fn shards_longer_than_a_sample_may_be_are_shards() {
    let dir = tempfile::tempdir().unwrap();
    let shard = File::create(dir.path().join("train-00000-of-00001")).unwrap();
    let len = (1_u64 << 30) + 7;
    let head = [&len.to_le_bytes()[..], &archives::masked(&len.to_le_bytes())].concat();
    for number in 0..5 {
        shard.write_all_at(&head, number * (len + 16)).unwrap();
    }
    shard.set_len(5 * (len + 16)).unwrap();
    let source = open(&[dir.path()]).unwrap();
    assert_eq!((source.kind(), source.index().len()), (SourceKind::TfRecord, 5));
    assert_eq!(source.index().bad, []);
}

/// TensorFlow's `TFRecordOptions(compression_type="ZLIB")`.
#[test]
fn a_compressed_shard_is_read_again_after_more_shards_than_may_be_open() {
    let plain = (0..70).map(|number| (format!("s{number:02}.tar"), file(&format!("{number}"))));
    let mut shards: Vec<(String, Vec<u8>)> =
        plain.map(|(name, member)| (name, tar(&[member]))).collect();
    shards.push(("a.tgz".to_owned(), gzip(&tar(&[file("first")]))));
    let dir =
        folder(&shards.iter().map(|(name, bytes)| (&**name, bytes.clone())).collect::<Vec<_>>());
    let spool = tempfile::tempdir().unwrap();
    let spool = Some(spool.path().to_path_buf());
    let options = SourceOptions { spool, ..SourceOptions::default() };
    let source = Source::open(&[dir.path().to_path_buf()], &options).unwrap();
    assert_eq!(source.index().len(), 71);
    let mut reader = source.reader();
    for row in (0..71).chain(0..71) {
        let payload = source.index().payloads(row).next().unwrap();
        let mut bytes = vec![0; payload.len_bytes as usize];
        reader.read(row, &payload, &mut bytes).unwrap();
    }
}

#[test]
fn tfrecords_in_zlib_are_read_as_those_in_gzip_are() {
    let records = [record(b"one"), record(&[7; 100_000]), record(b"")].concat();
    // Its length begins with two bytes that a zlib stream may begin with.
    let plain = record(&[1; 0x9c78]);
    let dir = folder(&[
        ("a.tfrecord", zlib(&records)),
        ("cut.tfrecord", zlib(&records)[..60].to_vec()),
        ("more.tfrecord", [zlib(&records), b"more".to_vec()].concat()),
        ("plain.tfrecord", plain),
    ]);
    let spool = Some(dir.path().to_path_buf());
    let open = |name: &str| {
        let options = SourceOptions { spool: spool.clone(), ..SourceOptions::default() };
        Source::open(&[dir.path().join(name)], &options)
    };
    let source = open("a.tfrecord").unwrap();
    assert_eq!(source.kind(), SourceKind::TfRecord);
    assert_eq!(payloads(&source), [b"one".to_vec(), vec![7; 100_000], vec![]]);
    assert_eq!(payloads(&open("plain.tfrecord").unwrap()), [vec![1; 0x9c78]]);
    for broken in ["cut.tfrecord", "more.tfrecord"] {
        let said = refusal(open(broken));
        assert!(said.contains("compressed source is broken"), "{broken}: {said}");
    }
}

#[test]
fn a_shard_that_cannot_be_opened_again_is_not_said_to_have_changed() {
    if ran_alone(a_shard_that_cannot_be_opened_again_is_not_said_to_have_changed) {
        return;
    }
    let dir = folder(&[("a.tar", tar(&[file("a")])), ("b.tar", tar(&[file("b")]))]);
    let source = open(&[dir.path()]).unwrap();
    let payload = source.index().payloads(0).next().unwrap();
    let mut bytes = vec![0; payload.len_bytes as usize];
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    let found = source.reader().read(0, &payload, &mut bytes);
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(found, Err(BadReason::Unreadable(rustix::io::Errno::MFILE.raw_os_error())));
    source.reader().read(0, &payload, &mut bytes).unwrap();
    fs::remove_file(dir.path().join("a.tar")).unwrap();
    assert_eq!(source.reader().read(0, &payload, &mut bytes), Err(BadReason::Changed));
}
