//! A run that is being read: by a prefetcher of this process, or by the loader of its node.
//!
//! If its rank has a store, the loader stages the share first, and reports the store's progress and errors.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::Loader;
use crate::dataset::peers::reader_of;
use crate::dataset::sampler::Over;
use crate::error::{Error, Result};
use crate::order::State;
use crate::prefetch::{
    Course, LoaderOptions, LoaderStats, NextBatch, NodeClient, Origin, Prefetcher, Window, reading,
};
use crate::reader::{Batch, Watch};
use crate::store::{Reader, Staged, Store, StoreStats, Ticket};
use crate::tokens::Layout;
use crate::units::{Epoch, SampleId};

/// The reader of a run.
pub(super) enum Reading {
    Alone(Box<Prefetcher>),
    Node(Box<NodeClient>),
}

impl Reading {
    /// Begins to read from `state`.
    pub(super) fn start(
        over: Over,
        options: LoaderOptions,
        state: State,
        window: Option<Arc<Window>>,
    ) -> Result<Reading> {
        let Some(place) = options.node.clone() else {
            let options = LoaderOptions { resume: Some(state), ..options };
            return Ok(Reading::Alone(Box::new(over.prefetcher_in(options, window)?)));
        };
        let mixture = over.mix.clone();
        let options = LoaderOptions { mixture, ..options };
        let directory = Arc::clone(over.directory());
        let len = over.len(&options);
        let reading = reading(&place, &options, state.clone());
        let origin = Origin {
            window: {
                let over = over.clone();
                let options = reading.clone();
                Arc::new(move || Prefetcher::window(over.directory(), &over.devices(), &options))
            },
            open: Arc::new(move |state, window| {
                let options = LoaderOptions { resume: Some(state), ..reading.clone() };
                over.prefetcher_in(options, Some(window))
            }),
        };
        let client = NodeClient::start(origin, (options, place), (directory, len), state)?;
        Ok(Reading::Node(Box::new(client)))
    }

    /// Goes on from `state`, with the same memory; `len` is the number of positions of an epoch.
    pub(super) fn restart(self, state: State, len: u64) -> Result<Reading> {
        match self {
            Reading::Alone(alone) => Ok(Reading::Alone(Box::new(alone.restart(state)?))),
            Reading::Node(node) => Ok(Reading::Node(Box::new(node.restart(state, len)?))),
        }
    }

    pub(super) fn next_within(&mut self, batch: &mut Batch, limit: Duration) -> Result<NextBatch> {
        match self {
            Reading::Alone(alone) => alone.next_within(batch, limit),
            Reading::Node(node) => node.next_within(batch, limit),
        }
    }

    /// The consumer's course, with the counters of deliveries and stalls. Takes no lock.
    pub(super) fn course(&self) -> &Course {
        match self {
            Reading::Alone(alone) => &alone.course,
            Reading::Node(node) => &node.course,
        }
    }

    /// Replaces `layout` by that of the batch that was just delivered, if batches are rows of tokens.
    pub(super) fn take_layout(&mut self, layout: &mut Layout) {
        match self {
            Reading::Alone(alone) => {
                if let Some(layouts) = &alone.options.layouts
                    && let Some(of_batch) = layouts.take()
                {
                    layouts.recycle(std::mem::replace(layout, of_batch));
                }
            }
            Reading::Node(node) => std::mem::swap(&mut node.layout, layout),
        }
    }

    pub(super) fn stats(&self) -> LoaderStats {
        match self {
            Reading::Alone(alone) => alone.stats(),
            Reading::Node(node) => node.stats(),
        }
    }

    /// The counters of a run that is moved. The owner of a node's loader goes on, and keeps those of its reads.
    pub(super) fn moved(&self) -> LoaderStats {
        match self {
            Reading::Alone(alone) => alone.stats().ended(),
            Reading::Node(node) => node.course.stats,
        }
    }

    pub(super) fn window_bytes(&self) -> usize {
        match self {
            Reading::Alone(alone) => alone.window_bytes(),
            Reading::Node(node) => node.window_bytes(),
        }
    }

    /// Always `false` for a node: the window is not of this process.
    pub(super) fn is_resident(&self, id: SampleId) -> bool {
        matches!(self, Reading::Alone(alone) if alone.is_resident(id))
    }

    /// The error of a wait of `limit`, if other ranks of the node caused it.
    pub(super) fn why_late(&mut self, limit: Duration) -> Option<Error> {
        match self {
            Reading::Alone(_) => None,
            Reading::Node(node) => node.why_late(limit),
        }
    }
}

/// A loader's registration as a reader of the store, while the data set is open.
#[derive(Clone)]
pub(super) struct Stored {
    store: Weak<Store>,
    reader: Reader,
    /// The proof that the run of this process has begun in the store; `None` before.
    ticket: Arc<Mutex<Option<Ticket>>>,
}

