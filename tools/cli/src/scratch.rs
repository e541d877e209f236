//! The temporary folder of `dlfs demo`.

use std::path::Path;

use tempfile::TempDir;

use dlfs::Error;

use crate::exit::about_file;

/// Creates a temporary folder: in `TMPDIR` if that is set; else in memory if there is plenty for
/// files of `len_bytes`; else in the system's default location.
///
/// # Errors
/// Errors of the operating system, with the folder.
pub(crate) fn scratch_folder(len_bytes: Option<u64>) -> Result<TempDir, Error> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("dlfs-demo-");
    let fits = |len: u64| has_room(Path::new(IN_MEMORY), len.saturating_mul(PLENTY));
    if std::env::var_os("TMPDIR").is_none()
        && len_bytes.is_some_and(fits)
        && let Ok(folder) = builder.tempdir_in(IN_MEMORY)
    {
        return Ok(folder);
    }
    let failed = |error| about_file("cannot make a temporary folder", std::env::temp_dir(), error);
    builder.tempdir().map_err(failed)
}

/// Returns whether both the file system and the memory behind it have `len` bytes free.
fn has_room(folder: &Path, len: u64) -> bool {
    let Ok(found) = rustix::fs::statvfs(folder) else { return false };
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    found.f_bavail.saturating_mul(found.f_frsize) >= len && available_bytes(&memory) >= len
}

/// `MemAvailable` in `/proc/meminfo`; 0 if it is missing.
fn available_bytes(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0).saturating_mul(1024)
}

/// The file system in memory that every Linux has.
const IN_MEMORY: &str = "/dev/shm";
/// The files' length is multiplied by this: room for the files, their image, and other programs.
const PLENTY: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_what_the_kernel_says() {
        assert_eq!(available_bytes("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), 2 << 20);
        assert_eq!(available_bytes("MemTotal: 9 kB\n"), 0);
    }

    #[test]
    fn nothing_has_room_for_everything() {
        assert!(!has_room(Path::new("/"), u64::MAX));
        assert!(!has_room(Path::new("/no/such/folder"), 0));
    }

    #[test]
    fn a_folder_is_made_wherever_there_is_room() {
        for len in [None, Some(1), Some(u64::MAX)] {
            assert!(scratch_folder(len).unwrap().path().is_dir());
        }
    }
}
