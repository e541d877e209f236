//! Cancels a planned append before another change of the image.

use std::time::Duration;

use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::mark::Mark;
use crate::import::media::Media;
use dlfs_base::Result;
use dlfs_format::directory::Directory;

/// Removes the marks of a plan that appends to the generation `current`, so that no part of the plan writes any
/// more. The caller holds the lease of the image.
///
/// # Errors
/// `Busy`: a part is being imported, on a namespace without an exclusive lock. Errors of reading and writing.
pub(super) fn give_up_plan(media: &Media, current: &Directory, limit: Duration) -> Result<()> {
    let mut channel = media.channel();
    let mut marked = Vec::new();
    for (namespace, device) in (0..).zip(media.devices()) {
        if Mark::read(&mut channel, namespace)?.is_none() {
            continue;
        }
        let is_next = Journal::read(&mut channel, namespace)?.is_some_and(|journal| {
            journal.layout.uuid == current.uuid() && journal.generation > current.generation()
        });
        // Otherwise the plan is committed, and its commit was killed before it removed the mark.
        if is_next {
            // The caller holds the lease of namespace 0.
            let alone = Media::new(vec![device.clone()])?;
            let lease = (namespace > 0).then(|| Lease::take(&alone, limit)).transpose()?;
            marked.push((namespace, lease));
        }
    }
    if !marked.is_empty() {
        tracing::warn!("an append that was planned for several processes is given up");
    }
    // A part that begins later finds no mark, and is refused.
    marked.iter().try_for_each(|(namespace, _)| Mark::remove(&mut channel, *namespace))
}
