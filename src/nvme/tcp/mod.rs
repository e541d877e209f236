//! NVMe/TCP: how commands and their data travel over one TCP connection.
//!
//! One connection is one queue pair. After the two initialisation PDUs, each direction is a stream
//! of PDUs, and any framing error ends the connection. Everything here is a state machine: bytes
//! and times go in, bytes and events come out. There is no socket, no thread and no clock, so the
//! same code runs in the engines of `qpair`, in `target` and in tests that cut
//! the stream at every byte.
//!
//! It is not a transport for other fabrics and knows nothing about samples. [`crate::nvme`]
//! interprets commands; here a queue entry is 64 or 16 bytes.
//!
//! Invariants:
//! - No length from the wire is used before it is checked, and none sizes an allocation.
//! - A failed connection stays failed, with its first error.
//! - A read succeeds only when its buffer holds all of its own data and nothing else. A receive
//!   that guessed wrong leaves bytes only in buffers that still wait for their own data.
//!
//! Read [`pdu`] first, then [`deframer`] (bytes to PDUs, both directions), then [`host`] and
//! [`controller`]. [`budget`] limits how much one poll iteration moves.

pub mod budget;
pub mod controller;
pub mod deframer;
pub mod digest;
pub mod error;
pub mod host;
pub mod pdu;

pub use digest::Digests;
pub use error::ProtocolError;
