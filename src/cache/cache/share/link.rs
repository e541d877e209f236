//! The side of an attached process: sends data to keep to the owner, and detects the owner's end.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use std::convert::Infallible;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::frames::{Frame, hold_message, plan_message};
use crate::cache::copier::Job;
use dlfs_base::error::Result;
use dlfs_base::process::NotInherited;
use dlfs_base::threads::{self, Fate, Thread};
use dlfs_order::tier::{PAGE_BYTES, PageSet};

/// A connection to the owner of the tiers, with two threads: one sends, one waits for its end.
pub(in crate::cache) struct Link {
    jobs: Sender<Job>,
    connection: Arc<Connection>,
    is_alive: Arc<AtomicBool>,
    queued_bytes: Arc<AtomicUsize>,
    ended: Receiver<Infallible>,
    /// They end with the connection; nobody joins them.
    _threads: [Thread; 2],
}

/// The owner notices the end of this process, whatever its children do.
struct Connection {
    _own: NotInherited,
    stream: UnixStream,
}

impl Link {
    /// Starts the threads of a connection.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(in crate::cache) fn start(stream: UnixStream) -> Result<Link> {
        let (jobs, received) = unbounded();
        let (held, ended) = bounded(0);
        let is_alive = Arc::new(AtomicBool::new(true));
        let queued_bytes = Arc::<AtomicUsize>::default();
        let own = NotInherited::close(stream.as_fd());
        let stream = Arc::new(Connection { _own: own, stream });
        let sending = Sending {
            connection: Arc::clone(&stream),
            jobs: received,
            end: End { is_alive: Arc::clone(&is_alive), _held: held },
            queued_bytes: Arc::clone(&queued_bytes),
        };
        let end = Arc::clone(&is_alive);
        let waiting = (Arc::clone(&stream), jobs.clone(), end);
        let threads = [
            threads::start(SENDER, &Fate::default(), sending, Sending::run)?,
            threads::start(WATCHER, &Fate::default(), waiting, |(connection, jobs, end)| {
                // The owner sends nothing after its first message: this returns only when the owner
                // has ended, not when a signal interrupts it.
                let _ = (&mut &connection.stream).read_exact(&mut [0]);
                end.store(false, Ordering::Release);
                let _ = jobs.send(Job::Stop); // wakes the sender
            })?,
        ];
        Ok(Link { jobs, connection: stream, is_alive, queued_bytes, ended, _threads: threads })
    }

    /// Returns whether the connection to the owner is open.
    pub(in crate::cache) fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// Disconnected when the connection has ended.
    pub(in crate::cache) fn ended(&self) -> Receiver<Infallible> {
        self.ended.clone()
    }

    /// Queues a message; messages are sent in order.
    pub(in crate::cache) fn send(&self, job: Job) {
        let _ = self.jobs.send(job); // fails only when the connection has ended
    }

    /// Bytes that wait to be sent.
    pub(in crate::cache) fn queued_bytes(&self) -> &AtomicUsize {
        &self.queued_bytes
    }

    /// Returns whether nothing waits to be sent.
    pub(in crate::cache) fn is_idle(&self) -> bool {
        self.jobs.is_empty() || !self.is_alive()
    }

    /// Ends the connection once all that waits is sent, or after [`LAST_SENDS`].
    pub(in crate::cache) fn finish(&self) {
        let _ = self.jobs.send(Job::Stop); // fails only when the connection has ended
        let _ = self.ended.recv_timeout(LAST_SENDS); // it never receives: it ends or is late
        self.close();
    }

    /// Ends the connection; the threads end by themselves.
    fn close(&self) {
        self.is_alive.store(false, Ordering::Release);
        let _ = self.connection.stream.shutdown(Shutdown::Both); // fails only when it has ended
        let _ = self.jobs.send(Job::Stop);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// Marks the connection as ended, also when its thread panics.
struct End {
    is_alive: Arc<AtomicBool>,
    _held: Sender<Infallible>,
}

impl End {
    fn tell(&self) {
        self.is_alive.store(false, Ordering::Release);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.tell();
    }
}

struct Sending {
    connection: Arc<Connection>,
    jobs: Receiver<Job>,
    end: End,
    queued_bytes: Arc<AtomicUsize>,
}

impl Sending {
    fn run(&mut self) {
        while let Ok(job) = self.jobs.recv() {
            if matches!(job, Job::Stop) {
                break;
            }
            if let Err(error) = self.send(job) {
                tracing::debug!(%error, "the owner of the tiers takes no more data");
                break;
            }
        }
        self.end.tell();
        let _ = self.connection.stream.shutdown(Shutdown::Both); // wakes the other thread
    }

    fn send(&mut self, job: Job) -> std::io::Result<()> {
        let mut stream = &self.connection.stream;
        let mut send = |frame: Frame<'_>| stream.write_all(&frame.head());
        match job {
            Job::Corrupt(unit, pages) => send(Frame::Corrupt(unit, pages))?,
            Job::Expect(unit, pages) => send(Frame::Expect(unit, pages))?,
            Job::Gone(unit, pages) => send(Frame::Gone(unit, pages))?,
            Job::Piece { unit, first, bytes } => {
                let len = (bytes.len() as u64 / PAGE_BYTES) as u32;
                let pages = PageSet::range(first..first + len);
                send(Frame::Piece { unit, pages, bytes: &bytes })?;
                stream.write_all(&bytes)?;
                self.queued_bytes.fetch_sub(bytes.len(), Ordering::AcqRel);
            }
            Job::Merge(plan) => stream.write_all(&plan_message(&plan))?,
            Job::Hold(held) => stream.write_all(&hold_message(&held))?,
            // The owner reserves and fetches.
            Job::Fill(_)
            | Job::Behind(_)
            | Job::Evict(_)
            | Job::Plan { .. }
            | Job::Flush(_)
            | Job::Stop => {}
        }
        Ok(())
    }
}

/// How long an owner may take to receive the last data.
pub(in crate::cache) const LAST_SENDS: Duration = Duration::from_secs(5);

const SENDER: &str = "dlfs-tiers-send";
const WATCHER: &str = "dlfs-tiers-watch";
