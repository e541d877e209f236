//! Reads an image through the caches of the job's other nodes.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, ErrorKind, Result};
use crate::order::Sharding;
use crate::peers::rendezvous::Rendezvous;
use crate::peers::{PeerOptions, Peers, Served};
use crate::prefetch::LoaderOptions;
use crate::tier::PAGE_BYTES;

use super::Image;

impl Image {
    /// The same image, read through the caches of all nodes of a round: each serves its tiers to the others.
    /// Waits until all ranks have joined. Other clones of this handle are unchanged.
    ///
    /// `run` are the options by which this rank will read: ranks that differ in more than their number are
    /// refused. With local shares, no node holds much more than its ranks read
    /// ([`PeerOptions::keep_shares`]).
    ///
    /// # Errors
    /// `InvalidArgument`: the image has no tiers, so that there is nothing to serve. Those of
    /// [`Peers::join`].
    pub fn with_peers(
        mut self,
        options: &PeerOptions,
        run: &LoaderOptions,
        rendezvous: &mut dyn Rendezvous,
    ) -> Result<Image> {
        let Some(cache) = self.tiers() else {
            let text = "peers serve each other what their tiers hold, and there is no tier";
            return Err(Error::new(ErrorKind::InvalidArgument, text).hint("add --tier ram:SIZE"));
        };
        let pages: u64 = cache.capacities().iter().sum();
        let served = Served {
            directory: &self.directory,
            cache: cache.devices(),
            room_bytes: pages * PAGE_BYTES,
            order: hash_of(run),
        };
        let keep_shares = options.keep_shares || run.sharding == Sharding::Local;
        let options = PeerOptions { keep_shares, ..options.clone() };
        let peers = Peers::join(&served, &options, rendezvous)?;
        self.devices = peers.devices().to_vec();
        self.peers = Some(Arc::new(peers));
        Ok(self)
    }

    /// `options` with the place of ranks and chunks, if they say local shares.
    ///
    /// # Errors
    /// `InvalidArgument`: the image has no peers, so that no node is known to hold anything.
    pub(super) fn located(&self, options: LoaderOptions) -> Result<LoaderOptions> {
        if options.sharding != Sharding::Local || options.locality.is_some() {
            return Ok(options);
        }
        let Some(peers) = self.peers() else {
            let text = "local shares go to the nodes that hold the samples, and this data set is read \
                        without peers";
            let hint = "name the job's peers, or take strided shares";
            return Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint));
        };
        Ok(LoaderOptions { locality: Some(Arc::new(peers.locality())), ..options })
    }

    /// The other nodes of the job, if the image is read through their caches.
    pub fn peers(&self) -> Option<&Peers> {
        self.peers.as_deref()
    }
}

/// A hash of what the ranks of a job must have in common.
fn hash_of(run: &LoaderOptions) -> u64 {
    let LoaderOptions { order, batch_size, sharding, tail, drop_short, .. } = run;
    let common = (order.started(run.world_size), batch_size, sharding, tail, drop_short);
    let json = serde_json::to_vec(&common).expect("numbers and names always become JSON");
    xxh3_64(&json)
}
