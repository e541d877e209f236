//! A disk in memory that records every write and flush, and fails chosen ones.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlfs::Result;
use dlfs::buf::{Pool, SharedBuf};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::readiness::Registry;
use dlfs::qpair::{
    Capabilities, Completion, Device, Fence, Io, IoError, IoOp, Namespace, Notice, PairScope,
    QueuePair,
};
use dlfs::units::Lba;

/// The history of a set of disks, in order.
#[derive(Debug, Clone)]
pub enum Event {
    /// Bytes were written; they may be lost until the next flush.
    Write { disk: usize, offset: u64, bytes: Vec<u8> },
    /// Everything written to the disk before is durable.
    Flush { disk: usize },
}

/// A failure of writes and flushes: which of them fail, and how.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The first failing one, counted over all disks from 0.
    pub first: u64,
    /// How many fail; all others succeed.
    pub count: u64,
    /// Their error.
    pub error: IoError,
    /// True if the first failure also loses everything that its disk received since its last flush.
    pub loses_unflushed: bool,
}

/// Several disks and their common history.
#[derive(Clone)]
pub struct Disks {
    disks: Vec<MemNamespace>,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    events: Vec<Event>,
    keep_events: bool,
    operations: u64,
    read_bytes: u64,
    failure: Option<Failure>,
    /// The contents that each disk would still have after a power loss, recorded while a failure is to lose the rest.
    durable: Vec<Vec<u8>>,
}

impl Disks {
    pub fn new(count: usize, len_bytes: u64) -> Disks {
        let disk = |_| MemNamespace::new(len_bytes, 512).unwrap();
        Disks { disks: (0..count).map(disk).collect(), shared: Arc::default() }
    }

    /// Disks with these contents.
    pub fn holding(contents: &[Vec<u8>]) -> Disks {
        let disks = Disks::new(contents.len(), contents[0].len() as u64);
        for (disk, bytes) in disks.disks.iter().zip(contents) {
            Blocking::new(disk.queue_pair().unwrap()).unwrap().write_at(0, bytes).unwrap();
        }
        disks
    }

    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        let device = |number: usize| {
            let disk = self.disks[number].clone();
            let shared = self.shared.clone();
            Arc::new(NotedDevice { disk, number, shared }) as Arc<dyn Device>
        };
        (0..self.disks.len()).map(device).collect()
    }

    pub fn contents(&self) -> Vec<Vec<u8>> {
        self.disks.iter().map(content).collect()
    }

    /// Starts recording.
    pub fn keep_events(&self) {
        self.shared.lock().unwrap().keep_events = true;
    }

    pub fn events(&self) -> Vec<Event> {
        self.shared.lock().unwrap().events.clone()
    }

    /// Writes and flushes so far, failed ones included.
    pub fn operations(&self) -> u64 {
        self.shared.lock().unwrap().operations
    }

    /// Bytes read since this was asked last.
    pub fn read_bytes(&self) -> u64 {
        std::mem::take(&mut self.shared.lock().unwrap().read_bytes)
    }

    pub fn fail(&self, failure: Option<Failure>) {
        let keep = failure.as_ref().is_some_and(|failure| failure.loses_unflushed);
        let durable = if keep { self.contents() } else { Vec::new() };
        let mut shared = self.shared.lock().unwrap();
        shared.operations = 0;
        shared.durable = durable;
        shared.failure = failure;
    }
}

fn content(disk: &MemNamespace) -> Vec<u8> {
    let len = disk.namespace().len_bytes() as usize;
    Blocking::new(disk.queue_pair().unwrap()).unwrap().read(0, len).unwrap().to_vec()
}

struct NotedDevice {
    disk: MemNamespace,
    number: usize,
    shared: Arc<Mutex<Shared>>,
}

