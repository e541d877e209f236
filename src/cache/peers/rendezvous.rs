//! Rendezvous of the ranks of a round: each rank sets one record, and gets all records with one batched call.
//!
//! The means depends on the launcher: an object of the caller with `set` and a batched `get`, such as the
//! store of torch.distributed or a communicator of mpi4py ([`Rendezvous`] is the trait to implement), a
//! folder on a shared file system ([`Folder`]), or a port of rank 0 ([`Blocks`]).
//!
//! Ranks do not talk pairwise, which is slow in large jobs: torchelastic's barrier took 373 s at 4,000 hosts
//! while it was pairwise, and 10 s when it was linear (PyTorch, pull request 124982).
//!
//! Rendezvous on a port of rank 0: a namespace in rank 0's memory with one block per rank.
//!
//! It needs no other program: rank 0 serves the namespace by a [`Target`], and the other ranks write and read
//! blocks as NVMe/TCP hosts, as `nvme read` would. With world size W, blocks 0..W hold the records. When a
//! rank has all records, it writes its block of W..2W, so that rank 0 knows when nobody needs the namespace
//! any more.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::job_key::{GROUPS, PeerKeys, RoundKeys, host_of_all};
use super::round::{MAX_RECORD_BYTES, Record};
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::units::Nsid;
use dlfs_io::address::{Address, TcpAddress};
use dlfs_io::qpair::blocking::Blocking;
use dlfs_io::qpair::mem::MemNamespace;
use dlfs_io::qpair::{self, ConnectOptions, Device};
use dlfs_nvme::nvme::Nqn;
use dlfs_target::{Target, TargetOptions};

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

/// Rendezvous whose records lie in the blocks of rank 0's namespace.
pub struct Blocks {
    /// The address where the ranks meet, for messages.
    place: String,
    world_size: u32,
    own: Option<(u32, Vec<u8>)>,
    side: Side,
}

enum Side {
    /// Rank 0, which serves the namespace and uses its memory directly.
    Host { _target: Target, memory: Blocking },
    /// Any other rank, which connects to rank 0.
    Guest { address: Address, connect: Box<ConnectOptions>, connection: Option<Blocking> },
}

impl Blocks {
    /// Rank 0's side, which listens on `listen`. With `keys` that the rendezvous need not carry, only ranks
    /// with these keys can write and read records.
    ///
    /// # Errors
    /// `Busy`: the port is in use; the message names it. Errors of [`Target::bind`].
    pub fn host(listen: SocketAddr, world_size: u32, keys: Option<&PeerKeys>) -> Result<Blocks> {
        let keys = keys.and_then(|keys| RoundKeys::of_meeting(keys).ok());
        let hosts = keys.as_ref().map(|keys| keys.of_hosts([host_of_all()], 0));
        let mut host_keys = hosts.unwrap_or_default();
        // Ranks write their records to the namespace.
        host_keys.values_mut().for_each(|keys| keys.access.read_only = false);
        let memory = MemNamespace::new(len_bytes(world_size), BLOCK_BYTES as u32)?;
        let options = TargetOptions {
            listen,
            writable: true,
            // Without keys, any host may connect: no rank knows the others yet. Each block is checked to be a
            // record.
            allow_any_host: keys.is_none(),
            host_keys,
            dhchap_groups: GROUPS.to_vec(),
            buffer_bytes: 8 << 20,
            ..TargetOptions::new(nqn())
        };
        let taken = "another job, or another process of rank 0, has it: choose a --rendezvous-port";
        let target = Target::bind(options, vec![Arc::new(memory.clone())]).map_err(|error| {
            if error.kind() == ErrorKind::Busy { error.hint(taken) } else { error }
        })?;
        let place = format!("rank 0's port {}", target.local_addr());
        let memory = Blocking::new(memory.queue_pair()?)?;
        let side = Side::Host { _target: target, memory };
        Ok(Blocks { place, world_size, own: None, side })
    }

    /// The side of every other rank: rank 0 listens at `host` and `port`, now or soon. `keys` are the same as
    /// rank 0's.
    pub fn guest(
        host: &str,
        port: u16,
        world_size: u32,
        connect: &ConnectOptions,
        keys: Option<&PeerKeys>,
    ) -> Blocks {
        let address = TcpAddress {
            traddr: host.to_owned(),
            trsvcid: port,
            subnqn: nqn(),
            nsid: Some(Nsid(1)),
        };
        let connect = match keys.and_then(|keys| RoundKeys::of_meeting(keys).ok()) {
            Some(keys) => keys.connect(connect, &host_of_all(), 0),
            None => connect.clone(),
        };
        let connect = Box::new(ConnectOptions {
            nr_io_queues: 1,
            connect_timeout: ATTEMPT,
            tcp_connect_timeout: ATTEMPT,
            ctrl_loss_tmo: Duration::ZERO,
            io_timeout: ATTEMPT,
            paths: Vec::new(),
            writable: true,
            ..connect
        });
        let side = Side::Guest { address: Address::Tcp(address), connect, connection: None };
        let place = format!("rank 0's port {host}:{port}");
        Blocks { place, world_size, own: None, side }
    }

