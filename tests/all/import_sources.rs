//! Entries that every kind of source yields, good and bad.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::alone::again;
use crate::support::archives::{archive, fix_checksum, member, record};
use dlfs::folders::{FolderOptions, Links};
use dlfs::import::sources::{BadReason, Source, SourceKind, SourceOptions};
use dlfs::{ErrorKind, Result};

fn open(path: impl AsRef<Path>) -> Result<Source> {
    Source::open(&[path.as_ref().to_path_buf()], &SourceOptions::default())
}

fn write(root: &Path, name: &[u8], content: &[u8]) {
    let path = root.join(OsStr::from_bytes(name));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Name, label and bytes of every sample; fields concatenated.
fn samples(source: &Source) -> Vec<(Vec<u8>, Option<i64>, Vec<u8>)> {
    let mut reader = source.reader();
    (0..source.index().len())
        .map(|row| {
            let mut bytes = Vec::new();
            for payload in source.index().payloads(row) {
                let mut one = vec![0; payload.len_bytes as usize];
                reader.read(row, &payload, &mut one).unwrap();
                bytes.extend(one);
            }
            (source.index().name(row).to_vec(), source.index().label(row), bytes)
        })
        .collect()
}

fn names(source: &Source) -> Vec<String> {
    (0..source.index().len())
        .map(|row| source.index().name(row).escape_ascii().to_string())
        .collect()
}

fn bad(source: &Source) -> BTreeMap<String, BadReason> {
    let bad = source.index().bad.iter();
    bad.map(|bad| (bad.name.escape_ascii().to_string(), bad.reason.clone())).collect()
}

fn python(script: &str, args: &[&Path]) -> Vec<u8> {
    let output = Command::new("python3").arg("-c").arg(script).args(args).output();
    let output = output.expect("the tests need python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn a_folder_tree_has_the_ids_and_labels_of_imagefolder() {
    let dir = tempfile::tempdir().unwrap();
    // As a path, `class1-b` sorts before `class1/`; as a class, after `class1`.
    for name in [
        "class1/z.jpg",
        "class1/a/1.jpg",
        "class1/a-b/1.jpg",
        "class1/a/c/2.jpg",
        "class1-b/x.jpg",
        "Class1/x.jpg",
        "top.txt",
        "\u{e9}t\u{e9}/x",
        "class1/a.jpg",
        "b/shown",
    ] {
        write(dir.path(), name.as_bytes(), name.as_bytes());
    }
    fs::create_dir(dir.path().join("an empty class")).unwrap();
    // torchvision's find_classes and make_dataset, without the filter by extension.
    let script = "import os,sys\nroot=sys.argv[1]\n\
        classes=sorted(e.name for e in os.scandir(root) if e.is_dir())\n\
        for i,c in enumerate(classes):\n\
        \x20 for r,_,fs in sorted(os.walk(os.path.join(root,c),followlinks=True)):\n\
        \x20   for f in sorted(fs): print(os.path.relpath(os.path.join(r,f),root),i,sep='\\t')";
    let expected = String::from_utf8(python(script, &[dir.path()])).unwrap();
    let mut expected: Vec<(Vec<u8>, Option<i64>, Vec<u8>)> = expected
        .lines()
        .map(|line| line.split_once('\t').unwrap())
        .map(|(name, label)| (name.into(), Some(label.parse().unwrap()), name.into()))
        .collect();
    expected.push((b"top.txt".to_vec(), None, b"top.txt".to_vec()));
    let source = open(dir.path()).unwrap();
    assert_eq!(source.kind(), SourceKind::Folder);
    assert_eq!(samples(&source), expected);
    assert_eq!(source.index().classes.len(), 6);
}

#[test]
fn odd_names_and_empty_files_are_samples_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let odd =
        [&b"c/new\nline"[..], b"c/\xff\xfe not utf-8", b"c/Twin", b"c/twin", b"c/tab\t", b"c/ "];
    for name in odd {
        write(dir.path(), name, name);
    }
    write(dir.path(), b"c/empty", b"");
    let source = open(dir.path()).unwrap();
    let mut expected: Vec<_> = odd.iter().map(|n| (n.to_vec(), Some(0), n.to_vec())).collect();
    expected.push((b"c/empty".to_vec(), Some(0), vec![]));
    expected.sort();
    assert_eq!(samples(&source), expected);
    assert_eq!(bad(&source), BTreeMap::new());
}

/// Makes a file whose name beneath `root` has `len` bytes, longer than the kernel accepts at once.
fn write_deep(root: &Path, len: usize) -> Vec<u8> {
    let mut at = File::open(root).unwrap();
    let mut name = Vec::new();
    while len - name.len() > 256 {
        let part = "d".repeat(250);
        rustix::fs::mkdirat(&at, &part, 0o755.into()).unwrap();
        at =
            rustix::fs::openat(&at, &part, rustix::fs::OFlags::DIRECTORY, 0.into()).unwrap().into();
        name.extend_from_slice(part.as_bytes());
        name.push(b'/');
    }
    let file = "f".repeat(len - name.len());
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    let fd = rustix::fs::openat(&at, &file, flags, 0o644.into()).unwrap();
    File::from(fd).write_all(b"deep").unwrap();
    name.extend_from_slice(file.as_bytes());
    name
}

#[test]
fn a_name_of_4096_bytes_is_opened_step_by_step_and_a_longer_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let longest = write_deep(dir.path(), 4096);
    let source = open(dir.path()).unwrap();
    assert_eq!(samples(&source), [(longest, Some(0), b"deep".to_vec())]);
    let dir = tempfile::tempdir().unwrap();
    let longer = write_deep(dir.path(), 4097);
    let source = open(dir.path()).unwrap();
    assert!(matches!(bad(&source)[&String::from_utf8(longer).unwrap()], BadReason::Name(_)));
}

