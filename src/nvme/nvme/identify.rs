//! Identify data structures: controller, namespace, lists, identification descriptors.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::nqn::{Nqn, NqnError};
use dlfs_base::units::Nsid;

/// Length of every Identify data structure.
pub const IDENTIFY_LEN_BYTES: usize = 4096;

/// Reasons for refusing an Identify data structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentifyError {
    /// The length is not 4,096 bytes.
    #[error("Identify data must have 4096 bytes, got {0}")]
    Length(usize),
    /// The formatted LBA size is not 512 to 4,096 bytes.
    #[error("blocks of 2^{0} bytes: only 512 to 4096 bytes are supported")]
    BlockLength(u8),
    /// FLBAS selects a format that the namespace does not have.
    #[error("the namespace uses LBA format {0}, which it does not define")]
    Format(u8),
    /// The namespace has metadata with each block.
    #[error("the namespace has {0} bytes of metadata per block, which is not supported")]
    Metadata(u16),
    /// End-to-end protection is enabled.
    #[error("the namespace has end-to-end protection of type {0} enabled, which is not supported")]
    Protection(u8),
    /// NSZE blocks exceed 2^63 - 1 bytes.
    #[error("a namespace of {0} blocks is larger than 2^63 - 1 bytes")]
    TooLarge(u64),
    /// NSZE is zero: no active namespace has this identifier.
    #[error("there is no namespace with this identifier")]
    Inactive,
    /// ICDOFF is not 0, which the TCP transport requires.
    #[error("in-capsule data offset (ICDOFF) is {0}: the TCP transport requires 0")]
    InCapsuleOffset(u16),
    /// IOCCSZ is below the size of a command.
    #[error("an I/O capsule of {0} x 16 bytes has no room for a command")]
    CapsuleLength(u32),
    /// SQES or CQES do not allow entries of 64 and 16 bytes.
    #[error(
        "the controller needs queue entries other than 64 and 16 bytes (SQES {sqes:02X}h, CQES {cqes:02X}h)"
    )]
    EntryLength {
        /// SQES.
        sqes: u8,
        /// CQES.
        cqes: u8,
    },
}

