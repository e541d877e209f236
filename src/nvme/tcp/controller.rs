//! Controller side of one NVMe/TCP connection: bytes in, commands out; responses in, bytes out.
//!
//! It owns no socket, and knows only one property of an opcode: the direction of its data. Read
//! [`Connection`] first.

use std::collections::VecDeque;
use std::io::IoSlice;

use zerocopy::{FromBytes, IntoBytes};

use super::deframer::{Deframer, Event as Wire, Pdu, Role};
use super::error::{ProtocolError, check_range};
use super::pdu::{
    C2HData, CapsuleCmd, CapsuleResp, Digests, FLAG_LAST_PDU, FLAG_SUCCESS, Form, H2CData, IcReq,
    IcResp, PduType, R2T, put_term_req,
};
use crate::nvme::{Cqe, Sgl, Sqe, Status, sqe};
use dlfs_base::buf::{IoBuf, SharedBuf};

pub use super::transmit::Transmit;

/// Options of a connection that apply before the host is known.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionOptions {
    /// Digests that the host may enable.
    pub digests: Digests,
    /// MAXH2CDATA: maximum bytes of data in one H2CData; at least 4,096 and a multiple of 4.
    pub max_h2c_data_bytes: u32,
}

/// Controller side of one NVMe/TCP connection. It owns no socket and reads no clock.
///
/// Call [`Connection::next`] with received bytes until it returns `None`. Answer each command with
/// [`Connection::receive`] (to receive its data), [`Connection::send_data`] or [`Connection::finish`]. Send
/// the bytes of [`Connection::gather`]. After an error, call [`Connection::terminate`], send the
/// remaining bytes and close.
///
/// The caller owes each command exactly one response. Until [`Connection::connected`], at most one command
/// is outstanding.
///
/// A command occupies its queue entry until its response is sent, not just queued: without the response,
/// the host cannot know that the entry is free. So the queue size bounds the memory for a host that does
/// not read.
#[derive(Debug)]
pub struct Connection {
    options: ConnectionOptions,
    deframer: Deframer,
    /// The form of the PDUs that we send.
    form: Form,
    slots: Vec<Slot>,
    /// The indices of free slots.
    free: Vec<u16>,
    /// Maximum outstanding commands: SQSIZE, 0-based as on the wire.
    max_outstanding: u16,
    /// The CIDs of commands without a response.
    cids: CidSet,
    /// The command whose data come next; `None`: the data are discarded.
    filling: Option<u16>,
    transmit: Transmit,
    /// Offsets in the sent stream at which the unsent responses end.
    unsent: VecDeque<u64>,
    /// Bytes sent since the start.
    sent_bytes: u64,
    /// Number of commands that wait for data requested by an R2T.
    num_awaited: usize,
    /// Bytes received since the start that an R2T had requested.
    awaited_bytes: u64,
    /// Whole PDUs received since the start.
    received_pdus: u64,
    /// SQ head, counted only with SQ flow control.
    sqhd: Option<SqHead>,
    /// True once the connection was ended by [`Connection::terminate`].
    terminated: bool,
}

/// Identifier of a command that has no response yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandId(pub u16);

/// The direction of a command's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataTransfer {
    /// No data.
    None,
    /// To the host: at most this many bytes.
    ToHost(u32),
    /// From the host: this many bytes, above 0. [`Connection::receive`] starts the transfer. In-capsule
    /// data come next in the stream: receive or refuse them before the next [`Connection::next`], which
    /// otherwise discards them.
    FromHost {
        /// Bytes.
        len: u32,
        /// True if the data are in the capsule.
        in_capsule: bool,
    },
}

/// An event of a connection.
#[derive(Debug)]
pub enum Event {
    /// A command.
    Command {
        /// Identifies the command in later calls.
        id: CommandId,
        /// The command.
        sqe: Sqe,
        /// The command's data.
        data: DataTransfer,
    },
    /// All data of a command have arrived with correct digests.
    Received {
        /// The command.
        id: CommandId,
        /// The command.
        sqe: Sqe,
        /// The buffer passed to [`Connection::receive`], now filled.
        buf: IoBuf,
    },
    /// All data of a command have arrived, but a digest was wrong. An error response is queued, and the
    /// buffer is returned.
    Damaged {
        /// The buffer passed to [`Connection::receive`].
        buf: IoBuf,
    },
}

