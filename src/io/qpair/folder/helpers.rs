//! Threads that make the blocking calls of one queue pair, so that a slow file system blocks no poller.
//!
//! One thread suffices for a fast file system, and keeps the order of the I/Os. While I/Os wait and no thread is free,
//! another thread is added whenever none has taken an I/O for `ADD_THREAD_AFTER`, up to a limit: a parallel file system
//! is faster with more requests. The threads end with their queue pair, each after its current call.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::qpair::readiness::{Registry, Watched};
use crate::qpair::{Completion, Io, IoError, Namespace, Notice, QueuePair};
use dlfs_base::error::{Error, Result};
use dlfs_base::process::{Condvar, Forked, Mutex, mark_ours};
use dlfs_base::threads::caught;

/// The threads of one queue pair, and its queues to and from them.
pub(in crate::qpair) struct Helpers {
    shared: Arc<HelpersShared>,
    /// The event that the queue pair's poller watches.
    watched: Watched<Arc<HelpersShared>>,
    /// The number of threads that were started.
    num_threads: usize,
    /// The limit of `num_threads`.
    most_threads: usize,
    /// Tells the process that has the threads from a forked child, which has none of them.
    process: Forked<()>,
}

/// Runs one I/O; may block.
pub(in crate::qpair) type Call = Box<dyn Fn(&mut Io) -> Result<(), IoError> + Send + Sync>;

/// State of the queue pair and its threads.
struct HelpersShared {
    call: Call,
    queue: Mutex<CallQueue>,
    /// Signals that the queue is not empty, or is closed.
    work: Condvar,
    /// Signals that a thread ends because the queue is closed.
    ended: Condvar,
    /// Completions that the queue pair has not taken.
    done: Mutex<Vec<Completion>>,
    /// Readable while `done` is not empty.
    event: OwnedFd,
}

/// I/Os that wait for a thread.
struct CallQueue {
    waiting: VecDeque<Io>,
    /// The last time at which a thread took an I/O from the queue, an I/O came into the empty queue, or a
    /// thread was added.
    last_progress: Instant,
    /// Threads that wait for an I/O.
    num_idle: usize,
    /// Threads in a call.
    num_busy: usize,
    /// Set once the queue pair is dropped.
    is_closed: bool,
}

impl Helpers {
    /// Starts the first of at most `most_threads` threads.
    ///
    /// # Errors
    /// The process has reached its limit of threads or descriptors.
    pub(in crate::qpair) fn start(call: Call, most_threads: usize) -> Result<Helpers> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(std::io::Error::from)?;
        mark_ours(&event);
        let queue = CallQueue {
            waiting: VecDeque::new(),
            last_progress: Instant::now(),
            num_idle: 0,
            num_busy: 0,
            is_closed: false,
        };
        let shared = Arc::new(HelpersShared {
            call,
            queue: Mutex::new(queue),
            work: Condvar::default(),
            ended: Condvar::default(),
            done: Mutex::default(),
            event,
        });
        let watched = Watched::new(Arc::clone(&shared));
        let process = Forked::new(());
        let mut helpers = Helpers { shared, watched, num_threads: 0, most_threads, process };
        helpers.spawn()?;
        Ok(helpers)
    }

    /// Starts a thread.
    fn spawn(&mut self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new()
            .name("dlfs-folder".into())
            .spawn(move || shared.run())
            .map_err(|error| Error::from(error).hint("the process may start no more threads"))?;
        self.num_threads += 1;
        Ok(())
    }

    /// Queues I/Os.
    pub(in crate::qpair) fn submit(&self, ios: impl Iterator<Item = Io>) {
        let mut queue = self.shared.queue.lock();
        if queue.waiting.is_empty() {
            queue.last_progress = Instant::now();
        }
        queue.waiting.extend(ios);
        if queue.num_idle > 0 {
            self.shared.work.notify_one();
        }
    }

    /// Takes at most `max` completions, and adds a thread if [`Helpers::next_thread_at`] has passed.
    pub(in crate::qpair) fn poll(
        &mut self,
        now: Instant,
        max: usize,
        done: &mut Vec<Completion>,
    ) -> usize {
        if self.next_thread_at().is_some_and(|at| at <= now) {
            self.shared.queue.lock().last_progress = now; // the next thread is not added at once
            if let Err(error) = self.spawn() {
                tracing::debug!(%error, "no further thread reads the folder");
            }
        }
        let mut list = self.shared.done.lock();
        let count = max.min(list.len());
        done.extend(list.drain(..count));
        if count > 0 && list.is_empty() {
            // Reads the event under the lock, so that none is lost; fails only if the counter is zero.
            let _ = rustix::io::read(&self.shared.event, &mut [0u8; 8]);
        }
        count
    }

    /// Registers the event with a poller.
    pub(in crate::qpair) fn register(&mut self, registry: &Registry) {
        self.watched.register_for_sleep(registry);
    }

    /// The time at which to add another thread, unless a thread takes an I/O before.
    pub(in crate::qpair) fn next_thread_at(&self) -> Option<Instant> {
        if self.num_threads == self.most_threads {
            return None;
        }
        let queue = self.shared.queue.lock();
        (!queue.waiting.is_empty() && queue.num_idle == 0)
            .then(|| queue.last_progress + ADD_THREAD_AFTER)
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        if self.process.is_ours() {
            let mut queue = self.shared.queue.lock();
            queue.is_closed = true;
            queue.waiting.clear();
            self.shared.work.notify_all();
            // Waits for calls that still use their buffers, for a limited time: a hung file system does not return.
            let until = Instant::now() + DRAIN_LIMIT;
            let mut is_late = false;
            while queue.num_busy > 0 && !is_late {
                (queue, is_late) = self.shared.ended.wait_until(queue, until);
            }
            self.shared.done.lock().clear();
        }
    }
}

