//! I/O commands between connections and devices: each is checked against its namespace, takes its turn at the device
//! while several hosts use it, and is submitted to the namespace's queue pair.
//!
//! [`Backend`] is the state for this that all connections of a poller share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

use super::hosts::{HostId, Hosts};
use super::options::Access;
use super::served::ServedNamespace;
use super::shares::limits::Class;
use super::shares::pace::Paces;
use super::shares::{Flow, Turns};
use super::sharing::{MIXED, PIECE_BYTES, Sharing};
use super::stats::{EndedCommands, Tally};
use super::subsystem::Subsystem;
use dlfs_base::buf::{IoBuf, Pool, SharedBuf};
use dlfs_base::units::{Lba, Nsid};
use dlfs_io::qpair::{Io, IoError, IoOp, Namespace, QueuePair};
use dlfs_nvme::nvme::sqe::{FUA, nvm};
use dlfs_nvme::nvme::{Sqe, Status};
use dlfs_nvme::tcp::budget::TARGET_RECEIVE_BYTES;
use dlfs_nvme::tcp::controller::{CommandId, DataTransfer};

/// State that all connections of one poller share: queue pairs, memory, counters.
pub(super) struct Backend {
    pub(super) subsystem: Arc<Subsystem>,
    /// Counts of this poll iteration; added to the shared counters before its responses are sent.
    pub(super) tally: Tally,
    /// Commands that have ended in this iteration.
    pub(super) ended: EndedCommands,
    pub(super) pool: Pool,
    /// Memory for in-capsule data when the pool is exhausted: these data have already arrived, so they
    /// cannot wait.
    pub(super) reserve: Pool,
    /// Waiting commands of all connections.
    pub(super) num_waiting: usize,
    /// The memory that each host holds.
    pub(super) hosts: Hosts,
    /// One queue pair per namespace. A removed namespace keeps its entry until its last I/O completes.
    pub(super) queues: Slab<NamespaceQueue>,
    /// Index in `queues` of the namespace, by NSID; [`NO_QUEUE`] for none.
    pub(super) by_nsid: Vec<u32>,
    /// Maximum bytes of the pool that one connection may hold.
    pub(super) connection_bytes: usize,
    /// Limits and turns of hosts.
    pub(super) sharing: Sharing,
    /// Time of this poll iteration.
    pub(super) now: Instant,
    /// Time of the last completion of a device.
    pub(super) last_done: Instant,
}

/// A namespace's queue pair, and the I/O that waits for room in it.
pub(super) struct NamespaceQueue {
    pub(super) nsid: Nsid,
    /// True if no host may write to the namespace.
    pub(super) read_only: bool,
    pub(super) queue_pair: Box<dyn QueuePair>,
    pub(super) pending: VecDeque<Io>,
    /// True if the namespace accepts no new command.
    pub(super) is_removed: bool,
    /// The rate limits of the namespace; `None`: it has none.
    pub(super) class: Option<Arc<Class>>,
    /// The paces of hosts at the namespace; `None`: only this poller serves it.
    pub(super) paces: Option<Arc<Paces>>,
    /// Time until which commands take turns at the device: several hosts use it, on any pollers.
    crowded_until: Instant,
    /// Time until which the device counts as what limits the hosts: the poller had nothing else to do.
    limits_until: Instant,
    /// Bytes of queued and outstanding I/O.
    pub(super) open_bytes: u64,
    /// While several hosts use the poller or the device, commands beyond this many `open_bytes` wait for their turns.
    pub(super) open_limit: u64,
    /// True while a command waits because of `open_limit`. Later commands then wait, too.
    pub(super) is_gated: bool,
}

impl NamespaceQueue {
    pub(super) fn new(served: &ServedNamespace, queue_pair: Box<dyn QueuePair>) -> NamespaceQueue {
        let nsid = served.nsid;
        let read_only = served.read_only;
        let now = Instant::now();
        NamespaceQueue {
            nsid,
            read_only,
            queue_pair,
            pending: VecDeque::new(),
            is_removed: false,
            class: None,
            paces: None,
            crowded_until: now,
            limits_until: now,
            open_bytes: 0,
            open_limit: MIN_OPEN_LIMIT,
            is_gated: false,
        }
    }

    /// Returns whether the namespace has queued or outstanding I/O.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.is_empty() || self.queue_pair.outstanding() > 0
    }
}

