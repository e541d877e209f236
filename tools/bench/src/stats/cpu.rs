//! CPU time, context switches and page faults of a thread.

use rustix::time::{ClockId, clock_gettime};

/// The CPU usage of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct CpuUse {
    pub(crate) user_s: f64,
    pub(crate) sys_s: f64,
    pub(crate) switches: u64,
    pub(crate) major_faults: u64,
    pub(crate) minor_faults: u64,
    /// Elapsed time, added up over threads: the base of the shares.
    pub(crate) wall_s: f64,
}

impl CpuUse {
    pub(crate) fn add(&mut self, other: &CpuUse) {
        self.user_s += other.user_s;
        self.sys_s += other.sys_s;
        self.switches += other.switches;
        self.major_faults += other.major_faults;
        self.minor_faults += other.minor_faults;
        self.wall_s += other.wall_s;
    }

    pub(crate) fn user_percent(&self) -> f64 {
        percent(self.user_s, self.wall_s)
    }

    pub(crate) fn sys_percent(&self) -> f64 {
        percent(self.sys_s, self.wall_s)
    }

    pub(crate) fn total_s(&self) -> f64 {
        self.user_s + self.sys_s
    }
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

/// Counters of a thread, or of the process, at one moment.
///
/// The CPU clock is exact; its split into user and kernel mode follows the ticks of `/proc`.
#[derive(Clone)]
pub(crate) struct CpuClock {
    total_s: f64,
    stat: [u64; 4],
    switches: u64,
    whole_process: bool,
}

impl CpuClock {
    /// Those of the calling thread.
    pub(crate) fn of_thread() -> CpuClock {
        CpuClock::read(false)
    }

    /// Those of all threads.
    pub(crate) fn of_process() -> CpuClock {
        CpuClock::read(true)
    }

    fn read(whole_process: bool) -> CpuClock {
        let (clock, folder) = if whole_process {
            (ClockId::ProcessCPUTime, "/proc/self")
        } else {
            (ClockId::ThreadCPUTime, "/proc/thread-self")
        };
        let total = clock_gettime(clock);
        let text = |name| std::fs::read_to_string(format!("{folder}/{name}")).unwrap_or_default();
        CpuClock {
            total_s: total.tv_sec as f64 + total.tv_nsec as f64 / 1e9,
            stat: fields_of(&text("stat")).unwrap_or_default(),
            switches: switches_of(&text("status")),
            whole_process,
        }
    }

    /// The usage since then, while `wall_s` seconds passed.
    pub(crate) fn used(&self, wall_s: f64) -> CpuUse {
        let now = CpuClock::read(self.whole_process);
        let total = (now.total_s - self.total_s).max(0.0);
        let [minor, major, user, sys] =
            std::array::from_fn(|i| now.stat[i].saturating_sub(self.stat[i]));
        let ticks = (user + sys) as f64;
        let sys_share = if ticks > 0.0 { sys as f64 / ticks } else { 0.0 };
        CpuUse {
            user_s: total * (1.0 - sys_share),
            sys_s: total * sys_share,
            switches: now.switches.saturating_sub(self.switches),
            major_faults: major,
            minor_faults: minor,
            wall_s,
        }
    }
}

/// Minor faults, major faults, ticks in user mode and in the kernel of `/proc/.../stat`.
fn fields_of(stat: &str) -> Option<[u64; 4]> {
    let (_, rest) = stat.rsplit_once(')')?; // the name before it may contain anything
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
        let clock = CpuClock::of_thread();
        let mut sum = 0_u64;
        for i in 0..5_000_000_u64 {
            sum = std::hint::black_box(sum.wrapping_add(i * i));
        }
        assert!(clock.used(1.0).total_s() > 0.0);
    }
}
