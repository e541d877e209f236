//! NVMe/TCP: how commands and their data travel over one TCP connection.
//!
//! One connection is one queue pair. After the two initialisation PDUs it is a stream of PDUs each
//! way, and any framing error is the end of it. Everything here is a state machine: bytes and times
//! go in, bytes and events come out. There is no socket, no thread and no clock, so the same code
//! runs under the engines of [`crate::qpair`], under [`crate::target`] and under tests that cut the
//! stream at every byte.
//!
//! It is not a transport for other fabrics and it knows nothing about samples. What a command means
//! is the business of [`crate::nvme`]; here an entry is 64 or 16 bytes.
//!
//! Invariants:
//! - No length from the wire is trusted before it is checked, and none sizes an allocation.
//! - A connection that has failed stays failed, with its first error.
//! - A read succeeds only when all of its own data, and nothing else, is in its buffer. Bytes that a
//!   receive put elsewhere by a wrong guess lie in buffers whose own data are still to come.
//!
//! Read [`pdu`] first, then [`deframer`] (bytes to PDUs, both directions), then [`host`] and
//! [`controller`]. [`turn`] says how much is moved at a time.

pub mod controller;
pub mod deframer;
pub mod digest;
pub mod error;
pub mod host;
pub mod pdu;
pub mod turn;

pub use digest::Digests;
pub use error::ProtocolError;
