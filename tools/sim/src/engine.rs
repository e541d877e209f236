//! The event simulation: threads that fetch, nodes that compute, and a barrier after every step.
//!
//! A node reads the samples of its *access string* in order. A staging thread claims the next access while the staging
//! buffer has room, and fetches the sample from the source that `Copies`, the policy's placement, selects; a sample
//! from the origin is then decoded and written. The node consumes the buffer strictly in order. After its share of a
//! step, the node waits for all other nodes. Meanwhile fill threads copy from the origin to tiers. The network has no
//! congestion. The origin is shared in one of two ways ([`Sharing`]):
//!
//! - by the *nodes* that read from it, as in the thesis: each thread of a node gets the node's
//!   whole share, and a transfer keeps its initial rate (transfers that begin at the same instant
//!   are counted together);
//! - by *transfers*, like a link or a throttled device: all proceed at one rate, which changes whenever a
//!   transfer begins or ends. One counter suffices for all: the bytes that a transfer would have received since the
//!   simulation began. A transfer ends when the counter has grown by the transfer's length.
//!
//! Threads of a node, numbered in this order: staging threads, fill threads tier by tier, and last the one that
//! computes. Thread t of node n is n * `threads_per_node` + t.
//!
//! Time is in nanoseconds. The simulation keeps the staged samples, the sequences of the epochs that nodes are reading,
//! and the state of `Copies` in memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use dlfs::plan::{Curve, Model, Rate, Source};
use serde::Serialize;

use crate::copies::Copies;
use crate::environment::Sharing;
use crate::schedule::Schedule;

/// The job to simulate: machines, sizes and steps.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// The machine's rates, as in the thesis's performance model.
    pub(crate) model: Model,
    /// The origin's rates if whole chunks are read.
    pub(crate) origin_chunks: Curve,
    /// The way the origin is shared.
    pub(crate) sharing: Sharing,
    /// Length of the staging buffer.
    pub(crate) staging_bytes: u64,
    /// Length of each tier.
    pub(crate) tier_bytes: Vec<u64>,
    /// Length of each sample.
    pub(crate) sizes: Vec<u32>,
    /// The samples that each node reads in each step.
    pub(crate) schedule: Schedule,
}

/// Behaviour of a policy during the training.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Excludes samples that only the origin has from prefetching.
    pub(crate) origin_on_demand: bool,
    /// The threads that overlap writes with fetches.
    pub(crate) overlap: WriteOverlap,
    /// Divides the origin's rate among all nodes, as in loading before training; otherwise among the nodes that read
    /// from it now.
    pub(crate) all_read: bool,
    /// Reads whole chunks from the origin.
    pub(crate) reads_chunks: bool,
}

/// The threads that fetch the next sample while they decode and write the last one; the others do this in sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WriteOverlap {
    /// No thread does.
    None,
    /// Staging threads do.
    Staging,
    /// Staging threads and fill threads do.
    All,
}

/// The samples of each epoch, position by position.
pub(crate) type Sequence<'a> = dyn Fn(u32) -> Vec<u32> + 'a;

/// The result of a simulation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Time from the start of loading to the end of the last step.
    pub seconds: f64,
    /// Seconds before training.
    pub load_seconds: f64,
    /// Bytes staged from own tiers.
    pub local_bytes: u64,
    /// Bytes staged from other nodes.
    pub remote_bytes: u64,
    /// Bytes staged from the origin.
    pub origin_bytes: u64,
    /// Bytes that fill threads copied from the origin to tiers during the training.
    pub filled_bytes: u64,
}

/// One simulation in progress.
pub(crate) struct Engine<'a, C> {
    job: &'a Job,
    rules: Rules,
    copies: C,
    sequence: &'a Sequence<'a>,
    /// The sequences of the epochs that some node is reading, from epoch `first_in_window` on.
    window: VecDeque<Vec<u32>>,
    first_in_window: u32,
    nodes: Vec<Node>,
    threads_per_node: usize,
    /// The task of each thread.
    tasks: Vec<Task>,
    now_ns: u64,
    /// Ends of tasks: time in nanoseconds, and the thread. Transfers that share a link are in `transfers`.
    ends: BinaryHeap<Reverse<(u64, u32)>>,
    /// Nodes with a transfer from the origin.
    reading_nodes: u32,
    /// Transfers from the origin that begin at this instant: thread, and bytes.
    beginning: Vec<(u32, u64)>,
    transfers: Transfers,
    /// The nodes that wait for each sample that a fill thread is copying.
    waiting: HashMap<u32, Vec<u32>>,
    /// Finished steps of all epochs.
    steps_done: u64,
    /// Nodes that have finished the current step.
    at_barrier: u32,
    outcome: Outcome,
}