    /// Reads the blocks of all ranks, and writes this rank's own block if necessary.
    fn read(&mut self) -> Result<Vec<Option<Vec<u8>>>> {
        let world_size = self.world_size;
        let io = match &mut self.side {
            Side::Host { memory, .. } => memory,
            Side::Guest { connection: Some(connection), .. } => connection,
            Side::Guest { address, connect, connection } => {
                connection.insert(connected(address, connect, world_size)?)
            }
        };
        let bytes = io.read(0, world_size as usize * BLOCK_BYTES)?;
        let mut blocks: Vec<Option<Vec<u8>>> = bytes.chunks(BLOCK_BYTES).map(content).collect();
        let Some((rank, own)) = &self.own else { return Ok(blocks) };
        let block = &mut blocks[*rank as usize];
        // The record of another process with this rank and round stays, so that both processes see the conflict. A
        // leftover of an earlier start is overwritten, even if ranks of that start still run.
        if block.as_deref() != Some(own)
            && !block.as_deref().is_some_and(|other| is_of_round(other, own))
        {
            let mut padded = own.clone();
            padded.resize(BLOCK_BYTES, 0);
            io.write_at(offset_of(*rank), &padded)?;
            *block = Some(own.clone());
        }
        Ok(blocks)
    }

    /// On rank 0, waits until all other ranks have reported that they have read all records.
    fn wait_for_readers(&mut self, deadline: Instant) -> Result<()> {
        let world_size = self.world_size;
        let deadline = deadline.min(Instant::now() + LONGEST_FAREWELL);
        let Side::Host { memory, .. } = &mut self.side else { return Ok(()) };
        loop {
            let bytes = memory.read(offset_of(world_size), world_size as usize * BLOCK_BYTES)?;
            let all = bytes.chunks(BLOCK_BYTES).skip(1).all(|block| block[0] != 0);
            if all || Instant::now() >= deadline {
                return Ok(());
            }
            std::thread::sleep(FAREWELL_PAUSE);
        }
    }
}

impl Rendezvous for Blocks {
    fn set(&mut self, rank: u32, record: &[u8]) -> Result<()> {
        if rank >= self.world_size {
            return Err(invalid(format!("rank {rank} of {}: ranks count from 0", self.world_size)));
        }
        // The first `get` writes the record: rank 0 may not listen yet.
        self.own = Some((rank, record.to_vec()));
        Ok(())
    }

    fn get(&mut self, world_size: u32, deadline: Instant) -> Result<Vec<Option<Vec<u8>>>> {
        match self.read() {
            Ok(blocks) => Ok(blocks),
            Err(error) if error.kind() == ErrorKind::InvalidArgument => Err(error),
            Err(error) => {
                if let Side::Guest { connection, .. } = &mut self.side {
                    *connection = None;
                }
                if Instant::now() < deadline {
                    return Ok(vec![None; world_size as usize]);
                }
                let text = format!("rank 0 is missing: {} does not answer", self.place);
                let hint = "look at rank 0's output; MASTER_ADDR, or the list's first entry, is its address, \
                            and all ranks need the same --rendezvous-port and --job-key";
                Err(Error::new(ErrorKind::TimedOut, text).source(error).hint(hint))
            }
        }
    }

    fn leave(&mut self, rank: u32, deadline: Instant) -> Result<()> {
        let at = offset_of(self.world_size + rank);
        match &mut self.side {
            Side::Host { .. } => self.wait_for_readers(deadline),
            // Rank 0 waits only a few seconds. This rank has all records, so an error of the report does no
            // harm.
            Side::Guest { connection, .. } => {
                let said = connection.as_mut().map(|io| io.write_at(at, &[1; BLOCK_BYTES]));
                if let Some(Err(error)) = said {
                    tracing::debug!(%error, "rank 0 was not told that this rank has all records");
                }
                *connection = None;
                Ok(())
            }
        }
    }

    fn describe(&self) -> String {
        self.place.clone()
    }
}

fn connected(address: &Address, connect: &ConnectOptions, world_size: u32) -> Result<Blocking> {
    let device = qpair::open(address, connect)?;
    let found = device.namespace().len_bytes();
    if found != len_bytes(world_size) {
        let ranks = found / BLOCK_BYTES as u64 / 2;
        let text = format!("rank 0 has world size {ranks}, and this rank has {world_size}");
        let hint = "start all ranks of a job alike";
        return Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint));
    }
    let mut io = Blocking::new(device.queue_pair()?)?;
    io.set_deadline(ATTEMPT);
    Ok(io)
}

/// The record in a block, without the zeroes after it.
fn content(block: &[u8]) -> Option<Vec<u8>> {
    let len = block.iter().position(|&byte| byte == 0).unwrap_or(block.len());
    (len > 0).then(|| block[..len].to_vec())
}

fn is_of_round(other: &[u8], own: &[u8]) -> bool {
    let round = |bytes| Record::from_bytes(bytes).map(|record| record.round);
    round(other).is_some() && round(other) == round(own)
}

fn offset_of(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES as u64
}

