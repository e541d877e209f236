//! Puts tiers in front of an image, and plans which copies they keep for a training run.

use std::sync::Arc;

use crate::cache::{Cache, Identity, TierOptions, TierPlan};
use crate::directory::Directory;
use crate::error::Result;
use crate::plan::{ByUnit, Planner, Tier, TrainingRun};
use crate::prefetch::LoaderOptions;
use crate::tier::{Policy, Units};
use crate::units::SampleId;

use super::Image;

impl Image {
    /// The same image, read through the tiers of `options`. Other clones of this handle are unchanged.
    ///
    /// # Errors
    /// Those of [`Cache::new`].
    pub fn with_tiers(mut self, options: &TierOptions) -> Result<Image> {
        if options.is_active() {
            let identity =
                Identity { uuid: self.directory.uuid(), generation: self.directory.generation() };
            let units = Units::of(&self.directory);
            let cache = Cache::new(&self.devices, units, identity, options)?;
            self.devices = cache.devices().to_vec();
            self.cache = Some(Arc::new(cache));
        }
        Ok(self)
    }

    /// The tiers, if the image is read through any.
    pub fn tiers(&self) -> Option<&Cache> {
        self.cache.as_deref()
    }

    /// Plans the tiers for the run of `options`, if their policy is clairvoyant.
    pub(super) fn plan_tiers(&self, options: &LoaderOptions) -> Result<()> {
        self.tiers().into_iter().for_each(|cache| cache.set_processes(options.world_size));
        let plans = |cache: &&Cache| cache.policy() == Policy::Clairvoyant;
        let Some(cache) = self.tiers().filter(plans) else {
            return Ok(());
        };
        cache.set_plan(&planned(cache, &self.directory, options)?)
    }
}

/// The units that this rank keeps, each with its tier, in the order in which the rank first reads them.
fn planned(cache: &Cache, directory: &Directory, options: &LoaderOptions) -> Result<TierPlan> {
    let (first, consumed) = match &options.resume {
        Some(state) => (state.epoch.0, state.consumed),
        None => (options.epochs.start, 0),
    };
    // A run may be endless, but a plan needs an end.
    let end = options.epochs.end.min(first.saturating_add(MAX_PLANNED_EPOCHS));
    let epochs = first..end.max(first);
    let order = match &options.resume {
        Some(state) => state.order,
        None => options.order.started(options.world_size),
    };
    let run = TrainingRun::new(directory, order, epochs, options.world_size, options.tail)
        .map_err(crate::plan::PlanError::from)?
        .after(consumed)
        .shared(options.sharding, options.locality.as_ref(), options.batch_size as u64);
    let unit_of = cache.units().by_sample(directory);
    let by_unit = ByUnit::new(&run, &unit_of);
    let mut planner = Planner::new(&by_unit, cache.units(), crate::tier::PAGE_BYTES as u32)?;
    let tier = |num_blocks| Tier { num_blocks };
    let tiers: Vec<Tier> = cache.capacities().into_iter().map(tier).collect();
    let mut copies = Vec::new();
    planner.plan(options.rank, &tiers, &mut |copy| {
        copies.push((copy.sample.0 as u32, copy.tier));
    })?;
    let frequencies = planner.frequencies();
    let reads = (0..cache.units().len()).map(|unit| frequencies.of(SampleId(unit.into())));
    let fingerprint = cache.units().fingerprint();
    Ok(TierPlan { copies, reads: reads.collect(), fingerprint })
}

/// Epochs that a plan covers: the most for which the time of planning is measured.
const MAX_PLANNED_EPOCHS: u64 = 100;