impl AsFd for HelpersShared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl HelpersShared {
    /// The work of one thread.
    fn run(&self) {
        let mut is_busy = false;
        while let Some(mut io) = self.next(is_busy) {
            is_busy = true;
            // Without this, a panic would lose the I/O and the thread.
            let result = caught("the thread dlfs-folder", || (self.call)(&mut io))
                .unwrap_or_else(|error| Err(IoError::Panicked(error.to_string())));
            let mut done = self.done.lock();
            done.push(Completion { tag: io.tag, buf: io.buf, result });
            if done.len() == 1 {
                // The only possible failure is a counter at its maximum, and then it is readable anyway.
                let _ = rustix::io::write(&self.event, &[1; 8]);
            }
        }
    }

    /// Takes the oldest waiting I/O, or waits for one. `was_busy`: the thread has just ended a call. `None`: the queue
    /// pair is gone.
    fn next(&self, was_busy: bool) -> Option<Io> {
        let mut queue = self.queue.lock();
        queue.num_busy -= usize::from(was_busy);
        loop {
            if queue.is_closed {
                self.ended.notify_all();
                return None;
            }
            if let Some(io) = queue.waiting.pop_front() {
                queue.last_progress = Instant::now();
                queue.num_busy += 1;
                if queue.num_idle > 0 && !queue.waiting.is_empty() {
                    self.work.notify_one();
                }
                return Some(io);
            }
            queue.num_idle += 1;
            queue = self.work.wait(queue);
            queue.num_idle -= 1;
        }
    }
}

/// Creates a queue pair of `namespace`. Up to `most_threads` threads run its I/Os by `call`, which may block.
///
/// # Errors
/// The process has reached its limit of threads or descriptors.
pub fn helped_pair(
    namespace: Namespace,
    call: impl Fn(&mut Io) -> Result<(), IoError> + Send + Sync + 'static,
    most_threads: usize,
) -> Result<Box<dyn QueuePair>> {
    let helpers = Helpers::start(Box::new(call), most_threads)?;
    Ok(Box::new(HelpedPair { namespace, helpers, outstanding: 0 }))
}

/// A queue pair whose threads run all I/Os.
struct HelpedPair {
    namespace: Namespace,
    helpers: Helpers,
    /// I/Os that were taken and whose completions were not returned yet.
    outstanding: usize,
}

impl QueuePair for HelpedPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let room = usize::from(self.namespace.queue_depth) - self.outstanding;
        let count = pending.len().min(room);
        if count > 0 {
            self.helpers.submit(pending.drain(..count));
            self.outstanding += count;
        }
        count
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        if self.outstanding == 0 {
            return 0;
        }
        let count = self.helpers.poll(now, max, done);
        self.outstanding -= count;
        count
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn register(&mut self, registry: &Registry) {
        self.helpers.register(registry);
    }

    /// Completions are in memory, so looking costs no system call.
    fn notice(&self) -> Notice {
        Notice::Look
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.helpers.next_thread_at()
    }
}

/// The most threads of a queue pair on a file system.
pub(in crate::qpair) const MAX_THREADS: usize = 8;

/// The longest wait for outstanding calls when a queue pair is dropped.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// The time without progress after which another thread is added: longer than a read from memory takes.
const ADD_THREAD_AFTER: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::super::FolderNamespace;
    use crate::qpair::{Device, IoError, IoOp};
    use dlfs_base::buf::IoBuf;
    use dlfs_base::units::Lba;

    use super::*;

    #[test]
    fn a_read_that_panics_fails_with_the_panic_message_and_the_thread_continues() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(root.path().join(name), vec![name.as_bytes()[0]; 5000]).unwrap();
        }
        let mut folder = FolderNamespace::open(root.path(), Default::default()).unwrap();
        // An invalid listing: two files overlap.
        let files = &mut Arc::get_mut(&mut folder.folder).unwrap().listing.files;
        files[1].offset_bytes = files[0].offset_bytes + 1;
        let places = [0, 2].map(|file: usize| files[file].offset_bytes / 4096);
        let mut pair = folder.queue_pair().unwrap();
        let read =
            |slba, tag| Io { op: IoOp::Read, slba: Lba(slba), buf: IoBuf::zeroed(8192), tag };
        let mut pending: VecDeque<Io> =
            (0..20).map(|tag| read(places[tag as usize % 2], tag)).collect();
        assert_eq!(pair.submit(&mut pending), 20);
        let mut done = Vec::new();
        let until = Instant::now() + Duration::from_secs(60);
        while done.len() < 20 && Instant::now() < until {
            pair.poll(Instant::now(), usize::MAX, &mut done);
        }
        assert_eq!((done.len(), pair.outstanding()), (20, 0));
        for completion in done {
            match (completion.tag % 2, completion.result) {
                (0, Err(IoError::Panicked(words))) => {
                    assert!(words.starts_with("the thread dlfs-folder panicked: "), "{words}");
                }
                (1, Ok(())) => assert_eq!(completion.buf[..5000], [b'c'; 5000]),
                (_, result) => panic!("{}: {result:?}", completion.tag),
            }
        }
    }
}