/// An I/O command that has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) kind: Kind,
    /// Index of the namespace's queue in [`Backend::queues`].
    pub(super) queue: usize,
    pub(super) slba: Lba,
    pub(super) len_bytes: u32,
    /// Set for a read that must not be served from a cache (FUA).
    pub(super) forces_unit_access: bool,
    /// True for the rest of a read whose first pieces are served: rate limits were charged for the whole read.
    pub(super) is_rest: bool,
}

impl Request {
    pub(super) fn flush(queue: usize) -> Request {
        Request {
            kind: Kind::Flush,
            queue,
            slba: Lba(0),
            len_bytes: 0,
            forces_unit_access: false,
            is_rest: false,
        }
    }
}

/// The kind of a command; part of the tag of its I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    /// A write that must be flushed before its response (FUA).
    DurableWrite,
    Flush,
}

impl Kind {
    /// Index of the latency recorder: 0 for reads, 1 for writes, 2 for flushes.
    pub(super) fn recorder(self) -> usize {
        match self {
            Kind::Read => 0,
            Kind::Write | Kind::DurableWrite => 1,
            Kind::Flush => 2,
        }
    }
}

/// The command and connection that an I/O belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    /// Index of the connection, below [`MAX_CONNECTIONS`].
    pub(super) connection: usize,
    /// Distinguishes successive connections with the same index; counted modulo 2^28.
    pub(super) generation: u32,
    pub(super) id: CommandId,
    pub(super) kind: Kind,
}

impl Backend {
    /// Checks an I/O command against its namespace and the host's access.
    pub(super) fn check(
        &self,
        sqe: &Sqe,
        data: DataTransfer,
        access: &Access,
    ) -> Result<Request, Status> {
        let nsid = Nsid(sqe.nsid.get());
        let queue = self.queue_of(nsid).filter(|_| access.has(nsid));
        let queue = queue.ok_or(Status::INVALID_NAMESPACE)?;
        let NamespaceQueue { queue_pair, read_only, .. } = &self.queues[queue];
        let namespace = queue_pair.namespace();
        let kind = match sqe.opcode {
            nvm::READ => Kind::Read,
            nvm::WRITE if sqe.cdw12.get() & FUA != 0 => Kind::DurableWrite,
            nvm::WRITE => Kind::Write,
            nvm::FLUSH => return Ok(Request::flush(queue)),
            _ => return Err(Status::INVALID_OPCODE),
        };
        let is_read_only = namespace.read_only
            || *read_only
            || access.read_only
            || !self.subsystem.options.writable;
        if kind != Kind::Read && is_read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED);
        }
        let len_bytes = self.check_range(sqe, namespace)?;
        let moved = match data {
            DataTransfer::None => 0,
            DataTransfer::ToHost(len) | DataTransfer::FromHost { len, .. } => len,
        };
        if moved != len_bytes {
            return Err(Status::INVALID_SGL_LENGTH);
        }
        let forces_unit_access = kind == Kind::Read && sqe.cdw12.get() & FUA != 0;
        let slba = sqe.slba();
        Ok(Request { kind, queue, slba, len_bytes, forces_unit_access, is_rest: false })
    }

    /// The rest of a read of `len` bytes, of which `served` are served, if its namespace is still there.
    pub(super) fn rest_of(
        &self,
        sqe: &Sqe,
        (served, len): (u32, u32),
        access: &Access,
    ) -> Result<Request, Status> {
        let mut rest = self.check(sqe, DataTransfer::ToHost(len), access)?;
        let block_len_bytes = len / sqe.num_blocks();
        rest.slba.0 += u64::from(served / block_len_bytes);
        rest.len_bytes -= served;
        rest.is_rest = true;
        Ok(rest)
    }

    /// Length in bytes of the command's block range. The range must exist and fit MDTS.
    fn check_range(&self, sqe: &Sqe, namespace: &Namespace) -> Result<u32, Status> {
        let end = sqe.slba().0.checked_add(u64::from(sqe.num_blocks()));
        if end.is_none_or(|end| end > namespace.num_blocks) {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        let len_bytes = u64::from(sqe.num_blocks()) * u64::from(namespace.block_len_bytes);
        let len_bytes = u32::try_from(len_bytes).map_err(|_| Status::INVALID_FIELD)?;
        if len_bytes > self.subsystem.max_transfer_bytes {
            return Err(Status::INVALID_FIELD);
        }
        Ok(len_bytes)
    }

    /// Memory for `len` bytes of in-capsule data: from the pool, the reserve, or the allocator.
    pub(super) fn take_for_capsule(&self, len: usize) -> IoBuf {
        let buf = self.pool.take(len).or_else(|| self.reserve.take(len));
        // The reserve had room when the capsule was received, but may be fragmented.
        buf.unwrap_or_else(|| IoBuf::zeroed(len))
    }

    /// Returns whether there is memory for all in-capsule data that one receive call can bring.
    pub(super) fn has_room_for_capsules(&self) -> bool {
        self.pool.free_bytes() >= TARGET_RECEIVE_BYTES
            || self.reserve.free_bytes() >= RESERVE_BYTES / 2
    }

    /// Queues the I/O of a request; it is submitted when the poller next runs its devices.
    pub(super) fn push(&mut self, request: &Request, buf: IoBuf, tag: Tag) {
        let op = match tag.kind {
            Kind::Read => IoOp::Read,
            Kind::Write | Kind::DurableWrite => IoOp::Write,
            Kind::Flush => IoOp::Flush,
        };
        let queue = &mut self.queues[request.queue];
        if request.forces_unit_access {
            // Hosts force unit access to repeat a read whose data they found corrupt.
            queue.queue_pair.report_corrupt(request.slba, buf.len());
        }
        queue.open_bytes += buf.len() as u64;
        let io = Io { op, slba: request.slba, buf, tag: tag.to_u64() };
        queue.pending.push_back(io);
    }

    /// Borrows a read's data from the device, if the device lends them.
    pub(super) fn borrow(&self, request: &Request) -> Option<SharedBuf> {
        let queue = &self.queues[request.queue].queue_pair;
        queue.borrow(request.slba, request.len_bytes as usize)
    }

    /// Adds this iteration's counts to the counters that all pollers share.
    pub(super) fn publish_counts(&mut self) {
        self.tally.publish_counts(&self.subsystem.counters);
        self.sharing.publish_counts();
    }

    /// Returns whether any I/O is queued or outstanding.
    pub(super) fn is_busy(&self) -> bool {
        self.queues.iter().any(|(_, queue)| queue.is_busy())
    }

    /// Index in `queues` of the namespace, if it exists.
    fn queue_of(&self, nsid: Nsid) -> Option<usize> {
        let queue = *self.by_nsid.get(nsid.0 as usize)?;
        (queue != NO_QUEUE).then_some(queue as usize)
    }

    /// Adds the queue of a namespace; returns its index in `queues`.
    pub(super) fn add_queue(&mut self, mut queue: NamespaceQueue) -> usize {
        queue.class = self.sharing.class_of(queue.nsid);
        queue.paces = self.sharing.paces_of(queue.nsid);
        let nsid = queue.nsid.0 as usize;
        let index = self.queues.insert(queue);
        self.by_nsid.resize(self.by_nsid.len().max(nsid + 1), NO_QUEUE);
        self.by_nsid[nsid] = index as u32;
        index
    }

    /// Removes the namespace from the NSID table; returns its index in `queues`.
    pub(super) fn remove_queue(&mut self, nsid: Nsid) -> Option<usize> {
        let index = self.queue_of(nsid)?;
        self.by_nsid[nsid.0 as usize] = NO_QUEUE;
        self.queues[index].is_removed = true;
        Some(index)
    }
}

