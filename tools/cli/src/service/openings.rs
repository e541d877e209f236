//! Namespaces that are being opened. Each opening has a thread of its own: a remote target may take long to answer,
//! and the service answers others meanwhile.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use dlfs::target::ServedNamespace;
use dlfs::{Error, ErrorKind, Result};

/// Openings that are under way, each with its purpose.
pub(crate) struct Openings<P> {
    under_way: Vec<UnderWay<P>>,
    /// A clone is with each thread.
    done: Sender<Done>,
    results: Receiver<Done>,
    /// Becomes readable when a result is there.
    waker: Arc<OwnedFd>,
    /// A clone is with each thread, which counts them.
    threads: Arc<()>,
    last_number: u64,
}

struct UnderWay<P> {
    number: u64,
    until: Instant,
    purpose: P,
}

struct Done {
    number: u64,
    result: Result<Vec<ServedNamespace>>,
}

impl<P> Openings<P> {
    /// # Errors
    /// The operating system has no event descriptor left.
    pub(crate) fn new() -> Result<Openings<P>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let waker = Arc::new(eventfd(0, flags).map_err(io::Error::from)?);
        let (done, results) = channel();
        let threads = Arc::new(());
        Ok(Openings { under_way: Vec::new(), done, results, waker, threads, last_number: 0 })
    }

    /// Starts `work`, which opens namespaces. [`Openings::finished`] has the result, at the latest after `limit`.
    pub(crate) fn begin(
        &mut self,
        purpose: P,
        limit: Duration,
        work: impl FnOnce() -> Result<Vec<ServedNamespace>> + Send + 'static,
    ) {
        self.last_number += 1;
        let number = self.last_number;
        self.under_way.push(UnderWay { number, until: Instant::now() + limit, purpose });
        if let Err(error) = self.start(number, work) {
            let _ = self.done.send(Done { number, result: Err(error) }); // the receiver is ours
        }
    }

    fn start(
        &self,
        number: u64,
        work: impl FnOnce() -> Result<Vec<ServedNamespace>> + Send + 'static,
    ) -> Result<()> {
        // Those that have hung for longer than their limit count, too.
        if Arc::strong_count(&self.threads) > MAX_THREADS {
            let message = format!("{MAX_THREADS} threads open namespaces already");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let done = self.done.clone();
        let waker = self.waker.clone();
        let counted = self.threads.clone();
        thread::Builder::new().name("dlfs-serve-open".to_owned()).spawn(move || {
            let _counted = counted;
            // Nobody may want the result any more.
            let _ = done.send(Done { number, result: work() });
            // Any value makes it readable. This fails only when the counter is full, and then it is readable, too.
            let _ = rustix::io::write(&waker, &[1; 8]);
        })?;
        Ok(())
    }

    /// Becomes readable when [`Openings::finished`] has something.
    pub(crate) fn waker(&self) -> Arc<OwnedFd> {
        self.waker.clone()
    }

    /// The purposes of all openings that are under way.
    pub(crate) fn purposes(&self) -> impl Iterator<Item = &P> {
        self.under_way.iter().map(|under_way| &under_way.purpose)
    }

    /// Those that have ended, or whose time is over, with their results.
    pub(crate) fn finished(&mut self) -> Vec<(P, Result<Vec<ServedNamespace>>)> {
        let _ = rustix::io::read(&self.waker, &mut [0_u8; 8]); // resets it; there may be nothing
        let mut finished = Vec::new();
        while let Ok(Done { number, result }) = self.results.try_recv() {
            // Without one its time was over: dropping the result closes what was opened.
            if let Some(at) = self.under_way.iter().position(|under_way| under_way.number == number)
            {
                finished.push((self.under_way.remove(at).purpose, result));
            }
        }
        let now = Instant::now();
        for UnderWay { purpose, .. } in
            self.under_way.extract_if(.., |under_way| under_way.until <= now)
        {
            let message = "the namespace could not be opened in time";
            finished.push((purpose, Err(Error::new(ErrorKind::TimedOut, message))));
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

    /// Waits for the only one that ends.
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
        let mut openings = Openings::new().unwrap();
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
        openings.under_way[0].until = Instant::now();
        let (name, result) = wait(&mut openings);
        assert_eq!((name, result.unwrap_err().kind()), ("hangs", ErrorKind::TimedOut));
        // A namespace that is opened too late is closed, and nobody hears of it.
        drop(release);
        while Arc::strong_count(&openings.threads) > 1 {
            thread::yield_now();
        }
        assert!(openings.finished().is_empty());
    }

    #[test]
    fn more_than_the_limit_are_refused() {
        let mut openings = Openings::new().unwrap();
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
