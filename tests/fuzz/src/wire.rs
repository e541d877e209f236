//! Bytes that each side of a connection receives, in receives of any length.
//!
//! How a stream is divided must not matter: each input is received once as a whole and once in
//! pieces, and the results are compared.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::buf::IoBuf;
use dlfs::format::names::crc32c;
use dlfs::nvme::fabrics::{ConnectData, DiscoveryLogHeader, DiscoveryRecord};
use dlfs::nvme::{Cqe, IdentifyController, IdentifyNamespace, Nqn, Sgl, Sqe};
use dlfs::tcp::controller::{self, ConnectionOptions, DataTransfer};
use dlfs::tcp::host::{CommandError, Connection, Event, HostOptions, SCRATCH_LEN, Transfer};
use dlfs::tcp::{Digests, ProtocolError};
use dlfs::units::{Lba, Nsid};
use zerocopy::{FromBytes, IntoBytes};

use super::Target;
use super::media::{number, put_crc};

/// Input of a host: two bytes of [`Course`], then the stream of a controller.
pub const WIRE_HOST: Target = Target {
    name: "wire_host",
    seeds: responses,
    refit: Some(refit),
    run: host,
    heap_bytes: 1 << 20,
    rounds: 3000,
};

/// Input of a controller: two bytes of [`Course`], then the stream of a host.
pub const WIRE_CONTROLLER: Target = Target {
    name: "wire_controller",
    seeds: requests,
    refit: Some(refit),
    run: controller,
    // A buffer for each command that requests one.
    heap_bytes: 8 << 20,
    rounds: 3000,
};

/// Data of admin commands: identify data, discovery logs, the data of Connect.
pub const WIRE_ADMIN: Target = Target {
    name: "wire_admin",
    seeds: admin_data,
    refit: None,
    run: admin,
    heap_bytes: 1 << 20,
    rounds: 3000,
};

const DIGESTS: [Digests; 2] =
    [Digests { header: false, data: false }, Digests { header: true, data: true }];

/// How an input is received, from its first two bytes.
///
/// | byte | meaning                                                                             |
/// |------|-------------------------------------------------------------------------------------|
/// | 0    | bits 0 and 1: digests; bit 2: writes are outstanding, too; bit 3: no initialisation |
/// | 1    | bits 0..7: seed of the lengths of receives; 0: one receive                          |
#[derive(Clone, Copy)]
struct Course {
    digests: Digests,
    writes: bool,
    initialised: bool,
    cuts: u64,
}

impl Course {
    fn of(input: &[u8]) -> Option<(Course, &[u8])> {
        let ([course, cuts], stream) = input.split_first_chunk()?;
        let course = Course {
            digests: Digests::from_bits(*course),
            writes: course & 4 != 0,
            initialised: course & 8 != 0,
            cuts: u64::from(*cuts),
        };
        Some((course, stream))
    }

    /// The length of the next receive: mostly short, sometimes long.
    fn cut(&mut self) -> usize {
        if self.cuts == 0 {
            return usize::MAX;
        }
        self.cuts = self.cuts.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        match self.cuts >> 60 {
            0..4 => 1 + (self.cuts >> 40 & 7) as usize,
            4..12 => 1 + (self.cuts >> 40 & 127) as usize,
            _ => 1 + (self.cuts >> 40 & 4095) as usize,
        }
    }
}

/// A conversation between our own two sides, as received by one of them.
fn conversation(digests: Digests, from_host: bool) -> Vec<u8> {
    let mut host = new_host(digests);
    let mut controller = new_controller();
    let mut recorded = vec![digests.to_bits() | 4, 7];
    for round in 0..6 {
        let requests = take_from_host(&mut host);
        feed_controller(&mut controller, &requests, usize::MAX).unwrap();
        let responses = take_from_controller(&mut controller);
        host.handle_received(Instant::now(), &responses).unwrap();
        recorded.extend(if from_host { requests } else { responses });
        if round == 0 {
            submit_all(&mut host, true);
        }
    }
    assert_eq!((host.outstanding(), controller.outstanding()), (0, 0), "all was answered");
    recorded
}

