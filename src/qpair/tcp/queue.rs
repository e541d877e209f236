//! An I/O queue pair over TCP: the queue's state machine, its socket, and the process that it is in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::link::{Link, SCRATCH_LEN};
use super::{Counters, Tcp};
use crate::buf::{Pool, SharedBuf};
use crate::error::Result;
use crate::qpair::readiness::Registry;
use crate::qpair::remote::Remote;
use crate::qpair::session::IoQueue;
use crate::qpair::session::queue::Action;
use crate::qpair::{Completion, Fence, Io, Namespace, Notice, QueuePair, Wait};
use crate::units::{Lba, deadline};

/// A queue pair on a remote namespace.
pub(super) struct TcpQueuePair {
    remote: Arc<Remote<Tcp>>,
    counters: Arc<Counters>,
    /// The socket, while there is one. Closed before a buffer of the queue is anybody else's.
    link: Option<Link>,
    queue: IoQueue,
    scratch: Vec<u8>,
    /// Where sockets are watched.
    registry: Option<Registry>,
}

impl TcpQueuePair {
    /// A queue pair that is in a session when this returns.
    pub(super) fn connect(
        remote: Arc<Remote<Tcp>>,
        namespace: Namespace,
        counters: Arc<Counters>,
    ) -> Result<TcpQueuePair> {
        remote.add_pair()?;
        let (now, options) = (Instant::now(), &remote.options);
        let terms = super::terms(&remote, &remote.portals[0]);
        let queue = IoQueue::new(now, terms, options.ctrl_loss_tmo, namespace);
        let (scratch, registry) = (vec![0; SCRATCH_LEN], None);
        let mut pair = TcpQueuePair { remote, counters, link: None, queue, scratch, registry };
        pair.wait_joined(deadline(now, pair.remote.options.connect_timeout))?;
        Ok(pair)
    }

    fn wait_joined(&mut self, deadline: Instant) -> Result<()> {
        loop {
            let now = Instant::now();
            self.turn(now);
            if self.queue.is_joined() {
                return Ok(());
            }
            let stage = self.queue.stage();
            self.remote.may_wait(now, deadline, self.queue.backlog(), stage)?;
            let until = self.next_timeout().unwrap_or(deadline).min(deadline);
            sleep(self.wait(), until.saturating_duration_since(now));
        }
    }

    /// What to sleep on while nobody else polls it.
    fn wait(&self) -> Option<Wait<'_>> {
        Some(self.link.as_ref()?.wait(self.queue.wants_writable()))
    }

    /// Everything but handing out completions.
    fn turn(&mut self, now: Instant) {
        if !self.notice_fork(now) {
            return;
        }
        self.queue.begin(now, &self.remote);
        self.obey();
        if let (Some(link), Some(channel)) = (&mut self.link, self.queue.channel()) {
            let moved = link.poll(now, channel, &mut self.scratch);
            self.counters.add(link.take_receives());
            self.queue.moved(moved);
            self.obey();
        }
        self.queue.finish(&self.remote);
        self.send(now);
    }

    /// Sends what is queued.
    fn send(&mut self, now: Instant) {
        if let (Some(link), Some(channel)) = (&mut self.link, self.queue.channel())
            && let Err(failure) = link.send(now, channel)
        {
            self.queue.moved(Err(failure));
            self.obey();
        }
        let is_expecting = self.queue.owed() > 0 || !self.queue.is_joined();
        if let Some(link) = &mut self.link {
            link.expect(is_expecting);
        }
    }

    /// Opens and closes the socket as the queue says.
    fn obey(&mut self) {
        while let Some(action) = self.queue.poll_action() {
            match action {
                Action::Open(address) => match Link::start(address) {
                    Ok(mut link) => {
                        if let Some(registry) = &self.registry {
                            link.join(registry, self.queue.wants_writable());
                        }
                        self.link = Some(link);
                    }
                    Err(failure) => self.queue.moved(Err(failure)),
                },
                Action::Close { owes_data } => {
                    if let Some(link) = self.link.take() {
                        link.close(owes_data);
                    }
                    self.queue.closed(&self.remote);
                }
            }
        }
    }

    /// In a child process the connection and what it shares are the parent's: nothing is sent on the
    /// one, no lock of the other is touched. Whether there is something to go on with.
    fn notice_fork(&mut self, now: Instant) -> bool {
        if self.remote.is_ours() {
            return true;
        }
        self.queue.leave("the process has forked");
        self.obey();
        self.queue.begin_anew(now);
        match self.remote.for_this_process() {
            Ok(remote) => {
                self.remote = remote;
                // One too many is told by the target.
                let _ = self.remote.add_pair();
                true
            }
            Err(error) => {
                self.queue.backlog().fail_all(&error.to_string());
                false
            }
        }
    }
}

impl QueuePair for TcpQueuePair {
    fn namespace(&self) -> &Namespace {
        self.queue.namespace()
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let count = self.queue.take(pending);
        if count > 0 && self.remote.is_ours() {
            let now = Instant::now();
            self.queue.issue(now, &self.remote);
            self.send(now);
        }
        count
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        self.turn(now);
        let mut count = 0;
        while count < max {
            let Some(completion) = self.queue.next_completion(&self.remote) else { break };
            done.push(completion);
            count += 1;
        }
        self.queue.handed_out(count);
        count
    }

    /// What is submitted is sent at once.
    fn start(&mut self) {}

    fn use_pool(&mut self, _: &Pool) {}

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.queue.use_fence(fence);
    }

    fn outstanding(&self) -> usize {
        self.queue.owed()
    }

    /// There is one copy.
    fn distrust(&mut self, _: Lba, _: usize) {}

    fn lend(&self, _: Lba, _: usize) -> Option<SharedBuf> {
        None
    }

    fn shared_queue(&self) -> Option<usize> {
        None
    }

    fn join(&mut self, registry: &Registry) {
        let writable = self.queue.wants_writable();
        if let Some(link) = &mut self.link {
            link.join(registry, writable);
        }
        self.registry = Some(registry.clone());
    }

    fn notice(&self) -> Notice {
        Notice::Event
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.queue.poll_timeout()
    }
}

impl Drop for TcpQueuePair {
    fn drop(&mut self) {
        if self.remote.is_ours() {
            self.queue.leave("the queue pair was dropped");
            self.obey();
            self.remote.remove_pair();
        }
    }
}

fn sleep(wait: Option<Wait<'_>>, limit: Duration) {
    let limit = Timespec::try_from(limit).ok();
    let mut fds: Vec<PollFd<'_>> = Vec::new();
    if let Some(Wait { fd, writable }) = wait {
        let flags = if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        fds.push(PollFd::from_borrowed_fd(fd, flags));
    }
    let _ = rustix::event::poll(&mut fds, limit.as_ref()); // an error is a signal: look again
}

#[cfg(test)]
mod tests;