/// Identify Controller data structure (CNS 01h).
///
/// | bytes      | field         | meaning                                                      |
/// |------------|---------------|--------------------------------------------------------------|
/// | 0..4       | `vid, ssvid`  | PCI vendor identifiers                                       |
/// | 4..24      | `sn`          | serial number, ASCII, padded with spaces                     |
/// | 24..64     | `mn`          | model number                                                 |
/// | 64..72     | `fr`          | firmware revision                                            |
/// | 72         | `rab`         | recommended arbitration burst                                |
/// | 73..76     | `ieee`        | IEEE OUI                                                     |
/// | 76         | `cmic`        | bit 1 several controllers, bit 3 ANA                         |
/// | 77         | `mdts`        | most data: 2^(12 + MPSMIN + MDTS) bytes, 0 no limit          |
/// | 78..80     | `cntlid`      | controller identifier                                        |
/// | 80..84     | `ver`         | version                                                      |
/// | 84..92     | `rtd3r, rtd3e`| resume and shutdown time, µs                                 |
/// | 92..96     | `oaes`        | asynchronous events: bit 8 namespaces                        |
/// | 96..100    | `ctratt`      | bit 0 128-bit host id, bit 6 traffic based keep alive        |
/// | 111        | `cntrltype`   | 1 I/O, 2 discovery                                           |
/// | 112..128   | `fguid`       | FRU identifier                                               |
/// | 128..134   | `crdt`        | command retry delays 1 to 3, 100 ms                          |
/// | 256..258   | `oacs`        | optional admin commands                                      |
/// | 258        | `acl`         | aborts outstanding, 0-based                                  |
/// | 259        | `aerl`        | AERs outstanding, 0-based                                    |
/// | 260        | `frmw`        | firmware updates: bit 0 slot 1 read only, 3:1 slots          |
/// | 261        | `lpa`         | log page attributes: bit 2 offsets and long lengths          |
/// | 262        | `elpe`        | error log entries, 0-based                                   |
/// | 266..270   | `wctemp, cctemp` | temperature thresholds, K                                 |
/// | 320..322   | `kas`         | keep alive granularity, 100 ms; 0 none                       |
/// | 342, 343   | `anatt, anacap` | ANA transition time in s, states                           |
/// | 344..352   | `anagrpmax, nanagrpid` | ANA groups                                          |
/// | 512, 513   | `sqes, cqes`  | queue entry sizes, 66h and 44h                               |
/// | 514..516   | `maxcmd`      | commands outstanding a queue, 0 not given                    |
/// | 516..520   | `nn`          | highest NSID                                                 |
/// | 520..522   | `oncs`        | bit 2 DSM, bit 3 Write Zeroes                                |
/// | 522..525   | `fuses, fna`  | fused operations, Format NVM attributes                      |
/// | 525        | `vwc`         | bit 0: a volatile write cache; 2:1 flush of all namespaces   |
/// | 526..531   | `awun, awupf, icsvscc` | atomic writes, vendor specific commands             |
/// | 531        | `nwpc`        | namespace write protection: bit 0 known                      |
/// | 532..534   | `acwu`        | atomic compare and write                                     |
/// | 536..540   | `sgls`        | 1:0 SGLs, 20 offset subtype, 21 transport SGL                |
/// | 540..544   | `mnan`        | most namespaces                                              |
/// | 768..1024  | `subnqn`      | subsystem NQN, ended by NUL                                  |
/// | 1792..1796 | `ioccsz`      | I/O capsule command size, 16 bytes                           |
/// | 1796..1800 | `iorcsz`      | I/O capsule response size, 16 bytes                          |
/// | 1800..1802 | `icdoff`      | in-capsule data offset, 0                                    |
/// | 1802       | `fcatt`       | bit 0 static controllers                                     |
/// | 1803       | `msdbd`       | SGL descriptors a command                                    |
/// | 1804..1806 | `ofcs`        | bit 0 Disconnect                                             |
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the table above describes every field")]
pub struct IdentifyController {
    pub vid: U16,
    pub ssvid: U16,
    pub sn: [u8; 20],
    pub mn: [u8; 40],
    pub fr: [u8; 8],
    pub rab: u8,
    pub ieee: [u8; 3],
    pub cmic: u8,
    pub mdts: u8,
    pub cntlid: U16,
    pub ver: U32,
    pub rtd3r: U32,
    pub rtd3e: U32,
    pub oaes: U32,
    pub ctratt: U32,
    pub reserved100: [u8; 11],
    pub cntrltype: u8,
    pub fguid: [u8; 16],
    pub crdt: [U16; 3],
    pub reserved134: [u8; 122],
    pub oacs: U16,
    pub acl: u8,
    pub aerl: u8,
    pub frmw: u8,
    pub lpa: u8,
    pub elpe: u8,
    pub reserved263: [u8; 3],
    pub wctemp: U16,
    pub cctemp: U16,
    pub reserved270: [u8; 50],
    pub kas: U16,
    pub reserved322: [u8; 20],
    pub anatt: u8,
    pub anacap: u8,
    pub anagrpmax: U32,
    pub nanagrpid: U32,
    pub reserved352: [u8; 160],
    pub sqes: u8,
    pub cqes: u8,
    pub maxcmd: U16,
    pub nn: U32,
    pub oncs: U16,
    pub fuses: U16,
    pub fna: u8,
    pub vwc: u8,
    pub awun: U16,
    pub awupf: U16,
    pub icsvscc: u8,
    pub nwpc: u8,
    pub acwu: U16,
    pub reserved534: U16,
    pub sgls: U32,
    pub mnan: U32,
    pub reserved544: [u8; 224],
    pub subnqn: [u8; 256],
    pub reserved1024: [u8; 768],
    pub ioccsz: U32,
    pub iorcsz: U32,
    pub icdoff: U16,
    pub fcatt: u8,
    pub msdbd: u8,
    pub ofcs: U16,
    pub reserved1806: [u8; 2290],
}
const _: () = assert!(size_of::<IdentifyController>() == IDENTIFY_LEN_BYTES);
const _: () = assert!(std::mem::offset_of!(IdentifyController, oacs) == 256);
const _: () = assert!(std::mem::offset_of!(IdentifyController, sqes) == 512);
const _: () = assert!(std::mem::offset_of!(IdentifyController, subnqn) == 768);
const _: () = assert!(std::mem::offset_of!(IdentifyController, ioccsz) == 1792);

impl IdentifyController {
    /// `cntrltype` of a controller with I/O queues.
    pub const TYPE_IO: u8 = 1;
    /// `cntrltype` of a discovery controller.
    pub const TYPE_DISCOVERY: u8 = 2;
    /// `cmic`: the subsystem may have several controllers.
    pub const CMIC_SEVERAL_CONTROLLERS: u8 = 1 << 1;
    /// `cmic`: the subsystem reports Asymmetric Namespace Access.
    pub const CMIC_ANA: u8 = 1 << 3;
    /// `vwc`: there is a volatile write cache, so Flush matters.
    pub const VWC_PRESENT: u8 = 1;

