//! fio itself drives a queue pair of dlfs, through the external engine in `fio/`.
//!
//! Needs fio's source tree, configured, in FIO_DIR, and the fio of it (there, in FIO, or on the path).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use dlfs::address::Address;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::target::{Target, TargetOptions};
use serde_json::Value;

use crate::common::{self, Ran, TestDir, end_of, finish};

/// fio, the engine that was built for it, and what else `make` needs to build it.
struct Built {
    folder: tempfile::TempDir,
    fio: PathBuf,
    tree: PathBuf,
}

/// `None`, loudly, where something is missing.
fn built() -> Option<&'static Built> {
    static BUILT: OnceLock<Result<Built, String>> = OnceLock::new();
    match BUILT.get_or_init(build) {
        Ok(built) => Some(built),
        Err(why) => {
            println!("SKIPPED: {why}");
            None
        }
    }
}

fn build() -> Result<Built, String> {
    let tree = std::env::var_os("FIO_DIR").map(PathBuf::from);
    let tree =
        tree.ok_or("FIO_DIR does not name fio's source tree, whose headers the engine needs")?;
    let own = tree.join("fio");
    let fio = match std::env::var_os("FIO") {
        Some(fio) => fio.into(),
        None if own.is_file() => own,
        None => "fio".into(),
    };
    for program in [fio.to_str().unwrap_or("fio"), "make", "cc", "pkg-config", "python3"] {
        if !Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success()) {
            return Err(format!("{program} is not installed"));
        }
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let built = Built { folder, fio, tree };
    // libdlfs lies beside this program, where cargo has built it.
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let mut install = Command::new("python3");
    install.arg(tools().join("capi/install")).arg(built.folder.path().join("prefix"));
    finish_well(install.arg("--from").arg(libraries));
    built.make("engine", "");
    Ok(built)
}

fn tools() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all tools")
}

fn finish_well(command: &mut Command) -> Ran {
    let mut owned = Command::new(command.get_program());
    owned.args(command.get_args());
    for (key, value) in command.get_envs() {
        owned.env(key, value.unwrap_or_default());
    }
    finish(owned).code(0)
}

impl Built {
    /// Builds the engine into a folder of this name, with more flags for the compiler.
    fn make(&self, name: &str, flags: &str) -> PathBuf {
        let out = self.folder.path().join(name);
        std::fs::create_dir(&out).unwrap();
        let mut make = Command::new("make");
        make.arg("-C").arg(tools().join("bench/fio")).arg(format!("OUT={}", out.display()));
        make.arg(format!("FIO_DIR={}", self.tree.display()));
        make.arg(format!("CFLAGS=-O1 -Wall -Wextra -Wno-unused-parameter -Werror {flags}"));
        make.env("PKG_CONFIG_PATH", self.folder.path().join("prefix/lib/pkgconfig"));
        finish_well(&mut make);
        out.join("dlfs-fio.so")
    }

    /// fio with this engine on the target called `name`.
    fn fio(&self, engine: &Path, name: &str, more: &[&str]) -> Command {
        let mut fio = Command::new(&self.fio);
        fio.arg("--name=e").arg(format!("--ioengine=external:{}", engine.display()));
        fio.arg(format!("--filename={name}")).args(more).arg("--output-format=json");
        fio.current_dir(self.folder.path());
        fio
    }

    fn engine(&self) -> PathBuf {
        self.folder.path().join("engine/dlfs-fio.so")
    }

    fn run(&self, name: &str, more: &[&str]) -> Ran {
        finish(self.fio(&self.engine(), name, more))
    }
}

/// 8 MiB that may be written, as a file and served from another.
fn namespaces(dir: &TestDir) -> (PathBuf, Target, String) {
    let file = dir.path("file");
    let served = dir.path("served");
    for path in [&file, &served] {
        std::fs::write(path, vec![0; 8 << 20]).unwrap();
    }
    let connect = ConnectOptions { writable: true, ..ConnectOptions::default() };
    let device = qpair::open(&Address::from_path(served), &connect).unwrap();
    let nqn = "nqn.2026-11.io.dlfs:bench".parse().unwrap();
    let options = TargetOptions { writable: true, ..TargetOptions::new(nqn) };
    let target = Target::bind(options, vec![device]).unwrap();
    let port = target.local_addr().port();
    let name = format!(r"nvme-tcp\://127.0.0.1\:{port}/nqn.2026-11.io.dlfs\:bench?ns=1");
    (file, target, name)
}

