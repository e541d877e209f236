//! One queue pair for several threads, where a device gives out too few.
//!
//! Each handle is a [`QueuePair`] to its thread. Below all of them lies one queue pair of the device,
//! and whoever polls moves it on for all: completions of another handle wait until that one polls.
//!
//! This is for writers on a target that grants few I/O queues, not for the read path: every turn takes
//! a lock, and a handle has no descriptor to sleep on, so it looks twice in a millisecond.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use slab::Slab;

use super::readiness::Registry;
use super::{Capabilities, Completion, Device, Fence, Io, Namespace, Notice, PairScope, QueuePair};
use crate::buf::{Pool, SharedBuf};
use crate::error::Result;
use crate::units::Lba;

/// A device whose queue pairs are handles on one.
pub struct SharedDevice {
    device: Arc<dyn Device>,
    scope: Arc<PairScope>,
    lane: Mutex<Weak<Mutex<Lane>>>,
}

/// The queue pair below the handles.
struct Lane {
    pair: Box<dyn QueuePair>,
    /// Whose each I/O is that `pair` has taken, by its tag there.
    owners: Slab<Owner>,
    /// What has completed and its handle has not taken yet, of every handle there is.
    arrived: HashMap<u64, VecDeque<Completion>>,
    next_handle: u64,
    scratch: Vec<Completion>,
}

struct Owner {
    handle: u64,
    tag: u64,
}

impl SharedDevice {
    /// Around `device`, of which one queue pair is used at a time. Those behind one controller share one I/O
    /// queue, if they have the same `scope`, whoever polls their handles.
    pub fn new(device: Arc<dyn Device>, scope: Arc<PairScope>) -> SharedDevice {
        SharedDevice { device, scope, lane: Mutex::new(Weak::new()) }
    }
}

impl Device for SharedDevice {
    fn namespace(&self) -> Namespace {
        self.device.namespace()
    }

    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let mut current = self.lane.lock();
        let lane = match current.upgrade() {
            Some(lane) => lane,
            None => {
                let lane = Arc::new(Mutex::new(Lane {
                    pair: self.device.queue_pair_in(&self.scope)?,
                    owners: Slab::new(),
                    arrived: HashMap::new(),
                    next_handle: 0,
                    scratch: Vec::new(),
                }));
                *current = Arc::downgrade(&lane);
                lane
            }
        };
        Ok(Box::new(Handle::on(lane)))
    }

    fn grow(&self, len_bytes: u64) -> Result<()> {
        self.device.grow(len_bytes)
    }

    fn capabilities(&self) -> Capabilities {
        let below = self.device.capabilities();
        Capabilities {
            // Handles, of which there may be any number.
            max_queue_pairs: usize::MAX,
            can_grow: below.can_grow,
            is_exclusive: below.is_exclusive,
            late_writes: below.late_writes,
            checks_writes: below.checks_writes,
            is_page_cached: below.is_page_cached,
            local_path: below.local_path,
        }
    }
}

/// One thread's share of the queue pair.
struct Handle {
    lane: Arc<Mutex<Lane>>,
    number: u64,
    namespace: Namespace,
    owed: usize,
    /// Whether the queue below had no room: another handle's completion makes some.
    refused: bool,
    fence: Option<Arc<Fence>>,
    next_look: Instant,
}

impl Handle {
    fn on(lane: Arc<Mutex<Lane>>) -> Handle {
        let mut shared = lane.lock();
        let (number, namespace) = (shared.next_handle, shared.pair.namespace().clone());
        shared.next_handle += 1;
        shared.arrived.insert(number, VecDeque::new());
        drop(shared);
        let next_look = Instant::now();
        Handle { lane, number, namespace, owed: 0, refused: false, fence: None, next_look }
    }
}

