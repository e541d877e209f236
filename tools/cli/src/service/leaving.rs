//! Subsystems that a reload has removed: their hosts are sent away and their targets end, in the background.
//!
//! The command's thread calls [`Leaving::step`] again and again. The end of a target may wait for a hanging
//! device, so it runs on its own thread.

use std::thread::{self, JoinHandle};
use std::time::Instant;

use dlfs::Result;
use dlfs::nvme::Nqn;

use super::running::{DRAIN_LIMIT, Running, Service};
use crate::log;

/// A subsystem that is no longer served.
pub(crate) enum Leaving {
    /// Hosts have until this deadline to leave.
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

    /// Advances if possible; `None`: the subsystem is gone.
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

    /// Ends the target, and disconnects the remaining hosts; `None`: the subsystem is gone.
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
            running.target.stop();
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

    /// Waits until the target has ended, which takes a few seconds at most.
    pub(super) fn join(self) {
        if let Leaving::Ending(_, thread) = self {
            let _ = thread.join(); // a panic ends the target as well
        }
    }
}

impl Service {
    /// Begins to end a subsystem that the service no longer contains.
    ///
    /// # Errors
    /// Errors of [`Running::leave`]; the subsystem ends nevertheless.
    pub(super) fn begin_to_end(&mut self, mut running: Running) -> Result<()> {
        let left = running.leave();
        self.leaving.push(Leaving::Draining(Box::new(running), Instant::now() + DRAIN_LIMIT));
        left
    }

    /// Advances all subsystems that are ending.
    pub(super) fn step_leaving(&mut self) {
        let now = Instant::now();
        let leaving = std::mem::take(&mut self.leaving).into_iter();
        self.leaving = leaving.filter_map(|leaving| leaving.step(now)).collect();
    }
}
