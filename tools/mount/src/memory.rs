//! Memory for whole files, from which the kernel reads them.
//!
//! The kernel reads memory in large pages nearly twice as fast as in pages of 4 KiB. A memfd gets large pages
//! only if `/sys/kernel/mm/transparent_hugepage/shmem_enabled` allows it, and by default it does not. A private
//! tmpfs has its own setting. The tmpfs is not mounted at any path, so other processes have no path to its
//! files, and it ends when nobody has it or one of its files open.

use std::fs::File;
use std::io;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// Allocator of in-memory files.
pub(crate) struct Memory {
    /// The root of the tmpfs; `None` if the kernel refuses one.
    top: Option<OwnedFd>,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        Memory { top: tmpfs().ok() }
    }

    /// A file of length `len` that takes no memory yet.
    ///
    /// Its length is set at the start, because only pages within the length can be large. Writes in multiples
    /// of 2 MiB fill whole large pages, which the kernel then need not clear.
    pub(crate) fn file(&self, len: u64) -> io::Result<File> {
        let large = self.top.as_ref().and_then(|top| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
            openat(top, c".", flags, Mode::RUSR).ok()
        });
        let file = match large {
            Some(file) => file,
            None => rustix::fs::memfd_create(c"dlfs-mount", rustix::fs::MemfdFlags::CLOEXEC)?,
        };
        let file = File::from(file);
        file.set_len(len)?;
        Ok(file)
    }

    /// Returns whether there is a private tmpfs.
    #[cfg(test)]
    fn is_of_our_own(&self) -> bool {
        self.top.is_some()
    }
}

/// A tmpfs that is not mounted at any path. Needs CAP_SYS_ADMIN, as passthrough does.
fn tmpfs() -> rustix::io::Result<OwnedFd> {
    let made = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // A size of 0 is no limit: `Passthrough` enforces one. The default would be half of the machine's memory.
    for (key, value) in [(c"huge", c"within_size"), (c"mode", c"0700"), (c"size", c"0")] {
        fsconfig_set_string(&made, key, value)?;
    }
    fsconfig_create(&made)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&made, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    fn holds_what_is_written(memory: &Memory) {
        let bytes: Vec<u8> = (0..5_000_001u32).map(|at| (at ^ (at >> 9)) as u8).collect();
        let mut file = memory.file(bytes.len() as u64).unwrap();
        assert_eq!(
            file.metadata().unwrap().blocks(),
            0,
            "nothing is allocated before it is written"
        );
        for (nth, piece) in bytes.chunks(2 << 20).enumerate() {
            file.write_all_at(piece, (nth as u64) << 21).unwrap();
        }
        let mut found = Vec::new();
        let meta = file.metadata().unwrap();
        file.read_to_end(&mut found).unwrap();
        assert!(found == bytes);
        let taken = meta.blocks() * 512;
        assert_eq!(
            taken,
            (bytes.len() as u64).next_multiple_of(4096),
            "no more than its bytes take"
        );
        assert_eq!(meta.nlink(), 0, "nobody else can open it");
    }

    #[test]
    fn a_file_holds_what_is_written_whether_or_not_there_is_a_tmpfs() {
        holds_what_is_written(&Memory { top: None });
        let memory = Memory::new();
        if !memory.is_of_our_own() {
            eprintln!("SKIPPED: the kernel refuses a tmpfs (it takes CAP_SYS_ADMIN)");
            return;
        }
        holds_what_is_written(&memory);
    }

    #[test]
    fn the_kernel_is_asked_for_large_pages() {
        let memory = Memory::new();
        if !memory.is_of_our_own() || !has_large_pages() {
            eprintln!("SKIPPED: no tmpfs of our own (it takes CAP_SYS_ADMIN), or no large pages");
            return;
        }
        let bytes = vec![7; 4 << 20];
        let before = large_pages();
        let file = memory.file(bytes.len() as u64).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let asked = large_pages() - before;
        assert!(asked >= 2, "{asked} large pages for 4 MiB");
    }

    fn has_large_pages() -> bool {
        let read = |name: &str| {
            let path = format!("/sys/kernel/mm/transparent_hugepage/{name}");
            std::fs::read_to_string(path).unwrap_or_default()
        };
        read("hpage_pmd_size").trim() == "2097152" && !read("shmem_enabled").contains("[deny]")
    }

    /// Large pages of files that the kernel has allocated, or failed to allocate, since it started.
    fn large_pages() -> u64 {
        let counters = std::fs::read_to_string("/proc/vmstat").unwrap();
        let counted = counters.lines().filter_map(|line| {
            let (name, count) = line.split_once(' ')?;
            let counts = matches!(name, "thp_file_alloc" | "thp_file_fallback");
            counts.then(|| count.parse::<u64>().unwrap())
        });
        counted.sum()
    }
}
