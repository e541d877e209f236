//! One connection of the hostile target: correct behaviour, and the places where it misbehaves.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dlfs::nvme::fabrics::DiscoveryLogHeader;
use dlfs::nvme::identify::{IdentifyNamespace, NamespaceDescriptors, encode_namespace_list};
use dlfs::nvme::sqe::{admin, cns, fctype, feature, log_page, nvm};
use dlfs::nvme::{Cap, Cqe, Csts, Property, Sqe, Status, VERSION_1_4};
use dlfs::tcp::Digests;
use dlfs::tcp::deframer::{Deframer, Event, Pdu, Role};
use dlfs::tcp::pdu::{
    C2HData, CapsuleResp, FLAG_DDGST, FLAG_LAST_PDU, FLAG_SUCCESS, Form, IcReq, IcResp, R2T,
    digest, put_term_req,
};
use dlfs::units::Nsid;
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

use super::{CNTLID, Misbehaviour, Shared, Step, identify_controller};

/// The connection has ended, for any reason.
pub(super) struct Over;

pub(super) struct Connection {
    stream: TcpStream,
    shared: Arc<Shared>,
    deframer: Deframer,
    form: Form,
    is_io: bool,
    is_enabled: bool,
    flow_control: bool,
    /// Writes with an R2T, by command identifier: the command and the data so far.
    writes: HashMap<u16, (Sqe, Vec<u8>)>,
    /// The command whose data arrive now, and its in-capsule data.
    current: Option<(Sqe, Vec<u8>)>,
    filling: Option<u16>,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, shared: Arc<Shared>) -> Connection {
        let _ = stream.set_nodelay(true); // may fail: it only saves time
        Connection {
            stream,
            shared,
            deframer: Deframer::new(Role::Controller, 16 << 10, 4 << 20),
            form: Form::default(),
            is_io: false,
            is_enabled: false,
            flow_control: true,
            writes: HashMap::new(),
            current: None,
            filling: None,
        }
    }

    pub(super) fn run(mut self) -> Result<(), Over> {
        let mut buf = vec![0; 64 << 10];
        loop {
            let len = self.stream.read(&mut buf).map_err(|_| Over)?;
            if len == 0 {
                return Err(Over);
            }
            let mut input = &buf[..len];
            loop {
                // The deframer's events borrow only from `buf`.
                let Ok(event) = self.deframer.next(&mut input) else { return Err(Over) };
                match event {
                    None => break,
                    Some(event) => self.handle(event)?,
                }
            }
        }
    }

    fn handle(&mut self, event: Event<'_>) -> Result<(), Over> {
        match event {
            Event::Header { pdu: Pdu::IcReq(req), .. } => self.initialise(&req),
            Event::Header { pdu: Pdu::CapsuleCmd(cmd), data_len } => {
                let sqe = Sqe::read_from_bytes(&cmd.sqe).map_err(|_| Over)?;
                self.filling = None;
                if data_len == 0 {
                    return self.execute(&sqe, None);
                }
                self.current = Some((sqe, Vec::new()));
                Ok(())
            }
            Event::Header { pdu: Pdu::H2CData(data), .. } => {
                self.filling = Some(data.cccid.get());
                Ok(())
            }
            Event::Header { .. } => Err(Over), // a termination request
            Event::Data(bytes) => {
                let data = match self.filling {
                    Some(cid) => self.writes.get_mut(&cid).map(|(_, data)| data),
                    None => self.current.as_mut().map(|(_, data)| data),
                };
                data.ok_or(Over)?.extend_from_slice(bytes);
                Ok(())
            }
            Event::DataEnd { .. } => match self.filling {
                None => {
                    let (sqe, data) = self.current.take().ok_or(Over)?;
                    self.execute(&sqe, Some(&data))
                }
                Some(cid) => {
                    let (sqe, data) = self.writes.get(&cid).ok_or(Over)?;
                    if data.len() < sqe.sgl.len.get() as usize {
                        return Ok(());
                    }
                    let (sqe, data) = self.writes.remove(&cid).ok_or(Over)?;
                    self.write(&sqe, &data)
                }
            },
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Over> {
        self.stream.write_all(bytes).map_err(|_| Over)
    }

    /// Never answers; the connection stays open until the other side or the test closes it.
    fn hang(&mut self) -> Result<(), Over> {
        let mut byte = [0; 4096];
        while self.stream.read(&mut byte).map_err(|_| Over)? > 0 {}
        Err(Over)
    }

    fn close(&mut self) -> Result<(), Over> {
        let _ = self.stream.shutdown(Shutdown::Both); // may fail: it is over either way
        Err(Over)
    }

    fn initialise(&mut self, req: &IcReq) -> Result<(), Over> {
        let digests = Digests::from_bits(req.dgst);
        if let Some(result) = self.misbehave_at(Step::IcResp, None) {
            return result;
        }
        let misbehaviour =
            self.shared.take(|misbehaviour| matches!(misbehaviour, Misbehaviour::IcResp(_)));
        self.form = Form { digests, pda: req.hpda };
        self.deframer.initialised(Form { digests, pda: 0 });
        match misbehaviour {
            Some(Misbehaviour::IcResp(bytes)) => self.send(&bytes),
            _ => self.send(IcResp::new(digests, 128 << 10).as_bytes()),
        }
    }

    /// Misbehaves at `step`, if requested: `Some` replaces the normal answer.
    fn misbehave_at(&mut self, step: Step, sqe: Option<&Sqe>) -> Option<Result<(), Over>> {
        let misbehaviour = self.shared.take(|misbehaviour| match misbehaviour {
            Misbehaviour::Hang(at)
            | Misbehaviour::Close(at)
            | Misbehaviour::Garbage(at, _)
            | Misbehaviour::Page(at, _) => *at == step,
            Misbehaviour::Fail(at, _) => *at == step && sqe.is_some(),
            _ => false,
        })?;
        Some(match (misbehaviour, sqe) {
            (Misbehaviour::Close(_), _) => self.close(),
            (Misbehaviour::Garbage(_, bytes), _) => self.send(&bytes),
            (Misbehaviour::Fail(_, status), Some(sqe)) => self.complete(sqe, status, 0),
            (Misbehaviour::Page(_, page), Some(sqe)) => self.page(sqe, &page),
            _ => self.hang(),
        })
    }

    fn complete(&mut self, sqe: &Sqe, status: Status, result: u64) -> Result<(), Over> {
        let bytes = self.completion(sqe.cid.get(), status, result);
        self.send(&bytes)
    }

    fn completion(&self, cid: u16, status: Status, result: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let cqe = Cqe::new(cid, status).with_result(result);
        let entry: [u8; 16] = cqe.as_bytes().try_into().unwrap();
        self.form.put(&mut bytes, &CapsuleResp::new(entry, self.form));
        bytes
    }

    /// The bytes of one C2HData.
    fn data(&self, cid: u16, offset: u32, data: &[u8], flags: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.form.put(&mut bytes, &C2HData::new(cid, offset, data.len() as u32, flags, self.form));
        bytes.extend_from_slice(data);
        if self.form.digests.data {
            bytes.extend_from_slice(&digest(data));
        }
        bytes
    }

    /// Answers with data, correctly.
    fn page(&mut self, sqe: &Sqe, data: &[u8]) -> Result<(), Over> {
        let len = data.len().min(sqe.sgl.len.get() as usize);
        let cid = sqe.cid.get();
        let mut bytes = self.data(cid, 0, &data[..len], FLAG_LAST_PDU);
        bytes.extend_from_slice(&self.completion(cid, Status::SUCCESS, 0));
        self.send(&bytes)
    }

    fn execute(&mut self, sqe: &Sqe, data: Option<&[u8]>) -> Result<(), Over> {
        if let Some(fctype) = sqe.fctype() {
            return self.fabrics(sqe, fctype);
        }
        if self.is_io { self.io(sqe, data) } else { self.admin(sqe) }
    }

    fn fabrics(&mut self, sqe: &Sqe, kind: u8) -> Result<(), Over> {
        let step = match kind {
            fctype::CONNECT if sqe.connect_qid() == 0 => Step::AdminConnect,
            fctype::CONNECT => Step::IoConnect,
            fctype::PROPERTY_GET => Step::PropertyGet,
            _ => Step::PropertySet,
        };
        if let Some(result) = self.misbehave_at(step, Some(sqe)) {
            return result;
        }
        match (kind, sqe.property()) {
            (fctype::CONNECT, _) => {
                self.is_io = sqe.connect_qid() != 0;
                self.flow_control = !sqe.connect_disables_sq_flow_control();
                let mut cqe =
                    Cqe::new(sqe.cid.get(), Status::SUCCESS).with_result(u64::from(CNTLID));
                cqe.sqhd.set(if self.flow_control { 1 } else { Cqe::SQHD_NO_FLOW_CONTROL });
                let entry: [u8; 16] = cqe.as_bytes().try_into().unwrap();
                let mut bytes = Vec::new();
                self.form.put(&mut bytes, &CapsuleResp::new(entry, self.form));
                self.send(&bytes)
            }
            (fctype::PROPERTY_GET, Some(Property::Cap)) => {
                self.complete(sqe, Status::SUCCESS, Cap::new(128, 2000).0)
            }
            (fctype::PROPERTY_GET, Some(Property::Vs)) => {
                self.complete(sqe, Status::SUCCESS, VERSION_1_4.into())
            }
            (fctype::PROPERTY_GET, Some(Property::Csts)) => {
                let misbehaviour = |misbehaviour: &Misbehaviour| {
                    matches!(misbehaviour, Misbehaviour::NeverReady | Misbehaviour::FatalStatus)
                };
                let csts = match self.shared.take(misbehaviour) {
                    Some(Misbehaviour::FatalStatus) => Csts::FATAL,
                    Some(_) => 0,
                    None => u32::from(self.is_enabled),
                };
                self.complete(sqe, Status::SUCCESS, u64::from(csts))
            }
            (fctype::PROPERTY_SET, Some(Property::Cc)) => {
                self.is_enabled = sqe.property_value() & 1 != 0;
                self.complete(sqe, Status::SUCCESS, 0)
            }
            _ => self.complete(sqe, Status::SUCCESS, 0),
        }
    }

    fn admin(&mut self, sqe: &Sqe) -> Result<(), Over> {
        let step = match (sqe.opcode, sqe.low_byte_of_cdw10()) {
            (admin::IDENTIFY, cns::CONTROLLER) => Some(Step::IdentifyController),
            (admin::IDENTIFY, cns::NAMESPACE) => Some(Step::IdentifyNamespace),
            (admin::IDENTIFY, cns::ACTIVE_NAMESPACES) => Some(Step::NamespaceList),
            (admin::IDENTIFY, cns::NAMESPACE_DESCRIPTORS) => Some(Step::NamespaceDescriptors),
            (admin::SET_FEATURES, feature::NUMBER_OF_QUEUES) => Some(Step::SetNumQueues),
            (admin::KEEP_ALIVE, _) => Some(Step::KeepAlive),
            (admin::GET_LOG_PAGE, log_page::DISCOVERY) if sqe.log_offset_bytes() == 0 => {
                Some(Step::DiscoveryLog)
            }
            _ => None,
        };
        if let Some(result) = step.and_then(|step| self.misbehave_at(step, Some(sqe))) {
            return result;
        }
        match step {
            Some(Step::IdentifyController) => self.page(sqe, identify_controller().as_bytes()),
            Some(Step::IdentifyNamespace) => {
                let id = {
                    let state = self.shared.state.lock();
                    let num_blocks = state.bytes.len() as u64 / u64::from(state.block_len);
                    IdentifyNamespace::new(num_blocks, state.block_len, state.nguid, false)
                };
                self.page(sqe, id.as_bytes())
            }
            Some(Step::NamespaceList) => {
                self.page(sqe, &encode_namespace_list([Nsid(1)].into_iter()))
            }
            Some(Step::NamespaceDescriptors) => {
                let nguid = Some(self.shared.state.lock().nguid);
                let ids = NamespaceDescriptors { nguid, ..NamespaceDescriptors::default() };
                self.page(sqe, &ids.encode())
            }
            Some(Step::SetNumQueues) => {
                let misbehaviour =
                    self.shared.take(|misbehaviour| matches!(misbehaviour, Misbehaviour::Grant(_)));
                let granted = match misbehaviour {
                    Some(Misbehaviour::Grant(num)) => u32::from(num - 1) << 16 | u32::from(num - 1),
                    _ => sqe.cdw11.get(),
                };
                self.complete(sqe, Status::SUCCESS, u64::from(granted))
            }
            Some(Step::DiscoveryLog) => {
                let mut header = DiscoveryLogHeader::new_zeroed();
                let misbehaviour = self
                    .shared
                    .take(|misbehaviour| matches!(misbehaviour, Misbehaviour::RestlessLog(_)));
                if let Some(Misbehaviour::RestlessLog(num_records)) = misbehaviour {
                    header.genctr.set(self.shared.misbehaved.load(Ordering::SeqCst) as u64);
                    header.numrec.set(num_records);
                }
                self.page(sqe, header.as_bytes())
            }
            _ if sqe.opcode == admin::GET_LOG_PAGE => {
                self.page(sqe, &vec![0; sqe.log_len_bytes().min(64 << 10) as usize])
            }
            _ if sqe.opcode == admin::ASYNC_EVENT_REQUEST => {
                match self
                    .shared
                    .take(|misbehaviour| matches!(misbehaviour, Misbehaviour::Event(_)))
                {
                    Some(Misbehaviour::Event(dw0)) => {
                        self.complete(sqe, Status::SUCCESS, u64::from(dw0))
                    }
                    _ => Ok(()),
                }
            }
            _ if sqe.opcode == admin::KEEP_ALIVE || sqe.opcode == admin::SET_FEATURES => {
                self.complete(sqe, Status::SUCCESS, 0)
            }
            _ => self.complete(sqe, Status::INVALID_OPCODE.do_not_retry(), 0),
        }
    }

    fn io(&mut self, sqe: &Sqe, data: Option<&[u8]>) -> Result<(), Over> {
        self.shared.commands.fetch_add(1, Ordering::SeqCst);
        if let Some(misbehaviour) = self.shared.take(concerns_any_io) {
            return self.misbehave_in_io(&misbehaviour, sqe);
        }
        match (sqe.opcode, data) {
            (nvm::READ, _) => self.read(sqe),
            (nvm::WRITE, Some(data)) => self.write(sqe, data),
            (nvm::WRITE, None) => self.ask_for_data(sqe),
            _ => self.complete(sqe, Status::SUCCESS, 0),
        }
    }

    fn misbehave_in_io(&mut self, misbehaviour: &Misbehaviour, sqe: &Sqe) -> Result<(), Over> {
        match misbehaviour {
            Misbehaviour::Status(status) => self.complete(sqe, *status, 0),
            Misbehaviour::HangIo => Ok(()),
            Misbehaviour::CloseIo => self.close(),
            Misbehaviour::Die => {
                self.shared.die();
                Err(Over)
            }
            Misbehaviour::TermReq(fes) => {
                let mut bytes = Vec::new();
                put_term_req(&mut bytes, false, *fes, 0, sqe.as_bytes());
                self.send(&bytes)
            }
            Misbehaviour::GarbageIo(bytes) => self.send(bytes),
            Misbehaviour::WrongCompletionCid(change) => {
                let bytes = self.completion(sqe.cid.get() ^ change, Status::SUCCESS, 0);
                self.send(&bytes)
            }
            other => unreachable!("{other:?} does not apply to all I/O"),
        }
    }

    fn ask_for_data(&mut self, sqe: &Sqe) -> Result<(), Over> {
        let cid = sqe.cid.get();
        let len = sqe.sgl.len.get();
        let misbehaviour = self.shared.take(|misbehaviour| {
            matches!(
                misbehaviour,
                Misbehaviour::R2t { .. } | Misbehaviour::TwoR2ts | Misbehaviour::DataForWrite
            )
        });
        let mut bytes = Vec::new();
        match misbehaviour {
            Some(Misbehaviour::DataForWrite) => {
                bytes = self.data(cid, 0, &vec![0; len as usize], FLAG_LAST_PDU)
            }
            Some(Misbehaviour::R2t { offset, len }) => {
                self.form.put(&mut bytes, &R2T::new(cid, 1, offset, len, self.form));
            }
            misbehaviour => {
                let times = if misbehaviour.is_some() { 2 } else { 1 };
                for _ in 0..times {
                    self.form.put(&mut bytes, &R2T::new(cid, 1, 0, len, self.form));
                }
            }
        }
        self.writes.insert(cid, (*sqe, Vec::new()));
        self.send(&bytes)
    }

    fn write(&mut self, sqe: &Sqe, data: &[u8]) -> Result<(), Over> {
        let status = {
            let mut state = self.shared.state.lock();
            let at = (sqe.slba().0 * u64::from(state.block_len)) as usize;
            match state.bytes.get_mut(at..at + data.len()) {
                Some(place) => {
                    place.copy_from_slice(data);
                    Status::SUCCESS
                }
                None => Status::LBA_OUT_OF_RANGE.do_not_retry(),
            }
        };
        self.complete(sqe, status, 0)
    }

    fn read(&mut self, sqe: &Sqe) -> Result<(), Over> {
        let start = sqe.slba().0;
        let end = sqe.slba().0 + u64::from(sqe.num_blocks());
        let is_bad = |misbehaviour: &Misbehaviour| match misbehaviour {
            Misbehaviour::BadBlocks(bad, _) => bad.start < end && start < bad.end,
            _ => false,
        };
        if let Some(Misbehaviour::BadBlocks(_, status)) = self.shared.take(is_bad) {
            return self.complete(sqe, status, 0);
        }
        let misbehaviour = self.shared.take(concerns_reads);
        let data = {
            let state = self.shared.state.lock();
            let len = sqe.num_blocks() as usize * state.block_len as usize;
            let at = sqe.slba().0 as usize * state.block_len as usize;
            state.bytes.get(at..at + len).map(<[u8]>::to_vec)
        };
        let Some(data) = data.filter(|data| data.len() == sqe.sgl.len.get() as usize) else {
            return self.complete(sqe, Status::LBA_OUT_OF_RANGE.do_not_retry(), 0);
        };
        let bytes = self.read_answer(sqe.cid.get(), &data, misbehaviour.as_ref());
        match misbehaviour {
            Some(Misbehaviour::OneByteAtATime) => {
                for byte in bytes.chunks(1) {
                    self.send(byte)?;
                }
                Ok(())
            }
            Some(Misbehaviour::CloseInData) => {
                self.send(&bytes)?;
                self.close()
            }
            _ => self.send(&bytes),
        }
    }

    /// The answer to a read, correct or not.
    fn read_answer(&self, cid: u16, data: &[u8], misbehaviour: Option<&Misbehaviour>) -> Vec<u8> {
        let done = if self.flow_control { FLAG_LAST_PDU } else { FLAG_LAST_PDU | FLAG_SUCCESS };
        let right = |bytes: &mut Vec<u8>| {
            bytes.extend_from_slice(&self.data(cid, 0, data, done));
            if self.flow_control {
                bytes.extend_from_slice(&self.completion(cid, Status::SUCCESS, 0));
            }
        };
        let success = || self.completion(cid, Status::SUCCESS, 0);
        let cut = |len: u32| &data[..(len as usize).min(data.len())];
        let hlen = if self.form.digests.header { 28 } else { 24 };
        let mut bytes = Vec::new();
        match misbehaviour {
            Some(Misbehaviour::ShortSuccess(0)) | Some(Misbehaviour::ShortCapsule(0)) => {
                bytes = success()
            }
            Some(Misbehaviour::ShortSuccess(len)) => {
                bytes = self.data(cid, 0, cut(*len), FLAG_LAST_PDU | FLAG_SUCCESS);
            }
            Some(Misbehaviour::ShortCapsule(len)) => {
                bytes = self.data(cid, 0, cut(*len), 0);
                bytes.extend_from_slice(&success());
            }
            Some(Misbehaviour::WrongDataDigest) => {
                bytes = self.data(cid, 0, data, FLAG_LAST_PDU | FLAG_SUCCESS);
                if bytes[1] & FLAG_DDGST != 0 {
                    *bytes.last_mut().unwrap() ^= 0xFF;
                }
            }
            Some(Misbehaviour::WrongHeaderDigest) => {
                right(&mut bytes);
                if hlen == 28 {
                    bytes[24] ^= 0xFF;
                }
            }
            Some(Misbehaviour::WrongCid(change)) => {
                bytes = self.data(cid ^ change, 0, data, FLAG_LAST_PDU | FLAG_SUCCESS);
            }
            Some(Misbehaviour::DoubleCompletion) => {
                right(&mut bytes);
                bytes.extend_from_slice(&success());
            }
            Some(Misbehaviour::DoubleData) => {
                right(&mut bytes);
                right(&mut bytes);
            }
            Some(Misbehaviour::WrongOffset(offset)) => bytes = self.data(cid, *offset, data, done),
            Some(Misbehaviour::TooMuchData(more)) => {
                let longer = [data, &vec![0xEE; *more as usize]].concat();
                bytes = self.data(cid, 0, &longer, done);
            }
            Some(Misbehaviour::SuccessWithoutLast) => bytes = self.data(cid, 0, data, FLAG_SUCCESS),
            Some(Misbehaviour::R2tForRead) => {
                self.form.put(&mut bytes, &R2T::new(cid, 1, 0, data.len() as u32, self.form));
            }
            Some(Misbehaviour::CloseInData) => {
                right(&mut bytes);
                bytes.truncate(hlen + data.len() / 2);
            }
            _ => right(&mut bytes),
        }
        bytes
    }
}

fn concerns_any_io(misbehaviour: &Misbehaviour) -> bool {
    use Misbehaviour::*;
    matches!(
        misbehaviour,
        Status(_) | HangIo | CloseIo | Die | TermReq(_) | GarbageIo(_) | WrongCompletionCid(_)
    )
}

fn concerns_reads(misbehaviour: &Misbehaviour) -> bool {
    use Misbehaviour::*;
    matches!(
        misbehaviour,
        ShortSuccess(_)
            | ShortCapsule(_)
            | WrongDataDigest
            | WrongHeaderDigest
            | WrongCid(_)
            | DoubleCompletion
            | DoubleData
            | WrongOffset(_)
            | TooMuchData(_)
            | SuccessWithoutLast
            | R2tForRead
            | CloseInData
            | OneByteAtATime
    )
}