impl QueuePair for Handle {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let Lane { pair, owners, .. } = &mut *self.lane.lock();
        let number = self.number;
        let own = |io: Io| {
            let key = owners.insert(Owner { handle: number, tag: io.tag });
            Io { tag: key as u64, ..io }
        };
        let mut offered: VecDeque<Io> = pending.drain(..).map(own).collect();
        if let Some(fence) = &self.fence {
            pair.use_fence(fence); // for what is submitted now
        }
        let taken = pair.submit(&mut offered);
        for io in offered {
            let Owner { tag, .. } = owners.remove(io.tag as usize);
            pending.push_back(Io { tag, ..io });
        }
        self.owed += taken;
        self.refused = !pending.is_empty();
        taken
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let Lane { pair, owners, arrived, scratch, .. } = &mut *self.lane.lock();
        pair.poll(now, usize::MAX, scratch);
        for completion in scratch.drain(..) {
            let Owner { handle, tag } = owners.remove(completion.tag as usize);
            // Nobody waits for the I/Os of a handle that was dropped.
            if let Some(arrived) = arrived.get_mut(&handle) {
                arrived.push_back(Completion { tag, ..completion });
            }
        }
        if *pair.namespace() != self.namespace {
            self.namespace = pair.namespace().clone();
        }
        let own = arrived.get_mut(&self.number).expect("there while the handle is");
        let count = max.min(own.len());
        done.extend(own.drain(..count));
        self.owed -= count;
        self.next_look = now + LOOK_EVERY;
        count
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.fence = Some(Arc::clone(fence));
    }

    fn start(&mut self) {
        self.lane.lock().pair.start();
    }

    fn use_pool(&mut self, pool: &Pool) {
        self.lane.lock().pair.use_pool(pool);
    }

    fn outstanding(&self) -> usize {
        self.owed
    }

    fn distrust(&mut self, slba: Lba, len_bytes: usize) {
        self.lane.lock().pair.distrust(slba, len_bytes);
    }

    fn lend(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        self.lane.lock().pair.lend(slba, len_bytes)
    }

    fn shared_queue(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.lane).addr())
    }

    /// The descriptors below are of whoever polls: it looks by time.
    fn join(&mut self, _: &Registry) {}

    fn notice(&self) -> Notice {
        Notice::Look
    }

    fn next_timeout(&self) -> Option<Instant> {
        (self.owed > 0 || self.refused).then_some(self.next_look)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.lane.lock().arrived.remove(&self.number);
    }
}

/// How long a handle sleeps at a time: the descriptor below is not its own to sleep on.
const LOOK_EVERY: Duration = Duration::from_micros(500);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::IoBuf;
    use crate::qpair::blocking::Blocking;
    use crate::qpair::mem::MemNamespace;
    use crate::qpair::{Io, IoOp};

    fn shared() -> SharedDevice {
        let device = MemNamespace::new(1 << 20, 512).unwrap().with_limits(4096, 3);
        SharedDevice::new(Arc::new(device), Arc::default())
    }

    fn write(block: u64, tag: u64) -> Io {
        Io { op: IoOp::Write, slba: Lba(block), buf: IoBuf::zeroed(512), tag }
    }

    #[test]
    fn each_handle_gets_what_it_submitted_whoever_polls() {
        let device = shared();
        let (mut one, mut two) = (device.queue_pair().unwrap(), device.queue_pair().unwrap());
        let mut of_one: VecDeque<Io> = (0..3).map(|tag| write(tag, tag)).collect();
        let mut of_two: VecDeque<Io> = (0..2).map(|tag| write(8 + tag, tag + 70)).collect();
        assert_eq!(one.submit(&mut of_one), 3);
        assert_eq!(two.submit(&mut of_two), 0, "the queue below is full");
        assert_eq!(of_two.iter().map(|io| io.tag).collect::<Vec<_>>(), [70, 71]);
        assert!(
            two.next_timeout().is_some(),
            "it must look again, though it has nothing under way"
        );
        let mut done = Vec::new();
        assert_eq!(two.poll(Instant::now(), 9, &mut done), 0);
        assert_eq!(two.submit(&mut of_two), 2);
        assert_eq!((one.outstanding(), two.outstanding()), (3, 2));
        one.poll(Instant::now(), 2, &mut done);
        one.poll(Instant::now(), 9, &mut done);
        let mut tags: Vec<u64> = done.drain(..).map(|completion| completion.tag).collect();
        tags.sort_unstable();
        assert_eq!((tags, one.outstanding()), (vec![0, 1, 2], 0));
        two.poll(Instant::now(), 9, &mut done);
        assert_eq!((done.len(), two.outstanding()), (2, 0));
    }

    #[test]
    fn what_a_dropped_handle_had_under_way_is_nobody_elses() {
        let device = shared();
        let (mut one, mut two) = (device.queue_pair().unwrap(), device.queue_pair().unwrap());
        assert_eq!(one.submit(&mut VecDeque::from([write(0, 1)])), 1);
        drop(one);
        assert_eq!(two.submit(&mut VecDeque::from([write(1, 1)])), 1);
        let mut done = Vec::new();
        two.poll(Instant::now(), 9, &mut done);
        assert_eq!((done.len(), two.outstanding()), (1, 0));
    }

    #[test]
    fn threads_write_and_read_through_one_queue_pair_at_once() {
        let device = shared();
        std::thread::scope(|scope| {
            for number in 0..4u8 {
                let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
                scope.spawn(move || {
                    let offset = u64::from(number) << 16;
                    for round in 0..50 {
                        let bytes = [number ^ round; 20_480];
                        io.write_at(offset, &bytes).unwrap();
                        let mut found = [0; 20_480];
                        io.read_at(offset, &mut found).unwrap();
                        assert!(found == bytes, "thread {number}, round {round}");
                    }
                });
            }
        });
    }
}
