//! Raw TCP over loopback with the messages of NVMe reads: the rate of a socket without a protocol.
//!
//! Two programs in one. *Streaming*: the sender sends data messages without requests, each a header
//! of 24 bytes and a piece of a region as large as a namespace, one gathered send per burst; the
//! receiver stores the pieces in the slots of a region as large as a pool. *Ping-pong*: a message
//! answers a request of 72 bytes, the depth is the number of outstanding requests, and both sides
//! spin while they wait. Sockets have the same options as dlfs's own on loopback.

use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use socket2::SockRef;

/// The messages to send.
#[derive(Debug, Clone, Copy)]
pub struct Messages {
    /// Length of one message's payload in bytes.
    pub len: usize,
    /// Outstanding messages, or messages per burst.
    pub depth: usize,
    /// Set if each message needs a request.
    pub ping_pong: bool,
    /// Length of the region that they are sent from.
    pub region_bytes: usize,
}

/// The sender: prints its port, then serves one connection after the other for ever.
pub fn send_forever(messages: Messages) {
    let mut region = vec![0u8; messages.region_bytes];
    for (page, bytes) in region.chunks_mut(4096).enumerate() {
        bytes.fill(page as u8);
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    println!("{}", listener.local_addr().expect("a bound address").port());
    for stream in listener.incoming() {
        // The receiver closes the connection when it has enough: an error here is its end.
        let _ = stream.and_then(|stream| {
            prepare(&stream)?;
            SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES)?;
            stream.set_nonblocking(messages.ping_pong)?;
            if messages.ping_pong {
                answer(stream, &region, messages)
            } else {
                stream_bursts(stream, &region, messages)
            }
        });
    }
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    // A default that paces, like BBR, would pace loopback, too; a kernel without Reno keeps its
    // own.
    let _ = SockRef::from(stream).set_tcp_congestion(b"reno");
    Ok(())
}

fn stream_bursts(mut stream: TcpStream, region: &[u8], messages: Messages) -> std::io::Result<()> {
    let mut offsets = RandomOffsets::new(region.len(), messages.len);
    loop {
        send(&mut stream, region, messages, &mut offsets, messages.depth)?;
    }
}

/// Sends one message for each request; requests that arrived together get one send.
fn answer(mut stream: TcpStream, region: &[u8], messages: Messages) -> std::io::Result<()> {
    let mut offsets = RandomOffsets::new(region.len(), messages.len);
    let mut requests = vec![0u8; messages.depth * REQUEST_BYTES];
    let mut have = 0;
    loop {
        let received = again(|| stream.read(&mut requests[have..]))?;
        if received == 0 {
            return Ok(());
        }
        have += received;
        send(&mut stream, region, messages, &mut offsets, have / REQUEST_BYTES)?;
        have %= REQUEST_BYTES; // the content of a request is ignored, so its bytes need not move
    }
}

fn send(
    stream: &mut TcpStream,
    region: &[u8],
    messages: Messages,
    offsets: &mut RandomOffsets,
    count: usize,
) -> std::io::Result<()> {
    let header = [7u8; HEADER_BYTES];
    let mut slices = Vec::with_capacity(2 * count);
    for _ in 0..count {
        let start = offsets.next();
        let piece = &region[start..start + messages.len];
        slices.extend([IoSlice::new(&header), IoSlice::new(piece)]);
    }
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let sent = again(|| stream.write_vectored(rest))?;
        IoSlice::advance_slices(&mut rest, sent);
    }
    Ok(())
}

/// The receiver: receives messages into the slots of a region of `pool_bytes`, header and payload
/// in their places, as many per call as have arrived. Calls `warm` when the connection is up and
/// the memory touched, and then continues for `limit`. Returns the number of messages.
pub fn receive(
    port: u16,
    pool_bytes: usize,
    messages: Messages,
    limit: Duration,
    warm: impl FnOnce(),
) -> std::io::Result<u64> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    prepare(&stream)?;
    stream.set_nonblocking(messages.ping_pong)?;
    let mut receiver = Receiver::new(stream, pool_bytes, messages)?;
    receiver.take_all_slots()?;
    warm();
    let end = Instant::now() + limit;
    let mut count = 0;
    while Instant::now() < end {
        count += receiver.take()?;
    }
    Ok(count)
}

