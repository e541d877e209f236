//! Protocol data units (PDUs): header structs, and the layout of the bytes after a header.
//!
//! On the wire: `header[HLEN] [HDGST 4] [padding] [data] [DDGST 4]`.
//! Digests are CRC32C, little-endian.

use std::mem::size_of;

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use dlfs_base::checksum::crc32c;

/// PDU types. Even values go from host to controller, odd ones from controller to host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs)] // named as in the specification
pub enum PduType {
    IcReq = 0x00,
    IcResp = 0x01,
    H2CTermReq = 0x02,
    C2HTermReq = 0x03,
    CapsuleCmd = 0x04,
    CapsuleResp = 0x05,
    H2CData = 0x06,
    C2HData = 0x07,
    R2T = 0x09,
}

impl PduType {
    /// The PDU type with this byte, if it exists.
    pub(crate) fn from_byte(byte: u8) -> Option<PduType> {
        use PduType::*;
        [IcReq, IcResp, H2CTermReq, C2HTermReq, CapsuleCmd, CapsuleResp, H2CData, C2HData, R2T]
            .into_iter()
            .find(|pdu_type| *pdu_type as u8 == byte)
    }

    /// HLEN of this type: the header length in bytes without the header digest.
    pub fn hlen(self) -> u8 {
        match self {
            PduType::IcReq | PduType::IcResp => 128,
            PduType::CapsuleCmd => 72,
            _ => 24,
        }
    }

    /// Returns whether digests may follow: false for initialisation and termination PDUs.
    pub(crate) fn may_have_digests(self) -> bool {
        !matches!(
            self,
            PduType::IcReq | PduType::IcResp | PduType::H2CTermReq | PduType::C2HTermReq
        )
    }

    /// Returns whether hosts send this type.
    pub(crate) fn is_from_host(self) -> bool {
        self as u8 & 1 == 0
    }
}

/// Flag: a digest follows the header.
pub(crate) const FLAG_HDGST: u8 = 1 << 0;

/// Flag: a digest follows the data.
pub const FLAG_DDGST: u8 = 1 << 1;

/// Flag of data PDUs: the last PDU of this transfer.
pub const FLAG_LAST_PDU: u8 = 1 << 2;

/// Flag of C2HData: the command has succeeded, and no CapsuleResp follows.
pub const FLAG_SUCCESS: u8 = 1 << 3;

/// Common header (CH): the first 8 bytes of every NVMe/TCP PDU.
///
/// | bytes | field      | meaning                                            |
/// |-------|------------|----------------------------------------------------|
/// | 0     | `pdu_type` | PDU type; 0x04 is CapsuleCmd                       |
/// | 1     | `flags`    | bit 0 HDGSTF, 1 DDGSTF, 2 LAST_PDU, 3 SUCCESS      |
/// | 2     | `hlen`     | header length in bytes, header digest not counted  |
/// | 3     | `pdo`      | PDU data offset: bytes from PDU start to its data  |
/// | 4..8  | `plen`     | length of the whole PDU in bytes                   |
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs)] // the table says it
pub struct CommonHeader {
    pub pdu_type: u8,
    pub flags: u8,
    pub hlen: u8,
    pub pdo: u8,
    pub plen: U32,
}
const _: () = assert!(size_of::<CommonHeader>() == 8);

/// Initialize Connection Request (ICReq).
///
/// | bytes   | field      | meaning                                                     |
/// |---------|------------|-------------------------------------------------------------|
/// | 0..8    | `ch`       | common header; HLEN and PLEN 128                            |
/// | 8..10   | `pfv`      | PDU format version, 0                                       |
/// | 10      | `hpda`     | alignment asked for in C2HData, dwords, 0-based, at most 31 |
/// | 11      | `dgst`     | digests wanted: bit 0 header, bit 1 data                    |
/// | 12..16  | `maxr2t`   | R2Ts outstanding per command, 0-based                       |
/// | 16..128 | `reserved` | 0                                                           |
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs)] // the table says it
pub struct IcReq {
    pub ch: CommonHeader,
    pub pfv: U16,
    pub hpda: u8,
    pub dgst: u8,
    pub maxr2t: U32,
    pub reserved: [u8; 112],
}
const _: () = assert!(size_of::<IcReq>() == 128);

