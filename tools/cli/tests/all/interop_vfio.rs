//! The command on drives behind an IOMMU, through VFIO: in a Linux guest of QEMU, whose drives have namespaces of 512
//! and 4,096 byte blocks.
//!
//! It runs with `DLFS_INTEROP=1`: `cargo test -p dlfs-cli interop_vfio`. Without QEMU it is skipped and says so; see
//! tests/interop/README.md for what it needs.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{TestDir, finish, run};

/// Each command must end as it says, else the output of the last one is told.
const SCRIPT: &str = r#"
say() { echo "OUT $*" >&3; }
fails() { cat /tmp/log /tmp/err | sed 's/^/OUT /' >&3; say "FAILED $*"; exit 1; }
runs() { "$@" >/tmp/log 2>/tmp/err || fails "$*: status $?"; }
refused() {
    words=$1
    shift
    "$@" >/tmp/log 2>/tmp/err && fails "no refusal: $*"
    cat /tmp/log /tmp/err | grep -q "$words" || fails "not '$words': $*"
}
ends() { # PID: with its status, within a minute
    (sleep 60; kill -9 "$1") &
    watchdog=$!
    wait "$1"
    status=$?
    kill $watchdog
    return $status
}
reads() { # until DRIVE is read, in the background
    dlfs read "$@" --order global --seed 7 --json >/tmp/log 2>/tmp/err &
    reader=$!
    sleep 2
    kill -0 $reader || fails "it has ended: $*"
}
step() { say "at $(cut -d' ' -f1 /proc/uptime): $*"; }

tar -xf /lab/source.tar -C /tmp
set -- $DRIVES
first=$1 second=$2

step the kernel has the drives, and doctor says how to take them
refused 'its driver is nvme, not vfio-pci' dlfs verify "pcie:$first"
refused 'this machine has no PCI device' dlfs doctor pcie:0000:99:00.0
for drive in $first $second; do
    refused 'bound to nvme' dlfs doctor "pcie:$drive"
    sed -n 's/.*; as root: modprobe/modprobe/p' /tmp/log >/tmp/commands
    runs sh -e /tmp/commands
done
for ns in 1 2; do
    address="pcie:$first?ns=$ns"
    step import onto namespace $ns
    runs dlfs import /tmp/source "$address" --force
    runs dlfs verify "$address"
    for order in grouped global; do
        runs dlfs read "$address" --order $order --epochs 2 --seed 7 --json
        say "READ $order $(cat /tmp/log)"
    done
done
step doctor, id-ctrl, id-ns
runs dlfs doctor --seconds 0.2 "pcie:$first" --json
grep -v '"bound"' /tmp/log | grep -q '"good":false' && fails "doctor finds something"
runs dlfs id-ctrl "pcie:$first"
grep -q '^sn *: lab1' /tmp/log || fails "another serial number"
runs dlfs id-ns "pcie:$first" -n 2 --output json
grep -q '"ds":12' /tmp/log || fails "no blocks of 4,096 bytes"

step serve over NVMe/TCP
nqn=nqn.2026-11.io.dlfs:drive
dlfs serve "pcie:$first?ns=1" --listen 127.0.0.1:4420 --nqn $nqn --json >/tmp/served 2>&1 &
server=$!
tries=0
until grep -q '"listen"' /tmp/served; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || fails "it does not listen: $(cat /tmp/served)"
    sleep 0.1
done
runs dlfs verify "nvme-tcp://127.0.0.1:4420/$nqn"
refused 'by another process' dlfs verify "pcie:$first"
kill $server
ends $server

step kills
for delay in 0.3 1 2; do
    dlfs read "pcie:$first" --order global --epochs 100000 >/dev/null 2>&1 &
    sleep $delay
    kill -9 $!
    wait $!
    runs dlfs verify "pcie:$first?ns=2"
done

step a reset in mid-read
reads "pcie:$first" --epochs 300
echo 1 >"/sys/bus/pci/devices/$first/reset"
ends $reader || fails "the reader does not survive a reset"
grep -q 'a controller is reset' /tmp/err || fails "it has not noticed the reset"

