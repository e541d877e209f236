//! Progress of a rank's exchange, which its peers read in the first page of its first namespace.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use dlfs_base::checksum::crc32c;
use dlfs_base::units::Epoch;

/// Progress of a rank: it has received all samples of the epochs before `epoch`, and those of the first
/// `steps` steps of `epoch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Progress {
    pub(super) epoch: Epoch,
    pub(super) steps: u64,
}

/// The page in which a rank reports its progress.
///
/// | bytes  | field    | meaning                                         |
/// |--------|----------|-------------------------------------------------|
/// | 0..8   | `magic`  | `DLFSPLS1`                                      |
/// | 8..16  | `epoch`  | the epoch whose exchange is in progress         |
/// | 16..24 | `steps`  | leading steps of this exchange that have ended  |
/// | 24..28 | `crc`    | CRC32C of bytes 0 to 24                         |
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawProgress {
    magic: [u8; 8],
    epoch: U64,
    steps: U64,
    crc: U32,
}
const _: () = assert!(size_of::<RawProgress>() == PROGRESS_BYTES);

impl Progress {
    /// The first bytes of the page; the rest of it is zero.
    pub(super) fn to_bytes(self) -> [u8; PROGRESS_BYTES] {
        let epoch = U64::new(self.epoch.0);
        let steps = U64::new(self.steps);
        let mut raw = RawProgress { magic: MAGIC, epoch, steps, crc: U32::ZERO };
        raw.crc = U32::new(crc32c(&raw.as_bytes()[..CHECKED_BYTES]));
        zerocopy::transmute!(raw)
    }

    /// Parses the progress in a peer's page; `None` if the page has none.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Progress> {
        let (raw, _) = RawProgress::read_from_prefix(bytes).ok()?;
        let is_right = raw.magic == MAGIC && raw.crc.get() == crc32c(&bytes[..CHECKED_BYTES]);
        is_right.then_some(Progress { epoch: Epoch(raw.epoch.get()), steps: raw.steps.get() })
    }
}

/// Length of the progress in the page.
pub(super) const PROGRESS_BYTES: usize = 28;

/// The bytes that the checksum covers.
const CHECKED_BYTES: usize = 24;

const MAGIC: [u8; 8] = *b"DLFSPLS1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_survives_a_page_and_nothing_else_is_progress() {
        let progress = Progress { epoch: Epoch(7), steps: 1 << 33 };
        let bytes = progress.to_bytes();
        let mut page = vec![0; 4096];
        page[..PROGRESS_BYTES].copy_from_slice(&bytes);
        assert_eq!(Progress::from_bytes(&page), Some(progress));
        for at in 0..PROGRESS_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 0x10;
            assert_eq!(Progress::from_bytes(&damaged), None, "byte {at}");
        }
        assert_eq!(Progress::from_bytes(&bytes[..27]), None);
        assert_eq!(Progress::from_bytes(&[]), None);
        assert!(progress < Progress { epoch: Epoch(8), steps: 0 });
    }
}
