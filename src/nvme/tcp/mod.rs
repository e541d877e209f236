//! NVMe/TCP: how commands and their data travel over one TCP connection.
//!
//! One connection is one queue pair. After the two initialisation PDUs, each direction is a stream of PDUs,
//! and any framing error ends the connection. Everything here is a state machine: bytes and times go in,
//! bytes and events come out. There is no socket, no thread and no clock, so the same code runs in the
//! host's engines (`dlfs-io`), in the target (`dlfs-target`), and in tests that split the stream at every
//! byte.
//!
//! It is not a transport for other fabrics and knows nothing about samples. [`crate::nvme`] interprets
//! commands; here a queue entry is just 64 or 16 bytes.
//!
//! Invariants:
//! - A length from the wire is checked before it is used, and never sizes an allocation.
//! - A failed connection stays failed, with its first error.
//! - A read succeeds only when its buffer holds all of its own data and nothing else. A host guesses which
//!   reads come next and receives into their buffers; after a wrong guess, misplaced bytes remain only in
//!   buffers that still wait for their own data.
//!
//! Read [`pdu`] first, then [`deframer`] (bytes to PDUs, both directions), then [`host`] and
//! [`controller`]. [`budget`] limits how much one poll iteration moves.

pub mod budget;
pub mod controller;
pub mod deframer;
pub mod error;
pub mod host;
pub mod pdu;
mod transmit;

pub use error::ProtocolError;
pub use pdu::Digests;
