//! A controller's connection with the bytes of a hand-written host.

use std::io::IoSlice;

use proptest::prelude::*;

use super::super::pdu::FLAG_DDGST;
use super::*;
use crate::nvme::identify::IDENTIFY_LEN_BYTES;
use dlfs_base::units::{Lba, Nsid};

const BOTH: Digests = Digests { header: true, data: true };
const NONE: Digests = Digests { header: false, data: false };
const NSID: Nsid = Nsid(1);

/// A connection that waits for ICReq.
fn connection() -> Connection {
    Connection::new(ConnectionOptions { digests: BOTH, max_h2c_data_bytes: 131_072 })
}

/// A connection with a queue of 128 entries, whose ICResp has been sent.
fn connected(digests: Digests) -> Connection {
    let mut connection = connection();
    let events = feed(&mut connection, IcReq::new(digests).as_bytes()).unwrap();
    assert!(events.is_empty());
    connection.connected(127, 16 << 10, false);
    drain(&mut connection);
    connection
}

/// All events of `bytes`; commands with in-capsule data get a buffer.
fn feed(connection: &mut Connection, bytes: &[u8]) -> Result<Vec<Event>, ProtocolError> {
    let mut input = bytes;
    let mut events = Vec::new();
    while let Some(event) = connection.next(&mut input)? {
        if let Event::Command {
            id, data: DataTransfer::FromHost { len, in_capsule: true }, ..
        } = event
        {
            connection.receive(id, IoBuf::zeroed(len as usize));
        }
        events.push(event);
    }
    assert!(input.is_empty());
    Ok(events)
}

/// The bytes that the connection sends now.
fn drain(connection: &mut Connection) -> Vec<u8> {
    let mut slices = [IoSlice::new(&[]); 64];
    let n = connection.gather(&mut slices);
    let bytes: Vec<u8> = slices[..n].iter().flat_map(|slice| slice.iter().copied()).collect();
    connection.sent(bytes.len());
    bytes
}

/// The bytes of a command capsule.
fn capsule(sqe: &Sqe, data: &[u8], digests: Digests) -> Vec<u8> {
    let form = Form { digests, pda: 0 };
    let mut bytes = Vec::new();
    let entry = sqe.as_bytes().try_into().unwrap();
    form.put(&mut bytes, &CapsuleCmd::new(entry, data.len() as u32, form));
    bytes.extend_from_slice(data);
    if digests.data && !data.is_empty() {
        bytes.extend_from_slice(&super::super::pdu::digest(data));
    }
    bytes
}

/// The bytes of an H2CData.
fn h2c_data(
    cid: u16,
    ttag: u16,
    offset: u32,
    data: &[u8],
    last: bool,
    digests: Digests,
) -> Vec<u8> {
    let form = Form { digests, pda: 0 };
    let mut bytes = Vec::new();
    form.put(&mut bytes, &H2CData::new(cid, ttag, offset, data.len() as u32, last, form));
    bytes.extend_from_slice(data);
    if digests.data {
        bytes.extend_from_slice(&super::super::pdu::digest(data));
    }
    bytes
}

fn command_of(event: &Event) -> CommandId {
    match event {
        Event::Command { id, .. } | Event::Received { id, .. } => *id,
        Event::Damaged { .. } => panic!("it has been answered"),
    }
}

/// The status in a response capsule without digest.
fn status_of(bytes: &[u8]) -> Status {
    assert_eq!((bytes.len(), bytes[0]), (24, 0x05), "{bytes:02x?}");
    Status::from_wire(u16::from_le_bytes([bytes[22], bytes[23]]))
}

#[test]
fn initialisation_answers_with_the_golden_bytes() {
    let mut connection = connection();
    feed(&mut connection, IcReq::new(BOTH).as_bytes()).unwrap();
    let mut golden = [0; 128];
    golden[..16].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 0, 0, 2, 0]);
    assert_eq!(drain(&mut connection), golden);
    assert_eq!(connection.digests(), BOTH);
}

