//! A running target, and a host that sends it whatever an input contains.
//!
//! The target is a real one, on a loopback socket with its own thread, since its command handling
//! has no other interface. The host closes each connection, and the target must end it, too.

use std::net::Shutdown;
use std::sync::{Arc, OnceLock};

use dlfs::nvme::sqe::{feature, log_page};
use dlfs::nvme::{ConnectData, Nqn, Property, Sgl, Sqe};
use dlfs::target::{Target as Served, TargetOptions};
use dlfs::tcp::Digests;
use dlfs::units::{Lba, Nsid};
use zerocopy::{FromBytes, IntoBytes};

use super::Target;
use super::device::Plate;
use super::raw_host::{RawHost, Reply};
use super::script::Script;

/// A session: which queue, which digests, and what the host sends on it.
pub const SESSION: Target = Target {
    name: "session",
    seeds: sessions,
    refit: None,
    run: session,
    heap_bytes: 64 << 20,
    rounds: 100,
};

/// The target of all inputs: a read-only subsystem and, at another address, a writable one.
fn target(writable: bool) -> &'static Served {
    static TARGETS: [OnceLock<Served>; 2] = [OnceLock::new(), OnceLock::new()];
    TARGETS[usize::from(writable)].get_or_init(|| {
        let options = TargetOptions {
            writable,
            buffer_bytes: 1 << 20,
            max_transfer_bytes: 64 << 10,
            ..TargetOptions::new(nqn())
        };
        let plate = || Arc::new(Plate::new(vec![0x5a; 128 << 10], 128 << 10, true));
        Served::bind(options, vec![plate(), plate()]).unwrap()
    })
}

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:fuzz").unwrap()
}

/// | byte | meaning                                                                                  |
/// |------|------------------------------------------------------------------------------------------|
/// | 0    | bits 0, 1: digests; 2, 3: nothing, an initialised connection, an admin or an I/O queue;  |
/// |      | 4: the writable target; 5: the discovery subsystem                                       |
/// | 1..  | actions                                                                                  |
fn session(input: &[u8]) {
    let Some((&course, script)) = input.split_first() else { return };
    let digests = Digests::from_bits(course);
    let address = target(course & 16 != 0).local_addr();
    let subsystem = if course & 32 != 0 { Nqn::discovery() } else { nqn() };
    // The admin queue stays open beside the I/O queue.
    let mut admin = None;
    let mut host = match course >> 2 & 3 {
        0 => RawHost::open(address, &subsystem),
        1 => RawHost::initialised(address, &subsystem, digests),
        2 => RawHost::admin(address, &subsystem, digests).0,
        _ => {
            let (queue, [io]) = RawHost::with_queues::<1>(address, &nqn(), digests);
            admin = Some(queue);
            io
        }
    };
    let bytes = stream(&host, script);
    host.try_send(&bytes);
    let _ = host.stream.shutdown(Shutdown::Write); // the target may have closed it
    // The target answers an invalid stream according to the protocol; the connection ends in any
    // case.
    let replies = host.until_closed();
    let mut answered: Vec<u16> = replies
        .iter()
        .filter_map(|reply| match reply {
            Reply::Resp(cqe) => Some(cqe.cid.get()),
            Reply::Data { cid, success: true, .. } => Some(*cid),
            _ => None,
        })
        .collect();
    answered.sort_unstable();
    let sent = bytes.len() / 64;
    assert!(answered.len() <= sent, "{} answers to {sent} commands at most", answered.len());
    if let Some(mut admin) = admin {
        let get = Sqe::property_get(0, Property::Csts);
        assert!(admin.call(get, &[]).0.status().is_success(), "the other queue is served");
    }
}

/// The bytes of all actions: commands, data of writes, or raw bytes.
fn stream(host: &RawHost, script: &[u8]) -> Vec<u8> {
    let mut script = Script(script);
    let mut bytes = Vec::new();
    while !script.0.is_empty() && bytes.len() < MOST_BYTES {
        match script.byte() & 3 {
            0 | 1 => {
                let (sqe, len) = command(&mut script);
                bytes.extend(host.capsule(&sqe, &vec![0xa5; len]));
            }
            2 => {
                let cid = script.byte();
                let ttag = script.byte();
                let last = script.byte();
                let offset = script.next_u24();
                let len = script.next_u24() % 8192;
                let data = vec![0xa5; len];
                let cid = u16::from(cid);
                let ttag = u16::from(ttag);
                bytes.extend(host.h2c_data(cid, ttag, offset as u32, &data, last & 1 != 0));
            }
            _ => {
                let len = usize::from(script.byte()).min(script.0.len());
                let (raw, rest) = script.0.split_at(len);
                bytes.extend(raw);
                script.0 = rest;
            }
        }
    }
    bytes
}

