//! Files in memory that passthrough gives to the kernel: [`MemoryFiles`].
//!
//! The kernel reads memory in large pages nearly twice as fast as in pages of 4 KiB. A memfd gets large pages only if
//! `/sys/kernel/mm/transparent_hugepage/shmem_enabled` allows it, and by default it does not. A private tmpfs has a
//! setting for itself. It is not mounted at any path, so other processes cannot open its files, and it ends when its
//! descriptor and all its files are closed.

use std::fs::File;
use std::io;

use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// Creates files in memory: in a private tmpfs, or as memfds.
pub(crate) struct MemoryFiles {
    /// The root of the tmpfs; `None` if the kernel refuses one.
    tmpfs_root: Option<OwnedFd>,
}

impl MemoryFiles {
    pub(crate) fn new() -> MemoryFiles {
        MemoryFiles { tmpfs_root: tmpfs().ok() }
    }

    /// Creates a file of `len` bytes that takes no memory yet.
    ///
    /// The length is set at the start, because only pages within the length can be large. Writes in multiples of 2 MiB
    /// fill whole large pages, which the kernel then need not clear.
    pub(crate) fn create(&self, len: u64) -> io::Result<File> {
        let in_tmpfs = self.tmpfs_root.as_ref().and_then(|tmpfs_root| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
            openat(tmpfs_root, c".", flags, rustix::fs::Mode::RUSR).ok()
        });
        let file = match in_tmpfs {
            Some(file) => file,
            None => rustix::fs::memfd_create(c"dlfs-mount", rustix::fs::MemfdFlags::CLOEXEC)?,
        };
        let file = File::from(file);
        file.set_len(len)?;
        Ok(file)
    }
}

/// Creates a tmpfs that is not mounted at any path, and opens its root. Needs CAP_SYS_ADMIN, as passthrough does.
fn tmpfs() -> rustix::io::Result<OwnedFd> {
    let tmpfs = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // Size 0 means no limit: `Passthrough` enforces one. The default limit is half of the machine's memory.
    for (key, value) in [(c"huge", c"within_size"), (c"mode", c"0700"), (c"size", c"0")] {
        fsconfig_set_string(&tmpfs, key, value)?;
    }
    fsconfig_create(&tmpfs)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    fn holds_what_is_written(memory_files: &MemoryFiles) {
        let bytes: Vec<u8> = (0..5_000_001u32).map(|at| (at ^ (at >> 9)) as u8).collect();
        let mut file = memory_files.create(bytes.len() as u64).unwrap();
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
        holds_what_is_written(&MemoryFiles { tmpfs_root: None });
        let memory_files = MemoryFiles::new();
        if memory_files.tmpfs_root.is_none() {
            eprintln!("SKIPPED: the kernel refuses a tmpfs (it takes CAP_SYS_ADMIN)");
            return;
        }
        holds_what_is_written(&memory_files);
    }

    #[test]
    fn the_kernel_is_asked_for_large_pages() {
        let memory_files = MemoryFiles::new();
        if memory_files.tmpfs_root.is_none() || !has_large_pages() {
            eprintln!("SKIPPED: no tmpfs of our own (it takes CAP_SYS_ADMIN), or no large pages");
            return;
        }
        let bytes = vec![7; 4 << 20];
        let before = large_pages();
        let file = memory_files.create(bytes.len() as u64).unwrap();
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
