//! Structures of NVMe over Fabrics: those of a Connect, and the discovery log page by which a host finds subsystems.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::nqn::{Nqn, NqnError};
pub use super::properties::{Cap, Cc, Csts, Property, VERSION_1_4};

/// Data of a Fabrics Connect command, 1,024 bytes, always in the capsule.
///
/// | bytes     | field       | meaning                                                        |
/// |-----------|-------------|----------------------------------------------------------------|
/// | 0..16     | `hostid`    | host identifier, not zero                                      |
/// | 16..18    | `cntlid`    | FFFFh: any controller (admin queue); else the assigned one     |
/// | 18..256   | `reserved1` | zero                                                           |
/// | 256..512  | `subnqn`    | subsystem NQN, NUL-padded                                      |
/// | 512..768  | `hostnqn`   | host NQN, NUL-padded                                           |
/// | 768..1024 | `reserved2` | zero                                                           |
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// Host identifier.
    pub hostid: [u8; 16],
    /// Controller identifier.
    pub cntlid: U16,
    /// Zero.
    pub reserved1: [u8; 238],
    /// Subsystem NQN.
    pub subnqn: [u8; 256],
    /// Host NQN.
    pub hostnqn: [u8; 256],
    /// Zero.
    pub reserved2: [u8; 256],
}
const _: () = assert!(size_of::<ConnectData>() == 1024);

impl ConnectData {
    /// `cntlid` on the admin queue: the target chooses the controller.
    pub const CNTLID_DYNAMIC: u16 = 0xFFFF;
    /// Offset of `cntlid`, for a response that names an invalid field.
    pub const CNTLID_OFFSET: u16 = 16;
    /// Offset of `subnqn`, for a response that names an invalid field.
    pub const SUBNQN_OFFSET: u16 = 256;
    /// Offset of `hostnqn`, for a response that names an invalid field.
    pub const HOSTNQN_OFFSET: u16 = 512;

    /// Connect data of the host `hostnqn` for the subsystem `subnqn`.
    pub fn new(hostid: [u8; 16], cntlid: u16, subnqn: &Nqn, hostnqn: &Nqn) -> ConnectData {
        ConnectData {
            hostid,
            cntlid: U16::new(cntlid),
            reserved1: [0; 238],
            subnqn: subnqn.to_field(),
            hostnqn: hostnqn.to_field(),
            reserved2: [0; 256],
        }
    }

    /// Subsystem NQN.
    pub fn subnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }

    /// Host NQN.
    pub fn hostnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.hostnqn)
    }
}

/// Dword 0 of a refused Connect (1/82h): the invalid field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidParameter {
    /// Offset of the field in bytes.
    pub offset: u16,
    /// True if the offset is in the data; otherwise it is in the command.
    pub in_data: bool,
}

impl InvalidParameter {
    /// Decodes dword 0 of the completion.
    pub fn from_wire(dw0: u32) -> InvalidParameter {
        InvalidParameter { offset: (dw0 & 0xFFFF) as u16, in_data: dw0 & (1 << 16) != 0 }
    }

    /// Encodes dword 0 of the completion.
    pub fn to_wire(self) -> u32 {
        u32::from(self.offset) | u32::from(self.in_data) << 16
    }
}

/// Bit 17 of dword 0 of the response to Connect: authentication required.
pub const CONNECT_ATR: u32 = 1 << 17;
/// Bit 18 of dword 0 of the response to Connect: authentication with secure channel concatenation
/// required.
pub const CONNECT_ASCR: u32 = 1 << 18;

/// Header of the discovery log page, 1,024 bytes; each record that follows has 1,024 bytes, too.
///
/// | bytes    | field       | meaning                                   |
/// |----------|-------------|-------------------------------------------|
/// | 0..8     | `genctr`    | generation counter: changes with the log  |
/// | 8..16    | `numrec`    | number of records                         |
/// | 16..18   | `recfmt`    | record format, 0                          |
/// | 18..1024 | `reserved`  | zero                                      |
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryLogHeader {
    /// Generation counter.
    pub genctr: U64,
    /// Number of records.
    pub numrec: U64,
    /// Record format.
    pub recfmt: U16,
    /// Zero.
    pub reserved: [u8; 1006],
}
const _: () = assert!(size_of::<DiscoveryLogHeader>() == 1024);

