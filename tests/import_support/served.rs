//! A target for imports, also one that returns at its old address, and what happens in the middle of one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dlfs::address::Address;
use dlfs::import::{ImportOptions, Onto, Progress, Stage};
use dlfs::nvme::Nqn;
use dlfs::qpair::Device;
use dlfs::qpair::mem::MemNamespace;
use dlfs::target::{Target, TargetOptions};

use super::options;
use super::wire::Wire;
use crate::support::ports::bind_again;

/// The subsystem of every target here.
pub const NQN: &str = "nqn.2026-11.io.dlfs:import";

/// A writable target of `disks`, at `listen` where it has to be there.
pub fn serve(disks: &[MemNamespace], listen: Option<SocketAddr>) -> Target {
    let mut options =
        TargetOptions { writable: true, ..TargetOptions::new(Nqn::new(NQN).unwrap()) };
    options.listen = listen.unwrap_or(options.listen);
    let devices = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Device>);
    let devices: Vec<Arc<dyn Device>> = devices.collect();
    bind_again(|| Target::bind(options.clone(), devices.clone()))
}

/// The target's address by way of a network.
pub fn through(wire: &Wire) -> Address {
    format!("nvme-tcp://{}/{NQN}", wire.address()).parse().unwrap()
}

/// Imports whose lease ends soon.
pub fn short_leased(onto: Onto) -> ImportOptions {
    ImportOptions { lease: Duration::from_millis(800), ..options(onto) }
}

/// Does something once, after some chunks.
pub struct AfterChunks<'a> {
    pub left: u32,
    pub then: &'a mut (dyn FnMut() + Send),
}

impl Progress for AfterChunks<'_> {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {}
    fn advance(&mut self, _: u64, _: u64) {
        self.left = self.left.wrapping_sub(1);
        if self.left == 0 {
            (self.then)();
        }
    }
}