fn len_bytes(world_size: u32) -> u64 {
    2 * offset_of(world_size)
}

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:rendezvous").expect("it is short and has no control characters")
}

/// Default timeout for all ranks to join.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause after the first attempt; the pause doubles after each attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// Limit of the pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Length of a block; a record has up to 1 KiB.
const BLOCK_BYTES: usize = 4096;

/// Timeout of one attempt to connect, and of one call.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Time that rank 0 waits, once all records are there, for ranks that have not read all of them.
const LONGEST_FAREWELL: Duration = Duration::from_secs(5);

const FAREWELL_PAUSE: Duration = Duration::from_millis(5);

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

    fn port_of(host: &Blocks) -> u16 {
        host.place.rsplit(':').next().unwrap().parse().unwrap()
    }

    fn join(mut blocks: Blocks, own: &Record, deadline: Instant) -> Result<Vec<Record>> {
        gather(&mut blocks, own, deadline, std::thread::sleep)
    }

    #[test]
    fn ranks_find_each_other_on_a_port_of_rank_0_and_it_waits_for_the_last_reader() {
        const RANKS: u32 = 8;
        let host = Blocks::host("127.0.0.1:0".parse().unwrap(), RANKS, None).unwrap();
        let port = port_of(&host);
        let connect = ConnectOptions::default();
        let gathered: Vec<Vec<Record>> = std::thread::scope(|scope| {
            let mut threads = vec![scope.spawn(|| join(host, &record(0, RANKS), soon()).unwrap())];
            for rank in 1..RANKS {
                let guest = Blocks::guest("127.0.0.1", port, RANKS, &connect, None);
                threads
                    .push(scope.spawn(move || join(guest, &record(rank, RANKS), soon()).unwrap()));
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(gathered.iter().all(|all| *all == gathered[0] && all.len() == RANKS as usize));
        // The port must be free again, for a later round.
        drop(Blocks::host(([127, 0, 0, 1], port).into(), RANKS, None).unwrap());
    }

    #[test]
    fn a_rank_that_comes_before_rank_0_waits_for_it() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let connect = ConnectOptions::default();
        std::thread::scope(|scope| {
            let guest = Blocks::guest("127.0.0.1", port, 2, &connect, None);
            let waiting = scope.spawn(|| join(guest, &record(1, 2), soon()).unwrap());
            std::thread::sleep(Duration::from_millis(300));
            let host = Blocks::host(([127, 0, 0, 1], port).into(), 2, None).unwrap();
            assert_eq!(join(host, &record(0, 2), soon()).unwrap(), waiting.join().unwrap());
        });
        let alone = Blocks::guest("127.0.0.1", port, 2, &connect, None);
        let error =
            join(alone, &record(1, 2), Instant::now() + Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("rank 0 is missing"), "{error}");
    }

    #[test]
    fn leftovers_give_way_and_a_second_process_of_a_rank_is_named() {
        let host = Blocks::host("127.0.0.1:0".parse().unwrap(), 3, None).unwrap();
        let port = port_of(&host);
        let connect = ConnectOptions::default();
        let guest = || Blocks::guest("127.0.0.1", port, 3, &connect, None);
        let write = |own: &Record| {
            let mut blocks = guest();
            blocks.set(own.rank, &own.to_bytes().unwrap()).unwrap();
            blocks.get(3, soon()).unwrap()
        };
        write(&Record { round: "job.earlier".to_owned(), ..record(1, 3) });
        let blocks = write(&record(1, 3));
        assert_eq!(Record::from_bytes(blocks[1].as_deref().unwrap()), Some(record(1, 3)));
        // A record's position is the caller's rank, whatever rank the record contains.
        let mut wrong = guest();
        wrong.set(2, &record(9, 10).to_bytes().unwrap()).unwrap();
        assert!(wrong.get(3, soon()).unwrap()[2].is_some());
        let right = Record { round: "job.later".to_owned(), ..record(2, 3) };
        write(&right);
        let second = Record { process: 7, ..record(1, 3) };
        let error = join(guest(), &second, soon()).unwrap_err().to_string();
        assert!(error.contains("rank 1 is there twice, here and on node0"), "{error}");
        let error = join(host, &record(0, 3), Instant::now()).unwrap_err().to_string();
        assert!(
            error.contains("did not come to rank 0's port") && error.ends_with(": 2"),
            "{error}"
        );
    }

    #[test]
    fn a_port_that_is_taken_and_another_world_size_are_named() {
        let host = Blocks::host("127.0.0.1:0".parse().unwrap(), 3, None).unwrap();
        let port = port_of(&host);
        let taken = Blocks::host(([127, 0, 0, 1], port).into(), 3, None).err().unwrap();
        assert_eq!(taken.kind(), ErrorKind::Busy);
        let report = taken.report();
        assert!(
            report.contains(&port.to_string()) && report.contains("--rendezvous-port"),
            "{report}"
        );
        let other = Blocks::guest("127.0.0.1", port, 4, &ConnectOptions::default(), None);
        let error = join(other, &record(1, 4), soon()).unwrap_err().to_string();
        assert!(error.contains("rank 0 has world size 3, and this rank has 4"), "{error}");
    }
}
