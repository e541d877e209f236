//! Real mounts, where the machine has `/dev/fuse`.

#[allow(unreachable_pub)] // shared by both doors
#[path = "../../../tests/support/plain_folder.rs"]
mod plain_folder;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::dataset::{Dataset, Files, OnError, Options, OrderFile, Query, Sampler};
use dlfs::import::{ImportOptions, import};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Nsid, SampleId};
use dlfs_mount::{Mounted, mount};
use plain_folder::{CONFORMANCE, Pipelines, PlainFolder, image_of_fields, python};

/// A plain folder, an image of it, and a place to mount it on.
struct Source {
    folder: PlainFolder,
}

impl Source {
    fn new() -> Source {
        let folder = PlainFolder::new(&[("a/large.bin", 9_000_001)]);
        fs::create_dir(folder.path("shown")).unwrap();
        Source { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    /// The mounted image; `None`, loudly, where the machine has no FUSE.
    fn mounted(&self) -> Option<Mounted> {
        let image = Address::from_path(self.path("train.dlfs"));
        self.mounted_from(&image, &Options::default())
    }

    /// The mounted image at `image`.
    fn mounted_from(&self, image: &Address, options: &Options) -> Option<Mounted> {
        self.mounted_with(image, options, &dlfs_mount::Options::default())
    }

    /// The same, with options of the mount.
    fn mounted_with(
        &self,
        image: &Address,
        options: &Options,
        mounting: &dlfs_mount::Options,
    ) -> Option<Mounted> {
        if fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
            println!("SKIPPED: /dev/fuse cannot be opened here");
            return None;
        }
        let dataset = Dataset::open(std::slice::from_ref(image), options, &mut ()).unwrap();
        let files = Arc::new(Files::new(dataset, &mut ()).unwrap());
        match mount(files, "train.dlfs", &self.path("shown"), mounting) {
            Ok(mounted) => Some(mounted),
            Err(error) => {
                println!("SKIPPED: mounting is refused here: {}", error.report());
                None
            }
        }
    }
}

#[test]
fn three_hundred_calls_and_programs_do_what_they_do_on_a_plain_folder() {
    let folder = PlainFolder::of_programs(&[("a/large.bin", 9_000_001)]);
    fs::create_dir(folder.path("shown")).unwrap();
    let source = Source { folder };
    let image = Address::from_path(source.path("train.dlfs"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(CONFORMANCE);
    let run = |folder: &str, options: &[&str]| {
        let mut command = Command::new(python());
        let output = command.arg(&script).arg(source.path(folder)).args(options).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let expected = run("plain", &["--against", "mount"]);
    for passthrough_bytes in [None, Some(64 << 20)] {
        let mounting = dlfs_mount::Options { passthrough_bytes, ..Default::default() };
        let mounted = source.mounted_with(&image, &Options::default(), &mounting);
        let Some(mounted) = mounted else { return };
        let found = run("shown", &["--door", "mount"]);
        let lines =
            expected.lines().zip(found.lines()).filter(|(expected, found)| expected != found);
        let different: Vec<String> = lines
            .map(|(expected, found)| format!("expected {expected}\n   found {found}"))
            .collect();
        assert!(different.is_empty(), "{passthrough_bytes:?}\n{}", different.join("\n"));
        assert_eq!(expected.lines().count(), found.lines().count());
        mounted.unmount().unwrap();
        assert_eq!(fs::read_dir(source.path("shown")).unwrap().count(), 0);
    }
}

/// Returns whether the kernel reads files by itself for the user that runs this test.
fn has_passthrough() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    rustix::process::geteuid().is_root() && version >= (6, 9)
}

#[test]
fn long_files_are_read_by_the_kernel_from_memory_while_there_is_room() {
    let lens = [("a/large.bin", 9_000_001), ("a/larger.bin", 12_000_000), ("a/short", 1 << 20)];
    let folder = PlainFolder::new(&lens);
    fs::create_dir(folder.path("shown")).unwrap();
    let source = Source { folder };
    let image = Address::from_path(source.path("train.dlfs"));
    let mounting =
        dlfs_mount::Options { passthrough_bytes: Some(13_000_000), ..Default::default() };
    let mounted = source.mounted_with(&image, &Options::default(), &mounting);
    let Some(mounted) = mounted else { return };
    let open = |name: &str| fs::File::open(source.path("shown").join(name)).unwrap();
    let expected = |name: &str| fs::read(source.path("plain").join(name)).unwrap();
    let is_right = |file: &fs::File, name: &str| {
        let mut bytes = vec![0; 1 << 20];
        let expected = expected(name);
        let mut at = 0;
        while at < expected.len() {
            let len = file.read_at(&mut bytes, at as u64).unwrap();
            assert!(len > 0 && bytes[..len] == expected[at..at + len], "{name} at {at}");
            at += len;
        }
        assert_eq!(file.read_at(&mut bytes, at as u64).unwrap(), 0);
        assert_eq!(file.metadata().unwrap().len(), expected.len() as u64);
    };
    // Nobody has the first one open when the second needs its room, so its memory is given up.
    for _ in 0..2 {
        for name in ["a/large.bin", "a/larger.bin"] {
            is_right(&open_passed(&mounted, &source.path("shown").join(name)), name);
        }
    }
    let before = mounted.passed_through();
    is_right(&open("a/short"), "a/short");
    // There is room for one of them: the other is read by requests, however often it is opened.
    let first = open_passed(&mounted, &source.path("shown/a/large.bin"));
    let others = [open("a/larger.bin"), open("a/larger.bin")];
    others.iter().for_each(|other| is_right(other, "a/larger.bin"));
    let again = open("a/large.bin");
    is_right(&again, "a/large.bin");
    assert_eq!(mounted.passed_through() - before, if has_passthrough() { 2 } else { 0 });
    drop(again);
    drop((first, others));
    // Threads that open a file at once each get its bytes, whichever way they come.
    thread::scope(|scope| {
        for worker in 0..8 {
            let open = &open;
            let is_right = &is_right;
            scope.spawn(move || {
                for turn in 0..10 {
                    let name = ["a/large.bin", "a/larger.bin", "a/short"][(worker + turn) % 3];
                    is_right(&open(name), name);
                }
            });
        }
    });
    let held = open("a/large.bin");
    mounted.unmount().unwrap();
    if has_passthrough() {
        is_right(&held, "a/large.bin"); // the kernel needs nobody
    }
}

/// Opens a file that the kernel reads by itself, if it does. It says only a little later that a file was closed.
fn open_passed(mounted: &Mounted, path: &Path) -> fs::File {
    let before = mounted.passed_through();
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let file = fs::File::open(path).unwrap();
        if mounted.passed_through() > before || !has_passthrough() {
            return file;
        }
        assert!(Instant::now() < until, "{}: by requests", path.display());
        drop(file);
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_file_that_a_tier_has_whole_is_read_by_the_kernel_from_the_tier() {
    let folder = PlainFolder::new(&[("a/large.bin", 20_000_003)]);
    for name in ["shown", "kept"] {
        fs::create_dir(folder.path(name)).unwrap();
    }
    let source = Source { folder };
    let plain = Address::from_path(source.path("plain"));
    let tier = format!("file:{}:64M", source.path("kept").display());
    let tiers =
        dlfs::cache::TierOptions { tiers: vec![tier.parse().unwrap()], ..Default::default() };
    let open = dlfs::dataset::OpenOptions { tiers, ..Default::default() };
    let options = Options { open, ..Options::default() };
    let mounting = dlfs_mount::Options { passthrough_bytes: Some(0), ..Default::default() };
    let Some(mounted) = source.mounted_with(&plain, &options, &mounting) else { return };
    let shown = source.path("shown/a/large.bin");
    let expected = source.path("plain/a/large.bin");
    let expected = fs::read(expected).unwrap();
    assert!(fs::read(&shown).unwrap() == expected);
    assert_eq!(mounted.passed_through(), 0, "the tier had nothing");
    let kept = || {
        let mut value = [0; 100];
        let len = rustix::fs::getxattr(&shown, "user.dlfs.kept", &mut value).unwrap();
        String::from_utf8(value[..len].to_vec()).unwrap()
    };
    let until = Instant::now() + Duration::from_secs(60);
    while kept() != "20000003" {
        assert!(Instant::now() < until, "{} bytes are kept", kept());
        thread::sleep(Duration::from_millis(5));
    }
    let mut file = open_passed(&mounted, &shown);
    let mut found = Vec::new();
    std::io::Read::read_to_end(&mut file, &mut found).unwrap();
    assert!(found == expected);
    drop(file);
    mounted.unmount().unwrap();
}

#[test]
fn a_file_of_a_plain_folder_without_tiers_is_read_by_the_kernel_from_the_folder() {
    let folder = PlainFolder::new(&[]);
    for name in ["shown", "own"] {
        fs::create_dir(folder.path(name)).unwrap();
    }
    let source = Source { folder };
    let bytes: Vec<u8> = (0..9_000_001).map(|i: usize| (i * 7 + i / 251) as u8).collect();
    for name in ["kept", "changed"] {
        fs::write(source.path("own").join(name), &bytes).unwrap();
    }
    let own = Address::from_path(source.path("own"));
    let mounting = dlfs_mount::Options { passthrough_bytes: Some(0), ..Default::default() };
    let Some(mounted) = source.mounted_with(&own, &Options::default(), &mounting) else { return };
    let mut file = open_passed(&mounted, &source.path("shown/kept"));
    let mut found = Vec::new();
    std::io::Read::read_to_end(&mut file, &mut found).unwrap();
    assert!(found == bytes);
    fs::write(source.path("other"), &bytes).unwrap();
    fs::rename(source.path("other"), source.path("own/changed")).unwrap();
    let before = mounted.passed_through();
    let error = fs::read(source.path("shown/changed")).unwrap_err();
    assert_eq!((error.raw_os_error(), mounted.passed_through()), (Some(116), before), "{error}");
    drop(file);
    mounted.unmount().unwrap();
}

#[test]
fn epochs_are_told_apart_by_files_that_are_read_again_or_by_an_order_that_begins_again() {
    let source = Source::new();
    let Some(mounted) = source.mounted() else { return };
    let shown = source.path("shown");
    let read_all = || {
        for i in 1..300 {
            let file = fs::File::open(shown.join(format!("a/b/{i:03}"))).unwrap();
            // The kernel does not ask again for pages that it still has.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            assert_eq!(file.read_at(&mut [0; 1000], 0).unwrap(), i);
        }
    };
    let epochs = || {
        let mut value = [0; 4000];
        let len = rustix::fs::getxattr(&shown, "user.dlfs.epochs", &mut value).unwrap();
        serde_json::from_slice::<serde_json::Value>(&value[..len]).unwrap()
    };
    let bytes: u64 = (1..300).sum();
    let counted = |epochs: &serde_json::Value, epoch: usize| {
        let found = &epochs[epoch];
        assert_eq!(found["epoch"], epoch, "{epochs}");
        ["opens", "reads", "bytes"].map(|name| found[name].as_u64().unwrap())
    };
    assert_eq!(epochs(), serde_json::json!([]));
    read_all();
    read_all();
    let two = epochs();
    assert_eq!(two.as_array().unwrap().len(), 2, "{two}");
    (0..2).for_each(|epoch| assert_eq!(counted(&two, epoch), [299, 299, bytes], "{two}"));
    // An order that is not followed, but that begins.
    let order = OrderFile::parse(r#"{"order": {"kind": "global", "seed": 7}}"#).unwrap();
    mounted.follow(&order).unwrap();
    let one = fs::File::open(shown.join("a/one.bin")).unwrap();
    assert_eq!(one.read_at(&mut [0; 8000], 0).unwrap(), 5000);
    let three = epochs();
    assert_eq!(three.as_array().unwrap().len(), 3, "{three}");
    assert_eq!(counted(&three, 2), [1, 1, 5000], "{three}");
    let mut names = [0; 200];
    let len = rustix::fs::listxattr(&shown, &mut names).unwrap();
    assert!(names[..len].split(|byte| *byte == 0).any(|name| name == b"user.dlfs.epochs"));
    mounted.unmount().unwrap();
}

#[test]
fn attributes_beside_those_of_posix_say_what_the_directory_knows() {
    let source = Source::new();
    let Some(mounted) = source.mounted() else { return };
    let shown = source.path("shown");
    let xattr = |path: &str, name: &str| {
        let mut value = [0; 100];
        let len = rustix::fs::getxattr(shown.join(path), name, &mut value)?;
        Ok::<String, rustix::io::Errno>(String::from_utf8(value[..len].to_vec()).unwrap())
    };
    assert_eq!(xattr("a/one.bin", "user.dlfs.label").unwrap(), "0");
    assert_eq!(xattr("a/one.bin", "user.dlfs.crc32c").unwrap().len(), 8);
    assert_eq!(xattr("", "user.dlfs.generation").unwrap(), "1");
    assert_eq!(xattr("", "user.dlfs.id"), Err(rustix::io::Errno::NODATA));
    let file = fs::metadata(shown.join("a/one.bin")).unwrap();
    assert_eq!((file.len(), file.blocks(), file.nlink()), (5000, 10, 1));
    if rustix::process::geteuid().is_root() {
        let major = rustix::fs::major(file.dev());
        let minor = rustix::fs::minor(file.dev());
        let ahead = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
        assert_eq!(ahead.unwrap().trim(), "4096", "root reads further ahead than by default");
    }
    mounted.unmount().unwrap();
}

#[test]
fn a_mount_counts_a_file_for_each_field_of_its_samples() {
    let source = Source::new();
    let image = image_of_fields(&source.path("fields.dlfs"));
    let Some(mounted) = source.mounted_from(&image, &Options::default()) else { return };
    let found = rustix::fs::statvfs(source.path("shown")).unwrap();
    assert_eq!(found.f_files, 6);
    mounted.unmount().unwrap();
}

#[test]
fn files_that_are_read_along_an_order_were_read_ahead() {
    let source = Source::new();
    let Some(mounted) = source.mounted() else { return };
    let shown = source.path("shown");
    let order = OrderSpec { kind: OrderKind::Global, seed: 7 };
    let address = Address::from_path(source.path("train.dlfs"));
    let dataset = Dataset::open(&[address], &Options::default(), &mut ()).unwrap();
    let mut sampler = Sampler::new(&dataset, LoaderOptions::new(order, 16, 1)).unwrap();
    let counted = || {
        let mut value = [0; 1000];
        let len = rustix::fs::getxattr(&shown, "user.dlfs.order", &mut value)?;
        let value: serde_json::Value = serde_json::from_slice(&value[..len]).unwrap();
        Ok::<_, rustix::io::Errno>(value)
    };
    assert_eq!(counted(), Err(rustix::io::Errno::NODATA));
    let file = r#"{"order": {"kind": "global", "seed": 7}, "batch": 16, "window": 65536}"#;
    mounted.follow(&OrderFile::parse(file).unwrap()).unwrap();
    let mut ids = Vec::new();
    let mut read = 0;
    while sampler.next(&mut ids).unwrap().is_some() {
        for &id in &ids {
            let name = dataset.name(id, &mut ()).unwrap();
            let name = std::str::from_utf8(&name).unwrap();
            let found = fs::read(shown.join(name)).unwrap();
            assert!(found == fs::read(source.path("plain").join(name)).unwrap(), "{name}");
            read += u64::from(!found.is_empty()); // the kernel asks for no bytes of an empty file
        }
    }
    let counted = counted().unwrap();
    assert!(counted["hits"].as_u64().unwrap() >= read * 9 / 10, "{read} read: {counted}");
    let mut names = [0; 200];
    let len = rustix::fs::listxattr(&shown, &mut names).unwrap();
    assert!(names[..len].split(|byte| *byte == 0).any(|name| name == b"user.dlfs.order"));
    let other = r#"{"version": 1, "image": "00000000000000000000000000000000", "generation": 1,
        "order": {"kind": "global", "seed": 7}, "epoch": 0, "consumed": 0}"#;
    let error = mounted.follow(&OrderFile::parse(other).unwrap()).unwrap_err();
    assert!(error.report().contains("another one"), "{}", error.report());
    mounted.unmount().unwrap();
}

#[test]
fn pipelines_of_tensorflow_and_dali_read_what_they_read_of_a_plain_folder() {
    let Some(pipelines) = Pipelines::new() else { return };
    let source = Source::new();
    for image in ["data.dlfs", "data"] {
        let address = Address::from_path(pipelines.path(image));
        let Some(mounted) = source.mounted_from(&address, &Options::default()) else { return };
        std::os::unix::fs::symlink(source.path("shown"), pipelines.path(&format!("shown {image}")))
            .unwrap();
        for what in &pipelines.installed {
            let expected = pipelines.run(Command::new(python()), "data", what);
            let found = pipelines.run(Command::new(python()), &format!("shown {image}"), what);
            assert_eq!(found, expected, "{what} of {image}");
        }
        mounted.unmount().unwrap();
    }
}

/// `DLFS_TEST_UNMOUNTS` says how often.
#[test]
fn threads_that_read_at_once_get_their_own_bytes_and_unmounting_ends_them() {
    let source = Source::new();
    let rounds = std::env::var("DLFS_TEST_UNMOUNTS").map_or(3, |rounds| rounds.parse().unwrap());
    let names: Vec<String> = (0..300).map(|i| format!("a/b/{i:03}")).collect();
    let names = [&names[..], &["a/two.bin".to_owned(), "a/large.bin".to_owned()]].concat();
    let plain = |name: &String| (name.clone(), fs::read(source.path("plain").join(name)).unwrap());
    let files: Vec<(String, Vec<u8>)> = names.iter().map(plain).collect();
    for round in 0..rounds {
        let Some(mounted) = source.mounted() else { return };
        let reads = AtomicUsize::new(0);
        thread::scope(|scope| {
            for worker in 0..8 {
                let source = &source;
                let files = &files;
                let reads = &reads;
                scope.spawn(move || {
                    for (name, bytes) in files.iter().cycle().skip(worker * 37) {
                        // After the unmounting the folder is empty.
                        let Ok(found) = fs::read(source.path("shown").join(name)) else { break };
                        assert!(found == *bytes, "{name}, round {round}");
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while reads.load(Ordering::Relaxed) < 100 {
                thread::yield_now();
            }
            mounted.unmount().unwrap();
        });
        assert_eq!(fs::read_dir(source.path("shown")).unwrap().count(), 0);
    }
}

#[test]
fn of_a_long_sample_only_the_pieces_that_are_asked_for_are_read() {
    let source = Source::new();
    let address = Address::from_path(source.path("train.dlfs"));
    let dataset = Dataset::open(&[address], &Options::default(), &mut ()).unwrap();
    let id = dataset.lookup(b"a/large.bin", &mut ()).unwrap();
    let at = dataset.directory().extent(id).unwrap().offset_bytes;
    drop(dataset);
    // One byte of the eleventh piece is damaged: whoever reads the whole sample fails.
    let image = fs::File::options().read(true).write(true).open(source.path("train.dlfs")).unwrap();
    let piece = 256 << 10;
    let mut byte = [0];
    image.read_exact_at(&mut byte, at + 10 * piece + 77).unwrap();
    image.write_all_at(&[!byte[0]], at + 10 * piece + 77).unwrap();
    let Some(mounted) = source.mounted() else { return };
    let expected = fs::read(source.path("plain/a/large.bin")).unwrap();
    let file = fs::File::open(source.path("shown/a/large.bin")).unwrap();
    // So that the kernel does not read ahead into the damaged piece.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    let mut bytes = vec![0; 5000];
    for from in [8_990_000, 0, 9 * piece, 5_000_000, 11 * piece, 1_000_000] {
        file.read_exact_at(&mut bytes, from).unwrap();
        assert!(bytes == expected[from as usize..][..5000], "at {from}");
    }
    assert_eq!(file.read_at(&mut bytes, 8_999_001).unwrap(), 1000);
    let error = file.read_at(&mut bytes, 10 * piece + 1000).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "EIO: {error}");
    assert_eq!(fs::read(source.path("shown/a/large.bin")).unwrap_err().raw_os_error(), Some(5));
    mounted.unmount().unwrap();
}

#[test]
fn reads_of_a_target_that_is_gone_fail_after_one_deadline_and_none_waits_for_ever() {
    let source = Source::new();
    let image = Address::from_path(source.path("train.dlfs"));
    let device = dlfs::qpair::open(&image, &ConnectOptions::default()).unwrap();
    let nqn = "nqn.2026-11.io.dlfs:gone".parse().unwrap();
    let target = Target::bind(TargetOptions::new(nqn), vec![device]).unwrap();
    let mut options = Options::default();
    options.read.deadline = Duration::from_secs(6);
    let address = target.address(Nsid(1));
    let Some(mounted) = source.mounted_from(&address, &options) else { return };
    let dataset = Dataset::open(&[address], &options, &mut ()).unwrap();
    let direct = move || dataset.read(Query::Ids(&[SampleId(7)]), OnError::Raise, &mut ());
    direct().unwrap();
    let read = |name: &str| fs::read(source.path("shown").join(name));
    assert!(read("a/one.bin").unwrap() == fs::read(source.path("plain/a/one.bin")).unwrap());
    target.stop();
    let begin = Instant::now();
    // The clock: two reads of the library, one after the other.
    let twice = thread::spawn(move || {
        (0..2).for_each(|_| drop(direct().unwrap_err()));
        Instant::now()
    });
    // Other processes, so that one that hangs does not hang the test; files of one page and of many.
    let files = (0..12).map(|i| format!("a/b/{:03}", 100 + i));
    let files = files.chain((0..3).map(|_| "a/large.bin".to_owned()));
    let mut readers: Vec<Reader> = files.map(|name| Reader::of(&source, &name)).collect();
    // One is killed while it waits.
    while !readers[0].waits() && begin.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(5));
    }
    readers[0].child.kill().unwrap();
    let until = begin + Duration::from_secs(120);
    while readers.iter_mut().any(|reader| !reader.has_ended()) {
        assert!(Instant::now() < until, "a reader does not end");
        thread::sleep(Duration::from_millis(5));
    }
    let twice = twice.join().unwrap();
    let last = readers.iter().filter_map(|reader| reader.ended).max().unwrap();
    println!(
        "15 reads ended after {:?}, two of the library after {:?}, each with a deadline of 6 s; \
         states of the readers meanwhile: {:?}",
        last - begin,
        twice - begin,
        readers.iter().flat_map(|reader| &reader.states).collect::<BTreeSet<_>>()
    );
    assert!(last < twice, "a read took two deadlines");
    let killed = readers.remove(0);
    assert!(readers.iter().all(|reader| killed.ended < reader.ended), "it could not be killed");
    for reader in readers {
        let output = reader.child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_one = ["Input/output error", "timed out"].iter().any(|why| errors.contains(why));
        assert!(!output.status.success() && is_one, "{errors}");
    }
    // Pages that the kernel still has are there, and the mount can be ended.
    assert_eq!(read("a/one.bin").unwrap().len(), 5000);
    mounted.unmount().unwrap();
}

/// A process that reads one file.
struct Reader {
    child: Child,
    /// Its states in `/proc/PID/stat`, as they were seen.
    states: BTreeSet<char>,
    ended: Option<Instant>,
}

impl Reader {
    fn of(source: &Source, name: &str) -> Reader {
        let mut command = Command::new("cat");
        command.arg(source.path("shown").join(name));
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Reader { child, states: BTreeSet::new(), ended: None }
    }

    /// Returns whether it waits for something, in any state.
    fn waits(&mut self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap();
        self.states.insert(state);
        let is_cat = stat.contains("(cat)"); // not before `exec`
        is_cat && matches!(state, 'S' | 'D')
    }

    fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.waits();
            let status = self.child.try_wait().unwrap();
            self.ended = status.map(|_| Instant::now());
        }
        self.ended.is_some()
    }
}

#[test]
fn a_place_that_is_no_folder_is_refused_by_name() {
    let source = Source::new();
    let image = Address::from_path(source.path("train.dlfs"));
    let dataset = Dataset::open(&[image], &Options::default(), &mut ()).unwrap();
    let files = Arc::new(Files::new(dataset, &mut ()).unwrap());
    for place in ["nothing", "plain/top"] {
        let place = source.path(place);
        let error = mount(files.clone(), "x", &place, &dlfs_mount::Options::default()).unwrap_err();
        assert_eq!(error.file(), Some(&*place));
    }
}

#[test]
fn a_long_folder_is_listed_whole_whether_or_not_somebody_looks_at_its_files() {
    let source = Source::new();
    for i in 0..2000 {
        let name = format!("listed/many/{i:04}-a-name-that-makes-an-entry-a-little-longer");
        let path = source.path(&name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, [i as u8]).unwrap();
    }
    let image = Address::from_path(source.path("many.dlfs"));
    let from = [source.path("listed")];
    let to = [image.clone()];
    import(&from, &to, &ImportOptions::default(), &ConnectOptions::default(), &mut ()).unwrap();
    let names = |folder: &str, looks: bool| {
        let entries = fs::read_dir(source.path(folder).join("many")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap())
            .inspect(|entry| assert!(!looks || entry.metadata().unwrap().len() == 1))
            .map(|entry| entry.file_name())
            .collect();
        names.sort();
        names
    };
    let expected = names("listed", false);
    assert_eq!(expected.len(), 2000);
    for looks in [false, true] {
        let Some(mounted) = source.mounted_from(&image, &Options::default()) else { return };
        assert_eq!(names("shown", looks), expected, "looks: {looks}");
        mounted.unmount().unwrap();
    }
}

/// A file system of somebody else at a folder, with one file.
struct Foreign(PathBuf);

impl Foreign {
    /// `None`, loudly, without root.
    fn at(place: &Path) -> Option<Foreign> {
        let mount = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(place).status();
        if !mount.is_ok_and(|status| status.success()) {
            println!("SKIPPED: it takes root to mount a tmpfs");
            return None;
        }
        fs::write(place.join("mine"), "mine").unwrap();
        Some(Foreign(place.to_path_buf()))
    }

    fn is_there(&self) -> bool {
        self.0.join("mine").exists()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let umount = Command::new("umount").arg(&self.0).status();
        assert!(umount.is_ok_and(|status| status.success()) || thread::panicking());
    }
}

fn umount(options: &[&str], place: &Path) {
    assert!(Command::new("umount").args(options).arg(place).status().unwrap().success());
}

#[test]
fn what_lies_at_the_place_of_an_ended_mount_stays() {
    let source = Source::new();
    let shown = source.path("shown");
    for ends in ["wait", "unmount", "drop"] {
        let Some(mounted) = source.mounted() else { return };
        umount(&[], &shown);
        let Some(foreign) = Foreign::at(&shown) else { return };
        match ends {
            "wait" => mounted.wait().unwrap(),
            "unmount" => mounted.unmount().unwrap(),
            _ => drop(mounted),
        }
        assert!(foreign.is_there(), "{ends}");
    }
    // The next mount, too, while the handle of the first one lives.
    let Some(first) = source.mounted() else { return };
    umount(&[], &shown);
    let second = source.mounted().unwrap();
    first.wait().unwrap();
    assert!(shown.join("top").exists());
    second.unmount().unwrap();
    assert_eq!(fs::read_dir(&shown).unwrap().count(), 0);
}

#[test]
fn a_mount_that_lives_on_elsewhere_takes_nothing_from_its_place() {
    let source = Source::new();
    let shown = source.path("shown");
    let Some(mounted) = source.mounted() else { return };
    let open = fs::File::open(shown.join("top")).unwrap();
    umount(&["--lazy"], &shown);
    let Some(foreign) = Foreign::at(&shown) else { return };
    assert!(!mounted.has_ended());
    mounted.unmount().unwrap();
    assert!(foreign.is_there());
    drop(open);
}

#[test]
fn a_file_system_on_top_of_a_mount_stays_and_the_error_says_how_to_unmount_both() {
    let source = Source::new();
    let shown = source.path("shown");
    let Some(mounted) = source.mounted() else { return };
    let Some(foreign) = Foreign::at(&shown) else { return };
    let error = mounted.unmount().unwrap_err();
    assert_eq!((error.kind(), error.file()), (dlfs::ErrorKind::Busy, Some(&*shown)));
    assert!(error.report().contains("umount DIR"), "{}", error.report());
    assert!(foreign.is_there());
    drop(foreign); // as the hint says: the upper one first
    umount(&["--lazy"], &shown);
    assert_eq!(fs::read_dir(&shown).unwrap().count(), 0);
}
