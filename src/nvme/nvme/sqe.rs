//! Submission queue entry (SQE), 64 bytes: every command that dlfs sends or serves.
//!
//! Its Scatter Gather List (SGL) descriptor, or a pair of PRP entries in the same bytes, is the location of a command's
//! data.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ConnectData, Property};
use dlfs_base::units::{Lba, Nsid};

/// Submission queue entry: one command.
///
/// | bytes  | field            | meaning                                                       |
/// |--------|------------------|---------------------------------------------------------------|
/// | 0      | `opcode`         | see [`admin`], [`nvm`]; 7Fh is a Fabrics command              |
/// | 1      | `flags`          | 1:0 fused, 7:6 PSDT; always 40h on fabrics                    |
/// | 2..4   | `cid`            | command identifier, unique among those outstanding            |
/// | 4..8   | `nsid`           | namespace; a Fabrics command has its FCTYPE in byte 4         |
/// | 8..16  | `cdw2`, `cdw3`   | command dwords 2 and 3                                        |
/// | 16..24 | `mptr`           | metadata pointer, zero                                        |
/// | 24..40 | `sgl`            | SGL descriptor 1                                              |
/// | 40..64 | `cdw10`..`cdw15` | command dwords 10 to 15                                       |
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Sqe {
    /// Opcode.
    pub opcode: u8,
    /// Fused operation and PSDT.
    pub flags: u8,
    /// Command identifier.
    pub cid: U16,
    /// Namespace identifier, or FCTYPE in the lowest byte.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata pointer.
    pub mptr: U64,
    /// SGL descriptor of the data.
    pub sgl: Sgl,
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}
const _: () = assert!(size_of::<Sqe>() == 64);

/// Opcodes of the admin command set.
pub mod admin {
    /// Delete I/O Submission Queue; not over fabrics.
    pub const DELETE_SQ: u8 = 0x00;
    /// Create I/O Submission Queue; not over fabrics.
    pub const CREATE_SQ: u8 = 0x01;
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O Completion Queue; not over fabrics.
    pub const DELETE_CQ: u8 = 0x04;
    /// Create I/O Completion Queue; not over fabrics.
    pub const CREATE_CQ: u8 = 0x05;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0A;
    /// Asynchronous Event Request (AER).
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0C;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes of the NVM command set.
pub mod nvm {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Zeroes.
    pub(crate) const WRITE_ZEROES: u8 = 0x08;
}

/// Types of Fabrics commands (FCTYPE, byte 4), and their opcode.
pub mod fctype {
    /// The opcode of all Fabrics commands.
    pub const OPCODE: u8 = 0x7F;
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
}

/// Identify data structures (CNS, bits 7:0 of dword 10).
pub mod cns {
    /// A namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Identifiers of the active namespaces above a given one.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace identification descriptors.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// A namespace, specific to the command set in CSI.
    pub const CSI_NAMESPACE: u8 = 0x05;
    /// The controller, specific to the command set in CSI.
    pub const CSI_CONTROLLER: u8 = 0x06;
    /// Active namespaces of the command set in CSI.
    pub const CSI_ACTIVE_NAMESPACES: u8 = 0x07;
    /// A namespace, independent of the command set.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
}

/// Feature identifiers (FID, bits 7:0 of dword 10).
pub mod feature {
    /// Error recovery: whether reads of deallocated blocks fail, and time limits.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Bit 16 of Dword 11 of Error Recovery (DULBE): reads of deallocated or unwritten blocks fail with a status
    /// of their own.
    pub const DULBE: u32 = 1 << 16;
    /// Volatile write cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of queues.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Asynchronous event configuration.
    pub const ASYNC_EVENT_CONFIG: u8 = 0x0B;
    /// Keep alive timer.
    pub const KEEP_ALIVE_TIMER: u8 = 0x0F;
    /// Host behaviour support.
    pub const HOST_BEHAVIOR: u8 = 0x16;
    /// Host identifier.
    pub const HOST_ID: u8 = 0x81;
}

/// Log page identifiers (LID, bits 7:0 of dword 10).
pub mod log_page {
    /// Error information.
    pub const ERROR: u8 = 0x01;
    /// Health information (SMART).
    pub const HEALTH: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE_SLOT: u8 = 0x03;
    /// Changed namespaces.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands supported and their effects.
    pub const COMMAND_EFFECTS: u8 = 0x05;
    /// Asymmetric namespace access.
    pub const ANA: u8 = 0x0C;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}

/// Byte 1 of every command on fabrics: PSDT 01b, not fused.
pub const FLAGS_SGL: u8 = 0x40;

/// Force Unit Access: bit 30 of dword 12 of a write or read.
pub const FUA: u32 = 1 << 30;

impl Sqe {
    /// A command with `opcode` for `nsid`; all else is zero, except the SGL flag and an empty SGL.
    pub fn new(opcode: u8, cid: u16, nsid: Nsid) -> Sqe {
        Sqe {
            opcode,
            flags: FLAGS_SGL,
            cid: U16::new(cid),
            nsid: U32::new(nsid.0),
            sgl: Sgl::transport(0),
            ..Sqe::new_zeroed()
        }
    }

