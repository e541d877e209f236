//! An I/O queue of SPDK. A command is submitted with a [`Payload`], which owns the buffer; the end of the command
//! returns the payload, with the status.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::ptr::null_mut;

use parking_lot::{Mutex, MutexGuard};
use spdk_sys as sys;

use super::env;
use dlfs_base::buf::IoBuf;
use dlfs_base::units::{Lba, Nsid};
use dlfs_nvme::nvme::Status;

/// Owns the buffer of a command while the device uses it.
pub trait Payload {
    /// The buffer: the same memory on every call, until the payload is returned.
    fn buf(&mut self) -> &mut IoBuf;
}

/// An I/O command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Reads this many blocks, from this LBA on, into the buffer.
    Read(Lba, u32),
    /// Writes this many blocks from the buffer, from this LBA on.
    Write(Lba, u32),
    /// Makes completed writes durable.
    Flush,
}

/// Reasons for refusing a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full.
    Full,
    /// The queue is gone.
    Gone,
    /// The device cannot access the memory, or the command is invalid.
    Impossible,
}

/// The error of a queue that is gone or has lost its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

/// An I/O queue of a controller.
///
/// The lock ensures that one thread at a time uses the queue, as SPDK requires. Normally only the owner uses
/// it. When the controller is shut down, the queue is ended, whether the owner polls it or not.
pub struct IoQueue<T: Payload>(Mutex<Core<T>>);

/// The queue while it is locked.
pub struct Core<T: Payload> {
    /// `None` once it is gone.
    raw: Option<NonNull<sys::spdk_nvme_qpair>>,
    /// Poll group of the queue, for transports on which polling a group is faster.
    group: Option<NonNull<sys::spdk_nvme_poll_group>>,
    /// The namespace, which belongs to the controller.
    ns: NonNull<sys::spdk_nvme_ns>,
    /// Written by callbacks; SPDK holds its address.
    board: NonNull<Board>,
    /// The payload of each slot's command.
    payloads: Box<[Option<T>]>,
    /// The numbers of unused slots.
    free: Vec<u16>,
    /// Set once the queue was seen connected, until it is ended.
    is_connected: bool,
}

/// The memory that callbacks write.
struct Board {
    slots: Box<[CommandSlot]>,
    /// The numbers of the slots whose commands have ended, in order; the first `num_done` are valid.
    done: Box<[u16]>,
    num_done: usize,
    /// Set once the queue has lost its connection.
    is_disconnected: bool,
}

/// Context of one command's callback.
struct CommandSlot {
    board: *mut Board,
    number: u16,
    /// Status as on the wire; bit 0 is the phase.
    status: u16,
}

// SAFETY: SPDK's queue may move between threads, one at a time, which the lock ensures. The group and the board
// are this struct's own, and `ns` belongs to the controller, which is detached only after the queue has ended.
unsafe impl<T: Payload + Send> Send for Core<T> {}

/// The controller's view of a queue.
pub(super) trait Stop: Send + Sync {
    /// Frees the queue; every outstanding command ends.
    fn stop(&self);
}

impl<T: Payload + Send> Stop for IoQueue<T> {
    fn stop(&self) {
        self.0.lock().end();
    }
}

impl<T: Payload> IoQueue<T> {
    /// Creates a queue, which is not connected yet.
    ///
    /// # Safety
    /// The controller is attached, and is detached only after this queue has been stopped.
    pub(super) unsafe fn new(
        controller: NonNull<sys::spdk_nvme_ctrlr>,
        nsid: Nsid,
        depth: u16,
        in_group: bool,
    ) -> Option<IoQueue<T>> {
        let controller = controller.as_ptr();
        // SAFETY: the controller is attached by this function's own contract, and SPDK accepts any namespace
        // number.
        let ns = NonNull::new(unsafe { sys::spdk_nvme_ctrlr_get_ns(controller, nsid.0) })?;
        let mut core = Core {
            raw: None,
            group: None,
            ns,
            board: Board::new(depth),
            payloads: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            is_connected: false,
        };
        let size = size_of::<sys::spdk_nvme_io_qpair_opts>();
        // SAFETY: integers and pointers, for which zero is a value; then a struct of ours of the given size,
        // and an attached controller.
        unsafe {
            let mut options: sys::spdk_nvme_io_qpair_opts = std::mem::zeroed();
            sys::spdk_nvme_ctrlr_get_default_io_qpair_opts(controller, &mut options, size);
            options.create_only = true;
            options.async_mode = true;
            core.raw =
                NonNull::new(sys::spdk_nvme_ctrlr_alloc_io_qpair(controller, &options, size));
            let raw = core.raw?.as_ptr();
            if in_group {
                let context = core.board.as_ptr().cast();
                core.group = NonNull::new(sys::spdk_nvme_poll_group_create(context, null_mut()));
                let group = core.group?.as_ptr();
                if sys::spdk_nvme_poll_group_add(group, raw) != 0 {
                    return None; // `drop` frees both
                }
            }
            if sys::spdk_nvme_ctrlr_connect_io_qpair(controller, raw) != 0 {
                return None;
            }
        }
        Some(IoQueue(Mutex::new(core)))
    }