/// The state of one node.
#[derive(Debug, Default)]
struct Node {
    /// Accesses of the whole run.
    accesses: u64,
    accesses_per_epoch: u64,
    /// Accesses until the end of the current step.
    step_end: u64,
    /// Accesses that staging threads have claimed.
    claimed: u64,
    /// Accesses whose samples the node has consumed.
    consumed: u64,
    /// Claimed samples that are not consumed yet, in order.
    staged: VecDeque<Staged>,
    staged_bytes: u64,
    /// Staging threads without work.
    idle: Vec<usize>,
    /// Fill threads without work.
    idle_fills: Vec<usize>,
    /// Set while the node consumes a sample.
    computing: bool,
    /// Transfers from the origin.
    origin_reads: u32,
}

/// A sample in the staging buffer, or on its way there.
#[derive(Debug, Clone, Copy)]
struct Staged {
    len_bytes: u32,
    /// Set when the sample is in the buffer.
    ready: bool,
}

/// The work of a thread.
#[derive(Debug, Clone, Copy, Default)]
struct Task {
    /// The access that it stages.
    index: u64,
    /// True if it reads from the origin now.
    reads_origin: bool,
    /// The time from the end of the fetch to the end of the task, in which the sample is decoded, written, and sent to
    /// another node.
    then_ns: u64,
    /// The earliest time at which the task ends: the end of a write that overlaps the fetch.
    not_before_ns: u64,
}

/// The transfers from the origin under [`Sharing::Transfers`].
#[derive(Debug, Default)]
struct Transfers {
    /// Bytes per second of each transfer.
    rate: u64,
    /// Bytes that a transfer since the start would have received, in 10^-9 bytes.
    per_transfer: u128,
    /// The values of `per_transfer` at which transfers end, each with its thread.
    ends: BinaryHeap<Reverse<(u128, u32)>>,
}