fn job(ran: &Ran) -> Value {
    ran.json()["jobs"][0].clone()
}

#[test]
fn fio_writes_verifies_and_reads_files_and_remote_namespaces() {
    let Some(built) = built() else { return };
    let dir = TestDir::new();
    let (file, target, remote) = namespaces(&dir);
    let port = target.local_addr().port();
    let spdk = format!(
        r"trtype=TCP adrfam=IPv4 traddr=127.0.0.1 trsvcid={port} subnqn=nqn.2026-11.io.dlfs\:bench ns=1"
    );
    for name in [file.to_str().unwrap(), &remote, &spdk] {
        let more = ["--bs=4k", "--iodepth=16", "--rw=randwrite", "--verify=crc32c", "--fsync=50"];
        let written = job(&built.run(name, &more).code(0));
        assert_eq!(written["write"]["io_bytes"], 8 << 20, "{name}");
        assert_eq!(written["read"]["io_bytes"], 8 << 20, "{name}");
        assert!(written["sync"]["total_ios"].as_u64().unwrap() > 10, "{name}");
        let more =
            ["--bsrange=4k-64k", "--iodepth=8", "--rw=randread", "--numjobs=2", "--thread=1"];
        let read = built.run(name, &more).code(0).json();
        assert_eq!(read["jobs"].as_array().unwrap().len(), 2, "{name}");
        for job in read["jobs"].as_array().unwrap() {
            assert!(job["read"]["io_bytes"].as_u64().unwrap() >= (8 << 20) - (64 << 10), "{name}");
        }
    }
    // A queue longer than the library asks for by itself.
    let deep = job(&built.run(&remote, &["--bs=4k", "--iodepth=200", "--rw=read"]).code(0));
    assert_eq!(deep["read"]["io_bytes"], 8 << 20);
}

#[test]
fn what_fio_wrote_is_what_dlfs_bench_reads() {
    let Some(built) = built() else { return };
    let dir = TestDir::new();
    let (file, _target, remote) = namespaces(&dir);
    let pattern = ["--verify=pattern", "--verify_pattern=0x5a17", "--bs=8k", "--iodepth=4"];
    for name in [file.to_str().unwrap(), &remote] {
        built.run(name, &[&pattern[..], &["--rw=write", "--do_verify=0"]].concat()).code(0);
        let filename = format!("--filename={name}");
        let ours = [&["--name=v", &filename, "--rw=read", "--output-format=json"], &pattern[..]];
        assert_eq!(job(&common::run(&ours.concat()).quiet())["dlfs"]["verified"], 1024, "{name}");
    }
}

#[test]
fn mistakes_and_lost_targets_end_fio_with_the_reason() {
    let Some(built) = built() else { return };
    let dir = TestDir::new();
    let (file, target, remote) = namespaces(&dir);
    let file = file.to_str().unwrap();
    let wrong = |name: &str, more: &[&str], words: &[&str]| {
        built.run(name, more).code(1).complains_of(words);
    };
    wrong("/nonexistent/x", &["--rw=read"], &["/nonexistent/x", "No such file"]);
    wrong(file, &["--rw=read", "--bs=512"], &["buffer_len is 512"]);
    wrong("a:b", &["--rw=read"], &["one namespace"]);
    wrong(&remote, &["--rw=read", "--queue_size=8", "--iodepth=32"], &["32 buffers", "7 I/Os"]);
    let other = built.make("other", "-DDLFS_FIO_ABI=7");
    let refused = finish(built.fio(&other, file, &["--rw=read"])).code(1);
    refused.complains_of(&["ioops version 7"]);
    let more = ["--rw=randread", "--time_based", "--runtime=20", "--ctrl_loss_tmo=1"];
    let mut fio = built.fio(&built.engine(), &remote, &more);
    let fio = fio.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let fio = fio.spawn().unwrap();
    common::wait_until("fio reads", || target.stats().read_bytes > 0);
    target.stop();
    let lost = end_of(fio).code(1);
    lost.complains_of(&["an I/O failed", "disconnected"]);
}
