//! The loader of a node: one process reads, and all ranks of the node take their batches from its window.
//!
//! The first process that binds the node's socket is the *owner* (`owner.rs`). It reads with one ordinary prefetcher,
//! into memory that the other processes map for reading. A batch of this prefetcher is that of all ranks of the node
//! together; if batches have a budget, it is of one rank, and the ranks get batches in turn. Every rank, also that of
//! the owner's process, is a *client* (`client.rs`) with a *seat*: its number on the node. A message describes a batch:
//! the ids, and the places of the bytes. So bytes in the window are not copied, and the next batch has usually arrived
//! before it is needed. Bytes outside the window (lent by a tier in memory, or allocated beside a full window) are
//! copied twice: by the owner into a file in memory, and by each rank out of it.
//!
//! | file | holds |
//! |---|---|
//! | `schedule` | decides which batches are read, sent, dropped and read again; no socket |
//! | `owner`, `puller` | the two threads of the owner: one serves clients, one reads |
//! | `client`, `link` | a rank that takes its batches; its connection |
//! | `messages` | the messages, as bytes |
//!
//! Invariants:
//! - Memory is reused only after every connected rank that had a share of it has dropped its batch or has disconnected.
//!   So memory that a client reads never changes.
//! - Each client states the position from which it wants batches, and gets exactly the batches from there on.
//! - When the owner ends, the clients compete for the socket. The winner reads from the smallest position that a rank
//!   wants; the others skip the batches that they have had.
//!
//! Not here: the order, which `Shard` of `dlfs-order` divides among nodes and ranks, and waiting for ranks of other
//! nodes.
//!
//! Read `schedule.rs` first.

mod client;
mod link;
mod messages;
mod owner;
mod puller;
mod schedule;

use xxhash_rust::xxh3::xxh3_64;

use crate::order::State;

use super::{LoaderOptions, NodePlace};

pub(crate) use client::NodeClient;
pub(crate) use puller::Origin;

/// The number of nodes of the job.
fn num_nodes(place: &NodePlace, options: &LoaderOptions) -> u32 {
    (options.world_size / place.local_world_size.max(1)).max(1)
}

/// The seat of a rank: its number on its node.
fn seat(place: &NodePlace, options: &LoaderOptions) -> u32 {
    options.rank / num_nodes(place, options)
}

/// The options with which the node of a rank with `options` reads, from `state` on.
pub(crate) fn reading(place: &NodePlace, options: &LoaderOptions, state: State) -> LoaderOptions {
    let nodes = num_nodes(place, options);
    let seats = if options.budget.is_some() { 1 } else { place.local_world_size as usize };
    LoaderOptions {
        order: state.order,
        rank: options.rank % nodes,
        world_size: nodes,
        batch_size: options.batch_size.saturating_mul(seats),
        node: None,
        seats: Some(place.local_world_size),
        resume: Some(state),
        // Each client gathers its own part.
        copy_threads: None,
        // Clients map the memory for reading only.
        verify_kept: false,
        // Each rank registers its own mapping.
        pin: None,
        ..options.clone()
    }
}

/// The name of the socket: equal for the ranks of this node in one run, at any position of it, and for no others.
fn socket_name(place: &NodePlace, options: &LoaderOptions, state: &State) -> String {
    let LoaderOptions { epochs, world_size, batch_size, rows, tail, drop_short, .. } = options;
    let mut run = state.clone();
    run.move_to((Default::default(), 0), None);
    let run = run.to_json();
    let node = options.rank % num_nodes(place, options);
    let local = place.local_world_size;
    let text = format!(
        "{} {run} {epochs:?} {world_size} {batch_size} {rows:?} {tail:?} {drop_short} {node} {local}",
        place.job
    );
    format!("node-{:016x}", xxh3_64(text.as_bytes())) // a socket's path is limited to 107 bytes
}
