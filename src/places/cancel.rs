//! Cancellation of waits for an object store.

use std::sync::Arc;

/// Cancels waiting for a store: each waiting thread asks it several times a second whether to give up.
///
/// The default never cancels: failed requests are then retried for as long as the options say.
#[derive(Clone, Default)]
pub struct Cancel(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Cancel {
    /// Cancels as soon as `asked` returns true. Waiting threads call `asked`.
    pub fn when(asked: impl Fn() -> bool + Send + Sync + 'static) -> Cancel {
        Cancel(Some(Arc::new(asked)))
    }

    /// Returns whether to give up.
    #[cfg(feature = "cloud")]
    pub(super) fn is_asked(&self) -> bool {
        self.0.as_ref().is_some_and(|asked| asked())
    }
}

impl std::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Cancel(..)" } else { "Cancel(never)" })
    }
}

impl PartialEq for Cancel {
    /// Equal if both call the same function, or neither calls one.
    fn eq(&self, other: &Cancel) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

impl Eq for Cancel {}
