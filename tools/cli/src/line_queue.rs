//! A queue of lines with its own writer thread, so that the producers wait for no reader and no disk.
//!
//! The queue is bounded. Lines that do not fit, or cannot be written, are dropped and counted, and the writer
//! reports their number.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Writes the lines of a queue, on the queue's thread.
pub(crate) trait LineWriter: Send + 'static {
    /// Writes a line; on an error the line is dropped.
    fn line(&mut self, line: &[u8]) -> io::Result<()>;

    /// Reports that `lines` lines were dropped; after an error it is called again.
    fn lost(&mut self, lines: u64) -> io::Result<()>;
}

/// The producers' end of the queue.
#[derive(Debug, Clone)]
pub(crate) struct LineQueue {
    queue: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    Finish(SyncSender<()>),
}

impl LineQueue {
    /// Starts the thread, with this name.
    ///
    /// # Errors
    /// Errors of starting a thread.
    pub(crate) fn start(name: &str, writer: impl LineWriter) -> io::Result<LineQueue> {
        let (queue, receiver) = sync_channel(MAX_LINES);
        let lost = Arc::<AtomicU64>::default();
        let queue = LineQueue { queue, lost: lost.clone() };
        let write = move || write_lines(&receiver, &lost, writer);
        thread::Builder::new().name(name.to_owned()).spawn(write)?;
        Ok(queue)
    }

    /// Adds a line; `None`, a line that could not be made, counts as dropped.
    pub(crate) fn push(&self, line: Option<Vec<u8>>) {
        if line.is_none_or(|line| self.queue.try_send(Message::Line(line)).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all lines are written, within a limit: a hanging disk must not keep a command from ending.
    pub(crate) fn finish(&self) {
        let until = Instant::now() + FINISH_LIMIT;
        let (done, wait) = sync_channel(1);
        while self.queue.try_send(Message::Finish(done.clone())).is_err() {
            if Instant::now() >= until {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        // The command ends even if this fails.
        let _ = wait.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

impl Write for LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(Some(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_lines(queue: &Receiver<Message>, lost: &AtomicU64, mut writer: impl LineWriter) {
    loop {
        let message = queue.recv_timeout(LOOK_AGAIN);
        let lines = lost.swap(0, Ordering::Relaxed);
        if lines > 0 && writer.lost(lines).is_err() {
            lost.fetch_add(lines, Ordering::Relaxed);
        }
        match message {
            Ok(Message::Line(line)) => {
                if writer.line(&line).is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(Message::Finish(done)) => _ = done.send(()), // the sender may have given up
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

const MAX_LINES: usize = 4096;
/// The time until dropped lines are reported if no further line comes.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const FINISH_LIMIT: Duration = Duration::from_secs(1);