    /// Decodes Identify data. Checks the fields on which dlfs depends, except for discovery controllers.
    pub fn decode(bytes: &[u8]) -> Result<IdentifyController, IdentifyError> {
        let id = IdentifyController::read_from_bytes(bytes)
            .map_err(|_| IdentifyError::Length(bytes.len()))?;
        if id.cntrltype == IdentifyController::TYPE_DISCOVERY {
            return Ok(id);
        }
        if id.icdoff.get() != 0 {
            return Err(IdentifyError::InCapsuleOffset(id.icdoff.get()));
        }
        if id.ioccsz.get() < 4 {
            return Err(IdentifyError::CapsuleLength(id.ioccsz.get()));
        }
        id.check_entries()
    }

    /// Decodes Identify data of a controller with queues in memory, which lacks the fields of fabrics.
    pub fn decode_of_memory(bytes: &[u8]) -> Result<IdentifyController, IdentifyError> {
        let id = IdentifyController::read_from_bytes(bytes)
            .map_err(|_| IdentifyError::Length(bytes.len()))?;
        id.check_entries()
    }

    /// Checks that queue entries of 64 and of 16 bytes are allowed.
    fn check_entries(self) -> Result<IdentifyController, IdentifyError> {
        let sqes = self.sqes;
        let cqes = self.cqes;
        if sqes & 0xF > 6 || sqes >> 4 < 6 || cqes & 0xF > 4 || cqes >> 4 < 4 {
            return Err(IdentifyError::EntryLength { sqes, cqes });
        }
        Ok(self)
    }

    /// Returns whether commands may describe their data by SGLs in place of PRPs.
    pub fn has_sgls(&self) -> bool {
        self.sgls.get() & 3 != 0
    }

    /// Maximum data of one command; `None` if the controller states no limit, or one above 2 GiB.
    pub fn max_transfer_bytes(&self, mpsmin: u8) -> Option<u32> {
        let shift = 12 + u32::from(mpsmin) + u32::from(self.mdts);
        (self.mdts != 0 && shift < 32).then(|| 1 << shift)
    }

    /// Maximum in-capsule data of an I/O command.
    pub fn in_capsule_data_bytes(&self) -> u32 {
        self.ioccsz.get().saturating_sub(4).saturating_mul(16)
    }

    /// Returns whether Flush has an effect.
    pub fn has_volatile_write_cache(&self) -> bool {
        self.vwc & IdentifyController::VWC_PRESENT != 0
    }

    /// Subsystem NQN.
    pub fn subnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }
}

/// `text` as a field of `N` bytes: padded with spaces, or truncated. Bytes that are not printable ASCII become
/// `?`.
pub fn ascii_field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = if from.is_ascii_graphic() || from == b' ' { from } else { b'?' };
    }
    field
}

/// One LBA format of a namespace.
///
/// | bytes | field   | meaning                              |
/// |-------|---------|--------------------------------------|
/// | 0..2  | `ms`    | bytes of metadata a block            |
/// | 2     | `lbads` | block length: 2^LBADS bytes          |
/// | 3     | `rp`    | 1:0 relative performance             |
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata bytes a block.
    pub ms: U16,
    /// Logarithm of the block length.
    pub lbads: u8,
    /// Relative performance.
    pub rp: u8,
}

