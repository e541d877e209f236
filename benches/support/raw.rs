//! Raw TCP over loopback, with the messages of NVMe reads: what a socket can carry at most.
//!
//! The sending side streams data PDUs without being asked, each a header of 24 bytes and a piece of a
//! region as large as a namespace, gathered a burst at a time. The receiving side puts the pieces into
//! the slots of a region as large as a pool. There is no protocol, so this is the ceiling.

use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::{Side, Stopwatch};

/// What one run moved, and the processor seconds of both sides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub messages_s: f64,
    pub mb_s: f64,
    /// Processor seconds a GB: receiving (or host) side, and sending (or target) side.
    pub cpu_s_gb: (f64, f64),
}

impl Rate {
    /// The rate of `messages` of `len` bytes in the time of `watch`.
    pub fn new(messages: u64, len: usize, watch: &Stopwatch, other_cpu_s: f64) -> Rate {
        let (wall, cpu) = watch.seconds();
        let gb = (messages * len as u64) as f64 / 1e9;
        Rate {
            messages_s: messages as f64 / wall,
            mb_s: gb * 1e3 / wall,
            cpu_s_gb: (cpu / gb, other_cpu_s / gb),
        }
    }
}

/// The sending side: prints its port, then serves one connection after the other for ever.
pub fn send_forever(region_bytes: usize, len: usize, burst: usize) {
    let mut region = vec![0u8; region_bytes];
    for (page, bytes) in region.chunks_mut(4096).enumerate() {
        bytes.fill(page as u8);
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    println!("{}", listener.local_addr().expect("a bound address").port());
    for stream in listener.incoming() {
        // The receiving side hangs up when it has enough: an error here is its end.
        let _ = stream.and_then(|stream| send(stream, &region, len, burst));
    }
}

fn send(mut stream: TcpStream, region: &[u8], len: usize, burst: usize) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let header = [7u8; HEADER_BYTES];
    let places = (region.len() / len) as u64;
    let mut state = 1u64;
    loop {
        let mut slices = Vec::with_capacity(2 * burst);
        for _ in 0..burst {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (((state >> 32) * places) >> 32) as usize * len;
            slices.extend([IoSlice::new(&header), IoSlice::new(&region[start..start + len])]);
        }
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let sent = stream.write_vectored(rest)?;
            IoSlice::advance_slices(&mut rest, sent);
        }
    }
}

/// The receiving side: takes messages for `limit` into the slots of a region of `pool_bytes`, each
/// header and payload into its place, as many as have come with one call.
pub fn receive(
    port: u16,
    pool_bytes: usize,
    len: usize,
    limit: Duration,
    sender: &Side,
) -> std::io::Result<Rate> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let mut pool = vec![0u8; pool_bytes];
    take_burst(&mut stream, &mut pool, len)?; // the connection is up and running, the memory touched
    let (other, watch) = (sender.cpu_seconds(), Stopwatch::start());
    let end = Instant::now() + limit;
    let mut count = 0;
    while Instant::now() < end {
        count += take_burst(&mut stream, &mut pool, len)?;
    }
    Ok(Rate::new(count, len, &watch, sender.cpu_seconds() - other))
}

/// One message into each slot of the pool; returns how many those are.
fn take_burst(stream: &mut TcpStream, pool: &mut [u8], len: usize) -> std::io::Result<u64> {
    let mut headers = vec![[0u8; HEADER_BYTES]; pool.len() / len];
    let mut slices = Vec::with_capacity(2 * headers.len());
    for (header, slot) in headers.iter_mut().zip(pool.chunks_exact_mut(len)) {
        slices.extend([IoSliceMut::new(header), IoSliceMut::new(slot)]);
    }
    let (count, mut rest) = (slices.len() as u64 / 2, &mut slices[..]);
    while !rest.is_empty() {
        let most = rest.len().min(MOST_SLICES);
        let received = stream.read_vectored(&mut rest[..most])?;
        if received == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        IoSliceMut::advance_slices(&mut rest, received);
    }
    Ok(count)
}

/// Slices of one receive: enough for more than a socket buffer holds.
const MOST_SLICES: usize = 256;
/// Bytes of the header of a C2HData PDU.
const HEADER_BYTES: usize = 24;
