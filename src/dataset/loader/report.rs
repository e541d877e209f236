//! The report of a loader's run, from a record of its batches and of the waits for them.
//!
//! Each loader keeps the record: a batch costs one clock reading and a few additions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Loader;
use crate::cache::TierStats;
use crate::dataset::Dataset;
use crate::prefetch::{LoaderOptions, LoaderStats, Trace};
use crate::report::{
    Delivered, Event, EventKind, Facts, PlaceBytes, Reads, Report, Stalls, StoreUse, TierUse,
    Timeline,
};

impl Loader {
    /// Reports the batches of this loader, its consumer's waits, and what to try next. Before the first
    /// batch, reports an empty run. Waits for the lock, which a call for a batch on another thread holds for at most
    /// 50 ms at a time, and [`Loader::prepare`] while it allocates the window.
    pub fn report(&self) -> Report {
        let data = self.run_data().ok();
        let mut running = self.running.get_or_init(Mutex::default).lock();
        let stats = running.stats();
        let mut timeline = Timeline::new();
        let mut window_bytes = self.options.window_bytes;
        if let Some(record) = &mut running.record {
            record.timeline.record_places(stats.read.places);
            timeline = record.timeline.clone();
            window_bytes = record.window_bytes;
        }
        drop(running);
        let datasets = data.as_ref().map_or(&[][..], |data| &data.datasets[..]);
        Report {
            name: names(datasets),
            settings: settings(&self.options, datasets, self.len, window_bytes),
            facts: facts(&self.options, datasets, window_bytes),
            reads: reads(&stats),
            tiers: datasets.iter().flat_map(tiers).collect(),
            store: self.store_use(),
            latency: Some(stats.latency),
            timeline,
        }
    }

    /// Use of the rank's store; `None` unless the loader reads from one that this process owns.
    fn store_use(&self) -> Option<StoreUse> {
        let stats = self.store.as_ref()?.own_stats()?;
        Some(StoreUse {
            held_bytes: stats.held_bytes,
            staged_bytes: stats.staged_bytes,
            received_bytes: stats.received_bytes,
            near_bytes: stats.near_bytes,
            from_origin_bytes: stats.from_origin_bytes,
        })
    }

    /// The newest events of the run in Chrome's trace format; `None` if its options lack a
    /// [`Trace`](crate::prefetch::Trace).
    pub fn trace_json(&self) -> Option<String> {
        let trace = self.options.trace.as_ref()?;
        Some(trace.to_json(Some(&self.report().timeline)))
    }
}

/// The addresses of all namespaces, separated by commas.
fn names(datasets: &[Dataset]) -> String {
    let devices = datasets.iter().flat_map(|dataset| dataset.image().devices());
    let addresses: Vec<String> = devices.map(|device| device.namespace().address).collect();
    if addresses.is_empty() { "a closed data set".to_owned() } else { addresses.join(",") }
}

/// Use of the tiers of a data set.
fn tiers(dataset: &Dataset) -> Vec<TierUse> {
    let Some(stats) = dataset.tier_stats() else { return Vec::new() };
    let tier = |tier: TierStats| TierUse {
        name: tier.name,
        capacity_bytes: tier.capacity_bytes,
        used_bytes: tier.used_bytes,
        hit_bytes: tier.hit_bytes,
    };
    stats.tiers.into_iter().map(tier).collect()
}

fn reads(stats: &LoaderStats) -> Reads {
    Reads {
        commands: stats.read.commands,
        bytes: stats.read.bytes,
        repeated: stats.read.repeated,
        skipped: stats.skipped,
        over_window: stats.over_window,
        copied_bytes: stats.copied_bytes,
        rewritten: stats.rewritten,
    }
}

/// Facts about run and machine, from which the report derives advice.
fn facts(options: &LoaderOptions, datasets: &[Dataset], window_bytes: usize) -> Facts {
    let bytes_of = |dataset: &Dataset| -> u64 {
        let directory = dataset.directory();
        (0..directory.num_chunks()).map(|chunk| directory.chunk(chunk).len_bytes).sum()
    };
    Facts {
        data_bytes: datasets.iter().map(bytes_of).sum(),
        window_bytes: window_bytes as u64,
        is_grouped: options.order.kind.lanes_and_group().is_some(),
        queue_pairs: options.queue_pairs as u64,
        cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64),
    }
}

