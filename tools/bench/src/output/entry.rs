//! The reported figures of one job, or of several jobs that are reported together.

use std::sync::Arc;

use crate::options::Job;
use crate::run::{Finished, Task};
use crate::samples::SampleFigures;
use crate::stats::Stats;
use crate::worker::Snapshot;

/// One entry of the result.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) job: Arc<Job>,
    pub(crate) thread: usize,
    pub(crate) group: usize,
    /// The number of jobs in it.
    pub(crate) jobs: usize,
    pub(crate) stats: Stats,
    pub(crate) error: i32,
    pub(crate) message: Option<String>,
    pub(crate) began_ms: u64,
    pub(crate) elapsed_s: u64,
    pub(crate) samples: Option<SampleFigures>,
}

impl Entry {
    /// The entry of a job that has ended.
    pub(crate) fn of(finished: &Finished) -> Entry {
        let outcome = &finished.outcome;
        Entry {
            error: outcome.error,
            message: outcome.message.clone(),
            began_ms: outcome.began_ms,
            elapsed_s: finished.elapsed_s.max(1),
            ..Entry::of_running(&finished.task, (outcome.stats.clone(), outcome.samples))
        }
    }

    /// The entry of a running job.
    pub(crate) fn of_running(task: &Task, (stats, samples): Snapshot) -> Entry {
        Entry {
            job: Arc::clone(&task.job),
            thread: task.thread,
            group: task.group,
            jobs: 1,
            error: 0,
            message: None,
            began_ms: 0,
            elapsed_s: stats.runtime_ms.div_ceil(1000).max(1),
            stats,
            samples,
        }
    }

    fn add(&mut self, other: Entry) {
        self.jobs += 1;
        self.stats.add(&other.stats);
        self.error = if self.error == 0 { other.error } else { self.error };
        self.message = self.message.take().or(other.message);
        self.began_ms = self.began_ms.min(other.began_ms);
        self.elapsed_s = self.elapsed_s.max(other.elapsed_s);
        self.samples = match (self.samples, other.samples) {
            (Some(mut one), Some(other)) => {
                one.add(&other);
                Some(one)
            }
            (one, other) => one.or(other),
        };
    }
}

/// Merges the jobs of a group that are reported together.
pub(crate) fn together(entries: Vec<Entry>) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    for entry in entries {
        let same = |one: &&mut Entry| {
            entry.job.group_reporting && one.job.group_reporting && one.group == entry.group
        };
        match all.iter_mut().find(same) {
            Some(one) => one.add(entry),
            None => all.push(entry),
        }
    }
    all
}
