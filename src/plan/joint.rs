//! The plan of all ranks together, bound to the data set that it was made for.

use super::{Holder, HolderMap, Inputs, Lengths, PlanError, Planner, Run};
use crate::directory::Directory;
use crate::order::ImageId;
use crate::units::{Generation, SampleId};

/// Who holds which sample in which tier, at which address: the same on every rank, without a message.
///
/// It takes 8 bytes a sample, and 2.2 more while it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    image: ImageId,
    generation: Generation,
    name: [u8; 16],
    holders: HolderMap,
}

impl Plan {
    /// Plans all ranks of `inputs` over the samples of `directory`.
    ///
    /// Costs what [`Planner::place`] costs, for every rank.
    ///
    /// # Errors
    /// The inputs are of another data set or another generation, which has other samples under the same
    /// ids; one of their numbers is out of its range.
    pub fn new(inputs: &Inputs, directory: &Directory) -> Result<Plan, PlanError> {
        check_same(inputs.image, inputs.generation, directory)?;
        inputs.check()?;
        let epochs = inputs.first_epoch..inputs.first_epoch.saturating_add(inputs.num_epochs);
        let ranks = u32::try_from(inputs.ranks.len()).expect("the inputs were checked");
        let run = Run::new(directory, inputs.order, epochs, ranks, inputs.tail)?;
        let run = run.after(inputs.consumed);
        let mut planner = Planner::new(&run, directory, inputs.block_len_bytes)?;
        let holders = HolderMap::new(&mut planner, |rank| inputs.tiers(rank))?;
        let Inputs { image, generation, .. } = *inputs;
        Ok(Plan { image, generation, name: inputs.digest(), holders })
    }

    /// The best copy of `sample` that any rank plans: its rank, tier and address. `None` where nobody
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

    /// Whether this is a plan of the data set that is open now.
    ///
    /// # Errors
    /// It is one of another data set or generation.
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

    /// A deleted sample has no bytes, and no order names it.
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
    match generation == open {
        true => Ok(()),
        false => Err(PlanError::OtherGeneration { planned: generation, open }),
    }
}
