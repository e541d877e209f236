//! One end of TLS without NVMe: it carries the bytes of a plain connection, so that a raw host can speak to a
//! target inside TLS, and a plain target to a host.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use dlfs::tls::{Session, TlsError};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Makes the session of a connection.
pub type Make = Box<dyn Fn() -> Session + Send>;

/// Listens in plain and connects to `target` inside TLS.
pub fn of_host(target: SocketAddr, make: Make) -> SocketAddr {
    listen(move |plain| {
        let sealed = TcpStream::connect(target).ok();
        sealed.map(|sealed| (plain, sealed, make()))
    })
}

/// Listens inside TLS and connects to `target` in plain.
pub fn of_controller(target: SocketAddr, make: Make) -> SocketAddr {
    listen(move |sealed| {
        let plain = TcpStream::connect(target).ok();
        plain.map(|plain| (plain, sealed, make()))
    })
}

fn listen(
    connect: impl Fn(TcpStream) -> Option<(TcpStream, TcpStream, Session)> + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Some((plain, sealed, session)) = connect(stream) {
                std::thread::spawn(move || carry(&plain, &sealed, session));
            }
        }
    });
    address
}

/// Carries bytes until the plain side ends, or nothing moves for a while. If the TLS side ends after the handshake, the
/// other direction goes on, as on a connection without a tunnel.
fn carry(plain: &TcpStream, sealed: &TcpStream, mut session: Session) {
    for stream in [plain, sealed] {
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    let mut to_plain: Vec<u8> = Vec::new();
    let mut last = Instant::now();
    let mut is_half_closed = false;
    let mut is_over = false;
    while !is_over && last.elapsed() < Duration::from_secs(60) {
        is_over = if session.is_established() { false } else { session.handshake().is_err() };
        let mut bytes = vec![0; 64 << 10];
        if session.is_established() && session.outgoing().is_empty() {
            match (&*plain).read(&mut bytes) {
                Ok(0) => is_over = true,
                Ok(len) => {
                    session.seal(&mut [IoSlice::new(&bytes[..len])], usize::MAX).unwrap();
                    last = Instant::now();
                }
                Err(error) => is_over |= error.kind() != ErrorKind::WouldBlock,
            }
        }
        match (&*sealed).read(&mut bytes) {
            Ok(0) if session.is_established() => is_half_closed = true,
            Ok(0) => is_over = true,
            Ok(len) => {
                session.give(bytes, len);
                is_over |= open(&mut session, &mut to_plain).is_err();
                session.take_back();
                last = Instant::now();
            }
            Err(error) => is_over |= error.kind() != ErrorKind::WouldBlock,
        }
        let sent = (&*sealed).write(session.outgoing()).unwrap_or(0);
        session.sent(sent);
        let sent = (&*plain).write(&to_plain).unwrap_or(0);
        to_plain.drain(..sent);
        if is_half_closed && to_plain.is_empty() {
            let _ = plain.shutdown(Shutdown::Write); // may fail: that side may be gone, too
        }
        let mut fds = Vec::new();
        if !is_half_closed {
            fds.push(PollFd::from_borrowed_fd(sealed.as_fd(), PollFlags::IN));
        }
        if session.is_established() {
            fds.push(PollFd::from_borrowed_fd(plain.as_fd(), PollFlags::IN));
        }
        let is_idle = to_plain.is_empty() && session.outgoing().is_empty();
        let tick = Timespec { tv_sec: 0, tv_nsec: if is_idle { 50_000_000 } else { 1_000_000 } };
        let _ = rustix::event::poll(&mut fds, Some(&tick));
    }
}

fn open(session: &mut Session, to_plain: &mut Vec<u8>) -> Result<(), TlsError> {
    if !session.is_established() && !session.handshake()? {
        return Ok(());
    }
    let mut into = vec![0; 16 << 10];
    while let len @ 1.. = session.open(&mut [IoSliceMut::new(&mut into)])? {
        to_plain.extend_from_slice(&into[..len]);
    }
    Ok(())
}
