//! Blocks of a namespace, without a data set: one queue pair and its buffers. For tools that
//! measure or copy whole namespaces.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::time::{Duration, Instant};

use dlfs::buf::{HugePages, IoBuf, Pool, PoolOptions};
use dlfs::dataset::Watch;
use dlfs::process::Forked;
use dlfs::qpair::group::PollGroup;
use dlfs::qpair::{self, Completion, Io, IoOp, Namespace};
use dlfs::units::Lba;
use parking_lot::{Mutex, MutexGuard};

use crate::converted::{Stop, flag, unknown};
use crate::error::{
    DLFS_E_BUSY, DLFS_E_INTERRUPTED, DLFS_OK, Failure, code_of, guard, guard_long, remember,
};
use crate::handles::{self, Handle, get};
use crate::options::MountOptions;
use crate::structs::{Struct, addresses, array, fill, take_or_zeroed};

/// Fill the buffer from the namespace.
pub const DLFS_NS_READ: u32 = 0;
/// Write the buffer to the namespace.
pub const DLFS_NS_WRITE: u32 = 1;
/// Make all completed writes durable; `offset` and `len` are 0, `buffer` only identifies the I/O.
pub const DLFS_NS_FLUSH: u32 = 2;

/// An open namespace with its queue pair: an opaque handle.
pub struct Ns(());

/// Facts about a namespace. Set `size` to `sizeof(dlfs_ns_info_t)` before it is filled.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct NsInfo {
    /// sizeof(dlfs_ns_info_t).
    pub size: usize,
    /// Its length in bytes.
    pub len: u64,
    /// Length of a logical block in bytes: offsets and lengths of I/Os are multiples of it.
    pub block_len: u32,
    /// The most bytes per I/O.
    pub max_transfer: u32,
    /// The most outstanding I/Os.
    pub queue_depth: u32,
    /// 1: writes are refused.
    pub read_only: u32,
}
// SAFETY: numbers alone, the size first.
unsafe impl Struct for NsInfo {
    const NAME: &str = "dlfs_ns_info_t";
}

/// One I/O of dlfs_ns_submit.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct NsIo {
    /// DLFS_NS_READ, _WRITE or _FLUSH.
    pub op: u32,
    /// The buffer, from 0; it belongs to the namespace until the I/O is done.
    pub buffer: u32,
    /// First byte in the namespace: a multiple of `block_len`.
    pub offset: u64,
    /// Bytes from the start of the buffer: a multiple of `block_len`, at most `buffer_len`.
    pub len: u64,
}

/// A completed I/O.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct NsDone {
    /// Its buffer.
    pub buffer: u32,
    /// DLFS_OK: all bytes were transferred. Otherwise an error; the contents of a read buffer are
    /// then undefined.
    pub status: c_int,
}

/// The object behind a namespace handle.
pub(crate) struct Queue {
    namespace: Namespace,
    /// The address of the first buffer. C gets the addresses of all buffers, which never move.
    buffers_start: usize,
    /// The number of buffers, which lie one behind the other.
    num_buffers: u32,
    /// The length of each buffer in bytes.
    buffer_len: usize,
    stop: Stop,
    /// The lock is held during a call: a second thread gets an error. A forked child does not use its parent's queue
    /// pair.
    work: Forked<Mutex<Work>>,
}

/// The state that one thread at a time uses. Nothing is allocated after it is created.
struct Work {
    group: PollGroup,
    /// Buffers without an outstanding I/O.
    free: Vec<Option<IoBuf>>,
    /// For each other buffer: its end, which the I/O does not use, and the first block of the I/O.
    busy: Vec<(IoBuf, Lba)>,
    /// I/Os to submit, within a call.
    pending: VecDeque<Io>,
    /// Completions that were not returned yet.
    done: Vec<(usize, Completion)>,
    /// Owns the memory of the buffers.
    _pool: Option<Pool>,
}

