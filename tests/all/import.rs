//! The image that an import creates from a source, generation by generation.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::import_support::disk::Disks;
use crate::import_support::{StopAfter, contents, options, paths, tree};
use crate::support::archives;
use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::format::fields;
use dlfs::import::sources::SourceKind;
use dlfs::import::{
    self, EditOptions, ImportOptions, OnError, Onto, PlacementOrder, Progress, RowOptions, Stage,
    import_onto,
};
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{self, ConnectOptions, Device};
use dlfs::units::{Generation, SampleId};
use dlfs::{ErrorKind, Result};

fn image_of(devices: &[Arc<dyn Device>]) -> Image {
    let image = Image::from_devices(devices.to_vec(), &OpenOptions::default()).unwrap();
    image.load_names().unwrap();
    image
}

fn import_paths(
    sources: &[PathBuf],
    disks: &Disks,
    options: &ImportOptions,
) -> Result<import::ImportReport> {
    import_onto(sources, &disks.devices(), options, &mut ())
}

#[test]
fn a_folder_becomes_an_image_that_verifies_and_has_its_names_and_labels() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("src");
    for i in 0..1000 {
        let class = root.join(format!("c{}", i % 7));
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(format!("f{i:03}")), vec![i as u8; i * 7]).unwrap();
    }
    let address = [Address::Path(dir.path().join("a.dlfs"))];
    let options = ImportOptions { chunk_size_bytes: 1 << 20, ..ImportOptions::default() };
    let connect = ConnectOptions::default();
    let report = import::import(&[root], &address, &options, &connect, &mut ()).unwrap();
    assert_eq!((report.samples, report.chunks), (1000, 4));
    let image = Image::open(&address, &OpenOptions::default()).unwrap();
    image.load_names().unwrap();
    let directory = image.directory();
    assert_eq!(directory.num_live(), 1000);
    assert_eq!(directory.name(SampleId(0)).unwrap().unwrap(), b"c0/f000");
    assert_eq!(directory.label(directory.lookup(b"c3/f010").unwrap().unwrap()), Some(3));
    let verified = image.verify(&Default::default(), &mut |_| ()).unwrap();
    assert!(verified.damages.is_empty(), "{:?}", verified.damages);
    // No longer than needed: less than a chunk follows the last used byte.
    let len = fs::metadata(dir.path().join("a.dlfs")).unwrap().len();
    assert!(len >= report.image_bytes && len < report.image_bytes + (1 << 20), "{len}: {report:?}");
}

#[test]
fn placement_is_shuffled_by_the_seed_or_as_the_source_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 200, 100, 1);
    let order_with = |placement, seed| {
        let disks = Disks::new(1, 4 << 20);
        let options = ImportOptions { placement, seed, ..options(Onto::Empty) };
        import_paths(&paths(dir.path()), &disks, &options).unwrap();
        assert_eq!(contents(&disks.devices()).unwrap(), files);
        let image = image_of(&disks.devices());
        let chunks = 0..image.directory().num_chunks();
        chunks
            .flat_map(|c| {
                image.directory().samples_in_chunk(c).map(|(id, _)| id.0).collect::<Vec<_>>()
            })
            .collect::<Vec<u64>>()
    };
    let one = order_with(PlacementOrder::Shuffled, 1);
    let two = order_with(PlacementOrder::Shuffled, 2);
    assert_eq!(one, order_with(PlacementOrder::Shuffled, 1));
    assert_ne!(one, two);
    let mut sorted = one.clone();
    sorted.sort_unstable();
    assert_ne!(one, sorted);
    assert_eq!(order_with(PlacementOrder::Source, 1), sorted);
}

#[test]
fn any_number_of_threads_writes_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 300, 9000, 1);
    let bytes_with = |threads| {
        let disks = Disks::new(3, 2 << 20);
        let options = ImportOptions { reader_threads: threads, ..options(Onto::Empty) };
        import_paths(&paths(dir.path()), &disks, &options).unwrap();
        disks.contents()
    };
    assert!(bytes_with(1) == bytes_with(7));
}

