//! A forked child process of a program whose threads share one queue pair.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::alone::ran_alone;
use crate::support::fork::in_child;
use dlfs::buf::{IoBuf, Pool, SharedBuf};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::readiness::Registry;
use dlfs::qpair::shared::SharedDevice;
use dlfs::qpair::{
    Capabilities, Completion, Device, Fence, Io, IoError, IoOp, Namespace, Notice, PairScope,
    QueuePair,
};
use dlfs::units::Lba;

/// A gate at which a test stops a thread in the middle of a call.
#[derive(Default)]
struct Gate {
    is_shut: AtomicBool,
    is_waiting: AtomicBool,
}

impl Gate {
    fn pass(&self) {
        while self.is_shut.load(Ordering::SeqCst) {
            self.is_waiting.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
    }

    /// Waits until a thread stands before the gate.
    fn wait(&self) {
        let limit = Instant::now() + Duration::from_secs(60);
        while !self.is_waiting.load(Ordering::SeqCst) {
            assert!(Instant::now() < limit, "no thread has come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn open(&self) {
        self.is_shut.store(false, Ordering::SeqCst);
    }
}

/// Memory behind two gates: one before a queue pair is opened, one before it is polled.
struct Gated {
    memory: MemNamespace,
    opens: Arc<Gate>,
    polls: Arc<Gate>,
}

struct GatedPair {
    pair: Box<dyn QueuePair>,
    polls: Arc<Gate>,
}

impl Device for Gated {
    fn namespace(&self) -> Namespace {
        self.memory.namespace()
    }

    fn queue_pair_in(&self, scope: &PairScope) -> dlfs::Result<Box<dyn QueuePair>> {
        self.opens.pass();
        let pair = self.memory.queue_pair_in(scope)?;
        Ok(Box::new(GatedPair { pair, polls: Arc::clone(&self.polls) }))
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn grow(&self, len_bytes: u64) -> dlfs::Result<()> {
        self.memory.grow(len_bytes)
    }
}

impl QueuePair for GatedPair {
    fn namespace(&self) -> &Namespace {
        self.pair.namespace()
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        self.pair.submit(pending)
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        self.polls.pass();
        self.pair.poll(now, max, done)
    }

    fn start(&mut self) {
        self.pair.start();
    }

    fn use_pool(&mut self, pool: &Pool) {
        self.pair.use_pool(pool);
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.pair.use_fence(fence);
    }

    fn outstanding(&self) -> usize {
        self.pair.outstanding()
    }

    fn shared_queue(&self) -> Option<usize> {
        self.pair.shared_queue()
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        self.pair.report_corrupt(slba, len_bytes);
    }

    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        self.pair.borrow(slba, len_bytes)
    }

    fn has_copies(&self, slba: Lba, len_bytes: usize) -> bool {
        self.pair.has_copies(slba, len_bytes)
    }

    fn register(&mut self, registry: &Registry) {
        self.pair.register(registry);
    }

    fn notice(&self) -> Notice {
        self.pair.notice()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.pair.next_timeout()
    }
}

fn gated() -> (Arc<SharedDevice>, Arc<Gate>, Arc<Gate>) {
    let opens = Arc::<Gate>::default();
    let polls = Arc::<Gate>::default();
    let memory = MemNamespace::new(1 << 20, 512).unwrap();
    let device = Gated { memory, opens: Arc::clone(&opens), polls: Arc::clone(&polls) };
    (Arc::new(SharedDevice::new(Arc::new(device), Arc::default())), opens, polls)
}

fn write(tag: u64) -> Io {
    Io { op: IoOp::Write, slba: Lba(tag), buf: IoBuf::zeroed(512), tag }
}

fn works(device: &SharedDevice) -> bool {
    let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
    io.write_at(8192, &[7; 4096]).is_ok() && *io.read(8192, 4096).unwrap() == [7; 4096]
}

#[test]
fn a_child_opens_its_own_while_a_thread_of_the_parent_was_opening() {
    if ran_alone(a_child_opens_its_own_while_a_thread_of_the_parent_was_opening) {
        return;
    }
    let (device, opens, _) = gated();
    opens.shut();
    let opener = std::thread::spawn({
        let device = Arc::clone(&device);
        move || works(&device)
    });
    opens.wait();
    let child_works = in_child(|| {
        opens.open();
        works(&device)
    });
    opens.open(); // in any case, or the parent's thread would never end
    assert!(child_works);
    assert!(opener.join().unwrap(), "the parent's thread opens as if nothing had happened");
}

#[test]
fn inherited_io_fails_with_the_reason_if_a_thread_of_the_parent_was_polling() {
    if ran_alone(inherited_io_fails_with_the_reason_if_a_thread_of_the_parent_was_polling) {
        return;
    }
    let (device, _, polls) = gated();
    let mut ours = device.queue_pair().unwrap();
    let theirs = device.queue_pair().unwrap();
    assert_eq!(ours.submit(&mut VecDeque::from([write(1), write(2)])), 2);
    polls.shut();
    let poller = std::thread::spawn({
        let mut theirs = theirs;
        move || {
            theirs.poll(Instant::now(), 9, &mut Vec::new());
        }
    });
    polls.wait();
    let child_fails_them = in_child(|| {
        polls.open();
        assert!(ours.next_timeout().is_some_and(|at| at <= Instant::now()));
        let mut done = Vec::new();
        assert_eq!((ours.poll(Instant::now(), 1, &mut done), ours.outstanding()), (1, 1));
        // I/O that is submitted afterwards fails too, and keeps its buffer.
        assert_eq!(ours.submit(&mut VecDeque::from([write(3)])), 1);
        assert_eq!((ours.poll(Instant::now(), 9, &mut done), ours.outstanding()), (2, 0));
        let tags: Vec<u64> = done.iter().map(|completion| completion.tag).collect();
        let have_reason = done.iter().all(|completion| {
            matches!(&completion.result, Err(IoError::Disconnected(why)) if why.contains("was forked"))
        });
        let lens: Vec<usize> = done.iter().map(|completion| completion.buf.len()).collect();
        // The device itself is usable, also beside the lost handle.
        tags == [1, 2, 3] && lens == [0, 0, 512] && have_reason && works(&device)
    });
    polls.open(); // in any case, or the parent's thread would never end
    poller.join().unwrap();
    assert!(child_fails_them);
    let mut done = Vec::new();
    ours.poll(Instant::now(), 9, &mut done);
    assert_eq!((done.len(), ours.outstanding()), (2, 0), "the parent's own");
    assert!(done.iter().all(|completion| completion.result.is_ok()));
}

#[test]
fn a_child_continues_what_no_thread_was_using() {
    if ran_alone(a_child_continues_what_no_thread_was_using) {
        return;
    }
    let (device, _, _) = gated();
    let mut pair = device.queue_pair().unwrap();
    assert_eq!(pair.submit(&mut VecDeque::from([write(1), write(2)])), 2);
    let mut finish = || {
        let mut done = Vec::new();
        pair.poll(Instant::now(), 9, &mut done);
        done.len() == 2 && done.iter().all(|completion| completion.result.is_ok())
    };
    assert!(in_child(|| {
        // A child of the child finds what the child has not touched.
        let grandchild = in_child(|| works(&device));
        grandchild && finish() && works(&device)
    }));
    assert!(finish(), "the parent's own");
}
