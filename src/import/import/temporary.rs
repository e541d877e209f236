//! A column in a nameless temporary file, for a commit of more samples than should be in memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

use dlfs_base::nameless_file::nameless_file;
use dlfs_format::directory::KeepsAside;
use dlfs_format::format::FormatError;

/// Bytes in a temporary file, except the last ones. If the file cannot take more, the rest stays in memory.
#[derive(Debug)]
pub(super) struct TemporaryColumn {
    file: Option<File>,
    /// Number of bytes in the file.
    in_file: u64,
    /// The bytes after those of the file.
    tail: Vec<u8>,
    is_full: bool,
}

impl TemporaryColumn {
    /// An empty column.
    pub(super) fn new() -> TemporaryColumn {
        TemporaryColumn { file: None, in_file: 0, tail: Vec::new(), is_full: false }
    }

    fn move_tail(&mut self) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(nameless_file(&std::env::temp_dir())?),
        };
        file.write_all_at(&self.tail, self.in_file)
    }
}

impl KeepsAside for TemporaryColumn {
    fn append(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        if self.tail.len() < PIECE_BYTES || self.is_full {
            return;
        }
        match self.move_tail() {
            Ok(()) => {
                self.in_file += self.tail.len() as u64;
                self.tail.clear();
            }
            Err(error) => {
                self.is_full = true;
                tracing::warn!(
                    "checksums stay in memory, since there is no temporary file for them: {error}"
                );
            }
        }
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
            rest.copy_from_slice(&self.tail[start..start + rest.len()]);
        }
        Ok(())
    }
}

const PIECE_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_back_from_file_and_memory() {
        let mut column = TemporaryColumn::new();
        let all: Vec<u8> = (0..3 * PIECE_BYTES / 2).map(|at| (at * 31 / 7) as u8).collect();
        all.chunks(16 << 10).for_each(|piece| column.append(piece));
        assert!(column.in_file > 0 && !column.tail.is_empty(), "a part of it in each");
        for (at, len) in [(0, all.len()), (5, 100), (PIECE_BYTES - 3, 7), (all.len() - 9, 9)] {
            let mut found = vec![0; len];
            column.read_at(at as u64, &mut found).unwrap();
            assert!(found == all[at..at + len], "{len} bytes at {at}");
        }
    }

    #[test]
    fn what_a_full_file_does_not_take_stays_in_memory() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut column = TemporaryColumn { file: Some(full), ..TemporaryColumn::new() };
        let all: Vec<u8> = (0..2 * PIECE_BYTES).map(|at| at as u8).collect();
        all.chunks(1000).for_each(|piece| column.append(piece));
        let mut found = vec![0; all.len()];
        column.read_at(0, &mut found).unwrap();
        assert!(found == all && column.in_file == 0);
    }
}
