//! A subsystem that a reload has removed: its hosts are sent away and its target is ended, and nobody waits for that.
//!
//! The command's thread calls [`Leaving::step`] again and again. What may wait for a device that hangs, the end of
//! the target, has a thread of its own.

use std::thread::{self, JoinHandle};
use std::time::Instant;

use dlfs::Result;
use dlfs::nvme::Nqn;

use super::running::{DRAIN_LIMIT, Running, Service};
use crate::log;

/// A subsystem that is no longer served.
pub(crate) enum Leaving {
    /// Its hosts have until then to go.
    Draining(Box<Running>, Instant),
    /// Its target ends.
    Ending(Nqn, JoinHandle<()>),
}

impl Leaving {
    pub(super) fn nqn(&self) -> &Nqn {
        match self {
            Leaving::Draining(running, _) => &running.config.nqn,
            Leaving::Ending(nqn, _) => nqn,
        }
    }

    /// The subsystem, while hosts may be connected to it.
    pub(super) fn running(&self) -> Option<&Running> {
        match self {
            Leaving::Draining(running, _) => Some(running),
            Leaving::Ending(..) => None,
        }
    }

    /// Goes on if it can; `None`: it is gone.
    fn step(self, now: Instant) -> Option<Leaving> {
        match self {
            Leaving::Draining(running, until) => {
                let is_over = running.target.is_drained() || now >= until;
                let leaving = Leaving::Draining(running, until);
                if is_over { leaving.end() } else { Some(leaving) }
            }
            Leaving::Ending(nqn, thread) if thread.is_finished() => {
                log::say(&format!("subsystem {nqn} has ended"));
                None
            }
            ending @ Leaving::Ending(..) => Some(ending),
        }
    }

    /// Ends its target, and cuts off the hosts that are still connected; `None`: it is gone.
    pub(super) fn end(self) -> Option<Leaving> {
        let Leaving::Draining(running, _) = self else { return Some(self) };
        let nqn = running.config.nqn.clone();
        let late = running.target.connected().len();
        if late > 0 {
            let limit = DRAIN_LIMIT.as_secs();
            log::say(&format!(
                "subsystem {nqn}: {late} controllers were not gone after {limit} s and are cut off"
            ));
        }
        let last_note = running.last_note();
        let again = running.last_note();
        let end = move || {
            running.end();
            last_note();
        };
        match thread::Builder::new().name("dlfs-serve-end".to_owned()).spawn(end) {
            Ok(thread) => Some(Leaving::Ending(nqn, thread)),
            Err(_) => {
                again(); // its target has ended on this thread
                None
            }
        }
    }

    /// Waits until its target has ended, which takes a few seconds at most.
    pub(super) fn join(self) {
        if let Leaving::Ending(_, thread) = self {
            let _ = thread.join(); // a panic ends the target as well
        }
    }
}

impl Service {
    /// Begins to end a subsystem, which is no longer one of the service.
    ///
    /// # Errors
    /// Those of [`Running::leave`]; it ends nevertheless.
    pub(super) fn begin_to_end(&mut self, mut running: Running) -> Result<()> {
        let left = running.leave();
        self.leaving.push(Leaving::Draining(Box::new(running), Instant::now() + DRAIN_LIMIT));
        left
    }

    /// Goes on with the subsystems that end.
    pub(super) fn step_leaving(&mut self) {
        let now = Instant::now();
        let leaving = std::mem::take(&mut self.leaving).into_iter();
        self.leaving = leaving.filter_map(|leaving| leaving.step(now)).collect();
    }
}
