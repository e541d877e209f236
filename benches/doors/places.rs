//! Folders of data, mounts, and the programs under measurement.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::import::sources::SourceKind;
use dlfs::import::{ImportOptions, Onto, import};
use dlfs::qpair::ConnectOptions;

/// A folder of data, which is removed at the end.
pub(crate) struct Places {
    made: tempfile::TempDir,
}

impl Places {
    pub(crate) fn new(at: &str) -> Places {
        let at = std::path::absolute(at).expect("a path");
        Places { made: tempfile::tempdir_in(at).expect("a folder in --at") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.made.path().join(name)
    }

    /// Makes a folder.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).expect("a new folder");
        path
    }

    /// Imports `source`, a folder or an archive, as the image `name`: each file is a sample.
    pub(crate) fn imported(&self, source: &Path, name: &str) -> PathBuf {
        let path = self.path(name);
        let from = if source.is_dir() { SourceKind::Folder } else { SourceKind::Tar };
        let into = ImportOptions { from, onto: Onto::Empty, ..ImportOptions::default() };
        let from = [source.to_owned()];
        let to = [Address::Path(path.clone())];
        import(&from, &to, &into, &ConnectOptions::default(), &mut ()).expect("imported");
        path
    }
}

/// A folder that something is mounted on, until it is dropped.
pub(crate) struct Mount {
    pub(crate) folder: PathBuf,
    /// How long mounting took.
    pub(crate) took: Duration,
}

impl Mount {
    /// `dlfs mount`, in the background.
    pub(crate) fn dlfs(places: &Places, address: &str, name: &str) -> Mount {
        Mount::dlfs_with(places, address, name, &[])
    }

    /// The same, with options.
    pub(crate) fn dlfs_with(places: &Places, address: &str, name: &str, options: &[&str]) -> Mount {
        let mut command = Command::new(built("dlfs"));
        command.args(["mount", address]).args(options);
        Mount::by(command, places.folder(name))
    }

    /// squashfuse's faster program, or the other; `None` if neither is installed.
    pub(crate) fn squashfuse(places: &Places, image: &Path, name: &str) -> Option<(Mount, String)> {
        let program =
            ["squashfuse_ll", "squashfuse"].into_iter().find(|name| is_installed(name))?;
        let mut command = Command::new(program);
        command.arg(image);
        Some((Mount::by(command, places.folder(name)), program.to_owned()))
    }

    /// Mounts by running `command`, which takes the folder as its last argument.
    pub(crate) fn by(mut command: Command, folder: PathBuf) -> Mount {
        let began = Instant::now();
        let output = command.arg(&folder).output().expect("it runs");
        let took = began.elapsed();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {errors}");
        // squashfuse returns before the kernel has its answer.
        while !is_mounted(&folder) && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Mount { folder, took }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.folder).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{:?}", self.folder);
    }
}

fn is_mounted(folder: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("a /proc");
    mounts.lines().any(|line| line.split(' ').nth(1) == folder.to_str())
}

/// Returns whether a program is in the `PATH`.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

/// The path of a program or library that cargo has built beside this bench; exits if it is missing.
pub(crate) fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the path of this program");
    let found = own.ancestors().map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        eprintln!("{name} is not built: cargo build --release -p dlfs-cli, and -p dlfs-preload");
        std::process::exit(2);
    })
}

/// Lets a program see `address` below `folder`.
pub(crate) fn preloaded<'a>(
    command: &'a mut Command,
    folder: &Path,
    address: &str,
) -> &'a mut Command {
    let mounts = format!("{}={address}", folder.display());
    command.env("LD_PRELOAD", built("libdlfs_preload.so")).env("DLFS_MOUNTS", mounts)
}
