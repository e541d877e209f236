//! A plain folder read without an import: addresses, directory, checksums, and files that change.

use std::collections::VecDeque;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::alone::ran_alone;
use crate::support::contract;
use crate::support::fork::in_child;
use crate::support::random::Random;
use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::buf::IoBuf;
use dlfs::dataset::{Image, OpenOptions, VerifyOptions};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::folder::FolderNamespace;
use dlfs::qpair::{ConnectOptions, Device, Io, IoOp, open};
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Lba, Nsid, SampleId};

/// Files of all kinds of lengths in two class folders and none, in the order of ids.
fn tree() -> (tempfile::TempDir, Vec<(String, Vec<u8>)>) {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(7);
    let lens = [0, 1, 4095, 4096, 4097, 70_000, 300_001, 3 << 20, (4 << 20) + 9, 12_288, 5, 0];
    let mut files = Vec::new();
    for class in ["a", "a/sub", "a.b", "zebra"] {
        fs::create_dir_all(folder.path().join(class)).unwrap();
        for (index, len) in lens.iter().enumerate() {
            files.push((format!("{class}/{index:02}"), *len));
        }
    }
    files.push(("README".to_owned(), 33));
    let files: Vec<(String, Vec<u8>)> = files
        .into_iter()
        .map(|(name, len)| {
            let mut bytes = vec![0; len];
            random.fill(&mut bytes);
            fs::write(folder.path().join(&name), &bytes).unwrap();
            (name, bytes)
        })
        .collect();
    (folder, files)
}

fn open_image(path: &Path) -> Image {
    Image::open(&[Address::from_path(path)], &OpenOptions::default()).unwrap()
}

#[test]
fn a_folder_keeps_the_contract_of_a_read_only_engine() {
    let (folder, _) = tree();
    contract::check_read_only(Arc::new(
        FolderNamespace::open(folder.path(), Default::default()).unwrap(),
    ));
}

#[test]
fn files_lie_at_multiples_of_4096_in_the_order_of_names_with_zeroes_behind_them() {
    let (folder, files) = tree();
    let namespace = FolderNamespace::open(folder.path(), Default::default()).unwrap();
    let mut io = Blocking::new(namespace.queue_pair().unwrap()).unwrap();
    let mut end = 0;
    assert_eq!(namespace.files().len(), files.len());
    for (file, (name, bytes)) in namespace.files().iter().zip(&files) {
        assert_eq!(file.name, name.as_bytes());
        assert!(file.offset_bytes.is_multiple_of(4096) && file.offset_bytes >= end, "{name}");
        let gap = io.read(end, (file.offset_bytes - end).min(1 << 20) as usize).unwrap();
        assert!(gap.iter().all(|&byte| byte == 0), "before {name}");
        assert!(io.read(file.offset_bytes, bytes.len()).unwrap()[..] == bytes[..], "{name}");
        end = file.offset_bytes + file.len_bytes;
    }
    assert_eq!(namespace.classes(), [&b"a"[..], b"a.b", b"zebra"]);
}

#[test]
fn empty_files_are_verified_also_if_there_are_no_others() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        fs::write(folder.path().join(name), b"").unwrap();
    }
    let report = open_image(folder.path()).verify(&VerifyOptions::default(), &mut |_| ()).unwrap();
    assert_eq!((report.samples, report.chunks, report.damages.len()), (3, 1, 0));
}

#[test]
fn a_folder_has_a_directory_without_an_import_and_every_front_reads_it() {
    let (folder, files) = tree();
    let image = open_image(folder.path());
    let directory = image.directory();
    assert_eq!(directory.num_live(), files.len() as u64);
    assert_eq!(directory.learned().unwrap().count(), 0);
    let mut reader = image.reader(ReaderOptions::default()).unwrap();
    let ids: Vec<SampleId> = (0..files.len() as u64).map(SampleId).collect();
    let mut batch = Batch::new();
    for _ in 0..2 {
        reader.read_batch(&ids, &mut batch).unwrap();
        for (index, (name, bytes)) in files.iter().enumerate() {
            assert!(batch.bytes(index)[..] == bytes[..], "{name}");
            assert_eq!(image.lookup(name.as_bytes()).unwrap(), ids[index]);
        }
    }
    assert_eq!(directory.label(ids[0]), Some(0));
    assert_eq!(directory.label(*ids.last().unwrap()), None);
    assert_eq!(directory.learned().unwrap().count(), files.len() as u64);
    let report = image.verify(&VerifyOptions::default(), &mut |_| ()).unwrap();
    assert!(report.damages.is_empty(), "{:?}", report.damages);
    for kind in [
        OrderKind::Global,
        OrderKind::Grouped { lanes: 2, group: 2 },
        OrderKind::Sequential { by: SequentialBy::Slot },
    ] {
        let options = LoaderOptions::new(OrderSpec { kind, seed: 3 }, 5, 2);
        let mut loader = image.prefetcher(options).unwrap();
        let mut seen = vec![0; files.len()];
        while let Some(batch) = loader.next() {
            let batch = batch.unwrap();
            for (index, id) in batch.ids().enumerate() {
                assert!(batch.bytes(index)[..] == files[id.0 as usize].1[..]);
                seen[id.0 as usize] += 1;
            }
        }
        assert!(seen.iter().all(|&count| count == 2), "{kind:?}");
    }
}

