//! Linux's own NVMe/TCP host and target, booted in QEMU, and ours inside TLS 1.3.
//!
//! Runs with `DLFS_INTEROP=1`: `cargo test --test all interop_tls::`. Without QEMU it is skipped and
//! reported; see tests/interop/README.md for what it needs. In Linux, `tlshd` does the handshakes with GnuTLS and
//! nvme-cli derives the keys. In Debian's trixie both are old: keys are those of libnvme before July 2025, and
//! GnuTLS 3.8.9 takes no external key with SHA-384. Forky's do what the specifications say.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::support::alone::again;
use crate::support::linux_host;
use crate::support::linux_target::{self, Linux, long_timeouts};
use dlfs::address::Address;
use dlfs::auth::{ConfiguredPsk, Derivation, Hash, Secret};
use dlfs::nvme::Nqn;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::tcp::discover;
use dlfs::qpair::{ConnectOptions, open};
use dlfs::target::{HostKeys, Target, TargetOptions};
use tempfile::NamedTempFile;

const HOSTNQN: &str = "nqn.2026-11.io.dlfs:a-host-with-a-key";
const HASHES: [Hash; 2] = [Hash::Sha256, Hash::Sha384];

fn key(byte: u8, hash: Hash) -> ConfiguredPsk {
    ConfiguredPsk::generate(&[byte; 64], hash)
}

fn secret(byte: u8) -> Secret {
    Secret::generate(&[byte; 64], Some(Hash::Sha256))
}

fn with_key(key: ConfiguredPsk) -> ConnectOptions {
    let hostnqn = Some(Nqn::new(HOSTNQN).unwrap());
    ConnectOptions { hostnqn, tls_key: Some(key), ..long_timeouts() }
}

fn refusal(linux: &Linux, options: &ConnectOptions) -> String {
    linux.connect(options).map(drop).unwrap_err().report().to_string()
}

/// Writes and reads some of the image through a connection that is inside TLS.
fn writes_and_reads(linux: &Linux, options: &ConnectOptions, byte: u8) {
    let device = open(&linux.addresses[0], options)
        .unwrap_or_else(|error| panic!("number {byte}: {}", error.report()));
    assert_eq!(device.namespace().engine, "tcp (TLS)");
    drop(device);
    let mut blocking = linux.connect(options).unwrap();
    for len in [512, 4096, 100 << 10, 3 << 20] {
        let bytes: Vec<u8> = (0..len).map(|at| (at / 512) as u8 ^ byte).collect();
        blocking.write_at(4096, &bytes).unwrap();
        assert!(*blocking.read(4096, len).unwrap() == bytes, "{len} bytes, number {byte}");
    }
}

#[test]
fn we_and_linuxs_target_connect_inside_tls_with_both_suites_and_by_concatenation() {
    let [short, long] = HASHES.map(|hash| key(1, hash).to_text());
    let host = secret(1).to_text();
    let options = ["--suite", "forky", "--allow-host", HOSTNQN, "--tls-key", &short];
    let options = [&options[..], &["--tls-key", &long]].concat();
    let Some(mut linux) = Linux::boot_with(1, 1, &options) else { return };
    for (number, hash) in HASHES.into_iter().enumerate() {
        let options = with_key(key(1, hash));
        writes_and_reads(&linux, &options, number as u8);
        let Address::Tcp(address) = &linux.addresses[0] else { unreachable!("it is one of TCP") };
        let records = discover(&address.traddr, address.trsvcid, &options).unwrap();
        assert!(
            records.iter().any(|record| record.subnqn().is_ok_and(|nqn| nqn == address.subnqn))
        );
        let text = refusal(&linux, &with_key(key(2, hash)));
        assert!(text.contains("TLS handshake") && text.contains("this key"), "{text}");
    }
    let without = ConnectOptions { tls_key: None, ..with_key(key(1, Hash::Sha256)) };
    refusal(&linux, &without);

    // The kernel refuses to change these of a port that listens.
    linux.command("port-down 1");
    linux.command("sh echo 'not required' >$CFG/ports/1/addr_treq");
    // Without a group there is no key to generate; its default is none.
    for (attribute, text) in [("key", &**host), ("dhgroup", "ffdhe3072")] {
        linux.command(&format!("sh echo '{text}' >$CFG/hosts/{HOSTNQN}/dhchap_{attribute}"));
    }
    linux.command("port-up 1");
    // One way alone: when both sides prove themselves, Linux 7.2 logs "failed to generate PSK, error -22".
    let options = ConnectOptions { concat: true, dhchap_secret: Some(secret(1)), ..without };
    writes_and_reads(&linux, &options, 2);
}

