//! A data set as a tree of files: what is listed can be looked up, and nothing else is there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::images::{Image, Sample, sample};
use crate::support::plain_folder;
use crate::support::random::Random;
use dlfs::dataset::{Ahead, Dataset, OnError, Options, OrderFile, Query, Sampler};
use dlfs::directory::Directory;
use dlfs::format::Pack;
use dlfs::posix::{FIRST, File, FileTree, Folder, Node, PathError, ROOT};
use dlfs::prefetch::LoaderOptions;
use dlfs::units::{Generation, SampleId};
use proptest::prelude::*;

/// The tree that the names make, computed the plain way: folders and their entries.
#[derive(Default)]
struct Model {
    files: BTreeMap<Vec<u8>, File>,
    folders: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
}

impl Model {
    fn of(names: &[Vec<u8>], deleted: &[u64], fields: &[&str]) -> Model {
        let mut model = Model::default();
        model.folders.insert(Vec::new(), BTreeSet::new());
        let live = (0..).zip(names).filter(|(id, _)| !deleted.contains(id));
        for (id, name) in live.clone() {
            let paths = match fields {
                [] => vec![name.clone()],
                _ => {
                    let field = |field: &&str| field.replace('/', "%2F").into_bytes();
                    fields.iter().map(|f| [name, &b"."[..], &field(f)].concat()).collect()
                }
            };
            for (field, path) in (0..).zip(paths) {
                // The first field that leads to a sample counts, and of its samples the newest.
                let old = model.files.get(&path).map(|file| file.field);
                if old.is_none_or(|old| old >= field) {
                    model.files.insert(path, File { id: SampleId(id), field });
                }
            }
        }
        let usable = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && part.len() <= 255;
        let paths: Vec<Vec<u8>> = model.files.keys().cloned().collect();
        for path in paths {
            let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
            let mut folder = Vec::new();
            for (at, part) in parts.iter().enumerate() {
                if !usable(part) {
                    break;
                }
                model.folders.entry(folder.clone()).or_default().insert(part.to_vec());
                folder = if at == 0 { part.to_vec() } else { [&folder[..], b"/", part].concat() };
                if model.files.contains_key(&folder) {
                    break; // a file hides the folder of the same name
                }
            }
        }
        model
    }
}

fn list(tree: &FileTree, folder: Folder, from: u64, most: usize) -> Vec<(Vec<u8>, Node, u64)> {
    let mut found = Vec::new();
    tree.list(folder, from, &mut |entry| {
        found.push((entry.name.to_vec(), entry.node, entry.next));
        found.len() < most
    })
    .unwrap();
    found
}

/// Walks the whole tree, and compares each folder with the model.
fn compare(tree: &FileTree, model: &Model) {
    let mut inodes = BTreeSet::new();
    let mut waiting = vec![(Vec::new(), Folder::TOP, Folder::TOP)];
    while let Some((path, folder, parent)) = waiting.pop() {
        let entries = list(tree, folder, FIRST, usize::MAX);
        assert_eq!(entries[0].0, b".");
        assert_eq!((&entries[1].0[..], entries[1].1), (&b".."[..], Node::Folder(parent)));
        assert_eq!(entries[0].1, Node::Folder(folder));
        let names: BTreeSet<Vec<u8>> = entries[2..].iter().map(|entry| entry.0.clone()).collect();
        assert_eq!(names.len(), entries.len() - 2, "a name twice in {}", path.escape_ascii());
        let expected = model.folders.get(&path).cloned().unwrap_or_default();
        assert_eq!(names, expected, "in the folder {}", path.escape_ascii());
        for (index, entry) in entries.iter().enumerate() {
            // From every position the listing continues, also when it was interrupted.
            assert_eq!(list(tree, folder, entry.2, 1).first(), entries.get(index + 1));
        }
        for (name, node, _) in &entries[2..] {
            let whole =
                if path.is_empty() { name.clone() } else { [&path[..], b"/", name].concat() };
            assert_eq!(tree.child(folder, name).as_ref(), Ok(node));
            assert_eq!(tree.resolve(&whole).as_ref(), Ok(node), "{}", whole.escape_ascii());
            assert_eq!(tree.path(*node).unwrap(), whole);
            let inode = tree.inode(*node);
            assert!(inode != 0 && inodes.insert(inode), "inode {inode} twice");
            assert_eq!(tree.node(inode), Some(*node));
            assert_eq!(
                model.files.get(&whole).map(|file| Node::File(*file)).unwrap_or(*node),
                *node
            );
            if let Node::Folder(below) = node {
                waiting.push((whole, *below, folder));
            }
        }
    }
}