#[test]
fn a_target_serves_a_folder_as_it_serves_any_namespace() {
    let (folder, files) = tree();
    let namespace = Arc::new(FolderNamespace::open(folder.path(), Default::default()).unwrap());
    let options = TargetOptions::new("nqn.2026-11.io.dlfs:folder".parse().unwrap());
    let target = Target::bind(options, vec![namespace.clone()]).unwrap();
    let remote = open(&target.address(Nsid(1)), &ConnectOptions::default()).unwrap();
    let mut io = Blocking::new(remote.queue_pair().unwrap()).unwrap();
    for (file, (name, bytes)) in namespace.files().iter().zip(&files) {
        assert!(io.read(file.offset_bytes, bytes.len()).unwrap()[..] == bytes[..], "{name}");
    }
}

#[test]
fn a_file_read_piece_by_piece_is_opened_once_and_closed_at_its_end() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        fs::write(folder.path().join(name), vec![name.as_bytes()[0]; 1 << 20]).unwrap();
    }
    let namespace = FolderNamespace::open(folder.path(), Default::default()).unwrap();
    let open_files = || {
        let links = fs::read_dir("/proc/self/fd").unwrap();
        let targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
        targets.filter(|target| target.starts_with(folder.path())).count()
    };
    let mut pairs = [(); 2].map(|()| Blocking::new(namespace.queue_pair().unwrap()).unwrap());
    for piece in 0..16 {
        for (file, name) in namespace.files().iter().zip(*b"abc") {
            for io in &mut pairs {
                let bytes = io.read(file.offset_bytes + piece * 65_536, 65_536).unwrap();
                assert!(bytes.iter().all(|&byte| byte == name));
            }
        }
        assert_eq!(open_files(), if piece < 15 { 6 } else { 0 }, "after piece {piece}");
    }
    assert_eq!(namespace.stats().opens, 6, "once for each queue pair");
}

#[test]
fn a_file_system_that_hangs_holds_up_nobody_but_its_reader() {
    let folder = tempfile::tempdir().unwrap();
    let slow = folder.path().join("slow");
    fs::write(&slow, [20; 9]).unwrap();
    for index in 0..20 {
        fs::write(folder.path().join(format!("{index:02}")), [index; 5000]).unwrap();
    }
    let namespace = FolderNamespace::open(folder.path(), Default::default()).unwrap();
    // Opening a file of which another process has a lease waits for it, as for a file system that is away.
    let Some(mut holder) = lease(&slow) else {
        println!("SKIPPED: no lease to hang in, or no python3");
        return;
    };
    let mut pair = namespace.queue_pair().unwrap();
    let read = |index: usize| {
        let slba = Lba(namespace.files()[index].offset_bytes / 4096);
        Io { op: IoOp::Read, slba, buf: IoBuf::zeroed(4096), tag: index as u64 }
    };
    assert_eq!(namespace.files()[20].name, b"slow");
    let mut pending: VecDeque<Io> = std::iter::once(20).chain(0..20).map(read).collect();
    assert_eq!(pair.submit(&mut pending), 21);
    let mut done = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    while done.len() < 20 {
        pair.poll(Instant::now(), 100, &mut done); // and comes back, which is what is tested
        assert!(Instant::now() < until, "{} of 20", done.len());
    }
    assert!(done.iter().all(|done| done.result.is_ok() && done.buf[0] == done.tag as u8));
    drop(holder.stdin.take()); // it ends, and so does the reader's open
    while done.len() < 21 {
        pair.poll(Instant::now(), 100, &mut done);
        assert!(Instant::now() < until, "the one that hung");
    }
    assert!(done[20].result.is_ok() && done[20].buf[..9] == [20; 9], "{:?}", done[20].result);
    assert!(holder.wait().unwrap().success());
}

