//! Division of the global order's batches: which node reads which sample in which step.
//!
//! dlfs's planner walks a `Schedule` too (`Accesses`), so that plans and simulation follow the same order.

use dlfs::order::{EpochOrder, OrderSpec, Population, Positions};
use dlfs::plan::Accesses;
use dlfs::units::{Epoch, SampleId};

use crate::environment::{ConfigError, Scheme, Training};

/// The steps of a run. In each step, every node reads its share of a range of the epoch's sequence.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    samples: Samples,
    order: OrderSpec,
    /// The number of epochs.
    pub(crate) epochs: u32,
    /// The start of each node's share in a step's range, and the end of the last share.
    starts: Vec<u64>,
    /// True if the nodes share the rest of an epoch equally; otherwise the first nodes take it.
    is_rest_shared: bool,
    /// The number of positions of an epoch that are read.
    pub(crate) positions: u64,
}

/// The samples of a data set, in chunks of equal size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Samples {
    /// The number of samples.
    pub(crate) count: u64,
    /// The number of samples of each chunk but the last.
    pub(crate) per_chunk: u64,
}

impl Schedule {
    /// The steps of `training` on `nodes` nodes.
    ///
    /// # Errors
    /// There is no epoch, no batch, or, if smaller batches are dropped, no full batch.
    pub(crate) fn new(
        samples: Samples,
        order: OrderSpec,
        nodes: u32,
        training: &Training,
    ) -> Result<Schedule, ConfigError> {
        if training.epochs == 0 || training.batch == 0 {
            return Err(ConfigError::Empty(
                "a training has at least one epoch and one sample a batch",
            ));
        }
        let starts = starts(training.scheme, training.batch, u64::from(nodes));
        let step = *starts.last().expect("one past the last node");
        let count = samples.count;
        let positions = if training.drop_last { count - count % step } else { count };
        if positions == 0 {
            return Err(ConfigError::Empty(
                "the data set is smaller than one batch, which is dropped",
            ));
        }
        let is_rest_shared = training.scheme == Scheme::Uniform;
        Ok(Schedule { samples, order, epochs: training.epochs, starts, is_rest_shared, positions })
    }

    /// The number of nodes.
    pub(crate) fn nodes(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    /// The number of chunks of the data set.
    pub(crate) fn num_chunks(&self) -> u32 {
        self.samples.num_chunks()
    }

    /// The number of samples of each chunk but the last.
    pub(crate) fn per_chunk(&self) -> u32 {
        self.samples.per_chunk as u32
    }

    /// The number of steps in an epoch.
    pub(crate) fn steps(&self) -> u64 {
        self.positions.div_ceil(self.step_len())
    }

    /// The positions that `node` reads in `step`, as (first, count).
    pub(crate) fn part(&self, step: u64, node: u32) -> (u64, u64) {
        let first = step * self.step_len();
        let rest = self.positions - first;
        let node = u64::from(node);
        let nodes = u64::from(self.nodes());
        let start = |node: u64| {
            if self.is_rest_shared && rest < self.step_len() {
                node * (rest / nodes) + node.min(rest % nodes)
            } else {
                self.starts[node as usize].min(rest)
            }
        };
        (first + start(node), start(node + 1) - start(node))
    }

    /// The number of samples that `node` reads in an epoch.
    pub(crate) fn of_node(&self, node: u32) -> u64 {
        let full = self.positions / self.step_len();
        let each = self.starts[node as usize + 1] - self.starts[node as usize];
        let last = if full < self.steps() { self.part(full, node).1 } else { 0 };
        full * each + last
    }

    /// The position of the `nth` sample that `node` reads in an epoch.
    pub(crate) fn position(&self, node: u32, nth: u64) -> u64 {
        let start = self.starts[node as usize];
        let each = self.starts[node as usize + 1] - start;
        let full = self.positions / self.step_len();
        // A node without a share of full steps may have a share of the rest.
        if nth < full * each {
            nth / each * self.step_len() + start + nth % each
        } else {
            self.part(full, node).0 + (nth - full * each)
        }
    }

    /// The whole sequence of `epoch`, position after position.
    pub(crate) fn sequence(&self, epoch: u32) -> Vec<u32> {
        let mut order = self.epoch_order(epoch);
        let mut sequence = Vec::with_capacity(self.positions as usize);
        let mut positions = Positions::new(0, 1, self.positions);
        let mut ids = Vec::new();
        while positions.remaining() > 0 {
            ids.clear();
            order.ids(&self.samples, positions.split_front(4_096), &mut ids);
            sequence.extend(ids.iter().map(|id| id.0 as u32));
        }
        sequence
    }

    /// The number of samples of a step, over all nodes.
    pub(crate) fn step_len(&self) -> u64 {
        *self.starts.last().expect("one past the last node")
    }

    fn epoch_order(&self, epoch: u32) -> EpochOrder {
        EpochOrder::new(&self.order, Epoch(u64::from(epoch)), &self.samples)
            .expect("the simulator makes orders with numbers in range")
    }
}

impl Accesses for Schedule {
    fn num_ranks(&self) -> u32 {
        self.nodes()
    }

    fn walk(&self, rank: u32, visit: &mut dyn FnMut(&[SampleId])) {
        let mut ids = Vec::new();
        for epoch in 0..self.epochs {
            let mut order = self.epoch_order(epoch);
            for step in 0..self.steps() {
                let (first, count) = self.part(step, rank);
                ids.clear();
                order.ids(&self.samples, Positions::new(first, 1, count), &mut ids);
                visit(&ids);
            }
        }
    }
}

impl Population for Samples {
    fn num_live(&self) -> u64 {
        self.count
    }

    fn num_chunks(&self) -> u32 {
        self.count.div_ceil(self.per_chunk) as u32
    }