impl IcReq {
    /// Version 0, no padding requested, one R2T at a time.
    pub fn new(digests: Digests) -> IcReq {
        IcReq {
            ch: plain_header(PduType::IcReq, 128),
            dgst: digests.to_bits(),
            ..IcReq::new_zeroed()
        }
    }
}

/// Initialize Connection Response (ICResp).
///
/// | bytes   | field        | meaning                                                              |
/// |---------|--------------|----------------------------------------------------------------------|
/// | 0..8    | `ch`         | common header; HLEN and PLEN 128                                     |
/// | 8..10   | `pfv`        | PDU format version, 0                                                |
/// | 10      | `cpda`       | alignment asked for in CapsuleCmd and H2CData, dwords, 0-based       |
/// | 11      | `dgst`       | digests in force: bit 0 header, bit 1 data                           |
/// | 12..16  | `maxh2cdata` | most data in one H2CData, bytes; at least 4096 and a multiple of 4   |
/// | 16..128 | `reserved`   | 0                                                                    |
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs)] // the table says it
pub struct IcResp {
    pub ch: CommonHeader,
    pub pfv: U16,
    pub cpda: u8,
    pub dgst: u8,
    pub maxh2cdata: U32,
    pub reserved: [u8; 112],
}
const _: () = assert!(size_of::<IcResp>() == 128);

impl IcResp {
    /// Version 0, no padding requested.
    pub fn new(digests: Digests, maxh2cdata: u32) -> IcResp {
        IcResp {
            ch: plain_header(PduType::IcResp, 128),
            dgst: digests.to_bits(),
            maxh2cdata: U32::new(maxh2cdata),
            ..IcResp::new_zeroed()
        }
    }
}

/// Command capsule (CapsuleCmd): a submission queue entry, and optionally in-capsule data.
///
/// | bytes | field | meaning                                             |
/// |-------|-------|-----------------------------------------------------|
/// | 0..8  | `ch`  | common header; HLEN 72                              |
/// | 8..72 | `sqe` | submission queue entry                              |
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs)] // the table says it
pub struct CapsuleCmd {
    pub ch: CommonHeader,
    pub sqe: [u8; 64],
}
const _: () = assert!(size_of::<CapsuleCmd>() == 72);

impl CapsuleCmd {
    /// The header of a capsule with `data_len` bytes of in-capsule data.
    pub fn new(sqe: [u8; 64], data_len: u32, form: Form) -> CapsuleCmd {
        CapsuleCmd { ch: form.header(PduType::CapsuleCmd, 0, data_len), sqe }
    }
}

/// Response capsule (CapsuleResp): a completion queue entry.
///
/// | bytes | field | meaning                                             |
/// |-------|-------|-----------------------------------------------------|
/// | 0..8  | `ch`  | common header; HLEN 24, PDO 0                       |
/// | 8..24 | `cqe` | completion queue entry                              |
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs)] // the table says it
pub struct CapsuleResp {
    pub ch: CommonHeader,
    pub cqe: [u8; 16],
}
const _: () = assert!(size_of::<CapsuleResp>() == 24);

impl CapsuleResp {
    /// The response that carries `cqe`.
    pub fn new(cqe: [u8; 16], form: Form) -> CapsuleResp {
        CapsuleResp { ch: form.header(PduType::CapsuleResp, 0, 0), cqe }
    }
}

/// Data from host to controller (H2CData), in answer to an R2T.
///
/// | bytes  | field      | meaning                                       |
/// |--------|------------|-----------------------------------------------|
/// | 0..8   | `ch`       | common header; HLEN 24                        |
/// | 8..10  | `cccid`    | command identifier                            |
/// | 10..12 | `ttag`     | transfer tag of the R2T                       |
/// | 12..16 | `datao`    | offset in the command's data, bytes           |
/// | 16..20 | `datal`    | bytes of data in this PDU                     |
/// | 20..24 | `reserved` | 0                                             |
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs)] // the table says it
pub struct H2CData {
    pub ch: CommonHeader,
    pub cccid: U16,
    pub ttag: U16,
    pub datao: U32,
    pub datal: U32,
    pub reserved: U32,
}
const _: () = assert!(size_of::<H2CData>() == 24);