#[test]
fn several_namespaces_share_the_chunks_and_may_be_named_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 100, 20_000, 1);
    let disks = Disks::new(3, 2 << 20);
    import_paths(&paths(dir.path()), &disks, &options(Onto::Empty)).unwrap();
    let mut devices = disks.devices();
    devices.rotate_left(1);
    assert_eq!(contents(&devices).unwrap(), files);
    let image = image_of(&devices);
    let mut chunks = [0; 3];
    (0..image.directory().num_chunks())
        .for_each(|c| chunks[usize::from(image.directory().chunk(c).namespace)] += 1);
    assert!(chunks.iter().max().unwrap() - chunks.iter().min().unwrap() <= 1, "{chunks:?}");
    // An append works with the namespaces in another order, too.
    let more = tempfile::tempdir().unwrap();
    let mut all = files.clone();
    all.extend(tree(more.path(), 50, 5000, 2));
    import_onto(&paths(more.path()), &devices, &options(Onto::Append), &mut ()).unwrap();
    assert_eq!(contents(&disks.devices()).unwrap(), all);
    devices.pop();
    assert_eq!(contents(&devices).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn namespaces_of_two_images_are_refused_as_one() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 10, 100, 1);
    let one = Disks::new(2, 2 << 20);
    let two = Disks::new(2, 2 << 20);
    import_paths(&paths(dir.path()), &one, &options(Onto::Empty)).unwrap();
    let other = ImportOptions { uuid: Some(dlfs::format::Uuid([9; 16])), ..options(Onto::Empty) };
    import_paths(&paths(dir.path()), &two, &other).unwrap();
    let mixed = vec![one.devices()[0].clone(), two.devices()[1].clone()];
    assert_eq!(contents(&mixed).unwrap_err().kind(), ErrorKind::InvalidArgument);
    for onto in [Onto::Append, Onto::Resume] {
        let error = import_onto(&paths(dir.path()), &mixed, &options(onto), &mut ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{onto:?}: {error:?}");
    }
}

#[test]
fn an_append_keeps_ids_and_class_numbers_and_adds_to_both() {
    let one = tempfile::tempdir().unwrap();
    let two = tempfile::tempdir().unwrap();
    for (root, name) in [(&one, "ant/1"), (&one, "cat/2"), (&two, "bee/3"), (&two, "cat/4")] {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let disks = Disks::new(1, 2 << 20);
    import_paths(&paths(one.path()), &disks, &options(Onto::Empty)).unwrap();
    let report = import_paths(&paths(two.path()), &disks, &options(Onto::Append)).unwrap();
    assert_eq!((report.generation, report.samples, report.live_samples), (Generation(2), 2, 4));
    let image = image_of(&disks.devices());
    let directory = image.directory();
    assert_eq!(directory.classes(), [b"ant".to_vec(), b"cat".to_vec(), b"bee".to_vec()]);
    for (id, name, label) in [(0, "ant/1", 0), (1, "cat/2", 1), (2, "bee/3", 2), (3, "cat/4", 1)] {
        assert_eq!(directory.name(SampleId(id)).unwrap().unwrap(), name.as_bytes());
        assert_eq!(directory.label(SampleId(id)), Some(label), "{name}");
    }
    // Names that the image already has are reported, or left out.
    fs::write(two.path().join("cat/5"), "5").unwrap();
    let error = import_paths(&paths(two.path()), &disks, &options(Onto::Append)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSource);
    assert!(error.report().contains("cat/4") && error.report().contains("bee/3"), "{error:?}");
    let skip = ImportOptions { on_error: OnError::Skip, ..options(Onto::Append) };
    let report = import_paths(&paths(two.path()), &disks, &skip).unwrap();
    assert_eq!((report.samples, report.bad.len(), report.live_samples), (1, 2, 5));
}

#[test]
fn bad_entries_are_all_named_before_anything_is_written_or_left_out_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = tree(dir.path(), 20, 100, 1);
    std::os::unix::fs::symlink("nowhere", dir.path().join("class0/dangling")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("class1/fifo"), 0o600.into()).unwrap();
    let disks = Disks::new(1, 2 << 20);
    let error = import_paths(&paths(dir.path()), &disks, &options(Onto::Empty)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSource);
    let text = error.report();
    assert!(text.contains("class0/dangling") && text.contains("class1/fifo"), "{text}");
    assert!(disks.contents()[0].iter().all(|&byte| byte == 0), "something was written");
    let skip = ImportOptions { on_error: OnError::Skip, ..options(Onto::Empty) };
    let report = import_paths(&paths(dir.path()), &disks, &skip).unwrap();
    assert_eq!((report.samples, report.bad.len()), (20, 2));
    assert_eq!(contents(&disks.devices()).unwrap(), files);
    files.clear();
}

/// Changes a file when the import begins to write.
struct Meddler<'a>(&'a dyn Fn());

impl Progress for Meddler<'_> {
    fn stage(&mut self, stage: Stage, _: u64, _: u64) {
        if stage == Stage::Writing {
            (self.0)();
        }
    }
    fn advance(&mut self, _: u64, _: u64) {}
}