impl Tag {
    pub(super) fn to_u64(self) -> u64 {
        u64::from(self.id.0)
            | (self.kind as u64) << 16
            | (self.connection as u64) << 20
            | u64::from(self.generation & GENERATION_MASK) << 36
    }

    pub(super) fn from_u64(tag: u64) -> Tag {
        Tag {
            id: CommandId((tag & 0xFFFF) as u16),
            kind: match tag >> 16 & 0xF {
                0 => Kind::Read,
                1 => Kind::Write,
                2 => Kind::DurableWrite,
                _ => Kind::Flush,
            },
            connection: (tag >> 20 & 0xFFFF) as usize,
            generation: (tag >> 36) as u32,
        }
    }
}

/// The NVMe status of a failed I/O.
pub(super) fn status_of(error: &IoError, kind: Kind) -> Status {
    let fault = match kind {
        Kind::Read => Status::UNRECOVERED_READ_ERROR,
        Kind::Write | Kind::DurableWrite | Kind::Flush => Status::WRITE_FAULT,
    };
    match error {
        IoError::Status(status) => *status,
        IoError::Disconnected(_) | IoError::Fenced => Status::INTERNAL_PATH_ERROR,
        IoError::Short { .. } | IoError::DataDigest => Status::DATA_TRANSFER_ERROR,
        IoError::Os(libc::ENOSPC | libc::EDQUOT) => Status::CAPACITY_EXCEEDED.do_not_retry(),
        IoError::Os(libc::EROFS | libc::EPERM | libc::EBADF) if kind != Kind::Read => {
            Status::NAMESPACE_WRITE_PROTECTED.do_not_retry()
        }
        IoError::Invalid(_) => Status::INVALID_FIELD.do_not_retry(),
        IoError::Os(_) | IoError::Excess { .. } | IoError::Changed(_) => fault,
        // A panic in the device, or an error kind that this crate does not know.
        _ => Status::INTERNAL_ERROR,
    }
}

