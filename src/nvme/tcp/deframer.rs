//! Splits a received byte stream into PDUs, on both sides of a connection.
//!
//! The deframer makes all checks that need no knowledge of commands: type, direction, sequence, lengths,
//! flags, digests. It buffers at most one header; data pass through.

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::error::ProtocolError;
use super::pdu::{
    self, C2HData, CapsuleCmd, CapsuleResp, CommonHeader, FLAG_DDGST, FLAG_HDGST, FLAG_LAST_PDU,
    FLAG_SUCCESS, Form, H2CData, IcReq, IcResp, MAX_TERM_REQ_LEN, PduType, R2T, TermReq,
};
use dlfs_base::checksum::crc32c_append;

/// The receiving side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Receives the PDUs that controllers send.
    Host,
    /// Receives the PDUs that hosts send.
    Controller,
}

/// A complete, checked header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs)] // named as in the specification
pub enum Pdu {
    IcReq(IcReq),
    IcResp(IcResp),
    CapsuleCmd(CapsuleCmd),
    CapsuleResp(CapsuleResp),
    H2CData(H2CData),
    C2HData(C2HData),
    R2T(R2T),
    /// A termination request, in either direction.
    TermReq(TermReq),
}

/// An event that the deframer found in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A header. If `data_len` is above 0, that many bytes follow, in [`Event::Data`] or by
    /// `Deframer::take_data`, and one [`Event::DataEnd`] before the next header.
    Header {
        /// The header.
        pdu: Pdu,
        /// Bytes of data that the PDU carries.
        data_len: u32,
    },
    /// The next bytes of the current PDU's data; never empty.
    Data(&'a [u8]),
    /// The data are complete. A wrong data digest fails the command, not the connection.
    DataEnd {
        /// True if the data digest was right or is not in use.
        digest_ok: bool,
    },
}

/// Splits received bytes into headers and data.
///
/// Call [`Deframer::next`] until it returns `None`, then again with more bytes. While `Deframer::data_left`
/// is above 0, the caller may instead receive bytes straight into their buffer and report them to
/// `Deframer::take_data`.
#[derive(Debug)]
pub struct Deframer {
    role: Role,
    /// The form of received PDUs; `None` until the connection is initialised.
    form: Option<Form>,
    /// Maximum data of one capsule, in bytes.
    max_capsule_data: u32,
    /// Maximum data of one H2CData or C2HData, in bytes.
    max_pdu_data: u32,
    /// The part of the stream that comes next.
    stage: Stage,
    /// The header being received, or the last one.
    header: [u8; MAX_TERM_REQ_LEN],
    /// Number of bytes of `header` that have arrived.
    have: usize,
    /// Number of bytes of `header` that belong to the last header, complete or not.
    echo: usize,
    /// Bytes of padding between header digest and data that are still to come.
    padding_left: usize,
    /// Bytes of the current PDU's data that are still to come.
    data_left: u32,
    /// The digest of the current PDU's data so far.
    digest: u32,
    /// The received data digest, of which `ddgst_have` bytes have arrived.
    ddgst: [u8; 4],
    ddgst_have: usize,
    /// The error that ended the stream.
    failed: Option<ProtocolError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The common header.
    Common,
    /// The rest of the header and its digest, up to this offset.
    Rest(usize),
    Padding,
    Data,
    DataDigest,
}

impl Deframer {
    /// Expects ICReq or ICResp first. The arguments limit the data of later PDUs.
    pub fn new(role: Role, max_capsule_data: u32, max_pdu_data: u32) -> Deframer {
        Deframer {
            role,
            form: None,
            max_capsule_data,
            max_pdu_data,
            stage: Stage::Common,
            header: [0; MAX_TERM_REQ_LEN],
            have: 0,
            echo: 0,
            padding_left: 0,
            data_left: 0,
            digest: 0,
            ddgst: [0; 4],
            ddgst_have: 0,
            failed: None,
        }
    }

    /// Notes that the connection is initialised: later PDUs have this `form`, whose alignment this side
    /// requested.
    pub fn initialised(&mut self, form: Form) {
        self.form = Some(form);
    }