#[test]
fn we_and_linuxs_target_connect_with_a_key_that_an_old_libnvme_derived() {
    let text = key(1, Hash::Sha256).to_text();
    let options = ["--suite", "trixie", "--allow-host", HOSTNQN, "--tls-key", &text];
    let Some(linux) = Linux::boot_with(1, 1, &options) else { return };
    let options = with_key(key(1, Hash::Sha256));
    let text = refusal(&linux, &options);
    assert!(text.contains("--tls-compat"), "{text}");
    let options = ConnectOptions { tls_derivation: Derivation::Compatible, ..options };
    writes_and_reads(&linux, &options, 3);
}

const LEN: u64 = 64 << 20;

/// A target that knows the host of `HOSTNQN` by these keys.
fn serve(name: &str, keys: HostKeys) -> Target {
    let mut options = TargetOptions::new(Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap());
    options.writable = true;
    options.connect_timeout = Duration::from_secs(60);
    options.host_keys.insert(Nqn::new(HOSTNQN).unwrap(), keys);
    Target::bind(options, vec![Arc::new(MemNamespace::new(LEN, 512).unwrap())]).unwrap()
}

fn tls_keys(key: ConfiguredPsk) -> HostKeys {
    HostKeys { tls_keys: vec![key], ..HostKeys::default() }
}

/// Boots Linux's host, which connects to `first` with `key` and tries it; then it runs the script, which finds the
/// files in /lab.
fn run_with(
    suite: &str,
    first: &Target,
    key: &ConfiguredPsk,
    script: &str,
    files: &[PathBuf],
) -> String {
    let mut file = NamedTempFile::new().unwrap();
    writeln!(file, "{}{READS}\n{script}", linux_host::CONNECTS).unwrap();
    let lab = ["tests", "interop", "linux-nvme-host"];
    let program: PathBuf = [&[env!("CARGO_MANIFEST_DIR")], &lab[..]].concat().iter().collect();
    let mut command = Command::new(program);
    command.args(["--suite", suite, "--nqn", first.nqn().as_str(), "--hostnqn", HOSTNQN]);
    command.args(["--port", &first.local_addr().port().to_string(), "--tls-key", &key.to_text()]);
    command.args(["--write", "--timeout", "550", "--script"]).arg(file.path());
    for file in files {
        command.arg("--file").arg(file);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("RESULT PASS"), "{text}\n{errors}");
    text
}

#[test]
fn linuxs_host_and_we_connect_inside_tls_with_both_suites_and_by_concatenation() {
    if !linux_target::is_there("Linux's host against our target, inside TLS") {
        return;
    }
    let targets = HASHES.map(|hash| serve(&format!("{hash:?}"), tls_keys(key(1, hash))));
    let keys = HostKeys {
        secrets: vec![secret(1)],
        ctrl_secret: Some(secret(2)),
        must_concat: true,
        ..HostKeys::default()
    };
    let concatenating = serve("concat", keys);
    let of = |target: &Target| format!("{} {}", target.local_addr().port(), target.nqn());
    let right = key(1, Hash::Sha384).to_text();
    let wrong = key(2, Hash::Sha384).to_text();
    let host = secret(1).to_text();
    let ctrl = secret(2).to_text();
    let other = of(&targets[1]);
    let concat = of(&concatenating);
    let script = format!(
        "inserted {other} {}\nrefused {other} --tls\n\
         keyctl clear %:.nvme\ninserted {other} {}\nreads {other} --tls\nrefused {other}\n\
         keyctl clear %:.nvme\nreads {concat} --concat --dhchap-secret={host}\n\
         reads {concat} --concat --dhchap-secret={host} --dhchap-ctrl-secret={ctrl}\n\
         refused {concat} --dhchap-secret={host} --dhchap-ctrl-secret={ctrl}\n",
        *wrong,
        *right,
        host = *host,
        ctrl = *ctrl,
    );
    run("forky", &targets[0], &key(1, Hash::Sha256), &script);
    for target in targets.iter().chain([&concatenating]) {
        let stats = target.stats();
        assert!(stats.read_bytes >= 1 << 20, "{}: {stats:?}", target.nqn());
    }
}

#[test]
fn linuxs_host_and_we_connect_with_a_key_that_an_old_libnvme_derived() {
    if !linux_target::is_there("Linux's host against our target, inside TLS") {
        return;
    }
    let target = serve("old", tls_keys(key(1, Hash::Sha256)));
    run("trixie", &target, &key(1, Hash::Sha256), "true");
    assert!(target.stats().writes > 0);
}

fn run(suite: &str, first: &Target, key: &ConfiguredPsk, script: &str) -> String {
    run_with(suite, first, key, script, &[])
}