    /// Read of `num_blocks` (1 to 65,536) blocks from `slba`; `len_bytes` in total.
    pub fn read(cid: u16, nsid: Nsid, slba: Lba, num_blocks: u32, len_bytes: u32) -> Sqe {
        Sqe::blocks(nvm::READ, cid, nsid, slba, num_blocks, Sgl::transport(len_bytes))
    }

    /// Write of `num_blocks` (1 to 65,536) blocks at `slba`; `sgl` describes the data.
    pub fn write(cid: u16, nsid: Nsid, slba: Lba, num_blocks: u32, sgl: Sgl) -> Sqe {
        Sqe::blocks(nvm::WRITE, cid, nsid, slba, num_blocks, sgl)
    }

    /// Write Zeroes to `num_blocks` (1 to 65,536) blocks at `slba`.
    pub fn write_zeroes(cid: u16, nsid: Nsid, slba: Lba, num_blocks: u32) -> Sqe {
        Sqe::blocks(nvm::WRITE_ZEROES, cid, nsid, slba, num_blocks, Sgl::transport(0))
    }

    /// A command on blocks.
    fn blocks(op: u8, cid: u16, nsid: Nsid, slba: Lba, num_blocks: u32, sgl: Sgl) -> Sqe {
        assert!((1..=65_536).contains(&num_blocks), "NLB is a 0-based u16");
        let mut sqe = Sqe::new(op, cid, nsid);
        sqe.sgl = sgl;
        sqe.set_cdw10_11(slba.0);
        sqe.cdw12 = U32::new(num_blocks - 1);
        sqe
    }

    /// Flush: makes all completed writes of the namespace durable.
    pub fn flush(cid: u16, nsid: Nsid) -> Sqe {
        Sqe::new(nvm::FLUSH, cid, nsid)
    }

    /// Identify with `cns`, which returns 4,096 bytes.
    pub fn identify(cid: u16, cns: u8, nsid: Nsid) -> Sqe {
        let mut sqe = Sqe::new(admin::IDENTIFY, cid, nsid);
        sqe.sgl = Sgl::transport(4096);
        sqe.cdw10 = U32::new(u32::from(cns));
        sqe
    }

    /// Set Features of `fid` to `value` (dword 11), without data.
    pub fn set_features(cid: u16, fid: u8, value: u32) -> Sqe {
        let mut sqe = Sqe::new(admin::SET_FEATURES, cid, Nsid(0));
        sqe.cdw10 = U32::new(u32::from(fid));
        sqe.cdw11 = U32::new(value);
        sqe
    }

    /// Get Features of `fid`, current value, without data.
    pub fn get_features(cid: u16, fid: u8) -> Sqe {
        let mut sqe = Sqe::new(admin::GET_FEATURES, cid, Nsid(0));
        sqe.cdw10 = U32::new(u32::from(fid));
        sqe
    }

