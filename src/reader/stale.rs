//! Damage, or merely a newer generation? What looks wrong may have been written anew.

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::format::open::Copies;
use crate::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use crate::qpair::Device;
use crate::qpair::blocking::Blocking;

/// Looks at namespace 0's superblocks: is it still the image and generation of `directory`?
///
/// # Errors
/// `Stale`: it has moved on, or is another image now. Those of reading.
pub(crate) fn check_not_stale(devices: &[Arc<dyn Device>], directory: &Directory) -> Result<()> {
    let Some(first) = devices.first() else { return Ok(()) };
    let mut blocking = Blocking::new(first.queue_pair()?)?;
    let copies = read_copies(&mut blocking)?;
    let stale = |text: String| {
        Err(Error::new(ErrorKind::Stale, text)
            .target(first.namespace().address)
            .hint("open the image again"))
    };
    match copies.newest() {
        Some(newest) if newest.layout.uuid != directory.uuid() => {
            stale(format!("another image lies here now: {}", newest.layout.uuid))
        }
        Some(newest) if newest.generation > directory.generation() => stale(format!(
            "the image is at generation {} now, and generation {} was opened",
            newest.generation,
            directory.generation()
        )),
        // An older one, or none: what was read is damaged, and so is this.
        _ => Ok(()),
    }
}

/// Reads both superblock copies of a namespace; one that cannot be read counts as empty.
pub(crate) fn read_copies(blocking: &mut Blocking) -> Result<Copies> {
    let len = blocking.namespace().len_bytes();
    let mut blocks = [const { [0; SUPERBLOCK_BYTES] }; 2];
    for (block, offset) in blocks.iter_mut().zip(COPY_OFFSETS) {
        if offset + SUPERBLOCK_BYTES as u64 > len {
            continue;
        }
        match blocking.read_at(offset, block) {
            Ok(()) => {}
            // The medium fails in one place: the other copy may still tell.
            Err(error) if error.kind() == ErrorKind::Corrupt => block.fill(0),
            Err(error) => return Err(error),
        }
    }
    Ok(Copies::parse(&blocks[0], &blocks[1]))
}