impl Device for NotedDevice {
    fn namespace(&self) -> Namespace {
        self.disk.namespace()
    }

    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        Ok(Box::new(NotedPair {
            inner: self.disk.queue_pair_in(scope)?,
            disk: self.disk.clone(),
            number: self.number,
            shared: self.shared.clone(),
            failed: Vec::new(),
        }))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_queue_pairs: usize::MAX,
            can_grow: false,
            is_exclusive: true, // so that only the import itself is recorded
            late_writes: Duration::ZERO,
            checks_writes: true,
            is_page_cached: false,
            local_path: None,
            allocated_bytes: None,
        }
    }
}

struct NotedPair {
    disk: MemNamespace,
    inner: Box<dyn QueuePair>,
    number: usize,
    shared: Arc<Mutex<Shared>>,
    failed: Vec<Completion>,
}

impl Shared {
    fn durable_of(&self, disk: usize) -> Option<&[u8]> {
        self.durable.get(disk).map(|bytes| &bytes[..])
    }

    /// Counts an operation; returns its error if it is one that fails.
    fn strike(&mut self) -> Option<IoError> {
        let at = self.operations;
        self.operations += 1;
        let failure = self.failure.as_ref()?;
        let ends = failure.first.saturating_add(failure.count);
        (failure.first..ends).contains(&at).then(|| failure.error.clone())
    }
}

impl QueuePair for NotedPair {
    fn namespace(&self) -> &Namespace {
        self.inner.namespace()
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let mut taken = 0;
        while let Some(io) = pending.pop_front() {
            let mut shared = self.shared.lock().unwrap();
            let error = if io.op == IoOp::Read { None } else { shared.strike() };
            if let Some(error) = error {
                if let Some(durable) = shared.durable_of(self.number) {
                    let mut disk = Blocking::new(self.disk.queue_pair().unwrap()).unwrap();
                    disk.write_at(0, durable).unwrap();
                    shared.durable.clear();
                }
                self.failed.push(Completion { tag: io.tag, buf: io.buf, result: Err(error) });
                taken += 1;
                continue;
            }
            let block_len = u64::from(self.inner.namespace().block_len_bytes);
            let event = (io.op == IoOp::Write && shared.keep_events).then(|| Event::Write {
                disk: self.number,
                offset: io.slba.0 * block_len,
                bytes: io.buf.to_vec(),
            });
            let read = if io.op == IoOp::Read { io.buf.len() as u64 } else { 0 };
            let mut one = VecDeque::from([io]);
            if self.inner.submit(&mut one) == 0 {
                shared.operations -= u64::from(one[0].op != IoOp::Read);
                pending.push_front(one.pop_front().unwrap());
                break;
            }
            shared.read_bytes += read;
            shared.events.extend(event);
            taken += 1;
        }
        taken
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let failed = self.failed.len().min(max);
        done.extend(self.failed.drain(..failed));
        let from = done.len();
        let polled = self.inner.poll(now, max - failed, done);
        let mut shared = self.shared.lock().unwrap();
        // Only a flush has no bytes.
        let flushes = done[from..].iter().filter(|done| done.buf.is_empty()).count();
        if flushes > 0 && shared.durable_of(self.number).is_some() {
            shared.durable[self.number] = content(&self.disk);
        }
        if shared.keep_events {
            let flush = Event::Flush { disk: self.number };
            shared.events.extend(std::iter::repeat_n(flush, flushes));
        }
        failed + polled
    }

    fn start(&mut self) {
        self.inner.start();
    }

    fn use_pool(&mut self, pool: &Pool) {
        self.inner.use_pool(pool);
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.inner.use_fence(fence);
    }

    fn outstanding(&self) -> usize {
        self.failed.len() + self.inner.outstanding()
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        self.inner.report_corrupt(slba, len_bytes);
    }

    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        self.inner.borrow(slba, len_bytes)
    }

    fn has_copies(&self, slba: Lba, len_bytes: usize) -> bool {
        self.inner.has_copies(slba, len_bytes)
    }

    fn shared_queue(&self) -> Option<usize> {
        self.inner.shared_queue()
    }

    fn register(&mut self, registry: &Registry) {
        self.inner.register(registry);
    }

    fn notice(&self) -> Notice {
        if self.failed.is_empty() { self.inner.notice() } else { Notice::Poll }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.inner.next_timeout()
    }
}
