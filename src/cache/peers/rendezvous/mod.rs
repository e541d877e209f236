//! Rendezvous of the ranks of a round: each rank sets one record, and gets all records with one batched call.
//!
//! The means depends on the launcher: an object of the caller with `set` and a batched `get`, such as the
//! store of torch.distributed or a communicator of mpi4py ([`Rendezvous`] is the trait to implement), a
//! folder on a shared file system ([`Folder`]), or a port of rank 0 ([`Blocks`]).
//!
//! Ranks do not talk pairwise, which is slow in large jobs: torchelastic's barrier took 373 s at 4,000 hosts
//! while it was pairwise, and 10 s when it was linear (PyTorch, pull request 124982).

mod blocks;

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::round::{MAX_RECORD_BYTES, Record};
use dlfs_base::error::{Error, ErrorKind, Result};

pub use blocks::Blocks;

/// A place where records are set and gathered.
pub trait Rendezvous {
    /// Sets the record of `rank`.
    ///
    /// # Errors
    /// The rendezvous failed, or another process has set this rank's record.
    fn set(&mut self, rank: u32, record: &[u8]) -> Result<()>;

    /// Gets the existing records of ranks 0..`world_size`; may wait for the other records until `deadline`.
    ///
    /// # Errors
    /// The rendezvous failed.
    fn get(&mut self, world_size: u32, deadline: Instant) -> Result<Vec<Option<Vec<u8>>>>;

    /// Reports that `rank` has the records of all ranks and makes no more calls. A rank that keeps records
    /// for the others may wait for them, until `deadline`.
    ///
    /// # Errors
    /// The rendezvous failed.
    fn leave(&mut self, rank: u32, deadline: Instant) -> Result<()> {
        let _ = (rank, deadline); // by default, nobody waits for this rank
        Ok(())
    }

    /// Description for messages, such as "the folder /shared/rendezvous".
    fn describe(&self) -> String;
}

/// Sets `own` and gathers the records of all ranks of its round, in the order of ranks. `sleep` waits between
/// attempts.
///
/// # Errors
/// A rank is present twice, or ranks are missing at the deadline: the message names them. Errors of the
/// rendezvous.
pub fn gather(
    rendezvous: &mut dyn Rendezvous,
    own: &Record,
    deadline: Instant,
    mut sleep: impl FnMut(Duration),
) -> Result<Vec<Record>> {
    rendezvous.set(own.rank, &own.to_bytes()?)?;
    let mut pause = FIRST_PAUSE;
    loop {
        let found = rendezvous.get(own.world_size, deadline)?;
        let records = of_round(found, own)?;
        let missing: Vec<u32> = (0..)
            .zip(&records)
            .filter(|(_, record)| record.is_none())
            .map(|(rank, _)| rank)
            .collect();
        if missing.is_empty() {
            rendezvous.leave(own.rank, deadline)?;
            return Ok(records.into_iter().flatten().collect());
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(missing_ranks(&missing, own, &rendezvous.describe()));
        }
        sleep(pause.min(deadline - now));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Waits until all ranks of `own`'s round have reached its end, or until the deadline: a rank continues to
/// serve while its peers still read. `rendezvous` must be a new one, not the one that gathered the records.
///
/// # Errors
/// As [`gather`].
pub fn wait_for_end(
    rendezvous: &mut dyn Rendezvous,
    own: &Record,
    deadline: Instant,
    sleep: impl FnMut(Duration),
) -> Result<()> {
    let own = Record { round: end_of(&own.round), ..own.clone() };
    gather(rendezvous, &own, deadline, sleep).map(drop)
}

/// The name of the round in which ranks report that they have reached the end of `round`.
pub fn end_of(round: &str) -> String {
    format!("{round} end")
}

/// The records of `own`'s round among the found records, by rank.
fn of_round(found: Vec<Option<Vec<u8>>>, own: &Record) -> Result<Vec<Option<Record>>> {
    let mut records = vec![None; own.world_size as usize];
    let decoded = found.into_iter().flatten().filter_map(|bytes| Record::from_bytes(&bytes));
    for record in decoded.filter(|record| record.round == own.round) {
        if record.rank == own.rank && record.process != own.process {
            let message = format!("rank {} is there twice, here and on {}", own.rank, record.host);
            let hint = "give each process a rank of its own";
            return Err(Error::new(ErrorKind::InvalidArgument, message).hint(hint));
        }
        // A rank at or above this rank's world size has no entry. `Round::new` reports the other records of
        // such a larger world.
        if let Some(place) = records.get_mut(record.rank as usize) {
            *place = Some(record);
        }
    }
    Ok(records)
}

fn missing_ranks(missing: &[u32], own: &Record, means: &str) -> Error {
    const NAMED: usize = 16;
    let mut named: Vec<String> = missing.iter().take(NAMED).map(u32::to_string).collect();
    if missing.len() > NAMED {
        named.push(format!("and {} more", missing.len() - NAMED));
    }
    let message = format!(
        "of {} ranks of round {:?}, {} did not come to {means} in time: {}",
        own.world_size,
        own.round,
        missing.len(),
        named.join(", ")
    );
    let hint =
        "look at those processes' output; all ranks of a start need the same world size and round";
    Error::new(ErrorKind::TimedOut, message).hint(hint)
}

/// Records as files of a folder: one subfolder per round, one file per rank.
///
/// A file appears atomically, and only if there is no other: it is written under a temporary name, then
/// linked. Only the job's user can read it, since it may contain the job's key.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The records of `round` in `folder`, which must exist. Records of earlier rounds may be there, too.
    ///
    /// # Errors
    /// The folder does not exist, or nothing can be created in it.
    pub fn new(folder: &Path, round: &str) -> Result<Folder> {
        let name = format!("dlfs-{:016x}", xxhash_rust::xxh3::xxh3_64(round.as_bytes()));
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
        let own = path.with_extension(format!(
            "{:x}-{}",
            xxhash_rust::xxh3::xxh3_64(record),
            std::process::id()
        ));
        let file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&own);
        let written = file.and_then(|mut file| file.write_all(record));
        written.map_err(|error| failed(error, &own))?;
        let linked = fs::hard_link(&own, &path);
        // The temporary file is no longer needed, even if linking failed; a leftover does no harm.
        let _ = fs::remove_file(&own);
        match linked {
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
        (0..world_size).map(|rank| read(&self.file_of(rank))).collect()
    }

    fn describe(&self) -> String {
        format!("the folder {}", self.path.display())
    }
}

/// Reads the record at `path`; `None` if there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    use std::io::Read;
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == NotFound => return Ok(None),
        Err(error) => return Err(failed(error, path)),
    };
    let mut bytes = Vec::new();
    let read = file.take(MAX_RECORD_BYTES as u64 + 1).read_to_end(&mut bytes);
    match read {
        Ok(_) => Ok(Some(bytes)),
        Err(error) => Err(failed(error, path)),
    }
}

