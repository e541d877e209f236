//! A host's connection with a hand-written controller ([`Peer`]), whose bytes are cut anywhere.

mod dialogues;
mod progress;

use std::io::IoSliceMut;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use super::super::pdu::{CapsuleResp, FLAG_DDGST, digest};
use super::*;
use crate::nvme::sqe::{cns, nvm};
use crate::nvme::{ConnectData, Nqn};
use dlfs_base::units::{Lba, Nsid};

const BOTH: Digests = Digests { header: true, data: true };
const NONE: Digests = Digests { header: false, data: false };

/// A connection with a hand-written controller.
struct Peer {
    host: Connection<Vec<u8>>,
    now: Instant,
    form: Form,
    /// Bytes that the host has sent and the test has not read.
    sent: Vec<u8>,
    /// Lengths into which received bytes are split, in rotation.
    cuts: Vec<usize>,
    next_cut: usize,
}

impl Peer {
    /// A connection that waits for ICResp.
    fn unanswered(digests: Digests) -> Peer {
        let now = Instant::now();
        let options = HostOptions {
            digests,
            max_outstanding: 8,
            ic_timeout: Duration::from_secs(10),
            may_decline: false,
            io_timeout: Duration::from_secs(5),
            least_progress_bytes: 0,
        };
        let mut peer = Peer {
            host: Connection::new(now, &options),
            now,
            form: Form { digests, pda: 0 },
            sent: Vec::new(),
            cuts: vec![usize::MAX],
            next_cut: 0,
        };
        peer.flush();
        peer
    }

    fn new(digests: Digests) -> Peer {
        Peer::with_ic_resp(digests, |_| {})
    }

    /// An initialised connection; `edit` may change its ICResp.
    fn with_ic_resp(digests: Digests, edit: impl FnOnce(&mut IcResp)) -> Peer {
        let mut peer = Peer::unanswered(digests);
        assert_eq!(peer.take_sent(128)[..2], [0, 0]);
        let mut resp = IcResp::new(digests, 131_072);
        edit(&mut resp);
        peer.form.pda = resp.cpda;
        peer.give(resp.as_bytes()).unwrap();
        assert!(matches!(peer.host.poll_event(), Some(Event::Initialised)));
        peer.form.pda = 0;
        peer
    }

    /// Sends everything that the host has queued, seven bytes at a time.
    fn flush(&mut self) {
        loop {
            let mut slices = [IoSlice::new(&[]); 3];
            let used = self.host.poll_transmit(&mut slices);
            if used == 0 {
                return;
            }
            let all: Vec<u8> = slices[..used].iter().flat_map(|s| s.to_vec()).collect();
            let step = all.len().min(7);
            self.sent.extend_from_slice(&all[..step]);
            self.host.transmitted(self.now, step);
        }
    }

    /// The next `len` bytes that the host has sent.
    fn take_sent(&mut self, len: usize) -> Vec<u8> {
        self.sent.drain(..len).collect()
    }