    /// Locks the queue. Only a controller that is being shut holds the lock for long.
    pub fn lock(&self) -> MutexGuard<'_, Core<T>> {
        self.0.lock()
    }

    /// [`IoQueue::lock`] for a child process, where the lock may be held for ever.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Core<T>>> {
        self.0.try_lock()
    }
}

impl<T: Payload> Core<T> {
    /// Returns whether the queue accepts commands; it may be polled before.
    pub fn is_connected(&mut self) -> bool {
        if let (false, Some(raw)) = (self.is_connected, self.raw) {
            // SAFETY: the queue is live while it is here.
            self.is_connected = unsafe { sys::spdk_nvme_qpair_is_connected(raw.as_ptr()) };
        }
        self.is_connected
    }

    /// The number of commands that the controller has, or that completed and were not returned yet.
    pub fn outstanding(&self) -> usize {
        self.payloads.len() - self.free.len()
    }

    /// Returns whether there is room for another command.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Submits a command; [`Core::poll`] or [`Core::unfinished`] returns its payload.
    ///
    /// # Errors
    /// The payload, and the reason.
    pub fn submit(&mut self, command: Command, mut payload: T) -> Result<(), (T, Refusal)> {
        let Some(raw) = self.raw else { return Err((payload, Refusal::Gone)) };
        let Some(number) = self.free.pop() else { return Err((payload, Refusal::Full)) };
        let ns = self.ns.as_ptr();
        let raw = raw.as_ptr();
        let buf: *mut c_void = payload.buf().as_mut_ptr().cast();
        debug_assert!(
            command == Command::Flush || !payload.buf().is_empty(),
            "a transfer of nothing"
        );
        self.payloads[usize::from(number)] = Some(payload);
        // SAFETY: queue and namespace are live while `raw` is here: the controller is detached after the
        // queue has ended. The slot lives on the board until the queue has ended. The buffer is memory that
        // the payload owns, and the payload stays here until the callback has run. The caller that created
        // the command checked the buffer's length against the blocks; reads need exclusive memory, which an
        // `IoBuf` is.
        let code = unsafe {
            let slot: *mut c_void =
                (&raw mut (*self.board.as_ptr()).slots[usize::from(number)]).cast();
            let done: sys::spdk_nvme_cmd_cb = Some(completed);
            match command {
                Command::Read(Lba(lba), count) => {
                    sys::spdk_nvme_ns_cmd_read(ns, raw, buf, lba, count, done, slot, 0)
                }
                Command::Write(Lba(lba), count) => {
                    sys::spdk_nvme_ns_cmd_write(ns, raw, buf, lba, count, done, slot, 0)
                }
                Command::Flush => sys::spdk_nvme_ns_cmd_flush(ns, raw, done, slot),
            }
        };
        if code == 0 {
            return Ok(());
        }
        let payload = self.payloads[usize::from(number)].take().expect("put there above");
        self.free.push(number);
        Err((
            payload,
            match -code {
                libc::ENOMEM | libc::EAGAIN => Refusal::Full,
                libc::ENXIO => Refusal::Gone,
                _ => Refusal::Impossible,
            },
        ))
    }

    /// Makes progress, and passes at most `max` commands that have ended to `ended`; returns their number.
    ///
    /// # Errors
    /// The queue is gone or lost: call [`Core::end`]. Commands that ended before were returned.
    pub fn poll(&mut self, max: usize, mut ended: impl FnMut(T, Status)) -> Result<usize, Gone> {
        let limit = u32::try_from(max).unwrap_or(0); // to SPDK, 0 means no limit
        let code = match (self.raw, self.group) {
            (None, _) => -1,
            // SAFETY: the group is live while the queue is; the callback only stores.
            (Some(_), Some(group)) => unsafe {
                sys::spdk_nvme_poll_group_process_completions(
                    group.as_ptr(),
                    limit,
                    Some(disconnected),
                )
            },
            // SAFETY: the queue is live while it is here.
            (Some(raw), None) => unsafe {
                sys::spdk_nvme_qpair_process_completions(raw.as_ptr(), limit).into()
            },
        };
        let count = self.return_ended(max, &mut ended);
        // SAFETY: the board lives as long as this struct; no callback runs now.
        let is_disconnected = unsafe { self.board.as_ref().is_disconnected };
        if code < 0 || is_disconnected { Err(Gone) } else { Ok(count) }
    }

