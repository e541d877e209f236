//! SPDK's own target and host as programs, and ours, with keys: each of our sides against SPDK's other side.
//!
//! Runs where `nvmf_tgt` is, below `SPDK_DIR` or on the path; else it is skipped and reported. It needs no build
//! with SPDK: the target program is its host, too, by its block device `bdev_nvme`. What such a host reads is read
//! through a namespace that it exports again, without keys. The pairs inside TLS need the feature `tls`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::support::nvmf_tgt::{NQN, NvmfTgt};
use dlfs::address::Address;
use dlfs::auth::{Group, Hash, Secret};
use dlfs::nvme::Nqn;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device as _, open};
use dlfs::target::{HostKeys, Target, TargetOptions};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

const HOSTNQN: &str = "nqn.2026-11.io.dlfs:a-host-with-a-key";
const SUBNQN: &str = "nqn.2026-11.io.dlfs:ours";
const LEN: usize = 4 << 20;

/// SPDK's processes spin, and the machine may have two processors.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock()
}

fn hostnqn() -> Nqn {
    Nqn::new(HOSTNQN).unwrap()
}

fn pattern(at: usize) -> u8 {
    (at / 512 * 31 + at * 7) as u8
}

/// Files of keys, which SPDK takes only if nobody else can read them.
struct KeyFiles(tempfile::TempDir);

impl KeyFiles {
    fn new() -> KeyFiles {
        KeyFiles(tempfile::tempdir().unwrap())
    }

    /// Writes the key, and tells SPDK of it by this name.
    fn add(&self, spdk: &NvmfTgt, name: &str, text: &str) {
        let path: PathBuf = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        spdk.call("keyring_file_add_key", json!({"name": name, "path": path}));
    }
}

/// Connects our host, writes and reads.
fn writes_and_reads(address: &Address, options: &ConnectOptions) {
    let device = open(address, &ConnectOptions { writable: true, ..options.clone() })
        .unwrap_or_else(|error| panic!("{}", error.report()));
    let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
    for len in [4096, 128 << 10, 1 << 20] {
        let bytes: Vec<u8> = (0..len).map(|at| pattern(at + len)).collect();
        io.write_at(8192, &bytes).unwrap();
        assert!(io.read(8192, len).unwrap()[..] == bytes, "{len} bytes");
    }
}

fn is_refused(address: &Address, options: &ConnectOptions) {
    let error = open(address, options).map(drop).expect_err("it has no such key");
    println!("refused, rightly: {}", error.report());
}

fn short_timeouts() -> ConnectOptions {
    ConnectOptions {
        hostnqn: Some(hostnqn()),
        connect_timeout: Duration::from_secs(5),
        ctrl_loss_tmo: Duration::from_secs(5),
        ..ConnectOptions::default()
    }
}

/// Our target with a pattern, for the host with `keys`.
fn serve(keys: HostKeys, change: impl FnOnce(&mut TargetOptions)) -> Target {
    let device = MemNamespace::new(LEN as u64, 4096).unwrap();
    let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
    io.write_at(0, &(0..LEN).map(pattern).collect::<Vec<u8>>()).unwrap();
    let mut options = TargetOptions::new(Nqn::new(SUBNQN).unwrap());
    options.host_keys.insert(hostnqn(), keys);
    options.connect_timeout = Duration::from_secs(60);
    change(&mut options);
    Target::bind(options, vec![Arc::new(device)]).unwrap()
}

/// SPDK's host connects to `target` with these parameters of `bdev_nvme_attach_controller`.
fn attach(spdk: &NvmfTgt, target: &Target, keys: Value) -> Option<Value> {
    let mut params = json!({
        "name": "Ours", "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "subnqn": SUBNQN,
        "trsvcid": target.local_addr().port().to_string(), "hostnqn": HOSTNQN,
        "ctrlr_loss_timeout_sec": 0, "reconnect_delay_sec": 0, "fast_io_fail_timeout_sec": 0,
    });
    params.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    spdk.try_call("bdev_nvme_attach_controller", params)
}

