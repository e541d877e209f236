//! An image says which objects of stores it was imported from, whatever is done to it later.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use crate::import_support::{contents, options};
use crate::support::archives::member;
use crate::support::object_store::ObjectStore;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::format::Origin;
use dlfs::format::snapshot::{SectionKind, SnapshotHead};
use dlfs::format::superblock::ORIGINS;
use dlfs::import::{ImportOptions, OnError, Onto, delete_on, import_onto, purge_on, rebuild_on};
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;

fn memory() -> Vec<Arc<dyn Device>> {
    vec![Arc::new(MemNamespace::new(16 << 20, 4096).unwrap())]
}

fn import(store: &ObjectStore, sources: &[&str], devices: &[Arc<dyn Device>], onto: Onto) {
    let sources: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
    let skip = ImportOptions { on_error: OnError::Skip, places: store.options(), ..options(onto) };
    import_onto(&sources, devices, &skip, &mut ()).unwrap();
}

fn open(devices: &[Arc<dyn Device>]) -> Image {
    Image::from_devices(devices.to_vec(), &OpenOptions::default()).unwrap()
}

fn origins(devices: &[Arc<dyn Device>]) -> Vec<Origin> {
    let image = open(devices);
    let of = |image: &Image| {
        let mut all = Vec::new();
        image.origins(&mut |origin| all.push(origin)).unwrap();
        all
    };
    let all = of(&image);
    // The same once more, and after the names, which lie in front of them.
    assert_eq!(of(&image), all);
    let other = open(devices);
    other.load_names().unwrap();
    assert_eq!(of(&other), all);
    assert_eq!(image.superblocks()[0].features_to_write & ORIGINS != 0, !all.is_empty());
    all
}

/// Generation, key and length of each; the tag must be that of the store.
fn shown(store: &ObjectStore, devices: &[Arc<dyn Device>]) -> Vec<(u64, String, u64)> {
    let all = origins(devices).into_iter().map(|origin| {
        let key = origin.address.strip_prefix("s3://bucket/").expect(&origin.address).to_owned();
        assert_eq!(origin.etag, Some(store.etag(&key)), "{key}");
        assert_eq!(origin.len_bytes, store.bytes(&key).len() as u64, "{key}");
        (origin.generation.0, key, origin.len_bytes)
    });
    all.collect()
}

fn keys(store: &ObjectStore, devices: &[Arc<dyn Device>]) -> Vec<String> {
    shown(store, devices).into_iter().map(|(_, key, _)| key).collect()
}

fn tar(names: &[&str]) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        names.iter().flat_map(|name| member(name, b'0', "", name.as_bytes())).collect();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

#[test]
fn every_kind_of_source_in_a_store_leaves_address_tag_and_length() {
    let store = ObjectStore::good();
    for key in ["set/a/1", "set/b/2", "set/b/3"] {
        store.put(key, key);
    }
    store.put("shards/0.tar", tar(&["x", "y"]));
    store.put("shards/1.tar", tar(&["z"]));
    store.put("shards/README.md", "about");
    store.put("lists/some.txt", "one\ns3://bucket/set/a/1\nnone\n");
    store.put("lists/one", "one");
    let mds = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/rows/mds");
    let mut files: Vec<String> = fs::read_dir(&mds)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort_unstable(); // the index comes first, and then the shards, by number
    for file in &files {
        store.put(&format!("mds/{file}"), fs::read(mds.join(file)).unwrap());
    }
    let lines =
        "{\"file_name\": \"f/1\"}\n{\"file_name\": \"f/absent\"}\n{\"file_name\": \"f/2\"}\n";
    store.put("lines/all.jsonl", lines);
    store.put("lines/f/1", "first");
    store.put("lines/f/2", "second");
    let of = |source: &str| {
        let devices = memory();
        import(&store, &[source], &devices, Onto::Empty);
        keys(&store, &devices)
    };
    assert_eq!(of("s3://bucket/set"), ["set/a/1", "set/b/2", "set/b/3"]);
    assert_eq!(of("s3://bucket/shards"), ["shards/0.tar", "shards/1.tar"]);
    assert_eq!(of("s3://bucket/lists/some.txt"), ["lists/one", "set/a/1"], "what is absent is not");
    let files: Vec<String> = files.iter().map(|file| format!("mds/{file}")).collect();
    assert_eq!(of("s3://bucket/mds"), files);
    assert_eq!(of("s3://bucket/lines/all.jsonl"), ["lines/all.jsonl", "lines/f/1", "lines/f/2"]);
}

