//! Errors that end a connection, and the termination requests that report them to the peer.

use super::pdu::PduType;

/// Reasons for a connection's failure. The stream cannot be resynchronised, so each is fatal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A PDU type that is unknown, or that only this side may send.
    #[error("PDU type {pdu_type:02X}h is unknown or has the wrong direction")]
    UnexpectedType {
        /// The type byte.
        pdu_type: u8,
    },
    /// A PDU before the connection is initialised, or a second initialisation.
    #[error("PDU type {pdu_type:02X}h out of sequence")]
    Sequence {
        /// The type byte.
        pdu_type: u8,
    },
    /// A flag that this PDU must not have, or a digest flag that contradicts the negotiated digests.
    #[error("flags {flags:02X}h are wrong for PDU type {pdu_type:02X}h")]
    Flags {
        /// The type byte.
        pdu_type: u8,
        /// The flags byte.
        flags: u8,
    },
    /// HLEN does not fit the PDU type.
    #[error("header length {hlen} is wrong for PDU type {pdu_type:02X}h")]
    HeaderLen {
        /// The type byte.
        pdu_type: u8,
        /// HLEN.
        hlen: u8,
    },
    /// PDO of a PDU with data is inside the header, not aligned as negotiated, or past the PDU's end.
    #[error("data offset {pdo} is wrong for PDU type {pdu_type:02X}h")]
    PduDataOffset {
        /// The type byte.
        pdu_type: u8,
        /// PDO.
        pdo: u8,
    },
    /// PLEN is outside the range of the type, or does not match the other fields.
    #[error("PDU length {plen} is wrong for PDU type {pdu_type:02X}h")]
    PduLen {
        /// The type byte.
        pdu_type: u8,
        /// PLEN.
        plen: u32,
    },
    /// More data in one PDU or capsule than was negotiated.
    #[error("{found} bytes of data, more than the limit of {limit}")]
    DataLimit {
        /// The limit, in bytes.
        limit: u32,
        /// Bytes in the PDU.
        found: u32,
    },
    /// The header digest is wrong.
    #[error("header digest {found:08X}h on the wire, {expected:08X}h computed")]
    HeaderDigest {
        /// The computed digest.
        expected: u32,
        /// The received digest.
        found: u32,
    },
    /// An unsupported PFV, alignment, MAXH2CDATA or digest bit in ICReq or ICResp.
    #[error("parameter at offset {offset} of the initialisation PDU is {value}: not supported")]
    UnsupportedParameter {
        /// Offset of the field in the PDU.
        offset: u32,
        /// The value of the field.
        value: u32,
    },
    /// A CID that is not outstanding, belongs to an earlier use of its slot, or is of a command that this PDU
    /// does not fit.
    #[error("{pdu_type:?} for CID {cid:04X}h, which is not outstanding or not of that direction")]
    UnknownCid {
        /// The PDU that named it.
        pdu_type: PduType,
        /// The command identifier.
        cid: u16,
    },
    /// A new command with the CID of an outstanding one.
    #[error("CID {cid:04X}h is in use by an outstanding command")]
    CidInUse {
        /// The command identifier.
        cid: u16,
    },
    /// More outstanding commands than the queue size permits.
    #[error("more than {limit} commands outstanding")]
    TooManyCommands {
        /// The limit that follows from the queue size.
        limit: u16,
    },
    /// A transfer tag that no outstanding R2T carried.
    #[error("H2CData with transfer tag {ttag:04X}h, which is not outstanding")]
    UnknownTransferTag {
        /// The tag.
        ttag: u16,
    },
    /// Data or an R2T that does not continue at the end of the previous one.
    #[error("{pdu_type:?} for CID {cid:04X}h at offset {found}, expected {expected}")]
    OutOfOrder {
        /// The PDU.
        pdu_type: PduType,
        /// The command identifier.
        cid: u16,
        /// The offset at which the previous one ended.
        expected: u32,
        /// The offset in the PDU.
        found: u32,
    },
    /// A data PDU or an R2T with length 0.
    #[error("{pdu_type:?} for CID {cid:04X}h with length 0")]
    NoData {
        /// The PDU.
        pdu_type: PduType,
        /// The command identifier.
        cid: u16,
    },
    /// The data length in the header does not match PLEN.
    #[error("{pdu_type:?} of {found} bytes in a PDU with room for {expected}")]
    DataLen {
        /// The PDU.
        pdu_type: PduType,
        /// The length that PLEN, PDO and the digests leave.
        expected: u32,
        /// The length in the header.
        found: u32,
    },
    /// Data or an R2T past the end of the command's data.
    #[error("{pdu_type:?} for CID {cid:04X}h up to {end}, past the command's {len} bytes")]
    OutOfRange {
        /// The PDU.
        pdu_type: PduType,
        /// The command identifier.
        cid: u16,
        /// The end of the range.
        end: u64,
        /// The length of the command's data.
        len: u32,
    },
    /// More outstanding R2Ts for one command than allowed.
    #[error("more R2Ts for CID {cid:04X}h than MAXR2T allows")]
    TooManyR2ts {
        /// The command identifier.
        cid: u16,
    },
    /// LAST_PDU is set before the end of the data or missing at the end, or SUCCESS is set without LAST_PDU.
    #[error("{pdu_type:?} for CID {cid:04X}h with a misplaced LAST_PDU or SUCCESS flag")]
    LastPdu {
        /// The PDU.
        pdu_type: PduType,
        /// The command identifier.
        cid: u16,
    },
    /// Success for a command whose data have not all arrived.
    #[error("success for CID {cid:04X}h after {found} of {expected} bytes")]
    ShortTransfer {
        /// The command identifier.
        cid: u16,
        /// Bytes requested.
        expected: u32,
        /// Bytes received.
        found: u32,
    },
    /// The peer sent a termination request.
    #[error("the peer terminated the connection: fatal error status {fes}, information {fei}")]
    Terminated {
        /// Fatal Error Status (FES).
        fes: u16,
        /// Fatal Error Information (FEI).
        fei: u32,
    },
    /// The controller declined a required digest.
    #[error("the controller declined a required digest")]
    DigestDeclined,
    /// This side abandoned the connection.
    #[error("the connection was abandoned")]
    Abandoned,
    /// The awaited thing did not arrive in time.
    #[error("{0} did not arrive in time")]
    TimedOut(&'static str),
}

