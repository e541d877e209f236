//! Devices for the namespaces of the data set, with tiers in front of them.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::opening::Tiers;
use super::pair::{Requester, TieredPair};
use dlfs_base::error::Result;
use dlfs_io::qpair::session::Failure;
use dlfs_io::qpair::{Capabilities, Device, Namespace, PairScope, QueuePair};
use dlfs_order::tier::PAGE_BYTES;

/// One device for each origin. With `views`, the devices are for other nodes, and have these NGUIDs, in the order of
/// the origins; if the `bool` is set, they serve only copies and never read the origin.
pub(super) fn devices(
    tiers: &Arc<Tiers>,
    views: Option<(bool, &[[u8; 16]])>,
) -> Vec<Arc<dyn Device>> {
    let device = |number: u16| -> Arc<dyn Device> {
        let view = views.map(|(copies_only, nguids)| View {
            nguid: nguids[usize::from(number)],
            copies_only,
            count: Mutex::default(),
        });
        Arc::new(TieredDevice { tiers: Arc::clone(tiers), number, view })
    };
    (0..tiers.opening.origins.len() as u16).map(device).collect()
}

/// A namespace of the data set, with the tiers in front of it.
struct TieredDevice {
    tiers: Arc<Tiers>,
    /// Index of the namespace in the data set.
    number: u16,
    /// Set if other nodes read this device.
    view: Option<View>,
}

/// The properties of a device that other nodes read: another identity, and thin provisioning.
struct View {
    nguid: [u8; 16],
    /// See [`Requester::Peer`].
    copies_only: bool,
    count: Mutex<CopyCount>,
}

/// The last count of the namespace's bytes that have copies.
#[derive(Default)]
struct CopyCount {
    bytes: u64,
    /// Time of the next count: a count visits all units, so it is limited to a hundredth of the time.
    again_at: Option<Instant>,
}

impl TieredDevice {
    fn origin(&self) -> &Arc<dyn Device> {
        &self.tiers.opening.origins[usize::from(self.number)]
    }

    /// The origin's namespace with blocks of one page, so that a block is always a whole page of a
    /// copy.
    fn describe(&self, origin: Namespace) -> Namespace {
        let shared = self.tiers.latest();
        let tiers = shared.media.iter().map(|media| media.device.namespace());
        let most = tiers.map(|tier| tier.max_transfer_bytes).min().unwrap_or(MIN_OF_TIERS);
        Namespace {
            num_blocks: origin.len_bytes() / PAGE_BYTES,
            block_len_bytes: PAGE_BYTES as u32,
            max_transfer_bytes: origin.max_transfer_bytes.min(most),
            read_only: true,
            engine: format!("tiers over {}", origin.engine),
            nguid: self.view.as_ref().map_or(origin.nguid, |view| view.nguid),
            ..origin
        }
    }

    /// Bytes of the namespace that have copies, as of the last count.
    fn held_bytes(&self, count: &Mutex<CopyCount>) -> u64 {
        let mut count = count.lock();
        let now = Instant::now();
        if count.again_at.is_none_or(|at| now >= at) {
            let shared = self.tiers.latest();
            let there = |unit| u64::from(shared.copies.there(unit).len());
            let pages: u64 = shared.units.of_namespace(self.number).map(there).sum();
            count.bytes = pages * PAGE_BYTES;
            count.again_at = Some(Instant::now() + 100 * now.elapsed());
        }
        count.bytes
    }
}

impl Device for TieredDevice {
    fn last_failure(&self) -> Option<Failure> {
        self.origin().last_failure()
    }

    fn reads_parts(&self) -> bool {
        self.origin().reads_parts()
    }

    fn namespace(&self) -> Namespace {
        self.describe(self.origin().namespace())
    }

    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        let shared = self.tiers.latest();
        let origin = self.origin().queue_pair_in(scope)?;
        let namespace = self.describe(origin.namespace().clone());
        let requester = match &self.view {
            None => Requester::Own,
            Some(view) => Requester::Peer { copies_only: view.copies_only },
        };
        let over = (origin, namespace);
        Ok(Box::new(TieredPair::open(shared, self.number, over, requester, scope)?))
    }

    fn capabilities(&self) -> Capabilities {
        let origin = self.origin().capabilities();
        let shared = self.tiers.latest();
        let tiers = shared.media.iter().map(|media| media.device.capabilities().max_queue_pairs);
        Capabilities {
            max_queue_pairs: tiers.fold(origin.max_queue_pairs, usize::min),
            can_grow: false,
            is_exclusive: false,
            late_writes: origin.late_writes,
            checks_writes: origin.checks_writes,
            // Copies are made of units, not of samples: loaders should read whole chunks, as without a page cache.
            is_page_cached: false,
            local_path: origin.local_path.filter(|_| self.view.is_none()),
            allocated_bytes: self.view.as_ref().map(|view| self.held_bytes(&view.count)),
        }
    }
}

/// The largest transfer that every kind of tier supports, for a process that has no tier yet.
const MIN_OF_TIERS: u32 = 1 << 20;
