//! Short connections to other processes, each within a limit of time.

use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The host and port of HOST:PORT, or of HOST with the usual port. An IPv6 address before a port needs
/// brackets.
pub(crate) fn host_and_port(text: &str, usual: u16) -> Option<(String, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().ok()?)
        }
        _ => (text, usual),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty() && port > 0).then(|| (host.to_owned(), port))
}

/// Connects to the first of the addresses that accepts. Before each attempt, `limit` gives the attempt's time limit.
///
/// # Errors
/// The error of the last attempt. `NotFound`: there is no address. An error of `limit` ends the attempts.
pub(crate) fn connect(
    addresses: impl Iterator<Item = SocketAddr>,
    limit: impl Fn() -> io::Result<Duration>,
) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, limit()?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The remaining time; never zero, since a zero timeout would mean no limit.
pub(crate) fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads until `are_whole` accepts the bytes so far, or the stream ends. `limit` is called before each read, and sets
/// the read's timeout: otherwise a peer that sends byte by byte could extend the time limit of the whole answer.
///
/// # Errors
/// `InvalidData`: there are more than `most` bytes. Errors of `limit` and of the stream.
pub(crate) fn read_within(
    mut stream: impl Read,
    limit: impl Fn() -> io::Result<()>,
    most: usize,
    are_whole: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    let mut bytes = vec![0; 64 << 10];
    while !are_whole(&read) {
        limit()?;
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(len) if read.len() + len > most => return Err(ErrorKind::InvalidData.into()),
            Ok(len) => read.extend_from_slice(&bytes[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