struct Receiver {
    stream: TcpStream,
    pool: Vec<u8>,
    headers: Vec<[u8; HEADER_BYTES]>,
    messages: Messages,
    requests: Vec<u8>,
    /// The slot that the next byte belongs to, and the bytes of its message that have arrived.
    slot: usize,
    have: usize,
}

impl Receiver {
    fn new(stream: TcpStream, pool_bytes: usize, messages: Messages) -> std::io::Result<Receiver> {
        let slots = pool_bytes / messages.len;
        let mut receiver = Receiver {
            stream,
            pool: vec![0u8; slots * messages.len],
            headers: vec![[0u8; HEADER_BYTES]; slots],
            messages,
            requests: vec![5u8; messages.depth * REQUEST_BYTES],
            slot: 0,
            have: 0,
        };
        receiver.ask(messages.depth)?;
        Ok(receiver)
    }

    fn ask(&mut self, count: usize) -> std::io::Result<()> {
        if self.messages.ping_pong {
            let mut rest = &self.requests[..count * REQUEST_BYTES];
            while !rest.is_empty() {
                let sent = again(|| self.stream.write(rest))?;
                rest = &rest[sent..];
            }
            Ok(())
        } else {
            Ok(())
        }
    }

    fn take_all_slots(&mut self) -> std::io::Result<()> {
        let mut taken = 0;
        let slots = self.headers.len() as u64;
        while taken < slots {
            taken += self.take()?;
        }
        Ok(())
    }

    /// One receive; requests as many messages as it completed, and returns their number.
    fn take(&mut self) -> std::io::Result<u64> {
        let most = if self.messages.ping_pong { self.messages.depth } else { MOST_MESSAGES };
        let len = self.messages.len;
        let mut slices = Vec::with_capacity(2 * most);
        let pieces = self.headers.iter_mut().zip(self.pool.chunks_exact_mut(len));
        for (header, piece) in pieces.skip(self.slot).take(most) {
            slices.extend([IoSliceMut::new(header), IoSliceMut::new(piece)]);
        }
        let mut rest = &mut slices[..];
        IoSliceMut::advance_slices(&mut rest, self.have);
        let received = again(|| self.stream.read_vectored(rest))?;
        if received == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let whole = HEADER_BYTES + len;
        let ended = (self.have + received) / whole;
        self.have = (self.have + received) % whole;
        self.slot = (self.slot + ended) % self.headers.len();
        self.ask(ended)?;
        Ok(ended as u64)
    }
}

/// Calls until it need not wait. Only non-blocking sockets return `WouldBlock`: both sides of a
/// ping-pong spin, since a sleep costs more than the wait.
fn again(mut call: impl FnMut() -> std::io::Result<usize>) -> std::io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            result => return result,
        }
    }
}

/// Random offsets of pieces.
pub struct RandomOffsets {
    state: u64,
    count: u64,
    len: usize,
}

impl RandomOffsets {
    pub fn new(region_bytes: usize, len: usize) -> RandomOffsets {
        RandomOffsets { state: 1, count: (region_bytes / len) as u64, len }
    }

    /// Offset of the next piece.
    pub fn next(&mut self) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (((self.state >> 32) * self.count) >> 32) as usize * self.len
    }
}

/// The send buffer that dlfs uses for connections within one machine.
const SEND_BUFFER_BYTES: usize = 512 << 10;
/// The most messages of one receive without requests: more than a socket buffer holds.
const MOST_MESSAGES: usize = 128;
/// Bytes of the header of a C2HData PDU.
const HEADER_BYTES: usize = 24;
/// Bytes of a CapsuleCmd PDU without data.
const REQUEST_BYTES: usize = 72;
