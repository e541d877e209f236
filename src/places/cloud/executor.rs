//! The thread that does all I/O of a client, and the tasks that run there. Callers wait for a task with [`Asked`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use crate::Cancel;
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::process::Forked;
use dlfs_base::threads::{Fate, Thread, start};

/// The client's thread. Clones share it; dropping the last one ends it.
#[derive(Clone)]
pub(super) struct Executor {
    /// Starts tasks on the thread.
    handle: Handle,
    /// Tells whether the thread died.
    fate: Fate,
    cancel: Cancel,
    running: Arc<Forked<Running>>,
}

/// The running thread. A forked child does not have the thread; there this value is leaked.
struct Running {
    /// Notified when the thread is to end.
    stop: Arc<Notify>,
    thread: Option<Thread>,
}

impl Executor {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system starts no thread, or has no descriptors left.
    pub(super) fn start(cancel: Cancel) -> Result<Executor> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Error::from)?;
        let handle = runtime.handle().clone();
        let fate = Fate::default();
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let thread =
            start(THREAD, &fate, runtime, move |runtime| runtime.block_on(stopped.notified()))?;
        let running = Arc::new(Forked::new(Running { stop, thread: Some(thread) }));
        Ok(Executor { handle, fate, cancel, running })
    }

    /// Runs `work` on the client's thread.
    ///
    /// # Errors
    /// `InvalidArgument`: this process was forked after the thread was started.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<Asked<T>> {
        if !self.running.is_ours() {
            let text = "an object store that was opened before a fork cannot be read after it";
            return Err(invalid(text).hint("open it again in the child"));
        }
        let (send, answer) = bounded(1);
        let task = self.handle.spawn(async move {
            // Fails if the receiver is gone; then nobody waits for the result.
            let _ = send.try_send(work.await);
        });
        let task = task.abort_handle();
        let handle = self.handle.clone();
        Ok(Asked { answer, task, handle, fate: self.fate.clone(), cancel: self.cancel.clone() })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join_within(END_LIMIT);
        }
    }
}

/// A task on the client's thread. Dropping it aborts the task.
#[derive(Debug)]
pub(super) struct Asked<T> {
    /// Receives the task's result.
    answer: Receiver<Result<T>>,
    task: AbortHandle,
    handle: Handle,
    fate: Fate,
    cancel: Cancel,
}

impl<T> Asked<T> {
    /// Waits for the task's result. The wait ends, because each request has a deadline.
    ///
    /// # Errors
    /// The errors of the task. `Interrupted`: the wait was cancelled. The client's thread died.
    pub(super) fn wait(self) -> Result<T> {
        loop {
            match self.answer.recv_timeout(CHECK_INTERVAL) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) => self.check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.fate.of_closed_channel("the thread dlfs-cloud"));
                }
            }
        }
    }

    /// The next message that the task sent; `None`: the task has ended.
    ///
    /// # Errors
    /// `Interrupted`: the wait was cancelled.
    pub(super) fn next_of<P>(&self, sent: &mut mpsc::Receiver<P>) -> Result<Option<P>> {
        loop {
            let next = async { tokio::time::timeout(CHECK_INTERVAL, sent.recv()).await };
            match self.handle.block_on(next) {
                Ok(next) => return Ok(next),
                Err(_) => self.check()?,
            }
        }
    }

    /// Checks that the wait was not cancelled.
    fn check(&self) -> Result<()> {
        if self.cancel.is_asked() {
            Err(Error::new(ErrorKind::Interrupted, "stopped while waiting for the store"))
        } else {
            Ok(())
        }
    }
}

impl<T> Drop for Asked<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The thread's name.
const THREAD: &str = "dlfs-cloud";
/// Interval at which a waiting thread checks for cancellation.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Time limit for the thread to end when the last client is dropped.
const END_LIMIT: Duration = Duration::from_secs(5);