    /// Set Features, number of queues: requests `num_queues` (1 to 65,535) of each kind.
    pub fn set_num_queues(cid: u16, num_queues: u16) -> Sqe {
        assert!(num_queues >= 1, "the field is 0-based");
        let wire = u32::from(num_queues - 1);
        Sqe::set_features(cid, feature::NUMBER_OF_QUEUES, wire << 16 | wire)
    }

    /// Keep Alive.
    pub fn keep_alive(cid: u16) -> Sqe {
        Sqe::new(admin::KEEP_ALIVE, cid, Nsid(0))
    }

    /// Asynchronous Event Request.
    pub fn async_event_request(cid: u16) -> Sqe {
        Sqe::new(admin::ASYNC_EVENT_REQUEST, cid, Nsid(0))
    }

    /// Get Log Page `lid`: `len_bytes` (a multiple of 4, above 0) from `offset_bytes`.
    pub fn get_log_page(cid: u16, lid: u8, offset_bytes: u64, len_bytes: u32) -> Sqe {
        assert!(len_bytes >= 4 && len_bytes.is_multiple_of(4), "the length is counted in dwords");
        let num_dwords = len_bytes / 4 - 1;
        let mut sqe = Sqe::new(admin::GET_LOG_PAGE, cid, Nsid(0));
        sqe.sgl = Sgl::transport(len_bytes);
        sqe.cdw10 = U32::new(u32::from(lid) | (num_dwords & 0xFFFF) << 16);
        sqe.cdw11 = U32::new(num_dwords >> 16);
        sqe.cdw12 = U32::new((offset_bytes & 0xFFFF_FFFF) as u32);
        sqe.cdw13 = U32::new((offset_bytes >> 32) as u32);
        sqe
    }

    /// Fabrics Connect of queue `qid` with `sqsize` entries, **0-based** as on the wire.
    ///
    /// `kato_ms` has a meaning on the admin queue only. Requests to disable SQ flow control.
    pub fn connect(cid: u16, qid: u16, sqsize: u16, kato_ms: u32) -> Sqe {
        let mut sqe = Sqe::fabrics(fctype::CONNECT, cid);
        sqe.sgl = Sgl::in_capsule(size_of::<ConnectData>() as u32);
        sqe.cdw10 = U32::new(u32::from(qid) << 16);
        sqe.cdw11 = U32::new(u32::from(sqsize) | u32::from(CATTR_DISABLE_SQ_FLOW_CONTROL) << 16);
        sqe.cdw12 = U32::new(kato_ms);
        sqe
    }

    /// Fabrics Property Get; both dwords of the completion hold the value.
    pub fn property_get(cid: u16, property: Property) -> Sqe {
        let mut sqe = Sqe::fabrics(fctype::PROPERTY_GET, cid);
        sqe.cdw10 = U32::new(u32::from(property.len_bytes() == 8));
        sqe.cdw11 = U32::new(property.offset());
        sqe
    }

    /// Fabrics Property Set.
    pub fn property_set(cid: u16, property: Property, value: u64) -> Sqe {
        let mut sqe = Sqe::fabrics(fctype::PROPERTY_SET, cid);
        sqe.cdw10 = U32::new(u32::from(property.len_bytes() == 8));
        sqe.cdw11 = U32::new(property.offset());
        sqe.cdw12 = U32::new((value & 0xFFFF_FFFF) as u32);
        sqe.cdw13 = U32::new((value >> 32) as u32);
        sqe
    }

    /// Fabrics Authentication Send of `len` bytes.
    pub fn authentication_send(cid: u16, len: u32) -> Sqe {
        Sqe::authentication(fctype::AUTHENTICATION_SEND, cid, len)
    }

    /// Fabrics Authentication Receive of at most `len` bytes.
    pub fn authentication_receive(cid: u16, len: u32) -> Sqe {
        Sqe::authentication(fctype::AUTHENTICATION_RECEIVE, cid, len)
    }