    /// Changes the limit of in-capsule data, for example once the queue identifier is known.
    pub(crate) fn set_max_capsule_data(&mut self, max_capsule_data: u32) {
        self.max_capsule_data = max_capsule_data;
    }

    /// Consumes bytes from the front of `input` up to the next event. Returns `None` if it has consumed all
    /// bytes and needs more. Errors are final: each later call returns the first one.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, ProtocolError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = self.step(input);
        if let Err(error) = result {
            self.failed = Some(error);
        }
        result
    }

    /// Bytes of the current PDU's data that come next; 0 if other bytes come first.
    pub(crate) fn data_left(&self) -> u32 {
        if self.stage == Stage::Data { self.data_left } else { 0 }
    }

    /// Returns whether the next byte is the first of a PDU.
    pub(crate) fn is_between_pdus(&self) -> bool {
        self.stage == Stage::Common && self.have == 0
    }

    /// Reports data received straight into their buffer: at most [`Deframer::data_left`] bytes. Call
    /// [`Deframer::next`] without input afterwards.
    pub(crate) fn take_data(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.data_left() as usize, "more data than the PDU has");
        if self.form.is_some_and(|form| form.digests.data) {
            self.digest = crc32c_append(self.digest, bytes);
        }
        self.data_left -= bytes.len() as u32;
    }

    /// The received bytes of the last header, for a termination request to quote.
    pub(crate) fn last_header(&self) -> &[u8] {
        &self.header[..self.echo]
    }

    /// As [`Deframer::next`], but does not remember errors.
    fn step<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, ProtocolError> {
        loop {
            match self.stage {
                Stage::Common => {
                    if !self.fill_header(input, size_of::<CommonHeader>()) {
                        return Ok(None);
                    }
                    self.stage = Stage::Rest(self.check_common()?);
                }
                Stage::Rest(end) => {
                    if !self.fill_header(input, end) {
                        return Ok(None);
                    }
                    return self.end_header().map(Some);
                }
                Stage::Padding => {
                    self.padding_left -= take(input, self.padding_left).len();
                    if self.padding_left > 0 {
                        return Ok(None);
                    }
                    self.stage = Stage::Data;
                }
                Stage::Data if self.data_left == 0 => {
                    if !self.form.is_some_and(|form| form.digests.data) {
                        return Ok(Some(self.end_data(true)));
                    }
                    self.stage = Stage::DataDigest;
                }
                Stage::Data => {
                    let bytes = take(input, self.data_left as usize);
                    if bytes.is_empty() {
                        return Ok(None);
                    }
                    self.take_data(bytes);
                    return Ok(Some(Event::Data(bytes)));
                }
                Stage::DataDigest => {
                    let bytes = take(input, 4 - self.ddgst_have);
                    self.ddgst[self.ddgst_have..][..bytes.len()].copy_from_slice(bytes);
                    self.ddgst_have += bytes.len();
                    if self.ddgst_have < 4 {
                        return Ok(None);
                    }
                    return Ok(Some(self.end_data(self.ddgst == self.digest.to_le_bytes())));
                }
            }
        }
    }

    /// Copies bytes into the header buffer up to `end`; returns whether the buffer is filled up to there.
    fn fill_header(&mut self, input: &mut &[u8], end: usize) -> bool {
        let bytes = take(input, end - self.have);
        self.header[self.have..][..bytes.len()].copy_from_slice(bytes);
        self.have += bytes.len();
        if !bytes.is_empty() {
            self.echo = self.have;
        }
        self.have == end
    }

    /// Ends the PDU after its data.
    fn end_data(&mut self, digest_ok: bool) -> Event<'static> {
        self.stage = Stage::Common;
        self.have = 0;
        Event::DataEnd { digest_ok }
    }

    /// Checks the 8 bytes of the common header; returns the end of header and header digest.
    fn check_common(&mut self) -> Result<usize, ProtocolError> {
        let ch = view::<CommonHeader>(&self.header);
        let byte = ch.pdu_type;
        let pdu_type = PduType::from_byte(byte)
            .filter(|pdu_type| pdu_type.is_from_host() == (self.role == Role::Controller))
            .ok_or(ProtocolError::UnexpectedType { pdu_type: byte })?;
        let is_ic = matches!(pdu_type, PduType::IcReq | PduType::IcResp);
        let is_term = matches!(pdu_type, PduType::H2CTermReq | PduType::C2HTermReq);
        if !is_term && is_ic == self.form.is_some() {
            return Err(ProtocolError::Sequence { pdu_type: byte });
        }
        if ch.hlen != pdu_type.hlen() {
            return Err(ProtocolError::HeaderLen { pdu_type: byte, hlen: ch.hlen });
        }
        let plen = ch.plen.get();
        if is_ic || is_term {
            let range = if is_ic { 128..=128 } else { 24..=MAX_TERM_REQ_LEN as u32 };
            if !range.contains(&plen) {
                return Err(ProtocolError::PduLen { pdu_type: byte, plen });
            }
            self.data_left = 0;
            return Ok(plen as usize);
        }
        let form = self.form.unwrap_or_default();
        let header_end = usize::from(ch.hlen) + form.header_digest_len(pdu_type);
        let data_len = check_lengths(&ch, pdu_type, form, header_end)?;
        check_flags(&ch, pdu_type, form, data_len)?;
        let limit = match pdu_type {
            PduType::CapsuleCmd => self.max_capsule_data,
            _ => self.max_pdu_data,
        };
        if data_len > limit {
            return Err(ProtocolError::DataLimit { limit, found: data_len });
        }
        self.data_left = data_len;
        Ok(header_end)
    }

    /// Handles a complete header: checks its digest and lengths, and decodes it.
    fn end_header(&mut self) -> Result<Event<'static>, ProtocolError> {
        let ch = view::<CommonHeader>(&self.header);
        let hlen = usize::from(ch.hlen);
        let pdu_type = PduType::from_byte(ch.pdu_type).expect("checked with the common header");
        let form = self.form.filter(|_| pdu_type.may_have_digests()).unwrap_or_default();
        if form.digests.header {
            let found = &self.header[hlen..][..4];
            let expected = pdu::digest(&self.header[..hlen]);
            if found != expected {
                let found = u32::from_le_bytes(found.try_into().expect("4 bytes"));
                let expected = u32::from_le_bytes(expected);
                return Err(ProtocolError::HeaderDigest { expected, found });
            }
        }
        let data_len = self.data_left;
        let pdu = self.read_header(pdu_type, data_len)?;
        if data_len > 0 {
            self.stage = Stage::Padding;
            // `check_lengths` has verified that the data do not begin before the end of header and digest.
            self.padding_left = usize::from(ch.pdo) - hlen - form.header_digest_len(pdu_type);
            self.digest = 0;
            self.ddgst_have = 0;
        } else {
            self.stage = Stage::Common;
            self.have = 0;
        }
        Ok(Event::Header { pdu, data_len })
    }

    /// Decodes the header, and checks the length of data in it.
    fn read_header(&self, pdu_type: PduType, data_len: u32) -> Result<Pdu, ProtocolError> {
        let header = &self.header;
        let check = |cid: u16, found: u32| match found {
            0 => Err(ProtocolError::NoData { pdu_type, cid }),
            _ if found != data_len => {
                Err(ProtocolError::DataLen { pdu_type, expected: data_len, found })
            }
            _ => Ok(()),
        };
        Ok(match pdu_type {
            PduType::IcReq => Pdu::IcReq(view(header)),
            PduType::IcResp => Pdu::IcResp(view(header)),
            PduType::H2CTermReq | PduType::C2HTermReq => Pdu::TermReq(view(header)),
            PduType::CapsuleCmd => Pdu::CapsuleCmd(view(header)),
            PduType::CapsuleResp => Pdu::CapsuleResp(view(header)),
            PduType::R2T => Pdu::R2T(view(header)),
            PduType::H2CData => {
                let data: H2CData = view(header);
                check(data.cccid.get(), data.datal.get())?;
                Pdu::H2CData(data)
            }
            PduType::C2HData => {
                let data: C2HData = view(header);
                check(data.cccid.get(), data.datal.get())?;
                Pdu::C2HData(data)
            }
        })
    }
}