#[test]
fn a_file_that_changes_while_it_is_imported_is_refused_or_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = tree(dir.path(), 60, 9000, 1);
    let names: Vec<_> = files.keys().cloned().collect();
    let path = |at: usize| dir.path().join(std::str::from_utf8(&names[at]).unwrap());
    let meddle = || {
        fs::write(path(7), b"something else").unwrap();
        let _ = fs::remove_file(path(20)); // the second time it is gone already
    };
    for (on_error, disks) in
        [(OnError::Stop, Disks::new(1, 4 << 20)), (OnError::Skip, Disks::new(1, 4 << 20))]
    {
        tree(dir.path(), 60, 9000, 1);
        let wanted = ImportOptions { on_error, ..options(Onto::Empty) };
        let result =
            import_onto(&paths(dir.path()), &disks.devices(), &wanted, &mut Meddler(&meddle));
        if on_error == OnError::Stop {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadSource);
            for at in [7, 20] {
                let name = names[at].escape_ascii().to_string();
                assert!(error.report().contains(&name), "{name}: {error:?}");
            }
            assert_eq!(contents(&disks.devices()).unwrap_err().kind(), ErrorKind::NotFound);
        } else {
            let report = result.unwrap();
            assert_eq!((report.samples, report.bad.len()), (58, 2), "{:?}", report.bad);
            files.remove(&names[7]);
            files.remove(&names[20]);
            assert_eq!(contents(&disks.devices()).unwrap(), files);
            // Nothing of the first attempt is left for a rebuild to find.
            let before = image_of(&disks.devices()).directory().to_snapshot().unwrap();
            let rebuilt = import::rebuild_on(&disks.devices(), None, &mut ()).unwrap();
            assert_eq!((rebuilt.lost_samples, rebuilt.unused_chunks), (0, 0), "{rebuilt:?}");
            assert_eq!(contents(&disks.devices()).unwrap(), files);
            assert_ne!(before.len(), 0);
        }
    }
}

#[test]
fn an_import_overwrites_nothing_without_force() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 20, 100, 1);
    for at in [0, 4096, 512 << 10, (1 << 20) - 1] {
        let mut bytes = vec![0; 1 << 20];
        bytes[at] = 1;
        let disks = Disks::holding(&[bytes.clone()]);
        for onto in [Onto::Empty, Onto::Resume, Onto::Append] {
            let error = import_paths(&paths(dir.path()), &disks, &options(onto)).unwrap_err();
            let expected = match onto {
                Onto::Append => ErrorKind::NotFound,
                _ => ErrorKind::Refused,
            };
            assert_eq!(error.kind(), expected, "{at} {onto:?}: {error:?}");
            assert!(disks.contents()[0] == bytes, "{at} {onto:?}");
        }
        import_paths(&paths(dir.path()), &disks, &options(Onto::Force)).unwrap();
        assert_eq!(contents(&disks.devices()).unwrap(), files);
        // Now it holds an image.
        let error = import_paths(&paths(dir.path()), &disks, &options(Onto::Empty)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.report().contains("--append"), "{}", error.report());
    }
}

#[test]
fn a_forced_import_that_is_refused_before_it_writes_keeps_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    let large = dir.path().join("large");
    let files = tree(&old, 20, 5000, 1);
    tree(&large, 300, 30_000, 2);
    let lines = dir.path().join("lines.jsonl");
    fs::write(&lines, "{\"text\": \"one\"}\n").unwrap();
    let disks = Disks::new(1, 2 << 20);
    import_paths(&paths(&old), &disks, &options(Onto::Empty)).unwrap();
    let rows = RowOptions { label: Some("nix".to_owned()), ..RowOptions::default() };
    let unknown = ImportOptions { rows, ..options(Onto::Force) };
    let error = import_paths(std::slice::from_ref(&lines), &disks, &unknown).unwrap_err();
    assert!(error.report().contains("nix"), "{}", error.report());
    assert_eq!(contents(&disks.devices()).unwrap(), files);
    let error = import_paths(&paths(&large), &disks, &options(Onto::Force)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
    assert_eq!(contents(&disks.devices()).unwrap(), files);
    import_paths(&[lines], &disks, &options(Onto::Force)).unwrap();
    assert_eq!(contents(&disks.devices()).unwrap().len(), 1);
}

#[test]
fn a_completed_import_does_not_resume_and_neither_does_another_source() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 20, 100, 1);
    let disks = Disks::new(1, 2 << 20);
    import_paths(&paths(dir.path()), &disks, &options(Onto::Empty)).unwrap();
    let before = disks.contents();
    let report = import_paths(&paths(dir.path()), &disks, &options(Onto::Resume)).unwrap();
    assert_eq!((report.generation, report.samples), (Generation(1), 20));
    assert!(report.chunks > 0 && report.chunks_found == report.chunks, "{report:?}");
    assert!(disks.contents() == before);
    fs::write(dir.path().join("class0/another"), "x").unwrap();
    let error = import_paths(&paths(dir.path()), &disks, &options(Onto::Resume)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
}

