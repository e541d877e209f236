//! A namespace in memory: no thread, no mapping, nothing to wait for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use dlfs::qpair::{Capabilities, Completion, Device, Io, IoOp, Namespace, PairScope, QueuePair};
use dlfs::{Error, ErrorKind, Result};

/// The bytes of a namespace, shared by all handles.
#[derive(Clone)]
pub struct Plate {
    bytes: Arc<Mutex<Vec<u8>>>,
    most_bytes: u64,
    /// True if an opener has locked it, like a file.
    is_exclusive: bool,
}

impl Plate {
    /// A namespace of `bytes`, padded to whole blocks; it may grow to `most_bytes`.
    pub fn new(mut bytes: Vec<u8>, most_bytes: u64, is_exclusive: bool) -> Plate {
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES), 0);
        Plate { bytes: Arc::new(Mutex::new(bytes)), most_bytes, is_exclusive }
    }

    /// Its contents.
    pub fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().expect("nobody panics with it")
    }
}

impl Device for Plate {
    fn namespace(&self) -> Namespace {
        Namespace {
            address: "plate".into(),
            block_len_bytes: BLOCK_BYTES as u32,
            num_blocks: (self.bytes().len() / BLOCK_BYTES) as u64,
            max_transfer_bytes: 128 << 10,
            queue_depth: 8,
            nguid: [0; 16],
            read_only: false,
            engine: "plate".into(),
        }
    }

    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let plate = self.clone();
        let namespace = self.namespace();
        Ok(Box::new(Pair { plate, namespace, taken: VecDeque::new() }))
    }

    fn grow(&self, len_bytes: u64) -> Result<()> {
        if len_bytes > self.most_bytes {
            return Err(Error::new(ErrorKind::NoSpace, "the plate is full"));
        }
        let mut bytes = self.bytes();
        let len = (len_bytes as usize).next_multiple_of(BLOCK_BYTES).max(bytes.len());
        bytes.resize(len, 0);
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_queue_pairs: usize::MAX,
            can_grow: true,
            is_exclusive: self.is_exclusive,
            late_writes: Duration::ZERO,
            checks_writes: true,
            is_page_cached: false,
            local_path: None,
            allocated_bytes: None,
        }
    }
}

struct Pair {
    plate: Plate,
    namespace: Namespace,
    taken: VecDeque<Io>,
}

impl QueuePair for Pair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        self.namespace.num_blocks = self.plate.namespace().num_blocks;
        let room = usize::from(self.namespace.queue_depth) - self.taken.len();
        let count = room.min(pending.len());
        self.taken.extend(pending.drain(..count));
        count
    }

    fn poll(&mut self, _: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let count = max.min(self.taken.len());
        let mut bytes = self.plate.bytes();
        done.extend(self.taken.drain(..count).map(|mut io| {
            let result = self.namespace.check(&io).map(|()| {
                let at = io.slba.0 as usize * BLOCK_BYTES;
                let len = io.buf.len();
                match io.op {
                    IoOp::Read => io.buf.copy_from_slice(&bytes[at..at + len]),
                    IoOp::Write => bytes[at..at + len].copy_from_slice(&io.buf),
                    IoOp::Flush => {}
                }
            });
            Completion { tag: io.tag, buf: io.buf, result }
        }));
        count
    }

    fn outstanding(&self) -> usize {
        self.taken.len()
    }
}

const BLOCK_BYTES: usize = 512;
