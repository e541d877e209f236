//! Real mounts, where the machine has `/dev/fuse`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use dlfs::dataset::{Dataset, Files, Options};
use dlfs::import::{ImportOptions, import};
use dlfs::nvme::Address;
use dlfs::qpair::ConnectOptions;
use dlfs_mount::{Mounted, mount};

/// A plain folder, an image of it, and a place to mount it on.
struct Source {
    temp: tempfile::TempDir,
}

impl Source {
    fn new() -> Source {
        let temp = tempfile::tempdir().unwrap();
        let plain = temp.path().join("plain");
        for folder in ["a/b", "code"] {
            fs::create_dir_all(plain.join(folder)).unwrap();
        }
        let bytes = |len: usize| (0..len).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<u8>>();
        for (name, len) in [
            ("a/one.bin", 5000),
            ("a/two.bin", 300_000),
            ("a/b/deep.bin", 4096),
            ("a/large.bin", 9_000_001),
            ("empty", 0),
            ("top", 33),
        ] {
            fs::write(plain.join(name), bytes(len)).unwrap();
        }
        for i in 0..300 {
            fs::write(plain.join(format!("a/b/{i:03}")), bytes(i)).unwrap();
        }
        fs::write(plain.join("code/module.py"), "X = 42\n").unwrap();
        fs::write(plain.join("text"), "one\ntwo\nthree\n").unwrap();
        set_modes(&plain);
        fs::create_dir(temp.path().join("shown")).unwrap();
        let source = Source { temp };
        let options = ImportOptions { chunk_size_bytes: 64 << 10, ..ImportOptions::default() };
        let to = Address::from_path(source.path("train.dlfs"));
        import(&[plain], &[to], &options, &ConnectOptions::default(), &mut ()).unwrap();
        source
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// The mounted image; `None`, loudly, where the machine has no FUSE.
    fn mounted(&self) -> Option<Mounted> {
        if fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
            println!("SKIPPED: /dev/fuse cannot be opened here");
            return None;
        }
        let image = Address::from_path(self.path("train.dlfs"));
        let dataset = Dataset::open(&[image], &Options::default(), &mut ()).unwrap();
        let files = Arc::new(Files::new(dataset, &mut ()).unwrap());
        let options = dlfs_mount::Options::default();
        match mount(files, "train.dlfs", &self.path("shown"), &options) {
            Ok(mounted) => Some(mounted),
            Err(error) => {
                println!("SKIPPED: mounting is refused here: {}", error.report());
                None
            }
        }
    }
}

fn set_modes(path: &Path) {
    let is_folder = path.is_dir();
    if is_folder {
        fs::read_dir(path).unwrap().for_each(|entry| set_modes(&entry.unwrap().path()));
    }
    let mode = if is_folder { 0o555 } else { 0o444 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

impl Drop for Source {
    fn drop(&mut self) {
        for folder in ["plain", "plain/a", "plain/a/b", "plain/code"] {
            let _ = fs::set_permissions(self.path(folder), fs::Permissions::from_mode(0o755));
        }
    }
}

#[test]
fn three_hundred_calls_and_programs_do_what_they_do_on_a_plain_folder() {
    let source = Source::new();
    let Some(mounted) = source.mounted() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/posix/conformance.py");
    let run = |folder: &str, options: &[&str]| {
        let mut command = Command::new("python3");
        let output = command.arg(&script).arg(source.path(folder)).args(options).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let expected = run("plain", &["--against", "mount"]);
    let found = run("shown", &["--door", "mount"]);
    let lines = expected.lines().zip(found.lines()).filter(|(expected, found)| expected != found);
    let different: Vec<String> =
        lines.map(|(expected, found)| format!("expected {expected}\n   found {found}")).collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert_eq!(expected.lines().count(), found.lines().count());
    mounted.unmount().unwrap();
    assert_eq!(fs::read_dir(source.path("shown")).unwrap().count(), 0);
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
    mounted.unmount().unwrap();
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
                let (source, files, reads) = (&source, &files, &reads);
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
