//! A device around another one, whose queue pairs fail on request.
//!
//! Rules can be added while it is in use; each applies to the next I/Os that it matches, a given
//! number of times. Other I/Os pass through.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlfs::Result;
use dlfs::buf::{Pool, SharedBuf};
use dlfs::nvme::Status;
use dlfs::qpair::readiness::Registry;
use dlfs::qpair::{
    Capabilities, Completion, Device, Fence, Io, IoError, IoOp, Namespace, Notice, PairScope,
    QueuePair,
};
use dlfs::units::Lba;

use super::random::Random;

/// A fault that happens to an I/O.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// Its completion is delayed by this many polls.
    Delay { polls: u32 },
    /// Its completion is delayed by this time.
    DelayTime(Duration),
    /// Its completion waits for [`Faulty::release`].
    Hold,
    /// It never completes while its queue pair exists.
    Swallow,
    /// Bit `bit` of the data read is flipped, counted from the start of the buffer.
    FlipBit { bit: usize },
    /// It completes with this status and without data.
    Status(Status),
    /// Half of its data arrive, reported as success by the target and detected by the engine.
    Short,
    /// It fails with an error of the operating system.
    Os(i32),
    /// It fails with an error of the operating system after this time.
    LateOs(Duration, i32),
    /// All I/Os of the queue pair, and all later ones, fail with `Disconnected`.
    Disconnect,
}

/// The I/Os that a fault applies to, and how often it does.
#[derive(Debug, Clone)]
pub struct Rule {
    pub op: IoOp,
    pub blocks: Range<u64>,
    pub times: u32,
    pub fault: Fault,
}

impl Rule {
    /// The next `times` reads that touch any block of `blocks`.
    pub fn read(blocks: Range<u64>, times: u32, fault: Fault) -> Rule {
        Rule { op: IoOp::Read, blocks, times, fault }
    }

    /// The next `times` reads, at any address.
    pub fn any_read(times: u32, fault: Fault) -> Rule {
        Rule::read(0..u64::MAX, times, fault)
    }

    fn matches(&self, op: IoOp, slba: Lba, num_blocks: u64) -> bool {
        let end = slba.0.saturating_add(num_blocks.max(1));
        self.times > 0 && self.op == op && slba.0 < self.blocks.end && self.blocks.start < end
    }
}

/// A device around another one, with its rules. Clones share the rules.
#[derive(Clone)]
pub struct Faulty {
    inner: Arc<dyn Device>,
    rules: Arc<Mutex<Rules>>,
}

#[derive(Default)]
struct Rules {
    rules: Vec<Rule>,
    shuffle: Option<u64>,
    together: bool,
    is_released: bool,
    struck: u32,
    starts: u32,
    most_outstanding: usize,
    seen: Vec<(IoOp, Lba, usize)>,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Device>) -> Faulty {
        Faulty { inner, rules: Arc::default() }
    }

    /// Adds a rule; the oldest matching rule applies.
    pub fn add(&self, rule: Rule) {
        self.rules.lock().unwrap().rules.push(rule);
    }

    /// From now on, new queue pairs complete in random order.
    pub fn shuffle_completions(&self, seed: u64) {
        self.rules.lock().unwrap().shuffle = Some(seed);
    }

    /// From now on, a queue pair completes its I/Os all at once, when the last of them is done.
    pub fn complete_together(&self) {
        self.rules.lock().unwrap().together = true;
    }

    /// Completes all that is delayed, now and later.
    pub fn release(&self) {
        self.rules.lock().unwrap().is_released = true;
    }

    /// How many I/Os a rule has been applied to.
    pub fn struck(&self) -> u32 {
        self.rules.lock().unwrap().struck
    }

    /// How often queue pairs were told to start their pending I/Os.
    pub fn starts(&self) -> u32 {
        self.rules.lock().unwrap().starts
    }

    /// The most I/Os that any queue pair had outstanding at once.
    pub fn most_outstanding(&self) -> usize {
        self.rules.lock().unwrap().most_outstanding
    }

    /// The I/Os submitted since the last call: operation, block and length.
    pub fn take_seen(&self) -> Vec<(IoOp, Lba, usize)> {
        std::mem::take(&mut self.rules.lock().unwrap().seen)
    }
}

