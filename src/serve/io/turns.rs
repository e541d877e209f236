//! Turns and limits of commands at the devices of a poller.

use std::time::{Duration, Instant};

use super::super::hosts::HostId;
use super::{Backend, Kind, Request};

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

    /// Returns whether it is a command's turn at the device of this namespace.
    pub(in super::super) fn has_room_at_device(&mut self, queue: usize) -> bool {
        if !self.sharing.is_mixed {
            return true;
        }
        let queue = &mut self.queues[queue];
        let has_room = queue.open_bytes < queue.window;
        queue.is_gated |= !has_room;
        has_room && self.sharing.starts.is_empty()
    }

    /// Returns whether limits let a command begin now.
    pub(in super::super) fn is_within_limits(
        &mut self,
        host: HostId,
        request: &Request,
        now: Instant,
    ) -> bool {
        let space = self.queues[request.queue].class.as_deref();
        self.sharing.is_within_limits(host, space, request.kind != Kind::Read, now)
    }

    /// Charges limits for a command that begins.
    pub(in super::super) fn charge(&mut self, host: HostId, request: &Request, now: Instant) {
        let space = self.queues[request.queue].class.as_deref();
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
    /// a long delay needs more of them at a time. Returns whether commands may begin now.
    pub(in super::super) fn widen(&mut self, now: Instant) -> bool {
        let is_silent = now.saturating_duration_since(self.last_done) >= SILENCE;
        let mut is_wider = false;
        for (_, queue) in &mut self.queues {
            if queue.is_gated && (queue.window < WINDOW_BYTES || is_silent) {
                queue.window *= 2;
                queue.is_gated = false;
                is_wider = true;
            }
        }
        is_wider
    }
}

/// The bytes at a device beyond which commands wait for their turns: few at first, so that small commands
/// wait for few, and as many as a fast drive needs if the poller would sleep otherwise.
pub(super) const MIN_WINDOW_BYTES: u64 = 256 << 10;
const WINDOW_BYTES: u64 = 4 << 20;
/// Silence of all devices after which even more bytes may be at a device.
pub(in super::super) const SILENCE: Duration = Duration::from_millis(10);