/// A command without a response, or room for one.
#[derive(Debug)]
struct Slot {
    sqe: Sqe,
    state: SlotState,
    /// Buffer for data from the host.
    buf: IoBuf,
    /// Bytes of the command's data that are in `buf`, or that were sent in pieces.
    filled: u32,
    /// True while all data digests were right.
    digest_ok: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Free,
    /// The caller has the command. `len`: bytes of its data that the host still sends, 0 if none; `in_capsule`: they
    /// follow in the capsule.
    Presented {
        len: u32,
        in_capsule: bool,
    },
    /// The caller has the command and may take any time.
    Parked,
    /// In-capsule data are being received.
    FillingFromCapsule,
    /// Data requested with an R2T are being received.
    FillingFromR2t,
}

/// The head of the submission queue, as the host is told it.
#[derive(Debug, Clone, Copy)]
struct SqHead {
    head: u16,
    num_entries: u32,
}

impl Connection {
    /// A new connection, which waits for ICReq.
    pub fn new(options: ConnectionOptions) -> Connection {
        let max_h2c_data = options.max_h2c_data_bytes;
        assert!(max_h2c_data >= 4096 && max_h2c_data.is_multiple_of(4), "hosts refuse this");
        Connection {
            options,
            deframer: Deframer::new(Role::Controller, FABRICS_CAPSULE_DATA_BYTES, max_h2c_data),
            form: Form::default(),
            slots: Vec::new(),
            free: Vec::new(),
            max_outstanding: 1,
            cids: CidSet::default(),
            filling: None,
            transmit: Transmit::default(),
            unsent: VecDeque::new(),
            sent_bytes: 0,
            num_awaited: 0,
            awaited_bytes: 0,
            received_pdus: 0,
            sqhd: None,
            terminated: false,
        }
    }

    /// Notes that Connect succeeded. From now on, at most `sqsize` commands may be outstanding: one fewer than the
    /// queue has entries, which is SQSIZE as on the wire. Each may have up to `max_capsule_data_bytes` in its capsule.
    /// `sq_flow_control`: completions tell the host the head of the submission queue.
    pub fn connected(&mut self, sqsize: u16, max_capsule_data_bytes: u32, sq_flow_control: bool) {
        self.max_outstanding = sqsize.max(1);
        self.deframer.set_max_capsule_data(max_capsule_data_bytes);
        self.sqhd = sq_flow_control.then(|| SqHead { head: 0, num_entries: u32::from(sqsize) + 1 });
    }

