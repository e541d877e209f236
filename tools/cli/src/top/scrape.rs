//! Asks each address for its metrics at an interval, on a thread for each.
//!
//! Requests use HTTP/1.0, so that an answer is never chunked. An answer that is too long, too slow or
//! incomplete is an error, and delays only its own address. The threads are not joined: they end with the
//! process, or when nobody receives their answers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::address::MetricsAddress;
use super::page::Page;

/// An answer of an address, from its thread.
#[derive(Debug)]
pub(super) struct Answer {
    /// The index of the address.
    pub(super) index: usize,
    pub(super) asked: Instant,
    pub(super) at: Instant,
    pub(super) page: Result<Page, String>,
}

/// Starts a thread for each address, and returns the receiver of their answers.
///
/// # Errors
/// Errors of starting a thread.
pub(super) fn start(
    addresses: Vec<MetricsAddress>,
    interval: Duration,
) -> dlfs::Result<Receiver<Answer>> {
    let (sender, answers) = channel();
    for (index, address) in addresses.into_iter().enumerate() {
        let sender = sender.clone();
        thread::Builder::new()
            .name("dlfs-top".to_owned())
            .spawn(move || ask_again_and_again(index, &address, &sender, interval))?;
    }
    Ok(answers)
}

fn ask_again_and_again(
    index: usize,
    address: &MetricsAddress,
    sender: &Sender<Answer>,
    interval: Duration,
) {
    loop {
        let asked = Instant::now();
        let page = ask(address, asked + TIME_LIMIT);
        let answer = Answer { index, asked, at: Instant::now(), page };
        if sender.send(answer).is_err() {
            return;
        }
        thread::sleep(interval.saturating_sub(asked.elapsed()));
    }
}

/// Asks once; returns the page, or the reason why there is none.
fn ask(address: &MetricsAddress, until: Instant) -> Result<Page, String> {
    let answer = exchange(address, until).map_err(|error| reason(&error))?;
    let body = body_of(&answer)?;
    Page::parse(body)
}

fn exchange(address: &MetricsAddress, until: Instant) -> io::Result<Vec<u8>> {
    let mut stream = connect(&address.authority, until)?;
    stream.set_write_timeout(Some(left(until)?))?;
    let MetricsAddress { authority, path } = address;
    let request = format!(
        "GET {path} HTTP/1.0\r\nHost: {authority}\r\nAccept: application/openmetrics-text\r\n\
         User-Agent: dlfs-top/{}\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut bytes = vec![0; 64 << 10];
    loop {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(answer),
            Ok(len) if answer.len() + len > MAX_ANSWER_BYTES => {
                return Err(io::Error::new(ErrorKind::InvalidData, TOO_LONG));
            }
            Ok(len) => answer.extend_from_slice(&bytes[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Connects to the first of the name's addresses that accepts.
fn connect(authority: &str, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The remaining time; never zero, since a zero timeout would mean no limit.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            format!("timed out after {} s", TIME_LIMIT.as_secs())
        }
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}

/// The body of an answer with status 200.
fn body_of(answer: &[u8]) -> Result<&[u8], String> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let status = head.parse(answer).map_err(|_| NOT_HTTP)?;
    match (status, head.code) {
        (httparse::Status::Complete(begin), Some(200)) => Ok(&answer[begin..]),
        (_, Some(code)) if code != 200 => {
            let reason: String = head.reason.unwrap_or_default().chars().take(60).collect();
            Err(format!("the answer is {code} {reason}"))
        }
        _ => Err(NOT_HTTP.to_owned()),
    }
}

/// Time limit of an answer, from connecting to its last byte.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(5);
const MAX_ANSWER_BYTES: usize = 16 << 20;
const MAX_HEADERS: usize = 64;
const TOO_LONG: &str = "the answer is longer than 16 MiB";
const NOT_HTTP: &str = "the answer is not HTTP";

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

    use super::*;

    #[test]
    fn only_a_body_with_status_200_is_a_page() {
        assert_eq!(body_of(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nx\n\ny"), Ok(&b"x\n\ny"[..]));
        assert_eq!(body_of(b"HTTP/1.0 200\n\n"), Ok(&b""[..]));
        let wrong = |answer: &[u8]| body_of(answer).unwrap_err();
        assert_eq!(wrong(b"HTTP/1.1 404 Not Found\r\n\r\n"), "the answer is 404 Not Found");
        for answer in
            [&b""[..], b"HTTP/1.1 200 OK\r\n", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1\n\n", b"\n\n"]
        {
            assert_eq!(wrong(answer), NOT_HTTP, "{answer:?}");
        }
    }

    /// A thread's answer from an address where `serve` handles one connection.
    fn asked(serve: impl FnOnce(TcpStream) + Send + 'static) -> Result<Page, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let server = thread::spawn(move || serve(listener.accept().unwrap().0));
        let answer = ask(&address, Instant::now() + Duration::from_secs(60));
        server.join().unwrap();
        answer
    }

    fn head(mut stream: &TcpStream) -> String {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn an_answer_in_pieces_is_a_page_and_one_that_is_cut_off_is_none() {
        let page = asked(|mut stream| {
            assert!(head(&stream).starts_with("GET /metrics HTTP/1.0\r\nHost: 127.0.0.1:"));
            for piece in ["HTTP/1.1 200 OK\r", "\n\r\ndlfs_a_total", " 5\n# E", "OF\n"] {
                stream.write_all(piece.as_bytes()).unwrap();
            }
        });
        assert_eq!(page.unwrap().series("dlfs_a_total").values().next(), Some(&5.0));
        let cut = asked(|mut stream| {
            head(&stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\ndlfs_a_total 5\n").unwrap();
        });
        assert_eq!(cut.unwrap_err(), "the answer ends early: it has no # EOF");
    }

    #[test]
    fn an_answer_without_end_is_an_error() {
        let endless = asked(|mut stream| {
            head(&stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            let line = b"# x\n".repeat(10_000);
            // Fails once the other side has closed the connection.
            while stream.write_all(&line).is_ok() {}
        });
        assert_eq!(endless.unwrap_err(), TOO_LONG);
    }

    #[test]
    fn an_address_that_is_silent_or_absent_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: MetricsAddress = listener.local_addr().unwrap().to_string().parse().unwrap();
        let soon = Instant::now() + Duration::from_millis(50);
        assert_eq!(ask(&address, soon).unwrap_err(), "timed out after 5 s");
        // Bound but not listening, so that no other program gets the port.
        let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = SocketAddr::try_from(getsockname(&bound).unwrap()).unwrap();
        let address = address.to_string().parse().unwrap();
        let soon = Instant::now() + Duration::from_secs(60);
        assert_eq!(ask(&address, soon).unwrap_err(), "connection refused");
    }
}
