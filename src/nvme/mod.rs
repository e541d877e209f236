//! What an NVMe command means: pure bytes to values and back.

mod cqe;

pub use cqe::Status;
