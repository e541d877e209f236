//! Host side of one NVMe/TCP connection: commands go in, bytes come out, completions come back.
//!
//! Read [`Connection`] first. `slots.rs` has the outstanding commands, and `receive.rs` plans where received bytes go.
//! `progress.rs` decides when a controller that makes no progress with the commands times out.

mod progress;
mod receive;
mod slots;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::time::{Duration, Instant};

use zerocopy::FromBytes;

use super::deframer::{self, Deframer, Pdu, Role};
use super::error::{ProtocolError, check_range};
use super::pdu::{
    self, C2HData, CapsuleCmd, Digests, FLAG_LAST_PDU, FLAG_SUCCESS, Form, H2CData, IcReq, IcResp,
    PduType, R2T,
};
use super::transmit::Transmit;
use crate::nvme::sqe::fctype;
use crate::nvme::{Cqe, Sgl, Sqe, Status};
use dlfs_base::units::deadline;
use progress::Progress;
use receive::ReceivePlan;
use slots::{Outstanding, Slots};

/// Options of a host connection.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Digests to request.
    pub digests: Digests,
    /// True if the controller may decline the digests; otherwise declining them fails the connection.
    pub may_decline: bool,
    /// Maximum outstanding commands: SQSIZE of the later Connect, 0-based as on the wire.
    pub max_outstanding: u16,
    /// Timeout for ICResp.
    pub ic_timeout: Duration,
    /// Timeout for outstanding commands, since their last progress.
    pub io_timeout: Duration,
    /// Minimum received data that count as progress while no command completes. 0: whole PDUs without data
    /// count, and 64 KiB in either direction. Values above 0 are only for connections that read.
    pub least_progress_bytes: u32,
}

/// The direction of a command's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// The command has no data; its payload is ignored.
    None,
    /// The controller fills the whole payload; for a Fabrics command, it may fill only its beginning.
    In,
    /// The whole payload goes to the controller.
    Out,
}

/// An event of a connection.
#[derive(Debug)]
pub enum Event<B> {
    /// ICResp has arrived: commands can be submitted.
    Initialised,
    /// A command has ended; its payload is no longer in use.
    Done {
        /// The payload as submitted; filled if the command was a successful read.
        payload: B,
        /// The completion, or the reason why there is no valid one.
        result: Result<Cqe, CommandError>,
    },
}

/// Reasons for a command's failure other than its status. The connection may continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// A data digest was wrong.
    #[error("the data digest differs")]
    DataDigest,
    /// Success with fewer bytes than requested. This also fails the connection.
    #[error("success after {found} of {expected} bytes")]
    Short {
        /// Bytes of the command's data.
        expected: u32,
        /// Bytes that were received, or that the controller requested.
        found: u32,
    },
}

/// Host side of one NVMe/TCP connection. It owns no socket and reads no clock.
///
/// It owns the payload `B` of each outstanding command. After every call below except `poll_*`, send the
/// bytes of [`Connection::poll_transmit`], then drain [`Connection::poll_event`]. Receive into the slices
/// of [`Connection::poll_receive`], or pass received bytes to [`Connection::handle_received`]. The first
/// error is permanent: the connection then takes no more commands, and [`Connection::abandon`] returns the
/// payloads.
///
/// Submitting a command allocates nothing once the queues have grown to their size.
#[derive(Debug)]
pub struct Connection<B> {
    /// The digests that were requested.
    digests: Digests,
    /// True if the controller may decline the digests.
    may_decline: bool,
    /// The time by which ICResp must arrive.
    ic_deadline: Instant,
    initialised: bool,
    deframer: Deframer,
    /// The form of PDUs that we send.
    form: Form,
    /// Maximum data of one H2CData: the controller's MAXH2CDATA.
    max_h2c_data: u32,
    /// Maximum in-capsule data of a command, except Fabrics commands.
    max_in_capsule: u32,
    slots: Slots<B>,
    /// The bytes to send. A payload is a slot with a range of that slot's payload.
    transmit: Transmit<(usize, Range<usize>)>,
    /// The read whose data are being received.
    receiving: Option<Receiving>,
    /// The plan of the current receive.
    plan: ReceivePlan,
    progress: Progress,
    events: VecDeque<Event<B>>,
    failed: Option<ProtocolError>,
}