impl H2CData {
    /// The header for `datal` bytes at offset `datao`, in response to the R2T with `ttag`.
    pub fn new(cccid: u16, ttag: u16, datao: u32, datal: u32, last: bool, form: Form) -> H2CData {
        let flags = if last { FLAG_LAST_PDU } else { 0 };
        H2CData {
            ch: form.header(PduType::H2CData, flags, datal),
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            datao: U32::new(datao),
            datal: U32::new(datal),
            reserved: U32::ZERO,
        }
    }
}

/// Data from controller to host (C2HData), for a read.
///
/// | bytes  | field       | meaning                                       |
/// |--------|-------------|-----------------------------------------------|
/// | 0..8   | `ch`        | common header; HLEN 24                        |
/// | 8..10  | `cccid`     | command identifier                            |
/// | 10..12 | `reserved0` | 0                                             |
/// | 12..16 | `datao`     | offset in the command's data, bytes           |
/// | 16..20 | `datal`     | bytes of data in this PDU                     |
/// | 20..24 | `reserved1` | 0                                             |
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs)] // the table says it
pub struct C2HData {
    pub ch: CommonHeader,
    pub cccid: U16,
    pub reserved0: U16,
    pub datao: U32,
    pub datal: U32,
    pub reserved1: U32,
}
const _: () = assert!(size_of::<C2HData>() == 24);

impl C2HData {
    /// The header for `datal` bytes at offset `datao`; `flags` may contain [`FLAG_LAST_PDU`] and
    /// [`FLAG_SUCCESS`].
    pub fn new(cccid: u16, datao: u32, datal: u32, flags: u8, form: Form) -> C2HData {
        C2HData {
            ch: form.header(PduType::C2HData, flags, datal),
            cccid: U16::new(cccid),
            datao: U32::new(datao),
            datal: U32::new(datal),
            ..C2HData::new_zeroed()
        }
    }
}

/// Ready to Transfer (R2T): the controller requests part of a write's data.
///
/// | bytes  | field      | meaning                                       |
/// |--------|------------|-----------------------------------------------|
/// | 0..8   | `ch`       | common header; HLEN 24, PDO 0                 |
/// | 8..10  | `cccid`    | command identifier                            |
/// | 10..12 | `ttag`     | the controller's tag, to be given back        |
/// | 12..16 | `r2to`     | offset in the command's data, bytes           |
/// | 16..20 | `r2tl`     | bytes asked for                               |
/// | 20..24 | `reserved` | 0                                             |
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs)] // the table says it
pub struct R2T {
    pub ch: CommonHeader,
    pub cccid: U16,
    pub ttag: U16,
    pub r2to: U32,
    pub r2tl: U32,
    pub reserved: U32,
}
const _: () = assert!(size_of::<R2T>() == 24);

impl R2T {
    /// Requests `r2tl` bytes at offset `r2to`.
    pub fn new(cccid: u16, ttag: u16, r2to: u32, r2tl: u32, form: Form) -> R2T {
        R2T {
            ch: form.header(PduType::R2T, 0, 0),
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            r2to: U32::new(r2to),
            r2tl: U32::new(r2tl),
            reserved: U32::ZERO,
        }
    }
}

/// Termination request, H2CTermReq or C2HTermReq; the offending PDU's header follows it.
///
/// | bytes  | field      | meaning                                                        |
/// |--------|------------|----------------------------------------------------------------|
/// | 0..8   | `ch`       | common header; HLEN 24, PLEN 24 to 152, never a digest         |
/// | 8..10  | `fes`      | fatal error status                                             |
/// | 10..14 | `fei`      | field offset (FES 1, 6), digest received (FES 3), else 0       |
/// | 14..24 | `reserved` | 0                                                              |
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs)] // the table says it
pub struct TermReq {
    pub ch: CommonHeader,
    pub fes: U16,
    pub fei: U32,
    pub reserved: [u8; 10],
}
const _: () = assert!(size_of::<TermReq>() == 24);

