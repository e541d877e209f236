//! Decisions about a source before it is read: whether archives are WebDataset's, which entries are left out whatever
//! they hold, and which links are followed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::import_support::{contents, options};
use crate::support::archives::{archive, member};
use crate::support::object_store::ObjectStore;
use crate::support::warnings::warnings_of;
use dlfs::folders::{FolderOptions, Links};
use dlfs::import::sources::{BadReason, Decided, Role, Source, SourceKind, SourceOptions};
use dlfs::import::{ImportOptions, OnError, Onto, RowOptions, import_onto};
use dlfs::qpair::Device;
use dlfs::qpair::folder::FolderNamespace;
use dlfs::qpair::mem::MemNamespace;
use dlfs::{ErrorKind, Result};

fn open(path: &Path, kind: SourceKind, folders: FolderOptions) -> Result<Source> {
    let options = SourceOptions { kind, folders, ..SourceOptions::default() };
    Source::open(&[path.to_path_buf()], &options)
}

fn names(source: &Source) -> Vec<String> {
    let name = |row| source.index().name(row).escape_ascii().to_string();
    (0..source.index().len()).map(name).collect()
}

/// How many files were treated so.
fn counted(source: &Source, role: Role, what: &str) -> u64 {
    let mut counts = source.file_counts().iter();
    counts.find(|count| (count.role, &*count.what) == (role, what)).map_or(0, |count| count.files)
}

fn file(name: &str) -> Vec<u8> {
    member(name, b'0', "", name.as_bytes())
}

fn pairs(numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    numbers.flat_map(|at| [file(&format!("{at:06}.jpg")), file(&format!("{at:06}.txt"))]).collect()
}

fn single(numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    numbers.map(|at| file(&format!("{at:06}.jpg"))).collect()
}

#[test]
fn the_beginnings_of_all_shards_decide_whether_files_of_one_key_are_a_sample() {
    let cases = [
        ("an empty shard", vec![], 10),
        ("what macOS leaves", [vec![file("._000000.jpg")], pairs(0..10)].concat(), 20),
        ("a note", [vec![file("README")], pairs(0..10)].concat(), 20),
        ("a note with an extension", [vec![file("LICENSE.txt")], pairs(0..10)].concat(), 20),
        ("what Finder leaves", [vec![file(".DS_Store")], pairs(0..10)].concat(), 20),
        ("one field", single(0..10), 20),
        ("pairs behind the beginning", [single(0..70), pairs(70..90)].concat(), 100),
        ("pairs alone", pairs(0..10), 20),
    ];
    for (what, first, samples) in cases {
        let dir = tempfile::tempdir().unwrap();
        archive(dir.path(), "00000.tar", &first);
        archive(dir.path(), "00001.tar", &pairs(100..110));
        let source = open(dir.path(), SourceKind::Auto, FolderOptions::default()).unwrap();
        assert_eq!(source.kind(), SourceKind::WebDataset, "{what}");
        assert!(matches!(source.decided(), Some(Decided::Pair { .. })), "{what}");
        let index = source.index();
        assert_eq!((index.len(), index.bad.len()), (samples, 0), "{what}: {:?}", index.bad);
        let mut fields = index.fields.clone();
        fields.sort_unstable();
        assert_eq!(fields, [b"jpg", b"txt"], "{what}");
    }
}

#[test]
fn a_pair_behind_the_beginnings_ends_the_import_and_the_options_that_are_named_go_on() {
    let dir = tempfile::tempdir().unwrap();
    archive(dir.path(), "a.tar", &[single(0..70), pairs(70..90)].concat());
    let folders = FolderOptions::default();
    let error = open(dir.path(), SourceKind::Auto, folders).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSource);
    let report = error.report();
    for told in ["000070.jpg and 000070.txt", "a.tar", "--from webdataset", "--from tar"] {
        assert!(report.contains(told), "{report}");
    }
    assert_eq!(open(dir.path(), SourceKind::WebDataset, folders).unwrap().index().len(), 90);
    assert_eq!(open(dir.path(), SourceKind::Tar, folders).unwrap().index().len(), 110);
    // Files of two archives are no pair.
    let dir = tempfile::tempdir().unwrap();
    archive(dir.path(), "a.tar", &[file("1.jpg")]);
    archive(dir.path(), "b.tar", &[file("1.txt")]);
    let source = open(dir.path(), SourceKind::Auto, folders).unwrap();
    assert_eq!((source.kind(), source.decided()), (SourceKind::Tar, Some(&Decided::NoPair)));
}

