//! Opens queue pairs of many devices in parallel.

use std::sync::Arc;

use super::{Device, PairScope, QueuePair};
use dlfs_base::error::{ErrorKind, Result};
use dlfs_base::threads::map_at_once;

/// Opens a queue pair of each device in each of `scopes`, in parallel. Returns the queue pairs of each device,
/// in the order of the scopes. A device returns fewer if its limit is lower, or if others hold the rest.
///
/// # Errors
/// As [`Device::queue_pair_in`], also if a device grants no queue pair.
pub fn open_pairs(
    devices: &[Arc<dyn Device>],
    scopes: &[PairScope],
) -> Result<Vec<Vec<Box<dyn QueuePair>>>> {
    let mut wanted = Vec::new();
    for (number, device) in devices.iter().enumerate() {
        let most = device.capabilities().max_queue_pairs.clamp(1, scopes.len().max(1));
        wanted.extend(scopes.iter().take(most).map(|scope| (number, scope)));
    }
    let opened = map_at_once(OPENING, &wanted, |&(number, scope)| {
        match devices[number].queue_pair_in(scope) {
            Ok(pair) => Ok((number, Ok(pair))),
            // Others hold the queue pairs that the target grants; this is fine if the device has at least
            // one.
            Err(error) if error.kind() == ErrorKind::Refused => Ok((number, Err(error))),
            Err(error) => Err(error),
        }
    })?;
    let mut pairs: Vec<Vec<Box<dyn QueuePair>>> = devices.iter().map(|_| Vec::new()).collect();
    let mut refused = Vec::new();
    for (number, opened) in opened {
        match opened {
            Ok(pair) => pairs[number].push(pair),
            Err(error) => refused.push((number, error)),
        }
    }
    match refused.into_iter().find(|(number, _)| pairs[*number].is_empty()) {
        Some((_, error)) => Err(error),
        None => Ok(pairs),
    }
}

/// The name of the threads that open queue pairs.
const OPENING: &str = "dlfs-open";

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::qpair::mem::MemNamespace;
    use crate::qpair::{Capabilities, Namespace};
    use dlfs_base::error::Error;

    /// A device that grants `left` queue pairs.
    struct Few {
        device: MemNamespace,
        left: AtomicUsize,
        stated: usize,
    }

    impl Device for Few {
        fn namespace(&self) -> Namespace {
            self.device.namespace()
        }

        fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
            let granted = |left: usize| left.checked_sub(1);
            match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, granted) {
                Ok(_) => self.device.queue_pair_in(scope),
                Err(_) => Err(Error::new(ErrorKind::Refused, "no more queues")),
            }
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities { max_queue_pairs: self.stated, ..self.device.capabilities() }
        }
    }

    #[test]
    fn each_device_grants_up_to_its_limit_and_at_least_one() {
        let few = |left, stated| -> Arc<dyn Device> {
            let device = MemNamespace::new(512, 512).unwrap();
            Arc::new(Few { device, left: AtomicUsize::new(left), stated })
        };
        let scopes: Vec<PairScope> = (0..3).map(|_| PairScope::new()).collect();
        let devices = [few(9, 9), few(2, 9), few(9, 2), few(1, 0)];
        let opened = open_pairs(&devices, &scopes).unwrap();
        assert_eq!(opened.iter().map(Vec::len).collect::<Vec<_>>(), [3, 2, 2, 1]);
        let refused = open_pairs(&[few(9, 9), few(0, 9)], &scopes).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused);
        assert!(open_pairs(&[], &scopes).unwrap().is_empty());
    }
}