#[test]
fn impossible_parameters_are_refused_and_digests_granted_only_on_request() {
    for (at, value, ok) in
        [(8, 1, false), (9, 1, false), (10, 31, true), (10, 32, false), (11, 0xFC, true)]
    {
        let mut bytes = IcReq::new(NONE).as_bytes().to_vec();
        bytes[at] = value;
        let mut connection = connection();
        let result = feed(&mut connection, &bytes);
        assert_eq!(result.is_ok(), ok, "byte {at} = {value}");
        if ok {
            assert_eq!(connection.digests(), NONE);
        } else {
            let error = result.unwrap_err();
            connection.terminate(&error);
            assert_eq!(drain(&mut connection)[..9], [3, 0, 24, 0, 152, 0, 0, 0, 6], "{error}");
        }
    }
}

#[test]
fn a_read_is_answered_by_data_that_mean_success() {
    for (digests, golden) in [
        (NONE, &b"\x07\x0c\x18\x18\x18\x10\0\0\x07\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0"[..]),
        (
            BOTH,
            &b"\x07\x0f\x18\x1c\x20\x10\0\0\x07\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\x35\x8b\xa6\xfa"[..],
        ),
    ] {
        let mut connection = connected(digests);
        let read = Sqe::read(7, NSID, Lba(16), 8, 4096);
        let events = feed(&mut connection, &capsule(&read, &[], digests)).unwrap();
        assert!(
            matches!(events[..], [Event::Command { sqe, data: DataTransfer::ToHost(4096), .. }] if sqe == read)
        );
        connection.send_data(command_of(&events[0]), IoBuf::zeroed(4096).freeze());
        let wire = drain(&mut connection);
        assert_eq!(&wire[..golden.len()], golden);
        let ddgst: &[u8] = if digests.data { &[0x89, 0x41, 0xF9, 0x98] } else { &[] };
        assert_eq!(&wire[golden.len() + 4096..], ddgst);
        assert_eq!(connection.outstanding(), 0);
    }
}

#[test]
fn pieces_of_a_read_have_their_offsets_and_digests_and_only_the_last_means_success() {
    for sq_flow_control in [false, true] {
        let mut connection = connected(BOTH);
        connection.connected(127, 0, sq_flow_control);
        let read = Sqe::read(7, NSID, Lba(0), 3, 1536);
        let events = feed(&mut connection, &capsule(&read, &[], BOTH)).unwrap();
        let id = command_of(&events[0]);
        for piece in [0, 1] {
            assert_eq!(connection.sent_in_pieces(id), piece * 512);
            connection.send_piece(id, IoBuf::zeroed(512).freeze());
            assert_eq!(connection.outstanding(), 1);
        }
        connection.send_data(id, IoBuf::zeroed(512).freeze());
        assert_eq!(connection.outstanding(), 0);
        let wire = drain(&mut connection);
        let digest = super::super::pdu::digest(&[0; 512]);
        let last = FLAG_LAST_PDU | if sq_flow_control { 0 } else { FLAG_SUCCESS };
        for (piece, flags) in [(0, 0), (1, 0), (2, last)] {
            let pdu = &wire[piece * 544..][..544];
            assert_eq!(pdu[1] & (FLAG_LAST_PDU | FLAG_SUCCESS), flags, "piece {piece}");
            assert_eq!(pdu[12..16], (piece as u32 * 512).to_le_bytes());
            assert_eq!(pdu[540..], digest);
        }
        assert_eq!(wire.len() - 3 * 544, if sq_flow_control { 28 } else { 0 });
    }
}

#[test]
fn a_host_may_use_the_cid_of_a_parked_command_again_and_of_no_other() {
    let mut connection = connected(NONE);
    let event = Sqe::async_event_request(3);
    let events = feed(&mut connection, &capsule(&event, &[], NONE)).unwrap();
    let parked = command_of(&events[0]);
    connection.park(parked);
    let events = feed(&mut connection, &capsule(&Sqe::keep_alive(3), &[], NONE)).unwrap();
    assert_eq!((command_of(&events[0]), connection.outstanding()), (parked, 1));
    let error = feed(&mut connection, &capsule(&event, &[], NONE)).unwrap_err();
    assert_eq!(error, ProtocolError::CidInUse { cid: 3 });
}

