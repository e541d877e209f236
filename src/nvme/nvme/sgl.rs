//! Scatter Gather List (SGL) descriptor, as NVMe/TCP uses it: the location of a command's data.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// SGL descriptor 1 of a submission queue entry.
///
/// | bytes  | field        | meaning                                                    |
/// |--------|--------------|------------------------------------------------------------|
/// | 0..8   | `address`    | offset of the data in the capsule; always 0 over TCP       |
/// | 8..12  | `len`        | bytes of data, little-endian                               |
/// | 12..15 | `reserved`   | zero                                                       |
/// | 15     | `identifier` | 7:4 type, 3:0 subtype: one of `Sgl::IN_CAPSULE`, `Sgl::TRANSPORT` |
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Sgl {
    /// Offset of the data in the capsule; always 0 over TCP.
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

#[cfg(test)]
mod tests {
    use super::*;

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