    fn authentication(fctype: u8, cid: u16, len: u32) -> Sqe {
        let mut sqe = Sqe::fabrics(fctype, cid);
        sqe.cdw10 = U32::new(NVME_AUTHENTICATION);
        sqe.cdw11 = U32::new(len);
        sqe
    }

    fn fabrics(fctype: u8, cid: u16) -> Sqe {
        Sqe::new(fctype::OPCODE, cid, Nsid(u32::from(fctype)))
    }

    fn set_cdw10_11(&mut self, value: u64) {
        self.cdw10 = U32::new((value & 0xFFFF_FFFF) as u32);
        self.cdw11 = U32::new((value >> 32) as u32);
    }

    /// The same command with Force Unit Access: a read takes its blocks from the medium, not from a cache; a
    /// write ends when its blocks are on the medium.
    pub fn with_fua(mut self) -> Sqe {
        self.cdw12 = U32::new(self.cdw12.get() | FUA);
        self
    }

    /// FCTYPE, if this is a Fabrics command.
    pub fn fctype(&self) -> Option<u8> {
        (self.opcode == fctype::OPCODE).then(|| self.nsid.get().to_le_bytes()[0])
    }

    /// Returns whether an Authentication Send or Receive belongs to NVMe's own authentication (SPSP0,
    /// SPSP1 and SECP).
    pub fn is_nvme_authentication(&self) -> bool {
        self.cdw10.get() & !0xFF == NVME_AUTHENTICATION
    }

    /// First block of an I/O command.
    pub fn slba(&self) -> Lba {
        Lba(u64::from(self.cdw11.get()) << 32 | u64::from(self.cdw10.get()))
    }

    /// Number of blocks of an I/O command, 1 to 65,536.
    pub fn num_blocks(&self) -> u32 {
        (self.cdw12.get() & 0xFFFF) + 1
    }

    /// CNS of Identify, FID of Set or Get Features, LID of Get Log Page.
    pub fn low_byte_of_cdw10(&self) -> u8 {
        self.cdw10.get().to_le_bytes()[0]
    }

    /// Retain Asynchronous Event (RAE) of Get Log Page: reading the page does not allow the next event.
    pub fn retains_event(&self) -> bool {
        self.cdw10.get() & (1 << 15) != 0
    }

    /// Length of a Get Log Page in bytes.
    pub fn log_len_bytes(&self) -> u64 {
        let num_dwords =
            u64::from(self.cdw11.get() & 0xFFFF) << 16 | u64::from(self.cdw10.get() >> 16);
        (num_dwords + 1) * 4
    }

    /// Offset of a Get Log Page in bytes.
    pub fn log_offset_bytes(&self) -> u64 {
        u64::from(self.cdw13.get()) << 32 | u64::from(self.cdw12.get())
    }

    /// RECFMT of Connect.
    pub fn connect_recfmt(&self) -> u16 {
        (self.cdw10.get() & 0xFFFF) as u16
    }

    /// QID of Connect.
    pub fn connect_qid(&self) -> u16 {
        (self.cdw10.get() >> 16) as u16
    }

    /// SQSIZE of Connect, 0-based.
    pub fn connect_sqsize(&self) -> u16 {
        (self.cdw11.get() & 0xFFFF) as u16
    }

    /// Returns whether Connect requests to disable SQ flow control.
    pub fn connect_disables_sq_flow_control(&self) -> bool {
        self.cdw11.get().to_le_bytes()[2] & CATTR_DISABLE_SQ_FLOW_CONTROL != 0
    }

    /// KATO of Connect, in milliseconds.
    pub fn connect_kato_ms(&self) -> u32 {
        self.cdw12.get()
    }

    /// The property of Property Get or Set; `None` if it does not exist with the requested size.
    pub fn property(&self) -> Option<Property> {
        let len_bytes = match self.cdw10.get() & 7 {
            0 => 4,
            1 => 8,
            _ => return None,
        };
        Property::at(self.cdw11.get()).filter(|property| property.len_bytes() == len_bytes)
    }

