//! An image in memory, as targets of benches serve it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use dlfs::qpair::Device as _;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;

/// The image at `path`, copied into memory.
pub fn loaded(path: &Path) -> MemNamespace {
    let file = File::open(path).expect("an image that was imported");
    let len = file.metadata().expect("its length").len();
    let device = MemNamespace::new(len.next_multiple_of(1 << 20), 4096).expect("memory for it");
    let mut io = Blocking::new(device.queue_pair().expect("a queue pair")).expect("a poll group");
    let mut piece = vec![0u8; 1 << 20];
    for offset in (0..len).step_by(piece.len()) {
        let count = piece.len().min((len - offset) as usize);
        file.read_exact_at(&mut piece[..count], offset).expect("a whole image");
        io.write_at(offset, &piece).expect("a write to memory");
    }
    device
}