#[test]
fn an_import_stops_when_asked_and_finds_its_chunks_again() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 200, 9000, 1);
    let whole = Disks::new(1, 4 << 20);
    let stopped = Disks::new(1, 4 << 20);
    import_paths(&paths(dir.path()), &whole, &options(Onto::Empty)).unwrap();
    let devices = stopped.devices();
    let wanted = options(Onto::Empty);
    let error = import_onto(&paths(dir.path()), &devices, &wanted, &mut StopAfter(5)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    let report = import_paths(&paths(dir.path()), &stopped, &options(Onto::Resume)).unwrap();
    assert!(report.chunks_found >= 5, "{report:?}");
    assert!(stopped.contents() == whole.contents());
    let refused = import_paths(&paths(dir.path()), &stopped, &options(Onto::Empty)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
}

#[test]
fn samples_larger_than_a_chunk_lie_alone_and_in_one_piece() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = tree(dir.path(), 20, 9000, 1);
    for (name, len) in
        [("class0/large", 300_000), ("class1/larger", 3 << 20), ("class2/edge", 65_536 - 4096)]
    {
        let content: Vec<u8> = (0..len).map(|at: u32| (at % 251) as u8).collect();
        fs::write(dir.path().join(name), &content).unwrap();
        files.insert(name.into(), content);
    }
    let disks = Disks::new(2, 8 << 20);
    import_paths(&paths(dir.path()), &disks, &options(Onto::Empty)).unwrap();
    assert_eq!(contents(&disks.devices()).unwrap(), files);
    let again = Disks::new(2, 8 << 20);
    let devices = again.devices();
    let _ = import_onto(&paths(dir.path()), &devices, &options(Onto::Empty), &mut StopAfter(9));
    import_paths(&paths(dir.path()), &again, &options(Onto::Resume)).unwrap();
    assert!(again.contents() == disks.contents());
}

fn member(name: &str, content: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    block[156] = b'0';
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = [&block[..], content].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn shard(path: &Path, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 0..count {
        bytes.extend(member(&format!("s/{i:04}.jpg"), &vec![i as u8; i * 100]));
        bytes.extend(member(&format!("s/{i:04}.cls"), format!("{}", i % 10).as_bytes()));
        if i % 2 == 0 {
            bytes.extend(member(&format!("s/{i:04}.txt"), b"caption"));
        }
    }
    bytes.resize(bytes.len() + 1024, 0);
    fs::write(path, &bytes).unwrap();
    bytes
}

fn check_webdataset(devices: &[Arc<dyn Device>], count: usize, names: &[&str]) {
    let image = image_of(devices);
    let found: Vec<_> =
        image.directory().fields().iter().map(|f| f.escape_ascii().to_string()).collect();
    assert_eq!(found, names);
    let samples = contents(devices).unwrap();
    assert_eq!(samples.len(), count);
    for i in 0..count {
        let name = format!("s/{i:04}").into_bytes();
        let record = &samples[&name];
        let ranges = fields::split(record, 3).unwrap();
        let field = |at: usize| ranges[at].clone().map(|range| record[range].to_vec());
        assert_eq!(field(0), Some(vec![i as u8; i * 100]));
        assert_eq!(field(1), Some(format!("{}", i % 10).into_bytes()));
        assert_eq!(field(2), (i % 2 == 0).then(|| b"caption".to_vec()));
        let id = image.directory().lookup(&name).unwrap().unwrap();
        assert_eq!(image.directory().label(id), Some(i as i64 % 10));
    }
}

#[test]
fn webdataset_samples_keep_all_their_fields_in_one_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train-0000.tar");
    shard(&path, 40);
    let disks = Disks::new(1, 4 << 20);
    let report = import_paths(&[path], &disks, &options(Onto::Empty)).unwrap();
    assert_eq!((report.kind, report.samples), (SourceKind::WebDataset, 40));
    check_webdataset(&disks.devices(), 40, &["jpg", "cls", "txt"]);
}

#[test]
fn a_pipe_is_imported_in_its_own_order_or_by_way_of_a_spool_and_resumes_either_way() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = shard(&dir.path().join("a.tar"), 60);
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    let spool = Some(dir.path().to_path_buf());
    for (placement, spool) in [(PlacementOrder::Source, None), (PlacementOrder::Shuffled, spool)] {
        let wanted = |onto| ImportOptions {
            from: SourceKind::WebDataset,
            placement,
            spool: spool.clone(),
            ..options(onto)
        };
        let through_the_pipe = |disks: &Disks, onto, progress: &mut dyn Progress| {
            let pipe = pipe.clone();
            let bytes = bytes.clone();
            // An import that stops closes the pipe.
            let writer = std::thread::spawn(move || drop(fs::write(pipe, bytes)));
            let source = [dir.path().join("pipe")];
            let result = import_onto(&source, &disks.devices(), &wanted(onto), progress);
            writer.join().unwrap();
            result
        };
        let whole = Disks::new(1, 4 << 20);
        let stopped = Disks::new(1, 4 << 20);
        let report = through_the_pipe(&whole, Onto::Empty, &mut ()).unwrap();
        assert_eq!(report.samples, 60);
        check_webdataset(&whole.devices(), 60, &["jpg", "cls", "txt"]);
        through_the_pipe(&stopped, Onto::Empty, &mut StopAfter(3)).unwrap_err();
        through_the_pipe(&stopped, Onto::Resume, &mut ()).unwrap();
        assert!(stopped.contents() == whole.contents(), "{placement:?}");
    }
}

