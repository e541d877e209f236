//! A host made of a plain socket: it sends any bytes that a test wants, in any order, valid or not.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use dlfs::nvme::sqe::feature;
use dlfs::nvme::{Cc, ConnectData, Cqe, Nqn, Property, Sqe, Status};
use dlfs::tcp::Digests;
use dlfs::tcp::deframer::{Deframer, Event, Pdu, Role};
use dlfs::tcp::pdu::{CapsuleCmd, FLAG_LAST_PDU, FLAG_SUCCESS, Form, H2CData, IcReq, R2T};
use socket2::{Domain, Socket, Type};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// A plain socket that speaks as much NVMe/TCP as a test needs.
pub struct RawHost {
    pub stream: TcpStream,
    pub form: Form,
    pub hostnqn: Nqn,
    pub subnqn: Nqn,
    pub hostid: [u8; 16],
    deframer: Deframer,
    input: Vec<u8>,
    /// Bytes of `input` that were consumed.
    used: usize,
    next_cid: u16,
}

/// A PDU from a target, or the end of the connection.
#[derive(Debug, PartialEq)]
pub enum Reply {
    /// Data for a command; `last` and `success` are its flags.
    Data {
        cid: u16,
        offset: u32,
        bytes: Vec<u8>,
        last: bool,
        success: bool,
        digest_ok: bool,
    },
    Resp(Cqe),
    R2t {
        cid: u16,
        ttag: u16,
        offset: u32,
        len: u32,
    },
    Term {
        fes: u16,
        fei: u32,
    },
    Closed,
}

/// How long a reply may take.
const LIMIT: Duration = Duration::from_secs(60);

impl RawHost {
    /// Opens a TCP connection, and nothing else.
    pub fn open(target: SocketAddr, subnqn: &Nqn) -> RawHost {
        RawHost::over(TcpStream::connect(target).unwrap(), subnqn)
    }