/// SPDK's host connects, and reads what our target has.
fn spdk_reads(spdk: &NvmfTgt, target: &Target, keys: Value) {
    let text = keys.to_string();
    let bdevs = attach(spdk, target, keys).unwrap_or_else(|| panic!("{text}: no connection"));
    assert_eq!(bdevs, json!(["Oursn1"]));
    let namespace = json!({"bdev_name": "Oursn1", "nsid": 2});
    spdk.call("nvmf_subsystem_add_ns", json!({"nqn": NQN, "namespace": namespace}));
    let Address::Tcp(mut address) = spdk.tcp() else { unreachable!("it is one of TCP") };
    address.nsid = Some(dlfs::units::Nsid(2));
    let device = open(&Address::Tcp(address), &ConnectOptions::default()).unwrap();
    let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
    for (offset, len) in [(0, LEN), (4096, 4096), (1 << 20, 300 << 12)] {
        let bytes = io.read(offset as u64, len).unwrap();
        assert!(bytes.iter().enumerate().all(|(i, b)| *b == pattern(offset + i)), "{text}");
    }
    drop((io, device));
    spdk.call("nvmf_subsystem_remove_ns", json!({"nqn": NQN, "nsid": 2}));
    spdk.call("bdev_nvme_detach_controller", json!({"name": "Ours"}));
}

fn spdk_is_refused(spdk: &NvmfTgt, target: &Target, keys: Value) {
    assert_eq!(attach(spdk, target, keys.clone()), None, "{keys}");
}

fn name_of(hash: Hash) -> &'static str {
    match hash {
        Hash::Sha256 => "sha256",
        Hash::Sha384 => "sha384",
        Hash::Sha512 => "sha512",
    }
}

fn group_name(group: Group) -> String {
    if group == Group::Null { "null".to_owned() } else { group.to_string() }
}

/// The secret as it is, and those that a hash makes the key of, of each length.
const TRANSFORMS: [Option<Hash>; 3] = [None, Some(Hash::Sha256), Some(Hash::Sha512)];

/// Each pair of a hash and a group has a target of its own, which allows no other.
#[test]
fn we_and_spdks_target_authenticate_with_every_hash_and_group_one_way_and_both_ways() {
    let _alone = alone();
    for (hash, transform) in Hash::ALL.into_iter().zip(TRANSFORMS) {
        for group in Group::ALL {
            let digest = name_of(hash);
            let dhgroup = group_name(group);
            println!("{digest}, {dhgroup}");
            let allowed = json!({"dhchap_digests": [digest], "dhchap_dhgroups": [dhgroup]});
            let Some(spdk) = NvmfTgt::start_configured(8, 4096, allowed) else { return };
            let [host, ctrl, wrong] =
                [1, 2, 3].map(|byte| Secret::generate(&[byte; 64], transform));
            let files = KeyFiles::new();
            files.add(&spdk, "host", &host.to_text());
            files.add(&spdk, "ctrl", &ctrl.to_text());
            let params = json!({"nqn": NQN, "allow_any_host": false});
            spdk.call("nvmf_subsystem_allow_any_host", params);
            let keys = json!({"dhchap_key": "host", "dhchap_ctrlr_key": "ctrl"});
            let mut params = json!({"nqn": NQN, "host": HOSTNQN});
            params.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            spdk.call("nvmf_subsystem_add_host", params);
            let with = |secret: &Secret, ctrl: Option<&Secret>| ConnectOptions {
                dhchap_secret: Some(secret.clone()),
                dhchap_ctrl_secret: ctrl.cloned(),
                ..short_timeouts()
            };
            writes_and_reads(&spdk.tcp(), &with(&host, None));
            writes_and_reads(&spdk.tcp(), &with(&host, Some(&ctrl)));
            is_refused(&spdk.tcp(), &with(&wrong, None));
            is_refused(&spdk.tcp(), &with(&host, Some(&wrong)));
            is_refused(&spdk.tcp(), &short_timeouts());
        }
    }
}

