//! A network between host and target that damages, loses, duplicates and delays bytes, or stalls.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToTarget,
    ToHost,
}

/// One bit to flip, once: in the connection of this number, counted from 0 in order of creation.
#[derive(Debug, Clone, Copy)]
pub struct Flip {
    pub connection: usize,
    pub direction: Direction,
    pub offset: u64,
    pub bit: u32,
}

/// Damage to the bytes from an offset on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Harm {
    /// One bit of the first byte is flipped.
    Flip(u32),
    /// The connection is closed before them.
    Cut,
    /// Neither they nor any later bytes are carried; the connection stays open.
    Stall,
    /// This many are duplicated.
    Duplicate(usize),
    /// This many are lost.
    Drop(usize),
    /// These are inserted before them.
    Insert(Vec<u8>),
    /// This many arrive one by one.
    Drip(usize),
}

/// A fault that occurs once: in the connection of this number, counted from 0 in order of creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub connection: usize,
    pub direction: Direction,
    pub offset: u64,
    pub harm: Harm,
}

/// How fast bytes reach the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// So many at once,
    pub bytes: usize,
    /// and then none for this long.
    pub every: Duration,
}

/// Forwards connections. Dropping it ends it.
pub struct Wire {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: SocketAddr,
    faults: Mutex<Vec<Fault>>,
    struck: AtomicUsize,
    held: AtomicBool,
    over: AtomicBool,
    without_digests: AtomicBool,
    pace: Mutex<Option<Pace>>,
    /// Bytes of each connection to the target and to the host.
    carried: Mutex<Vec<[u64; 2]>>,
}

