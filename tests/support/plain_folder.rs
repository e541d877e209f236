//! A plain folder and an image of it, for tests that compare the two.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use dlfs::address::Address;
use dlfs::import::sources::SourceKind;
use dlfs::import::{ImportOptions, NewSample, Writer, WriterOptions, import};
use dlfs::qpair::ConnectOptions;

/// `plain`, with files of all kinds of lengths and depths and the modes of a file system that is mounted
/// read-only, and `train.dlfs`, its image.
pub struct PlainFolder {
    temp: tempfile::TempDir,
}

impl PlainFolder {
    /// A folder that has files of these names and lengths besides.
    pub fn new(more: &[(&str, usize)]) -> PlainFolder {
        PlainFolder::made(more, false)
    }

    /// A folder that has besides what `tests/posix/conformance.py` wants other programs to read.
    pub fn of_programs(more: &[(&str, usize)]) -> PlainFolder {
        PlainFolder::made(more, true)
    }

    fn made(more: &[(&str, usize)], of_programs: bool) -> PlainFolder {
        let temp = tempfile::tempdir().unwrap();
        let plain = temp.path().join("plain");
        for folder in ["a/b", "code"] {
            fs::create_dir_all(plain.join(folder)).unwrap();
        }
        let bytes = |len: usize| (0..len).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<u8>>();
        let files = [
            ("a/one.bin", 5000),
            ("a/two.bin", 300_000),
            ("a/b/deep.bin", 4096),
            ("empty", 0),
            ("top", 33),
        ];
        for &(name, len) in files.iter().chain(more) {
            fs::write(plain.join(name), bytes(len)).unwrap();
        }
        for i in 0..300 {
            fs::write(plain.join(format!("a/b/{i:03}")), bytes(i)).unwrap();
        }
        fs::write(plain.join("code/module.py"), "X = 42\n").unwrap();
        fs::write(plain.join("text"), "one\ntwo\nthree\n").unwrap();
        if of_programs {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(CONFORMANCE);
            let made =
                Command::new(python()).arg(script).arg(&plain).arg("--make").output().unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        set_modes(&plain);
        let source = PlainFolder { temp };
        let options = ImportOptions { chunk_size_bytes: 64 << 10, ..ImportOptions::default() };
        let to = Address::from_path(source.path("train.dlfs"));
        import(&[plain], &[to], &options, &ConnectOptions::default(), &mut ()).unwrap();
        source
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }
}

/// Writes an image of three samples with two fields each, and returns its address.
pub fn image_of_fields(path: &Path) -> Address {
    let image = Address::from_path(path);
    let fields = vec![b"jpg".to_vec(), b"txt".to_vec()];
    let options = WriterOptions { fields, ..WriterOptions::default() };
    let mut writer =
        Writer::create(std::slice::from_ref(&image), options, &ConnectOptions::default()).unwrap();
    for _ in 0..3 {
        let fields = [Some(&b"pixels"[..]), Some(&b"words"[..])];
        writer.write(&NewSample { fields: &fields, ..NewSample::default() }).unwrap();
    }
    writer.finish().unwrap();
    image
}

/// The script of calls, from a tool's folder.
pub const CONFORMANCE: &str = "../../tests/posix/conformance.py";

/// The Python that runs it: `tools/check --all` names one with packages.
pub fn python() -> std::ffi::OsString {
    std::env::var_os("DLFS_TEST_PYTHON").unwrap_or_else(|| "python3".into())
}

impl Drop for PlainFolder {
    fn drop(&mut self) {
        make_removable(&self.path("plain"));
    }
}

/// `data`, a folder of TFRecord shards and of files of classes, and `data.dlfs`, its image: what the input pipelines of
/// TensorFlow and DALI read.
pub struct Pipelines {
    temp: tempfile::TempDir,
    /// Those that are installed: `tf`, `dali`.
    pub installed: Vec<&'static str>,
}

impl Pipelines {
    /// `None`, loudly, where neither is installed for [`python`].
    pub fn new() -> Option<Pipelines> {
        let all = [("tf", "tensorflow"), ("dali", "nvidia.dali")];
        let installed = all.into_iter().filter(|(_, module)| {
            let mut command = Command::new(python());
            let output = command.args(["-c", &format!("import {module}")]).output().unwrap();
            let is_there = output.status.success();
            if !is_there {
                println!("SKIPPED: {module} is not installed: DLFS_TEST_PYTHON names a Python that has it");
            }
            is_there
        });
        let installed: Vec<_> = installed.map(|(name, _)| name).collect();
        if installed.is_empty() {
            return None;
        }
        let pipelines = Pipelines { temp: tempfile::tempdir().unwrap(), installed };
        pipelines.run(Command::new(python()), "data", "--make");
        let from = [pipelines.path("data")];
        let to = [Address::from_path(pipelines.path("data.dlfs"))];
        let options = ImportOptions { from: SourceKind::Folder, ..ImportOptions::default() };
        import(&from, &to, &options, &ConnectOptions::default(), &mut ()).unwrap();
        Some(pipelines)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Lets `python`, a command without arguments, read `folder` by `what`; returns its output.
    pub fn run(&self, mut python: Command, folder: &str, what: &str) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/posix/pipelines.py");
        let output = python.arg(script).arg(self.path(folder)).arg(what).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what} of {folder}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// So that anybody may remove it.
fn make_removable(folder: &Path) {
    let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o755)); // else it stays
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_removable(&entry.path());
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
