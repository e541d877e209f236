//! Rendezvous in a folder on a shared file system: one subfolder per round, one file per rank.
//!
//! A file appears atomically, and only if there is no other: it is written under a temporary name, then
//! linked. Only the job's user can read it, since it may contain the job's key.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64;

use super::Rendezvous;
use crate::peers::round::MAX_RECORD_BYTES;
use dlfs_base::error::{Error, ErrorKind, Result};

/// The records of one round as files of a folder.
#[derive(Debug)]
pub struct Folder {
    /// The subfolder of the round.
    path: PathBuf,
}

impl Folder {
    /// The records of `round` in `folder`, which must exist. Records of earlier rounds may be there, too.
    ///
    /// # Errors
    /// The folder does not exist, or nothing can be created in it.
    pub fn new(folder: &Path, round: &str) -> Result<Folder> {
        let name = format!("dlfs-{:016x}", xxh3_64(round.as_bytes()));
        let path = folder.join(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != AlreadyExists => Err(failed(error, &path)),
            _ => Ok(Folder { path }),
        }
    }

    fn file_of(&self, rank: u32) -> PathBuf {
        self.path.join(format!("rank-{rank:06}.json"))
    }
}

impl Rendezvous for Folder {
    fn set(&mut self, rank: u32, record: &[u8]) -> Result<()> {
        let path = self.file_of(rank);
        let temporary =
            path.with_extension(format!("{:x}-{}", xxh3_64(record), std::process::id()));
        let file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let written = file.and_then(|mut file| file.write_all(record));
        written.map_err(|error| failed(error, &temporary))?;
        let linked = fs::hard_link(&temporary, &path);
        // If NFS loses the answer to a link request, it sends the request again, which fails with EEXIST. The temporary
        // file then has two links.
        let is_linked = fs::metadata(&temporary).is_ok_and(|found| found.nlink() == 2);
        // The temporary file is no longer needed, even if linking failed; a leftover does no harm.
        let _ = fs::remove_file(&temporary);
        match linked {
            Err(_) if is_linked => Ok(()),
            Err(error) if error.kind() == AlreadyExists => {
                let message = format!("rank {rank} is there twice, or this round was there before");
                let hint = "give each process a rank of its own, and each start a round of its own";
                Err(Error::new(ErrorKind::InvalidArgument, message).path(path).hint(hint))
            }
            Err(error) => Err(failed(error, &path)),
            Ok(()) => Ok(()),
        }
    }

    fn get(&mut self, world_size: u32, _: Instant) -> Result<Vec<Option<Vec<u8>>>> {
        // Makes an NFS client ask whether the folder has changed. Otherwise it remembers for up to a minute that a
        // rank's file was absent. A failure is that of the reads.
        let _ = fs::File::open(&self.path);
        (0..world_size).map(|rank| read(&self.file_of(rank))).collect()
    }

    fn describe(&self) -> String {
        format!("the folder {}", self.path.display())
    }
}

/// Reads the record at `path`; `None` if there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == NotFound => return Ok(None),
        Err(error) => return Err(failed(error, path)),
    };
    let mut bytes = Vec::new();
    let read = file.take(MAX_RECORD_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.map(|_| Some(bytes)).map_err(|error| failed(error, path))
}

fn failed(error: std::io::Error, path: &Path) -> Error {
    Error::from(error).path(path)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::peers::rendezvous::gather;
    use crate::peers::round::tests::record;

    #[test]
    fn ranks_find_each_other_in_a_folder_and_a_second_process_of_a_rank_is_refused() {
        let shared = tempfile::tempdir().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let gathered: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|rank| {
                    let mut folder = Folder::new(shared.path(), "job.0").unwrap();
                    scope.spawn(move || {
                        gather(&mut folder, &record(rank, 8), deadline, std::thread::sleep).unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(gathered.iter().all(|all| *all == gathered[0] && all.len() == 8));
        let mut again = Folder::new(shared.path(), "job.0").unwrap();
        let error = gather(&mut again, &record(3, 8), deadline, |_| {}).unwrap_err();
        assert!(error.to_string().contains("rank 3 is there twice"), "{error}");
        let mut next = Folder::new(shared.path(), "job.1").unwrap();
        assert_eq!(next.get(8, deadline).unwrap(), vec![None; 8], "a round of its own");
        let left = fs::read_dir(&again.path).unwrap().count();
        assert_eq!(left, 8, "nothing but the records stays");
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = Folder::new(Path::new("/nowhere/at/all"), "r").unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
