//! File descriptors that one process sends to another over a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends `bytes` and, beside them, `files`. At least 64 files fit; more may be refused. `bytes` must not be empty: a
/// stream socket sends no files without a byte. Returns the number of bytes that the socket took: if that is less than
/// all, the files were sent with the first bytes.
///
/// # Errors
/// `InvalidInput`: the files do not fit. Errors of the operating system.
pub fn send_files(socket: impl AsFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(NUM_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [IoSlice::new(bytes)];
    Ok(retry_on_intr(|| sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL))?)
}

/// Receives bytes into `room`, which must not be empty, and appends the files beside them to `files`. Returns the
/// number of bytes, which may be less than was sent; 0: the peer has closed the connection. At least 64 files in one
/// message fit; more may be lost.
///
/// # Errors
/// Errors of the operating system.
pub fn receive_files(
    socket: impl AsFd,
    room: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(NUM_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(room)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(&socket, &mut parts, &mut control, flags))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            files.extend(found);
        }
    }
    Ok(received.bytes)
}

/// The files beside one message for which there is room. The padding of the buffers may have room for a few more.
const NUM_FILES: usize = 64;
