//! Turns and limits of commands at the devices of a poller.

use std::time::{Duration, Instant};

use super::super::hosts::HostId;
use super::super::shares::{Flow, Turns};
use super::super::sharing::{MIXED, PIECE_BYTES};
use super::{Backend, Kind, NamespaceQueue, Request};

impl Backend {
    /// Follows the limiter's rules, and ends taking turns when one host has been alone for a while.
    pub(in super::super) fn refresh_shares(&mut self, now: Instant) {
        let ends = self.sharing.unmix(now);
        let is_new = self.sharing.follow_rules();
        if ends || is_new {
            for (_, queue) in &mut self.queues {
                queue.window = MIN_WINDOW_BYTES;
                queue.class = self.sharing.class_of(queue.nsid);
            }
        }
    }

    /// The part of a command that begins in one turn: of a long read a piece, while hosts take turns.
    pub(in super::super) fn part_of(&self, request: &Request) -> Request {
        let is_cut = self.sharing.is_mixed && request.kind == Kind::Read;
        let most = if is_cut { PIECE_BYTES } else { u32::MAX };
        Request { len_bytes: request.len_bytes.min(most), ..*request }
    }

    /// Returns whether it is a command's turn at the device of its namespace. `host`: its host, if limits apply.
    pub(in super::super) fn has_room_at_device(
        &mut self,
        request: &Request,
        host: Option<HostId>,
        now: Instant,
    ) -> bool {
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
        // Bytes that sockets would take count as a piece: to read ahead would push them out of the processor's cache.
        let unsent = if sharing.sends.is_empty() { 0 } else { u64::from(PIECE_BYTES) };
        let open = queue.open_bytes + unsent;
        // Once one has no room, those behind it wait too, so that none overtakes it.
        let end = open + u64::from(request.len_bytes);
        let has_room = !queue.is_gated && (open == 0 || end <= queue.window);
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

    /// Returns whether limits let a command begin now.
    pub(in super::super) fn is_within_limits(
        &mut self,
        host: HostId,
        request: &Request,
        now: Instant,
    ) -> bool {
        let NamespaceQueue { class, paces, .. } = &self.queues[request.queue];
        let space = (class.as_deref(), paces.as_deref());
        self.sharing.is_within_limits(host, space, request.kind != Kind::Read, now)
    }

    /// Notes that no command of a flow's host waits for its namespace any more, if so.
    pub(in super::super) fn note_served(&self, flow: Flow, waiting: &Turns) {
        if let Some(host) = flow.host.checked_sub(1)
            && !waiting.is_waiting(flow.host, flow.space)
        {
            self.note_no_wait(HostId(host), flow.space / 2, flow.space % 2 == 1);
        }
    }

    /// Notes that no read or write of the host waits for the device or the rate of a namespace.
    pub(in super::super) fn note_no_wait(&self, host: HostId, queue: usize, is_write: bool) {
        let paces = self.queues.get(queue).and_then(|queue| queue.paces.as_deref());
        if let Some((paces, runner)) = paces.zip(self.sharing.runner(host)) {
            paces.leaves(runner, is_write);
        }
        self.sharing.leave_group(host, is_write);
    }

    /// Notes that a connection of the host has closed. Those that go on waiting are noted again.
    pub(in super::super) fn note_closed(&self, host: HostId) {
        for (queue, _) in &self.queues {
            [false, true].iter().for_each(|&is_write| self.note_no_wait(host, queue, is_write));
        }
    }

    /// Charges limits for a command that begins.
    pub(in super::super) fn charge(&mut self, host: HostId, request: &Request, now: Instant) {
        let NamespaceQueue { class, paces, .. } = &self.queues[request.queue];
        let space = (class.as_deref(), paces.as_deref());
        let amount = (request.kind != Kind::Read, request.len_bytes);
        self.sharing.charge(host, space, amount, now);
    }

    /// Counts a command that has succeeded, for its host and for the target.
    pub(in super::super) fn count(&mut self, host: Option<HostId>, is_write: bool, len: usize) {
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

    /// Lets more bytes to devices that have been silent while commands waited for a turn there: a device with
    /// a long delay needs more of them at a time. Those that have enough count as the limit. Returns whether
    /// commands may begin now.
    pub(in super::super) fn widen(&mut self, now: Instant) -> bool {
        let is_silent = now.saturating_duration_since(self.last_done) >= SILENCE;
        let mut is_wider = false;
        for (_, queue) in &mut self.queues {
            let widest = if queue.paces.is_some() { WINDOW_BYTES / 2 } else { WINDOW_BYTES };
            if queue.is_gated && (queue.window < widest || is_silent) {
                queue.window *= 2;
                queue.is_gated = false;
                is_wider = true;
            } else if queue.is_gated {
                queue.limits_until = now + SILENCE;
            }
        }
        is_wider
    }
}

/// The bytes at a device beyond which commands wait for their turns: few at first, a piece of a long read and small
/// commands beside it, and as many as a fast drive needs if the poller would sleep otherwise. Each of several pollers
/// has half of that.
pub(super) const MIN_WINDOW_BYTES: u64 = PIECE_BYTES as u64 * 3 / 2;
const WINDOW_BYTES: u64 = 4 << 20;
/// Silence of all devices after which even more bytes may be at a device.
pub(in super::super) const SILENCE: Duration = Duration::from_millis(10);
