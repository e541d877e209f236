//! The load of an I/O queue on each path, and the choice of a path for an I/O: by ANA state first, then by latency and
//! queue depth.

use std::time::Duration;

use super::lifecycle::NUM_SLOTS;

/// The load and the latency of an I/O queue on one path.
#[derive(Debug, Default)]
pub(super) struct PathLoad {
    /// A moving average of the latency of I/Os; 0: not measured.
    latency_ns: u64,
    /// I/Os that were sent and have not ended.
    pub(super) outstanding: u64,
    /// I/Os that have ended since the last [`PathLoad::take`].
    num_done: u64,
    /// The sum of their latencies.
    done_ns: u64,
}

/// A path that could take an I/O, unless its queue is full.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// True if the ANA state of all namespaces is optimized.
    pub(super) is_optimized: bool,
    pub(super) has_room: bool,
    /// The [`PathLoad::cost`].
    pub(super) cost: u64,
}

impl PathLoad {
    /// Records that an I/O has ended after this time.
    pub(super) fn done(&mut self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.outstanding = self.outstanding.saturating_sub(1);
        self.num_done += 1;
        self.done_ns = self.done_ns.saturating_add(took_ns);
        self.latency_ns = match self.latency_ns {
            0 => took_ns,
            before => before - before / SMOOTHING + took_ns / SMOOTHING,
        };
    }

    /// The time that one more I/O would take, roughly, in ns.
    pub(super) fn cost(&self) -> u64 {
        self.latency_ns.max(1).saturating_mul(self.outstanding + 1)
    }

    /// Records that the other path was preferred: an old measurement fades, so that this path is tried again.
    pub(super) fn passed_over(&mut self) {
        self.latency_ns -= self.latency_ns >> FADING;
    }

    /// The number of the I/Os that have ended since the last call, and the sum of their latencies in ns.
    pub(super) fn take(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.num_done), std::mem::take(&mut self.done_ns))
    }
}

/// The index of the path for an I/O; `None`: the I/O waits. A path that is not optimized is used only if no path is.
pub(super) fn choose(paths: [Option<Candidate>; NUM_SLOTS]) -> Option<usize> {
    let any_optimized = paths.iter().flatten().any(|path| path.is_optimized);
    let allowed = paths.iter().enumerate().filter_map(|(slot, path)| {
        let path = path.filter(|path| path.has_room && (path.is_optimized || !any_optimized))?;
        Some((path.cost, slot))
    });
    allowed.min().map(|(_, slot)| slot)
}

/// The weight of older measurements in the moving average.
const SMOOTHING: u64 = 8;

/// A measurement loses 1/2^FADING of itself each time that the path is passed over.
const FADING: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn path(is_optimized: bool, has_room: bool, cost: u64) -> Option<Candidate> {
        Some(Candidate { is_optimized, has_room, cost })
    }

    #[test]
    fn an_optimized_path_is_preferred_even_if_it_is_slower_or_full() {
        assert_eq!(choose([path(false, true, 1), path(true, true, 9)]), Some(1));
        assert_eq!(choose([path(false, true, 1), path(true, false, 9)]), None);
        assert_eq!(choose([path(false, true, 1), None]), Some(0));
        assert_eq!(choose([path(true, true, 2), path(true, true, 1)]), Some(1));
        assert_eq!(choose([path(true, true, 2), path(true, false, 1)]), Some(0));
        assert_eq!(choose([None, None]), None);
    }

    /// Two paths whose queues serve one I/O at a time, with 32 outstanding: the number of I/Os of each.
    fn shares(latency_ns: [u64; 2], num: u64) -> [u64; 2] {
        let mut loads = [PathLoad::default(), PathLoad::default()];
        let mut free_at = [0; 2];
        let mut ends: Vec<(u64, usize, u64)> = Vec::new();
        let mut counts = [0; 2];
        let mut now = 0;
        for _ in 0..num {
            if ends.len() == 32 {
                ends.sort_unstable();
                let (at, slot, sent) = ends.remove(0);
                now = at;
                loads[slot].done(Duration::from_nanos(at - sent));
            }
            let slot = choose([0, 1].map(|slot| path(true, true, loads[slot].cost()))).unwrap();
            loads[1 - slot].passed_over();
            loads[slot].outstanding += 1;
            counts[slot] += 1;
            free_at[slot] = now.max(free_at[slot]) + latency_ns[slot];
            ends.push((free_at[slot], slot, now));
        }
        counts
    }

    #[test]
    fn equal_paths_share_the_load_and_a_slower_one_gets_less_but_some() {
        let [one, two] = shares([100_000, 100_000], 10_000);
        assert!(one.abs_diff(two) < 2_000, "{one} and {two}");
        let [fast, slow] = shares([100_000, 400_000], 10_000);
        assert!(slow * 2 < fast && slow > 100, "{fast} and {slow}");
    }

    #[test]
    fn a_path_that_was_slow_is_tried_again() {
        let mut slow = PathLoad::default();
        let mut fast = PathLoad::default();
        slow.done(Duration::from_millis(100));
        fast.done(Duration::from_micros(100));
        let mut passed = 0;
        while choose([path(true, true, slow.cost()), path(true, true, fast.cost())]) == Some(1) {
            slow.passed_over();
            passed += 1;
        }
        assert!((1_000..20_000).contains(&passed), "{passed}");
    }

    #[test]
    fn what_a_lost_connection_owed_is_no_load() {
        let mut load = PathLoad::default();
        load.done(Duration::from_nanos(50));
        load.outstanding += 3;
        assert_eq!(load.cost(), 200);
        load.outstanding = 0;
        assert_eq!((load.cost(), load.take(), load.take()), (50, (1, 50), (0, 0)));
    }
}