if command -v strace >/dev/null; then
    step system calls
    for epochs in 1 21; do
        runs strace -f -o /tmp/calls dlfs read "pcie:$first" --order global --epochs $epochs --busy-poll --json
        say "CALLS $(grep -c '^[0-9]* *[a-z]' /tmp/calls) $(cat /tmp/log)"
    done
fi

step unplugged in mid-read
runs dlfs import /tmp/source "pcie:$second" --force
reads "pcie:$second" --epochs 100000
echo "UNPLUG 2" >&3
ends $reader && fails "the reader has read on"
grep -q 'the kernel wants the device back' /tmp/err || fails "another error"
tries=0
while [ -e "/sys/bus/pci/devices/$second" ]; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || fails "the drive is still there"
    sleep 0.1
done
refused 'looking for the PCI device' dlfs verify "pcie:$second"
step the end
"#;

/// The values of lines that begin with these words.
fn values<'a>(text: &'a str, words: &'a str) -> impl Iterator<Item = (&'a str, Value)> {
    let lines = text.lines().filter_map(move |line| line.strip_prefix("OUT ")?.strip_prefix(words));
    lines.map(|line| {
        let (name, json) = line.trim().split_once(' ').expect("a name and an object");
        (name, serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}")))
    })
}

#[test]
fn a_drive_that_vfio_has_is_imported_read_served_reset_and_unplugged() {
    // Asked for by a variable: beside another guest it did not end once, and why is not known yet.
    if std::env::var_os("DLFS_INTEROP_VFIO").is_none_or(|value| value != "1") {
        return eprintln!("SKIPPED: drives through VFIO (set DLFS_INTEROP_VFIO=1 to run it)");
    }
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        return eprintln!("SKIPPED: drives through VFIO: qemu-system-x86_64 is not installed");
    }
    let dir = TestDir::with_image();
    std::fs::write(dir.path("script"), SCRIPT).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["-cf", &dir.arg("source.tar"), "-C", &dir.arg("."), "source"]);
    assert!(tar.status().unwrap().success());
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/linux-vfio");
    let mut command = Command::new(lab);
    command.args(["--drive", "32M:512,32M:4096", "--drive", "32M:4096", "--timeout", "280"]);
    command.args(["--script", &dir.arg("script"), "--file", &dir.arg("source.tar")]);
    command.args(["--program", env!("CARGO_BIN_EXE_dlfs")]);
    if Path::new("/usr/bin/strace").exists() {
        command.args(["--program", "/usr/bin/strace"]);
    }
    let ran = finish(command);
    let text = ran.text();
    assert!(text.contains("RESULT PASS"), "{text}\n{}", ran.stderr);
    let steps =
        text.lines().filter(|line| ["INFO", "OUT at"].iter().any(|word| line.starts_with(word)));
    steps.for_each(|line| eprintln!("{line}"));
    let image = &dir.arg("train.dlfs");
    let mut count = 0;
    for (order, found) in values(text, "READ ") {
        let read = ["read", image, "--order", order, "--epochs", "2", "--seed", "7", "--json"];
        let expected = run(&read).code(0).json();
        assert_eq!(found["engine"], "pcie (vfio)");
        for key in ["samples", "bytes", "order_crc32c"] {
            assert_eq!(found[key], expected[key], "{key} of {order}");
        }
        count += 1;
    }
    assert_eq!(count, 4, "two orders of two namespaces");
    let calls: Vec<(u64, u64)> = values(text, "CALLS ")
        .map(|(calls, found)| (calls.parse().unwrap(), found["commands"].as_u64().unwrap()))
        .collect();
    if let [(few, of_few), (many, of_many)] = calls[..] {
        let commands = of_many - of_few;
        eprintln!("{} system calls of {commands} more reads", many - few);
        assert!(commands > 500 && many.saturating_sub(few) < commands / 2, "{calls:?}");
    }
}
