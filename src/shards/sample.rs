//! A sample of a shard.

use dlfs_format::format::columns::OwnedValue;

/// A sample of a shard; its record is in the buffer that the caller has given.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardSample {
    /// Its name.
    pub name: Vec<u8>,
    /// Its label, if it has one.
    pub label: Option<i64>,
    /// Length of its record in bytes.
    pub len_bytes: u32,
    /// CRC32C of its record.
    pub crc32c: u32,
    /// Values of the typed columns.
    pub values: Vec<OwnedValue>,
}