/// A C2HData whose data are being received.
#[derive(Debug, Clone, Copy)]
struct Receiving {
    slot: usize,
    /// The PDU's SUCCESS flag: the end of its data completes the command.
    success: bool,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// Creates a connection whose ICReq is ready to send.
    pub fn new(now: Instant, options: &HostOptions) -> Connection<B> {
        let mut transmit = Transmit::default();
        transmit.start_pdu(|out| Form::default().put(out, &IcReq::new(options.digests)));
        Connection {
            digests: options.digests,
            may_decline: options.may_decline,
            ic_deadline: deadline(now, options.ic_timeout),
            initialised: false,
            // The command limits the data of a C2HData, so no other limit is needed.
            deframer: Deframer::new(Role::Host, 0, u32::MAX),
            form: Form::default(),
            max_h2c_data: MIN_MAX_H2C_DATA,
            max_in_capsule: 0,
            slots: Slots::new(options.max_outstanding),
            transmit,
            receiving: None,
            plan: ReceivePlan::new(),
            progress: Progress::new(now, options.io_timeout, options.least_progress_bytes),
            events: VecDeque::new(),
            failed: None,
        }
    }

    /// Sends the data of writes up to this length in their capsules: IOCCSZ x 16 - 64 bytes on I/O queues.
    pub fn set_max_in_capsule(&mut self, max_in_capsule: u32) {
        self.max_in_capsule = max_in_capsule;
    }

    /// The negotiated digests; none before [`Event::Initialised`].
    pub fn digests(&self) -> Digests {
        self.form.digests
    }

    /// Returns whether a command can be submitted: the connection is initialised, has not failed, and has a
    /// free slot.
    pub fn has_room(&self) -> bool {
        self.initialised && self.failed.is_none() && self.slots.has_room()
    }

    /// Number of outstanding commands.
    pub fn outstanding(&self) -> usize {
        self.slots.len()
    }

    /// Payloads of the outstanding commands.
    pub fn payloads(&self) -> impl Iterator<Item = &B> {
        self.slots.commands().map(|command| &command.payload)
    }

    /// Returns whether a command with data for the controller is outstanding without a response.
    pub fn owes_data(&self) -> bool {
        let owes = |command: &Outstanding<B>| {
            command.transfer == Transfer::Out && command.outcome.is_none()
        };
        self.slots.commands().any(owes)
    }

    /// The error that ended the connection.
    pub fn failed(&self) -> Option<ProtocolError> {
        self.failed
    }

    /// Submits a command; fills in its CID and SGL. Returns the payload if there is no room or the
    /// connection has failed.
    ///
    /// A command with `no_timeout` (an Asynchronous Event Request) may take any time.
    pub fn submit(
        &mut self,
        now: Instant,
        mut sqe: Sqe,
        transfer: Transfer,
        no_timeout: bool,
        payload: B,
    ) -> Result<(), B> {
        if !self.has_room() {
            return Err(payload);
        }
        let len = if transfer == Transfer::None { 0 } else { payload.as_ref().len() };
        let len = u32::try_from(len).expect("transfers are limited far below 4 GiB");
        let max_in_capsule = match sqe.opcode {
            fctype::OPCODE => FABRICS_IN_CAPSULE,
            _ => self.max_in_capsule,
        };
        let in_capsule = transfer == Transfer::Out && len > 0 && len <= max_in_capsule;
        if self.slots.num_timed() == 0 && !no_timeout {
            self.progress.made(now);
        }
        let mut command = Outstanding::new(payload, transfer, len, in_capsule, no_timeout);
        // Authentication Receive offers a buffer that may be longer than the message.
        command.may_be_short = sqe.opcode == fctype::OPCODE && transfer == Transfer::In;
        let slot = self.slots.insert(command);
        sqe.cid = self.slots.cid(slot).into();
        sqe.sgl = if in_capsule { Sgl::in_capsule(len) } else { Sgl::transport(len) };
        let capsule_len = if in_capsule { len } else { 0 };
        let entry: [u8; 64] = zerocopy::transmute!(sqe);
        let header = CapsuleCmd::new(entry, capsule_len, self.form);
        self.transmit.start_pdu(|out| self.form.put(out, &header));
        if in_capsule {
            self.send_payload(slot, 0, len);
        }
        Ok(())
    }