fn responses() -> Vec<Vec<u8>> {
    conversations(false)
}

fn requests() -> Vec<Vec<u8>> {
    conversations(true)
}

/// With and without digests; and the same after an initialisation that the driver performs.
fn conversations(from_host: bool) -> Vec<Vec<u8>> {
    let of = |digests| {
        let whole = conversation(digests, from_host);
        let rest = [&[whole[0] | 8, 3], &whole[2 + IC_LEN..]].concat();
        [whole, rest]
    };
    DIGESTS.into_iter().flat_map(of).collect()
}

/// Corrects the header and data digests of all PDUs, as far as their lengths can be followed.
fn refit(input: &mut [u8]) {
    let mut at = 2;
    while let Some(pdu) = input.get_mut(at..).filter(|rest| rest.len() >= 8) {
        let flags = pdu[1];
        let hlen = usize::from(pdu[2]);
        let data_at = usize::from(pdu[3]);
        let len = number(pdu, 4, 4) as usize;
        if flags & 1 != 0 {
            put_crc(pdu, 0..hlen, hlen);
        }
        if flags & 2 != 0 && len >= 4 {
            put_crc(pdu, data_at..len - 4, len - 4);
        }
        at = at.saturating_add(len.max(8));
    }
}

/// How one command ended, and the bytes that it read.
type Ended = (Result<Cqe, CommandError>, Vec<u8>);

fn host(input: &[u8]) {
    let Some((course, stream)) = Course::of(input) else { return };
    let whole = host_outcome(Course { cuts: 0, ..course }, stream);
    let cut = host_outcome(course, stream);
    // Writes may end differently: the bytes sent before an answer arrives depend on the receives.
    if !course.writes && course.cuts != 0 {
        assert_eq!(whole, cut, "how the stream was cut does not matter");
    }
}

fn host_outcome(mut course: Course, stream: &[u8]) -> (Vec<Ended>, Option<ProtocolError>) {
    let mut host = new_host(course.digests);
    let mut head = stream;
    if course.initialised {
        let answer = initialisation(course.digests, false);
        host.handle_received(Instant::now(), &answer).expect("our own ICResp");
    } else {
        let (ic, rest) = stream.split_at(stream.len().min(IC_LEN));
        let _ = host.handle_received(Instant::now(), ic); // a failure shows below
        head = rest;
    }
    take_from_host(&mut host);
    while host.poll_event().is_some() {}
    submit_all(&mut host, course.writes);
    let submitted = host.outstanding();
    let mut ended = Vec::new();
    let result = feed_host(&mut host, head, &mut course, &mut ended);
    let failed = host.failed();
    assert_eq!(result.err(), failed, "the first error stays");
    assert!(host.poll_timeout().is_none_or(|_| failed.is_none()), "it is over");
    let given_back = host.abandon().len();
    take_events(&mut host, &mut ended);
    assert_eq!(given_back + ended.len(), submitted, "every buffer comes back, once");
    (ended, failed)
}

