//! The namespaces of an image for an import. Several threads write, each on its own [`Channel`], and a flush covers the
//! writes of all threads. `retry.rs` decides how long a failed call is tried again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::import::retry::{RetryBudget, is_transient};
use dlfs_base::buf::IoBuf;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::ImageLayout;
use dlfs_format::format::geometry::MAX_NAMESPACE_BYTES;
use dlfs_format::format::superblock::SUPERBLOCK_BYTES;
use dlfs_format::format::superblock_set::SuperblockCopies;
use dlfs_io::qpair::calls::{Calls, Ticket};
use dlfs_io::qpair::mem::MemNamespace;
use dlfs_io::qpair::shared::SharedDevice;
use dlfs_io::qpair::{Device, Fence, PairScope, or_unreadable};

/// The namespaces of an image, in the image's order.
#[derive(Clone)]
pub(super) struct Media {
    pub(super) devices: Arc<[Arc<dyn Device>]>,
    /// Checks all writes except those of the lease, and refuses them until the lease is held: see `lease.rs`.
    pub(super) fence: Arc<Fence>,
    /// Time of the last call that failed for a transient reason, in ns of [`Fence::now`]; 0: none. The writes of that
    /// call may still be in transit.
    lost_write_ns: Arc<AtomicU64>,
    /// The time during which failed calls are retried.
    pub(super) retry_budget: Arc<RetryBudget>,
}

/// One thread's connection to all namespaces.
///
/// A failed call abandons all queue pairs of the channel. Writes in flight then may have been executed or not,
/// and may still arrive late. That is harmless, since an import always writes the same bytes to the same
/// location. But the import must check the content of the media before relying on it.
pub(super) struct Channel {
    pub(super) media: Media,
    /// The fence that checks the writes of this channel.
    fence: Arc<Fence>,
    /// The queue pairs; `None` before the first call, and after a failed one.
    calls: Option<Calls>,
    /// State that the queue pairs share.
    scope: PairScope,
    /// For each namespace, the index of its queue pair in `calls`; `None` before the first use.
    pairs: Vec<Option<usize>>,
    /// Number of times that the queue pairs were abandoned.
    resets: u32,
    /// The error that abandoned the queue pairs last, unless it is transient.
    fatal: Option<Error>,
}

/// A write or flush in flight on a [`Channel`].
#[derive(Debug)]
pub(super) struct PendingWrite {
    ticket: Ticket,
    /// The channel's `resets` when the call began. If the channel's number differs now, the call was abandoned.
    resets: u32,
    /// The start of the call, from which its retry time counts.
    begun: Instant,
}

impl Media {
    /// The namespaces `devices`, in this order.
    ///
    /// # Errors
    /// `InvalidArgument`: there are none or too many. `Refused`: one is read-only.
    pub(super) fn new(devices: Vec<Arc<dyn Device>>) -> Result<Media> {
        let media = Media::for_reading(devices)?;
        for device in media.devices.iter() {
            let namespace = device.namespace();
            if namespace.read_only {
                return Err(Error::new(ErrorKind::Refused, "the namespace refuses writes")
                    .target(namespace.address)
                    .hint("serve it with --writable"));
            }
        }
        Ok(media)
    }