impl Device for Faulty {
    fn namespace(&self) -> Namespace {
        self.inner.namespace()
    }

    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        let shuffle = self.rules.lock().unwrap().shuffle.map(Random::new);
        Ok(Box::new(FaultyPair {
            inner: self.inner.queue_pair_in(scope)?,
            rules: Arc::clone(&self.rules),
            shuffle,
            struck: Vec::new(),
            held: Vec::new(),
            ready: VecDeque::new(),
            swallowed: Vec::new(),
            disconnected: false,
        }))
    }

    fn grow(&self, len_bytes: u64) -> Result<()> {
        self.inner.grow(len_bytes)
    }

    fn trim(&self, unused: &[Range<u64>], len_bytes: u64) -> Result<()> {
        self.inner.trim(unused, len_bytes)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

struct FaultyPair {
    inner: Box<dyn QueuePair>,
    rules: Arc<Mutex<Rules>>,
    shuffle: Option<Random>,
    /// Tags outstanding in `inner` to which a fault applies when they complete.
    struck: Vec<(u64, Fault)>,
    /// Delayed completions, with the number of polls or the time to wait for.
    held: Vec<(u32, Option<Instant>, Completion)>,
    ready: VecDeque<Completion>,
    swallowed: Vec<Completion>,
    disconnected: bool,
}

impl FaultyPair {
    fn strike(&mut self, now: Instant, mut completion: Completion) {
        let position = self.struck.iter().position(|(tag, _)| *tag == completion.tag);
        let fault = position.map(|position| self.struck.swap_remove(position).1);
        match fault {
            None => return self.ready.push_back(completion),
            Some(Fault::Delay { polls }) => return self.held.push((polls, None, completion)),
            Some(Fault::Hold) => return self.held.push((u32::MAX, None, completion)),
            Some(Fault::DelayTime(time)) => {
                return self.held.push((0, Some(now + time), completion));
            }
            Some(Fault::Swallow) => return self.swallowed.push(completion),
            Some(Fault::FlipBit { bit }) => {
                let bit = bit % (completion.buf.len() * 8);
                completion.buf[bit / 8] ^= 1 << (bit % 8);
            }
            Some(Fault::Status(status)) => completion.result = Err(IoError::Status(status)),
            Some(Fault::Short) => {
                let expected = completion.buf.len() as u64;
                completion.result = Err(IoError::Short { expected, found: expected / 2 });
            }
            Some(Fault::Os(errno)) => completion.result = Err(IoError::Os(errno)),
            Some(Fault::LateOs(time, errno)) => {
                completion.result = Err(IoError::Os(errno));
                return self.held.push((0, Some(now + time), completion));
            }
            Some(Fault::Disconnect) => self.disconnected = true,
        }
        self.ready.push_back(completion);
    }

    fn release_held(&mut self, now: Instant) {
        for (polls, _, _) in &mut self.held {
            *polls = polls.saturating_sub(1);
        }
        let is_released = !self.held.is_empty() && self.rules.lock().unwrap().is_released;
        let due = |(polls, time, _): &mut (u32, Option<Instant>, Completion)| {
            is_released || *polls == 0 && time.is_none_or(|time| time <= now)
        };
        self.ready.extend(self.held.extract_if(.., due).map(|(_, _, completion)| completion));
    }

    fn disconnect(&mut self) {
        self.ready.extend(self.held.drain(..).map(|(_, _, completion)| completion));
        self.ready.extend(self.swallowed.drain(..));
        for completion in &mut self.ready {
            completion.result = Err(IoError::Disconnected("a fault was asked for".into()));
        }
    }
}

impl QueuePair for FaultyPair {
    fn namespace(&self) -> &Namespace {
        self.inner.namespace()
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let before: Vec<_> =
            pending.iter().map(|io| (io.op, io.slba, io.buf.len(), io.tag)).collect();
        let hidden = self.held.len() + self.swallowed.len() + self.ready.len();
        let depth = usize::from(self.inner.namespace().queue_depth);
        let room = depth.saturating_sub(self.inner.outstanding() + hidden);
        let mut offered: VecDeque<Io> = pending.drain(..room.min(pending.len())).collect();
        let taken = self.inner.submit(&mut offered);
        while let Some(io) = offered.pop_back() {
            pending.push_front(io);
        }
        let block_len = self.inner.namespace().block_len_bytes as usize;
        let mut rules = self.rules.lock().unwrap();
        rules.most_outstanding = rules.most_outstanding.max(hidden + self.inner.outstanding());
        for (op, slba, len, tag) in before.into_iter().take(taken) {
            rules.seen.push((op, slba, len));
            let num_blocks = (len / block_len) as u64;
            let rule = rules.rules.iter_mut().find(|rule| rule.matches(op, slba, num_blocks));
            if let Some(rule) = rule {
                rule.times -= 1;
                self.struck.push((tag, rule.fault.clone()));
                rules.struck += 1;
            }
        }
        taken
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let mut arrived = Vec::new();
        self.inner.poll(now, usize::MAX, &mut arrived);
        self.release_held(now);
        for completion in arrived {
            self.strike(now, completion);
        }
        if self.disconnected {
            self.disconnect();
        }
        if let Some(random) = &mut self.shuffle {
            random.shuffle(self.ready.make_contiguous());
        }
        let is_early = self.inner.outstanding() + self.held.len() > 0;
        if is_early && self.rules.lock().unwrap().together {
            return 0;
        }
        let count = max.min(self.ready.len());
        done.extend(self.ready.drain(..count));
        count
    }

    fn start(&mut self) {
        self.rules.lock().unwrap().starts += 1;
        self.inner.start();
    }

    fn use_pool(&mut self, pool: &Pool) {
        self.inner.use_pool(pool);
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.inner.use_fence(fence);
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        self.inner.report_corrupt(slba, len_bytes);
    }

    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        // Lent data cannot be changed, so nothing is lent while there are rules.
        let has_rules = !self.rules.lock().unwrap().rules.is_empty();
        if has_rules { None } else { self.inner.borrow(slba, len_bytes) }
    }

    fn has_copies(&self, slba: Lba, len_bytes: usize) -> bool {
        self.inner.has_copies(slba, len_bytes)
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding() + self.held.len() + self.swallowed.len() + self.ready.len()
    }

    fn shared_queue(&self) -> Option<usize> {
        self.inner.shared_queue()
    }

    fn register(&mut self, registry: &Registry) {
        self.inner.register(registry);
    }

    fn notice(&self) -> Notice {
        if self.held.is_empty() && self.ready.is_empty() {
            self.inner.notice()
        } else {
            Notice::Poll
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let held = self.held.iter().filter_map(|(_, time, _)| *time);
        held.chain(self.inner.next_timeout()).min()
    }
}