    /// The value of Property Set.
    pub fn property_value(&self) -> u64 {
        u64::from(self.cdw13.get()) << 32 | u64::from(self.cdw12.get())
    }
}

/// SGL descriptor 1 of a submission queue entry.
///
/// | bytes  | field        | meaning                                                    |
/// |--------|--------------|------------------------------------------------------------|
/// | 0..8   | `address`    | in memory: the address; otherwise an offset, 0 over TCP    |
/// | 8..12  | `len`        | bytes of data, little-endian                               |
/// | 12..15 | `reserved`   | zero                                                       |
/// | 15     | `identifier` | 7:4 type, 3:0 subtype: see [`Sgl`]'s constants             |
///
/// [`Sgl::prps`] puts PRP entries in the same bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Sgl {
    /// Address of the data in memory, or their offset in the capsule, which is always 0 over TCP.
    pub address: U64,
    /// Bytes of data.
    pub len: U32,
    /// Zero.
    pub reserved: [u8; 3],
    /// Descriptor type and subtype.
    pub identifier: u8,
}
const _: () = assert!(size_of::<Sgl>() == 16);

impl Sgl {
    /// Data block with address subtype: the data lie at an address of memory; not over fabrics.
    const IN_MEMORY: u8 = 0x00;
    /// Data block with offset subtype: the data follow in the same capsule.
    pub const IN_CAPSULE: u8 = 0x01;
    /// Transport data block: the data move by C2HData, or by R2T and H2CData.
    pub(crate) const TRANSPORT: u8 = 0x5A;

    /// `len` bytes of data that follow the command in its capsule.
    pub fn in_capsule(len: u32) -> Sgl {
        Sgl::block(Sgl::IN_CAPSULE, len)
    }

    /// `len` bytes of data in separate PDUs; 0 for a command without data.
    pub fn transport(len: u32) -> Sgl {
        Sgl::block(Sgl::TRANSPORT, len)
    }

    /// `len` bytes at `address` of memory that the controller reaches.
    pub fn in_memory(address: u64, len: u32) -> Sgl {
        Sgl { address: U64::new(address), ..Sgl::block(Sgl::IN_MEMORY, len) }
    }

    /// PRP entries 1 and 2, which take the descriptor's place in commands without the SGL flag.
    pub fn prps(first: u64, second: u64) -> Sgl {
        let [a, b, c, d, e, f, g, h] = second.to_le_bytes();
        let len = U32::from_bytes([a, b, c, d]);
        Sgl { address: U64::new(first), len, reserved: [e, f, g], identifier: h }
    }

    fn block(identifier: u8, len: u32) -> Sgl {
        Sgl { address: U64::ZERO, len: U32::new(len), reserved: [0; 3], identifier }
    }
}

/// SPSP0 = 1, SPSP1 = 1, SECP = E9h, in dword 10: the security protocol of NVMe's own authentication.
const NVME_AUTHENTICATION: u32 = 0xE901_0100;