    /// Consumes bytes from the front of `input` up to the next event; returns `None` once all are consumed.
    ///
    /// # Errors
    /// A protocol error, or the host ended the connection: call [`Connection::terminate`].
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Event>, ProtocolError> {
        loop {
            let found = self.deframer.next(input)?;
            let is_whole =
                matches!(found, Some(Wire::Header { data_len: 0, .. } | Wire::DataEnd { .. }));
            self.received_pdus += u64::from(is_whole);
            let event = match found {
                None => return Ok(None),
                Some(Wire::Header { pdu, data_len }) => match pdu {
                    Pdu::IcReq(req) => self.initialise(&req).map(|()| None)?,
                    Pdu::CapsuleCmd(cmd) => self.take_command(&cmd, data_len)?,
                    Pdu::H2CData(data) => self.begin_data(&data).map(|()| None)?,
                    Pdu::TermReq(term) => {
                        let fes = term.fes.get();
                        let fei = term.fei.get();
                        return Err(ProtocolError::Terminated { fes, fei });
                    }
                    Pdu::IcResp(_) | Pdu::CapsuleResp(_) | Pdu::C2HData(_) | Pdu::R2T(_) => {
                        unreachable!("the deframer refuses what controllers send")
                    }
                },
                Some(Wire::Data(bytes)) => {
                    self.fill(bytes);
                    None
                }
                Some(Wire::DataEnd { digest_ok }) => self.end_data(digest_ok),
            };
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// Whole PDUs received since the start.
    pub fn received_pdus(&self) -> u64 {
        self.received_pdus
    }

    /// Returns whether a PDU has arrived in part.
    pub fn is_within_pdu(&self) -> bool {
        !self.deframer.is_between_pdus()
    }

    /// The unfilled rest of the buffer for the data that come next, if a command receives them. Receive
    /// into it, then call [`Connection::payload_received`].
    pub fn payload(&mut self) -> Option<&mut [u8]> {
        let left = self.deframer.data_left() as usize;
        let slot = &mut self.slots[usize::from(self.filling?)];
        let at = slot.filled as usize;
        (left > 0).then(|| &mut slot.buf[at..at + left])
    }

    /// Reports that the first `len` bytes of [`Connection::payload`] were received. Call
    /// [`Connection::next`] afterwards, without input if there is none.
    pub fn payload_received(&mut self, len: usize) {
        let filling = self.filling.expect("payload() returned this buffer");
        let slot = &mut self.slots[usize::from(filling)];
        let at = slot.filled as usize;
        self.deframer.take_data(&slot.buf[at..at + len]);
        slot.filled += len as u32;
        self.awaited_bytes += if slot.state == SlotState::FillingFromR2t { len as u64 } else { 0 };
    }

    /// Receives a command's data into `buf`, which has exactly their length. [`Event::Received`]
    /// returns it, or [`Event::Damaged`] after a wrong digest.
    pub fn receive(&mut self, id: CommandId, buf: IoBuf) {
        let slot = &mut self.slots[usize::from(id.0)];
        let SlotState::Presented { len, in_capsule } = slot.state else {
            panic!("receive for a command that is not waiting for a buffer");
        };
        assert_eq!(buf.len(), len as usize, "the buffer has the length of the data");
        (slot.buf, slot.filled, slot.digest_ok) = (buf, 0, true);
        if in_capsule {
            slot.state = SlotState::FillingFromCapsule;
            self.filling = Some(id.0);
        } else {
            slot.state = SlotState::FillingFromR2t;
            self.num_awaited += 1;
            let r2t = R2T::new(slot.sqe.cid.get(), id.0, 0, len, self.form);
            self.transmit.put(self.form, &r2t, None);
        }
    }

    /// Marks a command without data that may wait for any time, such as an Asynchronous Event Request. Only
    /// such commands may be abandoned by the host: on shutdown, SPDK reuses their CIDs without an Abort.
    /// The old command is then forgotten, and the new one gets its `id`.
    pub fn park(&mut self, id: CommandId) {
        let slot = &mut self.slots[usize::from(id.0)];
        let presented = SlotState::Presented { len: 0, in_capsule: false };
        assert_eq!(slot.state, presented, "only a command without data is parked");
        slot.state = SlotState::Parked;
    }

    /// Returns whether the command is still parked. The host ends it without notice by reusing its CID; the
    /// command with the reused CID may have been refused before it became an event.
    pub fn is_parked(&self, id: CommandId) -> bool {
        self.slots.get(usize::from(id.0)).is_some_and(|slot| slot.state == SlotState::Parked)
    }

    /// Sends a piece of a command's data in a C2HData of its own. Others follow, or an error.
    pub fn send_piece(&mut self, id: CommandId, buf: SharedBuf) {
        self.put_data(id, buf, 0);
    }

    /// Bytes of a command's data that were sent in pieces.
    pub fn sent_in_pieces(&self, id: CommandId) -> u32 {
        self.slots[usize::from(id.0)].filled
    }

    /// Completes a command successfully with these data, or this last piece of them, in one C2HData.
    pub fn send_data(&mut self, id: CommandId, buf: SharedBuf) {
        if buf.is_empty() {
            return self.finish(id, Status::SUCCESS, 0);
        }
        // Without SQ flow control, a CapsuleResp would carry no further information.
        let implied = self.sqhd.is_none();
        let flags = if implied { FLAG_LAST_PDU | FLAG_SUCCESS } else { FLAG_LAST_PDU };
        self.put_data(id, buf, flags);
        if implied {
            self.answered(id);
        } else {
            self.finish(id, Status::SUCCESS, 0);
        }
    }

    /// Queues a C2HData with the next bytes of a command's data.
    fn put_data(&mut self, id: CommandId, buf: SharedBuf, flags: u8) {
        let slot = &mut self.slots[usize::from(id.0)];
        let len = buf.len() as u32;
        let data = C2HData::new(slot.sqe.cid.get(), slot.filled, len, flags, self.form);
        slot.filled += len;
        self.transmit.put(self.form, &data, Some(buf));
    }

    /// Completes a command with `status`, without data for the host; `result` becomes dwords 0 and 1 of the
    /// completion.
    pub fn finish(&mut self, id: CommandId, status: Status, result: u64) {
        let cid = self.slots[usize::from(id.0)].sqe.cid.get();
        let mut cqe = Cqe::new(cid, status).with_result(result);
        cqe.sqhd.set(self.sqhd.as_mut().map_or(0, SqHead::advance));
        self.finish_with(id, cqe);
    }

    /// Completes a command with this completion queue entry; sets its CID, but not its SQ head.
    pub fn finish_with(&mut self, id: CommandId, mut cqe: Cqe) {
        cqe.cid = self.slots[usize::from(id.0)].sqe.cid;
        let entry = cqe.as_bytes().try_into().expect("a completion entry has 16 bytes");
        self.transmit.put(self.form, &CapsuleResp::new(entry, self.form), None);
        self.answered(id);
    }

    /// Ends the connection: queues a termination request after all other bytes, if `error` calls for one.
    /// No response can follow.
    pub fn terminate(&mut self, error: &ProtocolError) {
        if std::mem::replace(&mut self.terminated, true) {
            return;
        }
        if let Some((fes, fei)) = error.fatal_status() {
            let header = self.deframer.last_header();
            self.transmit.put_headers(|headers| put_term_req(headers, false, fes, fei, header));
        }
    }

    /// The bytes that are still to be sent.
    pub fn transmit(&self) -> &Transmit {
        &self.transmit
    }

    /// Fills `slices` with the next bytes to send; returns the number of slices used.
    pub fn gather<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize {
        self.gather_at_most(slices, usize::MAX)
    }

    /// As [`Connection::gather`], but of at most `max` bytes.
    pub fn gather_at_most<'a>(&'a mut self, slices: &mut [IoSlice<'a>], max: usize) -> usize {
        self.transmit.gather(slices, max)
    }

    /// Reports that the next `len` bytes of [`Connection::gather`] were sent.
    pub fn sent(&mut self, len: usize) {
        self.transmit.sent(len, |_, _| {});
        self.sent_bytes += len as u64;
        while self.unsent.front().is_some_and(|&end| end <= self.sent_bytes) {
            self.unsent.pop_front();
        }
    }

    /// Number of commands without a response.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Number of commands that wait for data requested by an R2T.
    pub fn awaited(&self) -> usize {
        self.num_awaited
    }

    /// Bytes received since the start that an R2T had requested.
    pub fn awaited_bytes(&self) -> u64 {
        self.awaited_bytes
    }

    /// The submission queue entry of a command without a response.
    pub fn sqe(&self, id: CommandId) -> &Sqe {
        &self.slots[usize::from(id.0)].sqe
    }

    /// Frees excess memory left behind by a burst of commands.
    pub fn shrink(&mut self) {
        if self.outstanding() == 0 {
            self.cids = CidSet::default();
            if self.slots.len() > MAX_IDLE_SLOTS {
                (self.slots, self.free) = (Vec::new(), Vec::new());
            }
        }
        self.transmit.shrink();
        if self.unsent.is_empty() && self.unsent.capacity() > 2 * MAX_IDLE_SLOTS {
            self.unsent = VecDeque::new();
        }
    }

    /// Digests in use.
    pub fn digests(&self) -> Digests {
        self.form.digests
    }

    /// Answers ICReq.
    fn initialise(&mut self, req: &IcReq) -> Result<(), ProtocolError> {
        let unsupported = |offset, value| ProtocolError::UnsupportedParameter { offset, value };
        if req.pfv.get() != 0 {
            return Err(unsupported(8, u32::from(req.pfv.get())));
        }
        if req.hpda > 31 {
            return Err(unsupported(10, u32::from(req.hpda)));
        }
        let asked = Digests::from_bits(req.dgst);
        let allowed = self.options.digests;
        let digests =
            Digests { header: asked.header && allowed.header, data: asked.data && allowed.data };
        self.form = Form { digests, pda: req.hpda };
        self.deframer.initialised(Form { digests, pda: 0 });
        let resp = IcResp::new(digests, self.options.max_h2c_data_bytes);
        self.transmit.put_headers(|headers| headers.extend_from_slice(resp.as_bytes()));
        Ok(())
    }

    /// Handles a command capsule: occupies a slot and checks the data direction; returns or refuses the
    /// command.
    fn take_command(
        &mut self,
        cmd: &CapsuleCmd,
        data_len: u32,
    ) -> Result<Option<Event>, ProtocolError> {
        let sqe = Sqe::read_from_bytes(&cmd.sqe).expect("an entry has 64 bytes");
        let cid = sqe.cid.get();
        if self.outstanding() + self.unsent.len() >= usize::from(self.max_outstanding) {
            return Err(ProtocolError::TooManyCommands { limit: self.max_outstanding });
        }
        if !self.cids.insert(cid) {
            self.forget_parked(cid)?;
        }
        self.filling = None;
        let id = self.occupy(sqe);
        match check_data(&sqe, data_len) {
            Ok(data) => {
                if let DataTransfer::FromHost { len, in_capsule } = data {
                    self.slots[usize::from(id.0)].state = SlotState::Presented { len, in_capsule };
                }
                Ok(Some(Event::Command { id, sqe, data }))
            }
            Err(status) => {
                self.finish(id, status.do_not_retry(), 0);
                Ok(None)
            }
        }
    }

    /// Handles the reuse of an outstanding command's CID, which is permitted only if that command is parked.
    fn forget_parked(&mut self, cid: u16) -> Result<(), ProtocolError> {
        let has_cid = |slot: &Slot| slot.state == SlotState::Parked && slot.sqe.cid.get() == cid;
        let index = self.slots.iter().position(has_cid).ok_or(ProtocolError::CidInUse { cid })?;
        self.release(CommandId(index as u16));
        self.cids.insert(cid);
        Ok(())
    }

    /// Gives a command a slot.
    fn occupy(&mut self, sqe: Sqe) -> CommandId {
        let state = SlotState::Presented { len: 0, in_capsule: false };
        let slot = Slot { sqe, state, buf: IoBuf::empty(), filled: 0, digest_ok: true };
        match self.free.pop() {
            Some(index) => {
                self.slots[usize::from(index)] = slot;
                CommandId(index)
            }
            None => {
                self.slots.push(slot);
                CommandId((self.slots.len() - 1) as u16)
            }
        }
    }

    /// Notes that a command has its response, which ends at the current end of `transmit`.
    fn answered(&mut self, id: CommandId) {
        self.release(id);
        self.unsent.push_back(self.sent_bytes + self.transmit.len_bytes() as u64);
    }

    /// Frees a command's slot and its CID.
    fn release(&mut self, id: CommandId) {
        let slot = &mut self.slots[usize::from(id.0)];
        assert_ne!(slot.state, SlotState::Free, "a command is answered once");
        slot.state = SlotState::Free;
        slot.buf = IoBuf::empty();
        self.cids.remove(slot.sqe.cid.get());
        self.free.push(id.0);
        if self.filling == Some(id.0) {
            self.filling = None; // the command was refused: discards the rest of its capsule
        }
    }

    /// Handles an H2CData, which must continue the data of a command with an R2T.
    fn begin_data(&mut self, data: &H2CData) -> Result<(), ProtocolError> {
        let ttag = data.ttag.get();
        let cid = data.cccid.get();
        let slot = self.slots.get(usize::from(ttag));
        let slot = slot
            .filter(|slot| slot.state == SlotState::FillingFromR2t)
            .ok_or(ProtocolError::UnknownTransferTag { ttag })?;
        let pdu_type = PduType::H2CData;
        if slot.sqe.cid.get() != cid {
            return Err(ProtocolError::UnknownCid { pdu_type, cid });
        }
        let range = [data.datao.get(), data.datal.get()];
        let len = slot.buf.len() as u32;
        let end = check_range(pdu_type, cid, slot.filled, range, len)?;
        let is_last = data.ch.flags & FLAG_LAST_PDU != 0;
        if is_last != (end == u64::from(len)) {
            return Err(ProtocolError::LastPdu { pdu_type, cid });
        }
        self.filling = Some(ttag);
        Ok(())
    }

    /// Copies data to their place in the command's buffer; discards those of a refused command.
    fn fill(&mut self, bytes: &[u8]) {
        let Some(filling) = self.filling else { return };
        let slot = &mut self.slots[usize::from(filling)];
        let at = slot.filled as usize;
        slot.buf[at..at + bytes.len()].copy_from_slice(bytes);
        slot.filled += bytes.len() as u32;
        let is_awaited = slot.state == SlotState::FillingFromR2t;
        self.awaited_bytes += if is_awaited { bytes.len() as u64 } else { 0 };
    }

    /// Handles the end of one PDU's data, which may be the end of the command's data.
    fn end_data(&mut self, digest_ok: bool) -> Option<Event> {
        let filling = self.filling.take()?;
        let slot = &mut self.slots[usize::from(filling)];
        slot.digest_ok &= digest_ok;
        if (slot.filled as usize) < slot.buf.len() {
            return None;
        }
        let id = CommandId(filling);
        let sqe = slot.sqe;
        let buf = std::mem::take(&mut slot.buf);
        if slot.state == SlotState::FillingFromR2t {
            self.num_awaited -= 1;
        }
        if !slot.digest_ok {
            self.finish(id, Status::TRANSIENT_TRANSPORT_ERROR, 0);
            return Some(Event::Damaged { buf });
        }
        slot.state = SlotState::Presented { len: 0, in_capsule: false };
        Some(Event::Received { id, sqe, buf })
    }
}

impl SqHead {
    fn advance(&mut self) -> u16 {
        let next = u32::from(self.head) + 1;
        self.head = if next == self.num_entries { 0 } else { next as u16 };
        self.head
    }
}

/// The direction of a command's data, or the status that refuses them. The stream stays in sync either way.
fn check_data(sqe: &Sqe, data_len: u32) -> Result<DataTransfer, Status> {
    if sqe.flags != sqe::FLAGS_SGL {
        return Err(Status::INVALID_FIELD);
    }
    let sgl = &sqe.sgl;
    let in_capsule = match sgl.identifier {
        Sgl::IN_CAPSULE => true,
        Sgl::TRANSPORT => false,
        // Old hosts leave the whole descriptor zero in a command without data.
        0 if sgl.len.get() == 0 => false,
        _ => return Err(Status::INVALID_SGL_TYPE),
    };
    if in_capsule && sgl.address.get() != 0 {
        return Err(Status::INVALID_SGL_OFFSET);
    }
    let expected = if in_capsule { sgl.len.get() } else { 0 };
    if data_len != expected {
        return Err(Status::INVALID_SGL_LENGTH);
    }
    let len = sgl.len.get();
    // Bits 1:0 of an opcode (of FCTYPE for Fabrics commands) give the data direction.
    match sqe.fctype().unwrap_or(sqe.opcode) & 3 {
        _ if len == 0 => Ok(DataTransfer::None),
        0b01 => Ok(DataTransfer::FromHost { len, in_capsule }),
        0b10 if !in_capsule => Ok(DataTransfer::ToHost(len)),
        0b00 if !in_capsule => Ok(DataTransfer::None),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// The CIDs in use: a bitmap, allocated with the first CID.
#[derive(Debug, Default)]
struct CidSet(Option<Box<[u64; 1024]>>);

impl CidSet {
    /// Marks `cid` as used; returns whether it was free.
    fn insert(&mut self, cid: u16) -> bool {
        let words = self.0.get_or_insert_with(|| Box::new([0; 1024]));
        let word = &mut words[usize::from(cid / 64)];
        let bit = 1 << (cid % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn remove(&mut self, cid: u16) {
        if let Some(words) = &mut self.0 {
            words[usize::from(cid / 64)] &= !(1 << (cid % 64));
        }
    }
}

/// Number of slots that an idle connection keeps.
const MAX_IDLE_SLOTS: usize = 16;

/// Maximum in-capsule data of a Fabrics or admin command.
pub const FABRICS_CAPSULE_DATA_BYTES: u32 = 8192;

#[cfg(test)]
mod tests;