#[test]
fn what_is_left_out_is_no_origin() {
    let store = ObjectStore::good();
    for key in ["set/a", "set/b", "set/c"] {
        store.put(key, "abc");
    }
    let devices = memory();
    import(&store, &["s3://bucket/set"], &devices, Onto::Empty);
    store.put("set/d", "d");
    // The three names are taken.
    import(&store, &["s3://bucket/set"], &devices, Onto::Append);
    let found: Vec<(u64, String)> =
        shown(&store, &devices).into_iter().map(|(generation, key, _)| (generation, key)).collect();
    let of = |generation, key: &str| (generation, key.to_owned());
    assert_eq!(found, [of(1, "set/a"), of(1, "set/b"), of(1, "set/c"), of(2, "set/d")]);
}

#[test]
fn origins_survive_appends_deletes_purges_and_rebuilds() {
    let store = ObjectStore::good();
    store.put("0.tar", tar(&["a", "b", "c"]));
    let devices = memory();
    import(&store, &["s3://bucket/0.tar"], &devices, Onto::Empty);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("local"), "local").unwrap();
    let local = [folder.path().to_str().unwrap()];
    import(&store, &local, &devices, Onto::Append);
    assert_eq!(keys(&store, &devices), ["0.tar"], "a local file is none");
    store.put("1.tar", tar(&["d", "e"]));
    import(&store, &["s3://bucket/1.tar"], &devices, Onto::Append);
    let expected = [(1, "0.tar".to_owned()), (3, "1.tar".to_owned())];
    let found = || {
        let all = shown(&store, &devices).into_iter();
        all.map(|(generation, key, _)| (generation, key)).collect::<Vec<_>>()
    };
    assert_eq!(found(), expected);
    delete_on(&devices, &[b"a".to_vec(), b"d".to_vec()]).unwrap();
    assert_eq!(found(), expected);
    purge_on(&devices, &mut ()).unwrap();
    assert_eq!(found(), expected);
    let samples = contents(&devices).unwrap();
    // Without the snapshot, the generation record has them.
    let location = open(&devices).superblocks()[0].snapshot;
    let mut io = Blocking::new(devices[0].queue_pair().unwrap()).unwrap();
    let zeroes = vec![0; location.len_bytes as usize];
    io.write_at(location.offset_bytes, &zeroes).unwrap();
    Image::from_devices(devices.clone(), &OpenOptions::default()).expect_err("it is damaged");
    rebuild_on(&devices, None, &mut ()).unwrap();
    assert_eq!((found(), contents(&devices).unwrap()), (expected.to_vec(), samples));
}

#[test]
fn an_image_from_elsewhere_has_no_mark_of_origins() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("local"), "local").unwrap();
    let devices = memory();
    import(&ObjectStore::good(), &[folder.path().to_str().unwrap()], &devices, Onto::Empty);
    assert_eq!(origins(&devices), []);
    let location = open(&devices).superblocks()[0].snapshot;
    let mut io = Blocking::new(devices[0].queue_pair().unwrap()).unwrap();
    let head = io.read(location.offset_bytes, 4096).unwrap();
    assert!(SnapshotHead::parse(&head).unwrap().section(SectionKind::Origins).is_none());
}

#[test]
pub(crate) fn damaged_origins_stop_their_listing_and_nothing_else() {
    let store = ObjectStore::good();
    store.put("0.tar", tar(&["a", "b", "c"]));
    let devices = memory();
    import(&store, &["s3://bucket/0.tar"], &devices, Onto::Empty);
    let location = open(&devices).superblocks()[0].snapshot;
    let mut io = Blocking::new(devices[0].queue_pair().unwrap()).unwrap();
    let mut snapshot =
        io.read(location.offset_bytes, location.len_bytes as usize).unwrap().to_vec();
    let head = SnapshotHead::parse(&snapshot).unwrap();
    snapshot[head.section(SectionKind::Origins).unwrap().offset as usize + 3] ^= 1;
    io.write_at(location.offset_bytes, &snapshot).unwrap();
    let image = open(&devices);
    image.load_names().unwrap();
    let told = image.origins(&mut |_| ()).unwrap_err().report();
    assert!(told.contains("origins") && told.contains("rebuild"), "{told}");
    rebuild_on(&devices, None, &mut ()).unwrap();
    assert_eq!(keys(&store, &devices), ["0.tar"]);
}

#[test]
fn no_origin_has_the_secrets_of_an_address() {
    let store = ObjectStore::good();
    store.put("0.tar", tar(&["a"]));
    let host = store.endpoint();
    let host = host.strip_prefix("http://").unwrap();
    let devices = memory();
    let address = format!("http://user:secret@{host}/bucket/0.tar?sig=secret");
    import(&store, &[&address], &devices, Onto::Empty);
    let [origin] = &origins(&devices)[..] else { panic!("one object") };
    assert!(origin.address.contains("/bucket/0.tar"), "{origin:?}");
    assert!(!format!("{origin:?}").contains("secret"), "{origin:?}");
}
