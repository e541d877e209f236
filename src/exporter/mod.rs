//! The metrics of this process: collects them from everything that counts, and answers those who ask over HTTP.
//!
//! Whatever has counters (a target, a data set, a loader, tiers, peers, a store) holds a `Registration`, and
//! [`snapshot`] adds up what all registered sources and those that have ended counted. [`Exporter`] serves that
//! snapshot as OpenMetrics at `/metrics`. Nothing here is called while data move.
//!
//! The registry belongs to a process: a forked child begins with an empty one, and sees what it opens itself.
//!
//! Read `registry.rs` first, then `http.rs`.

mod http;
mod registry;
mod request;

pub use http::Exporter;
pub(crate) use registry::Registration;
pub use registry::snapshot;
