//! The namespace that a node serves to its peers: its cache of an origin namespace, with the same size and LBAs.

use std::sync::Arc;

use crate::error::Result;
use crate::qpair::{Capabilities, Device, Namespace, PairScope, QueuePair};

/// A namespace under another identity, read-only.
pub(super) struct View {
    pub(super) cache: Arc<dyn Device>,
    pub(super) nguid: [u8; 16],
}

impl Device for View {
    fn namespace(&self) -> Namespace {
        Namespace { nguid: self.nguid, read_only: true, ..self.cache.namespace() }
    }

    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        self.cache.queue_pair_in(scope)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { can_grow: false, local_path: None, ..self.cache.capabilities() }
    }

    fn grow(&self, len_bytes: u64) -> Result<()> {
        self.namespace().must_hold(len_bytes)
    }
}