#[test]
fn a_stream_with_bad_members_is_refused_or_imported_without_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes =
        [member("a", b"first"), member("../b", b"climbs"), member("c", b"third")].concat();
    bytes.extend(member("a", b"again"));
    bytes.resize(bytes.len() + 1024, 0);
    let path = dir.path().join("a.tar.gz");
    let mut gzip =
        flate2::write::GzEncoder::new(fs::File::create(&path).unwrap(), Default::default());
    std::io::Write::write_all(&mut gzip, &bytes).unwrap();
    gzip.finish().unwrap();
    let wanted = |on_error| ImportOptions {
        placement: PlacementOrder::Source,
        on_error,
        ..options(Onto::Empty)
    };
    let sources = [path];
    let disks = Disks::new(1, 2 << 20);
    let error = import_paths(&sources, &disks, &wanted(OnError::Stop)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSource);
    assert!(error.report().contains("../b") && error.report().contains("a: comes again"));
    // To leave the later one out would keep the older bytes.
    let error =
        import_paths(&sources, &Disks::new(1, 2 << 20), &wanted(OnError::Skip)).unwrap_err();
    assert!(error.report().contains("--spool DIR"), "{}", error.report());
    let disks = Disks::new(1, 2 << 20);
    let spooled = ImportOptions { spool: Some(dir.path().to_path_buf()), ..wanted(OnError::Skip) };
    let report = import_paths(&sources, &disks, &spooled).unwrap();
    assert_eq!((report.samples, report.bad.len()), (2, 1));
    let expected =
        BTreeMap::from([(b"a".to_vec(), b"again".to_vec()), (b"c".to_vec(), b"third".to_vec())]);
    assert_eq!(contents(&disks.devices()).unwrap(), expected);
    let whole = ImportOptions { placement: PlacementOrder::Shuffled, ..wanted(OnError::Skip) };
    let error = import_paths(&sources, &Disks::new(1, 2 << 20), &whole).unwrap_err();
    assert!(error.report().contains("--spool"), "{}", error.report());
}

#[test]
fn the_image_itself_is_no_sample_of_the_folder_that_it_lies_in() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 10, 100, 1);
    let image = [Address::Path(dir.path().join("class0/image"))];
    let connect = ConnectOptions::default();
    for onto in [Onto::Empty, Onto::Force] {
        import::import(&paths(dir.path()), &image, &options(onto), &connect, &mut ()).unwrap();
        let device = qpair::open(&image[0], &connect).unwrap();
        assert_eq!(contents(&[device]).unwrap(), files);
    }
}

#[test]
fn two_importers_of_a_namespace_without_a_lock_exclude_each_other() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 100, 9000, 1);
    let disk = MemNamespace::new(4 << 20, 512).unwrap();
    let device: Vec<Arc<dyn Device>> = vec![Arc::new(disk)];
    // So long that a busy machine renews it in time.
    let wanted = |onto| ImportOptions { lease: Duration::from_secs(8), ..options(onto) };
    /// Waits in the middle of an import until a second one has been attempted.
    struct Second<'a>(Option<&'a dyn Fn()>);
    impl Progress for Second<'_> {
        fn stage(&mut self, _: Stage, _: u64, _: u64) {}
        fn advance(&mut self, _: u64, _: u64) {
            if let Some(second) = self.0.take() {
                second();
            }
        }
    }
    let second = || {
        let error =
            import_onto(&paths(dir.path()), &device, &wanted(Onto::Force), &mut ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    };
    import_onto(&paths(dir.path()), &device, &wanted(Onto::Empty), &mut Second(Some(&second)))
        .unwrap();
    // The lease was released: the next import need not wait for it.
    import_onto(&paths(dir.path()), &device, &wanted(Onto::Force), &mut ()).unwrap();
    assert_eq!(contents(&device).unwrap().len(), 100);
}