/// Names as file systems and tools leave them behind, and what is hidden.
const DROPPINGS: [&str; 8] = [
    "cat/._1.jpg",
    "cat/.DS_Store",
    "cat/Thumbs.db",
    "dog/desktop.ini",
    "dog/@eaDir/1.jpg",
    ".ipynb_checkpoints/1.jpg",
    ".hidden",
    "__MACOSX/cat/1.jpg",
];

#[test]
fn droppings_are_no_samples_or_classes_of_folders_and_archives_unless_they_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    let all = [&DROPPINGS[..], &["cat/1.jpg", "dog/1.jpg"]].concat();
    for name in &all {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let tar = archive(dir.path(), "a.tar", &all.iter().map(|name| file(name)).collect::<Vec<_>>());
    for path in [&folder, &tar] {
        let source = open(path, SourceKind::Auto, FolderOptions::default()).unwrap();
        assert_eq!(names(&source), ["cat/1.jpg", "dog/1.jpg"], "{}", path.display());
        assert_eq!(source.index().classes, [b"cat", b"dog"]);
        let hidden = FolderOptions { hidden: true, ..FolderOptions::default() };
        let source = open(path, SourceKind::Auto, hidden).unwrap();
        assert_eq!(source.index().len(), 10, "{}", path.display());
        assert_eq!(counted(&source, Role::SetAside, "hidden file"), 0);
    }
    let source = open(&folder, SourceKind::Auto, FolderOptions::default()).unwrap();
    assert_eq!(counted(&source, Role::SetAside, "hidden file"), 5);
    assert_eq!(counted(&source, Role::SetAside, "hidden folder"), 3);
    let source = open(&tar, SourceKind::Auto, FolderOptions::default()).unwrap();
    assert_eq!(counted(&source, Role::SetAside, "hidden file"), 8);
    // Without an import.
    let (namespace, told) =
        warnings_of(|| FolderNamespace::open(&folder, FolderOptions::default()).unwrap());
    let read: Vec<_> = namespace.files().iter().map(|file| &file.name[..]).collect();
    assert_eq!(read, [&b"cat/1.jpg"[..], b"dog/1.jpg"]);
    assert_eq!(namespace.classes(), [b"cat", b"dog"]);
    assert_eq!(told.iter().filter(|told| told.contains("count=8")).count(), 1, "{told:?}");
    let hidden = FolderOptions { hidden: true, ..FolderOptions::default() };
    assert_eq!(FolderNamespace::open(&folder, hidden).unwrap().files().len(), 10);
}

#[test]
fn droppings_of_shards_and_of_stores_are_none_of_them() {
    let dir = tempfile::tempdir().unwrap();
    archive(dir.path(), "a.tar", &pairs(0..3));
    archive(dir.path(), "._a.tar", &pairs(3..4));
    let source = open(dir.path(), SourceKind::Auto, FolderOptions::default()).unwrap();
    assert_eq!(names(&source), ["000000", "000001", "000002"]);
    assert_eq!(counted(&source, Role::SetAside, "hidden file"), 1);
    let store = ObjectStore::good();
    for name in DROPPINGS.iter().chain(&["cat/1.jpg", "dog/1.jpg"]) {
        store.put(&format!("set/{name}"), *name);
    }
    store.put("tars/0.tar", fs::read(dir.path().join("a.tar")).unwrap());
    store.put("tars/._0.tar", fs::read(dir.path().join("._a.tar")).unwrap());
    let import = |source: &str, hidden| {
        let devices: Vec<Arc<dyn Device>> =
            vec![Arc::new(MemNamespace::new(16 << 20, 4096).unwrap())];
        let folders = FolderOptions { hidden, ..FolderOptions::default() };
        let options = ImportOptions { places: store.options(), folders, ..options(Onto::Empty) };
        let report = import_onto(&[PathBuf::from(source)], &devices, &options, &mut ()).unwrap();
        let samples = contents(&devices).unwrap().into_keys();
        (report, samples.map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>())
    };
    let (report, samples) = import("s3://bucket/set/", false);
    assert_eq!(samples, ["cat/1.jpg", "dog/1.jpg"]);
    let hidden = report.file_counts.iter().find(|count| count.what == "hidden file").unwrap();
    assert_eq!((hidden.role, hidden.files), (Role::SetAside, 8));
    assert_eq!(import("s3://bucket/set/", true).0.samples, 10);
    let (report, samples) = import("s3://bucket/tars/", false);
    assert_eq!(samples, ["000000", "000001", "000002"]);
    assert_eq!(report.kind, SourceKind::WebDataset);
}

