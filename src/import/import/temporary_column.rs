//! The checksums of a commit by many processes, in a temporary file: they are read only when the snapshot is written,
//! so they need not be in memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

use dlfs_base::nameless_file::nameless_file;
use dlfs_format::directory::KeepsAside;
use dlfs_format::format::FormatError;

/// Bytes in a temporary file. If the file cannot take more, the rest stays in memory.
#[derive(Debug, Default)]
pub(super) struct TemporaryColumn {
    /// The file; `None` before the first byte.
    file: Option<File>,
    /// Number of bytes in the file.
    in_file: u64,
    /// The bytes after those of the file.
    rest: Vec<u8>,
}

impl TemporaryColumn {
    /// Appends bytes to the file, which is created first if need be.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(nameless_file(&std::env::temp_dir())?),
        };
        file.write_all_at(bytes, self.in_file)?;
        self.in_file += bytes.len() as u64;
        Ok(())
    }
}

impl KeepsAside for TemporaryColumn {
    fn append(&mut self, bytes: &[u8]) {
        if self.rest.is_empty() && !bytes.is_empty() {
            let Err(error) = self.write(bytes) else { return };
            tracing::warn!(
                "checksums stay in memory, since there is no temporary file for them: {error}"
            );
        }
        self.rest.extend_from_slice(bytes);
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), FormatError> {
        let in_file = self.in_file.saturating_sub(at).min(out.len() as u64) as usize;
        let (first, rest) = out.split_at_mut(in_file);
        if let Some(file) = self.file.as_ref().filter(|_| in_file > 0) {
            let unread = |error: std::io::Error| FormatError::Unread {
                what: "temporary file of a commit",
                why: error.to_string(),
            };
            file.read_exact_at(first, at).map_err(unread)?;
        }
        if !rest.is_empty() {
            let start = (at + in_file as u64 - self.in_file) as usize;
            rest.copy_from_slice(&self.rest[start..start + rest.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 300 << 10;

    #[test]
    fn bytes_read_back_from_file_and_memory() {
        let mut column = TemporaryColumn::default();
        let all: Vec<u8> = (0..BYTES).map(|at| (at * 31 / 7) as u8).collect();
        let (first, last) = all.split_at(BYTES / 3);
        first.chunks(16 << 10).for_each(|piece| column.append(piece));
        column.rest.extend_from_slice(last);
        assert_eq!(column.in_file, first.len() as u64);
        for (at, len) in [(0, all.len()), (5, 100), (BYTES / 3 - 3, 7), (all.len() - 9, 9)] {
            let mut found = vec![0; len];
            column.read_at(at as u64, &mut found).unwrap();
            assert!(found == all[at..at + len], "{len} bytes at {at}");
        }
    }

    #[test]
    fn what_a_full_file_does_not_take_stays_in_memory() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut column = TemporaryColumn { file: Some(full), ..TemporaryColumn::default() };
        let all: Vec<u8> = (0..BYTES).map(|at| at as u8).collect();
        all.chunks(1000).for_each(|piece| column.append(piece));
        let mut found = vec![0; all.len()];
        column.read_at(0, &mut found).unwrap();
        assert!(found == all && column.in_file == 0);
    }
}