/// Opens the namespace at `address` (a path, an NVMe/TCP address, with `?ns=` if the subsystem has
/// several namespaces, or any other address that this build supports), creates a queue pair with
/// `num_buffers` buffers of `buffer_len` bytes, and stores the handle in `*ns`.
///
/// Without buffers, only dlfs_ns_info is allowed. `writable` is 0 or 1. `options` may be NULL; only
/// its options for connections, `direct`, `busy_poll` and `should_stop` apply here. Any thread;
/// takes at most the connect timeout.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_ns_open(
    address: *const c_char,
    options: *const MountOptions,
    writable: u32,
    num_buffers: u32,
    buffer_len: u32,
    ns: *mut *mut Ns,
) -> c_int {
    // SAFETY: by the header `ns` is NULL or a place for a handle, `options` NULL or a struct of
    // the size that it states, with strings that end with NUL, and `address` such a string.
    unsafe {
        handles::open(ns, "ns", || {
            let given = take_or_zeroed(options)?;
            let mut connect = given.options()?.open.connect;
            connect.writable = flag(writable, "writable")?;
            let list = addresses(address, "address")?;
            let [address] = &list[..] else {
                return Err(Failure::invalid(format!("{} addresses, not one", list.len())));
            };
            let device = qpair::open(address, &connect)?;
            let mut group = PollGroup::new()?;
            group.set_busy_poll(given.busy_poll == 1);
            group.add(device.queue_pair()?);
            Queue::new(group, num_buffers, buffer_len as usize, given.stop())
        })
    }
}

/// Describes the namespace. No I/O. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_ns_info(ns: *const Ns, info: *mut NsInfo) -> c_int {
    // SAFETY: by the header `info` is NULL or points to a struct of the size in its first
    // field, which nobody else accesses meanwhile.
    unsafe {
        fill(info, || {
            let queue = get(ns)?;
            let namespace = &queue.namespace;
            Ok(NsInfo {
                size: 0,
                len: namespace.len_bytes(),
                block_len: namespace.block_len_bytes,
                max_transfer: namespace.max_transfer_bytes,
                queue_depth: namespace.queue_depth.into(),
                read_only: namespace.read_only.into(),
            })
        })
    }
}

/// The memory of buffer `index`, or NULL if there is no such buffer or handle.
///
/// Buffers are contiguous, the first at a multiple of 4,096; they do not move until dlfs_ns_close.
/// The caller must not access the buffer of an outstanding I/O. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_ns_buffer(ns: *const Ns, index: u32) -> *mut c_void {
    let address = guard_long(|| {
        let queue = get(ns)?;
        if index >= queue.num_buffers {
            return Err(queue.no_buffer(index));
        }
        // Addresses have 47 bits.
        Ok((queue.buffers_start + index as usize * queue.buffer_len) as i64)
    });
    match usize::try_from(address) {
        Ok(address) => std::ptr::with_exposed_provenance_mut(address),
        Err(_) => std::ptr::null_mut(),
    }
}

/// Submits I/Os from the front of `ios` while there is room, and returns their number, from 0 to
/// `num`.
///
/// A submitted I/O completes exactly once, whatever happens to the target; dlfs_ns_poll returns its
/// completion. An invalid I/O, such as one with a busy buffer, ends the call: if it is the first,
/// the call fails with DLFS_E_INVALID, otherwise those before it are submitted. One thread at a
/// time: another gets DLFS_E_BUSY. A forked child may only close the handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_ns_submit(ns: *const Ns, ios: *const NsIo, num: usize) -> i64 {
    guard_long(|| {
        // SAFETY: by the header `ios` is NULL or points to `num` requests, which do not change
        // during the call.
        let ios = unsafe { array(ios, num, "ios")? };
        let queue = get(ns)?;
        let mut work = queue.work()?;
        for (count, io) in ios.iter().enumerate() {
            match work.make(&queue, io) {
                Ok(io) => work.pending.push_back(io),
                Err(failure) if count == 0 => return Err(failure),
                Err(_) => break,
            }
        }
        Ok(work.submit() as i64)
    })
}

