//! Rendezvous of the ranks of a round: each rank sets one record, and gets all records with one batched call.
//!
//! The means depends on the launcher: an object of the caller with `set` and a batched `get`, such as the
//! store of torch.distributed or a communicator of mpi4py ([`Rendezvous`] is the trait to implement), a
//! folder on a shared file system ([`Folder`]), or a port of rank 0 ([`Blocks`]).
//!
//! Ranks do not talk pairwise, which is slow in large jobs: torchelastic's barrier took 373 s at 4,000 hosts
//! while it was pairwise, and 10 s when it was linear (PyTorch, pull request 124982).
//!
//! Read this file, then `blocks.rs`.

mod blocks;
mod folder;

use std::time::{Duration, Instant};

use super::round::Record;
use dlfs_base::error::{Error, ErrorKind, Result};

pub use blocks::Blocks;
pub use folder::Folder;

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
}