#[test]
fn deleted_samples_are_gone_and_a_purge_gives_their_room_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = tree(dir.path(), 120, 9000, 1);
    let disks = Disks::new(2, 4 << 20);
    import_paths(&paths(dir.path()), &disks, &options(Onto::Empty)).unwrap();
    let names: Vec<Vec<u8>> = files.keys().step_by(3).cloned().collect();
    let ids = |image: &Image, names: &mut dyn Iterator<Item = &Vec<u8>>| -> Vec<u64> {
        names.map(|name| image.directory().lookup(name).unwrap().unwrap().0).collect()
    };
    let before = image_of(&disks.devices());
    let missing = [b"none".to_vec(), names[0].clone(), b"nor this".to_vec()];
    let error = import::delete_on(&disks.devices(), &missing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("none, nor this"), "{error}");
    let report = import::delete_on(&disks.devices(), &names).unwrap();
    assert_eq!((report.generation, report.samples), (Generation(2), 40));
    names.iter().for_each(|name| drop(files.remove(name)));
    assert_eq!(contents(&disks.devices()).unwrap(), files);
    let report = import::purge_on(&disks.devices(), &mut ()).unwrap();
    assert_eq!((report.generation, report.samples), (Generation(3), 40));
    assert!(report.chunks > 0 && report.freed_bytes > 0, "{report:?}");
    assert_eq!(contents(&disks.devices()).unwrap(), files);
    // Ids stay, and deleted samples stay deleted through everything that follows.
    let after = image_of(&disks.devices());
    let kept: Vec<Vec<u8>> = files.keys().cloned().collect();
    assert_eq!(ids(&after, &mut kept.iter()), ids(&before, &mut kept.iter()));
    let again = import::purge_on(&disks.devices(), &mut ()).unwrap();
    assert_eq!((again.chunks, again.generation), (0, Generation(3)));
    import::rebuild_on(&disks.devices(), None, &mut ()).unwrap();
    assert_eq!(contents(&disks.devices()).unwrap(), files);
    let more = tempfile::tempdir().unwrap();
    files.extend(tree(more.path(), 40, 5000, 2));
    import_paths(&paths(more.path()), &disks, &options(Onto::Append)).unwrap();
    assert_eq!(contents(&disks.devices()).unwrap(), files);
}

/// Bytes that a file takes of its file system, and its length.
fn taken(path: &Path) -> (u64, u64) {
    let found = fs::metadata(path).unwrap();
    (found.blocks() * 512, found.len())
}

#[test]
fn a_file_that_was_purged_takes_what_an_import_of_the_live_samples_takes() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = tree(&dir.path().join("source"), 3000, 9000, 1);
    let address = |name: &str| [Address::Path(dir.path().join(name))];
    let image = address("image");
    let connect = ConnectOptions::default();
    let options = ImportOptions { chunk_size_bytes: 64 << 10, ..options(Onto::Empty) };
    let source = paths(&dir.path().join("source"));
    import::import(&source, &image, &options, &connect, &mut ()).unwrap();
    let path = dir.path().join("image");
    let (_, len_before) = taken(&path);
    let mut generation = 1;
    // Few of many, so that every chunk is rewritten, and then most of them.
    for every in [10, 2] {
        let names: Vec<Vec<u8>> = files.keys().step_by(every).cloned().collect();
        for name in &names {
            files.remove(name);
            fs::remove_file(dir.path().join("source").join(std::str::from_utf8(name).unwrap()))
                .unwrap();
        }
        import::delete(&image, &names, &EditOptions::default(), &connect).unwrap();
        let mut longest = Longest { path: &path, len: 0 };
        let report =
            import::purge(&image, &EditOptions::default(), &connect, &mut longest).unwrap();
        assert_eq!(report.samples, names.len() as u64);
        assert!(report.generation.0 > generation + 2, "in several steps: {report:?}");
        generation = report.generation.0;
        assert!(longest.len < len_before * 8 / 5, "{} of {len_before}", longest.len);
        let fresh = address(&format!("fresh-{every}"));
        import::import(&source, &fresh, &options, &connect, &mut ()).unwrap();
        let (of_purged, len) = taken(&path);
        let (of_fresh, _) = taken(&dir.path().join(format!("fresh-{every}")));
        assert!(of_purged * 10 <= of_fresh * 11, "{of_purged} instead of {of_fresh} bytes");
        println!("every {every}: {of_purged} of {len} bytes taken, {of_fresh} by an import");
        let opened = Image::open(&image, &OpenOptions::default()).unwrap();
        let verified = opened.verify(&Default::default(), &mut |_| ()).unwrap();
        assert!(verified.damages.is_empty(), "{:?}", verified.damages);
        let devices = [dlfs::qpair::open(&image[0], &connect).unwrap()];
        assert_eq!(contents(&devices).unwrap(), files);
    }
    // Later commands find everything that they need.
    let snapshot = |image: &Image| image.directory().to_snapshot().unwrap();
    let before = image_of(&[dlfs::qpair::open(&image[0], &connect).unwrap()]);
    import::rebuild(&image, None, &connect, &mut ()).unwrap();
    let after = image_of(&[dlfs::qpair::open(&image[0], &connect).unwrap()]);
    assert!(snapshot(&before) == snapshot(&after), "a rebuild gives the same directory");
    drop((before, after));
    let name = files.keys().next().unwrap().clone();
    import::delete(&image, &[name], &EditOptions::default(), &connect).unwrap();
}

/// Notes how long a file becomes.
struct Longest<'a> {
    path: &'a Path,
    len: u64,
}

impl Progress for Longest<'_> {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {}

    fn advance(&mut self, _: u64, _: u64) {
        self.len = self.len.max(taken(self.path).1);
    }
}

