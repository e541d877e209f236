//! Owner's side of sharing: accepts processes that attach, and passes their messages to the copier.

use std::collections::HashMap;
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Hello;
use super::link::{Frame, HEAD_BYTES, parse};
use super::socket::{Listener, MAX_ATTACHED, is_same_user};
use crate::cache::copier::{CopyJob, MAX_QUEUED_BYTES};
use crate::cache::{TierShared, share};
use dlfs_base::error::Result;
use dlfs_base::process::{NotInherited, mark_ours};
use dlfs_base::threads::{self, Fate, Thread};
use dlfs_order::tier::{PAGE_BYTES, PageSet};

/// Serves processes that attach, on its own thread, until it is stopped.
pub(in crate::cache) struct TierOwner {
    /// Socket that ends the thread when a byte is written to it.
    stop: UnixStream,
    thread: Thread,
}

impl TierOwner {
    /// Shares tiers with processes that connect.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(in crate::cache) fn start(shared: Arc<TierShared>, sharing: Sharing) -> Result<TierOwner> {
        let (stop, stopped) = UnixStream::pair()?;
        mark_ours(&stop);
        mark_ours(&stopped);
        let attached = Vec::new();
        let server = Server { shared, sharing, stopped, attached, last: 0 };
        let thread = threads::start(OWNER, &Fate::default(), server, Server::run)?;
        Ok(TierOwner { stop, thread })
    }

    /// Ends the thread, and with it the connections.
    pub(in crate::cache) fn stop(mut self) {
        // Fails only when the thread has ended.
        let _ = self.stop.write_all(&[1]);
        self.thread.join_within(JOIN_TIMEOUT);
    }
}

/// The data and descriptors that a process gets when it attaches, and the socket on which it gets them.
pub(in crate::cache) struct Sharing {
    /// The name of the socket.
    pub(in crate::cache) name: String,
    /// `None` while another process has the name, or after a failure to accept; the owner then retries to
    /// listen on it.
    pub(in crate::cache) listener: Option<Listener>,
    pub(in crate::cache) hello: Hello,
    /// Descriptors of the table and of the tiers in memory.
    pub(in crate::cache) files: Vec<OwnedFd>,
}

/// The state of the owner's thread.
struct Server {
    shared: Arc<TierShared>,
    sharing: Sharing,
    /// Readable when the thread must end.
    stopped: UnixStream,
    attached: Vec<Attached>,
    /// Number of the latest connection; 0 is [`OWN`](crate::cache::OWN).
    last: u64,
}

/// A process that has attached.
struct Attached {
    /// Its process id; 0: unknown.
    pid: i32,
    /// The number of its connection, from 1.
    number: u64,
    /// Keeps the owner's children from holding the connection open, so that the process notices the owner's
    /// end.
    _own: NotInherited,
    stream: UnixStream,
    /// Bytes of an incomplete message.
    bytes: Vec<u8>,
    /// Pages that the process has claimed and not sent yet.
    expected: HashMap<u32, PageSet>,
}

impl Server {
    fn run(&mut self) {
        while let Some((accepts, readable)) = self.wait() {
            for at in readable.into_iter().rev() {
                if !self.attached[at].read(&self.shared) {
                    let ended = self.attached.swap_remove(at);
                    tracing::info!(pid = ended.pid, "a process has left the tiers");
                    ended.end(&self.shared);
                }
            }
            if self.sharing.listener.is_none() {
                self.sharing.listener = Listener::on(&self.sharing.name).ok();
            }
            if accepts {
                self.accept();
            }
            self.shared.num_attached.store(self.attached.len(), Ordering::Relaxed);
        }
        for mut attached in self.attached.drain(..) {
            attached.read_rest(&self.shared);
            attached.end(&self.shared);
        }
    }

    /// Waits for a connection or messages. Returns whether a process wants to attach, and the indexes of the attached
    /// processes that have sent something or have left. `None`: the owner is ending.
    fn wait(&self) -> Option<(bool, Vec<usize>)> {
        let mut fds = vec![PollFd::new(&self.stopped, PollFlags::IN)];
        fds.extend(self.attached.iter().map(|one| PollFd::new(&one.stream, PollFlags::IN)));
        let listener = self.sharing.listener.as_ref();
        fds.extend(listener.map(|listener| PollFd::new(listener.socket(), PollFlags::IN)));
        let limit = if listener.is_some() { IDLE_WAIT } else { LISTEN_AGAIN };
        let limit = Timespec::try_from(limit).expect("a few seconds");
        if poll(&mut fds, Some(&limit)).is_err() {
            return Some((false, Vec::new())); // interrupted
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if is_ready(&fds[0]) || self.shared.stop.load(Ordering::Acquire) {
            return None;
        }
        let (attached, listener) = fds[1..].split_at(self.attached.len());
        let readable = (0..attached.len()).filter(|&at| is_ready(&attached[at])).collect();
        Some((listener.iter().any(is_ready), readable))
    }

    /// Accepts all processes that are connecting, and sends each the first message.
    fn accept(&mut self) {
        while let Some(listener) = &self.sharing.listener {
            let stream = match listener.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => return,
                Err(error) => {
                    // The listener would stay ready and the thread would spin, so the owner listens again later;
                    // processes that are connecting retry.
                    tracing::warn!(%error, "other processes cannot attach to the tiers for now");
                    self.sharing.listener = None;
                    return;
                }
            };
            if !is_same_user(&stream) || self.attached.len() >= MAX_ATTACHED {
                tracing::warn!(
                    "refused to share the tiers with a process: it belongs to another \
                     user, or is one too many"
                );
                continue;
            }
            let files: Vec<_> = self.sharing.files.iter().map(OwnedFd::as_fd).collect();
            match share::send(&stream, &self.sharing.hello, &files) {
                Ok(()) => {
                    self.last += 1;
                    self.attached.push(Attached {
                        pid: told_pid(&stream),
                        number: self.last,
                        _own: NotInherited::close(stream.as_fd()),
                        stream,
                        bytes: Vec::new(),
                        expected: HashMap::new(),
                    });
                }
                Err(error) => tracing::debug!(%error, "a process did not attach to the tiers"),
            }
        }
    }
}