/// Processes I/Os, stores up to `max` completions and returns their number. If there are none,
/// waits for one, but not if nothing is outstanding, and at most `wait_ms`.
///
/// dlfs_last_error has the text of the last failed I/O among them. Call it repeatedly while I/Os
/// are outstanding. Threads and forks as for dlfs_ns_submit.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_ns_poll(
    ns: *const Ns,
    done: *mut NsDone,
    max: usize,
    wait_ms: u32,
) -> i64 {
    guard_long(|| {
        if max > 0 && (done.is_null() || !done.is_aligned()) {
            return Err(Failure::invalid("done is NULL or not aligned"));
        }
        let queue = get(ns)?;
        let mut work = queue.work()?;
        work.wait(max, wait_ms, &mut queue.stop.clone())?;
        let mut ended = std::mem::take(&mut work.done);
        let count = ended.len();
        for (at, (_, completion)) in ended.drain(..).enumerate() {
            let told = work.end(completion, &queue.namespace);
            // SAFETY: `wait` returns at most `max`, and the caller promises room for as many.
            unsafe { done.add(at).write(told) };
        }
        work.done = ended; // empty, with its memory
        Ok(count as i64)
    })
}

/// Closes the handle and frees its buffers. May wait for outstanding I/Os, for a limited time. Any
/// thread, while no other thread is in a call with the handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_ns_close(ns: *mut Ns) -> c_int {
    guard(|| handles::remove(ns).map(drop))
}

impl Handle for Ns {
    type Object = Queue;
    const NAME: &str = "namespace";
}

impl Queue {
    /// A queue with `count` buffers of `len` bytes.
    fn new(mut group: PollGroup, count: u32, len: usize, stop: Stop) -> Result<Queue, Failure> {
        let namespace = group.pair(0).namespace().clone();
        let block_len = namespace.block_len_bytes as usize;
        if count > 0 && (len == 0 || !len.is_multiple_of(block_len)) {
            return Err(Failure::invalid(format!(
                "buffer_len is {len}, which is not a multiple of the block length, {block_len}"
            )));
        }
        if count > namespace.queue_depth.into() {
            let most = namespace.queue_depth;
            let text = format!("{count} buffers, but the queue takes {most} I/Os at a time");
            return Err(Failure::invalid(text));
        }
        let mut memory = IoBuf::empty();
        let mut pool = None;
        if count > 0 {
            let bytes = len * count as usize; // below 2^16 times 2^32
            let slot_len_bytes = bytes.next_multiple_of(4096);
            let options =
                PoolOptions { bytes: slot_len_bytes, slot_len_bytes, huge_pages: HugePages::Auto };
            let made = Pool::new(options)?;
            group.use_pool(&made);
            memory = made.take(bytes).unwrap_or_default(); // a new pool has its one slot free
            pool = Some(made);
        }
        let buffers_start = memory.as_mut_ptr().expose_provenance();
        let mut free = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let rest = memory.split_off(len);
            free.push(Some(std::mem::replace(&mut memory, rest)));
        }
        let busy = (0..count).map(|_| (IoBuf::empty(), Lba(0))).collect();
        let pending = VecDeque::with_capacity(count as usize);
        let done = Vec::with_capacity(count as usize);
        let work = Mutex::new(Work { group, free, busy, pending, done, _pool: pool });
        let work = Forked::new(work);
        Ok(Queue { namespace, buffers_start, num_buffers: count, buffer_len: len, stop, work })
    }

    /// The error for a buffer that does not exist.
    fn no_buffer(&self, index: u32) -> Failure {
        Failure::invalid(format!("there is no buffer {index}, there are {}", self.num_buffers))
    }

    /// Locks the state for a call.
    ///
    /// # Errors
    /// `DLFS_E_BUSY`: another thread is in a call. `DLFS_E_INVALID`: this is a forked child.
    fn work(&self) -> Result<MutexGuard<'_, Work>, Failure> {
        let Some(work) = self.work.get() else {
            let text = "the namespace was opened before a fork: the child opens it again";
            return Err(Failure::invalid(text));
        };
        let busy = "another thread is in a call with this namespace";
        work.try_lock().ok_or_else(|| Failure::new(DLFS_E_BUSY, busy))
    }
}

