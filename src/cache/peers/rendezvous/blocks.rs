//! Rendezvous on a port of rank 0: a namespace in rank 0's memory with one block per rank.
//!
//! It needs no other program: rank 0 serves the namespace by a [`Target`], and the other ranks write and read
//! blocks as NVMe/TCP hosts, as `nvme read` would. With world size W, blocks 0..W hold the records. When a
//! rank has all records, it writes its block of W..2W, so that rank 0 knows when nobody needs the namespace
//! any more.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Rendezvous;
use crate::peers::job_key::{GROUPS, PeerKeys, RoundKeys, host_of_all};
use crate::peers::round::Record;
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::units::Nsid;
use dlfs_io::address::{Address, TcpAddress};
use dlfs_io::qpair::blocking::Blocking;
use dlfs_io::qpair::mem::MemNamespace;
use dlfs_io::qpair::{self, ConnectOptions, Device};
use dlfs_nvme::nvme::Nqn;
use dlfs_target::{Target, TargetOptions};

/// Rendezvous whose records lie in the blocks of rank 0's namespace.
pub struct Blocks {
    /// The address where the ranks meet, for messages.
    place: String,
    world_size: u32,
    /// This rank, and its record once it is set.
    own: Option<(u32, Vec<u8>)>,
    /// The other ranks' records of this round that were read. They stay as they are, so they are not read again.
    known: Vec<Option<Vec<u8>>>,
    side: Side,
}

/// This rank's access to the namespace.
enum Side {
    /// Rank 0, which serves the namespace and uses its memory directly.
    Rank0 { _target: Target, memory: Blocking },
    /// Any other rank, which connects to rank 0.
    Other { address: Address, connect: Box<ConnectOptions>, connection: Option<Blocking> },
}