#[test]
fn links_inside_the_source_are_files_and_all_others_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    write(&root, b"a/file", b"bytes");
    write(&root, b"a/sub/deeper", b"deep");
    write(dir.path(), b"outside", b"secret");
    for (link, target) in [
        ("a/link", "file"),
        ("a/over", "../b/back"),
        ("a/fold", "sub"),
        ("b", "a"),
        ("a/none", "nothing"),
        ("a/out", "../../outside"),
        ("a/self", "self"),
        ("a/up", "."),
        ("a/sub/loop", "../../a"),
    ] {
        symlink(target, root.join(link)).unwrap();
    }
    symlink(root.join("a/file"), root.join("a/sub/abs")).unwrap();
    symlink(dir.path(), root.join("away")).unwrap();
    symlink("file", root.join("a/back")).unwrap();
    let folders = FolderOptions { links: Links::Inside, ..FolderOptions::default() };
    let inside = SourceOptions { folders, ..SourceOptions::default() };
    let source = Source::open(std::slice::from_ref(&root), &inside).unwrap();
    let found: BTreeMap<_, _> =
        samples(&source).into_iter().map(|(name, _, bytes)| (name, bytes)).collect();
    for (name, bytes) in [
        ("a/link", "bytes"),
        ("a/over", "bytes"),
        ("a/sub/abs", "bytes"),
        ("b/link", "bytes"),
        ("a/fold/deeper", "deep"),
        ("b/fold/deeper", "deep"),
    ] {
        let found = found.get(name.as_bytes()).map(Vec::as_slice);
        assert_eq!(found, Some(bytes.as_bytes()), "{name}");
    }
    let bad = bad(&source);
    for (name, reason) in [
        ("a/none", BadReason::Dangling),
        ("a/out", BadReason::LeavesSource),
        ("a/self", BadReason::Cyclic),
        ("a/up", BadReason::Cyclic),
        ("a/sub/loop", BadReason::Cyclic),
        ("away", BadReason::LeavesSource),
    ] {
        assert_eq!(bad[name], reason, "{name}");
    }
}

#[test]
fn special_files_and_too_large_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), b"c/file", b"x");
    let at = |name: &str| dir.path().join("c").join(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), 0o644.into()).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    File::create(at("large")).unwrap().set_len(1 << 32).unwrap();
    File::create(at("largest")).unwrap().set_len((1 << 32) - 1).unwrap();
    let source = open(dir.path()).unwrap();
    assert_eq!(names(&source), ["c/file", "c/largest"]);
    let mut expected = BTreeMap::from([
        ("c/fifo".to_string(), BadReason::Special("FIFO")),
        ("c/socket".to_string(), BadReason::Special("socket")),
        ("c/large".to_string(), BadReason::TooLarge(1 << 32)),
    ]);
    assert_eq!(bad(&source), expected);
    // Only root may create a device node.
    let kind = rustix::fs::FileType::CharacterDevice;
    let null = rustix::fs::makedev(1, 3);
    if rustix::fs::mknodat(rustix::fs::CWD, at("null"), kind, 0o644.into(), null).is_ok() {
        expected.insert("c/null".to_string(), BadReason::Special("character device"));
        assert_eq!(bad(&open(dir.path()).unwrap()), expected);
    }
}