    /// The namespaces `devices`, which may be read-only. All threads share one queue pair of a namespace that has
    /// fewer than [`MIN_PAIRS`].
    ///
    /// # Errors
    /// `InvalidArgument`: there are none or too many.
    pub(super) fn for_reading(devices: Vec<Arc<dyn Device>>) -> Result<Media> {
        if devices.is_empty() || devices.len() > usize::from(u16::MAX) {
            let message = format!("an image has 1 to 65,535 namespaces, not {}", devices.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let scope = Arc::default();
        let fitted =
            devices.into_iter().map(|device| match device.capabilities().max_queue_pairs {
                few if few < MIN_PAIRS => {
                    Arc::new(SharedDevice::new(device, Arc::clone(&scope))) as Arc<dyn Device>
                }
                _ => device,
            });
        Ok(Media {
            devices: fitted.collect(),
            fence: Fence::closed(),
            lost_write_ns: Arc::default(),
            retry_budget: Arc::default(),
        })
    }

    /// The maximum number of writing threads. Each has its own queue pair on every namespace with enough queue
    /// pairs.
    pub(super) fn max_threads(&self) -> usize {
        let most = self.devices.iter().map(|device| device.capabilities().max_queue_pairs).min();
        most.unwrap_or(1).saturating_sub(RESERVED_PAIRS).max(1)
    }

    /// The same namespaces in another order: the namespace at index `order[i]` moves to index `i`.
    pub(super) fn in_order(&self, order: &[usize]) -> Media {
        let devices = order.iter().map(|&at| self.devices[at].clone()).collect();
        Media { devices, ..self.clone() }
    }

    /// Returns the media of an image of `count` namespaces, in which namespace 0 of `self` has the number `namespace`.
    /// All others are too short to take any data.
    ///
    /// # Errors
    /// `OutOfMemory`: there is no memory for the short namespaces.
    pub(super) fn placed(&self, namespace: u16, count: u16) -> Result<Media> {
        let absent = |_| Ok(Arc::new(MemNamespace::new(ABSENT_BYTES, 512)?) as Arc<dyn Device>);
        let mut devices = (0..count).map(absent).collect::<Result<Vec<_>>>()?;
        devices[usize::from(namespace)] = self.devices[0].clone();
        Ok(Media { devices: devices.into(), ..self.clone() })
    }

    /// Number of namespaces.
    pub(super) fn len(&self) -> u16 {
        self.devices.len() as u16 // `new` allows no more
    }

    /// The address of a namespace.
    pub(super) fn address(&self, namespace: u16) -> String {
        self.devices[usize::from(namespace)].namespace().address
    }

    /// The length of a namespace in bytes.
    pub(super) fn len_bytes(&self, namespace: u16) -> u64 {
        self.devices[usize::from(namespace)].namespace().len_bytes()
    }

    /// Returns whether any namespace is a file that can grow.
    pub(super) fn can_grow(&self) -> bool {
        self.devices.iter().any(|device| device.capabilities().can_grow)
    }

    /// Maximum length of each namespace in bytes.
    pub(super) fn capacities(&self) -> Vec<u64> {
        let capacity = |device: &Arc<dyn Device>| {
            if device.capabilities().can_grow {
                MAX_NAMESPACE_BYTES
            } else {
                device.namespace().len_bytes()
            }
        };
        self.devices.iter().map(capacity).collect()
    }

    /// The number of cells of each namespace, by its current length. The last cell of a file may be truncated.
    pub(super) fn num_cells(&self, layout: &ImageLayout) -> Vec<u64> {
        (0..self.len()).map(|namespace| layout.cells_of(self.len_bytes(namespace))).collect()
    }

    /// Makes a namespace at least `len_bytes` long.
    ///
    /// # Errors
    /// `NoSpace`: the namespace cannot become that long.
    pub(super) fn grow(&self, namespace: u16, len_bytes: u64) -> Result<()> {
        self.devices[usize::from(namespace)].grow(len_bytes)
    }

    /// A channel to all namespaces for one thread. Queue pairs are opened at first use.
    pub(super) fn channel(&self) -> Channel {
        self.fenced_channel(&self.fence)
    }

    /// A channel whose writes are checked by `fence` instead of the common fence.
    pub(super) fn fenced_channel(&self, fence: &Arc<Fence>) -> Channel {
        let pairs = vec![None; self.devices.len()];
        let media = self.clone();
        let fence = Arc::clone(fence);
        let scope = PairScope::new();
        Channel { media, fence, calls: None, scope, pairs, resets: 0, fatal: None }
    }

    /// The superblock copies of all namespaces: see [`Channel::superblocks`].
    ///
    /// # Errors
    /// A namespace cannot be read.
    pub(super) fn superblocks(&self) -> Result<Vec<SuperblockCopies>> {
        let mut channel = self.channel();
        (0..self.len()).map(|namespace| channel.superblocks(namespace)).collect()
    }

    /// Returns whether a successful write proves that the bytes arrived intact. Otherwise they must be read
    /// back.
    pub(super) fn checks_writes(&self) -> bool {
        self.devices.iter().all(|device| device.capabilities().checks_writes)
    }

    /// The longest time that a write may take to reach a namespace after it was sent.
    pub(super) fn late_writes(&self) -> Duration {
        self.devices
            .iter()
            .map(|device| device.capabilities().late_writes)
            .max()
            .unwrap_or_default()
    }

    /// The time during which failed writes may still arrive, from now on.
    pub(super) fn lost_writes_for(&self) -> Duration {
        match self.lost_write_ns.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            at => (Duration::from_nanos(at) + self.late_writes()).saturating_sub(Fence::now()),
        }
    }
}

impl Channel {
    /// Reads whole or partial blocks.
    ///
    /// # Errors
    /// Errors of [`Calls::read`].
    pub(super) fn read(&mut self, namespace: u16, offset: u64, len: usize) -> Result<IoBuf> {
        self.call(namespace, |calls, pair| calls.read(pair, offset, len))
    }