#[test]
fn a_purge_with_little_room_takes_several_generations() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = tree(dir.path(), 150, 9000, 1);
    let disks = Disks::new(2, 544 << 10);
    import_paths(&paths(dir.path()), &disks, &options(Onto::Empty)).unwrap();
    let names: Vec<Vec<u8>> = files.keys().step_by(7).cloned().collect();
    import::delete_on(&disks.devices(), &names).unwrap();
    names.iter().for_each(|name| drop(files.remove(name)));
    let report = import::purge_on(&disks.devices(), &mut ()).unwrap();
    assert_eq!(report.samples, names.len() as u64);
    assert!(report.generation.0 > 4, "{report:?}");
    assert_eq!(contents(&disks.devices()).unwrap(), files);
    let before = image_of(&disks.devices()).directory().to_snapshot().unwrap();
    import::rebuild_on(&disks.devices(), None, &mut ()).unwrap();
    let after = image_of(&disks.devices()).directory().to_snapshot().unwrap();
    assert!(before == after, "a rebuild gives the same directory");
}

#[test]
fn images_that_live_long_use_their_room_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = tree(dir.path(), 30, 9000, 1);
    let disks = Disks::new(1, 2 << 20);
    import_paths(&paths(dir.path()), &disks, &options(Onto::Empty)).unwrap();
    for round in 0..12_u64 {
        let names: Vec<Vec<u8>> = files.keys().take(15).cloned().collect();
        import::delete_on(&disks.devices(), &names).unwrap();
        names.iter().for_each(|name| drop(files.remove(name)));
        import::purge_on(&disks.devices(), &mut ()).unwrap();
        let more = tempfile::tempdir().unwrap();
        files.extend(tree(more.path(), 15, 9000, round + 2));
        import_paths(&paths(more.path()), &disks, &options(Onto::Append)).unwrap();
        assert_eq!(contents(&disks.devices()).unwrap(), files, "round {round}");
    }
}

#[test]
fn a_rebuild_finds_every_generation_again_from_its_chunks_alone() {
    let dir = tempfile::tempdir().unwrap();
    let more = tempfile::tempdir().unwrap();
    let mut files = tree(dir.path(), 60, 9000, 1);
    fs::write(dir.path().join("class1/oversize"), vec![3; 200_000]).unwrap();
    files.insert(b"class1/oversize".to_vec(), vec![3; 200_000]);
    let disks = Disks::new(2, 4 << 20);
    import_paths(&paths(dir.path()), &disks, &options(Onto::Empty)).unwrap();
    files.extend(tree(more.path(), 30, 5000, 2));
    import_paths(&paths(more.path()), &disks, &options(Onto::Append)).unwrap();
    let gone: Vec<Vec<u8>> = files.keys().take(5).cloned().collect();
    import::delete_on(&disks.devices(), &gone).unwrap();
    gone.iter().for_each(|name| drop(files.remove(name)));
    let before = image_of(&disks.devices());
    let snapshot = before.superblocks()[0].snapshot;
    for (what, ruin) in [
        ("snapshot", vec![(usize::from(snapshot.namespace), snapshot.offset_bytes, 4096)]),
        ("superblocks", vec![(0, 0, 4096), (0, 32768, 4096), (1, 0, 4096), (1, 32768, 4096)]),
    ] {
        let mut bytes = disks.contents();
        for (disk, at, len) in ruin {
            bytes[disk][at as usize..at as usize + len].fill(0xee);
        }
        let ruined = Disks::holding(&bytes);
        assert_eq!(contents(&ruined.devices()).unwrap_err().kind(), expected_kind(what), "{what}");
        let report = import::rebuild_on(&ruined.devices(), None, &mut ()).unwrap();
        assert_eq!((report.generation, report.lost_samples), (Generation(3), 0), "{what}");
        assert_eq!(contents(&ruined.devices()).unwrap(), files, "{what}");
        let after = image_of(&ruined.devices());
        let columns = |image: &Image| {
            let d = image.directory();
            let samples = (0..d.num_samples()).map(|id| {
                let id = SampleId(id);
                (d.name(id).unwrap(), d.label(id), d.extent(id), d.is_live(id))
            });
            (samples.collect::<Vec<_>>(), d.classes().to_vec())
        };
        assert_eq!(columns(&after), columns(&before), "{what}");
        let snapshot = |image: &Image| image.directory().to_snapshot().unwrap();
        assert!(snapshot(&after) == snapshot(&before), "{what}: another snapshot");
    }
    // The previous generation is still there to start from.
    let report = import::rebuild_on(&disks.devices(), Some(Generation(2)), &mut ()).unwrap();
    assert_eq!((report.chunks, report.lost_samples), (0, 0), "{report:?}");
    assert_eq!(contents(&disks.devices()).unwrap(), files);
    // The one before is not.
    let report = import::rebuild_on(&disks.devices(), Some(Generation(1)), &mut ()).unwrap();
    assert_eq!((report.base, report.lost_samples), (None, 0), "{report:?}");
    assert_eq!(contents(&disks.devices()).unwrap(), files);
}

fn expected_kind(what: &str) -> ErrorKind {
    if what == "snapshot" { ErrorKind::Corrupt } else { ErrorKind::NotFound }
}