fn tree_of(names: &[Vec<u8>], fields: &[&str], deleted: &[u64]) -> FileTree {
    let samples: Vec<Sample> = names
        .iter()
        .map(|name| Sample { name: name.clone(), ..sample("", Some(3), fields.len() * 4 + 5) })
        .collect();
    let mut image = Image::new(1, Pack::Tight);
    let directory = image.add(&samples, 1, 0, fields);
    let ids: Vec<SampleId> = deleted.iter().map(|id| SampleId(*id)).collect();
    let directory = directory.with_deleted(&ids, Generation(2), 77).unwrap();
    FileTree::new(Arc::new(directory)).unwrap()
}

fn small_name() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(&b"aab//.x\x01"[..]), 1..9)
}

proptest! {
    #[test]
    fn a_tree_holds_exactly_what_the_names_of_live_samples_make(
        names in prop::collection::vec(small_name(), 0..60),
        fields in prop::sample::select(vec![vec![], vec!["x"], vec!["a", "x.a", "x"], vec!["x/a", "a"]]),
        deleted in prop::collection::vec(0u64..60, 0..10),
    ) {
        let deleted: Vec<u64> =
            deleted.into_iter().filter(|id| *id < names.len() as u64).collect();
        let tree = tree_of(&names, &fields, &deleted);
        compare(&tree, &Model::of(&names, &deleted, &fields));
    }

    #[test]
    fn numbers_and_positions_of_anyones_making_are_refused_or_lead_somewhere(
        names in prop::collection::vec(small_name(), 0..30),
        inodes in prop::collection::vec(
            prop_oneof![
                any::<u64>(), 0u64..3, (1u64 << 32)..(1 << 32) + 40,
                (0u64..40, 0u64..9).prop_map(|(rank, depth)| (1 << 62) + (rank << 12) + depth),
            ],
            20,
        ),
        cookie in prop_oneof![any::<u64>(), 0u64..80],
        path in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let tree = tree_of(&names, &[], &[]);
        let _ = tree.resolve(&path); // anything but a panic
        for inode in inodes {
            match tree.node(inode) {
                Some(node @ Node::File(_)) => prop_assert_eq!(tree.inode(node), inode),
                Some(Node::Folder(folder)) => {
                    tree.list(folder, cookie, &mut |_| true).unwrap();
                    tree.parent(folder).unwrap();
                    let _ = tree.child(folder, &path); // anything but a panic
                }
                None => {}
            }
        }
    }
}

#[test]
fn a_large_tree_is_listed_in_pieces_from_any_position() {
    let seed = 11;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let names: Vec<Vec<u8>> = (0..5000)
        .map(|i| format!("c{:02}/d{}/{i:05}.jpg", random.below(40), random.below(3)).into_bytes())
        .collect();
    let tree = tree_of(&names, &[], &[5, 6, 7]);
    compare(&tree, &Model::of(&names, &[5, 6, 7], &[]));
}

#[test]
fn paths_are_resolved_as_the_kernel_does() {
    let names = ["a/b/c.jpg", "a/d", "top", "a/b.x"].map(|name| name.as_bytes().to_vec());
    let tree = tree_of(&names, &[], &[]);
    let file = |id| Ok(Node::File(File { id: SampleId(id), field: 0 }));
    for (path, found) in [
        (&b"a/b/c.jpg"[..], file(0)),
        (b"//a//./b/../b/c.jpg", file(0)),
        (b"../top", file(2)),
        (b"top/", Err(PathError::NotFolder)),
        (b"top/.", Err(PathError::NotFolder)),
        (b"top/..", Err(PathError::NotFolder)),
        (b"top/x/y", Err(PathError::NotFolder)),
        (b"a/nothing", Err(PathError::NotFound)),
        (b"nothing/../top", Err(PathError::NotFound)),
        (b"a/b/c", Err(PathError::NotFound)),
        (&[b'x'; 256], Err(PathError::NameTooLong)),
        (&[b'/'; 4097], Err(PathError::NameTooLong)),
        (&[b'x'; 255], Err(PathError::NotFound)),
    ] {
        assert_eq!(tree.resolve(path), found, "{}", path.escape_ascii());
    }
    assert_eq!(tree.inode(tree.resolve(b"").unwrap()), ROOT);
    let folder = tree.resolve(b"a/b").unwrap();
    assert_eq!(tree.resolve(b"a/b/").as_ref(), Ok(&folder));
    assert_eq!(tree.path(folder).unwrap(), b"a/b");
    assert_eq!(tree.child(Folder::TOP, b"a/b"), Err(PathError::NotFound));
    assert_eq!(tree.child(Folder::TOP, &[b'x'; 256]), Err(PathError::NameTooLong));
}

