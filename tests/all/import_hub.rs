//! Imports from the Hugging Face hub: its listing by page, revisions, and data sets that need a token.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::import_support::{contents, options};
use crate::support::hub::Hub;
use dlfs::import::sources::{Role, SourceKind};
use dlfs::import::{ImportOptions, ImportReport, Onto, import_onto};
use dlfs::places::PlaceOptions;
use dlfs::qpair::Device;
use dlfs::qpair::mem::MemNamespace;
use dlfs::{ErrorKind, Result};

type Files = BTreeMap<String, Vec<u8>>;
type Samples = BTreeMap<Vec<u8>, Vec<u8>>;

/// A repository with two kinds of sources; `salt` is in all of its samples.
fn repository(salt: &str) -> Files {
    let mut files = Files::new();
    files.insert(".gitattributes".to_owned(), b"*.jsonl filter=lfs".to_vec());
    files.insert("README.md".to_owned(), b"---\nlicense: mit\n---".to_vec());
    for shard in 0..4 {
        let line = |row: usize| format!("{{\"text\": \"{salt} {shard} {row}\"}}\n");
        let lines: String = (0..5 + shard).map(line).collect();
        files.insert(format!("data/train-0000{shard}-of-00004.jsonl"), lines.into_bytes());
    }
    for picture in 0..7 {
        let class = if picture % 2 == 0 { "cat" } else { "a dog" };
        files.insert(
            format!("pictures/{class}/{picture}.jpg"),
            format!("{salt}{picture}").into_bytes(),
        );
    }
    files
}

fn import(source: &str, places: PlaceOptions) -> Result<(ImportReport, Samples)> {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemNamespace::new(16 << 20, 4096).unwrap())];
    let options = ImportOptions { places, ..options(Onto::Empty) };
    let report = import_onto(&[PathBuf::from(source)], &devices, &options, &mut ())?;
    Ok((report, contents(&devices)?))
}

/// The files of `folder` by their names in it.
fn pictures(files: &Files) -> Samples {
    let named = |(path, bytes): (&String, &Vec<u8>)| {
        let name = path.strip_prefix("pictures/")?;
        Some((name.as_bytes().to_vec(), bytes.clone()))
    };
    files.iter().filter_map(named).collect()
}

#[test]
fn files_are_listed_by_page_and_read_where_the_hub_redirects_to() {
    let files = repository("one");
    let hub = Hub::new(vec![files.clone()], None, 0);
    let (report, samples) = import("hf://datasets/own/set/pictures", hub.options("")).unwrap();
    assert_eq!((report.kind, report.samples), (SourceKind::Folder, 7));
    assert_eq!(samples, pictures(&files));
    // 14 entries, the folders among them, and 3 of them on a page.
    assert_eq!(hub.state().pages.load(Ordering::Relaxed), 5);
    let (report, samples) = import("hf://datasets/own/set@main/data", hub.options("")).unwrap();
    assert_eq!((report.kind, report.samples), (SourceKind::JsonLines, 5 + 6 + 7 + 8));
    assert_eq!(samples[&b"train-00002-of-00004.jsonl/6"[..]], b"one 2 6");
    let one = "hf://datasets/own/set/data/train-00003-of-00004.jsonl";
    assert_eq!(import(one, hub.options("")).unwrap().0.samples, 8);
    let braces = "hf://datasets/own/set/data/train-{00000..00001}-of-00004.jsonl";
    assert_eq!(import(braces, hub.options("")).unwrap().0.samples, 11);
    // Rows and pictures at once are not one source.
    let mixed = import("hf://datasets/own/set", hub.options("")).map(drop).unwrap_err().report();
    assert!(mixed.contains("shards and other objects"), "{mixed}");
}

#[test]
fn the_report_says_which_splits_are_taken() {
    let mut files = repository("one");
    files.retain(|path, _| path.starts_with("data/"));
    let line = b"{\"text\": \"a test\"}\n";
    files.insert("data/test-00000-of-00001.jsonl".to_owned(), line.to_vec());
    let hub = Hub::new(vec![files], None, 0);
    let (report, _) = import("hf://datasets/own/set", hub.options("")).unwrap();
    let mut told: Vec<(&str, u64)> =
        report.file_counts.iter().map(|count| (&*count.what, count.files)).collect();
    told.sort_unstable();
    let [(test, 1), (train, 4)] = told[..] else { panic!("{told:?}") };
    assert!(test.ends_with("split test") && train.ends_with("split train"), "{told:?}");
    let braces = "hf://datasets/own/set/data/train-{00000..00001}-of-00004.jsonl";
    let (report, _) = import(braces, hub.options("")).unwrap();
    assert!(report.file_counts.iter().all(|count| count.what.ends_with("split train")));
}

#[test]
fn a_hub_that_is_busy_is_asked_again() {
    let files = repository("one");
    let hub = Hub::new(vec![files.clone()], None, 2);
    let (_, samples) = import("hf://datasets/own/set/pictures", hub.options("")).unwrap();
    assert_eq!(samples, pictures(&files));
}