#[test]
fn a_saved_snapshot_opens_the_image_until_the_image_moves_on() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    tree(&source, 50, 2000, 1);
    let image = [Address::Path(dir.path().join("image"))];
    let connect = ConnectOptions::default();
    import::import(&paths(&source), &image, &options(Onto::Empty), &connect, &mut ()).unwrap();
    let file = dir.path().join("saved");
    let saved = import::snapshot_save(&image, &file, &connect).unwrap();
    assert_eq!((saved.generation, saved.live_samples), (Generation(1), 50));
    assert_eq!(import::snapshot_check(&image, &file, &connect).unwrap(), saved);
    let with_file = OpenOptions { snapshot: Some(file.clone()), ..OpenOptions::default() };
    assert_eq!(Image::open(&image, &with_file).unwrap().directory().num_live(), 50);
    let name = b"class0/file-1-00000".to_vec();
    import::delete(&image, &[name], &EditOptions::default(), &connect).unwrap();
    let error = import::snapshot_check(&image, &file, &connect).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale);
    assert_eq!(Image::open(&image, &with_file).unwrap_err().kind(), ErrorKind::Stale);
    fs::write(&file, b"rubbish").unwrap();
    let error = import::snapshot_check(&image, &file, &connect).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

#[test]
fn an_append_that_stopped_before_its_journal_leaves_nothing_to_resume() {
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("first");
    let second = dir.path().join("second");
    let files = tree(&first, 30, 2000, 1);
    tree(&second, 30, 2000, 2);
    let image = [Address::Path(dir.path().join("image"))];
    let connect = ConnectOptions::default();
    import::import(&paths(&first), &image, &options(Onto::Empty), &connect, &mut ()).unwrap();
    // The journal on the media is that of the first import, which completed.
    let error = import::import(&paths(&second), &image, &options(Onto::Resume), &connect, &mut ())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert!(error.to_string().contains("no unfinished import"), "{error}");
    let report = import::import(&paths(&second), &image, &options(Onto::Append), &connect, &mut ());
    assert_eq!(report.unwrap().live_samples, files.len() as u64 + 30);
}

#[test]
fn a_stream_with_other_fields_than_the_image_is_refused_before_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let disks = Disks::new(1, 8 << 20);
    let import = |name: &str, bytes: &[u8], onto| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let given = ImportOptions { placement: PlacementOrder::Source, ..options(onto) };
        import_onto(&[path], &disks.devices(), &given, &mut ())
    };
    import("two.jsonl", b"{\"t\": \"a\", \"u\": \"b\"}\n", Onto::Empty).unwrap();
    let before = disks.contents();
    // More than one chunk: the first ones would be written before the end.
    let line = format!("{{\"t\": \"{}\"}}\n", "w".repeat(10_000));
    let error = import("one.jsonl", line.repeat(20).as_bytes(), Onto::Append).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    let text = error.to_string();
    assert!(text.contains("have the fields [t], those of the image [t, u]"), "{text}");
    assert!(disks.contents() == before, "nothing was written");
    // Samples of several files cannot be added to those of one field without a name.
    import("a.tar.zst", &packed(&[member("a", b"one")]), Onto::Force).unwrap();
    let before = disks.contents();
    let group = ["b.jpg", "b.txt"].map(|name| member(name, name.as_bytes()));
    let error = import("b.tar.zst", &packed(&group), Onto::Append).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    assert!(disks.contents() == before, "nothing was written");
}

/// A compressed archive, which is imported as it is decompressed.
fn packed(members: &[Vec<u8>]) -> Vec<u8> {
    zstd::encode_all(&[members.concat(), vec![0; 1024]].concat()[..], 1).unwrap()
}

#[test]
fn an_import_that_only_lists_bad_entries_stops_when_asked_to() {
    /// Stops once samples are written.
    struct StopWriting(bool);
    impl Progress for StopWriting {
        fn stage(&mut self, stage: Stage, _: u64, _: u64) {
            self.0 |= stage == Stage::Writing;
        }
        fn advance(&mut self, _: u64, _: u64) {}
        fn stop(&mut self) -> bool {
            self.0
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tar.zst");
    let file = |name| member(name, b"content");
    let fifo = |name| archives::member(name, b'6', "", b"");
    fs::write(&path, packed(&[fifo("0"), file("1"), file("2"), fifo("3")])).unwrap();
    let given = ImportOptions { placement: PlacementOrder::Source, ..options(Onto::Empty) };
    let refusal = |progress: &mut dyn Progress| {
        let disks = Disks::new(1, 8 << 20);
        let error = import_onto(std::slice::from_ref(&path), &disks.devices(), &given, progress)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadSource, "{error:?}");
        error.report()
    };
    let whole = refusal(&mut ());
    assert!(whole.contains("2 entries of the source"), "{whole}");
    let stopped = refusal(&mut StopWriting(false));
    assert!(stopped.contains("1 entries of the source"), "{stopped}");
}
