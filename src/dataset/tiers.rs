//! Tiers in front of an image, and the plan of the copies that they keep for a training run.

use std::sync::Arc;

use super::Image;
use super::store::order_of;
use crate::cache::{Cache, Identity, TierOptions, TierPlan, TierRooms};
use crate::directory::{Directory, Intact};
use crate::error::{Error, ErrorKind, Result};
use crate::peers::{Peers, PlanMap, Serving};
use crate::plan::{Accesses, ByPortion, HolderMap, Source, TrainingRun};
use crate::prefetch::LoaderOptions;
use crate::tier::{Policy, Units};
use crate::units::SampleId;

impl Image {
    /// The same image, read through the tiers of `options`. Other clones of this handle are unchanged.
    ///
    /// # Errors
    /// Errors of [`Cache::new`].
    pub fn with_tiers(mut self, options: &TierOptions) -> Result<Image> {
        if options.is_active() {
            let identity =
                Identity { uuid: self.whole.uuid(), generation: self.whole.generation() };
            let units = match options.policy {
                Policy::Clairvoyant => Units::of(&self.whole).with_portions(&self.whole),
                Policy::FirstTouch | Policy::None => Units::of(&self.whole),
            };
            let cache = Cache::new(&self.devices, units, identity, options)?;
            self.devices = cache.devices().to_vec();
            self.cache = Some(Arc::new(cache));
        }
        Ok(self)
    }

    /// The tiers, if the image is read through tiers.
    pub fn tiers(&self) -> Option<&Cache> {
        self.cache.as_deref()
    }

    /// Makes the tiers verify samples against the directory's checksums before they keep them: for a process
    /// that has no peers itself, but whose copies other nodes rely on.
    pub fn check_copies(&self) {
        let intact = Arc::new(Intact::new(Arc::clone(&self.whole)));
        self.tiers().into_iter().for_each(|cache| cache.set_checked(&intact));
    }

    /// Sets the number of reading ranks for tiers and peers.
    pub(super) fn expect_ranks(&self, ranks: u32) {
        self.tiers().into_iter().for_each(|cache| cache.set_processes(ranks));
        self.avoid_slow_peers(ranks);
    }

    /// Plans the tiers for the run of `options`, if their policy is clairvoyant.
    pub(super) fn plan_tiers(&self, options: &LoaderOptions) -> Result<()> {
        self.expect_ranks(options.world_size);
        let plans = |cache: &&Cache| cache.policy() == Policy::Clairvoyant;
        let Some(cache) = self.tiers().filter(plans) else {
            return Ok(());
        };
        if options.weights.is_some() {
            let text = "plans of tiers count how often an order reads each sample, and a weighted order is not planned";
            let hint = "open the data set with the policy first-touch";
            return Err(Error::new(ErrorKind::Unsupported, text).hint(hint));
        }
        if options.budget.is_some() && options.world_size > 1 {
            let text = "plans of tiers count what each rank reads, and batches by a budget are not planned";
            let hint = "open the data set with the policy first-touch";
            return Err(Error::new(ErrorKind::Unsupported, text).hint(hint));
        }
        let run = run_of(&self.directory, options)?;
        let units = cache.units();
        let portion_of = units.by_sample(&self.directory);
        let by_portion = ByPortion::new(&run, &portion_of);
        cache.set_plan(&TierPlan::of(&by_portion, options.rank, units, &cache.rooms()))?;
        if let Some(peers) = self.peers().filter(|peers| peers.serving() == Serving::Planned) {
            plan_peers(cache, peers, &by_portion);
        }
        Ok(())
    }
}

/// Plans the tiers of all nodes, and for each portion the node from which this one reads it, if any.
///
/// Loaders of worker processes divide a rank further: such a rank modulo the ranks of the round is the rank
/// of the process that joined. A run with other ranks, for example one that every rank reads alone, leaves
/// the plan as it is.
fn plan_peers(cache: &Cache, peers: &Peers, by_portion: &impl Accesses) {
    let round = peers.round();
    let (_, ranks) = peers.place();
    let run_ranks = by_portion.num_ranks();
    if !run_ranks.is_multiple_of(ranks) {
        return;
    }
    let units = cache.units();
    let mut others = HolderMap::empty(units.num_portions().into());
    let mut local_tiers = Vec::new();
    for (index, node) in (0_u16..).zip(round.nodes()) {
        let of_node = (0..run_ranks).filter(|rank| round.node_of(rank % ranks) == index);
        let rooms = TierRooms { pages: node.room_pages.clone(), keep_parts: true };
        let plans: Vec<TierPlan> =
            of_node.map(|rank| TierPlan::of(by_portion, rank, units, &rooms)).collect();
        let plan = TierPlan::merge(&plans.iter().collect::<Vec<_>>(), units, &rooms);
        if index == peers.own_node() {
            local_tiers = plan.tier_of_portions();
        } else {
            plan.copies_in_order(units, |copy| others.add(index.into(), &copy));
        }
    }
    let node = |portion: u32| {
        let Some(other) = others.holder(SampleId(portion.into())) else { return PlanMap::NOBODY };
        match cache.source(local_tiers[portion as usize], Some(other.tier), run_ranks) {
            Source::Remote(_) => other.rank as u16,
            Source::Local(_) | Source::Origin => PlanMap::NOBODY,
        }
    };
    let nodes = (0..units.num_portions()).map(node).collect();
    peers.set_plan(PlanMap::new(Arc::clone(units), nodes));
}

/// The accesses of all ranks during the run of `options`, over at most [`MAX_PLANNED_EPOCHS`] epochs.
fn run_of<'a>(
    directory: &'a Directory,
    options: &LoaderOptions,
) -> Result<TrainingRun<'a, Directory>> {
    let (first, consumed) = match &options.resume {
        // Rows do not tell how many positions they took, and the plan only counts reads: the whole epoch is planned.
        Some(state) if options.has_rows() => (state.epoch.0, 0),
        Some(state) => (state.epoch.0, state.consumed),
        None => (options.epochs.start, 0),
    };
    // A run may be endless, but a plan needs an end.
    let end = options.epochs.end.min(first.saturating_add(MAX_PLANNED_EPOCHS));
    let epochs = first..end.max(first);
    Ok(TrainingRun::new(directory, order_of(options), epochs, options.world_size, options.tail)?
        .after(consumed)
        .shared(options.sharding, options.locality.as_ref(), options.batch_size as u64))
}

/// Epochs that a plan covers: the most for which planning time was measured.
const MAX_PLANNED_EPOCHS: u64 = 100;
