//! The NVMe/TCP engine against this project's own target: its contract, and how it survives
//! failures.

use std::sync::Arc;

use crate::support::contract;
use dlfs::nvme::Nqn;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, open};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;

const MIB: u64 = 1 << 20;

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:test").unwrap()
}

fn options() -> ConnectOptions {
    ConnectOptions { writable: true, ..ConnectOptions::default() }
}

fn serve(device: MemNamespace, change: impl FnOnce(&mut TargetOptions)) -> Target {
    let mut options = TargetOptions::new(nqn());
    options.writable = true;
    change(&mut options);
    Target::bind(options, vec![Arc::new(device)]).unwrap()
}

#[test]
fn remote_namespaces_keep_the_contract_with_every_digest() {
    for block_len_bytes in [512, 4096] {
        for (hdr_digest, data_digest) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            let device = MemNamespace::new(4 * MIB, block_len_bytes).unwrap();
            let target = serve(device, |_| {});
            let address = target.address(Nsid(1));
            let options = ConnectOptions { hdr_digest, data_digest, ..options() };
            let writable = open(&address, &options).unwrap();
            let read_only = open(&address, &ConnectOptions { writable: false, ..options });
            contract::check(writable, read_only.unwrap());
        }
    }
}