/// Passes `stream` in receives, divided by the course, to wherever the connection wants them.
fn feed_host(
    host: &mut Connection<Vec<u8>>,
    mut stream: &[u8],
    course: &mut Course,
    ended: &mut Vec<Ended>,
) -> Result<(), ProtocolError> {
    let now = Instant::now();
    if let Some(error) = host.failed() {
        return Err(error);
    }
    if course.cuts == 0 {
        let result = host.handle_received(now, stream);
        take_from_host(host);
        take_events(host, ended);
        return result;
    }
    let mut scratch = vec![0; SCRATCH_LEN];
    while !stream.is_empty() {
        let mut received = &stream[..stream.len().min(course.cut())];
        let mut len = 0;
        {
            let mut slices: [IoSliceMut<'_>; 8] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let used = host.poll_receive(&mut scratch, &mut slices);
            for slice in &mut slices[..used] {
                let (head, tail) = received.split_at(received.len().min(slice.len()));
                slice[..head.len()].copy_from_slice(head);
                (received, len) = (tail, len + head.len());
            }
        }
        assert!(len > 0, "there is always somewhere to receive into");
        let result = host.handle_filled(now, &scratch, len);
        take_from_host(host);
        take_events(host, ended);
        result?;
        stream = &stream[len..];
    }
    Ok(())
}

fn take_events(host: &mut Connection<Vec<u8>>, ended: &mut Vec<Ended>) {
    while let Some(event) = host.poll_event() {
        if let Event::Done { payload, result } = event {
            // The contents of a failed read are undefined.
            let is_read = result.is_ok_and(|cqe| cqe.status().is_success());
            ended.push((result, if is_read { payload } else { Vec::new() }));
        }
    }
}

fn controller(input: &[u8]) {
    let Some((course, stream)) = Course::of(input) else { return };
    let whole = controller_outcome(Course { cuts: 0, ..course }, stream);
    if course.cuts != 0 {
        let cut = controller_outcome(course, stream);
        assert!(whole == cut, "how the stream was cut does not matter");
    }
}

/// Everything that the controller sends.
fn controller_outcome(mut course: Course, mut stream: &[u8]) -> Vec<u8> {
    let mut controller = new_controller();
    let ic = initialisation(course.digests, true);
    if course.initialised {
        feed_controller(&mut controller, &ic, usize::MAX).expect("our own ICReq");
    }
    while !stream.is_empty() {
        let (received, rest) = stream.split_at(stream.len().min(course.cut()));
        if let Err(error) = feed_controller(&mut controller, received, usize::MAX) {
            controller.terminate(&error);
            break;
        }
        stream = rest;
    }
    take_from_controller(&mut controller)
}

/// An ICReq or ICResp.
fn initialisation(digests: Digests, from_host: bool) -> Vec<u8> {
    let mut host = new_host(digests);
    let mut controller = new_controller();
    let request = take_from_host(&mut host);
    if from_host {
        return request;
    }
    feed_controller(&mut controller, &request, usize::MAX).expect("our own ICReq");
    take_from_controller(&mut controller)
}

fn new_host(digests: Digests) -> Connection<Vec<u8>> {
    let limit = Duration::from_secs(5);
    let options = HostOptions {
        digests,
        may_decline: false,
        max_outstanding: 31,
        ic_timeout: limit,
        io_timeout: limit,
        least_progress_bytes: 0,
    };
    let mut host = Connection::new(Instant::now(), &options);
    host.set_max_in_capsule(1024);
    host
}

fn new_controller() -> controller::Connection {
    let digests = Digests { header: true, data: true };
    let mut controller =
        controller::Connection::new(ConnectionOptions { digests, max_h2c_data_bytes: 4096 });
    controller.connected(31, 8192, true);
    controller
}

/// Reads, a command without data, and perhaps a write in its capsule and one by R2T.
fn submit_all(host: &mut Connection<Vec<u8>>, writes: bool) {
    let now = Instant::now();
    let nsid = Nsid(1);
    let commands = [
        (Sqe::read(0, nsid, Lba(0), 1, 512), Transfer::In, 512),
        (Sqe::read(0, nsid, Lba(8), 2, 1024), Transfer::In, 1024),
        (Sqe::flush(0, nsid), Transfer::None, 0),
        (Sqe::read(0, nsid, Lba(9), 1, 512), Transfer::In, 512),
        (Sqe::write(0, nsid, Lba(0), 1, Sgl::in_capsule(512)), Transfer::Out, 512),
        (Sqe::write(0, nsid, Lba(0), 3, Sgl::transport(1536)), Transfer::Out, 1536),
    ];
    for (sqe, transfer, len) in commands {
        if transfer == Transfer::Out && !writes {
            continue;
        }
        // A damaged ICResp may have left no room; then there is nothing to answer.
        let _ = host.submit(now, sqe, transfer, false, vec![0xa5; len]);
    }
}

fn take_from_host(host: &mut Connection<Vec<u8>>) -> Vec<u8> {
    let mut sent = Vec::new();
    loop {
        let mut slices = [IoSlice::new(&[]); 16];
        let used = host.poll_transmit(&mut slices);
        let burst: Vec<u8> = slices[..used].iter().flat_map(|slice| slice.to_vec()).collect();
        if burst.is_empty() {
            return sent;
        }
        host.transmitted(Instant::now(), burst.len());
        sent.extend(burst);
    }
}

fn take_from_controller(controller: &mut controller::Connection) -> Vec<u8> {
    let mut sent = Vec::new();
    while !controller.transmit().is_empty() {
        let mut slices = [IoSlice::new(&[]); 16];
        let used = controller.gather(&mut slices);
        let burst: Vec<u8> = slices[..used].iter().flat_map(|slice| slice.to_vec()).collect();
        controller.sent(burst.len());
        sent.extend(burst);
    }
    sent
}

/// Passes bytes in receives of at most `most` to a controller that answers each command like a
/// namespace of zeroes.
fn feed_controller(
    controller: &mut controller::Connection,
    bytes: &[u8],
    most: usize,
) -> Result<(), ProtocolError> {
    for received in bytes.chunks(most) {
        let mut input = received;
        while let Some(event) = controller.next(&mut input)? {
            match event {
                controller::Event::Command { id, data, .. } => match data {
                    DataTransfer::None => controller.finish(id, dlfs::nvme::Status::SUCCESS, 0),
                    DataTransfer::ToHost(len) => {
                        controller.send_data(id, IoBuf::zeroed(len.min(1 << 14) as usize).freeze());
                    }
                    DataTransfer::FromHost { len, .. } if len > 1 << 16 => {
                        controller.finish(id, dlfs::nvme::Status::INVALID_FIELD, 0);
                    }
                    DataTransfer::FromHost { len, .. } => {
                        controller.receive(id, IoBuf::zeroed(len as usize));
                    }
                },
                // Dword 0 reveals a difference in what was received.
                controller::Event::Received { id, buf, .. } => {
                    let sum = u64::from(crc32c(&buf));
                    controller.finish(id, dlfs::nvme::Status::SUCCESS, sum);
                }
                controller::Event::Damaged { .. } => {}
            }
        }
    }
    Ok(())
}

/// Bytes of an ICReq or ICResp.
const IC_LEN: usize = 128;

/// Identify data, a discovery log and Connect's data, one after the other.
fn admin_data() -> Vec<Vec<u8>> {
    let nqn = Nqn::new("nqn.2026-11.io.dlfs:fuzz").unwrap();
    let connect = ConnectData::new([7; 16], 0xffff, &nqn, &nqn);
    let mut identify = vec![0; 4096];
    identify[256..256 + 8].copy_from_slice(b"nqn.fuzz");
    vec![identify, vec![0; 4096], connect.as_bytes().to_vec(), vec![0x20; 2048]]
}

fn admin(bytes: &[u8]) {
    if let Ok(controller) = IdentifyController::decode(bytes) {
        controller.max_transfer_bytes(0);
        controller.in_capsule_data_bytes();
        let _ = controller.subnqn();
    }
    let _ = IdentifyNamespace::decode(bytes);
    if let Ok((connect, _)) = ConnectData::read_from_prefix(bytes) {
        let _ = (connect.subnqn(), connect.hostnqn());
    }
    let _ = DiscoveryLogHeader::read_from_prefix(bytes);
    if let Ok((record, _)) = DiscoveryRecord::read_from_prefix(bytes) {
        let _ = (record.subnqn(), record.traddr(), record.port());
    }
    let _ = std::str::from_utf8(bytes).map(Address::parse_list);
}
