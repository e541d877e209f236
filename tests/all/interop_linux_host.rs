//! Linux's own NVMe/TCP host, booted in QEMU, and an independent host in Python, against our
//! target.
//!
//! The Linux tests run with `DLFS_INTEROP=1`: `cargo test --test all interop_linux_host::`. Without QEMU
//! they are skipped and reported; see tests/interop/README.md for what they need.

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::linux_host;
use crate::support::random::Random;
use dlfs::auth::{Group, Hash, Secret};
use dlfs::nvme::Nqn;
use dlfs::qpair::file::{FileNamespace, FileOptions};
use dlfs::qpair::{ConnectOptions, Direct, open};
use dlfs::target::{AnaState, HostKeys, Target, TargetOptions, TargetStats};
use dlfs::units::Nsid;
use tempfile::NamedTempFile;

const LEN: usize = 64 << 20;

/// A file of seeded bytes, and a target that serves it.
struct Served {
    target: Target,
    file: NamedTempFile,
}

fn serve(writable: bool) -> Served {
    serve_with(|options| options.writable = writable)
}

fn serve_with(set: impl FnOnce(&mut TargetOptions)) -> Served {
    let mut bytes = vec![0; LEN];
    Random::new(2).fill(&mut bytes);
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    let mut options = TargetOptions::new(Nqn::new("nqn.2026-11.io.dlfs:interop").unwrap());
    set(&mut options);
    let writable = options.writable;
    let file_options = FileOptions { direct: Direct::Off, writable, ..FileOptions::default() };
    let device = FileNamespace::open(file.path(), file_options).unwrap();
    Served { target: Target::bind(options, vec![Arc::new(device)]).unwrap(), file }
}

fn is_wanted(what: &str) -> bool {
    let wanted = std::env::var_os("DLFS_INTEROP").is_some_and(|value| value == "1");
    if !wanted {
        eprintln!("SKIPPED: {what} (set DLFS_INTEROP=1 to run it)");
    }
    wanted
}

fn script(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "interop", name].iter().collect()
}

/// Runs a script of the lab on the target, and returns its output if it reported success.
fn run(name: &str, served: &Served, arguments: &[&str]) -> String {
    let port = served.target.local_addr().port().to_string();
    let output: Output = Command::new(script(name))
        .args(["--port", &port, "--nqn", served.target.nqn().as_str()])
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{name} {arguments:?}: {}\n{text}\n{errors}", output.status);
    text
}

/// Returns whether Linux can be booted here.
fn linux_is_there() -> bool {
    if !is_wanted("Linux's host against our target") {
        return false;
    }
    let found = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: Linux's host against our target: qemu-system-x86_64 is not installed");
    }
    found
}

