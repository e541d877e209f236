//! Numbers of classes: by name, or as another data set has them.

use std::fs;
use std::path::Path;

use crate::import_support::options;
use crate::support::archives::{archive, member};
use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions, class_names};
use dlfs::import::{ImportOptions, Onto, RowOptions, import};
use dlfs::qpair::ConnectOptions;
use dlfs::shards::ShardOptions;

/// The label of each sample, by name.
type Labels = Vec<(String, Option<i64>)>;

/// Imports `source`; returns the classes of the image and the label of each sample, by name.
fn imported(source: &Path, given: &ImportOptions) -> dlfs::Result<(Vec<String>, Labels)> {
    let path = source.with_extension("dlfs");
    let address = Address::from_path(&path);
    let sources = [source.to_path_buf()];
    import(&sources, std::slice::from_ref(&address), given, &ConnectOptions::default(), &mut ())?;
    opened(address, &OpenOptions::default())
}

/// The classes and labels of a data set, as [`imported`] returns them.
fn opened(address: Address, options: &OpenOptions) -> dlfs::Result<(Vec<String>, Labels)> {
    let image = Image::open(&[address], options)?;
    image.load_names()?;
    let directory = image.directory();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut labels = Vec::new();
    for rank in 0..directory.num_live() {
        let id = directory.id_of_live(rank);
        labels.push((text(&directory.name(id)?.unwrap()), directory.label(id)));
    }
    labels.sort_unstable();
    Ok((directory.classes().iter().map(|class| text(class)).collect(), labels))
}

/// A file with a row for each word.
fn lines(dir: &Path, name: &str, words: &[&str]) -> std::path::PathBuf {
    let line = |word: &&str| format!("{{\"kind\": \"{word}\", \"text\": \"of {word}\"}}\n");
    let path = dir.join(name);
    fs::write(&path, words.iter().map(line).collect::<String>()).unwrap();
    path
}

fn by_kind() -> ImportOptions {
    let rows = RowOptions { label: Some("kind".to_owned()), ..RowOptions::default() };
    ImportOptions { rows, ..options(Onto::Empty) }
}

#[test]
fn texts_are_numbered_by_name_whichever_row_comes_first() {
    let dir = tempfile::tempdir().unwrap();
    let train = lines(dir.path(), "train.jsonl", &["dog", "cat", "ant", "cat"]);
    let (classes, labels) = imported(&train, &by_kind()).unwrap();
    assert_eq!(classes, ["ant", "cat", "dog"]);
    assert_eq!(labels.into_iter().map(|it| it.1).collect::<Vec<_>>(), [2, 1, 0, 1].map(Some));
    // An append keeps the existing numbers of classes.
    let more = lines(dir.path(), "more.jsonl", &["eel", "bee", "dog"]);
    fs::rename(dir.path().join("train.dlfs"), dir.path().join("more.dlfs")).unwrap();
    let append = ImportOptions { onto: Onto::Append, ..by_kind() };
    let (classes, labels) = imported(&more, &append).unwrap();
    assert_eq!(classes, ["ant", "cat", "dog", "bee", "eel"]);
    assert_eq!(labels[0], ("more.jsonl/0".to_owned(), Some(4)));
}

#[test]
fn classes_get_the_numbers_of_a_file_or_of_another_image() {
    let dir = tempfile::tempdir().unwrap();
    imported(&lines(dir.path(), "train.jsonl", &["dog", "cat", "ant"]), &by_kind()).unwrap();
    let val = lines(dir.path(), "val.jsonl", &["dog", "cat"]);
    fs::write(dir.path().join("names.txt"), "ant\r\ncat\r\ndog\r\n").unwrap();
    fs::create_dir_all(dir.path().join("folder/cat")).unwrap();
    fs::write(dir.path().join("folder/cat/1.jpg"), "x").unwrap();
    for from in ["train.dlfs", "names.txt"] {
        let from = dir.path().join(from);
        let classes = class_names(from.as_os_str(), &ConnectOptions::default()).unwrap();
        let given = ImportOptions { classes, onto: Onto::Force, ..by_kind() };
        let (classes, labels) = imported(&val, &given).unwrap();
        assert_eq!(classes, ["ant", "cat", "dog"]);
        let labels: Vec<_> = labels.into_iter().map(|it| it.1).collect();
        assert_eq!(labels, [Some(2), Some(1)], "{}", from.display());
        let rows = RowOptions::default();
        let given = ImportOptions { rows, ..given };
        let (classes, labels) = imported(&dir.path().join("folder"), &given).unwrap();
        assert_eq!((classes.len(), &labels[..]), (3, &[("cat/1.jpg".to_owned(), Some(1))][..]));
    }
}

#[test]
fn a_class_that_is_not_given_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let val = lines(dir.path(), "val.jsonl", &["dog", "cat"]);
    fs::create_dir_all(dir.path().join("folder/dog")).unwrap();
    fs::write(dir.path().join("folder/dog/1.jpg"), "x").unwrap();
    let classes = vec![b"cat".to_vec()];
    let given = ImportOptions { classes: classes.clone(), ..by_kind() };
    let error = imported(&val, &given).unwrap_err().report();
    assert!(error.contains("val.jsonl/0") && error.contains("--classes"), "{error}");
    let given = ImportOptions { classes, ..options(Onto::Empty) };
    let error = imported(&dir.path().join("folder"), &given).unwrap_err().report();
    assert!(error.contains("the class dog") && error.contains("--classes"), "{error}");
    fs::write(dir.path().join("names.txt"), "cat\n\ndog\n").unwrap();
    let names = dir.path().join("names.txt");
    let error = class_names(names.as_os_str(), &ConnectOptions::default()).unwrap_err();
    assert!(error.report().contains("line 2 is empty"), "{}", error.report());
}

#[test]
fn an_empty_folder_of_an_archive_is_a_class_of_its_import_and_of_its_shards() {
    let dir = tempfile::tempdir().unwrap();
    let folder = |name| member(name, b'5', "", b"");
    let file = |name| member(name, b'0', "", b"content");
    let tar = archive(
        dir.path(),
        "a.tar",
        &[folder("top/"), folder("top/0/"), folder("top/a/"), file("top/a/1"), file("top/c/2")],
    );
    let expected = imported(&tar, &options(Onto::Empty)).unwrap();
    assert_eq!(expected.0, ["0", "a", "c"]);
    let labels: Labels = vec![("top/a/1".to_owned(), Some(1)), ("top/c/2".to_owned(), Some(2))];
    assert_eq!(expected.1, labels);
    let kept = dir.path().join("kept");
    for _ in 0..2 {
        // The second time, by the indexes that the first has kept.
        let shards = ShardOptions { index: Some(kept.clone()), ..ShardOptions::default() };
        let options = OpenOptions { shards: Some(shards), ..OpenOptions::default() };
        assert_eq!(opened(Address::from_path(&tar), &options).unwrap(), expected);
    }
}
