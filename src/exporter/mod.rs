//! The metrics of this process: collects them from everything that counts, and answers those who ask over HTTP.
//!
//! Whatever has counters (a target, a data set, a loader, tiers, peers, a store) registers itself, and [`snapshot`]
//! adds up what all registered sources and those that have ended counted. [`Exporter`] serves that snapshot as
//! OpenMetrics at `/metrics`. Nothing here is called while data move.
//!
//! The registry belongs to a process: a forked child begins with an empty one, and sees what it opens itself.
//!
//! Read `http.rs` first.

mod http;
mod request;

pub use http::Exporter;

use crate::metrics::{BUILD, Snapshot};
use crate::registry;

/// The metrics of this process: of what is open now, the counters of what has been closed, and the commit.
///
/// Waits for a loader whose consumer waits for a batch, for up to 100 ms each.
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