    /// Writes whole blocks, and returns the buffer. If success does not prove that the bytes arrived intact, it
    /// reads them back.
    ///
    /// # Errors
    /// Errors of [`Calls::write`]. `Disconnected`: other bytes were read back.
    pub(super) fn write(&mut self, namespace: u16, offset: u64, buf: IoBuf) -> Result<IoBuf> {
        let written = self.call(namespace, |calls, pair| calls.write(pair, offset, buf))?;
        let is_checked = self.media.devices[usize::from(namespace)].capabilities().checks_writes;
        if !is_checked && self.read(namespace, offset, written.len())?[..] != written[..] {
            let message = "what was read back differs from what was written";
            let error = Error::new(ErrorKind::Disconnected, message);
            return Err(error.target(self.media.address(namespace)));
        }
        Ok(written)
    }

    /// Writes whole blocks from `bytes`.
    ///
    /// # Errors
    /// As [`Channel::write`].
    pub(super) fn write_bytes(&mut self, namespace: u16, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut buf = IoBuf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        self.write(namespace, offset, buf).map(drop)
    }

    /// Submits a write of whole blocks, at least one.
    ///
    /// # Errors
    /// Errors of [`Calls::begin_write`]; no queue pair is available.
    pub(super) fn begin_write(
        &mut self,
        namespace: u16,
        offset: u64,
        buf: IoBuf,
    ) -> Result<PendingWrite> {
        let ticket = self.call(namespace, |calls, pair| calls.begin_write(pair, offset, buf))?;
        Ok(PendingWrite { ticket, resets: self.resets, begun: Instant::now() })
    }

    /// Starts a flush, which makes all completed writes to a namespace durable, including those of other
    /// threads.
    ///
    /// # Errors
    /// No queue pair is available.
    pub(super) fn begin_flush(&mut self, namespace: u16) -> Result<PendingWrite> {
        let ticket = self.call(namespace, |calls, pair| Ok(calls.begin_flush(pair)))?;
        Ok(PendingWrite { ticket, resets: self.resets, begun: Instant::now() })
    }

    /// Polls without blocking. Returns whether a write or flush has completed.
    pub(super) fn poll(&mut self) -> bool {
        self.calls.as_mut().is_some_and(Calls::turn)
    }

    /// Blocks until a poll may make progress.
    pub(super) fn wait(&mut self) {
        if let Some(calls) = &mut self.calls {
            calls.wait();
        }
    }

    /// The result of a completed write or flush, with its buffer. A call that is still in flight is returned as the
    /// outer error.
    ///
    /// # Errors
    /// The inner error: as [`Calls::write`] or [`Calls::flush`]. If another call abandoned the queue pair, the error of
    /// that call, or `Disconnected` if that error was transient.
    pub(super) fn take(&mut self, write: PendingWrite) -> Result<Result<IoBuf>, PendingWrite> {
        let Some(calls) = self.calls.as_mut().filter(|_| self.resets == write.resets) else {
            let message = "a write was given up together with another that failed";
            let lost = || Error::new(ErrorKind::Disconnected, message);
            return Ok(Err(self.fatal.as_ref().map_or_else(lost, Error::to_others)));
        };
        let begun = write.begun;
        let result = calls.take(write.ticket).ok_or(write)?;
        Ok(self.give_up_if_failed(begun, result))
    }

    /// Makes all completed writes to a namespace durable, including those of other threads.
    ///
    /// # Errors
    /// Errors of [`Calls::flush`]. Then nothing counts as durable.
    pub(super) fn flush(&mut self, namespace: u16) -> Result<()> {
        self.call(namespace, |calls, pair| calls.flush(pair))
    }

    /// The superblock copies of a namespace. Bad copies are read twice. If the namespace is too short for them,
    /// they are blank.
    ///
    /// # Errors
    /// The namespace cannot be read.
    pub(super) fn superblocks(&mut self, namespace: u16) -> Result<SuperblockCopies> {
        let len = self.media.len_bytes(namespace);
        SuperblockCopies::gather(len, |offset, again| {
            self.read_block(namespace, offset, SUPERBLOCK_BYTES, again)
        })
    }