#[test]
fn attributes_are_those_of_the_import() {
    let mut image = Image::new(1, Pack::Aligned);
    image.add(&[sample("a/one", Some(7), 1000), sample("a/two", None, 0)], 1, 0, &[]);
    let first = image.open().0.time_ns();
    image.time_ns += 1_000_000;
    let directory: Directory = image.add(&[sample("b", None, 512)], 1, 0, &[]);
    let started = directory.record().started_ns;
    let committed = directory.time_ns();
    let tree = FileTree::new(Arc::new(directory)).unwrap();
    let of = |path: &[u8]| tree.attributes(tree.resolve(path).unwrap(), None);
    assert_eq!(
        (of(b"a/one").len_bytes, of(b"a/one").blocks(), of(b"a/one").mode),
        (1000, 2, 0o100444)
    );
    assert_eq!((of(b"a/two").len_bytes, of(b"a/two").blocks()), (0, 0));
    assert_eq!((of(b"b").len_bytes, of(b"b").blocks()), (512, 1));
    assert_eq!((of(b"a").mode, of(b"").mode, of(b"").inode), (0o040555, 0o040555, ROOT));
    // An append changes the folders' times, and not those of files that were there.
    assert_eq!([of(b"a/one").modified_ns, of(b"b").modified_ns], [started[0], started[1]]);
    assert!(started[0] <= first && first < started[1]);
    assert_eq!(of(b"a").modified_ns, committed);

    let xattr = |path: &[u8], name: &[u8]| tree.xattr(tree.resolve(path).unwrap(), name);
    let crc = crc32c::crc32c(&sample("a/one", None, 1000).record);
    assert_eq!(xattr(b"a/one", b"user.dlfs.id").as_deref(), Some("0"));
    assert_eq!(xattr(b"a/one", b"user.dlfs.label").as_deref(), Some("7"));
    assert_eq!(xattr(b"a/one", b"user.dlfs.crc32c"), Some(format!("{crc:08x}")));
    assert_eq!(xattr(b"a/one", b"user.dlfs.generation").as_deref(), Some("2"));
    assert_eq!(xattr(b"a/two", b"user.dlfs.label"), None);
    assert_eq!(xattr(b"a", b"user.dlfs.generation").as_deref(), Some("2"));
    assert_eq!(xattr(b"a", b"user.dlfs.id"), None);
    assert_eq!(xattr(b"a/one", b"user.other"), None);
    let names = |path: &[u8]| tree.xattr_names(tree.resolve(path).unwrap());
    assert_eq!(names(b"a"), b"user.dlfs.generation\0");
    assert_eq!(names(b"a/two"), b"user.dlfs.id\0user.dlfs.crc32c\0user.dlfs.generation\0");
}

fn dataset_of(source: &plain_folder::PlainFolder) -> Dataset {
    let address = dlfs::address::Address::from_path(source.path("train.dlfs"));
    Dataset::open(&[address], &Options::default(), &mut ()).unwrap()
}

#[test]
fn samples_along_an_order_are_read_ahead_through_epochs() {
    let source = plain_folder::PlainFolder::new(&[]);
    let dataset = dataset_of(&source);
    let file = r#"{"order": {"kind": "global", "seed": 5}, "batch": 7, "window": 9000}"#;
    let order = OrderFile::parse(file).unwrap();
    let ahead =
        Ahead::start(&dataset, &order, 40, |batch, i| Some(batch.bytes(i).to_vec())).unwrap();
    let mut found = 0;
    for id in (0..dataset.len()).map(SampleId) {
        // In another order: what is there is right, and what is not there is not waited for.
        if let Some(bytes) = ahead.take(id) {
            let read = dataset.read(Query::Ids(&[id]), OnError::Raise, &mut ()).unwrap();
            assert_eq!(bytes, read.batch.bytes(0), "sample {id}");
            found += 1;
        }
    }
    let stats = ahead.stats();
    assert_eq!((stats.hits, stats.hits + stats.misses), (found, dataset.len()));
}