#[test]
fn one_commit_is_read_however_the_revision_moves() {
    let old = repository("old");
    let new = repository("new");
    let hub = Hub::new(vec![old.clone(), new.clone()], None, 0);
    let source = "hf://datasets/own/set/pictures";
    assert_eq!(import(source, hub.options("")).unwrap().1, pictures(&new));
    let at = "hf://datasets/own/set@refs%2Fpr%2F1/pictures";
    assert_eq!(import(at, hub.options("")).unwrap().1, pictures(&old));
    hub.moves();
    for expected in [&old, &new, &old] {
        assert_eq!(import(source, hub.options("")).unwrap().1, pictures(expected));
    }
}

#[test]
fn what_is_not_there_is_missed_by_its_name() {
    let hub = Hub::new(vec![repository("one")], None, 0);
    let refusal = |source: &str| import(source, hub.options("")).map(drop).unwrap_err();
    for (source, words) in [
        ("hf://datasets/own/set@nix", "own/set with the revision nix"),
        ("hf://datasets/own/other", "own/other"),
        ("hf://datasets/own/set/nix", "own/set/nix"),
        ("hf://datasets/own/set/data/nix.parquet", "nix.parquet"),
    ] {
        let error = refusal(source);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{source}: {error:?}");
        assert!(error.report().contains(words), "{source}: {}", error.report());
    }
    let told = refusal("hf://own/set");
    assert_eq!(told.kind(), ErrorKind::InvalidArgument);
    assert!(told.report().contains("hf://datasets/OWNER/NAME"), "{}", told.report());
}

#[test]
fn a_gated_data_set_needs_its_token_which_no_other_host_gets() {
    let files = repository("one");
    let hub = Hub::new(vec![files.clone()], Some("hf_SECRET"), 0);
    for token in ["", "hf_WRONG"] {
        for source in
            ["hf://datasets/own/set", "hf://datasets/own/set/data/train-00003-of-00004.jsonl"]
        {
            let refused = import(source, hub.options(token)).map(drop).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Refused, "{token}: {refused:?}");
            let told = refused.report();
            assert!(told.contains("gated") && told.contains("HF_TOKEN"), "{told}");
            assert!(!told.contains("hf_WRONG"), "{told}");
        }
    }
    let source = "hf://datasets/own/set/pictures";
    assert_eq!(import(source, hub.options("hf_SECRET")).unwrap().1, pictures(&files));
    assert!(hub.state().reads.load(Ordering::Relaxed) >= 7);
    assert_eq!(hub.state().leaks.load(Ordering::Relaxed), 0);
    let invalid = import(source, hub.options("two\nlines")).map(drop).unwrap_err();
    assert_eq!(invalid.kind(), ErrorKind::InvalidArgument);
    assert!(!invalid.report().contains("lines"), "{}", invalid.report());
}

#[test]
fn splits_are_taken_by_the_names_of_their_files_and_others_are_listed() {
    let mut files = repository("one");
    let lines = |text: &str| format!("{{\"text\": \"{text}\"}}\n").into_bytes();
    files.insert("data/val-00000-of-00001.jsonl".to_owned(), lines("val"));
    files.insert("data/test_long-00000-of-00001.jsonl".to_owned(), lines("long"));
    let hub = Hub::new(vec![files], None, 0);
    let of = |splits: &[&str]| {
        let devices: Vec<Arc<dyn Device>> =
            vec![Arc::new(MemNamespace::new(16 << 20, 4096).unwrap())];
        let splits = splits.iter().map(|split| split.to_string()).collect();
        let places = hub.options("");
        let options = ImportOptions { places, splits, ..options(Onto::Empty) };
        // With the pictures beside them: they are of no split.
        let source = [PathBuf::from("hf://datasets/own/set")];
        let report = import_onto(&source, &devices, &options, &mut ())?;
        Ok::<_, dlfs::Error>((report, contents(&devices)?))
    };
    let (report, samples) = of(&["validation"]).unwrap();
    assert_eq!(samples[&b"data/val-00000-of-00001.jsonl/0"[..]], b"val");
    assert_eq!(report.samples, 1);
    let taken = report.file_counts.iter().find(|count| count.role == Role::Shard).unwrap();
    assert!(taken.what.contains("split validation"), "{taken:?}");
    assert_eq!(of(&["val", "test_long"]).unwrap().0.samples, 2);
    assert_eq!(of(&["train"]).unwrap().0.samples, 5 + 6 + 7 + 8);
    let error = of(&["train", "test"]).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let told = error.report();
    assert!(told.contains("no split test; there are test_long, train, validation"), "{told}");
    let pictures = ImportOptions { splits: vec!["train".to_owned()], ..options(Onto::Empty) };
    let local = import_onto(&[PathBuf::from("/nowhere")], &[], &pictures, &mut ()).unwrap_err();
    assert_eq!(local.kind(), ErrorKind::InvalidArgument, "{}", local.report());
}