/// Root can read everything, so the test runs itself again as nobody.
#[test]
fn unreadable_files_and_folders_are_named() {
    const PLACE: &str = "DLFS_TEST_UNREADABLE";
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        write(dir.path(), b"c/file", b"x");
        write(dir.path(), b"c/secret", b"x");
        write(dir.path(), b"d/inside", b"x");
        let chmod = |name: &str, mode| {
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        chmod("c/secret", 0o000);
        chmod("d", 0o000);
        let exe = dir.path().join("test");
        fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
        let mut child = Command::new(&exe);
        child.args(again(unreadable_files_and_folders_are_named).get_args());
        child.env(PLACE, dir.path());
        if rustix::process::geteuid().is_root() {
            child.uid(65534).gid(65534);
        }
        let output = loop {
            match child.output() {
                // A child of another test has the copy open until it becomes its program.
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
                output => break output.unwrap(),
            }
        };
        chmod("d", 0o755);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    };
    let source = open(place).unwrap();
    let denied = BadReason::Unreadable(libc::EACCES);
    assert_eq!(bad(&source)["c/secret"], denied);
    assert_eq!(bad(&source)["d"], denied);
    assert_eq!(names(&source), ["c/file", "test"]);
}

#[test]
fn a_file_that_changes_after_it_was_indexed_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["shrunk", "grown", "touched", "replaced", "gone", "fifo", "same"] {
        write(dir.path(), format!("c/{name}").as_bytes(), b"12345");
    }
    let source = open(dir.path()).unwrap();
    let at = |name: &str| dir.path().join("c").join(name);
    let open_for_writing = |name| fs::OpenOptions::new().write(true).open(at(name)).unwrap();
    open_for_writing("shrunk").set_len(3).unwrap();
    open_for_writing("grown").set_len(8).unwrap();
    let past = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
    open_for_writing("touched").set_modified(past).unwrap();
    fs::rename(at("replaced"), at("old")).unwrap();
    fs::copy(at("old"), at("replaced")).unwrap();
    fs::remove_file(at("gone")).unwrap();
    fs::remove_file(at("fifo")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), 0o644.into()).unwrap();
    let mut reader = source.reader();
    for row in 0..source.index().len() {
        let payload = source.index().payloads(row).next().unwrap();
        let read = reader.read(row, &payload, &mut [0; 5]);
        match source.index().name(row) {
            b"c/same" => assert_eq!(read, Ok(())),
            name => assert!(read.is_err(), "{}", name.escape_ascii()),
        }
    }
}

#[test]
fn an_empty_folder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("class")).unwrap();
    let error = open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSource);
    assert!(error.to_string().contains("no sample"), "{error}");
    assert_eq!(open(dir.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    let url = open(PathBuf::from("ftp://host/train")).unwrap_err();
    assert_eq!(url.kind(), ErrorKind::Unsupported, "{url:?}");
    assert!(url.report().contains("s3://"), "{}", url.report());
}

#[test]
fn several_folders_share_their_classes_and_a_common_name_is_reported() {
    let one = tempfile::tempdir().unwrap();
    let two = tempfile::tempdir().unwrap();
    write(one.path(), b"cat/1", b"x");
    write(two.path(), b"ant/2", b"y");
    write(two.path(), b"cat/1", b"z");
    let paths = [one.path().to_path_buf(), two.path().to_path_buf()];
    let source = Source::open(&paths, &SourceOptions::default()).unwrap();
    let expected =
        [(b"cat/1".to_vec(), Some(1), b"x".to_vec()), (b"ant/2".to_vec(), Some(0), b"y".to_vec())];
    assert_eq!(samples(&source), expected);
    assert_eq!(bad(&source)["cat/1"], BadReason::TwiceInFolders);
    let with_prefix = SourceOptions { prefix: true, ..SourceOptions::default() };
    let source = Source::open(&paths, &with_prefix).unwrap();
    let end =
        |dir: &tempfile::TempDir| dir.path().file_name().unwrap().to_string_lossy().into_owned();
    let expected = [(&one, "cat/1", 1, "x"), (&two, "ant/2", 0, "y"), (&two, "cat/1", 1, "z")];
    let expected = expected.map(|(dir, name, label, bytes)| {
        (format!("{}/{name}", end(dir)).into_bytes(), Some(label), bytes.as_bytes().to_vec())
    });
    let mut found = samples(&source);
    found.sort_unstable_by(|a, b| a.2.cmp(&b.2));
    assert_eq!((found, source.index().bad.len()), (expected.to_vec(), 0));
}

#[test]
fn a_list_gives_order_and_labels_and_its_bad_lines_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["sub/b", "a", "c d"] {
        write(dir.path(), name.as_bytes(), name.as_bytes());
    }
    let list = dir.path().join("list.txt");
    fs::write(
        &list,
        "sub/b\t7\n./a\t-2\r\n\nc d\nnone\t1\n../x\t1\na\t3\nsub\t1\n/etc/passwd\t1\na\tdog\n",
    )
    .unwrap();
    let source = open(&list).unwrap();
    assert_eq!(source.kind(), SourceKind::List);
    let expected = [
        (b"sub/b".to_vec(), Some(7), b"sub/b".to_vec()),
        (b"a".to_vec(), Some(-2), b"a".to_vec()),
        (b"c d".to_vec(), None, b"c d".to_vec()),
    ];
    assert_eq!(samples(&source), expected);
    assert_eq!(bad(&source).len(), 6, "{:?}", bad(&source));
    assert_eq!(bad(&source)["none\\t1"], BadReason::Unreadable(libc::ENOENT));
    assert_eq!(bad(&source)["a"], BadReason::Twice);
    fs::write(&list, "sub/b\tdog\na\tcat\n").unwrap();
    let told = open(&list).err().unwrap().report();
    assert!(told.contains("that of its first line is dog"), "{told}");
}