fn failed(error: std::io::Error, path: &Path) -> Error {
    Error::from(error).path(path)
}

/// Default timeout for all ranks to join.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause after the first attempt; the pause doubles after each attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// Limit of the pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::round::tests::record;
    use super::*;
    use crate::peers::round::tests::record;
    use parking_lot::Mutex;

    /// Like a store of torch.distributed: a map that all ranks can access.
    #[derive(Clone, Default)]
    struct Map(Arc<Mutex<Vec<Option<Vec<u8>>>>>);

    impl Rendezvous for Map {
        fn set(&mut self, rank: u32, record: &[u8]) -> Result<()> {
            let mut map = self.0.lock();
            let len = map.len().max(rank as usize + 1);
            map.resize(len, None);
            map[rank as usize] = Some(record.to_vec());
            Ok(())
        }

        fn get(&mut self, world_size: u32, _: Instant) -> Result<Vec<Option<Vec<u8>>>> {
            let mut all = self.0.lock().clone();
            all.resize(world_size as usize, None);
            Ok(all)
        }

        fn describe(&self) -> String {
            "the store".to_owned()
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn every_rank_gets_the_records_of_all() {
        let map = Map::default();
        let gathered: Vec<Vec<Record>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|rank| {
                    let mut map = map.clone();
                    scope.spawn(move || {
                        gather(&mut map, &record(rank, 16), soon(), std::thread::sleep).unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let expected: Vec<Record> = (0..16).map(|rank| record(rank, 16)).collect();
        assert!(gathered.iter().all(|all| *all == expected));
    }

    #[test]
    fn leftovers_of_an_earlier_round_do_not_count() {
        let mut map = Map::default();
        let old = Record { round: "job.earlier".to_owned(), ..record(1, 2) };
        map.set(1, &old.to_bytes().unwrap()).unwrap();
        let mut new = map.clone();
        let mut attempts = 0;
        let all = gather(&mut map, &record(0, 2), soon(), |_| {
            attempts += 1;
            new.set(1, &record(1, 2).to_bytes().unwrap()).unwrap();
        });
        assert_eq!((all.unwrap()[1].round.as_str(), attempts), ("job.0", 1));
    }

    #[test]
    fn missing_ranks_are_named_at_the_deadline() {
        let mut map = Map::default();
        map.set(2, &record(2, 5).to_bytes().unwrap()).unwrap();
        let error = gather(&mut map, &record(0, 5), Instant::now(), |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(
            error
                .to_string()
                .contains("of 5 ranks of round \"job.0\", 3 did not come to the store")
        );
        assert!(error.to_string().contains("in time: 1, 3, 4"), "{error}");
        let error = gather(&mut map, &record(0, 1_000), Instant::now(), |_| {}).unwrap_err();
        assert!(error.to_string().ends_with("16, 17, and 982 more"), "{error}");
    }

    #[test]
    fn a_rank_that_is_there_twice_is_named() {
        struct Other(Map);
        impl Rendezvous for Other {
            fn set(&mut self, rank: u32, _: &[u8]) -> Result<()> {
                let other = Record { process: 5, host: "elsewhere".to_owned(), ..record(rank, 2) };
                self.0.set(rank, &other.to_bytes()?)
            }
            fn get(&mut self, world_size: u32, deadline: Instant) -> Result<Vec<Option<Vec<u8>>>> {
                self.0.get(world_size, deadline)
            }
            fn describe(&self) -> String {
                self.0.describe()
            }
        }
        let error = gather(&mut Other(Map::default()), &record(1, 2), soon(), |_| {}).unwrap_err();
        assert!(
            error.to_string().contains("rank 1 is there twice, here and on elsewhere"),
            "{error}"
        );
    }

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