/// Identify Namespace data structure (CNS 00h) of the NVM command set.
///
/// | bytes    | field      | meaning                                                    |
/// |----------|------------|------------------------------------------------------------|
/// | 0..8     | `nsze`     | size in blocks                                             |
/// | 8..16    | `ncap`     | capacity in blocks                                         |
/// | 16..24   | `nuse`     | blocks in use                                              |
/// | 24       | `nsfeat`   | bit 0 thin provisioning, bit 2 DAE, bit 4: NPWG and its like are given |
/// | 25       | `nlbaf`    | number of LBA formats, 0-based                             |
/// | 26       | `flbas`    | formatted with: 3:0 and 6:5 index, bit 4 interleaved       |
/// | 27..29   | `mc, dpc`  | metadata and protection capabilities                       |
/// | 29       | `dps`      | 2:0 protection type in force                               |
/// | 30       | `nmic`     | bit 0 shared by several controllers                        |
/// | 31..34   | `rescap, fpi, dlfeat` | reservations, format progress, deallocation     |
/// | 46..48   | `noiob`    | optimal boundary of I/O in blocks, 0 none                  |
/// | 92..96   | `anagrpid` | ANA group                                                  |
/// | 99       | `nsattr`   | bit 0 write protected                                      |
/// | 104..120 | `nguid`    | globally unique identifier                                 |
/// | 120..128 | `eui64`    | extended unique identifier                                 |
/// | 128..384 | `lbaf`     | LBA formats                                                |
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the table above describes every field")]
pub struct IdentifyNamespace {
    pub nsze: U64,
    pub ncap: U64,
    pub nuse: U64,
    pub nsfeat: u8,
    pub nlbaf: u8,
    pub flbas: u8,
    pub mc: u8,
    pub dpc: u8,
    pub dps: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub dlfeat: u8,
    pub reserved34: [u8; 12],
    pub noiob: U16,
    pub reserved48: [u8; 44],
    pub anagrpid: U32,
    pub reserved96: [u8; 3],
    pub nsattr: u8,
    pub reserved100: [u8; 4],
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
    pub lbaf: [LbaFormat; 64],
    pub reserved384: [u8; 3712],
}
const _: () = assert!(size_of::<IdentifyNamespace>() == IDENTIFY_LEN_BYTES);
const _: () = assert!(std::mem::offset_of!(IdentifyNamespace, noiob) == 46);
const _: () = assert!(std::mem::offset_of!(IdentifyNamespace, nguid) == 104);

impl IdentifyNamespace {
    /// `nmic`: the namespace may be attached to several controllers.
    pub const NMIC_SHARED: u8 = 1;
    /// `nsfeat`: thin provisioning; fewer blocks may be allocated than the namespace has.
    pub const NSFEAT_THINP: u8 = 1;
    /// `nsfeat`: reads of deallocated or unwritten blocks can fail with a status of their own (DAE).
    pub const NSFEAT_DAE: u8 = 1 << 2;
    /// `nsattr`: writes are refused.
    pub const NSATTR_WRITE_PROTECTED: u8 = 1;

    /// A namespace of `num_blocks` blocks; `block_len_bytes` is a power of two.
    pub fn new(
        num_blocks: u64,
        block_len_bytes: u32,
        nguid: [u8; 16],
        read_only: bool,
    ) -> IdentifyNamespace {
        assert!(block_len_bytes.is_power_of_two(), "block lengths are powers of two");
        let mut id = IdentifyNamespace::new_zeroed();
        (id.nsze, id.ncap, id.nuse) =
            (U64::new(num_blocks), U64::new(num_blocks), U64::new(num_blocks));
        id.nmic = IdentifyNamespace::NMIC_SHARED;
        id.nsattr = u8::from(read_only) * IdentifyNamespace::NSATTR_WRITE_PROTECTED;
        id.nguid = nguid;
        id.lbaf[0].lbads = block_len_bytes.trailing_zeros() as u8;
        id
    }

    /// The same namespace, thinly provisioned, with `used_blocks` allocated blocks. Reads of other blocks can
    /// fail (DAE).
    pub fn thin(mut self, used_blocks: u64) -> IdentifyNamespace {
        self.nsfeat |= IdentifyNamespace::NSFEAT_THINP | IdentifyNamespace::NSFEAT_DAE;
        self.nuse = U64::new(used_blocks);
        self
    }

    /// Decodes Identify data and checks that it is supported: active, blocks of 512 to 4,096 bytes, no
    /// metadata, no protection, size below 2^63 bytes.
    pub fn decode(bytes: &[u8]) -> Result<IdentifyNamespace, IdentifyError> {
        let id = IdentifyNamespace::read_from_bytes(bytes)
            .map_err(|_| IdentifyError::Length(bytes.len()))?;
        if id.nsze.get() == 0 {
            return Err(IdentifyError::Inactive);
        }
        let format = id.format()?;
        if !(9..=12).contains(&format.lbads) {
            return Err(IdentifyError::BlockLength(format.lbads));
        }
        if format.ms.get() != 0 {
            return Err(IdentifyError::Metadata(format.ms.get()));
        }
        if id.dps & 7 != 0 {
            return Err(IdentifyError::Protection(id.dps & 7));
        }
        if id.nsze.get() > i64::MAX as u64 >> format.lbads {
            return Err(IdentifyError::TooLarge(id.nsze.get()));
        }
        Ok(id)
    }