/// A folder of links, as people keep them, and what lies outside of it.
fn farm() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["full/n01/1.jpg", "full/n02/1.jpg", "full/n03/1.jpg", "blobs/0a1b"] {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    fs::create_dir_all(dir.path().join("farm/few")).unwrap();
    symlink("../full/n01", dir.path().join("farm/n01")).unwrap();
    symlink(dir.path().join("full/n03"), dir.path().join("farm/n03")).unwrap();
    symlink("../../blobs/0a1b", dir.path().join("farm/few/1.jpg")).unwrap();
    symlink("1.jpg", dir.path().join("farm/few/2.jpg")).unwrap();
    dir
}

#[test]
fn links_out_of_a_folder_are_followed_and_told_once_by_an_import_and_without_one() {
    let dir = farm();
    let farm = dir.path().join("farm");
    let expected = ["few/1.jpg", "few/2.jpg", "n01/1.jpg", "n03/1.jpg"];
    let source = open(&farm, SourceKind::Auto, FolderOptions::default()).unwrap();
    assert_eq!((names(&source), source.index().bad.len()), (expected.map(String::from).into(), 0));
    assert_eq!(counted(&source, Role::Followed, "link out of the source"), 4);
    assert_eq!(source.index().classes, [&b"few"[..], b"n01", b"n03"]);
    let mut bytes = [0; 14];
    let payload = source.index().payloads(3).next().unwrap();
    source.reader().read(3, &payload, &mut bytes).unwrap();
    assert_eq!(&bytes, b"full/n03/1.jpg");
    let (namespace, told) =
        warnings_of(|| FolderNamespace::open(&farm, FolderOptions::default()).unwrap());
    let read: Vec<_> =
        namespace.files().iter().map(|file| String::from_utf8_lossy(&file.name)).collect();
    assert_eq!(read, expected);
    assert!(told.len() == 1 && told[0].contains("count=4"), "{told:?}");
}

