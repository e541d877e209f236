//! The loader of a node: one process reads, and all ranks of the node take their batches from its window.
//!
//! The first process that binds the node's socket is the *owner* (`owner.rs`). It reads with one ordinary
//! prefetcher, whose batches are those of all ranks of the node together, into memory that the other processes map for
//! reading. Every rank, the owner's own included, is a *client* (`client.rs`) with a *seat*. A message on its
//! connection describes a batch: ids, and where the bytes lie. So no byte that was read into the window is copied, and
//! the next batch is normally there when it is asked for: one receive. Bytes that lie elsewhere, lent by a tier in
//! memory or beside a full window, are copied twice: into a file in memory, and by each rank its own out of it.
//!
//! | file | holds |
//! |---|---|
//! | `place` | the seat of a rank, the options of the owner's prefetcher, the name of the socket |
//! | `deal` | decides which batches are read, sent, dropped and read again; no socket |
//! | `messages` | the messages as bytes |
//! | `owner`, `puller` | the two threads of the owner: one serves clients, one waits for the prefetcher |
//! | `client`, `link` | a rank that takes its batches, and its connection |
//!
//! Invariants: memory is reused only after every connected rank that had a part of it has dropped its batch, or is
//! gone; so what a client maps never changes under it. Each client says the position that it goes on from, and gets
//! exactly the batches from there on. When the owner ends, the clients compete for the socket; the winner reads on
//! from the smallest position that a rank wants, and the others skip what they have had.
//!
//! Not here: the order, which `Shard` of `dlfs-order` divides among nodes and ranks, and waiting for ranks of other
//! nodes.
//!
//! Read `deal.rs` first.

mod client;
mod deal;
mod link;
mod messages;
mod owner;
mod place;
mod puller;

pub(crate) use client::NodeClient;
pub(crate) use place::reading;
pub(crate) use puller::Origin;