    fn format(&self) -> Result<LbaFormat, IdentifyError> {
        let index = self.flbas & 0xF | (self.flbas & 0x60) >> 1;
        // Formats beyond NLBAF do not exist, whatever the table contains.
        let format = self.lbaf.get(usize::from(index)).filter(|_| index <= self.nlbaf);
        format.copied().ok_or(IdentifyError::Format(index))
    }

    /// Block length. Valid only for a namespace from [`IdentifyNamespace::decode`].
    pub fn block_len_bytes(&self) -> u32 {
        let lbads = self.format().map_or(9, |format| format.lbads);
        1 << lbads.min(31)
    }

    /// Size in blocks.
    pub fn num_blocks(&self) -> u64 {
        self.nsze.get()
    }

    /// Returns whether writes are refused.
    pub fn is_write_protected(&self) -> bool {
        self.nsattr & IdentifyNamespace::NSATTR_WRITE_PROTECTED != 0
    }
}

/// The NSIDs of an active namespace list (CNS 02h), up to the first 0.
pub fn decode_namespace_list(bytes: &[u8]) -> Result<Vec<Nsid>, IdentifyError> {
    if bytes.len() != IDENTIFY_LEN_BYTES {
        return Err(IdentifyError::Length(bytes.len()));
    }
    let ids =
        bytes.chunks_exact(4).map(|id| Nsid(u32::from_le_bytes([id[0], id[1], id[2], id[3]])));
    Ok(ids.take_while(|id| id.0 != 0).collect())
}

/// An active namespace list: the first 1,024 of `ids`, which must ascend.
pub fn encode_namespace_list(ids: impl Iterator<Item = Nsid>) -> [u8; IDENTIFY_LEN_BYTES] {
    let mut bytes = [0; IDENTIFY_LEN_BYTES];
    for (field, id) in bytes.chunks_exact_mut(4).zip(ids) {
        field.copy_from_slice(&id.0.to_le_bytes());
    }
    bytes
}

/// Namespace identification descriptors (CNS 03h), which identify a namespace over several paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamespaceDescriptors {
    /// NIDT 1.
    pub eui64: Option<[u8; 8]>,
    /// NIDT 2.
    pub nguid: Option<[u8; 16]>,
    /// NIDT 3.
    pub uuid: Option<[u8; 16]>,
    /// NIDT 4: command set, 0 NVM.
    pub csi: Option<u8>,
}

impl NamespaceDescriptors {
    /// Decodes the known descriptors; one that exceeds the page ends the list.
    pub fn decode(bytes: &[u8]) -> NamespaceDescriptors {
        let mut ids = NamespaceDescriptors::default();
        let mut rest = bytes;
        while let [nidt, nidl, _, _, tail @ ..] = rest {
            if *nidt == 0 || *nidl == 0 {
                break;
            }
            let Some((value, next)) = tail.split_at_checked(usize::from(*nidl)) else { break };
            match nidt {
                1 => ids.eui64 = value.try_into().ok(),
                2 => ids.nguid = value.try_into().ok(),
                3 => ids.uuid = value.try_into().ok(),
                4 => ids.csi = value.first().copied(),
                _ => {}
            }
            rest = next;
        }
        ids
    }