/// One record of the discovery log page, 1,024 bytes.
///
/// | bytes     | field       | meaning                                                         |
/// |-----------|-------------|-----------------------------------------------------------------|
/// | 0         | `trtype`    | transport: 3 TCP                                                |
/// | 1         | `adrfam`    | address family: 1 IPv4, 2 IPv6                                  |
/// | 2         | `subtype`   | 1 referral, 2 NVM subsystem, 3 this discovery subsystem         |
/// | 3         | `treq`      | 1:0 secure channel, bit 2 SQ flow control may be disabled       |
/// | 4..6      | `portid`    | port identifier                                                 |
/// | 6..8      | `cntlid`    | FFFFh dynamic                                                   |
/// | 8..10     | `asqsz`     | most entries of the admin queue                                 |
/// | 10..12    | `eflags`    | bit 0 duplicate information, bit 1 persistent connections       |
/// | 12..32    | `reserved1` | zero                                                            |
/// | 32..64    | `trsvcid`   | port as text                                                    |
/// | 64..256   | `reserved2` | zero                                                            |
/// | 256..512  | `subnqn`    | subsystem NQN                                                   |
/// | 512..768  | `traddr`    | address as text                                                 |
/// | 768..1024 | `tsas`      | transport specific; TCP: first byte the security type, 0 none   |
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryRecord {
    /// Transport type.
    pub trtype: u8,
    /// Address family.
    pub adrfam: u8,
    /// Kind of subsystem that the record describes.
    pub subtype: u8,
    /// Transport requirements.
    pub treq: u8,
    /// Port identifier.
    pub portid: U16,
    /// Controller identifier.
    pub cntlid: U16,
    /// Most entries of the admin queue.
    pub asqsz: U16,
    /// Entry flags.
    pub eflags: U16,
    /// Zero.
    pub reserved1: [u8; 20],
    /// Port as text, padded with spaces or NUL.
    pub trsvcid: [u8; 32],
    /// Zero.
    pub reserved2: [u8; 192],
    /// Subsystem NQN.
    pub subnqn: [u8; 256],
    /// Address as text, padded with spaces or NUL.
    pub traddr: [u8; 256],
    /// Transport specific address subtype.
    pub tsas: [u8; 256],
}
const _: () = assert!(size_of::<DiscoveryRecord>() == 1024);

impl DiscoveryRecord {
    /// `trtype` of TCP.
    pub(crate) const TRTYPE_TCP: u8 = 3;
    /// `adrfam` of IPv4.
    pub(crate) const ADRFAM_IPV4: u8 = 1;
    /// `adrfam` of IPv6.
    pub(crate) const ADRFAM_IPV6: u8 = 2;
    /// `subtype` of a subsystem with namespaces.
    pub const SUBTYPE_NVM: u8 = 2;
    /// `subtype` of the discovery subsystem itself.
    pub const SUBTYPE_DISCOVERY: u8 = 3;
    /// Maximum records that a dlfs host accepts.
    pub const MAX_RECORDS: u64 = 4096;

    /// A record of `subtype` for `subnqn` at a TCP address without TLS.
    pub fn tcp(
        subtype: u8,
        subnqn: &Nqn,
        address: std::net::SocketAddr,
        asqsz: u16,
    ) -> DiscoveryRecord {
        let mut record = DiscoveryRecord::new_zeroed();
        record.trtype = DiscoveryRecord::TRTYPE_TCP;
        record.adrfam = match address {
            std::net::SocketAddr::V4(_) => DiscoveryRecord::ADRFAM_IPV4,
            std::net::SocketAddr::V6(_) => DiscoveryRecord::ADRFAM_IPV6,
        };
        record.subtype = subtype;
        record.treq = TREQ_NO_SECURE_CHANNEL | TREQ_SQ_FLOW_CONTROL_OPTIONAL;
        record.portid = U16::new(1);
        record.cntlid = U16::new(ConnectData::CNTLID_DYNAMIC);
        record.asqsz = U16::new(asqsz);
        put_text(&mut record.trsvcid, &address.port().to_string());
        record.subnqn = subnqn.to_field();
        put_text(&mut record.traddr, &address.ip().to_string());
        record
    }