#[test]
fn links_may_be_held_inside_or_refused_by_an_import_and_without_one() {
    let dir = farm();
    let farm = dir.path().join("farm");
    let with = |links| FolderOptions { links, ..FolderOptions::default() };
    let inside = open(&farm, SourceKind::Auto, with(Links::Inside)).unwrap();
    let bad: Vec<_> = inside.index().bad.iter().map(|bad| &bad.reason).collect();
    assert_eq!(bad, [&BadReason::LeavesSource; 4]);
    let refused = open(&farm, SourceKind::Auto, with(Links::Refuse)).unwrap();
    let is_link =
        |reason: &BadReason| matches!(reason, BadReason::Special(what) if what.starts_with("link"));
    assert!(refused.index().bad.iter().all(|bad| is_link(&bad.reason)));
    assert_eq!((refused.index().len(), refused.index().bad.len()), (0, 4));
    for links in [Links::Inside, Links::Refuse] {
        let error = FolderNamespace::open(&farm, with(links)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{}", error.report());
        assert!(error.report().contains("farm/"), "{}", error.report());
    }
    let full = dir.path().join("full");
    symlink("1.jpg", full.join("n01/again.jpg")).unwrap();
    symlink("n01", full.join("n04")).unwrap();
    assert_eq!(FolderNamespace::open(&full, with(Links::Inside)).unwrap().files().len(), 6);
    let source = open(&full, SourceKind::Auto, with(Links::Inside)).unwrap();
    assert_eq!((source.index().len(), source.index().bad.len()), (6, 0));
}

#[test]
fn shards_behind_links_out_of_their_folder_are_read_only_if_links_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    ["blobs", "mds", "tars"].iter().for_each(|name| fs::create_dir(at(name)).unwrap());
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rows/mds")).unwrap()
    {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if name == "index.json" {
            fs::copy(entry.path(), at("mds/index.json")).unwrap();
        } else {
            fs::copy(entry.path(), at("blobs").join(&name)).unwrap();
            symlink(Path::new("../blobs").join(&name), at("mds").join(&name)).unwrap();
        }
    }
    archive(&at("blobs"), "a.tar", &[file("1.jpg")]);
    archive(&at("tars"), "b.tar", &[file("2.jpg")]);
    symlink("../blobs/a.tar", at("tars/a.tar")).unwrap();
    for (links, why) in [
        (Links::Follow, None),
        (Links::Inside, Some("leads out of the source")),
        (Links::Refuse, Some("is a link, which is not followed")),
    ] {
        let folders = FolderOptions { links, ..FolderOptions::default() };
        let rows = RowOptions { label: Some("label".to_owned()), ..RowOptions::default() };
        let import = ImportOptions { folders, rows, ..options(Onto::Empty) };
        let image: Vec<Arc<dyn Device>> =
            vec![Arc::new(MemNamespace::new(16 << 20, 4096).unwrap())];
        let imported = import_onto(&[at("mds/index.json")], &image, &import, &mut ());
        match why {
            None => assert_eq!(imported.unwrap().samples, 40),
            Some(why) => {
                let told = imported.map(|report| report.samples).unwrap_err().report();
                let words = ["index.json", "it names shard.0000", why];
                assert!(words.iter().all(|words| told.contains(words)), "{told}");
            }
        }
        let source = open(&at("tars"), SourceKind::Auto, folders).unwrap();
        assert_eq!(source.kind(), SourceKind::Tar);
        let bad: Vec<_> = source.index().bad.iter().map(|bad| bad.reason.to_string()).collect();
        assert_eq!(bad, Vec::from_iter(why));
        assert_eq!(names(&source).contains(&"1.jpg".to_owned()), why.is_none(), "{links:?}");
    }
}

#[test]
fn links_in_circles_are_found_by_an_import_and_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("cat")).unwrap();
    fs::write(root.join("cat/1.jpg"), "x").unwrap();
    for (link, target) in [("self", "."), ("cat/up", ".."), ("cat/me", "me"), ("out", "..")] {
        symlink(target, root.join(link)).unwrap();
    }
    let source = open(&root, SourceKind::Auto, FolderOptions::default()).unwrap();
    let bad: Vec<_> = source.index().bad.iter().map(|bad| (&bad.name[..], &bad.reason)).collect();
    for name in [&b"self"[..], b"cat/up", b"cat/me", b"out/root"] {
        assert!(bad.contains(&(name, &BadReason::Cyclic)), "{}: {bad:?}", name.escape_ascii());
    }
    assert_eq!(names(&source), ["cat/1.jpg"]);
    let (namespace, told) =
        warnings_of(|| FolderNamespace::open(&root, FolderOptions::default()).unwrap());
    assert_eq!(namespace.files().len(), 1);
    assert!(told.iter().any(|told| told.contains("lead back")), "{told:?}");
}