#[test]
fn a_program_that_follows_its_order_finds_every_sample_read_ahead() {
    let source = plain_folder::PlainFolder::new(&[]);
    let dataset = dataset_of(&source);
    for kind in [r#""global""#, r#""grouped", "lanes": 8, "group": 4"#] {
        let file =
            format!(r#"{{"order": {{"kind": {kind}, "seed": 5}}, "batch": 7, "window": 9000}}"#);
        let order = OrderFile::parse(&file).unwrap();
        let options = LoaderOptions::new(order.order, 7, 2);
        let mut sampler = Sampler::new(&dataset, options).unwrap();
        let ahead =
            Ahead::start(&dataset, &order, 40, |batch, i| Some(batch.bytes(i).to_vec())).unwrap();
        let mut ids = Vec::new();
        while sampler.next(&mut ids).unwrap().is_some() {
            for &id in &ids {
                let read = dataset.read(Query::Ids(&[id]), OnError::Raise, &mut ()).unwrap();
                assert_eq!(ahead.take(id).as_deref(), Some(read.batch.bytes(0)), "{kind}: {id}");
            }
        }
        let stats = ahead.stats();
        assert_eq!((stats.hits, stats.misses), (2 * dataset.len(), 0), "{kind}");
    }
}

#[test]
fn samples_of_a_view_are_read_ahead_along_an_order_and_along_the_state_of_a_run_over_it() {
    let source = plain_folder::PlainFolder::new(&[]);
    let whole = dataset_of(&source);
    let view = whole.select_ids((0..whole.len()).filter(|id| id % 3 > 0).map(SampleId)).unwrap();
    let keys = r#"{"batch": 7, "window": 9000, "#;
    let alone = format!(r#"{keys}"order": {{"kind": "global", "seed": 5}}}}"#);
    let run = LoaderOptions::new(OrderFile::parse(&alone).unwrap().order, 7, 1);
    let state = |dataset: &Dataset| {
        let state = dataset.loader(run.clone()).unwrap().state();
        state.to_json().replacen('{', keys, 1)
    };
    for file in [alone, state(&view)] {
        let order = OrderFile::parse(&file).unwrap();
        let mut sampler = Sampler::new(&view, run.clone()).unwrap();
        let ahead =
            Ahead::start(&view, &order, 40, |batch, i| Some(batch.bytes(i).to_vec())).unwrap();
        let mut ids = Vec::new();
        while sampler.next(&mut ids).unwrap().is_some() {
            for &id in &ids {
                let read = view.read(Query::Ids(&[id]), OnError::Raise, &mut ()).unwrap();
                assert_eq!(ahead.take(id).as_deref(), Some(read.batch.bytes(0)), "{file}: {id}");
            }
        }
        assert_eq!((ahead.stats().hits, ahead.stats().misses), (view.len(), 0), "{file}");
    }
    let of_whole = OrderFile::parse(&state(&whole)).unwrap();
    let refused = Ahead::start(&view, &of_whole, 40, |_, _| Some(())).err().unwrap().to_string();
    assert!(refused.contains("samples of the whole data set"), "{refused}");
}

#[test]
fn the_death_of_the_thread_that_reads_ahead_makes_nobody_wait() {
    let source = plain_folder::PlainFolder::new(&[]);
    let dataset = dataset_of(&source);
    let order = OrderFile::parse(r#"{"order": {"kind": "global", "seed": 1}}"#).unwrap();
    let ahead: Ahead<()> = Ahead::start(&dataset, &order, 40, |_, _| panic!("on purpose")).unwrap();
    for id in 0..dataset.len() {
        assert_eq!(ahead.take(SampleId(id)), None);
    }
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let why = loop {
        match ahead.ended() {
            Some(why) => break why,
            None => assert!(std::time::Instant::now() < until, "it never ends"),
        }
        std::thread::yield_now();
    };
    assert!(why.contains("on purpose"), "{why}");
}
