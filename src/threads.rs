//! Threads of the library, whose death is told.
//!
//! A thread that panics unwinds, and drops what it owns: its ends of channels too, which to the other side
//! looks as if the work had ended in order. So every thread that stands between an engine and a caller is
//! started by [`start`]: what it panics with is in its [`Fate`] *before* anything it owns is dropped.
//! Whoever finds a channel closed asks the fate, and an end in order is a message of its own.
//!
//! `docs/threads.md` lists all threads: who starts them, what ends them, who notices their death.

use std::any::Any;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, bounded};

use crate::error::{Error, ErrorKind, Result};

/// What threads that do one work together died of: the first of them counts. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fate(Arc<OnceLock<String>>);

impl Fate {
    /// The error of the thread that died; `None` while none has.
    pub(crate) fn died(&self) -> Option<Error> {
        self.0.get().map(|text| mistake(text.clone()))
    }

    /// What a channel means that was closed without a word of its end.
    pub(crate) fn of_closed_channel(&self, who: &str) -> Error {
        self.died().unwrap_or_else(|| mistake(format!("{who} ended without a word")))
    }

    /// Keeps the words of a thread that died.
    pub(crate) fn tell(&self, error: &Error) {
        // The first death is the cause; others follow from it.
        let _ = self.0.set(error.to_string());
    }
}

/// A running thread. Its end may be waited for, but never for ever.
pub(crate) struct Thread {
    name: String,
    handle: JoinHandle<()>,
    /// Closed when the thread has dropped all that it owned.
    alive: Receiver<Infallible>,
}

/// Starts the thread `name` on `work`. What it panics with is kept in `fate`, then `owned` is dropped.
///
/// # Errors
/// The operating system gives no thread.
pub(crate) fn start<T: Send + 'static>(
    name: impl Into<String>,
    fate: &Fate,
    mut owned: T,
    work: impl FnOnce(&mut T) + Send + 'static,
) -> Result<Thread> {
    let name = name.into();
    let (held, alive) = bounded(0);
    let (fate, who) = (fate.clone(), format!("the thread {name}"));
    let handle = std::thread::Builder::new()
        .name(name.clone())
        .spawn(move || {
            let ended = caught(&who, || work(&mut owned));
            if let Err(error) = ended {
                fate.tell(&error);
            }
            drop(owned); // the fate is known by now
            drop(held);
        })
        .map_err(|error| Error::from(error).hint("the process may start no more threads"))?;
    Ok(Thread { name, handle, alive })
}

impl Thread {
    /// Waits until the thread has ended, at most for `limit`; then it is left behind, says so, and ends
    /// by itself once the call it is in returns. The caller has told it to end.
    pub(crate) fn join_within(self, limit: Duration) {
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

/// Does `work` for each of `items`, several at a time, in threads called `name` and in this one; the results
/// are in the order of `items`. For work that waits: it is in as many threads as there are items, up to 64.
///
/// # Errors
/// That of the first item whose work failed; no more is begun then. A panic is such an error.
pub(crate) fn map_at_once<T: Sync, R: Send>(
    name: &str,
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    if let [only] = items {
        return Ok(vec![work(only)?]);
    }
    let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let who = format!("the thread {name}");
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
        // Where the process may start no more of them, those that there are do all of it.
        let others: Vec<_> =
            (1..items.len().min(MAX_AT_ONCE)).map_while(|n| start(n).ok()).collect();
        let mut done = run();
        others.into_iter().for_each(|other| done.extend(other.join().expect("it catches panics")));
        done
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Threads of one [`map_at_once`].
const MAX_AT_ONCE: usize = 64;

/// Runs `work`; a panic in it becomes an error that names `who` and says what it panicked with.
///
/// What `work` had in its hands may be half done: drop it, and use it no more.
///
/// # Errors
/// `Internal`: it panicked.
pub(crate) fn caught<T>(who: &str, work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let error = mistake(format!("{who} panicked: {}", words_of(&*panic)));
        tracing::error!("{error}");
        error
    })
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

fn mistake(text: String) -> Error {
    Error::new(ErrorKind::Internal, text)
        .hint("this is a mistake in dlfs: please report it with this message")
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
            7 | 150 => Err(mistake(format!("item {item}"))),
            _ => Ok(()),
        };
        let error = map_at_once("dlfs-test", &items, fail).unwrap_err();
        assert!(error.to_string().ends_with("item 7") || error.to_string().ends_with("item 150"));
        let panics = |item: &usize| if *item == 3 { panic!("item 3") } else { Ok(()) };
        let error = map_at_once("dlfs-test", &items[..6], panics).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.to_string().contains("item 3"), "{error}");
    }

    #[test]
    fn who_finds_the_channel_of_a_dead_thread_closed_finds_its_last_words_too() {
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
        assert!(began.elapsed() < Duration::from_secs(30));
        drop(send);
    }

    #[test]
    fn an_end_in_order_is_no_death() {
        let fate = Fate::default();
        start("dlfs-test", &fate, (), |()| {}).unwrap().join_within(Duration::from_secs(60));
        assert!(fate.died().is_none());
        let error = fate.of_closed_channel("the thread dlfs-test");
        assert_eq!(error.to_string(), "the thread dlfs-test ended without a word");
    }
}
