//! The result of one slice of one case.

/// The work done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Done {
    /// Reads, messages or samples.
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    /// Batches of samples; 0 if there are none.
    pub(crate) batches: u64,
}

/// The work done, its time, and its cost on both sides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slice {
    pub(crate) done: Done,
    pub(crate) wall_s: f64,
    /// Processor seconds, user and system, of the measured process.
    pub(crate) host_cpu_s: f64,
    /// The same of the other side, if there is one.
    pub(crate) target_cpu_s: Option<f64>,
    /// Allocations of all threads of the measured process.
    pub(crate) allocations: u64,
}

impl Slice {
    pub(crate) fn ops_s(&self) -> f64 {
        self.done.ops as f64 / self.wall_s
    }

    pub(crate) fn bytes_s(&self) -> f64 {
        self.done.bytes as f64 / self.wall_s
    }

    /// Processor seconds of the host per million operations.
    pub(crate) fn host_cpu_s_per_million(&self) -> f64 {
        self.host_cpu_s * 1e6 / self.done.ops as f64
    }

    pub(crate) fn host_cpu_s_per_gb(&self) -> f64 {
        self.host_cpu_s * 1e9 / self.done.bytes as f64
    }

    /// The line that a side prints for the bench.
    pub(crate) fn to_line(self) -> String {
        let Done { ops, bytes, batches } = self.done;
        let Slice { wall_s, host_cpu_s, allocations, .. } = self;
        format!("{ops} {bytes} {batches} {wall_s} {host_cpu_s} {allocations}")
    }

    pub(crate) fn from_line(line: &str) -> Option<Slice> {
        let fields: Vec<f64> = line.split(' ').map_while(|field| field.parse().ok()).collect();
        let [ops, bytes, batches, wall_s, host_cpu_s, allocations] = fields[..] else {
            return None;
        };
        let done = Done { ops: ops as u64, bytes: bytes as u64, batches: batches as u64 };
        let allocations = allocations as u64;
        Some(Slice { done, wall_s, host_cpu_s, target_cpu_s: None, allocations })
    }
}
