//! Opening namespaces of a running service, each set on a thread: a remote target may be slow to answer, and the
//! service must not wait for it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use dlfs::target::ServedNamespace;
use dlfs::{Error, ErrorKind, Result};

use super::control::Event;

/// Openings in progress, each with its purpose.
pub(crate) struct Openings<P> {
    in_progress: Vec<Opening<P>>,
    /// Receives an event when a result is ready.
    events: Sender<Event>,
    /// Each thread has a clone: the reference count is the number of threads, and one more.
    threads: Arc<()>,
}

/// An opening in progress.
struct Opening<P> {
    purpose: P,
    /// The time at which the opening fails.
    until: Instant,
    result: Receiver<OpenResult>,
}

/// The open namespaces, or the error of the first that could not be opened.
type OpenResult = Result<Vec<ServedNamespace>>;

impl<P> Openings<P> {
    pub(crate) fn new(events: Sender<Event>) -> Openings<P> {
        Openings { in_progress: Vec::new(), events, threads: Arc::new(()) }
    }

    /// Starts `work`, which opens namespaces. [`Openings::finished`] returns the result, at the latest after
    /// `limit`.
    pub(crate) fn begin(
        &mut self,
        purpose: P,
        limit: Duration,
        work: impl FnOnce() -> OpenResult + Send + 'static,
    ) {
        let (done, result) = channel();
        self.in_progress.push(Opening { purpose, until: Instant::now() + limit, result });
        if let Err(error) = self.start(done.clone(), work) {
            let _ = done.send(Err(error)); // we still have the receiver
        }
    }

    /// Starts the thread, which sends the result to `done`.
    fn start(
        &self,
        done: Sender<OpenResult>,
        work: impl FnOnce() -> OpenResult + Send + 'static,
    ) -> Result<()> {
        // Threads that have hung for longer than their limit count too.
        if Arc::strong_count(&self.threads) > MAX_THREADS {
            let message = format!("{MAX_THREADS} threads open namespaces already");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let events = self.events.clone();
        let counted = self.threads.clone();
        thread::Builder::new().name("dlfs-serve-open".to_owned()).spawn(move || {
            let _counted = counted;
            // If the result is no longer wanted, the send fails and closes the opened namespaces.
            let _ = done.send(work());
            let _ = events.send(Event::Woken); // fails only if the service has ended
        })?;
        Ok(())
    }

    /// The purposes of all openings in progress.
    pub(super) fn purposes(&self) -> impl Iterator<Item = &P> {
        self.in_progress.iter().map(|opening| &opening.purpose)
    }

    /// Openings that have ended, or whose time is over, with their results.
    pub(crate) fn finished(&mut self) -> Vec<(P, OpenResult)> {
        let now = Instant::now();
        let mut finished = Vec::new();
        for one in std::mem::take(&mut self.in_progress) {
            match one.result.try_recv() {
                Ok(opened) => finished.push((one.purpose, opened)),
                Err(_) if one.until <= now => {
                    let message = "the namespace could not be opened in time";
                    finished.push((one.purpose, Err(Error::new(ErrorKind::TimedOut, message))));
                }
                Err(_) => self.in_progress.push(one),
            }
        }
        finished
    }
}

/// The most threads that open namespaces at a time.
const MAX_THREADS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// Waits for the only opening.
    fn wait<P>(openings: &mut Openings<P>) -> (P, Result<Vec<ServedNamespace>>) {
        loop {
            if let Some(finished) = openings.finished().pop() {
                return finished;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn one_that_hangs_delays_no_other_and_fails_when_its_time_is_over() {
        let mut openings = Openings::new(channel().0);
        let (release, hang) = channel::<()>();
        let hangs = move || {
            let _ = hang.recv();
            Ok(Vec::new())
        };
        openings.begin("hangs", LONG, hangs);
        openings.begin("ends", LONG, || Ok(Vec::new()));
        let (name, result) = wait(&mut openings);
        assert!(name == "ends" && result.is_ok());
        assert_eq!(openings.purposes().collect::<Vec<_>>(), [&"hangs"]);
        openings.in_progress[0].until = Instant::now();
        let (name, result) = wait(&mut openings);
        assert_eq!((name, result.unwrap_err().kind()), ("hangs", ErrorKind::TimedOut));
        // A namespace that is opened too late is closed, without a report.
        drop(release);
        while Arc::strong_count(&openings.threads) > 1 {
            thread::yield_now();
        }
        assert!(openings.finished().is_empty());
    }

    #[test]
    fn more_than_the_limit_are_refused() {
        let mut openings = Openings::new(channel().0);
        let releases: Vec<_> = (0..MAX_THREADS)
            .map(|number| {
                let (release, hang) = channel::<()>();
                openings.begin(number, LONG, move || {
                    let _ = hang.recv();
                    Ok(Vec::new())
                });
                release
            })
            .collect();
        openings.begin(99, LONG, || Ok(Vec::new()));
        let (number, result) = wait(&mut openings);
        assert_eq!((number, result.unwrap_err().kind()), (99, ErrorKind::Busy));
        drop(releases);
        let mut ended = Vec::new();
        while ended.len() < MAX_THREADS {
            ended.extend(openings.finished().into_iter().map(|(number, _)| number));
            thread::yield_now();
        }
        ended.sort_unstable();
        assert_eq!(ended, (0..MAX_THREADS).collect::<Vec<usize>>());
    }
}