/// Appends a termination request that quotes up to 128 bytes of `offending`, the header of the PDU in
/// error. Peers expect at least 8 bytes.
pub fn put_term_req(out: &mut Vec<u8>, from_host: bool, fes: u16, fei: u32, offending: &[u8]) {
    let echo = &offending[..offending.len().min(MAX_TERM_REQ_LEN - size_of::<TermReq>())];
    let pdu_type = if from_host { PduType::H2CTermReq } else { PduType::C2HTermReq };
    let header = TermReq {
        ch: plain_header(pdu_type, (size_of::<TermReq>() + echo.len()) as u32),
        fes: U16::new(fes),
        fei: U32::new(fei),
        reserved: [0; 10],
    };
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(echo);
}

/// Maximum length of a termination request.
pub(crate) const MAX_TERM_REQ_LEN: usize = 152;

/// The negotiated form of the PDUs that one side sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Form {
    /// Digests in use.
    pub digests: Digests,
    /// Data alignment that the receiver requested: CPDA or HPDA as on the wire.
    pub pda: u8,
}

impl Form {
    /// Length of the header digest after a header of this type, in bytes.
    pub(crate) fn header_digest_len(self, pdu_type: PduType) -> usize {
        if self.digests.header && pdu_type.may_have_digests() { 4 } else { 0 }
    }

    /// Length of the data digest after `data_len` bytes of data.
    pub(crate) fn data_digest_len(self, data_len: u32) -> usize {
        if self.digests.data && data_len > 0 { 4 } else { 0 }
    }

    /// Data alignment, in bytes.
    pub(crate) fn alignment(self) -> usize {
        (usize::from(self.pda) + 1) * 4
    }

    /// PDO of a PDU with data.
    fn pdo(self, pdu_type: PduType) -> usize {
        let end = usize::from(pdu_type.hlen()) + self.header_digest_len(pdu_type);
        end.next_multiple_of(self.alignment())
    }

    /// The common header of a PDU of this form. `data_len` is this side's own value, far below `u32::MAX`.
    fn header(self, pdu_type: PduType, mut flags: u8, data_len: u32) -> CommonHeader {
        let hdgst_len = self.header_digest_len(pdu_type) as u32;
        let ddgst_len = self.data_digest_len(data_len) as u32;
        flags |= if hdgst_len > 0 { FLAG_HDGST } else { 0 };
        flags |= if ddgst_len > 0 { FLAG_DDGST } else { 0 };
        let pdo = if data_len > 0 { self.pdo(pdu_type) } else { 0 };
        let plen = match data_len {
            0 => u32::from(pdu_type.hlen()) + hdgst_len,
            _ => pdo as u32 + data_len + ddgst_len,
        };
        CommonHeader {
            pdu_type: pdu_type as u8,
            flags,
            hlen: pdu_type.hlen(),
            pdo: u8::try_from(pdo).expect("76 rounded up to at most 128 is below 256"),
            plen: U32::new(plen),
        }
    }

    /// Appends the bytes that precede a PDU's data: header, header digest, padding.
    pub fn put<H: IntoBytes + Immutable>(self, out: &mut Vec<u8>, header: &H) {
        let bytes = header.as_bytes();
        let start = out.len();
        out.extend_from_slice(bytes);
        if bytes[1] & FLAG_HDGST != 0 {
            out.extend_from_slice(&digest(bytes));
        }
        let pdo = usize::from(bytes[3]);
        if pdo > 0 {
            out.resize(start + pdo, 0);
        }
    }
}

/// A common header without digests and data.
fn plain_header(pdu_type: PduType, plen: u32) -> CommonHeader {
    CommonHeader {
        pdu_type: pdu_type as u8,
        flags: 0,
        hlen: pdu_type.hlen(),
        pdo: 0,
        plen: U32::new(plen),
    }
}

/// Digests in use on a connection, or requested for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// HDGST: a digest follows every header.
    pub header: bool,
    /// DDGST: a digest follows the data of a PDU.
    pub data: bool,
}

impl Digests {
    /// The DGST byte of ICReq and ICResp: bit 0 header, bit 1 data.
    pub fn to_bits(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }

