//! The other side of a connection: a process of its own, on the first processor.

use std::path::Path;
use std::sync::Arc;

use dlfs::auth::{ConfiguredPsk, Hash};
use dlfs::nvme::Nqn;
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::target::{HostKeys, Target, TargetOptions};
use dlfs::units::Nsid;

use crate::support::loaded::loaded;
use crate::support::raw::{Messages, send_forever};
use crate::support::{self, Options};

/// Runs the side given by `--side` until standard input closes.
pub(crate) fn run(side: &str, options: &Options) {
    std::thread::spawn(|| {
        support::wait_for_end_of_input();
        std::process::exit(0);
    });
    support::pin(TARGET_CPU);
    let number = |name| options.number(name) as usize;
    match side {
        "sender" => send_forever(Messages {
            len: number("len"),
            depth: number("depth"),
            ping_pong: options.is_set("ping-pong"),
            region_bytes: number("region"),
        }),
        _ => match options.text("image") {
            "" => serve(filled(options.number("region")), options),
            image => serve(loaded(Path::new(image)), options),
        },
    }
}

/// A region of which every page has been written: unwritten pages all map the same zero page, which
/// every cache holds.
fn filled(region: u64) -> MemNamespace {
    let device = MemNamespace::new(region, 4096).expect("memory for the namespace");
    let mut io = Blocking::new(device.queue_pair().expect("a queue pair")).expect("a poll group");
    for offset in (0..region).step_by(1 << 20) {
        io.write_at(offset, &[(offset >> 20) as u8; 1 << 20]).expect("a write to memory");
    }
    device
}

fn serve(device: MemNamespace, options: &Options) {
    let nqn = "nqn.2026-11.io.dlfs:side-by-side".parse().expect("a valid name");
    let secured = options.is_set("tls");
    let mut options = TargetOptions {
        num_pollers: options.number("pollers") as usize,
        busy_poll: options.is_set("busy-poll"),
        ..TargetOptions::new(nqn)
    };
    if secured {
        let (hostnqn, key) = tls();
        let keys = HostKeys { tls_keys: vec![key], ..HostKeys::default() };
        options.host_keys.insert(hostnqn, keys);
    }
    let target = Target::bind(options, vec![Arc::new(device.read_only())]).expect("a free port");
    println!("{}", target.address(Nsid(1)));
    loop {
        std::thread::park();
    }
}

/// The host that connects inside TLS, and its key, for TLS_AES_128_GCM_SHA256.
pub(crate) fn tls() -> (Nqn, ConfiguredPsk) {
    let hostnqn = "nqn.2026-11.io.dlfs:side-by-side-host".parse().expect("a valid name");
    (hostnqn, ConfiguredPsk::generate(&[24; 64], Hash::Sha256))
}

/// The processor of targets and senders, as an index into those that the bench may use.
pub(crate) const TARGET_CPU: usize = 0;