/// Checks PLEN and PDO against each other; returns the length of the data.
fn check_lengths(
    ch: &CommonHeader,
    pdu_type: PduType,
    form: Form,
    header_end: usize,
) -> Result<u32, ProtocolError> {
    let byte = ch.pdu_type;
    let plen = ch.plen.get();
    let is_data = matches!(pdu_type, PduType::H2CData | PduType::C2HData);
    let may_have_data = is_data || pdu_type == PduType::CapsuleCmd;
    let bad_plen = ProtocolError::PduLen { pdu_type: byte, plen };
    if plen < header_end as u32 {
        return Err(bad_plen);
    }
    if plen == header_end as u32 {
        // No room for data. PDO is then reserved, but some controllers set it even so.
        return if is_data { Err(bad_plen) } else { Ok(0) };
    }
    if !may_have_data {
        return Err(bad_plen);
    }
    let pdo = usize::from(ch.pdo);
    if pdo < header_end || pdo % form.alignment() != 0 || pdo as u64 > u64::from(plen) {
        return Err(ProtocolError::PduDataOffset { pdu_type: byte, pdo: ch.pdo });
    }
    let ddgst_len = if form.digests.data { 4 } else { 0 };
    match plen.checked_sub(pdo as u32 + ddgst_len) {
        None | Some(0) => Err(bad_plen),
        Some(data_len) => Ok(data_len),
    }
}