impl Backend {
    /// Follows changes of the limiter's rules, and ends taking turns once one host has been alone for a while. After
    /// either, each namespace starts again with the smallest `open_limit`, and gets the rate limits of the current
    /// rules.
    pub(super) fn refresh_shares(&mut self) {
        let ends = self.sharing.unmix(self.now);
        let is_new = self.sharing.follow_rules();
        if ends || is_new {
            for (_, queue) in &mut self.queues {
                queue.open_limit = MIN_OPEN_LIMIT;
                queue.class = self.sharing.class_of(queue.nsid);
            }
        }
    }

    /// The piece of a command that begins in one turn: while hosts take turns, the first [`PIECE_BYTES`] of a long
    /// read; otherwise all of it.
    pub(super) fn piece_of(&self, request: &Request) -> Request {
        let is_cut = self.sharing.is_mixed && request.kind == Kind::Read;
        let most = if is_cut { PIECE_BYTES } else { u32::MAX };
        Request { len_bytes: request.len_bytes.min(most), ..*request }
    }

    /// Returns whether it is a command's turn at the device of its namespace. `host`: the command's host; `None`: paces
    /// do not count the command.
    pub(super) fn has_room_at_device(&mut self, request: &Request, host: Option<HostId>) -> bool {
        let now = self.now;
        let Backend { queues, sharing, .. } = self;
        let queue = &mut queues[request.queue];
        let paced = queue.paces.as_deref().zip(host.and_then(|host| sharing.runner(host)));
        if let Some((paces, runner)) = paced
            && now + MIXED / 2 >= queue.crowded_until
            && paces.meets_another(runner)
        {
            queue.crowded_until = now + MIXED;
        }
        if !sharing.is_mixed && now >= queue.crowded_until {
            return true;
        }
        // Unsent responses count as one piece: reading ahead of them would push them out of the processor's cache.
        let unsent = if sharing.sends.is_empty() { 0 } else { u64::from(PIECE_BYTES) };
        let open = queue.open_bytes + unsent;
        // Once a command has no room, later ones wait too, so that none overtakes it.
        let end = open + u64::from(request.len_bytes);
        let has_room = !queue.is_gated && (open == 0 || end <= queue.open_limit);
        queue.is_gated |= !has_room;
        if let Some((paces, runner)) = paced.filter(|_| !has_room) {
            let is_write = request.kind != Kind::Read;
            if now < queue.limits_until {
                paces.waits_for_device(runner, is_write, sharing.ticks(now));
            } else {
                paces.leaves(runner, is_write);
            }
        }
        has_room && sharing.starts.is_empty()
    }

    /// Returns whether the rate limits of the host, its group and the namespace let a command begin now.
    pub(super) fn is_within_limits(&mut self, host: HostId, request: &Request) -> bool {
        let NamespaceQueue { class, paces, .. } = &self.queues[request.queue];
        let namespace = (class.as_deref(), paces.as_deref());
        self.sharing.is_within_limits(host, namespace, request.kind != Kind::Read, self.now)
    }

    /// After a turn of `flow`: if no other command of its host waits for its namespace, notes that.
    pub(super) fn note_served(&self, flow: Flow, waiting: &Turns) {
        if let Some(host) = flow.host.checked_sub(1)
            && !waiting.is_waiting(flow.host, flow.namespace)
        {
            self.note_no_wait(HostId(host), flow.namespace / 2, flow.namespace % 2 == 1);
        }
    }

    /// Notes that no read, or no write if `is_write`, of the host waits for the device or the rate of a namespace.
    pub(super) fn note_no_wait(&self, host: HostId, queue: usize, is_write: bool) {
        let paces = self.queues.get(queue).and_then(|queue| queue.paces.as_deref());
        if let Some((paces, runner)) = paces.zip(self.sharing.runner(host)) {
            paces.leaves(runner, is_write);
        }
        self.sharing.leave_group(host, is_write);
    }

    /// Notes that a connection of the host has closed. Other connections that still wait are noted again at their next
    /// turn.
    pub(super) fn note_closed(&self, host: HostId) {
        for (queue, _) in &self.queues {
            [false, true].iter().for_each(|&is_write| self.note_no_wait(host, queue, is_write));
        }
    }