/// CATTR bit 2 of Connect: disable SQ flow control.
const CATTR_DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::tests::hex;

    #[test]
    fn constructors_make_the_golden_entries() {
        #[rustfmt::skip]
        let golden = [
            (Sqe::property_get(1, Property::Cap), "7f4001000400000000000000000000000000000000000000
              0000000000000000000000000000005a 010000000000000000000000000000000000000000000000"),
            (Sqe::property_set(2, Property::Cc, 0x0046_0001), "7f4002000000000000000000000000000000000000000000
              0000000000000000000000000000005a 000000001400000001004600000000000000000000000000"),
            (Sqe::identify(3, cns::CONTROLLER, Nsid(0)), "064003000000000000000000000000000000000000000000
              0000000000000000001000000000005a 010000000000000000000000000000000000000000000000"),
            (Sqe::identify(4, cns::NAMESPACE, Nsid(1)), "064004000100000000000000000000000000000000000000
              0000000000000000001000000000005a 000000000000000000000000000000000000000000000000"),
            (Sqe::set_num_queues(5, 4), "094005000000000000000000000000000000000000000000
              0000000000000000000000000000005a 070000000300030000000000000000000000000000000000"),
            (Sqe::set_features(6, feature::ASYNC_EVENT_CONFIG, 0x900), "094006000000000000000000000000000000000000000000
              0000000000000000000000000000005a 0b0000000009000000000000000000000000000000000000"),
            (Sqe::keep_alive(8), "184008000000000000000000000000000000000000000000
              0000000000000000000000000000005a 000000000000000000000000000000000000000000000000"),
            (Sqe::async_event_request(9), "0c4009000000000000000000000000000000000000000000
              0000000000000000000000000000005a 000000000000000000000000000000000000000000000000"),
            (Sqe::get_log_page(10, log_page::DISCOVERY, 0, 1024), "02400a000000000000000000000000000000000000000000
              0000000000000000000400000000005a 7000ff000000000000000000000000000000000000000000"),
            (Sqe::get_log_page(11, log_page::ANA, 0, 4096), "02400b000000000000000000000000000000000000000000
              0000000000000000001000000000005a 0c00ff030000000000000000000000000000000000000000"),
            (Sqe::connect(0, 0, 31, 15_000), "
              0403484c500400007f400000010000000000000000000000000000000000000000000000000000000004000000000001
              000000001f000400983a0000000000000000000000000000"),
            (Sqe::read(7, Nsid(1), Lba(16), 8, 4096), "
              04004800480000000240070001000000000000000000000000000000000000000000000000000000001000000000005a
              100000000000000007000000000000000000000000000000"),
            (Sqe::write(12, Nsid(1), Lba(0), 1, Sgl::in_capsule(512)), "
              040048484802000001400c00010000000000000000000000000000000000000000000000000000000002000000000001
              000000000000000000000000000000000000000000000000"),
        ];
        for (sqe, bytes) in golden {
            let bytes = hex(bytes);
            // Some vectors are whole capsules: 8 bytes of common header precede the entry.
            assert_eq!(sqe.as_bytes(), &bytes[bytes.len() - 64..], "{sqe:?}");
        }
    }

    #[test]
    fn accessors_read_what_constructors_wrote() {
        let read = Sqe::read(7, Nsid(3), Lba(0x1_2345_6789), 65_536, 4096);
        assert_eq!((read.slba(), read.num_blocks()), (Lba(0x1_2345_6789), 65_536));
        let forced = read.with_fua();
        assert_eq!((forced.num_blocks(), forced.cdw12.get() & FUA), (65_536, FUA));
        let connect = Sqe::connect(1, 5, 127, 9);
        assert_eq!((connect.fctype(), connect.connect_qid()), (Some(fctype::CONNECT), 5));
        assert_eq!((connect.connect_sqsize(), connect.connect_kato_ms()), (127, 9));
        assert!(connect.connect_disables_sq_flow_control());
        let set = Sqe::property_set(1, Property::Cc, 0x1_0000_0002);
        assert_eq!((set.property(), set.property_value()), (Some(Property::Cc), 0x1_0000_0002));
        let log = Sqe::get_log_page(1, log_page::DISCOVERY, 0x5_0000_0004, 0x8_0000);
        assert_eq!((log.log_len_bytes(), log.log_offset_bytes()), (0x8_0000, 0x5_0000_0004));
    }

    #[test]
    fn a_property_of_the_wrong_size_is_none() {
        let mut get = Sqe::property_get(1, Property::Cap);
        get.cdw10 = U32::new(0);
        assert_eq!(get.property(), None);
        get.cdw10 = U32::new(7);
        assert_eq!(get.property(), None);
    }

    #[test]
    fn descriptors_have_the_bytes_of_the_specification() {
        assert_eq!(
            Sgl::in_capsule(1024).as_bytes(),
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 1]
        );
        assert_eq!(
            Sgl::transport(4096).as_bytes(),
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0x5A]
        );
    }
}
