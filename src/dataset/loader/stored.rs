//! A loader's use of the store of its rank: it stages the share, and tells the store the run's progress.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Loader;
use crate::dataset::store::reader_of;
use crate::error::{Error, Result};
use crate::order::State;
use crate::prefetch::LoaderOptions;
use crate::reader::Watch;
use crate::store::{Reader, Staged, Store, StoreStats, Ticket};
use crate::units::Epoch;

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

    /// Stages the share of `epoch` for a run that has taken `taken` samples of it, and keeps the ticket.
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

    /// Tells the store that the run has taken `taken` samples of `epoch`. A run without a ticket has read nothing
    /// that the store could wait for.
    fn delivered(&self, epoch: Epoch, taken: u64) {
        let ticket = *self.ticket.lock();
        if let (Some(store), Some(ticket)) = (self.store.upgrade(), ticket) {
            store.delivered(self.reader, ticket, epoch, taken);
        }
    }

    /// Checks that this run is still the store's current run of its reader.
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

    /// Checks that no later run has taken this run's place as a reader of the store.
    pub(super) fn check_reader(&self) -> Result<()> {
        self.store.as_ref().map_or(Ok(()), Stored::check)
    }

    /// Notes that the run moves to `state`. If that is the start of the next epoch, and no batch is left in the current
    /// one, tells the store that the current epoch has ended: a reader without samples in it gets no batch that would
    /// tell.
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