    /// Marks the address as one that accepts connections inside TLS 1.3 only.
    pub fn require_tls(&mut self) {
        self.treq = TREQ_SECURE_CHANNEL | TREQ_SQ_FLOW_CONTROL_OPTIONAL;
        self.tsas[0] = SECTYPE_TLS_1_3;
    }

    /// Subsystem NQN.
    pub fn subnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }

    /// The address without its padding; `None` if it is not UTF-8.
    pub fn traddr(&self) -> Option<&str> {
        text(&self.traddr)
    }

    /// The port without its padding; `None` if it is not a port number.
    pub fn port(&self) -> Option<u16> {
        text(&self.trsvcid)?.parse().ok()
    }
}

fn put_text(field: &mut [u8], value: &str) {
    field[..value.len()].copy_from_slice(value.as_bytes());
}

/// The text in a field that targets pad with spaces or NUL.
fn text(field: &[u8]) -> Option<&str> {
    let len = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..len]).ok().map(|text| text.trim_end_matches(' '))
}

/// TREQ 1:0 = 1: a secure channel is required.
const TREQ_SECURE_CHANNEL: u8 = 1;
/// TREQ 1:0 = 2: a secure channel is not required.
const TREQ_NO_SECURE_CHANNEL: u8 = 2;
/// TREQ bit 2: the target can disable SQ flow control.
const TREQ_SQ_FLOW_CONTROL_OPTIONAL: u8 = 1 << 2;
/// The first byte of TSAS for TCP, where the channel is TLS 1.3.
const SECTYPE_TLS_1_3: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_data_has_its_fields_at_the_offsets_of_the_specification() {
        let hostid = std::array::from_fn(|i| i as u8 * 0x11);
        let subnqn = Nqn::new("nqn.2024-01.io.example:ds0").unwrap();
        let data = ConnectData::new(hostid, 0xFFFF, &subnqn, &Nqn::host_of_uuid(hostid));
        let bytes = data.as_bytes();
        assert_eq!(
            bytes[..18],
            *b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff\xff\xff"
        );
        assert_eq!(&bytes[256..282], b"nqn.2024-01.io.example:ds0");
        assert_eq!(&bytes[512..548], b"nqn.2014-08.org.nvmexpress:uuid:0011");
        // The CRC that the specification's reference document gives for these bytes.
        assert_eq!(crc32c::crc32c(bytes).to_le_bytes(), [0xa1, 0x9c, 0x63, 0xc6]);
        assert_eq!(data.subnqn(), Ok(subnqn));
    }

    #[test]
    fn a_discovery_record_names_where_to_connect() {
        let nqn = Nqn::new("nqn.2026-11.io.dlfs:train").unwrap();
        for address in ["127.0.0.1:4420", "[::1]:8009"] {
            let address: std::net::SocketAddr = address.parse().unwrap();
            let record = DiscoveryRecord::tcp(DiscoveryRecord::SUBTYPE_NVM, &nqn, address, 32);
            assert_eq!(record.traddr(), Some(&*address.ip().to_string()));
            assert_eq!(record.port(), Some(address.port()));
            assert_eq!(record.subnqn(), Ok(nqn.clone()));
            assert_eq!(record.as_bytes()[..10], [3, record.adrfam, 2, 6, 1, 0, 0xFF, 0xFF, 32, 0]);
        }
    }

    #[test]
    fn text_padded_with_spaces_is_trimmed_and_nonsense_is_none() {
        let mut record = DiscoveryRecord::new_zeroed();
        record.trsvcid = [b' '; 32];
        record.trsvcid[..4].copy_from_slice(b"4420");
        assert_eq!(record.port(), Some(4420));
        record.trsvcid = [0xFF; 32];
        record.traddr = [0xFF; 256];
        assert_eq!((record.port(), record.traddr()), (None, None));
    }

    #[test]
    fn an_invalid_parameter_names_its_field() {
        let parameter = InvalidParameter { offset: 256, in_data: true };
        assert_eq!(parameter.to_wire(), 0x1_0100);
        assert_eq!(InvalidParameter::from_wire(0x1_0100), parameter);
    }
}
