//! What comes over the wire: conversations of our own two sides, replayed to one of them.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use dlfs::buf::IoBuf;
use dlfs::nvme::fabrics::{ConnectData, DiscoveryLogHeader, DiscoveryRecord};
use dlfs::nvme::{Address, IdentifyController, IdentifyNamespace, Nqn, Sqe};
use dlfs::tcp::controller::{self, ConnectionOptions, DataTransfer};
use dlfs::tcp::host::{Connection, HostOptions, SCRATCH_LEN, Transfer};
use dlfs::tcp::{Digests, ProtocolError};
use dlfs::units::{Lba, Nsid};
use zerocopy::{FromBytes, IntoBytes};

const DIGESTS: [Digests; 2] =
    [Digests { header: false, data: false }, Digests { header: true, data: true }];

/// The first byte says which digests the conversation has.
fn conversation(digests: Digests, from_host: bool) -> Vec<u8> {
    let (mut host, mut controller) = (new_host(digests), new_controller());
    let mut recorded = vec![digests.to_bits()];
    submit_all(&mut host, false);
    for round in 0..6 {
        let requests = take_from_host(&mut host);
        feed_controller(&mut controller, &requests, 4096).unwrap();
        let responses = take_from_controller(&mut controller);
        feed_host(&mut host, &responses, 4096).unwrap();
        recorded.extend(if from_host { requests } else { responses });
        if round == 0 {
            submit_all(&mut host, true);
        }
    }
    assert_eq!((host.outstanding(), controller.outstanding()), (0, 0), "all was answered");
    recorded
}

pub(crate) fn responses() -> Vec<Vec<u8>> {
    DIGESTS.map(|digests| conversation(digests, false)).into()
}

pub(crate) fn requests() -> Vec<Vec<u8>> {
    DIGESTS.map(|digests| conversation(digests, true)).into()
}

pub(crate) fn host(bytes: &[u8]) {
    let Some((&digests, bytes)) = bytes.split_first() else { return };
    let mut host = new_host(Digests::from_bits(digests));
    let (initialise, rest) = bytes.split_at(bytes.len().min(128));
    if feed_host(&mut host, initialise, 128).is_err() || host.failed().is_some() {
        return;
    }
    while host.poll_event().is_some() {}
    submit_all(&mut host, true);
    let (submitted, mut ended) = (host.outstanding(), 0);
    for burst in rest.chunks(1000) {
        // A connection that has failed takes the rest of a receive, and refuses it again.
        let _ = feed_host(&mut host, burst, 1 + bytes.len() % 97);
        ended += std::iter::from_fn(|| host.poll_event()).count();
        take_from_host(&mut host);
    }
    let given_back = host.abandon().len();
    ended += std::iter::from_fn(|| host.poll_event()).count();
    assert_eq!(given_back + ended, submitted, "every buffer comes back, once");
}

pub(crate) fn controller(bytes: &[u8]) {
    let Some((_, bytes)) = bytes.split_first() else { return };
    let mut controller = new_controller();
    if let Err(error) = feed_controller(&mut controller, bytes, 1 + bytes.len() % 97) {
        controller.terminate(&error);
    }
    take_from_controller(&mut controller);
}

fn new_host(digests: Digests) -> Connection<Vec<u8>> {
    let limit = Duration::from_secs(5);
    let options =
        HostOptions { digests, max_outstanding: 31, ic_timeout: limit, io_timeout: limit };
    let mut host = Connection::new(Instant::now(), &options);
    host.set_max_in_capsule(8192);
    host
}

fn new_controller() -> controller::Connection {
    let digests = Digests { header: true, data: true };
    let mut controller =
        controller::Connection::new(ConnectionOptions { digests, max_h2c_data_bytes: 4096 });
    controller.connected(31, 8192, true);
    controller
}

/// Reads, a write in its capsule, one by R2T, and a command without data, once there is a form for them.
fn submit_all(host: &mut Connection<Vec<u8>>, initialised: bool) {
    if !initialised || host.failed().is_some() {
        return;
    }
    let (now, nsid) = (Instant::now(), Nsid(1));
    let commands = [
        (Sqe::read(0, nsid, Lba(0), 1, 512), Transfer::In, 512),
        (Sqe::read(0, nsid, Lba(8), 16, 8192), Transfer::In, 8192),
        (Sqe::write(0, nsid, Lba(0), 1, dlfs::nvme::Sgl::in_capsule(512)), Transfer::Out, 512),
        (Sqe::write(0, nsid, Lba(0), 32, dlfs::nvme::Sgl::transport(16384)), Transfer::Out, 16384),
        (Sqe::flush(0, nsid), Transfer::None, 0),
    ];
    for (sqe, transfer, len) in commands {
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

/// Hands over `bytes` in receives of at most `most`, where the connection says that they belong.
fn feed_host(
    host: &mut Connection<Vec<u8>>,
    mut bytes: &[u8],
    most: usize,
) -> Result<(), ProtocolError> {
    let now = Instant::now();
    let mut scratch = vec![0; SCRATCH_LEN];
    while !bytes.is_empty() {
        let (mut received, mut len) = (&bytes[..bytes.len().min(most)], 0);
        {
            let mut slices: [IoSliceMut<'_>; 8] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let used = host.poll_receive(&mut scratch, &mut slices);
            for slice in &mut slices[..used] {
                let (head, tail) = received.split_at(received.len().min(slice.len()));
                slice[..head.len()].copy_from_slice(head);
                (received, len) = (tail, len + head.len());
            }
        }
        host.handle_filled(now, &scratch, len)?;
        bytes = &bytes[len..];
    }
    Ok(())
}

/// The same for a controller, which answers each command as a namespace of zeroes would.
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
                        controller.send_data(id, IoBuf::zeroed(len.min(1 << 16) as usize).freeze());
                    }
                    DataTransfer::FromHost { len, .. } if len > 1 << 16 => {
                        controller.finish(id, dlfs::nvme::Status::INVALID_FIELD, 0);
                    }
                    DataTransfer::FromHost { len, .. } => {
                        controller.receive(id, IoBuf::zeroed(len as usize));
                    }
                },
                controller::Event::Received { id, .. } => {
                    controller.finish(id, dlfs::nvme::Status::SUCCESS, 0);
                }
                controller::Event::Damaged { .. } => {}
            }
        }
    }
    Ok(())
}

/// Identify data, a discovery log and Connect's data, one after the other.
pub(crate) fn admin_data() -> Vec<Vec<u8>> {
    let nqn = Nqn::new("nqn.2026-11.io.dlfs:fuzz").unwrap();
    let connect = ConnectData::new([7; 16], 0xffff, &nqn, &nqn);
    let mut identify = vec![0; 4096];
    identify[256..256 + 8].copy_from_slice(b"nqn.fuzz");
    vec![identify, vec![0; 4096], connect.as_bytes().to_vec(), vec![0x20; 2048]]
}

pub(crate) fn admin(bytes: &[u8]) {
    if let Ok(controller) = IdentifyController::decode(bytes) {
        controller.max_transfer_bytes(0);
        controller.in_capsule_data_bytes();
        controller.max_async_events();
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