#[test]
fn a_folder_of_containers_that_are_not_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.zip", "b.zip"] {
        write(dir.path(), name.as_bytes(), b"PK\x03\x04 and so on");
    }
    let told = open(dir.path()).err().unwrap().report();
    assert!(told.contains("zip archive") && told.contains("--from folder"), "{told}");
    // By other names, archives of this form are samples: arrays, documents.
    let arrays = tempfile::tempdir().unwrap();
    write(arrays.path(), b"a.npz", b"PK\x03\x04 and so on");
    assert_eq!(open(arrays.path()).unwrap().kind(), SourceKind::Folder);
}

/// Writes archives in every format of Python's tarfile, and lists what Python finds in them.
const MAKE_TARS: &str = r"
import io, os, sys, tarfile, random
out = sys.argv[1]
for fmt, name in ((tarfile.USTAR_FORMAT, 'ustar'), (tarfile.GNU_FORMAT, 'gnu'), (tarfile.PAX_FORMAT, 'pax')):
    rnd = random.Random(name)
    path = os.path.join(out, name + '.tar')
    with tarfile.open(path, 'w', format=fmt, encoding='utf-8', errors='surrogateescape') as tar:
        def add(member, data=None):
            info = tarfile.TarInfo(member)
            if data is not None:
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data or b''))
        for i in range(40):
            length = rnd.choice([5, 60, 99, 100, 101, 140])
            folder = 'f%02d' % (i % 7)
            if fmt == tarfile.USTAR_FORMAT and length > 95:
                folder, length = folder + '/' + 'p' * (length - 60), 60
            data = rnd.randbytes(rnd.choice([0, 1, 511, 512, 513, 5000]))
            add(folder + '/' + ('%04d' % i) + 'n' * (length - 8), data)
        add('./dotted//twice', b'dots')
        add('new\nline', b'nl')
        add('umlaut-\u00e4', b'u')
        add(b'raw-\xff\xfe'.decode('utf-8', 'surrogateescape'), b'raw')
        if fmt != tarfile.USTAR_FORMAT:
            add('deep/' + 'd/' * 700 + 'end', b'deep')
        d = tarfile.TarInfo('folder'); d.type = tarfile.DIRTYPE; tar.addfile(d)
        h = tarfile.TarInfo('f01/hard'); h.type = tarfile.LNKTYPE; h.linkname = 'new\nline'; tar.addfile(h)
        s = tarfile.TarInfo('f01/soft'); s.type = tarfile.SYMTYPE; s.linkname = '../umlaut-\u00e4'; tar.addfile(s)
";

/// Prints one line per file of each archive: archive, name and payload in hexadecimal.
const LIST_TARS: &str = r"
import sys, tarfile
for path in open(sys.argv[1]).read().split():
    try:
        with tarfile.open(path, 'r:', encoding='utf-8', errors='surrogateescape') as tar:
            for m in tar:
                if m.isreg() or m.islnk() or m.issym() or m.type not in tarfile.SUPPORTED_TYPES:
                    data = tar.extractfile(m).read()
                    print(path, m.name.encode('utf-8', 'surrogateescape').hex(), data.hex() or '-')
    except Exception as e:
        print(path, '!', type(e).__name__)
";

type Listing = BTreeMap<PathBuf, Vec<(Vec<u8>, Vec<u8>)>>;

fn hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn list_by_python(dir: &Path, archives: &[PathBuf]) -> Listing {
    let list = dir.join("archives");
    let paths: Vec<_> = archives.iter().map(|path| path.to_str().unwrap()).collect();
    fs::write(&list, paths.join("\n")).unwrap();
    let mut listing = Listing::new();
    for line in String::from_utf8(python(LIST_TARS, &[&list])).unwrap().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let entries = listing.entry(words[0].into()).or_default();
        if words[1] != "!" {
            entries.push((hex(words[1]), hex(words[2].trim_end_matches('-'))));
        }
    }
    listing
}

/// Names in the form of sample names.
fn clean((name, bytes): &(Vec<u8>, Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    let parts = name.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".");
    (parts.collect::<Vec<_>>().join(&b'/'), bytes.clone())
}

fn open_tar(path: &Path) -> Result<Source> {
    let options = SourceOptions { kind: SourceKind::Tar, ..SourceOptions::default() };
    Source::open(&[path.to_path_buf()], &options)
}

