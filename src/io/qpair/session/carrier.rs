//! The turn of an I/O queue: bytes between the queue and its connection, and what the queue decides about the
//! connection.
//!
//! The engine `tcp` runs it with sockets, and a simulation with its own network: see [`Carrier`].

use std::net::SocketAddr;
use std::time::Instant;

use super::queue::{Action, TcpShared};
use super::{Attempt, Channel, Failure, IoQueue};

/// Surroundings of a turn: the connection of the queue.
pub trait Carrier {
    /// Starts to connect to `address`.
    fn open(&mut self, address: SocketAddr) -> Result<(), Failure>;

    /// Transfers the bytes of `channel` in both directions. After an error the connection is lost.
    fn transfer(&mut self, now: Instant, channel: &mut Channel<Attempt>) -> Result<(), Failure>;

    /// Sends the queued bytes of `channel`. After an error the connection is lost.
    fn send(&mut self, now: Instant, channel: &mut Channel<Attempt>) -> Result<(), Failure>;

    /// Closes the connection. With `owes_data`, discards what it has not sent.
    fn close(&mut self, now: Instant, owes_data: bool);
}

/// Runs one turn of the queue. Its completions are then ready.
pub fn turn(now: Instant, queue: &mut IoQueue, shared: &TcpShared, carrier: &mut impl Carrier) {
    queue.begin(now, shared);
    perform(now, queue, shared, carrier);
    if let Some(channel) = queue.channel() {
        let moved = carrier.transfer(now, channel);
        queue.moved(moved);
        perform(now, queue, shared, carrier);
    }
    queue.finish(shared);
    send(now, queue, shared, carrier);
}

/// Sends the commands that were put on the connection since the last turn.
pub fn send(now: Instant, queue: &mut IoQueue, shared: &TcpShared, carrier: &mut impl Carrier) {
    if let Some(channel) = queue.channel()
        && let Err(failure) = carrier.send(now, channel)
    {
        queue.moved(Err(failure));
        perform(now, queue, shared, carrier);
    }
}

/// Opens and closes the connection as the queue asks. Also needed after a call that may close it outside a
/// turn, such as [`IoQueue::remove_member`].
pub fn perform(now: Instant, queue: &mut IoQueue, shared: &TcpShared, carrier: &mut impl Carrier) {
    while let Some(action) = queue.poll_action() {
        match action {
            Action::Open(address) => {
                if let Err(failure) = carrier.open(address) {
                    queue.moved(Err(failure));
                }
            }
            Action::Close { owes_data } => {
                carrier.close(now, owes_data);
                queue.closed(shared);
            }
        }
    }
}
