//! Starts the threads of the library, and reports their panics.
//!
//! A thread that panics unwinds and drops everything it owns, including its channel ends. The other side
//! would take this for an orderly end. So a thread started by [`start`] stores a panic message in its
//! [`Fate`] *before* it drops anything that it owns. Code that finds a channel closed checks the fate; an
//! orderly end has a message of its own. Threads with another way to report a panic do not use [`start`].
//!
//! `tests/threads.md` lists all threads: their creator, their end, and who notices their death.

use std::any::Any;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use crate::error::{Error, ErrorKind, Result};

/// The first death in a group of threads, if any; later deaths are not recorded. Clones share the record.
#[derive(Debug, Clone, Default)]
pub struct Fate(Arc<OnceLock<String>>);

impl Fate {
    /// The error of the thread that died; `None` if all live.
    pub fn died(&self) -> Option<Error> {
        self.0.get().map(|text| internal(text.clone()))
    }

    /// The error for a channel that was closed without its end message.
    pub fn of_closed_channel(&self, who: &str) -> Error {
        self.died().unwrap_or_else(|| internal(format!("{who} ended without a message")))
    }

    /// Records the error of a thread that died.
    pub fn tell(&self, error: &Error) {
        // The first death is the cause; later deaths are its consequences.
        let _ = self.0.set(error.to_string());
    }
}

/// A running thread. Waiting for its end always has a time limit.
pub struct Thread {
    name: String,
    handle: JoinHandle<()>,
    /// Disconnected once the thread has dropped everything it owned.
    alive: Receiver<Infallible>,
}

/// Starts the thread `name`, which runs `work` and then drops `owned`. If `work` panics, the thread first
/// stores the message in `fate`.
///
/// # Errors
/// The operating system cannot start the thread.
pub fn start<T: Send + 'static>(
    name: impl Into<String>,
    fate: &Fate,
    mut owned: T,
    work: impl FnOnce(&mut T) + Send + 'static,
) -> Result<Thread> {
    let name = name.into();
    let (alive_until_drop, alive) = bounded(0);
    let fate = fate.clone();
    let who = format!("the thread {name}");
    let handle = std::thread::Builder::new()
        .name(name.clone())
        .spawn(move || {
            let ended = caught(&who, || work(&mut owned));
            if let Err(error) = ended {
                fate.tell(&error);
            }
            drop(owned); // after the fate was recorded
            drop(alive_until_drop);
        })
        .map_err(|error| Error::from(error).hint("the process may start no more threads"))?;
    Ok(Thread { name, handle, alive })
}

impl Thread {
    /// Waits up to `limit` for the thread, which the caller has told to end. A thread that takes longer is
    /// logged and abandoned; it ends when its current call returns.
    pub fn join_within(self, limit: Duration) {
        let Thread { name, handle, alive } = self;
        match alive.recv_timeout(limit) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!("the thread {name} has not ended within {limit:?}: left behind");
            }
            Ok(_) | Err(RecvTimeoutError::Disconnected) => {
                if handle.join().is_err() {
                    tracing::error!("the thread {name} panicked while it ended");
                }
            }
        }
    }
}

/// Runs `work` for all `items` concurrently, in threads called `name` and in the calling one. The results
/// have the order of `items`. Meant for work that blocks: one thread per item, up to 64.
///
/// # Errors
/// The error of the first item in order whose work failed; no further work is started. A panic counts as an
/// error.
pub fn map_at_once<T: Sync, R: Send>(
    name: &str,
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let who = format!("the thread {name}");
    if let [only] = items {
        return Ok(vec![caught(&who, || work(only))??]);
    }
    let next = AtomicUsize::new(0);
    let has_failed = AtomicBool::new(false);
    let run = || {
        let mut done = Vec::new();
        while !has_failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            let result = caught(&who, || work(item)).and_then(|result| result);
            has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
            done.push((index, result));
        }
        done
    };
    let mut done = std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, run);
        // If the process cannot start more threads, the threads that exist do all the work.
        let others: Vec<_> =
            (1..items.len().min(MAX_AT_ONCE)).map_while(|n| start(n).ok()).collect();
        let mut done = run();
        others.into_iter().for_each(|other| done.extend(other.join().expect("it catches panics")));
        done
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Maximum threads of one [`map_at_once`].
const MAX_AT_ONCE: usize = 64;

/// Runs `work`; turns a panic into an error with `who` and the panic message.
///
/// Values that `work` was modifying may be inconsistent: drop them.
///
/// # Errors
/// `Internal`: `work` panicked.
pub fn caught<T>(who: &str, work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let error = internal(format!("{who} panicked: {}", panic_message(&*panic as &dyn Any)));
        tracing::error!("{error}");
        error
    })
}

/// The message of a panic, from its payload.
pub fn panic_message(panic: &dyn Any) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

fn internal(text: String) -> Error {
    Error::new(ErrorKind::Internal, text)
        .hint("this is a bug in dlfs: please report it with this message")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_done_at_once_keeps_its_order_and_ends_with_the_first_failure_or_panic() {
        let items: Vec<usize> = (0..200).collect();
        let squares = map_at_once("dlfs-test", &items, |item| Ok(item * item)).unwrap();
        assert!(squares.iter().zip(&items).all(|(square, item)| *square == item * item));
        let fail = |item: &usize| match item {
            7 | 150 => Err(internal(format!("item {item}"))),
            _ => Ok(()),
        };
        let error = map_at_once("dlfs-test", &items, fail).unwrap_err();
        assert!(error.to_string().ends_with("item 7") || error.to_string().ends_with("item 150"));
        let panics = |item: &usize| if *item == 3 { panic!("item 3") } else { Ok(()) };
        for some in [&items[..6], &items[3..4]] {
            let error = map_at_once("dlfs-test", some, panics).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal);
            assert!(error.to_string().contains("item 3"), "{error}");
        }
    }

    #[test]
    fn a_closed_channel_of_a_thread_that_panicked_comes_with_its_panic_message() {
        for round in 0..200 {
            let fate = Fate::default();
            let (send, receive) = bounded::<u32>(1);
            let work = move |_: &mut _| panic!("round {round}");
            let thread = start("dlfs-test", &fate, send, work).unwrap();
            receive.recv().unwrap_err();
            let error = fate.died().expect("told before the channel closed");
            assert_eq!(error.kind(), ErrorKind::Internal);
            let text = format!("the thread dlfs-test panicked: round {round}");
            assert_eq!(error.to_string(), text);
            thread.join_within(Duration::from_secs(60));
        }
    }

    #[test]
    fn a_thread_that_hangs_is_left_behind() {
        let (send, receive) = bounded::<u32>(0);
        let work = move |receive: &mut Receiver<u32>| assert!(receive.recv().is_err());
        let thread = start("dlfs-test", &Fate::default(), receive, work).unwrap();
        let began = Instant::now();
        thread.join_within(Duration::from_millis(20));
        assert!(began.elapsed() < Duration::from_secs(60));
        drop(send);
    }

    #[test]
    fn an_end_in_order_is_no_death() {
        let fate = Fate::default();
        start("dlfs-test", &fate, (), |()| {}).unwrap().join_within(Duration::from_secs(60));
        assert!(fate.died().is_none());
        let error = fate.of_closed_channel("the thread dlfs-test");
        assert_eq!(error.to_string(), "the thread dlfs-test ended without a message");
    }
}