#[test]
fn tar_archives_of_every_format_hold_what_python_finds_in_them() {
    let dir = tempfile::tempdir().unwrap();
    python(MAKE_TARS, &[dir.path()]);
    let archives: Vec<_> =
        ["ustar", "gnu", "pax"].map(|name| dir.path().join(name).with_extension("tar")).into();
    let listing = list_by_python(dir.path(), &archives);
    for archive in &archives {
        let source = open(archive).unwrap();
        assert_eq!(source.kind(), SourceKind::Tar);
        let found: Vec<_> =
            samples(&source).into_iter().map(|(name, _, bytes)| (name, bytes)).collect();
        let expected: Vec<_> = listing[archive].iter().map(clean).collect();
        assert_eq!(found, expected, "{}", archive.display());
        assert_eq!(bad(&source), BTreeMap::new());
        assert!(found.len() >= 46);
    }
}

#[test]
fn a_damaged_tar_lists_as_python_does_or_is_refused() {
    let seed = 20;
    println!("seed {seed}");
    let mut random = Random(seed);
    let dir = tempfile::tempdir().unwrap();
    python(MAKE_TARS, &[dir.path()]);
    let mut archives = Vec::new();
    for round in 0..300 {
        let name = ["ustar", "gnu", "pax"][round % 3];
        let mut bytes = fs::read(dir.path().join(name).with_extension("tar")).unwrap();
        if round % 10 == 0 {
            bytes.truncate(1024 + random.below(bytes.len() - 1024));
        }
        for _ in 0..=random.below(3) {
            // A header begins every few blocks, so most truncations hit one.
            let block = random.below(bytes.len() / 512) * 512;
            let at = block
                + [0, 124 + random.below(12), 156, 257 + random.below(8), random.below(512)]
                    [random.below(5)];
            bytes[at] = [b'0', 0, 0xff, b'7', random.below(256) as u8][random.below(5)];
            if random.below(2) == 0 && bytes[block..block + 512].iter().any(|&byte| byte != 0) {
                fix_checksum(&mut bytes[block..block + 512]);
            }
        }
        let path = dir.path().join(format!("damaged-{round}.tar"));
        fs::write(&path, &bytes).unwrap();
        archives.push(path);
    }
    let listing = list_by_python(dir.path(), &archives);
    let mut same = 0;
    for archive in &archives {
        let Ok(source) = open_tar(archive) else { continue };
        if !source.index().bad.is_empty() {
            continue;
        }
        let found: Vec<_> =
            samples(&source).into_iter().map(|(name, _, bytes)| (name, bytes)).collect();
        let expected: Vec<_> = listing.get(archive).into_iter().flatten().map(clean).collect();
        let difference = found.iter().zip(&expected).position(|(ours, python)| ours != python);
        let at = difference.unwrap_or(0);
        let names = [&found, &expected].map(|list| {
            list.iter()
                .skip(at)
                .take(2)
                .map(|(n, _)| n.escape_ascii().to_string())
                .collect::<Vec<_>>()
        });
        assert_eq!((found.len(), difference), (expected.len(), None), "{names:?}");
        same += 1;
    }
    assert!(same > 30, "only {same} archives were judged: the damage is too coarse");
}

/// A small generator of test data.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % limit
    }
}

#[test]
fn what_two_tools_would_read_differently_in_a_tar_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let hidden = member("hidden", b'0', "", b"smuggled");
    let file = || member("file", b'0', "", &hidden);
    let pax = |text: &str| member("pax", b'x', "", text.as_bytes());
    for (what, members) in [
        // CVE-2025-62518: depending on whether the PAX length or the header's is used, `hidden` appears or
        // not.
        ("pax size broken", vec![pax("10 size=x\n"), file()]),
        ("pax size twice", vec![pax("9 size=1\n9 size=2\n"), file()]),
        ("two pax headers", vec![pax("9 size=1\n"), pax("10 path=y\n"), file()]),
        ("pax for nothing", vec![pax("10 path=y\n")]),
        ("global size", vec![member("g", b'g', "", b"9 size=1\n"), file()]),
        ("folder with payload", vec![member("folder", b'5', "", b"x")]),
        ("symlink with payload", vec![member("link", b'2', "x", b"x")]),
        ("old sparse", vec![member("sparse", b'S', "", b"x")]),
        ("continued", vec![member("rest", b'M', "", b"x")]),
    ] {
        let source = open_tar(&archive(dir.path(), "a.tar", &members)).unwrap();
        let bad = bad(&source);
        let reason = bad.values().next().unwrap_or_else(|| panic!("{what}: {:?}", names(&source)));
        assert!(matches!(reason, BadReason::Syntax(_)), "{what}: {reason}");
    }
    // With a correct PAX length, what it covers is payload and nothing else.
    let len = hidden.len();
    let mut liar = member("file", b'0', "", &[]);
    liar.extend_from_slice(&hidden);
    let record = format!("13 size={len}\n");
    let path = archive(dir.path(), "b.tar", &[pax(&record), liar]);
    let source = open_tar(&path).unwrap();
    assert_eq!(samples(&source), [(b"file".to_vec(), None, hidden)]);
}