#[test]
fn padding_follows_what_the_host_asked_for() {
    for (hpda, golden) in [
        (1u8, &b"\x07\x0f\x18\x20\x24\x02\0\0"[..]),
        (15, b"\x07\x0f\x18\x40\x44\x02\0\0"),
        (31, b"\x07\x0f\x18\x80\x84\x02\0\0"),
    ] {
        let mut connection = connection();
        let mut req = IcReq::new(BOTH);
        req.hpda = hpda;
        feed(&mut connection, req.as_bytes()).unwrap();
        connection.connected(31, 0, false);
        drain(&mut connection);
        let events =
            feed(&mut connection, &capsule(&Sqe::read(7, NSID, Lba(0), 1, 512), &[], BOTH))
                .unwrap();
        connection.send_data(command_of(&events[0]), IoBuf::zeroed(512).freeze());
        assert_eq!(drain(&mut connection)[..8], *golden);
    }
}

#[test]
fn with_flow_control_every_answer_is_a_capsule_that_counts_the_head() {
    let mut connection = connection();
    feed(&mut connection, IcReq::new(NONE).as_bytes()).unwrap();
    connection.connected(2, 0, true);
    drain(&mut connection);
    for head in [1, 2, 0, 1] {
        let events =
            feed(&mut connection, &capsule(&Sqe::read(7, NSID, Lba(0), 1, 512), &[], NONE))
                .unwrap();
        connection.send_data(command_of(&events[0]), IoBuf::zeroed(512).freeze());
        let wire = drain(&mut connection);
        assert_eq!(wire[1], FLAG_LAST_PDU);
        assert_eq!(wire[24 + 512 + 16..][..2], [head, 0]);
    }
}