    /// Passes bytes to the host as a socket would: into its slices, split as planned.
    fn give(&mut self, mut bytes: &[u8]) -> Result<(), ProtocolError> {
        let mut scratch = vec![0; SCRATCH_LEN];
        while !bytes.is_empty() {
            let cut = self.cuts[self.next_cut % self.cuts.len()];
            self.next_cut += 1;
            let mut received = &bytes[..bytes.len().min(cut)];
            let mut len = 0;
            {
                let mut slices: [IoSliceMut<'_>; 21] =
                    std::array::from_fn(|_| IoSliceMut::new(&mut []));
                let used = self.host.poll_receive(&mut scratch, &mut slices);
                for slice in &mut slices[..used] {
                    let (head, tail) = received.split_at(received.len().min(slice.len()));
                    slice[..head.len()].copy_from_slice(head);
                    (received, len) = (tail, len + head.len());
                }
            }
            self.host.handle_filled(self.now, &scratch, len)?;
            bytes = &bytes[len..];
            self.flush();
        }
        Ok(())
    }

    /// Lengths of the slices that the host would receive into now.
    fn planned(&mut self) -> Vec<usize> {
        let mut scratch = vec![0; SCRATCH_LEN];
        let mut slices: [IoSliceMut<'_>; 21] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let used = self.host.poll_receive(&mut scratch, &mut slices);
        slices[..used].iter().map(|slice| slice.len()).collect()
    }

    fn submit(&mut self, sqe: Sqe, transfer: Transfer, payload: Vec<u8>) {
        self.host.submit(self.now, sqe, transfer, false, payload).unwrap();
        self.flush();
    }

    /// Submits a read of `len` bytes; returns its CID.
    fn read(&mut self, len: usize) -> u16 {
        let sqe = Sqe::read(0, Nsid(1), Lba(16), len as u32 / 512, len as u32);
        self.submit(sqe, Transfer::In, vec![CANARY; len]);
        self.sent_cid(0)
    }

    /// Submits a write of `len` bytes; returns its CID.
    fn write(&mut self, len: usize) -> u16 {
        let sqe = Sqe::write(0, Nsid(1), Lba(0), len as u32 / 512, Sgl::transport(0));
        self.submit(sqe, Transfer::Out, pattern(len));
        self.sent_cid(0)
    }

    /// The CID of the capsule just sent, which has `data_len` bytes of data; removes it from the sent bytes.
    fn sent_cid(&mut self, data_len: usize) -> u16 {
        let hd = self.form.header_digest_len(PduType::CapsuleCmd);
        let capsule = self.take_sent(72 + hd + data_len);
        assert_eq!(capsule[0], 0x04);
        u16::from_le_bytes([capsule[10], capsule[11]])
    }

    fn c2h(&self, cid: u16, datao: u32, data: &[u8], flags: u8) -> Vec<u8> {
        let mut out = Vec::new();
        let header = C2HData::new(cid, datao, data.len() as u32, flags, self.form);
        self.form.put(&mut out, &header);
        out.extend_from_slice(data);
        if header.ch.flags & FLAG_DDGST != 0 {
            out.extend_from_slice(&digest(data));
        }
        out
    }

    fn resp(&self, cid: u16, status: Status) -> Vec<u8> {
        let mut out = Vec::new();
        let cqe = zerocopy::transmute!(Cqe::new(cid, status));
        self.form.put(&mut out, &CapsuleResp::new(cqe, self.form));
        out
    }

    fn r2t(&self, cid: u16, ttag: u16, r2to: u32, r2tl: u32) -> Vec<u8> {
        let mut out = Vec::new();
        self.form.put(&mut out, &R2T::new(cid, ttag, r2to, r2tl, self.form));
        out
    }

    fn done(&mut self) -> (Vec<u8>, Result<Status, CommandError>) {
        match self.host.poll_event() {
            Some(Event::Done { payload, result }) => (payload, result.map(|cqe| cqe.status())),
            other => panic!("expected the end of a command, found {other:?}"),
        }
    }

    /// Asserts that the host refuses `bytes` with `error`, sends the matching termination request, stays
    /// failed, and returns every payload.
    fn refuses(mut self, bytes: &[u8], error: ProtocolError) {
        let held = self.host.outstanding();
        self.sent.clear();
        assert_eq!(self.give(bytes), Err(error));
        self.flush();
        match error.fatal_status() {
            Some((fes, fei)) => {
                assert_eq!((self.sent[0], self.sent.len() >= 32), (0x02, true));
                assert_eq!(self.sent[8..10], fes.to_le_bytes());
                assert_eq!(self.sent[10..14], fei.to_le_bytes());
            }
            None => assert!(self.sent.is_empty(), "sent {:?}", self.sent),
        }
        assert_eq!(self.host.handle_received(self.now, &[]), Err(error));
        assert!(!self.host.has_room());
        let back = self.host.abandon().len();
        let done = std::iter::from_fn(|| self.host.poll_event()).count();
        assert_eq!(back + done, held);
        assert_eq!(self.host.failed(), Some(error), "the first error stays");
    }
}

const CANARY: u8 = 0xC5;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn all_digests() -> impl Iterator<Item = Digests> {
    (0..4).map(Digests::from_bits)
}

#[test]
fn a_connect_with_both_digests_is_the_known_bytes() {
    let mut peer = Peer::new(BOTH);
    let hostid = std::array::from_fn(|i| i as u8 * 0x11);
    let data = ConnectData::new(
        hostid,
        ConnectData::CNTLID_DYNAMIC,
        &Nqn::new("nqn.2024-01.io.example:ds0").unwrap(),
        &Nqn::host_of_uuid(hostid),
    );
    peer.submit(Sqe::connect(0, 0, 31, 15_000), Transfer::Out, data.as_bytes().to_vec());
    let sent = peer.take_sent(1104);
    assert_eq!(sent[72..76], [0x35, 0xF3, 0x4C, 0x48]);
    assert_eq!(&sent[76..1100], data.as_bytes());
    assert_eq!(sent[1100..], [0xA1, 0x9C, 0x63, 0xC6]);
    assert!(peer.sent.is_empty());
}

#[test]
fn a_read_arrives_whole_however_it_is_cut_and_ended() {
    for digests in all_digests() {
        for (len, step) in [(512, 512), (4096, 1024), (128 << 10, 128 << 10), (96 << 10, 40 << 10)]
        {
            for cut in [1, 5, 4096, 100_000, usize::MAX] {
                for success_flag in [true, false] {
                    let mut peer = Peer::new(digests);
                    peer.cuts = vec![cut];
                    let cid = peer.read(len);
                    let data = pattern(len);
                    for start in (0..len).step_by(step) {
                        let end = (start + step).min(len);
                        let last =
                            if success_flag { FLAG_LAST_PDU | FLAG_SUCCESS } else { FLAG_LAST_PDU };
                        let flags = if end == len { last } else { 0 };
                        let bytes = peer.c2h(cid, start as u32, &data[start..end], flags);
                        peer.give(&bytes).unwrap();
                    }
                    if !success_flag {
                        assert!(peer.host.poll_event().is_none());
                        peer.give(&peer.resp(cid, Status::SUCCESS)).unwrap();
                    }
                    assert_eq!(peer.done(), (data, Ok(Status::SUCCESS)));
                    assert_eq!(peer.host.outstanding(), 0);
                }
            }
        }
    }
}

#[test]
fn reads_of_several_commands_may_interleave_and_end_in_any_order() {
    let mut peer = Peer::new(BOTH);
    let [a, b] = [1024, 1024].map(|len| peer.read(len));
    let data = pattern(1024);
    peer.give(&peer.c2h(b, 0, &data[..512], 0)).unwrap();
    peer.give(&peer.c2h(a, 0, &data[..512], 0)).unwrap();
    peer.give(&peer.c2h(b, 512, &data[512..], FLAG_LAST_PDU)).unwrap();
    peer.give(&peer.c2h(a, 512, &data[512..], FLAG_LAST_PDU)).unwrap();
    peer.give(&peer.resp(b, Status::SUCCESS)).unwrap();
    peer.give(&peer.resp(a, Status::UNRECOVERED_READ_ERROR)).unwrap();
    assert_eq!(peer.done().1, Ok(Status::SUCCESS));
    assert_eq!(peer.done().1, Ok(Status::UNRECOVERED_READ_ERROR));
}

#[test]
fn a_receive_is_aimed_at_the_payloads_that_should_come_next() {
    use super::receive::{SCRATCH_AMONG_BULK, SCRATCH_MIXED};
    const BULK: usize = 128 << 10; // two of them fill one iteration's budget
    let mut peer = Peer::new(NONE);
    assert_eq!(peer.planned(), [SCRATCH_LEN]);
    peer.read(512);
    assert_eq!(peer.planned(), [SCRATCH_LEN], "a copy of so little costs less");
    let mut peer = Peer::new(NONE);
    let [a, b] = [BULK, 4096].map(|len| peer.read(len));
    assert_eq!(peer.planned(), [24, BULK, 24, 4096, SCRATCH_AMONG_BULK]);
    let data = pattern(BULK);
    let bytes = peer.c2h(a, 0, &data, FLAG_LAST_PDU | FLAG_SUCCESS);
    peer.give(&bytes[..124]).unwrap();
    assert_eq!(peer.planned(), [BULK - 100, 24, 4096, SCRATCH_AMONG_BULK]);
    peer.give(&bytes[124..]).unwrap();
    peer.give(&peer.c2h(b, 0, &data[..4096], FLAG_LAST_PDU | FLAG_SUCCESS)).unwrap();
    assert_eq!(peer.done().0, data);
    assert_eq!(peer.done().0, data[..4096]);

    // After a wrong guess, announced data still go straight to their payload, but there is no guessing.
    let mut peer = Peer::new(BOTH);
    let [a, b, c] = [BULK, BULK, 4096].map(|len| peer.read(len));
    assert_eq!(peer.planned(), [28, BULK, 32, BULK, SCRATCH_AMONG_BULK + 4]);
    peer.give(&peer.c2h(c, 0, &data[..4096], FLAG_LAST_PDU | FLAG_SUCCESS)).unwrap();
    assert_eq!(peer.planned(), [SCRATCH_AMONG_BULK]);
    let bytes = peer.c2h(b, 0, &data, FLAG_LAST_PDU | FLAG_SUCCESS);
    peer.give(&bytes[..128]).unwrap();
    assert_eq!(peer.planned(), [BULK - 100, SCRATCH_AMONG_BULK + 4]);
    peer.give(&bytes[128..]).unwrap();
    peer.read(512);
    assert_eq!(peer.planned(), [SCRATCH_MIXED]);
    peer.give(&peer.resp(a, Status::INTERNAL_ERROR)).unwrap();
    assert_eq!(peer.done(), (data[..4096].to_vec(), Ok(Status::SUCCESS)));
    assert_eq!(peer.done(), (data, Ok(Status::SUCCESS)));
    assert_eq!(peer.done().1, Ok(Status::INTERNAL_ERROR));
    // The pause ends.
    for _ in 0..8 {
        peer.planned();
    }
    peer.read(4096);
    assert_eq!(peer.planned()[0], SCRATCH_LEN, "the read of 512 bytes comes first");
}

#[test]
fn a_receive_that_targets_as_many_payloads_as_it_may_leaves_the_others_to_the_next() {
    use super::receive::SCRATCH_AMONG_BULK;
    const LEN: usize = 4096;
    let mut peer = Peer::new(NONE);
    let cids: Vec<u16> = (0..8).map(|_| peer.read(LEN)).collect();
    let planned = peer.planned();
    let (targeted, tail) = planned.split_at(planned.len() - 1);
    let num_targeted = targeted.len() / 2;
    assert!((1..8).contains(&num_targeted), "{planned:?}");
    assert_eq!(targeted, [24, LEN].repeat(num_targeted));
    // Room for the next header, but not for another payload, which would be copied.
    assert_eq!(tail, [SCRATCH_AMONG_BULK]);
    let answer = |cid: &u16| peer.c2h(*cid, 0, &pattern(LEN), FLAG_LAST_PDU | FLAG_SUCCESS);
    let stream = cids.iter().map(answer).collect::<Vec<_>>().concat();
    let first = (24 + LEN) * num_targeted;
    peer.give(&stream[..first]).unwrap();
    assert_eq!(peer.planned()[..2], [24, LEN], "the next one is targeted as well");
    peer.give(&stream[first..]).unwrap();
    for _ in cids {
        assert_eq!(peer.done(), (pattern(LEN), Ok(Status::SUCCESS)));
    }
}

#[test]
fn a_plan_grows_while_receives_fill_it_and_shrinks_when_they_do_not() {
    let mut peer = Peer::new(NONE);
    let mut fed = 0;
    let mut plans = Vec::new();
    for round in 0..100 {
        let cids: Vec<u16> = (0..8).map(|_| peer.read(4096)).collect();
        plans.push(peer.planned().len());
        let stream: Vec<Vec<u8>> = cids
            .iter()
            .map(|cid| peer.c2h(*cid, 0, &pattern(4096), FLAG_LAST_PDU | FLAG_SUCCESS))
            .collect();
        peer.cuts = vec![if round < 50 { usize::MAX } else { 100 }];
        peer.give(&stream.concat()).unwrap();
        while peer.host.outstanding() < 8 && peer.host.poll_event().is_some() {
            fed += 1;
        }
    }
    assert_eq!(fed, 800);
    assert_eq!((plans[49], plans[99]), (17, 9), "{plans:?}");
}

#[test]
fn answers_out_of_order_are_assigned_correctly_whatever_was_guessed() {
    let data = pattern(64 << 10);
    for cut in [1, 100, 5000, 70_000, usize::MAX] {
        for digests in [NONE, BOTH] {
            let mut peer = Peer::new(digests);
            peer.cuts = vec![cut];
            let cids: Vec<u16> = (0..5).map(|i| peer.read(4096 * (i + 1))).collect();
            let mut stream = peer.c2h(cids[0], 0, &data[..4096], FLAG_LAST_PDU | FLAG_SUCCESS);
            stream.extend(peer.resp(cids[3], Status::INTERNAL_ERROR)); // its payload was a target of the guess
            for i in [4, 1, 2] {
                let len = 4096 * (i + 1);
                let bytes = peer.c2h(cids[i], 0, &data[..len], FLAG_LAST_PDU | FLAG_SUCCESS);
                stream.extend(bytes);
            }
            peer.give(&stream).unwrap();
            for i in [0, 3, 4, 1, 2] {
                let (payload, result) = peer.done();
                assert_eq!(payload.len(), 4096 * (i + 1), "cut {cut}");
                match i {
                    3 => assert_eq!(result, Ok(Status::INTERNAL_ERROR)),
                    _ => assert!(payload == data[..payload.len()] && result.is_ok(), "cut {cut}"),
                }
            }
        }
    }
}

#[test]
fn a_read_that_never_ends_does_not_make_the_list_of_reads_grow() {
    let mut peer = Peer::new(NONE);
    peer.read(4096);
    for _ in 0..1000 {
        let cid = peer.read(4096);
        peer.give(&peer.c2h(cid, 0, &pattern(4096), FLAG_LAST_PDU | FLAG_SUCCESS)).unwrap();
        assert!(peer.done().1.is_ok());
    }
    assert!(peer.host.slots.num_remembered_reads() <= 16);
}

#[test]
fn a_write_goes_out_as_the_r2ts_ask_in_pdus_of_at_most_maxh2cdata() {
    for digests in all_digests() {
        for cpda in [0, 1, 31] {
            let mut peer = Peer::with_ic_resp(digests, |resp| {
                resp.maxh2cdata = 4096.into();
                resp.cpda = cpda;
            });
            let cid = peer.write(12_288);
            let data = pattern(12_288);
            let form = Form { digests, pda: cpda };
            let expect = |start: usize, end: usize, ttag, last| {
                let mut out = Vec::new();
                let len = (end - start) as u32;
                form.put(&mut out, &H2CData::new(cid, ttag, start as u32, len, last, form));
                out.extend_from_slice(&data[start..end]);
                if digests.data {
                    out.extend_from_slice(&digest(&data[start..end]));
                }
                out
            };
            peer.give(&peer.r2t(cid, 0xFFFF, 0, 8192)).unwrap();
            let expected = [expect(0, 4096, 0xFFFF, false), expect(4096, 8192, 0xFFFF, true)];
            assert_eq!(peer.take_sent(peer.sent.len()), expected.concat());
            peer.give(&peer.r2t(cid, 3, 8192, 4096)).unwrap();
            assert_eq!(peer.take_sent(peer.sent.len()), expect(8192, 12_288, 3, true));
            peer.give(&peer.resp(cid, Status::SUCCESS)).unwrap();
            assert_eq!(peer.done(), (data.clone(), Ok(Status::SUCCESS)));
        }
    }
}

#[test]
fn data_up_to_the_limit_go_in_the_capsule() {
    let mut peer = Peer::new(NONE);
    peer.host.set_max_in_capsule(4096);
    peer.submit(Sqe::write(0, Nsid(1), Lba(0), 8, Sgl::transport(0)), Transfer::Out, pattern(4096));
    let sent = peer.take_sent(72 + 4096);
    assert_eq!((sent[3], &sent[4..8]), (72, &4168u32.to_le_bytes()[..]));
    assert_eq!(sent[8 + 24..8 + 40], *Sgl::in_capsule(4096).as_bytes());
    assert_eq!(sent[72..], pattern(4096));
    peer.submit(Sqe::write(0, Nsid(1), Lba(0), 9, Sgl::transport(0)), Transfer::Out, pattern(4608));
    let sent = peer.take_sent(72);
    assert_eq!(sent[8 + 24..8 + 40], *Sgl::transport(4608).as_bytes());
    assert!(peer.sent.is_empty());
}

#[test]
fn a_payload_is_released_only_when_it_is_sent_as_well_as_answered() {
    let mut peer = Peer::new(NONE);
    let cid = peer.write(8192);
    let now = peer.now;
    let r2t = peer.r2t(cid, 1, 0, 8192);
    peer.host.handle_received(now, &r2t).unwrap();
    let resp = peer.resp(cid, Status::INTERNAL_ERROR);
    peer.host.handle_received(now, &resp).unwrap();
    assert!(peer.host.poll_event().is_none());
    assert_eq!(
        peer.host
            .handle_received(now, &resp)
            .map_err(|e| matches!(e, ProtocolError::UnknownCid { .. })),
        Err(true)
    );
    let mut peer = Peer::new(NONE);
    let cid = peer.write(8192);
    let r2t = peer.r2t(cid, 1, 0, 8192);
    peer.host.handle_received(now, &r2t).unwrap();
    let resp = peer.resp(cid, Status::INTERNAL_ERROR);
    peer.host.handle_received(now, &resp).unwrap();
    peer.flush();
    assert_eq!(peer.done().1, Ok(Status::INTERNAL_ERROR));
}

#[test]
fn a_cid_is_not_used_again_with_the_same_generation() {
    let mut peer = Peer::new(NONE);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..16 {
        let cid = peer.read(512);
        assert!(seen.insert(cid), "CID {cid:04X}");
        assert_ne!(cid, 0xFFFF);
        peer.give(&peer.c2h(cid, 0, &[0; 512], FLAG_LAST_PDU | FLAG_SUCCESS)).unwrap();
        assert_eq!(peer.done().1, Ok(Status::SUCCESS));
    }
    let old = *seen.iter().max().unwrap();
    let cid = peer.read(512);
    assert_ne!(cid, old);
    let late = peer.c2h(old, 0, &[0; 512], FLAG_LAST_PDU | FLAG_SUCCESS);
    peer.refuses(&late, ProtocolError::UnknownCid { pdu_type: PduType::C2HData, cid: old });
}

#[test]
fn room_for_commands_is_the_queue_depth_and_returns() {
    let mut peer = Peer::new(NONE);
    let cids: Vec<u16> = (0..8).map(|_| peer.read(512)).collect();
    assert!(!peer.host.has_room());
    let sqe = Sqe::read(0, Nsid(1), Lba(0), 1, 512);
    assert!(peer.host.submit(peer.now, sqe, Transfer::In, false, vec![0; 512]).is_err());
    peer.give(&peer.resp(cids[3], Status::INTERNAL_ERROR)).unwrap();
    assert!(peer.host.has_room());
    assert_eq!(peer.host.outstanding(), 7);
}

#[test]
fn nothing_can_be_submitted_before_ic_resp() {
    let mut peer = Peer::unanswered(NONE);
    let sqe = Sqe::identify(0, cns::CONTROLLER, Nsid(0));
    assert!(peer.host.submit(peer.now, sqe, Transfer::In, false, vec![0; 4096]).is_err());
    assert!(!peer.host.has_room());
}

#[test]
fn every_invalid_ic_resp_is_refused() {
    let unsupported = |offset, value| ProtocolError::UnsupportedParameter { offset, value };
    let check = |digests, edit: &dyn Fn(&mut IcResp), error: Option<ProtocolError>| {
        let peer = Peer::unanswered(digests);
        let mut resp = IcResp::new(digests, 131_072);
        edit(&mut resp);
        match error {
            Some(error) => peer.refuses(resp.as_bytes(), error),
            None => {
                let mut peer = peer;
                peer.give(resp.as_bytes()).unwrap();
            }
        }
    };
    for pfv in [1u16, 0x100, 0xFFFF] {
        check(NONE, &|resp| resp.pfv = pfv.into(), Some(unsupported(8, pfv.into())));
    }
    for cpda in 0..=255u8 {
        let error = (cpda > 31).then(|| unsupported(10, cpda.into()));
        check(NONE, &|resp| resp.cpda = cpda, error);
    }
    for max in [0u32, 4092, 4095, 4097, 4098, u32::MAX] {
        check(NONE, &|resp| resp.maxh2cdata = max.into(), Some(unsupported(12, max)));
    }
    for max in [4096u32, 4100, u32::MAX - 3] {
        check(NONE, &|resp| resp.maxh2cdata = max.into(), None);
    }
    for asked in all_digests() {
        for answered in 0..4u8 {
            let extra = answered & !asked.to_bits() != 0;
            let declined = asked.to_bits() & !answered != 0;
            let error = match (extra, declined) {
                (true, _) => Some(unsupported(11, answered.into())),
                (false, true) => Some(ProtocolError::DigestDeclined),
                (false, false) => None,
            };
            check(asked, &|resp| resp.dgst = answered, error);
        }
    }
}

#[test]
fn a_second_ic_resp_and_anything_before_the_first_are_out_of_sequence() {
    let peer = Peer::new(NONE);
    let again = IcResp::new(NONE, 131_072);
    peer.refuses(again.as_bytes(), ProtocolError::Sequence { pdu_type: 1 });
    let peer = Peer::unanswered(NONE);
    let resp = peer.resp(0, Status::SUCCESS);
    peer.refuses(&resp, ProtocolError::Sequence { pdu_type: 5 });
}

#[test]
fn every_answer_to_a_command_that_is_not_outstanding_is_refused() {
    let unknown = |pdu_type, cid| ProtocolError::UnknownCid { pdu_type, cid };
    for cid in [1, 7, 8, 0x0FFE, 0x0FFF, 0x1000, 0xF000, 0xFFFF] {
        for digests in [NONE, BOTH] {
            let prepared = || {
                let mut peer = Peer::new(digests);
                assert_eq!(peer.read(512), 0);
                peer
            };
            let peer = prepared();
            let bytes = peer.resp(cid, Status::SUCCESS);
            peer.refuses(&bytes, unknown(PduType::CapsuleResp, cid));
            let peer = prepared();
            let bytes = peer.c2h(cid, 0, &[0; 512], FLAG_LAST_PDU);
            peer.refuses(&bytes, unknown(PduType::C2HData, cid));
            let peer = prepared();
            let bytes = peer.r2t(cid, 0, 0, 512);
            peer.refuses(&bytes, unknown(PduType::R2T, cid));
        }
    }
}

#[test]
fn data_for_a_write_or_a_command_without_data_and_an_r2t_for_a_read_are_refused() {
    let unknown = |pdu_type, cid| ProtocolError::UnknownCid { pdu_type, cid };
    let mut peer = Peer::new(NONE);
    let cid = peer.write(512);
    let bytes = peer.c2h(cid, 0, &[0; 512], FLAG_LAST_PDU | FLAG_SUCCESS);
    peer.refuses(&bytes, unknown(PduType::C2HData, cid));

    let mut peer = Peer::new(NONE);
    peer.submit(Sqe::flush(0, Nsid(1)), Transfer::None, vec![CANARY; 512]);
    let cid = peer.sent_cid(0);
    let bytes = peer.c2h(cid, 0, &[0; 512], FLAG_LAST_PDU);
    peer.refuses(&bytes, unknown(PduType::C2HData, cid));

    // No byte of a read's buffer may leave the host: `refuses` sees only the termination request.
    let mut peer = Peer::new(NONE);
    let cid = peer.read(512);
    let bytes = peer.r2t(cid, 0, 0, 512);
    peer.refuses(&bytes, unknown(PduType::R2T, cid));

    let mut peer = Peer::new(NONE);
    peer.host.set_max_in_capsule(512);
    peer.submit(Sqe::write(0, Nsid(1), Lba(0), 1, Sgl::transport(0)), Transfer::Out, pattern(512));
    let cid = peer.sent_cid(512);
    let bytes = peer.r2t(cid, 0, 0, 512);
    peer.refuses(&bytes, unknown(PduType::R2T, cid));
}

#[test]
fn data_at_a_wrong_place_are_refused_before_a_byte_is_stored() {
    const PDU: PduType = PduType::C2HData;
    type Case = (u32, usize, u8, fn(u16) -> ProtocolError);
    let cases: [Case; 7] = [
        (512, 512, FLAG_LAST_PDU, |cid| ProtocolError::OutOfOrder {
            pdu_type: PDU,
            cid,
            expected: 0,
            found: 512,
        }),
        (u32::MAX, 512, FLAG_LAST_PDU, |cid| ProtocolError::OutOfOrder {
            pdu_type: PDU,
            cid,
            expected: 0,
            found: u32::MAX,
        }),
        (0, 1536, FLAG_LAST_PDU, |cid| ProtocolError::OutOfRange {
            pdu_type: PDU,
            cid,
            end: 1536,
            len: 1024,
        }),
        (0, 1024, 0, |cid| ProtocolError::LastPdu { pdu_type: PDU, cid }),
        (0, 512, FLAG_LAST_PDU, |cid| ProtocolError::LastPdu { pdu_type: PDU, cid }),
        (0, 1024, FLAG_SUCCESS, |cid| ProtocolError::LastPdu { pdu_type: PDU, cid }),
        (0, 512, FLAG_SUCCESS, |cid| ProtocolError::LastPdu { pdu_type: PDU, cid }),
    ];
    for (datao, len, flags, error) in cases {
        let mut peer = Peer::new(NONE);
        let cid = peer.read(1024);
        let bytes = peer.c2h(cid, datao, &vec![0; len], flags);
        let now = peer.now;
        assert_eq!(peer.host.handle_received(now, &bytes), Err(error(cid)));
        let back = peer.host.abandon();
        assert_eq!(back, [vec![CANARY; 1024]]);
    }
    // After the first half: overlapping data, earlier data, and all data again.
    for (datao, len) in [(256, 768), (0, 512), (0, 1024), (1024, 512)] {
        let mut peer = Peer::new(NONE);
        let cid = peer.read(1024);
        peer.give(&peer.c2h(cid, 0, &[0; 512], 0)).unwrap();
        let bytes = peer.c2h(cid, datao, &vec![0; len], 0);
        peer.refuses(
            &bytes,
            ProtocolError::OutOfOrder { pdu_type: PDU, cid, expected: 512, found: datao },
        );
    }
    // Data past the end.
    let mut peer = Peer::new(NONE);
    let cid = peer.read(512);
    peer.give(&peer.c2h(cid, 0, &[0; 512], FLAG_LAST_PDU)).unwrap();
    let bytes = peer.c2h(cid, 512, &[0; 4], FLAG_LAST_PDU);
    peer.refuses(&bytes, ProtocolError::OutOfRange { pdu_type: PDU, cid, end: 516, len: 512 });
}

#[test]
fn success_with_fewer_bytes_of_every_length_fails_the_read_and_the_connection() {
    for digests in [NONE, BOTH] {
        for found in 0..4096u32 {
            for success_flag in [true, false] {
                let mut peer = Peer::new(digests);
                let cid = peer.read(4096);
                let data = vec![0; found as usize];
                let mut bytes = Vec::new();
                if success_flag && found > 0 {
                    bytes = peer.c2h(cid, 0, &data, FLAG_LAST_PDU | FLAG_SUCCESS);
                } else {
                    if found > 0 {
                        bytes = peer.c2h(cid, 0, &data, 0);
                    }
                    bytes.extend(peer.resp(cid, Status::SUCCESS));
                }
                let error = ProtocolError::ShortTransfer { cid, expected: 4096, found };
                assert_eq!(peer.give(&bytes), Err(error));
                let short = CommandError::Short { expected: 4096, found };
                assert_eq!(peer.done().1, Err(short));
            }
        }
    }
}

#[test]
fn success_of_a_write_before_all_its_data_is_a_short_transfer() {
    for asked in [0, 512] {
        let mut peer = Peer::new(NONE);
        let cid = peer.write(1024);
        if asked > 0 {
            peer.give(&peer.r2t(cid, 0, 0, asked)).unwrap();
        }
        let error = ProtocolError::ShortTransfer { cid, expected: 1024, found: asked };
        assert_eq!(peer.give(&peer.resp(cid, Status::SUCCESS)), Err(error));
        assert_eq!(peer.done().1, Err(CommandError::Short { expected: 1024, found: asked }));
    }
}

#[test]
fn a_command_is_completed_once() {
    for first_flags in [FLAG_LAST_PDU | FLAG_SUCCESS, FLAG_LAST_PDU] {
        let mut peer = Peer::new(NONE);
        let cid = peer.read(512);
        peer.give(&peer.c2h(cid, 0, &[0; 512], first_flags)).unwrap();
        if first_flags & FLAG_SUCCESS == 0 {
            peer.give(&peer.resp(cid, Status::SUCCESS)).unwrap();
        }
        assert_eq!(peer.done().1, Ok(Status::SUCCESS));
        let again = peer.resp(cid, Status::SUCCESS);
        peer.refuses(&again, ProtocolError::UnknownCid { pdu_type: PduType::CapsuleResp, cid });
    }
}

#[test]
fn r2ts_at_a_wrong_place_of_no_length_or_too_many_send_nothing() {
    const PDU: PduType = PduType::R2T;
    type Case = (u32, u32, fn(u16) -> ProtocolError);
    let cases: [Case; 6] = [
        (0, 0, |cid| ProtocolError::NoData { pdu_type: PDU, cid }),
        (512, 512, |cid| ProtocolError::OutOfOrder { pdu_type: PDU, cid, expected: 0, found: 512 }),
        (u32::MAX, 2, |cid| ProtocolError::OutOfOrder {
            pdu_type: PDU,
            cid,
            expected: 0,
            found: u32::MAX,
        }),
        (0, 1028, |cid| ProtocolError::OutOfRange { pdu_type: PDU, cid, end: 1028, len: 1024 }),
        (0, u32::MAX, |cid| ProtocolError::OutOfRange {
            pdu_type: PDU,
            cid,
            end: u32::MAX.into(),
            len: 1024,
        }),
        (u32::MAX, u32::MAX, |cid| ProtocolError::OutOfOrder {
            pdu_type: PDU,
            cid,
            expected: 0,
            found: u32::MAX,
        }),
    ];
    for (r2to, r2tl, error) in cases {
        let mut peer = Peer::new(NONE);
        let cid = peer.write(1024);
        let bytes = peer.r2t(cid, 0, r2to, r2tl);
        peer.refuses(&bytes, error(cid));
    }
    let mut peer = Peer::new(NONE);
    let cid = peer.write(1024);
    let two = [peer.r2t(cid, 0, 0, 512), peer.r2t(cid, 1, 512, 512)].concat();
    peer.refuses(&two, ProtocolError::TooManyR2ts { cid });
    let mut peer = Peer::new(NONE);
    let cid = peer.write(1024);
    peer.give(&peer.r2t(cid, 0, 0, 1024)).unwrap();
    let more = peer.r2t(cid, 0, 1024, 4);
    peer.refuses(&more, ProtocolError::OutOfRange { pdu_type: PDU, cid, end: 1028, len: 1024 });
}

#[test]
fn every_status_word_reaches_the_caller_unchanged() {
    for word in (0..=u16::MAX).step_by(2) {
        let mut peer = Peer::new(NONE);
        peer.submit(Sqe::flush(0, Nsid(1)), Transfer::None, Vec::new());
        let cid = peer.sent_cid(0);
        let mut bytes = peer.resp(cid, Status::SUCCESS);
        bytes[22..24].copy_from_slice(&word.to_le_bytes());
        bytes[16..18].copy_from_slice(&word.to_be_bytes()); // SQHD has no meaning
        peer.give(&bytes).unwrap();
        assert_eq!(peer.done().1, Ok(Status::from_wire(word)));
    }
}

#[test]
fn every_termination_request_ends_the_connection_and_is_not_answered() {
    for fes in (0..=u16::MAX).step_by(97) {
        for echo in [0, 8, 24, 128] {
            let peer = Peer::new(BOTH);
            let mut bytes = Vec::new();
            pdu::put_term_req(&mut bytes, false, fes, 7, &vec![0; echo]);
            peer.refuses(&bytes, ProtocolError::Terminated { fes, fei: 7 });
        }
    }
    let peer = Peer::unanswered(NONE);
    let mut bytes = Vec::new();
    pdu::put_term_req(&mut bytes, false, 6, 8, &[0; 128]);
    peer.refuses(&bytes, ProtocolError::Terminated { fes: 6, fei: 8 });
}

#[test]
fn a_wrong_data_digest_in_any_pdu_fails_that_read_alone() {
    for damaged in 0..3 {
        for flags in [FLAG_LAST_PDU, FLAG_LAST_PDU | FLAG_SUCCESS] {
            let mut peer = Peer::new(BOTH);
            let [cid, other] = [1536, 512].map(|len| peer.read(len));
            for part in 0..3 {
                let flags = if part == 2 { flags } else { 0 };
                let mut bytes = peer.c2h(cid, part * 512, &[part as u8; 512], flags);
                let end = bytes.len();
                if part == damaged {
                    bytes[end - 5] ^= 0x10;
                }
                peer.give(&bytes).unwrap();
            }
            if flags & FLAG_SUCCESS == 0 {
                peer.give(&peer.resp(cid, Status::SUCCESS)).unwrap();
            }
            assert_eq!(peer.done().1, Err(CommandError::DataDigest));
            peer.give(&peer.c2h(other, 0, &[1; 512], FLAG_LAST_PDU | FLAG_SUCCESS)).unwrap();
            assert_eq!(peer.done(), (vec![1; 512], Ok(Status::SUCCESS)));
        }
    }
}

#[test]
fn a_termination_request_never_lands_in_the_middle_of_a_pdu() {
    let mut peer = Peer::new(NONE);
    let cid = peer.write(8192);
    let now = peer.now;
    let r2t = peer.r2t(cid, 0, 0, 8192);
    peer.host.handle_received(now, &r2t).unwrap();
    peer.host.transmitted(now, 100); // the header and 76 bytes of data
    let bad = peer.r2t(cid, 0, 0, 0);
    assert!(peer.host.handle_received(now, &bad).is_err());
    assert!(!peer.host.wants_transmit());
}

#[test]
fn a_stalled_command_times_out_unless_it_has_no_timeout() {
    let second = Duration::from_secs(1);
    let mut peer = Peer::unanswered(NONE);
    assert_eq!(peer.host.poll_timeout(), Some(peer.now + 10 * second));
    assert_eq!(peer.host.handle_timeout(peer.now + 9 * second), Ok(()));
    let late = peer.host.handle_timeout(peer.now + 10 * second);
    assert_eq!(late, Err(ProtocolError::TimedOut("ICResp")));
    assert!(!peer.host.wants_transmit());

    let mut peer = Peer::new(NONE);
    assert_eq!(peer.host.poll_timeout(), None);
    let aer = Sqe::async_event_request(0);
    peer.host.submit(peer.now, aer, Transfer::None, true, Vec::new()).unwrap();
    assert_eq!(peer.host.poll_timeout(), None);
    peer.flush();
    peer.sent.clear();
    peer.now += 100 * second;
    let cid = peer.read(1024);
    let other = peer.read(128 << 10);
    assert_eq!(peer.host.poll_timeout(), Some(peer.now + 5 * second));
    peer.now += 4 * second;
    peer.give(&peer.c2h(other, 0, &[0; 64 << 10], 0)).unwrap();
    assert_eq!(peer.host.poll_timeout(), Some(peer.now + 5 * second), "64 KiB are progress");
    // No progress: a few bytes, a header that never ends, a few bytes in a PDU of their own.
    peer.now += 4 * second;
    peer.give(&peer.c2h(cid, 0, &[0; 512], 0)).unwrap();
    peer.give(&[7, 0, 24]).unwrap();
    let late = peer.host.handle_timeout(peer.now + second);
    assert!(matches!(late, Err(ProtocolError::TimedOut(_))));
    assert_eq!(peer.host.abandon().len(), 3);
}

#[test]
fn a_write_is_an_nvm_write_with_the_flags_of_fabrics() {
    let mut peer = Peer::new(NONE);
    let sqe = Sqe::write(0, Nsid(1), Lba(0), 1, Sgl::transport(0));
    peer.submit(sqe, Transfer::Out, pattern(512));
    let sent = peer.take_sent(72);
    assert_eq!(sent[8..10], [nvm::WRITE, 0x40]);
}