impl Work {
    /// Converts the caller's I/O to the library's; takes the buffer.
    fn make(&mut self, queue: &Queue, io: &NsIo) -> Result<Io, Failure> {
        let op = match io.op {
            DLFS_NS_READ => IoOp::Read,
            DLFS_NS_WRITE => IoOp::Write,
            DLFS_NS_FLUSH => IoOp::Flush,
            other => return Err(unknown("op", other)),
        };
        let index = io.buffer as usize;
        let free = self.free.get_mut(index).ok_or_else(|| queue.no_buffer(io.buffer))?;
        let block_len = u64::from(queue.namespace.block_len_bytes);
        if !io.offset.is_multiple_of(block_len) || io.len > queue.buffer_len as u64 {
            let text = format!(
                "{} bytes at offset {}: blocks have {block_len} bytes, buffers {}",
                io.len, io.offset, queue.buffer_len
            );
            return Err(Failure::invalid(text));
        }
        let Some(mut buf) = free.take() else {
            let text = format!("an I/O with buffer {index} is outstanding already");
            return Err(Failure::invalid(text));
        };
        let (len, slba) = match op {
            IoOp::Flush => (0, Lba(0)),
            _ => (io.len as usize, Lba(io.offset / block_len)),
        };
        self.busy[index] = (buf.split_off(len), slba);
        Ok(Io { op, slba, buf, tag: index as u64 })
    }

    /// Submits the I/Os in `pending`, and frees the buffers of those for which there is no room; returns the number
    /// submitted.
    fn submit(&mut self) -> usize {
        let taken = self.group.submit(0, &mut self.pending);
        while let Some(io) = self.pending.pop_front() {
            self.restore(io.tag, io.buf);
        }
        taken
    }

    /// Polls until there is a completion, nothing is outstanding, or `wait_ms` have passed. Takes at most `max`
    /// completions; does not wait if `max` is 0.
    fn wait(&mut self, max: usize, wait_ms: u32, stop: &mut Stop) -> Result<(), Failure> {
        let now = Instant::now();
        let until = now + Duration::from_millis(wait_ms.into());
        let mut asked = now;
        let mut now = now;
        loop {
            let room = max.saturating_sub(self.done.len());
            self.group.poll(now, room, &mut self.done);
            if !self.done.is_empty() || max == 0 || self.group.outstanding() == 0 {
                return Ok(());
            }
            now = Instant::now();
            if now >= until {
                return Ok(());
            }
            if now - asked >= ASK_EVERY {
                asked = now;
                if !stop.goes_on() {
                    return Err(Failure::new(DLFS_E_INTERRUPTED, "should_stop ended the call"));
                }
            }
            self.group.wait(until.min(asked + ASK_EVERY));
        }
    }

    /// Ends an I/O, and remembers the text of its error.
    fn end(&mut self, completion: Completion, namespace: &Namespace) -> NsDone {
        let Completion { tag, buf, result } = completion;
        let slba = self.restore(tag, buf);
        let status = match result {
            Ok(()) => DLFS_OK,
            Err(error) => {
                let error = error.at(namespace, slba);
                remember(&error.report());
                code_of(&error)
            }
        };
        NsDone { buffer: tag as u32, status }
    }

    /// Makes the buffer of an I/O free again, and returns the I/O's first block.
    fn restore(&mut self, tag: u64, mut buf: IoBuf) -> Lba {
        let index = tag as usize; // a tag is a buffer's number
        let (rest, slba) = std::mem::replace(&mut self.busy[index], (IoBuf::empty(), Lba(0)));
        buf.unsplit(rest).expect("the two parts of one buffer");
        self.free[index] = Some(buf);
        slba
    }
}

/// The interval at which a waiting call asks `should_stop`.
const ASK_EVERY: Duration = Duration::from_millis(100);