/// Checks the flags that are defined; all others are reserved.
fn check_flags(
    ch: &CommonHeader,
    pdu_type: PduType,
    form: Form,
    data_len: u32,
) -> Result<(), ProtocolError> {
    let last = match pdu_type {
        PduType::C2HData => FLAG_LAST_PDU | FLAG_SUCCESS,
        PduType::H2CData => FLAG_LAST_PDU,
        _ => 0,
    };
    let hdgst = if form.digests.header { FLAG_HDGST } else { 0 };
    let ddgst = if form.data_digest_len(data_len) > 0 { FLAG_DDGST } else { 0 };
    let known = FLAG_HDGST | FLAG_DDGST | FLAG_LAST_PDU | FLAG_SUCCESS;
    if ch.flags & known & !last != hdgst | ddgst {
        return Err(ProtocolError::Flags { pdu_type: ch.pdu_type, flags: ch.flags });
    }
    Ok(())
}

/// Removes up to `n` bytes from the front of `input`.
fn take<'a>(input: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (head, tail) = input.split_at(n.min(input.len()));
    *input = tail;
    head
}

/// Reads a header from the start of `bytes`.
fn view<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8; MAX_TERM_REQ_LEN]) -> T {
    T::read_from_prefix(bytes).expect("no header is longer than the buffer").0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::pdu::Digests;
    use super::*;

    const BOTH: Digests = Digests { header: true, data: true };

    /// An owned [`Event`]; adjacent data are merged.
    #[derive(Debug, PartialEq)]
    enum Seen {
        Header(Pdu, u32),
        Data(Vec<u8>),
        DataEnd(bool),
    }

    /// All events that `deframer` finds in `pieces`, and the error that ends them.
    fn run<'a>(
        deframer: &mut Deframer,
        pieces: impl Iterator<Item = &'a [u8]>,
        after_ic: Form,
    ) -> (Vec<Seen>, Option<ProtocolError>) {
        let mut seen = Vec::new();
        for mut piece in pieces {
            loop {
                match deframer.next(&mut piece) {
                    Ok(None) => break,
                    Ok(Some(Event::Header { pdu, data_len })) => {
                        if matches!(pdu, Pdu::IcReq(_) | Pdu::IcResp(_)) {
                            deframer.initialised(after_ic);
                        }
                        seen.push(Seen::Header(pdu, data_len));
                    }
                    Ok(Some(Event::Data(bytes))) => match seen.last_mut() {
                        Some(Seen::Data(data)) => data.extend_from_slice(bytes),
                        _ => seen.push(Seen::Data(bytes.to_vec())),
                    },
                    Ok(Some(Event::DataEnd { digest_ok })) => seen.push(Seen::DataEnd(digest_ok)),
                    Err(error) => return (seen, Some(error)),
                }
            }
            assert!(piece.is_empty(), "bytes left over");
        }
        (seen, None)
    }

    /// One PDU of each type that `role` may receive, with data.
    fn stream(role: Role, form: Form) -> Vec<u8> {
        let mut out = Vec::new();
        let data: Vec<u8> = (0..512).map(|i| i as u8).collect();
        let with_data = |out: &mut Vec<u8>| {
            out.extend_from_slice(&data);
            if form.digests.data {
                out.extend_from_slice(&pdu::digest(&data));
            }
        };
        match role {
            Role::Controller => {
                Form::default().put(&mut out, &IcReq::new(form.digests));
                form.put(&mut out, &CapsuleCmd::new([7; 64], 0, form));
                form.put(&mut out, &CapsuleCmd::new([8; 64], 512, form));
                with_data(&mut out);
                form.put(&mut out, &H2CData::new(3, 1, 0, 512, true, form));
                with_data(&mut out);
                pdu::put_term_req(&mut out, true, 1, 4, &[9; 24]);
            }
            Role::Host => {
                Form::default().put(&mut out, &IcResp::new(form.digests, 4096));
                form.put(&mut out, &CapsuleResp::new([7; 16], form));
                form.put(&mut out, &C2HData::new(3, 0, 512, FLAG_LAST_PDU | FLAG_SUCCESS, form));
                with_data(&mut out);
                form.put(&mut out, &R2T::new(3, 1, 0, 512, form));
                pdu::put_term_req(&mut out, false, 1, 4, &[9; 24]);
            }
        }
        out
    }

    fn deframer(role: Role) -> Deframer {
        Deframer::new(role, 8192, 1 << 20)
    }

    /// A deframer that has received the ICReq or ICResp.
    fn initialised(role: Role, form: Form) -> Deframer {
        let mut deframer = deframer(role);
        deframer.initialised(form);
        deframer
    }

    fn forms() -> impl Iterator<Item = Form> {
        let digests = (0..4).map(Digests::from_bits);
        digests.flat_map(|digests| [0, 1, 15, 31].map(|pda| Form { digests, pda }))
    }

    #[test]
    fn the_same_events_come_out_wherever_the_stream_is_cut() {
        for role in [Role::Host, Role::Controller] {
            for form in forms() {
                let bytes = stream(role, form);
                let whole = run(&mut deframer(role), [&bytes[..]].into_iter(), form);
                assert_eq!(whole.1, None);
                assert_eq!(whole.0.len(), if role == Role::Host { 7 } else { 9 });
                let one_by_one = run(&mut deframer(role), bytes.chunks(1), form);
                assert_eq!(one_by_one, whole);
                for cut in 1..bytes.len() {
                    let (head, tail) = bytes.split_at(cut);
                    let pieces = [head, tail].into_iter();
                    assert_eq!(run(&mut deframer(role), pieces, form), whole, "cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn data_received_elsewhere_count_and_are_digested() {
        let form = Form { digests: BOTH, pda: 0 };
        let mut bytes = Vec::new();
        form.put(&mut bytes, &C2HData::new(3, 0, 8, FLAG_LAST_PDU, form));
        let mut deframer = initialised(Role::Host, form);
        assert!(matches!(deframer.next(&mut &bytes[..]), Ok(Some(Event::Header { .. }))));
        assert_eq!(deframer.next(&mut &[][..]), Ok(None));
        assert_eq!((deframer.data_left(), deframer.is_between_pdus()), (8, false));
        deframer.take_data(b"1234");
        assert_eq!(deframer.next(&mut &b"56"[..]), Ok(Some(Event::Data(b"56"))));
        deframer.take_data(b"78");
        assert_eq!(deframer.next(&mut &[][..]), Ok(None));
        assert_eq!((deframer.data_left(), deframer.is_between_pdus()), (0, false));
        let ddgst = pdu::digest(b"12345678");
        let end = deframer.next(&mut &ddgst[..]);
        assert_eq!(end, Ok(Some(Event::DataEnd { digest_ok: true })));
        assert!(deframer.is_between_pdus());
    }

    #[test]
    fn a_wrong_data_digest_is_reported_and_the_stream_continues() {
        let form = Form { digests: BOTH, pda: 0 };
        let mut bytes = Vec::new();
        form.put(&mut bytes, &C2HData::new(3, 0, 4, FLAG_LAST_PDU, form));
        bytes.extend_from_slice(b"data\0\0\0\0");
        form.put(&mut bytes, &CapsuleResp::new([0; 16], form));
        let mut deframer = initialised(Role::Host, form);
        let (seen, error) = run(&mut deframer, [&bytes[..]].into_iter(), form);
        assert_eq!((seen.len(), error), (4, None));
        assert_eq!(seen[2], Seen::DataEnd(false));
        assert!(matches!(seen[3], Seen::Header(Pdu::CapsuleResp(_), 0)));
    }

    #[test]
    fn a_wrong_header_digest_is_fatal_and_stays_so() {
        let form = Form { digests: BOTH, pda: 0 };
        let mut bytes = Vec::new();
        form.put(&mut bytes, &CapsuleResp::new([0; 16], form));
        for bit in 64..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let mut deframer = initialised(Role::Host, form);
            let error = deframer.next(&mut &damaged[..]).unwrap_err();
            assert!(matches!(error, ProtocolError::HeaderDigest { .. }), "bit {bit}: {error}");
            assert_eq!(deframer.next(&mut &bytes[..]), Err(error));
            assert_eq!(deframer.last_header()[..8], bytes[..8]);
        }
    }

    #[test]
    fn every_type_byte_is_refused_where_it_does_not_belong() {
        use ProtocolError::{Sequence, UnexpectedType};
        for byte in 0..=255u8 {
            for role in [Role::Host, Role::Controller] {
                for ready in [false, true] {
                    let mut deframer = deframer(role);
                    if ready {
                        deframer.initialised(Form::default());
                    }
                    let header = [byte, 0, 0, 0, 0, 0, 0, 0];
                    let error = deframer.next(&mut &header[..]).unwrap_err();
                    let ours = PduType::from_byte(byte)
                        .is_some_and(|t| t.is_from_host() == (role == Role::Controller));
                    if !ours {
                        assert_eq!(error, UnexpectedType { pdu_type: byte });
                    } else if byte != 2 && byte != 3 && (byte < 2) == ready {
                        assert_eq!(error, Sequence { pdu_type: byte });
                    } else {
                        assert_eq!(error, ProtocolError::HeaderLen { pdu_type: byte, hlen: 0 });
                    }
                }
            }
        }
    }

    #[test]
    fn every_wrong_header_length_is_refused() {
        for byte in [0x04, 0x05, 0x06, 0x07, 0x09] {
            let role = if byte % 2 == 0 { Role::Controller } else { Role::Host };
            for hlen in 0..=255 {
                let mut deframer = initialised(role, Form { digests: BOTH, pda: 0 });
                let header = [byte, 3, hlen, 76, 200, 0, 0, 0];
                let result = deframer.next(&mut &header[..]);
                if hlen != PduType::from_byte(byte).unwrap().hlen() {
                    assert_eq!(result, Err(ProtocolError::HeaderLen { pdu_type: byte, hlen }));
                }
            }
        }
    }

    #[test]
    fn data_offset_and_pdu_length_must_fit_each_other() {
        let form = Form { digests: BOTH, pda: 1 };
        for pdo in 0..=255u8 {
            for plen in [0, 8, 24, 27, 28, 29, 31, 32, 36, 37, 40, 164, 1 << 20, u32::MAX] {
                let mut bytes = vec![7, 3, 24, pdo];
                bytes.extend_from_slice(&plen.to_le_bytes());
                let result = initialised(Role::Host, form).next(&mut &bytes[..]);
                let pdo_ok = pdo >= 28 && pdo % 8 == 0;
                let fits = u64::from(plen) > u64::from(pdo) + 4 && plen > 28;
                let error = match result {
                    Ok(None) => {
                        assert!(pdo_ok && fits && plen <= 1 << 20, "PDO {pdo}, PLEN {plen}");
                        continue;
                    }
                    Ok(Some(event)) => panic!("{event:?} out of 8 bytes"),
                    Err(error) => error,
                };
                match error {
                    ProtocolError::PduLen { .. } => assert!(!fits),
                    ProtocolError::PduDataOffset { .. } => {
                        assert!(!pdo_ok || u32::from(pdo) > plen);
                    }
                    ProtocolError::DataLimit { .. } => assert_eq!(plen, u32::MAX),
                    other => panic!("{other}"),
                }
            }
        }
    }

    #[test]
    fn digest_flags_must_be_what_was_agreed_and_reserved_flags_mean_nothing() {
        for digests in (0..4).map(Digests::from_bits) {
            for flags in 0..=255u8 {
                let form = Form { digests, pda: 0 };
                let mut bytes = Vec::new();
                form.put(&mut bytes, &C2HData::new(1, 0, 64, 0, form));
                bytes[1] = flags;
                let result = initialised(Role::Host, form).next(&mut &bytes[..8]);
                let right = flags & 3 == digests.to_bits();
                assert_eq!(result.is_ok(), right, "{digests:?}, flags {flags:02X}");
                bytes.clear();
                form.put(&mut bytes, &CapsuleResp::new([0; 16], form));
                bytes[1] = flags;
                let result = initialised(Role::Host, form).next(&mut &bytes[..8]);
                let right = flags & 15 == u8::from(digests.header);
                assert_eq!(result.is_ok(), right, "{digests:?}, flags {flags:02X}");
            }
        }
    }

    #[test]
    fn false_data_lengths_are_refused() {
        let form = Form::default();
        for (datal, error) in [
            (0, ProtocolError::NoData { pdu_type: PduType::C2HData, cid: 9 }),
            (63, ProtocolError::DataLen { pdu_type: PduType::C2HData, expected: 64, found: 63 }),
            (
                u32::MAX,
                ProtocolError::DataLen {
                    pdu_type: PduType::C2HData,
                    expected: 64,
                    found: u32::MAX,
                },
            ),
        ] {
            let mut bytes = Vec::new();
            form.put(&mut bytes, &C2HData::new(9, 0, 64, 0, form));
            bytes[16..20].copy_from_slice(&datal.to_le_bytes());
            assert_eq!(initialised(Role::Host, form).next(&mut &bytes[..]), Err(error));
        }
    }

    #[test]
    fn more_data_than_was_agreed_is_refused_before_it_arrives() {
        let form = Form::default();
        let mut bytes = Vec::new();
        form.put(&mut bytes, &CapsuleCmd::new([0; 64], 8196, form));
        let error = initialised(Role::Controller, form).next(&mut &bytes[..8]).unwrap_err();
        assert_eq!(error, ProtocolError::DataLimit { limit: 8192, found: 8196 });
        assert_eq!(error.fatal_status(), Some((5, 0)));
        let mut wider = initialised(Role::Controller, form);
        wider.set_max_capsule_data(16_384);
        assert!(matches!(wider.next(&mut &bytes[..]), Ok(Some(Event::Header { .. }))));
    }

    #[test]
    fn a_malformed_termination_request_is_not_answered() {
        for plen in [0u32, 23, 153, u32::MAX] {
            let mut header = vec![3, 0, 24, 0];
            header.extend_from_slice(&plen.to_le_bytes());
            let error = deframer(Role::Host).next(&mut &header[..]).unwrap_err();
            assert_eq!(error, ProtocolError::PduLen { pdu_type: 3, plen });
            assert_eq!(error.fatal_status(), None);
        }
        for echo in 0..=128 {
            let mut bytes = Vec::new();
            pdu::put_term_req(&mut bytes, false, 3, 0xDEAD_BEEF, &vec![0; echo]);
            match deframer(Role::Host).next(&mut &bytes[..]) {
                Ok(Some(Event::Header { pdu: Pdu::TermReq(term), data_len: 0 })) => {
                    assert_eq!((term.fes.get(), term.fei.get()), (3, 0xDEAD_BEEF));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_cuts_do_not_change_the_result(
            mut flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
            cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..8),
            noise in proptest::collection::vec(any::<u8>(), 0..40),
            (is_host, bits, pda) in (any::<bool>(), 0..4u8, 0..32u8),
        ) {
            let role = if is_host { Role::Host } else { Role::Controller };
            let form = Form { digests: Digests::from_bits(bits), pda };
            let mut bytes = stream(role, form);
            for (at, mask) in flips.drain(..) {
                let at = at.index(bytes.len());
                bytes[at] ^= mask;
            }
            bytes.extend_from_slice(&noise);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let whole = run(&mut deframer(role), [&bytes[..]].into_iter(), form);
            let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
            prop_assert_eq!(run(&mut deframer(role), pieces, form), whole);
        }
    }
}