/// A command and the length of the data in its capsule.
///
/// | byte | meaning                                                                                   |
/// |------|-------------------------------------------------------------------------------------------|
/// | 0..4 | opcode, NSID, CID and what follows: bits 0 to 5 for CDW10 to CDW15, 6 for a length of     |
/// |      | data, 7 for flags, NSID's upper bytes and a descriptor as they are                        |
/// | 4    | with a length: three bytes; the data are in the capsule up to 8,192, or else asked for    |
fn command(script: &mut Script<'_>) -> (Sqe, usize) {
    let mut entry = [0; 64];
    entry[0] = script.byte();
    entry[1] = FLAGS_SGL;
    entry[4] = script.byte();
    entry[2] = script.byte();
    let present = script.byte();
    let mut put = |at: std::ops::Range<usize>, script: &mut Script<'_>| {
        entry[at].iter_mut().for_each(|byte| *byte = script.byte());
    };
    for dword in (0..6).filter(|dword| present >> dword & 1 != 0) {
        put(40 + 4 * dword..44 + 4 * dword, script);
    }
    if present & 0x80 != 0 {
        put(1..2, script);
        put(5..8, script);
        put(24..40, script);
    }
    let mut in_capsule = 0;
    if present & 0x40 != 0 {
        let len = script.next_u24();
        in_capsule = if script.byte() & 1 == 0 { len.min(8192) } else { 0 };
        let descriptor = match in_capsule {
            0 => Sgl::transport(len as u32),
            _ => Sgl::in_capsule(in_capsule as u32),
        };
        if present & 0x80 == 0 {
            entry[24..40].copy_from_slice(descriptor.as_bytes());
        }
    }
    (Sqe::read_from_bytes(&entry).expect("64 bytes"), in_capsule)
}

/// Every command, on the queue that it belongs to.
fn sessions() -> Vec<Vec<u8>> {
    let nsid = Nsid(1);
    let admin = [
        Sqe::identify(1, 0, nsid),
        Sqe::identify(2, 1, Nsid(0)),
        Sqe::identify(3, 2, Nsid(0)),
        Sqe::identify(4, 3, nsid),
        Sqe::get_log_page(5, log_page::HEALTH, 0, 512),
        Sqe::get_log_page(6, log_page::DISCOVERY, 0, 4096),
        Sqe::set_features(7, feature::NUMBER_OF_QUEUES, 3),
        Sqe::get_features(8, feature::KEEP_ALIVE_TIMER),
        Sqe::async_event_request(9),
        Sqe::keep_alive(10),
        Sqe::property_get(11, Property::Cap),
        Sqe::property_set(12, Property::Cc, 0),
        Sqe::set_features(13, feature::HOST_ID, 0),
    ];
    let io = [
        Sqe::read(1, nsid, Lba(0), 8, 4096),
        Sqe::write(2, nsid, Lba(1), 1, Sgl::in_capsule(512)),
        Sqe::write(3, Nsid(2), Lba(0), 32, Sgl::transport(16384)),
        Sqe::flush(4, nsid),
        Sqe::write_zeroes(5, nsid, Lba(0), 1),
    ];
    let one = |course: u8, sqe: &Sqe| [vec![course], script_of(sqe)].concat();
    let all = |course: u8, commands: &[Sqe]| {
        let commands = commands.iter().flat_map(script_of);
        std::iter::once(course).chain(commands).collect::<Vec<u8>>()
    };
    let mut seeds: Vec<Vec<u8>> = admin.iter().map(|sqe| one(8, sqe)).collect();
    seeds.extend(io.iter().map(|sqe| one(12 | 16, sqe)));
    seeds.extend([all(8 | 3, &admin[..12]), all(8 | 32, &admin), all(12 | 3, &io), all(28, &io)]);
    // A write that is answered by R2T, and its data.
    let data = [2, 3, 0, 1, 0, 0, 0, 0, 0x20, 0, 2, 3, 0, 1, 0, 0x20, 0, 0, 0x20, 0];
    seeds.push([vec![28], script_of(&io[2]), data.to_vec()].concat());
    let connect = ConnectData::new([7; 16], 0xffff, &nqn(), &nqn());
    let raw = connect.as_bytes()[..240].to_vec();
    seeds.push([vec![4], script_of(&Sqe::connect(1, 0, 31, 0)), vec![3, 240], raw].concat());
    seeds
}

/// Bytes that [`command`] reads as this command.
fn script_of(sqe: &Sqe) -> Vec<u8> {
    let entry = sqe.as_bytes();
    let len = u32::from_le_bytes(entry[32..36].try_into().expect("four bytes"));
    let is_transport = entry[39] == Sgl::transport(0).as_bytes()[15];
    let mut script = vec![0, entry[0], entry[4], entry[2], 0x3f | if len > 0 { 0x40 } else { 0 }];
    script.extend(&entry[40..64]);
    if len > 0 {
        script.extend(&len.to_le_bytes()[..3]);
        script.push(u8::from(is_transport));
    }
    script
}

/// PSDT 01b: data by an SGL.
const FLAGS_SGL: u8 = 0x40;
/// The most that is sent, so that it fits into the buffers of two sockets whatever the target does.
const MOST_BYTES: usize = 64 << 10;
