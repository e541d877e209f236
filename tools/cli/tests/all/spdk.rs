//! The main workflow against SPDK's own target: import onto it, and all commands that read, through
//! SPDK's host over TCP and over vfio-user, and through our own.
//!
//! Runs with `--features spdk` if SPDK is installed, below `SPDK_DIR` or on the path.

#[path = "../../../../tests/support/nvmf_tgt.rs"]
#[allow(dead_code, unreachable_pub)] // the library's tests use the rest
mod nvmf_tgt;

use std::sync::Mutex;

use nvmf_tgt::NvmfTgt;

use crate::common::{TestDir, run};

/// Targets and hosts spin: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn the_main_job_works_end_to_end_with_spdks_target() {
    let _alone = ONE_AT_A_TIME.lock();
    let Some(target) = NvmfTgt::start(32, 4096) else { return };
    let dir = TestDir::with_image();
    let [ours, tcp, vfio_user] =
        [target.tcp(), target.spdk_tcp(), target.vfio_user()].map(|address| address.to_string());
    let on_file = |arguments: &[&str]| {
        let image = dir.arg("train.dlfs");
        run(&[&[arguments[0], &image], &arguments[1..]].concat()).code(0)
    };
    let shuffled = ["read", "--order", "grouped", "--epochs", "2", "--json"];
    let in_global_order = ["read", "--order", "global", "--json"];
    for onto in [&tcp, &vfio_user, &ours] {
        let import = ["import", &dir.arg("source"), onto, "--force"];
        run(&import).code(0);
        for (from, engine) in [(&ours, "tcp"), (&tcp, "spdk (tcp"), (&vfio_user, "spdk (vfiouser")]
        {
            let stat = run(&["stat", from, "--json"]).code(0).json();
            let told = stat["namespaces"][0]["engine"].as_str().unwrap();
            assert!(told.starts_with(engine), "{told}");
            assert_eq!(run(&["verify", from, "--json"]).code(0).json()["verified"], true);
            let list = run(&["ls", "-R", from]).code(0);
            assert_eq!(list.stdout, on_file(&["ls", "-R"]).stdout);
            let cat = run(&["cat", from, "dog/031.bin", "newt/099.bin"]).code(0);
            assert_eq!(cat.stdout, on_file(&["cat", "dog/031.bin", "newt/099.bin"]).stdout);
            for read in [&shuffled[..], &in_global_order] {
                let found = run(&[&["read", from.as_str()], &read[1..]].concat()).code(0).json();
                assert_eq!(found["samples"], on_file(read).json()["samples"], "{found}");
            }
        }
    }
    run(&["export", &vfio_user, &dir.arg("out")]).code(0);
    assert_eq!(dir.files("out"), dir.files("source"));
}

#[test]
fn info_and_doctor_know_the_engine() {
    let _alone = ONE_AT_A_TIME.lock();
    let info = run(&["info"]).code(0);
    let line = info.text().lines().find(|line| line.contains(" spdk ")).unwrap().to_owned();
    for word in ["yes", "trtype:PCIE", "spdk:nvme-tcp://", "trtype:RDMA", "by SPDK 2"] {
        assert!(line.contains(word), "no {word} in {line}");
    }
    let doctor = run(&["doctor"]).code(0);
    assert!(doctor.text().contains("SPDK is compiled in"), "{}", doctor.text());
}

#[test]
fn unreachable_spdk_addresses_are_explained_in_one_report() {
    let _alone = ONE_AT_A_TIME.lock();
    let cases = [
        ("trtype:PCIE traddr:0000:ff:1f.7", "0000:ff:1f.7"),
        ("trtype:RDMA traddr:127.0.0.1 subnqn:nqn.2026-11.io.dlfs:x", "127.0.0.1"),
        ("trtype:VFIOUSER traddr:/nonexistent/dlfs", "/nonexistent/dlfs"),
        ("trtype:CARRIERPIGEON traddr:1 subnqn:nqn.2026-11.io.dlfs:x", "CARRIERPIGEON"),
        ("spdk:train.dlfs", "train.dlfs"),
    ];
    for (address, name) in cases {
        let ran = run(&["stat", address]);
        assert_ne!(ran.status.code(), Some(0), "{address}");
        ran.complains_of(&[name]);
    }
}
