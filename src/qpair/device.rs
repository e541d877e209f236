//! A device: what queue pairs are made from.

use super::{Namespace, QueuePair};
use crate::error::Result;

/// An opened namespace that gives out queue pairs: an image file, a RAM region, a remote namespace.
///
/// One device is shared by all threads; each thread makes its own queue pair and polls it alone.
/// Queue pairs outlive the handle they came from.
pub trait Device: Send + Sync {
    /// What the namespace is now: a growing file or a reconnect may change it.
    fn namespace(&self) -> Namespace;

    /// A new queue pair on the namespace.
    ///
    /// # Errors
    /// `Refused`: the device gives no more queue pairs. `Disconnected`, `TimedOut`: it is not there.
    fn queue_pair(&self) -> Result<Box<dyn QueuePair>>;
}