#[test]
fn archives_within_an_archive_are_samples_and_counted_or_are_taken_apart_as_the_option_says() {
    let dir = tempfile::tempdir().unwrap();
    let tar = |members: &[Vec<u8>]| [&members.concat()[..], &[0; 1024]].concat();
    let class = |name: &str, files: std::ops::Range<u32>| {
        let hard = member("./link.jpg", b'1', &format!("{}.jpg", files.start), b"");
        let files = files.map(|at| file(&format!("{at}.jpg")));
        member(name, b'0', "", &tar(&files.chain([hard]).collect::<Vec<_>>()))
    };
    let deep = member("deep.tar", b'0', "", &tar(&[class("inner.tar", 7..8)]));
    let outer =
        archive(dir.path(), "train.tar", &[class("n02.tar", 3..6), class("n01.tar", 0..3), deep]);
    let look = |path: &Path, nested| {
        let options = SourceOptions { nested, ..SourceOptions::default() };
        Source::open(&[path.to_path_buf()], &options).unwrap()
    };
    let whole = look(&outer, false);
    assert_eq!(names(&whole), ["n02.tar", "n01.tar", "deep.tar"]);
    assert_eq!(counted(&whole, Role::Sample, "archive within an archive"), 3);
    let apart = look(&outer, true);
    assert!(apart.index().bad.is_empty(), "{:?}", apart.index().bad);
    assert_eq!(apart.index().classes, [&b"deep"[..], b"n01", b"n02"]);
    let image: Vec<Arc<dyn Device>> = vec![Arc::new(MemNamespace::new(16 << 20, 4096).unwrap())];
    let nested = ImportOptions { nested: true, ..options(Onto::Empty) };
    import_onto(std::slice::from_ref(&outer), &image, &nested, &mut ()).unwrap();
    let found = contents(&image).unwrap();
    for (name, held) in
        [("n02/3.jpg", "3.jpg"), ("n01/2.jpg", "2.jpg"), ("deep/inner/7.jpg", "7.jpg")]
    {
        assert_eq!(found[name.as_bytes()], held.as_bytes());
    }
    assert_eq!((found.len(), &found[&b"n02/link.jpg"[..]][..]), (10, &b"3.jpg"[..]));
    // One that is compressed cannot be taken apart in place, nor can one that a stream has.
    let odd = archive(dir.path(), "odd.tar", &[file("a.tar.gz"), class("b.tar", 0..1)]);
    let source = look(&odd, true);
    assert_eq!(names(&source), ["b/0.jpg", "b/link.jpg"]);
    assert!(matches!(source.index().bad[0].reason, BadReason::Syntax(_)));
    let store = ObjectStore::good();
    store.put("train.tar", fs::read(&outer).unwrap());
    let of_store = ImportOptions { places: store.options(), ..nested };
    let train = PathBuf::from("s3://bucket/train.tar");
    let empty =
        || -> Vec<Arc<dyn Device>> { vec![Arc::new(MemNamespace::new(16 << 20, 4096).unwrap())] };
    let error = import_onto(&[train], &empty(), &of_store, &mut ()).unwrap_err();
    assert!(error.report().contains("--spool DIR") && error.report().contains("n02.tar"));
    assert!(error.report().contains("--on-error skip"));
    store.put("more.tar", [&file("own.jpg")[..], &fs::read(&odd).unwrap()].concat());
    let skip = ImportOptions { on_error: OnError::Skip, ..of_store };
    let more = PathBuf::from("s3://bucket/more.tar");
    let report = import_onto(&[more], &empty(), &skip, &mut ()).unwrap();
    assert_eq!((report.samples, report.bad.len()), (1, 2));
}

#[test]
fn a_link_within_an_archive_counts_as_an_archive_only_if_it_leads_to_one() {
    let dir = tempfile::tempdir().unwrap();
    let members = [
        file("a.tar"),
        member("hard.tar", b'1', "a.tar", b""),
        member("soft.tar", b'2', "a.tar", b""),
        member("dangling.tar", b'2', "none.tar", b""),
        member("out.tar", b'2', "/a.tar", b""),
    ];
    let outer = archive(dir.path(), "outer.tar", &members);
    let source = Source::open(&[outer], &SourceOptions::default()).unwrap();
    assert_eq!(names(&source), ["a.tar", "hard.tar", "soft.tar"]);
    let reasons: Vec<_> = source.index().bad.iter().map(|bad| &bad.reason).collect();
    assert_eq!(reasons, [&BadReason::LeavesSource, &BadReason::Dangling]);
    let nested = source.file_counts().iter().find(|count| count.role == Role::Sample);
    let counted = nested.map(|count| (&*count.what, count.files, count.bytes));
    assert_eq!(counted, Some(("archive within an archive", 3, 3 * "a.tar".len() as u64)));
}