    fn live_in_chunk(&self, chunk: u32) -> u32 {
        (self.count - u64::from(chunk) * self.per_chunk).min(self.per_chunk) as u32
    }

    fn id_of_live(&self, rank: u64) -> SampleId {
        SampleId(rank)
    }

    fn id_in_chunk(&self, chunk: u32, nth: u32) -> SampleId {
        SampleId(u64::from(chunk) * self.per_chunk + u64::from(nth))
    }

    fn chunk_of(&self, id: SampleId) -> Option<u32> {
        (id.0 < self.count).then_some((id.0 / self.per_chunk) as u32)
    }
}

/// The start of each node's share in a step's range, and the end of the last share.
fn starts(scheme: Scheme, batch: u64, nodes: u64) -> Vec<u64> {
    let part = batch.div_ceil(nodes);
    let sum = |len: &dyn Fn(u64) -> u64| {
        (0..=nodes).map(|node| (0..node).map(len).sum()).collect::<Vec<u64>>()
    };
    match scheme {
        Scheme::Uniform => (0..=nodes).map(|node| (node * part).min(batch)).collect(),
        Scheme::Whole => (0..=nodes).map(|node| node * batch).collect(),
        Scheme::Imbalanced => {
            sum(&|node| if node < nodes.div_ceil(2) { 2 * part } else { part.div_ceil(2) })
        }
    }
}

#[cfg(test)]
mod tests {
    use dlfs::order::{OrderKind, Shard, Tail};
    use proptest::prelude::*;

    use super::*;

    const ORDER: OrderSpec = OrderSpec { kind: OrderKind::Global, seed: 5 };

    fn schedule(samples: u64, nodes: u32, training: &Training) -> Schedule {
        Schedule::new(Samples { count: samples, per_chunk: 8 }, ORDER, nodes, training).unwrap()
    }

    #[test]
    fn the_three_schemes_divide_a_batch_as_the_thesis_says() {
        assert_eq!(starts(Scheme::Uniform, 10, 4), [0, 3, 6, 9, 10]);
        assert_eq!(starts(Scheme::Uniform, 2, 4), [0, 1, 2, 2, 2]);
        assert_eq!(starts(Scheme::Whole, 10, 3), [0, 10, 20, 30]);
        assert_eq!(starts(Scheme::Imbalanced, 100, 4), [0, 50, 100, 113, 126]);
    }

    #[test]
    fn a_last_batch_that_is_dropped_may_not_be_the_only_one() {
        let training =
            Training { epochs: 1, batch: 11, scheme: Scheme::Uniform, drop_last: true, seed: 0 };
        let samples = Samples { count: 10, per_chunk: 8 };
        let error = Schedule::new(samples, ORDER, 2, &training).unwrap_err();
        assert!(error.to_string().contains("smaller than one batch"));
        let none = Training { epochs: 0, ..training };
        assert!(Schedule::new(samples, ORDER, 2, &none).is_err());
    }

    proptest! {
        #[test]
        fn nodes_read_each_position_once_and_the_planner_sees_the_same(
            samples in 1_u64..200, nodes in 1_u32..6, batch in 1_u64..40, drop_last: bool,
            scheme in prop::sample::select(vec![Scheme::Uniform, Scheme::Whole, Scheme::Imbalanced]),
        ) {
            let training = Training { epochs: 2, batch, scheme, drop_last, seed: 0 };
            let chunks = Samples { count: samples, per_chunk: 8 };
            let Ok(schedule) = Schedule::new(chunks, ORDER, nodes, &training) else {
                prop_assert!(drop_last);
                return Ok(());
            };
            let sequences = [schedule.sequence(0), schedule.sequence(1)];
            let mut read = vec![false; schedule.positions as usize];
            for node in 0..nodes {
                let nths = 0..schedule.of_node(node);
                let positions: Vec<u64> = nths.map(|nth| schedule.position(node, nth)).collect();
                let parts = (0..schedule.steps()).flat_map(|step| {
                    let (first, count) = schedule.part(step, node);
                    first..first + count
                });
                prop_assert_eq!(&positions, &parts.collect::<Vec<_>>());
                positions.iter().for_each(|&p| assert!(!std::mem::replace(&mut read[p as usize], true)));
                let ids = sequences.iter().flat_map(|s| positions.iter().map(|&p| u64::from(s[p as usize])));
                let mut walked = Vec::new();
                schedule.walk(node, &mut |ids| walked.extend(ids.iter().map(|id| id.0)));
                prop_assert_eq!(walked, ids.collect::<Vec<_>>());
            }
            prop_assert!(read.iter().all(|&read| read));
        }
    }

    #[test]
    fn an_epoch_that_is_no_multiple_of_the_batch_ends_with_a_smaller_one() {
        let training =
            Training { epochs: 1, batch: 8, scheme: Scheme::Uniform, drop_last: false, seed: 0 };
        let schedule = schedule(21, 2, &training);
        assert_eq!(
            (schedule.steps(), schedule.part(2, 0), schedule.part(2, 1)),
            (3, (16, 3), (19, 2))
        );
    }

    #[test]
    fn nodes_have_as_many_samples_in_an_epoch_as_ranks_of_the_program() {
        let training =
            Training { epochs: 1, batch: 32, scheme: Scheme::Uniform, drop_last: false, seed: 0 };
        for (samples, nodes) in [(300, 8), (301, 4), (37, 4), (5, 8), (64, 2)] {
            let schedule = schedule(samples, nodes, &training);
            for node in 0..nodes {
                let shard = Shard::new(node, nodes, Tail::Keep).unwrap();
                assert_eq!(schedule.of_node(node), shard.positions(samples).remaining());
            }
        }
    }
}