#[test]
pub fn sparse_members_are_refused_by_name_and_what_follows_them_is_read() {
    let dir = tempfile::tempdir().unwrap();
    // So many pieces that the old form needs blocks of its map behind the header.
    let file = fs::File::create(dir.path().join("holes")).unwrap();
    for piece in 0..120 {
        std::os::unix::fs::FileExt::write_all_at(&file, b"data", piece * 65536).unwrap();
    }
    fs::write(dir.path().join("whole"), "whole").unwrap();
    let posix = ["0.0", "0.1", "1.0"].map(|form| format!("--format=posix --sparse-version={form}"));
    for form in posix.iter().map(String::as_str).chain(["--format=gnu"]) {
        let path = dir.path().join("a.tar");
        let mut tar = std::process::Command::new("tar");
        tar.args(["--sparse", "--hole-detection=raw"]).args(form.split(' '));
        tar.arg("-C").arg(dir.path()).arg("-cf").arg(&path).args(["holes", "whole"]);
        assert!(tar.status().expect("the tests need tar").success());
        let source = open_tar(&path).unwrap();
        assert_eq!(samples(&source), [(b"whole".to_vec(), None, b"whole".to_vec())], "{form}");
        let reason = bad(&source).into_iter().next().expect("the sparse member");
        assert_eq!(reason.0, "holes", "{form}");
        assert!(reason.1.to_string().contains("without --sparse"), "{form}: {}", reason.1);
        // An archive that ends within the map still names the member.
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..512 + 512 * 3 + 100]).unwrap();
        let source = open_tar(&path).unwrap();
        assert!(source.index().is_empty() && !source.index().bad.is_empty(), "{form}");
    }
}

#[test]
fn an_extended_header_of_any_stated_length_takes_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut header = member("x", b'x', "", &[]);
    header[124..136].copy_from_slice(b"77777777777\0");
    fix_checksum(&mut header[..512]);
    let source = open_tar(&archive(dir.path(), "a.tar", &[header])).unwrap();
    let reason = bad(&source).into_values().next().unwrap();
    assert!(reason.to_string().contains("1 MiB"), "{reason}");
}

#[test]
fn special_members_of_a_tar_are_named_and_links_lead_to_members() {
    let dir = tempfile::tempdir().unwrap();
    let path = archive(
        dir.path(),
        "a.tar",
        &[
            member("a/file", b'0', "", b"bytes"),
            member("a/hard", b'1', "a/file", b""),
            member("a/chain", b'2', "hard", b""),
            member("a/none", b'2', "nothing", b""),
            member("a/out", b'2', "../../x", b""),
            member("a/abs", b'2', "/etc/passwd", b""),
            member("a/ping", b'2', "pong", b""),
            member("a/pong", b'2', "ping", b""),
            member("fifo", b'6', "", b""),
            member("dev", b'3', "", b""),
            member("../climb", b'0', "", b"x"),
            member("a/file", b'0', "", b"again"),
            member("/abs", b'0', "", b"rooted"),
        ],
    );
    let source = open_tar(&path).unwrap();
    let file = |name: &str, label, bytes: &str| (name.as_bytes().to_vec(), label, bytes.into());
    assert_eq!(
        samples(&source),
        [
            file("a/file", Some(0), "again"),
            file("a/hard", Some(0), "bytes"),
            file("a/chain", Some(0), "bytes"),
            file("abs", None, "rooted"),
        ]
    );
    let bad = bad(&source);
    assert_eq!(bad["a/none"], BadReason::Dangling);
    assert_eq!(bad["a/out"], BadReason::LeavesSource);
    assert_eq!(bad["a/abs"], BadReason::LeavesSource);
    assert_eq!(bad["a/ping"], BadReason::Cyclic);
    assert_eq!(bad["fifo"], BadReason::Special("FIFO"));
    assert_eq!(bad["dev"], BadReason::Special("character device"));
    assert!(matches!(bad["../climb"], BadReason::Name(_)));
    assert!(!bad.contains_key("a/file"));
}

#[test]
fn a_tar_cut_off_anywhere_is_reported_and_whole_members_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = archive(
        dir.path(),
        "a.tar",
        &[member("one", b'0', "", &[1; 700]), member("two", b'0', "", &[2; 100])],
    );
    let whole = fs::read(&path).unwrap();
    let end_mark = whole.len() - 1024;
    for len in (0..=whole.len()).step_by(128) {
        fs::write(&path, &whole[..len]).unwrap();
        let source = open_tar(&path).unwrap();
        let truncated =
            source.index().bad.iter().any(|bad| matches!(bad.reason, BadReason::Truncated(_)));
        assert_eq!(truncated, len < end_mark + 512, "{len} of {} bytes", whole.len());
        let whole_members = usize::from(len >= 512 + 700) + usize::from(len >= 1536 + 512 + 100);
        assert_eq!(source.index().len(), whole_members as u64, "{len} bytes");
    }
}

