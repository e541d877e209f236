//! The meaning of NVMe commands: conversions between bytes and values, without I/O.
//!
//! Each file has one kind of structures of the NVMe specifications, such as commands or Identify data, with tables of
//! their bytes or bits; `nqn.rs` has names. There is no queue and no transport here: [`crate::tcp`] transports these
//! bytes; `dlfs-io` and `dlfs-target` exchange them.
//!
//! Invariants: wire structs are `#[repr(C)]` with little-endian fields of alignment 1, so any bytes of the
//! right length are valid. Methods that return errors check what a number *means*. Values that leave this
//! module are 1-based and typed, unless their documentation says otherwise.
//!
//! Read `sqe.rs` first, then `cqe.rs`.

pub mod cqe;
pub mod fabrics;
pub mod identify;
pub mod nqn;
mod properties;
pub mod sqe;

pub use cqe::{Cqe, RetryClass, Status};
pub use fabrics::ConnectData;
pub use identify::{IdentifyController, IdentifyError, IdentifyNamespace};
pub use nqn::{Nqn, NqnError};
pub use properties::{Cap, Cc, Csts, Property, VERSION_1_4};
pub use sqe::{Sgl, Sqe};

#[cfg(test)]
mod tests {
    /// Decodes hexadecimal digits; ignores whitespace.
    pub(super) fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> =
            text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }
}