    /// Passes at most `max` commands that have ended to `ended`; returns their number.
    fn return_ended(&mut self, max: usize, ended: &mut impl FnMut(T, Status)) -> usize {
        // SAFETY: the board lives as long as this struct; callbacks come only from calls into SPDK, and
        // `ended` is the caller's, which cannot reach this queue while it is borrowed.
        let board = unsafe { self.board.as_mut() };
        let count = board.num_done.min(max);
        for &number in &board.done[..count] {
            let status = Status::from_wire(board.slots[usize::from(number)].status);
            let payload = self.payloads[usize::from(number)].take().expect("it was outstanding");
            self.free.push(number);
            ended(payload, status);
        }
        board.done.copy_within(count..board.num_done, 0);
        board.num_done -= count;
        count
    }

    /// Ends the queue: outstanding commands end as aborted. A second call does nothing.
    pub fn end(&mut self) {
        let raw = self.raw.take();
        let group = self.group.take();
        self.is_connected = false;
        if env::has_forked() {
            return; // they belong to the parent
        }
        if let Some(raw) = raw {
            // SAFETY: created in `new`, taken out above, freed once; its callbacks run now, and the board
            // that they write is live.
            unsafe { sys::spdk_nvme_ctrlr_free_io_qpair(raw.as_ptr()) };
        }
        if let Some(group) = group {
            // SAFETY: created in `new`, destroyed once; freeing its only queue has removed that from the
            // group.
            unsafe { sys::spdk_nvme_poll_group_destroy(group.as_ptr()) };
        }
    }

    /// The commands without a response, after the queue has ended and been polled.
    ///
    /// # Panics
    /// If the queue has not ended.
    pub fn unfinished(&mut self) -> impl DoubleEndedIterator<Item = T> {
        assert!(self.raw.is_none(), "the device may still write");
        let payloads = std::mem::take(&mut self.payloads);
        self.free.clear();
        payloads.into_iter().flatten()
    }
}

impl<T: Payload> Drop for Core<T> {
    fn drop(&mut self) {
        self.end();
        if !env::has_forked() {
            // SAFETY: leaked from a box in `Board::new`, freed once; SPDK does not use it any more.
            drop(unsafe { Box::from_raw(self.board.as_ptr()) });
        }
    }
}

impl Board {
    /// Allocates a board for `depth` commands, which the caller frees; its slots know its address.
    fn new(depth: u16) -> NonNull<Board> {
        let slots =
            (0..depth).map(|number| CommandSlot { board: null_mut(), number, status: 0 }).collect();
        let done = vec![0; usize::from(depth)].into();
        let board = Box::leak(Box::new(Board { slots, done, num_done: 0, is_disconnected: false }));
        let address: *mut Board = board;
        board.slots.iter_mut().for_each(|slot| slot.board = address);
        NonNull::from(board)
    }
}

/// Called by SPDK when a command has ended.
unsafe extern "C" fn completed(slot: *mut c_void, completion: *const sys::spdk_nvme_cpl) {
    let slot: *mut CommandSlot = slot.cast();
    // SAFETY: SPDK returns the submitted slot and a completion that is live during the call. The board is
    // live until the queue has ended, and only the thread that holds the queue's lock, which is inside SPDK
    // now, accesses it. A slot completes once, so there is room for it.
    unsafe {
        (*slot).status = (*completion).__bindgen_anon_1.status_raw;
        let board = (*slot).board;
        let at = (*board).num_done;
        let done = &mut (*board).done;
        if let Some(entry) = done.get_mut(at) {
            *entry = (*slot).number;
        }
        (*board).num_done = at + 1;
    }
}

/// Called by SPDK when a queue in a poll group has lost its connection.
unsafe extern "C" fn disconnected(_queue: *mut sys::spdk_nvme_qpair, board: *mut c_void) {
    // SAFETY: the board is the group's context and lives as long as the group.
    unsafe { (*board.cast::<Board>()).is_disconnected = true };
}