fn sha256(served: &Served) -> String {
    let output = Command::new("sha256sum").arg(served.file.path()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().to_owned()
}

#[test]
fn linux_discovers_connects_and_reads_the_right_bytes() {
    if !linux_is_there() {
        return;
    }
    let served = serve(false);
    let text = run("linux-nvme-host", &served, &["--read", "64M", "--sha256", &sha256(&served)]);
    assert!(text.contains("RESULT PASS") && text.contains("PASS discover"), "{text}");
    assert_eq!(served.target.stats().writes, 0);
}

#[test]
fn linux_reads_the_right_bytes_with_header_and_data_digests() {
    if !linux_is_there() {
        return;
    }
    let served = serve(false);
    let arguments = ["-g", "-G", "--read", "64M", "--sha256", &sha256(&served)];
    let text = run("linux-nvme-host", &served, &arguments);
    assert!(text.contains("RESULT PASS"), "{text}");
}

#[test]
fn linux_writes_and_makes_a_file_system_on_a_writable_namespace() {
    if !linux_is_there() {
        return;
    }
    for digests in [&[][..], &["-g", "-G"][..]] {
        let served = serve(true);
        let arguments = [&["--write", "--mkfs"], digests].concat();
        let text = run("linux-nvme-host", &served, &arguments);
        assert!(text.contains("RESULT PASS"), "{text}");
        assert!(served.target.stats().writes > 0);
    }
}

#[test]
fn linux_sees_that_a_namespace_is_write_protected() {
    if !linux_is_there() {
        return;
    }
    let served = serve(false);
    let before = sha256(&served);
    let mut script = NamedTempFile::new().unwrap();
    writeln!(script, "[ \"$(cat /sys/block/${{DEV##*/}}/ro)\" = 1 ] || exit 1").unwrap();
    writeln!(script, "dd if=/dev/zero of=$DEV bs=4096 count=1 oflag=direct && exit 1; exit 0")
        .unwrap();
    run("linux-nvme-host", &served, &["--script", script.path().to_str().unwrap()]);
    assert_eq!((served.target.stats().writes, sha256(&served)), (0, before));
}

/// Without keep alive the target cannot tell whether an idle host still exists.
#[test]
fn linux_without_a_keep_alive_is_evicted_only_for_another_host_and_reconnects() {
    if !linux_is_there() {
        return;
    }
    let served = serve_with(|options| {
        options.max_controllers = 1;
        options.max_keep_alive = Duration::from_secs(1);
    });
    let wait_for = |what: &str, is_so: &dyn Fn(TargetStats) -> bool| {
        let late = Instant::now() + Duration::from_secs(240);
        while !is_so(served.target.stats()) {
            assert!(Instant::now() < late, "{what}: {:?}", served.target.stats());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let mut script = NamedTempFile::new().unwrap();
    writeln!(script, "sleep 20; dd if=$DEV of=/tmp/again bs=1M count=4 iflag=direct").unwrap();
    let script_path = script.path().to_str().unwrap();
    let arguments = ["--kato", "0", "--no-discover", "--read", "8M", "--script", script_path];
    std::thread::scope(|scope| {
        let linux = scope.spawn(|| run("linux-nvme-host", &served, &arguments));
        wait_for("Linux reads", &|stats| stats.controllers == 1 && stats.read_bytes >= 8 << 20);
        std::thread::sleep(Duration::from_secs(4)); // twice the time after which it may be replaced, and more
        let stats = served.target.stats();
        assert_eq!((stats.controllers, stats.evicted), (1, 0), "nobody else wants the place");
        let address = served.target.address(Nsid(1));
        let late = Instant::now() + Duration::from_secs(60);
        let another = loop {
            match open(&address, &ConnectOptions::default()) {
                Ok(device) => break device,
                Err(error) => assert!(Instant::now() < late, "{}", error.report()),
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        wait_for("Linux made room", &|stats| stats.evicted >= 1);
        drop(another);
        let text = linux.join().expect("Linux reconnects, and its script ends well");
        assert!(text.contains("RESULT PASS"), "{text}");
    });
    assert!(served.target.stats().read_bytes >= 12 << 20);
}

/// One guest with a path to each of two targets of one subsystem; it reads while ANA states change and a path goes
/// and comes back.
#[test]
fn linux_takes_two_targets_as_one_subsystem_and_follows_their_ana_states() {
    if !linux_is_there() {
        return;
    }
    let ana = |options: &mut TargetOptions| options.ana = Some(AnaState::Optimized);
    let first = serve_with(ana);
    let second = serve_with(ana);
    let port = second.target.local_addr().port();
    let mut script = NamedTempFile::new().unwrap();
    let connects = linux_host::CONNECTS;
    let nqn = first.target.nqn();
    writeln!(script, "{connects}\nconnects {port} {nqn} || exit 1\n{READS_ON}").unwrap();
    let script_path = script.path().to_str().unwrap();
    let sum = sha256(&first);
    let arguments = [
        "--no-discover",
        "--read",
        "64M",
        "--sha256",
        &sum,
        "--kato",
        "5",
        "--timeout",
        "550",
        "--script",
        script_path,
    ];
    let wait_for_reads = |served: &Served, what: &str| {
        let before = served.target.stats().reads;
        let late = Instant::now() + Duration::from_secs(240);
        while served.target.stats().reads < before + 32 {
            assert!(Instant::now() < late, "{what}: {:?}", served.target.stats());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    std::thread::scope(|scope| {
        let linux = scope.spawn(|| run("linux-nvme-host", &first, &arguments));
        let late = Instant::now() + Duration::from_secs(240);
        while second.target.stats().controllers == 0 {
            assert!(Instant::now() < late && !linux.is_finished(), "no second path");
            std::thread::sleep(Duration::from_millis(50));
        }
        for state in [AnaState::NonOptimized, AnaState::Inaccessible] {
            first.target.set_ana(state).unwrap();
            wait_for_reads(&second, "the other path is used");
            first.target.set_ana(AnaState::Optimized).unwrap();
            second.target.set_ana(state).unwrap();
            wait_for_reads(&first, "the path is used again");
            second.target.set_ana(AnaState::Optimized).unwrap();
        }
        let listen = second.target.local_addr();
        second.target.stop();
        wait_for_reads(&first, "the other path is down");
        let again = serve_with(|options| {
            ana(options);
            options.listen = listen;
        });
        // Linux stays on the path that it uses while that is as good as others.
        first.target.set_ana(AnaState::NonOptimized).unwrap();
        wait_for_reads(&again, "the path is back, and used");
        assert!(!linux.is_finished(), "all of that was while it read");
        for served in [&first, &again] {
            served.file.as_file().write_all_at(&[0; 4096], (LEN - 4096) as u64).unwrap();
        }
        let text = linux.join().expect("no read has failed");
        // The states change while Linux lists its paths, but the first one has had one since it connected.
        let states = ["live optimized", "live non-optimized", "live inaccessible"];
        let is_listed = states.iter().any(|state| text.contains(state));
        assert!(text.contains("RESULT PASS") && is_listed, "{text}");
    });
}

/// One guest, which connects to one of our targets for each hash and group: each allows no other.
#[test]
fn linuxs_host_and_we_authenticate_with_every_hash_and_group_one_way_and_both_ways() {
    if !linux_is_there() {
        return;
    }
    let hostnqn = Nqn::new("nqn.2026-11.io.dlfs:a-host-with-a-key").unwrap();
    // A hash makes the key of the one; the other is the key itself.
    let [host, ctrl] = [(1, Some(Hash::Sha256)), (2, None)]
        .map(|(byte, transform)| Secret::generate(&[byte; 64], transform));
    let wrong = Secret::generate(&[3; 64], None).to_text();
    let keys = HostKeys {
        secrets: vec![host.clone()],
        ctrl_secret: Some(ctrl.clone()),
        ..HostKeys::default()
    };
    let mut targets = Vec::new();
    let mut script = NamedTempFile::new().unwrap();
    writeln!(script, "{}{READS}", linux_host::CONNECTS).unwrap();
    for hash in Hash::ALL {
        for group in Group::ALL {
            let served = serve_with(|options| {
                options.nqn = Nqn::new(format!("nqn.2026-11.io.dlfs:{hash:?}.{group:?}")).unwrap();
                options.host_keys.insert(hostnqn.clone(), keys.clone());
                (options.dhchap_hashes, options.dhchap_groups) = (vec![hash], vec![group]);
                options.connect_timeout = Duration::from_secs(60);
            });
            let to = format!("{} {}", served.target.local_addr().port(), served.target.nqn());
            let host = host.to_text();
            let ctrl = ctrl.to_text();
            let sum = sha256_of(&served, 1 << 20);
            writeln!(script, "reads {to} {sum} --dhchap-secret={}", *host).unwrap();
            let both = format!("--dhchap-secret={} --dhchap-ctrl-secret=", *host);
            writeln!(script, "reads {to} {sum} {both}{}", *ctrl).unwrap();
            writeln!(script, "refused {to} --dhchap-secret={}", *wrong).unwrap();
            writeln!(script, "refused {to} {both}{}", *wrong).unwrap();
            writeln!(script, "refused {to}").unwrap();
            targets.push(served);
        }
    }
    let host = host.to_text();
    let script_path = script.path().to_str().unwrap();
    let arguments = ["--hostnqn", hostnqn.as_str(), "--dhchap-secret", &host, "--read", "1M"];
    let arguments =
        [&arguments[..], &["--no-discover", "--timeout", "550", "--script", script_path]].concat();
    let text = run("linux-nvme-host", &targets[0], &arguments);
    assert!(text.contains("RESULT PASS"), "{text}");
    for served in &targets {
        let stats = served.target.stats();
        assert!(stats.read_bytes >= 2 << 20, "{}: {stats:?}", served.target.nqn());
    }
}

/// Functions of the guest's shell: a connect that reads the right bytes, and one that fails.
const READS: &str = r#"
reads() {
    port=$1 to=$2 sum=$3
    shift 3
    nvme disconnect -n "$to" >/dev/null
    connects "$port" "$to" "$@" || { echo "no connection to $to: $*"; exit 1; }
    tries=0
    until dev=$(device "$to") && [ -b "$dev" ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "no device of $to"; exit 1; }
        usleep 50000
    done
    got=$(dd if="$dev" bs=128k count=8 iflag=direct status=none | sha256sum)
    [ "${got%% *}" = "$sum" ] || { echo "other bytes from $to: $got"; exit 1; }
    nvme disconnect -n "$to"
}
refused() {
    ! connects "$@" || { echo "a connection without its proof: $*"; exit 1; }
}
"#;

/// Prints the paths, and reads all of the namespace again and again until its last 4 KiB are zeroes.
const READS_ON: &str = r#"
nvme list-subsys "$DEV"
head -c 4096 /dev/zero >/tmp/zeroes
failed() { echo "a read has failed"; exit 1; }
until cmp -s /tmp/last /tmp/zeroes; do
    dd if="$DEV" of=/dev/null bs=128k iflag=direct || failed
    dd if="$DEV" of=/tmp/last bs=4096 skip=$((SIZE / 4096 - 1)) count=1 iflag=direct || failed
done
"#;

/// The SHA-256 of the first `len` bytes.
fn sha256_of(served: &Served, len: usize) -> String {
    let bytes = std::fs::read(served.file.path()).unwrap();
    let mut part = NamedTempFile::new().unwrap();
    part.write_all(&bytes[..len]).unwrap();
    let output = Command::new("sha256sum").arg(part.path()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().to_owned()
}

#[test]
fn an_independent_host_reads_writes_and_discovers() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("SKIPPED: a host in Python against our target: python3 is not installed");
        return;
    }
    let served = serve(true);
    let image = served.file.path().to_str().unwrap().to_owned();
    for digests in [&[][..], &["-g", "-G"][..]] {
        let read = ["--discover", "--read", "4194304", "--image", &image];
        run("nvme_tcp_probe.py", &served, &[&read[..], digests].concat());
        let write =
            ["--write", "1048576", "--read", "2097152", "--image", &image, "--io-size", "65536"];
        run("nvme_tcp_probe.py", &served, &[&write[..], digests].concat());
    }
}
