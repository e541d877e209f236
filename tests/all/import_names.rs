//! Names that several shards, folders or files of rows have.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::import_support::{contents, options};
use crate::support::archives::{archive, member, record};
use crate::support::object_store::ObjectStore;
use dlfs::import::sources::{Role, SourceKind};
use dlfs::import::{ImportOptions, ImportReport, Onto, PlacementOrder, RowOptions, import_onto};
use dlfs::qpair::Device;
use dlfs::qpair::mem::MemNamespace;

type Samples = BTreeMap<String, Vec<u8>>;

fn imported(sources: &[PathBuf], options: &ImportOptions) -> dlfs::Result<(ImportReport, Samples)> {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemNamespace::new(16 << 20, 4096).unwrap())];
    let report = import_onto(sources, &devices, options, &mut ())?;
    let samples = contents(&devices)?.into_iter();
    let text = |name: Vec<u8>| String::from_utf8(name).unwrap();
    Ok((report, samples.map(|(name, bytes)| (text(name), bytes)).collect()))
}

fn names(samples: &Samples) -> Vec<&str> {
    samples.keys().map(String::as_str).collect()
}

/// Archives with the keys 0 and 1 each.
fn shards(dir: &Path, names: &[&str]) -> Vec<PathBuf> {
    let of = |name: &&str| {
        let file = |key: &str| member(key, b'0', "", format!("{name} {key}").as_bytes());
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        archive(dir, name, &["0.jpg", "0.txt", "1.jpg", "1.txt"].map(file))
    };
    names.iter().map(of).collect()
}

#[test]
fn a_shard_comes_in_front_of_keys_that_an_earlier_shard_has_wherever_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let paths = shards(dir.path(), &["00.tar", "01.tar", "02.tar"]);
    let expected = ["0", "01.tar/0", "01.tar/1", "02.tar/0", "02.tar/1", "1"];
    let (report, local) = imported(&paths, &options(Onto::Empty)).unwrap();
    assert_eq!((report.kind, names(&local)), (SourceKind::WebDataset, expected.into()));
    assert!(local["01.tar/1"].ends_with(b"01.tar 1.jpg01.tar 1.txt"));
    // From a store, as a stream.
    let store = ObjectStore::good();
    for path in &paths {
        let name = path.file_name().unwrap().to_string_lossy();
        store.put(&format!("set/{name}"), fs::read(path).unwrap());
    }
    let of_store = ImportOptions { places: store.options(), ..options(Onto::Empty) };
    let (_, streamed) = imported(&["s3://bucket/set/".into()], &of_store).unwrap();
    assert_eq!(streamed, local);
    // Compressed, as they come.
    let packed: Vec<PathBuf> = paths
        .iter()
        .map(|path| {
            let packed = path.with_extension("tar.zst");
            fs::write(&packed, zstd::encode_all(&*fs::read(path).unwrap(), 1).unwrap()).unwrap();
            packed
        })
        .collect();
    let in_order = ImportOptions { placement: PlacementOrder::Source, ..options(Onto::Empty) };
    let (_, streamed) = imported(&packed, &in_order).unwrap();
    let named = |name: &str| name.replace(".tar/", ".tar.zst/");
    let expected: Samples = local.iter().map(|(name, it)| (named(name), it.clone())).collect();
    assert_eq!(streamed, expected);
    // In front of all names, on request.
    let prefix = ImportOptions { prefix: true, ..options(Onto::Empty) };
    let all = ["00.tar/0", "00.tar/1", "01.tar/0", "01.tar/1"];
    assert_eq!(names(&imported(&paths[..2], &prefix).unwrap().1), all);
    let prefix = ImportOptions { prefix: true, ..of_store };
    let some = ["s3://bucket/set/00.tar", "s3://bucket/set/01.tar"].map(PathBuf::from);
    assert_eq!(names(&imported(&some, &prefix).unwrap().1), all);
}