/// A process that has a lease of `path` until its input ends.
fn lease(path: &Path) -> Option<Child> {
    let program = "import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('held', flush=True)
sys.stdin.read()";
    let mut command = Command::new("python3");
    command.args(["-c", program]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let mut said = [0; 5];
    match child.stdout.take()?.read_exact(&mut said) {
        Ok(()) => Some(child),
        Err(_) => child.wait().ok().and(None),
    }
}

#[test]
fn a_folder_with_a_relative_path_is_read_wherever_the_program_goes_afterwards() {
    if ran_alone(a_folder_with_a_relative_path_is_read_wherever_the_program_goes_afterwards) {
        return;
    }
    let (folder, files) = tree();
    let (name, bytes) = files.last().unwrap();
    assert!(in_child(|| {
        std::env::set_current_dir(folder.path().parent().unwrap()).unwrap();
        let image = open_image(Path::new(folder.path().file_name().unwrap()));
        std::env::set_current_dir("/").unwrap();
        let mut batch = Batch::new();
        let id = image.lookup(name.as_bytes()).unwrap();
        image.reader(ReaderOptions::default()).unwrap().read_batch(&[id], &mut batch).unwrap();
        batch.bytes(0)[..] == bytes[..]
    }));
}

#[test]
fn files_that_change_grow_shrink_or_vanish_after_the_listing_are_a_stale_folder() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 4] = [
        ("same length", |path| fs::write(path, vec![1; 70_000]).unwrap()),
        ("longer", |path| fs::write(path, vec![1; 70_001]).unwrap()),
        ("shorter", |path| fs::write(path, vec![1; 10]).unwrap()),
        ("gone", |path| fs::remove_file(path).unwrap()),
    ];
    for (what, change) in changes {
        let (folder, files) = tree();
        let image = open_image(folder.path());
        let mut reader = image.reader(ReaderOptions::default()).unwrap();
        let id = image.lookup(b"a/05").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20)); // a time stamp of its own
        change(&folder.path().join("a/05"));
        let error = reader.read_batch(&[id], &mut Batch::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale, "{what}: {error:?}");
        assert!(error.report().contains("a/05"), "{what}: {}", error.report());
        let mut batch = Batch::new();
        reader.read_batch(&[SampleId(id.0 + 1)], &mut batch).unwrap();
        assert!(batch.bytes(0)[..] == files[id.0 as usize + 1].1[..], "others are read as before");
    }
}

#[test]
fn another_listing_is_another_image_and_the_same_one_is_the_same() {
    let (folder, _) = tree();
    let first = open_image(folder.path()).directory().uuid();
    assert_eq!(open_image(folder.path()).directory().uuid(), first);
    fs::write(folder.path().join("a/05"), b"other").unwrap();
    assert_ne!(open_image(folder.path()).directory().uuid(), first);
}

#[test]
fn a_folder_that_cannot_be_read_or_has_no_sample_is_an_error() {
    let error = Image::open(&[Address::from_path("/nonexistent/folder")], &OpenOptions::default());
    assert_eq!(error.err().unwrap().kind(), ErrorKind::NotFound);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(".hidden"), "x").unwrap();
    let empty = Image::open(&[Address::from_path(folder.path())], &OpenOptions::default());
    let error = empty.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for told in ["no sample in this folder", "1, such as", ".hidden", "--hidden"] {
        assert!(error.report().contains(told), "{}", error.report());
    }
}

#[test]
fn a_file_that_became_a_fifo_a_link_in_a_circle_or_a_folder_is_named_and_waited_for_by_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["circle", "fifo", "folder", "gone", "same", "socket"];
    names.iter().for_each(|name| fs::write(folder.path().join(name), vec![7; 9000]).unwrap());
    let image = open_image(folder.path());
    let at = |name: &str| folder.path().join(name);
    names
        .iter()
        .filter(|name| **name != "same")
        .for_each(|name| fs::remove_file(at(name)).unwrap());
    std::os::unix::fs::symlink(at("circle"), at("circle")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), fifo, 0o600.into(), 0).unwrap();
    fs::create_dir(at("folder")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let options = ReaderOptions { deadline: Duration::from_secs(60), ..ReaderOptions::default() };
    let mut reader = image.reader(options).unwrap();
    for (id, name) in names.iter().enumerate() {
        let began = Instant::now();
        let read = reader.read_batch(&[SampleId(id as u64)], &mut Batch::new());
        assert!(began.elapsed() < Duration::from_secs(60), "{name}");
        let Err(error) = read else {
            assert_eq!(*name, "same");
            continue;
        };
        assert_eq!(error.kind(), ErrorKind::Stale, "{name}: {}", error.report());
        let report = error.report();
        assert!(report.contains(&format!("/{name} has changed")), "{report}");
        assert!(report.contains("open the folder again"), "{report}");
    }
}