    /// The names of the digests in use; `None` without digests.
    pub fn as_text(self) -> Option<&'static str> {
        match (self.header, self.data) {
            (false, false) => None,
            (true, false) => Some("header digest"),
            (false, true) => Some("data digest"),
            (true, true) => Some("header and data digest"),
        }
    }

    /// Decodes a DGST byte; other bits are reserved.
    pub fn from_bits(bits: u8) -> Digests {
        Digests { header: bits & 1 != 0, data: bits & 2 != 0 }
    }
}

/// The digest of `bytes`, in wire format.
pub fn digest(bytes: &[u8]) -> [u8; 4] {
    crc32c(bytes).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Digests = Digests { header: true, data: true };

    /// Decodes hexadecimal `text`; ignores whitespace.
    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        digits.chunks(2).map(|digits| pair(digits).unwrap()).collect()
    }

    fn put<H: IntoBytes + Immutable>(form: Form, header: H) -> Vec<u8> {
        let mut out = Vec::new();
        form.put(&mut out, &header);
        out
    }

    #[test]
    fn common_header_reads_a_capsule_cmd_without_data() {
        let ch = CommonHeader::read_from_bytes(&[0x04, 0, 72, 0, 72, 0, 0, 0]).unwrap();
        assert_eq!((ch.pdu_type, ch.hlen, ch.plen.get()), (0x04, 72, 72));
    }

    #[test]
    fn initialisation_pdus_are_the_known_bytes() {
        let mut expected = hex("00008000800000000000000300000000");
        expected.resize(128, 0);
        assert_eq!(put(Form::default(), IcReq::new(BOTH)), expected);
        let mut expected = hex("01008000800000000000000300000200");
        expected.resize(128, 0);
        assert_eq!(put(Form::default(), IcResp::new(BOTH, 131_072)), expected);
    }

    #[test]
    fn a_connect_capsule_with_both_digests_is_the_known_bytes() {
        let expected = hex(
            "0403484c500400007f400000010000000000000000000000000000000000000000000000000000000004000000000001
             000000001f000400983a0000000000000000000000000000 35f34c48",
        );
        let form = Form { digests: BOTH, pda: 0 };
        let sqe = expected[8..72].try_into().unwrap();
        assert_eq!(put(form, CapsuleCmd::new(sqe, 1024, form)), expected);
    }

    #[test]
    fn capsules_without_digests_are_the_known_bytes() {
        let form = Form::default();
        for (data_len, text) in [
            (
                0,
                "04004800480000000240070001000000000000000000000000000000000000000000000000000000001000000000005a
                 100000000000000007000000000000000000000000000000",
            ),
            (
                512,
                "040048484802000001400c00010000000000000000000000000000000000000000000000000000000002000000000001
                 000000000000000000000000000000000000000000000000",
            ),
        ] {
            let expected = hex(text);
            let sqe = expected[8..72].try_into().unwrap();
            assert_eq!(put(form, CapsuleCmd::new(sqe, data_len, form)), expected);
        }
    }

    #[test]
    fn c2h_data_is_the_known_bytes_under_every_alignment() {
        let form = Form::default();
        let both_flags = FLAG_LAST_PDU | FLAG_SUCCESS;
        assert_eq!(
            put(form, C2HData::new(7, 0, 4096, both_flags, form)),
            hex("070c18181810000007000000000000000010000000000000")
        );
        let form = Form { digests: BOTH, pda: 0 };
        assert_eq!(
            put(form, C2HData::new(7, 0, 4096, both_flags, form)),
            hex("070f181c2010000007000000000000000010000000000000 358ba6fa")
        );
        for (pda, pdo, text) in [
            (0, 28, "0707181c2002000007000000000000000002000000000000 043f29d3"),
            (1, 32, "070718202402000007000000000000000002000000000000 adec5826"),
            (15, 64, "070718404402000007000000000000000002000000000000 d4f384d7"),
            (31, 128, "070718808402000007000000000000000002000000000000 d7bbd031"),
        ] {
            let form = Form { digests: BOTH, pda };
            let mut expected = hex(text);
            expected.resize(pdo, 0);
            assert_eq!(put(form, C2HData::new(7, 0, 512, FLAG_LAST_PDU, form)), expected);
        }
    }

    #[test]
    fn response_r2t_and_h2c_data_are_the_known_bytes() {
        let plain = Form::default();
        let digested = Form { digests: BOTH, pda: 0 };
        let cqe = hex("00000000000000000100010007000000").try_into().unwrap();
        assert_eq!(
            put(plain, CapsuleResp::new(cqe, plain)),
            hex("050018001800000000000000000000000100010007000000")
        );
        assert_eq!(
            put(digested, CapsuleResp::new(cqe, digested)),
            hex("050118001c00000000000000000000000100010007000000 6fbc0f36")
        );
        assert_eq!(
            put(plain, R2T::new(9, 1, 0, 131_072, plain)),
            hex("090018001800000009000100000000000000020000000000")
        );
        assert_eq!(
            put(digested, R2T::new(9, 1, 0, 131_072, digested)),
            hex("090118001c00000009000100000000000000020000000000 589ba55f")
        );
        assert_eq!(
            put(plain, H2CData::new(9, 1, 0, 131_072, true, plain)),
            hex("060418181800020009000100000000000000020000000000")
        );
    }

    #[test]
    fn a_termination_request_is_the_known_bytes_and_echoes_at_most_128() {
        let mut out = Vec::new();
        let offending = hex("070c1818ffffffff07000000000000000010000000000000");
        put_term_req(&mut out, true, 1, 4, &offending);
        assert_eq!(
            out,
            hex(
                "020018003000000001000400000000000000000000000000070c1818ffffffff07000000000000000010000000000000"
            )
        );
        out.clear();
        put_term_req(&mut out, false, 2, 0, &[0; 300]);
        assert_eq!((out.len(), out[0], out[4]), (MAX_TERM_REQ_LEN, 0x03, 152));
    }

    #[test]
    fn data_start_at_a_multiple_of_every_alignment_that_can_be_agreed() {
        for pda in 0..=31 {
            for digests in [Digests::default(), BOTH] {
                let form = Form { digests, pda };
                let header = CapsuleCmd::new([0; 64], 4096, form);
                let out = put(form, header);
                assert_eq!(out.len() % form.alignment(), 0);
                assert_eq!(out.len(), usize::from(header.ch.pdo));
                let data_digest = form.data_digest_len(4096);
                assert_eq!(out.len() + 4096 + data_digest, header.ch.plen.get() as usize);
            }
        }
    }

    #[test]
    fn types_have_the_direction_of_their_lowest_bit() {
        for byte in 0..=255 {
            if let Some(pdu_type) = PduType::from_byte(byte) {
                assert_eq!(pdu_type as u8, byte);
                assert_eq!(pdu_type.is_from_host(), byte % 2 == 0);
            }
        }
        assert_eq!(PduType::from_byte(0x08), None);
    }

    #[test]
    fn the_digest_of_known_bytes_is_the_published_one() {
        let rising: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0..32).rev().collect();
        for (bytes, wire) in [
            (&b"123456789"[..], [0x83, 0x92, 0x06, 0xE3]),
            (&[0; 32], [0xAA, 0x36, 0x91, 0x8A]),
            (&[0xFF; 32], [0x43, 0xAB, 0xA8, 0x62]),
            (&rising, [0x4E, 0x79, 0xDD, 0x46]),
            (&falling, [0x5C, 0xDB, 0x3F, 0x11]),
            (&[], [0; 4]),
            (&[0; 512], [0xC0, 0xED, 0xFC, 0x30]),
            (&[0; 4096], [0x89, 0x41, 0xF9, 0x98]),
        ] {
            assert_eq!(digest(bytes), wire, "{} bytes", bytes.len());
        }
    }

    #[test]
    fn digest_bits_are_header_first_and_reserved_bits_mean_nothing() {
        for bits in 0..=255 {
            assert_eq!(Digests::from_bits(bits).to_bits(), bits & 3);
        }
        assert_eq!(Digests { header: true, data: false }.to_bits(), 1);
    }
}