    /// Fills `slices` with the headers and payloads to send next; returns the number of slices used, 0 if
    /// there is nothing to send. Report sent bytes with [`Connection::transmitted`].
    pub fn poll_transmit<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.transmit.slices(slices, usize::MAX, |(slot, range)| {
            &self.slots.get(*slot).payload.as_ref()[range.clone()]
        })
    }

    /// Returns whether [`Connection::poll_transmit`] has something to send.
    pub fn wants_transmit(&self) -> bool {
        !self.transmit.is_empty()
    }

    /// Reports that the first `len` bytes of [`Connection::poll_transmit`] were sent.
    pub fn transmitted(&mut self, now: Instant, len: usize) {
        self.progress.sent(now, len);
        let Connection { transmit, slots, events, .. } = self;
        transmit.sent(len, |&(slot, _), bytes| {
            if slots.sent(slot, bytes as u32) {
                events.push_back(slots.remove(slot));
            }
        });
    }

    /// Notes that `len` bytes of the current data were received straight into their payload.
    fn handle_payload(&mut self, now: Instant, len: usize) -> Result<(), ProtocolError> {
        let receiving = self.receiving.expect("payload is received for some command");
        let command = self.slots.get_mut(receiving.slot);
        let start = command.at as usize;
        self.deframer.take_data(&command.payload.as_ref()[start..start + len]);
        command.at += len as u32;
        self.progress.received(now, len);
        self.handle_received(now, &[])
    }

    /// Processes received bytes.
    ///
    /// # Errors
    /// The first error ends the connection; later calls return it again. A termination request may be left
    /// to transmit: send it if that does not block, then close.
    pub fn handle_received(&mut self, now: Instant, bytes: &[u8]) -> Result<(), ProtocolError> {
        let mut rest = bytes;
        loop {
            if let Some(error) = self.failed {
                return Err(error);
            }
            let event = match self.deframer.next(&mut rest) {
                Ok(None) => return Ok(()),
                Ok(Some(event)) => event,
                Err(error) => return Err(self.fail(error)),
            };
            let num_commands = self.slots.len();
            let result = match event {
                deframer::Event::Header { pdu, data_len } => {
                    if data_len == 0 {
                        self.progress.received_pdu(now);
                    }
                    self.handle_header(pdu, data_len)
                }
                deframer::Event::Data(data) => {
                    self.progress.received(now, data.len());
                    self.copy_data(data);
                    Ok(())
                }
                deframer::Event::DataEnd { digest_ok } => self.end_data(digest_ok),
            };
            if self.slots.len() < num_commands {
                self.progress.made(now);
            }
            result.map_err(|error| self.fail(error))?;
        }
    }

    /// Checks timeouts; does nothing if called early.
    ///
    /// # Errors
    /// A timeout, which fails the connection, or the earlier error that ended it.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), ProtocolError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let what = match self.initialised {
            false if now >= self.ic_deadline => "ICResp",
            true if self.slots.num_timed() > 0 && self.progress.is_over(now) => {
                "the response to a command"
            }
            _ => return Ok(()),
        };
        Err(self.fail(ProtocolError::TimedOut(what)))
    }

    /// The time at which to call [`Connection::handle_timeout`]; may change after any call.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.failed.is_some() {
            None
        } else if !self.initialised {
            Some(self.ic_deadline)
        } else {
            (self.slots.num_timed() > 0).then(|| self.progress.deadline())
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event<B>> {
        self.events.pop_front()
    }

    /// Abandons the connection; returns the payloads of outstanding commands, lowest slot first. Completed
    /// commands remain as events. Close the socket before reusing a payload.
    pub fn abandon(&mut self) -> Vec<B> {
        if self.failed.is_none() {
            self.fail(ProtocolError::Abandoned);
        }
        let mut payloads = Vec::with_capacity(self.slots.len());
        for slot in 0..self.slots.capacity() {
            match self.slots.take(slot) {
                None => {}
                Some(Outstanding { payload, outcome: Some(result), .. }) => {
                    self.events.push_back(Event::Done { payload, result });
                }
                Some(Outstanding { payload, outcome: None, .. }) => payloads.push(payload),
            }
        }
        payloads
    }

    /// Ends the connection; queues a termination request if the error calls for one and the stream permits it.
    fn fail(&mut self, error: ProtocolError) -> ProtocolError {
        self.failed = Some(error);
        self.receiving = None;
        let at_pdu_start = self.transmit.clear();
        if let Some((fes, fei)) = error.fatal_status().filter(|_| at_pdu_start) {
            let offending = self.deframer.last_header();
            self.transmit.start_pdu(|out| pdu::put_term_req(out, true, fes, fei, offending));
        }
        error
    }

    /// Handles a checked header.
    fn handle_header(&mut self, pdu: Pdu, data_len: u32) -> Result<(), ProtocolError> {
        match pdu {
            Pdu::IcResp(resp) => self.handle_ic_resp(&resp),
            Pdu::CapsuleResp(resp) => {
                let cqe = Cqe::read_from_bytes(&resp.cqe).expect("16 bytes are a CQE");
                let slot = self.find(PduType::CapsuleResp, cqe.cid.get())?;
                self.complete(slot, cqe)
            }
            Pdu::C2HData(data) => self.handle_c2h_data(&data, data_len),
            Pdu::R2T(r2t) => self.handle_r2t(&r2t),
            Pdu::TermReq(term) => {
                Err(ProtocolError::Terminated { fes: term.fes.get(), fei: term.fei.get() })
            }
            Pdu::IcReq(_) | Pdu::CapsuleCmd(_) | Pdu::H2CData(_) => {
                unreachable!("the deframer lets only the controller's PDUs pass")
            }
        }
    }

    /// Checks the controller's terms, and begins to use them.
    fn handle_ic_resp(&mut self, resp: &IcResp) -> Result<(), ProtocolError> {
        let unsupported =
            |offset, value| Err(ProtocolError::UnsupportedParameter { offset, value });
        let digests = Digests::from_bits(resp.dgst);
        let wanted = self.digests;
        let maxh2cdata = resp.maxh2cdata.get();
        if resp.pfv.get() != 0 {
            return unsupported(8, resp.pfv.get().into());
        }
        if resp.cpda > MAX_PDA {
            return unsupported(10, resp.cpda.into());
        }
        if digests.header && !wanted.header || digests.data && !wanted.data {
            return unsupported(11, resp.dgst.into());
        }
        if digests != wanted && !self.may_decline {
            return Err(ProtocolError::DigestDeclined);
        }
        if maxh2cdata < MIN_MAX_H2C_DATA || !maxh2cdata.is_multiple_of(4) {
            return unsupported(12, maxh2cdata);
        }
        self.form = Form { digests, pda: resp.cpda };
        self.max_h2c_data = maxh2cdata;
        // This side requested HPDA 0.
        self.deframer.initialised(Form { digests, pda: 0 });
        self.initialised = true;
        self.events.push_back(Event::Initialised);
        Ok(())
    }

    /// Checks a C2HData, which must continue the data of a read.
    fn handle_c2h_data(&mut self, data: &C2HData, data_len: u32) -> Result<(), ProtocolError> {
        const PDU: PduType = PduType::C2HData;
        let cid = data.cccid.get();
        let slot = self.find(PDU, cid)?;
        let command = self.slots.get(slot);
        let last = data.ch.flags & FLAG_LAST_PDU != 0;
        let success = data.ch.flags & FLAG_SUCCESS != 0;
        if command.transfer != Transfer::In {
            return Err(ProtocolError::UnknownCid { pdu_type: PDU, cid });
        }
        if success && !last {
            return Err(ProtocolError::LastPdu { pdu_type: PDU, cid });
        }
        let end = check_range(PDU, cid, command.at, [data.datao.get(), data_len], command.len)?;
        // SUCCESS before the end of the data is a short read, which `complete` reports more precisely.
        if last != (end == u64::from(command.len)) && !success {
            return Err(ProtocolError::LastPdu { pdu_type: PDU, cid });
        }
        self.receiving = Some(Receiving { slot, success });
        Ok(())
    }

    /// Copies data to their place in the payload.
    fn copy_data(&mut self, data: &[u8]) {
        let receiving = self.receiving.expect("data follow a C2HData");
        let command = self.slots.get_mut(receiving.slot);
        let start = command.at as usize;
        command.payload.as_mut()[start..start + data.len()].copy_from_slice(data);
        command.at += data.len() as u32;
    }

    /// Handles the end of a C2HData's data.
    fn end_data(&mut self, digest_ok: bool) -> Result<(), ProtocolError> {
        let Receiving { slot, success } = self.receiving.take().expect("data follow a C2HData");
        self.slots.get_mut(slot).digest_failed |= !digest_ok;
        if success {
            self.complete(slot, Cqe::new(self.slots.cid(slot), Status::SUCCESS))
        } else {
            Ok(())
        }
    }

    /// Checks an R2T, and queues the data that it requests.
    fn handle_r2t(&mut self, r2t: &R2T) -> Result<(), ProtocolError> {
        const PDU: PduType = PduType::R2T;
        let cid = r2t.cccid.get();
        let r2to = r2t.r2to.get();
        let r2tl = r2t.r2tl.get();
        let slot = self.find(PDU, cid)?;
        let command = self.slots.get(slot);
        if command.transfer != Transfer::Out || command.in_capsule {
            return Err(ProtocolError::UnknownCid { pdu_type: PDU, cid });
        }
        check_range(PDU, cid, command.at, [r2to, r2tl], command.len)?;
        if r2tl == 0 {
            return Err(ProtocolError::NoData { pdu_type: PDU, cid });
        }
        // MAXR2T 0 permits one R2T at a time, until the socket has taken all bytes that it requested.
        if command.unsent > 0 {
            return Err(ProtocolError::TooManyR2ts { cid });
        }
        self.slots.get_mut(slot).at = r2to + r2tl;
        self.send_h2c_data(slot, r2t.ttag.get(), r2to..r2to + r2tl);
        Ok(())
    }

    /// Queues the H2CData PDUs that an R2T requests.
    fn send_h2c_data(&mut self, slot: usize, ttag: u16, range: Range<u32>) {
        let cid = self.slots.cid(slot);
        let mut start = range.start;
        while start < range.end {
            let len = (range.end - start).min(self.max_h2c_data);
            let last = start + len == range.end;
            let header = H2CData::new(cid, ttag, start, len, last, self.form);
            self.transmit.start_pdu(|out| self.form.put(out, &header));
            self.send_payload(slot, start, len);
            start += len;
        }
    }

    /// Queues part of a payload, with its digest.
    fn send_payload(&mut self, slot: usize, start: u32, len: u32) {
        let command = self.slots.get_mut(slot);
        command.unsent += len;
        let range = start as usize..(start + len) as usize;
        self.transmit.put_payload((slot, range.clone()), range.len(), false);
        if self.form.digests.data {
            let digest = pdu::digest(&command.payload.as_ref()[range]);
            self.transmit.put_headers(|out| out.extend_from_slice(&digest));
        }
    }

    /// The slot of an outstanding command.
    fn find(&self, pdu_type: PduType, cid: u16) -> Result<usize, ProtocolError> {
        self.slots.find(cid).ok_or(ProtocolError::UnknownCid { pdu_type, cid })
    }

    /// Handles the controller's completion of a command.
    fn complete(&mut self, slot: usize, cqe: Cqe) -> Result<(), ProtocolError> {
        let command = self.slots.get_mut(slot);
        let expected = command.len;
        let found = command.at;
        // In-capsule data are complete: the controller receives a capsule with all of its data.
        let is_whole = found == expected || command.in_capsule || command.may_be_short;
        let is_short = cqe.status().is_success() && !is_whole;
        command.outcome = Some(if is_short {
            Err(CommandError::Short { expected, found })
        } else if command.digest_failed {
            Err(CommandError::DataDigest)
        } else {
            Ok(cqe)
        });
        // If the payload is still queued for sending, `transmitted` frees the slot later.
        if command.unsent == 0 {
            let event = self.slots.remove(slot);
            self.events.push_back(event);
        }
        if is_short {
            Err(ProtocolError::ShortTransfer { cid: cqe.cid.get(), expected, found })
        } else {
            Ok(())
        }
    }
}

/// Data of at least this length go straight into their payload even while guessing pauses (`receive.rs`). For
/// shorter data, a copy out of a large receive then costs less than a system call of their own.
const DIRECT_MIN: usize = 16 << 10;

/// Maximum bytes of one receive call besides those that go straight into payloads: the length of the buffer
/// that [`Connection::poll_receive`] needs.
pub const SCRATCH_LEN: usize = 256 << 10;

/// Minimum MAXH2CDATA that the specification permits.
const MIN_MAX_H2C_DATA: u32 = 4096;

/// Maximum alignment that can be requested, in wire format.
const MAX_PDA: u8 = 31;

/// Maximum in-capsule data of a Fabrics command.
const FABRICS_IN_CAPSULE: u32 = 8192;

#[cfg(test)]
mod tests;