#[test]
fn writes_may_interleave_in_any_order() {
    let mut connection = connected(BOTH);
    let mut ids = Vec::new();
    for cid in [5, 6] {
        let write = Sqe::write(cid, NSID, Lba(0), 16, Sgl::transport(8192));
        let events = feed(&mut connection, &capsule(&write, &[], BOTH)).unwrap();
        connection.receive(command_of(&events[0]), IoBuf::zeroed(8192));
        ids.push(command_of(&events[0]));
    }
    let r2ts = drain(&mut connection);
    assert_eq!((r2ts.len(), r2ts[0], r2ts[28]), (56, 9, 9));
    let half = |n: u8| vec![n; 4096];
    let mut done = Vec::new();
    for (cid, id, offset, n) in
        [(6, ids[1], 0, 3), (5, ids[0], 0, 1), (5, ids[0], 4096, 2), (6, ids[1], 4096, 4)]
    {
        let pdu = h2c_data(cid, id.0, offset, &half(n), offset > 0, BOTH);
        done.extend(feed(&mut connection, &pdu).unwrap());
    }
    let bufs: Vec<(u16, u8, u8)> = done
        .iter()
        .map(|event| match event {
            Event::Received { sqe, buf, .. } => (sqe.cid.get(), buf[0], buf[8191]),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(bufs, [(5, 1, 2), (6, 3, 4)]);
}

/// A connection with a write of 8,192 bytes as CID 5, which waits for its data.
fn waiting_write(digests: Digests) -> (Connection, u16) {
    let mut connection = connected(digests);
    let write = Sqe::write(5, NSID, Lba(0), 16, Sgl::transport(8192));
    let events = feed(&mut connection, &capsule(&write, &[], digests)).unwrap();
    let id = command_of(&events[0]);
    connection.receive(id, IoBuf::zeroed(8192));
    drain(&mut connection);
    (connection, id.0)
}

#[test]
fn data_that_no_r2t_asked_for_end_the_connection_with_the_reason() {
    let data = vec![1; 4096];
    let refused = |cid: u16, ttag_change: u16, offset: u32, len: usize, last: bool| {
        let (mut connection, ttag) = waiting_write(NONE);
        let data = vec![1; len];
        let pdu = h2c_data(cid, ttag ^ ttag_change, offset, &data, last, NONE);
        feed(&mut connection, &pdu).unwrap_err()
    };
    let pdu_type = PduType::H2CData;
    for change in [1, 0x7FFF, 0xFFFF] {
        assert!(matches!(
            refused(5, change, 0, 4096, false),
            ProtocolError::UnknownTransferTag { .. }
        ));
    }
    assert_eq!(refused(6, 0, 0, 4096, false), ProtocolError::UnknownCid { pdu_type, cid: 6 });
    for found in [4096, 8192, 0xFFFF_FFFC] {
        let error = ProtocolError::OutOfOrder { pdu_type, cid: 5, expected: 0, found };
        assert_eq!(refused(5, 0, found, 4096, false), error);
    }
    let error = ProtocolError::OutOfRange { pdu_type, cid: 5, end: 12_288, len: 8192 };
    assert_eq!(refused(5, 0, 0, 12_288, true), error);
    assert_eq!(refused(5, 0, 0, 4096, true), ProtocolError::LastPdu { pdu_type, cid: 5 });
    assert_eq!(refused(5, 0, 0, 8192, false), ProtocolError::LastPdu { pdu_type, cid: 5 });
    // Before any command, after the last data, and for a read.
    let unknown = ProtocolError::UnknownTransferTag { ttag: 0 };
    assert_eq!(
        feed(&mut connected(NONE), &h2c_data(5, 0, 0, &data, false, NONE)).unwrap_err(),
        unknown
    );
    let (mut connection, ttag) = waiting_write(NONE);
    feed(&mut connection, &h2c_data(5, ttag, 0, &[0; 8192], true, NONE)).unwrap();
    let again = feed(&mut connection, &h2c_data(5, ttag, 0, &[0; 8192], true, NONE));
    assert_eq!(again.unwrap_err(), unknown);
    let mut connection = connected(NONE);
    feed(&mut connection, &capsule(&Sqe::read(5, NSID, Lba(0), 16, 8192), &[], NONE)).unwrap();
    assert_eq!(feed(&mut connection, &h2c_data(5, 0, 0, &data, false, NONE)).unwrap_err(), unknown);
}

#[test]
fn a_wrong_data_digest_fails_its_command_once_and_nothing_else() {
    for bad_pdu in [0, 1] {
        let (mut connection, ttag) = waiting_write(BOTH);
        for (n, offset) in [(0, 0), (1, 4096)] {
            let mut pdu = h2c_data(5, ttag, offset, &[7; 4096], n == 1, BOTH);
            if n == bad_pdu {
                *pdu.last_mut().unwrap() ^= 1;
            }
            let events = feed(&mut connection, &pdu).unwrap();
            match n {
                0 => assert!(events.is_empty()),
                _ => assert!(matches!(&events[..], [Event::Damaged { buf }] if buf.len() == 8192)),
            }
        }
        let wire = drain(&mut connection);
        assert_eq!((wire.len(), &wire[20..24]), (28, &[5, 0, 0x44, 0][..]));
        assert_eq!(connection.outstanding(), 0);
    }
    // A wrong digest in the capsule of a refused command: one response, not two.
    let mut connection = connected(BOTH);
    let mut sqe = Sqe::write(5, NSID, Lba(0), 1, Sgl::in_capsule(512));
    sqe.sgl.identifier = 0x5A;
    let mut pdu = capsule(&sqe, &[7; 512], BOTH);
    assert_eq!(pdu[1] & FLAG_DDGST, FLAG_DDGST);
    *pdu.last_mut().unwrap() ^= 1;
    assert!(feed(&mut connection, &pdu).unwrap().is_empty());
    assert_eq!(drain(&mut connection).len(), 28);
}

#[test]
fn impossible_descriptors_are_refused_and_the_stream_continues() {
    let mut connection = connected(NONE);
    let next = capsule(&Sqe::keep_alive(9), &[], NONE);
    let mut check = |sqe: &Sqe, data: &[u8], expected: Status| {
        assert!(feed(&mut connection, &capsule(sqe, data, NONE)).unwrap().is_empty(), "{sqe:?}");
        let status = status_of(&drain(&mut connection));
        assert!(status.is(expected) && status.dnr, "{status} in place of {expected}");
        let events = feed(&mut connection, &next).unwrap();
        connection.finish(command_of(&events[0]), Status::SUCCESS, 0);
        assert!(status_of(&drain(&mut connection)).is_success());
    };
    let write = Sqe::write(5, NSID, Lba(0), 1, Sgl::in_capsule(512));
    for identifier in (0..=255u8).filter(|id| ![Sgl::IN_CAPSULE, Sgl::TRANSPORT].contains(id)) {
        let mut sqe = write;
        sqe.sgl.identifier = identifier;
        check(&sqe, &[0; 512], Status::INVALID_SGL_TYPE);
    }
    for flags in [0x00, 0x80, 0xC0, 0x41, 0x42] {
        let mut sqe = write;
        sqe.flags = flags;
        check(&sqe, &[0; 512], Status::INVALID_FIELD);
    }
    let mut sqe = write;
    sqe.sgl.address.set(4);
    check(&sqe, &[0; 512], Status::INVALID_SGL_OFFSET);
    check(&write, &[0; 508], Status::INVALID_SGL_LENGTH);
    check(&write, &[0; 516], Status::INVALID_SGL_LENGTH);
    check(&write, &[], Status::INVALID_SGL_LENGTH);
    let mut sqe = write;
    sqe.sgl.len.set(u32::MAX);
    check(&sqe, &[0; 512], Status::INVALID_SGL_LENGTH);
    // A read with an in-capsule descriptor, and a command without data with such a descriptor.
    let mut sqe = Sqe::read(5, NSID, Lba(0), 1, 512);
    sqe.sgl = Sgl::in_capsule(512);
    check(&sqe, &[0; 512], Status::INVALID_FIELD);
    let mut sqe = Sqe::flush(5, NSID);
    sqe.sgl = Sgl::in_capsule(4);
    check(&sqe, &[0; 4], Status::INVALID_FIELD);
}

#[test]
fn too_many_commands_and_an_identifier_in_use_end_the_connection() {
    let mut connection = connected(NONE);
    for cid in 0..127 {
        feed(&mut connection, &capsule(&Sqe::flush(cid, NSID), &[], NONE)).unwrap();
    }
    let error = feed(&mut connection, &capsule(&Sqe::flush(127, NSID), &[], NONE)).unwrap_err();
    assert_eq!(error, ProtocolError::TooManyCommands { limit: 127 });
    let mut connection = connected(NONE);
    let flush = capsule(&Sqe::flush(0xFFFF, NSID), &[], NONE);
    let events = feed(&mut connection, &flush).unwrap();
    connection.finish(command_of(&events[0]), Status::SUCCESS, 0);
    feed(&mut connection, &flush).unwrap();
    let error = feed(&mut connection, &flush).unwrap_err();
    assert_eq!(error, ProtocolError::CidInUse { cid: 0xFFFF });
    connection.terminate(&error);
    connection.terminate(&error);
    let wire = drain(&mut connection);
    assert_eq!(wire[24..][..11], [3, 0, 24, 0, 96, 0, 0, 0, 1, 0, 10], "one termination request");
}

#[test]
fn before_connect_one_small_command_is_all_there_is_room_for() {
    let mut connection = connection();
    feed(&mut connection, IcReq::new(NONE).as_bytes()).unwrap();
    let first = capsule(&Sqe::identify(1, 1, Nsid(0)), &[], NONE);
    assert_eq!(feed(&mut connection, &first).unwrap().len(), 1);
    let second = capsule(&Sqe::identify(2, 1, Nsid(0)), &[], NONE);
    let error = feed(&mut connection, &second).unwrap_err();
    assert_eq!(error, ProtocolError::TooManyCommands { limit: 1 });
    let mut connection = self::connection();
    feed(&mut connection, IcReq::new(NONE).as_bytes()).unwrap();
    let write = Sqe::write(1, NSID, Lba(0), 17, Sgl::in_capsule(17 * 512));
    let error = feed(&mut connection, &capsule(&write, &[0; 17 * 512], NONE)).unwrap_err();
    assert!(matches!(error, ProtocolError::DataLimit { limit: 8192, .. }));
}

#[test]
fn the_host_may_end_the_connection_and_gets_no_answer() {
    let mut connection = connected(NONE);
    let mut term = Vec::new();
    put_term_req(&mut term, true, 1, 8, &[0; 24]);
    let error = feed(&mut connection, &term).unwrap_err();
    assert_eq!(error, ProtocolError::Terminated { fes: 1, fei: 8 });
    connection.terminate(&error);
    assert!(drain(&mut connection).is_empty());
}

/// A whole session: Identify, a write with in-capsule data, a write by R2T, a read.
fn session(digests: Digests) -> Vec<u8> {
    let mut bytes = IcReq::new(digests).as_bytes().to_vec();
    bytes.extend(capsule(&Sqe::identify(1, 1, Nsid(0)), &[], digests));
    bytes.extend(capsule(
        &Sqe::write(2, NSID, Lba(0), 1, Sgl::in_capsule(512)),
        &[2; 512],
        digests,
    ));
    bytes.extend(capsule(&Sqe::write(3, NSID, Lba(0), 2, Sgl::transport(1024)), &[], digests));
    // Transfer tags are slot indices, so the test knows this one.
    bytes.extend(h2c_data(3, 0, 0, &[3; 512], false, digests));
    bytes.extend(capsule(&Sqe::read(4, NSID, Lba(0), 1, 512), &[], digests));
    bytes.extend(h2c_data(3, 0, 512, &[4; 512], true, digests));
    bytes
}

/// Serves a stream that arrives in pieces, receiving straight into buffers where possible.
///
fn serve(pieces: &[&[u8]]) -> Result<Vec<u8>, ProtocolError> {
    let mut connection = connection();
    connection.connected(127, 16 << 10, false);
    for piece in pieces {
        let mut input = *piece;
        if let Some(place) = connection.payload() {
            let len = place.len().min(input.len());
            place[..len].copy_from_slice(&input[..len]);
            connection.payload_received(len);
            input = &input[len..];
        }
        while let Some(event) = connection.next(&mut input)? {
            match event {
                Event::Command { id, data: DataTransfer::FromHost { len, .. }, .. }
                    if len <= 1 << 20 =>
                {
                    connection.receive(id, IoBuf::zeroed(len as usize));
                }
                Event::Command { id, data: DataTransfer::ToHost(len), .. } if len <= 1 << 20 => {
                    connection.send_data(
                        id,
                        IoBuf::zeroed(IDENTIFY_LEN_BYTES.min(len as usize)).freeze(),
                    );
                }
                Event::Command { id, .. } => connection.finish(id, Status::INVALID_FIELD, 0),
                Event::Received { id, buf, .. } => {
                    connection.finish(id, Status::SUCCESS, u64::from(buf[buf.len() - 1]));
                }
                Event::Damaged { .. } => {}
            }
        }
    }
    Ok(drain(&mut connection))
}

#[test]
fn the_answers_do_not_depend_on_where_the_stream_is_cut() {
    for digests in [NONE, BOTH] {
        let bytes = session(digests);
        let whole = serve(&[&bytes]).unwrap();
        assert!(whole.len() > 128 + 4096 + 512);
        for cut in 0..=bytes.len() {
            let (a, b) = bytes.split_at(cut);
            assert!(serve(&[a, b]).unwrap() == whole, "cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert!(serve(&single).unwrap() == whole);
    }
}

proptest! {
    #[test]
    fn damaged_sessions_never_panic(
        digests in (any::<bool>(), any::<bool>()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let mut bytes = session(Digests { header: digests.0, data: digests.1 });
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        cuts.push(bytes.len());
        cuts.sort_unstable();
        let mut from = 0;
        let mut pieces = Vec::new();
        for cut in cuts {
            pieces.push(&bytes[from..cut]);
            from = cut;
        }
        let _ = serve(&pieces); // any result except a panic
    }
}
