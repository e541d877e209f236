//! A TCP connection of the simulated network: bytes in both directions, with delays, pieces, breaks and
//! silence.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::{Duration, Instant};

use dlfs::error::ErrorKind;
use dlfs::qpair::session::{Channel, Failure};

use super::random::Random;

/// The contents of several slices.
pub(crate) fn bytes_of(slices: &[IoSlice<'_>]) -> Vec<u8> {
    slices.iter().flat_map(|slice| slice.iter().copied()).collect()
}

/// One connection, seen from the network.
pub(crate) struct Wire {
    /// The path that it takes.
    pub(crate) portal: usize,
    /// When TCP answers, and how; `None`: never.
    answer: Option<(Instant, Result<(), Failure>)>,
    up: Direction,
    down: Direction,
    /// Nothing arrives in either direction before this time.
    held_until: Instant,
    /// When the host learns that the target's side has ended.
    broken_at: Option<Instant>,
    /// When the target learns that the host has closed.
    closed_at: Option<Instant>,
    random: Random,
}

#[derive(Default)]
struct Direction {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    /// When the last piece arrives: later pieces do not overtake it.
    last: Option<Instant>,
}

impl Direction {
    fn send(&mut self, now: Instant, bytes: &[u8], random: &mut Random) {
        // Usually in two pieces, so that PDUs are split everywhere.
        let at = random.below(bytes.len() as u64 + 1) as usize;
        for piece in [&bytes[..at], &bytes[at..]] {
            if !piece.is_empty() {
                let arrives = now + Duration::from_micros(10 + random.below(190));
                let arrives = self.last.map_or(arrives, |last| last.max(arrives));
                self.last = Some(arrives);
                self.pieces.push_back((arrives, piece.to_vec()));
            }
        }
    }

    fn next(&self, held_until: Instant) -> Option<Instant> {
        self.pieces.front().map(|(at, _)| (*at).max(held_until))
    }

    fn receive(&mut self, now: Instant, held_until: Instant) -> Option<Vec<u8>> {
        self.next(held_until).filter(|at| *at <= now)?;
        self.pieces.pop_front().map(|(_, bytes)| bytes)
    }
}

impl Wire {
    /// A connection that TCP answers at this time.
    pub(crate) fn new(
        now: Instant,
        portal: usize,
        answer: Option<(Instant, Result<(), Failure>)>,
        random: Random,
    ) -> Wire {
        let up = Direction::default();
        let down = Direction::default();
        let held_until = now;
        let broken_at = None;
        let closed_at = None;
        Wire { portal, answer, up, down, held_until, broken_at, closed_at, random }
    }

    /// When the host's side must run again.
    pub(crate) fn host_ready_at(&self, is_opening: bool) -> Option<Instant> {
        if is_opening {
            return self.answer.as_ref().map(|(at, _)| (*at).max(self.held_until));
        }
        let broken = self.broken_at.map(|at| at.max(self.held_until));
        self.down.next(self.held_until).or(broken)
    }

    /// When the target's side must run again.
    pub(crate) fn target_ready_at(&self) -> Option<Instant> {
        let closed = self.closed_at.map(|at| at.max(self.held_until));
        [self.up.next(self.held_until), closed].into_iter().flatten().min()
    }

    /// Returns whether the host has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed_at.is_some()
    }

    /// Returns whether the target's side has ended.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken_at.is_some()
    }

    /// Returns whether the target knows by now that the host has closed.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.closed_at.is_some_and(|at| at.max(self.held_until) <= now)
    }

    /// Delays all arrivals until `until`.
    pub(crate) fn hold(&mut self, until: Instant) {
        self.held_until = self.held_until.max(until);
    }

    /// Ends it from the target's side, or in the network: bytes in flight to the target are lost.
    pub(crate) fn break_off(&mut self, now: Instant) {
        if self.broken_at.is_none() {
            self.broken_at = Some(now + Duration::from_micros(self.random.below(300)));
            self.up.pieces.clear();
            // Bytes that the target had sent may still arrive, in whole or in part.
            let kept = self.random.below(self.down.pieces.len() as u64 + 1) as usize;
            self.down.pieces.truncate(kept);
        }
    }

    /// The host closes; with `owes_data` bytes that it has sent may be lost.
    pub(crate) fn close(&mut self, now: Instant, owes_data: bool) {
        if owes_data {
            let kept = self.random.below(self.up.pieces.len() as u64 + 1) as usize;
            self.up.pieces.truncate(kept);
        }
        let arrives = now + Duration::from_micros(self.random.below(300));
        self.closed_at = Some(self.up.last.map_or(arrives, |last| last.max(arrives)));
        self.down.pieces.clear();
    }

    /// Transfers bytes between the network and a channel of the host, as `src/io/qpair/tcp/link.rs` does for a socket.
    pub(crate) fn pump<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        now: Instant,
        channel: &mut Channel<B>,
    ) -> Result<(), Failure> {
        if channel.is_opening() {
            match self.answer.take_if(|(at, _)| (*at).max(self.held_until) <= now) {
                None => return channel.handle_timeout(now),
                Some((_, answer)) => answer?,
            }
            channel.handle_connected(now);
        }
        let received = self.receive(now, channel);
        let moved = received.and_then(|()| channel.handle_timeout(now));
        self.send(now, channel);
        moved
    }

    /// Takes the channel's outgoing bytes.
    pub(crate) fn send<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        now: Instant,
        channel: &mut Channel<B>,
    ) {
        let Some(connection) = channel.connection() else { return };
        while connection.wants_transmit() {
            let mut slices = [IoSlice::new(&[]); 16];
            let used = connection.poll_transmit(&mut slices);
            let bytes = bytes_of(&slices[..used]);
            if self.broken_at.is_none() {
                self.up.send(now, &bytes, &mut self.random);
            }
            connection.transmitted(now, bytes.len());
        }
    }

    fn receive<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        now: Instant,
        channel: &mut Channel<B>,
    ) -> Result<(), Failure> {
        let Some(connection) = channel.connection() else { return Ok(()) };
        while let Some(bytes) = self.down.receive(now, self.held_until) {
            connection.handle_received(now, &bytes)?;
        }
        match self.broken_at {
            Some(at) if at.max(self.held_until) <= now && self.down.pieces.is_empty() => {
                Err(Failure::new(ErrorKind::Disconnected, "the target closed the connection"))
            }
            _ => Ok(()),
        }
    }

    /// The bytes that have arrived at the target.
    pub(crate) fn receive_at_target(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.up.receive(now, self.held_until)
    }

    /// The target sends.
    pub(crate) fn send_to_host(&mut self, now: Instant, bytes: &[u8]) {
        if self.broken_at.is_none() && self.closed_at.is_none() {
            self.down.send(now, bytes, &mut self.random);
        }
    }
}