impl Attached {
    /// Reads and handles the bytes that have arrived. Returns `false` if the process has disconnected or sent
    /// an invalid message.
    fn read(&mut self, shared: &TierShared) -> bool {
        let before = self.bytes.len();
        self.bytes.resize(before + READ_BYTES, 0);
        let read = self.stream.read(&mut self.bytes[before..]);
        self.bytes.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => {
                return matches!(error.kind(), IoKind::WouldBlock | IoKind::Interrupted);
            }
        }
        let bytes = std::mem::take(&mut self.bytes);
        let mut at = 0;
        loop {
            match parse(&bytes[at..], &shared.units) {
                Ok(Some((frame, len))) => {
                    self.handle(frame, shared);
                    at += len;
                }
                Ok(None) => break,
                Err(_) => {
                    tracing::warn!("an attached process sent what no version of dlfs sends");
                    return false;
                }
            }
        }
        self.bytes = bytes;
        self.bytes.drain(..at);
        self.bytes.shrink_to(READ_BYTES + HEAD_BYTES);
        true
    }

    /// Handles the messages that have been sent by now, up to the limit of the copier's queue.
    fn read_rest(&mut self, shared: &TierShared) {
        let has_sent = |stream: &UnixStream| {
            let mut fds = [PollFd::new(stream, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        };
        let mut turns = MAX_QUEUED_BYTES / READ_BYTES;
        while turns > 0 && has_sent(&self.stream) && self.read(shared) {
            turns -= 1;
        }
    }

    /// Handles a valid message.
    fn handle(&mut self, frame: Frame<&[u8]>, shared: &TierShared) {
        match frame {
            Frame::Corrupt { unit, pages } => shared.send(CopyJob::Corrupt(unit, pages)),
            Frame::Expect { unit, pages } => {
                let wanted = shared.wants(unit, pages);
                // Releases pages that find no room, so that nobody waits for them.
                shared.copies.release(unit, pages.without(wanted));
                if !wanted.is_empty() {
                    let expected = self.expected.entry(unit).or_default();
                    *expected = expected.with(wanted);
                }
            }
            Frame::Piece { unit, pages, bytes } => {
                // The process may not have seen yet that some pages are not kept. They were released then, and another
                // process may have claimed them since.
                for run in self.take_expected(unit, pages).runs() {
                    let begin = (run.start - pages.0.trailing_zeros()) as usize * PAGE_LEN;
                    let len = run.len() * PAGE_LEN;
                    shared.pass(unit, run, &bytes[begin..begin + len]);
                }
            }
            Frame::Gone { unit, pages } => _ = self.take_expected(unit, pages),
            Frame::Plan(plan) => shared.add_plan(self.number, plan),
            Frame::Hold(held) => shared.add_held(self.number, held),
        }
    }

    /// Takes `pages` off the expected pages; returns the part that was expected.
    fn take_expected(&mut self, unit: u32, pages: PageSet) -> PageSet {
        let Some(expected) = self.expected.get_mut(&unit) else { return PageSet::NONE };
        let taken = expected.and(pages);
        *expected = expected.without(pages);
        if expected.is_empty() {
            self.expected.remove(&unit);
        }
        taken
    }

    /// Releases the claims of a process that has disconnected: its data will not arrive.
    fn end(self, shared: &TierShared) {
        for (unit, pages) in self.expected {
            shared.copies.release(unit, pages);
        }
        // The plans and held chunks of the others are merged only when one of them sends new ones: evicting this
        // process's part now would make room for nobody.
        shared.plans.lock().remove(&self.number);
        shared.holdings.lock().held.remove(&self.number);
    }
}

/// Logs that a process has attached. Returns its process id, or 0 if the operating system does not report it.
fn told_pid(stream: &UnixStream) -> i32 {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    let pid = peer.map_or(0, |peer| peer.pid.as_raw_nonzero().get());
    tracing::info!(pid, "a process has attached to the tiers");
    pid
}

const PAGE_LEN: usize = PAGE_BYTES as usize;

/// Name of the owner's thread.
const OWNER: &str = "dlfs-tiers-owner";

/// Limit of bytes read from one process in one turn.
const READ_BYTES: usize = 256 << 10;

/// Longest wait in one turn.
const IDLE_WAIT: Duration = Duration::from_secs(5);
/// Longest wait in one turn without a listener: the pause before the owner tries to listen again.
const LISTEN_AGAIN: Duration = Duration::from_millis(500);

/// Longest wait for the thread to end.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);
