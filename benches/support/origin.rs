//! Inputs for measuring tiers: a folder of random files, and a copy of a device in memory.

use std::path::Path;
use std::sync::Arc;

use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;

/// The bytes of `origin` in memory, read-only.
pub(crate) fn in_memory_copy(origin: &Arc<dyn Device>) -> dlfs::Result<Arc<dyn Device>> {
    let len = origin.namespace().len_bytes();
    let copy = MemNamespace::new(len, 4096)?;
    let mut from = Blocking::new(origin.queue_pair()?)?;
    let mut to = Blocking::new(copy.queue_pair()?)?;
    for at in (0..len).step_by(1 << 20) {
        let bytes = from.read(at, (len - at).min(1 << 20) as usize)?;
        to.write_at(at, &bytes)?;
    }
    Ok(Arc::new(copy.read_only()))
}

/// Creates `count` files of `len` bytes, identical in every run.
pub(crate) fn make_files(folder: &Path, count: u64, len: u64) -> dlfs::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut word = 88_172_645_463_325_252_u64;
    for file in 0..count {
        let mut bytes = vec![0; len as usize];
        for bytes in bytes.chunks_mut(8) {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
        std::fs::write(folder.join(format!("{file:06}")), bytes)?;
    }
    Ok(())
}