/// Checks that a PDU continues the data of a command: its range, an offset and a length, must begin at `expected` and
/// end within `len` bytes. Returns its end.
pub(super) fn check_range(
    pdu_type: PduType,
    cid: u16,
    expected: u32,
    [found, range_len]: [u32; 2],
    len: u32,
) -> Result<u64, ProtocolError> {
    if found != expected {
        return Err(ProtocolError::OutOfOrder { pdu_type, cid, expected, found });
    }
    let end = u64::from(found) + u64::from(range_len);
    if end > u64::from(len) {
        return Err(ProtocolError::OutOfRange { pdu_type, cid, end, len });
    }
    Ok(end)
}

impl ProtocolError {
    /// Fatal Error Status and Information of the termination request that reports this error. `None`: no
    /// request is sent, for example in response to the peer's termination request.
    pub(crate) fn fatal_status(&self) -> Option<(u16, u32)> {
        use ProtocolError::*;
        const C2H_TERM_REQ: u8 = PduType::C2HTermReq as u8;
        const H2C_TERM_REQ: u8 = PduType::H2CTermReq as u8;
        // The information is the offset of the field in the PDU: FLAGS 1, HLEN 2, PDO 3, PLEN 4; in data PDUs and R2Ts
        // CCCID 8, TTAG 10, data offset 12, data length 16; the CID of an SQE 10, of a CQE 20.
        Some(match *self {
            HeaderLen { pdu_type: C2H_TERM_REQ | H2C_TERM_REQ, .. }
            | PduLen { pdu_type: C2H_TERM_REQ | H2C_TERM_REQ, .. } => return None,
            UnexpectedType { .. } => (FES_INVALID_HEADER_FIELD, 0),
            Sequence { .. } => (FES_SEQUENCE, 0),
            Flags { .. } | LastPdu { .. } => (FES_INVALID_HEADER_FIELD, 1),
            HeaderLen { .. } => (FES_INVALID_HEADER_FIELD, 2),
            PduDataOffset { .. } => (FES_INVALID_HEADER_FIELD, 3),
            PduLen { .. } => (FES_INVALID_HEADER_FIELD, 4),
            CidInUse { .. } => (FES_INVALID_HEADER_FIELD, 10),
            DataLimit { .. } | TooManyR2ts { .. } | TooManyCommands { .. } => {
                (FES_LIMIT_EXCEEDED, 0)
            }
            HeaderDigest { found, .. } => (FES_HEADER_DIGEST, found),
            UnsupportedParameter { offset, .. } => (FES_UNSUPPORTED_PARAMETER, offset),
            UnknownCid { pdu_type: PduType::CapsuleResp, .. } => (FES_INVALID_HEADER_FIELD, 20),
            UnknownCid { .. } => (FES_INVALID_HEADER_FIELD, 8),
            UnknownTransferTag { .. } => (FES_INVALID_HEADER_FIELD, 10),
            OutOfOrder { .. } => (FES_INVALID_HEADER_FIELD, 12),
            NoData { .. } | DataLen { .. } => (FES_INVALID_HEADER_FIELD, 16),
            OutOfRange { .. } => (FES_OUT_OF_RANGE, 0),
            ShortTransfer { .. } => (FES_INVALID_HEADER_FIELD, 20),
            Terminated { .. } | DigestDeclined | Abandoned | TimedOut(_) => return None,
        })
    }
}

/// Invalid PDU header field; the information is the offset of the field.
pub(crate) const FES_INVALID_HEADER_FIELD: u16 = 1;
/// PDU sequence error.
pub(crate) const FES_SEQUENCE: u16 = 2;
/// Header digest error; the information is the digest received.
pub(crate) const FES_HEADER_DIGEST: u16 = 3;
/// Data transfer out of range.
pub(crate) const FES_OUT_OF_RANGE: u16 = 4;
/// Data transfer limit or R2T limit exceeded.
pub(crate) const FES_LIMIT_EXCEEDED: u16 = 5;
/// Unsupported parameter; the information is the offset of the field.
pub(crate) const FES_UNSUPPORTED_PARAMETER: u16 = 6;
