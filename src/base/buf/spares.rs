//! Memory of dropped large buffers outside a pool, for later ones: this saves zeroing new pages, and registering them.

use std::sync::OnceLock;

use parking_lot::Mutex;

use super::pages::{HUGE_LEN, Mapping};
use super::registration::Registrar;
use crate::sync::{AtomicUsize, Ordering};

/// Mapped memory of dropped buffers. Taking memory unmaps free memory until free and used memory together are
/// at most the peak of used memory.
#[derive(Default)]
pub(super) struct Spares {
    /// The free mappings.
    ///
    /// Only tried, never waited for: a forked child may find it locked for ever. Without the lock, memory is
    /// mapped when taken, and unmapped when given back.
    free: Mutex<Free>,
    /// Bytes of the mappings in use.
    used_bytes: AtomicUsize,
    /// The driver that new mappings are registered with; unset: none.
    pub(super) registrar: OnceLock<&'static dyn Registrar>,
}

/// Mappings without a buffer.
#[derive(Default)]
struct Free {
    mappings: Vec<Mapping>,
    /// The peak of [`Spares::used_bytes`].
    most_used_bytes: usize,
}

impl Spares {
    /// Memory for `len` bytes, with arbitrary contents. `None`: the operating system has no memory.
    pub(super) fn take(&self, len: usize) -> Option<Mapping> {
        let mut free = self.free.try_lock();
        let found = free.as_mut().and_then(|free| free.take(len));
        let mapping = match found {
            Some(mapping) => mapping,
            None => self.map(len)?,
        };
        // Relaxed: the counter orders no other memory.
        let used = self.used_bytes.fetch_add(mapping.len(), Ordering::Relaxed) + mapping.len();
        if let Some(free) = &mut free {
            free.most_used_bytes = free.most_used_bytes.max(used);
            let room = free.most_used_bytes - used;
            free.keep(room);
        }
        Some(mapping)
    }

    /// Maps new memory for `len` bytes, and registers it if there is a driver; without the driver's consent it is used
    /// unregistered. `None`: the operating system has no memory.
    fn map(&self, len: usize) -> Option<Mapping> {
        let Some(registrar) = self.registrar.get() else {
            return Mapping::transparent_or_base(rounded(len, HUGE_LEN)).ok();
        };
        let mapping = Mapping::transparent_or_base(rounded(len, REGISTERED_STEP)).ok()?;
        if let Err(error) = mapping.register(*registrar, mapping.len()) {
            tracing::debug!(%error, len, "a buffer outside the pool is not registered");
        }
        Some(mapping)
    }

    /// Keeps dropped memory for reuse; the operating system may reclaim its pages meanwhile.
    pub(super) fn give_back(&self, mapping: Mapping) {
        self.used_bytes.fetch_sub(mapping.len(), Ordering::Relaxed);
        if let Some(mut free) = self.free.try_lock() {
            // A device would go on reading registered pages after they were replaced.
            if mapping.registered_bytes() == 0 {
                mapping.lend_pages();
            }
            free.mappings.push(mapping);
        }
    }
}

impl Free {
    /// Takes the shortest mapping that is long enough.
    fn take(&mut self, len: usize) -> Option<Mapping> {
        let may_take = |free: &Mapping| free.len() >= len && !free.is_foreign();
        let long_enough = self.mappings.iter().enumerate().filter(|(_, free)| may_take(free));
        let (at, _) = long_enough.min_by_key(|(_, free)| free.len())?;
        Some(self.mappings.swap_remove(at))
    }

    /// Unmaps the shortest mappings until at most `most_bytes` are left.
    fn keep(&mut self, most_bytes: usize) {
        let mut bytes: usize = self.mappings.iter().map(Mapping::len).sum();
        self.mappings.sort_unstable_by_key(|free| std::cmp::Reverse(free.len()));
        while bytes > most_bytes
            && let Some(shortest) = self.mappings.pop()
        {
            bytes -= shortest.len();
        }
    }
}

/// Rounds a length up, so that similar lengths can reuse each other's memory. Untouched pages cost no memory.
fn rounded(len: usize, min_step: usize) -> usize {
    let step = (len.checked_next_power_of_two().unwrap_or(len) / 8).max(min_step);
    len.checked_next_multiple_of(step).unwrap_or(len)
}

/// Step of lengths of registered memory, whose pages are all allocated: smaller than a huge page, to waste less.
const REGISTERED_STEP: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_never_more_than_was_in_use() {
        const MIB: usize = 1 << 20;
        let spares = Spares::default();
        let take = |mib: usize| spares.take(mib * MIB).unwrap();
        let first = take(20);
        let second = take(41);
        let short = first.start();
        let long = second.start();
        assert!(first.len() >= 20 * MIB && second.len() >= 41 * MIB);
        let most = first.len() + second.len();
        [first, second].into_iter().for_each(|mapping| spares.give_back(mapping));
        let again = take(19);
        let other = take(40);
        assert_eq!((again.start(), other.start()), (short, long));
        [again, other].into_iter().for_each(|mapping| spares.give_back(mapping));
        // A longer mapping replaces the two others.
        let longest = take(50);
        let kept = || spares.free.lock().mappings.iter().map(Mapping::len).sum::<usize>();
        assert!(longest.len() + kept() <= most, "{} and {}", longest.len(), kept());
        spares.give_back(longest);
        assert!(kept() <= most);
    }
}
