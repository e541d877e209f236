//! DH-HMAC-CHAP, and TLS with a pre-shared key: only hosts with the key connect.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::{ConnectOptions, SpdkOptions, open};
use serde_json::json;

use super::support::nvmf_tgt::{NQN, NvmfTgt};
use super::{short_timeouts, target};

#[test]
fn dh_hmac_chap_lets_in_who_has_the_keys() {
    let Some((_alone, target)) = target(8) else { return };
    let keys = Keys::new();
    target.call("nvmf_subsystem_allow_any_host", json!({"nqn": NQN, "allow_any_host": false}));
    for name in ["host", "controller"] {
        let path = keys.path(name);
        target.call("keyring_file_add_key", json!({"name": name, "path": path}));
    }
    target.call(
        "nvmf_subsystem_add_host",
        json!({"nqn": NQN, "host": HOSTNQN, "dhchap_key": "host", "dhchap_ctrlr_key": "controller"}),
    );
    let host = Some(keys.path("host"));
    let controller = Some(keys.path("controller"));
    let keys_of = |dhchap_key: &Option<PathBuf>, dhchap_ctrl_key: &Option<PathBuf>| SpdkOptions {
        dhchap_key: dhchap_key.clone(),
        dhchap_ctrl_key: dhchap_ctrl_key.clone(),
        ..SpdkOptions::default()
    };
    reads(&target, keys_of(&host, &controller));
    reads(&target, keys_of(&host, &None));
    is_kept_out(&target, keys_of(&None, &None));
    is_kept_out(&target, keys_of(&controller, &None));
    is_kept_out(&target, keys_of(&host, &host));
}

#[test]
fn tls_lets_in_who_has_the_pre_shared_key() {
    let Some((_alone, target)) = target(8) else { return };
    let keys = Keys::new();
    target.call("nvmf_subsystem_allow_any_host", json!({"nqn": NQN, "allow_any_host": false}));
    target.call("keyring_file_add_key", json!({"name": "psk", "path": keys.path("psk")}));
    target.call("nvmf_subsystem_add_host", json!({"nqn": NQN, "host": HOSTNQN, "psk": "psk"}));
    target.listen_with_tls();
    let with_key =
        |name: &str| SpdkOptions { tls_key: Some(keys.path(name)), ..SpdkOptions::default() };
    reads(&target, with_key("psk"));
    is_kept_out(&target, SpdkOptions::default());
    is_kept_out(&target, with_key("other psk"));
}

#[test]
fn a_key_file_that_is_no_key_or_open_to_all_is_refused_with_its_name() {
    let Some((_alone, target)) = target(8) else { return };
    let keys = Keys::new();
    fs::set_permissions(keys.path("host"), fs::Permissions::from_mode(0o644)).unwrap();
    for path in [keys.path("host"), keys.path("none at all")] {
        let wanted = SpdkOptions { dhchap_key: Some(path.clone()), ..SpdkOptions::default() };
        let error = open(&target.spdk_tcp(), &options(wanted)).err().expect("no key");
        let text = error.report();
        assert!(text.contains(&path.display().to_string()) && text.contains("0600"), "{text}");
    }
}

fn options(spdk: SpdkOptions) -> ConnectOptions {
    ConnectOptions { hostnqn: Some(HOSTNQN.parse().unwrap()), spdk, ..short_timeouts(3) }
}

fn reads(target: &NvmfTgt, spdk: SpdkOptions) {
    let device = open(&target.spdk_tcp(), &options(spdk)).unwrap();
    let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
    io.write_at(4096, &vec![5; 256 << 10]).unwrap();
    assert!(io.read(4096, 256 << 10).unwrap().iter().all(|&byte| byte == 5));
}

fn is_kept_out(target: &NvmfTgt, spdk: SpdkOptions) {
    let error = open(&target.spdk_tcp(), &options(spdk)).err().expect("it must not get in");
    println!("{error:?}");
}

/// Key files.
struct Keys(tempfile::TempDir);

impl Keys {
    fn new() -> Keys {
        let keys = Keys(tempfile::tempdir().unwrap());
        for (name, text) in KEYS {
            fs::write(keys.path(name), text).unwrap();
            fs::set_permissions(keys.path(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        keys
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(self.0.path()).join(name)
    }
}

const HOSTNQN: &str = "nqn.2026-11.io.dlfs:host";

/// Keys in nvme-cli's text format: 32 bytes, their CRC-32, and the transform.
const KEYS: [(&str, &str); 4] = [
    ("host", "DHHC-1:01:qrdBt72+CviQZgD6yL+dcmhS4PIluh1Ca3vLhXd+vdADC/o8:"),
    ("controller", "DHHC-1:01:lMKh+sEE2VRtYh/GPYGBD6iJjlP+BIPo2U0z58C+1WALJAAX:"),
    ("psk", "NVMeTLSkey-1:01:w9wcFitAMnSfY33nHgMcqcabs30poL8rvIxEoQYztbFhqJMr:"),
    ("other psk", "NVMeTLSkey-1:01:PL0Nl8KPWgLwbFPhtCpmsN/WHwtliQDpIKhlhbH56EPBBGGp:"),
];