    /// Encodes the descriptors that are set.
    pub fn encode(&self) -> [u8; IDENTIFY_LEN_BYTES] {
        let mut bytes = [0; IDENTIFY_LEN_BYTES];
        let mut at = 0;
        let values = [
            self.eui64.as_ref().map(|id| &id[..]).unwrap_or_default(),
            self.nguid.as_ref().map(|id| &id[..]).unwrap_or_default(),
            self.uuid.as_ref().map(|id| &id[..]).unwrap_or_default(),
            self.csi.as_slice(),
        ];
        for (nidt, value) in (1..).zip(values).filter(|(_, value)| !value.is_empty()) {
            bytes[at] = nidt;
            bytes[at + 1] = value.len() as u8;
            bytes[at + 4..][..value.len()].copy_from_slice(value);
            at += 4 + value.len();
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn namespace() -> IdentifyNamespace {
        IdentifyNamespace::new(1 << 20, 4096, [7; 16], true)
    }

    #[test]
    fn a_namespace_survives_its_bytes() {
        let id = IdentifyNamespace::decode(namespace().as_bytes()).unwrap();
        assert_eq!((id.num_blocks(), id.block_len_bytes(), id.nguid), (1 << 20, 4096, [7; 16]));
        assert!(id.is_write_protected());
    }

    #[test]
    fn namespaces_that_cannot_be_read_safely_are_refused_with_the_reason() {
        let refused = |change: fn(&mut IdentifyNamespace)| {
            let mut id = namespace();
            change(&mut id);
            IdentifyNamespace::decode(id.as_bytes()).unwrap_err()
        };
        for lbads in [0, 8, 13, 63, 255] {
            let mut id = namespace();
            id.lbaf[0].lbads = lbads;
            assert_eq!(
                IdentifyNamespace::decode(id.as_bytes()),
                Err(IdentifyError::BlockLength(lbads))
            );
        }
        assert_eq!(refused(|id| id.nsze = U64::ZERO), IdentifyError::Inactive);
        assert_eq!(refused(|id| id.nsze = U64::new(1 << 51)), IdentifyError::TooLarge(1 << 51));
        assert_eq!(refused(|id| id.flbas = 1), IdentifyError::Format(1));
        assert_eq!(refused(|id| id.flbas = 0x6F), IdentifyError::Format(63));
        assert_eq!(refused(|id| id.lbaf[0].ms = U16::new(8)), IdentifyError::Metadata(8));
        assert_eq!(refused(|id| id.dps = 0xF9), IdentifyError::Protection(1));
        assert_eq!(IdentifyNamespace::decode(&[0; 100]), Err(IdentifyError::Length(100)));
    }

    #[test]
    fn controllers_that_break_the_transport_are_refused() {
        let mut id = IdentifyController::new_zeroed();
        (id.sqes, id.cqes, id.cntrltype) = (0x66, 0x44, 1);
        id.ioccsz = U32::new(260);
        assert_eq!(
            IdentifyController::decode(id.as_bytes()).unwrap().in_capsule_data_bytes(),
            4096
        );
        id.sqes = 0x77;
        assert_eq!(
            IdentifyController::decode(id.as_bytes()),
            Err(IdentifyError::EntryLength { sqes: 0x77, cqes: 0x44 })
        );
        id.ioccsz = U32::new(3);
        assert_eq!(IdentifyController::decode(id.as_bytes()), Err(IdentifyError::CapsuleLength(3)));
        id.icdoff = U16::new(1);
        assert_eq!(
            IdentifyController::decode(id.as_bytes()),
            Err(IdentifyError::InCapsuleOffset(1))
        );
    }

    #[test]
    fn the_transfer_limit_counts_in_the_smallest_page() {
        let mut id = IdentifyController::new_zeroed();
        assert_eq!(id.max_transfer_bytes(0), None);
        id.mdts = 5;
        assert_eq!(
            (id.max_transfer_bytes(0), id.max_transfer_bytes(1)),
            (Some(128 << 10), Some(256 << 10))
        );
        id.mdts = 255;
        assert_eq!(id.max_transfer_bytes(15), None);
    }

    #[test]
    fn lists_and_descriptors_survive_their_bytes() {
        let ids = [Nsid(1), Nsid(7), Nsid(0xFFFF_FFFE)];
        assert_eq!(decode_namespace_list(&encode_namespace_list(ids.into_iter())).unwrap(), ids);
        let full = encode_namespace_list((1..5000).map(Nsid));
        assert_eq!(decode_namespace_list(&full).unwrap().len(), 1024);
        let descriptors = NamespaceDescriptors {
            eui64: Some([1; 8]),
            nguid: Some([2; 16]),
            uuid: Some([3; 16]),
            csi: Some(0),
        };
        assert_eq!(NamespaceDescriptors::decode(&descriptors.encode()), descriptors);
    }

    #[test]
    fn text_fields_hold_printable_ascii_only() {
        assert_eq!(&ascii_field::<6>("a\u{e9}b"), b"a??b  ");
        assert_eq!(&ascii_field::<2>("dlfs"), b"dl");
    }

    proptest! {
        #[test]
        fn any_page_is_decoded_without_a_panic(seed in any::<u64>()) {
            let mut state = seed;
            let bytes: Vec<u8> = (0..IDENTIFY_LEN_BYTES).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            }).collect();
            let controller = IdentifyController::read_from_bytes(&bytes).unwrap();
            controller.max_transfer_bytes((seed & 0xF) as u8);
            controller.in_capsule_data_bytes();
            IdentifyNamespace::read_from_bytes(&bytes).unwrap().block_len_bytes();
            let _ = (IdentifyController::decode(&bytes), IdentifyNamespace::decode(&bytes)); // must not panic
            NamespaceDescriptors::decode(&bytes);
            decode_namespace_list(&bytes).unwrap();
        }
    }
}