#[test]
fn shards_of_one_name_are_told_apart_by_their_folders() {
    let dir = tempfile::tempdir().unwrap();
    shards(dir.path(), &["train/00.tar", "val/00.tar"]);
    let folders = ["train", "val"].map(|name| dir.path().join(name));
    let (_, samples) = imported(&folders, &options(Onto::Empty)).unwrap();
    assert_eq!(names(&samples), ["0", "1", "val/00.tar/0", "val/00.tar/1"]);
    let parts: Vec<PathBuf> = ["a", "b"]
        .iter()
        .map(|folder| {
            let path = dir.path().join(folder).join("part-0");
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, record(folder.as_bytes())).unwrap();
            path
        })
        .collect();
    let of_kind = ImportOptions { from: SourceKind::TfRecord, ..options(Onto::Empty) };
    let (_, samples) = imported(&parts, &of_kind).unwrap();
    assert_eq!(names(&samples), ["a/part-0/0", "b/part-0/0"]);
    assert_eq!(samples["b/part-0/0"], b"b");
    // Files of rows, without names of their own and with.
    for path in &parts {
        fs::write(path, "{\"id\": \"x\", \"v\": \"1\"}\n{\"id\": \"y\", \"v\": \"2\"}\n").unwrap();
    }
    let lines = ImportOptions { from: SourceKind::JsonLines, ..options(Onto::Empty) };
    let (_, samples) = imported(&parts, &lines).unwrap();
    assert_eq!(names(&samples), ["a/part-0/0", "a/part-0/1", "b/part-0/0", "b/part-0/1"]);
    let by_id = RowOptions { name: Some("id".to_owned()), ..RowOptions::default() };
    let named = ImportOptions { rows: by_id, ..lines };
    let (_, samples) = imported(&parts, &named).unwrap();
    assert_eq!(names(&samples), ["b/part-0/x", "b/part-0/y", "x", "y"]);
    let prefix = ImportOptions { prefix: true, ..named.clone() };
    let (_, samples) = imported(&parts, &prefix).unwrap();
    assert_eq!(names(&samples), ["a/part-0/x", "a/part-0/y", "b/part-0/x", "b/part-0/y"]);
    // A name twice in one file stays an error.
    fs::write(&parts[1], "{\"id\": \"z\", \"v\": \"1\"}\n{\"id\": \"z\", \"v\": \"2\"}\n").unwrap();
    let error = imported(&parts, &named).unwrap_err();
    assert!(error.report().contains("z: name appears twice"), "{}", error.report());
}

#[test]
fn names_of_two_folders_are_refused_and_the_option_that_is_named_tells_them_apart() {
    let dir = tempfile::tempdir().unwrap();
    let store = ObjectStore::good();
    for split in ["train", "val"] {
        fs::create_dir_all(dir.path().join(split).join("cat")).unwrap();
        fs::write(dir.path().join(split).join("cat/1.jpg"), split).unwrap();
        fs::write(dir.path().join(format!("{split}.txt")), format!("{split}/cat/1.jpg\t7\n"))
            .unwrap();
        store.put(&format!("{split}/cat/1.jpg"), split);
    }
    let folders = ["train", "val"].map(|name| dir.path().join(name));
    let error = imported(&folders, &options(Onto::Empty)).unwrap_err();
    assert!(error.report().contains("--prefix puts the folder"), "{}", error.report());
    let prefix = ImportOptions { prefix: true, ..options(Onto::Empty) };
    let expected = ["train/cat/1.jpg", "val/cat/1.jpg"];
    let (_, samples) = imported(&folders, &prefix).unwrap();
    assert_eq!(names(&samples), expected);
    assert_eq!(samples["val/cat/1.jpg"], b"val");
    let of_store = ImportOptions { places: store.options(), ..prefix.clone() };
    let objects = ["s3://bucket/train/", "s3://bucket/val/"].map(PathBuf::from);
    assert_eq!(imported(&objects, &of_store).unwrap().1, samples);
    // Lists that name the same files.
    fs::write(dir.path().join("more.txt"), "train/cat/1.jpg\t7\n").unwrap();
    let lists = ["train.txt", "more.txt"].map(|name| dir.path().join(name));
    let error = imported(&lists, &options(Onto::Empty)).unwrap_err();
    assert!(error.report().contains("--prefix"), "{}", error.report());
    let (_, samples) = imported(&lists, &prefix).unwrap();
    assert_eq!(names(&samples), ["more.txt/train/cat/1.jpg", "train.txt/train/cat/1.jpg"]);
}