/// The options, by name and value in words.
fn settings(
    options: &LoaderOptions,
    datasets: &[Dataset],
    len: u64,
    window_bytes: usize,
) -> Vec<(String, String)> {
    let mib = |bytes: usize| format!("{} MiB", bytes as f64 / f64::from(1 << 20));
    let on_off = |on: bool| if on { "on" } else { "off" }.to_owned();
    let batch = match &options.budget {
        Some(budget) if options.has_rows() => {
            let rows = options.rows.first().copied().unwrap_or_default();
            format!("{rows} rows of {} tokens", budget.tokens.saturating_sub(1))
        }
        Some(budget) => format!("at most {} tokens", budget.tokens),
        None => format!("{} samples", options.batch_size),
    };
    let by_itself = "as suits order and data set".to_owned();
    let mut settings = vec![
        ("order", options.order.kind.to_string()),
        ("seed", options.order.seed.to_string()),
        ("batch", batch),
        ("epochs", format!("{:?}", options.epochs)),
        ("samples of an epoch", len.to_string()),
        ("rank", format!("{} of {}", options.rank, options.world_size)),
        ("shares", format!("{:?}", options.sharding).to_lowercase()),
        ("end of an epoch", format!("{:?}", options.tail).to_lowercase()),
        (
            "batching",
            options.batching.map_or(by_itself.clone(), |how| format!("{how:?}").to_lowercase()),
        ),
        (
            "window",
            match options.window_bytes {
                0 => format!("{by_itself}: {}", mib(window_bytes)),
                bytes => mib(bytes),
            },
        ),
        ("queue pairs", options.queue_pairs.to_string()),
        (
            "one buffer a batch",
            match options.copy_threads {
                None => "off".to_owned(),
                Some(0) => "copied by the thread that polls".to_owned(),
                Some(threads) => format!("copied by {threads} threads"),
            },
        ),
        ("busy poll", on_off(options.busy_poll)),
        ("verify kept memory", on_off(options.verify_kept)),
        ("deadline", format!("{:?}", options.deadline)),
    ];
    settings.extend(options.cpus.as_ref().map(|cpus| ("processors", format!("{cpus:?}"))));
    let devices = datasets.iter().flat_map(|dataset| dataset.image().devices());
    let mut engines: Vec<String> = devices.map(|device| device.namespace().engine).collect();
    engines.sort();
    engines.dedup();
    settings.push(("engine", engines.join(", ")));
    let cache =
        |dataset: &Dataset| dataset.image().tiers().map(|tiers| format!("{:?}", tiers.policy()));
    settings.extend(datasets.iter().filter_map(cache).map(|policy| ("policy of tiers", policy)));
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The record of a run: its timeline, and its trace if it has one.
pub(super) struct Record {
    /// The origin of all times in the record.
    began: Instant,
    pub(super) timeline: Timeline,
    trace: Option<Arc<Trace>>,
    pub(super) window_bytes: usize,
    /// Totals when the last batch was delivered: samples, their bytes, and stalls.
    samples: u64,
    bytes: u64,
    stalls: Stalls,
    /// The time of the last delivery since `began`.
    last: Duration,
}

impl Record {
    /// A record that begins at `now`, when the first batch is requested; the loader's window has
    /// `window_bytes`.
    pub(super) fn new(now: Instant, options: &LoaderOptions, window_bytes: usize) -> Record {
        let trace = options.trace.clone();
        Record {
            began: trace.as_ref().map_or(now, |trace| trace.began(now)),
            timeline: Timeline::new(),
            trace,
            window_bytes,
            samples: 0,
            bytes: 0,
            stalls: Stalls::default(),
            last: Duration::ZERO,
        }
    }

    /// Records a batch of `epoch` that was requested at `asked`. `sums` are the totals of the run including
    /// this batch; `places` is called only if the timeline is due to record the places.
    pub(super) fn delivered(
        &mut self,
        asked: Instant,
        epoch: u64,
        sums: &LoaderStats,
        places: impl FnOnce() -> PlaceBytes,
    ) {
        let at = Instant::now().saturating_duration_since(self.began);
        let asked = asked.saturating_duration_since(self.began);
        let stalls = sums.stalls.since(&self.stalls);
        let samples = sums.samples - self.samples;
        let bytes = sums.sample_bytes - self.bytes;
        (self.samples, self.bytes, self.stalls) = (sums.samples, sums.sample_bytes, sums.stalls);
        if self.timeline.is_due(at, epoch) {
            self.timeline.record_places(places());
        }
        self.timeline.batch(&Delivered { asked, at, epoch, samples, bytes, stalls });
        if let Some(trace) = &self.trace {
            // Calls of several threads may overlap, but events on one track of the trace must not.
            let begin = asked.clamp(self.last, at.max(self.last));
            let len = at.saturating_sub(begin);
            let stalls = if stalls.total() > len { stalls.scaled(len) } else { stalls };
            trace.consumer(Event {
                begin,
                len,
                kind: EventKind::Next { epoch, samples, bytes, stalls },
            });
        }
        self.last = at.max(self.last);
    }
}