    /// Reads whole or partial blocks. With `again`, the read bypasses caches. The inner error is the reason why
    /// these blocks cannot be read.
    ///
    /// # Errors
    /// The namespace cannot be read.
    pub(super) fn read_block(
        &mut self,
        namespace: u16,
        offset: u64,
        len: usize,
        again: bool,
    ) -> Result<Result<IoBuf, String>> {
        or_unreadable(self.call(namespace, |calls, pair| {
            if again {
                calls.report_corrupt(pair, offset, len);
            }
            calls.read(pair, offset, len)
        }))
    }

    /// Reads a block. If the first attempt is bad, it reads again from the device. The inner error is the reason
    /// why the block cannot be read.
    ///
    /// # Errors
    /// The namespace cannot be read.
    pub(super) fn read_twice(
        &mut self,
        namespace: u16,
        offset: u64,
        len: usize,
    ) -> Result<Result<IoBuf, String>> {
        match self.read_block(namespace, offset, len, false)? {
            Err(_) => self.read_block(namespace, offset, len, true),
            found => Ok(found),
        }
    }

    /// Overwrites a byte range with zeroes.
    ///
    /// # Errors
    /// As [`Channel::write`].
    pub(super) fn zero(&mut self, namespace: u16, offset: u64, len: u64) -> Result<()> {
        let mut zeroes = IoBuf::zeroed(len.min(ZERO_BYTES) as usize);
        for (at, piece) in pieces(len, ZERO_BYTES) {
            zeroes.truncate(piece);
            zeroes = self.write(namespace, offset + at, zeroes)?;
        }
        Ok(())
    }

    /// Runs `call` on the queue pair of a namespace, which is opened first if need be.
    fn call<T>(
        &mut self,
        namespace: u16,
        call: impl FnOnce(&mut Calls, usize) -> Result<T>,
    ) -> Result<T> {
        let at = usize::from(namespace);
        let begun = Instant::now();
        let calls = match &mut self.calls {
            Some(calls) => calls,
            none => {
                let mut calls = Calls::new(DEADLINE)?;
                calls.set_fence(Arc::clone(&self.fence));
                none.insert(calls)
            }
        };
        let until = self.media.retry_budget.until(DEADLINE);
        let left = until.map(|until| until.saturating_duration_since(begun).max(MIN_DEADLINE));
        calls.set_deadline(left.unwrap_or(DEADLINE));
        let pair = match self.pairs[at] {
            Some(pair) => pair,
            None => match self.media.devices[at].queue_pair_in(&self.scope) {
                Ok(pair) => *self.pairs[at].insert(calls.add(pair)),
                Err(error) => return self.give_up_if_failed(begun, Err(error)),
            },
        };
        let result = call(calls, pair);
        self.give_up_if_failed(begun, result)
    }

    /// Abandons all queue pairs if `result`, of a call that began at `begun`, is an error.
    fn give_up_if_failed<T>(&mut self, begun: Instant, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            if is_transient(error) {
                if Arc::ptr_eq(&self.fence, &self.media.fence) {
                    self.media.retry_budget.failed(begun); // the lease has its own budget
                }
                let now_ns = u64::try_from(Fence::now().as_nanos()).unwrap_or(u64::MAX);
                self.media.lost_write_ns.fetch_max(now_ns, Ordering::AcqRel);
            }
            self.calls = None;
            self.pairs.fill(None);
            self.resets += 1;
            self.fatal = (!is_transient(error)).then(|| error.to_others());
        }
        result
    }
}

/// Splits `len` bytes into pieces of `each` bytes; the last piece may be shorter. Returns offsets and lengths.
pub(super) fn pieces(len: u64, each: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..len).step_by(each as usize).map(move |at| (at, (len - at).min(each) as usize))
}

/// Queue pairs of a namespace that are not for writing threads: one for the lease, and one for the thread that
/// collects and commits.
const RESERVED_PAIRS: usize = 2;

/// With fewer queue pairs than this, all threads share one.
const MIN_PAIRS: usize = RESERVED_PAIRS + 1;

/// The longest duration of a call.
const DEADLINE: Duration = Duration::from_secs(60);

/// A call may last at least this long, also when earlier failures have used up the retry time.
const MIN_DEADLINE: Duration = Duration::from_millis(500);

/// Zeroes per write command.
const ZERO_BYTES: u64 = 1 << 20;

/// Length of a namespace that is absent: too short for any chunk.
const ABSENT_BYTES: u64 = 4096;