/// A folder as MosaicML Streaming's `merge_index` leaves it: an index in each subfolder, and one of all above.
fn merged(root: &Path) {
    let mut all = Vec::new();
    for sub in ["a", "b"] {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join(MDS);
        fs::create_dir_all(root.join(sub)).unwrap();
        for entry in fs::read_dir(data).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, root.join(sub).join(path.file_name().unwrap())).unwrap();
        }
        let index = fs::read(root.join(sub).join("index.json")).unwrap();
        let mut index: serde_json::Value = serde_json::from_slice(&index).unwrap();
        for shard in index["shards"].as_array_mut().unwrap() {
            for part in ["raw_data", "zip_data"] {
                if let Some(name) = shard[part]["basename"].as_str() {
                    let name = format!("{sub}/{name}");
                    shard[part]["basename"] = name.into();
                }
            }
            all.push(shard.clone());
        }
    }
    let index = serde_json::json!({"shards": all, "version": 2});
    fs::write(root.join("index.json"), index.to_string()).unwrap();
}

#[test]
fn shards_of_a_merged_index_are_imported_once() {
    let dir = tempfile::tempdir().unwrap();
    merged(dir.path());
    let sources = [dir.path().to_path_buf()];
    let one = imported(&[dir.path().join("a")], &options(Onto::Empty)).unwrap().0.samples;
    let mut seen = Vec::new();
    for from in [SourceKind::Auto, SourceKind::Mds] {
        let given = ImportOptions { from, ..options(Onto::Empty) };
        let (report, samples) = imported(&sources, &given).unwrap();
        assert_eq!(report.samples, 2 * one);
        let aside = report.file_counts.iter().find(|count| count.what.contains("another index"));
        assert_eq!(aside.map(|count| (count.role, count.files)), Some((Role::SetAside, 2)));
        seen.push(samples);
    }
    // From a store, too.
    let store = ObjectStore::good();
    for folder in ["", "a/", "b/"] {
        for entry in fs::read_dir(dir.path().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let name = path.file_name().unwrap().to_string_lossy();
                store.put(&format!("mds/{folder}{name}"), fs::read(&path).unwrap());
            }
        }
    }
    let given = ImportOptions { places: store.options(), ..options(Onto::Empty) };
    seen.push(imported(&["s3://bucket/mds/".into()], &given).unwrap().1);
    assert!(seen[0].len() as u64 == 2 * one && seen[0] == seen[1] && seen[1] == seen[2]);
    // Without the index of all, --from mds takes those of the subfolders, as the hint says.
    fs::remove_file(dir.path().join("index.json")).unwrap();
    let error = imported(&sources, &options(Onto::Empty)).unwrap_err();
    assert!(error.report().contains("--from webdataset|tar|"), "{}", error.report());
    let given = ImportOptions { from: SourceKind::Mds, ..options(Onto::Empty) };
    assert_eq!(imported(&sources, &given).unwrap().1, seen[0]);
}

#[test]
fn a_source_without_a_sample_says_why() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("cat")).unwrap();
    fs::write(dir.path().join("cat/._1.jpg"), "x").unwrap();
    let sources = [dir.path().to_path_buf()];
    let error = imported(&sources, &options(Onto::Empty)).unwrap_err();
    for told in ["there is no sample", "1 hidden file", "cat/._1.jpg", "--hidden"] {
        assert!(error.report().contains(told), "{told}: {}", error.report());
    }
    let mut hidden = options(Onto::Empty);
    hidden.folders.hidden = true;
    assert_eq!(imported(&sources, &hidden).unwrap().0.samples, 1);
    let tar = dir.path().join("a.tar");
    fs::write(&tar, [member("._1.jpg", b'0', "", b"x"), vec![0; 1024]].concat()).unwrap();
    for placement in [PlacementOrder::Source, PlacementOrder::Shuffled] {
        let given = ImportOptions { placement, ..options(Onto::Empty) };
        let error = imported(std::slice::from_ref(&tar), &given).unwrap_err();
        assert!(error.report().contains("--hidden"), "{}", error.report());
    }
}

/// A data set written by the streaming library.
const MDS: &str = "tests/rows/mds";