#[test]
fn webdataset_shards_are_grouped_by_key_in_the_order_of_their_braces() {
    let dir = tempfile::tempdir().unwrap();
    for shard in 0..2 {
        let file = |name: &str, content: &str| {
            member(&format!("s{shard}/{name}"), b'0', "", content.as_bytes())
        };
        archive(
            dir.path(),
            &format!("train-{shard:03}.tar"),
            &[
                file("a.JPG", "image"),
                file("a.cls", "3\n"),
                file("b.x.cls", "no"),
                file("b.seg.png", "mask"),
                file("b.jpg", ""),
                file("c.cls", "dog"),
                file("c.cls", "twice"),
                file("README", "no field"),
            ],
        );
    }
    for path in [dir.path().join("train-{000..001}.tar"), dir.path().to_path_buf()] {
        let source = open(&path).unwrap();
        assert_eq!(source.kind(), SourceKind::WebDataset);
        let fields: Vec<_> =
            source.index().fields.iter().map(|f| f.escape_ascii().to_string()).collect();
        assert_eq!(fields, ["jpg", "cls", "x.cls", "seg.png"]);
        assert_eq!(names(&source), ["s0/a", "s0/b", "s0/c", "s1/a", "s1/b", "s1/c"]);
        let sample = &samples(&source)[0];
        assert_eq!((sample.1, &sample.2[..]), (Some(3), &b"image3\n"[..]));
        assert_eq!((source.index().label(1), source.index().label(2)), (None, None));
        assert_eq!(source.index().field_len_bytes(1, 3), Some(4));
        assert_eq!(source.index().field_len_bytes(1, 0), Some(0));
        assert_eq!(source.index().field_len_bytes(1, 1), None);
        assert!(!bad(&source).contains_key("s1/c.cls"));
        assert!(!bad(&source).contains_key("s0/README"), "it is no sample");
    }
}

#[test]
fn tfrecords_are_named_by_shard_and_number_and_their_checksums_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train.tfrecord-00000-of-00001");
    let records = [record(b"first"), record(b""), record(&[7; 5000])];
    fs::write(&path, records.concat()).unwrap();
    let source = open(&path).unwrap();
    assert_eq!(source.kind(), SourceKind::TfRecord);
    let name = |number| format!("train.tfrecord-00000-of-00001/{number}").into_bytes();
    assert_eq!(
        samples(&source),
        [
            (name(0), None, b"first".to_vec()),
            (name(1), None, vec![]),
            (name(2), None, vec![7; 5000]),
        ]
    );
    // A damaged payload is found when it is read; a damaged length ends the shard.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"F", 12).unwrap();
    let source = open(&path).unwrap();
    let payload = source.index().payloads(0).next().unwrap();
    let read = source.reader().read(0, &payload, &mut [0; 5]);
    assert!(matches!(read, Err(BadReason::BadCrc { what: "payload", .. })), "{read:?}");
    file.write_all_at(&[1], records[0].len() as u64).unwrap();
    let source = open(&path).unwrap();
    assert_eq!(source.index().len(), 1);
    let second = String::from_utf8(name(1)).unwrap();
    assert!(matches!(bad(&source)[&second], BadReason::BadCrc { what: "length", .. }));
}

#[test]
fn a_tfrecord_cut_off_anywhere_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tfrecord");
    let records = [record(b"first"), record(b"second")];
    let whole = records.concat();
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        let options = SourceOptions { kind: SourceKind::TfRecord, ..SourceOptions::default() };
        let source = match Source::open(std::slice::from_ref(&path), &options) {
            Err(error) if len == 0 => {
                assert_eq!(error.kind(), ErrorKind::BadSource);
                continue;
            }
            source => source.unwrap(),
        };
        let at_a_record = len == records[0].len();
        assert_eq!(source.index().bad.is_empty(), at_a_record, "{len} bytes");
        assert_eq!(source.index().len(), u64::from(len >= records[0].len()), "{len} bytes");
    }
}

#[test]
fn a_shard_that_changes_after_it_was_indexed_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = archive(dir.path(), "a.tar", &[member("one", b'0', "", b"12345")]);
    let source = open_tar(&path).unwrap();
    archive(dir.path(), "a.tar", &[member("one", b'0', "", b"54321"), member("b", b'0', "", b"")]);
    let payload = source.index().payloads(0).next().unwrap();
    assert_eq!(source.reader().read(0, &payload, &mut [0; 5]), Err(BadReason::Changed));
}

