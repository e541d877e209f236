//! File descriptors that one process sends to another over a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends `bytes` and, beside them, up to 64 files. Returns the number of bytes that the socket took: if that is less
/// than all, the files were sent with the first bytes.
///
/// # Errors
/// `InvalidInput`: too many files. Errors of the operating system.
pub fn send_files(socket: impl AsFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [IoSlice::new(bytes)];
    Ok(retry_on_intr(|| sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL))?)
}

/// Receives bytes into `room`, and appends the files beside them to `files`. Returns the number of bytes, which may be
/// less than was sent; 0: the peer has closed the connection. Files beyond 64 in one message are lost.
///
/// # Errors
/// Errors of the operating system.
pub fn receive_files(
    socket: impl AsFd,
    room: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
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

/// The most files beside one message.
const MAX_FILES: usize = 64;
