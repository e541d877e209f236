//! Files that `dlfs` makes: which are for the user alone, and which are as the umask says.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::common::{Ran, TestDir, finish, run};

/// Runs `dlfs` with a umask that takes no permission away.
fn run_open(dir: &TestDir, arguments: &[&str]) -> Ran {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_dlfs")]);
    command.args(arguments).env("XDG_CACHE_HOME", dir.path("home")).stdin(Stdio::null());
    finish(command)
}

#[test]
fn what_tells_of_samples_is_for_the_user_alone_and_what_is_made_for_others_follows_the_umask() {
    let dir = TestDir::with_source();
    let open = |arguments: &[&str]| run_open(&dir, arguments).code(0);
    let image = dir.arg("train.dlfs");
    let source = dir.arg("source");
    open(&["import", &source, &image]);
    fs::create_dir(dir.path("tier")).unwrap();
    let tier = format!("file:{}:32M", dir.arg("tier"));
    let [state, report, trace] =
        ["state.json", "report.html", "trace.json"].map(|name| dir.arg(name));
    open(&[
        "read", &image, "--tier", &tier, "--state", &state, "--report", &report, "--trace", &trace,
    ]);
    let others = format!("{},{}", dir.arg("0.dlfs"), dir.arg("1.dlfs"));
    open(&["import-parts", "plan", &source, &others, "-o", &dir.arg("plan")]);
    open(&["select", &image, "label == 0", "--out", &dir.arg("cats.view")]);
    open(&["snapshot", "save", &image, &dir.arg("directory")]);
    let name = format!("dlfs://{}/train", dir.arg("catalog"));
    open(&["catalog", "add", &name, &image, "--alias", "stable"]);
    open(&["read", &name]);

    let mode = |name: &str| fs::metadata(dir.path(name)).unwrap().permissions().mode() & 0o777;
    for private in ["state.json", "report.html", "trace.json", "plan"] {
        assert_eq!(mode(private), 0o600, "{private}");
    }
    let only = |folder: &str| {
        let mut entries = fs::read_dir(dir.path(folder)).unwrap();
        let name = entries.next().unwrap().unwrap().file_name().into_string().unwrap();
        assert!(entries.next().is_none());
        format!("{folder}/{name}")
    };
    assert_eq!(mode(&only("tier")), 0o600);
    assert_eq!((mode("home/dlfs/catalog"), mode(&only("home/dlfs/catalog"))), (0o700, 0o600));
    for shared in ["train.dlfs", "cats.view", "directory"] {
        assert_eq!(mode(shared), 0o666, "{shared}");
    }
    let catalog = ["dlfs-catalog.json", "train/versions/1.json", "train/index.json"];
    for shared in catalog.map(|name| format!("catalog/{name}")) {
        assert_eq!(mode(&shared), 0o666, "{shared}");
    }
    for folder in ["catalog", "catalog/train", "catalog/train/aliases/stable"] {
        assert_eq!(mode(folder), 0o777, "{folder}");
    }
}

/// As a key file, and as a hosts file.
#[test]
fn a_key_file_that_is_no_regular_file_is_refused_at_once_by_its_kind() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let fifo = dir.path("fifo");
    let kind = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path("socket")).unwrap();
    fs::create_dir(dir.path("folder")).unwrap();
    let kinds = [
        (dir.arg("fifo"), "a pipe"),
        (dir.arg("socket"), "a socket"),
        (dir.arg("folder"), "a folder"),
        ("/dev/null".to_owned(), "a device"),
    ];
    for (path, kind) in kinds {
        let words = ["a key file is a regular file", kind, "mode 0600"];
        let host =
            ["stat", "nvme-tcp://127.0.0.1:9/nqn.2026-11.io.dlfs:x", "--dhchap-secret", &path];
        run(&host).code(1).complains_of(&words);
        run(&["serve", &image, "--listen", "127.0.0.1:0", "--hosts", &path])
            .code(1)
            .complains_of(&words);
        run(&["key", "check", &path]).code(1).complains_of(&words);
    }
    // As the hint says.
    let key = String::from_utf8(run(&["key", "gen"]).code(0).stdout).unwrap();
    fs::write(dir.path("key"), key).unwrap();
    fs::set_permissions(dir.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    run(&["key", "check", &dir.arg("key")]).code(0);
}
