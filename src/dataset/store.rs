//! The store of a rank: an image whose loaders read their share from this rank's storage.
//!
//! The store keeps the rank's share in the storage of its node, and reads other samples from the stores of other ranks.
//! Opening a store joins those ranks. The loader stages the share (`loader/stored.rs`), since it knows where the run
//! begins.

use std::sync::Arc;

use super::peers::{Watched, chosen, hash_of, of_this_round};
use super::{Dataset, Image};
use crate::error::{Error, Result};
use crate::order::{OrderSpec, Sharding, Tail};
use crate::peers::rendezvous::Rendezvous;
use crate::peers::{Meeting, PeerOptions, Serving};
use crate::prefetch::LoaderOptions;
use crate::qpair::{ConnectOptions, Device};
use crate::reader::Watch;
use crate::store::{Meet, Owner, Reader, Store, StoreOptions, StoreStats};

impl Image {
    /// The same image, with a store of this rank. Waits until all ranks have joined. Other clones of this handle are
    /// unchanged.
    ///
    /// Loaders along the order of `run` read from the store, which exchanges samples with the other ranks' stores. The
    /// first loader stages the rank's share ([`Loader::stage`](super::Loader::stage)). Reads by id still go to the data
    /// set.
    ///
    /// `peers` is the way to join the other ranks; `None` if there are no others.
    ///
    /// # Errors
    /// `InvalidArgument`: the order gives ranks no shares, the image is read through tiers or peers, or sharding and
    /// tail of `run` would give a rank samples of another one's share. Errors of [`Store::open`].
    pub fn with_store(
        mut self,
        options: StoreOptions,
        run: &LoaderOptions,
        peers: Option<(&PeerOptions, &mut dyn Rendezvous)>,
    ) -> Result<Image> {
        self.check_store(run)?;
        let owner = Owner {
            directory: &self.directory,
            origins: &self.devices,
            order: order_of(run),
            rank: run.rank,
            epochs: run.epochs.clone(),
        };
        let order = hash_of(Some(run), self.directory.view(), Serving::CopiesOnly);
        let meet = peers.map(|(options, rendezvous)| Meet { options, rendezvous, order });
        let (store, peers) = Store::open(owner, options, meet)?;
        (self.store, self.peers) = (Some(Arc::new(store)), peers);
        Ok(self)
    }

    /// The store of this rank, if it has one.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    /// The namespaces that a loader with these options reads.
    ///
    /// # Errors
    /// `InvalidArgument`: the store keeps the share of another rank or order.
    pub(super) fn devices_of_run(&self, run: &LoaderOptions) -> Result<Vec<Arc<dyn Device>>> {
        let Some(store) = &self.store else { return Ok(self.devices.clone()) };
        if reader_of(store, run).is_none() {
            let text = "the store keeps the share of another rank, order or seed";
            return Err(Error::invalid(text, "make a store for these options"));
        }
        Ok(store.devices().to_vec())
    }

    /// Checks that a store suits the image and the run.
    fn check_store(&self, run: &LoaderOptions) -> Result<()> {
        let invalid = |text, hint| Err(Error::invalid(text, hint));
        if self.cache.is_some() || self.peers.is_some() {
            let text = "a store takes the place of tiers, and brings peers of its own";
            return invalid(text, "open the data set without tiers");
        }
        if run.sharding != Sharding::Strided {
            let text = "each rank reads its own share, which no sharding may divide anew";
            return invalid(text, "take strided shards");
        }
        let uneven = !self.directory.num_live().is_multiple_of(run.world_size.max(1).into());
        if run.tail == Tail::Pad && uneven {
            let text = "a padded epoch repeats samples of other ranks, which a store has not got";
            return invalid(text, "keep the tail, or drop it");
        }
        Ok(())
    }
}

impl Dataset {
    /// The same data set, with a store of this rank: see [`Image::with_store`]. `meeting` is `None` if there are no
    /// other ranks. `connect` and `object` are as for [`Dataset::with_peers`]: a pair, since only a meeting uses them.
    ///
    /// # Errors
    /// `Interrupted`: `watch` ended the wait. Errors of [`Image::with_store`] and [`Meeting::rendezvous`].
    pub fn with_store(
        &self,
        options: StoreOptions,
        run: &LoaderOptions,
        meeting: Option<&Meeting>,
        (connect, object): (&ConnectOptions, Option<&mut dyn Rendezvous>),
        watch: &mut dyn Watch,
    ) -> Result<Dataset> {
        // Checked before `of_this_round` counts the round: a call that is refused joins none.
        self.image().check_store(run)?;
        let image = self.image().clone();
        let Some(meeting) = meeting else {
            let image = image.with_store(options, run, None)?;
            return Ok(Dataset::from_image(image, self.0.options.clone()));
        };
        let meeting = of_this_round(meeting);
        let mut of_meeting = meeting.rendezvous(connect)?;
        let mut watched = Watched { rendezvous: chosen(&mut of_meeting, object)?, watch };
        let peers = Some((&meeting.peer_options(connect), &mut watched as &mut dyn Rendezvous));
        let image = image.with_store(options, run, peers)?;
        Ok(Dataset::from_image(image, self.0.options.clone()))
    }

    /// Counters of this rank's store so far; `None` without a store.
    pub fn store_stats(&self) -> Option<StoreStats> {
        self.image().store().map(|store| store.stats())
    }
}

/// The reader of `store` for a loader with the options `run`; `None` if the loader does not read from the
/// store.
pub(super) fn reader_of(store: &Store, run: &LoaderOptions) -> Option<Reader> {
    store.reader(&order_of(run), run.rank, run.world_size)
}

/// The order of a run: that of the state that it resumes from, or else that of its options, with its lanes set
/// ([`OrderSpec::started`]).
pub(super) fn order_of(run: &LoaderOptions) -> OrderSpec {
    match &run.resume {
        Some(state) => state.order,
        None => run.order.started(run.world_size),
    }
}