    /// Opens a TCP connection from another local address, of which 127.0.0.0/8 has many.
    pub fn open_from(last_octet: u8, target: SocketAddr, subnqn: &Nqn) -> RawHost {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, last_octet], 0)).into()).unwrap();
        socket.connect(&target.into()).unwrap();
        RawHost::over(socket.into(), subnqn)
    }

    /// Uses an existing connection.
    pub fn over(stream: TcpStream, subnqn: &Nqn) -> RawHost {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        RawHost {
            stream,
            form: Form::default(),
            hostnqn: Nqn::new("nqn.2026-11.io.dlfs:raw-host").unwrap(),
            subnqn: subnqn.clone(),
            hostid: [7; 16],
            deframer: Deframer::new(Role::Host, 0, u32::MAX - 1024),
            input: Vec::new(),
            used: 0,
            next_cid: 0x4000,
        }
    }

    /// A connection that has exchanged ICReq and ICResp.
    pub fn initialised(target: SocketAddr, subnqn: &Nqn, digests: Digests) -> RawHost {
        let mut host = RawHost::open(target, subnqn);
        host.initialise(digests);
        host
    }

    /// A connected and enabled admin queue, and the controller's identifier.
    pub fn admin(target: SocketAddr, subnqn: &Nqn, digests: Digests) -> (RawHost, u16) {
        let mut host = RawHost::initialised(target, subnqn, digests);
        let cqe = host.connect(0, 31, ConnectData::CNTLID_DYNAMIC);
        assert!(cqe.status().is_success(), "{}", cqe.status());
        let set = Sqe::property_set(0, Property::Cc, u64::from(Cc::ENABLE.0));
        assert!(host.call(set, &[]).0.status().is_success());
        (host, cqe.dw0.get() as u16)
    }

    /// An admin queue and `N` I/O queues of one controller.
    pub fn with_queues<const N: usize>(
        target: SocketAddr,
        subnqn: &Nqn,
        digests: Digests,
    ) -> (RawHost, [RawHost; N]) {
        let (mut admin, cntlid) = RawHost::admin(target, subnqn, digests);
        let set = Sqe::set_num_queues(0, N as u16);
        assert!(
            admin.call(set, &[]).0.status().is_success(),
            "feature {}",
            feature::NUMBER_OF_QUEUES
        );
        let queues = std::array::from_fn(|i| {
            let mut host = RawHost::initialised(target, subnqn, digests);
            let cqe = host.connect(i as u16 + 1, 127, cntlid);
            assert!(cqe.status().is_success(), "{}", cqe.status());
            host
        });
        (admin, queues)
    }

    pub fn initialise(&mut self, digests: Digests) {
        self.send(IcReq::new(digests).as_bytes());
        let resp = self.read_exact(128);
        assert_eq!(
            (resp[0], resp[11]),
            (0x01, digests.to_bits()),
            "ICResp with the digests asked for"
        );
        self.form = Form { digests, pda: 0 };
        // The deframer must also process the ICResp.
        assert!(matches!(self.deframer.next(&mut &resp[..]), Ok(Some(Event::Header { .. }))));
        self.deframer.initialised(self.form);
    }

    pub fn connect(&mut self, qid: u16, sqsize: u16, cntlid: u16) -> Cqe {
        let data = ConnectData::new(self.hostid, cntlid, &self.subnqn, &self.hostnqn);
        self.call(Sqe::connect(0, qid, sqsize, 0), data.as_bytes()).0
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends bytes when the target may have closed the connection already.
    pub fn try_send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes); // may fail: the test checks the replies
    }

    /// The bytes of a valid capsule.
    pub fn capsule(&self, sqe: &Sqe, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let entry: [u8; 64] = sqe.as_bytes().try_into().unwrap();
        self.form.put(&mut bytes, &CapsuleCmd::new(entry, data.len() as u32, self.form));
        bytes.extend_from_slice(data);
        if self.form.digests.data && !data.is_empty() {
            bytes.extend_from_slice(&dlfs::tcp::pdu::digest(data));
        }
        bytes
    }

    /// The bytes of a valid H2CData.
    pub fn h2c_data(&self, cid: u16, ttag: u16, offset: u32, data: &[u8], last: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.form
            .put(&mut bytes, &H2CData::new(cid, ttag, offset, data.len() as u32, last, self.form));
        bytes.extend_from_slice(data);
        if self.form.digests.data {
            bytes.extend_from_slice(&dlfs::tcp::pdu::digest(data));
        }
        bytes
    }

    /// Sends a command with `data` in its capsule; returns its new CID.
    pub fn start(&mut self, mut sqe: Sqe, data: &[u8]) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        sqe.cid.set(self.next_cid);
        let capsule = self.capsule(&sqe, data);
        self.send(&capsule);
        self.next_cid
    }

    /// Sends a command and waits for its completion; `data` go in the capsule, R2Ts are not
    /// answered. Returns the completion, made up if a SUCCESS flag replaces it, and the data read.
    pub fn call(&mut self, sqe: Sqe, data: &[u8]) -> (Cqe, Vec<u8>) {
        let cid = self.start(sqe, data);
        let mut read = Vec::new();
        loop {
            match self.receive() {
                Reply::Resp(cqe) if cqe.cid.get() == cid => return (cqe, read),
                Reply::Data { cid: of, offset, bytes, success, digest_ok, .. } if of == cid => {
                    assert!(digest_ok && offset as usize == read.len());
                    read.extend_from_slice(&bytes);
                    if success {
                        return (Cqe::new(cid, Status::SUCCESS), read);
                    }
                }
                other => panic!("{other:?} while waiting for CID {cid:04x}"),
            }
        }
    }

    /// The next reply of the target; [`Reply::Closed`] if the connection ends.
    pub fn receive(&mut self) -> Reply {
        let mut data: Option<(dlfs::tcp::pdu::C2HData, Vec<u8>)> = None;
        loop {
            let mut rest = &self.input[self.used..];
            let before = rest.len();
            let event = self.deframer.next(&mut rest).expect("the target keeps to the protocol");
            let used = before - rest.len();
            let reply = match event {
                Some(Event::Header { pdu, data_len }) => match pdu {
                    Pdu::CapsuleResp(resp) => {
                        Some(Reply::Resp(Cqe::read_from_bytes(&resp.cqe).unwrap()))
                    }
                    Pdu::R2T(R2T { cccid, ttag, r2to, r2tl, .. }) => {
                        let cid = cccid.get();
                        let ttag = ttag.get();
                        let offset = r2to.get();
                        let len = r2tl.get();
                        Some(Reply::R2t { cid, ttag, offset, len })
                    }
                    Pdu::TermReq(term) => {
                        Some(Reply::Term { fes: term.fes.get(), fei: term.fei.get() })
                    }
                    Pdu::C2HData(header) => {
                        data = Some((header, Vec::with_capacity(data_len as usize)));
                        None
                    }
                    other => panic!("a target never sends {other:?}"),
                },
                Some(Event::Data(bytes)) => {
                    data.as_mut().expect("data follow a header").1.extend_from_slice(bytes);
                    None
                }
                Some(Event::DataEnd { digest_ok }) => {
                    let (header, bytes) = data.take().expect("data end after they began");
                    let last = header.ch.flags & FLAG_LAST_PDU != 0;
                    let success = header.ch.flags & FLAG_SUCCESS != 0;
                    let cid = header.cccid.get();
                    let offset = header.datao.get();
                    Some(Reply::Data { cid, offset, bytes, last, success, digest_ok })
                }
                None => {
                    self.used += used;
                    if !self.read_more() {
                        return Reply::Closed;
                    }
                    continue;
                }
            };
            self.used += used;
            if let Some(reply) = reply {
                return reply;
            }
        }
    }

    /// Reads replies until the connection ends, which it must. Closes it after a termination
    /// request, as hosts do.
    pub fn until_closed(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        loop {
            match self.receive() {
                Reply::Closed => return replies,
                reply @ Reply::Term { .. } => {
                    replies.push(reply);
                    let _ = self.stream.shutdown(Shutdown::Both); // may fail: the target may have closed it
                    return replies;
                }
                reply => replies.push(reply),
            }
        }
    }

    fn read_more(&mut self) -> bool {
        self.input.drain(..self.used);
        self.used = 0;
        let mut bytes = vec![0; 256 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(len) => {
                self.input.extend_from_slice(&bytes[..len]);
                true
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the target neither answered nor closed within {LIMIT:?}")
            }
            // A signal, for example of a fuzzer's timer: the read ends although the handler has
            // SA_RESTART.
            Err(error) if error.kind() == ErrorKind::Interrupted => true,
            Err(_) => false, // reset: the connection is gone all the same
        }
    }

    fn read_exact(&mut self, len: usize) -> Vec<u8> {
        while self.input.len() - self.used < len {
            assert!(self.read_more(), "closed instead of {len} bytes");
        }
        let bytes = self.input[self.used..][..len].to_vec();
        self.used += len;
        bytes
    }
}