/// Linux's keyring of keys for TLS exists where its NVMe/TCP is loaded: in the guest, into which this program goes.
/// nvme-cli puts the key there, of the kernel's type `psk`.
#[test]
fn our_host_in_linux_takes_the_key_of_the_kernels_keyring() {
    if !linux_target::is_there("our host with a key of Linux's keyring") {
        return;
    }
    let target = serve("keyring", tls_keys(key(1, Hash::Sha384)));
    let other = serve("no-key", tls_keys(key(2, Hash::Sha384)));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ours");
    let ours = again(reads_with_the_key_of_the_keyring);
    assert!(
        Command::new("strip")
            .arg("-o")
            .args([&*program, Path::new(ours.get_program())])
            .status()
            .unwrap()
            .success()
    );
    let linked = Command::new("ldd").arg(&program).output().unwrap();
    let linked = String::from_utf8(linked.stdout).unwrap();
    // The C library is the guest's own.
    let is_ours = |path: &&str| {
        path.starts_with('/')
            && !["/libc.", "/libm.", "/ld-"].iter().any(|other| path.contains(other))
    };
    // OpenSSL is not linked: it lies where this process has it from.
    dlfs::tls::load().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let opened: BTreeSet<&str> = maps.split_whitespace().filter(|word| is_openssl(word)).collect();
    let libraries = linked.split_whitespace().filter(is_ours).chain(opened).map(PathBuf::from);
    let files: Vec<PathBuf> = [program].into_iter().chain(libraries).collect();
    let arguments: Vec<&str> = ours.get_args().filter_map(|word| word.to_str()).collect();
    let address = |target: &Target| target.address(dlfs::units::Nsid(1)).to_string();
    let script = format!(
        "inserted {} {} {}\nchmod +x /lab/ours\n\
         {IN_THE_GUEST}='{} {}' LD_LIBRARY_PATH=/lab /lab/ours {} \
         >/tmp/said 2>&1 || {{ cat /tmp/said; exit 1; }}\n\
         grep '{READ_IT}' /tmp/said || {{ cat /tmp/said; exit 1; }}\n",
        target.local_addr().port(),
        target.nqn(),
        *key(1, Hash::Sha384).to_text(),
        address(&target),
        address(&other),
        arguments.join(" "),
    );
    let first = serve("first", tls_keys(key(3, Hash::Sha256)));
    run_with("forky", &first, &key(3, Hash::Sha256), &script, &files);
    assert!(target.stats().read_bytes >= 1 << 20);
    assert_eq!(other.stats().read_bytes, 0);
}

fn is_openssl(path: &str) -> bool {
    ["/libssl.so.", "/libcrypto.so."].iter().any(|name| path.contains(name))
}

/// The part of the test above that runs in the guest.
#[test]
fn reads_with_the_key_of_the_keyring() {
    let Ok(addresses) = std::env::var(IN_THE_GUEST) else {
        println!("SKIPPED: another test runs this in a guest");
        return;
    };
    let (address, other) = addresses.split_once(' ').unwrap();
    let tls_keyring = Some(dlfs::tls::keyring::NVME.to_owned());
    let hostnqn = Some(Nqn::new(HOSTNQN).unwrap());
    let options = ConnectOptions { hostnqn, tls_keyring, ..long_timeouts() };
    let device = open(&address.parse().unwrap(), &options)
        .unwrap_or_else(|error| panic!("{}", error.report()));
    assert_eq!(device.namespace().engine, "tcp (TLS)");
    let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
    assert!(io.read(0, 1 << 20).unwrap().iter().all(|byte| *byte == 0));
    let error = open(&other.parse().unwrap(), &options).map(drop).unwrap_err();
    let text = error.report().to_string();
    assert!(text.contains("no key for host"), "{text}");
    println!("{READ_IT}");
}

const IN_THE_GUEST: &str = "DLFS_TEST_TARGETS_OF_GUEST";
const READ_IT: &str = "read with the key of the keyring";

/// Functions of the guest's shell: a key of the kernel's, a connect that reads, and one that fails.
const READS: &str = r#"
inserted() {
    nvme check-tls-key --subsysnqn="$2" --hostnqn="$HOSTNQN" --keydata="$3" --identity=1 --insert || exit 1
}
reads() {
    to=$2
    connects "$@" || { echo "no connection: $*"; exit 1; }
    tries=0
    until dev=$(device "$to") && [ -b "$dev" ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "no device of $to"; exit 1; }
        usleep 50000
    done
    yes "$to" | head -c 1048576 >/tmp/written
    dd if=/tmp/written of="$dev" bs=128k iflag=fullblock oflag=direct conv=notrunc status=none || exit 1
    dd if="$dev" of=/tmp/read bs=128k count=8 iflag=direct status=none
    cmp /tmp/written /tmp/read || { echo "other bytes from $to"; exit 1; }
    nvme disconnect -n "$to"
}
refused() {
    ! connects "$@" || { echo "a connection without its proof: $*"; exit 1; }
}
"#;
