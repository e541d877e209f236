//! What a peer can do wrong on a connection, and how a termination request names it.

use super::pdu::PduType;

/// Why a connection is given up. There is no resynchronisation: each of these is fatal to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// No such PDU type, or one that only our own side sends.
    #[error("PDU type {pdu_type:02X}h is not one to receive here")]
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
    /// A flag that this PDU may not have, or a digest flag that disagrees with what was agreed.
    #[error("flags {flags:02X}h are wrong for PDU type {pdu_type:02X}h")]
    Flags {
        /// The type byte.
        pdu_type: u8,
        /// The flags byte.
        flags: u8,
    },
    /// HLEN is not that of the type.
    #[error("header length {hlen} is wrong for PDU type {pdu_type:02X}h")]
    HeaderLen {
        /// The type byte.
        pdu_type: u8,
        /// HLEN.
        hlen: u8,
    },
    /// PDO is inside the header, not aligned as agreed, or set on a PDU without data.
    #[error("data offset {pdo} is wrong for PDU type {pdu_type:02X}h")]
    PduDataOffset {
        /// The type byte.
        pdu_type: u8,
        /// PDO.
        pdo: u8,
    },
    /// PLEN is out of the range of the type, or does not match the other fields.
    #[error("PDU length {plen} is wrong for PDU type {pdu_type:02X}h")]
    PduLen {
        /// The type byte.
        pdu_type: u8,
        /// PLEN.
        plen: u32,
    },
    /// More data in one PDU or capsule than was agreed.
    #[error("{found} bytes of data where at most {limit} were agreed")]
    DataLimit {
        /// The agreed limit, in bytes.
        limit: u32,
        /// Bytes in the PDU.
        found: u32,
    },
    /// The header digest differs.
    #[error("header digest {found:08X}h on the wire, {expected:08X}h computed")]
    HeaderDigest {
        /// What we computed.
        expected: u32,
        /// What was received.
        found: u32,
    },
    /// PFV, an alignment, MAXH2CDATA or a digest bit of ICReq or ICResp that cannot be.
    #[error("parameter at offset {offset} of the initialisation PDU is {value}: not supported")]
    UnsupportedParameter {
        /// Offset of the field in the PDU.
        offset: u32,
        /// Its value.
        value: u32,
    },
    /// A CID that is not outstanding, or whose generation is an old one.
    #[error("{pdu_type:?} for CID {cid:04X}h, which is not outstanding or not of that direction")]
    UnknownCid {
        /// The PDU that named it.
        pdu_type: PduType,
        /// The command identifier.
        cid: u16,
    },
    /// A command whose identifier another outstanding command has.
    #[error("CID {cid:04X}h is in use by an outstanding command")]
    CidInUse {
        /// The command identifier.
        cid: u16,
    },
    /// More commands outstanding than the queue has room for.
    #[error("more than {limit} commands outstanding")]
    TooManyCommands {
        /// The most that the queue's size allows.
        limit: u16,
    },
    /// A transfer tag that no R2T gave out.
    #[error("H2CData with transfer tag {ttag:04X}h, which is not outstanding")]
    UnknownTransferTag {
        /// The tag.
        ttag: u16,
    },
    /// Data or an R2T that does not continue where the last one ended.
    #[error("{pdu_type:?} for CID {cid:04X}h at offset {found}, expected {expected}")]
    OutOfOrder {
        /// The PDU.
        pdu_type: PduType,
        /// The command identifier.
        cid: u16,
        /// The offset that would continue.
        expected: u32,
        /// The offset in the PDU.
        found: u32,
    },
    /// A data PDU or an R2T of no bytes.
    #[error("{pdu_type:?} for CID {cid:04X}h of no bytes")]
    NoData {
        /// The PDU.
        pdu_type: PduType,
        /// The command identifier.
        cid: u16,
    },
    /// The data length of the header is not what PLEN leaves room for.
    #[error("{pdu_type:?} of {found} bytes in a PDU with room for {expected}")]
    DataLen {
        /// The PDU.
        pdu_type: PduType,
        /// What PLEN, PDO and the digests leave.
        expected: u32,
        /// What the header says.
        found: u32,
    },
    /// Data or an R2T past the end of the command's data.
    #[error("{pdu_type:?} for CID {cid:04X}h up to {end}, past the command's {len} bytes")]
    OutOfRange {
        /// The PDU.
        pdu_type: PduType,
        /// The command identifier.
        cid: u16,
        /// Where it would end.
        end: u64,
        /// The length of the command's data.
        len: u32,
    },
    /// More R2Ts for one command than the other side allowed.
    #[error("more R2Ts for CID {cid:04X}h than MAXR2T allows")]
    TooManyR2ts {
        /// The command identifier.
        cid: u16,
    },
    /// LAST_PDU before the end of the data, or missing at its end, or SUCCESS without it.
    #[error("{pdu_type:?} for CID {cid:04X}h with LAST_PDU or SUCCESS where it cannot be")]
    LastPdu {
        /// The PDU.
        pdu_type: PduType,
        /// The command identifier.
        cid: u16,
    },
    /// Success for a command whose data has not all arrived.
    #[error("success for CID {cid:04X}h after {found} of {expected} bytes")]
    ShortTransfer {
        /// The command identifier.
        cid: u16,
        /// Bytes asked for.
        expected: u32,
        /// Bytes that came.
        found: u32,
    },
    /// The peer ended the connection with a termination request.
    #[error("the peer terminated the connection: fatal error status {fes}, information {fei}")]
    Terminated {
        /// Fatal Error Status (FES).
        fes: u16,
        /// Fatal Error Information (FEI).
        fei: u32,
    },
    /// A digest that was required was declined.
    #[error("the controller declined a digest that was asked for")]
    DigestDeclined,
    /// Our own side gave the connection up.
    #[error("the connection was given up")]
    Abandoned,
    /// Something did not arrive within its time.
    #[error("{0} did not come within its time")]
    TimedOut(&'static str),
}

impl ProtocolError {
    /// Fatal Error Status and Information for the termination request that answers this error;
    /// `None` where none is sent: a termination request is never answered by another.
    pub fn fatal_status(&self) -> Option<(u16, u32)> {
        use ProtocolError::*;
        const C2H_TERM_REQ: u8 = PduType::C2HTermReq as u8;
        const H2C_TERM_REQ: u8 = PduType::H2CTermReq as u8;
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
pub const FES_INVALID_HEADER_FIELD: u16 = 1;
/// PDU sequence error.
pub const FES_SEQUENCE: u16 = 2;
/// Header digest error; the information is the digest received.
pub const FES_HEADER_DIGEST: u16 = 3;
/// Data transfer out of range.
pub const FES_OUT_OF_RANGE: u16 = 4;
/// Data transfer limit or R2T limit exceeded.
pub const FES_LIMIT_EXCEEDED: u16 = 5;
/// Unsupported parameter; the information is the offset of the field.
pub const FES_UNSUPPORTED_PARAMETER: u16 = 6;
