//! The engine by SPDK against SPDK's own target, and each side of ours against SPDK's other.
//!
//! Runs with `--features spdk` where SPDK is installed; the target is `nvmf_tgt`, below `SPDK_DIR` or on
//! the path. One test at a time: targets and hosts poll, and SPDK's environment is one.

mod support;

use std::sync::Arc;

use dlfs::nvme::Address;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::{ConnectOptions, Device, open};
use parking_lot::{Mutex, MutexGuard};
use support::contract;
use support::nvmf_tgt::NvmfTgt;
use support::random::Random;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A target, and the right to be the only test at work.
fn target(mib: u64) -> Option<(MutexGuard<'static, ()>, NvmfTgt)> {
    let alone = ONE_AT_A_TIME.lock();
    NvmfTgt::start(mib, 4096).map(|target| (alone, target))
}

fn connect(address: &Address, options: &ConnectOptions, writable: bool) -> Arc<dyn Device> {
    open(address, &ConnectOptions { writable, ..options.clone() }).unwrap()
}

fn check_contract(address: &Address, options: &ConnectOptions) {
    contract::check(connect(address, options, true), connect(address, options, false));
}

#[test]
fn tcp_by_spdk_keeps_the_contract_with_and_without_header_digests() {
    let Some((_alone, target)) = target(8) else { return };
    for hdr_digest in [false, true] {
        let options = ConnectOptions { hdr_digest, ..ConnectOptions::default() };
        check_contract(&target.spdk_tcp(), &options);
    }
}

#[test]
fn vfio_user_keeps_the_contract() {
    let Some((_alone, target)) = target(8) else { return };
    check_contract(&target.vfio_user(), &ConnectOptions::default());
}

#[test]
fn our_host_keeps_the_contract_on_spdks_target() {
    let Some((_alone, target)) = target(8) else { return };
    for hdr_digest in [false, true] {
        let options = ConnectOptions { hdr_digest, ..ConnectOptions::default() };
        check_contract(&target.tcp(), &options);
    }
}

/// Not the whole contract: nvmf_tgt 26.01 ends when a connection with data digests is dropped while
/// reads are outstanding, which the contract does.
#[test]
fn with_data_digests_both_hosts_read_what_the_other_wrote() {
    let Some((_alone, target)) = target(8) else { return };
    let options =
        ConnectOptions { hdr_digest: true, data_digest: true, ..ConnectOptions::default() };
    let ours = connect(&target.tcp(), &options, true);
    let spdks = connect(&target.spdk_tcp(), &options, true);
    let mut ours = Blocking::new(ours.queue_pair().unwrap()).unwrap();
    let mut spdks = Blocking::new(spdks.queue_pair().unwrap()).unwrap();
    let mut bytes = vec![0; 3 << 20];
    Random::new(5).fill(&mut bytes);
    ours.write_at(4096, &bytes).unwrap();
    assert!(spdks.read(4096, bytes.len()).unwrap()[..] == bytes[..]);
    Random::new(6).fill(&mut bytes);
    spdks.write_at(8192, &bytes).unwrap();
    assert!(ours.read(8192, bytes.len()).unwrap()[..] == bytes[..]);
}