    /// Charges the rate limits and paces for a command that begins.
    pub(super) fn charge(&mut self, host: HostId, request: &Request) {
        let NamespaceQueue { class, paces, .. } = &self.queues[request.queue];
        let namespace = (class.as_deref(), paces.as_deref());
        let amount = (request.kind != Kind::Read, request.len_bytes);
        self.sharing.charge(host, namespace, amount, self.now);
    }

    /// Counts a command that has succeeded, for its host and for the target.
    pub(super) fn count(&mut self, host: Option<HostId>, is_write: bool, len: usize) {
        let tally = &mut self.tally;
        let [number, bytes] = if is_write {
            [&mut tally.writes, &mut tally.written_bytes]
        } else {
            [&mut tally.reads, &mut tally.read_bytes]
        };
        *number += 1;
        *bytes += len as u64;
        if let Some(host) = host {
            self.sharing.count(host, is_write, len as u64);
        }
    }

    /// Doubles the open limits for which commands wait, since the poller would sleep otherwise: a device with a long
    /// delay needs more bytes at a time. A limit at its highest is doubled only if all devices are silent; otherwise
    /// the device counts as what limits the hosts. Returns whether a limit has risen, so that commands may begin.
    pub(super) fn raise_open_limits(&mut self) -> bool {
        let is_silent = self.now.saturating_duration_since(self.last_done) >= SILENCE;
        let mut has_risen = false;
        for (_, queue) in &mut self.queues {
            let highest = if queue.paces.is_some() { MAX_OPEN_LIMIT / 2 } else { MAX_OPEN_LIMIT };
            if queue.is_gated && (queue.open_limit < highest || is_silent) {
                queue.open_limit *= 2;
                queue.is_gated = false;
                has_risen = true;
            } else if queue.is_gated {
                queue.limits_until = self.now + SILENCE;
            }
        }
        has_risen
    }
}

/// Index in `queues` for an NSID without a namespace.
const NO_QUEUE: u32 = u32::MAX;

/// Size of the reserve for in-capsule data.
pub(super) const RESERVE_BYTES: usize = 4 << 20;
const _: () = assert!(RESERVE_BYTES / 2 >= TARGET_RECEIVE_BYTES);

/// Maximum waiting commands of one poller, beyond which connections with [`MIN_WAITING`] receive no more.
pub(super) const MAX_WAITING: usize = 64 << 10;
/// Waiting commands that each connection may have in any case.
pub(super) const MIN_WAITING: usize = 32;

/// Connection indices are below this.
pub(super) const MAX_CONNECTIONS: usize = 1 << 16;

/// Mask of a connection's generation, which counts modulo 2^28.
pub(super) const GENERATION_MASK: u32 = (1 << 28) - 1;

/// The initial open limit in bytes: room for a piece of a long read, and for small commands beside it.
const MIN_OPEN_LIMIT: u64 = PIECE_BYTES as u64 * 3 / 2;
/// The highest open limit, in bytes, of a device that is not silent: enough for a fast drive. Each of several pollers
/// has half of it.
const MAX_OPEN_LIMIT: u64 = 4 << 20;

/// Time without a completion of any device after which open limits rise beyond [`MAX_OPEN_LIMIT`].
pub(super) const SILENCE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_reads_back_from_its_number() {
        for kind in [Kind::Read, Kind::Write, Kind::DurableWrite, Kind::Flush] {
            for (connection, generation, id) in
                [(0, 0, 0), (0xFFFF, GENERATION_MASK, 0xFFFF), (3, 7, 9)]
            {
                let tag = Tag { connection, generation, id: CommandId(id), kind };
                assert_eq!(Tag::from_u64(tag.to_u64()), tag);
            }
        }
    }

    #[test]
    fn a_full_disk_and_a_lost_origin_have_statuses_of_their_own() {
        let status = |error, kind| status_of(&error, kind);
        assert!(status(IoError::Os(libc::ENOSPC), Kind::Write).is(Status::CAPACITY_EXCEEDED));
        assert!(status(IoError::Os(libc::EIO), Kind::Read).is(Status::UNRECOVERED_READ_ERROR));
        assert!(
            status(IoError::Os(libc::EBADF), Kind::Write).is(Status::NAMESPACE_WRITE_PROTECTED)
        );
        let lost = IoError::Disconnected("gone".into());
        assert!(status(lost, Kind::Read).is(Status::INTERNAL_PATH_ERROR));
    }
}
