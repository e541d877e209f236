//! CPU time, context switches and page faults of a thread, or of the process.

use rustix::time::{ClockId, Timespec, clock_gettime};

use super::ratio;

/// The CPU usage of threads: the counters at one moment, or their difference between two.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct CpuUse {
    /// Exact CPU time; the ticks say how it divides into user mode and kernel mode.
    total_s: f64,
    wall_s: f64,
    /// Minor faults, major faults, ticks in user mode and in the kernel.
    stat: [u64; 4],
    switches: u64,
}

impl CpuUse {
    /// The counters of the calling thread now.
    pub(crate) fn of_thread() -> CpuUse {
        CpuUse::read(ClockId::ThreadCPUTime, "/proc/thread-self")
    }

    /// The counters of all threads now, but the context switches of the first thread only.
    pub(crate) fn of_process() -> CpuUse {
        CpuUse::read(ClockId::ProcessCPUTime, "/proc/self")
    }

    fn read(clock: ClockId, folder: &str) -> CpuUse {
        let seconds = |time: Timespec| time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        let text = |name| std::fs::read_to_string(format!("{folder}/{name}")).unwrap_or_default();
        CpuUse {
            total_s: seconds(clock_gettime(clock)),
            wall_s: seconds(clock_gettime(ClockId::Monotonic)),
            stat: fields_of(&text("stat")).unwrap_or_default(),
            switches: switches_of(&text("status")),
        }
    }

    /// The usage since the counters were `before`.
    pub(crate) fn since(self, before: CpuUse) -> CpuUse {
        CpuUse {
            total_s: self.total_s - before.total_s,
            wall_s: self.wall_s - before.wall_s,
            stat: std::array::from_fn(|i| self.stat[i].saturating_sub(before.stat[i])),
            switches: self.switches.saturating_sub(before.switches),
        }
    }

    pub(crate) fn add(&mut self, other: &CpuUse) {
        self.total_s += other.total_s;
        self.wall_s += other.wall_s;
        self.stat = std::array::from_fn(|i| self.stat[i] + other.stat[i]);
        self.switches += other.switches;
    }

    pub(crate) fn total_s(&self) -> f64 {
        self.total_s
    }

    /// Time in user mode and in the kernel, in percent of elapsed time.
    pub(crate) fn percent(&self) -> [f64; 2] {
        let [_, _, user, sys] = self.stat;
        let in_kernel = ratio(sys as f64, (user + sys) as f64);
        [1.0 - in_kernel, in_kernel].map(|part| 100.0 * ratio(part * self.total_s, self.wall_s))
    }

    /// Context switches, major faults and minor faults.
    pub(crate) fn events(&self) -> [u64; 3] {
        [self.switches, self.stat[1], self.stat[0]]
    }
}

/// From `/proc/.../stat`: minor faults, major faults, ticks in user mode and in the kernel.
fn fields_of(stat: &str) -> Option<[u64; 4]> {
    let (_, rest) = stat.rsplit_once(')')?; // the name may contain anything
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some([number(7)?, number(9)?, number(11)?, number(12)?])
}

fn switches_of(status: &str) -> u64 {
    let lines = status.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
    lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_proc_are_read_behind_a_hostile_name() {
        let stat = "1 (a) b (c) S 0 1 1 0 -1 4194560 11 2 33 4 70 30 0 0 20 0 1 0 1 1 1";
        assert_eq!(fields_of(stat), Some([11, 33, 70, 30]));
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(switches_of(status), 12);
    }

    #[test]
    fn work_shows_as_cpu_time() {
        let before = CpuUse::of_thread();
        let mut sum = 0_u64;
        for i in 0..5_000_000_u64 {
            sum = std::hint::black_box(sum.wrapping_add(i * i));
        }
        let used = CpuUse::of_thread().since(before);
        assert!(used.total_s() > 0.0 && used.percent().iter().sum::<f64>() <= 101.0, "{used:?}");
    }
}