impl Stored {
    /// `None`: `run` is not a run of this store's rank along its order.
    pub(super) fn new(store: &Arc<Store>, run: &LoaderOptions) -> Option<Stored> {
        let reader = reader_of(store, run)?;
        Some(Stored { store: Arc::downgrade(store), reader, ticket: Arc::default() })
    }

    /// Counters of the store, if the store belongs to this process.
    pub(super) fn own_stats(&self) -> Option<StoreStats> {
        self.store.upgrade().filter(|store| store.is_home()).map(|store| store.stats())
    }

    pub(super) fn stats(&self) -> Option<StoreStats> {
        self.store.upgrade().map(|store| store.stats())
    }

    fn begin(
        &self,
        epoch: Epoch,
        taken: u64,
        goes_on: &mut dyn FnMut(Staged) -> bool,
    ) -> Result<()> {
        let Some(store) = self.store.upgrade() else { return Ok(()) };
        let ticket = store.begin(self.reader, epoch, taken, goes_on)?;
        *self.ticket.lock() = Some(ticket);
        Ok(())
    }

    /// Reports progress. A run without a ticket has read nothing that the store could wait for.
    fn delivered(&self, epoch: Epoch, taken: u64) {
        let ticket = *self.ticket.lock();
        if let (Some(store), Some(ticket)) = (self.store.upgrade(), ticket) {
            store.delivered(self.reader, ticket, epoch, taken);
        }
    }

    fn check(&self) -> Result<()> {
        let ticket = *self.ticket.lock();
        match (self.store.upgrade(), ticket) {
            (Some(store), Some(ticket)) => store.check_place(self.reader, ticket),
            _ => Ok(()),
        }
    }
}

impl Loader {
    /// Stages this rank's share of the current epoch into its store, on the calling thread; otherwise the
    /// first batch does. Reports progress to `staged`, which returns whether to continue. Returns at once
    /// without a store, or if the share is staged. A forked child asks the process that owns the store to
    /// stage it, and returns.
    ///
    /// # Errors
    /// `Interrupted`: `watch` or `staged` ended the call; call it again. Errors of [`Store::begin`].
    pub fn stage(
        &self,
        watch: &mut dyn Watch,
        mut staged: impl FnMut(Staged) -> bool,
    ) -> Result<()> {
        let state = self.state();
        let Some(stored) = self.stored_at(&state) else { return Ok(()) };
        stored.begin(state.epoch, self.taken(&state), &mut |now| staged(now) && watch.goes_on())
    }

    /// Returns a closure that stages the share for a run that begins at `state`. If the store has advanced to
    /// that epoch by itself, the share is already there.
    pub(super) fn begin_in_store(
        &self,
        state: &State,
    ) -> impl FnOnce() -> Result<()> + Send + use<> {
        let stored = self.stored_at(state).cloned();
        let epoch = state.epoch;
        let taken = self.taken(state);
        move || match stored {
            Some(stored) => stored.begin(epoch, taken, &mut |_| true),
            None => Ok(()),
        }
    }

    /// Tells the store the run's progress, so that it may exchange consumed samples.
    pub(super) fn tell_store(&self, state: &State) {
        let Some(stored) = &self.store else { return };
        match self.share.batches_after(state) {
            0 => stored.delivered(Epoch(state.epoch.0.saturating_add(1)), 0),
            _ => stored.delivered(state.epoch, self.taken(state)),
        }
    }

    /// Checks that this run still owns its reader's place in the store.
    pub(super) fn check_place(&self) -> Result<()> {
        self.store.as_ref().map_or(Ok(()), Stored::check)
    }

    /// Notes that the run moves to `state`. If that is the next epoch, the current epoch has ended: a reader
    /// without samples in it gets no batch that would report the end.
    pub(super) fn pass_over(&self, state: &State) {
        let is_next = state.consumed == 0 && state.epoch.0 == self.epoch() + 1;
        if self.store.is_some() && is_next && self.batches_left() == 0 {
            self.tell_store(state);
        }
    }

    /// Samples staged so far.
    pub(super) fn staged(&self) -> u64 {
        let store = self.store.as_ref().and_then(|stored| stored.store.upgrade());
        store.map_or(0, |store| store.staged())
    }

    /// The store's error, if the run ended because the store cannot deliver.
    pub(super) fn failure_of_store(&self) -> Option<Error> {
        self.store.as_ref()?.store.upgrade()?.failure()
    }

    /// The store, unless the run is at its end.
    fn stored_at(&self, state: &State) -> Option<&Stored> {
        let is_end = state.epoch.0 >= self.options.epochs.end;
        self.store.as_ref().filter(|_| !is_end)
    }

    /// The samples that the rank has taken in the state's epoch.
    fn taken(&self, state: &State) -> u64 {
        let ranks = self.options.order.kind.world_size().unwrap_or(self.options.world_size);
        state.consumed / u64::from(ranks.max(1))
    }
}