#[test]
fn compressed_archives_and_pipes_go_through_a_spool_or_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plain = archive(dir.path(), "a.tar", &[member("one", b'0', "", &[9; 3000])]);
    let bytes = fs::read(&plain).unwrap();
    let packed = dir.path().join("a.tar.gz");
    let mut encoder =
        flate2::write::GzEncoder::new(File::create(&packed).unwrap(), Default::default());
    encoder.write_all(&bytes).unwrap();
    encoder.finish().unwrap();
    let refused = open(&packed).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadSource);
    assert!(refused.report().contains("--spool"), "{}", refused.report());
    let spool = tempfile::tempdir().unwrap();
    let options =
        SourceOptions { spool: Some(spool.path().to_path_buf()), ..SourceOptions::default() };
    let expected = [(b"one".to_vec(), None, vec![9; 3000])];
    let from_packed = Source::open(std::slice::from_ref(&packed), &options).unwrap();
    assert_eq!(samples(&from_packed), expected);
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    let writer = {
        let pipe = pipe.clone();
        std::thread::spawn(move || fs::write(pipe, bytes).unwrap())
    };
    let from_pipe = Source::open(&[pipe], &options).unwrap();
    writer.join().unwrap();
    assert_eq!(samples(&from_pipe), expected);
    assert_eq!(from_pipe.index().fingerprint(), from_packed.index().fingerprint());
    assert_eq!(fs::read_dir(spool.path()).unwrap().count(), 0, "a spooled copy has no name");
    // Truncated: gzip itself reports it.
    let cut = fs::read(&packed).unwrap();
    fs::write(&packed, &cut[..cut.len() / 2]).unwrap();
    assert_eq!(Source::open(&[packed], &options).unwrap_err().kind(), ErrorKind::BadSource);
}

/// The members that replace earlier ones: how many, as the report counts them.
fn replaced(source: &Source) -> u64 {
    let counts = source.file_counts().iter();
    counts
        .filter(|count| count.what.contains("a later one replaces"))
        .map(|count| count.files)
        .sum()
}

#[test]
fn of_two_members_of_a_tar_with_one_name_the_later_one_counts_as_in_its_extraction() {
    let dir = tempfile::tempdir().unwrap();
    let tar = |arguments: &[&str]| {
        assert!(
            Command::new("tar").args(arguments).current_dir(dir.path()).status().unwrap().success()
        );
    };
    for (name, content) in [("c/a", "old a"), ("c/b", "b"), ("d/x", "x"), ("d/y", "y")] {
        write(dir.path(), name.as_bytes(), content.as_bytes());
    }
    fs::hard_link(dir.path().join("c/a"), dir.path().join("c/link")).unwrap();
    tar(&["-cf", "a.tar", "c/a", "c/link", "c/b", "d"]);
    fs::remove_file(dir.path().join("c/a")).unwrap();
    write(dir.path(), b"c/a", b"new and longer a");
    tar(&["-rf", "a.tar", "c/a", "d/x"]);
    fs::create_dir(dir.path().join("out")).unwrap();
    tar(&["-xf", "a.tar", "-C", "out"]);
    let source = open_tar(&dir.path().join("a.tar")).unwrap();
    assert_eq!((bad(&source).len(), replaced(&source)), (0, 2));
    let mut found = names(&source);
    found.sort();
    assert_eq!(found, ["c/a", "c/b", "c/link", "d/x", "d/y"]);
    for (name, label, bytes) in samples(&source) {
        let name = String::from_utf8(name).unwrap();
        assert_eq!(fs::read(dir.path().join("out").join(&name)).unwrap(), bytes, "{name}");
        assert_eq!(label, Some(i64::from(name.starts_with('d'))));
    }
}

#[test]
fn a_later_member_of_a_group_replaces_its_field_and_nothing_of_other_shards() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &str| member(name, b'0', "", bytes.as_bytes());
    let first = [
        file("0.jpg", "J0"),
        file("0.cls", "4"),
        file("1.jpg", "J1"),
        file("1.jpg", "next"),
        file("1.cls", "5"),
        file("0.cls", "7"),
        file("1.txt", "a field that the sample lacks"),
    ];
    archive(dir.path(), "0.tar", &first);
    archive(dir.path(), "1.tar", &[file("0.jpg", "other"), file("0.cls", "9")]);
    let source = open(dir.path()).unwrap();
    assert_eq!((source.kind(), replaced(&source)), (SourceKind::WebDataset, 2));
    let expected = [
        (b"0".to_vec(), Some(7), b"J07".to_vec()),
        (b"1".to_vec(), Some(5), b"next5".to_vec()),
        (b"1.tar/0".to_vec(), Some(9), b"other9".to_vec()),
    ];
    assert_eq!(samples(&source), expected);
    let twice: Vec<_> = source.index().bad.iter().map(|bad| (&bad.name[..], &bad.reason)).collect();
    assert_eq!(twice, [(&b"1"[..], &BadReason::Twice)]);
}
