//! The plan of all ranks together, bound to its data set.

use super::{Holder, HolderMap, Inputs, Lengths, PlanError, Planner, TrainingRun};
use crate::order::ImageId;
use dlfs_base::units::{Generation, SampleId};
use dlfs_format::directory::Directory;

/// The rank, the tier and the address of each sample's copy: the same on every rank, without
/// messages.
///
/// It takes 8 bytes per sample, and 2.2 more during planning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JointPlan {
    image: ImageId,
    generation: Generation,
    name: [u8; 16],
    holders: HolderMap,
}

impl JointPlan {
    /// Plans all ranks of `inputs` over the samples of `directory`.
    ///
    /// Costs [`Planner::plan`] for every rank.
    ///
    /// # Errors
    /// The inputs belong to another data set or generation, where the same ids denote other
    /// samples; or a number is out of range.
    pub fn new(inputs: &Inputs, directory: &Directory) -> Result<JointPlan, PlanError> {
        check_same(inputs.image, inputs.generation, directory)?;
        inputs.check()?;
        let epochs = inputs.first_epoch..inputs.first_epoch.saturating_add(inputs.num_epochs);
        let ranks = u32::try_from(inputs.ranks.len()).expect("the inputs were checked");
        let run = TrainingRun::new(directory, inputs.order, epochs, ranks, inputs.tail)?;
        let run = run.after(inputs.consumed);
        let mut planner = Planner::new(&run, directory, inputs.block_len_bytes)?;
        let holders = HolderMap::new(&mut planner, |rank| inputs.tiers(rank))?;
        let Inputs { image, generation, .. } = *inputs;
        Ok(JointPlan { image, generation, name: inputs.digest(), holders })
    }

    /// The best copy of `sample` that any rank plans: its rank, tier and address. `None` if no rank
    /// plans one.
    ///
    /// # Panics
    /// If the data set has no such id.
    pub fn holder(&self, sample: SampleId) -> Option<Holder> {
        self.holders.holder(sample)
    }

    /// The hash of its inputs: ranks with another name have another plan.
    pub fn name(&self) -> [u8; 16] {
        self.name
    }

    /// Checks that this plan belongs to the open data set.
    ///
    /// # Errors
    /// It belongs to another data set or generation.
    pub fn check(&self, directory: &Directory) -> Result<(), PlanError> {
        check_same(self.image, self.generation, directory)
    }

    /// Memory of the map.
    pub fn memory_bytes(&self) -> usize {
        self.holders.memory_bytes()
    }
}

impl Lengths for Directory {
    fn num_samples(&self) -> u64 {
        Directory::num_samples(self)
    }

    /// A deleted sample has no bytes, and no order contains it.
    fn len_bytes(&self, sample: SampleId) -> u32 {
        Directory::len_bytes(self, sample).unwrap_or(0)
    }
}

fn check_same(
    image: ImageId,
    generation: Generation,
    directory: &Directory,
) -> Result<(), PlanError> {
    let open = ImageId(directory.uuid().0);
    if image != open {
        return Err(PlanError::OtherImage { planned: image, open });
    }
    let open = directory.generation();
    if generation == open {
        Ok(())
    } else {
        Err(PlanError::OtherGeneration { planned: generation, open })
    }
}
