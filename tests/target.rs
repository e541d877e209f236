//! The target as hosts see it, good ones and hostile ones: plain sockets against a running target.

mod support;

use std::sync::Arc;

use dlfs::nvme::identify::{IdentifyNamespace, decode_namespace_list};
use dlfs::nvme::sqe::cns;
use dlfs::nvme::{IdentifyController, Nqn, Sgl, Sqe, Status};
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::target::{Target, TargetOptions};
use dlfs::tcp::Digests;
use dlfs::units::{Lba, Nsid};
use support::evil::{Evil, EvilTarget};
use support::random::Random;
use support::raw_host::{RawHost, Reply};

const MIB: u64 = 1 << 20;
const NSID: Nsid = Nsid(1);
const NO_DIGESTS: Digests = Digests { header: false, data: false };
const BOTH_DIGESTS: Digests = Digests { header: true, data: true };

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:test").unwrap()
}

/// A target with one namespace of 8 MiB in memory, filled with seeded bytes, which are returned.
fn serve(change: impl FnOnce(&mut TargetOptions)) -> (Target, Vec<u8>) {
    let device = MemNamespace::new(8 * MIB, 512).unwrap();
    let mut bytes = vec![0; 8 << 20];
    Random::new(1).fill(&mut bytes);
    let mut blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
    blocking.write_at(0, &bytes).unwrap();
    let mut options = TargetOptions::new(nqn());
    change(&mut options);
    (Target::bind(options, vec![Arc::new(device)]).unwrap(), bytes)
}

#[test]
fn a_host_identifies_reads_and_keeps_alive_with_and_without_digests() {
    let (target, bytes) = serve(|_| {});
    for digests in [NO_DIGESTS, BOTH_DIGESTS] {
        let (mut admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), digests);
        let (_, page) = admin.call(Sqe::identify(0, cns::CONTROLLER, Nsid(0)), &[]);
        let controller = IdentifyController::decode(&page).unwrap();
        assert_eq!((controller.subnqn(), controller.nn.get()), (Ok(nqn()), 1));
        let (_, page) = admin.call(Sqe::identify(0, cns::ACTIVE_NAMESPACES, Nsid(0)), &[]);
        assert_eq!(decode_namespace_list(&page).unwrap(), [NSID]);
        let (_, page) = admin.call(Sqe::identify(0, cns::NAMESPACE, NSID), &[]);
        let namespace = IdentifyNamespace::decode(&page).unwrap();
        assert_eq!((namespace.num_blocks(), namespace.block_len_bytes()), (8 * MIB / 512, 512));
        assert!(namespace.is_write_protected() && namespace.nguid != [0; 16]);
        assert!(admin.call(Sqe::keep_alive(0), &[]).0.status().is_success());
        for (slba, num_blocks) in [(0, 1), (7, 8), (100, 256), (8 * MIB / 512 - 2048, 2048)] {
            let len = num_blocks * 512;
            let (cqe, read) = io.call(Sqe::read(0, NSID, Lba(slba), num_blocks, len), &[]);
            assert!(cqe.status().is_success(), "{}", cqe.status());
            assert!(read == bytes[slba as usize * 512..][..len as usize], "at {slba}");
        }
    }
}

#[test]
fn writes_in_the_capsule_and_by_r2t_reach_the_namespace() {
    let (target, _) = serve(|options| options.writable = true);
    for digests in [NO_DIGESTS, BOTH_DIGESTS] {
        let (_admin, [mut io]) = RawHost::with_queues(target.local_addr(), &nqn(), digests);
        let small = vec![0xA5; 4096];
        let write = Sqe::write(0, NSID, Lba(8), 8, Sgl::in_capsule(4096));
        assert!(io.call(write, &small).0.status().is_success());
        let large: Vec<u8> = (0..1 << 20).map(|i| (i >> 10) as u8).collect();
        let cid = io.start(Sqe::write(0, NSID, Lba(2048), 2048, Sgl::transport(1 << 20)), &[]);
        let Reply::R2t { cid: of, ttag, offset: 0, len: 1_048_576 } = io.receive() else {
            panic!("no R2T for everything");
        };
        assert_eq!(of, cid);
        for (at, data) in (0u32..).step_by(64 << 10).zip(large.chunks(64 << 10)) {
            let is_last = at as usize + data.len() == large.len();
            let pdu = io.h2c_data(cid, ttag, at, data, is_last);
            io.send(&pdu);
        }
        let Reply::Resp(cqe) = io.receive() else { panic!("no completion") };
        assert!(cqe.status().is_success(), "{}", cqe.status());
        assert!(io.call(Sqe::flush(0, NSID), &[]).0.status().is_success());
        let (_, read) = io.call(Sqe::read(0, NSID, Lba(8), 8, 4096), &[]);
        assert!(read == small);
        let (_, read) = io.call(Sqe::read(0, NSID, Lba(2048), 2048, 1 << 20), &[]);
        assert!(read == large);
    }
    assert_eq!(target.stats().writes, 4);
}

#[test]
fn the_misbehaving_target_is_right_until_it_is_told_otherwise() {
    let evil = EvilTarget::start((0..1 << 20).map(|i: u32| (i >> 9) as u8).collect());
    let read = Sqe::read(0, NSID, Lba(5), 2, 1024);
    for digests in [NO_DIGESTS, BOTH_DIGESTS] {
        let (_admin, [mut io]) =
            RawHost::with_queues(evil.local_addr(), &EvilTarget::nqn(), digests);
        let (cqe, data) = io.call(read, &[]);
        assert!(cqe.status().is_success() && data == [[5; 512], [6; 512]].concat());
        evil.behave(Evil::ShortSuccess(512), Some(1));
        assert_eq!(io.call(read, &[]).1.len(), 512);
        evil.behave(Evil::Status(Status::LBA_OUT_OF_RANGE), Some(1));
        assert!(io.call(read, &[]).0.status().is(Status::LBA_OUT_OF_RANGE));
        assert_eq!(io.call(read, &[]).1.len(), 1024);
        evil.behave(Evil::Die, Some(1));
        io.start(read, &[]);
        assert_eq!(io.receive(), Reply::Closed);
        evil.die();
        assert!(std::net::TcpStream::connect(evil.local_addr()).is_err());
        evil.revive();
    }
    assert_eq!(evil.misbehaved(), 6);
}