impl Blocks {
    /// Rank 0's side, which listens on `listen`. With a key that the user gave, only ranks with the same `keys` can
    /// write and read records. A key that rank 0 generates cannot protect the rendezvous: its own record carries the
    /// key.
    ///
    /// # Errors
    /// `Busy`: the port is in use; the message names it. Errors of [`Target::bind`].
    pub fn host(listen: SocketAddr, world_size: u32, keys: Option<&PeerKeys>) -> Result<Blocks> {
        let keys = keys_of(keys);
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
            // A connection may hold a quarter of it: at least twice the longest command. The default is for data sets.
            buffer_bytes: 8 << 20,
            ..TargetOptions::new(nqn())
        };
        let taken = "another job, or another process of rank 0, has it: choose a --rendezvous-port \
                     (rendezvous_port in Python and C)";
        let target = Target::bind(options, vec![Arc::new(memory.clone())]).map_err(|error| {
            if error.kind() == ErrorKind::Busy { error.hint(taken) } else { error }
        })?;
        let place = format!("rank 0's port {}", target.local_addr());
        let memory = Blocking::new(memory.queue_pair()?)?;
        let side = Side::Rank0 { _target: target, memory };
        Ok(Blocks::of(place, world_size, side))
    }

    /// The side of every other rank. `host` is the address or name of rank 0's machine, where rank 0 listens at `port`,
    /// now or soon. `keys` are the same as rank 0's.
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
        let connect = match keys_of(keys) {
            Some(keys) => keys.connect(connect, &host_of_all(), 0),
            None => connect.clone(),
        };
        let connect = Box::new(ConnectOptions {
            nr_io_queues: 1,
            connect_timeout: ATTEMPT,
            tcp_connect_timeout: ATTEMPT,
            ctrl_loss_tmo: Duration::ZERO,
            io_timeout: time_of_call(world_size),
            paths: Vec::new(),
            writable: true,
            ..connect
        });
        let side = Side::Other { address: Address::Tcp(address), connect, connection: None };
        let place = format!("rank 0's port {host}:{port}");
        Blocks::of(place, world_size, side)
    }

    fn of(place: String, world_size: u32, side: Side) -> Blocks {
        Blocks { place, world_size, own: None, known: vec![None; world_size as usize], side }
    }

    /// From the first to the last of the other ranks whose record is not known.
    fn unknown(&self) -> Range<u32> {
        let own = self.own.as_ref().map(|(rank, _)| *rank);
        let is_unknown = |&rank: &u32| self.known[rank as usize].is_none() && Some(rank) != own;
        let mut unknown = (0..self.world_size).filter(is_unknown);
        unknown.next().map_or(0..0, |first| first..unknown.next_back().unwrap_or(first) + 1)
    }

    /// Reads the blocks of all ranks whose record is not known, and writes this rank's own block if necessary.
    fn read(&mut self) -> Result<Vec<Option<Vec<u8>>>> {
        let world_size = self.world_size;
        let unknown = self.unknown();
        let io = match &mut self.side {
            Side::Rank0 { memory, .. } => memory,
            Side::Other { connection: Some(connection), .. } => connection,
            Side::Other { address, connect, connection } => {
                connection.insert(connected(address, connect, world_size)?)
            }
        };
        let bytes = io.read(offset_of(unknown.start), unknown.len() * BLOCK_BYTES)?;
        let mut blocks = self.known.clone();
        for (block, bytes) in
            blocks[unknown.start as usize..].iter_mut().zip(bytes.chunks(BLOCK_BYTES))
        {
            *block = block.take().or_else(|| content(bytes));
        }
        let Some((rank, own)) = &self.own else { return Ok(blocks) };
        for other in unknown.filter(|other| other != rank).map(|other| other as usize) {
            self.known[other] = blocks[other].clone().filter(|found| is_of_round(found, own));
        }
        let block = &mut blocks[*rank as usize];
        *block = content(&io.read(offset_of(*rank), BLOCK_BYTES)?);
        // If another process has written a record of this rank and round, that record stays, and its process goes on.
        // This process gets it in place of its own, and `gather` reports the conflict. A record of an earlier start is
        // overwritten, even if ranks of that start still run.
        if block.as_deref().is_none_or(|found| !is_of_round(found, own)) {
            let mut padded = own.clone();
            padded.resize(BLOCK_BYTES, 0);
            io.write_at(offset_of(*rank), &padded)?;
            *block = Some(own.clone());
        }
        Ok(blocks)
    }

    /// On rank 0, waits until all other ranks have reported that they have read all records, or for
    /// [`LONGEST_FAREWELL`]. On other ranks, returns at once.
    fn wait_for_readers(&mut self, deadline: Instant) -> Result<()> {
        let world_size = self.world_size;
        let deadline = deadline.min(Instant::now() + LONGEST_FAREWELL);
        let Side::Rank0 { memory, .. } = &mut self.side else { return Ok(()) };
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
                if let Side::Other { connection, .. } = &mut self.side {
                    *connection = None;
                    self.known.fill(None); // another process may be rank 0 by now
                }
                if Instant::now() < deadline {
                    return Ok(vec![None; world_size as usize]);
                }
                let text = format!("rank 0 is missing: {} does not answer", self.place);
                let hint = "look at rank 0's output; MASTER_ADDR, or the list's first entry, is its address, \
                            and all ranks need the same --rendezvous-port and --job-key (rendezvous_port and \
                            job_key in Python and C)";
                Err(Error::new(ErrorKind::TimedOut, text).source(error).hint(hint))
            }
        }
    }

    fn leave(&mut self, rank: u32, deadline: Instant) -> Result<()> {
        let at = offset_of(self.world_size + rank);
        match &mut self.side {
            Side::Rank0 { .. } => self.wait_for_readers(deadline),
            // Rank 0 waits only a few seconds. This rank has all records, so an error of the report does no
            // harm.
            Side::Other { connection, .. } => {
                let written = connection.as_mut().map(|io| io.write_at(at, &[1; BLOCK_BYTES]));
                if let Some(Err(error)) = written {
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

/// The keys that protect the rendezvous, if there are any.
fn keys_of(keys: Option<&PeerKeys>) -> Option<RoundKeys> {
    // An error means that there is no key yet: rank 0 generates it, and the rendezvous carries it.
    keys.and_then(|keys| RoundKeys::of_meeting(keys).ok())
}

/// Connects to rank 0, and checks that it has the same world size.
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
    io.set_deadline(time_of_call(world_size));
    Ok(io)
}

/// The record in a block, without the zeroes after it.
fn content(block: &[u8]) -> Option<Vec<u8>> {
    let len = block.iter().position(|&byte| byte == 0).unwrap_or(block.len());
    (len > 0).then(|| block[..len].to_vec())
}

/// Returns whether both are records of the same round.
fn is_of_round(found: &[u8], own: &[u8]) -> bool {
    let round = |bytes| Record::from_bytes(bytes).map(|record| record.round);
    round(found).is_some() && round(found) == round(own)
}

/// Offset of a block in bytes.
fn offset_of(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES as u64
}

/// Length of the namespace in bytes.
fn len_bytes(world_size: u32) -> u64 {
    2 * offset_of(world_size)
}

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:rendezvous").expect("it is short and has no control characters")
}

/// Timeout of one read or write: all ranks may read all records at the same time, each at 1 MiB a second.
fn time_of_call(world_size: u32) -> Duration {
    ATTEMPT + Duration::from_secs(offset_of(world_size) >> 20)
}

/// Length of a block; a record has up to 1 KiB.
const BLOCK_BYTES: usize = 4096;

/// Timeout of one attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Time that rank 0 waits, once all records are there, for ranks that have not read all of them.
const LONGEST_FAREWELL: Duration = Duration::from_secs(5);

/// Interval at which rank 0 checks whether all ranks have read the records.
const FAREWELL_PAUSE: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::rendezvous::gather;
    use crate::peers::round::tests::record;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
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
    fn records_that_are_known_are_not_read_again() {
        const RANKS: u32 = 6;
        let mut host = Blocks::host("127.0.0.1:0".parse().unwrap(), RANKS, None).unwrap();
        let port = port_of(&host);
        let connect = ConnectOptions::default();
        let came = |rank: u32, blocks: &mut Blocks| {
            blocks.set(rank, &record(rank, RANKS).to_bytes().unwrap()).unwrap();
            blocks.get(RANKS, soon()).unwrap()
        };
        let guest = || Blocks::guest("127.0.0.1", port, RANKS, &connect, None);
        let mut first = guest();
        came(1, &mut first);
        assert_eq!(first.unknown(), 0..RANKS);
        (3..RANKS).for_each(|rank| drop(came(rank, &mut guest())));
        assert_eq!(came(2, &mut guest()).iter().flatten().count(), 5, "all but rank 0's");
        for _ in 0..2 {
            let found = first.get(RANKS, soon()).unwrap();
            assert!(found[0].is_none() && found[1..].iter().all(Option::is_some));
            assert_eq!(first.unknown(), 0..1);
        }
        came(0, &mut host);
        assert!(first.get(RANKS, soon()).unwrap().iter().all(Option::is_some));
        assert_eq!(first.unknown(), 0..0);
        assert!(first.get(RANKS, soon()).unwrap().iter().all(Option::is_some), "still");
        drop(host);
        let until = Instant::now() + Duration::from_secs(60);
        while first.get(RANKS, soon()).unwrap().iter().any(Option::is_some) {
            assert!(Instant::now() < until, "rank 0 has ended");
        }
        assert_eq!(first.unknown(), 0..RANKS, "another process may be rank 0 next");
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
