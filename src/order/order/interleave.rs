//! Interleaves lanes: maps a position to a lane and a sample of that lane.
//!
//! The sequence takes one sample of each lane in turn, in the order of the lanes, and skips exhausted lanes.
//! While no lane becomes exhausted, in a *phase*, the number of active lanes is constant, so a position is
//! found by a division. There are at most as many phases as lanes.

/// Position <-> (lane, index in the lane), for lanes of given lengths.
#[derive(Debug, Clone, Default)]
pub(super) struct Interleave {
    lengths: Vec<u64>,
    sorted: Vec<u64>,
    phases: Vec<Phase>,
    /// The current phase, and its active lanes in their order.
    current: usize,
    active: Vec<u32>,
}

/// Consecutive rounds with the same active lanes.
#[derive(Debug, Clone, Copy)]
struct Phase {
    first_position: u64,
    end_position: u64,
    /// Samples taken of each active lane before the phase.
    first_round: u64,
    num_active: u64,
}

impl Interleave {
    /// Removes all lanes, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.lengths.clear();
    }

    /// Adds a lane of `length` samples.
    pub(super) fn add_lane(&mut self, length: u64) {
        self.lengths.push(length);
    }

    /// Computes the phases, after all lanes were added and before positions are looked up.
    pub(super) fn begin(&mut self) {
        self.sorted.clone_from(&self.lengths);
        self.sorted.sort_unstable();
        phases(&self.sorted, &mut self.phases);
        self.enter(0);
    }

    /// The lane of `position`, and the index of its sample there. `position` is below the sum of all lengths.
    #[inline]
    pub(super) fn locate(&mut self, position: u64) -> (u32, u64) {
        let mut phase = &self.phases[self.current];
        if !(phase.first_position..phase.end_position).contains(&position) {
            self.enter(self.phases.partition_point(|phase| phase.end_position <= position));
            phase = &self.phases[self.current];
        }
        let offset = position - phase.first_position;
        let round = offset / phase.num_active;
        let turn = offset % phase.num_active;
        (self.active[turn as usize], phase.first_round + round)
    }

    /// The position of the sample `index` of `lane`: the inverse of [`Interleave::locate`].
    pub(super) fn position(&self, lane: u32, index: u64) -> u64 {
        let later = self.phases.partition_point(|phase| phase.first_round <= index);
        let phase = &self.phases[later - 1];
        let before = &self.lengths[..lane as usize];
        let turn = before.iter().filter(|&&length| length > phase.first_round).count() as u64;
        phase.first_position + (index - phase.first_round) * phase.num_active + turn
    }

    fn enter(&mut self, phase: usize) {
        self.current = phase;
        let first_round = self.phases[phase].first_round;
        self.active.clear();
        let lanes = (0..).zip(&self.lengths);
        self.active.extend(lanes.filter(|&(_, &len)| len > first_round).map(|(lane, _)| lane));
    }
}

/// One phase for each distinct length above zero; a single empty phase if all lanes are empty.
fn phases(sorted: &[u64], phases: &mut Vec<Phase>) {
    phases.clear();
    let mut first_position = 0;
    let mut first_round = 0;
    for (gone, &length) in sorted.iter().enumerate() {
        if length > first_round {
            let num_active = (sorted.len() - gone) as u64;
            let end_position = first_position + (length - first_round) * num_active;
            phases.push(Phase { first_position, end_position, first_round, num_active });
            (first_position, first_round) = (end_position, length);
        }
    }
    if phases.is_empty() {
        phases.push(Phase { first_position: 0, end_position: 0, first_round: 0, num_active: 1 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_interleave_as_a_walk_through_them_does() {
        let cases: [&[u64]; 8] =
            [&[5], &[3, 3, 3], &[1, 4, 2], &[0, 3, 0, 1], &[7, 0], &[2, 2, 9, 2], &[], &[0, 0]];
        let mut interleave = Interleave::default();
        for lengths in cases {
            interleave.clear();
            lengths.iter().for_each(|&length| interleave.add_lane(length));
            interleave.begin();
            let rounds = lengths.iter().copied().max().unwrap_or(0);
            let walk = (0..rounds).flat_map(|round| {
                let lanes = (0..).zip(lengths).filter(move |&(_, &length)| length > round);
                lanes.map(move |(lane, _)| (lane, round))
            });
            let walk: Vec<(u32, u64)> = walk.collect();
            for (position, &expected) in (0..).zip(&walk) {
                assert_eq!(interleave.locate(position), expected, "{position} of {lengths:?}");
                assert_eq!(interleave.position(expected.0, expected.1), position);
            }
            for (position, &expected) in walk.iter().enumerate().rev() {
                assert_eq!(interleave.locate(position as u64), expected, "backwards");
            }
        }
    }
}