impl<'a, C: Copies> Engine<'a, C> {
    /// A simulation of `job` under `rules` with `copies`, reading `sequence` of each epoch.
    pub(crate) fn new(
        job: &'a Job,
        rules: Rules,
        copies: C,
        sequence: &'a Sequence<'a>,
    ) -> Engine<'a, C> {
        let staging = job.model.staging.threads as usize;
        let fills: usize = job.model.tiers.iter().map(|tier| tier.threads as usize).sum();
        let num_nodes = job.schedule.nodes();
        let threads_per_node = staging + fills + 1;
        let nodes = (0..num_nodes).map(|node| {
            let accesses_per_epoch = job.schedule.of_node(node);
            let accesses = accesses_per_epoch * u64::from(job.schedule.epochs);
            Node {
                accesses,
                accesses_per_epoch,
                idle: (0..staging).rev().collect(),
                ..Node::default()
            }
        });
        Engine {
            job,
            rules,
            copies,
            sequence,
            window: VecDeque::new(),
            first_in_window: 0,
            nodes: nodes.collect(),
            threads_per_node,
            tasks: vec![Task::default(); threads_per_node * num_nodes as usize],
            now_ns: 0,
            ends: BinaryHeap::new(),
            reading_nodes: 0,
            beginning: Vec::new(),
            transfers: Transfers::default(),
            waiting: HashMap::new(),
            steps_done: 0,
            at_barrier: 0,
            outcome: Outcome::default(),
        }
    }

    /// Runs until the last step is finished; training starts `load_ns` after the start.
    pub(crate) fn run(mut self, load_ns: u64) -> Outcome {
        self.now_ns = load_ns;
        for node in 0..self.nodes.len() {
            for t in self.fill_threads() {
                self.fill(node, t);
            }
        }
        self.begin_step();
        while self.steps_done < self.all_steps() {
            let thread =
                self.next_event().expect("a node that lacks a sample waits for a transfer");
            let node = thread / self.threads_per_node;
            let t = thread % self.threads_per_node;
            if t + 1 == self.threads_per_node {
                self.on_computed(node);
            } else if self.fill_threads().contains(&t) {
                self.on_filled(node, t);
            } else {
                self.on_staged(node, t);
            }
        }
        let load_seconds = load_ns as f64 * 1e-9;
        let seconds = self.now_ns as f64 * 1e-9;
        Outcome { load_seconds, seconds, ..self.outcome }
    }

    /// Advances to the next event; returns its thread.
    fn next_event(&mut self) -> Option<usize> {
        self.begin_transfers();
        let other = self.ends.peek().map(|&Reverse((time, _))| time);
        let transfer = self.transfers.next_end_ns().map(|ns| self.now_ns.saturating_add(ns));
        let is_transfer = transfer.is_some_and(|end| other.is_none_or(|other| end <= other));
        let time = if is_transfer { transfer } else { other }?;
        self.transfers.per_transfer +=
            u128::from(self.transfers.rate) * u128::from(time - self.now_ns);
        self.now_ns = time;
        let thread =
            if is_transfer { self.transfers.ends.pop()?.0.1 } else { self.ends.pop()?.0.1 };
        Some(thread as usize)
    }

    /// Starts the transfers of `beginning`, and determines the rate if transfers share it.
    fn begin_transfers(&mut self) {
        match self.job.sharing {
            Sharing::Nodes => {
                let rate = self.origin_rate();
                for (thread, len_bytes) in self.beginning.drain(..) {
                    let end = self.now_ns.saturating_add(rate.time_ns(len_bytes));
                    self.ends.push(Reverse((end, thread)));
                }
            }
            Sharing::Transfers => {
                for (thread, len_bytes) in self.beginning.drain(..) {
                    let end = self.transfers.per_transfer + u128::from(len_bytes) * 1_000_000_000;
                    self.transfers.ends.push(Reverse((end, thread)));
                }
                let all = self.origin_rate().0 * u64::from(self.reading_nodes.max(1));
                self.transfers.rate = (all / self.transfers.ends.len().max(1) as u64).max(1);
            }
        }
    }

    /// The rate at which a node gets bytes from the origin, given the nodes that share it by [`Rules::all_read`].
    fn origin_rate(&self) -> Rate {
        let reading = self.reading_nodes.max(1);
        let readers = if self.rules.all_read { self.nodes.len() as u32 } else { reading };
        let model = &self.job.model;
        if self.rules.reads_chunks {
            model.origin_link.min(self.job.origin_chunks.at(readers).shared_by(readers))
        } else {
            model.origin_rate(readers)
        }
    }

    /// Begins the next step, when all nodes are at the barrier. Nodes without a share of the step stay there.
    fn begin_step(&mut self) {
        self.at_barrier = 0;
        let step = self.steps_done % self.job.schedule.steps();
        let epoch = (self.steps_done / self.job.schedule.steps()) as u32;
        while self.first_in_window < epoch {
            self.window.pop_front();
            self.first_in_window += 1;
        }
        for node in 0..self.nodes.len() {
            let (_, count) = self.job.schedule.part(step, node as u32);
            self.nodes[node].step_end += count;
            self.at_barrier += u32::from(count == 0);
        }
        for node in 0..self.nodes.len() {
            self.stage(node);
            self.compute(node);
        }
    }

    /// Lets the idle threads of `node` claim the next accesses.
    fn stage(&mut self, node: usize) {
        while let Some(&t) = self.nodes[node].idle.last() {
            let state = &self.nodes[node];
            if state.claimed == state.accesses {
                return;
            }
            let index = state.claimed;
            let sample = self.sample(node, state.claimed);
            let len_bytes = self.job.sizes[sample as usize];
            let state = &self.nodes[node];
            let room = self.job.staging_bytes.saturating_sub(state.staged_bytes);
            if u64::from(len_bytes) > room && !state.staged.is_empty() {
                return;
            }
            if self.copies.is_being_copied(node as u32, sample) {
                let waiting = self.waiting.entry(sample).or_default();
                if !waiting.contains(&(node as u32)) {
                    waiting.push(node as u32);
                }
                return;
            }
            let source = self.copies.source(&self.job.model, node as u32, sample);
            let wanted = index == state.consumed && !state.computing && index < state.step_end;
            if source == Source::Origin && self.rules.origin_on_demand && !wanted {
                return;
            }
            let is_relayed = self.copies.is_relayed(node as u32, sample);
            let more_to_fill = self.copies.on_claim(node as u32, sample, len_bytes);
            let state = &mut self.nodes[node];
            state.idle.pop();
            state.claimed += 1;
            state.staged.push_back(Staged { len_bytes, ready: false });
            state.staged_bytes += u64::from(len_bytes);
            self.read(node, t, index, source, is_relayed);
            if let Some(holder) = more_to_fill {
                for t in std::mem::take(&mut self.nodes[holder as usize].idle_fills) {
                    self.fill(holder as usize, t);
                }
            }
        }
    }

    /// Lets a thread stage the sample that was claimed last. Samples in tiers are already decoded. A relayed sample,
    /// which another node reads from the origin for this one, also crosses the network.
    fn read(&mut self, node: usize, t: usize, index: u64, source: Source, is_relayed: bool) {
        let staged = self.nodes[node].staged.back().expect("it was just claimed");
        let len = u64::from(staged.len_bytes);
        match source {
            Source::Origin => {
                self.outcome.origin_bytes += len;
                let write_ns = self.job.model.write_ns(len);
                let (hidden_ns, then_ns) = self.write_times(WriteOverlap::Staging, write_ns);
                let network_ns = if is_relayed { self.job.model.network.time_ns(len) } else { 0 };
                let times = (hidden_ns, then_ns.saturating_add(network_ns));
                self.read_origin(node, t, index, len, times);
                return;
            }
            Source::Local(_) => self.outcome.local_bytes += len,
            Source::Remote(_) => self.outcome.remote_bytes += len,
        }
        let end = self.now_ns.saturating_add(self.job.model.fetch_ns(source, len));
        self.begin(node, t, end, Task { index, ..Task::default() });
    }

    /// Lets a thread fetch from the origin. The task takes the time of the fetch and then `then_ns`, and at least
    /// `hidden_ns`, the time of a write that overlaps the fetch.
    fn read_origin(
        &mut self,
        node: usize,
        t: usize,
        index: u64,
        len_bytes: u64,
        (hidden_ns, then_ns): (u64, u64),
    ) {
        self.nodes[node].origin_reads += 1;
        self.reading_nodes += u32::from(self.nodes[node].origin_reads == 1);
        let thread = node * self.threads_per_node + t;
        let not_before_ns = self.now_ns.saturating_add(hidden_ns);
        self.tasks[thread] = Task { index, reads_origin: true, then_ns, not_before_ns };
        self.beginning.push((thread as u32, len_bytes));
    }

    /// Gives a thread a task that ends at `end`.
    fn begin(&mut self, node: usize, t: usize, end: u64, task: Task) {
        let thread = node * self.threads_per_node + t;
        self.tasks[thread] = task;
        self.ends.push(Reverse((end, thread as u32)));
    }

    /// Ends a thread's fetch or write. After the fetch the thread starts to write, unless that takes no time; after the
    /// write its task ends and is returned.
    fn end(&mut self, node: usize, t: usize) -> Option<Task> {
        let task = self.tasks[node * self.threads_per_node + t];
        if !task.reads_origin {
            return Some(task);
        }
        self.nodes[node].origin_reads -= 1;
        self.reading_nodes -= u32::from(self.nodes[node].origin_reads == 0);
        let end = self.now_ns.saturating_add(task.then_ns).max(task.not_before_ns);
        let written = Task { index: task.index, ..Task::default() };
        if end == self.now_ns {
            return Some(written);
        }
        self.begin(node, t, end, written);
        None
    }

    /// A staging thread has fetched its sample, or written it.
    fn on_staged(&mut self, node: usize, t: usize) {
        let Some(task) = self.end(node, t) else { return };
        let state = &mut self.nodes[node];
        state.staged[(task.index - state.consumed) as usize].ready = true;
        state.idle.push(t);
        self.stage(node);
        self.compute(node);
    }

    /// Starts to consume the next sample, if it is staged and belongs to the step.
    fn compute(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        if state.computing || state.consumed == state.step_end {
            return;
        }
        if let Some(front) = state.staged.front().filter(|front| front.ready) {
            state.computing = true;
            let compute_ns = self.job.model.compute.time_ns(u64::from(front.len_bytes));
            let end = self.now_ns.saturating_add(compute_ns);
            let thread = (node + 1) * self.threads_per_node - 1;
            self.ends.push(Reverse((end, thread as u32)));
        }
    }

    /// A node has consumed a sample. The last one of a step ends the step.
    fn on_computed(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        let gone = state.staged.pop_front().expect("a node computes what is staged");
        state.computing = false;
        state.staged_bytes -= u64::from(gone.len_bytes);
        state.consumed += 1;
        if state.consumed == state.step_end {
            self.at_barrier += 1;
        }
        while self.at_barrier as usize == self.nodes.len() {
            self.steps_done += 1;
            if self.steps_done == self.all_steps() {
                return;
            }
            self.begin_step();
        }
        self.stage(node);
        self.compute(node);
    }

    /// Lets a fill thread copy the next missing sample of its tier, or go idle.
    fn fill(&mut self, node: usize, t: usize) {
        let (tier, nth) = self.tier_of(t);
        let Some(sample) = self.copies.next_fill(node as u32, tier, nth) else {
            self.nodes[node].idle_fills.push(t);
            return;
        };
        let len = u64::from(self.job.sizes[sample as usize]);
        self.outcome.filled_bytes += len;
        let model = &self.job.model;
        let rate = model.preprocess.min(model.tiers[tier].write_of_thread());
        let times = self.write_times(WriteOverlap::All, rate.time_ns(len));
        self.read_origin(node, t, 0, len, times);
    }

    /// A fill thread has fetched its sample, or written it to its tier.
    fn on_filled(&mut self, node: usize, t: usize) {
        if self.end(node, t).is_none() {
            return;
        }
        let (tier, nth) = self.tier_of(t);
        let filled = self.copies.filled(node as u32, tier, nth);
        self.fill(node, t);
        // A thread that waited to read the sample from the origin may now find it in the tier.
        self.stage(node);
        let waiting = filled.and_then(|sample| self.waiting.remove(&sample));
        for other in waiting.into_iter().flatten().filter(|&other| other as usize != node) {
            self.stage(other as usize);
        }
    }

    /// Splits the time of a write into the time that overlaps the fetch, and the time after the fetch; one of them is
    /// 0. The write overlaps if [`Rules::overlap`] is at least `least`.
    fn write_times(&self, least: WriteOverlap, write_ns: u64) -> (u64, u64) {
        if self.rules.overlap >= least { (write_ns, 0) } else { (0, write_ns) }
    }

    fn fill_threads(&self) -> std::ops::Range<usize> {
        self.job.model.staging.threads as usize..self.threads_per_node - 1
    }

    /// The tier of a fill thread, and its number in that tier.
    fn tier_of(&self, t: usize) -> (usize, usize) {
        let mut nth = t - self.job.model.staging.threads as usize;
        for (tier, stage) in self.job.model.tiers.iter().enumerate() {
            match nth.checked_sub(stage.threads as usize) {
                Some(rest) => nth = rest,
                None => return (tier, nth),
            }
        }
        unreachable!("fill threads are counted from the tiers")
    }

    /// The sample at `index` of the access string of `node`.
    fn sample(&mut self, node: usize, index: u64) -> u32 {
        let per_epoch = self.nodes[node].accesses_per_epoch;
        let epoch = (index / per_epoch) as u32;
        let nth = index % per_epoch;
        while self.first_in_window + self.window.len() as u32 <= epoch {
            let next = self.first_in_window + self.window.len() as u32;
            self.window.push_back((self.sequence)(next));
        }
        let sequence = &self.window[(epoch - self.first_in_window) as usize];
        sequence[self.job.schedule.position(node as u32, nth) as usize]
    }

    fn all_steps(&self) -> u64 {
        self.job.schedule.steps() * u64::from(self.job.schedule.epochs)
    }
}

impl Transfers {
    /// The time until the next transfer ends.
    fn next_end_ns(&self) -> Option<u64> {
        let Reverse((end, _)) = self.ends.peek()?;
        let ns = end.saturating_sub(self.per_transfer).div_ceil(u128::from(self.rate));
        Some(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}