impl Wire {
    pub fn to(target: SocketAddr) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target,
            faults: Mutex::default(),
            struck: AtomicUsize::new(0),
            held: AtomicBool::new(false),
            over: AtomicBool::new(false),
            without_digests: AtomicBool::new(false),
            pace: Mutex::default(),
            carried: Mutex::default(),
        });
        let for_accepting = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &for_accepting));
        Wire { address, shared }
    }

    /// The address where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn flip(&self, flip: Flip) {
        let Flip { connection, direction, offset, bit } = flip;
        self.harm(Fault { connection, direction, offset, harm: Harm::Flip(bit) });
    }

    /// From now on, removes requests for digests, as if the target granted none.
    pub fn without_digests(&self) {
        self.shared.without_digests.store(true, Ordering::SeqCst);
    }

    pub fn harm(&self, fault: Fault) {
        self.shared.faults.lock().unwrap().push(fault);
    }

    /// How many faults have occurred.
    pub fn struck(&self) -> usize {
        self.shared.struck.load(Ordering::SeqCst)
    }

    /// Bytes that each connection has carried: to the target, to the host.
    pub fn carried(&self) -> Vec<[u64; 2]> {
        self.shared.carried.lock().unwrap().clone()
    }

    /// Stops all traffic until [`Wire::go_on`]; data in transit is kept.
    pub fn hold(&self) {
        self.shared.held.store(true, Ordering::SeqCst);
    }

    pub fn go_on(&self) {
        self.shared.held.store(false, Ordering::SeqCst);
    }

    /// From now on, each connection carries bytes to the host at this pace.
    pub fn set_pace(&self, pace: Option<Pace>) {
        *self.shared.pace.lock().unwrap() = pace;
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.over.load(Ordering::SeqCst) {
        shared.wait_while_held();
        match listener.accept() {
            Ok((host, _)) => {
                let Ok(target) = TcpStream::connect(shared.target) else { continue };
                let number = {
                    let mut carried = shared.carried.lock().unwrap();
                    carried.push([0; 2]);
                    carried.len() - 1
                };
                for stream in [&host, &target] {
                    stream.set_nonblocking(false).unwrap();
                    stream.set_nodelay(true).unwrap();
                    stream.set_read_timeout(Some(TICK)).unwrap();
                }
                let ends = (host.try_clone().unwrap(), target.try_clone().unwrap());
                let one = Arc::clone(shared);
                let other = Arc::clone(shared);
                thread::spawn(move || one.pump(number, Direction::ToTarget, ends.0, ends.1));
                thread::spawn(move || other.pump(number, Direction::ToHost, target, host));
            }
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
}

impl Shared {
    fn pump(&self, number: usize, direction: Direction, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        while !self.over.load(Ordering::SeqCst) {
            self.wait_while_held();
            let len = match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(len) => len,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    continue;
                }
                Err(_) => break,
            };
            let start = {
                let carried = &mut self.carried.lock().unwrap()[number][direction as usize];
                *carried += len as u64;
                *carried - len as u64
            };
            self.wait_while_held();
            if direction == Direction::ToTarget
                && start == 0
                && len > DGST_OF_IC_REQ
                && self.without_digests.load(Ordering::SeqCst)
            {
                bytes[DGST_OF_IC_REQ] = 0;
            }
            if self.carry(number, direction, start, &bytes[..len], &mut to).is_err() {
                break;
            }
        }
        // A closed connection stays closed.
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    /// Forwards `bytes`, whose first byte has offset `at` in its direction, with the faults that are due.
    fn carry(
        &self,
        number: usize,
        direction: Direction,
        mut at: u64,
        mut bytes: &[u8],
        to: &mut TcpStream,
    ) -> std::io::Result<()> {
        while let Some(Fault { offset, harm, .. }) =
            self.take_due(number, direction, at, bytes.len())
        {
            let (whole, harmed) = bytes.split_at((offset - at) as usize);
            to.write_all(whole)?;
            let some = |count: usize| count.min(harmed.len());
            let done = match harm {
                Harm::Flip(bit) => {
                    to.write_all(&[harmed[0] ^ 1 << (bit % 8)])?;
                    1
                }
                Harm::Cut => return Err(ErrorKind::ConnectionAborted.into()),
                Harm::Stall => {
                    while !self.over.load(Ordering::SeqCst) {
                        thread::sleep(TICK);
                    }
                    return Err(ErrorKind::TimedOut.into());
                }
                Harm::Duplicate(count) => {
                    to.write_all(&harmed[..some(count)])?;
                    0
                }
                Harm::Drop(count) => some(count),
                Harm::Insert(bytes) => {
                    to.write_all(&bytes)?;
                    0
                }
                Harm::Drip(count) => {
                    for byte in &harmed[..some(count)] {
                        to.write_all(std::slice::from_ref(byte))?;
                        thread::sleep(Duration::from_micros(100));
                    }
                    some(count)
                }
            };
            at = offset + done as u64;
            bytes = &harmed[done..];
        }
        while let Some(Pace { bytes: some, every }) = self.pace_of(direction)
            && !bytes.is_empty()
        {
            let (now, later) = bytes.split_at(some.min(bytes.len()));
            to.write_all(now)?;
            thread::sleep(every);
            bytes = later;
        }
        to.write_all(bytes)
    }

    fn pace_of(&self, direction: Direction) -> Option<Pace> {
        let is_over = self.over.load(Ordering::SeqCst);
        let pace = *self.pace.lock().unwrap();
        pace.filter(|_| direction == Direction::ToHost && !is_over)
    }

    /// The first fault that is due in these bytes; it occurs once.
    fn take_due(&self, number: usize, direction: Direction, at: u64, len: usize) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let is_due = |fault: &Fault| {
            let inside = fault.offset >= at && fault.offset - at < len as u64;
            fault.connection == number && fault.direction == direction && inside
        };
        let due = faults.iter().enumerate().filter(|(_, fault)| is_due(fault));
        let (index, _) = due.min_by_key(|(_, fault)| fault.offset)?;
        self.struck.fetch_add(1, Ordering::SeqCst);
        Some(faults.swap_remove(index))
    }

    fn wait_while_held(&self) {
        while self.held.load(Ordering::SeqCst) && !self.over.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Offset of the requested digests in the first PDU of a connection.
const DGST_OF_IC_REQ: usize = 11;

/// How soon an idle connection notices the end.
const TICK: Duration = Duration::from_millis(50);
