//! The metrics of this process: a snapshot of all counters, and an HTTP server for it.
//!
//! A source of counters (a target, a data set, a loader, tiers, peers, a store) registers itself, and
//! [`snapshot`] sums the counters of all open and closed sources. [`Exporter`] serves that snapshot as
//! OpenMetrics at `/metrics`. No code here runs on the data path.
//!
//! The registry belongs to a process: a forked child begins with an empty one, and counts only sources that
//! it opens itself.
//!
//! Read `http.rs` first.

mod http;
mod request;

pub use http::Exporter;

use crate::metrics::{BUILD, Snapshot};
use crate::registry;

/// The metrics of this process, from open and closed sources, and the commit of this build.
///
/// Waits up to 100 ms for each loader whose consumer waits for a batch.
pub fn snapshot() -> Snapshot {
    let mut snapshot = registry::collect();
    snapshot.count(&BUILD, &[env!("CARGO_PKG_VERSION"), crate::COMMIT], 1);
    snapshot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_names_the_build_once() {
        assert_eq!(snapshot().sum(&BUILD), 1.0);
    }
}