/// One target of ours for each pair of a hash and a group, which allows no other.
#[test]
fn spdks_host_and_we_authenticate_with_every_hash_and_group_one_way_and_both_ways() {
    let _alone = alone();
    let Some(spdk) = NvmfTgt::start(8, 4096) else { return };
    let files = KeyFiles::new();
    for (number, transform) in TRANSFORMS.into_iter().enumerate() {
        for (name, byte) in [("host", 1), ("ctrl", 2), ("wrong", 3)] {
            let text = Secret::generate(&[byte; 64], transform).to_text();
            files.add(&spdk, &format!("{name}{number}"), &text);
        }
    }
    for (number, hash) in Hash::ALL.into_iter().enumerate() {
        let [host, ctrl] = [1, 2].map(|byte| Secret::generate(&[byte; 64], TRANSFORMS[number]));
        for group in Group::ALL {
            println!("{}, {}", name_of(hash), group_name(group));
            let keys = HostKeys {
                secrets: vec![host.clone()],
                ctrl_secret: Some(ctrl.clone()),
                ..HostKeys::default()
            };
            let target = serve(keys, |options| {
                (options.dhchap_hashes, options.dhchap_groups) = (vec![hash], vec![group]);
            });
            let key = |name: &str| format!("{name}{number}");
            let one = json!({"dhchap_key": key("host")});
            let both = json!({"dhchap_key": key("host"), "dhchap_ctrlr_key": key("ctrl")});
            spdk_reads(&spdk, &target, one);
            spdk_reads(&spdk, &target, both);
            spdk_is_refused(&spdk, &target, json!({"dhchap_key": key("wrong")}));
            let wrong = json!({"dhchap_key": key("host"), "dhchap_ctrlr_key": key("wrong")});
            spdk_is_refused(&spdk, &target, wrong);
            spdk_is_refused(&spdk, &target, json!({}));
        }
    }
}

mod inside_tls {
    use dlfs::auth::ConfiguredPsk;

    use super::*;

    const HASHES: [Hash; 2] = [Hash::Sha256, Hash::Sha384];

    fn key(byte: u8, hash: Hash) -> ConfiguredPsk {
        ConfiguredPsk::generate(&[byte; 64], hash)
    }

    #[test]
    fn we_and_spdks_target_connect_inside_tls_with_both_suites() {
        let _alone = alone();
        let files = KeyFiles::new();
        for hash in HASHES {
            let Some(spdk) = NvmfTgt::start(8, 4096) else { return };
            println!("{hash:?}");
            files.add(&spdk, "psk", &key(1, hash).to_text());
            let params = json!({"nqn": NQN, "allow_any_host": false});
            spdk.call("nvmf_subsystem_allow_any_host", params);
            spdk.call(
                "nvmf_subsystem_add_host",
                json!({"nqn": NQN, "host": HOSTNQN, "psk": "psk"}),
            );
            spdk.listen_with_tls();
            let with = |key| ConnectOptions { tls_key: Some(key), ..short_timeouts() };
            let options = with(key(1, hash));
            assert_eq!(open(&spdk.tcp(), &options).unwrap().namespace().engine, "tcp (TLS)");
            writes_and_reads(&spdk.tcp(), &options);
            is_refused(&spdk.tcp(), &with(key(2, hash)));
            is_refused(&spdk.tcp(), &short_timeouts());
        }
    }

    #[test]
    fn spdks_host_and_we_connect_inside_tls_with_both_suites() {
        let _alone = alone();
        let Some(spdk) = NvmfTgt::start(8, 4096) else { return };
        let files = KeyFiles::new();
        for (number, hash) in HASHES.into_iter().enumerate() {
            println!("{hash:?}");
            let keys = HostKeys { tls_keys: vec![key(1, hash)], ..HostKeys::default() };
            let target = serve(keys, |_| ());
            let name = |name: &str| format!("{name}{number}");
            files.add(&spdk, &name("psk"), &key(1, hash).to_text());
            files.add(&spdk, &name("wrong"), &key(2, hash).to_text());
            spdk_reads(&spdk, &target, json!({"psk": name("psk")}));
            spdk_is_refused(&spdk, &target, json!({"psk": name("wrong")}));
            spdk_is_refused(&spdk, &target, json!({}));
        }
    }
}
